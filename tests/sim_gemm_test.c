/* The text of the kernels of matrix products, run on this processor (tests/sim/sim.h), against the
 * twin's, bit for bit: as cuda_gemm launches them, in small shapes that cut K and tiles awkwardly,
 * beside a kernel before them that still writes what they read, in several orders of all that runs
 * at once; with the norm folded in, rotation and the store of keys and values.
 * LLM42_SIM_SEED gives other orders.  Skipped (77) in a build without CUDA or a C++ compiler. */
#if defined LLM42_CUDA && defined LLM42_SIM

#include "tests/sim/sim.h"
#include "tests/turned_data.h"

enum { LATE_MAX = 3 };

/* Of the kernels that could serve, one in so many is run besides the one that does; of a cluster's
 * counts of rows all, or one in three.  What sanitizers add is addresses beyond an array and what C
 * leaves open: there is each kernel and each shape, the other orders are the optimised build's. */
#ifdef __SANITIZE_ADDRESS__
enum { ONE_IN = 12, ALL_COUNTS = false };
#else
enum { ONE_IN = 5, ALL_COUNTS = true };
#endif

static struct cuda_driver driver;
static uint32_t seed = 1;

/* What the kernel before writes last. */
static struct late {
    void *at, *keep;
    size_t n_bytes;
} late[LATE_MAX];
static uint32_t n_late;

static void hide(uint64_t at, size_t n_bytes) {
    struct late *l = &late[n_late++];

    *l = (struct late){(void *)(uintptr_t)at, gpu_host(n_bytes), n_bytes};
    memcpy(l->keep, l->at, n_bytes);
    memset(l->at, GPU_POISON, n_bytes);
}

static void write_late(void) {
    while (n_late) {
        const struct late *l = &late[--n_late];

        memcpy(l->at, l->keep, l->n_bytes);
        free(l->keep);
    }
}

static void hide_all(const struct cuda_launch *l) {
    const bool no_map =
        strstr(l->name, "_any") || strstr(l->name, "_quarter") || strstr(l->name, "_brief");
    const struct sm90_gemm *p = l->params[no_map ? 0 : 1];

    hide(p->x, ((size_t)(p->n_rows - 1) * p->x_stride + p->n_k) * 2);
    /* What is written there before the kernel before is done is lost. */
    if (p->form == SM90_GEMM_ADD || p->form == SM90_GEMM_TURNED)
        hide(p->out, ((size_t)(p->n_rows - 1) * p->out_stride + p->n) * 2);
    if (strstr(l->name, "normed")) {
        const struct sm90_gemm_norm *n = l->params[2];

        hide(n->squares, ((size_t)(p->n_rows - 1) * n->squares_stride + n->n_squares) * 4);
    }
}

int __wrap_cuda_driver_entry(struct cuda_driver *d, const char *kernel, const char *entry,
                             uint32_t shared_bytes, CUfunction *out_entry, struct err *e);
int __wrap_cuda_driver_launch(struct cuda_driver *d, const struct cuda_launch *l, struct err *e);

/* The one that is written by hand is not text for a C++ compiler. */
int __wrap_cuda_driver_entry(struct cuda_driver *d, const char *kernel, const char *entry,
                             uint32_t shared_bytes, CUfunction *out_entry, struct err *e) {
    (void)d, (void)kernel, (void)shared_bytes;
    *out_entry = (CUfunction)(uintptr_t)entry;
    if (strcmp(entry, "sm90_gemm_bf16_few8") == 0) return 0;
    return sim_has(entry) ? 0 : err_set(e, -EINVAL, "%s is not among the kernels", entry);
}

int __wrap_cuda_driver_launch(struct cuda_driver *d, const struct cuda_launch *l, struct err *e) {
    (void)e;
    if (l->overlap) hide_all(l);
    sim_run(&(struct sim_launch){.name = l->name,
                                 .grid = {l->grid[0], l->grid[1], l->grid[2]},
                                 .block = {l->block[0], l->block[1], l->block[2]},
                                 .cluster = l->cluster,
                                 .shared_bytes = l->shared_bytes,
                                 .n_units = strstr(l->name, "split") ? d->n_units : 2,
                                 .params = l->params,
                                 .previous = l->overlap ? write_late : NULL});
    return 0;
}

/* ---- a driver whose memory is the host's ---- */

static CUresult take_bytes(CUdeviceptr *out, size_t n_bytes) {
    *out = (uintptr_t)aligned_alloc(1024, (n_bytes + 2047) / 1024 * 1024);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult give_bytes(CUdeviceptr p) {
    free((void *)(uintptr_t)p);
    return CUDA_SUCCESS;
}

static CUresult fill(CUdeviceptr to, unsigned char with, size_t n_bytes, CUstream s) {
    (void)s;
    memset((void *)(uintptr_t)to, with, n_bytes);
    return CUDA_SUCCESS;
}

static CUresult write_bytes(CUdeviceptr to, const void *from, size_t n_bytes, CUstream s) {
    (void)s;
    memcpy((void *)(uintptr_t)to, from, n_bytes);
    return CUDA_SUCCESS;
}

static CUresult read_bytes(void *to, CUdeviceptr from, size_t n_bytes, CUstream s) {
    (void)s;
    memcpy(to, (const void *)(uintptr_t)from, n_bytes);
    return CUDA_SUCCESS;
}

static CUresult synchronize(CUstream s) {
    (void)s;
    return CUDA_SUCCESS;
}

/* What the driver would refuse, too. */
static CUresult encode(CUtensorMap *out_map, CUtensorMapDataType type, cuuint32_t rank, void *at,
                       const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                       const cuuint32_t *steps, CUtensorMapInterleave interleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                       CUtensorMapFloatOOBfill past) {
    const struct sim_map map = {at, sizes[0], sizes[1], strides[0], box[0], box[1]};

    (void)promotion;
    if (type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || rank != 2 || (uintptr_t)at % 16 ||
        strides[0] % 16 || sizes[0] == 0 || sizes[1] == 0 || box[0] != 64 || box[1] == 0 ||
        box[1] > 256 || steps[0] != 1 || steps[1] != 1 ||
        interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || swizzle != CU_TENSOR_MAP_SWIZZLE_128B ||
        past != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    memset(out_map, 0, sizeof(*out_map));
    memcpy(out_map, &map, sizeof(map));
    return CUDA_SUCCESS;
}

/* ---- products ---- */

static const struct shape {
    uint32_t n, n_k, segments, made_for;
    bool turns;
    const char *why;
} shapes[] = {
    {8, 16, 1, 1, false, "the least there is"},
    {24, 48, 4, 4, false, "segments of 16, one of them past the end"},
    {72, 576, 4, 4, false, "segments that end inside a block of K"},
    {72, 224, 2, 1, false, "the same, made for a whole"},
    {48, 224, 2, 1, true, "the same of gate and up"},
    {72, 512, 8, 1, false, "a block a segment, in eight"},
    {40, 1536, 4, 4, false, "four of 24 steps"},
    {80, 400, 1, 1, true, "gate and up, K not in blocks"},
    {24, 2560, 1, 1, false, "a ring that goes round"},
    {24, 2560, 4, 4, false, "four of them"},
};

static void test_shape(const struct shape *s, size_t number) {
    static const uint32_t counts[] = {1, 13, 65};
    const unsigned before = n_failed;
    struct product p;

    product_open(&p, s->n, s->n_k, s->segments, s->made_for, s->turns, 65);
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
        for (enum cuda_gemm_kernel k = 0; k < CUDA_GEMM_NORMED8; k++) {
            const uint32_t turn = (uint32_t)(c + number + k) + seed;
            const bool narrow =
                k == CUDA_GEMM_FEW16 || k >= CUDA_GEMM_QUARTER9 || k == CUDA_GEMM_FEW8_NVRTC;
            const bool four = s->segments == 4 && (k == CUDA_GEMM_FOUR32 || k == CUDA_GEMM_FOUR64);

            /* Each with few rows or with many, and a fifth of those; one warpgroup waits for three
             * others in nothing but four segments. */
            if (k == CUDA_GEMM_FEW8 || (narrow ? counts[c] > 16 : !four && turn % 5 != 0)) continue;
            run(&p, k, s->turns ? SM90_GEMM_SILU : (enum sm90_gemm_form)(turn / 5 % 3), counts[c],
                (turn + number) / 2 % 2);
        }
    product_close(&p);
    printf("%s: %s\n", n_failed > before ? "FAIL" : "ok", s->why);
}

/* Heights of one to four times 64 rows, tiles of x, tiles of W whose last is not full; stages that
 * go round and fewer blocks of K than there are stages. */
static void test_spread(uint32_t n, uint32_t n_k, uint32_t made_for, bool whole) {
    static const uint32_t counts[] = {3, 64, 65, 130, 200, 256, 300};
    const unsigned before = n_failed;
    struct product p;

    product_open(&p, n, n_k, 4, made_for, false, 300);
    for (uint32_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
        if (whole || (c + seed) % 3 == 0)
            run(&p, CUDA_GEMM_SPREAD144, (enum sm90_gemm_form)((c + seed) % 3), counts[c],
                (c + seed) / 3 % 2);
    product_close(&p);
    printf("%s: four segments over a cluster, %u x %u\n", n_failed > before ? "FAIL" : "ok", n,
           n_k);
}

/* Full rounds of tiles, then the rest split over pairs of blocks that wait for each other: by few
 * rows and by two warpgroups of them, in two rounds and three, a ring that goes round in each tile,
 * a last tile of W that is not full. */
static void test_behind(void) {
    static const struct {
        uint32_t n, n_k, segments, n_rows;
        struct way way;
        enum sm90_gemm_form form;
    } cases[] = {
        {8584, 512, 4, 13, {4, CUDA_GEMM_SHARE_W}, SM90_GEMM_ADD},
        {16904, 128, 2, 5, {2, CUDA_GEMM_SHARE_W}, SM90_GEMM_F32},
        {8712, 256, 4, 147, {2, CUDA_GEMM_SHARE_X}, SM90_GEMM_BF16},
    };
    const unsigned before = n_failed;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct product p;

        product_open(&p, cases[i].n, cases[i].n_k, cases[i].segments, cases[i].segments, false,
                     cases[i].n_rows);
        if (cuda_gemm_can_so(CUDA_GEMM_SPLIT128, &p.w, cases[i].n_rows, cases[i].segments,
                             cases[i].way.n_splits, cases[i].way.pairs)) {
            run_way(&p, CUDA_GEMM_SPLIT128, cases[i].way, cases[i].form, cases[i].n_rows, i % 2);
        } else {
            printf("splits behind whole tiles, case %zu: it cannot\n", i);
            n_failed++;
        }
        product_close(&p);
    }
    printf("%s: splits behind whole tiles\n", n_failed > before ? "FAIL" : "ok");
}

/* In two and in four by turns: what one leaves of its counts is not what the other counts on. */
static void test_counts(void) {
    static const uint32_t splits[] = {2, 4, 2, 2, 2, 4};
    const unsigned before = n_failed;
    struct product p;

    product_open(&p, 136, 256, 4, 4, false, 13);
    for (size_t i = 0; i < sizeof(splits) / sizeof(splits[0]); i++)
        run_way(&p, CUDA_GEMM_SPLIT128, (struct way){splits[i], CUDA_GEMM_SHARE_W}, SM90_GEMM_F32,
                13, i % 2);
    product_close(&p);
    printf("%s: splits in two and in four by turns\n", n_failed > before ? "FAIL" : "ok");
}

/* A tree half of which waits in shared memory: tiles of one warpgroup and of two, one after another in
 * a block, and a last tile of W that is not full; a ring that goes round in a segment. */
static void test_parked(uint32_t n, uint32_t n_k, uint32_t segments) {
    static const uint32_t counts[] = {13, 131, 389};
    const unsigned before = n_failed;
    struct product p;

    product_open(&p, n, n_k, segments, segments, false, 389);
    for (uint32_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
        run(&p, CUDA_GEMM_TREE192, (enum sm90_gemm_form)((c + seed + segments) % 3), counts[c],
            (c + seed) % 2);
    product_close(&p);
    printf("%s: %u segments, half of them parked, %u x %u\n", n_failed > before ? "FAIL" : "ok",
           segments, n, n_k);
}

/* Tiles of three warpgroups, and of columns whose gated half ends in half a chunk: one warpgroup, two
 * and all of them, tiles one after another in a block, a ring that goes round. */
static void test_gated_tiles(uint32_t n, uint32_t n_k) {
    static const uint32_t counts[] = {13, 131, 190, 389, 777};
    static const enum cuda_gemm_kernel kernels[] = {CUDA_GEMM_MANY240, CUDA_GEMM_TALL192};
    const unsigned before = n_failed;
    struct product p;

    product_open(&p, n, n_k, 1, 1, true, 777);
    for (uint32_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
        for (uint32_t k = 0; k < sizeof(kernels) / sizeof(kernels[0]); k++)
            run(&p, kernels[k], SM90_GEMM_SILU, counts[c], (c + k + seed) % 2);
    product_close(&p);
    printf("%s: gated, in halves of chunks and by three warpgroups, %u x %u\n",
           n_failed > before ? "FAIL" : "ok", n, n_k);
}

/* ---- the norm folded in ---- */

static const struct normed {
    uint32_t hidden, n_k, segments; /* of the product before */
    uint32_t n_heads, n_kv_heads, head_dim, inter;
    uint32_t n_rows;
} normeds[] = {
    {576, 192, 4, 3, 1, 64, 48, 3},  {576, 64, 4, 1, 1, 64, 80, 1}, {192, 64, 4, 1, 1, 64, 16, 13},
    {208, 64, 4, 3, 1, 32, 104, 16}, {320, 64, 4, 1, 1, 64, 16, 8}, {1024, 64, 4, 1, 1, 64, 32, 16},
    {528, 96, 2, 1, 1, 128, 16, 8}, /* 132 sums of squares: more than a warp loads at once */
};

static void same(const char *what, const struct normed *s, enum cuda_gemm_kernel k, const void *is,
                 const void *want, size_t n_values) {
    const uint16_t *a = is, *b = want;

    n_compared += n_values;
    for (size_t i = 0; i < n_values; i++) {
        if (a[i] == b[i]) continue;
        printf("%s: %s, hidden %u, %u rows: value %zu is %04x, not %04x\n", cuda_gemm_name(k), what,
               s->hidden, s->n_rows, i, a[i], b[i]);
        n_failed++;
        return;
    }
}

/* Rows after the product before, which adds to them and leaves their squares. */
struct stream {
    uint16_t *x;                     /* by the twin */
    uint64_t d_x, d_squares, d_norm; /* the norm's weights */
    uint16_t *norm;
    uint32_t n_squares, squares_stride;
};

static void add_before(const struct normed *s, struct stream *out) {
    const size_t n_values = (size_t)s->n_rows * s->hidden;
    uint16_t *weights = bf16_values(s->hidden, s->n_k, 61, 0.05f);
    uint16_t *attended = bf16_values(s->n_rows, s->n_k, 62, 1.0f);
    float *y = multiplied(weights, s->hidden, s->n_k, attended, s->n_rows, s->segments);
    struct err e = {""};
    struct cuda_gemm_weight w;
    uint64_t d_weights, d_attended, squares_bytes;

    out->x = bf16_values(s->n_rows, s->hidden, 63, 1.0f);
    out->norm = bf16_values(1, s->hidden, 64, 1.0f);
    out->d_x = gpu_copy_of(out->x, n_values * 2);
    out->d_norm = gpu_copy_of(out->norm, (size_t)s->hidden * 2);
    cpu_row_add(out->x, y, (uint32_t)n_values);
    cuda_gemm_shape(&w, s->hidden, s->n_k, s->segments, false);
    w.d_image = gpu_take(w.n_bytes, 0);
    d_weights = gpu_copy_of(weights, (size_t)s->hidden * s->n_k * 2);
    d_attended = gpu_copy_of(attended, (size_t)s->n_rows * s->n_k * 2);
    GPU_CHECK(cuda_gemm_pack(gemm, &w, d_weights, s->hidden, 0, 1, &e));
    out->n_squares = cuda_gemm_squares(&w, s->n_rows, s->segments);
    out->squares_stride = (out->n_squares + 4) / 4 * 4;
    squares_bytes = (uint64_t)s->n_rows * out->squares_stride * sizeof(float);
    out->d_squares = gpu_take(squares_bytes, 0);
    const enum cuda_gemm_kernel k = s->n_rows <= 8 ? CUDA_GEMM_FEW8_NVRTC : CUDA_GEMM_FEW16;
    const struct cuda_gemm_args args = {.w = &w,
                                        .d_x = d_attended,
                                        .d_out = out->d_x,
                                        .d_squares = out->d_squares,
                                        .squares_stride = out->squares_stride,
                                        .x_stride = s->n_k,
                                        .out_stride = s->hidden,
                                        .n_rows = s->n_rows,
                                        .segments = s->segments,
                                        .form = SM90_GEMM_ADD,
                                        .overlap = true};
    GPU_CHECK(cuda_gemm_run_by(gemm, k, &args, &e));
    same("the residual stream", s, k, (void *)(uintptr_t)out->d_x, out->x, n_values);
    gpu_give(w.d_image);
    gpu_give(d_weights);
    gpu_give(d_attended);
    free(weights);
    free(attended);
    free(y);
}

static void test_heads(const struct normed *s, const struct stream *x, const uint16_t *x_normed,
                       enum cuda_gemm_kernel k) {
    const struct sm90_gemm_norm norm = {.squares = x->d_squares,
                                        .weight = x->d_norm,
                                        .n_squares = x->n_squares,
                                        .squares_stride = x->squares_stride,
                                        .eps = 1e-5f};
    struct heads h;

    heads_open(&h, &(struct heads_shape){s->n_heads, s->n_kv_heads, s->head_dim, s->hidden},
               x_normed, s->n_rows);
    heads_run(&h, k, ways[0], x->d_x, &norm, s->n_rows, true);
    heads_close(&h);
}

static void test_gated(const struct normed *s, const struct stream *x, const uint16_t *x_normed,
                       enum cuda_gemm_kernel k) {
    const uint32_t n = 2 * s->inter;
    const size_t half = (size_t)s->inter * s->hidden, n_out = (size_t)s->n_rows * s->inter;
    uint16_t *weights = bf16_values(n, s->hidden, 68, 0.05f), *want = gpu_host(n_out * 2);
    const uint64_t d_weights = gpu_copy_of(weights, 2 * half * 2);
    const uint64_t d_out = gpu_take(n_out * 2, GPU_POISON);
    struct product p = {.n = n};
    struct err e = {""};

    p.y = multiplied(weights, n, s->hidden, x_normed, s->n_rows, 1);
    for (uint32_t i = 0; i < n_out; i++)
        want[i] = (uint16_t)wanted(&p, SM90_GEMM_SILU, i / s->inter, i % s->inter);
    cuda_gemm_shape(&p.w, n, s->hidden, 1, true);
    p.w.d_image = gpu_take(p.w.n_bytes, 0);
    GPU_CHECK(cuda_gemm_pack(gemm, &p.w, d_weights, s->inter, 0, 2, &e));
    GPU_CHECK(cuda_gemm_pack(gemm, &p.w, d_weights + half * 2, s->inter, 1, 2, &e));
    const struct sm90_gemm_norm norm = {.squares = x->d_squares,
                                        .weight = x->d_norm,
                                        .n_squares = x->n_squares,
                                        .squares_stride = x->squares_stride,
                                        .eps = 1e-5f};
    const struct cuda_gemm_args args = {.w = &p.w,
                                        .d_x = x->d_x,
                                        .d_out = d_out,
                                        .norm = &norm,
                                        .x_stride = s->hidden,
                                        .out_stride = s->inter,
                                        .n_rows = s->n_rows,
                                        .segments = 1,
                                        .form = SM90_GEMM_SILU,
                                        .overlap = true};
    GPU_CHECK(cuda_gemm_run_by(gemm, k, &args, &e));
    same("gate and up", s, k, (void *)(uintptr_t)d_out, want, n_out);
    gpu_give(p.w.d_image);
    gpu_give(d_weights);
    gpu_give(d_out);
    free(weights);
    free(want);
    free(p.y);
}

static void test_normed(const struct normed *s) {
    const unsigned before = n_failed;
    uint16_t *x_normed = gpu_host((size_t)s->n_rows * s->hidden * 2);
    float *squares = gpu_host((size_t)s->hidden * sizeof(float));
    struct stream x;

    add_before(s, &x);
    for (uint32_t i = 0; i < s->n_rows; i++)
        cpu_row_norm(x.x + (size_t)i * s->hidden, x.norm, s->hidden, 1e-5f, 2, squares,
                     x_normed + (size_t)i * s->hidden);
    for (enum cuda_gemm_kernel k = CUDA_GEMM_NORMED8; k <= CUDA_GEMM_NORMED16; k++) {
        if (k == CUDA_GEMM_NORMED8 && s->n_rows > 8) continue;
        test_heads(s, &x, x_normed, k);
        test_gated(s, &x, x_normed, k);
    }
    for (enum cuda_gemm_kernel k = CUDA_GEMM_BRIEF8; k <= CUDA_GEMM_BRIEF16; k++) {
        if ((k == CUDA_GEMM_BRIEF8 && s->n_rows > 8) || s->hidden % 64) continue;
        test_heads(s, &x, x_normed, k);
        test_gated(s, &x, x_normed, k);
    }
    gpu_give(x.d_x);
    gpu_give(x.d_squares);
    gpu_give(x.d_norm);
    free(x.x);
    free(x.norm);
    free(x_normed);
    free(squares);
    printf("%s: %u rows of %u normed, %u sums of squares each\n", n_failed > before ? "FAIL" : "ok",
           s->n_rows, s->hidden, x.n_squares);
}

/* ---- rotation and the store of keys and values, without a norm ---- */

static const struct turned {
    struct heads_shape heads;
    uint32_t counts[5];
    const char *why;
} turneds[] = {
    {{9, 3, 64, 64}, {17, 33, 64, 131, 300}, "SmolLM2's heads"},
    {{32, 8, 64, 16}, {23, 65}, "32 and 8 heads of 64, one step of K"},
    {{32, 8, 128, 64}, {41}, "32 and 8 heads of 128"},
    {{2, 2, 64, 208}, {16, 47, 97, 193}, "as many of k as of q, K not in blocks"},
    {{4, 1, 128, 144}, {1, 31, 66, 129, 257}, "heads of 128"},
    {{3, 1, 32, 80}, {18, 71}, "heads of 32"},
    {{1, 1, 16, 16}, {9, 128}, "heads of 16"},
    {{2, 1, 128, 2560}, {19, 67}, "a ring that goes round"},
    {{5, 1, 64, 400}, {190, 271, 383}, "tiles of three warpgroups"},
};

static void test_turned(const struct turned *t, size_t number) {
    const size_t n_counts = sizeof(t->counts) / sizeof(t->counts[0]);
    const unsigned before = n_failed;
    uint32_t n_rows = 0;
    uint16_t *x;
    uint64_t d_x;
    struct heads h;

    for (size_t c = 0; c < n_counts; c++) n_rows = t->counts[c] > n_rows ? t->counts[c] : n_rows;
    x = bf16_values(n_rows, t->heads.n_k, 69, 1.0f);
    d_x = gpu_copy_of(x, (size_t)n_rows * t->heads.n_k * 2);
    heads_open(&h, &t->heads, x, n_rows);
    for (size_t c = 0; c < n_counts && t->counts[c]; c++)
        for (enum cuda_gemm_kernel k = 0; k < CUDA_GEMM_NORMED8; k++) {
            const bool chosen = k == cuda_gemm_choose(&h.w, t->counts[c], 1);

            if (!chosen && (number + c + k + seed) % ONE_IN) continue;
            heads_run_all(&h, k, d_x, t->counts[c], (number + c + k) % 4 > 0);
        }
    heads_close(&h);
    gpu_give(d_x);
    free(x);
    printf("%s: %s\n", n_failed > before ? "FAIL" : "ok", t->why);
}

int main(void) {
    struct err e = {""};

    seed = (uint32_t)sim_seed_asked();
    driver.n_units = driver.n_own = 132;
    driver.cuda.cuMemAlloc_v2 = take_bytes;
    driver.cuda.cuMemFree_v2 = give_bytes;
    driver.cuda.cuMemsetD8Async = fill;
    driver.cuda.cuMemcpyHtoDAsync_v2 = write_bytes;
    driver.cuda.cuMemcpyDtoHAsync_v2 = read_bytes;
    driver.cuda.cuStreamSynchronize = synchronize;
    driver.cuda.cuTensorMapEncodeTiled = encode;
    gpu = &driver;
    sim_seed(seed);
    GPU_CHECK(cuda_gemm_open(gpu, &gemm, &e));
    GPU_CHECK(cpu_pool_open(1, &pool, &e));
    for (size_t i = 0; i < sizeof(normeds) / sizeof(normeds[0]); i++) test_normed(&normeds[i]);
    for (size_t i = 0; i < sizeof(turneds) / sizeof(turneds[0]); i++) test_turned(&turneds[i], i);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) test_shape(&shapes[i], i);
    test_spread(296, 512, 4, ALL_COUNTS);
    test_spread(152, 2560, 1, false);
    test_behind();
    test_counts();
    test_gated_tiles(496, 400);
    test_gated_tiles(528, 64);
    test_parked(392, 1280, 4);
    test_parked(200, 256, 4);
    test_parked(200, 384, 2);
    cpu_pool_close(pool);
    cuda_gemm_close(gemm);
    printf("%llu values compared, %u mismatches\n", (unsigned long long)n_compared, n_failed);
    return n_failed ? 1 : 0;
}

#else

#include <stdio.h>

int main(void) {
    printf("built without CUDA or without a C++ compiler\n");
    return 77;
}

#endif
