#include "runtime/plan.h"

#include <stddef.h>

#include "runtime/assert.h"
#include "runtime/cost.h"

const char *plan_policy_name(enum plan_policy p) {
    static const char *const names[] = {"canonical", "tuned", "auto"};

    ASSERT((unsigned)p < sizeof(names) / sizeof(names[0]));
    return names[p];
}

uint32_t plan_rows_max(const struct plan_options *o, uint32_t n_seqs_max) {
    uint32_t others = n_seqs_max + o->group * o->window;

    return (o->step_tokens > others ? o->step_tokens : others) + PLAN_PREFILL_MIN;
}

static void add(struct plan *p, struct plan_item *items, uint32_t seq, enum plan_kind kind,
                uint32_t n_rows) {
    items[p->n_items++] = (struct plan_item){seq, kind, n_rows};
    p->n_rows += n_rows;
}

/* Among the first n, which are windows: a group of them at most. */
static bool planned(const struct plan_item *items, uint32_t n, uint32_t seq) {
    for (uint32_t i = 0; i < n; i++)
        if (items[i].seq == seq) return true;
    return false;
}

static bool decodes(const struct plan_seq *s) {
    return s->ready && s->prompt_left == 0;
}

bool plan_judges(const struct plan_options *o, const struct plan_seq *s) {
    return s->due && (s->candidates > 0 || o->policy == PLAN_TUNED);
}

/* Which windows a pass takes: those that are due; any with candidates, the oldest first; or the
 * fullest of them. */
enum windows { DUE, ALL, FULLEST };

static bool is_wanted(const struct plan_options *o, const struct plan_seq *s, enum windows which) {
    return which == DUE ? plan_judges(o, s) : s->candidates > 0;
}

static bool is_before(const struct plan_seq *a, const struct plan_seq *b, enum windows which) {
    return which == FULLEST ? a->candidates > b->candidates : a->age > b->age;
}

/* Up to G windows in all. */
static void add_windows(const struct plan_options *o, const struct plan_seq *seqs, uint32_t n_seqs,
                        enum windows which, struct plan *p, struct plan_item *items) {
    while (p->n_items < o->group) {
        uint32_t best = n_seqs;

        for (uint32_t i = 0; i < n_seqs; i++) {
            const struct plan_seq *s = &seqs[i];

            if (!decodes(s) || planned(items, p->n_items, i) || !is_wanted(o, s, which)) continue;
            if (best == n_seqs || is_before(s, &seqs[best], which)) best = i;
        }
        if (best == n_seqs) return;
        add(p, items, best, PLAN_VERIFY, seqs[best].candidates + 1);
    }
}

/* A due sequence waits for its pass: it may not run further ahead of what is committed. */
static void add_decodes(const struct plan_options *o, const struct plan_seq *seqs, uint32_t n_seqs,
                        struct plan *p, struct plan_item *items) {
    const uint32_t n_windows = p->n_items;

    for (uint32_t i = 0; i < n_seqs; i++)
        if (decodes(&seqs[i]) && !plan_judges(o, &seqs[i]) && !planned(items, n_windows, i))
            add(p, items, i, PLAN_DECODE, 1);
}

/* The oldest go first, so that a prompt moves on whatever is admitted beside it. */
static void add_prefills(const struct plan_options *o, const struct plan_seq *seqs, uint32_t n_seqs,
                         struct plan *p, struct plan_item *items) {
    uint32_t room = o->step_tokens > p->n_rows ? o->step_tokens - p->n_rows : 0;
    uint32_t last = n_seqs, last_age = UINT32_MAX; /* the one before, in the order of the oldest */

    if (room < PLAN_PREFILL_MIN) room = PLAN_PREFILL_MIN;
    while (room > 0) {
        uint32_t best = n_seqs, n;

        for (uint32_t i = 0; i < n_seqs; i++) {
            const struct plan_seq *s = &seqs[i];

            if (!s->ready || s->prompt_left == 0 || s->prompt_rows_max == 0) continue;
            if (s->age > last_age || (s->age == last_age && i <= last)) continue;
            if (best == n_seqs || s->age > seqs[best].age) best = i;
        }
        if (best == n_seqs) return;
        n = seqs[best].prompt_left;
        if (n > seqs[best].prompt_rows_max) n = seqs[best].prompt_rows_max;
        if (n > room) n = room;
        add(p, items, best, PLAN_PREFILL, n);
        room -= n;
        last = best;
        last_age = seqs[best].age;
    }
}

/* Someone who could run now, were it not for the pass, waits longer than all of its windows; or
 * decodes, and was held up by a pass already. */
static bool pass_waits(const struct plan_options *o, const struct plan_now *now,
                       const struct plan_seq *seqs, uint32_t n_seqs, const struct plan *p,
                       const struct plan_item *items) {
    uint32_t oldest = 0;

    for (uint32_t i = 0; i < p->n_items; i++)
        if (seqs[items[i].seq].age > oldest) oldest = seqs[items[i].seq].age;
    for (uint32_t i = 0; i < n_seqs; i++) {
        if (!seqs[i].ready || plan_judges(o, &seqs[i]) || planned(items, p->n_items, i)) continue;
        if (seqs[i].age > oldest || (now->after_pass && decodes(&seqs[i]))) return true;
    }
    return false;
}

/* A window of one row judges nothing: then a canonical step costs what a tuned one does at best. */
static bool tuned_pays(const struct plan_options *o, const struct plan_now *now, uint32_t n_rows,
                       uint32_t n_deterministic) {
    if (now->same) return false;
    if (o->policy != PLAN_AUTO || n_rows == 0) return o->policy == PLAN_TUNED;
    if (n_deterministic > 0 && o->window == 1) return false;
    return cost_tuned_pays(now->cost, n_rows, n_deterministic, o->window);
}

struct plan plan_make(const struct plan_options *o, const struct plan_now *now,
                      const struct plan_seq *seqs, uint32_t n_seqs, struct plan_item *items) {
    struct plan p = {.canonical = true};
    uint32_t n_decode = 0, n_deterministic = 0;
    bool must; /* be canonical */

    ASSERT(o->window >= 1 && o->group >= 1 && o->step_tokens >= 1);

    if (o->unverified) {
        p.canonical = false;
        add_decodes(o, seqs, n_seqs, &p, items);
        add_prefills(o, seqs, n_seqs, &p, items);
        return p;
    }
    add_windows(o, seqs, n_seqs, DUE, &p, items);
    must = p.n_items > 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        must = must || (seqs[i].ready && (seqs[i].prompt_left > 0 || seqs[i].due));
        n_decode += decodes(&seqs[i]);
        n_deterministic += decodes(&seqs[i]) && seqs[i].deterministic;
    }
    if (!must) {
        p.canonical = !tuned_pays(o, now, n_decode, n_deterministic);
        p.same = now->same && n_decode > 0 && o->policy != PLAN_CANONICAL;
        /* Certifying begins where nothing waits for a verdict: judge what does, in this step. */
        if (p.canonical) add_windows(o, seqs, n_seqs, ALL, &p, items);
    }
    if (o->fixed_shape && p.n_items > 0) {
        add_windows(o, seqs, n_seqs, FULLEST, &p, items);
        if (!pass_waits(o, now, seqs, n_seqs, &p, items)) {
            p.pass = true;
            p.n_pad = o->group * o->window - p.n_rows;
            return p;
        }
        p.n_items = p.n_rows = 0;
    }
    add_decodes(o, seqs, n_seqs, &p, items);
    add_prefills(o, seqs, n_seqs, &p, items);
    return p;
}
