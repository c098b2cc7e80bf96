/* bench_experiment_group - rows of a table that differ in the repeat alone, and their medians.
 *
 * Owns:   groups own their lists; the table is the caller's.
 * Thread: one.
 * Fails:  with an exit code (enum bench_exit). */
#ifndef LLM42D_TOOLS_BENCH_EXPERIMENT_GROUP_H
#define LLM42D_TOOLS_BENCH_EXPERIMENT_GROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/bench_experiment.h"

/* Places of the columns that name a row. */
enum bench_key {
    BENCH_KEY_WORKLOAD,
    BENCH_KEY_SYSTEM,
    BENCH_KEY_SHARE,
    BENCH_KEY_ARRIVALS,
    BENCH_KEY_RATE,
    BENCH_KEY_WINDOW,
    BENCH_KEY_GROUP,
    BENCH_KEY_MISMATCH,
    BENCH_KEY_REQUESTS,
    BENCH_KEY_REPEAT,
    BENCH_KEYS
};

struct bench_groups {
    const struct bench_table *table;
    uint32_t n, *first; /* [n] the first row of each */
};

struct bench_spread {
    uint32_t n; /* rows with a value; 0: none has one */
    double median, min, max;
};

int bench_groups_open(const struct bench_table *t, struct bench_groups *out_groups);
void bench_groups_close(struct bench_groups *g);
/* A key's cell of a group. */
const char *bench_group_key(const struct bench_groups *g, uint32_t group, enum bench_key key);
/* A column over its repeats. */
struct bench_spread bench_group_spread(const struct bench_groups *g, uint32_t group,
                                       const char *column);
/* The group of this system under the same workload, arrivals, rate and requests, or -1. */
int bench_group_base(const struct bench_groups *g, uint32_t group, const char *system);
/* The column's median over that of the base; false where either is not there. */
bool bench_group_ratio(const struct bench_groups *g, uint32_t group, const char *system,
                       const char *column, double *out_ratio);

#endif
