// sm90_gemm_bf16_few8_nvrtc - sm90_gemm_bf16_few8.ptx by NVRTC, for comparison: see
// sm90_gemm_few.cuh.
#include "ptx/sm90_gemm_few.cuh"

extern "C" __global__ void __launch_bounds__(320, 2)
    sm90_gemm_bf16_few8_nvrtc(const __grid_constant__ struct sm90_map map,
                              const __grid_constant__ struct sm90_gemm g) {
    few_run<8>(&map, g);
}
