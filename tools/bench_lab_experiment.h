/* bench_lab_experiment - experiments of the paper in this process: a row a setting in a CSV file,
 * what is there is not measured again.
 *
 * Owns:   the file while it runs; the device is bench_lab's.
 * Thread: one.
 * Fails:  with an exit code (enum bench_exit), the reason on stderr; what bench_lab fails at ends
 *         the program. */
#ifndef LLM42D_TOOLS_BENCH_LAB_EXPERIMENT_H
#define LLM42D_TOOLS_BENCH_LAB_EXPERIMENT_H

#include "tools/bench_experiment_file.h"
#include "tools/bench_lab.h"

enum { BENCH_LABS = 4, BENCH_LAB_SETS = 3, BENCH_LAB_KEYS = 3 };
extern const char *const bench_lab_names[BENCH_LABS];    /* gemm, norm, invariance, verify-cost */
extern const char *const bench_lab_sets[BENCH_LAB_SETS]; /* canonical, tuned, stock */

struct bench_lab_run {
    const struct bench_options *o;
    const char *name;
    char path[4096], conditions[BENCH_CONDITIONS_BYTES];
    int lock_fd;
    struct bench_table table; /* as it was */
    bool begun, is_cuda;
    struct bench_lab lab;
    uint32_t n_there, n_done, n_wrong;
};

/* Whether the row of this key is to be measured: it is not there, and nobody said stop. */
bool bench_lab_wants(struct bench_lab_run *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
int bench_lab_row(struct bench_lab_run *r, const struct bench_row *row);
/* Canonical bits that changed: the row stays out, and the program fails. */
void bench_lab_wrong(struct bench_lab_run *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* By number of bench_lab_sets. */
struct schedule bench_lab_schedule(const struct bench_lab *l, uint32_t set, uint32_t n_rows,
                                   uint32_t n_seqs, uint32_t n_keys);

int bench_lab_gemm(struct bench_lab_run *r);
int bench_lab_norm(struct bench_lab_run *r);
int bench_lab_invariance(struct bench_lab_run *r);
int bench_lab_verify_cost(struct bench_lab_run *r);

bool bench_lab_is(const char *name); /* NULL is none */
/* Into the folder o->out, which is there. */
int bench_lab_experiment(const struct bench_options *o);

#endif
