// sm90_embed_bf16 - x[row] = table[token of the row] (SPEC 2.5).
//
//   x, table  bf16 [.][hidden], hidden a multiple of 16, 16-byte aligned, not overlapping
//   rows      {token, position, seq}, as struct device_row
//   grid      (n_rows, 1, 1)      block (128, 1, 1)
//   shared    none
//   rounding  none: bytes move
//   bound by  HBM, and at a few rows by one round trip to it
#include "ptx/sm90.cuh"
#include "ptx/sm90_batch.h"

extern "C" __global__ void __launch_bounds__(128)
    sm90_embed_bf16(uint4 *__restrict__ x, const uint4 *__restrict__ table,
                    const batch_row *__restrict__ rows, unsigned hidden) {
    sm90_wait_previous();
    sm90_launch_next();

    const unsigned n_vec = hidden / 8;
    const uint4 *from = table + (size_t)rows[blockIdx.x].token * n_vec;
    uint4 *to = x + (size_t)blockIdx.x * n_vec;

    for (unsigned i = threadIdx.x; i < n_vec; i += 128) to[i] = from[i];
}
