/* sm90_attn_many - attention of adjacent rows of a sequence: each key is read once for up to 64
 * query rows a warpgroup (a query row is a position and a query head of the KV head).
 *
 *   a         see sm90_attn.h; n_shared at most 64; tiles of at most 64 WGS / n_shared rows
 *   grid      (KV heads, tiles, n_splits)
 *   block     WGS warpgroups that compute, then one that copies (WGS == 2) or one warp
 *   shared    1024 to align, STAGES x 128 keys (or values) x D, then for each warpgroup queries
 *             and running totals, 64 x D of 2 and of 4 bytes
 *   rounding  SPEC 2.7
 *   bound by  tensor cores and the exponentials between them
 *
 * Scores of the next block are under way while the weights of this one are computed; of two
 * warpgroups one computes weights while the other's steps run.  With n_splits == 1 a block folds splits where they end; else it has
 * one, and the last block of a tile to finish folds them all, or, where all run at once, each a share.
 *
 *   barrier      arrives                 waits
 *   full         copier, the bytes       all who compute
 *   empty        a lane of each warp     copier
 *   named 1 + w  warpgroup w: its queries are there; then V of the last block is cut
 *   named 3      all who compute: nobody will find another bad value; then parts are written
 *   named 4 + w  warpgroup w may issue its steps: the other has */
#ifndef LLM42D_PTX_SM90_ATTN_MANY_CUH
#define LLM42D_PTX_SM90_ATTN_MANY_CUH

#include "ptx/sm90_attn.cuh"

enum {
    WG_THREADS = 128,
    WG_ROWS = SM90_ATTN_ROWS,
    BLOCK = SM90_ATTN_BLOCK,
    PAGE = SM90_ATTN_PAGE,
    STEPS = BLOCK / 16, /* of keys */
    NO_KEY = 0x7fffffff,
};

template <int D, int WGS, int STAGES>
struct many_layout {
    static constexpr u32 page_bytes = PAGE * D * 2, stage_bytes = BLOCK * D * 2;
    static constexpr u32 queries = STAGES * stage_bytes;
    static constexpr u32 totals = queries + WGS * WG_ROWS * D * 2;
    static constexpr u32 atom_stride = 16 * D; /* between atoms of eight positions */
};

template <int STAGES>
struct many_shared {
    u64 full[STAGES], empty[STAGES];
    u32 count; /* of parts before ours */
    u32 bad; /* the first key whose values are not finite, of those that not all rows see */
};

template <int STAGES>
struct many_stage {
    u32 index, parity;

    DEVICE_METHOD void next(void) {
        if (++index < STAGES) return;
        index = 0;
        parity ^= 1;
    }
};

/* Keys first .. end - 1 of a tile. */
struct many_unit {
    u32 first, end;
    u32 n_parts, part, slot; /* of the tile, this one's, the first one's place */
};

DEVICE struct many_unit many_unit(const struct sm90_attn &a, const struct sm90_attn_tile &tile) {
    struct many_unit u;

    u.part = blockIdx.z;
    u.n_parts = a.n_splits == 1 ? 1 : (tile.end + a.split_keys - 1) / a.split_keys;
    u.slot = (blockIdx.y * gridDim.x + blockIdx.x) * a.n_splits;
    u.first = u.part * a.split_keys;
    u.end = a.n_splits == 1 ? tile.end : min(u.first + a.split_keys, tile.end);
    return u;
}

template <int D, int WGS, int STAGES>
DEVICE void many_copy(const struct sm90_attn &a, const struct sm90_attn_tile &tile,
                      const struct many_unit &unit, struct many_shared<STAGES> &sh, u32 ring) {
    using layout = many_layout<D, WGS, STAGES>;
    const u32 *table = (const u32 *)a.table + (u64)tile.seq * a.n_seq_pages;
    struct many_stage<STAGES> stage = {0, 0};
    bool waited = false;

    for (u32 key = unit.first; key < unit.end; key += BLOCK) {
        const u32 n_pages = min(2u, (unit.end - key + PAGE - 1) / PAGE);
        const char *from[2];

        // keys of steps before are on their way while the kernel before us still runs
        if (!waited && key + BLOCK > tile.old) {
            sm90_wait_previous();
            waited = true;
        }
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            if (i < n_pages)
                from[i] = (const char *)a.pages +
                          2 * SM90_ATTN_PAGE_AT(table[key / PAGE + i], blockIdx.x, 0,
                                                a.n_kv_heads, D);
#pragma unroll
        for (u32 v = 0; v < 2; v++) {
            const u32 full = sm90_shared(&sh.full[stage.index]);

            sm90_barrier_wait(sm90_shared(&sh.empty[stage.index]), stage.parity ^ 1);
            sm90_barrier_expect(full, n_pages * layout::page_bytes);
#pragma unroll
            for (u32 i = 0; i < 2; i++)
                if (i < n_pages)
                    sm90_copy(ring + stage.index * layout::stage_bytes + i * layout::page_bytes,
                              from[i] + v * layout::page_bytes, layout::page_bytes, full);
            stage.next();
        }
    }
    if (!waited) sm90_wait_previous();
}

/* A thread's share of 64 query rows: rows r and r + 8 of its warp's 16. */
template <int D>
struct many_rows {
    float s[BLOCK / 2]; /* scores, then weights, of one block */
    u32 p[BLOCK / 4];   /* weights in bf16 */
    float o[D / 2], sums[4];
    float m[2], scale[2];
    float total_m[2], total_l[2];
    u32 position[2];
    u32 first_position; /* of the warp */
    bool active;        /* the warp has a row */
    bool fresh;         /* o is not begun */
    bool folded;        /* the total is */
};

template <int D>
DEVICE void many_scores(struct many_rows<D> &t, u32 queries, u32 keys) {
    const u32 q = sm90_descriptor_low(queries, 16), k = sm90_descriptor_low(keys, 16);

    sm90_wgmma_fence();
#pragma unroll
    for (u32 i = 0; i < D / 16; i++)
        sm90_wgmma<BLOCK>::run(t.s, sm90_descriptor(q + i / 4 * 64 + i % 4 * 2, 16 * D),
                               sm90_descriptor(k + i / 4 * 64 + i % 4 * 2, 16 * D), i);
    sm90_wgmma_commit();
}

/* Scores to weights, and what they do to M.  MASKED: some row does not see all 128 keys. */
template <int D, bool MASKED>
DEVICE void many_weights_of(struct many_rows<D> &t, u32 start, float c) {
    const u32 q = threadIdx.x % 4 * 2;
    int limit[2];
    float top[2], m[2];

#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        limit[h] = (int)t.position[h] - (int)(start + q); /* keys of this lane up to here */
        top[h] = -NUM_INFINITY;
    }
#pragma unroll
    for (u32 i = 0; i < BLOCK / 2; i++) {
        const int key = (int)(i / 4 * 8 + i % 2);

        if (MASKED && key > limit[i / 2 % 2]) t.s[i] = -NUM_INFINITY;
        top[i / 2 % 2] = fmaxf(top[i / 2 % 2], t.s[i]);
    }
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffff, top[h], 1));
        top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffff, top[h], 2));
        m[h] = attn_max(t.m[h], top[h], c);
        t.scale[h] = attn_pow2(t.m[h] - m[h]);
        t.m[h] = m[h];
    }
#pragma unroll
    for (u32 i = 0; i < BLOCK / 2; i++) {
        const int key = (int)(i / 4 * 8 + i % 2);
        float w = attn_weight(t.s[i], c, m[i / 2 % 2]);

        if (MASKED && key > limit[i / 2 % 2]) w = 0.0f;
        t.s[i] = w;
    }
}

template <int D>
DEVICE void many_weights(struct many_rows<D> &t, u32 start, float c) {
    if (!t.active) return;
    if (start + BLOCK - 1 > t.first_position)
        many_weights_of<D, true>(t, start, c);
    else
        many_weights_of<D, false>(t, start, c);
}

template <int D>
DEVICE void many_pack(struct many_rows<D> &t) {
    if (!t.active) return;
#pragma unroll
    for (u32 i = 0; i < BLOCK / 4; i++) t.p[i] = sm90_pack(t.s[2 * i], t.s[2 * i + 1]);
}

/* Eight values of a key of a block that not all rows see whole: past the end of the sequence they may
 * be anything, and those of keys that a row does not see may be not finite; 0 times either is not 0.
 * Where such a key is seen, the row's result is not finite either way, so zero will do, and a note. */
template <int STAGES>
DEVICE void many_cut(struct many_shared<STAGES> &sh, const struct sm90_attn_tile &tile, u32 at,
                     u32 key, u32 seen) {
    u32 v[4], bad = 0;

    if (key <= seen) return;
    if (key < tile.end) {
        sm90_load4(v, at);
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            bad |= (v[i] & 0x7f80) == 0x7f80 || (v[i] & 0x7f800000) == 0x7f800000;
        if (!bad) return;
        atomicMin(&sh.bad, key);
    }
    sm90_fill4(at, 0);
}

template <int D, int STAGES>
DEVICE void many_cut_values(struct many_shared<STAGES> &sh, const struct sm90_attn_tile &tile,
                            u32 stage, u32 start, u32 seen) {
    for (u32 e = threadIdx.x % WG_THREADS; e < BLOCK * (D / 8); e += WG_THREADS) {
        const u32 key = e / (D / 8), chunk = e % (D / 8) * 8;
        const u32 at = stage + key / PAGE * (PAGE * D * 2) + 2 * SM90_ATTN_AT(key % PAGE, chunk, D);

        many_cut<STAGES>(sh, tile, at, start + key, seen);
    }
    sm90_fence_async(); /* before wgmma reads, and the copy engine writes here again */
}

/* The end of a split: total = fold(total, o), parked in shared memory unless it is the last. */
template <int D>
DEVICE void many_fold(struct many_rows<D> &t, const float (&m)[2], u32 total_at, bool last) {
    struct attn_fold f[2];

#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        f[h] = attn_fold(t.total_m[h], m[h]);
        t.total_m[h] = f[h].m;
        t.total_l[h] = attn_folded(f[h], t.total_l[h], t.sums[2 * h]);
    }
    if (!t.active) return;
#pragma unroll
    for (u32 j = 0; j < D / 2; j += 4) {
        const u32 at = total_at + j * (WG_THREADS * 4);
        float old[4] = {0.0f, 0.0f, 0.0f, 0.0f};

        if (t.folded) sm90_load4(old, at);
#pragma unroll
        for (u32 i = 0; i < 4; i++) t.o[j + i] = attn_folded(f[i / 2], old[i], t.o[j + i]);
        if (!last) sm90_store4(at, t.o[j], t.o[j + 1], t.o[j + 2], t.o[j + 3]);
    }
}

template <int D, int WGS, int STAGES>
struct many_place {
    u32 wg, ring, queries, total; /* in shared memory; total: this thread's */
    u32 seen;                     /* position of the tile's first row: keys that all rows see */
};

/* Sums over block `start`, while scores of the next one (MORE) come in and become weights. */
template <int D, int WGS, int STAGES, bool MORE>
DEVICE void many_step(const struct sm90_attn &a, const struct sm90_attn_tile &tile,
                      struct many_shared<STAGES> &sh, const many_place<D, WGS, STAGES> &at,
                      struct many_rows<D> &t, struct many_stage<STAGES> &stage, u32 start,
                      bool folds) {
    using layout = many_layout<D, WGS, STAGES>;
    const struct many_stage<STAGES> v = stage;
    const u32 values = at.ring + v.index * layout::stage_bytes, lane = threadIdx.x % 32;
    u32 next_keys = 0;

    stage.next();
    if (WGS == 2) sm90_named_sync(4 + at.wg, 2 * WG_THREADS); // our turn
    if constexpr (MORE) {
        next_keys = stage.index;
        sm90_barrier_wait(sm90_shared(&sh.full[stage.index]), stage.parity);
        many_scores<D>(t, at.queries, at.ring + stage.index * layout::stage_bytes);
        stage.next();
    }
    if (!t.fresh && __any_sync(0xffffffff, t.scale[0] != 1.0f || t.scale[1] != 1.0f)) {
#pragma unroll
        for (u32 i = 0; i < D / 2; i++) t.o[i] = t.o[i] * t.scale[i / 2 % 2];
        t.sums[0] = t.sums[0] * t.scale[0];
        t.sums[2] = t.sums[2] * t.scale[1];
    }
    sm90_barrier_wait(sm90_shared(&sh.full[v.index]), v.parity);
    if (start + BLOCK > at.seen + 1) {
        many_cut_values<D, STAGES>(sh, tile, values, start, at.seen);
        sm90_named_sync(1 + at.wg, WG_THREADS); // the cut, before any warp's steps
    }
    const u32 low = sm90_descriptor_low(values, 1024);

    sm90_wgmma_fence();
#pragma unroll
    for (u32 i = 0; i < STEPS; i++)
        sm90_wgmma_across<D>::run(t.o, t.p + 4 * i, sm90_descriptor(low + i * (2 * D), 16 * D),
                                  i || !t.fresh);
    sm90_wgmma_commit();
    if (WGS == 2) sm90_named_arrive(4 + (at.wg ^ 1), 2 * WG_THREADS); // the other's turn
    t.fresh = false;

    const bool ends = !MORE || (start + BLOCK) % a.split_keys == 0;
    const float m[2] = {t.m[0], t.m[1]};

    if constexpr (MORE) {
        sm90_wgmma_wait<1>();
        sm90_pin(t.s);
        if (lane == 0) sm90_barrier_arrive(sm90_shared(&sh.empty[next_keys]));
    }
    t.sums[1] = t.sums[3] = 0.0f;
#pragma unroll
    for (u32 i = 0; i < STEPS; i++) {
        const u32 p[4] = {t.p[4 * i], t.p[4 * i + 1], t.p[4 * i + 2], t.p[4 * i + 3]};

        sm90_mma(t.sums, p, ATTN_ONES, ATTN_ONES);
    }
    if constexpr (MORE) {
        if (ends) t.m[0] = t.m[1] = ATTN_M_START;
        many_weights<D>(t, start + BLOCK, a.c);
    }
    sm90_wgmma_wait<0>();
    sm90_pin(t.o);
    if (lane == 0) sm90_barrier_arrive(sm90_shared(&sh.empty[v.index]));
    if constexpr (MORE) many_pack<D>(t);
    if (ends && folds) {
        many_fold<D>(t, m, at.total, !MORE);
        t.folded = true;
        t.fresh = true;
        t.sums[0] = t.sums[2] = 0.0f;
    }
}

/* Queries of this warpgroup as wgmma reads them; rows that are not there are zero. */
template <int D>
DEVICE void many_queries(const struct sm90_attn &a, const struct sm90_attn_tile &tile,
                         u32 queries, u32 first) {
    const u32 n_rows = tile.n_rows * a.n_shared;

    for (u32 e = threadIdx.x % WG_THREADS; e < WG_ROWS * (D / 8); e += WG_THREADS) {
        const u32 r = e / (D / 8), chunk = e % (D / 8) * 8, row = first + r;
        uint4 v = {0, 0, 0, 0};

        if (row < n_rows)
            v = *(const uint4 *)((const u16 *)a.q + (u64)(tile.row + row / a.n_shared) * a.q_stride +
                                 (blockIdx.x * a.n_shared + row % a.n_shared) * D + chunk);
        sm90_store_shared(queries + 2 * SM90_ATTN_AT(r, chunk, D), v);
    }
    sm90_fence_async();
}

/* What the one split of this block leaves.  A row that saw a bad value must not come to anything:
 * a NaN in its sum of weights stays to the end. */
template <int D, int WGS>
DEVICE void many_park(const struct sm90_attn &a, const struct many_unit &unit,
                      const struct many_rows<D> &t, u32 first, u32 n_rows, u32 bad) {
    const u32 lane = threadIdx.x % 32;
    float *part = attn_part<D, WGS * WG_ROWS>(a, unit.slot + unit.part);

#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        const u32 r = first + lane / 4 + 8 * h;
        float *o = part + 2 * WGS * WG_ROWS + r * D + lane % 4 * 2;

        if (r >= n_rows) continue;
        if (lane % 4 == 0)
            *(float2 *)(part + 2 * r) =
                make_float2(t.m[h], t.position[h] < bad ? t.sums[2 * h] : NUM_NAN);
#pragma unroll
        for (u32 j = 0; j < D / 8; j++)
            *(float2 *)(o + j * 8) = make_float2(t.o[4 * j + 2 * h], t.o[4 * j + 2 * h + 1]);
    }
}

template <int D>
DEVICE void many_write(const struct sm90_attn &a, const struct sm90_attn_tile &tile, u32 head,
                       const struct many_rows<D> &t, u32 first, u32 bad) {
    const u32 lane = threadIdx.x % 32, n_rows = tile.n_rows * a.n_shared;

#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        const u32 r = first + lane / 4 + 8 * h, row = tile.row + r / a.n_shared;
        const float inverse = 1.0f / t.total_l[h];
        u16 *out = (u16 *)a.out +
                   ((u64)row * a.n_heads + head * a.n_shared + r % a.n_shared) * D + lane % 4 * 2;
        bool fine = attn_sums_fine(t.total_m[h], t.total_l[h]) && t.position[h] < bad;

        if (r >= n_rows) continue;
#pragma unroll
        for (u32 j = 0; j < D / 8; j++) {
            const float x = attn_result(t.o[4 * j + 2 * h], inverse);
            const float y = attn_result(t.o[4 * j + 2 * h + 1], inverse);

            fine = fine && attn_finite(x) && attn_finite(y);
            *(u32 *)(out + j * 8) = sm90_pack(x, y);
        }
        if (!fine) ((unsigned char *)a.flagged)[row] = 1;
    }
}

template <int D, int WGS, int STAGES>
DEVICE void many_compute(const struct sm90_attn &a, const struct sm90_attn_tile &tile,
                         const struct many_unit &unit, struct many_shared<STAGES> &sh, u32 base) {
    using layout = many_layout<D, WGS, STAGES>;
    const u32 wg = threadIdx.x / WG_THREADS, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const many_place<D, WGS, STAGES> at = {
        wg, base, base + layout::queries + wg * (WG_ROWS * D * 2),
        base + layout::totals + wg * (WG_ROWS * D * 4) + threadIdx.x % WG_THREADS * 16,
        attn_position(a, tile.row)};
    const u32 first = wg * WG_ROWS + warp * 16, n_rows = tile.n_rows * a.n_shared;
    struct many_stage<STAGES> stage = {0, 0};
    struct many_rows<D> t;
    u32 start = unit.first;

    many_queries<D>(a, tile, at.queries, wg * WG_ROWS);
    sm90_named_sync(1 + wg, WG_THREADS); // all queries are there
    t.active = first < n_rows;
    t.fresh = true;
    t.folded = false;
    t.first_position = attn_position(a, tile.row + min(first, n_rows - 1) / a.n_shared);
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        const u32 r = min(first + lane / 4 + 8 * h, n_rows - 1);

        t.position[h] = attn_position(a, tile.row + r / a.n_shared);
        t.m[h] = t.total_m[h] = ATTN_M_START;
        t.total_l[h] = 0.0f;
        t.scale[h] = 1.0f;
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) t.sums[i] = 0.0f;
#pragma unroll
    for (u32 i = 0; i < BLOCK / 4; i++) t.p[i] = 0;

    if (WGS == 2 && wg == 1) sm90_named_arrive(4, 2 * WG_THREADS); // warpgroup 0 begins
    sm90_barrier_wait(sm90_shared(&sh.full[0]), 0);
    many_scores<D>(t, at.queries, base);
    sm90_wgmma_wait<0>();
    sm90_pin(t.s);
    if (lane == 0) sm90_barrier_arrive(sm90_shared(&sh.empty[0]));
    stage.next();
    many_weights<D>(t, start, a.c);
    many_pack<D>(t);
    for (; start + BLOCK < unit.end; start += BLOCK)
        many_step<D, WGS, STAGES, true>(a, tile, sh, at, t, stage, start, unit.n_parts == 1);
    many_step<D, WGS, STAGES, false>(a, tile, sh, at, t, stage, start, unit.n_parts == 1);
    if (WGS == 2) sm90_named_sync(3, 2 * WG_THREADS); // nobody will find another bad value
    if (unit.n_parts == 1) {
        many_write<D>(a, tile, blockIdx.x, t, first, sh.bad);
        return;
    }
    many_park<D, WGS>(a, unit, t, first, n_rows, sh.bad);
    const struct attn_share share = attn_share(a, unit.n_parts, unit.part, n_rows * (D / 4), 3,
                                               WGS * WG_THREADS, sh.count);

    attn_combine<D, WGS * WG_ROWS, 2, 8>(a, share, unit.slot, unit.n_parts, tile.row,
                                         blockIdx.x * a.n_shared, a.n_shared, WGS * WG_THREADS);
    attn_leave(a, unit.n_parts);
}

extern __shared__ unsigned char many_dynamic[];

template <int D, int WGS, int STAGES>
DEVICE void many_run(const struct sm90_attn &a) {
    __shared__ struct many_shared<STAGES> sh;
    const u32 base = (sm90_shared(many_dynamic) + 1023) & ~1023u;
    struct sm90_attn_tile tile;

    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            sm90_barrier_init(sm90_shared(&sh.full[i]), 1);
            sm90_barrier_init(sm90_shared(&sh.empty[i]), WGS * 4);
        }
        sh.bad = NO_KEY;
        sm90_barrier_init_done();
    }
    __syncthreads(); // nobody touches a barrier before it is made
    tile = ((const struct sm90_attn_tile *)a.tiles)[blockIdx.y]; // of the upload: no kernel writes it
    const struct many_unit unit = many_unit(a, tile);

    if (tile.n_rows == 0 || unit.first >= unit.end) {
        sm90_wait_previous();
        return;
    }
    if (threadIdx.x >= WGS * WG_THREADS) {
        if (WGS == 2) sm90_give_registers<24>();
        if (threadIdx.x == WGS * WG_THREADS)
            many_copy<D, WGS, STAGES>(a, tile, unit, sh, base);
        else
            sm90_wait_previous();
    } else {
        if (WGS == 2) sm90_take_registers<240>();
        sm90_wait_previous();
        many_compute<D, WGS, STAGES>(a, tile, unit, sh, base);
        if (threadIdx.x == 0) sm90_launch_next(); // as late as in sm90_attn_few.cuh, and why
    }
}

#endif
