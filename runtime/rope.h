/* rope - tables of the rotary embedding (SPEC 2.6).
 *
 * Owns:   nothing; every function is pure.
 * Thread: any.
 *
 * Computed on the host in binary64 with the polynomials of rope.c, whose text is part of the
 * specification, and handed to every device: two libraries' sines may differ in a last bit. */
#ifndef LLM42D_RUNTIME_ROPE_H
#define LLM42D_RUNTIME_ROPE_H

#include <stdint.h>

struct model;

/* The frequency of values i and i + head_dim / 2, scaled as the model says, in binary32. */
float rope_frequency(const struct model *m, uint32_t i);

/* bf16 [n_positions][head_dim / 2] each; n_positions is at most MODEL_CONTEXT_MAX. */
void rope_tables(const struct model *m, uint32_t n_positions, uint16_t *out_cos, uint16_t *out_sin);

#endif
