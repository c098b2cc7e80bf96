/* Shows the loop's ends with an engine that does what it is told: a device that is lost, a step
 * that hangs, and signals; that the watchdog is fed by steps and by nothing else; and that a systemd
 * that does not read is waited for by nobody. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/listen.h"
#include "daemon/loop.h"
#include "daemon/notify.h"
#include "daemon/wire.h"
#include "runtime/engine.h"
#include "runtime/err.h"
#include "runtime/template.h"
#include "runtime/token.h"

/* ---- the fake engine: at most one request; its token never comes ---- */

struct engine {
    struct engine_facts facts;
    atomic_bool live, cancelled, lose, hang, done, failed;
    atomic_ullong step_us;
    int fd;
};

static struct engine fake;
static struct template fake_template;

const uint8_t *token_bytes(const struct token *t, uint32_t id, uint32_t *out_n, bool *out_special) {
    (void)t;
    *out_n = 1;
    *out_special = false;
    return id < 256 ? (const uint8_t *)"x" : NULL;
}

int64_t token_encode(const struct token *t, const char *text, size_t n_bytes, unsigned flags,
                     uint32_t *out_ids, size_t n_ids_max, struct err *e) {
    (void)t;
    (void)text;
    (void)flags;
    (void)e;
    (void)n_ids_max;
    for (size_t i = 0; i < n_bytes; i++) out_ids[i] = 1;
    return (int64_t)n_bytes;
}

size_t token_utf8_push(struct token_utf8 *u, const uint8_t *bytes, size_t n_bytes, bool last,
                       uint8_t *out) {
    (void)u;
    (void)last;
    memcpy(out, bytes, n_bytes);
    return n_bytes;
}

int64_t template_encode(const struct template *t, const struct token *token,
                        const struct template_message *messages, size_t n_messages,
                        uint32_t *out_ids, size_t n_ids_max, struct err *e) {
    (void)t, (void)token, (void)messages, (void)n_messages, (void)out_ids, (void)n_ids_max;
    return err_set(e, -ENOTSUP, "none");
}

const char *template_name(enum template_family family) {
    (void)family;
    return "none";
}

const struct engine_facts *engine_facts_get(const struct engine *g) {
    return &g->facts;
}

int engine_submit(struct engine *g, const struct engine_request *r, uint64_t *out_handle,
                  struct err *e) {
    (void)r;
    (void)e;
    *out_handle = 7;
    atomic_store(&g->live, true);
    return 0;
}

void engine_cancel(struct engine *g, uint64_t handle) {
    (void)handle;
    atomic_store(&g->cancelled, true);
}

void engine_grant(struct engine *g, uint64_t handle, uint32_t n) {
    (void)g, (void)handle, (void)n;
}

bool engine_next(struct engine *g, struct engine_event *out) {
    uint64_t n;

    if (read(g->fd, &n, sizeof(n)) < 0 && errno != EAGAIN) abort();
    *out = (struct engine_event){.handle = 7, .finish = WIRE_FINISH_CANCELLED, .code = -EIO};
    out->kind = atomic_load(&g->failed) ? ENGINE_FAILED : ENGINE_DONE;
    if (!atomic_load(&g->failed) && !atomic_load(&g->done)) return false;
    atomic_store(&g->failed, false);
    atomic_store(&g->done, false);
    return true;
}

uint32_t engine_queue_place(const struct engine *g) {
    (void)g;
    return 0;
}

void engine_stats_get(const struct engine *g, struct engine_stats *out) {
    struct engine *mutable = (struct engine *)(uintptr_t)g;

    *out = (struct engine_stats){.step_us = atomic_load(&mutable->step_us), .step_rows = 77};
}

static void tell(struct engine *g, atomic_bool *what) {
    uint64_t one = 1;

    atomic_store(&g->live, false);
    atomic_store(what, true);
    if (write(g->fd, &one, sizeof(one)) < 0) abort();
}

int engine_step(struct engine *g) {
    struct timespec t = {.tv_nsec = 1000000};

    while (atomic_load(&g->hang)) (void)nanosleep(&t, NULL);
    if (atomic_load(&g->lose)) {
        if (atomic_load(&g->live)) tell(g, &g->failed);
        return -EIO;
    }
    if (atomic_load(&g->live) && atomic_load(&g->cancelled)) tell(g, &g->done);
    return 0;
}

void engine_wait(struct engine *g, int timeout_ms) {
    struct timespec t = {.tv_nsec = 5000000};

    (void)g;
    (void)timeout_ms;
    (void)nanosleep(&t, NULL);
}

void engine_wake(struct engine *g) {
    (void)g;
}

int engine_event_fd(const struct engine *g) {
    return g->fd;
}

/* ---- the loop in a thread of its own ---- */

static struct run {
    pthread_t thread;
    char dir[64], path[96], admin[96];
    struct config config;
    struct listen listen;
    struct loop_hooks hooks;
    enum loop_end end;
    int r, told; /* told: systemd's end */
    atomic_bool ready;
    atomic_int n_reloads;
} run;

static void on_ready(void *user) {
    (void)user;
    atomic_store(&run.ready, true);
}

static void on_reload(void *user) {
    (void)user;
    notify_reloading();
    atomic_fetch_add(&run.n_reloads, 1);
    notify_reloaded();
}

static void *run_main(void *arg) {
    struct err e;

    (void)arg;
    run.r = loop_run(&run.config, &fake, &run.listen, &run.hooks, &run.end, &e);
    return NULL;
}

static void pause_ms(long ms) {
    struct timespec t = {ms / 1000, (ms % 1000) * 1000000};

    (void)nanosleep(&t, NULL);
}

static int setup(void **state) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct err e;

    (void)state;
    memset(&fake, 0, sizeof(fake));
    memset(&run, 0, sizeof(run));
    (void)snprintf(run.dir, sizeof(run.dir), "/tmp/llm42d-loop.XXXXXX");
    if (!mkdtemp(run.dir)) return -1;
    (void)snprintf(run.path, sizeof(run.path), "%s/data", run.dir);
    (void)snprintf(run.admin, sizeof(run.admin), "%s/admin", run.dir);
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s/notify", run.dir);
    run.told = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    if (bind(run.told, (struct sockaddr *)&a, sizeof(a)) < 0) return -1;
    (void)setenv("NOTIFY_SOCKET", a.sun_path, 1);
    (void)setenv("WATCHDOG_USEC", "200000", 1);
    fake.facts.context = 64;
    fake.facts.model.vocab = 256;
    fake.facts.template = &fake_template;
    fake.fd = eventfd(0, EFD_NONBLOCK);
    run.config = (struct config){.max_connections = 4,
                                 .max_requests_per_connection = 4,
                                 .max_text_bytes = 4096,
                                 .hello_timeout_ms = 5000,
                                 .slow_client_timeout_ms = 5000,
                                 .drain_timeout_ms = 5000,
                                 .output_bytes = 256 << 10};
    if (listen_open(run.path, run.admin, 0600, &run.listen, &e) < 0) return -1;
    run.hooks = (struct loop_hooks){.ready = on_ready, .reload = on_reload};
    loop_signals_block();
    if (pthread_create(&run.thread, NULL, run_main, NULL) != 0) return -1;
    for (int i = 0; i < 500 && !atomic_load(&run.ready); i++) pause_ms(10);
    return atomic_load(&run.ready) ? 0 : -1;
}

static int teardown(void **state) {
    char path[96];

    (void)state;
    listen_close(&run.listen);
    (void)snprintf(path, sizeof(path), "%s/notify", run.dir);
    (void)unlink(path);
    (void)close(run.told);
    if (run.end != LOOP_AT_ONCE) (void)close(fake.fd); /* else its thread may still write to it */
    return rmdir(run.dir);
}

static int client_open(void) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct timeval t = {.tv_sec = 10};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s", run.path);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
    return fd;
}

static void client_read(int fd, void *bytes, size_t n) {
    assert_int_equal(recv(fd, bytes, n, MSG_WAITALL), (ssize_t)n);
}

/* The next frame's type; of an ERROR its code and request too. */
static uint16_t client_next(int fd, uint16_t *out_code, uint64_t *out_request) {
    uint8_t bytes[4096];
    struct wire_frame f;
    struct wire_error e = {0};
    uint32_t n;

    client_read(fd, bytes, WIRE_HEADER_BYTES);
    n = wire_u32_at(bytes, 0);
    assert_true(n <= sizeof(bytes) - WIRE_HEADER_BYTES);
    if (n) client_read(fd, bytes + WIRE_HEADER_BYTES, n);
    assert_true(wire_read(bytes, WIRE_HEADER_BYTES + n, WIRE_PAYLOAD_MAX, &f) > 0);
    if (f.type == WIRE_ERROR) assert_int_equal(wire_read_error(&f, &e), 0);
    *out_code = e.code;
    *out_request = f.request;
    return f.type;
}

static int client_begin(void) {
    struct wire_hello h = {.version_min = 1, .version_max = 1};
    struct wire_submit s = {.max_tokens = 8,
                            .top_p = 1,
                            .n = 1,
                            .prompt_kind = WIRE_PROMPT_KIND_TEXT,
                            .prompt_bytes = 1};
    struct wire_prompt p = {.last = true, .data = (const uint8_t *)"x", .n_data = 1};
    uint8_t bytes[512];
    size_t n = wire_write_hello(bytes, sizeof(bytes), &h);
    uint16_t code;
    uint64_t request;
    int fd = client_open();

    n += wire_write_submit(bytes + n, sizeof(bytes) - n, 1, &s);
    n += wire_write_prompt(bytes + n, sizeof(bytes) - n, 1, &p);
    assert_int_equal(send(fd, bytes, n, 0), (ssize_t)n);
    assert_int_equal(client_next(fd, &code, &request), WIRE_HELLO_OK);
    assert_int_equal(client_next(fd, &code, &request), WIRE_ACCEPTED);
    return fd;
}

/* How often the log says `what`, of what was logged since log_keep. */
static int kept_fd = -1, log_fd = -1;

static void log_keep(void) {
    FILE *f = tmpfile();

    assert_non_null(f);
    log_fd = dup(fileno(f));
    (void)fclose(f);
    kept_fd = dup(STDERR_FILENO);
    assert_true(log_fd >= 0 && kept_fd >= 0 && dup2(log_fd, STDERR_FILENO) >= 0);
}

static int log_kept(const char *what) {
    static char text[1 << 16];
    ssize_t n = pread(log_fd, text, sizeof(text) - 1, 0);
    int n_found = 0;

    assert_true(n >= 0 && dup2(kept_fd, STDERR_FILENO) >= 0);
    (void)close(kept_fd);
    (void)close(log_fd);
    text[n] = '\0';
    for (const char *at = text; (at = strstr(at, what)); at++) n_found++;
    return n_found;
}

/* Systemd is told all of `what`, in this order, within three seconds without anything. */
static void told_in_order(const char *const *what, int n) {
    int n_found = 0;
    char text[512];

    for (int i = 0; i < 300 && n_found < n; i++) {
        ssize_t size = recv(run.told, text, sizeof(text) - 1, MSG_DONTWAIT);

        if (size < 0) {
            pause_ms(10);
            continue;
        }
        i--;
        text[size] = '\0';
        if (strncmp(text, what[n_found], strlen(what[n_found])) == 0) n_found++;
    }
    if (n_found < n) fail_msg("systemd is not told %s", what[n_found]);
}

/* How often systemd was told `what` since the last call. */
static int n_told(const char *what) {
    char text[512];
    ssize_t n;
    int n_found = 0;

    while ((n = recv(run.told, text, sizeof(text) - 1, 0)) > 0) {
        text[n] = '\0';
        if (strstr(text, what)) n_found++;
    }
    return n_found;
}

static void join(enum loop_end end) {
    assert_int_equal(pthread_join(run.thread, NULL), 0);
    assert_int_equal(run.r, 0);
    assert_int_equal(run.end, end);
}

/* To the process: only the loop's signalfd takes it. */
static void signal_send(int signo) {
    assert_int_equal(kill(getpid(), signo), 0);
}

static void test_lost(void **state) {
    int fd = client_begin();
    uint16_t code;
    uint64_t request;

    (void)state;
    atomic_store(&fake.lose, true);
    assert_int_equal(client_next(fd, &code, &request), WIRE_ERROR);
    assert_int_equal(code, WIRE_E_DEVICE);
    assert_int_equal(request, 1);
    assert_int_equal(client_next(fd, &code, &request), WIRE_ERROR);
    assert_int_equal(request, 0);
    (void)close(fd);
    join(LOOP_LOST);
}

static void test_lost_idle(void **state) {
    (void)state;
    atomic_store(&fake.lose, true);
    join(LOOP_LOST);
}

static void test_hang(void **state) {
    int fd = client_begin();
    struct timespec t;

    (void)state;
    pause_ms(300);
    assert_true(n_told("WATCHDOG=1") >= 2);
    log_keep();
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    atomic_store(&fake.step_us, (uint64_t)(t.tv_sec - 7) * 1000000); /* not yet */
    pause_ms(300);
    atomic_store(&fake.step_us, (uint64_t)(t.tv_sec - 11) * 1000000);
    atomic_store(&fake.hang, true);
    pause_ms(100);
    (void)n_told("WATCHDOG=1");
    pause_ms(500); /* more than twice the watchdog's time */
    assert_int_equal(n_told("WATCHDOG=1"), 0);
    assert_int_equal(log_kept("a step of 77 rows has not ended"), 1);
    atomic_store(&fake.step_us, 0);
    (void)close(fd);
    signal_send(SIGTERM);
    pause_ms(100);
    assert_true(n_told("STOPPING=1") == 1);
    signal_send(SIGTERM);
    join(LOOP_AT_ONCE); /* its thread is left where it hangs */
    atomic_store(&fake.hang, false);
    pause_ms(100); /* the thread sees its end; what it used was left in place */
}

/* Fills the queue of who listens there.  A socket each: what one may have on its way is limited,
 * too. */
static void queue_fill(const struct sockaddr_un *a, socklen_t n_a) {
    ssize_t n = 1;

    for (int i = 0; i < 100000 && n == 1; i++) {
        int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

        assert_true(fd >= 0);
        n = sendto(fd, "x", 1, MSG_DONTWAIT, (const struct sockaddr *)a, n_a);
        (void)close(fd);
    }
    assert_int_equal(n, -1);
    assert_int_equal(errno, EAGAIN);
}

static void told_fill(void) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s/notify", run.dir);
    queue_fill(&a, sizeof(a));
}

static void test_deaf(void **state) {
    static const char *const late[] = {"RELOADING=1\nMONOTONIC_USEC=", "READY=1", "STOPPING=1"};
    uint16_t code;
    uint64_t request;
    int fd;

    (void)state;
    (void)alarm(20); /* whoever waits here waits for ever */
    told_fill();
    notify_status("nobody hears it");
    notify_extend(1);
    pause_ms(300); /* WATCHDOG=1 was due */
    fd = client_begin();
    signal_send(SIGHUP);
    for (int i = 0; i < 500 && atomic_load(&run.n_reloads) == 0; i++) pause_ms(10);
    assert_int_equal(atomic_load(&run.n_reloads), 1);
    signal_send(SIGTERM);
    assert_int_equal(client_next(fd, &code, &request), WIRE_SHUTDOWN);
    /* There is room again: what it must know comes late, the rest anew. */
    told_in_order(late, 3);
    (void)n_told("STOPPING=1");
    pause_ms(1300);
    assert_true(n_told("WATCHDOG=1") >= 1);
    assert_int_equal(n_told("STOPPING=1"), 0);
    signal_send(SIGTERM);
    (void)close(fd);
    join(LOOP_DRAINED);
    (void)alarm(0);
}

static void *read_late(void *arg) {
    const int *fd = arg;
    char c;

    pause_ms(200);
    (void)!recv(*fd, &c, 1, 0);
    return NULL;
}

/* An address of systemd's that is no path; and what is no address at all. */
static void test_address(void **state) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const int n = snprintf(a.sun_path + 1, sizeof(a.sun_path) - 1, "llm42d-loop.%d", (int)getpid());
    const socklen_t n_a = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0), free_fd;
    pthread_t reader;
    ssize_t size;
    char text[64] = "", name[sizeof(a.sun_path) + 1];

    (void)state;
    assert_int_equal(bind(fd, (struct sockaddr *)&a, n_a), 0);
    (void)snprintf(name, sizeof(name), "@%s", a.sun_path + 1);
    (void)setenv("NOTIFY_SOCKET", name, 1);
    notify_extend(77);
    assert_true(recv(fd, text, sizeof(text) - 1, 0) > 0);
    assert_string_equal(text, "EXTEND_TIMEOUT_USEC=77");
    free_fd = dup(fd);
    (void)close(free_fd);
    /* Who reads a little late is waited for. */
    queue_fill(&a, n_a);
    assert_int_equal(pthread_create(&reader, NULL, read_late, &fd), 0);
    notify_ready("at last");
    assert_int_equal(pthread_join(reader, NULL), 0);
    while ((size = recv(fd, text, sizeof(text) - 1, 0)) > 0) text[size] = '\0';
    assert_string_equal(text, "READY=1\nSTATUS=at last");
    (void)setenv("NOTIFY_SOCKET", "nowhere", 1);
    notify_extend(78);
    (void)unsetenv("NOTIFY_SOCKET");
    notify_extend(79);
    assert_int_equal(recv(fd, text, sizeof(text), 0), -1);
    assert_int_equal(dup(fd), free_fd); /* no descriptor was left open */
    (void)close(free_fd);
    (void)close(fd);
}

static void test_signals(void **state) {
    int fd = client_begin();
    uint16_t code;
    uint64_t request;

    (void)state;
    signal_send(SIGHUP);
    for (int i = 0; i < 100 && atomic_load(&run.n_reloads) == 0; i++) pause_ms(10);
    assert_int_equal(atomic_load(&run.n_reloads), 1);
    signal_send(SIGTERM);
    assert_int_equal(client_next(fd, &code, &request), WIRE_SHUTDOWN);
    signal_send(SIGTERM);
    assert_int_equal(client_next(fd, &code, &request), WIRE_ERROR);
    assert_int_equal(code, WIRE_E_DRAINING);
    assert_int_equal(request, 1);
    (void)close(fd);
    join(LOOP_DRAINED); /* at once, and the engine thread came along */
}

static void test_connections(void **state) {
    int fds[6];
    uint16_t code;
    uint64_t request;
    char byte;

    (void)state;
    for (int i = 0; i < 5; i++) fds[i] = client_open();
    assert_int_equal(client_next(fds[4], &code, &request), WIRE_ERROR);
    assert_int_equal(code, WIRE_E_BUSY);
    assert_int_equal(request, 0);
    assert_int_equal(recv(fds[4], &byte, 1, 0), 0);
    for (int i = 0; i < 5; i++) (void)close(fds[i]);
    pause_ms(50);
    (void)close(client_begin()); /* there is room again */
    signal_send(SIGINT);
    join(LOOP_DRAINED);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_address), CASE(test_lost), CASE(test_lost_idle), CASE(test_signals),
        CASE(test_connections),         CASE(test_deaf), CASE(test_hang)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
