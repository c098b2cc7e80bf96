/* The twin's inner loops by themselves, one thread: products, attention, sampling. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/cpu_attn.h"
#include "runtime/cpu_gemm.h"
#include "runtime/cpu_pool.h"
#include "runtime/device.h"
#include "runtime/err.h"
#include "runtime/num.h"
#include "runtime/sample.h"
#include "tools/bench_verbs.h"

enum {
    SPAN_NS = 40000000, /* a figure takes this long, if its runs are short */
    RUNS_MAX = 400,
    RUNS_SLOW = 3, /* of one that is long; below, the median says little */
    N_ROWS = 6,
    ROWS_MAX = 64,
    CONTEXT_MAX = 8192,
};

#define TARGET_GMAC 5.0
#define TARGET_TO_GEMM 0.8 /* of attention */

static const uint32_t row_counts[N_ROWS] = {1, 2, 4, 8, 16, ROWS_MAX};

/* Where shapes and schedules come from: SmolLM2-135M. */
static const struct model smollm2 = {.n_layers = 30,
                                     .hidden = 576,
                                     .intermediate = 1536,
                                     .n_heads = 9,
                                     .n_kv_heads = 3,
                                     .head_dim = 64,
                                     .vocab = 49152,
                                     .context = CONTEXT_MAX};

struct twin {
    const struct bench_report *report;
    const struct cpu_code *code;
    bool best; /* the fastest: its figures are the machine's */
    struct cpu_pool *pool;
    struct bench_random random;
    double gemm[N_ROWS]; /* GMAC/s of the first shape, canonical, by this code */
};

/* ---- Timing ---- */

typedef void run_once(void *ctx);

/* The median of as many runs as the span holds. */
static double median_ns(run_once *fn, void *ctx) {
    double ns[RUNS_MAX];
    const int64_t end_ns = bench_now_ns() + SPAN_NS;
    size_t n = 0;

    fn(ctx); /* caches and pages are warm from here on */
    while (n < RUNS_MAX && (n < RUNS_SLOW || bench_now_ns() < end_ns)) {
        const int64_t begin_ns = bench_now_ns();

        fn(ctx);
        ns[n++] = (double)(bench_now_ns() - begin_ns);
    }
    return bench_quantile(ns, n, 0.5);
}

/* About normal, of variance 1/3: nothing in it leaves the fast path. */
static uint16_t random_value(struct bench_random *r) {
    float sum = 0;

    for (int i = 0; i < 4; i++) sum += (float)bench_random_unit(r) - 0.5f;
    return num_to_bf16(sum);
}

static void *take(size_t n, size_t value_bytes) {
    const size_t n_bytes = (n * value_bytes + 63) / 64 * 64;
    void *p = aligned_alloc(64, n_bytes ? n_bytes : 64);

    if (!p) {
        bench_say("no memory for %zu bytes", n_bytes);
        exit(BENCH_FAILED);
    }
    memset(p, 0, n_bytes);
    return p;
}

/* ---- Memory ---- */

enum { READ_BYTES = 256 << 20, READ_ITEMS = 64, LARGE_PAGE_BYTES = 2 << 20 };

typedef uint64_t words __attribute__((vector_size(32)));

struct reading {
    struct cpu_pool *pool;
    const words *from;
    uint64_t sums[READ_ITEMS];
};

static void read_item(void *ctx, uint32_t item, uint32_t thread) {
    struct reading *r = ctx;
    const size_t n = READ_BYTES / READ_ITEMS / sizeof(words);
    const words *from = r->from + n * item;
    words a = {0}, b = {0}, c = {0}, d = {0};

    (void)thread;
    for (size_t i = 0; i < n; i += 4) {
        a += from[i];
        b += from[i + 1];
        c += from[i + 2];
        d += from[i + 3];
    }
    a += b + c + d;
    r->sums[item] = a[0] + a[1] + a[2] + a[3];
}

static void read_run(void *ctx) {
    struct reading *r = ctx;

    cpu_pool_run(r->pool, READ_ITEMS, read_item, r);
}

/* Reads what no cache holds, in pages of the usual size or large ones where the kernel has them. */
static int memory_rate(struct twin *t, uint32_t n_threads, bool large) {
    const double gb = READ_BYTES / 1e9;
    void *at = aligned_alloc(LARGE_PAGE_BYTES, READ_BYTES);
    struct reading r = {.from = at};
    struct err e = {"no memory"};
    double rate;

    if (!at || cpu_pool_open(n_threads, &r.pool, &e) < 0) {
        bench_say("reading %u MiB: %s", READ_BYTES >> 20, e.text);
        free(at);
        return BENCH_FAILED;
    }
    (void)madvise(at, READ_BYTES, large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(at, 1, READ_BYTES);
    rate = gb / (median_ns(read_run, &r) / 1e9);
    bench_report_figure(t->report, "twin.read", rate, "GB/s", (struct bench_target){0, false},
                        "%u thread%s, %s pages: bounds one row at %.2f GMAC/s a core", n_threads,
                        n_threads == 1 ? "" : "s", large ? "large" : "usual", rate / 2 / n_threads);
    cpu_pool_close(r.pool);
    free(at);
    return BENCH_OK;
}

/* What bounds a step of one row: it reads each weight once, two bytes a multiplication. */
static int memory(struct twin *t, uint32_t n_threads) {
    int r;

    bench_report_section(t->report, "Reading %u MiB of memory", READ_BYTES >> 20);
    for (int large = 0; large < 2; large++) {
        if ((r = memory_rate(t, 1, large)) != BENCH_OK) return r;
        if (n_threads > 1 && (r = memory_rate(t, n_threads, large)) != BENCH_OK) return r;
    }
    return BENCH_OK;
}

/* The name of a figure: one of the best code's, one each of the others'. */
static const char *key_of(const struct twin *t, const char *best, const char *avx2,
                          const char *portable) {
    return t->best ? best : t->code == &cpu_code_portable ? portable : avx2;
}

/* ---- Products ---- */

struct shape {
    const char *name;
    uint32_t n, n_k;
    size_t segments_off; /* in struct schedule */
};

static const struct shape shapes[] = {
    {"1024 x 4096", 1024, 4096, offsetof(struct schedule, down)},
    {"qkv 960 x 576", 960, 576, offsetof(struct schedule, qkv)},
    {"o 576 x 576", 576, 576, offsetof(struct schedule, o)},
    {"gate_up 3072 x 576", 3072, 576, offsetof(struct schedule, gate_up)},
    {"down 576 x 1536", 576, 1536, offsetof(struct schedule, down)},
    {"head 49152 x 576", 49152, 576, offsetof(struct schedule, head)},
};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

struct product {
    const struct twin *t;
    struct cpu_matrix m;
    struct cpu_rows x;
    uint32_t n_rows, segments;
    float sum; /* so that results are used */
};

static void product_open(struct twin *t, struct product *p, const struct shape *s) {
    const size_t n_k = s->n_k, n_x = ROWS_MAX * n_k;
    uint16_t *values = take(n_x > 8 * n_k ? n_x : 8 * n_k, sizeof(*values));

    *p = (struct product){.t = t, .m = {.n = s->n, .n_k = s->n_k, .n_blocks = (s->n + 7) / 8}};
    p->m.w = take(cpu_matrix_words(s->n, s->n_k), sizeof(*p->m.w));
    for (uint32_t block = 0; block < p->m.n_blocks; block++) {
        /* Every eighth block is new, the others repeat it: drawing is slow. */
        for (size_t i = 0; block % 8 == 0 && i < 8 * n_k; i++) values[i] = random_value(&t->random);
        cpu_matrix_put(&p->m, values, 8, block, 1);
    }
    for (size_t i = 0; i < n_x; i++) values[i] = random_value(&t->random);
    p->x = (struct cpu_rows){take(n_x, sizeof(float)), take(n_x / 2, sizeof(uint32_t)),
                             take(n_x / CPU_GROUP, 1), s->n_k};
    t->code->spread(values, (uint32_t)n_x, p->x.values, p->x.exponents, p->x.kinds);
    free(values);
}

static void product_close(struct product *p) {
    free(p->m.w);
    free(p->x.values);
    free(p->x.exponents);
    free(p->x.kinds);
}

static void product_out(void *ctx, uint32_t row, uint32_t block, uint32_t n_blocks,
                        const float *y) {
    struct product *p = ctx;

    (void)row, (void)block, (void)n_blocks;
    p->sum += y[0];
}

static void product_run(void *ctx) {
    struct product *p = ctx;

    cpu_gemm(p->t->pool, p->t->code, &p->m, &p->x, p->n_rows, p->segments, product_out, p);
}

static uint32_t segments_of(const struct shape *s, const struct schedule *schedule) {
    return ((const uint8_t *)schedule)[s->segments_off];
}

/* One shape on one kind of schedule: a cell a count of rows. */
static void product_line(struct twin *t, const struct shape *s, struct product *p, bool stock,
                         const struct bench_column columns[N_ROWS]) {
    const bool vectors = t->code != &cpu_code_portable, first = s == shapes && !stock;
    double cells[N_ROWS];
    uint32_t least = UINT32_MAX, most = 0;

    for (uint32_t i = 0; i < N_ROWS; i++) {
        const struct schedule_load load = {row_counts[i], row_counts[i], 512};
        const struct schedule schedule =
            stock ? schedule_stock(&smollm2, &load) : schedule_canonical();

        cells[i] = BENCH_NO_CELL;
        p->n_rows = row_counts[i];
        p->segments = segments_of(s, &schedule);
        if (row_counts[i] > 16 && (!vectors || s->n > 4096)) continue; /* too long */
        if (p->segments < least) least = p->segments;
        if (p->segments > most) most = p->segments;
        cells[i] = (double)s->n * s->n_k * row_counts[i] / median_ns(product_run, p);
        if (first && vectors) t->gemm[i] = cells[i];
    }
    if (least == most)
        bench_report_row(t->report, columns, N_ROWS, cells, "%s, %s, K in %u", s->name,
                         stock ? "stock" : "canonical", most);
    else
        bench_report_row(t->report, columns, N_ROWS, cells, "%s, %s, K in %u to %u", s->name,
                         stock ? "stock" : "canonical", least, most);
}

static void products(struct twin *t) {
    const bool vectors = t->code != &cpu_code_portable;
    const char *key = key_of(t, "twin.gemm", "twin.gemm_avx2", "twin.gemm_portable");
    const struct bench_target target = {vectors ? TARGET_GMAC : 0, false};
    const struct bench_column columns[N_ROWS] = {
        {"1 row", key, "GMAC/s", target},   {"2 rows", key, "GMAC/s", target},
        {"4 rows", key, "GMAC/s", target},  {"8 rows", key, "GMAC/s", target},
        {"16 rows", key, "GMAC/s", target}, {"64 rows", key, "GMAC/s", target}};

    bench_report_section(t->report, "Matrix products, N x K, GMAC/s, %s, one thread",
                         t->code->name);
    bench_report_columns(t->report, columns, N_ROWS);
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        struct product p;

        if (i > 0 && !t->best) break; /* enough to compare */
        product_open(t, &p, &shapes[i]);
        product_line(t, &shapes[i], &p, false, columns);
        if (vectors) product_line(t, &shapes[i], &p, true, columns);
        product_close(&p);
    }
}

/* ---- Attention ---- */

struct attention {
    struct cpu_attn *attn;
    uint32_t *keys, *values, *pages;
    uint16_t *qkv, *out;
    struct device_row rows[ROWS_MAX];
    uint8_t flagged[ROWS_MAX];
    uint32_t split_keys;
};

enum { QKV_WIDTH = (9 + 2 * 3) * 64, ATTN_WIDTH = 9 * 64 };

static int attention_open(struct twin *t, struct attention *a) {
    const uint32_t n_pages = CONTEXT_MAX / DEVICE_PAGE_TOKENS, dim = smollm2.head_dim;
    const size_t page_words = cpu_attn_page_words(dim);
    const struct device_limits limits = {.n_rows = ROWS_MAX,
                                         .n_seqs = 1,
                                         .n_pages = n_pages,
                                         .n_seq_pages = n_pages,
                                         .n_wants = 1,
                                         .n_logit_rows = 1,
                                         .n_positions = CONTEXT_MAX};
    uint16_t k[MODEL_HEAD_DIM_MAX], v[MODEL_HEAD_DIM_MAX];
    struct err e = {""};
    int r = cpu_attn_open(&smollm2, &limits, t->pool, t->code, &a->attn, &e);

    if (r < 0) {
        bench_say("attention: %s", e.text);
        return BENCH_FAILED;
    }
    a->keys = take(n_pages * smollm2.n_kv_heads * page_words, sizeof(*a->keys));
    a->values = take(n_pages * smollm2.n_kv_heads * page_words, sizeof(*a->values));
    a->pages = take(n_pages, sizeof(*a->pages));
    a->qkv = take((size_t)ROWS_MAX * QKV_WIDTH, sizeof(*a->qkv));
    a->out = take((size_t)ROWS_MAX * ATTN_WIDTH, sizeof(*a->out));
    for (uint32_t i = 0; i < n_pages; i++) a->pages[i] = i;
    for (size_t i = 0; i < (size_t)ROWS_MAX * QKV_WIDTH; i++) a->qkv[i] = random_value(&t->random);
    for (uint32_t i = 0; i < CONTEXT_MAX * smollm2.n_kv_heads; i++) {
        const size_t at = i / DEVICE_PAGE_TOKENS * page_words;

        for (uint32_t d = 0; d < dim; d++) {
            k[d] = random_value(&t->random);
            v[d] = random_value(&t->random);
        }
        cpu_attn_store(a->keys + at, a->values + at, dim, i % DEVICE_PAGE_TOKENS, k, v);
    }
    return BENCH_OK;
}

static void attention_close(struct attention *a) {
    cpu_attn_close(a->attn);
    free(a->keys);
    free(a->values);
    free(a->pages);
    free(a->qkv);
    free(a->out);
}

static void attention_run(void *ctx) {
    struct attention *a = ctx;

    cpu_attn_run(a->attn, a->keys, a->values, a->qkv, QKV_WIDTH, a->split_keys, a->out, a->flagged);
}

/* The last n_rows of a sequence of n_keys; products of keys that count, of scores and of sums. */
static double attention_gmac(struct attention *a, uint32_t n_rows, uint32_t n_keys,
                             uint32_t split_keys) {
    double mac = 0;

    for (uint32_t i = 0; i < n_rows; i++) {
        a->rows[i] = (struct device_row){.position = n_keys - n_rows + i};
        mac += 2.0 * smollm2.n_heads * smollm2.head_dim * (a->rows[i].position + 1);
    }
    a->split_keys = split_keys;
    cpu_attn_batch(a->attn, a->rows, n_rows, a->pages);
    return mac / median_ns(attention_run, a);
}

static int attention(struct twin *t) {
    static const struct {
        uint32_t n_rows, n_keys;
        uint32_t like; /* the product of as many rows, in row_counts */
    } cases[] = {{1, 64, 0},  {1, 512, 0},  {1, 2048, 0}, {1, CONTEXT_MAX, 0},
                 {8, 512, 3}, {64, 256, 5}, {64, 2048, 5}};
    const bool vectors = t->code != &cpu_code_portable;
    const struct bench_column columns[] = {
        {"GMAC/s",
         key_of(t, "twin.attention", "twin.attention_avx2", "twin.attention_portable"),
         "GMAC/s",
         {0, false}},
        {"to GEMM",
         key_of(t, "twin.attention_to_gemm", "twin.attention_to_gemm_avx2", ""),
         "of 1024 x 4096 by as many rows",
         {TARGET_TO_GEMM, false}},
    };
    struct attention a = {.attn = NULL};
    int r = attention_open(t, &a);

    if (r != BENCH_OK) return r;
    bench_report_section(t->report,
                         "Attention, 9 heads on 3 of 64 values, one layer, %s, one thread",
                         t->code->name);
    bench_report_columns(t->report, columns, vectors ? 2 : 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const uint32_t n_rows = cases[i].n_rows;
        const struct schedule_load load = {n_rows, 1, cases[i].n_keys};
        const uint32_t splits[] = {schedule_canonical().split_keys,
                                   schedule_stock(&smollm2, &load).split_keys};

        if (!vectors && cases[i].n_keys > 512) continue;
        for (uint32_t k = 0; k < (n_rows == 1 ? 2 : 1); k++) {
            const double gmac = attention_gmac(&a, n_rows, cases[i].n_keys, splits[k]);
            const double cells[] = {gmac, gmac / t->gemm[cases[i].like]};

            bench_report_row(t->report, columns, vectors ? 2 : 1, cells,
                             "%u row%s at %u keys, splits of %u", n_rows, n_rows > 1 ? "s" : "",
                             cases[i].n_keys, splits[k]);
        }
    }
    attention_close(&a);
    return BENCH_OK;
}

/* ---- Sampling ---- */

struct sampling {
    float *logits;
    uint64_t *order;
    struct sample_params params;
    uint32_t position;
    uint64_t sum;
};

static void lse_run(void *ctx) {
    struct sampling *s = ctx;
    float lse;

    s->sum += sample_lse(s->logits, smollm2.vocab, &lse);
}

static void choose_run(void *ctx) {
    struct sampling *s = ctx;

    s->sum += sample_choose(s->logits, smollm2.vocab, &s->params, s->position++, s->order);
}

static void top_run(void *ctx) {
    struct sampling *s = ctx;
    uint32_t ids[SAMPLE_TOP_MAX];

    sample_top(s->logits, smollm2.vocab, SAMPLE_TOP_MAX, ids);
    s->sum += ids[0];
}

static void sampling(struct twin *t) {
    static const struct {
        const char *of;
        struct sample_params params;
    } cases[] = {
        {"choice, greedy", {0, 1, 0, 0, 0}},
        {"choice, temperature 1", {1, 1, 0, 0, 7}},
        {"choice, temperature 0.8, top-k 50", {0.8f, 1, 0, 50, 7}},
        {"choice, temperature 1, top-p 0.9", {1, 0.9f, 0, 0, 7}},
        {"choice, temperature 1, top-p 0.9, min-p 0.05, top-k 50", {1, 0.9f, 0.05f, 50, 7}},
    };
    struct sampling s = {.logits = take(smollm2.vocab, sizeof(float)),
                         .order = take(smollm2.vocab, sizeof(uint64_t)),
                         .position = 64};
    const struct bench_target none = {0};

    for (uint32_t i = 0; i < smollm2.vocab; i++)
        s.logits[i] = 6 * num_from_bf16(random_value(&t->random));
    bench_report_section(t->report, "Sampling, one row of 49152 logits, one thread");
    bench_report_figure(t->report, "twin.sample", median_ns(lse_run, &s) / 1000, "us", none,
                        "logsumexp");
    bench_report_figure(t->report, "twin.sample", median_ns(top_run, &s) / 1000, "us", none,
                        "the 20 most probable");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        s.params = cases[i].params;
        bench_report_figure(t->report, "twin.sample", median_ns(choose_run, &s) / 1000, "us", none,
                            "%s", cases[i].of);
    }
    free(s.logits);
    free(s.order);
}

int bench_twin(const struct bench_options *o) {
    struct twin t = {.report = &o->report, .random = {o->seed}};
    const struct cpu_code *codes[CPU_CODES_MAX];
    const uint32_t n_codes = cpu_codes(codes);
    struct err e = {""};
    int r = cpu_pool_open(1, &t.pool, &e);

    if (r < 0) {
        bench_say("%s", e.text);
        return BENCH_FAILED;
    }
    r = memory(&t, bench_threads(o));
    for (uint32_t i = 0; r == BENCH_OK && i < n_codes; i++) {
        t.code = codes[i];
        t.best = i == 0;
        products(&t);
        r = attention(&t);
    }
    if (r == BENCH_OK) sampling(&t);
    cpu_pool_close(t.pool);
    return r;
}
