/* Tokens a second of an engine in this process, driven in one thread as the daemon drives it in
 * two. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device.h"
#include "runtime/engine.h"
#include "runtime/err.h"
#include "runtime/token.h"
#include "tools/bench_verbs.h"
#include "tools/bench_watch.h"

enum {
    TEXT_IDS_MAX = 4096,
    REQUESTS_MAX = 16,
    DECODE_PROMPT = 48, /* with DECODE_TOKENS: a context of about 64 */
    DECODE_TOKENS = 33,
    PREFILL_PROMPT = 256,
    GRANT = 64, /* more events than a request here has */
    IDLE_MAX = 1000,
};

/* Issue-wide targets, of two cores. */
static const struct model_target {
    const char *name;
    double decode, prefill, ready_s;
} targets[] = {{"SmolLM2-135M-Instruct", 35, 45, 5}, {"verse-4m", 800, 0, 1}};

struct bench {
    const struct bench_options *o;
    const struct bench_report *report;
    struct engine *engine;
    struct device *watch;              /* the engine's */
    const struct model_target *target; /* zeros for other models */
    uint32_t n_threads;
    enum plan_policy policy;
    uint32_t ids[TEXT_IDS_MAX], n_ids;
    uint32_t n_begun; /* requests so far: each has a prompt of its own */
};

/* What a round of equal requests came to. */
struct round {
    double first_s;   /* from the first submit to the last request's first token */
    double decode_s;  /* from there to the last token */
    uint32_t n_after; /* tokens that came in that time */
    double device_s;  /* of decode_s, in the device */
    uint32_t n_steps; /* of decode_s */
    uint32_t rollbacks, recomputed;
};

static double device_s(const struct bench *b) {
    const int64_t *ns = bench_watch_ns(b->watch);
    int64_t sum = 0;

    for (int i = 0; i < BENCH_STAGES; i++) sum += ns[i];
    return (double)sum / 1e9;
}

static int engine_make(struct bench *b, struct err *e) {
    const struct device_cpu_options cpu = {.n_threads = b->n_threads};
    /* The daemon's defaults. */
    const struct engine_options options = {.model_path = b->o->model,
                                           .round_weights = true,
                                           .policy = b->policy,
                                           .window = 32,
                                           .group = 8,
                                           .max_requests = 64,
                                           .max_queue = 256,
                                           .step_tokens = 256};
    struct device *dev;
    int r = device_cpu_open(&cpu, &dev, e);

    if (r == 0) r = bench_watch_open(dev, &b->watch, e);
    return r < 0 ? r : engine_open(&options, b->watch, &b->engine, e);
}

static int open_timed(struct bench *b) {
    const struct engine_facts *facts;
    const int64_t begin_ns = bench_now_ns();
    struct err e = {""};
    int64_t n;
    int r = engine_make(b, &e);
    double ready_s;

    if (r < 0) {
        bench_say("%s", e.text[0] ? e.text : strerror(-r));
        return BENCH_FAILED;
    }
    ready_s = (double)(bench_now_ns() - begin_ns) / 1e9;
    facts = engine_facts_get(b->engine);
    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++)
        if (strcmp(facts->model.name, targets[i].name) == 0) b->target = &targets[i];
    n = token_encode(facts->token, bench_text, strlen(bench_text), 0, b->ids, TEXT_IDS_MAX, &e);
    if (n < PREFILL_PROMPT) {
        bench_say("the tokenizer has too few ids for the text: %s", e.text);
        return BENCH_FAILED;
    }
    b->n_ids = (uint32_t)n;
    bench_report_section(b->report, "Engine: %s, policy %s, %s", facts->model.name,
                         plan_policy_name(b->policy), facts->device);
    bench_report_figure(b->report, "engine.ready", ready_s, "s",
                        (struct bench_target){b->target->ready_s, true},
                        "%s: opened, self-test done", facts->model.name);
    bench_report_figure(
        b->report, "engine.memory",
        (double)(facts->bytes_weights + facts->bytes_kv + facts->bytes_work) / 0x1p20, "MiB",
        (struct bench_target){0, false}, "memory: %.1f weights, %.1f KV, %.1f work",
        (double)facts->bytes_weights / 0x1p20, (double)facts->bytes_kv / 0x1p20,
        (double)facts->bytes_work / 0x1p20);
    return BENCH_OK;
}

static int submit(struct bench *b, uint32_t n_prompt, uint32_t max_tokens, bool deterministic) {
    uint32_t prompt[PREFILL_PROMPT];
    struct engine_request q = {.prompt = prompt,
                               .n_prompt = n_prompt,
                               .max_tokens = max_tokens,
                               .deterministic = deterministic,
                               .ignore_eos = true,
                               .params = {.top_p = 1},
                               .grant = GRANT};
    struct err e = {""};
    uint64_t handle;
    int r;

    /* From another place of the text each time: no two share a beginning. */
    for (uint32_t i = 0; i < n_prompt; i++) prompt[i] = b->ids[(b->n_begun * 37 + i) % b->n_ids];
    b->n_begun++;
    r = engine_submit(b->engine, &q, &handle, &e);
    if (r < 0) bench_say("submit: %s", e.text);
    return r;
}

/* Runs n equal requests to their ends. */
static int round_run(struct bench *b, uint32_t n, uint32_t n_prompt, uint32_t max_tokens,
                     bool deterministic, struct round *out) {
    int64_t begin_ns = bench_now_ns(), first_ns = 0;
    uint32_t n_first = 0, n_tokens = 0, n_before = 0;
    struct engine_event event;

    *out = (struct round){0};
    for (uint32_t i = 0; i < n; i++)
        if (submit(b, n_prompt, max_tokens, deterministic) < 0) return BENCH_FAILED;
    for (uint32_t idle = 0; engine_count(b->engine) > 0;) {
        int r = engine_step(b->engine);

        if (r < 0 || (idle = r > 0 ? 0 : idle + 1) > IDLE_MAX) {
            bench_say("the engine does not get on: %s", r < 0 ? strerror(-r) : "idle");
            return BENCH_FAILED;
        }
        out->n_steps += r > 0;
        while (engine_next(b->engine, &event)) {
            if (event.kind == ENGINE_FAILED) {
                bench_say("a request failed: %s", event.why);
                return BENCH_FAILED;
            }
            if (event.kind == ENGINE_TOKEN && event.index == 0) n_first++;
            if (event.kind == ENGINE_TOKEN) n_tokens++;
            if (event.kind != ENGINE_DONE) continue;
            out->rollbacks += event.usage.rollbacks;
            out->recomputed += event.usage.recomputed;
        }
        if (n_first == n && first_ns == 0) {
            first_ns = bench_now_ns();
            n_before = n_tokens;
            out->n_steps = 0;
            bench_watch_reset(b->watch);
        }
    }
    out->first_s = (double)(first_ns - begin_ns) / 1e9;
    out->decode_s = (double)(bench_now_ns() - first_ns) / 1e9;
    out->n_after = n_tokens - n_before;
    out->device_s = device_s(b);
    return BENCH_OK;
}

static int prefill(struct bench *b) {
    double rates[BENCH_RUNS];
    struct round round;

    for (int i = 0; i < BENCH_RUNS; i++) {
        int r = round_run(b, 1, PREFILL_PROMPT, 1, true, &round);

        if (r != BENCH_OK) return r;
        rates[i] = PREFILL_PROMPT / round.first_s;
    }
    bench_report_figure(b->report, "engine.prefill", bench_quantile(rates, BENCH_RUNS, 0.5),
                        "token/s", (struct bench_target){b->target->prefill, false},
                        "prefill of a prompt of %d", PREFILL_PROMPT);
    return BENCH_OK;
}

static int decode(struct bench *b, uint32_t n, bool deterministic) {
    double rates[BENCH_RUNS], outside[BENCH_RUNS];
    uint32_t rollbacks = 0, recomputed = 0;
    struct round round;

    for (int i = 0; i < BENCH_RUNS; i++) {
        int r = round_run(b, n, DECODE_PROMPT, DECODE_TOKENS, deterministic, &round);

        if (r != BENCH_OK) return r;
        rates[i] = round.decode_s > 0 ? round.n_after / round.decode_s : 0;
        outside[i] = round.n_steps ? (round.decode_s - round.device_s) / round.n_steps : 0;
        rollbacks += round.rollbacks;
        recomputed += round.recomputed;
    }
    bench_report_figure(b->report, "engine.decode", bench_quantile(rates, BENCH_RUNS, 0.5),
                        "token/s", (struct bench_target){n == 1 ? b->target->decode : 0, false},
                        "decode, %u %s request%s, context about 64", n,
                        deterministic ? "deterministic" : "plain", n == 1 ? "" : "s");
    bench_report_figure(b->report, "engine.outside", bench_quantile(outside, BENCH_RUNS, 0.5) * 1e6,
                        "us", (struct bench_target){0, false}, "  of a step, outside the device");
    if (rollbacks > 0)
        bench_report_note(b->report, "  with %u rollbacks, %u tokens computed again", rollbacks,
                          recomputed);
    return BENCH_OK;
}

static int bench_policy(const struct bench_options *o, enum plan_policy policy) {
    static const struct model_target no_target = {"", 0, 0, 0};
    static const uint32_t counts[] = {1, 4, REQUESTS_MAX};
    struct bench *b = calloc(1, sizeof(*b));
    int r;

    if (!b) return BENCH_FAILED;
    b->o = o;
    b->report = &o->report;
    b->target = &no_target;
    b->policy = policy;
    b->n_threads = bench_threads(o);
    r = open_timed(b);
    if (r == BENCH_OK) r = prefill(b);
    for (size_t i = 0; r == BENCH_OK && i < sizeof(counts) / sizeof(counts[0]); i++) {
        r = decode(b, counts[i], true);
        /* On canonical both are the same work. */
        if (r == BENCH_OK && policy != PLAN_CANONICAL) r = decode(b, counts[i], false);
    }
    engine_close(b->engine);
    free(b);
    return r;
}

int bench_engine(const struct bench_options *o) {
    const bool all = strcmp(o->policy, "all") == 0;
    int r = BENCH_USAGE;

    for (int p = PLAN_CANONICAL; p <= PLAN_AUTO; p++) {
        if (!all && strcmp(o->policy, plan_policy_name((enum plan_policy)p)) != 0) continue;
        r = bench_policy(o, (enum plan_policy)p);
        if (r != BENCH_OK) return r;
    }
    if (r == BENCH_USAGE) bench_say("%s is no policy: canonical, tuned, auto or all", o->policy);
    return r;
}
