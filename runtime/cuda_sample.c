#ifdef LLM42_CUDA

#include "runtime/cuda_sample.h"

#include "ptx/sm90_batch.h"
#include "ptx/sm90_sample.h"
#include "runtime/cuda_impl.h"
#include "runtime/err.h"

enum {
    SPREAD_RANKS = 8,
    SPREAD_ROWS_MAX = 32,
    /* Where a row is weighed, a block of its own is as long at it as waves of clusters at that many
     * rows: docs/performance.md. */
    WEIGHED_ROWS_MAX = 96,
    WEIGHED_ROW_CHUNKS = 10,
};

static uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

bool cuda_sample_weighs(const struct batch_want *want, uint32_t vocab) {
    return want->n_top != BATCH_NO_WANT && want->temperature != 0.0f &&
           (want->top_k == 0 || want->top_k > SM90_SAMPLE_LIST_MAX || want->top_k >= vocab);
}

uint32_t cuda_sample_ranks(uint32_t n_rows, bool weighs, uint32_t n_chunks, bool has_place) {
    const uint32_t share = (n_chunks + SPREAD_RANKS - 1) / SPREAD_RANKS;
    const uint32_t weighed_max = min_u32(n_chunks / WEIGHED_ROW_CHUNKS, WEIGHED_ROWS_MAX);
    const uint32_t n_rows_max =
        weighs && weighed_max > SPREAD_ROWS_MAX ? weighed_max : SPREAD_ROWS_MAX;

    return has_place && n_rows <= n_rows_max &&
                   SM90_SPREAD_BYTES((uint64_t)share, SPREAD_RANKS) <= SM90_SPREAD_BYTES_MAX
               ? SPREAD_RANKS
               : 0;
}

int cuda_sample_open(struct cuda_device *d, struct err *e) {
    struct cuda_driver *driver = d->driver;
    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION};
    const CUlaunchConfig config = {.gridDimX = SPREAD_RANKS,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = SM90_SAMPLE_THREADS,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .sharedMemBytes = SM90_SPREAD_BYTES_MAX,
                                   .hStream = driver->stream,
                                   .attrs = &cluster,
                                   .numAttrs = 1};
    int n_places = 0;
    CUresult r;

    cluster.value.clusterDim.x = SPREAD_RANKS;
    cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1;
    r = driver->cuda.cuOccupancyMaxActiveClusters(&n_places, d->entries.sample_spread, &config);
    d->can_spread = r == CUDA_SUCCESS && n_places > 0;
    if (r == CUDA_ERROR_INVALID_CLUSTER_SIZE || r == CUDA_ERROR_INVALID_VALUE) return 0;
    return cuda_driver_check(driver, r, "places of clusters", e);
}

/* By a cluster a row, each block with a share of its chunks. */
static int run_spread(struct cuda_device *d, CUdeviceptr wants, CUdeviceptr results, uint32_t n,
                      uint32_t n_ranks, struct err *e) {
    uint32_t share = (d->n_chunks + n_ranks - 1) / n_ranks;
    void *params[] = {&results,          &wants,       &d->logits, &d->weighed, &d->model.vocab,
                      &d->logits_stride, &d->n_chunks, &share};
    const struct cuda_launch launch = {.entry = d->entries.sample_spread,
                                       .name = "sample",
                                       .grid = {n_ranks, n},
                                       .block = {SM90_SAMPLE_THREADS},
                                       .cluster = n_ranks,
                                       .shared_bytes = SM90_SPREAD_BYTES(share, n_ranks),
                                       .overlap = true,
                                       .params = params};

    return cuda_driver_launch(d->driver, &launch, e);
}

/* All blocks have groups of all rows. */
static int run_dealt(struct cuda_device *d, CUdeviceptr wants, CUdeviceptr results, uint32_t n,
                     struct err *e) {
    const uint32_t n_groups = d->n_lse_groups, n_own = d->driver->n_own;
    void *params[] = {&results,     &wants,          &d->logits, &d->chunks,      &d->maxima,
                      &d->counts,   &d->weighed,     &n,         &d->model.vocab, &d->logits_stride,
                      &d->n_chunks, &d->n_lse_groups};
    const struct cuda_launch launch = {.entry = d->entries.sample,
                                       .name = "sample",
                                       /* Beside others a block waits for none: it has a row. */
                                       .grid = {n_own == 0 ? n : min_u32(n_own, n * n_groups)},
                                       .block = {SM90_SAMPLE_THREADS},
                                       .shared_bytes = SM90_SAMPLE_BYTES,
                                       .overlap = true,
                                       .params = params};

    return cuda_driver_launch(d->driver, &launch, e);
}

int cuda_step_sample(struct cuda_device *d, uint32_t first, uint32_t n, uint32_t n_ranks,
                     struct err *e) {
    const CUdeviceptr wants = d->batch + d->at.wants_off + first * sizeof(struct batch_want);
    const CUdeviceptr results = d->batch + d->at.results_off + first * sizeof(struct batch_result);

    return n_ranks ? run_spread(d, wants, results, n, n_ranks, e)
                   : run_dealt(d, wants, results, n, e);
}

#endif
