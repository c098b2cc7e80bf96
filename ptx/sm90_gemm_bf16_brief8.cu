// sm90_gemm_bf16_brief8 - y = W norm(x, w) for up to 8 rows of x and short K: see sm90_gemm_brief.cuh.
#include "ptx/sm90_gemm_brief.cuh"

extern "C" __global__ void __launch_bounds__(256, 1)
    sm90_gemm_bf16_brief8(const __grid_constant__ struct sm90_gemm g,
                           const __grid_constant__ struct sm90_gemm_norm n) {
    brief_run<8>(g, n);
}
