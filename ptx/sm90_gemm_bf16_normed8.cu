// sm90_gemm_bf16_normed8 - y = W norm(x, w) in a tile of 8 rows of x: see sm90_gemm_normed.cuh.
#include "ptx/sm90_gemm_normed.cuh"

extern "C" __global__ void __launch_bounds__(448, 1)
    sm90_gemm_bf16_normed8(const __grid_constant__ struct sm90_map map,
                            const __grid_constant__ struct sm90_gemm g,
                            const __grid_constant__ struct sm90_gemm_norm n) {
    normed_run<8>(&map, g, n);
}
