// sm90_attn_bf16_turns128 - attention of up to 64 adjacent query rows, heads of 128, two warpgroups to
// the splits of a tile: see sm90_attn_turns.cuh.
#include "ptx/sm90_attn_turns.cuh"

extern "C" __global__ void __launch_bounds__(384, 1)
    sm90_attn_bf16_turns128(const __grid_constant__ struct sm90_attn a) {
    turns_run<128, 5>(a);
}
