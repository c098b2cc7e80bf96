/* schedule - the order of every reduction of a step, as a value (SPEC 2.3).
 *
 * Owns:   nothing; every function is pure.
 * Thread: any.
 *
 * Equal schedules give equal bits.  What is not in a schedule (tiles, stages, who computes
 * what) may be tuned freely: it changes speed alone.  The canonical schedule depends on nothing,
 * so a row computed by it has the same bits beside any neighbours; a fast one is chosen by the
 * size of the step and gives candidates, which dvr judges.  Where a fast one comes out as the
 * canonical value, its step is a canonical step. */
#ifndef LLM42D_RUNTIME_SCHEDULE_H
#define LLM42D_RUNTIME_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct model;

enum {
    SCHEDULE_KV_BLOCK = 128,  /* keys between two looks at the maximum, in every schedule */
    SCHEDULE_LSE_CHUNK = 128, /* ids of a logsumexp chunk, in every schedule */
    SCHEDULE_SEGMENTS_MAX = 16,
    SCHEDULE_RUN_MAX = 8,
    SCHEDULE_SPLIT_MAX = 1 << 20,
    SCHEDULE_TEXT_BYTES = 128,
};

struct schedule {
    uint8_t qkv, o, gate_up, down, head; /* K segments, powers of two: SPEC 2.4 */
    uint8_t norm_run;                    /* adjacent squares summed serially: SPEC 2.5 */
    uint32_t split_keys;                 /* of a KV split, a multiple of SCHEDULE_KV_BLOCK */
};

/* What a fast schedule is chosen by. */
struct schedule_load {
    uint32_t n_rows; /* of the step */
    uint32_t n_seqs; /* sequences with a row in it */
    uint32_t n_keys; /* the longest of them, in positions */
};

struct schedule schedule_canonical(void);

/* The fastest cuts as measured on an H200 for a step of this load, each by itself, and the
 * canonical ones where a shape was not measured (schedule_sm90.inc). */
struct schedule schedule_tuned(const struct model *m, const struct schedule_load *load);

/* The cuts that a stock library takes for this load on a device of 132 units: K in as many
 * segments, and keys in as many splits, as fill it.  Equal to the canonical value only by chance. */
struct schedule schedule_stock(const struct model *m, const struct schedule_load *load);

/* Which of the two a step is on that need not be canonical. */
enum schedule_set { SCHEDULE_TUNED, SCHEDULE_STOCK, SCHEDULE_SETS };
const char *schedule_set_name(enum schedule_set set);
struct schedule schedule_fast(enum schedule_set set, const struct model *m,
                              const struct schedule_load *load);

bool schedule_equal(const struct schedule *a, const struct schedule *b);

/* 0, or -EINVAL where no device could keep to it. */
int schedule_check(const struct schedule *s, struct err *e);

/* One spelling a value, for logs and for the fingerprint.  Returns its length. */
size_t schedule_write(const struct schedule *s, char text[SCHEDULE_TEXT_BYTES]);

/* Values of one K segment: n_k padded with zeros to a multiple of 16 * segments, and cut. */
uint32_t schedule_segment(uint32_t n_k, uint32_t segments);

#endif
