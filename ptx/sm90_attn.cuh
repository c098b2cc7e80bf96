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
    return sm90_ex2(x);
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

/* A part, two columns of a head with its maximum and its sum of weights, into such totals. */
template <class TOTALS> DEVICE void attn_fold_part(TOTALS &t, const float4 &part) {
    const struct attn_fold f = attn_fold(t.m, part.z);

    t.m = f.m;
    t.l = attn_folded(f, t.l, part.w);
    t.o[0] = attn_folded(f, t.o[0], part.x);
    t.o[1] = attn_folded(f, t.o[1], part.y);
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

/* Packets: what a split leaves of two columns of a head, for a block that waits for just that.  A
 * word is kept inverted and is never zero, so what is not zero has come, and no flag is needed;
 * whoever takes a packet leaves zeros for the next launch. */
DEVICE u32 attn_packet_word(float x) {
    return max(~num_bits(x), 1u); /* the one NaN that it would change is never made */
}

DEVICE void attn_packet_leave(float4 *at, const float4 &x) {
    sm90_leave4(at, make_uint4(attn_packet_word(x.x), attn_packet_word(x.y),
                               attn_packet_word(x.z), attn_packet_word(x.w)));
}

/* n of them, at most N, STEP apart, to `use` in order. */
template <int N, int STEP, typename F>
DEVICE void attn_packets_take(float4 *at, u32 n, const F &use) {
    uint4 v[N];

#pragma unroll
    for (u32 i = 0; i < N; i++)
        if (i < n) v[i] = sm90_look4(at + i * STEP);
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        if (i >= n) continue;
        while (!v[i].x || !v[i].y || !v[i].z || !v[i].w) v[i] = sm90_look4(at + i * STEP);
        *(uint4 *)(at + i * STEP) = make_uint4(0, 0, 0, 0);
        use(make_float4(num_from_bits(~v[i].x), num_from_bits(~v[i].y), num_from_bits(~v[i].z),
                        num_from_bits(~v[i].w)));
    }
}

/* One, of which v stood there when we looked last. */
DEVICE float4 attn_packet_take(float4 *at, uint4 v) {
    while (!v.x || !v.y || !v.z || !v.w) v = sm90_look4(at);
    *(uint4 *)at = make_uint4(0, 0, 0, 0);
    return make_float4(num_from_bits(~v.x), num_from_bits(~v.y), num_from_bits(~v.z),
                       num_from_bits(~v.w));
}

/* Which query rows' values, in fours, of a tile this block folds once all parts are parked. */
struct attn_share {
    u32 first, end;
};

/* Our part is parked: where not all blocks run at once, the last of n_parts to come here folds all
 * `n_fours`; else each waits for the others and folds its share.  All `threads` threads agree, at
 * named barrier `barrier`, and see what the others left. */
DEVICE struct attn_share attn_share(const struct sm90_attn &a, u32 n_parts, u32 part, u32 n_fours,
                                    u32 barrier, u32 threads, u32 &shared_count) {
    u32 *counter = (u32 *)a.counters + blockIdx.y * gridDim.x + blockIdx.x;

    __threadfence(); /* our part before our count */
    sm90_named_sync(barrier, threads);
    if (threadIdx.x == 0) {
        shared_count = atomicAdd(counter, 1u);
        if (a.together)
            while (sm90_look(counter) < n_parts) continue;
        else if (shared_count == n_parts - 1)
            *counter = 0; /* for the next launch */
    }
    sm90_named_sync(barrier, threads);
    __threadfence(); /* the others' parts after their counts */
    if (a.together) return {n_fours * part / n_parts, n_fours * (part + 1) / n_parts};
    return {0, shared_count == n_parts - 1 ? n_fours : 0};
}

/* Whoever waited for others has seen them: the last one leaves zero for the next launch. */
DEVICE void attn_leave(const struct sm90_attn &a, u32 n_parts) {
    u32 *counter = (u32 *)a.counters + blockIdx.y * gridDim.x + blockIdx.x;

    if (a.together && threadIdx.x == 0 && atomicAdd(counter, 1u) == 2 * n_parts - 1) *counter = 0;
}

/* Folds the parts of a share's query rows, upward, by `threads` threads: query row r is head
 * head + r % heads of row row + r / heads.  So many fours, of so many parts, are in flight. */
template <int D, int ROWS, int FOURS, int PARTS>
DEVICE void attn_combine(const struct sm90_attn &a, const struct attn_share &share, u32 slot,
                         u32 n_parts, u32 row, u32 head, u32 heads, u32 threads) {
    for (u32 start = share.first + threadIdx.x; start < share.end; start += threads * FOURS) {
        float m[FOURS], l[FOURS];
        float4 t[FOURS];

#pragma unroll
        for (u32 k = 0; k < FOURS; k++) {
            m[k] = ATTN_M_START;
            l[k] = 0.0f;
            t[k] = {0.0f, 0.0f, 0.0f, 0.0f};
        }
        for (u32 first = 0; first < n_parts; first += PARTS) {
            float4 o[PARTS][FOURS];
            float2 ml[PARTS][FOURS];

#pragma unroll
            for (u32 i = 0; i < PARTS; i++)
#pragma unroll
                for (u32 k = 0; k < FOURS; k++) {
                    const u32 e = start + k * threads, r = e / (D / 4), column = e % (D / 4) * 4;
                    const float *part = attn_part<D, ROWS>(a, slot + first + i);

                    o[i][k] = {0.0f, 0.0f, 0.0f, 0.0f};
                    ml[i][k] = {0.0f, 0.0f};
                    if (first + i >= n_parts || e >= share.end) continue;
                    /* Past L1, where an older launch's may be. */
                    o[i][k] = __ldcg((const float4 *)(part + 2 * ROWS + r * D + column));
                    ml[i][k] = __ldcg((const float2 *)(part + 2 * r));
                }
#pragma unroll
            for (u32 i = 0; i < PARTS; i++)
#pragma unroll
                for (u32 k = 0; k < FOURS; k++) {
                    const struct attn_fold f = attn_fold(m[k], ml[i][k].x);

                    if (first + i >= n_parts) continue;
                    m[k] = f.m;
                    l[k] = attn_folded(f, l[k], ml[i][k].y);
                    t[k].x = attn_folded(f, t[k].x, o[i][k].x);
                    t[k].y = attn_folded(f, t[k].y, o[i][k].y);
                    t[k].z = attn_folded(f, t[k].z, o[i][k].z);
                    t[k].w = attn_folded(f, t[k].w, o[i][k].w);
                }
        }
#pragma unroll
        for (u32 k = 0; k < FOURS; k++) {
            const u32 e = start + k * threads, r = e / (D / 4), column = e % (D / 4) * 4;
            const float inverse = 1.0f / l[k];
            const float x = attn_result(t[k].x, inverse), y = attn_result(t[k].y, inverse);
            const float z = attn_result(t[k].z, inverse), w = attn_result(t[k].w, inverse);
            u16 *out = (u16 *)a.out + ((u64)(row + r / heads) * a.n_heads + head + r % heads) * D +
                       column;

            if (e >= share.end) continue;
            *(uint2 *)out = make_uint2(sm90_pack(x, y), sm90_pack(z, w));
            if (!attn_sums_fine(m[k], l[k]) || !attn_finite(x) || !attn_finite(y) ||
                !attn_finite(z) || !attn_finite(w))
                ((unsigned char *)a.flagged)[row + r / heads] = 1;
        }
    }
}

#endif
