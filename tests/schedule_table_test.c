/* Where a load stands in a table of the fastest cuts: the first line of its shape that holds it, and
 * what is canonical beyond the last. */
#define SCHEDULE_TABLE "tests/schedule_table.inc"
#define schedule_tuned table_tuned
#include "runtime/schedule_tuned.c"
#include "tests/unit.h"

static const struct model model = {.hidden = 64,
                                   .intermediate = 128,
                                   .n_heads = 2,
                                   .n_kv_heads = 1,
                                   .head_dim = 16,
                                   .vocab = 512,
                                   .n_layers = 2};

static struct schedule at(uint32_t n_rows, uint32_t n_seqs, uint32_t n_keys) {
    return table_tuned(&model, &(struct schedule_load){n_rows, n_seqs, n_keys});
}

static void test_products(void **state) {
    const struct schedule c = schedule_canonical();

    (void)state;
    for (uint32_t n = 1; n <= 10; n++) {
        const struct schedule s = at(n, 1, 1);

        assert_int_equal(s.qkv, n <= 2 ? 2 : n <= 8 ? 4 : c.qkv);
        assert_int_equal(s.o, n <= 4 ? 1 : c.o);
        assert_int_equal(s.gate_up, n <= 4 ? 2 : c.gate_up);
        assert_int_equal(s.down, n <= 4 ? 8 : c.down);
        assert_int_equal(s.head, 4); /* logits of one sequence, however many rows */
        assert_int_equal(s.norm_run, n <= 2 ? 2 : n <= 8 ? 4 : c.norm_run);
        assert_int_equal(at(n, n, 1).head, n <= 4 ? 4 : c.head);
    }
}

static void test_splits(void **state) {
    const uint32_t canonical = schedule_canonical().split_keys;

    (void)state;
    assert_int_equal(canonical, 512);
    /* One split of all keys is one, in whichever length it is spelt. */
    assert_int_equal(at(1, 1, 1).split_keys, canonical);
    assert_int_equal(at(1, 1, 128).split_keys, canonical);
    assert_int_equal(at(1, 1, 129).split_keys, 128);
    assert_int_equal(at(1, 1, 768).split_keys, 128);
    assert_int_equal(at(1, 1, 769).split_keys, 1024); /* and canonical would be two */
    assert_int_equal(at(1, 1, 4096).split_keys, 1024);
    assert_int_equal(at(1, 1, 4097).split_keys, canonical);
    assert_int_equal(at(2, 2, 768).split_keys, 256);
    assert_int_equal(at(4, 4, 1024).split_keys, 256);
    assert_int_equal(at(4, 4, 1025).split_keys, canonical);
    assert_int_equal(at(5, 5, 1024).split_keys, canonical);
    /* More rows than sequences are a prompt's, if they are as many as any that was measured. */
    assert_int_equal(at(512, 1, 768).split_keys, 384);
    assert_int_equal(at(600, 5, 2048).split_keys, 384);
    assert_int_equal(at(512, 1, 2049).split_keys, canonical);
    assert_int_equal(at(511, 1, 2048).split_keys, canonical);
    assert_int_equal(at(2, 1, 768).split_keys, canonical);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products),
                                       cmocka_unit_test(test_splits)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
