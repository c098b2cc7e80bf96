#ifdef LLM42_CUDA

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ptx/sm90_batch.h"
#include "runtime/assert.h"
#include "runtime/cuda_impl.h"
#include "runtime/cuda_sample.h"
#include "runtime/err.h"

/* Rows are rounded up to these: a graph each, and at most a third of the rows for nothing. */
static const uint32_t buckets[] = {1,  2,  4,   8,   16,  24,  32,  48, 64,
                                   80, 96, 112, 128, 160, 192, 224, 256};

enum { N_BUCKETS = sizeof(buckets) / sizeof(buckets[0]) };

uint32_t cuda_queue_bucket(uint32_t n) {
    for (uint32_t i = 0; i < N_BUCKETS; i++)
        if (n <= buckets[i]) return buckets[i];
    return n;
}

/* From 512 on, the least split that is worth a block. */
uint32_t cuda_queue_power(uint64_t n_keys) {
    uint32_t n = 512;

    while (n < n_keys && n < 1u << 31) n *= 2;
    return n_keys ? n : 0;
}

int cuda_queue_open(struct cuda_device *d, struct err *e) {
    struct cuda_queue *q = &d->queue;

    q->n_ops_max = 1 + 5 * d->model.n_layers + 2 * CUDA_GRAPH_HEADS_MAX;
    q->ops = calloc((size_t)q->n_ops_max * (1 + CUDA_GRAPHS_MAX), sizeof(*q->ops));
    if (!q->ops) return err_set(e, -ENOMEM, "graphs: %u stages", q->n_ops_max);
    for (uint32_t i = 0; i < CUDA_GRAPHS_MAX; i++)
        q->graphs[i].ops = q->ops + (size_t)q->n_ops_max * (1 + i);
    return 0;
}

static void drop(struct cuda_device *d, struct cuda_graph *g) {
    if (g->exec) (void)d->driver->cuda.cuGraphExecDestroy(g->exec);
    g->exec = NULL;
    g->n_rows = 0;
}

void cuda_queue_close(struct cuda_device *d) {
    for (uint32_t i = 0; i < CUDA_GRAPHS_MAX; i++) drop(d, &d->queue.graphs[i]);
    free(d->queue.ops);
    d->queue.ops = NULL;
}

/* As the step's wants ask, which are on the host as they were uploaded. */
static uint32_t ranks_of(const struct cuda_device *d, const struct cuda_op *op) {
    const struct batch_want *wants = (const struct batch_want *)(d->h_batch + d->at.wants_off);
    bool weighs = false;

    for (uint32_t i = op->at; i < op->at + op->n && !weighs; i++)
        weighs = cuda_sample_weighs(&wants[i], d->model.vocab);
    return cuda_sample_ranks(op->n, weighs, d->n_chunks, d->can_spread);
}

int cuda_queue_push(struct cuda_device *d, enum cuda_op_kind kind, uint32_t at, uint32_t n,
                    const struct schedule *s, struct err *e) {
    struct cuda_queue *q = &d->queue;
    struct cuda_op *op;
    int r;

    if (d->driver->lost) return err_set(e, -EIO, "CUDA: the device is lost");
    if (q->n_ops == q->n_ops_max && (r = cuda_queue_flush(d, e)) < 0) return r;
    op = &q->ops[q->n_ops++];
    memset(op, 0, sizeof(*op));
    op->kind = kind;
    op->at = at;
    if (n > 0) {
        ASSERT(at + n <= d->n_wants && n <= d->limits.n_logit_rows);
        op->n = cuda_queue_bucket(n);
        if (op->n > d->limits.n_logit_rows || at + op->n > d->want_places) op->n = n;
    }
    if (kind == CUDA_OP_SAMPLE) op->n_ranks = ranks_of(d, op);
    if (!s) return 0;
    op->s.qkv = s->qkv;
    op->s.o = s->o;
    op->s.gate_up = s->gate_up;
    op->s.down = s->down;
    op->s.head = s->head;
    op->s.norm_run = s->norm_run;
    op->s.split_keys = s->split_keys;
    return 0;
}

static int launch(struct cuda_device *d, const struct cuda_op *op, struct err *e) {
    switch ((enum cuda_op_kind)op->kind) {
    case CUDA_OP_EMBED:
        return cuda_step_embed(d, e);
    case CUDA_OP_ATTN_IN:
        return cuda_step_attn_in(d, op->at, &op->s, e);
    case CUDA_OP_ATTEND:
        return cuda_step_attend(d, op->at, &op->s, e);
    case CUDA_OP_ATTN_OUT:
        return cuda_step_attn_out(d, op->at, &op->s, e);
    case CUDA_OP_MLP_IN:
        return cuda_step_mlp_in(d, op->at, &op->s, e);
    case CUDA_OP_MLP_OUT:
        return cuda_step_mlp_out(d, op->at, &op->s, e);
    case CUDA_OP_HEAD:
        return cuda_step_head(d, op->at, op->n, &op->s, e);
    case CUDA_OP_SAMPLE:
        return cuda_step_sample(d, op->at, op->n, op->n_ranks, e);
    }
    return 0;
}

static int launch_all(struct cuda_device *d, struct err *e) {
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < d->queue.n_ops; i++) r = launch(d, &d->queue.ops[i], e);
    return r;
}

int cuda_queue_flush(struct cuda_device *d, struct err *e) {
    int r = cuda_driver_work(d->driver, e);

    d->rests = false;
    if (r == 0) r = launch_all(d, e);
    d->queue.n_ops = 0;
    return r;
}

/* Rows whose squares the step finds: none where it begins with its embedding. */
static uint32_t squared_before(const struct cuda_device *d) {
    return d->queue.ops[0].kind == CUDA_OP_EMBED ? 0 : d->n_squared;
}

/* Of this step, in all that its kernels were launched by. */
static bool is_of_step(const struct cuda_device *d, const struct cuda_graph *g) {
    const struct cuda_queue *q = &d->queue;

    return g->n_rows == d->row_places && g->n_wants == d->want_places && g->n_ops == q->n_ops &&
           g->n_squared == squared_before(d) && !memcmp(&g->plan, &d->plan, sizeof(g->plan)) &&
           !memcmp(g->ops, q->ops, q->n_ops * sizeof(*q->ops));
}

/* The graph of this step, or else the place of the one that was not used for longest. */
static struct cuda_graph *find(struct cuda_device *d, bool *out_found) {
    struct cuda_queue *q = &d->queue;
    struct cuda_graph *oldest = &q->graphs[0];

    *out_found = true;
    if (is_of_step(d, &q->graphs[q->last])) return &q->graphs[q->last];
    for (uint32_t i = 0; i < CUDA_GRAPHS_MAX; i++) {
        struct cuda_graph *g = &q->graphs[i];

        if (is_of_step(d, g)) return g;
        if (g->used < oldest->used) oldest = g;
    }
    *out_found = false;
    return oldest;
}

static int record(struct cuda_device *d, struct cuda_graph *g, struct err *e) {
    struct cuda_driver *driver = d->driver;
    CUgraph graph = NULL;
    CUresult ended;
    int r;

    r = cuda_driver_check(
        driver,
        driver->cuda.cuStreamBeginCapture_v2(driver->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
        "record a step", e);
    if (r < 0) return r;
    d->n_launch = d->row_places;
    r = launch_all(d, e);
    d->n_launch = d->n_rows;
    g->n_squared_after = d->n_squared;
    ended = driver->cuda.cuStreamEndCapture(driver->stream, &graph);
    if (r == 0) r = cuda_driver_check(driver, ended, "record a step", e);
    if (r == 0)
        r = cuda_driver_check(driver, driver->cuda.cuGraphInstantiateWithFlags(&g->exec, graph, 0),
                              "make a graph", e);
    if (graph) (void)driver->cuda.cuGraphDestroy(graph);
    return r;
}

/* A step that was not seen before takes the place of another and is remembered. */
static void remember(struct cuda_device *d, struct cuda_graph *g) {
    const struct cuda_queue *q = &d->queue;

    drop(d, g);
    memcpy(g->ops, q->ops, q->n_ops * sizeof(*q->ops));
    g->n_ops = q->n_ops;
    g->plan = d->plan;
    g->n_rows = d->row_places;
    g->n_wants = d->want_places;
    g->n_squared = squared_before(d);
}

int cuda_queue_run(struct cuda_device *d, struct err *e) {
    struct cuda_driver *driver = d->driver;
    struct cuda_queue *q = &d->queue;
    struct cuda_graph *g;
    bool found;
    int r;

    if (q->n_ops == 0 || d->options.no_graphs || d->n_rows > CUDA_GRAPH_ROWS_MAX)
        return cuda_queue_flush(d, e);
    g = find(d, &found);
    g->used = ++q->n_steps;
    q->last = (uint32_t)(g - q->graphs);
    if (!found) {
        remember(d, g);
        return cuda_queue_flush(d, e);
    }
    d->rests = false;
    r = cuda_driver_work(driver, e);
    if (r == 0 && !g->exec) r = record(d, g, e);
    d->n_squared = g->n_squared_after;
    if (r == 0)
        r = cuda_driver_check(driver, driver->cuda.cuGraphLaunch(g->exec, driver->stream), "a step",
                              e);
    q->n_ops = 0;
    return r;
}

#endif
