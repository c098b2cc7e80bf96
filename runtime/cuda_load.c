#ifdef LLM42_CUDA

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ptx/sm90_batch.h"
#include "ptx/sm90_sample.h"
#include "runtime/cuda_impl.h"
#include "runtime/err.h"
#include "runtime/model_tensor.h"
#include "runtime/rope.h"
#include "runtime/weights.h"

enum {
    ALIGN_BYTES = 256,
    SPARE_PART = 8, /* of what is left: for whoever else uses the GPU */
    VALUES = 16,    /* of a tensor-core step, which no shape may cut */
};

static size_t align(size_t n_bytes) {
    return (n_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

static int take_kv(struct cuda_device *d, struct err *e) {
    const uint64_t n_pages = (uint64_t)d->model.n_layers * d->limits.n_pages;

    d->page_bytes = 2 * (uint64_t)d->kv_width * DEVICE_PAGE_TOKENS * sizeof(uint16_t);
    d->layer_bytes = d->limits.n_pages * d->page_bytes;
    return cuda_memory_take(&d->memory, CUDA_MEMORY_KV, "keys and values", n_pages, d->page_bytes,
                            1, &d->pages, e);
}

static int take_work(struct cuda_device *d, struct err *e) {
    const struct model *m = &d->model;
    const struct device_limits *l = &d->limits;
    const uint32_t n_normed = l->n_rows > l->n_logit_rows ? l->n_rows : l->n_logit_rows;
    const struct {
        const char *what;
        uint64_t n_outer, n_inner;
        size_t value_bytes;
        CUdeviceptr *out;
    } buffers[] = {
        {"rotary tables", l->n_positions, m->head_dim / 2, sizeof(uint16_t), &d->cos},
        {"rotary tables", l->n_positions, m->head_dim / 2, sizeof(uint16_t), &d->sin},
        {"residual stream", l->n_rows, m->hidden, sizeof(uint16_t), &d->x},
        {"sums of squares", l->n_rows, d->squares_stride, sizeof(float), &d->squares},
        {"normed rows", n_normed, m->hidden, sizeof(uint16_t), &d->normed},
        {"q, k and v", l->n_rows, d->qkv_width, sizeof(uint16_t), &d->qkv},
        {"attention", l->n_rows, d->width, sizeof(uint16_t), &d->attended},
        {"feed-forward", l->n_rows, m->intermediate, sizeof(uint16_t), &d->h},
        {"logits", l->n_logit_rows, d->logits_stride, sizeof(float), &d->logits},
        {"sampling", l->n_logit_rows, d->logits_stride, sizeof(float), &d->weighed},
        {"logsumexp", l->n_logit_rows, d->n_lse_groups * SM90_SAMPLE_GROUP,
         sizeof(struct batch_chunk), &d->chunks},
        {"logsumexp", l->n_logit_rows, d->n_lse_groups, sizeof(float), &d->maxima},
        {"logsumexp", l->n_logit_rows, 1, sizeof(uint32_t), &d->counts},
        {"attention's parts", d->attn ? cuda_attn_work_bytes(d->attn) : 1, 1, 1, &d->attn_work},
        {"a step's rows and results", d->batch_bytes, 1, 1, &d->batch},
    };
    int r;

    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) {
        r = cuda_memory_take(&d->memory, CUDA_MEMORY_WORK, buffers[i].what, buffers[i].n_outer,
                             buffers[i].n_inner, buffers[i].value_bytes, buffers[i].out, e);
        if (r < 0) return r;
    }
    return 0;
}

static int take_all(struct cuda_device *d, struct err *e) {
    int r;

    if ((r = cuda_weights_take(d, e)) < 0) return r;
    if ((r = take_kv(d, e)) < 0) return r;
    return take_work(d, e);
}

static int take_host(struct cuda_device *d, size_t n_bytes, char **out, struct err *e) {
    struct cuda_driver *driver = d->driver;
    void *p = NULL;
    int r = cuda_driver_check(driver, driver->cuda.cuMemHostAlloc(&p, n_bytes, 0),
                              "pinned memory of a step", e);

    if (r < 0) return r;
    memset(p, 0, n_bytes);
    *out = p;
    return 0;
}

static int write_tables(struct cuda_device *d, struct err *e) {
    struct cuda_driver *driver = d->driver;
    const size_t n = (size_t)d->limits.n_positions * (d->model.head_dim / 2);
    uint16_t *tables = malloc(2 * n * sizeof(*tables));
    int r;

    if (!tables) return err_set(e, -ENOMEM, "rotary tables: %zu bytes", 2 * n * sizeof(*tables));
    rope_tables(&d->model, d->limits.n_positions, tables, tables + n);
    r = cuda_driver_check(
        driver,
        driver->cuda.cuMemcpyHtoDAsync_v2(d->cos, tables, n * sizeof(*tables), driver->stream),
        "rotary tables", e);
    if (r == 0)
        r = cuda_driver_check(driver,
                              driver->cuda.cuMemcpyHtoDAsync_v2(
                                  d->sin, tables + n, n * sizeof(*tables), driver->stream),
                              "rotary tables", e);
    if (r == 0)
        r = cuda_driver_check(driver, driver->cuda.cuStreamSynchronize(driver->stream),
                              "rotary tables", e);
    free(tables);
    return r;
}

struct cuda_layout cuda_load_layout(uint32_t n_rows, uint32_t n_wants, uint32_t n_tiles) {
    struct cuda_layout at;

    at.wants_off = align(n_rows * sizeof(struct batch_row));
    at.tiles_off = at.wants_off + align(n_wants * sizeof(struct batch_want));
    at.flags_off = at.tiles_off + align(n_tiles * sizeof(struct sm90_attn_tile));
    at.results_off = at.flags_off + align(n_rows);
    at.end = at.results_off + align(n_wants * sizeof(struct batch_result));
    return at;
}

/* Page tables stand behind the largest step.  Tiles: a bucket is less than twice what is in it, but
 * for the first. */
static void lay_out(struct cuda_device *d) {
    const struct device_limits *l = &d->limits;

    d->pages_off = cuda_load_layout(l->n_rows, l->n_wants, 2 * l->n_rows + CUDA_ATTN_KINDS).end;
    d->batch_bytes = d->pages_off + (size_t)l->n_seqs * l->n_seq_pages * sizeof(uint32_t);
}

/* Attention, where its kernels know the heads; and what the host keeps for itself. */
static int open_attn(struct cuda_device *d, struct err *e) {
    const struct model *m = &d->model;
    const struct cuda_attn_shape shape = {.n_heads = m->n_heads,
                                          .n_kv_heads = m->n_kv_heads,
                                          .head_dim = m->head_dim,
                                          .n_seq_pages = d->limits.n_seq_pages};
    int r = cuda_attn_open(d->driver, &shape, &d->attn, e);

    if (r < 0 && r != -ENOTSUP) return r;
    d->tiles = calloc(d->limits.n_rows, sizeof(*d->tiles));
    d->h_page = calloc(2 * DEVICE_PAGE_TOKENS * m->head_dim, sizeof(*d->h_page));
    if (!d->tiles || !d->h_page) return err_set(e, -ENOMEM, "a step of %u rows", d->limits.n_rows);
    return 0;
}

static int clear_work(struct cuda_device *d, struct err *e) {
    struct cuda_driver *driver = d->driver;
    const size_t n_bytes = (size_t)d->limits.n_rows * d->squares_stride * sizeof(float);
    int r = cuda_driver_check(driver,
                              driver->cuda.cuMemsetD8Async(d->squares, 0, n_bytes, driver->stream),
                              "sums of squares", e);

    if (r == 0)
        r = cuda_driver_check(
            driver,
            driver->cuda.cuMemsetD8Async(d->counts, 0, d->limits.n_logit_rows * sizeof(uint32_t),
                                         driver->stream),
            "counts of logsumexp", e);
    if (r < 0 || !d->attn) return r;
    return cuda_driver_check(driver,
                             driver->cuda.cuMemsetD8Async(
                                 d->attn_work, 0, cuda_attn_work_bytes(d->attn), driver->stream),
                             "attention's parts", e);
}

/* Limits and shapes come from files: what the kernels cannot do is told, not asserted. */
static int check(const struct model *m, const struct device_limits *l, struct err *e) {
    if (l->n_rows == 0 || l->n_rows > DEVICE_ROWS_MAX)
        return err_set(e, -ENOTSUP, "CUDA: steps of %u rows, 1 to %d are taken", l->n_rows,
                       DEVICE_ROWS_MAX);
    if (l->n_seqs == 0 || l->n_pages == 0 || l->n_seq_pages == 0 || l->n_wants == 0 ||
        l->n_logit_rows == 0 || l->n_positions == 0)
        return err_set(e, -ENOTSUP, "CUDA: a limit is 0");
    if (m->hidden % VALUES || m->intermediate % VALUES || m->head_dim % VALUES)
        return err_set(e, -ENOTSUP,
                       "CUDA: hidden %u, intermediate %u, head_dim %u: multiples of %d alone",
                       m->hidden, m->intermediate, m->head_dim, VALUES);
    if (m->head_dim == 0 || m->head_dim > MODEL_HEAD_DIM_MAX)
        return err_set(e, -ENOTSUP, "CUDA: head_dim %u, up to %d are taken", m->head_dim,
                       MODEL_HEAD_DIM_MAX);
    if (m->n_kv_heads == 0 || m->n_heads % m->n_kv_heads)
        return err_set(e, -ENOTSUP, "CUDA: %u heads on %u of keys and values", m->n_heads,
                       m->n_kv_heads);
    return 0;
}

/* What follows from model and limits alone. */
static int prepare(struct cuda_device *d, const struct model *m, const struct device_limits *limits,
                   struct err *e) {
    uint32_t n_vectors;
    int r;

    if ((r = cuda_driver_enter(d->driver, e)) < 0) return r;
    cuda_unload(d);
    if ((r = check(m, limits, e)) < 0) return r;
    d->model = *m;
    d->limits = *limits;
    d->width = m->n_heads * m->head_dim;
    d->kv_width = m->n_kv_heads * m->head_dim;
    d->qkv_width = d->width + 2 * d->kv_width;
    d->logits_stride = (m->vocab + 7) / 8 * 8;
    d->n_chunks = (m->vocab + SCHEDULE_LSE_CHUNK - 1) / SCHEDULE_LSE_CHUNK;
    d->n_lse_groups = (d->n_chunks + SM90_SAMPLE_GROUP - 1) / SM90_SAMPLE_GROUP;
    /* A head is the work of some lanes of one warp of the rotation. */
    n_vectors = m->head_dim / VALUES;
    d->head_turn = n_vectors <= 32 && (n_vectors & (n_vectors - 1)) == 0 ? m->head_dim : 0;
    d->scale = (float)(0x1.71547652b82fep+0 / sqrt((double)m->head_dim));
    lay_out(d);
    d->layers = calloc(m->n_layers, sizeof(*d->layers));
    if (!d->layers) return err_set(e, -ENOMEM, "weights: a table of %u layers", m->n_layers);
    if ((r = open_attn(d, e)) < 0) return r;
    d->memory = (struct cuda_memory){.driver = d->driver, .planning = true};
    return 0;
}

static int load(struct cuda_device *d, const struct model *m, struct weights *w,
                const struct device_limits *limits, struct err *e) {
    int r;

    if ((r = prepare(d, m, limits, e)) < 0) return r;
    if ((r = model_tensor_check(m, w, e)) < 0) return r;
    if ((r = take_all(d, e)) < 0) return r;
    if ((r = cuda_memory_fits(&d->memory, e)) < 0) return r;
    if ((r = take_all(d, e)) < 0) return r;
    if ((r = take_host(d, d->batch_bytes, &d->h_batch, e)) < 0) return r;
    if ((r = cuda_queue_open(d, e)) < 0) return r;
    if ((r = clear_work(d, e)) < 0) return r;
    if ((r = write_tables(d, e)) < 0) return r;
    return cuda_weights_read(d, w, e);
}

/* Weights and work are planned, and one page beside them; no byte is taken. */
static int left_for_pages(struct cuda_device *d, const struct model *m,
                          const struct device_limits *limits, uint64_t *out_n_bytes,
                          struct err *e) {
    struct device_limits least = *limits;
    int r;

    least.n_pages = 1;
    if ((r = prepare(d, m, &least, e)) < 0) return r;
    if ((r = take_all(d, e)) < 0) return r;
    return cuda_memory_left(&d->memory, out_n_bytes, e);
}

int cuda_room(struct cuda_device *d, const struct model *m, const struct device_limits *limits,
              uint64_t *out_n_pages, struct err *e) {
    uint64_t n_bytes;
    int r = left_for_pages(d, m, limits, &n_bytes, e);

    if (r == 0) *out_n_pages = (n_bytes - n_bytes / SPARE_PART) / (m->n_layers * d->page_bytes);
    cuda_unload(d);
    return r;
}

int cuda_load(struct cuda_device *d, const struct model *m, struct weights *w,
              const struct device_limits *limits, struct err *e) {
    struct weights *made_up = NULL;
    int r;

    if (!w && (r = weights_make_up(m, d->options.seed, &made_up, e)) < 0) return r;
    r = load(d, m, w ? w : made_up, limits, e);
    weights_close(made_up);
    return r;
}

void cuda_unload(struct cuda_device *d) {
    if (d->h_batch) (void)d->driver->cuda.cuMemFreeHost(d->h_batch);
    cuda_queue_close(d);
    cuda_memory_close(&d->memory);
    cuda_attn_close(d->attn);
    free(d->tiles);
    free(d->h_page);
    free(d->layers);
    memset((char *)d + CUDA_DEVICE_LOADED, 0, sizeof(*d) - CUDA_DEVICE_LOADED);
}

#endif
