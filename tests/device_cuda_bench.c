/* Decode steps of a model that is geometry only (Llama-3.1-8B, made-up weights) on the CUDA device:
 * the median of whole steps as an engine sees them, upload and results included, with a context of
 * 1024 keys.  Skipped (77) where there is no such GPU. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/device.h"
#include "runtime/device_cuda.h"
#include "runtime/err.h"
#include "runtime/forward.h"

enum { SKIPPED = 77, CONTEXT = 1024, N_SEQS = 64, N_STEPS = 60, PAGES = CONTEXT / 64, ROWS = 2048 };

static struct device_row rows[ROWS];
static struct device_want wants[N_SEQS];
static struct device_result results[N_SEQS];
static uint8_t flagged[ROWS];
static uint32_t pages[N_SEQS][PAGES];

static double seconds(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(int r, const struct err *e) {
    if (r >= 0) return;
    printf("%s\n", e->text);
    exit(1);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double run(struct device *dev, const struct model *m, const struct device_batch *batch,
                  const struct schedule *s, double *out_least) {
    double took[N_STEPS];
    struct err e;

    for (int i = 0; i < N_STEPS; i++) {
        const double start = seconds();

        must(forward_run(dev, m->n_layers, N_SEQS, batch, s, results, flagged, &e), &e);
        took[i] = seconds() - start;
    }
    qsort(took, N_STEPS, sizeof(took[0]), by_value);
    *out_least = took[0];
    return took[N_STEPS / 2];
}

typedef int stage(struct device *dev, uint32_t layer, const struct schedule *s, struct err *e);

/* Microseconds a stage, kernels one after another without a graph. */
static void run_stages(struct device *dev, const struct model *m, const struct device_batch *batch,
                       const struct schedule *s) {
    const struct {
        const char *name;
        stage *run;
    } stages[] = {{"attn_in", dev->ops->attn_in},
                  {"attend", dev->ops->attend},
                  {"attn_out", dev->ops->attn_out},
                  {"mlp_in", dev->ops->mlp_in},
                  {"mlp_out", dev->ops->mlp_out}};
    double start;
    struct err e;

    must(dev->ops->upload(dev, batch, &e), &e);
    must(dev->ops->embed(dev, &e), &e);
    must(dev->ops->wait(dev, &e), &e);
    printf("  stages of %u rows, us:", batch->n_rows);
    for (size_t i = 0; i < sizeof(stages) / sizeof(stages[0]); i++) {
        start = seconds();
        for (uint32_t n = 0; n < 5 * m->n_layers; n++)
            must(stages[i].run(dev, n % m->n_layers, s, &e), &e);
        must(dev->ops->wait(dev, &e), &e);
        printf(" %s %.1f", stages[i].name, (seconds() - start) / (5 * m->n_layers) * 1e6);
    }
    start = seconds();
    for (int i = 0; i < 20; i++) must(dev->ops->head(dev, 0, batch->n_wants, s, &e), &e);
    must(dev->ops->wait(dev, &e), &e);
    printf(" head %.1f", (seconds() - start) / 20 * 1e6);
    start = seconds();
    for (int i = 0; i < 20; i++) must(dev->ops->sample(dev, 0, batch->n_wants, &e), &e);
    must(dev->ops->wait(dev, &e), &e);
    printf(" sample %.1f\n", (seconds() - start) / 20 * 1e6);
}

int main(void) {
    static const uint32_t counts[] = {1, 2, 4, 8, 16, 32, 64};
    const struct model m = {.n_layers = 32,
                            .hidden = 4096,
                            .intermediate = 14336,
                            .n_heads = 32,
                            .n_kv_heads = 8,
                            .head_dim = 128,
                            .vocab = 128256,
                            .rms_eps = 1e-5f,
                            .rope_theta = 5e5};
    const struct device_limits limits = {.n_rows = ROWS,
                                         .n_seqs = N_SEQS,
                                         .n_pages = N_SEQS * PAGES,
                                         .n_seq_pages = PAGES,
                                         .n_wants = N_SEQS,
                                         .n_logit_rows = N_SEQS,
                                         .n_positions = CONTEXT};
    const struct device_cuda_options options = {.seed = 42,
                                                .cache_folder = getenv("LLM42_CUDA_CACHE"),
                                                .no_graphs = getenv("LLM42_CUDA_NO_GRAPHS")};
    struct schedule canonical = schedule_canonical();
    struct device *dev = NULL;
    struct err e = {""};
    double start = seconds(), least;
    int r = device_cuda_open(&options, &dev, &e);

    if (r == -ENODEV) {
        printf("%s\n", e.text);
        return SKIPPED;
    }
    must(r, &e);
    must(dev->ops->load(dev, &m, NULL, &limits, &e), &e);
    printf("loaded in %.2f s\n", seconds() - start);
    for (uint32_t i = 0; i < N_SEQS * PAGES; i++) {
        pages[i / PAGES][i % PAGES] = i;
        must(dev->ops->poison(dev, i, 0x3c00, &e), &e);
    }
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
        for (int drawn = 0; drawn < 2; drawn++) {
            const uint32_t n = counts[c];
            const struct device_batch batch = {.n_rows = n,
                                               .rows = rows,
                                               .n_seqs = N_SEQS,
                                               .pages = pages[0],
                                               .n_wants = n,
                                               .wants = wants};
            double median;

            for (uint32_t i = 0; i < n; i++) {
                rows[i] = (struct device_row){.token = 17 * i, .position = CONTEXT - 1, .seq = i};
                wants[i] = (struct device_want){.row = i,
                                                .target = DEVICE_NO_TOKEN,
                                                .params = {.temperature = drawn ? 0.8f : 0.0f,
                                                           .top_p = drawn ? 0.95f : 1.0f,
                                                           .seed = i}};
            }
            median = run(dev, &m, &batch, &canonical, &least);
            printf("decode %2u rows, %d keys, %-12s: median %.3f ms, least %.3f ms%s\n", n, CONTEXT,
                   drawn ? "drawn, top_p" : "greedy", median * 1e3, least * 1e3,
                   results[0].numeric ? " (numeric!)" : "");
            run_stages(dev, &m, &batch, &canonical);
        }
    for (uint32_t i = 0; i < ROWS; i++)
        rows[i] = (struct device_row){.token = i, .position = i % CONTEXT, .seq = i / CONTEXT};
    for (uint32_t n = 256; n <= ROWS; n *= 2) {
        const struct device_batch batch = {.n_rows = n,
                                           .rows = rows,
                                           .n_seqs = N_SEQS,
                                           .pages = pages[0],
                                           .n_wants = 1,
                                           .wants = wants};
        const double median = run(dev, &m, &batch, &canonical, &least);

        printf("prefill %4u rows: median %.3f ms, least %.3f ms, %.0f rows a second\n", n,
               median * 1e3, least * 1e3, n / median);
    }
    dev->ops->close(dev);
    return 0;
}
