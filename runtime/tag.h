/* tag - whether bytes are those that were seen before, a dozen times faster than a SHA-256 says it.
 *
 * Owns:   nothing; keys and tags are the caller's.
 * Thread: any; a key is only read.
 * Fails:  tag_key_draw alone: -EIO, the system has no random bytes
 *
 * Two different texts of up to 2^32 bytes have the same tag with one key in 2^30 at most, however
 * they were chosen by whoever does not know the key.  Tags of one key alone can be compared.
 *
 * Blocks of 1 KiB, the last filled up with zeros, are brought to 128 bits by the sum of
 * (x[2i] + k[2i]) (x[2i+1] + k[2i+1]) over their 64-bit words; those, in 64-bit halves, and the length
 * are the coefficients of a polynomial, taken at a secret point modulo 2^61 - 1. */
#ifndef LLM42D_RUNTIME_TAG_H
#define LLM42D_RUNTIME_TAG_H

#include <stddef.h>
#include <stdint.h>

struct err;

enum { TAG_BLOCK_BYTES = 1024, TAG_WORDS = TAG_BLOCK_BYTES / 8 };

struct tag_key {
    uint64_t words[TAG_WORDS];
    uint64_t point; /* below 2^61 - 1 */
};

struct tag {
    uint64_t sum, n_bytes;
};

int tag_key_draw(struct tag_key *key, struct err *e);

/* A tag begins as zeros.  All pieces but the last are of whole blocks. */
void tag_add(struct tag *t, const struct tag_key *key, const void *bytes, size_t n_bytes);
uint64_t tag_end(struct tag *t, const struct tag_key *key);

#endif
