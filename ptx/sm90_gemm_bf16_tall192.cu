// sm90_gemm_bf16_tall192 - y = W x in tiles of 192 rows of x and 192 of W: see sm90_gemm_many.cuh.
#include "ptx/sm90_gemm_many.cuh"

extern "C" __global__ void __launch_bounds__(512, 1)
    sm90_gemm_bf16_tall192(const __grid_constant__ struct sm90_map map,
                          const __grid_constant__ struct sm90_gemm g) {
    many_run<192, 4, 1, false, 3>(&map, g);
}
