#include "tools/bench_daemon.h"

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

#include "tools/bench_verbs.h"

enum {
    READY_WAIT_MS = 600000,
    STOP_WAIT_MS = 60000,
    ARGS_MAX = 2 * (BENCH_SETS_MAX + BENCH_DAEMON_SETS_MAX) + 16,
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number) {
    (void)number;
    interrupted = 1;
}

void bench_daemon_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};

    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)signal(SIGPIPE, SIG_IGN); /* a reader that goes early is no reason to leave things */
}

bool bench_daemon_interrupted(void) {
    return interrupted;
}

/* A folder with an empty configuration, and a socket that plays systemd. */
static int folder_make(struct bench_daemon *d) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd;

    snprintf(d->folder, sizeof(d->folder), "/tmp/llm42-bench.XXXXXX");
    if (!mkdtemp(d->folder)) return -errno;
    snprintf(d->socket, sizeof(d->socket), "%.32s/sock", d->folder);
    snprintf(d->admin, sizeof(d->admin), "%.32s/admin", d->folder);
    snprintf(d->notify, sizeof(d->notify), "%.32s/notify", d->folder);
    snprintf(d->config, sizeof(d->config), "%.32s/conf", d->folder);
    snprintf(d->log, sizeof(d->log), "%.32s/log", d->folder);
    fd = open(d->config, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return -errno;
    close(fd);

    d->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (d->notify_fd < 0) return -errno;
    strcpy(address.sun_path, d->notify);
    if (bind(d->notify_fd, (const struct sockaddr *)&address, sizeof(address)) < 0) return -errno;
    return 0;
}

static void folder_remove(struct bench_daemon *d) {
    if (d->notify_fd >= 0) close(d->notify_fd);
    (void)unlink(d->socket);
    (void)unlink(d->admin);
    (void)unlink(d->notify);
    (void)unlink(d->config);
    (void)unlink(d->log);
    (void)rmdir(d->folder);
}

/* What the daemon had to say, where it failed. */
static void log_show(const struct bench_daemon *d) {
    char line[4096];
    FILE *f = fopen(d->log, "re");

    while (f && fgets(line, sizeof(line), f)) fprintf(stderr, "llm42d: %s", line);
    if (f) fclose(f);
}

/* Runs in the child. */
static void daemon_exec(const struct bench_options *o, const char *const *sets, uint32_t n_sets,
                        const struct bench_daemon *d) {
    const char *args[ARGS_MAX] = {o->daemon, "--config", d->config};
    char model[4096], socket[128], admin[128], threads[64], policy[64];
    int n = 3, fd;

    char *whole = realpath(o->model, NULL); /* NULL: let the daemon say what is wrong */

    snprintf(model, sizeof(model), "model.path=%s", whole ? whole : o->model);
    snprintf(socket, sizeof(socket), "server.socket=%s", d->socket);
    snprintf(admin, sizeof(admin), "server.admin_socket=%s", d->admin);
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
    for (uint32_t i = 0; i < n_sets && n + 2 < ARGS_MAX; i++) {
        args[n++] = "--set";
        args[n++] = sets[i];
    }
    args[n] = NULL;
    fd = open(d->log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) (void)dup2(fd, STDERR_FILENO);
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* it may be deaf to all else, and holds the GPU */
    (void)setenv("NOTIFY_SOCKET", d->notify, 1);
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

/* Nobody reads on: were the socket left, its queue would fill, and a daemon that waits for a place in
 * it would stand still. */
static void notify_end(struct bench_daemon *d) {
    (void)unlink(d->notify);
    (void)close(d->notify_fd);
    d->notify_fd = -1;
}

/* Until READY=1, or until the daemon has gone. */
static int ready_wait(struct bench_daemon *d) {
    const int64_t end_ns = d->begin_ns + READY_WAIT_MS * (int64_t)1000000;
    char message[4096];
    int status;

    while (!interrupted && bench_now_ns() < end_ns) {
        struct pollfd fd = {.fd = d->notify_fd, .events = POLLIN};
        ssize_t n;

        if (poll(&fd, 1, 100) > 0) {
            n = recv(d->notify_fd, message, sizeof(message) - 1, MSG_DONTWAIT);
            if (n < 0) continue;
            message[n] = '\0';
            if (!says_ready(message)) continue;
            notify_end(d);
            return BENCH_OK;
        } else if (waitpid(d->pid, &status, WNOHANG) == d->pid) {
            d->pid = 0;
            bench_say("the daemon ended before READY=1, with %s %d",
                      WIFEXITED(status) ? "code" : "signal",
                      WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
            return BENCH_FAILED;
        }
    }
    if (interrupted) return BENCH_INTERRUPTED;
    bench_say("no READY=1 within %d s", READY_WAIT_MS / 1000);
    return BENCH_FAILED;
}

int bench_daemon_start(const struct bench_options *o, const char *const *sets, uint32_t n_sets,
                       struct bench_daemon *d) {
    int r;

    *d = (struct bench_daemon){.notify_fd = -1};
    r = folder_make(d);
    if (r < 0) {
        bench_say("%s: %s", d->folder, strerror(-r));
        return BENCH_FAILED;
    }
    fflush(stdout);
    d->begin_ns = bench_now_ns();
    d->pid = fork();
    if (d->pid == 0) daemon_exec(o, sets, n_sets, d);
    if (d->pid > 0) return ready_wait(d);
    bench_say("fork: %s", strerror(errno));
    d->pid = 0;
    return BENCH_FAILED;
}

/* Whether it ended, and clean. */
static bool child_end(struct bench_daemon *d) {
    const int64_t begin_ns = bench_now_ns();
    int status = 0;
    pid_t done = 0;

    (void)kill(d->pid, SIGTERM);
    while (done == 0 && bench_now_ns() - begin_ns < STOP_WAIT_MS * (int64_t)1000000) {
        done = waitpid(d->pid, &status, WNOHANG);
        if (done == 0) usleep(1000);
    }
    if (done == 0) {
        (void)kill(d->pid, SIGKILL);
        done = waitpid(d->pid, &status, 0);
    }
    d->pid = 0;
    if (done > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    bench_say("the daemon did not end clean: wait status %d", status);
    return false;
}

int bench_daemon_stop(struct bench_daemon *d, bool failed, double *out_ms) {
    const int64_t begin_ns = bench_now_ns();
    const bool clean = d->pid == 0 || child_end(d);

    if (out_ms) *out_ms = (double)(bench_now_ns() - begin_ns) / 1e6;
    if (failed || !clean) log_show(d);
    folder_remove(d);
    return clean ? BENCH_OK : BENCH_FAILED;
}
