/* sm90_gemm_four - y = W x for short K in two or four segments that may end at any k16 step: a
 * warpgroup a segment, all at the same time.
 *
 *   map       of x: bf16 [n_rows][n_k], boxes of 64 values x height rows, 128-byte swizzle, zeros
 *             beyond
 *   g         see sm90_gemm.h; out may be neither x nor weights
 *   grid      any number of blocks, each takes tiles in turn
 *   block     640 threads: four warpgroups that compute, a warp for each that copies
 *   shared    1024 to align, four rings of STAGES times (8 KB of x, N * 128 bytes of W), two tiles
 *             of sums, 9 KB
 *   rounding  SPEC 2.4: chains of k16 steps, tree of fp32 additions, one rounding (or none)
 *   bound by  what a multiprocessor can take in, (64 + N) * 128 bytes a block of K
 *
 * A tile is 64 rows of x, which are the left operand of wgmma, and N rows of W.  A block of K in
 * which one segment ends and the next begins is copied for both, each of which takes its steps.
 *
 *   barrier  arrives                            waits
 *   full     the segment's copier, the bytes    its warpgroup
 *   empty    a lane of each warp of it          its copier */
#ifndef LLM42D_PTX_SM90_GEMM_FOUR_CUH
#define LLM42D_PTX_SM90_GEMM_FOUR_CUH

#include "ptx/sm90_gemm_many.cuh"

enum {
    FOUR = 4,
    FOUR_ROWS = SM90_GEMM_FOUR_TOKENS,
    FOUR_X_BYTES = FOUR_ROWS * ROW_BYTES,
    FOUR_STEPS = SM90_GEMM_BLOCK / 16, /* of a block of K */
};

/* Named barriers, of two warpgroups each; 0 is the block's. */
enum { FOUR_ONE = 1, FOUR_ONE_FREE, FOUR_THREE, FOUR_PAIR, FOUR_PAIR_FREE };

template <int N, int STAGES>
struct four_shared {
    static constexpr u32 stage_bytes = FOUR_X_BYTES + N * ROW_BYTES;
    static constexpr u32 ring_bytes = STAGES * stage_bytes;
    static constexpr u32 sums = FOUR * ring_bytes; /* two tiles from here */
    static constexpr u32 sum_bytes = FOUR_ROWS * N * 4;
    static constexpr u32 staging = sums + 2 * sum_bytes;
};

/* Steps of K that a segment has; none where it lies past the end. */
struct four_segment {
    u32 first, end;
};

DEVICE struct four_segment four_segment(const struct sm90_gemm &g, u32 segment) {
    const u32 n_steps = g.n_k / 16, length = (n_steps + g.segments - 1) / g.segments;

    return {min(n_steps, segment * length), min(n_steps, (segment + 1) * length)};
}

/* Tiles along the rows of x are next to each other, for they share the weights. */
template <int N>
DEVICE struct many_tile four_tile(const struct sm90_gemm &g, u32 i) {
    const u32 n_down = (g.n_rows + g.height - 1) / g.height;
    struct many_tile t = {};

    t.row = i % n_down * g.height;
    t.end = min(g.n_rows, t.row + g.height);
    t.n = i / n_down * N;
    return t;
}

template <int N>
DEVICE u32 four_tiles(const struct sm90_gemm &g) {
    return (g.n_rows + g.height - 1) / g.height * ((g.n + N - 1) / N);
}

/* By a warp: a lane a piece of W, rows that the image has one after another. */
template <int N>
DEVICE void four_copy_weights(const struct sm90_gemm &g, u32 n, u32 block, u32 to, u32 full) {
    const u32 lane = threadIdx.x % 32, tile = n / g.tile + lane;
    const u32 row = max(n, tile * g.tile), past = min(n + N, (tile + 1) * g.tile);
    const char *from = (const char *)g.weights +
                       (((u64)tile * g.n_blocks + block) * g.tile + (row - tile * g.tile)) *
                           ROW_BYTES;

    if (lane == 0) sm90_barrier_expect(full, (g.height + N) * ROW_BYTES);
    if (row < past)
        sm90_copy(to + FOUR_X_BYTES + (row - n) * ROW_BYTES, from, (past - row) * ROW_BYTES, full);
}

/* One warp, for one segment.  Weights depend on no kernel: the first come before the kernel before
 * is done. */
template <int N, int STAGES>
DEVICE void four_copy(const struct sm90_map *map, const struct sm90_gemm &g, u32 segment, u32 ring,
                      u32 full, u32 empty) {
    using shared = four_shared<N, STAGES>;
    const struct four_segment s = four_segment(g, segment);
    const u32 first = s.first / FOUR_STEPS, end = (s.end + FOUR_STEPS - 1) / FOUR_STEPS;
    const u32 n_blocks = s.first < s.end ? end - first : 0, n_tiles = four_tiles<N>(g);
    const u32 n_early = blockIdx.x < n_tiles ? min((u32)STAGES, n_blocks) : 0;
    struct many_stage stage = {0, 0};

    for (u32 b = 0; b < n_early; b++)
        four_copy_weights<N>(g, four_tile<N>(g, blockIdx.x).n, first + b,
                             ring + b * shared::stage_bytes, full + 8 * b);
    if (threadIdx.x % 32 == 0) sm90_map_ahead(map);
    sm90_wait_previous();
    for (u32 i = blockIdx.x; i < n_tiles; i += gridDim.x) {
        const struct many_tile t = four_tile<N>(g, i);

        for (u32 b = 0; b < n_blocks; b++) {
            const u32 to = ring + stage.index * shared::stage_bytes;

            sm90_barrier_wait(empty + 8 * stage.index, stage.parity ^ 1);
            __syncwarp(); /* a lane without a piece must not miss a round */
            if (i != blockIdx.x || b >= n_early)
                four_copy_weights<N>(g, t.n, first + b, to, full + 8 * stage.index);
            if (threadIdx.x % 32 == 0)
                sm90_copy_tile(to, map, (first + b) * SM90_GEMM_BLOCK, t.row,
                               full + 8 * stage.index);
            stage.next(STAGES);
        }
    }
}

/* c = chain(+0, ..) of the segment.  The other warpgroups' steps fill the time that waiting for
 * each block takes. */
template <int N, int STAGES>
DEVICE void four_chain(float (&c)[N / 2], const struct four_segment &s, u32 ring, u32 full,
                       u32 empty, struct many_stage &stage) {
    using shared = four_shared<N, STAGES>;

#pragma unroll
    for (int i = 0; i < N / 2; i++) c[i] = 0.0f;
    for (u32 step = s.first; step < s.end;) {
        const u32 x = sm90_descriptor_low(ring + stage.index * shared::stage_bytes, 16);
        const u32 w = x + FOUR_X_BYTES / 16;
        const u32 end = min(s.end, (step / FOUR_STEPS + 1) * FOUR_STEPS);

        sm90_barrier_wait(full + 8 * stage.index, stage.parity);
        sm90_pin(c);
#pragma unroll 1
        do {
            const u32 k = step % FOUR_STEPS * 2;

            sm90_wgmma_fence();
            sm90_wgmma<N>::run(c, sm90_descriptor(x + k, 1024), sm90_descriptor(w + k, 1024), 1);
            sm90_wgmma_commit(); /* here, or the compiler puts an empty step behind the loop */
        } while (++step < end);
        sm90_wgmma_wait<0>();
        sm90_pin(c);
        sm90_barrier_arrive_if(empty + 8 * stage.index, threadIdx.x % 32 == 0);
        stage.next(STAGES);
    }
}

/* A thread's sums to its places in shared memory, where the same thread of another warpgroup
 * finds them. */
template <int N>
DEVICE void four_leave(const float (&c)[N / 2], u32 sums) {
#pragma unroll
    for (int i = 0; i < N / 8; i++)
        sm90_store4(sums + i * 2048, c[4 * i], c[4 * i + 1], c[4 * i + 2], c[4 * i + 3]);
}

template <int N>
DEVICE void four_add(float (&c)[N / 2], u32 sums) {
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        const float4 v = sm90_load4(sums + i * 2048);

        c[4 * i] = c[4 * i] + v.x;
        c[4 * i + 1] = c[4 * i + 1] + v.y;
        c[4 * i + 2] = c[4 * i + 2] + v.z;
        c[4 * i + 3] = c[4 * i + 3] + v.w;
    }
}

/* (0 + 1) + (2 + 3), in warpgroup 0.  Sums of 1 go through the first tile, those of 3 and then of
 * both through the second; each is free again when 0 has read it. */
template <int N>
DEVICE void four_join(float (&c)[N / 2], u32 n_segments, u32 wg, u32 one, u32 pair, bool first,
                      bool last) {
    switch (wg) {
    case 0:
        sm90_named_sync(FOUR_ONE, 256); /* sums of 1 are there */
        four_add<N>(c, one);
        if (!last) sm90_named_arrive(FOUR_ONE_FREE, 256);
        if (n_segments < FOUR) break;
        sm90_named_sync(FOUR_PAIR, 256); /* sums of 2 and 3 are there */
        four_add<N>(c, pair);
        if (!last) sm90_named_arrive(FOUR_PAIR_FREE, 256);
        break;
    case 1:
        if (!first) sm90_named_sync(FOUR_ONE_FREE, 256); /* 0 has read the last tile's */
        four_leave<N>(c, one);
        sm90_named_arrive(FOUR_ONE, 256);
        break;
    case 2:
        sm90_named_sync(FOUR_THREE, 256); /* sums of 3 are there */
        four_add<N>(c, pair);
        four_leave<N>(c, pair);
        sm90_named_arrive(FOUR_PAIR, 256);
        break;
    default:
        if (!first) sm90_named_sync(FOUR_PAIR_FREE, 256); /* 0 has read the last tile's */
        four_leave<N>(c, pair);
        sm90_named_arrive(FOUR_THREE, 256);
    }
}

template <int N, int STAGES>
DEVICE void four_compute(const struct sm90_gemm &g, u32 wg, u32 base, u32 full, u32 empty) {
    using shared = four_shared<N, STAGES>;
    const u32 n_tiles = four_tiles<N>(g), warp = threadIdx.x / 32 % 4;
    const struct four_segment s = four_segment(g, wg);
    const u32 one = base + shared::sums + threadIdx.x % 128 * 16, pair = one + shared::sum_bytes;
    struct many_stage stage = {0, 0};
    float c[N / 2];

    for (u32 i = blockIdx.x; i < n_tiles; i += gridDim.x) {
        four_chain<N, STAGES>(c, s, base + wg * shared::ring_bytes, full, empty, stage);
        four_join<N>(c, g.segments, wg, one, pair, i == blockIdx.x, i + gridDim.x >= n_tiles);
        if (wg == 0) {
            const struct many_tile t = four_tile<N>(g, i);

            many_store<N, false>(c, g, base + shared::staging + warp * (16 * STAGING_PITCH),
                                 t.row + warp * 16, t.end, t.n);
        }
    }
}

template <int N, int STAGES>
DEVICE void four_run(const struct sm90_map *map, const struct sm90_gemm &g) {
    using shared = four_shared<N, STAGES>;
    __shared__ u64 barriers[2][FOUR][STAGES];
    const u32 base = (sm90_shared(many_dynamic) + 1023) & ~1023u;
    /* The same in a warp, and the compiler is to know it: uniform registers do the rest. */
    const u32 warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    const bool copies = warp >= 4 * FOUR;
    const u32 segment = copies ? warp - 4 * FOUR : warp / 4;
    const u32 full = sm90_shared(barriers[0][segment]), empty = sm90_shared(barriers[1][segment]);

    if (threadIdx.x == 0) {
        for (u32 i = 0; i < FOUR * STAGES; i++) {
            sm90_barrier_init(sm90_shared(barriers[0][0]) + 8 * i, 1);
            sm90_barrier_init(sm90_shared(barriers[1][0]) + 8 * i, 4);
        }
        sm90_barrier_init_done();
        sm90_launch_next();
    }
    __syncthreads(); /* nobody touches a barrier before it is made */

    if (copies) {
        if (segment < g.segments)
            four_copy<N, STAGES>(map, g, segment, base + segment * shared::ring_bytes, full,
                                 empty);
    } else {
        sm90_wait_previous(); /* `out` is ours now */
        if (segment < g.segments) four_compute<N, STAGES>(g, segment, base, full, empty);
    }
    sm90_wait_previous(); /* who has no work, too */
}

#endif
