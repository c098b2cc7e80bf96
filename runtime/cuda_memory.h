/* cuda_memory - memory of the GPU, planned whole before the first byte of it is taken.
 *
 * Owns:   all it took, until close.
 * Thread: start-up only.
 * Fails:  -ENOMEM  it does not fit: the text has what is needed, what is free and which buffer is
 *                  the largest of its kind
 *         -EIO     the device is lost
 *
 * The same code runs twice: with `planning` set, take only counts; then fits judges the sum; then
 * take takes.  Plain allocations, as nothing is given back before the end. */
#ifndef LLM42D_RUNTIME_CUDA_MEMORY_H
#define LLM42D_RUNTIME_CUDA_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/libcuda.h"

struct cuda_driver;
struct err;

enum cuda_memory_kind { CUDA_MEMORY_WEIGHTS, CUDA_MEMORY_KV, CUDA_MEMORY_WORK, CUDA_MEMORY_KINDS };

struct cuda_memory {
    struct cuda_driver *driver;
    bool planning;
    uint64_t n_bytes[CUDA_MEMORY_KINDS];
    uint64_t largest_bytes[CUDA_MEMORY_KINDS];
    const char *largest[CUDA_MEMORY_KINDS]; /* its name */
    CUdeviceptr *blocks;                    /* [n_planned] */
    uint32_t n_planned, n_blocks;
};

/* n_outer * n_inner values.  What is taken is filled with 0xff, which is a NaN in bf16 and f32: a
 * read of what nobody wrote shows. */
int cuda_memory_take(struct cuda_memory *m, enum cuda_memory_kind kind, const char *what,
                     uint64_t n_outer, uint64_t n_inner, size_t value_bytes, CUdeviceptr *out_block,
                     struct err *e);

/* Ends the planning. */
int cuda_memory_fits(struct cuda_memory *m, struct err *e);

/* Of a planning: what is free beside it, less what is left to the driver; 0 where that is more. */
int cuda_memory_left(struct cuda_memory *m, uint64_t *out_n_bytes, struct err *e);

void cuda_memory_close(struct cuda_memory *m); /* a zeroed one is fine */

#endif
