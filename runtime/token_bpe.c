/* Byte pair encoding: of all neighbours that some merge joins, the lowest rank goes first, and of
 * equal ranks the leftmost, until none is left.
 *
 * A short word is scanned again for each merge.  A long one keeps its symbols in a linked list and
 * the candidates in a heap; an entry that a merge has overtaken is recognised when it surfaces,
 * since the pair now there no longer makes the id that was queued.  (It cannot make the same id in
 * another way: symbols only grow, and an id stands for one text.)
 *
 * A byte that the vocabulary has no token for is left out, as the reference does; SmolLM2 has none
 * for most control characters. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/err.h"
#include "runtime/token_impl.h"

enum {
    SHORT_BYTES = 32, /* beyond it the heap is faster */
};

struct token_symbol {
    uint32_t id;         /* TOKEN_NONE once it has been joined to its left neighbour */
    uint32_t prev, next; /* TOKEN_NONE at the ends */
};

uint64_t token_bpe_hash(const uint8_t *left, size_t n_left, const uint8_t *right, size_t n_right) {
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */

    for (size_t i = 0; i < n_left; i++) h = (h ^ left[i]) * 0x100000001b3u;
    for (size_t i = 0; i < n_right; i++) h = (h ^ right[i]) * 0x100000001b3u;
    return h ^ h >> 32;
}

uint32_t token_bpe_find(const struct token *t, const uint8_t *left, size_t n_left,
                        const uint8_t *right, size_t n_right) {
    uint32_t mask = t->n_word_slots - 1;
    uint32_t slot = (uint32_t)token_bpe_hash(left, n_left, right, n_right) & mask;

    /* Ends, since at least a third of the slots are free. */
    for (uint32_t id; (id = t->word_slots[slot]) != TOKEN_NONE; slot = (slot + 1) & mask) {
        const uint8_t *word = t->pool + t->words[id].off;

        if (t->words[id].n_bytes == n_left + n_right && memcmp(word, left, n_left) == 0 &&
            (n_right == 0 || memcmp(word + n_left, right, n_right) == 0))
            return id;
    }
    return TOKEN_NONE;
}

struct token_merge *token_bpe_slot(const struct token *t, uint64_t pair) {
    uint32_t mask = t->n_merge_slots - 1;
    uint32_t slot = (uint32_t)((pair * 0x9e3779b97f4a7c15u) >> t->merge_shift) & mask;

    while (t->merges[slot].id != TOKEN_NONE && t->merges[slot].pair != pair)
        slot = (slot + 1) & mask;
    return &t->merges[slot];
}

static const struct token_merge *find_merge(const struct token *t, uint32_t left, uint32_t right) {
    const struct token_merge *m = token_bpe_slot(t, (uint64_t)left << 32 | right);

    return m->id == TOKEN_NONE ? NULL : m;
}

int token_bpe_emit(struct token_out *out, uint32_t id) {
    if (out->n_ids == out->n_ids_max)
        return err_set(out->e, -EMSGSIZE, "the text has more than %zu tokens", out->n_ids_max);
    out->ids[out->n_ids++] = id;
    return 0;
}

static int encode_short(struct token_out *out, const uint8_t *word, size_t n_bytes) {
    const struct token *t = out->t;
    const struct token_merge *joins[SHORT_BYTES]; /* symbol i with symbol i + 1, or NULL */
    uint32_t ids[SHORT_BYTES];
    size_t n = 0;
    int r = 0;

    for (size_t i = 0; i < n_bytes; i++)
        if (t->byte_ids[word[i]] != TOKEN_NONE) ids[n++] = t->byte_ids[word[i]];
    for (size_t i = 0; i + 1 < n; i++) joins[i] = find_merge(t, ids[i], ids[i + 1]);
    for (;;) {
        const struct token_merge *best = NULL;
        size_t at = 0;

        for (size_t i = 0; i + 1 < n; i++) {
            if (!joins[i] || (best && joins[i]->rank >= best->rank)) continue;
            best = joins[i];
            at = i;
        }
        if (!best) break;
        ids[at] = best->id;
        n--;
        for (size_t i = at + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            if (i + 1 < n) joins[i] = joins[i + 1];
        }
        if (at > 0) joins[at - 1] = find_merge(t, ids[at - 1], ids[at]);
        if (at + 1 < n) joins[at] = find_merge(t, ids[at], ids[at + 1]);
    }
    for (size_t i = 0; i < n && r == 0; i++) r = token_bpe_emit(out, ids[i]);
    return r;
}

/* A candidate is rank << 32 | position, so that the heap's order is the order of merging. */
static void heap_push(uint64_t *heap, size_t *n, uint64_t entry) {
    size_t i = (*n)++;

    while (i > 0 && heap[(i - 1) / 2] > entry) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = entry;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n) {
    uint64_t top = heap[0], last = heap[--*n];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= *n) break;
        if (child + 1 < *n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= last) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static int reserve(struct token_out *out, size_t n_symbols) {
    struct token_symbol *symbols;
    uint64_t *heap;

    if (n_symbols <= out->n_symbols_max) return 0;
    /* Positions are 32 bits of a heap entry. */
    if (n_symbols > UINT32_MAX / 64) return err_set(out->e, -EMSGSIZE, "a word is too long");
    symbols = realloc(out->symbols, n_symbols * sizeof(*symbols));
    if (symbols) out->symbols = symbols;
    /* Each of the n - 1 merges takes one entry and adds at most two to the n - 1 first ones. */
    heap = realloc(out->heap, 2 * n_symbols * sizeof(*heap));
    if (heap) out->heap = heap;
    if (!symbols || !heap)
        return err_set(out->e, -ENOMEM, "no memory for a word of %zu bytes", n_symbols);
    out->n_symbols_max = n_symbols;
    return 0;
}

static void offer(struct token_out *out, size_t *n_heap, uint32_t left) {
    uint32_t right = out->symbols[left].next;
    const struct token_merge *m;

    if (right == TOKEN_NONE) return;
    m = find_merge(out->t, out->symbols[left].id, out->symbols[right].id);
    if (m) heap_push(out->heap, n_heap, (uint64_t)m->rank << 32 | left);
}

static int encode_long(struct token_out *out, const uint8_t *word, size_t n_bytes) {
    struct token_symbol *s;
    size_t n_heap = 0;
    uint32_t n = 0;
    int r = reserve(out, n_bytes);

    if (r < 0) return r;
    s = out->symbols;
    for (size_t i = 0; i < n_bytes; i++) {
        uint32_t id = out->t->byte_ids[word[i]];

        if (id == TOKEN_NONE) continue;
        s[n] = (struct token_symbol){id, n - 1, n + 1}; /* before the first is TOKEN_NONE */
        n++;
    }
    if (n == 0) return 0;
    s[n - 1].next = TOKEN_NONE;
    for (uint32_t i = 0; i < n; i++) offer(out, &n_heap, i);

    while (n_heap > 0) {
        uint64_t top = heap_pop(out->heap, &n_heap);
        uint32_t left = (uint32_t)top, right = s[left].next;
        const struct token_merge *m;

        if (s[left].id == TOKEN_NONE || right == TOKEN_NONE) continue;
        m = find_merge(out->t, s[left].id, s[right].id);
        if (!m || m->rank != top >> 32) continue; /* overtaken */
        s[left].id = m->id;
        s[left].next = s[right].next;
        s[right].id = TOKEN_NONE;
        if (s[left].next != TOKEN_NONE) s[s[left].next].prev = left;
        if (s[left].prev != TOKEN_NONE) offer(out, &n_heap, s[left].prev);
        offer(out, &n_heap, left);
    }
    for (uint32_t i = 0; i != TOKEN_NONE && r == 0; i = s[i].next) r = token_bpe_emit(out, s[i].id);
    return r;
}

int token_bpe_word(struct token_out *out, const uint8_t *word, size_t n_bytes) {
    const struct token *t = out->t;

    ASSERT(n_bytes > 0);
    if (t->ignore_merges && n_bytes <= t->n_word_bytes_max) {
        uint32_t id = token_bpe_find(t, word, n_bytes, NULL, 0);

        /* A special token that also stands in the vocabulary is not to be had by writing it. */
        if (id != TOKEN_NONE && !t->special[id]) return token_bpe_emit(out, id);
    }
    return n_bytes <= SHORT_BYTES ? encode_short(out, word, n_bytes)
                                  : encode_long(out, word, n_bytes);
}
