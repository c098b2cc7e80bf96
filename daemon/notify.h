/* notify - what systemd is told: READY, STATUS, WATCHDOG, RELOADING, STOPPING.
 *
 * Owns:   nothing; without NOTIFY_SOCKET every call does nothing.
 * Thread: any; notify_alive by the engine thread alone.
 * Fails:  never.  Where systemd does not read, READY, RELOADING and STOPPING wait two seconds for
 *         it and are then said again before each STATUS and EXTEND_TIMEOUT, until it does; the
 *         others are lost at once: no thread stands still over it.
 *
 * WATCHDOG=1 comes from the engine thread, between two steps and when there is none to take: a
 * thread of its own would hide a step that hangs.  The loop's beat is asked for too, so that
 * neither thread can stand still unseen. */
#ifndef LLM42D_DAEMON_NOTIFY_H
#define LLM42D_DAEMON_NOTIFY_H

#include <stdint.h>

void notify_ready(const char *status);
void notify_status(const char *status);
void notify_reloading(void);
void notify_reloaded(void);
void notify_stopping(void);
/* Asks for `us` more before systemd loses patience with start or stop. */
void notify_extend(uint64_t us);

/* How long either thread may sleep so that the watchdog stays quiet: a third of its time, and a
 * second where there is none. */
int notify_pause_ms(void);
/* The loop came round. */
void notify_beat(void);
/* A step is over, or there is none: tells systemd, a few times in its period at most, and only if
 * the loop has come round since. */
void notify_alive(uint64_t now_us);

#endif
