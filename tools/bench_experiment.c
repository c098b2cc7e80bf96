/* An experiment of the paper: its plan, what is there already, and the runs that are not. */
#include "tools/bench_experiment.h"

#include <stdlib.h>
#include <string.h>

#include "tools/bench_client.h"
#include "tools/bench_experiment_session.h"
#include "tools/bench_lab_experiment.h"

/* Settings that the experiment has itself. */
static int check_sets(const struct bench_options *o) {
    static const char *const ours[] = {"engine.policy=",  "engine.window=",
                                       "engine.group=",   "engine.device=",
                                       "engine.threads=", "engine.max_queue=",
                                       "experiment.",     "server.socket=",
                                       "model.path=",     "server.max_requests_per_connection="};

    for (uint32_t i = 0; i < o->n_sets; i++)
        for (size_t k = 0; k < sizeof(ours) / sizeof(ours[0]); k++)
            if (strncmp(o->sets[i], ours[k], strlen(ours[k])) == 0) {
                bench_say("--set %s: the experiment sets it by itself", o->sets[i]);
                return BENCH_USAGE;
            }
    return BENCH_OK;
}

static int find(const char *name, enum bench_experiment *out) {
    for (enum bench_experiment e = 0; name && e < BENCH_EXPERIMENTS; e++)
        if (strcmp(name, bench_experiment_names[e]) == 0) {
            *out = e;
            return BENCH_OK;
        }
    bench_say(
        name ? "%s is no experiment: %s" : "%s: a name is wanted: %s", name ? name : "experiment",
        "join, spans, window, ablation, offline, online, gemm, norm, invariance, verify-cost");
    return BENCH_USAGE;
}

/* ---- One run ---- */

/* Flagged requests whose digest is not the reference's; what is wrong, in words. */
static bool is_void(const struct bench_session *s, const struct bench_load *l, char *why,
                    size_t n_bytes, uint32_t *out_checked) {
    uint32_t n_refused = 0, n_wrong = 0, first = 0;

    *out_checked = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct bench_load_request *q = &l->requests[i];

        n_refused += q->state != BENCH_DONE;
        if (q->state != BENCH_DONE || !q->deterministic) continue;
        (*out_checked)++;
        if (s->reference.have[q->id] &&
            memcmp(s->reference.digests[q->id], q->digest, sizeof(q->digest)) == 0)
            continue;
        if (n_wrong++ == 0) first = q->id;
    }
    if (n_wrong > 0)
        snprintf(why, n_bytes, "%u of %u digests are not the reference's; the first: request %u",
                 n_wrong, *out_checked, first);
    else if (n_refused > 0)
        snprintf(why, n_bytes, "%u of %u requests refused or failed", n_refused, l->n);
    return n_wrong > 0 || n_refused > 0;
}

static void row_key(struct bench_row *row, const struct bench_run *run) {
    char key[BENCH_KEY_BYTES];

    bench_run_key(run, key);
    bench_row_text(row, bench_key_columns, "%s", key);
}

/* Void runs leave a line of words in the place of a row. */
static int keep(struct bench_session *s, const struct bench_run *run, const struct bench_load *l,
                struct bench_row *row, const char *more_why) {
    char why[256], key[BENCH_KEY_BYTES];
    uint32_t n_checked;
    const bool wrong = is_void(s, l, why, sizeof(why), &n_checked) || more_why;

    bench_run_key(run, key);
    if (wrong) {
        if (more_why) snprintf(why, sizeof(why), "%s", more_why);
        s->n_void++;
        bench_say("VOID %s: %s", key, why);
        return bench_session_void(s, key, why);
    }
    bench_row_number(row, "digests_equal", n_checked);
    s->n_done++;
    fprintf(stderr, "[%u/%u] %s: %.2f s, %u digests equal\n", s->n_there + s->n_done + s->n_void,
            s->plan.n, key, l->seconds, n_checked);
    return bench_session_row(s, row);
}

/* Steps of the daemon so far. */
struct steps {
    long long canonical, tuned, same;
};

static int steps_get(const struct bench_session *s, struct steps *out) {
    json_t *status = NULL;
    const json_t *steps;
    int r = bench_client_info(s->io, WIRE_INFO_STATUS, &status);

    if (r != BENCH_OK) return r;
    steps = json_object_get(status, "steps");
    out->canonical = json_integer_value(json_object_get(steps, "canonical"));
    out->tuned = json_integer_value(json_object_get(steps, "tuned"));
    out->same = json_integer_value(json_object_get(steps, "same"));
    json_decref(status);
    return BENCH_OK;
}

/* Runs the load and begins its row. */
static int measure(struct bench_session *s, const struct bench_run *run, struct bench_load *l,
                   struct bench_row *row) {
    struct steps before, after;
    int r = steps_get(s, &before);

    if (r == BENCH_OK) r = bench_load_run(s->io, l);
    if (r == BENCH_OK) r = steps_get(s, &after);
    if (r != BENCH_OK) return r;
    row_key(row, run);
    bench_row_text(row, "steps_canonical", "%lld", after.canonical - before.canonical);
    bench_row_text(row, "steps_tuned", "%lld", after.tuned - before.tuned);
    bench_row_text(row, "steps_same", "%lld", after.same - before.same);
    return bench_row_load(row, l, s->o->bound_ms);
}

static int run_load(struct bench_session *s, const struct bench_run *run) {
    struct bench_row *row = calloc(1, sizeof(*row));
    struct bench_load l = {.n = 0};
    int r = row ? bench_workload_load(s->o, &s->workload, run, false, &l) : BENCH_FAILED;

    if (r == BENCH_OK) {
        l.prompts = s->prompts;
        r = measure(s, run, &l, row);
    }
    if (r == BENCH_OK) r = keep(s, run, &l, row, NULL);
    bench_load_close(&l);
    free(row);
    return r;
}

/* One by one, then under load: how far each output stays the same. */
static int run_spans(struct bench_session *s, const struct bench_run *run) {
    struct bench_row *row = calloc(1, sizeof(*row));
    struct bench_load serial = {.n = 0}, loaded = {.n = 0};
    struct bench_run alone = *run;
    uint32_t n_diverged = 0;
    int r;

    alone.arrivals = BENCH_AT_ONCE;
    r = row ? bench_workload_load(s->o, &s->workload, &alone, true, &serial) : BENCH_FAILED;
    if (r == BENCH_OK) r = bench_workload_load(s->o, &s->workload, run, true, &loaded);
    serial.prompts = loaded.prompts = s->prompts;
    serial.concurrency = 1;
    if (r == BENCH_OK) r = bench_load_run(s->io, &serial);
    if (r == BENCH_OK) r = measure(s, run, &loaded, row);
    if (r == BENCH_OK) r = bench_row_spans(row, &serial, &loaded, &n_diverged);
    if (r == BENCH_OK)
        r = keep(s, run, &loaded, row,
                 run->share == 100 && n_diverged > 0 ? "deterministic outputs diverged" : NULL);
    bench_load_close(&serial);
    bench_load_close(&loaded);
    free(row);
    return r;
}

static int run_all(struct bench_session *s) {
    int r = BENCH_OK;

    for (uint32_t i = 0; r == BENCH_OK && i < s->plan.n; i++) {
        const struct bench_run *run = &s->plan.runs[i];

        if (bench_session_has(s, run)) continue;
        r = bench_session_daemon(s, run->system, run->window, run->group, run->mismatch_ppm);
        if (r == BENCH_OK) r = bench_session_workload(s, run->workload);
        if (r == BENCH_OK)
            r = s->plan.experiment == BENCH_SPANS ? run_spans(s, run) : run_load(s, run);
    }
    return r;
}

/* ---- The verb ---- */

static int run_session(struct bench_session *s) {
    int r = BENCH_OK, closed;

    for (uint32_t i = 0; i < s->plan.n; i++) s->n_there += bench_session_has(s, &s->plan.runs[i]);
    if (s->n_there < s->plan.n) {
        bench_report_note(&s->o->report,
                          "%u runs, %u of them there; first the references, which may take minutes",
                          s->plan.n, s->n_there);
        r = bench_session_references(s);
    }
    if (r == BENCH_OK) r = run_all(s);
    closed = bench_session_daemon_end(s, r != BENCH_OK && r != BENCH_INTERRUPTED);
    if (r == BENCH_OK) r = closed;
    bench_report_note(&s->o->report, "%s: %u runs; %u were there, %u done, %u void", s->path,
                      s->plan.n, s->n_there, s->n_done, s->n_void);
    if (r == BENCH_INTERRUPTED) bench_say("interrupted; the same command goes on from here");
    return r == BENCH_OK && s->n_void > 0 ? BENCH_FAILED : r;
}

int bench_experiment(const struct bench_options *o) {
    struct bench_session *s;
    enum bench_experiment e;
    int r;

    if (bench_lab_is(o->operand)) {
        r = bench_folder_make(o->out);
        return r == BENCH_OK ? bench_lab_experiment(o) : r;
    }
    r = find(o->operand, &e);
    if (r == BENCH_OK) r = check_sets(o);
    if (r != BENCH_OK) return r;
    s = calloc(1, sizeof(*s));
    if (!s) return BENCH_FAILED;
    s->lock_fd = -1;
    bench_daemon_signals();
    r = bench_plan_make(o, e, &s->plan);
    if (r == BENCH_OK) r = bench_folder_make(o->out);
    if (r == BENCH_OK) r = bench_session_open(o, s);
    if (r == BENCH_OK) r = run_session(s);
    bench_session_close(s);
    free(s);
    return r;
}
