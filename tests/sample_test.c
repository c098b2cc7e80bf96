/* Sampling: every function against a plain second writing of SPEC 2.10 and 2.11 that sorts, on
 * rows with ties, extremes and chunk borders; what sample_check refuses; Philox against its
 * published vectors; and that draws follow the distribution.  sample_portable_test.c runs the
 * same against the version without vector instructions. */
#include "runtime/sample.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/err.h"
#include "runtime/num.h"
#include "runtime/sample_row.h"

enum { VOCAB_MAX = 49152 };

static float logits[VOCAB_MAX];
static uint64_t scratch[VOCAB_MAX];
static unsigned long n_rows, n_draws;

/* The generator of the tests alone. */
static uint64_t dice_state = 1;

static uint32_t dice(void) {
    dice_state = dice_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(dice_state >> 33);
}

static uint32_t dice_below(uint32_t n) {
    return dice() % n;
}

/* Roughly normal. */
static float dice_normal(void) {
    float sum = 0.0f;

    for (int i = 0; i < 12; i++) sum += (float)dice() * 0x1p-31f;
    return sum - 6.0f;
}

/* The second writing. */

static float ref_tree(const float *v, uint32_t from, uint32_t n_padded, uint32_t n) {
    if (from >= n) return 0.0f;
    if (n_padded == 1) return v[from];
    return ref_tree(v, from, n_padded / 2, n) + ref_tree(v, from + n_padded / 2, n_padded / 2, n);
}

static float ref_sum(const float *v, uint32_t n) {
    uint32_t n_padded = 1;

    while (n_padded < n) n_padded *= 2;
    return ref_tree(v, 0, n_padded, n);
}

static float ref_lse(const float *row, uint32_t n) {
    static float m_chunk[VOCAB_MAX / 128 + 1], s_chunk[VOCAB_MAX / 128 + 1], v[128];
    uint32_t n_chunks = (n + 127) / 128;
    float m = 0.0f;

    for (uint32_t c = 0; c < n_chunks; c++) {
        uint32_t n_own = n - 128 * c < 128 ? n - 128 * c : 128;
        const float *own = row + 128 * c;
        float max = own[0];

        for (uint32_t i = 1; i < n_own; i++) max = num_max(max, own[i]);
        m_chunk[c] = floorf(max * NUM_LOG2E) + 1.0f;
        for (uint32_t i = 0; i < n_own; i++) v[i] = num_exp2(fmaf(own[i], NUM_LOG2E, -m_chunk[c]));
        s_chunk[c] = ref_sum(v, n_own);
        m = c == 0 ? m_chunk[c] : num_max(m, m_chunk[c]);
    }
    for (uint32_t c = 0; c < n_chunks; c++) {
        float d = m_chunk[c] - m;

        s_chunk[c] *= d < -126.0f ? 0.0f : ldexpf(1.0f, (int)d);
    }
    return fmaf(m, NUM_LN2, num_log2(ref_sum(s_chunk, n_chunks)) * NUM_LN2);
}

static const float *sorted_row;

static int by_order(const void *a, const void *b) {
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

    if (sorted_row[i] != sorted_row[j]) return sorted_row[i] > sorted_row[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

static void ref_sort(const float *row, uint32_t n, uint32_t *out_ids) {
    for (uint32_t i = 0; i < n; i++) out_ids[i] = i;
    sorted_row = row;
    qsort(out_ids, n, sizeof(out_ids[0]), by_order);
}

/* How many of the first n ids top_p keeps. */
static uint32_t ref_top_p(const uint32_t *ids, const float *e, uint32_t n, float p) {
    unsigned __int128 total = 0, before = 0, target;
    uint64_t part = (uint64_t)llrint((double)p * 16777216.0);
    uint32_t n_kept = 0;

    for (uint32_t i = 0; i < n; i++) total += (uint64_t)floor((double)e[ids[i]] * 0x1p40);
    if (part < 1) part = 1;
    target = (total * part + 16777215) / 16777216;
    while (n_kept < n && before < target)
        before += (uint64_t)floor((double)e[ids[n_kept++]] * 0x1p40);
    return n_kept;
}

static uint32_t ref_choose(const float *row, uint32_t n, const uint32_t *ids,
                           const struct sample_params *p, uint32_t position) {
    static float e[VOCAB_MAX];
    uint32_t n_kept = n, best = UINT32_MAX;
    float best_time = INFINITY, z_first = row[ids[0]] / p->temperature;

    if (p->temperature == 0.0f) return ids[0];
    for (uint32_t i = 0; i < n; i++)
        e[i] = num_exp2((row[i] / p->temperature - z_first) * NUM_LOG2E);
    if (p->top_k > 0 && p->top_k < n) n_kept = p->top_k;
    if (p->top_p < 1.0f) n_kept = ref_top_p(ids, e, n_kept, p->top_p);
    for (uint32_t i = 0; i < n_kept; i++) {
        uint32_t id = ids[i];
        float time;

        if (e[id] == 0.0f || (p->min_p > 0.0f && !(e[id] >= p->min_p))) continue;
        time = num_exponential(num_random(p->seed, position, id)) / e[id];
        if (best == UINT32_MAX || time < best_time || (time == best_time && id < best)) {
            best = id;
            best_time = time;
        }
    }
    return best;
}

/* Rows. */

static const char *const kinds[] = {
    "normal",
    "wide",
    "flat",
    "steps of a half",
    "two values",
    "all equal",
    "zeros of both signs",
    "huge",
    "tiny",
    "one peak",
    "upward",
    "downward",
    "ties on top",
    "minus infinity among them",
    "subnormal steps",
};
enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static float row_value(int kind, uint32_t i, uint32_t n) {
    float x = dice_normal();

    switch (kind) {
    case 0:
        return 3.0f * x;
    case 1:
        return 60.0f * x;
    case 2:
        return 0.001f * x;
    case 3:
        return floorf(6.0f * x) * 0.5f;
    case 4:
        return dice() & 1 ? 1.5f : -2.25f;
    case 5:
        return -7.125f;
    case 6:
        return dice() & 1 ? 0.0f : -0.0f;
    case 7:
        return x * 0x1p115f;
    case 8:
        return x * 0x1p-140f;
    case 9:
        return i == n / 3 ? 50.0f : x;
    case 10:
        return (float)i * (1.0f / 64.0f);
    case 11:
        return (float)i * (-1.0f / 64.0f);
    case 12:
        return x;
    case 13:
        return i != n / 2 && dice_below(3) == 0 ? -INFINITY : x;
    default:
        return (float)dice_below(9) * 0x1p-149f;
    }
}

static void make_row(int kind, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) logits[i] = row_value(kind, i, n);
    if (kind != 12) return;

    /* Two or three ids share the top, on either side of a chunk's border where there is one. */
    for (uint32_t i = 0, at = n > 128 ? 127 : 0; i < 2 + dice_below(2); i++)
        logits[(at + i * (dice() & 1 ? 1 : 128)) % n] = 9.0f;
}

static const uint32_t vocabs[] = {1, 2, 3, 31, 32, 33, 127, 128, 129, 301, 2048};
static const float temperatures[] = {1.0f, 0.7f, 0x1p-7f, 0x1p+7f, 1.9f, 0.1f};
static const float top_ps[] = {1.0f, 0.9f, 0.5f, 0x1.fffffep-1f, 0x1p-24f, 1e-40f, 0.999f, 0.1f};
static const float min_ps[] = {0.0f, 0.0f, 0.05f, 1.0f, 0.001f, 1e-20f};

#define PICK(table) table[dice_below((uint32_t)(sizeof(table) / sizeof(table[0])))]

static struct sample_params make_params(uint32_t n) {
    const uint32_t top_ks[] = {0, 0, 1, 2, 1 + dice_below(n), n, n + 1, n > 1 ? n - 1 : 1, 50};

    return (struct sample_params){.temperature = PICK(temperatures),
                                  .top_p = PICK(top_ps),
                                  .min_p = PICK(min_ps),
                                  .top_k = PICK(top_ks),
                                  .seed = (uint64_t)dice() << 40 ^ dice()};
}

static void check_row(int kind, uint32_t n, int n_choices) {
    static uint32_t ids[VOCAB_MAX];
    uint32_t top[SAMPLE_TOP_MAX], n_top = n < SAMPLE_TOP_MAX ? n : SAMPLE_TOP_MAX;
    float got = 0.0f, want = ref_lse(logits, n);
    bool whole = sample_lse(logits, n, &got);
    struct sample_params greedy = {.top_p = 0.5f, .min_p = 1.0f, .top_k = 2};

    ref_sort(logits, n, ids);
    if (num_bits(got) != num_bits(want) && !(isnan(got) && isnan(want)))
        fail_msg("lse of %s, %u ids: %a, want %a", kinds[kind], n, (double)got, (double)want);
    assert_true(whole == (isfinite(want) && isfinite(logits[ids[0]])));
    for (uint32_t k = 1; k <= n_top; k += k < 3 ? 1 : 17) {
        sample_top(logits, n, k, top);
        assert_memory_equal(top, ids, k * sizeof(top[0]));
    }
    assert_int_equal(sample_choose(logits, n, &greedy, 0, scratch), ids[0]);
    greedy.temperature = -0.0f;
    assert_int_equal(sample_choose(logits, n, &greedy, 7, scratch), ids[0]);

    for (int i = 0; i < n_choices; i++) {
        struct sample_params p = make_params(n);
        uint32_t position = dice(), id, right;

        if (!isfinite(logits[ids[0]] / p.temperature)) continue;
        memset(scratch, 0xff, n * sizeof(scratch[0]));
        id = sample_choose(logits, n, &p, position, scratch);
        right = ref_choose(logits, n, ids, &p, position);
        if (id != right)
            fail_msg("%s, %u ids, T %a, k %u, p %a, min_p %a: id %u, want %u", kinds[kind], n,
                     (double)p.temperature, p.top_k, (double)p.top_p, (double)p.min_p, id, right);
        n_draws++;
    }
    n_rows++;
}

static void test_rows(void **state) {
    (void)state;
    for (int kind = 0; kind < N_KINDS; kind++)
        for (size_t v = 0; v < sizeof(vocabs) / sizeof(vocabs[0]); v++)
            for (int i = 0; i < 12; i++) {
                make_row(kind, vocabs[v]);
                check_row(kind, vocabs[v], 20);
            }
}

static void test_whole_vocabulary(void **state) {
    (void)state;
    for (int kind = 0; kind < N_KINDS; kind++)
        for (uint32_t n = VOCAB_MAX - 1; n <= VOCAB_MAX; n++) {
            make_row(kind, n);
            check_row(kind, n, 8);
        }
}

/* What has no logsumexp. */
static void test_lse_not_finite(void **state) {
    static const struct {
        const char *why;
        float all, one;
        bool finite;
    } cases[] = {
        {"a number", 0.0f, 1.0f, true},
        {"infinity", 0.0f, INFINITY, false},
        {"no number", 0.0f, NAN, false},
        {"nothing possible", -INFINITY, -INFINITY, false},
        {"past the range of a logit in base 2", 0.0f, 0x1.8p127f, false},
    };
    float lse;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (uint32_t j = 0; j < 200; j++) logits[j] = cases[i].all;
        logits[177] = cases[i].one;
        if (sample_lse(logits, 200, &lse) != cases[i].finite) fail_msg("%s", cases[i].why);
        if (isnan(lse)) assert_int_equal(num_bits(lse), 0x7fffffff);
    }
}

/* Rows that have no meaning: within bounds, and twice the same. */
static void test_no_number(void **state) {
    static const uint32_t sizes[] = {1, 2, 33, 301, 2048};
    static const uint32_t odd[] = {0x7fc00000, 0xffc00000, 0x7f800000, 0xff800000,
                                   0x7f800001, 0x80000000, 0x3f800000, 0x7f7fffff};

    (void)state;
    for (int i = 0; i < 2000; i++) {
        uint32_t n = PICK(sizes), n_odd = 1 + dice_below(8), top[SAMPLE_TOP_MAX], again;
        uint32_t n_top = n < SAMPLE_TOP_MAX ? n : SAMPLE_TOP_MAX, position = dice();
        struct sample_params p = make_params(n);

        for (uint32_t j = 0; j < n; j++)
            logits[j] = dice_below(9) < n_odd ? num_from_bits(PICK(odd)) : dice_normal();
        if (i % 8 == 0) p.temperature = 0.0f;
        memset(scratch, 0xff, n * sizeof(scratch[0]));
        again = sample_choose(logits, n, &p, position, scratch);
        memset(scratch, 0, n * sizeof(scratch[0]));
        assert_int_equal(sample_choose(logits, n, &p, position, scratch), again);
        assert_in_range(again, 0, n - 1);
        sample_top(logits, n, n_top, top);
        for (uint32_t j = 0; j < n_top; j++) assert_in_range(top[j], 0, n - 1);
    }
}

static void test_check(void **state) {
    static const struct {
        const char *why, *names; /* NULL: accepted */
        struct sample_params p;
    } cases[] = {
        {"greedy", NULL, {0.0f, 1.0f, 0.0f, 0, 0}},
        {"minus zero is zero", NULL, {-0.0f, 1.0f, 0.0f, 0, 0}},
        {"least temperature", NULL, {0x1p-7f, 1.0f, 0.0f, 0, 0}},
        {"largest temperature", NULL, {0x1p+7f, 1.0f, 0.0f, 0, 0}},
        {"every limit", NULL, {1.0f, 0x1p-149f, 1.0f, 100, UINT64_MAX}},
        {"below", "temperature", {0x1.fffffep-8f, 1.0f, 0.0f, 0, 0}},
        {"above", "temperature", {0x1.000002p+7f, 1.0f, 0.0f, 0, 0}},
        {"negative", "temperature", {-1.0f, 1.0f, 0.0f, 0, 0}},
        {"subnormal", "temperature", {0x1p-149f, 1.0f, 0.0f, 0, 0}},
        {"minute", "temperature", {1e-30f, 1.0f, 0.0f, 0, 0}},
        {"infinite", "temperature", {INFINITY, 1.0f, 0.0f, 0, 0}},
        {"no number", "temperature", {NAN, 1.0f, 0.0f, 0, 0}},
        {"zero", "top_p", {1.0f, 0.0f, 0.0f, 0, 0}},
        {"negative", "top_p", {1.0f, -0.5f, 0.0f, 0, 0}},
        {"above", "top_p", {1.0f, 0x1.000002p+0f, 0.0f, 0, 0}},
        {"no number, greedy too", "top_p", {0.0f, NAN, 0.0f, 0, 0}},
        {"negative", "min_p", {1.0f, 1.0f, -0x1p-149f, 0, 0}},
        {"above", "min_p", {1.0f, 1.0f, 0x1.000002p+0f, 0, 0}},
        {"no number", "min_p", {1.0f, 1.0f, NAN, 0, 0}},
        {"more than there are", "top_k", {1.0f, 1.0f, 0.0f, 101, 0}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err e = {""};
        int r = sample_check(&cases[i].p, 100, &e);

        if (r != (cases[i].names ? -EINVAL : 0)) fail_msg("%s: %d", cases[i].why, r);
        if (cases[i].names) assert_non_null(strstr(e.text, cases[i].names));
    }
}

/* Philox. */

static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t k0 = key[0], k1 = key[1];

    memcpy(out, counter, 16);
    for (int i = 0; i < 10; i++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        uint64_t a = (uint64_t)out[0] * 0xd2511f53u, b = (uint64_t)out[2] * 0xcd9e8d57u;
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ out[1] ^ k0, (uint32_t)b,
                            (uint32_t)(a >> 32) ^ out[3] ^ k1, (uint32_t)a};

        memcpy(out, next, 16);
    }
}

static void test_philox(void **state) {
    /* Published with the generator (Random123, kat_vectors, philox4x32 of 10 rounds). */
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } known[] = {
        {{0}, {0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    uint32_t got[4];

    (void)state;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        philox(known[i].counter, known[i].key, got);
        assert_memory_equal(got, known[i].want, sizeof(got));
    }
    for (uint32_t token = 0; token < 4; token++)
        assert_int_equal(num_random(0, 0, token), known[0].want[token]);
    for (int i = 0; i < 10000; i++) {
        uint32_t token = i == 0 ? UINT32_MAX : dice(), position = i == 0 ? UINT32_MAX : dice();
        uint64_t seed = i == 0 ? UINT64_MAX : (uint64_t)dice() << 33 ^ dice();
        uint32_t counter[4] = {token / 4, position, 0, 0};
        uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};

        philox(counter, key, got);
        assert_int_equal(num_random(seed, position, token), got[token % 4]);
    }
}

/* Draws over seeds and positions against the softmax of the kept ids. */
static void check_distribution(const struct sample_params *params, uint32_t n_kept, double limit) {
    enum { N_IDS = 16, N_DRAWS = 40000 };
    uint32_t counts[N_IDS] = {0};
    double sum = 0.0, chi2 = 0.0;
    struct sample_params p = *params;

    /* Downward, so that the kept ids are the first ones. */
    for (uint32_t i = 0; i < N_IDS; i++) logits[i] = 4.0f - 0.3f * (float)i;
    for (uint32_t i = 0; i < N_DRAWS; i++) {
        p.seed = params->seed + i / 100;
        counts[sample_choose(logits, N_IDS, &p, i % 100, scratch)]++;
    }
    for (uint32_t i = 0; i < n_kept; i++) sum += exp((double)(logits[i] / p.temperature));
    for (uint32_t i = 0; i < n_kept; i++) {
        double want = N_DRAWS * exp((double)(logits[i] / p.temperature)) / sum;

        chi2 += (counts[i] - want) * (counts[i] - want) / want;
    }
    for (uint32_t i = n_kept; i < N_IDS; i++) assert_int_equal(counts[i], 0);
    if (chi2 > limit) fail_msg("chi square %g of %u ids, limit %g", chi2, n_kept, limit);
}

static void test_distribution(void **state) {
    struct sample_params p = {1.0f, 1.0f, 0.0f, 0, 42};

    (void)state;
    /* Limits: chance of a thousandth at 15, 15, 4 and 2 degrees of freedom. */
    check_distribution(&p, 16, 37.7);
    p.temperature = 2.5f;
    check_distribution(&p, 16, 37.7);
    p.top_k = 5;
    check_distribution(&p, 5, 18.5);
    p.temperature = 1.0f;
    p.top_k = 0;
    p.min_p = 0.5f; /* exp(-0.3 i) reaches 1/2 for i = 0, 1, 2 */
    check_distribution(&p, 3, 13.8);
    p.min_p = 0.0f;
    p.top_p = 0.5f; /* of 1 / (1 - exp(-0.3)) nearly: the first three have 0.6, two 0.45 */
    check_distribution(&p, 3, 13.8);
}

/* Over a whole vocabulary of equal weights a draw is as good as uniform, and seeds differ. */
static void test_seeds(void **state) {
    struct sample_params p = {1.0f, 1.0f, 0.0f, 0, 0};
    uint32_t n_same = 0, last = UINT32_MAX, n_low = 0;

    (void)state;
    for (uint32_t i = 0; i < 2048; i++) logits[i] = 1.0f;
    for (p.seed = 0; p.seed < 1000; p.seed++) {
        uint32_t id = sample_choose(logits, 2048, &p, 5, scratch);

        n_same += id == last;
        n_low += id < 1024;
        last = id;
    }
    assert_true(n_same < 8);
    assert_in_range(n_low, 430, 570);
    p.seed = 1ull << 32; /* the high word counts */
    last = sample_choose(logits, 2048, &p, 5, scratch);
    p.seed = 0;
    assert_int_not_equal(sample_choose(logits, 2048, &p, 5, scratch), last);
}

/* Two ids whose E / e are the same bits: the lower one is drawn, whichever is first. */
static void test_equal_times(void **state) {
    /* Found by trying seeds at position 0. */
    static const struct {
        float second;
        uint64_t seed;
    } cases[] = {{0.0f, 3771955}, {0.0f, 5591968}, {1.0f, 9529835}, {1.0f, 29940262}};

    (void)state;
    logits[0] = 0.0f;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sample_params p = {1.0f, 1.0f, 0.0f, 0, cases[i].seed};
        float lower = num_exponential(num_random(p.seed, 0, 0));

        logits[1] = cases[i].second;
        lower = lower / num_exp2(-logits[1] * NUM_LOG2E);
        assert_true(lower == num_exponential(num_random(p.seed, 0, 1)));
        assert_int_equal(sample_choose(logits, 2, &p, 0, scratch), 0);
    }
}

/* Weights 2^40, 2^40 - 2^16 and 2^16 + 1: half of them is half a unit above the first, so the
 * second is kept, and would not be if t were rounded down. */
static void test_top_p_ceiling(void **state) {
    struct sample_params p = {1.0f, 0.5f, 0.0f, 0, 0};
    uint32_t counts[3] = {0};

    (void)state;
    logits[0] = 0.0f;
    logits[1] = -0x1p-24f;
    logits[2] = -16.6f;
    while (num_exp2(logits[1] * NUM_LOG2E) != 0x1.fffffep-1f) logits[1] *= 1.01f;
    while (num_exp2(logits[2] * NUM_LOG2E) * 0x1p40f >= 65538.0f)
        logits[2] = nextafterf(logits[2], -20.0f);
    assert_true(floorf(num_exp2(logits[2] * NUM_LOG2E) * 0x1p40f) == 65537.0f);
    for (; p.seed < 100; p.seed++) counts[sample_choose(logits, 3, &p, 0, scratch)]++;
    assert_true(counts[0] > 20 && counts[1] > 20 && counts[2] == 0);
}

/* What the race of sample.c relies on to leave ids out (a part of the words here; all of them
 * hold): E is above 2^-33, and above 2^-32 times the word. */
static void test_bound(void **state) {
    (void)state;
    for (uint64_t word = 0; word < 1ull << 32; word += word < 100000 ? 1 : 4093) {
        double e = (double)num_exponential((uint32_t)word);

        assert_true(e > 0x1p-33 && e > (double)word * 0x1p-32);
    }
}

/* The last that may win: a race whose leader has an id's very time and a higher id.  By words of
 * every size, the least ones too (found by trying seeds), and weights of every size, in a block of
 * the vector version and behind its last. */
static void test_last_winner(void **state) {
    static const struct {
        uint64_t seed;
        uint32_t id, word;
    } least[] = {{1343428, 3, 0}, {105634974, 1019, 0}, {994206, 839, 1}, {236545, 1517, 4}};
    const struct sample_row *rows[] = {&sample_row_portable, sample_row_avx2()};
    enum { N = 2048, N_LEAST = sizeof(least) / sizeof(least[0]) };
    static float e[N];

    (void)state;
    for (uint32_t i = 0; i < 20000; i++) {
        uint64_t seed = i < N_LEAST ? least[i].seed : dice();
        uint32_t id = i < N_LEAST ? least[i].id : dice_below(N - 1);
        uint32_t word = num_random(seed, 0, id), n = i % 2 ? N : id + 1;
        float weight = i % 3 ? num_exp2((float)dice_below(2000) * -0.01f) : 1.0f;
        float time = num_exponential(word) / weight;

        if (i < N_LEAST) assert_int_equal(word, least[i].word);
        for (size_t k = 0; k < 2 && rows[k]; k++) {
            struct sample_race race = {.seed = seed, .id = N, .time = NUM_INFINITY};

            sample_race_id(&race, N, word, weight); /* the leader */
            assert_int_equal(race.id, N);
            memset(e, 0, sizeof(e));
            e[id] = weight;
            rows[k]->run(e, n, &race);
            if (race.id != id)
                fail_msg("word %u, weight %a: not drawn at %a", word, (double)weight, (double)time);
            assert_true(race.time == time);
        }
    }
}

/* A first id of which the logit or the logit over the temperature is not finite is drawn, whatever
 * else is asked. */
static void test_first_not_finite(void **state) {
    static const struct {
        float all, top, temperature;
    } cases[] = {
        {0.0f, 0x1p125f, 0x1p-7f},       {0x1.8p121f, 0x1.8p121f, 0x1p-7f},
        {0.0f, INFINITY, 1.0f},          {1.0f, INFINITY, 0x1p+7f},
        {-INFINITY, -INFINITY, 1.0f},    {-0x1p127f, -0x1p126f, 0x1p-7f},
        {-0x1p127f, -0x1p127f, 0x1p-7f},
    };
    static const uint32_t sizes[] = {7, 32, 301};

    (void)state;
    for (int i = 0; i < 4000; i++) {
        size_t c = (size_t)i % (sizeof(cases) / sizeof(cases[0]));
        uint32_t n = PICK(sizes), first = cases[c].all == cases[c].top ? 0 : 1 + dice_below(n - 2);
        struct sample_params p = make_params(n);

        for (uint32_t j = 0; j < n; j++) logits[j] = cases[c].all;
        logits[first] = logits[n - 1] = cases[c].top; /* two, of which the lower is first */
        p.temperature = cases[c].temperature;
        if (i % 4 == 0) p.top_p = 1.0f;
        if (i % 8 == 0) p.top_k = 0;
        assert_int_equal(sample_choose(logits, n, &p, dice(), scratch), first);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_whole_vocabulary),
        cmocka_unit_test(test_lse_not_finite),
        cmocka_unit_test(test_no_number),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_equal_times),
        cmocka_unit_test(test_top_p_ceiling),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_last_winner),
        cmocka_unit_test(test_first_not_finite),
    };
    int r = cmocka_run_group_tests(tests, NULL, NULL);

    print_message("sample: %lu rows, %lu draws compared\n", n_rows, n_draws);
    return r;
}
