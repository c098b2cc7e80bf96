/* sm90_gemm_quarter - y = W x for few rows of x and short K in four segments: a warp a segment.
 *
 *   g         see sm90_gemm.h; out may be neither x nor weights; n_k is 64 STEPS
 *   grid      (eights of rows of W, sixteens of rows of x)
 *   block     128 threads
 *   shared    8 rows of W
 *   rounding  SPEC 2.4: chains of k16 steps, tree of fp32 additions, one rounding (or none)
 *   bound by  latency: x from L2, the steps of a segment, the join
 *
 * x is the left operand of mma.sync, 16 rows, and 8 rows of W the right one.  A step adds 16 products
 * exactly, so which of its 16 places a value of K has is free, if it is the same on both sides: a
 * lane has four adjacent ones of each row, which is one load.  The weights come before the kernel
 * before has ended, those 8 rows of each block of K by a copy of their own. */
#ifndef LLM42D_PTX_SM90_GEMM_QUARTER_CUH
#define LLM42D_PTX_SM90_GEMM_QUARTER_CUH

#include "ptx/sm90_gemm.cuh"

enum {
    QUARTER_WARPS = 4,
    QUARTER_ROWS = SM90_GEMM_QUARTER_TOKENS,
    QUARTER_ROW_BYTES = 2 * SM90_GEMM_BLOCK,
    QUARTER_BLOCK_BYTES = SM90_GEMM_ATOM_ROWS * QUARTER_ROW_BYTES,
};

/* Two adjacent sums of a row of x, from column n of the output on. */
DEVICE void quarter_put(const struct sm90_gemm &g, u32 row, u32 n, u32 old, float a, float b) {
    const u64 at = (u64)row * g.out_stride + n;
    const u32 y = sm90_pack(a, b);

    if (g.form == SM90_GEMM_F32) {
        *(float2 *)((float *)g.out + at) = make_float2(a, b);
        return;
    }
    *(u32 *)((u16 *)g.out + at) = g.form == SM90_GEMM_ADD ? gemm_residual(old, y) : y;
}

extern __shared__ __align__(128) unsigned char quarter_dynamic[];

template <int STEPS> DEVICE void quarter_run(const struct sm90_gemm &g) {
    __shared__ float4 parts[QUARTER_WARPS - 1][32];
    __shared__ u64 barrier;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, line = lane / 4, q = lane % 4;
    const u32 full = sm90_shared(&barrier), weights = sm90_shared(quarter_dynamic);
    const u32 n = blockIdx.x * SM90_GEMM_ATOM_ROWS;
    const u32 row = blockIdx.y * QUARTER_ROWS + line, first = warp * STEPS;
    const bool low = row < g.n_rows, high = row + 8 < g.n_rows;
    const char *x = (const char *)g.x + ((u64)row * g.x_stride + first * 16 + q * 4) * 2;
    const u32 at = weights + first / 4 * QUARTER_BLOCK_BYTES + line * QUARTER_ROW_BYTES + q % 2 * 8;
    u32 v[STEPS][4], w[STEPS][2], old[2] = {0, 0};
    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};

    if (warp == 0) {
        const char *from = (const char *)g.weights +
                           ((u64)(n / g.tile) * STEPS * g.tile + n % g.tile) * QUARTER_ROW_BYTES;

        if (lane == 0) {
            sm90_barrier_init(full, 1);
            sm90_barrier_init_done();
            sm90_barrier_expect(full, STEPS * QUARTER_BLOCK_BYTES);
        }
        __syncwarp();
        if (lane < STEPS)
            sm90_copy_policy(weights + lane * QUARTER_BLOCK_BYTES,
                             from + lane * g.tile * QUARTER_ROW_BYTES, QUARTER_BLOCK_BYTES, full,
                             sm90_policy_evict_first());
        if (lane == 0) sm90_launch_next();
    }
    __syncthreads(); /* nobody waits at the barrier before it is made */
    sm90_wait_previous();
#pragma unroll
    for (u32 s = 0; s < STEPS; s++) {
        sm90_fresh2_if(v[s][0], v[s][2], x + s * 32, low);
        v[s][1] = v[s][3] = 0;
    }
    if (warp == 0 && low && g.form == SM90_GEMM_ADD)
        old[0] = sm90_fresh1((const u16 *)g.out + (u64)row * g.out_stride + n + q * 2);
    if (blockIdx.y * QUARTER_ROWS + 8 < g.n_rows) {
        x += 16 * g.x_stride; /* bytes to the row eight further on */
#pragma unroll
        for (u32 s = 0; s < STEPS; s++) sm90_fresh2_if(v[s][1], v[s][3], x + s * 32, high);
        if (warp == 0 && high && g.form == SM90_GEMM_ADD)
            old[1] = sm90_fresh1((const u16 *)g.out + (u64)(row + 8) * g.out_stride + n + q * 2);
    }
    sm90_barrier_wait(full, 0);
#pragma unroll
    for (u32 s = 0; s < STEPS; s++) {
        const u32 step = s + (STEPS % 4 ? first % 4 : 0), chunk = step % 4 * 2 + q / 2;

        sm90_load2(w[s][0], w[s][1], at + step / 4 * QUARTER_BLOCK_BYTES + ((chunk ^ line) << 4));
    }
#pragma unroll
    for (u32 s = 0; s < STEPS; s++) sm90_mma(c, v[s], w[s][0], w[s][1]);
    if (warp > 0) {
        parts[warp - 1][lane] = make_float4(c[0], c[1], c[2], c[3]);
        sm90_named_arrive(1, 32 * QUARTER_WARPS);
        return;
    }
    sm90_named_sync(1, 32 * QUARTER_WARPS); /* sums of the others are there */
    const float4 p = parts[0][lane], r = parts[1][lane], t = parts[2][lane];

    if (low)
        quarter_put(g, row, n + q * 2, old[0], (c[0] + p.x) + (r.x + t.x),
                    (c[1] + p.y) + (r.y + t.y));
    if (high)
        quarter_put(g, row + 8, n + q * 2, old[1], (c[2] + p.z) + (r.z + t.z),
                    (c[3] + p.w) + (r.w + t.w));
}

#endif
