/* The vocabulary, the merges and the added tokens of a tokenizer.json. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/err.h"
#include "runtime/token_impl.h"
#include "runtime/unicode.h"

/* The byte-level alphabet: a printable byte of Latin-1 is itself, the others follow from U+0100. */
static void make_alphabet(struct token_reader *rd) {
    int16_t next = 0x100;

    for (size_t i = 0; i < sizeof(rd->bytes) / sizeof(rd->bytes[0]); i++) rd->bytes[i] = -1;
    for (int16_t b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);

        rd->bytes[printable ? b : next++] = b;
    }
}

/* The bytes that a text in the byte-level alphabet stands for; false if it is not in it or has
 * more than n_max. */
static bool spell(const struct token_reader *rd, const char *text, size_t n_text, uint8_t *out,
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

static int read_id(const struct token_reader *rd, const json_t *value, const char *text,
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
static int measure(struct token_reader *rd) {
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

        if (!json_is_string(content))
            return token_json_malformed(rd, "an added token has no content");
        r = read_id(rd, json_object_get(value, "id"), json_string_value(content), &id);
        if (r < 0) return r;
        if (json_string_length(content) == 0 || json_string_length(content) > TOKEN_ADDED_BYTES_MAX)
            return err_set(rd->e, -ENOTSUP, "%s: added token %u is not of 1 to %d bytes", rd->name,
                           id, TOKEN_ADDED_BYTES_MAX);
        n_pool += json_string_length(content) * 4; /* and its NFC, at most three times as long */
        if (id >= t->n_ids) t->n_ids = id + 1;
    }
    if (n_words == 0) return token_json_malformed(rd, "the vocabulary is empty");
    if (i > TOKEN_ADDED_MAX || json_array_size(rd->merges) > TOKEN_MERGES_MAX)
        return token_json_malformed(rd, "too many added tokens or merges");

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
        return token_json_no_memory(rd);
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

static int read_vocab(struct token_reader *rd) {
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

static int read_merge(struct token_reader *rd, const json_t *merge, uint32_t rank, uint8_t *spare) {
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

static int read_merges(struct token_reader *rd) {
    struct token *t = rd->t;
    uint8_t *spare = malloc(2 * (size_t)t->n_word_bytes_max);
    json_t *merge;
    size_t i;
    int r = 0;

    if (!spare) return token_json_no_memory(rd);
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

static int read_pattern(struct token_reader *rd, struct token_added *a) {
    struct token *t = rd->t;
    uint8_t *nfc = NULL;
    size_t n_nfc;

    a->pattern = a->text;
    if (!a->normalized || !t->nfc) return 0;
    if (unicode_nfc(t->pool + a->text.off, a->text.n_bytes, &nfc, &n_nfc) < 0)
        return token_json_no_memory(rd);
    if (nfc) a->pattern = pool_add(t, nfc, n_nfc);
    free(nfc);
    return 0;
}

static int read_added_one(struct token_reader *rd, json_t *o, uint32_t *next_id) {
    static const char *const known[] = {"id",     "content",    "single_word", "lstrip",
                                        "rstrip", "normalized", "special",     NULL};
    struct token *t = rd->t;
    struct token_added *a = &t->added[t->n_added];
    const char *content = json_string_value(json_object_get(o, "content"));
    const json_t *entry = json_object_get(rd->vocab, content);
    int r = token_json_check_keys(rd, o, "an added token", known);

    if (r == 0) r = token_json_check_bool(rd, o, "an added token", "single_word", false, false);
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

static int read_added(struct token_reader *rd) {
    uint32_t next_id = (uint32_t)json_object_size(rd->vocab);
    json_t *o;
    size_t i;

    json_array_foreach(rd->added, i, o) {
        int r = read_added_one(rd, o, &next_id);

        if (r < 0) return r;
    }
    return token_added_index(rd->t, rd->name, rd->e);
}

int token_vocab_read(struct token_reader *rd) {
    int r;

    make_alphabet(rd);
    r = measure(rd);
    if (r == 0) r = read_vocab(rd);
    if (r == 0) r = read_merges(rd);
    return r < 0 ? r : read_added(rd);
}
