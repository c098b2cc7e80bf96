/* cuda_gemm_impl - what the choice of a kernel (cuda_gemm_choose.c, pure) and its launch
 * (cuda_gemm.c) share.  For them alone. */
#ifndef LLM42D_RUNTIME_CUDA_GEMM_IMPL_H
#define LLM42D_RUNTIME_CUDA_GEMM_IMPL_H

#include "runtime/cuda_gemm.h"

enum {
    UNITS = 132,   /* multiprocessors that tiles are spread over */
    CUT_RANKS = 2, /* blocks that share the segments of a tile */
    ROW_BYTES = 2 * SM90_GEMM_BLOCK,
    MANY_RANKS = 2,
    MANY_GROUP = 8, /* pairs of row tiles: 4 MB of x at K = 1024 */
    FOUR_SEGMENTS = 4,
    SPREAD = 4, /* segments, and blocks that have one each */
};

struct cuda_gemm_kind {
    const char *name;
    uint32_t width; /* rows of x to a tile of few and wide, of W to one of many, four, spread */
    uint32_t stages;
};

extern const struct cuda_gemm_kind cuda_gemm_kinds[CUDA_GEMM_END];

/* A launch of a kernel of many rows: pairs of blocks, each a tile and a share of its segments. */
struct cuda_gemm_way {
    uint32_t n_splits;
    bool share_x;
};

/* Rows of x to a tile of a kernel of many, at most. */
static inline uint32_t many_rows(enum cuda_gemm_kernel kernel) {
    return kernel == CUDA_GEMM_TALL192 ? SM90_GEMM_TALL_TOKENS : SM90_GEMM_MANY_TOKENS;
}

static inline uint32_t ceil_div(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

static inline uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static inline uint32_t max_u32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static inline bool is_few(enum cuda_gemm_kernel kernel) {
    return (kernel >= CUDA_GEMM_FEW8 && kernel <= CUDA_GEMM_FEW128) ||
           kernel == CUDA_GEMM_FEW8_NVRTC;
}

static inline bool is_normed(enum cuda_gemm_kernel kernel) {
    return kernel >= CUDA_GEMM_NORMED8 && kernel <= CUDA_GEMM_NORMED16;
}

static inline bool is_quarter(enum cuda_gemm_kernel kernel) {
    return kernel == CUDA_GEMM_QUARTER9 || kernel == CUDA_GEMM_QUARTER24;
}

static inline bool is_brief(enum cuda_gemm_kernel kernel) {
    return kernel == CUDA_GEMM_BRIEF8 || kernel == CUDA_GEMM_BRIEF16;
}

static inline bool is_many(enum cuda_gemm_kernel kernel) {
    return kernel >= CUDA_GEMM_MANY48 && kernel <= CUDA_GEMM_SPLIT128;
}

static inline bool is_four(enum cuda_gemm_kernel kernel) {
    return kernel == CUDA_GEMM_FOUR32 || kernel == CUDA_GEMM_FOUR64;
}

static inline bool is_wide(enum cuda_gemm_kernel kernel) {
    return kernel >= CUDA_GEMM_WIDE128 && kernel <= CUDA_GEMM_WIDE192;
}

static inline bool is_spread(enum cuda_gemm_kernel kernel) {
    return kernel == CUDA_GEMM_SPREAD144;
}

/* Whether no segment ends inside a block of K. */
static inline bool is_aligned(uint32_t n_k, uint32_t segments) {
    return segments == 1 || n_k % (SM90_GEMM_BLOCK * segments) == 0;
}

/* Of its tiles of rows of x: no more of them than the pairs need, all alike, and each block's share
 * of one a number of eights. */
uint32_t cuda_gemm_many_height(enum cuda_gemm_kernel kernel, uint32_t n_rows,
                               struct cuda_gemm_way way);
/* Tiles of pairs that are not split, full rounds of them, before those that are; and pieces of work of
 * a pair each, in all. */
uint32_t cuda_gemm_many_whole(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                              uint32_t n_rows, struct cuda_gemm_way way);
uint32_t cuda_gemm_many_pairs(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                              uint32_t n_rows, struct cuda_gemm_way way);
/* The fastest way of a kernel of many rows, of those asked for (0: any); its cycles, or UINT64_MAX
 * where it has none. */
uint64_t cuda_gemm_many_choose(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                               uint32_t n_rows, uint32_t segments, uint32_t n_splits,
                               uint32_t pairs, struct cuda_gemm_way *out_way);
uint32_t cuda_gemm_four_tiles(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                              uint32_t n_rows);
/* As cuda_gemm_choose, where kernels of many rows split segments so often; 0: as is fastest. */
enum cuda_gemm_kernel cuda_gemm_choose_so(const struct cuda_gemm_weight *w, uint32_t n_rows,
                                          uint32_t segments, uint32_t n_splits);
/* The narrowest that takes all rows as one tile; or the end. */
enum cuda_gemm_kernel cuda_gemm_choose_normed(uint32_t n_rows);
enum cuda_gemm_kernel cuda_gemm_choose_brief(uint32_t n_rows);

#endif
