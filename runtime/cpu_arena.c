#include "runtime/cpu_arena.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/assert.h"
#include "runtime/err.h"

enum { ALIGN_BYTES = 64, LARGE_PAGE_BYTES = 2 << 20 };

int cpu_arena_take(struct cpu_arena *a, uint64_t n_values, size_t value_bytes, const char *what,
                   void *out_at, struct err *e) {
    size_t n_bytes;
    void *at = NULL;

    /* Half of all addresses leaves room for every rounding up. */
    if (__builtin_mul_overflow(n_values, value_bytes, &n_bytes) || n_bytes > SIZE_MAX / 2 ||
        a->n_bytes > SIZE_MAX / 2 - n_bytes)
        return err_set(e, -ENOMEM, "%s: %llu times %zu bytes are more than can be addressed", what,
                       (unsigned long long)n_values, value_bytes);
    n_bytes = (n_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    if (a->base) {
        ASSERT(n_bytes <= a->n_bytes - a->n_used);
        at = a->base + a->n_used;
        a->n_used += n_bytes;
    } else {
        a->n_bytes += n_bytes;
    }
    memcpy(out_at, &at, sizeof(at));
    return 0;
}

int cpu_arena_map(struct cpu_arena *a, const char *what, struct err *e) {
    /* Whole large pages, so that the last one is large too, and one more to begin at a border. */
    const size_t n_bytes =
        (a->n_bytes + LARGE_PAGE_BYTES - 1) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
    const size_t n_mapped = n_bytes + LARGE_PAGE_BYTES;
    size_t n_before;
    unsigned char *at;

    ASSERT(!a->base && a->n_bytes > 0);
    at = mmap(NULL, n_mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return err_set(e, -ENOMEM, "%s: %zu bytes", what, a->n_bytes);
    n_before = -(uintptr_t)at % LARGE_PAGE_BYTES;
    if (n_before > 0) (void)munmap(at, n_before);
    (void)munmap(at + n_before + n_bytes, LARGE_PAGE_BYTES - n_before);
    a->base = at + n_before;
    a->n_bytes = n_bytes;
    /* A kernel without them refuses, and the usual ones do. */
    (void)madvise(a->base, a->n_bytes, MADV_HUGEPAGE);
    return 0;
}

void cpu_arena_close(struct cpu_arena *a) {
    if (a->base) (void)munmap(a->base, a->n_bytes);
    *a = (struct cpu_arena){0};
}
