/* bench_length - how long prompts and outputs are: from traces, or drawn.
 *
 * Owns:   rows read are the caller's, by free.
 * Thread: one.
 * Fails:  with an exit code (enum bench_exit), the reason on stderr. */
#ifndef LLM42D_TOOLS_BENCH_LENGTH_H
#define LLM42D_TOOLS_BENCH_LENGTH_H

#include <stdbool.h>
#include <stdint.h>

struct bench_random;

struct bench_length {
    uint32_t n_prompt, n_tokens;
    int64_t at_ns; /* of arrival, after the first row; 0 where the trace has no times */
};

/* A CSV file with a line of names.  *out_timed: it has a column of arrivals. */
int bench_length_read(const char *path, struct bench_length **out_rows, uint32_t *out_n,
                      bool *out_timed);

/* Of a log-normal distribution with this mean and median, 1 at least. */
double bench_length_draw(struct bench_random *r, double mean, double median);

/* Cuts to what can be served; true where something had to go. */
bool bench_length_cut(struct bench_length *l, uint32_t max_tokens, uint32_t context);

#endif
