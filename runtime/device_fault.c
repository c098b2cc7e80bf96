#include "runtime/device_fault.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device_pass.h"
#include "runtime/err.h"

struct device_fault {
    struct device_pass pass;
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

    f->pass.inner->ops->close(f->pass.inner);
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
    return f->pass.inner->ops->load(f->pass.inner, m, w, limits, e);
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
    return f->pass.inner->ops->upload(f->pass.inner, batch, e);
}

static int head(struct device *dev, uint32_t first, uint32_t n, const struct schedule *s,
                struct err *e) {
    struct device_fault *f = self(dev);
    struct schedule canonical = schedule_canonical();

    f->tuned = !schedule_equal(s, &canonical);
    return f->pass.inner->ops->head(f->pass.inner, first, n, s, e);
}

static int copy(struct device *dev, struct device_result *out_results, uint8_t *out_flagged,
                struct err *e) {
    struct device_fault *f = self(dev);

    f->results = out_results;
    return f->pass.inner->ops->copy(f->pass.inner, out_results, out_flagged, e);
}

static int wait_device(struct device *dev, struct err *e) {
    struct device_fault *f = self(dev);
    int r = f->pass.inner->ops->wait(f->pass.inner, e);

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

int device_fault_open(struct device *inner, const struct device_fault_rules *rules,
                      struct device **out_dev, struct err *e) {
    struct device_fault *f = calloc(1, sizeof(*f));

    if (!f) {
        inner->ops->close(inner);
        return err_set(e, -ENOMEM, "fault wrapper");
    }
    device_pass_make(&f->pass, inner);
    f->pass.ops.close = close_device;
    f->pass.ops.load = load;
    f->pass.ops.upload = upload;
    f->pass.ops.head = head;
    f->pass.ops.copy = copy;
    f->pass.ops.wait = wait_device;
    f->rules = *rules;
    *out_dev = &f->pass.base;
    return 0;
}

void device_fault_set(struct device *dev, const struct device_fault_rules *rules) {
    self(dev)->rules = *rules;
}
