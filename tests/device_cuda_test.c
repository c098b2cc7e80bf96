/* The CUDA device against the CPU twin, bit for bit: stage by stage on made-up models of awkward
 * shapes, with 1 to 32 rows and around multiples of 8 to 512, prompts cut anywhere, sequences that
 * share a step with NaN, pages scattered and poisoned, canonical and tuned schedules; choices on
 * logits of every kind; a whole model for some hundred steps; and what load refuses.  The first
 * coordinate that differs is printed.  Skipped (77) where there is no such GPU. */
#include "runtime/device_cuda.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/device.h"
#include "runtime/err.h"
#include "runtime/forward.h"
#include "runtime/num.h"
#include "runtime/sha256.h"
#include "runtime/weights.h"
#include "tests/logit_data.h"
#include "tests/made_up.h"

enum {
    SKIPPED = 77,
    FAULTS_MAX = 20, /* printed */
    N_SEQS = 32,
    N_SEQ_PAGES = 16,
    N_PAGES = N_SEQS * N_SEQ_PAGES + 8,
    N_ROWS = 512,
    N_LOGIT_ROWS = 24,
    N_CHOICES = 112,        /* rows at once: more than clusters choose for */
    N_CHOICES_WEIGHED = 48, /* than of those who are greedy, where the vocabulary is large */
    N_WANTS = 128,
};

static int n_failed;
static uint64_t n_compared;
static uint32_t seed = 1;
static char folder[] = "/tmp/device_cuda_test.XXXXXX";
static struct device_cuda_options cuda_options;
static int brief; /* 1: a subset; 2, 3: a few steps, under a sanitizer */

enum { CHOICES = 4 }; /* of brief: all of the choices, and no stages */

#define CHECK(cond)                                           \
    do {                                                      \
        if (!(cond)) {                                        \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #cond); \
            n_failed++;                                       \
        }                                                     \
    } while (0)

static void must(int r, const struct err *e) {
    if (r >= 0) return;
    printf("%s\n", e->text);
    exit(1);
}

static uint32_t next(void) {
    return num_random(7, 1, seed++);
}

static double seconds(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Both devices, and a step on both. */

enum { TWIN, GPU, N_DEVICES };

struct run {
    struct device *devices[N_DEVICES];
    const struct model *m;
    uint32_t pages[N_SEQS][N_SEQ_PAGES];
    uint32_t done[N_SEQS]; /* positions of a sequence that have keys */
    struct device_row rows[N_ROWS];
    struct device_want wants[N_WANTS];
    struct device_batch batch;
};

static const struct device_limits limits = {
    .n_rows = N_ROWS,
    .n_seqs = N_SEQS,
    .n_pages = N_PAGES,
    .n_seq_pages = N_SEQ_PAGES,
    .n_wants = N_WANTS,
    .n_logit_rows = N_CHOICES,
    .n_positions = N_SEQ_PAGES * DEVICE_PAGE_TOKENS,
};

static void open_devices(struct run *run, const struct model *m, struct weights *w) {
    const struct device_cpu_options cpu = {.n_threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN)};
    struct err e = {""};

    run->m = m;
    must(device_cpu_open(&cpu, &run->devices[TWIN], &e), &e);
    must(device_cuda_open(&cuda_options, &run->devices[GPU], &e), &e);
    for (int i = 0; i < N_DEVICES; i++)
        must(run->devices[i]->ops->load(run->devices[i], m, w, &limits, &e), &e);
}

static void close_devices(struct run *run) {
    for (int i = 0; i < N_DEVICES; i++) run->devices[i]->ops->close(run->devices[i]);
}

/* Sequences start anew, on pages that nobody wrote. */
static void start(struct run *run) {
    uint32_t order[N_PAGES];
    struct err e = {""};

    for (uint32_t i = 0; i < N_PAGES; i++) {
        const uint32_t j = next() % (i + 1);

        order[i] = order[j];
        order[j] = i;
        for (int k = 0; k < N_DEVICES; k++)
            must(run->devices[k]->ops->poison(run->devices[k], i, i % 2 ? 0xffff : 0x7f80, &e), &e);
    }
    for (uint32_t i = 0; i < N_SEQS * N_SEQ_PAGES; i++)
        run->pages[i / N_SEQ_PAGES][i % N_SEQ_PAGES] = order[i];
    memset(run->done, 0, sizeof(run->done));
}

static void compare(struct run *run, enum device_buffer buffer, uint32_t n_rows, size_t n_values,
                    size_t value_bytes, const char *stage, uint32_t layer) {
    uint8_t *rows[N_DEVICES];
    struct err e = {""};

    for (int i = 0; i < N_DEVICES; i++) rows[i] = malloc(n_values * value_bytes);
    for (uint32_t row = 0; row < n_rows; row++) {
        for (int i = 0; i < N_DEVICES; i++)
            must(run->devices[i]->ops->read(run->devices[i], buffer, row, rows[i], &e), &e);
        n_compared += n_values;
        if (!memcmp(rows[TWIN], rows[GPU], n_values * value_bytes)) continue;
        for (size_t i = 0; i < n_values; i++) {
            uint32_t v[N_DEVICES] = {0, 0};

            for (int k = 0; k < N_DEVICES; k++)
                memcpy(&v[k], rows[k] + i * value_bytes, value_bytes);
            if (v[TWIN] == v[GPU]) continue;
            if (n_failed++ < FAULTS_MAX)
                printf("%s, layer %u, %u rows, row %u (seq %u, position %u), value %zu of %zu: "
                       "twin %x, GPU %x\n",
                       stage, layer, run->batch.n_rows, row, run->rows[row].seq,
                       run->rows[row].position, i, n_values, v[TWIN], v[GPU]);
            break;
        }
    }
    for (int i = 0; i < N_DEVICES; i++) free(rows[i]);
}

#define BOTH(call, ...)                                \
    for (int device = 0; device < N_DEVICES; device++) \
    must(run->devices[device]->ops->call(run->devices[device], __VA_ARGS__), &e)

static void same_result(const struct device_result *a, const struct device_result *b, uint32_t i,
                        const struct device_want *want) {
    bool same = a->numeric == b->numeric;

    n_compared++;
    if (same && !a->numeric)
        same = a->token == b->token && a->n_top == b->n_top &&
               !memcmp(&a->logprob, &b->logprob, 3 * sizeof(float)) &&
               !memcmp(a->top_ids, b->top_ids, a->n_top * sizeof(uint32_t)) &&
               !memcmp(a->top_logprobs, b->top_logprobs, a->n_top * sizeof(float));
    if (same) return;
    if (n_failed++ < FAULTS_MAX)
        printf("result %u (temperature %a top_k %u top_p %a min_p %a): numeric %d %d, token %u %u, "
               "logprob %a %a, target %a %a, lse %a %a, n_top %u %u\n",
               i, (double)want->params.temperature, want->params.top_k, (double)want->params.top_p,
               (double)want->params.min_p, a->numeric, b->numeric, a->token, b->token,
               (double)a->logprob, (double)b->logprob, (double)a->target_logprob,
               (double)b->target_logprob, (double)a->lse, (double)b->lse, a->n_top, b->n_top);
}

static void same_results(struct run *run, bool flags) {
    static struct device_result results[N_DEVICES][N_WANTS];
    static uint8_t flagged[N_DEVICES][N_ROWS];
    struct err e = {""};

    for (int i = 0; i < N_DEVICES; i++) {
        struct device *dev = run->devices[i];

        must(dev->ops->copy(dev, results[i], flagged[i], &e), &e);
        must(dev->ops->wait(dev, &e), &e);
    }
    for (uint32_t i = 0; i < run->batch.n_wants; i++)
        same_result(&results[TWIN][i], &results[GPU][i], i, &run->wants[i]);
    for (uint32_t i = 0; flags && i < run->batch.n_rows; i++) {
        if (flagged[TWIN][i] == flagged[GPU][i]) continue;
        if (n_failed++ < FAULTS_MAX)
            printf("row %u (seq %u, position %u): flagged %u by the twin, %u by the GPU\n", i,
                   run->rows[i].seq, run->rows[i].position, flagged[TWIN][i], flagged[GPU][i]);
    }
}

static struct sample_params params_of(uint32_t vocab) {
    static const float temperatures[] = {0.0f, 0.0f, 1.0f, 0.7f, 0x1p-7f, 3.0f, 0x1p7f};
    static const float top_ps[] = {1.0f, 1.0f, 0.9f, 0.5f, 0.1f, 1e-9f, 0.99999f};
    static const float min_ps[] = {0.0f, 0.0f, 0.0f, 0.05f, 0.9f, 1.0f};
    const uint32_t ks[] = {0, 0, 1, 2, 40, vocab / 2, vocab - 1, vocab};

    return (struct sample_params){.temperature = temperatures[next() % 7],
                                  .top_p = top_ps[next() % 7],
                                  .min_p = min_ps[next() % 6],
                                  .top_k = ks[next() % 8],
                                  .seed = (uint64_t)next() << 32 | next()};
}

static void make_wants(struct run *run, uint32_t n) {
    const uint32_t n_rows = run->batch.n_rows;

    if (n > n_rows) n = n_rows;
    for (uint32_t i = 0; i < n; i++)
        run->wants[i] =
            (struct device_want){.row = n == n_rows ? n - 1 - i : next() % n_rows,
                                 .target = next() % 2 ? next() % run->m->vocab : DEVICE_NO_TOKEN,
                                 .n_top = next() % 3 ? 0 : next() % (SAMPLE_TOP_MAX + 1),
                                 .params = params_of(run->m->vocab)};
    run->batch.wants = run->wants;
    run->batch.n_wants = n;
}

/* The step's rows are there: every stage, every row. */
static void step(struct run *run, const struct schedule *s, uint32_t n_wants) {
    const struct model *m = run->m;
    struct err e = {""};
    const uint32_t n = run->batch.n_rows;

    run->batch.rows = run->rows;
    run->batch.n_seqs = N_SEQS;
    run->batch.pages = run->pages[0];
    make_wants(run, n_wants);
    BOTH(upload, &run->batch, &e);
    BOTH(embed, &e);
    compare(run, DEVICE_X, n, m->hidden, 2, "embed", 0);
    for (uint32_t l = 0; l < m->n_layers; l++) {
        BOTH(attn_in, l, s, &e);
        compare(run, DEVICE_QKV, n, (m->n_heads + 2 * m->n_kv_heads) * m->head_dim, 2, "attn_in",
                l);
        BOTH(attend, l, s, &e);
        compare(run, DEVICE_ATTN, n, m->n_heads * m->head_dim, 2, "attend", l);
        BOTH(attn_out, l, s, &e);
        compare(run, DEVICE_X, n, m->hidden, 2, "attn_out", l);
        BOTH(mlp_in, l, s, &e);
        compare(run, DEVICE_H, n, m->intermediate, 2, "mlp_in", l);
        BOTH(mlp_out, l, s, &e);
        compare(run, DEVICE_X, n, m->hidden, 2, "mlp_out", l);
    }
    for (uint32_t first = 0; first < run->batch.n_wants; first += N_LOGIT_ROWS) {
        const uint32_t left = run->batch.n_wants - first;
        const uint32_t n_head = left < N_LOGIT_ROWS ? left : N_LOGIT_ROWS;

        BOTH(head, first, n_head, s, &e);
        compare(run, DEVICE_LOGITS, n_head, m->vocab, 4, "head", 0);
        BOTH(sample, first, n_head, &e);
    }
    same_results(run, true);
}

/* n rows, up to `most` of a sequence; some sequences meet the broken tokens. */
static void fill(struct run *run, uint32_t n, uint32_t most) {
    uint32_t seq = next() % N_SEQS;

    run->batch.n_rows = 0;
    for (uint32_t tries = 0; run->batch.n_rows < n && tries < N_SEQS; tries++) {
        uint32_t left = limits.n_positions - run->done[seq], n_here = 1 + next() % most;

        if (n_here > left) n_here = left;
        for (; n_here > 0 && run->batch.n_rows < n; n_here--) {
            uint32_t token = next() % (run->m->vocab - 2);

            if (seq % 8 == 7 && next() % 4 == 0) token = run->m->vocab - 1 - next() % 2;
            run->rows[run->batch.n_rows++] =
                (struct device_row){.token = token, .position = run->done[seq]++, .seq = seq};
        }
        seq = (seq + 1) % N_SEQS;
    }
}

static void same_kv(const struct run *run) {
    const struct model *m = run->m;
    uint16_t k[N_DEVICES][MODEL_HEAD_DIM_MAX], v[N_DEVICES][MODEL_HEAD_DIM_MAX];
    const size_t n_bytes = m->head_dim * sizeof(uint16_t);
    struct err e = {""};

    for (uint32_t s = 0; s < N_SEQS; s++)
        for (uint32_t p = 0; p < run->done[s]; p += 1 + next() % 16)
            for (uint32_t h = 0; h < m->n_kv_heads; h++) {
                BOTH(read_kv, m->n_layers - 1, run->pages[s][p / DEVICE_PAGE_TOKENS],
                     p % DEVICE_PAGE_TOKENS, h, k[device], v[device], &e);
                n_compared += 2 * m->head_dim;
                if (!memcmp(k[TWIN], k[GPU], n_bytes) && !memcmp(v[TWIN], v[GPU], n_bytes))
                    continue;
                if (n_failed++ < FAULTS_MAX)
                    printf("keys or values of seq %u, position %u, KV head %u differ\n", s, p, h);
            }
}

#define CANONICAL \
    { 1, 4, 1, 4, 1, 1, 512 }

static const struct {
    const char *why;
    struct model m;
    struct schedule s;
    uint32_t n_thorough; /* rows up to which every count is tried */
} cases[] = {
    {"a head of 16, an odd vocabulary, hidden 48",
     {.n_layers = 2,
      .hidden = 48,
      .intermediate = 80,
      .n_heads = 3,
      .n_kv_heads = 3,
      .head_dim = 16,
      .vocab = 301,
      .rms_eps = 1e-5f,
      .rope_theta = 1e4},
     CANONICAL,
     32},
    {"the shapes of SmolLM2",
     {.n_layers = 2,
      .hidden = 576,
      .intermediate = 1536,
      .n_heads = 9,
      .n_kv_heads = 3,
      .head_dim = 64,
      .vocab = 49152,
      .tied = true,
      .rms_eps = 1e-5f,
      .rope_theta = 1e5},
     CANONICAL,
     12},
    {"heads of 128, eight KV heads, untied",
     {.n_layers = 2,
      .hidden = 1024,
      .intermediate = 1792,
      .n_heads = 32,
      .n_kv_heads = 8,
      .head_dim = 128,
      .vocab = 2003,
      .rms_eps = 1e-5f,
      .rope_theta = 5e5},
     CANONICAL,
     32},
    {"eleven query heads a KV head; K no multiple of the segments; splits of 128",
     {.n_layers = 2,
      .hidden = 592,
      .intermediate = 208,
      .n_heads = 11,
      .n_kv_heads = 1,
      .head_dim = 48,
      .vocab = 130,
      .tied = true,
      .rms_eps = 1e-6f,
      .rope_theta = 1e4},
     {16, 8, 2, 16, 4, 8, 128},
     32},
    {"a tuned schedule, heads of 256",
     {.n_layers = 1,
      .hidden = 272,
      .intermediate = 512,
      .n_heads = 2,
      .n_kv_heads = 2,
      .head_dim = 256,
      .vocab = 1025,
      .rms_eps = 1e-5f,
      .rope_theta = 1e4},
     {2, 2, 4, 8, 2, 4, 256},
     16},
    {"SmolLM2's layers, few ids; gate and up take three rounds of tiles",
     {.n_layers = 2,
      .hidden = 576,
      .intermediate = 8192,
      .n_heads = 9,
      .n_kv_heads = 3,
      .head_dim = 64,
      .vocab = 256,
      .tied = true,
      .rms_eps = 1e-5f,
      .rope_theta = 1e5},
     CANONICAL,
     12},
    {"hidden 8208, more than the norm keeps in registers; 257 partial sums of squares",
     {.n_layers = 2,
      .hidden = 8208,
      .intermediate = 256,
      .n_heads = 4,
      .n_kv_heads = 1,
      .head_dim = 64,
      .vocab = 128,
      .tied = true,
      .rms_eps = 1e-5f,
      .rope_theta = 1e4},
     CANONICAL,
     8},
    {"tiles of 112 of gate and up, of 32 of q, k and v",
     {.n_layers = 2,
      .hidden = 1024,
      .intermediate = 7168,
      .n_heads = 24,
      .n_kv_heads = 4,
      .head_dim = 128,
      .vocab = 256,
      .rms_eps = 1e-5f,
      .rope_theta = 5e5},
     CANONICAL,
     8},
    {"hidden 4096",
     {.n_layers = 1,
      .hidden = 4096,
      .intermediate = 64,
      .n_heads = 4,
      .n_kv_heads = 1,
      .head_dim = 64,
      .vocab = 256,
      .tied = true,
      .rms_eps = 1e-5f,
      .rope_theta = 1e4},
     {1, 1, 1, 1, 8, 2, 512},
     8},
};

static void test_stages(void) {
    static const uint32_t counts[] = {39, 40, 41, 63, 64, 65, 127, 128, 129, 256, 257, 511, 512};
    struct run *run = calloc(1, sizeof(*run));

    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        const uint32_t n_thorough = brief ? 12u / (uint32_t)brief : cases[c].n_thorough;
        const struct model *m = &cases[c].m;
        const double began = seconds();
        const uint64_t before = n_compared;
        const int failed = n_failed;
        struct weights *w;

        if (brief > 1 && m->vocab > 40000) continue;
        w = made_up_weights(folder, m, MADE_UP_LAST_TWO);
        open_devices(run, m, w);
        start(run);
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            if (counts[i] > (brief > 2 ? 40 : 129) && (brief > 1 || m->vocab > 40000)) break;
            fill(run, counts[i], i % 2 ? 300 : 40);
            step(run, &cases[c].s, 3);
        }
        for (uint32_t n = 1; n <= n_thorough; n++) {
            fill(run, n, n % 3 ? 1 : 4);
            step(run, &cases[c].s, n);
        }
        same_kv(run);
        close_devices(run);
        weights_close(w);
        printf("%-72s %10llu values %5.1f s %s\n", cases[c].why,
               (unsigned long long)(n_compared - before), seconds() - began,
               n_failed == failed ? "equal" : "DIFFER");
        fflush(stdout);
    }
    free(run);
}

/* Whole steps of few rows of a short model as served, whose products norm by themselves. */
static void test_few(void) {
    static struct device_result results[N_DEVICES][N_WANTS];
    static uint8_t flagged[N_ROWS];
    static const uint32_t counts[] = {1, 2, 1, 3, 4, 8, 12, 5, 16, 9, 13, 1, 6, 7, 9, 2};
    const uint64_t before = n_compared, normed_bytes = cuda_options.normed_bytes;
    struct run *run = calloc(1, sizeof(*run));
    struct model m = cases[1].m;
    struct schedule s = schedule_canonical();
    const int failed = n_failed;
    const double began = seconds();
    struct err e = {""};
    struct weights *w;

    m.vocab = 1000;
    m.n_layers = 5;
    cuda_options.normed_bytes = 0;
    w = made_up_weights(folder, &m, MADE_UP_LAST_TWO);
    open_devices(run, &m, w);
    start(run);
    for (uint32_t n = 0; n < (brief ? 24u : 96u); n++) {
        fill(run, n % 24 ? counts[n / 2 % 16] : 400, n % 24 ? 1 : 300);
        for (uint32_t i = 0; i < run->batch.n_rows; i++)
            if (run->rows[i].token + 2 >= m.vocab) run->rows[i].token = 5;
        run->batch.rows = run->rows;
        run->batch.n_seqs = N_SEQS;
        run->batch.pages = run->pages[0];
        make_wants(run, 8);
        for (int i = 0; i < N_DEVICES; i++)
            must(forward_run(run->devices[i], m.n_layers, N_LOGIT_ROWS, &run->batch, &s, results[i],
                             flagged, &e),
                 &e);
        for (uint32_t i = 0; i < run->batch.n_wants; i++)
            same_result(&results[TWIN][i], &results[GPU][i], i, &run->wants[i]);
        compare(run, DEVICE_X, run->batch.n_rows, m.hidden, 2, "whole steps", n);
    }
    same_kv(run);
    close_devices(run);
    weights_close(w);
    free(run);
    cuda_options.normed_bytes = normed_bytes;
    printf("%-72s %10llu values %5.1f s %s\n",
           "whole steps of few rows of a short model, as served",
           (unsigned long long)(n_compared - before), seconds() - began,
           n_failed == failed ? "equal" : "DIFFER");
    fflush(stdout);
}

/* That the comparison can fail: another order of the same sums gives other bits. */
static void test_control(void) {
    struct run *run = calloc(1, sizeof(*run));
    const struct model *m = &cases[2].m;
    struct weights *w = made_up_weights(folder, m, MADE_UP_LAST_TWO);
    struct schedule s = schedule_canonical();
    uint16_t *x[N_DEVICES];
    uint32_t n_other = 0;
    struct err e = {""};

    open_devices(run, m, w);
    start(run);
    fill(run, 5, 1);
    run->batch.rows = run->rows;
    run->batch.n_seqs = N_SEQS;
    run->batch.pages = run->pages[0];
    make_wants(run, 1);
    BOTH(upload, &run->batch, &e);
    BOTH(embed, &e);
    BOTH(attn_in, 0, &s, &e);
    BOTH(attend, 0, &s, &e);
    for (int i = 0; i < N_DEVICES; i++) {
        s.o = i == TWIN ? 4 : 2;
        must(run->devices[i]->ops->attn_out(run->devices[i], 0, &s, &e), &e);
        x[i] = calloc(m->hidden, sizeof(*x[i]));
    }
    for (uint32_t row = 0; row < 5; row++) {
        BOTH(read, DEVICE_X, row, x[device], &e);
        for (uint32_t i = 0; i < m->hidden; i++) n_other += x[TWIN][i] != x[GPU][i];
    }
    printf("four segments and two: %u values of %u differ\n", n_other, 5 * m->hidden);
    CHECK(n_other > 0);
    for (int i = 0; i < N_DEVICES; i++) free(x[i]);
    close_devices(run);
    weights_close(w);
    free(run);
}

/* Logits of every kind, chosen from by every kind of parameters. */
static void test_choices(void) {
    static const uint32_t vocabs[] = {1, 2, 33, 127, 129, 1001, 49152, 128256};
    struct run *run = calloc(1, sizeof(*run));
    struct err e = {""};

    for (size_t v = 0; v < sizeof(vocabs) / sizeof(vocabs[0]); v++) {
        struct model m = cases[0].m;
        const double began = seconds();
        const uint64_t before = n_compared;
        const int failed = n_failed;
        struct weights *w;
        float *logits;

        if (brief && brief < CHOICES && vocabs[v] > 40000) continue;
        m.vocab = vocabs[v] > 2 ? vocabs[v] : 3;
        m.n_layers = 1;
        m.hidden = 16;
        w = made_up_weights(folder, &m, MADE_UP_LAST_TWO);
        logits = malloc(m.vocab * sizeof(*logits));
        open_devices(run, &m, w);
        start(run);
        for (uint32_t round = 0;
             round < (m.vocab > 40000 || (brief && brief < CHOICES) ? 12u : 60u); round++) {
            const uint32_t n_rows = round % 4 == 3   ? N_CHOICES
                                    : round % 4 == 1 ? N_CHOICES_WEIGHED
                                                     : N_LOGIT_ROWS;

            fill(run, n_rows, n_rows > N_LOGIT_ROWS ? n_rows / 8 : 1 + round % 3);
            CHECK(run->batch.n_rows == n_rows || n_rows == N_LOGIT_ROWS);
            run->batch.rows = run->rows;
            run->batch.n_seqs = N_SEQS;
            run->batch.pages = run->pages[0];
            make_wants(run, n_rows);
            BOTH(upload, &run->batch, &e);
            for (uint32_t i = 0; i < run->batch.n_wants; i++) {
                logit_data(logits, m.vocab, (i + round) % LOGIT_KINDS, next);
                BOTH(write, DEVICE_LOGITS, i, logits, &e);
            }
            BOTH(sample, 0, run->batch.n_wants, &e);
            same_results(run, false);
        }
        close_devices(run);
        weights_close(w);
        free(logits);
        printf("choices of %-61u %10llu rows   %5.1f s %s\n", m.vocab,
               (unsigned long long)(n_compared - before), seconds() - began,
               n_failed == failed ? "equal" : "DIFFER");
        fflush(stdout);
    }
    free(run);
}

/* A real model, whole steps: prompts, then tokens fed back, greedy and drawn. */
static void test_whole(const char *path, uint32_t n_steps) {
    struct run *run = calloc(1, sizeof(*run));
    static struct device_result results[N_DEVICES][N_WANTS];
    static uint8_t flagged[N_ROWS];
    const double began = seconds();
    const int failed = n_failed;
    uint8_t digests[N_DEVICES][SHA256_BYTES];
    char hex[SHA256_HEX_BYTES];
    double took[N_DEVICES] = {0.0, 0.0};
    struct sha256 *sums[N_DEVICES];
    struct weights *w = NULL;
    struct err e = {""};
    struct model m;

    seed = 1 << 20; /* the digest depends on what is run here alone */
    must(model_read(path, &m, &e), &e);
    must(weights_open(path, false, &w, &e), &e);
    open_devices(run, &m, w);
    start(run);
    for (int i = 0; i < N_DEVICES; i++) {
        sums[i] = sha256_open();
        sha256_start(sums[i]);
    }
    for (uint32_t n = 0; n < n_steps; n++) {
        const uint32_t n_rows = n ? N_LOGIT_ROWS : 256;
        struct schedule s = schedule_canonical();

        fill(run, n_rows, n ? 1 : 20);
        for (uint32_t i = 0; i < run->batch.n_rows; i++)
            if (run->rows[i].token + 2 >= m.vocab) run->rows[i].token = 5;
        for (uint32_t i = 0; n && i < run->batch.n_rows; i++)
            run->rows[i].token = results[TWIN][i % run->batch.n_wants].token % m.vocab;
        run->batch.rows = run->rows;
        run->batch.n_seqs = N_SEQS;
        run->batch.pages = run->pages[0];
        make_wants(run, N_LOGIT_ROWS);
        if (n % 4 == 3) s = schedule_stock(&m, &(struct schedule_load){n_rows, n_rows, 100});
        for (int i = 0; i < N_DEVICES; i++) {
            const double start_s = seconds();

            must(forward_run(run->devices[i], m.n_layers, N_LOGIT_ROWS, &run->batch, &s, results[i],
                             flagged, &e),
                 &e);
            took[i] += seconds() - start_s;
            for (uint32_t j = 0; j < run->batch.n_wants; j++)
                sha256_add(sums[i], &results[i][j], offsetof(struct device_result, n_top));
        }
        for (uint32_t i = 0; i < run->batch.n_wants; i++)
            same_result(&results[TWIN][i], &results[GPU][i], i, &run->wants[i]);
    }
    for (int i = 0; i < N_DEVICES; i++) {
        sha256_end(sums[i], digests[i]);
        sha256_close(sums[i]);
    }
    CHECK(!memcmp(digests[TWIN], digests[GPU], SHA256_BYTES));
    close_devices(run);
    weights_close(w);
    free(run);
    sha256_hex(digests[GPU], hex);
    printf("%s: %u steps, twin %.1f ms a step, GPU %.3f, %.1f s %s, digest %.16s\n", path, n_steps,
           took[TWIN] / n_steps * 1e3, took[GPU] / n_steps * 1e3, seconds() - began,
           n_failed == failed ? "equal" : "DIFFER", hex);
}

static void test_refusals(void) {
    struct device_limits large = limits;
    struct model m = cases[0].m;
    struct weights *w = made_up_weights(folder, &m, MADE_UP_LAST_TWO);
    struct device *dev = NULL;
    struct err e = {""};

    large.n_pages = 1u << 30;
    must(device_cuda_open(&cuda_options, &dev, &e), &e);
    CHECK(dev->ops->load(dev, &m, w, &large, &e) == -ENOMEM);
    printf("refused: %s\n", e.text);
    CHECK(strstr(e.text, "KV pages") && strstr(e.text, "short"));
    dev->ops->close(dev);

    m.intermediate = 96;
    must(device_cuda_open(&cuda_options, &dev, &e), &e);
    CHECK(dev->ops->load(dev, &m, w, &limits, &e) == -ENOTSUP);
    CHECK(strstr(e.text, "mlp.gate_proj"));
    dev->ops->close(dev);
    cuda_options.ordinal = 99;
    CHECK(device_cuda_open(&cuda_options, &dev, &e) == -ENODEV);
    cuda_options.ordinal = 0;
    weights_close(w);
}

int main(int argc, char **argv) {
    struct device *dev = NULL;
    struct err e = {""};
    double began = seconds();
    char path[256], text[200];
    int r;

    brief = getenv("DEVICE_CUDA_BRIEF") ? atoi(getenv("DEVICE_CUDA_BRIEF")) : 0;
    cuda_options.cache_folder = getenv("LLM42_CUDA_CACHE");
    cuda_options.no_graphs = getenv("LLM42_CUDA_NO_GRAPHS") != NULL;
    cuda_options.normed_bytes = !cuda_options.no_graphs; /* small models too; or as served */
    r = device_cuda_open(&cuda_options, &dev, &e);
    if (r == -ENODEV) {
        printf("%s\n", e.text);
        return SKIPPED;
    }
    must(r, &e);
    dev->ops->describe(dev, text, sizeof(text));
    dev->ops->close(dev);
    printf("%s; opened in %.2f s", text, seconds() - began);
    began = seconds();
    must(device_cuda_open(&cuda_options, &dev, &e), &e);
    dev->ops->close(dev);
    printf(", then in %.2f s\n", seconds() - began);
    if (!mkdtemp(folder)) return 1;

    test_choices();
    if (brief < CHOICES) test_few();
    if (brief < CHOICES) test_stages();
    test_control();
    test_refusals();
    test_whole("tests/data/verse-4m", brief == 3 ? 4 : brief ? 40 : 300);
    for (int i = 1; i < argc; i++) test_whole(argv[i], 40);

    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    (void)unlink(path);
    (void)rmdir(folder);
    printf("%llu values compared, %d failed\n", (unsigned long long)n_compared, n_failed);
    return n_failed ? 1 : 0;
}
