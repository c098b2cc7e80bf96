/* The engine over a toy device: whatever else runs, in whatever order, a deterministic request
 * gives its solo digest; what is cancelled or fails takes nothing with it; nothing leaks. */
#include "tests/harness.h"
#include <math.h>
#include <poll.h>
#include <time.h>

#include "runtime/sha256.h"
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

/* Too little memory: the engine does not open, and says what for. */
static void test_no_memory(void **state) {
    struct device_fault_rules rules = {.no_memory = true};
    struct engine_options o = harness_options();
    struct engine *engine = NULL;
    struct device *dev = NULL;
    struct err e = {.text = ""};

    (void)state;
    assert_int_equal(device_fault_open(toy_open(), &rules, &dev, NULL), 0);
    assert_int_equal(engine_open(&o, dev, &engine, &e), -ENOMEM);
    assert_null(engine);
    assert_non_null(strstr(e.text, "weights"));
}

/* What the device is at is told while it is, and no longer. */
struct looker {
    struct engine *engine;
    uint32_t n_steps;
    uint64_t n_rows;
};

static bool look(void *context) {
    struct looker *l = context;
    struct engine_stats t;

    if (!l->engine) return false; /* the self-test */
    engine_stats_get(l->engine, &t);
    assert_true(t.step_us > 0 && t.step_rows > 0 && t.step_us >= t.last_step_us);
    l->n_steps++;
    l->n_rows += t.step_rows;
    return false;
}

static void test_step_at_hand(void **state) {
    struct looker looker = {NULL, 0, 0};
    struct device_fault_rules rules = {.before = look, .context = &looker};
    struct engine_options o = harness_options();
    const uint32_t prompt[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct engine_request r = harness_request(prompt, 9, 20);
    struct engine_stats t;
    struct device *dev;
    struct harness h;

    (void)state;
    assert_int_equal(device_fault_open(toy_open(), &rules, &dev, NULL), 0);
    harness_open(&h, &o, dev);
    looker.engine = h.engine;
    (void)harness_submit(&h, &r);
    harness_finish(&h);
    engine_stats_get(h.engine, &t);
    assert_int_equal(t.step_us, 0);
    assert_int_equal(looker.n_steps, t.steps_canonical + t.steps_tuned);
    assert_true(looker.n_rows >= t.tokens_prompt + t.tokens_decoded);
    looker.engine = NULL;
    harness_close(&h);
}

/* kv_tokens 0: as a device of its own memory says, between one context and all that can be in use;
 * of another 16384, or a context. */
static void test_room(void **state) {
    static const struct {
        uint64_t n_room;
        uint32_t n_pages;
    } cases[] = {{0, 256}, {1, 8}, {9, 9}, {23, 23}, {24, 24}, {25, 24}, {UINT64_MAX, 24}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct engine_options o = harness_options();
        struct harness h;

        o.max_requests = 3; /* of 512 positions, 8 pages each */
        o.kv_tokens = 0;
        toy_room_pages = cases[i].n_room;
        harness_open(&h, &o, toy_open());
        toy_room_pages = 0;
        assert_int_equal(engine_facts_get(h.engine)->options.kv_tokens, 64 * cases[i].n_pages);
        harness_close(&h);
        /* Pages of padding come out of the same room. */
        o.fixed_shape = true;
        o.window = 32;
        o.group = 8;
        toy_room_pages = cases[i].n_room ? cases[i].n_room + 4 : 0;
        if (cases[i].n_room == UINT64_MAX) toy_room_pages = UINT64_MAX;
        harness_open(&h, &o, toy_open());
        toy_room_pages = 0;
        assert_int_equal(engine_facts_get(h.engine)->options.kv_tokens, 64 * cases[i].n_pages);
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

/* One request among seven that are replaced as soon as they end: how many steps it takes, and the
 * most between two of its tokens. */
static void flood(const struct engine_options *o, bool subject_is_plain, uint32_t *out_steps,
                  uint32_t *out_gap) {
    static const uint32_t prompt[400] = {3};
    struct engine_request subject = harness_request(prompt, 4, 64), other;
    struct harness_result *one;
    struct harness h;
    uint32_t n_ids = 0, moved = 0;

    *out_gap = 0;
    harness_open(&h, o, toy_open());
    subject.ignore_eos = true;
    other = subject;
    subject.deterministic = !subject_is_plain;
    other.deterministic = subject_is_plain;
    other.n_prompt = subject_is_plain ? 4 : 400;
    other.max_tokens = subject_is_plain ? 20 : 1;
    one = harness_submit(&h, &subject);
    while (!one->ended) {
        while (engine_count(h.engine) < 8) (void)harness_submit(&h, &other);
        assert_true(harness_step(&h) > 0);
        if (h.n_steps - moved > *out_gap) *out_gap = h.n_steps - moved;
        if (one->n_ids != n_ids) moved = h.n_steps;
        n_ids = one->n_ids;
        assert_true(h.n_steps < 1000);
    }
    *out_steps = h.n_steps;
    harness_finish(&h);
    harness_check_idle(&h);
    harness_close(&h);
}

/* Neither starves: plain prompts without end beside a deterministic request, and deterministic
 * requests without end beside a plain one, which no more than one pass ever holds up. */
static void test_floods(void **state) {
    (void)state;
    for (int policy = 0; policy < 3; policy++)
        for (int fixed = 0; fixed < 2; fixed++)
            for (int uncertified = 0; uncertified < (policy == PLAN_TUNED ? 2 : 1); uncertified++) {
                struct engine_options o = harness_options();
                uint32_t n_steps, gap;

                o.policy = (enum plan_policy)policy;
                o.fixed_shape = fixed;
                o.uncertified = uncertified;
                o.max_requests = 8;
                o.window = 4;
                o.group = 3;
                flood(&o, false, &n_steps, &gap);
                /* Four tokens a window of four steps at the worst, each a half where passes and
                 * others take turns, and rolled back now and then. */
                print_message("policy %d%s%s: deterministic among prompts %u steps, %u at most "
                              "between commits",
                              policy, fixed ? " fixed" : "", uncertified ? " uncertified" : "",
                              n_steps, gap);
                assert_true(n_steps <= 64 * 4 && gap <= 12);
                flood(&o, true, &n_steps, &gap);
                print_message("; plain among deterministic %u steps, %u\n", n_steps, gap);
                assert_true(n_steps <= (fixed ? 2u : 1u) * 64 + 8 && gap <= (fixed ? 2u : 1u) + 1);
            }
}

/* What the toy puts out, by the seed of the request; past the end, what it would. */
struct script {
    uint32_t n_prompt, n_ids;
    uint32_t ids[256];
    uint32_t n_asked; /* rows wanted at or after the prompt's end */
};

enum { N_SCRIPTS = 4, ID_A = 68, ID_B = 69, ID_C = 70, ID_X = 91, ID_FF = 191, ID_BAD = 777 };

static uint32_t by_script(void *context, const struct device_want *want, uint32_t position,
                          uint32_t token) {
    struct script *s = (struct script *)context + want->params.seed;

    if (want->params.seed >= N_SCRIPTS || position < s->n_prompt) return token;
    s->n_asked++;
    return position - s->n_prompt < s->n_ids ? s->ids[position - s->n_prompt] : token;
}

static const uint32_t ones[400] = {7, 8, 9};

static struct engine_request scripted(struct script *s, uint32_t seed, uint32_t max_tokens) {
    struct engine_request r = harness_request(ones, 2, max_tokens);

    s[seed].n_prompt = 2;
    r.params.seed = seed;
    return r;
}

static void set_script(struct script *s, uint32_t seed, const uint32_t *ids, uint32_t n) {
    memcpy(s[seed].ids, ids, n * sizeof(ids[0]));
    s[seed].n_ids = n;
}

static void add_stop(struct engine_request *r, const char *text) {
    struct stop_string *s = &r->stop_strings[r->n_stop_strings++];

    s->n_bytes = (uint16_t)strlen(text);
    memcpy(s->bytes, text, s->n_bytes);
}

/* n bytes that are no character each, all held back until the output ends. */
static struct engine_request held_text(struct script *s, uint32_t seed, uint32_t n) {
    struct engine_request r = scripted(s, seed, n);

    for (uint32_t i = 0; i < n; i++) s[seed].ids[i] = ID_FF;
    s[seed].n_ids = n;
    r.n_stop_strings = 1;
    r.stop_strings[0].n_bytes = 255;
    memset(r.stop_strings[0].bytes, 0xff, 255);
    r.grant = n;
    return r;
}

static void steps(struct harness *h, int n) {
    for (int i = 0; i < n; i++) assert_true(harness_step(h) >= 0);
}

static void expect_replacements(const struct harness_result *r, uint32_t n_bytes) {
    assert_int_equal(r->n_text, n_bytes);
    for (uint32_t i = 0; i < n_bytes; i++)
        assert_int_equal((uint8_t)r->text[i], (uint8_t) "\xef\xbf\xbd"[i % 3]);
}

/* Where no tuned step changes a token, a plain request gives the deterministic one's under every
 * policy, and nothing is ever dropped. */
static void test_plain(void **state) {
    static const struct toy_hooks steady = {.steady = true};
    struct harness_random random = {11};

    (void)state;
    for (int round = 0; round < 30; round++) {
        struct subject s = make_subject(&random);
        struct harness_result want = solo(&s);
        struct engine_options o = harness_options();
        struct engine_request r = request_of(&s);
        struct harness h;

        o.policy = (enum plan_policy)(round % 3);
        o.window = 1 + (uint32_t)round;
        for (int deterministic = 0; deterministic < 2; deterministic++) {
            r.deterministic = deterministic;
            harness_open(&h, &o, toy_open_with(&steady));
            (void)harness_submit(&h, &r);
            harness_finish(&h);
            assert_int_equal(h.results[0].n_ids, want.n_ids);
            assert_memory_equal(h.results[0].ids, want.ids, want.n_ids * sizeof(want.ids[0]));
            assert_int_equal(h.results[0].finish, want.finish);
            assert_int_equal(h.results[0].usage.recomputed, 0);
            harness_check_idle(&h);
            harness_close(&h);
        }
    }
}

struct flagging {
    struct script scripts[N_SCRIPTS]; /* first: the context of both hooks */
    uint32_t n_spared;                /* times that the row passes */
};

static bool flag_bad(void *context, const struct device_row *row) {
    struct flagging *f = context;

    if (row->token != ID_BAD) return false;
    if (f->n_spared == 0) return true;
    f->n_spared--;
    return false;
}

/* A row that attention flags fails its request: in a prompt, where nothing of it is wanted, in a
 * decode row, and in a window, the decode row having been well. */
static void test_flagged_rows(void **state) {
    struct harness_random random = {8};
    struct subject s = make_subject(&random);
    struct harness_result want = solo(&s);

    (void)state;
    for (uint32_t i = 0; i < want.n_ids; i++) assert_int_not_equal(want.ids[i], ID_BAD);
    for (int where = 0; where < 3; where++)
        for (int policy = 0; policy < 2; policy++) {
            struct flagging f = {.n_spared = where == 2 && policy == PLAN_TUNED};
            struct toy_hooks hooks = {.token = by_script, .flagged = flag_bad, .context = &f};
            struct engine_options o = harness_options();
            struct engine_request r = request_of(&s), bad;
            struct harness_result *failed, *good;
            uint32_t prompt[40] = {1, 2, 3};
            struct harness h;

            o.policy = (enum plan_policy)policy;
            o.step_tokens = 16;
            o.window = 8;
            r.params.seed = s.seeded ? r.params.seed : N_SCRIPTS;
            bad = harness_request(prompt, 40, 30);
            bad.ignore_eos = true;
            f.scripts[0].n_prompt = 40;
            f.scripts[0].n_ids = 6;
            f.scripts[0].ids[5] = ID_BAD;
            if (where == 0) prompt[20] = ID_BAD;
            harness_open(&h, &o, toy_open_with(&hooks));
            failed = harness_submit(&h, &bad);
            good = harness_submit(&h, &r);
            harness_finish(&h);
            assert_true(failed->failed);
            assert_int_equal(failed->code, -EDOM);
            if (where == 0) assert_int_equal(failed->n_ids, 0);
            if (where > 0 && policy == PLAN_CANONICAL) assert_int_equal(failed->n_ids, 6);
            assert_true(failed->n_ids <= 6);
            expect_same(&want, good, "beside a flagged row", (uint64_t)where);
            harness_check_idle(&h);
            harness_close(&h);
        }
}

/* Those in the queue are cancelled and late at once, whatever runs; the others keep their place. */
static void test_queue_is_cut(void **state) {
    struct engine_options o = harness_options();
    struct engine_request r = harness_request(ones, 4, 200);
    struct harness_result *runs, *cancelled, *late, *over, *stays;
    struct harness h;

    (void)state;
    o.max_requests = 1;
    harness_open(&h, &o, toy_open());
    r.ignore_eos = true;
    runs = harness_submit(&h, &r);
    steps(&h, 3);
    r.max_tokens = 5;
    cancelled = harness_submit(&h, &r);
    r.queue_deadline_us = 1;
    late = harness_submit(&h, &r);
    r.queue_deadline_us = 0;
    r.deadline_us = 1;
    over = harness_submit(&h, &r);
    r.deadline_us = 0;
    stays = harness_submit(&h, &r);
    engine_cancel(h.engine, cancelled->handle);
    steps(&h, 1);
    assert_true(cancelled->ended && late->ended && over->ended);
    assert_false(runs->ended || stays->ended);
    assert_int_equal(cancelled->finish, 3);
    assert_int_equal(late->finish, 4);
    assert_int_equal(over->finish, 4);
    harness_finish(&h);
    assert_int_equal(runs->finish, 2);
    assert_int_equal(runs->n_ids, 200);
    assert_int_equal(stays->finish, 2);
    harness_check_idle(&h);
    harness_close(&h);
}

static uint64_t clock_us(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* The queue's deadline is over once it runs; the other is not. */
static void test_deadlines_of_what_runs(void **state) {
    struct engine_options o = harness_options();
    struct engine_request r = harness_request(ones, 4, 50);
    struct harness_result *queued, *whole;
    uint64_t deadline_us = clock_us() + 400000;
    struct harness h;

    (void)state;
    harness_open(&h, &o, toy_open());
    r.ignore_eos = true;
    r.queue_deadline_us = deadline_us;
    queued = harness_submit(&h, &r);
    r.queue_deadline_us = 0;
    r.deadline_us = deadline_us;
    whole = harness_submit(&h, &r);
    steps(&h, 3);
    assert_true(queued->n_ids > 0 && whole->n_ids > 0);
    while (clock_us() < deadline_us) {
        struct timespec t = {0, 10000000};

        (void)nanosleep(&t, NULL);
    }
    harness_finish(&h);
    assert_int_equal(queued->finish, 2);
    assert_int_equal(queued->n_ids, 50);
    assert_int_equal(whole->finish, 4);
    assert_true(whole->n_ids < 50);
    harness_check_idle(&h);
    harness_close(&h);
}

/* The output is over, and its last text waits for a grant: the grant ends it, and so do a cancel
 * and the loss of the device, which leave that text out. */
static void test_last_text_waits(void **state) {
    enum { GRANT, CANCEL, CANCEL_STOPPED, LOST, N_WAYS };

    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        struct script scripts[N_SCRIPTS] = {{0}};
        struct toy_hooks hooks = {.token = by_script, .context = scripts};
        struct device_fault_rules rules = {.lost_at_step = 1};
        const struct device_fault_rules none = {0};
        struct engine_options o = harness_options();
        struct engine_request r = held_text(scripts, 0, 150), other;
        struct harness_result *one, *second;
        struct device *dev = NULL;
        struct harness h;

        assert_int_equal(device_fault_open(toy_open_with(&hooks), &none, &dev, NULL), 0);
        harness_open(&h, &o, dev);
        h.auto_grant = false;
        if (way == CANCEL_STOPPED) {
            scripts[0].ids[149] = ID_X;
            r.n_stop_ids = 2;
            r.stop_ids[0] = ID_A;
            r.stop_ids[1] = ID_X;
        }
        one = harness_submit(&h, &r);
        steps(&h, 200);
        assert_false(one->ended);
        assert_int_equal(one->n_events, 150);
        assert_int_equal(one->n_ids, 150);
        expect_replacements(one, 351); /* 352 would end inside a character */
        assert_int_equal(harness_step(&h), 0);
        if (way == GRANT) {
            engine_grant(h.engine, one->handle, 1);
            steps(&h, 1);
            assert_true(one->ended && !one->failed);
            assert_int_equal(one->finish, 2);
            expect_replacements(one, 450);
        } else if (way == LOST) {
            other = harness_request(ones, 4, 100);
            other.params.seed = N_SCRIPTS;
            other.grant = 100;
            second = harness_submit(&h, &other);
            steps(&h, 1);
            device_fault_set(dev, &rules);
            assert_int_equal(harness_step(&h), -EIO);
            assert_true(one->ended && one->failed && second->ended && second->failed);
            assert_int_equal(one->code, -EIO);
            assert_int_equal(second->code, -EIO);
        } else {
            engine_cancel(h.engine, one->handle);
            steps(&h, 1);
            assert_true(one->ended && !one->failed);
            assert_int_equal(one->finish, 3);
            assert_int_equal(one->stop_kind, 0);
            assert_int_equal(one->stop_index, 0);
            expect_replacements(one, 351);
        }
        if (way != LOST) harness_check_idle(&h);
        harness_close(&h);
    }
}

/* As many events as were granted, not one more, and no step without a grant. */
static void test_grants_are_kept(void **state) {
    static const uint32_t grants[] = {1, 3, 1, 2, 18, 1, 5, 7, 1, 1, 40};

    (void)state;
    for (int policy = 0; policy < 3; policy++) {
        struct engine_options o = harness_options();
        struct engine_request r = harness_request(ones, 20, 100);
        struct engine_stats stats;
        struct harness_result *one;
        uint32_t n_granted = 0;
        struct harness h;

        o.policy = (enum plan_policy)policy;
        o.window = 8;
        harness_open(&h, &o, toy_open());
        h.auto_grant = false;
        r.grant = 0;
        r.ignore_eos = true;
        r.prompt_logprobs = true;
        one = harness_submit(&h, &r);
        steps(&h, 20);
        engine_stats_get(h.engine, &stats);
        assert_int_equal(one->n_events, 0);
        assert_int_equal(stats.tokens_prompt, 0);
        for (size_t i = 0; i < sizeof(grants) / sizeof(grants[0]); i++) {
            engine_grant(h.engine, one->handle, grants[i]);
            n_granted += grants[i];
            steps(&h, 150);
            assert_int_equal(harness_step(&h), 0);
            assert_int_equal(one->n_events, n_granted);
            engine_stats_get(h.engine, &stats);
            if (policy == PLAN_CANONICAL)
                assert_int_equal(stats.tokens_decoded, one->n_ids ? one->n_ids - 1 : 0);
        }
        assert_false(one->ended);
        engine_grant(h.engine, one->handle, 100);
        harness_finish(&h);
        assert_int_equal(one->finish, 2);
        assert_int_equal(one->n_ids, 100);
        harness_check_idle(&h);
        harness_close(&h);
    }
}

/* Fills the ring of 2048 events up to n_left; nothing is taken from it. */
static void fill_ring(struct harness *h, uint32_t n_left) {
    struct engine_request r = harness_request(ones, 2, 510);
    struct engine_stats stats;

    r.deterministic = false;
    r.ignore_eos = true;
    r.params.seed = N_SCRIPTS;
    r.grant = 1000;
    for (int i = 0; i < 3; i++) (void)harness_submit(h, &r); /* started, 510 tokens, done */
    r.max_tokens = 510 - n_left;
    (void)harness_submit(h, &r);
    for (int i = 0; i < 600; i++) (void)engine_step(h->engine);
    engine_stats_get(h->engine, &stats);
    assert_int_equal(stats.requests_done, 4);
}

/* The ring is full and text waits: its request does not run. */
static void test_full_ring_holds_text(void **state) {
    struct script scripts[N_SCRIPTS] = {{0}};
    struct toy_hooks hooks = {.token = by_script, .context = scripts};
    struct engine_options o = harness_options();
    struct engine_request r = held_text(scripts, 0, 150);
    struct engine_stats before, after;
    struct harness_result *one;
    struct harness h;

    (void)state;
    harness_open(&h, &o, toy_open_with(&hooks));
    scripts[0].ids[150] = ID_X; /* what was held is shown, in two events */
    scripts[0].ids[151] = ID_A;
    scripts[0].n_ids = 152;
    r.max_tokens = 152;
    r.grant = 1000;
    fill_ring(&h, 1 + 151);
    engine_stats_get(h.engine, &before);
    one = harness_submit(&h, &r);
    for (int i = 0; i < 200; i++) (void)engine_step(h.engine);
    assert_int_equal(engine_step(h.engine), 0);
    engine_stats_get(h.engine, &after);
    assert_int_equal(after.tokens_committed - before.tokens_committed, 151);
    assert_int_equal(after.tokens_decoded - before.tokens_decoded, 150);
    harness_drain(&h);
    harness_finish(&h);
    assert_int_equal(one->finish, 2);
    assert_int_equal(one->n_text, 452);
    assert_memory_equal(one->text + 447, "\xef\xbf\xbdxa", 5);
    harness_check_idle(&h);
    harness_close(&h);
}

/* The ring fills between two steps of a prompt, whose records are as many as a step may give: those
 * of both wait, and all come out. */
static void test_full_ring_between(void **state) {
    enum { N_PROMPT = 400 };
    struct harness_result want = {.ended = false}, *one;
    struct harness h;

    (void)state;
    for (uint32_t n_left = 0; n_left < 200; n_left += n_left ? 33 : 1 + 64 + 6) {
        struct engine_options o = harness_options();
        struct engine_request r = harness_request(ones, N_PROMPT, 5);

        o.step_tokens = 512;
        harness_open(&h, &o, toy_open());
        r.prompt_logprobs = true;
        r.n_prompt_top = 3;
        r.grant = 1000;
        if (n_left) fill_ring(&h, n_left);
        one = harness_submit(&h, &r);
        for (int i = 0; i < 20; i++) (void)engine_step(h.engine);
        harness_drain(&h);
        harness_finish(&h);
        assert_int_equal(one->n_prompt, N_PROMPT - 1);
        if (n_left)
            expect_same(&want, one, "after a full ring", n_left);
        else
            want = *one;
        harness_check_idle(&h);
        harness_close(&h);
    }
}

/* It failed before it was cancelled, and says so. */
static void test_failed_then_cancelled(void **state) {
    struct flagging f = {.n_spared = 0};
    struct toy_hooks hooks = {.token = by_script, .flagged = flag_bad, .context = &f};
    static const uint32_t ids[] = {ID_A, ID_A, ID_BAD};
    struct engine_options o = harness_options();
    struct engine_request r = scripted(f.scripts, 0, 20);
    struct engine_stats stats;
    struct harness_result *one;
    struct harness h;

    (void)state;
    set_script(f.scripts, 0, ids, 3);
    harness_open(&h, &o, toy_open_with(&hooks));
    fill_ring(&h, 1 + 3);
    one = harness_submit(&h, &r);
    for (int i = 0; i < 10; i++) (void)engine_step(h.engine);
    engine_cancel(h.engine, one->handle);
    for (int i = 0; i < 10; i++) assert_int_equal(engine_step(h.engine), 0);
    harness_drain(&h);
    harness_finish(&h);
    assert_true(one->ended && one->failed);
    assert_int_equal(one->code, -EDOM);
    engine_stats_get(h.engine, &stats);
    assert_int_equal(stats.requests_failed, 1);
    assert_int_equal(stats.requests_cancelled, 0);
    harness_check_idle(&h);
    harness_close(&h);
}

/* One after the other on one lane: what is shown of an output, and why it ended. */
static void test_ends_of_outputs(void **state) {
    static const struct {
        const char *why;
        uint32_t ids[8], n_ids, max_tokens;
        bool ignore_eos;
        uint32_t stop_ids[2], n_stop_ids;
        const char *stops[2];
        const char *text;
        uint32_t want_ids;
        uint8_t finish, kind;
        uint16_t index;
    } cases[] = {
        {"special tokens have no text",
         {ID_A, 0, 2, 3, ID_B},
         5,
         5,
         false,
         {0},
         0,
         {0},
         "ab",
         5,
         2,
         0,
         0},
        {"an end of text", {ID_A, EOS, ID_B}, 3, 5, false, {0}, 0, {0}, "a", 2, 1, 1, 0},
        {"the same behind own ids",
         {ID_A, EOS, ID_B},
         3,
         5,
         false,
         {500, 600},
         2,
         {0},
         "a",
         2,
         1,
         1,
         2},
        {"nothing is left of the one before",
         {ID_A, ID_B},
         2,
         2,
         false,
         {0},
         0,
         {0},
         "ab",
         2,
         2,
         0,
         0},
        {"an end of text that is ignored",
         {ID_A, EOS, ID_B},
         3,
         3,
         true,
         {0},
         0,
         {0},
         "ab",
         3,
         2,
         0,
         0},
        {"ignored, and yet an own id",
         {ID_A, EOS, ID_B},
         3,
         3,
         true,
         {600, EOS},
         2,
         {0},
         "a",
         2,
         1,
         1,
         1},
        {"what was held is shown at the end",
         {ID_A, ID_B},
         2,
         2,
         false,
         {0},
         0,
         {"abc"},
         "ab",
         2,
         2,
         0,
         0},
        {"and before an id that stops",
         {ID_A, ID_B, ID_X},
         3,
         8,
         false,
         {ID_X},
         1,
         {"abc"},
         "ab",
         3,
         1,
         1,
         0},
        {"a string on the last token is a stop",
         {ID_X, ID_A, ID_B, ID_C},
         4,
         4,
         false,
         {0},
         0,
         {"q", "abc"},
         "x",
         4,
         1,
         2,
         1},
        {"nothing is left of that either",
         {ID_A, ID_B},
         2,
         2,
         false,
         {0},
         0,
         {0},
         "ab",
         2,
         2,
         0,
         0},
    };
    struct script scripts[N_SCRIPTS] = {{0}};
    struct toy_hooks hooks = {.steady = true, .token = by_script, .context = scripts};

    (void)state;
    for (int policy = 0; policy < 3; policy++) {
        struct engine_options o = harness_options();
        struct harness h;

        o.policy = (enum plan_policy)policy;
        o.max_requests = 1;
        o.window = 4;
        harness_open(&h, &o, toy_open_with(&hooks));
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            struct engine_request r = scripted(scripts, 1, cases[i].max_tokens);
            struct harness_result *one;

            set_script(scripts, 1, cases[i].ids, cases[i].n_ids);
            r.ignore_eos = cases[i].ignore_eos;
            r.n_stop_ids = cases[i].n_stop_ids;
            memcpy(r.stop_ids, cases[i].stop_ids, sizeof(cases[i].stop_ids));
            for (int k = 0; k < 2 && cases[i].stops[k]; k++) add_stop(&r, cases[i].stops[k]);
            one = harness_submit(&h, &r);
            harness_finish(&h);
            if (one->n_ids != cases[i].want_ids || one->n_text != strlen(cases[i].text) ||
                memcmp(one->text, cases[i].text, one->n_text) != 0 ||
                one->finish != cases[i].finish || one->stop_kind != cases[i].kind ||
                one->stop_index != cases[i].index)
                fail_msg("%s: %u ids, \"%.*s\", finish %u, stop %u of kind %u", cases[i].why,
                         one->n_ids, (int)one->n_text, one->text, one->finish, one->stop_index,
                         one->stop_kind);
        }
        harness_check_idle(&h);
        harness_close(&h);
    }
}

/* The prompt's logprobs alone: the row after them is not asked for. */
static void test_no_tokens_wanted(void **state) {
    struct script scripts[N_SCRIPTS] = {{0}};
    struct toy_hooks hooks = {.token = by_script, .context = scripts};
    struct engine_options o = harness_options();
    struct engine_request r;
    struct harness_result *one;
    struct harness h;

    (void)state;
    harness_open(&h, &o, toy_open_with(&hooks));
    r = harness_request(ones, 200, 0);
    r.params.seed = 1;
    r.prompt_logprobs = true;
    scripts[1].n_prompt = 200;
    one = harness_submit(&h, &r);
    harness_finish(&h);
    assert_int_equal(one->finish, 2);
    assert_int_equal(one->n_prompt, 199);
    assert_int_equal(one->n_ids, 0);
    assert_int_equal(scripts[1].n_asked, 0);
    harness_check_idle(&h);
    harness_close(&h);
}

/* Windows that are all due, one of them a pass: each in its turn. */
static void test_due_in_turn(void **state) {
    static const struct toy_hooks steady = {.steady = true};
    enum { N = 6 };

    (void)state;
    for (uint32_t window = 1; window <= 4; window++)
        for (int fixed = 0; fixed < 2; fixed++) {
            struct engine_options o = harness_options();
            struct engine_request r = harness_request(ones, 4, 60);
            uint32_t n_ids[N] = {0}, moved[N] = {0};
            struct harness h;

            o.policy = PLAN_TUNED;
            o.window = window;
            o.group = 1;
            o.fixed_shape = fixed;
            harness_open(&h, &o, toy_open_with(&steady));
            r.ignore_eos = true;
            for (int i = 0; i < N; i++) (void)harness_submit(&h, &r);
            while (engine_count(h.engine) > 0) {
                steps(&h, 1);
                for (int i = 0; i < N; i++) {
                    if (h.results[i].n_ids != n_ids[i] || h.results[i].ended) moved[i] = h.n_steps;
                    n_ids[i] = h.results[i].n_ids;
                    /* A pass of a fixed shape and the others take turns. */
                    assert_true(h.n_steps - moved[i] <= (fixed ? 2u : 1u) * N + 2 * window);
                }
            }
            harness_finish(&h);
            harness_check_idle(&h);
            harness_close(&h);
        }
}

/* Windows of one row are due in every step: with a fixed shape plain requests and prompts move on
 * beside them all the same, and so do they. */
static void test_fixed_shape_wait(void **state) {
    (void)state;
    for (uint32_t n_due = 1; n_due <= 3; n_due++) {
        struct engine_options o = harness_options();
        struct engine_request r = harness_request(ones, 4, 400);
        struct harness_result *plain, *prompt;
        uint32_t n_before;
        struct harness h;

        o.policy = PLAN_TUNED;
        o.window = o.group = 1;
        o.fixed_shape = true;
        harness_open(&h, &o, toy_open());
        r.ignore_eos = true;
        for (uint32_t i = 0; i < n_due; i++) (void)harness_submit(&h, &r);
        r.deterministic = false;
        plain = harness_submit(&h, &r);
        steps(&h, 100);
        /* Every second step is a pass of one window, and every second one the plain request's. */
        for (uint32_t i = 0; i < n_due; i++)
            assert_true(h.results[i].n_ids >= 100 / (2 * n_due) - 2);
        assert_true(plain->n_ids >= 48);
        n_before = plain->n_ids;
        r.n_prompt = 300;
        r.max_tokens = 1;
        prompt = harness_submit(&h, &r);
        steps(&h, 8 * (int)(n_due + 2));
        assert_true(prompt->ended);
        assert_true(plain->n_ids > n_before);
        harness_finish(&h);
        harness_check_idle(&h);
        harness_close(&h);
    }
}

/* A prompt beside others without end on lanes before its own. */
static void test_prompts_in_turn(void **state) {
    struct engine_options o = harness_options();
    struct engine_request r = harness_request(ones, 400, 1);
    struct harness_result *one;
    struct harness h;

    (void)state;
    o.max_requests = 3;
    o.step_tokens = 16;
    harness_open(&h, &o, toy_open());
    (void)harness_submit(&h, &r);
    r.n_prompt = 200;
    one = harness_submit(&h, &r);
    r.n_prompt = 400;
    for (int i = 0; i < 45; i++) {
        while (engine_count(h.engine) < 6) (void)harness_submit(&h, &r);
        steps(&h, 1);
    }
    assert_true(one->ended);
    harness_finish(&h);
    harness_close(&h);
}

struct meanwhile {
    struct harness *h; /* NULL: nobody looks */
    bool told;         /* the loop would have been woken */
};

static void look_meanwhile(void *context) {
    struct meanwhile *m = context;
    struct pollfd fd = {.events = POLLIN};

    if (!m->h) return;
    fd.fd = engine_event_fd(m->h->engine);
    m->told = poll(&fd, 1, 0) == 1;
    harness_drain(m->h);
}

/* While a step is computed the loop is told of what was posted before it: that a request began or
 * ended, and, where the device computes beside us, the token of the step before. */
static void test_told_meanwhile(void **state) {
    for (int stop_string = 0; stop_string < 2; stop_string++) {
        struct meanwhile m = {0};
        const struct toy_hooks hooks = {.wait = look_meanwhile, .context = &m};
        struct engine_options o = harness_options();
        struct engine_request r = harness_request(ones, 4, 5);
        struct harness_result *brief, *one;
        struct engine_stats stats;
        struct harness h;

        (void)state;
        harness_open(&h, &o, toy_open_with(&hooks));
        m.h = &h;
        r.ignore_eos = true;
        if (stop_string) add_stop(&r, "no such");
        brief = harness_submit(&h, &r);
        r.max_tokens = 20;
        one = harness_submit(&h, &r);
        for (uint32_t step = 1; step <= 20; step++) {
            const bool at_once = !toy_queues || stop_string;
            const uint32_t n_out = at_once ? step : step - 1;

            m.told = false;
            assert_int_equal(engine_step(h.engine), 1);
            assert_int_equal(m.told, step == 1 || !at_once || (stop_string && toy_queues));
            engine_stats_get(h.engine, &stats);
            assert_int_equal(stats.tokens_committed, n_out + (n_out < 5 ? n_out : 5));
            assert_int_equal(one->n_ids, step - 1);
            assert_int_equal(brief->ended, step > 5);
            assert_int_equal(brief->n_ids, step > 5 ? 5 : step - 1);
            if (!toy_queues) harness_drain(&h);
        }
        m.h = NULL;
        harness_finish(&h);
        assert_int_equal(one->n_ids, 20);
        harness_check_idle(&h);
        harness_close(&h);
    }
}

/* A line of the page tables is brought once for each request, and that of padding once. */
static void test_lines_once(void **state) {
    (void)state;
    for (int fixed = 0; fixed < 2; fixed++) {
        struct engine_options o = harness_options();
        struct engine_request r = harness_request(ones, 4, 60);
        struct toy_device *toy = (struct toy_device *)toy_open();
        uint64_t n_lines;
        struct harness h;

        o.policy = PLAN_TUNED;
        o.window = 16;
        o.group = 8; /* of padding, more than a page */
        o.fixed_shape = fixed;
        o.max_requests = 2;
        harness_open(&h, &o, &toy->base);
        n_lines = toy->n_lines_total;
        r.ignore_eos = true;
        for (int i = 0; i < 6; i++) (void)harness_submit(&h, &r);
        harness_finish(&h);
        assert_int_equal(toy->n_lines_total - n_lines, 6 + fixed);
        harness_check_idle(&h);
        harness_close(&h);
    }
}

/* A request that is cancelled, or fails, leaves its lane to the next in the same step as it is
 * told. */
static void test_lanes_go_on(void **state) {
    (void)state;
    for (int fails = 0; fails < 2; fails++) {
        struct flagging f = {.n_spared = 0};
        struct toy_hooks hooks = {.token = by_script, .flagged = flag_bad, .context = &f};
        static const uint32_t ids[] = {ID_A, ID_A, ID_A, ID_BAD};
        struct engine_options o = harness_options();
        struct engine_request r = scripted(f.scripts, 0, 20), other;
        struct harness_result *one, *next;
        struct harness h;

        o.max_requests = 2;
        harness_open(&h, &o, toy_open_with(&hooks));
        other = harness_request(ones, 4, 100);
        other.params.seed = N_SCRIPTS;
        other.ignore_eos = true;
        (void)harness_submit(&h, &other); /* runs beside them */
        set_script(f.scripts, 0, ids, fails ? 4 : 3);
        one = harness_submit(&h, &r);
        next = harness_submit(&h, &other);
        steps(&h, 4);
        assert_false(one->ended);
        if (fails) {
            for (int i = 0; i < 5 && !one->ended; i++) steps(&h, 1);
            assert_true(one->failed);
        } else {
            engine_cancel(h.engine, one->handle);
            steps(&h, 1);
            assert_true(one->ended);
        }
        /* Where it is told at the step's end the next begins in the one after. */
        if (fails && !toy_queues) steps(&h, 1);
        steps(&h, toy_queues ? 1 : 0);
        assert_int_equal(next->n_ids, 1);
        harness_finish(&h);
        harness_check_idle(&h);
        harness_close(&h);
    }
}

/* What is over leaves its lane and its pages to who waits for them, in the very next step; and what
 * waited for a grant is in that step too. */
static void test_nothing_is_held(void **state) {
    struct engine_options o = harness_options();
    struct engine_request r = harness_request(ones, 4, 100);
    struct harness_result *brief, *next, *prompt;
    struct engine_stats before, after;
    struct harness h;

    (void)state;
    o.max_requests = 2;
    o.kv_tokens = 256;
    o.step_tokens = 200;
    harness_open(&h, &o, toy_open());
    r.ignore_eos = true;
    (void)harness_submit(&h, &r); /* two pages */
    r.max_tokens = 1;
    r.n_prompt = 100; /* the other two */
    brief = harness_submit(&h, &r);
    next = harness_submit(&h, &r);
    for (int i = 0; i < 10 && !brief->ended; i++) steps(&h, 1);
    engine_stats_get(h.engine, &after);
    assert_int_equal(after.waiting, toy_queues ? 0 : 1); /* there it is told in the next step */
    assert_false(next->ended);
    steps(&h, 1);
    assert_true(next->ended);

    /* Records of a prompt that fill what there is room for. */
    h.auto_grant = false;
    r.prompt_logprobs = true;
    r.grant = 1;
    prompt = harness_submit(&h, &r);
    engine_grant(h.engine, h.results[0].handle, 200);
    steps(&h, 10);
    assert_int_equal(prompt->n_prompt, 1);
    engine_stats_get(h.engine, &before);
    engine_grant(h.engine, prompt->handle, 200);
    steps(&h, 1);
    engine_stats_get(h.engine, &after);
    assert_true(after.tokens_prompt > before.tokens_prompt);
    h.auto_grant = true;
    harness_finish(&h);
    harness_check_idle(&h);
    harness_close(&h);
}

/* A window that ends the output: its pages are given back when that is known, though its tokens
 * wait for grants; those come out one by one. */
static void test_decided_without_pages(void **state) {
    static const struct toy_hooks steady = {.steady = true};
    struct engine_options o = harness_options();
    struct engine_request r = harness_request(ones, 4, 9);
    struct harness_result *one;
    struct engine_stats stats;
    struct harness h;

    (void)state;
    o.policy = PLAN_TUNED;
    o.window = 8;
    harness_open(&h, &o, toy_open_with(&steady));
    h.auto_grant = false;
    r.ignore_eos = true;
    r.grant = 2;
    one = harness_submit(&h, &r);
    steps(&h, 20);
    assert_int_equal(one->n_ids, 2);
    engine_stats_get(h.engine, &stats);
    assert_int_equal(stats.kv_pages_free == stats.kv_pages, toy_queues);
    for (uint32_t i = 3; i <= 9; i++) {
        engine_grant(h.engine, one->handle, 1);
        steps(&h, 1);
        assert_int_equal(one->n_ids, i);
    }
    assert_int_equal(one->finish, 2);
    harness_finish(&h);
    harness_check_idle(&h);
    harness_close(&h);
}

/* One of a storm: what is wanted of it, and what was seen, digested as SPEC 2.12 says. */
struct rider {
    struct subject subject;
    struct engine_request request;
    const struct harness_result *want; /* alone, on another engine */
    struct harness_result *got;
    uint32_t granted;
    struct sha256 *digest;
};

enum { RIDERS = 40, SICK = 4242 };

static void digest_u32(struct sha256 *s, uint32_t x) {
    sha256_add(s, &x, sizeof(x));
}

static void digest_event(struct sha256 *s, const struct engine_event *event) {
    const uint8_t kind = event->kind == ENGINE_TOKEN ? 2 : 1;
    const uint16_t n_top = (uint16_t)event->n_top;

    sha256_add(s, &kind, 1);
    digest_u32(s, event->id);
    sha256_add(s, &event->logprob, sizeof(event->logprob));
    sha256_add(s, &n_top, sizeof(n_top));
    for (uint32_t i = 0; i < n_top; i++) {
        digest_u32(s, event->top_ids[i]);
        sha256_add(s, &event->top_logprobs[i], sizeof(float));
    }
}

static void take_ride(struct harness *h, struct rider *riders, const struct engine_event *event) {
    struct rider *rider = riders;
    uint8_t end[2] = {3, event->finish}, digest[SHA256_BYTES];

    while (rider->got != harness_find(h, event->handle)) rider++;
    harness_take(h, event);
    if (event->kind == ENGINE_TOKEN || event->kind == ENGINE_PROMPT_TOKEN)
        digest_event(rider->digest, event);
    if (rider->got->n_events > rider->granted)
        fail_msg("%u events, %u granted", rider->got->n_events, rider->granted);
    if (event->kind != ENGINE_DONE) return;
    sha256_add(rider->digest, end, sizeof(end));
    sha256_end(rider->digest, digest);
    assert_memory_equal(digest, event->digest, sizeof(digest));
}

/* Stops by id and by text, taken from what it gives alone, so that they strike. */
static void arm_rider(struct rider *rider, struct harness_random *random) {
    const struct harness_result *whole = rider->want;
    struct engine_request *r = &rider->request;

    if (harness_below(random, 3) == 0 && whole->n_ids > 2) {
        r->n_stop_ids = 1;
        r->stop_ids[0] = whole->ids[harness_below(random, whole->n_ids)];
    }
    if (harness_below(random, 3) == 0 && whole->n_text > 20) {
        r->n_stop_strings = 1;
        r->stop_strings[0].n_bytes = (uint16_t)(1 + harness_below(random, 12));
        memcpy(r->stop_strings[0].bytes, whole->text + harness_below(random, whole->n_text - 12),
               r->stop_strings[0].n_bytes);
    }
}

static struct engine_request ride_of(const struct subject *s) {
    struct engine_request r = request_of(s);

    if (s->seed % 8 == 0) r.params.seed = SICK;
    if (s->prompt_logprobs && s->seed % 3 == 0) r.max_tokens = 0;
    return r;
}

/* What each gives alone; those whose stops are taken from it go again with them. */
static void ride_alone(struct rider *riders, struct harness *h, struct harness_random *random) {
    struct engine_options o = harness_options();

    harness_open(h, &o, toy_open());
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < RIDERS; i++) {
            if (turn == 0) {
                riders[i].subject = make_subject(random);
                riders[i].request = ride_of(&riders[i].subject);
            } else {
                arm_rider(&riders[i], random);
            }
            riders[i].request.prompt = riders[i].subject.prompt;
            riders[i].request.grant = 16;
            riders[i].want = harness_submit(h, &riders[i].request);
            harness_finish(h);
        }
}

static bool sick_at(void *context, const struct device_want *want, uint32_t position) {
    return want->params.seed == SICK && position >= *(const uint32_t *)context;
}

static void check_ride(const struct rider *rider, uint64_t seed, bool lost) {
    const struct harness_result *got = rider->got, *want = rider->want;
    const uint32_t n = got->n_ids < want->n_ids ? got->n_ids : want->n_ids;

    assert_true(got->ended);
    if (got->failed && got->code == -EIO) assert_true(lost);
    if (got->failed && got->code == -EDOM) assert_int_equal(rider->request.params.seed, SICK);
    if (!rider->request.deterministic) return;
    if (!got->failed && got->finish <= 2) {
        expect_same(want, got, "in a storm", seed);
        assert_int_equal(got->stop_kind, want->stop_kind);
        assert_int_equal(got->stop_index, want->stop_index);
        assert_int_equal(got->n_prompt, want->n_prompt);
        assert_true(got->usage.certified <= got->n_ids);
    } else if (got->n_ids > want->n_ids || memcmp(got->ids, want->ids, n * sizeof(uint32_t)) ||
               memcmp(got->logprobs, want->logprobs, n * sizeof(float)) ||
               got->n_text > want->n_text || memcmp(got->text, want->text, got->n_text)) {
        fail_msg("seed %llu: no beginning of what it gives alone", (unsigned long long)seed);
    }
}

/* Everything at once: grants in ones or many, events taken late or not at all for long, cancels,
 * deadlines, rows out of range, a device that is lost; whatever is seen is a beginning of what the
 * request gives alone, digested, within its grants, and each ends once. */
static void storm(uint64_t seed) {
    struct harness_random random = {seed};
    const uint32_t sick_from = 1 + harness_below(&random, 120),
                   take_every = 1 + harness_below(&random, 4) * harness_below(&random, 100),
                   grant_most = 1 + harness_below(&random, 3) * 40,
                   cancel_every = harness_below(&random, 2) ? 500 : 5000;
    struct device_fault_rules rules = {.numeric = sick_at,
                                       .context = (void *)(uintptr_t)&sick_from};
    struct engine_options o = harness_options();
    struct rider riders[RIDERS] = {{.granted = 0}};
    uint32_t n_started = 0;
    struct device *dev = NULL;
    struct engine_event event;
    struct harness alone, h;
    int r = 1;

    ride_alone(riders, &alone, &random);
    if (harness_below(&random, 4) == 0) rules.lost_at_step = 10 + harness_below(&random, 200);
    o.policy = (enum plan_policy)harness_below(&random, 3);
    o.window = 1 + harness_below(&random, 20);
    o.group = 1 + harness_below(&random, 4);
    o.step_tokens = 1 + harness_below(&random, 100);
    o.max_requests = 2 + harness_below(&random, 30);
    o.kv_tokens = 512 + harness_below(&random, 3) * 1024;
    o.fixed_shape = harness_below(&random, 5) == 0;
    assert_int_equal(device_fault_open(toy_open(), &rules, &dev, NULL), 0);
    harness_open(&h, &o, dev);
    h.auto_grant = false;
    for (uint32_t turn = 0; n_started < RIDERS || engine_count(h.engine) > 0; turn++) {
        if (n_started < RIDERS && engine_count(h.engine) < o.max_requests + o.max_queue) {
            struct rider *rider = &riders[n_started];

            rider->request.deterministic = harness_below(&random, 4) > 0;
            rider->request.grant = rider->granted = harness_below(&random, grant_most + 1);
            if (harness_below(&random, 20) == 0)
                rider->request.deadline_us = clock_us() + harness_below(&random, 3000);
            rider->digest = sha256_open();
            sha256_start(rider->digest);
            sha256_add(rider->digest, "llm42 digest v1", 16);
            if (r == -EIO) break;
            rider->got = harness_submit(&h, &rider->request);
            n_started++;
        }
        r = engine_step(h.engine);
        h.n_steps++;
        for (uint32_t i = 0; i < n_started; i++) {
            struct rider *rider = &riders[i];

            if (harness_below(&random, cancel_every) == 0)
                engine_cancel(h.engine, rider->got->handle);
            if (harness_below(&random, 10) > 0) continue;
            if (rider->got->n_events + 200 > rider->granted) {
                const uint32_t n = 1 + harness_below(&random, grant_most);

                engine_grant(h.engine, rider->got->handle, n);
                rider->granted += n;
            }
        }
        if (turn % take_every == 0 || r <= 0)
            while (engine_next(h.engine, &event)) take_ride(&h, riders, &event);
        assert_true(turn < 100000);
    }
    for (uint32_t i = 0; i < n_started; i++) check_ride(&riders[i], seed, rules.lost_at_step > 0);
    for (uint32_t i = 0; i < RIDERS; i++) sha256_close(riders[i].digest);
    (void)engine_step(h.engine);
    if (r != -EIO) harness_check_idle(&h);
    harness_close(&alone);
    harness_close(&h);
}

static void test_storm(void **state) {
    const char *text = getenv("ENGINE_COMBINATIONS");
    const uint64_t n = text ? strtoull(text, NULL, 10) : 400;

    (void)state;
    for (uint64_t seed = 1; seed <= n / 2; seed++) storm(seed);
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
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_step_at_hand),
        cmocka_unit_test(test_event_ring_full),
        cmocka_unit_test(test_floods),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_flagged_rows),
        cmocka_unit_test(test_queue_is_cut),
        cmocka_unit_test(test_deadlines_of_what_runs),
        cmocka_unit_test(test_last_text_waits),
        cmocka_unit_test(test_grants_are_kept),
        cmocka_unit_test(test_full_ring_holds_text),
        cmocka_unit_test(test_full_ring_between),
        cmocka_unit_test(test_failed_then_cancelled),
        cmocka_unit_test(test_ends_of_outputs),
        cmocka_unit_test(test_no_tokens_wanted),
        cmocka_unit_test(test_due_in_turn),
        cmocka_unit_test(test_fixed_shape_wait),
        cmocka_unit_test(test_prompts_in_turn),
        cmocka_unit_test(test_told_meanwhile),
        cmocka_unit_test(test_lines_once),
        cmocka_unit_test(test_lanes_go_on),
        cmocka_unit_test(test_nothing_is_held),
        cmocka_unit_test(test_decided_without_pages),
        cmocka_unit_test(test_storm),
    };

    int n_failed = cmocka_run_group_tests_name("a device that is waited for", tests, NULL, NULL);

    toy_queues = true;
    return n_failed +
           cmocka_run_group_tests_name("a device that computes beside us", tests, NULL, NULL);
}
