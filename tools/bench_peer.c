#include "tools/bench_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/err.h"

enum { END_MS = 5000 }; /* from the end of its input to ours of patience */

extern char **environ;

struct bench_peer {
    pid_t pid;
    int to, from; /* pipes, or -1 */
    size_t n_held;
    char held[PEER_LINE_BYTES]; /* read, and not yet taken as a line */
    char words[PEER_LINE_BYTES];
};

static int64_t now_ms(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000 + t.tv_nsec / 1000000;
}

static int start(struct bench_peer *p, const char *program, struct err *e) {
    char *arguments[] = {(char *)(uintptr_t)program, NULL};
    posix_spawn_file_actions_t actions;
    int to[2] = {-1, -1}, from[2] = {-1, -1}, r;

    if (pipe2(to, O_CLOEXEC) < 0 || pipe2(from, O_CLOEXEC) < 0) {
        r = errno;
    } else {
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
        posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
        r = posix_spawnp(&p->pid, program, &actions, NULL, arguments, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    if (to[0] >= 0) close(to[0]);
    if (from[1] >= 0) close(from[1]);
    p->to = to[1];
    p->from = from[0];
    return r ? err_set(e, -ENOENT, "peer %s: %s", program, strerror(r)) : 0;
}

/* Takes the first line held, if there is a whole one. */
static bool take_line(struct bench_peer *p, char line[PEER_LINE_BYTES]) {
    char *end = memchr(p->held, '\n', p->n_held);
    const size_t n = end ? (size_t)(end - p->held) : 0;

    if (!end) return false;
    memcpy(line, p->held, n);
    line[n] = '\0';
    p->n_held -= n + 1;
    memmove(p->held, end + 1, p->n_held);
    return true;
}

static int read_line(struct bench_peer *p, int timeout_ms, char line[PEER_LINE_BYTES],
                     struct err *e) {
    const int64_t end_ms = now_ms() + timeout_ms;

    while (!take_line(p, line)) {
        struct pollfd poll_in = {.fd = p->from, .events = POLLIN};
        const int64_t left_ms = end_ms - now_ms();
        ssize_t n;

        if (p->n_held == sizeof(p->held))
            return err_set(e, -EPROTO, "peer: a line of more than %d bytes", PEER_LINE_BYTES);
        if (left_ms <= 0 || poll(&poll_in, 1, (int)left_ms) == 0)
            return err_set(e, -ETIMEDOUT, "peer: no answer within %d s", timeout_ms / 1000);
        n = read(p->from, p->held + p->n_held, sizeof(p->held) - p->n_held);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return err_set(e, -EPIPE, "peer: it ended before it answered");
        p->n_held += (size_t)n;
    }
    return 0;
}

/* What follows the word, or NULL where the line begins with another. */
static const char *after(const char *line, const char *word) {
    const size_t n = strlen(word);

    return strncmp(line, word, n) == 0 && line[n] == ' ' ? line + n + 1 : NULL;
}

static int greet(struct bench_peer *p, struct err *e) {
    char line[PEER_LINE_BYTES], *words;
    const char *rest;
    long version;
    int r = read_line(p, PEER_START_MS, line, e);

    if (r == -EPIPE) return err_set(e, -ENOENT, "peer: it ended before it said who it is");
    if (r < 0) return r;
    if ((rest = after(line, "no"))) return err_set(e, -ENOENT, "peer: %s", rest);
    if (!(rest = after(line, "peer")))
        return err_set(e, -EPROTO, "peer: it began with \"%.80s\"", line);
    version = strtol(rest, &words, 10);
    if (version != PEER_VERSION || *words != ' ')
        return err_set(e, -EPROTO, "peer: it speaks \"%.80s\", we speak %d", rest, PEER_VERSION);
    snprintf(p->words, sizeof(p->words), "%s", words + 1);
    return 0;
}

int bench_peer_open(const char *program, struct bench_peer **out_peer, struct err *e) {
    struct bench_peer *p = calloc(1, sizeof(*p));
    int r;

    if (!p) return err_set(e, -ENOMEM, "peer: %zu bytes", sizeof(*p));
    p->to = p->from = -1;
    (void)signal(SIGPIPE, SIG_IGN);
    r = start(p, program, e);
    if (r == 0) r = greet(p, e);
    if (r < 0) {
        bench_peer_close(p);
        return r;
    }
    *out_peer = p;
    return 0;
}

void bench_peer_close(struct bench_peer *p) {
    const struct timespec a_while = {.tv_nsec = 10000000};
    const int64_t end_ms = now_ms() + END_MS;

    if (!p) return;
    if (p->to >= 0) close(p->to);
    while (p->pid > 0 && waitpid(p->pid, NULL, WNOHANG) == 0) {
        if (now_ms() > end_ms) {
            kill(p->pid, SIGKILL);
            (void)waitpid(p->pid, NULL, 0);
            break;
        }
        (void)nanosleep(&a_while, NULL);
    }
    if (p->from >= 0) close(p->from);
    free(p);
}

const char *bench_peer_words(const struct bench_peer *p) {
    return p->words;
}

static int send_line(struct bench_peer *p, const char *request, struct err *e) {
    char line[PEER_LINE_BYTES];
    const int n = snprintf(line, sizeof(line), "%s\n", request);

    if (n < 0 || n >= PEER_LINE_BYTES)
        return err_set(e, -EPROTO, "peer: a request of more than %d bytes", PEER_LINE_BYTES);
    if (write(p->to, line, (size_t)n) != n) return err_set(e, -EPIPE, "peer: it ended");
    return 0;
}

int bench_peer_ask(struct bench_peer *p, const char *request, double *out_us, struct err *e) {
    char line[PEER_LINE_BYTES], *end;
    const char *rest;
    double us;
    int r = send_line(p, request, e);

    if (r == 0) r = read_line(p, PEER_ANSWER_MS, line, e);
    if (r < 0) return r;
    if ((rest = after(line, "no"))) return err_set(e, -ENOTSUP, "peer: %s: %s", request, rest);
    rest = after(line, "us");
    us = rest ? strtod(rest, &end) : 0;
    if (!rest || end == rest || *end || !(us > 0) || isinf(us))
        return err_set(e, -EPROTO, "peer: to \"%s\" it said \"%.80s\"", request, line);
    *out_us = us;
    return 0;
}
