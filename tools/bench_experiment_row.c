/* What one run shows, as cells. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_experiment.h"

void bench_row_text(struct bench_row *row, const char *name, const char *fmt, ...) {
    va_list args;

    row->n_names += (size_t)snprintf(row->names + row->n_names, sizeof(row->names) - row->n_names,
                                     "%s%s", row->n_names ? "," : "", name);
    if (row->n_values)
        row->n_values +=
            (size_t)snprintf(row->values + row->n_values, sizeof(row->values) - row->n_values, ",");
    va_start(args, fmt);
    row->n_values += (size_t)vsnprintf(row->values + row->n_values,
                                       sizeof(row->values) - row->n_values, fmt, args);
    va_end(args);
    if (row->n_names >= sizeof(row->names) || row->n_values >= sizeof(row->values)) abort();
}

void bench_row_number(struct bench_row *row, const char *name, double value) {
    bench_row_text(row, name, "%.6g", value);
}

void bench_row_quantiles(struct bench_row *row, const char *name, double *values, size_t n) {
    static const struct {
        const char *name;
        double part;
    } parts[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}};
    char whole[64];

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        snprintf(whole, sizeof(whole), "%s_%s", name, parts[i].name);
        if (n > 0)
            bench_row_number(row, whole, bench_quantile(values, n, parts[i].part));
        else
            bench_row_text(row, whole, "%s", "");
    }
}

void bench_row_distribution(struct bench_row *row, const char *name, double *values, size_t n) {
    char cell[BENCH_CUT_POINTS * 16];
    size_t at = 0;

    cell[0] = '\0';
    for (int i = 0; n > 0 && i < BENCH_CUT_POINTS; i++) {
        const double part = i / (double)(BENCH_CUT_POINTS - 1);

        at += (size_t)snprintf(cell + at, sizeof(cell) - at, "%s%.5g", i ? ";" : "",
                               bench_quantile(values, n, part));
    }
    bench_row_text(row, name, "%s", cell);
}

/* ---- A load ---- */

struct sums {
    uint64_t n_prompt, n_output, n_flagged_output, verify_passes, rollbacks, recomputed, certified;
    uint32_t n_done, n_flagged, n_flagged_done, n_without, n_half;
};

static struct sums sum(const struct bench_load *l) {
    struct sums s = {0};

    for (uint32_t i = 0; i < l->n; i++) {
        const struct bench_load_request *q = &l->requests[i];

        s.n_flagged += q->deterministic;
        if (q->state != BENCH_DONE) continue;
        s.n_done++;
        s.n_prompt += q->n_prompt;
        s.n_output += q->n_seen;
        s.verify_passes += q->verify_passes;
        s.rollbacks += q->rollbacks;
        s.recomputed += q->recomputed;
        s.certified += q->certified;
        if (!q->deterministic) continue;
        s.n_flagged_done++;
        s.n_flagged_output += q->n_seen;
        s.n_without += q->rollbacks == 0;
        s.n_half += q->recomputed * 2 >= q->n_seen && q->n_seen > 0;
    }
    return s;
}

static void row_share(struct bench_row *row, const char *name, double part, double whole) {
    if (whole > 0)
        bench_row_number(row, name, 100 * part / whole);
    else
        bench_row_text(row, name, "%s", "");
}

static void row_sums(struct bench_row *row, const struct bench_load *l) {
    const struct sums s = sum(l);
    const double seconds = l->seconds;

    bench_row_number(row, "flagged", s.n_flagged);
    bench_row_number(row, "done", s.n_done);
    bench_row_number(row, "cut", l->n_cut);
    bench_row_text(row, "seconds", "%.9g", seconds);
    bench_row_text(row, "prompt_tokens", "%llu", (unsigned long long)s.n_prompt);
    bench_row_text(row, "output_tokens", "%llu", (unsigned long long)s.n_output);
    bench_row_number(row, "output_tok_s", (double)s.n_output / seconds);
    bench_row_number(row, "total_tok_s", (double)(s.n_prompt + s.n_output) / seconds);
    bench_row_text(row, "windows", "%llu", (unsigned long long)s.verify_passes);
    bench_row_text(row, "rollbacks", "%llu", (unsigned long long)s.rollbacks);
    bench_row_text(row, "recomputed", "%llu", (unsigned long long)s.recomputed);
    bench_row_text(row, "certified", "%llu", (unsigned long long)s.certified);
    row_share(row, "recomputed_pct", (double)s.recomputed, (double)s.n_flagged_output);
    row_share(row, "no_rollback_pct", s.n_without, s.n_flagged_done);
    row_share(row, "half_recomputed_pct", s.n_half, s.n_flagged_done);
}

/* Requests a second that ended within the bound. */
static void row_goodput(struct bench_row *row, const struct bench_load *l, const double *ends_ms,
                        size_t n, double bound_ms) {
    uint32_t n_within = 0;

    for (size_t i = 0; i < n; i++) n_within += ends_ms[i] <= bound_ms;
    if (bound_ms > 0)
        bench_row_number(row, "goodput_s", n_within / l->seconds);
    else
        bench_row_text(row, "goodput_s", "%s", "");
}

int bench_row_load(struct bench_row *row, const struct bench_load *l, double bound_ms) {
    static const char *const times[BENCH_TIMES] = {"ttft_ms", "gap_ms", "e2e_ms"};
    static const char *const classes[BENCH_CLASSES] = {"unflagged", "flagged", "pooled"};
    double *values = calloc(bench_load_times_max(l), sizeof(*values));
    char name[64];
    size_t n = 0;

    if (!values) return BENCH_FAILED;
    row_sums(row, l);
    for (enum bench_load_time t = 0; t < BENCH_TIMES; t++)
        for (enum bench_load_class c = 0; c < BENCH_CLASSES; c++) {
            snprintf(name, sizeof(name), "%s_%s", times[t], classes[c]);
            bench_row_quantiles(row, name, values, bench_load_times(l, c, t, values));
        }
    n = bench_load_times(l, BENCH_POOLED, BENCH_END, values);
    row_goodput(row, l, values, n, bound_ms);
    bench_row_distribution(row, "e2e_ms_cdf", values, n);
    n = 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->requests[i].deterministic) values[n++] = l->requests[i].rollbacks;
    bench_row_distribution(row, "rollbacks_cdf", values, n);
    free(values);
    return BENCH_OK;
}

/* ---- Spans ---- */

/* Tokens that are the same from `from` on. */
static uint32_t span(const struct bench_load_request *a, const struct bench_load_request *b,
                     uint32_t from) {
    const uint32_t n = a->n_seen < b->n_seen ? a->n_seen : b->n_seen;
    uint32_t i = from;

    while (i < n && a->out_ids[i] == b->out_ids[i]) i++;
    return i > from ? i - from : 0;
}

int bench_row_spans(struct bench_row *row, const struct bench_load *serial,
                    const struct bench_load *loaded, uint32_t *out_diverged) {
    static const uint32_t marks[] = {32, 64, 128, 256};
    double *first = calloc(loaded->n, sizeof(*first)), *second = calloc(loaded->n, sizeof(*second));
    const struct bench_load_request **alone = calloc(loaded->n, sizeof(*alone)); /* by id */
    uint32_t n_first = 0, n_second = 0, n_by[4] = {0};
    uint64_t n_kept = 0;
    char name[32];
    int r = BENCH_FAILED;

    if (!first || !second || !alone) goto out;
    for (uint32_t i = 0; i < serial->n; i++) alone[serial->requests[i].id] = &serial->requests[i];
    for (uint32_t i = 0; i < loaded->n; i++) {
        const struct bench_load_request *b = &loaded->requests[i], *a = alone[b->id];
        const uint32_t n = span(a, b, 0);

        first[n_first++] = n;
        n_kept += n;
        if (n == a->n_seen && n == b->n_seen) continue;
        for (int k = 0; k < 4; k++) n_by[k] += n < marks[k];
        second[n_second++] = span(a, b, n + 1);
    }
    row_share(row, "same_pct", n_first - n_second, n_first);
    for (int k = 0; k < 4; k++) {
        snprintf(name, sizeof(name), "diverged_%u_pct", marks[k]);
        row_share(row, name, n_by[k], n_first);
    }
    /* Of the tokens computed from equal ones, those that came out otherwise. */
    bench_row_number(row, "flips_per_1000",
                     1000.0 * n_second / (double)(n_kept + n_second > 0 ? n_kept + n_second : 1));
    bench_row_distribution(row, "span1_cdf", first, n_first);
    bench_row_distribution(row, "span2_cdf", second, n_second);
    *out_diverged = n_second;
    r = BENCH_OK;
out:
    free(first);
    free(second);
    free(alone);
    return r;
}
