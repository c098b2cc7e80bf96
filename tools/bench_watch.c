#include "tools/bench_watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device_pass.h"
#include "runtime/err.h"
#include "tools/bench_report.h"

struct watch {
    struct device_pass pass;
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
    const int done = w->pass.inner->ops->call; \
    w->ns[stage] += bench_now_ns() - begin_ns; \
    return done

static int upload(struct device *dev, const struct device_batch *batch, struct err *e) {
    WATCHED(BENCH_EMBED, upload(w->pass.inner, batch, e));
}

static int embed(struct device *dev, struct err *e) {
    WATCHED(BENCH_EMBED, embed(w->pass.inner, e));
}

static int attn_in(struct device *dev, uint32_t l, const struct schedule *s, struct err *e) {
    WATCHED(BENCH_ATTN_IN, attn_in(w->pass.inner, l, s, e));
}

static int attend(struct device *dev, uint32_t l, const struct schedule *s, struct err *e) {
    WATCHED(BENCH_ATTEND, attend(w->pass.inner, l, s, e));
}

static int attn_out(struct device *dev, uint32_t l, const struct schedule *s, struct err *e) {
    WATCHED(BENCH_ATTN_OUT, attn_out(w->pass.inner, l, s, e));
}

static int mlp_in(struct device *dev, uint32_t l, const struct schedule *s, struct err *e) {
    WATCHED(BENCH_MLP_IN, mlp_in(w->pass.inner, l, s, e));
}

static int mlp_out(struct device *dev, uint32_t l, const struct schedule *s, struct err *e) {
    WATCHED(BENCH_MLP_OUT, mlp_out(w->pass.inner, l, s, e));
}

static int head(struct device *dev, uint32_t first, uint32_t n, const struct schedule *s,
                struct err *e) {
    WATCHED(BENCH_HEAD, head(w->pass.inner, first, n, s, e));
}

static int sample(struct device *dev, uint32_t first, uint32_t n, struct err *e) {
    WATCHED(BENCH_SAMPLE, sample(w->pass.inner, first, n, e));
}

static int copy(struct device *dev, struct device_result *results, uint8_t *flagged,
                struct err *e) {
    WATCHED(BENCH_SAMPLE, copy(w->pass.inner, results, flagged, e));
}

static int wait(struct device *dev, struct err *e) {
    WATCHED(BENCH_SAMPLE, wait(w->pass.inner, e));
}

static void close_watch(struct device *dev) {
    struct watch *w = self(dev);

    if (!w) return;
    w->pass.inner->ops->close(w->pass.inner);
    free(w);
}

int bench_watch_open(struct device *inner, struct device **out_dev, struct err *e) {
    struct watch *w = calloc(1, sizeof(*w));

    if (!w) {
        inner->ops->close(inner);
        return err_set(e, -ENOMEM, "watch: %zu bytes", sizeof(*w));
    }
    device_pass_make(&w->pass, inner);
    w->pass.ops.close = close_watch;
    w->pass.ops.upload = upload;
    w->pass.ops.embed = embed;
    w->pass.ops.attn_in = attn_in;
    w->pass.ops.attend = attend;
    w->pass.ops.attn_out = attn_out;
    w->pass.ops.mlp_in = mlp_in;
    w->pass.ops.mlp_out = mlp_out;
    w->pass.ops.head = head;
    w->pass.ops.sample = sample;
    w->pass.ops.copy = copy;
    w->pass.ops.wait = wait;
    *out_dev = &w->pass.base;
    return 0;
}

const int64_t *bench_watch_ns(const struct device *watch) {
    return ((const struct watch *)watch)->ns;
}

void bench_watch_reset(struct device *watch) {
    struct watch *w = self(watch);

    memset(w->ns, 0, sizeof(w->ns));
}
