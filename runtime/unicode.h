/* unicode - UTF-8, the three classes that splitters ask for, and NFC.
 *
 * Owns:   nothing; the tables are constants of one pinned Unicode version.
 * Thread: any.
 * Fails:  -ENOMEM, from unicode_nfc alone.
 *
 * An operating system's library would follow its own Unicode version, and an upgrade would change
 * token ids.  These tables change only with our source. */
#ifndef LLM42D_RUNTIME_UNICODE_H
#define LLM42D_RUNTIME_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum unicode_class {
    UNICODE_OTHER,
    UNICODE_LETTER, /* \p{L} */
    UNICODE_NUMBER, /* \p{N} */
    UNICODE_SPACE,  /* White_Space, which is \s */
};

/* As "15.0.0". */
const char *unicode_version(void);
/* `code` is at most 0x10ffff. */
enum unicode_class unicode_class(uint32_t code);

/* How many bytes of `text` are whole, well-formed UTF-8: n_bytes if all are. */
size_t unicode_check(const uint8_t *text, size_t n_bytes);
/* Whether `byte` may follow held[0 .. n_held - 1], which is the start of a character of
 * unicode_length(held[0]) bytes. */
bool unicode_follows(const uint8_t *held, uint32_t n_held, uint8_t byte);
/* The bytes of the character that begins with `byte`; 0 if none does. */
uint32_t unicode_length(uint8_t byte);
/* The character at the start of well-formed UTF-8, and its length. */
uint32_t unicode_read(const uint8_t *text, uint32_t *out_n_bytes);
/* Writes 1 to 4 bytes. */
uint32_t unicode_write(uint32_t code, uint8_t *out);

/* Normalisation form C of well-formed UTF-8.  *out_text is NULL if the text is already in it,
 * else allocated: the caller frees it.  Near linear, whatever the text. */
int unicode_nfc(const uint8_t *text, size_t n_bytes, uint8_t **out_text, size_t *out_n_bytes);

#endif
