/* Any bytes as a settings file: an answer, an error for each refusal, no leak. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/config.h"
#include "runtime/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    char *text = NULL;
    size_t n_text = 0;
    FILE *errors = open_memstream(&text, &n_text);
    struct config c;

    if (!errors) return 0;
    unsigned n = config_load_text("f", (const char *)data, n_bytes, &c, errors);
    (void)fclose(errors);
    ASSERT((n == 0) == (n_text == 0));
    if (n == 0) config_free(&c);
    free(text);
    return 0;
}
