#include "runtime/sha256.h"

/* The EVP calls take new memory at every start (OpenSSL 3.0), which the engine may not do after
 * READY=1.  These older ones never do, run the same assembly, and are only called deprecated. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>
#include <stdlib.h>

#include "runtime/assert.h"

_Static_assert(SHA256_BYTES == SHA256_DIGEST_LENGTH, "the digest is written into our array");

struct sha256 {
    SHA256_CTX context;
};

struct sha256 *sha256_open(void) {
    struct sha256 *s = malloc(sizeof(*s));

    if (s) sha256_start(s);
    return s;
}

void sha256_close(struct sha256 *s) {
    free(s);
}

void sha256_start(struct sha256 *s) {
    int ok = SHA256_Init(&s->context);

    ASSERT(ok);
}

void sha256_add(struct sha256 *s, const void *bytes, size_t n_bytes) {
    int ok = SHA256_Update(&s->context, bytes, n_bytes);

    ASSERT(ok);
}

void sha256_end(struct sha256 *s, uint8_t out_digest[SHA256_BYTES]) {
    int ok = SHA256_Final(out_digest, &s->context);

    ASSERT(ok);
}

void sha256_of(const void *bytes, size_t n_bytes, uint8_t out_digest[SHA256_BYTES]) {
    struct sha256 s;

    sha256_start(&s);
    sha256_add(&s, bytes, n_bytes);
    sha256_end(&s, out_digest);
}

void sha256_hex(const uint8_t digest[SHA256_BYTES], char out_text[SHA256_HEX_BYTES]) {
    static const char digits[] = "0123456789abcdef";

    for (int i = 0; i < SHA256_BYTES; i++) {
        out_text[2 * i] = digits[digest[i] >> 4];
        out_text[2 * i + 1] = digits[digest[i] & 15];
    }
    out_text[2 * SHA256_BYTES] = '\0';
}
