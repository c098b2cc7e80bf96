#include "runtime/device_cpu_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/err.h"
#include "runtime/rope.h"

enum {
    ALIGN_BYTES = 64,
    /* What fresh pages hold.  Nothing of it is ever used, but zeros beside a sequence's last key
     * would leave the fast path of its block of eight. */
    FRESH = 0x3f803f80,
};

static struct cpu_device *self(struct device *dev) {
    return (struct cpu_device *)dev;
}

/* All that load took, in part too; what open made stays. */
static void unload(struct cpu_device *d) {
    for (uint32_t i = 0; d->locals && i < cpu_pool_threads(d->pool); i++) {
        free(d->locals[i].squares);
        free(d->locals[i].row);
        free(d->locals[i].order);
    }
    cpu_attn_close(d->attn);
    cpu_weights_close(d->weights);
    cpu_arena_close(&d->kv);
    free(d->cos);
    free(d->sin);
    free(d->x);
    free(d->qkv);
    free(d->attended);
    free(d->h);
    free(d->logits);
    free(d->panel.values);
    free(d->panel.exponents);
    free(d->panel.kinds);
    free(d->locals);
    free(d->rows);
    free(d->pages);
    free(d->wants);
    free(d->results);
    free(d->flagged);
    memset((char *)d + CPU_DEVICE_LOADED, 0, sizeof(*d) - CPU_DEVICE_LOADED);
}

void device_cpu_close(struct device *dev) {
    struct cpu_device *d = self(dev);

    if (!d) return;
    unload(d);
    cpu_pool_close(d->pool);
    free(d);
}

/* n_outer * n_inner values, zeroed so that every page of memory is there from now on. */
static int take(uint64_t *count, const char *what, uint64_t n_outer, uint64_t n_inner,
                size_t value_bytes, void *out, struct err *e) {
    uint64_t n_bytes;
    void *p = NULL;

    if (__builtin_mul_overflow(n_outer, n_inner, &n_bytes) ||
        __builtin_mul_overflow(n_bytes, value_bytes, &n_bytes) || n_bytes > SIZE_MAX / 2)
        return err_set(e, -ENOMEM, "%s: %llu times %llu values are more than can be addressed",
                       what, (unsigned long long)n_outer, (unsigned long long)n_inner);
    n_bytes = (n_bytes + ALIGN_BYTES) / ALIGN_BYTES * ALIGN_BYTES;
    p = aligned_alloc(ALIGN_BYTES, n_bytes);
    if (!p) return err_set(e, -ENOMEM, "%s: %llu bytes", what, (unsigned long long)n_bytes);
    memset(p, 0, n_bytes);
    *count += n_bytes;
    memcpy(out, &p, sizeof(p));
    return 0;
}

static int take_keys_values(struct cpu_device *d, uint64_t n_pages, size_t page_bytes,
                            struct err *e) {
    int r = cpu_arena_take(&d->kv, n_pages, page_bytes, "keys", &d->keys, e);

    return r ? r : cpu_arena_take(&d->kv, n_pages, page_bytes, "values", &d->values, e);
}

static int take_kv(struct cpu_device *d, struct err *e) {
    const struct model *m = &d->model;
    const uint64_t n_pages = (uint64_t)m->n_layers * d->limits.n_pages;
    size_t page_words = cpu_attn_page_words(m->head_dim), page_bytes;
    int r;

    if (__builtin_mul_overflow(page_words, m->n_kv_heads, &page_words) ||
        __builtin_mul_overflow(page_words, sizeof(uint32_t), &page_bytes))
        return err_set(e, -ENOMEM, "keys: a page of %u heads is more than can be addressed",
                       m->n_kv_heads);
    if ((r = take_keys_values(d, n_pages, page_bytes, e))) return r;
    if ((r = cpu_arena_map(&d->kv, "keys and values", e))) return r;
    if ((r = take_keys_values(d, n_pages, page_bytes, e))) return r;
    d->layer_words = (size_t)d->limits.n_pages * page_words;
    for (size_t i = 0; i < n_pages * page_words; i++) d->keys[i] = d->values[i] = FRESH;
    return 0;
}

static int take_locals(struct cpu_device *d, struct err *e) {
    const uint32_t n = cpu_pool_threads(d->pool);
    uint64_t *count = &d->work_bytes;
    int r;

    if ((r = take(count, "threads", n, 1, sizeof(*d->locals), &d->locals, e))) return r;
    for (uint32_t i = 0; i < n; i++) {
        struct cpu_local *l = &d->locals[i];

        r = take(count, "row sums", d->model.hidden, 1, sizeof(float), &l->squares, e);
        if (r) return r;
        r = take(count, "rows", d->model.hidden, 1, sizeof(uint16_t), &l->row, e);
        if (r) return r;
        r = take(count, "sampling", d->model.vocab, 1, sizeof(uint64_t), &l->order, e);
        if (r) return r;
    }
    return 0;
}

static int take_panel(struct cpu_device *d, struct err *e) {
    const struct device_limits *l = &d->limits;
    uint32_t n_rows = l->n_rows > l->n_logit_rows ? l->n_rows : l->n_logit_rows;
    uint32_t n_k = d->model.hidden;
    uint64_t *count = &d->work_bytes;
    int r;

    if (d->width > n_k) n_k = d->width;
    if (d->model.intermediate > n_k) n_k = d->model.intermediate;
    if (n_rows > DEVICE_CPU_PANEL_ROWS) n_rows = DEVICE_CPU_PANEL_ROWS;
    r = take(count, "panel", n_rows, n_k, sizeof(float), &d->panel.values, e);
    if (r) return r;
    r = take(count, "panel", n_rows, n_k / 2, sizeof(uint32_t), &d->panel.exponents, e);
    if (r) return r;
    return take(count, "panel", n_rows, n_k / CPU_GROUP, sizeof(uint8_t), &d->panel.kinds, e);
}

static int take_work(struct cpu_device *d, struct err *e) {
    const struct model *m = &d->model;
    const struct device_limits *l = &d->limits;
    const struct {
        const char *what;
        uint64_t n_outer, n_inner;
        size_t value_bytes;
        void *out;
    } buffers[] = {
        {"rotary tables", l->n_positions, m->head_dim / 2, sizeof(uint16_t), &d->cos},
        {"rotary tables", l->n_positions, m->head_dim / 2, sizeof(uint16_t), &d->sin},
        {"residual stream", l->n_rows, m->hidden, sizeof(uint16_t), &d->x},
        {"q, k and v", l->n_rows, d->qkv_width, sizeof(uint16_t), &d->qkv},
        {"attention", l->n_rows, d->width, sizeof(uint16_t), &d->attended},
        {"feed-forward", l->n_rows, m->intermediate, sizeof(uint16_t), &d->h},
        {"logits", l->n_logit_rows, m->vocab, sizeof(float), &d->logits},
        {"rows of a step", l->n_rows, 1, sizeof(*d->rows), &d->rows},
        {"page tables", l->n_seqs, l->n_seq_pages, sizeof(*d->pages), &d->pages},
        {"wants", l->n_wants, 1, sizeof(*d->wants), &d->wants},
        {"results", l->n_wants, 1, sizeof(*d->results), &d->results},
        {"flags", l->n_rows, 1, sizeof(*d->flagged), &d->flagged},
    };
    int r;

    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) {
        r = take(&d->work_bytes, buffers[i].what, buffers[i].n_outer, buffers[i].n_inner,
                 buffers[i].value_bytes, buffers[i].out, e);
        if (r) return r;
    }
    if ((r = take_panel(d, e))) return r;
    return take_locals(d, e);
}

/* Limits and shapes come from files: what the twin cannot do is told, not asserted. */
static int check(const struct model *m, const struct device_limits *l, struct err *e) {
    if (l->n_rows == 0 || l->n_rows > DEVICE_ROWS_MAX)
        return err_set(e, -ENOTSUP, "cpu twin: steps of %u rows, it takes 1 to %d", l->n_rows,
                       DEVICE_ROWS_MAX);
    if (l->n_seqs == 0 || l->n_pages == 0 || l->n_seq_pages == 0 || l->n_wants == 0 ||
        l->n_logit_rows == 0 || l->n_positions == 0)
        return err_set(e, -ENOTSUP, "cpu twin: a limit is 0");
    if (m->hidden % CPU_GROUP || m->intermediate % CPU_GROUP || m->head_dim % CPU_GROUP)
        return err_set(e, -ENOTSUP,
                       "cpu twin: hidden %u, intermediate %u, head_dim %u: multiples of %d alone",
                       m->hidden, m->intermediate, m->head_dim, CPU_GROUP);
    if (m->head_dim == 0 || m->head_dim > MODEL_HEAD_DIM_MAX)
        return err_set(e, -ENOTSUP, "cpu twin: head_dim %u, it takes up to %d", m->head_dim,
                       MODEL_HEAD_DIM_MAX);
    if (m->n_kv_heads == 0 || m->n_heads % m->n_kv_heads)
        return err_set(e, -ENOTSUP, "cpu twin: %u heads on %u of keys and values", m->n_heads,
                       m->n_kv_heads);
    return 0;
}

int device_cpu_load(struct device *dev, const struct model *m, struct weights *w,
                    const struct device_limits *limits, struct err *e) {
    struct cpu_device *d = self(dev);
    int r;

    unload(d);
    if ((r = check(m, limits, e))) return r;
    d->model = *m;
    d->limits = *limits;
    d->width = m->n_heads * m->head_dim;
    d->kv_width = m->n_kv_heads * m->head_dim;
    d->qkv_width = d->width + 2 * d->kv_width;
    /* What may be too much comes before the long reading. */
    if ((r = take_kv(d, e))) return r;
    if ((r = take_work(d, e))) return r;
    if ((r = cpu_attn_open(m, limits, d->pool, d->code, &d->attn, e))) return r;
    d->work_bytes += cpu_attn_bytes(d->attn);
    rope_tables(m, limits->n_positions, d->cos, d->sin);
    return cpu_weights_load(m, w, &d->weights, e);
}
