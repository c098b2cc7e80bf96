#include "runtime/model_tensor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/err.h"
#include "runtime/model.h"
#include "runtime/weights.h"

static const char *const names[MODEL_ROLES] = {
    [MODEL_NORM_IN] = "input_layernorm", [MODEL_Q] = "self_attn.q_proj",
    [MODEL_K] = "self_attn.k_proj",      [MODEL_V] = "self_attn.v_proj",
    [MODEL_O] = "self_attn.o_proj",      [MODEL_NORM_POST] = "post_attention_layernorm",
    [MODEL_GATE] = "mlp.gate_proj",      [MODEL_UP] = "mlp.up_proj",
    [MODEL_DOWN] = "mlp.down_proj",      [MODEL_EMBED] = "model.embed_tokens",
    [MODEL_NORM_FINAL] = "model.norm",   [MODEL_HEAD] = "lm_head",
};

static void describe(const struct model *m, enum model_tensor_role role, uint32_t layer,
                     struct model_tensor *out) {
    const uint32_t width = m->n_heads * m->head_dim, kv_width = m->n_kv_heads * m->head_dim;

    *out = (struct model_tensor){.role = role, .layer = layer, .n_k = m->hidden};
    switch (role) {
    case MODEL_Q:
        out->n = width;
        break;
    case MODEL_K:
    case MODEL_V:
        out->n = kv_width;
        break;
    case MODEL_O:
        out->n = m->hidden, out->n_k = width;
        break;
    case MODEL_GATE:
    case MODEL_UP:
        out->n = m->intermediate;
        break;
    case MODEL_DOWN:
        out->n = m->hidden, out->n_k = m->intermediate;
        break;
    case MODEL_EMBED:
    case MODEL_HEAD:
        out->n = m->vocab;
        break;
    default:
        break;
    }
    if (role < MODEL_LAYER_ROLES)
        snprintf(out->name, sizeof(out->name), "model.layers.%u.%s.weight", layer, names[role]);
    else
        snprintf(out->name, sizeof(out->name), "%s.weight", names[role]);
}

bool model_tensor_at(const struct model *m, uint32_t index, struct model_tensor *out) {
    const uint32_t n_in_layers = m->n_layers * MODEL_LAYER_ROLES;

    if (index < n_in_layers)
        describe(m, index % MODEL_LAYER_ROLES, index / MODEL_LAYER_ROLES, out);
    else if (index - n_in_layers < (m->tied ? 2 : 3))
        describe(m, MODEL_LAYER_ROLES + index - n_in_layers, 0, out);
    else
        return false;
    return true;
}

uint64_t model_tensor_values(const struct model_tensor *t) {
    return (uint64_t)(t->n ? t->n : 1) * t->n_k;
}

uint64_t model_tensor_values_max(const struct model *m) {
    struct model_tensor t;
    uint64_t most = 0;

    for (uint32_t i = 0; model_tensor_at(m, i, &t); i++)
        if (model_tensor_values(&t) > most) most = model_tensor_values(&t);
    return most;
}

static int check_shape(const struct model_tensor *want, const struct weights_tensor *t,
                       struct err *e) {
    if (!t) return err_set(e, -ENOTSUP, "tensor %s is missing", want->name);
    if (want->n ? t->rank == 2 && t->shape[0] == want->n && t->shape[1] == want->n_k
                : t->rank == 1 && t->shape[0] == want->n_k)
        return 0;
    if (want->n)
        return err_set(e, -ENOTSUP, "tensor %s: the model wants [%u, %u]", want->name, want->n,
                       want->n_k);
    return err_set(e, -ENOTSUP, "tensor %s: the model wants [%u]", want->name, want->n_k);
}

int model_tensor_check(const struct model *m, const struct weights *w, struct err *e) {
    struct model_tensor want;
    int r = 0;

    for (uint32_t i = 0; r == 0 && model_tensor_at(m, i, &want); i++)
        r = check_shape(&want, weights_find(w, want.name), e);
    return r;
}

/* In older folders, and computed from the settings anyway; or the head again. */
static bool harmless(const struct model *m, const char *name) {
    static const char end[] = ".rotary_emb.inv_freq";
    const size_t n = strlen(name), n_end = sizeof(end) - 1;

    if (m->tied && !strcmp(name, "lm_head.weight")) return true;
    return n >= n_end && !strcmp(name + n - n_end, end);
}

int model_tensor_check_others(const struct model *m, const struct weights *w, struct err *e) {
    const size_t n = weights_count(w);
    bool *known = calloc(n + 1, sizeof(*known));
    struct model_tensor want;
    int r = 0;

    if (!known) return err_set(e, -ENOMEM, "tensor table: %zu bytes", n + 1);
    for (uint32_t i = 0; model_tensor_at(m, i, &want); i++) {
        const struct weights_tensor *t = weights_find(w, want.name);

        if (t) known[weights_index(w, t)] = true;
    }
    for (size_t j = 0; r == 0 && j < n; j++) {
        const char *name = weights_at(w, j)->name;

        if (!known[j] && !harmless(m, name))
            r = err_set(e, -ENOTSUP, "tensor %s: this kind of model has none", name);
    }
    free(known);
    return r;
}
