/* harness - an engine driven step by step in one thread, and what its requests came to.
 * For engine_test (a toy device) and determinism_test (the twin). */
#ifndef LLM42D_TESTS_HARNESS_H
#define LLM42D_TESTS_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/device_fault.h"
#include "runtime/engine.h"
#include "runtime/err.h"

#define HARNESS_MODEL "tests/data/verse-4m"

enum { HARNESS_TOKENS_MAX = 512, HARNESS_TEXT_MAX = 8192, HARNESS_REQUESTS_MAX = 512 };

/* Numbers from a seed, so that a failure can be run again. */
struct harness_random {
    uint64_t state;
};

static inline uint32_t harness_below(struct harness_random *r, uint32_t n) {
    r->state = r->state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((r->state >> 33) % n);
}

/* What came of a request. */
struct harness_result {
    uint64_t handle;
    bool ended, failed;
    int code;
    uint8_t finish, stop_kind;
    uint16_t stop_index;
    uint8_t digest[32];
    struct engine_usage usage;
    uint32_t n_events; /* those that take a grant */
    uint32_t n_ids, n_prompt;
    uint32_t ids[HARNESS_TOKENS_MAX];
    float logprobs[HARNESS_TOKENS_MAX];
    uint32_t n_text;
    char text[HARNESS_TEXT_MAX];
};

struct harness {
    struct engine *engine;
    struct harness_result *results; /* [HARNESS_REQUESTS_MAX] */
    uint32_t n_results;
    uint32_t n_steps;
    bool auto_grant; /* each event gives back its grant; else the test grants */
};

static inline struct engine_options harness_options(void) {
    return (struct engine_options){.model_path = HARNESS_MODEL,
                                   .policy = PLAN_CANONICAL,
                                   .window = 32,
                                   .group = 8,
                                   .max_requests = 64,
                                   .max_queue = 64,
                                   .context = 512,
                                   .kv_tokens = 16384,
                                   .step_tokens = 64,
                                   .fast = SCHEDULE_STOCK, /* never the canonical one */
                                   .poison = true};
}

static inline void harness_open(struct harness *h, const struct engine_options *o,
                                struct device *dev) {
    struct err e = {.text = ""};
    int r;

    *h = (struct harness){.auto_grant = true};
    h->results = calloc(HARNESS_REQUESTS_MAX, sizeof(h->results[0]));
    assert_non_null(h->results);
    r = engine_open(o, dev, &h->engine, &e);
    if (r < 0) fail_msg("engine_open: %s", e.text);
}

static inline void harness_close(struct harness *h) {
    engine_close(h->engine);
    free(h->results);
}

static inline struct engine_request harness_request(const uint32_t *prompt, uint32_t n_prompt,
                                                    uint32_t max_tokens) {
    return (struct engine_request){.prompt = prompt,
                                   .n_prompt = n_prompt,
                                   .max_tokens = max_tokens,
                                   .deterministic = true,
                                   .params = {.top_p = 1.0f},
                                   .grant = 16};
}

static inline struct harness_result *harness_submit(struct harness *h,
                                                    const struct engine_request *r) {
    struct harness_result *result = &h->results[h->n_results];
    struct err e = {.text = ""};

    assert_true(h->n_results < HARNESS_REQUESTS_MAX);
    memset(result, 0, sizeof(*result));
    if (engine_submit(h->engine, r, &result->handle, &e) < 0) fail_msg("submit: %s", e.text);
    h->n_results++;
    return result;
}

static inline struct harness_result *harness_find(struct harness *h, uint64_t handle) {
    for (uint32_t i = 0; i < h->n_results; i++)
        if (h->results[i].handle == handle && !h->results[i].ended) return &h->results[i];
    fail_msg("an event of a request that is not live");
    return NULL;
}

/* Whole characters, and nothing empty. */
static inline void harness_check_text(const struct engine_event *event) {
    uint32_t at = 0;

    assert_true(event->kind == ENGINE_TOKEN || event->n_text > 0);
    while (at < event->n_text) {
        uint8_t c = event->text[at];

        assert_true(c < 0x80 || (c >= 0xc2 && c <= 0xf4)); /* no middle of a character */
        at += c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    }
    assert_int_equal(at, event->n_text);
}

/* Takes one event in; what must hold for every event is asserted here. */
static inline void harness_take(struct harness *h, const struct engine_event *event) {
    struct harness_result *r = harness_find(h, event->handle);

    switch (event->kind) {
    case ENGINE_STARTED:
        return;
    case ENGINE_PROMPT_TOKEN:
        assert_int_equal(event->index, ++r->n_prompt);
        break;
    case ENGINE_TOKEN:
        assert_int_equal(event->index, r->n_ids);
        assert_true(r->n_ids < HARNESS_TOKENS_MAX);
        r->ids[r->n_ids] = event->id;
        r->logprobs[r->n_ids++] = event->logprob;
        /* fall through */
    case ENGINE_TEXT:
        assert_true(r->n_text + event->n_text < HARNESS_TEXT_MAX);
        harness_check_text(event);
        memcpy(r->text + r->n_text, event->text, event->n_text);
        r->n_text += event->n_text;
        break;
    case ENGINE_DONE:
    case ENGINE_FAILED:
        r->ended = true;
        r->failed = event->kind == ENGINE_FAILED;
        r->code = event->code;
        r->finish = event->finish;
        r->stop_kind = event->stop_kind;
        r->stop_index = event->stop_index;
        r->usage = event->usage;
        memcpy(r->digest, event->digest, sizeof(r->digest));
        assert_int_equal(event->usage.n_output, r->n_ids);
        return;
    }
    r->n_events++;
    if (h->auto_grant) engine_grant(h->engine, event->handle, 1);
}

static inline void harness_drain(struct harness *h) {
    struct engine_event event;

    while (engine_next(h->engine, &event)) harness_take(h, &event);
}

/* One step and its events; what engine_step gives. */
static inline int harness_step(struct harness *h) {
    int r = engine_step(h->engine);

    h->n_steps++;
    harness_drain(h);
    return r;
}

/* Until nothing is live. */
static inline void harness_finish(struct harness *h) {
    for (uint32_t idle = 0; engine_count(h->engine) > 0;) {
        int r = harness_step(h);

        if (r < 0) break;
        idle = r > 0 ? 0 : idle + 1;
        if (idle > 100) fail_msg("requests are live and nothing moves");
    }
    harness_drain(h);
}

/* All is given back. */
static inline void harness_check_idle(const struct harness *h) {
    struct engine_stats s;

    engine_stats_get(h->engine, &s);
    assert_int_equal(s.kv_pages_free, s.kv_pages);
    assert_int_equal(s.running, 0);
    assert_int_equal(s.waiting, 0);
    assert_int_equal(engine_count(h->engine), 0);
}

static inline bool harness_same(const struct harness_result *a, const struct harness_result *b) {
    return a->ended && b->ended && a->failed == b->failed && a->finish == b->finish &&
           a->n_ids == b->n_ids && memcmp(a->digest, b->digest, sizeof(a->digest)) == 0 &&
           a->n_text == b->n_text && memcmp(a->text, b->text, a->n_text) == 0;
}

/* Where two outputs part, for a message. */
static inline const char *harness_difference(const struct harness_result *a,
                                             const struct harness_result *b) {
    static char text[256];

    for (uint32_t i = 0; i < a->n_ids && i < b->n_ids; i++) {
        if (a->ids[i] == b->ids[i] && memcmp(&a->logprobs[i], &b->logprobs[i], sizeof(float)) == 0)
            continue;
        (void)snprintf(text, sizeof(text), "output %u: id %u logprob %a, and id %u logprob %a", i,
                       a->ids[i], (double)a->logprobs[i], b->ids[i], (double)b->logprobs[i]);
        return text;
    }
    (void)snprintf(text, sizeof(text), "%u and %u ids, %u and %u bytes of text, finish %u and %u",
                   a->n_ids, b->n_ids, a->n_text, b->n_text, a->finish, b->finish);
    return text;
}

#endif
