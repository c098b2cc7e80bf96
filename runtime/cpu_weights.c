#include "runtime/cpu_weights.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/err.h"
#include "runtime/model.h"
#include "runtime/model_tensor.h"
#include "runtime/weights.h"
#include "runtime/weights_ahead.h"

static int take_matrix(struct cpu_weights *cw, struct cpu_matrix *x, uint32_t n, uint32_t n_k,
                       const char *what, struct err *e) {
    *x = (struct cpu_matrix){.n = n, .n_k = n_k, .n_blocks = n / CPU_LANES + (n % CPU_LANES != 0)};
    return cpu_arena_take(&cw->arena, (uint64_t)x->n_blocks * CPU_LANES * (n_k / 2), sizeof(*x->w),
                          what, &x->w, e);
}

static int take_layer(const struct model *m, struct cpu_weights *cw, struct cpu_layer *l,
                      struct err *e) {
    const uint32_t width = m->n_heads * m->head_dim, kv_width = m->n_kv_heads * m->head_dim;
    int r;

    if ((r = take_matrix(cw, &l->qkv, width + 2 * kv_width, m->hidden, "qkv", e))) return r;
    if ((r = take_matrix(cw, &l->o, m->hidden, width, "o", e))) return r;
    if ((r = take_matrix(cw, &l->gate_up, 2 * m->intermediate, m->hidden, "gate_up", e))) return r;
    if ((r = take_matrix(cw, &l->down, m->hidden, m->intermediate, "down", e))) return r;
    if ((r = cpu_arena_take(&cw->arena, m->hidden, sizeof(uint16_t), "a norm", &l->norm_in, e)))
        return r;
    return cpu_arena_take(&cw->arena, m->hidden, sizeof(uint16_t), "a norm", &l->norm_post, e);
}

/* What a step reads stands in the order in which it is read. */
static int take_each(const struct model *m, struct cpu_weights *cw, struct err *e) {
    int r;

    for (uint32_t i = 0; i < m->n_layers; i++)
        if ((r = take_layer(m, cw, &cw->layers[i], e))) return r;
    if ((r = take_matrix(cw, &cw->head, m->vocab, m->hidden, "the head", e))) return r;
    if ((r = cpu_arena_take(&cw->arena, m->hidden, sizeof(uint16_t), "a norm", &cw->norm_final, e)))
        return r;
    if (m->tied) return 0;
    return cpu_arena_take(&cw->arena, (uint64_t)m->vocab * m->hidden, sizeof(uint16_t),
                          "the embedding", &cw->embed, e);
}

static int take_all(const struct model *m, struct cpu_weights *cw, struct err *e) {
    int r;

    cw->layers = calloc(m->n_layers, sizeof(*cw->layers));
    if (!cw->layers) return err_set(e, -ENOMEM, "weights: a table of %u layers", m->n_layers);
    if ((r = take_each(m, cw, e))) return r;
    if ((r = cpu_arena_map(&cw->arena, "weights", e))) return r;
    return take_each(m, cw, e);
}

/* Where a tensor goes: a vector and the embedding as they are, a matrix in blocks. */
static void put(const struct model *m, struct cpu_weights *cw, const struct model_tensor *want,
                const uint16_t *values) {
    const uint32_t q_blocks = m->n_heads * m->head_dim / CPU_LANES;
    const uint32_t kv_blocks = m->n_kv_heads * m->head_dim / CPU_LANES;
    struct cpu_layer *l = want->role < MODEL_LAYER_ROLES ? &cw->layers[want->layer] : NULL;
    struct cpu_matrix *x = &cw->head;
    uint32_t first = 0, step = 1;
    uint16_t *to = NULL; /* as it is */

    switch (want->role) {
    case MODEL_NORM_IN:
        to = l->norm_in;
        break;
    case MODEL_NORM_POST:
        to = l->norm_post;
        break;
    case MODEL_NORM_FINAL:
        to = cw->norm_final;
        break;
    case MODEL_EMBED:
        to = m->tied ? NULL : cw->embed;
        break;
    case MODEL_Q:
        x = &l->qkv;
        break;
    case MODEL_K:
        x = &l->qkv, first = q_blocks;
        break;
    case MODEL_V:
        x = &l->qkv, first = q_blocks + kv_blocks;
        break;
    case MODEL_O:
        x = &l->o;
        break;
    case MODEL_GATE:
        x = &l->gate_up, step = 2;
        break;
    case MODEL_UP:
        x = &l->gate_up, first = 1, step = 2;
        break;
    case MODEL_DOWN:
        x = &l->down;
        break;
    default:
        break;
    }
    if (to)
        memcpy(to, values, model_tensor_values(want) * sizeof(*values));
    else
        cpu_matrix_put(x, values, want->n, first, step);
}

static int read_all(const struct model *m, struct weights *w, struct cpu_weights *cw,
                    struct err *e) {
    struct weights_ahead *ahead = NULL;
    struct model_tensor want;
    const uint16_t *values;
    int r = weights_ahead_open(w, m, &ahead, e);

    for (uint32_t i = 0; r == 0 && model_tensor_at(m, i, &want); i++) {
        r = weights_ahead_next(ahead, &values, e);
        if (r == 0) put(m, cw, &want, values);
    }
    weights_ahead_close(ahead);
    return r;
}

int cpu_weights_load(const struct model *m, struct weights *w, struct cpu_weights **out_weights,
                     struct err *e) {
    struct cpu_weights *cw = NULL;
    int r = model_tensor_check(m, w, e);

    if (r) return r;
    cw = calloc(1, sizeof(*cw));
    if (!cw) return err_set(e, -ENOMEM, "weights: %zu bytes", sizeof(*cw));
    r = take_all(m, cw, e);
    if (r == 0) r = read_all(m, w, cw, e);
    if (r < 0) {
        cpu_weights_close(cw);
        return r;
    }
    *out_weights = cw;
    return 0;
}

void cpu_weights_close(struct cpu_weights *cw) {
    if (!cw) return;
    cpu_arena_close(&cw->arena);
    free(cw->layers);
    free(cw);
}
