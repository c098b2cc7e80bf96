/* Where a window is cut, that a pass always gets somewhere, and what becomes of the KV. */
#include "runtime/dvr.h"

#include <string.h>

#include "tests/unit.h"

enum { PROMPT = 3 };

static const struct {
    const char *why;
    uint32_t n_candidates;
    uint32_t candidates[4];
    uint32_t verified[5];
    uint32_t max_tokens; /* one is committed already */
    uint32_t n_commit, n_dropped;
} cases[] = {
    {"no candidates: the pass decodes one token itself", 0, {0}, {7}, 9, 1, 0},
    {"all stand, and the extra token comes with them", 4, {7, 8, 9, 1}, {7, 8, 9, 1, 2}, 9, 5, 0},
    {"the first is wrong: its replacement is committed", 4, {6, 8, 9, 1}, {7, 8, 9, 1, 2}, 9, 1, 4},
    {"the last is wrong", 4, {7, 8, 9, 3}, {7, 8, 9, 1, 2}, 9, 4, 1},
    {"what agrees after a mismatch is chance", 4, {7, 6, 9, 1}, {7, 8, 9, 1, 2}, 9, 2, 3},
    {"the extra token beyond max_tokens has no place", 4, {7, 8, 9, 1}, {7, 8, 9, 1, 2}, 5, 4, 0},
    {"one place left, and the candidate is wrong", 1, {6}, {7, 3}, 2, 1, 1},
};

static void test_windows(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t tokens[16] = {1, 2, 3};
        struct dvr_seq s = dvr_start(tokens, PROMPT, cases[i].max_tokens, true);
        struct dvr_verdict v;
        uint32_t n_before;

        assert_int_equal(dvr_prompt_left(&s), PROMPT);
        dvr_prefilled(&s, 2);
        dvr_prefilled(&s, 1);
        assert_int_equal(dvr_prompt_left(&s), 0);
        dvr_first(&s, 5);
        for (uint32_t c = 0; c < cases[i].n_candidates; c++)
            assert_false(dvr_decoded(&s, cases[i].candidates[c], false));
        n_before = s.n_committed;
        v = dvr_verified(&s, cases[i].verified);
        if (v.n_commit != cases[i].n_commit || v.n_dropped != cases[i].n_dropped)
            fail_msg("%s: commits %u, drops %u", cases[i].why, v.n_commit, v.n_dropped);
        assert_int_equal(s.n_committed, n_before + v.n_commit);
        assert_int_equal(s.n_tokens, s.n_committed);
        assert_memory_equal(tokens + n_before, cases[i].verified, v.n_commit * sizeof(tokens[0]));
        /* The last committed token is still to be fed, unless the limit ends it all. */
        if (s.n_tokens < s.n_limit) assert_int_equal(s.n_kv, s.n_committed - 1);
    }
}

static void test_certified(void **state) {
    uint32_t tokens[16] = {1, 2, 3};
    struct dvr_seq s = dvr_start(tokens, PROMPT, 9, true);

    (void)state;
    dvr_prefilled(&s, PROMPT);
    dvr_first(&s, 5);
    assert_true(dvr_clean(&s));
    assert_true(dvr_decoded(&s, 6, true)); /* canonical and clean: committed at once */
    assert_true(dvr_clean(&s));
    assert_false(dvr_decoded(&s, 7, false)); /* tuned: a candidate */
    assert_false(dvr_clean(&s));
    assert_false(
        dvr_decoded(&s, 8, true)); /* a canonical step on an uncertain input certifies nothing */
    assert_int_equal(dvr_candidates(&s), 2);
    assert_int_equal(s.n_kv, PROMPT + 1); /* the prompt, and the one token fed canonically */
}

static void test_plain_commits_at_once(void **state) {
    uint32_t tokens[16] = {1, 2, 3};
    struct dvr_seq s = dvr_start(tokens, PROMPT, 9, false);

    (void)state;
    dvr_prefilled(&s, PROMPT);
    dvr_first(&s, 5);
    assert_true(dvr_decoded(&s, 6, false));
    assert_true(dvr_decoded(&s, 7, true));
    assert_int_equal(s.n_committed, PROMPT + 3);
    assert_false(dvr_due(&s, 1, true));
}

static void test_due(void **state) {
    uint32_t tokens[80] = {1, 2, 3};
    struct dvr_seq s = dvr_start(tokens, PROMPT, 6, true);

    (void)state;
    assert_false(dvr_due(&s, 1, false)); /* the prompt is not in */
    dvr_prefilled(&s, PROMPT);
    dvr_first(&s, 5);
    assert_true(dvr_due(&s, 1, false)); /* W = 1 has room for no candidate */
    assert_false(dvr_due(&s, 4, true)); /* a committed token that stops is not our question */
    (void)dvr_decoded(&s, 6, false);
    (void)dvr_decoded(&s, 6, false);
    assert_false(dvr_due(&s, 4, false)); /* W - 2 */
    assert_true(dvr_due(&s, 4, true));   /* it wants to finish */
    assert_true(dvr_due(&s, 3, false));  /* W - 1 */
    (void)dvr_decoded(&s, 6, false);
    (void)dvr_decoded(&s, 6, false);
    assert_false(dvr_due(&s, 7, false));
    (void)dvr_decoded(&s, 6, false);
    assert_true(dvr_due(&s, 32, false)); /* the last allowed */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_certified),
        cmocka_unit_test(test_plain_commits_at_once),
        cmocka_unit_test(test_due),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
