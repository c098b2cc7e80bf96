/* sm90_gemm - what kernels of matrix products share: rings of blocks of K, a chain over one, and what
 * becomes of its sums. */
#ifndef LLM42D_PTX_SM90_GEMM_CUH
#define LLM42D_PTX_SM90_GEMM_CUH

#include "ptx/sm90.cuh"
#include "ptx/sm90_gemm.h"
#include "runtime/num.h"

struct gemm_ring {
    u32 base, stage_bytes, full, empty, n_stages;
    u32 stage, parity;

    DEVICE_METHOD void next(void) {
        if (++stage < n_stages) return;
        stage = 0;
        parity ^= 1;
    }
};

/* c = chain(+0, ..) over so many blocks of K, of one warpgroup: EACH times 64 rows of the left
 * operand, EACH_BYTES apart from `left` on, by N rows of the right one; where they stand in the
 * ring's first stage.  A lane of each warp gives a stage back once the next products are asked for. */
template <int N, int EACH, u32 EACH_BYTES, typename RING>
DEVICE void gemm_chain(float (&c)[EACH][N / 2], u32 n_blocks, RING &ring, u32 left, u32 right,
                       u32 releases) {
    const u32 left0 = sm90_descriptor_low(left, 16), right0 = sm90_descriptor_low(right, 16);
    u32 old = 0; /* the stage before, to be given back */

#pragma unroll
    for (u32 i = 0; i < EACH; i++) sm90_pin(c[i]);
    for (u32 b = 0; b < n_blocks; b++) {
        const u32 l = left0 + ring.stage * (ring.stage_bytes / 16);
        const u32 r = right0 + ring.stage * (ring.stage_bytes / 16);

        sm90_barrier_wait(ring.full + 8 * ring.stage, ring.parity);
        sm90_wgmma_fence();
#pragma unroll
        for (u32 k = 0; k < 4; k++)
#pragma unroll
            for (u32 i = 0; i < EACH; i++)
                sm90_wgmma<N>::run(c[i], sm90_descriptor(l + i * (EACH_BYTES / 16) + 2 * k, 1024),
                                   sm90_descriptor(r + 2 * k, 1024), k || b);
        sm90_wgmma_commit();
        /* The stage before has been read; this one may still be. */
        sm90_wgmma_wait<1>();
        sm90_barrier_arrive_if(old, b ? releases : 0);
        old = ring.empty + 8 * ring.stage;
        ring.next();
    }
    sm90_wgmma_wait<0>();
#pragma unroll
    for (u32 i = 0; i < EACH; i++) sm90_pin(c[i]);
    sm90_barrier_arrive_if(old, releases);
}

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
