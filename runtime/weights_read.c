#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/cpu_pool.h"
#include "runtime/file.h"
#include "runtime/num.h"
#include "runtime/weights_impl.h"

enum {
    /* Small enough to be hashed and rounded while it is in the second-level cache. */
    CHUNK_BYTES = 1 << 20,
    MAKERS_MAX = 64,
    MAKE_ALONE = 1 << 20, /* values that are not worth a thread */
};

struct weights_reader {
    struct sha256 *sha256;
    uint8_t *chunk; /* CHUNK_BYTES */
};

struct weights_reader *weights_reader_open(void) {
    struct weights_reader *reader = calloc(1, sizeof(*reader));

    if (!reader) return NULL;
    reader->sha256 = sha256_open();
    reader->chunk = malloc(CHUNK_BYTES);
    if (reader->sha256 && reader->chunk) return reader;
    weights_reader_close(reader);
    return NULL;
}

void weights_reader_close(struct weights_reader *reader) {
    if (!reader) return;
    sha256_close(reader->sha256);
    free(reader->chunk);
    free(reader);
}

/* Exact: every fp16 is an fp32. */
static float from_f16(uint16_t x) {
    unsigned sign = (unsigned)(x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 0x3ff;

    if (exponent == 31) return num_from_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent > 0) return num_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    return num_from_bits(sign | num_bits((float)fraction * 0x1p-24f));
}

static void round_values(enum weights_dtype dtype, const uint8_t *bytes, size_t n_bytes,
                         uint16_t *out_values) {
    if (dtype == WEIGHTS_F16) {
        const uint16_t *x = (const uint16_t *)(const void *)bytes;

        for (size_t i = 0; i < n_bytes / sizeof(x[0]); i++)
            out_values[i] = num_to_bf16(from_f16(x[i]));
    } else {
        const float *x = (const float *)(const void *)bytes;

        for (size_t i = 0; i < n_bytes / sizeof(x[0]); i++) out_values[i] = num_to_bf16(x[i]);
    }
}

static size_t value_bytes(const struct entry *entry) {
    return entry->tensor.dtype == WEIGHTS_F32 ? sizeof(float) : sizeof(uint16_t);
}

static uint64_t piece_bytes(const struct entry *entry) {
    return entry->piece_bytes ? entry->piece_bytes : entry->tensor.n_bytes;
}

static int changed(const struct entry *entry, struct err *e) {
    return err_set(e, -EIO, "%s: tensor %.80s changed since it was read", entry->shard->name,
                   entry->tensor.name);
}

/* One that was read before must have the tag that it had then. */
static int check_tag(struct entry *entry, uint64_t piece, uint64_t tag, struct err *e) {
    if (entry->tagged[piece]) return tag == entry->tags[piece] ? 0 : changed(entry, e);
    entry->tags[piece] = tag;
    entry->tagged[piece] = true;
    return 0;
}

/* A piece's bytes, and their values where out_values is not NULL. */
static int read_piece(struct weights *w, struct weights_reader *reader, struct entry *entry,
                      uint64_t piece, bool hash, uint16_t *out_values, struct err *e) {
    const bool direct = out_values && entry->tensor.dtype == WEIGHTS_BF16;
    const struct shard *s = entry->shard;
    const uint64_t begin = piece * piece_bytes(entry);
    const uint64_t n_left = entry->tensor.n_bytes - begin;
    const uint64_t n_bytes = n_left < piece_bytes(entry) ? n_left : piece_bytes(entry);
    struct tag tag = {0};
    int r;

    for (uint64_t off = 0, n; off < n_bytes; off += n) {
        uint8_t *to = direct ? (uint8_t *)out_values + off : reader->chunk;

        n = n_bytes - off < CHUNK_BYTES ? n_bytes - off : CHUNK_BYTES;
        r = file_read_at(s->fd, s->name, s->data_off + entry->header->begin + begin + off, to, n,
                         e);
        if (r < 0) return r;
        if (hash) sha256_add(reader->sha256, to, n);
        if (entry->tags) tag_add(&tag, &w->key, to, n);
        if (out_values && !direct)
            round_values(entry->tensor.dtype, to, n, out_values + off / value_bytes(entry));
        if (w->n_read && (out_values || !entry->tags))
            atomic_fetch_add_explicit(w->n_read, n, memory_order_relaxed);
        if (!out_values && atomic_load_explicit(&w->over, memory_order_relaxed)) return -ECANCELED;
    }
    return entry->tags ? check_tag(entry, piece, tag_end(&tag, &w->key), e) : 0;
}

static uint64_t n_pieces(const struct entry *entry) {
    const uint64_t n = piece_bytes(entry);

    return n ? (entry->tensor.n_bytes + n - 1) / n : 0;
}

static int read_pieces(struct weights *w, struct weights_reader *reader, struct entry *entry,
                       bool hash, uint16_t *out_values, struct err *e) {
    const uint64_t n_values = piece_bytes(entry) / value_bytes(entry);
    int r = 0;

    for (uint64_t i = 0; r == 0 && i < n_pieces(entry); i++)
        r = read_piece(w, reader, entry, i, hash, out_values ? out_values + i * n_values : NULL, e);
    return r;
}

/* Reads a tensor once through, digests it, and leaves its values where out_values is not NULL. */
static int read_entry(struct weights *w, struct weights_reader *reader, struct entry *entry,
                      uint16_t *out_values, struct err *e) {
    uint8_t digest[SHA256_BYTES];
    int r;

    sha256_start(reader->sha256);
    r = read_pieces(w, reader, entry, true, out_values, e);
    sha256_end(reader->sha256, digest);
    if (r < 0) return r;
    if (entry->digested && memcmp(entry->digest, digest, sizeof(digest)) != 0)
        return changed(entry, e);
    memcpy(entry->digest, digest, sizeof(digest));
    entry->digested = true;
    return 0;
}

int weights_read_hash(struct weights *w, struct weights_reader *reader, struct entry *entry,
                      struct err *e) {
    return read_entry(w, reader, entry, NULL, e);
}

bool weights_rule_of(const struct weights *w, const struct weights_tensor *t,
                     struct weights_rule *out_rule) {
    const struct entry *entry = &w->entries[weights_index(w, t)];

    if (entry->header) return false;
    *out_rule = entry->rule;
    return true;
}

/* Values first .. end - 1 of a made-up tensor; first is a multiple of 4, as words come. */
struct making {
    const struct weights_rule *rule;
    uint64_t first, end;
    uint16_t *values;
    pthread_t thread;
    bool started;
};

static void *make_some(void *arg) {
    const struct making *m = arg;
    const struct weights_rule *rule = m->rule;
    unsigned words[4];

    for (uint64_t i = m->first; i < m->end; i++) {
        if (i % 4 == 0) num_random4(rule->seed + (i >> 32), rule->tensor, (unsigned)i / 4, words);
        m->values[i] =
            num_to_bf16(rule->base + rule->scale * ((float)(words[i % 4] >> 8) * 0x1p-23f - 1.0f));
    }
    return NULL;
}

/* Seconds of one processor for a large model: all of them help, where they can. */
static void make_up(const struct weights_rule *rule, uint64_t n, uint16_t *out_values) {
    struct making parts[MAKERS_MAX];
    const uint32_t n_parts = n < MAKE_ALONE ? 1 : cpu_pool_processors(MAKERS_MAX);
    uint64_t share;

    share = (n / n_parts + 4) / 4 * 4;
    for (uint32_t i = 0; i < n_parts; i++) {
        parts[i] = (struct making){.rule = rule, .values = out_values};
        parts[i].first = i * share < n ? i * share : n;
        parts[i].end = (i + 1) * share < n ? (i + 1) * share : n;
        if (i > 0)
            parts[i].started = pthread_create(&parts[i].thread, NULL, make_some, &parts[i]) == 0;
    }
    for (uint32_t i = 0; i < n_parts; i++) {
        if (parts[i].started)
            (void)pthread_join(parts[i].thread, NULL);
        else
            (void)make_some(&parts[i]);
    }
}

static int check_dtype(const struct weights *w, const struct entry *entry, struct err *e) {
    const struct weights_tensor *t = &entry->tensor;

    if (t->dtype == WEIGHTS_BF16 || (t->dtype != WEIGHTS_OTHER && w->round)) return 0;
    return err_set(e, -ENOTSUP, "%s: tensor %.80s: dtype %s is not %s", entry->shard->name, t->name,
                   entry->header->dtype,
                   t->dtype == WEIGHTS_OTHER ? "implemented" : "taken without rounding");
}

/* All of it was read in pieces: then their tags tell whether it is the same. */
static bool is_tagged(const struct entry *entry) {
    for (uint64_t i = 0; entry->tags && i < n_pieces(entry); i++)
        if (!entry->tagged[i]) return false;
    return entry->tags != NULL;
}

int weights_read_by(struct weights_reader *reader, struct weights *w,
                    const struct weights_tensor *t, uint16_t *out_values, struct err *e) {
    struct entry *entry = &w->entries[weights_index(w, t)];
    int r;

    if (!entry->header) {
        make_up(&entry->rule, t->n_values, out_values);
        return 0;
    }
    if ((r = check_dtype(w, entry, e)) < 0) return r;
    if (is_tagged(entry)) return read_pieces(w, reader, entry, false, out_values, e);
    return read_entry(w, reader, entry, out_values, e);
}

int weights_read(struct weights *w, const struct weights_tensor *t, uint16_t *out_values,
                 struct err *e) {
    return weights_read_by(w->reader, w, t, out_values, e);
}

int weights_cut(struct weights *w, const struct weights_tensor *t, uint64_t piece_values,
                struct err *e) {
    struct entry *entry = &w->entries[weights_index(w, t)];
    int r;

    ASSERT(entry->header && piece_values > 0 && !w->hashing);
    if ((r = check_dtype(w, entry, e)) < 0) return r;
    if (entry->piece_bytes == piece_values * value_bytes(entry)) return 0;
    free(entry->tags);
    free(entry->tagged);
    entry->piece_bytes = piece_values * value_bytes(entry);
    entry->tags = calloc(n_pieces(entry) + 1, sizeof(*entry->tags));
    entry->tagged = calloc(n_pieces(entry) + 1, sizeof(*entry->tagged));
    if (!entry->tags || !entry->tagged) {
        free(entry->tags);
        free(entry->tagged);
        entry->tags = NULL;
        entry->tagged = NULL;
        entry->piece_bytes = 0;
        return err_set(e, -ENOMEM, "no memory for the tags of tensor %.80s", t->name);
    }
    return 0;
}

int weights_read_piece(struct weights_reader *reader, struct weights *w,
                       const struct weights_tensor *t, uint64_t piece, uint16_t *out_values,
                       struct err *e) {
    struct entry *entry = &w->entries[weights_index(w, t)];

    ASSERT(entry->tags && piece < n_pieces(entry));
    return read_piece(w, reader, entry, piece, false, out_values, e);
}
