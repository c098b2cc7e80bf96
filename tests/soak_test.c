/* Long prompts, a chunk a step, beside few rows that decode: a sequence's tokens and logprobs are the
 * same in chunks of any size, beside any number of others, and no step stands still.
 *
 *   LLM42_DEVICE=cuda   on the GPU, with the layers of Llama-3.1-8B and prompts of thousands of ids;
 *                       else on the twin, in small
 *   SOAK_SEQS=n         sequences (48 on the GPU)
 *   SOAK_LAYERS=n       (8) */
#include "tests/unit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/forward.h"
#include "runtime/weights.h"
#include "tests/test_device.h"

enum {
    SLOTS_MAX = 16,
    OUTPUTS_MAX = 48,
    STILL_S = 30, /* a step takes no longer */
};

/* What is run: on each device its own. */
struct size {
    struct model model;
    uint32_t n_seqs, prompt_min, prompt_max, step_tokens; /* of the first pass */
};

static const struct size small = {.model = {.name = "small",
                                            .n_layers = 2,
                                            .hidden = 64,
                                            .intermediate = 128,
                                            .n_heads = 4,
                                            .n_kv_heads = 2,
                                            .head_dim = 32,
                                            .vocab = 512,
                                            .context = 1024,
                                            .rms_eps = 1e-5f,
                                            .rope_theta = 10000,
                                            .bos = -1},
                                  .n_seqs = 12,
                                  .prompt_min = 300,
                                  .prompt_max = 900,
                                  .step_tokens = 128};

static const struct size large = {.model = {.name = "llama-3.1-8b, some layers",
                                            .n_layers = 8,
                                            .hidden = 4096,
                                            .intermediate = 14336,
                                            .n_heads = 32,
                                            .n_kv_heads = 8,
                                            .head_dim = 128,
                                            .vocab = 128256,
                                            .context = 16384,
                                            .rms_eps = 1e-5f,
                                            .rope_theta = 500000,
                                            .bos = -1},
                                  .n_seqs = 48,
                                  .prompt_min = 900,
                                  .prompt_max = 12000,
                                  .step_tokens = 1024};

struct output {
    uint32_t token, logprob, lse; /* bits of the floats */
    uint32_t flagged; /* in attention, or numeric; the first of them is the last output */
};

struct seq {
    uint32_t n_prompt, n_outputs; /* that are to come */
    uint32_t n_done;
    struct output outputs[OUTPUTS_MAX];
};

/* A sequence at work. */
struct slot {
    struct seq *seq; /* or NULL */
    uint32_t number; /* of it */
    uint32_t at;     /* positions that are through */
};

struct pass {
    struct device *dev;
    const struct size *size;
    uint32_t step_tokens, n_slots, n_seq_pages;
    struct seq *seqs;
    uint32_t next; /* sequence that waits */
    struct slot slots[SLOTS_MAX];
    uint32_t *pages;
    struct device_row *rows;
    uint8_t *flagged;
    struct device_want wants[SLOTS_MAX];
    struct device_result results[SLOTS_MAX];
    uint32_t want_slots[SLOTS_MAX];
    uint32_t n_rows, n_wants;
    uint64_t n_steps;
};

/* ---- Who looks at it from outside ---- */

static atomic_uint beats, rows_now, wants_now;
static atomic_bool begun, over;

static void *watch(void *arg) {
    unsigned seen = atomic_load(&beats);

    (void)arg;
    for (int still = 0; !atomic_load(&over);) {
        (void)sleep(1);
        still = atomic_load(&begun) && atomic_load(&beats) == seen ? still + 1 : 0;
        seen = atomic_load(&beats);
        if (still < STILL_S) continue;
        printf("step %u has not ended for %d s: %u rows, %u of them end a row of logits\n", seen,
               STILL_S, atomic_load(&rows_now), atomic_load(&wants_now));
        (void)fflush(stdout);
        _exit(1);
    }
    return NULL;
}

/* ---- Steps ---- */

static uint32_t id_of(uint32_t seq, uint32_t position, uint32_t vocab) {
    return (uint32_t)((seq * 7919ull + position * 104729ull + 13) % vocab);
}

static void add(struct pass *p, uint32_t slot, uint32_t token, bool wanted) {
    struct slot *s = &p->slots[slot];

    p->rows[p->n_rows] = (struct device_row){token, s->at++, slot};
    if (wanted) {
        p->want_slots[p->n_wants] = slot;
        p->wants[p->n_wants++] = (struct device_want){
            .row = p->n_rows, .target = DEVICE_NO_TOKEN, .params = {.top_p = 1}};
    }
    p->n_rows++;
}

/* A row for each sequence that decodes, then prompts, as they came, as far as the step goes. */
static void make(struct pass *p) {
    const uint32_t vocab = p->size->model.vocab;

    p->n_rows = p->n_wants = 0;
    for (uint32_t i = 0; i < p->n_slots; i++) {
        struct slot *s = &p->slots[i];

        if (!s->seq && p->next < p->size->n_seqs) {
            *s = (struct slot){&p->seqs[p->next], p->next, 0};
            p->next++;
        }
        if (s->seq && s->seq->n_done > 0)
            add(p, i, s->seq->outputs[s->seq->n_done - 1].token, true);
    }
    for (uint32_t i = 0; i < p->n_slots; i++) {
        struct slot *s = &p->slots[i];

        while (s->seq && s->at < s->seq->n_prompt && p->n_rows < p->step_tokens)
            add(p, i, id_of(s->number, s->at, vocab), s->at + 1 == s->seq->n_prompt);
    }
}

static void take(struct pass *p) {
    for (uint32_t i = 0; i < p->n_wants; i++) {
        const struct device_result *r = &p->results[i];
        struct slot *s = &p->slots[p->want_slots[i]];
        struct output *o = &s->seq->outputs[s->seq->n_done++];

        o->flagged = r->numeric || p->flagged[p->wants[i].row];
        if (!o->flagged) {
            o->token = r->token;
            memcpy(&o->logprob, &r->logprob, sizeof(o->logprob));
            memcpy(&o->lse, &r->lse, sizeof(o->lse));
        }
        if (o->flagged || s->seq->n_done == s->seq->n_outputs) s->seq = NULL;
    }
}

static void pass_run(struct device *dev, const struct size *size, uint32_t step_tokens,
                     uint32_t n_slots, struct seq *seqs) {
    const struct schedule canonical = schedule_canonical();
    struct pass *p = calloc(1, sizeof(*p));
    struct err e = {{0}};

    assert_non_null(p);
    *p = (struct pass){.dev = dev,
                       .size = size,
                       .step_tokens = step_tokens,
                       .n_slots = n_slots,
                       .n_seq_pages = size->model.context / DEVICE_PAGE_TOKENS,
                       .seqs = seqs};
    p->pages = calloc((size_t)n_slots * p->n_seq_pages, sizeof(*p->pages));
    p->rows = calloc(step_tokens + n_slots, sizeof(*p->rows));
    p->flagged = calloc(step_tokens + n_slots, sizeof(*p->flagged));
    assert_true(p->pages && p->rows && p->flagged);
    for (uint32_t i = 0; i < n_slots * p->n_seq_pages; i++) /* far from each other */
        p->pages[i] = i % p->n_seq_pages * n_slots + i / p->n_seq_pages;
    for (make(p); p->n_rows > 0; make(p)) {
        const struct device_batch b = {.n_rows = p->n_rows,
                                       .rows = p->rows,
                                       .n_seqs = n_slots,
                                       .pages = p->pages,
                                       .changed = p->n_steps ? p->pages : NULL,
                                       .n_wants = p->n_wants,
                                       .wants = p->wants};

        atomic_store(&begun, true); /* before, kernels were compiled and weights loaded */
        atomic_store(&rows_now, p->n_rows);
        atomic_store(&wants_now, p->n_wants);
        if (forward_run(dev, size->model.n_layers, SLOTS_MAX, &b, &canonical, p->results,
                        p->flagged, &e) < 0)
            fail_msg("%s", e.text);
        take(p);
        p->n_steps++;
        atomic_fetch_add(&beats, 1);
    }
    print_message("%llu steps of %u rows, %u sequences at once\n", (unsigned long long)p->n_steps,
                  step_tokens, n_slots);
    free(p->pages);
    free(p->rows);
    free(p->flagged);
    free(p);
}

/* ---- The test ---- */

static void seqs_make(const struct size *size, struct seq *seqs) {
    uint64_t random = 5;

    memset(seqs, 0, size->n_seqs * sizeof(*seqs));
    for (uint32_t i = 0; i < size->n_seqs; i++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        seqs[i].n_prompt =
            size->prompt_min + (uint32_t)(random >> 33) % (size->prompt_max - size->prompt_min + 1);
        seqs[i].n_outputs = 1 + (uint32_t)(random >> 20) % OUTPUTS_MAX;
    }
}

static uint32_t asked(const char *name, uint32_t otherwise) {
    const char *text = getenv(name);

    return text ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

static void test_soak(void **state) {
    static const struct {
        uint32_t of_step_tokens, n_slots; /* in eighths */
    } passes[] = {{8, 9}, {5, 4}, {8, SLOTS_MAX}, {3, 2}};
    const bool gpu = test_device_is_cuda();
    struct size size = gpu ? large : small;
    struct device *dev = test_device_open(1, false);
    struct device_limits limits;
    struct seq *want, *got;
    struct weights *w = NULL;
    struct err e = {{0}};
    uint32_t n_outputs = 0, n_flagged = 0;

    (void)state;
    size.n_seqs = asked("SOAK_SEQS", size.n_seqs);
    size.model.n_layers = asked("SOAK_LAYERS", size.model.n_layers);
    limits = (struct device_limits){
        .n_rows = size.step_tokens + SLOTS_MAX,
        .n_seqs = SLOTS_MAX,
        .n_pages = SLOTS_MAX * (size.model.context / DEVICE_PAGE_TOKENS),
        .n_seq_pages = size.model.context / DEVICE_PAGE_TOKENS,
        .n_wants = SLOTS_MAX,
        .n_logit_rows = SLOTS_MAX,
        .n_positions = size.model.context,
    };
    want = calloc(size.n_seqs, sizeof(*want));
    got = calloc(size.n_seqs, sizeof(*got));
    assert_true(want && got);
    assert_int_equal(weights_make_up(&size.model, 1, &w, &e), 0);
    if (dev->ops->load(dev, &size.model, w, &limits, &e) < 0) fail_msg("%s", e.text);
    weights_close(w);
    for (size_t i = 0; i < sizeof(passes) / sizeof(passes[0]); i++) {
        struct seq *seqs = i ? got : want;

        seqs_make(&size, seqs);
        pass_run(dev, &size, size.step_tokens * passes[i].of_step_tokens / 8, passes[i].n_slots,
                 seqs);
        for (uint32_t k = 0; i && k < size.n_seqs; k++)
            if (memcmp(&want[k], &got[k], sizeof(want[k])) != 0)
                fail_msg("sequence %u, a prompt of %u: otherwise in pass %zu", k, want[k].n_prompt,
                         i);
    }
    for (uint32_t k = 0; k < size.n_seqs; k++) {
        n_outputs += want[k].n_done;
        n_flagged += want[k].n_done && want[k].outputs[want[k].n_done - 1].flagged;
    }
    print_message("%s: %u outputs of %u sequences equal, %u out of range\n", size.model.name,
                  n_outputs, size.n_seqs, n_flagged);
    assert_true(n_flagged < size.n_seqs);
    dev->ops->close(dev);
    free(want);
    free(got);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_soak)};
    pthread_t watcher;
    int r;

    if (pthread_create(&watcher, NULL, watch, NULL) != 0) return 1;
    r = cmocka_run_group_tests(tests, NULL, NULL);
    atomic_store(&over, true);
    (void)pthread_join(watcher, NULL);
    return r;
}
