// sm90_rotary_bf16 - rotates q and k of a row in place and stores k and v in its page (SPEC 2.6).
//
//   qkv       bf16 [gridDim.x][(n_heads + 2 n_kv_heads) head_dim]
//   kv        the pages of one layer, laid out as ptx/sm90_attn.h and sm90_kv.h say
//   cos, sin  bf16 [.][head_dim / 2]
//   pages     u32 [.][n_seq_pages]
//   grid      (rows, 1, 1)      block (256, 1, 1)
//   shared    none
//   rounding  bit-exact: products exact, one addition rounded, then bf16
//   bound by  latency: three dependent reads of global memory
#include "ptx/sm90_batch.h"
#include "ptx/sm90_kv.h"
#include "runtime/num.h"

enum { THREADS = 256 };

extern "C" __global__ void __launch_bounds__(THREADS)
    sm90_rotary_bf16(unsigned short *qkv, unsigned short *__restrict__ kv, const unsigned short *__restrict__ cos,
                     const unsigned short *__restrict__ sin, const batch_row *__restrict__ rows,
                     const unsigned *__restrict__ pages, unsigned n_seq_pages, unsigned n_heads,
                     unsigned n_kv_heads, unsigned dim) {
    const batch_row row = rows[blockIdx.x];
    const unsigned half = dim / 2, n_rotated = (n_heads + n_kv_heads) * half;
    unsigned short *at = qkv + (size_t)blockIdx.x * (n_heads + 2 * n_kv_heads) * dim;
    unsigned page, slot;

    if (row.seq == BATCH_NO_SEQ) return;
    page = pages[(size_t)row.seq * n_seq_pages + row.position / SM90_ATTN_PAGE];
    slot = row.position % SM90_ATTN_PAGE;

    // a pair of a head a turn; the k heads come after the q heads
    for (unsigned i = threadIdx.x; i < n_rotated; i += THREADS) {
        const unsigned head = i / half, j = i % half;
        const float c = num_from_bf16(cos[(size_t)row.position * half + j]);
        const float s = num_from_bf16(sin[(size_t)row.position * half + j]);
        const float low = num_from_bf16(at[head * dim + j]);
        const float high = num_from_bf16(at[head * dim + j + half]);
        const unsigned short r_low = num_to_bf16(low * c - high * s);
        const unsigned short r_high = num_to_bf16(high * c + low * s);

        at[head * dim + j] = r_low;
        at[head * dim + j + half] = r_high;
        if (head >= n_heads) {
            unsigned short *to =
                kv + SM90_ATTN_PAGE_AT(page, head - n_heads, 0, n_kv_heads, dim);

            to[SM90_KV_AT(slot, j, dim)] = r_low;
            to[SM90_KV_AT(slot, j + half, dim)] = r_high;
        }
    }
    for (unsigned i = threadIdx.x; i < n_kv_heads * dim; i += THREADS)
        kv[SM90_ATTN_PAGE_AT(page, i / dim, 1, n_kv_heads, dim) + SM90_KV_AT(slot, i % dim, dim)] =
            at[(n_heads + n_kv_heads) * dim + i];
}
