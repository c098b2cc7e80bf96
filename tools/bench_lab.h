/* bench_lab - stages of a device at the shapes of a model, one by one: for experiments in this
 * process and for tune.
 *
 * Owns:   the device and a step's arrays, from open to close.
 * Thread: one.
 * Fails:  whatever fails is said and ends the program.
 *
 * The model is geometry only, its weights made up from the seed. */
#ifndef LLM42D_TOOLS_BENCH_LAB_H
#define LLM42D_TOOLS_BENCH_LAB_H

#include <stdint.h>

#include "runtime/device.h"
#include "tools/bench_verbs.h"

enum {
    BENCH_LAB_COLD_BYTES = 100 << 20, /* twice the L2 of an H200 */
    BENCH_LAB_LOGIT_ROWS = 256,
};

/* Stages of device.h; of LOGITS all wanted rows at once; LAYER: all of a layer, one after another. */
enum bench_lab_stage {
    BENCH_LAB_ATTN_IN,
    BENCH_LAB_ATTEND,
    BENCH_LAB_ATTN_OUT,
    BENCH_LAB_MLP_IN,
    BENCH_LAB_MLP_OUT,
    BENCH_LAB_LOGITS,
    BENCH_LAB_LAYER,
    BENCH_LAB_STAGES
};

struct bench_lab_size {
    uint32_t n_layers; /* 0: the model's; UINT32_MAX: as many as L2 does not hold, 8 at least */
    uint32_t n_rows, n_seqs, n_keys; /* at most; n_seqs: also of wanted rows */
    uint32_t n_tokens; /* keys of all sequences; where they have more, they share pages */
};

struct bench_lab {
    const struct bench_options *o;
    struct model model;
    struct device *dev;
    uint32_t n_layers; /* of the model asked for; model.n_layers are on the device */
    uint32_t n_seq_pages, n_pages, n_seqs_max, n_logit_rows;
    uint32_t *pages; /* [n_seqs][n_seq_pages] */
    struct device_row *rows;
    struct device_want *wants;
    struct device_result *results;
    uint8_t *flagged;
    struct device_batch batch;
    char describe[128];
};

void bench_lab_must(int r, const struct err *e);
void *bench_lab_take(size_t n, size_t bytes); /* zeros */

/* device: cpu or cuda.  Keys and values are numbers from the start. */
void bench_lab_open(struct bench_lab *l, const struct bench_options *o, const char *device,
                    const struct model *m, const struct bench_lab_size *size);
void bench_lab_close(struct bench_lab *l);

/* The step to come, run once on the canonical schedule, so that every stage has its input: n_rows
 * of one sequence that ends at n_keys, or the last row of each of n_rows sequences of so many. */
void bench_lab_batch(struct bench_lab *l, uint32_t n_rows, uint32_t n_seqs, uint32_t n_keys);
/* The same of rows that the caller has made. */
void bench_lab_batch_run(struct bench_lab *l);

/* Queued. */
void bench_lab_queue(struct bench_lab *l, enum bench_lab_stage stage, uint32_t layer,
                     const struct schedule *s);
void bench_lab_wait(struct bench_lab *l); /* with results */

/* Calls of one graph, where the device has them: of the stage, or LAYER, in all layers, or of the
 * head. */
uint32_t bench_lab_calls(const struct bench_lab *l, enum bench_lab_stage stage);
/* Microseconds a call, of n times those calls. */
double bench_lab_us(struct bench_lab *l, enum bench_lab_stage stage, const struct schedule *s,
                    uint32_t n);

#endif
