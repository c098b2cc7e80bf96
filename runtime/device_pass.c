#include "runtime/device_pass.h"

static struct device *inner_of(const struct device *dev) {
    return ((const struct device_pass *)dev)->inner;
}

static void close_inner(struct device *dev) {
    struct device *inner = inner_of(dev);

    inner->ops->close(inner);
}

static int load(struct device *dev, const struct model *m, struct weights *w,
                const struct device_limits *limits, struct err *e) {
    struct device *inner = inner_of(dev);

    return inner->ops->load(inner, m, w, limits, e);
}

static int room(struct device *dev, const struct model *m, const struct device_limits *limits,
                uint64_t *out_n_pages, struct err *e) {
    struct device *inner = inner_of(dev);

    return inner->ops->room(inner, m, limits, out_n_pages, e);
}

static int upload(struct device *dev, const struct device_batch *batch, struct err *e) {
    struct device *inner = inner_of(dev);

    return inner->ops->upload(inner, batch, e);
}

static int embed(struct device *dev, struct err *e) {
    struct device *inner = inner_of(dev);

    return inner->ops->embed(inner, e);
}

#define LAYER_STAGE(stage)                                                         \
    static int stage(struct device *dev, uint32_t layer, const struct schedule *s, \
                     struct err *e) {                                              \
        struct device *inner = inner_of(dev);                                      \
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
    struct device *inner = inner_of(dev);

    return inner->ops->head(inner, first, n, s, e);
}

static int sample(struct device *dev, uint32_t first, uint32_t n, struct err *e) {
    struct device *inner = inner_of(dev);

    return inner->ops->sample(inner, first, n, e);
}

static int copy(struct device *dev, struct device_result *out_results, uint8_t *out_flagged,
                struct err *e) {
    struct device *inner = inner_of(dev);

    return inner->ops->copy(inner, out_results, out_flagged, e);
}

static int wait_inner(struct device *dev, struct err *e) {
    struct device *inner = inner_of(dev);

    return inner->ops->wait(inner, e);
}

static int read_row(struct device *dev, enum device_buffer buffer, uint32_t row, void *out,
                    struct err *e) {
    struct device *inner = inner_of(dev);

    return inner->ops->read(inner, buffer, row, out, e);
}

static int write_row(struct device *dev, enum device_buffer buffer, uint32_t row, const void *in,
                     struct err *e) {
    struct device *inner = inner_of(dev);

    return inner->ops->write(inner, buffer, row, in, e);
}

static int read_kv(struct device *dev, uint32_t layer, uint32_t page, uint32_t slot,
                   uint32_t kv_head, uint16_t *out_k, uint16_t *out_v, struct err *e) {
    struct device *inner = inner_of(dev);

    return inner->ops->read_kv(inner, layer, page, slot, kv_head, out_k, out_v, e);
}

static int poison(struct device *dev, uint32_t page, uint16_t pattern, struct err *e) {
    struct device *inner = inner_of(dev);

    return inner->ops->poison(inner, page, pattern, e);
}

static void describe(const struct device *dev, char *text, size_t n_bytes) {
    const struct device *inner = inner_of(dev);

    inner->ops->describe(inner, text, n_bytes);
}

static void memory(const struct device *dev, uint64_t *out_weights, uint64_t *out_kv,
                   uint64_t *out_work) {
    const struct device *inner = inner_of(dev);

    inner->ops->memory(inner, out_weights, out_kv, out_work);
}

void device_pass_make(struct device_pass *p, struct device *inner) {
    p->ops = (struct device_ops){
        .name = inner->ops->name,
        .queues = inner->ops->queues,
        .close = close_inner,
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
        .wait = wait_inner,
        .read = read_row,
        .write = write_row,
        .read_kv = read_kv,
        .poison = poison,
        .describe = describe,
        .memory = memory,
    };
    p->base.ops = &p->ops;
    p->inner = inner;
}
