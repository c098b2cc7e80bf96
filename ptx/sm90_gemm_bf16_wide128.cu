// sm90_gemm_bf16_wide128 - y = W x in tiles of 256 rows of W and up to 128 of x: see sm90_gemm_wide.cuh.
#include "ptx/sm90_gemm_wide.cuh"

extern "C" __global__ void __launch_bounds__(640, 1)
    sm90_gemm_bf16_wide128(const __grid_constant__ struct sm90_map map,
                          const __grid_constant__ struct sm90_gemm g) {
    wide_run<128, 4, 4>(&map, g);
}
