// sm90_rotary_bf16 - rotates q and k of a row in place and stores k and v in its page (SPEC 2.6).
//
//   qkv       bf16 [gridDim.x][(n_heads + 2 n_kv_heads) head_dim]
//   kv        the pages of one layer, laid out as ptx/sm90_attn.h and sm90_kv.h say
//   cos, sin  bf16 [.][head_dim / 2]
//   pages     u32 [.][n_seq_pages]
//   turned    1: heads of q and k come in turns of eight values, of the first half and of the second;
//             head_dim / 16 is a power of two up to 32 then, so that a head is within one warp
//   grid      (rows, 2, 1)      block (256, 1, 1)
//   shared    none
//   rounding  bit-exact: products exact, one addition rounded, then bf16
//   bound by  latency: three dependent reads of global memory; all accesses are 16 bytes wide
#include "ptx/sm90.cuh"
#include "ptx/sm90_batch.h"
#include "ptx/sm90_kv.h"
#include "ptx/sm90_rotary.cuh"

enum { THREADS = 256 };

extern "C" __global__ void __launch_bounds__(THREADS)
    sm90_rotary_bf16(unsigned short *qkv, unsigned short *__restrict__ kv, const unsigned short *__restrict__ cos,
                     const unsigned short *__restrict__ sin, const batch_row *__restrict__ rows,
                     const unsigned *__restrict__ pages, unsigned n_seq_pages, unsigned n_heads,
                     unsigned n_kv_heads, unsigned dim, unsigned turned) {
    sm90_wait_previous();
    sm90_launch_next();

    const batch_row row = rows[blockIdx.x];
    const unsigned half = dim / 2, n_vec = half / 8; // vectors of a half
    const unsigned n_rotated = (n_heads + n_kv_heads) * n_vec, n_values = 2 * n_kv_heads * n_vec;
    unsigned short *at = qkv + (size_t)blockIdx.x * (n_heads + 2 * n_kv_heads) * dim;

    if (row.seq == BATCH_NO_SEQ) return;
    const unsigned page = pages[(size_t)row.seq * n_seq_pages + row.position / SM90_ATTN_PAGE];
    const unsigned slot = row.position % SM90_ATTN_PAGE;

    // eight pairs of a head a turn, the k heads after the q heads; then eight of v
    for (unsigned i = blockIdx.y * THREADS + threadIdx.x; i < n_rotated + n_values;
         i += 2 * THREADS) {
        if (i < n_rotated) {
            const unsigned head = i / n_vec, j = i % n_vec * 8;
            const size_t table = (size_t)row.position * half + j;
            uint4 *low_at = (uint4 *)(at + head * dim + j);
            uint4 *high_at = (uint4 *)(at + head * dim + j + half);
            const uint4 *from = turned ? (const uint4 *)(at + head * dim + 2 * j) : low_at;
            uint4 low = from[0], high = turned ? from[1] : *high_at;

            rotary_eight(low, high, *(const uint4 *)(cos + table), *(const uint4 *)(sin + table));
            // all of the head was read; its lanes are neighbours
            if (turned) __syncwarp((n_vec == 32 ? ~0u : (1u << n_vec) - 1)
                                   << (threadIdx.x % 32 / n_vec * n_vec));
            *low_at = low;
            *high_at = high;
            if (head >= n_heads) {
                unsigned short *to =
                    kv + SM90_ATTN_PAGE_AT(page, head - n_heads, 0, n_kv_heads, dim);

                *(uint4 *)(to + SM90_KV_AT(slot, j, dim)) = low;
                *(uint4 *)(to + SM90_KV_AT(slot, j + half, dim)) = high;
            }
        } else {
            const unsigned v = (i - n_rotated) * 8, head = v / dim, j = v % dim;
            unsigned short *to = kv + SM90_ATTN_PAGE_AT(page, head, 1, n_kv_heads, dim);

            *(uint4 *)(to + SM90_KV_AT(slot, j, dim)) =
                *(const uint4 *)(at + (n_heads + n_kv_heads) * dim + v);
        }
    }
}
