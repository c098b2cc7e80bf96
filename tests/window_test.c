/* Cases of a catalogue of how such engines broke, on a real model: order of arrival, equal requests
 * at once, counts about 256, windows that start at every offset in every company, prompts that end
 * at borders, pauses in every phase, rows that leave the arithmetic, delays in both threads.
 * Each answer is held against the twin's, of the request alone on policy canonical.
 *
 *   LLM42_DEVICE=cuda   on the GPU, against the twin */
#include "tests/harness.h"
#include "tests/test_device.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { VOCAB = 2048, N = 8, MAX_TOKENS = 20, PROMPT_MAX = 520 };

/* ---- Requests, and what they must be answered ---- */

static uint32_t prompts[N][PROMPT_MAX];
static struct harness_result want[N];

/* Greedy, seeded, seeded with filters, with the most probable ids, by turns. */
static struct engine_request request_of(uint32_t i, uint32_t n_prompt, uint32_t max_tokens) {
    struct harness_random random = {i + 1};
    struct engine_request r = harness_request(prompts[i % N], n_prompt, max_tokens);

    for (uint32_t k = 0; k < PROMPT_MAX; k++)
        prompts[i % N][k] = 4 + harness_below(&random, VOCAB - 4);
    r.ignore_eos = true;
    r.grant = 64;
    if (i % 4 == 1) r.params.temperature = 0.7f;
    if (i % 4 == 2) r.params = (struct sample_params){1.0f, 0.9f, 0.01f, 50, 0};
    if (i % 4 == 3) r.n_top = 3;
    r.params.seed = i;
    return r;
}

static struct engine_request usual(uint32_t i) {
    return request_of(i, 5 + 3 * (i % N), MAX_TOKENS);
}

static struct harness_result alone(const struct engine_request *r) {
    struct engine_options o = harness_options();
    struct harness_result result;
    struct harness h;

    o.context = 1024;
    harness_open(&h, &o, test_twin_open(2, false));
    (void)harness_submit(&h, r);
    harness_finish(&h);
    result = h.results[0];
    harness_close(&h);
    assert_true(result.ended && !result.failed);
    return result;
}

static void expect(const struct harness_result *must, const struct harness_result *got,
                   const char *what, unsigned a, unsigned b) {
    if (!harness_same(must, got))
        fail_msg("%s %u, %u: %s", what, a, b, harness_difference(must, got));
}

static struct engine_options options(enum plan_policy policy, uint32_t window, uint32_t group) {
    struct engine_options o = harness_options();

    o.policy = policy;
    o.window = window;
    o.group = group;
    return o;
}

static int set_up(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        const struct engine_request r = usual(i);

        want[i] = alone(&r);
    }
    return 0;
}

/* ---- Order of arrival ---- */

static void test_orders(void **state) {
    (void)state;
    for (int order = 0; order < 5; order++)
        for (int policy = PLAN_CANONICAL; policy <= PLAN_TUNED; policy++) {
            const struct engine_options o = options((enum plan_policy)policy, 7, 3);
            struct harness_random random = {(uint64_t)order};
            struct harness_result *of[N];
            struct harness h;

            harness_open(&h, &o, test_device_open(2, false));
            for (uint32_t k = 0; k < N; k++) {
                const uint32_t i = order == 1 ? N - 1 - k : k;
                const struct engine_request r = usual(i);

                of[i] = harness_submit(&h, &r);
                /* At once, in reverse, each when the one before is done, or now and then. */
                if (order == 2) harness_finish(&h);
                for (uint32_t n = order > 2 ? harness_below(&random, 12) : 0; n > 0; n--)
                    assert_true(harness_step(&h) >= 0);
            }
            harness_finish(&h);
            for (uint32_t i = 0; i < N; i++)
                expect(&want[i], of[i], "order, request", (unsigned)order, i);
            harness_check_idle(&h);
            harness_close(&h);
        }
}

/* ---- Equal requests at once; counts about 256 ---- */

static void test_equal_at_once(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        const struct engine_options o = options(PLAN_TUNED, 5, 3);
        const struct engine_request r = usual(i);
        struct harness h;

        harness_open(&h, &o, test_device_open(2, false));
        for (int k = 0; k < 11; k++) (void)harness_submit(&h, &r);
        harness_finish(&h);
        for (uint32_t k = 0; k < 11; k++) expect(&want[i], &h.results[k], "equal, place", i, k);
        harness_close(&h);
    }
}

static void test_counts(void **state) {
    static const uint32_t counts[] = {255, 256, 257};
    struct harness_result must[4];

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        const struct engine_request r = request_of(i, 3, 4);

        must[i] = alone(&r);
    }
    for (int c = test_device_is_cuda() ? 0 : 2; c < 3; c++) {
        struct engine_options o = options(PLAN_TUNED, 3, 8);
        struct harness h;

        o.max_requests = 260;
        o.max_queue = 260;
        o.kv_tokens = 260 * DEVICE_PAGE_TOKENS;
        o.step_tokens = 512;
        harness_open(&h, &o, test_device_open(2, false));
        for (uint32_t k = 0; k < counts[c]; k++) {
            const struct engine_request r = request_of(k % 4, 3, 4);

            (void)harness_submit(&h, &r);
        }
        harness_finish(&h);
        for (uint32_t k = 0; k < counts[c]; k++)
            expect(&must[k % 4], &h.results[k], "count, place", counts[c], k);
        harness_close(&h);
    }
}

/* ---- Windows that start anywhere ---- */

struct wrong {
    uint32_t position; /* of the token that a fast step gets wrong, of every request */
};

static uint32_t go_wrong(void *context, const struct device_want *w, uint32_t position,
                         uint32_t token) {
    const struct wrong *wrong = context;

    (void)w;
    return position == wrong->position ? (token + 7) % VOCAB : token;
}

/* One wrong candidate at each place of the first window, so that the next one starts there, and the
 * token that a whole window earns; beside
 * others whose windows start elsewhere, and with the padding of a fixed shape. */
static void test_offsets(void **state) {
    enum { W = 7 };

    (void)state;
    for (uint32_t offset = 0; offset < W; offset++)
        for (uint32_t n_others = 0; n_others < 4; n_others += 1 + n_others)
            for (int fixed = 0; fixed < 2; fixed++) {
                const uint32_t i = (offset + n_others) % N;
                struct engine_options o = options(PLAN_TUNED, W, 2 + n_others % 2);
                struct engine_request r = usual(i);
                struct wrong wrong = {r.n_prompt + 1 + offset};
                const struct device_fault_rules rules = {.wrong = go_wrong, .context = &wrong};
                struct device *dev = test_device_open(2, false);
                struct harness_result *one = NULL;
                struct harness h;
                struct err e;

                o.fixed_shape = fixed;
                o.uncertified = true;
                if (device_fault_open(dev, &rules, &dev, &e) < 0) fail_msg("%s", e.text);
                harness_open(&h, &o, dev);
                for (uint32_t k = 0; k <= n_others; k++) { /* the subject in each place */
                    const uint32_t which = k == offset % (n_others + 1) ? i : (i + 1 + k) % N;

                    r = usual(which);
                    if (which == i) one = harness_submit(&h, &r);
                    if (which != i) (void)harness_submit(&h, &r);
                }
                harness_finish(&h);
                expect(&want[i], one, "offset, others", offset, n_others);
                /* Beside others it may have been a step of theirs, which was canonical. */
                if (n_others == 0 && offset < W - 1) assert_true(one->usage.rollbacks >= 1);
                harness_close(&h);
            }
}

/* ---- Prompts that end at the borders of pages, blocks and splits ---- */

static void test_borders(void **state) {
    static const uint32_t lengths[] = {1, 63, 64, 65, 127, 128, 129, 511, 512, 513};
    enum { N_LENGTHS = sizeof(lengths) / sizeof(lengths[0]) };
    const uint32_t n = N_LENGTHS;
    struct harness_result must[N_LENGTHS];

    (void)state;
    for (uint32_t i = 0; i < n; i++) {
        const struct engine_request r = request_of(i, lengths[i], 6);

        must[i] = alone(&r);
    }
    for (uint32_t step_tokens = 48; step_tokens <= 1024; step_tokens = step_tokens * 8 + 640) {
        struct engine_options o = options(PLAN_TUNED, 4, 4);
        struct harness h;

        o.context = 1024;
        o.step_tokens = step_tokens;
        harness_open(&h, &o, test_device_open(2, false));
        for (uint32_t i = 0; i < n; i++) {
            const struct engine_request r = request_of(i, lengths[i], 6);

            (void)harness_submit(&h, &r);
        }
        harness_finish(&h);
        for (uint32_t i = 0; i < n; i++)
            expect(&must[i], &h.results[i], "prompt, step_tokens", lengths[i], step_tokens);
        harness_close(&h);
    }
}

/* ---- Pauses: before the first token, within a window, when it is due, after it ---- */

static void test_pauses(void **state) {
    (void)state;
    for (int uncertified = 0; uncertified < 2; uncertified++)
        for (uint32_t at = 0; at < 10; at++) {
            struct engine_options o = options(PLAN_TUNED, 4, 2);
            struct engine_request r = usual(at % N), other = usual((at + 1) % N);
            struct harness_result *one;
            uint32_t n_paused = 0;
            struct harness h;

            o.uncertified = uncertified;
            harness_open(&h, &o, test_device_open(2, false));
            h.auto_grant = false;
            r.grant = at;
            one = harness_submit(&h, &r);
            (void)harness_submit(&h, &other);
            while (!one->ended) {
                assert_true(harness_step(&h) >= 0);
                if (one->n_events < r.grant || ++n_paused % 9) continue;
                engine_grant(h.engine, one->handle, 1 + at % 3); /* and pauses again */
                r.grant += 1 + at % 3;
            }
            expect(&want[at % N], one, "paused at", at, (unsigned)uncertified);
            harness_finish(&h);
            harness_check_idle(&h);
            harness_close(&h);
        }
}

/* ---- A row that leaves the arithmetic, in a prompt, a step, a window ---- */

struct flagged {
    uint64_t seed; /* of the request that it is in */
    uint32_t position;
};

static bool leaves(void *context, const struct device_want *w, uint32_t position) {
    const struct flagged *f = context;

    return w->params.seed == f->seed && position == f->position;
}

static void test_numeric(void **state) {
    (void)state;
    for (int policy = PLAN_CANONICAL; policy <= PLAN_TUNED; policy++)
        for (uint32_t ahead = 0; ahead < 6; ahead++) {
            const struct engine_options o = options((enum plan_policy)policy, 3, 4);
            struct engine_request r = usual(5);
            struct flagged flagged = {5, r.n_prompt + ahead};
            const struct device_fault_rules rules = {.numeric = leaves, .context = &flagged};
            struct device *dev = test_device_open(2, false);
            struct harness h;
            struct err e;

            if (device_fault_open(dev, &rules, &dev, &e) < 0) fail_msg("%s", e.text);
            harness_open(&h, &o, dev);
            for (uint32_t i = 0; i < N; i++) {
                r = usual(i);
                (void)harness_submit(&h, &r);
            }
            harness_finish(&h);
            for (uint32_t i = 0; i < N; i++) {
                if (i != 5) expect(&want[i], &h.results[i], "beside a flagged row", ahead, i);
            }
            assert_true(h.results[5].failed && h.results[5].code == -EDOM);
            assert_true(h.results[5].n_ids <= ahead); /* nothing of that row was committed */
            harness_check_idle(&h);
            harness_close(&h);
        }
}

/* ---- Delays in both threads ---- */

static atomic_bool stop;

static void sleep_us(uint32_t us) {
    const struct timespec t = {0, 1000l * us};

    (void)nanosleep(&t, NULL);
}

static bool dawdle(void *context) {
    struct harness_random *random = context;

    if (harness_below(random, 3) == 0) sleep_us(harness_below(random, 3000));
    return false;
}

static void *engine_main(void *context) {
    struct engine *g = context;

    while (!atomic_load(&stop))
        if (engine_step(g) == 0) engine_wait(g, 20);
    return NULL;
}

static void test_delays(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= 3; seed++) {
        const struct engine_options o = options((enum plan_policy)(seed % 3), 5, 2);
        struct harness_random in_step = {seed}, random = {seed + 100};
        const struct device_fault_rules rules = {.before = dawdle, .context = &in_step};
        struct device *dev = test_device_open(2, false);
        uint32_t n = 0, n_ended = 0;
        struct engine_event event;
        struct harness h;
        pthread_t thread;
        struct err e;

        if (device_fault_open(dev, &rules, &dev, &e) < 0) fail_msg("%s", e.text);
        harness_open(&h, &o, dev);
        atomic_store(&stop, false);
        assert_int_equal(pthread_create(&thread, NULL, engine_main, h.engine), 0);
        while (n_ended < 2 * N) {
            if (n < 2 * N) {
                const struct engine_request r = usual(n++ % N);

                (void)harness_submit(&h, &r);
            }
            if (harness_below(&random, 2)) sleep_us(harness_below(&random, 5000));
            while (engine_next(h.engine, &event)) {
                harness_take(&h, &event);
                n_ended += event.kind == ENGINE_DONE;
                assert_true(event.kind != ENGINE_FAILED);
                if (harness_below(&random, 8) == 0) sleep_us(harness_below(&random, 1000));
            }
        }
        atomic_store(&stop, true);
        engine_wake(h.engine);
        (void)pthread_join(thread, NULL);
        for (uint32_t i = 0; i < 2 * N; i++)
            expect(&want[i % N], &h.results[i], "delays, request", seed, i);
        harness_close(&h);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders),  cmocka_unit_test(test_equal_at_once),
        cmocka_unit_test(test_counts),  cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_borders), cmocka_unit_test(test_pauses),
        cmocka_unit_test(test_numeric), cmocka_unit_test(test_delays),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
