/* The settings of experiments (SPEC 5.8): what they cost is theirs, the answers stay. */
#include "tests/harness.h"

#include <errno.h>

#include "tests/toy_device.h"

enum { N_REQUESTS = 12, MAX_TOKENS = 100 };

static uint32_t prompts[N_REQUESTS][8];

static struct engine_request request_of(uint32_t i) {
    struct engine_request r = harness_request(prompts[i], 2 + i % 7, MAX_TOKENS);

    for (uint32_t k = 0; k < 8; k++) prompts[i][k] = 3 + i * 8 + k;
    r.ignore_eos = true;
    r.params.seed = i;
    if (i % 2) r.params.temperature = 0.8f;
    return r;
}

/* All at once, on toys whose tuned steps flip now and then unless they are steady. */
static struct engine_stats run_on(const struct engine_options *o, const struct toy_hooks *hooks,
                                  struct harness_result out[N_REQUESTS]) {
    struct engine_stats stats;
    struct harness h;

    harness_open(&h, o, toy_open_with(hooks));
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        const struct engine_request r = request_of(i);

        (void)harness_submit(&h, &r);
    }
    harness_finish(&h);
    harness_check_idle(&h);
    memcpy(out, h.results, N_REQUESTS * sizeof(out[0]));
    engine_stats_get(h.engine, &stats);
    harness_close(&h);
    return stats;
}

static struct engine_stats run(const struct engine_options *o, bool steady,
                               struct harness_result out[N_REQUESTS]) {
    const struct toy_hooks hooks = {.steady = steady};

    return run_on(o, &hooks, out);
}

static struct harness_result want[N_REQUESTS], got[N_REQUESTS];

static void expect_same(const char *what) {
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        if (!harness_same(&want[i], &got[i]))
            fail_msg("%s, request %u: %s", what, i, harness_difference(&want[i], &got[i]));
}

static struct engine_options options(enum plan_policy policy) {
    struct engine_options o = harness_options();

    o.policy = policy;
    o.window = 8;
    return o;
}

static int set_up(void **state) {
    const struct engine_options o = options(PLAN_CANONICAL);

    (void)state;
    (void)run(&o, false, want);
    return 0;
}

static void test_uncertified(void **state) {
    (void)state;
    for (int policy = PLAN_CANONICAL; policy <= PLAN_AUTO; policy++) {
        struct engine_options o = options((enum plan_policy)policy);
        struct engine_stats stats;

        o.uncertified = true;
        stats = run(&o, false, got);
        expect_same(plan_policy_name(o.policy));
        /* The first token alone; a pass for each seven or eight of the others, at least. */
        assert_true(stats.verify_passes >= N_REQUESTS * (MAX_TOKENS - 1) / 8);
        for (uint32_t i = 0; i < N_REQUESTS; i++) assert_int_equal(got[i].usage.certified, 1);
    }
}

static void test_mismatches(void **state) {
    static const uint32_t rates[] = {0, 20000, 300000, 1000000};

    (void)state;
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        struct engine_options o = options(PLAN_TUNED);
        struct engine_stats stats;
        double share;

        o.uncertified = true;
        o.mismatch_ppm = rates[i];
        stats = run(&o, true, got);
        expect_same("mismatches");
        /* A candidate is judged once in a pass; those behind a wrong one are not. */
        share = (double)stats.rollbacks / (double)(stats.tokens_verified - stats.verify_passes -
                                                   stats.tokens_discarded + stats.rollbacks);
        print_message("%u in a million: %llu rollbacks of %llu passes, %.4f of those judged\n",
                      rates[i], (unsigned long long)stats.rollbacks,
                      (unsigned long long)stats.verify_passes, share);
        if (rates[i] == 0) assert_int_equal(stats.rollbacks, 0);
        if (rates[i] == 20000) assert_true(share > 0.01 && share < 0.035);
        if (rates[i] == 300000) assert_true(share > 0.25 && share < 0.35);
        if (rates[i] == 1000000) assert_true(share == 1.0);
    }
}

/* What the verifier repairs is needed: on a device where its keys and values do not take the place
 * of a tuned step's, answers come out otherwise, though every window is judged. */
static void test_repair_is_needed(void **state) {
    const struct toy_hooks hooks = {.keeps_dirt = true};
    const struct engine_options o = options(PLAN_TUNED);
    uint32_t n_same = 0;

    (void)state;
    (void)run_on(&o, &hooks, got);
    for (uint32_t i = 0; i < N_REQUESTS; i++) n_same += harness_same(&want[i], &got[i]);
    assert_int_equal(n_same, 0);
    (void)run(&o, false, got);
    expect_same("with the repair");
}

/* Tuned schedules that are the canonical one, as where nothing was measured: their steps certify,
 * under any policy but where nothing may be certified; then windows judge, and find nothing. */
static void test_same(void **state) {
    struct engine_options o = options(PLAN_TUNED);
    struct engine_stats stats;

    (void)state;
    for (int policy = PLAN_TUNED; policy <= PLAN_AUTO; policy++) {
        o.policy = (enum plan_policy)policy;
        o.fast = SCHEDULE_TUNED;
        stats = run(&o, false, got);
        expect_same("fast schedules that are canonical");
        assert_int_equal(stats.steps_tuned, 0);
        assert_true(stats.steps_same > stats.steps_canonical / 2);
        assert_true(stats.steps_same < stats.steps_canonical); /* prompts are for other reasons */
        assert_int_equal(stats.verify_passes, 0);
    }
    o.policy = PLAN_TUNED;
    o.uncertified = true;
    stats = run(&o, false, got);
    expect_same("and nothing is certified");
    assert_int_equal(stats.steps_same, 0);
    assert_true(stats.verify_passes > 0);
    assert_int_equal(stats.rollbacks, 0);
}

static void test_unverified(void **state) {
    const struct toy_hooks hooks = {.steady = false};
    struct engine_options o = options(PLAN_CANONICAL);
    struct engine_request r = request_of(0);
    struct engine_stats stats;
    uint64_t handle;
    struct harness h;
    struct err e;

    (void)state;
    o.unverified = true;
    harness_open(&h, &o, toy_open_with(&hooks));
    assert_int_equal(engine_submit(h.engine, &r, &handle, &e), -ENOTSUP);
    assert_non_null(strstr(e.text, "experiment.verify"));
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        r = request_of(i);
        r.deterministic = false;
        (void)harness_submit(&h, &r);
    }
    harness_finish(&h);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        assert_true(h.results[i].ended && !h.results[i].failed);
        assert_int_equal(h.results[i].n_ids, MAX_TOKENS);
    }
    engine_stats_get(h.engine, &stats);
    assert_int_equal(stats.steps_canonical, 0);
    assert_int_equal(stats.verify_passes, 0);
    assert_true(stats.steps_tuned > 0);
    harness_close(&h);
}

static void test_refused(void **state) {
    struct engine_options o = options(PLAN_CANONICAL);
    struct engine *engine = NULL;
    struct err e;

    (void)state;
    o.mismatch_ppm = 1000001;
    assert_int_equal(engine_open(&o, toy_open(), &engine, &e), -EINVAL);
    o.mismatch_ppm = 5;
    o.unverified = true;
    assert_int_equal(engine_open(&o, toy_open(), &engine, &e), -EINVAL);
    assert_null(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uncertified),      cmocka_unit_test(test_mismatches),
        cmocka_unit_test(test_repair_is_needed), cmocka_unit_test(test_same),
        cmocka_unit_test(test_unverified),       cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
