/* A load: drawn from a seed, sent when it is due, watched to its end. */
#include "tools/bench_load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_client.h"
#include "tools/bench_daemon.h"
#include "tools/bench_length.h"

enum {
    PROMPT_MIN = 8, /* without a trace: 8 and an exponential draw of this mean */
    PROMPT_MEAN = 64,
    PROMPT_MAX = 512,
    REFUSALS_SHOWN = 5, /* the rest is counted */
    LATE_NS = 1000000,  /* a timer of milliseconds cannot do better */
    SLICE_MS = 500,     /* a signal between a look and a wait is seen after so long */
};

/* ---- Its tables ---- */

int bench_load_open(uint32_t n, struct bench_load *out_load) {
    struct bench_load l = {.n = n, .requests = calloc(n, sizeof(*l.requests))};

    if (!l.requests) {
        bench_say("no memory for %u requests", n);
        return BENCH_FAILED;
    }
    *out_load = l;
    return BENCH_OK;
}

int bench_load_room(struct bench_load *l, bool keep) {
    size_t n = 0;

    for (uint32_t i = 0; i < l->n; i++) n += l->requests[i].n_tokens;
    l->n_gaps_max = n;
    l->gaps_ms[0] = calloc(n + 1, sizeof(double));
    l->gaps_ms[1] = calloc(n + 1, sizeof(double));
    if (keep) l->kept = calloc(n + 1, sizeof(*l->kept));
    if (!l->gaps_ms[0] || !l->gaps_ms[1] || (keep && !l->kept)) {
        bench_say("no memory for %u requests", l->n);
        return BENCH_FAILED;
    }
    n = 0;
    for (uint32_t i = 0; keep && i < l->n; i++) {
        l->requests[i].out_ids = l->kept + n;
        n += l->requests[i].n_tokens;
    }
    return BENCH_OK;
}

void bench_load_close(struct bench_load *l) {
    free(l->requests);
    free(l->gaps_ms[0]);
    free(l->gaps_ms[1]);
    free(l->kept);
    *l = (struct bench_load){.n = 0};
}

static struct bench_length draw_length(const struct bench_options *o, struct bench_random *r) {
    double prompt = PROMPT_MIN + PROMPT_MEAN * bench_random_exponential(r);
    double tokens = 1 + o->max_tokens / 2.0 * bench_random_exponential(r);

    return (struct bench_length){.n_prompt = (uint32_t)(prompt < PROMPT_MAX ? prompt : PROMPT_MAX),
                                 .n_tokens =
                                     (uint32_t)(tokens < o->max_tokens ? tokens : o->max_tokens)};
}

int bench_load_make(const struct bench_options *o, uint32_t context, struct bench_load *out_load) {
    struct bench_random arrivals = {o->seed * 4 + 1}, who = {o->seed * 4 + 2};
    struct bench_random draw = {o->seed * 4 + 3};
    struct bench_length *rows = NULL;
    struct bench_load l = {.n = 0};
    uint32_t n_rows = 0;
    double at_s = 0;
    bool timed;
    int r = o->trace ? bench_length_read(o->trace, &rows, &n_rows, &timed) : BENCH_OK;

    if (r == BENCH_OK) r = bench_load_open(o->n_requests, &l);
    l.concurrency = o->concurrency;
    l.timed = o->rate > 0;
    l.temperature = o->temperature;
    l.seed = o->seed;
    l.prompts.seed = o->seed;
    for (uint32_t i = 0; i < l.n; i++) {
        struct bench_length n =
            rows ? rows[bench_random_below(&draw, n_rows)] : draw_length(o, &draw);

        l.n_cut += bench_length_cut(&n, o->max_tokens, context);
        if (o->rate > 0) at_s += bench_random_exponential(&arrivals) / o->rate;
        l.requests[i] =
            (struct bench_load_request){.id = i,
                                        .due_ns = (int64_t)(at_s * 1e9),
                                        .n_prompt = n.n_prompt,
                                        .n_tokens = n.n_tokens,
                                        .deterministic = bench_random_unit(&who) < o->share};
    }
    free(rows);
    if (r == BENCH_OK) r = bench_load_room(&l, false);
    if (r == BENCH_OK)
        *out_load = l;
    else
        bench_load_close(&l);
    return r;
}

/* ---- The run ---- */

struct run {
    struct llm42_io *io;
    struct bench_load *l;
    uint8_t *prompt; /* of the longest */
    uint32_t live[LLM42_REQUESTS_MAX], n_live;
    uint32_t n_sent, n_refused;
    int64_t begin_ns, heard_ns;
};

void bench_prompts_write(const struct bench_prompts *p, uint32_t id, uint32_t n, uint8_t *out) {
    struct bench_random draw = {(p->seed << 32) + id * (uint64_t)0x100000001};
    const uint32_t from = p->ids ? bench_random_below(&draw, p->n_ids) : 0;

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t token =
            p->ids ? p->ids[(from + (uint64_t)i) % p->n_ids] : bench_random_below(&draw, p->vocab);

        for (uint32_t b = 0; b < 4; b++) out[i * 4 + b] = (uint8_t)(token >> 8 * b);
    }
}

/* 0, or what llm42_submit gives. */
static int send_one(struct run *r) {
    struct bench_load *l = r->l;
    struct bench_load_request *q = &l->requests[r->n_sent];
    const struct wire_submit s = {
        .flags = WIRE_SUBMIT_SEED | (l->honour_eos ? 0 : (uint32_t)WIRE_SUBMIT_IGNORE_EOS) |
                 (q->deterministic ? (uint32_t)WIRE_SUBMIT_DETERMINISTIC : 0),
        .max_tokens = q->n_tokens,
        .seed = l->seed + q->id,
        .temperature = (float)l->temperature,
        .top_p = 1,
        .n = 1,
        .prompt_kind = WIRE_PROMPT_KIND_IDS};
    int code;

    bench_prompts_write(&l->prompts, q->id, q->n_prompt, r->prompt);
    code = llm42_submit(llm42_io_core(r->io), &s, r->prompt, q->n_prompt * 4, &q->request);
    if (code < 0) return code;
    if (!l->timed) q->due_ns = bench_now_ns() - r->begin_ns;
    q->state = BENCH_LIVE;
    r->live[r->n_live++] = r->n_sent++;
    return 0;
}

/* All that is due, as far as there is room. */
static int send_due(struct run *r) {
    while (r->n_sent < r->l->n && r->n_live < r->l->concurrency &&
           r->l->requests[r->n_sent].due_ns <= bench_now_ns() - r->begin_ns) {
        const int code = send_one(r);

        if (code == -EAGAIN && r->n_live > 0) return BENCH_OK;
        if (code == 0) continue;
        bench_say("submit: %s", strerror(-code));
        return BENCH_FAILED;
    }
    return BENCH_OK;
}

static void on_tokens(struct run *r, struct bench_load_request *q, const struct wire_tokens *t) {
    const int64_t now_ns = bench_now_ns() - r->begin_ns;

    if (t->n_tokens == 0) return; /* text that lagged behind */
    if (q->n_seen == 0) {
        q->first_ns = now_ns;
    } else if (r->l->n_gaps[q->deterministic] < r->l->n_gaps_max) {
        r->l->gaps_ms[q->deterministic][r->l->n_gaps[q->deterministic]++] =
            (double)(now_ns - q->last_ns) / 1e6;
    }
    q->last_ns = now_ns;
    for (uint32_t i = 0; q->out_ids && i < t->n_tokens && q->n_seen + i < q->n_tokens; i++)
        q->out_ids[q->n_seen + i] = wire_u32_at(t->ids, i);
    q->n_seen += t->n_tokens;
}

static void on_done(struct bench_load_request *q, const struct wire_done *d) {
    q->verify_passes = d->verify_passes;
    q->rollbacks = d->rollbacks;
    q->recomputed = d->recomputed;
    q->certified = d->certified;
    memcpy(q->digest, d->digest, sizeof(q->digest));
}

static void on_event(struct run *r, const struct llm42_event *e) {
    struct bench_load_request *q;
    uint32_t i = 0;

    while (i < r->n_live && r->l->requests[r->live[i]].request != e->request) i++;
    if (i == r->n_live) return; /* of the connection */
    q = &r->l->requests[r->live[i]];
    if (e->kind == LLM42_TOKENS) on_tokens(r, q, &e->tokens);
    if (e->kind != LLM42_DONE && e->kind != LLM42_ERROR) return;

    q->done_ns = bench_now_ns() - r->begin_ns;
    q->state = e->kind == LLM42_DONE ? BENCH_DONE : BENCH_REFUSED;
    if (e->kind == LLM42_DONE)
        on_done(q, &e->done);
    else if (r->n_refused++ < REFUSALS_SHOWN)
        bench_say("request %u: %s, %.*s", r->live[i], wire_code_name(e->error.code),
                  (int)e->error.n_text, e->error.text);
    r->live[i] = r->live[--r->n_live];
}

/* Until the next request is due, or something comes. */
static int wait_ms(const struct run *r) {
    int64_t left_ns;

    if (r->n_sent == r->l->n || r->n_live >= r->l->concurrency) return SLICE_MS;
    left_ns = r->l->requests[r->n_sent].due_ns + r->begin_ns - bench_now_ns();
    if (left_ns <= 0) return r->n_live > 0 ? 1 : 0;
    return left_ns / LATE_NS < SLICE_MS ? (int)((left_ns + LATE_NS - 1) / LATE_NS) : SLICE_MS;
}

uint32_t bench_load_wait_ms(const char *device) {
    return strcmp(device, "cuda") == 0 ? BENCH_WAIT_GPU_MS : BENCH_WAIT_MS;
}

/* How far it came, for whoever looks for what it is that stands still. */
static int stuck(const struct run *r, uint32_t ms) {
    uint64_t n_tokens = 0;
    uint32_t n_begun = 0;

    for (uint32_t i = 0; i < r->n_sent; i++) {
        n_tokens += r->l->requests[i].n_seen;
        n_begun += r->l->requests[i].n_seen > 0;
    }
    bench_say("the load broke off: no event for %u s; of %u requests %u were sent, %u had a token, "
              "%u ended, %llu tokens in all",
              ms / 1000, r->l->n, r->n_sent, n_begun, r->n_sent - r->n_live,
              (unsigned long long)n_tokens);
    return BENCH_FAILED;
}

/* One event, or a while without. */
static int hear(struct run *r) {
    const uint32_t most_ms = r->l->wait_ms ? r->l->wait_ms : BENCH_WAIT_MS;
    struct llm42_event e;
    const int code = llm42_io_next(r->io, &e, wait_ms(r));

    if (bench_daemon_interrupted()) return BENCH_INTERRUPTED;
    if (code == -ETIMEDOUT || code == -EINTR) {
        if (r->n_live == 0) r->heard_ns = bench_now_ns(); /* nothing is asked of it */
        if ((bench_now_ns() - r->heard_ns) / 1000000 < most_ms) return BENCH_OK;
        return stuck(r, most_ms);
    }
    if (code < 0 || e.kind == LLM42_BROKEN) {
        bench_say("the load broke off: %s", code < 0 ? strerror(-code) : e.text);
        return BENCH_FAILED;
    }
    r->heard_ns = bench_now_ns();
    on_event(r, &e);
    return BENCH_OK;
}

static int run(struct run *r) {
    int code = BENCH_OK;

    r->begin_ns = r->heard_ns = bench_now_ns();
    while (code == BENCH_OK && (r->n_sent < r->l->n || r->n_live > 0)) {
        code = send_due(r);
        if (code == BENCH_OK) code = hear(r);
    }
    r->l->seconds = (double)(bench_now_ns() - r->begin_ns) / 1e9;
    return code;
}

int bench_load_run(struct llm42_io *io, struct bench_load *l) {
    struct run *r = calloc(1, sizeof(*r));
    const bool ours = !l->prompts.ids && l->prompts.vocab == 0;
    uint32_t *ids = NULL, n_longest = 1;
    int code = BENCH_FAILED;

    for (uint32_t i = 0; i < l->n; i++)
        if (l->requests[i].n_prompt > n_longest) n_longest = l->requests[i].n_prompt;
    if (r) {
        *r = (struct run){.io = io, .l = l};
        r->prompt = malloc((size_t)n_longest * 4);
    }
    if (r && r->prompt) code = BENCH_OK;
    if (code == BENCH_OK && ours) {
        code = bench_client_ids(io, bench_text, strlen(bench_text), &ids, &l->prompts.n_ids);
        l->prompts.ids = ids;
    }
    if (code == BENCH_OK) code = run(r);
    if (ours) l->prompts.ids = NULL;
    free(ids);
    if (r) free(r->prompt);
    free(r);
    return code;
}

/* ---- What came of it ---- */

static bool of_class(const struct bench_load_request *q, enum bench_load_class class) {
    return class == BENCH_POOLED || q->deterministic == (class == BENCH_DETERMINISTIC);
}

size_t bench_load_times_max(const struct bench_load *l) {
    return 2 * l->n_gaps_max + l->n;
}

static size_t gaps(const struct bench_load *l, enum bench_load_class class, double *ms) {
    size_t n = 0;

    for (int c = BENCH_PLAIN; c <= BENCH_DETERMINISTIC; c++) {
        if (class != BENCH_POOLED && c != (int)class) continue;
        if (l->n_gaps[c] > 0) memcpy(ms + n, l->gaps_ms[c], l->n_gaps[c] * sizeof(*ms));
        n += l->n_gaps[c];
    }
    return n;
}

size_t bench_load_times(const struct bench_load *l, enum bench_load_class class,
                        enum bench_load_time time, double *ms) {
    size_t n = 0;

    if (time == BENCH_GAP) return gaps(l, class, ms);
    for (uint32_t i = 0; i < l->n; i++) {
        const struct bench_load_request *q = &l->requests[i];

        if (!of_class(q, class)) continue;
        if (time == BENCH_FIRST && q->n_seen > 0) ms[n++] = (double)(q->first_ns - q->due_ns) / 1e6;
        if (time == BENCH_END && q->state == BENCH_DONE)
            ms[n++] = (double)(q->done_ns - q->due_ns) / 1e6;
    }
    return n;
}

static void quantiles(const struct bench_report *r, const char *key, const char *class,
                      const char *what, double *ms, size_t n) {
    static const struct {
        const char *name;
        double part;
    } parts[] = {{"P50", 0.5}, {"P90", 0.9}, {"P99", 0.99}};

    for (size_t i = 0; n > 0 && i < sizeof(parts) / sizeof(parts[0]); i++)
        bench_report_figure(r, key, bench_quantile(ms, n, parts[i].part), "ms",
                            (struct bench_target){0, false}, "%s, %s, %s of %zu", class, what,
                            parts[i].name, n);
}

static void report_class(const struct bench_options *o, const struct bench_load *l,
                         enum bench_load_class class, double *ms) {
    static const char *const names[BENCH_CLASSES] = {"plain", "deterministic", "pooled"};
    static const struct {
        const char *key, *what;
    } times[BENCH_TIMES] = {{"serve.first_token", "time to first token"},
                            {"serve.gap", "gap between commits"},
                            {"serve.end", "end to end"}};

    for (enum bench_load_time t = 0; t < BENCH_TIMES; t++)
        quantiles(&o->report, times[t].key, names[class], times[t].what, ms,
                  bench_load_times(l, class, t, ms));
}

void bench_load_report(const struct bench_options *o, const struct bench_load *l) {
    const struct bench_report *r = &o->report;
    const struct bench_target none = {0};
    uint64_t n_prompt = 0, n_output = 0, rollbacks = 0, recomputed = 0, certified = 0;
    uint32_t n_done = 0, n_refused = 0, n_deterministic = 0;
    double *ms = calloc(bench_load_times_max(l), sizeof(*ms));

    if (!ms) return;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct bench_load_request *q = &l->requests[i];

        n_deterministic += q->deterministic;
        n_refused += q->state == BENCH_REFUSED;
        if (q->state != BENCH_DONE) continue;
        n_done++;
        n_prompt += q->n_prompt;
        n_output += q->n_seen;
        rollbacks += q->rollbacks;
        recomputed += q->recomputed;
        certified += q->certified;
    }
    bench_report_figure(r, "serve.output", (double)n_output / l->seconds, "token/s", none,
                        "output, %llu tokens in %.2f s", (unsigned long long)n_output, l->seconds);
    bench_report_figure(r, "serve.all_tokens", (double)(n_prompt + n_output) / l->seconds,
                        "token/s", none, "prompts (%llu tokens) and output",
                        (unsigned long long)n_prompt);
    bench_report_figure(r, "serve.requests", n_done / l->seconds, "/s", none,
                        "requests done: %u, %u of all deterministic", n_done, n_deterministic);
    bench_report_figure(r, "serve.refused", n_refused, "", none, "requests refused or failed");
    bench_report_figure(r, "serve.rollbacks", (double)rollbacks, "", none, "rollbacks, in total");
    bench_report_figure(r, "serve.recomputed", (double)recomputed, "token", none,
                        "computed again, in total");
    bench_report_figure(r, "serve.certified", (double)certified, "token", none,
                        "committed without a verify pass, in total");
    for (enum bench_load_class class = 0; class < BENCH_CLASSES; class ++)
        if (class != BENCH_POOLED || (n_deterministic > 0 && n_deterministic < l->n))
            report_class(o, l, class, ms);
    free(ms);
}
