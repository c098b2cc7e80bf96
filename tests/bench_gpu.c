/* bench_gpu - times of the GPU's kernels at the shapes of an 8B model, in graphs of equal calls
 * over weights and keys that L2 does not hold: medians of replays, in microseconds.
 *
 *     bench_gpu [gemm|layer|attn ..] */
#ifdef LLM42_CUDA

#include "runtime/cuda_attn.h"
#include "runtime/cuda_gemm.h"
#include "runtime/device.h"
#include "tests/kernel_gpu.h"

enum { REPLAYS = 21, LAYERS = 8, ROWS_MAX = 8192, MATRICES = 5, HEAD = 4 };

static const struct matrix {
    const char *name;
    uint32_t n, n_k, segments;
    bool turns;
} matrices[MATRICES] = {
    {"qkv", 6144, 4096, 1, false},     {"o", 4096, 4096, 4, false},
    {"gate_up", 28672, 4096, 1, true}, {"down", 4096, 14336, 4, false},
    {"head", 128256, 4096, 1, false},
};

static struct cuda_gemm *gemm;
static struct cuda_gemm_weight weights[MATRICES][LAYERS];
static uint64_t d_x, d_h, d_out, d_o, d_y;

static int by_value(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static void begin(void) {
    GPU_DRIVER(cuStreamBeginCapture_v2(gpu->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
}

static CUgraphExec end(void) {
    CUgraph graph;
    CUgraphExec exec;

    GPU_DRIVER(cuStreamEndCapture(gpu->stream, &graph));
    GPU_DRIVER(cuGraphInstantiateWithFlags(&exec, graph, 0));
    GPU_DRIVER(cuGraphDestroy(graph));
    return exec;
}

/* Median of a replay, over n calls in it. */
static float median(CUgraphExec exec, uint32_t n) {
    float times[REPLAYS];
    CUevent from, to;

    GPU_DRIVER(cuEventCreate(&from, 0));
    GPU_DRIVER(cuEventCreate(&to, 0));
    for (int i = -3; i < REPLAYS; i++) {
        float ms;

        GPU_DRIVER(cuEventRecord(from, gpu->stream));
        GPU_DRIVER(cuGraphLaunch(exec, gpu->stream));
        GPU_DRIVER(cuEventRecord(to, gpu->stream));
        GPU_DRIVER(cuStreamSynchronize(gpu->stream));
        GPU_DRIVER(cuEventElapsedTime_v2(&ms, from, to));
        if (i >= 0) times[i] = ms * 1000.0f / (float)n;
    }
    GPU_DRIVER(cuEventDestroy_v2(from));
    GPU_DRIVER(cuEventDestroy_v2(to));
    GPU_DRIVER(cuGraphExecDestroy(exec));
    qsort(times, REPLAYS, sizeof(times[0]), by_value);
    return times[REPLAYS / 2];
}

static void load(void) {
    const size_t values = (size_t)128256 * 4096;
    uint16_t *host = gpu_host(values * 2);
    uint64_t d_rows;
    struct err e = {""};

    for (size_t i = 0; i < values; i++) host[i] = gpu_cheap(i, 1, 0.015f);
    d_rows = gpu_copy_of(host, values * 2);
    for (int m = 0; m < MATRICES; m++)
        for (int l = 0; l < (m == HEAD ? 1 : LAYERS); l++) {
            struct cuda_gemm_weight *w = &weights[m][l];

            cuda_gemm_shape(w, matrices[m].n, matrices[m].n_k, matrices[m].segments,
                            matrices[m].turns);
            w->d_image = gpu_take(w->n_bytes, 0);
            GPU_CHECK(cuda_gemm_pack(gemm, w, d_rows, w->n, 0, 1, &e));
        }
    gpu_give(d_rows);
    for (size_t i = 0; i < (size_t)ROWS_MAX * 14336; i++) host[i] = gpu_cheap(i, 2, 1.0f);
    d_x = gpu_copy_of(host, (size_t)ROWS_MAX * 14336 * 2);
    d_h = gpu_copy_of(host, (size_t)ROWS_MAX * 14336 * 2);
    d_o = gpu_take((size_t)ROWS_MAX * 4096 * 2, 0);
    d_y = gpu_take((size_t)ROWS_MAX * 4096 * 2, 0);
    d_out = gpu_take((size_t)ROWS_MAX * 28672 * 2, 0);
    free(host);
}

static void call(int m, int l, enum cuda_gemm_kernel kernel, uint64_t x, uint32_t x_stride,
                 uint64_t out, uint32_t n_rows, bool overlap) {
    const struct cuda_gemm_args args = {
        .w = &weights[m][l],
        .d_x = x,
        .d_out = out,
        .x_stride = x_stride,
        .out_stride = matrices[m].turns ? matrices[m].n / 2 : matrices[m].n,
        .n_rows = n_rows,
        .segments = matrices[m].segments,
        .form = m == HEAD           ? SM90_GEMM_F32
                : matrices[m].turns ? SM90_GEMM_SILU
                                    : SM90_GEMM_BF16,
        .overlap = overlap,
    };
    struct err e = {""};

    GPU_CHECK(cuda_gemm_run_by(gemm, kernel, &args, &e));
}

static void bench_gemm(void) {
    static const uint32_t counts[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192};

    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
        for (int m = 0; m < MATRICES; m++) {
            const uint32_t n_rows = counts[c];
            const int n_calls = m == HEAD || n_rows > 512 ? 4 : 2 * LAYERS;
            const double bytes = 2.0 * matrices[m].n * matrices[m].n_k;
            const double flop = 2.0 * n_rows * matrices[m].n * matrices[m].n_k;

            if (m == HEAD && n_rows > 256) continue;
            for (enum cuda_gemm_kernel k = CUDA_GEMM_FEW8; k < CUDA_GEMM_END; k++)
                for (int overlap = 0; overlap < 2; overlap++) {
                    const enum cuda_gemm_kernel chosen =
                        cuda_gemm_choose(&weights[m][0], n_rows, matrices[m].segments);
                    const bool many = k >= CUDA_GEMM_MANY128 && k <= CUDA_GEMM_MANY224;
                    const bool twin = k == CUDA_GEMM_FEW8_NVRTC && chosen == CUDA_GEMM_FEW8;
                    float us;

                    /* Beside the one chosen, where the choice might be another. */
                    if (k != chosen && !twin && (n_rows < 128 || n_rows > 512)) continue;
                    if (k != chosen && !twin && (k < CUDA_GEMM_FEW64 || k > CUDA_GEMM_MANY224))
                        continue;
                    if (many && overlap) continue;
                    if (!cuda_gemm_can(k, &weights[m][0], matrices[m].segments)) continue;
                    begin();
                    for (int i = 0; i < n_calls; i++)
                        call(m, m == HEAD ? 0 : i % LAYERS, k, d_x, matrices[m].n_k, d_out, n_rows,
                             overlap);
                    us = median(end(), (uint32_t)n_calls);
                    printf("gemm %-8s rows %5u  %-24s%s %9.2f us  %5.2f TB/s %6.0f TFLOP/s\n",
                           matrices[m].name, n_rows, cuda_gemm_name(k),
                           overlap ? " overlap" : "        ", (double)us, bytes / (double)us * 1e-6,
                           flop / (double)us * 1e-6);
                }
        }
}

/* The four of a layer, each on what the one before gave; the last not fed back, or values would
 * vanish. */
static void bench_layer(void) {
    static const uint32_t counts[] = {1, 8, 16, 32, 64, 128, 256};

    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
        for (int overlap = 0; overlap < 2; overlap++) {
            const uint32_t n_rows = counts[c];
            enum cuda_gemm_kernel k[4];
            float us;

            for (int m = 0; m < 4; m++)
                k[m] = cuda_gemm_choose(&weights[m][0], n_rows, matrices[m].segments);
            begin();
            for (int i = 0; i < 2 * LAYERS; i++) {
                call(0, i % LAYERS, k[0], d_x, 4096, d_out, n_rows, overlap);
                call(1, i % LAYERS, k[1], d_out, 6144, d_o, n_rows, overlap);
                call(2, i % LAYERS, k[2], d_o, 4096, d_h, n_rows, overlap);
                call(3, i % LAYERS, k[3], d_h, 14336, d_y, n_rows, overlap);
            }
            us = median(end(), 2 * LAYERS);
            printf("layer rows %3u%s %8.2f us (floor 95.8)\n", n_rows,
                   overlap ? " overlap" : "        ", (double)us);
        }
}

/* Sequences of `context` positions, the last n of each with a row; pages in no order. */
static const struct attn_case {
    const char *name;
    uint32_t n_seqs, context, n;
} attn_cases[] = {
    {"decode", 1, 1024, 1},   {"decode", 1, 4096, 1},    {"decode", 1, 16384, 1},
    {"decode", 8, 4096, 1},   {"decode", 64, 1024, 1},   {"decode", 64, 4096, 1},
    {"decode", 256, 4096, 1}, {"verify", 1, 4096, 16},   {"verify", 8, 4096, 16},
    {"verify", 64, 4096, 16}, {"prompt", 1, 4096, 4096}, {"prompt", 1, 8192, 8192},
};

enum {
    ATTN_HEADS = 32,
    ATTN_KV_HEADS = 8,
    ATTN_DIM = 128,
    ATTN_TOKENS = 256 * 4096,
    ATTN_PAGES = ATTN_TOKENS / DEVICE_PAGE_TOKENS,
    ATTN_STRIDE = (ATTN_HEADS + 2 * ATTN_KV_HEADS) * ATTN_DIM,
    ATTN_COLD_BYTES = 600 << 20, /* ten times L2 */
};

static uint64_t d_pages, d_table;

static void load_attn(void) {
    const struct cuda_attn_shape shape = {ATTN_HEADS, ATTN_KV_HEADS, ATTN_DIM, 0};
    const uint64_t n_bytes = ATTN_PAGES * cuda_attn_page_bytes(&shape), piece = 64 << 20;
    uint16_t *host = gpu_host(piece);
    uint32_t *table = gpu_host(ATTN_PAGES * sizeof(*table));

    for (size_t i = 0; i < piece / 2; i++) host[i] = gpu_cheap(i, 3, 1.0f);
    d_pages = gpu_take(n_bytes, 0);
    gpu_write(d_pages, host, piece);
    for (uint64_t at = piece; at < n_bytes; at += piece)
        GPU_DRIVER(cuMemcpyDtoDAsync_v2(d_pages + at, d_pages, piece, gpu->stream));
    for (uint32_t i = 0; i < ATTN_PAGES; i++) table[i] = i;
    for (uint32_t i = ATTN_PAGES - 1; i > 0; i--) {
        const uint32_t j = num_random(5, 0, i) % (i + 1), old = table[i];

        table[i] = table[j];
        table[j] = old;
    }
    d_table = gpu_copy_of(table, ATTN_PAGES * sizeof(*table));
    free(host);
    free(table);
}

/* A graph of calls over keys that L2 does not hold. */
static CUgraphExec attn_graph(const struct attn_case *c, uint32_t *out_n_calls) {
    const uint32_t n_seq_pages = c->context / DEVICE_PAGE_TOKENS;
    const struct cuda_attn_shape shape = {ATTN_HEADS, ATTN_KV_HEADS, ATTN_DIM, n_seq_pages};
    const uint32_t n_rows = c->n_seqs * c->n, all = ATTN_PAGES / (c->n_seqs * n_seq_pages);
    const uint64_t n_bytes = (uint64_t)c->n_seqs * c->context * 2 * ATTN_KV_HEADS * ATTN_DIM * 2;
    struct device_row *rows = gpu_host(n_rows * sizeof(*rows));
    struct sm90_attn_tile *tiles = gpu_host(n_rows * sizeof(*tiles));
    struct cuda_attn *attn;
    struct cuda_attn_plan plan;
    struct cuda_attn_args args;
    struct err e = {""};
    uint32_t n_calls = (uint32_t)(ATTN_COLD_BYTES / n_bytes) + 1;

    if (n_calls > all) n_calls = all;
    if (c->n > 64) n_calls = 1;
    for (uint32_t i = 0; i < n_rows; i++)
        rows[i] = (struct device_row){.position = c->context - c->n + i % c->n, .seq = i / c->n};
    GPU_CHECK(cuda_attn_open(gpu, &shape, &attn, &e));
    cuda_attn_plan(attn, rows, n_rows, tiles, &plan);
    args = (struct cuda_attn_args){
        .d_pages = d_pages,
        .d_q = d_x,
        .d_out = gpu_take((size_t)n_rows * ATTN_HEADS * ATTN_DIM * 2, 0),
        .d_flagged = gpu_take(n_rows, 0),
        .d_positions = gpu_copy_of(rows, n_rows * sizeof(*rows)) + sizeof(uint32_t),
        .d_tiles = gpu_copy_of(tiles, n_rows * sizeof(*tiles)),
        .d_work = gpu_take(cuda_attn_work_bytes(attn), 0),
        .q_stride = ATTN_STRIDE,
        .position_stride = sizeof(struct device_row) / 4,
        .split_keys = 512,
    };
    GPU_DRIVER(cuStreamSynchronize(gpu->stream));
    begin();
    for (uint32_t i = 0; i < n_calls; i++) {
        args.d_table = d_table + (uint64_t)i * c->n_seqs * n_seq_pages * 4;
        GPU_CHECK(cuda_attn_run(attn, &plan, &args, &e));
    }
    *out_n_calls = n_calls;
    free(rows);
    free(tiles);
    return end();
}

static double attn_flop(const struct attn_case *c) {
    const double keys = c->context - (c->n - 1) / 2.0;

    return 4.0 * ATTN_HEADS * ATTN_DIM * keys * c->n * c->n_seqs;
}

static void bench_attn(void) {
    for (size_t i = 0; i < sizeof(attn_cases) / sizeof(attn_cases[0]); i++) {
        const struct attn_case *c = &attn_cases[i];
        const double bytes = 4.0 * ATTN_KV_HEADS * ATTN_DIM * c->context * c->n_seqs;
        uint32_t n_calls;
        CUgraphExec exec = attn_graph(c, &n_calls);
        float us = median(exec, n_calls);

        printf("attn %s %3u x %5u, %4u rows each: %9.2f us  %5.2f TB/s %6.0f TFLOP/s\n", c->name,
               c->n_seqs, c->context, c->n, (double)us, bytes / (double)us * 1e-6,
               attn_flop(c) / (double)us * 1e-6);
    }
}

int main(int n, char **arguments) {
    struct err e = {""};
    int r = gpu_open();

    if (r) return r;
    GPU_CHECK(cuda_gemm_open(gpu, &gemm, &e));
    load();
    load_attn();
    for (int i = 1; i < n; i++) {
        if (strcmp(arguments[i], "attn") == 0) bench_attn();
        if (strcmp(arguments[i], "gemm") == 0) bench_gemm();
        if (strcmp(arguments[i], "layer") == 0) bench_layer();
    }
    return 0;
}

#else

int main(void) {
    return 77;
}

#endif
