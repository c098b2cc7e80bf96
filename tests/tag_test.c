/* Tags: as the formula says, word by word and without tricks; another for every change of a bit, a
 * length or a key; the same however the bytes come in pieces. */
#include "runtime/tag.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/err.h"
#include "runtime/num.h"

enum { N_MAX = 5 * TAG_BLOCK_BYTES };

static uint64_t tag_of(const struct tag_key *key, const void *bytes, size_t n_bytes) {
    struct tag t = {0};

    tag_add(&t, key, bytes, n_bytes);
    return tag_end(&t, key);
}

static struct tag_key draw(void) {
    struct tag_key key;
    struct err e = {{0}};

    if (tag_key_draw(&key, &e) < 0) fail_msg("%s", e.text);
    assert_true(key.point < ((uint64_t)1 << 61) - 1);
    return key;
}

static void fill(uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)num_random(3, 0, (unsigned)i);
}

/* a b modulo the prime by doubling: no product of two words. */
static uint64_t slow_times(uint64_t a, uint64_t b) {
    const uint64_t prime = ((uint64_t)1 << 61) - 1;
    uint64_t r = 0;

    for (; b; b /= 2) {
        if (b % 2) r = (r + a) % prime;
        a = 2 * a % prime;
    }
    return r;
}

static uint64_t slow_tag(const struct tag_key *key, const uint8_t *bytes, size_t n_bytes) {
    const uint64_t prime = ((uint64_t)1 << 61) - 1;
    uint64_t sum = 0;

    for (size_t at = 0; at < n_bytes; at += TAG_BLOCK_BYTES) {
        uint64_t words[TAG_WORDS] = {0}, halves[2] = {0};
        const size_t n = n_bytes - at < TAG_BLOCK_BYTES ? n_bytes - at : TAG_BLOCK_BYTES;

        for (size_t i = 0; i < n; i++) words[i / 8] |= (uint64_t)bytes[at + i] << i % 8 * 8;
        for (size_t i = 0; i < TAG_WORDS; i += 2) {
            const uint64_t a = words[i] + key->words[i], b = words[i + 1] + key->words[i + 1];

            for (int bit = 0; bit < 64; bit++) {
                const uint64_t low = a << bit, high = bit ? a >> (64 - bit) : 0;

                if (!(b >> bit & 1)) continue;
                halves[1] += high + (halves[0] + low < low);
                halves[0] += low;
            }
        }
        for (int i = 0; i < 2; i++) sum = (slow_times(sum, key->point) + halves[i] % prime) % prime;
    }
    return (slow_times(sum, key->point) + n_bytes % prime) % prime;
}

static void test_formula(void **state) {
    static const size_t lengths[] = {0, 1, 8, 15, 16, 1023, 1024, 1025, 3000, N_MAX};
    uint8_t bytes[N_MAX];

    (void)state;
    fill(bytes, sizeof(bytes));
    for (int round = 0; round < 20; round++) {
        const struct tag_key key = draw();

        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            const uint64_t got = tag_of(&key, bytes, lengths[i]);
            const uint64_t want = slow_tag(&key, bytes, lengths[i]);

            if (got != want)
                fail_msg("%zu bytes: %llx, not %llx", lengths[i], (unsigned long long)got,
                         (unsigned long long)want);
        }
        memset(bytes, round % 2 ? 0xff : round, sizeof(bytes));
    }
}

static void test_changes(void **state) {
    const struct tag_key key = draw(), other = draw();
    uint8_t bytes[N_MAX];
    uint64_t want;

    (void)state;
    fill(bytes, sizeof(bytes));
    want = tag_of(&key, bytes, sizeof(bytes));
    assert_true(want == tag_of(&key, bytes, sizeof(bytes)));
    assert_true(want != tag_of(&other, bytes, sizeof(bytes)));
    for (size_t bit = 0; bit < 8 * sizeof(bytes); bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_true(want != tag_of(&key, bytes, sizeof(bytes)));
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    /* Zeros that fill a block up are not zeros of the text; blocks are not swapped. */
    memset(bytes, 0, sizeof(bytes));
    for (size_t n = 0; n < sizeof(bytes); n++)
        assert_true(tag_of(&key, bytes, n) != tag_of(&key, bytes, n + 1));
    bytes[0] = 1;
    want = tag_of(&key, bytes, 2 * TAG_BLOCK_BYTES);
    bytes[0] = 0;
    bytes[TAG_BLOCK_BYTES] = 1;
    assert_true(want != tag_of(&key, bytes, 2 * TAG_BLOCK_BYTES));
}

static void test_pieces(void **state) {
    const struct tag_key key = draw();
    uint8_t bytes[N_MAX];
    uint64_t want;

    (void)state;
    fill(bytes, sizeof(bytes));
    want = tag_of(&key, bytes, N_MAX - 5);
    for (size_t cut = 0; cut < N_MAX; cut += TAG_BLOCK_BYTES) {
        struct tag t = {0};

        tag_add(&t, &key, bytes, cut);
        tag_add(&t, &key, bytes + cut, N_MAX - 5 - cut);
        assert_true(tag_end(&t, &key) == want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula),
        cmocka_unit_test(test_changes),
        cmocka_unit_test(test_pieces),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
