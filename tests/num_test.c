/* num.h against long double: rounding to bf16 at every halfway case, the bounds of the errors
 * that its comments claim, what is exact, and what becomes of NaN, infinities and zeros. */
#include "runtime/num.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

_Static_assert(LDBL_MANT_DIG >= 64, "the references need more than binary64");

static unsigned long n_values;

/* The distance of `got` from `want` in units in the last place of binary32 at `want`. */
static double ulps(float got, long double want) {
    int exponent;

    n_values++;
    frexpl(want, &exponent);
    if (exponent < -125) exponent = -125;
    return (double)fabsl(ldexpl((long double)got - want, 24 - exponent));
}

static double relative(float got, long double want) {
    n_values++;
    return (double)fabsl(((long double)got - want) / want);
}

/* The bf16 nearest to a positive finite x, by distance alone. */
static unsigned nearest_bf16(float x) {
    unsigned low = num_bits(x) >> 16, high = low + 1;
    /* Where the next one is infinity, rounding sees 2^128 there. */
    double above = high == 0x7f80 ? 0x1p128 : (double)num_from_bf16((unsigned short)high);
    double to_low = (double)x - (double)num_from_bf16((unsigned short)low);
    double to_high = above - (double)x;

    if (to_low != to_high) return to_low < to_high ? low : high;
    return low & 1 ? high : low;
}

static void test_bf16(void **state) {
    static const unsigned lows[] = {0,      1,      2,      0x3fff, 0x7ffe, 0x7fff,
                                    0x8000, 0x8001, 0x8002, 0xc000, 0xfffe, 0xffff};

    (void)state;
    for (unsigned high = 0; high < 0x8000; high++)
        for (size_t i = 0; i < sizeof(lows) / sizeof(lows[0]); i++) {
            unsigned bits = high << 16 | lows[i];
            unsigned want = bits > 0x7f800000    ? 0x7fff
                            : bits == 0x7f800000 ? 0x7f80
                                                 : nearest_bf16(num_from_bits(bits));
            unsigned minus = bits > 0x7f800000 ? 0x7fff : want | 0x8000;

            if (num_to_bf16(num_from_bits(bits)) != want ||
                num_to_bf16(num_from_bits(bits | 0x80000000u)) != minus)
                fail_msg("bits %08x: %04x, want %04x", bits, num_to_bf16(num_from_bits(bits)),
                         want);
            n_values += 2;
        }
    for (unsigned high = 0; high < 0x10000; high++) { /* there and back */
        unsigned short x = (unsigned short)high;

        if ((x & 0x7fff) > 0x7f80) continue;
        assert_int_equal(num_to_bf16(num_from_bf16(x)), x);
    }
}

static void test_exp2(void **state) {
    double worst = 0.0;

    (void)state;
    for (unsigned bits = 0; bits < 0x43160000; bits += 251) { /* to 150 */
        float x = num_from_bits(bits);
        double error = ulps(num_exp2(-x), exp2l(-(long double)x));

        if (error > worst) worst = error;
        assert_true(num_exp2(-x) <= 1.0f); /* the weights of SPEC 2.11 rely on it */
        if (x <= 125.0f) assert_int_equal(num_bits(num_exp2_plain(-x)), num_bits(num_exp2(-x)));
        if (x <= 100.0f) assert_int_equal(num_bits(num_exp2_plain(x)), num_bits(num_exp2(x)));
        if (x >= 128.0f) continue;
        error = ulps(num_exp2(x), exp2l((long double)x));
        if (error > worst) worst = error;
    }
    print_message("exp2: within %.3f units\n", worst);
    assert_true(worst < 2.0);

    for (int n = -149; n < 128; n++) assert_true(num_exp2((float)n) == ldexpf(1.0f, n));
    assert_int_equal(num_bits(num_exp2(-0.0f)), 0x3f800000);
    assert_int_equal(num_bits(num_exp2(-150.0f)), 0);
    assert_int_equal(num_bits(num_exp2(-NUM_INFINITY)), 0);
    assert_int_equal(num_bits(num_exp2(-0x1.fffffep+127f)), 0);
    assert_int_equal(num_bits(num_exp2(128.0f)), 0x7f800000);
    assert_int_equal(num_bits(num_exp2(NUM_INFINITY)), 0x7f800000);
    assert_int_equal(num_bits(num_exp2(num_from_bits(0xffc12345))), 0x7fffffff);
    assert_true(isfinite(num_exp2(0x1.fffffep+6f)));
}

static void test_log2(void **state) {
    double worst = 0.0;

    (void)state;
    for (unsigned bits = 1; bits < 0x7f800000; bits += 509) {
        float x = num_from_bits(bits);
        double error = ulps(num_log2(x), log2l((long double)x));

        if (error > worst) worst = error;
    }
    for (unsigned bits = 0x3f7f0000; bits < 0x3f810000; bits++) { /* around 1, where it is 0 */
        float x = num_from_bits(bits);
        double error = bits == 0x3f800000 ? 0.0 : ulps(num_log2(x), log2l((long double)x));

        if (error > worst) worst = error;
    }
    print_message("log2: within %.3f units\n", worst);
    assert_true(worst < 4.0);

    for (int n = -149; n < 128; n++) assert_true(num_log2(ldexpf(1.0f, n)) == (float)n);
    assert_int_equal(num_bits(num_log2(1.0f)), 0);
    assert_int_equal(num_bits(num_log2(0.0f)), 0xff800000);
    assert_int_equal(num_bits(num_log2(-0.0f)), 0xff800000);
    assert_int_equal(num_bits(num_log2(NUM_INFINITY)), 0x7f800000);
    assert_int_equal(num_bits(num_log2(-1.0f)), 0x7fffffff);
    assert_int_equal(num_bits(num_log2(-NUM_INFINITY)), 0x7fffffff);
    assert_int_equal(num_bits(num_log2(num_from_bits(0x7f800001))), 0x7fffffff);
}

static long double exponential(uint32_t bits) {
    long double v = ((long double)bits + 0.5L) * 0x1p-32L;

    return -log1pl(-v) / 0.693147180559945309417232121458176568L;
}

static void test_exponential(void **state) {
    double worst = 0.0;
    float last = 0.0f;

    (void)state;
    /* Both ends and the border between its two series densely, the rest in steps. */
    for (uint64_t at = 0; at < 1ull << 32;) {
        uint32_t bits = (uint32_t)at;
        float e = num_exponential(bits);
        double error = relative(e, exponential(bits));

        if (error > worst) worst = error;
        assert_true(e > 0.0f && isfinite(e));
        /* It may dip by its rounding, no more. */
        assert_true((double)e > (double)last * (1.0 - 0x1p-21));
        last = e;
        at += at < 70000 || (at > 0x3fff0000 && at < 0x40010000) || at > 0xffff0000 ? 1 : 1021;
    }
    print_message("exponential: relative error %.3g * 2^-23\n", worst * 0x1p23);
    assert_true(worst < 0x1p-20);
    assert_true(relative(num_exponential(0x3fffffff), (long double)num_exponential(0x40000000)) <
                0x1p-21);
    assert_true(num_exponential(UINT32_MAX) == 33.0f); /* 1 - v is 2^-33 */
}

static void test_silu(void **state) {
    double worst = 0.0;

    (void)state;
    for (unsigned bits = 0; bits < 0x42a00000; bits += 65521) /* to 80 */
        for (int sign = -1; sign <= 1; sign += 2) {
            float x = (float)sign * num_from_bits(bits);
            long double want = (long double)x / (1.0L + expl(-(long double)x));
            double error = ulps(num_silu(x), want);

            /* The exponent of 2 carries half a unit of 80 log2 e, which is 46 units of 2^x. */
            if (error > worst) worst = error;
        }
    print_message("silu: within %.1f units\n", worst);
    assert_true(worst < 64.0);
    assert_int_equal(num_bits(num_silu(0.0f)), 0);
    assert_int_equal(num_bits(num_silu(-0.0f)), 0x80000000);
    assert_int_equal(num_bits(num_silu(-200.0f)), 0x80000000);
    assert_true(num_silu(200.0f) == 200.0f);
    assert_true(isnan(num_silu(NUM_NAN)));
}

static void test_pow2(void **state) {
    (void)state;
    for (int n = -126; n <= 127; n++) assert_true(num_pow2(n) == ldexpf(1.0f, n));
    for (int n = -300; n < -126; n++) assert_int_equal(num_bits(num_pow2(n)), 0);
    assert_int_equal(num_bits(num_pow2(-2147483647 - 1)), 0);
}

/* b only where it is strictly past a: SPEC 2.1. */
static void test_min_max(void **state) {
    static const struct {
        const char *why;
        unsigned a, b, min, max;
    } cases[] = {
        {"numbers", 0x3f800000, 0x40000000, 0x3f800000, 0x40000000},
        {"the other way round", 0x40000000, 0x3f800000, 0x3f800000, 0x40000000},
        {"equal zeros: the first", 0x80000000, 0, 0x80000000, 0x80000000},
        {"the other way round", 0, 0x80000000, 0, 0},
        {"NaN second is passed over", 0x3f800000, 0x7fc00000, 0x3f800000, 0x3f800000},
        {"NaN first stays", 0x7fc00001, 0x3f800000, 0x7fc00001, 0x7fc00001},
        {"infinities", 0xff800000, 0x7f800000, 0xff800000, 0x7f800000},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        float a = num_from_bits(cases[i].a), b = num_from_bits(cases[i].b);

        if (num_bits(num_min(a, b)) != cases[i].min || num_bits(num_max(a, b)) != cases[i].max)
            fail_msg("%s", cases[i].why);
    }
}

/* That this compiler neither contracts nor flushes: the host's half of SPEC 2.1. */
static void test_rounding(void **state) {
    volatile float a = 0x1.000002p+0f, b = 0x1.fffffcp-1f, minus = -1.0f, tiny = 0x1p-126f;
    float product = a * b;

    (void)state;
    assert_true(product + minus == 0.0f);
    assert_true(a * b + minus == 0.0f);
    assert_true(num_fma(a, b, minus) == -0x1p-46f);
    assert_true(tiny * 0.5f == 0x1p-127f);
    assert_true(num_sqrt(2.0f) == 0x1.6a09e6p+0f);
    assert_int_equal(num_bits(NUM_NAN), 0x7fffffff);
    assert_int_equal(num_bits(NUM_INFINITY), 0x7f800000);
    assert_true(NUM_LOG2E == (float)1.4426950408889634);
    assert_true(NUM_LN2 == (float)0.6931471805599453);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16),    cmocka_unit_test(test_exp2),
        cmocka_unit_test(test_log2),    cmocka_unit_test(test_exponential),
        cmocka_unit_test(test_silu),    cmocka_unit_test(test_pow2),
        cmocka_unit_test(test_min_max), cmocka_unit_test(test_rounding),
    };
    int r = cmocka_run_group_tests(tests, NULL, NULL);

    print_message("num: %lu values compared\n", n_values);
    return r;
}
