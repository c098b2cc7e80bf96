/* Tensors read ahead: the same values in the model's order, errors where they belong, and an end
 * at any time. */
#include "runtime/weights_ahead.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/err.h"
#include "runtime/model.h"
#include "runtime/model_tensor.h"
#include "runtime/weights.h"

static const char folder[] = "tests/data/verse-4m";

static struct model read_model(void) {
    struct err e = {{0}};
    struct model m;

    if (model_read(folder, &m, &e) < 0) fail_msg("%s", e.text);
    return m;
}

static void test_same_values(void **state) {
    uint8_t one[WEIGHTS_DIGEST_BYTES], other[WEIGHTS_DIGEST_BYTES];
    const struct model m = read_model();
    struct weights_ahead *a = NULL;
    struct weights *w, *again;
    struct model_tensor t;
    struct err e = {{0}};

    (void)state;
    assert_int_equal(weights_open(folder, false, &w, &e), 0);
    assert_int_equal(weights_open(folder, false, &again, &e), 0);
    assert_int_equal(weights_ahead_open(w, &m, &a, &e), 0);
    for (uint32_t i = 0; model_tensor_at(&m, i, &t); i++) {
        uint16_t *want = malloc(model_tensor_values(&t) * sizeof(*want));
        const uint16_t *values;

        assert_int_equal(weights_read(again, weights_find(again, t.name), want, &e), 0);
        assert_int_equal(weights_ahead_next(a, &values, &e), 0);
        assert_memory_equal(want, values, model_tensor_values(&t) * sizeof(*want));
        free(want);
    }
    weights_ahead_close(a);
    assert_int_equal(weights_digest(w, one, &e), 0);
    assert_int_equal(weights_digest(again, other, &e), 0);
    assert_memory_equal(one, other, sizeof(one));
    weights_close(w);
    weights_close(again);
}

/* Closed with tensors on their way, read, and not begun. */
static void test_closed_early(void **state) {
    const struct model m = read_model();
    struct weights *w;
    struct err e = {{0}};

    (void)state;
    assert_int_equal(weights_open(folder, false, &w, &e), 0);
    for (uint32_t n = 0; n < 30; n++) {
        struct weights_ahead *a = NULL;
        const uint16_t *values;

        assert_int_equal(weights_ahead_open(w, &m, &a, &e), 0);
        for (uint32_t i = 0; i < n; i++) assert_int_equal(weights_ahead_next(a, &values, &e), 0);
        weights_ahead_close(a);
    }
    weights_close(w);
}

/* More than may be read ahead: the threads wait for the caller, and it for them. */
static void test_more_than_fits(void **state) {
    const struct model m = {.n_layers = 9,
                            .hidden = 1024,
                            .intermediate = 4096,
                            .n_heads = 8,
                            .n_kv_heads = 8,
                            .head_dim = 128,
                            .vocab = 3000};
    struct weights_ahead *a = NULL;
    struct weights *w, *again;
    struct model_tensor t;
    struct err e = {{0}};

    (void)state;
    assert_int_equal(weights_make_up(&m, 3, &w, &e), 0);
    assert_int_equal(weights_make_up(&m, 3, &again, &e), 0);
    assert_true(weights_bytes(w) > 3 * (64 << 20));
    assert_int_equal(weights_ahead_open(w, &m, &a, &e), 0);
    for (uint32_t i = 0; model_tensor_at(&m, i, &t); i++) {
        const uint16_t *values;

        assert_int_equal(weights_ahead_next(a, &values, &e), 0);
        if (i % 9 == 5 || i % 40 == 8) {
            uint16_t *want = malloc(model_tensor_values(&t) * sizeof(*want));

            assert_int_equal(weights_read(again, weights_find(again, t.name), want, &e), 0);
            assert_memory_equal(want, values, model_tensor_values(&t) * sizeof(*want));
            free(want);
        }
    }
    weights_ahead_close(a);
    weights_close(w);
    weights_close(again);
}

/* The file ends before its last tensor does: those before it come, and the error names it. */
static void test_cut_short(void **state) {
    char copy[] = "/tmp/weights_ahead_test.XXXXXX", path[64], command[256];
    const struct model m = read_model();
    struct weights_ahead *a = NULL;
    const uint16_t *values;
    struct model_tensor t;
    struct weights *w;
    struct err e = {{0}};
    uint32_t n = 0;
    int r = 0;

    (void)state;
    assert_non_null(mkdtemp(copy));
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", copy);
    (void)snprintf(command, sizeof(command), "cp %s/model.safetensors %s", folder, path);
    assert_int_equal(system(command), 0);
    assert_int_equal(weights_open(copy, false, &w, &e), 0);
    assert_int_equal(truncate(path, 7348736 - 1000), 0);
    assert_int_equal(weights_ahead_open(w, &m, &a, &e), 0);
    for (; r == 0 && model_tensor_at(&m, n, &t); n++) r = weights_ahead_next(a, &values, &e);
    assert_int_equal(r, -EIO);
    assert_true(n > 1);
    assert_non_null(strstr(e.text, "model.safetensors"));
    weights_ahead_close(a);
    weights_close(w);
    (void)unlink(path);
    (void)rmdir(copy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_values),
        cmocka_unit_test(test_closed_early),
        cmocka_unit_test(test_more_than_fits),
        cmocka_unit_test(test_cut_short),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
