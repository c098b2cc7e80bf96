/* llm42-bench step: whole steps of the GPU as an engine sees them, upload and results included, and
 * their stages, of a model that is geometry only, its weights made up from a seed. */
#include "tools/bench_step.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device_cuda.h"
#include "runtime/err.h"
#include "runtime/forward.h"
#include "runtime/weights.h"
#include "tools/bench_bound.h"
#include "tools/bench_peer.h"
#include "tools/bench_watch.h"

enum {
    SEQS_MAX = 1024,
    STAGE_ROUNDS = 5, /* of all layers, in a graph */
    STAGE_CALLS = 16, /* of head, of sample */
    REQUEST_BYTES = 128,
};

static double now_us(void) {
    return (double)bench_now_ns() / 1e3;
}

/* ---- What bounds it ---- */

static double weight_values(const struct model *m) {
    const double width = (double)m->n_heads * m->head_dim;
    const double kv_width = (double)m->n_kv_heads * m->head_dim;

    return m->n_layers * (m->hidden * (2 * width + 2 * kv_width + 3.0 * m->intermediate)) +
           (double)m->hidden * m->vocab;
}

static double bound_us(const struct bench_steps *s) {
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
    return bytes / BENCH_BOUND_READ > flop / BENCH_BOUND_FLOP ? bytes / BENCH_BOUND_READ
                                                              : flop / BENCH_BOUND_FLOP;
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

static double median_of(const double us[BENCH_ROUNDS]) {
    double sorted[BENCH_ROUNDS];

    memcpy(sorted, us, sizeof(sorted));
    return bench_quantile(sorted, BENCH_ROUNDS, 0.5);
}

/* Ours on both schedules and the peer's, in turn. */
static void line(struct bench_steps *s, const struct schedule *tuned, const char *request,
                 double target_ms, const char *of) {
    const struct schedule canonical = schedule_canonical();
    double us[6][BENCH_ROUNDS], peer_us, bound = bound_us(s);
    struct bench_column row[N_COLUMNS];

    for (int i = 0; i < BENCH_ROUNDS; i++) {
        const struct bench_times a = bench_step_measure(s, &canonical),
                                 b = bench_step_measure(s, tuned);

        us[0][i] = a.wall;
        us[1][i] = a.gpu;
        us[2][i] = a.host;
        us[3][i] = b.wall;
        us[4][i] = b.gpu;
        us[5][i] = bench_peer_us(s->report, s->peer, request);
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
static double target_ms(const struct bench_steps *s, uint32_t n) {
    if (strcmp(s->model.name, "llama-3.1-8b") != 0 || s->context != 1024) return 0;
    return n == 1 ? 4.2 : n == 64 ? 6.6 : 0;
}

static void decode(struct bench_steps *s, uint32_t n) {
    const struct model *m = &s->model;
    const struct schedule_load load = {n, n, s->context};
    const struct schedule tuned = schedule_tuned(m, &load);
    char request[REQUEST_BYTES], of[64];

    bench_step_make_decode(s, n, false);
    bench_step_check(s, false);
    snprintf(request, sizeof(request), "step %u %u %u %u %u %u %u %u %u", n, s->context,
             m->n_layers, m->hidden, m->intermediate, m->n_heads, m->n_kv_heads, m->head_dim,
             m->vocab);
    snprintf(of, sizeof(of), "decode, %u row%s", n, n == 1 ? "" : "s");
    line(s, &tuned, request, target_ms(s, n), of);
}

static void prompt(struct bench_steps *s) {
    const struct model *m = &s->model;
    const struct schedule_load load = {BENCH_PROMPT_ROWS, 1, BENCH_PROMPT_ROWS};
    const struct schedule tuned = schedule_tuned(m, &load);
    char request[REQUEST_BYTES];

    bench_step_make_prompt(s);
    snprintf(request, sizeof(request), "intake %d %u %u %u %u %u %u", BENCH_PROMPT_ROWS,
             m->n_layers, m->hidden, m->intermediate, m->n_heads, m->n_kv_heads, m->head_dim);
    line(s, &tuned, request, 0, "prompt of 2048");
}

/* ---- Stages ---- */

struct stage {
    enum bench_stage which;
    const struct schedule *schedule;
};

static uint32_t stage_calls(const struct bench_steps *s, enum bench_stage which) {
    return which == BENCH_HEAD || which == BENCH_SAMPLE ? STAGE_CALLS
           : which == BENCH_EMBED                       ? 1
                                                        : STAGE_ROUNDS * s->model.n_layers;
}

/* One stage again and again, then the copy that makes it a graph. */
static void queue_stage(struct bench_steps *s, const void *ctx) {
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
            bench_step_must(ops->embed(s->dev, &e), &e);
        else if (stage->which == BENCH_HEAD)
            bench_step_must(ops->head(s->dev, 0, s->batch.n_wants, stage->schedule, &e), &e);
        else if (stage->which == BENCH_SAMPLE)
            bench_step_must(ops->sample(s->dev, 0, s->batch.n_wants, &e), &e);
        else
            bench_step_must(
                layer[stage->which].run(s->dev, i % s->model.n_layers, stage->schedule, &e), &e);
    bench_step_must(ops->copy(s->dev, s->results, s->flagged, &e), &e);
}

static double stage_us(struct bench_steps *s, enum bench_stage which,
                       const struct schedule *schedule) {
    const struct stage stage = {which, schedule};

    return bench_step_gpu_us(s, queue_stage, &stage) / stage_calls(s, which);
}

static void stages(struct bench_steps *s, const struct schedule *schedule, const char *of) {
    struct bench_column names[BENCH_STAGES];
    double cells[BENCH_STAGES];

    for (int i = BENCH_ATTN_IN; i < BENCH_STAGES; i++) {
        names[i] = (struct bench_column){
            bench_stage_name((enum bench_stage)i), "step.stage", "us", {0, false}};
        cells[i] = stage_us(s, (enum bench_stage)i, schedule);
    }
    bench_report_row(s->report, names + 1, BENCH_STAGES - 1, cells + 1, "%s", of);
}

static void all_stages(struct bench_steps *s, const uint32_t *counts, uint32_t n_counts) {
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

            bench_step_make_decode(s, counts[i], false);
            snprintf(of, sizeof(of), "%u row%s, %s", counts[i], counts[i] == 1 ? "" : "s",
                     tuned ? "tuned" : "canonical");
            stages(s, &schedule, of);
        }
}

static void sampling(struct bench_steps *s, const uint32_t *counts, uint32_t n_counts) {
    static const struct bench_column names[] = {{"greedy", "step.sample", "us", {0, false}},
                                                {"top_p", "step.sample", "us", {0, false}}};
    const struct schedule canonical = schedule_canonical();
    double cells[2];

    bench_report_section(s->report,
                         "Choice of a token, us a step: greedy; temperature 0.8, top_p 0.95");
    bench_report_columns(s->report, names, 2);
    for (uint32_t i = 0; i < n_counts; i++) {
        for (int drawn = 0; drawn < 2; drawn++) {
            bench_step_make_decode(s, counts[i], drawn);
            bench_step_check(s, drawn); /* leaves the logits, too */
            cells[drawn] = stage_us(s, BENCH_SAMPLE, &canonical);
        }
        bench_report_row(s->report, names, 2, cells, "%u row%s", counts[i],
                         counts[i] == 1 ? "" : "s");
    }
}

/* ---- The verb ---- */

static void load(struct bench_steps *s, struct err *e) {
    const struct bench_options *o = s->o;
    const struct device_cuda_options options = {.cache_folder = o->cache};
    const uint32_t end = s->context > BENCH_PROMPT_ROWS ? s->context : BENCH_PROMPT_ROWS;
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

    bench_step_must(device_cuda_open(&options, &s->dev, e), e);
    bench_step_must(weights_make_up(&s->model, o->seed, &w, e), e);
    bench_step_must(s->dev->ops->load(s->dev, &s->model, w, &limits, e), e);
    weights_close(w);
    s->dev->ops->describe(s->dev, text, sizeof(text));
    bench_report_note(s->report, "%s; clocks as found", text);
    bench_report_note(s->report, "%s, weights made up from seed %llu, ready in %.2f s",
                      s->model.name, (unsigned long long)o->seed, (now_us() - begin) / 1e6);
}

/* Every sequence's keys, from tokens of its own. */
static void fill(struct bench_steps *s) {
    const struct schedule canonical = schedule_canonical();
    const uint64_t n = (uint64_t)s->n_seqs * s->context;
    struct err e = {""};

    for (uint64_t at = 0; at < n; at += BENCH_PROMPT_ROWS) {
        const uint32_t n_rows = n - at < BENCH_PROMPT_ROWS ? (uint32_t)(n - at) : BENCH_PROMPT_ROWS;
        const struct device_batch batch = {
            .n_rows = n_rows, .rows = s->rows, .n_seqs = s->n_seqs, .pages = s->pages};

        for (uint32_t i = 0; i < n_rows; i++) {
            const uint32_t seq = (uint32_t)((at + i) / s->context);
            const uint32_t position = (uint32_t)((at + i) % s->context);

            s->rows[i] = (struct device_row){
                (uint32_t)((seq * 7919ull + position * 104729ull) % s->model.vocab), position, seq};
        }
        bench_step_must(forward_run(s->dev, s->model.n_layers, s->n_seqs, &batch, &canonical,
                                    s->results, s->flagged, &e),
                        &e);
    }
}

static void make(struct bench_steps *s, const uint32_t *counts, uint32_t n_counts) {
    const uint32_t prompt_pages = (BENCH_PROMPT_ROWS + DEVICE_PAGE_TOKENS - 1) / DEVICE_PAGE_TOKENS;
    uint32_t seq_pages;

    s->context = s->o->context;
    for (uint32_t i = 0; i < n_counts; i++)
        if (counts[i] > s->n_seqs) s->n_seqs = counts[i];
    seq_pages = (s->context + DEVICE_PAGE_TOKENS - 1) / DEVICE_PAGE_TOKENS;
    s->n_seq_pages = seq_pages > prompt_pages ? seq_pages : prompt_pages;
    s->n_pages = s->n_seqs * seq_pages > prompt_pages ? s->n_seqs * seq_pages : prompt_pages;
    s->n_rows_max = s->n_seqs > BENCH_PROMPT_ROWS ? s->n_seqs : BENCH_PROMPT_ROWS;
    s->rows = bench_step_take(s->n_rows_max, sizeof(*s->rows));
    s->wants = bench_step_take(s->n_seqs, sizeof(*s->wants));
    s->results = bench_step_take(s->n_seqs, sizeof(*s->results));
    s->flagged = bench_step_take(s->n_rows_max, sizeof(*s->flagged));
    s->pages = bench_step_take((size_t)s->n_seqs * s->n_seq_pages, sizeof(*s->pages));
    /* A sequence's pages far from each other. */
    for (uint32_t i = 0; i < s->n_seqs; i++)
        for (uint32_t p = 0; p < seq_pages; p++)
            s->pages[i * s->n_seq_pages + p] = p * s->n_seqs + i;
}

static void run(struct bench_steps *s, const uint32_t *counts, uint32_t n_counts) {
    s->peer = bench_peer_for(s->o);
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
    struct bench_steps s = {.o = o, .report = &o->report};
    struct err e = {""};

    bench_step_must(bench_geometry(o->geometry, &s.model, &e), &e);
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
