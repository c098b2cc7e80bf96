/* sm90_gemm_turned - what becomes of q, k and v at the end of a product: their rotation and the store
 * of keys and values (SPEC 2.6).  turned_factors and turned_store are of sums whose rows of W are
 * the left operand of wgmma; the rest is of the others, too.
 *
 * Rows of W of a head of q or k come in turns of eight, of its first half and of its second; those
 * of v stand as they are.  So 16 rows, a warp's, are of one head, and a thread has both values of
 * each of its pairs.  Rows of x that fill up a step are turned as position 0, for nobody, and
 * stored nowhere. */
#ifndef LLM42D_PTX_SM90_GEMM_TURNED_CUH
#define LLM42D_PTX_SM90_GEMM_TURNED_CUH

#include "ptx/sm90_batch.h"
#include "ptx/sm90_gemm.cuh"
#include "ptx/sm90_kv.h"
#include "ptx/sm90_rotary.cuh"

#define TURNED_NO_PAGE 0xffffffffu

/* Where a row's key goes. */
struct turned_place {
    u32 position, page;
};

/* May be called before the kernel before has ended: rows and page tables are of the step's upload. */
DEVICE struct turned_place turned_place(const struct sm90_gemm_turn &n, u32 row) {
    const struct batch_row at = ((const struct batch_row *)n.rows)[row];
    struct turned_place p = {0, TURNED_NO_PAGE};

    if (at.seq != BATCH_NO_SEQ) {
        p.position = at.position;
        p.page = ((const u32 *)n.pages)[(u64)at.seq * n.n_seq_pages + at.position / SM90_ATTN_PAGE];
    }
    return p;
}

/* Of the rows of a tile, by as many threads. */
DEVICE void turned_places(const struct sm90_gemm &g, struct turned_place *places, u32 row,
                          u32 n_rows) {
    if (threadIdx.x < n_rows) places[threadIdx.x] = turned_place(g.turn, row + threadIdx.x);
}

/* Where 16 rows of W from row `at` of the matrix on go: the lower eight values and the upper ones. */
struct turned_columns {
    u32 head, low, high; /* of the head */
    bool turned;

    DEVICE_METHOD void set(const struct sm90_gemm_turn &n, u32 at) {
        const u32 inside = at % n.head_dim;

        head = at / n.head_dim;
        turned = head < n.n_heads + n.n_kv_heads;
        low = turned ? inside / 2 : inside;
        high = low + (turned ? n.head_dim / 2 : 8);
    }

    /* In a row of the output. */
    DEVICE_METHOD u16 *out(const struct sm90_gemm &g, u32 row) const {
        return (u16 *)g.out + (u64)row * g.out_stride + head * g.turn.head_dim;
    }

    DEVICE_METHOD bool stored(const struct sm90_gemm_turn &n, struct turned_place p) const {
        return head >= n.n_heads && p.page != TURNED_NO_PAGE;
    }

    /* Keys or values of the page. */
    DEVICE_METHOD u16 *kv(const struct sm90_gemm_turn &n, struct turned_place p) const {
        return (u16 *)n.kv + SM90_ATTN_PAGE_AT(p.page,
                                               turned ? head - n.n_heads
                                                      : head - n.n_heads - n.n_kv_heads,
                                               turned ? 0 : 1, n.n_kv_heads, n.head_dim);
    }
};

/* What turns the pairs of this thread in a tile: two cosines and two sines a row of x. */
template <int N>
struct turned_factors {
    u32 cos[N / 8], sin[N / 8];

    /* The first row of W of this warp is row `at` of the matrix. */
    DEVICE_METHOD void load(const struct sm90_gemm &g, const struct turned_place *places, u32 at,
                            u32 n_rows) {
        const struct sm90_gemm_turn &n = g.turn;
        const u32 lane = threadIdx.x % 32, half = n.head_dim / 2;
        const u32 i = at % n.head_dim / 16 * 8 + lane % 4 * 2;
        const bool turned = at < (n.n_heads + n.n_kv_heads) * n.head_dim;

#pragma unroll
        for (u32 j = 0; j < N / 8; j++) {
            const u32 token = j * 8 + lane / 4;

            cos[j] = sin[j] = 0;
            if (turned && token < n_rows) {
                const u64 from = (u64)places[token].position * half + i;

                cos[j] = *(const u32 *)((const u16 *)n.cos + from);
                sin[j] = *(const u32 *)((const u16 *)n.sin + from);
            }
        }
    }
};

/* The sums of a tile whose n_rows rows of x start at `row`. */
template <int N>
DEVICE void turned_store(const float (&c)[N / 2], const struct sm90_gemm &g,
                         const struct turned_factors<N> &turn,
                         const struct turned_place *places, u32 at, u32 row, u32 n_rows) {
    const struct sm90_gemm_turn &n = g.turn;
    const u32 lane = threadIdx.x % 32;
    struct turned_columns to;

    to.set(n, at);
    to.low += lane % 4 * 2;
    to.high += lane % 4 * 2;
#pragma unroll
    for (u32 j = 0; j < N / 8; j++) {
        const u32 token = j * 8 + lane / 4, from = 4 * j;
        u32 a = sm90_transpose(sm90_pack(c[from], c[from + 1]));
        u32 b = sm90_transpose(sm90_pack(c[from + 2], c[from + 3]));

        if (token >= n_rows) continue;
        const struct turned_place place = places[token];
        u16 *out = to.out(g, row + token);

        if (to.turned) {
            const u32 a_turned = rotary_low(a, b, turn.cos[j], turn.sin[j]);

            b = rotary_high(a, b, turn.cos[j], turn.sin[j]);
            a = a_turned;
        }
        *(u32 *)(out + to.low) = a;
        *(u32 *)(out + to.high) = b;
        if (to.stored(n, place)) {
            u16 *kv = to.kv(n, place);
            const u32 slot = place.position % SM90_ATTN_PAGE;

            *(u32 *)(kv + SM90_KV_AT(slot, to.low, n.head_dim)) = a;
            *(u32 *)(kv + SM90_KV_AT(slot, to.high, n.head_dim)) = b;
        }
    }
}

#endif
