/* bench_experiment - experiments of the paper: a plan of runs, each a load upon a daemon of its
 * own, a row each in a CSV file.
 *
 * Owns:   as each struct says.
 * Thread: one.
 * Fails:  with an exit code (enum bench_exit), the reason on stderr.
 *
 * The requests of a workload are numbered and follow from the seed alone; a run takes the first of
 * them in an order of its own, draws who is deterministic, and when each comes.  So one reference
 * holds for all runs of a workload. */
#ifndef LLM42D_TOOLS_BENCH_EXPERIMENT_H
#define LLM42D_TOOLS_BENCH_EXPERIMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tools/bench_daemon.h"
#include "tools/bench_length.h"
#include "tools/bench_load.h"
#include "tools/bench_verbs.h"

enum {
    BENCH_LIST_MAX = 32,       /* entries of a list on the command line */
    BENCH_WORKLOAD_BYTES = 40, /* of a name */
    BENCH_KEY_BYTES = 192,     /* of the columns that name a row */
    BENCH_FLIGHT_MAX = 1024,   /* requests in flight: what a daemon takes */
    BENCH_CUT_POINTS = 21,     /* of a distribution in one cell: 0, 5 .. 100 % */
};

enum bench_experiment {
    BENCH_JOIN,
    BENCH_SPANS,
    BENCH_WINDOW,
    BENCH_ABLATION,
    BENCH_OFFLINE,
    BENCH_ONLINE,
    BENCH_EXPERIMENTS
};
extern const char *const bench_experiment_names[BENCH_EXPERIMENTS];

/* ---- Systems: settings of a daemon ---- */

struct bench_system {
    const char *name, *policy;
    bool flags;    /* takes deterministic requests */
    bool windows;  /* window and group mean something */
    bool mismatch; /* runs once for each forced rate */
    const char *sets[3];
};

/* NULL: no such name. */
const struct bench_system *bench_system_find(const char *name);

/* ---- The plan ---- */

#define BENCH_LAST_ONE (-1.0) /* as a share: only the last request is deterministic */

enum bench_arrivals { BENCH_AT_ONCE, BENCH_POISSON, BENCH_RECORDED };

struct bench_run {
    char workload[BENCH_WORKLOAD_BYTES];
    const struct bench_system *system;
    double share; /* per cent, or BENCH_LAST_ONE */
    enum bench_arrivals arrivals;
    double rate; /* a second; recorded: 0: as they were */
    uint32_t window, group, mismatch_ppm, n_requests, repeat;
};

struct bench_plan {
    enum bench_experiment experiment;
    uint32_t n, n_room;
    struct bench_run *runs; /* [n], in the order of running; the plan's */
};

/* What the options ask for, in full, whatever is there already. */
int bench_plan_make(const struct bench_options *o, enum bench_experiment experiment,
                    struct bench_plan *out_plan);
void bench_plan_close(struct bench_plan *p);
/* Names of the first columns, and their values for a run. */
extern const char bench_key_columns[];
void bench_run_key(const struct bench_run *r, char out_key[BENCH_KEY_BYTES]);

/* ---- Workloads ---- */

struct bench_workload {
    char name[BENCH_WORKLOAD_BYTES];
    uint32_t n, n_cut;
    struct bench_length *lengths; /* [n]; the workload's */
    bool timed;                   /* lengths have times of arrival */
};

/* Whether the name is one; says why not. */
int bench_workload_check(const struct bench_options *o, const char *name);
int bench_workload_make(const struct bench_options *o, const char *name, uint32_t n,
                        uint32_t context, struct bench_workload *out_workload);
void bench_workload_close(struct bench_workload *w);
/* The run's load; prompts are left to the caller. */
int bench_workload_load(const struct bench_options *o, const struct bench_workload *w,
                        const struct bench_run *run, bool keep_ids, struct bench_load *out_load);

/* ---- The reference: digests by policy canonical, kept in the folder ---- */

struct bench_reference {
    char path[4096];
    uint32_t n;
    bool *have; /* [n] */
    uint8_t (*digests)[WIRE_DIGEST_BYTES];
};

/* Reads what is kept for these requests under this fingerprint. */
int bench_reference_open(const struct bench_options *o, const struct bench_workload *w,
                         const struct bench_prompts *prompts, const uint8_t *fingerprint,
                         struct bench_reference *out_reference);
/* Computes digests of `need` that are not there and keeps them, also after a signal. */
int bench_reference_fill(const struct bench_options *o, const struct bench_workload *w,
                         const struct bench_prompts *prompts, struct llm42_io *io, const bool *need,
                         struct bench_reference *r);
void bench_reference_close(struct bench_reference *r);

/* ---- Rows ---- */

/* Names and values side by side, as they are added. */
struct bench_row {
    char names[4096], values[16384];
    size_t n_names, n_values;
};

void bench_row_text(struct bench_row *row, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void bench_row_number(struct bench_row *row, const char *name, double value);
/* Quantiles by name_p50, _p90, _p99; empty cells for none. */
void bench_row_quantiles(struct bench_row *row, const char *name, double *values, size_t n);
/* BENCH_CUT_POINTS quantiles in one cell, ';' between. */
void bench_row_distribution(struct bench_row *row, const char *name, double *values, size_t n);
/* All that one load shows; bound_ms: of the end, for goodput, or 0. */
int bench_row_load(struct bench_row *row, const struct bench_load *l, double bound_ms);
/* Two runs of the same requests: how far their outputs are the same. */
int bench_row_spans(struct bench_row *row, const struct bench_load *serial,
                    const struct bench_load *loaded, uint32_t *out_diverged);

/* ---- The file ---- */

struct bench_table {
    char *text;    /* of the file; what follows points into it */
    char **notes;  /* [n_notes] lines with # */
    char **names;  /* [n_columns] */
    char ***cells; /* [n_rows][n_columns] */
    uint32_t n_notes, n_columns, n_rows;
};

/* A file that is not there is a table of nothing.  A last line without its end is left out. */
int bench_table_read(const char *path, struct bench_table *out_table);
void bench_table_close(struct bench_table *t);
/* The column's number, or -1. */
int bench_table_column(const struct bench_table *t, const char *name);
/* The value behind "# name: ", or NULL. */
const char *bench_table_note(const struct bench_table *t, const char *name);
bool bench_table_has(const struct bench_table *t, const char *key);

#endif
