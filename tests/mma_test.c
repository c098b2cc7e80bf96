/* The step in integers: every result read off the card, and the words of SPEC 2.2 one by one. */
#include "runtime/mma.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/num.h"

static void test_card(void **state) {
    static struct {
        char name[16];
        uint16_t a[64][16], b[64][16];
        float c[64][64], d[64][64];
    } set;
    FILE *f = fopen("tests/data/mma_sm90_bf16.bin", "rb");
    unsigned n_sets = 0;

    (void)state;
    assert_non_null(f);
    for (; fread(&set, sizeof(set), 1, f) == 1; n_sets++)
        for (int i = 0; i < 64; i++)
            for (int j = 0; j < 64; j++) {
                unsigned got = num_bits(mma_step(set.c[i][j], set.a[i], set.b[j]));

                if (got != num_bits(set.d[i][j])) print_error("%.16s %d %d\n", set.name, i, j);
                assert_int_equal(got, num_bits(set.d[i][j]));
            }
    assert_int_equal(n_sets, 10);
    fclose(f);
}

static void test_card_small(void **state) {
    static struct {
        uint16_t a[16][16], b[8][16];
        float c[16][8], d[16][8];
    } set;
    FILE *f = fopen("tests/data/mma_sm90_small_exp.bin", "rb");
    unsigned n_sets = 0;

    (void)state;
    assert_non_null(f);
    for (; fread(&set, sizeof(set), 1, f) == 1; n_sets++)
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++)
                assert_int_equal(num_bits(mma_step(set.c[i][j], set.a[i], set.b[j])),
                                 num_bits(set.d[i][j]));
    assert_int_equal(n_sets, 512);
    fclose(f);
}

static void test_words(void **state) {
    enum { ONE = 0x3f80, MINUS = 0xbf80, INF = 0x7f80, NEG_INF = 0xff80, NOT = 0x7fc0 };
    static const struct {
        const char *why;
        uint32_t c;
        uint16_t a[2], b[2];
        uint32_t want;
    } cases[] = {
        {"nothing", 0, {0, 0}, {0, 0}, 0},
        {"-0 becomes +0", 0x80000000, {0, 0}, {0, 0}, 0},
        {"a negative product of zero is +0", 0, {0x8000, 0}, {ONE, 0}, 0},
        {"what cancels is +0", 0xbf800000, {ONE, 0}, {ONE, 0}, 0},
        {"2^24 + 1: toward zero", 0x4b800000, {ONE, 0}, {ONE, 0}, 0x4b800000},
        {"2^24 - 1: exact", 0x4b800000, {MINUS, 0}, {ONE, 0}, 0x4b7fffff},
        {"a NaN of any payload", 0xffc12345, {0, 0}, {0, 0}, 0x7fffffff},
        {"NaN times zero", 0, {NOT, 0}, {0, 0}, 0x7fffffff},
        {"infinity times zero", 0, {INF, 0}, {0, 0}, 0x7fffffff},
        {"infinities of both signs", 0, {INF, INF}, {ONE, MINUS}, 0x7fffffff},
        {"of c and of a product", 0x7f800000, {NEG_INF, 0}, {ONE, 0}, 0x7fffffff},
        {"infinities of one sign", 0xff800000, {NEG_INF, 0}, {ONE, 0}, 0xff800000},
        {"2^128", 0, {0x7f00, 0x7f00}, {ONE, ONE}, 0x7f800000},
        {"the least subnormal stays", 1, {0, 0}, {0, 0}, 1},
        {"beside a large product a subnormal c is nothing",
         0x00000001,
         {1, 0},
         {0x7f00, 0},
         0x3c800000},
    };
    uint16_t a[16] = {0}, b[16] = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned got;

        memcpy(a, cases[i].a, sizeof(cases[i].a));
        memcpy(b, cases[i].b, sizeof(cases[i].b));
        got = num_bits(mma_step(num_from_bits(cases[i].c), a, b));
        if (got != cases[i].want) print_error("%s: got %08x\n", cases[i].why, got);
        assert_int_equal(got, cases[i].want);
    }
}

/* One large value, then many small: upward each group is too small for the last bit, downward
 * the groups have become large enough before they meet it. */
static void test_order(void **state) {
    uint16_t a[512], b[512];
    float down = 0.0f;

    (void)state;
    for (int i = 0; i < 512; i++) {
        a[i] = i == 0 ? 0x4b80 : 0x3d80;
        b[i] = 0x3f80;
    }
    for (int i = 512 - 16; i >= 0; i -= 16) down = mma_step(down, a + i, b + i);
    assert_true(mma_chain(0.0f, a, b, 512) == 0x1p24f);
    assert_true(down == 0x1p24f + 30.0f);
    assert_int_equal(num_bits(mma_chain(0.0f, a, b, 0)), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_card),
        cmocka_unit_test(test_card_small),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_order),
    };

    return cmocka_run_group_tests_name("mma", tests, NULL, NULL);
}
