/* cpu_pool - a fixed set of threads that share out the items of one job after another.
 *
 * Owns:   its threads, from open to close.
 * Thread: `run` and `close` by the thread that opened it, which works too, as thread 0.
 * Fails:  -ENOMEM  a thread could not be started
 *
 * Items are claimed one by one, so which thread does which is open and must not show in results.
 * A thread that comes late finds nothing left and is not waited for.  Idle threads look for the
 * next job for some microseconds, since jobs of a step follow each other closely, then sleep. */
#ifndef LLM42D_RUNTIME_CPU_POOL_H
#define LLM42D_RUNTIME_CPU_POOL_H

#include <stdint.h>

struct cpu_pool;
struct err;

enum { CPU_POOL_THREADS_MAX = 256 };

/* `thread` is below cpu_pool_threads, and no two items run at once with the same one. */
typedef void cpu_pool_item(void *ctx, uint32_t item, uint32_t thread);

/* Processors that threads may have, 1 .. most. */
uint32_t cpu_pool_processors(uint32_t most);

int cpu_pool_open(uint32_t n_threads, struct cpu_pool **out_pool, struct err *e);
void cpu_pool_close(struct cpu_pool *pool);

uint32_t cpu_pool_threads(const struct cpu_pool *pool);

/* Returns when every item is done. */
void cpu_pool_run(struct cpu_pool *pool, uint32_t n_items, cpu_pool_item *fn, void *ctx);

#endif
