/* bench_report - figures, each with what it is of, its unit and where we want it to be.
 *
 * Owns:   nothing; prints to stdout.
 * Thread: one.
 *
 * As text a figure is a line under its section's title; as JSON it is an object a line, the
 * conditions being the first.  Nothing else goes to stdout. */
#ifndef LLM42D_TOOLS_BENCH_REPORT_H
#define LLM42D_TOOLS_BENCH_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bench_exit {
    BENCH_OK = 0,
    BENCH_FAILED = 1,
    BENCH_USAGE = 2,
    BENCH_UNREACHABLE = 7,
    BENCH_INTERRUPTED = 130,
};

enum { BENCH_NAME_BYTES = 96 };

struct bench_report {
    bool json;
};

/* What a figure is held against. */
struct bench_target {
    double value; /* 0: none */
    bool most;    /* `value` is the most it may be, else the least */
};

/* The machine, the build and the day. */
void bench_report_conditions(const struct bench_report *r, const char *verb, uint32_t n_threads);
void bench_report_section(const struct bench_report *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* A line of words: what a figure needs beside it. */
void bench_report_note(const struct bench_report *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* `key` is the figure's stable name, the text says what it is of. */
void bench_report_figure(const struct bench_report *r, const char *key, double value,
                         const char *unit, struct bench_target target, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));

/* A table: figures that want to be seen side by side. */
struct bench_column {
    const char *name; /* of the column, and in JSON behind the row's words */
    const char *key, *unit;
    struct bench_target target;
};

/* A cell that is not measured. */
#define BENCH_NO_CELL (-1.0)

/* The line of names, where columns of one unit may leave it to the section's title. */
void bench_report_columns(const struct bench_report *r, const struct bench_column *columns,
                          uint32_t n);
/* Below it; a row ends with its worst cell against the target. */
void bench_report_row(const struct bench_report *r, const struct bench_column *columns, uint32_t n,
                      const double *cells, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* "llm42-bench: ..." on stderr. */
void bench_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- Clock, order statistics, random numbers ---- */

int64_t bench_now_ns(void); /* CLOCK_MONOTONIC */

/* Sorts values[n]; 0 for none.  `part` of 0 .. 1, the value at rank ceil(part n). */
double bench_quantile(double *values, size_t n, double part);

struct bench_random {
    uint64_t state;
};

uint32_t bench_random_bits(struct bench_random *r);
uint32_t bench_random_below(struct bench_random *r, uint32_t n); /* n >= 1 */
double bench_random_unit(struct bench_random *r);                /* 0 <= u < 1 */
double bench_random_exponential(struct bench_random *r);         /* of mean 1 */

#endif
