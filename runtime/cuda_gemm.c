#ifdef LLM42_CUDA

#include "runtime/cuda_gemm.h"

#include <errno.h>
#include <stdlib.h>

#include "runtime/assert.h"
#include "runtime/cuda_driver.h"
#include "runtime/err.h"

enum {
    UNITS = 132,         /* multiprocessors that tiles are spread over */
    CUT_RANKS = 2,       /* blocks that share the segments of a tile */
    COPY_THREADS = 64,   /* of sm90_gemm_bf16_few* */
    SCALE_THREADS = 128, /* of sm90_gemm_bf16_normed* */
    ROW_STAGES_MAX = 8,
    RING_BYTES = 108 << 10,       /* two kernels' rings share a multiprocessor, so they overlap */
    RING_BYTES_ALONE = 200 << 10, /* where registers leave room for one anyway */
    ALIGN_BYTES = 1024,
    STEP = 16, /* values of K */
    ROW_BYTES = 2 * SM90_GEMM_BLOCK,
    PART_PAD = 4,             /* as in sm90_gemm_few.cuh */
    NORMED_SQUARES_MAX = 512, /* as in sm90_gemm_normed.cuh */
    NORMED_K_MAX = 16384,     /* w of the norm takes its room from the rings */
    MANY_THREADS = 384,
    MANY_RANKS = 2,
    MANY_STAGING_BYTES = 8 * 16 * 144, /* as in sm90_gemm_many.cuh */
    MANY_GROUP = 8,                    /* pairs of row tiles: 4 MB of x at K = 1024 */
    MANY_ROWS_MIN = 65,
    ROUND_CYCLES = 3000,   /* of a tile's end and the next one's beginning */
    CLUSTER_CYCLES = 2000, /* of two blocks that add up their sums */
    PAIR_CYCLES = 4000,    /* of blocks that wait for each other to begin and to end */
    HBM_BYTES_PER_CYCLE = 2100,
    MANY_WIDE_MAX = 256,
    MANY_CUT_WIDE = 128, /* of the kernel whose registers hold a tree of MANY_TREE segments */
    MANY_TREE = 4,
    MANY_SPLITS_MAX = 4,
    WIDE_THREADS = 384,
    WIDE128_THREADS = 640,
    FOUR_THREADS = 640,
    FOUR_SEGMENTS = 4,
    FOUR_ROUND_CYCLES = 28, /* a row of W to a tile */
    PACK_THREADS = 256,
    GRID_Y_MAX = 65535,
    HOLD_BYTES_PER_US = 4500000 / 8 * 10, /* memory's rate, of which a block waits 8 parts in 10 */
};

static const struct kernel_info {
    const char *name;
    uint32_t width; /* rows of x to a tile of few and wide, of W to one of many and four */
    uint32_t stages;
} kernels[CUDA_GEMM_END] = {
    [CUDA_GEMM_ANY] = {"sm90_gemm_bf16_any", 0, 0},
    [CUDA_GEMM_FEW8] = {"sm90_gemm_bf16_few8", 8, 0},
    [CUDA_GEMM_FEW16] = {"sm90_gemm_bf16_few16", 16, 0},
    [CUDA_GEMM_FEW32] = {"sm90_gemm_bf16_few32", 32, 0},
    [CUDA_GEMM_FEW64] = {"sm90_gemm_bf16_few64", 64, 0},
    [CUDA_GEMM_FEW128] = {"sm90_gemm_bf16_few128", 128, 0},
    [CUDA_GEMM_MANY48] = {"sm90_gemm_bf16_many48", 48, 9},
    [CUDA_GEMM_MANY96] = {"sm90_gemm_bf16_many96", 96, 7},
    [CUDA_GEMM_MANY128] = {"sm90_gemm_bf16_many128", 128, 6},
    [CUDA_GEMM_MANY192] = {"sm90_gemm_bf16_many192", 192, 5},
    [CUDA_GEMM_MANY224] = {"sm90_gemm_bf16_many224", 224, 4},
    [CUDA_GEMM_MANY256] = {"sm90_gemm_bf16_many256", 256, 4},
    [CUDA_GEMM_SPLIT128] = {"sm90_gemm_bf16_split128", 128, 6},
    [CUDA_GEMM_FOUR32] = {"sm90_gemm_bf16_four32", 32, 3},
    [CUDA_GEMM_FOUR64] = {"sm90_gemm_bf16_four64", 64, 2},
    [CUDA_GEMM_WIDE128] = {"sm90_gemm_bf16_wide128", 128, 4},
    [CUDA_GEMM_WIDE160] = {"sm90_gemm_bf16_wide160", 160, 4},
    [CUDA_GEMM_WIDE192] = {"sm90_gemm_bf16_wide192", 192, 4},
    [CUDA_GEMM_FEW8_NVRTC] = {"sm90_gemm_bf16_few8_nvrtc", 8, 0},
    [CUDA_GEMM_NORMED8] = {"sm90_gemm_bf16_normed8", 8, 0},
    [CUDA_GEMM_NORMED16] = {"sm90_gemm_bf16_normed16", 16, 0},
};

struct cuda_gemm {
    struct cuda_driver *driver;
    CUfunction pack;
    CUfunction entries[CUDA_GEMM_END];
};

static uint32_t ceil_div(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

static uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static uint32_t max_u32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* The smallest tile that needs no second round of blocks, or else the one whose last round is the
 * fullest. */
static uint32_t choose_tile(uint32_t n, bool cut, bool pairs) {
    static const uint32_t whole[] = {8, 16, 24, 32, 48, 56, 96, 112}, halves[] = {8, 16, 32, 64};
    const uint32_t *tiles = cut ? halves : whole;
    const uint32_t n_choices = cut ? 4 : 8, ranks = cut ? CUT_RANKS : 1;
    uint32_t best = tiles[n_choices - 1], best_waste = UINT32_MAX;

    for (uint32_t i = 0; i < n_choices; i++) {
        const uint32_t n_blocks = ceil_div(n, tiles[i]) * ranks;

        if (pairs && tiles[i] % 16) continue;
        if (n_blocks <= UNITS) return tiles[i];
    }
    for (uint32_t i = n_choices; i-- > n_choices / 2;) {
        /* Rows that a unit's time would have room for, over all rounds. */
        const uint32_t room = ceil_div(ceil_div(n, tiles[i]) * ranks, UNITS) * tiles[i];

        if (pairs && tiles[i] % 16) continue;
        if (room < best_waste) {
            best = tiles[i];
            best_waste = room;
        }
    }
    return best;
}

static void shape(struct cuda_gemm_weight *out_w, uint32_t n, uint32_t n_k, uint32_t segments,
                  bool turns, uint32_t head_dim) {
    const bool pairs = turns || head_dim, cut = segments > 1 && !pairs;
    const uint32_t tile = choose_tile(n, cut, pairs);
    /* The widest tile of many rows may begin at the last eight and reads on. */
    const uint32_t n_tiles = ceil_div(n + MANY_WIDE_MAX - SM90_GEMM_ATOM_ROWS, tile);

    ASSERT(n > 0 && n % (turns ? 16 : 8) == 0 && n_k > 0 && n_k % 16 == 0);
    *out_w = (struct cuda_gemm_weight){
        .n = n,
        .n_k = n_k,
        .tile = tile,
        .n_tiles = ceil_div(n, tile),
        .n_blocks = ceil_div(n_k, SM90_GEMM_BLOCK),
        .cut = cut,
        .turns = turns,
        .head_dim = head_dim,
    };
    out_w->n_bytes = (uint64_t)n_tiles * tile * out_w->n_blocks * ROW_BYTES;
}

void cuda_gemm_shape(struct cuda_gemm_weight *out_w, uint32_t n, uint32_t n_k, uint32_t segments,
                     bool turns) {
    shape(out_w, n, n_k, segments, turns, 0);
}

void cuda_gemm_shape_heads(struct cuda_gemm_weight *out_w, uint32_t n, uint32_t n_k,
                           uint32_t segments, uint32_t head_dim) {
    ASSERT(head_dim > 0 && head_dim % 16 == 0 && n % head_dim == 0);
    shape(out_w, n, n_k, segments, false, head_dim);
}

static bool is_few(enum cuda_gemm_kernel kernel) {
    return (kernel >= CUDA_GEMM_FEW8 && kernel <= CUDA_GEMM_FEW128) ||
           kernel == CUDA_GEMM_FEW8_NVRTC;
}

static bool is_normed(enum cuda_gemm_kernel kernel) {
    return kernel >= CUDA_GEMM_NORMED8 && kernel <= CUDA_GEMM_NORMED16;
}

static bool is_many(enum cuda_gemm_kernel kernel) {
    return kernel >= CUDA_GEMM_MANY48 && kernel <= CUDA_GEMM_SPLIT128;
}

static bool is_four(enum cuda_gemm_kernel kernel) {
    return kernel == CUDA_GEMM_FOUR32 || kernel == CUDA_GEMM_FOUR64;
}

static bool is_wide(enum cuda_gemm_kernel kernel) {
    return kernel >= CUDA_GEMM_WIDE128 && kernel <= CUDA_GEMM_WIDE192;
}

/* Segments that one block adds up, at most, and blocks that share those of a tile. */
static uint32_t many_tree(enum cuda_gemm_kernel kernel) {
    return kernels[kernel].width == MANY_CUT_WIDE ? MANY_TREE : 1;
}

static bool many_can_split(enum cuda_gemm_kernel kernel, uint32_t n_splits) {
    return kernel == CUDA_GEMM_SPLIT128 ? n_splits == 2 || n_splits == MANY_SPLITS_MAX
                                        : n_splits == 1;
}

/* Whether no segment ends inside a block of K. */
static bool is_aligned(uint32_t n_k, uint32_t segments) {
    return segments == 1 || n_k % (SM90_GEMM_BLOCK * segments) == 0;
}

/* Segments that end inside blocks of K: of the fewest rows FOUR* leave no sums of squares. */
static bool few_can_steps(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                          uint32_t segments) {
    return (kernel == CUDA_GEMM_FEW8_NVRTC || kernel == CUDA_GEMM_FEW16) &&
           w->n_k % (STEP * segments) == 0;
}

/* Blocks of K must not straddle segments, but for FOUR* and few_can_steps(); and a block's share of
 * them fits its registers. */
bool cuda_gemm_can(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                   uint32_t segments) {
    const uint32_t ranks = w->cut && segments > 1 ? CUT_RANKS : 1;
    const bool aligned = is_aligned(w->n_k, segments);

    if (kernel == CUDA_GEMM_ANY) return true;
    if (is_four(kernel)) return !w->turns && (segments == 2 || segments == FOUR_SEGMENTS);
    if (is_wide(kernel)) return segments == 1;
    if (is_normed(kernel)) return segments == 1 && w->tile % 16 == 0;
    if (is_few(kernel))
        return (aligned || few_can_steps(kernel, w, segments)) &&
               segments / ranks <= (kernels[kernel].width > 32 ? 2u : 4u);
    /* Chunks of 16 columns of the output; the one with a tree has no room for the gate. */
    if (w->turns && (kernels[kernel].width % 32 || many_tree(kernel) > 1)) return false;
    if (kernel != CUDA_GEMM_SPLIT128) return aligned && segments <= many_tree(kernel);
    return aligned && segments > 1 && segments <= MANY_TREE * MANY_SPLITS_MAX;
}

/* A launch of a kernel of many rows: pairs of blocks, each a tile and a share of its segments. */
struct many_way {
    uint32_t n_splits;
    bool share_x;
};

/* Of its tiles of rows of x: no more of them than the pairs need, all alike, and each block's share
 * of one a number of eights. */
static uint32_t many_height(uint32_t n_rows, struct many_way way) {
    const uint32_t whole = SM90_GEMM_MANY_TOKENS * (way.share_x ? 1 : MANY_RANKS);
    const uint32_t n_shares = ceil_div(n_rows, whole) * MANY_RANKS;
    const uint32_t share = ceil_div(n_rows, n_shares * SM90_GEMM_ATOM_ROWS) * SM90_GEMM_ATOM_ROWS;

    return way.share_x ? MANY_RANKS * share : share;
}

static uint32_t many_pairs(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                           uint32_t n_rows, struct many_way way) {
    const uint32_t rows = SM90_GEMM_MANY_TOKENS * (way.share_x ? 1 : MANY_RANKS);
    const uint32_t columns = kernels[kernel].width * (way.share_x ? MANY_RANKS : 1);

    return ceil_div(n_rows, rows) * ceil_div(w->n, columns) * way.n_splits;
}

/* Whether the kernel can do it so; pairs that wait for each other must all be on the GPU. */
static bool many_can(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                     uint32_t n_rows, uint32_t segments, struct many_way way) {
    const uint32_t limit = min_u32(SM90_GEMM_BLOCKS_MAX, UNITS) / MANY_RANKS;

    return many_can_split(kernel, way.n_splits) && way.n_splits <= segments &&
           segments / way.n_splits <= many_tree(kernel) &&
           (way.n_splits == 1 || many_pairs(kernel, w, n_rows, way) <= limit);
}

bool cuda_gemm_can_so(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                      uint32_t n_rows, uint32_t segments, uint32_t n_splits,
                      enum cuda_gemm_pairs pairs) {
    if (!cuda_gemm_can(kernel, w, segments)) return false;
    if (!is_many(kernel)) return n_splits == 1 && pairs == CUDA_GEMM_SHARE_W;
    return many_can(kernel, w, n_rows, segments,
                    (struct many_way){n_splits, pairs == CUDA_GEMM_SHARE_X});
}

/* What HBM takes to bring a block of K of so many rows of W to each of n units, in cycles. */
static uint32_t hbm_cycles(uint32_t n_rows_of_w, uint32_t n) {
    return n_rows_of_w * ROW_BYTES * min_u32(n, UNITS) / HBM_BYTES_PER_CYCLE;
}

/* About how many cycles it takes, but for what all kernels have in common. */
static uint64_t many_cycles(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                            uint32_t n_rows, struct many_way way) {
    const uint32_t width = kernels[kernel].width, height = many_height(n_rows, way);
    const uint32_t n_blocks = many_pairs(kernel, w, n_rows, way) * MANY_RANKS;
    const uint32_t n_wgs = height > 64 ? 2 : 1;
    /* A block of K: what wgmma reads of shared memory and the copies write there, 128 bytes a
     * cycle; what can come in, 50; the steps; HBM. */
    const uint32_t shared = height + width + n_wgs * (64 + width);
    const uint32_t comes = (height + width) * 26 / 10;
    /* Tiles of rows of x go through the same weights together. */
    const uint32_t rows = SM90_GEMM_MANY_TOKENS * (way.share_x ? 1 : MANY_RANKS);
    const uint32_t together = min_u32(ceil_div(n_rows, rows), MANY_GROUP);
    const uint32_t hbm = hbm_cycles(way.share_x ? width : width / MANY_RANKS, n_blocks) / together;
    const uint32_t block = max_u32(max_u32(shared, comes), max_u32(n_wgs * 2 * width, hbm));
    const uint32_t join = way.n_splits == 1 ? 0 : way.n_splits == 2 ? 3000 : 5000;

    return (uint64_t)ceil_div(n_blocks, UNITS) *
               (w->n_blocks / way.n_splits * block + ROUND_CYCLES) +
           join + PAIR_CYCLES;
}

/* The same of the widest kernel of few rows. */
static uint64_t few_cycles(const struct cuda_gemm_weight *w, uint32_t n_rows, uint32_t segments) {
    const uint32_t ranks = w->cut && segments > 1 ? CUT_RANKS : 1;
    const uint32_t n_row_tiles = ceil_div(n_rows, kernels[CUDA_GEMM_FEW128].width);
    const uint32_t n_blocks = w->n_tiles * n_row_tiles * ranks;
    const uint32_t comes = (w->tile + ceil_div(n_rows, n_row_tiles)) * 26 / 10;
    const uint32_t block = max_u32(comes, hbm_cycles(w->tile, n_blocks));

    return (uint64_t)ceil_div(n_blocks, UNITS) * (w->n_blocks / ranks * block + ROUND_CYCLES) +
           (ranks > 1 ? CLUSTER_CYCLES : 0);
}

static uint32_t four_tiles(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                           uint32_t n_rows) {
    return ceil_div(n_rows, SM90_GEMM_FOUR_TOKENS) * ceil_div(w->n, kernels[kernel].width);
}

static uint64_t four_cycles(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                            uint32_t n_rows, uint32_t segments) {
    const uint32_t n_tiles = four_tiles(kernel, w, n_rows);
    /* A block that two segments share comes twice. */
    const uint32_t n_blocks = w->n_blocks + (w->n_k % (SM90_GEMM_BLOCK * segments) ? segments : 0);
    const uint32_t width = kernels[kernel].width, comes = (SM90_GEMM_FOUR_TOKENS + width) * 26 / 10;

    return (uint64_t)ceil_div(n_tiles, UNITS) * (n_blocks * comes + width * FOUR_ROUND_CYCLES);
}

/* UINT64_MAX where it would read the weights twice: others do that better. */
static uint64_t wide_cycles(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                            uint32_t n_rows) {
    const uint32_t width = kernels[kernel].width;
    const uint32_t n_tiles = ceil_div(w->n, SM90_GEMM_WIDE_ROWS);
    const uint32_t comes = (SM90_GEMM_WIDE_ROWS + n_rows) * 26 / 10;
    const uint32_t hbm = hbm_cycles(SM90_GEMM_WIDE_ROWS, n_tiles);
    /* A block of K is four steps of four times 64 rows of W. */
    const uint32_t block = max_u32(max_u32(comes, 8 * width), hbm);

    if (n_rows > width) return UINT64_MAX;
    return (uint64_t)ceil_div(n_tiles, UNITS) * (w->n_blocks * block + ROUND_CYCLES);
}

/* The fastest way of the kernel, of those asked for; its cycles, or UINT64_MAX where it has none. */
static uint64_t many_choose(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                            uint32_t n_rows, uint32_t segments, uint32_t n_splits, uint32_t pairs,
                            struct many_way *out_way) {
    uint64_t best = UINT64_MAX;

    for (uint32_t splits = 1; splits <= MANY_SPLITS_MAX; splits *= 2)
        for (int share_x = 0; share_x < 2; share_x++) {
            const struct many_way way = {splits, share_x};
            uint64_t cycles;

            if (n_splits && n_splits != splits) continue;
            if (pairs && share_x != (pairs == CUDA_GEMM_SHARE_X)) continue;
            if (!many_can(kernel, w, n_rows, segments, way)) continue;
            cycles = many_cycles(kernel, w, n_rows, way);
            if (cycles >= best) continue;
            best = cycles;
            *out_way = way;
        }
    return best;
}

static enum cuda_gemm_kernel choose(const struct cuda_gemm_weight *w, uint32_t n_rows,
                                    uint32_t segments, uint32_t n_splits) {
    enum cuda_gemm_kernel kernel = CUDA_GEMM_FEW128;
    uint64_t best = UINT64_MAX;

    while (kernel > CUDA_GEMM_FEW8 &&
           (kernels[kernel - 1].width >= n_rows || !cuda_gemm_can(kernel, w, segments)))
        kernel--;
    if (kernel == CUDA_GEMM_FEW8 && !cuda_gemm_can(kernel, w, segments))
        kernel = CUDA_GEMM_FEW8_NVRTC;
    if (!cuda_gemm_can(kernel, w, segments) ||
        (kernel < CUDA_GEMM_FEW128 && kernels[kernel].width < n_rows))
        kernel = CUDA_GEMM_ANY;
    if (n_rows < MANY_ROWS_MIN && kernel != CUDA_GEMM_ANY) return kernel;
    if (kernel == CUDA_GEMM_FEW128) best = few_cycles(w, n_rows, segments);
    for (enum cuda_gemm_kernel k = CUDA_GEMM_MANY48; k <= CUDA_GEMM_WIDE192; k++) {
        struct many_way way;
        uint64_t cycles;

        if (!cuda_gemm_can(k, w, segments)) continue;
        cycles = is_four(k)   ? four_cycles(k, w, n_rows, segments)
                 : is_wide(k) ? wide_cycles(k, w, n_rows)
                              : many_choose(k, w, n_rows, segments, n_splits, 0, &way);
        if (cycles >= best) continue;
        best = cycles;
        kernel = k;
    }
    return kernel;
}

enum cuda_gemm_kernel cuda_gemm_choose(const struct cuda_gemm_weight *w, uint32_t n_rows,
                                       uint32_t segments) {
    return choose(w, n_rows, segments, 0);
}

/* The narrowest that takes all rows as one tile; or the end. */
static enum cuda_gemm_kernel choose_normed(uint32_t n_rows) {
    enum cuda_gemm_kernel kernel = CUDA_GEMM_NORMED8;

    while (kernel <= CUDA_GEMM_NORMED16 && kernels[kernel].width < n_rows) kernel++;
    return kernel;
}

uint32_t cuda_gemm_squares(const struct cuda_gemm_weight *w, uint32_t n_rows, uint32_t segments) {
    const bool joined = w->cut && segments > 1;

    if (!joined || choose_normed(n_rows) > CUDA_GEMM_NORMED16 ||
        !is_few(choose(w, n_rows, segments, 0)))
        return 0;
    return ceil_div(w->n, w->tile / CUT_RANKS);
}

bool cuda_gemm_can_norm(const struct cuda_gemm_weight *w, uint32_t n_rows, uint32_t segments,
                        uint32_t n_squares) {
    return n_squares > 0 && n_squares <= NORMED_SQUARES_MAX && w->n_k <= NORMED_K_MAX &&
           choose_normed(n_rows) <= CUDA_GEMM_NORMED16 &&
           cuda_gemm_can(choose_normed(n_rows), w, segments);
}

static uint32_t shared_bytes_many(enum cuda_gemm_kernel kernel) {
    const uint32_t rows = SM90_GEMM_MANY_TOKENS + kernels[kernel].width;

    return ALIGN_BYTES + kernels[kernel].stages * rows * ROW_BYTES + MANY_STAGING_BYTES;
}

static uint32_t shared_bytes_wide(enum cuda_gemm_kernel kernel) {
    const uint32_t rows = SM90_GEMM_WIDE_ROWS + kernels[kernel].width;

    return ALIGN_BYTES + kernels[kernel].stages * rows * ROW_BYTES;
}

/* Four rings, two tiles of sums, and of one warpgroup the staging. */
static uint32_t shared_bytes_four(enum cuda_gemm_kernel kernel) {
    const uint32_t width = kernels[kernel].width, rows = SM90_GEMM_FOUR_TOKENS + width;

    return ALIGN_BYTES + FOUR_SEGMENTS * kernels[kernel].stages * rows * ROW_BYTES +
           2 * SM90_GEMM_FOUR_TOKENS * width * 4 + MANY_STAGING_BYTES / 2;
}

int cuda_gemm_open(struct cuda_driver *d, struct cuda_gemm **out_g, struct err *e) {
    struct cuda_gemm *g = calloc(1, sizeof(*g));
    int r;

    if (!g) return err_set(e, -ENOMEM, "matrix products: bookkeeping");
    g->driver = d;
    r = cuda_driver_entry(d, "sm90_gemm_bf16_pack", "sm90_gemm_bf16_pack", 0, &g->pack, e);
    for (uint32_t i = 0; r == 0 && i < CUDA_GEMM_END; i++) {
        uint32_t n_bytes = 0;

        if (is_few(i) || is_normed(i))
            n_bytes = ALIGN_BYTES + (i == CUDA_GEMM_FEW128 ? RING_BYTES_ALONE : RING_BYTES);
        if (is_many(i)) n_bytes = shared_bytes_many(i);
        if (is_four(i)) n_bytes = shared_bytes_four(i);
        if (is_wide(i)) n_bytes = shared_bytes_wide(i);
        r = cuda_driver_entry(d, kernels[i].name, kernels[i].name, n_bytes, &g->entries[i], e);
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

/* Stages of both rings; `more` bytes stand behind them. */
static void plan_rings(struct sm90_gemm *p, uint32_t width, uint32_t more) {
    const uint32_t budget = (width > 64 ? RING_BYTES_ALONE : RING_BYTES) - more;
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
    const uint32_t width = kernels[kernel].width;
    const uint32_t scale_threads = is_normed(kernel) ? SCALE_THREADS : 0;
    const uint32_t n_wgs = a->w->tile > 64 ? 2 : 1;
    const uint32_t norm_bytes = is_normed(kernel) ? a->w->n_blocks * ROW_BYTES : 0;
    struct cuda_launch launch = {
        .entry = g->entries[kernel],
        .name = kernels[kernel].name,
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
    plan_rings(p, width, norm_bytes);
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
        .name = kernels[kernel].name,
        .block = {MANY_THREADS},
        .cluster = MANY_RANKS,
        .shared_bytes = shared_bytes_many(kernel),
        .overlap = a->overlap,
    };
    struct many_way way = {0, false};
    CUtensorMap map;
    int r;

    (void)many_choose(kernel, a->w, a->n_rows, a->segments, a->n_splits, a->pairs, &way);
    ASSERT(way.n_splits > 0);
    launch.grid[0] = min_u32(many_pairs(kernel, a->w, a->n_rows, way) * MANY_RANKS, UNITS);
    p->group = MANY_GROUP;
    p->share_x = way.share_x;
    p->height = many_height(a->n_rows, way);
    p->once = a->n_rows <= p->height * (way.share_x ? 1 : MANY_RANKS);
    p->n_splits = way.n_splits;
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
        .name = kernels[kernel].name,
        .grid = {min_u32(four_tiles(kernel, a->w, a->n_rows), UNITS)},
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
        .name = kernels[kernel].name,
        .block = {kernel == CUDA_GEMM_WIDE128 ? WIDE128_THREADS : WIDE_THREADS},
        .shared_bytes = shared_bytes_wide(kernel),
        .overlap = a->overlap,
    };
    CUtensorMap map;
    int r;

    p->n_row_tiles = ceil_div(a->n_rows, kernels[kernel].width);
    p->height = ceil_div(a->n_rows, p->n_row_tiles);
    launch.grid[0] = min_u32(ceil_div(a->w->n, SM90_GEMM_WIDE_ROWS) * p->n_row_tiles, UNITS);
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
        .name = kernels[CUDA_GEMM_ANY].name,
        .grid = {ceil_div(ceil_div(a->w->n, 16), 4 / n_shares),
                 ceil_div(a->n_rows, SM90_GEMM_ANY_TOKENS)},
        .block = {128},
        .overlap = a->overlap,
        .params = (void *[]){p},
    };

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
    };

    ASSERT(a->d_x % 16 == 0 && a->d_out % 16 == 0 && a->w->d_image % ALIGN_BYTES == 0);
    ASSERT(a->x_stride % 8 == 0 && a->out_stride % 8 == 0);
    ASSERT(a->segments && a->segments <= SM90_GEMM_SEGMENTS_MAX &&
           (a->segments & (a->segments - 1)) == 0);
    ASSERT(a->form != SM90_GEMM_SILU || a->w->turns);
    ASSERT(a->form != SM90_GEMM_TURNED || (a->w->head_dim && a->norm));
    ASSERT(is_normed(kernel) == (a->norm != NULL));
    if (a->n_rows == 0) return 0;
    ASSERT(cuda_gemm_can(kernel, a->w, a->segments));
    if (kernel == CUDA_GEMM_ANY) return run_any(g, a, &p, e);
    if (is_four(kernel)) return run_four(g, kernel, a, &p, e);
    if (is_wide(kernel)) return run_wide(g, kernel, a, &p, e);
    return is_many(kernel) ? run_many(g, kernel, a, &p, e) : run_few(g, kernel, a, &p, e);
}

int cuda_gemm_run(struct cuda_gemm *g, const struct cuda_gemm_args *a, struct err *e) {
    struct cuda_gemm_args args = *a;

    if (a->norm) return cuda_gemm_run_by(g, choose_normed(a->n_rows), a, e);
    /* With fewer multiprocessors, blocks that wait for each other might not all find a place. */
    if (g->driver->n_own < UNITS) args.n_splits = 1;
    return cuda_gemm_run_by(g, choose(a->w, a->n_rows, a->segments, args.n_splits), &args, e);
}

const char *cuda_gemm_name(enum cuda_gemm_kernel kernel) {
    ASSERT(kernel < CUDA_GEMM_END);
    return kernels[kernel].name;
}

#endif
