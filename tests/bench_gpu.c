/* bench_gpu - times of the GPU's kernels at the shapes of an 8B model, in graphs of equal calls
 * over weights and keys that L2 does not hold: medians of replays, in microseconds.
 *
 *     bench_gpu [gemm|layer|attn ..] */
#ifdef LLM42_CUDA

#include "runtime/cuda_gemm.h"
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

static void call(int m, int l, int kernel, uint64_t x, uint32_t x_stride, uint64_t out,
                 uint32_t n_rows, bool overlap) {
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
            for (int k = CUDA_GEMM_FEW8; k < CUDA_GEMM_END; k++)
                for (int overlap = 0; overlap < 2; overlap++) {
                    const int chosen =
                        (int)cuda_gemm_choose(&weights[m][0], n_rows, matrices[m].segments);
                    const bool many = k >= CUDA_GEMM_MANY128;
                    float us;

                    /* Beside the one chosen, where the choice might be another. */
                    if (k != chosen && (n_rows < 128 || n_rows > 512)) continue;
                    if (k != chosen && k < CUDA_GEMM_FEW64) continue;
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
            int k[4];
            float us;

            for (int m = 0; m < 4; m++)
                k[m] = (int)cuda_gemm_choose(&weights[m][0], n_rows, matrices[m].segments);
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

int main(int n, char **arguments) {
    struct err e = {""};
    int r = gpu_open();

    if (r) return r;
    GPU_CHECK(cuda_gemm_open(gpu, &gemm, &e));
    load();
    for (int i = 1; i < n; i++) {
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
