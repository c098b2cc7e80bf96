#ifdef LLM42_CUDA

#include "runtime/assert.h"
#include "runtime/cuda_gemm_impl.h"

enum {
    STEP = 16,                /* values of K */
    NORMED_SQUARES_MAX = 512, /* as in sm90_gemm_normed.cuh */
    NORMED_K_MAX = 16384,     /* w of the norm takes its room from the rings */
    BRIEF_K_MAX = 1024,       /* a chunk of 8 values to each of 128 threads */
    BRIEF_TILE_MAX = 64,
    MANY_ROWS_MIN = 65,
    ROUND_CYCLES = 3000,   /* of a tile's end and the next one's beginning */
    CLUSTER_CYCLES = 2000, /* of two blocks that add up their sums */
    PARK_CYCLES = 2000,    /* half of a tile's tree to shared memory and back */
    PAIR_CYCLES = 4000,    /* of blocks that wait for each other to begin and to end */
    HBM_BYTES_PER_CYCLE = 2100,
    MANY_WIDE_MAX = 256,
    MANY_TREE = 4, /* segments that the kernels with a tree add up */
    MANY_SPLITS_MAX = 4,
    FOUR_ROUND_CYCLES = 28, /* a row of W to a tile */
    SPREAD_CLUSTERS = 29,   /* of four that always find a place at once */
    SPREAD_CYCLES = 4000,   /* of four blocks that add up their sums */
    SPREAD_ROWS_MAX = 192,  /* of more, two pairs of blocks to a tile are measured faster */
    /* Rows and blocks of K, where counts of cycles were held against what kernels take. */
    COUNTED_ROWS_MIN = 513,
    COUNTED_ROWS_MAX = 2048,
    COUNTED_BLOCKS_MIN = 64,
    /* Of blocks that wait for each other: no more of them than have a place at once. */
    WAITING_PAIRS = UNITS / MANY_RANKS,
};

_Static_assert((int)SM90_GEMM_BLOCKS_MAX >= (int)UNITS, "room for sums of all that wait");

const struct cuda_gemm_kind cuda_gemm_kinds[CUDA_GEMM_END] = {
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
    [CUDA_GEMM_MANY240] = {"sm90_gemm_bf16_many240", 240, 4},
    [CUDA_GEMM_MANY256] = {"sm90_gemm_bf16_many256", 256, 4},
    [CUDA_GEMM_TALL192] = {"sm90_gemm_bf16_tall192", 192, 4},
    [CUDA_GEMM_TREE192] = {"sm90_gemm_bf16_tree192", 192, 3},
    [CUDA_GEMM_SPLIT128] = {"sm90_gemm_bf16_split128", 128, 6},
    [CUDA_GEMM_FOUR32] = {"sm90_gemm_bf16_four32", 32, 3},
    [CUDA_GEMM_FOUR64] = {"sm90_gemm_bf16_four64", 64, 2},
    [CUDA_GEMM_WIDE128] = {"sm90_gemm_bf16_wide128", 128, 4},
    [CUDA_GEMM_WIDE160] = {"sm90_gemm_bf16_wide160", 160, 4},
    [CUDA_GEMM_WIDE192] = {"sm90_gemm_bf16_wide192", 192, 4},
    [CUDA_GEMM_SPREAD144] = {"sm90_gemm_bf16_spread144", 144, 0},
    [CUDA_GEMM_FEW8_NVRTC] = {"sm90_gemm_bf16_few8_nvrtc", 8, 0},
    [CUDA_GEMM_QUARTER9] = {"sm90_gemm_bf16_quarter9", 16, 9},
    [CUDA_GEMM_QUARTER24] = {"sm90_gemm_bf16_quarter24", 16, 24},
    [CUDA_GEMM_NORMED8] = {"sm90_gemm_bf16_normed8", 8, 0},
    [CUDA_GEMM_NORMED16] = {"sm90_gemm_bf16_normed16", 16, 0},
    [CUDA_GEMM_BRIEF8] = {"sm90_gemm_bf16_brief8", 8, 0},
    [CUDA_GEMM_BRIEF16] = {"sm90_gemm_bf16_brief16", 16, 0},
};

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
/* Segments that one block adds up, at most, and blocks that share those of a tile. */
static uint32_t many_tree(enum cuda_gemm_kernel kernel) {
    return kernel == CUDA_GEMM_MANY128 || kernel == CUDA_GEMM_TREE192 ||
                   kernel == CUDA_GEMM_SPLIT128
               ? MANY_TREE
               : 1;
}

static bool many_can_split(enum cuda_gemm_kernel kernel, uint32_t n_splits) {
    return kernel == CUDA_GEMM_SPLIT128 ? n_splits == 2 || n_splits == MANY_SPLITS_MAX
                                        : n_splits == 1;
}

/* Segments that end inside blocks of K: of the fewest rows FOUR* leave no sums of squares. */
static bool few_can_steps(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                          uint32_t segments) {
    return (kernel == CUDA_GEMM_FEW8_NVRTC || kernel == CUDA_GEMM_FEW16) &&
           w->n_k % (STEP * segments) == 0;
}

static bool brief_can(const struct cuda_gemm_weight *w, uint32_t segments) {
    return segments == 1 && w->tile % 16 == 0 && w->tile <= BRIEF_TILE_MAX &&
           w->n_k % SM90_GEMM_BLOCK == 0 && w->n_k <= BRIEF_K_MAX;
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
    if (is_spread(kernel)) return !w->turns && segments == SPREAD && aligned;
    if (is_normed(kernel)) return segments == 1 && w->tile % 16 == 0;
    if (is_brief(kernel)) return brief_can(w, segments);
    if (is_quarter(kernel))
        return !w->turns && segments == FOUR_SEGMENTS &&
               w->n_k == FOUR_SEGMENTS * STEP * cuda_gemm_kinds[kernel].stages;
    if (is_few(kernel))
        return (aligned || few_can_steps(kernel, w, segments)) &&
               segments / ranks <= (cuda_gemm_kinds[kernel].width > 32 ? 2u : 4u);
    /* One with a tree has no room for the gate, and the narrowest is without. */
    if (w->turns && (many_tree(kernel) > 1 || kernel == CUDA_GEMM_MANY48)) return false;
    if (kernel != CUDA_GEMM_SPLIT128) return aligned && segments <= many_tree(kernel);
    return aligned && segments > 1 && segments <= MANY_TREE * MANY_SPLITS_MAX;
}

uint32_t cuda_gemm_many_height(enum cuda_gemm_kernel kernel, uint32_t n_rows,
                               struct cuda_gemm_way way) {
    const uint32_t whole = many_rows(kernel) * (way.share_x ? 1 : MANY_RANKS);
    const uint32_t n_shares = ceil_div(n_rows, whole) * MANY_RANKS;
    const uint32_t share = ceil_div(n_rows, n_shares * SM90_GEMM_ATOM_ROWS) * SM90_GEMM_ATOM_ROWS;

    return way.share_x ? MANY_RANKS * share : share;
}

static uint32_t many_tiles(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                           uint32_t n_rows, struct cuda_gemm_way way) {
    const uint32_t rows = many_rows(kernel) * (way.share_x ? 1 : MANY_RANKS);
    const uint32_t columns = cuda_gemm_kinds[kernel].width * (way.share_x ? MANY_RANKS : 1);

    return ceil_div(n_rows, rows) * ceil_div(w->n, columns);
}

uint32_t cuda_gemm_many_whole(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                              uint32_t n_rows, struct cuda_gemm_way way) {
    const uint32_t n_tiles = many_tiles(kernel, w, n_rows, way);

    return way.n_splits > 1 ? n_tiles - n_tiles % WAITING_PAIRS : 0;
}

uint32_t cuda_gemm_many_pairs(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                              uint32_t n_rows, struct cuda_gemm_way way) {
    const uint32_t n_whole = cuda_gemm_many_whole(kernel, w, n_rows, way);

    return n_whole + (many_tiles(kernel, w, n_rows, way) - n_whole) * way.n_splits;
}

/* Whether the kernel can do it so; pairs that wait for each other must all be on the GPU, and a whole
 * tile's segments fit the registers of its blocks. */
static bool many_can(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                     uint32_t n_rows, uint32_t segments, struct cuda_gemm_way way) {
    const uint32_t n_whole = cuda_gemm_many_whole(kernel, w, n_rows, way);
    const uint32_t n_split = cuda_gemm_many_pairs(kernel, w, n_rows, way) - n_whole;

    return many_can_split(kernel, way.n_splits) && way.n_splits <= segments &&
           segments / (n_whole ? 1 : way.n_splits) <= many_tree(kernel) &&
           (way.n_splits == 1 || (n_split > 0 && n_split <= WAITING_PAIRS));
}

bool cuda_gemm_can_so(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                      uint32_t n_rows, uint32_t segments, uint32_t n_splits,
                      enum cuda_gemm_pairs pairs) {
    if (!cuda_gemm_can(kernel, w, segments)) return false;
    if (!is_many(kernel)) return n_splits == 1 && pairs == CUDA_GEMM_SHARE_W;
    return many_can(kernel, w, n_rows, segments,
                    (struct cuda_gemm_way){n_splits, pairs == CUDA_GEMM_SHARE_X});
}

/* What HBM takes to bring a block of K of so many rows of W to each of n units, in cycles. */
static uint32_t hbm_cycles(uint32_t n_rows_of_w, uint32_t n) {
    return n_rows_of_w * ROW_BYTES * min_u32(n, UNITS) / HBM_BYTES_PER_CYCLE;
}

/* About how many cycles it takes, but for what all kernels have in common. */
static uint64_t many_cycles(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                            uint32_t n_rows, uint32_t segments, struct cuda_gemm_way way) {
    const uint32_t width = cuda_gemm_kinds[kernel].width,
                   height = cuda_gemm_many_height(kernel, n_rows, way);
    const uint32_t n_blocks = cuda_gemm_many_pairs(kernel, w, n_rows, way) * MANY_RANKS;
    const uint32_t n_whole = cuda_gemm_many_whole(kernel, w, n_rows, way) * MANY_RANKS;
    const uint32_t n_wgs = ceil_div(height, 64);
    /* A block of K: what wgmma reads of shared memory and the copies write there, 128 bytes a
     * cycle; what can come in, 50; the steps; HBM. */
    const uint32_t shared = height + width + n_wgs * (64 + width);
    const uint32_t comes = (height + width) * 26 / 10;
    /* Tiles of rows of x go through the same weights together. */
    const uint32_t rows = many_rows(kernel) * (way.share_x ? 1 : MANY_RANKS);
    const uint32_t together = min_u32(ceil_div(n_rows, rows), MANY_GROUP);
    const uint32_t hbm = hbm_cycles(way.share_x ? width : width / MANY_RANKS, n_blocks) / together;
    /* With three stages the steps wait now and then; and of what comes in this counts too much where L2
     * has it: tiles of 192 took 1.42 of the time of those of 128, not 1.25. */
    const bool parks = kernel == CUDA_GEMM_TREE192;
    const uint32_t steps = n_wgs * 2 * width * (parks ? 13 : 10) / 10;
    const uint32_t block = max_u32(max_u32(shared, comes), max_u32(steps, hbm));
    const uint32_t round = ROUND_CYCLES + (parks && segments > 2 ? PARK_CYCLES : 0);
    const uint32_t join = way.n_splits == 1 ? 0 : way.n_splits == 2 ? 3000 : 5000;

    return (uint64_t)ceil_div(n_whole, UNITS) * (w->n_blocks * block + round) +
           (uint64_t)ceil_div(n_blocks - n_whole, UNITS) *
               (w->n_blocks / way.n_splits * block + round) +
           join + PAIR_CYCLES;
}

/* The same of the widest kernel of few rows. */
static uint64_t few_cycles(const struct cuda_gemm_weight *w, uint32_t n_rows, uint32_t segments) {
    const uint32_t ranks = w->cut && segments > 1 ? CUT_RANKS : 1;
    const uint32_t n_row_tiles = ceil_div(n_rows, cuda_gemm_kinds[CUDA_GEMM_FEW128].width);
    const uint32_t n_blocks = w->n_tiles * n_row_tiles * ranks;
    const uint32_t comes = (w->tile + ceil_div(n_rows, n_row_tiles)) * 26 / 10;
    const uint32_t hbm = hbm_cycles(w->tile, n_blocks);
    /* Where both are as much, they take an eighth more. */
    const uint32_t block = max_u32(max_u32(comes, hbm), (comes + hbm) * 9 / 16);

    return (uint64_t)ceil_div(n_blocks, UNITS) * (w->n_blocks / ranks * block + ROUND_CYCLES) +
           (ranks > 1 ? CLUSTER_CYCLES : 0);
}

uint32_t cuda_gemm_four_tiles(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                              uint32_t n_rows) {
    return ceil_div(n_rows, SM90_GEMM_FOUR_TOKENS) * ceil_div(w->n, cuda_gemm_kinds[kernel].width);
}

static uint64_t four_cycles(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                            uint32_t n_rows, uint32_t segments) {
    const uint32_t n_tiles = cuda_gemm_four_tiles(kernel, w, n_rows);
    /* A block that two segments share comes twice. */
    const uint32_t n_blocks = w->n_blocks + (w->n_k % (SM90_GEMM_BLOCK * segments) ? segments : 0);
    const uint32_t width = cuda_gemm_kinds[kernel].width,
                   comes = (SM90_GEMM_FOUR_TOKENS + width) * 26 / 10;

    return (uint64_t)ceil_div(n_tiles, UNITS) * (n_blocks * comes + width * FOUR_ROUND_CYCLES);
}

/* UINT64_MAX where it would read the weights twice: others do that better. */
static uint64_t wide_cycles(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                            uint32_t n_rows) {
    const uint32_t width = cuda_gemm_kinds[kernel].width;
    const uint32_t n_tiles = ceil_div(w->n, SM90_GEMM_WIDE_ROWS);
    const uint32_t comes = (SM90_GEMM_WIDE_ROWS + n_rows) * 26 / 10;
    const uint32_t hbm = hbm_cycles(SM90_GEMM_WIDE_ROWS, n_tiles);
    /* A block of K is four steps of four times 64 rows of W. */
    const uint32_t block = max_u32(max_u32(comes, 8 * width), hbm);

    if (n_rows > width) return UINT64_MAX;
    return (uint64_t)ceil_div(n_tiles, UNITS) * (w->n_blocks * block + ROUND_CYCLES);
}

/* UINT64_MAX where there are several tiles of x: others do that better. */
static uint64_t spread_cycles(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                              uint32_t n_rows) {
    const uint32_t width = cuda_gemm_kinds[kernel].width, n_parts = ceil_div(n_rows, 64);
    const uint32_t n_tiles = ceil_div(w->n, width);
    /* As of many: shared memory, what comes in, the steps, HBM. */
    const uint32_t shared = n_rows + width + n_parts * (64 + width);
    const uint32_t comes = (n_rows + width) * 26 / 10;
    const uint32_t hbm = hbm_cycles(width, min_u32(n_tiles, SPREAD_CLUSTERS) * SPREAD);
    const uint32_t block = max_u32(max_u32(shared, comes), max_u32(n_parts * 2 * width, hbm));

    if (n_rows > SPREAD_ROWS_MAX) return UINT64_MAX;
    return (uint64_t)ceil_div(n_tiles, SPREAD_CLUSTERS) *
           (w->n_blocks / SPREAD * block + ROUND_CYCLES + SPREAD_CYCLES);
}

uint64_t cuda_gemm_many_choose(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                               uint32_t n_rows, uint32_t segments, uint32_t n_splits,
                               uint32_t pairs, struct cuda_gemm_way *out_way) {
    uint64_t best = UINT64_MAX;

    for (uint32_t splits = 1; splits <= MANY_SPLITS_MAX; splits *= 2)
        for (int share_x = 0; share_x < 2; share_x++) {
            const struct cuda_gemm_way way = {splits, share_x};
            uint64_t cycles;

            if (n_splits && n_splits != splits) continue;
            if (pairs && share_x != (pairs == CUDA_GEMM_SHARE_X)) continue;
            if (!many_can(kernel, w, n_rows, segments, way)) continue;
            cycles = many_cycles(kernel, w, n_rows, segments, way);
            if (cycles >= best) continue;
            best = cycles;
            *out_way = way;
        }
    return best;
}

/* The count as kernels of one segment were measured against each other (docs/performance.md): it is
 * too high where L2 brings more than 50 bytes a cycle, of MANY192 as far as pairs share W, for so it was
 * measured.  UINT64_MAX of those that were measured to gain nowhere else. */
static uint64_t as_measured(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                            uint32_t n_rows, bool share_x, uint64_t cycles) {
    static const uint32_t percents[CUDA_GEMM_END] = {
        [CUDA_GEMM_MANY192] = 92,  [CUDA_GEMM_MANY224] = 97,  [CUDA_GEMM_MANY240] = 100,
        [CUDA_GEMM_MANY256] = 100, [CUDA_GEMM_TALL192] = 102,
    };
    const bool counted = n_rows >= COUNTED_ROWS_MIN && n_rows <= COUNTED_ROWS_MAX &&
                         w->n_blocks >= COUNTED_BLOCKS_MIN;

    if (!counted && (kernel == CUDA_GEMM_MANY240 || kernel == CUDA_GEMM_TALL192)) return UINT64_MAX;
    if (!counted || cycles == UINT64_MAX || percents[kernel] == 0) return cycles;
    if (kernel == CUDA_GEMM_MANY192 && share_x) return cycles;
    return cycles * percents[kernel] / 100;
}

enum cuda_gemm_kernel cuda_gemm_choose_so(const struct cuda_gemm_weight *w, uint32_t n_rows,
                                          uint32_t segments, uint32_t n_splits) {
    enum cuda_gemm_kernel kernel = CUDA_GEMM_FEW128;
    uint64_t best = UINT64_MAX;

    for (enum cuda_gemm_kernel k = CUDA_GEMM_QUARTER9; k <= CUDA_GEMM_QUARTER24; k++)
        if (n_rows <= cuda_gemm_kinds[k].width && w->n / SM90_GEMM_ATOM_ROWS <= UNITS &&
            cuda_gemm_can(k, w, segments))
            return k;
    while (kernel > CUDA_GEMM_FEW8 &&
           (cuda_gemm_kinds[kernel - 1].width >= n_rows || !cuda_gemm_can(kernel, w, segments)))
        kernel--;
    if (kernel == CUDA_GEMM_FEW8 && !cuda_gemm_can(kernel, w, segments))
        kernel = CUDA_GEMM_FEW8_NVRTC;
    if (!cuda_gemm_can(kernel, w, segments) ||
        (kernel < CUDA_GEMM_FEW128 && cuda_gemm_kinds[kernel].width < n_rows))
        kernel = CUDA_GEMM_ANY;
    if (n_rows < MANY_ROWS_MIN && kernel != CUDA_GEMM_ANY) return kernel;
    if (kernel == CUDA_GEMM_FEW128) best = few_cycles(w, n_rows, segments);
    for (enum cuda_gemm_kernel k = CUDA_GEMM_MANY48; k <= CUDA_GEMM_SPREAD144; k++) {
        struct cuda_gemm_way way = {0};
        uint64_t cycles;

        if (!cuda_gemm_can(k, w, segments) || (is_spread(k) && n_splits == 1)) continue;
        /* A kernel more, which reads and writes all there is, costs more than any of these differ. */
        if (w->head_dim && segments == 1 && !cuda_gemm_turns(k, w, segments)) continue;
        cycles = is_four(k)     ? four_cycles(k, w, n_rows, segments)
                 : is_wide(k)   ? wide_cycles(k, w, n_rows)
                 : is_spread(k) ? spread_cycles(k, w, n_rows)
                                : cuda_gemm_many_choose(k, w, n_rows, segments, n_splits, 0, &way);
        cycles = as_measured(k, w, n_rows, way.share_x, cycles);
        if (cycles >= best) continue;
        best = cycles;
        kernel = k;
    }
    return kernel;
}

enum cuda_gemm_kernel cuda_gemm_choose(const struct cuda_gemm_weight *w, uint32_t n_rows,
                                       uint32_t segments) {
    return cuda_gemm_choose_so(w, n_rows, segments, 0);
}

enum cuda_gemm_kernel cuda_gemm_choose_normed(uint32_t n_rows) {
    enum cuda_gemm_kernel kernel = CUDA_GEMM_NORMED8;

    while (kernel <= CUDA_GEMM_NORMED16 && cuda_gemm_kinds[kernel].width < n_rows) kernel++;
    return kernel;
}

enum cuda_gemm_kernel cuda_gemm_choose_brief(uint32_t n_rows) {
    enum cuda_gemm_kernel kernel = CUDA_GEMM_BRIEF8;

    while (kernel <= CUDA_GEMM_BRIEF16 && cuda_gemm_kinds[kernel].width < n_rows) kernel++;
    return kernel;
}

bool cuda_gemm_can_brief(const struct cuda_gemm_weight *w, uint32_t n_rows, uint32_t segments) {
    return cuda_gemm_choose_brief(n_rows) <= CUDA_GEMM_BRIEF16 && w->n_tiles <= UNITS &&
           brief_can(w, segments);
}

uint32_t cuda_gemm_squares(const struct cuda_gemm_weight *w, uint32_t n_rows, uint32_t segments) {
    const bool joined = w->cut && segments > 1;

    if (!joined || cuda_gemm_choose_normed(n_rows) > CUDA_GEMM_NORMED16 ||
        !is_few(cuda_gemm_choose_so(w, n_rows, segments, 0)))
        return 0;
    return ceil_div(w->n, w->tile / CUT_RANKS);
}

bool cuda_gemm_can_norm(const struct cuda_gemm_weight *w, uint32_t n_rows, uint32_t segments,
                        uint32_t n_squares) {
    return n_squares > 0 && n_squares <= NORMED_SQUARES_MAX && w->n_k <= NORMED_K_MAX &&
           cuda_gemm_choose_normed(n_rows) <= CUDA_GEMM_NORMED16 &&
           cuda_gemm_can(cuda_gemm_choose_normed(n_rows), w, segments);
}

/* Of one segment.  The kernel by hand does not know the form, FEW128 would hold attention up by more
 * than a launch takes (docs/performance.md), beside a tree there are no registers, and WIDE* are
 * chosen for no model's q, k and v. */
bool cuda_gemm_turns(enum cuda_gemm_kernel kernel, const struct cuda_gemm_weight *w,
                     uint32_t segments) {
    if (!w->head_dim || segments > 1) return false;
    if (is_many(kernel)) return many_tree(kernel) == 1;
    return is_normed(kernel) || is_brief(kernel) ||
           (is_few(kernel) && kernel != CUDA_GEMM_FEW8 && kernel != CUDA_GEMM_FEW128);
}

bool cuda_gemm_can_turn(const struct cuda_gemm_weight *w, uint32_t n_rows, uint32_t segments) {
    return cuda_gemm_turns(cuda_gemm_choose(w, n_rows, segments), w, segments);
}

const char *cuda_gemm_name(enum cuda_gemm_kernel kernel) {
    ASSERT(kernel < CUDA_GEMM_END);
    return cuda_gemm_kinds[kernel].name;
}

#endif
