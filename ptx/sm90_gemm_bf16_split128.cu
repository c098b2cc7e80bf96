// sm90_gemm_bf16_split128 - y = W x in tiles of 128 rows of x and 128 of W, segments spread over pairs of blocks: see sm90_gemm_many.cuh.
#include "ptx/sm90_gemm_many.cuh"

static __device__ float4 split128_parts[PARTS];
static __device__ u32 split128_counts[2 * COUNTS];

extern "C" __global__ void __launch_bounds__(384, 1)
    sm90_gemm_bf16_split128(const __grid_constant__ struct sm90_map map,
                          const __grid_constant__ struct sm90_gemm g) {
    many_run<128, 6, 4, true>(&map, g, {split128_parts, split128_counts});
}
