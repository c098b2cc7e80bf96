/* The promise itself, on a real model: against the twin's solo run on a fresh engine, one factor at
 * a time in full, then random combinations.  A digest is ids, logprob bits and finish.
 *
 *   LLM42_DEVICE=cuda            on the GPU, against the twin's solo run
 *   DETERMINISM_COMBINATIONS=n   random combinations (300)
 *   DETERMINISM_BRIEF=1          a small subset of all, for slow builds */
#include "tests/harness.h"
#include "tests/test_device.h"

#include <time.h>

#include "runtime/token.h"

enum { N_SUBJECTS = 4, MAX_TOKENS = 36, VOCAB = 2048 };

static const char *const texts[] = {
    "And it came to pass in those days, that there went out a decree from",
    "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer",
    "The king said unto the woman, Fear not:",
    "Now is the winter of our discontent made glorious summer by this son of York; And all the "
    "clouds that lour'd upon our house In the deep bosom of the ocean buried. Now are our brows "
    "bound with victorious wreaths; Our bruised arms hung up for monuments;",
    "O Lord, how manifold are thy works! in wisdom hast thou made them all:",
    "What say you, good my lord? ",
};
enum { N_TEXTS = sizeof(texts) / sizeof(texts[0]) };

struct prompt {
    uint32_t ids[256];
    uint32_t n;
};

struct setting {
    struct engine_options options;
    uint32_t n_threads;
    bool portable, on_twin;
    uint32_t n_neighbours;
    bool cancels, throttle, injects;
    uint32_t every, phase, token; /* of injected wrong tokens */
    uint64_t seed;
};

static struct prompt prompts[N_TEXTS];
static struct harness_result want[N_SUBJECTS];
static uint64_t n_natural_rollbacks, n_runs, n_tuned_steps, n_tokens_all;
static bool brief;

/* Greedy, seeded, seeded with every filter, and greedy with all logprobs. */
static struct engine_request subject(uint32_t which) {
    const struct prompt *p = &prompts[which];
    struct engine_request r = harness_request(p->ids, p->n, MAX_TOKENS);

    if (which == 1 || which == 2) r.params.temperature = which == 1 ? 0.7f : 1.0f;
    if (which == 2) r.params = (struct sample_params){1.0f, 0.9f, 0.01f, 50, 11};
    r.params.seed = which == 1 ? 7 : r.params.seed;
    if (which == 3) {
        r.n_top = 5;
        r.prompt_logprobs = true;
        r.n_prompt_top = 2;
    }
    return r;
}

static struct setting plain_setting(void) {
    struct setting s = {.options = harness_options(), .n_threads = 2};

    s.options.kv_tokens = 64 * 256;
    return s;
}

static uint32_t go_wrong(void *context, const struct device_want *w, uint32_t position,
                         uint32_t token) {
    const struct setting *s = context;

    (void)w;
    if (position % s->every != s->phase) return token;
    return s->token != DEVICE_NO_TOKEN ? s->token : (token + 7) % VOCAB;
}

static struct device *open_device(struct setting *s) {
    struct device_fault_rules rules = {.wrong = s->injects ? go_wrong : NULL, .context = s};
    struct device *dev = s->on_twin ? test_twin_open(s->n_threads, s->portable)
                                    : test_device_open(s->n_threads, s->portable);
    struct err e;

    if (s->injects && device_fault_open(dev, &rules, &dev, &e) < 0) fail_msg("%s", e.text);
    return dev;
}

static struct engine_request neighbour(struct harness_random *random) {
    const struct prompt *p = &prompts[harness_below(random, N_TEXTS)];
    uint32_t n = 2 + harness_below(random, p->n - 1);
    struct engine_request r = harness_request(p->ids, n, 1 + harness_below(random, MAX_TOKENS));

    r.deterministic = harness_below(random, 2);
    r.ignore_eos = harness_below(random, 2);
    r.params.temperature = harness_below(random, 2) ? 0.9f : 0.0f;
    r.params.seed = harness_below(random, 1000);
    r.n_top = harness_below(random, 3);
    return r;
}

/* The subject among neighbours; ends with the subject. */
static struct harness_result run(struct setting *s, uint32_t which) {
    struct harness_random random = {s->seed * 77 + which};
    struct engine_request r = subject(which);
    uint32_t n_left = s->n_neighbours;
    uint32_t n_first = n_left ? harness_below(&random, n_left + 1) : 0; /* before the subject */
    struct harness_result result, *one;
    struct engine_stats stats;
    struct harness h;

    harness_open(&h, &s->options, open_device(s));
    h.auto_grant = !s->throttle;
    for (; n_left > s->n_neighbours - n_first; n_left--) {
        struct engine_request q = neighbour(&random);

        (void)harness_submit(&h, &q);
        if (harness_below(&random, 4) == 0) assert_true(harness_step(&h) >= 0);
    }
    one = harness_submit(&h, &r);
    while (!one->ended) {
        if (n_left > 0 && harness_below(&random, 2)) {
            struct engine_request q = neighbour(&random);

            (void)harness_submit(&h, &q);
            n_left--;
        }
        assert_true(harness_step(&h) >= 0);
        for (uint32_t i = 0; i < h.n_results; i++) {
            struct harness_result *each = &h.results[i];

            if (each->ended) continue;
            if (s->throttle && harness_below(&random, 2)) engine_grant(h.engine, each->handle, 1);
            if (s->cancels && each != one && harness_below(&random, 16) == 0)
                engine_cancel(h.engine, each->handle);
        }
    }
    for (uint32_t i = 0; i < h.n_results; i++) engine_cancel(h.engine, h.results[i].handle);
    (void)harness_step(&h);
    (void)harness_step(&h);
    harness_check_idle(&h);
    engine_stats_get(h.engine, &stats);
    if (!s->injects) n_natural_rollbacks += stats.rollbacks;
    n_tuned_steps += stats.steps_tuned;
    n_tokens_all += stats.tokens_prompt + stats.tokens_decoded + stats.tokens_verified;
    n_runs++;
    result = *one;
    harness_close(&h);
    return result;
}

static void expect_all(struct setting *s, const char *what, unsigned value) {
    for (uint32_t which = 0; which < N_SUBJECTS; which++) {
        struct harness_result got;

        if (brief && which != s->seed % N_SUBJECTS) continue;
        got = run(s, which);
        if (!harness_same(&want[which], &got))
            fail_msg("%s %u, subject %u, seed %llu: %s", what, value, which,
                     (unsigned long long)s->seed, harness_difference(&want[which], &got));
    }
}

/* One subject by turns, where a factor has many values. */
static struct harness_result expect_one(struct setting *s, uint32_t which, const char *what,
                                        unsigned value) {
    struct harness_result got = run(s, which);

    if (!harness_same(&want[which], &got))
        fail_msg("%s %u, subject %u, seed %llu: %s", what, value, which,
                 (unsigned long long)s->seed, harness_difference(&want[which], &got));
    return got;
}

static int set_up(void **state) {
    struct token *token = NULL;
    struct err e;

    (void)state;
    brief = getenv("DETERMINISM_BRIEF") != NULL;
    if (token_open(HARNESS_MODEL "/tokenizer.json", &token, &e) < 0) fail_msg("%s", e.text);
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        int64_t n = token_encode(token, texts[i], strlen(texts[i]), TOKEN_ENCODE_TEMPLATE,
                                 prompts[i].ids, 256, &e);

        if (n < 0) fail_msg("%s", e.text);
        prompts[i].n = (uint32_t)n;
    }
    token_close(token);
    for (uint32_t which = 0; which < N_SUBJECTS; which++) {
        struct setting s = plain_setting();

        s.on_twin = true;
        want[which] = run(&s, which);
        assert_false(want[which].failed);
        assert_true(want[which].n_ids > 10); /* or it would show nothing */
    }
    return 0;
}

static void test_again_and_restarted(void **state) {
    struct setting s = plain_setting();

    (void)state;
    for (unsigned i = 0; i < 3; i++) expect_all(&s, "restart", i);
}

static void test_co_resident_counts(void **state) {
    (void)state;
    for (unsigned n = 1; n <= (brief ? 9 : 64); n += brief ? 8 : 1)
        for (int policy = n % 4 == 0 ? 0 : 1; policy < 2; policy++) {
            struct setting s = plain_setting();

            s.options.policy = policy ? PLAN_TUNED : PLAN_CANONICAL;
            s.n_neighbours = n - 1;
            s.seed = n;
            (void)expect_one(&s, (n + (unsigned)policy) % N_SUBJECTS,
                             policy ? "tuned, co-resident" : "canonical, co-resident", n);
        }
}

static void test_policies_windows_groups(void **state) {
    static const uint32_t windows[] = {1, 2, 7, 32, 64}, groups[] = {1, 3, 8};

    (void)state;
    for (int policy = 0; policy < 3; policy++)
        for (int w = brief ? 2 * (policy == 1) : 0; w < (brief ? 1 + 2 * (policy == 1) : 5); w++) {
            struct setting s = plain_setting();

            s.options.policy = (enum plan_policy)policy;
            s.options.window = windows[w];
            s.n_neighbours = 5;
            s.seed = (uint64_t)(policy * 8 + w);
            expect_all(&s, plan_policy_name(s.options.policy), windows[w]);
        }
    for (int g = 0; g < (brief ? 1 : 3); g++)
        for (int fixed = 0; fixed < 2; fixed++) {
            struct setting s = plain_setting();

            s.options.policy = PLAN_TUNED;
            s.options.group = groups[g];
            s.options.window = 7;
            s.options.fixed_shape = fixed;
            s.n_neighbours = 9;
            s.seed = groups[g];
            expect_all(&s, fixed ? "fixed shape, group" : "group", groups[g]);
        }
}

static void test_chunks_threads_paths(void **state) {
    static const uint32_t chunks[] = {1, 16, 64, 512};

    (void)state;
    for (int i = brief ? 2 : 0; i < 4; i++) {
        struct setting s = plain_setting();

        s.options.step_tokens = chunks[i];
        s.n_neighbours = 3;
        s.seed = chunks[i];
        expect_all(&s, "chunk", chunks[i]);
    }
    for (uint32_t n = 1; n <= 3; n++) {
        struct setting s = plain_setting();

        s.n_threads = n;
        s.options.policy = PLAN_TUNED;
        s.n_neighbours = 3;
        s.seed = n;
        expect_all(&s, "threads", n);
    }
    for (int policy = 0; policy < (brief ? 0 : 2); policy++) {
        struct setting s = plain_setting();

        s.portable = true;
        s.options.policy = (enum plan_policy)policy;
        s.n_neighbours = 2;
        s.seed = 5;
        expect_all(&s, "portable", (unsigned)policy);
    }
}

/* Wrong tokens at each place of a window in turn, as end-of-text, and on the last token. */
static void test_injected(void **state) {
    static const uint32_t windows[] = {2, 7, 32};

    (void)state;
    for (int w = brief ? 1 : 0; w < (brief ? 2 : 3); w++) {
        uint32_t places[] = {0, 1, windows[w] / 2, windows[w] - 1};

        for (int p = 0; p < 4; p++)
            for (int kind = 0; kind < 2; kind++) {
                struct setting s = plain_setting();
                uint32_t which = (uint32_t)(p + kind) % N_SUBJECTS;
                struct harness_result got;

                s.options.policy = PLAN_TUNED;
                s.options.window = windows[w];
                s.injects = true;
                s.every = windows[w];
                s.phase = (prompts[which].n + 1 + places[p]) % windows[w];
                s.token = kind ? 1 : DEVICE_NO_TOKEN;
                s.n_neighbours = (uint32_t)p;
                s.seed = (uint64_t)(w * 10 + p);
                got = expect_one(&s, which, kind ? "end-of-text injected at" : "injected at",
                                 places[p]);
                /* Alone, the first candidate of a window is where the test puts it. */
                if (p == 0) assert_true(got.usage.rollbacks > 0);
            }
    }
    for (uint32_t which = 0; which < N_SUBJECTS; which++) { /* on the last token */
        struct setting s = plain_setting();

        s.options.policy = PLAN_TUNED;
        s.injects = true;
        s.every = 100000;
        s.phase = prompts[which].n + want[which].n_ids - 1;
        s.token = DEVICE_NO_TOKEN;
        (void)expect_one(&s, which, "injected on the last token", which);
    }
}

static void test_neighbours_cancelled(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= (brief ? 2 : 12); seed++) {
        struct setting s = plain_setting();

        s.options.policy = (enum plan_policy)(seed % 3);
        s.options.max_requests = 6; /* so that some are cancelled while they wait */
        s.options.window = 7;
        s.n_neighbours = 20;
        s.cancels = true;
        s.seed = seed;
        (void)expect_one(&s, seed % N_SUBJECTS, "neighbours cancelled", seed);
    }
}

static void test_random_combinations(void **state) {
    static const uint32_t windows[] = {1, 2, 7, 32, 64}, groups[] = {1, 3, 8},
                          chunks[] = {16, 64, 512};
    const char *text = getenv("DETERMINISM_COMBINATIONS");
    uint64_t n = text ? strtoull(text, NULL, 10) : brief ? 8 : 300;
    uint64_t start = (uint64_t)time(NULL);

    (void)state;
    print_message("%llu combinations, seeds from %llu\n", (unsigned long long)n,
                  (unsigned long long)start);
    for (uint64_t seed = start; seed < start + n; seed++) {
        struct harness_random random = {seed};
        struct setting s = plain_setting();

        s.options.policy = (enum plan_policy)harness_below(&random, 3);
        s.options.window = windows[harness_below(&random, 5)];
        s.options.group = groups[harness_below(&random, 3)];
        s.options.step_tokens = chunks[harness_below(&random, 3)];
        s.options.max_requests = 2 + harness_below(&random, 63);
        s.options.fixed_shape =
            s.options.window * s.options.group <= 256 && harness_below(&random, 8) == 0;
        s.n_threads = 1 + harness_below(&random, 2);
        s.portable = !brief && harness_below(&random, 16) == 0;
        s.n_neighbours = harness_below(&random, s.portable ? 2 : 8);
        s.cancels = harness_below(&random, 2);
        s.throttle = harness_below(&random, 4) == 0;
        s.injects = harness_below(&random, 3) == 0;
        s.every = 1 + harness_below(&random, 40);
        s.phase = harness_below(&random, s.every);
        s.token = harness_below(&random, 3) ? DEVICE_NO_TOKEN : 1;
        s.seed = seed;
        (void)expect_one(&s, harness_below(&random, N_SUBJECTS), "combination",
                         (unsigned)(seed - start));
    }
}

static void test_rollbacks_were_real(void **state) {
    (void)state;
    print_message("%llu runs, %llu rows, %llu tuned steps, %llu natural rollbacks\n",
                  (unsigned long long)n_runs, (unsigned long long)n_tokens_all,
                  (unsigned long long)n_tuned_steps, (unsigned long long)n_natural_rollbacks);
    if (!brief) assert_true(n_natural_rollbacks > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_again_and_restarted),
        cmocka_unit_test(test_co_resident_counts),
        cmocka_unit_test(test_policies_windows_groups),
        cmocka_unit_test(test_chunks_threads_paths),
        cmocka_unit_test(test_injected),
        cmocka_unit_test(test_neighbours_cancelled),
        cmocka_unit_test(test_random_combinations),
        cmocka_unit_test(test_rollbacks_were_real),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
