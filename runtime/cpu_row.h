/* cpu_row - what happens to one row between matrix products (SPEC 2.5, 2.6).
 *
 * Owns:   nothing; every function is pure.
 * Thread: any. */
#ifndef LLM42D_RUNTIME_CPU_ROW_H
#define LLM42D_RUNTIME_CPU_ROW_H

#include <stdint.h>

/* y = norm(x, w) with runs of `run` squares.  squares: n values of scratch. */
void cpu_row_norm(const uint16_t *x, const uint16_t *w, uint32_t n, float eps, uint32_t run,
                  float *squares, uint16_t *out_y);

/* Rotates a head in place by the tables' row of its position. */
void cpu_row_rotate(uint16_t *head, uint32_t head_dim, const uint16_t *cos, const uint16_t *sin);

#endif
