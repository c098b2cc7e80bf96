/* SHA-256: the examples of FIPS 180-4, pieces against the whole, and that a context in use
 * allocates nothing. */
#include "runtime/sha256.h"

#include <openssl/crypto.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static unsigned n_allocated; /* by libcrypto */

static void *count_malloc(size_t n_bytes, const char *file, int line) {
    (void)file;
    (void)line;
    n_allocated++;
    return malloc(n_bytes);
}

static void *count_realloc(void *p, size_t n_bytes, const char *file, int line) {
    (void)file;
    (void)line;
    n_allocated++;
    return realloc(p, n_bytes);
}

static void count_free(void *p, const char *file, int line) {
    (void)file;
    (void)line;
    free(p);
}

static void test_known(void **state) {
    static const struct {
        const char *why, *text, *want;
    } cases[] = {
        {"empty", "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"one block", "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"the length spills into a second block",
         "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    uint8_t digest[SHA256_BYTES];
    char hex[SHA256_HEX_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        sha256_of(cases[i].text, strlen(cases[i].text), digest);
        sha256_hex(digest, hex);
        if (strcmp(hex, cases[i].want)) print_error("%s: got %s\n", cases[i].why, hex);
        assert_string_equal(hex, cases[i].want);
    }
}

static void test_pieces(void **state) {
    enum { N_BYTES = 300 };
    uint8_t bytes[N_BYTES], want[SHA256_BYTES], got[SHA256_BYTES];
    struct sha256 *s = sha256_open();

    (void)state;
    assert_non_null(s);
    for (int i = 0; i < N_BYTES; i++) bytes[i] = (uint8_t)(i * 7);
    sha256_of(bytes, N_BYTES, want);
    for (size_t cut = 0; cut <= N_BYTES; cut++) {
        sha256_start(s);
        sha256_add(s, bytes, cut);
        sha256_add(s, bytes + cut, N_BYTES - cut);
        sha256_end(s, got);
        assert_memory_equal(got, want, SHA256_BYTES);
    }
    /* What was added and never ended is forgotten. */
    sha256_start(s);
    sha256_add(s, bytes, 10);
    sha256_start(s);
    sha256_add(s, bytes, N_BYTES);
    sha256_end(s, got);
    assert_memory_equal(got, want, SHA256_BYTES);
    sha256_close(s);
    sha256_close(NULL);
}

static void test_no_allocation(void **state) {
    struct sha256 *s = sha256_open();
    uint8_t digest[SHA256_BYTES] = {0};
    unsigned before;

    (void)state;
    assert_non_null(s);
    OPENSSL_free(OPENSSL_malloc(1));
    assert_true(n_allocated > 0); /* the counter is in place */
    before = n_allocated;
    for (int i = 0; i < 100; i++) {
        sha256_start(s);
        sha256_add(s, digest, (size_t)i % SHA256_BYTES);
        sha256_end(s, digest);
    }
    assert_int_equal(n_allocated, before);
    sha256_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_no_allocation),
    };

    /* Before libcrypto allocates anything, or it refuses. */
    if (!CRYPTO_set_mem_functions(count_malloc, count_realloc, count_free)) return 1;
    return cmocka_run_group_tests_name("sha256", tests, NULL, NULL);
}
