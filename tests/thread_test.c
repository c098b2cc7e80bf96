/* The engine's two sides on two threads, over the toy device: submits, grants and cancels race
 * with steps, and every answer is still that of the solo run.  Run under TSan too. */
#include "tests/harness.h"

#include <pthread.h>
#include <stdatomic.h>

#include "tests/toy_device.h"

enum { N_REQUESTS = 300, LIVE_MAX = 40, PROMPT = 24 };

static atomic_bool stop;

static void *engine_main(void *context) {
    struct engine *g = context;

    while (!atomic_load(&stop))
        if (engine_step(g) == 0) engine_wait(g, 20);
    return NULL;
}

static struct engine_request request_of(uint32_t which, uint32_t prompt[PROMPT]) {
    struct harness_random random = {which + 1};
    struct engine_request r;

    for (uint32_t i = 0; i < PROMPT; i++) prompt[i] = harness_below(&random, 2048);
    r = harness_request(prompt, PROMPT, 1 + harness_below(&random, 60));
    r.ignore_eos = true;
    return r;
}

static void test_two_threads(void **state) {
    static struct harness_result want[8];
    struct engine_options o = harness_options();
    struct harness_random random = {42};
    uint32_t prompt[PROMPT], n_cancelled = 0;
    struct engine_event event;
    struct harness h;
    pthread_t thread;

    (void)state;
    for (uint32_t which = 0; which < 8; which++) {
        struct engine_request r = request_of(which, prompt);

        harness_open(&h, &o, toy_open());
        (void)harness_submit(&h, &r);
        harness_finish(&h);
        want[which] = h.results[0];
        harness_close(&h);
    }
    o.policy = PLAN_TUNED;
    o.window = 7;
    o.max_requests = 16;
    harness_open(&h, &o, toy_open());
    atomic_store(&stop, false);
    assert_int_equal(pthread_create(&thread, NULL, engine_main, h.engine), 0);
    for (uint32_t n = 0, n_ended = 0; n_ended < N_REQUESTS;) {
        if (n < N_REQUESTS && engine_count(h.engine) < LIVE_MAX) {
            struct engine_request r = request_of(n % 8, prompt);

            (void)harness_submit(&h, &r);
            n++;
        }
        if (harness_below(&random, 5000) == 0)
            engine_cancel(h.engine, h.results[harness_below(&random, h.n_results)].handle);
        while (engine_next(h.engine, &event)) {
            harness_take(&h, &event);
            n_ended += event.kind == ENGINE_DONE;
            assert_true(event.kind != ENGINE_FAILED);
        }
    }
    atomic_store(&stop, true);
    engine_wake(h.engine);
    (void)pthread_join(thread, NULL);
    (void)harness_step(&h);
    for (uint32_t i = 0; i < h.n_results; i++) {
        const struct harness_result *got = &h.results[i];

        n_cancelled += got->finish == 3;
        if (got->finish == 3) /* a prefix */
            assert_memory_equal(got->ids, want[i % 8].ids, got->n_ids * sizeof(got->ids[0]));
        else if (!harness_same(&want[i % 8], got))
            fail_msg("request %u: %s", i, harness_difference(&want[i % 8], got));
    }
    print_message("%u of %u cancelled\n", n_cancelled, h.n_results);
    assert_true(n_cancelled > 0 && n_cancelled < h.n_results);
    harness_check_idle(&h);
    harness_close(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_two_threads)};
    int n_failed = cmocka_run_group_tests_name("a device that is waited for", tests, NULL, NULL);

    toy_queues = true;
    return n_failed +
           cmocka_run_group_tests_name("a device that computes beside us", tests, NULL, NULL);
}
