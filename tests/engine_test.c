/* The engine over a toy device: whatever else runs, in whatever order, a deterministic request
 * gives its solo digest; what is cancelled or fails takes nothing with it; nothing leaks. */
#include "tests/harness.h"
#include <math.h>

#include "tests/toy_device.h"

enum { VOCAB = 2048, EOS = 1 };

struct subject {
    uint32_t prompt[96];
    uint32_t n_prompt, max_tokens;
    bool seeded;
    uint64_t seed;
    uint32_t n_top;
    bool prompt_logprobs;
    bool ignore_eos;
};

static struct subject make_subject(struct harness_random *random) {
    struct subject s = {.n_prompt = 1 + harness_below(random, 90),
                        .max_tokens = 1 + harness_below(random, 100),
                        .seeded = harness_below(random, 2),
                        .seed = harness_below(random, 1000),
                        .n_top = harness_below(random, 3),
                        .prompt_logprobs = harness_below(random, 5) == 0,
                        .ignore_eos = harness_below(random, 2)};

    for (uint32_t i = 0; i < s.n_prompt; i++) s.prompt[i] = harness_below(random, VOCAB);
    return s;
}

static struct engine_request request_of(const struct subject *s) {
    struct engine_request r = harness_request(s->prompt, s->n_prompt, s->max_tokens);

    r.params.temperature = s->seeded ? 1.0f : 0.0f;
    r.params.seed = s->seed;
    r.n_top = s->n_top;
    r.prompt_logprobs = s->prompt_logprobs;
    r.n_prompt_top = s->n_top;
    r.ignore_eos = s->ignore_eos;
    return r;
}

/* The subject alone on a fresh engine, canonical, window 32. */
static struct harness_result solo(const struct subject *s) {
    struct engine_options o = harness_options();
    struct engine_request r = request_of(s);
    struct harness h;
    struct harness_result result;

    harness_open(&h, &o, toy_open());
    (void)harness_submit(&h, &r);
    harness_finish(&h);
    harness_check_idle(&h);
    result = h.results[0];
    assert_true(result.ended && !result.failed);
    assert_int_equal(result.usage.verify_passes, 0);
    harness_close(&h);
    return result;
}

struct crowd {
    struct engine_options options;
    struct device_fault_rules rules;
    uint32_t n_neighbours;
    bool cancels;  /* of neighbours, at random steps */
    bool throttle; /* grants come late and in ones */
    uint64_t seed;
};

/* The subject among neighbours that come and go; some deterministic, some plain. */
static struct harness_result crowded(const struct subject *s, const struct crowd *c,
                                     struct engine_stats *out_stats) {
    struct harness_random random = {c->seed};
    struct engine_request r = request_of(s);
    struct device *dev = NULL;
    struct harness h;
    struct harness_result result, *subject = NULL;
    uint32_t n_left = c->n_neighbours, at = harness_below(&random, c->n_neighbours + 1);

    assert_int_equal(device_fault_open(toy_open(), &c->rules, &dev, NULL), 0);
    harness_open(&h, &c->options, dev);
    h.auto_grant = !c->throttle;
    while (n_left > 0 || !subject || engine_count(h.engine) > 0) {
        uint32_t n_new = harness_below(&random, 4);

        if (!subject && n_left == c->n_neighbours - at) subject = harness_submit(&h, &r);
        for (; n_new > 0 && n_left > 0 && (subject || n_left > c->n_neighbours - at) &&
               engine_count(h.engine) < 100;
             n_new--, n_left--) {
            struct subject other = make_subject(&random);
            struct engine_request q = request_of(&other);

            q.deterministic = harness_below(&random, 2);
            (void)harness_submit(&h, &q);
        }
        assert_true(harness_step(&h) >= 0);
        for (uint32_t i = 0; i < h.n_results; i++) {
            struct harness_result *one = &h.results[i];

            if (one->ended) continue;
            if (c->throttle && harness_below(&random, 3) == 0)
                engine_grant(h.engine, one->handle, 1);
            if (c->cancels && one != subject && harness_below(&random, 40) == 0)
                engine_cancel(h.engine, one->handle);
        }
        assert_true(h.n_steps < 100000);
    }
    (void)harness_step(&h);
    harness_check_idle(&h);
    result = *subject;
    engine_stats_get(h.engine, out_stats);
    harness_close(&h);
    return result;
}

static void expect_same(const struct harness_result *want, const struct harness_result *got,
                        const char *what, uint64_t seed) {
    if (!harness_same(want, got))
        fail_msg("%s, seed %llu: %s", what, (unsigned long long)seed,
                 harness_difference(want, got));
}

/* Candidates at every position of a window go wrong in turn, for every other request. */
struct wrong {
    uint32_t every, phase, token;
};

static uint32_t go_wrong(void *context, const struct device_want *want, uint32_t position,
                         uint32_t token) {
    const struct wrong *w = context;

    (void)want;
    if (position % w->every != w->phase) return token;
    return w->token != DEVICE_NO_TOKEN ? w->token : (token + 7) % VOCAB;
}

static void test_random_combinations(void **state) {
    static const uint32_t windows[] = {1, 2, 7, 32, 64}, groups[] = {1, 3, 8},
                          steps[] = {1, 16, 64, 512};
    const char *text = getenv("ENGINE_COMBINATIONS");
    uint64_t n_rollbacks = 0, n_tuned = 0, n = text ? strtoull(text, NULL, 10) : 400;

    (void)state;
    for (uint64_t seed = 1; seed <= n; seed++) {
        struct harness_random random = {seed};
        struct subject s = make_subject(&random);
        struct harness_result want = solo(&s), got;
        struct crowd c = {.options = harness_options(),
                          .n_neighbours = harness_below(&random, 40),
                          .cancels = harness_below(&random, 2),
                          .throttle = harness_below(&random, 3) == 0,
                          .seed = seed};
        struct engine_stats stats;

        c.options.policy = (enum plan_policy)harness_below(&random, 3);
        c.options.window = windows[harness_below(&random, 5)];
        c.options.group = groups[harness_below(&random, 3)];
        c.options.step_tokens = steps[harness_below(&random, 4)];
        c.options.max_requests = 2 + harness_below(&random, 63);
        c.options.max_queue = 128;
        c.options.kv_tokens = 512 + harness_below(&random, 4) * 2048;
        c.options.fixed_shape =
            c.options.window * c.options.group <= 512 && harness_below(&random, 4) == 0;
        got = crowded(&s, &c, &stats);
        expect_same(&want, &got, "random combination", seed);
        n_rollbacks += stats.rollbacks;
        n_tuned += stats.steps_tuned;
        if (c.options.policy == PLAN_CANONICAL) assert_int_equal(stats.verify_passes, 0);
    }
    print_message("natural rollbacks %llu, tuned steps %llu\n", (unsigned long long)n_rollbacks,
                  (unsigned long long)n_tuned);
    assert_true(n_rollbacks > n / 4 && n_tuned > n);
}

static void test_injected_at_every_place(void **state) {
    static const uint32_t windows[] = {1, 2, 7, 32};
    struct harness_random random = {99};
    struct subject s = make_subject(&random);
    struct harness_result want;

    (void)state;
    s.max_tokens = 70;
    s.ignore_eos = false;
    want = solo(&s);
    for (uint32_t w = 0; w < 4; w++)
        for (uint32_t phase = 0; phase < windows[w]; phase++)
            for (int eos = 0; eos < 2; eos++) {
                struct wrong wrong = {windows[w], phase, eos ? EOS : DEVICE_NO_TOKEN};
                struct crowd c = {.options = harness_options(),
                                  .rules = {.wrong = go_wrong, .context = &wrong},
                                  .n_neighbours = phase % 4,
                                  .seed = phase};
                struct engine_stats stats;
                struct harness_result got;

                c.options.policy = PLAN_TUNED;
                c.options.window = windows[w];
                got = crowded(&s, &c, &stats);
                expect_same(&want, &got, eos ? "EOS injected" : "wrong token injected", phase);
                if (windows[w] > 1) assert_true(got.usage.rollbacks > 0);
                assert_int_equal(got.usage.n_output, want.usage.n_output);
            }
}

/* max_tokens k gives the first k tokens of more, and the same logprobs. */
static void test_prefix(void **state) {
    struct harness_random random = {5};
    struct subject s = make_subject(&random);
    struct harness_result whole;

    (void)state;
    s.ignore_eos = true;
    s.max_tokens = 80;
    whole = solo(&s);
    for (uint32_t k = 1; k < 80; k += 3) {
        struct harness_result part;

        s.max_tokens = k;
        part = solo(&s);
        assert_int_equal(part.n_ids, k);
        assert_memory_equal(part.ids, whole.ids, k * sizeof(part.ids[0]));
        assert_memory_equal(part.logprobs, whole.logprobs, k * sizeof(part.logprobs[0]));
        assert_int_equal(part.finish, 2);
    }
}

static void test_stops(void **state) {
    struct harness_random random = {6};
    struct subject s = make_subject(&random);
    struct engine_options o = harness_options();
    struct engine_request r;
    struct harness_result whole, *got;
    struct harness h;

    (void)state;
    s.ignore_eos = true;
    s.max_tokens = 40;
    s.prompt_logprobs = false;
    whole = solo(&s);
    for (int policy = 0; policy < 3; policy++) {
        o.policy = (enum plan_policy)policy;
        harness_open(&h, &o, toy_open());
        r = request_of(&s);
        r.n_stop_ids = 1;
        r.stop_ids[0] = whole.ids[20];
        got = harness_submit(&h, &r);
        harness_finish(&h);
        assert_int_equal(got->finish, 1);
        assert_int_equal(got->stop_kind, 1);
        assert_true(got->n_ids <= 21 && got->ids[got->n_ids - 1] == whole.ids[20]);

        /* A stop on the last token allowed finishes as a stop. */
        r.max_tokens = got->n_ids;
        got = harness_submit(&h, &r);
        harness_finish(&h);
        assert_int_equal(got->finish, 1);

        /* A stop string that lies across tokens: cut before it, and nothing else is lost. */
        if (whole.n_text > 30) {
            r = request_of(&s);
            r.n_stop_strings = 2;
            r.stop_strings[0] = (struct stop_string){.n_bytes = 5};
            memcpy(r.stop_strings[0].bytes, "zzzzz", 5);
            r.stop_strings[1] = (struct stop_string){.n_bytes = 9};
            memcpy(r.stop_strings[1].bytes, whole.text + 20, 9);
            got = harness_submit(&h, &r);
            harness_finish(&h);
            assert_int_equal(got->finish, 1);
            assert_int_equal(got->stop_kind, 2);
            assert_true(got->n_text <= 20);
            assert_memory_equal(got->text, whole.text, got->n_text);
        }
        harness_check_idle(&h);
        harness_close(&h);
    }
}

static void test_cancel_and_deadline(void **state) {
    struct engine_options o = harness_options();
    struct harness_random random = {7};
    struct subject s = make_subject(&random);
    struct harness h;

    (void)state;
    o.policy = PLAN_TUNED;
    o.max_requests = 2;
    s.ignore_eos = true;
    s.max_tokens = 60;
    s.n_prompt = 60;
    o.step_tokens = 16;
    for (uint32_t after = 0; after < 60; after++) {
        struct engine_request r = request_of(&s);
        struct harness_result *first, *second, *third;

        harness_open(&h, &o, toy_open());
        first = harness_submit(&h, &r);
        second = harness_submit(&h, &r);
        third = harness_submit(&h, &r); /* waits behind them */
        for (uint32_t i = 0; i < after; i++) (void)harness_step(&h);
        engine_cancel(h.engine, first->handle);
        engine_cancel(h.engine, first->handle);
        if (after % 2) engine_cancel(h.engine, third->handle);
        (void)harness_step(&h);
        if (!first->ended) (void)harness_step(&h);
        assert_true(first->ended);
        harness_finish(&h);
        assert_true(second->ended && second->finish == 2);
        assert_true(first->finish == 3 || first->finish == 2);
        assert_memory_equal(first->ids, second->ids, first->n_ids * sizeof(first->ids[0]));
        engine_cancel(h.engine, first->handle); /* a dead handle is nobody's */
        harness_check_idle(&h);
        harness_close(&h);
    }
    harness_open(&h, &o, toy_open());
    {
        struct engine_request r = request_of(&s);
        struct harness_result *late;

        r.deadline_us = 1; /* long ago */
        late = harness_submit(&h, &r);
        harness_finish(&h);
        assert_int_equal(late->finish, 4);
        assert_int_equal(late->n_ids, 0);
    }
    harness_check_idle(&h);
    harness_close(&h);
}

static bool numeric_at(void *context, const struct device_want *want, uint32_t position) {
    return want->params.seed == 4242 && position == *(const uint32_t *)context;
}

static void test_numeric_fails_one(void **state) {
    struct harness_random random = {8};
    struct subject s = make_subject(&random);
    struct harness_result want = solo(&s);

    (void)state;
    for (uint32_t at = 20; at < 40; at++) {
        struct device_fault_rules rules = {.numeric = numeric_at, .context = &at};
        struct engine_options o = harness_options();
        struct engine_request r = request_of(&s), bad;
        struct harness_result *good, *failed;
        struct device *dev = NULL;
        struct harness h;

        o.policy = (enum plan_policy)(at % 3);
        assert_int_equal(device_fault_open(toy_open(), &rules, &dev, NULL), 0);
        harness_open(&h, &o, dev);
        bad = r;
        bad.n_prompt = s.n_prompt < 20 ? s.n_prompt : 20;
        bad.params.seed = 4242;
        bad.max_tokens = 60;
        bad.ignore_eos = true;
        failed = harness_submit(&h, &bad);
        good = harness_submit(&h, &r);
        harness_finish(&h);
        expect_same(&want, good, "beside a failing request", at);
        assert_true(failed->failed);
        assert_int_equal(failed->code, -EDOM);
        assert_true(failed->n_ids <= at - bad.n_prompt);
        harness_check_idle(&h);
        harness_close(&h);
    }
}

static void test_lost_device(void **state) {
    struct harness_random random = {9};
    struct subject s = make_subject(&random);

    (void)state;
    s.ignore_eos = true;
    for (uint64_t at = 4; at < 40; at += 5) {
        struct device_fault_rules rules = {.lost_at_step = at};
        struct engine_options o = harness_options();
        struct engine_request r = request_of(&s);
        struct device *dev = NULL;
        struct err e;
        uint64_t handle;
        struct harness h;
        int last = 0;

        r.max_tokens = 90;
        o.max_requests = 3;
        assert_int_equal(device_fault_open(toy_open(), &rules, &dev, NULL), 0);
        harness_open(&h, &o, dev);
        for (int i = 0; i < 10; i++) (void)harness_submit(&h, &r);
        for (int i = 0; i < 200 && last >= 0; i++) last = harness_step(&h);
        assert_int_equal(last, -EIO);
        for (int i = 0; i < 10; i++) {
            assert_true(h.results[i].ended && h.results[i].failed);
            assert_int_equal(h.results[i].code, -EIO);
        }
        assert_int_equal(engine_submit(h.engine, &r, &handle, &e), -EIO);
        harness_close(&h);
    }
}

static void test_refusals(void **state) {
    struct engine_options o = harness_options();
    uint32_t prompt[600] = {0};
    struct engine_request r;
    struct harness h;
    struct err e;
    uint64_t handle;

    (void)state;
    o.max_requests = 2;
    o.max_queue = 1;
    o.kv_tokens = 256;
    harness_open(&h, &o, toy_open());
#define REFUSED(code, change)                                             \
    do {                                                                  \
        r = harness_request(prompt, 10, 10);                              \
        change;                                                           \
        assert_int_equal(engine_submit(h.engine, &r, &handle, &e), code); \
        assert_true(e.text[0] != 0);                                      \
    } while (0)
    REFUSED(-EINVAL, r.n_prompt = 0);
    REFUSED(-EINVAL, r.max_tokens = 0);
    REFUSED(-EMSGSIZE, r.max_tokens = 503);
    REFUSED(-EMSGSIZE, r.max_tokens = UINT32_MAX);
    REFUSED(-EMSGSIZE, r.n_prompt = 512);
    REFUSED(-ENOSPC, r.max_tokens = 247);
    REFUSED(-EINVAL, prompt[3] = VOCAB);
    REFUSED(-EINVAL, prompt[3] = UINT32_MAX);
    prompt[3] = 0;
    REFUSED(-EINVAL, r.params.temperature = NAN);
    REFUSED(-EINVAL, r.params.top_p = 0);
    REFUSED(-EINVAL, r.n_top = 21);
    REFUSED(-EINVAL, r.n_stop_ids = ENGINE_STOP_IDS_MAX + 1);
    REFUSED(-EINVAL, (r.n_stop_ids = 1, r.stop_ids[0] = VOCAB));
    REFUSED(-EINVAL, (r.n_stop_strings = 1, r.stop_strings[0].n_bytes = 0));
    REFUSED(-EINVAL, (r.n_stop_strings = 1, r.stop_strings[0].n_bytes = 257));
#undef REFUSED
    r = harness_request(prompt, 10, 246); /* the last that fits */
    for (int i = 0; i < 3; i++) assert_int_equal(engine_submit(h.engine, &r, &handle, &e), 0);
    assert_int_equal(engine_submit(h.engine, &r, &handle, &e), -EBUSY);
    harness_close(&h); /* live requests are dropped */
}

/* Nobody takes events: the ring fills, the engine waits, and all comes out right afterwards. */
static void test_event_ring_full(void **state) {
    struct engine_options o = harness_options();
    struct harness_random random = {10};
    struct subject s = make_subject(&random);
    struct engine_request r;
    struct harness_result want;
    struct harness h;

    (void)state;
    s.ignore_eos = true;
    s.prompt_logprobs = false;
    s.max_tokens = 100;
    want = solo(&s);
    o.kv_tokens = 64 * 512;
    harness_open(&h, &o, toy_open());
    r = request_of(&s);
    r.grant = 1000;
    for (int i = 0; i < 60; i++) (void)harness_submit(&h, &r);
    for (int i = 0, idle = 0; idle < 20; i++) {
        idle = engine_step(h.engine) > 0 ? 0 : idle + 1;
        assert_true(i < 10000);
    }
    harness_drain(&h);
    harness_finish(&h);
    for (int i = 0; i < 60; i++)
        expect_same(&want, &h.results[i], "after a full ring", (uint64_t)i);
    harness_check_idle(&h);
    harness_close(&h);
}

/* Endless prefill beside one deterministic request, and the reverse: both move on. */
static void test_bounded_wait(void **state) {
    struct engine_options o = harness_options();
    uint32_t prompt[400] = {3};
    struct engine_request r;
    struct harness_result *one;
    struct harness h;
    uint32_t n_steps = 0;

    (void)state;
    o.policy = PLAN_TUNED;
    o.max_requests = 8;
    harness_open(&h, &o, toy_open());
    r = harness_request(prompt, 4, 64);
    r.ignore_eos = true;
    one = harness_submit(&h, &r);
    while (!one->ended) {
        struct engine_request p = harness_request(prompt, 400, 1);

        p.deterministic = false;
        while (engine_count(h.engine) < 8) (void)harness_submit(&h, &p);
        (void)harness_step(&h);
        assert_true(++n_steps < 200);
    }
    harness_finish(&h);
    harness_close(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_combinations),
        cmocka_unit_test(test_injected_at_every_place),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_cancel_and_deadline),
        cmocka_unit_test(test_numeric_fails_one),
        cmocka_unit_test(test_lost_device),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_event_ring_full),
        cmocka_unit_test(test_bounded_wait),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
