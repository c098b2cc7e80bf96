/* Where the time of a step goes, stage by stage: forward_run over a watch around the twin. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device.h"
#include "runtime/err.h"
#include "runtime/forward.h"
#include "runtime/token.h"
#include "runtime/weights.h"
#include "tools/bench_verbs.h"
#include "tools/bench_watch.h"

enum {
    PROMPT = DEVICE_PAGE_TOKENS, /* positions with the keys of a real text: one page */
    N_SEQS = 16,
    SEQ_PAGES = 17,
    CONTEXT = (SEQ_PAGES - 1) * DEVICE_PAGE_TOKENS,
    N_PAGES = 1 + N_SEQS, /* page 0 is the text, 1 + i the last one of sequence i */
    LOGIT_ROWS = 32,      /* of one head, as in the engine */
    RUNS_MAX = 5,
    N_COLUMNS = 4,
};

#define TARGET_GMAC 3.0

/* ---- Steps ---- */

struct steps {
    const struct bench_report *report;
    struct device *watch; /* around the twin */
    struct model model;
    uint32_t n_threads;
    uint32_t text[PROMPT];
    uint32_t pages[N_SEQS][SEQ_PAGES];
    struct device_row rows[PROMPT];
    struct device_want wants[PROMPT];
    struct device_result results[PROMPT];
    uint8_t flagged[PROMPT];
    struct device_batch batch;
};

static int read_text(const char *model, uint32_t out_ids[PROMPT], struct err *e) {
    uint32_t ids[2048];
    struct token *token = NULL;
    char path[4096];
    int64_t n;
    int r;

    if (snprintf(path, sizeof(path), "%s/tokenizer.json", model) >= (int)sizeof(path))
        return err_set(e, -EINVAL, "%.64s...: path too long", model);
    if ((r = token_open(path, &token, e)) < 0) return r;
    n = token_encode(token, bench_text, strlen(bench_text), 0, ids, 2048, e);
    token_close(token);
    if (n < 0) return (int)n;
    if (n < PROMPT) return err_set(e, -ENOTSUP, "%s: our text has %d ids only", path, (int)n);
    memcpy(out_ids, ids, PROMPT * sizeof(*ids));
    return 0;
}

static int load(const struct bench_options *o, struct steps *s, struct err *e) {
    const struct device_cpu_options cpu = {.n_threads = s->n_threads};
    struct device_limits limits = {.n_rows = PROMPT,
                                   .n_seqs = N_SEQS,
                                   .n_pages = N_PAGES,
                                   .n_seq_pages = SEQ_PAGES,
                                   .n_wants = PROMPT,
                                   .n_logit_rows = LOGIT_ROWS};
    struct weights *w = NULL;
    int r = model_read(o->model, &s->model, e);

    if (r < 0) return r;
    limits.n_positions = SEQ_PAGES * DEVICE_PAGE_TOKENS;
    if (s->model.context < limits.n_positions)
        return err_set(e, -ENOTSUP, "%s: a context of %u, %u are measured", o->model,
                       s->model.context, limits.n_positions);
    if ((r = read_text(o->model, s->text, e)) < 0) return r;
    if ((r = weights_open(o->model, true, &w, e)) < 0) return r;
    r = device_cpu_open(&cpu, &s->watch, e);
    if (r == 0) r = bench_watch_open(s->watch, &s->watch, e);
    if (r == 0) r = s->watch->ops->load(s->watch, &s->model, w, &limits, e);
    weights_close(w);
    return r;
}

/* n_seqs sequences, n rows each from `position` on, the last `n_wants` of all wanted.  Keys before
 * `position` are those of the text, again and again: only the time counts. */
static void step_make(struct steps *s, uint32_t n_seqs, uint32_t n, uint32_t position,
                      uint32_t n_wants) {
    for (uint32_t seq = 0; seq < n_seqs; seq++) {
        const uint32_t last = position / DEVICE_PAGE_TOKENS;

        for (uint32_t p = 0; p < last; p++) s->pages[seq][p] = 0;
        s->pages[seq][last] = position ? 1 + seq : 0;
        for (uint32_t i = 0; i < n; i++)
            s->rows[seq * n + i] =
                (struct device_row){s->text[(seq * 7 + i) % PROMPT], position + i, seq};
    }
    for (uint32_t i = 0; i < n_wants; i++)
        s->wants[i] = (struct device_want){
            .row = n_seqs * n - n_wants + i, .target = DEVICE_NO_TOKEN, .params = {.top_p = 1}};
    s->batch = (struct device_batch){.n_rows = n_seqs * n,
                                     .rows = s->rows,
                                     .n_seqs = n_seqs,
                                     .pages = s->pages[0],
                                     .n_wants = n_wants,
                                     .wants = s->wants};
}

/* Products of a stage. */
static double stage_mac(const struct steps *s, enum bench_stage stage) {
    const struct model *m = &s->model;
    const double width = (double)m->n_heads * m->head_dim;
    const double kv_width = (double)m->n_kv_heads * m->head_dim;
    const double rows = (double)s->batch.n_rows * m->n_layers;
    double keys = 0;

    switch (stage) {
    case BENCH_ATTN_IN:
        return rows * m->hidden * (width + 2 * kv_width);
    case BENCH_ATTEND:
        for (uint32_t i = 0; i < s->batch.n_rows; i++) keys += s->rows[i].position + 1;
        return 2 * width * keys * m->n_layers;
    case BENCH_ATTN_OUT:
        return rows * width * m->hidden;
    case BENCH_MLP_IN:
        return rows * 2 * m->hidden * m->intermediate;
    case BENCH_MLP_OUT:
        return rows * m->hidden * m->intermediate;
    case BENCH_HEAD:
        return (double)s->batch.n_wants * m->hidden * m->vocab;
    default:
        return 0;
    }
}

/* Bytes that a stage must read: weights once, keys and values of each sequence once. */
static double stage_bytes(const struct steps *s, enum bench_stage stage) {
    const struct model *m = &s->model;
    const double kv_width = (double)m->n_kv_heads * m->head_dim;
    const uint32_t n = s->batch.n_rows / s->batch.n_seqs; /* rows of a sequence */
    double keys = 0;

    if (stage == BENCH_HEAD) return 2.0 * m->hidden * m->vocab;
    if (stage != BENCH_ATTEND) return 2 * stage_mac(s, stage) / s->batch.n_rows;
    for (uint32_t i = n - 1; i < s->batch.n_rows; i += n) keys += s->rows[i].position + 1;
    return 4 * kv_width * keys * m->n_layers;
}

/* Runs the step n_runs times: the median of its time, and the stages of that run. */
static int step_time(struct steps *s, const struct schedule *schedule, uint32_t n_runs,
                     double *out_ns, double out_stages_ns[BENCH_STAGES]) {
    int64_t runs[RUNS_MAX][BENCH_STAGES];
    double totals[RUNS_MAX], sorted[RUNS_MAX];
    struct err e = {""};

    for (uint32_t i = 0; i < n_runs; i++) {
        const int64_t begin_ns = bench_now_ns();
        int r;

        bench_watch_reset(s->watch);
        r = forward_run(s->watch, s->model.n_layers, LOGIT_ROWS, &s->batch, schedule, s->results,
                        s->flagged, &e);
        if (r < 0) {
            bench_say("step: %s", e.text);
            return BENCH_FAILED;
        }
        sorted[i] = totals[i] = (double)(bench_now_ns() - begin_ns);
        memcpy(runs[i], bench_watch_ns(s->watch), sizeof(runs[i]));
    }
    *out_ns = bench_quantile(sorted, n_runs, 0.5);
    for (uint32_t i = 0; i < n_runs; i++)
        for (uint32_t k = 0; totals[i] == *out_ns && k < BENCH_STAGES; k++)
            out_stages_ns[k] = (double)runs[i][k];
    return BENCH_OK;
}

static int step_report(struct steps *s, bool tuned, uint32_t n_runs, const char *what) {
    static const struct bench_column columns[] = {
        {"ms", "step.time", "ms", {0, false}},
        {"%", "step.share", "%", {0, false}},
        {"GMAC/s", "step.gmac", "GMAC/s a core", {0, false}},
        {"GB/s", "step.read", "GB/s of weights and KV", {0, false}},
    };
    static const struct bench_column total[] = {
        {"ms", "step.time", "ms", {0, false}},
        {"%", "step.share", "%", {0, false}},
        {"GMAC/s", "step.gmac", "GMAC/s a core", {TARGET_GMAC, false}},
        {"GB/s", "step.read", "GB/s of weights and KV", {0, false}},
    };
    const struct device_row *last = &s->rows[s->batch.n_rows - 1];
    const struct schedule_load load = {s->batch.n_rows, s->batch.n_seqs, last->position + 1};
    const struct schedule schedule =
        tuned ? schedule_tuned(&s->model, &load) : schedule_canonical();
    const char *how = tuned ? "tuned" : "canonical";
    double ns, stages_ns[BENCH_STAGES] = {0}, all_mac = 0, all_bytes = 0;
    int r = step_time(s, &schedule, n_runs, &ns, stages_ns);

    if (r != BENCH_OK) return r;
    bench_report_section(s->report, "%s, %s, %s, %u thread%s; GMAC/s are a core's", what, how,
                         s->model.name, s->n_threads, s->n_threads == 1 ? "" : "s");
    bench_report_columns(s->report, columns, N_COLUMNS);
    for (uint32_t i = 0; i < BENCH_STAGES; i++) {
        const double mac = stage_mac(s, (enum bench_stage)i);
        const double bytes = stage_bytes(s, (enum bench_stage)i);
        const double cells[] = {stages_ns[i] / 1e6, stages_ns[i] * 100 / ns,
                                mac > 0 ? mac / stages_ns[i] / s->n_threads : BENCH_NO_CELL,
                                mac > 0 ? bytes / stages_ns[i] : BENCH_NO_CELL};

        all_mac += mac;
        all_bytes += bytes;
        if (s->report->json)
            bench_report_row(s->report, columns, N_COLUMNS, cells, "%s, %s, %s, %u threads, %s",
                             what, how, s->model.name, s->n_threads,
                             bench_stage_name((enum bench_stage)i));
        else
            bench_report_row(s->report, columns, N_COLUMNS, cells, "%s",
                             bench_stage_name((enum bench_stage)i));
    }
    const double cells[] = {ns / 1e6, 100, all_mac / ns / s->n_threads, all_bytes / ns};

    if (s->report->json)
        bench_report_row(s->report, total, N_COLUMNS, cells, "%s, %s, %s, %u threads, the step",
                         what, how, s->model.name, s->n_threads);
    else
        bench_report_row(s->report, total, N_COLUMNS, cells, "the step");
    return BENCH_OK;
}

static int cases(struct steps *s) {
    int r;

    step_make(s, 1, PROMPT, 0, 1); /* first: it writes the text's keys */
    if ((r = step_report(s, false, 2, "Prefill of 64 rows")) != BENCH_OK) return r;
    step_make(s, 1, 1, PROMPT, 1);
    if ((r = step_report(s, false, 5, "Decode of one row at 65 keys")) != BENCH_OK) return r;
    if ((r = step_report(s, true, 5, "Decode of one row at 65 keys")) != BENCH_OK) return r;
    step_make(s, 1, 1, CONTEXT, 1);
    if ((r = step_report(s, false, 5, "Decode of one row at 1025 keys")) != BENCH_OK) return r;
    step_make(s, N_SEQS, 1, PROMPT, N_SEQS);
    if ((r = step_report(s, false, 3, "Decode of 16 rows at 65 keys")) != BENCH_OK) return r;
    step_make(s, 1, 32, PROMPT, 32);
    return step_report(s, false, 2, "Verification of a window of 32 at 64 keys");
}

int bench_stage(const struct bench_options *o) {
    struct steps *s = calloc(1, sizeof(*s));
    struct err e = {""};
    int r;

    if (!s) return BENCH_FAILED;
    s->report = &o->report;
    s->n_threads = bench_threads(o);
    r = load(o, s, &e);
    if (r < 0) {
        bench_say("%s", e.text[0] ? e.text : strerror(-r));
        r = BENCH_FAILED;
    } else {
        r = cases(s);
    }
    if (s->watch) s->watch->ops->close(s->watch);
    free(s);
    return r;
}
