/* gguf2st - a model folder (safetensors, config, tokenizer) from a GGUF file of a Llama.
 *
 *     gguf2st FILE.gguf FOLDER
 *
 * The values are those that the quantised file stands for, rounded once to bf16.  Takes tensors in
 * F32, Q4_1 and Q8_0, and refuses by name whatever else it finds: no guess ends up in a model. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/num.h"

enum {
    VERSION = 3,
    KEYS_MAX = 4096,
    TENSORS_MAX = 8192,
    RANK_MAX = 2,
    BLOCK_VALUES = 32, /* of both quantised types */
    Q4_1_BYTES = 2 + 2 + 16,
    Q8_0_BYTES = 2 + 32,
    ALIGNMENT = 32, /* of tensor data; general.alignment is refused */
    NAME_BYTES = 128,
};

/* Value types of the metadata, tensor types, token types: numbers of the format. */
enum { V_U8, V_I8, V_U16, V_I16, V_U32, V_I32, V_F32, V_BOOL, V_STRING, V_ARRAY, V_U64, V_I64 };
enum { T_F32 = 0, T_Q4_1 = 3, T_Q8_0 = 8 };
enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3 };

struct tensor {
    char name[NAME_BYTES];   /* in the safetensors file */
    const uint8_t *bytes;    /* in the GGUF file */
    uint64_t n_rows, n_cols; /* a vector has n_rows 1 */
    uint64_t n_heads;        /* of rows to put back in order; or 0 */
    uint64_t n_bytes;        /* as bf16 */
    uint32_t rank, type;
};

struct gguf {
    const uint8_t *bytes;
    size_t n_bytes, at;
    json_t *keys;
    struct tensor *tensors;
    size_t n_tensors;
};

static _Noreturn void __attribute__((format(printf, 1, 2))) fail(const char *fmt, ...) {
    va_list args;

    va_start(args, fmt);
    fputs("gguf2st: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static void map(struct gguf *g, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    void *p;

    if (fd < 0 || fstat(fd, &st) < 0) fail("%s: %s", path, strerror(errno));
    if (st.st_size <= 0) fail("%s: empty", path);
    p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) fail("%s: %s", path, strerror(errno));
    close(fd);
    *g = (struct gguf){.bytes = p, .n_bytes = (size_t)st.st_size};
}

/* The next n bytes of the file. */
static const uint8_t *take(struct gguf *g, uint64_t n) {
    const uint8_t *p = g->bytes + g->at;

    if (n > g->n_bytes - g->at) fail("cut off at byte %zu", g->at);
    g->at += n;
    return p;
}

static uint64_t take_uint(struct gguf *g, unsigned n_bytes) {
    const uint8_t *p = take(g, n_bytes);
    uint64_t x = 0;

    for (unsigned i = 0; i < n_bytes; i++) x |= (uint64_t)p[i] << (8 * i);
    return x;
}

static json_t *take_string(struct gguf *g) {
    uint64_t n = take_uint(g, 8);
    const char *p = (const char *)take(g, n);
    json_t *text = json_stringn(p, n);

    if (!text) fail("text that is not UTF-8 before byte %zu", g->at);
    return text;
}

static json_t *take_value(struct gguf *g, uint64_t type, bool inside_array) {
    json_t *array;
    uint64_t n;

    switch (type) {
    case V_U8:
        return json_integer((json_int_t)take_uint(g, 1));
    case V_I8:
        return json_integer((int8_t)take_uint(g, 1));
    case V_U16:
        return json_integer((json_int_t)take_uint(g, 2));
    case V_I16:
        return json_integer((int16_t)take_uint(g, 2));
    case V_U32:
        return json_integer((json_int_t)take_uint(g, 4));
    case V_I32:
        return json_integer((int32_t)take_uint(g, 4));
    case V_F32:
        return json_real((double)num_from_bits((unsigned)take_uint(g, 4)));
    case V_BOOL:
        return json_boolean(take_uint(g, 1));
    case V_STRING:
        return take_string(g);
    case V_U64:
    case V_I64:
        return json_integer((json_int_t)take_uint(g, 8));
    case V_ARRAY:
        if (inside_array) break;
        type = take_uint(g, 4);
        n = take_uint(g, 8);
        array = json_array();
        for (uint64_t i = 0; i < n; i++) json_array_append_new(array, take_value(g, type, true));
        return array;
    default:
        break;
    }
    fail("value of type %llu before byte %zu", (unsigned long long)type, g->at);
}

static json_t *get(const struct gguf *g, const char *key, json_type type) {
    json_t *value = json_object_get(g->keys, key);

    if (!value) fail("no %s", key);
    if (json_typeof(value) != type) fail("%s: not of the expected type", key);
    return value;
}

static json_int_t get_int(const struct gguf *g, const char *key) {
    return json_integer_value(get(g, key, JSON_INTEGER));
}

static void expect(const struct gguf *g, const char *key, const char *text) {
    const char *found = json_string_value(get(g, key, JSON_STRING));

    if (strcmp(found, text) != 0) fail("%s: \"%s\", known is \"%s\" alone", key, found, text);
}

static void read_keys(struct gguf *g, uint64_t n_keys) {
    /* Each of these would change the model in a way that is not written on. */
    static const char *const refused[] = {
        "general.alignment",
        "llama.rope.scaling.type",
        "llama.rope.scale_linear",
        "llama.rope.scaling.factor",
        "llama.expert_count",
        "llama.attention.key_length",
        "llama.attention.value_length",
    };

    if (n_keys > KEYS_MAX) fail("%llu keys", (unsigned long long)n_keys);
    g->keys = json_object();
    for (uint64_t i = 0; i < n_keys; i++) {
        json_t *key = take_string(g);
        uint64_t type = take_uint(g, 4);

        json_object_set_new(g->keys, json_string_value(key), take_value(g, type, false));
        json_decref(key);
    }
    expect(g, "general.architecture", "llama");
    expect(g, "tokenizer.ggml.model", "gpt2");
    expect(g, "tokenizer.ggml.pre", "smollm");
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        if (json_object_get(g->keys, refused[i])) fail("%s is not implemented", refused[i]);
}

/* The safetensors name of a GGUF tensor, and how many heads its rows make if their order differs. */
static void name_tensor(const struct gguf *g, const char *name, struct tensor *t) {
    static const struct {
        const char *from, *to, *n_heads;
    } layer_names[] = {
        {"attn_norm.weight", "input_layernorm.weight", NULL},
        {"ffn_norm.weight", "post_attention_layernorm.weight", NULL},
        {"attn_q.weight", "self_attn.q_proj.weight", "llama.attention.head_count"},
        {"attn_k.weight", "self_attn.k_proj.weight", "llama.attention.head_count_kv"},
        {"attn_v.weight", "self_attn.v_proj.weight", NULL},
        {"attn_output.weight", "self_attn.o_proj.weight", NULL},
        {"ffn_gate.weight", "mlp.gate_proj.weight", NULL},
        {"ffn_up.weight", "mlp.up_proj.weight", NULL},
        {"ffn_down.weight", "mlp.down_proj.weight", NULL},
    };
    unsigned layer;
    int n_chars = 0;

    if (strcmp(name, "token_embd.weight") == 0) {
        snprintf(t->name, NAME_BYTES, "model.embed_tokens.weight");
        return;
    }
    if (strcmp(name, "output_norm.weight") == 0) {
        snprintf(t->name, NAME_BYTES, "model.norm.weight");
        return;
    }
    if (strcmp(name, "output.weight") == 0) {
        snprintf(t->name, NAME_BYTES, "lm_head.weight");
        return;
    }
    if (sscanf(name, "blk.%5u.%n", &layer, &n_chars) == 1 && n_chars) {
        for (size_t i = 0; i < sizeof(layer_names) / sizeof(layer_names[0]); i++) {
            if (strcmp(name + n_chars, layer_names[i].from) != 0) continue;
            snprintf(t->name, NAME_BYTES, "model.layers.%u.%s", layer, layer_names[i].to);
            if (layer_names[i].n_heads) t->n_heads = (uint64_t)get_int(g, layer_names[i].n_heads);
            return;
        }
    }
    fail("tensor %s is not implemented", name);
}

static uint64_t stored_bytes(const char *name, uint32_t type, uint64_t n_values) {
    switch (type) {
    case T_F32:
        return n_values * 4;
    case T_Q4_1:
        return n_values / BLOCK_VALUES * Q4_1_BYTES;
    case T_Q8_0:
        return n_values / BLOCK_VALUES * Q8_0_BYTES;
    default:
        fail("tensor %s: type %u is not implemented", name, type);
    }
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static void read_tensors(struct gguf *g, uint64_t n_tensors) {
    uint64_t *offs;

    if (n_tensors == 0 || n_tensors > TENSORS_MAX)
        fail("%llu tensors", (unsigned long long)n_tensors);
    g->n_tensors = n_tensors;
    g->tensors = calloc(n_tensors, sizeof(g->tensors[0]));
    offs = calloc(n_tensors, sizeof(offs[0]));
    if (!g->tensors || !offs) fail("no memory");
    for (size_t i = 0; i < n_tensors; i++) {
        struct tensor *t = &g->tensors[i];
        json_t *name = take_string(g);

        name_tensor(g, json_string_value(name), t);
        t->rank = (uint32_t)take_uint(g, 4);
        if (t->rank < 1 || t->rank > RANK_MAX) fail("%s: rank %u", t->name, t->rank);
        t->n_cols = take_uint(g, 8);
        t->n_rows = t->rank == 2 ? take_uint(g, 8) : 1;
        t->type = (uint32_t)take_uint(g, 4);
        offs[i] = take_uint(g, 8);
        /* Every size below fits easily then. */
        if (t->n_cols - 1 >= 1 << 20 || t->n_rows - 1 >= 1 << 20) fail("%s: shape", t->name);
        if (t->type != T_F32 && t->n_cols % BLOCK_VALUES) fail("%s: odd columns", t->name);
        if (t->n_heads && t->n_rows % (2 * t->n_heads)) fail("%s: odd heads", t->name);
        t->n_bytes = t->n_rows * t->n_cols * sizeof(uint16_t);
        json_decref(name);
    }
    take(g, (ALIGNMENT - g->at % ALIGNMENT) % ALIGNMENT);
    for (size_t i = 0; i < n_tensors; i++) {
        struct tensor *t = &g->tensors[i];
        uint64_t n = stored_bytes(t->name, t->type, t->n_rows * t->n_cols);
        uint64_t n_left = g->n_bytes - g->at;

        if (offs[i] % ALIGNMENT || offs[i] > n_left || n > n_left - offs[i])
            fail("%s: lies outside the file", t->name);
        t->bytes = g->bytes + g->at + offs[i];
    }
    free(offs);
    qsort(g->tensors, n_tensors, sizeof(g->tensors[0]), by_name);
}

static float from_f16(const uint8_t *p) {
    unsigned bits = p[0] | (unsigned)p[1] << 8;
    unsigned sign = (bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;

    if (exponent == 31) fail("a scale that is not finite");
    if (exponent == 0) {
        float x = (float)fraction * 0x1p-24f;
        return sign ? -x : x;
    }
    return num_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

/* One row, all its values in fp32 and rounded once. */
static void decode_row(const struct tensor *t, uint64_t row, uint16_t *out) {
    const uint8_t *p = t->bytes + stored_bytes(t->name, t->type, row * t->n_cols);

    switch (t->type) {
    case T_F32:
        for (uint64_t col = 0; col < t->n_cols; col++) {
            float x;
            memcpy(&x, p + 4 * col, sizeof(x));
            out[col] = num_to_bf16(x);
        }
        break;
    case T_Q4_1: /* scale, minimum, then values 0..15 in the low halves and 16..31 in the high */
        for (uint64_t col = 0; col < t->n_cols; col += BLOCK_VALUES, p += Q4_1_BYTES) {
            float scale = from_f16(p), least = from_f16(p + 2);

            for (int i = 0; i < BLOCK_VALUES / 2; i++) {
                out[col + (uint64_t)i] = num_to_bf16((float)(p[4 + i] & 15) * scale + least);
                out[col + (uint64_t)i + BLOCK_VALUES / 2] =
                    num_to_bf16((float)(p[4 + i] >> 4) * scale + least);
            }
        }
        break;
    case T_Q8_0:
        for (uint64_t col = 0; col < t->n_cols; col += BLOCK_VALUES, p += Q8_0_BYTES)
            for (int i = 0; i < BLOCK_VALUES; i++)
                out[col + (uint64_t)i] = num_to_bf16((float)(int8_t)p[2 + i] * from_f16(p));
        break;
    }
}

/* Where a row stands in the GGUF file.  There the two values that rotate together are neighbours,
 * (head, pair, half); here they are half a head apart, (head, half, pair). */
static uint64_t source_row(const struct tensor *t, uint64_t row) {
    uint64_t head_dim, head, half, pair;

    if (!t->n_heads) return row;
    head_dim = t->n_rows / t->n_heads;
    head = row / head_dim;
    half = row % head_dim / (head_dim / 2);
    pair = row % (head_dim / 2);
    return head * head_dim + pair * 2 + half;
}

static FILE *create(const char *folder, const char *name) {
    char path[4096];
    FILE *f;

    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
        fail("%s: too long", folder);
    f = fopen(path, "wbe");
    if (!f) fail("%s: %s", path, strerror(errno));
    return f;
}

static void finish(FILE *f, const char *name) {
    if (ferror(f) || fflush(f) || fsync(fileno(f)) || fclose(f))
        fail("%s: %s", name, strerror(errno));
}

static void write_json(const char *folder, const char *name, json_t *root, size_t flags) {
    FILE *f = create(folder, name);

    if (json_dumpf(root, f, flags) < 0) fail("%s: cannot be written", name);
    fputc('\n', f);
    finish(f, name);
    json_decref(root);
}

static void write_weights(const struct gguf *g, const char *folder) {
    json_t *header = json_object();
    FILE *f = create(folder, "model.safetensors");
    uint64_t off = 0;
    uint8_t length[8];
    uint16_t *values;
    size_t n_chars, n_padded;
    char *text;

    json_object_set_new(header, "__metadata__", json_pack("{s:s}", "format", "pt"));
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct tensor *t = &g->tensors[i];
        json_t *shape = json_array();

        if (t->rank == 2) json_array_append_new(shape, json_integer((json_int_t)t->n_rows));
        json_array_append_new(shape, json_integer((json_int_t)t->n_cols));
        json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", "BF16", "shape", shape,
                                      "data_offsets", (json_int_t)off,
                                      (json_int_t)(off + t->n_bytes)));
        off += t->n_bytes;
    }
    text = json_dumps(header, JSON_COMPACT);
    if (!text) fail("no memory");
    n_chars = strlen(text);
    n_padded = (n_chars + 7) / 8 * 8; /* so that the data is aligned */
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)n_padded >> (8 * i));
    fwrite(length, 1, sizeof(length), f);
    fprintf(f, "%s%*s", text, (int)(n_padded - n_chars), "");
    free(text);
    json_decref(header);

    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct tensor *t = &g->tensors[i];

        values = malloc(t->n_bytes);
        if (!values) fail("no memory");
        for (uint64_t row = 0; row < t->n_rows; row++)
            decode_row(t, source_row(t, row), values + row * t->n_cols);
        fwrite(values, 1, t->n_bytes, f);
        free(values);
    }
    finish(f, "model.safetensors");
}

/* The shortest decimal number that is this fp32, as a person would have written it. */
static json_t *shortest(double x) {
    char text[40];

    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, x);
        if (strtof(text, NULL) == (float)x) break;
    }
    return json_real(strtod(text, NULL));
}

static void write_config(const struct gguf *g, const char *folder) {
    const size_t flags = JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(9);
    json_int_t bos = get_int(g, "tokenizer.ggml.bos_token_id");
    json_int_t eos = get_int(g, "tokenizer.ggml.eos_token_id");
    json_int_t hidden = get_int(g, "llama.embedding_length");
    json_int_t n_heads = get_int(g, "llama.attention.head_count");
    bool tied = true;

    if (n_heads < 1 || hidden % n_heads ||
        hidden / n_heads != get_int(g, "llama.rope.dimension_count"))
        fail("llama.rope.dimension_count: not that of a head");
    for (size_t i = 0; i < g->n_tensors; i++)
        if (strcmp(g->tensors[i].name, "lm_head.weight") == 0) tied = false;
    write_json(
        folder, "config.json",
        json_pack(
            "{s:[s] s:s s:I s:I s:I s:I s:I s:I s:I s:I s:s s:b s:b s:b s:o s:o s:n s:I s:I "
            "s:s}",
            "architectures", "LlamaForCausalLM", "model_type", "llama", "hidden_size", hidden,
            "head_dim", hidden / n_heads, "num_attention_heads", n_heads, "num_key_value_heads",
            get_int(g, "llama.attention.head_count_kv"), "num_hidden_layers",
            get_int(g, "llama.block_count"), "intermediate_size",
            get_int(g, "llama.feed_forward_length"), "vocab_size", get_int(g, "llama.vocab_size"),
            "max_position_embeddings", get_int(g, "llama.context_length"), "hidden_act", "silu",
            "attention_bias", 0, "mlp_bias", 0, "tie_word_embeddings", (int)tied, "rms_norm_eps",
            shortest(json_real_value(get(g, "llama.attention.layer_norm_rms_epsilon", JSON_REAL))),
            "rope_theta", shortest(json_real_value(get(g, "llama.rope.freq_base", JSON_REAL))),
            "rope_scaling", "bos_token_id", bos, "eos_token_id", eos, "torch_dtype", "bfloat16"),
        flags);
    write_json(folder, "generation_config.json",
               json_pack("{s:I s:I s:I}", "bos_token_id", bos, "eos_token_id", eos, "pad_token_id",
                         get_int(g, "tokenizer.ggml.padding_token_id")),
               flags);
}

static json_t *byte_level(int add_prefix_space) {
    return json_pack("{s:s s:b s:b s:b}", "type", "ByteLevel", "add_prefix_space", add_prefix_space,
                     "trim_offsets", 1, "use_regex", 1);
}

static const char *token_text(const json_t *tokens, json_int_t id) {
    const char *text = json_string_value(json_array_get(tokens, (size_t)id));

    if (!text) fail("token %lld has no text", (long long)id);
    return text;
}

static void write_tokenizer(const struct gguf *g, const char *folder) {
    json_t *tokens = get(g, "tokenizer.ggml.tokens", JSON_ARRAY);
    json_t *types = get(g, "tokenizer.ggml.token_type", JSON_ARRAY);
    json_t *vocab = json_object(), *added = json_array(), *merges = json_array(), *value;
    size_t i;

    if (json_array_size(tokens) != (size_t)get_int(g, "llama.vocab_size") ||
        json_array_size(types) != json_array_size(tokens))
        fail("tokenizer.ggml.tokens: not the size of the vocabulary");
    json_array_foreach(tokens, i, value) {
        json_int_t type = json_integer_value(json_array_get(types, i));
        const char *text = token_text(tokens, (json_int_t)i);

        if (json_object_get(vocab, text)) fail("token %zu: its text is there twice", i);
        json_object_set_new(vocab, text, json_integer((json_int_t)i));
        if (type == TOKEN_NORMAL) continue;
        if (type != TOKEN_CONTROL) fail("token %zu: type %lld", i, (long long)type);
        json_array_append_new(added, json_pack("{s:i s:s s:b s:b s:b s:b s:b}", "id", (int)i,
                                               "content", text, "single_word", 0, "lstrip", 0,
                                               "rstrip", 0, "normalized", 0, "special", 1));
    }
    json_array_foreach(get(g, "tokenizer.ggml.merges", JSON_ARRAY), i, value) {
        const char *text = json_string_value(value), *space = text ? strchr(text, ' ') : NULL;

        if (!space || strchr(space + 1, ' ')) fail("merge %zu: not two parts", i);
        json_array_append_new(merges, json_pack("[s#, s]", text, (int)(space - text), space + 1));
    }
    write_json(folder, "tokenizer.json",
               json_pack("{s:s s:n s:n s:o s:n s:{s:s s:[{s:s s:b} o]} s:n s:o s:{s:s s:n s:n s:n "
                         "s:n s:b s:b s:b s:o s:o}}",
                         "version", "1.0", "truncation", "padding", "added_tokens", added,
                         "normalizer", "pre_tokenizer", "type", "Sequence", "pretokenizers", "type",
                         "Digits", "individual_digits", 1, byte_level(0), "post_processor",
                         "decoder", byte_level(1), "model", "type", "BPE", "dropout", "unk_token",
                         "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                         "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges", merges),
               JSON_COMPACT);
    write_json(folder, "tokenizer_config.json",
               json_pack("{s:b s:s s:s s:s s:b s:I s:s}", "add_prefix_space", 0, "bos_token",
                         token_text(tokens, get_int(g, "tokenizer.ggml.bos_token_id")), "eos_token",
                         token_text(tokens, get_int(g, "tokenizer.ggml.eos_token_id")),
                         "chat_template",
                         json_string_value(get(g, "tokenizer.chat_template", JSON_STRING)),
                         "clean_up_tokenization_spaces", 0, "model_max_length",
                         get_int(g, "llama.context_length"), "tokenizer_class", "GPT2Tokenizer"),
               JSON_INDENT(2));
}

int main(int argc, char **argv) {
    struct gguf g;
    uint64_t n_tensors, n_keys;

    if (argc != 3) fail("usage: gguf2st FILE.gguf FOLDER");
    map(&g, argv[1]);
    if (memcmp(take(&g, 4), "GGUF", 4) != 0) fail("%s: not a GGUF file", argv[1]);
    if (take_uint(&g, 4) != VERSION) fail("%s: not version %d", argv[1], VERSION);
    n_tensors = take_uint(&g, 8);
    n_keys = take_uint(&g, 8);
    read_keys(&g, n_keys);
    read_tensors(&g, n_tensors);
    write_config(&g, argv[2]);
    write_tokenizer(&g, argv[2]);
    write_weights(&g, argv[2]);
    json_decref(g.keys);
    free(g.tensors);
    munmap((void *)(uintptr_t)g.bytes, g.n_bytes);
    return 0;
}
