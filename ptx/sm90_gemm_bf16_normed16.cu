// sm90_gemm_bf16_normed16 - y = W norm(x, w) in a tile of 16 rows of x: see sm90_gemm_normed.cuh.
#include "ptx/sm90_gemm_normed.cuh"

extern "C" __global__ void __launch_bounds__(448, 1)
    sm90_gemm_bf16_normed16(const __grid_constant__ struct sm90_map map,
                            const __grid_constant__ struct sm90_gemm g,
                            const __grid_constant__ struct sm90_gemm_norm n) {
    normed_run<16>(&map, g, n);
}
