#include "runtime/tag.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "runtime/assert.h"
#include "runtime/err.h"

typedef unsigned __int128 wide;

static const uint64_t prime = ((uint64_t)1 << 61) - 1;

int tag_key_draw(struct tag_key *key, struct err *e) {
    char *to = (char *)key;

    /* In pieces that no signal cuts short. */
    for (size_t off = 0, n; off < sizeof(*key); off += n) {
        n = sizeof(*key) - off < 256 ? sizeof(*key) - off : 256;
        if (getrandom(to + off, n, 0) != (ssize_t)n)
            return err_set(e, -EIO, "no random bytes: %s", strerror(errno));
    }
    key->point %= prime;
    return 0;
}

/* a b modulo the prime, of numbers below it. */
static uint64_t times(uint64_t a, uint64_t b) {
    const wide x = (wide)a * b;
    const uint64_t sum = ((uint64_t)x & prime) + (uint64_t)(x >> 61);

    return sum >= prime ? sum - prime : sum;
}

static void put(struct tag *t, const struct tag_key *key, uint64_t x) {
    const uint64_t sum = times(t->sum, key->point) + x % prime;

    t->sum = sum >= prime ? sum - prime : sum;
}

static void add_block(struct tag *t, const struct tag_key *key, const char *bytes) {
    wide sum = 0;

    for (int i = 0; i < TAG_WORDS; i += 2) {
        uint64_t x[2];

        memcpy(x, bytes + (size_t)i * sizeof(x[0]), sizeof(x));
        sum += (wide)(x[0] + key->words[i]) * (x[1] + key->words[i + 1]);
    }
    put(t, key, (uint64_t)sum);
    put(t, key, (uint64_t)(sum >> 64));
}

void tag_add(struct tag *t, const struct tag_key *key, const void *bytes, size_t n_bytes) {
    const char *from = bytes;

    ASSERT(t->n_bytes % TAG_BLOCK_BYTES == 0 || n_bytes == 0);
    t->n_bytes += n_bytes;
    for (; n_bytes >= TAG_BLOCK_BYTES; n_bytes -= TAG_BLOCK_BYTES, from += TAG_BLOCK_BYTES)
        add_block(t, key, from);
    if (n_bytes > 0) {
        char last[TAG_BLOCK_BYTES] = {0};

        memcpy(last, from, n_bytes);
        add_block(t, key, last);
    }
}

uint64_t tag_end(struct tag *t, const struct tag_key *key) {
    put(t, key, t->n_bytes);
    return t->sum;
}
