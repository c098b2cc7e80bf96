#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cpu_pool.h"
#include "runtime/weights_impl.h"

/* The next tensor without a digest, until there is none or one failed. */
static void hash_some(struct weights *w) {
    struct hashing *h = w->hashing;
    struct weights_reader *reader = weights_reader_open();
    struct err e = {{0}};
    uint32_t i;
    int r = reader ? 0 : err_set(&e, -ENOMEM, "no memory to hash the weights");

    while (r == 0 && (i = atomic_fetch_add(&h->next, 1)) < h->n_entries)
        r = weights_read_hash(w, reader, h->entries[i], &e);
    weights_reader_close(reader);
    if (r == 0) return;
    atomic_store(&h->next, h->n_entries);
    (void)pthread_mutex_lock(&h->lock);
    if (h->code == 0) {
        h->code = r;
        h->error = e;
    }
    (void)pthread_mutex_unlock(&h->lock);
}

static void *hash_main(void *arg) {
    hash_some(arg);
    return NULL;
}

static int by_size(const void *a, const void *b) {
    const uint64_t x = (*(struct entry *const *)a)->tensor.n_bytes;
    const uint64_t y = (*(struct entry *const *)b)->tensor.n_bytes;

    return x < y ? 1 : x > y ? -1 : 0;
}

int weights_digest_begin(struct weights *w, struct err *e) {
    const uint32_t n_threads = cpu_pool_processors(WEIGHTS_HASHERS_MAX);
    struct hashing *h;

    if (w->hashing || w->names) return 0; /* begun, or made up */
    h = calloc(1, sizeof(*h));
    if (h) h->entries = calloc(w->n_entries + 1, sizeof(struct entry *));
    if (!h || !h->entries) {
        free(h);
        return err_set(e, -ENOMEM, "no memory to hash the weights");
    }
    (void)pthread_mutex_init(&h->lock, NULL);
    for (size_t i = 0; i < w->n_entries; i++)
        if (!w->entries[i].digested) h->entries[h->n_entries++] = &w->entries[i];
    qsort(h->entries, h->n_entries, sizeof(struct entry *), by_size);
    w->hashing = h;
    /* The caller of weights_digest is one, too: what threads cannot be had is its own work. */
    while (h->n_threads + 1 < n_threads && h->n_threads + 1 < h->n_entries &&
           pthread_create(&h->threads[h->n_threads], NULL, hash_main, w) == 0)
        h->n_threads++;
    return 0;
}

/* Waits for the threads; what the first failure was. */
static int end(struct weights *w, struct err *e) {
    struct hashing *h = w->hashing;
    int r;

    for (uint32_t i = 0; i < h->n_threads; i++) (void)pthread_join(h->threads[i], NULL);
    r = h->code;
    if (r < 0 && e) *e = h->error;
    (void)pthread_mutex_destroy(&h->lock);
    free(h->entries);
    free(h);
    w->hashing = NULL;
    return r;
}

void weights_digest_end(struct weights *w) {
    if (!w->hashing) return;
    atomic_store(&w->over, true);
    (void)end(w, NULL);
}

static void add_uint(struct sha256 *s, uint64_t x, size_t n_bytes) {
    sha256_add(s, &x, n_bytes);
}

static void add_text(struct sha256 *s, const char *text) {
    add_uint(s, strlen(text), sizeof(uint32_t));
    sha256_add(s, text, strlen(text));
}

int weights_digest(struct weights *w, uint8_t out_digest[WEIGHTS_DIGEST_BYTES], struct err *e) {
    struct sha256 *sum;
    int r;

    if (w->names) {
        char text[64];
        const int n = snprintf(text, sizeof(text), "llm42 made-up weights v1 %llu",
                               (unsigned long long)w->seed);

        sha256_of(text, (size_t)n, out_digest);
        return 0;
    }
    if ((r = weights_digest_begin(w, e)) < 0) return r;
    hash_some(w);
    if ((r = end(w, e)) < 0) return r;
    sum = sha256_open();
    if (!sum) return err_set(e, -ENOMEM, "no memory for the digest of the weights");
    for (size_t i = 0; i < w->n_entries; i++) {
        const struct entry *entry = &w->entries[i];

        add_text(sum, entry->tensor.name);
        add_text(sum, entry->header->dtype);
        add_uint(sum, entry->tensor.rank, sizeof(uint32_t));
        for (uint32_t d = 0; d < entry->tensor.rank; d++)
            add_uint(sum, entry->tensor.shape[d], sizeof(uint64_t));
        sha256_add(sum, entry->digest, sizeof(entry->digest));
    }
    sha256_end(sum, out_digest);
    sha256_close(sum);
    return 0;
}
