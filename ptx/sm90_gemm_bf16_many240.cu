// sm90_gemm_bf16_many240 - y = W x in tiles of 128 rows of x and 240 of W: see sm90_gemm_many.cuh.
#include "ptx/sm90_gemm_many.cuh"

extern "C" __global__ void __launch_bounds__(384, 1)
    sm90_gemm_bf16_many240(const __grid_constant__ struct sm90_map map,
                          const __grid_constant__ struct sm90_gemm g) {
    many_run<240, 4, 1, false>(&map, g);
}
