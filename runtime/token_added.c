/* Added tokens are cut out of the text before it is split into words: of those that begin
 * leftmost, the longest.  A pattern is found by narrowing a sorted list byte by byte. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/err.h"
#include "runtime/token_impl.h"
#include "runtime/unicode.h"

static int compare(const uint8_t *a, size_t n_a, const uint8_t *b, size_t n_b) {
    int order = memcmp(a, b, n_a < n_b ? n_a : n_b);

    return order ? order : (n_a > n_b) - (n_a < n_b);
}

static int by_text(const void *a, const void *b, void *pool) {
    const struct token_text *x = &((const struct token_added *)a)->text;
    const struct token_text *y = &((const struct token_added *)b)->text;
    const uint8_t *p = pool;

    return compare(p + x->off, x->n_bytes, p + y->off, y->n_bytes);
}

static int by_pattern(const void *a, const void *b, void *token) {
    const struct token *t = token;
    const struct token_text *x = &t->added[*(const uint32_t *)a].pattern;
    const struct token_text *y = &t->added[*(const uint32_t *)b].pattern;

    return compare(t->pool + x->off, x->n_bytes, t->pool + y->off, y->n_bytes);
}

static int make_set(struct token *t, struct token_set *set, bool normalized, const char *name,
                    struct err *e) {
    set->rows = calloc(t->n_added + 1, sizeof(*set->rows));
    if (!set->rows) return err_set(e, -ENOMEM, "%s: no memory", name);
    for (uint32_t i = 0; i < t->n_added; i++)
        if (t->added[i].normalized == normalized) set->rows[set->n_rows++] = i;
    qsort_r(set->rows, set->n_rows, sizeof(*set->rows), by_pattern, t);
    for (uint32_t i = 0; i < set->n_rows; i++) {
        if (i > 0 && by_pattern(&set->rows[i - 1], &set->rows[i], t) == 0)
            return err_set(e, -EINVAL, "%s: added tokens %u and %u are the same text", name,
                           t->added[set->rows[i - 1]].id, t->added[set->rows[i]].id);
        set->first[t->pool[t->added[set->rows[i]].pattern.off]] = true;
    }
    return 0;
}

int token_added_index(struct token *t, const char *name, struct err *e) {
    int r;

    if (t->n_added > 0) qsort_r(t->added, t->n_added, sizeof(*t->added), by_text, t->pool);
    for (uint32_t i = 1; i < t->n_added; i++)
        if (by_text(&t->added[i - 1], &t->added[i], t->pool) == 0)
            return err_set(e, -EINVAL, "%s: added tokens %u and %u are the same text", name,
                           t->added[i - 1].id, t->added[i].id);
    r = make_set(t, &t->raw, false, name, e);
    return r < 0 ? r : make_set(t, &t->normalised, true, name, e);
}

const struct token_added *token_added_find(const struct token *t, const uint8_t *text,
                                           size_t n_bytes) {
    uint32_t low = 0, high = t->n_added;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct token_text *m = &t->added[middle].text;
        int order = compare(t->pool + m->off, m->n_bytes, text, n_bytes);

        if (order == 0) return &t->added[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* The first row in [low, high) whose byte at `depth` is not below `byte`; all are longer than
 * depth and agree before it. */
static uint32_t bound(const struct token *t, const struct token_set *set, uint32_t low,
                      uint32_t high, uint32_t depth, uint32_t byte) {
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (t->pool[t->added[set->rows[middle]].pattern.off + depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest pattern at the start of the text, or NULL. */
static const struct token_added *match(const struct token *t, const struct token_set *set,
                                       const uint8_t *text, size_t n_bytes) {
    const struct token_added *longest = NULL;
    uint32_t low = 0, high = set->n_rows;

    for (uint32_t depth = 0; depth < n_bytes && low < high; depth++) {
        low = bound(t, set, low, high, depth, text[depth]);
        high = bound(t, set, low, high, depth, text[depth] + 1u);
        /* What ends here sorts before what goes on. */
        if (low < high && t->added[set->rows[low]].pattern.n_bytes == depth + 1)
            longest = &t->added[set->rows[low++]];
    }
    return longest;
}

static size_t spaces_before(const uint8_t *text, size_t off) {
    while (off > 0) {
        size_t start = off - 1;
        uint32_t n;

        while ((text[start] & 0xc0) == 0x80) start--;
        if (unicode_class(unicode_read(text + start, &n)) != UNICODE_SPACE) break;
        off = start;
    }
    return off;
}

static size_t spaces_after(const uint8_t *text, size_t n_bytes, size_t off) {
    uint32_t n;

    while (off < n_bytes && unicode_class(unicode_read(text + off, &n)) == UNICODE_SPACE) off += n;
    return off;
}

int token_added_split(struct token_out *out, const struct token_set *set, const uint8_t *text,
                      size_t n_bytes,
                      int (*plain)(struct token_out *out, const uint8_t *text, size_t n_bytes)) {
    size_t done = 0, off = 0;

    if (set->n_rows == 0) off = n_bytes;
    while (off < n_bytes) {
        const struct token_added *a;
        size_t start = off, stop;
        int r;

        a = set->first[text[off]] ? match(out->t, set, text + off, n_bytes - off) : NULL;
        if (!a) {
            off++;
            continue;
        }
        off += a->pattern.n_bytes;
        /* A special token that is taken for text hides what overlaps it, as in the reference. */
        if (a->special && !(out->flags & TOKEN_ENCODE_SPECIAL)) continue;
        stop = off;
        if (a->lstrip) {
            start = spaces_before(text, start);
            if (start < done) start = done;
        }
        if (a->rstrip) stop = spaces_after(text, n_bytes, stop);
        r = start > done ? plain(out, text + done, start - done) : 0;
        if (r == 0) r = token_bpe_emit(out, a->id);
        if (r < 0) return r;
        done = stop;
    }
    return done < n_bytes ? plain(out, text + done, n_bytes - done) : 0;
}
