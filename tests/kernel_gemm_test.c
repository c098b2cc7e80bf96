/* Matrix products of the GPU against the twin's, bit for bit: every kernel that can do a shape,
 * awkward shapes, every cut of K, every form of the result, every number of rows; hostile rows
 * among plain ones, NaN beside what may be read and poison where nothing may be written; and
 * queries, keys and values that are rotated and stored on their way.  Then the
 * shapes of an 8B model, kernel against kernel.  Skipped (77) without a GPU. */
#ifdef LLM42_CUDA

#include <unistd.h>

#include "tests/turned_data.h"

static const struct shape {
    uint32_t n, n_k, segments, made_for;
    bool turns;
    const char *why;
} shapes[] = {
    {8, 16, 1, 1, false, "the least there is"},
    {8, 48, 1, 1, false, "less than a block of K"},
    {24, 48, 4, 4, false, "segments of 16, one of them past the end"},
    {576, 576, 4, 4, false, "SmolLM2's o: segments that end inside a block of K"},
    {1000, 1040, 4, 4, false, "the same, the last segment shorter"},
    {1000, 1040, 2, 1, false, "the same, in two"},
    {520, 1088, 4, 4, false, "the same, 17 steps of 16 to a segment"},
    {264, 288, 2, 4, false, "nine steps, two segments"},
    {136, 96, 2, 1, false, "three steps, one block for both"},
    {72, 128, 8, 4, false, "segments of one step"},
    {136, 224, 2, 2, false, "seven steps each, four blocks of K"},
    {264, 480, 2, 1, false, "the same, fifteen and eight"},
    {48, 224, 2, 1, true, "the same of gate and up"},
    {576, 1536, 4, 4, false, "SmolLM2's down: six blocks a segment"},
    {960, 576, 1, 1, false, "SmolLM2's qkv"},
    {3072, 576, 1, 1, true, "SmolLM2's gate and up"},
    {48, 144, 1, 1, true, "a small one, K not in blocks"},
    {1000, 1024, 1, 1, false, "a last tile that is not full"},
    {1000, 1024, 2, 1, false, "cut, where the image was made for a whole"},
    {1000, 1024, 4, 1, false, "the same, in four"},
    {1000, 1024, 8, 1, false, "the same, in eight"},
    {1000, 1024, 16, 1, false, "the same, in sixteen"},
    {1000, 1024, 1, 4, false, "whole, where the image was made for four"},
    {1000, 1024, 2, 4, false, "in two, where it was made for four"},
    {1000, 1024, 8, 4, false, "in eight, where it was made for four"},
    {520, 2048, 16, 4, false, "in sixteen"},
    {264, 176, 8, 8, false, "segments of 32, two past the end"},
    {6144, 256, 1, 1, false, "tiles of 48"},
    {28672, 128, 1, 1, true, "tiles of 112, rounds of blocks"},
    {4096, 512, 4, 4, false, "clusters"},
    {14784, 64, 1, 1, false, "tiles of 112, one block of K"},
    {1032, 512, 4, 4, false, "splits of K, and columns past the end in each width"},
    {776, 1280, 1, 1, false, "columns past the end, more blocks of K than stages"},
    {1120, 768, 1, 1, true, "the same with gate and up"},
};

static void test_shape(const struct shape *s, uint32_t n_rows_max) {
    struct product p;
    const unsigned before = n_failed;

    product_open(&p, s->n, s->n_k, s->segments, s->made_for, s->turns, n_rows_max);
    for (uint32_t n_rows = 1; n_rows <= n_rows_max; n_rows++) {
        /* All up to 33, then around multiples of 64, and what makes tiles of odd heights. */
        if (n_rows > 33 && (n_rows + 1) % 64 > 2 && n_rows % 72 && n_rows != n_rows_max) continue;
        for (enum cuda_gemm_kernel k = 0; k < CUDA_GEMM_NORMED8; k++) {
            if (s->turns)
                run(&p, k, SM90_GEMM_SILU, n_rows, n_rows % 2);
            else if (n_rows % 3 == 0)
                run(&p, k, SM90_GEMM_F32, n_rows, n_rows % 2);
            else
                run(&p, k, n_rows % 3 == 1 ? SM90_GEMM_ADD : SM90_GEMM_BF16, n_rows, n_rows % 2);
        }
        if (n_failed > before + 3) break;
    }
    product_close(&p);
    printf("%s: %s\n", n_failed > before ? "FAIL" : "ok", s->why);
}

/* All values of a gate, by every kernel: what makes of it is not the twin's way, but its bits. */
static void test_gates(void) {
    enum { N_GATES = 65536, N_K = 64 };
    uint16_t *host = gpu_host((size_t)2 * N_GATES * N_K * 2), *got = gpu_host(N_GATES * 2);
    struct cuda_gemm_weight w;
    struct cuda_gemm_args args;
    uint64_t d_gates, d_ups, d_x, d_out;
    struct err e = {""};

    cuda_gemm_shape(&w, 2 * N_GATES, N_K, 1, true);
    w.d_image = gpu_take_image(w.n_bytes);
    memset(host, 0, (size_t)2 * N_GATES * N_K * 2);
    for (uint32_t i = 0; i < N_GATES; i++) {
        host[(size_t)i * N_K] = (uint16_t)i;
        host[(size_t)(N_GATES + i) * N_K] = 0x3f80; /* 1 */
    }
    d_gates = gpu_copy_of(host, (size_t)N_GATES * N_K * 2);
    d_ups = gpu_copy_of(host + (size_t)N_GATES * N_K, (size_t)N_GATES * N_K * 2);
    GPU_CHECK(cuda_gemm_pack(gemm, &w, d_gates, N_GATES, 0, 2, &e));
    GPU_CHECK(cuda_gemm_pack(gemm, &w, d_ups, N_GATES, 1, 2, &e));
    memset(host, 0, N_K * 2);
    host[0] = 0x3f80;
    d_x = gpu_copy_of(host, N_K * 2);
    d_out = gpu_take(N_GATES * 2, GPU_POISON);
    args = (struct cuda_gemm_args){.w = &w,
                                   .d_x = d_x,
                                   .d_out = d_out,
                                   .x_stride = N_K,
                                   .out_stride = N_GATES,
                                   .n_rows = 1,
                                   .segments = 1,
                                   .form = SM90_GEMM_SILU};
    for (enum cuda_gemm_kernel k = 0; k < CUDA_GEMM_NORMED8; k++) {
        if (!cuda_gemm_can(k, &w, 1)) continue;
        GPU_DRIVER(cuMemsetD8Async(d_out, GPU_POISON, N_GATES * 2, gpu->stream));
        GPU_CHECK(cuda_gemm_run_by(gemm, k, &args, &e));
        gpu_read(got, d_out, N_GATES * 2);
        for (uint32_t i = 0; i < N_GATES; i++) {
            const float gate = num_from_bf16(i == 0x8000 ? 0 : (uint16_t)i); /* no sum is -0 */
            const uint16_t want =
                num_to_bf16(num_from_bf16(num_to_bf16(num_silu(num_from_bf16(num_to_bf16(gate))))));

            n_compared++;
            if (got[i] == want) continue;
            printf("%s: gate %04x gives %04x, not %04x\n", cuda_gemm_name(k), i, got[i], want);
            n_failed++;
        }
    }
    gpu_give(w.d_image);
    gpu_give(d_gates);
    gpu_give(d_ups);
    gpu_give(d_x);
    gpu_give(d_out);
    free(host);
    free(got);
    printf("all gates\n");
}

/* Kernel against kernel, where the twin would take minutes: few rows by the plain one. */
static void test_large(uint32_t n, uint32_t n_k, uint32_t segments, bool turns) {
    static const uint32_t counts[] = {1,   8,   16,  17,  32,  64,  65,   80,   128,
                                      136, 200, 256, 257, 600, 768, 1000, 1100, 2048};
    enum { N_ROWS = 2048 };
    const uint32_t n_out = turns ? n / 2 : n;
    const size_t out_bytes = (size_t)N_ROWS * n_out * 2;
    struct cuda_gemm_weight w;
    struct cuda_gemm_args args;
    uint16_t *host = gpu_host((size_t)(n > N_ROWS ? n : N_ROWS) * n_k * 2), *want, *got;
    uint64_t d_rows, d_x, d_out;
    struct err e = {""};

    cuda_gemm_shape(&w, n, n_k, segments, turns);
    w.d_image = gpu_take_image(w.n_bytes);
    for (size_t i = 0; i < (size_t)n * n_k; i++) host[i] = gpu_cheap(i, 8, 0.02f);
    d_rows = gpu_copy_of(host, (size_t)n * n_k * 2);
    GPU_CHECK(cuda_gemm_pack(gemm, &w, d_rows, n, 0, 1, &e));
    for (size_t i = 0; i < (size_t)N_ROWS * n_k; i++) host[i] = gpu_cheap(i, 9, 1.0f);
    d_x = gpu_copy_of(host, (size_t)N_ROWS * n_k * 2);
    d_out = gpu_take(out_bytes, GPU_POISON);
    want = gpu_host(out_bytes);
    got = gpu_host(out_bytes);
    args = (struct cuda_gemm_args){.w = &w,
                                   .d_x = d_x,
                                   .d_out = d_out,
                                   .x_stride = n_k,
                                   .out_stride = n_out,
                                   .n_rows = N_ROWS,
                                   .segments = segments,
                                   .form = turns ? SM90_GEMM_SILU : SM90_GEMM_BF16};
    GPU_CHECK(cuda_gemm_run_by(gemm, CUDA_GEMM_ANY, &args, &e));
    gpu_read(want, d_out, out_bytes);
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
        for (size_t each = 0; each < N_WAYS * CUDA_GEMM_NORMED8; each++) {
            const enum cuda_gemm_kernel k = each / N_WAYS;
            const size_t i = each % N_WAYS;
            const size_t n_values = (size_t)counts[c] * n_out;

            args.n_rows = counts[c];
            args.n_splits = ways[i].n_splits;
            args.pairs = ways[i].pairs;
            if ((k < CUDA_GEMM_MANY48 || k > CUDA_GEMM_WIDE192) && counts[c] > 300) continue;
            if (!can_here(k, &w, counts[c], segments, ways[i])) continue;
            GPU_DRIVER(cuMemsetD8Async(d_out, GPU_POISON, out_bytes, gpu->stream));
            GPU_CHECK(cuda_gemm_run_by(gemm, k, &args, &e));
            gpu_read(got, d_out, n_values * 2);
            n_compared += n_values;
            if (memcmp(got, want, n_values * 2) == 0) continue;
            for (size_t v = 0; v < n_values; v++) {
                if (got[v] == want[v]) continue;
                printf("%s (splits %u, pairs %u), W %u x %u in %u segments, %u rows: row %zu "
                       "column %zu is %04x, not %04x\n",
                       cuda_gemm_name(k), args.n_splits, args.pairs, n, n_k, segments, counts[c],
                       v / n_out, v % n_out, got[v], want[v]);
                break;
            }
            n_failed++;
        }
    gpu_give(w.d_image);
    gpu_give(d_rows);
    gpu_give(d_x);
    gpu_give(d_out);
    free(host);
    free(want);
    free(got);
    printf("large: %u x %u in %u segments\n", n, n_k, segments);
}

/* Queries, keys and values, rotated and stored by every kernel that can. */
static void test_turned(const struct heads_shape *s) {
    enum { N_ROWS = 300 };
    const unsigned before = n_failed;
    uint16_t *x = bf16_values(N_ROWS, s->n_k, 69, 1.0f);
    const uint64_t d_x = gpu_copy_of(x, (size_t)N_ROWS * s->n_k * 2);
    struct heads h;

    heads_open(&h, s, x, N_ROWS);
    for (uint32_t n_rows = 1; n_rows <= N_ROWS && n_failed < before + 3; n_rows++) {
        if (n_rows > 17 && (n_rows + 1) % 32 > 2 && n_rows % 24 && n_rows != N_ROWS) continue;
        for (enum cuda_gemm_kernel k = 0; k < CUDA_GEMM_NORMED8; k++)
            heads_run_all(&h, k, d_x, n_rows, n_rows % 3 > 0);
    }
    heads_close(&h);
    gpu_give(d_x);
    free(x);
    printf("%s: %u and %u heads of %u turned, K %u\n", n_failed > before ? "FAIL" : "ok",
           s->n_heads, s->n_kv_heads, s->head_dim, s->n_k);
}

int main(void) {
    static const struct heads_shape turned[] = {
        {9, 3, 64, 576},  {32, 8, 128, 512}, {32, 8, 64, 272}, {2, 2, 64, 1040},
        {4, 1, 128, 144}, {3, 1, 32, 80},    {1, 1, 16, 16}};
    struct err e = {""};
    const long n_threads = sysconf(_SC_NPROCESSORS_ONLN);
    int r = gpu_open();

    if (r) return r;
    GPU_CHECK(cuda_gemm_open(gpu, &gemm, &e));
    GPU_CHECK(cpu_pool_open(n_threads > 16 ? 16 : (uint32_t)n_threads, &pool, &e));
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        test_shape(&shapes[i], shapes[i].n > 2000 ? 130 : 520);
    for (size_t i = 0; i < sizeof(turned) / sizeof(turned[0]); i++) test_turned(&turned[i]);
    test_gates();
    test_large(6144, 4096, 1, false);
    test_large(4096, 4096, 4, false);
    test_large(28672, 4096, 1, true);
    test_large(4096, 14336, 4, false);
    cpu_pool_close(pool);
    cuda_gemm_close(gemm);
    cuda_driver_close(gpu);
    printf("%llu values compared, %u mismatches\n", (unsigned long long)n_compared, n_failed);
    return n_failed ? 1 : 0;
}

#else

#include <stdio.h>

int main(void) {
    printf("built without CUDA\n");
    return 77;
}

#endif
