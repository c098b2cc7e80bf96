/* weights_ahead - the tensors of a model in its order, read, rounded and hashed by several threads
 * ahead of whoever takes them: a hash alone is slower than a disk.
 *
 * Owns:   its threads and what they have read, until close; weights and model are the caller's.
 * Thread: start-up only, one at a time.
 * Fails:  as weights_read, at the tensor where it fails
 *         -ENOMEM  of a tensor's bytes
 *
 *     weights_ahead_open(w, m, &a, e)
 *     weights_ahead_next(a, &values, e)  once for each tensor of model_tensor.h, in its order
 *     weights_ahead_close(a)             at any time
 *
 * So much is read ahead as an eighth of the model, 64 MiB at least. */
#ifndef LLM42D_RUNTIME_WEIGHTS_AHEAD_H
#define LLM42D_RUNTIME_WEIGHTS_AHEAD_H

#include <stdint.h>

struct err;
struct model;
struct weights;
struct weights_ahead;

/* Every tensor of the model is there: model_tensor_check said so.  0 or -ENOMEM; without a thread
 * to be had the caller's reads. */
int weights_ahead_open(struct weights *w, const struct model *m, struct weights_ahead **out_ahead,
                       struct err *e);
void weights_ahead_close(struct weights_ahead *a); /* NULL is fine */

/* The next tensor's values, bf16, valid until the next call or close. */
int weights_ahead_next(struct weights_ahead *a, const uint16_t **out_values, struct err *e);

#endif
