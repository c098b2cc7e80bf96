/* cuda_impl - what the files of the CUDA device share; nobody else includes it.
 *
 * Owns:   see device.h.
 * Thread: see device.h.
 * Fails:  see device.h.
 *
 * cuda_load.c takes all memory and reads the weights, cuda_step.c launches, device_cuda.c is the
 * table of operations. */
#ifndef LLM42D_RUNTIME_CUDA_IMPL_H
#define LLM42D_RUNTIME_CUDA_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/cuda_attn.h"
#include "runtime/cuda_driver.h"
#include "runtime/cuda_gemm.h"
#include "runtime/cuda_memory.h"
#include "runtime/device.h"
#include "runtime/device_cuda.h"

enum {
    CUDA_GRAPHS_MAX = 64,
    CUDA_GRAPH_ROWS_MAX = 256, /* steps of more rows are launched kernel by kernel */
    CUDA_GRAPH_HEADS_MAX = 16, /* groups of wanted rows in a graph's step */
};

struct cuda_layer {
    struct cuda_gemm_weight qkv, o, gate_up, down; /* gate and up in turns of eight rows */
    CUdeviceptr norm_in, norm_post;                /* bf16 [hidden] */
};

/* The kernels; one entry each. */
struct cuda_entries {
    CUfunction embed, random, norm, norm_many, norm_wide, rotary, sample, sample_spread, plain_attn;
};

/* A stage that was asked for and not launched yet. */
enum cuda_op_kind {
    CUDA_OP_EMBED,
    CUDA_OP_ATTN_IN,
    CUDA_OP_ATTEND,
    CUDA_OP_ATTN_OUT,
    CUDA_OP_MLP_IN,
    CUDA_OP_MLP_OUT,
    CUDA_OP_HEAD,
    CUDA_OP_SAMPLE,
};

struct cuda_op {
    uint32_t kind;
    uint32_t at;       /* the layer, or the first wanted row */
    uint32_t n;        /* wanted rows, rounded up to a bucket */
    uint32_t n_ranks;  /* of who chooses tokens: cuda_sample_ranks */
    struct schedule s; /* its padding is zero: ops are compared as bytes */
};

/* Whole steps as they were seen, and from the second time on recorded: by all that their layout
 * follows from, and the stages asked for. */
struct cuda_graph {
    struct cuda_attn_plan plan;
    uint32_t n_rows, n_ops; /* n_rows 0: none; of rows and wants their places */
    uint32_t n_wants;
    uint32_t n_squared; /* the device's before the first stage, and after the last */
    uint32_t n_squared_after;
    struct cuda_op *ops; /* [n_ops_max] */
    CUgraphExec exec;    /* NULL: seen once */
    uint64_t used;       /* when last */
};

struct cuda_queue {
    struct cuda_op *ops; /* [n_ops_max], then those of the graphs */
    uint32_t n_ops, n_ops_max;
    struct cuda_graph graphs[CUDA_GRAPHS_MAX];
    uint32_t last; /* the graph of the step before: most often of the next, too */
    uint64_t n_steps;
};

/* A step in the block that travels, from rows at 0 on, each part at a multiple of 256 bytes and next
 * to the one before, so that it goes there in one copy, flags as zeros, and comes back in another. */
struct cuda_layout {
    size_t wants_off, tiles_off, flags_off, results_off, end;
};

struct cuda_device {
    struct device base;
    struct device_cuda_options options;
    struct cuda_driver *driver;
    struct cuda_gemm *gemm;
    struct cuda_entries entries;
    bool can_spread;  /* a cluster that chooses a token finds a place */
    int nccl_version; /* 10000 major + 100 minor + patch; 0: there is none */

    struct model model;     /* from here on: of `load`, zero before it */
    struct cuda_attn *attn; /* NULL: its kernels do not know the model's heads */
    struct device_limits limits;
    struct cuda_memory memory;
    uint32_t width, kv_width, qkv_width; /* values of all query heads, of all KV heads, of all */
    uint32_t n_chunks, n_lse_groups;     /* of 128 ids, of SM90_SAMPLE_GROUP chunks */
    uint32_t logits_stride;              /* the vocabulary rounded up to 8 */
    float scale;                         /* c of SPEC 2.7 */
    uint32_t head_turn;                  /* head_dim where rows of qkv are in turns, or 0 */
    uint32_t n_squares, squares_stride;  /* partial sums of squares of a row of x, or 0 */

    struct cuda_layer *layers; /* [n_layers] */
    struct cuda_gemm_weight head;
    CUdeviceptr norm_final;           /* bf16 [hidden] */
    CUdeviceptr embed;                /* bf16 [vocab][hidden], as it stands in the file */
    CUdeviceptr pages;                /* [n_layers][n_pages] as ptx/sm90_attn.h and sm90_kv.h say */
    uint64_t page_bytes, layer_bytes; /* of one layer */
    CUdeviceptr cos, sin;             /* bf16 [n_positions][head_dim / 2] */

    CUdeviceptr x;        /* bf16 [n_rows][hidden] */
    CUdeviceptr squares;  /* f32 [n_rows][squares_stride], of x as ptx/sm90_gemm.h says */
    CUdeviceptr normed;   /* bf16 [n_rows or n_logit_rows][hidden] */
    CUdeviceptr qkv;      /* bf16 [n_rows][qkv_width] */
    CUdeviceptr attended; /* bf16 [n_rows][width] */
    CUdeviceptr h;        /* bf16 [n_rows][intermediate] */
    CUdeviceptr logits;   /* f32 [n_logit_rows][logits_stride] */
    CUdeviceptr weighed;  /* f32 [n_logit_rows][logits_stride] */
    CUdeviceptr chunks;   /* [n_logit_rows][n_lse_groups * SM90_SAMPLE_GROUP] */
    CUdeviceptr maxima;   /* f32 [n_logit_rows][n_lse_groups] */
    CUdeviceptr counts;   /* [n_logit_rows] of groups, 0 between launches */
    CUdeviceptr attn_work;
    CUdeviceptr staging; /* of weights on their way, staging_bytes */
    uint64_t staging_bytes;
    uint64_t upload_bytes, upload_us; /* of weights from files, and how long it took */

    /* What travels: a step laid out as `at` says, and from pages_off on the page tables.  And the
     * same, pinned, on the host. */
    CUdeviceptr batch;
    char *h_batch;
    struct cuda_layout at;
    size_t pages_off, batch_bytes;

    uint32_t n_rows, n_wants;     /* of the step */
    uint32_t row_places;          /* rows and wants rounded up to their buckets: laid out for */
    uint32_t want_places;         /* so many, and of no rows and of nobody where they are more */
    uint32_t n_launch;            /* rows that kernels are launched for, n_rows or its bucket */
    uint32_t n_squared;           /* rows of x, as they will be then, whose squares are there */
    struct cuda_attn_plan plan;   /* of attention, its tiles rounded up to buckets */
    struct sm90_attn_tile *tiles; /* [n_rows], of the plan as it is */
    uint16_t *h_page;             /* keys and values of a page and head, for tests */
    bool rests;                   /* all that was queued was waited for */
    struct cuda_queue queue;
    struct device_result *out_results;
    uint8_t *out_flagged;
};

enum { CUDA_DEVICE_LOADED = offsetof(struct cuda_device, model) };

/* cuda_load.c */
int cuda_load(struct cuda_device *d, const struct model *m, struct weights *w,
              const struct device_limits *limits, struct err *e);
int cuda_room(struct cuda_device *d, const struct model *m, const struct device_limits *limits,
              uint64_t *out_n_pages, struct err *e);
void cuda_unload(struct cuda_device *d); /* in part, or not loaded at all, too */
/* Of no fewer bytes where any of the three is more. */
struct cuda_layout cuda_load_layout(uint32_t n_rows, uint32_t n_wants, uint32_t n_tiles);

/* cuda_weights.c: takes memory, twice as cuda_memory.h says; then reads. */
int cuda_weights_take(struct cuda_device *d, struct err *e);
int cuda_weights_read(struct cuda_device *d, struct weights *w, struct err *e);
/* Where a tensor goes, by its place in the order of model_tensor.h: as it is to an address or 0,
 * and into an image of a matrix or not. */
void cuda_weights_place(const struct cuda_device *d, uint32_t index, CUdeviceptr *out_to,
                        bool *out_packed);
/* Rows row .. row + n - 1 of it, filled up with zeros to whole eights, into the image. */
int cuda_weights_pack(struct cuda_device *d, uint32_t index, CUdeviceptr from, uint32_t row,
                      uint32_t n, struct err *e);

/* cuda_upload.c: from files, through pinned memory, while the pieces before are being packed. */
uint64_t cuda_upload_staging_bytes(const struct model *m);
int cuda_upload_run(struct cuda_device *d, struct weights *w, struct err *e);
/* Zeros behind n rows, up to whole eights. */
int cuda_upload_fill(struct cuda_device *d, CUstream stream, CUdeviceptr rows, uint32_t n,
                     uint64_t row_bytes, const char *what, struct err *e);

/* cuda_queue.c: stages wait until a step is whole, and run as a graph where one fits. */
int cuda_queue_open(struct cuda_device *d, struct err *e);
void cuda_queue_close(struct cuda_device *d);
uint32_t cuda_queue_bucket(uint32_t n);     /* n rounded up to what graphs are made for */
uint32_t cuda_queue_power(uint64_t n_keys); /* likewise of keys, powers of two */
/* `n` of wanted rows; s may be NULL. */
int cuda_queue_push(struct cuda_device *d, enum cuda_op_kind kind, uint32_t at, uint32_t n,
                    const struct schedule *s, struct err *e);
int cuda_queue_flush(struct cuda_device *d, struct err *e); /* launched one by one */
int cuda_queue_run(struct cuda_device *d, struct err *e);   /* the step is whole */

/* cuda_step.c: the launches of a stage, for n_launch rows. */
int cuda_step_embed(struct cuda_device *d, struct err *e);
int cuda_step_attn_in(struct cuda_device *d, uint32_t layer, const struct schedule *s,
                      struct err *e);
int cuda_step_attend(struct cuda_device *d, uint32_t layer, const struct schedule *s,
                     struct err *e);
int cuda_step_attn_out(struct cuda_device *d, uint32_t layer, const struct schedule *s,
                       struct err *e);
int cuda_step_mlp_in(struct cuda_device *d, uint32_t layer, const struct schedule *s,
                     struct err *e);
int cuda_step_mlp_out(struct cuda_device *d, uint32_t layer, const struct schedule *s,
                      struct err *e);
int cuda_step_head(struct cuda_device *d, uint32_t first, uint32_t n, const struct schedule *s,
                   struct err *e);
int cuda_step_sample(struct cuda_device *d, uint32_t first, uint32_t n, uint32_t n_ranks,
                     struct err *e);

#endif
