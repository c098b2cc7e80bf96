#include "runtime/engine.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "runtime/assert.h"
#include "runtime/engine_impl.h"
#include "runtime/err.h"
#include "runtime/forward.h"
#include "runtime/kv.h"
#include "runtime/model_tensor.h"
#include "runtime/queue.h"
#include "runtime/selftest.h"
#include "runtime/token.h"
#include "runtime/weights.h"

enum {
    EVENTS = 2048,           /* of the ring; the engine waits when it is full */
    LOGIT_ROWS = 32,         /* by default */
    KV_TOKENS = 16384,       /* by default, in the host's memory */
    KV_TOKENS_MAX = 1 << 30, /* as in the settings */
    SELF_TEST_TOKENS = 9,
};

uint64_t engine_clock_us(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* 5.1: what may be configured. */
static int check_options(const struct engine_options *o, struct err *e) {
    if (!o->model_path || !o->model_path[0]) return err_set(e, -EINVAL, "no model path");
    if (o->window < 1 || o->window > DVR_WINDOW_MAX)
        return err_set(e, -EINVAL, "window %u: 1 to %d", o->window, DVR_WINDOW_MAX);
    if (o->group < 1 || o->group > 64) return err_set(e, -EINVAL, "group %u: 1 to 64", o->group);
    if (o->max_requests < 1 || o->max_requests > ENGINE_REQUESTS_MAX)
        return err_set(e, -EINVAL, "max_requests %u: 1 to %d", o->max_requests,
                       ENGINE_REQUESTS_MAX);
    if (o->max_queue > 16 * ENGINE_REQUESTS_MAX)
        return err_set(e, -EINVAL, "max_queue %u: 0 to %d", o->max_queue, 16 * ENGINE_REQUESTS_MAX);
    if (o->step_tokens < 1 || o->step_tokens > PLAN_STEP_TOKENS_MAX)
        return err_set(e, -EINVAL, "step_tokens %u: 1 to %d", o->step_tokens, PLAN_STEP_TOKENS_MAX);
    if (o->logit_rows > DEVICE_ROWS_MAX)
        return err_set(e, -EINVAL, "logit_rows %u: 0 to %d", o->logit_rows, DEVICE_ROWS_MAX);
    if (o->mismatch_ppm > 1000000)
        return err_set(e, -EINVAL, "mismatch_ppm %u: 0 to 1000000", o->mismatch_ppm);
    if (o->unverified && (o->uncertified || o->mismatch_ppm || o->fixed_shape))
        return err_set(e, -EINVAL,
                       "unverified: nothing is verified, so nothing else is asked of it");
    if ((unsigned)o->policy > PLAN_AUTO) return err_set(e, -EINVAL, "no such policy");
    if ((unsigned)o->fast >= SCHEDULE_SETS) return err_set(e, -EINVAL, "no such schedules");
    if (o->window * o->group + o->max_requests > DEVICE_ROWS_MAX - PLAN_PREFILL_MIN)
        return err_set(e, -EINVAL, "window x group + max_requests: at most %d rows",
                       DEVICE_ROWS_MAX - PLAN_PREFILL_MIN);
    return 0;
}

/* SPEC 2.13. */
static int fingerprint(struct engine *g, struct weights *w, struct err *e) {
    char schedule[SCHEDULE_TEXT_BYTES], model[2048];
    char weights_hex[SHA256_HEX_BYTES], token_hex[SHA256_HEX_BYTES];
    struct schedule canonical = schedule_canonical();
    uint8_t digest[SHA256_BYTES];
    const char *system = g->template.default_system ? g->template.default_system : "";
    int r = weights_digest(w, digest, e);

    if (r < 0) return r;
    sha256_hex(digest, weights_hex);
    token_digest(g->token, digest);
    sha256_hex(digest, token_hex);
    (void)schedule_write(&canonical, schedule);
    if (model_write(&g->facts.model, model, sizeof(model)) >= sizeof(model))
        return err_set(e, -EINVAL, "model settings too long to spell");

    r = asprintf(&g->fingerprint_text,
                 "llm42 fingerprint v1\ncontract=1\nsampler=%d\nschedule=%s\nmodel=%s\nweights=%s\n"
                 "rounded=%d\ntokenizer=%s\ntemplate=%s:%s\n",
                 SAMPLE_VERSION, schedule, model, weights_hex, g->facts.options.round_weights,
                 token_hex, template_name(g->template.family), system);
    if (r < 0) {
        g->fingerprint_text = NULL;
        return err_set(e, -ENOMEM, "fingerprint");
    }
    sha256_of(g->fingerprint_text, (size_t)r, g->facts.fingerprint);
    g->facts.fingerprint_text = g->fingerprint_text;
    return 0;
}

static int read_model(struct engine *g, struct err *e) {
    const struct engine_options *o = &g->facts.options;
    struct model *m = &g->facts.model;
    char path[4096];
    int r = model_read(o->model_path, m, e);

    if (r < 0) return r;
    if (snprintf(path, sizeof(path), "%s/tokenizer.json", o->model_path) >= (int)sizeof(path))
        return err_set(e, -EINVAL, "%.64s...: path too long", o->model_path);
    if ((r = token_open(path, &g->token, e)) < 0) return r;
    if (token_count(g->token) > m->vocab)
        return err_set(e, -EINVAL, "%s: ids up to %u, the model's vocabulary has %u", path,
                       token_count(g->token) - 1, m->vocab);
    if ((r = template_open(o->model_path, &g->template, e)) < 0) return r;
    g->facts.token = g->token;
    g->facts.template = &g->template;

    if (o->context > m->context)
        return err_set(e, -EINVAL, "context %u: the model has %u positions", o->context,
                       m->context);
    g->context = g->facts.context = o->context ? o->context : m->context;
    g->n_seq_pages = (g->context + DEVICE_PAGE_TOKENS - 1) / DEVICE_PAGE_TOKENS;
    return 0;
}

/* Where the device says for how much it has room, so much, and no more than can ever be in use; at
 * least one context, of which loading says by how much it does not fit. */
static int choose_kv(struct engine *g, const struct device_limits *limits, struct err *e) {
    struct engine_options *o = &g->facts.options;
    const uint64_t most = (uint64_t)o->max_requests * g->n_seq_pages;
    uint64_t n_pages = 0;
    int r = g->dev->ops->room(g->dev, &g->facts.model, limits, &n_pages, e);

    if (r < 0) return r;
    if (n_pages == 0) {
        o->kv_tokens = g->context > KV_TOKENS ? g->context : KV_TOKENS;
        return 0;
    }
    n_pages = n_pages > g->n_pad_pages ? n_pages - g->n_pad_pages : 0;
    if (n_pages > most) n_pages = most;
    if (n_pages > KV_TOKENS_MAX / DEVICE_PAGE_TOKENS) n_pages = KV_TOKENS_MAX / DEVICE_PAGE_TOKENS;
    if (n_pages < g->n_seq_pages) n_pages = g->n_seq_pages;
    o->kv_tokens = (uint32_t)n_pages * DEVICE_PAGE_TOKENS;
    return 0;
}

static int load(struct engine *g, struct err *e) {
    struct engine_options *o = &g->facts.options;
    struct device_limits limits;
    struct weights *w = NULL;
    uint64_t begin_us, loaded_us;
    uint32_t n_pages;
    int r;

    g->n_pad_pages =
        o->fixed_shape ? (o->group * o->window + DEVICE_PAGE_TOKENS - 1) / DEVICE_PAGE_TOKENS : 0;
    if (g->n_pad_pages > g->n_seq_pages)
        return err_set(e, -EINVAL, "fixed_shape: group x window exceeds the context of %u",
                       g->context);
    g->rows_max = plan_rows_max(&g->plan, o->max_requests);
    g->n_logit_rows = o->logit_rows ? o->logit_rows : LOGIT_ROWS;
    limits = (struct device_limits){
        .n_rows = g->rows_max,
        .n_seqs = o->max_requests + 1,
        .n_seq_pages = g->n_seq_pages,
        .n_wants = g->rows_max,
        .n_logit_rows = g->n_logit_rows,
        .n_positions = g->context,
    };
    if (o->kv_tokens == 0 && (r = choose_kv(g, &limits, e)) < 0) return r;
    n_pages = (o->kv_tokens + DEVICE_PAGE_TOKENS - 1) / DEVICE_PAGE_TOKENS;
    limits.n_pages = n_pages + g->n_pad_pages;
    r = o->random_seed ? weights_make_up(&g->facts.model, o->random_seed, &w, e)
                       : weights_open(o->model_path, o->round_weights, &w, e);
    if (r < 0) return r;
    if (o->progress) {
        atomic_store(&o->progress->n_all, weights_bytes(w));
        weights_count_in(w, &o->progress->n_bytes);
    }
    if ((r = model_tensor_check(&g->facts.model, w, e)) < 0) goto out;
    if ((r = model_tensor_check_others(&g->facts.model, w, e)) < 0) goto out;
    begin_us = engine_clock_us();
    if ((r = g->dev->ops->load(g->dev, &g->facts.model, w, &limits, e)) < 0) goto out;
    loaded_us = engine_clock_us();
    /* Beside the self-test; a device that hashed while it read left nothing to do. */
    if ((r = weights_digest_begin(w, e)) < 0) goto out;
    if (o->twin_threads > 0 &&
        (r = selftest_model(g->dev, &g->facts.model, w, &limits, o->twin_threads, e)) < 0)
        goto out;
    r = fingerprint(g, w, e);
    g->facts.bytes_files = o->random_seed ? 0 : weights_bytes(w);
    g->facts.load_us = loaded_us - begin_us;
    g->facts.digest_us = engine_clock_us() - loaded_us;
    g->dev->ops->memory(g->dev, &g->facts.bytes_weights, &g->facts.bytes_kv, &g->facts.bytes_work);
    g->dev->ops->describe(g->dev, g->facts.device, sizeof(g->facts.device));
    g->now.kv_pages = n_pages;
    if (r == 0) r = kv_open(n_pages + g->n_pad_pages, &g->kv, e);
out:
    weights_close(w);
    return r;
}

static int take_lanes(struct engine *g, struct err *e) {
    uint32_t n_bytes = token_bytes_max(g->token);

    g->n_lanes = g->facts.options.max_requests;
    g->records_max = g->plan.window + 1 > 64 ? g->plan.window + 1 : 64;
    /* One token's text and what was held before it, twice: the end of the output adds to it. */
    g->out_max = (uint32_t)(2 * stop_text_room(n_bytes));
    g->lanes = calloc(g->n_lanes, sizeof(g->lanes[0]));
    g->scratch = malloc(STOP_STRING_BYTES_MAX + n_bytes);
    if (!g->lanes || !g->scratch) return err_set(e, -ENOMEM, "%u lanes", g->n_lanes);

    for (uint32_t i = 0; i < g->n_lanes; i++) {
        struct lane *lane = &g->lanes[i];

        lane->pages = calloc(g->n_seq_pages, sizeof(lane->pages[0]));
        lane->records = calloc(2 * (size_t)g->records_max, sizeof(lane->records[0]));
        lane->out = malloc(g->out_max);
        lane->digest = sha256_open();
        if (!lane->pages || !lane->records || !lane->out || !lane->digest)
            return err_set(e, -ENOMEM, "lane %u of %u", i, g->n_lanes);
    }
    return 0;
}

static int take_slots(struct engine *g, struct err *e) {
    g->n_slots = g->facts.options.max_requests + g->facts.options.max_queue;
    g->slots = calloc(g->n_slots, sizeof(g->slots[0]));
    g->free_slots = calloc(g->n_slots, sizeof(g->free_slots[0]));
    g->waiting = calloc(g->n_slots, sizeof(g->waiting[0]));
    if (!g->slots || !g->free_slots || !g->waiting)
        return err_set(e, -ENOMEM, "%u request slots", g->n_slots);

    for (uint32_t i = g->n_slots; i-- > 0;) {
        g->slots[i].tokens = calloc(g->context, sizeof(g->slots[i].tokens[0]));
        if (!g->slots[i].tokens) return err_set(e, -ENOMEM, "request slot %u", i);
        g->slots[i].handle = i; /* generation 0, which no live handle has */
        g->free_slots[g->n_free_slots++] = i;
    }
    return 0;
}

static int take_memory(struct engine *g, struct err *e) {
    uint32_t n_lanes = g->facts.options.max_requests;
    int r;

    if ((r = take_slots(g, e)) < 0) return r;
    if ((r = take_lanes(g, e)) < 0) return r;
    if ((r = queue_open(g->n_slots, sizeof(uint32_t), &g->submits, e)) < 0) return r;
    if ((r = queue_open(EVENTS, sizeof(struct engine_event), &g->events, e)) < 0) return r;

    g->submit_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    g->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (g->submit_fd < 0 || g->event_fd < 0)
        return err_set(e, -ENOMEM, "eventfd: %s", strerror(errno));

    g->digest = sha256_open();
    g->plan_seqs = calloc(n_lanes, sizeof(g->plan_seqs[0]));
    g->plan_lanes = calloc(n_lanes, sizeof(g->plan_lanes[0]));
    g->items = calloc(n_lanes, sizeof(g->items[0]));
    g->rows = calloc(g->rows_max, sizeof(g->rows[0]));
    g->pages = calloc((size_t)(n_lanes + 1) * g->n_seq_pages, sizeof(g->pages[0]));
    g->changed = calloc(n_lanes + 1, sizeof(g->changed[0]));
    g->wants = calloc(g->rows_max, sizeof(g->wants[0]));
    g->results = calloc(g->rows_max, sizeof(g->results[0]));
    g->flagged = calloc(g->rows_max, 1);
    g->verified = calloc(DVR_WINDOW_MAX, sizeof(g->verified[0]));
    g->pad_pages = calloc(g->n_pad_pages + 1, sizeof(g->pad_pages[0]));
    if (!g->digest || !g->plan_seqs || !g->plan_lanes || !g->items || !g->rows || !g->pages ||
        !g->changed || !g->wants || !g->results || !g->flagged || !g->verified || !g->pad_pages)
        return err_set(e, -ENOMEM, "work arrays of a step");
    for (uint32_t i = 0; i < g->n_pad_pages; i++) g->pad_pages[i] = (uint32_t)kv_take(g->kv);
    return 0;
}

/* One forward pass of tokens at positions first .. first + n - 1 on the sequence's pages. */
static int self_run(struct engine *g, uint32_t first, uint32_t n, uint32_t page, uint32_t beside,
                    struct device_result *out, struct err *e) {
    struct device_batch b = {.rows = g->rows, .pages = g->pages, .wants = g->wants, .n_wants = 1};
    struct schedule s = schedule_canonical();
    uint32_t n_beside = beside != page ? first + 1 : 0;
    int r;

    for (uint32_t i = 0; i < n_beside; i++) /* a neighbour with other tokens, in front */
        g->rows[b.n_rows++] = (struct device_row){(i * 31 + 7) % g->facts.model.vocab, i, 0};
    for (uint32_t i = first; i < first + n; i++)
        g->rows[b.n_rows++] =
            (struct device_row){(i * 17 + 5) % g->facts.model.vocab, i, n_beside > 0};
    g->pages[0] = n_beside ? beside : page;
    g->pages[g->n_seq_pages] = page;
    b.n_seqs = 1 + (n_beside > 0);
    g->wants[0] = (struct device_want){
        .row = b.n_rows - 1, .target = DEVICE_NO_TOKEN, .params = {.top_p = 1.0f}};
    r = forward_run(g->dev, g->facts.model.n_layers, g->n_logit_rows, &b, &s, out, g->flagged, e);
    return r;
}

/* The property that all rests on, on the loaded model: one row whole, and in pieces beside another
 * sequence on another page, must give the same bits. */
static int self_test(struct engine *g, struct err *e) {
    uint32_t n = g->context < SELF_TEST_TOKENS ? g->context : SELF_TEST_TOKENS;
    struct device_result whole = {0}, pieces = {0};
    int a = kv_take(g->kv), b = kv_take(g->kv), r;

    if (a < 0 || b < 0 || g->rows_max < 2 * SELF_TEST_TOKENS || g->facts.options.max_requests < 2) {
        if (a >= 0) kv_give(g->kv, (uint32_t)a);
        if (b >= 0) kv_give(g->kv, (uint32_t)b);
        return 0; /* one sequence at a time: there is nothing to be beside */
    }
    r = self_run(g, 0, n, (uint32_t)a, (uint32_t)a, &whole, e);
    if (r == 0) r = self_run(g, 0, n / 2, (uint32_t)b, (uint32_t)a, &pieces, e);
    if (r == 0) r = self_run(g, n / 2, n - n / 2, (uint32_t)b, (uint32_t)a, &pieces, e);
    kv_give(g->kv, (uint32_t)b);
    kv_give(g->kv, (uint32_t)a);
    if (r < 0) return r;
    if (whole.numeric || memcmp(&whole.lse, &pieces.lse, sizeof(float)) != 0 ||
        memcmp(&whole.logprob, &pieces.logprob, sizeof(float)) != 0 || whole.token != pieces.token)
        return err_set(e, -EPROTO,
                       "self-test: a row has other bits in pieces beside a neighbour (token %u and "
                       "%u, logsumexp %a and %a)",
                       whole.token, pieces.token, (double)whole.lse, (double)pieces.lse);
    return 0;
}

int engine_open(const struct engine_options *o, struct device *dev, struct engine **out_engine,
                struct err *e) {
    struct engine *g = calloc(1, sizeof(*g));
    int r;

    if (!g) {
        dev->ops->close(dev);
        return err_set(e, -ENOMEM, "engine");
    }
    g->dev = dev;
    g->submit_fd = g->event_fd = -1;
    g->facts.options = *o;
    g->plan = (struct plan_options){.policy = o->policy,
                                    .window = o->window,
                                    .group = o->group,
                                    .step_tokens = o->step_tokens,
                                    .fixed_shape = o->fixed_shape,
                                    .unverified = o->unverified};
    g->cost = cost_start();
    if ((r = check_options(o, e)) < 0) goto out;
    g->model_path = strdup(o->model_path);
    if (!g->model_path) {
        r = err_set(e, -ENOMEM, "engine");
        goto out;
    }
    g->facts.options.model_path = g->model_path;
    if ((r = read_model(g, e)) < 0) goto out;
    if ((r = load(g, e)) < 0) goto out;
    if ((r = take_memory(g, e)) < 0) goto out;
    if ((r = self_test(g, e)) < 0) goto out;
    g->facts.options.progress = NULL;

    *out_engine = g;
    g = NULL;
out:
    engine_close(g);
    return r;
}

void engine_close(struct engine *g) {
    if (!g) return;

    for (uint32_t i = 0; i < g->n_lanes && g->lanes; i++) {
        free(g->lanes[i].pages);
        free(g->lanes[i].records);
        free(g->lanes[i].out);
        sha256_close(g->lanes[i].digest);
    }
    for (uint32_t i = 0; i < g->n_slots && g->slots; i++) free(g->slots[i].tokens);
    free(g->lanes);
    free(g->slots);
    free(g->free_slots);
    free(g->waiting);
    queue_close(g->submits);
    queue_close(g->events);
    if (g->submit_fd >= 0) close(g->submit_fd);
    if (g->event_fd >= 0) close(g->event_fd);
    sha256_close(g->digest);
    free(g->plan_seqs);
    free(g->plan_lanes);
    free(g->items);
    free(g->rows);
    free(g->pages);
    free(g->changed);
    free(g->wants);
    free(g->results);
    free(g->flagged);
    free(g->verified);
    free(g->pad_pages);
    free(g->scratch);
    kv_close(g->kv);
    token_close(g->token);
    template_close(&g->template);
    free(g->fingerprint_text);
    free(g->model_path);
    g->dev->ops->close(g->dev);
    free(g);
}

const struct engine_facts *engine_facts_get(const struct engine *g) {
    return &g->facts;
}

static int check_request(const struct engine *g, const struct engine_request *r, struct err *e) {
    const struct model *m = &g->facts.model;
    uint64_t n_tokens = (uint64_t)r->n_prompt + r->max_tokens;

    if (r->deterministic && g->plan.unverified)
        return err_set(e, -ENOTSUP, "experiment.verify=no: no answer of this daemon is verified");
    if (r->n_prompt == 0) return err_set(e, -EINVAL, "an empty prompt");
    if (r->max_tokens == 0 && !r->prompt_logprobs)
        return err_set(e, -EINVAL, "max_tokens 0 without prompt logprobs asks for nothing");
    if (n_tokens > g->context)
        return err_set(e, -EMSGSIZE, "prompt of %u and max_tokens %u: the context is %u",
                       r->n_prompt, r->max_tokens, g->context);
    if (n_tokens > (uint64_t)g->now.kv_pages * DEVICE_PAGE_TOKENS)
        return err_set(e, -ENOSPC, "%llu tokens never fit the KV cache of %llu",
                       (unsigned long long)n_tokens,
                       (unsigned long long)(g->now.kv_pages * DEVICE_PAGE_TOKENS));
    for (uint32_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] >= m->vocab)
            return err_set(e, -EINVAL, "prompt[%u] is %u: ids are below %u", i, r->prompt[i],
                           m->vocab);
    if (r->n_stop_ids > ENGINE_STOP_IDS_MAX || r->n_stop_strings > ENGINE_STOP_STRINGS_MAX)
        return err_set(e, -EINVAL, "too many stops");
    for (uint32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] >= m->vocab)
            return err_set(e, -EINVAL, "stop id %u: ids are below %u", r->stop_ids[i], m->vocab);
    for (uint32_t i = 0; i < r->n_stop_strings; i++)
        if (r->stop_strings[i].n_bytes < 1 || r->stop_strings[i].n_bytes > STOP_STRING_BYTES_MAX)
            return err_set(e, -EINVAL, "stop string of %u bytes: 1 to %d",
                           r->stop_strings[i].n_bytes, STOP_STRING_BYTES_MAX);
    if (r->n_top > SAMPLE_TOP_MAX || r->n_prompt_top > SAMPLE_TOP_MAX || r->n_top > m->vocab ||
        r->n_prompt_top > m->vocab)
        return err_set(e, -EINVAL, "most probable ids: at most %d", SAMPLE_TOP_MAX);
    return sample_check(&r->params, m->vocab, e);
}

int engine_submit(struct engine *g, const struct engine_request *r, uint64_t *out_handle,
                  struct err *e) {
    struct slot *slot;
    uint32_t index;
    int result = check_request(g, r, e);

    if (result < 0) return result;
    if (atomic_load_explicit(&g->dead, memory_order_relaxed))
        return err_set(e, -EIO, "the device is lost");
    if (g->n_free_slots == 0)
        return err_set(e, -EBUSY, "%u requests are running or waiting, the most there is room for",
                       g->n_slots);

    index = g->free_slots[--g->n_free_slots];
    slot = &g->slots[index];
    ASSERT(!slot->live);
    slot->live = true;
    slot->handle += 1ull << 32; /* another generation */
    slot->request = *r;
    memcpy(slot->tokens, r->prompt, r->n_prompt * sizeof(r->prompt[0]));
    slot->request.prompt = slot->tokens;
    slot->submit_us = engine_clock_us();
    atomic_store_explicit(&slot->granted, r->grant, memory_order_relaxed);
    atomic_store_explicit(&slot->cancel, false, memory_order_relaxed);
    *out_handle = slot->handle;
    if (!queue_put(g->submits, &index)) ASSERT(false); /* it holds all slots */
    engine_wake(g);
    return 0;
}

/* The slot of a live handle, or NULL. */
static struct slot *find(struct engine *g, uint64_t handle) {
    uint32_t index = (uint32_t)handle;

    if (index >= g->n_slots || !g->slots[index].live || g->slots[index].handle != handle)
        return NULL;
    return &g->slots[index];
}

void engine_cancel(struct engine *g, uint64_t handle) {
    struct slot *slot = find(g, handle);

    if (!slot) return;
    atomic_store_explicit(&slot->cancel, true, memory_order_release);
    engine_wake(g);
}

void engine_grant(struct engine *g, uint64_t handle, uint32_t n) {
    struct slot *slot = find(g, handle);

    if (!slot || n == 0) return;
    atomic_fetch_add_explicit(&slot->granted, n, memory_order_release);
    engine_wake(g);
}

bool engine_next(struct engine *g, struct engine_event *out_event) {
    uint64_t count;

    if (!queue_take(g->events, out_event)) {
        /* Clear first, look again: an event posted in between is seen now or wakes the loop. */
        (void)!read(g->event_fd, &count, sizeof(count));
        if (!queue_take(g->events, out_event)) return false;
    }
    if (atomic_exchange_explicit(&g->events_full, false, memory_order_acq_rel)) engine_wake(g);
    if (out_event->kind == ENGINE_DONE || out_event->kind == ENGINE_FAILED) {
        struct slot *slot = find(g, out_event->handle);

        ASSERT(slot);
        slot->live = false;
        g->free_slots[g->n_free_slots++] = (uint32_t)out_event->handle;
    }
    return true;
}

uint32_t engine_count(const struct engine *g) {
    return g->n_slots - g->n_free_slots;
}

uint32_t engine_queue_place(const struct engine *g) {
    uint32_t n = engine_count(g);

    return n > g->facts.options.max_requests ? n - g->facts.options.max_requests : 0;
}

bool engine_room(struct engine *g) {
    if (queue_room(g->events) > 0) return true;
    atomic_store_explicit(&g->events_full, true, memory_order_release);
    return queue_room(g->events) > 0;
}

void engine_post(struct engine *g, const struct engine_event *event) {
    if (!queue_put(g->events, event)) ASSERT(false); /* engine_room said so */
    g->posted = true;
}

void engine_wake(struct engine *g) {
    uint64_t one = 1;

    (void)!write(g->submit_fd, &one, sizeof(one));
}

int engine_event_fd(const struct engine *g) {
    return g->event_fd;
}

void engine_stats_get(const struct engine *g, struct engine_stats *out) {
    struct engine *mutable = (struct engine *)(uintptr_t)g; /* atomic_load of C11 takes no const */
    uint64_t words[sizeof(*out) / sizeof(uint64_t)];

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        words[i] = atomic_load_explicit(&mutable->published[i], memory_order_relaxed);
    memcpy(out, words, sizeof(words));
}
