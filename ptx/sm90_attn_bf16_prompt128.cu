// sm90_attn_bf16_prompt128 - attention of long runs of rows, heads of 128: see sm90_attn_prompt.cuh.
#include "ptx/sm90_attn_prompt.cuh"

extern "C" __global__ void __launch_bounds__(384, 1)
    sm90_attn_bf16_prompt128(const __grid_constant__ struct sm90_attn a) {
    prompt_run<128>(a);
}
