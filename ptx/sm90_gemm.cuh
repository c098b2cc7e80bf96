/* sm90_gemm - what becomes of the sums of a matrix product, for the kernels of few and many rows. */
#ifndef LLM42D_PTX_SM90_GEMM_CUH
#define LLM42D_PTX_SM90_GEMM_CUH

#include "ptx/sm90.cuh"
#include "ptx/sm90_gemm.h"
#include "runtime/num.h"

/* num_silu of a bfloat16, near enough that rounded to one it is the same; the test of these kernels
 * looks at all 65536.  Not below -80, where the reciprocal would leave the normal range. */
DEVICE float gemm_silu_fast(float x) {
    return x * sm90_reciprocal(1.0f + sm90_ex2(-x * NUM_LOG2E));
}

/* SPEC 2.8 on two sums each of gate and of up, in bf16; not to be used where it sets `rare`. */
DEVICE u32 gemm_gated_fast(u32 gate, u32 up, u32 &rare) {
    const float a = num_from_bits(gate << 16), b = num_from_bits(gate & 0xffff0000);
    const u32 s = sm90_pack(gemm_silu_fast(a), gemm_silu_fast(b));

    rare |= !(fminf(a, b) > -80.0f); /* a NaN beside a number is dealt with as one */
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
