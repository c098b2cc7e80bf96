#include "runtime/sample.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/err.h"
#include "runtime/num.h"
#include "runtime/sample_row.h"

enum {
    DIGIT_BITS = 11, /* of an order key, a level of `cut` */
    N_DIGITS = 1 << DIGIT_BITS,
    TREE_LEVELS = 32,
};

/* A row on its way to a token. */
struct pick {
    const struct sample_row *row;
    const float *logits;
    uint32_t vocab;
    float *e;      /* [vocab], 0 where an id is not kept */
    uint32_t *ids; /* [vocab], of whoever needs a list */
};

static const struct sample_row *choose_row(void) {
#ifndef SAMPLE_PORTABLE
    const struct sample_row *row = sample_row_avx2();

    if (row) return row;
#endif
    return &sample_row_portable;
}

int sample_check(const struct sample_params *p, uint32_t vocab, struct err *e) {
    /* Each is the negation of what may be, so that a NaN is refused. */
    if (!(p->temperature == 0.0f ||
          (p->temperature >= SAMPLE_TEMPERATURE_MIN && p->temperature <= SAMPLE_TEMPERATURE_MAX)))
        return err_set(e, -EINVAL, "temperature %g: it may be 0, or %g to %g",
                       (double)p->temperature, (double)SAMPLE_TEMPERATURE_MIN,
                       (double)SAMPLE_TEMPERATURE_MAX);
    if (!(p->top_p > 0.0f && p->top_p <= 1.0f))
        return err_set(e, -EINVAL, "top_p %g: it may be above 0, up to 1", (double)p->top_p);
    if (!(p->min_p >= 0.0f && p->min_p <= 1.0f))
        return err_set(e, -EINVAL, "min_p %g: it may be 0 to 1", (double)p->min_p);
    if (p->top_k > vocab)
        return err_set(e, -EINVAL, "top_k %u: it may be 0, or 1 to %u, the vocabulary", p->top_k,
                       vocab);
    return 0;
}

/* The passes over a row, portable. */

static float number(float logit) {
    return num_max(-NUM_INFINITY, logit);
}

static float row_max(const float *logits, uint32_t n) {
    float m = -NUM_INFINITY;

    for (uint32_t i = 0; i < n; i++) m = num_max(m, logits[i]);
    return m;
}

static uint32_t row_find(const float *logits, uint32_t from, uint32_t n, float least) {
    while (from < n && number(logits[from]) < least) from++;
    return from;
}

static uint32_t row_gather(const float *logits, uint32_t n, float least, uint32_t *ids) {
    uint32_t n_ids = 0;

    for (uint32_t i = 0; i < n; i++)
        if (number(logits[i]) >= least) ids[n_ids++] = i;
    return n_ids;
}

static float row_chunk_sum(const float *logits, float exponent) {
    float v[SAMPLE_CHUNK];

    for (int i = 0; i < SAMPLE_CHUNK; i++)
        v[i] = num_exp2(num_fma(logits[i], NUM_LOG2E, -exponent));
    for (int n = SAMPLE_CHUNK / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) v[i] = v[2 * i] + v[2 * i + 1];
    return v[0];
}

static void row_weigh(const float *logits, uint32_t n, float temperature, float z_first, float *e) {
    for (uint32_t i = 0; i < n; i++)
        e[i] = num_exp2((number(logits[i]) / temperature - z_first) * NUM_LOG2E);
}

static uint64_t weight(float e) {
    return (uint64_t)(e * 0x1p40f);
}

static uint64_t row_total(const float *e, uint32_t n) {
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++) sum += weight(e[i]);
    return sum;
}

static void row_drop(const float *logits, uint32_t n, float least, float min_p, float *e) {
    for (uint32_t i = 0; i < n; i++)
        if (number(logits[i]) < least || e[i] < min_p) e[i] = 0.0f;
}

static void row_run(const float *e, uint32_t n, struct sample_race *race) {
    for (uint32_t id = 0; id < n; id++) {
        uint32_t word;

        /* E is above 2^-33 for every word, and above 2^-32 times the word: most ids lose by
         * their weight alone, most others by their word. */
        if (e[id] * race->half < 0.25f) continue;
        word = num_random(race->seed, race->position, id);
        if ((float)(word / 2) > e[id] * race->half) continue;
        sample_race_id(race, id, word, e[id]);
    }
}

const struct sample_row sample_row_portable = {
    .max = row_max,
    .find = row_find,
    .gather = row_gather,
    .chunk_sum = row_chunk_sum,
    .weigh = row_weigh,
    .total = row_total,
    .drop = row_drop,
    .run = row_run,
};

/* E / e <= time needs E <= e * time; 2^-32 word < E; and a 64th covers every rounding. */
void sample_race_id(struct sample_race *race, uint32_t id, uint32_t word, float e) {
    float time = num_exponential(word) / e;

    if (time > race->time || (time == race->time && id >= race->id)) return;
    race->id = id;
    race->time = time;
    race->half = time * 0x1.04p31f;
}

/* Logsumexp. */

/* A tree of which leaf after leaf arrives: level i holds a whole subtree of 2^i leaves where bit
 * i of n is set, as carries do. */
struct tree {
    float level[TREE_LEVELS];
    uint32_t n;
};

static void tree_add(struct tree *t, float v) {
    int i = 0;

    for (; t->n >> i & 1; i++) v = t->level[i] + v;
    t->level[i] = v;
    t->n++;
}

static float tree_sum(const struct tree *t) {
    float v = 0.0f;

    for (int i = 0; i < TREE_LEVELS; i++)
        if (t->n >> i & 1) v = t->level[i] + v;
    return v;
}

static float exponent_of(float max) {
    return floorf(max * NUM_LOG2E) + 1.0f;
}

bool sample_lse(const float *logits, uint32_t vocab, float *out_lse) {
    const struct sample_row *row = choose_row();
    struct tree t = {.n = 0};
    float first = row->max(logits, vocab);
    /* exponent_of does not fall, so this is the largest of the chunks' too. */
    float exponent = exponent_of(first), lse;

    for (uint32_t at = 0; at < vocab; at += SAMPLE_CHUNK) {
        uint32_t n = vocab - at < SAMPLE_CHUNK ? vocab - at : SAMPLE_CHUNK;
        float own = exponent_of(row->max(logits + at, n)), d = own - exponent, sum;

        if (n == SAMPLE_CHUNK) {
            sum = row->chunk_sum(logits + at, own);
        } else {
            /* Absent ids are +0 to the tree, as the exponential of -infinity is. */
            float rest[SAMPLE_CHUNK];

            for (uint32_t i = 0; i < SAMPLE_CHUNK; i++)
                rest[i] = i < n ? logits[at + i] : -NUM_INFINITY;
            sum = row->chunk_sum(rest, own);
        }
        tree_add(&t, sum * (d >= -126.0f ? num_pow2((int)d) : 0.0f));
    }
    lse = num_fma(exponent, NUM_LN2, num_log2(tree_sum(&t)) * NUM_LN2);
    *out_lse = lse == lse ? lse : NUM_NAN;
    return isfinite(lse) && isfinite(first);
}

/* The order of ids. */

/* A key that is larger where an id is earlier: the logit as an integer. */
static uint32_t key_of(float logit) {
    uint32_t bits = num_bits(number(logit) + 0.0f); /* -0 and +0 are one */

    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static float logit_of(uint32_t key) {
    return num_from_bits(key >> 31 ? key & 0x7fffffffu : ~key);
}

void sample_top(const float *logits, uint32_t vocab, uint32_t n, uint32_t *out_ids) {
    const struct sample_row *row = choose_row();
    uint32_t n_ids = 0, id = 0;

    ASSERT(n <= SAMPLE_TOP_MAX && n <= vocab);
    while (n > 0 && id < vocab) {
        float logit = number(logits[id]);
        uint32_t at = n_ids < n ? n_ids++ : n - 1;

        /* An equal logit stays before: its id is lower. */
        for (; at > 0 && number(logits[out_ids[at - 1]]) < logit; at--)
            out_ids[at] = out_ids[at - 1];
        out_ids[at] = id++;
        if (n_ids < n) continue;
        if (number(logits[out_ids[n - 1]]) == NUM_INFINITY) break;
        id = row->find(logits, id, vocab, logit_of(key_of(logits[out_ids[n - 1]]) + 1));
    }
}

/* Choosing. */

/* Of ids in order, the first ones are kept, as long as the weights before an id sum to less than
 * `target` (each weighs 1 where e is NULL); the rest weighs at least `target` together.  Leaves
 * in `ids` those with the logit of the last kept id, and returns how many of them are kept. */
static uint32_t cut(const float *logits, const float *e, uint32_t *ids, uint32_t *n_ids,
                    uint64_t target) {
    static const int shifts[] = {32 - DIGIT_BITS, 32 - 2 * DIGIT_BITS, 0};
    uint64_t sums[N_DIGITS], one;

    for (int level = 0; level < 3; level++) {
        uint32_t n = 0, digit = N_DIGITS - 1;

        memset(sums, 0, sizeof(sums));
        for (uint32_t i = 0; i < *n_ids; i++)
            sums[key_of(logits[ids[i]]) >> shifts[level] & (N_DIGITS - 1)] +=
                e ? weight(e[ids[i]]) : 1;
        while (sums[digit] < target) {
            ASSERT(digit > 0);
            target -= sums[digit--];
        }
        for (uint32_t i = 0; i < *n_ids; i++)
            if ((key_of(logits[ids[i]]) >> shifts[level] & (N_DIGITS - 1)) == digit)
                ids[n++] = ids[i];
        *n_ids = n;
    }
    one = e ? weight(e[ids[0]]) : 1;
    return (uint32_t)((target + one - 1) / one);
}

/* Ends `cut`: what comes after the last kept id is dropped. */
static void drop_after(const struct pick *p, uint32_t n_ids, uint32_t n_kept) {
    p->row->drop(p->logits, p->vocab, number(p->logits[p->ids[0]]), 0.0f, p->e);
    for (uint32_t i = n_kept; i < n_ids; i++) p->e[p->ids[i]] = 0.0f;
}

static void keep_top_k(const struct pick *p, uint32_t k) {
    uint32_t n_ids = p->vocab, run_ids = p->vocab / (2 * k), n_kept;
    float least = -NUM_INFINITY;

    /* The k-th largest of the maxima of runs is a logit that at least k ids reach. */
    if (run_ids >= 8) {
        float *maxima = (float *)(p->ids + p->vocab / 2);

        n_ids = p->vocab / run_ids;
        for (uint32_t i = 0; i < n_ids; i++) {
            maxima[i] = p->row->max(p->logits + i * run_ids, run_ids);
            p->ids[i] = i;
        }
        cut(maxima, NULL, p->ids, &n_ids, k);
        least = maxima[p->ids[0]];
    }
    n_ids = p->row->gather(p->logits, p->vocab, least, p->ids);
    n_kept = cut(p->logits, NULL, p->ids, &n_ids, k);
    drop_after(p, n_ids, n_kept);
}

/* t of SPEC 2.11. */
static uint64_t target_of(uint64_t total, float top_p) {
    double p = ((double)top_p * 0x1p24 + 0x1p52) - 0x1p52; /* to an integer, ties to even */
    uint64_t part = p < 1.0 ? 1 : (uint64_t)p;

    return (total >> 24) * part + (((total & 0xffffff) * part + 0xffffff) >> 24);
}

static void keep_top_p(const struct pick *p, float top_p, float temperature, float first) {
    static const float depths[] = {2.0f, 6.0f, 12.0f, INFINITY};
    uint64_t target = target_of(p->row->total(p->e, p->vocab), top_p);
    uint32_t n_ids = 0, n_kept;

    /* Most often a few ids weigh enough, and only they have to be put in order. */
    for (int i = 0; i < 4; i++) {
        uint64_t sum = 0;

        n_ids = p->row->gather(p->logits, p->vocab, first - depths[i] * temperature, p->ids);
        for (uint32_t j = 0; j < n_ids && sum < target; j++) sum += weight(p->e[p->ids[j]]);
        if (sum >= target) break;
    }
    n_kept = cut(p->logits, p->e, p->ids, &n_ids, target);
    drop_after(p, n_ids, n_kept);
}

uint32_t sample_choose(const float *logits, uint32_t vocab, const struct sample_params *params,
                       uint32_t position, void *scratch) {
    struct pick p = {.row = choose_row(), .logits = logits, .vocab = vocab};
    struct sample_race race = {.seed = params->seed, .position = position};
    float max = p.row->max(logits, vocab), temperature = params->temperature;
    uint32_t first = p.row->find(logits, 0, vocab, max);

    ASSERT(vocab > 0);
    if (temperature == 0.0f || !isfinite(max / temperature)) return first;

    p.e = scratch;
    p.ids = (uint32_t *)scratch + vocab;
    p.row->weigh(logits, vocab, temperature, max / temperature, p.e);
    if (params->top_k > 0 && params->top_k < vocab) keep_top_k(&p, params->top_k);
    if (params->top_p < 1.0f) keep_top_p(&p, params->top_p, temperature, max);
    if (params->min_p > 0.0f) p.row->drop(logits, vocab, -NUM_INFINITY, params->min_p, p.e);

    /* e of the first id is 1: there is always a winner. */
    race.id = first;
    race.time = NUM_INFINITY;
    sample_race_id(&race, first, num_random(race.seed, position, first), 1.0f);
    p.row->run(p.e, vocab, &race);
    return race.id;
}
