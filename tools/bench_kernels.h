/* bench_kernels - what the families of `llm42-bench kernels` share: a line of the table is ours on
 * two schedules, a peer's time, what bounds it, and how they compare.
 *
 * Owns:   the GPU, its kernels and the peer, while the verb runs.
 * Thread: one.
 *
 * Ours and the peer's are timed in turn, a few rounds of each, so that they share the card's
 * clocks.  Products of a step's rows are timed with pauses, all else back to back.  A kernel's result is compared bit for bit, with the twin or with the kernel that does
 * any shape, before it is timed: no time of a wrong kernel is shown, and the verb fails. */
#ifndef LLM42D_TOOLS_BENCH_KERNELS_H
#define LLM42D_TOOLS_BENCH_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/model.h"
#include "tools/bench_gpu.h"
#include "tools/bench_plot.h"
#include "tools/bench_verbs.h"

struct bench_peer;

enum { BENCH_REQUEST_BYTES = 160, BENCH_PAUSED_ROWS_MAX = 256 };

struct bench_kernels {
    const struct bench_options *o;
    const struct bench_report *report;
    struct model model; /* geometry */
    struct bench_gpu gpu;
    struct bench_peer *peer; /* or NULL */
    struct bench_plot plot;
    uint32_t n_wrong; /* kernels whose bits differ */
};

/* A line.  A graph without exec is not timed. */
struct bench_line {
    const char *family;       /* of the roofline */
    struct bench_graph graph; /* canonical */
    struct bench_graph tuned;
    bool same;                /* the tuned schedule is the canonical one */
    const char *request;      /* to the peer, or NULL */
    double pause_ms;          /* before each replay, ours and the peer's; 0: back to back */
    double bytes, flop;       /* of a call, at least */
    double of_peer, of_bound; /* targets, at least; 0: none */
};

/* Title and names of columns. */
void bench_kernels_section(const struct bench_kernels *k, const char *title);
/* Times and prints it, drops its graphs; the canonical time in microseconds. */
double bench_kernels_line(struct bench_kernels *k, struct bench_line *line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Two graphs in turn: medians in microseconds. */
void bench_kernels_pair(struct bench_kernels *k, const struct bench_graph *a,
                        const struct bench_graph *b, double pause_ms, double *out_a, double *out_b);
/* Milliseconds between replays of products of so many rows. */
double bench_kernels_pause(const struct bench_kernels *k, uint32_t n_rows);
/* False where bits differ: said, counted, and not to be timed. */
bool bench_kernels_same(struct bench_kernels *k, const char *what, const void *got,
                        const void *want, size_t n_bytes);
void *bench_kernels_host(size_t n_bytes);

/* The families. */
void bench_kernels_gemm(struct bench_kernels *k);
void bench_kernels_attn(struct bench_kernels *k);
void bench_kernels_norm(struct bench_kernels *k);

#endif
