/* sm90_gemm_many - y = W x for many rows of x: bound by the tensor cores, and for some rows by
 * what a multiprocessor can take in.
 *
 *   map       of x: bf16 [n_rows][n_k], boxes of 64 values x height rows, or half of them where x
 *             is shared, 128-byte swizzle, zeros beyond
 *   g         see sm90_gemm.h; out may be neither x nor weights
 *   grid      clusters of 2 blocks, any number, but with SPLIT all on the GPU at once: n_whole a
 *             multiple of them, and no more pieces behind those than there are clusters
 *   block     128 (1 + WGS) threads: a warpgroup that copies, WGS (two, three) that compute 64 rows
 *             of x each
 *   shared    1024 to align, STAGES times (WGS * 8 KB of x, N * 128 bytes of W), then WGS * 9 KB, or
 *             with a tree wider than 128 N times 512 bytes
 *   rounding  SPEC 2.4: chains of k16 steps, tree of fp32 additions, one rounding (or none); 2.6
 *   bound by  tensor cores, and for large ones the card's power limit
 *
 * x is the left operand of wgmma.  A tile has `height` rows of it, at most 64 WGS, for rows past the
 * end take the copy engine longer than rows that are; what stands behind them in shared memory is
 * multiplied, too, and dropped, and a warpgroup that has none of them rests.
 * The blocks of a pair share one operand, of which each fetches half and sends it to both: they
 * have two tiles of rows of x and the same N rows of W, or, with share_x, the same tile of rows of
 * x and N rows of W each.  `group` of them go through all of W together, so that L2 serves the
 * other reads of it.
 * With SEGMENTS > 1 the tree of up to four segments is in registers, N / 2 a thread and level: up
 * to N = 128 all three levels.  Of a wider one two are, and its first half waits in shared memory
 * meanwhile, which leaves the ring three stages: so what comes of W is called into L2 some blocks
 * ahead.
 * With SPLIT, n_splits is 2 or 4: the segments of a tile are spread over as many pairs.  Each has
 * a share of the columns: it leaves its sums of the others' in memory, waits, and adds theirs in
 * tree order.  Before those come n_whole tiles of pairs with all their segments each, full rounds
 * of them, so that what is split is the rest that would leave most of the GPU empty.  A kernel of
 * its own, for beside all that the compiler no longer sees that the steps of the others are the
 * same in all lanes, and they take twice the instructions.
 *
 *   barrier  arrives                                                waits
 *   full     this block's copier, bytes of x and of W               all who compute
 *   empty    a lane of each warp that computes, both blocks         this block's copier
 * A stage is empty when both blocks are done with it, for the peer writes into it, too. */
#ifndef LLM42D_PTX_SM90_GEMM_MANY_CUH
#define LLM42D_PTX_SM90_GEMM_MANY_CUH

#include "ptx/sm90_gemm_turned.cuh"

#define SM90_P24 SM90_P16(0), SM90_P8(16)
#define SM90_P48 SM90_P32(0), SM90_P16(32)
#define SM90_P120 SM90_P112, SM90_P8(112)
#define SM90_P128 SM90_P96, SM90_P32(96)
#define SM90_T120 SM90_T112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define SM90_T128 SM90_T120 ", %120, %121, %122, %123, %124, %125, %126, %127"
SM90_WGMMA(48, SM90_T24, SM90_P24, 24, 25, 26)
SM90_WGMMA(96, SM90_T48, SM90_P48, 48, 49, 50)
SM90_WGMMA(240, SM90_T120, SM90_P120, 120, 121, 122)
SM90_WGMMA(256, SM90_T128, SM90_P128, 128, 129, 130)

enum {
    RANKS = 2,
    ROW_BYTES = 2 * SM90_GEMM_BLOCK,
    WG_THREADS = 128, /* of a warpgroup: the first copies */
    WG_WARPS = 4,
    WG_ROWS = 64,
    WG_BYTES = WG_ROWS * ROW_BYTES, /* of x in a stage */
    WARP_ROWS = 16,
    CHUNK_COLUMNS = 16, /* of the output, staged for full sectors */
    STAGING_PITCH = 144, /* bytes: four chunks, and against bank conflicts */
    AHEAD = 8,           /* blocks of K that W is called into L2 before it is copied */
    BOTH = (1 << RANKS) - 1,
};

template <int N, int STAGES, int WGS>
struct many_shared {
    static constexpr u32 x_bytes = WGS * WG_BYTES;
    static constexpr u32 stage_bytes = x_bytes + N * ROW_BYTES;
    static constexpr u32 ring_bytes = STAGES * stage_bytes;
};

/* Bytes behind the ring that a warp has to itself: where its output is staged, or where half a tree
 * waits, N / 8 times 16 bytes a lane. */
template <int N, int SEGMENTS>
struct many_own {
    static constexpr bool parks = SEGMENTS > 1 && N > 128;
    static constexpr u32 bytes = parks ? N / 8 * 512 : WARP_ROWS * STAGING_PITCH;
};

struct many_stage {
    u32 index, parity;

    DEVICE_METHOD void next(u32 n) {
        if (++index < n) return;
        index = 0;
        parity ^= 1;
    }
};

/* A block's part of a piece of work. */
struct many_tile {
    u32 row, n; /* of x, of W: where they start */
    u32 end;    /* of its rows of x */
    u32 split, n_splits; /* which share of the segments, of how many */
    u32 slot; /* of partial sums: tiles one after another, of each its splits */
};

/* Rows of x and of W that the blocks of a pair have together. */
template <int N>
DEVICE void many_span(const struct sm90_gemm &g, u32 &rows, u32 &columns) {
    rows = g.share_x ? g.height : RANKS * g.height;
    columns = g.share_x ? RANKS * N : N;
}

template <int N, bool SPLIT>
DEVICE u32 many_tiles(const struct sm90_gemm &g) {
    const u32 n_whole = SPLIT ? g.n_whole : 0, n_splits = SPLIT ? g.n_splits : 1;
    u32 rows, columns;

    many_span<N>(g, rows, columns);
    return n_whole +
           ((g.n_rows + rows - 1) / rows * ((g.n + columns - 1) / columns) - n_whole) * n_splits;
}

/* In groups of tiles along the rows of x, each group through all of W. */
template <int N, bool SPLIT>
DEVICE struct many_tile many_tile(const struct sm90_gemm &g, u32 i, u32 rank) {
    const u32 n_whole = SPLIT ? g.n_whole : 0, n_splits = SPLIT ? g.n_splits : 1;
    const bool whole = SPLIT && i < n_whole;
    u32 rows, columns;
    struct many_tile t;

    many_span<N>(g, rows, columns);
    t.n_splits = whole ? 1 : n_splits;
    const u32 n_down = (g.n_rows + rows - 1) / rows, n_across = (g.n + columns - 1) / columns;
    const u32 pair = whole ? i : n_whole + (i - n_whole) / n_splits;
    const u32 of_group = g.group * n_across;
    const u32 first = pair / of_group * g.group, local = pair % of_group;
    const u32 in_group = min(g.group, n_down - first);

    t.split = whole ? 0 : (i - n_whole) % n_splits;
    t.row = (first + local % in_group) * rows + (g.share_x ? 0 : rank * g.height);
    t.end = min(g.n_rows, t.row + g.height);
    t.n = local / in_group * columns + (g.share_x ? rank * N : 0);
    t.slot = ((pair - n_whole) * RANKS + rank) * n_splits; /* of those that are split */
    return t;
}

/* What a lane copies of W: rows that the image has one after another. */
struct many_piece {
    const char *from;
    u32 to, n_bytes; /* in the stage; 0 where the lane has none */
};

template <int N, int WGS>
DEVICE struct many_piece many_piece(const struct sm90_gemm &g, const struct many_tile &t,
                                    u32 rank, u32 first_block) {
    const u32 lane = threadIdx.x % 32;
    /* Where the last pair has one tile of W, the other block computes it again, for nobody. */
    const u32 n = t.n < g.n ? t.n : t.n - N;
    const u32 first = n + (g.share_x ? 0 : rank * (N / RANKS));
    const u32 end = first + (g.share_x ? N : N / RANKS);
    const u32 tile = first / g.tile + lane;
    const u32 row = max(first, tile * g.tile), past = min(end, (tile + 1) * g.tile);
    struct many_piece p;

    p.from = (const char *)g.weights +
             (((u64)tile * g.n_blocks + first_block) * g.tile + (row - tile * g.tile)) * ROW_BYTES;
    p.to = WGS * WG_BYTES + (row - n) * ROW_BYTES;
    p.n_bytes = row < past ? (past - row) * ROW_BYTES : 0;
    return p;
}

/* By a warp: a lane a piece of W, and one that tells the barrier. */
template <int N>
DEVICE void many_copy_weights(const struct sm90_gemm &g, struct many_piece &p, u32 to, u32 full,
                              u64 policy) {
    if (threadIdx.x % 32 == 0) sm90_barrier_expect(full, (g.height + N) * ROW_BYTES);
    if (p.n_bytes && g.share_x) sm90_copy_policy(to + p.to, p.from, p.n_bytes, full, policy);
    if (p.n_bytes && !g.share_x)
        sm90_copy_multicast_policy(to + p.to, p.from, p.n_bytes, full, BOTH, policy);
    p.from += g.tile * ROW_BYTES;
}

/* The same rows of W some blocks of K further, into L2. */
DEVICE void many_call(const struct sm90_gemm &g, const struct many_piece &p, u32 n_ahead) {
    if (p.n_bytes) sm90_prefetch(p.from + n_ahead * g.tile * ROW_BYTES, p.n_bytes);
}

DEVICE void many_copy_rows(const struct sm90_map *map, const struct sm90_gemm &g, u32 rank,
                           u32 block, u32 row, u32 to, u32 full) {
    if (threadIdx.x % 32 != 0) return;
    if (g.share_x)
        sm90_copy_tile_multicast(to + rank * (g.height / 2 * ROW_BYTES), map,
                                 block * SM90_GEMM_BLOCK, row + rank * (g.height / 2), full, BOTH);
    else
        sm90_copy_tile(to, map, block * SM90_GEMM_BLOCK, row, full);
}

/* One warp.  Weights depend on no kernel: the first come before the kernel before is done. */
template <int N, int STAGES, int SEGMENTS, bool SPLIT, int WGS>
DEVICE void many_copy(const struct sm90_map *map, const struct sm90_gemm &g, u32 ring, u32 full,
                      u32 empty, u32 rank) {
    using shared = many_shared<N, STAGES, WGS>;
    constexpr bool parks = many_own<N, SEGMENTS>::parks;
    const u32 n_tiles = many_tiles<N, SPLIT>(g);
    /* Weights that are read once leave L2 to what is read again, the code of kernels too. */
    const u64 policy = g.once ? sm90_policy_evict_first() : sm90_policy_normal();
    struct many_stage stage = {0, 0};

    for (u32 i = blockIdx.x / RANKS; i < n_tiles; i += gridDim.x / RANKS) {
        const struct many_tile t = many_tile<N, SPLIT>(g, i, rank);
        const u32 n_blocks = g.n_blocks / t.n_splits, first = t.split * n_blocks;
        /* Of those that go through W together, one pair calls for it. */
        const bool calls = parks && t.row < (g.share_x ? 1 : RANKS) * g.height;
        const u32 n_early = i < gridDim.x / RANKS ? min((u32)STAGES, n_blocks) : 0;
        struct many_piece piece = many_piece<N, WGS>(g, t, rank, first);

        for (u32 b = 0; b < n_early; b++)
            many_copy_weights<N>(g, piece, ring + b * shared::stage_bytes, full + 8 * b,
                                 policy);
        if (n_early && threadIdx.x == 0) sm90_map_ahead(map);
        for (u32 b = 0; calls && b < AHEAD && n_early + b < n_blocks; b++)
            many_call(g, piece, b);
        if (n_early) sm90_wait_previous();
#pragma unroll 4
        for (u32 b = 0; b < n_blocks; b++) {
            const u32 to = ring + stage.index * shared::stage_bytes;

            sm90_barrier_wait(empty + 8 * stage.index, stage.parity ^ 1);
            __syncwarp(); /* a lane without a piece must not miss a round */
            if (b >= n_early)
                many_copy_weights<N>(g, piece, to, full + 8 * stage.index, policy);
            many_copy_rows(map, g, rank, first + b, t.row, to, full + 8 * stage.index);
            /* The piece has moved on to the block after this one. */
            if (calls && b >= n_early && b + AHEAD < n_blocks) many_call(g, piece, AHEAD - 1);
            stage.next(STAGES);
        }
    }
    sm90_wait_previous(); /* who has no work, too */
}

/* One segment: c = chain(+0, ..). */
template <int N, int STAGES, int WGS>
DEVICE void many_chain(float (&c)[N / 2], u32 n_blocks, u32 ring, u32 full, u32 empty,
                       struct many_stage &stage, u32 wg) {
    using shared = many_shared<N, STAGES, WGS>;
    const u32 lane = threadIdx.x % 32;
    const u32 x0 = sm90_descriptor_low(ring + wg * WG_BYTES, 16);
    const u32 w0 = sm90_descriptor_low(ring + shared::x_bytes, 16);
    u32 old = 0;

    sm90_pin(c);
    for (u32 b = 0; b < n_blocks; b++) {
        const u32 x = x0 + stage.index * (shared::stage_bytes / 16);
        const u32 w = w0 + stage.index * (shared::stage_bytes / 16);

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

/* Values of this thread that wait in shared memory, and come back on the left of a sum. */
template <int N>
DEVICE void many_park(const float (&c)[N / 2], u32 own) {
    const u32 to = own + threadIdx.x % 32 * 16;

    __syncwarp(); /* what was staged here before has been read */
#pragma unroll
    for (int i = 0; i < N / 8; i++)
        sm90_store_shared(to + i * 512,
                          make_uint4(num_bits(c[4 * i]), num_bits(c[4 * i + 1]),
                                     num_bits(c[4 * i + 2]), num_bits(c[4 * i + 3])));
}

template <int N>
DEVICE void many_add_parked(float (&c)[N / 2], u32 own) {
    const u32 from = own + threadIdx.x % 32 * 16;

#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        const uint4 left = sm90_load_shared(from + i * 512);

        c[4 * i] = num_from_bits(left.x) + c[4 * i];
        c[4 * i + 1] = num_from_bits(left.y) + c[4 * i + 1];
        c[4 * i + 2] = num_from_bits(left.z) + c[4 * i + 2];
        c[4 * i + 3] = num_from_bits(left.w) + c[4 * i + 3];
    }
}

/* A warp's 16 rows of the output, CHUNKS of 16 columns (the last of them of 8 where there is a HALF),
 * from fragments as stmatrix takes them:
 * through shared memory, so that lanes next to each other have 16 adjacent bytes each and a store
 * touches few lines.  All stores to shared memory go first, then all loads: one latency, not one
 * a chunk. */
template <int CHUNKS, bool HALF>
DEVICE void many_put(const struct sm90_gemm &g, u32 staging, u32 row, u32 end, u32 column,
                     u32 n_columns, const u32 (&pairs)[CHUNKS][4]) {
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

        v[i] = sm90_load_shared(staging + e / pieces * STAGING_PITCH + e % pieces * 16);
    }
#pragma unroll
    for (u32 i = 0; i < CHUNKS; i++) {
        const u32 e = i * 32 + lane, r = row + e / pieces, c = column + e % pieces * 8;
        uint4 *out = (uint4 *)((u16 *)g.out + (u64)r * g.out_stride + c);

        if (r >= end || c >= n_columns || (HALF && e % pieces == pieces - 1)) continue;
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
                             u32 row, u32 end, u32 n) {
    constexpr int chunks = END - FIRST < AT_ONCE ? END - FIRST : AT_ONCE;
    u32 pairs[chunks][4];

#pragma unroll
    for (u32 j = 0; j < chunks; j++)
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            pairs[j][i] = sm90_pack(c[8 * (FIRST + j) + 2 * i], c[8 * (FIRST + j) + 2 * i + 1]);
    many_put<chunks, false>(g, staging, row, end, n + FIRST * CHUNK_COLUMNS, g.n, pairs);
    if constexpr (FIRST + chunks < END)
        many_store_plain<N, FIRST + chunks, END, AT_ONCE>(c, g, staging, row, end, n);
}

/* Chunks of the gated columns, N / 2 of them: of N not a multiple of 32 the last one is half. */
template <int N, int FIRST, int END>
DEVICE void many_store_gated(const float (&c)[N / 2], const struct sm90_gemm &g, u32 staging,
                             u32 row, u32 end, u32 n) {
    constexpr int chunks = END - FIRST < 4 ? END - FIRST : 4;
    constexpr bool half = FIRST + chunks == END && N % 32;
    const u32 r = row + threadIdx.x % 32 / 4;
    u32 pairs[chunks][4], rare[2] = {0, 0}; /* of this row and of the eighth after it */

#pragma unroll
    for (u32 j = 0; j < chunks; j++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 at = 16 * (FIRST + j) + i / 2 * 8 + i % 2 * 2; /* of gate; up is 4 further */

            pairs[j][i] = 0;
            if (at < N / 2)
                pairs[j][i] = gemm_gated_fast(sm90_pack(c[at], c[at + 1]),
                                              sm90_pack(c[at + 4], c[at + 5]), rare[i % 2]);
        }
    /* Apart from the others, for this is code of many kilobytes, which fetching alone makes slow;
     * what stands in rows past the end is no reason to. */
    if (__any_sync(0xffffffff, (r < end && rare[0]) || (r + 8 < end && rare[1])))
#pragma unroll
        for (u32 j = 0; j < chunks; j++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 at = 16 * (FIRST + j) + i / 2 * 8 + i % 2 * 2;

                if (at < N / 2)
                    pairs[j][i] =
                        gemm_gated(sm90_pack(c[at], c[at + 1]), sm90_pack(c[at + 4], c[at + 5]));
            }
    many_put<chunks, half>(g, staging, row, end, n / 2 + FIRST * CHUNK_COLUMNS, g.n / 2, pairs);
    if constexpr (FIRST + chunks < END)
        many_store_gated<N, FIRST + chunks, END>(c, g, staging, row, end, n);
}

/* A chunk of row `row` and of the eighth after it: both halves of eight pairs. */
template <u32 COUNT>
DEVICE void many_put_turned(const struct sm90_gemm &g, const struct turned_columns &columns,
                            const struct turned_place *places, u32 staged, u32 row, u32 end) {
    const struct sm90_gemm_turn &n = g.turn;
    uint4 a[COUNT], b[COUNT], cos[COUNT], sin[COUNT];

#pragma unroll
    for (u32 i = 0; i < COUNT; i++) {
        if (row + i * 8 >= end) continue;
        a[i] = sm90_load_shared(staged + i * 8 * STAGING_PITCH);
        b[i] = sm90_load_shared(staged + i * 8 * STAGING_PITCH + 16);
        if (columns.turned) {
            const u64 from = (u64)places[i * 8].position * (n.head_dim / 2) + columns.low;

            cos[i] = *(const uint4 *)((const u16 *)n.cos + from);
            sin[i] = *(const uint4 *)((const u16 *)n.sin + from);
        }
    }
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) {
        if (row + i * 8 >= end) continue;
        const struct turned_place place = places[i * 8];
        u16 *out = columns.out(g, row + i * 8);

        if (columns.turned) rotary_eight(a[i], b[i], cos[i], sin[i]);
        *(uint4 *)(out + columns.low) = a[i];
        *(uint4 *)(out + columns.high) = b[i];
        if (columns.stored(n, place)) {
            const u32 slot = place.position % SM90_ATTN_PAGE;
            u16 *kv = columns.kv(n, place);

            *(uint4 *)(kv + SM90_KV_AT(slot, columns.low, n.head_dim)) = a[i];
            *(uint4 *)(kv + SM90_KV_AT(slot, columns.high, n.head_dim)) = b[i];
        }
    }
}

/* Queries, keys and values of a warp's rows of x: a lane has two rows, and of these a chunk of four,
 * which is both halves of eight pairs of a head.  Four lanes write 64 bytes in a row. */
template <int N, int FIRST, int END>
DEVICE void many_store_turned(const float (&c)[N / 2], const struct sm90_gemm &g,
                              const struct turned_place *places, u32 staging, u32 row, u32 end,
                              u32 n) {
    constexpr u32 chunks = END - FIRST < 4 ? END - FIRST : 4;
    constexpr u32 AT_ONCE = N <= 96 ? 2 : 1; /* as registers suffice */
    const u32 lane = threadIdx.x % 32, chunk = lane % 4;
    const u32 at = n + (FIRST + chunk) * CHUNK_COLUMNS;
    const u32 to = staging + (lane % 16) * STAGING_PITCH + lane / 16 * 16;
    struct turned_columns columns;

    __syncwarp(); /* what was here before has been read */
#pragma unroll
    for (u32 j = 0; j < chunks; j++) {
        const u32 i = 8 * (FIRST + j);

        sm90_store_matrices(to + j * 32, sm90_pack(c[i], c[i + 1]), sm90_pack(c[i + 2], c[i + 3]),
                            sm90_pack(c[i + 4], c[i + 5]), sm90_pack(c[i + 6], c[i + 7]));
    }
    __syncwarp(); /* lanes read what others wrote */
    if (chunk < chunks && at < g.n) {
        columns.set(g.turn, at);
#pragma unroll 1
        for (u32 half = 0; half < 2; half += AT_ONCE) {
            const u32 token = half * 8 + lane / 4;

            many_put_turned<AT_ONCE>(g, columns, places + token,
                                     staging + token * STAGING_PITCH + chunk * 32, row + token,
                                     end);
        }
    }
    if constexpr (FIRST + chunks < END)
        many_store_turned<N, FIRST + chunks, END>(c, g, places, staging, row, end, n);
}

template <int N>
DEVICE void many_store_f32(const float (&c)[N / 2], const struct sm90_gemm &g, u32 row, u32 end,
                           u32 n) {
    const u32 lane = threadIdx.x % 32;

#pragma unroll
    for (u32 j = 0; j < N / 8; j++)
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 r = row + lane / 4 + half * 8, column = n + j * 8 + lane % 4 * 2;
            float2 *to = (float2 *)((float *)g.out + (u64)r * g.out_stride + column);

            if (r < end && column < g.n)
                *to = make_float2(c[4 * j + 2 * half], c[4 * j + 2 * half + 1]);
        }
}

/* WHOLE: of sums that are no trees, and the image may be one of gate and up, for which tiles of 48 are
 * not chosen; else registers are few. */
template <int N, bool WHOLE>
DEVICE void many_store(const float (&c)[N / 2], const struct sm90_gemm &g, u32 staging, u32 row,
                       u32 end, u32 n) {
    constexpr int chunks = N / CHUNK_COLUMNS;

    if (g.form == SM90_GEMM_F32) {
        many_store_f32<N>(c, g, row, end, n);
        return;
    }
    if constexpr (WHOLE && N >= 96) {
        if (g.form == SM90_GEMM_SILU) {
            many_store_gated<N, 0, (chunks + 1) / 2>(c, g, staging, row, end, n);
            return;
        }
    }
    many_store_plain<N, 0, chunks, WHOLE ? 4 : 2>(c, g, staging, row, end, n);
}

/* Where blocks that share the segments of a tile leave sums for each other, and how many warps have
 * brought theirs, for two and for four blocks; zeros at first. */
enum {
    SPLIT_THREADS = 2 * WG_THREADS,
    SPLIT_WARPS = 2 * WG_WARPS,
    PARTS = SM90_GEMM_BLOCKS_MAX * 128 / 8 * SPLIT_THREADS, /* up to N = 128 */
    COUNTS = SM90_GEMM_BLOCKS_MAX * SPLIT_WARPS,
};

struct many_room {
    float4 *parts; /* [PARTS] */
    u32 *counts;   /* [2 * COUNTS] */
};

/* The root of the tree of SPLITS subtrees, of the share of the columns that is this block's, number
 * MINE.  What it has of the others' goes to memory, [N / 8][SPLIT_THREADS] times four values a
 * block, and theirs comes from there: a warp's from the same warp of the other blocks. */
template <int N, int SPLITS, int MINE>
DEVICE void many_join_as(const float (&c)[N / 2], const struct sm90_gemm &g,
                         const struct many_room &room, const struct many_tile &t, u32 staging,
                         u32 row) {
    static_assert(N <= 128, "PARTS");
    constexpr u32 fours = N / 8, share = fours / SPLITS;
    const u32 thread = threadIdx.x - WG_THREADS, warp = thread / 32;
    float4 *const parts = room.parts + t.slot * (fours * SPLIT_THREADS) + thread;
    float y[N / 2 / SPLITS];

#pragma unroll
    for (u32 i = 0; i < fours; i++)
        if (i / share != MINE)
            parts[(MINE * fours + i) * SPLIT_THREADS] =
                make_float4(c[4 * i], c[4 * i + 1], c[4 * i + 2], c[4 * i + 3]);
    __syncwarp(); /* the one who tells of them has seen them */
    if (thread % 32 == 0) {
        /* Counts on and on: whoever comes is one of the SPLITS of this time. */
        u32 *const count = room.counts + (SPLITS == 4 ? COUNTS : 0) +
                           t.slot / SPLITS * SPLIT_WARPS + warp;
        const u32 before = sm90_count(count);

        while (sm90_counted(count) / SPLITS == before / SPLITS) continue;
        sm90_fence_counted();
    }
    __syncwarp(); /* they are all there */
#pragma unroll
    for (u32 i = 0; i < share; i++) {
        const u32 own = 4 * (MINE * share + i);
        float4 p[SPLITS];

#pragma unroll
        for (u32 s = 0; s < SPLITS; s++)
            p[s] = s == MINE ? make_float4(c[own], c[own + 1], c[own + 2], c[own + 3])
                             : __ldcg(parts + (s * fours + MINE * share + i) * SPLIT_THREADS);
#pragma unroll
        for (u32 step = 1; step < SPLITS; step *= 2)
#pragma unroll
            for (u32 s = 0; s < SPLITS; s += 2 * step)
                p[s] = make_float4(p[s].x + p[s + step].x, p[s].y + p[s + step].y,
                                   p[s].z + p[s + step].z, p[s].w + p[s + step].w);
        y[4 * i] = p[0].x;
        y[4 * i + 1] = p[0].y;
        y[4 * i + 2] = p[0].z;
        y[4 * i + 3] = p[0].w;
    }
    many_store<N / SPLITS, false>(y, g, staging, row, t.end, t.n + MINE * (N / SPLITS));
}

/* Registers are addressed by constants alone. */
template <int N, int SPLITS, int MINE = 0>
DEVICE void many_join(const float (&c)[N / 2], const struct sm90_gemm &g,
                      const struct many_room &room, const struct many_tile &t, u32 staging,
                      u32 row) {
    if (t.split == MINE)
        many_join_as<N, SPLITS, MINE>(c, g, room, t, staging, row);
    else if constexpr (MINE + 1 < SPLITS)
        many_join<N, SPLITS, MINE + 1>(c, g, room, t, staging, row);
}

/* SEGMENTS: of a block, at most, 1 or 4. */
template <int N, int STAGES, int SEGMENTS, int WGS>
DEVICE void many_tree(float (&c)[N / 2], u32 n_segments, u32 n_blocks, u32 ring, u32 full,
                      u32 empty, struct many_stage &stage, u32 wg, u32 own) {
    many_chain<N, STAGES, WGS>(c, n_blocks, ring, full, empty, stage, wg);
    if constexpr (many_own<N, SEGMENTS>::parks) {
        float p[N / 2] = {0};

#pragma unroll 1
        for (u32 s = 1; s < n_segments; s += 2) {
            if (s > 1) {
                many_park<N>(c, own);
                many_chain<N, STAGES, WGS>(c, n_blocks, ring, full, empty, stage, wg);
            }
            many_chain<N, STAGES, WGS>(p, n_blocks, ring, full, empty, stage, wg);
            many_add<N>(c, c, p);
            if (s > 1) many_add_parked<N>(c, own);
        }
    } else if constexpr (SEGMENTS > 1) {
        float p[N / 2] = {0}, q[N / 2] = {0};

        if (n_segments > 1) {
            many_chain<N, STAGES, WGS>(p, n_blocks, ring, full, empty, stage, wg);
            many_add<N>(c, c, p);
        }
        if (n_segments > 2) {
            many_chain<N, STAGES, WGS>(p, n_blocks, ring, full, empty, stage, wg);
            many_chain<N, STAGES, WGS>(q, n_blocks, ring, full, empty, stage, wg);
            many_add<N>(p, p, q);
            many_add<N>(c, c, p);
        }
    }
}

/* Of a warp's rows of a tile, the first of which is `first` of it: on their way while the products
 * are. */
template <int N>
DEVICE void many_places(const struct sm90_gemm &g, struct turned_place *places, u32 i, u32 rank,
                        u32 first) {
    const struct many_tile t = many_tile<N, false>(g, i, rank);
    const u32 lane = threadIdx.x % 32, row = t.row + first + lane;

    __syncwarp(); /* those of the tile before have been read */
    if (lane < WARP_ROWS && row < t.end) places[lane] = turned_place(g.turn, row);
}

template <int N, int STAGES, int SEGMENTS, bool SPLIT, int WGS>
DEVICE void many_compute(const struct sm90_gemm &g, const struct many_room &room,
                         struct turned_place *places, u32 ring, u32 staging, u32 full, u32 empty,
                         u32 rank, u32 wg) {
    const u32 n_tiles = many_tiles<N, SPLIT>(g), warp = threadIdx.x / 32 % 4;
    const u32 n_blocks = g.n_blocks / g.segments, n_share = g.segments / (SPLIT ? g.n_splits : 1);
    const bool turned = SEGMENTS == 1 && g.form == SM90_GEMM_TURNED; /* else registers are few */
    struct many_stage stage = {0, 0};

    for (u32 i = blockIdx.x / RANKS; i < n_tiles; i += gridDim.x / RANKS) {
        const bool whole = SPLIT && i < g.n_whole;
        const u32 n_segments = whole ? g.segments : n_share;
        float c[N / 2] = {0}; /* here, as p and q: else they are kept while we store */

        if (turned) many_places<N>(g, places, i, rank, wg * WG_ROWS + warp * WARP_ROWS);
        many_tree<N, STAGES, SEGMENTS, WGS>(c, n_segments, n_blocks, ring, full, empty, stage, wg,
                                            staging);
        /* Not before: registers are few up to here. */
        const struct many_tile t = many_tile<N, SPLIT>(g, i, rank);
        const u32 row = t.row + wg * WG_ROWS + warp * WARP_ROWS;

        if (g.next == SM90_GEMM_NEXT_LAST_TILE && threadIdx.x == WG_THREADS &&
            i + gridDim.x / RANKS >= n_tiles)
            sm90_launch_next();
        if constexpr (SPLIT) {
            if (whole) {
                many_store<N, false>(c, g, staging, row, t.end, t.n);
                continue;
            }
            if (g.n_splits == 2)
                many_join<N, 2>(c, g, room, t, staging, row);
            else
                many_join<N, 4>(c, g, room, t, staging, row);
            break; /* there is no other behind it */
        } else {
            if constexpr (SEGMENTS == 1)
                if (turned) {
                    many_store_turned<N, 0, N / CHUNK_COLUMNS>(c, g, places, staging, row, t.end,
                                                               t.n);
                    continue;
                }
            many_store<N, SEGMENTS == 1>(c, g, staging, row, t.end, t.n);
        }
    }
}

extern __shared__ unsigned char many_dynamic[];

template <int N, int STAGES, int SEGMENTS, bool SPLIT, int WGS = 2>
DEVICE void many_run(const struct sm90_map *map, const struct sm90_gemm &g,
                     const struct many_room &room = {}) {
    static_assert(!SPLIT || WGS == 2, "SPLIT_WARPS");
    __shared__ u64 barriers[2][STAGES];
    __shared__ struct turned_place places[WGS * WG_WARPS][WARP_ROWS];
    const u32 ring = (sm90_shared(many_dynamic) + 1023) & ~1023u;
    const u32 full = sm90_shared(barriers[0]), empty = sm90_shared(barriers[1]);
    const u32 rank = sm90_cluster_rank();
    const u32 n_compute = (g.height + WG_ROWS - 1) / WG_ROWS * WG_WARPS;

    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            sm90_barrier_init(full + 8 * i, 1);
            sm90_barrier_init(empty + 8 * i, RANKS * n_compute);
        }
        sm90_barrier_init_done();
        if (g.next == SM90_GEMM_NEXT_AT_ONCE) sm90_launch_next();
    }
    sm90_cluster_sync(); /* the peer's barriers are made, too */

    if (threadIdx.x < WG_THREADS) {
        sm90_give_registers<WGS == 2 ? 56 : 40>();
        if (threadIdx.x < 32)
            many_copy<N, STAGES, SEGMENTS, SPLIT, WGS>(map, g, ring, full, empty, rank);
        __syncwarp();
    } else {
        /* The same in a warp, and the compiler is to know it: uniform registers do the rest. */
        const u32 warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0) - WG_WARPS;

        sm90_take_registers<WGS == 2 ? 224 : 152>();
        sm90_wait_previous(); /* `out` is ours now, and partial sums */
        if (warp < n_compute)
            many_compute<N, STAGES, SEGMENTS, SPLIT, WGS>(
                g, room, places[warp], ring,
                ring + many_shared<N, STAGES, WGS>::ring_bytes +
                    warp * many_own<N, SEGMENTS>::bytes,
                full, empty, rank, warp / WG_WARPS);
    }
    __syncwarp();
    sm90_cluster_sync(); /* the peer may still arrive at our barriers */
}

#endif
