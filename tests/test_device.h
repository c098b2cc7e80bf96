/* The device that a test's engine computes on: the twin, or with LLM42_DEVICE=cuda the GPU, which
 * is opened once and loaded anew by each engine. */
#ifndef LLM42D_TESTS_TEST_DEVICE_H
#define LLM42D_TESTS_TEST_DEVICE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device.h"
#include "runtime/device_cuda.h"
#include "runtime/err.h"

static inline bool test_device_is_cuda(void) {
    const char *name = getenv("LLM42_DEVICE");

    return name && !strcmp(name, "cuda");
}

static inline struct device *test_twin_open(uint32_t n_threads, bool portable) {
    const struct device_cpu_options o = {.n_threads = n_threads, .portable = portable};
    struct device *dev = NULL;
    struct err e = {{0}};

    if (device_cpu_open(&o, &dev, &e) == 0) return dev;
    printf("%s\n", e.text);
    exit(1);
}

static inline void test_device_kept(struct device *dev) {
    (void)dev;
}

/* n_threads and portable are of the twin alone. */
static inline struct device *test_device_open(uint32_t n_threads, bool portable) {
    static struct device *gpu;
    static struct device_ops ops;
    struct device_cuda_options o = {.cache_folder = getenv("LLM42_CUDA_CACHE"),
                                    .no_graphs = getenv("LLM42_CUDA_NO_GRAPHS") != NULL,
                                    .normed_bytes = 1};
    struct err e = {{0}};

    if (!test_device_is_cuda()) return test_twin_open(n_threads, portable);
    if (gpu) return gpu;
    if (device_cuda_open(&o, &gpu, &e) < 0) {
        printf("%s\n", e.text);
        exit(1);
    }
    ops = *gpu->ops;
    ops.close = test_device_kept;
    gpu->ops = &ops;
    return gpu;
}

#endif
