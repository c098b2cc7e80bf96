/* Reads a tokenizer.json into struct token: its components, and the digest.  What would change an
 * id and is not implemented here is refused by name: a tokenizer that is nearly right is wrong. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/err.h"
#include "runtime/sha256.h"
#include "runtime/token_impl.h"
#include "runtime/unicode.h"

static const char contractions_then[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}";
static const char and_the_rest[] = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

int token_json_malformed(const struct token_reader *rd, const char *what) {
    return err_set(rd->e, -EINVAL, "%s: %s", rd->name, what);
}

int token_json_no_memory(const struct token_reader *rd) {
    return err_set(rd->e, -ENOMEM, "%s: no memory", rd->name);
}

static int unsupported(const struct token_reader *rd, const char *what, const char *value) {
    return err_set(rd->e, -ENOTSUP, "%s: %s \"%.100s\" is not supported", rd->name, what, value);
}

/* The "type" of a component; "" if it has none. */
static const char *type_of(const json_t *o) {
    const char *type = json_string_value(json_object_get(o, "type"));

    return type ? type : "";
}

int token_json_check_keys(const struct token_reader *rd, json_t *o, const char *what,
                          const char *const known[]) {
    const char *key;
    json_t *value;

    json_object_foreach(o, key, value) {
        size_t i = 0;

        while (known[i] && strcmp(known[i], key) != 0) i++;
        if (!known[i])
            return err_set(rd->e, -ENOTSUP, "%s: option \"%.60s\" of %s is not supported", rd->name,
                           key, what);
    }
    return 0;
}

int token_json_check_bool(const struct token_reader *rd, const json_t *o, const char *what,
                          const char *key, bool want, bool absent) {
    const json_t *value = json_object_get(o, key);
    bool is = value ? json_is_true(value) : absent;

    if (value && !json_is_boolean(value))
        return err_set(rd->e, -EINVAL, "%s: %s of %s is not a boolean", rd->name, key, what);
    if (is != want)
        return err_set(rd->e, -ENOTSUP, "%s: %s with %s=%s is not supported", rd->name, what, key,
                       is ? "true" : "false");
    return 0;
}

/* An option of the model that changes nothing as it stands. */
static bool is_default(const json_t *value) {
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

static int read_model(struct token_reader *rd, json_t *model) {
    static const char *const unused[] = {
        "dropout",  "unk_token",          "continuing_subword_prefix",
        "fuse_unk", "end_of_word_suffix", "byte_fallback"};
    static const char *const known[] = {
        "type",     "dropout",       "unk_token",     "continuing_subword_prefix", "merges",
        "fuse_unk", "byte_fallback", "ignore_merges", "end_of_word_suffix",        "vocab",
        NULL};
    const json_t *ignore;
    int r;

    if (!json_is_object(model)) return token_json_malformed(rd, "there is no model");
    if (json_object_get(model, "type") && strcmp(type_of(model), "BPE") != 0)
        return unsupported(rd, "model", type_of(model));
    r = token_json_check_keys(rd, model, "the model", known);
    if (r < 0) return r;
    for (size_t i = 0; i < sizeof(unused) / sizeof(unused[0]); i++)
        if (!is_default(json_object_get(model, unused[i])))
            return unsupported(rd, "option of the model", unused[i]);
    ignore = json_object_get(model, "ignore_merges");
    if (ignore && !json_is_boolean(ignore) && !json_is_null(ignore))
        return token_json_malformed(rd, "ignore_merges is not a boolean");
    rd->t->ignore_merges = json_is_true(ignore);
    rd->vocab = json_object_get(model, "vocab");
    rd->merges = json_object_get(model, "merges");
    if (!json_is_object(rd->vocab)) return token_json_malformed(rd, "the model has no vocab");
    if (!json_is_array(rd->merges)) return token_json_malformed(rd, "the model has no merges");
    return 0;
}

static int read_normalizer(struct token_reader *rd, const json_t *o) {
    if (!o || json_is_null(o)) return 0;
    if (strcmp(type_of(o), "NFC") != 0) return unsupported(rd, "normalizer", type_of(o));
    rd->t->nfc = true;
    return 0;
}

static int check_byte_level(struct token_reader *rd, json_t *o, bool use_regex) {
    static const char *const known[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                        NULL};
    int r;

    if (strcmp(type_of(o), "ByteLevel") != 0) return unsupported(rd, "pre-tokenizer", type_of(o));
    r = token_json_check_keys(rd, o, "ByteLevel", known);
    if (r == 0) r = token_json_check_bool(rd, o, "ByteLevel", "add_prefix_space", false, true);
    return r < 0 ? r : token_json_check_bool(rd, o, "ByteLevel", "use_regex", use_regex, true);
}

static int read_split(struct token_reader *rd, json_t *o) {
    static const char *const known[] = {"type", "pattern", "behavior", "invert", NULL};
    const json_t *pattern = json_object_get(o, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *behavior = json_string_value(json_object_get(o, "behavior"));
    size_t n_start = strlen(contractions_then);
    int r = token_json_check_keys(rd, o, "Split", known);

    if (r == 0) r = token_json_check_bool(rd, o, "Split", "invert", false, true);
    if (r < 0) return r;
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return unsupported(rd, "behavior of Split", behavior ? behavior : "");
    if (!regex || json_object_size(pattern) != 1)
        return token_json_malformed(rd, "the pattern of Split is not a regular expression");
    if (strncmp(regex, contractions_then, n_start) != 0)
        return unsupported(rd, "pattern of Split", regex);
    if (strcmp(regex + n_start, and_the_rest) == 0)
        rd->t->split = TOKEN_SPLIT_QWEN2;
    else if (strncmp(regex + n_start, "{1,3}", 5) == 0 &&
             strcmp(regex + n_start + 5, and_the_rest) == 0)
        rd->t->split = TOKEN_SPLIT_LLAMA3;
    else
        return unsupported(rd, "pattern of Split", regex);
    return 0;
}

static int read_pre_tokenizer(struct token_reader *rd, json_t *o) {
    static const char *const known[] = {"type", "individual_digits", NULL};
    json_t *list = json_object_get(o, "pretokenizers"), *first;
    int r;

    if (strcmp(type_of(o), "Sequence") != 0) {
        rd->t->split = TOKEN_SPLIT_GPT2;
        return check_byte_level(rd, o, true);
    }
    if (json_array_size(list) != 2) return unsupported(rd, "pre-tokenizer", "Sequence, not of two");
    first = json_array_get(list, 0);
    if (strcmp(type_of(first), "Split") == 0) {
        r = read_split(rd, first);
        return r < 0 ? r : check_byte_level(rd, json_array_get(list, 1), false);
    }
    if (strcmp(type_of(first), "Digits") != 0)
        return unsupported(rd, "pre-tokenizer", type_of(first));
    rd->t->split = TOKEN_SPLIT_DIGITS_GPT2;
    r = token_json_check_keys(rd, first, "Digits", known);
    if (r == 0) r = token_json_check_bool(rd, first, "Digits", "individual_digits", true, false);
    return r < 0 ? r : check_byte_level(rd, json_array_get(list, 1), true);
}

/* Added to `list` if some token has this id. */
static int add_frame_id(struct token_reader *rd, const json_t *value, uint32_t *list, uint32_t *n) {
    json_int_t id = json_integer_value(value);

    if (!json_is_integer(value) || id < 0 || id >= rd->t->n_ids || rd->t->texts[id].n_bytes == 0)
        return token_json_malformed(rd, "TemplateProcessing adds an id that no token has");
    if (*n == TOKEN_FRAME_IDS_MAX)
        return token_json_malformed(rd, "TemplateProcessing adds too many ids");
    list[(*n)++] = (uint32_t)id;
    return 0;
}

static int read_frame(struct token_reader *rd, json_t *o) {
    static const char *const known[] = {"type", "single", "pair", "special_tokens", NULL};
    struct token *t = rd->t;
    bool is_after = false;
    json_t *piece, *id;
    size_t i, k;
    int r = token_json_check_keys(rd, o, "TemplateProcessing", known);

    if (r < 0) return r;
    json_array_foreach(json_object_get(o, "single"), i, piece) {
        json_t *special = json_object_get(piece, "SpecialToken");
        json_t *sequence = json_object_get(piece, "Sequence");
        const char *name = json_string_value(json_object_get(special ? special : sequence, "id"));
        json_t *ids;

        if (!name || json_object_size(piece) != 1)
            return token_json_malformed(
                rd, "a piece of TemplateProcessing is neither token nor sequence");
        if (sequence) {
            if (is_after || strcmp(name, "A") != 0)
                return token_json_malformed(
                    rd, "TemplateProcessing of one text has more than sequence A");
            is_after = true;
            continue;
        }
        ids = json_object_get(json_object_get(json_object_get(o, "special_tokens"), name), "ids");
        if (!json_is_array(ids))
            return err_set(rd->e, -EINVAL, "%s: TemplateProcessing does not define \"%.60s\"",
                           rd->name, name);
        json_array_foreach(ids, k, id) {
            r = is_after ? add_frame_id(rd, id, t->after, &t->n_after)
                         : add_frame_id(rd, id, t->before, &t->n_before);
            if (r < 0) return r;
        }
    }
    return is_after ? 0 : token_json_malformed(rd, "TemplateProcessing leaves out the text");
}

/* ByteLevel moves offsets alone, which we do not have. */
static int read_post_processor(struct token_reader *rd, json_t *o) {
    bool is_sequence = strcmp(type_of(o), "Sequence") == 0;
    json_t *list = json_object_get(o, "processors");
    size_t n = is_sequence ? json_array_size(list) : 1;
    bool framed = false;

    if (!o || json_is_null(o)) return 0;
    for (size_t i = 0; i < n; i++) {
        json_t *one = is_sequence ? json_array_get(list, i) : o;
        int r;

        if (strcmp(type_of(one), "ByteLevel") == 0) continue;
        if (strcmp(type_of(one), "TemplateProcessing") != 0)
            return unsupported(rd, "post-processor", type_of(one));
        if (framed) return unsupported(rd, "post-processor", "a second TemplateProcessing");
        framed = true;
        r = read_frame(rd, one);
        if (r < 0) return r;
    }
    return 0;
}

static int read_rest(struct token_reader *rd, json_t *root) {
    static const char *const unused[] = {"truncation", "padding"};
    const json_t *decoder = json_object_get(root, "decoder");
    const json_t *version = json_object_get(root, "version");

    if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0))
        return token_json_malformed(rd, "the version is not 1.0");
    for (size_t i = 0; i < sizeof(unused) / sizeof(unused[0]); i++) {
        const json_t *value = json_object_get(root, unused[i]);

        if (value && !json_is_null(value)) return unsupported(rd, "component", unused[i]);
    }
    if (strcmp(type_of(decoder), "ByteLevel") != 0)
        return unsupported(rd, "decoder", type_of(decoder));
    return read_post_processor(rd, json_object_get(root, "post_processor"));
}

static void digest_u32(struct sha256 *s, uint32_t value) {
    uint8_t b[4] = {(uint8_t)value, (uint8_t)(value >> 8), (uint8_t)(value >> 16),
                    (uint8_t)(value >> 24)};

    sha256_add(s, b, sizeof(b));
}

static void digest_text(struct sha256 *s, const struct token *t, struct token_text text) {
    digest_u32(s, text.n_bytes);
    if (text.n_bytes > 0) sha256_add(s, t->pool + text.off, text.n_bytes);
}

static void digest_ids(struct sha256 *s, const uint32_t *ids, uint32_t n_ids) {
    digest_u32(s, n_ids);
    for (uint32_t i = 0; i < n_ids; i++) digest_u32(s, ids[i]);
}

/* Each part behind its length, in the order of ids or ranks: two tokenizers with one digest give
 * the same ids.  The order of added tokens is that of their texts. */
static int make_digest(const struct token_reader *rd) {
    static const char tag[] = "llm42d tokenizer 1";
    struct token *t = rd->t;
    struct sha256 *s = sha256_open();

    if (!s) return token_json_no_memory(rd);
    sha256_start(s);
    sha256_add(s, tag, sizeof(tag));
    sha256_add(s, unicode_version(), strlen(unicode_version()) + 1);
    digest_u32(s, (uint32_t)t->split);
    digest_u32(s, (uint32_t)(t->nfc + 2 * t->ignore_merges));
    digest_u32(s, t->n_ids);
    for (uint32_t id = 0; id < t->n_ids; id++) {
        digest_text(s, t, t->texts[id]);
        digest_text(s, t, t->words[id]);
    }
    digest_u32(s, (uint32_t)rd->n_ranked);
    for (size_t i = 0; i < rd->n_ranked; i++) {
        digest_u32(s, (uint32_t)(rd->ranked[i].pair >> 32));
        digest_u32(s, (uint32_t)rd->ranked[i].pair);
    }
    digest_u32(s, t->n_added);
    for (uint32_t i = 0; i < t->n_added; i++) {
        const struct token_added *a = &t->added[i];

        digest_u32(s, a->id);
        digest_u32(s, (uint32_t)(a->special + 2 * a->lstrip + 4 * a->rstrip + 8 * a->normalized));
    }
    digest_ids(s, t->before, t->n_before);
    digest_ids(s, t->after, t->n_after);
    sha256_end(s, t->digest);
    sha256_close(s);
    return 0;
}

int token_json_read(struct token *t, const char *name, json_t *root, struct err *e) {
    struct token_reader rd = {.t = t, .name = name, .e = e};
    int r;

    rd.added = json_object_get(root, "added_tokens");
    if (rd.added && !json_is_array(rd.added) && !json_is_null(rd.added))
        return token_json_malformed(&rd, "added_tokens is not a list");
    r = read_model(&rd, json_object_get(root, "model"));
    if (r == 0) r = read_normalizer(&rd, json_object_get(root, "normalizer"));
    if (r == 0) r = read_pre_tokenizer(&rd, json_object_get(root, "pre_tokenizer"));
    if (r == 0) r = token_vocab_read(&rd);
    if (r == 0) r = read_rest(&rd, root);
    if (r == 0) r = make_digest(&rd);
    for (uint32_t id = 0; r == 0 && id < t->n_ids; id++)
        if (t->texts[id].n_bytes > t->n_bytes_max) t->n_bytes_max = t->texts[id].n_bytes;
    free(rd.ranked);
    return r;
}
