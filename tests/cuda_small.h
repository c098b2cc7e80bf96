/* cuda_small - a small made-up model on the CUDA device, a step of it, and what every operation of
 * a lost device must say.  For cuda_stub_test, without a card, and device_cuda_lost_test, on one. */
#ifndef LLM42D_TESTS_CUDA_SMALL_H
#define LLM42D_TESTS_CUDA_SMALL_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/device.h"
#include "runtime/err.h"
#include "runtime/forward.h"

enum {
    SMALL_SEQS = 4,
    SMALL_SEQ_PAGES = 2,
    SMALL_WANTS = 8,
    SMALL_LOGIT_ROWS = 2,
    SMALL_VOCAB = 304,
    SMALL_LAYERS = 2,
    SMALL_ROWS = 16,
};

static const struct model small_model = {.n_layers = SMALL_LAYERS,
                                         .hidden = 128,
                                         .intermediate = 256,
                                         .n_heads = 4,
                                         .n_kv_heads = 2,
                                         .head_dim = 64,
                                         .vocab = SMALL_VOCAB,
                                         .rms_eps = 1e-5f,
                                         .rope_theta = 1e4};

static const struct device_limits small_limits = {.n_rows = SMALL_ROWS,
                                                  .n_seqs = SMALL_SEQS,
                                                  .n_pages = SMALL_SEQS * SMALL_SEQ_PAGES,
                                                  .n_seq_pages = SMALL_SEQ_PAGES,
                                                  .n_wants = SMALL_WANTS,
                                                  .n_logit_rows = SMALL_LOGIT_ROWS,
                                                  .n_positions =
                                                      SMALL_SEQ_PAGES * DEVICE_PAGE_TOKENS};

static struct device_row small_rows[SMALL_ROWS];
static struct device_want small_wants[SMALL_WANTS];
static uint32_t small_pages[SMALL_SEQS * SMALL_SEQ_PAGES];
static struct device_result small_results[SMALL_WANTS];
static uint8_t small_flagged[SMALL_ROWS];

/* Two sequences, the second of n_more rows; the last rows of both are wanted, the first twice, so
 * that the head has two turns. */
static inline struct device_batch small_batch(uint32_t n_more) {
    struct device_batch b = {.n_rows = 3 + n_more,
                             .rows = small_rows,
                             .n_seqs = 2,
                             .pages = small_pages,
                             .n_wants = 3,
                             .wants = small_wants};

    for (uint32_t i = 0; i < b.n_rows; i++)
        small_rows[i] = (struct device_row){i % SMALL_VOCAB, i < 3 ? i : i - 3, i >= 3};
    for (uint32_t i = 0; i < 2 * SMALL_SEQ_PAGES; i++) small_pages[i] = i;
    for (uint32_t i = 0; i < b.n_wants; i++)
        small_wants[i] = (struct device_want){
            .row = i == 2 ? b.n_rows - 1 : 2, .target = DEVICE_NO_TOKEN, .params = {.top_p = 1.0f}};
    return b;
}

static inline int small_step(struct device *dev, uint32_t n_more, struct err *e) {
    const struct device_batch b = small_batch(n_more);
    const struct schedule s = schedule_canonical();

    return forward_run(dev, SMALL_LAYERS, SMALL_LOGIT_ROWS, &b, &s, small_results, small_flagged,
                       e);
}

/* What tests look with. */
static inline int small_look(struct device *dev, struct err *e) {
    static uint16_t row[1024], k[64], v[64];
    int r = dev->ops->poison(dev, 3, 0x7fc0, e);

    if (r == 0) r = dev->ops->read(dev, DEVICE_X, 1, row, e);
    if (r == 0) r = dev->ops->write(dev, DEVICE_X, 1, row, e);
    if (r == 0) r = dev->ops->read_kv(dev, 1, 1, 3, 1, k, v, e);
    return r;
}

/* A layer stage by stage, each waited for by a look at what it leaves. */
static inline int small_stages(struct device *dev, struct err *e) {
    static uint16_t row[2 * SMALL_VOCAB];
    const struct device_batch b = small_batch(1);
    const struct schedule s = schedule_canonical();
    const struct device_ops *ops = dev->ops;
    int r = ops->upload(dev, &b, e);

    if (r == 0) r = ops->embed(dev, e);
    if (r == 0) r = ops->read(dev, DEVICE_X, 0, row, e);
    if (r == 0) r = ops->attn_in(dev, 0, &s, e);
    if (r == 0) r = ops->read(dev, DEVICE_QKV, 1, row, e);
    if (r == 0) r = ops->attend(dev, 0, &s, e);
    if (r == 0) r = ops->read(dev, DEVICE_ATTN, 2, row, e);
    if (r == 0) r = ops->attn_out(dev, 0, &s, e);
    if (r == 0) r = ops->mlp_in(dev, 0, &s, e);
    if (r == 0) r = ops->read(dev, DEVICE_H, 3, row, e);
    if (r == 0) r = ops->mlp_out(dev, 0, &s, e);
    if (r == 0) r = ops->head(dev, 0, 1, &s, e);
    if (r == 0) r = ops->read(dev, DEVICE_LOGITS, 0, row, e);
    if (r == 0) r = ops->sample(dev, 0, 1, e);
    return r < 0 ? r : ops->wait(dev, e);
}

/* NULL where every operation gives -EIO and says that the device is lost, else the name of one
 * that does not. */
static inline const char *small_not_lost(struct device *dev) {
    const struct device_batch b = small_batch(1);
    const struct schedule s = schedule_canonical();
    static uint16_t row[2 * SMALL_VOCAB], k[64], v[64];
    struct err e;

#define LOST(name, ...)                                                                        \
    do {                                                                                       \
        e.text[0] = '\0';                                                                      \
        if (dev->ops->name(dev, __VA_ARGS__) != -EIO || !strstr(e.text, "the device is lost")) \
            return #name;                                                                      \
    } while (0)
    LOST(upload, &b, &e);
    LOST(embed, &e);
    LOST(attn_in, 0, &s, &e);
    LOST(attend, 0, &s, &e);
    LOST(attn_out, 0, &s, &e);
    LOST(mlp_in, 0, &s, &e);
    LOST(mlp_out, 0, &s, &e);
    LOST(head, 0, 1, &s, &e);
    LOST(sample, 0, 1, &e);
    LOST(copy, small_results, small_flagged, &e);
    LOST(wait, &e);
    LOST(read, DEVICE_LOGITS, 0, row, &e);
    LOST(write, DEVICE_X, 0, row, &e);
    LOST(read_kv, 0, 0, 0, 0, k, v, &e);
    LOST(poison, 0, 0, &e);
#undef LOST
    return NULL;
}

#endif
