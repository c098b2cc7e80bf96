/* bench_watch - a device that holds a watch over another: time by stage of the step.
 *
 * Owns:   the inner device, closed with it.
 * Thread: as device.h. */
#ifndef LLM42D_TOOLS_BENCH_WATCH_H
#define LLM42D_TOOLS_BENCH_WATCH_H

#include <stdint.h>

struct device;
struct err;

enum bench_stage {
    BENCH_EMBED, /* with upload */
    BENCH_ATTN_IN,
    BENCH_ATTEND,
    BENCH_ATTN_OUT,
    BENCH_MLP_IN,
    BENCH_MLP_OUT,
    BENCH_HEAD,
    BENCH_SAMPLE, /* with copy and wait */
    BENCH_STAGES,
};

const char *bench_stage_name(enum bench_stage s);

/* 0 and *out_dev; on -ENOMEM `inner` is closed. */
int bench_watch_open(struct device *inner, struct device **out_dev, struct err *e);
/* Nanoseconds by stage since the last reset; the array is the watch's own. */
const int64_t *bench_watch_ns(const struct device *watch);
void bench_watch_reset(struct device *watch);

#endif
