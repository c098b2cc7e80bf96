/* Attention over paged keys and values: decode, verification, whole prompts. */
#ifdef LLM42_CUDA

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cpu_attn.h"
#include "runtime/cpu_gemm.h"
#include "runtime/cpu_pool.h"
#include "runtime/cuda_attn.h"
#include "runtime/device.h"
#include "runtime/err.h"
#include "runtime/num.h"
#include "runtime/schedule.h"
#include "tools/bench_kernels.h"

enum {
    PAGE = DEVICE_PAGE_TOKENS,
    TOKENS = 256 * 4096, /* of all sequences of the largest case */
    N_PAGES = TOKENS / PAGE,
    ROWS_MAX = 8192,
    CHECK_ROWS = 3,
    VERIFY_ROWS = 16,
};

/* Sequences of `context` positions, the last n of each with a row. */
static const struct attn_case {
    const char *family;
    uint32_t n_seqs, context, n;
    double of_peer, of_bound; /* targets */
} cases[] = {
    {"decode", 1, 1024, 1, 0, 0},
    {"decode", 1, 4096, 1, 0, 0},
    {"decode", 1, 16384, 1, 0, 0},
    {"decode", 8, 4096, 1, 0, 0},
    {"decode", 64, 1024, 1, 0, 0},
    {"decode", 64, 4096, 1, 0, 0.85},
    {"decode", 256, 4096, 1, 0, 0},
    {"verify", 1, 4096, VERIFY_ROWS, 0, 0},
    {"verify", 64, 4096, VERIFY_ROWS, 0, 0},
    {"prompt", 1, 4096, 4096, 0.7, 0},
    {"prompt", 1, 8192, 8192, 0.7, 0},
};

enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

struct attn {
    struct bench_kernels *k;
    struct cuda_attn_shape shape;
    struct cpu_pool *pool;
    uint32_t *table; /* all pages in no order */
    uint32_t q_stride;
    CUdeviceptr d_pages, d_table, d_q;
};

/* What one case is made of, while it runs. */
struct run {
    const struct attn_case *c;
    struct cuda_attn_shape shape;
    struct cuda_attn *attn;
    struct cuda_attn_plan plan;
    struct cuda_attn_args args;
    struct device_row *rows;
    uint32_t n_rows, n_seq_pages, n_calls;
};

static void load(struct attn *a) {
    struct bench_gpu *gpu = &a->k->gpu;
    const uint64_t n_bytes = N_PAGES * cuda_attn_page_bytes(&a->shape);
    struct err e = {""};

    a->d_pages = bench_gpu_take(gpu, n_bytes);
    bench_gpu_random(gpu, a->d_pages, n_bytes / 2, 1.7f);
    a->d_q = bench_gpu_take(gpu, (uint64_t)ROWS_MAX * a->q_stride * 2);
    bench_gpu_random(gpu, a->d_q, (uint64_t)ROWS_MAX * a->q_stride, 1.7f);
    a->table = bench_kernels_host(N_PAGES * sizeof(*a->table));
    for (uint32_t i = 0; i < N_PAGES; i++) a->table[i] = i;
    for (uint32_t i = N_PAGES - 1; i > 0; i--) {
        const uint32_t j = num_random(5, 0, i) % (i + 1), old = a->table[i];

        a->table[i] = a->table[j];
        a->table[j] = old;
    }
    a->d_table = bench_gpu_copy_of(gpu, a->table, N_PAGES * sizeof(*a->table));
    bench_gpu_must(cpu_pool_open(bench_threads(a->k->o), &a->pool, &e), &e);
}

static void run_open(struct attn *a, const struct attn_case *c, struct run *r) {
    struct bench_gpu *gpu = &a->k->gpu;
    const uint64_t kv_bytes = c->n_seqs * c->context / PAGE * cuda_attn_page_bytes(&a->shape);
    struct sm90_attn_tile *tiles;
    struct err e = {""};
    uint32_t all;

    *r = (struct run){.c = c, .shape = a->shape};
    r->n_rows = c->n_seqs * c->n;
    r->n_seq_pages = r->shape.n_seq_pages = c->context / PAGE;
    all = N_PAGES / (c->n_seqs * r->n_seq_pages);
    r->n_calls = (uint32_t)(BENCH_GPU_COLD_BYTES / kv_bytes) + 1;
    if (r->n_calls > all) r->n_calls = all;
    if (c->n > VERIFY_ROWS) r->n_calls = 2; /* bound by operations */
    r->rows = bench_kernels_host(r->n_rows * sizeof(*r->rows));
    tiles = bench_kernels_host(r->n_rows * sizeof(*tiles));
    for (uint32_t i = 0; i < r->n_rows; i++)
        r->rows[i] = (struct device_row){.position = c->context - c->n + i % c->n, .seq = i / c->n};
    bench_gpu_must(cuda_attn_open(gpu->driver, &r->shape, &r->attn, &e), &e);
    cuda_attn_plan(r->attn, r->rows, r->n_rows, tiles, &r->plan);
    r->args = (struct cuda_attn_args){
        .d_pages = a->d_pages,
        .d_q = a->d_q,
        .d_out =
            bench_gpu_take(gpu, (uint64_t)r->n_rows * a->shape.n_heads * a->shape.head_dim * 2),
        .d_flagged = bench_gpu_take(gpu, r->n_rows),
        .d_positions = bench_gpu_copy_of(gpu, r->rows, r->n_rows * sizeof(*r->rows)) +
                       offsetof(struct device_row, position),
        .d_table = a->d_table,
        .d_tiles = bench_gpu_copy_of(gpu, tiles, r->n_rows * sizeof(*tiles)),
        .d_work = bench_gpu_take(gpu, cuda_attn_work_bytes(r->attn)),
        .q_stride = a->q_stride,
        .position_stride = sizeof(struct device_row) / 4,
        .overlap = true, /* as in a step */
    };
    bench_gpu_zero(gpu, r->args.d_work, cuda_attn_work_bytes(r->attn));
    free(tiles);
}

static void run_close(struct run *r) {
    cuda_attn_close(r->attn);
    free(r->rows);
}

/* ---- The twin, of a few rows of the last sequence ---- */

/* Its keys and values as the twin has them, pages in the sequence's order. */
static void fetch_sequence(struct attn *a, const struct run *r, uint32_t *keys, uint32_t *values) {
    const uint32_t dim = a->shape.head_dim, words = cpu_attn_page_words(dim);
    const uint64_t page_bytes = cuda_attn_page_bytes(&a->shape);
    const uint32_t *table = a->table + (size_t)(r->c->n_seqs - 1) * r->n_seq_pages;
    uint16_t *page = bench_kernels_host(page_bytes), k[MODEL_HEAD_DIM_MAX], v[MODEL_HEAD_DIM_MAX];

    for (uint32_t p = 0; p < r->n_seq_pages; p++) {
        bench_gpu_read(&a->k->gpu, page, a->d_pages + table[p] * page_bytes, page_bytes);
        for (uint32_t head = 0; head < a->shape.n_kv_heads; head++)
            for (uint32_t slot = 0; slot < PAGE; slot++) {
                const size_t at = ((size_t)p * a->shape.n_kv_heads + head) * words;

                for (uint32_t i = 0; i < dim; i++) {
                    k[i] = page[cuda_attn_offset(&a->shape, 0, head, false, slot, i) / 2];
                    v[i] = page[cuda_attn_offset(&a->shape, 0, head, true, slot, i) / 2];
                }
                cpu_attn_store(keys + at, values + at, dim, slot, k, v);
            }
    }
    free(page);
}

static void by_twin(struct attn *a, const struct run *r, const struct device_row *rows, uint32_t n,
                    const uint16_t *q, uint32_t split_keys, uint16_t *out) {
    const size_t words =
        (size_t)r->n_seq_pages * a->shape.n_kv_heads * cpu_attn_page_words(a->shape.head_dim);
    const struct device_limits limits = {.n_rows = CHECK_ROWS, .n_seq_pages = r->n_seq_pages};
    uint32_t *keys = bench_kernels_host(words * 4), *values = bench_kernels_host(words * 4);
    uint32_t *pages = bench_kernels_host(r->n_seq_pages * sizeof(*pages));
    uint8_t flagged[CHECK_ROWS] = {0};
    struct cpu_attn *attn;
    struct err e = {""};

    fetch_sequence(a, r, keys, values);
    for (uint32_t i = 0; i < r->n_seq_pages; i++) pages[i] = i;
    bench_gpu_must(cpu_attn_open(&a->k->model, &limits, a->pool, cpu_code_best(), &attn, &e), &e);
    cpu_attn_batch(attn, rows, n, pages);
    cpu_attn_run(attn, keys, values, q, a->q_stride, split_keys, out, flagged);
    cpu_attn_close(attn);
    free(keys);
    free(values);
    free(pages);
}

static bool check(struct attn *a, struct run *r, uint32_t split_keys) {
    struct bench_gpu *gpu = &a->k->gpu;
    const uint32_t n = r->c->n < CHECK_ROWS ? r->c->n : CHECK_ROWS;
    const size_t width = (size_t)a->shape.n_heads * a->shape.head_dim;
    uint16_t *q = bench_kernels_host((size_t)n * a->q_stride * 2);
    uint16_t *got = bench_kernels_host(n * width * 2), *want = bench_kernels_host(n * width * 2);
    struct device_row rows[CHECK_ROWS];
    bool same;
    struct err e = {""};

    bench_gpu_poison(gpu, r->args.d_out, r->n_rows * width * 2);
    r->args.split_keys = split_keys;
    r->args.d_table = a->d_table;
    bench_gpu_must(cuda_attn_run(r->attn, &r->plan, &r->args, &e), &e);
    for (uint32_t i = 0; i < n; i++) {
        /* Rows from the first to the last of the last sequence. */
        const uint32_t row =
            r->n_rows - 1 - (uint32_t)((uint64_t)(n - 1 - i) * (r->c->n - 1) / (n > 1 ? n - 1 : 1));

        rows[i] = (struct device_row){.position = r->rows[row].position};
        bench_gpu_read(gpu, q + (size_t)i * a->q_stride, a->d_q + (uint64_t)row * a->q_stride * 2,
                       (size_t)a->q_stride * 2);
        bench_gpu_read(gpu, got + i * width, r->args.d_out + row * width * 2, width * 2);
    }
    by_twin(a, r, rows, n, q, split_keys, want);
    same = bench_kernels_same(a->k, r->c->family, got, want, n * width * 2);
    free(q);
    free(got);
    free(want);
    return same;
}

static struct bench_graph record(struct attn *a, struct run *r, uint32_t split_keys) {
    const uint32_t step = r->c->n_seqs * r->n_seq_pages;
    struct err e = {""};

    if (!check(a, r, split_keys)) return (struct bench_graph){.n_calls = 1};
    bench_gpu_begin(&a->k->gpu);
    for (uint32_t i = 0; i < r->n_calls; i++) {
        r->args.d_table = a->d_table + (uint64_t)i * step * sizeof(*a->table);
        bench_gpu_must(cuda_attn_run(r->attn, &r->plan, &r->args, &e), &e);
    }
    return bench_gpu_end(&a->k->gpu, r->n_calls);
}

static double measure(struct attn *a, const struct attn_case *c) {
    const struct cuda_attn_shape *s = &a->shape;
    const struct schedule_load load_of = {c->n_seqs * c->n, c->n_seqs, c->context};
    const uint32_t split = schedule_canonical().split_keys;
    const uint32_t tuned = schedule_tuned(&a->k->model, &load_of).split_keys;
    const double width = (double)s->n_heads * s->head_dim, rows = (double)c->n_seqs * c->n;
    const uint32_t n_taken = a->k->gpu.n_taken;
    char request[BENCH_REQUEST_BYTES];
    struct bench_line line = {.family = c->family,
                              .request = request,
                              .bytes = 4.0 * s->n_kv_heads * s->head_dim * c->context * c->n_seqs +
                                       4 * width * rows,
                              .flop = 4 * width * rows * (c->context - (c->n - 1) / 2.0),
                              .of_peer = c->of_peer,
                              .of_bound = c->of_bound};
    struct run r;
    double us;

    run_open(a, c, &r);
    if (c->n > VERIFY_ROWS)
        snprintf(request, sizeof(request), "prompt %u %u %u %u", c->context, s->n_heads,
                 s->n_kv_heads, s->head_dim);
    else
        snprintf(request, sizeof(request), "decode %u %u %u %u %u %u %u", c->n_seqs, c->context,
                 c->n, s->n_heads, s->n_kv_heads, s->head_dim, r.n_calls);
    line.graph = record(a, &r, split);
    line.same = tuned == split;
    if (!line.same) line.tuned = record(a, &r, tuned);
    us = bench_kernels_line(a->k, &line, "%s, %u x %u%s", c->family, c->n_seqs, c->context,
                            c->n == VERIFY_ROWS ? ", 16 rows each" : "");
    run_close(&r);
    bench_gpu_release(&a->k->gpu, n_taken);
    return us;
}

void bench_kernels_attn(struct bench_kernels *k) {
    const struct model *m = &k->model;
    struct attn a = {.k = k,
                     .shape = {m->n_heads, m->n_kv_heads, m->head_dim, 0},
                     .q_stride = (m->n_heads + 2 * m->n_kv_heads) * m->head_dim};
    double decode_us = 0, us;

    if (m->head_dim != 64 && m->head_dim != 128) {
        bench_report_note(k->report, "attention: heads of %u values have no fast kernel",
                          m->head_dim);
        return;
    }
    load(&a);
    bench_kernels_section(k, "Attention, us a layer; peer: SDPA (cuDNN for prompts)");
    for (uint32_t i = 0; i < N_CASES; i++) {
        us = measure(&a, &cases[i]);
        if (cases[i].n_seqs != 64 || cases[i].context != 4096) continue;
        if (cases[i].n == 1) decode_us = us;
        if (cases[i].n == VERIFY_ROWS)
            bench_report_figure(k->report, "kernels.verify_to_decode", us / decode_us, "x",
                                (struct bench_target){1.05, true},
                                "verify %d rows against decode 1, 64 x 4096", VERIFY_ROWS);
    }
    cpu_pool_close(a.pool);
    free(a.table);
}

#endif
