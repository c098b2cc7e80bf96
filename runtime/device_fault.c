#include "runtime/device_fault.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/err.h"

struct device_fault {
    struct device base;
    struct device_ops ops; /* those below, queueing as the inner device does */
    struct device *inner;
    struct device_fault_rules rules;
    uint64_t n_steps;
    bool lost;  /* by rules.before */
    bool tuned; /* the last head ran on another than the canonical schedule */

    /* The step's wants and positions, to know what a result stands for. */
    struct device_want *wants;
    uint32_t *positions;
    uint32_t n_wants;
    struct device_result *results; /* of the copy under way */
};

static struct device_fault *self(struct device *dev) {
    return (struct device_fault *)dev;
}

static void close_device(struct device *dev) {
    struct device_fault *f = self(dev);

    f->inner->ops->close(f->inner);
    free(f->wants);
    free(f->positions);
    free(f);
}

static int load(struct device *dev, const struct model *m, struct weights *w,
                const struct device_limits *limits, struct err *e) {
    struct device_fault *f = self(dev);

    if (f->rules.no_memory) return err_set(e, -ENOMEM, "weights: injected: no memory");

    free(f->wants);
    free(f->positions);
    f->wants = calloc(limits->n_wants, sizeof(f->wants[0]));
    f->positions = calloc(limits->n_wants, sizeof(f->positions[0]));
    if (!f->wants || !f->positions) return err_set(e, -ENOMEM, "fault wrapper");
    return f->inner->ops->load(f->inner, m, w, limits, e);
}

static int upload(struct device *dev, const struct device_batch *batch, struct err *e) {
    struct device_fault *f = self(dev);

    f->n_steps++;
    if (!f->lost && f->rules.before) f->lost = f->rules.before(f->rules.context);
    if (f->lost || (f->rules.lost_at_step && f->n_steps >= f->rules.lost_at_step))
        return err_set(e, -EIO, "injected: the device is lost");

    f->n_wants = batch->n_wants;
    memcpy(f->wants, batch->wants, batch->n_wants * sizeof(f->wants[0]));
    for (uint32_t i = 0; i < batch->n_wants; i++)
        f->positions[i] = batch->rows[batch->wants[i].row].position + 1;
    return f->inner->ops->upload(f->inner, batch, e);
}

static int embed(struct device *dev, struct err *e) {
    struct device *inner = self(dev)->inner;

    return inner->ops->embed(inner, e);
}

#define LAYER_STAGE(stage)                                                         \
    static int stage(struct device *dev, uint32_t layer, const struct schedule *s, \
                     struct err *e) {                                              \
        struct device *inner = self(dev)->inner;                                   \
                                                                                   \
        return inner->ops->stage(inner, layer, s, e);                              \
    }
LAYER_STAGE(attn_in)
LAYER_STAGE(attend)
LAYER_STAGE(attn_out)
LAYER_STAGE(mlp_in)
LAYER_STAGE(mlp_out)

static int head(struct device *dev, uint32_t first, uint32_t n, const struct schedule *s,
                struct err *e) {
    struct device_fault *f = self(dev);
    struct schedule canonical = schedule_canonical();

    f->tuned = !schedule_equal(s, &canonical);
    return f->inner->ops->head(f->inner, first, n, s, e);
}

static int sample(struct device *dev, uint32_t first, uint32_t n, struct err *e) {
    struct device *inner = self(dev)->inner;

    return inner->ops->sample(inner, first, n, e);
}

static int copy(struct device *dev, struct device_result *out_results, uint8_t *out_flagged,
                struct err *e) {
    struct device_fault *f = self(dev);

    f->results = out_results;
    return f->inner->ops->copy(f->inner, out_results, out_flagged, e);
}

static int wait_device(struct device *dev, struct err *e) {
    struct device_fault *f = self(dev);
    int r = f->inner->ops->wait(f->inner, e);

    for (uint32_t i = 0; i < f->n_wants && r == 0 && f->results; i++) {
        struct device_result *result = &f->results[i];

        if (f->rules.wrong && f->tuned)
            result->token =
                f->rules.wrong(f->rules.context, &f->wants[i], f->positions[i], result->token);
        if (f->rules.numeric && f->rules.numeric(f->rules.context, &f->wants[i], f->positions[i]))
            result->numeric = true;
    }
    return r;
}

static int read_buffer(struct device *dev, enum device_buffer buffer, uint32_t row, void *out,
                       struct err *e) {
    struct device *inner = self(dev)->inner;

    return inner->ops->read(inner, buffer, row, out, e);
}

static int write_buffer(struct device *dev, enum device_buffer buffer, uint32_t row, const void *in,
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
    const struct device *inner = ((const struct device_fault *)dev)->inner;

    inner->ops->describe(inner, text, n_bytes);
}

static void memory(const struct device *dev, uint64_t *out_weights, uint64_t *out_kv,
                   uint64_t *out_work) {
    const struct device *inner = ((const struct device_fault *)dev)->inner;

    inner->ops->memory(inner, out_weights, out_kv, out_work);
}

static const struct device_ops fault_ops = {
    .name = "fault",
    .close = close_device,
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
    .wait = wait_device,
    .read = read_buffer,
    .write = write_buffer,
    .read_kv = read_kv,
    .poison = poison,
    .describe = describe,
    .memory = memory,
};

int device_fault_open(struct device *inner, const struct device_fault_rules *rules,
                      struct device **out_dev, struct err *e) {
    struct device_fault *f = calloc(1, sizeof(*f));

    if (!f) {
        inner->ops->close(inner);
        return err_set(e, -ENOMEM, "fault wrapper");
    }
    f->ops = fault_ops;
    f->ops.queues = inner->ops->queues;
    f->base.ops = &f->ops;
    f->inner = inner;
    f->rules = *rules;
    *out_dev = &f->base;
    return 0;
}

void device_fault_set(struct device *dev, const struct device_fault_rules *rules) {
    self(dev)->rules = *rules;
}
