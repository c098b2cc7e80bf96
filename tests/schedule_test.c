/* The canonical order is one and the same for every load; tuned ones follow the load and differ. */
#include "runtime/schedule.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/err.h"
#include "runtime/model.h"
#include "tests/unit.h"

static const struct model verse = {.hidden = 256,
                                   .intermediate = 768,
                                   .n_heads = 4,
                                   .n_kv_heads = 2,
                                   .head_dim = 64,
                                   .vocab = 2048,
                                   .n_layers = 4};
static const struct model llama = {.hidden = 4096,
                                   .intermediate = 14336,
                                   .n_heads = 32,
                                   .n_kv_heads = 8,
                                   .head_dim = 128,
                                   .vocab = 128256,
                                   .n_layers = 32};

static void test_canonical(void **state) {
    struct schedule s = schedule_canonical();
    char text[SCHEDULE_TEXT_BYTES];

    (void)state;
    assert_int_equal(schedule_check(&s, NULL), 0);
    assert_true(schedule_write(&s, text) < sizeof(text));
    /* In the fingerprint: another spelling is another fingerprint. */
    assert_string_equal(text, "k=qkv:1,o:4,gate_up:1,down:4,head:1 norm=tree,run:1 "
                              "kv=split:512,block:128 lse=tree,chunk:128");
}

static void test_tuned_is_valid_and_moves(void **state) {
    const struct model *models[] = {&verse, &llama};
    struct schedule canonical = schedule_canonical();

    (void)state;
    for (int m = 0; m < 2; m++) {
        uint32_t n_same = 0, n_changes = 0, n_all = 0;
        struct schedule last = canonical;

        for (uint32_t rows = 1; rows <= 1024; rows++)
            for (uint32_t keys = 1; keys < 8192; keys = keys * 3 + 1, n_all++) {
                struct schedule_load load = {rows, rows, keys};
                struct schedule s = schedule_tuned(models[m], &load);
                struct err e;

                if (schedule_check(&s, &e) < 0) fail_msg("rows %u keys %u: %s", rows, keys, e.text);
                n_same += schedule_equal(&s, &canonical);
                n_changes += !schedule_equal(&s, &last);
                last = s;
            }
        assert_true(n_same * 10 < n_all);
        assert_true(n_changes > 10);
    }
}

static void test_refused(void **state) {
    struct schedule s;
    struct err e;

    (void)state;
#define REFUSED(change)                                    \
    do {                                                   \
        s = schedule_canonical();                          \
        change;                                            \
        assert_int_equal(schedule_check(&s, &e), -EINVAL); \
    } while (0)
    REFUSED(s.qkv = 0);
    REFUSED(s.o = 3);
    REFUSED(s.down = 32);
    REFUSED(s.norm_run = 16);
    REFUSED(s.split_keys = 0);
    REFUSED(s.split_keys = 130);
    REFUSED(s.split_keys = SCHEDULE_SPLIT_MAX + 128);
}

static void test_segments(void **state) {
    (void)state;
    assert_int_equal(schedule_segment(576, 4), 144); /* padded to 576 */
    assert_int_equal(schedule_segment(256, 4), 64);
    assert_int_equal(schedule_segment(48, 4), 16);
    assert_int_equal(schedule_segment(80, 4), 32); /* padded to 128 */
    assert_int_equal(schedule_segment(14336, 4), 3584);
    assert_int_equal(schedule_segment(4096, 1), 4096);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_canonical), cmocka_unit_test(test_tuned_is_valid_and_moves),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_segments)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
