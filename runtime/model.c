#include "runtime/model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/document.h"
#include "runtime/err.h"
#include "runtime/file.h"

enum {
    FILE_BYTES_MAX = 1 << 20,
    PATH_BYTES = 4096,
    TILE = 16, /* the tensor core takes 16 values of a row at once */
};

#define THETA_MAX 1e15
#define FACTOR_MAX 1e6
#define EPS_MAX 1.0
#define TEMPERATURE_MAX 1000.0

static const char config_name[] = "config.json";
static const char generation_name[] = "generation_config.json";

/* An object of a file, and where its faults go. */
struct part {
    const char *file;
    const char *within; /* "" or "rope_scaling." */
    const json_t *object;
    struct err *e;
};

#define FAULT(p, code, key, fmt, ...) \
    err_set((p)->e, code, "%s: %s%s " fmt, (p)->file, (p)->within, key, ##__VA_ARGS__)

/* The value of a key, or NULL.  null is absence: writers spell a default so. */
static const json_t *find(const struct part *p, const char *key) {
    const json_t *value = json_object_get(p->object, key);

    return json_is_null(value) ? NULL : value;
}

/* min <= *out <= max.  `absent` is the value without the key, or -1 where it must be there. */
static int get_uint(const struct part *p, const char *key, uint32_t min, uint32_t max,
                    int64_t absent, uint32_t *out) {
    const json_t *value = find(p, key);
    json_int_t x;

    if (!value && absent < 0) return FAULT(p, -EINVAL, key, "is missing");
    if (value && !json_is_integer(value)) return FAULT(p, -EINVAL, key, "is not an integer");
    x = value ? json_integer_value(value) : (json_int_t)absent;
    if (x < (json_int_t)min)
        return FAULT(p, -EINVAL, key, "is %lld, the least is %u", (long long)x, min);
    if (x > (json_int_t)max)
        return FAULT(p, -ENOTSUP, key, "is %lld, the limit is %u", (long long)x, max);
    *out = (uint32_t)x;
    return 0;
}

/* The same for a number; NaN for `absent` means that it must be there.  JSON has neither NaN nor
 * infinities, and an integer is a number too. */
static int get_real(const struct part *p, const char *key, double min, double max, double absent,
                    double *out) {
    const json_t *value = find(p, key);
    double x;

    if (!value && isnan(absent)) return FAULT(p, -EINVAL, key, "is missing");
    if (value && !json_is_number(value)) return FAULT(p, -EINVAL, key, "is not a number");
    x = value ? json_number_value(value) : absent;
    if (!(x >= min && x <= max))
        return FAULT(p, -EINVAL, key, "is %g, outside of %g to %g", x, min, max);
    *out = x;
    return 0;
}

static int get_bool(const struct part *p, const char *key, bool absent, bool *out) {
    const json_t *value = find(p, key);

    if (value && !json_is_boolean(value)) return FAULT(p, -EINVAL, key, "is not true or false");
    *out = value ? json_is_true(value) : absent;
    return 0;
}

/* *out lives as long as the file's object; `absent` may be NULL: it must be there. */
static int get_text(const struct part *p, const char *key, const char *absent, const char **out) {
    const json_t *value = find(p, key);

    if (!value && !absent) return FAULT(p, -EINVAL, key, "is missing");
    if (value && !json_is_string(value)) return FAULT(p, -EINVAL, key, "is not a string");
    *out = value ? json_string_value(value) : absent;
    return 0;
}

static int check_text(const struct part *p, const char *key, const char *absent, const char *want) {
    const char *text = NULL;
    int r = get_text(p, key, absent, &text);

    if (r < 0 || strcmp(text, want) == 0) return r;
    return FAULT(p, -ENOTSUP, key, "is \"%.40s\", implemented is \"%s\"", text, want);
}

static int check_architecture(const struct part *p) {
    static const char key[] = "architectures", want[] = "LlamaForCausalLM";
    const json_t *list = find(p, key);
    const char *text = json_string_value(json_array_get(list, 0));

    if (!list) return FAULT(p, -EINVAL, key, "is missing");
    if (json_array_size(list) != 1 || !text)
        return FAULT(p, -EINVAL, key, "is not a list of one name");
    if (strcmp(text, want) != 0)
        return FAULT(p, -ENOTSUP, key, "is \"%.40s\", implemented is \"%s\"", text, want);
    return check_text(p, "model_type", NULL, "llama");
}

/* Settings of this family and its relatives that change the arithmetic, each with the one value
 * besides null under which it does not.  Any other key is taken to be without effect. */
static int check_refused(const struct part *p) {
    enum neutral { NONE, FALSE, ZERO, ONE };
    static const struct {
        const char *key;
        enum neutral neutral;
    } refused[] = {
        /* other projections, norms and activations */
        {"attention_bias", FALSE},
        {"mlp_bias", FALSE},
        {"qkv_bias", FALSE},
        {"use_bias", FALSE},
        {"attention_out_bias", FALSE},
        {"use_qk_norm", FALSE},
        {"qk_norm", FALSE},
        {"qk_layernorm", FALSE},
        {"clip_qkv", NONE},
        /* factors */
        {"logits_scaling", ONE},
        {"logit_scale", ONE},
        {"lm_head_multiplier", ONE},
        {"attention_multiplier", NONE},
        {"embedding_multiplier", ONE},
        {"residual_multiplier", ONE},
        {"key_multiplier", ONE},
        {"scale_emb", ONE},
        {"scale_depth", NONE},
        {"dim_model_base", NONE},
        {"query_pre_attn_scalar", NONE},
        {"final_logit_softcapping", NONE},
        {"attn_logit_softcapping", NONE},
        /* which keys a query sees, and how positions enter */
        {"sliding_window", NONE},
        {"use_sliding_window", FALSE},
        {"attention_chunk_size", NONE},
        {"no_rope_layers", NONE},
        {"no_rope_layer_interval", NONE},
        {"alibi", FALSE},
        {"partial_rotary_factor", ONE},
        {"rotary_pct", ONE},
        {"rope_interleaved", FALSE},
        /* other layers, other numbers, other programs */
        {"num_experts", ZERO},
        {"num_local_experts", ZERO},
        {"n_routed_experts", ZERO},
        {"parallel_attn", FALSE},
        {"pretraining_tp", ONE},
        {"quantization_config", NONE},
        {"compression_config", NONE},
        {"auto_map", NONE},
    };

    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        const json_t *value = find(p, refused[i].key);
        enum neutral neutral = refused[i].neutral;

        if (!value) continue;
        if (neutral == FALSE && json_is_false(value)) continue;
        /* An integer or a number with a fraction part, which all of these may be. */
        if (neutral == ONE && json_is_number(value) && json_number_value(value) == 1.0) continue;
        if (neutral == ZERO && json_is_number(value) && json_number_value(value) == 0.0) continue;
        return FAULT(p, -ENOTSUP, refused[i].key, "is set, which is not implemented");
    }
    return 0;
}

/* A kind for each layer, which must be the one that we have. */
static int check_layer_types(const struct part *p) {
    static const char key[] = "layer_types";
    const json_t *list = find(p, key), *value;
    size_t i;

    if (!list) return 0;
    if (!json_is_array(list)) return FAULT(p, -EINVAL, key, "is not a list");
    json_array_foreach(list, i, value) {
        const char *text = json_string_value(value);

        if (!text) return FAULT(p, -EINVAL, key, "holds what is not a string");
        if (strcmp(text, "full_attention") != 0)
            return FAULT(p, -ENOTSUP, key, "holds \"%.40s\", implemented is \"full_attention\"",
                         text);
    }
    return 0;
}

static int check_tile(const struct part *p, const char *key, uint32_t x) {
    if (x % TILE == 0) return 0;
    return FAULT(p, -ENOTSUP, key, "is %u, implemented are multiples of %d", x, TILE);
}

static int read_shapes(const struct part *p, struct model *m) {
    bool tied = false;
    int r;

    r = get_uint(p, "num_hidden_layers", 1, MODEL_LAYERS_MAX, -1, &m->n_layers);
    if (r == 0) r = get_uint(p, "hidden_size", 1, MODEL_HIDDEN_MAX, -1, &m->hidden);
    if (r == 0) r = check_tile(p, "hidden_size", m->hidden);
    if (r == 0)
        r = get_uint(p, "intermediate_size", 1, MODEL_INTERMEDIATE_MAX, -1, &m->intermediate);
    if (r == 0) r = check_tile(p, "intermediate_size", m->intermediate);
    if (r == 0) r = get_uint(p, "num_attention_heads", 1, MODEL_HEADS_MAX, -1, &m->n_heads);
    if (r == 0)
        r = get_uint(p, "num_key_value_heads", 1, MODEL_HEADS_MAX, m->n_heads, &m->n_kv_heads);
    if (r == 0 && m->n_heads % m->n_kv_heads != 0)
        r = FAULT(p, -EINVAL, "num_key_value_heads", "is %u, which does not divide %u heads",
                  m->n_kv_heads, m->n_heads);
    if (r == 0 && !find(p, "head_dim") && m->hidden % m->n_heads != 0)
        r = FAULT(p, -EINVAL, "num_attention_heads",
                  "is %u, which does not divide %u, and head_dim "
                  "is missing",
                  m->n_heads, m->hidden);
    if (r == 0)
        r = get_uint(p, "head_dim", 1, MODEL_HEAD_DIM_MAX, m->hidden / m->n_heads, &m->head_dim);
    if (r == 0) r = check_tile(p, "head_dim", m->head_dim);
    if (r == 0) r = get_uint(p, "vocab_size", 1, MODEL_VOCAB_MAX, -1, &m->vocab);
    if (r == 0) r = get_uint(p, "max_position_embeddings", 1, MODEL_CONTEXT_MAX, -1, &m->context);
    if (r == 0) r = get_bool(p, "tie_word_embeddings", false, &tied);
    m->tied = tied;
    return r;
}

static int read_eps(const struct part *p, struct model *m) {
    double eps = 0;
    int r = get_real(p, "rms_norm_eps", 0, EPS_MAX, NAN, &eps);

    if (r < 0) return r;
    m->rms_eps = (float)eps;
    /* As fp32, in which it is used: 1e-50 is zero there. */
    if (!(m->rms_eps > 0 && m->rms_eps < 1))
        return FAULT(p, -EINVAL, "rms_norm_eps", "is %g, not between 0 and 1", eps);
    return 0;
}

/* A key that this kind of rotary embedding does not read may mean one that we do not have. */
static int check_rope_keys(const struct part *p, enum model_rope rope) {
    static const struct {
        const char *key;
        enum model_rope first, last; /* who reads it, in the order of the enum */
    } known[] = {
        {"rope_type", MODEL_ROPE_DEFAULT, MODEL_ROPE_LLAMA3},
        {"type", MODEL_ROPE_DEFAULT, MODEL_ROPE_LLAMA3},
        {"rope_theta", MODEL_ROPE_DEFAULT, MODEL_ROPE_LLAMA3},
        {"partial_rotary_factor", MODEL_ROPE_DEFAULT, MODEL_ROPE_LLAMA3},
        {"factor", MODEL_ROPE_LINEAR, MODEL_ROPE_LLAMA3},
        {"low_freq_factor", MODEL_ROPE_LLAMA3, MODEL_ROPE_LLAMA3},
        {"high_freq_factor", MODEL_ROPE_LLAMA3, MODEL_ROPE_LLAMA3},
        {"original_max_position_embeddings", MODEL_ROPE_LLAMA3, MODEL_ROPE_LLAMA3},
    };
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)p->object, key, value) {
        bool read = json_is_null(value);

        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]) && !read; i++)
            read =
                strcmp(key, known[i].key) == 0 && rope >= known[i].first && rope <= known[i].last;
        if (!read) return FAULT(p, -ENOTSUP, key, "is not implemented for this rope_type");
    }
    return 0;
}

static int read_rope_type(const struct part *p, enum model_rope *out_rope) {
    static const char *const names[] = {"default", "linear", "llama3"};
    const char *text = NULL, *old = NULL;
    int r = get_text(p, "type", "default", &old);

    if (r == 0) r = get_text(p, "rope_type", old, &text);
    if (r < 0) return r;
    if (find(p, "type") && strcmp(text, old) != 0)
        return FAULT(p, -EINVAL, "rope_type", "is \"%.40s\", but type is \"%.40s\"", text, old);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(text, names[i]) != 0) continue;
        *out_rope = (enum model_rope)i;
        return 0;
    }
    return FAULT(p, -ENOTSUP, "rope_type", "is \"%.40s\", implemented are default, linear, llama3",
                 text);
}

/* `p` is the object that says how; it may be empty. */
static int read_scaling(const struct part *p, struct model *m) {
    double partial = 0;
    int r = read_rope_type(p, &m->rope);

    if (r == 0) r = check_rope_keys(p, m->rope);
    if (r == 0) r = get_real(p, "partial_rotary_factor", 0, 1, 1, &partial);
    if (r < 0) return r;
    if (partial != 1) return FAULT(p, -ENOTSUP, "partial_rotary_factor", "is %g, not 1", partial);
    if (m->rope == MODEL_ROPE_DEFAULT) return 0;
    /* Below 1 it would shrink the context that the model has, and no model is made so. */
    r = get_real(p, "factor", 1, FACTOR_MAX, NAN, &m->rope_factor);
    if (r < 0 || m->rope == MODEL_ROPE_LINEAR) return r;
    r = get_real(p, "low_freq_factor", 1.0 / FACTOR_MAX, FACTOR_MAX, NAN, &m->rope_low_freq);
    if (r == 0)
        r = get_real(p, "high_freq_factor", 1.0 / FACTOR_MAX, FACTOR_MAX, NAN, &m->rope_high_freq);
    /* Their difference divides. */
    if (r == 0 && !(m->rope_high_freq > m->rope_low_freq))
        r = FAULT(p, -EINVAL, "high_freq_factor", "is %g, not above low_freq_factor, %g",
                  m->rope_high_freq, m->rope_low_freq);
    if (r == 0)
        r = get_uint(p, "original_max_position_embeddings", 1, MODEL_CONTEXT_MAX, -1,
                     &m->rope_context_old);
    return r;
}

/* Two spellings: rope_theta beside rope_scaling, or both inside rope_parameters. */
static int read_rope(const struct part *p, struct model *m) {
    const double theta_absent = 10000; /* the family's, where a file does not say */
    const json_t *scaling = find(p, "rope_scaling"), *parameters = find(p, "rope_parameters");
    struct part inner = {.file = p->file, .e = p->e};
    double outer_theta = theta_absent;
    json_t *none = NULL;
    int r;

    if (scaling && parameters)
        return FAULT(p, -EINVAL, "rope_scaling", "and rope_parameters are both set");
    inner.object = parameters ? parameters : scaling;
    inner.within = parameters ? "rope_parameters." : "rope_scaling.";
    if (inner.object && !json_is_object(inner.object))
        return FAULT(p, -EINVAL, parameters ? "rope_parameters" : "rope_scaling",
                     "is not an object");
    if (!inner.object) inner.object = none = json_object();
    if (!inner.object) return err_set(p->e, -ENOMEM, "%s: no memory", p->file);

    r = get_real(p, "rope_theta", 1, THETA_MAX, theta_absent, &outer_theta);
    if (r == 0) r = get_real(&inner, "rope_theta", 1, THETA_MAX, outer_theta, &m->rope_theta);
    if (r == 0 && find(p, "rope_theta") && m->rope_theta != outer_theta)
        r = FAULT(&inner, -EINVAL, "rope_theta", "is %g, but %g outside of it", m->rope_theta,
                  outer_theta);
    if (r == 0) r = read_scaling(&inner, m);
    json_decref(none);
    return r;
}

/* A token id below the vocabulary, or a list of such; absent it leaves the model alone. */
static int read_eos(const struct part *p, struct model *m) {
    static const char key[] = "eos_token_id";
    const json_t *value = find(p, key);
    size_t n_eos = json_is_array(value) ? json_array_size(value) : 1;

    if (!value) return 0;
    if (n_eos > MODEL_EOS_MAX)
        return FAULT(p, -ENOTSUP, key, "has %zu ids, the limit is %d", n_eos, MODEL_EOS_MAX);
    for (size_t i = 0; i < n_eos; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;

        if (!json_is_integer(id)) return FAULT(p, -EINVAL, key, "is not an id or a list of ids");
        if (json_integer_value(id) < 0 || json_integer_value(id) >= (json_int_t)m->vocab)
            return FAULT(p, -EINVAL, key, "holds %lld, the vocabulary has %u",
                         (long long)json_integer_value(id), m->vocab);
        m->eos[i] = (uint32_t)json_integer_value(id);
    }
    for (size_t i = n_eos; i < MODEL_EOS_MAX; i++) m->eos[i] = 0;
    m->n_eos = (uint32_t)n_eos;
    return 0;
}

static int read_bos(const struct part *p, struct model *m) {
    uint32_t bos = 0;
    int r;

    if (!find(p, "bos_token_id")) return 0;
    r = get_uint(p, "bos_token_id", 0, m->vocab - 1, -1, &bos);
    if (r == 0) m->bos = bos;
    return r;
}

static int read_config(const struct part *p, struct model *m) {
    int r = check_architecture(p);

    if (r == 0) r = check_text(p, "hidden_act", "silu", "silu");
    if (r == 0) r = check_refused(p);
    if (r == 0) r = check_layer_types(p);
    if (r == 0) r = read_shapes(p, m);
    if (r == 0) r = read_eps(p, m);
    if (r == 0) r = read_rope(p, m);
    if (r == 0) r = read_eos(p, m);
    if (r == 0) r = read_bos(p, m);
    return r;
}

static int read_generation(const struct part *p, struct model *m) {
    double x = 0;
    int r = read_eos(p, m);

    if (r == 0 && find(p, "temperature")) {
        r = get_real(p, "temperature", 0, TEMPERATURE_MAX, NAN, &x);
        m->suggested_temperature = (float)x;
    }
    if (r == 0 && find(p, "top_p")) {
        r = get_real(p, "top_p", 0, 1, NAN, &x);
        m->suggested_top_p = (float)x;
    }
    if (r == 0) r = get_uint(p, "top_k", 0, INT32_MAX, 0, &m->suggested_top_k);
    return r;
}

int model_parse(const char *config, size_t n_bytes, const char *generation, size_t generation_bytes,
                struct model *out_model, struct err *e) {
    struct model m = {.bos = -1, .suggested_temperature = NAN, .suggested_top_p = NAN};
    json_t *root = NULL;
    int r;

    r = document_parse(config_name, config, n_bytes, &root, e);
    if (r < 0) return r;
    r = read_config(&(struct part){config_name, "", root, e}, &m);
    json_decref(root);
    if (r < 0) return r;
    if (generation) {
        r = document_parse(generation_name, generation, generation_bytes, &root, e);
        if (r < 0) return r;
        r = read_generation(&(struct part){generation_name, "", root, e}, &m);
        json_decref(root);
        if (r < 0) return r;
    }
    *out_model = m;
    return 0;
}

/* The last component of the path.  It goes into log and replies: printable ASCII. */
static int read_name(const char *folder, char out_name[MODEL_NAME_BYTES], struct err *e) {
    size_t end = strlen(folder), begin;

    while (end > 1 && folder[end - 1] == '/') end--;
    for (begin = end; begin > 0 && folder[begin - 1] != '/'; begin--) {
        if (folder[begin - 1] < ' ' || folder[begin - 1] > '~')
            return err_set(e, -EINVAL, "the name of the model's folder is not printable ASCII");
    }
    if (end == begin || end - begin >= MODEL_NAME_BYTES)
        return err_set(e, -EINVAL, "the name of the model's folder has %zu bytes, not 1 to %d",
                       end - begin, MODEL_NAME_BYTES - 1);
    memcpy(out_name, folder + begin, end - begin);
    out_name[end - begin] = '\0';
    return 0;
}

static int read_file(const char *folder, const char *name, char **out_text, size_t *out_n_bytes,
                     struct err *e) {
    char path[PATH_BYTES];

    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= PATH_BYTES)
        return err_set(e, -EINVAL, "the path of the model's folder has %zu bytes", strlen(folder));
    return file_read(path, FILE_BYTES_MAX, out_text, out_n_bytes, e);
}

int model_read(const char *folder, struct model *out_model, struct err *e) {
    char name[MODEL_NAME_BYTES], *config = NULL, *generation = NULL;
    size_t n_bytes, generation_bytes = 0;
    int r;

    r = read_name(folder, name, e);
    if (r == 0) r = read_file(folder, config_name, &config, &n_bytes, e);
    if (r < 0) return r;
    r = read_file(folder, generation_name, &generation, &generation_bytes, e);
    if (r == 0 || r == -ENOENT)
        r = model_parse(config, n_bytes, generation, generation_bytes, out_model, e);
    if (r == 0) memcpy(out_model->name, name, sizeof(name));
    free(config);
    free(generation);
    return r;
}

size_t model_write(const struct model *m, char *text, size_t n_bytes_max) {
    static const char *const ropes[] = {"default", "linear", "llama3"};
    char all[1024]; /* every field at its widest takes about half of it */
    int n;

    n = snprintf(all, sizeof(all),
                 "architecture=llama;layers=%u;hidden=%u;intermediate=%u;heads=%u;kv_heads=%u;"
                 "head_dim=%u;vocab=%u;tied=%d;rms_eps=%a;rope=%s;rope_theta=%a;",
                 m->n_layers, m->hidden, m->intermediate, m->n_heads, m->n_kv_heads, m->head_dim,
                 m->vocab, m->tied, (double)m->rms_eps, ropes[m->rope], m->rope_theta);
    if (m->rope != MODEL_ROPE_DEFAULT)
        n += snprintf(all + n, sizeof(all) - (size_t)n, "rope_factor=%a;", m->rope_factor);
    if (m->rope == MODEL_ROPE_LLAMA3)
        n += snprintf(all + n, sizeof(all) - (size_t)n,
                      "rope_low_freq=%a;rope_high_freq=%a;rope_context_old=%u;", m->rope_low_freq,
                      m->rope_high_freq, m->rope_context_old);
    return (size_t)snprintf(text, n_bytes_max, "%s", all);
}

uint64_t model_kv_bytes(const struct model *m) {
    return 2 * sizeof(uint16_t) * (uint64_t)m->n_layers * m->n_kv_heads * m->head_dim;
}
