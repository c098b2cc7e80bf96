/* logit_data - logits of every kind, that tests of sampling choose from. */
#ifndef LLM42D_TESTS_LOGIT_DATA_H
#define LLM42D_TESTS_LOGIT_DATA_H

#include <math.h>
#include <stdint.h>

#include "runtime/num.h"

enum { LOGIT_KINDS = 15 };

static inline void logit_data(float *logits, uint32_t vocab, uint32_t kind,
                              uint32_t (*next)(void)) {
    for (uint32_t i = 0; i < vocab; i++) {
        const uint32_t r = next();
        const float x = (float)(r >> 8) * 0x1p-24f;

        logits[i] = x * 30.0f - 15.0f;
        if (kind == 1) logits[i] = (float)(r % 7);       /* many equal ones */
        if (kind == 2) logits[i] = r % 50 ? -20.0f : x;  /* a few lead */
        if (kind == 3) logits[i] = 2.5f;                 /* all equal */
        if (kind == 4) logits[i] = num_from_bits(r);     /* anything */
        if (logits[i] != logits[i]) logits[i] = NUM_NAN; /* the only one we make */
        if (kind == 5 && r % 5 == 0) logits[i] = r % 2 ? NUM_NAN : -INFINITY;
        if (kind == 6) logits[i] = r % 2 ? 0.0f : -0.0f;
        if (kind == 7) logits[i] = (x - 0.5f) * 0x1p-126f;
        if (kind == 8) logits[i] = x * 300.0f;
        if (kind == 9) logits[i] = -INFINITY;
        if (kind == 10 && i == vocab / 2) logits[i] = INFINITY;
        if (kind == 11) logits[i] = (r % 2 ? x : -x) * 3e38f;
        if (kind == 12) logits[i] = x * 4e7f - (r % 2 ? 0.0f : 3e6f);  /* steps of 2, far down */
        if (kind == 13) logits[i] = r % 3 ? -86.0f - x * 10.0f : 0.0f; /* powers around -125 */
        if (kind == 14 && i == vocab / 3) logits[i] = NUM_NAN;         /* alone */
    }
}

#endif
