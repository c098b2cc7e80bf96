// sm90_plain_gemm_bf16 - y = W x in segments of K (SPEC 2.4); short and slow, for tests.
//
//   y         [n_rows][n], bf16 or, where is_float, binary32
//   w         bf16 [n][k];  x  bf16 [n_rows][k]; k a multiple of 16, rows 16-byte aligned
//   grid      (ceil(n / 16), ceil(n_rows / 8), 1)      block (32 segments, 1, 1), at most 512
//   shared    512 bytes a segment
//   rounding  bit-exact: a chain a segment, one a warp; the tree over adjacent segments
//   bound by  latency of loads
#include "ptx/sm90_plain_mma.h"
#include "runtime/num.h"

extern "C" __global__ void __launch_bounds__(512)
    sm90_plain_gemm_bf16(void *__restrict__ y, const unsigned short *__restrict__ w,
                         const unsigned short *__restrict__ x, unsigned n, unsigned k,
                         unsigned n_rows, unsigned segment, unsigned is_float) {
    extern __shared__ float parts[]; // [segments][4][32]
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_segments = blockDim.x / 32;
    const unsigned g = lane / 4, t = lane % 4, column = blockIdx.x * 16 + g;
    const unsigned row = blockIdx.y * 8 + g;
    const unsigned from = warp * segment, to = from + segment < k ? from + segment : k;
    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};

    for (unsigned i = from; i < to; i += 16) {
        const uint2 none = make_uint2(0, 0);
        const unsigned at = i + 4 * t;
        const uint2 a_low = column < n ? *(const uint2 *)(w + (size_t)column * k + at) : none;
        const uint2 a_high =
            column + 8 < n ? *(const uint2 *)(w + (size_t)(column + 8) * k + at) : none;
        const uint2 b = row < n_rows ? *(const uint2 *)(x + (size_t)row * k + at) : none;

        mma(c, a_low, a_high, b);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) parts[(warp * 4 + i) * 32 + lane] = c[i];

    for (unsigned step = 1; step < n_segments; step *= 2) {
        __syncthreads(); // the sums of the level below are in place
        if (warp % (2 * step) == 0)
            for (int i = 0; i < 4; i++)
                parts[(warp * 4 + i) * 32 + lane] =
                    parts[(warp * 4 + i) * 32 + lane] + parts[((warp + step) * 4 + i) * 32 + lane];
    }
    if (warp > 0) return;
    for (int i = 0; i < 4; i++) {
        const unsigned to_column = column + i / 2 * 8, to_row = blockIdx.y * 8 + 2 * t + i % 2;
        const size_t at = (size_t)to_row * n + to_column;
        const float sum = parts[i * 32 + lane];

        if (to_column >= n || to_row >= n_rows) continue;
        if (is_float)
            ((float *)y)[at] = sum;
        else
            ((unsigned short *)y)[at] = num_to_bf16(sum);
    }
}
