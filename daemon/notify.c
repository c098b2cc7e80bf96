#include "daemon/notify.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
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
    WAIT_S = 2,   /* for a place in systemd's queue, with what it has to know */
    OWED_MAX = 4, /* READY=1, a reload's two, STOPPING=1 */
};

enum end { TOLD, LATER, NOBODY };

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
 * a daemon must not stand still because its supervisor does. */
static enum end send_text(const char *text, bool wait) {
    const struct timeval most = {.tv_sec = WAIT_S};
    struct sockaddr_un to;
    const socklen_t n_to = address(&to);
    enum end end = TOLD;
    int fd;

    if (n_to == 0) return NOBODY;
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return LATER;
    if (wait && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof(most)) < 0) wait = false;
    if (sendto(fd, text, strlen(text), MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT),
               (const struct sockaddr *)&to, n_to) < 0)
        end = errno == EAGAIN || errno == EINTR || errno == ENOBUFS ? LATER : NOBODY;
    (void)close(fd);
    return end;
}

/* What systemd has to know and had no place for, in order: without READY=1 it ends a daemon that
 * serves. */
static struct {
    pthread_mutex_t lock;
    uint32_t n;
    char texts[OWED_MAX][TEXT_BYTES];
} owed = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void owed_drop(void) {
    owed.n--;
    memmove(owed.texts[0], owed.texts[1], (size_t)owed.n * TEXT_BYTES);
}

static void owed_send(bool wait) {
    while (owed.n > 0 && send_text(owed.texts[0], wait) != LATER) owed_drop();
}

__attribute__((format(printf, 1, 2))) static void tell(const char *fmt, ...) {
    va_list args;

    pthread_mutex_lock(&owed.lock);
    if (owed.n == OWED_MAX) owed_drop();
    va_start(args, fmt);
    (void)vsnprintf(owed.texts[owed.n++], TEXT_BYTES, fmt, args);
    va_end(args);
    owed_send(owed.n == 1); /* one was waited for already */
    pthread_mutex_unlock(&owed.lock);
}

/* What passes: it is said again soon, and is lost where there is no place.  A chance for what is
 * owed. */
__attribute__((format(printf, 1, 2))) static void tell_passing(const char *fmt, ...) {
    char text[TEXT_BYTES];
    va_list args;

    if (pthread_mutex_trylock(&owed.lock) == 0) {
        owed_send(false);
        pthread_mutex_unlock(&owed.lock);
    }
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    (void)send_text(text, false);
}

void notify_ready(const char *status) {
    tell("READY=1\nSTATUS=%s", status);
}

void notify_status(const char *status) {
    tell_passing("STATUS=%s", status);
}

void notify_reloading(void) {
    struct timespec t;

    /* A notify-reload unit wants the stamp; older managers ignore it. */
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    tell("RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
         (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000);
}

void notify_reloaded(void) {
    tell("READY=1");
}

void notify_stopping(void) {
    tell("STOPPING=1\nSTATUS=draining");
}

void notify_extend(uint64_t us) {
    tell_passing("EXTEND_TIMEOUT_USEC=%" PRIu64, us);
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
    if (send_text("WATCHDOG=1", false) != TOLD) return; /* after the next step, then */
    told_us = now_us;
    told_beat = beat;
}
