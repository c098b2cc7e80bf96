/* Residual and norm of the GPU against the twin's, bit for bit: each of the three kernels, widths
 * up to the widest, with and without a residual, every run, few rows and many, rows that are not
 * finite among plain ones; nothing is written past the last row.  Skipped (77) without a GPU. */
#ifdef LLM42_CUDA

#include "ptx/sm90_norm.h"
#include "runtime/cpu_gemm.h"
#include "tests/kernel_gpu.h"

enum { THREADS = 256, ROWS_MAX = 1000, BLOCKS_FEW = 7 /* so that each has its ring in turn */ };

static const float eps = 1e-5f;

enum { BY_HAND, NVRTC, MANY, KERNELS };

static const struct {
    const char *name;
    uint32_t n_max, unit, shared_bytes;
} kernels[KERNELS] = {
    [BY_HAND] = {"sm90_residual_norm_bf16", 8192, 8, 0},
    [NVRTC] = {"sm90_residual_norm_bf16_nvrtc", 65536, 16, 0},
    [MANY] = {"sm90_residual_norm_bf16_many", SM90_NORM_MANY_VALUES, 8, SM90_NORM_MANY_BYTES},
};

static CUfunction entries[KERNELS];
static unsigned n_failed;
static uint64_t n_compared;

static uint16_t value(uint32_t seed, uint32_t row, uint32_t i) {
    const uint32_t r = num_random(seed, row, i);

    switch (row % 13) {
    case 4: /* squares overflow */
        return num_to_bf16(gpu_normal(seed, row, i) * 0x1p65f);
    case 6: /* and vanish */
        return num_to_bf16(gpu_normal(seed, row, i) * 0x1p-75f);
    case 8:
        return i % 1000 == 7 ? (uint16_t)(r | 0x7f80) : num_to_bf16(gpu_normal(seed, row, i));
    case 10:
        return 0;
    default:
        return num_to_bf16(gpu_normal(seed, row, i));
    }
}

struct rows {
    uint32_t n, n_rows;
    uint16_t *x, *y, *w; /* [n_rows + 1][n], the last poison; [n_rows][n]; [n] */
    uint64_t d_out, d_x, d_y, d_w;
};

static size_t bytes_of(const struct rows *t, uint32_t n_rows) {
    return (size_t)n_rows * t->n * 2;
}

static void launch(const struct rows *t, int kernel, bool adds, uint32_t n_rows, uint32_t run) {
    CUdeviceptr out = t->d_out, x = t->d_x, y = adds ? t->d_y : 0, w = t->d_w, wants = 0;
    uint32_t n = t->n, rows = n_rows, run_length = run;
    uint32_t early = n_rows > 1; /* of the one by hand */
    float epsilon = eps;
    void *plain[] = {&out, &x, &y, &w, &wants, &n, &epsilon, &run_length, &early};
    void *many[] = {&out, &x, &y, &w, &n, &rows, &epsilon, &run_length};
    const struct cuda_launch l = {
        .entry = entries[kernel],
        .name = kernels[kernel].name,
        .grid = {kernel != MANY || rows < BLOCKS_FEW ? rows
                 : rows == ROWS_MAX                  ? SM90_NORM_MANY_BLOCKS
                                                     : BLOCKS_FEW},
        .block = {kernel == MANY ? SM90_NORM_MANY_THREADS : THREADS},
        .shared_bytes = kernels[kernel].shared_bytes,
        .overlap = true,
        .params = kernel == MANY ? many : plain,
    };
    struct err e = {""};

    GPU_CHECK(cuda_driver_launch(gpu, &l, &e));
}

static void compare(const struct rows *t, int kernel, const char *what, uint32_t n_rows,
                    const uint16_t *got, const uint16_t *want) {
    const size_t n_values = (size_t)(n_rows + 1) * t->n;

    n_compared += n_values;
    if (memcmp(got, want, n_values * 2) == 0) return;
    for (size_t i = 0; i < n_values; i++) {
        if (got[i] == want[i]) continue;
        printf("%s: %s of %u rows of %u: row %zu column %zu is %04x, not %04x\n",
               kernels[kernel].name, what, n_rows, t->n, i / t->n, i % t->n, got[i], want[i]);
        break;
    }
    n_failed++;
}

/* What is there after the kernel: of x and of out, a row more than it may write. */
static void run(struct rows *t, int kernel, bool adds, uint32_t n_rows, uint32_t run_length) {
    const size_t all = bytes_of(t, n_rows + 1);
    uint16_t *want_x = gpu_host(all), *want = gpu_host(all), *got = gpu_host(all);
    float *values = gpu_host(t->n * sizeof(*values));

    memset(want, GPU_POISON, all);
    memcpy(want_x, t->x, all);
    gpu_write(t->d_x, t->x, all);
    gpu_write(t->d_out, want, all);
    launch(t, kernel, adds, n_rows, run_length);
    for (uint32_t row = 0; row < n_rows; row++) {
        uint16_t *x = want_x + (size_t)row * t->n;

        for (uint32_t i = 0; i < t->n; i++) values[i] = num_from_bf16(t->y[(size_t)row * t->n + i]);
        if (adds) cpu_code_best()->add(x, values, t->n);
        cpu_code_best()->norm(x, t->w, t->n, eps, run_length, values, want + (size_t)row * t->n);
    }
    gpu_read(got, t->d_x, all);
    compare(t, kernel, "the residual stream", n_rows, got, want_x);
    gpu_read(got, t->d_out, all);
    compare(t, kernel, "the norm", n_rows, got, want);
    free(want_x);
    free(want);
    free(got);
    free(values);
}

static void test_width(uint32_t n, uint32_t n_rows_max) {
    static const uint32_t counts[] = {1, 3, 395, ROWS_MAX}, runs[] = {1, 2, 4, 8};
    struct rows t = {.n = n, .n_rows = n_rows_max};
    const unsigned before = n_failed;

    t.x = gpu_host(bytes_of(&t, n_rows_max + 1));
    t.y = gpu_host(bytes_of(&t, n_rows_max));
    t.w = gpu_host(n * 2);
    for (uint32_t i = 0; i < n; i++) t.w[i] = num_to_bf16(1.0f + 0.3f * gpu_normal(3, 0, i));
    for (uint32_t row = 0; row <= n_rows_max; row++)
        for (uint32_t i = 0; i < n; i++) {
            t.x[(size_t)row * n + i] = row < n_rows_max ? value(1, row, i) : 0xffff;
            if (row < n_rows_max) t.y[(size_t)row * n + i] = value(2, row, i);
        }
    t.d_x = gpu_take(bytes_of(&t, n_rows_max + 1), GPU_POISON);
    t.d_out = gpu_take(bytes_of(&t, n_rows_max + 1), GPU_POISON);
    t.d_y = gpu_copy_of(t.y, bytes_of(&t, n_rows_max));
    t.d_w = gpu_copy_of(t.w, n * 2);
    for (int kernel = 0; kernel < KERNELS; kernel++) {
        if (n > kernels[kernel].n_max || n % kernels[kernel].unit) continue;
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
            if (counts[i] <= n_rows_max && (kernel == MANY || counts[i] < ROWS_MAX)) {
                run(&t, kernel, true, counts[i], runs[i % 4]);
                run(&t, kernel, false, counts[i], runs[(i + 2) % 4]);
            }
    }
    gpu_give(t.d_x);
    gpu_give(t.d_out);
    gpu_give(t.d_y);
    gpu_give(t.d_w);
    free(t.x);
    free(t.y);
    free(t.w);
    printf("%s: rows of %u\n", n_failed > before ? "FAIL" : "ok", n);
}

int main(void) {
    static const uint32_t widths[] = {8,    16,   64,   576,  2040, 2048,
                                      2056, 3072, 4096, 5120, 8192, 16384};
    struct err e = {""};
    int r = gpu_open();

    if (r) return r;
    for (int i = 0; i < KERNELS; i++)
        GPU_CHECK(cuda_driver_entry(gpu, kernels[i].name, kernels[i].name, kernels[i].shared_bytes,
                                    &entries[i], &e));
    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
        test_width(widths[i], widths[i] <= SM90_NORM_MANY_VALUES ? ROWS_MAX : 395);
    cuda_driver_close(gpu);
    printf("%llu values compared, %u mismatches\n", (unsigned long long)n_compared, n_failed);
    return n_failed ? 1 : 0;
}

#else

#include <stdio.h>

int main(void) {
    printf("built without CUDA\n");
    return 77;
}

#endif
