/* sm90_attn_turns - attention of adjacent rows of sequences by two warpgroups that take splits in
 * turns: each key is read once for up to 64 query rows (a query row is a position and a query head of
 * the KV head), and one warpgroup's exponentials run beside the other's steps.
 *
 *   a         see sm90_attn.h; n_shared at most 64; tiles of at most 64 / n_shared rows, the longest
 *             first; counters: one word, zero before and after; n_splits is 1; split_keys below 2^30
 *   grid      at most a block a multiprocessor, at most n_tiles x KV heads
 *   block     384: two warpgroups that compute, two warps that copy, one that helps, one that does not
 *   shared    1024 to align, 2 x STAGES x 64 keys (or values) x D, queries of two units and the
 *             running total, 64 x D of 2 and of 4 bytes
 *   rounding  SPEC 2.7
 *   bound by  HBM, 4 D bytes a key and KV head
 *
 * A unit is a tile and a KV head; a block takes one after the other, and their splits are one
 * sequence, of which warpgroup w has each other one, with a ring and a copier of its own that runs
 * ahead into the next unit.  What a split leaves is folded into the total as soon as the split before
 * is: the total, in the layout of a warpgroup's accumulators, goes from one to the other through
 * shared memory.  Whoever has a unit's last split writes.
 *
 *   barrier      arrives                  waits
 *   told         helper, a unit           copiers, all who compute
 *   taken        copiers, a lane of each  helper: the unit's place is free
 *                warp that computes
 *   full         copier, a page's bytes   its warpgroup
 *   empty        a lane of each warp      copier
 *   query full   helper                   all who compute
 *   query empty  a lane of each warp      helper: the unit before the last is done
 *   named 1 + w  warpgroup w: V of a page is cut
 *   named 4 + w  warpgroup w may fold: the other has folded the split before */
#ifndef LLM42D_PTX_SM90_ATTN_TURNS_CUH
#define LLM42D_PTX_SM90_ATTN_TURNS_CUH

#include "ptx/sm90_attn_many.cuh"

enum {
    TURNS = 2,
    PAGES = BLOCK / PAGE,
    UNITS = 4,
    QUERIES = 2, /* of so many units */
};

/* A tile and a KV head. */
struct turns_unit {
    struct sm90_attn_tile tile;
    u32 head;
};

template <int STAGES>
struct turns_shared {
    struct many_shared<STAGES> rings[TURNS]; /* `bad` is of every other unit */
    u64 told[UNITS], taken[UNITS], query_full[QUERIES], query_empty[QUERIES];
    struct turns_unit units[UNITS];
    float2 totals[WG_ROWS]; /* M and l */
};

template <int N>
struct turns_turn { /* a place in a ring of N */
    u32 index, parity;

    DEVICE_METHOD void next(void) {
        if (++index < N) return;
        index = 0;
        parity ^= 1;
    }
};

template <int D, int STAGES>
struct turns_layout {
    static constexpr u32 page_bytes = PAGE * D * 2, ring_bytes = STAGES * page_bytes;
    static constexpr u32 queries = TURNS * ring_bytes;
    static constexpr u32 query_bytes = WG_ROWS * D * 2;
    static constexpr u32 total = queries + QUERIES * query_bytes;
};

/* The unit after those that were given out; the last to ask leaves zero for the next launch. */
DEVICE u32 turns_fetch(const struct sm90_attn &a, u32 n_units) {
    u32 *counter = (u32 *)a.counters;
    const u32 n = atomicAdd(counter, 1u);

    if (n == n_units - 1) *counter = 0;
    return gridDim.x + n;
}

/* By a warp: units, one after the other, and their queries as wgmma reads them. */
template <int D, int STAGES>
DEVICE void turns_help(const struct sm90_attn &a, struct turns_shared<STAGES> &sh, u32 base) {
    using layout = turns_layout<D, STAGES>;
    const u32 n_units = a.n_tiles * a.n_kv_heads, lane = threadIdx.x % 32;
    turns_turn<UNITS> place = {0, 0};
    turns_turn<QUERIES> query = {0, 0};
    bool waited = false;

    for (u32 unit = blockIdx.x;;) {
        struct sm90_attn_tile tile = {0};
        u32 head = 0;

        for (; unit < n_units; unit = __shfl_sync(0xffffffff, unit, 0)) {
            tile = ((const struct sm90_attn_tile *)a.tiles)[unit / a.n_kv_heads];
            head = unit % a.n_kv_heads;
            if (tile.n_rows) break;
            if (!waited) sm90_wait_previous();
            waited = true;
            if (lane == 0) unit = turns_fetch(a, n_units);
        }
        const bool ends = unit >= n_units;

        if (ends) tile.n_rows = 0;
        sm90_barrier_wait(sm90_shared(&sh.taken[place.index]), place.parity ^ 1);
        __syncwarp(); // all lanes have seen it
        if (lane == 0) {
            sh.units[place.index].tile = tile;
            sh.units[place.index].head = head;
            sm90_barrier_arrive(sm90_shared(&sh.told[place.index]));
        }
        place.next();
        if (!waited) sm90_wait_previous();
        waited = true;
        if (ends) return;
        sm90_barrier_wait(sm90_shared(&sh.query_empty[query.index]), query.parity ^ 1);
        __syncwarp();
        if (lane == 0) sh.rings[query.index].bad = NO_KEY;
        for (u32 e = lane; e < WG_ROWS * (D / 8); e += 32) {
            const u32 r = e / (D / 8), chunk = e % (D / 8) * 8, n_rows = tile.n_rows * a.n_shared;
            const u32 row = min(r, n_rows - 1);

            sm90_copy_or_zero(base + layout::queries + query.index * layout::query_bytes +
                                  2 * SM90_ATTN_AT(r, chunk, D),
                              (const u16 *)a.q + (u64)(tile.row + row / a.n_shared) * a.q_stride +
                                  (head * a.n_shared + row % a.n_shared) * D + chunk,
                              r < n_rows);
        }
        sm90_wait_copied();
        sm90_fence_async();
        __syncwarp();
        if (lane == 0) sm90_barrier_arrive(sm90_shared(&sh.query_full[query.index]));
        query.next();
        if (lane == 0) unit = turns_fetch(a, n_units);
        unit = __shfl_sync(0xffffffff, unit, 0);
    }
}

/* For warpgroup wg; page by page, of keys, then of values of a block. */
template <int D, int STAGES>
DEVICE void turns_copy(const struct sm90_attn &a, struct turns_shared<STAGES> &sh, u32 base, u32 wg) {
    using layout = turns_layout<D, STAGES>;
    struct many_shared<STAGES> &to = sh.rings[wg];
    const u32 ring = base + wg * layout::ring_bytes;
    struct many_stage<STAGES> stage = {0, 0};
    turns_turn<UNITS> place = {0, 0};
    bool waited = false;
    u32 turn = wg; /* 0: the next split is ours */

    for (;; place.next()) {
        sm90_barrier_wait(sm90_shared(&sh.told[place.index]), place.parity);
        const struct sm90_attn_tile tile = sh.units[place.index].tile;
        const u32 head = sh.units[place.index].head;
        const u32 *table = (const u32 *)a.table + (u64)tile.seq * a.n_seq_pages;

        sm90_barrier_arrive(sm90_shared(&sh.taken[place.index]));
        if (tile.n_rows == 0) break;
        for (u32 split = 0; split < tile.end; split += a.split_keys, turn ^= 1) {
            const u32 end = turn ? 0 : min(split + a.split_keys, tile.end);

            for (u32 key = split; key < end; key += BLOCK) {
                const u32 n_pages = min((u32)PAGES, (tile.end - key + PAGE - 1) / PAGE);
                const char *from[PAGES];

                // keys of steps before are on their way while the kernel before us still runs
                if (!waited && key + BLOCK > tile.old) {
                    sm90_wait_previous();
                    waited = true;
                }
#pragma unroll
                for (u32 i = 0; i < PAGES; i++)
                    if (i < n_pages)
                        from[i] = (const char *)a.pages +
                                  2 * SM90_ATTN_PAGE_AT(table[key / PAGE + i], head, 0,
                                                        a.n_kv_heads, D);
#pragma unroll
                for (u32 v = 0; v < 2; v++)
#pragma unroll
                    for (u32 i = 0; i < PAGES; i++) {
                        const u32 full = sm90_shared(&to.full[stage.index]);

                        sm90_barrier_wait(sm90_shared(&to.empty[stage.index]), stage.parity ^ 1);
                        if (i < n_pages) {
                            sm90_barrier_expect(full, layout::page_bytes);
                            sm90_copy(ring + stage.index * layout::page_bytes,
                                      from[i] + v * layout::page_bytes, layout::page_bytes, full);
                        } else {
                            sm90_barrier_arrive(full); // keys that no row sees
                        }
                        stage.next();
                    }
            }
        }
    }
    if (!waited) sm90_wait_previous();
}

struct turns_place {
    u32 wg, ring, queries, total; /* in shared memory; queries: of the unit; total: this thread's */
    u32 seen;                     /* position of the tile's first row: keys that all rows see */
    u32 query;                    /* place of the queries */
};

/* The scores of 64 of a block's 128 keys. */
template <int D>
DEVICE void turns_scores(float (&s)[PAGE / 2], u32 queries, u32 keys) {
    const u32 q = sm90_descriptor_low(queries, 16), k = sm90_descriptor_low(keys, 16);

#pragma unroll
    for (u32 i = 0; i < D / 16; i++)
        sm90_wgmma<PAGE>::run(s, sm90_descriptor(q + i / 4 * 64 + i % 4 * 2, 16 * D),
                              sm90_descriptor(k + i / 4 * 64 + i % 4 * 2, 16 * D), i);
}

template <int D, int STAGES>
DEVICE void turns_cut_page(struct many_shared<STAGES> &noted, const struct sm90_attn_tile &tile,
                           u32 page, u32 start, u32 seen) {
    for (u32 e = threadIdx.x % WG_THREADS; e < PAGE * (D / 8); e += WG_THREADS) {
        const u32 slot = e / (D / 8), at = page + 2 * SM90_ATTN_AT(slot, e % (D / 8) * 8, D);

        many_cut<STAGES>(noted, tile, at, start + slot, seen);
    }
}

/* Sums over block `start`. */
template <int D, int STAGES>
DEVICE void turns_block(const struct sm90_attn &a, const struct sm90_attn_tile &tile,
                        struct turns_shared<STAGES> &sh, const struct turns_place &at,
                        struct many_rows<D> &t, struct many_stage<STAGES> &stage, u32 start) {
    constexpr u32 page_bytes = turns_layout<D, STAGES>::page_bytes;
    struct many_shared<STAGES> &ring = sh.rings[at.wg];
    const u32 lane = threadIdx.x % 32;
    u32 empty[PAGES];

#pragma unroll
    for (u32 i = 0; i < PAGES; i++) {
        sm90_barrier_wait(sm90_shared(&ring.full[stage.index]), stage.parity);
        sm90_wgmma_fence();
        turns_scores<D>(*(float(*)[PAGE / 2])(t.s + i * (PAGE / 2)), at.queries,
                        at.ring + stage.index * page_bytes);
        empty[i] = sm90_shared(&ring.empty[stage.index]);
        sm90_wgmma_commit();
        stage.next();
    }
    sm90_wgmma_wait<0>();
    sm90_pin(t.s);
#pragma unroll
    for (u32 i = 0; i < PAGES; i++)
        if (lane == 0) sm90_barrier_arrive(empty[i]);

    many_weights<D>(t, start, a.c);
    many_pack<D>(t);
    if (!t.fresh && __any_sync(0xffffffff, t.scale[0] != 1.0f || t.scale[1] != 1.0f)) {
#pragma unroll
        for (u32 i = 0; i < D / 2; i++) t.o[i] = t.o[i] * t.scale[i / 2 % 2];
        t.sums[0] = t.sums[0] * t.scale[0];
        t.sums[2] = t.sums[2] * t.scale[1];
    }
    t.sums[1] = t.sums[3] = 0.0f;
#pragma unroll
    for (u32 i = 0; i < STEPS; i++) { // before the steps over values, which it would wait for
        const u32 p[4] = {t.p[4 * i], t.p[4 * i + 1], t.p[4 * i + 2], t.p[4 * i + 3]};

        sm90_mma(t.sums, p, ATTN_ONES, ATTN_ONES);
    }

    struct many_stage<STAGES> values[PAGES];

#pragma unroll
    for (u32 i = 0; i < PAGES; i++) {
        values[i] = stage;
        stage.next();
    }
    if (start + BLOCK > at.seen + 1) {
#pragma unroll
        for (u32 i = 0; i < PAGES; i++) {
            sm90_barrier_wait(sm90_shared(&ring.full[values[i].index]), values[i].parity);
            turns_cut_page<D, STAGES>(sh.rings[at.query], tile,
                                      at.ring + values[i].index * page_bytes, start + i * PAGE,
                                      at.seen);
        }
        sm90_fence_async(); // before wgmma reads, and the copy engine writes here again
        sm90_named_sync(1 + at.wg, WG_THREADS); // the cut, before any warp's steps
    }
#pragma unroll
    for (u32 i = 0; i < PAGES; i++) {
        const u32 low = sm90_descriptor_low(at.ring + values[i].index * page_bytes, 1024);

        sm90_barrier_wait(sm90_shared(&ring.full[values[i].index]), values[i].parity);
        sm90_wgmma_fence();
#pragma unroll
        for (u32 j = 0; j < PAGE / 16; j++)
            sm90_wgmma_across<D>::run(t.o, t.p + i * (PAGE / 4) + 4 * j,
                                      sm90_descriptor(low + j * (2 * D), 16 * D),
                                      i || j || !t.fresh);
        sm90_wgmma_commit();
        empty[i] = sm90_shared(&ring.empty[values[i].index]);
    }
    sm90_wgmma_wait<0>();
    sm90_pin(t.o);
#pragma unroll
    for (u32 i = 0; i < PAGES; i++)
        if (lane == 0) sm90_barrier_arrive(empty[i]);
    t.fresh = false;
}

/* A split is done: into the total, once the split before is; `alone`: no split is before. */
template <int D, int STAGES>
DEVICE void turns_fold(struct turns_shared<STAGES> &sh, const struct turns_place &at,
                       struct many_rows<D> &t, bool alone, bool first, bool last) {
    const u32 r = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;

    if (!alone) sm90_named_sync(4 + at.wg, TURNS * WG_THREADS);
    t.folded = !first;
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        t.total_m[h] = first ? ATTN_M_START : sh.totals[r + 8 * h].x;
        t.total_l[h] = first ? 0.0f : sh.totals[r + 8 * h].y;
    }
    __syncwarp(); // all lanes have read
    many_fold<D>(t, t.m, at.total, last);
    if (!last && threadIdx.x % 4 == 0)
#pragma unroll
        for (u32 h = 0; h < 2; h++)
            sh.totals[r + 8 * h] = make_float2(t.total_m[h], t.total_l[h]);
    sm90_named_arrive(4 + (at.wg ^ 1), TURNS * WG_THREADS);
}

template <int D, int STAGES>
DEVICE void turns_compute(const struct sm90_attn &a, struct turns_shared<STAGES> &sh, u32 base) {
    using layout = turns_layout<D, STAGES>;
    const u32 wg = threadIdx.x / WG_THREADS, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const u32 first = warp * 16;
    struct many_stage<STAGES> stage = {0, 0};
    turns_turn<UNITS> place = {0, 0};
    turns_turn<QUERIES> query = {0, 0};
    struct many_rows<D> t;
    u32 turn = wg; /* 0: the next split is ours */
    bool alone = true; /* it is the block's first */

#pragma unroll
    for (u32 i = 0; i < BLOCK / 4; i++) t.p[i] = 0;
    for (;; place.next(), query.next()) {
        sm90_barrier_wait(sm90_shared(&sh.told[place.index]), place.parity);
        const struct sm90_attn_tile tile = sh.units[place.index].tile;
        const u32 head = sh.units[place.index].head, n_rows = tile.n_rows * a.n_shared;

        __syncwarp(); // all lanes have read
        if (lane == 0) sm90_barrier_arrive(sm90_shared(&sh.taken[place.index]));
        if (tile.n_rows == 0) break;
        const struct turns_place at = {
            wg,
            base + wg * layout::ring_bytes,
            base + layout::queries + query.index * layout::query_bytes,
            base + layout::total + threadIdx.x % WG_THREADS * 16,
            tile.seen,
            query.index};

        t.active = first < n_rows;
        t.first_position = attn_position(a, tile.row + min(first, n_rows - 1) / a.n_shared);
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const u32 r = min(first + lane / 4 + 8 * h, n_rows - 1);

            t.position[h] = attn_position(a, tile.row + r / a.n_shared);
            t.scale[h] = 1.0f;
        }
        sm90_barrier_wait(sm90_shared(&sh.query_full[query.index]), query.parity);
        for (u32 split = 0; split < tile.end; split += a.split_keys, turn ^= 1, alone = false) {
            const u32 end = min(split + a.split_keys, tile.end);

            if (turn) continue;
            t.fresh = true;
            t.m[0] = t.m[1] = ATTN_M_START;
            t.sums[0] = t.sums[2] = 0.0f;
            for (u32 start = split; start < end; start += BLOCK)
                turns_block<D, STAGES>(a, tile, sh, at, t, stage, start);
            turns_fold<D, STAGES>(sh, at, t, alone, split == 0, end == tile.end);
            if (end == tile.end)
                many_write<D>(a, tile, head, t, first, sh.rings[query.index].bad);
        }
        __syncwarp();
        if (lane == 0) sm90_barrier_arrive(sm90_shared(&sh.query_empty[query.index]));
    }
    if (!alone && turn == 0) sm90_named_sync(4 + wg, TURNS * WG_THREADS); // what the other's last fold left
}

template <int D, int STAGES>
DEVICE void turns_run(const struct sm90_attn &a) {
    __shared__ struct turns_shared<STAGES> sh;
    const u32 base = (sm90_shared(many_dynamic) + 1023) & ~1023u, warp = threadIdx.x / 32;

    if (threadIdx.x == 0) {
        for (u32 i = 0; i < TURNS * STAGES; i++) {
            struct many_shared<STAGES> &ring = sh.rings[i / STAGES];

            sm90_barrier_init(sm90_shared(&ring.full[i % STAGES]), 1);
            sm90_barrier_init(sm90_shared(&ring.empty[i % STAGES]), 4);
        }
        for (u32 i = 0; i < UNITS; i++) {
            sm90_barrier_init(sm90_shared(&sh.told[i]), 1);
            sm90_barrier_init(sm90_shared(&sh.taken[i]), TURNS * (1 + 4));
        }
        for (u32 i = 0; i < QUERIES; i++) {
            sm90_barrier_init(sm90_shared(&sh.query_full[i]), 1);
            sm90_barrier_init(sm90_shared(&sh.query_empty[i]), TURNS * 4);
        }
        sm90_barrier_init_done();
    }
    __syncthreads(); // nobody touches a barrier before it is made
    if (threadIdx.x >= TURNS * WG_THREADS) {
        const u32 role = warp - TURNS * 4;

        sm90_give_registers<40>();
        if (role < TURNS && threadIdx.x % 32 == 0)
            turns_copy<D, STAGES>(a, sh, base, role);
        else if (role == TURNS)
            turns_help<D, STAGES>(a, sh, base);
        else
            sm90_wait_previous();
        return;
    }
    sm90_take_registers<232>();
    sm90_wait_previous();
    turns_compute<D, STAGES>(a, sh, base);
    if (threadIdx.x == 0) sm90_launch_next(); // as late as in sm90_attn_few.cuh, and why
}

#endif
