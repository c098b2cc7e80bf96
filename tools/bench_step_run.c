/* A step: made, queued, timed, its bits looked at. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device.h"
#include "runtime/err.h"
#include "runtime/forward.h"
#include "tools/bench_step.h"

enum {
    RUNS = 21, /* of a step; of RUNS_LONG where it is long */
    RUNS_LONG = 5,
    REPLAYS = 8,     /* of a graph behind another, with no wait between */
    WARM_US = 10000, /* of the same for nothing: clocks as under load */
};

void bench_step_must(int r, const struct err *e) {
    if (r >= 0) return;
    bench_say("step: %s", e->text[0] ? e->text : strerror(-r));
    exit(BENCH_FAILED);
}

void *bench_step_take(size_t n, size_t bytes) {
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
void bench_step_make_decode(struct bench_steps *s, uint32_t n, bool drawn) {
    for (uint32_t i = 0; i < n; i++) {
        s->rows[i] = (struct device_row){17 * i % s->model.vocab, s->context - 1, i};
        s->wants[i] = (struct device_want){
            .row = i,
            .target = DEVICE_NO_TOKEN,
            .params = {.temperature = drawn ? 0.8f : 0, .top_p = drawn ? 0.95f : 1, .seed = i}};
    }
    s->batch = (struct device_batch){.n_rows = n,
                                     .rows = s->rows,
                                     .n_seqs = s->n_seqs,
                                     .pages = s->pages,
                                     .n_wants = n,
                                     .wants = s->wants};
}

/* A prompt's first rows, on the pages of as many sequences as it needs. */
void bench_step_make_prompt(struct bench_steps *s) {
    for (uint32_t p = 0; p < s->n_seq_pages; p++) s->pages[p] = p % s->n_pages;
    for (uint32_t i = 0; i < BENCH_PROMPT_ROWS; i++)
        s->rows[i] = (struct device_row){(29 * i + 5) % s->model.vocab, i, 0};
    s->wants[0] = (struct device_want){
        .row = BENCH_PROMPT_ROWS - 1, .target = DEVICE_NO_TOKEN, .params = {.top_p = 1}};
    s->batch = (struct device_batch){.n_rows = BENCH_PROMPT_ROWS,
                                     .rows = s->rows,
                                     .n_seqs = s->n_seqs,
                                     .pages = s->pages,
                                     .n_wants = 1,
                                     .wants = s->wants};
}

/* All stages up to the copy of results, as forward.c asks for them. */
static void queue(struct bench_steps *s, const struct schedule *schedule) {
    const struct device_ops *ops = s->dev->ops;
    struct err e = {""};

    bench_step_must(ops->embed(s->dev, &e), &e);
    for (uint32_t l = 0; l < s->model.n_layers; l++) {
        bench_step_must(ops->attn_in(s->dev, l, schedule, &e), &e);
        bench_step_must(ops->attend(s->dev, l, schedule, &e), &e);
        bench_step_must(ops->attn_out(s->dev, l, schedule, &e), &e);
        bench_step_must(ops->mlp_in(s->dev, l, schedule, &e), &e);
        bench_step_must(ops->mlp_out(s->dev, l, schedule, &e), &e);
    }
    bench_step_must(ops->head(s->dev, 0, s->batch.n_wants, schedule, &e), &e);
    bench_step_must(ops->sample(s->dev, 0, s->batch.n_wants, &e), &e);
    bench_step_must(ops->copy(s->dev, s->results, s->flagged, &e), &e);
}

/* Page tables, which do not change from step to step, go there with the first, as an engine does. */
static void upload(struct bench_steps *s) {
    struct err e = {""};

    bench_step_must(s->dev->ops->upload(s->dev, &s->batch, &e), &e);
    s->batch.changed = s->pages;
    s->batch.n_changed = 0;
}

static void wait(struct bench_steps *s) {
    struct err e = {""};

    bench_step_must(s->dev->ops->wait(s->dev, &e), &e);
}

/* What the GPU needs for what `queue_some` queues: n more behind the first, without a wait. */
double bench_step_gpu_us(struct bench_steps *s,
                         void (*queue_some)(struct bench_steps *, const void *), const void *ctx) {
    double us[2][BENCH_ROUNDS];

    const double warm = now_us() + WARM_US;

    upload(s);
    do {
        queue_some(s, ctx);
        wait(s);
    } while (now_us() < warm);
    for (int round = 0; round < BENCH_ROUNDS; round++)
        for (int more = 0; more < 2; more++) {
            const double begin = now_us();

            for (int i = 0; i <= more * REPLAYS; i++) queue_some(s, ctx);
            wait(s);
            us[more][round] = now_us() - begin;
        }
    return (bench_quantile(us[1], BENCH_ROUNDS, 0.5) - bench_quantile(us[0], BENCH_ROUNDS, 0.5)) /
           REPLAYS;
}

static void queue_all(struct bench_steps *s, const void *ctx) {
    queue(s, ctx);
}

struct bench_times bench_step_measure(struct bench_steps *s, const struct schedule *schedule) {
    const uint32_t n_runs = s->batch.n_rows < BENCH_PROMPT_ROWS ? RUNS : RUNS_LONG;
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
    return (struct bench_times){bench_quantile(wall, n_runs, 0.5),
                                bench_step_gpu_us(s, queue_all, schedule),
                                bench_quantile(host, n_runs, 0.5)};
}

/* ---- Bits ---- */

static void wrong(const char *what) {
    bench_say("step: wrong bits: %s: it is not timed", what);
    exit(BENCH_FAILED);
}

/* Of the canonical step just made: row 0 has the bits it has with any neighbours, and the choice
 * is the twin's on the same logits. */
void bench_step_check(struct bench_steps *s, bool drawn) {
    const uint32_t vocab = s->model.vocab;
    const struct schedule canonical = schedule_canonical();
    float *logits = bench_step_take(vocab, sizeof(*logits)), lse;
    uint64_t *order = bench_step_take(vocab, sizeof(*order));
    struct err e = {""};
    uint32_t token;

    bench_step_must(forward_run(s->dev, s->model.n_layers, s->batch.n_wants, &s->batch, &canonical,
                                s->results, s->flagged, &e),
                    &e);
    if (s->results[0].numeric) wrong("row 0 left the range of the arithmetic");
    bench_step_must(s->dev->ops->read(s->dev, DEVICE_LOGITS, 0, logits, &e), &e);
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
