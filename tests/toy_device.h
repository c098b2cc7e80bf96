/* toy_device - a device whose "model" is a hash, and whose tuned steps leave dirt behind.
 *
 * A position's KV is a hash of its token; one written by a tuned step carries dirt as well.  A row
 * reads all KV up to its own through the page table; any dirt changes its logprob bits, and in a
 * tuned step often its token.  So KV that should have been rewritten, dropped or never shared
 * shows in the digest, a page read by mistake stops the test, and a run costs microseconds. */
#ifndef LLM42D_TESTS_TOY_DEVICE_H
#define LLM42D_TESTS_TOY_DEVICE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/device.h"
#include "runtime/err.h"
#include "runtime/weights.h"

struct toy_kv {
    uint32_t token; /* hash of token and position; TOY_POISON: nobody wrote it */
    uint32_t dirt;
};

enum { TOY_POISON = -1 };

struct toy_row {
    uint64_t clean, dirt; /* folds of all KV up to the row */
};

/* What a test wants otherwise; all may be left out. */
struct toy_hooks {
    bool steady;     /* dirt shows in the logprobs, never in the tokens */
    bool keeps_dirt; /* keys and values that a tuned step left are not written again */
    /* The token of a wanted row, of any step; `position` is where it would stand. */
    uint32_t (*token)(void *context, const struct device_want *want, uint32_t position,
                      uint32_t token);
    bool (*flagged)(void *context, const struct device_row *row); /* by attention */
    void (*wait)(void *context); /* while the engine waits for a step */
    void *context;
};

struct toy_device {
    struct device base;
    struct toy_hooks hooks;
    struct device_limits limits;
    uint32_t vocab, n_layers;
    bool tuned;
    struct toy_kv *kv; /* [n_pages][DEVICE_PAGE_TOKENS] */
    struct device_row *rows;
    uint32_t n_rows, n_seqs, n_wants;
    uint32_t *pages;
    struct device_want *wants;
    struct toy_row *state;
    struct device_result *results;
    uint64_t n_rows_total, n_lines_total; /* lines of page tables that were brought */
    struct device_result *out_results;    /* of the step under way */
    uint8_t *out_flagged;
};

static inline uint64_t toy_mix(uint64_t h, uint64_t x) {
    h ^= x + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
    h *= 0xff51afd7ed558ccdull;
    return h ^ h >> 32;
}

static struct toy_kv *toy_at(struct toy_device *t, const struct device_row *row,
                             uint32_t position) {
    uint32_t page =
        t->pages[(size_t)row->seq * t->limits.n_seq_pages + position / DEVICE_PAGE_TOKENS];

    ASSERT(page < t->limits.n_pages);
    return &t->kv[(size_t)page * DEVICE_PAGE_TOKENS + position % DEVICE_PAGE_TOKENS];
}

static void toy_close(struct device *dev) {
    struct toy_device *t = (struct toy_device *)dev;

    free(t->kv);
    free(t->rows);
    free(t->pages);
    free(t->wants);
    free(t->state);
    free(t->results);
    free(t);
}

static int toy_load(struct device *dev, const struct model *m, struct weights *w,
                    const struct device_limits *limits, struct err *e) {
    struct toy_device *t = (struct toy_device *)dev;

    (void)w;
    t->limits = *limits;
    t->vocab = m->vocab;
    t->n_layers = m->n_layers;
    t->kv = malloc((size_t)limits->n_pages * DEVICE_PAGE_TOKENS * sizeof(t->kv[0]));
    t->rows = calloc(limits->n_rows, sizeof(t->rows[0]));
    t->pages = malloc((size_t)limits->n_seqs * limits->n_seq_pages * sizeof(t->pages[0]));
    t->wants = calloc(limits->n_wants, sizeof(t->wants[0]));
    t->state = calloc(limits->n_rows, sizeof(t->state[0]));
    t->results = calloc(limits->n_wants, sizeof(t->results[0]));
    if (!t->kv || !t->rows || !t->pages || !t->wants || !t->state || !t->results)
        return err_set(e, -ENOMEM, "toy");
    /* No page has these numbers: a line that was not brought shows. */
    memset(t->pages, 0xff, (size_t)limits->n_seqs * limits->n_seq_pages * sizeof(t->pages[0]));
    memset(t->kv, 0xff, (size_t)limits->n_pages * DEVICE_PAGE_TOKENS * sizeof(t->kv[0]));
    return 0;
}

/* Lines that do not change are not brought again, and not looked at. */
static void toy_pages(struct toy_device *t, const struct device_batch *b) {
    const uint32_t n = t->limits.n_seq_pages, n_lines = b->changed ? b->n_changed : b->n_seqs;

    t->n_lines_total += n_lines;
    for (uint32_t i = 0; i < n_lines; i++) {
        const size_t at = (size_t)(b->changed ? b->changed[i] : i) * n;

        memcpy(t->pages + at, b->pages + at, n * sizeof(t->pages[0]));
    }
}

static int toy_upload(struct device *dev, const struct device_batch *b, struct err *e) {
    struct toy_device *t = (struct toy_device *)dev;

    (void)e;
    ASSERT(b->n_rows > 0 && b->n_rows <= t->limits.n_rows && b->n_seqs <= t->limits.n_seqs);
    ASSERT(b->n_wants <= t->limits.n_wants);
    t->n_rows = b->n_rows;
    t->n_seqs = b->n_seqs;
    t->n_wants = b->n_wants;
    t->n_rows_total += b->n_rows;
    memcpy(t->rows, b->rows, b->n_rows * sizeof(t->rows[0]));
    toy_pages(t, b);
    memcpy(t->wants, b->wants, b->n_wants * sizeof(t->wants[0]));
    for (uint32_t i = 0; i < b->n_rows; i++) {
        ASSERT(b->rows[i].token < t->vocab && b->rows[i].seq < b->n_seqs);
        if (i > 0 && b->rows[i].seq == b->rows[i - 1].seq)
            ASSERT(b->rows[i].position == b->rows[i - 1].position + 1);
        for (uint32_t j = 0; i > 0 && b->rows[i].seq != b->rows[i - 1].seq && j < i; j++)
            ASSERT(b->rows[j].seq != b->rows[i].seq); /* rows of one stand together */
    }
    return 0;
}

static int toy_nothing(struct device *dev, struct err *e) {
    (void)dev;
    (void)e;
    return 0;
}

static int toy_attn_in(struct device *dev, uint32_t layer, const struct schedule *s,
                       struct err *e) {
    struct toy_device *t = (struct toy_device *)dev;
    struct schedule canonical = schedule_canonical();

    (void)e;
    t->tuned = !schedule_equal(s, &canonical);
    if (layer > 0) return 0;
    for (uint32_t i = 0; i < t->n_rows; i++) {
        struct toy_kv *kv = toy_at(t, &t->rows[i], t->rows[i].position);

        const uint32_t token =
            (uint32_t)toy_mix(t->rows[i].token, t->rows[i].position) & 0x7fffffff;

        if (t->hooks.keeps_dirt && kv->token == token && kv->dirt) continue;
        kv->token = token;
        kv->dirt = t->tuned ? t->n_rows : 0;
    }
    return 0;
}

static int toy_attend(struct device *dev, uint32_t layer, const struct schedule *s, struct err *e) {
    struct toy_device *t = (struct toy_device *)dev;

    (void)s;
    (void)e;
    if (layer > 0) return 0;
    for (uint32_t i = 0; i < t->n_rows; i++) {
        struct toy_row r = {1, 0};

        for (uint32_t p = 0; p <= t->rows[i].position; p++) {
            const struct toy_kv *kv = toy_at(t, &t->rows[i], p);

            ASSERT(kv->token != (uint32_t)TOY_POISON);
            r.clean = toy_mix(r.clean, kv->token);
            if (kv->dirt) r.dirt = toy_mix(r.dirt, kv->dirt);
        }
        if (t->tuned) r.dirt = toy_mix(r.dirt, t->n_rows);
        t->state[i] = r;
    }
    return 0;
}

static int toy_layer(struct device *dev, uint32_t layer, const struct schedule *s, struct err *e) {
    (void)dev;
    (void)layer;
    (void)s;
    (void)e;
    return 0;
}

static int toy_head(struct device *dev, uint32_t first, uint32_t n, const struct schedule *s,
                    struct err *e) {
    (void)dev;
    (void)first;
    (void)n;
    (void)s;
    (void)e;
    return 0;
}

static float toy_logprob(uint64_t h) {
    return -(float)(h >> 40 | 1) * 0x1p-20f;
}

static int toy_sample(struct device *dev, uint32_t first, uint32_t n, struct err *e) {
    struct toy_device *t = (struct toy_device *)dev;

    (void)e;
    for (uint32_t i = first; i < first + n; i++) {
        const struct device_want *want = &t->wants[i];
        const struct toy_row *row = &t->state[want->row];
        uint64_t h = toy_mix(row->clean, want->params.temperature > 0 ? want->params.seed : 0);
        struct device_result *r = &t->results[i];

        memset(r, 0, sizeof(*r));
        r->token = (uint32_t)(h >> 20) % t->vocab;
        /* Dirt flips one token in eight, and always the bits. */
        if (row->dirt && !t->hooks.steady && toy_mix(h, row->dirt) % 8 == 0)
            r->token = (r->token + 1) % t->vocab;
        if (t->hooks.token)
            r->token =
                t->hooks.token(t->hooks.context, want, t->rows[want->row].position + 1, r->token);
        r->logprob = toy_logprob(toy_mix(row->clean, row->dirt));
        r->target_logprob = toy_logprob(toy_mix(toy_mix(row->clean, row->dirt), want->target));
        r->n_top = want->n_top;
        for (uint32_t k = 0; k < want->n_top; k++) {
            r->top_ids[k] = (r->token + k) % t->vocab;
            r->top_logprobs[k] = r->logprob - (float)k;
        }
    }
    return 0;
}

/* Nothing is there before `wait`; what was there is spoilt, so that a look too early shows. */
static int toy_copy(struct device *dev, struct device_result *out_results, uint8_t *out_flagged,
                    struct err *e) {
    struct toy_device *t = (struct toy_device *)dev;

    (void)e;
    memset(out_results, 0xff, t->n_wants * sizeof(t->results[0]));
    memset(out_flagged, 0xff, t->n_rows);
    t->out_results = out_results;
    t->out_flagged = out_flagged;
    return 0;
}

static int toy_wait(struct device *dev, struct err *e) {
    struct toy_device *t = (struct toy_device *)dev;

    (void)e;
    if (t->hooks.wait) t->hooks.wait(t->hooks.context);
    memcpy(t->out_results, t->results, t->n_wants * sizeof(t->results[0]));
    for (uint32_t i = 0; i < t->n_rows; i++)
        t->out_flagged[i] = t->hooks.flagged && t->hooks.flagged(t->hooks.context, &t->rows[i]);
    return 0;
}

static int toy_poison(struct device *dev, uint32_t page, uint16_t pattern, struct err *e) {
    struct toy_device *t = (struct toy_device *)dev;

    (void)pattern;
    (void)e;
    memset(&t->kv[(size_t)page * DEVICE_PAGE_TOKENS], 0xff, DEVICE_PAGE_TOKENS * sizeof(t->kv[0]));
    return 0;
}

static void toy_describe(const struct device *dev, char *text, size_t n_bytes) {
    (void)dev;
    (void)snprintf(text, n_bytes, "toy");
}

static void toy_memory(const struct device *dev, uint64_t *w, uint64_t *kv, uint64_t *work) {
    (void)dev;
    *w = *kv = *work = 0;
}

static uint64_t toy_room_pages; /* 0: it does not say */

static int toy_room(struct device *dev, const struct model *m, const struct device_limits *limits,
                    uint64_t *out_n_pages, struct err *e) {
    (void)dev, (void)m, (void)limits, (void)e;
    *out_n_pages = toy_room_pages;
    return 0;
}

static const struct device_ops toy_ops = {
    .name = "toy",
    .close = toy_close,
    .load = toy_load,
    .room = toy_room,
    .upload = toy_upload,
    .embed = toy_nothing,
    .attn_in = toy_attn_in,
    .attend = toy_attend,
    .attn_out = toy_layer,
    .mlp_in = toy_layer,
    .mlp_out = toy_layer,
    .head = toy_head,
    .sample = toy_sample,
    .copy = toy_copy,
    .wait = toy_wait,
    .poison = toy_poison,
    .describe = toy_describe,
    .memory = toy_memory,
};

/* Whether toys claim to compute beside their caller, from the next one opened on. */
static bool toy_queues;

static inline struct device *toy_open_with(const struct toy_hooks *hooks) {
    static struct device_ops queueing;
    struct toy_device *t = calloc(1, sizeof(*t));

    ASSERT(t);
    queueing = toy_ops;
    queueing.queues = true;
    t->base.ops = toy_queues ? &queueing : &toy_ops;
    t->hooks = *hooks;
    return &t->base;
}

static inline struct device *toy_open(void) {
    static const struct toy_hooks none;

    return toy_open_with(&none);
}

#endif
