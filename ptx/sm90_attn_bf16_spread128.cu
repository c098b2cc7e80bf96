// sm90_attn_bf16_spread128 - attention of single rows, few of them, heads of 128, 4 blocks to a split:
// see sm90_attn_spread.cuh.
#include "ptx/sm90_attn_spread.cuh"

extern "C" __global__ void __launch_bounds__(256, 2)
    sm90_attn_bf16_spread128(const __grid_constant__ struct sm90_attn a) {
    spread_run<128, 32>(a);
}
