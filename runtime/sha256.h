/* sha256 - SHA-256 of bytes that come in pieces.
 *
 * Owns:   its state, until close.
 * Thread: any one at a time.
 * Fails:  open alone, by NULL: no memory.
 *
 * Only open allocates, so the engine may use the others after READY=1. */
#ifndef LLM42D_RUNTIME_SHA256_H
#define LLM42D_RUNTIME_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256;

enum {
    SHA256_BYTES = 32,
    SHA256_HEX_BYTES = 2 * SHA256_BYTES + 1, /* with the final zero */
};

struct sha256 *sha256_open(void);
void sha256_close(struct sha256 *s); /* NULL is fine */

/* A new digest: start, add as often as needed, end.  start may come at any time and forgets what
 * was added before. */
void sha256_start(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *bytes, size_t n_bytes);
void sha256_end(struct sha256 *s, uint8_t out_digest[SHA256_BYTES]);

/* All in one. */
void sha256_of(const void *bytes, size_t n_bytes, uint8_t out_digest[SHA256_BYTES]);

/* Lower-case hexadecimal, zero-terminated. */
void sha256_hex(const uint8_t digest[SHA256_BYTES], char out_text[SHA256_HEX_BYTES]);

#endif
