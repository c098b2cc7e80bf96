/* Reads a tokenizer.json into struct token.  What would change an id and is not implemented here
 * is refused by name: a tokenizer that is nearly right is wrong. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/err.h"
#include "runtime/sha256.h"
#include "runtime/token_impl.h"
#include "runtime/unicode.h"

struct reader {
    struct token *t;
    const char *name; /* of the file */
    struct err *e;
    json_t *vocab, *merges, *added; /* borrowed */
    struct token_merge *ranked;     /* the merges in the order of the file, for the digest */
    size_t n_ranked;
    int16_t bytes[0x144]; /* the byte that a character of the byte-level alphabet stands for */
};

static const char contractions_then[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}";
static const char and_the_rest[] = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static int malformed(const struct reader *rd, const char *what) {
    return err_set(rd->e, -EINVAL, "%s: %s", rd->name, what);
}

static int no_memory(const struct reader *rd) {
    return err_set(rd->e, -ENOMEM, "%s: no memory", rd->name);
}

static int unsupported(const struct reader *rd, const char *what, const char *value) {
    return err_set(rd->e, -ENOTSUP, "%s: %s \"%.100s\" is not supported", rd->name, what, value);
}

/* The "type" of a component; "" if it has none. */
static const char *type_of(const json_t *o) {
    const char *type = json_string_value(json_object_get(o, "type"));

    return type ? type : "";
}

/* Refuses a component with an option that is not in the NULL-terminated list. */
static int check_keys(const struct reader *rd, json_t *o, const char *what,
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

/* `key` must be the boolean `want`; absent counts as `absent`. */
static int check_bool(const struct reader *rd, const json_t *o, const char *what, const char *key,
                      bool want, bool absent) {
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

static int read_model(struct reader *rd, json_t *model) {
    static const char *const unused[] = {
        "dropout",  "unk_token",          "continuing_subword_prefix",
        "fuse_unk", "end_of_word_suffix", "byte_fallback"};
    static const char *const known[] = {
        "type",     "dropout",       "unk_token",     "continuing_subword_prefix", "merges",
        "fuse_unk", "byte_fallback", "ignore_merges", "end_of_word_suffix",        "vocab",
        NULL};
    const json_t *ignore;
    int r;

    if (!json_is_object(model)) return malformed(rd, "there is no model");
    if (json_object_get(model, "type") && strcmp(type_of(model), "BPE") != 0)
        return unsupported(rd, "model", type_of(model));
    r = check_keys(rd, model, "the model", known);
    if (r < 0) return r;
    for (size_t i = 0; i < sizeof(unused) / sizeof(unused[0]); i++)
        if (!is_default(json_object_get(model, unused[i])))
            return unsupported(rd, "option of the model", unused[i]);
    ignore = json_object_get(model, "ignore_merges");
    if (ignore && !json_is_boolean(ignore) && !json_is_null(ignore))
        return malformed(rd, "ignore_merges is not a boolean");
    rd->t->ignore_merges = json_is_true(ignore);
    rd->vocab = json_object_get(model, "vocab");
    rd->merges = json_object_get(model, "merges");
    if (!json_is_object(rd->vocab)) return malformed(rd, "the model has no vocab");
    if (!json_is_array(rd->merges)) return malformed(rd, "the model has no merges");
    return 0;
}

/* The byte-level alphabet: a printable byte of Latin-1 is itself, the others follow from U+0100. */
static void make_alphabet(struct reader *rd) {
    int16_t next = 0x100;

    for (size_t i = 0; i < sizeof(rd->bytes) / sizeof(rd->bytes[0]); i++) rd->bytes[i] = -1;
    for (int16_t b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);

        rd->bytes[printable ? b : next++] = b;
    }
}

/* The bytes that a text in the byte-level alphabet stands for; false if it is not in it or has
 * more than n_max. */
static bool spell(const struct reader *rd, const char *text, size_t n_text, uint8_t *out,
                  size_t n_max, size_t *out_n) {
    size_t n_out = 0;

    for (size_t off = 0; off < n_text;) {
        uint32_t n, code = unicode_read((const uint8_t *)text + off, &n);

        if (code >= sizeof(rd->bytes) / sizeof(rd->bytes[0]) || rd->bytes[code] < 0 ||
            n_out == n_max)
            return false;
        out[n_out++] = (uint8_t)rd->bytes[code];
        off += n;
    }
    *out_n = n_out;
    return true;
}

static int read_id(const struct reader *rd, const json_t *value, const char *text,
                   uint32_t *out_id) {
    json_int_t id = json_integer_value(value);

    if (!json_is_integer(value) || id < 0)
        return err_set(rd->e, -EINVAL, "%s: the id of \"%.60s\" is not a number", rd->name, text);
    if (id >= TOKEN_IDS_MAX)
        return err_set(rd->e, -EINVAL, "%s: the id of \"%.60s\" is %lld, the limit is %d", rd->name,
                       text, (long long)id, TOKEN_IDS_MAX - 1);
    *out_id = (uint32_t)id;
    return 0;
}

/* Counts first, then takes all memory that depends on the counts. */
static int measure(struct reader *rd) {
    struct token *t = rd->t;
    size_t n_pool = 1, n_words = json_object_size(rd->vocab), i;
    const char *key;
    json_t *value;
    uint32_t id;
    int r;

    json_object_foreach(rd->vocab, key, value) {
        size_t n = strlen(key);

        r = read_id(rd, value, key, &id);
        if (r < 0) return r;
        if (n == 0 || n > TOKEN_WORD_BYTES_MAX)
            return err_set(rd->e, -EINVAL, "%s: vocabulary entry %u is empty or too long", rd->name,
                           id);
        n_pool += n;
        if (id >= t->n_ids) t->n_ids = id + 1;
    }
    json_array_foreach(rd->added, i, value) {
        json_t *content = json_object_get(value, "content");

        if (!json_is_string(content)) return malformed(rd, "an added token has no content");
        r = read_id(rd, json_object_get(value, "id"), json_string_value(content), &id);
        if (r < 0) return r;
        if (json_string_length(content) == 0 || json_string_length(content) > TOKEN_ADDED_BYTES_MAX)
            return err_set(rd->e, -ENOTSUP, "%s: added token %u is not of 1 to %d bytes", rd->name,
                           id, TOKEN_ADDED_BYTES_MAX);
        n_pool += json_string_length(content) * 4; /* and its NFC, at most three times as long */
        if (id >= t->n_ids) t->n_ids = id + 1;
    }
    if (n_words == 0) return malformed(rd, "the vocabulary is empty");
    if (i > TOKEN_ADDED_MAX || json_array_size(rd->merges) > TOKEN_MERGES_MAX)
        return malformed(rd, "too many added tokens or merges");

    for (t->n_word_slots = 4; t->n_word_slots * 2 < n_words * 3;) t->n_word_slots *= 2;
    t->merge_shift = 62;
    for (t->n_merge_slots = 4; t->n_merge_slots * 2 < json_array_size(rd->merges) * 3;) {
        t->n_merge_slots *= 2;
        t->merge_shift--;
    }
    t->pool = malloc(n_pool);
    t->texts = calloc(t->n_ids, sizeof(*t->texts));
    t->words = calloc(t->n_ids, sizeof(*t->words));
    t->special = calloc(t->n_ids, sizeof(*t->special));
    t->word_slots = malloc(t->n_word_slots * sizeof(*t->word_slots));
    t->merges = malloc(t->n_merge_slots * sizeof(*t->merges));
    t->added = calloc(i + 1, sizeof(*t->added));
    rd->ranked = malloc((json_array_size(rd->merges) + 1) * sizeof(*rd->ranked));
    if (!t->pool || !t->texts || !t->words || !t->special || !t->word_slots || !t->merges ||
        !t->added || !rd->ranked)
        return no_memory(rd);
    return 0;
}

static struct token_text pool_add(struct token *t, const void *bytes, size_t n_bytes) {
    struct token_text text = {(uint32_t)t->n_pool, (uint32_t)n_bytes};

    memcpy(t->pool + t->n_pool, bytes, n_bytes);
    t->n_pool += n_bytes;
    return text;
}

static void index_word(struct token *t, uint32_t id) {
    const struct token_text *word = &t->words[id];
    uint32_t mask = t->n_word_slots - 1;
    uint32_t slot = (uint32_t)token_bpe_hash(t->pool + word->off, word->n_bytes, NULL, 0) & mask;

    while (t->word_slots[slot] != TOKEN_NONE) slot = (slot + 1) & mask;
    t->word_slots[slot] = id;
    if (word->n_bytes > t->n_word_bytes_max) t->n_word_bytes_max = word->n_bytes;
}

static int read_vocab(struct reader *rd) {
    struct token *t = rd->t;
    const char *key;
    json_t *value;

    memset(t->word_slots, 0xff, t->n_word_slots * sizeof(*t->word_slots));
    json_object_foreach(rd->vocab, key, value) {
        uint32_t id = (uint32_t)json_integer_value(value);
        size_t n = strlen(key), n_word;

        if (t->texts[id].n_bytes > 0)
            return err_set(rd->e, -EINVAL, "%s: id %u stands twice in the vocabulary", rd->name,
                           id);
        if (spell(rd, key, n, t->pool + t->n_pool, n, &n_word)) {
            t->words[id] = (struct token_text){(uint32_t)t->n_pool, (uint32_t)n_word};
            t->n_pool += n_word;
            t->texts[id] = t->words[id];
            index_word(t, id);
        } else {
            t->texts[id] = pool_add(t, key, n); /* no text can be spelt so: for decoding alone */
        }
    }
    for (uint32_t b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;

        t->byte_ids[b] = token_bpe_find(t, &byte, 1, NULL, 0);
    }
    return 0;
}

/* Both spellings: "left right", and ["left", "right"]. */
static bool cut_merge(const json_t *merge, const char **left, size_t *n_left, const char **right,
                      size_t *n_right) {
    if (json_is_string(merge)) {
        const char *space = strchr(json_string_value(merge), ' ');

        if (!space || strchr(space + 1, ' ')) return false;
        *left = json_string_value(merge);
        *n_left = (size_t)(space - *left);
        *right = space + 1;
        *n_right = strlen(*right);
        return true;
    }
    if (json_array_size(merge) != 2 || !json_is_string(json_array_get(merge, 0)) ||
        !json_is_string(json_array_get(merge, 1)))
        return false;
    *left = json_string_value(json_array_get(merge, 0));
    *n_left = json_string_length(json_array_get(merge, 0));
    *right = json_string_value(json_array_get(merge, 1));
    *n_right = json_string_length(json_array_get(merge, 1));
    return true;
}

static int read_merge(struct reader *rd, const json_t *merge, uint32_t rank, uint8_t *spare) {
    struct token *t = rd->t;
    const char *left = NULL, *right = NULL;
    size_t n_left = 0, n_right = 0, n_a = 0, n_b = 0;
    uint8_t *a = spare, *b = spare + t->n_word_bytes_max;
    uint32_t a_id = TOKEN_NONE, b_id = TOKEN_NONE, id;
    struct token_merge *slot;

    if (json_typeof(merge) != json_typeof(json_array_get(rd->merges, 0)) ||
        !cut_merge(merge, &left, &n_left, &right, &n_right))
        return err_set(rd->e, -EINVAL, "%s: merge %u is not a pair", rd->name, rank);
    if (spell(rd, left, n_left, a, t->n_word_bytes_max, &n_a))
        a_id = token_bpe_find(t, a, n_a, NULL, 0);
    if (spell(rd, right, n_right, b, t->n_word_bytes_max, &n_b))
        b_id = token_bpe_find(t, b, n_b, NULL, 0);
    if (a_id == TOKEN_NONE || b_id == TOKEN_NONE)
        return err_set(rd->e, -EINVAL, "%s: merge %u: \"%.60s\" is not in the vocabulary", rd->name,
                       rank, a_id == TOKEN_NONE ? left : right);
    id = token_bpe_find(t, a, n_a, b, n_b);
    if (id == TOKEN_NONE)
        return err_set(rd->e, -EINVAL,
                       "%s: merge %u makes \"%.60s\" + \"%.60s\", not in the "
                       "vocabulary",
                       rd->name, rank, left, right);
    /* A pair that stands twice has the later rank, as in the reference. */
    slot = token_bpe_slot(t, (uint64_t)a_id << 32 | b_id);
    *slot = (struct token_merge){(uint64_t)a_id << 32 | b_id, rank, id};
    rd->ranked[rd->n_ranked++] = *slot;
    return 0;
}

static int read_merges(struct reader *rd) {
    struct token *t = rd->t;
    uint8_t *spare = malloc(2 * (size_t)t->n_word_bytes_max);
    json_t *merge;
    size_t i;
    int r = 0;

    if (!spare) return no_memory(rd);
    memset(t->merges, 0xff, t->n_merge_slots * sizeof(*t->merges));
    json_array_foreach(rd->merges, i, merge) {
        const char *line = json_string_value(merge);

        if (line && strncmp(line, "#version", 8) == 0) continue;
        r = read_merge(rd, merge, (uint32_t)i, spare);
        if (r < 0) break;
    }
    free(spare);
    return r;
}

static int read_pattern(struct reader *rd, struct token_added *a) {
    struct token *t = rd->t;
    uint8_t *nfc = NULL;
    size_t n_nfc;

    a->pattern = a->text;
    if (!a->normalized || !t->nfc) return 0;
    if (unicode_nfc(t->pool + a->text.off, a->text.n_bytes, &nfc, &n_nfc) < 0) return no_memory(rd);
    if (nfc) a->pattern = pool_add(t, nfc, n_nfc);
    free(nfc);
    return 0;
}

static int read_added_one(struct reader *rd, json_t *o, uint32_t *next_id) {
    static const char *const known[] = {"id",     "content",    "single_word", "lstrip",
                                        "rstrip", "normalized", "special",     NULL};
    struct token *t = rd->t;
    struct token_added *a = &t->added[t->n_added];
    const char *content = json_string_value(json_object_get(o, "content"));
    const json_t *entry = json_object_get(rd->vocab, content);
    int r = check_keys(rd, o, "an added token", known);

    if (r == 0) r = check_bool(rd, o, "an added token", "single_word", false, false);
    if (r < 0) return r;
    for (size_t i = 3; known[i]; i++)
        if (!json_is_boolean(json_object_get(o, known[i])))
            return err_set(rd->e, -EINVAL, "%s: added token \"%.60s\" does not say whether %s",
                           rd->name, content, known[i]);
    a->id = (uint32_t)json_integer_value(json_object_get(o, "id"));
    a->lstrip = json_is_true(json_object_get(o, "lstrip"));
    a->rstrip = json_is_true(json_object_get(o, "rstrip"));
    a->normalized = json_is_true(json_object_get(o, "normalized"));
    a->special = json_is_true(json_object_get(o, "special"));

    /* The reference does not read the id: it takes the vocabulary's, or the next free one.  Where
     * the two disagree, nobody knows which the model was trained with. */
    if (a->id != (entry ? (uint32_t)json_integer_value(entry) : (*next_id)++))
        return err_set(rd->e, -ENOTSUP, "%s: added token \"%.60s\" has id %u, out of order",
                       rd->name, content, a->id);
    if (!entry && t->texts[a->id].n_bytes > 0)
        return err_set(rd->e, -EINVAL, "%s: added token \"%.60s\" has id %u of another token",
                       rd->name, content, a->id);
    a->text = pool_add(t, content, strlen(content));
    t->texts[a->id] = a->text;
    t->special[a->id] = a->special;
    t->n_added++;
    return read_pattern(rd, a);
}

static int read_added(struct reader *rd) {
    uint32_t next_id = (uint32_t)json_object_size(rd->vocab);
    json_t *o;
    size_t i;

    json_array_foreach(rd->added, i, o) {
        int r = read_added_one(rd, o, &next_id);

        if (r < 0) return r;
    }
    return token_added_index(rd->t, rd->name, rd->e);
}

static int read_normalizer(struct reader *rd, const json_t *o) {
    if (!o || json_is_null(o)) return 0;
    if (strcmp(type_of(o), "NFC") != 0) return unsupported(rd, "normalizer", type_of(o));
    rd->t->nfc = true;
    return 0;
}

static int check_byte_level(struct reader *rd, json_t *o, bool use_regex) {
    static const char *const known[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                        NULL};
    int r;

    if (strcmp(type_of(o), "ByteLevel") != 0) return unsupported(rd, "pre-tokenizer", type_of(o));
    r = check_keys(rd, o, "ByteLevel", known);
    if (r == 0) r = check_bool(rd, o, "ByteLevel", "add_prefix_space", false, true);
    return r < 0 ? r : check_bool(rd, o, "ByteLevel", "use_regex", use_regex, true);
}

static int read_split(struct reader *rd, json_t *o) {
    static const char *const known[] = {"type", "pattern", "behavior", "invert", NULL};
    const json_t *pattern = json_object_get(o, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *behavior = json_string_value(json_object_get(o, "behavior"));
    size_t n_start = strlen(contractions_then);
    int r = check_keys(rd, o, "Split", known);

    if (r == 0) r = check_bool(rd, o, "Split", "invert", false, true);
    if (r < 0) return r;
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return unsupported(rd, "behavior of Split", behavior ? behavior : "");
    if (!regex || json_object_size(pattern) != 1)
        return malformed(rd, "the pattern of Split is not a regular expression");
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

static int read_pre_tokenizer(struct reader *rd, json_t *o) {
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
    r = check_keys(rd, first, "Digits", known);
    if (r == 0) r = check_bool(rd, first, "Digits", "individual_digits", true, false);
    return r < 0 ? r : check_byte_level(rd, json_array_get(list, 1), true);
}

/* Added to `list` if some token has this id. */
static int add_frame_id(struct reader *rd, const json_t *value, uint32_t *list, uint32_t *n) {
    json_int_t id = json_integer_value(value);

    if (!json_is_integer(value) || id < 0 || id >= rd->t->n_ids || rd->t->texts[id].n_bytes == 0)
        return malformed(rd, "TemplateProcessing adds an id that no token has");
    if (*n == TOKEN_FRAME_IDS_MAX) return malformed(rd, "TemplateProcessing adds too many ids");
    list[(*n)++] = (uint32_t)id;
    return 0;
}

static int read_frame(struct reader *rd, json_t *o) {
    static const char *const known[] = {"type", "single", "pair", "special_tokens", NULL};
    struct token *t = rd->t;
    bool is_after = false;
    json_t *piece, *id;
    size_t i, k;
    int r = check_keys(rd, o, "TemplateProcessing", known);

    if (r < 0) return r;
    json_array_foreach(json_object_get(o, "single"), i, piece) {
        json_t *special = json_object_get(piece, "SpecialToken");
        json_t *sequence = json_object_get(piece, "Sequence");
        const char *name = json_string_value(json_object_get(special ? special : sequence, "id"));
        json_t *ids;

        if (!name || json_object_size(piece) != 1)
            return malformed(rd, "a piece of TemplateProcessing is neither token nor sequence");
        if (sequence) {
            if (is_after || strcmp(name, "A") != 0)
                return malformed(rd, "TemplateProcessing of one text has more than sequence A");
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
    return is_after ? 0 : malformed(rd, "TemplateProcessing leaves out the text");
}

/* ByteLevel moves offsets alone, which we do not have. */
static int read_post_processor(struct reader *rd, json_t *o) {
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

static int read_rest(struct reader *rd, json_t *root) {
    static const char *const unused[] = {"truncation", "padding"};
    const json_t *decoder = json_object_get(root, "decoder");
    const json_t *version = json_object_get(root, "version");

    if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0))
        return malformed(rd, "the version is not 1.0");
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
static int make_digest(const struct reader *rd) {
    static const char tag[] = "llm42d tokenizer 1";
    struct token *t = rd->t;
    struct sha256 *s = sha256_open();

    if (!s) return no_memory(rd);
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
    struct reader rd = {.t = t, .name = name, .e = e};
    int r;

    rd.added = json_object_get(root, "added_tokens");
    if (rd.added && !json_is_array(rd.added) && !json_is_null(rd.added))
        return malformed(&rd, "added_tokens is not a list");
    make_alphabet(&rd);
    r = read_model(&rd, json_object_get(root, "model"));
    if (r == 0) r = read_normalizer(&rd, json_object_get(root, "normalizer"));
    if (r == 0) r = read_pre_tokenizer(&rd, json_object_get(root, "pre_tokenizer"));
    if (r == 0) r = measure(&rd);
    if (r == 0) r = read_vocab(&rd);
    if (r == 0) r = read_merges(&rd);
    if (r == 0) r = read_added(&rd);
    if (r == 0) r = read_rest(&rd, root);
    if (r == 0) r = make_digest(&rd);
    for (uint32_t id = 0; r == 0 && id < t->n_ids; id++)
        if (t->texts[id].n_bytes > t->n_bytes_max) t->n_bytes_max = t->texts[id].n_bytes;
    free(rd.ranked);
    return r;
}
