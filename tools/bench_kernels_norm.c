/* Residual and norm, by hand and for NVRTC, held against a plain copy of as many bytes. */
#ifdef LLM42_CUDA

#include <stdio.h>
#include <stdlib.h>

#include "ptx/sm90_norm.h"
#include "runtime/cpu_gemm.h"
#include "runtime/err.h"
#include "runtime/num.h"
#include "runtime/schedule.h"
#include "tools/bench_kernels.h"

enum { ROWS_MAX = 4096, THREADS = 256, COPIES_MAX = 64, CALLS_MIN = 16 };

enum { BY_HAND, NVRTC, MANY, KERNELS };

static const char *const names[KERNELS] = {
    "sm90_residual_norm_bf16", "sm90_residual_norm_bf16_nvrtc", "sm90_residual_norm_bf16_many"};

struct norm {
    struct bench_kernels *k;
    CUfunction entries[KERNELS];
    uint32_t n_copies;
    uint64_t copy_bytes; /* of an array */
    CUdeviceptr d_x, d_y, d_out, d_w;
};

/* A launch: of which kernel, and on what. */
struct form {
    int kernel;
    bool adds; /* x += y first */
    uint32_t n_rows, run;
};

static void launch(struct norm *n, const struct form *f, uint32_t copy) {
    const uint64_t at = copy % n->n_copies * n->copy_bytes;
    CUdeviceptr out = n->d_out + at, x = n->d_x + at, y = f->adds ? n->d_y + at : 0, wants = 0;
    uint32_t hidden = n->k->model.hidden, run = f->run;
    float eps = n->k->model.rms_eps;
    uint32_t rows = f->n_rows, early = 0; /* of the one by hand: a step of some rows has 1 */
    const bool many = f->kernel == MANY;
    void *plain[] = {&out, &x, &y, &n->d_w, &wants, &hidden, &eps, &run, &early};
    void *ring[] = {&out, &x, &y, &n->d_w, &hidden, &rows, &eps, &run};
    const struct cuda_launch l = {
        .entry = n->entries[f->kernel],
        .name = names[f->kernel],
        .grid = {many && rows > SM90_NORM_MANY_BLOCKS ? SM90_NORM_MANY_BLOCKS : rows},
        .block = {many ? SM90_NORM_MANY_THREADS : THREADS},
        .shared_bytes = many ? SM90_NORM_MANY_BYTES : 0,
        .overlap = true, /* as in a step */
        .params = many ? ring : plain,
    };
    struct err e = {""};

    bench_gpu_must(cuda_driver_launch(n->k->gpu.driver, &l, &e), &e);
}

/* The one that a step of so many rows takes. */
static int kernel_of(const struct norm *n, uint32_t n_rows) {
    const uint32_t hidden = n->k->model.hidden;

    return n_rows >= SM90_NORM_MANY_ROWS_MIN && hidden >= SM90_NORM_MANY_VALUES_MIN &&
                   hidden <= SM90_NORM_MANY_VALUES
               ? MANY
               : BY_HAND;
}

/* The last row against the twin. */
static bool check(struct norm *n, const struct form *f) {
    const uint32_t hidden = n->k->model.hidden;
    const size_t n_bytes = hidden * 2, at = (f->n_rows - 1) * n_bytes;
    uint16_t *x = bench_kernels_host(n_bytes), *y = bench_kernels_host(n_bytes);
    uint16_t *w = bench_kernels_host(n_bytes), *want = bench_kernels_host(n_bytes);
    float *values = bench_kernels_host(hidden * sizeof(*values));
    struct bench_gpu *gpu = &n->k->gpu;
    bool same;

    bench_gpu_read(gpu, x, n->d_x + at, n_bytes);
    bench_gpu_read(gpu, y, n->d_y + at, n_bytes);
    bench_gpu_read(gpu, w, n->d_w, n_bytes);
    bench_gpu_poison(gpu, n->d_out, f->n_rows * n_bytes);
    launch(n, f, 0);
    for (uint32_t i = 0; i < hidden; i++) values[i] = num_from_bf16(y[i]);
    if (f->adds) cpu_code_best()->add(x, values, hidden);
    cpu_code_best()->norm(x, w, hidden, n->k->model.rms_eps, f->run, values, want);
    bench_gpu_read(gpu, y, n->d_x + at, n_bytes);
    same = bench_kernels_same(n->k, names[f->kernel], y, x, n_bytes);
    bench_gpu_read(gpu, y, n->d_out + at, n_bytes);
    same = bench_kernels_same(n->k, names[f->kernel], y, want, n_bytes) && same;
    free(x);
    free(y);
    free(w);
    free(want);
    free(values);
    return same;
}

static uint32_t calls(const struct norm *n) {
    return n->n_copies > CALLS_MIN ? n->n_copies : CALLS_MIN;
}

static struct bench_graph record(struct norm *n, const struct form *f) {
    if (!check(n, f)) return (struct bench_graph){.n_calls = 1};
    bench_gpu_begin(&n->k->gpu);
    for (uint32_t i = 0; i < calls(n); i++) launch(n, f, i);
    return bench_gpu_end(&n->k->gpu, calls(n));
}

/* An array from another, twice where the kernel adds: as many bytes as it reads and writes. */
static struct bench_graph record_copy(struct norm *n, bool adds) {
    struct bench_gpu *gpu = &n->k->gpu;

    bench_gpu_begin(gpu);
    for (uint32_t i = 0; i < calls(n) * (adds ? 2 : 1); i++) {
        const uint64_t at = i / (adds ? 2 : 1) % n->n_copies * n->copy_bytes;

        bench_gpu_check(gpu,
                        gpu->driver->cuda.cuMemcpyDtoDAsync_v2(
                            n->d_out + at, (adds && i % 2 ? n->d_y : n->d_x) + at, n->copy_bytes,
                            gpu->driver->stream),
                        "copy");
    }
    return bench_gpu_end(gpu, calls(n));
}

static const char *words(bool adds) {
    return adds ? "residual and norm" : "norm";
}

static void line(struct norm *n, uint32_t n_rows, bool adds) {
    const struct schedule_load load = {n_rows, n_rows, 1024};
    const struct form canonical = {kernel_of(n, n_rows), adds, n_rows,
                                   schedule_canonical().norm_run};
    const struct form tuned = {kernel_of(n, n_rows), adds, n_rows,
                               schedule_tuned(&n->k->model, &load).norm_run};
    const double values = (double)n_rows * n->k->model.hidden;
    char request[BENCH_REQUEST_BYTES];
    struct bench_line l = {.family = "norm",
                           .request = request,
                           .bytes = (adds ? 8 : 4) * values,
                           .flop = 5 * values}; /* add, square and its sum, scale twice */

    snprintf(request, sizeof(request), "norm %u %u %d %u", n_rows, n->k->model.hidden, adds,
             n->n_copies);
    l.graph = record(n, &canonical);
    l.tuned = record(n, &tuned);
    bench_kernels_line(n->k, &l, "%s, %u row%s", words(adds), n_rows, n_rows == 1 ? "" : "s");
}

static void against_copy(struct norm *n, bool adds) {
    const struct form form = {kernel_of(n, ROWS_MAX), adds, ROWS_MAX, 1};
    struct bench_graph norm = record(n, &form), copy = record_copy(n, adds);
    const double bytes = (adds ? 4.0 : 2.0) * (double)n->copy_bytes;
    double norm_us, copy_us;

    bench_kernels_pair(n->k, &norm, &copy, 0, &norm_us, &copy_us);
    bench_report_figure(n->k->report, "kernels.copy", bytes / copy_us / 1e6, "TB/s",
                        (struct bench_target){0, false}, "a copy of as much, read and written");
    if (norm_us > 0)
        bench_report_figure(n->k->report, "kernels.norm_of_copy", copy_us / norm_us, "x",
                            (struct bench_target){adds ? 0.92 : 0, false},
                            "%s of %d rows, %.2f TB/s, of copy", words(adds), ROWS_MAX,
                            bytes / norm_us / 1e6);
    bench_gpu_drop(&n->k->gpu, &norm);
    bench_gpu_drop(&n->k->gpu, &copy);
}

static const struct bench_column hand_columns[] = {
    {"PTX", "kernels.by_hand", "us", {0, false}},
    {"NVRTC", "kernels.nvrtc", "us", {0, false}},
    {"x", "kernels.by_hand_gain", "NVRTC over PTX", {0, false}}};

/* As a step launches it: products add to the residual stream themselves. */
static void by_hand(struct norm *n, uint32_t n_rows) {
    const struct form forms[] = {{BY_HAND, false, n_rows, 1}, {NVRTC, false, n_rows, 1}};
    struct bench_graph ptx = record(n, &forms[0]), nvrtc = record(n, &forms[1]);
    double us[3];

    bench_kernels_pair(n->k, &ptx, &nvrtc, 0, &us[0], &us[1]);
    us[2] = us[0] > 0 && us[1] > 0 ? us[1] / us[0] : BENCH_NO_CELL;
    bench_report_row(n->k->report, hand_columns, 3, us, "%u row%s", n_rows, n_rows == 1 ? "" : "s");
    bench_gpu_drop(&n->k->gpu, &ptx);
    bench_gpu_drop(&n->k->gpu, &nvrtc);
}

static void load(struct norm *n) {
    const uint32_t hidden = n->k->model.hidden;
    struct bench_gpu *gpu = &n->k->gpu;
    struct err e = {""};
    uint64_t n_bytes;

    for (int i = 0; i < KERNELS; i++)
        bench_gpu_must(cuda_driver_entry(gpu->driver, names[i], names[i], 0, &n->entries[i], &e),
                       &e);
    n->n_copies = (uint32_t)(BENCH_GPU_COLD_BYTES / n->copy_bytes) + 1;
    if (n->n_copies > COPIES_MAX) n->n_copies = COPIES_MAX;
    n_bytes = n->n_copies * n->copy_bytes;
    n->d_x = bench_gpu_take(gpu, n_bytes);
    n->d_y = bench_gpu_take(gpu, n_bytes);
    n->d_out = bench_gpu_take(gpu, n_bytes);
    n->d_w = bench_gpu_take(gpu, hidden * 2);
    bench_gpu_random(gpu, n->d_x, n_bytes / 2, 1.7f);
    bench_gpu_random(gpu, n->d_y, n_bytes / 2, 1.7f);
    bench_gpu_random(gpu, n->d_w, hidden, 1.0f);
}

void bench_kernels_norm(struct bench_kernels *k) {
    static const uint32_t rows[] = {1, 8, 64, 256, ROWS_MAX};
    enum { N_ROWS = sizeof(rows) / sizeof(rows[0]) };
    struct norm n = {.k = k, .copy_bytes = (uint64_t)ROWS_MAX * k->model.hidden * 2};

    if (k->model.hidden > 8192 || k->model.hidden % 16) {
        bench_report_note(k->report, "norm: rows of %u values are not measured", k->model.hidden);
        return;
    }
    load(&n);
    bench_kernels_section(k, "Residual and norm, us a call; peer: add_, rms_norm");
    for (int adds = 0; adds < 2; adds++)
        for (int i = 0; i < N_ROWS; i++) line(&n, rows[i], adds);
    against_copy(&n, false);
    against_copy(&n, true);
    bench_report_section(k->report, "Norm, by hand and for NVRTC, us a call");
    bench_report_columns(k->report, hand_columns, 3);
    for (int i = 0; i < N_ROWS; i++) by_hand(&n, rows[i]);
}

#endif
