/* mma - one step of the tensor core in integers: SPEC 2.2 as code, and the oracle of every faster
 * formulation.
 *
 * Owns:   nothing; every function is pure.
 * Thread: any. */
#ifndef LLM42D_RUNTIME_MMA_H
#define LLM42D_RUNTIME_MMA_H

#include <stdint.h>

enum { MMA_K = 16 }; /* values of one step */

/* c + a[0] b[0] + .. + a[15] b[15], a and b bfloat16. */
float mma_step(float c, const uint16_t a[MMA_K], const uint16_t b[MMA_K]);

/* Steps over n values upward; n is a multiple of MMA_K. */
float mma_chain(float c, const uint16_t *a, const uint16_t *b, uint32_t n);

#endif
