/* loop - epoll, signals, time: who is served next, and when it is over.
 *
 * Owns:   the connections; the listening sockets belong to the caller.
 * Thread: the caller's, which becomes the loop thread; the engine thread is started and joined
 *         here and runs engine_step, engine_wait and notify_alive alone.
 *
 * SERVING -> (SIGTERM, SIGINT) DRAINING -> (nothing left, or drain_timeout) ENDING -> over.
 * A second SIGTERM or SIGINT ends at once.  A lost device ends too: every client has been told. */
#ifndef LLM42D_DAEMON_LOOP_H
#define LLM42D_DAEMON_LOOP_H

#include <stdbool.h>

struct config;
struct engine;
struct err;
struct listen;

enum loop_end {
    LOOP_DRAINED, /* asked to stop, and stopped */
    LOOP_AT_ONCE, /* as DRAINED, but the engine thread is still in a step: do not close it */
    LOOP_LOST,    /* the device is lost */
};

struct loop_hooks {
    void (*ready)(void *user);  /* once, when the first request would be answered */
    void (*reload)(void *user); /* SIGHUP */
    void *user;
};

/* Blocks the signals that the loop takes, for this thread and those it starts. */
void loop_signals_block(void);

/* Serves until the end; 0 and *out_end, or -errno where it could not begin. */
int loop_run(const struct config *config, struct engine *engine, const struct listen *listen,
             const struct loop_hooks *hooks, enum loop_end *out_end, struct err *e);

#endif
