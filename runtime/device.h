/* device - where a step is computed: one table of operations, two implementations.
 *
 *   device_cpu.c   the CPU twin: the contract in plain C, and the oracle of every kernel
 *   device_cuda.c  launches the kernels of ptx/
 *
 * Owns:   weights, KV pages and work buffers, all taken by `load`; nothing is taken later.
 * Thread: one at a time; the engine thread once serving.
 * Fails:  -ENODEV  there is no such device here; nothing was started
 *         -ENOMEM  it does not fit: the text has what is needed and which buffer
 *         -ENOTSUP the device cannot do this model; the text says why
 *         -EIO     the device is lost; every later call fails, the process must exit
 *
 * A step is: upload; embed; for each layer attn_in, attend, attn_out, mlp_in, mlp_out; for groups
 * of at most `logit_rows` wanted rows head and sample; copy; wait.  Operations are queued and run
 * in order; only wait, read and write wait.  Bits are fixed at the borders between these stages
 * (SPEC 2), so a device may fuse anything inside one, and tests compare stage by stage. */
#ifndef LLM42D_RUNTIME_DEVICE_H
#define LLM42D_RUNTIME_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/model.h"
#include "runtime/sample.h"
#include "runtime/schedule.h"

struct err;
struct weights;

enum {
    DEVICE_PAGE_TOKENS = 64, /* positions of a KV page, all layers; half a KV block */
    DEVICE_ROWS_MAX = 4096,
    DEVICE_NO_TOKEN = UINT32_MAX,
};

struct device_limits {
    uint32_t n_rows;       /* rows of a step, at most */
    uint32_t n_seqs;       /* sequences of a step, at most */
    uint32_t n_pages;      /* of the KV cache; ids 0 .. n_pages - 1 */
    uint32_t n_seq_pages;  /* entries of one sequence's page table */
    uint32_t n_wants;      /* rows of a step whose logits are wanted, at most */
    uint32_t n_logit_rows; /* of one head + sample */
    uint32_t n_positions;  /* rotary tables reach so far */
};

/* One row of a step: one token at one position of one sequence. */
struct device_row {
    uint32_t token;
    uint32_t position;
    uint32_t seq; /* which line of the page table */
};

/* A row whose next token is wanted, or the logprob of a given one. */
struct device_want {
    uint32_t row;
    uint32_t target;             /* report this id's logprob too, or DEVICE_NO_TOKEN */
    uint32_t n_top;              /* 0 .. SAMPLE_TOP_MAX */
    struct sample_params params; /* position drawn: that of the row plus one */
};

struct device_batch {
    uint32_t n_rows;
    const struct device_row *rows; /* rows of one sequence stand together, positions upward */
    uint32_t n_seqs;
    const uint32_t *pages; /* [n_seqs][n_seq_pages]; entries past a sequence's end are never read */
    /* Where not NULL: only these lines of `pages` are read, the others are as they were uploaded
     * last, or of no row.  So a step costs nothing for tables that do not change. */
    const uint32_t *changed;
    uint32_t n_changed;
    uint32_t n_wants;
    const struct device_want *wants;
};

struct device_result {
    uint32_t token; /* chosen, SPEC 2.11 */
    float logprob;  /* of it, SPEC 2.10 */
    float target_logprob;
    float lse;
    uint32_t n_top;
    uint32_t top_ids[SAMPLE_TOP_MAX];
    float top_logprobs[SAMPLE_TOP_MAX];
    bool numeric; /* the head's row was flagged, SPEC 2.10: nothing above counts */
};

/* Buffers that tests look into: the state between two stages. */
enum device_buffer {
    DEVICE_X,      /* bf16 [n_rows][hidden], the residual stream */
    DEVICE_QKV,    /* bf16 [n_rows][(n_heads + 2 n_kv_heads) head_dim], q and k rotated */
    DEVICE_ATTN,   /* bf16 [n_rows][n_heads head_dim] */
    DEVICE_H,      /* bf16 [n_rows][intermediate], the product of SPEC 2.8 */
    DEVICE_LOGITS, /* f32 [n_logit_rows][vocab], of the last head */
};

struct device {
    const struct device_ops *ops;
};

struct device_ops {
    const char *name; /* cpu, cuda */
    bool queues;      /* operations run beside their caller, until `wait` */
    void (*close)(struct device *dev);

    /* Takes all memory and the weights, each tensor of the model read once (others may be there);
     * 0 or as above, or what weights_read gives.  Called again, it first gives back all that the
     * call before took: nothing of that one is seen. */
    int (*load)(struct device *dev, const struct model *m, struct weights *w,
                const struct device_limits *limits, struct err *e);

    /* Before `load`: KV pages for which there is room on the device beside all else that it would
     * take with these limits, whose n_pages does not count; 0: the device computes in the memory of
     * the host, and does not say.  0 or as `load`, of what was loaded before nothing is left. */
    int (*room)(struct device *dev, const struct model *m, const struct device_limits *limits,
                uint64_t *out_n_pages, struct err *e);

    /* 0 or -EIO, as all below.  The batch is copied. */
    int (*upload)(struct device *dev, const struct device_batch *batch, struct err *e);
    int (*embed)(struct device *dev, struct err *e);
    int (*attn_in)(struct device *dev, uint32_t layer, const struct schedule *s, struct err *e);
    int (*attend)(struct device *dev, uint32_t layer, const struct schedule *s, struct err *e);
    int (*attn_out)(struct device *dev, uint32_t layer, const struct schedule *s, struct err *e);
    int (*mlp_in)(struct device *dev, uint32_t layer, const struct schedule *s, struct err *e);
    int (*mlp_out)(struct device *dev, uint32_t layer, const struct schedule *s, struct err *e);
    /* Wanted rows first .. first + n - 1, n <= n_logit_rows. */
    int (*head)(struct device *dev, uint32_t first, uint32_t n, const struct schedule *s,
                struct err *e);
    int (*sample)(struct device *dev, uint32_t first, uint32_t n, struct err *e);
    /* Results of all wants, and for each row whether attention flagged it (SPEC 2.7.5) in any
     * layer.  The arrays are filled when wait returns 0. */
    int (*copy)(struct device *dev, struct device_result *out_results, uint8_t *out_flagged,
                struct err *e);
    int (*wait)(struct device *dev, struct err *e);

    /* For tests: rows of a buffer; KV as bf16 [head_dim] of one position. */
    int (*read)(struct device *dev, enum device_buffer buffer, uint32_t row, void *out,
                struct err *e);
    int (*write)(struct device *dev, enum device_buffer buffer, uint32_t row, const void *in,
                 struct err *e);
    int (*read_kv)(struct device *dev, uint32_t layer, uint32_t page, uint32_t slot,
                   uint32_t kv_head, uint16_t *out_k, uint16_t *out_v, struct err *e);
    /* Fills a page with a pattern, so that what nobody wrote shows. */
    int (*poison)(struct device *dev, uint32_t page, uint16_t pattern, struct err *e);

    /* One line for INFO: what computes here, and how wide. */
    void (*describe)(const struct device *dev, char *text, size_t n_bytes);
    /* Bytes taken, by `load`. */
    void (*memory)(const struct device *dev, uint64_t *out_weights, uint64_t *out_kv,
                   uint64_t *out_work);
};

struct device_cpu_options {
    uint32_t n_threads; /* 1 .. 256; the bits do not depend on it */
    bool portable;      /* no vector instructions, for tests and old machines: the same bits */
};

/* 0 and *out_dev, or as above.  The twin needs no device and fails on -ENOMEM alone. */
int device_cpu_open(const struct device_cpu_options *options, struct device **out_dev,
                    struct err *e);

#endif
