/* cpu_row - what happens to one row between matrix products (SPEC 2.5, 2.6).
 *
 * Owns:   nothing; every function is pure.
 * Thread: any.
 *
 * Those with vector instructions give the same bits; struct cpu_code has the ones to call. */
#ifndef LLM42D_RUNTIME_CPU_ROW_H
#define LLM42D_RUNTIME_CPU_ROW_H

#include <stdint.h>

/* x[0], or the largest number above it, of n >= 1; a NaN that is not the first is passed over, and
 * which of two zeros it is is open. */
float cpu_row_max(const float *x, uint32_t n);
float cpu_row_max_avx2(const float *x, uint32_t n);

/* y = norm(x, w) with runs of `run` squares.  squares: n values of scratch. */
void cpu_row_norm(const uint16_t *x, const uint16_t *w, uint32_t n, float eps, uint32_t run,
                  float *squares, uint16_t *out_y);
void cpu_row_norm_avx2(const uint16_t *x, const uint16_t *w, uint32_t n, float eps, uint32_t run,
                       float *squares, uint16_t *out_y);

/* bf16 of n values. */
void cpu_row_round(const float *y, uint32_t n, uint16_t *out);
void cpu_row_round_avx2(const float *y, uint32_t n, uint16_t *out);

/* x = bf16(x + bf16(y)). */
void cpu_row_add(uint16_t *x, const float *y, uint32_t n);
void cpu_row_add_avx2(uint16_t *x, const float *y, uint32_t n);

/* Rotates a head in place by the tables' row of its position. */
void cpu_row_rotate(uint16_t *head, uint32_t head_dim, const uint16_t *cos, const uint16_t *sin);

#endif
