#include "runtime/unicode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/unicode_table.h"

/* Hangul syllables are composed by arithmetic (Unicode 15, 3.12). */
enum {
    HANGUL_S = 0xac00,
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11a7,
    HANGUL_L_COUNT = 19,
    HANGUL_V_COUNT = 21,
    HANGUL_T_COUNT = 28,
    HANGUL_N_COUNT = HANGUL_V_COUNT * HANGUL_T_COUNT,
    HANGUL_S_COUNT = HANGUL_L_COUNT * HANGUL_N_COUNT,
};

static const struct unicode_record *record(uint32_t code) {
    uint32_t block = unicode_table_index[code >> UNICODE_TABLE_BLOCK_SHIFT];
    uint32_t row = code & ((1u << UNICODE_TABLE_BLOCK_SHIFT) - 1);

    return &unicode_table_records[unicode_table_blocks[(block << UNICODE_TABLE_BLOCK_SHIFT) + row]];
}

const char *unicode_version(void) {
    return unicode_table_version;
}

enum unicode_class unicode_class(uint32_t code) {
    ASSERT(code <= 0x10ffff);
    return (enum unicode_class)record(code)->kind;
}

uint32_t unicode_length(uint8_t byte) {
    if (byte < 0x80) return 1;
    if (byte < 0xc2) return 0;
    if (byte < 0xe0) return 2;
    if (byte < 0xf0) return 3;
    return byte < 0xf5 ? 4 : 0;
}

bool unicode_follows(const uint8_t *held, uint32_t n_held, uint8_t byte) {
    uint8_t low = 0x80, high = 0xbf;

    /* The second byte alone rules out overlong forms, surrogates and what lies beyond 0x10ffff. */
    if (n_held == 1) {
        if (held[0] == 0xe0) low = 0xa0;
        if (held[0] == 0xed) high = 0x9f;
        if (held[0] == 0xf0) low = 0x90;
        if (held[0] == 0xf4) high = 0x8f;
    }
    return byte >= low && byte <= high;
}

size_t unicode_check(const uint8_t *text, size_t n_bytes) {
    size_t off = 0;

    while (off < n_bytes) {
        uint32_t n = unicode_length(text[off]);

        if (n == 0 || n > n_bytes - off) break;
        for (uint32_t i = 1; i < n; i++)
            if (!unicode_follows(text + off, i, text[off + i])) return off;
        off += n;
    }
    return off;
}

uint32_t unicode_read(const uint8_t *text, uint32_t *out_n_bytes) {
    uint32_t n = unicode_length(text[0]);
    uint32_t code = text[0];

    if (n > 1) code &= 0x7fu >> n;
    for (uint32_t i = 1; i < n; i++) code = code << 6 | (text[i] & 0x3fu);
    *out_n_bytes = n;
    return code;
}

uint32_t unicode_write(uint32_t code, uint8_t *out) {
    uint32_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;

    if (n == 1) {
        out[0] = (uint8_t)code;
        return n;
    }
    for (uint32_t i = n - 1; i > 0; i--) {
        out[i] = (uint8_t)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    out[0] = (uint8_t)((0xf00u >> n & 0xff) | code);
    return n;
}

/* True if the text is surely in NFC; false asks for the whole work. */
static bool is_nfc(const uint8_t *text, size_t n_bytes) {
    uint8_t last_ccc = 0;

    for (size_t off = 0; off < n_bytes;) {
        uint32_t n;
        const struct unicode_record *r;

        if (text[off] < 0x80) {
            last_ccc = 0;
            off++;
            continue;
        }
        r = record(unicode_read(text + off, &n));
        if (r->nfc_unsure || (r->ccc != 0 && r->ccc < last_ccc)) return false;
        last_ccc = r->ccc;
        off += n;
    }
    return true;
}

static const struct unicode_span *find_decomposed(uint32_t code) {
    uint32_t low = 0, high = unicode_table_n_decomposed;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (unicode_table_decomposed[middle].code < code)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == unicode_table_n_decomposed || unicode_table_decomposed[low].code != code)
        return NULL;
    return &unicode_table_decomposed[low];
}

static size_t decompose(uint32_t code, uint32_t *out) {
    const struct unicode_span *span;

    if (code < 0xc0) { /* nothing below decomposes */
        out[0] = code;
        return 1;
    }
    if (code >= HANGUL_S && code < HANGUL_S + HANGUL_S_COUNT) {
        uint32_t s = code - HANGUL_S;

        out[0] = HANGUL_L + s / HANGUL_N_COUNT;
        out[1] = HANGUL_V + s % HANGUL_N_COUNT / HANGUL_T_COUNT;
        out[2] = HANGUL_T + s % HANGUL_T_COUNT;
        return out[2] == HANGUL_T ? 2 : 3;
    }
    span = find_decomposed(code);
    if (!span) {
        out[0] = code;
        return 1;
    }
    memcpy(out, &unicode_table_parts[span->part], span->n_parts * sizeof(*out));
    return span->n_parts;
}

/* Stable, by combining class, each run of marks by itself.  Counting, since a run can be as long
 * as the text. */
static void order(uint32_t *codes, size_t n_codes, uint32_t *spare) {
    for (size_t first = 0, end; first < n_codes; first = end) {
        size_t place[256] = {0}, sum = 0;

        end = first;
        while (end < n_codes && record(codes[end])->ccc != 0) end++;
        if (end - first < 2) {
            end += end == first;
            continue;
        }
        for (size_t i = first; i < end; i++) place[record(codes[i])->ccc]++;
        for (size_t ccc = 0; ccc < 256; ccc++) {
            size_t n = place[ccc];

            place[ccc] = sum;
            sum += n;
        }
        for (size_t i = first; i < end; i++) spare[place[record(codes[i])->ccc]++] = codes[i];
        memcpy(codes + first, spare, (end - first) * sizeof(*codes));
    }
}

/* The primary composite, or 0. */
static uint32_t find_composed(uint32_t first, uint32_t second) {
    uint32_t low = 0, high = unicode_table_n_composed;

    if (first - HANGUL_L < HANGUL_L_COUNT && second - HANGUL_V < HANGUL_V_COUNT)
        return HANGUL_S +
               ((first - HANGUL_L) * HANGUL_V_COUNT + second - HANGUL_V) * HANGUL_T_COUNT;
    if (first - HANGUL_S < HANGUL_S_COUNT && (first - HANGUL_S) % HANGUL_T_COUNT == 0 &&
        second - HANGUL_T - 1 < HANGUL_T_COUNT - 1)
        return first + second - HANGUL_T;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct unicode_pair *p = &unicode_table_composed[middle];

        if (p->first < first || (p->first == first && p->second < second))
            low = middle + 1;
        else
            high = middle;
    }
    if (low == unicode_table_n_composed || unicode_table_composed[low].first != first ||
        unicode_table_composed[low].second != second)
        return 0;
    return unicode_table_composed[low].composed;
}

/* In place; the new count.  A mark is blocked from its starter by a mark kept between them whose
 * class is not lower; a starter is blocked by anything kept between. */
static size_t compose(uint32_t *codes, size_t n_codes) {
    size_t n_kept = 0, starter = 0;
    bool has_starter = false;
    uint8_t last_ccc = 0;

    for (size_t i = 0; i < n_codes; i++) {
        uint8_t ccc = record(codes[i])->ccc;

        if (has_starter && (n_kept == starter + 1 || last_ccc < ccc)) {
            uint32_t composed = find_composed(codes[starter], codes[i]);

            if (composed) {
                codes[starter] = composed;
                continue;
            }
        }
        if (ccc == 0) {
            starter = n_kept;
            has_starter = true;
        }
        last_ccc = ccc;
        codes[n_kept++] = codes[i];
    }
    return n_kept;
}

int unicode_nfc(const uint8_t *text, size_t n_bytes, uint8_t **out_text, size_t *out_n_bytes) {
    uint32_t *codes = NULL, *spare = NULL;
    uint8_t *out = NULL;
    size_t n_codes = 0, n_out = 0;
    int r = -ENOMEM;

    *out_text = NULL;
    *out_n_bytes = n_bytes;
    if (is_nfc(text, n_bytes)) return 0;

    /* At most 3 code points from 2 bytes, and 4 from 3; so 2 a byte is enough. */
    if (n_bytes > SIZE_MAX / (2 * sizeof(*codes))) return -ENOMEM;
    codes = malloc(n_bytes * 2 * sizeof(*codes));
    spare = malloc(n_bytes * 2 * sizeof(*spare));
    if (!codes || !spare) goto out;
    for (size_t off = 0; off < n_bytes;) {
        uint32_t n;

        n_codes += decompose(unicode_read(text + off, &n), codes + n_codes);
        off += n;
    }
    order(codes, n_codes, spare);
    n_codes = compose(codes, n_codes);

    out = malloc(n_codes * 4 + 1);
    if (!out) goto out;
    for (size_t i = 0; i < n_codes; i++) n_out += unicode_write(codes[i], out + n_out);
    *out_text = out;
    *out_n_bytes = n_out;
    r = 0;
out:
    free(codes);
    free(spare);
    return r;
}
