// sm90_silu_bf16 - h = silu(gate) * up (SPEC 2.8).
//
//   h         bf16 [rows][n]
//   gate_up   bf16 [rows][2 n], the gate's values first; n a multiple of 8, 16-byte aligned
//   grid      (ceil(n / 8 / 128), rows, 1)      block (128, 1, 1)
//   shared    none
//   rounding  bit-exact: silu to bf16, the product to bf16
//   bound by  HBM, 6 bytes a value
#include "runtime/num.h"

enum { THREADS = 128 };

static __device__ inline unsigned short one(unsigned gate, unsigned up) {
    const float s = num_from_bf16(num_to_bf16(num_silu(num_from_bits(gate << 16))));

    return num_to_bf16(s * num_from_bits(up << 16));
}

static __device__ inline unsigned two(unsigned gate, unsigned up) {
    return one(gate & 0xffff, up & 0xffff) | (unsigned)one(gate >> 16, up >> 16) << 16;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sm90_silu_bf16(uint4 *__restrict__ h, const uint4 *__restrict__ gate_up, unsigned n) {
    const unsigned n_vec = n / 8, i = blockIdx.x * THREADS + threadIdx.x;
    const uint4 *from = gate_up + (size_t)blockIdx.y * 2 * n_vec;

    if (i >= n_vec) return;
    const uint4 g = from[i], u = from[i + n_vec];
    h[(size_t)blockIdx.y * n_vec + i] =
        make_uint4(two(g.x, u.x), two(g.y, u.y), two(g.z, u.z), two(g.w, u.w));
}
