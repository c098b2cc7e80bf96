// sm90_gemm_bf16_four32 - y = W x in tiles of 64 rows of x and 32 of W, a warpgroup a segment: see sm90_gemm_four.cuh.
#include "ptx/sm90_gemm_four.cuh"

extern "C" __global__ void __launch_bounds__(640, 1)
    sm90_gemm_bf16_four32(const __grid_constant__ struct sm90_map map,
                          const __grid_constant__ struct sm90_gemm g) {
    four_run<32, 3>(&map, g);
}
