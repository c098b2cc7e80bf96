/* ex2 - the hardware's 2^x of attention weights, for x <= 0: SPEC 2.7.
 *
 * Owns:   nothing; every function is pure.
 * Thread: any.
 *
 * The table of the hardware has 2^23 entries; here each is the correctly rounded value, computed,
 * and a correction of two bits, stored.  Weights want only the upper half of the result: a cheap
 * value, known to be near, decides it unless a rounding border is near, too. */
#ifndef LLM42D_RUNTIME_EX2_H
#define LLM42D_RUNTIME_EX2_H

#include <stdint.h>

enum {
    /* Distance, in units in the last place, that the cheap value may have from the exact one.
     * ex2_test finds less than half of it, over every entry of the table. */
    EX2_MARGIN = 16,
};

/* The hardware's result.  0x7fffffff for NaN, and for x > 0, which the contract never asks. */
float ex2_exact(float x);

/* bf16(ex2_exact(x)). */
uint16_t ex2_bf16(float x);

/* Within EX2_MARGIN of ex2_exact for -126 <= x <= 0; the vector code repeats it. */
float ex2_near(float x);

#endif
