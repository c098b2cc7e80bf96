#ifdef LLM42_CUDA

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/cuda_impl.h"
#include "runtime/err.h"
#include "runtime/model_tensor.h"
#include "runtime/weights.h"

enum {
    EIGHT = 8, /* rows that are packed together */
    RANDOM_BLOCKS = 132 * 8,
    RANDOM_THREADS = 256,
};

/* Where on the GPU a tensor goes: as it is, or packed, its rows in eights at eights first, first +
 * step, .. of a matrix; or both. */
struct part {
    struct model_tensor t;
    CUdeviceptr to;
    const struct cuda_gemm_weight *matrix;
    uint32_t first, step;
    bool turned; /* the halves of a head go in turns */
};

static bool part_at(const struct cuda_device *d, uint32_t index, struct part *p) {
    const struct cuda_layer *l;

    *p = (struct part){.step = 1};
    if (!model_tensor_at(&d->model, index, &p->t)) return false;
    l = &d->layers[p->t.layer];
    switch (p->t.role) {
    case MODEL_NORM_IN:
        p->to = l->norm_in;
        break;
    case MODEL_Q:
        p->matrix = &l->qkv, p->turned = d->head_turn != 0;
        break;
    case MODEL_K:
        p->matrix = &l->qkv, p->first = d->width / EIGHT, p->turned = d->head_turn != 0;
        break;
    case MODEL_V:
        p->matrix = &l->qkv, p->first = (d->width + d->kv_width) / EIGHT;
        break;
    case MODEL_O:
        p->matrix = &l->o;
        break;
    case MODEL_NORM_POST:
        p->to = l->norm_post;
        break;
    case MODEL_GATE:
        p->matrix = &l->gate_up, p->step = 2;
        break;
    case MODEL_UP:
        p->matrix = &l->gate_up, p->first = 1, p->step = 2;
        break;
    case MODEL_DOWN:
        p->matrix = &l->down;
        break;
    case MODEL_EMBED:
        p->to = d->embed, p->matrix = d->model.tied ? &d->head : NULL;
        break;
    case MODEL_NORM_FINAL:
        p->to = d->norm_final;
        break;
    case MODEL_HEAD:
    case MODEL_ROLES:
        p->matrix = &d->head;
        break;
    }
    return true;
}

static int take_image(struct cuda_device *d, const char *what, struct cuda_gemm_weight *x,
                      struct err *e) {
    return cuda_memory_take(&d->memory, CUDA_MEMORY_WEIGHTS, what, x->n_bytes, 1, 1,
                            (CUdeviceptr *)&x->d_image, e);
}

static int take_matrix(struct cuda_device *d, const char *what, uint32_t n, uint32_t k,
                       uint32_t segments, bool turns, struct cuda_gemm_weight *x, struct err *e) {
    cuda_gemm_shape(x, n, k, segments, turns);
    return take_image(d, what, x, e);
}

static int take_norm(struct cuda_device *d, CUdeviceptr *out, struct err *e) {
    return cuda_memory_take(&d->memory, CUDA_MEMORY_WEIGHTS, "a norm", d->model.hidden, 1,
                            sizeof(uint16_t), out, e);
}

static int take_layer(struct cuda_device *d, struct cuda_layer *l, struct err *e) {
    const struct schedule s = schedule_canonical();
    const struct model *m = &d->model;
    int r;

    if (d->head_turn)
        cuda_gemm_shape_heads(&l->qkv, d->qkv_width, m->hidden, s.qkv, d->head_turn);
    else
        cuda_gemm_shape(&l->qkv, d->qkv_width, m->hidden, s.qkv, false);
    r = take_image(d, "qkv", &l->qkv, e);
    if (r < 0) return r;
    r = take_matrix(d, "o", m->hidden, d->width, s.o, false, &l->o, e);
    if (r < 0) return r;
    r = take_matrix(d, "gate_up", 2 * m->intermediate, m->hidden, s.gate_up, true, &l->gate_up, e);
    if (r < 0) return r;
    r = take_matrix(d, "down", m->hidden, m->intermediate, s.down, false, &l->down, e);
    if (r < 0) return r;
    if ((r = take_norm(d, &l->norm_in, e)) < 0) return r;
    return take_norm(d, &l->norm_post, e);
}

int cuda_weights_take(struct cuda_device *d, struct err *e) {
    const struct model *m = &d->model;
    int r;

    for (uint32_t i = 0; i < m->n_layers; i++)
        if ((r = take_layer(d, &d->layers[i], e)) < 0) return r;
    /* What o leaves of a row of few, down leaves too: the same rows of W, and tiles. */
    if (m->n_layers && d->layers[0].o.tile == d->layers[0].down.tile)
        d->n_squares = cuda_gemm_squares(&d->layers[0].o, 1, schedule_canonical().o);
    d->squares_stride = (d->n_squares + 4) / 4 * 4;
    r = take_matrix(d, "the head", d->logits_stride, m->hidden, schedule_canonical().head, false,
                    &d->head, e);
    if (r < 0) return r;
    if ((r = take_norm(d, &d->norm_final, e)) < 0) return r;
    r = cuda_memory_take(&d->memory, CUDA_MEMORY_WEIGHTS, "the embedding", m->vocab, m->hidden,
                         sizeof(uint16_t), &d->embed, e);
    if (r < 0) return r;
    d->staging_bytes = cuda_upload_staging_bytes(m);
    return cuda_memory_take(&d->memory, CUDA_MEMORY_WORK, "staging", d->staging_bytes, 1, 1,
                            &d->staging, e);
}

static int clear(struct cuda_device *d, const struct cuda_gemm_weight *x, struct err *e) {
    struct cuda_driver *driver = d->driver;

    return cuda_driver_check(
        driver, driver->cuda.cuMemsetD8Async(x->d_image, 0, x->n_bytes, driver->stream), "weights",
        e);
}

/* Values from `first` on of a tensor, made up where they are wanted. */
static int make_up(struct cuda_device *d, const struct weights_rule *rule, CUdeviceptr to,
                   uint64_t first, uint64_t n, struct err *e) {
    struct weights_rule x = *rule;
    void *params[] = {&to, &n, &first, &x.seed, &x.tensor, &x.base, &x.scale};
    const struct cuda_launch launch = {.entry = d->entries.random,
                                       .name = "made-up weights",
                                       .grid = {RANDOM_BLOCKS},
                                       .block = {RANDOM_THREADS},
                                       .params = params};

    return cuda_driver_launch(d->driver, &launch, e);
}

/* Rows row .. row + n - 1, which stand at `from`, filled up to whole eights. */
static int pack(struct cuda_device *d, const struct part *p, CUdeviceptr from, uint32_t row,
                uint32_t n, struct err *e) {
    const uint32_t n_whole = (n + EIGHT - 1) / EIGHT * EIGHT;

    if (p->turned)
        return cuda_gemm_pack_heads(d->gemm, p->matrix, from, n_whole, p->first, row / EIGHT, e);
    return cuda_gemm_pack(d->gemm, p->matrix, from, n_whole, p->first + row / EIGHT * p->step,
                          p->step, e);
}

/* By way of the staging buffer; what is missing to whole eights of rows is zero. */
static int make_packed(struct cuda_device *d, const struct part *p, const struct weights_rule *rule,
                       struct err *e) {
    const uint64_t row_bytes = p->t.n_k * sizeof(uint16_t);
    const uint32_t n_at_once = (uint32_t)(d->staging_bytes / row_bytes / EIGHT * EIGHT);
    int r = 0;

    for (uint32_t row = 0; r == 0 && row < p->t.n; row += n_at_once) {
        const uint32_t n = p->t.n - row < n_at_once ? p->t.n - row : n_at_once;

        r = cuda_upload_fill(d, d->driver->stream, d->staging, n, row_bytes, p->t.name, e);
        if (r == 0)
            r = make_up(d, rule, d->staging, (uint64_t)row * p->t.n_k, (uint64_t)n * p->t.n_k, e);
        if (r == 0) r = pack(d, p, d->staging, row, n, e);
    }
    return r;
}

static int make_part(struct cuda_device *d, const struct part *p, const struct weights_rule *rule,
                     struct err *e) {
    int r = 0;

    if (p->to) r = make_up(d, rule, p->to, 0, model_tensor_values(&p->t), e);
    if (r == 0 && p->matrix) r = make_packed(d, p, rule, e);
    return r;
}

static int clear_all(struct cuda_device *d, struct err *e) {
    int r = clear(d, &d->head, e);

    for (uint32_t i = 0; r == 0 && i < d->model.n_layers; i++) {
        const struct cuda_layer *l = &d->layers[i];

        r = clear(d, &l->qkv, e);
        if (r == 0) r = clear(d, &l->o, e);
        if (r == 0) r = clear(d, &l->gate_up, e);
        if (r == 0) r = clear(d, &l->down, e);
    }
    return r;
}

static int make_all(struct cuda_device *d, struct weights *w, struct err *e) {
    struct weights_rule rule;
    struct part p;
    int r = 0;

    for (uint32_t i = 0; r == 0 && part_at(d, i, &p); i++) {
        if (!weights_rule_of(w, weights_find(w, p.t.name), &rule)) ASSERT(false);
        r = make_part(d, &p, &rule, e);
    }
    return r;
}

void cuda_weights_place(const struct cuda_device *d, uint32_t index, CUdeviceptr *out_to,
                        bool *out_packed) {
    struct part p;

    if (!part_at(d, index, &p)) ASSERT(false);
    *out_to = p.to;
    *out_packed = p.matrix != NULL;
}

int cuda_weights_pack(struct cuda_device *d, uint32_t index, CUdeviceptr from, uint32_t row,
                      uint32_t n, struct err *e) {
    struct part p;

    if (!part_at(d, index, &p)) ASSERT(false);
    return pack(d, &p, from, row, n, e);
}

int cuda_weights_read(struct cuda_device *d, struct weights *w, struct err *e) {
    struct weights_rule rule;
    int r = clear_all(d, e);

    if (r < 0) return r;
    return weights_rule_of(w, weights_at(w, 0), &rule) ? make_all(d, w, e)
                                                       : cuda_upload_run(d, w, e);
}

#endif
