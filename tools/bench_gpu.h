/* bench_gpu - what benchmarks of kernels share: one GPU, its memory, and times of graphs.
 *
 * Owns:   the GPU and all memory taken, until close.
 * Thread: one.
 * Fails:  opening: as cuda_driver.h; later whatever fails is said and ends the program.
 *
 * A figure is taken of a graph of equal calls, over copies of the data that L2 does not hold, so
 * that launches by the host and caches do not show. */
#ifndef LLM42D_TOOLS_BENCH_GPU_H
#define LLM42D_TOOLS_BENCH_GPU_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/cuda_driver.h"

struct err;

enum {
    BENCH_GPU_COLD_BYTES = 300 << 20, /* five times L2 */
    BENCH_GPU_WARM_NS = 10000000,     /* replays for nothing: clocks as under load */
    BENCH_GPU_TIMED_NS = 15000000,
    BENCH_GPU_REPLAYS_MIN = 5,
    BENCH_GPU_REPLAYS_MAX = 400,
    BENCH_GPU_REPLAYS_PAUSED = 3,
    BENCH_GPU_TAKEN_MAX = 512,
};

struct bench_gpu {
    struct cuda_driver *driver;
    CUevent from, to;
    CUdeviceptr d_lead; /* what one block writes before a graph is timed */
    uint32_t n_taken, n_drawn;
    CUdeviceptr taken[BENCH_GPU_TAKEN_MAX];
};

struct bench_graph {
    CUgraphExec exec;
    uint32_t n_calls;
};

int bench_gpu_open(const char *cache_folder, struct bench_gpu *out_g, struct err *e);
void bench_gpu_close(struct bench_gpu *g);

/* Ends the program where r is a failure. */
void bench_gpu_must(int r, const struct err *e);
void bench_gpu_check(struct bench_gpu *g, CUresult result, const char *what);

/* Given back by release, which gives what was taken since there were `n_taken`.  Filled with
 * 0xff. */
CUdeviceptr bench_gpu_take(struct bench_gpu *g, size_t n_bytes);
void bench_gpu_release(struct bench_gpu *g, uint32_t n_taken);
void bench_gpu_zero(struct bench_gpu *g, CUdeviceptr at, size_t n_bytes);
void bench_gpu_poison(struct bench_gpu *g, CUdeviceptr at, size_t n_bytes); /* with 0xff */
/* n bf16 values between -scale and scale, others at each call. */
void bench_gpu_random(struct bench_gpu *g, CUdeviceptr at, uint64_t n, float scale);
CUdeviceptr bench_gpu_copy_of(struct bench_gpu *g, const void *from, size_t n_bytes);
void bench_gpu_read(struct bench_gpu *g, void *to, CUdeviceptr from, size_t n_bytes);

/* What is queued between the two becomes a graph of n calls. */
void bench_gpu_begin(struct bench_gpu *g);
struct bench_graph bench_gpu_end(struct bench_gpu *g, uint32_t n_calls);
void bench_gpu_drop(struct bench_gpu *g, struct bench_graph *graph);

/* The median of replays, in microseconds a call.  With a pause each begins after it, behind some
 * work of one block, which hides how long a host that slept takes to queue a graph; without one
 * they go one after another, after some for nothing, so the card may be at its power limit. */
double bench_gpu_time(struct bench_gpu *g, const struct bench_graph *graph, double pause_ms);

#endif
