#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "runtime/assert.h"
#include "runtime/engine_impl.h"
#include "runtime/err.h"
#include "runtime/forward.h"
#include "runtime/kv.h"
#include "runtime/num.h"
#include "runtime/queue.h"

enum { FINISH_CANCELLED = 3, FINISH_DEADLINE = 4 }; /* SPEC 6.9 */

static bool past(uint64_t deadline_us, uint64_t now_us) {
    return deadline_us != 0 && now_us >= deadline_us;
}

/* Why a request ends before its time, or 0. */
static uint8_t cut(struct slot *slot, bool queued, uint64_t now_us) {
    const struct engine_request *r = &slot->request;

    if (atomic_load_explicit(&slot->cancel, memory_order_acquire)) return FINISH_CANCELLED;
    if (past(r->deadline_us, now_us) || (queued && past(r->queue_deadline_us, now_us)))
        return FINISH_DEADLINE;
    return 0;
}

static bool take_submits(struct engine *g) {
    uint32_t slot;
    bool any = false;

    while (queue_take(g->submits, &slot)) {
        g->waiting[(g->first_waiting + g->n_waiting++) % g->n_slots] = slot;
        any = true;
    }
    return any;
}

/* Those in the queue that are cancelled or late leave it, the others keep their order. */
static bool cut_waiting(struct engine *g, uint64_t now_us) {
    uint32_t n_kept = 0;
    bool any = false;

    for (uint32_t i = 0; i < g->n_waiting; i++) {
        uint32_t index = g->waiting[(g->first_waiting + i) % g->n_slots];
        uint8_t finish = cut(&g->slots[index], true, now_us);

        if (finish && lane_refuse(g, &g->slots[index], finish, 0, NULL))
            any = true;
        else
            g->waiting[(g->first_waiting + n_kept++) % g->n_slots] = index;
    }
    g->n_waiting = n_kept;
    return any;
}

static bool cut_lanes(struct engine *g, uint64_t now_us) {
    bool any = false;

    for (uint32_t i = 0; i < g->n_lanes; i++) {
        struct lane *lane = &g->lanes[i];
        uint8_t finish = lane->slot && !lane->failed ? cut(lane->slot, false, now_us) : 0;

        if (!finish || lane->finish >= FINISH_CANCELLED) continue; /* already cut */
        lane_cut(g, lane, finish);
        any = true;
    }
    return any;
}

/* Strictly in order of arrival: the first waits for its lane and its pages, and all behind it
 * wait for it, so nobody starves.  Pages for the whole request are taken at once: what runs can
 * finish. */
static bool admit(struct engine *g) {
    bool any = false;

    for (uint32_t i = 0; i < g->n_lanes && g->n_waiting > 0; i++) {
        struct lane *lane = &g->lanes[i];
        struct slot *slot = &g->slots[g->waiting[g->first_waiting]];
        uint32_t n_tokens = slot->request.n_prompt + slot->request.max_tokens;

        if (lane->slot) continue;
        if (!engine_room(g)) break;
        if (kv_free_count(g->kv) < (n_tokens + DEVICE_PAGE_TOKENS - 1) / DEVICE_PAGE_TOKENS) break;
        g->first_waiting = (g->first_waiting + 1) % g->n_slots;
        g->n_waiting--;
        lane_start(g, lane, slot);
        engine_post(g, &(struct engine_event){.kind = ENGINE_STARTED, .handle = slot->handle});
        any = true;
    }
    return any;
}

static bool release(struct engine *g) {
    bool any = false;

    for (uint32_t i = 0; i < g->n_lanes; i++)
        if (g->lanes[i].slot) any = lane_release(g, &g->lanes[i]) || any;
    return any;
}

/* Before a step is planned: those that wait for room or grant, and those that are over, whose lanes
 * others may have. */
static bool release_held(struct engine *g) {
    bool any = false;

    for (uint32_t i = 0; i < g->n_lanes; i++) {
        struct lane *lane = &g->lanes[i];

        if (lane->slot && (lane->stalled || lane->closing || lane->finish || lane->failed))
            any = lane_release(g, lane) || any;
    }
    return any;
}

/* The running sequences as planning sees them. */
static uint32_t survey(struct engine *g) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < g->n_lanes; i++) {
        struct lane *lane = &g->lanes[i];
        struct dvr_seq *s = &lane->seq;
        uint16_t index;
        bool stops;

        if (!lane->slot) continue;
        stops = dvr_candidates(s) > 0 && lane_stops(g, lane, s->tokens[s->n_tokens - 1], &index);
        g->plan_lanes[n] = i;
        g->plan_seqs[n++] = (struct plan_seq){
            .ready = lane_ready(lane),
            .deterministic = s->deterministic,
            .due = dvr_due(s, g->plan.window, stops),
            .candidates = dvr_candidates(s),
            .prompt_left = dvr_prompt_left(s),
            .prompt_rows_max = lane->slot->request.prompt_logprobs ? g->records_max : UINT32_MAX,
            .age = lane->age,
        };
    }
    return n;
}

static void want(struct engine *g, struct device_batch *b, const struct lane *lane, uint32_t row,
                 uint32_t target, uint32_t n_top) {
    g->wants[b->n_wants++] = (struct device_want){
        .row = row, .target = target, .n_top = n_top, .params = lane->slot->request.params};
}

/* The schedule of a step that need not be canonical. */
static struct schedule fast_schedule(const struct engine *g, const struct schedule_load *load) {
    return schedule_fast(g->facts.options.fast, &g->facts.model, load);
}

/* Whether it is the canonical one for a step of all rows that decode.  Where nothing is to be
 * certified, no step counts as canonical. */
static bool is_same(const struct engine *g, uint32_t n_seqs) {
    const struct schedule canonical = schedule_canonical();
    struct schedule_load load = {.n_rows = 0};
    struct schedule fast;

    if (g->plan.policy == PLAN_CANONICAL || g->facts.options.uncertified) return false;
    for (uint32_t i = 0; i < n_seqs; i++) {
        const struct plan_seq *s = &g->plan_seqs[i];
        const uint32_t n_keys = g->lanes[g->plan_lanes[i]].seq.n_tokens;

        if (!s->ready || s->prompt_left > 0) continue;
        load.n_rows++;
        if (n_keys > load.n_keys) load.n_keys = n_keys;
    }
    load.n_seqs = load.n_rows;
    fast = fast_schedule(g, &load);
    return schedule_equal(&fast, &canonical);
}

/* Rows of one item: positions first .. first + n - 1 of the lane's tokens. */
static void add_rows(struct engine *g, struct device_batch *b, const struct plan_item *item) {
    const uint32_t seq = g->plan_lanes[item->seq];
    struct lane *lane = &g->lanes[seq];
    const struct engine_request *r = &lane->slot->request;
    struct dvr_seq *s = &lane->seq;
    uint32_t first = item->kind == PLAN_PREFILL  ? s->n_kv
                     : item->kind == PLAN_DECODE ? s->n_tokens - 1
                                                 : s->n_committed - 1;

    if (lane->moved) {
        memcpy(g->pages + (size_t)seq * g->n_seq_pages, lane->pages,
               lane->n_pages * sizeof(lane->pages[0]));
        g->changed[b->n_changed++] = seq;
        lane->moved = false;
    }
    for (uint32_t i = 0; i < item->n_rows; i++) {
        uint32_t position = first + i, row = b->n_rows++;

        g->rows[row] = (struct device_row){s->tokens[position], position, seq};
        if (item->kind != PLAN_PREFILL)
            want(g, b, lane, row, DEVICE_NO_TOKEN, r->n_top);
        else if (position + 1 == s->n_prompt && r->max_tokens > 0)
            want(g, b, lane, row, DEVICE_NO_TOKEN, r->n_top);
        else if (position + 1 < s->n_prompt && r->prompt_logprobs)
            want(g, b, lane, row, s->tokens[position + 1], r->n_prompt_top);
    }
}

/* Dummy rows of the fixed shape: a sequence of their own on pages of their own. */
static void add_padding(struct engine *g, struct device_batch *b, uint32_t n_pad) {
    if (n_pad == 0) return;

    if (!g->pad_known) {
        memcpy(g->pages + (size_t)g->n_lanes * g->n_seq_pages, g->pad_pages,
               g->n_pad_pages * sizeof(g->pad_pages[0]));
        g->changed[b->n_changed++] = g->n_lanes;
        g->pad_known = true;
    }
    for (uint32_t i = 0; i < n_pad; i++)
        g->rows[b->n_rows++] = (struct device_row){0, i, g->n_lanes};
}

/* Prompt rows came back: their logprobs, and after the last of them the first output token. */
static void prefilled(struct lane *lane, const struct plan_item *item,
                      const struct device_result *results, uint32_t *next) {
    struct dvr_seq *s = &lane->seq;
    const struct engine_request *r = &lane->slot->request;
    uint32_t first = s->n_kv;

    dvr_prefilled(s, item->n_rows);
    for (uint32_t i = 0; i < item->n_rows; i++) {
        uint32_t position = first + i;

        if (position + 1 < s->n_prompt) {
            if (r->prompt_logprobs)
                lane_push_prompt(lane, position + 1, s->tokens[position + 1], &results[(*next)++]);
        } else if (r->max_tokens > 0) {
            const struct device_result *result = &results[(*next)++];

            dvr_first(s, result->token);
            lane->usage.certified++;
            lane_push(lane, position + 1, result->token, result);
        }
    }
}

/* Whether a candidate is made wrong: drawn by the request's seed and the position, so that a run
 * can be repeated. */
static bool mismatched(const struct engine *g, const struct lane *lane) {
    const uint32_t ppm = g->facts.options.mismatch_ppm;
    const uint32_t word = num_random(lane->slot->request.params.seed, lane->seq.n_tokens, ~0u);

    return (uint64_t)word * 1000000 >> 32 < ppm;
}

static void decoded(struct engine *g, struct lane *lane, const struct device_result *result,
                    bool canonical) {
    struct dvr_seq *s = &lane->seq;
    bool certified = canonical && dvr_clean(s);
    uint32_t token = result->token;

    g->now.tokens_decoded++;
    if (s->deterministic && !certified && mismatched(g, lane))
        token = (token + 1) % g->facts.model.vocab;
    if (!dvr_decoded(s, token, canonical)) return;
    if (s->deterministic) lane->usage.certified += certified;
    lane_push(lane, s->n_tokens - 1, result->token, result);
}

static void verified(struct engine *g, struct lane *lane, const struct plan_item *item,
                     const struct device_result *results) {
    struct dvr_seq *s = &lane->seq;
    uint32_t first = s->n_committed;
    struct dvr_verdict verdict;

    for (uint32_t i = 0; i < item->n_rows; i++) g->verified[i] = results[i].token;
    verdict = dvr_verified(s, g->verified);
    for (uint32_t i = 0; i < verdict.n_commit; i++)
        lane_push(lane, first + i, results[i].token, &results[i]);

    cost_verdict(&g->cost, verdict.n_dropped > 0 ? verdict.n_commit : verdict.n_commit - 1,
                 verdict.n_dropped > 0);
    lane->usage.verify_passes++;
    lane->usage.rollbacks += verdict.n_dropped > 0;
    lane->usage.recomputed += verdict.n_dropped;
    g->now.verify_passes++;
    g->now.tokens_verified += item->n_rows;
    g->now.rollbacks += verdict.n_dropped > 0;
    g->now.tokens_discarded += verdict.n_dropped;
}

/* What the step's rows mean for their sequences.  A row that left the range of the arithmetic
 * fails its request, and nothing of it is committed. */
static void settle(struct engine *g, const struct plan *p, const struct device_batch *b) {
    uint32_t row = 0, next = 0;

    for (uint32_t i = 0; i < p->n_items; i++) {
        const struct plan_item *item = &g->items[i];
        struct lane *lane = &g->lanes[g->plan_lanes[item->seq]];
        uint32_t end = row + item->n_rows, n_wants = 0;
        bool numeric = false;

        for (; row < end; row++) numeric = numeric || g->flagged[row];
        while (next + n_wants < b->n_wants && g->wants[next + n_wants].row < end)
            numeric = g->results[next + n_wants++].numeric || numeric;

        lane->age = 0;
        if (numeric) {
            lane_fail(g, lane, -EDOM, "a row left the range of the arithmetic");
        } else if (item->kind == PLAN_PREFILL) {
            uint32_t at = next;

            g->now.tokens_prompt += item->n_rows;
            prefilled(lane, item, g->results, &at);
        } else if (item->kind == PLAN_DECODE) {
            decoded(g, lane, &g->results[next], p->canonical && !g->facts.options.uncertified);
        } else {
            verified(g, lane, item, &g->results[next]);
        }
        next += n_wants;
        if (g->dev->ops->queues) lane_decide(g, lane);
    }
}

/* Everyone is told, and nothing runs again. */
static int die(struct engine *g, const char *why) {
    for (uint32_t i = 0; i < g->n_lanes; i++)
        if (g->lanes[i].slot && !g->lanes[i].failed) lane_fail(g, &g->lanes[i], -EIO, why);
    (void)release(g);
    while (g->n_waiting > 0 &&
           lane_refuse(g, &g->slots[g->waiting[g->first_waiting]], 0, -EIO, why)) {
        g->first_waiting = (g->first_waiting + 1) % g->n_slots;
        g->n_waiting--;
    }
    for (uint32_t i = 0; i < g->n_lanes; i++)
        if (g->lanes[i].slot) return 1;
    return g->n_waiting > 0 ? 1 : -EIO;
}

/* Wakes the loop for what was posted since it was woken last. */
static void tell(struct engine *g) {
    uint64_t one = 1;

    if (!g->posted) return;
    g->posted = false;
    (void)!write(g->event_fd, &one, sizeof(one));
}

/* What the step took, of what it was. */
static void measure(struct engine *g, const struct plan *p, uint64_t us) {
    uint32_t n_rows[3] = {0};

    for (uint32_t i = 0; i < p->n_items; i++) n_rows[g->items[i].kind] += g->items[i].n_rows;
    if (n_rows[PLAN_PREFILL]) return;
    if (n_rows[PLAN_VERIFY])
        cost_windows(&g->cost, n_rows[PLAN_DECODE], n_rows[PLAN_VERIFY], (float)us);
    else
        cost_step(&g->cost, p->canonical, n_rows[PLAN_DECODE], (float)us);
}

/* Told at once, for who looks at a step that does not end. */
static void publish_step(struct engine *g, uint64_t us, uint32_t n_rows) {
    const size_t first = offsetof(struct engine_stats, step_us) / sizeof(uint64_t);

    _Static_assert(offsetof(struct engine_stats, step_rows) ==
                       offsetof(struct engine_stats, step_us) + sizeof(uint64_t),
                   "one word behind the other");
    g->now.step_us = us;
    g->now.step_rows = n_rows;
    atomic_store_explicit(&g->published[first + 1], n_rows, memory_order_relaxed);
    atomic_store_explicit(&g->published[first], us, memory_order_relaxed);
}

static int run(struct engine *g, const struct plan *p, struct err *e) {
    struct device_batch b = {.rows = g->rows,
                             .n_seqs = g->n_lanes + 1,
                             .pages = g->pages,
                             .changed = g->changed,
                             .wants = g->wants};
    struct schedule s = schedule_canonical();
    uint64_t start_us;
    int r;

    for (uint32_t i = 0; i < p->n_items; i++) add_rows(g, &b, &g->items[i]);
    add_padding(g, &b, p->n_pad);
    ASSERT(b.n_rows <= g->rows_max && b.n_wants <= g->rows_max);

    if (!p->canonical) {
        struct schedule_load load = {.n_rows = b.n_rows, .n_seqs = p->n_items + (p->n_pad > 0)};

        for (uint32_t i = 0; i < b.n_rows; i++)
            if (g->rows[i].position >= load.n_keys) load.n_keys = g->rows[i].position + 1;
        s = fast_schedule(g, &load);
    }
    tell(g); /* a step may be long, and an end was posted before it */
    start_us = engine_clock_us();
    publish_step(g, start_us, b.n_rows);
    r = forward_start(g->dev, g->facts.model.n_layers, g->n_logit_rows, &b, &s, g->results,
                      g->flagged, e);
    /* What the step before gave goes out while the device computes this one. */
    if (r == 0 && g->dev->ops->queues) {
        (void)release(g);
        tell(g);
    }
    if (r == 0) r = g->dev->ops->wait(g->dev, e);
    publish_step(g, 0, 0);
    if (r < 0) return r;

    measure(g, p, engine_clock_us() - start_us);
    settle(g, p, &b);
    if (p->canonical)
        g->now.steps_canonical++;
    else
        g->now.steps_tuned++;
    g->now.steps_same += p->same;
    g->after_pass = p->pass;
    g->now.last_step_us = engine_clock_us();
    return 0;
}

static void publish(struct engine *g) {
    uint64_t words[sizeof(g->now) / sizeof(uint64_t)];

    g->now.running = 0;
    for (uint32_t i = 0; i < g->n_lanes; i++) g->now.running += g->lanes[i].slot != NULL;
    g->now.waiting = g->n_waiting;
    g->now.kv_pages_free = kv_free_count(g->kv);
    memcpy(words, &g->now, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        atomic_store_explicit(&g->published[i], words[i], memory_order_relaxed);
    tell(g);
}

static int step(struct engine *g) {
    uint64_t now_us = engine_clock_us();
    bool any = take_submits(g);
    struct err e = {.text = ""};
    struct plan_now now;
    struct plan p;
    uint32_t n;

    if (atomic_load_explicit(&g->dead, memory_order_relaxed)) return die(g, "the device is lost");

    any = release_held(g) || any; /* what is complete is not cut any more */
    any = cut_waiting(g, now_us) || any;
    any = cut_lanes(g, now_us) || any;
    any = release_held(g) || any;
    any = admit(g) || any;
    n = survey(g);
    now = (struct plan_now){&g->cost, is_same(g, n), g->after_pass};
    p = plan_make(&g->plan, &now, g->plan_seqs, n, g->items);
    for (uint32_t i = 0; i < n; i++) g->lanes[g->plan_lanes[i]].age++;
    if (p.n_items == 0) return release(g) || any;

    if (run(g, &p, &e) < 0) {
        atomic_store_explicit(&g->dead, true, memory_order_relaxed);
        return die(g, e.text[0] ? e.text : "the device is lost");
    }
    if (!g->dev->ops->queues) (void)release(g);
    return 1;
}

int engine_step(struct engine *g) {
    int r = step(g);

    publish(g);
    return r;
}

void engine_wait(struct engine *g, int timeout_ms) {
    struct pollfd fd = {.fd = g->submit_fd, .events = POLLIN};
    uint64_t count;

    if (poll(&fd, 1, timeout_ms) > 0) (void)!read(g->submit_fd, &count, sizeof(count));
}
