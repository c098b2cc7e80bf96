// sm90_attn_bf16_many128 - attention of up to 128 adjacent query rows, heads of 128: see
// sm90_attn_many.cuh.
#include "ptx/sm90_attn_many.cuh"

extern "C" __global__ void __launch_bounds__(384, 1)
    sm90_attn_bf16_many128(const __grid_constant__ struct sm90_attn a) {
    many_run<128, 2, 4>(a);
}
