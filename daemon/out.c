#include "daemon/out.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "runtime/assert.h"

int out_open(struct out *o, size_t n_bytes) {
    ASSERT(n_bytes > OUT_ANSWERS_BYTES);
    *o = (struct out){.bytes = malloc(n_bytes), .n_max = n_bytes};
    return o->bytes ? 0 : -ENOMEM;
}

void out_close(struct out *o) {
    free(o->bytes);
    *o = (struct out){0};
}

size_t out_used(const struct out *o) {
    return o->end - o->start;
}

size_t out_room(const struct out *o) {
    uint64_t taken = out_used(o) + o->reserved + OUT_LAST_BYTES;

    return taken < o->n_max ? (size_t)(o->n_max - taken) : 0;
}

bool out_ready(const struct out *o) {
    return out_room(o) >= OUT_FRAME_BYTES;
}

uint8_t *out_tail(struct out *o, size_t *out_n_max) {
    if (o->start > 0) {
        memmove(o->bytes, o->bytes + o->start, out_used(o));
        o->end -= o->start;
        o->start = 0;
    }
    *out_n_max = o->n_max - o->end;
    return o->bytes + o->end;
}

void out_put(struct out *o, size_t n_bytes) {
    ASSERT(n_bytes <= o->n_max - o->end);
    o->end += n_bytes;
}

bool out_still(const struct out *o) {
    return out_used(o) == 0 && o->reserved == 0;
}

uint64_t out_budget(const struct out *o) {
    const uint64_t most = o->n_max - OUT_ANSWERS_BYTES, used = out_used(o);
    const uint64_t room = used < most ? most - used : 0;

    return o->credit < room ? o->credit : room;
}

bool out_reserve(struct out *o, uint64_t n_bytes) {
    if (o->reserved + n_bytes > out_budget(o)) return false;
    o->reserved += n_bytes;
    return true;
}

void out_release(struct out *o, uint64_t n_bytes) {
    ASSERT(n_bytes <= o->reserved);
    o->reserved -= n_bytes;
}

void out_spend(struct out *o, uint64_t n_bytes) {
    ASSERT(n_bytes <= o->credit);
    o->credit -= n_bytes;
}

int out_send(struct out *o, int fd, size_t *out_n_sent) {
    *out_n_sent = 0;
    while (o->start < o->end) {
        ssize_t n = send(fd, o->bytes + o->start, out_used(o), MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EWOULDBLOCK ? -EAGAIN : -errno;
        o->start += (size_t)n;
        *out_n_sent += (size_t)n;
    }
    o->start = o->end = 0;
    return 0;
}
