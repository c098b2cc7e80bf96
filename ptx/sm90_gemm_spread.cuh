/* sm90_gemm_spread - y = W x for some hundred rows of x and a K of four long segments, one to each
 * block of a cluster: bound by reading W once, and by what a multiprocessor can take in.
 *
 *   map       of x: bf16 [n_rows][n_k], boxes of 64 values x height rows, 128-byte swizzle
 *   g         see sm90_gemm.h; segments 4, of whole blocks of K; height up to 256; out may be
 *             neither x nor weights
 *   grid      clusters of 4, one a tile of W times one of x
 *   block     384 threads: two warpgroups that compute, once or twice 64 rows of x each, and one of
 *             which a warp copies
 *   shared    1024 to align, then n_weight_stages times (N * 128 bytes of W, 8 KB for each 64 rows
 *             of x), then in their place the sums
 *   rounding  SPEC 2.4: chains of k16 steps, tree of fp32 additions, one rounding (or none)
 *   bound by  HBM, 2 bytes a weight; from 193 rows on shared memory
 *
 * x is the left operand of wgmma, so that a tile of W may have any number of eights of rows: 144,
 * for of a tile's height hangs how many clusters there are, and a GPU of 132 multiprocessors has
 * room for 29 of four in the worst case, where each of eight groups has two left over.
 * Each block takes in (height + N) rows of a quarter of K: two blocks with halves of it and tiles
 * of 64 take in half as much again.
 *
 *   barrier  arrives                            waits
 *   full     the copier, bytes of W and of x    all who compute
 *   empty    a lane of each warp that computes  the copier */
#ifndef LLM42D_PTX_SM90_GEMM_SPREAD_CUH
#define LLM42D_PTX_SM90_GEMM_SPREAD_CUH

#include "ptx/sm90_gemm.cuh"

#define SM90_PLACES_72 SM90_P64, SM90_P8(64)
SM90_WGMMA(144, SM90_T72, SM90_PLACES_72, 72, 73, 74)

enum {
    SPREAD = 4, /* blocks of a cluster, segments */
    ROW_BYTES = 2 * SM90_GEMM_BLOCK,
    SPREAD_WG_ROWS = 64, /* of x */
    SPREAD_EACH = 2,     /* times those rows, at most, to a warpgroup */
    SPREAD_WGS = 2,
    SPREAD_THREADS = 128 * SPREAD_WGS, /* that compute */
    SPREAD_STAGES_MAX = 8,
    SPREAD_PAD = 8, /* floats between rows of sums, against bank conflicts */
};

/* A block's part: rows of W from n, of x from row to end, blocks of K from first. */
struct spread_work {
    u32 n, row, end, first, n_blocks;
};

template <int N>
DEVICE struct spread_work spread_work(const struct sm90_gemm &g, u32 rank) {
    const u32 tile = blockIdx.x / SPREAD;
    struct spread_work w;

    w.n = tile / g.n_row_tiles * N;
    w.row = tile % g.n_row_tiles * g.height;
    w.end = min(g.n_rows, w.row + g.height);
    w.n_blocks = g.n_blocks / SPREAD;
    w.first = rank * w.n_blocks;
    return w;
}

/* By a warp: a lane a piece of W, rows that the image has one after another. */
template <int N>
DEVICE void spread_copy_weights(const struct sm90_gemm &g, u32 n, u32 block, u32 to, u32 full,
                                u64 policy) {
    const u32 lane = threadIdx.x % 32, tile = n / g.tile + lane;
    const u32 row = max(n, tile * g.tile), past = min(n + N, (tile + 1) * g.tile);
    const char *from =
        (const char *)g.weights +
        (((u64)tile * g.n_blocks + block) * g.tile + (row - tile * g.tile)) * ROW_BYTES;

    if (lane == 0) sm90_barrier_expect(full, (g.height + N) * ROW_BYTES);
    if (row < past)
        sm90_copy_policy(to + (row - n) * ROW_BYTES, from, (past - row) * ROW_BYTES, full, policy);
}

/* One warp.  Weights depend on no kernel: the first come before the kernel before is done. */
template <int N>
DEVICE void spread_copy(const struct sm90_map *map, const struct sm90_gemm &g,
                        const struct spread_work &w, struct gemm_ring ring) {
    /* Read once, they leave L2 to what is read again. */
    const u64 policy = g.n_row_tiles == 1 ? sm90_policy_evict_first() : sm90_policy_normal();
    const u32 n_early = min(ring.n_stages, w.n_blocks);

    for (u32 b = 0; b < n_early; b++)
        spread_copy_weights<N>(g, w.n, w.first + b, ring.base + b * ring.stage_bytes,
                               ring.full + 8 * b, policy);
    if (threadIdx.x % 32 == 0) sm90_map_ahead(map);
    sm90_wait_previous();
    for (u32 b = 0; b < w.n_blocks; b++) {
        const u32 to = ring.base + ring.stage * ring.stage_bytes;
        const u32 full = ring.full + 8 * ring.stage;

        sm90_barrier_wait(ring.empty + 8 * ring.stage, ring.parity ^ 1);
        __syncwarp(); /* a lane without a piece must not miss a round */
        if (b >= n_early) spread_copy_weights<N>(g, w.n, w.first + b, to, full, policy);
        if (threadIdx.x % 32 == 0)
            sm90_copy_tile(to + N * ROW_BYTES, map, (w.first + b) * SM90_GEMM_BLOCK, w.row, full);
        ring.next();
    }
}

/* A warp's 16 rows of x, as [row of x][N + SPREAD_PAD]. */
template <int N>
DEVICE void spread_park(const float (&c)[N / 2], float *sums, u32 row, u32 height) {
    const u32 lane = threadIdx.x % 32;

    row += lane / 4;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float *to = sums + (row + 8 * half) * (N + SPREAD_PAD) + lane % 4 * 2;

        if (row + 8 * half >= height) continue;
#pragma unroll
        for (u32 j = 0; j < N / 8; j++)
            *(float2 *)(to + j * 8) = make_float2(c[4 * j + 2 * half], c[4 * j + 2 * half + 1]);
    }
}

template <int N, int EACH>
DEVICE void spread_sums(const struct sm90_gemm &g, const struct spread_work &w,
                        struct gemm_ring ring, float *sums, u32 part, u32 n_compute) {
    constexpr u32 part_bytes = SPREAD_WG_ROWS * ROW_BYTES;
    float c[EACH][N / 2] = {};

    gemm_chain<N, EACH, part_bytes>(c, w.n_blocks, ring,
                                    ring.base + N * ROW_BYTES + part * part_bytes, ring.base,
                                    threadIdx.x % 32 == 0);
    /* The ring is idle, but another warpgroup may still read its last stage. */
    sm90_named_sync(1, n_compute);
#pragma unroll
    for (u32 i = 0; i < EACH; i++)
        spread_park<N>(c[i], sums, (part + i) * SPREAD_WG_ROWS + threadIdx.x / 32 % 4 * 16,
                       g.height);
}

/* What a thread joins at the end: four columns of every seventh row of this rank's quarter. */
template <int N>
struct spread_share {
    static constexpr u32 fours = N / 4, step = SPREAD_THREADS / fours;
    static constexpr u32 rows_max = SPREAD_WGS * SPREAD_EACH * SPREAD_WG_ROWS / SPREAD;
    static constexpr u32 turns = (rows_max + step - 1) / step, at_once = 5;
    u32 row, end; /* of the tile */
    u32 column;
    u16 *out; /* of the first row */
    uint2 old[turns];

    /* And what is there already, before the others have parked. */
    DEVICE_METHOD void open(const struct sm90_gemm &g, const struct spread_work &w, u32 rank) {
        const u32 each = (g.height + SPREAD - 1) / SPREAD;

        row = rank * each + threadIdx.x / fours;
        end = min((rank + 1) * each, w.end - w.row);
        column = threadIdx.x % fours * 4;
        if (threadIdx.x >= step * fours || w.n + column >= g.n) end = 0;
        out = (u16 *)g.out + ((u64)(w.row + row) * g.out_stride + w.n + column) *
                                 (g.form == SM90_GEMM_F32 ? 2 : 1);
        if (g.form != SM90_GEMM_ADD) return;
#pragma unroll
        for (u32 turn = 0; turn < turns; turn++)
            if (row + turn * step < end)
                old[turn] = *(const uint2 *)(out + (u64)turn * step * g.out_stride);
    }

    /* The tree over the segments: that of each is in the block of its number.  All that is far is
     * asked for before the first store, which nothing passes, and without a branch, what stands in
     * rows past the end too: one latency, not one a turn. */
    template <u32 FIRST>
    DEVICE_METHOD void join(const struct sm90_gemm &g, u32 from) const {
        constexpr u32 n = turns - FIRST < at_once ? turns - FIRST : at_once;
        float4 y[n];

#pragma unroll
        for (u32 i = 0; i < n; i++) {
            const u32 at = from + (FIRST + i) * step * (N + SPREAD_PAD) * 4;
            const float4 a = sm90_load_peer(at, 0), b = sm90_load_peer(at, 1);
            const float4 c = sm90_load_peer(at, 2), d = sm90_load_peer(at, 3);

            y[i] = make_float4((a.x + b.x) + (c.x + d.x), (a.y + b.y) + (c.y + d.y),
                               (a.z + b.z) + (c.z + d.z), (a.w + b.w) + (c.w + d.w));
        }
#pragma unroll
        for (u32 i = 0; i < n; i++) {
            const u64 place = (u64)(FIRST + i) * step * g.out_stride;
            uint2 put = {sm90_pack(y[i].x, y[i].y), sm90_pack(y[i].z, y[i].w)};

            if (row + (FIRST + i) * step >= end) continue;
            if (g.form == SM90_GEMM_F32) {
                *(float4 *)(out + 2 * place) = y[i];
                continue;
            }
            if (g.form == SM90_GEMM_ADD) {
                put.x = gemm_residual(old[FIRST + i].x, put.x);
                put.y = gemm_residual(old[FIRST + i].y, put.y);
            }
            *(uint2 *)(out + place) = put;
        }
        if constexpr (FIRST + n < turns)
            if ((FIRST + n) * step * SPREAD < g.height) join<FIRST + n>(g, from);
    }

    DEVICE_METHOD u32 from(const float *sums) const {
        return sm90_shared(sums + row * (N + SPREAD_PAD) + column);
    }
};

extern __shared__ unsigned char spread_dynamic[];

template <int N>
DEVICE void spread_run(const struct sm90_map *map, const struct sm90_gemm &g) {
    __shared__ u64 barriers[2][SPREAD_STAGES_MAX];
    /* The same in a warp, and the compiler is to know it: uniform registers do the rest. */
    const u32 warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), rank = sm90_cluster_rank();
    const u32 n_parts = (g.height + SPREAD_WG_ROWS - 1) / SPREAD_WG_ROWS;
    const u32 each = n_parts > SPREAD_WGS ? SPREAD_EACH : 1, n_wgs = min(n_parts, (u32)SPREAD_WGS);
    const struct spread_work w = spread_work<N>(g, rank);
    unsigned char *aligned = spread_dynamic + (-sm90_shared(spread_dynamic) & 1023);
    const struct gemm_ring ring = {sm90_shared(aligned),
                                     (N + n_parts * SPREAD_WG_ROWS) * ROW_BYTES,
                                     sm90_shared(barriers[0]),
                                     sm90_shared(barriers[1]),
                                     g.n_weight_stages,
                                     0,
                                     0};

    if (threadIdx.x == 0) {
        for (u32 i = 0; i < ring.n_stages; i++) {
            sm90_barrier_init(ring.full + 8 * i, 1);
            sm90_barrier_init(ring.empty + 8 * i, 4 * n_wgs);
        }
        sm90_barrier_init_done();
        sm90_launch_next();
    }
    __syncthreads(); /* nobody touches a barrier before it is made */

    /* The halves meet at the cluster's barriers in their own code: registers are few here. */
    if (warp >= 4 * SPREAD_WGS) {
        sm90_give_registers<40>();
        if (warp == 4 * SPREAD_WGS) spread_copy<N>(map, g, w, ring);
        sm90_wait_previous(); /* who has no work, too */
        __syncwarp();
        sm90_cluster_sync();
        sm90_cluster_sync();
    } else {
        const u32 part = warp / 4 * each;
        float *sums = (float *)aligned;
        struct spread_share<N> share;

        sm90_take_registers<232>();
        sm90_wait_previous(); /* who added to `out` before us is done */
        if (part + 1 < n_parts && each == SPREAD_EACH)
            spread_sums<N, SPREAD_EACH>(g, w, ring, sums, part, n_wgs * 128);
        else if (part < n_parts)
            spread_sums<N, 1>(g, w, ring, sums, part, n_wgs * 128);
        share.open(g, w, rank); /* not before: registers are few up to here */
        __syncwarp();
        sm90_cluster_sync(); /* all four have parked */
        share.template join<0>(g, share.from(sums));
        __syncwarp();
        sm90_cluster_sync(); /* shared memory outlives the peers' reads */
    }
}

#endif
