/* What it costs to verify: windows of several requests in one pass, alone and beside rows that
 * decode, against decoding. */
#include <stdlib.h>
#include <string.h>

#include "runtime/err.h"
#include "runtime/forward.h"
#include "tools/bench_lab_experiment.h"

enum { RUNS = 7, ROWS_MAX = 1024, BESIDE_GPU = 64, BESIDE_CPU = 4, LIST_MAX = 16 };

/* n_windows sequences with `window` rows each, then n_decode with one, all at the context's end. */
static double step_ms(struct bench_lab *l, uint32_t n_windows, uint32_t window, uint32_t n_decode,
                      uint32_t context) {
    const struct schedule canonical = schedule_canonical();
    const uint32_t n_seqs = n_windows + n_decode;
    uint32_t n_rows = 0;
    double ms[RUNS];
    struct err e = {""};

    for (uint32_t i = 0; i < n_seqs; i++) {
        const uint32_t rows = i < n_windows ? window : 1;

        for (uint32_t p = 0; p < l->n_seq_pages; p++)
            l->pages[i * l->n_seq_pages + p] = (p * n_seqs + i) % l->n_pages;
        for (uint32_t k = 0; k < rows; k++, n_rows++)
            l->rows[n_rows] =
                (struct device_row){(17 * n_rows + 5) % l->model.vocab, context - rows + k, i};
    }
    for (uint32_t i = 0; i < n_rows; i++)
        l->wants[i] =
            (struct device_want){.row = i, .target = DEVICE_NO_TOKEN, .params = {.top_p = 1}};
    l->batch = (struct device_batch){.n_rows = n_rows,
                                     .rows = l->rows,
                                     .n_seqs = n_seqs,
                                     .pages = l->pages,
                                     .n_wants = n_rows,
                                     .wants = l->wants};
    for (int i = -2; i < RUNS; i++) { /* a graph is recorded at its second use */
        const int64_t begin_ns = bench_now_ns();

        bench_lab_must(forward_run(l->dev, l->model.n_layers, l->n_logit_rows, &l->batch,
                                   &canonical, l->results, l->flagged, &e),
                       &e);
        if (i >= 0) ms[i] = (double)(bench_now_ns() - begin_ns) / 1e6;
    }
    return bench_quantile(ms, RUNS, 0.5);
}

static int line(struct bench_lab_run *run, uint32_t context, uint32_t window, uint32_t group) {
    struct bench_lab *l = &run->lab;
    const uint32_t n_beside = run->is_cuda ? BESIDE_GPU : BESIDE_CPU, n = window * group;
    const double pass = step_ms(l, group, window, 0, context);
    const double decode = step_ms(l, 0, 0, group, context);
    const double others = step_ms(l, 0, 0, n_beside, context);
    const double both = step_ms(l, group, window, n_beside, context);
    struct bench_row *row = bench_lab_take(1, sizeof(*row));
    int code;

    bench_row_text(row, "context,window,group", "%u,%u,%u", context, window, group);
    bench_row_text(row, "rows", "%u", n);
    bench_row_number(row, "pass_ms", pass);
    bench_row_number(row, "pass_us_token", pass * 1e3 / n);
    bench_row_number(row, "decode_ms", decode);
    bench_row_number(row, "pass_of_decode", pass / decode);
    bench_row_text(row, "beside_rows", "%u", n_beside);
    bench_row_number(row, "beside_ms", both);
    bench_row_number(row, "beside_more_ms", both - others);
    bench_row_number(row, "beside_us_token", (both - others) * 1e3 / n);
    code = bench_lab_row(run, row);
    free(row);
    return code;
}

/* The list, or what is usual. */
static uint32_t list(const char *given, const uint32_t *usual, uint32_t n_usual, uint32_t *out) {
    uint32_t n = 0;

    for (const char *at = given; at && n < LIST_MAX; at = strchr(at, ',')) {
        if (*at == ',') at++;
        out[n++] = (uint32_t)strtoul(at, NULL, 10);
    }
    if (given) return n;
    memcpy(out, usual, n_usual * sizeof(*out));
    return n_usual;
}

int bench_lab_verify_cost(struct bench_lab_run *run) {
    static const uint32_t gpu_windows[] = {16, 32, 64, 128, 256}, gpu_groups[] = {1, 2, 4, 8, 16};
    static const uint32_t cpu_windows[] = {4, 16}, cpu_groups[] = {1, 4};
    static const uint32_t gpu_contexts[] = {256, 1024, 8192}, cpu_contexts[] = {64, 512};
    const struct bench_options *o = run->o;
    const uint32_t *contexts = run->is_cuda ? gpu_contexts : cpu_contexts;
    const uint32_t n_contexts = run->is_cuda ? 3 : 2,
                   n_beside = run->is_cuda ? BESIDE_GPU : BESIDE_CPU;
    const uint32_t n_keys_max = run->lab.n_seq_pages * DEVICE_PAGE_TOKENS;
    uint32_t windows[LIST_MAX], groups[LIST_MAX];
    const uint32_t n_windows = run->is_cuda ? list(o->windows, gpu_windows, 5, windows)
                                            : list(o->windows, cpu_windows, 2, windows);
    const uint32_t n_groups = run->is_cuda ? list(o->groups, gpu_groups, 5, groups)
                                           : list(o->groups, cpu_groups, 2, groups);
    int code = BENCH_OK;

    for (uint32_t c = 0; c < n_contexts; c++)
        for (uint32_t w = 0; w < n_windows; w++)
            for (uint32_t g = 0; code == BENCH_OK && g < n_groups; g++) {
                const uint32_t n = windows[w] * groups[g];

                if (n == 0 || n > ROWS_MAX || n + n_beside > run->lab.n_seqs_max) continue;
                if (windows[w] > contexts[c] || contexts[c] > n_keys_max) continue;
                if (bench_lab_wants(run, "%u,%u,%u", contexts[c], windows[w], groups[g]))
                    code = line(run, contexts[c], windows[w], groups[g]);
            }
    return code;
}
