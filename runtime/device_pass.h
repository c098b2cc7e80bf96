/* device_pass - a device that passes every call on to another, for those who change a few.
 *
 * Owns:   the inner device, closed with it.
 * Thread: as device.h.
 *
 * First member of the wrapper's struct; the wrapper then puts its own operations into `ops`, and
 * calls the inner device's where it goes on. */
#ifndef LLM42D_RUNTIME_DEVICE_PASS_H
#define LLM42D_RUNTIME_DEVICE_PASS_H

#include "runtime/device.h"

struct device_pass {
    struct device base;
    struct device_ops ops;
    struct device *inner;
};

/* Every operation passes; it queues as the inner device does.  `close` closes the inner device and
 * frees nothing: a wrapper has its own. */
void device_pass_make(struct device_pass *p, struct device *inner);

#endif
