#ifdef LLM42_CUDA

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda_impl.h"
#include "runtime/err.h"
#include "runtime/weights.h"

enum { NAME_BYTES = 96 };

enum role { NORM_IN, Q, K, V, O, NORM_POST, GATE, UP, DOWN, EMBED, NORM_FINAL, HEAD, N_ROLES };

static const char *const names[N_ROLES] = {
    [NORM_IN] = "input_layernorm", [Q] = "self_attn.q_proj",
    [K] = "self_attn.k_proj",      [V] = "self_attn.v_proj",
    [O] = "self_attn.o_proj",      [NORM_POST] = "post_attention_layernorm",
    [GATE] = "mlp.gate_proj",      [UP] = "mlp.up_proj",
    [DOWN] = "mlp.down_proj",      [EMBED] = "model.embed_tokens",
    [NORM_FINAL] = "model.norm",   [HEAD] = "lm_head",
};

/* One tensor of the model, [n][k] or, where n is 0, [k]; and where on the GPU it goes. */
struct part {
    CUdeviceptr to;
    uint32_t n, k;
    char name[NAME_BYTES];
};

/* Rows first .. of a matrix. */
static CUdeviceptr rows_at(const struct cuda_matrix *x, uint32_t first) {
    return x->w + (uint64_t)first * x->k * sizeof(uint16_t);
}

static struct part part_of(const struct cuda_device *d, enum role role, uint32_t layer) {
    static const struct cuda_layer none = {.norm_in = 0};
    const struct model *m = &d->model;
    const struct cuda_layer *l = d->layers ? &d->layers[layer] : &none;
    struct part p = {.k = m->hidden};

    switch (role) {
    case NORM_IN:
        p.to = l->norm_in;
        break;
    case Q:
        p.n = d->width, p.to = rows_at(&l->qkv, 0);
        break;
    case K:
        p.n = d->kv_width, p.to = rows_at(&l->qkv, d->width);
        break;
    case V:
        p.n = d->kv_width, p.to = rows_at(&l->qkv, d->width + d->kv_width);
        break;
    case O:
        p.n = m->hidden, p.k = d->width, p.to = l->o.w;
        break;
    case NORM_POST:
        p.to = l->norm_post;
        break;
    case GATE:
        p.n = m->intermediate, p.to = rows_at(&l->gate_up, 0);
        break;
    case UP:
        p.n = m->intermediate, p.to = rows_at(&l->gate_up, m->intermediate);
        break;
    case DOWN:
        p.n = m->hidden, p.k = m->intermediate, p.to = l->down.w;
        break;
    case EMBED:
        p.n = m->vocab, p.to = d->embed;
        break;
    case NORM_FINAL:
        p.to = d->norm_final;
        break;
    case HEAD:
    case N_ROLES:
        p.n = m->vocab, p.to = d->head.w;
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
                       struct cuda_matrix *x, struct err *e) {
    *x = (struct cuda_matrix){.n = n, .k = k};
    return cuda_memory_take(&d->memory, CUDA_MEMORY_WEIGHTS, what, n, k, sizeof(uint16_t), &x->w,
                            e);
}

static int take_norm(struct cuda_device *d, CUdeviceptr *out, struct err *e) {
    return cuda_memory_take(&d->memory, CUDA_MEMORY_WEIGHTS, "a norm", d->model.hidden, 1,
                            sizeof(uint16_t), out, e);
}

int cuda_weights_take(struct cuda_device *d, struct err *e) {
    const struct model *m = &d->model;
    int r;

    for (uint32_t i = 0; i < m->n_layers; i++) {
        struct cuda_layer *l = &d->layers[i];

        if ((r = take_matrix(d, "qkv", d->qkv_width, m->hidden, &l->qkv, e)) < 0) return r;
        if ((r = take_matrix(d, "o", m->hidden, d->width, &l->o, e)) < 0) return r;
        if ((r = take_matrix(d, "gate_up", 2 * m->intermediate, m->hidden, &l->gate_up, e)) < 0)
            return r;
        if ((r = take_matrix(d, "down", m->hidden, m->intermediate, &l->down, e)) < 0) return r;
        if ((r = take_norm(d, &l->norm_in, e)) < 0) return r;
        if ((r = take_norm(d, &l->norm_post, e)) < 0) return r;
    }
    if ((r = take_matrix(d, "the head", m->vocab, m->hidden, &d->head, e)) < 0) return r;
    if ((r = take_norm(d, &d->norm_final, e)) < 0) return r;
    if (m->tied) {
        d->embed = d->head.w;
        return 0;
    }
    return cuda_memory_take(&d->memory, CUDA_MEMORY_WEIGHTS, "the embedding", m->vocab, m->hidden,
                            sizeof(uint16_t), &d->embed, e);
}

int cuda_weights_read(struct cuda_device *d, struct weights *w, struct err *e) {
    struct cuda_driver *driver = d->driver;
    size_t n_values_max = 0;
    uint16_t *values;
    int r = 0;

    for (uint32_t i = 0; i < count_parts(&d->model); i++) {
        const struct part p = part_at(d, i);
        const size_t n_values = (size_t)(p.n ? p.n : 1) * p.k;

        if (n_values > n_values_max) n_values_max = n_values;
    }
    values = malloc(n_values_max * sizeof(*values));
    if (!values)
        return err_set(e, -ENOMEM, "weights: %zu bytes to read a tensor",
                       n_values_max * sizeof(*values));
    for (uint32_t i = 0; r == 0 && i < count_parts(&d->model); i++) {
        const struct part p = part_at(d, i);
        const size_t n_bytes = (size_t)(p.n ? p.n : 1) * p.k * sizeof(*values);

        r = weights_read(w, weights_find(w, p.name), values, e);
        if (r < 0) break;
        r = cuda_driver_check(
            driver, driver->cuda.cuMemcpyHtoDAsync_v2(p.to, values, n_bytes, driver->stream),
            p.name, e);
        if (r < 0) break;
        /* The next tensor is read into the same place. */
        r = cuda_driver_check(driver, driver->cuda.cuStreamSynchronize(driver->stream), p.name, e);
    }
    free(values);
    return r;
}

#endif
