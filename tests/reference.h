/* A whole model, one token at a time, written from SPEC 2 word by word on top of mma_step: slow,
 * plain, and without anything of the CPU twin.  Oracle of device_cpu_test and of the kernels. */
#ifndef LLM42D_TESTS_REFERENCE_H
#define LLM42D_TESTS_REFERENCE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/err.h"
#include "runtime/ex2.h"
#include "runtime/mma.h"
#include "runtime/model.h"
#include "runtime/num.h"
#include "runtime/rope.h"
#include "runtime/schedule.h"
#include "runtime/weights.h"

struct reference_layer {
    uint16_t *norm_in, *q, *k, *v, *o, *norm_post, *gate, *up, *down;
};

struct reference {
    struct model m;
    struct reference_layer *layers;
    uint16_t *embed, *norm_final, *head; /* head is embed where tied */
    uint16_t *cos, *sin;                 /* [n_positions][head_dim / 2] */
    uint32_t n_positions;
};

/* What a token leaves at a layer: the buffers of device.h after each stage. */
struct reference_trace {
    uint16_t *qkv, *attn, *h;
    uint16_t *x_attn, *x; /* the residual stream after attn_out and after mlp_out */
};

struct reference_token {
    uint16_t *embedded;
    struct reference_trace *layers;
    float *logits;
    bool flagged;
};

/* One sequence: every token so far, and so its keys and values. */
struct reference_seq {
    uint32_t n_tokens;
    struct reference_token *tokens; /* [n_positions] */
};

static void *reference_take(size_t n, size_t size) {
    void *p = calloc(n, size);

    if (!p) abort();
    return p;
}

static uint16_t *reference_read(struct weights *w, const char *name, size_t n_values) {
    const struct weights_tensor *t = weights_find(w, name);
    uint16_t *values = reference_take(n_values, sizeof(*values));
    struct err e;

    if (!t || t->n_values != n_values || weights_read(w, t, values, &e)) {
        fprintf(stderr, "reference: %s\n", name);
        abort();
    }
    return values;
}

static uint16_t *reference_read_layer(struct weights *w, uint32_t layer, const char *name,
                                      size_t n_values) {
    char text[96];

    snprintf(text, sizeof(text), "model.layers.%u.%s.weight", layer, name);
    return reference_read(w, text, n_values);
}

static struct reference *reference_open(const struct model *m, struct weights *w,
                                        uint32_t n_positions) {
    struct reference *ref = reference_take(1, sizeof(*ref));
    const size_t hidden = m->hidden, width = (size_t)m->n_heads * m->head_dim;
    const size_t kv_width = (size_t)m->n_kv_heads * m->head_dim;
    const size_t n_table = (size_t)n_positions * m->head_dim / 2;

    ref->m = *m;
    ref->n_positions = n_positions;
    ref->layers = reference_take(m->n_layers, sizeof(*ref->layers));
    for (uint32_t i = 0; i < m->n_layers; i++) {
        struct reference_layer *l = &ref->layers[i];

        l->norm_in = reference_read_layer(w, i, "input_layernorm", hidden);
        l->q = reference_read_layer(w, i, "self_attn.q_proj", width * hidden);
        l->k = reference_read_layer(w, i, "self_attn.k_proj", kv_width * hidden);
        l->v = reference_read_layer(w, i, "self_attn.v_proj", kv_width * hidden);
        l->o = reference_read_layer(w, i, "self_attn.o_proj", hidden * width);
        l->norm_post = reference_read_layer(w, i, "post_attention_layernorm", hidden);
        l->gate = reference_read_layer(w, i, "mlp.gate_proj", m->intermediate * hidden);
        l->up = reference_read_layer(w, i, "mlp.up_proj", m->intermediate * hidden);
        l->down = reference_read_layer(w, i, "mlp.down_proj", hidden * m->intermediate);
    }
    ref->embed = reference_read(w, "model.embed_tokens.weight", m->vocab * hidden);
    ref->norm_final = reference_read(w, "model.norm.weight", hidden);
    ref->head = m->tied ? ref->embed : reference_read(w, "lm_head.weight", m->vocab * hidden);
    ref->cos = reference_take(n_table, sizeof(uint16_t));
    ref->sin = reference_take(n_table, sizeof(uint16_t));
    rope_tables(m, n_positions, ref->cos, ref->sin);
    return ref;
}

static void reference_close(struct reference *ref) {
    for (uint32_t i = 0; i < ref->m.n_layers; i++) {
        struct reference_layer *l = &ref->layers[i];
        uint16_t *all[] = {l->norm_in,   l->q,    l->k,  l->v,   l->o,
                           l->norm_post, l->gate, l->up, l->down};

        for (size_t j = 0; j < sizeof(all) / sizeof(all[0]); j++) free(all[j]);
    }
    if (!ref->m.tied) free(ref->head);
    free(ref->layers);
    free(ref->embed);
    free(ref->norm_final);
    free(ref->cos);
    free(ref->sin);
    free(ref);
}

static struct reference_seq *reference_seq_open(const struct reference *ref) {
    struct reference_seq *s = reference_take(1, sizeof(*s));

    s->tokens = reference_take(ref->n_positions, sizeof(*s->tokens));
    return s;
}

static void reference_seq_close(const struct reference *ref, struct reference_seq *s) {
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        for (uint32_t l = 0; l < ref->m.n_layers; l++) {
            struct reference_trace *t = &s->tokens[i].layers[l];

            free(t->qkv);
            free(t->attn);
            free(t->h);
            free(t->x_attn);
            free(t->x);
        }
        free(s->tokens[i].layers);
        free(s->tokens[i].embedded);
        free(s->tokens[i].logits);
    }
    free(s->tokens);
    free(s);
}

/* SPEC 2.1: pad with +0 to a power of two, add adjacent pairs until one is left. */
static float reference_tree(const float *v, uint32_t n) {
    uint32_t size = 1;
    float *padded, sum;

    while (size < n) size *= 2;
    padded = reference_take(size, sizeof(*padded));
    memcpy(padded, v, n * sizeof(*v));
    for (; size > 1; size /= 2)
        for (uint32_t i = 0; i < size / 2; i++) padded[i] = padded[2 * i] + padded[2 * i + 1];
    sum = padded[0];
    free(padded);
    return sum;
}

/* SPEC 2.4, one output. */
static float reference_product(const uint16_t *w, const uint16_t *x, uint32_t n_k,
                               uint32_t segments) {
    const uint32_t padded = (n_k + 16 * segments - 1) / (16 * segments) * 16 * segments;
    uint16_t *a = reference_take(padded, sizeof(*a)), *b = reference_take(padded, sizeof(*b));
    float p[SCHEDULE_SEGMENTS_MAX], y;

    memcpy(a, w, n_k * sizeof(*a));
    memcpy(b, x, n_k * sizeof(*b));
    for (uint32_t s = 0; s < segments; s++) {
        p[s] = 0.0f;
        for (uint32_t i = s * (padded / segments); i < (s + 1) * (padded / segments); i += 16)
            p[s] = mma_step(p[s], a + i, b + i);
    }
    y = reference_tree(p, segments);
    free(a);
    free(b);
    return y;
}

static void reference_products(const uint16_t *w, const uint16_t *x, uint32_t n, uint32_t n_k,
                               uint32_t segments, uint16_t *y) {
    for (uint32_t i = 0; i < n; i++)
        y[i] = num_to_bf16(reference_product(w + (size_t)i * n_k, x, n_k, segments));
}

/* SPEC 2.5. */
static void reference_norm(const struct reference *ref, const uint16_t *x, const uint16_t *w,
                           uint32_t run, uint16_t *y) {
    const uint32_t n = ref->m.hidden;
    float *v = reference_take(n, sizeof(*v));
    float r;

    for (uint32_t i = 0; i < n; i++) {
        float square = num_from_bf16(x[i]) * num_from_bf16(x[i]);

        v[i / run] = (i % run ? v[i / run] : 0.0f) + square;
    }
    r = reference_tree(v, (n + run - 1) / run) / (float)n;
    r = 1.0f / num_sqrt(r + ref->m.rms_eps);
    for (uint32_t i = 0; i < n; i++) {
        uint16_t scaled = num_to_bf16(num_from_bf16(x[i]) * r);

        y[i] = num_to_bf16(num_from_bf16(w[i]) * num_from_bf16(scaled));
    }
    free(v);
}

/* SPEC 2.6. */
static void reference_rotate(const struct reference *ref, uint16_t *h, uint32_t position) {
    const uint32_t half = ref->m.head_dim / 2;
    const uint16_t *cos = ref->cos + (size_t)position * half;
    const uint16_t *sin = ref->sin + (size_t)position * half;

    for (uint32_t i = 0; i < half; i++) {
        float a = num_from_bf16(h[i]), b = num_from_bf16(h[i + half]);
        float c = num_from_bf16(cos[i]), s = num_from_bf16(sin[i]);

        h[i] = num_to_bf16(a * c - b * s);
        h[i + half] = num_to_bf16(b * c + a * s);
    }
}

static float reference_pow2(float d) {
    return d >= -126.0f ? num_pow2((int)d) : 0.0f;
}

/* A split or the fold of some: SPEC 2.7. */
struct reference_sum {
    float m, l, o[MODEL_HEAD_DIM_MAX];
};

/* Key or value of one position, of the tokens so far. */
static const uint16_t *reference_kv(const struct reference *ref, const struct reference_seq *s,
                                    uint32_t layer, uint32_t position, uint32_t kv_head,
                                    bool value) {
    const struct model *m = &ref->m;
    const uint32_t head = m->n_heads + kv_head + (value ? m->n_kv_heads : 0);

    return s->tokens[position].layers[layer].qkv + (size_t)head * m->head_dim;
}

/* SPEC 2.7.2, one block of 128 keys. */
static void reference_block(const struct reference *ref, const struct reference_seq *s,
                            uint32_t layer, uint32_t kv_head, const uint16_t *q, uint32_t position,
                            uint32_t start, struct reference_sum *sum) {
    const uint32_t d = ref->m.head_dim, n = position - start + 1 < 128 ? position - start + 1 : 128;
    const float c = (float)(0x1.71547652b82fep+0 / sqrt((double)d));
    float score[128], top = 0.0f, m, a;
    uint16_t p[128] = {0}, ones[128], v[128];

    for (uint32_t j = 0; j < n; j++) {
        score[j] = mma_chain(0.0f, q, reference_kv(ref, s, layer, start + j, kv_head, false), d);
        top = j == 0 ? score[j] : num_max(top, score[j]);
    }
    m = num_max(sum->m, floorf(top * c) + 1.0f);
    a = reference_pow2(sum->m - m);
    sum->m = m;
    for (uint32_t j = 0; j < n; j++) p[j] = num_to_bf16(ex2_exact(num_fma(score[j], c, -m)));
    for (uint32_t j = 0; j < 128; j++) ones[j] = 0x3f80;
    sum->l = mma_chain(sum->l * a, p, ones, 128);
    for (uint32_t i = 0; i < d; i++) {
        for (uint32_t j = 0; j < 128; j++)
            v[j] = j < n ? reference_kv(ref, s, layer, start + j, kv_head, true)[i] : 0;
        sum->o[i] = mma_chain(sum->o[i] * a, p, v, 128);
    }
}

/* SPEC 2.7, one query head.  False where the row is to be flagged. */
static bool reference_head(const struct reference *ref, const struct reference_seq *s,
                           uint32_t layer, uint32_t head, uint32_t position, uint32_t split_keys,
                           uint16_t *out) {
    const uint32_t d = ref->m.head_dim, kv_head = head / (ref->m.n_heads / ref->m.n_kv_heads);
    const uint16_t *q = s->tokens[position].layers[layer].qkv + (size_t)head * d;
    struct reference_sum total = {.m = -0x1p20f};
    bool fine;

    for (uint32_t split = 0; split <= position; split += split_keys) {
        struct reference_sum sum = {.m = -0x1p20f};
        float x, a, b;

        for (uint32_t start = split; start < split + split_keys && start <= position; start += 128)
            reference_block(ref, s, layer, kv_head, q, position, start, &sum);
        x = num_max(total.m, sum.m);
        a = reference_pow2(total.m - x);
        b = reference_pow2(sum.m - x);
        total.l = num_fma(sum.l, b, total.l * a);
        for (uint32_t i = 0; i < d; i++) total.o[i] = num_fma(sum.o[i], b, total.o[i] * a);
        total.m = x;
    }
    fine = total.m < 0x1p20f && total.l > 0.0f && total.l < NUM_INFINITY;
    for (uint32_t i = 0; i < d; i++) {
        float r = total.o[i] * (1.0f / total.l) + 0.0f;

        if (!isfinite(r)) fine = false;
        out[i] = num_to_bf16(r);
    }
    return fine;
}

static void reference_residual(const uint16_t *x, const uint16_t *y, uint32_t n, uint16_t *out) {
    for (uint32_t i = 0; i < n; i++)
        out[i] = num_to_bf16(num_from_bf16(x[i]) + num_from_bf16(y[i]));
}

/* SPEC 2.9, one layer of the newest token. */
static const uint16_t *reference_layer(const struct reference *ref, struct reference_seq *s,
                                       uint32_t layer, const uint16_t *x,
                                       const struct schedule *sch) {
    const struct model *m = &ref->m;
    const struct reference_layer *l = &ref->layers[layer];
    const uint32_t position = s->n_tokens - 1, hidden = m->hidden, n = m->intermediate;
    const uint32_t width = m->n_heads * m->head_dim, kv_width = m->n_kv_heads * m->head_dim;
    struct reference_token *token = &s->tokens[position];
    struct reference_trace *t = &token->layers[layer];
    uint16_t *h = reference_take(hidden, sizeof(*h)), *y = reference_take(hidden, sizeof(*y));
    uint16_t *g = reference_take(n, sizeof(*g)), *u = reference_take(n, sizeof(*u));

    t->qkv = reference_take(width + 2 * kv_width, sizeof(uint16_t));
    t->attn = reference_take(width, sizeof(uint16_t));
    t->h = reference_take(n, sizeof(uint16_t));
    t->x_attn = reference_take(hidden, sizeof(uint16_t));
    t->x = reference_take(hidden, sizeof(uint16_t));

    reference_norm(ref, x, l->norm_in, sch->norm_run, h);
    reference_products(l->q, h, width, hidden, sch->qkv, t->qkv);
    reference_products(l->k, h, kv_width, hidden, sch->qkv, t->qkv + width);
    reference_products(l->v, h, kv_width, hidden, sch->qkv, t->qkv + width + kv_width);
    for (uint32_t i = 0; i < m->n_heads + m->n_kv_heads; i++)
        reference_rotate(ref, t->qkv + i * m->head_dim, position);
    for (uint32_t i = 0; i < m->n_heads; i++)
        if (!reference_head(ref, s, layer, i, position, sch->split_keys, t->attn + i * m->head_dim))
            token->flagged = true;
    reference_products(l->o, t->attn, hidden, width, sch->o, y);
    reference_residual(x, y, hidden, t->x_attn);

    reference_norm(ref, t->x_attn, l->norm_post, sch->norm_run, h);
    reference_products(l->gate, h, n, hidden, sch->gate_up, g);
    reference_products(l->up, h, n, hidden, sch->gate_up, u);
    for (uint32_t i = 0; i < n; i++) {
        float gate = num_from_bf16(g[i]);
        float half = gate / (1.0f + num_exp2(-gate * NUM_LOG2E));

        t->h[i] = num_to_bf16(num_from_bf16(num_to_bf16(half)) * num_from_bf16(u[i]));
    }
    reference_products(l->down, t->h, hidden, n, sch->down, y);
    reference_residual(t->x_attn, y, hidden, t->x);
    free(h);
    free(y);
    free(g);
    free(u);
    return t->x;
}

/* One more token of the sequence, with its logits. */
static void reference_add(const struct reference *ref, struct reference_seq *s, uint32_t id,
                          const struct schedule *sch) {
    const struct model *m = &ref->m;
    struct reference_token *t = &s->tokens[s->n_tokens++];
    uint16_t *h = reference_take(m->hidden, sizeof(*h));
    const uint16_t *x;

    t->embedded = reference_take(m->hidden, sizeof(uint16_t));
    memcpy(t->embedded, ref->embed + (size_t)id * m->hidden, m->hidden * sizeof(uint16_t));
    t->layers = reference_take(m->n_layers, sizeof(*t->layers));
    t->logits = reference_take(m->vocab, sizeof(*t->logits));
    x = t->embedded;
    for (uint32_t i = 0; i < m->n_layers; i++) x = reference_layer(ref, s, i, x, sch);
    reference_norm(ref, x, ref->norm_final, sch->norm_run, h);
    for (uint32_t i = 0; i < m->vocab; i++)
        t->logits[i] =
            reference_product(ref->head + (size_t)i * m->hidden, h, m->hidden, sch->head);
    free(h);
}

#endif
