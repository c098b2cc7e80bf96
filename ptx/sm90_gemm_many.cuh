/* sm90_gemm_many - y = W x for many rows of x: bound by the tensor cores.
 *
 *   map       of x: bf16 [n_rows][n_k], boxes of 64 values x 128 rows, 128-byte swizzle, zeros
 *             beyond
 *   g         see sm90_gemm.h; N is a multiple of 2 tile, and so many rows does the image have;
 *             out may be neither x nor weights
 *   grid      clusters of 2 blocks, any number; each takes in turn a pair of row tiles, one a
 *             block, and N rows of W
 *   block     384 threads: a warpgroup that copies, two that compute 64 rows of x each
 *   shared    1024 to align, STAGES times (16 KB of x, N * 128 bytes of W), then 18 KB
 *   rounding  SPEC 2.4: chains of k16 steps, tree of fp32 additions, one rounding (or none)
 *   bound by  tensor cores, and for large ones the card's power limit
 *
 * x is the left operand of wgmma.  Each block of a pair fetches half of the weights and sends it
 * to both.  `group` pairs go through all of W together, so that L2 serves the other reads of it.
 * The second warpgroup starts some blocks of K later and stays behind, so that the ends of tiles
 * and of segments of one fall into the steps of the other.
 * With SEGMENTS > 1 the tree of up to four segments is in registers, 64 a thread and level.
 *
 *   barrier  arrives                                                waits
 *   full     this block's copier, bytes of x and both halves of W   all who compute
 *   empty    a lane of each of 16 warps, both blocks               this block's copier
 * named 1  the first warpgroup, after LAG blocks                  the second, before its first
 * A stage is empty when both blocks are done with it, for the peer writes into it, too. */
#ifndef LLM42D_PTX_SM90_GEMM_MANY_CUH
#define LLM42D_PTX_SM90_GEMM_MANY_CUH

#include "ptx/sm90_gemm.cuh"

enum {
    RANKS = 2,
    ROWS = SM90_GEMM_MANY_TOKENS,
    ROW_BYTES = 2 * SM90_GEMM_BLOCK,
    X_BYTES = ROWS * ROW_BYTES,
    COMPUTE_WARPS = 8,
    CHUNK_COLUMNS = 16, /* of the output, staged for full sectors */
    STAGING_PITCH = 144, /* bytes: four chunks, and against bank conflicts */
    LAG_BARRIER = 1,
};

template <int N, int STAGES>
struct many_shared {
    static constexpr u32 w_bytes = N * ROW_BYTES;
    static constexpr u32 stage_bytes = X_BYTES + w_bytes;
    static constexpr u32 ring_bytes = STAGES * stage_bytes;
};

struct many_stage {
    u32 index, parity;

    DEVICE_METHOD void next(u32 n) {
        if (++index < n) return;
        index = 0;
        parity ^= 1;
    }
};

/* Which rows of x and of W: pairs of row tiles in groups, each group through all of W. */
DEVICE void many_tile(const struct sm90_gemm &g, u32 n_width, u32 pair, u32 rank, u32 &row,
                      u32 &n) {
    const u32 n_pairs = (g.n_rows + RANKS * ROWS - 1) / (RANKS * ROWS);
    const u32 n_columns = (g.n + n_width - 1) / n_width, of_group = g.group * n_columns;
    const u32 first = pair / of_group * g.group, local = pair % of_group;
    const u32 in_group = min(g.group, n_pairs - first);

    row = ((first + local % in_group) * RANKS + rank) * ROWS;
    n = local / in_group * n_width;
}

DEVICE u32 many_tiles(const struct sm90_gemm &g, u32 n_width) {
    return (g.n_rows + RANKS * ROWS - 1) / (RANKS * ROWS) * ((g.n + n_width - 1) / n_width);
}

template <int N, int STAGES>
DEVICE void many_copy(const struct sm90_map *map, const struct sm90_gemm &g, u32 ring, u32 full,
                      u32 empty, u32 rank) {
    using shared = many_shared<N, STAGES>;
    const u32 n_tiles = many_tiles(g, N), block_bytes = g.tile * ROW_BYTES;
    const u32 n_pieces = N / RANKS / g.tile; /* of this block's half of the weights */
    struct many_stage stage = {0, 0};

    sm90_wait_previous();
    for (u32 t = blockIdx.x / RANKS; t < n_tiles; t += gridDim.x / RANKS) {
        u32 row, n;

        many_tile(g, N, t, rank, row, n);
        const char *from = (const char *)g.weights +
                           (u64)(n / g.tile + rank * n_pieces) * g.n_blocks * block_bytes;

        for (u32 b = 0; b < g.n_blocks; b++, from += block_bytes) {
            const u32 to = ring + stage.index * shared::stage_bytes;
            const u32 half = to + X_BYTES + rank * (shared::w_bytes / RANKS);

            sm90_barrier_wait(empty + 8 * stage.index, stage.parity ^ 1);
            sm90_barrier_expect(full + 8 * stage.index, shared::stage_bytes);
            sm90_copy_tile(to, map, b * SM90_GEMM_BLOCK, row, full + 8 * stage.index);
            for (u32 i = 0; i < n_pieces; i++)
                sm90_copy_multicast(half + i * block_bytes,
                                    from + (u64)i * g.n_blocks * block_bytes, block_bytes,
                                    full + 8 * stage.index, (1 << RANKS) - 1);
            stage.next(STAGES);
        }
    }
}

/* One segment: c = chain(+0, ..). */
template <int N, int STAGES>
DEVICE void many_chain(float (&c)[N / 2], u32 n_blocks, u32 ring, u32 full, u32 empty,
                       struct many_stage &stage, u32 wg, u32 lag) {
    using shared = many_shared<N, STAGES>;
    const u32 lane = threadIdx.x % 32;
    u32 old = 0;

    sm90_pin(c);
    for (u32 b = 0; b < n_blocks; b++) {
        const u32 at = ring + stage.index * shared::stage_bytes;
        const u32 x = sm90_descriptor_low(at + wg * (X_BYTES / 2), 16);
        const u32 w = sm90_descriptor_low(at + X_BYTES, 16);

        sm90_barrier_wait(full + 8 * stage.index, stage.parity);
        sm90_wgmma_fence();
#pragma unroll
        for (u32 k = 0; k < 4; k++)
            sm90_wgmma<N>::run(c, sm90_descriptor(x + 2 * k, 1024),
                               sm90_descriptor(w + 2 * k, 1024), k || b);
        sm90_wgmma_commit();
        /* The stage before has been read; this one may still be. */
        sm90_wgmma_wait<1>();
        if (b > 0 && lane < RANKS) sm90_barrier_arrive_peer(empty + 8 * old, lane);
        if (b + 1 == lag) sm90_named_arrive(LAG_BARRIER, COMPUTE_WARPS * 32);
        old = stage.index;
        stage.next(STAGES);
    }
    sm90_wgmma_wait<0>();
    sm90_pin(c);
    if (lane < RANKS) sm90_barrier_arrive_peer(empty + 8 * old, lane);
}

template <int N>
DEVICE void many_add(float (&c)[N / 2], const float (&left)[N / 2], const float (&right)[N / 2]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) c[i] = left[i] + right[i];
}

/* A warp's 16 rows of the output, CHUNKS of 16 columns, from fragments as stmatrix takes them:
 * through shared memory, so that lanes next to each other have 16 adjacent bytes each and a store
 * touches few lines.  All stores to shared memory go first, then all loads: one latency, not one
 * a chunk. */
template <int CHUNKS>
DEVICE void many_put(const struct sm90_gemm &g, u32 staging, u32 row, u32 column, u32 n_columns,
                     const u32 (&pairs)[CHUNKS][4]) {
    constexpr u32 pieces = 2 * CHUNKS; /* of 16 bytes, to a row */
    const u32 lane = threadIdx.x % 32;
    const u32 to = staging + (lane % 16) * STAGING_PITCH + lane / 16 * 16;
    uint4 v[CHUNKS];

    __syncwarp(); /* what was here before has been read */
#pragma unroll
    for (u32 i = 0; i < CHUNKS; i++)
        sm90_store_matrices(to + i * 32, pairs[i][0], pairs[i][1], pairs[i][2], pairs[i][3]);
    __syncwarp(); /* lanes read what others wrote */
#pragma unroll
    for (u32 i = 0; i < CHUNKS; i++) {
        const u32 e = i * 32 + lane;

        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w)
                     : "r"(staging + e / pieces * STAGING_PITCH + e % pieces * 16)
                     : "memory");
    }
#pragma unroll
    for (u32 i = 0; i < CHUNKS; i++) {
        const u32 e = i * 32 + lane, r = row + e / pieces, c = column + e % pieces * 8;
        uint4 *out = (uint4 *)((u16 *)g.out + (u64)r * g.out_stride + c);

        if (r >= g.n_rows || c >= n_columns) continue;
        if (g.form == SM90_GEMM_ADD) {
            const uint4 old = *out;

            v[i] = make_uint4(gemm_residual(old.x, v[i].x), gemm_residual(old.y, v[i].y),
                              gemm_residual(old.z, v[i].z), gemm_residual(old.w, v[i].w));
        }
        *out = v[i];
    }
}

/* Chunks from FIRST to END, at most AT_ONCE together. */
template <int N, int FIRST, int END, int AT_ONCE>
DEVICE void many_store_plain(const float (&c)[N / 2], const struct sm90_gemm &g, u32 staging,
                             u32 row, u32 n) {
    constexpr int chunks = END - FIRST < AT_ONCE ? END - FIRST : AT_ONCE;
    u32 pairs[chunks][4];

#pragma unroll
    for (u32 j = 0; j < chunks; j++)
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            pairs[j][i] = sm90_pack(c[8 * (FIRST + j) + 2 * i], c[8 * (FIRST + j) + 2 * i + 1]);
    many_put<chunks>(g, staging, row, n + FIRST * CHUNK_COLUMNS, g.n, pairs);
    if constexpr (FIRST + chunks < END)
        many_store_plain<N, FIRST + chunks, END, AT_ONCE>(c, g, staging, row, n);
}

template <int N, int FIRST, int END>
DEVICE void many_store_gated(const float (&c)[N / 2], const struct sm90_gemm &g, u32 staging,
                             u32 row, u32 n) {
    constexpr int chunks = END - FIRST < 4 ? END - FIRST : 4;
    u32 pairs[chunks][4], rare = 0;

#pragma unroll
    for (u32 j = 0; j < chunks; j++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 at = 16 * (FIRST + j) + i / 2 * 8 + i % 2 * 2; /* of gate; up is 4 further */

            pairs[j][i] = gemm_gated_fast(sm90_pack(c[at], c[at + 1]),
                                          sm90_pack(c[at + 4], c[at + 5]), rare);
        }
    /* Apart from the others, for this is code of many kilobytes, which fetching alone makes slow. */
    if (__any_sync(0xffffffff, rare))
#pragma unroll
        for (u32 j = 0; j < chunks; j++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 at = 16 * (FIRST + j) + i / 2 * 8 + i % 2 * 2;

                pairs[j][i] =
                    gemm_gated(sm90_pack(c[at], c[at + 1]), sm90_pack(c[at + 4], c[at + 5]));
            }
    many_put<chunks>(g, staging, row, n / 2 + FIRST * CHUNK_COLUMNS, g.n / 2, pairs);
    if constexpr (FIRST + chunks < END)
        many_store_gated<N, FIRST + chunks, END>(c, g, staging, row, n);
}

template <int N>
DEVICE void many_store_f32(const float (&c)[N / 2], const struct sm90_gemm &g, u32 row, u32 n) {
    const u32 lane = threadIdx.x % 32;

#pragma unroll
    for (u32 j = 0; j < N / 8; j++)
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 r = row + lane / 4 + half * 8, column = n + j * 8 + lane % 4 * 2;
            float2 *to = (float2 *)((float *)g.out + (u64)r * g.out_stride + column);

            if (r < g.n_rows && column < g.n)
                *to = make_float2(c[4 * j + 2 * half], c[4 * j + 2 * half + 1]);
        }
}

template <int N, int SEGMENTS>
DEVICE void many_store(const float (&c)[N / 2], const struct sm90_gemm &g, u32 staging, u32 row,
                       u32 n) {
    constexpr int chunks = N / CHUNK_COLUMNS;

    if (g.form == SM90_GEMM_F32)
        many_store_f32<N>(c, g, row, n);
    else if (SEGMENTS > 1) /* no image of gate and up is made for segments; registers are few */
        many_store_plain<N, 0, chunks, 2>(c, g, staging, row, n);
    else if (g.form == SM90_GEMM_SILU)
        many_store_gated<N, 0, chunks / 2>(c, g, staging, row, n);
    else
        many_store_plain<N, 0, chunks, 4>(c, g, staging, row, n);
}

template <int N, int STAGES, int SEGMENTS>
DEVICE void many_compute(const struct sm90_gemm &g, u32 ring, u32 staging, u32 full, u32 empty,
                         u32 rank, u32 wg) {
    const u32 n_tiles = many_tiles(g, N), warp = threadIdx.x / 32 % 4;
    const u32 n_blocks = g.n_blocks / g.segments;
    struct many_stage stage = {0, 0};
    float c[N / 2] = {0}, p[SEGMENTS > 1 ? N / 2 : 1] = {0}, q[SEGMENTS > 2 ? N / 2 : 1] = {0};

    /* Of the first segment of this block; no longer than it, or nobody would be waited for. */
    constexpr u32 lag_blocks = SEGMENTS > 1 ? STAGES / 2 - 1 : STAGES / 2;
    u32 lag = wg == 0 ? min(lag_blocks, n_blocks) : 0;

    if (wg == 1 && blockIdx.x / RANKS < n_tiles)
        sm90_named_sync(LAG_BARRIER, COMPUTE_WARPS * 32);
    for (u32 t = blockIdx.x / RANKS; t < n_tiles; t += gridDim.x / RANKS, lag = 0) {
        u32 row, n;

        many_tile(g, N, t, rank, row, n);
        many_chain<N, STAGES>(c, n_blocks, ring, full, empty, stage, wg, lag);
        if constexpr (SEGMENTS > 1) {
            if (g.segments > 1) {
                many_chain<N, STAGES>(p, n_blocks, ring, full, empty, stage, wg, 0);
                many_add<N>(c, c, p);
            }
        }
        if constexpr (SEGMENTS > 2) {
            if (g.segments > 2) {
                many_chain<N, STAGES>(p, n_blocks, ring, full, empty, stage, wg, 0);
                many_chain<N, STAGES>(q, n_blocks, ring, full, empty, stage, wg, 0);
                many_add<N>(p, p, q);
                many_add<N>(c, c, p);
            }
        }
        many_store<N, SEGMENTS>(c, g, staging, row + wg * 64 + warp * 16, n);
    }
}

extern __shared__ unsigned char many_dynamic[];

template <int N, int STAGES, int SEGMENTS>
DEVICE void many_run(const struct sm90_map *map, const struct sm90_gemm &g) {
    __shared__ u64 barriers[2][STAGES];
    const u32 ring = (sm90_shared(many_dynamic) + 1023) & ~1023u;
    const u32 full = sm90_shared(barriers[0]), empty = sm90_shared(barriers[1]);
    const u32 rank = sm90_cluster_rank();

    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            sm90_barrier_init(full + 8 * i, 1);
            sm90_barrier_init(empty + 8 * i, RANKS * COMPUTE_WARPS);
        }
        sm90_barrier_init_done();
        sm90_launch_next();
    }
    sm90_cluster_sync(); /* the peer's barriers are made, too */

    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) many_copy<N, STAGES>(map, g, ring, full, empty, rank);
        __syncwarp();
    } else {
        const u32 warp = threadIdx.x / 32 - 4;

        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        sm90_wait_previous(); /* `out` is ours now */
        many_compute<N, STAGES, SEGMENTS>(
            g, ring, ring + many_shared<N, STAGES>::ring_bytes + warp * (16 * STAGING_PITCH),
            full, empty, rank, warp / 4);
    }
    __syncwarp();
    sm90_cluster_sync(); /* the peer may still arrive at our barriers */
}

#endif
