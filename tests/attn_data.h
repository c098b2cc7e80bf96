/* attn_data - steps of attention for tests of its kernels: made-up rows, pages and queries, what the
 * twin makes of them, and the comparison. */
#ifndef LLM42D_TESTS_ATTN_DATA_H
#define LLM42D_TESTS_ATTN_DATA_H

#include "runtime/cpu_attn.h"
#include "runtime/cpu_gemm.h"
#include "runtime/cpu_pool.h"
#include "runtime/cuda_attn.h"
#include "runtime/device.h"
#include "runtime/model.h"
#include "tests/kernel_gpu.h"

enum { SEQS_MAX = 80, ROWS_MAX = 1600, PAGE = DEVICE_PAGE_TOKENS };

static struct cpu_pool *pool;
static unsigned n_failed;
static uint64_t n_compared, n_flagged;

struct run {
    uint32_t first, n; /* positions; 0: the sequence has no row */
};

/* What scores and values are like. */
struct regime {
    const char *name;
    float score, value;
    bool bad; /* some values are not finite */
};

static const struct regime regimes[] = {
    {"plain", 1.0f, 1.0f, false},
    {"steep", 6.0f, 1.0f, false},
    {"weights that vanish, sums that are subnormal", 40.0f, 0x1p-124f, false},
    {"scores near 2^20", 100000.0f, 1.0f, false},
    {"scores out of range", 300000.0f, 1.0f, false},
    {"scores that are subnormal", 0x1p-128f, 1.0f, false},
    {"values that are not finite", 1.0f, 1.0f, true},
};

struct step {
    const char *name;
    uint32_t n_heads, n_kv_heads, head_dim, split_keys;
    uint32_t n_runs;
    struct run runs[SEQS_MAX];
};

struct data {
    const struct step *step;
    const struct regime *regime;
    struct device_row rows[ROWS_MAX];
    uint32_t n_rows, n_pages, n_seq_pages;
    uint32_t *table; /* [n_runs][n_seq_pages] */
    uint32_t *cpu_keys, *cpu_values;
    uint16_t *gpu_pages, *qkv;
    uint32_t qkv_stride;
    uint64_t pages_bytes;
};

static uint32_t below(uint32_t seed, uint32_t i, uint32_t n) {
    return num_random(seed, 77, i) % n;
}

static void key_and_value(const struct data *d, uint32_t seq, uint32_t position, uint32_t head,
                          uint16_t *k, uint16_t *v) {
    const uint32_t dim = d->step->head_dim, row = (seq * 8192 + position) * 16 + head;

    for (uint32_t i = 0; i < dim; i++) {
        k[i] = num_to_bf16(gpu_normal(21, row, i) * d->regime->score);
        v[i] = num_to_bf16(gpu_normal(22, row, i) * d->regime->value);
    }
    if (d->regime->bad && below(23, row, 150) == 0)
        v[below(24, row, dim)] = below(25, row, 2) ? 0x7f80 : 0xffff;
    if (d->regime->bad && below(26, row, 150) == 0) k[below(27, row, dim)] = 0x7fc0;
}

static void fill_pages(struct data *d, const struct cuda_attn_shape *shape) {
    const uint32_t dim = shape->head_dim, words = cpu_attn_page_words(dim);
    uint16_t k[MODEL_HEAD_DIM_MAX], v[MODEL_HEAD_DIM_MAX];

    for (uint32_t seq = 0; seq < d->step->n_runs; seq++)
        for (uint32_t p = 0; p < d->step->runs[seq].first + d->step->runs[seq].n; p++)
            for (uint32_t head = 0; head < shape->n_kv_heads; head++) {
                const uint32_t page = d->table[seq * d->n_seq_pages + p / PAGE];
                const size_t at = ((size_t)page * shape->n_kv_heads + head) * words;

                key_and_value(d, seq, p, head, k, v);
                cpu_attn_store(d->cpu_keys + at, d->cpu_values + at, dim, p % PAGE, k, v);
                for (uint32_t i = 0; i < dim; i++) {
                    d->gpu_pages[cuda_attn_offset(shape, page, head, false, p % PAGE, i) / 2] =
                        k[i];
                    d->gpu_pages[cuda_attn_offset(shape, page, head, true, p % PAGE, i) / 2] = v[i];
                }
            }
}

static void data_open(struct data *d, const struct step *step, const struct regime *regime,
                      struct cuda_attn_shape *out_shape) {
    const size_t words = cpu_attn_page_words(step->head_dim);
    size_t cpu_bytes;
    uint32_t n = 0;

    memset(d, 0, sizeof(*d));
    d->step = step;
    d->regime = regime;
    for (uint32_t seq = 0; seq < step->n_runs; seq++) {
        const uint32_t end = step->runs[seq].first + step->runs[seq].n;

        d->n_pages += (end + PAGE - 1) / PAGE;
        if ((end + PAGE - 1) / PAGE > d->n_seq_pages) d->n_seq_pages = (end + PAGE - 1) / PAGE;
        for (uint32_t i = 0; i < step->runs[seq].n; i++)
            d->rows[d->n_rows++] =
                (struct device_row){.position = step->runs[seq].first + i, .seq = seq};
    }
    /* Pages in no order, ids of pages that are not there past a sequence's end. */
    d->table = gpu_host((size_t)step->n_runs * d->n_seq_pages * 4);
    memset(d->table, 0xff, (size_t)step->n_runs * d->n_seq_pages * 4);
    for (uint32_t seq = 0; seq < step->n_runs; seq++)
        for (uint32_t i = 0; i * PAGE < step->runs[seq].first + step->runs[seq].n; i++)
            d->table[seq * d->n_seq_pages + i] = n++;
    for (uint32_t i = 0; i < step->n_runs * d->n_seq_pages; i++) {
        const uint32_t j = below(28, i, step->n_runs * d->n_seq_pages), old = d->table[i];

        if (old == UINT32_MAX || d->table[j] == UINT32_MAX) continue;
        d->table[i] = d->table[j];
        d->table[j] = old;
    }
    *out_shape = (struct cuda_attn_shape){.n_heads = step->n_heads,
                                          .n_kv_heads = step->n_kv_heads,
                                          .head_dim = step->head_dim,
                                          .n_seq_pages = d->n_seq_pages};
    cpu_bytes = (size_t)d->n_pages * step->n_kv_heads * words * 4;
    d->pages_bytes = d->n_pages * cuda_attn_page_bytes(out_shape);
    d->cpu_keys = gpu_host(cpu_bytes);
    d->cpu_values = gpu_host(cpu_bytes);
    d->gpu_pages = gpu_host(d->pages_bytes);
    memset(d->cpu_keys, GPU_POISON, cpu_bytes);
    memset(d->cpu_values, GPU_POISON, cpu_bytes);
    memset(d->gpu_pages, GPU_POISON, d->pages_bytes);
    fill_pages(d, out_shape);
    d->qkv_stride = (step->n_heads + 2 * step->n_kv_heads) * step->head_dim;
    d->qkv = gpu_host((size_t)d->n_rows * d->qkv_stride * 2);
    for (uint32_t row = 0; row < d->n_rows; row++)
        for (uint32_t i = 0; i < d->qkv_stride; i++)
            d->qkv[(size_t)row * d->qkv_stride + i] =
                i < step->n_heads * step->head_dim ? num_to_bf16(gpu_normal(29, row, i)) : 0x7fff;
}

static void data_close(struct data *d) {
    free(d->table);
    free(d->cpu_keys);
    free(d->cpu_values);
    free(d->gpu_pages);
    free(d->qkv);
}

static void by_twin(const struct data *d, uint16_t *out, uint8_t *flagged) {
    const struct model m = {.n_heads = d->step->n_heads,
                            .n_kv_heads = d->step->n_kv_heads,
                            .head_dim = d->step->head_dim};
    const struct device_limits limits = {.n_rows = ROWS_MAX, .n_seq_pages = d->n_seq_pages};
    struct cpu_attn *attn;
    struct err e = {""};

    GPU_CHECK(cpu_attn_open(&m, &limits, pool, cpu_code_best(), &attn, &e));
    cpu_attn_batch(attn, d->rows, d->n_rows, d->table);
    cpu_attn_run(attn, d->cpu_keys, d->cpu_values, d->qkv, d->qkv_stride, d->step->split_keys, out,
                 flagged);
    cpu_attn_close(attn);
}

static void compare(const struct data *d, const uint16_t *want, const uint8_t *want_flagged,
                    const uint16_t *got, const uint8_t *got_flagged) {
    const uint32_t dim = d->step->head_dim, width = d->step->n_heads * dim;

    for (uint32_t row = 0; row < d->n_rows; row++) {
        const struct device_row *r = &d->rows[row];

        if (want_flagged[row] != got_flagged[row]) {
            printf("%s, %s: row %u (sequence %u, position %u): flagged %u, not %u\n", d->step->name,
                   d->regime->name, row, r->seq, r->position, got_flagged[row], want_flagged[row]);
            n_failed++;
            return;
        }
        if (want_flagged[row]) {
            n_flagged++; /* what it holds counts for nothing */
            continue;
        }
        for (uint32_t i = 0; i < width; i++) {
            const size_t at = (size_t)row * width + i;

            n_compared++;
            if (want[at] == got[at]) continue;
            printf("%s, %s: row %u (sequence %u, position %u) head %u value %u is %04x, not "
                   "%04x\n",
                   d->step->name, d->regime->name, row, r->seq, r->position, i / dim, i % dim,
                   got[at], want[at]);
            n_failed++;
            return;
        }
    }
}

/* At least n, a power of two. */
static uint32_t rounded(uint64_t n) {
    uint32_t power = 1;

    while (power < n) power *= 2;
    return n ? power : 0;
}

/* Tiles of each kind are twice as many and one more, none of whose rows are there. */
static void fill_up(struct cuda_attn_plan *plan, const struct sm90_attn_tile *from,
                    struct sm90_attn_tile *to) {
    for (int kind = 0; kind < CUDA_ATTN_KINDS; kind++) {
        const uint32_t n = plan->n_tiles[kind], n_filled = n ? 2 * n + 1 : 0;

        memcpy(to, from, n * sizeof(*to));
        memset(to + n, 0, (n_filled - n) * sizeof(*to));
        from += n;
        to += n_filled;
        plan->n_tiles[kind] = n_filled;
    }
    plan->end_max = rounded(plan->end_max);
    plan->n_keys = rounded(plan->n_keys);
}

#endif
