#include "tools/receipt.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_MAX = 1 << 28 };

/* ---- Lists ---- */

static int grow(void **memory, size_t *room, size_t n, size_t size) {
    size_t more = *room ? *room : 64;
    void *moved;

    if (n > LIST_MAX) return -EMSGSIZE;
    if (n <= *room) return 0;
    while (more < n) more *= 2;
    moved = realloc(*memory, more * size);
    if (!moved) return -ENOMEM;
    *memory = moved;
    *room = more;
    return 0;
}

static int add_u32(struct receipt_u32 *list, uint32_t value) {
    void *memory = list->values;
    int r = grow(&memory, &list->room, list->n + 1, sizeof(value));

    list->values = memory;
    if (r == 0) list->values[list->n++] = value;
    return r;
}

static int add_bytes(struct receipt_bytes *list, const uint8_t *bytes, size_t n_bytes) {
    void *memory = list->bytes;
    int r = grow(&memory, &list->room, list->n + n_bytes, 1);

    list->bytes = memory;
    if (r == 0 && n_bytes > 0) {
        memcpy(list->bytes + list->n, bytes, n_bytes);
        list->n += n_bytes;
    }
    return r;
}

/* ---- Collecting ---- */

void receipt_open(struct receipt *r, const struct wire_submit *s) {
    memset(r, 0, sizeof(*r));
    r->submit = *s;
    for (uint32_t i = 0; i < s->n_stop_strings; i++) {
        memcpy(r->stop_bytes[i], s->stop_strings[i].bytes, s->stop_strings[i].n_bytes);
        r->submit.stop_strings[i].bytes = r->stop_bytes[i];
    }
}

void receipt_close(struct receipt *r) {
    free(r->prompt.values);
    free(r->ids.values);
    free(r->text.bytes);
    free(r->records.values);
    free(r->prompt_records.values);
    memset(r, 0, sizeof(*r));
}

int receipt_prompt_add(struct receipt *r, const struct wire_prompt *ids) {
    for (uint32_t i = 0; i < ids->n_data / 4; i++) {
        int e = add_u32(&r->prompt, wire_u32_at(ids->data, i));

        if (e != 0) return e;
    }
    return 0;
}

int receipt_tokens_add(struct receipt *r, const struct wire_tokens *t) {
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        int e = add_u32(&r->ids, wire_u32_at(t->ids, i));

        if (e != 0) return e;
    }
    return add_bytes(&r->text, t->text, t->n_text);
}

int receipt_logprobs_add(struct receipt *r, const struct wire_logprobs *l, bool of_prompt) {
    struct receipt_u32 *list = of_prompt ? &r->prompt_records : &r->records;

    for (uint32_t token = 0; token < l->n_tokens; token++)
        for (uint32_t place = 0; place <= l->n_top; place++) {
            struct wire_logprob p = wire_logprob_at(l, token, place);
            int e = add_u32(list, p.id);

            if (e == 0) e = add_u32(list, p.bits);
            if (e != 0) return e;
        }
    return 0;
}

void receipt_accepted(struct receipt *r, const struct wire_accepted *a) {
    r->accepted = true;
    r->ack = *a;
    r->submit.flags = (a->flags & WIRE_SUBMIT_FLAGS_ALL) | WIRE_SUBMIT_SEED;
    r->submit.max_tokens = a->max_tokens;
    r->submit.seed = a->seed;
    r->submit.temperature = a->temperature;
    r->submit.top_p = a->top_p;
    r->submit.min_p = a->min_p;
    r->submit.top_k = a->top_k;
}

void receipt_error(struct receipt *r, const struct wire_error *e) {
    size_t n = e->n_text < RECEIPT_TEXT_BYTES ? e->n_text : RECEIPT_TEXT_BYTES;

    r->failed = true;
    r->error = *e;
    memcpy(r->error_text, e->text, n);
    r->error_text[n] = '\0';
    r->error.text = r->error_text;
    r->error.n_text = (uint32_t)n;
}

uint32_t receipt_n_top(const struct receipt *r) {
    return r->submit.logprobs > 0 ? r->submit.logprobs - 1u : 0;
}

uint32_t receipt_n_prompt_top(const struct receipt *r) {
    return r->submit.prompt_logprobs > 0 ? r->submit.prompt_logprobs - 1u : 0;
}

static struct wire_logprob at(const struct receipt_u32 *list, uint32_t n_top, size_t token,
                              uint32_t place) {
    size_t i = 2 * (token * (1 + (size_t)n_top) + place);

    if (i + 1 >= list->n) return (struct wire_logprob){.id = UINT32_MAX, .bits = 0x7fffffff};
    return (struct wire_logprob){.id = list->values[i], .bits = list->values[i + 1]};
}

struct wire_logprob receipt_at(const struct receipt *r, size_t token, uint32_t place) {
    return at(&r->records, receipt_n_top(r), token, place);
}

struct wire_logprob receipt_prompt_at(const struct receipt *r, size_t token, uint32_t place) {
    return at(&r->prompt_records, receipt_n_prompt_top(r), token - 1, place);
}

/* ---- Digest ---- */

static size_t put(uint8_t *p, uint64_t value, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++) p[i] = (uint8_t)(value >> 8 * i);
    return n_bytes;
}

static bool add_records(EVP_MD_CTX *md, const struct receipt_u32 *list, uint32_t n_top,
                        uint8_t kind) {
    uint8_t bytes[11 + 8 * WIRE_TOP_MAX];
    size_t n_record = 2 * (1 + (size_t)n_top), n;

    for (size_t i = 0; i + n_record <= list->n; i += n_record) {
        const uint32_t *v = list->values + i;

        n = put(bytes, kind, 1);
        n += put(bytes + n, v[0], 4);
        n += put(bytes + n, v[1], 4);
        n += put(bytes + n, n_top, 2);
        for (uint32_t j = 2; j < n_record; j++) n += put(bytes + n, v[j], 4);
        if (!EVP_DigestUpdate(md, bytes, n)) return false;
    }
    return true;
}

bool receipt_digest(const struct receipt *r, uint8_t out_digest[WIRE_DIGEST_BYTES]) {
    static const char head[16] = "llm42 digest v1";
    const uint8_t tail[2] = {3, r->end.finish};
    uint8_t digest[EVP_MAX_MD_SIZE];
    EVP_MD_CTX *md;
    bool ok;

    if (r->submit.logprobs == 0 && r->ids.n > 0) return false;
    md = EVP_MD_CTX_new();
    ok = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) &&
         EVP_DigestUpdate(md, head, sizeof(head)) &&
         add_records(md, &r->prompt_records, receipt_n_prompt_top(r), 1) &&
         add_records(md, &r->records, receipt_n_top(r), 2) && EVP_DigestUpdate(md, tail, 2) &&
         EVP_DigestFinal_ex(md, digest, NULL);
    EVP_MD_CTX_free(md);
    if (ok) memcpy(out_digest, digest, WIRE_DIGEST_BYTES);
    return ok;
}

/* ---- Comparison ---- */

static size_t lesser(size_t a, size_t b) {
    return a < b ? a : b;
}

/* The first record that differs: its token, whether in its own logprob or only in its list. */
static bool differ(const struct receipt_u32 *a, const struct receipt_u32 *b, uint32_t n_top,
                   size_t *out_token, bool *out_own) {
    size_t n_record = 2 * (1 + (size_t)n_top);

    for (size_t i = 0; i < lesser(a->n, b->n); i++)
        if (a->values[i] != b->values[i]) {
            *out_token = i / n_record;
            *out_own = i % n_record < 2;
            return true;
        }
    return false;
}

static enum receipt_difference compare_output(const struct receipt *a, const struct receipt *b,
                                              size_t *out_token) {
    size_t n_ids = lesser(a->ids.n, b->ids.n), id, token = SIZE_MAX;
    bool own = false;

    for (id = 0; id < n_ids && a->ids.values[id] == b->ids.values[id]; id++) continue;
    if (a->submit.logprobs == b->submit.logprobs)
        (void)differ(&a->records, &b->records, receipt_n_top(a), &token, &own);
    /* A logprob that moved before an id did is where it began. */
    if (id < n_ids && id <= token) {
        *out_token = id;
        return RECEIPT_ID;
    }
    if (token != SIZE_MAX) {
        *out_token = token;
        return own ? RECEIPT_LOGPROB : RECEIPT_TOP;
    }
    *out_token = n_ids;
    if (a->ids.n != b->ids.n) return RECEIPT_LENGTH;
    if (a->end.finish != b->end.finish) return RECEIPT_FINISH;
    if (memcmp(a->end.digest, b->end.digest, WIRE_DIGEST_BYTES) != 0) return RECEIPT_DIGEST;
    return RECEIPT_EQUAL;
}

enum receipt_difference receipt_compare(const struct receipt *a, const struct receipt *b,
                                        size_t *out_token) {
    size_t n = lesser(a->prompt.n, b->prompt.n), token;
    bool own;

    *out_token = 0;
    if (memcmp(a->fingerprint, b->fingerprint, WIRE_DIGEST_BYTES) != 0) return RECEIPT_FINGERPRINT;
    for (token = 0; token < n && a->prompt.values[token] == b->prompt.values[token]; token++)
        continue;
    *out_token = token;
    if (token < n || a->prompt.n != b->prompt.n) return RECEIPT_PROMPT;
    if (a->submit.prompt_logprobs == b->submit.prompt_logprobs &&
        differ(&a->prompt_records, &b->prompt_records, receipt_n_prompt_top(a), &token, &own)) {
        *out_token = token + 1;
        return RECEIPT_PROMPT_LOGPROB;
    }
    return compare_output(a, b, out_token);
}
