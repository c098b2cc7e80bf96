/* sample_row - the passes over a whole row that sample.c is made of, and nothing else calls.
 *
 * Owns:   nothing; every function is pure.
 * Thread: any.
 *
 * Each has a portable version (sample.c) and one of AVX2 and FMA with the same bits
 * (sample_avx2.c).  A NaN logit counts as -infinity, so that every order here is total. */
#ifndef LLM42D_RUNTIME_SAMPLE_ROW_H
#define LLM42D_RUNTIME_SAMPLE_ROW_H

#include <stdint.h>

enum {
    SAMPLE_CHUNK = 128, /* ids a chunk of SPEC 2.10 */
    SAMPLE_BLOCK = 32,  /* ids a step of the race, a multiple of 4 */
};

/* Whoever leads the race of SPEC 2.11. */
struct sample_race {
    uint64_t seed;
    uint32_t position, id;
    float time; /* fl(E / e) of `id`, finite */
    float half; /* an id wins only if its word / 2 <= e * half */
};

struct sample_row {
    /* The largest logit; -infinity of none. */
    float (*max)(const float *logits, uint32_t n);
    /* The first index in from .. n-1 with a logit at or above `least`, or n. */
    uint32_t (*find)(const float *logits, uint32_t from, uint32_t n, float least);
    /* All of them, upward, into `ids`; returns how many. */
    uint32_t (*gather)(const float *logits, uint32_t n, float least, uint32_t *ids);
    /* tree of exp2p(fma(logit, LOG2E, -exponent)) over a whole chunk. */
    float (*chunk_sum)(const float *logits, float exponent);
    /* e[i] of SPEC 2.11, for 0 <= e <= 1: z_first is finite and no z is above it. */
    void (*weigh)(const float *logits, uint32_t n, float temperature, float z_first, float *e);
    /* The sum of floor(e * 2^40). */
    uint64_t (*total)(const float *e, uint32_t n);
    /* Sets e[i] to 0 where the logit is below `least` or e[i] below min_p. */
    void (*drop)(const float *logits, uint32_t n, float least, float min_p, float *e);
    /* Lets all ids run. */
    void (*run)(const float *e, uint32_t n, struct sample_race *race);
};

extern const struct sample_row sample_row_portable;

/* NULL where the processor lacks one of the two. */
const struct sample_row *sample_row_avx2(void);

/* One id of the race, exactly; the order in which ids run does not matter. */
void sample_race_id(struct sample_race *race, uint32_t id, uint32_t word, float e);

#endif
