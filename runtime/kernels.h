/* kernels - the table of kernels: one name for file, entry, table, bench and log.
 *
 * Owns:   nothing; the images are part of the program.
 * Thread: any.
 *
 * `make` links every file of ptx/ into the program and writes the table (ptx/kernels.mk): X.ptx
 * as the cubin that ptxas made of it, X.cu as one text for jit. */
#ifndef LLM42D_RUNTIME_KERNELS_H
#define LLM42D_RUNTIME_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kernel {
    const char *name;
    const char *image; /* a cubin, or text that ends in 0 */
    bool is_source;
};

uint32_t kernels_count(void);
const struct kernel *kernels_at(uint32_t index);

/* The index of a kernel, or kernels_count() where there is none of the name. */
uint32_t kernels_find(const char *name);

#endif
