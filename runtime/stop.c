#include "runtime/stop.h"

#include <string.h>

#include "runtime/assert.h"

size_t stop_text_room(size_t n_bytes) {
    /* Held bytes and new ones, each at worst a replacement character of 3, and half a character. */
    return 3 * (STOP_STRING_BYTES_MAX + n_bytes) + 16;
}

/* Where the first stop string begins, or n_bytes. */
static size_t find(const struct stop_text *t, const uint8_t *bytes, size_t n_bytes,
                   int *out_index) {
    size_t best = n_bytes;

    for (uint32_t i = 0; i < t->n_strings; i++) {
        const struct stop_string *s = &t->strings[i];
        const uint8_t *at = memmem(bytes, n_bytes, s->bytes, s->n_bytes);

        if (at && (size_t)(at - bytes) < best) {
            best = (size_t)(at - bytes);
            *out_index = (int)i;
        }
    }
    return best;
}

/* The longest end of `bytes` that is a proper beginning of a stop string. */
static size_t held_back(const struct stop_text *t, const uint8_t *bytes, size_t n_bytes) {
    size_t n_max = 0;

    for (uint32_t i = 0; i < t->n_strings; i++) {
        const struct stop_string *s = &t->strings[i];
        size_t n = s->n_bytes - 1u < n_bytes ? s->n_bytes - 1u : n_bytes;

        while (n > n_max && memcmp(bytes + n_bytes - n, s->bytes, n) != 0) n--;
        if (n > n_max) n_max = n;
    }
    return n_max;
}

int stop_text_push(struct stop_text *t, const uint8_t *bytes, size_t n_bytes, uint8_t *scratch,
                   uint8_t *out, size_t *out_n) {
    size_t n = t->n_held + n_bytes, n_show, n_hold;
    int index = -1;

    memcpy(scratch, t->held, t->n_held);
    if (n_bytes) memcpy(scratch + t->n_held, bytes, n_bytes);

    n_show = find(t, scratch, n, &index);
    if (index >= 0) {
        *out_n = token_utf8_push(&t->utf8, scratch, n_show, true, out);
        t->n_held = 0;
        return index;
    }

    n_hold = held_back(t, scratch, n);
    ASSERT(n_hold < STOP_STRING_BYTES_MAX);
    *out_n = token_utf8_push(&t->utf8, scratch, n - n_hold, false, out);
    memcpy(t->held, scratch + n - n_hold, n_hold);
    t->n_held = (uint32_t)n_hold;
    return -1;
}

size_t stop_text_end(struct stop_text *t, uint8_t *out) {
    size_t n = token_utf8_push(&t->utf8, t->held, t->n_held, true, out);

    t->n_held = 0;
    return n;
}
