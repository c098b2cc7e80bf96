#include "daemon/conn.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/info.h"
#include "daemon/listen.h"
#include "daemon/log.h"
#include "daemon/request.h"
#include "daemon/wire.h"
#include "runtime/assert.h"
#include "runtime/token.h"

enum {
    TURN_BYTES_MAX = 256 << 10, /* read in one turn: others wait */
    LINGER_MS = 1000,           /* after the last byte was sent, for the peer to go first */
    REFUSED_MAX = 16,
    ANSWER_BYTES_MAX = 16 << 20, /* of DETOKENIZED */
};

enum state { GREETING, OPEN, CLOSING, LINGERING };

/* An answer in parts, on its way. */
struct answer {
    uint8_t *bytes; /* NULL: none */
    size_t n_bytes, at;
    uint16_t type;
    uint64_t request;
};

struct conn {
    struct request_owner owner;
    struct serve *serve;
    int fd;
    enum conn_kind kind;
    enum state state;
    bool eof;
    uint8_t *in;
    size_t n_in, in_max;
    struct answer answer;

    /* Requests refused while their prompt was still on its way: its parts are dropped without a
     * word, up to the last.  A ring: what is pushed out is answered with an ERROR again. */
    uint64_t refused[REFUSED_MAX];
    uint32_t refused_next;

    uint64_t hello_ms;   /* deadline of HELLO */
    uint64_t stalled_ms; /* since when output waits and nothing moves; 0: it does not */
    uint64_t closing_ms; /* deadline of the end */
    char name[WIRE_NAME_MAX + 1];
};

int conn_open(struct serve *s, int fd, enum conn_kind kind, const struct listen_peer *peer,
              uint64_t number, uint64_t now_ms, struct conn **out_conn) {
    const struct config *g = s->config;
    struct conn *c = calloc(1, sizeof(*c));
    int r = -ENOMEM;

    if (!c) {
        (void)close(fd);
        return r;
    }
    s->n_conns++;
    c->serve = s;
    c->fd = fd;
    c->kind = kind;
    c->hello_ms = now_ms + g->hello_timeout_ms;
    c->owner = (struct request_owner){.serve = s,
                                      .number = number,
                                      .uid = peer->uid,
                                      .payload_max = WIRE_PAYLOAD_DEFAULT,
                                      .requests_max = g->max_requests_per_connection};
    c->in_max = WIRE_HEADER_BYTES + WIRE_PAYLOAD_DEFAULT;
    c->in = malloc(c->in_max);
    c->owner.requests = calloc(c->owner.requests_max, sizeof(*c->owner.requests));
    if (!c->in || !c->owner.requests || out_open(&c->owner.out, g->output_bytes) < 0) goto out;
    *out_conn = c;
    c = NULL;
    r = 0;
out:
    conn_close(c);
    return r;
}

void conn_close(struct conn *c) {
    if (!c) return;
    request_drop_all(&c->owner, NULL);
    (void)close(c->fd);
    out_close(&c->owner.out);
    free(c->answer.bytes);
    free(c->owner.requests);
    free(c->in);
    c->serve->n_conns--;
    free(c);
}

int conn_fd(const struct conn *c) {
    return c->fd;
}

/* ---- endings ---- */

/* The connection is at fault, or has to go: one ERROR, then no frame is taken any more. */
static void fatal(struct conn *c, const struct admit_refusal *f, uint64_t now_ms) {
    if (c->state >= CLOSING) return;
    log_line(LOG_AT_INFO, "conn %" PRIu64 ": %s: %s; closing", c->owner.number,
             wire_code_name(f->code), f->text);
    request_drop_all(&c->owner, NULL);
    free(c->answer.bytes);
    c->answer.bytes = NULL;
    (void)request_error(&c->owner.out, 0, f);
    c->state = CLOSING;
    c->n_in = 0;
    c->closing_ms = now_ms + c->serve->config->slow_client_timeout_ms;
}

__attribute__((format(printf, 5, 6))) static void
fatal_text(struct conn *c, uint64_t now_ms, uint16_t code, uint32_t field, const char *fmt, ...) {
    struct admit_refusal f = {.code = code, .field = field};
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(f.text, sizeof(f.text), fmt, args);
    va_end(args);
    fatal(c, &f, now_ms);
}

/* What wire said about a payload: -EBADMSG ends the connection, -EINVAL only the request. */
static void faulty(struct conn *c, const struct wire_frame *f, int r, const struct wire_fault *why,
                   uint64_t now_ms) {
    struct admit_refusal refusal;

    (void)admit_refuse_fault(&refusal, why);
    if (r == -EBADMSG || wire_code_class(why->code) == WIRE_CLASS_FATAL)
        fatal(c, &refusal, now_ms);
    else
        (void)request_error(&c->owner.out, f->request, &refusal);
}

void conn_shutdown(struct conn *c, uint32_t ms) {
    size_t n_max;
    uint8_t *p;

    if (c->state != OPEN) return;
    p = out_tail(&c->owner.out, &n_max);
    out_put(&c->owner.out, wire_write_u32(p, n_max, WIRE_SHUTDOWN, 0, ms));
}

void conn_end(struct conn *c, uint16_t code, const char *text, uint64_t now_ms) {
    struct admit_refusal f = {.code = code};

    if (c->state >= CLOSING) return;
    (void)snprintf(f.text, sizeof(f.text), "%s", text);
    request_pump(&c->owner); /* what is over already is told as it ended */
    request_drop_all(&c->owner, &f);
    (void)request_error(&c->owner.out, 0, &f);
    c->state = CLOSING;
    c->n_in = 0;
    c->closing_ms = now_ms + LINGER_MS;
}

bool conn_idle(const struct conn *c) {
    if (c->state >= CLOSING) return c->state == LINGERING;
    return c->owner.n_requests == 0 && !c->answer.bytes && out_used(&c->owner.out) == 0;
}

/* ---- frames ---- */

static void on_hello(struct conn *c, const struct wire_frame *f, uint64_t now_ms) {
    const struct engine_facts *facts = c->serve->facts;
    struct wire_fault why = {0};
    struct wire_hello h;
    int r = wire_read_hello(f, &h, &why);
    size_t n_max;
    uint8_t *p;

    if (r < 0) {
        struct admit_refusal refusal;

        /* Without a HELLO there is no connection to go on with. */
        (void)admit_refuse_fault(&refusal, &why);
        fatal(c, &refusal, now_ms);
        return;
    }
    (void)snprintf(c->name, sizeof(c->name), "%.*s", (int)h.n_name, h.name ? h.name : "");
    for (char *q = c->name; *q; q++)
        if ((unsigned char)*q < ' ' || *q == 0x7f) *q = '?';
    c->owner.payload_max = h.payload_max == 0                 ? (uint32_t)WIRE_PAYLOAD_DEFAULT
                           : h.payload_max > WIRE_PAYLOAD_MAX ? (uint32_t)WIRE_PAYLOAD_MAX
                                                              : h.payload_max;
    c->owner.out.credit = h.credit ? h.credit : (uint32_t)WIRE_CREDIT_DEFAULT;
    if (c->in_max < WIRE_HEADER_BYTES + (size_t)c->owner.payload_max) {
        uint8_t *in = malloc(WIRE_HEADER_BYTES + (size_t)c->owner.payload_max);

        /* Less is a valid answer too. */
        if (!in) c->owner.payload_max = WIRE_PAYLOAD_DEFAULT;
        if (in) {
            /* The frame at hand lies in the old buffer: its caller moves on by length alone. */
            memcpy(in, c->in, c->n_in);
            free(c->in);
            c->in = in;
            c->in_max = WIRE_HEADER_BYTES + (size_t)c->owner.payload_max;
        }
    }
    struct wire_hello_ok ok = {.version = WIRE_VERSION,
                               .features = 0,
                               .payload_max = c->owner.payload_max,
                               .credit = (uint32_t)c->owner.out.credit,
                               .epoch = c->serve->epoch,
                               .context = facts->context,
                               .vocab = facts->model.vocab,
                               .requests_max = c->owner.requests_max,
                               .text_bytes_max = c->serve->config->max_text_bytes,
                               .top_max = WIRE_TOP_MAX,
                               .model = facts->model.name,
                               .n_model = (uint32_t)strlen(facts->model.name)};
    memcpy(ok.fingerprint, facts->fingerprint, sizeof(ok.fingerprint));
    p = out_tail(&c->owner.out, &n_max);
    out_put(&c->owner.out, wire_write_hello_ok(p, n_max, &ok));
    c->state = OPEN;
    log_line(LOG_AT_DEBUG, "conn %" PRIu64 ": %s, payload %u, credit %" PRIu64, c->owner.number,
             c->name[0] ? c->name : "no name", c->owner.payload_max, c->owner.out.credit);
}

static bool refused_find(struct conn *c, uint64_t id, bool forget) {
    for (uint32_t i = 0; i < REFUSED_MAX; i++)
        if (c->refused[i] == id) {
            if (forget) c->refused[i] = 0;
            return true;
        }
    return false;
}

static void refused_add(struct conn *c, uint64_t id) {
    if (refused_find(c, id, false)) return;
    c->refused[c->refused_next] = id;
    c->refused_next = (c->refused_next + 1) % REFUSED_MAX;
}

static void on_submit(struct conn *c, const struct wire_frame *f, uint64_t now_ms) {
    struct admit_refusal refusal;
    struct wire_fault why = {0};
    struct wire_submit s;
    int r;

    if (request_find(&c->owner, f->request)) {
        (void)admit_refuse(&refusal, WIRE_E_ID_IN_USE, WIRE_F_NONE,
                           "request %" PRIu64 " is live on this connection", f->request);
        (void)request_error(&c->owner.out, f->request, &refusal);
        return;
    }
    (void)refused_find(c, f->request, true);
    r = wire_read_submit(f, &s, &why);
    if (r < 0) {
        faulty(c, f, r, &why, now_ms);
        refused_add(c, f->request);
        return;
    }
    r = request_begin(&c->owner, f->request, &s, now_ms * 1000, &refusal);
    if (r < 0) {
        (void)request_error(&c->owner.out, f->request, &refusal);
        refused_add(c, f->request);
    }
}

static void on_prompt(struct conn *c, const struct wire_frame *f, uint64_t now_ms) {
    struct request *q = request_find(&c->owner, f->request);
    struct admit_refusal refusal;
    struct wire_fault why = {0};
    struct wire_prompt p;
    int r = wire_read_prompt(f, &p, &why);

    if (r < 0) {
        faulty(c, f, r, &why, now_ms);
        return;
    }
    if (!q && refused_find(c, f->request, p.last)) return;
    r = q ? request_prompt(&c->owner, q, &p, now_ms * 1000, &refusal) : -ENOENT;
    if (r == -ECANCELED) return; /* it crossed our last frame */
    if (r == -EALREADY) {
        fatal_text(c, now_ms, WIRE_E_FRAME, WIRE_F_PROMPT, "a PROMPT after the last one");
        return;
    }
    if (r == -ENOENT)
        (void)admit_refuse(&refusal, WIRE_E_NO_REQUEST, WIRE_F_NONE,
                           "request %" PRIu64 " is not live", f->request);
    if (r < 0) (void)request_error(&c->owner.out, f->request, &refusal);
    if (r == -EINVAL && !p.last) refused_add(c, f->request);
}

static void on_cancel(struct conn *c, const struct wire_frame *f, uint64_t now_ms) {
    struct request *q = request_find(&c->owner, f->request);
    struct admit_refusal refusal;

    if (f->payload_bytes != 0) {
        fatal_text(c, now_ms, WIRE_E_FRAME, WIRE_F_NONE, "CANCEL has no payload");
    } else if (q) {
        request_cancel(&c->owner, q);
    } else {
        (void)admit_refuse(&refusal, WIRE_E_NO_REQUEST, WIRE_F_NONE,
                           "request %" PRIu64 " is not live", f->request);
        (void)request_error(&c->owner.out, f->request, &refusal);
    }
}

static void on_credit(struct conn *c, const struct wire_frame *f, uint64_t now_ms) {
    uint32_t more;

    if (wire_read_u32(f, &more) < 0)
        fatal_text(c, now_ms, WIRE_E_FRAME, WIRE_F_CREDIT, "CREDIT has 4 bytes");
    else if (f->request != 0)
        fatal_text(c, now_ms, WIRE_E_FRAME, WIRE_F_CREDIT, "CREDIT is the connection's, request 0");
    else if (more > WIRE_CREDIT_MAX - c->owner.out.credit)
        fatal_text(c, now_ms, WIRE_E_CREDIT, WIRE_F_CREDIT, "credit beyond %d bytes",
                   (int)WIRE_CREDIT_MAX);
    else
        c->owner.out.credit += more;
}

static void on_ping(struct conn *c, const struct wire_frame *f, uint64_t now_ms) {
    size_t n_max;
    uint8_t *p;

    if (f->payload_bytes > WIRE_PING_MAX) {
        fatal_text(c, now_ms, WIRE_E_FRAME, WIRE_F_NONE, "PING of %u bytes, the limit is %d",
                   f->payload_bytes, (int)WIRE_PING_MAX);
        return;
    }
    p = out_tail(&c->owner.out, &n_max);
    out_put(&c->owner.out,
            wire_write(p, n_max, WIRE_PONG, f->request, f->payload, f->payload_bytes));
}

/* Takes `bytes`: they are sent in as many parts as it takes. */
static void answer_take(struct conn *c, uint16_t type, uint64_t request, uint8_t *bytes,
                        size_t n_bytes) {
    ASSERT(!c->answer.bytes);
    c->answer = (struct answer){bytes, n_bytes, 0, type, request};
}

static void answer_pump(struct conn *c) {
    struct answer *a = &c->answer;

    while (a->bytes) {
        size_t room = out_room(&c->owner.out), n_max, n;
        size_t n_part = a->n_bytes - a->at;

        if (room < OUT_FRAME_BYTES) return;
        if (n_part > c->owner.payload_max - 4) n_part = c->owner.payload_max - 4;
        if (n_part > room - WIRE_HEADER_BYTES - 4) n_part = room - WIRE_HEADER_BYTES - 4;
        /* Ids are not cut. */
        if (a->type == WIRE_TOKENIZED) n_part &= ~(size_t)3;
        struct wire_prompt part = {.last = a->at + n_part == a->n_bytes,
                                   .data = a->bytes + a->at,
                                   .n_data = (uint32_t)n_part};
        uint8_t *p = out_tail(&c->owner.out, &n_max);
        n = wire_write_part(p, n_max, a->type, a->request, &part);
        ASSERT(n > 0);
        out_put(&c->owner.out, n);
        a->at += n_part;
        if (part.last) {
            free(a->bytes);
            a->bytes = NULL;
        }
    }
}

static void on_tokenize(struct conn *c, const struct wire_frame *f, uint64_t now_ms) {
    struct admit_limits l = request_serve_limits(c->serve);
    struct admit_refusal refusal;
    struct wire_fault why = {0};
    struct wire_tokenize t;
    uint32_t *ids = NULL;
    int r = wire_read_tokenize(f, &t, &why);
    int64_t n;

    if (r < 0) {
        faulty(c, f, r, &why, now_ms);
        return;
    }
    /* A byte gives one token at most; what a template adds, a few a message. */
    uint32_t n_max = t.n_data + 16 * WIRE_MESSAGES_MAX;

    if (t.n_data > l.text_bytes_max) {
        (void)admit_refuse(&refusal, WIRE_E_TOO_LONG, WIRE_F_PROMPT,
                           "text of %u bytes, the limit is %u", t.n_data, l.text_bytes_max);
        n = -EINVAL;
    } else if (!(ids = malloc((size_t)n_max * 4))) {
        n = admit_refuse(&refusal, WIRE_E_INTERNAL, WIRE_F_NONE, "out of memory");
    } else {
        n = admit_text(c->serve->facts->template, t.kind, t.flags, t.data, t.n_data, &l, ids, n_max,
                       &refusal);
    }
    if (n < 0) {
        (void)request_error(&c->owner.out, f->request, &refusal);
        free(ids);
        return;
    }
    answer_take(c, WIRE_TOKENIZED, f->request, (uint8_t *)ids, (size_t)n * 4);
}

static void on_detokenize(struct conn *c, const struct wire_frame *f) {
    struct admit_limits l = request_serve_limits(c->serve);
    uint32_t n_ids = f->payload_bytes / 4, n_bytes;
    struct token_utf8 utf8 = {0};
    struct admit_refusal refusal;
    uint32_t *ids = malloc(f->payload_bytes + 1);
    uint8_t *text = NULL;
    size_t n_max = 16, n = 0;
    bool special;
    int r = 0;

    if (!ids)
        r = admit_refuse(&refusal, WIRE_E_INTERNAL, WIRE_F_NONE, "out of memory");
    else if (f->payload_bytes % 4 != 0)
        r = admit_refuse(&refusal, WIRE_E_FIELD, WIRE_F_IDS, "ids: 4 bytes each");
    else
        r = admit_ids(f->payload, n_ids, &l, WIRE_F_IDS, ids, &refusal);
    for (uint32_t i = 0; r == 0 && i < n_ids; i++) {
        (void)token_bytes(l.token, ids[i], &n_bytes, &special);
        n_max += (size_t)n_bytes * 3 + 12;
        if (n_max > ANSWER_BYTES_MAX)
            r = admit_refuse(&refusal, WIRE_E_TOO_LONG, WIRE_F_IDS, "ids: more than %d bytes",
                             (int)ANSWER_BYTES_MAX);
    }
    if (r == 0 && !(text = malloc(n_max)))
        r = admit_refuse(&refusal, WIRE_E_INTERNAL, WIRE_F_NONE, "out of memory");
    for (uint32_t i = 0; r == 0 && i < n_ids; i++) {
        const uint8_t *bytes = token_bytes(l.token, ids[i], &n_bytes, &special);

        n += token_utf8_push(&utf8, bytes, n_bytes, i + 1 == n_ids, text + n);
    }
    free(ids);
    if (r == 0)
        answer_take(c, WIRE_DETOKENIZED, f->request, text, n);
    else
        (void)request_error(&c->owner.out, f->request, &refusal);
}

static void on_info(struct conn *c, const struct wire_frame *f, uint64_t now_ms) {
    struct admit_refusal refusal;
    uint32_t topic;
    char *text;

    if (wire_read_u32(f, &topic) < 0) {
        fatal_text(c, now_ms, WIRE_E_FRAME, WIRE_F_TOPIC, "INFO has 4 bytes");
        return;
    }
    text = info_text(c->serve, topic, now_ms * 1000);
    if (text) {
        answer_take(c, WIRE_INFO_OK, f->request, (uint8_t *)text, strlen(text));
        return;
    }
    if (topic > WIRE_INFO_CONFIG)
        (void)admit_refuse(&refusal, WIRE_E_FIELD, WIRE_F_TOPIC, "topic: 0 .. 3");
    else
        (void)admit_refuse(&refusal, WIRE_E_INTERNAL, WIRE_F_NONE, "out of memory");
    (void)request_error(&c->owner.out, f->request, &refusal);
}

static void on_admin_cancel(struct conn *c, const struct wire_frame *f, uint64_t now_ms) {
    struct admit_refusal refusal;
    uint64_t server_id;
    size_t n_max;
    uint8_t *p;

    if (wire_read_u64(f, &server_id) < 0) {
        fatal_text(c, now_ms, WIRE_E_FRAME, WIRE_F_NONE, "ADMIN_CANCEL has 8 bytes");
    } else if (request_serve_cancel(c->serve, server_id)) {
        log_line(LOG_AT_INFO, "request %" PRIu64 ": cancelled by uid %u", server_id,
                 (unsigned)c->owner.uid);
        p = out_tail(&c->owner.out, &n_max);
        out_put(&c->owner.out, wire_write(p, n_max, WIRE_ADMIN_OK, f->request, NULL, 0));
    } else {
        (void)admit_refuse(&refusal, WIRE_E_NO_REQUEST, WIRE_F_NONE,
                           "no live request has the server id %" PRIu64, server_id);
        (void)request_error(&c->owner.out, f->request, &refusal);
    }
}

static bool type_taken(enum conn_kind kind, uint16_t type) {
    switch (type) {
    case WIRE_HELLO:
    case WIRE_CREDIT:
    case WIRE_PING:
    case WIRE_INFO:
        return true;
    case WIRE_ADMIN_CANCEL:
        return kind == CONN_ADMIN;
    case WIRE_SUBMIT:
    case WIRE_PROMPT:
    case WIRE_CANCEL:
    case WIRE_TOKENIZE:
    case WIRE_DETOKENIZE:
        return kind == CONN_DATA;
    default:
        return false;
    }
}

static void on_frame(struct conn *c, const struct wire_frame *f, uint64_t now_ms) {
    bool of_request = f->type == WIRE_SUBMIT || f->type == WIRE_PROMPT || f->type == WIRE_CANCEL;

    if (!type_taken(c->kind, f->type))
        fatal_text(c, now_ms, WIRE_E_TYPE, WIRE_F_NONE, "type %u (%s) is not taken here", f->type,
                   wire_type_name(f->type));
    else if ((c->state == GREETING) != (f->type == WIRE_HELLO))
        fatal_text(c, now_ms, WIRE_E_HELLO, WIRE_F_NONE,
                   c->state == GREETING ? "the first frame is not HELLO" : "a second HELLO");
    else if (of_request && f->request == 0)
        fatal_text(c, now_ms, WIRE_E_FRAME, WIRE_F_NONE, "%s of request 0, the connection's",
                   wire_type_name(f->type));
    else if (f->type == WIRE_HELLO)
        on_hello(c, f, now_ms);
    else if (f->type == WIRE_SUBMIT)
        on_submit(c, f, now_ms);
    else if (f->type == WIRE_PROMPT)
        on_prompt(c, f, now_ms);
    else if (f->type == WIRE_CANCEL)
        on_cancel(c, f, now_ms);
    else if (f->type == WIRE_CREDIT)
        on_credit(c, f, now_ms);
    else if (f->type == WIRE_PING)
        on_ping(c, f, now_ms);
    else if (f->type == WIRE_TOKENIZE)
        on_tokenize(c, f, now_ms);
    else if (f->type == WIRE_DETOKENIZE)
        on_detokenize(c, f);
    else if (f->type == WIRE_INFO)
        on_info(c, f, now_ms);
    else
        on_admin_cancel(c, f, now_ms);
}

/* ---- bytes ---- */

/* Whether one more frame may be taken: an answer in parts comes out whole before the next. */
static bool may_take(const struct conn *c) {
    return c->state <= OPEN && !c->answer.bytes && out_ready(&c->owner.out);
}

/* Takes the frames that are in the buffer. */
static void take_frames(struct conn *c, uint64_t now_ms) {
    struct wire_frame f;
    size_t at = 0;

    while (may_take(c)) {
        int64_t n = wire_read(c->in + at, c->n_in - at, c->owner.payload_max, &f);

        if (n == -EAGAIN) break;
        if (n < 0) {
            fatal_text(c, now_ms, WIRE_E_FRAME, WIRE_F_NONE,
                       "no frame: payload over %u bytes, or flags that are not zero",
                       c->owner.payload_max);
            break;
        }
        /* Before the frame: HELLO may move the buffer. */
        at += (size_t)n;
        on_frame(c, &f, now_ms);
        answer_pump(c);
    }
    if (c->state >= CLOSING) at = c->n_in; /* which is 0 */
    memmove(c->in, c->in + at, c->n_in - at);
    c->n_in -= at;
}

/* What the buffer holds may end the connection before the rest of a frame has come. */
static void take_bytes(struct conn *c, uint64_t now_ms) {
    size_t n_sum = 0;

    take_frames(c, now_ms);
    while (!c->eof && n_sum < TURN_BYTES_MAX && c->state <= OPEN && c->n_in < c->in_max) {
        ssize_t n = recv(c->fd, c->in + c->n_in, c->in_max - c->n_in, MSG_DONTWAIT);

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        if (n == 0) c->eof = true;
        c->n_in += (size_t)n;
        n_sum += (size_t)n;
        take_frames(c, now_ms);
    }
}

/* A closing connection's bytes go nowhere; unread ones would turn our last frames into a reset. */
static void discard(struct conn *c) {
    uint8_t waste[4096];

    for (int i = 0; i < 64 && !c->eof; i++) {
        ssize_t n = recv(c->fd, waste, sizeof(waste), MSG_DONTWAIT);

        if (n == 0) c->eof = true;
        if (n <= 0) break;
    }
}

uint32_t conn_wants(const struct conn *c) {
    uint32_t wants = 0;
    bool room = c->state >= CLOSING || c->n_in < c->in_max;

    if (!c->eof && room) wants |= EPOLLIN;
    if (out_used(&c->owner.out)) wants |= EPOLLOUT;
    return wants;
}

static uint64_t stalled_until(const struct conn *c) {
    return c->stalled_ms + c->serve->config->slow_client_timeout_ms;
}

uint64_t conn_deadline_ms(const struct conn *c) {
    if (c->state == GREETING) return c->hello_ms;
    if (c->state >= CLOSING) return c->closing_ms;
    uint64_t due_us = request_due_us(&c->owner);
    uint64_t due_ms = due_us == UINT64_MAX ? UINT64_MAX : (due_us + 999) / 1000;

    if (c->stalled_ms && stalled_until(c) < due_ms) due_ms = stalled_until(c);
    return due_ms;
}

/* A request lacks what the client alone can give: while the engine owes events of others, room and
 * credit come back without it. */
static bool awaits_client(const struct conn *c) {
    return c->owner.starved && out_still(&c->owner.out);
}

/* Sends, and keeps account of whether the client reads. */
static int send_some(struct conn *c, uint64_t now_ms) {
    size_t n_sent;
    int r = out_send(&c->owner.out, c->fd, &n_sent);

    if (r == 0 && !awaits_client(c))
        c->stalled_ms = 0;
    else if (n_sent > 0 || c->stalled_ms == 0)
        c->stalled_ms = now_ms;
    return r;
}

/* After the last bytes of a closing connection: our side shuts, and the peer may go first. */
static bool close_turn(struct conn *c, uint64_t now_ms) {
    size_t n_sent;
    int r;

    discard(c);
    r = out_send(&c->owner.out, c->fd, &n_sent);
    if (r < 0 && r != -EAGAIN) return false;
    if (r == 0 && c->state == CLOSING) {
        c->state = LINGERING;
        c->closing_ms = now_ms + LINGER_MS;
        (void)shutdown(c->fd, SHUT_WR);
    }
    if (c->state == LINGERING && c->eof) return false;
    return now_ms < c->closing_ms;
}

bool conn_turn(struct conn *c, uint32_t events, uint64_t now_ms) {
    bool in_time = true;
    int r;

    /* Both directions are gone: nobody reads any more, whatever waits unread. */
    if (events & (EPOLLHUP | EPOLLERR)) return false;
    if (c->state >= CLOSING) return close_turn(c, now_ms);

    /* As long as answers make room for further frames. */
    for (;;) {
        size_t n_before = c->n_in;

        if (events & EPOLLIN || c->n_in) take_bytes(c, now_ms);
        if (c->state >= CLOSING) return close_turn(c, now_ms);
        answer_pump(c);
        in_time = request_expire(&c->owner, now_ms * 1000);
        request_pump(&c->owner);
        r = send_some(c, now_ms);
        if (r < 0 && r != -EAGAIN) return false;
        if (r != 0 || c->n_in == n_before) break;
    }
    if (c->state == GREETING && now_ms >= c->hello_ms)
        fatal_text(c, now_ms, WIRE_E_HELLO, WIRE_F_NONE, "no HELLO within %u ms",
                   c->serve->config->hello_timeout_ms);
    else if (!in_time)
        fatal_text(c, now_ms, WIRE_E_SLOW, WIRE_F_PROMPT, "a prompt stands still for %u ms",
                   c->serve->config->slow_client_timeout_ms);
    else if (c->stalled_ms && now_ms >= stalled_until(c))
        fatal_text(c, now_ms, WIRE_E_SLOW, WIRE_F_NONE,
                   "output waits for %u ms and the client neither reads nor gives credit",
                   c->serve->config->slow_client_timeout_ms);
    if (c->state >= CLOSING) {
        /* It has had its time. */
        if (c->stalled_ms) c->closing_ms = now_ms + LINGER_MS;
        return close_turn(c, now_ms);
    }
    if (!c->eof) return true;
    /* No frame will come any more: not the rest of a prompt, not credit, not a cut frame's end. */
    request_no_more(&c->owner);
    return !conn_idle(c) && !awaits_client(c);
}
