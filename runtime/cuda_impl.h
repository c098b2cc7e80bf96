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

#include "runtime/cuda_driver.h"
#include "runtime/cuda_memory.h"
#include "runtime/device.h"
#include "runtime/device_cuda.h"

struct batch_want;

/* A weight matrix [n][k]. */
struct cuda_matrix {
    CUdeviceptr w;
    uint32_t n, k;
};

struct cuda_layer {
    struct cuda_matrix qkv, o, gate_up, down;
    CUdeviceptr norm_in, norm_post; /* bf16 [hidden] */
};

/* The kernels; one entry each. */
struct cuda_entries {
    CUfunction embed, norm, rotary, silu, lse, sample, plain_gemm, plain_attn;
};

struct cuda_device {
    struct device base;
    struct device_cuda_options options;
    struct cuda_driver *driver;
    struct cuda_entries entries;

    struct model model;
    struct device_limits limits;
    struct cuda_memory memory;
    uint32_t width, kv_width, qkv_width; /* values of all query heads, of all KV heads, of all */
    uint32_t n_chunks;                   /* of 128 ids */
    float scale;                         /* c of SPEC 2.7 */
    bool loaded;

    struct cuda_layer *layers; /* [n_layers] */
    struct cuda_matrix head;
    CUdeviceptr norm_final;   /* bf16 [hidden] */
    CUdeviceptr embed;        /* bf16 [vocab][hidden]; if tied the head's */
    CUdeviceptr keys, values; /* bf16 [n_layers][n_pages][n_kv_heads][64][head_dim] */
    uint64_t layer_bytes;     /* of keys, or of values, of one layer */
    CUdeviceptr cos, sin;     /* bf16 [n_positions][head_dim / 2] */

    CUdeviceptr x;        /* bf16 [n_rows][hidden] */
    CUdeviceptr normed;   /* bf16 [n_rows or n_logit_rows][hidden] */
    CUdeviceptr qkv;      /* bf16 [n_rows][qkv_width] */
    CUdeviceptr attended; /* bf16 [n_rows][width] */
    CUdeviceptr gate_up;  /* bf16 [n_rows][2 intermediate] */
    CUdeviceptr h;        /* bf16 [n_rows][intermediate] */
    CUdeviceptr y;        /* bf16 [n_rows][hidden], of o and down */
    CUdeviceptr logits;   /* f32 [n_logit_rows][vocab] */
    CUdeviceptr weighed;  /* f32 [n_logit_rows][vocab rounded up to 4] */
    CUdeviceptr chunks;   /* [n_logit_rows][n_chunks] */

    /* A step's upload, one block: rows, wants, page tables.  And the same, pinned, on the host. */
    CUdeviceptr batch;
    char *h_batch;
    size_t wants_off, pages_off, batch_bytes;
    /* What comes back, one block: flags of rows, results. */
    CUdeviceptr back;
    char *h_back;
    size_t results_off, back_bytes;

    uint32_t n_rows, n_wants; /* of the step */
    struct device_result *out_results;
    uint8_t *out_flagged;
};

/* cuda_load.c */
int cuda_load(struct cuda_device *d, const struct model *m, struct weights *w,
              const struct device_limits *limits, struct err *e);
void cuda_unload(struct cuda_device *d); /* in part, or not loaded at all, too */

/* cuda_weights.c: takes memory, twice as cuda_memory.h says; then reads. */
int cuda_weights_check(const struct cuda_device *d, const struct weights *w, struct err *e);
int cuda_weights_take(struct cuda_device *d, struct err *e);
int cuda_weights_read(struct cuda_device *d, struct weights *w, struct err *e);

/* cuda_step.c: stages of a step, queued. */
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
int cuda_step_sample(struct cuda_device *d, uint32_t first, uint32_t n, struct err *e);

#endif
