#include "runtime/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/cpu_row.h"
#include "runtime/device_cpu_impl.h"
#include "runtime/err.h"
#include "runtime/num.h"

enum {
    PANEL_ROWS = DEVICE_CPU_PANEL_ROWS,
    ITEM_ROWS = 4, /* of work that is small beside a product */
};

/* A stage under way: rows first .. first + n - 1 of the step, at the panel's start. */
struct stage {
    struct cpu_device *d;
    uint32_t layer;
    const uint16_t *norm; /* weights */
    uint32_t norm_run;
    const uint16_t *from; /* rows to make ready */
    uint32_t first, n;
};

static struct cpu_device *self(struct device *dev) {
    return (struct cpu_device *)dev;
}

static void check_pages(const struct cpu_device *d, const struct device_row *row) {
    const uint32_t *pages = d->pages + (size_t)row->seq * d->limits.n_seq_pages;
    const uint32_t n = row->position / DEVICE_PAGE_TOKENS + 1;

    ASSERT(n <= d->limits.n_seq_pages);
    for (uint32_t i = 0; i < n; i++) ASSERT(pages[i] < d->limits.n_pages);
}

static void copy_pages(struct cpu_device *d, const struct device_batch *batch) {
    const uint32_t n = d->limits.n_seq_pages;

    if (!batch->changed)
        memcpy(d->pages, batch->pages, (size_t)batch->n_seqs * n * sizeof(*d->pages));
    for (uint32_t i = 0; batch->changed && i < batch->n_changed; i++) {
        const size_t at = (size_t)batch->changed[i] * n;

        ASSERT(batch->changed[i] < batch->n_seqs);
        memcpy(d->pages + at, batch->pages + at, n * sizeof(*d->pages));
    }
}

static int upload(struct device *dev, const struct device_batch *batch, struct err *e) {
    struct cpu_device *d = self(dev);
    const struct device_limits *l = &d->limits;

    (void)e;
    ASSERT(batch->n_rows <= l->n_rows && batch->n_seqs <= l->n_seqs);
    ASSERT(batch->n_wants <= l->n_wants);
    copy_pages(d, batch);
    for (uint32_t i = 0; i < batch->n_rows; i++) {
        const struct device_row *row = &batch->rows[i];

        ASSERT(row->token < d->model.vocab && row->seq < batch->n_seqs);
        ASSERT(row->position < l->n_positions);
        /* The last row of a sequence reaches all pages that its other rows do. */
        if (i + 1 == batch->n_rows || row[1].seq != row->seq) check_pages(d, row);
        d->rows[i] = *row;
    }
    for (uint32_t i = 0; i < batch->n_wants; i++) {
        const struct device_want *want = &batch->wants[i];

        ASSERT(want->row < batch->n_rows && want->n_top <= SAMPLE_TOP_MAX);
        ASSERT(want->target < d->model.vocab || want->target == DEVICE_NO_TOKEN);
        d->wants[i] = *want;
    }
    d->n_rows = batch->n_rows;
    d->n_wants = batch->n_wants;
    memset(d->flagged, 0, d->n_rows);
    cpu_attn_batch(d->attn, d->rows, d->n_rows, d->pages);
    return 0;
}

static int embed(struct device *dev, struct err *e) {
    struct cpu_device *d = self(dev);
    const uint32_t n = d->model.hidden;

    (void)e;
    for (uint32_t i = 0; i < d->n_rows; i++) {
        const uint32_t token = d->rows[i].token;

        if (d->weights->embed)
            memcpy(d->x + (size_t)i * n, d->weights->embed + (size_t)token * n, n * sizeof(*d->x));
        else
            cpu_matrix_get(&d->weights->head, token, d->x + (size_t)i * n);
    }
    return 0;
}

/* Rows for a product: those of `from`, by way of a norm where there is one. */
static void make_ready(const struct stage *s, uint32_t i, const uint16_t *row, uint32_t thread) {
    struct cpu_device *d = s->d;
    const uint32_t n = d->panel.n_k;

    if (s->norm) {
        struct cpu_local *l = &d->locals[thread];

        d->code->norm(row, s->norm, n, d->model.rms_eps, s->norm_run, l->squares, l->row);
        row = l->row;
    }
    d->code->spread(row, n, d->panel.values + (size_t)i * n,
                    d->panel.exponents + (size_t)i * (n / 2),
                    d->panel.kinds + (size_t)i * (n / CPU_GROUP));
}

static void item_ready(void *ctx, uint32_t item, uint32_t thread) {
    const struct stage *s = ctx;

    for (uint32_t i = item * ITEM_ROWS; i < s->n && i < (item + 1) * ITEM_ROWS; i++)
        make_ready(s, i, s->from + (size_t)(s->first + i) * s->d->panel.n_k, thread);
}

static uint32_t items(const struct stage *s) {
    return (s->n + ITEM_ROWS - 1) / ITEM_ROWS;
}

/* Panel by panel: makes rows ready, multiplies, and what else the stage does to the panel. */
static void product(struct stage *s, const struct cpu_matrix *m, uint32_t segments,
                    cpu_gemm_out *out, cpu_pool_item *after) {
    struct cpu_device *d = s->d;

    d->panel.n_k = m->n_k;
    for (s->first = 0; s->first < d->n_rows; s->first += PANEL_ROWS) {
        s->n = d->n_rows - s->first < PANEL_ROWS ? d->n_rows - s->first : PANEL_ROWS;
        cpu_pool_run(d->pool, items(s), item_ready, s);
        cpu_gemm(d->pool, d->code, m, &d->panel, s->n, segments, out, s);
        if (after) cpu_pool_run(d->pool, items(s), after, s);
    }
}

static void out_qkv(void *ctx, uint32_t row, uint32_t block, uint32_t n_blocks, const float *y) {
    const struct stage *s = ctx;
    uint16_t *to = s->d->qkv + (size_t)(s->first + row) * s->d->qkv_width + block * CPU_LANES;

    s->d->code->round(y, n_blocks * CPU_LANES, to);
}

/* Rotates q and k, and stores k and v. */
static void rotate_row(const struct stage *s, uint32_t row) {
    struct cpu_device *d = s->d;
    const struct model *m = &d->model;
    const uint32_t dim = m->head_dim, position = d->rows[row].position;
    const uint32_t slot = position % DEVICE_PAGE_TOKENS;
    const uint32_t page =
        d->pages[(size_t)d->rows[row].seq * d->limits.n_seq_pages + position / DEVICE_PAGE_TOKENS];
    uint16_t *qkv = d->qkv + (size_t)row * d->qkv_width;
    const size_t table = (size_t)position * (dim / 2);

    for (uint32_t i = 0; i < m->n_heads + m->n_kv_heads; i++)
        cpu_row_rotate(qkv + i * dim, dim, d->cos + table, d->sin + table);
    for (uint32_t i = 0; i < m->n_kv_heads; i++) {
        const size_t at = s->layer * d->layer_words +
                          ((size_t)page * m->n_kv_heads + i) * cpu_attn_page_words(dim);

        cpu_attn_store(d->keys + at, d->values + at, dim, slot, qkv + d->width + i * dim,
                       qkv + d->width + d->kv_width + i * dim);
    }
}

static void item_rotate(void *ctx, uint32_t item, uint32_t thread) {
    const struct stage *s = ctx;

    (void)thread;
    for (uint32_t i = item * ITEM_ROWS; i < s->n && i < (item + 1) * ITEM_ROWS; i++)
        rotate_row(s, s->first + i);
}

static int attn_in(struct device *dev, uint32_t layer, const struct schedule *sch, struct err *e) {
    struct cpu_device *d = self(dev);
    const struct cpu_layer *l = &d->weights->layers[layer];
    struct stage s = {
        .d = d, .layer = layer, .norm = l->norm_in, .norm_run = sch->norm_run, .from = d->x};

    (void)e;
    product(&s, &l->qkv, sch->qkv, out_qkv, item_rotate);
    return 0;
}

static int attend(struct device *dev, uint32_t layer, const struct schedule *sch, struct err *e) {
    struct cpu_device *d = self(dev);
    const size_t at = layer * d->layer_words;

    (void)e;
    cpu_attn_run(d->attn, d->keys + at, d->values + at, d->qkv, d->qkv_width, sch->split_keys,
                 d->attended, d->flagged);
    return 0;
}

static void out_residual(void *ctx, uint32_t row, uint32_t block, uint32_t n_blocks,
                         const float *y) {
    const struct stage *s = ctx;
    uint16_t *x = s->d->x + (size_t)(s->first + row) * s->d->model.hidden + block * CPU_LANES;

    s->d->code->add(x, y, n_blocks * CPU_LANES);
}

static int attn_out(struct device *dev, uint32_t layer, const struct schedule *sch, struct err *e) {
    struct cpu_device *d = self(dev);
    struct stage s = {.d = d, .from = d->attended};

    (void)e;
    product(&s, &d->weights->layers[layer].o, sch->o, out_residual, NULL);
    return 0;
}

/* Blocks of gate and the same blocks of up in turn: SPEC 2.8. */
static void out_gated(void *ctx, uint32_t row, uint32_t block, uint32_t n_blocks, const float *y) {
    const struct stage *s = ctx;
    uint16_t *h =
        s->d->h + (size_t)(s->first + row) * s->d->model.intermediate + block / 2 * CPU_LANES;

    ASSERT(block % 2 == 0 && n_blocks % 2 == 0);
    for (uint32_t b = 0; b < n_blocks; b += 2, y += 2 * CPU_LANES, h += CPU_LANES) {
        uint16_t pair[2 * CPU_LANES];
        float product[CPU_LANES];

        s->d->code->round(y, 2 * CPU_LANES, pair);
        for (uint32_t i = 0; i < CPU_LANES; i++)
            product[i] = num_from_bf16(s->d->silu[pair[i]]) * num_from_bf16(pair[CPU_LANES + i]);
        s->d->code->round(product, CPU_LANES, h);
    }
}

static int mlp_in(struct device *dev, uint32_t layer, const struct schedule *sch, struct err *e) {
    struct cpu_device *d = self(dev);
    const struct cpu_layer *l = &d->weights->layers[layer];
    struct stage s = {.d = d, .norm = l->norm_post, .norm_run = sch->norm_run, .from = d->x};

    (void)e;
    product(&s, &l->gate_up, sch->gate_up, out_gated, NULL);
    return 0;
}

static int mlp_out(struct device *dev, uint32_t layer, const struct schedule *sch, struct err *e) {
    struct cpu_device *d = self(dev);
    struct stage s = {.d = d, .from = d->h};

    (void)e;
    product(&s, &d->weights->layers[layer].down, sch->down, out_residual, NULL);
    return 0;
}

static void item_wanted(void *ctx, uint32_t item, uint32_t thread) {
    const struct stage *s = ctx;
    struct cpu_device *d = s->d;

    for (uint32_t i = item * ITEM_ROWS; i < s->n && i < (item + 1) * ITEM_ROWS; i++)
        make_ready(s, i, d->x + (size_t)d->wants[s->first + i].row * d->model.hidden, thread);
}

/* Row 0 of the logits is the first row of this head; a panel starts at row logit_row. */
struct head {
    struct stage stage;
    uint32_t logit_row;
};

static void out_logits(void *ctx, uint32_t row, uint32_t block, uint32_t n_blocks, const float *y) {
    const struct head *h = ctx;
    const struct cpu_device *d = h->stage.d;
    const uint32_t id = block * CPU_LANES, n = n_blocks * CPU_LANES;
    const uint32_t n_left = d->model.vocab - id;

    memcpy(d->logits + (size_t)(h->logit_row + row) * d->model.vocab + id, y,
           (n < n_left ? n : n_left) * sizeof(*y));
}

static int head(struct device *dev, uint32_t first, uint32_t n, const struct schedule *sch,
                struct err *e) {
    struct cpu_device *d = self(dev);
    struct head h = {.stage = {.d = d, .norm = d->weights->norm_final, .norm_run = sch->norm_run}};
    struct stage *s = &h.stage;

    (void)e;
    ASSERT(first + n <= d->n_wants && n <= d->limits.n_logit_rows);
    d->panel.n_k = d->model.hidden;
    for (h.logit_row = 0; h.logit_row < n; h.logit_row += PANEL_ROWS) {
        s->first = first + h.logit_row;
        s->n = n - h.logit_row < PANEL_ROWS ? n - h.logit_row : PANEL_ROWS;
        cpu_pool_run(d->pool, items(s), item_wanted, s);
        cpu_gemm(d->pool, d->code, &d->weights->head, &d->panel, s->n, sch->head, out_logits, &h);
    }
    return 0;
}

static void item_sample(void *ctx, uint32_t item, uint32_t thread) {
    const struct stage *s = ctx;
    struct cpu_device *d = s->d;
    const struct device_want *want = &d->wants[s->first + item];
    const float *logits = d->logits + (size_t)item * d->model.vocab;
    const uint32_t vocab = d->model.vocab;
    struct device_result result = {.n_top = want->n_top < vocab ? want->n_top : vocab};

    if (!sample_lse(logits, vocab, &result.lse)) {
        d->results[s->first + item] = (struct device_result){.numeric = true};
        return;
    }
    result.token = sample_choose(logits, vocab, &want->params, d->rows[want->row].position + 1,
                                 d->locals[thread].order);
    result.logprob = logits[result.token] - result.lse;
    if (want->target != DEVICE_NO_TOKEN) result.target_logprob = logits[want->target] - result.lse;
    if (result.n_top) sample_top(logits, vocab, result.n_top, result.top_ids);
    for (uint32_t i = 0; i < result.n_top; i++)
        result.top_logprobs[i] = logits[result.top_ids[i]] - result.lse;
    d->results[s->first + item] = result;
}

static int sample(struct device *dev, uint32_t first, uint32_t n, struct err *e) {
    struct stage s = {.d = self(dev), .first = first, .n = n};

    (void)e;
    cpu_pool_run(s.d->pool, n, item_sample, &s);
    return 0;
}

static int copy(struct device *dev, struct device_result *out_results, uint8_t *out_flagged,
                struct err *e) {
    struct cpu_device *d = self(dev);

    (void)e;
    if (d->n_wants) memcpy(out_results, d->results, d->n_wants * sizeof(*out_results));
    if (d->n_rows) memcpy(out_flagged, d->flagged, d->n_rows);
    return 0;
}

/* Every operation here has run when it returns. */
static int wait(struct device *dev, struct err *e) {
    (void)dev;
    (void)e;
    return 0;
}

/* A row of a buffer. */
static void *row_of(struct cpu_device *d, enum device_buffer buffer, uint32_t row,
                    size_t *out_bytes) {
    const uint32_t n_rows = buffer == DEVICE_LOGITS ? d->limits.n_logit_rows : d->limits.n_rows;
    uint32_t n = 0;
    uint16_t *at = NULL;

    ASSERT(row < n_rows);
    switch (buffer) {
    case DEVICE_X:
        at = d->x, n = d->model.hidden;
        break;
    case DEVICE_QKV:
        at = d->qkv, n = d->qkv_width;
        break;
    case DEVICE_ATTN:
        at = d->attended, n = d->width;
        break;
    case DEVICE_H:
        at = d->h, n = d->model.intermediate;
        break;
    case DEVICE_LOGITS:
        *out_bytes = d->model.vocab * sizeof(float);
        return d->logits + (size_t)row * d->model.vocab;
    }
    *out_bytes = n * sizeof(*at);
    return at + (size_t)row * n;
}

static int read_row(struct device *dev, enum device_buffer buffer, uint32_t row, void *out,
                    struct err *e) {
    size_t n_bytes;
    const void *from = row_of(self(dev), buffer, row, &n_bytes);

    (void)e;
    memcpy(out, from, n_bytes);
    return 0;
}

static int write_row(struct device *dev, enum device_buffer buffer, uint32_t row, const void *in,
                     struct err *e) {
    size_t n_bytes;
    void *to = row_of(self(dev), buffer, row, &n_bytes);

    (void)e;
    memcpy(to, in, n_bytes);
    return 0;
}

static int read_kv(struct device *dev, uint32_t layer, uint32_t page, uint32_t slot,
                   uint32_t kv_head, uint16_t *out_k, uint16_t *out_v, struct err *e) {
    struct cpu_device *d = self(dev);
    const uint32_t dim = d->model.head_dim;
    const size_t at = layer * d->layer_words +
                      ((size_t)page * d->model.n_kv_heads + kv_head) * cpu_attn_page_words(dim);

    (void)e;
    ASSERT(layer < d->model.n_layers && page < d->limits.n_pages);
    ASSERT(slot < DEVICE_PAGE_TOKENS && kv_head < d->model.n_kv_heads);
    cpu_attn_fetch(d->keys + at, d->values + at, dim, slot, out_k, out_v);
    return 0;
}

static int poison(struct device *dev, uint32_t page, uint16_t pattern, struct err *e) {
    struct cpu_device *d = self(dev);
    const size_t n = (size_t)d->model.n_kv_heads * cpu_attn_page_words(d->model.head_dim);
    const uint32_t word = (uint32_t)pattern << 16 | pattern;

    (void)e;
    ASSERT(page < d->limits.n_pages);
    for (uint32_t layer = 0; layer < d->model.n_layers; layer++) {
        const size_t at = layer * d->layer_words + page * n;

        for (size_t i = 0; i < n; i++) d->keys[at + i] = d->values[at + i] = word;
    }
    return 0;
}

static void describe(const struct device *dev, char *text, size_t n_bytes) {
    const struct cpu_device *d = (const struct cpu_device *)dev;
    const uint32_t n = cpu_pool_threads(d->pool);

    snprintf(text, n_bytes, "cpu twin, %s, %u thread%s", d->code->name, n, n == 1 ? "" : "s");
}

static void memory(const struct device *dev, uint64_t *out_weights, uint64_t *out_kv,
                   uint64_t *out_work) {
    const struct cpu_device *d = (const struct cpu_device *)dev;

    *out_weights = d->weights ? d->weights->arena.n_bytes : 0;
    *out_kv = d->kv.n_bytes;
    *out_work = d->work_bytes;
}

static int room(struct device *dev, const struct model *m, const struct device_limits *limits,
                uint64_t *out_n_pages, struct err *e) {
    (void)dev, (void)m, (void)limits, (void)e;
    *out_n_pages = 0;
    return 0;
}

static const struct device_ops ops = {
    .name = "cpu",
    .close = device_cpu_close,
    .load = device_cpu_load,
    .room = room,
    .upload = upload,
    .embed = embed,
    .attn_in = attn_in,
    .attend = attend,
    .attn_out = attn_out,
    .mlp_in = mlp_in,
    .mlp_out = mlp_out,
    .head = head,
    .sample = sample,
    .copy = copy,
    .wait = wait,
    .read = read_row,
    .write = write_row,
    .read_kv = read_kv,
    .poison = poison,
    .describe = describe,
    .memory = memory,
};

int device_cpu_open(const struct device_cpu_options *options, struct device **out_dev,
                    struct err *e) {
    struct cpu_device *d = calloc(1, sizeof(*d));
    int r;

    ASSERT(options->n_threads >= 1 && options->n_threads <= CPU_POOL_THREADS_MAX);
    if (!d) return err_set(e, -ENOMEM, "cpu twin: %zu bytes", sizeof(*d));
    d->base.ops = &ops;
    d->code = options->portable ? &cpu_code_portable : cpu_code_best();
    r = cpu_pool_open(options->n_threads, &d->pool, e);
    if (r) {
        free(d);
        return r;
    }
    for (uint32_t i = 0; i < DEVICE_CPU_BF16; i++)
        d->silu[i] = num_to_bf16(num_silu(num_from_bf16((uint16_t)i)));
    *out_dev = &d->base;
    return 0;
}
