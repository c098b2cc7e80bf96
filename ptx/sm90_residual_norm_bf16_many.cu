// sm90_residual_norm_bf16_many - x = x + y, then out = norm(x, w), of many rows (SPEC 2.5): rows that
// are on their way while others are dealt with keep memory busy.
//
//   out       bf16 [n_rows][n]
//   x         bf16 [n_rows][n], the residual stream; rewritten where y is not null
//   y         bf16 [n_rows][n], or null: nothing is added
//   w         bf16 [n]; no kernel ever writes it
//   n         a multiple of 8, at most 4096; all rows 16-byte aligned; out is neither x nor y
//   grid      any number of blocks, each takes rows in turn      block (SM90_NORM_MANY_THREADS, 1, 1)
//   shared    SM90_NORM_MANY_BYTES: a ring of rows of x, and of y where it is not null
//   rounding  bit-exact: squares joined by the tree over adjacent pairs, or by runs below it
//   bound by  HBM, 4 bytes a value, 8 where y is added
#include "ptx/sm90.cuh"
#include "ptx/sm90_norm.h"
#include "runtime/num.h"

enum { THREADS = SM90_NORM_MANY_THREADS, WARPS = THREADS / 32, VECTORS = SM90_NORM_MANY_VALUES / 8 / THREADS, CHUNKS = VECTORS * WARPS, STAGES_MAX = 8 };

struct words {
    u32 word[4]; // eight values
};

DEVICE float low(u32 word) {
    return num_from_bits(word << 16);
}

DEVICE float high(u32 word) {
    return num_from_bits(word & 0xffff0000);
}

DEVICE struct words load_shared(u32 at) {
    struct words v;

    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "r"(at)
                 : "memory");
    return v;
}

DEVICE void store_global(u16 *to, const struct words &v) {
    *(uint4 *)to = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
}

// Eight adjacent squares: runs upward, the tree above them.
DEVICE float squares(const struct words &v, u32 run) {
    float q[8];

#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        q[2 * i] = low(v.word[i]) * low(v.word[i]);
        q[2 * i + 1] = high(v.word[i]) * high(v.word[i]);
    }
    if (run == 8) return ((((((q[0] + q[1]) + q[2]) + q[3]) + q[4]) + q[5]) + q[6]) + q[7];
    if (run == 4) return (((q[0] + q[1]) + q[2]) + q[3]) + (((q[4] + q[5]) + q[6]) + q[7]);
    return ((q[0] + q[1]) + (q[2] + q[3])) + ((q[4] + q[5]) + (q[6] + q[7]));
}

// Over N adjacent lanes.
template <u32 N>
DEVICE float fold(float q) {
#pragma unroll
    for (u32 step = 1; step < N; step *= 2) q = q + __shfl_xor_sync(0xffffffff, q, step);
    return q;
}

DEVICE u32 scale(u32 x, u32 w, float r) {
    const u32 s = sm90_pack(low(x) * r, high(x) * r);

    return sm90_pack(low(w) * low(s), high(w) * high(s));
}

// By one thread: a row to a stage.
DEVICE void fetch(const u16 *x, const u16 *y, u64 row, u32 n, u32 stage, u32 full) {
    sm90_barrier_expect(full, (y ? 4 : 2) * n);
    sm90_copy(stage, x + row * n, 2 * n, full);
    if (y) sm90_copy(stage + 2 * n, y + row * n, 2 * n, full);
}

extern __shared__ __align__(16) unsigned char dynamic[];

extern "C" __global__ void __launch_bounds__(THREADS, 6)
    sm90_residual_norm_bf16_many(u16 *out, u16 *x, const u16 *y, const struct words *w, u32 n,
                                 u32 n_rows, float eps, u32 run) {
    __shared__ u64 barriers[STAGES_MAX];
    __shared__ float chunks[2][CHUNKS];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_vectors = n / 8;
    const u32 ring = sm90_shared(dynamic), full = sm90_shared(barriers);
    const u32 stage_bytes = (y ? 4 : 2) * n;
    const u32 n_stages = min((u32)STAGES_MAX, SM90_NORM_MANY_BYTES / stage_bytes);
    struct words v[VECTORS], scales[VECTORS] = {};
    u32 stage = 0, parities = 0; // of the stage's barrier, and which sums (2)

    if (threadIdx.x == 0) {
        for (u32 i = 0; i < n_stages; i++) sm90_barrier_init(full + 8 * i, 1);
        sm90_barrier_init_done();
    }
    if (threadIdx.x < 2 * CHUNKS) chunks[0][threadIdx.x] = 0.0f; // absent ones are +0
    for (u32 j = 0; j < VECTORS; j++) {
        const u32 i = j * THREADS + threadIdx.x;

        if (i < n_vectors) scales[j] = w[i];
    }
    __syncthreads(); // nobody touches a barrier before it is made
    sm90_wait_previous();
    sm90_launch_next();
    if (threadIdx.x == 0)
        for (u32 i = 0; i < n_stages && blockIdx.x + i * gridDim.x < n_rows; i++)
            fetch(x, y, blockIdx.x + i * gridDim.x, n, ring + i * stage_bytes, full + 8 * i);

    for (u32 row = blockIdx.x; row < n_rows; row += gridDim.x) {
        const u32 at = ring + stage * stage_bytes + threadIdx.x * 16;
        const u64 to = (u64)row * n + threadIdx.x * 8;

        // residual, and a sum a chunk: 32 adjacent vectors, one a lane
        sm90_barrier_wait(full + 8 * stage, parities & 1);
#pragma unroll
        for (u32 j = 0; j < VECTORS; j++) {
            float q = 0.0f;

            if (j * THREADS >= n_vectors) break;
            if (j * THREADS + threadIdx.x < n_vectors) {
                v[j] = load_shared(at + j * THREADS * 16);
                if (y) {
                    const struct words u = load_shared(at + j * THREADS * 16 + 2 * n);

#pragma unroll
                    for (u32 i = 0; i < 4; i++)
                        v[j].word[i] = sm90_pack(low(v[j].word[i]) + low(u.word[i]),
                                                 high(v[j].word[i]) + high(u.word[i]));
                    store_global(x + to + j * THREADS * 8, v[j]);
                }
                q = squares(v[j], run);
            }
            q = fold<32>(q);
            if (lane == 0) chunks[parities >> 1][j * WARPS + warp] = q;
        }
        __syncthreads(); // all chunks' sums are in place; the stage has been read

        if (threadIdx.x == 0 && row + n_stages * gridDim.x < n_rows)
            fetch(x, y, row + n_stages * gridDim.x, n, ring + stage * stage_bytes, full + 8 * stage);
        // the tree over chunks, in every warp alike; with two sets of them no second barrier
        const float sum = fold<CHUNKS>(chunks[parities >> 1][lane % CHUNKS]);
        const float r = 1.0f / num_sqrt(sum / (float)n + eps);

#pragma unroll
        for (u32 j = 0; j < VECTORS; j++) {
            if (j * THREADS + threadIdx.x >= n_vectors) break;
#pragma unroll
            for (u32 i = 0; i < 4; i++) v[j].word[i] = scale(v[j].word[i], scales[j].word[i], r);
            store_global(out + to + j * THREADS * 8, v[j]);
        }
        parities ^= 2;
        if (++stage < n_stages) continue;
        stage = 0;
        parities ^= 1;
    }
}
