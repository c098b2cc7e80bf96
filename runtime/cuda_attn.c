#ifdef LLM42_CUDA

#include "runtime/cuda_attn.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/cuda_driver.h"
#include "runtime/device.h"
#include "runtime/err.h"
#include "runtime/schedule.h"

enum {
    FEW_STAGES = 3, /* as in sm90_attn_few.cuh */
    FEW_THREADS = 160,
    ALIGN_BYTES = 1024,
    SPREAD_THREADS = 256,
    ALONE_THREADS = 512,
    ALONE_SHARE = 4, /* of multiprocessors: of more blocks each had better read less */
    UNIT_BLOCKS = 2, /* of few, that a multiprocessor has room for */
    LONG_BLOCKS = 8, /* of a row: a block's share of the fold is too little for few's threads */
    PACKET_BYTES = 16 << 20,
    FOLD_TILES = 8192,     /* times KV heads: those whose splits are spread over blocks */
    QUEUE_WORDS = 32,      /* of which sm90_attn_bf16_prompt* and turns* count in one each */
    FOLD_BYTES = 48 << 20, /* of what their splits leave */
    BLOCKS_THAT_FILL = 64, /* so many blocks read at the memory's rate */
    N_BUCKETS = 8 * 30,    /* of tiles by their length */
};

/* As the entries are compiled. */
static const struct kind {
    const char *names[2]; /* heads of 64, of 128 */
    uint32_t warpgroups, stages, threads;
} kinds[CUDA_ATTN_KINDS] = {
    {{"sm90_attn_bf16_few64", "sm90_attn_bf16_few128"}, 0, FEW_STAGES, FEW_THREADS},
    {{"sm90_attn_bf16_some64", "sm90_attn_bf16_some128"}, 1, 5, 160},
    {{"sm90_attn_bf16_many64", "sm90_attn_bf16_many128"}, 2, 4, 384},
};

/* Of single rows that are few: the more blocks to a split the sooner it is done, if there is a
 * multiprocessor for each. */
enum { SPREADS = 4 };
static const struct spread {
    const char *name;
    uint32_t head_dim, columns; /* of values, to a block */
} spreads[SPREADS] = {{"sm90_attn_bf16_alone64", 64, 64},
                      {"sm90_attn_bf16_spread64", 64, 32},
                      {"sm90_attn_bf16_spread128", 128, 32},
                      {"sm90_attn_bf16_pair128", 128, 64}};

/* In place of few, heads of 128, where many blocks have a row. */
static const char long_name[] = "sm90_attn_bf16_long128";

/* In place of many where blocks fold whole tiles. */
static const char *const prompt_names[2] = {"sm90_attn_bf16_prompt64", "sm90_attn_bf16_prompt128"};

/* In place of some where blocks fold whole tiles of more than one split. */
enum { TURNS_THREADS = 384 };
static const struct turns {
    const char *name;
    uint32_t stages; /* of 64 keys, a ring */
} turns[2] = {{"sm90_attn_bf16_turns64", 8}, {"sm90_attn_bf16_turns128", 5}};

struct cuda_attn {
    struct cuda_driver *driver;
    struct cuda_attn_shape shape;
    uint32_t n_shared; /* query heads of a KV head */
    float c;           /* log2(e) / sqrt(head_dim) */
    CUfunction entries[CUDA_ATTN_KINDS], spreads[SPREADS], prompt, turns, of_long;
};

static uint32_t ceil_div(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

uint64_t cuda_attn_page_bytes(const struct cuda_attn_shape *s) {
    return 2 * SM90_ATTN_PAGE_AT(1, 0, 0, s->n_kv_heads, s->head_dim);
}

uint64_t cuda_attn_offset(const struct cuda_attn_shape *s, uint32_t page, uint32_t kv_head,
                          bool is_value, uint32_t slot, uint32_t i) {
    return 2 * (SM90_ATTN_PAGE_AT(page, kv_head, is_value ? 1u : 0u, s->n_kv_heads, s->head_dim) +
                SM90_ATTN_AT(slot, i, s->head_dim));
}

/* A ring of stages, queries and running totals. */
static uint32_t ring_bytes(const struct cuda_attn_shape *s, uint32_t stages, uint32_t warpgroups) {
    const uint32_t stage = SM90_ATTN_BLOCK * s->head_dim * 2;
    const uint32_t rows = SM90_ATTN_ROWS * s->head_dim * (2 + 4);

    return ALIGN_BYTES + stages * stage + warpgroups * rows;
}

static uint32_t shared_bytes(const struct cuda_attn_shape *s, enum cuda_attn_kind kind) {
    return ring_bytes(s, kinds[kind].stages, kinds[kind].warpgroups);
}

/* Rings, queries of two units and a total. */
static uint32_t turns_bytes(const struct cuda_attn_shape *s) {
    return ring_bytes(s, turns[s->head_dim == 128].stages, 1) + SM90_ATTN_ROWS * s->head_dim * 2;
}

static uint32_t spread_bytes(const struct spread *s) {
    return ALIGN_BYTES + SM90_ATTN_SPREAD_BYTES(s->head_dim, s->columns);
}

int cuda_attn_open(struct cuda_driver *d, const struct cuda_attn_shape *s,
                   struct cuda_attn **out_attn, struct err *e) {
    struct cuda_attn *a;
    int r = 0;

    if (s->head_dim != 64 && s->head_dim != 128)
        return err_set(e, -ENOTSUP, "CUDA: attention heads of %u values: 64 and 128 are there",
                       s->head_dim);
    if (s->n_heads / s->n_kv_heads > SM90_ATTN_ROWS)
        return err_set(e, -ENOTSUP, "CUDA: %u query heads to a KV head, the limit is %d",
                       s->n_heads / s->n_kv_heads, SM90_ATTN_ROWS);
    a = calloc(1, sizeof(*a));
    if (!a) return err_set(e, -ENOMEM, "attention: bookkeeping");
    a->driver = d;
    a->shape = *s;
    a->n_shared = s->n_heads / s->n_kv_heads;
    a->c = (float)(0x1.71547652b82fep+0 / sqrt((double)s->head_dim));
    for (uint32_t i = 0; r == 0 && i < CUDA_ATTN_KINDS; i++) {
        const char *name = kinds[i].names[s->head_dim == 128];

        r = cuda_driver_entry(d, name, name, shared_bytes(s, i), &a->entries[i], e);
    }
    for (uint32_t i = 0; r == 0 && i < SPREADS; i++) {
        const char *name = spreads[i].name;

        if (spreads[i].head_dim == s->head_dim)
            r = cuda_driver_entry(d, name, name, spread_bytes(&spreads[i]), &a->spreads[i], e);
    }
    if (r == 0) {
        const char *name = prompt_names[s->head_dim == 128];

        r = cuda_driver_entry(d, name, name, shared_bytes(s, CUDA_ATTN_MANY), &a->prompt, e);
    }
    if (r == 0) {
        const struct turns *t = &turns[s->head_dim == 128];

        r = cuda_driver_entry(d, t->name, t->name, turns_bytes(s), &a->turns, e);
    }
    if (r == 0 && s->head_dim == 128)
        r = cuda_driver_entry(d, long_name, long_name, shared_bytes(s, CUDA_ATTN_FEW), &a->of_long,
                              e);
    if (r < 0) {
        cuda_attn_close(a);
        return r;
    }
    *out_attn = a;
    return 0;
}

void cuda_attn_close(struct cuda_attn *a) {
    free(a);
}

uint64_t cuda_attn_work_bytes(const struct cuda_attn *a) {
    (void)a;
    return (FOLD_TILES + QUEUE_WORDS) * sizeof(uint32_t) + PACKET_BYTES + FOLD_BYTES;
}

/* Query rows of a run of n rows decide who computes it. */
static enum cuda_attn_kind kind_of(const struct cuda_attn *a, uint32_t n) {
    if (n == 1) return CUDA_ATTN_FEW;
    return n * a->n_shared <= SM90_ATTN_ROWS ? CUDA_ATTN_SOME : CUDA_ATTN_MANY;
}

/* Eight buckets to a factor of two, the longest tiles in the first. */
static uint32_t bucket_of(uint32_t end) {
    const uint32_t power = end > 15 ? 28 - (uint32_t)__builtin_clz(end) : 0;

    return N_BUCKETS - 1 - power * 8 - (end >> power);
}

/* Where tiles go, by kind and length. */
struct places {
    uint32_t n_tiles[CUDA_ATTN_KINDS];
    uint32_t at[CUDA_ATTN_KINDS][N_BUCKETS];
};

/* Tiles counted into their buckets, or put where these say, from their ends down. */
static void tile_rows(const struct cuda_attn *a, const struct device_row *rows, uint32_t n_rows,
                      struct sm90_attn_tile *out, struct places *places) {
    for (uint32_t row = 0, end; row < n_rows; row = end) {
        enum cuda_attn_kind kind;
        uint32_t most;

        for (end = row + 1; end < n_rows && rows[end].seq == rows[row].seq; end++)
            ASSERT(rows[end].position > rows[end - 1].position);
        if (rows[row].seq == UINT32_MAX) continue;
        kind = kind_of(a, end - row);
        most = kind == CUDA_ATTN_FEW ? 1 : kinds[kind].warpgroups * SM90_ATTN_ROWS / a->n_shared;
        for (uint32_t first = row; first < end; first += most) {
            const uint32_t n = end - first < most ? end - first : most;
            const uint32_t n_keys = rows[first + n - 1].position + 1;
            uint32_t *at = &places->at[kind][bucket_of(n_keys)];

            if (!out)
                ++*at, places->n_tiles[kind]++;
            else
                out[--*at] = (struct sm90_attn_tile){.row = first,
                                                     .n_rows = n,
                                                     .seq = rows[first].seq,
                                                     .end = n_keys,
                                                     .seen = rows[first].position,
                                                     .old = rows[row].position};
        }
    }
}

/* At least n, so that graphs made for one step fit the next. */
static uint64_t power_of_two(uint64_t n) {
    uint64_t power = 1;

    while (power < n) power *= 2;
    return n ? power : 0;
}

/* One kind behind the other, each nearly the longest first: that none starts last which takes long
 * needs no more. */
void cuda_attn_plan(const struct cuda_attn *a, const struct device_row *rows, uint32_t n_rows,
                    struct sm90_attn_tile *out_tiles, struct cuda_attn_plan *out_plan) {
    struct places places = {.n_tiles = {0}};
    uint32_t n_tiles = 0, end_max[CUDA_ATTN_KINDS] = {0};
    uint64_t n_keys[CUDA_ATTN_KINDS] = {0};

    memset(out_plan, 0, sizeof(*out_plan));
    tile_rows(a, rows, n_rows, NULL, &places);
    for (uint32_t kind = 0; kind < CUDA_ATTN_KINDS; kind++) {
        out_plan->n_tiles[kind] = places.n_tiles[kind];
        for (uint32_t i = 0; places.n_tiles[kind] && i < N_BUCKETS; i++)
            places.at[kind][i] = n_tiles += places.at[kind][i];
    }
    ASSERT(n_tiles <= n_rows);
    tile_rows(a, rows, n_rows, out_tiles, &places);
    for (uint32_t kind = 0, i = 0, end = 0; kind < CUDA_ATTN_KINDS; kind++)
        for (end += out_plan->n_tiles[kind]; i < end; i++) {
            n_keys[kind] += out_tiles[i].end;
            if (out_tiles[i].end > end_max[kind]) end_max[kind] = out_tiles[i].end;
        }
    out_plan->end_max = end_max[CUDA_ATTN_FEW];
    out_plan->n_keys = n_keys[CUDA_ATTN_FEW];
    for (uint32_t kind = CUDA_ATTN_SOME; kind < CUDA_ATTN_KINDS; kind++) {
        out_plan->run_end_max[kind] = (uint32_t)power_of_two(end_max[kind]);
        out_plan->run_n_keys[kind] = power_of_two(n_keys[kind]);
    }
}

/* Floats of what a split leaves of a tile. */
static uint64_t part_words(const struct cuda_attn *a, enum cuda_attn_kind kind) {
    const uint32_t n_rows =
        kind == CUDA_ATTN_FEW ? SM90_ATTN_FEW_HEADS : kinds[kind].warpgroups * SM90_ATTN_ROWS;

    return (uint64_t)n_rows * (2 + a->shape.head_dim);
}

/* Blocks of a tile: one that folds all of its splits, unless the longest tile would then keep the
 * others waiting, while there is room for what the splits leave. */
static uint32_t count_splits(const struct cuda_attn *a, const struct cuda_attn_plan *plan,
                             enum cuda_attn_kind kind, uint32_t n_units_of_tile,
                             uint32_t split_keys) {
    const bool few = kind == CUDA_ATTN_FEW;
    const uint32_t end_max = few ? plan->end_max : plan->run_end_max[kind];
    const uint64_t n_keys = few ? plan->n_keys : plan->run_n_keys[kind];
    const uint64_t n_units = (uint64_t)plan->n_tiles[kind] * n_units_of_tile;
    const uint32_t n_splits = ceil_div(end_max, split_keys);
    const uint64_t n_bytes = n_units * n_splits * part_words(a, kind) * sizeof(float);

    if (n_splits <= 1 || n_keys * n_units_of_tile >= (uint64_t)end_max * BLOCKS_THAT_FILL) return 1;
    if (n_units > FOLD_TILES || n_bytes > FOLD_BYTES) return 1;
    return n_splits;
}

/* Packets that so many splits leave of so many columns each. */
static bool packets_fit(uint64_t n_splits, uint32_t n_columns) {
    return n_splits * SM90_ATTN_FEW_HEADS * n_columns / 2 * SM90_ATTN_PACKET <= PACKET_BYTES;
}

/* Where the blocks are no more than multiprocessors: as many as leave none of these empty, so that
 * the next kernel's blocks, which may start at once, spread evenly over them. */
static void fill_units(const struct cuda_attn *a, struct cuda_launch *l, struct sm90_attn *p) {
    const uint32_t n_slice = l->grid[0] * l->grid[1], n_units = a->driver->n_units;

    p->early = (uint64_t)n_slice * l->grid[2] <= n_units;
    /* Short kernels all around: none of them keeps the others waiting. */
    if (p->early && l->block[0] != ALONE_THREADS) l->grid[2] = n_units / n_slice;
}

/* Single rows, so few that each split has a cluster of its own, a multiprocessor a block. */
static bool to_spread(const struct cuda_attn *a, const struct cuda_attn_plan *plan,
                      uint32_t split_keys, struct cuda_launch *l) {
    const uint32_t n_splits = ceil_div(plan->end_max, SM90_ATTN_SPREAD_KEYS);

    if (split_keys != SM90_ATTN_SPREAD_KEYS) return false;
    for (uint32_t i = 0; i < SPREADS; i++) {
        const struct spread *s = &spreads[i];
        const uint32_t n_ranks = s->head_dim / s->columns;
        const uint32_t n_own = a->driver->n_own / (n_ranks == 1 ? ALONE_SHARE : 1);

        if (s->head_dim != a->shape.head_dim) continue;
        if ((uint64_t)l->grid[0] * l->grid[1] * n_ranks * n_splits > n_own) continue;
        l->entry = a->spreads[i];
        l->name = s->name;
        l->grid[0] *= n_ranks;
        l->grid[2] = n_splits;
        l->block[0] = n_ranks > 1 ? SPREAD_THREADS : ALONE_THREADS;
        l->cluster = n_ranks > 1 ? n_ranks : 0;
        l->shared_bytes = spread_bytes(s);
        return true;
    }
    return false;
}

/* Blocks of a row: one that has it all, or as many as run at once, where the rows alone would leave
 * half of the multiprocessors without a block. */
static void to_few(const struct cuda_attn *a, const struct cuda_attn_plan *plan,
                   uint32_t split_keys, struct cuda_launch *l, struct sm90_attn *p) {
    const uint32_t n_rows = l->grid[0] * l->grid[1]; /* times KV heads and chunks */
    const uint32_t n_splits = ceil_div(plan->end_max, split_keys);
    const uint32_t n_own = a->driver->n_own;
    const uint32_t n_blocks_max = 2 * n_rows > n_own ? 1 : UNIT_BLOCKS * n_own / n_rows;

    p->together = n_splits > 1 && n_blocks_max > 1 &&
                  packets_fit((uint64_t)n_rows * n_splits, a->shape.head_dim);
    if (p->together) {
        const uint32_t n_block_splits = ceil_div(n_splits, n_blocks_max);

        p->n_splits = n_splits;
        p->block_keys = n_block_splits * split_keys;
        l->grid[2] = ceil_div(n_splits, n_block_splits);
        if (l->grid[2] >= LONG_BLOCKS && a->of_long) {
            l->entry = a->of_long;
            l->name = long_name;
        }
        return;
    }
    p->n_splits = count_splits(a, plan, CUDA_ATTN_FEW, l->grid[0], split_keys);
    p->block_keys = p->n_splits == 1 ? n_splits * split_keys : split_keys;
    l->grid[2] = p->n_splits;
}

/* A block a multiprocessor, which take tiles one after the other. */
static void to_prompt(const struct cuda_attn *a, const struct cuda_attn_plan *plan,
                      const struct cuda_attn_args *args, struct cuda_launch *launch,
                      struct sm90_attn *p) {
    const uint32_t n_units = plan->n_tiles[CUDA_ATTN_MANY] * a->shape.n_kv_heads;

    launch->entry = a->prompt;
    launch->name = prompt_names[a->shape.head_dim == 128];
    launch->grid[0] = n_units < a->driver->n_units ? n_units : a->driver->n_units;
    launch->grid[1] = 1;
    p->n_tiles = plan->n_tiles[CUDA_ATTN_MANY];
    p->counters = args->d_work + FOLD_TILES * sizeof(uint32_t);
}

/* Two warpgroups to a tile, which take its splits in turns; a block takes one after the other. */
static void to_turns(const struct cuda_attn *a, const struct cuda_attn_plan *plan,
                     const struct cuda_attn_args *args, struct cuda_launch *l,
                     struct sm90_attn *p) {
    const struct turns *t = &turns[a->shape.head_dim == 128];
    const uint32_t n_units = plan->n_tiles[CUDA_ATTN_SOME] * a->shape.n_kv_heads;

    l->entry = a->turns;
    l->name = t->name;
    l->block[0] = TURNS_THREADS;
    l->shared_bytes = turns_bytes(&a->shape);
    l->grid[0] = n_units < a->driver->n_units ? n_units : a->driver->n_units;
    l->grid[1] = 1;
    p->n_tiles = plan->n_tiles[CUDA_ATTN_SOME];
    p->counters = args->d_work + (FOLD_TILES + QUEUE_WORDS / 2) * sizeof(uint32_t);
}

int cuda_attn_run(struct cuda_attn *a, const struct cuda_attn_plan *plan,
                  const struct cuda_attn_args *args, struct err *e) {
    const uint32_t n_chunks = ceil_div(a->n_shared, SM90_ATTN_FEW_HEADS);
    struct sm90_attn p = {
        .pages = args->d_pages,
        .q = args->d_q,
        .out = args->d_out,
        .flagged = args->d_flagged,
        .positions = args->d_positions,
        .table = args->d_table,
        .tiles = args->d_tiles,
        .packets = args->d_work + (FOLD_TILES + QUEUE_WORDS) * sizeof(uint32_t),
        .parts = args->d_work + (FOLD_TILES + QUEUE_WORDS) * sizeof(uint32_t) + PACKET_BYTES,
        .q_stride = args->q_stride,
        .position_stride = args->position_stride,
        .n_heads = a->shape.n_heads,
        .n_kv_heads = a->shape.n_kv_heads,
        .n_shared = a->n_shared,
        .n_seq_pages = a->shape.n_seq_pages,
        .split_keys = args->split_keys,
        .c = a->c,
    };
    int r = 0;

    ASSERT(args->split_keys > 0 && args->split_keys % SCHEDULE_KV_BLOCK == 0);
    ASSERT(args->q_stride % 8 == 0 && args->d_pages % 16 == 0);
    for (uint32_t kind = 0; r == 0 && kind < CUDA_ATTN_KINDS; kind++) {
        const bool few = kind == CUDA_ATTN_FEW;
        struct cuda_launch launch = {
            .entry = a->entries[kind],
            .name = kinds[kind].names[a->shape.head_dim == 128],
            .grid = {a->shape.n_kv_heads * (few ? n_chunks : 1), plan->n_tiles[kind], 1},
            .block = {kinds[kind].threads},
            .shared_bytes = shared_bytes(&a->shape, kind),
            .overlap = args->overlap,
            .params = (void *[]){&p},
        };

        if (plan->n_tiles[kind] == 0) continue;
        p.counters = args->d_work; /* not those of the kind before, which may be a queue's */
        if (few) {
            if (!to_spread(a, plan, args->split_keys, &launch))
                to_few(a, plan, args->split_keys, &launch, &p);
            fill_units(a, &launch, &p);
        } else {
            p.n_splits = launch.grid[2] =
                count_splits(a, plan, kind, launch.grid[0], args->split_keys);
            /* One block a multiprocessor: with room for all, none waits for one that cannot come. */
            p.together = launch.grid[0] * launch.grid[1] * p.n_splits <= a->driver->n_own;
            if (kind == CUDA_ATTN_MANY && p.n_splits == 1) to_prompt(a, plan, args, &launch, &p);
            if (kind == CUDA_ATTN_SOME && p.n_splits == 1 &&
                plan->run_end_max[kind] > args->split_keys)
                to_turns(a, plan, args, &launch, &p);
        }
        r = cuda_driver_launch(a->driver, &launch, e);
        p.tiles += plan->n_tiles[kind] * sizeof(struct sm90_attn_tile);
    }
    return r;
}

#endif
