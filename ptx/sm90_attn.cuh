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

/* Of rows whose splits are spread over blocks.  A part: M and l of each query row, then sums
 * [ROWS][D]. */
template <int D, int ROWS>
DEVICE float *attn_part(const struct sm90_attn &a, u32 slot) {
    return (float *)a.parts + (u64)slot * ROWS * (2 + D);
}

/* Whether this block is the last of n_parts: all of its threads agree, and see what the others
 * left.  `threads` of them, at named barrier `barrier`. */
DEVICE bool attn_last(const struct sm90_attn &a, u32 n_parts, u32 barrier, u32 threads,
                      u32 &shared_count) {
    u32 *counter = (u32 *)a.counters + blockIdx.y * gridDim.x + blockIdx.x;

    __threadfence(); /* our part before our count */
    sm90_named_sync(barrier, threads);
    if (threadIdx.x == 0) {
        shared_count = atomicAdd(counter, 1u);
        if (shared_count == n_parts - 1) *counter = 0; /* for the next launch */
    }
    sm90_named_sync(barrier, threads);
    __threadfence(); /* the others' parts after their counts */
    return shared_count == n_parts - 1;
}

/* Folds the parts of n_rows query rows, upward, by `threads` threads: query row r is head
 * head + r % heads of row row + r / heads.  Loads of several parts are in flight at once. */
template <int D, int ROWS>
DEVICE void attn_combine(const struct sm90_attn &a, u32 slot, u32 n_parts, u32 n_rows, u32 row,
                         u32 head, u32 heads, u32 threads) {
    enum { AT_ONCE = 8 };

    for (u32 e = threadIdx.x; e < n_rows * (D / 4); e += threads) {
        const u32 r = e / (D / 4), column = e % (D / 4) * 4;
        float m = ATTN_M_START, l = 0.0f;
        float4 t = {0.0f, 0.0f, 0.0f, 0.0f};

        for (u32 first = 0; first < n_parts; first += AT_ONCE) {
            float4 o[AT_ONCE];
            float2 ml[AT_ONCE];

#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                const float *part = attn_part<D, ROWS>(a, slot + min(first + i, n_parts - 1));

                /* Past L1, where an older launch's may be. */
                o[i] = __ldcg((const float4 *)(part + 2 * ROWS + r * D + column));
                ml[i] = __ldcg((const float2 *)(part + 2 * r));
            }
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                const struct attn_fold f = attn_fold(m, ml[i].x);

                if (first + i >= n_parts) break;
                m = f.m;
                l = attn_folded(f, l, ml[i].y);
                t.x = attn_folded(f, t.x, o[i].x);
                t.y = attn_folded(f, t.y, o[i].y);
                t.z = attn_folded(f, t.z, o[i].z);
                t.w = attn_folded(f, t.w, o[i].w);
            }
        }
        const float inverse = 1.0f / l;
        const float x = attn_result(t.x, inverse), y = attn_result(t.y, inverse);
        const float z = attn_result(t.z, inverse), w = attn_result(t.w, inverse);
        u16 *out = (u16 *)a.out + ((u64)(row + r / heads) * a.n_heads + head + r % heads) * D + column;

        *(uint2 *)out = make_uint2(sm90_pack(x, y), sm90_pack(z, w));
        if (!attn_sums_fine(m, l) || !attn_finite(x) || !attn_finite(y) || !attn_finite(z) ||
            !attn_finite(w))
            ((unsigned char *)a.flagged)[row + r / heads] = 1;
    }
}

#endif
