// sm90_attn_bf16_alone64 - attention of single rows, few of them, heads of 64, a block to a split:
// see sm90_attn_spread.cuh.
#include "ptx/sm90_attn_spread.cuh"

extern "C" __global__ void __launch_bounds__(512, 1)
    sm90_attn_bf16_alone64(const __grid_constant__ struct sm90_attn a) {
    spread_run<64, 64>(a);
}
