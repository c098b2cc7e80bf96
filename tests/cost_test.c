/* What steps cost and what policy auto makes of it: by formula, and in simulated loads, where it
 * must lose next to nothing against the better of the two policies. */
#include "runtime/cost.h"

#include "tests/unit.h"

static void test_estimates(void **state) {
    struct cost c = cost_start();

    (void)state;
    assert_true(cost_of_canonical(&c, 5) == 0);
    assert_true(cost_of_tuned(&c, 5, 5, 32) == 0);
    cost_step(&c, true, 8, 100);
    assert_true(cost_of_canonical(&c, 5) == 100);    /* the same bucket, 5 to 8 */
    assert_true(cost_of_canonical(&c, 1) == 100);    /* the nearest there is */
    assert_true(cost_of_canonical(&c, 2048) == 100); /* likewise */
    cost_step(&c, true, 9, 300);
    assert_true(cost_of_canonical(&c, 16) == 300);
    assert_true(cost_of_canonical(&c, 8) == 100);
    for (int i = 0; i < 100; i++) cost_step(&c, true, 8, 140);
    assert_true(cost_of_canonical(&c, 8) > 139 && cost_of_canonical(&c, 8) <= 140);
    cost_step(&c, true, 8, 1e6f); /* something held it up */
    assert_true(cost_of_canonical(&c, 8) < 160);

    /* T + d (v W/(W-1) + f (W-1)/2 (T/n + v)), at W = 5, v = 10, f = 0.1, T = 80, n = 8. */
    cost_step(&c, false, 8, 80);
    c = (struct cost){.tuned = c.tuned, .window_row_us = 10, .flips = 0.1f};
    assert_true(cost_of_tuned(&c, 8, 0, 5) == 80);
    assert_true(cost_of_tuned(&c, 8, 4, 5) > 145.9f && cost_of_tuned(&c, 8, 4, 5) < 146.1f);
}

static void test_windows_and_verdicts(void **state) {
    struct cost c = cost_start();

    (void)state;
    cost_windows(&c, 8, 32, 500); /* nothing is known of the rest of that step */
    assert_true(c.window_row_us == 0);
    cost_windows(&c, 0, 32, 320); /* windows alone */
    assert_true(c.window_row_us == 10);
    c.window_row_us = 0;
    cost_step(&c, true, 8, 180);
    cost_windows(&c, 8, 32, 500);
    assert_true(c.window_row_us == 10);
    cost_windows(&c, 8, 32, 100); /* faster than without: no share at all */
    assert_true(c.window_row_us < 10 && c.window_row_us > 8);

    c = cost_start();
    for (int i = 0; i < 1000; i++) cost_verdict(&c, 31, false);
    assert_true(c.flips < 1e-4f);
    for (int i = 0; i < 1000; i++) cost_verdict(&c, 10, true); /* one in ten */
    assert_true(c.flips > 0.09f && c.flips < 0.12f);
}

/* A device as the formula has it, and a load that decodes for ever. */
struct device {
    float canonical, tuned, window_row; /* of a step of any size; of a window's row */
    uint32_t flip_every;                /* candidates; 0: none flips */
};

enum { STEPS = 40000, W = 32 };

/* What n rows cost in all, d of them deterministic, on a policy: each deterministic token is
 * certified, or judged in a window of W rows, where a flip throws half of it away. */
static double simulate(const struct device *dev, uint32_t n, uint32_t d, int policy,
                       uint32_t *out_n_tuned) {
    struct cost c = cost_start();
    double us = 0, candidates = 0;
    uint32_t n_judged = 0;

    *out_n_tuned = 0;
    for (uint32_t i = 0; i < STEPS; i++) {
        const bool tuned = policy == 2 ? cost_tuned_pays(&c, n, d, W) : policy == 1;
        const float took = (tuned ? dev->tuned : dev->canonical) * (i % 97 ? 1.0f : 1.3f);

        cost_step(&c, !tuned, n, took);
        us += (double)took;
        if (!tuned) continue;
        (*out_n_tuned)++;
        candidates += d;
        while (candidates >= W - 1) {
            const bool wrong = dev->flip_every && (n_judged += W - 1) >= dev->flip_every;

            candidates -= W - 1;
            us += (double)dev->window_row * W;
            cost_windows(&c, 0, W, dev->window_row * W);
            cost_verdict(&c, wrong ? W / 2 : W - 1, wrong);
            if (!wrong) continue;
            n_judged = 0;
            us += (double)((W - 1) / 2) * (double)(dev->tuned / (float)n + dev->window_row);
        }
    }
    return us;
}

static void test_loses_little(void **state) {
    static const struct device devices[] = {
        {1000, 1000, 8, 300}, /* canonical costs nothing: nothing to gain */
        {1000, 995, 8, 300},  /* next to nothing */
        {1000, 900, 2, 300},  /* tuned pays where windows are cheap */
        {1000, 900, 30, 300}, /* only where few are deterministic */
        {1000, 500, 8, 0},    /* tuned is far faster and never wrong */
        {1000, 500, 8, 20},   /* and often wrong */
        {1000, 1500, 8, 300}, /* tuned is slower */
    };
    static const uint32_t shares[] = {0, 1, 4, 16, 64};

    (void)state;
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        for (size_t k = 0; k < sizeof(shares) / sizeof(shares[0]); k++) {
            uint32_t n_canonical, n_tuned, n_auto;
            const double canonical = simulate(&devices[i], 64, shares[k], 0, &n_canonical);
            const double tuned = simulate(&devices[i], 64, shares[k], 1, &n_tuned);
            const double chosen = simulate(&devices[i], 64, shares[k], 2, &n_auto);
            const double best = canonical < tuned ? canonical : tuned;

            print_message("device %zu, %2u of 64 deterministic: canonical %.4f, tuned %.4f, auto "
                          "%.4f of the better, %u of %u steps tuned\n",
                          i, shares[k], canonical / best, tuned / best, chosen / best, n_auto,
                          (uint32_t)STEPS);
            assert_true(chosen < 1.02 * best);
        }
    }
}

/* Both are looked at again, and a device that changes is followed. */
static void test_explores(void **state) {
    struct cost c = cost_start();
    uint32_t n_tuned = 0;

    (void)state;
    for (uint32_t i = 0; i < 4000; i++) {
        const bool tuned = cost_tuned_pays(&c, 16, 0, W);

        cost_step(&c, !tuned, 16, tuned ? 2000.0f : 1000.0f);
        n_tuned += tuned;
    }
    assert_true(n_tuned >= 4000 / COST_EXPLORE - 2 && n_tuned <= 4000 / COST_EXPLORE + 3);
    for (uint32_t i = 0; i < 20000; i++) { /* tuned becomes the faster one */
        const bool tuned = cost_tuned_pays(&c, 16, 0, W);

        cost_step(&c, !tuned, 16, tuned ? 500.0f : 1000.0f);
    }
    n_tuned = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        const bool tuned = cost_tuned_pays(&c, 16, 0, W);

        cost_step(&c, !tuned, 16, tuned ? 500.0f : 1000.0f);
        n_tuned += tuned;
    }
    assert_true(n_tuned > 990);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_estimates),
        cmocka_unit_test(test_windows_and_verdicts),
        cmocka_unit_test(test_loses_little),
        cmocka_unit_test(test_explores),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
