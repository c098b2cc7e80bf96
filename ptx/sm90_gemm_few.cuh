/* sm90_gemm_few - y = W x for few rows of x: bound by reading W once.
 *
 *   map       of x: bf16 [n_rows][n_k], boxes of 64 values x height rows, 128-byte swizzle
 *   g         see sm90_gemm.h; weights and x are not written meanwhile, out may be neither
 *   grid      n_ranks == 1: any number of blocks, each takes tiles in turn
 *             n_ranks == 2: clusters of 2, one a tile; rank r has half r of the segments
 *   block     128 or 256 threads that compute (tiles up to 64 or 128 rows), then 64 that copy
 *   shared    1024 to align, then the rings, or the partial sums of a cluster if they are larger
 *   rounding  SPEC 2.4: chains of k16 steps, tree of fp32 additions, one rounding (or none); 2.6
 *   bound by  HBM, 2 bytes a weight
 *
 * W is the left operand of wgmma, so N = 8 rows of x cost no more than the tensor core's width in
 * W.  Two rings: the weights' runs from the first cycle, for they depend on no kernel; that of x
 * waits until the kernel before is done.  A tile shorter than 64 rows is read to 64: what stands
 * behind it is another stage, perhaps being written; those products are other rows of the result
 * and dropped.
 *
 *   barrier        arrives                       waits
 *   weights_full   copier of weights, the bytes  all who compute
 *   weights_empty  a lane of each warp           copier of weights
 *   rows_full      copier of rows, the bytes     all who compute
 *   rows_empty     a lane of each warp           copier of rows
 *   named 1        those who compute: places of the rows; partial sums of a cluster */
#ifndef LLM42D_PTX_SM90_GEMM_FEW_CUH
#define LLM42D_PTX_SM90_GEMM_FEW_CUH

#include "ptx/sm90_gemm_turned.cuh"

enum {
    FEW_COPY_THREADS = 64,
    FEW_WG_ROWS = 64, /* rows of W to a warpgroup */
    FEW_STEP = 16,    /* values of K to a step */
    FEW_STEPS = SM90_GEMM_BLOCK / FEW_STEP,
    FEW_TURNED_ROWS = 64, /* up to so many rows of x to a tile there is SM90_GEMM_TURNED */
    FEW_STEPS_ROWS = 16, /* up to so many rows of x segments may end inside blocks of K */
    ROW_BYTES = 2 * SM90_GEMM_BLOCK,
    PART_PAD = 4, /* floats between columns of partial sums, against bank conflicts */
};

/* What this block does, the same for all of its threads. */
struct few_work {
    u32 n_tiles, first, step;       /* tiles of W times tiles of x */
    u32 block, n_blocks;            /* of K: where it starts, how much it reads */
    u32 n_segments, segment_blocks; /* blocks to a segment, where they are whole ones */
    u32 first_step, segment_steps;  /* else, of 16: where in its first block, and to a segment */
};

/* Whether segments end inside blocks of K; K is whole steps to a segment then. */
DEVICE bool few_in_steps(const struct sm90_gemm &g) {
    return g.segments > 1 && g.n_k % (g.segments * SM90_GEMM_BLOCK) != 0;
}

DEVICE struct few_work few_work(const struct sm90_gemm &g, u32 rank) {
    struct few_work w;

    w.n_tiles = g.n_tiles * g.n_row_tiles;
    w.first = blockIdx.x / g.n_ranks;
    w.step = gridDim.x / g.n_ranks;
    w.n_segments = g.segments / g.n_ranks;
    w.segment_steps = g.n_k / FEW_STEP / g.segments;
    w.segment_blocks = g.n_blocks / g.segments;
    if (few_in_steps(g)) {
        const u32 first = rank * w.n_segments * w.segment_steps;

        w.block = first / FEW_STEPS;
        w.first_step = first % FEW_STEPS;
        w.n_blocks =
            (w.first_step + w.n_segments * w.segment_steps + FEW_STEPS - 1) / FEW_STEPS;
        return w;
    }
    w.first_step = 0;
    w.n_blocks = w.n_segments * w.segment_blocks;
    w.block = rank * w.n_blocks;
    return w;
}

DEVICE void few_copy_weights(const struct sm90_gemm &g, const struct few_work &w,
                             struct gemm_ring ring) {
    const u64 policy = sm90_policy_evict_first(); /* read once a step */
    const u32 block_bytes = g.tile * ROW_BYTES;

    for (u32 t = w.first; t < w.n_tiles; t += w.step) {
        const char *from = (const char *)g.weights +
                           ((u64)(t / g.n_row_tiles) * g.n_blocks + w.block) * block_bytes;

        for (u32 b = 0; b < w.n_blocks; b += g.stage_blocks) {
            const u32 n_bytes = g.stage_blocks * block_bytes;

            sm90_barrier_wait(ring.empty + 8 * ring.stage, ring.parity ^ 1);
            sm90_barrier_expect(ring.full + 8 * ring.stage, n_bytes);
            sm90_copy_policy(ring.base + ring.stage * ring.stage_bytes, from, n_bytes,
                             ring.full + 8 * ring.stage, policy);
            from += n_bytes;
            ring.next();
        }
    }
}

template <int N>
DEVICE void few_copy_rows(const struct sm90_map *map, const struct sm90_gemm &g,
                          const struct few_work &w, struct gemm_ring ring) {
    sm90_map_ahead(map);
    sm90_wait_previous();
    if (w.first >= w.n_tiles && g.hold_ns) {
        /* With every multiprocessor holding one block of this kernel, each has room for exactly
         * one of the next: else two would land where none is, and the rest wait for them. */
        const u64 begin = sm90_now();

        /* A clock that was set back is far ahead of `begin`. */
        while (sm90_now() - begin < g.hold_ns) __nanosleep(200);
    }
    for (u32 t = w.first; t < w.n_tiles; t += w.step) {
        const u32 row = t % g.n_row_tiles * g.height;
        u32 column = w.block * SM90_GEMM_BLOCK;

        for (u32 b = 0; b < w.n_blocks; b += g.stage_blocks) {
            const u32 to = ring.base + ring.stage * ring.stage_bytes;

            sm90_barrier_wait(ring.empty + 8 * ring.stage, ring.parity ^ 1);
            sm90_barrier_expect(ring.full + 8 * ring.stage, g.stage_blocks * g.height * ROW_BYTES);
            for (u32 i = 0; i < g.stage_blocks; i++, column += SM90_GEMM_BLOCK)
                sm90_copy_tile(to + i * N * ROW_BYTES, map, column, row,
                               ring.full + 8 * ring.stage);
            ring.next();
        }
    }
}

template <int N>
DEVICE void few_move(float (&to)[N / 2], const float (&from)[N / 2]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) to[i] = from[i];
}

template <int N>
DEVICE void few_add(float (&to)[N / 2], const float (&left)[N / 2], const float (&right)[N / 2]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) to[i] = left[i] + right[i];
}

/* One segment: c = chain(+0, ..), B blocks of K a stage.  One warp a scheduler: what stands between
 * two batches of steps is waited for by nobody else, so it must take less time than a batch. */
template <int N, int B>
DEVICE void few_chain(float (&c)[N / 2], const struct sm90_gemm &g, const struct few_work &w,
                      struct gemm_ring &weights, struct gemm_ring &rows, u32 wg, u32 releases) {
    const u32 tile_step = g.tile * ROW_BYTES / 16;
    u32 old_weights = 0, old_rows = 0; /* the stage before, to be given back */

    sm90_pin(c);
    for (u32 b = 0; b < w.segment_blocks; b += B) {
        const u32 a = sm90_descriptor_low(
            weights.base + weights.stage * weights.stage_bytes + wg * 8192, 16);
        const u32 x = sm90_descriptor_low(rows.base + rows.stage * rows.stage_bytes, 16);

        sm90_barrier_wait(weights.full + 8 * weights.stage, weights.parity);
        sm90_barrier_wait(rows.full + 8 * rows.stage, rows.parity);
        sm90_wgmma_fence();
#pragma unroll
        for (u32 i = 0; i < B; i++)
#pragma unroll
            for (u32 k = 0; k < 4; k++)
                sm90_wgmma<N>::run(c, sm90_descriptor(a + i * tile_step + 2 * k, 1024),
                                   sm90_descriptor(x + i * (N * ROW_BYTES / 16) + 2 * k, 1024),
                                   i || k || b);
        sm90_wgmma_commit();
        /* The stage before has been read; this one may still be. */
        sm90_wgmma_wait<1>();
        sm90_barrier_arrive_if(old_weights, b ? releases : 0);
        sm90_barrier_arrive_if(old_rows, b ? releases : 0);
        old_weights = weights.empty + 8 * weights.stage;
        old_rows = rows.empty + 8 * rows.stage;
        weights.next();
        rows.next();
    }
    sm90_wgmma_wait<0>();
    sm90_pin(c);
    sm90_barrier_arrive_if(old_weights, releases);
    sm90_barrier_arrive_if(old_rows, releases);
}

/* The tree over this block's segments, at most four: a sum waits for its neighbour. */
template <int N, int B>
DEVICE void few_tree(float (&c)[N / 2], const struct sm90_gemm &g, const struct few_work &w,
                     struct gemm_ring &weights, struct gemm_ring &rows, u32 wg, u32 releases) {
    constexpr bool four = N <= 32; /* wider, registers do not suffice for two blocks at once */
    float pair[N / 2] = {0}, four_left[four ? N / 2 : 1] = {0};

    for (u32 s = 0; s < w.n_segments; s++) {
        few_chain<N, B>(c, g, w, weights, rows, wg, releases);
        if (s % 2 == 0) {
            if (s + 1 < w.n_segments) few_move<N>(pair, c);
            continue;
        }
        few_add<N>(c, pair, c);
        if constexpr (four) {
            if (s == 1)
                few_move<N>(four_left, c);
            else
                few_add<N>(c, four_left, c);
        }
    }
}

/* The same where segments end inside blocks: short ones, so that a wait at a block's end and at a
 * segment's is no loss. */
template <int N>
DEVICE void few_tree_in_steps(float (&c)[N / 2], const struct sm90_gemm &g,
                              const struct few_work &w, struct gemm_ring &weights,
                              struct gemm_ring &rows, u32 wg, u32 releases) {
    float pair[N / 2] = {0}, four_left[N / 2] = {0};
    u32 left = w.segment_steps, s = 0;

    for (u32 b = 0; b < w.n_blocks; b++) {
        const u32 a = sm90_descriptor_low(
            weights.base + weights.stage * weights.stage_bytes + wg * 8192, 16);
        const u32 x = sm90_descriptor_low(rows.base + rows.stage * rows.stage_bytes, 16);

        sm90_barrier_wait(weights.full + 8 * weights.stage, weights.parity);
        sm90_barrier_wait(rows.full + 8 * rows.stage, rows.parity);
        for (u32 k = b ? 0 : w.first_step; k < FEW_STEPS && s < w.n_segments; k++) {
            sm90_wgmma_fence();
            sm90_wgmma<N>::run(c, sm90_descriptor(a + 2 * k, 1024),
                               sm90_descriptor(x + 2 * k, 1024), left != w.segment_steps);
            sm90_wgmma_commit();
            if (--left) continue;
            sm90_wgmma_wait<0>();
            sm90_pin(c);
            left = w.segment_steps;
            if (s % 2 == 0) {
                if (s + 1 < w.n_segments) few_move<N>(pair, c);
            } else {
                few_add<N>(c, pair, c);
                if (s == 1)
                    few_move<N>(four_left, c);
                else
                    few_add<N>(c, four_left, c);
            }
            s++;
        }
        sm90_wgmma_wait<0>();
        sm90_pin(c);
        sm90_barrier_arrive_if(weights.empty + 8 * weights.stage, releases);
        sm90_barrier_arrive_if(rows.empty + 8 * rows.stage, releases);
        weights.next();
        rows.next();
    }
}

/* Two adjacent values of one row of the output. */
DEVICE void few_put(const struct sm90_gemm &g, u32 row, u32 column, u32 pair) {
    u32 *to = (u32 *)((u16 *)g.out + (u64)row * g.out_stride + column);

    *to = g.form == SM90_GEMM_ADD ? gemm_residual(*to, pair) : pair;
}

/* The squares of four adjacent values, as SPEC 2.5 adds them. */
DEVICE float few_squares(u32 a, u32 b) {
    const float v0 = num_from_bits(a << 16), v1 = num_from_bits(a & 0xffff0000);
    const float v2 = num_from_bits(b << 16), v3 = num_from_bits(b & 0xffff0000);

    return (v0 * v0 + v1 * v1) + (v2 * v2 + v3 * v3);
}

/* Rows of W in turns of eight: gate in the lower, up in the upper half of a fragment. */
template <int N>
DEVICE void few_store_gated(const float (&c)[N / 2], const struct sm90_gemm &g, u32 n, u32 row,
                            u32 end, bool low) {
    const u32 lane = threadIdx.x % 32;
    u32 pairs[N / 8], rare = 0;

#pragma unroll
    for (u32 j = 0; j < N / 8; j++) {
        u32 rare_here = 0;

        pairs[j] = gemm_gated_fast(sm90_pack(c[4 * j], c[4 * j + 1]),
                                   sm90_pack(c[4 * j + 2], c[4 * j + 3]), rare_here);
        /* What is dropped is no reason for the long way. */
        rare |= low && row + j * 8 + lane % 4 * 2 < end ? rare_here : 0;
    }
    if (__any_sync(0xffffffff, rare))
#pragma unroll
        for (u32 j = 0; j < N / 8; j++)
            pairs[j] = gemm_gated(sm90_pack(c[4 * j], c[4 * j + 1]),
                                  sm90_pack(c[4 * j + 2], c[4 * j + 3]));
#pragma unroll
    for (u32 j = 0; j < N / 8; j++) {
        const u32 token = row + j * 8 + lane / 4, h = sm90_transpose(pairs[j]);

        if (low && token < end) few_put(g, token, n / 2 + lane % 4 * 2, h);
    }
}

/* The accumulator of one block: a thread has rows r and r + 8 of W for rows 2 q, 2 q + 1 of x. */
template <int N>
DEVICE void few_store(const float (&c)[N / 2], const struct sm90_gemm &g, u32 t, u32 warp) {
    const u32 lane = threadIdx.x % 32, local = warp * 16;
    const u32 n = t / g.n_row_tiles * g.tile + local, row = t % g.n_row_tiles * g.height;
    const u32 end = min(g.n_rows, row + g.height);
    const bool low = local < g.tile && n < g.n, high = local + 8 < g.tile && n + 8 < g.n;

    if (g.form == SM90_GEMM_SILU) {
        few_store_gated<N>(c, g, n, row, end, low);
        return;
    }
#pragma unroll
    for (u32 j = 0; j < N / 8; j++) {
        if (g.form == SM90_GEMM_F32) {
            const u32 token = row + j * 8 + lane % 4 * 2;
            float *to = (float *)g.out + (u64)token * g.out_stride + n + lane / 4;

            if (low && token < end) to[0] = c[4 * j];
            if (low && token + 1 < end) to[g.out_stride] = c[4 * j + 1];
            if (high && token < end) to[8] = c[4 * j + 2];
            if (high && token + 1 < end) to[g.out_stride + 8] = c[4 * j + 3];
            continue;
        }
        const u32 token = row + j * 8 + lane / 4, column = lane % 4 * 2;

        const u32 a = sm90_transpose(sm90_pack(c[4 * j], c[4 * j + 1]));
        const u32 b = sm90_transpose(sm90_pack(c[4 * j + 2], c[4 * j + 3]));

        if (low && token < end) few_put(g, token, n + column, a);
        if (high && token < end) few_put(g, token, n + 8 + column, b);
    }
}

/* Partial sums of this rank to its shared memory, as [row of x][tile + PART_PAD]. */
template <int N>
DEVICE void few_park(const float (&c)[N / 2], const struct sm90_gemm &g, float *part, u32 warp) {
    const u32 lane = threadIdx.x % 32, r = warp * 16 + lane / 4;

#pragma unroll
    for (u32 j = 0; j < N / 8; j++) {
        float *to = part + (j * 8 + lane % 4 * 2) * (g.tile + PART_PAD) + r;

        if (r < g.tile) {
            to[0] = c[4 * j];
            to[g.tile + PART_PAD] = c[4 * j + 1];
        }
        if (r + 8 < g.tile) {
            to[8] = c[4 * j + 2];
            to[g.tile + PART_PAD + 8] = c[4 * j + 3];
        }
    }
}

/* What a thread joins at the end: of row `token` of x four values from row `r` of the tile on. */
template <int N>
struct few_share {
    /* A tile that is cut has up to 64 rows of W, so a block 128 threads that compute. */
    static constexpr u32 threads = 128, turns = N * 8 / 128 ? N * 8 / 128 : 1;
    static constexpr bool early = N <= 32; /* wider, registers do not suffice */
    uint2 old[early ? turns : 1];

    DEVICE_METHOD bool at(const struct sm90_gemm &g, u32 t, u32 rank, u32 turn, u32 &token, u32 &r,
                          u32 &n) const {
        const u32 fours = g.tile / 8, i = threadIdx.x + turn * threads;

        token = i / fours;
        r = rank * (g.tile / 2) + i % fours * 4;
        n = t / g.n_row_tiles * g.tile + r;
        return token < min(g.height, g.n_rows - t % g.n_row_tiles * g.height);
    }

    DEVICE_METHOD uint2 *to(const struct sm90_gemm &g, u32 t, u32 token, u32 n) const {
        const u64 row = t % g.n_row_tiles * g.height + token;

        return (uint2 *)((u16 *)g.out + row * g.out_stride + n);
    }

    /* Of the residual stream, while the products are under way. */
    DEVICE_METHOD void load(const struct sm90_gemm &g, u32 t, u32 rank) {
        if constexpr (early) {
            if (g.form != SM90_GEMM_ADD) return;
#pragma unroll
            for (u32 turn = 0; turn < turns; turn++) {
                u32 token, r, n;

                if (at(g, t, rank, turn, token, r, n) && n < g.n) old[turn] = *to(g, t, token, n);
            }
        }
    }
};

/* The root of the tree: rank 0's half plus rank 1's, each rank for half of the rows of W. */
template <int N>
DEVICE void few_join(const struct sm90_gemm &g, const struct few_share<N> &share,
                     const float *part, u32 t, u32 rank) {
    const u32 fours = g.tile / 8;

#pragma unroll
    for (u32 turn = 0; turn < few_share<N>::turns; turn++) {
        u32 token, r, n;

        if (!share.at(g, t, rank, turn, token, r, n)) break;
        const u32 at = sm90_shared(part + token * (g.tile + PART_PAD) + r);
        const float4 a = sm90_load_peer(at, 0), b = sm90_load_peer(at, 1);
        const float4 y = {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
        const u32 row = t % g.n_row_tiles * g.height + token;
        float q = 0.0f;

        if (n < g.n && g.form == SM90_GEMM_F32) {
            *(float4 *)((float *)g.out + (u64)row * g.out_stride + n) = y;
        } else if (n < g.n) {
            uint2 put = {sm90_pack(y.x, y.y), sm90_pack(y.z, y.w)};

            if (g.form == SM90_GEMM_ADD) {
                const uint2 old =
                    few_share<N>::early ? share.old[few_share<N>::early ? turn : 0]
                                        : *share.to(g, t, token, n);

                put.x = gemm_residual(old.x, put.x);
                put.y = gemm_residual(old.y, put.y);
            }
            *share.to(g, t, token, n) = put;
            q = few_squares(put.x, put.y);
        }
        if (g.squares == 0) continue;
        /* Those who have the row's other fours of this share are neighbours. */
        for (u32 s = 1; s < fours; s *= 2)
            q = q + __shfl_xor_sync(((1u << fours) - 1) << (threadIdx.x % 32 & ~(fours - 1)), q, s);
        if ((threadIdx.x & (fours - 1)) == 0 && n < g.n)
            ((float *)g.squares)[(u64)row * g.squares_stride + n / (g.tile / 2)] = q;
    }
}

/* Rows of x of a tile: the first, and how many. */
DEVICE u32 few_rows(const struct sm90_gemm &g, u32 t, u32 &n_rows) {
    const u32 row = t % g.n_row_tiles * g.height;

    n_rows = min(g.height, g.n_rows - row);
    return row;
}

/* Of the block's first tile, by those who compute; may be called before the kernel before is done. */
DEVICE void few_places(const struct sm90_gemm &g, const struct few_work &w,
                       struct turned_place *places, u32 n_compute) {
    u32 n_rows, row;

    if (w.first < w.n_tiles) {
        row = few_rows(g, w.first, n_rows);
        turned_places(g, places, row, n_rows);
    }
    sm90_named_sync(1, n_compute); /* they are there */
}

/* Of one segment and no cluster; the kernel before is done.  What turns rows comes while the products
 * are under way. */
template <int N, bool TURNED>
DEVICE void few_compute_whole(const struct sm90_gemm &g, const struct few_work &w,
                              struct gemm_ring &weights, struct gemm_ring &rows,
                              struct turned_place *places, u32 warp, u32 n_compute) {
    const u32 wg = warp / 4, releases = threadIdx.x % 32 == 0, local = warp * 16;
    float c[N / 2] = {0};
    struct turned_factors<N> turn;

    for (u32 t = w.first; t < w.n_tiles; t += w.step) {
        const u32 at = t / g.n_row_tiles * g.tile + local;
        const bool mine = local < g.tile && at < g.n;
        u32 n_rows;
        const u32 row = few_rows(g, t, n_rows);

        if (TURNED && t != w.first && g.n_row_tiles > 1) {
            sm90_named_sync(1, n_compute); /* those of the tile before have been read */
            turned_places(g, places, row, n_rows);
            sm90_named_sync(1, n_compute); /* they are there */
        }
        if (TURNED && mine) turn.load(g, places, at, n_rows);
        if (g.stage_blocks == 2)
            few_chain<N, 2>(c, g, w, weights, rows, wg, releases);
        else
            few_chain<N, 1>(c, g, w, weights, rows, wg, releases);
        if (g.next == SM90_GEMM_NEXT_LAST_TILE && t + w.step >= w.n_tiles && threadIdx.x == 0)
            sm90_launch_next();
        if (!TURNED)
            few_store<N>(c, g, t, warp);
        else if (mine)
            turned_store<N>(c, g, turn, places, at, row, n_rows);
    }
}

extern __shared__ unsigned char few_dynamic[];

template <int N>
DEVICE void few_run(const struct sm90_map *map, const struct sm90_gemm &g) {
    __shared__ u64 barriers[4][SM90_GEMM_STAGES_MAX];
    __shared__ struct turned_place places[N];
    const u32 n_compute = blockDim.x - FEW_COPY_THREADS, warp = threadIdx.x / 32;
    const u32 rank = g.n_ranks > 1 ? sm90_cluster_rank() : 0;
    const struct few_work w = few_work(g, rank);
    unsigned char *aligned = few_dynamic + (-sm90_shared(few_dynamic) & 1023);
    struct gemm_ring weights = {sm90_shared(aligned), g.stage_blocks * g.tile * ROW_BYTES,
                               sm90_shared(barriers[0]), sm90_shared(barriers[1]),
                               g.n_weight_stages, 0, 0};
    struct gemm_ring rows = {weights.base + weights.n_stages * weights.stage_bytes,
                            g.stage_blocks * N * ROW_BYTES, sm90_shared(barriers[2]),
                            sm90_shared(barriers[3]), g.n_row_stages, 0, 0};

    struct few_share<N> share;

    if (threadIdx.x == 0) {
        for (u32 i = 0; i < weights.n_stages; i++) {
            sm90_barrier_init(weights.full + 8 * i, 1);
            sm90_barrier_init(weights.empty + 8 * i, n_compute / 32);
        }
        for (u32 i = 0; i < rows.n_stages; i++) {
            sm90_barrier_init(rows.full + 8 * i, 1);
            sm90_barrier_init(rows.empty + 8 * i, n_compute / 32);
        }
        sm90_barrier_init_done();
        if (g.next == SM90_GEMM_NEXT_AT_ONCE) sm90_launch_next();
    }
    __syncthreads(); /* nobody touches a barrier before it is made */

    if (warp == n_compute / 32) {
        if (threadIdx.x % 32 == 0) few_copy_weights(g, w, weights);
        __syncwarp();
    } else if (warp == n_compute / 32 + 1) {
        if (threadIdx.x % 32 == 0) few_copy_rows<N>(map, g, w, rows);
        __syncwarp();
    } else if (N <= FEW_TURNED_ROWS && g.form == SM90_GEMM_TURNED) {
        few_places(g, w, places, n_compute);
        sm90_wait_previous(); /* who read `out` and the pages before us is done */
        if constexpr (N <= FEW_TURNED_ROWS)
            few_compute_whole<N, true>(g, w, weights, rows, places, warp, n_compute);
    } else {
        const u32 wg = warp / 4, releases = threadIdx.x % 32 == 0;
        float c[N / 2] = {0};

        if (g.n_ranks > 1 && w.first < w.n_tiles) {
            sm90_wait_previous(); /* who added to `out` before us is done */
            share.load(g, w.first, rank);
        }
        for (u32 t = w.first; t < w.n_tiles; t += w.step) {
            if (N <= FEW_STEPS_ROWS && few_in_steps(g)) {
                if constexpr (N <= FEW_STEPS_ROWS)
                    few_tree_in_steps<N>(c, g, w, weights, rows, wg, releases);
            } else if (g.stage_blocks == 2) {
                few_tree<N, 2>(c, g, w, weights, rows, wg, releases);
            } else {
                few_tree<N, 1>(c, g, w, weights, rows, wg, releases);
            }
            sm90_wait_previous(); /* who added to `out` before us is done; it is, as x has come */
            if (g.n_ranks == 1) few_store<N>(c, g, t, warp);
        }
        if (g.n_ranks > 1) {
            /* The rings are idle, but another warpgroup may still read its last stage. */
            sm90_named_sync(1, n_compute);
            few_park<N>(c, g, (float *)aligned, warp);
        }
    }
    if (g.n_ranks > 1) {
        __syncwarp();
        sm90_cluster_sync(); /* both halves are parked */
        if (warp < n_compute / 32 && w.first < w.n_tiles)
            few_join<N>(g, share, (const float *)aligned, w.first, rank);
        __syncwarp();
        sm90_cluster_sync(); /* shared memory outlives the peer's reads */
    }
}

#endif
