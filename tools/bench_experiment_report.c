/* One page of all that experiments left in a folder: tables, and pictures where gnuplot is. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/err.h"
#include "tools/bench_experiment_group.h"
#include "tools/bench_experiment_page.h"
#include "tools/bench_experiment_plot.h"
#include "tools/bench_lab_experiment.h"
#include "tools/bench_plot.h"

/* ---- What the paper has ---- */

/* Throughput over the non-deterministic one, window 64 in groups of 8, by deterministic share. */
static const struct published {
    const char *workload;
    double all; /* of its global deterministic mode */
    double ratios[6];
} published[] = {
    {"arxiv", .698, {1.000, .995, .989, .976, .916, .841}},
    {"sharegpt", .641, {.965, .901, .851, .783, .688, .576}},
    {"fixed:512/256", .645, {.987, .973, .954, .921, .832, .716}},
    {"fixed:1024/256", .718, {.990, .983, .970, .948, .890, .807}},
    {"fixed:1024/512", .728, {.990, .982, .967, .938, .864, .761}},
    {"fixed:2048/256", .661, {.996, .990, .981, .966, .920, .844}},
    {"fixed:2048/512", .760, {.995, .990, .983, .967, .925, .863}},
    {"fixed:4096/512", .738, {.991, .986, .984, .972, .944, .855}},
};
static const double published_shares[6] = {2, 5, 10, 20, 50, 100};

static double published_all(const char *workload) {
    for (size_t i = 0; i < sizeof(published) / sizeof(published[0]); i++)
        if (strcmp(published[i].workload, workload) == 0) return published[i].all;
    return 0;
}

double bench_published(const char *workload, double share) {
    for (size_t i = 0; i < sizeof(published) / sizeof(published[0]); i++)
        for (int k = 0; k < 6; k++)
            if (strcmp(published[i].workload, workload) == 0 && published_shares[k] == share)
                return published[i].ratios[k];
    return 0;
}

/* ---- Which tables a page has ---- */

enum { COLUMNS_MAX = 12 };

static const struct section {
    enum bench_experiment of;
    const char *title;
    const char *ratio; /* column that is held against nondet and canonical, or NULL */
    bool paper;        /* with what the paper has for that ratio */
    bool best;         /* against the best cell of its system and rate */
    const char *columns[COLUMNS_MAX];
    const char *published; /* by the paper, in words */
} sections[] = {
    {.of = BENCH_JOIN,
     .title = "One deterministic request joins: throughput",
     .ratio = "output_tok_s",
     .columns = {"output_tok_s", "total_tok_s", "seconds", "rollbacks"},
     .published = "512/256, the last of 11 deterministic: .973 of nondet, .44 where all are; "
                  "512/512, the last of 9: .976 and .67."},
    {.of = BENCH_JOIN,
     .title = "One deterministic request joins: the others",
     .ratio = "e2e_ms_unflagged_p50",
     .columns = {"e2e_ms_unflagged_p50", "e2e_ms_unflagged_p99", "gap_ms_unflagged_p50",
                 "e2e_ms_flagged_p50"}},
    {.of = BENCH_SPANS,
     .title = "Spans that are the same beside others",
     .columns = {"same_pct", "diverged_32_pct", "diverged_64_pct", "diverged_128_pct",
                 "diverged_256_pct", "flips_per_1000"},
     .published =
         "Batching alone, 512 tokens, 6 requests a second: 20 % the same; diverged by 32, 64, 128, "
         "256 tokens: 11, 22, 34, 58 %; the second span is 1 or 2 tokens for 85 to 90 %."},
    {.of = BENCH_WINDOW,
     .title = "Rollbacks by window",
     .columns = {"recomputed_pct", "no_rollback_pct", "half_recomputed_pct", "windows", "rollbacks",
                 "recomputed", "certified", "e2e_ms_pooled_p99"},
     .published = "Recomputed at windows of 16, 32, 64, 128, 256: 3.4, 6.8, 12.4, 24.9, 46.4 % at "
                  "12 requests a second; 3.9, 8.2, 16.6, 30.8, 59.6 % at 8."},
    {.of = BENCH_ABLATION,
     .title = "Window and group",
     .ratio = "total_tok_s",
     .best = true,
     .columns = {"total_tok_s", "e2e_ms_pooled_p50", "e2e_ms_pooled_p99", "recomputed_pct"},
     .published = "End to end P99 at 12 requests a second: best 34.2 s at 32 x 8 and 34.3 s at 16 "
                  "x 16; 46.2 s at 64 x 8."},
    {.of = BENCH_OFFLINE,
     .title = "Offline throughput, tail included",
     .ratio = "total_tok_s",
     .paper = true,
     .columns = {"total_tok_s", "output_tok_s", "seconds"},
     .published =
         "Last column: window 64 in groups of 8; beside canonical its global deterministic mode."},
    {.of = BENCH_OFFLINE,
     .title = "Offline: windows, rollbacks, recomputed",
     .columns = {"windows", "rollbacks", "recomputed", "recomputed_pct", "no_rollback_pct",
                 "certified"}},
    {.of = BENCH_ONLINE,
     .title = "Online: end to end",
     .ratio = "e2e_ms_pooled_p50",
     .columns = {"e2e_ms_pooled_p50", "e2e_ms_pooled_p90", "e2e_ms_pooled_p99",
                 "e2e_ms_flagged_p50", "e2e_ms_flagged_p90", "e2e_ms_flagged_p99",
                 "e2e_ms_unflagged_p50", "e2e_ms_unflagged_p90", "e2e_ms_unflagged_p99"},
     .published = "P50 at 100 % over nondet: chats at 12, 14, 16, 18 a second 3.64, 3.58, 3.53, "
                  "3.74; papers at 1.0, 1.2, 1.4, 1.6 a second 1.21, 1.25, 1.32, 1.54."},
    {.of = BENCH_ONLINE,
     .title = "Online: time to first token",
     .ratio = "ttft_ms_pooled_p50",
     .columns = {"ttft_ms_pooled_p50", "ttft_ms_pooled_p90", "ttft_ms_pooled_p99",
                 "ttft_ms_flagged_p50", "ttft_ms_flagged_p90", "ttft_ms_flagged_p99",
                 "ttft_ms_unflagged_p50", "ttft_ms_unflagged_p90", "ttft_ms_unflagged_p99"},
     .published = "P50 at 100 % over nondet: chats at 12, 14, 16, 18 a second 1.70, 1.74, 1.76, "
                  "1.88; papers .99, .99, .98, 1.02."},
    {.of = BENCH_ONLINE,
     .title = "Online: gap between commits, throughput, rollbacks",
     .ratio = "total_tok_s",
     .columns = {"total_tok_s", "goodput_s", "gap_ms_flagged_p50", "gap_ms_flagged_p99",
                 "gap_ms_unflagged_p50", "gap_ms_unflagged_p99", "rollbacks", "recomputed_pct"}},
};

/* ---- HTML ---- */

static void write_text(FILE *f, const char *text) {
    for (; *text; text++) {
        if (*text == '&')
            fputs("&amp;", f);
        else if (*text == '<')
            fputs("&lt;", f);
        else if (*text == '>')
            fputs("&gt;", f);
        else if (*text == '"')
            fputs("&quot;", f);
        else
            fputc(*text, f);
    }
}

static void write_cell(FILE *f, const char *tag, const char *text) {
    fprintf(f, "<%s>", tag);
    write_text(f, text);
    fprintf(f, "</%s>", tag);
}

static void write_spread(FILE *f, struct bench_spread s) {
    if (s.n == 0)
        fputs("<td/>", f);
    else if (s.min == s.max)
        fprintf(f, "<td>%.5g</td>", s.median);
    else
        fprintf(f, "<td>%.5g <small>%.5g to %.5g</small></td>", s.median, s.min, s.max);
}

static void write_ratio(FILE *f, bool there, double ratio) {
    if (there)
        fprintf(f, "<td>%.3f</td>", ratio);
    else
        fputs("<td/>", f);
}

static void write_head(FILE *f, const struct section *s) {
    static const char *const keys[] = {"workload",          "system", "deterministic %",
                                       "arrivals a second", "W x G",  "forced ppm",
                                       "requests",          "repeats"};

    fputs("<table>\n<tr>", f);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) write_cell(f, "th", keys[i]);
    for (int i = 0; i < COLUMNS_MAX && s->columns[i]; i++) write_cell(f, "th", s->columns[i]);
    if (s->ratio) {
        fputs("<th>", f);
        write_text(f, s->ratio);
        fputs(" of nondet</th><th>of canonical</th>", f);
    }
    if (s->best) fputs("<th>of the best cell</th>", f);
    if (s->paper) fputs("<th>of nondet, in the paper</th>", f);
    fputs("</tr>\n", f);
}

static void write_keys(FILE *f, const struct bench_groups *g, uint32_t i) {
    const char *window = bench_group_key(g, i, BENCH_KEY_WINDOW);
    const char *arrivals = bench_group_key(g, i, BENCH_KEY_ARRIVALS);
    char text[64];

    write_cell(f, "td", bench_group_key(g, i, BENCH_KEY_WORKLOAD));
    write_cell(f, "td", bench_group_key(g, i, BENCH_KEY_SYSTEM));
    write_cell(f, "td", bench_group_key(g, i, BENCH_KEY_SHARE));
    snprintf(text, sizeof(text), "%s%s%s", strcmp(arrivals, "at-once") == 0 ? "at once" : arrivals,
             strcmp(arrivals, "at-once") == 0 ? "" : " ",
             strcmp(arrivals, "at-once") == 0 ? "" : bench_group_key(g, i, BENCH_KEY_RATE));
    write_cell(f, "td", text);
    snprintf(text, sizeof(text), "%s x %s", window, bench_group_key(g, i, BENCH_KEY_GROUP));
    write_cell(f, "td", strcmp(window, "0") == 0 ? "" : text);
    write_cell(f, "td", bench_group_key(g, i, BENCH_KEY_MISMATCH));
    write_cell(f, "td", bench_group_key(g, i, BENCH_KEY_REQUESTS));
    snprintf(text, sizeof(text), "%u", bench_group_spread(g, i, "seconds").n);
    write_cell(f, "td", text);
}

/* The best median of the column under the same workload, system and arrivals. */
static double best(const struct bench_groups *g, uint32_t group, const char *column) {
    static const enum bench_key keys[] = {BENCH_KEY_WORKLOAD, BENCH_KEY_SYSTEM, BENCH_KEY_ARRIVALS,
                                          BENCH_KEY_RATE};
    double most = 0;

    for (uint32_t i = 0; i < g->n; i++) {
        const double value = bench_group_spread(g, i, column).median;
        size_t k = 0;

        while (k < 4 &&
               strcmp(bench_group_key(g, i, keys[k]), bench_group_key(g, group, keys[k])) == 0)
            k++;
        if (k == 4 && value > most) most = value;
    }
    return most;
}

static void write_ratios(FILE *f, const struct bench_groups *g, uint32_t i,
                         const struct section *s) {
    const double share = strtod(bench_group_key(g, i, BENCH_KEY_SHARE), NULL);
    const char *workload = bench_group_key(g, i, BENCH_KEY_WORKLOAD);
    const bool all = strcmp(bench_group_key(g, i, BENCH_KEY_SYSTEM), "canonical") == 0;
    const double paper = all ? published_all(workload) : bench_published(workload, share);
    double ratio = 0, most;
    bool there;

    if (s->ratio) {
        there = bench_group_ratio(g, i, "nondet", s->ratio, &ratio);
        write_ratio(f, there, ratio);
        there = bench_group_ratio(g, i, "canonical", s->ratio, &ratio);
        write_ratio(f, there, ratio);
    }
    if (s->best) {
        most = best(g, i, s->ratio);
        write_ratio(f, most > 0, bench_group_spread(g, i, s->ratio).median / (most > 0 ? most : 1));
    }
    if (s->paper) write_ratio(f, paper > 0, paper);
}

static void write_section(FILE *f, const struct bench_groups *g, const struct section *s) {
    write_cell(f, "h3", s->title);
    fputc('\n', f);
    write_head(f, s);
    for (uint32_t i = 0; i < g->n; i++) {
        fputs("<tr>", f);
        write_keys(f, g, i);
        for (int c = 0; c < COLUMNS_MAX && s->columns[c]; c++)
            write_spread(f, bench_group_spread(g, i, s->columns[c]));
        write_ratios(f, g, i, s);
        fputs("</tr>\n", f);
    }
    fputs("</table>\n", f);
    if (!s->published) return;
    fputs("<p>The paper: ", f);
    write_text(f, s->published);
    fputs("</p>\n", f);
}

static void write_conditions(FILE *f, const struct bench_table *t) {
    uint32_t n_void = 0;

    fputs("<pre>", f);
    for (uint32_t i = 0; i < t->n_notes; i++) {
        n_void += strncmp(t->notes[i], "# void: ", 8) == 0;
        write_text(f, t->notes[i]);
        fputc('\n', f);
    }
    fputs("</pre>\n", f);
    if (n_void > 0)
        fprintf(f, "<p class=\"void\">%u runs were void: see the lines above.</p>\n", n_void);
}

/* ---- Experiments in this process: all columns as they are, and curves ---- */

static const struct lab_picture {
    const char *of, *x, *y, *series;
    const char *split; /* a picture for each value of this column, or NULL */
    const char *title;
} lab_pictures[] = {
    {"gemm", "rows", "stage_us", "schedules", "op", "microseconds of a product"},
    {"norm", "rows", "stage_us", "schedules", "op", "microseconds of a norm and qkv"},
    {"verify-cost", "rows", "pass_us_token", "context", NULL, "a pass alone, us a token"},
    {"verify-cost", "rows", "beside_us_token", "context", NULL, "beside what decodes, us a token"},
};

static int lab_picture(FILE *f, const char *folder, const struct bench_table *t,
                       const struct lab_picture *p, const char *value, uint32_t number) {
    const int x = bench_table_column(t, p->x), y = bench_table_column(t, p->y);
    const int series = bench_table_column(t, p->series);
    const int split = value ? bench_table_column(t, p->split) : -1;
    struct bench_picture picture = {
        .kind = BENCH_CURVES, .x = p->x, .y = p->y, .log_x = true, .log_y = true};
    char name[64], path[4096];
    int r;

    if (x < 0 || y < 0 || series < 0) return BENCH_OK;
    snprintf(picture.title, sizeof(picture.title), "%s: %s", value ? value : p->of, p->title);
    for (uint32_t i = 0; i < t->n_rows; i++) {
        const double at = strtod(t->cells[i][y], NULL);

        if (at > 0 && (split < 0 || strcmp(t->cells[i][split], value) == 0))
            bench_picture_add(&picture, t->cells[i][series], strtod(t->cells[i][x], NULL), at, 0);
    }
    snprintf(name, sizeof(name), "%s-%u.svg", p->of, number);
    snprintf(path, sizeof(path), "%.4000s/%s", folder, name);
    if (picture.n == 0) return BENCH_OK;
    r = bench_picture_draw(&picture, path);
    if (r == BENCH_OK) fprintf(f, "<p><img src=\"%s\" alt=\"%s\"/></p>\n", name, name);
    return r;
}

static int lab_curves(FILE *f, const char *folder, const char *name, const struct bench_table *t) {
    uint32_t number = 0;
    int r = BENCH_OK;

    for (size_t p = 0; p < sizeof(lab_pictures) / sizeof(lab_pictures[0]); p++) {
        const struct lab_picture *picture = &lab_pictures[p];
        const int split = picture->split ? bench_table_column(t, picture->split) : -1;

        if (strcmp(picture->of, name) != 0) continue;
        for (uint32_t i = 0; r == BENCH_OK && i < (split < 0 ? 1 : t->n_rows); i++) {
            const char *value = split < 0 ? NULL : t->cells[i][split];
            uint32_t first = 0;

            while (value && strcmp(t->cells[first][split], value) != 0) first++;
            if (value && first < i) continue;
            r = lab_picture(f, folder, t, picture, value, ++number);
        }
    }
    return r;
}

static int write_lab(FILE *f, const char *folder, const char *name, bool pictures) {
    struct bench_table t;
    char path[4096];
    int r;

    snprintf(path, sizeof(path), "%.4000s/%s.csv", folder, name);
    r = bench_table_read(path, &t);
    if (r != BENCH_OK) return r;
    if (t.n_rows > 0) {
        write_cell(f, "h2", name);
        fputc('\n', f);
        write_conditions(f, &t);
        fputs("<table>\n<tr>", f);
        for (uint32_t c = 0; c < t.n_columns; c++) write_cell(f, "th", t.names[c]);
        fputs("</tr>\n", f);
        for (uint32_t i = 0; i < t.n_rows; i++) {
            fputs("<tr>", f);
            for (uint32_t c = 0; c < t.n_columns; c++) write_cell(f, "td", t.cells[i][c]);
            fputs("</tr>\n", f);
        }
        fputs("</table>\n", f);
        if (pictures) r = lab_curves(f, folder, name, &t);
    }
    bench_table_close(&t);
    return r;
}

/* ---- The page ---- */

static int write_experiment(FILE *f, const char *folder, enum bench_experiment e, bool pictures) {
    struct bench_groups g = {.n = 0};
    struct bench_table t;
    char path[4096];
    int r;

    snprintf(path, sizeof(path), "%.4000s/%s.csv", folder, bench_experiment_names[e]);
    r = bench_table_read(path, &t);
    if (r != BENCH_OK) return r;
    if (t.n_rows == 0) goto out;
    r = bench_groups_open(&t, &g);
    if (r != BENCH_OK) {
        bench_say("%s: no rows of an experiment", path);
        goto out;
    }
    write_cell(f, "h2", bench_experiment_names[e]);
    fputc('\n', f);
    write_conditions(f, &t);
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++)
        if (sections[i].of == e) write_section(f, &g, &sections[i]);
    if (pictures) r = bench_page_pictures(f, folder, e, &g);
out:
    bench_groups_close(&g);
    bench_table_close(&t);
    return r;
}

static int write_page(FILE *f, const char *folder) {
    struct err e = {""};
    const bool pictures = bench_plot_check("index.svg", &e) == 0;
    int r = BENCH_OK;

    fputs("<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>"
          "<meta charset=\"utf-8\"/><title>llm42d: experiments</title>\n<style>"
          "body { font: 15px sans-serif; margin: 2em } table { border-collapse: collapse }"
          "td, th { border: 1px solid #bbb; padding: .2em .5em; text-align: right }"
          "small { color: #666 } pre { background: #f4f4f4; padding: .7em; overflow: auto }"
          ".void { color: #b00 }</style></head>\n<body>\n<h1>llm42d: experiments</h1>\n"
          "<p>A figure is the median of its repeats, beside it the smallest and the largest. "
          "Every run is held against digests of policy canonical; a void run has no row. "
          "fixed: every request has this length; upto: uniform from 1 to it. The paper's figures "
          "are its authors' own, of another GPU and model.</p>\n",
          f);
    if (!pictures) fputs("<p>gnuplot is not there: no pictures.</p>\n", f);
    for (enum bench_experiment x = 0; r == BENCH_OK && x < BENCH_EXPERIMENTS; x++)
        r = write_experiment(f, folder, x, pictures);
    for (int i = 0; r == BENCH_OK && i < BENCH_LABS; i++)
        r = write_lab(f, folder, bench_lab_names[i], pictures);
    fputs("</body>\n</html>\n", f);
    return r;
}

static bool is_there(const char *folder, const char *name) {
    char path[4096];

    snprintf(path, sizeof(path), "%.4000s/%s.csv", folder, name);
    return access(path, F_OK) == 0;
}

/* Whether there is anything to make a page of. */
static int check_folder(const char *folder) {
    struct stat st;
    bool any = false;

    if (stat(folder, &st) < 0 || !S_ISDIR(st.st_mode)) {
        bench_say("no folder %s", folder);
        return BENCH_USAGE;
    }
    for (int i = 0; i < BENCH_EXPERIMENTS; i++)
        any = any || is_there(folder, bench_experiment_names[i]);
    for (int i = 0; i < BENCH_LABS; i++) any = any || is_there(folder, bench_lab_names[i]);
    if (any) return BENCH_OK;
    bench_say("nothing in %s: no experiment left its table there", folder);
    return BENCH_USAGE;
}

int bench_experiment_report(const struct bench_options *o) {
    char path[4096], whole[4096];
    FILE *f;
    int r;

    if (!o->operand) {
        bench_say("report: of which folder? See llm42-bench --help");
        return BENCH_USAGE;
    }
    bench_daemon_signals(); /* a pipe that closes is an error, not an end */
    r = check_folder(o->operand);
    if (r != BENCH_OK) return r;
    snprintf(path, sizeof(path), "%.4000s/index.html.new", o->operand);
    snprintf(whole, sizeof(whole), "%.4000s/index.html", o->operand);
    f = fopen(path, "we");
    if (!f) {
        bench_say("%s: %s", path, strerror(errno));
        return BENCH_FAILED;
    }
    r = write_page(f, o->operand);
    if (ferror(f)) r = BENCH_FAILED;
    if (fclose(f) != 0) r = BENCH_FAILED;
    if (r == BENCH_OK && rename(path, whole) < 0) r = BENCH_FAILED;
    if (r != BENCH_OK)
        bench_say("%s: not written", whole);
    else
        bench_report_note(&o->report, "%s", whole);
    return r;
}
