/* sm90_gemm_brief - y = W norm(x, w) for few rows of x, short and whole K: of q, k and v also their
 * rotation and the store of keys and values, of gate and up silu (SPEC 2.5, 2.6, 2.8).
 *
 *   g, n      see sm90_gemm.h; x is the residual stream, of n the weight and eps are used; n_k is a
 *             multiple of 64, at most 1024; tiles of 16 to 64 rows
 *   grid      a block a tile of W
 *   block     32 N threads: a warpgroup to four rows of x
 *   shared    1024 to align, a tile of W whole, N rows of x whole; 64 rows of W from the last block
 *             of K on
 *   rounding  SPEC 2.4 to 2.6 and 2.8
 *   bound by  latency: x from L2, the norm, the steps of K
 *
 * A tile of W is one copy, on its way before the kernel before has ended.  Each thread has a chunk of
 * eight values of its four rows: their squares are the lowest three levels of SPEC's tree, a warp's
 * the next five.  What is done to a row waits for itself at every turn, so four go abreast, without a
 * branch between them; one row alone has a way of its own.  W is the left operand, as in
 * sm90_gemm_few; the first warpgroup multiplies. */
#ifndef LLM42D_PTX_SM90_GEMM_BRIEF_CUH
#define LLM42D_PTX_SM90_GEMM_BRIEF_CUH

#include "ptx/sm90_gemm_normed.cuh"

enum {
    BRIEF_THREADS = 128, /* of a warpgroup */
    BRIEF_ROWS = 4,      /* that it norms */
    BRIEF_JOIN = 5,      /* the named barrier of all; each warpgroup has one of its own before */
};

/* The squares of eight adjacent values, as SPEC 2.5 adds them. */
DEVICE float brief_squares(uint4 v) {
    return few_squares(v.x, v.y) + few_squares(v.z, v.w);
}

template <int N, bool TURNED>
DEVICE void brief_multiply(const struct sm90_gemm &g, const struct turned_place *places,
                           const struct turned_factors<N> &turn, u32 weights, u32 rows, u32 full) {
    const u32 a = sm90_descriptor_low(weights, 16), b = sm90_descriptor_low(rows, 16);
    const u32 warp = threadIdx.x / 32, tile_step = g.tile * ROW_BYTES / 16;
    float c[N / 2] = {0};

    sm90_barrier_wait(full, 0);
    sm90_pin(c);
#pragma unroll 1
    for (u32 i = 0; i < g.n_blocks; i++) {
        sm90_wgmma_fence();
#pragma unroll
        for (u32 k = 0; k < 4; k++)
            sm90_wgmma<N>::run(c, sm90_descriptor(a + i * tile_step + 2 * k, 1024),
                               sm90_descriptor(b + i * (N * ROW_BYTES / 16) + 2 * k, 1024), i || k);
        sm90_wgmma_commit();
    }
    sm90_wgmma_wait<0>();
    sm90_pin(c);
    if (g.next == SM90_GEMM_NEXT_LAST_TILE && threadIdx.x == 0) sm90_launch_next();
    if constexpr (TURNED) {
        const u32 at = blockIdx.x * g.tile + warp * 16;

        if (warp * 16 < g.tile && at < g.n) turned_store<N>(c, g, turn, places, at, 0, g.n_rows);
    } else {
        few_store<N>(c, g, blockIdx.x, warp);
    }
}

/* By names in the text, or the block would have all there are. */
DEVICE void brief_meet(u32 group) {
    if (group == 0) sm90_named_sync(1, BRIEF_THREADS);
    if (group == 1) sm90_named_sync(2, BRIEF_THREADS);
    if (group == 2) sm90_named_sync(3, BRIEF_THREADS);
    if (group == 3) sm90_named_sync(4, BRIEF_THREADS);
}

/* Sums over the warp, of ROWS rows, 1 or 4: a lane ends with row `lane % ROWS`, as each pair of lanes
 * deals the rows that it has between them.  Which of two is added to which is the same value. */
template <int ROWS> DEVICE float brief_sum(const uint4 (&x)[BRIEF_ROWS], u32 lane) {
    float q;

    if constexpr (ROWS == 1) {
        q = brief_squares(x[0]);
        q = q + __shfl_xor_sync(~0u, q, 1);
        q = q + __shfl_xor_sync(~0u, q, 2);
    } else {
        const float a = brief_squares(x[0]), b = brief_squares(x[1]);
        const float c = brief_squares(x[2]), d = brief_squares(x[3]);
        const bool odd = lane & 1, upper = lane & 2;
        const float low = (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 1);
        const float high = (odd ? d : c) + __shfl_xor_sync(~0u, odd ? c : d, 1);

        q = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, 2);
    }
#pragma unroll
    for (int step = 4; step < 32; step *= 2) q = q + __shfl_xor_sync(~0u, q, step);
    return q;
}

/* Rows of this warpgroup to shared memory, normed. */
template <int ROWS>
DEVICE void brief_norm(const struct sm90_gemm &g, const struct sm90_gemm_norm &n,
                       const uint4 (&x)[BRIEF_ROWS], const struct normed_weights &scale,
                       float4 *sums, u32 group, u32 to, u32 chunk) {
    const u32 lane = threadIdx.x % 32, warp = chunk / 32;
    const float part = brief_sum<ROWS>(x, lane);

    if (lane < ROWS) ((float *)&sums[lane])[warp] = part;
    brief_meet(group); /* sums of all warps are there */
    const float4 of = sums[lane % ROWS];
    const float q = (of.x + of.y) + (of.z + of.w);
    const float factor = 1.0f / num_sqrt(q / (float)g.n_k + n.eps);
    float f[ROWS];

#pragma unroll
    for (u32 r = 0; r < ROWS; r++) f[r] = ROWS > 1 ? __shfl_sync(~0u, factor, r) : factor;
    if (chunk >= g.n_k / 8) return;
#pragma unroll
    for (u32 r = 0; r < ROWS; r++)
        sm90_store4(to + r * ROW_BYTES + ((chunk ^ (group * BRIEF_ROWS + r)) % 8 << 4),
                    normed_scale(x[r].x, scale.v[0], scale.v[1], f[r]),
                    normed_scale(x[r].y, scale.v[2], scale.v[3], f[r]),
                    normed_scale(x[r].z, scale.v[4], scale.v[5], f[r]),
                    normed_scale(x[r].w, scale.v[6], scale.v[7], f[r]));
}

template <int N> DEVICE void brief_run(const struct sm90_gemm &g, const struct sm90_gemm_norm &n) {
    constexpr u32 N_THREADS = N / BRIEF_ROWS * BRIEF_THREADS;
    __shared__ u64 barrier;
    __shared__ float4 sums[N];
    __shared__ struct turned_place places[N];
    const u32 warp = threadIdx.x / 32, group = threadIdx.x / BRIEF_THREADS;
    const u32 chunk = threadIdx.x % BRIEF_THREADS, first = group * BRIEF_ROWS;
    const u32 weights = (sm90_shared(few_dynamic) + 1023) & ~1023u, full = sm90_shared(&barrier);
    const u32 tile_bytes = g.n_blocks * g.tile * ROW_BYTES, rows = weights + tile_bytes;
    const u32 to = rows + chunk / 8 * (N * ROW_BYTES) + first * ROW_BYTES;
    struct turned_factors<N> turn;
    struct normed_weights scale;
    uint4 x[BRIEF_ROWS];

    if (threadIdx.x == 0) {
        sm90_barrier_init(full, 1);
        sm90_barrier_init_done();
        sm90_barrier_expect(full, tile_bytes);
        sm90_copy_policy(weights, (const char *)g.weights + (u64)blockIdx.x * tile_bytes,
                         tile_bytes, full, sm90_policy_evict_first());
        if (g.next == SM90_GEMM_NEXT_AT_ONCE) sm90_launch_next();
    }
    if (g.form == SM90_GEMM_TURNED) turned_places(g, places, 0, g.n_rows);
    __syncthreads(); /* nobody waits at the barrier before it is made; places are there */
    if (g.form == SM90_GEMM_TURNED && warp * 16 < g.tile)
        turn.load(g, places, blockIdx.x * g.tile + warp * 16, g.n_rows);
    scale.set(chunk < g.n_k / 8 ? *((const uint4 *)n.weight + chunk) : uint4{0, 0, 0, 0});
    sm90_wait_previous();
#pragma unroll
    for (u32 r = 0; r < BRIEF_ROWS; r++)
        x[r] = sm90_fresh4_if((const u16 *)g.x + (u64)(first + r) * g.x_stride + chunk * 8,
                              first + r < g.n_rows && chunk < g.n_k / 8);
    if (first + 1 == g.n_rows)
        brief_norm<1>(g, n, x, scale, sums + first, group, to, chunk);
    else if (first < g.n_rows)
        brief_norm<BRIEF_ROWS>(g, n, x, scale, sums + first, group, to, chunk);
    sm90_fence_async(); /* wgmma reads what we wrote */
    __syncwarp();
    if (group > 0) {
        sm90_named_arrive(BRIEF_JOIN, N_THREADS);
        return;
    }
    sm90_named_sync(BRIEF_JOIN, N_THREADS);
    if (g.form == SM90_GEMM_TURNED)
        brief_multiply<N, true>(g, places, turn, weights, rows, full);
    else
        brief_multiply<N, false>(g, places, turn, weights, rows, full);
}

#endif
