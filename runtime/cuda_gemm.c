#ifdef LLM42_CUDA

#include "runtime/cuda_gemm.h"

#include <errno.h>
#include <stdlib.h>

#include "runtime/assert.h"
#include "runtime/cuda_driver.h"
#include "runtime/cuda_gemm_impl.h"
#include "runtime/err.h"

enum {
    COPY_THREADS = 64,   /* of sm90_gemm_bf16_few* */
    SCALE_THREADS = 128, /* of sm90_gemm_bf16_normed* */
    ROW_STAGES_MAX = 8,
    /* Rings of two kernels that follow each other share a multiprocessor, so that they overlap; those
     * of two blocks of a product that norms its rows do not, which keeps these one a multiprocessor
     * whatever ends first. */
    RING_BYTES = 108 << 10,
    RING_BYTES_NORMED = 122 << 10,
    RING_BYTES_CUT = 98 << 10,    /* before and behind those: o and down */
    RING_BYTES_ALONE = 200 << 10, /* where registers leave room for one anyway */
    ALIGN_BYTES = 1024,
    PART_PAD = 4, /* as in sm90_gemm_few.cuh */
    MANY_COPY_THREADS = 128,
    MANY_STAGING_BYTES = 144,    /* a row of x, as in sm90_gemm_many.cuh */
    MANY_PARKED_BYTES = 128 * 4, /* the same, to a row of W of TREE192 */
    WIDE_THREADS = 384,
    WIDE128_THREADS = 640,
    FOUR_THREADS = 640,
    QUARTER_THREADS = 128,
    BRIEF_ROW_THREADS = 32,                            /* for each row of x that there may be */
    BRIEF_BYTES_MAX = ALIGN_BYTES + 160 * 1024 + 4096, /* 64 and 16 rows of 1024 values */
    SPREAD_THREADS = 384,
    SPREAD_STAGES_MAX = 8, /* as in sm90_gemm_spread.cuh */
    SPREAD_RING_BYTES = 210 << 10,
    PACK_THREADS = 256,
    GRID_Y_MAX = 65535,
    HOLD_BYTES_PER_US = 4500000 / 8 * 10, /* memory's rate, of which a block waits 8 parts in 10 */
};

struct cuda_gemm {
    struct cuda_driver *driver;
    CUfunction pack;
    CUfunction entries[CUDA_GEMM_END];
};

/* Of few rows, by so many blocks of a cluster; by one it is the most. */
static uint32_t ring_bytes(enum cuda_gemm_kernel kernel, uint32_t n_ranks) {
    const uint32_t width = cuda_gemm_kinds[kernel].width;

    if (is_normed(kernel)) return RING_BYTES_NORMED;
    if (width > 64) return RING_BYTES_ALONE;
    return width <= cuda_gemm_kinds[CUDA_GEMM_NORMED16].width && n_ranks > 1 ? RING_BYTES_CUT
                                                                             : RING_BYTES;
}

static uint32_t shared_bytes_many(enum cuda_gemm_kernel kernel) {
    const uint32_t rows = many_rows(kernel) + cuda_gemm_kinds[kernel].width;
    const uint32_t behind = kernel == CUDA_GEMM_TREE192
                                ? cuda_gemm_kinds[kernel].width * MANY_PARKED_BYTES
                                : many_rows(kernel) * MANY_STAGING_BYTES;

    return ALIGN_BYTES + cuda_gemm_kinds[kernel].stages * rows * ROW_BYTES + behind;
}

static uint32_t shared_bytes_wide(enum cuda_gemm_kernel kernel) {
    const uint32_t rows = SM90_GEMM_WIDE_ROWS + cuda_gemm_kinds[kernel].width;

    return ALIGN_BYTES + cuda_gemm_kinds[kernel].stages * rows * ROW_BYTES;
}

/* The weights of a block, and of each warp its rows of x. */
static uint32_t shared_bytes_quarter(enum cuda_gemm_kernel kernel) {
    const uint32_t steps = cuda_gemm_kinds[kernel].stages;

    return steps * SM90_GEMM_ATOM_ROWS * ROW_BYTES +
           FOUR_SEGMENTS * SM90_GEMM_QUARTER_TOKENS * SM90_GEMM_QUARTER_LINE(steps);
}

/* Four rings, two tiles of sums, and of one warpgroup the staging. */
static uint32_t shared_bytes_four(enum cuda_gemm_kernel kernel) {
    const uint32_t width = cuda_gemm_kinds[kernel].width, rows = SM90_GEMM_FOUR_TOKENS + width;

    return ALIGN_BYTES + FOUR_SEGMENTS * cuda_gemm_kinds[kernel].stages * rows * ROW_BYTES +
           2 * SM90_GEMM_FOUR_TOKENS * width * 4 + SM90_GEMM_FOUR_TOKENS * MANY_STAGING_BYTES;
}

int cuda_gemm_open(struct cuda_driver *d, struct cuda_gemm **out_g, struct err *e) {
    struct cuda_gemm *g = calloc(1, sizeof(*g));
    int r;

    if (!g) return err_set(e, -ENOMEM, "matrix products: bookkeeping");
    g->driver = d;
    r = cuda_driver_entry(d, "sm90_gemm_bf16_pack", "sm90_gemm_bf16_pack", 0, &g->pack, e);
    for (uint32_t i = 0; r == 0 && i < CUDA_GEMM_END; i++) {
        uint32_t n_bytes = 0;

        if (is_few(i) || is_normed(i)) n_bytes = ALIGN_BYTES + ring_bytes(i, 1);
        if (is_many(i)) n_bytes = shared_bytes_many(i);
        if (is_four(i)) n_bytes = shared_bytes_four(i);
        if (is_wide(i)) n_bytes = shared_bytes_wide(i);
        if (is_quarter(i)) n_bytes = shared_bytes_quarter(i);
        if (is_brief(i)) n_bytes = BRIEF_BYTES_MAX;
        if (is_spread(i)) n_bytes = ALIGN_BYTES + SPREAD_RING_BYTES;
        r = cuda_driver_entry(d, cuda_gemm_kinds[i].name, cuda_gemm_kinds[i].name, n_bytes,
                              &g->entries[i], e);
    }
    if (r < 0) {
        cuda_gemm_close(g);
        return r;
    }
    *out_g = g;
    return 0;
}

void cuda_gemm_close(struct cuda_gemm *g) {
    free(g);
}

static int pack(struct cuda_gemm *g, const struct cuda_gemm_weight *w, uint64_t d_rows,
                uint32_t n_rows, uint32_t first, uint32_t step, uint32_t turn, uint32_t at,
                struct err *e) {
    struct sm90_gemm_pack p = {
        .rows = d_rows,
        .image = w->d_image,
        .n_rows = n_rows,
        .n_k = w->n_k,
        .tile = w->tile,
        .n_blocks = w->n_blocks,
        .first = first,
        .step = step,
        .turn = turn,
        .at = at,
    };
    struct cuda_launch launch = {
        .entry = g->pack,
        .name = "sm90_gemm_bf16_pack",
        .grid = {ceil_div(w->n_k / 8, PACK_THREADS), min_u32(n_rows, GRID_Y_MAX)},
        .block = {PACK_THREADS},
        .params = (void *[]){&p},
    };

    ASSERT(n_rows % SM90_GEMM_ATOM_ROWS == 0 && step > 0);
    ASSERT(n_rows == 0 || first + (at + n_rows / 8 - 1) * step < w->n / 8);
    return n_rows ? cuda_driver_launch(g->driver, &launch, e) : 0;
}

int cuda_gemm_pack(struct cuda_gemm *g, const struct cuda_gemm_weight *w, uint64_t d_rows,
                   uint32_t n_rows, uint32_t first, uint32_t step, struct err *e) {
    return pack(g, w, d_rows, n_rows, first, step, 0, 0, e);
}

int cuda_gemm_pack_heads(struct cuda_gemm *g, const struct cuda_gemm_weight *w, uint64_t d_rows,
                         uint32_t n_rows, uint32_t first, uint32_t at, struct err *e) {
    ASSERT(w->head_dim > 0);
    return pack(g, w, d_rows, n_rows, first, 1, w->head_dim / SM90_GEMM_ATOM_ROWS, at, e);
}

static int encode(struct cuda_gemm *g, const struct cuda_gemm_args *a, uint32_t box_rows,
                  CUtensorMap *out_map, struct err *e) {
    const cuuint64_t sizes[] = {a->w->n_k, a->n_rows}, strides[] = {(uint64_t)a->x_stride * 2};
    const cuuint32_t box[] = {SM90_GEMM_BLOCK, box_rows}, steps[] = {1, 1};

    return cuda_driver_check(
        g->driver,
        g->driver->cuda.cuTensorMapEncodeTiled(
            out_map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)(uintptr_t)a->d_x, sizes, strides,
            box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "a map of activations", e);
}

/* Stages of both rings. */
static void plan_rings(struct sm90_gemm *p, uint32_t width, uint32_t budget) {
    const uint32_t weight_block = p->tile * ROW_BYTES, row_block = width * ROW_BYTES;
    /* Two where a block takes less time than what stands between two batches of steps, and no
     * segment ends inside one. */
    const bool two = p->n_blocks % (2 * p->segments) == 0 && is_aligned(p->n_k, p->segments) &&
                     p->tile <= 64 && width <= 32;

    /* As many of rows as of weights, and of weights what is left: they come before the rows. */
    p->stage_blocks = two ? 2 : 1;
    p->n_row_stages =
        min_u32(ROW_STAGES_MAX, budget / ((weight_block + row_block) * p->stage_blocks));
    p->n_weight_stages =
        min_u32(SM90_GEMM_STAGES_MAX, (budget - p->n_row_stages * row_block * p->stage_blocks) /
                                          (weight_block * p->stage_blocks));
    ASSERT(p->n_weight_stages >= 2);
}

static int run_few(struct cuda_gemm *g, enum cuda_gemm_kernel kernel,
                   const struct cuda_gemm_args *a, struct sm90_gemm *p, struct err *e) {
    const uint32_t width = cuda_gemm_kinds[kernel].width;
    const uint32_t scale_threads = is_normed(kernel) ? SCALE_THREADS : 0;
    const uint32_t n_wgs = a->w->tile > 64 ? 2 : 1;
    const uint32_t norm_bytes = is_normed(kernel) ? a->w->n_blocks * ROW_BYTES : 0;
    struct cuda_launch launch = {
        .entry = g->entries[kernel],
        .name = cuda_gemm_kinds[kernel].name,
        .block = {n_wgs * 128 + COPY_THREADS + scale_threads},
        .overlap = a->overlap,
    };
    struct sm90_gemm_norm norm = {0};
    uint32_t n_tiles, ring, reach, part;
    CUtensorMap map;
    int r;

    p->n_row_tiles = ceil_div(a->n_rows, width);
    /* The narrowest takes its tiles whole; rows past the end take others longer than rows. */
    p->height = width > 8 ? ceil_div(a->n_rows, p->n_row_tiles) : width;
    p->n_ranks = a->w->cut && a->segments > 1 ? CUT_RANKS : 1;
    plan_rings(p, width, ring_bytes(kernel, p->n_ranks) - norm_bytes);
    p->squares = a->form == SM90_GEMM_ADD && p->n_ranks > 1 ? a->d_squares : 0;
    p->squares_stride = a->squares_stride;
    n_tiles = p->n_tiles * p->n_row_tiles;
    if (p->n_ranks > 1) {
        launch.cluster = p->n_ranks;
        launch.grid[0] = n_tiles * p->n_ranks;
    } else {
        launch.grid[0] = min_u32(n_tiles, UNITS);
    }
    if (a->overlap && launch.grid[0] < UNITS) {
        launch.grid[0] = UNITS;
        p->hold_ns = (uint32_t)(a->w->n_bytes * 1000 / HOLD_BYTES_PER_US);
    }
    ring = p->stage_blocks * ROW_BYTES * (p->n_weight_stages * p->tile + p->n_row_stages * width) +
           norm_bytes;
    /* A short tile is read to a whole warpgroup's rows, the last stage's too. */
    reach = p->n_weight_stages * p->stage_blocks * p->tile * ROW_BYTES - p->tile * ROW_BYTES +
            n_wgs * 64 * ROW_BYTES;
    part = p->n_ranks > 1 ? width * (p->tile + PART_PAD) * 4 : 0;
    launch.shared_bytes = ALIGN_BYTES + max_u32(ring, max_u32(reach, part));
    /* No two of these on a multiprocessor, however short their rings are. */
    if (is_normed(kernel)) launch.shared_bytes = ALIGN_BYTES + RING_BYTES_NORMED;
    r = encode(g, a, p->height, &map, e);
    if (r < 0) return r;
    if (is_normed(kernel)) norm = *a->norm;
    launch.params = (void *[]){&map, p, &norm};
    return cuda_driver_launch(g->driver, &launch, e);
}

static int run_many(struct cuda_gemm *g, enum cuda_gemm_kernel kernel,
                    const struct cuda_gemm_args *a, struct sm90_gemm *p, struct err *e) {
    struct cuda_launch launch = {
        .entry = g->entries[kernel],
        .name = cuda_gemm_kinds[kernel].name,
        .block = {MANY_COPY_THREADS + 2 * many_rows(kernel)},
        .cluster = MANY_RANKS,
        .shared_bytes = shared_bytes_many(kernel),
        .overlap = a->overlap,
    };
    struct cuda_gemm_way way = {0, false};
    CUtensorMap map;
    int r;

    (void)cuda_gemm_many_choose(kernel, a->w, a->n_rows, a->segments, a->n_splits, a->pairs, &way);
    ASSERT(way.n_splits > 0);
    /* Else they would wait for ever. */
    ASSERT(way.n_splits == 1 || g->driver->n_own >= UNITS);
    launch.grid[0] =
        min_u32(cuda_gemm_many_pairs(kernel, a->w, a->n_rows, way) * MANY_RANKS, UNITS);
    p->group = MANY_GROUP;
    p->share_x = way.share_x;
    p->height = cuda_gemm_many_height(kernel, a->n_rows, way);
    p->once = a->n_rows <= p->height * (way.share_x ? 1 : MANY_RANKS);
    p->n_splits = way.n_splits;
    p->n_whole = cuda_gemm_many_whole(kernel, a->w, a->n_rows, way);
    r = encode(g, a, way.share_x ? p->height / MANY_RANKS : p->height, &map, e);
    if (r < 0) return r;
    launch.params = (void *[]){&map, p};
    return cuda_driver_launch(g->driver, &launch, e);
}

static int run_four(struct cuda_gemm *g, enum cuda_gemm_kernel kernel,
                    const struct cuda_gemm_args *a, struct sm90_gemm *p, struct err *e) {
    const uint32_t n_row_tiles = ceil_div(a->n_rows, SM90_GEMM_FOUR_TOKENS);
    struct cuda_launch launch = {
        .entry = g->entries[kernel],
        .name = cuda_gemm_kinds[kernel].name,
        .grid = {min_u32(cuda_gemm_four_tiles(kernel, a->w, a->n_rows), UNITS)},
        .block = {FOUR_THREADS},
        .shared_bytes = shared_bytes_four(kernel),
        .overlap = a->overlap,
    };
    CUtensorMap map;
    int r;

    p->height = ceil_div(a->n_rows, n_row_tiles * SM90_GEMM_ATOM_ROWS) * SM90_GEMM_ATOM_ROWS;
    r = encode(g, a, p->height, &map, e);
    if (r < 0) return r;
    launch.params = (void *[]){&map, p};
    return cuda_driver_launch(g->driver, &launch, e);
}

static int run_wide(struct cuda_gemm *g, enum cuda_gemm_kernel kernel,
                    const struct cuda_gemm_args *a, struct sm90_gemm *p, struct err *e) {
    struct cuda_launch launch = {
        .entry = g->entries[kernel],
        .name = cuda_gemm_kinds[kernel].name,
        .block = {kernel == CUDA_GEMM_WIDE128 ? WIDE128_THREADS : WIDE_THREADS},
        .shared_bytes = shared_bytes_wide(kernel),
        .overlap = a->overlap,
    };
    CUtensorMap map;
    int r;

    p->n_row_tiles = ceil_div(a->n_rows, cuda_gemm_kinds[kernel].width);
    p->height = ceil_div(a->n_rows, p->n_row_tiles);
    launch.grid[0] = min_u32(ceil_div(a->w->n, SM90_GEMM_WIDE_ROWS) * p->n_row_tiles, UNITS);
    r = encode(g, a, p->height, &map, e);
    if (r < 0) return r;
    launch.params = (void *[]){&map, p};
    return cuda_driver_launch(g->driver, &launch, e);
}

static int run_spread(struct cuda_gemm *g, enum cuda_gemm_kernel kernel,
                      const struct cuda_gemm_args *a, struct sm90_gemm *p, struct err *e) {
    const uint32_t width = cuda_gemm_kinds[kernel].width;
    struct cuda_launch launch = {
        .entry = g->entries[kernel],
        .name = cuda_gemm_kinds[kernel].name,
        .block = {SPREAD_THREADS},
        .cluster = SPREAD,
        .overlap = a->overlap,
    };
    uint32_t stage_bytes;
    CUtensorMap map;
    int r;

    p->n_row_tiles = ceil_div(a->n_rows, SM90_GEMM_SPREAD_TOKENS);
    p->height = ceil_div(a->n_rows, p->n_row_tiles);
    stage_bytes = (width + ceil_div(p->height, 64) * 64) * ROW_BYTES;
    p->n_weight_stages = min_u32(SPREAD_STAGES_MAX, SPREAD_RING_BYTES / stage_bytes);
    launch.grid[0] = ceil_div(a->w->n, width) * p->n_row_tiles * SPREAD;
    /* The sums, which take the ring's place, are less than it in all heights. */
    launch.shared_bytes = ALIGN_BYTES + p->n_weight_stages * stage_bytes;
    r = encode(g, a, p->height, &map, e);
    if (r < 0) return r;
    launch.params = (void *[]){&map, p};
    return cuda_driver_launch(g->driver, &launch, e);
}

static int run_any(struct cuda_gemm *g, const struct cuda_gemm_args *a, struct sm90_gemm *p,
                   struct err *e) {
    const uint32_t n_shares = min_u32(a->segments, 4);
    struct cuda_launch launch = {
        .entry = g->entries[CUDA_GEMM_ANY],
        .name = cuda_gemm_kinds[CUDA_GEMM_ANY].name,
        .grid = {ceil_div(ceil_div(a->w->n, 16), 4 / n_shares),
                 ceil_div(a->n_rows, SM90_GEMM_ANY_TOKENS)},
        .block = {128},
        .overlap = a->overlap,
        .params = (void *[]){p},
    };

    return cuda_driver_launch(g->driver, &launch, e);
}

static int run_quarter(struct cuda_gemm *g, enum cuda_gemm_kernel kernel,
                       const struct cuda_gemm_args *a, struct sm90_gemm *p, struct err *e) {
    struct cuda_launch launch = {
        .entry = g->entries[kernel],
        .name = cuda_gemm_kinds[kernel].name,
        .grid = {a->w->n / SM90_GEMM_ATOM_ROWS, ceil_div(a->n_rows, SM90_GEMM_QUARTER_TOKENS)},
        .block = {QUARTER_THREADS},
        .shared_bytes = shared_bytes_quarter(kernel),
        .overlap = a->overlap,
        .params = (void *[]){p},
    };

    return cuda_driver_launch(g->driver, &launch, e);
}

static int run_brief(struct cuda_gemm *g, enum cuda_gemm_kernel kernel,
                     const struct cuda_gemm_args *a, struct sm90_gemm *p, struct err *e) {
    const uint32_t tile_bytes = p->n_blocks * p->tile * ROW_BYTES;
    const uint32_t rows_bytes = p->n_blocks * cuda_gemm_kinds[kernel].width * ROW_BYTES;
    struct sm90_gemm_norm norm = *a->norm;
    struct cuda_launch launch = {
        .entry = g->entries[kernel],
        .name = cuda_gemm_kinds[kernel].name,
        .grid = {p->n_tiles},
        .block = {cuda_gemm_kinds[kernel].width * BRIEF_ROW_THREADS},
        .overlap = a->overlap,
        .params = (void *[]){p, &norm},
    };

    /* A short tile is read to a warpgroup's rows, in its last block of K, too. */
    launch.shared_bytes =
        ALIGN_BYTES + max_u32(tile_bytes + rows_bytes,
                              tile_bytes + (SM90_GEMM_TILE_MAX / 2 - p->tile) * ROW_BYTES);
    p->n_row_tiles = 1;
    p->height = a->n_rows;
    return cuda_driver_launch(g->driver, &launch, e);
}

int cuda_gemm_run_by(struct cuda_gemm *g, enum cuda_gemm_kernel kernel,
                     const struct cuda_gemm_args *a, struct err *e) {
    struct sm90_gemm p = {
        .weights = a->w->d_image,
        .x = a->d_x,
        .out = a->d_out,
        .n = a->w->n,
        .n_k = a->w->n_k,
        .n_rows = a->n_rows,
        .x_stride = a->x_stride,
        .out_stride = a->out_stride,
        .tile = a->w->tile,
        .n_tiles = a->w->n_tiles,
        .n_blocks = a->w->n_blocks,
        .segments = a->segments,
        .form = a->form,
        .next = a->next,
    };

    ASSERT(a->d_x % 16 == 0 && a->d_out % 16 == 0 && a->w->d_image % ALIGN_BYTES == 0);
    ASSERT(a->x_stride % 8 == 0 && a->out_stride % 8 == 0);
    ASSERT(a->segments && a->segments <= SM90_GEMM_SEGMENTS_MAX &&
           (a->segments & (a->segments - 1)) == 0);
    ASSERT(a->form != SM90_GEMM_SILU || a->w->turns);
    ASSERT((a->form == SM90_GEMM_TURNED) == (a->turn != NULL));
    ASSERT(!a->turn || cuda_gemm_turns(kernel, a->w, a->segments));
    ASSERT(a->next == SM90_GEMM_NEXT_AT_ONCE || a->turn || a->norm); /* others do not look at it */
    ASSERT((is_normed(kernel) || is_brief(kernel)) == (a->norm != NULL));
    if (a->n_rows == 0) return 0;
    if (a->turn) p.turn = *a->turn;
    ASSERT(cuda_gemm_can(kernel, a->w, a->segments));
    if (kernel == CUDA_GEMM_ANY) return run_any(g, a, &p, e);
    if (is_quarter(kernel)) return run_quarter(g, kernel, a, &p, e);
    if (is_brief(kernel)) return run_brief(g, kernel, a, &p, e);
    if (is_four(kernel)) return run_four(g, kernel, a, &p, e);
    if (is_wide(kernel)) return run_wide(g, kernel, a, &p, e);
    if (is_spread(kernel)) return run_spread(g, kernel, a, &p, e);
    return is_many(kernel) ? run_many(g, kernel, a, &p, e) : run_few(g, kernel, a, &p, e);
}

/* With fewer multiprocessors, or a part of them, blocks that wait for each other might not all find a
 * place, nor a cluster of four. */
static uint32_t splits_here(const struct cuda_gemm *g, uint32_t n_splits) {
    return g->driver->n_own < UNITS ? 1 : n_splits;
}

enum cuda_gemm_kernel cuda_gemm_chosen(const struct cuda_gemm *g, const struct cuda_gemm_weight *w,
                                       uint32_t n_rows, uint32_t segments) {
    return cuda_gemm_choose_so(w, n_rows, segments, splits_here(g, 0));
}

int cuda_gemm_run(struct cuda_gemm *g, const struct cuda_gemm_args *a, struct err *e) {
    struct cuda_gemm_args args = *a;

    if (a->norm)
        return cuda_gemm_run_by(g,
                                a->norm->squares ? cuda_gemm_choose_normed(a->n_rows)
                                                 : cuda_gemm_choose_brief(a->n_rows),
                                a, e);
    args.n_splits = splits_here(g, a->n_splits);
    return cuda_gemm_run_by(g, cuda_gemm_choose_so(a->w, a->n_rows, a->segments, args.n_splits),
                            &args, e);
}

#endif
