#include "daemon/notify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

enum {
    TEXT_BYTES = 512,
    WAIT_S = 2, /* for a place in systemd's queue, with what it has to know */
};

enum worth { PASSING, LASTING };

static atomic_ullong beats; /* of the loop */

/* The length of the address, 0 where nobody is to be told. */
static socklen_t address(struct sockaddr_un *a) {
    const char *path = getenv("NOTIFY_SOCKET");
    const size_t n = path ? strlen(path) : 0;

    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (n < 2 || n >= sizeof(a->sun_path) || (path[0] != '/' && path[0] != '@')) return 0;
    memcpy(a->sun_path, path, n);
    if (path[0] == '@') a->sun_path[0] = '\0';
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (path[0] == '/'));
}

/* sd_notify waits for ever where the queue of its reader is full, which has ten places by default;
 * a daemon must not stand still because its supervisor does.  What passes is said again soon. */
__attribute__((format(printf, 2, 3))) static bool tell(enum worth worth, const char *fmt, ...) {
    const struct timeval most = {.tv_sec = WAIT_S};
    struct sockaddr_un to;
    const socklen_t n_to = address(&to);
    char text[TEXT_BYTES];
    bool told = false;
    va_list args;
    int fd;

    if (n_to == 0) return false;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    if (worth == PASSING || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof(most)) == 0)
        told = sendto(fd, text, strlen(text), MSG_NOSIGNAL | (worth == PASSING ? MSG_DONTWAIT : 0),
                      (const struct sockaddr *)&to, n_to) >= 0;
    (void)close(fd);
    return told;
}

void notify_ready(const char *status) {
    (void)tell(LASTING, "READY=1\nSTATUS=%s", status);
}

void notify_status(const char *status) {
    (void)tell(PASSING, "STATUS=%s", status);
}

void notify_reloading(void) {
    struct timespec t;

    /* A notify-reload unit wants the stamp; older managers ignore it. */
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    (void)tell(LASTING, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
               (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000);
}

void notify_reloaded(void) {
    (void)tell(LASTING, "READY=1");
}

void notify_stopping(void) {
    (void)tell(LASTING, "STOPPING=1\nSTATUS=draining");
}

void notify_extend(uint64_t us) {
    (void)tell(PASSING, "EXTEND_TIMEOUT_USEC=%" PRIu64, us);
}

/* 0: no watchdog. */
static uint64_t watchdog_us(void) {
    static atomic_ullong known = UINT64_MAX;
    uint64_t us = atomic_load(&known);

    if (us != UINT64_MAX) return us;
    if (sd_watchdog_enabled(0, &us) <= 0) us = 0;
    atomic_store(&known, us);
    return us;
}

int notify_pause_ms(void) {
    uint64_t us = watchdog_us();

    if (us == 0 || us > 3000000) return 1000;
    return us < 3000 ? 1 : (int)(us / 3000);
}

void notify_beat(void) {
    atomic_fetch_add(&beats, 1);
}

void notify_alive(uint64_t now_us) {
    static uint64_t told_us, told_beat = UINT64_MAX;
    uint64_t us = watchdog_us(), beat = atomic_load(&beats);

    if (us == 0 || beat == told_beat) return;
    if (told_us && now_us - told_us < us / 4) return;
    if (!tell(PASSING, "WATCHDOG=1")) return; /* after the next step, then */
    told_us = now_us;
    told_beat = beat;
}
