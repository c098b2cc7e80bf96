/* model_tensor - the tensors of a model in one order, and whether a folder has them.
 *
 * Owns:   nothing.
 * Thread: start-up only.
 * Fails:  -ENOTSUP a tensor is missing, has another shape, or is none of the model's: by name
 *         -ENOMEM */
#ifndef LLM42D_RUNTIME_MODEL_TENSOR_H
#define LLM42D_RUNTIME_MODEL_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct model;
struct weights;

enum { MODEL_TENSOR_NAME_BYTES = 96 };

enum model_tensor_role {
    MODEL_NORM_IN,
    MODEL_Q,
    MODEL_K,
    MODEL_V,
    MODEL_O,
    MODEL_NORM_POST,
    MODEL_GATE,
    MODEL_UP,
    MODEL_DOWN,
    MODEL_LAYER_ROLES,
    MODEL_EMBED = MODEL_LAYER_ROLES,
    MODEL_NORM_FINAL,
    MODEL_HEAD,
    MODEL_ROLES,
};

/* [n][n_k], or [n_k] where n is 0: then it is the weights of a norm. */
struct model_tensor {
    enum model_tensor_role role;
    uint32_t layer; /* 0 where it is of none */
    uint32_t n, n_k;
    char name[MODEL_TENSOR_NAME_BYTES];
};

/* Layer by layer in the order of the roles, then the embedding, the last norm, and the head unless
 * it is tied; false past the last. */
bool model_tensor_at(const struct model *m, uint32_t index, struct model_tensor *out);

/* Values of it. */
uint64_t model_tensor_values(const struct model_tensor *t);
uint64_t model_tensor_values_max(const struct model *m); /* of the largest */

/* Every tensor of the model is there and has its shape. */
int model_tensor_check(const struct model *m, const struct weights *w, struct err *e);

/* No other is there, but what older folders have for no use and a tied head written out. */
int model_tensor_check_others(const struct model *m, const struct weights *w, struct err *e);

#endif
