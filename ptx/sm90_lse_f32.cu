// sm90_lse_f32 - of each chunk of 128 logits the maximum and the sum of exponentials (SPEC 2.10).
//
//   chunks    {max, sum} [gridDim.y][n_chunks]; a NaN logit counts as -infinity in the maximum
//   logits    f32 [gridDim.y][stride], the first vocab of a row, 16-byte aligned
//   grid      (ceil(n_chunks / 8), rows, 1)      block (256, 1, 1), a warp a chunk
//   shared    none
//   rounding  bit-exact: exp2p of num.h, the tree over adjacent ids
//   bound by  HBM, 4 bytes a logit
#include "ptx/sm90.cuh"
#include "ptx/sm90_batch.h"
#include "runtime/num.h"

enum { WARPS = 8, CHUNK = 128 };

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    sm90_lse_f32(batch_chunk *__restrict__ chunks, const float *__restrict__ logits, unsigned vocab,
                 unsigned stride, unsigned n_chunks) {
    sm90_wait_previous();
    sm90_launch_next();

    const unsigned lane = threadIdx.x % 32, chunk = blockIdx.x * WARPS + threadIdx.x / 32;
    const unsigned id = chunk * CHUNK + 4 * lane;
    const float *from = logits + (size_t)blockIdx.y * stride;
    const float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
    const float4 four = id < vocab ? *(const float4 *)(from + id) : none;
    float v[4] = {four.x, four.y, four.z, four.w}, max = -NUM_INFINITY, exponent;

    if (chunk >= n_chunks) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (id + i >= vocab) v[i] = -NUM_INFINITY;
        max = num_max(max, v[i]);
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) max = num_max(max, __shfl_xor_sync(~0u, max, step));
    exponent = floorf(max * NUM_LOG2E) + 1.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = num_exp2(num_fma(v[i], NUM_LOG2E, -exponent));
    v[0] = (v[0] + v[1]) + (v[2] + v[3]);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) v[0] = v[0] + __shfl_xor_sync(~0u, v[0], step);
    if (lane == 0) {
        batch_chunk *to = chunks + (size_t)blockIdx.y * n_chunks + chunk;

        to->max = max;
        to->sum = v[0];
    }
}
