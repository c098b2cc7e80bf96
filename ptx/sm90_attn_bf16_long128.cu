// sm90_attn_bf16_long128 - attention of rows by themselves in many parts, heads of 128: see
// sm90_attn_few.cuh.
#include "ptx/sm90_attn_few.cuh"

extern "C" __global__ void __launch_bounds__(160, 2)
    sm90_attn_bf16_long128(const __grid_constant__ struct sm90_attn a) {
    few_run<128, true>(a);
}
