/* sm90_gemm - what becomes of the sums of a matrix product, for the kernels of few and many rows. */
#ifndef LLM42D_PTX_SM90_GEMM_CUH
#define LLM42D_PTX_SM90_GEMM_CUH

#include "ptx/sm90.cuh"
#include "ptx/sm90_gemm.h"
#include "runtime/num.h"

/* num_silu, bit for bit, unless `rare` is set to 1: where nothing can leave the normal range, scaling
 * by a power of two is an addition to the exponent, and the division its own fast path without the
 * question whether to take it. */
DEVICE float gemm_silu_fast(float x, u32 &rare) {
    const float size = fabsf(x), y = -x * NUM_LOG2E;
    float shifted, f, p, inverse, q;

    rare |= !(size < 64.0f && size > 0x1p-60f);
    shifted = y + 0x1.8p23f;
    f = y - (shifted - 0x1.8p23f);
    p = num_fma(0x1.44138ap-13f, f, 0x1.5f0890p-10f);
    p = num_fma(p, f, 0x1.3b2a54p-7f);
    p = num_fma(p, f, 0x1.c6af6cp-5f);
    p = num_fma(p, f, 0x1.ebfbe0p-3f);
    p = num_fma(p, f, 0x1.62e430p-1f);
    p = num_fma(p, f, 1.0f);
    p = 1.0f + num_from_bits(num_bits(p) + (num_bits(shifted) << 23));
    // x / p: the reciprocal to the last place, then a quotient mended twice
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(p));
    inverse = num_fma(inverse, num_fma(-p, inverse, 1.0f), inverse);
    q = x * inverse;
    q = num_fma(num_fma(-p, q, x), inverse, q);
    return num_fma(num_fma(-p, q, x), inverse, q);
}

/* SPEC 2.8 on two sums each of gate and of up, in bf16; not to be used where it sets `rare`. */
DEVICE u32 gemm_gated_fast(u32 gate, u32 up, u32 &rare) {
    const u32 s = sm90_pack(gemm_silu_fast(num_from_bits(gate << 16), rare),
                            gemm_silu_fast(num_from_bits(gate & 0xffff0000), rare));

    return sm90_pack(num_from_bits(s << 16) * num_from_bits(up << 16),
                     num_from_bits(s & 0xffff0000) * num_from_bits(up & 0xffff0000));
}

DEVICE u32 gemm_gated(u32 gate, u32 up) {
    const u32 s = sm90_pack(num_silu(num_from_bits(gate << 16)),
                            num_silu(num_from_bits(gate & 0xffff0000)));

    return sm90_pack(num_from_bits(s << 16) * num_from_bits(up << 16),
                     num_from_bits(s & 0xffff0000) * num_from_bits(up & 0xffff0000));
}

/* bf16(old + y), twice. */
DEVICE u32 gemm_residual(u32 old, u32 y) {
    return sm90_pack(num_from_bits(old << 16) + num_from_bits(y << 16),
                     num_from_bits(old & 0xffff0000) + num_from_bits(y & 0xffff0000));
}

#endif
