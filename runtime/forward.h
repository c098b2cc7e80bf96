/* forward - the launches of one step, in the order of the model (SPEC 2.9).
 *
 * Owns:   nothing.
 * Thread: engine thread only.
 * Fails:  -EIO, as the device. */
#ifndef LLM42D_RUNTIME_FORWARD_H
#define LLM42D_RUNTIME_FORWARD_H

#include <stdint.h>

struct device;
struct device_batch;
struct device_result;
struct err;
struct schedule;

/* Queues the batch, which is copied, through n_layers layers.  out_results: one a want;
 * out_flagged: one a row, 1 where the row left the range of the arithmetic (SPEC 2.7.5): filled
 * when the device's `wait` returns 0. */
int forward_start(struct device *dev, uint32_t n_layers, uint32_t n_logit_rows,
                  const struct device_batch *batch, const struct schedule *s,
                  struct device_result *out_results, uint8_t *out_flagged, struct err *e);

/* The same, and waits. */
int forward_run(struct device *dev, uint32_t n_layers, uint32_t n_logit_rows,
                const struct device_batch *batch, const struct schedule *s,
                struct device_result *out_results, uint8_t *out_flagged, struct err *e);

#endif
