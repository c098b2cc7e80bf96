/* request - one request of one connection, from its SUBMIT to the last frame of its answer.
 *
 * Owns:   its prompt until the engine has it, its place among the live ones, its answer until sent.
 * Thread: the loop's.
 *
 * COLLECT (prompt on its way) -> LIVE (in the engine) -> FINAL (over, its last frame waits for
 * room) -> freed.  A connection that goes leaves its LIVE requests behind without an owner until
 * the engine has said the last word about them; whatever else it says is dropped.
 * Every request that got ACCEPTED gets exactly one DONE or ERROR; one refused before gets ERROR. */
#ifndef LLM42D_DAEMON_REQUEST_H
#define LLM42D_DAEMON_REQUEST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/admit.h"
#include "daemon/out.h"
#include "daemon/wire.h"
#include "runtime/engine.h"

struct config;
struct request;

enum {
    REQUEST_PROMPTS_BYTES_MAX = 64 << 20, /* on their way, all connections together */
    REQUEST_BATCH_TOKENS = 64,            /* of one frame */
    REQUEST_BATCH_TEXT_BYTES = 2048,
    REQUEST_GRANT_MAX = 128, /* events granted and not yet come, where the share allows it */
};

/* Events of one request in a row, on their way to become one frame of each kind. */
struct request_batch {
    struct request *of; /* NULL: empty */
    bool of_prompt;
    uint32_t first, n_tokens, n_events, n_text;
    uint32_t ids[REQUEST_BATCH_TOKENS];
    struct wire_logprob records[REQUEST_BATCH_TOKENS * (1 + SAMPLE_TOP_MAX)];
    uint8_t text[REQUEST_BATCH_TEXT_BYTES + ENGINE_TEXT_BYTES];
};

/* What all requests and connections share. */
struct serve {
    const struct config *config;
    struct engine *engine;
    const struct engine_facts *facts;
    uint64_t epoch, started_us;
    bool draining, lost;

    struct request **live; /* the engine's, [live_max] */
    uint32_t n_live, live_max;
    uint64_t server_id; /* of the last request */
    uint64_t prompts_bytes;
    uint32_t *ids; /* scratch [context] */
    struct request_batch batch;
    uint32_t n_conns;
};

/* A connection's side that requests use. */
struct request_owner {
    struct serve *serve;
    struct out out;
    uint64_t number;
    uid_t uid;
    uint32_t payload_max;
    struct request **requests; /* [requests_max] */
    uint32_t n_requests, requests_max;
    uint32_t turn; /* whose grant comes first */
    bool starved;  /* a request stands still for want of credit or room */
};

int request_serve_open(struct serve *s, const struct config *config, struct engine *engine,
                       uint64_t now_us);
void request_serve_close(struct serve *s);
/* Takes every event that waits; connections are to be pumped afterwards. */
void request_serve_events(struct serve *s);
/* Cancels a live request by its server id: false where there is none. */
bool request_serve_cancel(struct serve *s, uint64_t server_id);
struct admit_limits request_serve_limits(const struct serve *s);

struct request *request_find(const struct request_owner *o, uint64_t id);
/* Begins one.  0, or -EINVAL and the refusal. */
int request_begin(struct request_owner *o, uint64_t id, const struct wire_submit *s,
                  uint64_t now_us, struct admit_refusal *out_refusal);
/* Takes a part of the prompt; after the last one the engine has the request and ACCEPTED is put.
 * 0, or -EINVAL and the refusal, and the request is gone; -EALREADY: its prompt is complete;
 * -ECANCELED: it is over, and only its last frame waits. */
int request_prompt(struct request_owner *o, struct request *r, const struct wire_prompt *p,
                   uint64_t now_us, struct admit_refusal *out_refusal);
/* When request_expire is to be called next, for prompts that are not whole. */
uint64_t request_due_us(const struct request_owner *o);
/* Ends those whose deadline is over (they get DONE); false: a prompt has stood still for
 * slow_client_timeout, and so has its connection. */
bool request_expire(struct request_owner *o, uint64_t now_us);
/* Idempotent; answered by DONE (cancelled) unless it is over already. */
void request_cancel(struct request_owner *o, struct request *r);
/* Events that one of n_takers (1 and more) may have on their way: an equal part of half of the
 * connection's budget, so that those who come later find some, at least 1, at most
 * REQUEST_GRANT_MAX. */
uint32_t request_share(uint64_t budget, uint32_t n_takers, uint32_t event_bytes);
/* Sends what waited for room, grants what there is credit for. */
void request_pump(struct request_owner *o);
/* The client will send nothing more: prompts that are not whole never will be.  They are dropped. */
void request_no_more(struct request_owner *o);
/* The connection is going: all its requests are cancelled.  With `tell` each one that the client
 * knows of is told the refusal as its last frame. */
void request_drop_all(struct request_owner *o, const struct admit_refusal *tell);

/* An ERROR frame for request `id` (0: the connection), false where there is no room. */
bool request_error(struct out *o, uint64_t id, const struct admit_refusal *f);

#endif
