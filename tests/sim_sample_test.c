/* The text of the kernel that chooses tokens, run on this processor (tests/sim/sim.h), against
 * sample.c, bit for bit: logits of every kind, all filters and their edges, rows of which some want
 * nothing, blocks that share rows or have one, beside a kernel that still writes the logits.
 * LLM42_SIM_SEED gives other orders and values.  Skipped (77) in a build without CUDA or a C++
 * compiler. */
#if defined LLM42_CUDA && defined LLM42_SIM

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx/sm90_batch.h"
#include "ptx/sm90_sample.h"
#include "runtime/sample.h"
#include "tests/logit_data.h"
#include "tests/sim/sim.h"

enum { POISON = 0xff, SPREAD_ROWS = 28 };

static uint32_t seed = 1, n_failed;
static uint64_t n_rows_compared;

static uint32_t next(void) {
    return sim_random();
}

static void *take(size_t n_bytes, int fill) {
    void *p = aligned_alloc(128, (n_bytes + 127) / 128 * 128);

    if (!p) exit(1);
    return memset(p, fill, n_bytes);
}

/* ---- what is asked ---- */

struct task {
    uint32_t vocab, stride, n_rows, n_chunks, n_groups;
    struct batch_want *wants;
    struct sample_params *params;
    float *logits, *shown; /* as the kernel before leaves them, and as it finds them */
    size_t n_logit_bytes;
};

static struct task task;

static void write_logits(void) {
    memcpy(task.shown, task.logits, task.n_logit_bytes);
}

static uint32_t top_part(float top_p) {
    const double part = ((double)top_p * 0x1p24 + 0x1p52) - 0x1p52;

    return top_p < 1.0f ? part < 1.0 ? 1 : (uint32_t)part : 0;
}

static void want_params(struct batch_want *w, const struct sample_params *p) {
    w->seed = p->seed;
    w->temperature = p->temperature;
    w->min_p = p->min_p;
    w->top_k = p->top_k;
    w->top_part = top_part(p->top_p);
}

/* One row of so many wants more than its first id, of the others some nothing. */
static void ask(struct task *t, uint32_t row, uint32_t drawn_of) {
    static const float temperatures[] = {1.0f, 0.7f, 0x1p-7f, 3.0f, 0x1p7f};
    static const float top_ps[] = {1.0f, 0.9f, 0.5f, 1e-9f, 0.99999f};
    static const float min_ps[] = {0.0f, 0.0f, 0.05f, 0.9f, 1.0f};
    const uint32_t ks[] = {0, 0, 1, 40, t->vocab / 2, t->vocab - 1};
    const bool more = next() % drawn_of == 0;
    struct sample_params *p = &t->params[row];
    struct batch_want *w = &t->wants[row];

    *p = (struct sample_params){.top_p = 1.0f, .seed = (uint64_t)next() << 32 | next()};
    *w = (struct batch_want){.row = row,
                             .position = next() % 1000,
                             .target = next() % 2 ? next() % t->vocab : 0xffffffffu};
    if (more && next() % 8) {
        p->temperature = temperatures[next() % 5];
        p->top_p = top_ps[next() % 5];
        p->min_p = min_ps[next() % 5];
        p->top_k = ks[next() % 6];
        if (p->top_k > t->vocab) p->top_k = 0;
    }
    if (more && (p->temperature == 0.0f || next() % 3 == 0)) w->n_top = next() % SAMPLE_TOP_MAX + 1;
    if (w->n_top > t->vocab) w->n_top = t->vocab;
    want_params(w, p);
    if (!more && next() % 8 == 0) w->n_top = BATCH_NO_WANT;
}

/* ---- what it is to be ---- */

static struct batch_result wanted(const struct task *t, uint32_t row, void *scratch) {
    const float *logits = t->logits + (size_t)row * t->stride;
    const struct batch_want *w = &t->wants[row];
    struct batch_result r = {.n_top = w->n_top};

    if (w->n_top == BATCH_NO_WANT) {
        memset(&r, POISON, sizeof(r));
        return r;
    }
    if (!sample_lse(logits, t->vocab, &r.lse)) return (struct batch_result){.numeric = 1};
    r.token = sample_choose(logits, t->vocab, &t->params[row], w->position, scratch);
    r.logprob = logits[r.token] - r.lse;
    if (w->target != 0xffffffffu) r.target_logprob = logits[w->target] - r.lse;
    if (r.n_top) sample_top(logits, t->vocab, r.n_top, r.top_ids);
    for (uint32_t i = 0; i < r.n_top; i++) r.top_logprobs[i] = logits[r.top_ids[i]] - r.lse;
    return r;
}

/* A NaN's sign and payload are nobody's promise (a target or a top id may be one). */
static void quiet(struct batch_result *r) {
    float *const values[] = {&r->logprob, &r->target_logprob};

    for (int i = 0; i < 2; i++)
        if (*values[i] != *values[i]) *values[i] = NUM_NAN;
    for (int i = 0; i < BATCH_TOP_MAX; i++)
        if (r->top_logprobs[i] != r->top_logprobs[i]) r->top_logprobs[i] = NUM_NAN;
}

static void compare(const struct task *t, const char *by, struct batch_result *results,
                    uint32_t n_blocks) {
    void *scratch = take((size_t)t->vocab * 8, 0);

    for (uint32_t row = 0; row < t->n_rows; row++) {
        const struct batch_want *w = &t->wants[row];
        struct batch_result want = wanted(t, row, scratch), *is = &results[row];

        n_rows_compared++;
        if (w->n_top != BATCH_NO_WANT) {
            quiet(&want);
            quiet(is);
        }
        if (!memcmp(&want, is, sizeof(want))) continue;
        if (n_failed++ < 10)
            printf("%s: vocab %u, row %u of %u, %u blocks (temperature %a top_k %u top_p %u min_p "
                   "%a): "
                   "numeric %u %u, token %u %u, logprob %a %a, target %a %a, lse %a %a, n_top %u "
                   "%u\n",
                   by, t->vocab, row, t->n_rows, n_blocks, (double)w->temperature, w->top_k,
                   w->top_part, (double)w->min_p, want.numeric, is->numeric, want.token, is->token,
                   (double)want.logprob, (double)is->logprob, (double)want.target_logprob,
                   (double)is->target_logprob, (double)want.lse, (double)is->lse, want.n_top,
                   is->n_top);
    }
    free(scratch);
}

/* The same by a cluster a row, of so many blocks. */
static void run_spread(struct task *t, void *results, void *logits, void *scratch,
                       uint32_t n_ranks) {
    uint32_t share = (t->n_chunks + n_ranks - 1) / n_ranks;

    if (SM90_SPREAD_BYTES(share, n_ranks) > SM90_SPREAD_BYTES_MAX) return;
    memset(results, POISON, t->n_rows * sizeof(struct batch_result));
    memset(logits, POISON, t->n_logit_bytes);
    memset(scratch, POISON, t->n_logit_bytes);
    sim_run(&(struct sim_launch){.name = "sm90_sample_f32_spread",
                                 .grid = {n_ranks, t->n_rows},
                                 .block = {SM90_SAMPLE_THREADS},
                                 .cluster = n_ranks,
                                 .shared_bytes = SM90_SPREAD_BYTES(share, n_ranks),
                                 .n_units = n_ranks * (1 + next() % 2),
                                 .params = (void *[]){&results, &t->wants, &logits, &scratch,
                                                      &t->vocab, &t->stride, &t->n_chunks, &share},
                                 .previous = write_logits});
    compare(t, "spread", results, n_ranks);
}

static void begin(struct task *t, uint32_t vocab, uint32_t n_rows) {
    t->vocab = vocab;
    t->stride = (vocab + 7) / 8 * 8;
    t->n_rows = n_rows;
    t->n_chunks = (vocab + SM90_SAMPLE_CHUNK - 1) / SM90_SAMPLE_CHUNK;
    t->n_groups = (t->n_chunks + SM90_SAMPLE_GROUP - 1) / SM90_SAMPLE_GROUP;
    t->n_logit_bytes = (size_t)n_rows * t->stride * sizeof(float);
    t->logits = take(t->n_logit_bytes, POISON);
    t->wants = take(n_rows * sizeof(*t->wants), 0);
    t->params = take(n_rows * sizeof(*t->params), 0);
}

static void end(struct task *t) {
    free(t->logits);
    free(t->wants);
    free(t->params);
}

/* n_blocks 0: a block a row, one after the other.  By clusters of each of `ranks` blocks, a sum of
 * powers of two, at most n_spread rows: to these a row is nothing to another. */
static void run(struct task *t, uint32_t n_blocks, uint32_t ranks, uint32_t n_spread) {
    const uint32_t n_rows = t->n_rows, before = n_failed;
    void *results = take(n_rows * sizeof(struct batch_result), POISON);
    void *logits = t->shown = take(t->n_logit_bytes, POISON);
    void *chunks =
        take((size_t)n_rows * t->n_groups * SM90_SAMPLE_GROUP * sizeof(struct batch_chunk), POISON);
    void *maxima = take((size_t)n_rows * t->n_groups * sizeof(float), POISON);
    void *scratch = take(t->n_logit_bytes, POISON);
    uint32_t *counts = take(n_rows * sizeof(*counts), 0);

    sim_run(&(struct sim_launch){
        .name = "sm90_sample_f32",
        .grid = {n_blocks ? n_blocks : n_rows},
        .block = {SM90_SAMPLE_THREADS},
        .shared_bytes = SM90_SAMPLE_BYTES,
        .n_units = n_blocks ? n_blocks : 1,
        .params = (void *[]){&results, &t->wants, &logits, &chunks, &maxima, &counts, &scratch,
                             &t->n_rows, &t->vocab, &t->stride, &t->n_chunks, &t->n_groups},
        .previous = write_logits});
    for (uint32_t row = 0; row < n_rows; row++)
        if (counts[row] != 0 && n_failed++ < 10)
            printf("vocab %u, row %u: counted %u behind the end\n", t->vocab, row, counts[row]);
    compare(t, "dealt", results, n_blocks);
    if (t->n_rows > n_spread) t->n_rows = n_spread;
    for (uint32_t n_ranks = 1; n_ranks <= SM90_SPREAD_RANKS; n_ranks *= 2)
        if (ranks & n_ranks) run_spread(t, results, logits, scratch, n_ranks);
    printf("%s: %u rows of %u, %u blocks\n", n_failed > before ? "FAIL" : "ok", n_rows, t->vocab,
           n_blocks);
    fflush(stdout);
    free(results);
    free(logits);
    free(chunks);
    free(maxima);
    free(scratch);
    free(counts);
}

/* Rows of all kinds; by clusters always of 8. */
static void run_kinds(uint32_t vocab, uint32_t n_rows, uint32_t n_blocks, uint32_t drawn_of) {
    struct task *t = &task;
    const uint32_t first_kind = next();
    uint32_t ranks = 8;

    begin(t, vocab, n_rows);
    for (uint32_t row = 0; row < n_rows; row++) {
        ask(t, row, drawn_of);
        logit_data(t->logits + (size_t)row * t->stride, vocab, (first_kind + row) % LOGIT_KINDS,
                   next);
    }
    for (uint32_t n_ranks = 1; n_ranks <= SM90_SPREAD_RANKS; n_ranks *= 2)
        if (n_rows < 50 && next() % 3 == 0) ranks |= n_ranks;
    run(t, n_blocks, ranks, SPREAD_ROWS);
    end(t);
}

/* ---- rows at an edge ---- */

/* Of draws most rows tell little: here the noise is looked for under which the last id kept wins,
 * or, were it kept, the first one dropped. */

enum { EDGES = 8200, EDGE_ROWS = 400, TRIES = 1 << 17 };

#define FAR (-60.0f) /* an id that weighs nothing and never wins */

static float *edge_of(struct task *t) {
    float *logits = t->logits + (size_t)t->n_rows * t->stride;

    if (t->n_rows == EDGE_ROWS) exit(1);
    for (uint32_t i = 0; i < t->vocab; i++) logits[i] = FAR;
    return logits;
}

static void add_edge(struct task *t, struct sample_params p, uint32_t position) {
    struct batch_want *w = &t->wants[t->n_rows];

    t->params[t->n_rows] = p;
    *w = (struct batch_want){.row = t->n_rows++, .position = position, .target = next() % t->vocab};
    want_params(w, &p);
}

static float e_of(float logit, float temperature, float z_first) {
    return num_exp2((logit / temperature - z_first) * NUM_LOG2E);
}

static const float *ordered;

static int by_order(const void *a, const void *b) {
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

    if (ordered[i] != ordered[j]) return ordered[i] > ordered[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

/* The ids in order, and how many of them are kept. */
static uint32_t order_ids(const float *logits, uint32_t vocab, const struct sample_params *p,
                          uint32_t *ids) {
    const uint32_t k = p->top_k ? p->top_k : vocab, part = top_part(p->top_p);
    uint64_t sum = 0, before = 0, target;
    uint32_t n = 0;
    float z_first;

    for (uint32_t i = 0; i < vocab; i++) ids[i] = i;
    ordered = logits;
    qsort(ids, vocab, sizeof(*ids), by_order);
    z_first = logits[ids[0]] / p->temperature;
    for (uint32_t i = 0; i < k; i++)
        sum += (uint64_t)(e_of(logits[ids[i]], p->temperature, z_first) * 0x1p40f);
    target = part ? (sum >> 24) * part + (((sum & 0xffffff) * part + 0xffffff) >> 24) : ~0ull;
    for (; n < k && before < target; n++) {
        const float e = e_of(logits[ids[n]], p->temperature, z_first);

        if (e < p->min_p) break;
        before += (uint64_t)(e * 0x1p40f);
    }
    return n;
}

/* A seed under which the id wins. */
static bool find_seed(const float *logits, uint32_t vocab, struct sample_params *p,
                      uint32_t position, uint32_t id) {
    static uint64_t scratch[EDGES];

    for (uint32_t i = 0; i < TRIES; i++) {
        p->seed = (uint64_t)next() << 32 | next();
        if (sample_choose(logits, vocab, p, position, scratch) == id) return true;
    }
    return false;
}

/* Two rows with the logits of the one to come: the last that is kept wins; the first that is not
 * would. */
static void add_cut(struct task *t, float *logits, struct sample_params p) {
    static uint32_t ids[EDGES];
    const uint32_t n = order_ids(logits, t->vocab, &p, ids), position = next() % 1000;
    struct sample_params all = {.temperature = p.temperature, .top_p = 1.0f};

    if (!find_seed(logits, t->vocab, &p, position, ids[n - 1])) {
        n_failed++;
        printf("edge %u: no seed for the last of %u\n", t->n_rows, n);
    }
    add_edge(t, p, position);
    if (n == t->vocab || logits[ids[n]] <= FAR) return;
    memcpy(edge_of(t), logits, t->vocab * sizeof(float));
    if (!find_seed(logits, t->vocab, &all, position, ids[n])) {
        n_failed++;
        printf("edge %u: no seed for the one after %u\n", t->n_rows, n);
    }
    p.seed = all.seed;
    add_edge(t, p, position);
}

static uint32_t scattered(const struct task *t, uint32_t i) {
    return (uint32_t)((uint64_t)i * 4099 % t->vocab);
}

/* n equal logits, a power of two of them weighs a power of two: sums that are t exactly. */
static void add_equal(struct task *t, uint32_t n, float top_p, uint32_t top_k) {
    float *logits = edge_of(t);

    for (uint32_t i = 0; i < n; i++) logits[scattered(t, i)] = 2.5f;
    add_cut(t, logits, (struct sample_params){.temperature = 1.0f, .top_p = top_p, .top_k = top_k});
}

/* 2^i ids with e = 2^-i, i below 8: each level weighs as much; t is at the end of a level, or one
 * 2^24th of all beside it, or halfway. */
static void add_levels(struct task *t, uint32_t eighths, int more, uint32_t top_k) {
    const float part = (float)eighths * 0x1p20f + (float)more;
    float *logits = edge_of(t);
    uint32_t n = 0;

    for (uint32_t i = 0; i < 8; i++) {
        float x = -(float)i / NUM_LOG2E;

        while (x * NUM_LOG2E > -(float)i) x = num_from_bits(num_bits(x) + 1);
        while (x * NUM_LOG2E < -(float)i) x = num_from_bits(num_bits(x) - 1);
        if (x * NUM_LOG2E != -(float)i) n_failed++;
        for (uint32_t j = 0; j < 1u << i; j++) logits[scattered(t, n++)] = x;
    }
    add_cut(t, logits,
            (struct sample_params){.temperature = 1.0f, .top_p = part * 0x1p-24f, .top_k = top_k});
}

/* Adjacent logits around a depth, in 32nds of a factor of two, where bins of depth end; the last
 * one kept is each of those in the middle, as tightly as top_p can say it. */
static void add_depth(struct task *t, uint32_t depth, float max, float temperature,
                      uint32_t n_each) {
    enum { AROUND = 7 };
    const float at = max - (float)depth / 32.0f / NUM_LOG2E * temperature;
    const uint32_t step = max > 0.0f ? -1u : 1u; /* of bits, to the next smaller */
    static uint32_t ids[EDGES];
    struct sample_params p = {.temperature = temperature, .top_p = 1.0f};
    float z_first = max / temperature;

    for (uint32_t which = 0; which < AROUND - 1; which++) {
        float *logits = edge_of(t);
        uint64_t sum = 0, before = 0;
        uint32_t n = 0;

        logits[scattered(t, n++)] = max;
        for (uint32_t i = 0; i < AROUND; i++)
            for (uint32_t j = 0; j < n_each; j++)
                logits[scattered(t, n++)] = num_from_bits(num_bits(at) + step * (i - AROUND / 2));
        p.top_p = 1.0f;
        (void)order_ids(logits, t->vocab, &p, ids);
        for (uint32_t i = 0; i < n; i++) {
            const uint64_t w = (uint64_t)(e_of(logits[ids[i]], temperature, z_first) * 0x1p40f);

            sum += w;
            if (i < 1 + (which + 1) * n_each) before += w;
        }
        p.top_p = (float)((((unsigned __int128)before << 24) / sum)) * 0x1p-24f;
        add_cut(t, logits, p);
    }
}

/* q is e of an id exactly, or the next above it. */
static void add_min_p(struct task *t, float temperature, float top_p, uint32_t top_k) {
    for (int above = 0; above < 2; above++) {
        float *logits = edge_of(t), z_first, e;
        struct sample_params p = {.temperature = temperature, .top_p = top_p, .top_k = top_k};

        for (uint32_t i = 0; i < 60; i++) logits[scattered(t, i)] = 3.0f - 0.05f * (float)i;
        z_first = 3.0f / temperature;
        e = e_of(logits[scattered(t, 20)], temperature, z_first);
        p.min_p = above ? num_from_bits(num_bits(e) + 1) : e;
        add_cut(t, logits, p);
    }
}

/* Two run, and the one that has to give way is seen first, `gap` ids before or in the same four.
 * The winner's noise is where it is nearest to the bound of it, at a word of 2^16 (0.5 / word, and
 * word / 2^33 of the series, are what lies between), and its time the next below the loser's; or
 * where they `tie` the same, and the lowest id wins. */
static void add_race(struct task *t, uint32_t gap, bool tie, float temperature) {
    for (;;) {
        const uint64_t own_seed = (uint64_t)next() << 32 | next();
        const uint32_t position = next() % 1000, b = 4096 + next() % 128, a = gap ? b - gap : b ^ 1;
        const uint32_t word = num_random(own_seed, position, b);
        float slow, fast = num_exponential(word), x, limit, *logits;
        struct sample_params p = {.temperature = temperature, .top_p = 1.0f, .seed = own_seed};

        if (tie ? word >> 24 > 0 : word < 56000 || word > 76000) continue;
        slow = num_exponential(num_random(own_seed, position, a));
        if (fast / slow > 0x1p-5f || fast / slow < 0x1p-16f) continue;
        x = log2f(fast / slow) / NUM_LOG2E * temperature;
        limit = x * (1.0f - 0x1p-16f);
        x = x * (1.0f + 0x1p-16f);
        while (x < limit && (tie ? fast / e_of(x, temperature, 0.0f) > slow
                                 : fast / e_of(x, temperature, 0.0f) >= slow))
            x = num_from_bits(num_bits(x) - 1);
        if (x >= limit || (tie && fast / e_of(x, temperature, 0.0f) != slow)) continue;
        logits = edge_of(t);
        for (uint32_t i = 0; i < t->vocab; i++) logits[i] = -1000.0f * temperature;
        logits[a] = 0.0f;
        logits[b] = x;
        add_edge(t, p, position);
        return;
    }
}

/* n equal ids, of which those that are kept all come later than a race is likely to end: it is run
 * once more without its bound. */
static void add_slow(struct task *t, uint32_t n, float temperature, float top_p, uint32_t top_k) {
    static uint32_t ids[EDGES];
    struct sample_params p = {.temperature = temperature, .top_p = top_p, .top_k = top_k};
    const uint32_t position = next() % 1000;
    float *logits = edge_of(t), soonest;
    uint32_t n_kept;

    for (uint32_t i = 0; i < n; i++) logits[scattered(t, i)] = 2.5f;
    n_kept = order_ids(logits, t->vocab, &p, ids);
    if (n_kept > n) n_kept = n;
    do {
        p.seed = (uint64_t)next() << 32 | next();
        soonest = NUM_INFINITY;
        for (uint32_t i = 0; i < n_kept; i++)
            soonest = fminf(soonest, num_exponential(num_random(p.seed, position, ids[i])));
    } while (soonest < 10.0f / (float)n_kept);
    add_edge(t, p, position);
}

/* One large logit and others lo to hi powers of two below it; of `others` some are no number. */
static void add_far(struct task *t, float lo, float hi, float top_p, bool others) {
    float *logits = edge_of(t);

    for (uint32_t i = 0; i < t->vocab; i++) {
        const float x = (float)(next() >> 8) * 0x1p-24f;

        logits[i] = 3.0f - (lo + (hi - lo) * x) / NUM_LOG2E;
        if (others && next() % 4 == 0) logits[i] = next() % 2 ? NUM_NAN : -NUM_INFINITY;
    }
    logits[next() % t->vocab] = 3.0f;
    add_edge(t,
             (struct sample_params){
                 .temperature = 1.0f, .top_p = top_p, .seed = (uint64_t)next() << 32 | next()},
             next() % 1000);
}

/* A largest logit near the ends of the range: a power of two, which alone is not rounded when it
 * becomes an exponent, so that there is a logsumexp and a draw. */
static void add_huge(struct task *t, float max, float temperature, float top_p) {
    float *logits = edge_of(t);

    for (uint32_t i = 0; i < t->vocab; i++) {
        const uint32_t bits = num_bits(max), below = next() % 4;

        logits[i] = num_from_bits(max > 0.0f ? bits - below : bits + below);
        if (next() % 8 == 0) logits[i] = -0x1.fp127f;
    }
    logits[next() % t->vocab] = max;
    add_edge(t,
             (struct sample_params){.temperature = temperature,
                                    .top_p = top_p,
                                    .seed = (uint64_t)next() << 32 | next()},
             next() % 1000);
}

/* All logits are one of about 2^33, whose exponent is rounded so that the power of each is 2^lo to
 * 2^hi: no number, though bits of a float may look like one. */
static void add_rounded(struct task *t, float lo, float hi) {
    float *logits = edge_of(t), max, d;

    do {
        max = num_from_bits((127u + 30 + next() % 4) << 23 | next() >> 9);
        d = num_fma(max, NUM_LOG2E, -(floorf(max * NUM_LOG2E) + 1.0f));
    } while (!(d >= lo && d < hi));
    for (uint32_t i = 0; i < t->vocab; i++) logits[i] = max;
    add_edge(t, (struct sample_params){.temperature = 1.0f, .top_p = 1.0f}, next() % 1000);
}

static void run_edges(void) {
    struct task *t = &task;

    begin(t, EDGES, EDGE_ROWS);
    t->n_rows = 0;
    for (uint32_t i = 1; i <= 3; i++) {
        add_equal(t, 2, 0.25f * (float)i, 0);
        add_equal(t, 64, 0.25f * (float)i, 0);
        add_equal(t, 256, 0.25f * (float)i, 128);
    }
    add_equal(t, 64, 1.0f - 0x1p-6f, 0);
    add_equal(t, 64, 1.0f - 0x1p-7f, 0);
    add_equal(t, 64, 0x1p-6f, 0);
    add_equal(t, 64, 0x1p-6f + 0x1p-24f, 0);
    add_equal(t, 64, 1.0f, 63);
    add_equal(t, 2000, 1.0f, 1024);
    add_equal(t, 2000, 1.0f, 1025);
    add_equal(t, 4096, 0.5f, 2048);
    add_equal(t, 8192, 0.5f, 0);
    add_equal(t, 8200, 0.5f, 0);
    for (uint32_t i = 1; i < 8; i++) add_levels(t, 2 * i, 0, 0);
    for (uint32_t i = 1; i < 8; i += 3) {
        add_levels(t, 2 * i, -1, 0);
        add_levels(t, 2 * i, 1, 0);
        add_levels(t, 2 * i + 1, 0, 0);
        add_levels(t, 2 * i, 0, 255);
    }
    for (uint32_t k = 1; k < 20; k = 2 * k + 1) add_levels(t, 16, -1, k);
    add_depth(t, 1, 0.0f, 1.0f, 1);
    add_depth(t, 2, 0.0f, 1.0f, 1);
    add_depth(t, 39, 0.0f, 1.0f, 1);
    add_depth(t, 40, 0.0f, 1.0f, 1);
    add_depth(t, 75, 17.3f, 0.7f, 2);
    add_depth(t, 76, 17.3f, 0.7f, 2);
    add_min_p(t, 1.0f, 1.0f, 0);
    add_min_p(t, 0.7f, 1.0f, 40);
    add_min_p(t, 0.7f, 0.99f, 1500);
    for (uint32_t i = 0; i < 4; i++) {
        add_race(t, 4096, false, i % 2 ? 0.7f : 1.0f);
        add_race(t, 0, false, i % 2 ? 0.7f : 1.0f);
        add_race(t, 4096, true, 1.0f);
        add_race(t, i % 2, true, 1.0f);
    }
    for (uint32_t i = 0; i < 2; i++) {
        add_slow(t, 16, i ? 0.7f : 1.0f, 1.0f, 0);
        add_slow(t, 32, i ? 0.7f : 1.0f, 0.5f, 0);
        add_slow(t, 3000, i ? 0.7f : 1.0f, 0.5f, 2000);
    }
    for (uint32_t i = 0; i < 2; i++) {
        add_far(t, 126.0f, 150.0f, 1.0f, i);
        add_far(t, 126.0f, 150.0f, 0.5f, i);
        add_far(t, 127.5f, 145.0f, 1.0f, i);
        add_far(t, 380.0f, 640.0f, 1.0f, i);
        add_far(t, 380.0f, 640.0f, 0.5f, i);
        add_huge(t, i ? -0x1p126f : 0x1p126f, 0.55f, 0.5f);
        add_huge(t, i ? -0x1p127f : 0x1p127f, 0.6f, 1.0f);
        add_huge(t, i ? -0x1p126f : 0x1p126f, 128.0f, 1.0f);
    }
    add_rounded(t, 90.0f, 127.0f);
    add_rounded(t, 128.0f, 256.0f);
    add_rounded(t, 390.0f, 500.0f);
    add_rounded(t, -127.0f, -125.0f);
    run(t, 5, 2, EDGE_ROWS);
    end(t);
}

int main(void) {
    static const struct {
        uint32_t vocab, n_rows, n_blocks, drawn_of;
    } cases[] = {
        {33, 1, 1, 4},     {33, 256, 3, 16},   {1, 5, 2, 2},        {1000, 1, 1, 1},
        {1000, 17, 5, 2},  {1000, 256, 7, 32}, {1001, 9, 0, 2},     {1024, 14, 3, 3},
        {1025, 14, 14, 3}, {127, 28, 4, 4},    {3001, 14, 6, 2},    {8200, 28, 5, 3},
        {49152, 1, 7, 9},  {49152, 14, 4, 99}, {49152, 6, 2, 2},    {128256, 1, 9, 9},
        {128256, 2, 2, 1}, {128256, 14, 8, 8}, {131073, 14, 3, 99}, {262145, 3, 2, 3},
    };

    seed = (uint32_t)sim_seed_asked();
    sim_seed(seed);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        run_kinds(cases[i].vocab, cases[i].n_rows, cases[i].n_blocks, cases[i].drawn_of);
    run_edges();
    printf("%llu rows compared, %u mismatches\n", (unsigned long long)n_rows_compared, n_failed);
    return n_failed ? 1 : 0;
}

#else

#include <stdio.h>

int main(void) {
    printf("built without CUDA or without a C++ compiler\n");
    return 77;
}

#endif
