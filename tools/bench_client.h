/* bench_client - a connection to the daemon that is measured, and a load upon it.
 *
 * Owns:   a load owns its table, from bench_load_make to bench_load_free.
 * Thread: one.
 * Fails:  with an exit code (enum bench_exit), the reason on stderr. */
#ifndef LLM42D_TOOLS_BENCH_CLIENT_H
#define LLM42D_TOOLS_BENCH_CLIENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/bench_verbs.h"
#include "tools/llm42.h"

enum {
    BENCH_REQUESTS_MAX = 100000,
    BENCH_TEXT_IDS_MAX = 4096,
    BENCH_WAIT_MS = 600000, /* without an event for so long, the daemon counts as stuck */
};

/* Connects and takes the greeting. */
int bench_client_open(const char *path, struct llm42_io **out_io);
/* The next event; BROKEN and silence are failures. */
int bench_client_next(struct llm42_io *io, struct llm42_event *out_event);
int bench_client_info(struct llm42_io *io, uint32_t topic, json_t **out);
/* Ids of bench_text, by the daemon's tokenizer. */
int bench_client_ids(struct llm42_io *io, uint32_t out_ids[BENCH_TEXT_IDS_MAX], uint32_t *out_n);
/* Reports the round trip of n PINGs, one after the other. */
int bench_client_ping(const struct bench_report *r, struct llm42_io *io, uint32_t n);

enum bench_load_state { BENCH_TO_COME, BENCH_LIVE, BENCH_DONE, BENCH_REFUSED };

struct bench_load_request {
    int64_t due_ns; /* after the load's start; without a rate, when it was sent */
    uint32_t n_prompt, n_tokens;
    bool deterministic;

    enum bench_load_state state;
    uint64_t request;
    uint32_t n_seen;
    int64_t first_ns, last_ns, done_ns; /* of its tokens, and of its end */
    uint32_t rollbacks, recomputed, certified;
};

struct bench_load {
    uint32_t n;
    struct bench_load_request *requests; /* [n], by arrival */
    uint32_t n_cut;                      /* whose lengths had to be cut */

    /* Of the run: pauses between two commits of one request, plain and deterministic. */
    double *gaps_ms[2]; /* [n_gaps_max] */
    size_t n_gaps[2], n_gaps_max;
    double seconds;
};

/* Draws arrivals, lengths and who is deterministic from the seed: the three do not depend on each
 * other, so one may be changed and the others stay. */
int bench_load_make(const struct bench_options *o, uint32_t context, struct bench_load *out_load);
void bench_load_free(struct bench_load *l);
/* Runs it against the daemon. */
int bench_load_run(const struct bench_options *o, struct llm42_io *io, struct bench_load *l);
void bench_load_report(const struct bench_options *o, struct bench_load *l);

#endif
