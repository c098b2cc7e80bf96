/* bench_load - a load upon a daemon: who asks for what and when, and what came of it.
 *
 * Owns:   a load owns its tables, from bench_load_open to bench_load_close; the prompts' text is
 *         the caller's.
 * Thread: one.
 * Fails:  with an exit code (enum bench_exit), the reason on stderr. */
#ifndef LLM42D_TOOLS_BENCH_LOAD_H
#define LLM42D_TOOLS_BENCH_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/bench_verbs.h"
#include "tools/llm42.h"

enum bench_load_state { BENCH_TO_COME, BENCH_LIVE, BENCH_DONE, BENCH_REFUSED };

struct bench_load_request {
    uint32_t id;    /* which prompt and seed: the same id asks for the same */
    int64_t due_ns; /* after the load's start; where not timed, when it was sent */
    uint32_t n_prompt, n_tokens;
    bool deterministic;

    enum bench_load_state state;
    uint64_t request;
    uint32_t n_seen;
    int64_t first_ns, last_ns, done_ns; /* of its tokens, and of its end */
    uint32_t verify_passes, rollbacks, recomputed, certified;
    uint8_t digest[WIRE_DIGEST_BYTES];
    uint32_t *out_ids; /* [n_tokens] of the output, where the load keeps them */
};

/* What prompts are made of: pieces of a text, or any ids where there is none. */
struct bench_prompts {
    const uint32_t *ids; /* [n_ids] of the text, or NULL */
    uint32_t n_ids, vocab;
    uint64_t seed;
};

struct bench_load {
    uint32_t n;
    struct bench_load_request *requests; /* [n], by arrival */
    uint32_t n_cut;                      /* whose lengths had to be cut */

    uint32_t concurrency; /* in flight at once, at most */
    bool timed;           /* each is sent when it is due; else as another ends */
    uint32_t wait_ms;     /* without an event for so long it breaks off; 0: BENCH_WAIT_MS */
    bool honour_eos;      /* else every output has n_tokens */
    double temperature;
    uint64_t seed; /* and the id is the request's */
    struct bench_prompts prompts;
    uint32_t *kept; /* out_ids of all, or NULL */

    /* Of the run: pauses between two commits of one request, plain and deterministic. */
    double *gaps_ms[2]; /* [n_gaps_max] */
    size_t n_gaps[2], n_gaps_max;
    double seconds; /* from the first to the last event of all */
};

/* n requests, all zero. */
int bench_load_open(uint32_t n, struct bench_load *out_load);
/* Once lengths stand: room for what will be seen, with `keep` for ids, too. */
int bench_load_room(struct bench_load *l, bool keep);
void bench_load_close(struct bench_load *l);
/* What wait_ms is of a daemon on this device. */
uint32_t bench_load_wait_ms(const char *device);

/* As the options have it.  Arrivals, lengths and who is deterministic do not depend on each other,
 * so one may be changed and the others stay. */
int bench_load_make(const struct bench_options *o, uint32_t context, struct bench_load *out_load);
/* The prompt of request `id`, u32 each, little-endian. */
void bench_prompts_write(const struct bench_prompts *p, uint32_t id, uint32_t n, uint8_t *out);

/* Runs it against the daemon.  Without a text, bench_text is taken where ids are NULL and vocab is
 * 0.  BENCH_INTERRUPTED after a signal, with requests in flight. */
int bench_load_run(struct llm42_io *io, struct bench_load *l);

enum bench_load_class { BENCH_PLAIN, BENCH_DETERMINISTIC, BENCH_POOLED, BENCH_CLASSES };
enum bench_load_time { BENCH_FIRST, BENCH_GAP, BENCH_END, BENCH_TIMES };

/* Milliseconds of that kind, of that class; their number.  `ms` has room for the value below. */
size_t bench_load_times(const struct bench_load *l, enum bench_load_class class,
                        enum bench_load_time time, double *ms);
size_t bench_load_times_max(const struct bench_load *l);

void bench_load_report(const struct bench_options *o, const struct bench_load *l);

#endif
