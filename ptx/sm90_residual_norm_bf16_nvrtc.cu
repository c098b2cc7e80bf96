// sm90_residual_norm_bf16_nvrtc - x = x + y, then out = norm(x, w), one row a block (SPEC 2.5).
//
//   out       bf16 [gridDim.x][n], written where w is not null
//   x         bf16 [.][n], the residual stream; rewritten where y is not null
//   y         bf16 [gridDim.x][n], or null: nothing is added
//   w         bf16 [n], or null: nothing is normed
//   wants     null: block i takes row i of x and y; else row wants[i].row of x, and y is null
//   n         a multiple of 16, at most 65536; all rows 16-byte aligned; out is neither x nor y
//   grid      (rows, 1, 1)      block (256, 1, 1)
//   shared    1 KB
//   rounding  bit-exact: squares joined by the tree over adjacent pairs, or by runs below it
//   bound by  HBM at many rows; at few by two barriers and three trips to L2
#include "ptx/sm90.cuh"
#include "ptx/sm90_batch.h"
#include "runtime/num.h"

enum { THREADS = 256, VECTOR = 8, CHUNK = 32 * VECTOR, CHUNKS_MAX = 65536 / CHUNK };

struct vector {
    unsigned word[4];
};

static __device__ inline float low(unsigned word) {
    return num_from_bits(word << 16);
}

static __device__ inline float high(unsigned word) {
    return num_from_bits(word & 0xffff0000u);
}

static __device__ inline unsigned add(unsigned a, unsigned b) {
    return num_to_bf16(low(a) + low(b)) | (unsigned)num_to_bf16(high(a) + high(b)) << 16;
}

static __device__ inline unsigned scale(unsigned x, unsigned w, float r) {
    float l = low(w) * num_from_bf16(num_to_bf16(low(x) * r));
    float h = high(w) * num_from_bf16(num_to_bf16(high(x) * r));

    return num_to_bf16(l) | (unsigned)num_to_bf16(h) << 16;
}

// Eight adjacent squares: runs upward, the tree above them.
static __device__ inline float squares(const vector &v, unsigned run) {
    float q[VECTOR];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        q[2 * i] = low(v.word[i]) * low(v.word[i]);
        q[2 * i + 1] = high(v.word[i]) * high(v.word[i]);
    }
    if (run == 8)
        return ((((((q[0] + q[1]) + q[2]) + q[3]) + q[4]) + q[5]) + q[6]) + q[7];
    if (run == 4) return (((q[0] + q[1]) + q[2]) + q[3]) + (((q[4] + q[5]) + q[6]) + q[7]);
    return ((q[0] + q[1]) + (q[2] + q[3])) + ((q[4] + q[5]) + (q[6] + q[7]));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sm90_residual_norm_bf16_nvrtc(vector *__restrict__ out, vector *x, const vector *__restrict__ y,
                            const vector *__restrict__ w, const batch_want *__restrict__ wants,
                            unsigned n, float eps, unsigned run) {
    __shared__ float chunks[CHUNKS_MAX];
    __shared__ float total;

    sm90_wait_previous();
    sm90_launch_next();

    const unsigned n_vec = n / VECTOR, lane = threadIdx.x % 32;
    const unsigned row = wants ? wants[blockIdx.x].row : blockIdx.x;
    vector *x_row = x + (size_t)row * n_vec;

    // residual, and a sum a chunk: 32 adjacent vectors, one a lane
    for (unsigned first = 0; first < n_vec; first += THREADS) {
        const unsigned i = first + threadIdx.x;
        float q = 0.0f;

        if (i < n_vec) {
            vector v = x_row[i];

            if (y) {
                vector u = y[(size_t)blockIdx.x * n_vec + i];

#pragma unroll
                for (int j = 0; j < 4; j++) v.word[j] = add(v.word[j], u.word[j]);
                x_row[i] = v;
            }
            q = squares(v, run);
        }
#pragma unroll
        for (int step = 1; step < 32; step *= 2) q = q + __shfl_xor_sync(~0u, q, step);
        if (lane == 0 && i < n_vec) chunks[i / 32] = q;
    }
    if (!w) return;
    __syncthreads(); // all chunks' sums are in place

    // the tree over chunks, absent ones +0: eight adjacent ones a lane
    if (threadIdx.x < 32) {
        const unsigned n_chunks = (n_vec + 31) / 32;
        float q[8];

#pragma unroll
        for (int j = 0; j < 8; j++) {
            const unsigned c = lane * 8 + j;

            q[j] = c < n_chunks ? chunks[c] : 0.0f;
        }
        q[0] = ((q[0] + q[1]) + (q[2] + q[3])) + ((q[4] + q[5]) + (q[6] + q[7]));
#pragma unroll
        for (int step = 1; step < 32; step *= 2)
            q[0] = q[0] + __shfl_xor_sync(~0u, q[0], step);
        if (lane == 0) total = 1.0f / num_sqrt(q[0] / (float)n + eps);
    }
    __syncthreads(); // the factor is there

    for (unsigned i = threadIdx.x; i < n_vec; i += THREADS) {
        const vector v = x_row[i], u = w[i];
        vector to;

#pragma unroll
        for (int j = 0; j < 4; j++) to.word[j] = scale(v.word[j], u.word[j], total);
        out[(size_t)blockIdx.x * n_vec + i] = to;
    }
}
