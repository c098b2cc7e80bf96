/* The text of the kernel that chooses tokens, run on this processor (tests/sim/sim.h), against
 * sample.c, bit for bit: logits of every kind, all filters, rows of which some want nothing, blocks
 * that share rows or have one, beside a kernel that still writes the logits.  LLM42_SIM_SEED gives
 * other orders and values.  Skipped (77) in a build without CUDA or a C++ compiler. */
#if defined LLM42_CUDA && defined LLM42_SIM

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx/sm90_batch.h"
#include "ptx/sm90_sample.h"
#include "runtime/sample.h"
#include "tests/logit_data.h"
#include "tests/sim/sim.h"

enum { POISON = 0xff };

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
                             .target = next() % 2 ? next() % t->vocab : 0xffffffffu,
                             .seed = p->seed};
    if (more && next() % 8) {
        p->temperature = temperatures[next() % 5];
        p->top_p = top_ps[next() % 5];
        p->min_p = min_ps[next() % 5];
        p->top_k = ks[next() % 6];
        if (p->top_k > t->vocab) p->top_k = 0;
    }
    if (more && (p->temperature == 0.0f || next() % 3 == 0)) w->n_top = next() % SAMPLE_TOP_MAX + 1;
    if (w->n_top > t->vocab) w->n_top = t->vocab;
    w->temperature = p->temperature;
    w->min_p = p->min_p;
    w->top_k = p->top_k;
    w->top_part = top_part(p->top_p);
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

/* n_blocks 0: a block a row, one after the other. */
static void run(uint32_t vocab, uint32_t n_rows, uint32_t n_blocks, uint32_t drawn_of) {
    struct task *t = &task;
    const uint32_t first_kind = next();
    void *logits, *results, *chunks, *maxima, *scratch;
    uint32_t *counts, before = n_failed;

    t->vocab = vocab;
    t->stride = (vocab + 7) / 8 * 8;
    t->n_rows = n_rows;
    t->n_chunks = (vocab + SM90_SAMPLE_CHUNK - 1) / SM90_SAMPLE_CHUNK;
    t->n_groups = (t->n_chunks + SM90_SAMPLE_GROUP - 1) / SM90_SAMPLE_GROUP;
    t->n_logit_bytes = (size_t)n_rows * t->stride * sizeof(float);
    t->logits = take(t->n_logit_bytes, POISON);
    t->shown = logits = take(t->n_logit_bytes, POISON);
    t->wants = take(n_rows * sizeof(*t->wants), 0);
    t->params = take(n_rows * sizeof(*t->params), 0);
    results = take(n_rows * sizeof(struct batch_result), POISON);
    chunks =
        take((size_t)n_rows * t->n_groups * SM90_SAMPLE_GROUP * sizeof(struct batch_chunk), POISON);
    maxima = take((size_t)n_rows * t->n_groups * sizeof(float), POISON);
    counts = take(n_rows * sizeof(*counts), 0);
    scratch = take(t->n_logit_bytes, POISON);
    for (uint32_t row = 0; row < n_rows; row++) {
        ask(t, row, drawn_of);
        logit_data(t->logits + (size_t)row * t->stride, vocab, (first_kind + row) % LOGIT_KINDS,
                   next);
    }
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
            printf("vocab %u, row %u: counted %u behind the end\n", vocab, row, counts[row]);
    compare(t, "dealt", results, n_blocks);
    for (uint32_t n_ranks = 1; n_ranks <= SM90_SPREAD_RANKS; n_ranks *= 2)
        if (n_ranks == 8 || (n_rows < 50 && next() % 3 == 0))
            run_spread(t, results, logits, scratch, n_ranks);
    printf("%s: %u rows of %u, %u blocks\n", n_failed > before ? "FAIL" : "ok", n_rows, vocab,
           n_blocks);
    fflush(stdout);
    free(t->logits);
    free(logits);
    free(t->wants);
    free(t->params);
    free(results);
    free(chunks);
    free(maxima);
    free(counts);
    free(scratch);
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
        run(cases[i].vocab, cases[i].n_rows, cases[i].n_blocks, cases[i].drawn_of);
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
