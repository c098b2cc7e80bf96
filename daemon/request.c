#include "daemon/request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "daemon/config.h"
#include "daemon/log.h"
#include "runtime/assert.h"
#include "runtime/err.h"
#include "runtime/sha256.h"

_Static_assert((int)WIRE_POLICY_CANONICAL == (int)PLAN_CANONICAL, "policies, by value");
_Static_assert((int)WIRE_POLICY_TUNED == (int)PLAN_TUNED, "policies, by value");
_Static_assert((int)WIRE_POLICY_AUTO == (int)PLAN_AUTO, "policies, by value");

enum state { COLLECT, LIVE, FINAL };

/* Bytes of the frames that carry one event's worth, at most: SPEC 6.8. */
enum {
    TOKENS_FRAME_BYTES = WIRE_HEADER_BYTES + 12,
    LOGPROBS_FRAME_BYTES = WIRE_HEADER_BYTES + 12,
    RECORD_BYTES = 8,
    PART_FRAME_BYTES = WIRE_HEADER_BYTES + 4,
};

struct request {
    enum state state;
    struct request_owner *owner; /* NULL: it has gone */
    uint64_t id, server_id, handle;
    uid_t uid;
    uint64_t conn;
    bool cancelled; /* the engine was told */

    /* COLLECT */
    struct wire_submit submit; /* its strings are in ask */
    struct engine_request *ask;
    uint8_t *prompt;
    uint32_t n_prompt_bytes;
    uint64_t moved_us; /* when the last part came */

    /* LIVE */
    bool ids_only;
    uint32_t n_top, n_prompt_top;
    bool logprobs;
    bool started;         /* it left the engine's queue: before, a grant would only lie about */
    uint32_t event_bytes; /* of its frames, at the worst */
    uint32_t n_granted;   /* events still to come */
    uint32_t n_output;    /* tokens come */
    uint32_t *echo;       /* PROMPT_IDS still to be sent */
    uint32_t n_echo, echo_at;

    /* FINAL */
    bool failed;
    struct wire_done done;
    struct admit_refusal refusal;
};

/* ---- what all share ---- */

int request_serve_open(struct serve *s, const struct config *config, struct engine *engine,
                       uint64_t now_us) {
    const struct engine_facts *f = engine_facts_get(engine);

    *s = (struct serve){.config = config,
                        .engine = engine,
                        .facts = f,
                        .started_us = now_us,
                        .live_max = ENGINE_REQUESTS_MAX};
    s->live = calloc(s->live_max, sizeof(*s->live));
    s->ids = calloc(f->context, sizeof(*s->ids));
    if (!s->live || !s->ids || getrandom(&s->epoch, sizeof(s->epoch), 0) < 0) {
        request_serve_close(s);
        return -ENOMEM;
    }
    return 0;
}

static void request_free(struct request *r) {
    free(r->ask);
    free(r->prompt);
    free(r->echo);
    free(r);
}

void request_serve_close(struct serve *s) {
    for (uint32_t i = 0; i < s->n_live; i++) {
        ASSERT(!s->live[i]->owner);
        request_free(s->live[i]);
    }
    free(s->live);
    free(s->ids);
    *s = (struct serve){0};
}

struct admit_limits request_serve_limits(const struct serve *s) {
    return (struct admit_limits){.token = s->facts->token,
                                 .context = s->facts->context,
                                 .vocab = s->facts->model.vocab,
                                 .text_bytes_max = s->config->max_text_bytes,
                                 .prompts_bytes_left = REQUEST_PROMPTS_BYTES_MAX - s->prompts_bytes,
                                 .draining = s->draining,
                                 .lost = s->lost};
}

bool request_serve_cancel(struct serve *s, uint64_t server_id) {
    for (uint32_t i = 0; i < s->n_live; i++)
        if (s->live[i]->server_id == server_id) {
            s->live[i]->cancelled = true;
            engine_cancel(s->engine, s->live[i]->handle);
            return true;
        }
    return false;
}

/* The live request of a handle; NULL for one that nobody knows any more. */
static struct request *live_find(const struct serve *s, uint64_t handle) {
    for (uint32_t i = 0; i < s->n_live; i++)
        if (s->live[i]->handle == handle) return s->live[i];
    return NULL;
}

static void live_remove(struct serve *s, const struct request *r) {
    for (uint32_t i = 0; i < s->n_live; i++)
        if (s->live[i] == r) {
            s->live[i] = s->live[--s->n_live];
            return;
        }
    ASSERT(false); /* a live request is in the list */
}

/* ---- frames ---- */

bool request_error(struct out *o, uint64_t id, const struct admit_refusal *f) {
    uint8_t class = wire_code_class(f->code);
    struct wire_error e = {.code = f->code,
                           .class = class,
                           .retry_100ms = class == WIRE_CLASS_BUSY ? 5 : 0,
                           .field = f->field,
                           .text = f->text,
                           .n_text = (uint32_t)strnlen(f->text, WIRE_ERROR_TEXT_MAX)};
    size_t n_max;
    uint8_t *p = out_tail(o, &n_max);
    size_t n;

    /* A text cut in the middle of a character would not be UTF-8. */
    while (e.n_text == sizeof(f->text) - 1 && e.n_text > 0 &&
           ((uint8_t)f->text[e.n_text - 1] & 0x80))
        e.n_text--;
    n = wire_write_error(p, n_max, id, &e);
    out_put(o, n);
    return n != 0;
}

/* Writes the batch as frames.  Their room and credit were reserved event by event. */
static void batch_flush(struct serve *s) {
    struct request_batch *b = &s->batch;
    struct request *r = b->of;
    size_t n_max, n, n_sum = 0;

    b->of = NULL;
    if (!r) return;
    struct request_owner *o = r->owner;
    if (!o) return;
    ASSERT(b->n_events <= r->n_granted);
    r->n_granted -= b->n_events;
    out_release(&o->out, (uint64_t)b->n_events * r->event_bytes);
    if (!b->of_prompt && (b->n_tokens || b->n_text)) {
        uint8_t *p = out_tail(&o->out, &n_max);
        n = wire_write_tokens(p, n_max, r->id, b->first, b->ids, b->n_tokens, b->text, b->n_text);
        ASSERT(n > 0);
        out_put(&o->out, n);
        n_sum += n;
    }
    if (b->n_tokens && (b->of_prompt || r->logprobs)) {
        uint8_t *p = out_tail(&o->out, &n_max);
        n = wire_write_logprobs(p, n_max, b->of_prompt ? WIRE_PROMPT_LOGPROBS : WIRE_LOGPROBS,
                                r->id, b->first, b->records, b->n_tokens,
                                (uint16_t)(b->of_prompt ? r->n_prompt_top : r->n_top));
        ASSERT(n > 0);
        out_put(&o->out, n);
        n_sum += n;
    }
    out_spend(&o->out, n_sum);
}

/* Whether one more event of r fits behind what the batch holds: same request and kind, tokens in
 * a row, and frames within the connection's payload. */
static bool batch_fits(const struct request_batch *b, const struct request *r,
                       const struct engine_event *e) {
    bool of_prompt = e->kind == ENGINE_PROMPT_TOKEN;
    uint32_t n_top = of_prompt ? r->n_prompt_top : r->n_top;
    uint32_t payload_max = r->owner ? r->owner->payload_max : WIRE_PAYLOAD_MIN;

    if (b->of != r || b->of_prompt != of_prompt) return false;
    if (b->n_tokens == REQUEST_BATCH_TOKENS || b->n_text > REQUEST_BATCH_TEXT_BYTES) return false;
    if (e->kind != ENGINE_TEXT && b->n_tokens && e->index != b->first + b->n_tokens) return false;
    if (12 + (b->n_tokens + 1) * RECORD_BYTES * (1 + n_top) > payload_max) return false;
    return 12 + 4 * (b->n_tokens + 1) + b->n_text + e->n_text <= payload_max;
}

static void batch_add(struct serve *s, struct request *r, const struct engine_event *e) {
    struct request_batch *b = &s->batch;
    bool of_prompt = e->kind == ENGINE_PROMPT_TOKEN;
    uint32_t n_top = of_prompt ? r->n_prompt_top : r->n_top;

    if (!batch_fits(b, r, e)) {
        batch_flush(s);
        b->of = r;
        b->of_prompt = of_prompt;
        b->first = e->kind == ENGINE_TEXT ? r->n_output : e->index;
        b->n_tokens = b->n_events = b->n_text = 0;
    }
    b->n_events++;
    if (e->kind != ENGINE_TEXT) {
        struct wire_logprob *w = b->records + (size_t)b->n_tokens * (1 + n_top);

        if (b->n_tokens == 0) b->first = e->index;
        if (e->kind == ENGINE_TOKEN) r->n_output = e->index + 1;
        b->ids[b->n_tokens++] = e->id;
        w->id = e->id;
        memcpy(&w->bits, &e->logprob, 4);
        for (uint32_t i = 0; i < n_top; i++) {
            w[1 + i].id = e->top_ids[i];
            memcpy(&w[1 + i].bits, &e->top_logprobs[i], 4);
        }
    }
    if (!r->ids_only) {
        ASSERT(e->n_text <= ENGINE_TEXT_BYTES);
        memcpy(b->text + b->n_text, e->text, e->n_text);
        b->n_text += e->n_text;
    }
}

/* ---- the end of a request ---- */

static void log_end(const struct serve *s, const struct request *r) {
    const struct wire_done *d = &r->done;

    log_request_end(&(struct log_request){
        .server_id = r->server_id,
        .request = r->id,
        .conn = r->conn,
        .uid = r->uid,
        .finish = r->failed ? wire_code_name(r->refusal.code) : wire_finish_name(d->finish),
        .why = r->failed ? r->refusal.text : "",
        .n_prompt = d->n_prompt,
        .n_output = d->n_output,
        .n_cached = d->n_cached,
        .verify_passes = d->verify_passes,
        .rollbacks = d->rollbacks,
        .recomputed = d->recomputed,
        .certified = d->certified,
        .queue_us = d->queue_us,
        .prefill_us = d->prefill_us,
        .decode_us = d->decode_us,
        .total_us = d->total_us,
        .deterministic = r->submit.flags & WIRE_SUBMIT_DETERMINISTIC,
        .digest = r->failed ? NULL : d->digest,
        .fingerprint = s->facts->fingerprint});
}

static void owner_remove(struct request_owner *o, const struct request *r) {
    for (uint32_t i = 0; i < o->n_requests; i++)
        if (o->requests[i] == r) {
            o->requests[i] = o->requests[--o->n_requests];
            return;
        }
    ASSERT(false); /* a request is in its owner's list */
}

static void prompt_free(struct serve *s, struct request *r) {
    if (r->prompt) s->prompts_bytes -= r->submit.prompt_bytes;
    free(r->prompt);
    free(r->ask);
    r->prompt = NULL;
    r->ask = NULL;
}

/* Gives back what the engine was granted and will not use. */
static void grants_end(struct request *r) {
    if (r->owner) out_release(&r->owner->out, (uint64_t)r->n_granted * r->event_bytes);
    r->n_granted = 0;
}

static void done_of(const struct serve *s, const struct engine_event *e, struct wire_done *d) {
    const struct engine_usage *u = &e->usage;

    *d = (struct wire_done){.finish = e->finish,
                            .stop_kind = e->stop_kind,
                            .stop_index = e->stop_index,
                            .n_prompt = u->n_prompt,
                            .n_output = u->n_output,
                            .n_cached = u->n_cached,
                            .verify_passes = u->verify_passes,
                            .rollbacks = u->rollbacks,
                            .recomputed = u->recomputed,
                            .certified = u->certified,
                            .queue_us = u->queue_us,
                            .prefill_us = u->prefill_us,
                            .decode_us = u->decode_us,
                            .total_us = u->total_us};
    memcpy(d->digest, e->digest, sizeof(d->digest));
    memcpy(d->fingerprint, s->facts->fingerprint, sizeof(d->fingerprint));
}

static void end_event(struct serve *s, struct request *r, const struct engine_event *e) {
    struct err why = {{0}};

    r->failed = e->kind == ENGINE_FAILED;
    if (r->failed) {
        (void)snprintf(why.text, sizeof(why.text), "%s", e->why);
        (void)admit_engine(e->code, &why, &r->refusal);
    }
    done_of(s, e, &r->done);
    live_remove(s, r);
    grants_end(r);
    r->state = FINAL;
    /* Once, here, whether or not there is somebody left to read the answer. */
    log_end(s, r);
    if (!r->owner) request_free(r);
}

void request_serve_events(struct serve *s) {
    struct engine_event e;

    while (engine_next(s->engine, &e)) {
        struct request *r = live_find(s, e.handle);

        if (!r) continue;
        if (e.kind == ENGINE_DONE || e.kind == ENGINE_FAILED) {
            if (s->batch.of == r) batch_flush(s);
            end_event(s, r, &e);
        } else if (e.kind == ENGINE_STARTED) {
            r->started = true;
        } else if (r->owner) {
            batch_add(s, r, &e);
        }
    }
    batch_flush(s);
}

/* PROMPT_IDS as far as there is room: true when none is left. */
static bool echo_pump(struct request_owner *o, struct request *r) {
    while (r->echo) {
        size_t room = out_room(&o->out), n_max, n;
        uint32_t n_ids = r->n_echo - r->echo_at;
        uint32_t n_fit = (o->payload_max - 4) / 4;

        if (room < OUT_FRAME_BYTES) return false;
        if (n_fit > (room - PART_FRAME_BYTES) / 4) n_fit = (uint32_t)(room - PART_FRAME_BYTES) / 4;
        if (n_ids > n_fit) n_ids = n_fit;
        struct wire_prompt part = {.last = r->echo_at + n_ids == r->n_echo,
                                   .data = (const uint8_t *)(r->echo + r->echo_at),
                                   .n_data = 4 * n_ids};
        uint8_t *p = out_tail(&o->out, &n_max);
        n = wire_write_part(p, n_max, WIRE_PROMPT_IDS, r->id, &part);
        ASSERT(n > 0);
        out_put(&o->out, n);
        r->echo_at += n_ids;
        if (part.last) {
            free(r->echo);
            r->echo = NULL;
        }
    }
    return true;
}

/* The last frame, as soon as there is room: true when it was put and the request is gone. */
static bool final_pump(struct request_owner *o, struct request *r) {
    size_t n_max, n;

    if (!out_ready(&o->out)) return false;
    if (r->failed) {
        (void)request_error(&o->out, r->id, &r->refusal);
    } else {
        uint8_t *p = out_tail(&o->out, &n_max);
        n = wire_write_done(p, n_max, r->id, &r->done);
        ASSERT(n > 0);
        out_put(&o->out, n);
    }
    owner_remove(o, r);
    request_free(r);
    return true;
}

/* Whether events of r are to come: what waits in the engine's queue must not hold what those that
 * run need. */
static bool takes_grants(const struct request *r) {
    return r->state == LIVE && !r->echo && r->started;
}

uint32_t request_share(uint64_t budget, uint32_t n_takers, uint32_t event_bytes) {
    const uint64_t n = budget / 2 / n_takers / event_bytes;

    return n < 1 ? 1 : n > REQUEST_GRANT_MAX ? REQUEST_GRANT_MAX : (uint32_t)n;
}

/* Up to its share again where less than half of it is left: false if it stands still. */
static bool grant_pump(struct request_owner *o, struct request *r, uint64_t budget,
                       uint32_t n_takers) {
    const uint32_t share = request_share(budget, n_takers, r->event_bytes);
    uint32_t n;

    if (r->n_granted > share / 2) return true;
    n = share - r->n_granted;
    while (n && !out_reserve(&o->out, (uint64_t)n * r->event_bytes)) n /= 2;
    if (n == 0) return r->n_granted > 0;
    r->n_granted += n;
    engine_grant(o->serve->engine, r->handle, n);
    return true;
}

void request_pump(struct request_owner *o) {
    const uint64_t budget = out_budget(&o->out);
    uint32_t n_takers = 0;

    /* A request that goes is replaced by the last of the list, which is looked at next. */
    for (uint32_t i = 0; i < o->n_requests;) {
        struct request *r = o->requests[i];
        bool gone = r->state != COLLECT && echo_pump(o, r) && r->state == FINAL && final_pump(o, r);

        if (!gone) i++;
    }
    o->starved = false;
    for (uint32_t i = 0; i < o->n_requests; i++) n_takers += takes_grants(o->requests[i]);
    for (uint32_t i = 0; i < o->n_requests; i++) {
        const uint32_t at = (o->turn + i) % o->n_requests;
        struct request *r = o->requests[at];

        if (!takes_grants(r) || grant_pump(o, r, budget, n_takers)) continue;
        o->starved = true;
        /* It is next: what comes back is not for those behind it, whose events may be smaller. */
        if (r->event_bytes > budget) continue;
        o->turn = at;
        return;
    }
    if (o->n_requests) o->turn = (o->turn + 1) % o->n_requests;
}

/* ---- the beginning ---- */

struct request *request_find(const struct request_owner *o, uint64_t id) {
    for (uint32_t i = 0; i < o->n_requests; i++)
        if (o->requests[i]->id == id) return o->requests[i];
    return NULL;
}

static uint32_t event_bytes_of(const struct wire_submit *s) {
    uint32_t token = TOKENS_FRAME_BYTES + 4 + ENGINE_TEXT_BYTES;
    uint32_t prompt = 0;

    if (s->logprobs) token += LOGPROBS_FRAME_BYTES + (uint32_t)RECORD_BYTES * s->logprobs;
    if (s->prompt_logprobs)
        prompt = LOGPROBS_FRAME_BYTES + (uint32_t)RECORD_BYTES * s->prompt_logprobs;
    return token > prompt ? token : prompt;
}

int request_begin(struct request_owner *o, uint64_t id, const struct wire_submit *s,
                  uint64_t now_us, struct admit_refusal *out_refusal) {
    struct serve *serve = o->serve;
    struct admit_limits l = request_serve_limits(serve);
    struct request *r = NULL;

    if (id == 0)
        return admit_refuse(out_refusal, WIRE_E_FIELD, WIRE_F_NONE, "a request's id is not 0");
    l.requests_left = o->requests_max - o->n_requests;
    if (admit_submit(s, &l, out_refusal) < 0) return -EINVAL;

    r = calloc(1, sizeof(*r));
    if (r) r->ask = calloc(1, sizeof(*r->ask));
    if (r && r->ask) r->prompt = malloc(s->prompt_bytes);
    if (!r || !r->prompt) {
        if (r) request_free(r);
        return admit_refuse(out_refusal, WIRE_E_INTERNAL, WIRE_F_NONE, "out of memory");
    }
    r->state = COLLECT;
    r->owner = o;
    r->id = id;
    r->uid = o->uid;
    r->conn = o->number;
    r->submit = *s;
    r->ids_only = s->flags & WIRE_SUBMIT_IDS_ONLY;
    r->logprobs = s->logprobs != 0;
    r->n_top = s->logprobs ? s->logprobs - 1u : 0;
    r->n_prompt_top = s->prompt_logprobs ? s->prompt_logprobs - 1u : 0;
    r->event_bytes = event_bytes_of(s);
    admit_request(s, now_us, r->ask);
    r->moved_us = now_us;
    serve->prompts_bytes += s->prompt_bytes;
    o->requests[o->n_requests++] = r;
    return 0;
}

static void accepted_put(struct request_owner *o, const struct request *r, uint32_t queue_place) {
    const struct engine_facts *f = o->serve->facts;
    const struct wire_submit *s = &r->submit;
    size_t n_max, n;
    uint8_t *p = out_tail(&o->out, &n_max);
    struct wire_accepted a = {
        .server_id = r->server_id,
        .flags = s->flags,
        .max_tokens = s->max_tokens,
        .seed = r->ask->params.seed,
        .temperature = s->temperature,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .top_k = s->top_k,
        .n_prompt = r->ask->n_prompt,
        .queue_place = queue_place,
        .logprobs = s->logprobs,
        .prompt_logprobs = s->prompt_logprobs,
        .n_stop_ids = s->n_stop_ids + (s->flags & WIRE_SUBMIT_IGNORE_EOS ? 0 : f->model.n_eos),
        .policy = (uint8_t)f->options.policy,
        .window = f->options.window};

    n = wire_write_accepted(p, n_max, r->id, &a);
    ASSERT(n > 0);
    out_put(&o->out, n);
}

/* The prompt is whole: ids of it, then the engine.  0 or the refusal. */
static int request_start(struct request_owner *o, struct request *r,
                         struct admit_refusal *out_refusal) {
    struct serve *s = o->serve;
    struct admit_limits l = request_serve_limits(s);
    struct err e = {{0}};
    uint32_t place = engine_queue_place(s->engine);
    int64_t n = r->n_prompt_bytes / 4;
    int res;

    if (r->submit.prompt_kind == WIRE_PROMPT_KIND_IDS)
        res = admit_ids(r->prompt, (uint32_t)n, &l, WIRE_F_IDS, s->ids, out_refusal);
    else
        res =
            (int)(n = admit_text(s->facts->template, r->submit.prompt_kind, r->submit.flags,
                                 r->prompt, r->n_prompt_bytes, &l, s->ids, l.context, out_refusal));
    if (res < 0) return -EINVAL;
    if (n == 0) return admit_refuse(out_refusal, WIRE_E_PROMPT, WIRE_F_PROMPT, "an empty prompt");
    if ((uint64_t)n + r->submit.max_tokens > l.context)
        return admit_refuse(out_refusal, WIRE_E_TOO_LONG, WIRE_F_MAX_TOKENS,
                            "prompt of %u tokens and max_tokens %u, the context has %u positions",
                            (uint32_t)n, r->submit.max_tokens, l.context);
    r->ask->prompt = s->ids;
    r->ask->n_prompt = (uint32_t)n;
    if (r->ask->params.top_k > l.vocab) r->ask->params.top_k = 0; /* SPEC 6.5: all are kept */
    if (!(r->submit.flags & WIRE_SUBMIT_SEED) && r->submit.temperature > 0) {
        uint64_t seed;

        if (getrandom(&seed, sizeof(seed), 0) < 0)
            return admit_refuse(out_refusal, WIRE_E_INTERNAL, WIRE_F_SEED, "no random seed");
        /* Below 2^53: whoever writes it down as a JSON number can send it again (SPEC 6.5). */
        r->ask->params.seed = seed >> 11;
    }
    if (r->submit.flags & WIRE_SUBMIT_ECHO_IDS) {
        r->echo = malloc((size_t)n * 4);
        if (!r->echo)
            return admit_refuse(out_refusal, WIRE_E_INTERNAL, WIRE_F_NONE, "out of memory");
        memcpy(r->echo, s->ids, (size_t)n * 4);
        r->n_echo = (uint32_t)n;
    }
    if (s->n_live == s->live_max)
        return admit_refuse(out_refusal, WIRE_E_BUSY, WIRE_F_NONE, "all slots are taken");
    res = engine_submit(s->engine, r->ask, &r->handle, &e);
    if (res < 0) return admit_engine(res, &e, out_refusal);
    r->server_id = ++s->server_id;
    s->live[s->n_live++] = r;
    accepted_put(o, r, place);
    r->done.n_prompt = (uint32_t)n;
    return 0;
}

int request_prompt(struct request_owner *o, struct request *r, const struct wire_prompt *p,
                   uint64_t now_us, struct admit_refusal *out_refusal) {
    struct serve *s = o->serve;
    int res = 0;

    if (r->state != COLLECT) return r->state == FINAL ? -ECANCELED : -EALREADY;
    r->moved_us = now_us;
    if (p->n_data > r->submit.prompt_bytes - r->n_prompt_bytes)
        res = admit_refuse(out_refusal, WIRE_E_PROMPT, WIRE_F_PROMPT,
                           "more than the %u bytes announced", r->submit.prompt_bytes);
    else if (p->last && p->n_data < r->submit.prompt_bytes - r->n_prompt_bytes)
        res =
            admit_refuse(out_refusal, WIRE_E_PROMPT, WIRE_F_PROMPT, "%u bytes of the %u announced",
                         r->n_prompt_bytes + p->n_data, r->submit.prompt_bytes);
    if (res == 0) {
        memcpy(r->prompt + r->n_prompt_bytes, p->data, p->n_data);
        r->n_prompt_bytes += p->n_data;
        if (!p->last) return 0;
        res = request_start(o, r, out_refusal);
        if (res == 0 && s->config->payload && r->submit.prompt_kind != WIRE_PROMPT_KIND_IDS)
            log_prompt(r->server_id, (const char *)r->prompt, r->n_prompt_bytes);
    }
    prompt_free(s, r);
    if (res == 0) {
        r->state = LIVE;
        return 0;
    }
    owner_remove(o, r);
    request_free(r);
    return res;
}

/* A request whose prompt never came whole has no place in the engine: its digest is that of no
 * record (SPEC 2.12). */
static void end_collecting(struct request_owner *o, struct request *r, uint8_t finish) {
    uint8_t text[18] = "llm42 digest v1\0\3";

    text[17] = finish;
    prompt_free(o->serve, r);
    r->done = (struct wire_done){.finish = finish};
    sha256_of(text, sizeof(text), r->done.digest);
    memcpy(r->done.fingerprint, o->serve->facts->fingerprint, sizeof(r->done.fingerprint));
    r->state = FINAL;
}

void request_cancel(struct request_owner *o, struct request *r) {
    if (r->state == COLLECT) {
        end_collecting(o, r, WIRE_FINISH_CANCELLED);
    } else if (r->state == LIVE && !r->cancelled) {
        r->cancelled = true;
        engine_cancel(o->serve->engine, r->handle);
    }
}

/* When this prompt's time is over: its deadline, or the end of the client's. */
static uint64_t collect_until(const struct request_owner *o, const struct request *r) {
    const struct engine_request *ask = r->ask;
    uint64_t until = r->moved_us + 1000ull * o->serve->config->slow_client_timeout_ms;

    if (ask->deadline_us && ask->deadline_us < until) until = ask->deadline_us;
    if (ask->queue_deadline_us && ask->queue_deadline_us < until) until = ask->queue_deadline_us;
    return until;
}

uint64_t request_due_us(const struct request_owner *o) {
    uint64_t due = UINT64_MAX;

    for (uint32_t i = 0; i < o->n_requests; i++)
        if (o->requests[i]->state == COLLECT && collect_until(o, o->requests[i]) < due)
            due = collect_until(o, o->requests[i]);
    return due;
}

bool request_expire(struct request_owner *o, uint64_t now_us) {
    bool in_time = true;

    for (uint32_t i = 0; i < o->n_requests; i++) {
        struct request *r = o->requests[i];

        if (r->state != COLLECT || now_us < collect_until(o, r)) continue;
        if (now_us >= r->moved_us + 1000ull * o->serve->config->slow_client_timeout_ms)
            in_time = false;
        else
            end_collecting(o, r, WIRE_FINISH_DEADLINE);
    }
    return in_time;
}

void request_no_more(struct request_owner *o) {
    for (uint32_t i = 0; i < o->n_requests;) {
        struct request *r = o->requests[i];

        if (r->state != COLLECT) {
            i++;
            continue;
        }
        prompt_free(o->serve, r);
        owner_remove(o, r);
        request_free(r);
    }
}

void request_drop_all(struct request_owner *o, const struct admit_refusal *tell) {
    while (o->n_requests) {
        struct request *r = o->requests[--o->n_requests];

        if (tell && out_ready(&o->out) && r->state != FINAL)
            (void)request_error(&o->out, r->id, tell);
        if (r->state != LIVE) {
            prompt_free(o->serve, r);
            request_free(r);
            continue;
        }
        if (o->serve->batch.of == r) o->serve->batch.of = NULL;
        grants_end(r);
        r->owner = NULL;
        if (!r->cancelled) engine_cancel(o->serve->engine, r->handle);
        r->cancelled = true;
    }
}
