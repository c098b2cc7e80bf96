/* cost - what steps cost on this device, as measured, and whether policy auto decodes on a tuned
 * schedule or on the canonical one (SPEC 5.3).
 *
 * Owns:   nothing; every function is pure, on a struct of the caller.
 * Thread: any.
 *
 * A canonical step certifies its tokens; a tuned one may be faster, but each candidate of a
 * deterministic request has to be replayed in a window, and what did not stand is decoded again:
 *
 *     C                  a canonical step of n decode rows
 *     T + d (v W/(W-1) + f (W-1)/2 (T/n + v))
 *                        a tuned one, d of its rows deterministic; v of one row of a window, f the
 *                        share of candidates that do not stand, half a window lost with each
 *
 * Which is chosen changes when tokens come, never which. */
#ifndef LLM42D_RUNTIME_COST_H
#define LLM42D_RUNTIME_COST_H

#include <stdbool.h>
#include <stdint.h>

enum {
    COST_BUCKETS = 12,  /* of rows: 1, 2, 3..4, 5..8, .. up to 2048 */
    COST_EXPLORE = 256, /* decisions between two looks at what is not chosen */
};

struct cost_kind {
    float us[COST_BUCKETS];      /* of a step of decode rows alone; 0: never seen */
    uint32_t seen[COST_BUCKETS]; /* decision at which it was last measured */
};

struct cost {
    struct cost_kind canonical, tuned;
    float window_row_us; /* 0: never seen */
    float flips;         /* of the candidates judged */
    uint32_t n_decisions;
};

struct cost cost_start(void);

/* A step of n decode rows and nothing else took `us`. */
void cost_step(struct cost *c, bool canonical, uint32_t n_rows, float us);
/* A canonical step of n_rows decode rows, perhaps none, and n_window rows of windows. */
void cost_windows(struct cost *c, uint32_t n_rows, uint32_t n_window, float us);
/* A window's verdict: so many candidates were judged, the last of them wrong or not. */
void cost_verdict(struct cost *c, uint32_t n_judged, bool wrong);

/* The microseconds above; 0 where a step of that size was never seen. */
float cost_of_canonical(const struct cost *c, uint32_t n_rows);
float cost_of_tuned(const struct cost *c, uint32_t n_rows, uint32_t n_deterministic,
                    uint32_t window);

/* For a step of n_rows decode rows, n_deterministic of them: true where a tuned one costs less, by
 * a hundredth at least, or where it is time to look again at what is not chosen. */
bool cost_tuned_pays(struct cost *c, uint32_t n_rows, uint32_t n_deterministic, uint32_t window);

#endif
