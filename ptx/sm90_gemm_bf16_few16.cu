// sm90_gemm_bf16_few16 - y = W x in tiles of 16 rows of x: see sm90_gemm_few.cuh.
#include "ptx/sm90_gemm_few.cuh"

extern "C" __global__ void __launch_bounds__(320, 2)
    sm90_gemm_bf16_few16(const __grid_constant__ struct sm90_map map,
                         const __grid_constant__ struct sm90_gemm g) {
    few_run<16>(&map, g);
}
