// sm90_gemm_bf16_quarter24 - y = W x of up to 1536 values of K, a warp a segment of four: see sm90_gemm_quarter.cuh.
#include "ptx/sm90_gemm_quarter.cuh"

extern "C" __global__ void __launch_bounds__(128, 1)
    sm90_gemm_bf16_quarter24(const __grid_constant__ struct sm90_gemm g) {
    quarter_run<24>(g);
}
