/* bench_daemon - a daemon of our own, on sockets in a folder of its own.
 *
 * Owns:   the process and its folder, from bench_daemon_start to bench_daemon_stop.
 * Thread: one.
 * Fails:  with an exit code (enum bench_exit), the reason on stderr; BENCH_INTERRUPTED after a
 *         signal.
 *
 * The daemon is in a process group of its own: a Ctrl-C is ours to act upon, and it ends with us
 * whatever becomes of us. */
#ifndef LLM42D_TOOLS_BENCH_DAEMON_H
#define LLM42D_TOOLS_BENCH_DAEMON_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct bench_options;

enum {
    BENCH_DAEMON_PATH_BYTES = 64, /* of the folder and what is in it: a socket's path is 107 */
    BENCH_DAEMON_SETS_MAX = 64,
};

struct bench_daemon {
    char folder[BENCH_DAEMON_PATH_BYTES], socket[BENCH_DAEMON_PATH_BYTES];
    char admin[BENCH_DAEMON_PATH_BYTES], notify[BENCH_DAEMON_PATH_BYTES];
    char config[BENCH_DAEMON_PATH_BYTES], log[BENCH_DAEMON_PATH_BYTES];
    int notify_fd;
    pid_t pid; /* 0: none runs */
    int64_t begin_ns;
};

/* SIGINT and SIGTERM end what waits, so that daemons and folders go too: call it first. */
void bench_daemon_signals(void);
bool bench_daemon_interrupted(void);

/* Starts o->daemon with o->model, o->n_threads, o->policy, then o->sets, then sets[n_sets], and
 * waits for READY=1.  bench_daemon_stop is due whatever comes back. */
int bench_daemon_start(const struct bench_options *o, const char *const *sets, uint32_t n_sets,
                       struct bench_daemon *d);
/* SIGTERM and, where that does not help, SIGKILL.  BENCH_FAILED: it did not end clean.  With
 * `failed`, or where it did not, what it logged is shown. */
int bench_daemon_stop(struct bench_daemon *d, bool failed, double *out_ms);

#endif
