#include "tools/bench_watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device.h"
#include "runtime/err.h"
#include "tools/bench_report.h"

struct watch {
    struct device base;
    struct device *inner;
    int64_t ns[BENCH_STAGES];
};

static struct watch *self(struct device *dev) {
    return (struct watch *)dev;
}

const char *bench_stage_name(enum bench_stage s) {
    static const char *const names[BENCH_STAGES] = {"embed",  "attn_in", "attend", "attn_out",
                                                    "mlp_in", "mlp_out", "head",   "sample"};

    return names[s];
}

/* Passes a call on and adds its time to its stage. */
#define WATCHED(stage, call)                   \
    struct watch *w = self(dev);               \
    const int64_t begin_ns = bench_now_ns();   \
    const int done = w->inner->ops->call;      \
    w->ns[stage] += bench_now_ns() - begin_ns; \
    return done

static int upload(struct device *dev, const struct device_batch *batch, struct err *e) {
    WATCHED(BENCH_EMBED, upload(w->inner, batch, e));
}

static int embed(struct device *dev, struct err *e) {
    WATCHED(BENCH_EMBED, embed(w->inner, e));
}

static int attn_in(struct device *dev, uint32_t l, const struct schedule *s, struct err *e) {
    WATCHED(BENCH_ATTN_IN, attn_in(w->inner, l, s, e));
}

static int attend(struct device *dev, uint32_t l, const struct schedule *s, struct err *e) {
    WATCHED(BENCH_ATTEND, attend(w->inner, l, s, e));
}

static int attn_out(struct device *dev, uint32_t l, const struct schedule *s, struct err *e) {
    WATCHED(BENCH_ATTN_OUT, attn_out(w->inner, l, s, e));
}

static int mlp_in(struct device *dev, uint32_t l, const struct schedule *s, struct err *e) {
    WATCHED(BENCH_MLP_IN, mlp_in(w->inner, l, s, e));
}

static int mlp_out(struct device *dev, uint32_t l, const struct schedule *s, struct err *e) {
    WATCHED(BENCH_MLP_OUT, mlp_out(w->inner, l, s, e));
}

static int head(struct device *dev, uint32_t first, uint32_t n, const struct schedule *s,
                struct err *e) {
    WATCHED(BENCH_HEAD, head(w->inner, first, n, s, e));
}

static int sample(struct device *dev, uint32_t first, uint32_t n, struct err *e) {
    WATCHED(BENCH_SAMPLE, sample(w->inner, first, n, e));
}

static int copy(struct device *dev, struct device_result *results, uint8_t *flagged,
                struct err *e) {
    WATCHED(BENCH_SAMPLE, copy(w->inner, results, flagged, e));
}

static int wait(struct device *dev, struct err *e) {
    WATCHED(BENCH_SAMPLE, wait(w->inner, e));
}

/* The rest is passed on. */

static void close_watch(struct device *dev) {
    struct watch *w = self(dev);

    if (!w) return;
    w->inner->ops->close(w->inner);
    free(w);
}

static int load(struct device *dev, const struct model *m, struct weights *weights,
                const struct device_limits *limits, struct err *e) {
    struct device *inner = self(dev)->inner;

    return inner->ops->load(inner, m, weights, limits, e);
}

static int read_row(struct device *dev, enum device_buffer buffer, uint32_t row, void *out,
                    struct err *e) {
    struct device *inner = self(dev)->inner;

    return inner->ops->read(inner, buffer, row, out, e);
}

static int write_row(struct device *dev, enum device_buffer buffer, uint32_t row, const void *in,
                     struct err *e) {
    struct device *inner = self(dev)->inner;

    return inner->ops->write(inner, buffer, row, in, e);
}

static int read_kv(struct device *dev, uint32_t layer, uint32_t page, uint32_t slot,
                   uint32_t kv_head, uint16_t *out_k, uint16_t *out_v, struct err *e) {
    struct device *inner = self(dev)->inner;

    return inner->ops->read_kv(inner, layer, page, slot, kv_head, out_k, out_v, e);
}

static int poison(struct device *dev, uint32_t page, uint16_t pattern, struct err *e) {
    struct device *inner = self(dev)->inner;

    return inner->ops->poison(inner, page, pattern, e);
}

static void describe(const struct device *dev, char *text, size_t n_bytes) {
    const struct device *inner = ((const struct watch *)dev)->inner;

    inner->ops->describe(inner, text, n_bytes);
}

static void memory(const struct device *dev, uint64_t *out_weights, uint64_t *out_kv,
                   uint64_t *out_work) {
    const struct device *inner = ((const struct watch *)dev)->inner;

    inner->ops->memory(inner, out_weights, out_kv, out_work);
}

static const struct device_ops ops = {
    .name = "watch",
    .close = close_watch,
    .load = load,
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

int bench_watch_open(struct device *inner, struct device **out_dev, struct err *e) {
    struct watch *w = calloc(1, sizeof(*w));

    if (!w) {
        inner->ops->close(inner);
        return err_set(e, -ENOMEM, "watch: %zu bytes", sizeof(*w));
    }
    w->base.ops = &ops;
    w->inner = inner;
    *out_dev = &w->base;
    return 0;
}

const int64_t *bench_watch_ns(const struct device *watch) {
    return ((const struct watch *)watch)->ns;
}

void bench_watch_reset(struct device *watch) {
    struct watch *w = self(watch);

    memset(w->ns, 0, sizeof(w->ns));
}
