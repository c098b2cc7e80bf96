#ifdef LLM42_CUDA

#include <errno.h>

#include "ptx/sm90_batch.h"
#include "ptx/sm90_norm.h"
#include "runtime/assert.h"
#include "runtime/cuda_impl.h"
#include "runtime/err.h"

enum {
    EMBED_THREADS = 128,
    NORM_THREADS = 256,
    NORM_VALUES = 8192, /* of a row in registers */
    NORM_EARLY_MIN = 129,
    NORMED_BYTES_MIN = 8 << 20, /* of weights, of a product that norms its rows */
    LONG_BYTES = 16 << 20,      /* of weights: a product that takes longer than to start a kernel */
    ROTARY_THREADS = 256,
    ROTARY_BLOCKS = 2, /* of a row */
    ATTN_THREADS = 128,
    ATTN_HEADS = 8,
};

static uint32_t groups(uint32_t n, uint32_t of) {
    return (n + of - 1) / of;
}

/* Each of these kernels waits for the one before and lets the next begin. */
static int run(struct cuda_device *d, CUfunction entry, const char *name, uint32_t x, uint32_t y,
               uint32_t threads, void *params[], struct err *e) {
    const struct cuda_launch launch = {.entry = entry,
                                       .name = name,
                                       .grid = {x, y, 1},
                                       .block = {threads, 1, 1},
                                       .overlap = true,
                                       .params = params};

    return cuda_driver_launch(d->driver, &launch, e);
}

int cuda_step_embed(struct cuda_device *d, struct err *e) {
    void *params[] = {&d->x, &d->embed, &d->batch, &d->model.hidden};

    d->n_squared = 0;
    return run(d, d->entries.embed, "embed", d->n_launch, 1, EMBED_THREADS, params, e);
}

/* As norm below, of so many rows that a ring of them pays. */
static int norm_many(struct cuda_device *d, CUdeviceptr y, CUdeviceptr w, uint32_t n,
                     uint32_t run_length, struct err *e) {
    const struct cuda_launch launch = {
        .entry = d->entries.norm_many,
        .name = "residual, norm",
        .grid = {n < SM90_NORM_MANY_BLOCKS ? n : SM90_NORM_MANY_BLOCKS},
        .block = {SM90_NORM_MANY_THREADS},
        .shared_bytes = SM90_NORM_MANY_BYTES,
        .overlap = true,
        .params = (void *[]){&d->normed, &d->x, &y, &w, &d->model.hidden, &n, &d->model.rms_eps,
                             &run_length}};

    return cuda_driver_launch(d->driver, &launch, e);
}

/* x += y where y is given, then normed = norm(x, w) where w is.  With wants, of their rows. */
static int norm(struct cuda_device *d, CUdeviceptr y, CUdeviceptr w, CUdeviceptr wants, uint32_t n,
                uint32_t run_length, struct err *e) {
    /* Of so many rows the next product has its blocks placed, and its weights on their way, before
     * this one has begun; of fewer they would stand unevenly (docs/performance.md). */
    uint32_t early = n >= NORM_EARLY_MIN && n <= CUDA_GRAPH_ROWS_MAX;
    void *params[] = {&d->normed,        &d->x,       &y,    &w, &wants, &d->model.hidden,
                      &d->model.rms_eps, &run_length, &early};

    if (n >= SM90_NORM_MANY_ROWS_MIN && w && !wants &&
        d->model.hidden >= SM90_NORM_MANY_VALUES_MIN && d->model.hidden <= SM90_NORM_MANY_VALUES)
        return norm_many(d, y, w, n, run_length, e);
    return run(d, d->model.hidden <= NORM_VALUES ? d->entries.norm : d->entries.norm_wide,
               "residual, norm", n, 1, NORM_THREADS, params, e);
}

/* y = W x, in whatever form; strides follow from the shapes. */
static struct cuda_gemm_args args_of(const struct cuda_device *d, const struct cuda_gemm_weight *w,
                                     CUdeviceptr x, CUdeviceptr y, uint32_t n_rows,
                                     uint32_t segments, enum sm90_gemm_form form) {
    return (struct cuda_gemm_args){
        .w = w,
        .d_x = x,
        .d_out = y,
        .squares_stride = d->squares_stride,
        .x_stride = w->n_k,
        .out_stride = form == SM90_GEMM_SILU ? w->n / 2 : w->n,
        .n_rows = n_rows,
        .segments = segments,
        .form = form,
        .overlap = true,
    };
}

static int product(struct cuda_device *d, const struct cuda_gemm_weight *w, CUdeviceptr x,
                   CUdeviceptr y, uint32_t n_rows, uint32_t segments, enum sm90_gemm_form form,
                   struct err *e) {
    const struct cuda_gemm_args args = args_of(d, w, x, y, n_rows, segments, form);

    return cuda_gemm_run(d->gemm, &args, e);
}

/* x += W y, and of few rows the sums of squares that the next norm wants. */
static int add_product(struct cuda_device *d, const struct cuda_gemm_weight *w, CUdeviceptr y,
                       uint32_t segments, struct err *e) {
    struct cuda_gemm_args args = args_of(d, w, y, d->x, d->n_launch, segments, SM90_GEMM_ADD);
    const bool squares =
        d->n_squares > 0 && cuda_gemm_squares(w, d->n_launch, segments) == d->n_squares;

    if (squares) args.d_squares = d->squares;
    d->n_squared = squares ? d->n_launch : 0;
    return cuda_gemm_run(d->gemm, &args, e);
}

/* Whether the product norms its rows itself, which must be long to hide it.  Runs of two are the
 * tree itself. */
static bool can_norm(const struct cuda_device *d, const struct cuda_gemm_weight *w,
                     uint32_t segments, uint32_t run_length) {
    const uint64_t from = d->options.normed_bytes ? d->options.normed_bytes : NORMED_BYTES_MIN;

    return d->n_squared >= d->n_launch && run_length <= 2 && w->n_bytes >= from &&
           cuda_gemm_can_norm(w, d->n_launch, segments, d->n_squares);
}

/* The same of products so short that they sum up the squares themselves. */
static bool can_brief(const struct cuda_device *d, const struct cuda_gemm_weight *w,
                      uint32_t segments, uint32_t run_length) {
    return !d->options.normed_bytes && run_length <= 2 &&
           cuda_gemm_can_brief(w, d->n_launch, segments);
}

static struct sm90_gemm_norm norm_of(const struct cuda_device *d, CUdeviceptr w, bool brief) {
    return (struct sm90_gemm_norm){
        .squares = brief ? 0 : d->squares,
        .weight = w,
        .n_squares = d->n_squares,
        .squares_stride = d->squares_stride,
        .eps = d->model.rms_eps,
    };
}

static struct sm90_gemm_turn turn_of(const struct cuda_device *d, CUdeviceptr kv) {
    return (struct sm90_gemm_turn){
        .kv = kv,
        .cos = d->cos,
        .sin = d->sin,
        .rows = d->batch,
        .pages = d->batch + d->pages_off,
        .n_seq_pages = d->limits.n_seq_pages,
        .n_heads = d->model.n_heads,
        .n_kv_heads = d->model.n_kv_heads,
        .head_dim = d->model.head_dim,
    };
}

static int rotate(struct cuda_device *d, CUdeviceptr kv, struct err *e) {
    const uint32_t turned = d->head_turn != 0;
    CUdeviceptr table = d->batch + d->pages_off;
    void *params[] = {&d->qkv,
                      &kv,
                      &d->cos,
                      &d->sin,
                      &d->batch,
                      &table,
                      &d->limits.n_seq_pages,
                      &d->model.n_heads,
                      &d->model.n_kv_heads,
                      &d->model.head_dim,
                      (void *)&turned};

    return run(d, d->entries.rotary, "rotary", d->n_launch, ROTARY_BLOCKS, ROTARY_THREADS, params,
               e);
}

/* When attention may start beside q, k and v, as measured (docs/performance.md): it has its keys on
 * their way the sooner, and stands the less evenly. */
static enum sm90_gemm_next attend_next(uint32_t n_rows, uint64_t n_bytes, bool brief) {
    const bool long_ = n_bytes >= LONG_BYTES;

    if (n_rows <= 8)
        return long_ || (brief && n_rows > 1) ? SM90_GEMM_NEXT_AT_ONCE : SM90_GEMM_NEXT_LAST_TILE;
    if (n_rows <= 16) return long_ ? SM90_GEMM_NEXT_BEHIND : SM90_GEMM_NEXT_AT_ONCE;
    if (n_rows <= (long_ ? 32 : 64)) return SM90_GEMM_NEXT_AT_ONCE;
    return SM90_GEMM_NEXT_LAST_TILE;
}

int cuda_step_attn_in(struct cuda_device *d, uint32_t layer, const struct schedule *s,
                      struct err *e) {
    const struct cuda_layer *l = &d->layers[layer];
    CUdeviceptr kv = d->pages + layer * d->layer_bytes;
    const struct sm90_gemm_turn t = turn_of(d, kv);
    const bool brief = can_brief(d, &l->qkv, s->qkv, s->norm_run);
    const struct sm90_gemm_norm n = norm_of(d, l->norm_in, brief);
    const bool normed = d->head_turn && (brief || can_norm(d, &l->qkv, s->qkv, s->norm_run));
    struct cuda_gemm_args args =
        args_of(d, &l->qkv, d->normed, d->qkv, d->n_launch, s->qkv, SM90_GEMM_BF16);
    int r;

    if (normed || cuda_gemm_can_turn(&l->qkv, d->n_launch, s->qkv)) {
        args.form = SM90_GEMM_TURNED;
        args.turn = &t;
        args.next = attend_next(d->n_launch, l->qkv.n_bytes, brief);
    }
    if (normed) {
        args.d_x = d->x;
        args.norm = &n;
        return cuda_gemm_run(d->gemm, &args, e);
    }
    if ((r = norm(d, 0, l->norm_in, 0, d->n_launch, s->norm_run, e)) < 0) return r;
    if ((r = cuda_gemm_run(d->gemm, &args, e)) < 0 || args.turn) return r;
    return rotate(d, kv, e);
}

/* Heads that the fast kernels do not know. */
static int attend_plain(struct cuda_device *d, uint32_t layer, uint32_t split_keys, struct err *e) {
    const struct model *m = &d->model;
    CUdeviceptr kv = d->pages + layer * d->layer_bytes, table = d->batch + d->pages_off;
    CUdeviceptr flags = d->batch + d->at.flags_off;
    void *params[] = {&d->attended,
                      &d->qkv,
                      &kv,
                      &d->batch,
                      &table,
                      &d->limits.n_seq_pages,
                      &d->model.n_heads,
                      &d->model.n_kv_heads,
                      &d->model.head_dim,
                      &split_keys,
                      &d->scale,
                      &flags};
    const struct cuda_launch launch = {
        .entry = d->entries.plain_attn,
        .name = "plain attention",
        .grid = {d->n_launch, m->n_kv_heads, groups(m->n_heads / m->n_kv_heads, ATTN_HEADS)},
        .block = {ATTN_THREADS, 1, 1},
        .params = params};

    return cuda_driver_launch(d->driver, &launch, e);
}

int cuda_step_attend(struct cuda_device *d, uint32_t layer, const struct schedule *s,
                     struct err *e) {
    const struct cuda_attn_args args = {
        .d_pages = d->pages + layer * d->layer_bytes,
        .d_q = d->qkv,
        .d_out = d->attended,
        .d_flagged = d->batch + d->at.flags_off,
        .d_positions = d->batch + offsetof(struct batch_row, position),
        .d_table = d->batch + d->pages_off,
        .d_tiles = d->batch + d->at.tiles_off,
        .d_work = d->attn_work,
        .q_stride = d->qkv_width,
        .position_stride = sizeof(struct batch_row) / sizeof(uint32_t),
        .split_keys = s->split_keys,
        .overlap = true,
    };

    if (!d->attn) return attend_plain(d, layer, s->split_keys, e);
    return cuda_attn_run(d->attn, &d->plan, &args, e);
}

int cuda_step_attn_out(struct cuda_device *d, uint32_t layer, const struct schedule *s,
                       struct err *e) {
    return add_product(d, &d->layers[layer].o, d->attended, s->o, e);
}

int cuda_step_mlp_in(struct cuda_device *d, uint32_t layer, const struct schedule *s,
                     struct err *e) {
    const struct cuda_layer *l = &d->layers[layer];
    const bool brief = can_brief(d, &l->gate_up, s->gate_up, s->norm_run);
    int r;

    if (brief || can_norm(d, &l->gate_up, s->gate_up, s->norm_run)) {
        const struct sm90_gemm_norm n = norm_of(d, l->norm_post, brief);
        struct cuda_gemm_args args =
            args_of(d, &l->gate_up, d->x, d->h, d->n_launch, s->gate_up, SM90_GEMM_SILU);

        args.norm = &n;
        /* Of short chains the next one's weights are in these' way, but at one row. */
        if (brief && d->n_launch > 1) args.next = SM90_GEMM_NEXT_LAST_TILE;
        return cuda_gemm_run(d->gemm, &args, e);
    }
    if ((r = norm(d, 0, l->norm_post, 0, d->n_launch, s->norm_run, e)) < 0) return r;
    return product(d, &l->gate_up, d->normed, d->h, d->n_launch, s->gate_up, SM90_GEMM_SILU, e);
}

int cuda_step_mlp_out(struct cuda_device *d, uint32_t layer, const struct schedule *s,
                      struct err *e) {
    return add_product(d, &d->layers[layer].down, d->h, s->down, e);
}

int cuda_step_head(struct cuda_device *d, uint32_t first, uint32_t n, const struct schedule *s,
                   struct err *e) {
    CUdeviceptr wants = d->batch + d->at.wants_off + first * sizeof(struct batch_want);
    int r = norm(d, 0, d->norm_final, wants, n, s->norm_run, e);

    if (r < 0) return r;
    return product(d, &d->head, d->normed, d->logits, n, s->head, SM90_GEMM_F32, e);
}

#endif
