/* llm42-bench step: whole steps of the GPU as an engine sees them, upload and results included, and
 * their stages, of a model that is geometry only, its weights made up from a seed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device.h"
#include "runtime/device_cuda.h"
#include "runtime/err.h"
#include "runtime/forward.h"
#include "runtime/weights.h"
#include "tools/bench_peer.h"
#include "tools/bench_verbs.h"
#include "tools/bench_watch.h"

enum {
    PROMPT_ROWS = 2048, /* of a step that takes in a prompt */
    SEQS_MAX = 1024,
    RUNS = 21, /* of a step; of RUNS_LONG where it is long */
    RUNS_LONG = 5,
    REPLAYS = 8, /* of a graph behind another, with no wait between */
    STAGE_ROUNDS = 5,
    STAGE_CALLS = 16, /* of head, of sample */
    WARM_US = 10000,  /* of the same for nothing: clocks as under load */
    ROUNDS = 3,
    REQUEST_BYTES = 128,
};

/* Of this card, as in bench_gpu.h. */
#define READ_BYTES_A_US 4.55e6
#define FLOP_A_US 790e6

struct steps {
    const struct bench_options *o;
    const struct bench_report *report;
    struct bench_peer *peer; /* or NULL */
    struct device *dev;
    struct model model;
    uint32_t context, n_seqs, n_seq_pages, n_pages, n_rows_max;
    uint32_t *pages; /* [n_seqs][n_seq_pages] */
    struct device_row *rows;
    struct device_want *wants;
    struct device_result *results;
    uint8_t *flagged;
    struct device_batch batch;
    struct device_result alone; /* of row 0, canonical and greedy, in the first step of all */
    bool has_alone;
};

/* What a step came to, microseconds. */
struct times {
    double wall, gpu, host;
};

static void must(int r, const struct err *e) {
    if (r >= 0) return;
    bench_say("step: %s", e->text[0] ? e->text : strerror(-r));
    exit(BENCH_FAILED);
}

static void *take(size_t n, size_t bytes) {
    void *p = calloc(n, bytes);

    if (p) return p;
    bench_say("no memory for %zu values", n);
    exit(BENCH_FAILED);
}

static double now_us(void) {
    return (double)bench_now_ns() / 1e3;
}

/* ---- Steps ---- */

/* A row for each of the first n sequences, at its last position. */
static void make_decode(struct steps *s, uint32_t n, bool drawn) {
    for (uint32_t i = 0; i < n; i++) {
        s->rows[i] = (struct device_row){17 * i % s->model.vocab, s->context - 1, i};
        s->wants[i] = (struct device_want){
            .row = i,
            .target = DEVICE_NO_TOKEN,
            .params = {.temperature = drawn ? 0.8f : 0, .top_p = drawn ? 0.95f : 1, .seed = i}};
    }
    s->batch = (struct device_batch){n, s->rows, s->n_seqs, s->pages, n, s->wants};
}

/* A prompt's first rows, on the pages of as many sequences as it needs. */
static void make_prompt(struct steps *s) {
    for (uint32_t p = 0; p < s->n_seq_pages; p++) s->pages[p] = p % s->n_pages;
    for (uint32_t i = 0; i < PROMPT_ROWS; i++)
        s->rows[i] = (struct device_row){(29 * i + 5) % s->model.vocab, i, 0};
    s->wants[0] = (struct device_want){
        .row = PROMPT_ROWS - 1, .target = DEVICE_NO_TOKEN, .params = {.top_p = 1}};
    s->batch = (struct device_batch){PROMPT_ROWS, s->rows, s->n_seqs, s->pages, 1, s->wants};
}

/* All stages up to the copy of results, as forward.c asks for them. */
static void queue(struct steps *s, const struct schedule *schedule) {
    const struct device_ops *ops = s->dev->ops;
    struct err e = {""};

    must(ops->embed(s->dev, &e), &e);
    for (uint32_t l = 0; l < s->model.n_layers; l++) {
        must(ops->attn_in(s->dev, l, schedule, &e), &e);
        must(ops->attend(s->dev, l, schedule, &e), &e);
        must(ops->attn_out(s->dev, l, schedule, &e), &e);
        must(ops->mlp_in(s->dev, l, schedule, &e), &e);
        must(ops->mlp_out(s->dev, l, schedule, &e), &e);
    }
    must(ops->head(s->dev, 0, s->batch.n_wants, schedule, &e), &e);
    must(ops->sample(s->dev, 0, s->batch.n_wants, &e), &e);
    must(ops->copy(s->dev, s->results, s->flagged, &e), &e);
}

static void upload(struct steps *s) {
    struct err e = {""};

    must(s->dev->ops->upload(s->dev, &s->batch, &e), &e);
}

static void wait(struct steps *s) {
    struct err e = {""};

    must(s->dev->ops->wait(s->dev, &e), &e);
}

/* What the GPU needs for what `queue_some` queues: n more behind the first, without a wait. */
static double gpu_us(struct steps *s, void (*queue_some)(struct steps *, const void *),
                     const void *ctx) {
    double us[2][ROUNDS];

    const double warm = now_us() + WARM_US;

    upload(s);
    do {
        queue_some(s, ctx);
        wait(s);
    } while (now_us() < warm);
    for (int round = 0; round < ROUNDS; round++)
        for (int more = 0; more < 2; more++) {
            const double begin = now_us();

            for (int i = 0; i <= more * REPLAYS; i++) queue_some(s, ctx);
            wait(s);
            us[more][round] = now_us() - begin;
        }
    return (bench_quantile(us[1], ROUNDS, 0.5) - bench_quantile(us[0], ROUNDS, 0.5)) / REPLAYS;
}

static void queue_all(struct steps *s, const void *ctx) {
    queue(s, ctx);
}

static struct times measure(struct steps *s, const struct schedule *schedule) {
    const uint32_t n_runs = s->batch.n_rows < PROMPT_ROWS ? RUNS : RUNS_LONG;
    double wall[RUNS], host[RUNS];

    for (uint32_t i = 0; i < n_runs + 2; i++) {
        const double begin = now_us();
        double queued;

        upload(s);
        queue(s, schedule);
        queued = now_us();
        wait(s);
        if (i < 2) continue; /* a graph is recorded at its first use */
        wall[i - 2] = now_us() - begin;
        host[i - 2] = queued - begin;
    }
    return (struct times){bench_quantile(wall, n_runs, 0.5), gpu_us(s, queue_all, schedule),
                          bench_quantile(host, n_runs, 0.5)};
}

/* ---- Bits ---- */

static void wrong(const char *what) {
    bench_say("step: wrong bits: %s: it is not timed", what);
    exit(BENCH_FAILED);
}

/* Of the canonical step just made: row 0 has the bits it has with any neighbours, and the choice
 * is the twin's on the same logits. */
static void check(struct steps *s, bool drawn) {
    const uint32_t vocab = s->model.vocab;
    const struct schedule canonical = schedule_canonical();
    float *logits = take(vocab, sizeof(*logits)), lse;
    uint64_t *order = take(vocab, sizeof(*order));
    struct err e = {""};
    uint32_t token;

    must(forward_run(s->dev, s->model.n_layers, s->batch.n_wants, &s->batch, &canonical, s->results,
                     s->flagged, &e),
         &e);
    if (s->results[0].numeric) wrong("row 0 left the range of the arithmetic");
    must(s->dev->ops->read(s->dev, DEVICE_LOGITS, 0, logits, &e), &e);
    (void)sample_lse(logits, vocab, &lse);
    token = sample_choose(logits, vocab, &s->wants[0].params, s->context, order);
    if (memcmp(&lse, &s->results[0].lse, sizeof(lse)) != 0) wrong("logsumexp of row 0");
    if (token != s->results[0].token) wrong("the choice of row 0");
    free(logits);
    free(order);
    if (drawn) return;
    if (!s->has_alone) s->alone = s->results[0];
    s->has_alone = true;
    if (s->alone.token != s->results[0].token ||
        memcmp(&s->alone.lse, &s->results[0].lse, sizeof(lse)) != 0 ||
        memcmp(&s->alone.logprob, &s->results[0].logprob, sizeof(lse)) != 0)
        wrong("row 0 beside other neighbours");
}

/* ---- What bounds it ---- */

static double weight_values(const struct model *m) {
    const double width = (double)m->n_heads * m->head_dim;
    const double kv_width = (double)m->n_kv_heads * m->head_dim;

    return m->n_layers * (m->hidden * (2 * width + 2 * kv_width + 3.0 * m->intermediate)) +
           (double)m->hidden * m->vocab;
}

static double bound_us(const struct steps *s) {
    const struct model *m = &s->model;
    double bytes = 2 * weight_values(m), keys = 0, read = 0, flop;

    for (uint32_t i = 0; i < s->batch.n_rows; i++) {
        const bool last = i + 1 == s->batch.n_rows || s->rows[i + 1].seq != s->rows[i].seq;

        keys += s->rows[i].position + 1;
        if (last) read += s->rows[i].position + 1;
    }
    bytes += read * (double)model_kv_bytes(m);
    flop = 2 * s->batch.n_rows * (weight_values(m) - (double)m->hidden * m->vocab) +
           2 * s->batch.n_wants * (double)m->hidden * m->vocab +
           4 * keys * m->n_heads * m->head_dim * m->n_layers;
    return bytes / READ_BYTES_A_US > flop / FLOP_A_US ? bytes / READ_BYTES_A_US : flop / FLOP_A_US;
}

/* ---- Reports ---- */

enum { N_COLUMNS = 9 };

static const struct bench_column columns[N_COLUMNS] = {
    {"canonical", "step.canonical", "ms", {0, false}},
    {"tuned", "step.tuned", "ms", {0, false}},
    {"bound", "step.bound", "ms", {0, false}},
    {"of bound", "step.of_bound", "bound over canonical", {0, false}},
    {"GPU", "step.gpu", "ms, canonical", {0, false}},
    {"GPU tuned", "step.gpu_tuned", "ms", {0, false}},
    {"peer", "step.peer", "ms of its GPU", {0, false}},
    {"of peer", "step.of_peer", "peer's time over our GPU's", {0, false}},
    {"host us", "step.host", "us until all is queued", {0, false}},
};

static double ask(struct steps *s, const char *request) {
    struct err e = {""};
    double us;
    int r = s->peer && request ? bench_peer_ask(s->peer, request, &us, &e) : -ENOTSUP;

    if (r == 0) return us;
    if (r != -ENOTSUP) must(r, &e);
    if (s->peer && request) bench_report_note(s->report, "%s", e.text);
    return BENCH_NO_CELL;
}

static double median_of(const double us[ROUNDS]) {
    double sorted[ROUNDS];

    memcpy(sorted, us, sizeof(sorted));
    return bench_quantile(sorted, ROUNDS, 0.5);
}

/* Ours on both schedules and the peer's, in turn. */
static void line(struct steps *s, const struct schedule *tuned, const char *request,
                 double target_ms, const char *of) {
    const struct schedule canonical = schedule_canonical();
    double us[6][ROUNDS], peer_us, bound = bound_us(s);
    struct bench_column row[N_COLUMNS];

    for (int i = 0; i < ROUNDS; i++) {
        const struct times a = measure(s, &canonical), b = measure(s, tuned);

        us[0][i] = a.wall;
        us[1][i] = a.gpu;
        us[2][i] = a.host;
        us[3][i] = b.wall;
        us[4][i] = b.gpu;
        us[5][i] = ask(s, request);
        if (us[5][i] < 0) request = NULL;
    }
    peer_us = request ? median_of(us[5]) : BENCH_NO_CELL;
    const double cells[N_COLUMNS] = {median_of(us[0]) / 1e3,
                                     median_of(us[3]) / 1e3,
                                     bound / 1e3,
                                     bound / median_of(us[0]),
                                     median_of(us[1]) / 1e3,
                                     median_of(us[4]) / 1e3,
                                     peer_us > 0 ? peer_us / 1e3 : BENCH_NO_CELL,
                                     peer_us > 0 ? peer_us / median_of(us[1]) : BENCH_NO_CELL,
                                     median_of(us[2])};

    memcpy(row, columns, sizeof(row));
    row[0].target = (struct bench_target){target_ms, true};
    bench_report_row(s->report, row, N_COLUMNS, cells, "%s", of);
}

/* Decode at 1024 keys of an 8B model. */
static double target_ms(const struct steps *s, uint32_t n) {
    if (strcmp(s->model.name, "llama-3.1-8b") != 0 || s->context != 1024) return 0;
    return n == 1 ? 4.2 : n == 64 ? 6.6 : 0;
}

static void decode(struct steps *s, uint32_t n) {
    const struct model *m = &s->model;
    const struct schedule_load load = {n, n, s->context};
    const struct schedule tuned = schedule_tuned(m, &load);
    char request[REQUEST_BYTES], of[64];

    make_decode(s, n, false);
    check(s, false);
    snprintf(request, sizeof(request), "step %u %u %u %u %u %u %u %u %u", n, s->context,
             m->n_layers, m->hidden, m->intermediate, m->n_heads, m->n_kv_heads, m->head_dim,
             m->vocab);
    snprintf(of, sizeof(of), "decode, %u row%s", n, n == 1 ? "" : "s");
    line(s, &tuned, request, target_ms(s, n), of);
}

static void prompt(struct steps *s) {
    const struct schedule_load load = {PROMPT_ROWS, 1, PROMPT_ROWS};
    const struct schedule tuned = schedule_tuned(&s->model, &load);

    make_prompt(s);
    line(s, &tuned, NULL, 0, "prompt of 2048");
}

/* ---- Stages ---- */

struct stage {
    enum bench_stage which;
    const struct schedule *schedule;
};

static uint32_t stage_calls(const struct steps *s, enum bench_stage which) {
    return which == BENCH_HEAD || which == BENCH_SAMPLE ? STAGE_CALLS
           : which == BENCH_EMBED                       ? 1
                                                        : STAGE_ROUNDS * s->model.n_layers;
}

/* One stage again and again, then the copy that makes it a graph. */
static void queue_stage(struct steps *s, const void *ctx) {
    const struct stage *stage = ctx;
    const struct device_ops *ops = s->dev->ops;
    const struct {
        int (*run)(struct device *dev, uint32_t layer, const struct schedule *s, struct err *e);
    } layer[BENCH_STAGES] = {[BENCH_ATTN_IN] = {ops->attn_in},
                             [BENCH_ATTEND] = {ops->attend},
                             [BENCH_ATTN_OUT] = {ops->attn_out},
                             [BENCH_MLP_IN] = {ops->mlp_in},
                             [BENCH_MLP_OUT] = {ops->mlp_out}};
    struct err e = {""};

    for (uint32_t i = 0; i < stage_calls(s, stage->which); i++)
        if (stage->which == BENCH_EMBED)
            must(ops->embed(s->dev, &e), &e);
        else if (stage->which == BENCH_HEAD)
            must(ops->head(s->dev, 0, s->batch.n_wants, stage->schedule, &e), &e);
        else if (stage->which == BENCH_SAMPLE)
            must(ops->sample(s->dev, 0, s->batch.n_wants, &e), &e);
        else
            must(layer[stage->which].run(s->dev, i % s->model.n_layers, stage->schedule, &e), &e);
    must(ops->copy(s->dev, s->results, s->flagged, &e), &e);
}

static double stage_us(struct steps *s, enum bench_stage which, const struct schedule *schedule) {
    const struct stage stage = {which, schedule};

    return gpu_us(s, queue_stage, &stage) / stage_calls(s, which);
}

static void stages(struct steps *s, const struct schedule *schedule, const char *of) {
    struct bench_column names[BENCH_STAGES];
    double cells[BENCH_STAGES];

    for (int i = BENCH_ATTN_IN; i < BENCH_STAGES; i++) {
        names[i] = (struct bench_column){
            bench_stage_name((enum bench_stage)i), "step.stage", "us", {0, false}};
        cells[i] = stage_us(s, (enum bench_stage)i, schedule);
    }
    bench_report_row(s->report, names + 1, BENCH_STAGES - 1, cells + 1, "%s", of);
}

static void all_stages(struct steps *s, const uint32_t *counts, uint32_t n_counts) {
    struct bench_column names[BENCH_STAGES];
    char of[64];

    bench_report_section(s->report, "Stages, us a call, each in a graph of its own kind");
    for (int i = 0; i < BENCH_STAGES; i++) names[i].name = bench_stage_name((enum bench_stage)i);
    bench_report_columns(s->report, names + 1, BENCH_STAGES - 1);
    for (uint32_t i = 0; i < n_counts; i++)
        for (int tuned = 0; tuned < 2; tuned++) {
            const struct schedule_load load = {counts[i], counts[i], s->context};
            const struct schedule schedule =
                tuned ? schedule_tuned(&s->model, &load) : schedule_canonical();

            make_decode(s, counts[i], false);
            snprintf(of, sizeof(of), "%u row%s, %s", counts[i], counts[i] == 1 ? "" : "s",
                     tuned ? "tuned" : "canonical");
            stages(s, &schedule, of);
        }
}

static void sampling(struct steps *s, const uint32_t *counts, uint32_t n_counts) {
    static const struct bench_column names[] = {{"greedy", "step.sample", "us", {0, false}},
                                                {"top_p", "step.sample", "us", {0, false}}};
    const struct schedule canonical = schedule_canonical();
    double cells[2];

    bench_report_section(s->report,
                         "Choice of a token, us a step: greedy; temperature 0.8, top_p 0.95");
    bench_report_columns(s->report, names, 2);
    for (uint32_t i = 0; i < n_counts; i++) {
        for (int drawn = 0; drawn < 2; drawn++) {
            make_decode(s, counts[i], drawn);
            check(s, drawn); /* leaves the logits, too */
            cells[drawn] = stage_us(s, BENCH_SAMPLE, &canonical);
        }
        bench_report_row(s->report, names, 2, cells, "%u row%s", counts[i],
                         counts[i] == 1 ? "" : "s");
    }
}

/* ---- The verb ---- */

static void load(struct steps *s, struct err *e) {
    const struct bench_options *o = s->o;
    const struct device_cuda_options options = {.cache_folder = o->cache};
    const uint32_t end = s->context > PROMPT_ROWS ? s->context : PROMPT_ROWS;
    struct device_limits limits = {.n_rows = s->n_rows_max,
                                   .n_seqs = s->n_seqs,
                                   .n_pages = s->n_pages,
                                   .n_seq_pages = s->n_seq_pages,
                                   .n_wants = s->n_seqs,
                                   .n_logit_rows = s->n_seqs,
                                   .n_positions = end};
    const double begin = now_us();
    struct weights *w = NULL;
    char text[128];

    must(device_cuda_open(&options, &s->dev, e), e);
    must(weights_make_up(&s->model, o->seed, &w, e), e);
    must(s->dev->ops->load(s->dev, &s->model, w, &limits, e), e);
    weights_close(w);
    s->dev->ops->describe(s->dev, text, sizeof(text));
    bench_report_note(s->report, "%s; clocks as found", text);
    bench_report_note(s->report, "%s, weights made up from seed %llu, ready in %.2f s",
                      s->model.name, (unsigned long long)o->seed, (now_us() - begin) / 1e6);
}

/* Every sequence's keys, from tokens of its own. */
static void fill(struct steps *s) {
    const struct schedule canonical = schedule_canonical();
    const uint64_t n = (uint64_t)s->n_seqs * s->context;
    struct err e = {""};

    for (uint64_t at = 0; at < n; at += PROMPT_ROWS) {
        const uint32_t n_rows = n - at < PROMPT_ROWS ? (uint32_t)(n - at) : PROMPT_ROWS;
        const struct device_batch batch = {n_rows, s->rows, s->n_seqs, s->pages, 0, NULL};

        for (uint32_t i = 0; i < n_rows; i++) {
            const uint32_t seq = (uint32_t)((at + i) / s->context);
            const uint32_t position = (uint32_t)((at + i) % s->context);

            s->rows[i] = (struct device_row){
                (uint32_t)((seq * 7919ull + position * 104729ull) % s->model.vocab), position, seq};
        }
        must(forward_run(s->dev, s->model.n_layers, s->n_seqs, &batch, &canonical, s->results,
                         s->flagged, &e),
             &e);
    }
}

static void open_peer(struct steps *s) {
    struct err e = {""};
    int r;

    if (strcmp(s->o->peer, "none") == 0) return;
    r = bench_peer_open(s->o->peer, &s->peer, &e);
    if (r == 0) {
        bench_report_note(s->report, "peer: %s", bench_peer_words(s->peer));
        return;
    }
    if (r != -ENOENT) must(r, &e);
    bench_report_note(s->report, "%s: its columns stay empty", e.text);
}

static void make(struct steps *s, const uint32_t *counts, uint32_t n_counts) {
    const uint32_t prompt_pages = (PROMPT_ROWS + DEVICE_PAGE_TOKENS - 1) / DEVICE_PAGE_TOKENS;
    uint32_t seq_pages;

    s->context = s->o->context;
    for (uint32_t i = 0; i < n_counts; i++)
        if (counts[i] > s->n_seqs) s->n_seqs = counts[i];
    seq_pages = (s->context + DEVICE_PAGE_TOKENS - 1) / DEVICE_PAGE_TOKENS;
    s->n_seq_pages = seq_pages > prompt_pages ? seq_pages : prompt_pages;
    s->n_pages = s->n_seqs * seq_pages > prompt_pages ? s->n_seqs * seq_pages : prompt_pages;
    s->n_rows_max = s->n_seqs > PROMPT_ROWS ? s->n_seqs : PROMPT_ROWS;
    s->rows = take(s->n_rows_max, sizeof(*s->rows));
    s->wants = take(s->n_seqs, sizeof(*s->wants));
    s->results = take(s->n_seqs, sizeof(*s->results));
    s->flagged = take(s->n_rows_max, sizeof(*s->flagged));
    s->pages = take((size_t)s->n_seqs * s->n_seq_pages, sizeof(*s->pages));
    /* A sequence's pages far from each other. */
    for (uint32_t i = 0; i < s->n_seqs; i++)
        for (uint32_t p = 0; p < seq_pages; p++)
            s->pages[i * s->n_seq_pages + p] = p * s->n_seqs + i;
}

static void run(struct steps *s, const uint32_t *counts, uint32_t n_counts) {
    open_peer(s);
    fill(s);
    bench_report_section(s->report,
                         "Steps of %s, ms, %u keys, greedy; peer: products, norms, attention",
                         s->model.name, s->context);
    bench_report_columns(s->report, columns, N_COLUMNS);
    for (uint32_t i = 0; i < n_counts; i++) decode(s, counts[i]);
    all_stages(s, counts, n_counts);
    sampling(s, counts, n_counts);
    bench_report_section(s->report, "A prompt, ms");
    bench_report_columns(s->report, columns, N_COLUMNS);
    prompt(s); /* last: it takes the pages */
}

int bench_step(const struct bench_options *o) {
    static const uint32_t usual[] = {1, 8, 32, 64, 256};
    const uint32_t n_counts = o->n_rows ? o->n_rows : sizeof(usual) / sizeof(usual[0]);
    const uint32_t *counts = o->n_rows ? o->rows : usual;
    struct steps s = {.o = o, .report = &o->report};
    struct err e = {""};

    must(bench_geometry(o->geometry, &s.model, &e), &e);
    for (uint32_t i = 0; i < n_counts; i++)
        if (counts[i] > SEQS_MAX) {
            bench_say("--rows %u: a step decodes %d at most", counts[i], SEQS_MAX);
            return BENCH_USAGE;
        }
    make(&s, counts, n_counts);
    load(&s, &e);
    run(&s, counts, n_counts);
    bench_peer_close(s.peer);
    s.dev->ops->close(s.dev);
    free(s.pages);
    free(s.rows);
    free(s.wants);
    free(s.results);
    free(s.flagged);
    return BENCH_OK;
}
