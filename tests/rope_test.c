/* Rotary tables against the C library's functions in more precision, at every kind of scaling. */
#include "runtime/rope.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "runtime/model.h"
#include "runtime/num.h"

static const struct {
    const char *why;
    struct model m;
} models[] = {
    {"verse-4m", {.head_dim = 64, .rope_theta = 1e4}},
    {"SmolLM2", {.head_dim = 64, .rope_theta = 1e5}},
    {"a head of 16", {.head_dim = 16, .rope_theta = 1e4}},
    {"not a power of two", {.head_dim = 80, .rope_theta = 5e5}},
    {"a large base", {.head_dim = 128, .rope_theta = 1e7}},
    {"linear", {.head_dim = 64, .rope_theta = 1e4, .rope = MODEL_ROPE_LINEAR, .rope_factor = 4.0}},
    {"Llama 3.1",
     {.head_dim = 128,
      .rope_theta = 5e5,
      .rope = MODEL_ROPE_LLAMA3,
      .rope_factor = 8.0,
      .rope_low_freq = 1.0,
      .rope_high_freq = 4.0,
      .rope_context_old = 8192}},
};
enum { N_MODELS = sizeof(models) / sizeof(models[0]) };

static float frequency(const struct model *m, uint32_t i) {
    long double f = powl((long double)m->rope_theta, -2.0L * i / m->head_dim);
    long double turns = (long double)m->rope_context_old * f / (2.0L * acosl(-1.0L));
    long double mix;

    if (m->rope == MODEL_ROPE_DEFAULT) return (float)f;
    if (m->rope == MODEL_ROPE_LINEAR) return (float)(f / (long double)m->rope_factor);
    if (turns > (long double)m->rope_high_freq) return (float)f;
    if (turns < (long double)m->rope_low_freq) return (float)(f / (long double)m->rope_factor);
    mix = (turns - (long double)m->rope_low_freq) /
          (long double)(m->rope_high_freq - m->rope_low_freq);
    return (float)((1.0L - mix) * f / (long double)m->rope_factor + mix * f);
}

static void test_frequencies(void **state) {
    (void)state;
    for (size_t j = 0; j < N_MODELS; j++)
        for (uint32_t i = 0; i < models[j].m.head_dim / 2; i++) {
            float got = rope_frequency(&models[j].m, i), want = frequency(&models[j].m, i);

            if (got != want)
                print_error("%s, %u: %a, not %a\n", models[j].why, i, (double)got, (double)want);
            assert_int_equal(num_bits(got), num_bits(want));
        }
}

/* Rounded once, from far more digits than bf16 has; a tie is not to be expected. */
static uint16_t rounded(long double x) {
    float f = (float)x;
    uint16_t down = (uint16_t)(num_bits(f) >> 16);
    long double low = (long double)num_from_bf16(down);
    long double high = (long double)num_from_bf16((uint16_t)(down + 1));

    if (low == x) return down;
    /* float may have rounded up to the next bf16. */
    if (fabsl(low) > fabsl(x)) return num_to_bf16(f);
    return fabsl(x - low) < fabsl(high - x) ? down : (uint16_t)(down + 1);
}

static void check(const struct model *m, uint32_t n_positions) {
    const uint32_t n = m->head_dim / 2;
    uint16_t *c = malloc((size_t)n_positions * n * sizeof(*c));
    uint16_t *s = malloc((size_t)n_positions * n * sizeof(*s));

    assert_true(c && s);
    rope_tables(m, n_positions, c, s);
    for (uint32_t p = 0; p < n_positions; p += p < 5000 ? 1 : 997)
        for (uint32_t i = 0; i < n; i++) {
            long double angle = (long double)((float)p * rope_frequency(m, i));

            assert_int_equal(c[(size_t)p * n + i], rounded(cosl(angle)));
            assert_int_equal(s[(size_t)p * n + i], rounded(sinl(angle)));
        }
    free(c);
    free(s);
}

static void test_tables(void **state) {
    (void)state;
    for (size_t j = 0; j < N_MODELS; j++) check(&models[j].m, 6000);
}

static void test_long(void **state) {
    (void)state;
    check(&models[2].m, MODEL_CONTEXT_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_long),
    };

    return cmocka_run_group_tests_name("rope", tests, NULL, NULL);
}
