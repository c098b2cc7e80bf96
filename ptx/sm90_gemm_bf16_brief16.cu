// sm90_gemm_bf16_brief16 - y = W norm(x, w) for up to 16 rows of x and short K: see sm90_gemm_brief.cuh.
#include "ptx/sm90_gemm_brief.cuh"

extern "C" __global__ void __launch_bounds__(512, 1)
    sm90_gemm_bf16_brief16(const __grid_constant__ struct sm90_gemm g,
                           const __grid_constant__ struct sm90_gemm_norm n) {
    brief_run<16>(g, n);
}
