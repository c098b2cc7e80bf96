#include "daemon/notify.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <systemd/sd-daemon.h>
#include <time.h>

static atomic_ullong beats; /* of the loop */

void notify_ready(const char *status) {
    (void)sd_notifyf(0, "READY=1\nSTATUS=%s", status);
}

void notify_status(const char *status) {
    (void)sd_notifyf(0, "STATUS=%s", status);
}

void notify_reloading(void) {
    struct timespec t;

    /* A notify-reload unit wants the stamp; older managers ignore it. */
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    (void)sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
                     (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000);
}

void notify_reloaded(void) {
    (void)sd_notify(0, "READY=1");
}

void notify_stopping(void) {
    (void)sd_notify(0, "STOPPING=1\nSTATUS=draining");
}

void notify_extend(uint64_t us) {
    (void)sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%" PRIu64, us);
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
    (void)sd_notify(0, "WATCHDOG=1");
    told_us = now_us;
    told_beat = beat;
}
