#include "runtime/cpu_pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/assert.h"
#include "runtime/err.h"

enum {
    SPIN_NS = 20000, /* the longest pause within a step is shorter */
    SPIN_CHECK = 64, /* looks between two readings of the clock */
    WAIT_NS = 30000, /* an item's thread may have lost its processor: leave ours to it */
};

/* What a thread is told when it starts. */
struct start {
    struct cpu_pool *pool;
    uint32_t thread;
};

/* A job is one word: its number, and how many of its items nobody has claimed.  A claim is one
 * compare-and-exchange of it, so nobody claims from a job that has passed. */
struct cpu_pool {
    _Alignas(64) _Atomic uint64_t job; /* number << 32 | unclaimed */
    _Alignas(64) _Atomic uint32_t n_done;
    atomic_bool waiting;                /* for the last item, asleep */
    _Alignas(64) _Atomic uint32_t bell; /* counts jobs, for who sleeps */
    _Atomic uint32_t n_sleeping;
    atomic_bool closing;

    /* Of the job; whoever has claimed an item may read them. */
    cpu_pool_item *fn;
    void *ctx;
    uint32_t n_items;

    uint32_t n_threads, n_started;
    pthread_t threads[CPU_POOL_THREADS_MAX];
    struct start starts[CPU_POOL_THREADS_MAX];
};

static uint64_t now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void wake(_Atomic uint32_t *at) {
    syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, CPU_POOL_THREADS_MAX, NULL, NULL, 0);
}

/* Works until nothing of the current job is left. */
static void work(struct cpu_pool *p, uint32_t thread) {
    uint64_t job = atomic_load_explicit(&p->job, memory_order_acquire);

    while ((uint32_t)job) {
        if (!atomic_compare_exchange_weak_explicit(&p->job, &job, job - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        p->fn(p->ctx, p->n_items - (uint32_t)job, thread);
        /* Counted before the look at `waiting`, which is set before the count is looked at. */
        atomic_fetch_add(&p->n_done, 1);
        if (thread > 0 && atomic_load(&p->waiting)) wake(&p->n_done);
        job = atomic_load_explicit(&p->job, memory_order_acquire);
    }
}

static void sleep_while(_Atomic uint32_t *at, uint32_t value) {
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void sleep_until_rung(struct cpu_pool *p, uint32_t bell) {
    atomic_fetch_add(&p->n_sleeping, 1);
    /* The kernel compares again: a bell rung since is not slept through. */
    while (atomic_load(&p->bell) == bell && !atomic_load(&p->closing)) sleep_while(&p->bell, bell);
    atomic_fetch_sub(&p->n_sleeping, 1);
}

static void ring(struct cpu_pool *p) {
    atomic_fetch_add(&p->bell, 1);
    if (atomic_load(&p->n_sleeping)) wake(&p->bell);
}

static void *thread_main(void *arg) {
    const struct start *start = arg;
    struct cpu_pool *p = start->pool;
    uint64_t idle_since = now_ns();
    uint32_t bell = 0;

    for (uint32_t look = 1; !atomic_load_explicit(&p->closing, memory_order_relaxed); look++) {
        if ((uint32_t)atomic_load_explicit(&p->job, memory_order_relaxed)) {
            work(p, start->thread);
            idle_since = now_ns();
            look = 0;
        } else if (look % SPIN_CHECK == 0 && now_ns() - idle_since > SPIN_NS) {
            bell = atomic_load(&p->bell);
            if ((uint32_t)atomic_load(&p->job)) continue;
            sleep_until_rung(p, bell);
            idle_since = now_ns();
        }
        relax();
    }
    return NULL;
}

static int start_thread(struct cpu_pool *p, uint32_t thread) {
    sigset_t all, before;
    int r;

    p->starts[thread] = (struct start){p, thread};
    /* Signals are for the daemon's own thread. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&p->threads[p->n_started], NULL, thread_main, &p->starts[thread]);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r == 0) p->n_started++;
    return r;
}

uint32_t cpu_pool_processors(uint32_t most) {
    const long n = sysconf(_SC_NPROCESSORS_ONLN);

    return n < 1 ? 1 : (unsigned long)n < most ? (uint32_t)n : most;
}

int cpu_pool_open(uint32_t n_threads, struct cpu_pool **out_pool, struct err *e) {
    struct cpu_pool *p;

    ASSERT(n_threads >= 1 && n_threads <= CPU_POOL_THREADS_MAX);
    p = aligned_alloc(_Alignof(struct cpu_pool), sizeof(*p));
    if (!p) return err_set(e, -ENOMEM, "cpu pool: %zu bytes", sizeof(*p));
    memset(p, 0, sizeof(*p));
    p->n_threads = n_threads;
    for (uint32_t i = 1; i < n_threads; i++) {
        int r = start_thread(p, i);

        if (r) {
            cpu_pool_close(p);
            return err_set(e, -ENOMEM, "cpu pool: thread %u of %u: %s", i + 1, n_threads,
                           strerror(r));
        }
    }
    *out_pool = p;
    return 0;
}

void cpu_pool_close(struct cpu_pool *pool) {
    if (!pool) return;
    atomic_store(&pool->closing, true);
    ring(pool);
    for (uint32_t i = 0; i < pool->n_started; i++) pthread_join(pool->threads[i], NULL);
    free(pool);
}

uint32_t cpu_pool_threads(const struct cpu_pool *pool) {
    return pool->n_threads;
}

/* Others have claimed what is not done.  A thread that keeps its processor is done soon; for one
 * that has lost it we sleep, not yield: an idle processor takes it over from the one where it
 * queues. */
static void wait_done(struct cpu_pool *p, uint32_t n_items) {
    uint64_t since = 0;
    uint32_t n;

    for (uint32_t look = 1; atomic_load_explicit(&p->n_done, memory_order_acquire) < n_items;
         look++) {
        relax();
        if (look % SPIN_CHECK) continue;
        if (since == 0) {
            since = now_ns();
        } else if (now_ns() - since > WAIT_NS) {
            atomic_store(&p->waiting, true);
            while ((n = atomic_load(&p->n_done)) < n_items) sleep_while(&p->n_done, n);
            atomic_store(&p->waiting, false);
        }
    }
}

void cpu_pool_run(struct cpu_pool *p, uint32_t n_items, cpu_pool_item *fn, void *ctx) {
    uint64_t number = atomic_load_explicit(&p->job, memory_order_relaxed) >> 32;

    /* Nothing to share: not worth waking anybody. */
    if (n_items == 1 || p->n_threads == 1) {
        for (uint32_t i = 0; i < n_items; i++) fn(ctx, i, 0);
        return;
    }
    if (n_items == 0) return;
    p->fn = fn;
    p->ctx = ctx;
    p->n_items = n_items;
    atomic_store_explicit(&p->n_done, 0, memory_order_relaxed);
    atomic_store_explicit(&p->job, (number + 1) << 32 | n_items, memory_order_release);
    ring(p);

    work(p, 0);
    wait_done(p, n_items);
}
