/* sm90_attn_prompt - attention of adjacent rows of sequences where there are tiles for the whole
 * GPU: a block a multiprocessor, which takes one tile after the other and folds all its splits.
 *
 *   a         see sm90_attn.h; n_shared at most 64; tiles of at most 128 / n_shared rows, the
 *             longest first; counters: one word, zero before and after; n_splits is 1
 *   grid      at most a block a multiprocessor, at most n_tiles x KV heads
 *   block     two warpgroups that compute, a warp that copies keys and values, three that help
 *   shared    1024 to align, STAGES x 128 keys (or values) x D, queries of both warpgroups: 64 x D
 *             of 2 bytes, then their results, as many bytes, or what is there before: columns 64 and
 *             on of their running totals
 *   rounding  SPEC 2.7
 *   bound by  tensor cores, exponentials and what shared memory delivers to both
 *
 * A unit is a tile and a KV head.  Units follow each other without a gap: the scores of the next
 * unit's first block come in while the last block of this one is summed.  A warp's issue of wgmma
 * waits where the tensor cores are behind, so the steps over one block's values stand between the
 * exponentials of the next block, not before them.  The sum of weights is a product with ones.
 * Folds are bound by shared memory's bytes, so that half of a total, and all of it where heads are
 * of 64, stays in registers, and what can be had again is not kept there.
 *
 *   barrier      arrives                 waits
 *   told         copier, a unit          helpers, all who compute
 *   taken        a lane of each of them  copier: the unit's place is free
 *   full         copier, the bytes       all who compute; helpers before they cut
 *   empty        a lane of each warp     copier
 *   asked        copier                  helpers: values that must be cut are on their way
 *   cut          a lane of each helper   all who compute, in place of full
 *   query full   a lane of each helper   a warpgroup: its queries and positions are there
 *   query empty  a lane of each warp     helpers: its last scores of the unit are there
 *   named 4 + w  warpgroup w may issue its scores: the other has (heads of 64) */
#ifndef LLM42D_PTX_SM90_ATTN_PROMPT_CUH
#define LLM42D_PTX_SM90_ATTN_PROMPT_CUH

#include "ptx/sm90_attn.cuh"

enum {
    WG_THREADS = 128,
    WGS = 2,
    WG_ROWS = SM90_ATTN_ROWS,
    BLOCK = SM90_ATTN_BLOCK,
    PAGE = SM90_ATTN_PAGE,
    STEPS = BLOCK / 16, /* of keys */
    STAGES = 4,
    UNITS = 4,
    HELPERS = 96,
    LEAD = 2, /* steps over values that are issued before the first exponentials */
    NO_KEY = 0x7fffffff,
};

template <int D>
struct prompt_layout {
    /* Measured: with heads of 128 weights are packed as soon as the steps that read the last ones
     * are done, and turns change nothing; with heads of 64 both are the other way round. */
    static constexpr bool packs_early = D == 128, takes_turns = D == 64;
    static constexpr u32 page_bytes = PAGE * D * 2, stage_bytes = BLOCK * D * 2;
    static constexpr u32 query_bytes = WG_ROWS * D * 2;
    static constexpr u32 queries = STAGES * stage_bytes;
    static constexpr u32 totals = queries + WGS * query_bytes, total_bytes = query_bytes;
    static constexpr u32 kept = 32; /* of a thread's D / 2 totals, in registers */
    static constexpr u32 rows = totals + WGS * total_bytes; /* their M and sums of weights */
};

/* A tile and a KV head. */
struct prompt_unit {
    struct sm90_attn_tile tile;
    u32 head;
    u32 bad;  /* the first key whose values are not finite, of those that not all rows see */
};

struct prompt_shared {
    u64 full[STAGES], empty[STAGES];
    u64 asked[2], cut[2];
    u64 query_full[WGS], query_empty[WGS];
    u64 told[UNITS], taken[UNITS];
    struct prompt_unit units[UNITS];
    u32 positions[2][WGS][WG_ROWS]; /* of units in turn */
    u32 ones[64] __attribute__((aligned(256))); /* 16 x 8 of bf16, for wgmma without a swizzle */
};

/* A place in a ring of N. */
template <int N>
struct prompt_place {
    u32 index, parity;

    DEVICE_METHOD void next(void) {
        if (++index < N) return;
        index = 0;
        parity ^= 1;
    }
};

/* ---- Copies ---- */

/* The unit after those that were given out; the last to ask leaves zero for the next launch. */
DEVICE u32 prompt_fetch(const struct sm90_attn &a, u32 n_units) {
    u32 *counter = (u32 *)a.counters;
    const u32 n = atomicAdd(counter, 1u);

    if (n == n_units - 1) *counter = 0;
    return gridDim.x + n;
}

template <int D>
DEVICE void prompt_copy(const struct sm90_attn &a, struct prompt_shared &sh, u32 ring) {
    using layout = prompt_layout<D>;
    const u32 n_units = a.n_tiles * a.n_kv_heads;
    prompt_place<STAGES> stage = {0, 0};
    prompt_place<UNITS> place = {0, 0};
    prompt_place<2> asked = {0, 0};
    bool waited = false;

    for (u32 unit = blockIdx.x; unit < n_units;) {
        const struct sm90_attn_tile tile =
            ((const struct sm90_attn_tile *)a.tiles)[unit / a.n_kv_heads];
        const u32 head = unit % a.n_kv_heads;
        const u32 *table = (const u32 *)a.table + (u64)tile.seq * a.n_seq_pages;
        bool fetched = false;

        if (tile.n_rows) {
            struct prompt_unit &to = sh.units[place.index];

            sm90_barrier_wait(sm90_shared(&sh.taken[place.index]), place.parity ^ 1);
            to.tile = tile;
            to.head = head;
            to.bad = NO_KEY;
            sm90_barrier_arrive(sm90_shared(&sh.told[place.index]));
            place.next();
        }
        for (u32 key = 0; key < (tile.n_rows ? tile.end : 0); key += BLOCK) {
            const u32 n_pages = min(2u, (tile.end - key + PAGE - 1) / PAGE);
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
                              2 * SM90_ATTN_PAGE_AT(table[key / PAGE + i], head, 0, a.n_kv_heads,
                                                    D);
#pragma unroll
            for (u32 v = 0; v < 2; v++) {
                const u32 full = sm90_shared(&sh.full[stage.index]);

                sm90_barrier_wait(sm90_shared(&sh.empty[stage.index]), stage.parity ^ 1);
                sm90_barrier_expect(full, n_pages * layout::page_bytes);
#pragma unroll
                for (u32 i = 0; i < 2; i++)
                    if (i < n_pages)
                        sm90_copy(ring + stage.index * layout::stage_bytes +
                                      i * layout::page_bytes,
                                  from[i] + v * layout::page_bytes, layout::page_bytes, full);
                stage.next();
            }
            if (key + BLOCK > tile.seen + 1) { // these values come now: a helper may wait for them
                sm90_barrier_arrive(sm90_shared(&sh.asked[asked.index]));
                asked.next();
            }
            if (waited && !fetched) {
                unit = prompt_fetch(a, n_units);
                fetched = true;
            }
        }
        if (!waited) sm90_wait_previous();
        waited = true;
        if (!fetched) unit = prompt_fetch(a, n_units);
    }
    sm90_barrier_wait(sm90_shared(&sh.taken[place.index]), place.parity ^ 1);
    sh.units[place.index].tile.n_rows = 0;
    sm90_barrier_arrive(sm90_shared(&sh.told[place.index]));
    if (!waited) sm90_wait_previous();
}

/* In a block that not all rows see whole: values past the end of the sequence may be anything, and
 * values of keys that a row does not see may be not finite; 0 times either is not 0.  Where such a
 * key is seen, the row's result is not finite either way, so zero will do, and a note. */
template <int D>
DEVICE void prompt_cut(struct prompt_unit &unit, u32 stage, u32 start, u32 thread) {
    const u32 end = unit.tile.end, seen = unit.tile.seen;

#pragma unroll 1
    for (u32 e = (start > seen ? 0 : (seen + 1 - start) * (D / 8)) + thread; e < BLOCK * (D / 8);
         e += HELPERS) {
        const u32 key = e / (D / 8), chunk = e % (D / 8) * 8;
        const u32 at = stage + key / PAGE * (PAGE * D * 2) + 2 * SM90_ATTN_AT(key % PAGE, chunk, D);
        u32 v[4], bad = 0;

        if (start + key < end) {
            sm90_load4(v, at);
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                bad |= (v[i] & 0x7f80) == 0x7f80 || (v[i] & 0x7f800000) == 0x7f800000;
            if (!bad) continue;
            atomicMin(&unit.bad, start + key);
        }
        sm90_fill4(at, 0);
    }
    sm90_fence_async(); /* before wgmma reads, and the copy engine writes here again */
}

/* Queries as wgmma reads them, and values that must not be read as they are; HELPERS threads. */
template <int D>
DEVICE void prompt_help(const struct sm90_attn &a, struct prompt_shared &sh, u32 base) {
    using layout = prompt_layout<D>;
    const u32 thread = threadIdx.x - WGS * WG_THREADS - 32, lane = threadIdx.x % 32;
    const u32 inverse = 65536 / a.n_shared + 1; /* r / n_shared for r < 128 */
    prompt_place<STAGES> stage = {0, 0};
    prompt_place<UNITS> place = {0, 0};
    prompt_place<2> cut = {0, 0};
    u32 query_parity = 1;

    for (;;) {
        struct prompt_unit &unit = sh.units[place.index];
        u32 n_rows, row, head;

        sm90_barrier_wait(sm90_shared(&sh.told[place.index]), place.parity);
        n_rows = unit.tile.n_rows * a.n_shared;
        row = unit.tile.row;
        head = unit.head;
        if (n_rows == 0) return;
#pragma unroll 1
        for (u32 wg = 0; wg < WGS; wg++) {
            sm90_barrier_wait(sm90_shared(&sh.query_empty[wg]), query_parity);
#pragma unroll 1
            for (u32 e = thread; e < WG_ROWS * (D / 8); e += HELPERS) {
                const u32 r = e / (D / 8), chunk = e % (D / 8) * 8;
                const u32 query_row = min(wg * WG_ROWS + r, n_rows - 1);
                const u32 i = query_row * inverse >> 16, h = query_row - i * a.n_shared;

                sm90_copy_16(base + layout::queries + wg * layout::query_bytes +
                                 2 * SM90_ATTN_AT(r, chunk, D),
                             (const u16 *)a.q + (u64)(row + i) * a.q_stride +
                                 (head * a.n_shared + h) * D + chunk);
            }
            if (thread < WG_ROWS)
                sh.positions[query_parity ^ 1][wg][thread] = attn_position(
                    a, row + (min(wg * WG_ROWS + thread, n_rows - 1) * inverse >> 16));
            sm90_wait_copied();
            sm90_fence_async();
            __syncwarp();
            if (lane == 0) sm90_barrier_arrive(sm90_shared(&sh.query_full[wg]));
        }
        query_parity ^= 1;
#pragma unroll 1
        for (u32 start = 0; start < unit.tile.end; start += BLOCK) {
            stage.next();
            if (start + BLOCK > unit.tile.seen + 1) {
                sm90_barrier_wait(sm90_shared(&sh.asked[cut.index]), cut.parity);
                sm90_barrier_wait(sm90_shared(&sh.full[stage.index]), stage.parity);
                __syncwarp();
                prompt_cut<D>(unit, base + stage.index * layout::stage_bytes, start, thread);
                __syncwarp();
                if (lane == 0) sm90_barrier_arrive(sm90_shared(&sh.cut[cut.index]));
                cut.next();
            }
            stage.next();
        }
        __syncwarp();
        if (lane == 0) sm90_barrier_arrive(sm90_shared(&sh.taken[place.index]));
        place.next();
    }
}

/* ---- Sums ---- */

/* A thread's share of 64 query rows: rows r and r + 8 of its warp's 16. */
template <int D>
struct prompt_rows {
    float s[BLOCK / 2]; /* scores, then weights, of one block */
    u32 p[BLOCK / 4];   /* weights in bf16 */
    float o[D / 2], sums[4];
    float m[2], scale[2]; /* scale: the M of the split that is to be folded, where there is one */
    float kept[prompt_layout<D>::kept]; /* the first columns of the total */
};

/* What stands before a block's sums can begin. */
enum prompt_before {
    PROMPT_NOTHING,
    PROMPT_START, /* they are the first */
    PROMPT_SPLIT, /* the split before is to be folded */
    PROMPT_UNIT,  /* and is its unit's last */
};

/* Where this warpgroup is.  The rest follows from the thread, or stands in shared memory. */
struct prompt_at {
    u32 base;      /* in shared memory */
    int left;      /* keys of the unit from the block on whose weights are known */
    int unseen;    /* keys at the unit's end that not all rows see */
    u32 split;     /* the same as left, of the split */
    u32 n_stages, n_units, n_cuts; /* that are over */
    u32 before;    /* enum prompt_before */
    bool folded;   /* the total is begun */
};

DEVICE u32 prompt_wg(void) {
    return threadIdx.x / WG_THREADS;
}

template <int D>
DEVICE u32 prompt_totals(const struct prompt_at &at) {
    using layout = prompt_layout<D>;

    return at.base + layout::totals + prompt_wg() * layout::total_bytes;
}

template <int D>
DEVICE void prompt_scores(struct prompt_rows<D> &t, u32 queries, u32 keys) {
    const u32 q = sm90_descriptor_low(queries, 16), k = sm90_descriptor_low(keys, 16);

    sm90_wgmma_fence();
#pragma unroll
    for (u32 i = 0; i < D / 16; i++)
        sm90_wgmma<BLOCK>::run(t.s, sm90_descriptor(q + i / 4 * 64 + i % 4 * 2, 16 * D),
                               sm90_descriptor(k + i / 4 * 64 + i % 4 * 2, 16 * D), i);
    sm90_wgmma_commit();
}

/* One step of the sums: keys 16 i and on of the block.  `after` is 0, but not before it is known:
 * the step waits for what `after` is made of. */
template <int D>
DEVICE void prompt_value_step(struct prompt_shared &sh, struct prompt_rows<D> &t, u32 low, u32 i,
                              bool fresh, u32 after) {
    const u32 ones_low = sm90_descriptor_low(sm90_shared(sh.ones), 128);

    sm90_wgmma_fence();
    sm90_wgmma_across<D>::run(t.o, t.p + 4 * i, sm90_descriptor(low + i * (2 * D) + after, 16 * D),
                              i || !fresh);
    sm90_wgmma_plain8(t.sums, t.p + 4 * i, sm90_descriptor_plain(ones_low, 128), i || !fresh);
    sm90_wgmma_commit();
}

/* Weights of steps first .. end - 1. */
template <int D>
DEVICE void prompt_pack(struct prompt_rows<D> &t, u32 first, u32 end) {
#pragma unroll
    for (u32 i = 4 * first; i < 4 * end; i++) t.p[i] = sm90_pack(t.s[2 * i], t.s[2 * i + 1]);
}

/* Keys that a row does not see: their weights come to +0, for M is never below -2^20. */
template <int D>
DEVICE void prompt_mask(const struct prompt_shared &sh, const struct prompt_at &at,
                        struct prompt_rows<D> &t) {
    const u32 *positions =
        sh.positions[at.n_units % 2][prompt_wg()] + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    int limit[2];

    if (at.left >= at.unseen + BLOCK) return;
#pragma unroll
    for (u32 h = 0; h < 2; h++)
        limit[h] = (int)positions[8 * h] - (int)sh.units[at.n_units % UNITS].tile.end + at.left -
                   (int)(threadIdx.x % 4 * 2);
#pragma unroll
    for (u32 i = 0; i < BLOCK / 2; i++)
        if ((int)(i / 4 * 8 + i % 2) > limit[i / 2 % 2]) t.s[i] = -NUM_INFINITY;
}

/* Scores to weights, and what they do to M.  VALUES: the steps over the block before stand between:
 * a weight has no sign, and its sign makes each wait for the exponentials before it. */
template <int D, bool VALUES>
DEVICE void prompt_weights(struct prompt_shared &sh, const struct prompt_at &at,
                           struct prompt_rows<D> &t, u32 low, bool fresh) {
    const float c = num_from_bits(D == 128 ? 0x3e0293ee : 0x3e38aa3b); // a.c, as an immediate
    const bool ended = at.before != PROMPT_NOTHING; // the block before was its split's last
    float tops[4], m[2];

    prompt_mask<D>(sh, at, t);
    if (VALUES) {
#pragma unroll
        for (u32 i = 0; i < LEAD; i++) prompt_value_step<D>(sh, t, low, i, fresh, 0);
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) tops[i] = -NUM_INFINITY;
#pragma unroll
    for (u32 i = 0; i < BLOCK / 2; i++) {
        float &top = tops[i % 2 * 2 + i / 2 % 2];

        top = fmaxf(top, t.s[i]);
    }
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        float top = fmaxf(tops[h], tops[2 + h]);

        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
        m[h] = attn_max(ended ? ATTN_M_START : t.m[h], top, c);
        t.scale[h] = ended ? t.m[h] : attn_pow2(t.m[h] - m[h]);
        t.m[h] = m[h];
    }
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
#pragma unroll
        for (u32 i = 8 * step; i < 8 * step + 8; i++)
            t.s[i] = attn_weight(t.s[i], c, m[i / 2 % 2]);
        if (VALUES && step + LEAD < STEPS)
            prompt_value_step<D>(sh, t, low, step + LEAD, false,
                                 num_bits(t.s[8 * step + 7]) >> 31);
        if (VALUES && prompt_layout<D>::packs_early && step >= LEAD) {
            sm90_wgmma_wait<LEAD>(); // steps up to step - LEAD are done with their weights
            prompt_pack<D>(t, step - LEAD, step - LEAD + 1);
        }
    }
}

/* M and sums of weights of a thread's total. */
template <int D>
DEVICE u32 prompt_total_rows(const struct prompt_at &at) {
    return at.base + prompt_layout<D>::rows + threadIdx.x * 16;
}

/* The end of a split: total = fold(total, o), left in o where it is the last. */
template <int D>
DEVICE void prompt_fold(const struct prompt_at &at, struct prompt_rows<D> &t, const float (&m)[2],
                        bool last) {
    constexpr u32 kept = prompt_layout<D>::kept;
    const u32 rows_at = prompt_total_rows<D>(at);
    u32 total_at = prompt_totals<D>(at) + threadIdx.x % WG_THREADS * 16;
    struct attn_fold f[2];
    float row[4], old[2][4] = {};

    sm90_load4(row, rows_at);
    sm90_keep(total_at);
    if (kept < D / 2 && at.folded) sm90_load4(old[0], total_at);
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        f[h] = attn_fold(row[2 * h], m[h]);
        row[2 * h] = f[h].m;
        row[2 * h + 1] = attn_folded(f[h], row[2 * h + 1], t.sums[2 * h]);
    }
    sm90_store4(rows_at, row[0], row[1], row[2], row[3]);
#pragma unroll
    for (u32 j = 0; j < kept; j++) t.kept[j] = attn_folded(f[j / 2 % 2], t.kept[j], t.o[j]);
#pragma unroll
    for (u32 j = kept; j < D / 2; j += 4) {
        const u32 k = (j - kept) / 4, to = total_at + k * (WG_THREADS * 16);

        if (j + 4 < D / 2 && at.folded) sm90_load4(old[(k + 1) % 2], to + WG_THREADS * 16);
#pragma unroll
        for (u32 i = 0; i < 4; i++) t.o[j + i] = attn_folded(f[i / 2], old[k % 2][i], t.o[j + i]);
        if (!last) sm90_store4(to, t.o[j], t.o[j + 1], t.o[j + 2], t.o[j + 3]);
    }
}

/* No total. */
template <int D>
DEVICE void prompt_begin(struct prompt_at &at, struct prompt_rows<D> &t) {
    sm90_store4(prompt_total_rows<D>(at), ATTN_M_START, 0.0f, ATTN_M_START, 0.0f);
#pragma unroll
    for (u32 j = 0; j < prompt_layout<D>::kept; j++) t.kept[j] = 0.0f;
    at.folded = false;
}

/* Where 16 bytes of a row of the result stand: strips of 512 bytes, 2048 apart. */
template <int D>
DEVICE u32 prompt_strip(u32 strips, u32 row, u32 chunk) {
    return strips + row % (D / 16) * 2048 + row / (D / 16) * (2 * D) + ((chunk ^ row % 8) << 4);
}

DEVICE void prompt_flag(const struct sm90_attn &a, const struct prompt_unit &unit, u32 query_row) {
    const u32 i = query_row / a.n_shared;

    if (i < unit.tile.n_rows) ((unsigned char *)a.flagged)[unit.tile.row + i] = 1;
}

/* The result, turned in shared memory where this warp's totals were: rows are written whole. */
template <int D>
DEVICE void prompt_write(const struct sm90_attn &a, const struct prompt_unit &unit,
                         struct prompt_rows<D> &t, u32 totals, u32 rows_at) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 strips = totals + warp % 4 * 512;
    const u32 n_rows = unit.tile.n_rows * a.n_shared, first = warp * 16;
    const u32 first_row = unit.tile.row, first_head = unit.head * a.n_shared;
    u32 r = first + lane / (D / 8), row = r / a.n_shared, head = r % a.n_shared;

    float ml[4];

    sm90_load4(ml, rows_at);
    __syncwarp(); /* all have read their totals */
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        const float inverse = 1.0f / ml[2 * h + 1];
        float fine = 0.0f; /* or not a number */

#pragma unroll
        for (u32 j = 0; j < D / 8; j++)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                float &x = t.o[4 * j + 2 * h + i];

                x = attn_result(x, inverse);
                fine = num_fma(x, 0.0f, fine);
            }
        if (!(fine == 0.0f && attn_sums_fine(ml[2 * h], ml[2 * h + 1])))
            prompt_flag(a, unit, first + lane / 4 + 8 * h);
    }
    /* Matrices of 8 rows x 8 values: lane i says where row i % 8 of matrix i / 8 goes. */
#pragma unroll
    for (u32 j = 0; j < D / 16; j++) {
        const u32 to = lane % 16, chunk = 2 * j + lane / 16;

        sm90_store_matrices(prompt_strip<D>(strips, to, chunk),
                            sm90_pack(t.o[8 * j], t.o[8 * j + 1]),
                            sm90_pack(t.o[8 * j + 2], t.o[8 * j + 3]),
                            sm90_pack(t.o[8 * j + 4], t.o[8 * j + 5]),
                            sm90_pack(t.o[8 * j + 6], t.o[8 * j + 7]));
    }
    __syncwarp();
    constexpr u32 at_once = 32 / (D / 8); /* rows */

#pragma unroll
    for (u32 i = 0; i < 16; i += at_once) {
        const u32 from = i + lane / (D / 8), chunk = lane % (D / 8);
        u32 v[4];

        sm90_load4(v, prompt_strip<D>(strips, from, chunk));
        if (r < n_rows)
            *(uint4 *)((u16 *)a.out + ((u64)(first_row + row) * a.n_heads + first_head + head) * D +
                       chunk * 8) = make_uint4(v[0], v[1], v[2], v[3]);
        r += at_once;
        head += at_once;
#pragma unroll
        for (u32 k = 0; k < at_once; k++)
            if (head >= a.n_shared) {
                head -= a.n_shared;
                row++;
            }
    }
    __syncwarp(); /* before totals come here again */
}

/* A split is summed: into the total, and out where it was the unit's last. */
template <int D>
DEVICE void prompt_close(const struct sm90_attn &a, struct prompt_shared &sh, struct prompt_at &at,
                         struct prompt_rows<D> &t, const float (&m)[2], u32 place, bool last) {
    prompt_fold<D>(at, t, m, last);
    at.folded = true;
    if (last) {
#pragma unroll
        for (u32 j = 0; j < prompt_layout<D>::kept; j++) t.o[j] = t.kept[j];
        prompt_write<D>(a, sh.units[place], t, prompt_totals<D>(at), prompt_total_rows<D>(at));
        __syncwarp();
        if (threadIdx.x % 32 == 0) sm90_barrier_arrive(sm90_shared(&sh.taken[place]));
        prompt_begin<D>(at, t);
    }
    t.sums[0] = t.sums[2] = 0.0f;
}

/* What the unit says. */
DEVICE void prompt_enter(const struct sm90_attn &a, const struct prompt_shared &sh,
                         struct prompt_at &at) {
    const struct sm90_attn_tile &tile = sh.units[at.n_units % UNITS].tile;

    at.left = tile.end;
    at.unseen = tile.end - tile.seen - 1;
    at.split = a.split_keys;
}

/* Rows of the unit that saw a bad value. */
DEVICE void prompt_judge(const struct sm90_attn &a, const struct prompt_shared &sh,
                         const struct prompt_at &at) {
    const struct prompt_unit &unit = sh.units[at.n_units % UNITS];
    const u32 *positions = sh.positions[at.n_units % 2][prompt_wg()];
    const u32 r = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, bad = unit.bad;

    if (bad == NO_KEY) return;
#pragma unroll 1
    for (u32 i = r; i <= r + 8; i += 8)
        if (positions[i] >= bad) prompt_flag(a, unit, prompt_wg() * WG_ROWS + i);
}

DEVICE void prompt_release_queries(struct prompt_shared &sh) {
    if (threadIdx.x % 32 == 0) sm90_barrier_arrive(sm90_shared(&sh.query_empty[prompt_wg()]));
}

template <int D>
DEVICE void prompt_ask_scores(struct prompt_shared &sh, struct prompt_at &at,
                              struct prompt_rows<D> &t) {
    using layout = prompt_layout<D>;
    const u32 stage = at.n_stages % STAGES;

    sm90_barrier_wait(sm90_shared(&sh.full[stage]), at.n_stages / STAGES % 2);
    prompt_scores<D>(t, at.base + layout::queries + prompt_wg() * layout::query_bytes,
                     at.base + stage * layout::stage_bytes);
}

/* Sums over the block at hand, while scores of the next one (MORE), of this unit or the next
 * (LAST), come in and become weights. */
template <int D, bool MORE>
DEVICE void prompt_step(const struct sm90_attn &a, struct prompt_shared &sh, struct prompt_at &at,
                        struct prompt_rows<D> &t, bool last) {
    using layout = prompt_layout<D>;
    const u32 lane = threadIdx.x % 32, wg = prompt_wg();
    const u32 v = at.n_stages % STAGES, v_parity = at.n_stages / STAGES % 2;
    const u32 low = sm90_descriptor_low(at.base + v * layout::stage_bytes, 1024);
    const bool cuts = at.left < at.unseen + BLOCK;
    const bool fresh = at.before != PROMPT_NOTHING;

    at.n_stages++;
    if constexpr (MORE) {
        if (layout::takes_turns) sm90_named_sync(4 + wg, WGS * WG_THREADS); // our turn
        prompt_ask_scores<D>(sh, at, t);
        at.n_stages++;
        if (layout::takes_turns)
            sm90_named_arrive(4 + (wg ^ 1), WGS * WG_THREADS); // the other's turn
    }
    if (at.before >= PROMPT_SPLIT)
        prompt_close<D>(a, sh, at, t, t.scale, (at.n_units - 1) % UNITS, at.before == PROMPT_UNIT);
    if (!fresh && __any_sync(0xffffffff, t.scale[0] != 1.0f || t.scale[1] != 1.0f)) {
#pragma unroll
        for (u32 i = 0; i < D / 2; i++) t.o[i] = t.o[i] * t.scale[i / 2 % 2];
        t.sums[0] = t.sums[0] * t.scale[0];
        t.sums[2] = t.sums[2] * t.scale[1];
    }
    if (cuts) {
        sm90_barrier_wait(sm90_shared(&sh.cut[at.n_cuts % 2]), at.n_cuts / 2 % 2);
        at.n_cuts++;
    } else {
        sm90_barrier_wait(sm90_shared(&sh.full[v]), v_parity);
    }
    at.split -= BLOCK;
    at.left -= BLOCK;
    at.before = last ? PROMPT_UNIT : at.split == 0 ? PROMPT_SPLIT : PROMPT_NOTHING;
    if (at.split == 0) at.split = a.split_keys;
    if (last) {
        prompt_judge(a, sh, at);
        if constexpr (MORE) {
            at.n_units++;
            prompt_enter(a, sh, at);
        }
    }
    if constexpr (MORE) {
        sm90_wgmma_wait<0>();
        sm90_pin(t.s);
        if (lane == 0) sm90_barrier_arrive(sm90_shared(&sh.empty[(at.n_stages - 1) % STAGES]));
        if (at.left <= BLOCK) prompt_release_queries(sh);
        prompt_weights<D, true>(sh, at, t, low, fresh);
        sm90_pin(t.s);
    } else {
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) prompt_value_step<D>(sh, t, low, i, fresh, 0);
    }
    sm90_wgmma_wait<0>();
    sm90_pin(t.o);
    sm90_pin(t.sums);
    if (lane == 0) sm90_barrier_arrive(sm90_shared(&sh.empty[v]));
    if constexpr (MORE)
        prompt_pack<D>(t, layout::packs_early ? STEPS - LEAD : 0, STEPS);
    else
        prompt_close<D>(a, sh, at, t, t.m, at.n_units % UNITS, true);
}

template <int D>
DEVICE void prompt_compute(const struct sm90_attn &a, struct prompt_shared &sh, u32 base) {
    using layout = prompt_layout<D>;
    const u32 wg = prompt_wg(), lane = threadIdx.x % 32;
    struct prompt_at at = {.base = base, .before = PROMPT_START};
    struct prompt_rows<D> t;

    sm90_barrier_wait(sm90_shared(&sh.told[0]), 0);
    if (sh.units[0].tile.n_rows == 0) return;
    prompt_begin<D>(at, t);
#pragma unroll
    for (u32 i = 0; i < 4; i++) t.sums[i] = 0.0f;
    t.m[0] = t.m[1] = ATTN_M_START;
    sm90_barrier_wait(sm90_shared(&sh.query_full[wg]), 0);
    prompt_enter(a, sh, at);
    if (layout::takes_turns && wg == 1) sm90_named_arrive(4, WGS * WG_THREADS); // 0 begins
    prompt_ask_scores<D>(sh, at, t);
    at.n_stages++;
    sm90_wgmma_wait<0>();
    sm90_pin(t.s);
    if (lane == 0) sm90_barrier_arrive(sm90_shared(&sh.empty[0]));
    if (at.left <= BLOCK) prompt_release_queries(sh);
    prompt_weights<D, false>(sh, at, t, 0, false);
    prompt_pack<D>(t, 0, STEPS);
    for (;;) {
        const bool last = at.left <= BLOCK;

        if (last) {
            const u32 next = at.n_units + 1;

            sm90_barrier_wait(sm90_shared(&sh.told[next % UNITS]), next / UNITS % 2);
            if (sh.units[next % UNITS].tile.n_rows == 0) break;
            sm90_barrier_wait(sm90_shared(&sh.query_full[wg]), next % 2);
        }
        prompt_step<D, true>(a, sh, at, t, last);
    }
    prompt_step<D, false>(a, sh, at, t, true);
}

extern __shared__ unsigned char prompt_dynamic[];

template <int D>
DEVICE void prompt_run(const struct sm90_attn &a) {
    __shared__ struct prompt_shared sh;
    const u32 base = (sm90_shared(prompt_dynamic) + 1023) & ~1023u;

    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            sm90_barrier_init(sm90_shared(&sh.full[i]), 1);
            sm90_barrier_init(sm90_shared(&sh.empty[i]), WGS * 4);
        }
        for (u32 i = 0; i < 2; i++) {
            sm90_barrier_init(sm90_shared(&sh.asked[i]), 1);
            sm90_barrier_init(sm90_shared(&sh.cut[i]), HELPERS / 32);
        }
        for (u32 i = 0; i < WGS; i++) {
            sm90_barrier_init(sm90_shared(&sh.query_full[i]), HELPERS / 32);
            sm90_barrier_init(sm90_shared(&sh.query_empty[i]), 4);
        }
        for (u32 i = 0; i < UNITS; i++) {
            sm90_barrier_init(sm90_shared(&sh.told[i]), 1);
            sm90_barrier_init(sm90_shared(&sh.taken[i]), HELPERS / 32 + WGS * 4);
        }
        sm90_barrier_init_done();
    }
    if (threadIdx.x < 64) sh.ones[threadIdx.x] = ATTN_ONES;
    sm90_fence_async(); // before wgmma reads
    __syncthreads(); // nobody touches a barrier before it is made
    if (threadIdx.x >= WGS * WG_THREADS) {
        sm90_give_registers<40>();
        if (threadIdx.x == WGS * WG_THREADS) {
            prompt_copy<D>(a, sh, base);
        } else {
            sm90_wait_previous();
            if (threadIdx.x >= WGS * WG_THREADS + 32) prompt_help<D>(a, sh, base);
        }
    } else {
        sm90_take_registers<232>();
        sm90_wait_previous();
        prompt_compute<D>(a, sh, base);
        if (threadIdx.x == 0) sm90_launch_next(); // as late as in sm90_attn_few.cuh, and why
    }
}

#endif
