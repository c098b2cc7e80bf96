#include "tools/bench_experiment_page.h"

#include <stdlib.h>
#include <string.h>

#include "tools/bench_experiment_plot.h"

/* A page under way: its pictures are numbered. */
struct page {
    FILE *f;
    const char *folder;
    enum bench_experiment experiment;
    const struct bench_groups *g;
    uint32_t n;
};

static int draw(struct page *p, struct bench_picture *picture) {
    char name[64], path[4096];
    int r;

    if (picture->n == 0) return BENCH_OK;
    snprintf(name, sizeof(name), "%s-%u.svg", bench_experiment_names[p->experiment], ++p->n);
    snprintf(path, sizeof(path), "%.4000s/%s", p->folder, name);
    r = bench_picture_draw(picture, path);
    if (r == BENCH_OK) fprintf(p->f, "<p><img src=\"%s\" alt=\"%s\"/></p>\n", name, name);
    return r;
}

static const char *key(const struct page *p, uint32_t group, enum bench_key k) {
    return bench_group_key(p->g, group, k);
}

static double number(const struct page *p, uint32_t group, enum bench_key k) {
    return strtod(key(p, group, k), NULL);
}

/* Whether no group before it has the same cells of these keys. */
static bool is_first(const struct page *p, uint32_t group, const enum bench_key *keys, size_t n) {
    for (uint32_t i = 0; i < group; i++) {
        size_t k = 0;

        while (k < n && strcmp(key(p, i, keys[k]), key(p, group, keys[k])) == 0) k++;
        if (k == n) return false;
    }
    return true;
}

static bool is_of(const struct page *p, uint32_t a, uint32_t b, const enum bench_key *keys,
                  size_t n) {
    for (size_t k = 0; k < n; k++)
        if (strcmp(key(p, a, keys[k]), key(p, b, keys[k])) != 0) return false;
    return true;
}

/* "auto 64x8", and the share where curves do not run along it. */
static void series_name(const struct page *p, uint32_t i, bool share, char *out, size_t n) {
    const char *window = key(p, i, BENCH_KEY_WINDOW), *ppm = key(p, i, BENCH_KEY_MISMATCH);
    int at = snprintf(out, n, "%s", key(p, i, BENCH_KEY_SYSTEM));

    if (strcmp(window, "0") != 0)
        at += snprintf(out + at, n - (size_t)at, " %sx%s", window, key(p, i, BENCH_KEY_GROUP));
    if (strcmp(ppm, "0") != 0) at += snprintf(out + at, n - (size_t)at, " %s ppm", ppm);
    if (share) snprintf(out + at, n - (size_t)at, " %s %%", key(p, i, BENCH_KEY_SHARE));
}

/* ---- Offline: throughput over the share ---- */

static void add_published(struct bench_picture *picture, const char *workload) {
    for (int share = 0; share <= 100; share++) {
        const double ratio = bench_published(workload, share);

        if (ratio > 0) bench_picture_add(picture, "the paper's, its GPU", share, ratio, 0);
    }
}

static int offline(struct page *p) {
    static const enum bench_key by[] = {BENCH_KEY_WORKLOAD};
    char series[64];
    double ratio;
    int r = BENCH_OK;

    for (uint32_t w = 0; r == BENCH_OK && w < p->g->n; w++) {
        struct bench_picture picture = {
            .kind = BENCH_CURVES, .x = "deterministic requests, %", .y = "throughput over nondet"};

        if (!is_first(p, w, by, 1)) continue;
        snprintf(picture.title, sizeof(picture.title), "offline, %s",
                 key(p, w, BENCH_KEY_WORKLOAD));
        for (uint32_t i = w; i < p->g->n; i++) {
            if (!is_of(p, i, w, by, 1)) continue;
            if (!bench_group_ratio(p->g, i, "nondet", "total_tok_s", &ratio)) continue;
            series_name(p, i, false, series, sizeof(series));
            bench_picture_add(&picture, series, number(p, i, BENCH_KEY_SHARE), ratio, 0);
        }
        if (picture.n > 0) add_published(&picture, key(p, w, BENCH_KEY_WORKLOAD));
        r = draw(p, &picture);
    }
    return r;
}

/* ---- Online: times over the rate ---- */

static int online_times(struct page *p, uint32_t w, const char *column, const char *what) {
    static const enum bench_key by[] = {BENCH_KEY_WORKLOAD, BENCH_KEY_ARRIVALS};
    struct bench_picture picture = {
        .kind = BENCH_CURVES, .x = "arrivals a second", .y = "ms", .log_y = true};
    char series[64];

    snprintf(picture.title, sizeof(picture.title), "online, %s, %s: %s",
             key(p, w, BENCH_KEY_WORKLOAD), key(p, w, BENCH_KEY_ARRIVALS), what);
    for (uint32_t i = w; i < p->g->n; i++) {
        const struct bench_spread s = bench_group_spread(p->g, i, column);

        if (!is_of(p, i, w, by, 2) || s.n == 0 || s.median <= 0) continue;
        series_name(p, i, true, series, sizeof(series));
        bench_picture_add(&picture, series, number(p, i, BENCH_KEY_RATE), s.median, 0);
    }
    return draw(p, &picture);
}

static int online(struct page *p) {
    static const enum bench_key by[] = {BENCH_KEY_WORKLOAD, BENCH_KEY_ARRIVALS};
    static const struct {
        const char *column, *what;
    } times[] = {{"e2e_ms_pooled_p50", "end to end, P50"},
                 {"e2e_ms_pooled_p99", "end to end, P99"},
                 {"ttft_ms_pooled_p50", "time to first token, P50"},
                 {"ttft_ms_pooled_p90", "time to first token, P90"},
                 {"ttft_ms_pooled_p99", "time to first token, P99"}};
    int r = BENCH_OK;

    for (uint32_t w = 0; r == BENCH_OK && w < p->g->n; w++)
        for (size_t t = 0; r == BENCH_OK && is_first(p, w, by, 2) && t < 5; t++)
            r = online_times(p, w, times[t].column, times[t].what);
    return r;
}

/* ---- Distributions: a cell of cut points is a curve ---- */

static void add_distribution(struct bench_picture *picture, const struct page *p, uint32_t group,
                             const char *column, const char *series) {
    const int c = bench_table_column(p->g->table, column);
    const char *at = c >= 0 ? p->g->table->cells[p->g->first[group]][c] : "";

    for (int i = 0; *at && i < BENCH_CUT_POINTS; i++) {
        char *end;
        const double value = strtod(at, &end);

        bench_picture_add(picture, series, value, i / (double)(BENCH_CUT_POINTS - 1), 0);
        at = *end == ';' ? end + 1 : "";
    }
}

/* A picture for each workload and rate, of the first repeat. */
static int distributions(struct page *p, const char *column, const char *what, const char *x) {
    static const enum bench_key by[] = {BENCH_KEY_WORKLOAD, BENCH_KEY_ARRIVALS, BENCH_KEY_RATE};
    char series[64];
    int r = BENCH_OK;

    for (uint32_t w = 0; r == BENCH_OK && w < p->g->n; w++) {
        struct bench_picture picture = {.kind = BENCH_STEPS, .x = x, .y = "share of requests"};

        if (!is_first(p, w, by, 3)) continue;
        snprintf(picture.title, sizeof(picture.title), "%s, %s, %s %s: %s",
                 bench_experiment_names[p->experiment], key(p, w, BENCH_KEY_WORKLOAD),
                 key(p, w, BENCH_KEY_ARRIVALS), key(p, w, BENCH_KEY_RATE), what);
        for (uint32_t i = w; i < p->g->n; i++) {
            if (!is_of(p, i, w, by, 3)) continue;
            series_name(p, i, true, series, sizeof(series));
            add_distribution(&picture, p, i, column, series);
        }
        r = draw(p, &picture);
    }
    return r;
}

/* ---- Windows ---- */

static int windows(struct page *p) {
    struct bench_picture picture = {.kind = BENCH_CURVES,
                                    .title = "recomputed tokens by window",
                                    .x = "window",
                                    .y = "% of the output",
                                    .log_x = true};
    char series[64];
    int r;

    for (uint32_t i = 0; i < p->g->n; i++) {
        const struct bench_spread s = bench_group_spread(p->g, i, "recomputed_pct");

        if (s.n == 0 || number(p, i, BENCH_KEY_WINDOW) == 0) continue;
        snprintf(series, sizeof(series), "%.20s %.20s, %.8s a second",
                 key(p, i, BENCH_KEY_WORKLOAD), key(p, i, BENCH_KEY_SYSTEM),
                 key(p, i, BENCH_KEY_RATE));
        bench_picture_add(&picture, series, number(p, i, BENCH_KEY_WINDOW), s.median, 0);
    }
    r = draw(p, &picture);
    return r == BENCH_OK ? distributions(p, "rollbacks_cdf", "rollbacks of a request", "rollbacks")
                         : r;
}

/* A map for each workload, system and rate. */
static int maps(struct page *p, const char *column, const char *what) {
    static const enum bench_key by[] = {BENCH_KEY_WORKLOAD, BENCH_KEY_SYSTEM, BENCH_KEY_ARRIVALS,
                                        BENCH_KEY_RATE};
    int r = BENCH_OK;

    for (uint32_t w = 0; r == BENCH_OK && w < p->g->n; w++) {
        struct bench_picture picture = {.kind = BENCH_HEAT, .x = "window", .y = "group"};

        if (!is_first(p, w, by, 4)) continue;
        snprintf(picture.title, sizeof(picture.title), "%s, %s, %s %s: %s",
                 key(p, w, BENCH_KEY_WORKLOAD), key(p, w, BENCH_KEY_SYSTEM),
                 key(p, w, BENCH_KEY_ARRIVALS), key(p, w, BENCH_KEY_RATE), what);
        for (uint32_t i = w; i < p->g->n; i++) {
            const struct bench_spread s = bench_group_spread(p->g, i, column);

            if (!is_of(p, i, w, by, 4) || s.n == 0 || number(p, i, BENCH_KEY_WINDOW) == 0) continue;
            bench_picture_add(&picture, "", number(p, i, BENCH_KEY_WINDOW),
                              number(p, i, BENCH_KEY_GROUP), s.median);
        }
        r = draw(p, &picture);
    }
    return r;
}

static int ablation(struct page *p) {
    int r = maps(p, "e2e_ms_pooled_p99", "end to end, P99, ms");

    if (r == BENCH_OK) r = maps(p, "total_tok_s", "tokens a second");
    return r == BENCH_OK ? maps(p, "recomputed_pct", "recomputed, % of the output") : r;
}

/* ---- One joins: a bar a system would do; a curve over the requests shows both steps ---- */

static int join(struct page *p) {
    static const enum bench_key by[] = {BENCH_KEY_WORKLOAD};
    char series[64];
    int r = BENCH_OK;

    for (uint32_t w = 0; r == BENCH_OK && w < p->g->n; w++) {
        struct bench_picture picture = {
            .kind = BENCH_CURVES, .x = "requests", .y = "output tokens a second"};

        if (!is_first(p, w, by, 1)) continue;
        snprintf(picture.title, sizeof(picture.title), "one deterministic request joins, %s",
                 key(p, w, BENCH_KEY_WORKLOAD));
        for (uint32_t i = w; i < p->g->n; i++) {
            const struct bench_spread s = bench_group_spread(p->g, i, "output_tok_s");

            if (!is_of(p, i, w, by, 1) || s.n == 0) continue;
            series_name(p, i, false, series, sizeof(series));
            bench_picture_add(&picture, series, number(p, i, BENCH_KEY_REQUESTS), s.median, 0);
        }
        r = draw(p, &picture);
    }
    return r;
}

int bench_page_pictures(FILE *f, const char *folder, enum bench_experiment e,
                        const struct bench_groups *g) {
    struct page p = {.f = f, .folder = folder, .experiment = e, .g = g};
    int r;

    switch (e) {
    case BENCH_JOIN:
        return join(&p);
    case BENCH_SPANS:
        r = distributions(&p, "span1_cdf", "first span", "tokens that are the same");
        return r == BENCH_OK ? distributions(&p, "span2_cdf", "second span",
                                             "tokens that are the same after the first other")
                             : r;
    case BENCH_WINDOW:
        return windows(&p);
    case BENCH_ABLATION:
        return ablation(&p);
    case BENCH_OFFLINE:
        return offline(&p);
    default:
        r = online(&p);
        return r == BENCH_OK ? distributions(&p, "e2e_ms_cdf", "end to end", "ms") : r;
    }
}
