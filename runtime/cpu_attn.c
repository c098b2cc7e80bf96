#include "runtime/cpu_attn.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/cpu_gemm.h"
#include "runtime/cpu_pool.h"
#include "runtime/device.h"
#include "runtime/err.h"
#include "runtime/model.h"
#include "runtime/num.h"
#include "runtime/schedule.h"

enum {
    CHUNK_ROWS = 8, /* query rows that share the loads of keys and values */
    BLOCK = SCHEDULE_KV_BLOCK,
    PAGE = DEVICE_PAGE_TOKENS,
    PAGES = BLOCK / PAGE, /* of a block */
    PARTS_PER_THREAD = 128,
    PARTS_MAX = 2048,
    PAIRS_PER_THREAD = 4, /* below so many chunks and heads, splits are shared out */
};

#define M_START -0x1p20f

/* What a split leaves. */
struct part {
    float m[CHUNK_ROWS], l[CHUNK_ROWS];
    float o[CHUNK_ROWS][MODEL_HEAD_DIM_MAX];
};

struct scratch {
    _Alignas(64) float q_values[CHUNK_ROWS][MODEL_HEAD_DIM_MAX]; /* rows of head_dim, packed */
    uint32_t q_exponents[CHUNK_ROWS][MODEL_HEAD_DIM_MAX / 2];
    uint8_t q_kinds[CHUNK_ROWS][MODEL_HEAD_DIM_MAX / CPU_GROUP];
    float scores[CHUNK_ROWS][BLOCK];
    uint16_t p[CHUNK_ROWS][BLOCK];
    float p_values[CHUNK_ROWS][BLOCK];
    uint32_t p_exponents[CHUNK_ROWS][BLOCK / 2];
    uint8_t p_kinds[CHUNK_ROWS][BLOCK / CPU_GROUP];
    uint32_t p_lanes[BLOCK / 2][CPU_LANES]; /* pairs of p, a row a lane */
    struct part part, total;
};

/* Query rows first .. first + n - 1; query row = row * (query heads of a KV head) + which. */
struct chunk {
    uint32_t first, n;
};

struct cpu_attn {
    struct cpu_pool *pool;
    const struct cpu_code *code;
    uint32_t n_heads, n_kv_heads, head_dim, n_shared; /* query heads of a KV head */
    uint32_t n_seq_pages;
    float c; /* log2(e) / sqrt(head_dim) */
    uint64_t n_bytes;

    struct scratch *scratch; /* [n_threads] */
    struct part *parts;      /* [n_parts] */
    struct chunk *chunks;    /* [n_chunks_max] */
    uint32_t n_parts, n_chunks, n_chunks_max;
    float ones[BLOCK];
    uint32_t ones_exponents[BLOCK / 2];
    uint8_t ones_kinds[BLOCK / CPU_GROUP];

    /* Of the batch, and of the layer that runs. */
    const struct device_row *rows;
    const uint32_t *pages;
    const uint32_t *keys, *values;
    const uint16_t *qkv;
    uint16_t *out;
    uint8_t *flagged;
    uint32_t qkv_stride, split_keys, n_splits;
};

uint32_t cpu_attn_page_words(uint32_t head_dim) {
    return PAGE * head_dim / 2;
}

void cpu_attn_store(uint32_t *keys, uint32_t *values, uint32_t head_dim, uint32_t slot,
                    const uint16_t *k, const uint16_t *v) {
    uint32_t *to = keys + (size_t)(slot / CPU_LANES) * (head_dim / 2) * CPU_LANES;
    uint32_t *pairs = values + (size_t)(slot / 2) * head_dim;

    for (uint32_t i = 0; i < head_dim / 2; i++)
        to[i * CPU_LANES + slot % CPU_LANES] = k[2 * i] | (uint32_t)k[2 * i + 1] << 16;
    /* Half a word alone: another thread may write the other half. */
    for (uint32_t i = 0; i < head_dim; i++)
        memcpy((char *)(pairs + i) + slot % 2 * sizeof(*v), v + i, sizeof(*v));
}

void cpu_attn_fetch(const uint32_t *keys, const uint32_t *values, uint32_t head_dim, uint32_t slot,
                    uint16_t *out_k, uint16_t *out_v) {
    const uint32_t *from = keys + (size_t)(slot / CPU_LANES) * (head_dim / 2) * CPU_LANES;

    for (uint32_t i = 0; i < head_dim; i++) {
        uint32_t pair = from[i / 2 * CPU_LANES + slot % CPU_LANES];

        out_k[i] = (uint16_t)(pair >> i % 2 * 16);
        out_v[i] = (uint16_t)(values[(size_t)(slot / 2) * head_dim + i] >> slot % 2 * 16);
    }
}

int cpu_attn_open(const struct model *m, const struct device_limits *limits, struct cpu_pool *pool,
                  const struct cpu_code *code, struct cpu_attn **out_attn, struct err *e) {
    const uint32_t n_threads = cpu_pool_threads(pool);
    struct cpu_attn *a = calloc(1, sizeof(*a));
    uint64_t n_chunks;
    int r;

    if (!a) return err_set(e, -ENOMEM, "attention: %zu bytes", sizeof(*a));
    a->pool = pool;
    a->code = code;
    a->n_heads = m->n_heads;
    a->n_kv_heads = m->n_kv_heads;
    a->n_shared = m->n_heads / m->n_kv_heads;
    a->head_dim = m->head_dim;
    a->n_seq_pages = limits->n_seq_pages;
    a->c = (float)(0x1.71547652b82fep+0 / sqrt((double)m->head_dim));
    /* A sequence's last chunk may be short. */
    n_chunks = (uint64_t)limits->n_rows * (a->n_shared / CHUNK_ROWS + 1);
    a->n_chunks_max = (uint32_t)n_chunks;
    a->n_parts = n_threads * PARTS_PER_THREAD;
    if (a->n_parts > PARTS_MAX) a->n_parts = PARTS_MAX;
    a->n_bytes = n_chunks * sizeof(*a->chunks) + (uint64_t)n_threads * sizeof(*a->scratch) +
                 (uint64_t)a->n_parts * sizeof(*a->parts);
    a->chunks = calloc(n_chunks, sizeof(*a->chunks));
    a->scratch = aligned_alloc(_Alignof(struct scratch), n_threads * sizeof(*a->scratch));
    a->parts = calloc(a->n_parts, sizeof(*a->parts));
    if (!a->chunks || !a->scratch || !a->parts) {
        r = err_set(e, -ENOMEM, "attention: %llu bytes", (unsigned long long)a->n_bytes);
        goto out;
    }
    memset(a->scratch, 0, n_threads * sizeof(*a->scratch));
    for (uint32_t i = 0; i < BLOCK; i++) {
        a->ones[i] = 1.0f;
        a->ones_exponents[i / 2] = 0x3f803f80;
        a->ones_kinds[i / CPU_GROUP] = CPU_PLAIN;
    }
    *out_attn = a;
    a = NULL;
    r = 0;
out:
    cpu_attn_close(a);
    return r;
}

void cpu_attn_close(struct cpu_attn *a) {
    if (!a) return;
    free(a->chunks);
    free(a->scratch);
    free(a->parts);
    free(a);
}

uint64_t cpu_attn_bytes(const struct cpu_attn *a) {
    return a->n_bytes;
}

void cpu_attn_batch(struct cpu_attn *a, const struct device_row *rows, uint32_t n_rows,
                    const uint32_t *pages) {
    a->rows = rows;
    a->pages = pages;
    a->n_chunks = 0;
    for (uint32_t row = 0, end; row < n_rows; row = end) {
        for (end = row + 1; end < n_rows && rows[end].seq == rows[row].seq; end++)
            ASSERT(rows[end].position > rows[end - 1].position);
        for (uint32_t q = row * a->n_shared; q < end * a->n_shared; q += CHUNK_ROWS) {
            uint32_t n = end * a->n_shared - q;

            ASSERT(a->n_chunks < a->n_chunks_max);
            a->chunks[a->n_chunks++] = (struct chunk){q, n < CHUNK_ROWS ? n : CHUNK_ROWS};
        }
    }
}

static uint32_t position_of(const struct cpu_attn *a, const struct chunk *ch, uint32_t i) {
    return a->rows[(ch->first + i) / a->n_shared].position;
}

static uint32_t last_position(const struct cpu_attn *a, const struct chunk *ch) {
    return position_of(a, ch, ch->n - 1);
}

/* 2^d for d <= 0; what is no number too comes to +0, its row is flagged anyway. */
static float power(float d) {
    return d >= -126.0f ? num_pow2((int)d) : 0.0f;
}

/* Where a page of the block is, for the chunk's sequence. */
static size_t page_offset(const struct cpu_attn *a, const struct chunk *ch, uint32_t position,
                          uint32_t kv_head) {
    const uint32_t seq = a->rows[ch->first / a->n_shared].seq;
    const uint32_t page = a->pages[(size_t)seq * a->n_seq_pages + position / PAGE];

    return ((size_t)page * a->n_kv_heads + kv_head) * cpu_attn_page_words(a->head_dim);
}

/* A block of keys, some rows of a chunk: rows active .. n - 1 reach it. */
struct block {
    const struct chunk *ch;
    uint32_t kv_head, start; /* the block's first position */
    uint32_t active;
    uint32_t n_keys[CHUNK_ROWS]; /* of the block, that the row sees */
};

static uint32_t page_keys(uint32_t n_keys, uint32_t page) {
    uint32_t n = n_keys > page * PAGE ? n_keys - page * PAGE : 0;

    return n < PAGE ? n : PAGE;
}

static void scores(const struct cpu_attn *a, struct scratch *s, const struct block *b) {
    const uint32_t n = b->ch->n, d = a->head_dim, first = b->active;

    memset(s->scores[first], 0, (n - first) * sizeof(s->scores[0]));
    for (uint32_t page = 0; page < PAGES; page++) {
        const uint32_t n_keys = page_keys(b->n_keys[n - 1], page);
        struct cpu_chain chain = {
            .block_stride = (size_t)d / 2 * CPU_LANES,
            .pair_stride = CPU_LANES,
            .values = s->q_values[0] + first * d,
            .exponents = s->q_exponents[0] + first * (d / 2),
            .kinds = s->q_kinds[0] + first * (d / CPU_GROUP),
            .n_k = d,
            .c = s->scores[first] + page * PAGE,
            .c_stride = BLOCK,
            .n_rows = n - first,
            .n_blocks = (n_keys + CPU_LANES - 1) / CPU_LANES,
            .n_groups = d / CPU_GROUP,
        };

        if (n_keys == 0) break;
        chain.w = a->keys + page_offset(a, b->ch, b->start + page * PAGE, b->kv_head);
        a->code->chain(&chain);
    }
}

/* The new maximum of a row, its weights, and what it had so far brought to the new scale. */
static void weigh(const struct cpu_attn *a, struct scratch *s, struct part *part,
                  const struct block *b, uint32_t row) {
    const float *score = s->scores[row];
    const uint32_t n_keys = b->n_keys[row], n_last = b->n_keys[b->ch->n - 1];
    const uint32_t n_all = (n_last + CPU_GROUP - 1) / CPU_GROUP * CPU_GROUP;
    float m, scale;

    m = num_max(part->m[row], floorf(a->code->max(score, n_keys) * a->c) + 1.0f);
    scale = power(part->m[row] - m);
    part->m[row] = m;
    part->l[row] *= scale;
    if (scale != 1.0f)
        for (uint32_t i = 0; i < a->head_dim; i++) part->o[row][i] *= scale;

    a->code->weigh(score, (n_keys + CPU_LANES - 1) / CPU_LANES * CPU_LANES, a->c, m, s->p[row]);
    /* No group past the last row's keys is looked at. */
    memset(s->p[row] + n_keys, 0, (n_all - n_keys) * sizeof(uint16_t));
    a->code->spread(s->p[row], n_all, s->p_values[row], s->p_exponents[row], s->p_kinds[row]);
}

/* l = chain(l, P, 1.0): the weights are the other operand, a row a lane. */
static void sum_weights(const struct cpu_attn *a, struct scratch *s, struct part *part,
                        const struct block *b) {
    const uint32_t n = b->ch->n, n_keys = b->n_keys[n - 1];
    const uint32_t n_groups = (n_keys + CPU_GROUP - 1) / CPU_GROUP;
    float l[CPU_LANES];
    const struct cpu_chain chain = {
        .w = s->p_lanes[0],
        .block_stride = 0,
        .pair_stride = CPU_LANES,
        .values = a->ones,
        .exponents = a->ones_exponents,
        .kinds = a->ones_kinds,
        .n_k = BLOCK,
        .c = l,
        .c_stride = CPU_LANES,
        .n_rows = 1,
        .n_blocks = 1,
        .n_groups = n_groups,
    };

    /* Lanes without a row repeat one: zeros would leave the fast path. */
    for (uint32_t lane = 0; lane < CPU_LANES; lane++) {
        const uint32_t row = lane >= b->active && lane < n ? lane : n - 1;

        for (uint32_t i = 0; i < n_groups * CPU_PAIRS; i++)
            memcpy(&s->p_lanes[i][lane], &s->p[row][2 * i], sizeof(uint32_t));
        l[lane] = part->l[row];
    }
    a->code->chain(&chain);
    for (uint32_t row = b->active; row < n; row++) part->l[row] = l[row];
}

static void sum_values(const struct cpu_attn *a, struct scratch *s, struct part *part,
                       const struct block *b) {
    const uint32_t n = b->ch->n, d = a->head_dim, first = b->active;

    for (uint32_t page = 0; page < PAGES; page++) {
        const uint32_t n_keys = page_keys(b->n_keys[n - 1], page);
        uint32_t n_valid[CHUNK_ROWS];
        struct cpu_chain chain = {
            .block_stride = CPU_LANES,
            .pair_stride = d,
            .values = s->p_values[first] + page * PAGE,
            .exponents = s->p_exponents[first] + page * (PAGE / 2),
            .kinds = s->p_kinds[first] + page * (PAGE / CPU_GROUP),
            .n_k = BLOCK,
            .n_valid = n_valid,
            .c = part->o[first],
            .c_stride = MODEL_HEAD_DIM_MAX,
            .n_rows = n - first,
            .n_blocks = d / CPU_LANES,
            .n_groups = (n_keys + CPU_GROUP - 1) / CPU_GROUP,
        };

        if (n_keys == 0) break;
        for (uint32_t row = first; row < n; row++)
            n_valid[row - first] = page_keys(b->n_keys[row], page);
        chain.w = a->values + page_offset(a, b->ch, b->start + page * PAGE, b->kv_head);
        a->code->chain(&chain);
    }
}

static void attend_split(const struct cpu_attn *a, struct scratch *s, struct part *part,
                         const struct chunk *ch, uint32_t kv_head, uint32_t split) {
    const uint32_t last = last_position(a, ch);
    const uint64_t split_end = ((uint64_t)split + 1) * a->split_keys;
    struct block b = {.ch = ch, .kv_head = kv_head};

    for (uint32_t row = 0; row < ch->n; row++) {
        part->m[row] = M_START;
        part->l[row] = 0.0f;
        memset(part->o[row], 0, a->head_dim * sizeof(float));
    }
    for (b.start = split * a->split_keys; b.start < split_end && b.start <= last;
         b.start += BLOCK) {
        while (position_of(a, ch, b.active) < b.start) b.active++;
        for (uint32_t row = b.active; row < ch->n; row++) {
            uint32_t n_keys = position_of(a, ch, row) - b.start + 1;

            b.n_keys[row] = n_keys < BLOCK ? n_keys : BLOCK;
        }
        scores(a, s, &b);
        for (uint32_t row = b.active; row < ch->n; row++) weigh(a, s, part, &b, row);
        sum_weights(a, s, part, &b);
        sum_values(a, s, part, &b);
    }
}

static void fold(const struct cpu_attn *a, struct part *total, const struct part *part,
                 uint32_t row) {
    const float m = num_max(total->m[row], part->m[row]);
    const float old = power(total->m[row] - m), new = power(part->m[row] - m);

    total->m[row] = m;
    total->l[row] = num_fma(part->l[row], new, total->l[row] * old);
    for (uint32_t i = 0; i < a->head_dim; i++)
        total->o[row][i] = num_fma(part->o[row][i], new, total->o[row][i] * old);
}

static void finish(const struct cpu_attn *a, const struct part *total, const struct chunk *ch,
                   uint32_t kv_head) {
    for (uint32_t i = 0; i < ch->n; i++) {
        const uint32_t row = (ch->first + i) / a->n_shared;
        const uint32_t head = kv_head * a->n_shared + (ch->first + i) % a->n_shared;
        const float inverse = 1.0f / total->l[i];
        uint16_t *out = a->out + ((size_t)row * a->n_heads + head) * a->head_dim;
        bool fine = total->m[i] < 0x1p20f && total->l[i] > 0.0f && total->l[i] < NUM_INFINITY;

        for (uint32_t j = 0; j < a->head_dim; j++) {
            /* Adding +0 makes every zero the same one. */
            float x = total->o[i][j] * inverse + 0.0f;

            if (!(x - x == 0.0f)) fine = false;
            out[j] = num_to_bf16(x);
        }
        /* Heads of one row may end at the same time. */
        if (!fine) __atomic_store_n(&a->flagged[row], 1, __ATOMIC_RELAXED);
    }
}

static void start_total(const struct cpu_attn *a, struct part *total, uint32_t n) {
    for (uint32_t row = 0; row < n; row++) {
        total->m[row] = M_START;
        total->l[row] = 0.0f;
        memset(total->o[row], 0, a->head_dim * sizeof(float));
    }
}

static void load_queries(const struct cpu_attn *a, struct scratch *s, const struct chunk *ch,
                         uint32_t kv_head) {
    const uint32_t d = a->head_dim;

    for (uint32_t i = 0; i < ch->n; i++) {
        const uint32_t row = (ch->first + i) / a->n_shared;
        const uint32_t head = kv_head * a->n_shared + (ch->first + i) % a->n_shared;

        a->code->spread(a->qkv + (size_t)row * a->qkv_stride + (size_t)head * d, d,
                        s->q_values[0] + i * d, s->q_exponents[0] + i * (d / 2),
                        s->q_kinds[0] + i * (d / CPU_GROUP));
    }
}

/* The longest come first: the last chunk of a prompt sees the most keys. */
static const struct chunk *chunk_at(const struct cpu_attn *a, uint32_t pair) {
    return &a->chunks[a->n_chunks - 1 - pair / a->n_kv_heads];
}

static void item_whole(void *ctx, uint32_t pair, uint32_t thread) {
    const struct cpu_attn *a = ctx;
    const struct chunk *ch = chunk_at(a, pair);
    const uint32_t kv_head = pair % a->n_kv_heads;
    struct scratch *s = &a->scratch[thread];

    load_queries(a, s, ch, kv_head);
    if (last_position(a, ch) < a->split_keys) {
        /* Folding one split onto the start multiplies by 1 and adds +0. */
        attend_split(a, s, &s->part, ch, kv_head, 0);
        finish(a, &s->part, ch, kv_head);
        return;
    }
    start_total(a, &s->total, ch->n);
    for (uint32_t split = 0; split <= last_position(a, ch) / a->split_keys; split++) {
        attend_split(a, s, &s->part, ch, kv_head, split);
        for (uint32_t row = 0; row < ch->n; row++)
            if (position_of(a, ch, row) / a->split_keys >= split) fold(a, &s->total, &s->part, row);
    }
    finish(a, &s->total, ch, kv_head);
}

static void item_split(void *ctx, uint32_t index, uint32_t thread) {
    const struct cpu_attn *a = ctx;
    const uint32_t pair = index / a->n_splits, split = index % a->n_splits;
    const struct chunk *ch = chunk_at(a, pair);
    struct scratch *s = &a->scratch[thread];

    if (split > last_position(a, ch) / a->split_keys) return;
    load_queries(a, s, ch, pair % a->n_kv_heads);
    attend_split(a, s, &a->parts[index], ch, pair % a->n_kv_heads, split);
}

static void item_fold(void *ctx, uint32_t pair, uint32_t thread) {
    const struct cpu_attn *a = ctx;
    const struct chunk *ch = chunk_at(a, pair);
    struct scratch *s = &a->scratch[thread];

    start_total(a, &s->total, ch->n);
    for (uint32_t row = 0; row < ch->n; row++)
        for (uint32_t split = 0; split <= position_of(a, ch, row) / a->split_keys; split++)
            fold(a, &s->total, &a->parts[pair * a->n_splits + split], row);
    finish(a, &s->total, ch, pair % a->n_kv_heads);
}

void cpu_attn_run(struct cpu_attn *a, const uint32_t *keys, const uint32_t *values,
                  const uint16_t *qkv, uint32_t qkv_stride, uint32_t split_keys, uint16_t *out,
                  uint8_t *flagged) {
    const uint32_t n_pairs = a->n_chunks * a->n_kv_heads;
    const uint32_t n_threads = cpu_pool_threads(a->pool);
    uint32_t last = 0;

    for (uint32_t i = 0; i < a->n_chunks; i++)
        if (last_position(a, &a->chunks[i]) > last) last = last_position(a, &a->chunks[i]);
    a->keys = keys;
    a->values = values;
    a->qkv = qkv;
    a->qkv_stride = qkv_stride;
    a->split_keys = split_keys;
    a->n_splits = last / split_keys + 1;
    a->out = out;
    a->flagged = flagged;
    if (n_threads > 1 && a->n_splits > 1 && n_pairs < n_threads * PAIRS_PER_THREAD &&
        (uint64_t)n_pairs * a->n_splits <= a->n_parts) {
        cpu_pool_run(a->pool, n_pairs * a->n_splits, item_split, a);
        cpu_pool_run(a->pool, n_pairs, item_fold, a);
    } else {
        cpu_pool_run(a->pool, n_pairs, item_whole, a);
    }
}
