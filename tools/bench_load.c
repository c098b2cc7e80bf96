/* A load: drawn from a seed, sent when it is due, watched to its end. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_client.h"

enum {
    TRACE_ROWS_MAX = 1 << 20,
    LINE_BYTES = 1024,
    PROMPT_MIN = 8, /* without a trace: 8 and an exponential draw of this mean */
    PROMPT_MEAN = 64,
    PROMPT_MAX = 512,
    REFUSALS_SHOWN = 5, /* the rest is counted */
    LATE_NS = 1000000,  /* a timer of milliseconds cannot do better */
};

/* ---- Lengths ---- */

struct lengths {
    uint32_t n_prompt, n_tokens;
};

/* The column's index by any of its names, or -1. */
static int column_find(char *header, const char *const names[]) {
    int column = 0;

    for (char *field = header; field; column++) {
        const size_t n = strcspn(field, ",\r\n");

        for (int i = 0; names[i]; i++)
            if (strlen(names[i]) == n && memcmp(field, names[i], n) == 0) return column;
        field = field[n] == ',' ? field + n + 1 : NULL;
    }
    return -1;
}

static bool column_number(char *line, int column, uint32_t *out) {
    char *end;
    double value;

    for (; column > 0; column--) {
        line = strchr(line, ',');
        if (!line) return false;
        line++;
    }
    value = strtod(line, &end); /* some traces have 374.0 */
    if (end == line || !(value >= 0 && value <= 1e8)) return false;
    *out = (uint32_t)value;
    return true;
}

static int trace_rows(FILE *f, const char *path, struct lengths *rows, uint32_t *out_n) {
    static const char *const prompt[] = {"prompt",        "num_prefill_tokens", "ContextTokens",
                                         "prompt_tokens", "input_tokens",       NULL};
    static const char *const output[] = {"output",        "num_decode_tokens", "GeneratedTokens",
                                         "output_tokens", "completion_tokens", NULL};
    char line[LINE_BYTES];
    int prompt_column, output_column;
    uint32_t n = 0, n_lines = 1;

    if (!fgets(line, sizeof(line), f)) line[0] = '\0';
    prompt_column = column_find(line, prompt);
    output_column = column_find(line, output);
    if (prompt_column < 0 || output_column < 0) {
        bench_say("%s:1: no columns prompt and output (or ContextTokens, GeneratedTokens; "
                  "num_prefill_tokens, num_decode_tokens)",
                  path);
        return BENCH_USAGE;
    }
    while (n < TRACE_ROWS_MAX && fgets(line, sizeof(line), f)) {
        n_lines++;
        if (line[strspn(line, " \t\r\n")] == '\0') continue;
        if (!column_number(line, prompt_column, &rows[n].n_prompt) ||
            !column_number(line, output_column, &rows[n].n_tokens)) {
            bench_say("%s:%u: a length is no number", path, n_lines);
            return BENCH_USAGE;
        }
        n++;
    }
    if (n == 0) bench_say("%s: no rows", path);
    *out_n = n;
    return n == 0 ? BENCH_USAGE : BENCH_OK;
}

static int trace_read(const char *path, struct lengths **out_rows, uint32_t *out_n) {
    struct lengths *rows = calloc(TRACE_ROWS_MAX, sizeof(*rows));
    FILE *f = fopen(path, "re");
    int r = BENCH_FAILED;

    if (!f)
        bench_say("%s: %s", path, strerror(errno));
    else if (rows)
        r = trace_rows(f, path, rows, out_n);
    if (f) fclose(f);
    if (r != BENCH_OK) {
        free(rows);
        return r;
    }
    *out_rows = rows;
    return BENCH_OK;
}

static struct lengths lengths_draw(const struct bench_options *o, struct bench_random *r) {
    double prompt = PROMPT_MIN + PROMPT_MEAN * bench_random_exponential(r);
    double tokens = 1 + o->max_tokens / 2.0 * bench_random_exponential(r);

    return (struct lengths){(uint32_t)(prompt < PROMPT_MAX ? prompt : PROMPT_MAX),
                            (uint32_t)(tokens < o->max_tokens ? tokens : o->max_tokens)};
}

/* So that the request can be: true where something had to go. */
static bool lengths_cut(struct lengths *l, uint32_t max_tokens, uint32_t context) {
    const struct lengths was = *l;

    if (l->n_tokens == 0) l->n_tokens = 1;
    if (l->n_tokens > max_tokens) l->n_tokens = max_tokens;
    if (l->n_tokens > context / 2) l->n_tokens = context / 2;
    if (l->n_prompt == 0) l->n_prompt = 1;
    if (l->n_prompt > context - l->n_tokens) l->n_prompt = context - l->n_tokens;
    return l->n_prompt != was.n_prompt || l->n_tokens != was.n_tokens;
}

int bench_load_make(const struct bench_options *o, uint32_t context, struct bench_load *out_load) {
    struct bench_random arrivals = {o->seed * 4 + 1}, who = {o->seed * 4 + 2};
    struct bench_random draw = {o->seed * 4 + 3};
    struct bench_load l = {.n = o->n_requests};
    struct lengths *rows = NULL;
    uint32_t n_rows = 0;
    double at_s = 0;
    int r = o->trace ? trace_read(o->trace, &rows, &n_rows) : BENCH_OK;

    if (r != BENCH_OK) return r;
    l.requests = calloc(l.n, sizeof(*l.requests));
    for (uint32_t i = 0; l.requests && i < l.n; i++) {
        struct lengths n = rows ? rows[bench_random_below(&draw, n_rows)] : lengths_draw(o, &draw);

        l.n_cut += lengths_cut(&n, o->max_tokens, context);
        if (o->rate > 0) at_s += bench_random_exponential(&arrivals) / o->rate;
        l.requests[i] =
            (struct bench_load_request){.due_ns = (int64_t)(at_s * 1e9),
                                        .n_prompt = n.n_prompt,
                                        .n_tokens = n.n_tokens,
                                        .deterministic = bench_random_unit(&who) < o->share};
        l.n_gaps_max += n.n_tokens;
    }
    free(rows);
    l.gaps_ms[0] = calloc(l.n_gaps_max + 1, sizeof(double));
    l.gaps_ms[1] = calloc(l.n_gaps_max + 1, sizeof(double));
    if (!l.requests || !l.gaps_ms[0] || !l.gaps_ms[1]) {
        bench_say("no memory for %u requests", l.n);
        bench_load_free(&l);
        return BENCH_FAILED;
    }
    *out_load = l;
    return BENCH_OK;
}

void bench_load_free(struct bench_load *l) {
    free(l->requests);
    free(l->gaps_ms[0]);
    free(l->gaps_ms[1]);
}

/* ---- The run ---- */

struct run {
    const struct bench_options *o;
    struct llm42_io *io;
    struct bench_load *l;
    struct bench_random texts;
    uint32_t ids[BENCH_TEXT_IDS_MAX], n_ids;
    uint8_t *prompt; /* of the longest */
    uint32_t live[LLM42_REQUESTS_MAX], n_live;
    uint32_t n_sent, n_refused;
    int64_t begin_ns;
};

static int send_one(struct run *r) {
    struct bench_load_request *q = &r->l->requests[r->n_sent];
    const uint32_t from = bench_random_below(&r->texts, r->n_ids);
    const struct wire_submit s = {.flags =
                                      WIRE_SUBMIT_IGNORE_EOS | WIRE_SUBMIT_SEED |
                                      (q->deterministic ? (uint32_t)WIRE_SUBMIT_DETERMINISTIC : 0),
                                  .max_tokens = q->n_tokens,
                                  .seed = r->o->seed + r->n_sent,
                                  .temperature = (float)r->o->temperature,
                                  .top_p = 1,
                                  .n = 1,
                                  .prompt_kind = WIRE_PROMPT_KIND_IDS};
    int code;

    for (uint32_t i = 0; i < q->n_prompt; i++) {
        const uint32_t id = r->ids[(from + i) % r->n_ids];

        for (uint32_t b = 0; b < 4; b++) r->prompt[i * 4 + b] = (uint8_t)(id >> 8 * b);
    }
    code = llm42_submit(llm42_io_core(r->io), &s, r->prompt, q->n_prompt * 4, &q->request);
    if (code < 0) {
        bench_say("submit: %s", strerror(-code));
        return BENCH_FAILED;
    }
    if (r->o->rate <= 0) q->due_ns = bench_now_ns() - r->begin_ns;
    q->state = BENCH_LIVE;
    r->live[r->n_live++] = r->n_sent++;
    return BENCH_OK;
}

static void on_tokens(struct run *r, struct bench_load_request *q, uint32_t n_tokens) {
    const int64_t now_ns = bench_now_ns() - r->begin_ns;

    if (n_tokens == 0) return; /* text that lagged behind */
    if (q->n_seen == 0) {
        q->first_ns = now_ns;
    } else if (r->l->n_gaps[q->deterministic] < r->l->n_gaps_max) {
        r->l->gaps_ms[q->deterministic][r->l->n_gaps[q->deterministic]++] =
            (double)(now_ns - q->last_ns) / 1e6;
    }
    q->last_ns = now_ns;
    q->n_seen += n_tokens;
}

static void on_event(struct run *r, const struct llm42_event *e) {
    struct bench_load_request *q;
    uint32_t i = 0;

    while (i < r->n_live && r->l->requests[r->live[i]].request != e->request) i++;
    if (i == r->n_live) return; /* of the connection */
    q = &r->l->requests[r->live[i]];
    if (e->kind == LLM42_TOKENS) on_tokens(r, q, e->tokens.n_tokens);
    if (e->kind != LLM42_DONE && e->kind != LLM42_ERROR) return;

    q->done_ns = bench_now_ns() - r->begin_ns;
    q->state = e->kind == LLM42_DONE ? BENCH_DONE : BENCH_REFUSED;
    if (e->kind == LLM42_DONE) {
        q->rollbacks = e->done.rollbacks;
        q->recomputed = e->done.recomputed;
        q->certified = e->done.certified;
    } else if (r->n_refused++ < REFUSALS_SHOWN) {
        bench_say("request %u: %s, %.*s", r->live[i], wire_code_name(e->error.code),
                  (int)e->error.n_text, e->error.text);
    }
    r->live[i] = r->live[--r->n_live];
}

/* Until the next request is due, or something comes. */
static int wait_ms(const struct run *r) {
    int64_t left_ns;

    if (r->n_sent == r->l->n || r->n_live >= r->o->concurrency) return BENCH_WAIT_MS;
    left_ns = r->l->requests[r->n_sent].due_ns + r->begin_ns - bench_now_ns();
    if (left_ns <= 0) return 0;
    return left_ns / LATE_NS < BENCH_WAIT_MS ? (int)((left_ns + LATE_NS - 1) / LATE_NS)
                                             : BENCH_WAIT_MS;
}

static int run(struct run *r) {
    struct llm42_event e;
    int code;

    r->begin_ns = bench_now_ns();
    while (r->n_sent < r->l->n || r->n_live > 0) {
        while (r->n_sent < r->l->n && r->n_live < r->o->concurrency &&
               r->l->requests[r->n_sent].due_ns <= bench_now_ns() - r->begin_ns) {
            code = send_one(r);
            if (code != BENCH_OK) return code;
        }
        code = llm42_io_next(r->io, &e, wait_ms(r));
        if (code == -ETIMEDOUT && r->n_sent < r->l->n && r->n_live < r->o->concurrency) continue;
        if (code < 0 || e.kind == LLM42_BROKEN) {
            bench_say("the load broke off: %s", code < 0 ? strerror(-code) : e.text);
            return BENCH_FAILED;
        }
        on_event(r, &e);
    }
    r->l->seconds = (double)(bench_now_ns() - r->begin_ns) / 1e9;
    return BENCH_OK;
}

int bench_load_run(const struct bench_options *o, struct llm42_io *io, struct bench_load *l) {
    struct run *r = calloc(1, sizeof(*r));
    uint32_t n_longest = 0;
    int code = BENCH_FAILED;

    for (uint32_t i = 0; i < l->n; i++)
        if (l->requests[i].n_prompt > n_longest) n_longest = l->requests[i].n_prompt;
    if (r) {
        *r = (struct run){.o = o, .io = io, .l = l, .texts = {o->seed * 4}};
        r->prompt = malloc((size_t)n_longest * 4);
    }
    if (r && r->prompt) code = bench_client_ids(io, r->ids, &r->n_ids);
    if (code == BENCH_OK) code = run(r);
    if (r) free(r->prompt);
    free(r);
    return code;
}

/* ---- What came of it ---- */

enum { PLAIN, DETERMINISTIC, POOLED, N_CLASSES };

static bool of_class(const struct bench_load_request *q, int class) {
    return class == POOLED || q->deterministic == (class == DETERMINISTIC);
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

static void report_class(const struct bench_options *o, struct bench_load *l, int class,
                         double *ms) {
    static const char *const names[N_CLASSES] = {"plain", "deterministic", "pooled"};
    size_t n = 0;

    for (uint32_t i = 0; i < l->n; i++)
        if (of_class(&l->requests[i], class) && l->requests[i].n_seen > 0)
            ms[n++] = (double)(l->requests[i].first_ns - l->requests[i].due_ns) / 1e6;
    quantiles(&o->report, "serve.first_token", names[class], "time to first token", ms, n);

    n = 0;
    for (int c = PLAIN; c <= DETERMINISTIC; c++) {
        if (class != POOLED && c != class) continue;
        if (l->n_gaps[c] > 0) memcpy(ms + n, l->gaps_ms[c], l->n_gaps[c] * sizeof(*ms));
        n += l->n_gaps[c];
    }
    quantiles(&o->report, "serve.gap", names[class], "gap between commits", ms, n);

    n = 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (of_class(&l->requests[i], class) && l->requests[i].state == BENCH_DONE)
            ms[n++] = (double)(l->requests[i].done_ns - l->requests[i].due_ns) / 1e6;
    quantiles(&o->report, "serve.end", names[class], "end to end", ms, n);
}

void bench_load_report(const struct bench_options *o, struct bench_load *l) {
    const struct bench_report *r = &o->report;
    const struct bench_target none = {0};
    uint64_t n_prompt = 0, n_output = 0, rollbacks = 0, recomputed = 0, certified = 0;
    uint32_t n_done = 0, n_refused = 0, n_deterministic = 0;
    double *ms = calloc(2 * l->n_gaps_max + l->n, sizeof(*ms));

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
    for (int class = PLAIN; class < N_CLASSES; class ++)
        if (class != POOLED || (n_deterministic > 0 && n_deterministic < l->n))
            report_class(o, l, class, ms);
    free(ms);
}
