/* A daemon of our own, from exec to its end: readiness, memory, round trip. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/bench_client.h"

enum {
    READY_WAIT_MS = 600000,
    STOP_WAIT_MS = 60000,
    LOAD_REQUESTS = 16,
    LOAD_TOKENS = 16,
    LOAD_CONCURRENCY = 8,
    PATH_BYTES = 64, /* of the folder and of what is in it: a socket's path is 107 at most */
    ARGS_MAX = 2 * BENCH_SETS_MAX + 16,
    MIB_OVER = 64, /* beyond weights and KV, at most */
};

struct child {
    char folder[PATH_BYTES], socket[PATH_BYTES], admin[PATH_BYTES], notify[PATH_BYTES];
    char config[PATH_BYTES], log[PATH_BYTES];
    int notify_fd;
    pid_t pid; /* 0: none runs */
    int64_t begin_ns;
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number) {
    (void)number;
    interrupted = 1;
}

/* A signal ends what waits, and so the daemon and its folder go too. */
static void signals_take(void) {
    struct sigaction action = {.sa_handler = on_signal};

    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)signal(SIGPIPE, SIG_IGN); /* a reader that goes early is no reason to leave things */
}

/* A folder with an empty configuration, and a socket that plays systemd. */
static int folder_make(struct child *c) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd;

    snprintf(c->folder, sizeof(c->folder), "/tmp/llm42-bench.XXXXXX");
    if (!mkdtemp(c->folder)) return -errno;
    snprintf(c->socket, sizeof(c->socket), "%.32s/sock", c->folder);
    snprintf(c->admin, sizeof(c->admin), "%.32s/admin", c->folder);
    snprintf(c->notify, sizeof(c->notify), "%.32s/notify", c->folder);
    snprintf(c->config, sizeof(c->config), "%.32s/conf", c->folder);
    snprintf(c->log, sizeof(c->log), "%.32s/log", c->folder);
    fd = open(c->config, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return -errno;
    close(fd);

    c->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (c->notify_fd < 0) return -errno;
    strcpy(address.sun_path, c->notify);
    if (bind(c->notify_fd, (const struct sockaddr *)&address, sizeof(address)) < 0) return -errno;
    return 0;
}

static void folder_remove(struct child *c) {
    if (c->notify_fd >= 0) close(c->notify_fd);
    (void)unlink(c->socket);
    (void)unlink(c->admin);
    (void)unlink(c->notify);
    (void)unlink(c->config);
    (void)unlink(c->log);
    (void)rmdir(c->folder);
}

/* What the daemon had to say, where it failed. */
static void log_show(const struct child *c) {
    char line[4096];
    FILE *f = fopen(c->log, "re");

    while (f && fgets(line, sizeof(line), f)) fprintf(stderr, "llm42d: %s", line);
    if (f) fclose(f);
}

/* Runs in the child. */
static void daemon_exec(const struct bench_options *o, const struct child *c) {
    const char *args[ARGS_MAX] = {o->daemon, "--config", c->config};
    char model[4096], socket[128], admin[128], threads[64], policy[64];
    int n = 3, fd;

    char *whole = realpath(o->model, NULL); /* NULL: let the daemon say what is wrong */

    snprintf(model, sizeof(model), "model.path=%s", whole ? whole : o->model);
    snprintf(socket, sizeof(socket), "server.socket=%s", c->socket);
    snprintf(admin, sizeof(admin), "server.admin_socket=%s", c->admin);
    snprintf(threads, sizeof(threads), "engine.threads=%u", o->n_threads);
    snprintf(policy, sizeof(policy), "engine.policy=%s", o->policy);
    const char *const ours[] = {model, socket, admin, threads, policy, "log.level=warning"};

    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
        args[n++] = "--set";
        args[n++] = ours[i];
    }
    for (uint32_t i = 0; i < o->n_sets && n + 2 < ARGS_MAX; i++) {
        args[n++] = "--set";
        args[n++] = o->sets[i];
    }
    args[n] = NULL;
    fd = open(c->log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) (void)dup2(fd, STDERR_FILENO);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)setenv("NOTIFY_SOCKET", c->notify, 1);
    (void)unsetenv("WATCHDOG_USEC");
    (void)unsetenv("LISTEN_FDS");
    execv(o->daemon, (char *const *)args);
    fprintf(stderr, "llm42-bench: %s: %s\n", o->daemon, strerror(errno));
    _exit(127);
}

static bool says_ready(const char *message) {
    for (const char *line = message; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, "READY=1", 7) == 0) return true;
    }
    return false;
}

/* Until READY=1, or until the daemon has gone. */
static int ready_wait(struct child *c) {
    const int64_t end_ns = c->begin_ns + READY_WAIT_MS * (int64_t)1000000;
    char message[4096];
    int status;

    while (!interrupted && bench_now_ns() < end_ns) {
        struct pollfd fd = {.fd = c->notify_fd, .events = POLLIN};
        ssize_t n;

        if (poll(&fd, 1, 100) > 0) {
            n = recv(c->notify_fd, message, sizeof(message) - 1, MSG_DONTWAIT);
            if (n < 0) continue;
            message[n] = '\0';
            if (says_ready(message)) return BENCH_OK;
        } else if (waitpid(c->pid, &status, WNOHANG) == c->pid) {
            c->pid = 0;
            bench_say("the daemon ended before READY=1, with %s %d",
                      WIFEXITED(status) ? "code" : "signal",
                      WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
            return BENCH_FAILED;
        }
    }
    if (!interrupted) bench_say("no READY=1 within %d s", READY_WAIT_MS / 1000);
    return BENCH_FAILED;
}

static int child_start(const struct bench_options *o, struct child *c) {
    fflush(stdout);
    c->begin_ns = bench_now_ns();
    c->pid = fork();
    if (c->pid == 0) daemon_exec(o, c);
    if (c->pid > 0) return ready_wait(c);
    bench_say("fork: %s", strerror(errno));
    c->pid = 0;
    return BENCH_FAILED;
}

/* SIGTERM and, where that does not help, SIGKILL. */
static int child_stop(const struct bench_options *o, struct child *c) {
    const int64_t begin_ns = bench_now_ns();
    int status = 0;
    pid_t done = 0;

    if (c->pid == 0) return BENCH_OK;
    (void)kill(c->pid, SIGTERM);
    while (done == 0 && bench_now_ns() - begin_ns < STOP_WAIT_MS * (int64_t)1000000) {
        done = waitpid(c->pid, &status, WNOHANG);
        if (done == 0) usleep(1000);
    }
    if (done == 0) {
        (void)kill(c->pid, SIGKILL);
        done = waitpid(c->pid, &status, 0);
    }
    c->pid = 0;
    if (done < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        bench_say("the daemon did not end clean: wait status %d", status);
        return BENCH_FAILED;
    }
    bench_report_figure(&o->report, "start.stop", (double)(bench_now_ns() - begin_ns) / 1e6, "ms",
                        (struct bench_target){0, false}, "SIGTERM to its end, idle");
    return BENCH_OK;
}

/* ---- Memory ---- */

/* A line of /proc/PID/status, in MiB. */
static double status_mib(pid_t pid, const char *key) {
    char path[64], line[256];
    double kib = -1024;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, key, strlen(key)) == 0 && line[strlen(key)] == ':')
            kib = strtod(line + strlen(key) + 1, NULL);
    if (f) fclose(f);
    return kib / 1024;
}

static double mib_of(const json_t *memory, const char *key) {
    return (double)json_integer_value(json_object_get(memory, key)) / 0x1p20;
}

static void memory_report(const struct bench_options *o, const struct child *c, const json_t *info,
                          const char *when) {
    const json_t *memory = json_object_get(info, "memory_bytes");
    const double due = mib_of(memory, "weights") + mib_of(memory, "kv");
    const double rss = status_mib(c->pid, "VmRSS");
    const struct bench_target none = {0};

    bench_report_figure(&o->report, "start.rss", rss, "MiB", none, "VmRSS %s", when);
    bench_report_figure(&o->report, "start.rss_anon", status_mib(c->pid, "RssAnon"), "MiB", none,
                        "RssAnon %s", when);
    bench_report_figure(&o->report, "start.rss_over", rss - due, "MiB",
                        (struct bench_target){MIB_OVER, true},
                        "VmRSS %s beyond %.1f MiB of weights and KV", when, due);
}

/* ---- The verb ---- */

static int measure(const struct bench_options *o, const struct child *c) {
    const struct bench_target none = {0};
    struct bench_options small = *o;
    struct bench_load load = {.n = 0};
    struct llm42_io *io = NULL;
    const json_t *memory;
    json_t *info = NULL;
    int r;

    bench_report_figure(&o->report, "start.ready", (double)(bench_now_ns() - c->begin_ns) / 1e9,
                        "s",
                        (struct bench_target){strstr(o->model, "verse-4m")  ? 1
                                              : strstr(o->model, "SmolLM2") ? 5
                                                                            : 0,
                                              true},
                        "exec to READY=1");
    r = bench_client_open(c->socket, &io);
    if (r == BENCH_OK) r = bench_client_info(io, WIRE_INFO_ALL, &info);
    if (r != BENCH_OK) goto out;
    memory = json_object_get(info, "memory_bytes");
    bench_report_figure(&o->report, "start.weights", mib_of(memory, "weights"), "MiB", none,
                        "weights, as INFO has it");
    bench_report_figure(&o->report, "start.kv", mib_of(memory, "kv"), "MiB", none,
                        "KV cache, as INFO has it");
    bench_report_figure(&o->report, "start.work", mib_of(memory, "work"), "MiB", none,
                        "work buffers, as INFO has it");
    memory_report(o, c, info, "when ready");
    if ((r = bench_client_ping(&o->report, io, o->n_pings)) != BENCH_OK) goto out;

    small.n_requests = LOAD_REQUESTS;
    small.concurrency = LOAD_CONCURRENCY;
    small.max_tokens = LOAD_TOKENS;
    small.rate = 0;
    small.trace = NULL;
    r = bench_load_make(&small, llm42_server(llm42_io_core(io))->context, &load);
    if (r == BENCH_OK) r = bench_load_run(&small, io, &load);
    if (r == BENCH_OK) memory_report(o, c, info, "after 16 requests");
out:
    json_decref(info);
    bench_load_free(&load);
    llm42_io_close(io);
    return r;
}

int bench_start(const struct bench_options *o) {
    struct child c = {.notify_fd = -1};
    int stopped, r;

    signals_take(); /* before there is anything to leave behind */
    r = folder_make(&c);
    if (r < 0) {
        bench_say("%s: %s", c.folder, strerror(-r));
        folder_remove(&c);
        return BENCH_FAILED;
    }
    bench_report_section(&o->report, "Start: %s, %s, policy %s", o->daemon, o->model, o->policy);
    r = child_start(o, &c);
    if (r == BENCH_OK) r = measure(o, &c);
    stopped = child_stop(o, &c);
    if (r != BENCH_OK || stopped != BENCH_OK) log_show(&c);
    folder_remove(&c);
    return r != BENCH_OK ? r : stopped;
}
