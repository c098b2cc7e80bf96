/* dvr - decode, verify, roll back: what becomes of a sequence's tokens (SPEC 5).
 *
 * Owns:   nothing; every function is pure, on a struct of the caller.
 * Thread: any.
 *
 * tokens[] of a sequence, and the KV of the same positions:
 *
 *     0 ........ n_prompt ........ n_committed ........ n_tokens
 *     prompt      committed output   candidates
 *     KV canonical in 0 .. n_kv - 1, from a tuned step in n_kv .. n_tokens - 2, none beyond
 *
 * A window is the last committed token t and the candidates after it, replayed canonically:
 *
 *    replayed    t    c0   c1   ...  c[n-1]    tokens whose K and V the pass rewrites
 *    verified    v0   v1   v2   ...  vn        the canonical choice after each of them
 *
 * c[i] stands while c[i] == v[i] and all before it stood.  At the first i where it does not,
 * v[i] takes its place, and it is right, because all that it was computed from stood.  A whole
 * window earns v[n] on top.  So a pass commits at least one token and never one that the
 * canonical path alone would not have given. */
#ifndef LLM42D_RUNTIME_DVR_H
#define LLM42D_RUNTIME_DVR_H

#include <stdbool.h>
#include <stdint.h>

enum { DVR_WINDOW_MAX = 256 };

struct dvr_seq {
    uint32_t *tokens;     /* [n_prompt + max_tokens], the caller's */
    uint32_t n_prompt;    /* >= 1 */
    uint32_t n_limit;     /* n_prompt + max_tokens: n_tokens never exceeds it */
    uint32_t n_committed; /* >= n_prompt */
    uint32_t n_tokens;    /* >= n_committed */
    uint32_t n_kv;        /* canonical; n_committed - 1 or more once the prompt is in */
    bool deterministic;
};

/* A sequence with its prompt in tokens[] and nothing computed. */
struct dvr_seq dvr_start(uint32_t *tokens, uint32_t n_prompt, uint32_t max_tokens,
                         bool deterministic);

/* Prompt positions not computed yet; 0 once decoding. */
uint32_t dvr_prompt_left(const struct dvr_seq *s);
uint32_t dvr_candidates(const struct dvr_seq *s);

/* The next decode row's token would be certified if the step were canonical: its input is
 * committed, and all KV below it is canonical. */
bool dvr_clean(const struct dvr_seq *s);

/* A window is due: W - 1 candidates wait, or the last of them wants to finish (it `stops`, or it
 * is the last allowed). */
bool dvr_due(const struct dvr_seq *s, uint32_t window, bool stops);

/* n prompt positions were computed, canonically. */
void dvr_prefilled(struct dvr_seq *s, uint32_t n);

/* The first token after the prompt, from a canonical row.  Committed. */
void dvr_first(struct dvr_seq *s, uint32_t token);

/* A decode row gave `token`.  True if it is committed by that: a plain sequence's always, a
 * deterministic one's if the step was canonical and the sequence clean.  Else a candidate. */
bool dvr_decoded(struct dvr_seq *s, uint32_t token, bool canonical);

/* What a verification pass commits. */
struct dvr_verdict {
    uint32_t n_commit;  /* 1 .. n_candidates + 1, and never beyond n_limit: v[0 .. n_commit - 1] */
    uint32_t n_dropped; /* candidates that did not stand */
};

/* `verified` has one token more than there are candidates; *s moves on: commits, drops, and
 * counts the rewritten KV of what stood as canonical. */
struct dvr_verdict dvr_verified(struct dvr_seq *s, const uint32_t *verified);

#endif
