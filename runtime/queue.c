#include "runtime/queue.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/err.h"

struct queue {
    _Alignas(64) atomic_uint n_put;   /* since open, modulo 2^32; on lines of their own, as each */
    _Alignas(64) atomic_uint n_taken; /* is written by one thread and read by the other */
    _Alignas(64) uint32_t mask;
    uint32_t item_bytes;
    uint8_t *items;
};

int queue_open(uint32_t n_items, uint32_t item_bytes, struct queue **out_queue, struct err *e) {
    struct queue *q;
    uint32_t n = 2;

    ASSERT(n_items > 0 && n_items <= 1u << 24 && item_bytes > 0);

    while (n < n_items) n *= 2;
    q = aligned_alloc(64, (sizeof(*q) + 63) / 64 * 64);
    if (!q) return err_set(e, -ENOMEM, "queue of %u items", n);

    memset(q, 0, sizeof(*q));
    q->mask = n - 1;
    q->item_bytes = item_bytes;
    q->items = calloc(n, item_bytes);
    if (!q->items) {
        queue_close(q);
        return err_set(e, -ENOMEM, "queue of %u items of %u bytes", n, item_bytes);
    }
    *out_queue = q;
    return 0;
}

void queue_close(struct queue *q) {
    if (!q) return;

    free(q->items);
    free(q);
}

bool queue_put(struct queue *q, const void *item) {
    unsigned put = atomic_load_explicit(&q->n_put, memory_order_relaxed);
    unsigned taken = atomic_load_explicit(&q->n_taken, memory_order_acquire);

    if (put - taken > q->mask) return false;

    memcpy(q->items + (size_t)(put & q->mask) * q->item_bytes, item, q->item_bytes);
    atomic_store_explicit(&q->n_put, put + 1, memory_order_release);
    return true;
}

bool queue_take(struct queue *q, void *out_item) {
    unsigned taken = atomic_load_explicit(&q->n_taken, memory_order_relaxed);
    unsigned put = atomic_load_explicit(&q->n_put, memory_order_acquire);

    if (put == taken) return false;

    memcpy(out_item, q->items + (size_t)(taken & q->mask) * q->item_bytes, q->item_bytes);
    atomic_store_explicit(&q->n_taken, taken + 1, memory_order_release);
    return true;
}

uint32_t queue_room(const struct queue *q) {
    struct queue *mutable = (struct queue *)(uintptr_t)q; /* atomic_load of C11 takes no const */
    unsigned put = atomic_load_explicit(&mutable->n_put, memory_order_relaxed);
    unsigned taken = atomic_load_explicit(&mutable->n_taken, memory_order_acquire);

    return q->mask + 1 - (put - taken);
}
