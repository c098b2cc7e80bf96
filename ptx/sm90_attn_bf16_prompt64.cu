// sm90_attn_bf16_prompt64 - attention of long runs of rows, heads of 64: see sm90_attn_prompt.cuh.
#include "ptx/sm90_attn_prompt.cuh"

extern "C" __global__ void __launch_bounds__(384, 1)
    sm90_attn_bf16_prompt64(const __grid_constant__ struct sm90_attn a) {
    prompt_run<64>(a);
}
