/* What the launches of matrix products promise their kernels, without a GPU: of every shape, cut,
 * form and number of rows the launch that is chosen, and all others that can do it, keep to what
 * the heads of the kernels ask for.  The linker sends us the launches.  Skipped (77) in a build
 * without CUDA. */
#include "tests/unit.h"

#ifndef LLM42_CUDA

int main(void) {
    return 77;
}

#else

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda_driver.h"
#include "runtime/cuda_gemm.h"
#include "runtime/err.h"
#include "runtime/num.h"

enum {
    UNITS = 132,
    ALIGN_BYTES = 1024,
    SHARED_MAX = (227 << 10) - 2048, /* of a block, but for what is not dynamic */
    ROW_BYTES = 2 * SM90_GEMM_BLOCK,
    STEP = 16,
    BOX_ROWS_MAX = 256,
    LANES = 32,
    N_SHAPES = 6000,
};

enum family {
    ANY,
    FEW,
    NORMED,
    MANY,
    TALL,
    TREE,
    SPLIT,
    FOUR,
    WIDE,
    SPREAD,
    QUARTER,
    BRIEF,
    FAMILIES
};

static const char *const family_names[FAMILIES] = {"any",  "few",    "normed",  "many",
                                                   "tall", "tree",   "split",   "four",
                                                   "wide", "spread", "quarter", "brief"};

/* What is being launched, and by what. */
static struct {
    const struct cuda_gemm_args *args;
    uint32_t shared_bytes[CUDA_GEMM_END + 1]; /* that entries were opened with */
    uint32_t n_entries;
    uint32_t box_rows;
    enum cuda_gemm_kernel kernel; /* the last */
    uint64_t n_launches[FAMILIES], n_turned[FAMILIES];
    uint64_t n_held;   /* of few, with blocks that keep a place */
    uint64_t n_behind; /* of split, behind tiles that are not */
} now;

/* ---- the driver ---- */

int __wrap_cuda_driver_entry(struct cuda_driver *d, const char *kernel, const char *entry,
                             uint32_t shared_bytes, CUfunction *out_entry, struct err *e);
int __wrap_cuda_driver_launch(struct cuda_driver *d, const struct cuda_launch *l, struct err *e);

/* Entries come in the order of enum cuda_gemm_kernel, behind that of packing; none is NULL. */
int __wrap_cuda_driver_entry(struct cuda_driver *d, const char *kernel, const char *entry,
                             uint32_t shared_bytes, CUfunction *out_entry, struct err *e) {
    (void)d, (void)kernel, (void)entry, (void)e;
    now.shared_bytes[now.n_entries++] = shared_bytes;
    *out_entry = (CUfunction)(uintptr_t)now.n_entries;
    return 0;
}

static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *at,
                       const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                       const cuuint32_t *steps, CUtensorMapInterleave interleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                       CUtensorMapFloatOOBfill fill) {
    (void)map, (void)type, (void)rank, (void)at, (void)steps, (void)interleave, (void)swizzle;
    (void)promotion, (void)fill;
    now.box_rows = box[1];
    return sizes[0] == now.args->w->n_k && sizes[1] == now.args->n_rows && strides[0] % 16 == 0 &&
                   box[0] == SM90_GEMM_BLOCK && box[1] > 0 && box[1] <= BOX_ROWS_MAX
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

static uint32_t ceil_div(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

/* ---- what kernels ask for ---- */

#define CHECK(what)                                                                              \
    do {                                                                                         \
        if (!(what))                                                                             \
            fail_msg("W %u x %u (tile %u, cut %d, turns %d, heads %u) in %u, form %u, %u rows: " \
                     "%s",                                                                       \
                     p->n, p->n_k, p->tile, now.args->w->cut, now.args->w->turns,                \
                     now.args->w->head_dim, p->segments, p->form, p->n_rows, #what);             \
    } while (0)

/* Values of K to a segment, SPEC 2.4. */
static uint32_t segment_values(const struct sm90_gemm *p) {
    return ceil_div(p->n_k, STEP * p->segments) * STEP;
}

/* Rows of W from `first` on are in the image, and no more pieces than a warp has lanes. */
static void check_pieces(const struct sm90_gemm *p, uint32_t first, uint32_t n_rows) {
    const uint64_t n_lines = now.args->w->n_bytes / ROW_BYTES / p->n_blocks;

    CHECK(first % SM90_GEMM_ATOM_ROWS == 0);
    CHECK(first + n_rows <= n_lines);
    CHECK((first + n_rows - 1) / p->tile - first / p->tile < LANES);
}

static void check_rings(const struct sm90_gemm *p, const struct cuda_launch *l, uint32_t width,
                        uint32_t n_compute, uint32_t behind) {
    const uint32_t weights = p->stage_blocks * p->tile * ROW_BYTES;
    const uint32_t rings =
        p->n_weight_stages * weights + p->n_row_stages * p->stage_blocks * width * ROW_BYTES;
    const uint32_t room = l->shared_bytes - ALIGN_BYTES;

    CHECK(p->n_weight_stages >= 2 && p->n_weight_stages <= SM90_GEMM_STAGES_MAX);
    CHECK(p->n_row_stages >= 2 && p->n_row_stages <= SM90_GEMM_STAGES_MAX);
    CHECK(rings + behind <= room);
    /* The last block of the ring is read to a whole warpgroup's rows. */
    CHECK(p->n_weight_stages * weights - p->tile * ROW_BYTES + n_compute / 128 * 64 * ROW_BYTES <=
          room);
    if (p->n_ranks > 1) CHECK(width * (p->tile + 4) * sizeof(float) <= room);
}

/* Of a rank: blocks of K, which come in whole stages, and segments as SPEC cuts them. */
static void check_blocks(const struct sm90_gemm *p, uint32_t width) {
    const uint32_t n_segments = p->segments / p->n_ranks;

    CHECK(n_segments * p->n_ranks == p->segments && n_segments <= (width > 32 ? 2u : 4u));
    if (p->segments > 1 && p->n_k % (p->segments * SM90_GEMM_BLOCK)) {
        CHECK(width <= 16 && p->stage_blocks == 1);
        CHECK(segment_values(p) * p->segments == p->n_k);
    } else {
        CHECK(p->n_blocks % (p->segments * p->stage_blocks) == 0);
        CHECK(p->segments == 1 || p->n_blocks / p->segments * SM90_GEMM_BLOCK == segment_values(p));
    }
}

static void check_few(const struct sm90_gemm *p, const struct cuda_launch *l, uint32_t width,
                      bool normed) {
    const uint32_t n_compute = l->block[0] - 64 - (normed ? 128 : 0);
    const uint32_t n_tiles = p->n_tiles * p->n_row_tiles;

    CHECK(n_compute == (p->tile > 64 ? 256u : 128u));
    CHECK(p->height == now.box_rows && p->height <= width);
    CHECK(p->height * p->n_row_tiles >= p->n_rows && p->height * (p->n_row_tiles - 1) < p->n_rows);
    CHECK((uint64_t)p->n_tiles * p->tile * p->n_blocks * ROW_BYTES <= now.args->w->n_bytes);
    if (p->n_ranks > 1) CHECK(p->tile <= 64 && l->grid[0] / p->n_ranks >= n_tiles);
    if (p->form == SM90_GEMM_SILU || normed) CHECK(p->tile % 16 == 0);
    if (p->squares) CHECK(p->n_ranks > 1 && p->form == SM90_GEMM_ADD);
    if (normed) CHECK(p->segments == 1 && p->n_row_tiles == 1);
    /* Blocks without work keep their place no longer than all weights take at 4.5 TB/s. */
    CHECK(p->hold_ns == 0 || (now.args->overlap && l->grid[0] == UNITS));
    CHECK(p->hold_ns == 0 || p->n_ranks * n_tiles < UNITS);
    CHECK(p->hold_ns * 4500ull <= now.args->w->n_bytes);
    now.n_held += p->hold_ns > 0;
    /* A warp's rows of W are of one head, and all places of a tile's rows have a thread. */
    if (p->form == SM90_GEMM_TURNED)
        CHECK(p->segments == 1 && p->n_ranks == 1 && p->tile % 16 == 0 && p->height <= n_compute);
    check_blocks(p, width);
    check_rings(p, l, width, n_compute, normed ? p->n_blocks * ROW_BYTES : 0);
}

static void check_many(const struct sm90_gemm *p, const struct cuda_launch *l, uint32_t width,
                       enum family family) {
    const bool split = family == SPLIT;
    const uint32_t rows = p->share_x ? p->height : 2 * p->height;
    const uint32_t columns = p->share_x ? 2 * width : width;
    const uint32_t n_down = ceil_div(p->n_rows, rows), n_across = ceil_div(p->n, columns);
    const uint32_t n_tiles = n_down * n_across, n_split = (n_tiles - p->n_whole) * p->n_splits;
    const uint32_t n_segments = p->segments / p->n_splits,
                   at_most = width == 128 || family == TREE ? 4 : 1;

    CHECK(l->cluster == 2 && p->height <= (family == TALL ? 192u : 128u));
    CHECK(l->block[0] == (family == TALL ? 512u : 384u));
    CHECK(now.box_rows * (p->share_x ? 2 : 1) == p->height && now.box_rows % 8 == 0);
    CHECK(p->n_splits == 1 || (split && (p->n_splits == 2 || p->n_splits == 4)));
    /* Pairs that wait for each other are all there, and none has a second such piece: those that are
     * not split come in full rounds. */
    if (split) {
        CHECK(p->n_splits > 1 && n_split > 0 && 2 * n_split <= l->grid[0] && l->grid[0] <= UNITS);
        CHECK(p->n_whole < n_tiles && p->n_whole % (l->grid[0] / 2) == 0);
        CHECK(p->n_whole == 0 || p->segments <= at_most);
        if (p->n_whole == 0) CHECK(l->grid[0] == 2 * n_split);
        now.n_behind += p->n_whole > 0;
    } else {
        CHECK(p->n_whole == 0);
    }
    CHECK(n_segments * p->n_splits == p->segments && n_segments <= at_most && n_segments != 3);
    CHECK(p->n_blocks % p->segments == 0);
    CHECK(p->segments == 1 || p->n_blocks / p->segments * SM90_GEMM_BLOCK == segment_values(p));
    if (p->form == SM90_GEMM_SILU) CHECK(width % 16 == 0 && at_most == 1);
    if (p->form == SM90_GEMM_TURNED) CHECK(p->segments == 1 && at_most == 1);
    for (uint32_t i = 0; i < n_across; i++) check_pieces(p, i * columns, width);
}

static void check_four(const struct sm90_gemm *p, uint32_t width) {
    CHECK(p->height == now.box_rows && p->height <= SM90_GEMM_FOUR_TOKENS && p->height % 8 == 0);
    CHECK((p->segments == 2 || p->segments == 4) && p->form != SM90_GEMM_SILU);
    for (uint32_t n = 0; n < p->n; n += width) check_pieces(p, n, width);
}

static void check_wide(const struct sm90_gemm *p, const struct cuda_launch *l, uint32_t width) {
    const uint32_t n_across = ceil_div(p->n, SM90_GEMM_WIDE_ROWS);

    CHECK(p->height == now.box_rows && p->height <= width && p->segments == 1);
    CHECK(p->height * p->n_row_tiles >= p->n_rows && p->height * (p->n_row_tiles - 1) < p->n_rows);
    CHECK(l->grid[0] <= n_across * p->n_row_tiles); /* each has a first tile */
    for (uint32_t i = 0; i < n_across; i++)
        check_pieces(p, i * SM90_GEMM_WIDE_ROWS, SM90_GEMM_WIDE_ROWS);
}

static void check_spread(const struct sm90_gemm *p, const struct cuda_launch *l, uint32_t width) {
    const uint32_t n_across = ceil_div(p->n, width), n_parts = ceil_div(p->height, 64);
    const uint32_t ring = p->n_weight_stages * (width + n_parts * 64) * ROW_BYTES;

    CHECK(p->height == now.box_rows && p->height <= SM90_GEMM_SPREAD_TOKENS && n_parts <= 4);
    CHECK(p->height * p->n_row_tiles >= p->n_rows && p->height * (p->n_row_tiles - 1) < p->n_rows);
    CHECK(p->segments == 4 && p->n_blocks % 4 == 0 && p->form != SM90_GEMM_SILU);
    CHECK(p->n_blocks / 4 * SM90_GEMM_BLOCK == segment_values(p));
    CHECK(l->cluster == 4 && l->grid[0] == n_across * p->n_row_tiles * 4);
    CHECK(p->n_weight_stages >= 2 && p->n_weight_stages <= 8);
    CHECK(ALIGN_BYTES + ring <= l->shared_bytes);
    CHECK(ALIGN_BYTES + p->height * (width + 8) * sizeof(float) <= l->shared_bytes);
    for (uint32_t i = 0; i < n_across; i++) check_pieces(p, i * width, width);
}

static void check_quarter(const struct sm90_gemm *p, const struct cuda_launch *l, uint32_t steps) {
    CHECK(p->segments == 4 && p->n_k == 4 * STEP * steps && p->form != SM90_GEMM_SILU);
    CHECK(l->grid[0] * SM90_GEMM_ATOM_ROWS == p->n && p->tile % SM90_GEMM_ATOM_ROWS == 0);
    CHECK(l->grid[1] * SM90_GEMM_QUARTER_TOKENS >= p->n_rows && l->grid[1] <= 65535);
    CHECK(l->block[0] == 128 && steps <= LANES); /* a lane of a warp copies a block of K */
    CHECK(l->shared_bytes == p->n_blocks * SM90_GEMM_ATOM_ROWS * ROW_BYTES +
                                 4 * SM90_GEMM_QUARTER_TOKENS * SM90_GEMM_QUARTER_LINE(steps));
}

static void check_brief(const struct sm90_gemm *p, const struct cuda_launch *l, uint32_t width) {
    const uint32_t tile = p->n_blocks * p->tile * ROW_BYTES;

    CHECK(p->segments == 1 && p->n_rows <= width && p->n_row_tiles == 1 && p->height == p->n_rows);
    CHECK(l->block[0] == 128 * (width / 4) && p->n_k % SM90_GEMM_BLOCK == 0 && p->n_k <= 8 * 128);
    CHECK(l->grid[0] == p->n_tiles && p->tile % 16 == 0 && p->tile <= 64);
    CHECK(ALIGN_BYTES + tile + p->n_blocks * width * ROW_BYTES <= l->shared_bytes);
    /* The last block of the tile is read to a whole warpgroup's rows. */
    CHECK(ALIGN_BYTES + tile + (64 - p->tile) * ROW_BYTES <= l->shared_bytes);
}

static void check_any(const struct sm90_gemm *p, const struct cuda_launch *l) {
    const uint32_t n_shares = p->segments < 4 ? p->segments : 4;

    CHECK(l->grid[0] * (4 / n_shares) * 16 >= p->n);
    CHECK(l->grid[1] * SM90_GEMM_ANY_TOKENS >= p->n_rows && l->grid[1] <= 65535);
}

static enum family family_of(const char *name, uint32_t *out_width) {
    static const struct {
        const char *prefix;
        enum family family;
    } prefixes[] = {{"few", FEW},       {"normed", NORMED}, {"many", MANY},       {"tall", TALL},
                    {"tree", TREE},     {"split", SPLIT},   {"four", FOUR},       {"wide", WIDE},
                    {"spread", SPREAD}, {"any", ANY},       {"quarter", QUARTER}, {"brief", BRIEF}};

    name += strlen("sm90_gemm_bf16_");
    for (size_t i = 0; i < FAMILIES; i++) {
        const size_t n = strlen(prefixes[i].prefix);

        if (strncmp(name, prefixes[i].prefix, n) != 0) continue;
        *out_width = (uint32_t)strtoul(name + n, NULL, 10);
        return prefixes[i].family;
    }
    fail_msg("no family of %s", name);
    return ANY;
}

int __wrap_cuda_driver_launch(struct cuda_driver *d, const struct cuda_launch *l, struct err *e) {
    uint32_t width = 0;
    const enum family family = family_of(l->name, &width);
    const bool no_map = family == ANY || family == QUARTER || family == BRIEF;
    const struct sm90_gemm *p = l->params[no_map ? 0 : 1];

    (void)e;
    now.n_launches[family]++;
    now.kernel = (enum cuda_gemm_kernel)((uintptr_t)l->entry - 2);
    CHECK(d->n_own >= UNITS || (family != SPLIT && family != SPREAD)); /* no place is promised */
    CHECK(family != NORMED || 2 * l->shared_bytes > SHARED_MAX);       /* one a multiprocessor */
    CHECK(l->shared_bytes <= now.shared_bytes[(uintptr_t)l->entry - 1]);
    CHECK(l->shared_bytes <= SHARED_MAX);
    CHECK(p->next == (uint32_t)now.args->next);
    CHECK(p->turn.head_dim == (p->form == SM90_GEMM_TURNED ? now.args->w->head_dim : 0));
    if (p->form == SM90_GEMM_TURNED) {
        CHECK(family == FEW || family == NORMED || family == MANY || family == TALL ||
              family == BRIEF);
        CHECK(p->turn.head_dim % 16 == 0 && p->n % p->turn.head_dim == 0);
        now.n_turned[family]++;
    }
    CHECK(l->grid[0] > 0 && l->grid[0] % (l->cluster ? l->cluster : 1) == 0);
    if (family == ANY) check_any(p, l);
    if (family == FEW || family == NORMED) check_few(p, l, width, family == NORMED);
    if (family >= MANY && family <= SPLIT) check_many(p, l, width, family);
    if (family == FOUR) check_four(p, width);
    if (family == WIDE) check_wide(p, l, width);
    if (family == SPREAD) check_spread(p, l, width);
    if (family == QUARTER) check_quarter(p, l, width);
    if (family == BRIEF) check_brief(p, l, width);
    return 0;
}

/* ---- shapes ---- */

static uint32_t any_of(uint32_t shape, uint32_t which, uint32_t n) {
    return num_random(17, shape, which) % n;
}

static uint32_t round_up(uint32_t n, uint32_t to) {
    return ceil_div(n, to) * to;
}

static void shape_of(uint32_t i, struct cuda_gemm_weight *out_w) {
    static const uint32_t ks[] = {224, 480, 576, 736, 1040, 1536, 3072, 4096, 8192, 14336, 16384};
    const uint32_t head_dim = any_of(i, 0, 4) ? 0 : 16 * (1 + any_of(i, 1, 16));
    const bool turns = !head_dim && any_of(i, 2, 4) == 0;
    const uint32_t made_for = 1u << any_of(i, 3, 5);
    const uint32_t n_most[] = {64, 512, 4000};
    uint32_t n = 8 * (1 + any_of(i, 4, n_most[any_of(i, 5, 3)])), n_k = 16;

    if (i % 100 == 0) n = 128256;
    switch (any_of(i, 6, 3)) {
    case 0:
        n_k *= 1 + any_of(i, 7, 64);
        break;
    case 1:
        n_k *= 4 * (1 + any_of(i, 7, 256));
        break;
    default:
        n_k = ks[any_of(i, 7, sizeof(ks) / sizeof(ks[0]))];
    }
    if (head_dim)
        cuda_gemm_shape_heads(out_w, round_up(n, head_dim), n_k, made_for, head_dim);
    else
        cuda_gemm_shape(out_w, turns ? round_up(n, 16) : n, n_k, made_for, turns);
    out_w->d_image = ALIGN_BYTES;
}

/* As it is chosen, here and where blocks may not wait for each other, and normed where that can
 * be. */
static void launch_chosen(struct cuda_gemm *g, struct cuda_driver *d, struct cuda_gemm_args a) {
    const struct sm90_gemm_turn turn = {.head_dim = a.w->head_dim};
    const struct sm90_gemm_norm norm = {.squares = 16}, none = {0};
    static const uint32_t places[] = {0, 16, 114,
                                      UNITS - 1}; /* MPS, a slice of MIG, an H100 PCIe */
    struct err e = {""};

    now.args = &a;
    a.squares_stride = cuda_gemm_squares(a.w, a.n_rows, a.segments);
    if (a.squares_stride && a.form == SM90_GEMM_ADD) a.d_squares = 16;
    assert_int_equal(cuda_gemm_run(g, &a, &e), 0);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        d->n_own = places[i];
        assert_int_equal(cuda_gemm_run(g, &a, &e), 0);
        assert_int_equal(now.kernel, cuda_gemm_chosen(g, a.w, a.n_rows, a.segments));
    }
    d->n_own = UNITS;
    a.d_squares = 0;
    a.next = (enum sm90_gemm_next)(a.n_rows % 3);
    if (a.w->head_dim) {
        a.form = SM90_GEMM_TURNED;
        a.turn = &turn;
    }
    if (cuda_gemm_can_turn(a.w, a.n_rows, a.segments))
        assert_int_equal(cuda_gemm_run(g, &a, &e), 0);
    if (a.form != SM90_GEMM_SILU && !a.w->head_dim) return;
    a.norm = &norm;
    if (cuda_gemm_can_norm(a.w, a.n_rows, a.segments, 1))
        assert_int_equal(cuda_gemm_run(g, &a, &e), 0);
    a.norm = &none;
    if (cuda_gemm_can_brief(a.w, a.n_rows, a.segments))
        assert_int_equal(cuda_gemm_run(g, &a, &e), 0);
}

static void launch_all(struct cuda_gemm *g, struct cuda_gemm_args a) {
    const struct sm90_gemm_turn turn = {.head_dim = a.w->head_dim};
    const enum sm90_gemm_form form = a.form;
    struct err e = {""};

    now.args = &a;
    for (enum cuda_gemm_kernel k = 0; k < CUDA_GEMM_NORMED8; k++)
        for (a.n_splits = 1; a.n_splits <= 4; a.n_splits *= 2)
            for (a.pairs = CUDA_GEMM_SHARE_W; a.pairs <= CUDA_GEMM_SHARE_X; a.pairs++) {
                const bool turns = cuda_gemm_turns(k, a.w, a.segments);

                if (!cuda_gemm_can_so(k, a.w, a.n_rows, a.segments, a.n_splits, a.pairs)) continue;
                a.form = turns ? SM90_GEMM_TURNED : form;
                a.turn = turns ? &turn : NULL;
                assert_int_equal(cuda_gemm_run_by(g, k, &a, &e), 0);
            }
}

static void test_launches(void **state) {
    static const uint32_t most[] = {16, 64, 256, 1100, 9000};
    struct cuda_driver d = {.n_own = UNITS, .cuda.cuTensorMapEncodeTiled = encode};
    struct cuda_gemm *g;
    struct err e = {""};

    (void)state;
    assert_int_equal(cuda_gemm_open(&d, &g, &e), 0);
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        const enum sm90_gemm_form forms[] = {SM90_GEMM_BF16, SM90_GEMM_F32, SM90_GEMM_ADD};
        struct cuda_gemm_weight w;
        struct cuda_gemm_args a = {.w = &w, .d_x = 16, .d_out = 16};

        shape_of(i, &w);
        a.x_stride = round_up(w.n_k, 8);
        a.out_stride = w.turns ? w.n / 2 : w.n;
        a.form = w.turns ? SM90_GEMM_SILU : forms[any_of(i, 8, 3)];
        a.overlap = any_of(i, 9, 2);
        for (uint32_t j = 0; j < 5; j++) {
            a.n_rows = 1 + any_of(i, 10 + j, most[j]);
            a.segments = 1u << any_of(i, 20 + j, 5);
            launch_chosen(g, &d, a);
            if (i % 4 == 0) launch_all(g, a);
        }
    }
    for (int i = 0; i < FAMILIES; i++) {
        print_message("%s: %llu launches\n", family_names[i],
                      (unsigned long long)now.n_launches[i]);
        assert_true(now.n_launches[i] > 0);
        assert_int_equal(now.n_turned[i] > 0,
                         i == FEW || i == NORMED || i == MANY || i == TALL || i == BRIEF);
    }
    assert_true(now.n_behind > 0 && now.n_held > 0);
    cuda_gemm_close(g);
}

/* Sums of squares: who leaves them, one for each half of a tile, which is a subtree of SPEC's; and
 * who finds room for them and for the norm's weights. */
static void test_squares(void **state) {
    uint32_t n_left = 0, n_odd = 0;
    struct cuda_gemm_weight w;

    (void)state;
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        const uint32_t n_rows = 1 + any_of(i, 30, 24), segments = 1u << any_of(i, 31, 5);
        uint32_t n;

        shape_of(i, &w);
        n = cuda_gemm_squares(&w, n_rows, segments);
        if (!w.cut || segments == 1 || n_rows > 16) assert_int_equal(n, 0);
        if (n > 0) {
            assert_int_equal(w.tile & (w.tile - 1), 0);
            assert_int_equal(n, (w.n - 1) / (w.tile / 2) + 1); /* where the last row's goes */
        }
        n_left += n > 0;
        n_odd += w.tile % 16 > 0;
        if (w.tile % 16) assert_false(cuda_gemm_can_norm(&w, n_rows, 1, 1));
    }
    assert_true(n_left > 0 && n_odd > 0);
    cuda_gemm_shape_heads(&w, 6144, 16384, 1, 128);
    for (uint32_t n_rows = 1; n_rows <= 24; n_rows++)
        assert_int_equal(cuda_gemm_can_norm(&w, n_rows, 1, 512), n_rows <= 16);
    assert_false(cuda_gemm_can_norm(&w, 1, 1, 0));
    assert_false(cuda_gemm_can_norm(&w, 1, 1, 513));
    assert_false(cuda_gemm_can_norm(&w, 1, 2, 512));
    cuda_gemm_shape_heads(&w, 6144, 16400, 1, 128);
    assert_false(cuda_gemm_can_norm(&w, 1, 1, 512));
}

/* Who rotates and stores: all that serve the models we know, from nine rows on, but FEW128; not what is
 * cut, nor beside a tree in registers, nor the kernel by hand. */
static void test_turns(void **state) {
    static const struct {
        uint32_t n, n_k, head_dim;
    } models[] = {{6144, 4096, 128}, {960, 576, 64}};
    struct cuda_gemm_weight w;

    (void)state;
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        cuda_gemm_shape_heads(&w, models[i].n, models[i].n_k, 1, models[i].head_dim);
        for (uint32_t n_rows = 1; n_rows <= 4096; n_rows += n_rows < 512 ? 1 : 13) {
            assert_int_equal(cuda_gemm_can_turn(&w, n_rows, 1),
                             n_rows > 8 && cuda_gemm_choose(&w, n_rows, 1) != CUDA_GEMM_FEW128);
            assert_false(cuda_gemm_can_turn(&w, n_rows, 4));
        }
    }
    /* Where one that does not would be a little faster. */
    assert_true(cuda_gemm_can_turn(&w, 1800, 1));
    for (enum cuda_gemm_kernel k = 0; k < CUDA_GEMM_END; k++) {
        const bool few =
            (k >= CUDA_GEMM_FEW16 && k <= CUDA_GEMM_FEW64) || k == CUDA_GEMM_FEW8_NVRTC;
        const bool many = k >= CUDA_GEMM_MANY48 && k <= CUDA_GEMM_TALL192 && k != CUDA_GEMM_MANY128;

        assert_int_equal(cuda_gemm_turns(k, &w, 1), few || many || k >= CUDA_GEMM_NORMED8);
        assert_false(cuda_gemm_turns(k, &w, 2));
    }
    cuda_gemm_shape(&w, 960, 576, 1, false);
    assert_false(cuda_gemm_can_turn(&w, 64, 1));
}

/* One segment of many rows: the kernel that was measured to be the fastest, or as fast as any
 * (docs/performance.md), where tiles of 192 rows and of 240 columns are weighed; and of fewer rows, of
 * more and of short K the one that is chosen without them. */
static void test_measured(void **state) {
    static const struct {
        uint32_t n, n_k, head_dim; /* 0: gated */
        uint32_t first, last;
        enum cuda_gemm_kernel kernel;
    } measured[] = {
        {6144, 4096, 128, 513, 640, CUDA_GEMM_MANY240},
        {6144, 4096, 128, 641, 768, CUDA_GEMM_TALL192},
        {6144, 4096, 128, 1024, 1024, CUDA_GEMM_MANY192},
        {6144, 4096, 128, 1153, 1280, CUDA_GEMM_MANY240},
        {6144, 4096, 128, 1409, 1536, CUDA_GEMM_MANY192},
        {6144, 4096, 128, 2048, 2048, CUDA_GEMM_MANY256},
        {6144, 4096, 128, 3585, 3840, CUDA_GEMM_MANY256},
        {6144, 4096, 128, 8192, 8192, CUDA_GEMM_MANY256},
        {28672, 4096, 0, 512, 512, CUDA_GEMM_MANY224},
        {28672, 4096, 0, 768, 768, CUDA_GEMM_MANY192},
        {28672, 4096, 0, 1089, 1152, CUDA_GEMM_MANY224},
        {28672, 4096, 0, 1345, 1536, CUDA_GEMM_MANY240},
        {28672, 4096, 0, 2048, 2048, CUDA_GEMM_MANY256},
        {28672, 4096, 0, 4096, 4096, CUDA_GEMM_MANY256},
        {28672, 4096, 0, 8192, 8192, CUDA_GEMM_MANY256},
        {6144, 2048, 128, 641, 768, CUDA_GEMM_MANY192},
        {3072, 576, 0, 1409, 1536, CUDA_GEMM_MANY192},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(measured) / sizeof(measured[0]); i++) {
        struct cuda_gemm_weight w;

        if (measured[i].head_dim)
            cuda_gemm_shape_heads(&w, measured[i].n, measured[i].n_k, 1, measured[i].head_dim);
        else
            cuda_gemm_shape(&w, measured[i].n, measured[i].n_k, 1, true);
        for (uint32_t n_rows = measured[i].first; n_rows <= measured[i].last; n_rows++) {
            const enum cuda_gemm_kernel kernel = cuda_gemm_choose(&w, n_rows, 1);

            if (kernel != measured[i].kernel)
                fail_msg("%u x %u, %u rows: %s", w.n, w.n_k, n_rows, cuda_gemm_name(kernel));
        }
    }
}

/* The kernel by hand knows places of the struct by number. */
static void test_by_hand(void **state) {
#define PLACE(name, member) \
    { "#define " name " %u", offsetof(struct sm90_gemm, member) }
    static const struct {
        const char *line;
        size_t at;
    } places[] = {
        PLACE("AT_WEIGHTS", weights),
        PLACE("AT_OUT", out),
        PLACE("AT_SQUARES", squares),
        PLACE("AT_N", n),
        PLACE("AT_ROWS", n_rows),
        PLACE("AT_OUT_STRIDE", out_stride),
        PLACE("AT_TILE", tile),
        PLACE("AT_TILES", n_tiles),
        PLACE("AT_BLOCKS", n_blocks),
        PLACE("AT_SEGMENTS", segments),
        PLACE("AT_FORM", form),
        PLACE("AT_STAGE_BLOCKS", stage_blocks),
        PLACE("AT_WEIGHT_STAGES", n_weight_stages),
        PLACE("AT_ROW_STAGES", n_row_stages),
        PLACE("AT_ROW_TILES", n_row_tiles),
        PLACE("AT_RANKS", n_ranks),
        PLACE("AT_HOLD", hold_ns),
        PLACE("AT_SQUARES_STRIDE", squares_stride),
    };
#undef PLACE
    const size_t n_places = sizeof(places) / sizeof(places[0]);
    FILE *f = fopen("ptx/sm90_gemm_bf16_few8.ptx", "r");
    size_t n_found = 0, n_lines = 0;
    char line[256];

    (void)state;
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        if (strncmp(line, "#define AT_", 11) == 0) n_lines++;
        for (size_t i = 0; i < n_places; i++) {
            unsigned at;

            if (sscanf(line, places[i].line, &at) != 1) continue;
            if (at != places[i].at) fail_msg("%s", line);
            n_found++;
        }
    }
    (void)fclose(f);
    assert_int_equal(n_found, n_places);
    assert_int_equal(n_lines, n_places);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_launches),
                                       cmocka_unit_test(test_squares), cmocka_unit_test(test_turns),
                                       cmocka_unit_test(test_measured),
                                       cmocka_unit_test(test_by_hand)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
