// sm90_attn_bf16_few64 - attention of single rows, heads of 64: see sm90_attn_few.cuh.
#include "ptx/sm90_attn_few.cuh"

extern "C" __global__ void __launch_bounds__(160, 2)
    sm90_attn_bf16_few64(const __grid_constant__ struct sm90_attn a) {
    few_run<64, false>(a);
}
