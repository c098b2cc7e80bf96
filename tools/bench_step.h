/* bench_step - what the files of `llm42-bench step` share: the model, the device and a step.
 *
 * Owns:   the device and a step's arrays, while the verb runs.
 * Thread: one.
 * Fails:  whatever fails is said and ends the program. */
#ifndef LLM42D_TOOLS_BENCH_STEP_H
#define LLM42D_TOOLS_BENCH_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/device.h"
#include "tools/bench_verbs.h"

struct bench_peer;
struct err;

enum {
    BENCH_PROMPT_ROWS = 2048, /* of a step that takes in a prompt */
    BENCH_ROUNDS = 3,         /* ours and the peer's in turn */
};

struct bench_steps {
    const struct bench_options *o;
    const struct bench_report *report;
    struct bench_peer *peer; /* or NULL */
    struct device *dev;
    struct model model;
    uint32_t context, n_seqs, n_seq_pages, n_pages, n_rows_max;
    uint32_t *pages; /* [n_seqs][n_seq_pages] */
    struct device_row *rows;
    struct device_want *wants;
    struct device_result *results;
    uint8_t *flagged;
    struct device_batch batch;
    struct device_result alone; /* of row 0, canonical and greedy, in the first step of all */
    bool has_alone;
};

/* What a step came to, microseconds. */
struct bench_times {
    double wall, gpu, host;
};

void bench_step_must(int r, const struct err *e);
void *bench_step_take(size_t n, size_t bytes); /* zeros */

/* The step to come: a row for each of the first n sequences, at its last position; or a prompt's
 * first rows, on pages of all sequences. */
void bench_step_make_decode(struct bench_steps *s, uint32_t n, bool drawn);
void bench_step_make_prompt(struct bench_steps *s);

struct bench_times bench_step_measure(struct bench_steps *s, const struct schedule *schedule);
/* Microseconds that the GPU needs for what `queue_some` queues, the copy of results last: some
 * more behind the first, without a wait. */
double bench_step_gpu_us(struct bench_steps *s,
                         void (*queue_some)(struct bench_steps *, const void *), const void *ctx);

/* Of a canonical step of decode: row 0 has the bits it has beside any neighbours, and its choice
 * is the twin's on the same logits. */
void bench_step_check(struct bench_steps *s, bool drawn);

#endif
