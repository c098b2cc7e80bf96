#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/engine_impl.h"
#include "runtime/kv.h"
#include "runtime/num.h"
#include "runtime/token.h"

/* SPEC 2.12: the kinds of records, and 6.9: why an output ended. */
enum { DIGEST_PROMPT = 1, DIGEST_OUTPUT = 2, DIGEST_FINISH = 3 };
enum { FINISH_STOP = 1, FINISH_LENGTH = 2 };
enum { STOP_NONE, STOP_ID, STOP_STRING };

static void digest_start(struct sha256 *s) {
    sha256_start(s);
    sha256_add(s, "llm42 digest v1", 16); /* its zero too */
}

static void put_u32(uint8_t *to, uint32_t value) {
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(value >> 8 * i);
}

static void digest_record(struct sha256 *s, const struct record *r) {
    uint8_t bytes[11 + 8 * SAMPLE_TOP_MAX];

    bytes[0] = r->prompt ? DIGEST_PROMPT : DIGEST_OUTPUT;
    put_u32(bytes + 1, r->id);
    put_u32(bytes + 5, num_bits(r->logprob));
    bytes[9] = (uint8_t)r->n_top;
    bytes[10] = 0;
    for (uint32_t i = 0; i < r->n_top; i++) {
        put_u32(bytes + 11 + 8 * i, r->top_ids[i]);
        put_u32(bytes + 15 + 8 * i, num_bits(r->top_logprobs[i]));
    }
    sha256_add(s, bytes, 11 + 8 * r->n_top);
}

static void digest_end(struct sha256 *s, uint8_t finish, uint8_t out[SHA256_BYTES]) {
    uint8_t bytes[2] = {DIGEST_FINISH, finish};

    sha256_add(s, bytes, sizeof(bytes));
    sha256_end(s, out);
}

void lane_start(struct engine *g, struct lane *lane, struct slot *slot) {
    const struct engine_request *r = &slot->request;

    ASSERT(!lane->slot && lane->n_pages == 0);

    lane->slot = slot;
    lane->seq = dvr_start(slot->tokens, r->n_prompt, r->max_tokens, r->deterministic);
    lane->age = 0;
    lane->n_records = lane->next_record = 0;
    lane->stalled = lane->closing = false;
    lane->text = (struct stop_text){.strings = r->stop_strings, .n_strings = r->n_stop_strings};
    lane->n_out = lane->next_out = 0;
    lane->n_events = 0;
    lane->finish = lane->stop_kind = 0;
    lane->stop_index = 0;
    lane->failed = 0;
    lane->usage = (struct engine_usage){.n_prompt = r->n_prompt};
    lane->start_us = engine_clock_us();
    lane->first_us = 0;
    lane->usage.queue_us = lane->start_us - slot->submit_us;
    digest_start(lane->digest);
    for (uint32_t n = (lane->seq.n_limit + DEVICE_PAGE_TOKENS - 1) / DEVICE_PAGE_TOKENS; n > 0;
         n--) {
        int page = kv_take(g->kv);

        ASSERT(page >= 0); /* admission counted them */
        lane->pages[lane->n_pages++] = (uint32_t)page;
    }
    lane->moved = true;
}

static struct record *push(struct lane *lane, uint32_t position, uint32_t id,
                           const struct device_result *result) {
    struct record *r;

    ASSERT(!lane->closing);
    if (lane->next_record == lane->n_records) lane->next_record = lane->n_records = 0;
    r = &lane->records[lane->n_records++];
    r->position = position;
    r->id = id;
    r->n_top = result->n_top;
    memcpy(r->top_ids, result->top_ids, result->n_top * sizeof(r->top_ids[0]));
    memcpy(r->top_logprobs, result->top_logprobs, result->n_top * sizeof(r->top_logprobs[0]));
    return r;
}

void lane_push(struct lane *lane, uint32_t position, uint32_t id,
               const struct device_result *result) {
    struct record *r = push(lane, position, id, result);

    r->prompt = false;
    r->logprob = result->logprob;
}

void lane_push_prompt(struct lane *lane, uint32_t position, uint32_t id,
                      const struct device_result *result) {
    struct record *r = push(lane, position, id, result);

    r->prompt = true;
    r->logprob = result->target_logprob;
}

bool lane_ready(const struct lane *lane) {
    const uint32_t n_waiting = lane->n_records - lane->next_record;

    return lane->slot && !lane->finish && !lane->failed && !lane->stalled && !lane->closing &&
           atomic_load_explicit(&lane->slot->granted, memory_order_acquire) >
               lane->n_events + n_waiting;
}

bool lane_stops(const struct engine *g, const struct lane *lane, uint32_t id, uint16_t *out_index) {
    const struct engine_request *r = &lane->slot->request;
    const struct model *m = &g->facts.model;

    for (uint32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) {
            *out_index = (uint16_t)i;
            return true;
        }
    for (uint32_t i = 0; i < m->n_eos && !r->ignore_eos; i++)
        if (m->eos[i] == id) {
            *out_index = (uint16_t)(r->n_stop_ids + i);
            return true;
        }
    return false;
}

/* Pages go back at once: nothing more is computed for this lane. */
static void give_pages(struct engine *g, struct lane *lane) {
    while (lane->n_pages > 0) {
        uint32_t page = lane->pages[--lane->n_pages];

        if (g->facts.options.poison) (void)g->dev->ops->poison(g->dev, page, 0xffff, NULL);
        kv_give(g->kv, page);
    }
}

void lane_finish(struct engine *g, struct lane *lane, uint8_t finish) {
    lane->finish = finish;
    lane->closing = false;
    lane->next_record = lane->n_records = 0;
    give_pages(g, lane);
}

void lane_cut(struct engine *g, struct lane *lane, uint8_t finish) {
    lane->next_out = lane->n_out = 0;
    lane->stop_kind = STOP_NONE;
    lane->stop_index = 0;
    lane_finish(g, lane, finish);
}

void lane_fail(struct engine *g, struct lane *lane, int code, const char *why) {
    lane->failed = code;
    (void)snprintf(lane->why, sizeof(lane->why), "%s", why);
    lane->next_record = lane->n_records = 0;
    lane->next_out = lane->n_out = 0;
    give_pages(g, lane);
}

/* Only the prompt's logprobs were wanted, and all are there. */
static bool prompt_alone(const struct lane *lane) {
    return lane->seq.n_limit == lane->seq.n_prompt && dvr_prompt_left(&lane->seq) == 0;
}

void lane_decide(struct engine *g, struct lane *lane) {
    const struct engine_request *r = &lane->slot->request;
    uint32_t n_output = lane->usage.n_output;
    uint16_t index;

    if (lane->failed) return;
    if (r->n_stop_strings > 0) {
        (void)lane_release(g, lane);
        return;
    }
    for (uint32_t i = lane->next_record; i < lane->n_records && !lane->closing; i++) {
        if (lane->records[i].prompt) continue;
        if (++n_output < r->max_tokens && !lane_stops(g, lane, lane->records[i].id, &index))
            continue;
        lane->n_records = i + 1; /* what follows a stop is nobody's */
        lane->closing = true;
    }
    if (prompt_alone(lane)) lane->closing = true;
    if (lane->closing) give_pages(g, lane);
}

/* Text of one more output token, and whether it ends the output. */
static void commit_text(struct engine *g, struct lane *lane, uint32_t id) {
    const struct engine_request *r = &lane->slot->request;
    bool at_limit = lane->usage.n_output == r->max_tokens;
    bool special = false;
    uint32_t n_bytes = 0;
    const uint8_t *bytes;
    size_t n = 0;
    int index;

    if (lane_stops(g, lane, id, &lane->stop_index)) {
        lane->stop_kind = STOP_ID;
        lane_finish(g, lane, FINISH_STOP);
    } else {
        bytes = token_bytes(g->token, id, &n_bytes, &special);
        if (!bytes || special) n_bytes = 0;
        index = stop_text_push(&lane->text, bytes, n_bytes, g->scratch, lane->out, &n);
        lane->n_out = (uint32_t)n;
        if (index >= 0) {
            lane->stop_kind = STOP_STRING;
            lane->stop_index = (uint16_t)index;
            lane_finish(g, lane, FINISH_STOP);
            return; /* what follows the match is nobody's */
        }
        if (at_limit) lane_finish(g, lane, FINISH_LENGTH);
    }
    if (lane->finish) lane->n_out += (uint32_t)stop_text_end(&lane->text, lane->out + lane->n_out);
}

/* As much text as one event takes, ending with a whole character. */
static uint32_t take_text(struct lane *lane, uint8_t *to) {
    uint32_t n = lane->n_out - lane->next_out;

    if (n > ENGINE_TEXT_BYTES) {
        n = ENGINE_TEXT_BYTES;
        while ((lane->out[lane->next_out + n] & 0xc0) == 0x80) n--;
    }
    memcpy(to, lane->out + lane->next_out, n);
    lane->next_out += n;
    return n;
}

/* The next record becomes an event, and from here on it is history. */
static void commit(struct engine *g, struct lane *lane, struct engine_event *event) {
    const struct record *r = &lane->records[lane->next_record++];

    digest_record(lane->digest, r);
    event->kind = r->prompt ? ENGINE_PROMPT_TOKEN : ENGINE_TOKEN;
    event->index = r->prompt ? r->position : r->position - lane->seq.n_prompt;
    event->id = r->id;
    event->logprob = r->logprob;
    event->n_top = r->n_top;
    memcpy(event->top_ids, r->top_ids, r->n_top * sizeof(r->top_ids[0]));
    memcpy(event->top_logprobs, r->top_logprobs, r->n_top * sizeof(r->top_logprobs[0]));
    event->n_text = 0;
    if (r->prompt) return;

    if (lane->first_us == 0) lane->first_us = engine_clock_us();
    lane->usage.n_output++;
    g->now.tokens_committed++;
    lane->n_out = lane->next_out = 0;
    commit_text(g, lane, r->id);
    event->n_text = take_text(lane, event->text);
}

/* The last event, all else being out: the slot is the loop's again. */
static bool end(struct engine *g, struct lane *lane, struct engine_event *event) {
    uint64_t now_us = engine_clock_us();

    if (lane->first_us == 0) lane->first_us = now_us;
    lane->usage.prefill_us = lane->first_us - lane->start_us;
    lane->usage.decode_us = now_us - lane->first_us;
    lane->usage.total_us = now_us - lane->slot->submit_us;
    event->usage = lane->usage;
    event->n_top = event->n_text = 0;
    if (lane->failed) {
        event->kind = ENGINE_FAILED;
        event->code = lane->failed;
        memcpy(event->why, lane->why, sizeof(event->why));
    } else {
        event->kind = ENGINE_DONE;
        event->finish = lane->finish;
        event->stop_kind = lane->stop_kind;
        event->stop_index = lane->stop_index;
        digest_end(lane->digest, lane->finish, event->digest);
    }
    engine_post(g, event);
    if (lane->failed)
        g->now.requests_failed++;
    else if (lane->finish > FINISH_LENGTH)
        g->now.requests_cancelled++;
    else
        g->now.requests_done++;
    lane->slot = NULL;
    return true;
}

bool lane_release(struct engine *g, struct lane *lane) {
    struct engine_event event = {.handle = lane->slot->handle};
    bool any = false;

    while (engine_room(g)) {
        bool granted =
            atomic_load_explicit(&lane->slot->granted, memory_order_acquire) > lane->n_events;
        bool text = lane->next_out < lane->n_out;

        if (!text && lane->next_record == lane->n_records) {
            lane->stalled = false;
            if (!lane->finish && !lane->failed && prompt_alone(lane))
                lane_finish(g, lane, FINISH_LENGTH);
            return (lane->finish || lane->failed) ? end(g, lane, &event) : any;
        }
        if (!granted) break;
        if (text) {
            event.kind = ENGINE_TEXT;
            event.n_top = 0;
            event.index = lane->usage.n_output;
            event.n_text = take_text(lane, event.text);
        } else {
            commit(g, lane, &event);
        }
        lane->n_events++;
        engine_post(g, &event);
        any = true;
    }
    lane->stalled = lane->next_record < lane->n_records || lane->next_out < lane->n_out;
    return any;
}

bool lane_refuse(struct engine *g, struct slot *slot, uint8_t finish, int code, const char *why) {
    struct engine_event event = {.handle = slot->handle,
                                 .kind = code ? ENGINE_FAILED : ENGINE_DONE};

    if (!engine_room(g)) return false;

    event.usage.n_prompt = slot->request.n_prompt;
    event.usage.queue_us = event.usage.total_us = engine_clock_us() - slot->submit_us;
    event.code = code;
    event.finish = finish;
    (void)snprintf(event.why, sizeof(event.why), "%s", why ? why : "");
    digest_start(g->digest);
    digest_end(g->digest, finish, event.digest);
    if (code)
        g->now.requests_failed++;
    else
        g->now.requests_cancelled++;
    engine_post(g, &event);
    return true;
}
