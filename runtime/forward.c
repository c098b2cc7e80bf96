#include "runtime/forward.h"

#include "runtime/device.h"

static int layer(struct device *dev, uint32_t l, const struct schedule *s, struct err *e) {
    const struct device_ops *ops = dev->ops;
    int r;

    if ((r = ops->attn_in(dev, l, s, e)) < 0) return r;
    if ((r = ops->attend(dev, l, s, e)) < 0) return r;
    if ((r = ops->attn_out(dev, l, s, e)) < 0) return r;
    if ((r = ops->mlp_in(dev, l, s, e)) < 0) return r;
    return ops->mlp_out(dev, l, s, e);
}

int forward_start(struct device *dev, uint32_t n_layers, uint32_t n_logit_rows,
                  const struct device_batch *batch, const struct schedule *s,
                  struct device_result *out_results, uint8_t *out_flagged, struct err *e) {
    const struct device_ops *ops = dev->ops;
    int r;

    if ((r = ops->upload(dev, batch, e)) < 0) return r;
    if ((r = ops->embed(dev, e)) < 0) return r;
    for (uint32_t l = 0; l < n_layers; l++)
        if ((r = layer(dev, l, s, e)) < 0) return r;

    for (uint32_t first = 0; first < batch->n_wants; first += n_logit_rows) {
        uint32_t n = batch->n_wants - first < n_logit_rows ? batch->n_wants - first : n_logit_rows;

        if ((r = ops->head(dev, first, n, s, e)) < 0) return r;
        if ((r = ops->sample(dev, first, n, e)) < 0) return r;
    }
    return ops->copy(dev, out_results, out_flagged, e);
}

int forward_run(struct device *dev, uint32_t n_layers, uint32_t n_logit_rows,
                const struct device_batch *batch, const struct schedule *s,
                struct device_result *out_results, uint8_t *out_flagged, struct err *e) {
    int r = forward_start(dev, n_layers, n_logit_rows, batch, s, out_results, out_flagged, e);

    return r < 0 ? r : dev->ops->wait(dev, e);
}
