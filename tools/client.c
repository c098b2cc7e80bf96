#include "tools/llm42.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE_BYTES = 64 << 10, /* that llm42_feed takes whole between frames */
    OUTPUT_FIRST = 4096,
    CREDIT_FRAME_BYTES = WIRE_HEADER_BYTES + 4,
    SLOT_BITS = 12,
};

_Static_assert(LLM42_REQUESTS_MAX == 1 << SLOT_BITS, "a request's number holds its slot");

enum slot_kind {
    SLOT_FREE,
    SLOT_SUBMIT,
    SLOT_TOKENIZE,
    SLOT_DETOKENIZE,
    SLOT_INFO,
    SLOT_PING,
    SLOT_ADMIN
};

/* One live request: what the server has sent of it, to tell what it may send next. */
struct slot {
    uint64_t request; /* number << SLOT_BITS | slot */
    enum slot_kind kind;
    bool accepted, echoing, echoed;
    uint16_t logprobs, prompt_logprobs;      /* as in SUBMIT */
    uint32_t n_prompt, n_tokens, n_logprobs; /* so far, but n_prompt */
    uint32_t prompt_place;                   /* of the next PROMPT_LOGPROBS record */
    uint32_t n_next_free;
};

struct llm42 {
    uint8_t *in;
    size_t in_bytes_max, in_from, in_to; /* what is in `in` and not yet read */
    uint8_t *out;
    size_t out_bytes_max, out_room, out_from, out_to;
    uint32_t payload_max; /* the wish, then what was agreed */
    uint32_t credit;      /* the same */
    uint32_t used;        /* credit of events that were taken, to be handed back */
    uint32_t taking;      /* of the event that the caller looks at now */
    bool ready, broken, broken_told, ended;
    char text[LLM42_TEXT_BYTES];
    struct wire_hello_ok server;
    char model[WIRE_MODEL_MAX + 1];
    uint64_t n_requests;
    uint32_t n_live, first_free;
    struct slot slots[LLM42_REQUESTS_MAX];
};

/* ---- Open, close ---- */

struct llm42 *llm42_open(const struct llm42_options *o) {
    const char *name = o && o->name ? o->name : "libllm42";
    struct wire_hello h = {.version_min = WIRE_VERSION,
                           .version_max = WIRE_VERSION,
                           .payload_max =
                               o && o->payload_max ? o->payload_max : WIRE_PAYLOAD_DEFAULT,
                           .credit = o && o->credit ? o->credit : WIRE_CREDIT_DEFAULT,
                           .name = name,
                           .n_name = (uint32_t)strnlen(name, WIRE_NAME_MAX + 1)};
    struct llm42 *c;

    if (h.n_name > WIRE_NAME_MAX) return NULL;
    if (h.payload_max < WIRE_PAYLOAD_MIN || h.payload_max > WIRE_PAYLOAD_MAX) return NULL;
    if (h.credit < WIRE_CREDIT_MIN || h.credit > WIRE_CREDIT_MAX) return NULL;
    c = calloc(1, sizeof(*c));
    if (!c) return NULL;
    c->payload_max = h.payload_max;
    c->credit = h.credit;
    c->out_bytes_max = o && o->output_bytes_max ? o->output_bytes_max : LLM42_OUTPUT_DEFAULT;
    if (c->out_bytes_max < OUTPUT_FIRST) c->out_bytes_max = OUTPUT_FIRST;
    c->out_room = OUTPUT_FIRST;
    /* HELLO_OK comes under the default limit, whatever was wished. */
    c->in_bytes_max = WIRE_HEADER_BYTES + PIECE_BYTES +
                      (h.payload_max > WIRE_PAYLOAD_DEFAULT ? h.payload_max : WIRE_PAYLOAD_DEFAULT);
    c->in = malloc(c->in_bytes_max);
    c->out = malloc(c->out_room);
    if (!c->in || !c->out) {
        llm42_close(c);
        return NULL;
    }
    for (uint32_t i = 0; i < LLM42_REQUESTS_MAX; i++) c->slots[i].n_next_free = i + 1;
    c->out_to = wire_write_hello(c->out, c->out_room, &h);
    return c;
}

void llm42_close(struct llm42 *c) {
    if (!c) return;
    free(c->in);
    free(c->out);
    free(c);
}

const struct wire_hello_ok *llm42_server(const struct llm42 *c) {
    return c->ready ? &c->server : NULL;
}

uint32_t llm42_live(const struct llm42 *c) {
    return c->n_live;
}

/* ---- What is to be sent ---- */

/* Room for n_bytes behind out_to; CREDIT alone may use what is kept back for it. */
static bool make_room(struct llm42 *c, size_t n_bytes, size_t n_kept) {
    size_t n_pending = c->out_to - c->out_from, room = c->out_room;
    uint8_t *out;

    if (n_bytes > SIZE_MAX / 4 || n_pending + n_bytes + n_kept > c->out_bytes_max) return false;
    if (n_bytes <= c->out_room - c->out_to) return true;
    if (c->out_from > 0) {
        memmove(c->out, c->out + c->out_from, n_pending);
        c->out_from = 0;
        c->out_to = n_pending;
    }
    while (room < n_pending + n_bytes) room *= 2;
    if (room > c->out_bytes_max) room = c->out_bytes_max;
    if (room == c->out_room) return true;
    out = realloc(c->out, room);
    if (!out) return false;
    c->out = out;
    c->out_room = room;
    return true;
}

static uint8_t *out_at(struct llm42 *c) {
    return c->out + c->out_to;
}

static size_t out_left(const struct llm42 *c) {
    return c->out_room - c->out_to;
}

size_t llm42_output(struct llm42 *c, const uint8_t **out_bytes) {
    *out_bytes = c->out + c->out_from;
    return c->out_to - c->out_from;
}

void llm42_sent(struct llm42 *c, size_t n_bytes) {
    size_t n_pending = c->out_to - c->out_from;

    c->out_from += n_bytes < n_pending ? n_bytes : n_pending;
    if (c->out_from == c->out_to) c->out_from = c->out_to = 0;
}

/* Credit goes back in pieces of a quarter, so that neither side ever waits for the other. */
static void give_credit(struct llm42 *c) {
    c->used += c->taking;
    c->taking = 0;
    if (c->used < c->credit / 4 || c->used == 0) return;
    if (!make_room(c, CREDIT_FRAME_BYTES, 0)) return; /* at the next event, then */
    c->out_to += wire_write_u32(out_at(c), out_left(c), WIRE_CREDIT, 0, c->used);
    c->used = 0;
}

/* ---- Requests ---- */

static int may_ask(const struct llm42 *c) {
    if (c->broken) return -EPIPE;
    if (!c->ready) return -ENOTCONN;
    return c->n_live == LLM42_REQUESTS_MAX ? -EAGAIN : 0;
}

static struct slot *take(struct llm42 *c, enum slot_kind kind, uint64_t *out_request) {
    uint32_t i = c->first_free;
    struct slot *s = &c->slots[i];

    c->first_free = s->n_next_free;
    *s =
        (struct slot){.request = ++c->n_requests << SLOT_BITS | i, .kind = kind, .prompt_place = 1};
    c->n_live++;
    *out_request = s->request;
    return s;
}

static void give(struct llm42 *c, struct slot *s) {
    s->kind = SLOT_FREE;
    s->n_next_free = c->first_free;
    c->first_free = (uint32_t)(s - c->slots);
    c->n_live--;
}

static struct slot *find(struct llm42 *c, uint64_t request) {
    struct slot *s = &c->slots[request & (LLM42_REQUESTS_MAX - 1)];

    return s->kind != SLOT_FREE && s->request == request ? s : NULL;
}

/* The number that `take` will give, so that a frame can be written before anything changes. */
static uint64_t coming(const struct llm42 *c) {
    return (c->n_requests + 1) << SLOT_BITS | c->first_free;
}

/* A frame that was written behind out_to (0: it did not fit) becomes part of the output. */
static int commit(struct llm42 *c, size_t n_bytes, enum slot_kind kind, uint64_t *out_request) {
    if (n_bytes == 0 || n_bytes - WIRE_HEADER_BYTES > c->payload_max) return -EMSGSIZE;
    c->out_to += n_bytes;
    take(c, kind, out_request);
    return 0;
}

int llm42_submit(struct llm42 *c, const struct wire_submit *s, const void *prompt,
                 uint32_t prompt_bytes, uint64_t *out_request) {
    /* A multiple of four: no id is cut in two. */
    uint32_t chunk_max = (c->payload_max - 4) & ~3u, n, at = 0;
    size_t n_frames = prompt_bytes / chunk_max + 1, need, n_submit;
    struct wire_submit filled = *s;
    struct slot *slot;
    int r = may_ask(c);

    if (r != 0) return r;
    filled.prompt_bytes = prompt_bytes;
    if (s->n_stop_ids > WIRE_STOP_IDS_MAX || s->n_stop_strings > WIRE_STOP_STRINGS_MAX)
        return -EINVAL;
    for (uint32_t i = 0; i < s->n_stop_strings; i++)
        if (s->stop_strings[i].n_bytes > WIRE_STOP_STRING_BYTES_MAX) return -EINVAL;
    need = WIRE_PAYLOAD_MIN * 2 + n_frames * (WIRE_HEADER_BYTES + 4) + prompt_bytes;
    if (need + CREDIT_FRAME_BYTES > c->out_bytes_max) return -EMSGSIZE;
    if (!make_room(c, need, CREDIT_FRAME_BYTES)) return -EAGAIN;
    n_submit = wire_write_submit(out_at(c), out_left(c), coming(c), &filled);
    if (n_submit == 0 || n_submit - WIRE_HEADER_BYTES > c->payload_max) return -EMSGSIZE;
    c->out_to += n_submit;
    slot = take(c, SLOT_SUBMIT, out_request);
    slot->logprobs = s->logprobs;
    slot->prompt_logprobs = s->prompt_logprobs;
    slot->echoing = s->flags & WIRE_SUBMIT_ECHO_IDS;
    /* An empty prompt has no PROMPT: SUBMIT is refused for it. */
    for (; at < prompt_bytes; at += n) {
        struct wire_prompt p;

        n = prompt_bytes - at < chunk_max ? prompt_bytes - at : chunk_max;
        p = (struct wire_prompt){
            .last = at + n == prompt_bytes, .data = (const uint8_t *)prompt + at, .n_data = n};
        c->out_to += wire_write_prompt(out_at(c), out_left(c), slot->request, &p);
    }
    return 0;
}

int llm42_tokenize(struct llm42 *c, const struct wire_tokenize *t, uint64_t *out_request) {
    int r = may_ask(c);

    if (r != 0) return r;
    if (t->n_data > c->payload_max - 4) return -EMSGSIZE;
    if (!make_room(c, WIRE_HEADER_BYTES + 4 + (size_t)t->n_data, CREDIT_FRAME_BYTES))
        return -EAGAIN;
    return commit(c, wire_write_tokenize(out_at(c), out_left(c), coming(c), t), SLOT_TOKENIZE,
                  out_request);
}

int llm42_detokenize(struct llm42 *c, const uint32_t *ids, uint32_t n_ids, uint64_t *out_request) {
    size_t n;
    int r = may_ask(c);

    if (r != 0) return r;
    if (n_ids > c->payload_max / 4) return -EMSGSIZE;
    if (!make_room(c, WIRE_HEADER_BYTES + 4 * (size_t)n_ids, CREDIT_FRAME_BYTES)) return -EAGAIN;
    n = wire_write(out_at(c), out_left(c), WIRE_DETOKENIZE, coming(c), ids, 4 * (size_t)n_ids);
    /* The ids once more, in the order of bytes that the wire has. */
    for (uint32_t i = 0; n > 0 && i < n_ids; i++)
        for (uint32_t j = 0; j < 4; j++)
            out_at(c)[WIRE_HEADER_BYTES + 4 * (size_t)i + j] = (uint8_t)(ids[i] >> 8 * j);
    return commit(c, n, SLOT_DETOKENIZE, out_request);
}

int llm42_info(struct llm42 *c, uint32_t topic, uint64_t *out_request) {
    int r = may_ask(c);

    if (r != 0) return r;
    if (!make_room(c, WIRE_HEADER_BYTES + 4, CREDIT_FRAME_BYTES)) return -EAGAIN;
    return commit(c, wire_write_u32(out_at(c), out_left(c), WIRE_INFO, coming(c), topic), SLOT_INFO,
                  out_request);
}

int llm42_ping(struct llm42 *c, const void *bytes, size_t n_bytes, uint64_t *out_request) {
    int r = may_ask(c);

    if (r != 0) return r;
    if (n_bytes > WIRE_PING_MAX) return -EINVAL;
    if (!make_room(c, WIRE_HEADER_BYTES + n_bytes, CREDIT_FRAME_BYTES)) return -EAGAIN;
    return commit(c, wire_write(out_at(c), out_left(c), WIRE_PING, coming(c), bytes, n_bytes),
                  SLOT_PING, out_request);
}

int llm42_admin_cancel(struct llm42 *c, uint64_t server_id, uint64_t *out_request) {
    int r = may_ask(c);

    if (r != 0) return r;
    if (!make_room(c, WIRE_HEADER_BYTES + 8, CREDIT_FRAME_BYTES)) return -EAGAIN;
    return commit(c,
                  wire_write_u64(out_at(c), out_left(c), WIRE_ADMIN_CANCEL, coming(c), server_id),
                  SLOT_ADMIN, out_request);
}

int llm42_cancel(struct llm42 *c, uint64_t request) {
    struct slot *s = find(c, request);

    if (c->broken) return -EPIPE;
    if (!s || s->kind != SLOT_SUBMIT) return 0;
    if (!make_room(c, WIRE_HEADER_BYTES, CREDIT_FRAME_BYTES)) return -EAGAIN;
    c->out_to += wire_write(out_at(c), out_left(c), WIRE_CANCEL, request, NULL, 0);
    return 0;
}

/* ---- What came ---- */

size_t llm42_feed(struct llm42 *c, const void *bytes, size_t n_bytes) {
    size_t n_left;

    if (c->in_from > 0) {
        memmove(c->in, c->in + c->in_from, c->in_to - c->in_from);
        c->in_to -= c->in_from;
        c->in_from = 0;
    }
    n_left = c->in_bytes_max - c->in_to;
    if (n_bytes > n_left) n_bytes = n_left;
    if (n_bytes > 0) memcpy(c->in + c->in_to, bytes, n_bytes);
    c->in_to += n_bytes;
    return n_bytes;
}

__attribute__((format(printf, 2, 3))) static int broken(struct llm42 *c, const char *fmt, ...) {
    va_list args;

    if (c->broken) return -EPIPE;
    c->broken = true;
    va_start(args, fmt);
    vsnprintf(c->text, sizeof(c->text), fmt, args);
    va_end(args);
    return -EPIPE;
}

void llm42_end(struct llm42 *c, const char *why) {
    if (c->ended) return;
    c->ended = true;
    if (!c->broken) snprintf(c->text, sizeof(c->text), "%s", why);
}

static int take_hello_ok(struct llm42 *c, const struct wire_frame *f, struct llm42_event *out) {
    struct wire_hello_ok *h = &out->hello_ok;

    if (c->ready) return broken(c, "a second HELLO_OK");
    if (f->request != 0) return broken(c, "HELLO_OK with a request's number");
    if (wire_read_hello_ok(f, h) != 0) return broken(c, "malformed HELLO_OK");
    if (h->version != WIRE_VERSION) return broken(c, "the server speaks version %u", h->version);
    if (h->payload_max < WIRE_PAYLOAD_MIN || h->payload_max > c->payload_max)
        return broken(c, "the server agreed to frames of %u bytes, %u were wished", h->payload_max,
                      c->payload_max);
    if (h->credit < WIRE_CREDIT_MIN || h->credit > WIRE_CREDIT_MAX)
        return broken(c, "the server took a credit of %u bytes", h->credit);
    c->payload_max = h->payload_max;
    c->credit = h->credit;
    c->server = *h;
    memcpy(c->model, h->model, h->n_model);
    c->server.model = c->model;
    c->ready = true;
    out->kind = LLM42_READY;
    return 1;
}

static int take_accepted(struct llm42 *c, struct slot *s, const struct wire_frame *f,
                         struct llm42_event *out) {
    struct wire_accepted *a = &out->accepted;

    if (s->accepted) return broken(c, "a second ACCEPTED for a request");
    if (wire_read_accepted(f, a) != 0) return broken(c, "malformed ACCEPTED");
    if (a->logprobs != s->logprobs || a->prompt_logprobs != s->prompt_logprobs)
        return broken(c, "ACCEPTED with other logprobs than were asked for");
    s->accepted = true;
    s->n_prompt = a->n_prompt;
    out->kind = LLM42_ACCEPTED;
    return 1;
}

static int take_tokens(struct llm42 *c, struct slot *s, const struct wire_frame *f,
                       struct llm42_event *out) {
    struct wire_tokens *t = &out->tokens;

    if (wire_read_tokens(f, t) != 0) return broken(c, "malformed TOKENS");
    if (t->n_tokens > 0 && t->first != s->n_tokens)
        return broken(c, "TOKENS from %u on, %u was the next", t->first, s->n_tokens);
    if (t->n_tokens > UINT32_MAX - s->n_tokens) return broken(c, "too many TOKENS");
    s->n_tokens += t->n_tokens;
    out->kind = LLM42_TOKENS;
    return 1;
}

static int take_logprobs(struct llm42 *c, struct slot *s, const struct wire_frame *f,
                         struct llm42_event *out) {
    bool of_prompt = f->type == WIRE_PROMPT_LOGPROBS;
    uint16_t asked = of_prompt ? s->prompt_logprobs : s->logprobs;
    uint32_t *next = of_prompt ? &s->prompt_place : &s->n_logprobs;
    const char *name = wire_type_name(f->type);
    struct wire_logprobs *l = &out->logprobs;

    if (wire_read_logprobs(f, l) != 0) return broken(c, "malformed %s", name);
    if (asked == 0 || l->n_top != asked - 1)
        return broken(c, "%s with lists of %u, %s", name, l->n_top,
                      asked ? "another length was asked for" : "none were asked for");
    if (l->first != *next)
        return broken(c, "%s from %u on, %u was the next", name, l->first, *next);
    if (l->n_tokens > UINT32_MAX - *next) return broken(c, "too many %s", name);
    *next += l->n_tokens;
    if (of_prompt && *next > s->n_prompt) return broken(c, "%s beyond the prompt", name);
    out->kind = of_prompt ? LLM42_PROMPT_LOGPROBS : LLM42_LOGPROBS;
    return 1;
}

static int take_done(struct llm42 *c, struct slot *s, const struct wire_frame *f,
                     struct llm42_event *out) {
    struct wire_done *d = &out->done;

    if (wire_read_done(f, d) != 0) return broken(c, "malformed DONE");
    if (d->finish < WIRE_FINISH_STOP || d->finish > WIRE_FINISH_DEADLINE)
        return broken(c, "DONE with finish reason %u", d->finish);
    /* A request may be cancelled before its prompt is whole. */
    if (!s->accepted && d->finish != WIRE_FINISH_CANCELLED)
        return broken(c, "DONE before ACCEPTED");
    if (d->n_output != s->n_tokens)
        return broken(c, "DONE after %u tokens, %u came", d->n_output, s->n_tokens);
    if (s->logprobs && s->n_logprobs != s->n_tokens)
        return broken(c, "DONE with %u tokens and %u logprobs", s->n_tokens, s->n_logprobs);
    out->kind = LLM42_DONE;
    give(c, s);
    return 1;
}

/* An answer in parts; the last of them ends the request, but for the echo of a prompt. */
static int take_part(struct llm42 *c, struct slot *s, const struct wire_frame *f,
                     struct llm42_event *out, enum slot_kind kind, enum llm42_kind event) {
    const char *name = wire_type_name(f->type);
    bool ids = event == LLM42_PROMPT_IDS || event == LLM42_TOKENIZED;

    if (s->kind != kind) return broken(c, "%s for another request", name);
    if (wire_read_part(f, &out->part) != 0) return broken(c, "malformed %s", name);
    if (ids && out->part.n_data % 4 != 0) return broken(c, "%s cuts an id in two", name);
    if (kind == SLOT_SUBMIT) {
        if (!s->accepted || !s->echoing || s->echoed)
            return broken(c, "%s that was not asked for", name);
        s->echoed = out->part.last;
    } else if (out->part.last) {
        give(c, s);
    }
    out->kind = event;
    return 1;
}

static int take_error(struct llm42 *c, struct slot *s, const struct wire_frame *f,
                      struct llm42_event *out) {
    struct wire_error *e = &out->error;

    if (wire_read_error(f, e) != 0) return broken(c, "malformed ERROR");
    out->kind = LLM42_ERROR;
    if (s) {
        give(c, s);
    } else {
        broken(c, "the server closes the connection: %s", wire_code_name(e->code));
    }
    return 1;
}

static int take_other(struct llm42 *c, struct slot *s, const struct wire_frame *f,
                      struct llm42_event *out) {
    const char *name = wire_type_name(f->type);

    if (f->type == WIRE_PONG) {
        if (s->kind != SLOT_PING) return broken(c, "PONG for another request");
        if (f->payload_bytes > WIRE_PING_MAX) return broken(c, "malformed PONG");
        out->part =
            (struct wire_prompt){.last = true, .data = f->payload, .n_data = f->payload_bytes};
        out->kind = LLM42_PONG;
        give(c, s);
        return 1;
    }
    if (f->type == WIRE_ADMIN_OK) {
        if (s->kind != SLOT_ADMIN) return broken(c, "ADMIN_OK for another request");
        out->kind = LLM42_ADMIN_OK;
        give(c, s);
        return 1;
    }
    return broken(c, "a frame of type 0x%04x (%s) that a server does not send", f->type, name);
}

/* Judges one frame and fills the event; 1, 0 for a frame that makes none, or -EPIPE. */
static int take_frame(struct llm42 *c, const struct wire_frame *f, struct llm42_event *out) {
    struct slot *s;

    *out = (struct llm42_event){.request = f->request};
    if (f->type == WIRE_HELLO_OK) return take_hello_ok(c, f, out);
    if (f->type == WIRE_ERROR && f->request == 0) return take_error(c, NULL, f, out);
    if (!c->ready) return broken(c, "%s before HELLO_OK", wire_type_name(f->type));
    if (f->type == WIRE_SHUTDOWN) {
        if (f->request != 0 || wire_read_u32(f, &out->shutdown_ms) != 0)
            return broken(c, "malformed SHUTDOWN");
        out->kind = LLM42_SHUTDOWN;
        return 1;
    }
    s = find(c, f->request);
    /* A CANCEL may cross the end of its request, and is then answered by this. */
    if (!s && f->type == WIRE_ERROR) return 0;
    if (!s)
        return broken(c, "%s for request %llu, which is none", wire_type_name(f->type),
                      (unsigned long long)f->request);
    if (f->type == WIRE_ERROR) return take_error(c, s, f, out);
    if (f->type == WIRE_TOKENIZED) return take_part(c, s, f, out, SLOT_TOKENIZE, LLM42_TOKENIZED);
    if (f->type == WIRE_DETOKENIZED)
        return take_part(c, s, f, out, SLOT_DETOKENIZE, LLM42_DETOKENIZED);
    if (f->type == WIRE_INFO_OK) return take_part(c, s, f, out, SLOT_INFO, LLM42_INFO);
    if (f->type == WIRE_PROMPT_IDS) return take_part(c, s, f, out, SLOT_SUBMIT, LLM42_PROMPT_IDS);
    if (s->kind != SLOT_SUBMIT) return take_other(c, s, f, out);
    if (f->type == WIRE_ACCEPTED) return take_accepted(c, s, f, out);
    if (f->type == WIRE_DONE) return take_done(c, s, f, out);
    if (!s->accepted) return broken(c, "%s before ACCEPTED", wire_type_name(f->type));
    if (f->type == WIRE_TOKENS) return take_tokens(c, s, f, out);
    if (f->type == WIRE_LOGPROBS || f->type == WIRE_PROMPT_LOGPROBS)
        return take_logprobs(c, s, f, out);
    return take_other(c, s, f, out);
}

static bool costs_credit(uint16_t type) {
    return type == WIRE_TOKENS || type == WIRE_LOGPROBS || type == WIRE_PROMPT_LOGPROBS;
}

int llm42_next(struct llm42 *c, struct llm42_event *out_event) {
    struct llm42_event e;
    struct wire_frame f;
    int64_t n;
    int r;

    give_credit(c);
    while (!c->broken) {
        /* Before HELLO_OK the default is the limit, after it what was agreed. */
        uint32_t payload_max = c->ready ? c->payload_max : WIRE_PAYLOAD_DEFAULT;

        n = wire_read(c->in + c->in_from, c->in_to - c->in_from, payload_max, &f);
        if (n == -EAGAIN && !c->ended) return 0;
        if (n < 0) {
            c->broken = true;
            if (n == -EBADMSG) snprintf(c->text, sizeof(c->text), "bytes that cannot be a frame");
            break;
        }
        c->in_from += (size_t)n;
        r = take_frame(c, &f, &e);
        if (costs_credit(f.type)) c->taking = (uint32_t)n;
        if (r > 0) {
            *out_event = e;
            return r;
        }
        give_credit(c);
    }
    if (c->broken_told) return 0;
    c->broken_told = true;
    *out_event = (struct llm42_event){.kind = LLM42_BROKEN, .text = c->text};
    return 1;
}
