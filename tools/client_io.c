#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "tools/llm42.h"

enum { PIECE_BYTES = 64 << 10 };

struct llm42_io {
    int fd;
    bool over; /* BROKEN was told */
    struct llm42 *core;
    uint8_t piece[PIECE_BYTES];
};

int llm42_io_attach(int fd, const struct llm42_options *o, struct llm42_io **out_io) {
    struct llm42_io *io = malloc(sizeof(*io));

    if (!io) return -ENOMEM;
    io->fd = fd;
    io->over = false;
    io->core = llm42_open(o);
    if (!io->core) {
        free(io);
        return -EINVAL;
    }
    *out_io = io;
    return 0;
}

int llm42_io_open(const char *path, const struct llm42_options *o, struct llm42_io **out_io) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd, r;

    if (strlen(path) >= sizeof(address.sun_path)) return -ENAMETOOLONG;
    strcpy(address.sun_path, path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    r = connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0
            ? -errno
            : llm42_io_attach(fd, o, out_io);
    if (r < 0) close(fd);
    return r;
}

void llm42_io_close(struct llm42_io *io) {
    if (!io) return;
    close(io->fd);
    llm42_close(io->core);
    free(io);
}

struct llm42 *llm42_io_core(struct llm42_io *io) {
    return io->core;
}

static int64_t now_ms(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000 + t.tv_nsec / 1000000;
}

/* Whatever goes now, without waiting.  A server that is gone is noticed where we read: what it
 * said last is still to be taken. */
static void flush(struct llm42_io *io) {
    const uint8_t *bytes;
    size_t n_bytes = llm42_output(io->core, &bytes);
    ssize_t n;

    if (n_bytes == 0) return;
    n = send(io->fd, bytes, n_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) llm42_sent(io->core, (size_t)n);
    if (n < 0 && errno != EAGAIN && errno != EINTR) llm42_sent(io->core, n_bytes);
}

static void take(struct llm42_io *io) {
    ssize_t n = recv(io->fd, io->piece, sizeof(io->piece), MSG_DONTWAIT);

    if (n > 0) llm42_feed(io->core, io->piece, (size_t)n); /* all of it: see llm42_feed */
    if (n == 0) llm42_end(io->core, "the server closed the connection");
    if (n < 0 && errno != EAGAIN && errno != EINTR) llm42_end(io->core, strerror(errno));
}

int llm42_io_next(struct llm42_io *io, struct llm42_event *out_event, int timeout_ms) {
    int64_t end_ms = timeout_ms < 0 ? 0 : now_ms() + timeout_ms;
    struct pollfd poll_fd = {.fd = io->fd};
    const uint8_t *bytes;
    int64_t left_ms = -1;
    int n;

    for (;;) {
        n = llm42_next(io->core, out_event);
        if (n > 0 && out_event->kind == LLM42_BROKEN) io->over = true;
        flush(io);
        if (n > 0) return n;
        if (io->over) return -EPIPE;
        poll_fd.events = (short)(POLLIN | (llm42_output(io->core, &bytes) > 0 ? POLLOUT : 0));
        if (timeout_ms >= 0) {
            left_ms = end_ms - now_ms();
            if (left_ms < 0) left_ms = 0;
        }
        n = poll(&poll_fd, 1, (int)left_ms);
        if (n < 0) return -errno;
        if (n == 0) return -ETIMEDOUT;
        if (poll_fd.revents & (POLLIN | POLLHUP | POLLERR)) take(io);
    }
}
