/* The text of the kernels of attention, run on this processor (tests/sim/sim.h), against the twin's,
 * bit for bit: what cuda_attn launches for single rows, runs and prompts, as planned and with other
 * choices, on GPUs of other sizes, in several orders of all that runs at once.  LLM42_SIM_SEED gives
 * other orders.  Skipped (77) in a build without CUDA or a C++ compiler. */
#if defined LLM42_CUDA && defined LLM42_SIM

#include "runtime/cuda_attn.h"

#include <stddef.h>

#include "tests/attn_data.h"
#include "tests/sim/sim.h"

/* Who folds: as planned; a block all splits of its rows; rows by themselves. */
enum way { PLANNED, WHOLE, ALONE, WAYS };

static struct cuda_driver driver;
static uint64_t seed = 1;
static uint64_t n_launches;

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
    n_launches++;
    sim_run(&(struct sim_launch){.name = l->name,
                                 .grid = {l->grid[0], l->grid[1], l->grid[2]},
                                 .block = {l->block[0], l->block[1], l->block[2]},
                                 .cluster = l->cluster,
                                 .shared_bytes = l->shared_bytes,
                                 .n_units = d->n_units,
                                 .params = l->params});
    return 0;
}

/* A GPU of so many multiprocessors; shared: others' kernels have some. */
struct gpu_size {
    uint32_t n_units;
    bool shared;
};

struct row {
    struct step step;
    enum way way;
    struct gpu_size size;
    uint32_t regimes; /* of them a bit each */
};

#define ALL_REGIMES 0x7fu

static const struct row rows[] = {
    /* prompt: whole blocks and ragged ones, splits folded in a block, several units to a block */
    {{"a prompt", 2, 1, 128, 128, 1, {{0, 161}}}, WHOLE, {1, false}, ALL_REGIMES},
    {{"a prompt, 3 heads to one", 6, 2, 64, 256, 1, {{0, 75}}}, WHOLE, {2, false}, ALL_REGIMES},
    {{"the middle of prompts", 4, 2, 64, 128, 2, {{190, 70}, {63, 66}}}, WHOLE, {3, false}, 0x51},
    {{"more units than places", 4, 2, 64, 128, 3, {{0, 40}, {70, 40}, {3, 33}}},
     WHOLE,
     {1, false},
     0x41},
    {{"the end of a prompt", 8, 1, 128, 256, 1, {{381, 20}}}, WHOLE, {2, false}, 0x41},
};

static void run_by(const struct data *d, const struct cuda_attn_shape *shape, enum way way,
                   const uint16_t *want, const uint8_t *want_flagged) {
    const size_t out_bytes = (size_t)d->n_rows * shape->n_heads * shape->head_dim * 2;
    struct sm90_attn_tile *tiles = gpu_host(d->n_rows * sizeof(*tiles));
    uint16_t *got = gpu_host(out_bytes);
    uint8_t *got_flagged = gpu_host(d->n_rows);
    struct cuda_attn_plan plan;
    struct cuda_attn *attn;
    struct err e = {""};
    unsigned char *work;

    GPU_CHECK(cuda_attn_open(&driver, shape, &attn, &e));
    work = calloc(1, cuda_attn_work_bytes(attn));
    cuda_attn_plan(attn, d->rows, d->n_rows, tiles, &plan);
    if (way == WHOLE)
        for (int kind = CUDA_ATTN_SOME; kind < CUDA_ATTN_KINDS; kind++)
            plan.run_n_keys[kind] = UINT32_MAX;
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
    };
    memset(got, GPU_POISON, out_bytes);
    memset(got_flagged, 0, d->n_rows);
    GPU_CHECK(cuda_attn_run(attn, &plan, &args, &e));
    compare(d, want, want_flagged, got, got_flagged);
    cuda_attn_close(attn);
    free(work);
    free(tiles);
    free(got);
    free(got_flagged);
}

int main(void) {
    const char *asked = getenv("LLM42_SIM_SEED");
    struct err e = {""};

    if (asked) seed = strtoull(asked, NULL, 0);
    printf("seed %llu\n", (unsigned long long)seed);
    GPU_CHECK(cpu_pool_open(1, &pool, &e));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct row *row = &rows[i];
        const unsigned before = n_failed;
        const uint64_t launches = n_launches;

        driver.n_units = row->size.n_units;
        driver.n_own = row->size.shared ? 0 : row->size.n_units;
        for (size_t g = 0; g < sizeof(regimes) / sizeof(regimes[0]); g++) {
            struct cuda_attn_shape shape;
            struct data d;
            uint16_t *want;
            uint8_t *want_flagged;

            if (!(row->regimes >> g & 1)) continue;
            data_open(&d, &row->step, &regimes[g], &shape);
            want = gpu_host((size_t)d.n_rows * shape.n_heads * shape.head_dim * 2);
            want_flagged = gpu_host(d.n_rows);
            memset(want_flagged, 0, d.n_rows);
            by_twin(&d, want, want_flagged);
            sim_seed(seed + i * 100 + g);
            run_by(&d, &shape, row->way, want, want_flagged);
            free(want);
            free(want_flagged);
            data_close(&d);
        }
        printf("%s: %s, %llu launches\n", n_failed > before ? "FAIL" : "ok", row->step.name,
               (unsigned long long)(n_launches - launches));
    }
    cpu_pool_close(pool);
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
