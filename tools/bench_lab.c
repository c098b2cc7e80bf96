#include "tools/bench_lab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device_cuda.h"
#include "runtime/err.h"
#include "runtime/forward.h"
#include "runtime/weights.h"

enum {
    LAYERS_MIN = 8,
    LAYERS_MAX = 256,
    CALLS = 32, /* of a stage at once, or one a layer: a graph, where the device has them */
    HEADS = 8,  /* likewise */
    CONTEXT_MIN = 2048,
};

void bench_lab_must(int r, const struct err *e) {
    if (r >= 0) return;
    bench_say("%s", e->text[0] ? e->text : strerror(-r));
    exit(BENCH_FAILED);
}

void *bench_lab_take(size_t n, size_t bytes) {
    void *p = calloc(n, bytes);

    if (p) return p;
    bench_say("no memory for %zu values", n);
    exit(BENCH_FAILED);
}

/* ---- The model ---- */

/* So many that the smallest matrix of all of them is beyond L2. */
static uint32_t cold_layers(const struct model *m) {
    const uint32_t n =
        (uint32_t)(BENCH_LAB_COLD_BYTES / (2ull * m->hidden * m->n_heads * m->head_dim)) + 1;

    return n < LAYERS_MIN ? LAYERS_MIN : n > LAYERS_MAX ? LAYERS_MAX : n;
}

static int device_open(const struct bench_options *o, const char *device, struct device **out_dev,
                       struct err *e) {
    const struct device_cuda_options cuda = {.cache_folder = o->cache};
    const struct device_cpu_options cpu = {.n_threads = bench_threads(o)};

    return strcmp(device, "cuda") == 0 ? device_cuda_open(&cuda, out_dev, e)
                                       : device_cpu_open(&cpu, out_dev, e);
}

void bench_lab_open(struct bench_lab *l, const struct bench_options *o, const char *device,
                    const struct model *m, const struct bench_lab_size *size) {
    /* Of a model that is geometry only: shorter contexts than the stages want are none. */
    const uint32_t context = m->context > CONTEXT_MIN ? m->context : CONTEXT_MIN;
    const uint32_t n_keys = size->n_keys < context ? size->n_keys : context;
    struct device_limits limits;
    struct weights *w = NULL;
    struct err e = {""};

    *l = (struct bench_lab){
        .o = o, .model = *m, .n_layers = m->n_layers, .n_seqs_max = size->n_seqs};
    l->model.context = context;
    if (size->n_layers)
        l->model.n_layers = size->n_layers == UINT32_MAX ? cold_layers(m) : size->n_layers;
    l->n_seq_pages = (n_keys + DEVICE_PAGE_TOKENS - 1) / DEVICE_PAGE_TOKENS;
    l->n_pages = size->n_tokens / DEVICE_PAGE_TOKENS;
    if (l->n_pages < l->n_seq_pages) l->n_pages = l->n_seq_pages;
    l->n_logit_rows = size->n_seqs < BENCH_LAB_LOGIT_ROWS ? size->n_seqs : BENCH_LAB_LOGIT_ROWS;
    limits = (struct device_limits){.n_rows = size->n_rows,
                                    .n_seqs = size->n_seqs,
                                    .n_pages = l->n_pages,
                                    .n_seq_pages = l->n_seq_pages,
                                    .n_wants = size->n_seqs,
                                    .n_logit_rows = l->n_logit_rows,
                                    .n_positions = l->n_seq_pages * DEVICE_PAGE_TOKENS};
    bench_lab_must(device_open(o, device, &l->dev, &e), &e);
    bench_lab_must(weights_make_up(&l->model, o->seed, &w, &e), &e);
    bench_lab_must(l->dev->ops->load(l->dev, &l->model, w, &limits, &e), &e);
    weights_close(w);
    l->dev->ops->describe(l->dev, l->describe, sizeof(l->describe));
    l->pages = bench_lab_take((size_t)size->n_seqs * l->n_seq_pages, sizeof(*l->pages));
    l->rows = bench_lab_take(size->n_rows, sizeof(*l->rows));
    l->wants = bench_lab_take(size->n_seqs, sizeof(*l->wants));
    l->results = bench_lab_take(size->n_seqs, sizeof(*l->results));
    l->flagged = bench_lab_take(size->n_rows, sizeof(*l->flagged));
    /* Between 2^-8 and 2, another a page. */
    for (uint32_t i = 0; i < l->n_pages; i++)
        bench_lab_must(
            l->dev->ops->poison(l->dev, i, (uint16_t)(0x3b80 + i * 2654435761u % 0x480), &e), &e);
}

void bench_lab_close(struct bench_lab *l) {
    l->dev->ops->close(l->dev);
    free(l->pages);
    free(l->rows);
    free(l->wants);
    free(l->results);
    free(l->flagged);
}

/* ---- Steps ---- */

void bench_lab_batch_run(struct bench_lab *l) {
    const struct schedule canonical = schedule_canonical();
    struct err e = {""};

    bench_lab_must(forward_run(l->dev, l->model.n_layers, l->n_logit_rows, &l->batch, &canonical,
                               l->results, l->flagged, &e),
                   &e);
    bench_lab_must(l->dev->ops->upload(l->dev, &l->batch, &e), &e);
}

void bench_lab_batch(struct bench_lab *l, uint32_t n_rows, uint32_t n_seqs, uint32_t n_keys) {
    /* A sequence's pages far from each other. */
    for (uint32_t i = 0; i < n_seqs; i++)
        for (uint32_t p = 0; p < l->n_seq_pages; p++)
            l->pages[i * l->n_seq_pages + p] = (p * n_seqs + i) % l->n_pages;
    for (uint32_t i = 0; i < n_rows; i++)
        l->rows[i] = (struct device_row){(17 * i + 5) % l->model.vocab,
                                         n_seqs == 1 ? n_keys - n_rows + i : n_keys - 1,
                                         n_seqs == 1 ? 0 : i};
    l->batch = (struct device_batch){.n_rows = n_rows,
                                     .rows = l->rows,
                                     .n_seqs = n_seqs,
                                     .pages = l->pages,
                                     .n_wants = n_rows < l->n_seqs_max ? n_rows : l->n_seqs_max,
                                     .wants = l->wants};
    for (uint32_t i = 0; i < l->batch.n_wants; i++)
        l->wants[i] =
            (struct device_want){.row = i, .target = DEVICE_NO_TOKEN, .params = {.top_p = 1}};
    bench_lab_batch_run(l);
}

void bench_lab_queue(struct bench_lab *l, enum bench_lab_stage stage, uint32_t layer,
                     const struct schedule *s) {
    const struct device_ops *ops = l->dev->ops;
    int (*const run[])(struct device *, uint32_t, const struct schedule *, struct err *) = {
        ops->attn_in, ops->attend, ops->attn_out, ops->mlp_in, ops->mlp_out};
    struct err e = {""};

    if (stage == BENCH_LAB_LOGITS) {
        bench_lab_must(ops->head(l->dev, 0, l->batch.n_wants, s, &e), &e);
        return;
    }
    for (int i = BENCH_LAB_ATTN_IN; i <= BENCH_LAB_MLP_OUT; i++)
        if (stage == BENCH_LAB_LAYER || (int)stage == i)
            bench_lab_must(run[i](l->dev, layer, s, &e), &e);
}

void bench_lab_wait(struct bench_lab *l) {
    struct err e = {""};

    bench_lab_must(l->dev->ops->copy(l->dev, l->results, l->flagged, &e), &e);
    bench_lab_must(l->dev->ops->wait(l->dev, &e), &e);
}

uint32_t bench_lab_calls(const struct bench_lab *l, enum bench_lab_stage stage) {
    const bool queues = l->dev->ops->queues;

    if (stage == BENCH_LAB_LOGITS) return queues ? HEADS : 1;
    return (queues && l->model.n_layers < CALLS ? CALLS / l->model.n_layers : 1) *
           l->model.n_layers;
}

double bench_lab_us(struct bench_lab *l, enum bench_lab_stage stage, const struct schedule *s,
                    uint32_t n) {
    const uint32_t n_calls = bench_lab_calls(l, stage);
    const int64_t begin_ns = bench_now_ns();
    struct err e = {""};

    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < n_calls; k++) bench_lab_queue(l, stage, k % l->model.n_layers, s);
        bench_lab_must(l->dev->ops->copy(l->dev, l->results, l->flagged, &e), &e);
    }
    bench_lab_must(l->dev->ops->wait(l->dev, &e), &e);
    return (double)(bench_now_ns() - begin_ns) / 1e3 / n / n_calls;
}
