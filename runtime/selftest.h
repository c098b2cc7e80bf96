/* selftest - whether a device computes the contract's bits, asked before anything is served
 * (SPEC 7.8).
 *
 * Owns:   nothing; the built-in models are made up and loaded into the device one after another.
 * Thread: start-up only.
 * Fails:  -EPROTO  other bits than the contract's: the text has the first coordinate
 *         and what load and the steps of the device give */
#ifndef LLM42D_RUNTIME_SELFTEST_H
#define LLM42D_RUNTIME_SELFTEST_H

#include <stdint.h>

#include "runtime/sha256.h"

struct device;
struct device_limits;
struct err;
struct model;
struct weights;

/* The built-in models: small, of awkward shapes, chosen so that their steps pass through every
 * kernel of a device.  NULL past the last. */
const char *selftest_name(uint32_t index);

/* Loads the model and runs its steps; a digest of every row's residual stream, every choice and
 * every logprob. */
int selftest_digest(struct device *dev, uint32_t index, uint8_t out_digest[SHA256_BYTES],
                    struct err *e);

/* The first n_models of them against the digests of the contract, which are part of the program.
 * The device keeps the last model: what is to be served is loaded behind this. */
int selftest_builtin(struct device *dev, uint32_t n_models, struct err *e);

/* Of the model that `dev` has loaded from `w` with `limits`: a few rows through layer 0 and the
 * head, each stage against a CPU twin of these tensors alone.  Overwrites KV page 0. */
int selftest_model(struct device *dev, const struct model *m, struct weights *w,
                   const struct device_limits *limits, uint32_t n_threads, struct err *e);

#endif
