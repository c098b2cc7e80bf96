/* Attention of the GPU against the twin's, bit for bit: single rows, runs, prompts from their start
 * and from the middle, and all of them in one step; heads of 64 and 128, one to sixteen query heads
 * to a KV head; scores from tiny to beyond what is valid; NaN in every page and slot that nobody
 * wrote, and values that are not finite in rows that others do not see.  All have one work memory,
 * where each finds what the one before left, and launches come on the heels of each other; pages lie
 * beyond 4 GiB.  Skipped (77) without a GPU. */
#ifdef LLM42_CUDA

#include "runtime/cuda_attn.h"

#include <unistd.h>

#include "tests/attn_data.h"

/* How a step is launched: by itself; several times without a wait between, each beside the end of
 * the one before; as the device does for a graph, with tiles of no rows and lengths rounded up. */
enum { BY_ITSELF, IN_A_ROW, FILLED_UP, WAYS };

/* Ids of pages, and the address of page 0, so that all that are there lie 8 GiB behind it: only what
 * is there is taken. */
static uint64_t far_pages(const struct data *d, const struct cuda_attn_shape *shape,
                          uint64_t d_pages, uint32_t *out_table) {
    const uint64_t page_bytes = cuda_attn_page_bytes(shape), n_before = (8ull << 30) / page_bytes;

    for (uint32_t i = 0; i < d->step->n_runs * d->n_seq_pages; i++)
        out_table[i] = d->table[i] == UINT32_MAX ? UINT32_MAX : d->table[i] + (uint32_t)n_before;
    return d_pages - n_before * page_bytes;
}

/* `alone`: every row by the kernel of single rows; else as planned. */
static void by_gpu(const struct data *d, const struct cuda_attn_shape *shape, bool alone,
                   const uint16_t *want, const uint8_t *want_flagged) {
    static uint64_t d_work;
    const size_t out_bytes = (size_t)d->n_rows * shape->n_heads * shape->head_dim * 2;
    const size_t table_bytes = (size_t)d->step->n_runs * d->n_seq_pages * 4;
    const size_t n_tiles_max = 2 * (size_t)d->n_rows + CUDA_ATTN_KINDS;
    struct sm90_attn_tile *tiles = gpu_host(d->n_rows * sizeof(*tiles));
    struct sm90_attn_tile *filled = gpu_host(n_tiles_max * sizeof(*filled));
    uint32_t *table = gpu_host(table_bytes);
    uint16_t *got = gpu_host(out_bytes);
    uint8_t *got_flagged = gpu_host(d->n_rows);
    struct cuda_attn_plan plan;
    struct cuda_attn_args args;
    struct cuda_attn *attn;
    struct err e = {""};
    uint64_t d_pages;

    GPU_CHECK(cuda_attn_open(gpu, shape, &attn, &e));
    if (!d_work) d_work = gpu_take(cuda_attn_work_bytes(attn), 0);
    cuda_attn_plan(attn, d->rows, d->n_rows, tiles, &plan);
    if (alone) {
        plan = (struct cuda_attn_plan){.n_tiles = {d->n_rows}};
        for (uint32_t row = 0; row < d->n_rows; row++) {
            tiles[row] = (struct sm90_attn_tile){.row = row,
                                                 .n_rows = 1,
                                                 .seq = d->rows[row].seq,
                                                 .end = d->rows[row].position + 1,
                                                 .old = d->rows[row].position};
            plan.n_keys += tiles[row].end;
            if (tiles[row].end > plan.end_max) plan.end_max = tiles[row].end;
        }
    }
    d_pages = gpu_copy_of(d->gpu_pages, d->pages_bytes);
    args = (struct cuda_attn_args){
        .d_pages = far_pages(d, shape, d_pages, table),
        .d_q = gpu_copy_of(d->qkv, (size_t)d->n_rows * d->qkv_stride * 2),
        .d_out = gpu_take(out_bytes, GPU_POISON),
        .d_flagged = gpu_take(d->n_rows, 0),
        .d_positions = gpu_copy_of(d->rows, d->n_rows * sizeof(d->rows[0])) +
                       offsetof(struct device_row, position),
        .d_table = gpu_copy_of(table, table_bytes),
        .d_tiles = gpu_take(n_tiles_max * sizeof(*tiles), GPU_POISON),
        .d_work = d_work,
        .q_stride = d->qkv_stride,
        .position_stride = sizeof(struct device_row) / 4,
        .split_keys = d->step->split_keys,
    };
    memset(filled, GPU_POISON, n_tiles_max * sizeof(*filled));
    gpu_write(args.d_tiles, tiles, d->n_rows * sizeof(*tiles));
    for (int way = 0; way < WAYS; way++) {
        if (way == FILLED_UP) {
            fill_up(&plan, tiles, filled);
            gpu_write(args.d_tiles, filled, n_tiles_max * sizeof(*filled));
        }
        GPU_DRIVER(cuMemsetD8Async(args.d_out, GPU_POISON, out_bytes, gpu->stream));
        GPU_DRIVER(cuMemsetD8Async(args.d_flagged, 0, d->n_rows, gpu->stream));
        args.overlap = way != BY_ITSELF;
        for (int i = 0; i < (way == IN_A_ROW ? 4 : 1); i++)
            GPU_CHECK(cuda_attn_run(attn, &plan, &args, &e));
        gpu_read(got, args.d_out, out_bytes);
        gpu_read(got_flagged, args.d_flagged, d->n_rows);
        compare(d, want, want_flagged, got, got_flagged);
    }
    gpu_give(d_pages);
    gpu_give(args.d_q);
    gpu_give(args.d_out);
    gpu_give(args.d_flagged);
    gpu_give(args.d_positions - offsetof(struct device_row, position));
    gpu_give(args.d_table);
    gpu_give(args.d_tiles);
    cuda_attn_close(attn);
    free(tiles);
    free(filled);
    free(table);
    free(got);
    free(got_flagged);
}

static const struct step steps[] = {
    {"single rows",
     32,
     8,
     128,
     512,
     12,
     {{0, 1},
      {1, 1},
      {63, 1},
      {64, 1},
      {127, 1},
      {128, 1},
      {511, 1},
      {512, 1},
      {600, 1},
      {1023, 1},
      {1100, 1},
      {2047, 1}}},
    {"a split's edges", 4, 1, 128, 512, 20, {{0, 1},   {1, 1},   {15, 1},  {16, 1},  {31, 1},
                                             {63, 1},  {64, 1},  {126, 1}, {127, 1}, {128, 1},
                                             {200, 1}, {255, 1}, {256, 1}, {300, 1}, {383, 1},
                                             {384, 1}, {447, 1}, {500, 1}, {510, 1}, {511, 1}}},
    {"a split's edges, 3 heads to one", 9, 3, 64, 512, 20, {{0, 1},   {1, 1},   {15, 1},
                                                            {16, 1},  {31, 1},  {63, 1},
                                                            {64, 1},  {126, 1}, {127, 1},
                                                            {128, 1}, {200, 1}, {255, 1},
                                                            {256, 1}, {300, 1}, {383, 1},
                                                            {384, 1}, {447, 1}, {500, 1},
                                                            {510, 1}, {511, 1}}},
    {"edges of splits",
     8,
     2,
     128,
     512,
     8,
     {{511, 1}, {512, 1}, {575, 1}, {576, 1}, {1023, 1}, {1024, 1}, {1535, 1}, {40, 1}}},
    {"edges of splits, 8 heads to one",
     16,
     2,
     64,
     512,
     4,
     {{513, 1}, {2047, 1}, {2048, 1}, {9, 1}}},
    {"a row of 1024", 16, 4, 128, 512, 1, {{1023, 1}}},
    {"a row of 4096", 8, 2, 128, 512, 1, {{4095, 1}}},
    {"pairs", 32, 8, 128, 512, 2, {{2047, 1}, {1300, 1}}},
    {"pairs, edges",
     4,
     1,
     128,
     512,
     12,
     {{2047, 1},
      {0, 1},
      {64, 1},
      {127, 1},
      {128, 1},
      {255, 1},
      {256, 1},
      {511, 1},
      {512, 1},
      {800, 1},
      {1025, 1},
      {1536, 1}}},
    {"edges of splits, a head to itself",
     2,
     2,
     64,
     512,
     5,
     {{0, 1}, {511, 1}, {512, 1}, {513, 1}, {1663, 1}}},
    {"edges of splits, 2 heads to one",
     4,
     2,
     128,
     512,
     5,
     {{0, 1}, {510, 1}, {512, 1}, {1024, 1}, {1151, 1}}},
    {"edges of splits, 7 heads to one",
     14,
     2,
     128,
     512,
     4,
     {{511, 1}, {512, 1}, {1535, 1}, {64, 1}}},
    {"edges of splits, 12 heads to one",
     12,
     1,
     64,
     512,
     4,
     {{511, 1}, {512, 1}, {1536, 1}, {128, 1}}},
    {"a row of two splits a block", 16, 16, 128, 128, 1, {{2500, 1}}},
    {"one long row among short ones",
     32,
     8,
     128,
     512,
     9,
     {{3000, 1}, {10, 1}, {20, 1}, {63, 1}, {64, 1}, {1, 1}, {0, 1}, {127, 1}, {130, 1}}},
    {"a row of more than spread", 32, 8, 128, 512, 1, {{6200, 1}}},
    {"long rows, 8 heads to one", 64, 8, 128, 128, 3, {{5990, 1}, {300, 1}, {2000, 1}}},
    {"long rows, 16 heads to one", 16, 1, 128, 128, 2, {{5990, 1}, {300, 1}}},
    {"one long row", 8, 2, 128, 512, 1, {{4999, 1}}},
    {"two long rows, splits of 128", 8, 2, 64, 128, 2, {{2999, 1}, {130, 1}}},
    {"single rows, 3 heads to one",
     9,
     3,
     64,
     512,
     8,
     {{0, 1}, {5, 1}, {64, 1}, {200, 1}, {511, 1}, {513, 1}, {1300, 1}, {1025, 1}}},
    {"single rows, 16 heads to one", 16, 1, 128, 512, 4, {{7, 1}, {128, 1}, {900, 1}, {77, 1}}},
    {"single rows, a head to itself", 4, 4, 64, 1024, 4, {{7, 1}, {128, 1}, {2900, 1}, {77, 1}}},
    {"runs in turns", 8, 8, 128, 512, 24, {{0, 2},    {62, 4},   {120, 16}, {500, 16}, {505, 9},
                                           {700, 16}, {640, 13}, {33, 3},   {0, 2},    {62, 4},
                                           {120, 16}, {500, 16}, {505, 9},  {511, 16}, {640, 13},
                                           {33, 3},   {129, 2},  {10, 64},  {100, 16}, {200, 16},
                                           {5, 9},    {520, 16}, {512, 13}, {383, 3}}},
    {"runs",
     8,
     2,
     128,
     512,
     8,
     {{0, 2}, {62, 4}, {120, 16}, {500, 16}, {505, 9}, {1020, 16}, {2040, 13}, {33, 3}}},
    {"runs in turns, 3 heads to one",
     24,
     8,
     64,
     512,
     24,
     {{0, 2},   {62, 4},  {120, 21}, {500, 16}, {505, 9}, {700, 21}, {640, 13}, {33, 3},
      {0, 2},   {62, 4},  {120, 16}, {500, 16}, {505, 9}, {511, 16}, {640, 13}, {33, 3},
      {129, 2}, {10, 19}, {100, 16}, {200, 16}, {5, 9},   {520, 16}, {512, 13}, {383, 3}}},
    {"runs in turns, many splits",
     32,
     8,
     128,
     128,
     12,
     {{1500, 16},
      {1270, 16},
      {1399, 16},
      {1407, 2},
      {1408, 7},
      {1530, 6},
      {1535, 16},
      {1279, 16},
      {1000, 16},
      {1520, 16},
      {1100, 16},
      {900, 9}}},
    {"runs, 3 heads to one",
     9,
     3,
     64,
     512,
     6,
     {{0, 2}, {62, 4}, {120, 21}, {500, 22}, {1020, 16}, {40, 43}}},
    {"runs, 5 heads to one, no split",
     10,
     2,
     64,
     1 << 20,
     4,
     {{0, 12}, {600, 13}, {120, 40}, {500, 25}}},
    {"runs, 16 heads to one, splits of 256", 16, 1, 128, 256, 3, {{0, 12}, {600, 4}, {250, 9}}},
    {"a prompt", 8, 2, 128, 512, 1, {{0, 1100}}},
    {"a prompt, 3 heads to one", 3, 1, 64, 512, 1, {{0, 700}}},
    {"a prompt, a head to itself", 2, 2, 64, 128, 1, {{0, 515}}},
    {"the middle of a prompt", 8, 2, 128, 512, 1, {{777, 400}}},
    {"all at once",
     8,
     2,
     128,
     512,
     7,
     {{1500, 1}, {0, 300}, {40, 1}, {700, 16}, {901, 130}, {513, 2}, {1023, 1}}},
    {"many rows", 4, 2, 64, 512, 72, {{0, 0}}},
    {"a long run", 8, 2, 128, 512, 1, {{3000, 16}}},
    {"a prompt that fills the GPU", 32, 8, 128, 512, 1, {{0, 1100}}},
    {"prompts that fill the GPU",
     32,
     8,
     128,
     512,
     4,
     {{0, 300}, {37, 211}, {600, 140}, {850, 130}}},
    {"a prompt that fills the GPU, 2 heads to one", 16, 8, 64, 512, 1, {{0, 700}}},
    {"prompts that fill the GPU, splits of 128",
     8,
     8,
     64,
     128,
     3,
     {{0, 400}, {37, 211}, {200, 140}}},
    {"a longer run, splits of 128", 8, 2, 64, 128, 2, {{1500, 60}, {1270, 17}}},
};

int main(void) {
    const long n_threads = sysconf(_SC_NPROCESSORS_ONLN);
    struct err e = {""};
    int r = gpu_open();

    if (r) return r;
    GPU_CHECK(cpu_pool_open(n_threads > 16 ? 16 : (uint32_t)n_threads, &pool, &e));
    for (size_t s = 0; s < sizeof(steps) / sizeof(steps[0]); s++) {
        const unsigned before = n_failed;
        struct step step = steps[s];

        if (step.runs[0].n == 0)
            for (uint32_t i = 0; i < step.n_runs; i++)
                step.runs[i] = (struct run){below(30, i, 700), 1};
        for (size_t g = 0; g < sizeof(regimes) / sizeof(regimes[0]); g++) {
            struct cuda_attn_shape shape;
            struct data d;
            uint16_t *want;
            uint8_t *want_flagged;

            data_open(&d, &step, &regimes[g], &shape);
            want = gpu_host((size_t)d.n_rows * shape.n_heads * shape.head_dim * 2);
            want_flagged = gpu_host(d.n_rows);
            memset(want_flagged, 0, d.n_rows);
            by_twin(&d, want, want_flagged);
            by_gpu(&d, &shape, false, want, want_flagged);
            by_gpu(&d, &shape, true, want, want_flagged);
            free(want);
            free(want_flagged);
            data_close(&d);
        }
        printf("%s: %s\n", n_failed > before ? "FAIL" : "ok", step.name);
    }
    cpu_pool_close(pool);
    cuda_driver_close(gpu);
    printf("%llu values compared, %llu rows flagged by both, %u mismatches\n",
           (unsigned long long)n_compared, (unsigned long long)n_flagged, n_failed);
    return n_failed ? 1 : 0;
}

#else

#include <stdio.h>

int main(void) {
    printf("built without CUDA\n");
    return 77;
}

#endif
