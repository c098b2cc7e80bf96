/* cuda_sample - who chooses the tokens of a step: a cluster a row, or all blocks all rows.
 *
 * Owns:   nothing; d is the device's.
 * Thread: the device's.
 * Fails:  as cuda_driver_check.
 *
 * A cluster keeps its row's logits in shared memory, and its blocks meet at its own barriers: few rows
 * are through soonest so.  Many rows fill the GPU anyhow. */
#ifndef LLM42D_RUNTIME_CUDA_SAMPLE_H
#define LLM42D_RUNTIME_CUDA_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

struct batch_want;
struct cuda_device;
struct err;

/* Whether a cluster finds a place on this GPU: to d->can_spread. */
int cuda_sample_open(struct cuda_device *d, struct err *e);

/* Whether the choice weighs a whole row of `vocab` logits, which one block is long at. */
bool cuda_sample_weighs(const struct batch_want *want, uint32_t vocab);

/* Blocks of a row's cluster, or 0: rows are dealt to all blocks.  `weighs`: some row's choice does.
 * Pure. */
uint32_t cuda_sample_ranks(uint32_t n_rows, bool weighs, uint32_t n_chunks, bool has_place);

#endif
