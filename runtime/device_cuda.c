#include "runtime/device_cuda.h"

#include <errno.h>

#include "runtime/err.h"

#ifndef LLM42_CUDA

bool device_cuda_built(void) {
    return false;
}

int device_cuda_open(const struct device_cuda_options *options, struct device **out_dev,
                     struct err *e) {
    (void)options;
    (void)out_dev;
    return err_set(e, -ENODEV, "built without CUDA: no toolkit was there");
}

#else

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx/sm90_batch.h"
#include "ptx/sm90_kv.h"
#include "ptx/sm90_norm.h"
#include "ptx/sm90_sample.h"
#include "runtime/assert.h"
#include "runtime/cuda_impl.h"
#include "runtime/cuda_sample.h"
#include "runtime/libnccl.h"

_Static_assert(sizeof(struct batch_row) == sizeof(struct device_row), "rows travel as they are");
_Static_assert(sizeof(struct batch_result) == sizeof(struct device_result) &&
                   offsetof(struct batch_result, numeric) ==
                       offsetof(struct device_result, numeric),
               "results travel as they are");
_Static_assert(BATCH_TOP_MAX == SAMPLE_TOP_MAX, "one limit");

/* A copy to the device costs the host as much time as the bus needs for so many bytes. */
enum { COPY_BYTES = 128 << 10 };

static struct cuda_device *self(struct device *dev) {
    return (struct cuda_device *)dev;
}

static void close_device(struct device *dev) {
    struct cuda_device *d = self(dev);

    if (!d) return;
    if (d->driver) (void)cuda_driver_enter(d->driver, NULL);
    if (d->driver) cuda_unload(d);
    cuda_gemm_close(d->gemm);
    cuda_driver_close(d->driver);
    free(d);
}

static int load(struct device *dev, const struct model *m, struct weights *w,
                const struct device_limits *limits, struct err *e) {
    return cuda_load(self(dev), m, w, limits, e);
}

/* top_p in units of 2^-24, to nearest, ties to even, at least 1; 0 where it keeps all. */
static uint32_t top_part(float top_p) {
    double part = ((double)top_p * 0x1p24 + 0x1p52) - 0x1p52;

    if (!(top_p < 1.0f)) return 0;
    return part < 1.0 ? 1 : (uint32_t)part;
}

static struct batch_want want_of(const struct cuda_device *d, const struct device_batch *batch,
                                 const struct device_want *want) {
    const struct sample_params *p = &want->params;

    return (struct batch_want){
        .row = want->row,
        .position = batch->rows[want->row].position + 1,
        .target = want->target,
        .n_top = want->n_top < d->model.vocab ? want->n_top : d->model.vocab,
        .temperature = p->temperature,
        .min_p = p->min_p,
        .top_k = p->top_k,
        .top_part = top_part(p->top_p),
        .seed = p->seed,
    };
}

/* Waits for all that was queued. */
static int settle(struct cuda_device *d, const char *what, struct err *e) {
    const bool rests = d->rests && d->queue.n_ops == 0;
    int r = cuda_queue_flush(d, e);

    if (r == 0 && !rests)
        r = cuda_driver_check(d->driver, d->driver->cuda.cuStreamSynchronize(d->driver->stream),
                              what, e);
    d->rests = r == 0;
    return r;
}

/* Places for n, as many as there is room for. */
static uint32_t places(uint32_t n, uint32_t n_max) {
    const uint32_t bucket = n ? cuda_queue_bucket(n) : 0;

    return bucket < n_max ? bucket : n_max;
}

/* Attention's plan, its tiles of each kind in as many places as their bucket has: a graph that was
 * made for the one step fits the next.  The places of all. */
static uint32_t plan_attn(struct cuda_device *d, const struct device_batch *batch,
                          uint32_t out_n_tiles[CUDA_ATTN_KINDS]) {
    uint32_t n_places = 0;

    if (!d->attn) return 0;
    cuda_attn_plan(d->attn, batch->rows, batch->n_rows, d->tiles, &d->plan);
    for (int kind = 0; kind < CUDA_ATTN_KINDS; kind++) {
        out_n_tiles[kind] = d->plan.n_tiles[kind];
        n_places += d->plan.n_tiles[kind] = places(out_n_tiles[kind], UINT32_MAX);
    }
    d->plan.end_max = cuda_queue_power(d->plan.end_max);
    d->plan.n_keys = cuda_queue_power(d->plan.n_keys);
    return n_places;
}

static void put_tiles(struct cuda_device *d, const uint32_t n_tiles[CUDA_ATTN_KINDS]) {
    struct sm90_attn_tile *to = (struct sm90_attn_tile *)(d->h_batch + d->at.tiles_off);
    const struct sm90_attn_tile *from = d->tiles;

    for (int kind = 0; kind < CUDA_ATTN_KINDS; kind++) {
        const uint32_t n = n_tiles[kind], n_places = d->plan.n_tiles[kind];

        memcpy(to, from, n * sizeof(*to));
        memset(to + n, 0, (n_places - n) * sizeof(*to));
        from += n;
        to += n_places;
    }
}

/* Pages before its own were judged with the rows that are there. */
static void check_row(const struct cuda_device *d, const struct device_batch *batch,
                      const struct device_row *row) {
    const struct device_limits *l = &d->limits;
    const uint32_t *pages = (const uint32_t *)(d->h_batch + d->pages_off);

    ASSERT(row->token < d->model.vocab && row->seq < batch->n_seqs);
    ASSERT(row->position < l->n_positions);
    ASSERT(row->position / DEVICE_PAGE_TOKENS < l->n_seq_pages);
    ASSERT(pages[(size_t)row->seq * l->n_seq_pages + row->position / DEVICE_PAGE_TOKENS] <
           l->n_pages);
}

/* Lines first .. end - 1 of the page tables, as they stand on the host. */
static int copy_pages(struct cuda_device *d, uint32_t first, uint32_t end, struct err *e) {
    struct cuda_driver *driver = d->driver;
    const size_t line_bytes = d->limits.n_seq_pages * sizeof(uint32_t);
    const size_t at = d->pages_off + first * line_bytes;

    return cuda_driver_check(driver,
                             driver->cuda.cuMemcpyHtoDAsync_v2(d->batch + at, d->h_batch + at,
                                                               (end - first) * line_bytes,
                                                               driver->stream),
                             "upload", e);
}

/* Each changed line by itself, or all from the first to the last at once where that is sooner: what
 * lies between is there already, as it is. */
static int upload_changed(struct cuda_device *d, const struct device_batch *batch, struct err *e) {
    const size_t n = d->limits.n_seq_pages, line_bytes = n * sizeof(*batch->pages);
    uint32_t *pages = (uint32_t *)(d->h_batch + d->pages_off);
    uint32_t first = UINT32_MAX, end = 0;
    int r = 0;

    for (uint32_t i = 0; i < batch->n_changed; i++) {
        const uint32_t line = batch->changed[i];

        ASSERT(line < batch->n_seqs);
        memcpy(pages + line * n, batch->pages + line * n, line_bytes);
        if (line < first) first = line;
        if (line >= end) end = line + 1;
    }
    if (batch->n_changed == 0) return 0;
    if ((end - first) * line_bytes <= batch->n_changed * COPY_BYTES)
        return copy_pages(d, first, end, e);
    for (uint32_t i = 0; r == 0 && i < batch->n_changed; i++)
        r = copy_pages(d, batch->changed[i], batch->changed[i] + 1, e);
    return r;
}

static int upload_pages(struct cuda_device *d, const struct device_batch *batch, struct err *e) {
    if (batch->changed) return upload_changed(d, batch, e);
    memcpy(d->h_batch + d->pages_off, batch->pages,
           batch->n_seqs * d->limits.n_seq_pages * sizeof(*batch->pages));
    return copy_pages(d, 0, batch->n_seqs, e);
}

static void put_rows(struct cuda_device *d, const struct device_batch *batch) {
    struct batch_row *rows = (struct batch_row *)d->h_batch;

    for (uint32_t i = 0; i < batch->n_rows; i++) check_row(d, batch, &batch->rows[i]);
    memcpy(rows, batch->rows, batch->n_rows * sizeof(*rows));
    for (uint32_t i = batch->n_rows; i < d->row_places; i++)
        rows[i] = (struct batch_row){.seq = BATCH_NO_SEQ};
    memset(d->h_batch + d->at.flags_off, 0, d->row_places);
}

static void put_wants(struct cuda_device *d, const struct device_batch *batch) {
    struct batch_want *wants = (struct batch_want *)(d->h_batch + d->at.wants_off);

    for (uint32_t i = 0; i < batch->n_wants; i++) {
        ASSERT(batch->wants[i].row < batch->n_rows && batch->wants[i].n_top <= SAMPLE_TOP_MAX);
        wants[i] = want_of(d, batch, &batch->wants[i]);
    }
    for (uint32_t i = batch->n_wants; i < d->want_places; i++)
        wants[i] = (struct batch_want){.n_top = BATCH_NO_WANT};
}

static int upload(struct device *dev, const struct device_batch *batch, struct err *e) {
    struct cuda_device *d = self(dev);
    struct cuda_driver *driver = d->driver;
    const struct device_limits *l = &d->limits;
    uint32_t n_tiles[CUDA_ATTN_KINDS] = {0};
    int r;

    ASSERT(batch->n_rows > 0 && batch->n_rows <= l->n_rows && batch->n_seqs <= l->n_seqs);
    ASSERT(batch->n_wants <= l->n_wants);
    /* The step before must have left the pinned block, and stages nobody waited for run. */
    if ((r = settle(d, "the step before", e)) < 0) return r;
    d->rests = false;
    if ((r = upload_pages(d, batch, e)) < 0) return r;
    d->n_rows = d->n_launch = batch->n_rows;
    d->n_wants = batch->n_wants;
    d->row_places = places(d->n_rows, l->n_rows);
    d->want_places = places(d->n_wants, l->n_wants);
    d->at = cuda_load_layout(d->row_places, d->want_places, plan_attn(d, batch, n_tiles));
    put_rows(d, batch);
    put_wants(d, batch);
    put_tiles(d, n_tiles);
    return cuda_driver_check(
        driver,
        driver->cuda.cuMemcpyHtoDAsync_v2(d->batch, d->h_batch, d->at.results_off, driver->stream),
        "upload", e);
}

static int embed(struct device *dev, struct err *e) {
    return cuda_queue_push(self(dev), CUDA_OP_EMBED, 0, 0, NULL, e);
}

static int attn_in(struct device *dev, uint32_t layer, const struct schedule *s, struct err *e) {
    return cuda_queue_push(self(dev), CUDA_OP_ATTN_IN, layer, 0, s, e);
}

static int attend(struct device *dev, uint32_t layer, const struct schedule *s, struct err *e) {
    return cuda_queue_push(self(dev), CUDA_OP_ATTEND, layer, 0, s, e);
}

static int attn_out(struct device *dev, uint32_t layer, const struct schedule *s, struct err *e) {
    return cuda_queue_push(self(dev), CUDA_OP_ATTN_OUT, layer, 0, s, e);
}

static int mlp_in(struct device *dev, uint32_t layer, const struct schedule *s, struct err *e) {
    return cuda_queue_push(self(dev), CUDA_OP_MLP_IN, layer, 0, s, e);
}

static int mlp_out(struct device *dev, uint32_t layer, const struct schedule *s, struct err *e) {
    return cuda_queue_push(self(dev), CUDA_OP_MLP_OUT, layer, 0, s, e);
}

static int head(struct device *dev, uint32_t first, uint32_t n, const struct schedule *s,
                struct err *e) {
    return cuda_queue_push(self(dev), CUDA_OP_HEAD, first, n, s, e);
}

static int sample(struct device *dev, uint32_t first, uint32_t n, struct err *e) {
    return cuda_queue_push(self(dev), CUDA_OP_SAMPLE, first, n, NULL, e);
}

static int copy(struct device *dev, struct device_result *out_results, uint8_t *out_flagged,
                struct err *e) {
    struct cuda_device *d = self(dev);
    struct cuda_driver *driver = d->driver;
    const size_t from = d->at.flags_off;
    const size_t n_bytes = d->at.results_off - from + d->n_wants * sizeof(struct batch_result);
    int r = cuda_queue_run(d, e);

    if (r < 0) return r;
    d->out_results = out_results;
    d->out_flagged = out_flagged;
    return cuda_driver_check(driver,
                             driver->cuda.cuMemcpyDtoHAsync_v2(d->h_batch + from, d->batch + from,
                                                               n_bytes, driver->stream),
                             "results", e);
}

static int wait(struct device *dev, struct err *e) {
    struct cuda_device *d = self(dev);
    int r = settle(d, "a step", e);

    if (r < 0) return r;
    if (d->out_results && d->n_wants)
        memcpy(d->out_results, d->h_batch + d->at.results_off,
               d->n_wants * sizeof(*d->out_results));
    if (d->out_flagged) memcpy(d->out_flagged, d->h_batch + d->at.flags_off, d->n_rows);
    d->out_results = NULL;
    d->out_flagged = NULL;
    return 0;
}

/* A row of a buffer. */
static CUdeviceptr row_of(const struct cuda_device *d, enum device_buffer buffer, uint32_t row,
                          size_t *out_bytes) {
    const uint32_t n_rows = buffer == DEVICE_LOGITS ? d->limits.n_logit_rows : d->limits.n_rows;
    CUdeviceptr at = 0;
    size_t n = 0, stride;

    ASSERT(row < n_rows);
    switch (buffer) {
    case DEVICE_X:
        at = d->x, n = d->model.hidden * sizeof(uint16_t);
        break;
    case DEVICE_QKV:
        at = d->qkv, n = d->qkv_width * sizeof(uint16_t);
        break;
    case DEVICE_ATTN:
        at = d->attended, n = d->width * sizeof(uint16_t);
        break;
    case DEVICE_H:
        at = d->h, n = d->model.intermediate * sizeof(uint16_t);
        break;
    case DEVICE_LOGITS:
        at = d->logits, n = d->model.vocab * sizeof(float);
        break;
    }
    stride = buffer == DEVICE_LOGITS ? d->logits_stride * sizeof(float) : n;
    *out_bytes = n;
    return at + row * stride;
}

static int fetch(struct cuda_device *d, CUdeviceptr from, void *out, size_t n_bytes,
                 struct err *e) {
    struct cuda_driver *driver = d->driver;
    int r = cuda_queue_flush(d, e);

    if (r < 0) return r;
    r = cuda_driver_check(
        driver, driver->cuda.cuMemcpyDtoHAsync_v2(out, from, n_bytes, driver->stream), "read", e);
    if (r < 0) return r;
    return settle(d, "read", e);
}

static int read_row(struct device *dev, enum device_buffer buffer, uint32_t row, void *out,
                    struct err *e) {
    size_t n_bytes;
    CUdeviceptr from = row_of(self(dev), buffer, row, &n_bytes);

    return fetch(self(dev), from, out, n_bytes, e);
}

static int write_row(struct device *dev, enum device_buffer buffer, uint32_t row, const void *in,
                     struct err *e) {
    struct cuda_device *d = self(dev);
    struct cuda_driver *driver = d->driver;
    size_t n_bytes;
    CUdeviceptr to = row_of(d, buffer, row, &n_bytes);
    int r = cuda_queue_flush(d, e);

    if (r < 0) return r;
    d->n_squared = 0; /* of what stood there */
    r = cuda_driver_check(
        driver, driver->cuda.cuMemcpyHtoDAsync_v2(to, in, n_bytes, driver->stream), "write", e);
    if (r < 0) return r;
    return settle(d, "write", e);
}

static int read_kv(struct device *dev, uint32_t layer, uint32_t page, uint32_t slot,
                   uint32_t kv_head, uint16_t *out_k, uint16_t *out_v, struct err *e) {
    struct cuda_device *d = self(dev);
    const uint32_t dim = d->model.head_dim;
    const size_t n_values = 2 * (size_t)DEVICE_PAGE_TOKENS * dim;
    const uint64_t at = SM90_ATTN_PAGE_AT(page, kv_head, 0, d->model.n_kv_heads, dim);
    int r;

    ASSERT(layer < d->model.n_layers && page < d->limits.n_pages);
    ASSERT(slot < DEVICE_PAGE_TOKENS && kv_head < d->model.n_kv_heads);
    r = fetch(d, d->pages + layer * d->layer_bytes + at * sizeof(uint16_t), d->h_page,
              n_values * sizeof(uint16_t), e);
    for (uint32_t i = 0; r == 0 && i < dim; i++) {
        out_k[i] = d->h_page[SM90_KV_AT(slot, i, dim)];
        out_v[i] = d->h_page[n_values / 2 + SM90_KV_AT(slot, i, dim)];
    }
    return r;
}

static int poison(struct device *dev, uint32_t page, uint16_t pattern, struct err *e) {
    struct cuda_device *d = self(dev);
    struct cuda_driver *driver = d->driver;
    int r = cuda_queue_flush(d, e);

    ASSERT(page < d->limits.n_pages);
    for (uint32_t layer = 0; r == 0 && layer < d->model.n_layers; layer++)
        r = cuda_driver_check(
            driver,
            driver->cuda.cuMemsetD16Async(d->pages + layer * d->layer_bytes + page * d->page_bytes,
                                          pattern, d->page_bytes / sizeof(pattern), driver->stream),
            "poison", e);
    return r;
}

static void describe(const struct device *dev, char *text, size_t n_bytes) {
    const struct cuda_device *d = (const struct cuda_device *)dev;
    const struct cuda_driver *driver = d->driver;

    char nccl[32] = "no NCCL";

    if (d->nccl_version)
        snprintf(nccl, sizeof(nccl), "NCCL %d.%d.%d", d->nccl_version / 10000,
                 d->nccl_version / 100 % 100, d->nccl_version % 100);
    snprintf(text, n_bytes, "cuda, %s, driver API %d.%d, %s%s", driver->name,
             driver->version / 1000, driver->version % 1000 / 10, nccl,
             driver->n_unkept ? ", compiled kernels not kept" : "");
}

static void memory(const struct device *dev, uint64_t *out_weights, uint64_t *out_kv,
                   uint64_t *out_work) {
    const struct cuda_device *d = (const struct cuda_device *)dev;

    *out_weights = d->memory.n_bytes[CUDA_MEMORY_WEIGHTS];
    *out_kv = d->memory.n_bytes[CUDA_MEMORY_KV];
    *out_work = d->memory.n_bytes[CUDA_MEMORY_WORK];
}

static int room(struct device *dev, const struct model *m, const struct device_limits *limits,
                uint64_t *out_n_pages, struct err *e) {
    return cuda_room(self(dev), m, limits, out_n_pages, e);
}

static const struct device_ops ops = {
    .name = "cuda",
    .queues = true,
    .close = close_device,
    .load = load,
    .room = room,
    .upload = upload,
    .embed = embed,
    .attn_in = attn_in,
    .attend = attend,
    .attn_out = attn_out,
    .mlp_in = mlp_in,
    .mlp_out = mlp_out,
    .head = head,
    .sample = sample,
    .copy = copy,
    .wait = wait,
    .read = read_row,
    .write = write_row,
    .read_kv = read_kv,
    .poison = poison,
    .describe = describe,
    .memory = memory,
};

bool device_cuda_built(void) {
    return true;
}

static int find_entries(struct cuda_device *d, struct err *e) {
    const struct {
        const char *name;
        CUfunction *out;
        uint32_t shared_bytes;
    } wanted[] = {
        {"sm90_embed_bf16", &d->entries.embed, 0},
        {"sm90_random_bf16", &d->entries.random, 0},
        {"sm90_residual_norm_bf16", &d->entries.norm, 0},
        {"sm90_residual_norm_bf16_many", &d->entries.norm_many, SM90_NORM_MANY_BYTES},
        {"sm90_residual_norm_bf16_nvrtc", &d->entries.norm_wide, 0},
        {"sm90_rotary_bf16", &d->entries.rotary, 0},
        {"sm90_sample_f32", &d->entries.sample, SM90_SAMPLE_BYTES},
        {"sm90_sample_f32_spread", &d->entries.sample_spread, SM90_SPREAD_BYTES_MAX},
        {"sm90_plain_attn_bf16", &d->entries.plain_attn, 0},
    };

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        int r = cuda_driver_entry(d->driver, wanted[i].name, wanted[i].name, wanted[i].shared_bytes,
                                  wanted[i].out, e);

        if (r < 0) return r;
    }
    return 0;
}

int device_cuda_open(const struct device_cuda_options *options, struct device **out_dev,
                     struct err *e) {
    const struct cuda_driver_options asked = {.ordinal = options->ordinal,
                                              .cache_folder = options->cache_folder,
                                              .nvrtc_folder = options->nvrtc_folder};
    struct cuda_device *d = calloc(1, sizeof(*d));
    struct libnccl nccl;
    int r;

    if (!d) return err_set(e, -ENOMEM, "CUDA: %zu bytes", sizeof(*d));
    d->base.ops = &ops;
    d->options = *options;
    /* Told, and not used yet. */
    if (libnccl_load(&nccl, NULL) == 0) d->nccl_version = nccl.version;
    r = cuda_driver_open(&asked, &d->driver, e);
    if (r == 0) r = find_entries(d, e);
    if (r == 0) r = cuda_sample_open(d, e);
    if (r == 0) r = cuda_gemm_open(d->driver, &d->gemm, e);
    if (r < 0) {
        close_device(&d->base);
        return r;
    }
    *out_dev = &d->base;
    return 0;
}

void device_cuda_upload(const struct device *dev, uint64_t *out_bytes, uint64_t *out_us) {
    const struct cuda_device *d = (const struct cuda_device *)dev;

    *out_bytes = d->upload_bytes;
    *out_us = d->upload_us;
}

struct cuda_driver *device_cuda_driver(struct device *dev) {
    return self(dev)->driver;
}

#endif
