/* The CPU twin against the slow reference, bit for bit and stage by stage: sequences mixed in a
 * step, prompts cut anywhere, pages scattered and poisoned, threads, vector code or none, canonical
 * and tuned schedules; and what load refuses. */
#include "runtime/device.h"

#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/err.h"
#include "runtime/model_tensor.h"
#include "runtime/weights.h"
#include "tests/made_up.h"
#include "tests/reference.h"

enum { N_SEQS = 3, N_PAGES = 64, N_SEQ_PAGES = 16, N_ROWS_MAX = 300, N_LOGIT_ROWS = 5 };

/* A failed allocation is to be seen, not to end the test. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

static uint32_t seed = 1;

static uint32_t next(void) {
    return num_random(7, 1, seed++);
}

static char folder[] = "/tmp/device_cpu_test.XXXXXX";

static const struct device_limits limits = {
    .n_rows = N_ROWS_MAX,
    .n_seqs = N_SEQS,
    .n_pages = N_PAGES,
    .n_seq_pages = N_SEQ_PAGES,
    .n_wants = N_ROWS_MAX,
    .n_logit_rows = N_LOGIT_ROWS,
    .n_positions = N_SEQ_PAGES * DEVICE_PAGE_TOKENS,
};

static struct device *open_device(const struct model *m, struct weights *w, uint32_t n_threads,
                                  bool portable) {
    const struct device_cpu_options options = {.n_threads = n_threads, .portable = portable};
    struct device *dev = NULL;
    struct err e = {""};

    assert_int_equal(device_cpu_open(&options, &dev, &e), 0);
    if (dev->ops->load(dev, m, w, &limits, &e)) fail_msg("load: %s", e.text);
    return dev;
}

/* A batch of the test: sequences at some position each, their pages scattered. */
struct run {
    struct device *dev;
    const struct model *m;
    const struct schedule *sch;
    uint32_t pages[N_SEQS][N_SEQ_PAGES];
    struct device_row rows[N_ROWS_MAX];
    struct device_want wants[N_ROWS_MAX];
    struct device_result results[N_ROWS_MAX];
    uint8_t flagged[N_ROWS_MAX];
    uint32_t n_rows;
};

static void start(struct run *run) {
    uint32_t order[N_PAGES];
    struct err e;

    for (uint32_t i = 0; i < N_PAGES; i++) {
        uint32_t j = next() % (i + 1);

        order[i] = order[j];
        order[j] = i;
        /* What nobody wrote shows. */
        run->dev->ops->poison(run->dev, i, i % 2 ? 0xffff : 0x7f80, &e);
    }
    for (uint32_t i = 0; i < N_SEQS * N_SEQ_PAGES; i++)
        run->pages[i / N_SEQ_PAGES][i % N_SEQ_PAGES] = order[i];
}

static void upload(struct run *run) {
    struct err e;
    struct device_batch batch = {.n_rows = run->n_rows,
                                 .rows = run->rows,
                                 .n_seqs = N_SEQS,
                                 .pages = run->pages[0],
                                 .n_wants = run->n_rows,
                                 .wants = run->wants};

    for (uint32_t i = 0; i < run->n_rows; i++)
        run->wants[i] = (struct device_want){
            .row = run->n_rows - 1 - i, .target = 3, .n_top = i % 4, .params = {.top_p = 1.0f}};
    assert_int_equal(run->dev->ops->upload(run->dev, &batch, &e), 0);
}

static const struct reference_token *token_of(struct reference_seq *const *seqs,
                                              const struct device_row *row) {
    return &seqs[row->seq]->tokens[row->position];
}

static void same(struct run *run, enum device_buffer buffer, uint32_t row, const uint16_t *want,
                 uint32_t n, const char *stage, uint32_t layer) {
    static uint16_t got[8192];
    struct err e;

    assert_true(n <= 8192);
    run->dev->ops->read(run->dev, buffer, row, got, &e);
    for (uint32_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%s, layer %u, row %u (position %u), value %u: %04x, not %04x", stage, layer,
                     row, run->rows[row].position, i, got[i], want[i]);
}

/* One layer, every stage of it compared for every row. */
static void run_layer(struct run *run, struct reference_seq *const *seqs, uint32_t l) {
    const struct device_ops *ops = run->dev->ops;
    const struct model *m = run->m;
    struct device *dev = run->dev;
    struct err e;

    ops->attn_in(dev, l, run->sch, &e);
    ops->attend(dev, l, run->sch, &e);
    for (uint32_t i = 0; i < run->n_rows; i++) {
        const struct reference_trace *t = &token_of(seqs, &run->rows[i])->layers[l];

        same(run, DEVICE_QKV, i, t->qkv, (m->n_heads + 2 * m->n_kv_heads) * m->head_dim, "qkv", l);
        same(run, DEVICE_ATTN, i, t->attn, m->n_heads * m->head_dim, "attend", l);
    }
    ops->attn_out(dev, l, run->sch, &e);
    for (uint32_t i = 0; i < run->n_rows; i++)
        same(run, DEVICE_X, i, token_of(seqs, &run->rows[i])->layers[l].x_attn, m->hidden, "o", l);
    ops->mlp_in(dev, l, run->sch, &e);
    for (uint32_t i = 0; i < run->n_rows; i++)
        same(run, DEVICE_H, i, token_of(seqs, &run->rows[i])->layers[l].h, m->intermediate,
             "gate_up", l);
    ops->mlp_out(dev, l, run->sch, &e);
    for (uint32_t i = 0; i < run->n_rows; i++)
        same(run, DEVICE_X, i, token_of(seqs, &run->rows[i])->layers[l].x, m->hidden, "down", l);
}

/* A result is what SPEC 2.10 and 2.11 make of the reference's logits. */
static void same_result(const struct run *run, uint32_t i, const struct reference_token *t) {
    const struct device_result *got = &run->results[i];
    float lse;
    uint32_t ids[SAMPLE_TOP_MAX];

    if (!sample_lse(t->logits, run->m->vocab, &lse)) {
        assert_true(got->numeric);
        return;
    }
    assert_false(got->numeric);
    sample_top(t->logits, run->m->vocab, SAMPLE_TOP_MAX, ids);
    assert_int_equal(got->token, ids[0]);
    assert_int_equal(num_bits(got->lse), num_bits(lse));
    assert_int_equal(num_bits(got->logprob), num_bits(t->logits[ids[0]] - lse));
    assert_int_equal(num_bits(got->target_logprob), num_bits(t->logits[3] - lse));
    assert_int_equal(got->n_top, run->wants[i].n_top);
    for (uint32_t j = 0; j < got->n_top; j++) {
        assert_int_equal(got->top_ids[j], ids[j]);
        assert_int_equal(num_bits(got->top_logprobs[j]), num_bits(t->logits[ids[j]] - lse));
    }
}

static void run_head(struct run *run, struct reference_seq *const *seqs) {
    static float logits[4096];
    const struct device_ops *ops = run->dev->ops;
    struct err e;

    for (uint32_t first = 0; first < run->n_rows; first += N_LOGIT_ROWS) {
        uint32_t n = run->n_rows - first < N_LOGIT_ROWS ? run->n_rows - first : N_LOGIT_ROWS;

        ops->head(run->dev, first, n, run->sch, &e);
        for (uint32_t i = 0; i < n; i++) {
            const struct device_row *row = &run->rows[run->wants[first + i].row];

            ops->read(run->dev, DEVICE_LOGITS, i, logits, &e);
            assert_memory_equal(logits, token_of(seqs, row)->logits, run->m->vocab * sizeof(float));
        }
        ops->sample(run->dev, first, n, &e);
    }
    ops->copy(run->dev, run->results, run->flagged, &e);
    assert_int_equal(ops->wait(run->dev, &e), 0);
    for (uint32_t i = 0; i < run->n_rows; i++) {
        assert_int_equal(run->flagged[i], token_of(seqs, &run->rows[i])->flagged);
        same_result(run, i, token_of(seqs, &run->rows[run->wants[i].row]));
    }
}

/* All tokens of all sequences, in steps of a random number of rows of each. */
static void run_steps(struct run *run, const struct reference *ref,
                      struct reference_seq *const *seqs, uint32_t *const *ids, uint32_t chunk_max) {
    uint32_t done[N_SEQS] = {0};
    struct err e;

    start(run);
    for (;;) {
        run->n_rows = 0;
        for (uint32_t i = 0; i < N_SEQS; i++) {
            uint32_t seq = (i + done[0]) % N_SEQS, left = seqs[seq]->n_tokens - done[seq];
            uint32_t n = next() % 4 ? 1 + next() % chunk_max : next() % 2;

            for (n = n < left ? n : left; n > 0 && run->n_rows < N_ROWS_MAX; n--, done[seq]++)
                run->rows[run->n_rows++] = (struct device_row){ids[seq][done[seq]], done[seq], seq};
        }
        if (run->n_rows == 0) {
            bool over = true;

            for (uint32_t i = 0; i < N_SEQS; i++) over &= done[i] == seqs[i]->n_tokens;
            if (over) break;
            continue;
        }
        upload(run);
        run->dev->ops->embed(run->dev, &e);
        for (uint32_t i = 0; i < run->n_rows; i++)
            same(run, DEVICE_X, i, token_of(seqs, &run->rows[i])->embedded, run->m->hidden, "embed",
                 0);
        for (uint32_t l = 0; l < ref->m.n_layers; l++) run_layer(run, seqs, l);
        run_head(run, seqs);
    }
}

static void same_kv(const struct run *run, const struct reference *ref,
                    struct reference_seq *const *seqs) {
    const struct model *m = run->m;
    uint16_t k[MODEL_HEAD_DIM_MAX], v[MODEL_HEAD_DIM_MAX];
    struct err e;

    for (uint32_t s = 0; s < N_SEQS; s++)
        for (uint32_t p = 0; p < seqs[s]->n_tokens; p++)
            for (uint32_t h = 0; h < m->n_kv_heads; h++) {
                uint32_t layer = m->n_layers - 1;

                run->dev->ops->read_kv(run->dev, layer, run->pages[s][p / DEVICE_PAGE_TOKENS],
                                       p % DEVICE_PAGE_TOKENS, h, k, v, &e);
                assert_memory_equal(k, reference_kv(ref, seqs[s], layer, p, h, false),
                                    m->head_dim * sizeof(*k));
                assert_memory_equal(v, reference_kv(ref, seqs[s], layer, p, h, true),
                                    m->head_dim * sizeof(*v));
            }
}

struct lengths {
    uint32_t n[N_SEQS], chunk_max;
};

/* Every device of the list, over the same tokens, on one schedule. */
static void compare(const struct model *m, struct weights *w, const struct schedule *sch,
                    const struct lengths *lengths, uint32_t token_step) {
    static const struct {
        uint32_t n_threads;
        bool portable;
    } devices[] = {{1, false}, {2, false}, {3, false}, {2, true}};
    struct reference *ref = reference_open(m, w, limits.n_positions);
    struct reference_seq *seqs[N_SEQS];
    uint32_t *ids[N_SEQS];
    struct run *run = calloc(1, sizeof(*run));

    assert_non_null(run);
    for (uint32_t s = 0; s < N_SEQS; s++) {
        seqs[s] = reference_seq_open(ref);
        ids[s] = calloc(lengths->n[s] + 1, sizeof(*ids[s]));
        assert_non_null(ids[s]);
        for (uint32_t i = 0; i < lengths->n[s]; i++) {
            ids[s][i] = next() % token_step;
            /* The last sequence meets the last token, which may be broken. */
            if (s == N_SEQS - 1 && i == lengths->n[s] / 2) ids[s][i] = m->vocab - 1;
            reference_add(ref, seqs[s], ids[s][i], sch);
        }
    }
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        run->dev = open_device(m, w, devices[i].n_threads, devices[i].portable);
        run->m = m;
        run->sch = sch;
        run_steps(run, ref, seqs, ids, lengths->chunk_max);
        same_kv(run, ref, seqs);
        run->dev->ops->close(run->dev);
    }
    for (uint32_t s = 0; s < N_SEQS; s++) {
        reference_seq_close(ref, seqs[s]);
        free(ids[s]);
    }
    reference_close(ref);
    free(run);
}

#define CANONICAL \
    { 1, 4, 1, 4, 1, 1, 512 }

static const struct {
    const char *why;
    struct model m;
    struct schedule sch;
    struct lengths lengths;
    bool broken;
} cases[] = {
    {"a head of 16, an odd vocabulary, hidden 48",
     {.n_layers = 2,
      .hidden = 48,
      .intermediate = 80,
      .n_heads = 3,
      .n_kv_heads = 3,
      .head_dim = 16,
      .vocab = 301,
      .rms_eps = 1e-5f,
      .rope_theta = 1e4},
     CANONICAL,
     {{20, 7, 33}, 9},
     false},
    {"two query heads a KV head, tied, every cut",
     {.n_layers = 2,
      .hidden = 128,
      .intermediate = 192,
      .n_heads = 4,
      .n_kv_heads = 2,
      .head_dim = 64,
      .vocab = 260,
      .rms_eps = 1e-6f,
      .rope_theta = 1e5,
      .tied = true},
     {4, 8, 2, 16, 2, 4, 128},
     {{30, 70, 11}, 25},
     false},
    {"three query heads of 128 a KV head, run of eight",
     {.n_layers = 1,
      .hidden = 96,
      .intermediate = 64,
      .n_heads = 6,
      .n_kv_heads = 2,
      .head_dim = 128,
      .vocab = 64,
      .rms_eps = 1e-5f,
      .rope_theta = 5e5},
     {2, 1, 8, 2, 4, 8, 128},
     {{140, 5, 66}, 40},
     false},
    {"splits and blocks of many keys",
     {.n_layers = 1,
      .hidden = 32,
      .intermediate = 32,
      .n_heads = 4,
      .n_kv_heads = 2,
      .head_dim = 16,
      .vocab = 40,
      .rms_eps = 1e-5f,
      .rope_theta = 1e4},
     CANONICAL,
     {{700, 513, 130}, 300},
     false},
    {"more splits, tuned",
     {.n_layers = 1,
      .hidden = 32,
      .intermediate = 32,
      .n_heads = 2,
      .n_kv_heads = 1,
      .head_dim = 32,
      .vocab = 40,
      .rms_eps = 1e-5f,
      .rope_theta = 1e4},
     {1, 2, 1, 2, 1, 2, 256},
     {{600, 257, 385}, 150},
     false},
    {"NaN and infinity in one sequence: the others do not see them",
     {.n_layers = 2,
      .hidden = 48,
      .intermediate = 48,
      .n_heads = 4,
      .n_kv_heads = 2,
      .head_dim = 16,
      .vocab = 50,
      .rms_eps = 1e-5f,
      .rope_theta = 1e4},
     CANONICAL,
     {{40, 150, 90}, 30},
     true},
};

static void test_models(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct weights *w =
            made_up_weights(folder, &cases[i].m, cases[i].broken ? MADE_UP_LAST : MADE_UP_WHOLE);

        print_message("%s\n", cases[i].why);
        compare(&cases[i].m, w, &cases[i].sch, &cases[i].lengths, cases[i].m.vocab - 1);
        weights_close(w);
    }
}

static void test_verse(void **state) {
    static const struct schedule schedules[] = {CANONICAL, {2, 8, 4, 2, 1, 8, 128}};
    static const struct lengths lengths = {{12, 3, 21}, 8};
    struct model m;
    struct weights *w;
    struct err e;

    (void)state;
    assert_int_equal(model_read("tests/data/verse-4m", &m, &e), 0);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(weights_open("tests/data/verse-4m", false, &w, &e), 0);
        compare(&m, w, &schedules[i], &lengths, m.vocab);
        weights_close(w);
    }
}

/* Steps after the first take nothing. */
static void test_no_allocation(void **state) {
    const struct model *m = &cases[0].m;
    struct weights *w = made_up_weights(folder, m, MADE_UP_WHOLE);
    struct run *run = calloc(1, sizeof(*run));
    const struct device_ops *ops;
    size_t before;
    struct err e;

    (void)state;
    assert_non_null(run);
    run->dev = open_device(m, w, 2, false);
    run->m = m;
    run->sch = &cases[0].sch;
    ops = run->dev->ops;
    start(run);
    before = mallinfo2().uordblks;
    for (uint32_t p = 0; p < 100; p++) {
        run->n_rows = 1;
        run->rows[0] = (struct device_row){p, p, 0};
        upload(run);
        ops->embed(run->dev, &e);
        for (uint32_t l = 0; l < m->n_layers; l++) {
            ops->attn_in(run->dev, l, run->sch, &e);
            ops->attend(run->dev, l, run->sch, &e);
            ops->attn_out(run->dev, l, run->sch, &e);
            ops->mlp_in(run->dev, l, run->sch, &e);
            ops->mlp_out(run->dev, l, run->sch, &e);
        }
        ops->head(run->dev, 0, 1, run->sch, &e);
        ops->sample(run->dev, 0, 1, &e);
        ops->copy(run->dev, run->results, run->flagged, &e);
        assert_int_equal(ops->wait(run->dev, &e), 0);
    }
    assert_int_equal(mallinfo2().uordblks, before);
    ops->close(run->dev);
    weights_close(w);
    free(run);
}

/* What load refuses, by name. */
static void test_refused(void **state) {
    static const struct {
        const char *why;
        int gone;         /* index of a tensor left out, or -1 */
        const char *more; /* a tensor added */
        int bent;         /* index of a tensor of another shape, or -1 */
        bool tied;
        uint32_t n_pages;
        int want;
        const char *text;
    } refused[] = {
        {"one missing", 3, NULL, -1, false, 4, -ENOTSUP, "model.layers.0.self_attn.v_proj.weight"},
        {"a bias", -1, "model.layers.0.self_attn.q_proj.bias", -1, false, 4, -ENOTSUP,
         "q_proj.bias"},
        {"a layer too many", -1, "model.layers.1.mlp.up_proj.weight", -1, false, 4, -ENOTSUP,
         "model.layers.1.mlp.up_proj.weight"},
        {"another shape", -1, NULL, 8, false, 4, -ENOTSUP, "mlp.down_proj.weight"},
        {"an old folder's frequencies", -1, "model.layers.0.self_attn.rotary_emb.inv_freq", -1,
         false, 4, 0, ""},
        {"a head that the embedding replaces", -1, "lm_head.weight", -1, true, 4, 0, ""},
        {"more pages than memory", -1, NULL, -1, false, UINT32_MAX, -ENOMEM, "keys"},
    };
    const struct device_cpu_options options = {.n_threads = 1};

    (void)state;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct model m = {.n_layers = 1,
                          .hidden = 16,
                          .intermediate = 32,
                          .n_heads = 64,
                          .n_kv_heads = 64,
                          .head_dim = 256,
                          .vocab = 20,
                          .rms_eps = 1e-5f,
                          .rope_theta = 1e4};
        struct device_limits l = limits;
        struct model_tensor list[MADE_UP_TENSORS_MAX];
        struct device *dev;
        struct weights *w;
        struct err e = {""};
        size_t n;
        int r;

        m.tied = refused[i].tied;
        l.n_pages = refused[i].n_pages;
        n = made_up_list(&m, list);
        if (refused[i].bent >= 0) list[refused[i].bent].n_k += 16;
        if (refused[i].more) {
            list[n] = (struct model_tensor){.n_k = 16};
            snprintf(list[n++].name, sizeof(list[0].name), "%s", refused[i].more);
        }
        if (refused[i].gone >= 0) list[refused[i].gone] = list[--n];
        made_up_folder(folder, list, n, MADE_UP_WHOLE);
        assert_int_equal(weights_open(folder, false, &w, &e), 0);
        assert_int_equal(device_cpu_open(&options, &dev, &e), 0);
        r = model_tensor_check_others(&m, w, &e); /* as the engine does */
        if (r == 0) r = dev->ops->load(dev, &m, w, &l, &e);
        if (r != refused[i].want || (r && !strstr(e.text, refused[i].text)))
            fail_msg("%s: %d, %s", refused[i].why, r, e.text);
        dev->ops->close(dev);
        weights_close(w);
    }
}

/* What settings may ask for and the twin does not do: told before anything is taken. */
static void test_limits(void **state) {
    static const struct {
        const char *why;
        size_t off; /* in struct device_limits */
        uint32_t value;
        int want;
    } limit_cases[] = {
        {"no rows", offsetof(struct device_limits, n_rows), 0, -ENOTSUP},
        {"as many rows as there may be", offsetof(struct device_limits, n_rows), DEVICE_ROWS_MAX,
         0},
        {"a row too many", offsetof(struct device_limits, n_rows), DEVICE_ROWS_MAX + 1, -ENOTSUP},
        {"no sequences", offsetof(struct device_limits, n_seqs), 0, -ENOTSUP},
        {"no pages", offsetof(struct device_limits, n_pages), 0, -ENOTSUP},
        {"no page lists", offsetof(struct device_limits, n_seq_pages), 0, -ENOTSUP},
        {"no wants", offsetof(struct device_limits, n_wants), 0, -ENOTSUP},
        {"no rows of logits", offsetof(struct device_limits, n_logit_rows), 0, -ENOTSUP},
        {"no positions", offsetof(struct device_limits, n_positions), 0, -ENOTSUP},
    };
    const struct device_cpu_options options = {.n_threads = 1};

    (void)state;
    for (size_t i = 0; i < sizeof(limit_cases) / sizeof(limit_cases[0]); i++) {
        struct weights *w = made_up_weights(folder, &cases[0].m, MADE_UP_WHOLE);
        struct device_limits l = limits;
        struct err e = {""};
        struct device *dev;
        int r;

        memcpy((char *)&l + limit_cases[i].off, &limit_cases[i].value, sizeof(uint32_t));
        assert_int_equal(device_cpu_open(&options, &dev, &e), 0);
        r = dev->ops->load(dev, &cases[0].m, w, &l, &e);
        if (r != limit_cases[i].want) fail_msg("%s: %d, %s", limit_cases[i].why, r, e.text);
        dev->ops->close(dev);
        weights_close(w);
    }
}

/* The factor of the scores, by its bits as SPEC 2.7 has them: twin and reference compute it. */
static void test_factor(void **state) {
    (void)state;
    assert_int_equal(num_bits((float)(0x1.71547652b82fep+0 / sqrt(64.0))), 0x3e38aa3b);
    assert_int_equal(num_bits((float)(0x1.71547652b82fep+0 / sqrt(128.0))), 0x3e0293ee);
}

static void test_describe(void **state) {
    struct weights *w = made_up_weights(folder, &cases[0].m, MADE_UP_WHOLE);
    struct device *dev = open_device(&cases[0].m, w, 2, true);
    uint64_t weights, kv, work;
    char text[64];

    (void)state;
    dev->ops->describe(dev, text, sizeof(text));
    assert_string_equal(text, "cpu twin, portable, 2 threads");
    dev->ops->memory(dev, &weights, &kv, &work);
    assert_true(kv >= 2ull * 2 * N_PAGES * DEVICE_PAGE_TOKENS * 48 * 2); /* k and v, layers, bf16 */
    assert_true(weights > 0 && work > 0);
    dev->ops->close(dev);
    weights_close(w);
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    char path[128];

    (void)state;
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    unlink(path);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),        cmocka_unit_test(test_verse),
        cmocka_unit_test(test_no_allocation), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_limits),        cmocka_unit_test(test_describe),
        cmocka_unit_test(test_factor),
    };

    return cmocka_run_group_tests_name("device_cpu", tests, make_folder, remove_folder);
}
