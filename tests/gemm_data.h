/* gemm_data - matrix products by the twin and by kernels, for the tests of both GPU and host: weights
 * and rows, some of them hostile, NaN beside what may be read and poison where nothing may be
 * written. */
#ifndef LLM42D_TESTS_GEMM_DATA_H
#define LLM42D_TESTS_GEMM_DATA_H

#include "runtime/cpu_gemm.h"
#include "runtime/cpu_pool.h"
#include "runtime/cuda_gemm.h"
#include "tests/kernel_gpu.h"

enum { X_PAD = 16, OUT_PAD = 8 };

/* How a kernel of many rows may be launched. */
static const struct way {
    uint32_t n_splits, pairs;
} ways[] = {{1, CUDA_GEMM_SHARE_W}, {1, CUDA_GEMM_SHARE_X}, {2, CUDA_GEMM_SHARE_W},
            {2, CUDA_GEMM_SHARE_X}, {4, CUDA_GEMM_SHARE_W}, {4, CUDA_GEMM_SHARE_X}};

enum { N_WAYS = sizeof(ways) / sizeof(ways[0]) };

static struct cuda_gemm *gemm;
static struct cpu_pool *pool;
static unsigned n_failed;
static uint64_t n_compared;

/* Weights, activations and results of one shape. */
struct product {
    struct cuda_gemm_weight w;
    uint32_t n, n_k, segments, n_rows;
    uint32_t x_stride, out_stride;  /* of the GPU's buffers */
    uint16_t *weights;              /* [n][n_k] */
    uint16_t *x;                    /* [n_rows][x_stride], NaN past n_k */
    float *y;                       /* [n_rows][n], by the twin */
    uint16_t *residual;             /* [n_rows][n] */
    void *want[SM90_GEMM_SILU + 1]; /* by form, [n_rows][out_stride], poison past n; or NULL */
    uint64_t d_x, d_out;
};

/* Most rows are plain, a few are not. */
static uint16_t x_value(uint32_t row, uint32_t k) {
    const uint32_t r = num_random(11, row, k);

    switch (row % 11) {
    case 3: /* over the whole range of exponents that a sum stays finite with */
        return (uint16_t)((r & 0x807f) | (90 + (r >> 16) % 60) << 7);
    case 5:
        return (uint16_t)(k % 7 ? 0 : r & 0x80ff); /* zeros, subnormals */
    case 7:                                        /* one value or another that is not finite */
        return (r >> 8) % 97 == 0 ? (uint16_t)(r | 0x7f80) : num_to_bf16(gpu_normal(3, row, k));
    case 9:
        return row % 22 == 9 ? 0 : num_to_bf16(gpu_normal(3, row, k) * 0x1p-110f);
    default:
        return num_to_bf16(gpu_normal(3, row, k));
    }
}

static uint16_t weight_value(uint32_t n, uint32_t k) {
    const uint32_t r = num_random(12, n, k);

    if (n % 29 == 4) return (uint16_t)((r & 0x807f) | (100 + (r >> 16) % 50) << 7);
    if (n % 31 == 6) return (uint16_t)(r % 5 ? 0 : r);
    return num_to_bf16(gpu_normal(4, n, k) * 0.02f);
}

static void keep(void *ctx, uint32_t row, uint32_t block, uint32_t n_blocks, const float *y) {
    struct product *p = ctx;

    for (uint32_t i = 0; i < n_blocks * CPU_LANES && block * CPU_LANES + i < p->n; i++)
        p->y[(size_t)row * p->n + block * CPU_LANES + i] = y[i];
}

static void by_twin(struct product *p) {
    const struct cpu_code *code = cpu_code_best();
    struct cpu_matrix m = {.n = p->n, .n_k = p->n_k, .n_blocks = (p->n + 7) / 8};
    struct cpu_rows rows = {.n_k = p->n_k};
    const size_t n_values = (size_t)p->n_rows * p->n_k;

    m.w = gpu_host(cpu_matrix_words(p->n, p->n_k) * sizeof(*m.w));
    cpu_matrix_put(&m, p->weights, p->n, 0, 1);
    rows.values = gpu_host(n_values * sizeof(float));
    rows.exponents = gpu_host(n_values * 2);
    rows.kinds = gpu_host(n_values / 16);
    for (uint32_t row = 0; row < p->n_rows; row++)
        code->spread(p->x + (size_t)row * p->x_stride, p->n_k, rows.values + (size_t)row * p->n_k,
                     rows.exponents + (size_t)row * p->n_k / 2,
                     rows.kinds + (size_t)row * p->n_k / 16);
    cpu_gemm(pool, code, &m, &rows, p->n_rows, p->segments, keep, p);
    free(m.w);
    free(rows.values);
    free(rows.exponents);
    free(rows.kinds);
}

/* The image: in turns, rows 16 i .. of the matrix are 8 i .. of gate, then of up. */
static void pack(struct product *p) {
    const size_t n_bytes = (size_t)p->n * p->n_k * 2, half = n_bytes / 2;
    struct err e = {""};
    uint64_t d_rows;

    p->w.d_image = gpu_take(p->w.n_bytes, 0);
    d_rows = gpu_copy_of(p->weights, n_bytes);
    if (p->w.turns) {
        GPU_CHECK(cuda_gemm_pack(gemm, &p->w, d_rows, p->n / 2, 0, 2, &e));
        GPU_CHECK(cuda_gemm_pack(gemm, &p->w, d_rows + half, p->n / 2, 1, 2, &e));
    } else {
        GPU_CHECK(cuda_gemm_pack(gemm, &p->w, d_rows, p->n, 0, 1, &e));
    }
    gpu_give(d_rows);
}

static void product_open(struct product *p, uint32_t n, uint32_t n_k, uint32_t segments,
                         uint32_t made_for, bool turns, uint32_t n_rows) {
    *p = (struct product){.n = n, .n_k = n_k, .segments = segments, .n_rows = n_rows};
    cuda_gemm_shape(&p->w, n, n_k, made_for, turns);
    p->x_stride = n_k + X_PAD;
    p->out_stride = n + OUT_PAD;
    p->weights = gpu_host((size_t)n * n_k * 2);
    p->x = gpu_host((size_t)n_rows * p->x_stride * 2);
    p->y = gpu_host((size_t)n_rows * n * sizeof(float));
    p->residual = gpu_host((size_t)n_rows * n * 2);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n_k; k++) p->weights[(size_t)i * n_k + k] = weight_value(i, k);
    for (uint32_t row = 0; row < n_rows; row++) {
        for (uint32_t k = 0; k < p->x_stride; k++)
            p->x[(size_t)row * p->x_stride + k] = k < n_k ? x_value(row, k) : 0x7fff;
        for (uint32_t i = 0; i < n; i++)
            p->residual[(size_t)row * n + i] = num_to_bf16(gpu_normal(5, row, i) * 0.5f);
    }
    by_twin(p);
    pack(p);
    p->d_x = gpu_copy_of(p->x, (size_t)n_rows * p->x_stride * 2);
    p->d_out = gpu_take((size_t)(n_rows + 1) * p->out_stride * sizeof(float), GPU_POISON);
}

static void product_close(struct product *p) {
    gpu_give(p->w.d_image);
    gpu_give(p->d_x);
    gpu_give(p->d_out);
    free(p->weights);
    free(p->x);
    free(p->y);
    free(p->residual);
    for (int i = 0; i <= SM90_GEMM_SILU; i++) free(p->want[i]);
}

/* What the form makes of the twin's sums, as bits. */
static uint32_t wanted(const struct product *p, enum sm90_gemm_form form, uint32_t row,
                       uint32_t i) {
    const float *y = p->y + (size_t)row * p->n;
    float gate, s;

    switch (form) {
    case SM90_GEMM_F32:
        return num_bits(y[i]);
    case SM90_GEMM_ADD:
        return num_to_bf16(num_from_bf16(p->residual[(size_t)row * p->n + i]) +
                           num_from_bf16(num_to_bf16(y[i])));
    case SM90_GEMM_SILU:
        gate = num_from_bf16(num_to_bf16(y[i]));
        s = num_from_bf16(num_to_bf16(num_silu(gate)));
        return num_to_bf16(s * num_from_bf16(num_to_bf16(y[p->n / 2 + i])));
    default:
        return num_to_bf16(y[i]);
    }
}

static uint32_t out_width(const struct product *p, enum sm90_gemm_form form) {
    return form == SM90_GEMM_SILU ? p->n / 2 : p->n;
}

/* One row more than there are, of poison. */
static const void *all_wanted(struct product *p, enum sm90_gemm_form form) {
    const size_t value = form == SM90_GEMM_F32 ? 4 : 2;
    const size_t n_bytes = (size_t)(p->n_rows + 1) * p->out_stride * value;

    if (p->want[form]) return p->want[form];
    p->want[form] = gpu_host(n_bytes);
    memset(p->want[form], GPU_POISON, n_bytes);
    for (uint32_t row = 0; row < p->n_rows; row++)
        for (uint32_t i = 0; i < out_width(p, form); i++) {
            const uint32_t bits = wanted(p, form, row, i);
            const size_t at = (size_t)row * p->out_stride + i;

            if (form == SM90_GEMM_F32)
                ((uint32_t *)p->want[form])[at] = bits;
            else
                ((uint16_t *)p->want[form])[at] = (uint16_t)bits;
        }
    return p->want[form];
}

static bool both_nan(uint32_t a, uint32_t b) {
    return (a & 0x7fffffff) > 0x7f800000 && (b & 0x7fffffff) > 0x7f800000;
}

static void compare(struct product *p, enum cuda_gemm_kernel kernel, struct way way,
                    enum sm90_gemm_form form, uint32_t n_rows, const void *got) {
    const size_t value = form == SM90_GEMM_F32 ? 4 : 2, row_bytes = p->out_stride * value;
    const char *want = all_wanted(p, form), *past = want + p->n_rows * row_bytes;

    n_compared += (uint64_t)n_rows * out_width(p, form);
    for (uint32_t row = 0; row <= n_rows; row++) {
        const char *is_row = (const char *)got + row * row_bytes;
        const char *want_row = row < n_rows ? want + row * row_bytes : past;

        if (memcmp(is_row, want_row, row_bytes) == 0) continue;
        for (uint32_t i = 0; i < p->out_stride; i++) {
            uint32_t a = 0, b = 0;

            memcpy(&a, is_row + i * value, value);
            memcpy(&b, want_row + i * value, value);
            if (a == b) continue;
            /* What x86 and the GPU make of infinities of both signs differs in bits. */
            if (form == SM90_GEMM_F32 && p->segments > 1 && both_nan(a, b)) continue;
            printf("%s (splits %u, pairs %u) form %d, W %u x %u (tile %u) in %u segments, %u rows: "
                   "row %u column %u is %08x, not %08x\n",
                   cuda_gemm_name(kernel), way.n_splits, way.pairs, form, p->n, p->n_k, p->w.tile,
                   p->segments, n_rows, row, i, a, b);
            n_failed++;
            return;
        }
    }
}

static void run_way(struct product *p, enum cuda_gemm_kernel kernel, struct way way,
                    enum sm90_gemm_form form, uint32_t n_rows, bool overlap) {
    const size_t value = form == SM90_GEMM_F32 ? 4 : 2;
    const size_t n_bytes = (size_t)(n_rows + 1) * p->out_stride * value;
    const struct cuda_gemm_args args = {
        .w = &p->w,
        .d_x = p->d_x,
        .d_out = p->d_out,
        .x_stride = p->x_stride,
        .out_stride = p->out_stride,
        .n_rows = n_rows,
        .segments = p->segments,
        .form = form,
        .n_splits = way.n_splits,
        .pairs = way.pairs,
        .overlap = overlap,
    };
    unsigned char *got = gpu_host(n_bytes);
    struct err e = {""};

    memset(got, GPU_POISON, n_bytes);
    if (form == SM90_GEMM_ADD)
        for (uint32_t row = 0; row < n_rows; row++)
            memcpy(got + (size_t)row * p->out_stride * 2, p->residual + (size_t)row * p->n,
                   (size_t)p->n * 2);
    gpu_write(p->d_out, got, n_bytes);
    GPU_CHECK(cuda_gemm_run_by(gemm, kernel, &args, &e));
    gpu_read(got, p->d_out, n_bytes);
    compare(p, kernel, way, form, n_rows, got);
    free(got);
}

/* Whether the kernel can do it so, and here: blocks that wait for each other want places of their
 * own. */
static bool can_here(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                     uint32_t n_rows, uint32_t segments, struct way way) {
    return (way.n_splits == 1 || gpu->n_own >= 132) &&
           cuda_gemm_can_so(kernel, w, n_rows, segments, way.n_splits, way.pairs);
}

/* In all ways that the kernel has. */
static void run(struct product *p, enum cuda_gemm_kernel kernel, enum sm90_gemm_form form,
                uint32_t n_rows, bool overlap) {
    if (!cuda_gemm_can(kernel, &p->w, p->segments)) return;
    for (size_t i = 0; i < N_WAYS; i++)
        if (can_here(kernel, &p->w, n_rows, p->segments, ways[i]))
            run_way(p, kernel, ways[i], form, n_rows, overlap);
}

#endif
