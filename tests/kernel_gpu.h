/* kernel_gpu - what tests and benchmarks of kernels share: a GPU or a skip, buffers, poison. */
#ifndef LLM42D_TESTS_KERNEL_GPU_H
#define LLM42D_TESTS_KERNEL_GPU_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda_driver.h"
#include "runtime/err.h"
#include "runtime/num.h"

enum { GPU_SKIPPED = 77, GPU_POISON = 0xff };

static struct cuda_driver *gpu;

#define GPU_CHECK(call)                                                           \
    do {                                                                          \
        struct err e_ = {""};                                                     \
        int r_ = (call);                                                          \
        if (r_ < 0) {                                                             \
            printf("%s:%d: %s: %d %s\n", __FILE__, __LINE__, #call, r_, e_.text); \
            exit(1);                                                              \
        }                                                                         \
    } while (0)
#define GPU_DRIVER(call) GPU_CHECK(cuda_driver_check(gpu, gpu->cuda.call, #call, &e_))

/* 0, or the exit status. */
static inline int gpu_open(void) {
    const struct cuda_driver_options options = {.cache_folder = getenv("LLM42_CACHE"),
                                                .nvrtc_folder = getenv("LLM42_NVRTC")};
    struct err e = {""};
    int r = cuda_driver_open(&options, &gpu, &e);

    if (r == 0) return 0;
    printf("%s\n", e.text);
    return r == -ENODEV ? GPU_SKIPPED : 1;
}

static inline uint64_t gpu_take(size_t n_bytes, unsigned char fill) {
    CUdeviceptr p;

    GPU_DRIVER(cuMemAlloc_v2(&p, n_bytes));
    GPU_DRIVER(cuMemsetD8Async(p, fill, n_bytes, gpu->stream));
    return p;
}

/* Of weights, which stand at a multiple of 1024: small ones may not, large ones do. */
static inline uint64_t gpu_take_image(size_t n_bytes) {
    return gpu_take(n_bytes < 2u << 20 ? 2u << 20 : n_bytes, 0);
}

static inline void gpu_give(uint64_t p) {
    GPU_DRIVER(cuStreamSynchronize(gpu->stream));
    GPU_DRIVER(cuMemFree_v2(p));
}

static inline void gpu_write(uint64_t to, const void *from, size_t n_bytes) {
    GPU_DRIVER(cuMemcpyHtoDAsync_v2(to, from, n_bytes, gpu->stream));
    GPU_DRIVER(cuStreamSynchronize(gpu->stream));
}

static inline void gpu_read(void *to, uint64_t from, size_t n_bytes) {
    GPU_DRIVER(cuMemcpyDtoHAsync_v2(to, from, n_bytes, gpu->stream));
    GPU_DRIVER(cuStreamSynchronize(gpu->stream));
}

static inline uint64_t gpu_copy_of(const void *from, size_t n_bytes) {
    uint64_t p = gpu_take(n_bytes, GPU_POISON);

    gpu_write(p, from, n_bytes);
    return p;
}

static inline void *gpu_host(size_t n_bytes) {
    void *p = malloc(n_bytes);

    if (!p) {
        printf("no memory: %zu bytes\n", n_bytes);
        exit(1);
    }
    return p;
}

/* Near normal: a sum of four uniform values, of unit variance. */
static inline float gpu_normal(uint32_t seed, uint32_t row, uint32_t i) {
    uint32_t a = num_random(seed, row, i), b = a * 2654435761u + row;
    float sum = (float)((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16));

    return (sum / 65536.0f - 2.0f) * 1.7320508f;
}

/* The same, in bf16 and of a cheap hash, for large arrays. */
static inline uint16_t gpu_cheap(uint64_t i, uint64_t seed, float scale) {
    uint64_t h = (i + seed * 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull;
    float sum;

    h ^= h >> 32;
    h *= 0xc4ceb9fe1a85ec53ull;
    sum = (float)((h & 0xffff) + (h >> 16 & 0xffff) + (h >> 32 & 0xffff) + (h >> 48));
    return num_to_bf16((sum / 65536.0f - 2.0f) * 1.7320508f * scale);
}

#endif
