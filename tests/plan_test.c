/* Who is in a step, on which schedule, within which rows. */
#include "runtime/plan.h"

#include <string.h>

#include "runtime/cost.h"
#include "tests/unit.h"

enum { N_MAX = 64 };

static struct cost cost; /* of policy auto alone */
static const struct plan_now now = {.cost = &cost};

static const struct plan_options tuned = {PLAN_TUNED, 8, 2, 32, false, false};

static struct plan_seq decoding(bool deterministic, uint32_t candidates, bool due, uint32_t age) {
    return (struct plan_seq){.ready = true,
                             .deterministic = deterministic,
                             .due = due,
                             .candidates = candidates,
                             .prompt_rows_max = UINT32_MAX,
                             .age = age};
}

static struct plan_seq prefilling(uint32_t left) {
    struct plan_seq s = decoding(true, 0, false, 0);

    s.prompt_left = left;
    return s;
}

static uint32_t below(uint32_t *x, uint32_t n) {
    *x = *x * 1664525u + 1013904223u;
    return (*x >> 8) % n;
}

static const struct plan_item *of(const struct plan *p, const struct plan_item *items,
                                  uint32_t seq) {
    for (uint32_t i = 0; i < p->n_items; i++)
        if (items[i].seq == seq) return &items[i];
    return NULL;
}

static void test_nothing(void **state) {
    struct plan_item items[N_MAX];
    struct plan_seq paused = decoding(true, 3, true, 0);

    (void)state;
    paused.ready = false;
    assert_int_equal(plan_make(&tuned, &now, NULL, 0, items).n_items, 0);
    assert_int_equal(plan_make(&tuned, &now, &paused, 1, items).n_items, 0);
}

static void test_decode_alone_may_be_tuned(void **state) {
    struct plan_seq seqs[] = {decoding(true, 2, false, 0), decoding(false, 0, false, 0)};
    struct plan_options canonical = tuned;
    struct plan_item items[N_MAX];
    struct plan p = plan_make(&tuned, &now, seqs, 2, items);

    (void)state;
    assert_false(p.canonical);
    assert_int_equal(p.n_rows, 2);
    canonical.policy = PLAN_CANONICAL;
    seqs[0].candidates = 0;
    p = plan_make(&canonical, &now, seqs, 2, items);
    assert_true(p.canonical);
    assert_int_equal(of(&p, items, 0)->kind, PLAN_DECODE);
}

static void test_prefill_makes_it_canonical(void **state) {
    struct plan_seq seqs[] = {decoding(true, 2, false, 0), prefilling(100)};
    struct plan_item items[N_MAX];
    struct plan p = plan_make(&tuned, &now, seqs, 2, items);

    (void)state;
    assert_true(p.canonical);
    assert_int_equal(of(&p, items, 0)->kind, PLAN_DECODE);
    assert_int_equal(of(&p, items, 1)->n_rows, 31); /* what decode left of 32 */
}

/* However many decode, a prompt moves on; and its rows for logprobs are bounded. */
static void test_prefill_room(void **state) {
    struct plan_seq seqs[N_MAX];
    struct plan_item items[N_MAX];
    struct plan p;

    (void)state;
    for (int i = 0; i < N_MAX - 1; i++) seqs[i] = decoding(false, 0, false, 0);
    seqs[N_MAX - 1] = prefilling(100);
    p = plan_make(&tuned, &now, seqs, N_MAX, items);
    assert_int_equal(of(&p, items, N_MAX - 1)->n_rows, PLAN_PREFILL_MIN);
    seqs[N_MAX - 1].prompt_rows_max = 5;
    p = plan_make(&tuned, &now, seqs, N_MAX, items);
    assert_int_equal(of(&p, items, N_MAX - 1)->n_rows, 5);
}

/* G windows a pass, the oldest first; the others wait and do not run further ahead. */
static void test_windows(void **state) {
    struct plan_seq seqs[] = {decoding(true, 7, true, 1), decoding(true, 3, true, 9),
                              decoding(true, 7, true, 5), decoding(true, 2, false, 50)};
    struct plan_item items[N_MAX];
    struct plan p = plan_make(&tuned, &now, seqs, 4, items);

    (void)state;
    assert_true(p.canonical);
    assert_null(of(&p, items, 0));
    assert_int_equal(of(&p, items, 1)->kind, PLAN_VERIFY);
    assert_int_equal(of(&p, items, 1)->n_rows, 4);
    assert_int_equal(of(&p, items, 2)->n_rows, 8);
    assert_int_equal(of(&p, items, 3)->kind, PLAN_DECODE);
}

static void test_fixed_shape(void **state) {
    struct plan_options fixed = tuned;
    struct plan_seq seqs[] = {decoding(true, 7, true, 1), decoding(false, 0, false, 0),
                              prefilling(9)};
    struct plan_item items[N_MAX];
    struct plan p;

    (void)state;
    fixed.fixed_shape = true;
    p = plan_make(&fixed, &now, seqs, 3, items);
    assert_int_equal(p.n_items, 1);
    assert_int_equal(p.n_rows + p.n_pad, 16);
}

/* The pass of a fixed shape goes first, until one beside it has waited longer than all of it. */
static void test_fixed_shape_in_turn(void **state) {
    struct plan_options fixed = tuned;
    struct plan_seq seqs[] = {decoding(true, 7, true, 2), decoding(true, 3, true, 4),
                              decoding(false, 0, false, 4), prefilling(9)};
    struct plan_item items[N_MAX];
    struct plan p;

    (void)state;
    fixed.fixed_shape = true;
    p = plan_make(&fixed, &now, seqs, 4, items);
    assert_int_equal(p.n_items, 2);
    assert_int_equal(p.n_rows + p.n_pad, 16);

    seqs[2].age = 5;
    p = plan_make(&fixed, &now, seqs, 4, items);
    assert_int_equal(p.n_items, 2);
    assert_int_equal(of(&p, items, 2)->kind, PLAN_DECODE);
    assert_int_equal(of(&p, items, 3)->n_rows, 9);
    assert_int_equal(p.n_pad, 0);
    assert_true(p.canonical);

    seqs[2].ready = false; /* who is paused holds nobody up */
    assert_int_equal(plan_make(&fixed, &now, seqs, 4, items).n_pad, 4);
    seqs[3].age = 5;
    p = plan_make(&fixed, &now, seqs, 4, items);
    assert_int_equal(p.n_items, 1);
    assert_int_equal(of(&p, items, 3)->kind, PLAN_PREFILL);
    seqs[3].ready = false;
    seqs[2] = decoding(true, 7, true, 3); /* of three that are due, one waits */
    p = plan_make(&fixed, &now, seqs, 4, items);
    assert_int_equal(p.n_rows, 12);
    assert_null(of(&p, items, 0));
}

/* Judging what waits, where auto turns canonical, is a pass as well: alone and padded. */
static void test_fixed_shape_auto(void **state) {
    struct plan_options o = {PLAN_AUTO, 32, 8, 64, true, false};
    struct plan_seq seqs[] = {decoding(true, 3, false, 0), decoding(true, 0, false, 0)};
    struct plan_item items[N_MAX];
    struct plan p = plan_make(&o, &now, seqs, 2, items);

    (void)state;
    assert_int_equal(p.n_items, 1);
    assert_int_equal(p.n_rows + p.n_pad, 256);
    seqs[1].age = 1;
    p = plan_make(&o, &now, seqs, 2, items);
    assert_true(p.canonical);
    assert_int_equal(p.n_items, 2);
    assert_int_equal(of(&p, items, 0)->kind, PLAN_DECODE);
}

/* Prompts that do not all fit: the oldest first, then by place. */
static void test_prefill_in_turn(void **state) {
    struct plan_seq seqs[] = {prefilling(20), prefilling(20), prefilling(8), prefilling(20)};
    struct plan_item items[N_MAX];
    struct plan p;

    (void)state;
    seqs[2].age = seqs[3].age = 7;
    seqs[1].age = 1;
    p = plan_make(&tuned, &now, seqs, 4, items);
    assert_int_equal(p.n_items, 3);
    assert_int_equal(of(&p, items, 2)->n_rows, 8);
    assert_int_equal(of(&p, items, 3)->n_rows, 20);
    assert_int_equal(of(&p, items, 1)->n_rows, 4);
}

/* When a window fires: it is due, whatever the others do; nothing waits for a group. */
static void test_firing(void **state) {
    static const struct {
        const char *why;
        enum plan_policy policy;
        bool due;
        uint32_t candidates;
        bool judged;
    } cases[] = {
        {"full, or its request wants to finish", PLAN_TUNED, true, 7, true},
        {"the same under auto", PLAN_AUTO, true, 1, true},
        {"neither: it decodes on", PLAN_TUNED, false, 6, false},
        {"no candidate, window of one: the pass is the decode", PLAN_TUNED, true, 0, true},
        {"where a canonical step certifies, that is one", PLAN_AUTO, true, 0, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct plan_options o = {cases[i].policy, 8, 4, 32, false, false};
        struct plan_seq seqs[] = {decoding(true, cases[i].candidates, cases[i].due, 0),
                                  decoding(true, 3, false, 0)};
        struct plan_item items[N_MAX];
        struct plan p = plan_make(&o, &now, seqs, 2, items);

        if (plan_judges(&o, &seqs[0]) != cases[i].judged) fail_msg("%s", cases[i].why);
        if (cases[i].judged) { /* at once, in a group of four that has one; the other decodes on */
            assert_int_equal(of(&p, items, 0)->kind, PLAN_VERIFY);
            assert_int_equal(of(&p, items, 1)->kind, PLAN_DECODE);
        }
    }
}

/* A fixed shape has rows for G windows: the fullest of the others take what would be padding. */
static void test_fixed_shape_fills(void **state) {
    struct plan_options fixed = {PLAN_TUNED, 8, 3, 32, true, false};
    struct plan_seq seqs[] = {decoding(true, 2, false, 0), decoding(true, 7, true, 0),
                              decoding(true, 6, false, 0), decoding(true, 0, false, 0),
                              decoding(true, 4, false, 0), decoding(false, 0, false, 0)};
    struct plan_item items[N_MAX];
    struct plan p = plan_make(&fixed, &now, seqs, 6, items);

    (void)state;
    assert_true(p.pass);
    assert_int_equal(p.n_items, 3);
    assert_int_equal(of(&p, items, 1)->n_rows, 8);
    assert_int_equal(of(&p, items, 2)->n_rows, 7);
    assert_int_equal(of(&p, items, 4)->n_rows, 5);
    assert_int_equal(p.n_pad, 24 - 20);
}

/* On the fast schedule it would be canonical: then it certifies, and judges what waits. */
static void test_same(void **state) {
    const struct plan_now same = {.cost = &cost, .same = true};
    struct plan_seq seqs[] = {decoding(true, 2, false, 0), decoding(true, 0, false, 0),
                              decoding(false, 0, false, 0)};
    struct plan_item items[N_MAX];

    (void)state;
    for (int policy = 0; policy < 3; policy++) {
        struct plan_options o = {(enum plan_policy)policy, 8, 2, 32, false, false};
        struct plan p = plan_make(&o, &same, seqs, 3, items);

        assert_true(p.canonical);
        assert_int_equal(p.same, policy != PLAN_CANONICAL);
        assert_int_equal(of(&p, items, 0)->kind, PLAN_VERIFY);
        assert_int_equal(of(&p, items, 1)->kind, PLAN_DECODE);
    }
    seqs[0] = prefilling(9); /* canonical for other reasons */
    assert_false(plan_make(&tuned, &same, seqs, 3, items).same);
}

/* Passes of a fixed shape without end: who decodes beside them is held up by one at a time. */
static void test_one_pass_at_a_time(void **state) {
    struct plan_options fixed = {PLAN_TUNED, 4, 1, 32, true, false};
    struct plan_seq seqs[6];
    struct plan_item items[N_MAX];
    struct plan_now at = {.cost = &cost};
    uint32_t n_passes = 0, held = 0;

    (void)state;
    for (uint32_t i = 0; i < 6; i++) seqs[i] = decoding(i > 0, i ? 3 : 0, i > 0, i);
    for (int step = 0; step < 100; step++) {
        const struct plan p = plan_make(&fixed, &at, seqs, 6, items);

        at.after_pass = p.pass;
        n_passes += p.pass;
        held = of(&p, items, 0) ? 0 : held + 1;
        assert_true(held <= 1);
        for (uint32_t i = 0; i < 6; i++) seqs[i].age = of(&p, items, i) ? 0 : seqs[i].age + 1;
    }
    assert_true(n_passes >= 49); /* nor are they starved */
    seqs[0].ready = false;
    assert_true(plan_make(&fixed, &at, seqs, 6, items).pass);
}

/* Random loads step after step, some of them paused: whoever is ready is served before as many
 * steps are over as there are sequences, or twice as many where passes are alone in their steps. */
static void test_bounded_wait(void **state) {
    uint32_t x = 2;

    (void)state;
    for (int round = 0; round < 3000; round++) {
        struct plan_options o = {(enum plan_policy)below(&x, 3),
                                 1 + below(&x, 4),
                                 1 + below(&x, 3),
                                 1 + below(&x, 32),
                                 below(&x, 2),
                                 false};
        struct plan_seq seqs[12];
        struct plan_item items[12];
        uint32_t n = 1 + below(&x, 12), waited[12] = {0};
        struct plan_now at = {.cost = &cost};

        for (uint32_t i = 0; i < n; i++) {
            seqs[i] = decoding(below(&x, 2), 0, false, 0);
            seqs[i].prompt_left = below(&x, 60);
        }
        for (int step = 0; step < 100; step++) {
            bool served[12] = {false};
            struct plan p;

            for (uint32_t i = 0; i < n; i++) {
                seqs[i].ready = i == 0 || below(&x, 4) > 0;
                seqs[i].due = seqs[i].deterministic && seqs[i].prompt_left == 0 &&
                              seqs[i].candidates + 1 >= o.window;
            }
            at.same = below(&x, 4) == 0;
            p = plan_make(&o, &at, seqs, n, items);
            at.after_pass = p.pass;
            for (uint32_t i = 0; i < p.n_items; i++) served[items[i].seq] = true;
            for (uint32_t i = 0; i < n; i++) {
                waited[i] = served[i] || !seqs[i].ready ? 0 : waited[i] + 1;
                assert_true(waited[i] <= (o.fixed_shape ? 2 : 1) * n);
                seqs[i].age = served[i] ? 0 : seqs[i].age + 1;
            }
            for (uint32_t i = 0; i < p.n_items; i++) {
                struct plan_seq *s = &seqs[items[i].seq];

                if (items[i].kind == PLAN_VERIFY) s->candidates = 0;
                if (items[i].kind == PLAN_DECODE && s->deterministic)
                    s->candidates += !p.canonical || s->candidates > 0;
                if (items[i].kind != PLAN_PREFILL) continue;
                s->prompt_left -= items[i].n_rows;
                if (s->prompt_left == 0 && below(&x, 2)) s->prompt_left = 1 + below(&x, 60);
            }
        }
    }
}

/* auto turns canonical: what waits for a verdict is judged in that step, and then certified. */
static void test_auto(void **state) {
    struct plan_options o = {PLAN_AUTO, 32, 8, 64, false, false};
    struct plan_seq seqs[N_MAX];
    struct plan_item items[N_MAX];
    struct plan p;

    (void)state;
    cost = cost_start();
    for (uint32_t n = 1; n <= N_MAX; n *= 2) {
        cost_step(&cost, true, n, 1000);
        cost_step(&cost, false, n, 900);
    }
    cost_windows(&cost, 32, 32, 1640); /* 20 for each row */
    seqs[0] = decoding(true, 3, false, 0);
    p = plan_make(&o, &now, seqs, 1, items);
    assert_false(p.canonical); /* a tenth of a step is more than one row's window */
    for (int i = 0; i < N_MAX; i++) seqs[i] = decoding(i < 4, 0, false, 0);
    assert_false(plan_make(&o, &now, seqs, N_MAX, items).canonical);
    for (int i = 0; i < N_MAX; i++) seqs[i] = decoding(i < 16, i == 3 ? 5 : 0, false, 0);
    p = plan_make(&o, &now, seqs, N_MAX, items);
    assert_true(p.canonical); /* sixteen rows' windows are more */
    assert_int_equal(items[0].kind, PLAN_VERIFY);
    assert_int_equal(items[0].seq, 3);
    for (int i = 0; i < N_MAX; i++) seqs[i] = decoding(false, 0, false, 0);
    assert_false(plan_make(&o, &now, seqs, N_MAX, items).canonical);
}

/* A window of one row: certified decoding where the step is canonical, a pass where it would
 * not be. */
static void test_window_of_one(void **state) {
    struct plan_options o = {PLAN_TUNED, 1, 8, 64, false, false};
    struct plan_seq seqs[] = {decoding(true, 0, true, 0)};
    struct plan_item items[N_MAX];

    (void)state;
    assert_true(plan_make(&o, &now, seqs, 1, items).canonical);
    assert_int_equal(items[0].kind, PLAN_VERIFY);
    for (int policy = 0; policy < 3; policy += 2) {
        o.policy = (enum plan_policy)policy;
        assert_true(plan_make(&o, &now, seqs, 1, items).canonical);
        assert_int_equal(items[0].kind, PLAN_DECODE);
    }
}

/* Random loads: every plan keeps its promises. */
static void test_invariants(void **state) {
    uint32_t x = 1;

    (void)state;
    for (int round = 0; round < 200000; round++) {
        struct plan_seq seqs[N_MAX];
        struct plan_item items[N_MAX];
        struct plan_options o;
        struct plan_now at;
        struct plan p;
        uint32_t n, n_rows = 0, n_windows = 0;
        bool seen[N_MAX] = {false};
        o = (struct plan_options){(enum plan_policy)below(&x, 3),
                                  1 + below(&x, 64),
                                  1 + below(&x, 8),
                                  1 + below(&x, 128),
                                  below(&x, 4) == 0,
                                  false};
        n = below(&x, N_MAX + 1);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t candidates = below(&x, o.window);

            seqs[i] = decoding(below(&x, 2), 0, false, below(&x, 9));
            seqs[i].ready = below(&x, 5) > 0;
            if (below(&x, 4) == 0)
                seqs[i].prompt_left = 1 + below(&x, 300);
            else if (seqs[i].deterministic) {
                seqs[i].candidates = o.policy == PLAN_CANONICAL ? 0 : candidates;
                seqs[i].due =
                    seqs[i].candidates + 1 >= o.window || (candidates && below(&x, 9) == 0);
            }
        }
        at = (struct plan_now){&cost, below(&x, 3) == 0, below(&x, 2)};
        p = plan_make(&o, &at, seqs, n, items);
        for (uint32_t i = 0; i < p.n_items; i++) {
            const struct plan_seq *s = &seqs[items[i].seq];

            assert_true(items[i].seq < n && s->ready && !seen[items[i].seq]);
            seen[items[i].seq] = true;
            n_rows += items[i].n_rows;
            n_windows += items[i].kind == PLAN_VERIFY;
            assert_true(items[i].n_rows >= 1);
            assert_true((items[i].kind == PLAN_PREFILL) == (s->prompt_left > 0));
            if (items[i].kind == PLAN_VERIFY) assert_true(items[i].n_rows <= o.window);
            if (items[i].kind == PLAN_PREFILL) assert_true(items[i].n_rows <= s->prompt_left);
            if (items[i].kind != PLAN_DECODE) assert_true(p.canonical);
            if (items[i].kind == PLAN_DECODE && !p.canonical)
                assert_true(s->candidates + 2 <= o.window || !s->deterministic);
        }
        assert_int_equal(p.n_rows, n_rows);
        assert_true(n_windows <= o.group && p.n_rows + p.n_pad <= plan_rows_max(&o, n));
        if (o.policy == PLAN_CANONICAL) assert_true(p.canonical);
        if (o.fixed_shape && n_windows > 0) { /* alone, and padded */
            assert_int_equal(n_windows, p.n_items);
            assert_int_equal(p.n_rows + p.n_pad, o.group * o.window);
        }
        for (uint32_t i = 0; i < n; i++) /* something ready means something runs */
            if (seqs[i].ready) assert_true(p.n_items > 0);
        for (uint32_t i = 0; i < n; i++) { /* and nobody ready is older than all who run,
                                            * but between two passes */
            uint32_t oldest = 0;

            for (uint32_t k = 0; k < p.n_items; k++)
                if (seqs[items[k].seq].age > oldest) oldest = seqs[items[k].seq].age;
            if (seqs[i].ready && !(o.fixed_shape && at.after_pass))
                assert_true(seqs[i].age <= oldest);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_decode_alone_may_be_tuned),
        cmocka_unit_test(test_prefill_makes_it_canonical),
        cmocka_unit_test(test_prefill_room),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_fixed_shape),
        cmocka_unit_test(test_fixed_shape_in_turn),
        cmocka_unit_test(test_fixed_shape_auto),
        cmocka_unit_test(test_prefill_in_turn),
        cmocka_unit_test(test_firing),
        cmocka_unit_test(test_fixed_shape_fills),
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_one_pass_at_a_time),
        cmocka_unit_test(test_bounded_wait),
        cmocka_unit_test(test_auto),
        cmocka_unit_test(test_window_of_one),
        cmocka_unit_test(test_invariants),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
