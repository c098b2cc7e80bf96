/* Fuzz target: a tokenizer.json, and texts.  The first byte chooses: an odd one reads the rest as a
 * file, and uses it if it opens; an even one encodes the rest with one of the families.
 *
 *   clang -fsanitize=fuzzer,address,undefined ... tests/token_fuzz.c, run from the root. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/token.h"
#include "runtime/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

enum { IDS_MAX = 1 << 14 };

static void push(const struct token *t, const uint32_t *ids, int64_t n_ids) {
    struct token_utf8 u = {0};

    for (int64_t i = 0; i < n_ids; i++) {
        uint32_t n_bytes = 0;
        bool special;
        const uint8_t *bytes = token_bytes(t, ids[i], &n_bytes, &special);
        uint8_t *out;
        size_t n_out;

        ASSERT(bytes && n_bytes <= token_bytes_max(t));
        out = malloc((size_t)n_bytes * 3 + 12);
        ASSERT(out);
        n_out = token_utf8_push(&u, bytes, n_bytes, i + 1 == n_ids, out);
        ASSERT(unicode_check(out, n_out) == n_out);
        free(out);
    }
}

static void use(const struct token *t, const uint8_t *text, size_t n_bytes, unsigned flags) {
    uint32_t *ids = malloc(IDS_MAX * sizeof(*ids));
    int64_t n;

    ASSERT(ids);
    n = token_encode(t, (const char *)text, n_bytes, flags, ids, IDS_MAX, NULL);
    ASSERT(n >= 0 || n == -EINVAL || n == -EMSGSIZE);
    ASSERT((n == -EINVAL) == (unicode_check(text, n_bytes) < n_bytes));
    if (n > 0) push(t, ids, n);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static const char *const names[] = {"gpt2", "smollm", "llama3", "qwen2"};
    static struct token *families[4];
    struct token *t = NULL;

    for (size_t i = 0; i < 4 && !families[i]; i++) {
        char path[64];

        (void)snprintf(path, sizeof(path), "tests/data/token/%s.json", names[i]);
        ASSERT(token_open(path, &families[i], NULL) == 0);
    }
    if (n_bytes == 0) return 0;
    if (data[0] % 2 == 0) {
        use(families[data[0] / 2 % 4], data + 1, n_bytes - 1, data[0] / 8 % 4u);
        return 0;
    }
    if (token_open_text("file", (const char *)data + 1, n_bytes - 1, &t, NULL) == 0)
        use(t, data, n_bytes, TOKEN_ENCODE_TEMPLATE | TOKEN_ENCODE_SPECIAL);
    token_close(t);
    return 0;
}
