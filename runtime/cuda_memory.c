#ifdef LLM42_CUDA

#include "runtime/cuda_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/cuda_driver.h"
#include "runtime/err.h"

enum {
    ALIGN_BYTES = 1024,
    MEGABYTE = 1 << 20,
    RESERVE_BYTES = 256 * MEGABYTE, /* left to the driver: kernels, graphs, alignment */
};

static const char *const kinds[] = {"weights", "KV pages", "work"};

int cuda_memory_take(struct cuda_memory *m, enum cuda_memory_kind kind, const char *what,
                     uint64_t n_outer, uint64_t n_inner, size_t value_bytes, CUdeviceptr *out_block,
                     struct err *e) {
    struct cuda_driver *d = m->driver;
    CUdeviceptr block;
    uint64_t n_bytes;
    int r;

    if (__builtin_mul_overflow(n_outer, n_inner, &n_bytes) ||
        __builtin_mul_overflow(n_bytes, value_bytes, &n_bytes) || n_bytes > SIZE_MAX / 2)
        return err_set(e, -ENOMEM, "%s: %llu times %llu values are more than can be addressed",
                       what, (unsigned long long)n_outer, (unsigned long long)n_inner);
    n_bytes = (n_bytes + ALIGN_BYTES) / ALIGN_BYTES * ALIGN_BYTES;
    if (m->planning) {
        m->n_bytes[kind] += n_bytes;
        m->n_planned++;
        if (n_bytes > m->largest_bytes[kind]) {
            m->largest_bytes[kind] = n_bytes;
            m->largest[kind] = what;
        }
        *out_block = 0;
        return 0;
    }
    ASSERT(m->n_blocks < m->n_planned);
    r = cuda_driver_check(d, d->cuda.cuMemAlloc_v2(&block, n_bytes), what, e);
    if (r < 0) return r;
    m->blocks[m->n_blocks++] = block;
    r = cuda_driver_check(d, d->cuda.cuMemsetD8Async(block, 0xff, n_bytes, d->stream), what, e);
    if (r < 0) return r;
    *out_block = block;
    return 0;
}

int cuda_memory_left(struct cuda_memory *m, uint64_t *out_n_bytes, struct err *e) {
    struct cuda_driver *d = m->driver;
    uint64_t n_needed = RESERVE_BYTES;
    size_t n_free, n_total;
    int r = cuda_driver_check(d, d->cuda.cuMemGetInfo_v2(&n_free, &n_total), "free memory", e);

    if (r < 0) return r;
    for (enum cuda_memory_kind kind = 0; kind < CUDA_MEMORY_KINDS; kind++)
        n_needed += m->n_bytes[kind];
    *out_n_bytes = n_needed < n_free ? n_free - n_needed : 0;
    return 0;
}

int cuda_memory_fits(struct cuda_memory *m, struct err *e) {
    struct cuda_driver *d = m->driver;
    uint64_t n_needed = RESERVE_BYTES;
    enum cuda_memory_kind largest = 0;
    size_t n_free, n_total;
    int r = cuda_driver_check(d, d->cuda.cuMemGetInfo_v2(&n_free, &n_total), "free memory", e);

    if (r < 0) return r;
    for (enum cuda_memory_kind kind = 0; kind < CUDA_MEMORY_KINDS; kind++) {
        n_needed += m->n_bytes[kind];
        if (m->n_bytes[kind] > m->n_bytes[largest]) largest = kind;
    }
    if (n_needed > n_free)
        return err_set(e, -ENOMEM,
                       "%s: %llu MiB are needed, %llu of weights, %llu of KV pages, %llu of work, "
                       "and %llu are free: %llu MiB short; most goes to %s (%s)",
                       d->name, (unsigned long long)(n_needed / MEGABYTE),
                       (unsigned long long)(m->n_bytes[CUDA_MEMORY_WEIGHTS] / MEGABYTE),
                       (unsigned long long)(m->n_bytes[CUDA_MEMORY_KV] / MEGABYTE),
                       (unsigned long long)(m->n_bytes[CUDA_MEMORY_WORK] / MEGABYTE),
                       (unsigned long long)(n_free / MEGABYTE),
                       (unsigned long long)((n_needed - n_free) / MEGABYTE + 1), kinds[largest],
                       m->largest[largest]);
    m->planning = false;
    m->blocks = calloc(m->n_planned, sizeof(*m->blocks));
    if (!m->blocks) return err_set(e, -ENOMEM, "CUDA: a table of %u buffers", m->n_planned);
    return 0;
}

void cuda_memory_close(struct cuda_memory *m) {
    for (uint32_t i = 0; i < m->n_blocks; i++) (void)m->driver->cuda.cuMemFree_v2(m->blocks[i]);
    free(m->blocks);
    memset(m, 0, sizeof(*m));
}

#endif
