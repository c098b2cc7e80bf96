/* plan - who is in the next step, and on which schedule (SPEC 5.3).
 *
 * Owns:   nothing; every function is pure.
 * Thread: any.
 *
 * A step has one schedule.  What must be canonical (prefill, verification) makes the whole step
 * so, and its decode rows are then certified where they are eligible; only a step of decode rows
 * alone may be tuned.  Whom a step serves changes when a token comes, never which.
 *
 * A window is judged in the first step that has a place for it (plan_judges): nothing waits for a
 * group to fill, since a window that rides costs by the row, and one that waits holds its request
 * up.  A pass of a fixed shape has its rows anyway; places left go to the fullest windows of others.
 *
 * Every step serves the oldest sequence that is ready, so none waits for more steps than there are
 * sequences.  With a fixed shape a pass is alone in its step: then the others go first where one of
 * them has waited longer than all windows of the pass, and between two passes where one decodes, so
 * that nobody is held up by more than one, and waits at most twice as long. */
#ifndef LLM42D_RUNTIME_PLAN_H
#define LLM42D_RUNTIME_PLAN_H

#include <stdbool.h>
#include <stdint.h>

enum {
    PLAN_PREFILL_MIN = 16, /* prompt rows that a step has room for, however many others decode */
    PLAN_STEP_TOKENS_MAX = 2048,
};

struct cost;

enum plan_policy { PLAN_CANONICAL, PLAN_TUNED, PLAN_AUTO };
const char *plan_policy_name(enum plan_policy p);

struct plan_options {
    enum plan_policy policy;
    uint32_t window;      /* W */
    uint32_t group;       /* G */
    uint32_t step_tokens; /* rows of a step; prefill takes what decode and verify leave of it */
    bool fixed_shape;     /* a verify pass is alone in its step and padded to G x W rows */
    bool unverified;      /* no step is canonical and none verifies: the baseline of experiments */
};

/* A running sequence, as far as planning sees it. */
struct plan_seq {
    bool ready; /* not paused, nothing unsent */
    bool deterministic;
    bool due;                 /* dvr_due */
    uint32_t candidates;      /* dvr_candidates */
    uint32_t prompt_left;     /* dvr_prompt_left */
    uint32_t prompt_rows_max; /* of one step, for this sequence */
    uint32_t age;             /* steps since it was last served; the oldest go first */
};

enum plan_kind { PLAN_PREFILL, PLAN_DECODE, PLAN_VERIFY };

struct plan_item {
    uint32_t seq; /* index into the sequences given */
    enum plan_kind kind;
    uint32_t n_rows;
};

struct plan {
    bool canonical;
    bool same;        /* canonical for that reason alone (plan_now.same) */
    bool pass;        /* of a fixed shape */
    uint32_t n_items; /* at most one a sequence */
    uint32_t n_rows;
    uint32_t n_pad; /* dummy rows on top, fixed shape alone */
};

/* What a plan is made on, but for the sequences. */
struct plan_now {
    struct cost *cost; /* of policy auto alone: what steps cost so far */
    bool same;         /* on the fast schedule decode rows would be canonical: they are certified */
    bool after_pass;   /* the step before was a pass of a fixed shape */
};

/* The rows that any plan may have. */
uint32_t plan_rows_max(const struct plan_options *o, uint32_t n_seqs_max);

/* When a window fires: its candidates are due (W - 1 of them, or the last wants to finish).  A window
 * of one row holds none: in a canonical step that is plain certified decoding, and only the policy
 * that decodes by verifying alone wants it as a pass. */
bool plan_judges(const struct plan_options *o, const struct plan_seq *s);

/* The next step; n_items = 0 when there is nothing to do.  items: room for n_seqs. */
struct plan plan_make(const struct plan_options *o, const struct plan_now *now,
                      const struct plan_seq *seqs, uint32_t n_seqs, struct plan_item *items);

#endif
