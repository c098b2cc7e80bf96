// sm90_gemm_bf16_spread144 - y = W x in tiles of 144 rows of W and up to 256 of x, four segments over as many blocks: see sm90_gemm_spread.cuh.
#include "ptx/sm90_gemm_spread.cuh"

extern "C" __global__ void __launch_bounds__(384, 1)
    sm90_gemm_bf16_spread144(const __grid_constant__ struct sm90_map map,
                             const __grid_constant__ struct sm90_gemm g) {
    spread_run<144>(&map, g);
}
