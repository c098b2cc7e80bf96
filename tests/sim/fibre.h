/* fibre - a stack of its own that runs until it leaves, and goes on where it left.
 *
 * Owns:   stacks, of which those that were closed are used again.
 * Thread: one. */
#ifndef LLM42D_TESTS_SIM_FIBRE_H
#define LLM42D_TESTS_SIM_FIBRE_H

#include <stddef.h>

struct fibre {
    void *stack, *place;
};

/* `run` must not return. */
void fibre_open(struct fibre *f, size_t stack_bytes, void (*run)(void));
void fibre_close(struct fibre *f);

void fibre_enter(struct fibre *f); /* back when it leaves */
void fibre_leave(struct fibre *f); /* that runs */

#endif
