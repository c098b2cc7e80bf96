/* The exp2 of attention weights: facts measured on the card, the double polynomial against an
 * independent one, and the cheap value against the exact one over every entry of the table. */
#include "runtime/ex2.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "runtime/num.h"

enum { N_ENTRIES = 1 << 23 };

extern const uint8_t _binary_ex2_sm90_bin_start[];
extern const uint8_t _binary_ex2_sm90_bin_end[];

static void test_corners(void **state) {
    static const struct {
        const char *why;
        uint32_t x, want;
    } cases[] = {
        {"+0", 0x00000000, 0x3f800000},
        {"-0", 0x80000000, 0x3f800000},
        {"a subnormal", 0x80000001, 0x3f800000},
        {"-1", 0xbf800000, 0x3f000000},
        {"-126: the last one", 0xc2fc0000, 0x00800000},
        {"just below -126 is flushed", 0xc2fc0001, 0x00000000},
        {"-150, subnormal if it were not flushed", 0xc3160000, 0x00000000},
        {"-infinity", 0xff800000, 0x00000000},
        {"NaN", 0x7fc00000, 0x7fffffff},
        {"a negative NaN", 0xffc00001, 0x7fffffff},
        {"positive: never asked for", 0x3f800000, 0x7fffffff},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        float x = num_from_bits(cases[i].x);

        if (num_bits(ex2_exact(x)) != cases[i].want) print_error("%s\n", cases[i].why);
        assert_int_equal(num_bits(ex2_exact(x)), cases[i].want);
        assert_int_equal(ex2_bf16(x), num_to_bf16(num_from_bits(cases[i].want)));
    }
}

/* x = n + i / 2^23, exact wherever |x| >= 1. */
static float entry(int n, uint32_t i) {
    return (float)((double)n + (double)i * 0x1p-23);
}

/* The table from another exp2, and its statistics as measured: 40 % exact, 59 % one below. */
static void test_table(void **state) {
    unsigned n[4] = {0};

    (void)state;
    assert_int_equal(_binary_ex2_sm90_bin_end - _binary_ex2_sm90_bin_start, N_ENTRIES / 4);
    for (uint32_t i = 0; i < N_ENTRIES; i++) {
        unsigned code = _binary_ex2_sm90_bin_start[i / 4] >> 2 * (i % 4) & 3;
        unsigned want = num_bits((float)exp2(-2.0 + i * 0x1p-23)) + code - 2;

        n[code]++;
        assert_int_equal(num_bits(ex2_exact(entry(-2, i))), want);
    }
    assert_in_range(n[2], N_ENTRIES / 100 * 39, N_ENTRIES / 100 * 41);
    assert_in_range(n[1], N_ENTRIES / 100 * 58, N_ENTRIES / 100 * 60);
}

static void check(float x, int *distance_max) {
    unsigned exact = num_bits(ex2_exact(x));
    int distance = abs((int)(num_bits(ex2_near(x)) - exact));

    if (distance > *distance_max) *distance_max = distance;
    if (ex2_bf16(x) != num_to_bf16(num_from_bits(exact))) print_error("%a\n", (double)x);
    assert_int_equal(ex2_bf16(x), num_to_bf16(num_from_bits(exact)));
}

static void test_every_entry(void **state) {
    static const int exponents[] = {-2, -125};
    int distance_max = 0;

    (void)state;
    for (size_t j = 0; j < sizeof(exponents) / sizeof(exponents[0]); j++)
        for (uint32_t i = 0; i < N_ENTRIES; i++) check(entry(exponents[j], i), &distance_max);
    /* Above -1 numbers lie closer than the table's step. */
    for (uint32_t bits = 0xb0000000; bits < 0xbf800000; bits += 13)
        check(num_from_bits(bits), &distance_max);
    print_message("at most %d units from the exact value\n", distance_max);
    assert_in_range(distance_max, 0, EX2_MARGIN / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corners),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_every_entry),
    };

    return cmocka_run_group_tests_name("ex2", tests, NULL, NULL);
}
