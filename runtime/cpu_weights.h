/* cpu_weights - a model's tensors as the CPU twin wants them: matrices in blocks of eight outputs.
 *
 * Owns:   the matrices, from load to close.
 * Thread: start-up only; what is loaded is read by any.
 * Fails:  -ENOTSUP a tensor is missing, has another shape, or is none of the model's: by name
 *         -ENOMEM  with the bytes and what they are for
 *         and what weights_read gives */
#ifndef LLM42D_RUNTIME_CPU_WEIGHTS_H
#define LLM42D_RUNTIME_CPU_WEIGHTS_H

#include <stdint.h>

#include "runtime/cpu_arena.h"
#include "runtime/cpu_gemm.h"

struct err;
struct model;
struct weights;

struct cpu_layer {
    struct cpu_matrix qkv; /* q, k and v one after another */
    struct cpu_matrix o;
    struct cpu_matrix gate_up; /* blocks of gate and of up in turn */
    struct cpu_matrix down;
    uint16_t *norm_in, *norm_post; /* [hidden] */
};

struct cpu_weights {
    struct cpu_arena arena; /* of all below but the table of layers */
    struct cpu_layer *layers;
    struct cpu_matrix head;
    uint16_t *norm_final; /* [hidden] */
    uint16_t *embed;      /* [vocab][hidden]; NULL if tied: then it is the head */
};

/* Nothing is read unless all tensors are what the model says. */
int cpu_weights_load(const struct model *m, struct weights *w, struct cpu_weights **out_weights,
                     struct err *e);
void cpu_weights_close(struct cpu_weights *cw);

#endif
