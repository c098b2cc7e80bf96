/* A workload's requests, and a run's order, arrivals and flags. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_experiment.h"

/* Published means and medians of prompts and outputs. */
static const struct fitted {
    const char *name;
    double prompt_mean, prompt_median, output_mean, output_median;
} fitted[] = {
    {"sharegpt", 304, 136, 192, 118},
    {"arxiv", 7017, 6435, 198, 191},
    {"reasoning", 60, 55.5, 2048, 2048}, /* of mixed: short questions, long answers */
};
enum { SHAREGPT, ARXIV, REASONING, N_FITTED };

enum { MIXED_OUT_MIN = 128, MIXED_OUT_SPAN = 129 }; /* chats of mixed: 128 to 256 */

/* What a name means: NAME, NAME/OUTPUTS, fixed:PROMPT/OUTPUT or upto:PROMPT/OUTPUT. */
struct meaning {
    enum { FITTED, MIXED, TRACE, FIXED, UP_TO } kind;
    const struct fitted *fitted;
    uint32_t n_prompt, n_tokens; /* n_tokens 0: as drawn */
};

static bool read_lengths(const char *text, struct meaning *m) {
    int end = 0;

    return sscanf(text, "%7u/%7u%n", &m->n_prompt, &m->n_tokens, &end) == 2 && !text[end] &&
           m->n_prompt > 0 && m->n_tokens > 0;
}

static bool meaning_read(const char *name, struct meaning *m) {
    const size_t n = strcspn(name, "/");
    int end = 0;

    *m = (struct meaning){.kind = FIXED};
    if (strncmp(name, "fixed:", 6) == 0) return read_lengths(name + 6, m);
    m->kind = UP_TO;
    if (strncmp(name, "upto:", 5) == 0) return read_lengths(name + 5, m);
    if (name[n] == '/' && (sscanf(name + n, "/%7u%n", &m->n_tokens, &end) != 1 ||
                           name[n + (size_t)end] || m->n_tokens == 0))
        return false;
    m->kind = TRACE;
    if (n == 5 && strncmp(name, "trace", n) == 0) return true;
    m->kind = MIXED;
    if (n == 5 && strncmp(name, "mixed", n) == 0) return true;
    m->kind = FITTED;
    for (m->fitted = fitted; m->fitted < fitted + N_FITTED; m->fitted++)
        if (strlen(m->fitted->name) == n && strncmp(name, m->fitted->name, n) == 0) return true;
    return false;
}

int bench_workload_check(const struct bench_options *o, const char *name) {
    struct meaning m;

    if (strlen(name) >= BENCH_WORKLOAD_BYTES || !meaning_read(name, &m)) {
        bench_say("--workloads %s: no workload; there are sharegpt, arxiv, reasoning, mixed and "
                  "trace, each also as NAME/OUTPUTS, fixed:PROMPT/OUTPUT and upto:PROMPT/OUTPUT",
                  name);
        return BENCH_USAGE;
    }
    if (m.kind == TRACE && !o->trace) {
        bench_say("--workloads %s: --trace FILE is wanted", name);
        return BENCH_USAGE;
    }
    return BENCH_OK;
}

static uint32_t scaled(double length, double scale) {
    return length * scale < 1 ? 1 : (uint32_t)(length * scale);
}

static struct bench_length draw_fitted(const struct fitted *f, struct bench_random *r) {
    const double prompt = bench_length_draw(r, f->prompt_mean, f->prompt_median);

    return (struct bench_length){
        .n_prompt = (uint32_t)prompt,
        .n_tokens = (uint32_t)bench_length_draw(r, f->output_mean, f->output_median)};
}

/* 45 % chats with answers of 128 to 256, 45 % papers, 10 % reasoning. */
static struct bench_length draw_mixed(struct bench_random *r) {
    const double u = bench_random_unit(r);
    struct bench_length l = draw_fitted(&fitted[u < 0.45  ? SHAREGPT
                                                : u < 0.9 ? ARXIV
                                                          : REASONING],
                                        r);

    if (u < 0.45) l.n_tokens = MIXED_OUT_MIN + bench_random_below(r, MIXED_OUT_SPAN);
    return l;
}

static struct bench_length draw(const struct meaning *m, struct bench_random *r) {
    switch (m->kind) {
    case MIXED:
        return draw_mixed(r);
    case FIXED:
        return (struct bench_length){.n_prompt = m->n_prompt, .n_tokens = m->n_tokens};
    case UP_TO:
        return (struct bench_length){.n_prompt = 1 + bench_random_below(r, m->n_prompt),
                                     .n_tokens = 1 + bench_random_below(r, m->n_tokens)};
    default:
        return draw_fitted(m->fitted, r);
    }
}

/* Rows of a trace: any, or for its arrivals one after the other from some place on. */
static int take_trace(const struct bench_options *o, struct bench_random *r,
                      struct bench_workload *w) {
    const bool recorded = o->arrivals && strcmp(o->arrivals, "recorded") == 0;
    struct bench_length *rows;
    uint32_t n_rows, from;
    int code = bench_length_read(o->trace, &rows, &n_rows, &w->timed);

    if (code != BENCH_OK) return code;
    if (recorded && (!w->timed || n_rows < w->n)) {
        bench_say("%s: %s", o->trace,
                  w->timed ? "fewer rows than requests" : "no column of arrivals");
        code = BENCH_USAGE;
    }
    from = recorded && code == BENCH_OK ? bench_random_below(r, n_rows - w->n + 1) : 0;
    for (uint32_t i = 0; code == BENCH_OK && i < w->n; i++) {
        w->lengths[i] = rows[recorded ? from + i : bench_random_below(r, n_rows)];
        w->lengths[i].at_ns -= recorded ? rows[from].at_ns : w->lengths[i].at_ns;
    }
    free(rows);
    return code;
}

int bench_workload_make(const struct bench_options *o, const char *name, uint32_t n,
                        uint32_t context, struct bench_workload *out_workload) {
    struct bench_workload w = {.n = n, .lengths = calloc(n, sizeof(*w.lengths))};
    struct bench_random r = {(o->seed << 32) + 1};
    struct meaning m;
    int code = w.lengths ? bench_workload_check(o, name) : BENCH_FAILED;

    snprintf(w.name, sizeof(w.name), "%s", name);
    if (code == BENCH_OK) (void)meaning_read(name, &m);
    if (code == BENCH_OK && m.kind == TRACE) code = take_trace(o, &r, &w);
    for (uint32_t i = 0; code == BENCH_OK && i < n; i++) {
        struct bench_length *l = &w.lengths[i];

        if (m.kind != TRACE) *l = draw(&m, &r);
        if (m.n_tokens > 0 && m.kind != UP_TO) l->n_tokens = m.n_tokens;
        l->n_prompt = scaled(l->n_prompt, o->scale);
        l->n_tokens = scaled(l->n_tokens, o->scale);
        w.n_cut += bench_length_cut(l, UINT32_MAX, context);
    }
    if (code == BENCH_OK)
        *out_workload = w;
    else
        bench_workload_close(&w);
    return code;
}

void bench_workload_close(struct bench_workload *w) {
    free(w->lengths);
    *w = (struct bench_workload){.n = 0};
}

/* ---- A run ---- */

static void shuffle(uint32_t *values, uint32_t n, struct bench_random *r) {
    for (uint32_t i = n; i > 1; i--) {
        const uint32_t j = bench_random_below(r, i), value = values[i - 1];

        values[i - 1] = values[j];
        values[j] = value;
    }
}

/* Each number of its own for each use and repeat. */
static struct bench_random stream(const struct bench_options *o, const struct bench_run *run,
                                  uint32_t use) {
    return (struct bench_random){(o->seed << 32) + ((uint64_t)run->repeat << 8) + use};
}

/* Of n places drawn at random the first ones: a larger share has those of a smaller one. */
static void flag(const struct bench_options *o, const struct bench_run *run, uint32_t *places,
                 struct bench_load *l) {
    struct bench_random who = stream(o, run, 4);
    uint32_t n = (uint32_t)lround(run->share / 100 * l->n);

    if (run->share < 0) {
        l->requests[l->n - 1].deterministic = true;
        return;
    }
    if (n == 0 && run->share > 0) n = 1;
    for (uint32_t i = 0; i < l->n; i++) places[i] = i;
    shuffle(places, l->n, &who);
    for (uint32_t i = 0; i < n; i++) l->requests[places[i]].deterministic = true;
}

static void arrive(const struct bench_options *o, const struct bench_workload *w,
                   const struct bench_run *run, struct bench_load *l) {
    struct bench_random r = stream(o, run, 3);
    const int64_t whole_ns = l->n > 1 ? w->lengths[l->n - 1].at_ns : 0;
    double at_s = 0, stretch = 1;

    if (run->arrivals == BENCH_RECORDED && run->rate > 0 && whole_ns > 0)
        stretch = (l->n - 1) / run->rate / ((double)whole_ns / 1e9);
    for (uint32_t i = 0; i < l->n; i++) {
        if (run->arrivals == BENCH_POISSON) at_s += bench_random_exponential(&r) / run->rate;
        if (run->arrivals == BENCH_RECORDED) at_s = (double)w->lengths[i].at_ns / 1e9 * stretch;
        l->requests[i].due_ns = (int64_t)(at_s * 1e9);
    }
    l->timed = run->arrivals != BENCH_AT_ONCE;
}

int bench_workload_load(const struct bench_options *o, const struct bench_workload *w,
                        const struct bench_run *run, bool keep_ids, struct bench_load *out_load) {
    const uint32_t n = run->n_requests;
    struct bench_random r = stream(o, run, 2);
    uint32_t *places = calloc(n, sizeof(*places));
    struct bench_load l = {.n = 0};
    int code = places ? bench_load_open(n, &l) : BENCH_FAILED;

    for (uint32_t i = 0; code == BENCH_OK && i < n; i++) places[i] = i;
    /* Recorded arrivals belong to their lengths. */
    if (code == BENCH_OK && run->arrivals != BENCH_RECORDED) shuffle(places, n, &r);
    for (uint32_t i = 0; code == BENCH_OK && i < n; i++) {
        l.requests[i].id = places[i];
        l.requests[i].n_prompt = w->lengths[places[i]].n_prompt;
        l.requests[i].n_tokens = w->lengths[places[i]].n_tokens;
    }
    if (code == BENCH_OK) {
        l.n_cut = w->n_cut;
        l.concurrency = BENCH_FLIGHT_MAX;
        l.wait_ms = bench_load_wait_ms(o->device);
        l.temperature = o->temperature;
        l.honour_eos = o->honour_eos;
        l.seed = o->seed;
        flag(o, run, places, &l);
        arrive(o, w, run, &l);
        code = bench_load_room(&l, keep_ids);
    }
    free(places);
    if (code == BENCH_OK)
        *out_load = l;
    else
        bench_load_close(&l);
    return code;
}
