#include "runtime/selftest.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device.h"
#include "runtime/err.h"
#include "runtime/forward.h"
#include "runtime/schedule.h"
#include "runtime/weights.h"

enum {
    SEQS = 4,
    STEPS_MAX = 10,
    ROWS_MAX = 320,
    WANTS_MAX = 16,
    LOGIT_ROWS = 8, /* so that choices come in groups */
    SEQ_PAGES = 10,
    PAGES = 47, /* a prime, more than all sequences have */
    SEED = 42,
};

/* What is computed: rows that each sequence adds in each step. */
struct probe {
    const char *name;
    struct model m;
    struct schedule s; /* of the odd steps; the others are canonical */
    uint16_t rows[STEPS_MAX][SEQS];
    const char *digest;
};

static const struct probe probes[] = {
    {"K no multiple of the segments, heads of 64",
     {.n_layers = 2,
      .hidden = 208,
      .intermediate = 272,
      .n_heads = 3,
      .n_kv_heads = 1,
      .head_dim = 64,
      .vocab = 1003,
      .tied = true,
      .rms_eps = 1e-5f,
      .rope_theta = 10000.0},
     {2, 8, 2, 2, 4, 2, 128},
     {{40, 1, 0, 3}, {1, 1, 1, 0}, {0, 17, 0, 4}, {33, 0, 1, 1}, {1, 1, 1, 1}},
     "3cc9eab416d664d8fe7f24c6bd33da525375d2325d183dcbbebd36c427b21d55"},
    {"heads of 128, whole segments, 560 keys",
     {.n_layers = 2,
      .hidden = 256,
      .intermediate = 512,
      .n_heads = 8,
      .n_kv_heads = 2,
      .head_dim = 128,
      .vocab = 1500,
      .rms_eps = 1e-6f,
      .rope = MODEL_ROPE_LLAMA3,
      .rope_theta = 500000.0,
      .rope_factor = 8.0,
      .rope_low_freq = 1.0,
      .rope_high_freq = 4.0,
      .rope_context_old = 256},
     {1, 2, 1, 2, 1, 4, 256},
     {{300, 0, 0, 0},
      {200, 0, 0, 0},
      {60, 20, 50, 1},
      {1, 1, 1, 0},
      {1, 4, 7, 1},
      {1, 16, 9, 1},
      {1, 30, 17, 2},
      {1, 60, 30, 9},
      {1, 1, 1, 1}},
     "bf1f46045c4777bc3d9e06a721ffc7c94fe2aa170fec9526aa73d7611fcb4d9f"},
    {"a wide feed-forward layer",
     {.n_layers = 1,
      .hidden = 64,
      .intermediate = 7008,
      .n_heads = 4,
      .n_kv_heads = 4,
      .head_dim = 64,
      .vocab = 300,
      .rms_eps = 1e-5f,
      .rope = MODEL_ROPE_LINEAR,
      .rope_theta = 10000.0,
      .rope_factor = 2.0},
     {1, 4, 1, 4, 1, 1, 512},
     {{270, 0, 0, 0}, {1, 2, 0, 0}, {1, 1, 100, 0}},
     "f19fbaa884342ff78d26cc451731352e429696f81cf4687d224cf2f063239d12"},
    {"heads of 48, rows of 8208 values",
     {.n_layers = 1,
      .hidden = 8208,
      .intermediate = 16,
      .n_heads = 2,
      .n_kv_heads = 1,
      .head_dim = 48,
      .vocab = 130,
      .rms_eps = 1e-5f,
      .rope_theta = 10000.0},
     {4, 1, 2, 1, 2, 8, 128},
     {{5, 0, 1, 0}, {1, 1, 1, 1}},
     "9fc0b89dae63855817e3e468756623e44234ed8ea2a2bc1c29349f950c45f3c9"},
    {"few rows of long products",
     {.n_layers = 2,
      .hidden = 2048,
      .intermediate = 2048,
      .n_heads = 16,
      .n_kv_heads = 4,
      .head_dim = 128,
      .vocab = 260,
      .tied = true,
      .rms_eps = 1e-5f,
      .rope_theta = 10000.0},
     {1, 4, 1, 4, 1, 1, 512},
     {{3, 1, 0, 2}, {1, 1, 0, 1}, {5, 1, 4, 1}},
     "3803a7b24495b77bf473c1c6dafcdca2d2ae83f210255e50ccc8bde530068cf3"},
};

enum { N_PROBES = sizeof(probes) / sizeof(probes[0]) };

static const struct device_limits limits = {
    .n_rows = ROWS_MAX,
    .n_seqs = SEQS,
    .n_pages = PAGES,
    .n_seq_pages = SEQ_PAGES,
    .n_wants = WANTS_MAX,
    .n_logit_rows = LOGIT_ROWS,
    .n_positions = SEQ_PAGES * DEVICE_PAGE_TOKENS,
};

/* A step as it is given to the device. */
struct step {
    struct device_row rows[ROWS_MAX];
    uint32_t pages[SEQS][SEQ_PAGES];
    struct device_want wants[WANTS_MAX];
    struct device_result results[WANTS_MAX];
    uint8_t flagged[ROWS_MAX];
    struct device_batch batch;
    uint32_t n_known[SEQS]; /* positions that are in the cache */
};

/* Greedy and drawn by turns, every parameter now and then. */
static struct device_want want_of(uint32_t row, uint32_t number, uint32_t vocab) {
    struct device_want want = {
        .row = row, .target = DEVICE_NO_TOKEN, .params = {.top_p = 1.0f, .seed = number * 977}};

    if (number % 2) want.params.temperature = 0.25f * (float)(1 + number % 7);
    if (number % 3 == 1) want.params.top_k = 1 + number * 5 % vocab;
    if (number % 5 == 3) want.params.top_p = 0.75f;
    if (number % 7 == 5) want.params.min_p = 0.0625f;
    if (number % 4 == 2) want.target = number * 31 % vocab;
    if (number % 3 == 0) want.n_top = number % (SAMPLE_TOP_MAX + 1);
    return want;
}

/* Rows of one step; the last of each sequence is wanted, and some before it. */
static void fill(struct step *s, const struct model *m, const uint16_t n_rows[SEQS],
                 uint32_t *number) {
    s->batch = (struct device_batch){
        .rows = s->rows, .n_seqs = SEQS, .pages = s->pages[0], .wants = s->wants};
    for (uint32_t seq = 0; seq < SEQS; seq++) {
        for (uint32_t i = 0; i < n_rows[seq]; i++) {
            const uint32_t position = s->n_known[seq]++, row = s->batch.n_rows++;

            s->rows[row] =
                (struct device_row){(position * 37 + seq * 101 + 5) % m->vocab, position, seq};
            if ((i + 1 == n_rows[seq] || row % 29 == 7) && s->batch.n_wants < WANTS_MAX)
                s->wants[s->batch.n_wants++] = want_of(row, (*number)++, m->vocab);
        }
    }
}

static void add_result(struct sha256 *sum, const struct device_result *r) {
    const uint32_t words[] = {r->token, r->n_top, r->numeric};
    const float values[] = {r->logprob, r->target_logprob, r->lse};

    sha256_add(sum, words, sizeof(words));
    sha256_add(sum, values, sizeof(values));
    sha256_add(sum, r->top_ids, r->n_top * sizeof(r->top_ids[0]));
    sha256_add(sum, r->top_logprobs, r->n_top * sizeof(r->top_logprobs[0]));
}

static int run_step(struct device *dev, const struct probe *p, struct step *s, uint32_t index,
                    uint16_t *values, struct sha256 *sum, struct err *e) {
    const struct schedule schedule = index % 2 ? p->s : schedule_canonical();
    int r = forward_run(dev, p->m.n_layers, LOGIT_ROWS, &s->batch, &schedule, s->results,
                        s->flagged, e);

    for (uint32_t row = 0; r == 0 && row < s->batch.n_rows; row++) {
        r = dev->ops->read(dev, DEVICE_X, row, values, e);
        if (r == 0) sha256_add(sum, values, p->m.hidden * sizeof(*values));
    }
    if (r < 0) return r;
    sha256_add(sum, s->flagged, s->batch.n_rows);
    for (uint32_t i = 0; i < s->batch.n_wants; i++) add_result(sum, &s->results[i]);
    return 0;
}

static int run_probe(struct device *dev, const struct probe *p, struct step *s, uint16_t *values,
                     struct sha256 *sum, struct err *e) {
    struct weights *w = NULL;
    uint32_t number = 0;
    int r = weights_make_up(&p->m, SEED, &w, e);

    if (r == 0) r = dev->ops->load(dev, &p->m, w, &limits, e);
    weights_close(w);
    for (uint32_t seq = 0; seq < SEQS; seq++)
        for (uint32_t i = 0; i < SEQ_PAGES; i++)
            s->pages[seq][i] = (seq * SEQ_PAGES + i) * 11 % PAGES;
    for (uint32_t i = 0; r == 0 && i < STEPS_MAX; i++) {
        fill(s, &p->m, p->rows[i], &number);
        if (s->batch.n_rows > 0) r = run_step(dev, p, s, i, values, sum, e);
    }
    return r;
}

const char *selftest_name(uint32_t index) {
    return index < N_PROBES ? probes[index].name : NULL;
}

int selftest_digest(struct device *dev, uint32_t index, uint8_t out_digest[SHA256_BYTES],
                    struct err *e) {
    const struct probe *p = &probes[index];
    uint16_t *values = malloc(p->m.hidden * sizeof(*values));
    struct step *s = calloc(1, sizeof(*s));
    struct sha256 *sum = sha256_open();
    int r;

    if (values && s && sum) {
        sha256_start(sum);
        r = run_probe(dev, p, s, values, sum, e);
        sha256_end(sum, out_digest);
    } else {
        r = err_set(e, -ENOMEM, "self-test");
    }
    sha256_close(sum);
    free(s);
    free(values);
    return r;
}

int selftest_builtin(struct device *dev, uint32_t n_models, struct err *e) {
    for (uint32_t i = 0; i < N_PROBES && i < n_models; i++) {
        uint8_t digest[SHA256_BYTES];
        char hex[SHA256_HEX_BYTES];
        int r = selftest_digest(dev, i, digest, e);

        if (r < 0) return r;
        sha256_hex(digest, hex);
        if (strcmp(hex, probes[i].digest) != 0)
            return err_set(e, -EPROTO, "self-test: %s: digest %.16s, the contract's is %.16s",
                           probes[i].name, hex, probes[i].digest);
    }
    return 0;
}

/* ---- the loaded model ---- */

enum { MODEL_ROWS = 6 };
enum { DEVICE, TWIN, DEVICES };

struct pair {
    struct device *devices[DEVICES];
    const struct model *m;
    struct device_row rows[MODEL_ROWS];
    uint32_t n_rows, n_wants;
    uint32_t *pages;       /* one line, as long as the device reads it */
    void *values[DEVICES]; /* of a row of any buffer */
};

static const char *const buffer_names[] = {
    [DEVICE_X] = "residual stream", [DEVICE_QKV] = "q, k and v", [DEVICE_ATTN] = "attention",
    [DEVICE_H] = "feed-forward",    [DEVICE_LOGITS] = "logits",
};

static size_t row_bytes(const struct model *m, enum device_buffer buffer) {
    switch (buffer) {
    case DEVICE_X:
        return m->hidden * sizeof(uint16_t);
    case DEVICE_QKV:
        return (size_t)(m->n_heads + 2 * m->n_kv_heads) * m->head_dim * sizeof(uint16_t);
    case DEVICE_ATTN:
        return (size_t)m->n_heads * m->head_dim * sizeof(uint16_t);
    case DEVICE_H:
        return m->intermediate * sizeof(uint16_t);
    case DEVICE_LOGITS:
        break;
    }
    return m->vocab * sizeof(float);
}

static int compare(struct pair *p, enum device_buffer buffer, uint32_t n_rows, struct err *e) {
    const size_t n_bytes = row_bytes(p->m, buffer);
    const size_t value_bytes = buffer == DEVICE_LOGITS ? sizeof(float) : sizeof(uint16_t);

    for (uint32_t row = 0; row < n_rows; row++) {
        const uint8_t *a = p->values[DEVICE], *b = p->values[TWIN];
        size_t at = 0;

        for (int i = 0; i < DEVICES; i++) {
            int r = p->devices[i]->ops->read(p->devices[i], buffer, row, p->values[i], e);

            if (r < 0) return r;
        }
        while (at < n_bytes && memcmp(a + at, b + at, value_bytes) == 0) at += value_bytes;
        if (at < n_bytes) {
            uint32_t bits[DEVICES] = {0};

            memcpy(&bits[DEVICE], a + at, value_bytes);
            memcpy(&bits[TWIN], b + at, value_bytes);
            return err_set(e, -EPROTO, "self-test: %s, row %u, value %zu: 0x%x, the twin has 0x%x",
                           buffer_names[buffer], row, at / value_bytes, bits[DEVICE], bits[TWIN]);
        }
    }
    return 0;
}

static int both_stages(struct pair *p, struct err *e) {
    const struct schedule s = schedule_canonical();
    const struct {
        int (*op)(struct device *dev, uint32_t layer, const struct schedule *s, struct err *e);
        int (*op_twin)(struct device *dev, uint32_t layer, const struct schedule *s, struct err *e);
        enum device_buffer buffer;
    } stages[] = {
        {p->devices[0]->ops->attn_in, p->devices[1]->ops->attn_in, DEVICE_QKV},
        {p->devices[0]->ops->attend, p->devices[1]->ops->attend, DEVICE_ATTN},
        {p->devices[0]->ops->attn_out, p->devices[1]->ops->attn_out, DEVICE_X},
        {p->devices[0]->ops->mlp_in, p->devices[1]->ops->mlp_in, DEVICE_H},
        {p->devices[0]->ops->mlp_out, p->devices[1]->ops->mlp_out, DEVICE_X},
    };
    int r = 0;

    for (size_t i = 0; r == 0 && i < sizeof(stages) / sizeof(stages[0]); i++) {
        r = stages[i].op(p->devices[0], 0, &s, e);
        if (r == 0) r = stages[i].op_twin(p->devices[1], 0, &s, e);
        if (r == 0) r = compare(p, stages[i].buffer, p->n_rows, e);
    }
    return r;
}

static int same_results(const struct device_result a[], const struct device_result b[], uint32_t n,
                        struct err *e) {
    for (uint32_t i = 0; i < n; i++)
        if (a[i].token != b[i].token || a[i].numeric != b[i].numeric ||
            memcmp(&a[i].lse, &b[i].lse, sizeof(float)) != 0 ||
            memcmp(&a[i].logprob, &b[i].logprob, sizeof(float)) != 0)
            return err_set(e, -EPROTO,
                           "self-test: choice %u: token %u, logsumexp %a; the twin has %u, %a", i,
                           a[i].token, (double)a[i].lse, b[i].token, (double)b[i].lse);
    return 0;
}

static int both(struct pair *p, struct err *e) {
    struct device_result results[DEVICES][2];
    uint8_t flagged[DEVICES][MODEL_ROWS];
    const struct schedule s = schedule_canonical();
    const uint32_t n_wants = p->n_wants;
    struct device_want wants[2];
    int r = 0;

    for (uint32_t i = 0; i < n_wants; i++)
        wants[i] = want_of(p->n_rows - 1 - i, 1 - i, p->m->vocab);
    for (int i = 0; r == 0 && i < DEVICES; i++) {
        struct device *dev = p->devices[i];
        const struct device_batch batch = {.n_rows = p->n_rows,
                                           .rows = p->rows,
                                           .n_seqs = 1,
                                           .pages = p->pages,
                                           .n_wants = n_wants,
                                           .wants = wants};

        r = dev->ops->upload(dev, &batch, e);
        if (r == 0) r = dev->ops->embed(dev, e);
    }
    if (r == 0) r = compare(p, DEVICE_X, p->n_rows, e);
    if (r == 0) r = both_stages(p, e);
    for (int i = 0; r == 0 && i < DEVICES; i++)
        r = p->devices[i]->ops->head(p->devices[i], 0, n_wants, &s, e);
    if (r == 0) r = compare(p, DEVICE_LOGITS, n_wants, e);
    for (int i = 0; r == 0 && i < DEVICES; i++) {
        struct device *dev = p->devices[i];

        r = dev->ops->sample(dev, 0, n_wants, e);
        if (r == 0) r = dev->ops->copy(dev, results[i], flagged[i], e);
        if (r == 0) r = dev->ops->wait(dev, e);
    }
    return r < 0 ? r : same_results(results[DEVICE], results[TWIN], n_wants, e);
}

int selftest_model(struct device *dev, const struct model *m, struct weights *w,
                   const struct device_limits *dev_limits, uint32_t n_threads, struct err *e) {
    const struct device_cpu_options options = {.n_threads = n_threads};
    struct device_limits twin_limits;
    struct pair p = {.devices = {dev}, .m = m};
    struct model layer = *m;
    size_t n_bytes = 0;
    int r = device_cpu_open(&options, &p.devices[TWIN], e);

    if (r < 0) return r;
    layer.n_layers = 1;
    p.n_rows = dev_limits->n_rows < MODEL_ROWS ? dev_limits->n_rows : MODEL_ROWS;
    if (p.n_rows > dev_limits->n_positions) p.n_rows = dev_limits->n_positions;
    p.n_wants = p.n_rows > 1 && dev_limits->n_wants > 1 && dev_limits->n_logit_rows > 1 ? 2 : 1;
    twin_limits = (struct device_limits){.n_rows = p.n_rows,
                                         .n_seqs = 1,
                                         .n_pages = 1,
                                         .n_seq_pages = 1,
                                         .n_wants = p.n_wants,
                                         .n_logit_rows = p.n_wants,
                                         .n_positions = p.n_rows};
    for (uint32_t i = 0; i < p.n_rows; i++)
        p.rows[i] = (struct device_row){(i * 7919 + 11) % m->vocab, i, 0};
    for (enum device_buffer i = DEVICE_X; i <= DEVICE_LOGITS; i++)
        if (row_bytes(m, i) > n_bytes) n_bytes = row_bytes(m, i);
    for (int i = 0; i < DEVICES; i++) p.values[i] = malloc(n_bytes);
    p.pages = calloc(dev_limits->n_seq_pages, sizeof(*p.pages));
    if (!p.pages || !p.values[DEVICE] || !p.values[TWIN]) r = err_set(e, -ENOMEM, "self-test");
    if (r == 0) r = p.devices[TWIN]->ops->load(p.devices[TWIN], &layer, w, &twin_limits, e);
    if (r == 0) r = both(&p, e);
    for (int i = 0; i < DEVICES; i++) free(p.values[i]);
    free(p.pages);
    p.devices[TWIN]->ops->close(p.devices[TWIN]);
    return r;
}
