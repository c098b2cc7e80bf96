/* weights_feed - the tensors of a model from its files, in pieces, read by several threads into
 * memory of the caller's (which a GPU can copy from, say), each piece given as soon as it is there.
 *
 * Owns:   its threads, until close; weights, model and memory are the caller's.
 * Thread: start-up only, one at a time.
 * Fails:  as weights_read of the piece that fails
 *         -ENOMEM
 *
 *     weights_feed_open(w, m, memory, &f, e)
 *     while ((r = weights_feed_next(f, true, &piece, e)) > 0)
 *         use piece.values, then weights_feed_give(f, piece.slot)
 *     weights_feed_close(f)  at any time
 *
 * Nothing is hashed here: weights_digest does it, and tags see to it that it hashes the same. */
#ifndef LLM42D_RUNTIME_WEIGHTS_FEED_H
#define LLM42D_RUNTIME_WEIGHTS_FEED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/model_tensor.h"

struct err;
struct weights;
struct weights_feed;

enum {
    WEIGHTS_FEED_SLOTS = 24,      /* one for a thread that reads, and those on their way.. */
    WEIGHTS_FEED_BYTES = 2 << 20, /* ..large enough for the pace of a bus */
    WEIGHTS_FEED_ROWS = 8,        /* a piece is of so many whole rows, or a multiple */
};

struct weights_piece {
    struct model_tensor tensor;
    uint32_t index;         /* of the tensor, in the order of model_tensor.h */
    uint64_t first, n;      /* values, the first of them at a row's begin */
    const uint16_t *values; /* bf16, until the slot is given back */
    uint32_t slot;
};

/* Bytes of a slot for the model: WEIGHTS_FEED_BYTES, or what a small model or a long row needs. */
size_t weights_feed_slot_bytes(const struct model *m);

/* Every tensor of the model is there (model_tensor_check).  memory: WEIGHTS_FEED_SLOTS slots. */
int weights_feed_open(struct weights *w, const struct model *m, void *memory,
                      struct weights_feed **out_feed, struct err *e);
void weights_feed_close(struct weights_feed *f); /* NULL is fine */

/* 1 and a piece, in any order; 0: all were given; -EAGAIN: none is there yet, and not `wait`.  With
 * all slots taken and not given back nothing ever comes: no waiting then. */
int weights_feed_next(struct weights_feed *f, bool wait, struct weights_piece *out_piece,
                      struct err *e);
void weights_feed_give(struct weights_feed *f, uint32_t slot);

#endif
