/* sm90_attn - the arithmetic of SPEC 2.7, one function a rule, for all kernels of attention. */
#ifndef LLM42D_PTX_SM90_ATTN_CUH
#define LLM42D_PTX_SM90_ATTN_CUH

#include "ptx/sm90.cuh"
#include "ptx/sm90_attn.h"
#include "runtime/num.h"

#define ATTN_M_START -0x1p20f
#define ATTN_ONES 0x3f803f80u /* two of bf16 */

/* The hardware's, SPEC 2.7. */
DEVICE float attn_ex2(float x) {
    float r;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* pow2(d) for an integer d <= 0: adding 1.5 * 2^23 + 127 leaves the exponent field in the lowest
 * bits, and 0, whose power is +0, for everything below -126. */
DEVICE float attn_pow2(float d) {
    return num_from_bits(num_bits(fmaxf(d, -127.0f) + (0x1.8p23f + 127.0f)) << 23);
}

/* The new M, of the block's largest score. */
DEVICE float attn_max(float m, float score, float c) {
    return fmaxf(m, floorf(score * c) + 1.0f);
}

DEVICE float attn_weight(float score, float c, float m) {
    return attn_ex2(num_fma(score, c, -m));
}

/* A fold's two factors, and its M. */
struct attn_fold {
    float m, old, new_;
};

DEVICE struct attn_fold attn_fold(float total_m, float m) {
    const float top = fmaxf(total_m, m);

    return {top, attn_pow2(total_m - top), attn_pow2(m - top)};
}

DEVICE float attn_folded(const struct attn_fold &f, float total, float part) {
    return num_fma(part, f.new_, total * f.old);
}

/* Adding +0 makes every zero the same one. */
DEVICE float attn_result(float total, float inverse) {
    return total * inverse + 0.0f;
}

DEVICE bool attn_finite(float x) {
    return x - x == 0.0f;
}

DEVICE bool attn_sums_fine(float m, float l) {
    return m < 0x1p20f && l > 0.0f && l < NUM_INFINITY;
}

DEVICE u32 attn_position(const struct sm90_attn &a, u32 row) {
    return ((const u32 *)a.positions)[(u64)row * a.position_stride];
}

#endif
