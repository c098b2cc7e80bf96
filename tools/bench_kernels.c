/* llm42-bench kernels: every family of kernels of the GPU at the shapes of a model, beside a peer
 * and beside what bounds it. */
#ifndef LLM42_CUDA

#include "tools/bench_verbs.h"

int bench_kernels(const struct bench_options *o) {
    (void)o;
    bench_say("kernels: built without CUDA: no toolkit was there");
    return BENCH_FAILED;
}

#else

#include "tools/bench_kernels.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/err.h"
#include "tools/bench_bound.h"
#include "tools/bench_peer.h"

enum { ROUNDS = 3, TEXT_BYTES = 96, N_COLUMNS = 6, PAUSE_MS = 6 };

static const struct family {
    const char *name;
    void (*run)(struct bench_kernels *k);
} families[] = {
    {"gemm", bench_kernels_gemm}, {"attention", bench_kernels_attn}, {"norm", bench_kernels_norm}};

enum { N_FAMILIES = sizeof(families) / sizeof(families[0]) };

void *bench_kernels_host(size_t n_bytes) {
    void *p = malloc(n_bytes);

    if (p) return p;
    bench_say("no memory for %zu bytes", n_bytes);
    exit(BENCH_FAILED);
}

bool bench_kernels_same(struct bench_kernels *k, const char *what, const void *got,
                        const void *want, size_t n_bytes) {
    const unsigned char *a = got, *b = want;
    size_t i = 0;

    while (i < n_bytes && a[i] == b[i]) i++;
    if (i == n_bytes) return true;
    bench_say("%s: wrong bits, first in byte %zu of %zu: it is not timed", what, i, n_bytes);
    k->n_wrong++;
    return false;
}

/* In turn; a graph that is not there, or a peer, has no time. */
static void race(struct bench_kernels *k, const struct bench_graph *graphs[2], const char *request,
                 double pause_ms, double out_us[3]) {
    char paused[BENCH_REQUEST_BYTES + 32];
    double us[3][ROUNDS];
    bool asked = k->peer && request;

    if (asked && pause_ms > 0) {
        snprintf(paused, sizeof(paused), "pause %g %s", pause_ms, request);
        request = paused;
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 2; i++)
            us[i][round] =
                graphs[i]->exec ? bench_gpu_time(&k->gpu, graphs[i], pause_ms) : BENCH_NO_CELL;
        us[2][round] = asked ? bench_peer_us(k->report, k->peer, request) : BENCH_NO_CELL;
        if (us[2][round] < 0) asked = false;
    }
    for (int i = 0; i < 3; i++) out_us[i] = bench_quantile(us[i], ROUNDS, 0.5);
    if (!asked) out_us[2] = BENCH_NO_CELL;
}

void bench_kernels_pair(struct bench_kernels *k, const struct bench_graph *a,
                        const struct bench_graph *b, double pause_ms, double *out_a,
                        double *out_b) {
    const struct bench_graph *graphs[] = {a, b};
    double us[3];

    race(k, graphs, NULL, pause_ms, us);
    *out_a = us[0];
    *out_b = us[1];
}

double bench_kernels_pause(const struct bench_kernels *k, uint32_t n_rows) {
    if (k->o->pause_ms >= 0) return k->o->pause_ms;
    return n_rows <= BENCH_PAUSED_ROWS_MAX ? PAUSE_MS : 0;
}

static const struct bench_column columns[N_COLUMNS] = {
    {"canonical", "kernels.canonical", "us", {0, false}},
    {"tuned", "kernels.tuned", "us", {0, false}},
    {"peer", "kernels.peer", "us", {0, false}},
    {"bound", "kernels.bound", "us", {0, false}},
    {"of peer", "kernels.of_peer", "peer's time over ours", {0, false}},
    {"of bound", "kernels.of_bound", "bound over our time", {0, false}},
};

void bench_kernels_section(const struct bench_kernels *k, const char *title) {
    bench_report_section(k->report, "%s", title);
    bench_report_columns(k->report, columns, N_COLUMNS);
}

double bench_kernels_line(struct bench_kernels *k, struct bench_line *line, const char *fmt, ...) {
    const struct bench_graph *graphs[] = {&line->graph, &line->tuned};
    const double read_us = line->bytes / BENCH_BOUND_READ, flop_us = line->flop / BENCH_BOUND_FLOP;
    struct bench_column row[N_COLUMNS];
    double us[3], bound = read_us > flop_us ? read_us : flop_us;
    char of[TEXT_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(of, sizeof(of), fmt, args);
    va_end(args);
    race(k, graphs, line->request, line->pause_ms, us);
    if (line->same) us[1] = us[0];
    const double cells[N_COLUMNS] = {
        us[0],
        us[1],
        us[2],
        bound,
        us[0] > 0 && us[2] > 0 ? us[2] / us[0] : BENCH_NO_CELL,
        us[0] > 0 ? bound / us[0] : BENCH_NO_CELL,
    };

    memcpy(row, columns, sizeof(row));
    row[4].target.value = line->of_peer;
    row[5].target.value = line->of_bound;
    bench_report_row(k->report, row, N_COLUMNS, cells, "%s", of);
    bench_plot_add(&k->plot, line->family, line->flop, line->bytes, us[0]);
    bench_gpu_drop(&k->gpu, &line->graph);
    bench_gpu_drop(&k->gpu, &line->tuned);
    return us[0];
}

static bool wanted(const char *only, const char *name) {
    const size_t n = strlen(name);

    for (const char *at = only; at; at = strchr(at, ',')) {
        if (*at == ',') at++;
        if (strncmp(at, name, n) == 0 && (at[n] == ',' || at[n] == '\0')) return true;
    }
    return !only;
}

static int check_only(const char *only) {
    char list[TEXT_BYTES], *rest = list, *name;

    if (!only) return BENCH_OK;
    snprintf(list, sizeof(list), "%s", only);
    while ((name = strsep(&rest, ","))) {
        bool found = false;

        for (int i = 0; i < N_FAMILIES; i++) found |= strcmp(name, families[i].name) == 0;
        if (found) continue;
        bench_say("--only %s: no family; there are gemm, attention and norm", name);
        return BENCH_USAGE;
    }
    return BENCH_OK;
}

static int draw(struct bench_kernels *k) {
    char title[TEXT_BYTES];
    struct err e = {""};

    if (!k->o->plot) return BENCH_OK;
    snprintf(title, sizeof(title), "%s on %.40s, canonical schedule", k->model.name,
             k->gpu.driver->name);
    bench_gpu_must(
        bench_plot_write(&k->plot, k->o->plot, title, BENCH_BOUND_READ, BENCH_BOUND_FLOP, &e), &e);
    bench_report_note(k->report, "roofline: %s", k->o->plot);
    return BENCH_OK;
}

static int start(struct bench_kernels *k, struct err *e) {
    int r = bench_geometry(k->o->geometry, &k->model, e);

    if (r == 0 && k->o->plot) r = bench_plot_check(k->o->plot, e);
    return r < 0 ? r : bench_gpu_open(k->o->cache, &k->gpu, e);
}

int bench_kernels(const struct bench_options *o) {
    struct bench_kernels *k = calloc(1, sizeof(*k));
    const struct cuda_driver *d;
    struct err e = {""};
    int r = k ? check_only(o->only) : BENCH_FAILED;

    if (r != BENCH_OK) goto out;
    k->o = o;
    k->report = &o->report;
    r = BENCH_FAILED;
    if (start(k, &e) < 0) {
        bench_say("kernels: %s", e.text);
        goto out;
    }
    d = k->gpu.driver;
    bench_report_note(k->report, "%s, driver API %d.%d, %u units; clocks as found", d->name,
                      d->version / 1000, d->version % 1000 / 10, d->n_units);
    bench_report_note(k->report,
                      "bound: the larger of bytes at %.2f TB/s and operations at %.0f TFLOP/s",
                      BENCH_BOUND_READ / 1e6, BENCH_BOUND_FLOP / 1e6);
    k->peer = bench_peer_for(k->o);
    for (int i = 0; i < N_FAMILIES; i++) {
        if (!wanted(o->only, families[i].name)) continue;
        families[i].run(k);
        bench_gpu_release(&k->gpu, 0);
    }
    bench_peer_close(k->peer);
    r = draw(k);
    if (k->n_wrong) r = BENCH_FAILED;
    bench_gpu_close(&k->gpu);
out:
    free(k);
    return r;
}

#endif
