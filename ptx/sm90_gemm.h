/* sm90_gemm - what the kernels of matrix products and their launch half share: the image of a
 * weight matrix, and one struct of arguments.  For NVRTC and the host compiler.
 *
 * The image of W [n][n_k]: rows in tiles of `tile`, of each tile the values in blocks of 64, of
 * each block the rows one after another, 128 bytes each, their 16-byte chunks swizzled as wgmma
 * reads them.  So one tile is one run of bytes, and so is any stretch of its K; atoms of eight
 * rows compose, hence tiles compose to wider ones.  Rows past n and values past n_k are zero.
 *
 *     [n_tiles][n_blocks][tile][64 values, chunk c of row r at chunk c ^ (r % 8)] */
#ifndef LLM42D_PTX_SM90_GEMM_H
#define LLM42D_PTX_SM90_GEMM_H

enum {
    SM90_GEMM_BLOCK = 64,      /* values of K in a block of the image */
    SM90_GEMM_ATOM_ROWS = 8,   /* rows that swizzle together */
    SM90_GEMM_TILE_MAX = 128,  /* rows of a tile */
    SM90_GEMM_STAGES_MAX = 16, /* of a ring in shared memory */
    SM90_GEMM_SEGMENTS_MAX = 16,
    SM90_GEMM_BLOCKS_MAX = 132,    /* of a grid of sm90_gemm_bf16_split* */
    SM90_GEMM_ANY_TOKENS = 32,     /* rows of x to a warp of sm90_gemm_bf16_any */
    SM90_GEMM_WIDE_ROWS = 256,     /* rows of W to a tile of sm90_gemm_bf16_wide* */
    SM90_GEMM_SPREAD_TOKENS = 256, /* rows of x to a tile of sm90_gemm_bf16_spread* */
    SM90_GEMM_FOUR_TOKENS = 64,    /* rows of x to a tile of sm90_gemm_bf16_four* */
    SM90_GEMM_QUARTER_TOKENS = 8,  /* rows of x to a block of sm90_gemm_bf16_quarter* */
    SM90_GEMM_MANY_TOKENS = 128,   /* rows of x to a block of sm90_gemm_bf16_many* */
    SM90_GEMM_TALL_TOKENS = 192    /* and of sm90_gemm_bf16_tall* */
};

/* Bytes from one row of x to the next in shared memory of sm90_gemm_bf16_quarter*, a segment of so many
 * steps each: eights of bytes of four rows are in banks of their own. */
#define SM90_GEMM_QUARTER_LINE(steps) ((steps)*32 + (160 - (steps)*32 % 128) % 128)

/* What becomes of y = W x. */
enum sm90_gemm_form {
    SM90_GEMM_BF16,   /* out = bf16(y) */
    SM90_GEMM_F32,    /* out = y, binary32 */
    SM90_GEMM_ADD,    /* out = bf16(out + bf16(y)), SPEC 2.5 */
    SM90_GEMM_SILU,   /* rows of W in turns of eight, gate and up: out = SPEC 2.8, n / 2 wide */
    SM90_GEMM_TURNED, /* q, k and v, rotated and stored (SPEC 2.6): sm90_gemm_turned.cuh */
};

/* When the next kernel may start, at the latest of all blocks. */
enum sm90_gemm_next {
    SM90_GEMM_NEXT_AT_ONCE,
    SM90_GEMM_NEXT_LAST_TILE, /* as the block's last products are there */
    SM90_GEMM_NEXT_BEHIND,    /* as the block ends */
};

/* Of SM90_GEMM_TURNED, as sm90_rotary_bf16 has them; heads of q and k in turns of eight rows, of the
 * first half and of the second. */
struct sm90_gemm_turn {
    unsigned long long kv, cos, sin, rows, pages;
    unsigned n_seq_pages, n_heads, n_kv_heads, head_dim;
};

struct sm90_gemm {
    unsigned long long weights; /* the image, 1024-byte aligned */
    unsigned long long x;       /* bf16 [n_rows][x_stride], 16-byte aligned */
    unsigned long long out;     /* [n_rows][out_stride], 16-byte aligned */
    /* Of SM90_GEMM_ADD by a cluster, or 0: f32 [n_rows][squares_stride], of each half tile of
     * columns the sum of the squares of what was put, the tree over adjacent pairs. */
    unsigned long long squares;
    unsigned n, n_k, n_rows;
    unsigned x_stride, out_stride; /* in values, multiples of 8 */
    unsigned tile, n_tiles, n_blocks;
    unsigned segments; /* of K, SPEC 2.4 */
    unsigned form;     /* enum sm90_gemm_form */

    /* sm90_gemm_bf16_few*: the rings, and the shares of the blocks. */
    unsigned stage_blocks; /* blocks of K in a stage: 1, or 2 where they divide a segment */
    unsigned n_weight_stages, n_row_stages;
    unsigned n_row_tiles;    /* of the rows of x */
    unsigned n_ranks;        /* blocks of a cluster, each with its share of the segments */
    unsigned hold_ns;        /* how long a block without work keeps its place */
    unsigned squares_stride; /* a multiple of 4 */

    unsigned height; /* rows of x to a tile of few and many, and to a box of its map */

    /* sm90_gemm_bf16_many* */
    unsigned group;    /* tiles along the rows of x that share the weights while L2 has them */
    unsigned once;     /* each of the weights is fetched once */
    unsigned share_x;  /* the blocks of a pair share x, not the weights */
    unsigned n_splits; /* pairs that a tile's segments are spread over: 1, 2 or 4 */
    unsigned n_whole;  /* tiles of pairs before those, not split: of sm90_gemm_bf16_split* */

    unsigned
        next; /* enum sm90_gemm_next, of sm90_gemm_bf16_normed*, brief* and of SM90_GEMM_TURNED */
    struct sm90_gemm_turn turn;
};

/* sm90_gemm_bf16_normed*: x is the residual stream, and what is multiplied norm(x, weight). */
struct sm90_gemm_norm {
    unsigned long long squares; /* as above, of x; past n_squares zeros to the multiple of 4 */
    unsigned long long weight;  /* bf16 [n_k], 16-byte aligned */
    unsigned n_squares, squares_stride;
    float eps;
};

struct sm90_gemm_pack {
    unsigned long long rows;  /* bf16 [n_rows][n_k], 16-byte aligned */
    unsigned long long image; /* zeros before the first call */
    unsigned n_rows, n_k, tile, n_blocks;
    unsigned first, step; /* rows in eights: at eights first, first + step, .. of the matrix */
    unsigned turn;        /* eights of a head whose halves go in turns, or 0; step is 1 */
    unsigned at;          /* the first of the rows is of this eight of its heads */
};

#endif
