#include "daemon/loop.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/conn.h"
#include "daemon/info.h"
#include "daemon/listen.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/request.h"
#include "runtime/engine.h"
#include "runtime/err.h"

enum {
    EVENTS_MAX = 64,
    ACCEPTS_MAX = 16,            /* in one turn */
    ACCEPT_PAUSE_MS = 200,       /* after it failed for want of descriptors or memory */
    STATUS_MS = 5000,            /* between two STATUS lines */
    EXTEND_MS = 1000,            /* between two requests for more time to stop.. */
    EXTEND_US = 10000000,        /* ..and how much */
    SLOW_STEP_US = 10000000,     /* after which a step is told of */
    FLUSH_MS = 2000,             /* for the last frames */
    ENGINE_END_MS = 2000,        /* for the step at hand.. */
    ENGINE_END_AT_ONCE_MS = 200, /* ..and when there is no time for it */
};

/* What an epoll event is about: these, or a connection's address. */
enum source {
    SOURCE_DATA,
    SOURCE_ADMIN,
    SOURCE_SIGNAL,
    SOURCE_TIMER,
    SOURCE_ENGINE,
    SOURCE_LOST,
    SOURCES
};

enum phase { SERVING, DRAINING, ENDING };

struct loop {
    const struct config *config;
    const struct listen *listen;
    const struct loop_hooks *hooks;
    struct serve serve;
    int epoll, signals, timer, lost;
    enum phase phase;
    bool at_once;
    uint64_t deadline_ms; /* of the phase */
    uint64_t accept_ms;   /* accepting pauses until then; 0: it does not */
    uint64_t status_ms, extend_ms;
    uint64_t slow_step_us; /* the begin of the one that was told of */
    uint64_t timer_ms;     /* when the timer goes off */
    uint64_t n_accepted;
    struct conn **conns; /* [config->max_connections] */
    uint32_t *wants;     /* what epoll was told of each */
    uint32_t n_conns;
    char sources[SOURCES]; /* their addresses tell them apart */

    pthread_t engine_thread;
    bool engine_started;
    atomic_bool engine_stop;
};

static uint64_t now_us(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static uint64_t now_ms(void) {
    return now_us() / 1000;
}

static void signal_set(sigset_t *set) {
    (void)sigemptyset(set);
    (void)sigaddset(set, SIGTERM);
    (void)sigaddset(set, SIGINT);
    (void)sigaddset(set, SIGHUP);
}

void loop_signals_block(void) {
    sigset_t set;

    signal_set(&set);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
}

/* ---- the engine thread ---- */

static void *engine_main(void *arg) {
    struct loop *l = arg;
    struct engine *g = l->serve.engine;
    int pause_ms = notify_pause_ms();

    while (!atomic_load(&l->engine_stop)) {
        int r = engine_step(g);

        if (r == -EIO) {
            uint64_t one = 1;

            /* All requests were told; the loop has to learn it even if there was none. */
            if (write(l->lost, &one, sizeof(one)) < 0) abort();
            break;
        }
        notify_alive(now_us());
        if (r == 0) engine_wait(g, pause_ms);
    }
    return NULL;
}

/* False: it is still in a step, and what it uses must stay. */
static bool engine_join(struct loop *l) {
    struct timespec until;

    if (!l->engine_started) return true;
    atomic_store(&l->engine_stop, true);
    engine_wake(l->serve.engine);
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (l->at_once ? ENGINE_END_AT_ONCE_MS : ENGINE_END_MS) % 1000 * 1000000L;
    until.tv_sec += (l->at_once ? ENGINE_END_AT_ONCE_MS : ENGINE_END_MS) / 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_timedjoin_np(l->engine_thread, NULL, &until) == 0) return true;
    (void)pthread_detach(l->engine_thread);
    return false;
}

/* ---- connections ---- */

static int watch(struct loop *l, int fd, uint32_t events, void *what) {
    struct epoll_event ev = {.events = events, .data.ptr = what};

    return epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

static void conn_drop(struct loop *l, uint32_t i) {
    log_line(LOG_AT_DEBUG, "a connection is over; %u are left", l->n_conns - 1);
    conn_close(l->conns[i]); /* epoll forgets the descriptor with it */
    l->conns[i] = l->conns[--l->n_conns];
    l->wants[i] = l->wants[l->n_conns];
}

/* One turn of connection i; false: it was dropped, and another stands in its place. */
static bool conn_step(struct loop *l, uint32_t i, uint32_t events, uint64_t ms) {
    struct conn *c = l->conns[i];
    uint32_t wants;

    if (!conn_turn(c, events, ms)) {
        conn_drop(l, i);
        return false;
    }
    wants = conn_wants(c);
    if (wants != l->wants[i]) {
        struct epoll_event ev = {.events = wants, .data.ptr = c};

        (void)epoll_ctl(l->epoll, EPOLL_CTL_MOD, conn_fd(c), &ev);
        l->wants[i] = wants;
    }
    return true;
}

static void peer_log(uint64_t number, enum conn_kind kind, const struct listen_peer *p) {
    char groups[256] = "";
    size_t n = 0;

    for (uint32_t i = 0; i < p->n_groups && n < sizeof(groups) - 16; i++)
        n += (size_t)snprintf(groups + n, sizeof(groups) - n, "%s%u", i ? "," : "", p->groups[i]);
    log_line(LOG_AT_INFO, "conn %" PRIu64 ": %s, uid %u gid %u pid %d groups %s", number,
             kind == CONN_ADMIN ? "admin" : "data", (unsigned)p->uid, (unsigned)p->gid, (int)p->pid,
             n ? groups : "-");
}

/* Says why and hangs up; nothing is read. */
static void turn_away(struct loop *l, int fd, uint64_t ms) {
    static uint64_t told_ms;
    struct admit_refusal f;
    struct out out;
    size_t n_sent;

    (void)admit_refuse(&f, WIRE_E_BUSY, WIRE_F_NONE, "%u connections are open, the limit",
                       l->n_conns);
    if (out_open(&out, OUT_ANSWERS_BYTES + 1) == 0) {
        (void)request_error(&out, 0, &f);
        (void)out_send(&out, fd, &n_sent);
        out_close(&out);
    }
    (void)close(fd);
    if (told_ms == 0 || ms - told_ms > 10000) {
        log_line(LOG_AT_WARNING, "%s; others are turned away", f.text);
        told_ms = ms;
    }
}

static void accept_some(struct loop *l, enum conn_kind kind, uint64_t ms) {
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        struct listen_peer peer;
        struct conn *c;
        int fd = listen_accept(l->listen->fds[kind], &peer);

        if (fd == -EAGAIN) return;
        if (fd == -ECONNABORTED || fd == -EINTR) continue;
        if (fd < 0) {
            log_line(LOG_AT_WARNING, "accept: %s; none is taken for %d ms", strerror(-fd),
                     (int)ACCEPT_PAUSE_MS);
            l->accept_ms = ms + ACCEPT_PAUSE_MS;
            return;
        }
        if (l->n_conns == l->config->max_connections) {
            turn_away(l, fd, ms);
            continue;
        }
        peer_log(++l->n_accepted, kind, &peer);
        if (conn_open(&l->serve, fd, kind, &peer, l->n_accepted, ms, &c) < 0) {
            log_line(LOG_AT_WARNING, "conn %" PRIu64 ": no memory for it; closed", l->n_accepted);
            continue;
        }
        l->conns[l->n_conns] = c;
        l->wants[l->n_conns] = EPOLLIN;
        if (watch(l, fd, EPOLLIN, c) < 0) {
            conn_close(c);
            continue;
        }
        l->n_conns++;
    }
}

/* Listening stops and starts by what epoll is told: a socket that nobody accepts from would wake
 * us for ever. */
static void listening(struct loop *l, enum conn_kind kind, bool on) {
    struct epoll_event ev = {.events = on ? EPOLLIN : 0u, .data.ptr = &l->sources[kind]};

    (void)epoll_ctl(l->epoll, EPOLL_CTL_MOD, l->listen->fds[kind], &ev);
}

/* ---- phases ---- */

static void drain_begin(struct loop *l, uint64_t ms) {
    log_line(LOG_AT_INFO, "stopping: %u requests are live, %u ms for them", l->serve.n_live,
             l->config->drain_timeout_ms);
    notify_stopping();
    l->phase = DRAINING;
    l->serve.draining = true;
    l->deadline_ms = ms + l->config->drain_timeout_ms;
    for (uint32_t i = 0; i < l->n_conns; i++)
        conn_shutdown(l->conns[i], l->config->drain_timeout_ms);
    /* Clients of a handed-over socket wait in its backlog for the next instance; those of our own
     * are told that there is none. */
    for (int k = 0; k < LISTEN_KINDS; k++)
        if (!l->listen->own[k]) listening(l, (enum conn_kind)k, false);
}

static void end_begin(struct loop *l, uint16_t code, const char *text, uint64_t ms) {
    if (l->serve.n_live)
        log_line(LOG_AT_WARNING, "%u requests are ended: %s", l->serve.n_live, text);
    l->phase = ENDING;
    l->deadline_ms = ms + (l->at_once ? 0 : FLUSH_MS);
    for (int k = 0; k < LISTEN_KINDS; k++) listening(l, (enum conn_kind)k, false);
    for (uint32_t i = 0; i < l->n_conns; i++) conn_end(l->conns[i], code, text, ms);
}

static void take_signal(struct loop *l, uint64_t ms) {
    struct signalfd_siginfo s;

    while (read(l->signals, &s, sizeof(s)) == (ssize_t)sizeof(s)) {
        if (s.ssi_signo == SIGHUP) {
            l->hooks->reload(l->hooks->user);
        } else if (l->phase == SERVING) {
            drain_begin(l, ms);
        } else {
            log_line(LOG_AT_WARNING, "stopping at once");
            l->at_once = true;
            if (l->phase == DRAINING) end_begin(l, WIRE_E_DRAINING, "the server stops at once", ms);
            l->deadline_ms = ms;
        }
    }
}

/* True: the loop is over. */
static bool phase_step(struct loop *l, uint64_t ms) {
    bool idle = l->serve.n_live == 0;

    for (uint32_t i = 0; i < l->n_conns && idle; i++) idle = conn_idle(l->conns[i]);
    if (l->phase == DRAINING && (idle || ms >= l->deadline_ms))
        end_begin(l, WIRE_E_DRAINING, "the server has shut down", ms);
    if (l->phase != ENDING) return false;
    /* The engine's last word about each request is its line in the log. */
    idle = l->serve.n_live == 0 || l->serve.lost;
    for (uint32_t i = 0; i < l->n_conns && idle; i++) idle = conn_idle(l->conns[i]);
    return idle || ms >= l->deadline_ms;
}

/* Once for each step that the device does not end: the engine thread waits for it and can say nothing. */
static void tell_slow_step(struct loop *l, uint64_t us) {
    struct engine_stats t;

    engine_stats_get(l->serve.engine, &t);
    if (t.step_us == 0 || t.step_us == l->slow_step_us || us < t.step_us + SLOW_STEP_US) return;
    l->slow_step_us = t.step_us;
    log_line(LOG_AT_WARNING,
             "a step of %" PRIu64 " rows has not ended for %d s: %" PRIu64
             " steps before it, %" PRIu64 " requests run, %" PRIu64 " wait",
             t.step_rows, SLOW_STEP_US / 1000000, t.steps_canonical + t.steps_tuned, t.running,
             t.waiting);
}

static void tell_systemd(struct loop *l, uint64_t ms) {
    char text[160];

    if (l->phase != SERVING && ms >= l->extend_ms) {
        notify_extend(EXTEND_US);
        l->extend_ms = ms + EXTEND_MS;
    }
    if (l->phase == SERVING && ms >= l->status_ms) {
        info_status_line(&l->serve, text, sizeof(text));
        notify_status(text);
        l->status_ms = ms + STATUS_MS;
    }
}

/* The timer goes off at the earliest of all that is due. */
static void timer_set(struct loop *l, uint64_t ms) {
    uint64_t at = ms + (uint64_t)notify_pause_ms();

    for (uint32_t i = 0; i < l->n_conns; i++) {
        uint64_t due = conn_deadline_ms(l->conns[i]);
        if (due < at) at = due;
    }
    if (l->phase != SERVING && l->deadline_ms < at) at = l->deadline_ms;
    if (l->accept_ms && l->accept_ms < at) at = l->accept_ms;
    struct itimerspec t = {
        .it_value = {.tv_sec = (time_t)(at / 1000), .tv_nsec = (long)(at % 1000) * 1000000 + 1}};
    (void)timerfd_settime(l->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

/* ---- turns ---- */

static void take_lost(struct loop *l, uint64_t ms) {
    uint64_t n;

    if (read(l->lost, &n, sizeof(n)) < 0 || l->serve.lost) return;
    log_line(LOG_AT_ERROR, "the device is lost; every request fails and the daemon ends");
    request_serve_events(&l->serve);
    l->serve.lost = true;
    end_begin(l, WIRE_E_DEVICE, "the device is lost", ms);
}

/* What is behind an event: one of our own, or the connection's turn. */
static void take_event(struct loop *l, const struct epoll_event *ev, uint64_t ms) {
    const char *what = ev->data.ptr;
    uint32_t i = 0;
    uint64_t n;

    if (what == &l->sources[SOURCE_DATA] || what == &l->sources[SOURCE_ADMIN]) {
        if (l->accept_ms == 0)
            accept_some(l, what == &l->sources[SOURCE_ADMIN] ? CONN_ADMIN : CONN_DATA, ms);
    } else if (what == &l->sources[SOURCE_SIGNAL]) {
        take_signal(l, ms);
    } else if (what == &l->sources[SOURCE_TIMER]) {
        if (read(l->timer, &n, sizeof(n)) < 0) return;
    } else if (what == &l->sources[SOURCE_ENGINE]) {
        request_serve_events(&l->serve);
    } else if (what == &l->sources[SOURCE_LOST]) {
        take_lost(l, ms);
    } else {
        /* An event of a connection that was dropped in this same turn finds none. */
        while (i < l->n_conns && l->conns[i] != ev->data.ptr) i++;
        if (i < l->n_conns) (void)conn_step(l, i, ev->events, ms);
    }
}

static void turn(struct loop *l) {
    struct epoll_event all[EVENTS_MAX];
    int n = epoll_wait(l->epoll, all, EVENTS_MAX, -1);
    uint64_t ms = now_ms();

    notify_beat();
    for (int i = 0; i < n; i++) take_event(l, &all[i], ms);
    /* Engine events, credit that others gave back, deadlines: everybody gets a turn. */
    for (uint32_t i = 0; i < l->n_conns;)
        if (conn_step(l, i, 0, ms)) i++;
    if (l->accept_ms) {
        bool on = ms >= l->accept_ms;

        for (int k = 0; k < LISTEN_KINDS; k++)
            listening(l, (enum conn_kind)k, on && l->phase == SERVING);
        if (on) l->accept_ms = 0;
    }
    tell_systemd(l, ms);
    tell_slow_step(l, now_us());
}

static int loop_open(struct loop *l, struct engine *engine, struct err *e) {
    sigset_t set;
    int r = request_serve_open(&l->serve, l->config, engine, now_us());

    if (r < 0) return err_set(e, r, "no memory to serve");
    l->conns = calloc(l->config->max_connections, sizeof(struct conn *));
    l->wants = calloc(l->config->max_connections, sizeof(*l->wants));
    if (!l->conns || !l->wants) return err_set(e, -ENOMEM, "no memory for connections");
    signal_set(&set);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    l->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    l->lost = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->epoll < 0 || l->signals < 0 || l->timer < 0 || l->lost < 0)
        return err_set(e, -errno, "epoll, signalfd, timerfd or eventfd: %s", strerror(errno));
    const int fds[SOURCES] = {l->listen->fds[LISTEN_DATA],
                              l->listen->fds[LISTEN_ADMIN],
                              l->signals,
                              l->timer,
                              engine_event_fd(engine),
                              l->lost};
    for (int i = 0; i < SOURCES && r == 0; i++) r = watch(l, fds[i], EPOLLIN, &l->sources[i]);
    if (r < 0) return err_set(e, r, "epoll: %s", strerror(-r));
    r = pthread_create(&l->engine_thread, NULL, engine_main, l);
    if (r != 0) return err_set(e, -r, "no engine thread: %s", strerror(r));
    l->engine_started = true;
    return 0;
}

static void loop_close(struct loop *l) {
    while (l->n_conns) conn_drop(l, l->n_conns - 1);
    free(l->conns);
    free(l->wants);
    const int fds[] = {l->epoll, l->signals, l->timer, l->lost};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (fds[i] >= 0) (void)close(fds[i]);
    request_serve_close(&l->serve);
}

/* What a thread that does not end still uses. */
static struct loop *volatile abandoned;

int loop_run(const struct config *config, struct engine *engine, const struct listen *listen,
             const struct loop_hooks *hooks, enum loop_end *out_end, struct err *e) {
    struct loop *l = calloc(1, sizeof(*l));
    enum loop_end end;
    int r;

    if (!l) return err_set(e, -ENOMEM, "no memory to serve");
    l->config = config;
    l->listen = listen;
    l->hooks = hooks;
    l->epoll = l->signals = l->timer = l->lost = -1;
    r = loop_open(l, engine, e);
    if (r == 0) {
        hooks->ready(hooks->user);
        for (;;) {
            timer_set(l, now_ms());
            turn(l);
            if (phase_step(l, now_ms())) break;
        }
    }
    end = l->serve.lost ? LOOP_LOST : LOOP_DRAINED;
    /* A thread that hangs in a step keeps what it uses; the process ends over it. */
    if (!engine_join(l)) {
        abandoned = l;
        *out_end = l->serve.lost ? LOOP_LOST : LOOP_AT_ONCE;
        return r;
    }
    loop_close(l);
    free(l);
    *out_end = end;
    return r;
}
