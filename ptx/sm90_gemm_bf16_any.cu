// sm90_gemm_bf16_any - y = W x for any shape and any cut of K, plainly.
//
//   g         see sm90_gemm.h; x and out do not overlap
//   grid      (ceil(n / 16 / (4 / s)), ceil(n_rows / 32), 1), s = min(segments, 4)
//   block     (128, 1, 1): s warps share the segments of 16 rows of W
//   shared    partial sums of three warps
//   rounding  SPEC 2.4, as few and many
//   bound by  latency: operands come straight from global memory, 4 bytes at a time
#include "ptx/sm90.cuh"
#include "ptx/sm90_gemm.h"
#include "runtime/num.h"

enum {
    WARPS = 4,
    TOKENS = SM90_GEMM_ANY_TOKENS,
    N_FRAGMENTS = TOKENS / 8,
    N_SUMS = N_FRAGMENTS * 4,
    LEVELS = 4, /* of a tree over 16 segments */
};

/* The word of the image that holds values k, k + 1 of row n; zero past the matrix. */
DEVICE u32 weights_at(const struct sm90_gemm &g, u32 n, u32 k) {
    const u32 local = n % g.tile;
    const u64 line = ((u64)(n / g.tile) * g.n_blocks + k / SM90_GEMM_BLOCK) * g.tile + local;
    const u32 chunk = k % SM90_GEMM_BLOCK / 8 ^ local % 8;

    if (n >= g.n) return 0;
    return *(const u32 *)((const char *)g.weights + line * 128 + chunk * 16 + k % 8 * 2);
}

DEVICE u32 x_at(const struct sm90_gemm &g, u32 row, u32 k) {
    if (row >= g.n_rows) return 0;
    return *(const u32 *)((const u16 *)g.x + (u64)row * g.x_stride + k);
}

/* chain(+0, ..) over values k .. end - 1 of 16 rows of W from n and TOKENS rows of x from row. */
DEVICE void chain(float (&c)[N_FRAGMENTS][4], const struct sm90_gemm &g, u32 n, u32 row, u32 k,
                  u32 end) {
    const u32 lane = threadIdx.x % 32, r = lane / 4, q = lane % 4 * 2;

#pragma unroll
    for (u32 i = 0; i < N_FRAGMENTS; i++) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0.0f;
#pragma unroll 4
    for (; k < end; k += 16) {
        const u32 a[4] = {weights_at(g, n + r, k + q), weights_at(g, n + r + 8, k + q),
                          weights_at(g, n + r, k + q + 8), weights_at(g, n + r + 8, k + q + 8)};

#pragma unroll
        for (u32 i = 0; i < N_FRAGMENTS; i++)
            sm90_mma(c[i], a, x_at(g, row + i * 8 + r, k + q), x_at(g, row + i * 8 + r, k + q + 8));
    }
}

DEVICE void add(float (&to)[N_FRAGMENTS][4], const float (&left)[N_FRAGMENTS][4],
                const float (&right)[N_FRAGMENTS][4]) {
#pragma unroll
    for (u32 i = 0; i < N_FRAGMENTS; i++)
#pragma unroll
        for (u32 e = 0; e < 4; e++) to[i][e] = left[i][e] + right[i][e];
}

/* The root of the tree over segments first .. first + n - 1, n a power of two: like a counter in
 * binary, a sum waits at each level for its neighbour.  A segment past the end of K is +0. */
DEVICE void tree(float (&c)[N_FRAGMENTS][4], const struct sm90_gemm &g, u32 n, u32 row, u32 first,
                 u32 n_segments) {
    const u32 length = (g.n_k + 16 * g.segments - 1) / (16 * g.segments) * 16;
    float waiting[LEVELS][N_FRAGMENTS][4];

    for (u32 s = 0; s < n_segments; s++) {
        const u32 k = (first + s) * length;
        bool done = false;

        chain(c, g, n, row, k, min(k + length, g.n_k));
        if (s + 1 == n_segments && n_segments == 1) return;
#pragma unroll
        for (u32 level = 0; level < LEVELS; level++) {
            if (done || 1u << level == n_segments) continue;
            if (s >> level & 1) {
                add(c, waiting[level], c);
            } else {
#pragma unroll
                for (u32 i = 0; i < N_FRAGMENTS; i++)
#pragma unroll
                    for (u32 e = 0; e < 4; e++) waiting[level][i][e] = c[i][e];
                done = true;
            }
        }
    }
}

DEVICE void put(const struct sm90_gemm &g, u32 row, u32 n, float y) {
    u16 *to = (u16 *)g.out + (u64)row * g.out_stride + n;

    if (g.form == SM90_GEMM_F32)
        ((float *)g.out)[(u64)row * g.out_stride + n] = y;
    else if (g.form == SM90_GEMM_ADD)
        *to = num_to_bf16(num_from_bf16(*to) + num_from_bf16(num_to_bf16(y)));
    else
        *to = num_to_bf16(y);
}

/* SPEC 2.8 */
DEVICE void put_silu(const struct sm90_gemm &g, u32 row, u32 n, float gate, float up) {
    const float x = num_from_bf16(num_to_bf16(gate));
    const float s = num_from_bf16(num_to_bf16(num_silu(x)));

    ((u16 *)g.out)[(u64)row * g.out_stride + n] =
        num_to_bf16(s * num_from_bf16(num_to_bf16(up)));
}

extern "C" __global__ void __launch_bounds__(128)
    sm90_gemm_bf16_any(const __grid_constant__ struct sm90_gemm g) {
    __shared__ float parked[WARPS][N_SUMS][32];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 n_shares = min(g.segments, (u32)WARPS), share = warp % n_shares;
    const u32 n = (blockIdx.x * (WARPS / n_shares) + warp / n_shares) * 16;
    const u32 row = blockIdx.y * TOKENS;
    float c[N_FRAGMENTS][4];

    sm90_launch_next();
    sm90_wait_previous();
    tree(c, g, n, row, share * (g.segments / n_shares), g.segments / n_shares);

    // the upper levels, over warps
    for (u32 span = 1; span < n_shares; span *= 2) {
        if (share % (2 * span) == span)
#pragma unroll
            for (u32 i = 0; i < N_SUMS; i++) parked[warp][i][lane] = c[i / 4][i % 4];
        __syncthreads(); // the right halves of this level are parked
        if (share % (2 * span) == 0)
#pragma unroll
            for (u32 i = 0; i < N_SUMS; i++)
                c[i / 4][i % 4] = c[i / 4][i % 4] + parked[warp + span][i][lane];
    }
    if (share != 0 || n >= g.n) return;

    // row lane / 4 of W, and 8 further; rows 2 q, 2 q + 1 of x
#pragma unroll
    for (u32 i = 0; i < N_FRAGMENTS; i++)
#pragma unroll
        for (u32 e = 0; e < 2; e++) {
            const u32 token = row + i * 8 + lane % 4 * 2 + e;

            if (token >= g.n_rows) continue;
            if (g.form == SM90_GEMM_SILU) {
                put_silu(g, token, n / 2 + lane / 4, c[i][e], c[i][e + 2]);
                continue;
            }
            put(g, token, n + lane / 4, c[i][e]);
            if (n + 8 < g.n) put(g, token, n + lane / 4 + 8, c[i][e + 2]);
        }
}
