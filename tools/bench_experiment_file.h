/* bench_experiment_file - a CSV file of rows under lines "# name: value" of conditions: taken for one
 * program, appended to by whole lines, gone on with where the conditions are the same.
 *
 * Owns:   nothing.
 * Thread: one.
 * Fails:  with an exit code (enum bench_exit), the reason on stderr. */
#ifndef LLM42D_TOOLS_BENCH_EXPERIMENT_FILE_H
#define LLM42D_TOOLS_BENCH_EXPERIMENT_FILE_H

#include <stdio.h>

#include "tools/bench_experiment.h"

enum { BENCH_CONDITIONS_BYTES = 16384 };

/* A line more. */
void bench_file_note(char text[BENCH_CONDITIONS_BYTES], const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Two programs at once would run the same runs, and each disturb the other's: BENCH_USAGE where one
 * is at work.  A last line that was not written to its end is cut off. */
int bench_file_take(const char *path, int *out_lock_fd);

/* BENCH_USAGE where the first line that differs is told; a file without any is no other. */
int bench_file_compare(const char *path, const struct bench_table *table, const char *conditions);
/* The columns of a file are those of its first row. */
int bench_file_columns(const char *path, const struct bench_table *table,
                       const struct bench_row *row);

/* NULL where it cannot be. */
FILE *bench_file_append(const char *path);
/* What was written is on the disk, or BENCH_FAILED. */
int bench_file_close(FILE *f, const char *path);

#endif
