// sm90_attn_bf16_some64 - attention of up to 64 adjacent query rows, heads of 64: see
// sm90_attn_many.cuh.
#include "ptx/sm90_attn_many.cuh"

extern "C" __global__ void __launch_bounds__(160, 1)
    sm90_attn_bf16_some64(const __grid_constant__ struct sm90_attn a) {
    many_run<64, 1, 5>(a);
}
