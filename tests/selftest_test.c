/* The start-up self-test: the twin gives the digests that are part of the program, with and
 * without vector instructions, so they are the contract's; and other bits are noticed. */
#include "runtime/selftest.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/device.h"
#include "runtime/device_fault.h"
#include "runtime/err.h"
#include "runtime/model.h"
#include "runtime/num.h"
#include "runtime/weights.h"

static struct device *open_twin(bool portable) {
    const struct device_cpu_options options = {.n_threads = 2, .portable = portable};
    struct err e = {{0}};
    struct device *dev;

    assert_int_equal(device_cpu_open(&options, &dev, &e), 0);
    return dev;
}

static void test_builtin(void **state) {
    struct device *dev = open_twin(false);
    struct err e = {{0}};

    (void)state;
    assert_non_null(selftest_name(4));
    if (selftest_builtin(dev, UINT32_MAX, &e) < 0) fail_msg("%s", e.text);
    dev->ops->close(dev);

    dev = open_twin(true);
    if (selftest_builtin(dev, 1, &e) < 0) fail_msg("%s", e.text);
    dev->ops->close(dev);
}

static bool flag(void *context, const struct device_want *want, uint32_t position) {
    (void)context;
    (void)want;
    return position == 21;
}

/* One choice of one model is another. */
static void test_builtin_notices(void **state) {
    const struct device_fault_rules rules = {.numeric = flag};
    struct device *dev = open_twin(false), *faulty;
    struct err e = {{0}};

    (void)state;
    assert_int_equal(device_fault_open(dev, &rules, &faulty, &e), 0);
    assert_int_equal(selftest_builtin(faulty, UINT32_MAX, &e), -EPROTO);
    assert_non_null(strstr(e.text, "the contract's is"));
    faulty->ops->close(faulty);
}

/* A twin of which one bit is bent: after a stage, in what is read of a row; or in what a step gave;
 * of the load with that number, from 1.  Or it is lost there. */
enum stage { NONE, EMBED, ATTN_IN, ATTEND, ATTN_OUT, MLP_IN, MLP_OUT, HEAD };
enum field { NO_FIELD, TOKEN, LOGPROB, TARGET, LSE, N_TOP, TOP_ID, TOP_LOGPROB, NUMERIC, FLAG };

static struct bend {
    enum stage stage;
    uint32_t row, at; /* at: in units of 16 bits */
    enum field field;
    uint32_t load;
    bool lost;
} bend;

static const struct device_ops *straight;
static struct device_ops bent;
static enum stage stage;
static uint32_t n_loads, n_wants;
static struct device_result *results;
static uint8_t *flagged;

static int bent_load(struct device *dev, const struct model *m, struct weights *w,
                     const struct device_limits *l, struct err *e) {
    n_loads++;
    return straight->load(dev, m, w, l, e);
}

static int bent_upload(struct device *dev, const struct device_batch *batch, struct err *e) {
    n_wants = batch->n_wants;
    if (bend.lost && bend.load == n_loads) return err_set(e, -EIO, "lost, as was asked");
    return straight->upload(dev, batch, e);
}

static int bent_embed(struct device *dev, struct err *e) {
    stage = EMBED;
    return straight->embed(dev, e);
}

#define BENT(name, which)                                                                \
    static int bent_##name(struct device *dev, uint32_t layer, const struct schedule *s, \
                           struct err *e) {                                              \
        stage = which;                                                                   \
        return straight->name(dev, layer, s, e);                                         \
    }
BENT(attn_in, ATTN_IN)
BENT(attend, ATTEND)
BENT(attn_out, ATTN_OUT)
BENT(mlp_in, MLP_IN)
BENT(mlp_out, MLP_OUT)
#undef BENT

static int bent_head(struct device *dev, uint32_t first, uint32_t n, const struct schedule *s,
                     struct err *e) {
    stage = HEAD;
    return straight->head(dev, first, n, s, e);
}

static int bent_read(struct device *dev, enum device_buffer buffer, uint32_t row, void *out,
                     struct err *e) {
    int r = straight->read(dev, buffer, row, out, e);

    if (bend.stage == stage && bend.row == row && bend.load == n_loads)
        ((uint16_t *)out)[bend.at] ^= 1;
    return r;
}

static int bent_copy(struct device *dev, struct device_result *out_results, uint8_t *out_flagged,
                     struct err *e) {
    results = out_results;
    flagged = out_flagged;
    return straight->copy(dev, out_results, out_flagged, e);
}

static void bend_bit(void *at) {
    *(uint8_t *)at ^= 1;
}

static int bent_wait(struct device *dev, struct err *e) {
    int r = straight->wait(dev, e);
    struct device_result *x = results + bend.row;

    if (bend.load != n_loads || bend.row >= n_wants) return r;
    if (bend.field == TOKEN) bend_bit(&x->token);
    if (bend.field == LOGPROB) bend_bit(&x->logprob);
    if (bend.field == TARGET) bend_bit(&x->target_logprob);
    if (bend.field == LSE) bend_bit(&x->lse);
    if (bend.field == N_TOP) bend_bit(&x->n_top);
    if (bend.field == TOP_ID && x->n_top) bend_bit(&x->top_ids[x->n_top - 1]);
    if (bend.field == TOP_LOGPROB && x->n_top) bend_bit(&x->top_logprobs[x->n_top - 1]);
    if (bend.field == NUMERIC) x->numeric = !x->numeric;
    if (bend.field == FLAG) bend_bit(&flagged[0]);
    return r;
}

static struct device *open_bent(void) {
    struct device *dev = open_twin(false);

    straight = dev->ops;
    bent = *straight;
    bent.load = bent_load;
    bent.upload = bent_upload;
    bent.embed = bent_embed;
    bent.attn_in = bent_attn_in;
    bent.attend = bent_attend;
    bent.attn_out = bent_attn_out;
    bent.mlp_in = bent_mlp_in;
    bent.mlp_out = bent_mlp_out;
    bent.head = bent_head;
    bent.read = bent_read;
    bent.copy = bent_copy;
    bent.wait = bent_wait;
    dev->ops = &bent;
    stage = NONE;
    n_loads = 0;
    return dev;
}

/* Each of the models counts, the first bit of a row and the last. */
static void test_builtin_each(void **state) {
    static const uint32_t widths[] = {208, 256, 64, 8208, 2048}, rows[] = {43, 299, 269, 5, 5};
    struct device *dev;
    struct err e = {{0}};

    (void)state;
    for (uint32_t i = 0; i < 5; i++)
        for (int last = 0; last < 2; last++) {
            dev = open_bent();
            bend = (struct bend){.stage = HEAD,
                                 .row = last ? rows[i] : 0,
                                 .at = last ? widths[i] - 1 : 0,
                                 .load = i + 1};
            assert_int_equal(selftest_builtin(dev, UINT32_MAX, &e), -EPROTO);
            assert_non_null(strstr(e.text, selftest_name(i)));
            assert_int_equal(n_loads, i + 1);
            dev->ops->close(dev);
        }
    assert_null(selftest_name(5));
    /* As many as are asked for. */
    dev = open_bent();
    bend = (struct bend){.stage = NONE};
    assert_int_equal(selftest_builtin(dev, 1, &e), 0);
    assert_int_equal(n_loads, 1);
    bend = (struct bend){.load = 2, .lost = true};
    assert_int_equal(selftest_builtin(dev, 1, &e), -EIO);
    assert_non_null(strstr(e.text, "lost, as was asked"));
    dev->ops->close(dev);
}

/* All that a choice is counts. */
static void test_builtin_choices(void **state) {
    struct err e = {{0}};

    (void)state;
    for (enum field field = TOKEN; field <= FLAG; field++) {
        struct device *dev = open_bent();

        bend = (struct bend){.field = field, .row = 3, .load = 1};
        if (field == TARGET) bend.row = 2;
        if (selftest_builtin(dev, 1, &e) != -EPROTO) fail_msg("field %d", field);
        dev->ops->close(dev);
    }
}

static const struct model model = {.n_layers = 3,
                                   .hidden = 64,
                                   .intermediate = 96,
                                   .n_heads = 4,
                                   .n_kv_heads = 2,
                                   .head_dim = 16,
                                   .vocab = 300,
                                   .rms_eps = 1e-5f,
                                   .rope_theta = 1e4};
static const struct device_limits limits = {.n_rows = 32,
                                            .n_seqs = 3,
                                            .n_pages = 5,
                                            .n_seq_pages = 2,
                                            .n_wants = 32,
                                            .n_logit_rows = 8,
                                            .n_positions = 100};

/* A device that has the weights of one seed against a twin with those of another. */
static int compared(uint64_t seed, uint64_t twin_seed, const struct device_limits *l,
                    struct err *e) {
    struct weights *w = NULL, *twin_w = NULL;
    struct device *dev = open_twin(false);
    int r;

    assert_int_equal(weights_make_up(&model, seed, &w, e), 0);
    assert_int_equal(weights_make_up(&model, twin_seed, &twin_w, e), 0);
    assert_int_equal(dev->ops->load(dev, &model, w, l, e), 0);
    r = selftest_model(dev, &model, twin_w, l, 2, e);
    weights_close(w);
    weights_close(twin_w);
    dev->ops->close(dev);
    return r;
}

static void test_model(void **state) {
    struct device_limits small = {1, 1, 1, 1, 1, 1, 1}, one_want = limits, one_logit = limits,
                         brief = limits;
    struct err e = {{0}};

    (void)state;
    if (compared(7, 7, &limits, &e) < 0) fail_msg("%s", e.text);
    if (compared(7, 7, &small, &e) < 0) fail_msg("%s", e.text);
    one_want.n_wants = one_logit.n_logit_rows = 1;
    if (compared(7, 7, &one_want, &e) < 0) fail_msg("%s", e.text);
    if (compared(7, 7, &one_logit, &e) < 0) fail_msg("%s", e.text);
    brief.n_positions = 3;
    if (compared(7, 7, &brief, &e) < 0) fail_msg("%s", e.text);
    assert_int_equal(compared(7, 8, &limits, &e), -EPROTO);
    assert_non_null(strstr(e.text, "residual stream, row 0, value 0"));
}

/* Every stage is compared, and all of it; what differs is told. */
static void test_model_stages(void **state) {
    static const struct {
        enum stage stage;
        const char *name;
        uint32_t n_rows, n; /* n: in units of 16 bits */
    } stages[] = {
        {EMBED, "residual stream", 6, 64}, {ATTN_IN, "q, k and v", 6, 128},
        {ATTEND, "attention", 6, 64},      {ATTN_OUT, "residual stream", 6, 64},
        {MLP_IN, "feed-forward", 6, 96},   {MLP_OUT, "residual stream", 6, 64},
        {HEAD, "logits", 2, 600},
    };
    struct device *dev = open_bent();
    struct weights *w = NULL;
    struct err e = {{0}};
    char text[96];

    (void)state;
    assert_int_equal(weights_make_up(&model, 7, &w, &e), 0);
    assert_int_equal(dev->ops->load(dev, &model, w, &limits, &e), 0);
    bend = (struct bend){.stage = NONE};
    assert_int_equal(selftest_model(dev, &model, w, &limits, 2, &e), 0);
    for (size_t i = 0; i < sizeof(stages) / sizeof(stages[0]); i++)
        for (int last = 0; last < 2; last++) {
            const uint32_t row = last ? stages[i].n_rows - 1 : 0, at = last ? stages[i].n - 1 : 0;

            bend = (struct bend){.stage = stages[i].stage, .row = row, .at = at, .load = 1};
            if (selftest_model(dev, &model, w, &limits, 2, &e) != -EPROTO)
                fail_msg("%s, row %u, value %u: not noticed", stages[i].name, row, at);
            (void)snprintf(text, sizeof(text), "self-test: %s, row %u, value %u: ", stages[i].name,
                           row, stages[i].stage == HEAD ? at / 2 : at);
            if (!strstr(e.text, text)) fail_msg("wanted '%s', got '%s'", text, e.text);
        }
    for (uint32_t row = 0; row < 2; row++)
        for (enum field field = TOKEN; field <= NUMERIC; field++) {
            if (field != TOKEN && field != LOGPROB && field != LSE && field != NUMERIC) continue;
            bend = (struct bend){.field = field, .row = row, .load = 1};
            if (selftest_model(dev, &model, w, &limits, 2, &e) != -EPROTO)
                fail_msg("field %d of choice %u: not noticed", field, row);
            (void)snprintf(text, sizeof(text), "self-test: choice %u: ", row);
            assert_non_null(strstr(e.text, text));
        }
    weights_close(w);
    dev->ops->close(dev);
}

/* Loaded again, a device computes as one that was never loaded before. */
static void test_load_again(void **state) {
    uint8_t first[SHA256_BYTES], again[SHA256_BYTES];
    struct device *dev = open_twin(false);
    struct err e = {{0}};

    (void)state;
    assert_int_equal(selftest_digest(dev, 3, first, &e), 0);
    assert_int_equal(selftest_digest(dev, 0, again, &e), 0);
    assert_int_equal(selftest_digest(dev, 3, again, &e), 0);
    assert_memory_equal(first, again, sizeof(first));
    dev->ops->close(dev);
}

/* SPEC 4.5, by its words. */
static void test_made_up(void **state) {
    const struct weights_tensor *t;
    struct weights_rule rule;
    struct weights *w = NULL;
    uint16_t values[64 * 96];
    uint8_t digest[WEIGHTS_DIGEST_BYTES], other[WEIGHTS_DIGEST_BYTES];
    struct err e = {{0}};

    (void)state;
    assert_int_equal(weights_make_up(&model, 5, &w, &e), 0);
    t = weights_find(w, "model.layers.1.mlp.down_proj.weight");
    assert_non_null(t);
    assert_true(weights_rule_of(w, t, &rule));
    assert_int_equal(rule.tensor, 1 * 9 + 8);
    assert_int_equal(t->shape[0], 64);
    assert_int_equal(t->shape[1], 96);
    assert_int_equal(weights_read(w, t, values, &e), 0);
    for (uint32_t i = 0; i < 64 * 96; i += 613) {
        const unsigned word = num_random(5, 17, i);
        const float u = (float)(word >> 8) * 0x1p-23f - 1.0f;

        assert_int_equal(values[i], num_to_bf16(1.7f / sqrtf(96.0f) * u));
    }
    assert_int_equal(weights_digest(w, digest, &e), 0);
    sha256_of("llm42 made-up weights v1 5", 26, other);
    assert_memory_equal(digest, other, sizeof(digest));
    weights_close(w);
}

/* A tensor that several threads make, of a length that no number of them divides. */
static void test_made_up_large(void **state) {
    struct model m = model;
    const struct weights_tensor *t;
    struct weights *w = NULL;
    struct err e = {{0}};
    uint16_t *values;

    (void)state;
    m.hidden = 1051;
    m.intermediate = 1049;
    assert_int_equal(weights_make_up(&m, 5, &w, &e), 0);
    t = weights_find(w, "model.layers.0.mlp.up_proj.weight");
    assert_int_equal(t->n_values, 1051 * 1049);
    assert_int_equal(t->n_bytes, 2 * 1051 * 1049);
    values = malloc(t->n_bytes);
    assert_non_null(values);
    memset(values, 0xff, t->n_bytes);
    assert_int_equal(weights_read(w, t, values, &e), 0);
    for (uint32_t i = 0; i < 1051 * 1049; i++) {
        const float u = (float)(num_random(5, 7, i) >> 8) * 0x1p-23f - 1.0f;

        if (values[i] != num_to_bf16(1.7f / sqrtf(1051.0f) * u)) fail_msg("value %u", i);
    }
    free(values);
    weights_close(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_builtin),       cmocka_unit_test(test_builtin_notices),
        cmocka_unit_test(test_builtin_each),  cmocka_unit_test(test_builtin_choices),
        cmocka_unit_test(test_model),         cmocka_unit_test(test_model_stages),
        cmocka_unit_test(test_load_again),    cmocka_unit_test(test_made_up),
        cmocka_unit_test(test_made_up_large),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
