#include "runtime/weights_feed.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "runtime/assert.h"
#include "runtime/cpu_pool.h"
#include "runtime/err.h"
#include "runtime/weights.h"

enum { THREADS_MAX = 16 };

struct weights_feed {
    struct weights *w;
    const struct model *m;
    char *memory;
    size_t slot_bytes;

    pthread_mutex_t lock;
    /* A piece wakes the one who takes pieces, a slot one reader: with one condition for all, each
     * of thousands of pieces would wake everybody, twice. */
    pthread_cond_t come, room;
    struct model_tensor tensor; /* the one that is being read.. */
    uint32_t index;             /* ..its place */
    uint64_t first;             /* ..and the next of its values */
    bool all_begun;
    uint32_t free[WEIGHTS_FEED_SLOTS], n_free;
    struct weights_piece ready[WEIGHTS_FEED_SLOTS]; /* a ring */
    uint32_t ready_first, n_ready;
    uint32_t n_reading;
    int code; /* of the first that failed; from then on nothing is begun */
    struct err error;
    bool over;
    uint32_t n_live; /* threads that will read on */
    pthread_t threads[THREADS_MAX];
    uint32_t n_threads;
};

/* Values of a piece: whole rows in eights, or all of a tensor that is no matrix. */
static uint64_t piece_values(const struct model_tensor *t) {
    const uint64_t eight = (uint64_t)WEIGHTS_FEED_ROWS * t->n_k;
    const uint64_t n = WEIGHTS_FEED_BYTES / sizeof(uint16_t) / eight * eight;
    const uint64_t whole = (model_tensor_values(t) + eight - 1) / eight * eight;

    if (t->n == 0) return t->n_k;
    if (n == 0) return eight;
    return n < whole ? n : whole;
}

size_t weights_feed_slot_bytes(const struct model *m) {
    struct model_tensor t;
    uint64_t most = 0;

    for (uint32_t i = 0; model_tensor_at(m, i, &t); i++)
        if (piece_values(&t) > most) most = piece_values(&t);
    return most * sizeof(uint16_t);
}

/* Holds the lock; the next piece and a slot for it, or false. */
static bool claim(struct weights_feed *f, struct weights_piece *out) {
    if (f->over || f->code < 0 || f->all_begun || f->n_free == 0) return false;
    *out = (struct weights_piece){.tensor = f->tensor,
                                  .index = f->index,
                                  .first = f->first,
                                  .n = model_tensor_values(&f->tensor) - f->first,
                                  .slot = f->free[--f->n_free]};
    out->values = (const uint16_t *)(const void *)(f->memory + out->slot * f->slot_bytes);
    if (out->n > piece_values(&f->tensor)) out->n = piece_values(&f->tensor);
    f->first += out->n;
    if (f->first == model_tensor_values(&f->tensor)) {
        f->first = 0;
        f->all_begun = !model_tensor_at(f->m, ++f->index, &f->tensor);
        if (f->all_begun) (void)pthread_cond_broadcast(&f->room);
    }
    f->n_reading++;
    return true;
}

static int read_piece(struct weights_feed *f, struct weights_reader *reader,
                      const struct weights_piece *p, struct err *e) {
    return weights_read_piece(reader, f->w, weights_find(f->w, p->tensor.name),
                              p->first / piece_values(&p->tensor),
                              (uint16_t *)(void *)(f->memory + p->slot * f->slot_bytes), e);
}

/* Holds the lock. */
static void put(struct weights_feed *f, const struct weights_piece *p, int code,
                const struct err *error) {
    f->n_reading--;
    if (code == 0)
        f->ready[(f->ready_first + f->n_ready++) % WEIGHTS_FEED_SLOTS] = *p;
    else if (f->code == 0)
        f->code = code, f->error = *error;
    (void)pthread_cond_signal(&f->come);
    if (code < 0) (void)pthread_cond_broadcast(&f->room);
}

static void *reader_main(void *arg) {
    struct weights_feed *f = arg;
    struct weights_reader *reader = weights_reader_open();

    (void)pthread_mutex_lock(&f->lock);
    while (reader && !f->over && f->code == 0 && !f->all_begun) {
        struct weights_piece p;
        struct err e;
        int r;

        if (!claim(f, &p)) {
            (void)pthread_cond_wait(&f->room, &f->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&f->lock);
        r = read_piece(f, reader, &p, &e);
        (void)pthread_mutex_lock(&f->lock);
        put(f, &p, r, &e);
    }
    f->n_live--;
    (void)pthread_cond_signal(&f->come);
    (void)pthread_mutex_unlock(&f->lock);
    weights_reader_close(reader);
    return NULL;
}

int weights_feed_open(struct weights *w, const struct model *m, void *memory,
                      struct weights_feed **out_feed, struct err *e) {
    const uint32_t n_threads = cpu_pool_processors(THREADS_MAX);
    struct weights_feed *f = calloc(1, sizeof(*f));
    struct model_tensor t;
    int r = 0;

    if (!f) return err_set(e, -ENOMEM, "weights: no memory to read them");
    f->w = w;
    f->m = m;
    f->memory = memory;
    f->slot_bytes = weights_feed_slot_bytes(m);
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_cond_init(&f->come, NULL);
    (void)pthread_cond_init(&f->room, NULL);
    while (f->n_free < WEIGHTS_FEED_SLOTS) f->free[f->n_free] = f->n_free, f->n_free++;
    for (uint32_t i = 0; r == 0 && model_tensor_at(m, i, &t); i++) {
        ASSERT(weights_find(w, t.name));
        r = weights_cut(w, weights_find(w, t.name), piece_values(&t), e);
    }
    if (r < 0) {
        weights_feed_close(f);
        return r;
    }
    f->all_begun = !model_tensor_at(m, 0, &f->tensor);
    (void)pthread_mutex_lock(&f->lock);
    while (f->n_threads < n_threads &&
           pthread_create(&f->threads[f->n_threads], NULL, reader_main, f) == 0)
        f->n_threads++, f->n_live++;
    (void)pthread_mutex_unlock(&f->lock);
    *out_feed = f;
    return 0;
}

void weights_feed_close(struct weights_feed *f) {
    if (!f) return;
    (void)pthread_mutex_lock(&f->lock);
    f->over = true;
    (void)pthread_cond_broadcast(&f->room);
    (void)pthread_mutex_unlock(&f->lock);
    for (uint32_t i = 0; i < f->n_threads; i++) (void)pthread_join(f->threads[i], NULL);
    (void)pthread_cond_destroy(&f->come);
    (void)pthread_cond_destroy(&f->room);
    (void)pthread_mutex_destroy(&f->lock);
    free(f);
}

/* Holds the lock: no thread could be had, or none had memory. */
static void read_one(struct weights_feed *f) {
    struct weights_reader *reader = weights_reader_open();
    struct weights_piece p;
    struct err e = {{0}};
    int r;

    if (!claim(f, &p)) ASSERT(false);
    r = reader ? read_piece(f, reader, &p, &e) : err_set(&e, -ENOMEM, "weights: no memory to read");
    put(f, &p, r, &e);
    weights_reader_close(reader);
}

int weights_feed_next(struct weights_feed *f, bool wait, struct weights_piece *out_piece,
                      struct err *e) {
    int r;

    (void)pthread_mutex_lock(&f->lock);
    while (f->n_ready == 0 && f->code == 0 && (!f->all_begun || f->n_reading > 0)) {
        if (f->n_live == 0 && f->n_reading == 0 && f->n_free > 0) {
            read_one(f);
            continue;
        }
        if (!wait) break;
        ASSERT(f->n_reading > 0 || f->n_free > 0);
        (void)pthread_cond_wait(&f->come, &f->lock);
    }
    if (f->code < 0) {
        r = f->code;
        if (e) *e = f->error;
    } else if (f->n_ready > 0) {
        *out_piece = f->ready[f->ready_first];
        f->ready_first = (f->ready_first + 1) % WEIGHTS_FEED_SLOTS;
        f->n_ready--;
        r = 1;
    } else {
        r = f->all_begun && f->n_reading == 0 ? 0 : -EAGAIN;
    }
    (void)pthread_mutex_unlock(&f->lock);
    return r;
}

void weights_feed_give(struct weights_feed *f, uint32_t slot) {
    (void)pthread_mutex_lock(&f->lock);
    ASSERT(f->n_free < WEIGHTS_FEED_SLOTS && slot < WEIGHTS_FEED_SLOTS);
    f->free[f->n_free++] = slot;
    (void)pthread_cond_signal(&f->room);
    (void)pthread_mutex_unlock(&f->lock);
}
