/* turned_data - queries, keys and values by the twin and by products that rotate and store them
 * themselves (SPEC 2.6), for the tests of both GPU and host: rows of several sequences and rows of
 * none, pages in no order, poison where nothing may be written. */
#ifndef LLM42D_TESTS_TURNED_DATA_H
#define LLM42D_TESTS_TURNED_DATA_H

#include "ptx/sm90_batch.h"
#include "ptx/sm90_kv.h"
#include "runtime/cpu_row.h"
#include "tests/gemm_data.h"

enum {
    HEADS_SEQS = 3,
    HEADS_SEQ_PAGES = 2,
    HEADS_PAGES = HEADS_SEQS * HEADS_SEQ_PAGES,
    HEADS_POSITIONS = HEADS_SEQ_PAGES * SM90_ATTN_PAGE,
    HEADS_ROWS_MAX = HEADS_SEQS * HEADS_POSITIONS, /* that have places of their own */
};

struct heads_shape {
    uint32_t n_heads, n_kv_heads, head_dim, n_k;
};

struct heads {
    struct heads_shape s;
    struct cuda_gemm_weight w;
    uint32_t n, n_rows, out_stride;
    size_t out_bytes, kv_bytes;
    uint16_t *want; /* [n_rows][out_stride], poison past n */
    struct batch_row rows[HEADS_ROWS_MAX];
    uint32_t pages[HEADS_PAGES];
    uint64_t d_out, d_kv, d_cos, d_sin, d_rows, d_pages;
};

static uint16_t *bf16_values(uint32_t n, uint32_t width, uint32_t which, float scale) {
    uint16_t *v = gpu_host((size_t)n * width * 2);

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < width; j++)
            v[(size_t)i * width + j] = num_to_bf16(gpu_normal(which, i, j) * scale);
    return v;
}

/* y of rows x by the twin. */
static float *multiplied(const uint16_t *w, uint32_t n, uint32_t n_k, const uint16_t *x,
                         uint32_t n_rows, uint32_t segments) {
    struct product p = {.n = n,
                        .n_k = n_k,
                        .segments = segments,
                        .n_rows = n_rows,
                        .x_stride = n_k,
                        .weights = (uint16_t *)(uintptr_t)w,
                        .x = (uint16_t *)(uintptr_t)x};

    p.y = gpu_host((size_t)n_rows * n * sizeof(float));
    by_twin(&p);
    return p.y;
}

static void heads_pack(const struct heads *h, const uint16_t *weights) {
    const uint32_t q = h->s.n_heads * h->s.head_dim, kv = h->s.n_kv_heads * h->s.head_dim;
    const uint64_t row_bytes = h->s.n_k * 2;
    const uint64_t d_rows = gpu_copy_of(weights, h->n * row_bytes);
    struct err e = {""};

    GPU_CHECK(cuda_gemm_pack_heads(gemm, &h->w, d_rows, q, 0, 0, &e));
    GPU_CHECK(cuda_gemm_pack_heads(gemm, &h->w, d_rows + q * row_bytes, kv, q / 8, 0, &e));
    GPU_CHECK(cuda_gemm_pack(gemm, &h->w, d_rows + (q + kv) * row_bytes, kv, (q + kv) / 8, 1, &e));
    gpu_give(d_rows);
}

/* Of x [n_rows][n_k], rows as they are multiplied. */
static void heads_open(struct heads *h, const struct heads_shape *s, const uint16_t *x,
                       uint32_t n_rows) {
    const uint32_t half = s->head_dim / 2;
    uint16_t *cos = bf16_values(HEADS_POSITIONS, half, 66, 0.5f);
    uint16_t *sin = bf16_values(HEADS_POSITIONS, half, 67, 0.5f), *weights;
    float *y;

    *h = (struct heads){
        .s = *s, .n = (s->n_heads + 2 * s->n_kv_heads) * s->head_dim, .n_rows = n_rows};
    h->out_stride = h->n + OUT_PAD;
    h->out_bytes = (size_t)(n_rows + 1) * h->out_stride * 2;
    h->kv_bytes = (size_t)HEADS_PAGES * s->n_kv_heads * 2 * SM90_ATTN_PAGE * s->head_dim * 2;
    cuda_gemm_shape_heads(&h->w, h->n, s->n_k, 1, s->head_dim);
    h->w.d_image = gpu_take_image(h->w.n_bytes);
    weights = bf16_values(h->n, s->n_k, 65, 0.05f);
    heads_pack(h, weights);
    y = multiplied(weights, h->n, s->n_k, x, n_rows, 1);
    h->want = gpu_host(h->out_bytes);
    memset(h->want, GPU_POISON, h->out_bytes);
    for (uint32_t i = 0; i < HEADS_PAGES; i++) h->pages[i] = (i * 5 + 1) % HEADS_PAGES;
    for (uint32_t i = 0; i < n_rows; i++) {
        uint16_t *row = h->want + (size_t)i * h->out_stride;
        struct batch_row *at = &h->rows[i];

        *at = (struct batch_row){.position = i / HEADS_SEQS * 37 % HEADS_POSITIONS,
                                 .seq = i % HEADS_SEQS};
        if (i % 5 == 2) *at = (struct batch_row){.seq = BATCH_NO_SEQ};
        for (uint32_t j = 0; j < h->n; j++) row[j] = num_to_bf16(y[(size_t)i * h->n + j]);
        for (uint32_t j = 0; j < s->n_heads + s->n_kv_heads; j++)
            cpu_row_rotate(row + j * s->head_dim, s->head_dim, cos + at->position * half,
                           sin + at->position * half);
    }
    h->d_out = gpu_take(h->out_bytes, GPU_POISON);
    h->d_kv = gpu_take(h->kv_bytes, GPU_POISON);
    h->d_cos = gpu_copy_of(cos, (size_t)HEADS_POSITIONS * half * 2);
    h->d_sin = gpu_copy_of(sin, (size_t)HEADS_POSITIONS * half * 2);
    h->d_rows = gpu_copy_of(h->rows, n_rows * sizeof(h->rows[0]));
    h->d_pages = gpu_copy_of(h->pages, sizeof(h->pages));
    free(cos);
    free(sin);
    free(weights);
    free(y);
}

static void heads_close(struct heads *h) {
    const uint64_t all[] = {h->w.d_image, h->d_out,  h->d_kv,   h->d_cos,
                            h->d_sin,     h->d_rows, h->d_pages};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) gpu_give(all[i]);
    free(h->want);
}

/* What the first rows leave in the pages. */
static void heads_store(const struct heads *h, uint32_t n_rows, uint16_t *kv) {
    const uint32_t dim = h->s.head_dim, n_heads = h->s.n_kv_heads, width = n_heads * dim;

    memset(kv, GPU_POISON, h->kv_bytes);
    for (uint32_t row = 0; row < n_rows; row++) {
        const struct batch_row *at = &h->rows[row];
        const uint16_t *from = h->want + (size_t)row * h->out_stride + h->s.n_heads * dim;
        uint32_t page;

        if (at->seq == BATCH_NO_SEQ) continue;
        page = h->pages[at->seq * HEADS_SEQ_PAGES + at->position / SM90_ATTN_PAGE];
        for (uint32_t i = 0; i < 2 * width; i++)
            kv[SM90_ATTN_PAGE_AT(page, i / dim % n_heads, i / width, n_heads, dim) +
               SM90_KV_AT(at->position % SM90_ATTN_PAGE, i % dim, dim)] = from[i];
    }
}

static void heads_same(const struct heads *h, const char *what, enum cuda_gemm_kernel k,
                       struct way way, uint32_t n_rows, const uint16_t *is, const uint16_t *want,
                       size_t n_values) {
    n_compared += n_values;
    for (size_t i = 0; i < n_values; i++) {
        if (is[i] == want[i]) continue;
        printf("%s (splits %u, pairs %u): %s of %u and %u heads of %u, K %u, %u rows: value %zu is "
               "%04x, not %04x\n",
               cuda_gemm_name(k), way.n_splits, way.pairs, what, h->s.n_heads, h->s.n_kv_heads,
               h->s.head_dim, h->s.n_k, n_rows, i, is[i], want[i]);
        n_failed++;
        return;
    }
}

/* The first rows of x, whose stride is K, by one kernel; with a norm where that is given. */
static void heads_run(const struct heads *h, enum cuda_gemm_kernel k, struct way way, uint64_t d_x,
                      const struct sm90_gemm_norm *norm, uint32_t n_rows, bool overlap) {
    const size_t out_bytes = (size_t)(n_rows + 1) * h->out_stride * 2;
    uint16_t *got = gpu_host(h->out_bytes), *kv = gpu_host(h->kv_bytes);
    uint16_t *want_kv = gpu_host(h->kv_bytes);
    const struct sm90_gemm_turn turn = {.kv = h->d_kv,
                                        .cos = h->d_cos,
                                        .sin = h->d_sin,
                                        .rows = h->d_rows,
                                        .pages = h->d_pages,
                                        .n_seq_pages = HEADS_SEQ_PAGES,
                                        .n_heads = h->s.n_heads,
                                        .n_kv_heads = h->s.n_kv_heads,
                                        .head_dim = h->s.head_dim};
    const struct cuda_gemm_args args = {.w = &h->w,
                                        .d_x = d_x,
                                        .d_out = h->d_out,
                                        .norm = norm,
                                        .turn = &turn,
                                        .x_stride = h->s.n_k,
                                        .out_stride = h->out_stride,
                                        .n_rows = n_rows,
                                        .segments = 1,
                                        .form = SM90_GEMM_TURNED,
                                        .n_splits = way.n_splits,
                                        .pairs = way.pairs,
                                        .overlap = overlap,
                                        .next = (enum sm90_gemm_next)(n_rows % 3)};
    struct err e = {""};

    memset(got, GPU_POISON, h->out_bytes);
    memset(kv, GPU_POISON, h->kv_bytes);
    gpu_write(h->d_out, got, h->out_bytes);
    gpu_write(h->d_kv, kv, h->kv_bytes);
    GPU_CHECK(cuda_gemm_run_by(gemm, k, &args, &e));
    gpu_read(got, h->d_out, out_bytes);
    gpu_read(kv, h->d_kv, h->kv_bytes);
    heads_store(h, n_rows, want_kv);
    heads_same(h, "rows", k, way, n_rows, got, h->want, (size_t)n_rows * h->out_stride);
    heads_same(h, "the row past the end", k, way, n_rows, got + (size_t)n_rows * h->out_stride,
               h->want + (size_t)h->n_rows * h->out_stride, h->out_stride);
    heads_same(h, "pages", k, way, n_rows, kv, want_kv, h->kv_bytes / 2);
    free(got);
    free(kv);
    free(want_kv);
}

/* In all ways that the kernel has. */
static void heads_run_all(const struct heads *h, enum cuda_gemm_kernel k, uint64_t d_x,
                          uint32_t n_rows, bool overlap) {
    if (!cuda_gemm_turns(k, &h->w, 1)) return;
    for (size_t i = 0; i < N_WAYS; i++)
        if (cuda_gemm_can_so(k, &h->w, n_rows, 1, ways[i].n_splits, ways[i].pairs))
            heads_run(h, k, ways[i], d_x, NULL, n_rows, overlap);
}

#endif
