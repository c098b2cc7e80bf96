/* unicode_table - the tables behind unicode.c, written by tools/unicode-table.
 *
 * Owns:   constants.
 * Thread: any.
 * Fails:  never.
 *
 * For unicode.c alone. */
#ifndef LLM42D_RUNTIME_UNICODE_TABLE_H
#define LLM42D_RUNTIME_UNICODE_TABLE_H

#include <stdint.h>

enum {
    UNICODE_TABLE_BLOCK_SHIFT = 7, /* BLOCK of tools/unicode-table is 1 << this */
};

struct unicode_record {
    uint8_t kind; /* enum unicode_class */
    uint8_t ccc;  /* canonical combining class; 0 is a starter */
    uint8_t nfc_unsure;
};

struct unicode_span {
    uint32_t code;
    uint16_t part; /* index into unicode_table_parts */
    uint16_t n_parts;
};

struct unicode_pair {
    uint32_t first, second, composed;
};

extern const char unicode_table_version[];
extern const uint8_t unicode_table_index[];
extern const uint8_t unicode_table_blocks[];
extern const struct unicode_record unicode_table_records[];
extern const struct unicode_span unicode_table_decomposed[];
extern const uint32_t unicode_table_n_decomposed;
extern const uint32_t unicode_table_parts[];
extern const struct unicode_pair unicode_table_composed[];
extern const uint32_t unicode_table_n_composed;

#endif
