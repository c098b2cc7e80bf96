// sm90_attn_bf16_pair128 - attention of single rows, few of them, heads of 128, 2 blocks to a split:
// see sm90_attn_spread.cuh.
#include "ptx/sm90_attn_spread.cuh"

extern "C" __global__ void __launch_bounds__(256, 1)
    sm90_attn_bf16_pair128(const __grid_constant__ struct sm90_attn a) {
    spread_run<128, 64>(a);
}
