/* Products of a layer and of the head, one by one and in a chain, by rows of a step; and the one
 * that stands twice, by hand and for NVRTC. */
#ifdef LLM42_CUDA

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/cuda_gemm.h"
#include "runtime/err.h"
#include "runtime/schedule.h"
#include "tools/bench_kernels.h"

enum {
    QKV,
    O,
    GATE_UP,
    DOWN,
    HEAD,
    N_MATRICES,
    COPIES_MAX = 512,
    CALLS_MIN = 16, /* of a graph */
    CALLS_HEAD = 4,
    CHECK_ROWS = 8,
    HAND_ROWS = 8,
    HEAD_ROWS_MAX = 256, /* logits of more are never wanted at once */
    DECODE_ROWS_MAX = 64,
    CONTEXT = 1024, /* a tuned schedule asks for it; products do not */
};

struct matrix {
    const char *name;
    uint32_t n, n_k, segments; /* canonical */
    uint32_t n_copies, n_calls;
    struct cuda_gemm_weight w; /* the first copy */
};

struct gemm {
    struct bench_kernels *k;
    struct cuda_gemm *gemm;
    struct matrix matrices[N_MATRICES];
    uint32_t rows_max;
    CUdeviceptr d_x, d_y, d_z, d_out, d_check;
};

/* ---- Data ---- */

/* Widths are multiples of 8 but for a vocabulary's. */
static uint32_t stride(uint32_t width) {
    return (width + 7) / 8 * 8;
}

static uint32_t copies_of(uint64_t n_bytes) {
    const uint64_t n = (BENCH_GPU_COLD_BYTES + n_bytes - 1) / n_bytes;

    return n > COPIES_MAX ? COPIES_MAX : (uint32_t)n;
}

static void load_matrix(struct gemm *g, struct matrix *m, CUdeviceptr d_rows) {
    struct bench_gpu *gpu = &g->k->gpu;
    struct err e = {""};

    bench_gpu_random(gpu, d_rows, (uint64_t)m->n * m->n_k, 1.7f / sqrtf((float)m->n_k));
    cuda_gemm_shape(&m->w, m->n, m->n_k, m->segments, m == &g->matrices[GATE_UP]);
    m->w.n_bytes = (m->w.n_bytes + 1023) / 1024 * 1024;
    m->n_copies = copies_of(m->w.n_bytes);
    m->n_calls = m->n_copies > CALLS_MIN   ? m->n_copies
                 : m == &g->matrices[HEAD] ? CALLS_HEAD
                                           : CALLS_MIN;
    m->w.d_image = bench_gpu_take(gpu, m->w.n_bytes * m->n_copies);
    bench_gpu_zero(gpu, m->w.d_image, m->w.n_bytes * m->n_copies);
    for (uint32_t i = 0; i < m->n_copies; i++) {
        struct cuda_gemm_weight w = m->w;

        w.d_image += i * m->w.n_bytes;
        bench_gpu_must(cuda_gemm_pack(g->gemm, &w, d_rows, w.n, 0, 1, &e), &e);
    }
}

static void load(struct gemm *g) {
    const struct model *m = &g->k->model;
    const struct schedule s = schedule_canonical();
    const uint32_t width = m->n_heads * m->head_dim, kv_width = m->n_kv_heads * m->head_dim;
    const struct matrix matrices[N_MATRICES] = {
        {.name = "qkv", .n = width + 2 * kv_width, .n_k = m->hidden, .segments = s.qkv},
        {.name = "o", .n = m->hidden, .n_k = width, .segments = s.o},
        {.name = "gate_up", .n = 2 * m->intermediate, .n_k = m->hidden, .segments = s.gate_up},
        {.name = "down", .n = m->hidden, .n_k = m->intermediate, .segments = s.down},
        {.name = "head", .n = stride(m->vocab), .n_k = m->hidden, .segments = s.head}};
    struct bench_gpu *gpu = &g->k->gpu;
    uint64_t n_values_max = 0, n_wide = 0, n_out, n_logits;
    CUdeviceptr d_rows;

    for (int i = 0; i < N_MATRICES; i++) {
        g->matrices[i] = matrices[i];
        if ((uint64_t)matrices[i].n * matrices[i].n_k > n_values_max)
            n_values_max = (uint64_t)matrices[i].n * matrices[i].n_k;
        if (i != HEAD && matrices[i].n > n_wide) n_wide = matrices[i].n;
        if (i != HEAD && matrices[i].n_k > n_wide) n_wide = matrices[i].n_k;
    }
    d_rows = bench_gpu_take(gpu, n_values_max * 2);
    for (int i = 0; i < N_MATRICES; i++) load_matrix(g, &g->matrices[i], d_rows);
    g->d_x = bench_gpu_take(gpu, g->rows_max * n_wide * 2);
    g->d_y = bench_gpu_take(gpu, g->rows_max * n_wide * 2);
    g->d_z = bench_gpu_take(gpu, g->rows_max * n_wide * 2);
    bench_gpu_random(gpu, g->d_x, g->rows_max * n_wide, 1.7f);
    n_out = g->rows_max * n_wide * 2;
    n_logits = (uint64_t)HEAD_ROWS_MAX * stride(m->vocab) * 4;
    g->d_out = bench_gpu_take(gpu, n_out > n_logits ? n_out : n_logits);
    g->d_check = bench_gpu_take(gpu, CHECK_ROWS * (stride(m->vocab) * 4 + n_wide * 2));
}

/* ---- One product ---- */

struct call {
    const struct matrix *m;
    uint32_t n_rows, segments;
    enum cuda_gemm_kernel kernel;
    enum sm90_gemm_form form;
};

static uint32_t out_width(const struct call *c) {
    return c->form == SM90_GEMM_SILU ? c->m->n / 2 : c->m->n;
}

static size_t value_bytes(const struct call *c) {
    return c->form == SM90_GEMM_F32 ? 4 : 2;
}

static void run(struct gemm *g, const struct call *c, uint32_t copy, CUdeviceptr x,
                uint32_t x_stride, CUdeviceptr out) {
    struct cuda_gemm_weight w = c->m->w;
    const struct cuda_gemm_args args = {
        .w = &w,
        .d_x = x,
        .d_out = out,
        .x_stride = x_stride,
        .out_stride = stride(out_width(c)),
        .n_rows = c->n_rows,
        .segments = c->segments,
        .form = c->form,
        .overlap = true, /* as in a step */
    };
    struct err e = {""};

    w.d_image += copy % c->m->n_copies * w.n_bytes;
    bench_gpu_must(cuda_gemm_run_by(g->gemm, c->kernel, &args, &e), &e);
}

/* The last rows by the kernel that does any shape must have the same bits. */
static bool check(struct gemm *g, const struct call *c) {
    struct bench_gpu *gpu = &g->k->gpu;
    const uint32_t n = c->n_rows < CHECK_ROWS ? c->n_rows : CHECK_ROWS, first = c->n_rows - n;
    const size_t row_bytes = stride(out_width(c)) * value_bytes(c);
    struct call any = *c;
    bool same;
    void *got = bench_kernels_host(n * row_bytes), *want = bench_kernels_host(n * row_bytes);

    any.kernel = CUDA_GEMM_ANY;
    any.n_rows = n;
    bench_gpu_poison(gpu, g->d_out, c->n_rows * row_bytes);
    bench_gpu_poison(gpu, g->d_check, n * row_bytes);
    run(g, c, 0, g->d_x, c->m->n_k, g->d_out);
    run(g, &any, 0, g->d_x + (uint64_t)first * c->m->n_k * 2, c->m->n_k, g->d_check);
    bench_gpu_read(gpu, got, g->d_out + first * row_bytes, n * row_bytes);
    bench_gpu_read(gpu, want, g->d_check, n * row_bytes);
    same = bench_kernels_same(g->k, cuda_gemm_name(c->kernel), got, want, n * row_bytes);
    free(got);
    free(want);
    return same;
}

static struct bench_graph record(struct gemm *g, const struct call *c) {
    if (!check(g, c)) return (struct bench_graph){.n_calls = 1};
    bench_gpu_begin(&g->k->gpu);
    for (uint32_t i = 0; i < c->m->n_calls; i++) run(g, c, i, g->d_x, c->m->n_k, g->d_out);
    return bench_gpu_end(&g->k->gpu, c->m->n_calls);
}

static uint32_t tuned_segments(const struct gemm *g, int matrix, uint32_t n_rows) {
    const struct schedule_load load = {n_rows, n_rows, CONTEXT};
    const struct schedule s = schedule_tuned(&g->k->model, &load);
    const uint32_t segments[N_MATRICES] = {s.qkv, s.o, s.gate_up, s.down, s.head};

    return segments[matrix];
}

static struct call call_of(const struct gemm *g, const struct matrix *m, uint32_t n_rows,
                           uint32_t segments, enum sm90_gemm_form form) {
    return (struct call){.m = m,
                         .n_rows = n_rows,
                         .segments = segments,
                         .kernel = cuda_gemm_chosen(g->gemm, &m->w, n_rows, segments),
                         .form = form};
}

static void product(struct gemm *g, int matrix, uint32_t n_rows, enum sm90_gemm_form form) {
    const struct matrix *m = &g->matrices[matrix];
    const uint32_t segments = tuned_segments(g, matrix, n_rows);
    const struct call canonical = call_of(g, m, n_rows, m->segments, form);
    const struct call tuned = call_of(g, m, n_rows, segments, form);
    const double n = m->n, n_k = m->n_k;
    char request[BENCH_REQUEST_BYTES];
    struct bench_line line = {
        .family = m->name,
        .request = request,
        .pause_ms = bench_kernels_pause(g->k, n_rows),
        .bytes = 2 * n * n_k + 2 * n_k * n_rows +
                 (double)value_bytes(&canonical) * out_width(&canonical) * n_rows,
        .flop = 2 * n * n_k * n_rows,
        .of_peer = n_rows <= DECODE_ROWS_MAX ? 1.0
                   : n_rows >= 2048          ? 0.92
                                             : 0,
    };

    snprintf(request, sizeof(request), "gemm %u %u %u %u", n_rows, m->n, m->n_k, m->n_calls);
    line.graph = record(g, &canonical);
    line.same = segments == m->segments;
    if (!line.same) line.tuned = record(g, &tuned);
    bench_kernels_line(g->k, &line, "%s%s, %u row%s, %s", m->name,
                       form == SM90_GEMM_SILU ? " silu" : "", n_rows, n_rows == 1 ? "" : "s",
                       cuda_gemm_name(canonical.kernel) + sizeof("sm90_gemm_bf16_") - 1);
}

/* ---- The four of a layer ---- */

static struct bench_graph record_layer(struct gemm *g, uint32_t n_rows, bool tuned) {
    static const enum sm90_gemm_form forms[] = {SM90_GEMM_BF16, SM90_GEMM_BF16, SM90_GEMM_SILU,
                                                SM90_GEMM_BF16};
    struct call c[HEAD];

    for (int i = 0; i < HEAD; i++) {
        const struct matrix *m = &g->matrices[i];

        c[i] = call_of(g, m, n_rows, tuned ? tuned_segments(g, i, n_rows) : m->segments, forms[i]);
    }
    bench_gpu_begin(&g->k->gpu);
    /* The last is not fed back, or values would vanish. */
    for (uint32_t i = 0; i < CALLS_MIN; i++) {
        run(g, &c[QKV], i, g->d_x, c[QKV].m->n_k, g->d_y);
        run(g, &c[O], i, g->d_y, c[QKV].m->n, g->d_z);
        run(g, &c[GATE_UP], i, g->d_z, c[GATE_UP].m->n_k, g->d_y);
        run(g, &c[DOWN], i, g->d_y, c[DOWN].m->n_k, g->d_out);
    }
    return bench_gpu_end(&g->k->gpu, CALLS_MIN);
}

static void layer(struct gemm *g, uint32_t n_rows) {
    const struct model *m = &g->k->model;
    char request[BENCH_REQUEST_BYTES];
    struct bench_line line = {
        .family = "layer", .request = request, .pause_ms = bench_kernels_pause(g->k, n_rows)};
    double values = 0;

    for (int i = 0; i < HEAD; i++) values += (double)g->matrices[i].n * g->matrices[i].n_k;
    line.bytes = 2 * values;
    line.flop = 2 * values * n_rows;
    snprintf(request, sizeof(request), "layer %u %u %u %u %u %d", n_rows, m->hidden,
             g->matrices[QKV].n, g->matrices[O].n_k, m->intermediate, CALLS_MIN);
    line.graph = record_layer(g, n_rows, false);
    line.tuned = record_layer(g, n_rows, true);
    bench_kernels_line(g->k, &line, "four products of a layer, %u row%s", n_rows,
                       n_rows == 1 ? "" : "s");
}

/* ---- By hand and for NVRTC ---- */

static void by_hand(struct gemm *g) {
    static const struct bench_column columns[] = {
        {"PTX", "kernels.by_hand", "us", {0, false}},
        {"NVRTC", "kernels.nvrtc", "us", {0, false}},
        {"x", "kernels.by_hand_gain", "NVRTC over PTX", {0, false}}};

    bench_report_section(g->k->report, "few8, by hand and for NVRTC, 8 rows, us a call");
    bench_report_columns(g->k->report, columns, 3);
    for (int i = 0; i < N_MATRICES; i++) {
        const struct matrix *m = &g->matrices[i];
        struct call a =
            call_of(g, m, HAND_ROWS, m->segments, i == HEAD ? SM90_GEMM_F32 : SM90_GEMM_BF16);
        struct call b = a;
        struct bench_graph ptx, nvrtc;
        double us[3];

        a.kernel = CUDA_GEMM_FEW8;
        b.kernel = CUDA_GEMM_FEW8_NVRTC;
        if (!cuda_gemm_can(a.kernel, &m->w, m->segments)) continue;
        ptx = record(g, &a);
        nvrtc = record(g, &b);
        bench_kernels_pair(g->k, &ptx, &nvrtc, bench_kernels_pause(g->k, HAND_ROWS), &us[0],
                           &us[1]);
        us[2] = us[1] / us[0];
        bench_report_row(g->k->report, columns, 3, us, "%s", m->name);
        bench_gpu_drop(&g->k->gpu, &ptx);
        bench_gpu_drop(&g->k->gpu, &nvrtc);
    }
}

/* How they are timed. */
static void tell(const struct bench_kernels *k) {
    const double few = bench_kernels_pause(k, 1), more = bench_kernels_pause(k, UINT32_MAX);
    char rest[64] = "back to back, at the card's power limit";

    if (more > 0) snprintf(rest, sizeof(rest), "%g ms of pause", more);
    if (few == more)
        bench_report_note(k->report, "products: ours and the peer's, before each replay: %s", rest);
    else
        bench_report_note(k->report,
                          "products: ours and the peer's, before each replay, up to %d rows: %g "
                          "ms of pause; more rows: %s",
                          BENCH_PAUSED_ROWS_MAX, few, rest);
}

void bench_kernels_gemm(struct bench_kernels *k) {
    static const uint32_t usual[] = {1, 8, 16, 32, 64, 128, 256, 512, 2048};
    const uint32_t n_rows = k->o->n_rows ? k->o->n_rows : sizeof(usual) / sizeof(usual[0]);
    const uint32_t *rows = k->o->n_rows ? k->o->rows : usual;
    struct gemm *g = calloc(1, sizeof(*g));
    struct err e = {""};

    if (!g) exit(BENCH_FAILED);
    g->k = k;
    for (uint32_t i = 0; i < n_rows; i++)
        if (rows[i] > g->rows_max) g->rows_max = rows[i];
    if (g->rows_max < CHECK_ROWS) g->rows_max = CHECK_ROWS;
    bench_gpu_must(cuda_gemm_open(k->gpu.driver, &g->gemm, &e), &e);
    load(g);
    tell(k);
    bench_kernels_section(k, "Products, us a call; peer: torch.mm");
    for (int m = 0; m < N_MATRICES; m++)
        for (uint32_t i = 0; i < n_rows; i++) {
            if (m == HEAD && rows[i] > HEAD_ROWS_MAX) continue;
            product(g, m, rows[i], m == HEAD ? SM90_GEMM_F32 : SM90_GEMM_BF16);
            if (m == GATE_UP) product(g, m, rows[i], SM90_GEMM_SILU);
        }
    bench_kernels_section(k, "A layer's products one after another, us a layer; peer: torch.mm");
    for (uint32_t i = 0; i < n_rows; i++) layer(g, rows[i]);
    by_hand(g);
    cuda_gemm_close(g->gemm);
    free(g);
}

#endif
