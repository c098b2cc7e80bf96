#include "runtime/cpu_weights.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/err.h"
#include "runtime/model.h"
#include "runtime/weights.h"

enum { NAME_BYTES = 96 };

enum role { NORM_IN, Q, K, V, O, NORM_POST, GATE, UP, DOWN, N_LAYER_ROLES };
enum { EMBED = N_LAYER_ROLES, NORM_FINAL, HEAD, N_ROLES };

static const char *const names[N_ROLES] = {
    [NORM_IN] = "input_layernorm", [Q] = "self_attn.q_proj",
    [K] = "self_attn.k_proj",      [V] = "self_attn.v_proj",
    [O] = "self_attn.o_proj",      [NORM_POST] = "post_attention_layernorm",
    [GATE] = "mlp.gate_proj",      [UP] = "mlp.up_proj",
    [DOWN] = "mlp.down_proj",      [EMBED] = "model.embed_tokens",
    [NORM_FINAL] = "model.norm",   [HEAD] = "lm_head",
};

/* One tensor of the model: [n][n_k], or [n_k] where n is 0. */
struct wanted {
    unsigned role;
    uint32_t layer;
    uint32_t n, n_k;
    char name[NAME_BYTES];
};

static void want(const struct model *m, unsigned role, uint32_t layer, struct wanted *out) {
    const uint32_t width = m->n_heads * m->head_dim, kv_width = m->n_kv_heads * m->head_dim;

    *out = (struct wanted){.role = role, .layer = layer, .n_k = m->hidden};
    switch (role) {
    case Q:
        out->n = width;
        break;
    case K:
    case V:
        out->n = kv_width;
        break;
    case O:
        out->n = m->hidden, out->n_k = width;
        break;
    case GATE:
    case UP:
        out->n = m->intermediate;
        break;
    case DOWN:
        out->n = m->hidden, out->n_k = m->intermediate;
        break;
    case EMBED:
    case HEAD:
        out->n = m->vocab;
        break;
    default:
        break;
    }
    if (role < N_LAYER_ROLES)
        snprintf(out->name, sizeof(out->name), "model.layers.%u.%s.weight", layer, names[role]);
    else
        snprintf(out->name, sizeof(out->name), "%s.weight", names[role]);
}

/* The tensors of a model in one order; false past the last. */
static bool want_at(const struct model *m, uint32_t index, struct wanted *out) {
    const uint32_t n_in_layers = m->n_layers * N_LAYER_ROLES;

    if (index < n_in_layers)
        want(m, index % N_LAYER_ROLES, index / N_LAYER_ROLES, out);
    else if (index - n_in_layers < (m->tied ? 2 : 3))
        want(m, N_LAYER_ROLES + index - n_in_layers, 0, out);
    else
        return false;
    return true;
}

static int check_shape(const struct wanted *want, const struct weights_tensor *t, struct err *e) {
    const bool fits = want->n ? t->rank == 2 && t->shape[0] == want->n && t->shape[1] == want->n_k
                              : t->rank == 1 && t->shape[0] == want->n_k;

    if (fits) return 0;
    if (want->n)
        return err_set(e, -ENOTSUP, "tensor %s: the model wants [%u, %u]", want->name, want->n,
                       want->n_k);
    return err_set(e, -ENOTSUP, "tensor %s: the model wants [%u]", want->name, want->n_k);
}

/* In older folders, and computed from the settings anyway. */
static bool ends_in(const char *name, const char *end) {
    size_t n = strlen(name), n_end = strlen(end);

    return n >= n_end && !strcmp(name + n - n_end, end);
}

/* Every tensor wanted is there and as it must be, and nothing else is. */
static int check(const struct model *m, const struct weights *w, struct err *e) {
    const size_t n = weights_count(w);
    bool *known = calloc(n + 1, sizeof(*known));
    struct wanted want;
    int r = 0;

    if (!known) return err_set(e, -ENOMEM, "tensor table: %zu bytes", n + 1);
    for (uint32_t i = 0; r == 0 && want_at(m, i, &want); i++) {
        const struct weights_tensor *t = weights_find(w, want.name);

        if (!t) {
            r = err_set(e, -ENOTSUP, "tensor %s is missing", want.name);
            break;
        }
        r = check_shape(&want, t, e);
        for (size_t j = 0; j < n; j++)
            if (weights_at(w, j) == t) known[j] = true;
    }
    for (size_t j = 0; r == 0 && j < n; j++) {
        const char *name = weights_at(w, j)->name;

        if (known[j] || ends_in(name, ".rotary_emb.inv_freq")) continue;
        if (m->tied && !strcmp(name, "lm_head.weight")) continue;
        r = err_set(e, -ENOTSUP, "tensor %s: this kind of model has none", name);
    }
    free(known);
    return r;
}

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

/* Where a tensor goes: a vector as it is, a matrix by way of `rows`. */
static int put(const struct model *m, struct cpu_weights *cw, const struct wanted *want,
               struct weights *w, uint16_t *rows, struct err *e) {
    const uint32_t q_blocks = m->n_heads * m->head_dim / CPU_LANES;
    const uint32_t kv_blocks = m->n_kv_heads * m->head_dim / CPU_LANES;
    const struct weights_tensor *t = weights_find(w, want->name);
    struct cpu_layer *l = want->role < N_LAYER_ROLES ? &cw->layers[want->layer] : NULL;
    struct cpu_matrix *x = &cw->head;
    uint32_t first = 0, step = 1;
    uint16_t *to = rows;
    int r;

    switch (want->role) {
    case NORM_IN:
        to = l->norm_in;
        break;
    case NORM_POST:
        to = l->norm_post;
        break;
    case NORM_FINAL:
        to = cw->norm_final;
        break;
    case EMBED:
        to = m->tied ? rows : cw->embed;
        break;
    case Q:
        x = &l->qkv;
        break;
    case K:
        x = &l->qkv, first = q_blocks;
        break;
    case V:
        x = &l->qkv, first = q_blocks + kv_blocks;
        break;
    case O:
        x = &l->o;
        break;
    case GATE:
        x = &l->gate_up, step = 2;
        break;
    case UP:
        x = &l->gate_up, first = 1, step = 2;
        break;
    case DOWN:
        x = &l->down;
        break;
    default:
        break;
    }
    r = weights_read(w, t, to, e);
    if (r == 0 && to == rows) cpu_matrix_put(x, rows, want->n, first, step);
    return r;
}

int cpu_weights_load(const struct model *m, struct weights *w, struct cpu_weights **out_weights,
                     struct err *e) {
    struct cpu_weights *cw = NULL;
    uint16_t *rows = NULL;
    size_t n_values_max = 0;
    struct wanted want;
    int r = check(m, w, e);

    if (r) return r;
    cw = calloc(1, sizeof(*cw));
    if (!cw) return err_set(e, -ENOMEM, "weights: %zu bytes", sizeof(*cw));
    r = take_all(m, cw, e);
    if (r) goto out;
    for (uint32_t i = 0; want_at(m, i, &want); i++) {
        size_t n_values = (size_t)want.n * want.n_k;

        if (n_values > n_values_max) n_values_max = n_values;
    }
    rows = malloc(n_values_max * sizeof(*rows));
    if (!rows) {
        r = err_set(e, -ENOMEM, "weights: %zu bytes to read a tensor",
                    n_values_max * sizeof(*rows));
        goto out;
    }
    for (uint32_t i = 0; want_at(m, i, &want); i++)
        if ((r = put(m, cw, &want, w, rows, e))) goto out;
    *out_weights = cw;
    cw = NULL;
out:
    free(rows);
    cpu_weights_close(cw);
    return r;
}

void cpu_weights_close(struct cpu_weights *cw) {
    if (!cw) return;
    cpu_arena_close(&cw->arena);
    free(cw->layers);
    free(cw);
}
