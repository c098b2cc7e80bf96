#include "runtime/kernels.h"

#include <string.h>

#include "runtime/assert.h"

/* Written by make from the folder ptx/. */
extern const struct kernel kernels_table[];
extern const uint32_t kernels_table_count;

uint32_t kernels_count(void) {
    return kernels_table_count;
}

const struct kernel *kernels_at(uint32_t index) {
    ASSERT(index < kernels_table_count);
    return &kernels_table[index];
}

uint32_t kernels_find(const char *name) {
    uint32_t i = 0;

    while (i < kernels_table_count && strcmp(kernels_table[i].name, name) != 0) i++;
    return i;
}
