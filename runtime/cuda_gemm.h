/* cuda_gemm - matrix products on the GPU: the image of a weight matrix, the choice of a kernel,
 * its launch (SPEC 2.4).
 *
 * Owns:   nothing but a table of entries; images and buffers are the caller's.
 * Thread: as the driver's.
 * Fails:  -EINVAL  a kernel is missing
 *         -EIO     the device is lost
 *
 * A matrix is repacked once, at load; few rows of x and many read the same image.  The choice of
 * a kernel is a pure function of shape and rows: it changes speed alone, never bits.
 *
 *     struct cuda_gemm_weight w;
 *     cuda_gemm_shape(&w, n, n_k, schedule_canonical().o, false);
 *     w.d_image = w.n_bytes of memory, zeroed, aligned to 1024
 *     cuda_gemm_pack(g, &w, ..)  once, or once for each tensor that makes up the matrix
 *     cuda_gemm_run(g, &(struct cuda_gemm_args){.w = &w, ..})  in every step */
#ifndef LLM42D_RUNTIME_CUDA_GEMM_H
#define LLM42D_RUNTIME_CUDA_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "ptx/sm90_gemm.h"

struct cuda_driver;
struct cuda_gemm;
struct err;

struct cuda_gemm_weight {
    uint64_t d_image; /* the caller's; zero where nothing was packed */
    uint64_t n_bytes;
    uint32_t n, n_k;
    uint32_t tile, n_tiles, n_blocks; /* as in sm90_gemm.h; n_tiles holds all n rows */
    bool cut;                         /* made for K in two or more segments */
    bool turns;                       /* rows in turns of eight, gate and up */
    uint32_t head_dim; /* q, k and v: heads of q and k in turns of eight, first and second half */
};

struct cuda_gemm_args {
    const struct cuda_gemm_weight *w;
    uint64_t d_x;       /* bf16 [n_rows][x_stride], aligned to 16 bytes */
    uint64_t d_out;     /* [n_rows][out_stride], aligned to 16 bytes, not x */
    uint64_t d_squares; /* of cuda_gemm_squares() of ADD, or 0: partial sums of squares go here */
    uint32_t squares_stride;
    const struct sm90_gemm_norm *norm; /* x is normed first; see cuda_gemm_can_norm(), or without
                                          squares cuda_gemm_can_brief() */
    const struct sm90_gemm_turn *turn; /* of SM90_GEMM_TURNED; see cuda_gemm_can_turn() */
    uint32_t x_stride;                 /* in values, multiples of 8 */
    uint32_t out_stride;
    uint32_t n_rows;
    uint32_t segments;        /* of K: 1, 2, 4, 8 or 16 */
    enum sm90_gemm_form form; /* SM90_GEMM_SILU with `turns` alone, TURNED with head_dim */
    uint32_t n_splits;        /* shares of the segments, of SPLIT128: 2 or 4; 0: the fastest; 1 by
                                 cuda_gemm_run: by no blocks of several multiprocessors */
    uint32_t pairs;           /* of many rows: enum cuda_gemm_pairs; 0: the fastest */
    bool overlap; /* start beside the kernel before, which need not know: we wait for it */
    enum sm90_gemm_next next; /* with norm or turn; else at once */
};

/* What the two blocks of a pair have in common, where rows are many. */
enum cuda_gemm_pairs { CUDA_GEMM_PAIRS_ANY, CUDA_GEMM_SHARE_W, CUDA_GEMM_SHARE_X };

/* Which kernel, and how it is launched. */
enum cuda_gemm_kernel {
    CUDA_GEMM_ANY, /* any shape */
    CUDA_GEMM_FEW8,
    CUDA_GEMM_FEW16,
    CUDA_GEMM_FEW32,
    CUDA_GEMM_FEW64,
    CUDA_GEMM_FEW128,
    CUDA_GEMM_MANY48,
    CUDA_GEMM_MANY96,
    CUDA_GEMM_MANY128,
    CUDA_GEMM_MANY192,
    CUDA_GEMM_MANY224,
    CUDA_GEMM_MANY240,
    CUDA_GEMM_MANY256,
    CUDA_GEMM_TALL192,  /* as MANY192, of more rows of x to a tile */
    CUDA_GEMM_TREE192,  /* of segments, as MANY128 */
    CUDA_GEMM_SPLIT128, /* as MANY128, but the last round's tiles with n_splits 2 or 4 */
    CUDA_GEMM_FOUR32,   /* two or four segments that end anywhere, K short */
    CUDA_GEMM_FOUR64,
    CUDA_GEMM_WIDE128, /* W large and whole, x of some hundred rows */
    CUDA_GEMM_WIDE160,
    CUDA_GEMM_WIDE192,
    CUDA_GEMM_SPREAD144,  /* four long segments, x of some hundred rows */
    CUDA_GEMM_FEW8_NVRTC, /* as FEW8, which is by hand; and where segments end inside blocks of K */
    CUDA_GEMM_QUARTER9,   /* few rows, four short segments of so many steps */
    CUDA_GEMM_QUARTER24,
    CUDA_GEMM_NORMED8, /* with `norm`, and then they alone */
    CUDA_GEMM_NORMED16,
    CUDA_GEMM_BRIEF8, /* the same where K is short, and no sums of squares are wanted */
    CUDA_GEMM_BRIEF16,
    CUDA_GEMM_END,
};

/* Shape of an image for W [n][n_k], n a multiple of 8 (16 with turns), n_k of 16, and the number
 * of segments it is mostly used with.  Pure; d_image is 0. */
void cuda_gemm_shape(struct cuda_gemm_weight *out_w, uint32_t n, uint32_t n_k, uint32_t segments,
                     bool turns);

/* The same for q, k and v: [n_heads + 2 n_kv_heads][head_dim] rows, head_dim a multiple of 16. */
void cuda_gemm_shape_heads(struct cuda_gemm_weight *out_w, uint32_t n, uint32_t n_k,
                           uint32_t segments, uint32_t head_dim);

/* Pure: partial sums of squares of a row that an ADD leaves, or 0; and whether rows with so many of
 * them can be normed on their way into the product. */
uint32_t cuda_gemm_squares(const struct cuda_gemm_weight *w, uint32_t n_rows, uint32_t segments);
bool cuda_gemm_can_norm(const struct cuda_gemm_weight *w, uint32_t n_rows, uint32_t segments,
                        uint32_t n_squares);

/* Pure: the same of whole rows, whose squares nobody has left. */
bool cuda_gemm_can_brief(const struct cuda_gemm_weight *w, uint32_t n_rows, uint32_t segments);

/* Pure: whether the kernel, or that which is chosen without a norm, rotates q and k and stores keys
 * and values itself: SM90_GEMM_TURNED. */
bool cuda_gemm_turns(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                     uint32_t segments);
bool cuda_gemm_can_turn(const struct cuda_gemm_weight *w, uint32_t n_rows, uint32_t segments);

/* Pure: whether the kernel can do the shape, and the one that does it fastest. */
bool cuda_gemm_can(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                   uint32_t segments);
bool cuda_gemm_can_so(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                      uint32_t n_rows, uint32_t segments, uint32_t n_splits,
                      enum cuda_gemm_pairs pairs); /* 1 and SHARE_W for kernels of few rows */
enum cuda_gemm_kernel cuda_gemm_choose(const struct cuda_gemm_weight *w, uint32_t n_rows,
                                       uint32_t segments);

int cuda_gemm_open(struct cuda_driver *d, struct cuda_gemm **out_g, struct err *e);
void cuda_gemm_close(struct cuda_gemm *g);

/* Rows [n_rows][n_k] of device memory to eights first, first + step, .. of the matrix; n_rows is a
 * multiple of 8.  For gate and up in turns: first 0 and 1, step 2.  Queued. */
int cuda_gemm_pack(struct cuda_gemm *g, const struct cuda_gemm_weight *w, uint64_t d_rows,
                   uint32_t n_rows, uint32_t first, uint32_t step, struct err *e);

/* The same of q or k, whose heads' halves go in turns: eights first, .. of the matrix from eight
 * `at` of the tensor on. */
int cuda_gemm_pack_heads(struct cuda_gemm *g, const struct cuda_gemm_weight *w, uint64_t d_rows,
                         uint32_t n_rows, uint32_t first, uint32_t at, struct err *e);

/* The one that cuda_gemm_run takes on this GPU. */
enum cuda_gemm_kernel cuda_gemm_chosen(const struct cuda_gemm *g, const struct cuda_gemm_weight *w,
                                       uint32_t n_rows, uint32_t segments);

/* Queued. */
int cuda_gemm_run(struct cuda_gemm *g, const struct cuda_gemm_args *args, struct err *e);

/* The same by a kernel of the caller's choice that can, for tests and benchmarks; SPLIT128 where
 * blocks have all of 132 multiprocessors to themselves alone. */
int cuda_gemm_run_by(struct cuda_gemm *g, enum cuda_gemm_kernel kernel,
                     const struct cuda_gemm_args *args, struct err *e);
const char *cuda_gemm_name(enum cuda_gemm_kernel kernel);

#endif
