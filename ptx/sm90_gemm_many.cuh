/* sm90_gemm_many - y = W x for many rows of x: bound by the tensor cores.
 *
 *   map       of x: bf16 [n_rows][n_k], boxes of 64 values x 128 rows, 128-byte swizzle, zeros
 *             beyond
 *   g         see sm90_gemm.h; N is a multiple of 2 tile, and so many rows does the image have;
 *             out may be neither x nor weights
 *   grid      clusters of 2 blocks, any number; each takes in turn a pair of row tiles, one a
 *             block, and N rows of W
 *   block     384 threads: a warpgroup that copies, two that compute 64 rows of x each
 *   shared    1024 to align, STAGES times (16 KB of x, N * 128 bytes of W), then 12 KB
 *   rounding  SPEC 2.4: chains of k16 steps, tree of fp32 additions, one rounding (or none)
 *   bound by  tensor cores, and for large ones the card's power limit
 *
 * x is the left operand of wgmma.  Each block of a pair fetches half of the weights and sends it
 * to both.  `group` pairs go through all of W together, so that L2 serves the other reads of it.
 * With SEGMENTS > 1 the tree of up to four segments is in registers, 64 a thread and level.
 *
 *   barrier  arrives                                                waits
 *   full     this block's copier, bytes of x and both halves of W   all who compute
 *   empty    a lane of each of 16 warps, both blocks               this block's copier
 * A stage is empty when both blocks are done with it, for the peer writes into it, too. */
#ifndef LLM42D_PTX_SM90_GEMM_MANY_CUH
#define LLM42D_PTX_SM90_GEMM_MANY_CUH

#include "ptx/sm90.cuh"
#include "ptx/sm90_gemm.h"
#include "runtime/num.h"

enum {
    RANKS = 2,
    ROWS = SM90_GEMM_MANY_TOKENS,
    ROW_BYTES = 2 * SM90_GEMM_BLOCK,
    X_BYTES = ROWS * ROW_BYTES,
    COMPUTE_WARPS = 8,
    CHUNK_COLUMNS = 16, /* of the output, staged for full sectors */
    CHUNK_PITCH = 48,   /* bytes, against bank conflicts */
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
                       struct many_stage &stage, u32 wg) {
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

/* SPEC 2.8 on sums not yet rounded: pairs of gate and of up to one of the product. */
DEVICE u32 many_silu(u32 gate, u32 up) {
    const u32 s = sm90_pack(num_silu(num_from_bits(gate << 16)),
                            num_silu(num_from_bits(gate & 0xffff0000)));

    return sm90_pack(num_from_bits(s << 16) * num_from_bits(up << 16),
                     num_from_bits(s & 0xffff0000) * num_from_bits(up & 0xffff0000));
}

DEVICE u32 many_residual(u32 old, u32 y) {
    return sm90_pack(num_from_bits(old << 16) + num_from_bits(y << 16),
                     num_from_bits(old & 0xffff0000) + num_from_bits(y & 0xffff0000));
}

/* 16 rows of x from `row`, 16 columns of the output from `column`: through shared memory, so that
 * a lane has 16 adjacent bytes. */
DEVICE void many_put(const struct sm90_gemm &g, u32 staging, u32 row, u32 column, u32 n_columns,
                     const u32 (&pairs)[4]) {
    const u32 lane = threadIdx.x % 32;
    const u32 from = staging + (lane % 16) * CHUNK_PITCH + lane / 16 * 16;
    const u32 to = staging + lane / 2 * CHUNK_PITCH + lane % 2 * 16;
    uint4 *out = (uint4 *)((u16 *)g.out + (u64)(row + lane / 2) * g.out_stride + column +
                           lane % 2 * 8);
    uint4 v;

    sm90_store_matrices(from, pairs[0], pairs[1], pairs[2], pairs[3]);
    __syncwarp(); /* lanes read what others wrote */
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(to)
                 : "memory");
    if (row + lane / 2 >= g.n_rows || column + lane % 2 * 8 >= n_columns) return;
    if (g.form == SM90_GEMM_ADD) {
        const uint4 old = *out;

        v = make_uint4(many_residual(old.x, v.x), many_residual(old.y, v.y),
                       many_residual(old.z, v.z), many_residual(old.w, v.w));
    }
    *out = v;
}

template <int N>
DEVICE void many_store(const float (&c)[N / 2], const struct sm90_gemm &g, u32 staging, u32 row,
                       u32 n) {
    const u32 lane = threadIdx.x % 32;

    __syncwarp(); /* the staging of the tile before has been read */
    if (g.form == SM90_GEMM_F32) {
#pragma unroll
        for (u32 j = 0; j < N / 8; j++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 r = row + lane / 4 + half * 8, column = n + j * 8 + lane % 4 * 2;
                float2 *to = (float2 *)((float *)g.out + (u64)r * g.out_stride + column);

                if (r < g.n_rows && column < g.n)
                    *to = make_float2(c[4 * j + 2 * half], c[4 * j + 2 * half + 1]);
            }
        return;
    }
    if (g.form == SM90_GEMM_SILU) {
#pragma unroll
        for (u32 j = 0; j < N / 32; j++) {
            u32 pairs[4];

#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 at = 4 * (4 * j + i / 2 * 2) + i % 2 * 2; /* of gate; up is 4 further */

                pairs[i] = many_silu(sm90_pack(c[at], c[at + 1]),
                                     sm90_pack(c[at + 4], c[at + 5]));
            }
            many_put(g, staging + j % 2 * (16 * CHUNK_PITCH), row, n / 2 + j * CHUNK_COLUMNS,
                     g.n / 2, pairs);
        }
        return;
    }
#pragma unroll
    for (u32 j = 0; j < N / 16; j++) {
        const u32 pairs[4] = {sm90_pack(c[8 * j], c[8 * j + 1]),
                              sm90_pack(c[8 * j + 2], c[8 * j + 3]),
                              sm90_pack(c[8 * j + 4], c[8 * j + 5]),
                              sm90_pack(c[8 * j + 6], c[8 * j + 7])};

        many_put(g, staging + j % 2 * (16 * CHUNK_PITCH), row, n + j * CHUNK_COLUMNS, g.n, pairs);
    }
}

template <int N, int STAGES, int SEGMENTS>
DEVICE void many_compute(const struct sm90_gemm &g, u32 ring, u32 staging, u32 full, u32 empty,
                         u32 rank, u32 wg) {
    const u32 n_tiles = many_tiles(g, N), warp = threadIdx.x / 32 % 4;
    const u32 n_blocks = g.n_blocks / g.segments;
    struct many_stage stage = {0, 0};
    float c[N / 2] = {0}, p[SEGMENTS > 1 ? N / 2 : 1] = {0}, q[SEGMENTS > 2 ? N / 2 : 1] = {0};

    for (u32 t = blockIdx.x / RANKS; t < n_tiles; t += gridDim.x / RANKS) {
        u32 row, n;

        many_tile(g, N, t, rank, row, n);
        many_chain<N, STAGES>(c, n_blocks, ring, full, empty, stage, wg);
        if constexpr (SEGMENTS > 1) {
            if (g.segments > 1) {
                many_chain<N, STAGES>(p, n_blocks, ring, full, empty, stage, wg);
                many_add<N>(c, c, p);
            }
        }
        if constexpr (SEGMENTS > 2) {
            if (g.segments > 2) {
                many_chain<N, STAGES>(p, n_blocks, ring, full, empty, stage, wg);
                many_chain<N, STAGES>(q, n_blocks, ring, full, empty, stage, wg);
                many_add<N>(p, p, q);
                many_add<N>(c, c, p);
            }
        }
        many_store<N>(c, g, staging, row + wg * 64 + warp * 16, n);
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
            g, ring, ring + many_shared<N, STAGES>::ring_bytes + warp * (2 * 16 * CHUNK_PITCH),
            full, empty, rank, warp / 4);
    }
    __syncwarp();
    sm90_cluster_sync(); /* the peer may still arrive at our barriers */
}

#endif
