#ifdef LLM42_CUDA

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/cuda_impl.h"
#include "runtime/err.h"
#include "runtime/model_tensor.h"
#include "runtime/weights.h"
#include "runtime/weights_feed.h"

/* Threads read pieces into slots of pinned memory (weights_feed.h).  This thread has each copied to
 * one of FLIGHTS places of the staging buffer on a stream of its own, and packed from there on the
 * device's: while a piece is packed the next ones are on the bus.
 *
 *   copied[i]  recorded behind a copy: the pack waits for it on the GPU, and a slot is given back
 *              when it has happened
 *   packed[i]  recorded behind a pack: the next copy to that place waits for it */
enum {
    FLIGHTS = 4,
    EIGHT = 8, /* rows that are packed together */
};

struct upload {
    struct cuda_device *d;
    struct weights_feed *feed;
    CUstream stream;
    CUevent copied[FLIGHTS], packed[FLIGHTS];
    void *h_slots;
    size_t slot_bytes;
    uint32_t slots[FLIGHTS];
    uint64_t n_sent, n_landed;
};

uint64_t cuda_upload_staging_bytes(const struct model *m) {
    return (uint64_t)FLIGHTS * weights_feed_slot_bytes(m);
}

int cuda_upload_fill(struct cuda_device *d, CUstream stream, CUdeviceptr rows, uint32_t n,
                     uint64_t row_bytes, const char *what, struct err *e) {
    struct cuda_driver *driver = d->driver;
    const uint32_t n_whole = (n + EIGHT - 1) / EIGHT * EIGHT;

    if (n == n_whole) return 0;
    return cuda_driver_check(
        driver,
        driver->cuda.cuMemsetD8Async(rows + n * row_bytes, 0, (n_whole - n) * row_bytes, stream),
        what, e);
}

static int open_events(struct upload *u, struct err *e) {
    struct cuda_driver *driver = u->d->driver;
    int r = 0;

    for (int i = 0; r == 0 && i < FLIGHTS; i++) {
        r = cuda_driver_check(driver,
                              driver->cuda.cuEventCreate(&u->copied[i], CU_EVENT_DISABLE_TIMING),
                              "an event of loading", e);
        if (r == 0)
            r = cuda_driver_check(
                driver, driver->cuda.cuEventCreate(&u->packed[i], CU_EVENT_DISABLE_TIMING),
                "an event of loading", e);
    }
    return r;
}

/* Nothing is copied before the device's stream has cleared what it goes to. */
static int order(struct upload *u, struct err *e) {
    struct cuda_driver *driver = u->d->driver;
    int r = cuda_driver_check(driver, driver->cuda.cuEventRecord(u->packed[0], driver->stream),
                              "an event of loading", e);

    if (r < 0) return r;
    return cuda_driver_check(driver, driver->cuda.cuStreamWaitEvent(u->stream, u->packed[0], 0),
                             "an event of loading", e);
}

static int open_upload(struct upload *u, struct weights *w, struct err *e) {
    struct cuda_driver *driver = u->d->driver;
    int r =
        cuda_driver_check(driver, driver->cuda.cuStreamCreate(&u->stream, CU_STREAM_NON_BLOCKING),
                          "a stream of loading", e);

    if (r == 0) r = open_events(u, e);
    if (r == 0)
        r = cuda_driver_check(
            driver, driver->cuda.cuMemHostAlloc(&u->h_slots, WEIGHTS_FEED_SLOTS * u->slot_bytes, 0),
            "pinned memory of loading", e);
    if (r == 0) r = order(u, e);
    if (r == 0) r = weights_feed_open(w, &u->d->model, u->h_slots, &u->feed, e);
    return r;
}

/* Threads first: they write to the pinned memory, and the bus reads it. */
static void close_upload(struct upload *u) {
    struct cuda_driver *driver = u->d->driver;

    weights_feed_close(u->feed);
    if (u->n_landed < u->n_sent && !driver->lost) (void)driver->cuda.cuStreamSynchronize(u->stream);
    if (u->h_slots) (void)driver->cuda.cuMemFreeHost(u->h_slots);
    for (int i = 0; i < FLIGHTS; i++) {
        if (u->copied[i]) (void)driver->cuda.cuEventDestroy_v2(u->copied[i]);
        if (u->packed[i]) (void)driver->cuda.cuEventDestroy_v2(u->packed[i]);
    }
    if (u->stream) (void)driver->cuda.cuStreamDestroy_v2(u->stream);
}

static int copy(struct upload *u, CUdeviceptr to, const struct weights_piece *p, struct err *e) {
    struct cuda_driver *driver = u->d->driver;

    return cuda_driver_check(
        driver,
        driver->cuda.cuMemcpyHtoDAsync_v2(to, p->values, p->n * sizeof(*p->values), u->stream),
        p->tensor.name, e);
}

/* On the device's stream, when it has come. */
static int pack(struct upload *u, CUdeviceptr from, const struct weights_piece *p, uint32_t n_rows,
                uint32_t flight, struct err *e) {
    struct cuda_driver *driver = u->d->driver;
    int r = cuda_driver_check(driver,
                              driver->cuda.cuStreamWaitEvent(driver->stream, u->copied[flight], 0),
                              p->tensor.name, e);

    if (r < 0) return r;
    r = cuda_weights_pack(u->d, p->index, from, (uint32_t)(p->first / p->tensor.n_k), n_rows, e);
    if (r < 0) return r;
    return cuda_driver_check(driver, driver->cuda.cuEventRecord(u->packed[flight], driver->stream),
                             p->tensor.name, e);
}

static int send(struct upload *u, const struct weights_piece *p, struct err *e) {
    struct cuda_driver *driver = u->d->driver;
    const uint32_t flight = (uint32_t)(u->n_sent % FLIGHTS);
    const uint32_t n_rows = (uint32_t)(p->n / p->tensor.n_k);
    const CUdeviceptr staging = u->d->staging + flight * u->slot_bytes;
    CUdeviceptr to;
    bool packed;
    int r = 0;

    cuda_weights_place(u->d, p->index, &to, &packed);
    u->slots[flight] = p->slot;
    u->n_sent++;
    if (to) r = copy(u, to + p->first * sizeof(*p->values), p, e);
    if (r == 0 && packed) {
        /* An event that was never recorded has happened. */
        r = cuda_driver_check(driver,
                              driver->cuda.cuStreamWaitEvent(u->stream, u->packed[flight], 0),
                              p->tensor.name, e);
        if (r == 0)
            r = cuda_upload_fill(u->d, u->stream, staging, n_rows,
                                 p->tensor.n_k * sizeof(*p->values), p->tensor.name, e);
        if (r == 0) r = copy(u, staging, p, e);
    }
    if (r == 0)
        r = cuda_driver_check(driver, driver->cuda.cuEventRecord(u->copied[flight], u->stream),
                              p->tensor.name, e);
    if (r == 0 && packed) r = pack(u, staging, p, n_rows, flight, e);
    return r;
}

/* The oldest copy is waited for, and its slot can be read into again. */
static int land(struct upload *u, struct err *e) {
    struct cuda_driver *driver = u->d->driver;
    const uint32_t flight = (uint32_t)(u->n_landed % FLIGHTS);
    int r = cuda_driver_check(driver, driver->cuda.cuEventSynchronize(u->copied[flight]),
                              "copies of weights", e);

    if (r < 0) return r;
    u->n_landed++;
    weights_feed_give(u->feed, u->slots[flight]);
    return 0;
}

static int upload_all(struct upload *u, struct err *e) {
    struct cuda_driver *driver = u->d->driver;
    struct weights_piece p;
    int r;

    while ((r = weights_feed_next(u->feed, u->n_sent == u->n_landed, &p, e)) != 0) {
        if (r < 0 && r != -EAGAIN) return r;
        /* Nothing is there to be sent: a slot that comes back is what readers wait for. */
        if (r == -EAGAIN || u->n_sent - u->n_landed == FLIGHTS) {
            int landed = land(u, e);

            if (landed < 0) return landed;
        }
        if (r > 0 && (r = send(u, &p, e)) < 0) return r;
    }
    while (u->n_landed < u->n_sent)
        if ((r = land(u, e)) < 0) return r;
    return cuda_driver_check(driver, driver->cuda.cuStreamSynchronize(driver->stream),
                             "copies of weights", e);
}

static uint64_t now_us(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

int cuda_upload_run(struct cuda_device *d, struct weights *w, struct err *e) {
    const uint64_t begin_us = now_us();
    struct upload u = {.d = d, .slot_bytes = weights_feed_slot_bytes(&d->model)};
    struct model_tensor t;
    int r = open_upload(&u, w, e);

    if (r == 0) r = upload_all(&u, e);
    close_upload(&u);
    for (uint32_t i = 0; model_tensor_at(&d->model, i, &t); i++)
        d->upload_bytes += weights_find(w, t.name)->n_bytes;
    d->upload_us = now_us() - begin_us;
    return r;
}

#endif
