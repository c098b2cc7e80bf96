/* Shows that whatever a client sends or leaves undone has one named answer and touches nobody
 * else: frames in any state, limits at their edges, no credit, no reading, no goodbye.  The engine
 * is a small fake whose tokens come when the test says so; sockets are real. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/conn.h"
#include "daemon/listen.h"
#include "daemon/out.h"
#include "daemon/request.h"
#include "daemon/wire.h"
#include "runtime/engine.h"
#include "runtime/err.h"
#include "runtime/template.h"
#include "runtime/token.h"

enum { VOCAB = 300, HOLE = 299, CONTEXT = 256, SLOTS = 8, EVENTS = 4096 };

/* ---- the fake: bytes are tokens, the output counts up from 65 ---- */

struct slot {
    bool used, cancelled;
    uint64_t handle;
    struct engine_request q;
    uint32_t n_granted, n_output, n_prompt_told;
    uint64_t seed;
};

struct engine {
    struct engine_facts facts;
    struct slot slots[SLOTS];
    uint64_t handle;
    struct engine_event events[EVENTS];
    uint32_t first, n_events;
    uint32_t n_cancels;
    bool dead;
    bool queues; /* what is submitted waits until fake_start */
    bool worst;  /* each token has as much text as an event can have */
};

static struct engine fake;
static struct template fake_template = {.family = TEMPLATE_CHATML};

const uint8_t *token_bytes(const struct token *t, uint32_t id, uint32_t *out_n, bool *out_special) {
    static uint8_t bytes[256];

    (void)t;
    *out_special = false;
    *out_n = 1;
    if (id >= HOLE) return NULL;
    if (id >= 256) return (const uint8_t *)"?";
    bytes[id] = (uint8_t)id;
    return bytes + id;
}

int64_t token_encode(const struct token *t, const char *text, size_t n_bytes, unsigned flags,
                     uint32_t *out_ids, size_t n_ids_max, struct err *e) {
    (void)t;
    (void)flags;
    if (memchr(text, 0xff, n_bytes)) return err_set(e, -EINVAL, "not UTF-8");
    if (n_bytes > n_ids_max) return err_set(e, -EMSGSIZE, "too long");
    for (size_t i = 0; i < n_bytes; i++) out_ids[i] = (uint8_t)text[i];
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
    (void)token;
    if (t->family == TEMPLATE_NONE) return err_set(e, -ENOTSUP, "no template");
    size_t n = 0;
    for (size_t i = 0; i < n_messages; i++) n += messages[i].n_bytes + 1;
    if (n > n_ids_max) return err_set(e, -EMSGSIZE, "too long");
    for (size_t i = 0; i < n; i++) out_ids[i] = 'm';
    return (int64_t)n;
}

const char *template_name(enum template_family family) {
    return family == TEMPLATE_CHATML ? "chatml" : "none";
}

const struct engine_facts *engine_facts_get(const struct engine *g) {
    return &g->facts;
}

static void post(const struct slot *s, struct engine_event e);

int engine_submit(struct engine *g, const struct engine_request *r, uint64_t *out_handle,
                  struct err *e) {
    if (g->dead) return err_set(e, -EIO, "lost");
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &g->slots[i];

        if (s->used) continue;
        *s = (struct slot){.used = true, .handle = ++g->handle, .q = *r, .seed = r->params.seed};
        *out_handle = s->handle;
        if (!g->queues) post(s, (struct engine_event){.kind = ENGINE_STARTED});
        return 0;
    }
    return err_set(e, -EBUSY, "full");
}

static struct slot *slot_find(struct engine *g, uint64_t handle) {
    for (int i = 0; i < SLOTS; i++)
        if (g->slots[i].used && g->slots[i].handle == handle) return &g->slots[i];
    return NULL;
}

void engine_cancel(struct engine *g, uint64_t handle) {
    struct slot *s = slot_find(g, handle);

    g->n_cancels++;
    if (s) s->cancelled = true;
}

void engine_grant(struct engine *g, uint64_t handle, uint32_t n) {
    struct slot *s = slot_find(g, handle);

    if (s) s->n_granted += n;
}

bool engine_next(struct engine *g, struct engine_event *out) {
    if (g->first == g->n_events) {
        g->first = g->n_events = 0;
        return false;
    }
    *out = g->events[g->first++];
    return true;
}

uint32_t engine_queue_place(const struct engine *g) {
    (void)g;
    return 3;
}

void engine_stats_get(const struct engine *g, struct engine_stats *out) {
    (void)g;
    *out = (struct engine_stats){.kv_pages = 7};
}

static void post(const struct slot *s, struct engine_event e) {
    assert_true(fake.n_events < EVENTS);
    e.handle = s->handle;
    fake.events[fake.n_events++] = e;
}

static void slot_end(struct slot *s, uint8_t finish) {
    post(s, (struct engine_event){.kind = ENGINE_DONE,
                                  .finish = finish,
                                  .usage = {.n_prompt = s->q.n_prompt, .n_output = s->n_output}});
    s->used = false;
}

/* One step of every slot: n tokens each, as far as granted. */
static void fake_step(uint32_t n) {
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &fake.slots[i];

        if (!s->used) continue;
        if (s->cancelled) {
            slot_end(s, WIRE_FINISH_CANCELLED);
            continue;
        }
        for (uint32_t k = 0; k < n && s->n_granted && s->n_output < s->q.max_tokens; k++) {
            struct engine_event e = {.kind = ENGINE_TOKEN,
                                     .index = s->n_output++,
                                     .id = 65,
                                     .logprob = -1,
                                     .n_top = s->q.n_top,
                                     .n_text = 1,
                                     .text = {'A'}};

            if (fake.worst) memset(e.text, 'A', e.n_text = ENGINE_TEXT_BYTES);
            post(s, e);
            s->n_granted--;
        }
        if (s->n_output == s->q.max_tokens) slot_end(s, WIRE_FINISH_LENGTH);
    }
}

/* ---- one side: a connection and its client ---- */

struct side {
    struct conn *c;
    int fd;
    uint8_t in[1 << 18];
    size_t n_in, at;
    bool over;
};

static struct config config;
static struct serve serve;
static uint64_t now = 1000;

static int setup(void **state) {
    (void)state;
    memset(&fake, 0, sizeof(fake));
    config = (struct config){.max_connections = 64,
                             .max_requests_per_connection = 4,
                             .max_text_bytes = 4096,
                             .hello_timeout_ms = 100,
                             .slow_client_timeout_ms = 1000,
                             .drain_timeout_ms = 1000,
                             .output_bytes = 256 << 10};
    fake_template.family = TEMPLATE_CHATML;
    fake.facts.model.vocab = VOCAB;
    fake.facts.model.n_eos = 1;
    (void)snprintf(fake.facts.model.name, sizeof(fake.facts.model.name), "fake");
    fake.facts.context = CONTEXT;
    fake.facts.fingerprint_text = "text";
    fake.facts.template = &fake_template;
    fake.facts.options.window = 32;
    return request_serve_open(&serve, &config, &fake, 0);
}

static int teardown(void **state) {
    (void)state;
    fake_step(0);
    request_serve_events(&serve);
    request_serve_close(&serve);
    return 0;
}

static struct side *side_open(enum conn_kind kind) {
    struct side *s = calloc(1, sizeof(*s));
    struct listen_peer peer = {.uid = 1};
    int fds[2];

    assert_non_null(s);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    s->fd = fds[1];
    assert_int_equal(conn_open(&serve, fds[0], kind, &peer, 1, now, &s->c), 0);
    return s;
}

static void side_close(struct side *s) {
    if (s->c) conn_close(s->c);
    if (s->fd >= 0) (void)close(s->fd);
    free(s);
}

/* A turn of the loop, as far as this connection is concerned. */
static void turn(struct side *s) {
    struct pollfd p = {.fd = s->c ? conn_fd(s->c) : -1};

    request_serve_events(&serve);
    if (!s->c) return;
    p.events = (short)conn_wants(s->c);
    (void)poll(&p, 1, 0);
    if (conn_turn(s->c, (uint32_t)p.revents, now)) return;
    conn_close(s->c);
    s->c = NULL;
}

static void send_bytes(struct side *s, const void *bytes, size_t n) {
    size_t at = 0;

    for (int i = 0; at < n && i < 10000; i++) {
        ssize_t k = send(s->fd, (const uint8_t *)bytes + at, n - at, MSG_NOSIGNAL);
        if (k > 0) at += (size_t)k;
        turn(s);
        if (!s->c) return;
    }
    turn(s);
}

static void receive(struct side *s) {
    ssize_t n;

    if (s->at) {
        memmove(s->in, s->in + s->at, s->n_in - s->at);
        s->n_in -= s->at;
        s->at = 0;
    }
    do {
        n = recv(s->fd, s->in + s->n_in, sizeof(s->in) - s->n_in, MSG_DONTWAIT);
        if (n > 0) s->n_in += (size_t)n;
        if (n == 0) s->over = true;
    } while (n > 0 && s->n_in < sizeof(s->in));
}

/* The next frame, or false. */
static bool next(struct side *s, struct wire_frame *f) {
    for (int i = 0; i < 4; i++) {
        int64_t n = wire_read(s->in + s->at, s->n_in - s->at, WIRE_PAYLOAD_MAX, f);

        if (n > 0) {
            s->at += (size_t)n;
            return true;
        }
        assert_int_equal(n, -EAGAIN);
        turn(s);
        receive(s);
    }
    return false;
}

static struct wire_frame expect(struct side *s, uint16_t type, uint64_t request) {
    struct wire_frame f;

    if (!next(s, &f)) fail_msg("no frame, where %s was expected", wire_type_name(type));
    if (f.type != type) {
        struct wire_error e = {0};
        if (f.type == WIRE_ERROR) (void)wire_read_error(&f, &e);
        fail_msg("%s instead of %s: %s %.*s", wire_type_name(f.type), wire_type_name(type),
                 wire_code_name(e.code), (int)e.n_text, e.n_text ? e.text : "");
    }
    assert_int_equal(f.request, request);
    return f;
}

static void expect_error(struct side *s, uint64_t request, uint16_t code, uint32_t field) {
    struct wire_frame f = expect(s, WIRE_ERROR, request);
    struct wire_error e;

    assert_int_equal(wire_read_error(&f, &e), 0);
    if (e.code != code || e.field != field)
        fail_msg("%s of %s instead of %s of %s: %.*s", wire_code_name(e.code),
                 wire_field_name(e.field), wire_code_name(code), wire_field_name(field),
                 (int)e.n_text, e.text);
    assert_true(e.n_text > 0);
}

/* The server hangs up, once our side has read and gone. */
static void expect_over(struct side *s) {
    for (int i = 0; i < 10 && !s->over; i++) {
        turn(s);
        receive(s);
    }
    assert_true(s->over);
    (void)close(s->fd);
    s->fd = -1;
    turn(s);
    turn(s);
    assert_null(s->c);
}

static void say_hello(struct side *s, uint32_t credit) {
    struct wire_hello h = {
        .version_min = 1, .version_max = 1, .credit = credit, .name = "test", .n_name = 4};
    uint8_t bytes[128];

    send_bytes(s, bytes, wire_write_hello(bytes, sizeof(bytes), &h));
    (void)expect(s, WIRE_HELLO_OK, 0);
}

static void ping(struct side *s) {
    uint8_t bytes[64];

    send_bytes(s, bytes, wire_write(bytes, sizeof(bytes), WIRE_PING, 77, "ping", 4));
    struct wire_frame f = expect(s, WIRE_PONG, 77);
    assert_int_equal(f.payload_bytes, 4);
    assert_memory_equal(f.payload, "ping", 4);
}

static struct wire_submit plain(uint32_t n_bytes) {
    return (struct wire_submit){.max_tokens = 8,
                                .top_p = 1,
                                .n = 1,
                                .prompt_kind = WIRE_PROMPT_KIND_TEXT,
                                .prompt_bytes = n_bytes};
}

static void submit(struct side *s, uint64_t id, const struct wire_submit *q) {
    uint8_t bytes[16384];
    size_t n = wire_write_submit(bytes, sizeof(bytes), id, q);

    assert_true(n > 0);
    send_bytes(s, bytes, n);
}

static void prompt(struct side *s, uint64_t id, const void *data, uint32_t n_data, bool last) {
    static uint8_t bytes[WIRE_PAYLOAD_DEFAULT + 64];
    struct wire_prompt p = {.last = last, .data = data, .n_data = n_data};
    size_t n = wire_write_prompt(bytes, sizeof(bytes), id, &p);

    assert_true(n > 0);
    send_bytes(s, bytes, n);
}

/* A request that has been accepted. */
static void begin_of(struct side *s, uint64_t id, uint32_t max_tokens, uint8_t logprobs) {
    struct wire_submit q = plain(3);

    q.max_tokens = max_tokens;
    q.logprobs = logprobs;
    submit(s, id, &q);
    prompt(s, id, "abc", 3, true);
    (void)expect(s, WIRE_ACCEPTED, id);
}

static void begin(struct side *s, uint64_t id, uint32_t max_tokens) {
    begin_of(s, id, max_tokens, 0);
}

static void run_out(struct side *s) {
    for (int i = 0; i < 400; i++) {
        fake_step(16);
        turn(s);
    }
}

/* Reads to the request's DONE; how many tokens there were. */
static uint32_t read_done(struct side *s, uint64_t id, uint8_t finish) {
    struct wire_frame f;
    uint32_t n = 0;

    for (int i = 0; i < 10000; i++) {
        if (!next(s, &f)) {
            fake_step(16);
            continue;
        }
        assert_int_equal(f.request, id);
        if (f.type == WIRE_TOKENS) {
            struct wire_tokens t;
            assert_int_equal(wire_read_tokens(&f, &t), 0);
            assert_int_equal(t.first, n);
            n += t.n_tokens;
        } else if (f.type == WIRE_DONE) {
            struct wire_done d;
            assert_int_equal(wire_read_done(&f, &d), 0);
            assert_int_equal(d.finish, finish);
            return n;
        }
    }
    fail_msg("no DONE");
    return 0;
}

/* ---- frames that may not come ---- */

static void test_before_hello(void **state) {
    static const uint16_t types[] = {WIRE_SUBMIT, WIRE_PROMPT,   WIRE_CANCEL,     WIRE_CREDIT,
                                     WIRE_PING,   WIRE_TOKENIZE, WIRE_DETOKENIZE, WIRE_INFO};
    uint8_t bytes[128] = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct side *s = side_open(CONN_DATA);
        send_bytes(s, bytes, wire_write(bytes, sizeof(bytes), types[i], 1, NULL, 0));
        expect_error(s, 0, WIRE_E_HELLO, WIRE_F_NONE);
        expect_over(s);
        side_close(s);
    }
}

static void test_types(void **state) {
    static const struct {
        enum conn_kind kind;
        uint16_t type;
    } cases[] = {{CONN_DATA, WIRE_ADMIN_CANCEL},
                 {CONN_DATA, 0},
                 {CONN_DATA, 0x3f},
                 {CONN_DATA, WIRE_HELLO_OK},
                 {CONN_DATA, 0xffff},
                 {CONN_ADMIN, WIRE_SUBMIT},
                 {CONN_ADMIN, WIRE_PROMPT},
                 {CONN_ADMIN, WIRE_CANCEL},
                 {CONN_ADMIN, WIRE_TOKENIZE},
                 {CONN_ADMIN, WIRE_DETOKENIZE}};
    uint8_t bytes[64];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct side *s = side_open(cases[i].kind);
        say_hello(s, 0);
        send_bytes(s, bytes, wire_write(bytes, sizeof(bytes), cases[i].type, 1, NULL, 0));
        expect_error(s, 0, WIRE_E_TYPE, WIRE_F_NONE);
        expect_over(s);
        side_close(s);
    }
}

static void test_hello(void **state) {
    static const struct {
        const char *why;
        struct wire_hello h;
        uint16_t code;
        uint32_t field;
    } cases[] = {
        {"too new", {.version_min = 2, .version_max = 9}, WIRE_E_VERSION, WIRE_F_VERSION},
        {"too old", {.version_min = 0, .version_max = 0}, WIRE_E_VERSION, WIRE_F_VERSION},
        {"upside down", {.version_min = 2, .version_max = 1}, WIRE_E_VERSION, WIRE_F_VERSION},
        {"payload",
         {.version_min = 1, .version_max = 1, .payload_max = 1},
         WIRE_E_FIELD,
         WIRE_F_PAYLOAD_MAX},
        {"credit", {.version_min = 1, .version_max = 1, .credit = 1}, WIRE_E_FIELD, WIRE_F_CREDIT},
        {"credit",
         {.version_min = 1, .version_max = 1, .credit = UINT32_MAX},
         WIRE_E_CREDIT,
         WIRE_F_CREDIT},
    };
    uint8_t bytes[256];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct side *s = side_open(CONN_DATA);
        size_t n = wire_write_hello(bytes, sizeof(bytes), &cases[i].h);
        print_message("hello: %s\n", cases[i].why);
        assert_true(n > 0);
        send_bytes(s, bytes, n);
        expect_error(s, 0, cases[i].code, cases[i].field);
        expect_over(s);
        side_close(s);
    }

    struct side *s = side_open(CONN_DATA);
    struct wire_hello wide = {
        .version_min = 1, .version_max = 9, .features = UINT64_MAX, .payload_max = UINT32_MAX};
    struct wire_hello_ok ok;
    send_bytes(s, bytes, wire_write_hello(bytes, sizeof(bytes), &wide));
    struct wire_frame f = expect(s, WIRE_HELLO_OK, 0);
    assert_int_equal(wire_read_hello_ok(&f, &ok), 0);
    assert_int_equal(ok.version, 1);
    assert_int_equal(ok.features, 0);
    assert_int_equal(ok.payload_max, WIRE_PAYLOAD_MAX);
    send_bytes(s, bytes, wire_write_hello(bytes, sizeof(bytes), &wide));
    expect_error(s, 0, WIRE_E_HELLO, WIRE_F_NONE); /* a second one */
    expect_over(s);
    side_close(s);

    s = side_open(CONN_DATA);
    now += 99;
    turn(s);
    assert_non_null(s->c);
    now += 1;
    expect_error(s, 0, WIRE_E_HELLO, WIRE_F_NONE); /* none in time */
    expect_over(s);
    side_close(s);
}

static void test_bad_frames(void **state) {
    static const struct {
        const char *why;
        uint8_t bytes[24];
        size_t n;
        uint16_t code;
        uint32_t field;
    } cases[] = {
        {"one byte over the payload", {1, 0, 1, 0, 6}, 16, WIRE_E_FRAME, WIRE_F_NONE},
        {"a length of 2^32-1, known from 4 bytes",
         {255, 255, 255, 255},
         4,
         WIRE_E_FRAME,
         WIRE_F_NONE},
        {"flags", {0, 0, 0, 0, 6, 0, 1, 0}, 16, WIRE_E_FRAME, WIRE_F_NONE},
        {"CREDIT without its number", {0, 0, 0, 0, 5}, 16, WIRE_E_FRAME, WIRE_F_CREDIT},
        {"CREDIT of a request", {4, 0, 0, 0, 5, 0, 0, 0, 9}, 20, WIRE_E_FRAME, WIRE_F_CREDIT},
        {"CREDIT beyond all bounds",
         {4, 0, 0, 0, 5, 0, 0, 0, [16] = 255, 255, 255, 255},
         20,
         WIRE_E_CREDIT,
         WIRE_F_CREDIT},
        {"CANCEL of the connection", {0, 0, 0, 0, 4}, 16, WIRE_E_FRAME, WIRE_F_NONE},
        {"CANCEL with a payload", {1, 0, 0, 0, 4, 0, 0, 0, 1}, 17, WIRE_E_FRAME, WIRE_F_NONE},
        {"SUBMIT of the connection", {0, 0, 0, 0, 2}, 16, WIRE_E_FRAME, WIRE_F_NONE},
        {"SUBMIT cut short", {4, 0, 0, 0, 2, 0, 0, 0, 1}, 20, WIRE_E_FRAME, WIRE_F_NONE},
        {"PROMPT cut short", {3, 0, 0, 0, 3, 0, 0, 0, 1}, 19, WIRE_E_FRAME, WIRE_F_NONE},
        {"INFO cut short", {3, 0, 0, 0, 9, 0, 0, 0, 1}, 19, WIRE_E_FRAME, WIRE_F_TOPIC},
        {"TOKENIZE cut short", {3, 0, 0, 0, 7, 0, 0, 0, 1}, 19, WIRE_E_FRAME, WIRE_F_NONE},
    };
    struct side *other = side_open(CONN_DATA);

    (void)state;
    say_hello(other, 0);
    begin(other, 5, 8);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct side *s = side_open(CONN_DATA);
        say_hello(s, 0);
        print_message("frame: %s\n", cases[i].why);
        send_bytes(s, cases[i].bytes, cases[i].n);
        expect_error(s, 0, cases[i].code, cases[i].field);
        expect_over(s);
        side_close(s);
        ping(other);
    }
    assert_int_equal(read_done(other, 5, WIRE_FINISH_LENGTH), 8);
    side_close(other);
}

/* ---- requests that cannot be ---- */

static void test_bad_submits(void **state) {
    struct wire_stop_string stop = {(const uint8_t *)"", 0};
    static const struct {
        const char *why;
        size_t off; /* in the payload; 4 bytes of value */
        uint32_t value;
        uint16_t code;
        uint32_t field;
    } cases[] = {
        {"flags", 0, 1u << 31, WIRE_E_UNSUPPORTED, WIRE_F_FLAGS},
        {"max_tokens 0", 4, 0, WIRE_E_FIELD, WIRE_F_MAX_TOKENS},
        {"max_tokens of the context", 4, CONTEXT, WIRE_E_TOO_LONG, WIRE_F_MAX_TOKENS},
        {"max_tokens 2^31", 4, 1u << 31, WIRE_E_TOO_LONG, WIRE_F_MAX_TOKENS},
        {"max_tokens 2^32-1", 4, UINT32_MAX, WIRE_E_TOO_LONG, WIRE_F_MAX_TOKENS},
        {"a seed without its flag", 8, 1, WIRE_E_FIELD, WIRE_F_SEED},
        {"temperature NaN", 16, 0x7fc00000, WIRE_E_FIELD, WIRE_F_TEMPERATURE},
        {"temperature infinite", 16, 0x7f800000, WIRE_E_FIELD, WIRE_F_TEMPERATURE},
        {"temperature subnormal", 16, 1, WIRE_E_FIELD, WIRE_F_TEMPERATURE},
        {"temperature -1", 16, 0xbf800000, WIRE_E_FIELD, WIRE_F_TEMPERATURE},
        {"top_p NaN", 20, 0xffc00000, WIRE_E_FIELD, WIRE_F_TOP_P},
        {"top_p 0", 20, 0, WIRE_E_FIELD, WIRE_F_TOP_P},
        {"min_p 2", 24, 0x40000000, WIRE_E_FIELD, WIRE_F_MIN_P},
        {"top_k -1", 28, UINT32_MAX, WIRE_E_FIELD, WIRE_F_TOP_K},
        {"n 0 and logprobs", 32, 0, WIRE_E_FIELD, WIRE_F_N},
        {"n 65535", 32, 65535, WIRE_E_FIELD, WIRE_F_N},
        {"logprobs 22", 32, 1 | 22u << 16, WIRE_E_FIELD, WIRE_F_LOGPROBS},
        {"prompt_logprobs 65535", 36, 65535 | 2u << 24, WIRE_E_FIELD, WIRE_F_PROMPT_LOGPROBS},
        {"priority -1", 36, 0xffu << 16 | 2u << 24, WIRE_E_FIELD, WIRE_F_PRIORITY},
        {"kind 9", 36, 9u << 24, WIRE_E_FIELD, WIRE_F_PROMPT_KIND},
        {"an empty prompt", 48, 0, WIRE_E_PROMPT, WIRE_F_PROMPT_BYTES},
        {"a text over the limit", 48, 4097, WIRE_E_TOO_LONG, WIRE_F_PROMPT_BYTES},
        {"a text of 2^32-1", 48, UINT32_MAX, WIRE_E_TOO_LONG, WIRE_F_PROMPT_BYTES},
    };
    struct side *s = side_open(CONN_DATA);
    uint8_t bytes[256];

    (void)state;
    (void)stop;
    say_hello(s, 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct wire_submit q = plain(3);
        size_t n = wire_write_submit(bytes, sizeof(bytes), 100 + i, &q);

        print_message("submit: %s\n", cases[i].why);
        assert_true(n > 0);
        memcpy(bytes + WIRE_HEADER_BYTES + cases[i].off, &cases[i].value, 4);
        send_bytes(s, bytes, n);
        expect_error(s, 100 + i, cases[i].code, cases[i].field);
        prompt(s, 100 + i, "abc", 3, true); /* was on its way already: dropped without a word */
        ping(s);
    }
    begin(s, 1, 8);
    assert_int_equal(read_done(s, 1, WIRE_FINISH_LENGTH), 8);
    side_close(s);
}

static void test_seed(void **state) {
    struct side *s = side_open(CONN_DATA);
    struct wire_submit q = plain(3);
    struct wire_accepted a;
    uint64_t first;

    (void)state;
    say_hello(s, 0);
    q.flags = WIRE_SUBMIT_DETERMINISTIC;
    q.temperature = 1;
    submit(s, 1, &q);
    expect_error(s, 1, WIRE_E_FIELD, WIRE_F_SEED);
    q.flags |= WIRE_SUBMIT_SEED;
    q.seed = 42;
    submit(s, 2, &q);
    prompt(s, 2, "abc", 3, true);
    struct wire_frame f = expect(s, WIRE_ACCEPTED, 2);
    assert_int_equal(wire_read_accepted(&f, &a), 0);
    assert_int_equal(a.seed, 42);
    assert_int_equal(a.queue_place, 3);
    assert_int_equal(a.n_stop_ids, 1);
    assert_int_equal(a.window, 32);
    assert_int_equal(read_done(s, 2, WIRE_FINISH_LENGTH), 8);
    q.flags = 0;
    q.seed = 0;
    submit(s, 3, &q);
    prompt(s, 3, "abc", 3, true);
    f = expect(s, WIRE_ACCEPTED, 3);
    assert_int_equal(wire_read_accepted(&f, &a), 0);
    first = a.seed;
    submit(s, 4, &q);
    prompt(s, 4, "abc", 3, true);
    f = expect(s, WIRE_ACCEPTED, 4);
    assert_int_equal(wire_read_accepted(&f, &a), 0);
    assert_true(a.seed != first); /* drawn, and told */
    side_close(s);
}

static void test_prompts(void **state) {
    struct side *s = side_open(CONN_DATA);
    struct wire_submit q = plain(6);
    uint32_t ids[] = {1, 2, HOLE, VOCAB, UINT32_MAX};
    uint32_t stop[] = {VOCAB};

    (void)state;
    say_hello(s, 0);
    submit(s, 1, &q);
    prompt(s, 1, "abc", 3, false);
    prompt(s, 1, "abcd", 4, false); /* one byte more than announced */
    expect_error(s, 1, WIRE_E_PROMPT, WIRE_F_PROMPT);
    prompt(s, 1, "x", 1, true); /* still on its way */
    ping(s);
    prompt(s, 1, "x", 1, true); /* not any more */
    expect_error(s, 1, WIRE_E_NO_REQUEST, WIRE_F_NONE);
    submit(s, 2, &q);
    prompt(s, 2, "abcde", 5, true); /* one byte less */
    expect_error(s, 2, WIRE_E_PROMPT, WIRE_F_PROMPT);
    submit(s, 3, &q);
    prompt(s, 3,
           "ab\xff"
           "abc",
           6, true);
    expect_error(s, 3, WIRE_E_PROMPT, WIRE_F_PROMPT); /* not UTF-8 */
    for (size_t i = 2; i < 5; i++) {
        q = plain(4);
        q.prompt_kind = WIRE_PROMPT_KIND_IDS;
        submit(s, 4, &q);
        prompt(s, 4, ids + i, 4, true);
        expect_error(s, 4, WIRE_E_PROMPT, WIRE_F_IDS);
    }
    q = plain(3);
    q.n_stop_ids = 1;
    q.stop_ids[0] = stop[0];
    submit(s, 5, &q);
    expect_error(s, 5, WIRE_E_FIELD, WIRE_F_STOP_IDS);
    q = plain(4);
    q.prompt_kind = WIRE_PROMPT_KIND_CHAT;
    submit(s, 6, &q);
    prompt(s, 6, "\0\0\0\0", 4, true); /* no message */
    expect_error(s, 6, WIRE_E_PROMPT, WIRE_F_PROMPT);
    fake_template.family = TEMPLATE_NONE;
    uint8_t chat[64];
    struct wire_message m = {WIRE_ROLE_USER, "hi", 2};
    q.prompt_bytes = (uint32_t)wire_message_write(chat, sizeof(chat), &m);
    submit(s, 7, &q);
    prompt(s, 7, chat, q.prompt_bytes, true);
    expect_error(s, 7, WIRE_E_TEMPLATE, WIRE_F_PROMPT_KIND);
    /* prompt + max_tokens at the context, and one over it */
    char text[CONTEXT];
    memset(text, 'a', sizeof(text));
    q = plain(CONTEXT - 8);
    submit(s, 8, &q);
    prompt(s, 8, text, CONTEXT - 8, true);
    (void)expect(s, WIRE_ACCEPTED, 8);
    assert_int_equal(read_done(s, 8, WIRE_FINISH_LENGTH), 8);
    q = plain(CONTEXT - 7);
    submit(s, 9, &q);
    prompt(s, 9, text, CONTEXT - 7, true);
    expect_error(s, 9, WIRE_E_TOO_LONG, WIRE_F_MAX_TOKENS);
    assert_int_equal(serve.prompts_bytes, 0);
    side_close(s);
}

static void test_ids_and_cancel(void **state) {
    struct side *s = side_open(CONN_DATA);
    struct side *t = side_open(CONN_DATA);
    struct wire_submit q = plain(3);
    uint8_t bytes[64];
    size_t n = wire_write(bytes, sizeof(bytes), WIRE_CANCEL, 1, NULL, 0);

    (void)state;
    say_hello(s, 0);
    say_hello(t, 0);
    send_bytes(s, bytes, n); /* of nothing */
    expect_error(s, 1, WIRE_E_NO_REQUEST, WIRE_F_NONE);
    submit(s, 1, &q);
    send_bytes(s, bytes, n); /* while the prompt is on its way */
    assert_int_equal(read_done(s, 1, WIRE_FINISH_CANCELLED), 0);
    begin(s, 1, 200);
    begin(t, 1, 8); /* the same id on another connection is another request */
    submit(s, 1, &q);
    expect_error(s, 1, WIRE_E_ID_IN_USE, WIRE_F_NONE);
    send_bytes(s, bytes, n);
    send_bytes(s, bytes, n); /* twice is once */
    assert_int_equal(fake.n_cancels, 1);
    assert_int_equal(read_done(s, 1, WIRE_FINISH_CANCELLED), 0);
    assert_int_equal(read_done(t, 1, WIRE_FINISH_LENGTH), 8);
    for (uint64_t id = 10; id < 14; id++) begin(s, id, 200);
    submit(s, 14, &q); /* the fifth */
    expect_error(s, 14, WIRE_E_BUSY, WIRE_F_NONE);
    for (uint64_t id = 20; id < 24; id++) begin(t, id, 200);
    struct side *u = side_open(CONN_DATA);
    say_hello(u, 0);
    submit(u, 1, &q);
    prompt(u, 1, "abc", 3, true); /* the engine is full */
    expect_error(u, 1, WIRE_E_BUSY, WIRE_F_NONE);
    ping(u);
    side_close(s);
    side_close(t);
    side_close(u);
}

/* ---- flow control ---- */

static void test_credit(void **state) {
    struct side *s = side_open(CONN_DATA);
    uint8_t bytes[64];
    struct wire_frame f;
    uint64_t n_bytes = 0, n_credit = WIRE_CREDIT_MIN;
    uint32_t n_tokens = 0;
    bool done = false;

    (void)state;
    say_hello(s, WIRE_CREDIT_MIN);
    begin(s, 1, 240);
    begin(s, 2, 240);
    for (int i = 0; i < 4000 && !done; i++) {
        fake_step(3);
        while (next(s, &f)) {
            struct wire_tokens t;
            if (f.type == WIRE_DONE) {
                done = ++n_tokens > 480;
                continue;
            }
            assert_int_equal(f.type, WIRE_TOKENS);
            assert_int_equal(wire_read_tokens(&f, &t), 0);
            n_tokens += t.n_tokens;
            n_bytes += WIRE_HEADER_BYTES + f.payload_bytes;
            assert_true(n_bytes <= n_credit); /* never more than was given */
        }
        if (n_credit - n_bytes < 400) {
            now += 500;
            send_bytes(s, bytes, wire_write_u32(bytes, sizeof(bytes), WIRE_CREDIT, 0, 1000));
            n_credit += 1000;
        }
    }
    assert_int_equal(n_tokens, 482); /* nothing was dropped; two DONE */
    side_close(s);
}

static void test_no_credit_ends(void **state) {
    struct side *s = side_open(CONN_DATA);

    (void)state;
    say_hello(s, WIRE_CREDIT_MIN);
    begin(s, 1, 250);
    begin(s, 2, 250);
    for (int i = 0; i < 100; i++) {
        fake_step(8);
        turn(s);
        receive(s);
    }
    assert_non_null(s->c);
    assert_int_equal(fake.slots[0].used, true); /* paused, not ended */
    s->at = s->n_in;
    ping(s); /* and the connection lives */
    now += 1000;
    turn(s);
    assert_true(fake.slots[0].cancelled && fake.slots[1].cancelled);
    expect_error(s, 0, WIRE_E_SLOW, WIRE_F_NONE);
    expect_over(s);
    side_close(s);
}

static void fake_start(int i) {
    post(&fake.slots[i], (struct engine_event){.kind = ENGINE_STARTED});
}

/* What waits in the engine's queue holds neither credit nor room: those that run get all of it,
 * and a client whose requests only wait is not one that does not read. */
static void test_queue_holds_nothing(void **state) {
    struct side *s = side_open(CONN_DATA);
    uint8_t bytes[64];

    (void)state;
    fake.queues = true;
    say_hello(s, WIRE_CREDIT_MIN);
    for (uint64_t id = 1; id <= 4; id++) begin(s, id, 240);
    now += 100000;
    turn(s);
    assert_non_null(s->c);
    for (int i = 3; i >= 0; i--) { /* whichever comes first */
        struct wire_frame f;
        uint32_t n_tokens = 0;
        bool done = false;

        fake_start(i);
        for (int k = 0; k < 4000 && !done; k++) {
            fake_step(3);
            while (next(s, &f)) {
                struct wire_tokens t;

                assert_int_equal(f.request, i + 1);
                done = f.type == WIRE_DONE;
                if (done) continue;
                assert_int_equal(wire_read_tokens(&f, &t), 0);
                n_tokens += t.n_tokens;
                send_bytes(s, bytes,
                           wire_write_u32(bytes, sizeof(bytes), WIRE_CREDIT, 0,
                                          WIRE_HEADER_BYTES + f.payload_bytes));
            }
        }
        assert_true(done);
        assert_int_equal(n_tokens, 240);
    }
    side_close(s);
}

/* CREDIT of nothing, or of too little, is no reading. */
static void test_empty_credit(void **state) {
    struct side *s = side_open(CONN_DATA);
    uint8_t bytes[64];
    int i = 0;

    (void)state;
    say_hello(s, WIRE_CREDIT_MIN);
    begin(s, 1, 250);
    for (; i < 400 && s->c; i++) {
        fake_step(1); /* frames of one token eat the credit */
        now += 100;
        send_bytes(s, bytes, wire_write_u32(bytes, sizeof(bytes), WIRE_CREDIT, 0, (uint32_t)i % 2));
        receive(s);
    }
    assert_true(fake.slots[0].cancelled && i < 200);
    side_close(s);
}

/* What a request was granted and did not use comes back with its end: many short ones go on on
 * credit that one of them alone reserves. */
static void test_grants_come_back(void **state) {
    struct side *s = side_open(CONN_DATA);
    uint8_t bytes[64];

    (void)state;
    say_hello(s, WIRE_CREDIT_MIN);
    for (uint64_t id = 1; id <= 40; id++) {
        begin(s, id, 1);
        if (id % 4 == 0) /* cancelled with grants in hand */
            send_bytes(s, bytes, wire_write(bytes, sizeof(bytes), WIRE_CANCEL, id, NULL, 0));
        (void)read_done(s, id, id % 4 == 0 ? WIRE_FINISH_CANCELLED : WIRE_FINISH_LENGTH);
    }
    side_close(s);
}

/* Several on one connection: none takes what the others need to move on, however early it came. */
static void test_equal_shares(void **state) {
    enum { N = 4, N_BYTES = 500, STEPS = 8 }; /* bytes: more than an event may take */
    struct side *s = side_open(CONN_DATA);

    (void)state;
    assert_int_equal(request_share(N_BYTES * 64 * 20, 20, N_BYTES), 32);
    assert_int_equal(request_share(N_BYTES, 20, N_BYTES), 1);
    assert_int_equal(request_share(UINT64_MAX, 1, N_BYTES), REQUEST_GRANT_MAX);
    config.max_requests_per_connection = N;
    say_hello(s, N * STEPS * N_BYTES);
    for (uint64_t id = 1; id <= N; id++) begin(s, id, 250);
    turn(s);
    for (uint32_t step = 1; step <= STEPS; step++) {
        fake_step(1);
        turn(s);
        for (int i = 0; i < N; i++) assert_int_equal(fake.slots[i].n_output, step);
    }
    side_close(s);
}

/* More requests than credit and room hold one event each: they take turns, those with large events
 * beside small ones too, however often the loop comes round between two steps. */
static void test_turns(void **state) {
    enum { N = SLOTS, STEPS = 200 };

    (void)state;
    config.max_requests_per_connection = N;
    for (int n_turns = 1; n_turns <= 2 * N; n_turns++) {
        struct side *s = side_open(CONN_DATA);
        uint32_t least = UINT32_MAX, most = 0;
        uint8_t bytes[64];

        say_hello(s, WIRE_CREDIT_MIN);
        for (uint64_t id = 1; id <= N; id++) begin_of(s, id, 250, id % 4 ? 1 + WIRE_TOP_MAX : 0);
        for (uint32_t step = 0; step < STEPS; step++) {
            struct wire_frame f;
            uint32_t n_bytes = 0;

            fake_step(1);
            turn(s);
            receive(s);
            while (wire_read(s->in + s->at, s->n_in - s->at, WIRE_PAYLOAD_MAX, &f) > 0) {
                s->at += WIRE_HEADER_BYTES + f.payload_bytes;
                n_bytes += WIRE_HEADER_BYTES + f.payload_bytes;
            }
            send_bytes(s, bytes, wire_write_u32(bytes, sizeof(bytes), WIRE_CREDIT, 0, n_bytes));
            for (int i = 0; i < n_turns; i++) turn(s);
        }
        for (int i = 0; i < N; i++) {
            if (fake.slots[i].n_output < least) least = fake.slots[i].n_output;
            if (fake.slots[i].n_output > most) most = fake.slots[i].n_output;
        }
        if (most - least > 2) fail_msg("%d turns a step: %u to %u tokens", n_turns, least, most);
        assert_true(least > STEPS / 8);
        side_close(s);
        fake_step(0);
        request_serve_events(&serve);
    }
}

/* What a slow engine owes is not what a client leaves unread. */
static void test_slow_engine(void **state) {
    struct side *s;

    (void)state;
    config.max_requests_per_connection = SLOTS;
    s = side_open(CONN_DATA);
    say_hello(s, WIRE_CREDIT_MIN);
    for (uint64_t id = 1; id <= SLOTS; id++) begin_of(s, id, 250, 1 + WIRE_TOP_MAX);
    for (int i = 0; i < 10; i++) {
        turn(s);
        now += 1000;
    }
    turn(s);
    assert_non_null(s->c);
    ping(s);
    /* With that spent, what is missing is the client's. */
    for (int i = 0; i < 250; i++) {
        fake_step(1);
        turn(s);
        receive(s);
    }
    s->at = s->n_in;
    now += 1001;
    turn(s);
    expect_error(s, 0, WIRE_E_SLOW, WIRE_F_NONE);
    expect_over(s);
    side_close(s);
}

/* One whose events are too large for what credit is left does not hold up smaller ones. */
static void test_too_large_for_credit(void **state) {
    const uint32_t small = WIRE_HEADER_BYTES + 12 + 4 + ENGINE_TEXT_BYTES;
    struct side *s = side_open(CONN_DATA);
    uint32_t n_bytes = 0;
    struct wire_frame f;

    (void)state;
    say_hello(s, WIRE_CREDIT_MIN);
    begin_of(s, 1, 250, 1 + WIRE_TOP_MAX);
    begin(s, 2, 250);
    for (int i = 0; i < 200; i++) {
        fake_step(1);
        while (next(s, &f)) n_bytes += WIRE_HEADER_BYTES + f.payload_bytes;
    }
    assert_true(fake.slots[1].n_output > fake.slots[0].n_output);
    assert_in_range(WIRE_CREDIT_MIN - n_bytes, 0, small - 1);
    side_close(s);
}

/* What is reserved for an event is what it takes at the worst. */
static void test_worst_events(void **state) {
    struct side *s;
    uint64_t n_bytes = 0, n_credit = WIRE_CREDIT_MIN;
    struct wire_frame f;
    uint8_t bytes[64];

    (void)state;
    fake.worst = true;
    config.max_requests_per_connection = SLOTS;
    s = side_open(CONN_DATA);
    say_hello(s, WIRE_CREDIT_MIN);
    for (uint64_t id = 1; id <= SLOTS; id++) begin_of(s, id, 40, 1 + WIRE_TOP_MAX);
    for (int i = 0; i < 200; i++) {
        uint32_t n_new = 0;

        fake_step(1 + (uint32_t)i % 3);
        while (next(s, &f))
            if (f.type != WIRE_DONE) n_new += WIRE_HEADER_BYTES + f.payload_bytes;
        n_bytes += n_new;
        assert_true(n_bytes <= n_credit);
        send_bytes(s, bytes, wire_write_u32(bytes, sizeof(bytes), WIRE_CREDIT, 0, n_new));
        n_credit += n_new;
    }
    for (int i = 0; i < SLOTS; i++) assert_false(fake.slots[i].used);
    side_close(s);
}

/* However much streams are allowed, what answers need is out of their reach. */
static void test_budget(void **state) {
    struct out o;
    uint8_t *p;
    size_t n_max;

    (void)state;
    assert_int_equal(out_open(&o, 64 << 10), 0);
    o.credit = 1 << 30;
    assert_int_equal(out_budget(&o), (64 << 10) - OUT_ANSWERS_BYTES);
    p = out_tail(&o, &n_max);
    memset(p, 0, 1000);
    out_put(&o, 1000);
    assert_int_equal(out_budget(&o), (64 << 10) - OUT_ANSWERS_BYTES - 1000);
    while (out_reserve(&o, 100)) continue;
    assert_true(out_ready(&o) && out_room(&o) >= OUT_ANSWERS_BYTES - OUT_LAST_BYTES);
    out_put(&o, OUT_ANSWERS_BYTES);
    assert_true(o.reserved + 100 > out_budget(&o));
    o.credit = 50;
    o.reserved = 0;
    assert_int_equal(out_budget(&o), 50);
    out_put(&o, o.n_max - o.end - 10); /* of answers */
    assert_int_equal(out_budget(&o), 0);
    o.start = o.end - 10;
    assert_false(out_reserve(&o, 51));
    assert_true(out_reserve(&o, 50));
    out_close(&o);
}

/* No frame is larger than what the client asked for, however much comes at once. */
static void test_payload_max(void **state) {
    struct side *s = side_open(CONN_DATA);
    struct wire_hello h = {.version_min = 1, .version_max = 1, .payload_max = WIRE_PAYLOAD_MIN};
    struct wire_submit q = plain(3);
    uint32_t n_tokens = 0, n_logprobs = 0;
    struct wire_frame f = {0};
    uint8_t bytes[128];

    (void)state;
    send_bytes(s, bytes, wire_write_hello(bytes, sizeof(bytes), &h));
    (void)expect(s, WIRE_HELLO_OK, 0);
    q.logprobs = 1 + WIRE_TOP_MAX;
    q.max_tokens = 200;
    submit(s, 1, &q);
    prompt(s, 1, "abc", 3, true);
    (void)expect(s, WIRE_ACCEPTED, 1);
    for (int i = 0; i < 2000 && f.type != WIRE_DONE; i++) {
        struct wire_tokens t;
        struct wire_logprobs l;

        fake_step(64);
        while (f.type != WIRE_DONE && next(s, &f)) {
            assert_true(f.payload_bytes <= WIRE_PAYLOAD_MIN);
            if (f.type == WIRE_TOKENS) {
                assert_int_equal(wire_read_tokens(&f, &t), 0);
                assert_int_equal(t.first, n_tokens);
                n_tokens += t.n_tokens;
            } else if (f.type == WIRE_LOGPROBS) {
                assert_int_equal(wire_read_logprobs(&f, &l), 0);
                assert_int_equal(l.first, n_logprobs);
                n_logprobs += l.n_tokens;
            }
        }
    }
    assert_int_equal(n_tokens, 200);
    assert_int_equal(n_logprobs, 200);
    side_close(s);
}

/* A prompt that does not come: its deadline counts, and the connection's patience ends. */
static void test_prompt_stands_still(void **state) {
    struct side *s = side_open(CONN_DATA);
    struct wire_submit q = plain(6);

    (void)state;
    say_hello(s, 0);
    q.deadline_ms = 100;
    submit(s, 1, &q);
    now += 99;
    turn(s);
    prompt(s, 1, "abc", 3, false);
    now += 1;
    turn(s);
    assert_int_equal(read_done(s, 1, WIRE_FINISH_DEADLINE), 0);
    q.deadline_ms = 0;
    submit(s, 2, &q);
    now += 999;
    turn(s);
    prompt(s, 2, "abc", 3, false); /* it moves */
    now += 999;
    turn(s);
    ping(s);
    now += 1;
    turn(s);
    expect_error(s, 0, WIRE_E_SLOW, WIRE_F_PROMPT);
    expect_over(s);
    assert_int_equal(serve.prompts_bytes, 0);
    side_close(s);
}

/* A PROMPT behind the last one: late where the request is over, a breach where it runs. */
static void test_prompt_after_the_last(void **state) {
    struct side *s = side_open(CONN_DATA);

    (void)state;
    say_hello(s, 0);
    begin(s, 1, 20);
    prompt(s, 1, "x", 1, true);
    expect_error(s, 0, WIRE_E_FRAME, WIRE_F_PROMPT);
    expect_over(s);
    side_close(s);
}

static void test_top_k_beyond_the_vocabulary(void **state) {
    struct side *s = side_open(CONN_DATA);
    struct wire_submit q = plain(3);

    (void)state;
    say_hello(s, 0);
    q.top_k = VOCAB + 1;
    submit(s, 1, &q);
    prompt(s, 1, "abc", 3, true);
    (void)expect(s, WIRE_ACCEPTED, 1);
    assert_int_equal(fake.slots[0].q.params.top_k, 0);
    side_close(s);
}

/* A client that asks for much and reads nothing: memory is bounded, it is dropped in time, and
 * its neighbour sees nothing of it. */
static void test_never_reads(void **state) {
    struct side *s = side_open(CONN_DATA);
    struct side *other = side_open(CONN_DATA);
    uint8_t bytes[80], data[64] = {0};
    size_t n = wire_write(bytes, sizeof(bytes), WIRE_PING, 1, data, sizeof(data));
    int size = 4096;
    bool full = false;

    (void)state;
    (void)setsockopt(conn_fd(s->c), SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    say_hello(s, 1 << 30);
    say_hello(other, 0);
    begin(s, 1, 250);
    for (int i = 0; i < 100000 && !full; i++) {
        full = send(s->fd, bytes, n, MSG_NOSIGNAL) < 0;
        turn(s);
    }
    assert_true(full); /* we stopped reading: the client has to wait */
    run_out(s);
    begin(other, 9, 16);
    assert_int_equal(read_done(other, 9, WIRE_FINISH_LENGTH), 16);
    now += 999;
    turn(s);
    assert_non_null(s->c);
    now += 2;
    turn(s);
    now += 1001;
    turn(s);
    now += 1001;
    turn(s);
    assert_null(s->c);
    side_close(s);
    side_close(other);
}

/* ---- clients that go ---- */

static void test_gone(void **state) {
    (void)state;
    for (int when = 0; when < 6; when++) {
        struct side *s = side_open(CONN_DATA);
        struct wire_submit q = plain(3);

        if (when > 0) say_hello(s, 0);
        if (when > 1) submit(s, 1, &q);
        if (when > 2) prompt(s, 1, "abc", 3, true);
        if (when > 3) turn(s);
        if (when > 4) {
            fake_step(2);
            turn(s);
        }
        (void)close(s->fd);
        s->fd = -1;
        turn(s);
        assert_null(s->c);
        assert_int_equal(serve.n_conns, 0);
        fake_step(4); /* late events of nobody */
        request_serve_events(&serve);
        assert_int_equal(serve.n_live, 0);
        assert_int_equal(serve.prompts_bytes, 0);
        side_close(s);
    }
}

static void test_half_close(void **state) {
    struct side *s = side_open(CONN_DATA);
    struct wire_submit q = plain(3);

    (void)state;
    say_hello(s, 0);
    begin(s, 1, 40);
    submit(s, 2, &q); /* its prompt will never come */
    (void)shutdown(s->fd, SHUT_WR);
    assert_int_equal(read_done(s, 1, WIRE_FINISH_LENGTH), 40);
    turn(s);
    turn(s);
    assert_null(s->c);
    assert_int_equal(serve.prompts_bytes, 0);
    side_close(s);

    s = side_open(CONN_DATA); /* no credit can come any more: no point in waiting */
    say_hello(s, WIRE_CREDIT_MIN);
    begin(s, 1, 250);
    begin(s, 2, 250);
    (void)shutdown(s->fd, SHUT_WR);
    for (int i = 0; i < 400 && s->c; i++) {
        fake_step(4);
        turn(s);
        receive(s);
    }
    assert_null(s->c);
    side_close(s);

    s = side_open(CONN_DATA); /* a frame that is cut for ever */
    say_hello(s, 0);
    send_bytes(s, "\1\0\0", 3);
    (void)shutdown(s->fd, SHUT_WR);
    turn(s);
    turn(s);
    assert_null(s->c);
    side_close(s);
}

static void test_many(void **state) {
    enum { N = 60 };
    static struct side *all[N];

    (void)state;
    for (int i = 0; i < N; i++) {
        all[i] = side_open(i % 3 ? CONN_DATA : CONN_ADMIN);
        say_hello(all[i], 0);
    }
    for (int i = 0; i < N; i++) ping(all[i]);
    assert_int_equal(serve.n_conns, N);
    for (int i = 0; i < N; i++) side_close(all[i]);
    assert_int_equal(serve.n_conns, 0);
}

/* ---- the rest of the verbs ---- */

static void test_bytewise(void **state) {
    struct side *s = side_open(CONN_DATA);
    struct wire_submit q = plain(3);
    uint8_t bytes[1024];
    struct wire_hello h = {.version_min = 1, .version_max = 1};
    struct wire_prompt p = {.last = true, .data = (const uint8_t *)"abc", .n_data = 3};
    size_t n = wire_write_hello(bytes, sizeof(bytes), &h);

    (void)state;
    n += wire_write_submit(bytes + n, sizeof(bytes) - n, 1, &q);
    n += wire_write_prompt(bytes + n, sizeof(bytes) - n, 1, &p);
    for (size_t i = 0; i < n; i++) send_bytes(s, bytes + i, 1);
    (void)expect(s, WIRE_HELLO_OK, 0);
    (void)expect(s, WIRE_ACCEPTED, 1);
    assert_int_equal(read_done(s, 1, WIRE_FINISH_LENGTH), 8);
    side_close(s);
}

static void test_echo_and_logprobs(void **state) {
    struct side *s = side_open(CONN_DATA);
    struct wire_submit q = plain(3);
    struct wire_prompt part;
    struct wire_logprobs l;

    (void)state;
    say_hello(s, 0);
    q.flags = WIRE_SUBMIT_ECHO_IDS | WIRE_SUBMIT_IDS_ONLY;
    q.logprobs = 3;
    q.max_tokens = 4;
    submit(s, 1, &q);
    prompt(s, 1, "abc", 3, true);
    (void)expect(s, WIRE_ACCEPTED, 1);
    struct wire_frame f = expect(s, WIRE_PROMPT_IDS, 1);
    assert_int_equal(wire_read_part(&f, &part), 0);
    assert_true(part.last);
    assert_int_equal(part.n_data, 12);
    assert_int_equal(wire_u32_at(part.data, 2), 'c');
    turn(s);
    fake_step(4);
    struct wire_tokens t;
    f = expect(s, WIRE_TOKENS, 1);
    assert_int_equal(wire_read_tokens(&f, &t), 0);
    assert_int_equal(t.n_tokens, 4); /* of one wake-up: one frame */
    assert_int_equal(t.n_text, 0);
    f = expect(s, WIRE_LOGPROBS, 1);
    assert_int_equal(wire_read_logprobs(&f, &l), 0);
    assert_int_equal(l.n_tokens, 4);
    assert_int_equal(l.n_top, 2);
    (void)expect(s, WIRE_DONE, 1);
    side_close(s);
}

static void test_tokenize(void **state) {
    struct side *s = side_open(CONN_DATA);
    static char text[4097];
    static uint8_t bytes[8192];
    struct wire_tokenize t = {
        .kind = WIRE_PROMPT_KIND_TEXT, .data = (const uint8_t *)text, .n_data = 4096};
    struct wire_prompt part;
    uint32_t ids[] = {'h', 'i'}, bad[] = {'h', HOLE};

    (void)state;
    memset(text, 'a', sizeof(text));
    say_hello(s, 0);
    send_bytes(s, bytes, wire_write_tokenize(bytes, sizeof(bytes), 7, &t));
    struct wire_frame f = expect(s, WIRE_TOKENIZED, 7);
    assert_int_equal(wire_read_part(&f, &part), 0);
    assert_int_equal(part.n_data, 4 * 4096);
    t.n_data = 4097;
    send_bytes(s, bytes, wire_write_tokenize(bytes, sizeof(bytes), 8, &t));
    expect_error(s, 8, WIRE_E_TOO_LONG, WIRE_F_PROMPT);
    send_bytes(s, bytes, wire_write(bytes, sizeof(bytes), WIRE_DETOKENIZE, 9, ids, 8));
    f = expect(s, WIRE_DETOKENIZED, 9);
    assert_int_equal(wire_read_part(&f, &part), 0);
    assert_int_equal(part.n_data, 2);
    assert_memory_equal(part.data, "hi", 2);
    send_bytes(s, bytes, wire_write(bytes, sizeof(bytes), WIRE_DETOKENIZE, 9, bad, 8));
    expect_error(s, 9, WIRE_E_PROMPT, WIRE_F_IDS);
    send_bytes(s, bytes, wire_write(bytes, sizeof(bytes), WIRE_DETOKENIZE, 9, ids, 7));
    expect_error(s, 9, WIRE_E_FIELD, WIRE_F_IDS);
    send_bytes(s, bytes, wire_write(bytes, sizeof(bytes), WIRE_DETOKENIZE, 9, ids, 0));
    (void)expect(s, WIRE_DETOKENIZED, 9);
    side_close(s);
}

static void test_admin(void **state) {
    struct side *s = side_open(CONN_DATA), *a = side_open(CONN_ADMIN);
    uint8_t bytes[64];
    struct wire_prompt part;

    (void)state;
    say_hello(s, 0);
    say_hello(a, 0);
    begin(s, 1, 200);
    for (uint32_t topic = 0; topic < 4; topic++) {
        send_bytes(a, bytes, wire_write_u32(bytes, sizeof(bytes), WIRE_INFO, 3, topic));
        struct wire_frame f = expect(a, WIRE_INFO_OK, 3);
        assert_int_equal(wire_read_part(&f, &part), 0);
        assert_true(part.last && part.n_data > 2 && part.data[0] == '{');
    }
    send_bytes(a, bytes, wire_write_u32(bytes, sizeof(bytes), WIRE_INFO, 3, 4));
    expect_error(a, 3, WIRE_E_FIELD, WIRE_F_TOPIC);
    send_bytes(a, bytes, wire_write_u64(bytes, sizeof(bytes), WIRE_ADMIN_CANCEL, 4, 99));
    expect_error(a, 4, WIRE_E_NO_REQUEST, WIRE_F_NONE);
    send_bytes(a, bytes, wire_write_u64(bytes, sizeof(bytes), WIRE_ADMIN_CANCEL, 4, 1));
    (void)expect(a, WIRE_ADMIN_OK, 4);
    assert_int_equal(read_done(s, 1, WIRE_FINISH_CANCELLED), 0);
    side_close(s);
    side_close(a);
}

/* ---- the server goes ---- */

static void test_drain(void **state) {
    struct side *s = side_open(CONN_DATA);
    struct wire_submit q = plain(3);
    uint32_t ms;

    (void)state;
    say_hello(s, 0);
    begin(s, 1, 8);
    serve.draining = true;
    conn_shutdown(s->c, 1000);
    struct wire_frame f = expect(s, WIRE_SHUTDOWN, 0);
    assert_int_equal(wire_read_u32(&f, &ms), 0);
    assert_int_equal(ms, 1000);
    submit(s, 2, &q);
    expect_error(s, 2, WIRE_E_DRAINING, WIRE_F_NONE);
    assert_int_equal(read_done(s, 1, WIRE_FINISH_LENGTH), 8);
    turn(s);
    assert_true(conn_idle(s->c));
    side_close(s);
}

static void test_end(void **state) {
    struct side *s = side_open(CONN_DATA);
    struct wire_submit q = plain(3);

    (void)state;
    say_hello(s, 0);
    begin(s, 1, 8);
    submit(s, 2, &q);
    conn_end(s->c, WIRE_E_DRAINING, "over", now);
    expect_error(s, 2, WIRE_E_DRAINING, WIRE_F_NONE);
    expect_error(s, 1, WIRE_E_DRAINING, WIRE_F_NONE);
    expect_error(s, 0, WIRE_E_DRAINING, WIRE_F_NONE);
    expect_over(s);
    side_close(s);
}

static void test_failed(void **state) {
    struct side *s = side_open(CONN_DATA);

    (void)state;
    say_hello(s, 0);
    begin(s, 1, 8);
    begin(s, 2, 8);
    post(&fake.slots[0], (struct engine_event){.kind = ENGINE_FAILED, .code = -EDOM, .why = "inf"});
    fake.slots[0].used = false;
    expect_error(s, 1, WIRE_E_NUMERIC, WIRE_F_NONE);
    assert_int_equal(read_done(s, 2, WIRE_FINISH_LENGTH), 8); /* the neighbour */
    begin(s, 3, 8);
    post(&fake.slots[0], (struct engine_event){.kind = ENGINE_FAILED, .code = -EIO, .why = "gone"});
    fake.slots[0].used = false;
    fake.dead = serve.lost = true;
    expect_error(s, 3, WIRE_E_DEVICE, WIRE_F_NONE);
    struct wire_submit q = plain(3);
    submit(s, 4, &q);
    expect_error(s, 4, WIRE_E_DEVICE, WIRE_F_NONE);
    side_close(s);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(test_before_hello),
        CASE(test_types),
        CASE(test_hello),
        CASE(test_bad_frames),
        CASE(test_bad_submits),
        CASE(test_seed),
        CASE(test_prompts),
        CASE(test_ids_and_cancel),
        CASE(test_credit),
        CASE(test_no_credit_ends),
        CASE(test_queue_holds_nothing),
        CASE(test_grants_come_back),
        CASE(test_equal_shares),
        CASE(test_turns),
        CASE(test_slow_engine),
        CASE(test_too_large_for_credit),
        CASE(test_worst_events),
        CASE(test_budget),
        CASE(test_payload_max),
        CASE(test_empty_credit),
        CASE(test_prompt_stands_still),
        CASE(test_prompt_after_the_last),
        CASE(test_top_k_beyond_the_vocabulary),
        CASE(test_never_reads),
        CASE(test_gone),
        CASE(test_half_close),
        CASE(test_many),
        CASE(test_bytewise),
        CASE(test_echo_and_logprobs),
        CASE(test_tokenize),
        CASE(test_admin),
        CASE(test_drain),
        CASE(test_end),
        CASE(test_failed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
