// sm90_plain_attn_bf16 - attention of a row's query heads over paged keys (SPEC 2.7), heads of any
// multiple of 16 up to 256; short and slow, for models whose heads the fast kernels do not know.
//
//   out       bf16 [rows][n_heads head_dim]
//   qkv       bf16 [rows][(n_heads + 2 n_kv_heads) head_dim], q rotated
//   kv        the pages of one layer, laid out as ptx/sm90_attn.h and sm90_kv.h say
//   flagged   u8 [rows], set to 1 where SPEC 2.7.5 says so, else left
//   grid      (rows, n_kv_heads, ceil(n_heads / n_kv_heads / 8))      block (128, 1, 1)
//   shared    7 KB
//   rounding  bit-exact
//   bound by  latency of loads
#include "ptx/sm90_batch.h"
#include "ptx/sm90_kv.h"
#include "ptx/sm90_plain_mma.h"
#include "runtime/num.h"

enum { WARPS = 4, BLOCK = 128, HEADS = 8, TILES_MAX = 256 / 16 / WARPS };

#define M_START -0x1p20f

struct place {
    const unsigned *pages; // of the sequence
    unsigned kv_head, n_kv_heads, dim;
};

// Where the keys, or the values, of the position's page start.
static __device__ inline size_t page_at(const place &p, unsigned position, unsigned value) {
    return SM90_ATTN_PAGE_AT(p.pages[position / SM90_ATTN_PAGE], p.kv_head, value, p.n_kv_heads,
                             p.dim);
}

// 2^d for d <= 0; what is no number too comes to +0, its row is flagged anyway.
static __device__ inline float power(float d) {
    return d >= -126.0f ? num_pow2((int)d) : 0.0f;
}

static __device__ inline unsigned short weight(float x) {
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return num_to_bf16(y);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    sm90_plain_attn_bf16(unsigned short *__restrict__ out, const unsigned short *__restrict__ qkv,
                         const unsigned short *__restrict__ kv,
                         const batch_row *__restrict__ rows, const unsigned *__restrict__ pages,
                         unsigned n_seq_pages, unsigned n_heads, unsigned n_kv_heads, unsigned dim,
                         unsigned split_keys, float c, unsigned char *__restrict__ flagged) {
    __shared__ float scores[HEADS][BLOCK];
    __shared__ __align__(8) unsigned short p[HEADS][BLOCK];
    __shared__ float m[HEADS], l[HEADS], scale[HEADS], m_total[HEADS], l_total[HEADS],
        scale_old[HEADS], scale_new[HEADS];
    const batch_row row = rows[blockIdx.x];
    const unsigned n_shared = n_heads / n_kv_heads;
    const unsigned first_head = blockIdx.y * n_shared + blockIdx.z * HEADS;
    const unsigned n_left = n_shared - blockIdx.z * HEADS;
    const unsigned n = n_left < HEADS ? n_left : HEADS;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const unsigned short *q =
        qkv + (size_t)blockIdx.x * (n_heads + 2 * n_kv_heads) * dim + (size_t)first_head * dim;
    const place where = {pages + (size_t)row.seq * n_seq_pages, blockIdx.y, n_kv_heads, dim};
    const unsigned n_keys = row.position + 1, n_tiles = dim / 16;
    const uint2 none = make_uint2(0, 0);
    float o[TILES_MAX][4], total[TILES_MAX][4];

    if (row.seq == BATCH_NO_SEQ) return;
    for (int i = 0; i < TILES_MAX; i++)
        for (int j = 0; j < 4; j++) total[i][j] = 0.0f;
    if (threadIdx.x < HEADS) m_total[threadIdx.x] = M_START, l_total[threadIdx.x] = 0.0f;

    for (unsigned split = 0; split < n_keys; split += split_keys) {
        const unsigned end = split + split_keys < n_keys ? split + split_keys : n_keys;

        if (threadIdx.x < HEADS) m[threadIdx.x] = M_START, l[threadIdx.x] = 0.0f;
        for (int i = 0; i < TILES_MAX; i++)
            for (int j = 0; j < 4; j++) o[i][j] = 0.0f;

        for (unsigned start = split; start < end; start += BLOCK) {
            const unsigned n_here = end - start < BLOCK ? end - start : BLOCK;

            // scores: 32 keys a warp, as rows of a; query heads are the columns
            for (unsigned tile = warp * 2; tile < warp * 2 + 2; tile++) {
                const unsigned key = tile * 16 + g;
                const bool has_low = key < n_here, has_high = key + 8 < n_here;
                const unsigned short *low = has_low ? kv + page_at(where, start + key, 0) : kv;
                const unsigned short *high =
                    has_high ? kv + page_at(where, start + key + 8, 0) : kv;
                const unsigned slot = (start + key) % SM90_ATTN_PAGE;
                float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};

                for (unsigned i = 4 * t; i < dim; i += 16)
                    mma(s, has_low ? *(const uint2 *)(low + SM90_KV_AT(slot, i, dim)) : none,
                        has_high ? *(const uint2 *)(high + SM90_KV_AT(slot + 8, i, dim)) : none,
                        g < n ? *(const uint2 *)(q + g * dim + i) : none);
                scores[2 * t][key] = s[0];
                scores[2 * t + 1][key] = s[1];
                scores[2 * t][key + 8] = s[2];
                scores[2 * t + 1][key + 8] = s[3];
            }
            __syncthreads(); // all scores of the block are in place

            // the maximum, upward from the first key, and what was so far brought to it
            if (threadIdx.x < HEADS) {
                const unsigned h = threadIdx.x;
                float top = scores[h][0], next;

                for (unsigned i = 1; i < n_here; i++) top = num_max(top, scores[h][i]);
                next = num_max(m[h], floorf(top * c) + 1.0f);
                scale[h] = power(m[h] - next);
                m[h] = next;
                l[h] = l[h] * scale[h];
            }
            __syncthreads(); // the new maximum, read by all
            for (unsigned i = threadIdx.x; i < HEADS * BLOCK; i += 32 * WARPS) {
                const unsigned h = i / BLOCK, key = i % BLOCK;

                p[h][key] = key < n_here ? weight(num_fma(scores[h][key], c, -m[h])) : 0;
            }
            __syncthreads(); // all weights of the block are in place

            // l = chain(l, P, 1): every row of a is ones
            if (warp == 0) {
                const uint2 ones = make_uint2(0x3f803f80, 0x3f803f80);
                float sum[4] = {l[2 * t], l[2 * t + 1], l[2 * t], l[2 * t + 1]};

                for (unsigned i = 0; i < n_here; i += 16)
                    mma(sum, ones, ones, *(const uint2 *)&p[g][i + 4 * t]);
                __syncwarp(); // all lanes have read l
                if (g == 0) l[2 * t] = sum[0], l[2 * t + 1] = sum[1];
            }
            // O = chain(O, P, V): 16 values of d are the rows of a, a tile in turn to each warp
#pragma unroll
            for (int i = 0; i < TILES_MAX; i++) {
                const unsigned tile = i * WARPS + warp;

                if (tile >= n_tiles) break;
#pragma unroll
                for (int j = 0; j < 4; j++) o[i][j] = o[i][j] * scale[2 * t + j % 2];
                for (unsigned k = 0; k < n_here; k += 16) {
                    unsigned short v[2][4];

#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const unsigned key = k + 4 * t + j;
                        const bool is_key = key < n_here;
                        const unsigned short *from =
                            is_key ? kv + page_at(where, start + key, 1) : kv;
                        const unsigned slot = (start + key) % SM90_ATTN_PAGE, d = tile * 16 + g;

                        v[0][j] = is_key ? from[SM90_KV_AT(slot, d, dim)] : 0;
                        v[1][j] = is_key ? from[SM90_KV_AT(slot, d + 8, dim)] : 0;
                    }
                    mma(o[i],
                        make_uint2(v[0][0] | (unsigned)v[0][1] << 16,
                                   v[0][2] | (unsigned)v[0][3] << 16),
                        make_uint2(v[1][0] | (unsigned)v[1][1] << 16,
                                   v[1][2] | (unsigned)v[1][3] << 16),
                        *(const uint2 *)&p[g][k + 4 * t]);
                }
            }
            __syncthreads(); // weights, scores, l and the scale are free again
        }

        // fold the split
        if (threadIdx.x < HEADS) {
            const unsigned h = threadIdx.x;
            const float x = num_max(m_total[h], m[h]);

            scale_old[h] = power(m_total[h] - x);
            scale_new[h] = power(m[h] - x);
            m_total[h] = x;
            l_total[h] = num_fma(l[h], scale_new[h], l_total[h] * scale_old[h]);
        }
        __syncthreads(); // the factors are there
#pragma unroll
        for (int i = 0; i < TILES_MAX; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                total[i][j] = num_fma(o[i][j], scale_new[2 * t + j % 2],
                                      total[i][j] * scale_old[2 * t + j % 2]);
        __syncthreads(); // the factors are free again, and m and l
    }

    // divide, look, round
    bool fine = true;
#pragma unroll
    for (int i = 0; i < TILES_MAX; i++) {
        const unsigned tile = i * WARPS + warp;

        if (tile >= n_tiles) break;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const unsigned h = 2 * t + j % 2, d = tile * 16 + g + j / 2 * 8;
            // adding +0 makes every zero the same one
            const float r = total[i][j] * (1.0f / l_total[h]) + 0.0f;

            if (h >= n) continue;
            if (!(m_total[h] < 0x1p20f && l_total[h] > 0.0f && l_total[h] < NUM_INFINITY &&
                  r - r == 0.0f))
                fine = false;
            out[((size_t)blockIdx.x * n_heads + first_head + h) * dim + d] = num_to_bf16(r);
        }
    }
    if (!fine) flagged[blockIdx.x] = 1;
}
