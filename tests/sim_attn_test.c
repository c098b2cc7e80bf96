/* The text of the kernels of attention, run on this processor (tests/sim/sim.h), against the twin's,
 * bit for bit: what cuda_attn launches for single rows, runs and prompts, as planned and with other
 * choices, on GPUs of other sizes, in several orders of all that runs at once.  LLM42_SIM_SEED gives
 * other orders.  Skipped (77) in a build without CUDA or a C++ compiler. */
#if defined LLM42_CUDA && defined LLM42_SIM

#include "runtime/cuda_attn.h"

#include <stddef.h>

#include "tests/attn_data.h"
#include "tests/sim/sim.h"

static struct cuda_driver driver;

/* All must have run, by the end. */
static struct {
    const char *name;
    unsigned n;
} launches[] = {
    {"sm90_attn_bf16_few64", 0},    {"sm90_attn_bf16_few128", 0},
    {"sm90_attn_bf16_some64", 0},   {"sm90_attn_bf16_some128", 0},
    {"sm90_attn_bf16_many64", 0},   {"sm90_attn_bf16_many128", 0},
    {"sm90_attn_bf16_prompt64", 0}, {"sm90_attn_bf16_prompt128", 0},
    {"sm90_attn_bf16_spread64", 0}, {"sm90_attn_bf16_spread128", 0},
    {"sm90_attn_bf16_pair128", 0},  {"sm90_attn_bf16_turns64", 0},
    {"sm90_attn_bf16_turns128", 0}, {"sm90_attn_bf16_alone64", 0},
    {"sm90_attn_bf16_long128", 0},
};

enum { N_KERNELS = sizeof(launches) / sizeof(launches[0]) };

/* What the kernel before writes last: queries, keys and values of this step. */
enum { LATE_BYTES = 256, LATE_MAX = 1 << 16 };
static struct late {
    void *at;
    unsigned char keep[LATE_BYTES];
    size_t n_bytes;
} late[LATE_MAX];
static uint32_t n_late;

static void hide(void *at, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += LATE_BYTES) {
        const size_t n = n_bytes - i < LATE_BYTES ? n_bytes - i : LATE_BYTES;
        struct late *l = &late[n_late++];

        if (n_late > LATE_MAX) exit(1);
        *l = (struct late){.at = (unsigned char *)at + i, .n_bytes = n};
        memcpy(l->keep, l->at, n);
        memset(l->at, GPU_POISON, n);
    }
}

static void write_late(void) {
    while (n_late) {
        const struct late *l = &late[--n_late];

        memcpy(l->at, l->keep, l->n_bytes);
    }
}

/* Of single rows: those of runs are hidden as a whole nowhere. */
static void hide_all(const struct data *d, const struct cuda_attn_shape *shape) {
    for (uint32_t i = 0; i < d->n_rows; i++) {
        const struct device_row *r = &d->rows[i];
        const uint32_t *table = d->table + (size_t)r->seq * shape->n_seq_pages;

        if (r->seq == UINT32_MAX) continue;
        hide((uint16_t *)d->qkv + (size_t)i * d->qkv_stride,
             (size_t)shape->n_heads * shape->head_dim * 2);
        for (uint32_t head = 0; head < shape->n_kv_heads; head++)
            for (uint32_t value = 0; value < 2; value++)
                for (uint32_t j = 0; j < shape->head_dim; j += 8)
                    hide((unsigned char *)d->gpu_pages +
                             cuda_attn_offset(shape, table[r->position / SM90_ATTN_PAGE], head,
                                              value, r->position % SM90_ATTN_PAGE, j),
                         16);
    }
}

int __wrap_cuda_driver_entry(struct cuda_driver *d, const char *kernel, const char *entry,
                             uint32_t shared_bytes, CUfunction *out_entry, struct err *e);
int __wrap_cuda_driver_launch(struct cuda_driver *d, const struct cuda_launch *l, struct err *e);

int __wrap_cuda_driver_entry(struct cuda_driver *d, const char *kernel, const char *entry,
                             uint32_t shared_bytes, CUfunction *out_entry, struct err *e) {
    (void)d, (void)kernel, (void)shared_bytes, (void)e;
    *out_entry = (CUfunction)(uintptr_t)entry;
    return sim_has(entry) ? 0 : err_set(e, -EINVAL, "%s is not among the kernels", entry);
}

int __wrap_cuda_driver_launch(struct cuda_driver *d, const struct cuda_launch *l, struct err *e) {
    (void)e;
    for (int i = 0; i < N_KERNELS; i++) launches[i].n += !strcmp(launches[i].name, l->name);
    sim_run(&(struct sim_launch){.name = l->name,
                                 .grid = {l->grid[0], l->grid[1], l->grid[2]},
                                 .block = {l->block[0], l->block[1], l->block[2]},
                                 .cluster = l->cluster,
                                 .shared_bytes = l->shared_bytes,
                                 .n_units = d->n_units,
                                 .params = l->params,
                                 .previous = n_late ? write_late : NULL});
    return 0;
}

struct row {
    struct step step;
    uint32_t n_units; /* of the GPU */
    bool shared;      /* with others: no block may wait for one that has not begun */
    bool whole;       /* a block folds all splits of its tile, however few tiles there are */
    uint32_t regimes; /* a bit each */
};

enum { ALL = 0x7f, PLAIN = 1, STEEP = 2, BAD = 0x40 };

/* Sanitizers look at addresses, which one regime has like all. */
#ifdef __SANITIZE_ADDRESS__
enum { REGIMES = BAD };
#else
enum { REGIMES = ALL };
#endif

static const struct row rows[] = {
    {{"few: splits as packets", 4, 1, 128, 128, 2, {{700, 1}, {255, 1}}}, 8, false, false, ALL},
    {{"few: two splits to a block", 6, 2, 64, 128, 1, {{600, 1}}}, 4, false, false, PLAIN | BAD},
    {{"few: more packets than are in flight", 4, 1, 128, 128, 2, {{2400, 1}, {1100, 1}}},
     7,
     false,
     false,
     PLAIN | STEEP | BAD},
    {{"long: a short row beside", 4, 1, 128, 128, 2, {{1100, 1}, {255, 1}}}, 24, false, false, ALL},
    {{"long: more packets than are in flight", 8, 1, 128, 128, 1, {{3050, 1}}},
     4,
     false,
     false,
     PLAIN | STEEP | BAD},
    {{"long: two chunks of heads, shares of uneven width", 10, 1, 128, 128, 1, {{1100, 1}}},
     9,
     false,
     false,
     PLAIN | STEEP | BAD},
    {{"few: parts, the last block folds", 12, 1, 64, 128, 2, {{300, 1}, {127, 1}}},
     2,
     true,
     false,
     ALL},
    {{"few: parts, heads of 128", 2, 1, 128, 256, 2, {{520, 1}, {0, 1}}},
     2,
     true,
     false,
     PLAIN | BAD},
    {{"few: a block folds all", 16, 1, 128, 128, 4, {{0, 1}, {63, 1}, {128, 1}, {400, 1}}},
     1,
     true,
     true,
     PLAIN | BAD},
    {{"spread: a split's edges", 4, 2, 128, 512, 3, {{0, 1}, {64, 1}, {511, 1}}},
     56,
     false,
     false,
     PLAIN | STEEP | BAD},
    {{"spread: splits folded", 3, 1, 128, 512, 2, {{1100, 1}, {512, 1}}}, 60, false, false, ALL},
    {{"spread: heads of 64, 12 to one", 12, 1, 64, 512, 2, {{700, 1}, {130, 1}}},
     40,
     false,
     false,
     ALL},
    {{"spread: SmolLM2", 9, 3, 64, 512, 4, {{511, 1}, {0, 1}, {64, 1}, {300, 1}}},
     40,
     false,
     false,
     PLAIN | STEEP | BAD},
    {{"pair: splits folded", 8, 2, 128, 512, 2, {{640, 1}, {200, 1}}},
     31,
     false,
     false,
     PLAIN | STEEP | BAD},
    {{"some: shares of a fold", 8, 2, 128, 128, 2, {{250, 9}, {100, 3}}}, 16, false, false, ALL},
    {{"some: more parts than are in flight", 4, 1, 128, 128, 1, {{2300, 9}}},
     40,
     false,
     false,
     ALL},
    {{"some: parts, the last block folds", 9, 3, 64, 128, 2, {{250, 21}, {60, 9}}},
     2,
     true,
     false,
     PLAIN | STEEP | BAD},
    {{"some: a block folds all", 6, 1, 64, 128, 2, {{300, 10}, {0, 2}}},
     1,
     true,
     true,
     PLAIN | BAD},
    {{"turns: even splits, two sequences", 6, 1, 128, 128, 2, {{500, 10}, {250, 7}}},
     1,
     true,
     true,
     ALL},
    {{"turns: odd splits of two blocks", 12, 3, 64, 256, 2, {{1150, 16}, {250, 12}}},
     1,
     true,
     true,
     PLAIN | STEEP | BAD},
    {{"turns: splits that end within the run", 8, 2, 128, 512, 2, {{1015, 16}, {505, 16}}},
     1,
     true,
     true,
     PLAIN | BAD},
    {{"turns: one split, then two", 4, 1, 64, 256, 2, {{100, 16}, {250, 16}}}, 1, true, true, ALL},
    {{"some: no split", 16, 1, 128, 1 << 20, 1, {{200, 4}}}, 4, false, false, PLAIN | BAD},
    {{"many: shares of a fold", 4, 1, 128, 128, 1, {{200, 40}}}, 16, false, false, PLAIN | BAD},
    {{"many: parts, the last block folds", 2, 1, 64, 256, 1, {{270, 70}}},
     2,
     true,
     false,
     PLAIN | STEEP | BAD},
    /* Whole blocks and ragged ones, splits folded in a block, several units to a block. */
    {{"prompt: from its start", 2, 1, 128, 128, 1, {{0, 161}}}, 1, false, true, ALL},
    {{"prompt: 3 heads to one", 6, 2, 64, 256, 1, {{0, 75}}}, 2, false, true, PLAIN | STEEP | BAD},
    {{"prompt: from the middle", 4, 2, 64, 128, 2, {{190, 70}, {63, 66}}},
     3,
     false,
     true,
     PLAIN | BAD},
    {{"prompt: more units than places", 4, 2, 64, 128, 3, {{0, 40}, {70, 40}, {3, 33}}},
     1,
     false,
     true,
     PLAIN | BAD},
    {{"prompt: its end", 8, 1, 128, 256, 1, {{381, 20}}}, 2, false, true, PLAIN | BAD},
};

/* `filled`: with tiles of no rows and lengths rounded up, as graphs are. */
static void by_host(const struct data *d, const struct cuda_attn_shape *shape, bool whole,
                    bool filled, const uint16_t *want, const uint8_t *want_flagged) {
    static unsigned char *work; /* where each finds what the one before left */
    const size_t out_bytes = (size_t)d->n_rows * shape->n_heads * shape->head_dim * 2;
    struct sm90_attn_tile *tiles =
        gpu_host((2 * (size_t)d->n_rows + CUDA_ATTN_KINDS) * sizeof(*tiles));
    struct sm90_attn_tile *planned = gpu_host(d->n_rows * sizeof(*planned));
    uint16_t *got = gpu_host(out_bytes);
    uint8_t *got_flagged = gpu_host(d->n_rows);
    struct cuda_attn_plan plan;
    struct cuda_attn *attn;
    struct err e = {""};

    GPU_CHECK(cuda_attn_open(&driver, shape, &attn, &e));
    if (!work) work = calloc(1, cuda_attn_work_bytes(attn));
    if (!work) exit(1);
    cuda_attn_plan(attn, d->rows, d->n_rows, planned, &plan);
    memcpy(tiles, planned, d->n_rows * sizeof(*tiles));
    if (filled) fill_up(&plan, planned, tiles);
    if (whole) plan.n_keys = UINT32_MAX;
    for (int kind = 0; kind < CUDA_ATTN_KINDS && whole; kind++) plan.run_n_keys[kind] = UINT32_MAX;
    memset(got, GPU_POISON, out_bytes);
    memset(got_flagged, 0, d->n_rows);
    const struct cuda_attn_args args = {
        .d_pages = (uintptr_t)d->gpu_pages,
        .d_q = (uintptr_t)d->qkv,
        .d_out = (uintptr_t)got,
        .d_flagged = (uintptr_t)got_flagged,
        .d_positions = (uintptr_t)d->rows + offsetof(struct device_row, position),
        .d_table = (uintptr_t)d->table,
        .d_tiles = (uintptr_t)tiles,
        .d_work = (uintptr_t)work,
        .q_stride = d->qkv_stride,
        .position_stride = sizeof(struct device_row) / 4,
        .split_keys = d->step->split_keys,
        .overlap = true,
    };
    hide_all(d, shape);
    GPU_CHECK(cuda_attn_run(attn, &plan, &args, &e));
    compare(d, want, want_flagged, got, got_flagged);
    cuda_attn_close(attn);
    free(tiles);
    free(planned);
    free(got);
    free(got_flagged);
}

static void run_row(const struct row *row, uint32_t regime, uint64_t seed) {
    struct cuda_attn_shape shape;
    struct data d;
    uint16_t *want;
    uint8_t *want_flagged;

    data_open(&d, &row->step, &regimes[regime], &shape);
    want = gpu_host((size_t)d.n_rows * shape.n_heads * shape.head_dim * 2);
    want_flagged = gpu_host(d.n_rows);
    memset(want_flagged, 0, d.n_rows);
    by_twin(&d, want, want_flagged);
    sim_seed(seed);
    by_host(&d, &shape, row->whole, regime % 2, want, want_flagged);
    free(want);
    free(want_flagged);
    data_close(&d);
}

int main(int argc, char **argv) {
    uint64_t seed;
    struct err e = {""};

    setvbuf(stdout, NULL, _IOLBF, 0);
    seed = sim_seed_asked();
    GPU_CHECK(cpu_pool_open(1, &pool, &e));
    for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const unsigned before = n_failed;

        if (argc > 1 && !strstr(rows[i].step.name, argv[1])) continue;
        driver.n_units = rows[i].n_units;
        driver.n_own = rows[i].shared ? 0 : rows[i].n_units;
        for (uint32_t g = 0; g < sizeof(regimes) / sizeof(regimes[0]); g++)
            if (rows[i].regimes & REGIMES & 1u << g) run_row(&rows[i], g, seed + i * 100 + g);
        printf("%s: %s\n", n_failed > before ? "FAIL" : "ok", rows[i].step.name);
    }
    cpu_pool_close(pool);
    for (int i = 0; i < N_KERNELS; i++) {
        printf("%s: %u launches\n", launches[i].name, launches[i].n);
        if (launches[i].n == 0 && argc == 1) n_failed++;
    }
    printf("%llu values compared, %llu rows flagged by both, %u mismatches\n",
           (unsigned long long)n_compared, (unsigned long long)n_flagged, n_failed);
    return n_failed ? 1 : 0;
}

#else

#include <stdio.h>

int main(void) {
    printf("built without CUDA or without a C++ compiler\n");
    return 77;
}

#endif
