#include "tools/receipt_value.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool receipt_value_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out) {
    char *end;
    unsigned long long value;

    if (!isdigit((unsigned char)text[0])) return false;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno != 0 || *end || value < min || value > max) return false;
    *out = value;
    return true;
}

bool receipt_value_f32(const char *text, float *out) {
    char *end;
    float value;

    if (!isdigit((unsigned char)text[0]) && text[0] != '.') return false;
    errno = 0;
    value = strtof(text, &end);
    if (*end || end == text || !isfinite(value)) return false;
    *out = value;
    return true;
}

float receipt_value_float(uint32_t bits) {
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

json_t *receipt_value_real(float value) {
    char text[32];

    if (!isfinite(value)) return json_null();
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    return json_real(strtod(text, NULL));
}

json_t *receipt_value_bits(uint32_t bits) {
    char text[9];

    snprintf(text, sizeof(text), "%08x", bits);
    return json_string(text);
}

json_t *receipt_value_hex(const uint8_t *bytes, size_t n_bytes) {
    static const char digits[] = "0123456789abcdef";
    char *text = malloc(2 * n_bytes + 1);
    json_t *j;

    if (!text) return NULL;
    for (size_t i = 0; i < n_bytes; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    j = json_stringn(text, 2 * n_bytes);
    free(text);
    return j;
}

json_t *receipt_value_whole(uint64_t value) {
    char text[24];

    if (value <= INT64_MAX) return json_integer((json_int_t)value);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    return json_string(text);
}

/* Bytes of the UTF-8 character at p, 0 where there is none. */
static size_t utf8(const uint8_t *p, size_t n) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n_char = p[0] < 0x80             ? 1
                    : (p[0] & 0xe0) == 0xc0 ? 2
                    : (p[0] & 0xf0) == 0xe0 ? 3
                    : (p[0] & 0xf8) == 0xf0 ? 4
                                            : 0;
    uint32_t code = n_char ? p[0] & (0xffu >> (n_char == 1 ? 1 : n_char + 1)) : 0;

    if (n_char == 0 || n_char > n) return 0;
    for (size_t i = 1; i < n_char; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (p[i] & 0x3f);
    }
    if (code < least[n_char] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0;
    return n_char;
}

json_t *receipt_value_text(const void *bytes, size_t n_bytes) {
    const uint8_t *p = bytes;
    char *text = malloc(3 * n_bytes + 1);
    size_t n = 0, n_char;
    json_t *j;

    if (!text) return NULL;
    for (size_t i = 0; i < n_bytes; i += n_char) {
        n_char = utf8(p + i, n_bytes - i);
        memcpy(text + n, n_char ? (const char *)p + i : "\xef\xbf\xbd", n_char ? n_char : 3);
        n += n_char ? n_char : 3;
        if (n_char == 0) n_char = 1;
    }
    j = json_stringn(text, n);
    free(text);
    return j;
}
