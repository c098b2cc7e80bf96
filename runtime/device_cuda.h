/* device_cuda - the device of device.h on one NVIDIA GPU of compute capability 9.0.
 *
 * Owns:   see device.h; the GPU's context and its kernels, from open to close.
 * Thread: see device.h.
 *
 * Its load takes weights of NULL: then they are made up, by the seed, without a file.
 * Fails:  -ENODEV  built without CUDA; no driver, no NVRTC, no such GPU, or not of compute
 *                  capability 9.0: the text says which
 *         -EINVAL  a kernel does not compile or load
 *         -ENOMEM  */
#ifndef LLM42D_RUNTIME_DEVICE_CUDA_H
#define LLM42D_RUNTIME_DEVICE_CUDA_H

#include <stdbool.h>
#include <stdint.h>

struct cuda_driver;
struct device;
struct err;

struct device_cuda_options {
    int ordinal;              /* which GPU */
    const char *cache_folder; /* of compiled kernels, or NULL: none is kept */
    const char *nvrtc_folder; /* or NULL: the usual places */
    uint64_t seed;            /* of made-up weights, where load gets none */
    bool no_graphs;           /* every kernel launched by itself, for tests and profilers */
    uint64_t normed_bytes;    /* from so many bytes of weights on a product norms its few rows
                                 itself; 0: from 8 MiB on, where that pays */
};

/* Whether this program has the CUDA device at all. */
bool device_cuda_built(void);

int device_cuda_open(const struct device_cuda_options *options, struct device **out_dev,
                     struct err *e);

/* How the last load from files went: bytes of weights, and how long they took to be on the GPU as
 * kernels want them.  And the driver below, for benchmarks.  Neither is there without CUDA. */
void device_cuda_upload(const struct device *dev, uint64_t *out_bytes, uint64_t *out_us);
struct cuda_driver *device_cuda_driver(struct device *dev);

#endif
