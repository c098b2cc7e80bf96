/* config.json: both spellings, defaults, every refusal with the name of its key, every value with
 * every wrong type; what enters the fingerprint and what does not. */
#include "runtime/model.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/err.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const char base[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 256,"
    " \"intermediate_size\": 768, \"num_hidden_layers\": 4, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"vocab_size\": 2048, \"max_position_embeddings\": 2048,"
    " \"rms_norm_eps\": 1e-05, \"eos_token_id\": 1, \"bos_token_id\": 0}";

static struct err e;

/* The base with a key set to a JSON text, or without it where the text is NULL. */
static int parse_with(const char *key, const char *value, struct model *out) {
    json_t *root = json_loads(base, 0, NULL);
    char *text;
    int r;

    if (value) {
        json_t *parsed = json_loads(value, JSON_DECODE_ANY, NULL);

        assert_non_null(parsed);
        json_object_set_new(root, key, parsed);
    } else {
        json_object_del(root, key);
    }
    text = json_dumps(root, 0);
    e.text[0] = '\0';
    r = model_parse(text, strlen(text), NULL, 0, out, &e);
    free(text);
    json_decref(root);
    return r;
}

static void test_shapes(void **state) {
    struct model m;

    (void)state;
    assert_int_equal(model_parse(base, strlen(base), NULL, 0, &m, &e), 0);
    assert_int_equal(m.n_layers, 4);
    assert_int_equal(m.hidden, 256);
    assert_int_equal(m.intermediate, 768);
    assert_int_equal(m.n_heads, 4);
    assert_int_equal(m.n_kv_heads, 2);
    assert_int_equal(m.head_dim, 64);
    assert_int_equal(m.vocab, 2048);
    assert_int_equal(m.context, 2048);
    assert_false(m.tied);
    assert_true(m.rms_eps == 1e-5f);
    assert_int_equal(m.rope, MODEL_ROPE_DEFAULT);
    assert_true(m.rope_theta == 10000);
    assert_int_equal(m.n_eos, 1);
    assert_int_equal(m.eos[0], 1);
    assert_int_equal(m.bos, 0);
    assert_true(isnan(m.suggested_temperature) && isnan(m.suggested_top_p));
    assert_int_equal(m.suggested_top_k, 0);
    assert_int_equal(model_kv_bytes(&m), 2 * 2 * 4 * 2 * 64);
}

static void test_refused(void **state) {
    static const struct {
        const char *why, *key, *value;
        int want;
        const char *text; /* stands in the error beside the key */
    } cases[] = {
        {"another architecture is named", "architectures", "[\"MistralForCausalLM\"]", -ENOTSUP,
         "MistralForCausalLM"},
        {"two architectures", "architectures", "[\"LlamaForCausalLM\", \"X\"]", -EINVAL, "one"},
        {"no architecture", "architectures", "[]", -EINVAL, "one"},
        {"a relative says what it is", "model_type", "\"mistral\"", -ENOTSUP, "mistral"},
        {"gelu is another function", "hidden_act", "\"gelu\"", -ENOTSUP, "gelu"},
        {"biases are other tensors", "attention_bias", "true", -ENOTSUP, "set"},
        {"biases are other tensors", "mlp_bias", "true", -ENOTSUP, "set"},
        {"a flag of another type is no flag", "mlp_bias", "0", -ENOTSUP, "set"},
        {"quantised weights", "quantization_config", "{\"bits\": 4}", -ENOTSUP, "set"},
        {"even an empty one: who knows", "quantization_config", "{}", -ENOTSUP, "set"},
        {"a window hides keys", "sliding_window", "4096", -ENOTSUP, "set"},
        {"Granite", "logits_scaling", "8.0", -ENOTSUP, "set"},
        {"Granite", "attention_multiplier", "0.015625", -ENOTSUP, "set"},
        {"Granite", "embedding_multiplier", "12.0", -ENOTSUP, "set"},
        {"Granite", "residual_multiplier", "0.22", -ENOTSUP, "set"},
        {"Gemma", "final_logit_softcapping", "30.0", -ENOTSUP, "set"},
        {"a part of the head rotates", "partial_rotary_factor", "0.5", -ENOTSUP, "set"},
        {"sliced products sum otherwise", "pretraining_tp", "2", -ENOTSUP, "set"},
        {"experts", "num_local_experts", "8", -ENOTSUP, "set"},
        {"a program of its own", "auto_map", "{\"AutoModel\": \"m.M\"}", -ENOTSUP, "set"},
        {"one layer of another kind", "layer_types", "[\"full_attention\", \"sliding_attention\"]",
         -ENOTSUP, "sliding_attention"},
        {"layers that are no list", "layer_types", "\"full_attention\"", -EINVAL, "list"},

        {"no layers", "num_hidden_layers", "0", -EINVAL, "0"},
        {"minus one", "num_hidden_layers", "-1", -EINVAL, "-1"},
        {"layers without end", "num_hidden_layers", "1000000000", -ENOTSUP, "512"},
        {"over the limit by one", "num_hidden_layers", "513", -ENOTSUP, "512"},
        {"over 32 bits: 4 after a cast", "num_hidden_layers", "4294967300", -ENOTSUP, "512"},
        {"the largest integer", "num_hidden_layers", "9223372036854775807", -ENOTSUP, "512"},
        {"an integer by value alone", "num_hidden_layers", "4.0", -EINVAL, "integer"},
        {"required", "num_hidden_layers", NULL, -EINVAL, "missing"},
        {"null is absence", "num_hidden_layers", "null", -EINVAL, "missing"},
        {"hidden not of tiles", "hidden_size", "264", -ENOTSUP, "16"},
        {"hidden nothing", "hidden_size", "0", -EINVAL, "0"},
        {"hidden over the limit", "hidden_size", "65552", -ENOTSUP, "65536"},
        {"required", "hidden_size", NULL, -EINVAL, "missing"},
        {"intermediate not of tiles", "intermediate_size", "769", -ENOTSUP, "16"},
        {"intermediate over the limit", "intermediate_size", "262160", -ENOTSUP, "262144"},
        {"required", "intermediate_size", NULL, -EINVAL, "missing"},
        {"no heads: a division by zero", "num_attention_heads", "0", -EINVAL, "0"},
        {"heads that do not divide hidden", "num_attention_heads", "6", -EINVAL, "256"},
        {"required", "num_attention_heads", NULL, -EINVAL, "missing"},
        {"no KV heads", "num_key_value_heads", "0", -EINVAL, "0"},
        {"KV heads that do not divide", "num_key_value_heads", "3", -EINVAL, "divide"},
        {"more KV heads than heads", "num_key_value_heads", "8", -EINVAL, "divide"},
        {"head_dim not of tiles", "head_dim", "72", -ENOTSUP, "16"},
        {"head_dim nothing", "head_dim", "0", -EINVAL, "0"},
        {"head_dim over the limit", "head_dim", "272", -ENOTSUP, "256"},
        {"no vocabulary", "vocab_size", "0", -EINVAL, "0"},
        {"vocabulary over the limit", "vocab_size", "1048577", -ENOTSUP, "1048576"},
        {"required", "vocab_size", NULL, -EINVAL, "missing"},
        {"no positions", "max_position_embeddings", "0", -EINVAL, "0"},
        {"positions over the limit", "max_position_embeddings", "1048577", -ENOTSUP, "1048576"},
        {"required", "max_position_embeddings", NULL, -EINVAL, "missing"},
        {"tied is a flag", "tie_word_embeddings", "1", -EINVAL, "true or false"},

        {"eps zero divides by zero on a row of zeros", "rms_norm_eps", "0", -EINVAL, "0"},
        {"zero as fp32", "rms_norm_eps", "1e-50", -EINVAL, "1e-50"},
        {"negative", "rms_norm_eps", "-1e-5", -EINVAL, "-1e-05"},
        {"one", "rms_norm_eps", "1.0", -EINVAL, "1"},
        {"one as fp32", "rms_norm_eps", "0.99999999999", -EINVAL, "1"},
        {"required", "rms_norm_eps", NULL, -EINVAL, "missing"},
        {"a number in quotes", "rms_norm_eps", "\"1e-5\"", -EINVAL, "number"},

        {"theta zero", "rope_theta", "0", -EINVAL, "0"},
        {"theta negative", "rope_theta", "-10000.0", -EINVAL, "-10000"},
        {"theta huge", "rope_theta", "1e300", -EINVAL, "1e+300"},
        {"theta tiny: frequencies overflow", "rope_theta", "1e-300", -EINVAL, "1e-300"},

        {"end beyond the vocabulary", "eos_token_id", "2048", -EINVAL, "2048"},
        {"end below it", "eos_token_id", "-1", -EINVAL, "-1"},
        {"one of a list beyond it", "eos_token_id", "[1, 2048]", -EINVAL, "2048"},
        {"one of a list is null", "eos_token_id", "[1, null]", -EINVAL, "id"},
        {"17 ends", "eos_token_id", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", -ENOTSUP, "16"},
        {"begin beyond the vocabulary", "bos_token_id", "2048", -ENOTSUP, "2047"},
    };
    struct model m;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int r = parse_with(cases[i].key, cases[i].value, &m);

        if (r != cases[i].want || !strstr(e.text, cases[i].key) || !strstr(e.text, cases[i].text))
            fail_msg("%s (%s): got %d, \"%s\"", cases[i].why, cases[i].key, r, e.text);
    }
}

static void test_taken(void **state) {
    static const struct {
        const char *why, *key, *value;
    } cases[] = {
        {"a neutral flag", "attention_bias", "false"},
        {"a neutral factor as an integer", "pretraining_tp", "1"},
        {"a neutral factor as a real", "logits_scaling", "1.0"},
        {"no window", "sliding_window", "null"},
        {"no experts", "num_local_experts", "0"},
        {"a key without effect", "initializer_range", "0.02"},
        {"a key nobody knows", "transformers.js_config", "{\"dtype\": \"q4\"}"},
        {"layers of our kind", "layer_types", "[\"full_attention\"]"},
        {"all layers", "num_hidden_layers", "512"},
        {"the most heads", "num_attention_heads", "16"},
        {"one KV head", "num_key_value_heads", "1"},
        {"heads of their own size", "head_dim", "16"},
        {"the largest head", "head_dim", "256"},
        {"the largest vocabulary", "vocab_size", "1048576"},
        {"the largest context", "max_position_embeddings", "1048576"},
        {"silu by default", "hidden_act", "null"},
        {"the last id", "eos_token_id", "2047"},
        {"16 ends", "eos_token_id", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"},
    };
    struct model m;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (parse_with(cases[i].key, cases[i].value, &m) != 0)
            fail_msg("%s (%s): \"%s\"", cases[i].why, cases[i].key, e.text);
    }
}

/* Each key that is read, with each type of value: never more than a refusal that names it. */
static void test_types(void **state) {
    static const char *const keys[] = {
        "architectures",
        "model_type",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
        "tie_word_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "eos_token_id",
        "bos_token_id",
        "attention_bias",
        "layer_types",
    };
    static const char *const values[] = {"\"x\"", "true", "-1", "1e300", "[[]]", "{\"x\": 1}"};
    struct model m;

    (void)state;
    for (size_t i = 0; i < COUNT(keys); i++) {
        for (size_t j = 0; j < COUNT(values); j++) {
            int r = parse_with(keys[i], values[j], &m);

            if (r == 0 && strcmp(keys[i], "tie_word_embeddings") == 0 &&
                strcmp(values[j], "true") == 0)
                continue;
            if ((r != -EINVAL && r != -ENOTSUP) || !strstr(e.text, keys[i]))
                fail_msg("%s: %s: got %d, \"%s\"", keys[i], values[j], r, e.text);
        }
    }
}

static void test_rope(void **state) {
    static const char llama3[] =
        "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0,"
        " \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}";
    static const struct {
        const char *why, *key, *value;
        int want;
        const char *text;
    } cases[] = {
        {"llama3", "rope_scaling", llama3, 0, ""},
        {"default, said", "rope_scaling", "{\"rope_type\": \"default\"}", 0, ""},
        {"linear by the old key", "rope_scaling", "{\"type\": \"linear\", \"factor\": 2}", 0, ""},
        {"both keys, the same", "rope_scaling",
         "{\"type\": \"linear\", \"rope_type\": \"linear\", \"factor\": 2}", 0, ""},
        {"both keys, different", "rope_scaling",
         "{\"type\": \"linear\", \"rope_type\": \"llama3\", \"factor\": 2}", -EINVAL, "linear"},
        {"parameters", "rope_parameters", "{\"rope_theta\": 500000.0, \"rope_type\": \"default\"}",
         0, ""},
        {"yarn", "rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4.0}", -ENOTSUP, "yarn"},
        {"dynamic", "rope_scaling", "{\"type\": \"dynamic\", \"factor\": 2.0}", -ENOTSUP,
         "dynamic"},
        {"longrope", "rope_parameters", "{\"rope_type\": \"longrope\"}", -ENOTSUP, "longrope"},
        {"linear without its factor", "rope_scaling", "{\"type\": \"linear\"}", -EINVAL, "factor"},
        {"factor zero", "rope_scaling", "{\"type\": \"linear\", \"factor\": 0}", -EINVAL, "factor"},
        {"factor below one", "rope_scaling", "{\"type\": \"linear\", \"factor\": 0.5}", -EINVAL,
         "factor"},
        {"factor huge", "rope_scaling", "{\"type\": \"linear\", \"factor\": 1e9}", -EINVAL,
         "factor"},
        {"a factor that default does not read", "rope_scaling", "{\"factor\": 2.0}", -ENOTSUP,
         "factor"},
        {"attention_factor is yarn's", "rope_scaling",
         "{\"type\": \"linear\", \"factor\": 2, \"attention_factor\": 1.1}", -ENOTSUP,
         "attention_factor"},
        {"a part of the head", "rope_parameters", "{\"partial_rotary_factor\": 0.5}", -ENOTSUP,
         "partial_rotary_factor"},
        {"the whole head", "rope_parameters", "{\"partial_rotary_factor\": 1.0}", 0, ""},
        {"theta inside and wrong", "rope_parameters", "{\"rope_theta\": -1.0}", -EINVAL,
         "rope_parameters.rope_theta"},
        {"parameters by kind of layer", "rope_parameters",
         "{\"full_attention\": {\"rope_theta\": 1e6}}", -ENOTSUP, "full_attention"},
        {"llama3 without one of its four", "rope_scaling",
         "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0,"
         " \"high_freq_factor\": 4.0}",
         -EINVAL, "original_max_position_embeddings"},
        {"llama3: a division by zero", "rope_scaling",
         "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 4.0,"
         " \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}",
         -EINVAL, "high_freq_factor"},
        {"llama3: no old context", "rope_scaling",
         "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0,"
         " \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 0}",
         -EINVAL, "original_max_position_embeddings"},
        {"llama3: negative", "rope_scaling",
         "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": -1.0,"
         " \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}",
         -EINVAL, "low_freq_factor"},
    };
    static const char two[] = "{\"rope_theta\": 10000.0, \"rope_parameters\": "
                              "{\"rope_theta\": 20000.0}, ";
    static const char both[] = "{\"rope_scaling\": {}, \"rope_parameters\": {}, ";
    struct model m;
    char text[2048];

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int r = parse_with(cases[i].key, cases[i].value, &m);

        if (r != cases[i].want || !strstr(e.text, cases[i].text))
            fail_msg("%s: got %d, \"%s\"", cases[i].why, r, e.text);
    }
    assert_int_equal(parse_with("rope_scaling", llama3, &m), 0);
    assert_int_equal(m.rope, MODEL_ROPE_LLAMA3);
    assert_true(m.rope_factor == 8 && m.rope_low_freq == 1 && m.rope_high_freq == 4);
    assert_int_equal(m.rope_context_old, 8192);
    assert_int_equal(parse_with("rope_parameters", "{\"rope_theta\": 500000.0}", &m), 0);
    assert_true(m.rope_theta == 500000);

    snprintf(text, sizeof(text), "%s%s", two, base + 1);
    assert_int_equal(model_parse(text, strlen(text), NULL, 0, &m, &e), -EINVAL);
    assert_non_null(strstr(e.text, "20000"));
    snprintf(text, sizeof(text), "%s%s", both, base + 1);
    assert_int_equal(model_parse(text, strlen(text), NULL, 0, &m, &e), -EINVAL);
    assert_non_null(strstr(e.text, "both"));
}

static void test_generation(void **state) {
    static const struct {
        const char *why, *text;
        int want;
        uint32_t n_eos, eos_last;
    } cases[] = {
        {"silent: the ends of config.json", "{}", 0, 1, 1},
        {"null is silence", "{\"eos_token_id\": null}", 0, 1, 1},
        {"its own end", "{\"eos_token_id\": 7}", 0, 1, 7},
        {"its own ends", "{\"eos_token_id\": [7, 8, 9]}", 0, 3, 9},
        {"no end at all, and says so", "{\"eos_token_id\": []}", 0, 0, 0},
        {"suggestions", "{\"temperature\": 0.6, \"top_p\": 0.9, \"top_k\": 50}", 0, 1, 1},
        {"beyond the vocabulary", "{\"eos_token_id\": 2048}", -EINVAL, 0, 0},
        {"a temperature in words", "{\"temperature\": \"hot\"}", -EINVAL, 0, 0},
        {"a temperature below zero", "{\"temperature\": -0.5}", -EINVAL, 0, 0},
        {"a probability above one", "{\"top_p\": 1.5}", -EINVAL, 0, 0},
        {"a count with a fraction", "{\"top_k\": 1.5}", -EINVAL, 0, 0},
        {"not an object", "[]", -EINVAL, 0, 0},
        {"nothing", "", -EINVAL, 0, 0},
    };
    struct model m;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int r = model_parse(base, strlen(base), cases[i].text, strlen(cases[i].text), &m, &e);

        if (r != cases[i].want) fail_msg("%s: got %d, \"%s\"", cases[i].why, r, e.text);
        if (r < 0) {
            assert_non_null(strstr(e.text, "generation_config.json"));
            continue;
        }
        assert_int_equal(m.n_eos, cases[i].n_eos);
        if (m.n_eos) assert_int_equal(m.eos[m.n_eos - 1], cases[i].eos_last);
    }
    assert_int_equal(model_parse(base, strlen(base), cases[5].text, strlen(cases[5].text), &m, &e),
                     0);
    assert_true(m.suggested_temperature == 0.6f && m.suggested_top_p == 0.9f);
    assert_int_equal(m.suggested_top_k, 50);
}

/* The reader of JSON is strict, and a failure leaves the result alone. */
static void test_texts(void **state) {
    static const struct {
        const char *why, *text;
    } cases[] = {
        {"empty", ""},
        {"cut", "{\"hidden_size\": 2"},
        {"a list", "[1]"},
        {"a key twice: whose value counts?", "{\"hidden_size\": 256, \"hidden_size\": 512}"},
        {"bytes that are not UTF-8", "{\"a\": \"\xff\"}"},
        {"something after it", "{} {}"},
        {"a leading zero", "{\"a\": 01}"},
        {"a number beyond binary64", "{\"a\": 1e999}"},
        {"an integer beyond int64", "{\"a\": 99999999999999999999}"},
        {"NaN is not JSON", "{\"rope_theta\": NaN}"},
        {"nor is Infinity", "{\"rope_theta\": Infinity}"},
        {"a zero in a text", "{\"a\": \"\\u0000\"}"},
        {"an empty object lacks everything", "{}"},
    };
    /* The JSON reader alone would take this for 4. */
    static const char zero[] = "{\"num_hidden_layers\": 4\0}";
    struct model m, before;

    (void)state;
    memset(&m, 0x5a, sizeof(m));
    before = m;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int r = model_parse(cases[i].text, strlen(cases[i].text), NULL, 0, &m, &e);

        if (r != -EINVAL) fail_msg("%s: got %d", cases[i].why, r);
        assert_non_null(strstr(e.text, "config.json"));
        assert_memory_equal(&m, &before, sizeof(m));
    }
    assert_int_equal(model_parse(zero, sizeof(zero) - 1, NULL, 0, &m, &e), -EINVAL);
    assert_non_null(strstr(e.text, "zero byte"));
    /* Without an err too. */
    assert_int_equal(model_parse("{}", 2, NULL, 0, &m, NULL), -EINVAL);
}

/* Whatever the arithmetic reads changes the text; nothing else does. */
static void test_write(void **state) {
    static const char want[] =
        "architecture=llama;layers=4;hidden=256;intermediate=768;heads=4;kv_heads=2;head_dim=64;"
        "vocab=2048;tied=0;rms_eps=0x1.4f8b58p-17;rope=default;rope_theta=0x1.388p+13;";
    static const struct {
        const char *key, *value;
        bool changes;
    } cases[] = {
        {"num_hidden_layers", "5", true},
        {"hidden_size", "512", true},
        {"intermediate_size", "784", true},
        {"num_attention_heads", "8", true},
        {"num_key_value_heads", "4", true},
        {"head_dim", "32", true},
        {"vocab_size", "2049", true},
        {"tie_word_embeddings", "true", true},
        {"rms_norm_eps", "1e-6", true},
        {"rope_theta", "10001", true},
        {"rope_scaling", "{\"type\": \"linear\", \"factor\": 2}", true},
        {"head_dim", "64", false},
        {"rope_theta", "10000", false},
        {"max_position_embeddings", "4096", false},
        {"eos_token_id", "5", false},
        {"bos_token_id", "5", false},
    };
    char text[1024], other[1024], cut[16];
    struct model m;

    (void)state;
    assert_int_equal(model_parse(base, strlen(base), NULL, 0, &m, &e), 0);
    assert_int_equal(model_write(&m, NULL, 0), strlen(want));
    assert_int_equal(model_write(&m, cut, sizeof(cut)), strlen(want));
    assert_string_equal(cut, "architecture=ll");
    model_write(&m, text, sizeof(text));
    assert_string_equal(text, want);
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(parse_with(cases[i].key, cases[i].value, &m), 0);
        model_write(&m, other, sizeof(other));
        if ((strcmp(text, other) != 0) != cases[i].changes)
            fail_msg("%s %s: %s", cases[i].key, cases[i].value, other);
    }
    assert_int_equal(
        parse_with("rope_parameters",
                   "{\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", \"factor\": 32.0,"
                   " \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0,"
                   " \"original_max_position_embeddings\": 8192}",
                   &m),
        0);
    model_write(&m, other, sizeof(other));
    assert_non_null(strstr(other, ";rope=llama3;rope_theta=0x1.e848p+18;rope_factor=0x1p+5;"
                                  "rope_low_freq=0x1p+0;rope_high_freq=0x1p+2;"
                                  "rope_context_old=8192;"));
}

static void write_file(const char *folder, const char *name, const char *text) {
    char path[256];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_folders(void **state) {
    char root[] = "/tmp/model_test.XXXXXX", folder[128], path[256], longest[256];
    struct model m;

    (void)state;
    assert_int_equal(model_read("tests/data/verse-4m/", &m, &e), 0);
    assert_string_equal(m.name, "verse-4m");
    assert_true(m.tied && m.n_layers == 4 && m.bos == 0 && m.eos[0] == 1);

    assert_non_null(mkdtemp(root));
    snprintf(folder, sizeof(folder), "%s/m", root);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(model_read(folder, &m, &e), -ENOENT);
    write_file(folder, "config.json", base);
    assert_int_equal(model_read(folder, &m, &e), 0); /* the other file may be absent */
    assert_string_equal(m.name, "m");
    write_file(folder, "generation_config.json", "{\"eos_token_id\": 9}");
    assert_int_equal(model_read(folder, &m, &e), 0);
    assert_int_equal(m.eos[0], 9);
    write_file(folder, "generation_config.json", "{");
    assert_int_equal(model_read(folder, &m, &e), -EINVAL);

    snprintf(path, sizeof(path), "%s/generation_config.json", folder);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not wait for a writer */
    assert_int_equal(model_read(folder, &m, &e), -EINVAL);
    unlink(path);

    snprintf(path, sizeof(path), "%s/config.json", folder);
    assert_int_equal(truncate(path, (1 << 20) + 1), 0);
    assert_int_equal(model_read(folder, &m, &e), -EINVAL);
    assert_non_null(strstr(e.text, "limit"));
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(model_read(folder, &m, &e), -EINVAL);
    rmdir(path);

    assert_int_equal(model_read("", &m, &e), -EINVAL);
    assert_int_equal(model_read("/tmp/a\nb", &m, &e), -EINVAL);
    memset(longest, 'a', sizeof(longest));
    longest[MODEL_NAME_BYTES] = '\0';
    assert_int_equal(model_read(longest, &m, &e), -EINVAL);
    longest[MODEL_NAME_BYTES - 1] = '\0';
    assert_int_equal(model_read(longest, &m, &e), -ENOENT);
    rmdir(folder);
    rmdir(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),  cmocka_unit_test(test_refused),
        cmocka_unit_test(test_taken),   cmocka_unit_test(test_types),
        cmocka_unit_test(test_rope),    cmocka_unit_test(test_generation),
        cmocka_unit_test(test_texts),   cmocka_unit_test(test_write),
        cmocka_unit_test(test_folders),
    };

    alarm(60); /* a hang is a failure */
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
