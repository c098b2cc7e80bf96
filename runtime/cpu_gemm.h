/* cpu_gemm - matrix products of the CPU twin: chains of tensor-core steps, eight outputs at once
 * (SPEC 2.2, 2.4), the same bits with and without vector instructions.
 *
 * Owns:   nothing; memory is the caller's.
 * Thread: any; cpu_gemm itself is called by one thread and spreads over its pool.
 *
 * A step truncates 17 addends to a multiple of 2^(e-25).  With floats: multiply each exact product
 * by 2^(25-e) and convert to an integer toward zero; 17 such integers add exactly.  It is right
 * while all values are below 2^25 and e >= -101, and a group of 16 where that does not hold is
 * handed to mma_step:
 *   - then products that underflow or are inexact are below 2^(e-25) and truncate to nothing;
 *   - a zero or subnormal factor, whose exponent field is 0, claims an exponent of at most
 *     24 - 127 or 24 - 126, which is below e, so the maximum over exponent fields is e;
 *   - a sum has 24 bits above 2^-126, so no result is subnormal. */
#ifndef LLM42D_RUNTIME_CPU_GEMM_H
#define LLM42D_RUNTIME_CPU_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/schedule.h"

struct cpu_pool;

enum {
    CPU_LANES = 8,            /* outputs of a block */
    CPU_GROUP = 16,           /* values of a step */
    CPU_PAIRS = 8,            /* pairs of values of a step */
    CPU_FIELD_MAX = 127 + 24, /* exponent field of the largest value that the fast path takes */
};

/* What a group of an activation row holds. */
enum cpu_kind {
    CPU_ZERO = 0,  /* zeros alone: the step is a no-op, but for infinities */
    CPU_PLAIN = 1, /* values below 2^25 */
    CPU_WILD = 2,  /* a larger value, an infinity or a NaN */
};

/* Rows of activations, made ready.  A row's stride is n_k values, n_k / 2 exponents and n_k / 16
 * kinds. */
struct cpu_rows {
    float *values;       /* [n_rows][n_k / 16][2][8]: of each group the even values, then the odd */
    uint32_t *exponents; /* [n_rows][n_k / 2] pairs of exponent fields, where bf16 has them */
    uint8_t *kinds;      /* [n_rows][n_k / 16] */
    uint32_t n_k;        /* a multiple of 16 */
};

/* One call of `chain`: c[row][block] = chain(c, values of the row, values of the block).  The
 * other operand stands in pairs: a word holds value 2i of one output and, above it, 2i + 1. */
struct cpu_chain {
    const uint32_t *w;   /* [block][pair][lane], by the two strides; lanes are adjacent words */
    size_t block_stride; /* in words */
    size_t pair_stride;
    const float *values; /* of the first row, at the first group: as in cpu_rows */
    const uint32_t *exponents;
    const uint8_t *kinds;
    size_t n_k; /* stride of the rows, in values */
    /* NULL, or for each row how many values of the other operand count; those beyond are taken
     * as zero.  The row's own values are zero there. */
    const uint32_t *n_valid;
    float *c;        /* [row][block][lane] */
    size_t c_stride; /* of a row, in floats */
    uint32_t n_rows, n_blocks, n_groups;
    /* For weights that no cache holds; pairs stand together there.  What is read after a block's
     * last group starts `ahead` words after that group. */
    bool fetch;
    size_t ahead;
};

/* The inner loops: a table a width of vector instructions, and one without. */
struct cpu_code {
    const char *name;
    /* Makes n values (a multiple of 16) of bf16 ready. */
    void (*spread)(const uint16_t *x, uint32_t n, float *values, uint32_t *exponents,
                   uint8_t *kinds);
    void (*chain)(const struct cpu_chain *ch);
    /* Attention weights of n scores, SPEC 2.7.2, as bf16: bf16(ex2(fma(s, c, -m))). */
    void (*weigh)(const float *scores, uint32_t n, float c, float m, uint16_t *out_p);
    /* As in cpu_row.h. */
    float (*max)(const float *x, uint32_t n);
    void (*norm)(const uint16_t *x, const uint16_t *w, uint32_t n, float eps, uint32_t run,
                 float *squares, uint16_t *out_y);
    void (*round)(const float *y, uint32_t n, uint16_t *out);
    void (*add)(uint16_t *x, const float *y, uint32_t n);
};

extern const struct cpu_code cpu_code_portable, cpu_code_avx2, cpu_code_avx512;

enum { CPU_CODES_MAX = 3 };

/* All that this machine runs, the fastest first, the portable one last; how many. */
uint32_t cpu_codes(const struct cpu_code *out_codes[CPU_CODES_MAX]);
const struct cpu_code *cpu_code_best(void); /* the first */

/* The step where the fast path is wrong: rows and blocks of one group, by mma_step. */
void cpu_chain_group(const struct cpu_chain *ch, uint32_t group, uint32_t row, uint32_t n_rows,
                     uint32_t block, uint32_t n_blocks);

/* A weight matrix [n][n_k], n rounded up to blocks of 8; the rows added repeat the last one. */
struct cpu_matrix {
    uint32_t *w; /* [n_blocks][n_k / 2][8] */
    uint32_t n, n_k, n_blocks;
};

/* Words of `w`, or 0 where they do not fit a size_t. */
size_t cpu_matrix_words(uint32_t n, uint32_t n_k);

/* Puts rows [n_rows][n_k] at blocks first, first + step, ..; every 8 rows are a block. */
void cpu_matrix_put(struct cpu_matrix *m, const uint16_t *rows, uint32_t n_rows, uint32_t first,
                    uint32_t step);

/* Row n as it was put. */
void cpu_matrix_get(const struct cpu_matrix *m, uint32_t n, uint16_t *out_row);

/* Takes some adjacent blocks of one row, y of outputs 8 block onward: the first is even, and so is
 * their number unless the matrix ends. */
typedef void cpu_gemm_out(void *ctx, uint32_t row, uint32_t block, uint32_t n_blocks,
                          const float *y);

/* y = W x in `segments` pieces of K (SPEC 2.4), unrounded, for each row. */
void cpu_gemm(struct cpu_pool *pool, const struct cpu_code *code, const struct cpu_matrix *m,
              const struct cpu_rows *x, uint32_t n_rows, uint32_t segments, cpu_gemm_out *out,
              void *ctx);

#endif
