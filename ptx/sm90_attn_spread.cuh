/* sm90_attn_spread - attention of a few rows by themselves, each split spread over a cluster: bound
 * by how long one thing waits for another.
 *
 *   a         see sm90_attn.h; split_keys is SPREAD_KEYS; tiles of one row each
 *   grid      (KV heads x chunks of 8 query heads x ranks, tiles, n_splits and more); clusters of
 *             D / COLUMNS ranks along x; blocks without a split keep their place and touch no result
 *   block     256 threads, 512 where a split has no cluster
 *   shared    1024 to align, then keys, values, scores and weights of struct spread_layout
 *   rounding  SPEC 2.7
 *   bound by  latency: page table, keys, scores to the cluster, steps over 512 keys, the fold
 *
 * Rank r has its share of the split's keys for the scores, and columns COLUMNS r .. of all values
 * for the sums: a cluster reads each byte once, and all of it is on its way at once.
 * Scores go to all blocks of the cluster, each of which has the maxima and weights for itself: one
 * exchange.  The splits of a row are folded by the blocks of the last one, which comes last in the
 * order of blocks: whom it waits for has its place.
 *
 *   barrier  arrives                              waits
 *   keys     thread 0, the bytes of a page        the warps of the page
 *   values   all, each once its copies are there  the warps of columns
 *   scores   thread 0, the bytes of all ranks     all */
#ifndef LLM42D_PTX_SM90_ATTN_SPREAD_CUH
#define LLM42D_PTX_SM90_ATTN_SPREAD_CUH

#include "ptx/sm90_attn.cuh"

enum {
    SPREAD_KEYS = SM90_ATTN_SPREAD_KEYS,
    HEADS = SM90_ATTN_FEW_HEADS,
    BLOCK = SM90_ATTN_BLOCK,
    BLOCKS = SPREAD_KEYS / BLOCK,
    PAGE = SM90_ATTN_PAGE,
    PAGES = SPREAD_KEYS / PAGE,
    P_PITCH = SPREAD_KEYS + 8, /* weights of a head, against bank conflicts */
    PARTS = 8,                 /* of a fold, in flight */
};

template <int D, int COLUMNS>
struct spread_layout {
    static constexpr u32 ranks = D / COLUMNS;
    static constexpr u32 threads = ranks > 1 ? 256 : 512, warps = threads / 32;
    static constexpr u32 row_bytes = 2 * COLUMNS, chunks = COLUMNS / 8; /* of 16 bytes, of values */
    static constexpr u32 sum_threads = COLUMNS / 8 * 32;
    static constexpr u32 rank_keys = SPREAD_KEYS / ranks, warp_keys = rank_keys / warps;
    static constexpr u32 rank_pages = rank_keys / PAGE;
    static constexpr u32 n_maxima = SPREAD_KEYS / warp_keys;
    static constexpr u32 keys = 0;
    static constexpr u32 values = keys + rank_keys * D * 2;
    static constexpr u32 scores = values + SPREAD_KEYS * row_bytes;
    static constexpr u32 maxima = scores + HEADS * SPREAD_KEYS * 4;
    static constexpr u32 weights = maxima + HEADS * n_maxima * 4;
    static constexpr u32 bytes = weights + HEADS * P_PITCH * 2;

    static_assert(bytes == SM90_ATTN_SPREAD_BYTES(D, COLUMNS), "");
};

/* Where chunk c of a key's values stands: no two of eight keys in the same banks. */
template <int COLUMNS>
DEVICE u32 spread_value(u32 key, u32 chunk) {
    return key * (2 * COLUMNS) + ((COLUMNS == 64 ? chunk ^ key % 8 : chunk ^ key / 2 % 4) << 4);
}

struct spread_shared {
    u64 keys[SPREAD_KEYS / PAGE], values[BLOCKS], scores;
};

/* A split of a row: keys first .. first + n_keys - 1 of some heads. */
struct spread_unit {
    u32 row, seq, first, n_keys, n_ready; /* keys of steps before, among them */
    u32 kv_head, head, n_heads, rank;
    u32 n_parts, part, slot; /* of the row, this one's, the first one's place */
};

template <int D, int COLUMNS>
DEVICE bool spread_unit(const struct sm90_attn &a, struct spread_unit &u) {
    const struct sm90_attn_tile tile = ((const struct sm90_attn_tile *)a.tiles)[blockIdx.y];
    const u32 unit = blockIdx.x / spread_layout<D, COLUMNS>::ranks, chunk = unit / a.n_kv_heads;

    u.row = tile.row;
    u.seq = tile.seq;
    u.part = blockIdx.z;
    u.first = u.part * SPREAD_KEYS;
    u.n_keys = tile.end > u.first ? min((u32)SPREAD_KEYS, tile.end - u.first) : 0;
    u.n_ready = tile.old > u.first ? tile.old - u.first : 0;
    u.kv_head = unit % a.n_kv_heads;
    u.head = u.kv_head * a.n_shared + chunk * HEADS;
    u.n_heads = min((u32)HEADS, a.n_shared - chunk * HEADS);
    u.rank = blockIdx.x % spread_layout<D, COLUMNS>::ranks;
    u.n_parts = (tile.end + SPREAD_KEYS - 1) / SPREAD_KEYS;
    u.slot = (blockIdx.y * gridDim.x + blockIdx.x) * gridDim.z;
    return tile.n_rows > 0 && u.n_keys > 0;
}

/* All keys, by thread 0 a page a copy, the one this step writes too: its place is written again. */
template <int D, int COLUMNS>
DEVICE void spread_copy_keys(const struct sm90_attn &a, const struct spread_unit &u,
                             struct spread_shared &sh, u32 base, const u32 (&table)[PAGES]) {
    using layout = spread_layout<D, COLUMNS>;
    constexpr u32 page_bytes = PAGE * D * 2;

#pragma unroll
    for (u32 i = 0; i < layout::rank_pages; i++) {
        const u32 page = u.rank * layout::rank_pages + i, full = sm90_shared(&sh.keys[i]);
        u32 at = table[0];

#pragma unroll
        for (u32 j = 1; j < PAGES; j++)
            if (j == page) at = table[j];
        if (page * PAGE >= u.n_keys) continue;
        sm90_barrier_expect(full, page_bytes);
        sm90_copy(base + layout::keys + i * page_bytes,
                  (const char *)a.pages +
                      2 * SM90_ATTN_PAGE_AT(at, u.kv_head, 0, a.n_kv_heads, D),
                  page_bytes, full);
    }
}

/* The values of a key, 16 bytes. */
template <int D, int COLUMNS>
DEVICE void spread_copy_value(const struct sm90_attn &a, const struct spread_unit &u, u32 base,
                              u32 page, u32 key, bool is_there) {
    using layout = spread_layout<D, COLUMNS>;
    const u32 chunk = threadIdx.x % layout::chunks;

    sm90_copy_or_zero(base + layout::values + spread_value<COLUMNS>(key, chunk),
                      (const char *)a.pages +
                          2 * (SM90_ATTN_PAGE_AT(page, u.kv_head, 1, a.n_kv_heads, D) +
                               SM90_ATTN_AT(key % PAGE, u.rank * COLUMNS + chunk * 8, D)),
                      is_there);
}

/* Those of steps before; past the end of the sequence zeros: 0 times a NaN is not 0. */
template <int D, int COLUMNS>
DEVICE void spread_copy_values(const struct sm90_attn &a, const struct spread_unit &u,
                               struct spread_shared &sh, u32 base, const u32 (&table)[PAGES]) {
    using layout = spread_layout<D, COLUMNS>;
    constexpr u32 step = layout::threads / layout::chunks;

#pragma unroll
    for (u32 i = 0; i < PAGES; i++) {
        if (i / (BLOCK / PAGE) * BLOCK >= u.n_keys) continue;
#pragma unroll
        for (u32 j = 0; j < PAGE; j += step) {
            const u32 key = i * PAGE + j + threadIdx.x / layout::chunks;

            if (key < u.n_ready || key >= u.n_keys)
                spread_copy_value<D, COLUMNS>(a, u, base, table[i], key, key < u.n_keys);
        }
        if (i % (BLOCK / PAGE) == BLOCK / PAGE - 1 && (i + 1) * PAGE <= u.n_ready)
            sm90_barrier_arrive_copied(sm90_shared(&sh.values[i / (BLOCK / PAGE)]));
    }
}

/* Those of this step, a row's own. */
template <int D, int COLUMNS>
DEVICE void spread_copy_late(const struct sm90_attn &a, const struct spread_unit &u,
                             struct spread_shared &sh, u32 base, u32 page) {
    using layout = spread_layout<D, COLUMNS>;

    if (u.n_ready < u.n_keys && threadIdx.x < layout::chunks)
        spread_copy_value<D, COLUMNS>(a, u, base, page, u.n_ready, true);
#pragma unroll
    for (u32 b = 0; b < BLOCKS; b++)
        if (b * BLOCK < u.n_keys && (b + 1) * BLOCK > u.n_ready)
            sm90_barrier_arrive_copied(sm90_shared(&sh.values[b]));
}

/* Scores of this warp's keys, to all blocks of the cluster. */
template <int D, int COLUMNS>
DEVICE void spread_scores(const struct sm90_attn &a, const struct spread_unit &u,
                          struct spread_shared &sh, u32 base, u32 late_page) {
    using layout = spread_layout<D, COLUMNS>;
    constexpr u32 n_groups = layout::warp_keys / 16, group_bytes = 16 * D * 2;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = lane / 4, q = lane % 4;
    const u32 matrix = lane / 8, line = lane % 8;
    const u32 local = warp * layout::warp_keys, key = u.rank * layout::rank_keys + local;
    const u32 keys = base + layout::keys + local / 16 * group_bytes;
    const bool real = head < u.n_heads;
    const u32 *query = (const u32 *)((const u16 *)a.q + (u64)u.row * a.q_stride +
                                     (u64)(u.head + (real ? head : 0)) * D);
    u32 queries[D / 8], key_at[4];
    float s[2 * n_groups][4];

#pragma unroll
    for (u32 i = 0; i < D / 8; i++) queries[i] = real ? query[i * 4 + q] : 0;
    const bool late = u.n_ready - key < layout::warp_keys && u.n_ready < u.n_keys;
    const u32 late_at = SM90_ATTN_AT(u.n_ready % PAGE, lane % (D / 8) * 8, D) * 2;
    const uint4 late_key = sm90_fresh4_if(
        (const char *)a.pages +
            2 * SM90_ATTN_PAGE_AT(late_page, u.kv_head, 0, a.n_kv_heads, D) + late_at,
        late && lane < D / 8);

    if (layout::ranks > 1) sm90_cluster_wait(); // all blocks' barriers are made
    if (key >= u.n_keys) return;
#pragma unroll
    for (u32 i = 0; i < 4; i++)
        key_at[i] = matrix / 2 * (group_bytes / 2) + line * 128 + ((i * 2 + matrix % 2 ^ line) << 4);
#pragma unroll
    for (u32 j = 0; j < 2 * n_groups; j++) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
    sm90_barrier_wait(sm90_shared(&sh.keys[local / PAGE]), 0);
    if (late) {
        if (lane < D / 8)
            sm90_store_shared(base + layout::keys + local / PAGE * (PAGE * D * 2) + late_at,
                              late_key);
        __syncwarp(); /* it is there */
    }
#pragma unroll
    for (u32 k = 0; k < D / 16; k++)
#pragma unroll
        for (u32 j = 0; j < n_groups; j++) {
            const u32 x[4] = {queries[2 * k], 0, queries[2 * k + 1], 0};
            u32 b[4];

            sm90_load_matrices(b, keys + j * group_bytes + k / 4 * 1024 + key_at[k % 4]);
            sm90_mma(s[2 * j], x, b[0], b[1]);
            sm90_mma(s[2 * j + 1], x, b[2], b[3]);
        }
    float top = -NUM_INFINITY;

#pragma unroll
    for (u32 j = 0; j < 2 * n_groups; j++)
#pragma unroll
        for (u32 x = 0; x < 2; x++) {
            if (key + j * 8 + q * 2 + x >= u.n_keys) s[j][x] = -NUM_INFINITY;
            top = fmaxf(top, s[j][x]);
        }
    top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
    if (!real) return;
    if constexpr (layout::ranks == 1) {
        const u32 scores = base + layout::scores;

#pragma unroll
        for (u32 j = 0; j < 2 * n_groups; j++)
            sm90_store2(scores + (head * SPREAD_KEYS + key + j * 8 + q * 2) * 4, s[j][0], s[j][1]);
        if (q == 0)
            sm90_store1(base + layout::maxima +
                            (head * layout::n_maxima + key / layout::warp_keys) * 4,
                        top);
    } else {
#pragma unroll
        for (u32 rank = 0; rank < layout::ranks; rank++) {
            const u32 barrier = sm90_peer(sm90_shared(&sh.scores), rank);
            const u32 scores = sm90_peer(base + layout::scores, rank);

#pragma unroll
            for (u32 j = 0; j < 2 * n_groups; j++)
                sm90_send2(scores + (head * SPREAD_KEYS + key + j * 8 + q * 2) * 4, s[j][0], s[j][1],
                           barrier);
            if (q == 0)
                sm90_send(scores + (HEADS * SPREAD_KEYS + head * layout::n_maxima +
                                    key / layout::warp_keys) *
                                       4,
                          top, barrier);
        }
    }
}

/* M after each block. */
template <int D, int COLUMNS>
DEVICE void spread_maxima(const struct sm90_attn &a, u32 n_keys, u32 base, u32 head,
                          float (&m)[BLOCKS]) {
    using layout = spread_layout<D, COLUMNS>;
    constexpr u32 n = layout::n_maxima / BLOCKS;
    float last = ATTN_M_START;

#pragma unroll
    for (u32 b = 0; b < BLOCKS; b++) {
        float top = -NUM_INFINITY;

#pragma unroll
        for (u32 i = 0; i < n; i += 4) {
            const float4 v =
                sm90_load4(base + layout::maxima + (head * layout::n_maxima + b * n + i) * 4);
            const float x[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
            for (u32 j = 0; j < 4; j++) /* those of keys past the end were not sent */
                if (b * BLOCK + (i + j) * layout::warp_keys < n_keys) top = fmaxf(top, x[j]);
        }
        last = m[b] = attn_max(last, top, a.c);
    }
}

/* Eight keys of a head a thread. */
template <int D, int COLUMNS>
DEVICE void spread_weights(const struct sm90_attn &a, const struct spread_unit &u, u32 base) {
    using layout = spread_layout<D, COLUMNS>;

    for (u32 e = threadIdx.x; e < u.n_heads * (SPREAD_KEYS / 8); e += layout::threads) {
        const u32 head = e / (SPREAD_KEYS / 8), key = e % (SPREAD_KEYS / 8) * 8;
        const u32 at = base + layout::scores + (head * SPREAD_KEYS + key) * 4;
        const float4 low = sm90_load4(at), high = sm90_load4(at + 16);
        float w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, m[BLOCKS];
        float of_block;

        spread_maxima<D, COLUMNS>(a, u.n_keys, base, head, m);
        of_block = m[0];
#pragma unroll
        for (u32 b = 1; b < BLOCKS; b++)
            if (key >= b * BLOCK) of_block = m[b];
#pragma unroll
        for (u32 i = 0; i < 8; i++)
            w[i] = key + i < u.n_keys ? attn_weight(w[i], a.c, of_block) : 0.0f;
        sm90_store4(base + layout::weights + (head * P_PITCH + key) * 2, sm90_pack(w[0], w[1]),
                    sm90_pack(w[2], w[3]), sm90_pack(w[4], w[5]), sm90_pack(w[6], w[7]));
    }
}

/* Two columns of a head: their sums, M and l. */
struct spread_sums {
    float o[2], m, l;
};

template <int D, int COLUMNS>
DEVICE struct spread_sums spread_sum(const struct sm90_attn &a, const struct spread_unit &u,
                                     struct spread_shared &sh, u32 base) {
    using layout = spread_layout<D, COLUMNS>;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = lane / 4, q = lane % 4;
    const bool real = head < u.n_heads;
    const u32 weights = base + layout::weights + ((real ? head : 0) * P_PITCH + q * 2) * 2;
    const u32 values = base + layout::values + spread_value<COLUMNS>(lane, warp);
    float o[4] = {0.0f, 0.0f, 0.0f, 0.0f}, l[4] = {0.0f, 0.0f, 0.0f, 0.0f}, m[BLOCKS];
    float last = ATTN_M_START;

    spread_maxima<D, COLUMNS>(a, u.n_keys, base, real ? head : 0, m);
#pragma unroll
    for (u32 b = 0; b < BLOCKS; b++) {
        if (b * BLOCK >= u.n_keys) break;
        const float scale = attn_pow2(last - m[b]);

        last = m[b];
        o[0] = o[0] * scale;
        o[1] = o[1] * scale;
        l[0] = l[0] * scale;
        sm90_barrier_wait(sm90_shared(&sh.values[b]), 0);
#pragma unroll
        for (u32 k = 0; k < BLOCK / 16; k += 2) {
            const u32 key = b * BLOCK + k * 16;
            u32 v[4], w[2][4];

            sm90_load_matrices_across(v, values + key * layout::row_bytes);
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                w[i][0] = real ? sm90_load1(weights + (key + i * 16) * 2) : 0;
                w[i][2] = real ? sm90_load1(weights + (key + i * 16 + 8) * 2) : 0;
                w[i][1] = w[i][3] = 0;
            }
            sm90_mma(o, w[0], v[0], v[1]);
            sm90_mma(l, w[0], ATTN_ONES, ATTN_ONES);
            sm90_mma(o, w[1], v[2], v[3]);
            sm90_mma(l, w[1], ATTN_ONES, ATTN_ONES);
        }
    }
    return {{o[0], o[1]}, last, l[0]};
}

/* This lane's two columns: left for the blocks of the last split, or folded with what the others
 * left, and written. */
template <int D, int COLUMNS>
DEVICE void spread_finish(const struct sm90_attn &a, const struct spread_unit &u,
                          const struct spread_sums &own) {
    constexpr u32 n = spread_layout<D, COLUMNS>::sum_threads; /* packets of a part */
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = lane / 4, q = lane % 4;
    float4 *parts = (float4 *)a.packets + (u64)u.slot * n + threadIdx.x;
    struct spread_sums t = {{0.0f, 0.0f}, ATTN_M_START, 0.0f};

    if (head >= u.n_heads) return;
    if (u.part < u.n_parts - 1) {
        attn_packet_leave(parts + u.part * n,
                          make_float4(own.o[0], own.o[1], own.m, own.l));
        return;
    }
    for (u32 first = 0; first < u.part; first += PARTS)
        attn_packets_take<PARTS, n>(parts + first * n, min((u32)PARTS, u.part - first),
                                    [&](const float4 &part) { attn_fold_part(t, part); });
    attn_fold_part(t, make_float4(own.o[0], own.o[1], own.m, own.l));

    const float inverse = 1.0f / t.l;
    const float x = attn_result(t.o[0], inverse), y = attn_result(t.o[1], inverse);

    *(u32 *)((u16 *)a.out + ((u64)u.row * a.n_heads + u.head + head) * D + u.rank * COLUMNS +
             warp * 8 + q * 2) = sm90_pack(x, y);
    if (!attn_sums_fine(t.m, t.l) || !attn_finite(x) || !attn_finite(y))
        ((unsigned char *)a.flagged)[u.row] = 1;
}

extern __shared__ unsigned char spread_dynamic[];

template <int D, int COLUMNS>
DEVICE void spread_run(const struct sm90_attn &a) {
    using layout = spread_layout<D, COLUMNS>;
    __shared__ struct spread_shared sh;
    const u32 base = (sm90_shared(spread_dynamic) + 1023) & ~1023u;
    struct spread_unit u;

    if (!spread_unit<D, COLUMNS>(a, u)) { // of the upload, which no kernel writes
        sm90_launch_next();
        sm90_wait_previous(); // and keep our place so long
        return;
    }
    if (threadIdx.x == 0) {
        const u32 n_warps = (u.n_keys + layout::warp_keys - 1) / layout::warp_keys;

        for (u32 i = 0; i < layout::rank_pages; i++)
            sm90_barrier_init(sm90_shared(&sh.keys[i]), 1);
        for (u32 i = 0; i < BLOCKS; i++)
            sm90_barrier_init(sm90_shared(&sh.values[i]), layout::threads);
        if (layout::ranks > 1) sm90_barrier_init(sm90_shared(&sh.scores), 1);
        sm90_barrier_init_done();
        if (layout::ranks > 1)
            sm90_barrier_expect(sm90_shared(&sh.scores),
                                n_warps * u.n_heads * (layout::warp_keys + 1) * 4);
    }
    __syncthreads(); // nobody touches a barrier before it is made
    if (layout::ranks > 1) sm90_cluster_arrive();
    sm90_launch_next();

    const u32 n_pages = (u.n_keys + PAGE - 1) / PAGE;
    const u32 *at = (const u32 *)a.table + (u64)u.seq * a.n_seq_pages + u.first / PAGE;
    const u32 late_page = u.n_ready < u.n_keys ? at[u.n_ready / PAGE] : 0;
    u32 table[PAGES];

#pragma unroll
    for (u32 i = 0; i < PAGES; i++) table[i] = at[i < n_pages ? i : 0];
    if (threadIdx.x == 0) spread_copy_keys<D, COLUMNS>(a, u, sh, base, table);
    spread_copy_values<D, COLUMNS>(a, u, sh, base, table);
    sm90_wait_previous();
    spread_copy_late<D, COLUMNS>(a, u, sh, base, late_page);
    __syncwarp();
    spread_scores<D, COLUMNS>(a, u, sh, base, late_page);
    __syncwarp(); // those without a head are back
    if (layout::ranks > 1)
        sm90_barrier_wait_cluster(sm90_shared(&sh.scores), 0);
    else
        __syncthreads(); // scores of all warps
    spread_weights<D, COLUMNS>(a, u, base);
    __syncthreads(); // weights of all threads
    if (threadIdx.x < layout::sum_threads)
        spread_finish<D, COLUMNS>(a, u, spread_sum<D, COLUMNS>(a, u, sh, base));
    else
        sm90_wait_copied(); // nobody ends before the copies that others wait for have come
}

#endif
