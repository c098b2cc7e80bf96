#include "runtime/weights_ahead.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "runtime/assert.h"
#include "runtime/cpu_pool.h"
#include "runtime/err.h"
#include "runtime/model_tensor.h"
#include "runtime/weights.h"

enum {
    THREADS_MAX = 16,
    AHEAD_BYTES_MIN = 64 << 20,
    AHEAD_PART = 8, /* of the model */
};

/* A tensor on its way. */
struct place {
    const struct weights_tensor *tensor;
    uint16_t *values;
    bool ready;
    int code; /* 0, or what its reading gave.. */
    struct err error;
};

struct weights_ahead {
    struct weights *w;
    struct place *places; /* [n_places], in the model's order */
    uint32_t n_places;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t next;                 /* to be read */
    uint32_t taken;                /* by the caller; the one before is still being looked at */
    uint64_t n_bytes, n_bytes_max; /* read or being read, and not given back */
    bool over;
    pthread_t threads[THREADS_MAX];
    uint32_t n_threads;
};

static uint64_t bytes_of(const struct place *p) {
    return p->tensor->n_values * sizeof(uint16_t);
}

static void read_place(struct weights_ahead *a, struct weights_reader *reader, struct place *p) {
    p->values = malloc(bytes_of(p));
    if (!p->values)
        p->code = err_set(&p->error, -ENOMEM, "weights: %llu bytes to read tensor %s",
                          (unsigned long long)bytes_of(p), p->tensor->name);
    else
        p->code = weights_read_by(reader, a->w, p->tensor, p->values, &p->error);
}

/* Holds the lock; the next tensor that may be begun, or NULL. */
static struct place *claim(struct weights_ahead *a) {
    struct place *p = a->next < a->n_places ? &a->places[a->next] : NULL;

    if (!p || (a->n_bytes > 0 && a->n_bytes + bytes_of(p) > a->n_bytes_max)) return NULL;
    a->next++;
    a->n_bytes += bytes_of(p);
    return p;
}

static void *reader_main(void *arg) {
    struct weights_ahead *a = arg;
    struct weights_reader *reader = weights_reader_open();

    if (!reader) return NULL; /* another one, or the caller, reads */
    (void)pthread_mutex_lock(&a->lock);
    while (!a->over && a->next < a->n_places) {
        struct place *p = claim(a);

        if (!p) {
            (void)pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&a->lock);
        read_place(a, reader, p);
        (void)pthread_mutex_lock(&a->lock);
        p->ready = true;
        (void)pthread_cond_broadcast(&a->changed);
    }
    (void)pthread_mutex_unlock(&a->lock);
    weights_reader_close(reader);
    return NULL;
}

static int list_places(struct weights_ahead *a, const struct model *m, struct err *e) {
    struct model_tensor t;
    uint64_t n_bytes = 0;

    while (model_tensor_at(m, a->n_places, &t)) a->n_places++;
    a->places = calloc(a->n_places, sizeof(*a->places));
    if (!a->places) return err_set(e, -ENOMEM, "weights: a table of %u tensors", a->n_places);
    for (uint32_t i = 0; model_tensor_at(m, i, &t); i++) {
        a->places[i].tensor = weights_find(a->w, t.name);
        ASSERT(a->places[i].tensor);
        n_bytes += bytes_of(&a->places[i]);
    }
    a->n_bytes_max = n_bytes / AHEAD_PART;
    if (a->n_bytes_max < AHEAD_BYTES_MIN) a->n_bytes_max = AHEAD_BYTES_MIN;
    return 0;
}

int weights_ahead_open(struct weights *w, const struct model *m, struct weights_ahead **out_ahead,
                       struct err *e) {
    const uint32_t n_threads = cpu_pool_processors(THREADS_MAX);
    struct weights_ahead *a = calloc(1, sizeof(*a));
    int r;

    if (!a) return err_set(e, -ENOMEM, "weights: no memory to read ahead");
    a->w = w;
    (void)pthread_mutex_init(&a->lock, NULL);
    (void)pthread_cond_init(&a->changed, NULL);
    if ((r = list_places(a, m, e)) < 0) {
        weights_ahead_close(a);
        return r;
    }
    while (a->n_threads < n_threads &&
           pthread_create(&a->threads[a->n_threads], NULL, reader_main, a) == 0)
        a->n_threads++;
    *out_ahead = a;
    return 0;
}

void weights_ahead_close(struct weights_ahead *a) {
    if (!a) return;
    (void)pthread_mutex_lock(&a->lock);
    a->over = true;
    (void)pthread_cond_broadcast(&a->changed);
    (void)pthread_mutex_unlock(&a->lock);
    for (uint32_t i = 0; i < a->n_threads; i++) (void)pthread_join(a->threads[i], NULL);
    for (uint32_t i = 0; i < a->n_places && a->places; i++) free(a->places[i].values);
    free(a->places);
    (void)pthread_cond_destroy(&a->changed);
    (void)pthread_mutex_destroy(&a->lock);
    free(a);
}

/* Holds the lock: what the caller looked at is given back. */
static void give_back(struct weights_ahead *a) {
    struct place *p;

    if (a->taken == 0) return;
    p = &a->places[a->taken - 1];
    free(p->values);
    p->values = NULL;
    a->n_bytes -= bytes_of(p);
    (void)pthread_cond_broadcast(&a->changed);
}

int weights_ahead_next(struct weights_ahead *a, const uint16_t **out_values, struct err *e) {
    struct place *p, *mine;

    (void)pthread_mutex_lock(&a->lock);
    give_back(a);
    ASSERT(a->taken < a->n_places);
    p = &a->places[a->taken++];
    /* Nobody has begun it: then no thread could be had, or all are behind. */
    mine = a->next < a->taken ? claim(a) : NULL;
    while (!mine && !p->ready) (void)pthread_cond_wait(&a->changed, &a->lock);
    (void)pthread_mutex_unlock(&a->lock);
    if (mine) {
        struct weights_reader *reader = weights_reader_open();

        if (!reader) return err_set(e, -ENOMEM, "weights: no memory to read");
        read_place(a, reader, mine);
        weights_reader_close(reader);
    }
    if (p->code < 0) {
        if (e) *e = p->error;
        return p->code;
    }
    *out_values = p->values;
    return 0;
}
