/* Chains and products of the CPU twin, vector code and plain, against mma_step: the card's vectors,
 * hostile values, every shape of tile, every number of segments and threads; what happens to a row
 * between products, vector code against plain; and the pool. */
#include "runtime/cpu_gemm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "runtime/cpu_pool.h"
#include "runtime/mma.h"
#include "runtime/num.h"

static const struct cpu_code *codes[CPU_CODES_MAX];
static size_t n_codes;

static uint32_t seed = 1;

static uint32_t next(void) {
    return num_random(42, 0, seed++);
}

/* Data of one flavour: what a stretch of weights or activations may hold. */
enum flavour { NORMAL, TINY, HUGE_VALUES, WIDE, SUBNORMAL, ZEROS, SPECIAL, FULL, ANY, N_FLAVOURS };

static uint16_t value(enum flavour f) {
    uint32_t r = next(), sign = r & 0x8000, fraction = r & 0x7f;
    uint32_t pick = r >> 16;

    switch (f) {
    case NORMAL:
        return (uint16_t)(sign | (120 + pick % 10) << 7 | fraction);
    case TINY:
        return (uint16_t)(sign | (60 + pick % 20) << 7 | fraction);
    case HUGE_VALUES:
        return (uint16_t)(sign | (148 + pick % 8) << 7 | fraction);
    case WIDE:
        return (uint16_t)(sign | (100 + pick % 50) << 7 | fraction);
    case SUBNORMAL:
        return (uint16_t)(sign | (pick % 4 ? 0 : pick % 150) << 7 | fraction);
    case ZEROS:
        return (uint16_t)(pick % 3 ? sign : sign | 127 << 7 | fraction);
    case SPECIAL:
        if (pick % 40 == 0) return (uint16_t)(sign | 0x7f80);
        if (pick % 40 == 1) return (uint16_t)(sign | 0x7f80 | fraction | 1);
        return (uint16_t)(sign | (120 + pick % 10) << 7 | fraction);
    default:
        return (uint16_t)r;
    }
}

/* In the layout of a cpu_chain, one operand of n_k values for each of n_rows rows. */
struct operand {
    struct cpu_rows rows;
    uint16_t *x; /* [n_rows][n_k] */
};

static void operand_open(struct operand *o, const struct cpu_code *code, uint32_t n_rows,
                         uint32_t n_k) {
    size_t n = (size_t)n_rows * n_k;

    o->rows.n_k = n_k;
    o->rows.values = malloc(n * sizeof(float));
    o->rows.exponents = malloc(n / 2 * sizeof(uint32_t));
    o->rows.kinds = malloc(n / CPU_GROUP);
    assert_true(o->rows.values && o->rows.exponents && o->rows.kinds);
    code->spread(o->x, (uint32_t)n, o->rows.values, o->rows.exponents, o->rows.kinds);
}

static void operand_close(struct operand *o) {
    free(o->rows.values);
    free(o->rows.exponents);
    free(o->rows.kinds);
}

/* The card's 64 x 64 results of a set, through tiles of n_rows x n_blocks. */
static void card_set(const struct cpu_code *code, const uint16_t a[64][16],
                     const uint16_t b[64][16], const float c[64][64], const float d[64][64],
                     uint32_t n_rows, uint32_t n_blocks) {
    struct operand o = {.x = (uint16_t *)(uintptr_t)a};
    uint32_t w[8][CPU_PAIRS][CPU_LANES];
    float got[4][64];

    operand_open(&o, code, 64, 16);
    for (uint32_t j = 0; j < 64; j++)
        for (uint32_t k = 0; k < CPU_PAIRS; k++)
            w[j / 8][k][j % 8] = b[j][2 * k] | (uint32_t)b[j][2 * k + 1] << 16;
    for (uint32_t i = 0; i + n_rows <= 64; i += n_rows)
        for (uint32_t j = 0; j + n_blocks <= 8; j += n_blocks) {
            const struct cpu_chain ch = {
                .w = w[j][0],
                .block_stride = CPU_PAIRS * CPU_LANES,
                .pair_stride = CPU_LANES,
                .values = o.rows.values + i * 16,
                .exponents = o.rows.exponents + i * 8,
                .kinds = o.rows.kinds + i,
                .n_k = 16,
                .c = got[0],
                .c_stride = 64,
                .n_rows = n_rows,
                .n_blocks = n_blocks,
                .n_groups = 1,
            };
            size_t bytes = n_blocks * CPU_LANES * sizeof(float);

            for (uint32_t r = 0; r < n_rows; r++) memcpy(got[r], &c[i + r][j * 8], bytes);
            code->chain(&ch);
            for (uint32_t r = 0; r < n_rows; r++)
                assert_memory_equal(got[r], &d[i + r][j * 8], bytes);
        }
    operand_close(&o);
}

static void test_card(void **state) {
    static struct {
        char name[16];
        uint16_t a[64][16], b[64][16];
        float c[64][64], d[64][64];
    } set;
    FILE *f = fopen("tests/data/mma_sm90_bf16.bin", "rb");
    unsigned n_sets = 0;

    (void)state;
    assert_non_null(f);
    for (; fread(&set, sizeof(set), 1, f) == 1; n_sets++)
        for (size_t i = 0; i < n_codes; i++)
            for (uint32_t n_rows = 1; n_rows <= 4; n_rows++)
                for (uint32_t n_blocks = 1; n_blocks <= 7; n_blocks++)
                    card_set(codes[i], set.a, set.b, (const float(*)[64])set.c,
                             (const float(*)[64])set.d, n_rows, n_blocks);
    assert_int_equal(n_sets, 10);
    fclose(f);
}

/* Mostly of one flavour, one in `odds` of any; mirrored: the second half of a group repeats the
 * first, with the sign changed by `flip`, so that sums cancel. */
static void fill(uint16_t *x, int n, enum flavour f, uint32_t odds, bool mirrored, uint16_t flip) {
    for (int i = 0; i < n; i++) {
        x[i] = value(next() % odds ? f : next() % N_FLAVOURS);
        if (mirrored && i % 16 > 7) x[i] = x[i - 8] ^ flip;
    }
}

/* Every pair of flavours, and flavours that change within a chain. */
static void test_hostile(void **state) {
    enum { N_ROUNDS = 1500, N_ROWS = 4, N_K = 64, N_BLOCKS = 7, N_OUT = N_BLOCKS * CPU_LANES };
    static const float starts[] = {0.0f,      -0.0f,    1.0f,           -3e38f, 1e-40f,
                                   0x1p-126f, 0x1p100f, 0x1.fffffep+1f, 3.5f,   0x1p-103f};
    uint16_t x[N_ROWS][N_K], w[N_OUT][N_K];
    uint32_t pairs[N_BLOCKS][N_K / 2][CPU_LANES], n_valid[N_ROWS];

    (void)state;
    for (int round = 0; round < N_ROUNDS; round++) {
        enum flavour fx = next() % N_FLAVOURS, fw = next() % N_FLAVOURS;
        float c[N_ROWS][N_OUT], want[N_ROWS][N_OUT];

        fill(&x[0][0], N_ROWS * N_K, fx, 50, round % 3 == 0, 0);
        fill(&w[0][0], N_OUT * N_K, fw, 300, round % 3 == 0, 0x8000);
        for (uint32_t r = 0; r < N_ROWS; r++) {
            n_valid[r] = round % 2 ? N_K : next() % (N_K + 1);
            for (uint32_t k = n_valid[r]; k < N_K; k++) x[r][k] = 0;
        }
        for (uint32_t n = 0; n < N_OUT; n++)
            for (uint32_t k = 0; k < N_K / 2; k++)
                pairs[n / 8][k][n % 8] = w[n][2 * k] | (uint32_t)w[n][2 * k + 1] << 16;
        for (uint32_t r = 0; r < N_ROWS; r++)
            for (uint32_t n = 0; n < N_OUT; n++) {
                uint16_t valid[N_K] = {0};

                memcpy(valid, w[n], n_valid[r] * sizeof(uint16_t));
                c[r][n] = starts[next() % 10];
                want[r][n] = mma_chain(c[r][n], x[r], valid, N_K);
            }
        for (size_t i = 0; i < n_codes; i++) {
            struct operand o = {.x = x[0]};
            float got[N_ROWS][N_OUT];
            struct cpu_chain ch = {.w = pairs[0][0],
                                   .block_stride = N_K / 2 * CPU_LANES,
                                   .pair_stride = CPU_LANES,
                                   .n_k = N_K,
                                   .n_valid = n_valid,
                                   .c = got[0],
                                   .c_stride = N_OUT,
                                   .n_rows = 1 + (uint32_t)round % N_ROWS,
                                   .n_blocks = N_BLOCKS,
                                   .n_groups = N_K / CPU_GROUP};

            operand_open(&o, codes[i], N_ROWS, N_K);
            ch.values = o.rows.values;
            ch.exponents = o.rows.exponents;
            ch.kinds = o.rows.kinds;
            memcpy(got, c, sizeof(got));
            codes[i]->chain(&ch);
            for (uint32_t r = 0; r < ch.n_rows; r++)
                for (uint32_t n = 0; n < N_OUT; n++) {
                    unsigned a = num_bits(got[r][n]), b = num_bits(want[r][n]);

                    /* A -0 that no product touched may stay (SPEC 2.2, chain). */
                    if (a == 0x80000000 && b == 0 && c[r][n] == 0.0f) continue;
                    if (a != b)
                        print_error("%s, round %d (%u, %u), row %u, output %u: %08x, not %08x\n",
                                    codes[i]->name, round, fx, fw, r, n, a, b);
                    assert_int_equal(a, b);
                }
            operand_close(&o);
        }
    }
}

/* One step of sixteen equal products: where the fast path ends, and what lies beyond. */
static void test_edges(void **state) {
    static const struct {
        const char *why;
        uint32_t c;
        uint16_t a, b;
    } edges[] = {
        {"a sum that leaves 32 bits", 0x3fffffff, 0x3fff, 0x3fff},
        {"and downward", 0xbfffffff, 0x3fff, 0xbfff},
        {"almost", 0x3c000000, 0x3fff, 0x3fff},
        {"zero times infinity", 0x3f800000, 0x0000, 0x7f80},
        {"zero times NaN", 0x00000000, 0x8000, 0xffff},
        {"infinity times zero", 0x3f800000, 0xff80, 0x0000},
        {"an infinite accumulator", 0x7f800000, 0x3f80, 0x3f80},
        {"an infinite one, nothing to add", 0xff800000, 0x0000, 0x3f80},
        {"a NaN for an accumulator", 0x7fffffff, 0x3f80, 0x3f80},
        {"the largest accumulator", 0x7f7fffff, 0x3f80, 0x3f80},
        {"values just below 2^25", 0x3f800000, 0x4bff, 0x4bff},
        {"values of 2^25", 0x3f800000, 0x4c00, 0x4c00},
        {"the least exponent, 2^-101", 0x00000000, 0x2680, 0x2600},
        {"one less", 0x00000000, 0x2600, 0x2600},
        {"a subnormal times a large value", 0x00000000, 0x0001, 0x7f00},
        {"a large value times a subnormal", 0x0d000000, 0x7f00, 0x0040},
        {"subnormals beside 2^-101", 0x0d000000, 0x4bff, 0x007f},
        {"a subnormal accumulator", 0x007fffff, 0x0000, 0x0000},
        {"a subnormal accumulator beside 1", 0x007fffff, 0x3f80, 0x3d80},
    };
    enum { N_ROWS = 5, N_BLOCKS = 5, N_OUT = N_BLOCKS * CPU_LANES };
    uint32_t w[N_BLOCKS][CPU_PAIRS][CPU_LANES];
    uint16_t x[N_ROWS][CPU_GROUP], b[CPU_GROUP];

    (void)state;
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++)
        for (size_t j = 0; j < n_codes; j++)
            for (uint32_t n_rows = 1; n_rows <= N_ROWS; n_rows++) {
                struct operand o = {.x = x[0]};
                float c[N_ROWS][N_OUT], want;
                struct cpu_chain ch = {.w = w[0][0],
                                       .block_stride = CPU_PAIRS * CPU_LANES,
                                       .pair_stride = CPU_LANES,
                                       .n_k = CPU_GROUP,
                                       .c = c[0],
                                       .c_stride = N_OUT,
                                       .n_rows = n_rows,
                                       .n_blocks = N_BLOCKS,
                                       .n_groups = 1};

                for (uint32_t k = 0; k < N_ROWS * CPU_GROUP; k++)
                    x[k / CPU_GROUP][k % CPU_GROUP] = edges[i].a;
                for (uint32_t k = 0; k < CPU_GROUP; k++) b[k] = edges[i].b;
                for (uint32_t k = 0; k < N_OUT * CPU_PAIRS; k++)
                    w[k / 64][k / 8 % 8][k % 8] = edges[i].b * 0x10001u;
                for (uint32_t k = 0; k < N_ROWS * N_OUT; k++)
                    c[k / N_OUT][k % N_OUT] = num_from_bits(edges[i].c);
                want = mma_step(c[0][0], x[0], b);
                operand_open(&o, codes[j], N_ROWS, CPU_GROUP);
                ch.values = o.rows.values;
                ch.exponents = o.rows.exponents;
                ch.kinds = o.rows.kinds;
                codes[j]->chain(&ch);
                for (uint32_t k = 0; k < n_rows * N_OUT; k++)
                    if (num_bits(c[k / N_OUT][k % N_OUT]) != num_bits(want))
                        fail_msg("%s, %s: %08x, not %08x", edges[i].why, codes[j]->name,
                                 num_bits(c[k / N_OUT][k % N_OUT]), num_bits(want));
                operand_close(&o);
            }
}

struct result {
    float *y;
    uint32_t n, n_blocks;
};

static void take(void *ctx, uint32_t row, uint32_t block, uint32_t n_blocks, const float *y) {
    struct result *r = ctx;

    for (uint32_t i = 0; i < n_blocks * CPU_LANES && block * CPU_LANES + i < r->n; i++)
        r->y[row * r->n + block * CPU_LANES + i] = y[i];
}

/* SPEC 2.4, word by word. */
static float product(const uint16_t *w, const uint16_t *x, uint32_t n_k, uint32_t segments) {
    uint32_t segment = schedule_segment(n_k, segments);
    uint16_t a[4096] = {0}, b[4096] = {0};
    float p[SCHEDULE_SEGMENTS_MAX];

    assert_true(segment * segments <= 4096);
    memcpy(a, w, n_k * sizeof(*w));
    memcpy(b, x, n_k * sizeof(*x));
    for (uint32_t s = 0; s < segments; s++)
        p[s] = mma_chain(0.0f, a + s * segment, b + s * segment, segment);
    for (uint32_t n = segments; n > 1; n /= 2)
        for (uint32_t i = 0; i < n / 2; i++) p[i] = p[2 * i] + p[2 * i + 1];
    return p[0];
}

/* Outputs of a large value and many small ones: another order of steps gives other bits. */
static void test_products(void **state) {
    static const struct {
        const char *why;
        uint32_t n, n_k, n_rows, segments, n_threads;
    } cases[] = {
        {"one row", 64, 576, 1, 1, 1},
        {"two rows, an odd number of blocks", 40, 576, 2, 1, 2},
        {"three rows, four segments", 32, 1536, 3, 4, 3},
        {"outputs that do not fill a block", 301, 48, 5, 1, 2},
        {"segments past the end of K", 16, 48, 4, 8, 1},
        {"a ragged last segment", 24, 592, 7, 4, 2},
        {"two segments", 16, 768, 16, 2, 3},
        {"as many segments as there may be", 16, 1040, 9, 16, 2},
        {"one block, one group", 8, 16, 1, 1, 3},
        {"one output", 1, 16, 1, 2, 3},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t n = cases[i].n, n_k = cases[i].n_k, n_rows = cases[i].n_rows;
        uint16_t *w = malloc(n * n_k * sizeof(*w)), *x = malloc(n_rows * n_k * sizeof(*x));
        uint16_t *back = malloc(n_k * sizeof(*back));
        struct cpu_matrix m = {.n = n, .n_k = n_k, .n_blocks = (n + 7) / 8};
        struct result got = {.y = malloc(n_rows * n * sizeof(float)), .n = n};
        struct cpu_pool *pool;

        m.w = malloc(cpu_matrix_words(n, n_k) * sizeof(uint32_t));
        assert_true(w && x && back && got.y && m.w);
        assert_int_equal(cpu_pool_open(cases[i].n_threads, &pool, NULL), 0);
        for (uint32_t k = 0; k < n * n_k; k++) w[k] = k % 97 ? value(NORMAL) : value(WIDE);
        for (uint32_t k = 0; k < n_rows * n_k; k++) x[k] = k % 61 ? value(NORMAL) : value(WIDE);
        cpu_matrix_put(&m, w, n, 0, 1);
        cpu_matrix_get(&m, n - 1, back);
        assert_memory_equal(back, w + (n - 1) * n_k, n_k * sizeof(*back));

        for (size_t j = 0; j < n_codes; j++) {
            struct operand o = {.x = x};

            operand_open(&o, codes[j], n_rows, n_k);
            cpu_gemm(pool, codes[j], &m, &o.rows, n_rows, cases[i].segments, take, &got);
            for (uint32_t r = 0; r < n_rows; r++)
                for (uint32_t k = 0; k < n; k++) {
                    float want = product(w + k * n_k, x + r * n_k, n_k, cases[i].segments);

                    if (num_bits(got.y[r * n + k]) != num_bits(want))
                        print_error("%s, %s: row %u, output %u\n", cases[i].why, codes[j]->name, r,
                                    k);
                    assert_int_equal(num_bits(got.y[r * n + k]), num_bits(want));
                }
            operand_close(&o);
        }
        cpu_pool_close(pool);
        free(m.w);
        free(got.y);
        free(back);
        free(x);
        free(w);
    }
}

/* Weights of attention: near a border of rounding, at the ends, and what is no number. */
static void test_weigh(void **state) {
    static const float odd[] = {-0.0f, 0.0f, -126.0f, -126.5f, -1e30f, 0x1p-130f, 5.0f};
    float scores[CPU_LANES * 64];
    uint16_t p[CPU_CODES_MAX][CPU_LANES * 64];

    (void)state;
    for (int round = 0; round < 2000; round++) {
        const uint32_t n = CPU_LANES * (1 + next() % 64);
        float m = (float)(next() % 40);

        for (int i = 0; i < CPU_LANES * 64; i++) {
            scores[i] = -(float)next() * 0x1p-32f * (float)(round % 150);
            if (next() % 30 == 0) scores[i] = odd[next() % 7];
            if (next() % 100 == 0) scores[i] = num_from_bits(next());
        }
        for (size_t i = 0; i < n_codes; i++) {
            codes[i]->weigh(scores, n, 0x1.7154p-3f, m, p[i]);
            assert_memory_equal(p[0], p[i], n * sizeof(uint16_t));
        }
    }
}

/* Lengths around vectors and odd trees, each flavour of values, any bits of what is rounded. */
static void test_rows(void **state) {
    enum { N_MAX = 600 };
    static const uint32_t lengths[] = {1, 7, 8, 15, 16, 24, 40, 64, 72, 136, 576, 592, N_MAX};
    static uint16_t x[N_MAX], w[N_MAX], out[CPU_CODES_MAX][3][N_MAX];
    static float y[N_MAX], squares[N_MAX];

    (void)state;
    if (n_codes < 2) skip();
    for (uint32_t round = 0; round < 40 * N_FLAVOURS; round++) {
        for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
            const uint32_t n = lengths[l], run = round % 3 ? 1 : 1 + next() % 40;
            float want;

            for (uint32_t i = 0; i < n; i++) {
                x[i] = value((enum flavour)(round % N_FLAVOURS));
                w[i] = value(NORMAL);
                y[i] = num_from_bits(next() % 4 ? next() : next() << 16 | 0x8000);
            }
            want = y[0];
            for (uint32_t i = 1; i < n; i++) want = num_max(want, y[i]);
            for (size_t c = 0; c < n_codes; c++) {
                float most;

                codes[c]->norm(x, w, n, 1e-5f, run, squares, out[c][0]);
                codes[c]->round(y, n, out[c][1]);
                memcpy(out[c][2], x, sizeof(x));
                codes[c]->add(out[c][2], y, n);
                most = codes[c]->max(y, n);
                if (num_bits(most) != num_bits(want) && (most != 0.0f || want != 0.0f))
                    fail_msg("%s, the largest of %u: %08x, not %08x", codes[c]->name, n,
                             num_bits(most), num_bits(want));
                for (int k = 0; k < 3; k++)
                    assert_memory_equal(out[0][k], out[c][k], n * sizeof(uint16_t));
            }
        }
    }
}

static void count(void *ctx, uint32_t item, uint32_t thread) {
    uint32_t *n = ctx;

    assert_true(thread < 3);
    __atomic_fetch_add(&n[item], 1, __ATOMIC_RELAXED);
}

/* Long items: who has none left sleeps until they are done. */
static void count_slowly(void *ctx, uint32_t item, uint32_t thread) {
    usleep(300 + item * 100);
    count(ctx, item, thread);
}

static void test_pool(void **state) {
    struct cpu_pool *pool;

    (void)state;
    assert_int_equal(cpu_pool_open(3, &pool, NULL), 0);
    for (uint32_t round = 0; round < 20000; round++) {
        uint32_t n[64] = {0}, n_items = round % 64;

        cpu_pool_run(pool, n_items, count, n);
        for (uint32_t i = 0; i < 64; i++) assert_int_equal(n[i], i < n_items);
    }
    for (uint32_t round = 0; round < 100; round++) {
        uint32_t n[4] = {0}, n_items = 2 + round % 3;

        cpu_pool_run(pool, n_items, count_slowly, n);
        for (uint32_t i = 0; i < 4; i++) assert_int_equal(n[i], i < n_items);
    }
    cpu_pool_close(pool);
    cpu_pool_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_card),  cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_edges), cmocka_unit_test(test_products),
        cmocka_unit_test(test_weigh), cmocka_unit_test(test_rows),
        cmocka_unit_test(test_pool),
    };

    n_codes = cpu_codes(codes);
    for (size_t i = 0; i < n_codes; i++) print_message("%s\n", codes[i]->name);
    return cmocka_run_group_tests_name("cpu_gemm", tests, NULL, NULL);
}
