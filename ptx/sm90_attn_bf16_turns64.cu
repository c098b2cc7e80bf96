// sm90_attn_bf16_turns64 - attention of up to 64 adjacent query rows, heads of 64, two warpgroups to
// the splits of a tile: see sm90_attn_turns.cuh.
#include "ptx/sm90_attn_turns.cuh"

extern "C" __global__ void __launch_bounds__(384, 1)
    sm90_attn_bf16_turns64(const __grid_constant__ struct sm90_attn a) {
    turns_run<64, 8>(a);
}
