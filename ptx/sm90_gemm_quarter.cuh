/* sm90_gemm_quarter - y = W x for few rows of x and short K in four segments: a warp a segment.
 *
 *   g         see sm90_gemm.h; out may be neither x nor weights; n_k is 64 STEPS
 *   grid      (eights of rows of W, eights of rows of x)
 *   block     128 threads
 *   shared    8 rows of W, then of each warp 8 rows of its segment of x, SM90_GEMM_QUARTER_LINE apart
 *   rounding  SPEC 2.4: chains of k16 steps, tree of fp32 additions, one rounding (or none)
 *   bound by  latency: x from L2, the steps of a segment, the join
 *
 * x is the left operand of mma.sync, 8 of its 16 rows, and 8 rows of W the right one.  A step adds 16
 * products exactly, so which of its 16 places a value of K has is free, if it is the same on both
 * sides: a lane has four adjacent ones of each row.  The weights come before the kernel before has
 * ended, those 8 rows of each block of K by a copy of their own.  x comes by whole lines,
 * for all blocks want the same of L2 at the same time. */
#ifndef LLM42D_PTX_SM90_GEMM_QUARTER_CUH
#define LLM42D_PTX_SM90_GEMM_QUARTER_CUH

#include "ptx/sm90_gemm.cuh"

enum {
    QUARTER_WARPS = 4,
    QUARTER_ROWS = SM90_GEMM_QUARTER_TOKENS,
    QUARTER_LINE_ROWS = 4, /* of x, a line of each by one load of a warp */
    QUARTER_AHEAD = 4,     /* steps whose x is on its way from shared memory */
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
    constexpr u32 CHUNKS = STEPS * 2, LINES = (CHUNKS + 7) / 8; /* of a row: 16 bytes, 128 */
    constexpr u32 LINE = SM90_GEMM_QUARTER_LINE(STEPS), HALVES = QUARTER_ROWS / QUARTER_LINE_ROWS;
    __shared__ float2 parts[QUARTER_WARPS - 1][32];
    __shared__ u64 barrier;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, line = lane / 4, q = lane % 4;
    const u32 full = sm90_shared(&barrier), weights = sm90_shared(quarter_dynamic);
    const u32 n = blockIdx.x * SM90_GEMM_ATOM_ROWS, rows = blockIdx.y * QUARTER_ROWS;
    const u32 row = rows + line, first = warp * STEPS;
    const bool low = row < g.n_rows;
    const u32 at = weights + first / 4 * QUARTER_BLOCK_BYTES + line * QUARTER_ROW_BYTES + q % 2 * 8;
    const u32 x = weights + STEPS * QUARTER_BLOCK_BYTES + warp * (QUARTER_ROWS * LINE);
    const u32 from_row = lane / 8, from_chunk = lane % 8;
    const char *from = (const char *)g.x +
                       ((u64)(rows + from_row) * g.x_stride + first * 16 + from_chunk * 8) * 2;
    const u32 to = x + from_row * LINE + from_chunk * 16;
    uint4 lines[HALVES][LINES];
    u32 v[STEPS][4], w[STEPS][2], old = 0;
    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};

    if (warp == 0) {
        const char *tile = (const char *)g.weights +
                           ((u64)(n / g.tile) * STEPS * g.tile + n % g.tile) * QUARTER_ROW_BYTES;

        if (lane == 0) {
            sm90_barrier_init(full, 1);
            sm90_barrier_init_done();
            sm90_barrier_expect(full, STEPS * QUARTER_BLOCK_BYTES);
        }
        __syncwarp();
        if (lane < STEPS)
            sm90_copy_policy(weights + lane * QUARTER_BLOCK_BYTES,
                             tile + lane * g.tile * QUARTER_ROW_BYTES, QUARTER_BLOCK_BYTES, full,
                             sm90_policy_evict_first());
        if (lane == 0) sm90_launch_next();
    }
    __syncthreads(); /* nobody waits at the barrier before it is made */
    sm90_wait_previous();
#pragma unroll
    for (u32 h = 0; h < HALVES; h++) {
        const u32 r = h * QUARTER_LINE_ROWS;

        if (rows + r >= g.n_rows) break;
#pragma unroll
        for (u32 i = 0; i < LINES; i++)
            lines[h][i] = sm90_fresh4_if(from + (u64)r * g.x_stride * 2 + i * 128,
                                         rows + r + from_row < g.n_rows &&
                                             i * 8 + from_chunk < CHUNKS);
    }
    if (warp == 0 && low && g.form == SM90_GEMM_ADD)
        old = sm90_fresh1((const u16 *)g.out + (u64)row * g.out_stride + n + q * 2);
    sm90_barrier_wait(full, 0);
#pragma unroll
    for (u32 s = 0; s < STEPS; s++) {
        const u32 step = s + (STEPS % 4 ? first % 4 : 0), chunk = step % 4 * 2 + q / 2;

        sm90_load2(w[s][0], w[s][1], at + step / 4 * QUARTER_BLOCK_BYTES + ((chunk ^ line) << 4));
    }
    /* Rows past the end stay as they are: they are rows of the product that nobody stores. */
#pragma unroll
    for (u32 h = 0; h < HALVES; h++) {
        if (rows + h * QUARTER_LINE_ROWS >= g.n_rows) break;
#pragma unroll
        for (u32 i = 0; i < LINES; i++)
            if (i * 8 + from_chunk < CHUNKS)
                sm90_store_shared(to + h * (QUARTER_LINE_ROWS * LINE) + i * 128, lines[h][i]);
    }
    __syncwarp(); /* this warp's rows are there */
#pragma unroll
    for (u32 s = 0; s < STEPS + QUARTER_AHEAD; s++) {
        if (s < STEPS) {
            sm90_load2(v[s][0], v[s][2], x + line * LINE + s * 32 + q * 8);
            v[s][1] = v[s][3] = 0;
        }
        if (s >= QUARTER_AHEAD)
            sm90_mma(c, v[s - QUARTER_AHEAD], w[s - QUARTER_AHEAD][0], w[s - QUARTER_AHEAD][1]);
    }
    if (warp > 0) {
        parts[warp - 1][lane] = make_float2(c[0], c[1]);
        sm90_named_arrive(1, 32 * QUARTER_WARPS);
        return;
    }
    sm90_named_sync(1, 32 * QUARTER_WARPS); /* sums of the others are there */
    const float2 p = parts[0][lane], r = parts[1][lane], t = parts[2][lane];

    if (low)
        quarter_put(g, row, n + q * 2, old, (c[0] + p.x) + (r.x + t.x),
                    (c[1] + p.y) + (r.y + t.y));
}

#endif
