/* device_cpu_impl - what the files of the CPU twin share; nobody else includes it.
 *
 * Owns:   see device.h.
 * Thread: see device.h.
 * Fails:  see device.h.
 *
 * device_cpu_load.c takes all memory and gives it back, device_cpu.c computes in it. */
#ifndef LLM42D_RUNTIME_DEVICE_CPU_IMPL_H
#define LLM42D_RUNTIME_DEVICE_CPU_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/cpu_arena.h"
#include "runtime/cpu_attn.h"
#include "runtime/cpu_gemm.h"
#include "runtime/cpu_pool.h"
#include "runtime/cpu_weights.h"
#include "runtime/device.h"

enum {
    DEVICE_CPU_PANEL_ROWS = 256, /* made ready for a product at once: bounds the memory it takes */
    DEVICE_CPU_BF16 = 1 << 16,   /* values of a bf16 */
};

/* What a thread needs for itself. */
struct cpu_local {
    float *squares;  /* [hidden] */
    uint16_t *row;   /* [hidden] */
    uint64_t *order; /* [vocab], of sample_choose */
};

struct cpu_device {
    struct device base;
    const struct cpu_code *code;
    struct cpu_pool *pool;
    uint16_t silu[DEVICE_CPU_BF16]; /* of every bf16, rounded: SPEC 2.8 */

    struct model model; /* from here on: of `load`, zero before it */
    struct device_limits limits;
    struct cpu_weights *weights;
    struct cpu_attn *attn;
    uint32_t width, kv_width, qkv_width; /* values of all query heads, of all KV heads, of all */
    uint64_t work_bytes;

    struct cpu_arena kv;
    uint32_t *keys, *values;  /* [n_layers][n_pages][n_kv_heads][page words] */
    size_t layer_words;       /* of keys, or of values, of one layer */
    uint16_t *cos, *sin;      /* [n_positions][head_dim / 2] */
    uint16_t *x;              /* [n_rows][hidden] */
    uint16_t *qkv;            /* [n_rows][qkv_width] */
    uint16_t *attended;       /* [n_rows][width] */
    uint16_t *h;              /* [n_rows][intermediate] */
    float *logits;            /* [n_logit_rows][vocab] */
    struct cpu_rows panel;    /* [PANEL_ROWS or fewer] of the longest row */
    struct cpu_local *locals; /* [n_threads] */

    struct device_row *rows;       /* [n_rows] */
    uint32_t *pages;               /* [n_seqs][n_seq_pages] */
    struct device_want *wants;     /* [n_wants] */
    struct device_result *results; /* [n_wants] */
    uint8_t *flagged;              /* [n_rows] */
    uint32_t n_rows, n_wants;
};

enum { CPU_DEVICE_LOADED = offsetof(struct cpu_device, model) };

int device_cpu_load(struct device *dev, const struct model *m, struct weights *w,
                    const struct device_limits *limits, struct err *e);
void device_cpu_close(struct device *dev); /* NULL, or loaded in part, too */

#endif
