/* The canonical order is one and the same for every load; stock ones follow the load and differ;
 * tuned ones are those of the table. */
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

/* The measured table holds this one. */
static const struct model smollm2 = {.hidden = 576,
                                     .intermediate = 1536,
                                     .n_heads = 9,
                                     .n_kv_heads = 3,
                                     .head_dim = 64,
                                     .vocab = 49152,
                                     .n_layers = 30};

struct count {
    uint32_t n_same, n_changes, n_all;
};

static struct count walk(const struct model *m, enum schedule_set set) {
    const struct schedule canonical = schedule_canonical();
    struct schedule last = canonical;
    struct count c = {0};

    for (uint32_t rows = 1; rows <= 1024; rows++)
        for (uint32_t keys = 1; keys < 8192; keys = keys * 3 + 1)
            for (uint32_t seqs = 1; seqs <= rows; seqs += rows > 1 ? rows - 1 : 1) {
                struct schedule_load load = {rows, seqs, keys};
                struct schedule s = schedule_fast(set, m, &load);
                struct err e;

                if (schedule_check(&s, &e) < 0) fail_msg("rows %u keys %u: %s", rows, keys, e.text);
                c.n_all++;
                c.n_same += schedule_equal(&s, &canonical);
                c.n_changes += !schedule_equal(&s, &last);
                last = s;
            }
    return c;
}

static void test_stock_is_valid_and_moves(void **state) {
    const struct model *models[] = {&verse, &llama, &smollm2};

    (void)state;
    for (int m = 0; m < 3; m++) {
        const struct count c = walk(models[m], SCHEDULE_STOCK);

        assert_int_equal(c.n_same, 0); /* what wants a step that is not canonical can have one */
        assert_true(c.n_changes > 10);
    }
}

/* Fuller is fuller: K is cut while tiles are few, keys while sequences are. */
static void test_stock_fills(void **state) {
    struct schedule few, many;

    (void)state;
    few = schedule_stock(&llama, &(struct schedule_load){1, 1, 4096});
    many = schedule_stock(&llama, &(struct schedule_load){256, 256, 4096});
    assert_int_equal(few.down, 4); /* 64 tiles of 64 columns, 132 units */
    assert_int_equal(many.down, 1);
    assert_int_equal(few.split_keys, 256);                 /* 8 KV heads, 17 splits */
    assert_int_equal(many.split_keys, SCHEDULE_SPLIT_MAX); /* 2048 of them: one */
}

/* What is not in the table is canonical; what is there is valid, for every load. */
static void test_tuned(void **state) {
    const struct count none = walk(&verse, SCHEDULE_TUNED);
    const struct model *models[] = {&llama, &smollm2};

    (void)state;
    assert_int_equal(none.n_same, none.n_all);
    assert_int_equal(none.n_changes, 0);
    for (int m = 0; m < 2; m++) {
        const struct schedule canonical = schedule_canonical();
        const struct count c = walk(models[m], SCHEDULE_TUNED);

        print_message("tuned: %u loads are canonical, %u others\n", c.n_same, c.n_all - c.n_same);
        /* One split of all keys is one, however long it might be. */
        for (uint32_t keys = 1; keys <= SCHEDULE_KV_BLOCK; keys++) {
            struct schedule_load load = {1, 1, keys};

            assert_int_equal(schedule_tuned(models[m], &load).split_keys, canonical.split_keys);
        }
    }
    assert_string_equal(schedule_set_name(SCHEDULE_TUNED), "tuned");
    assert_string_equal(schedule_set_name(SCHEDULE_STOCK), "stock");
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
        cmocka_unit_test(test_canonical),   cmocka_unit_test(test_stock_is_valid_and_moves),
        cmocka_unit_test(test_stock_fills), cmocka_unit_test(test_tuned),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_segments)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
