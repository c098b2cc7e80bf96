/* cpu_arena - memory in one mapping, counted first and then handed out, given back whole.
 *
 * Owns:   the mapping, from map to close.
 * Thread: one.
 * Fails:  -ENOMEM  with what is wanted, and the bytes where they can be told
 *
 * The mapping begins at a large page and asks for large ones: a step reads all weights once, and
 * with pages of 4 KiB the walks of the page tables cost it a tenth of its time and more.
 *
 * The same calls of `take` are made twice: before `map` they count, after it they hand out. */
#ifndef LLM42D_RUNTIME_CPU_ARENA_H
#define LLM42D_RUNTIME_CPU_ARENA_H

#include <stddef.h>
#include <stdint.h>

struct err;

struct cpu_arena {
    unsigned char *base; /* NULL until it is mapped */
    size_t n_bytes;      /* counted */
    size_t n_used;       /* handed out */
};

/* Room for n values, aligned for any vector; *out_at, a pointer to a pointer, is NULL while
 * counting. */
int cpu_arena_take(struct cpu_arena *a, uint64_t n_values, size_t value_bytes, const char *what,
                   void *out_at, struct err *e);

/* Takes from the system what was counted.  Its pages come as they are written. */
int cpu_arena_map(struct cpu_arena *a, const char *what, struct err *e);

void cpu_arena_close(struct cpu_arena *a); /* not mapped, too */

#endif
