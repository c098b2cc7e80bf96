#ifdef LLM42_CUDA

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda_impl.h"
#include "runtime/err.h"
#include "runtime/weights.h"

enum {
    NAME_BYTES = 96,
    EIGHT = 8,                /* rows that are packed together */
    STAGING_BYTES = 64 << 20, /* of rows on their way, at most */
    RANDOM_BLOCKS = 132 * 8,
    RANDOM_THREADS = 256,
};

enum role { NORM_IN, Q, K, V, O, NORM_POST, GATE, UP, DOWN, EMBED, NORM_FINAL, HEAD, N_ROLES };

static const char *const names[N_ROLES] = {
    [NORM_IN] = "input_layernorm", [Q] = "self_attn.q_proj",
    [K] = "self_attn.k_proj",      [V] = "self_attn.v_proj",
    [O] = "self_attn.o_proj",      [NORM_POST] = "post_attention_layernorm",
    [GATE] = "mlp.gate_proj",      [UP] = "mlp.up_proj",
    [DOWN] = "mlp.down_proj",      [EMBED] = "model.embed_tokens",
    [NORM_FINAL] = "model.norm",   [HEAD] = "lm_head",
};

/* One tensor of the model, [n][k] or, where n is 0, [k]; and where on the GPU it goes: as it is,
 * or packed, its rows in eights at eights first, first + step, .. of a matrix; or both. */
struct part {
    CUdeviceptr to;
    const struct cuda_gemm_weight *matrix;
    uint32_t first, step;
    uint32_t n, k;
    char name[NAME_BYTES];
};

static struct part part_of(const struct cuda_device *d, enum role role, uint32_t layer) {
    static const struct cuda_layer none = {.norm_in = 0};
    const struct model *m = &d->model;
    const struct cuda_layer *l = d->layers ? &d->layers[layer] : &none;
    struct part p = {.k = m->hidden, .step = 1};

    switch (role) {
    case NORM_IN:
        p.to = l->norm_in;
        break;
    case Q:
        p.n = d->width, p.matrix = &l->qkv;
        break;
    case K:
        p.n = d->kv_width, p.matrix = &l->qkv, p.first = d->width / EIGHT;
        break;
    case V:
        p.n = d->kv_width, p.matrix = &l->qkv;
        p.first = (d->width + d->kv_width) / EIGHT;
        break;
    case O:
        p.n = m->hidden, p.k = d->width, p.matrix = &l->o;
        break;
    case NORM_POST:
        p.to = l->norm_post;
        break;
    case GATE:
        p.n = m->intermediate, p.matrix = &l->gate_up, p.step = 2;
        break;
    case UP:
        p.n = m->intermediate, p.matrix = &l->gate_up, p.first = 1, p.step = 2;
        break;
    case DOWN:
        p.n = m->hidden, p.k = m->intermediate, p.matrix = &l->down;
        break;
    case EMBED:
        p.n = m->vocab, p.to = d->embed, p.matrix = m->tied ? &d->head : NULL;
        break;
    case NORM_FINAL:
        p.to = d->norm_final;
        break;
    case HEAD:
    case N_ROLES:
        p.n = m->vocab, p.matrix = &d->head;
        break;
    }
    if (role < EMBED)
        snprintf(p.name, sizeof(p.name), "model.layers.%u.%s.weight", layer, names[role]);
    else
        snprintf(p.name, sizeof(p.name), "%s.weight", names[role]);
    return p;
}

static uint32_t count_parts(const struct model *m) {
    return m->n_layers * EMBED + (m->tied ? 2 : 3);
}

static struct part part_at(const struct cuda_device *d, uint32_t index) {
    const uint32_t n_in_layers = d->model.n_layers * EMBED;

    if (index < n_in_layers) return part_of(d, index % EMBED, index / EMBED);
    return part_of(d, EMBED + (index - n_in_layers), 0);
}

static int check_shape(const struct part *p, const struct weights_tensor *t, struct err *e) {
    if (!t) return err_set(e, -ENOTSUP, "tensor %s is missing", p->name);
    if (p->n ? t->rank == 2 && t->shape[0] == p->n && t->shape[1] == p->k
             : t->rank == 1 && t->shape[0] == p->k)
        return 0;
    if (p->n)
        return err_set(e, -ENOTSUP, "tensor %s: the model wants [%u, %u]", p->name, p->n, p->k);
    return err_set(e, -ENOTSUP, "tensor %s: the model wants [%u]", p->name, p->k);
}

/* In older folders, and computed from the settings anyway; or the head again. */
static bool harmless(const struct model *m, const char *name) {
    static const char end[] = ".rotary_emb.inv_freq";
    const size_t n = strlen(name), n_end = sizeof(end) - 1;

    if (m->tied && !strcmp(name, "lm_head.weight")) return true;
    return n >= n_end && !strcmp(name + n - n_end, end);
}

static int check_names(const struct cuda_device *d, const struct weights *w, bool *known,
                       struct err *e) {
    const size_t n = weights_count(w);
    int r;

    for (uint32_t i = 0; i < count_parts(&d->model); i++) {
        const struct part p = part_at(d, i);
        const struct weights_tensor *t = weights_find(w, p.name);

        if ((r = check_shape(&p, t, e)) < 0) return r;
        for (size_t j = 0; j < n; j++)
            if (weights_at(w, j) == t) known[j] = true;
    }
    for (size_t j = 0; j < n; j++) {
        const char *name = weights_at(w, j)->name;

        if (!known[j] && !harmless(&d->model, name))
            return err_set(e, -ENOTSUP, "tensor %s: this kind of model has none", name);
    }
    return 0;
}

int cuda_weights_check(const struct cuda_device *d, const struct weights *w, struct err *e) {
    const size_t n = weights_count(w);
    bool *known = calloc(n + 1, sizeof(*known));
    int r;

    if (!known) return err_set(e, -ENOMEM, "tensor table: %zu bytes", n + 1);
    r = check_names(d, w, known, e);
    free(known);
    return r;
}

static int take_matrix(struct cuda_device *d, const char *what, uint32_t n, uint32_t k,
                       uint32_t segments, bool turns, struct cuda_gemm_weight *x, struct err *e) {
    cuda_gemm_shape(x, n, k, segments, turns);
    return cuda_memory_take(&d->memory, CUDA_MEMORY_WEIGHTS, what, x->n_bytes, 1, 1,
                            (CUdeviceptr *)&x->d_image, e);
}

static int take_norm(struct cuda_device *d, CUdeviceptr *out, struct err *e) {
    return cuda_memory_take(&d->memory, CUDA_MEMORY_WEIGHTS, "a norm", d->model.hidden, 1,
                            sizeof(uint16_t), out, e);
}

static int take_layer(struct cuda_device *d, struct cuda_layer *l, struct err *e) {
    const struct schedule s = schedule_canonical();
    const struct model *m = &d->model;
    int r;

    r = take_matrix(d, "qkv", d->qkv_width, m->hidden, s.qkv, false, &l->qkv, e);
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

/* Rows that travel at once: all of the largest tensor, or as many as STAGING_BYTES hold. */
static uint64_t staging_bytes(const struct cuda_device *d) {
    uint64_t most = 0, n_bytes;

    for (uint32_t i = 0; i < count_parts(&d->model); i++) {
        const struct part p = part_at(d, i);

        n_bytes = (uint64_t)(p.n + EIGHT) * p.k * sizeof(uint16_t);
        if (n_bytes > STAGING_BYTES) n_bytes = STAGING_BYTES;
        if (n_bytes < (uint64_t)EIGHT * p.k * sizeof(uint16_t))
            n_bytes = (uint64_t)EIGHT * p.k * sizeof(uint16_t);
        if (n_bytes > most) most = n_bytes;
    }
    return most;
}

int cuda_weights_take(struct cuda_device *d, struct err *e) {
    const struct model *m = &d->model;
    int r;

    for (uint32_t i = 0; i < m->n_layers; i++)
        if ((r = take_layer(d, &d->layers[i], e)) < 0) return r;
    r = take_matrix(d, "the head", d->logits_stride, m->hidden, schedule_canonical().head, false,
                    &d->head, e);
    if (r < 0) return r;
    if ((r = take_norm(d, &d->norm_final, e)) < 0) return r;
    r = cuda_memory_take(&d->memory, CUDA_MEMORY_WEIGHTS, "the embedding", m->vocab, m->hidden,
                         sizeof(uint16_t), &d->embed, e);
    if (r < 0) return r;
    d->staging_bytes = staging_bytes(d);
    return cuda_memory_take(&d->memory, CUDA_MEMORY_WORK, "staging", d->staging_bytes, 1, 1,
                            &d->staging, e);
}

static int write_bytes(struct cuda_device *d, CUdeviceptr to, const void *from, size_t n_bytes,
                       const char *what, struct err *e) {
    struct cuda_driver *driver = d->driver;

    return cuda_driver_check(
        driver, driver->cuda.cuMemcpyHtoDAsync_v2(to, from, n_bytes, driver->stream), what, e);
}

static int clear(struct cuda_device *d, const struct cuda_gemm_weight *x, struct err *e) {
    struct cuda_driver *driver = d->driver;

    return cuda_driver_check(
        driver, driver->cuda.cuMemsetD8Async(x->d_image, 0, x->n_bytes, driver->stream), "weights",
        e);
}

/* Values from `first` on of the tensor of this index, made up: about 1 for a norm, else such that
 * sums over k stay about as large as what they are of. */
static int make_up(struct cuda_device *d, const struct part *p, uint32_t index, CUdeviceptr to,
                   uint64_t first, uint64_t n, struct err *e) {
    uint64_t seed = d->options.seed;
    float base = p->n ? 0.0f : 1.0f, scale = p->n ? 1.7f / sqrtf((float)p->k) : 0.25f;
    void *params[] = {&to, &n, &first, &seed, &index, &base, &scale};
    const struct cuda_launch launch = {.entry = d->entries.random,
                                       .name = "made-up weights",
                                       .grid = {RANDOM_BLOCKS},
                                       .block = {RANDOM_THREADS},
                                       .params = params};

    return cuda_driver_launch(d->driver, &launch, e);
}

/* By way of the staging buffer, from `values` or made up; what is missing to whole eights of rows
 * is zero. */
static int pack(struct cuda_device *d, const struct part *p, uint32_t index, const uint16_t *values,
                struct err *e) {
    struct cuda_driver *driver = d->driver;
    const uint64_t row_bytes = p->k * sizeof(*values);
    const uint32_t n_at_once = (uint32_t)(d->staging_bytes / row_bytes / EIGHT * EIGHT);
    int r = 0;

    for (uint32_t row = 0; row < p->n; row += n_at_once) {
        const uint32_t n = p->n - row < n_at_once ? p->n - row : n_at_once;
        const uint32_t n_whole = (n + EIGHT - 1) / EIGHT * EIGHT;
        const size_t at = (size_t)row * p->k;

        if (n_whole > n)
            r = cuda_driver_check(driver,
                                  driver->cuda.cuMemsetD8Async(d->staging + n * row_bytes, 0,
                                                               (n_whole - n) * row_bytes,
                                                               driver->stream),
                                  p->name, e);
        if (r < 0) return r;
        r = values ? write_bytes(d, d->staging, values + at, n * row_bytes, p->name, e)
                   : make_up(d, p, index, d->staging, at, (uint64_t)n * p->k, e);
        if (r < 0) return r;
        r = cuda_gemm_pack(d->gemm, p->matrix, d->staging, n_whole,
                           p->first + row / EIGHT * p->step, p->step, e);
        if (r < 0) return r;
    }
    return 0;
}

static int make_part(struct cuda_device *d, const struct part *p, uint32_t index, struct err *e) {
    const uint64_t n = (uint64_t)(p->n ? p->n : 1) * p->k;
    int r = 0;

    if (p->to) r = make_up(d, p, index, p->to, 0, n, e);
    if (r == 0 && p->matrix) r = pack(d, p, index, NULL, e);
    return r;
}

static int read_part(struct cuda_device *d, const struct part *p, struct weights *w,
                     uint16_t *values, struct err *e) {
    struct cuda_driver *driver = d->driver;
    const size_t n_bytes = (size_t)(p->n ? p->n : 1) * p->k * sizeof(*values);
    int r = weights_read(w, weights_find(w, p->name), values, e);

    if (r < 0) return r;
    if (p->to && (r = write_bytes(d, p->to, values, n_bytes, p->name, e)) < 0) return r;
    if (p->matrix && (r = pack(d, p, 0, values, e)) < 0) return r;
    /* The next tensor is read into the same place. */
    return cuda_driver_check(driver, driver->cuda.cuStreamSynchronize(driver->stream), p->name, e);
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

int cuda_weights_read(struct cuda_device *d, struct weights *w, struct err *e) {
    size_t n_values_max = 0;
    uint16_t *values = NULL;
    int r = clear_all(d, e);

    if (r < 0) return r;
    for (uint32_t i = 0; i < count_parts(&d->model); i++) {
        const struct part p = part_at(d, i);
        const size_t n_values = (size_t)(p.n ? p.n : 1) * p.k;

        if (n_values > n_values_max) n_values_max = n_values;
    }
    if (w && !(values = malloc(n_values_max * sizeof(*values))))
        return err_set(e, -ENOMEM, "weights: %zu bytes to read a tensor",
                       n_values_max * sizeof(*values));
    for (uint32_t i = 0; r == 0 && i < count_parts(&d->model); i++) {
        const struct part p = part_at(d, i);

        r = w ? read_part(d, &p, w, values, e) : make_part(d, &p, i, e);
    }
    free(values);
    return r;
}

#endif
