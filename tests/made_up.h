/* Made-up weights as a safetensors folder of a test's own, in which the order of sums shows.
 * Random words come from the includer's next(). */
#ifndef LLM42D_TESTS_MADE_UP_H
#define LLM42D_TESTS_MADE_UP_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/err.h"
#include "runtime/model.h"
#include "runtime/model_tensor.h"
#include "runtime/num.h"
#include "runtime/weights.h"

static uint32_t next(void);

enum { MADE_UP_TENSORS_MAX = 64, MADE_UP_HEADER_BYTES = 16384 };

/* What the embedding has that no sum is well with. */
enum made_up_broken {
    MADE_UP_WHOLE,
    MADE_UP_LAST,     /* the last token's: a NaN and an infinity */
    MADE_UP_LAST_TWO, /* the last but one's a NaN, the last one's an infinity */
};

static void made_up_must(bool holds, const char *what) {
    if (holds) return;
    printf("made-up weights: %s\n", what);
    exit(1);
}

static size_t made_up_list(const struct model *m, struct model_tensor list[MADE_UP_TENSORS_MAX]) {
    size_t n = 0;

    while (model_tensor_at(m, (uint32_t)n, &list[n]))
        made_up_must(++n < MADE_UP_TENSORS_MAX, "too many tensors");
    return n;
}

/* Now and then one value far above its neighbours. */
static uint16_t made_up_value(const struct model_tensor *t) {
    const uint32_t r = next();
    float x = ((float)(r >> 8) * 0x1p-24f - 0.5f) * 2.0f;

    if (t->n == 0) return num_to_bf16(1.0f + 0.25f * x);
    if (r % 97 == 0) x *= 16.0f;
    return num_to_bf16(x * 2.0f / sqrtf((float)t->n_k));
}

static void made_up_values(FILE *f, const struct model_tensor *t, enum made_up_broken broken) {
    const size_t n = (size_t)model_tensor_values(t);
    uint16_t *values = malloc(n * sizeof(*values));

    made_up_must(values, "no memory");
    for (size_t i = 0; i < n; i++) values[i] = made_up_value(t);
    if (broken != MADE_UP_WHOLE && strstr(t->name, "embed_tokens")) {
        values[broken == MADE_UP_LAST ? n - 2 : n - t->n_k - 1] = 0x7fc0;
        values[n - 1] = 0xff80;
    }
    made_up_must(fwrite(values, sizeof(*values), n, f) == n, "cannot write");
    free(values);
}

static void made_up_folder(const char *folder, const struct model_tensor *list, size_t n,
                           enum made_up_broken broken) {
    static char header[MADE_UP_HEADER_BYTES];
    size_t used = 8, at = 0;
    uint64_t header_bytes;
    char path[128];
    FILE *f;

    used += (size_t)snprintf(header + used, sizeof(header) - used, "{");
    for (size_t i = 0; i < n; i++) {
        const size_t n_bytes = (size_t)model_tensor_values(&list[i]) * sizeof(uint16_t);
        char shape[32];

        if (list[i].n)
            snprintf(shape, sizeof(shape), "[%u,%u]", list[i].n, list[i].n_k);
        else
            snprintf(shape, sizeof(shape), "[%u]", list[i].n_k);
        used += (size_t)snprintf(
            header + used, sizeof(header) - used,
            "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", i ? "," : "",
            list[i].name, shape, at, at + n_bytes);
        made_up_must(used < sizeof(header) - 16, "the header is too long");
        at += n_bytes;
    }
    used += (size_t)snprintf(header + used, sizeof(header) - used, "}");
    while (used % 8) header[used++] = ' ';
    header_bytes = used - 8;
    memcpy(header, &header_bytes, 8);
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    f = fopen(path, "wb");
    made_up_must(f, "cannot open the file");
    made_up_must(fwrite(header, 1, used, f) == used, "cannot write");
    for (size_t i = 0; i < n; i++) made_up_values(f, &list[i], broken);
    made_up_must(fclose(f) == 0, "cannot write");
}

static struct weights *made_up_weights(const char *folder, const struct model *m,
                                       enum made_up_broken broken) {
    static struct model_tensor list[MADE_UP_TENSORS_MAX];
    struct weights *w = NULL;
    struct err e = {""};

    made_up_folder(folder, list, made_up_list(m, list), broken);
    made_up_must(weights_open(folder, false, &w, &e) == 0, e.text);
    return w;
}

#endif
