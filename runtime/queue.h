/* queue - a ring of fixed items between two threads: one puts, one takes.
 *
 * Owns:   its items, made at open.
 * Thread: put and room by one thread, take by one other; no lock, the two indices are atomic.
 *
 * What was put is seen whole by the taker: the index is released after the item is written. */
#ifndef LLM42D_RUNTIME_QUEUE_H
#define LLM42D_RUNTIME_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct queue;

/* 0 and *out_queue, or -ENOMEM.  n_items is rounded up to a power of two. */
int queue_open(uint32_t n_items, uint32_t item_bytes, struct queue **out_queue, struct err *e);
void queue_close(struct queue *q); /* NULL is fine */

bool queue_put(struct queue *q, const void *item); /* false: full, nothing changed */
bool queue_take(struct queue *q, void *out_item);  /* false: empty, *out_item untouched */
uint32_t queue_room(const struct queue *q);        /* for the putter: at least so many */

#endif
