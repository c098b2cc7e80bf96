/* sm90_gemm_normed - y = W norm(x, w) for few rows of x; of q, k and v also their rotation and the
 * store of keys and values (SPEC 2.5, 2.6).
 *
 *   map, g    as in sm90_gemm_few.cuh, of the residual stream; one segment, one tile of rows of x
 *   n         see sm90_gemm.h; nothing of it but the partial sums is written by other kernels
 *   grid      any number of blocks, each takes tiles in turn
 *   block     128 or 256 threads that compute, then 64 that copy, then 128 that scale
 *   shared    as sm90_gemm_few, and 2 bytes a value of a row for w behind the rings
 *   rounding  SPEC 2.4 to 2.6 and 2.8
 *   bound by  HBM, 2 bytes a weight
 *
 * The kernel that wrote the rows left sums of squares of their parts, each a subtree of SPEC's tree:
 * all that is left to do before the first product is to fold them.  Rows come raw into their ring;
 * there they are scaled in place, a stage at a time, a few stages ahead of the products.
 *
 *   barrier        arrives                       waits
 *   weights_full   copier of weights, the bytes  all who compute
 *   weights_empty  a lane of each warp           copier of weights
 *   rows_full      copier of rows, the bytes     all who scale
 *   rows_ready     a lane of each warp that scales: one scaled it, all saw it come
 *                                                all who compute
 *   rows_empty     a lane of each warp           copier of rows
 *   norm_full      thread 0, the bytes of w      all who scale
 *   named 1        those who compute: places of the rows
 *   named 2        those who compute arrive, those who scale wait: factors of the rows */
#ifndef LLM42D_PTX_SM90_GEMM_NORMED_CUH
#define LLM42D_PTX_SM90_GEMM_NORMED_CUH

#include "ptx/sm90_gemm_few.cuh"

enum {
    NORMED_SQUARES = 128, /* partial sums that a warp loads at once */
    NORMED_ROWS = 8,      /* rows whose sums are on their way to a warp */
    NORMED_WARPS = 4,     /* that scale */
    NORMED_WARP_ROWS = 4, /* of x that a warp takes at once */
    NORMED_THREADS = 32 * NORMED_WARPS,
};

DEVICE float4 normed_four(const struct sm90_gemm_norm &n, u32 row, u32 at) {
    const float4 zero = {0.0f, 0.0f, 0.0f, 0.0f};

    if (at >= n.n_squares) return zero;
    return *(const float4 *)((const float *)n.squares + (u64)row * n.squares_stride + at);
}

DEVICE float normed_sum(float4 v) {
    return (v.x + v.y) + (v.z + v.w);
}

/* A row's factor from its partial sums, each lane with as many adjacent ones. */
DEVICE void normed_factor(const struct sm90_gemm &g, const struct sm90_gemm_norm &n, float q,
                          float *factor) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) q = q + __shfl_xor_sync(~0u, q, step);
    if (threadIdx.x % 32 == 0) *factor = 1.0f / num_sqrt(q / (float)g.n_k + n.eps);
}

DEVICE void normed_factors(const struct sm90_gemm &g, const struct sm90_gemm_norm &n,
                           float *factors, u32 warp, u32 n_warps) {
    const u32 lane = threadIdx.x % 32;

    if (n.n_squares > NORMED_SQUARES) {
        const u32 fours = n.n_squares > 2 * NORMED_SQUARES ? 4 : 2, at = 4 * fours * lane;

        for (u32 row = warp; row < g.n_rows; row += n_warps) {
            float q = normed_sum(normed_four(n, row, at)) + normed_sum(normed_four(n, row, at + 4));

            if (fours == 4)
                q = q + (normed_sum(normed_four(n, row, at + 8)) +
                         normed_sum(normed_four(n, row, at + 12)));
            normed_factor(g, n, q, factors + row);
        }
        return;
    }
    for (u32 first = warp; first < g.n_rows; first += NORMED_ROWS * n_warps) {
        float4 v[NORMED_ROWS];

#pragma unroll
        for (u32 i = 0; i < NORMED_ROWS; i++)
            v[i] = normed_four(n, first + i * n_warps,
                               first + i * n_warps < g.n_rows ? 4 * lane : ~0u);
#pragma unroll
        for (u32 i = 0; i < NORMED_ROWS; i++)
            if (first + i * n_warps < g.n_rows)
                normed_factor(g, n, normed_sum(v[i]), factors + first + i * n_warps);
    }
}

/* Eight values of w, spread for all rows that they scale. */
struct normed_weights {
    float v[8];

    DEVICE_METHOD void set(uint4 w) {
        v[0] = num_from_bits(w.x << 16), v[1] = num_from_bits(w.x & 0xffff0000);
        v[2] = num_from_bits(w.y << 16), v[3] = num_from_bits(w.y & 0xffff0000);
        v[4] = num_from_bits(w.z << 16), v[5] = num_from_bits(w.z & 0xffff0000);
        v[6] = num_from_bits(w.w << 16), v[7] = num_from_bits(w.w & 0xffff0000);
    }
};

/* bf16(w * bf16(x * r)), twice. */
DEVICE u32 normed_scale(u32 x, float w_low, float w_high, float r) {
    const u32 y = sm90_pack(num_from_bits(x << 16) * r, num_from_bits(x & 0xffff0000) * r);

    return sm90_pack(w_low * num_from_bits(y << 16), w_high * num_from_bits(y & 0xffff0000));
}

/* A stage is the work of one warp, and the warps take turns: what a stage takes from its wait to
 * its arrival is longer than its weights take to come.  Rows past the end and values past it are
 * scaled by whatever; the products with them are dropped, or are of zeros. */
template <int N>
DEVICE void normed_scale_rows(const struct sm90_gemm &g, const struct few_work &w,
                              struct gemm_ring ring, u32 ready, const uint4 *norm,
                              const float *factors, u32 warp) {
    constexpr u32 TURNS = N / NORMED_WARP_ROWS, BATCH = TURNS < 4 ? TURNS : 4;
    const u32 lane = threadIdx.x % 32, row = lane / 8, chunk = lane % 8 ^ row;
    float r[TURNS];
    u32 turn = 0;

#pragma unroll
    for (u32 m = 0; m < TURNS; m++) r[m] = factors[row + m * NORMED_WARP_ROWS];
    for (u32 tile = w.first; tile < w.n_tiles; tile += w.step)
        for (u32 b = 0; b < w.n_blocks; b += g.stage_blocks, turn++, ring.next()) {
            const u32 stage = ring.base + ring.stage * ring.stage_bytes + lane * 16;

            /* Others' stages, too: a warp a round ahead would take the phase before for its own, and
             * one a round behind would wait for a phase that is over: hence all tell that they saw
             * it, when all lanes have. */
            sm90_barrier_wait(ring.full + 8 * ring.stage, ring.parity);
            __syncwarp();
            if (turn % NORMED_WARPS != warp) {
                sm90_barrier_arrive_if(ready + 8 * ring.stage, lane == 0);
                continue;
            }
            for (u32 i = 0; i < g.stage_blocks; i++) {
                const uint4 *at_norm = norm + (b + i) * (SM90_GEMM_BLOCK / 8);
                struct normed_weights s[2]; /* of rows below and from four on, of every eight */

                s[0].set(at_norm[chunk]);
                s[1].set(at_norm[chunk ^ 4]);
#pragma unroll
                for (u32 first = 0; first < TURNS; first += BATCH) {
                    const u32 at = stage + (i * N + first * NORMED_WARP_ROWS) * ROW_BYTES;
                    uint4 x[BATCH];

                    if (first * NORMED_WARP_ROWS >= g.n_rows) break;
#pragma unroll
                    for (u32 m = 0; m < BATCH; m++)
                        x[m] = sm90_load_shared(at + m * NORMED_WARP_ROWS * ROW_BYTES);
#pragma unroll
                    for (u32 m = 0; m < BATCH; m++) {
                        const struct normed_weights &v = s[(first + m) % 2];

                        x[m].x = normed_scale(x[m].x, v.v[0], v.v[1], r[first + m]);
                        x[m].y = normed_scale(x[m].y, v.v[2], v.v[3], r[first + m]);
                        x[m].z = normed_scale(x[m].z, v.v[4], v.v[5], r[first + m]);
                        x[m].w = normed_scale(x[m].w, v.v[6], v.v[7], r[first + m]);
                    }
#pragma unroll
                    for (u32 m = 0; m < BATCH; m++)
                        sm90_store_shared(at + m * NORMED_WARP_ROWS * ROW_BYTES, x[m]);
                }
            }
            sm90_fence_async(); /* wgmma reads what we wrote */
            __syncwarp();       /* all of this warp did */
            sm90_barrier_arrive_if(ready + 8 * ring.stage, lane == 0);
        }
}

template <int N>
DEVICE void normed_run(const struct sm90_map *map, const struct sm90_gemm &g,
                       const struct sm90_gemm_norm &n) {
    __shared__ u64 barriers[5][SM90_GEMM_STAGES_MAX], norm_full_barrier;
    __shared__ float factors[N];
    __shared__ struct turned_place places[N];
    const u32 n_compute = blockDim.x - FEW_COPY_THREADS - NORMED_THREADS, warp = threadIdx.x / 32;
    const struct few_work w = few_work(g, 0);
    unsigned char *aligned = few_dynamic + (-sm90_shared(few_dynamic) & 1023);
    struct gemm_ring weights = {sm90_shared(aligned), g.stage_blocks * g.tile * ROW_BYTES,
                               sm90_shared(barriers[0]), sm90_shared(barriers[1]),
                               g.n_weight_stages, 0, 0};
    struct gemm_ring rows = {weights.base + weights.n_stages * weights.stage_bytes,
                            g.stage_blocks * N * ROW_BYTES, sm90_shared(barriers[2]),
                            sm90_shared(barriers[3]), g.n_row_stages, 0, 0};
    const u32 ready = sm90_shared(barriers[4]), norm_full = sm90_shared(&norm_full_barrier);
    const u32 norm = rows.base + rows.n_stages * rows.stage_bytes;

    /* To the end of its last block: zeros, which make zeros of zeros. */
    for (u32 i = g.n_k / 8 + threadIdx.x; i < g.n_blocks * (SM90_GEMM_BLOCK / 8); i += blockDim.x)
        ((uint4 *)(aligned + (norm - weights.base)))[i] = uint4{0, 0, 0, 0};
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < weights.n_stages; i++) {
            sm90_barrier_init(weights.full + 8 * i, 1);
            sm90_barrier_init(weights.empty + 8 * i, n_compute / 32);
        }
        for (u32 i = 0; i < rows.n_stages; i++) {
            sm90_barrier_init(rows.full + 8 * i, 1);
            sm90_barrier_init(rows.empty + 8 * i, n_compute / 32);
            sm90_barrier_init(ready + 8 * i, NORMED_WARPS);
        }
        sm90_barrier_init(norm_full, 1);
        sm90_barrier_init_done();
        sm90_barrier_expect(norm_full, 2 * g.n_k);
        sm90_copy(norm, (const void *)n.weight, 2 * g.n_k, norm_full);
        if (g.next == SM90_GEMM_NEXT_AT_ONCE) sm90_launch_next();
    }
    __syncthreads(); /* nobody touches a barrier before it is made */

    if (warp < n_compute / 32) {
        if (g.form == SM90_GEMM_TURNED) few_places(g, w, places, n_compute);
        sm90_wait_previous();
        normed_factors(g, n, factors, warp, (n_compute + NORMED_THREADS) / 32);
        sm90_named_arrive(2, n_compute + NORMED_THREADS);
        rows.full = ready;
        if (g.form == SM90_GEMM_TURNED)
            few_compute_whole<N, true>(g, w, weights, rows, places, warp, n_compute);
        else
            few_compute_whole<N, false>(g, w, weights, rows, places, warp, n_compute);
    } else if (warp == n_compute / 32) {
        if (threadIdx.x % 32 == 0) few_copy_weights(g, w, weights);
        __syncwarp();
    } else if (warp == n_compute / 32 + 1) {
        if (threadIdx.x % 32 == 0) few_copy_rows<N>(map, g, w, rows);
        __syncwarp();
    } else {
        sm90_wait_previous();
        normed_factors(g, n, factors, warp - FEW_COPY_THREADS / 32,
                       (n_compute + NORMED_THREADS) / 32);
        sm90_named_sync(2, n_compute + NORMED_THREADS); /* factors are there */
        sm90_barrier_wait(norm_full, 0);
        normed_scale_rows<N>(g, w, rows, ready, (const uint4 *)(aligned + (norm - weights.base)),
                             factors, warp - (n_compute + FEW_COPY_THREADS) / 32);
    }
}

#endif
