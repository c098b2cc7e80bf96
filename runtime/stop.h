/* stop - when an output ends, and which of its text may be shown.
 *
 * Owns:   nothing; pure, on a struct of the caller.
 * Thread: any.
 *
 * Decides on committed tokens alone.  Stop strings are found in the bytes of the output, across
 * tokens; text that may yet turn out to be the start of one is held back, and so is half a
 * character.  Nothing of a stop string is ever given out, and nothing else is lost. */
#ifndef LLM42D_RUNTIME_STOP_H
#define LLM42D_RUNTIME_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/token.h"

enum {
    STOP_STRINGS_MAX = 16,
    STOP_STRING_BYTES_MAX = 256,
};

struct stop_string {
    uint16_t n_bytes; /* 1 .. STOP_STRING_BYTES_MAX */
    uint8_t bytes[STOP_STRING_BYTES_MAX];
};

struct stop_text {
    const struct stop_string *strings;
    uint32_t n_strings;
    uint32_t n_held; /* bytes that may begin a stop string */
    uint8_t held[STOP_STRING_BYTES_MAX];
    struct token_utf8 utf8;
};

/* The most text that one push of n_bytes can give out. */
size_t stop_text_room(size_t n_bytes);

/* Takes the bytes of one more token; writes to `out` what may be shown now (whole characters), at
 * most stop_text_room(n_bytes).  Returns the index of the stop string that is now complete (the
 * earliest in the text; of several at one place the first in the list), after which nothing more
 * is pushed, or -1.  `scratch` holds STOP_STRING_BYTES_MAX + n_bytes. */
int stop_text_push(struct stop_text *t, const uint8_t *bytes, size_t n_bytes, uint8_t *scratch,
                   uint8_t *out, size_t *out_n);

/* The output ends without a stop string: what was held back. */
size_t stop_text_end(struct stop_text *t, uint8_t *out);

#endif
