/* sample - what a token is, given logits, parameters and position (SPEC 2.10, 2.11).
 *
 * Owns:   nothing; every function is pure, with scratch of the caller.
 * Thread: any.
 *
 * The choice depends on one row of logits, the parameters and the absolute position: not on
 * neighbours, slots or what was drawn before. */
#ifndef LLM42D_RUNTIME_SAMPLE_H
#define LLM42D_RUNTIME_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

enum {
    SAMPLE_TOP_MAX = 20,
    SAMPLE_VERSION = 1, /* in the fingerprint */
};

#define SAMPLE_TEMPERATURE_MIN 0x1p-7f
#define SAMPLE_TEMPERATURE_MAX 0x1p+7f

struct sample_params {
    float temperature; /* 0, or SAMPLE_TEMPERATURE_MIN .. _MAX */
    float top_p;       /* 0 < p <= 1; 1 keeps all */
    float min_p;       /* 0 <= q <= 1; 0 keeps all */
    uint32_t top_k;    /* 0 keeps all */
    uint64_t seed;
};

/* 0, or -EINVAL and the text names the field and what it may be; NaN is refused everywhere, and
 * a top_k above vocab. */
int sample_check(const struct sample_params *p, uint32_t vocab, struct err *e);

/* The row's logsumexp (SPEC 2.10), and false where it or the largest logit is not finite; a NaN
 * is then the one of SPEC 2.1. */
bool sample_lse(const float *logits, uint32_t vocab, float *out_lse);

/* The id drawn at `position` (SPEC 2.11).  scratch: vocab times 8 bytes, 8-byte aligned.  Where
 * the largest logit, or it over the temperature, is not finite, e has no value: the first id. */
uint32_t sample_choose(const float *logits, uint32_t vocab, const struct sample_params *p,
                       uint32_t position, void *scratch);

/* The n most probable ids, in order; n <= SAMPLE_TOP_MAX, n <= vocab. */
void sample_top(const float *logits, uint32_t vocab, uint32_t n, uint32_t *out_ids);

#endif
