// sm90_random_bf16 - made-up values, each of its place alone: for models that are geometry only.
//
//   to        bf16 [n], values first .. first + n - 1 of a tensor
//   grid      any      block (256, 1, 1)
//   shared    none
//   rounding  base + scale * u, u uniform in -1 .. 1 by Philox of (seed, tensor, place), to bf16
//   bound by  the integer pipes, some 100 operations a value
#include "runtime/num.h"

enum { THREADS = 256 };

extern "C" __global__ void __launch_bounds__(THREADS)
    sm90_random_bf16(unsigned short *__restrict__ to, unsigned long long n,
                     unsigned long long first, unsigned long long seed, unsigned tensor, float base,
                     float scale) {
    const unsigned long long step = (unsigned long long)gridDim.x * THREADS;

    for (unsigned long long i = (unsigned long long)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += step) {
        const unsigned long long at = first + i;
        const unsigned word = num_random(seed + (at >> 32), tensor, (unsigned)at);
        const float u = (float)(word >> 8) * 0x1p-23f - 1.0f;

        to[i] = num_to_bf16(base + scale * u);
    }
}
