/* sm90_attn_few - attention of rows by themselves: bound by reading keys and values once.
 *
 *   a         see sm90_attn.h; tiles of one row each
 *   grid      (KV heads x chunks of 8 query heads, tiles, blocks of a row and more: those without
 *             keys touch no result)
 *   block     160 threads: four warps that compute, one that copies
 *   shared    1024 to align, then STAGES times 128 keys (or values) x D
 *   rounding  SPEC 2.7
 *   bound by  HBM, 4 D bytes a key and KV head
 *
 * The query heads of a KV head are rows of mma.sync, eight of sixteen.  Scores are shared out over
 * warps by keys, sums by columns of V; between them the maximum and the weights pass through
 * shared memory.  A block that has all splits of its row folds them where they end.  Else, where all
 * blocks run at once (`together`), each leaves its splits as packets and folds a share of the row;
 * where they do not, a block has one split, and the last one to finish folds all.
 *
 * A block's share of a row in many parts is few columns, and so few threads that each would wait for
 * one packet after the other: `long*` take all of a share's at once, by all threads, into the ring.
 *
 *   barrier  arrives                waits
 *   full     copier, the bytes      all who compute
 *   empty    a lane of each warp    copier
 *   named 1  all who compute: maxima are there; then weights are, and V is cut to its end; then, in
 *            long*, the ring is read; then packets are in it */
#ifndef LLM42D_PTX_SM90_ATTN_FEW_CUH
#define LLM42D_PTX_SM90_ATTN_FEW_CUH

#include "ptx/sm90_attn.cuh"

enum {
    FEW_WARPS = 4,
    FEW_THREADS = FEW_WARPS * 32,
    FEW_STAGES = 3,
    HEADS = SM90_ATTN_FEW_HEADS,
    BLOCK = SM90_ATTN_BLOCK,
    PAGE = SM90_ATTN_PAGE,
    PARTS = 8,           /* of a share's fold, in flight */
    PACKETS = 8,         /* the same of a thread of long*: 16 KB of the ring */
    P_PITCH = BLOCK + 8, /* weights of a head, against bank conflicts */
};

struct few_shared {
    u64 full[FEW_STAGES], empty[FEW_STAGES];
    float maxima[2][HEADS][FEW_WARPS];
    u16 p[2][HEADS][P_PITCH];
    u32 count; /* of parts before ours */
};

/* What a block does: keys first .. end - 1 for some heads of one row. */
struct few_unit {
    u32 row, seq, first, end, limit, old; /* limit: of the row's keys; old: of sm90_attn_tile */
    u32 kv_head, head, n_heads;           /* query heads head .. head + n_heads - 1 */
    u32 n_blocks, block;                  /* of the row, this one */
    u32 n_parts, slot;                    /* splits of the row, the first one's place */
};

DEVICE bool few_unit(const struct sm90_attn &a, struct few_unit &u) {
    const struct sm90_attn_tile tile = ((const struct sm90_attn_tile *)a.tiles)[blockIdx.y];
    const u32 n_chunks = gridDim.x / a.n_kv_heads, chunk = blockIdx.x / a.n_kv_heads;

    u.row = tile.row;
    u.seq = tile.seq;
    u.limit = tile.end;
    u.old = tile.old;
    u.kv_head = blockIdx.x % a.n_kv_heads;
    u.head = u.kv_head * a.n_shared + chunk * HEADS;
    u.n_heads = min((u32)HEADS, a.n_shared - chunk * HEADS);
    u.block = blockIdx.z;
    u.n_blocks = (tile.end + a.block_keys - 1) / a.block_keys;
    u.n_parts = (tile.end + a.split_keys - 1) / a.split_keys;
    u.slot = (blockIdx.y * gridDim.x + blockIdx.x) * a.n_splits;
    u.first = u.block * a.block_keys;
    u.end = min(u.first + a.block_keys, tile.end);
    return tile.n_rows > 0 && u.block < u.n_blocks;
}

struct few_stage {
    u32 index, parity;

    DEVICE_METHOD void next(void) {
        if (++index < FEW_STAGES) return;
        index = 0;
        parity ^= 1;
    }
};

template <int D>
DEVICE void few_copy(const struct sm90_attn &a, const struct few_unit &u, struct few_shared &sh,
                     u32 ring) {
    constexpr u32 page_bytes = PAGE * D * 2, stage_bytes = BLOCK * D * 2;
    const u32 *table = (const u32 *)a.table + (u64)u.seq * a.n_seq_pages;
    struct few_stage stage = {0, 0};
    bool waited = false;

    for (u32 key = u.first; key < u.end; key += BLOCK) {
        const u32 n_pages = min(2u, (u.end - key + PAGE - 1) / PAGE);
        const char *from[2];

        // keys of steps before are on their way while the kernel before us still runs
        if (!waited && key + BLOCK > u.old) {
            sm90_wait_previous();
            waited = true;
        }
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            if (i < n_pages)
                from[i] = (const char *)a.pages +
                          2 * SM90_ATTN_PAGE_AT(table[key / PAGE + i], u.kv_head, 0, a.n_kv_heads,
                                                D);
#pragma unroll
        for (u32 v = 0; v < 2; v++) {
            const u32 full = sm90_shared(&sh.full[stage.index]);

            sm90_barrier_wait(sm90_shared(&sh.empty[stage.index]), stage.parity ^ 1);
            sm90_barrier_expect(full, n_pages * page_bytes);
#pragma unroll
            for (u32 i = 0; i < 2; i++)
                if (i < n_pages)
                    sm90_copy(ring + stage.index * stage_bytes + i * page_bytes,
                              from[i] + v * page_bytes, page_bytes, full);
            stage.next();
        }
    }
    if (!waited) sm90_wait_previous();
}

/* One head's results, columns D / 4 of this warp: T and l, or what is left of a split. */
template <int D>
struct few_sums {
    float m, l, o[D / 16];
};

template <int D>
DEVICE void few_write(const struct sm90_attn &a, const struct few_unit &u,
                      const struct few_sums<D> &s, u32 head, u32 column) {
    const float inverse = 1.0f / s.l;
    u16 *out = (u16 *)a.out + ((u64)u.row * a.n_heads + u.head + head) * D + column;
    bool fine = attn_sums_fine(s.m, s.l);

#pragma unroll
    for (u32 j = 0; j < D / 32; j++) {
        const float x = attn_result(s.o[2 * j], inverse), y = attn_result(s.o[2 * j + 1], inverse);

        fine = fine && attn_finite(x) && attn_finite(y);
        *(u32 *)(out + j * 8) = sm90_pack(x, y);
    }
    if (!fine) ((unsigned char *)a.flagged)[u.row] = 1;
}

template <int D>
DEVICE void few_park(const struct sm90_attn &a, const struct few_unit &u,
                     const struct few_sums<D> &s, u32 head, u32 column, bool first) {
    float *part = attn_part<D, HEADS>(a, u.slot + u.block), *o = part + 2 * HEADS + head * D + column;

    if (first) *(float2 *)(part + 2 * head) = make_float2(s.m, s.l);
#pragma unroll
    for (u32 j = 0; j < D / 32; j++)
        *(float2 *)(o + j * 8) = make_float2(s.o[2 * j], s.o[2 * j + 1]);
}

/* The same for blocks that all run at once: packets, two columns of a head each. */
template <int D>
DEVICE void few_leave(const struct sm90_attn &a, const struct few_unit &u,
                      const struct few_sums<D> &s, u32 part, u32 head, u32 column) {
    float4 *packets = (float4 *)a.packets + (u64)(u.slot + part) * (HEADS * D / 2);

#pragma unroll
    for (u32 j = 0; j < D / 32; j++)
        attn_packet_leave(packets + (head * D + column) / 2 + j * 4,
                          make_float4(s.o[2 * j], s.o[2 * j + 1], s.m, s.l));
}

/* Two columns of a head over all parts so far. */
struct few_totals {
    float o[2], m, l;
};

template <int D>
DEVICE void few_end(const struct sm90_attn &a, const struct few_unit &u, const struct few_totals &t,
                    u32 e) {
    const float inverse = 1.0f / t.l;
    const float x = attn_result(t.o[0], inverse), y = attn_result(t.o[1], inverse);

    *(u32 *)((u16 *)a.out + ((u64)u.row * a.n_heads + u.head) * D + 2 * e) = sm90_pack(x, y);
    if (!attn_sums_fine(t.m, t.l) || !attn_finite(x) || !attn_finite(y))
        ((unsigned char *)a.flagged)[u.row] = 1;
}

/* Of all parts' packets this block's share. */
template <int D>
DEVICE void few_take(const struct sm90_attn &a, const struct few_unit &u) {
    float4 *packets = (float4 *)a.packets + (u64)u.slot * (HEADS * D / 2);
    const u32 n = u.n_heads * (D / 2), end = n * (u.block + 1) / u.n_blocks;

    for (u32 e = n * u.block / u.n_blocks + threadIdx.x; e < end; e += FEW_THREADS) {
        struct few_totals t = {{0.0f, 0.0f}, ATTN_M_START, 0.0f};

        for (u32 first = 0; first < u.n_parts; first += PARTS)
            attn_packets_take<PARTS, HEADS * D / 2>(
                packets + e + first * (HEADS * D / 2), min((u32)PARTS, u.n_parts - first),
                [&](const float4 &part) { attn_fold_part(t, part); });
        few_end<D>(a, u, t, e);
    }
}

/* The same by all threads, as many parts at once as these have packets for; then a thread folds two
 * columns. */
template <int D>
DEVICE void few_take_long(const struct sm90_attn &a, const struct few_unit &u, u32 ring) {
    float4 *packets = (float4 *)a.packets + (u64)u.slot * (HEADS * D / 2);
    const u32 n = u.n_heads * (D / 2), end = n * (u.block + 1) / u.n_blocks;

    for (u32 start = n * u.block / u.n_blocks; start < end; start += FEW_THREADS) {
        const u32 width = min((u32)FEW_THREADS, end - start); /* pairs of columns */
        const u32 most = PACKETS * FEW_THREADS / width;       /* parts at once */
        const u32 down = FEW_THREADS / width, right = FEW_THREADS % width;
        struct few_totals t = {{0.0f, 0.0f}, ATTN_M_START, 0.0f};

        for (u32 first = 0; first < u.n_parts; first += most) {
            const u32 n_parts = min(most, u.n_parts - first), n_packets = n_parts * width;
            const u32 mine = n_packets > threadIdx.x
                                 ? (n_packets - threadIdx.x + FEW_THREADS - 1) / FEW_THREADS
                                 : 0;
            float4 *at[PACKETS];
            uint4 v[PACKETS];

#pragma unroll
            for (u32 i = 0, part = threadIdx.x / width, e = threadIdx.x % width; i < PACKETS; i++) {
                at[i] = packets + (first + part) * (HEADS * D / 2) + start + e;
                part += down;
                e += right;
                if (e < width) continue;
                part++;
                e -= width;
            }
#pragma unroll
            for (u32 i = 0; i < PACKETS; i++)
                if (i < mine) v[i] = sm90_look4(at[i]);
            sm90_named_sync(1, FEW_THREADS); // all have read what stands in the ring
#pragma unroll
            for (u32 i = 0; i < PACKETS; i++) {
                if (i >= mine) continue;
                const float4 x = attn_packet_take(at[i], v[i]);

                sm90_store4(ring + (threadIdx.x + i * FEW_THREADS) * 16, x.x, x.y, x.z, x.w);
            }
            sm90_named_sync(1, FEW_THREADS); // all packets are there
            if (threadIdx.x >= width) continue;
#pragma unroll 4
            for (u32 i = 0; i < n_parts; i++)
                attn_fold_part(t, sm90_load4(ring + (i * width + threadIdx.x) * 16));
        }
        if (threadIdx.x < width) few_end<D>(a, u, t, start + threadIdx.x);
    }
}

/* Values past the end of the sequence may be anything, and 0 times a NaN is not 0. */
template <int D>
DEVICE void few_cut_values(u32 stage, u32 n_keys) {
    for (u32 e = threadIdx.x; e < BLOCK * (D / 8); e += FEW_THREADS) {
        const u32 key = e / (D / 8), chunk = e % (D / 8) * 8;

        if (key < n_keys) continue;
        sm90_fill4(stage + key / PAGE * (PAGE * D * 2) + 2 * SM90_ATTN_AT(key % PAGE, chunk, D), 0);
    }
    sm90_fence_async(); /* before the copy engine writes here again */
}

template <int D, bool LONG>
DEVICE void few_compute(const struct sm90_attn &a, const struct few_unit &u,
                        struct few_shared &sh, u32 ring) {
    constexpr u32 stage_bytes = BLOCK * D * 2, group_bytes = 16 * D * 2;
    constexpr u32 n_fragments = D / 32; /* of the warp's columns */
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = lane / 4, q = lane % 4;
    const u32 matrix = lane / 8, line = lane % 8, columns = warp * (D / 4);
    const bool real = head < u.n_heads;
    const u32 *query = (const u32 *)((const u16 *)a.q + (u64)u.row * a.q_stride +
                                     (u64)(u.head + (real ? head : 0)) * D);
    u32 queries[D / 8], key_at[4], value_at[(n_fragments + 1) / 2];
    float o[n_fragments][4], sums[4];
    struct few_sums<D> total = {ATTN_M_START, 0.0f, {0.0f}};
    struct few_stage stage = {0, 0};
    float m = ATTN_M_START;
    u32 buffer = 0;

#pragma unroll
    for (u32 i = 0; i < D / 8; i++) queries[i] = real ? query[i * 4 + q] : 0;
    // what ldmatrix wants of this lane: a line of two atoms of keys, or of values
#pragma unroll
    for (u32 i = 0; i < 4; i++)
        key_at[i] = matrix / 2 * (group_bytes / 2) + line * 128 + ((i * 2 + matrix % 2 ^ line) << 4);
#pragma unroll
    for (u32 i = 0; i < (n_fragments + 1) / 2; i++)
        value_at[i] = matrix % 2 * (group_bytes / 2) + columns / 64 * 1024 + line * 128 +
                      ((columns % 64 / 8 + i * 2 + matrix / 2 ^ line) << 4);
#pragma unroll
    for (u32 j = 0; j < n_fragments; j++) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.0f;
    sums[0] = sums[1] = sums[2] = sums[3] = 0.0f;

    for (u32 start = u.first; start < u.end; start += BLOCK, buffer ^= 1) {
        const u32 keys = ring + stage.index * stage_bytes + warp * (2 * group_bytes);
        const u32 own = start + warp * 32 + q * 2; /* the first key of this lane */
        const bool masked = start + BLOCK > u.limit;
        float s[4][4];

        // scores of 32 keys
        sm90_barrier_wait(sm90_shared(&sh.full[stage.index]), stage.parity);
#pragma unroll
        for (u32 j = 0; j < 4; j++) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
#pragma unroll
        for (u32 k = 0; k < D / 16; k++)
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                const u32 x[4] = {queries[2 * k], 0, queries[2 * k + 1], 0};
                u32 b[4];

                sm90_load_matrices(b, keys + j * group_bytes + k / 4 * 1024 + key_at[k % 4]);
                sm90_mma(s[2 * j], x, b[0], b[1]);
                sm90_mma(s[2 * j + 1], x, b[2], b[3]);
            }
        __syncwarp(); // all lanes have read
        if (lane == 0) sm90_barrier_arrive(sm90_shared(&sh.empty[stage.index]));
        stage.next();

        // the block's maximum, over lanes, then over warps
        if (masked)
#pragma unroll
            for (u32 j = 0; j < 4; j++)
#pragma unroll
                for (u32 x = 0; x < 2; x++)
                    if (own + j * 8 + x >= u.limit) s[j][x] = -NUM_INFINITY;
        float top = s[0][0];
#pragma unroll
        for (u32 j = 0; j < 4; j++) top = fmaxf(top, fmaxf(s[j][0], s[j][1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
        if (q == 0) sh.maxima[buffer][head][warp] = top;
        sm90_named_sync(1, FEW_THREADS); // maxima of all warps
        const float4 tops = *(const float4 *)sh.maxima[buffer][head];
        const float old = m;

        m = attn_max(m, fmaxf(fmaxf(tops.x, tops.y), fmaxf(tops.z, tops.w)), a.c);
        const float scale = attn_pow2(old - m);

        // weights
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            float w0 = attn_weight(s[j][0], a.c, m), w1 = attn_weight(s[j][1], a.c, m);

            if (masked && own + j * 8 >= u.limit) w0 = 0.0f;
            if (masked && own + j * 8 + 1 >= u.limit) w1 = 0.0f;
            *(u32 *)&sh.p[buffer][head][warp * 32 + j * 8 + q * 2] =
                real ? sm90_pack(w0, w1) : 0;
        }
#pragma unroll
        for (u32 j = 0; j < n_fragments; j++) {
            o[j][0] = o[j][0] * scale;
            o[j][1] = o[j][1] * scale;
        }
        sums[0] = sums[0] * scale;

        // sums over 128 keys
        const u32 values = ring + stage.index * stage_bytes;

        sm90_barrier_wait(sm90_shared(&sh.full[stage.index]), stage.parity);
        if (masked) few_cut_values<D>(values, u.limit - start);
        sm90_named_sync(1, FEW_THREADS); // weights of all warps, and the cut
#pragma unroll
        for (u32 k = 0; k < BLOCK / 16; k++) {
            const u16 *p = &sh.p[buffer][head][k * 16 + q * 2];
            const u32 w[4] = {*(const u32 *)p, 0, *(const u32 *)(p + 8), 0};

#pragma unroll
            for (u32 i = 0; i < n_fragments / 2; i++) {
                u32 b[4];

                sm90_load_matrices_across(b, values + k * group_bytes + value_at[i]);
                sm90_mma(o[2 * i], w, b[0], b[1]);
                sm90_mma(o[2 * i + 1], w, b[2], b[3]);
            }
            sm90_mma(sums, w, ATTN_ONES, ATTN_ONES);
        }
        __syncwarp(); // all lanes have read
        if (lane == 0) sm90_barrier_arrive(sm90_shared(&sh.empty[stage.index]));
        stage.next();

        // the end of a split
        if ((start + BLOCK) % a.split_keys != 0 && start + BLOCK < u.end) continue;
        if (u.n_blocks > 1) {
            struct few_sums<D> part = {m, sums[0], {0.0f}};

#pragma unroll
            for (u32 j = 0; j < D / 16; j++) part.o[j] = o[j / 2][j % 2];
            if (real && a.together)
                few_leave<D>(a, u, part, start / a.split_keys, head, columns + q * 2);
            else if (real)
                few_park<D>(a, u, part, head, columns + q * 2, warp == 0 && q == 0);
        } else {
            const struct attn_fold f = attn_fold(total.m, m);

            total.m = f.m;
            total.l = attn_folded(f, total.l, sums[0]);
#pragma unroll
            for (u32 j = 0; j < D / 16; j++)
                total.o[j] = attn_folded(f, total.o[j], o[j / 2][j % 2]);
        }
        m = ATTN_M_START;
        sums[0] = 0.0f;
#pragma unroll
        for (u32 j = 0; j < n_fragments; j++) o[j][0] = o[j][1] = 0.0f;
    }
    if (u.n_blocks > 1 && a.together) {
        if (threadIdx.x == 0) sm90_launch_next(); // all blocks are about to end
        if (LONG)
            few_take_long<D>(a, u, ring);
        else
            few_take<D>(a, u);
    } else if (u.n_blocks > 1) {
        const struct attn_share share = attn_share(a, u.n_parts, u.block, u.n_heads * (D / 4), 1,
                                                   FEW_THREADS, sh.count);

        attn_combine<D, HEADS, 1, 16>(a, share, u.slot, u.n_parts, u.row, u.head, HEADS,
                                      FEW_THREADS);
    } else if (real) {
        few_write<D>(a, u, total, head, columns + q * 2);
    }
}

extern __shared__ unsigned char few_dynamic[];

template <int D, bool LONG>
DEVICE void few_run(const struct sm90_attn &a) {
    __shared__ __align__(16) struct few_shared sh;
    const u32 ring = (sm90_shared(few_dynamic) + 1023) & ~1023u;
    struct few_unit u;

    if (threadIdx.x == 0) {
        for (u32 i = 0; i < FEW_STAGES; i++) {
            sm90_barrier_init(sm90_shared(&sh.full[i]), 1);
            sm90_barrier_init(sm90_shared(&sh.empty[i]), FEW_WARPS);
        }
        sm90_barrier_init_done();
    }
    __syncthreads(); // nobody touches a barrier before it is made
    const bool some = few_unit(a, u); // of the upload, which no kernel writes

    if (a.early && threadIdx.x == 0) sm90_launch_next();
    if (some && threadIdx.x == FEW_THREADS) {
        few_copy<D>(a, u, sh, ring);
        return;
    }
    sm90_wait_previous();
    if (some && threadIdx.x < FEW_THREADS) few_compute<D, LONG>(a, u, sh, ring);
    /* Not before, where blocks share multiprocessors: the next kernel's blocks would take the places
     * that ours leave one by one, two on some multiprocessors and none on others, and a product
     * takes as long as its fullest. */
    if (threadIdx.x == 0) sm90_launch_next();
}

#endif
