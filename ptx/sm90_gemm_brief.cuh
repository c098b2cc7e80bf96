/* sm90_gemm_brief - y = W norm(x, w) for few rows of x, short and whole K: of q, k and v also their
 * rotation and the store of keys and values, of gate and up silu (SPEC 2.5, 2.6, 2.8).
 *
 *   g, n      see sm90_gemm.h; x is the residual stream, of n the weight and eps are used; n_k is a
 *             multiple of 64, at most 1024; tiles of 16 to 64 rows
 *   grid      a block a tile of W
 *   block     128 threads
 *   shared    1024 to align, a tile of W whole, N rows of x whole; 64 rows of W from the last block
 *             of K on
 *   rounding  SPEC 2.4 to 2.6 and 2.8
 *   bound by  latency: x from L2, the norm, the steps of K
 *
 * A tile of W is one copy, on its way before the kernel before has ended.  Each thread has a chunk of
 * eight values of all rows of x: their squares are the lowest three levels of SPEC's tree, a warp's the
 * next five.  W is the left operand, as in sm90_gemm_few. */
#ifndef LLM42D_PTX_SM90_GEMM_BRIEF_CUH
#define LLM42D_PTX_SM90_GEMM_BRIEF_CUH

#include "ptx/sm90_gemm_normed.cuh"

enum {
    BRIEF_THREADS = 128,
    BRIEF_WARPS = BRIEF_THREADS / 32,
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

template <int N> DEVICE void brief_run(const struct sm90_gemm &g, const struct sm90_gemm_norm &n) {
    __shared__ u64 barrier;
    __shared__ float4 sums[N];
    __shared__ struct turned_place places[N];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 weights = (sm90_shared(few_dynamic) + 1023) & ~1023u, full = sm90_shared(&barrier);
    const u32 tile_bytes = g.n_blocks * g.tile * ROW_BYTES, rows = weights + tile_bytes;
    const u32 chunk = threadIdx.x, n_chunks = g.n_k / 8;
    const u32 at = rows + chunk / 8 * (N * ROW_BYTES);
    struct turned_factors<N> turn;
    struct normed_weights scale;
    uint4 x[N];

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
    scale.set(chunk < n_chunks ? *((const uint4 *)n.weight + chunk) : uint4{0, 0, 0, 0});
    sm90_wait_previous();
#pragma unroll
    for (u32 r = 0; r < N; r++)
        x[r] = sm90_fresh4_if((const u16 *)g.x + (u64)r * g.x_stride + chunk * 8,
                              r < g.n_rows && chunk < n_chunks);
#pragma unroll
    for (u32 r = 0; r < N; r++) {
        if (r >= g.n_rows) break;
        float q = brief_squares(x[r]);

#pragma unroll
        for (int step = 1; step < 32; step *= 2) q = q + __shfl_xor_sync(~0u, q, step);
        if (lane == 0) ((float *)&sums[r])[warp] = q;
    }
    __syncthreads(); /* sums of all warps are there */
    const float4 of = sums[lane % N];
    const float q = (of.x + of.y) + (of.z + of.w);
    const float factor = 1.0f / num_sqrt(q / (float)g.n_k + n.eps);

#pragma unroll
    for (u32 r = 0; r < N; r++) {
        if (r >= g.n_rows) break;
        const float f = __shfl_sync(~0u, factor, r);

        if (chunk < n_chunks)
            sm90_store4(at + r * ROW_BYTES + ((chunk ^ r) % 8 << 4),
                        normed_scale(x[r].x, scale.v[0], scale.v[1], f),
                        normed_scale(x[r].y, scale.v[2], scale.v[3], f),
                        normed_scale(x[r].z, scale.v[4], scale.v[5], f),
                        normed_scale(x[r].w, scale.v[6], scale.v[7], f));
    }
    sm90_fence_async(); /* wgmma reads what we wrote */
    __syncthreads();
    if (g.form == SM90_GEMM_TURNED)
        brief_multiply<N, true>(g, places, turn, weights, rows, full);
    else
        brief_multiply<N, false>(g, places, turn, weights, rows, full);
}

#endif
