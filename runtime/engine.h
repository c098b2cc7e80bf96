/* engine - requests in, committed tokens out: continuous batching and decode-verify-rollback.
 *
 * Owns:   the device, the model's tables, KV pages, one slot a request; all memory taken at open.
 * Thread: two sides.  `submit`, `cancel`, `grant`, `next`, `count` belong to the loop thread;
 *         `step` and what it calls to the engine thread (tests use one thread for both sides).
 *         Between them are two rings (queue.h), two atomic words a slot, and the totals.
 * Fails:  as each call says; once a step has failed with -EIO the engine is dead: every live
 *         request has got an ENGINE_FAILED event, later submits give -EIO.
 *
 * A slot's life: submit -> events -> exactly one of ENGINE_DONE, ENGINE_FAILED -> free again.
 * A handle carries a generation, so one that is dead is ignored, never mistaken for another. */
#ifndef LLM42D_RUNTIME_ENGINE_H
#define LLM42D_RUNTIME_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/device.h"
#include "runtime/plan.h"
#include "runtime/sample.h"
#include "runtime/stop.h"

struct err;
struct engine;
struct token;
struct template;

enum {
    ENGINE_STOP_IDS_MAX = 32, /* the request's 16 and the model's end-of-text ids */
    ENGINE_STOP_STRINGS_MAX = STOP_STRINGS_MAX,
    ENGINE_STOP_STRING_BYTES_MAX = STOP_STRING_BYTES_MAX,
    ENGINE_TEXT_BYTES = 352, /* of one event; a longer token's text goes on in the next event */
    ENGINE_DIGEST_BYTES = 32,
    ENGINE_REQUESTS_MAX = 1024,
};

/* How far engine_open is, for another thread to look at. */
struct engine_progress {
    _Atomic uint64_t n_bytes; /* of weights, read */
    _Atomic uint64_t n_all;   /* of them all; 0 before the files are open */
};

struct engine_options {
    const char *model_path;
    struct engine_progress *progress; /* or NULL; of engine_open alone */
    bool round_weights;   /* take fp16 and fp32 weights, rounded; enters the fingerprint */
    uint64_t random_seed; /* weights made up by this seed, SPEC 4.5; 0: the folder's */
    enum plan_policy policy;
    uint32_t window;       /* W, 1 .. DVR_WINDOW_MAX */
    uint32_t group;        /* G, windows in one pass */
    uint32_t max_requests; /* running at once */
    uint32_t max_queue;    /* waiting behind them */
    uint32_t context;      /* 0: the model's */
    uint32_t kv_tokens;    /* positions of KV cache; 0: 16384, or one context if that is more */
    uint32_t step_tokens;  /* rows of a step; prefill takes what decode and verify leave */
    bool fixed_shape;      /* verify passes padded to group x window, as in the paper */
    uint32_t logit_rows;   /* wanted rows of one head, bounds the largest buffer; 0: 32 */
    uint32_t twin_threads; /* of a twin that the device is compared with at open; 0: none */
    /* Experiments (SPEC 5.8); none changes what a deterministic request is answered. */
    bool uncertified;       /* canonical steps certify nothing: every token waits for its window */
    bool unverified;        /* fast schedules alone; deterministic requests are refused */
    enum schedule_set fast; /* of steps that need not be canonical */
    uint32_t mismatch_ppm;  /* of candidates, so many in a million are made wrong */
    bool poison;            /* freed KV pages are filled with NaN patterns (tests) */
};

struct engine_request {
    const uint32_t *prompt; /* copied */
    uint32_t n_prompt;      /* >= 1 */
    uint32_t max_tokens;    /* 0 only with prompt logprobs */
    bool deterministic;
    bool ignore_eos;
    struct sample_params params;
    uint32_t n_stop_ids;
    uint32_t stop_ids[ENGINE_STOP_IDS_MAX]; /* the request's own; end-of-text ids are added */
    uint32_t n_stop_strings;
    struct stop_string stop_strings[ENGINE_STOP_STRINGS_MAX];
    uint32_t n_top; /* most probable ids beside each output token */
    bool prompt_logprobs;
    uint32_t n_prompt_top;
    uint64_t queue_deadline_us, deadline_us; /* CLOCK_MONOTONIC, 0: none */
    uint32_t grant;                          /* token events the loop has room for, to begin with */
};

enum engine_event_kind {
    ENGINE_STARTED,      /* it left the queue: from now on it runs as far as it is granted */
    ENGINE_PROMPT_TOKEN, /* a prompt token's logprob, from the second on */
    ENGINE_TOKEN,        /* a committed output token: never taken back */
    ENGINE_TEXT,         /* more text, without a token; takes a grant as a token does */
    ENGINE_DONE,
    ENGINE_FAILED, /* `code`: -EDOM left the range of the arithmetic, -EIO the device is lost */
};

struct engine_usage {
    uint32_t n_prompt, n_output, n_cached;
    uint32_t verify_passes;
    uint32_t rollbacks;  /* passes that dropped a candidate */
    uint32_t recomputed; /* candidates dropped */
    uint32_t certified;  /* tokens committed without a pass */
    uint64_t queue_us, prefill_us, decode_us, total_us;
};

struct engine_event {
    enum engine_event_kind kind;
    uint64_t handle;
    uint32_t index; /* of the token among the output's, or its position in the prompt */
    uint32_t id;
    float logprob;
    uint32_t n_top;
    uint32_t top_ids[SAMPLE_TOP_MAX];
    float top_logprobs[SAMPLE_TOP_MAX];
    uint32_t n_text; /* whole UTF-8 characters that no stop string can take back */
    uint8_t text[ENGINE_TEXT_BYTES];

    /* DONE */
    uint8_t finish, stop_kind; /* enum wire_finish, wire_stop_kind by value (SPEC 6.9) */
    uint16_t stop_index;
    struct engine_usage usage;
    uint8_t digest[ENGINE_DIGEST_BYTES];
    /* FAILED */
    int code;
    char why[128];
};

struct engine_stats { /* totals since open, read with engine_stats_get from any thread */
    uint64_t steps_canonical, steps_tuned;
    uint64_t steps_same; /* of the canonical: the fast schedule came out as the canonical one */
    uint64_t tokens_prompt, tokens_decoded, tokens_verified, tokens_committed, tokens_discarded;
    uint64_t verify_passes, rollbacks;
    uint64_t requests_done, requests_failed, requests_cancelled;
    uint64_t running, waiting;
    uint64_t kv_pages, kv_pages_free;
    uint64_t last_step_us; /* monotonic time at its end, 0 before the first */
    uint64_t step_us;      /* the same of the begin of the step that the device is at, 0: none */
    uint64_t step_rows;    /* of it */
};

/* Fixed facts, valid until close. */
struct engine_facts {
    struct model model;
    uint32_t context;
    uint8_t fingerprint[ENGINE_DIGEST_BYTES];
    const char *fingerprint_text; /* what was hashed: SPEC 2.13 */
    const struct token *token;
    const struct template *template;
    uint64_t bytes_weights, bytes_kv, bytes_work;
    uint64_t bytes_files;        /* of weights, read; 0: made up */
    uint64_t load_us, digest_us; /* until the device had them; and more until they were hashed */
    char device[128];
    struct engine_options options; /* with defaults filled in */
};

/* Takes `dev` (closed by engine_close, or here on failure), reads the model, takes all memory and
 * runs the self-test.  0 and *out_engine; or what model, weights, token and device give; -EINVAL
 * for options that cannot be; -EPROTO where the self-test did not give equal bits. */
int engine_open(const struct engine_options *o, struct device *dev, struct engine **out_engine,
                struct err *e);
void engine_close(struct engine *g); /* NULL is fine; live requests are dropped without events */
const struct engine_facts *engine_facts_get(const struct engine *g);

/* Loop side.  0 and *out_handle; or, with nothing changed:
 *   -EINVAL   a parameter out of range          -EMSGSIZE  prompt + max_tokens over the context
 *   -ENOSPC   can never fit the KV cache        -EBUSY     all slots taken
 *   -EIO      the device is lost                -ENOTSUP   no verified meaning */
int engine_submit(struct engine *g, const struct engine_request *r, uint64_t *out_handle,
                  struct err *e);
/* Idempotent; a dead handle is ignored.  The answer is an ENGINE_DONE (cancelled), unless the
 * request was done already. */
void engine_cancel(struct engine *g, uint64_t handle);
/* Room for n more token events: without it a request pauses, and nothing else changes. */
void engine_grant(struct engine *g, uint64_t handle, uint32_t n);
/* The next event, or false. */
bool engine_next(struct engine *g, struct engine_event *out_event);
/* Requests submitted and not yet done, as the loop side knows. */
uint32_t engine_count(const struct engine *g);
uint32_t engine_queue_place(const struct engine *g); /* requests waiting before the next one */

/* Engine side: takes commands, runs one step, posts events.  1: there was work; 0: there was
 * none, or all of it is paused; -EIO: the device is lost and every request was told. */
int engine_step(struct engine *g);
/* Sleeps until a command comes or timeout_ms is over. */
void engine_wait(struct engine *g, int timeout_ms);
/* Wakes engine_wait; any thread. */
void engine_wake(struct engine *g);
/* Readable when events wait; the loop polls it, and engine_next clears it. */
int engine_event_fd(const struct engine *g);

void engine_stats_get(const struct engine *g, struct engine_stats *out);

#endif
