#include "runtime/token.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/document.h"
#include "runtime/err.h"
#include "runtime/file.h"
#include "runtime/token_impl.h"
#include "runtime/unicode.h"

void token_close(struct token *t) {
    if (!t) return;
    free(t->pool);
    free(t->texts);
    free(t->words);
    free(t->special);
    free(t->word_slots);
    free(t->merges);
    free(t->added);
    free(t->raw.rows);
    free(t->normalised.rows);
    free(t);
}

int token_open_text(const char *name, const char *json, size_t n_bytes, struct token **out_token,
                    struct err *e) {
    struct token *t = NULL;
    json_t *root = NULL;
    int r;

    if (n_bytes > TOKEN_FILE_BYTES_MAX)
        return err_set(e, -EINVAL, "%s: %zu bytes, the limit is %d", name, n_bytes,
                       TOKEN_FILE_BYTES_MAX);
    r = document_parse(name, json, n_bytes, &root, e);
    if (r < 0) return r;
    t = calloc(1, sizeof(*t));
    if (!t) {
        r = err_set(e, -ENOMEM, "%s: no memory", name);
        goto out;
    }
    r = token_json_read(t, name, root, e);
    if (r < 0) goto out;
    *out_token = t;
    t = NULL;
out:
    json_decref(root);
    token_close(t);
    return r;
}

int token_open(const char *path, struct token **out_token, struct err *e) {
    char *json = NULL;
    size_t n_bytes = 0;
    int r = file_read(path, TOKEN_FILE_BYTES_MAX, &json, &n_bytes, e);

    if (r == 0) r = token_open_text(path, json, n_bytes, out_token, e);
    free(json);
    return r;
}

uint32_t token_count(const struct token *t) {
    return t->n_ids;
}

uint32_t token_bytes_max(const struct token *t) {
    return t->n_bytes_max;
}

int64_t token_find(const struct token *t, const char *text) {
    const uint8_t *bytes = (const uint8_t *)text;
    const struct token_added *a = token_added_find(t, bytes, strlen(text));
    uint32_t id;

    if (a) return a->id;
    id = token_bpe_find(t, bytes, strlen(text), NULL, 0);
    return id == TOKEN_NONE ? (int64_t)TOKEN_ID_NONE : id;
}

void token_digest(const struct token *t, uint8_t out_digest[TOKEN_DIGEST_BYTES]) {
    memcpy(out_digest, t->digest, TOKEN_DIGEST_BYTES);
}

const uint8_t *token_bytes(const struct token *t, uint32_t id, uint32_t *out_n_bytes,
                           bool *out_special) {
    if (id >= t->n_ids || t->texts[id].n_bytes == 0) return NULL;
    *out_n_bytes = t->texts[id].n_bytes;
    *out_special = t->special[id];
    return t->pool + t->texts[id].off;
}

static int encode_words(struct token_out *out, const uint8_t *text, size_t n_bytes) {
    for (size_t off = 0, end; off < n_bytes; off = end) {
        int r;

        end = token_split_next(out->t->split, text, n_bytes, off);
        r = token_bpe_word(out, text + off, end - off);
        if (r < 0) return r;
    }
    return 0;
}

static int encode_plain(struct token_out *out, const uint8_t *text, size_t n_bytes) {
    uint8_t *nfc = NULL;
    int r = 0;

    if (out->t->nfc) r = unicode_nfc(text, n_bytes, &nfc, &n_bytes);
    if (r < 0) return err_set(out->e, r, "no memory to normalise %zu bytes", n_bytes);
    r = token_added_split(out, &out->t->normalised, nfc ? nfc : text, n_bytes, encode_words);
    free(nfc);
    return r;
}

int64_t token_encode(const struct token *t, const char *text, size_t n_bytes, unsigned flags,
                     uint32_t *out_ids, size_t n_ids_max, struct err *e) {
    struct token_out out = {.t = t, .e = e, .flags = flags, .ids = out_ids, .n_ids_max = n_ids_max};
    const uint8_t *bytes = (const uint8_t *)text;
    bool framed = flags & TOKEN_ENCODE_TEMPLATE;
    size_t n_good;
    int r = 0;

    if (n_bytes > TOKEN_TEXT_BYTES_MAX)
        return err_set(e, -EMSGSIZE, "text of %zu bytes, the limit is %d", n_bytes,
                       TOKEN_TEXT_BYTES_MAX);
    n_good = unicode_check(bytes, n_bytes);
    if (n_good < n_bytes) return err_set(e, -EINVAL, "the text is not UTF-8 at byte %zu", n_good);

    for (uint32_t i = 0; framed && i < t->n_before && r == 0; i++)
        r = token_bpe_emit(&out, t->before[i]);
    if (r == 0) r = token_added_split(&out, &t->raw, bytes, n_bytes, encode_plain);
    for (uint32_t i = 0; framed && i < t->n_after && r == 0; i++)
        r = token_bpe_emit(&out, t->after[i]);
    free(out.symbols);
    free(out.heap);
    return r < 0 ? r : (int64_t)out.n_ids;
}

static const uint8_t replacement[3] = {0xef, 0xbf, 0xbd};

static size_t put(uint8_t *out, size_t at, const uint8_t *bytes, uint32_t n) {
    memcpy(out + at, bytes, n);
    return at + n;
}

size_t token_utf8_push(struct token_utf8 *u, const uint8_t *bytes, size_t n_bytes, bool last,
                       uint8_t *out) {
    size_t n_out = 0;

    for (size_t i = 0; i < n_bytes; i++) {
        if (u->n_held > 0 && !unicode_follows(u->held, u->n_held, bytes[i])) {
            n_out = put(out, n_out, replacement, sizeof(replacement));
            u->n_held = 0;
        }
        if (u->n_held == 0 && unicode_length(bytes[i]) == 0) {
            n_out = put(out, n_out, replacement, sizeof(replacement));
            continue;
        }
        u->held[u->n_held++] = bytes[i];
        if (u->n_held == unicode_length(u->held[0])) {
            n_out = put(out, n_out, u->held, u->n_held);
            u->n_held = 0;
        }
    }
    if (last && u->n_held > 0) {
        n_out = put(out, n_out, replacement, sizeof(replacement));
        u->n_held = 0;
    }
    return n_out;
}
