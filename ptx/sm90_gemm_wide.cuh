/* sm90_gemm_wide - y = W x for some hundred rows of x and a large W that is not cut: bound by
 * reading W once, and by tensor cores that multiply no row more than there are.
 *
 *   map       of x: bf16 [n_rows][n_k], boxes of 64 values x height rows, 128-byte swizzle
 *   g         see sm90_gemm.h; segments 1; weights and x are not written meanwhile, out may be
 *             neither
 *   grid      any number of blocks, each takes tiles in turn
 *   block     WGS warpgroups that compute, 256 / WGS rows of W each, and one of which a warp copies
 *   shared    1024 to align, STAGES times (32 KB of W, N * 128 bytes of x)
 *   rounding  SPEC 2.4: chains of k16 steps, one rounding (or none)
 *   bound by  HBM, 2 bytes a weight; from N = 192 on about equally tensor cores
 *
 * W is the left operand of wgmma, so N is the rows of x, to the next width there is.  Rows past the
 * end are not copied; what stands behind them in shared memory is multiplied, too, and dropped.
 *
 *   barrier  arrives                            waits
 *   full     the copier, bytes of W and of x    all who compute
 *   empty    a lane of each warp that computes  the copier */
#ifndef LLM42D_PTX_SM90_GEMM_WIDE_CUH
#define LLM42D_PTX_SM90_GEMM_WIDE_CUH

#include "ptx/sm90_gemm.cuh"

#define SM90_P80 SM90_P64, SM90_P16(64)
SM90_WGMMA(160, SM90_T80, SM90_P80, 80, 81, 82)

enum {
    ROW_BYTES = 2 * SM90_GEMM_BLOCK,
    WIDE_ROWS = SM90_GEMM_WIDE_ROWS, /* of W */
    WIDE_WG_ROWS = 64,
    WIDE_W_BYTES = WIDE_ROWS * ROW_BYTES,
};

template <int N, int STAGES>
struct wide_ring {
    static constexpr u32 stage_bytes = WIDE_W_BYTES + N * ROW_BYTES;
    u32 base, full, empty;
    u32 stage, parity;

    DEVICE_METHOD void next(void) {
        if (++stage < STAGES) return;
        stage = 0;
        parity ^= 1;
    }
};

DEVICE u32 wide_tiles(const struct sm90_gemm &g) {
    return (g.n + WIDE_ROWS - 1) / WIDE_ROWS * g.n_row_tiles;
}

/* By a warp: a lane a piece of W, rows that the image has one after another. */
DEVICE void wide_copy_weights(const struct sm90_gemm &g, u32 n, u32 block, u32 to, u32 full,
                              u64 policy) {
    const u32 lane = threadIdx.x % 32, tile = n / g.tile + lane;
    const u32 row = max(n, tile * g.tile), past = min(n + WIDE_ROWS, (tile + 1) * g.tile);
    const char *from = (const char *)g.weights +
                       (((u64)tile * g.n_blocks + block) * g.tile + (row - tile * g.tile)) *
                           ROW_BYTES;

    if (lane == 0) sm90_barrier_expect(full, (g.height + WIDE_ROWS) * ROW_BYTES);
    if (row < past)
        sm90_copy_policy(to + (row - n) * ROW_BYTES, from, (past - row) * ROW_BYTES, full, policy);
}

/* One warp.  Weights depend on no kernel: the first come before the kernel before is done. */
template <int N, int STAGES>
DEVICE void wide_copy(const struct sm90_map *map, const struct sm90_gemm &g,
                      struct wide_ring<N, STAGES> ring) {
    const u64 policy = sm90_policy_evict_first(); /* read once a step, or all of it at once */
    const u32 n_tiles = wide_tiles(g), n_early = min((u32)STAGES, g.n_blocks);

    for (u32 b = 0; b < n_early; b++)
        wide_copy_weights(g, blockIdx.x / g.n_row_tiles * WIDE_ROWS, b,
                          ring.base + b * ring.stage_bytes, ring.full + 8 * b, policy);
    if (threadIdx.x % 32 == 0) sm90_map_ahead(map);
    sm90_wait_previous();
    for (u32 t = blockIdx.x; t < n_tiles; t += gridDim.x)
        for (u32 b = 0; b < g.n_blocks; b++) {
            const u32 to = ring.base + ring.stage * ring.stage_bytes;
            const u32 full = ring.full + 8 * ring.stage;

            sm90_barrier_wait(ring.empty + 8 * ring.stage, ring.parity ^ 1);
            __syncwarp(); /* a lane without a piece must not miss a round */
            if (t != blockIdx.x || b >= n_early)
                wide_copy_weights(g, t / g.n_row_tiles * WIDE_ROWS, b, to, full, policy);
            if (threadIdx.x % 32 == 0)
                sm90_copy_tile(to + WIDE_W_BYTES, map, b * SM90_GEMM_BLOCK,
                               t % g.n_row_tiles * g.height, full);
            ring.next();
        }
}

/* Two adjacent values of one row of the output. */
DEVICE void wide_put(const struct sm90_gemm &g, u32 row, u32 column, u32 pair) {
    u32 *to = (u32 *)((u16 *)g.out + (u64)row * g.out_stride + column);

    *to = g.form == SM90_GEMM_ADD ? gemm_residual(*to, pair) : pair;
}

/* A function of its own: else the code is many kilobytes, which take seconds to compile. */
static __device__ __noinline__ u32 wide_gated(u32 gate, u32 up) {
    return gemm_gated(gate, up);
}

/* Rows of W in turns of eight: gate in the lower, up in the upper half of a fragment. */
template <int N>
DEVICE void wide_store_gated(const float (&c)[N / 2], const struct sm90_gemm &g, u32 n, u32 row,
                             u32 end) {
    const u32 lane = threadIdx.x % 32;

#pragma unroll
    for (u32 j = 0; j < N / 8; j++) {
        const u32 gate = sm90_pack(c[4 * j], c[4 * j + 1]);
        const u32 up = sm90_pack(c[4 * j + 2], c[4 * j + 3]), token = row + j * 8 + lane / 4;
        u32 rare = 0, h = gemm_gated_fast(gate, up, rare);

        /* What is dropped is no reason for the long way. */
        if (__any_sync(0xffffffff, row + j * 8 + lane % 4 * 2 < end && rare))
            h = wide_gated(gate, up);
        h = sm90_transpose(h);
        if (token < end) wide_put(g, token, n / 2 + lane % 4 * 2, h);
    }
}

/* A warp's 16 rows of W from n: a thread has rows r and r + 8 for rows 2 q, 2 q + 1 of x. */
template <int N>
DEVICE void wide_store(const float (&c)[N / 2], const struct sm90_gemm &g, u32 n, u32 row,
                       u32 end) {
    const u32 lane = threadIdx.x % 32;
    const bool low = n < g.n, high = n + 8 < g.n;

    if (!low) return;
    if (g.form == SM90_GEMM_SILU) {
        wide_store_gated<N>(c, g, n, row, end);
        return;
    }
    if (g.form == SM90_GEMM_F32) {
#pragma unroll
        for (u32 j = 0; j < N / 8; j++) {
            const u32 token = row + j * 8 + lane % 4 * 2;
            float *to = (float *)g.out + (u64)token * g.out_stride + n + lane / 4;

            if (token < end) to[0] = c[4 * j];
            if (token + 1 < end) to[g.out_stride] = c[4 * j + 1];
            if (high && token < end) to[8] = c[4 * j + 2];
            if (high && token + 1 < end) to[g.out_stride + 8] = c[4 * j + 3];
        }
        return;
    }
#pragma unroll
    for (u32 j = 0; j < N / 8; j++) {
        const u32 token = row + j * 8 + lane / 4, column = n + lane % 4 * 2;
        const u32 a = sm90_transpose(sm90_pack(c[4 * j], c[4 * j + 1]));
        const u32 b = sm90_transpose(sm90_pack(c[4 * j + 2], c[4 * j + 3]));

        if (token < end) wide_put(g, token, column, a);
        if (high && token < end) wide_put(g, token, column + 8, b);
    }
}

extern __shared__ unsigned char wide_dynamic[];

template <int N, int STAGES, int WGS>
DEVICE void wide_run(const struct sm90_map *map, const struct sm90_gemm &g) {
    __shared__ u64 barriers[2][STAGES];
    /* The same in a warp, and the compiler is to know it: uniform registers do the rest. */
    const u32 warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), n_tiles = wide_tiles(g);
    struct wide_ring<N, STAGES> ring = {(sm90_shared(wide_dynamic) + 1023) & ~1023u,
                                        sm90_shared(barriers[0]), sm90_shared(barriers[1]), 0, 0};

    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            sm90_barrier_init(ring.full + 8 * i, 1);
            sm90_barrier_init(ring.empty + 8 * i, 4 * WGS);
        }
        sm90_barrier_init_done();
        sm90_launch_next();
    }
    __syncthreads(); /* nobody touches a barrier before it is made */

    if (warp >= 4 * WGS) {
        sm90_give_registers<24>();
        if (warp == 4 * WGS) wide_copy<N, STAGES>(map, g, ring);
        sm90_wait_previous(); /* who has no work, too */
    } else {
        constexpr int each = WIDE_ROWS / WIDE_WG_ROWS / WGS;
        constexpr u32 wg_bytes = WIDE_WG_ROWS * ROW_BYTES;

        if constexpr (WGS == 4) sm90_take_registers<112>();
        if constexpr (WGS == 2) sm90_take_registers<240>();
        sm90_wait_previous(); /* who added to `out` before us is done */
        for (u32 t = blockIdx.x; t < n_tiles; t += gridDim.x) {
            const u32 row = t % g.n_row_tiles * g.height;
            float c[each][N / 2] = {};

            gemm_chain<N, each, wg_bytes>(c, g.n_blocks, ring,
                                          ring.base + warp / 4 * each * wg_bytes,
                                          ring.base + WIDE_W_BYTES, threadIdx.x % 32 == 0);
#pragma unroll
            for (u32 i = 0; i < each; i++)
                wide_store<N>(c[i], g,
                              t / g.n_row_tiles * WIDE_ROWS +
                                  (warp / 4 * each + i) * WIDE_WG_ROWS + warp % 4 * 16,
                              row, min(g.n_rows, row + g.height));
        }
    }
}

#endif
