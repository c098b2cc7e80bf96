/* bench_experiment_page - an experiment's pictures, and what the paper has beside them.
 *
 * Owns:   nothing.
 * Thread: one.
 * Fails:  with an exit code (enum bench_exit), the reason on stderr. */
#ifndef LLM42D_TOOLS_BENCH_EXPERIMENT_PAGE_H
#define LLM42D_TOOLS_BENCH_EXPERIMENT_PAGE_H

#include <stdio.h>

#include "tools/bench_experiment_group.h"

/* The paper's offline throughput over its non-deterministic one at this share; 0: not published. */
double bench_published(const char *workload, double share);

/* Draws them into the folder, and writes where they are to the page. */
int bench_page_pictures(FILE *f, const char *folder, enum bench_experiment e,
                        const struct bench_groups *g);

#endif
