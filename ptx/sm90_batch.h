/* sm90_batch - what a step's upload looks like, to the host and to the kernels. */
#ifndef LLM42D_PTX_SM90_BATCH_H
#define LLM42D_PTX_SM90_BATCH_H

/* A row, as struct device_row has it.  Rows that fill up a step have the seq below: they are
 * computed as far as that harms nothing, and neither store keys nor attend. */
#define BATCH_NO_SEQ 0xffffffffu

struct batch_row {
    unsigned token, position, seq;
};

/* A row whose logits are wanted.  In those that fill up, n_top is BATCH_NO_WANT. */
#define BATCH_NO_WANT 0xffffffffu

struct batch_want {
    unsigned row;
    unsigned position; /* of the token drawn */
    unsigned target;   /* an id, or 0xffffffff */
    unsigned n_top;
    float temperature, min_p;
    unsigned top_k;    /* 0: all */
    unsigned top_part; /* top_p in units of 2^-24, rounded as SPEC 2.11 says; 0: all */
    unsigned long long seed;
};

/* struct device_result. */
#define BATCH_TOP_MAX 20

struct batch_result {
    unsigned token;
    float logprob, target_logprob, lse;
    unsigned n_top;
    unsigned top_ids[BATCH_TOP_MAX];
    float top_logprobs[BATCH_TOP_MAX];
    unsigned numeric;
};

/* Of 128 logits: SPEC 2.10. */
struct batch_chunk {
    float max, sum;
};

#endif
