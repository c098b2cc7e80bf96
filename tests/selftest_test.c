/* The start-up self-test: the twin gives the digests that are part of the program, with and
 * without vector instructions, so they are the contract's; and other bits are noticed. */
#include "runtime/selftest.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/device.h"
#include "runtime/device_fault.h"
#include "runtime/err.h"
#include "runtime/model.h"
#include "runtime/num.h"
#include "runtime/weights.h"

static struct device *open_twin(bool portable) {
    const struct device_cpu_options options = {.n_threads = 2, .portable = portable};
    struct err e = {{0}};
    struct device *dev;

    assert_int_equal(device_cpu_open(&options, &dev, &e), 0);
    return dev;
}

static void test_builtin(void **state) {
    struct device *dev = open_twin(false);
    struct err e = {{0}};

    (void)state;
    assert_non_null(selftest_name(3));
    if (selftest_builtin(dev, UINT32_MAX, &e) < 0) fail_msg("%s", e.text);
    dev->ops->close(dev);

    dev = open_twin(true);
    if (selftest_builtin(dev, 1, &e) < 0) fail_msg("%s", e.text);
    dev->ops->close(dev);
}

static bool flag(void *context, const struct device_want *want, uint32_t position) {
    (void)context;
    (void)want;
    return position == 21;
}

/* One choice of one model is another. */
static void test_builtin_notices(void **state) {
    const struct device_fault_rules rules = {.numeric = flag};
    struct device *dev = open_twin(false), *faulty;
    struct err e = {{0}};

    (void)state;
    assert_int_equal(device_fault_open(dev, &rules, &faulty, &e), 0);
    assert_int_equal(selftest_builtin(faulty, UINT32_MAX, &e), -EPROTO);
    assert_non_null(strstr(e.text, "the contract's is"));
    faulty->ops->close(faulty);
}

static const struct model model = {.n_layers = 3,
                                   .hidden = 64,
                                   .intermediate = 96,
                                   .n_heads = 4,
                                   .n_kv_heads = 2,
                                   .head_dim = 16,
                                   .vocab = 300,
                                   .rms_eps = 1e-5f,
                                   .rope_theta = 1e4};
static const struct device_limits limits = {.n_rows = 32,
                                            .n_seqs = 3,
                                            .n_pages = 5,
                                            .n_seq_pages = 2,
                                            .n_wants = 32,
                                            .n_logit_rows = 8,
                                            .n_positions = 100};

/* A device that has the weights of one seed against a twin with those of another. */
static int compared(uint64_t seed, uint64_t twin_seed, const struct device_limits *l,
                    struct err *e) {
    struct weights *w = NULL, *twin_w = NULL;
    struct device *dev = open_twin(false);
    int r;

    assert_int_equal(weights_make_up(&model, seed, &w, e), 0);
    assert_int_equal(weights_make_up(&model, twin_seed, &twin_w, e), 0);
    assert_int_equal(dev->ops->load(dev, &model, w, l, e), 0);
    r = selftest_model(dev, &model, twin_w, l, 2, e);
    weights_close(w);
    weights_close(twin_w);
    dev->ops->close(dev);
    return r;
}

static void test_model(void **state) {
    struct device_limits small = {1, 1, 1, 1, 1, 1, 1}, one_want = limits, one_logit = limits;
    struct err e = {{0}};

    (void)state;
    if (compared(7, 7, &limits, &e) < 0) fail_msg("%s", e.text);
    if (compared(7, 7, &small, &e) < 0) fail_msg("%s", e.text);
    one_want.n_wants = one_logit.n_logit_rows = 1;
    if (compared(7, 7, &one_want, &e) < 0) fail_msg("%s", e.text);
    if (compared(7, 7, &one_logit, &e) < 0) fail_msg("%s", e.text);
    assert_int_equal(compared(7, 8, &limits, &e), -EPROTO);
    assert_non_null(strstr(e.text, "residual stream, row 0, value 0"));
}

/* Loaded again, a device computes as one that was never loaded before. */
static void test_load_again(void **state) {
    uint8_t first[SHA256_BYTES], again[SHA256_BYTES];
    struct device *dev = open_twin(false);
    struct err e = {{0}};

    (void)state;
    assert_int_equal(selftest_digest(dev, 3, first, &e), 0);
    assert_int_equal(selftest_digest(dev, 0, again, &e), 0);
    assert_int_equal(selftest_digest(dev, 3, again, &e), 0);
    assert_memory_equal(first, again, sizeof(first));
    dev->ops->close(dev);
}

/* SPEC 4.5, by its words. */
static void test_made_up(void **state) {
    const struct weights_tensor *t;
    struct weights_rule rule;
    struct weights *w = NULL;
    uint16_t values[64 * 96];
    uint8_t digest[WEIGHTS_DIGEST_BYTES], other[WEIGHTS_DIGEST_BYTES];
    struct err e = {{0}};

    (void)state;
    assert_int_equal(weights_make_up(&model, 5, &w, &e), 0);
    t = weights_find(w, "model.layers.1.mlp.down_proj.weight");
    assert_non_null(t);
    assert_true(weights_rule_of(w, t, &rule));
    assert_int_equal(rule.tensor, 1 * 9 + 8);
    assert_int_equal(t->shape[0], 64);
    assert_int_equal(t->shape[1], 96);
    assert_int_equal(weights_read(w, t, values, &e), 0);
    for (uint32_t i = 0; i < 64 * 96; i += 613) {
        const unsigned word = num_random(5, 17, i);
        const float u = (float)(word >> 8) * 0x1p-23f - 1.0f;

        assert_int_equal(values[i], num_to_bf16(1.7f / sqrtf(96.0f) * u));
    }
    assert_int_equal(weights_digest(w, digest, &e), 0);
    sha256_of("llm42 made-up weights v1 5", 26, other);
    assert_memory_equal(digest, other, sizeof(digest));
    weights_close(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_builtin), cmocka_unit_test(test_builtin_notices),
        cmocka_unit_test(test_model),   cmocka_unit_test(test_load_again),
        cmocka_unit_test(test_made_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
