#ifdef LLM42_CUDA

#include "tools/bench_gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/assert.h"
#include "runtime/err.h"
#include "tools/bench_report.h"

enum {
    RANDOM_BLOCKS = 132 * 8,
    RANDOM_THREADS = 256,
    LEAD_VALUES = 65536, /* by one block some 0.1 ms */
};

void bench_gpu_must(int r, const struct err *e) {
    if (r >= 0) return;
    bench_say("%s", e->text);
    exit(BENCH_FAILED);
}

void bench_gpu_check(struct bench_gpu *g, CUresult result, const char *what) {
    struct err e = {""};

    bench_gpu_must(cuda_driver_check(g->driver, result, what, &e), &e);
}

#define CHECK(g, call) bench_gpu_check(g, (g)->driver->cuda.call, #call)

int bench_gpu_open(const char *cache_folder, struct bench_gpu *out_g, struct err *e) {
    const struct cuda_driver_options options = {.cache_folder = cache_folder};
    struct bench_gpu *g = out_g;
    int r;

    *g = (struct bench_gpu){.driver = NULL};
    r = cuda_driver_open(&options, &g->driver, e);
    if (r < 0) return r;
    CHECK(g, cuEventCreate(&g->from, 0));
    CHECK(g, cuEventCreate(&g->to, 0));
    CHECK(g, cuMemAlloc_v2(&g->d_lead, LEAD_VALUES * sizeof(uint16_t)));
    return 0;
}

void bench_gpu_close(struct bench_gpu *g) {
    bench_gpu_release(g, 0);
    CHECK(g, cuEventDestroy_v2(g->from));
    CHECK(g, cuEventDestroy_v2(g->to));
    CHECK(g, cuMemFree_v2(g->d_lead));
    cuda_driver_close(g->driver);
}

CUdeviceptr bench_gpu_take(struct bench_gpu *g, size_t n_bytes) {
    CUdeviceptr p = 0;

    ASSERT(g->n_taken < BENCH_GPU_TAKEN_MAX);
    CHECK(g, cuMemAlloc_v2(&p, n_bytes));
    bench_gpu_poison(g, p, n_bytes);
    g->taken[g->n_taken++] = p;
    return p;
}

void bench_gpu_release(struct bench_gpu *g, uint32_t n_taken) {
    CHECK(g, cuStreamSynchronize(g->driver->stream));
    while (g->n_taken > n_taken) CHECK(g, cuMemFree_v2(g->taken[--g->n_taken]));
}

void bench_gpu_zero(struct bench_gpu *g, CUdeviceptr at, size_t n_bytes) {
    CHECK(g, cuMemsetD8Async(at, 0, n_bytes, g->driver->stream));
}

void bench_gpu_poison(struct bench_gpu *g, CUdeviceptr at, size_t n_bytes) {
    CHECK(g, cuMemsetD8Async(at, 0xff, n_bytes, g->driver->stream));
}

static void draw(struct bench_gpu *g, CUdeviceptr at, uint64_t n, float scale, uint32_t index,
                 uint32_t n_blocks) {
    uint64_t first = 0, seed = 1;
    float base = 0;
    void *params[] = {&at, &n, &first, &seed, &index, &base, &scale};
    struct cuda_launch launch = {
        .name = "random values", .grid = {n_blocks}, .block = {RANDOM_THREADS}, .params = params};
    struct err e = {""};

    bench_gpu_must(
        cuda_driver_entry(g->driver, "sm90_random_bf16", "sm90_random_bf16", 0, &launch.entry, &e),
        &e);
    bench_gpu_must(cuda_driver_launch(g->driver, &launch, &e), &e);
}

void bench_gpu_random(struct bench_gpu *g, CUdeviceptr at, uint64_t n, float scale) {
    draw(g, at, n, scale, g->n_drawn++, RANDOM_BLOCKS);
}

CUdeviceptr bench_gpu_copy_of(struct bench_gpu *g, const void *from, size_t n_bytes) {
    const CUdeviceptr to = bench_gpu_take(g, n_bytes);

    CHECK(g, cuMemcpyHtoDAsync_v2(to, from, n_bytes, g->driver->stream));
    CHECK(g, cuStreamSynchronize(g->driver->stream));
    return to;
}

void bench_gpu_read(struct bench_gpu *g, void *to, CUdeviceptr from, size_t n_bytes) {
    CHECK(g, cuMemcpyDtoHAsync_v2(to, from, n_bytes, g->driver->stream));
    CHECK(g, cuStreamSynchronize(g->driver->stream));
}

void bench_gpu_begin(struct bench_gpu *g) {
    CHECK(g, cuStreamSynchronize(g->driver->stream));
    CHECK(g, cuStreamBeginCapture_v2(g->driver->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
}

struct bench_graph bench_gpu_end(struct bench_gpu *g, uint32_t n_calls) {
    struct bench_graph graph = {.n_calls = n_calls};
    CUgraph recorded = NULL;

    CHECK(g, cuStreamEndCapture(g->driver->stream, &recorded));
    CHECK(g, cuGraphInstantiateWithFlags(&graph.exec, recorded, 0));
    CHECK(g, cuGraphDestroy(recorded));
    return graph;
}

void bench_gpu_drop(struct bench_gpu *g, struct bench_graph *graph) {
    if (graph->exec) CHECK(g, cuGraphExecDestroy(graph->exec));
    graph->exec = NULL;
}

static double replay_us(struct bench_gpu *g, const struct bench_graph *graph) {
    const CUstream stream = g->driver->stream;
    float ms = 0;

    CHECK(g, cuEventRecord(g->from, stream));
    CHECK(g, cuGraphLaunch(graph->exec, stream));
    CHECK(g, cuEventRecord(g->to, stream));
    CHECK(g, cuStreamSynchronize(stream));
    CHECK(g, cuEventElapsedTime(&ms, g->from, g->to));
    return (double)ms * 1000 / graph->n_calls;
}

static double paused_us(struct bench_gpu *g, const struct bench_graph *graph, double pause_ms) {
    const int64_t ns = (int64_t)(pause_ms * 1e6);
    const struct timespec whole = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    double us[BENCH_GPU_REPLAYS_PAUSED];

    for (int i = 0; i < BENCH_GPU_REPLAYS_PAUSED; i++) {
        struct timespec pause = whole;

        while (nanosleep(&pause, &pause) < 0 && errno == EINTR) continue;
        draw(g, g->d_lead, LEAD_VALUES, 1.0f, 0, 1);
        us[i] = replay_us(g, graph);
    }
    return bench_quantile(us, BENCH_GPU_REPLAYS_PAUSED, 0.5);
}

double bench_gpu_time(struct bench_gpu *g, const struct bench_graph *graph, double pause_ms) {
    const int64_t warm_ns = bench_now_ns() + BENCH_GPU_WARM_NS;
    const int64_t end_ns = warm_ns + BENCH_GPU_TIMED_NS;
    double us[BENCH_GPU_REPLAYS_MAX];
    size_t n = 0;

    if (pause_ms > 0) return paused_us(g, graph, pause_ms);
    do (void)replay_us(g, graph);
    while (bench_now_ns() < warm_ns);
    while (n < BENCH_GPU_REPLAYS_MIN || (n < BENCH_GPU_REPLAYS_MAX && bench_now_ns() < end_ns))
        us[n++] = replay_us(g, graph);
    return bench_quantile(us, n, 0.5);
}

#endif
