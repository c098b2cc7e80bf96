/* device_fault - a device that goes wrong on request, around one that does not.  For tests.
 *
 * Owns:   the inner device, closed with it.
 * Thread: as device.h; rules may be changed between steps only.
 *
 * What it does to a result it does where the fast path could be wrong: after the device, before
 * the engine looks.  So the verifier, the commit and the roll back are the real ones. */
#ifndef LLM42D_RUNTIME_DEVICE_FAULT_H
#define LLM42D_RUNTIME_DEVICE_FAULT_H

#include <stdint.h>

#include "runtime/device.h"

struct device_fault_rules {
    /* The token that a row of a tuned step gives, instead of `token`; NULL: as it is. */
    uint32_t (*wrong)(void *context, const struct device_want *want, uint32_t position,
                      uint32_t token);
    /* Whether this row, of any step, left the range of the arithmetic; NULL: as it is. */
    bool (*numeric)(void *context, const struct device_want *want, uint32_t position);
    /* Before each step, in the thread that takes it: may be long about it, and true loses the device.
     * NULL: nothing. */
    bool (*before)(void *context);
    void *context;
    uint64_t lost_at_step; /* that upload and all after it fail with -EIO; 0: never */
    bool no_memory;        /* load fails with -ENOMEM */
};

/* 0 and *out_dev; on -ENOMEM `inner` is closed. */
int device_fault_open(struct device *inner, const struct device_fault_rules *rules,
                      struct device **out_dev, struct err *e);
void device_fault_set(struct device *dev, const struct device_fault_rules *rules);

#endif
