#include "runtime/cpu_gemm.h"

#include <string.h>

#include "runtime/assert.h"
#include "runtime/cpu_pool.h"
#include "runtime/cpu_row.h"
#include "runtime/ex2.h"
#include "runtime/mma.h"
#include "runtime/num.h"

enum {
    E_BIAS = 254, /* of an exponent that is the sum of two exponent fields */
    E_MIN = -101,
    E_MAX = 121,
    MAGNITUDE_MAX = 0x7bffffff, /* of a sum of 17 that is known to fit 32 bits */
    ITEMS_PER_THREAD = 16,      /* a late thread costs at most one of them */
    ITEM_STEPS_MIN = 1 << 7,    /* of 16 x 8; less is not worth a turn */
    ITEM_STEPS_MAX = 1 << 10,   /* unless that is less than blocks at once have */
    ROWS_AT_ONCE = 4,
    BLOCKS_AT_ONCE = 4, /* even: a block of gate stays with its block of up */
};

static void spread(const uint16_t *x, uint32_t n, float *values, uint32_t *exponents,
                   uint8_t *kinds) {
    for (uint32_t i = 0; i < n; i += CPU_GROUP) {
        uint32_t any = 0, top = 0;

        for (uint32_t k = 0; k < CPU_PAIRS; k++) {
            uint16_t even = x[i + 2 * k], odd = x[i + 2 * k + 1];

            values[i + k] = num_from_bf16(even);
            values[i + CPU_PAIRS + k] = num_from_bf16(odd);
            exponents[i / 2 + k] = (uint32_t)(even & 0x7f80) | (uint32_t)(odd & 0x7f80) << 16;
            any |= (uint32_t)(even | odd) & 0x7fff;
            if ((even & 0x7f80) > CPU_FIELD_MAX << 7 || (odd & 0x7f80) > CPU_FIELD_MAX << 7)
                top = 1;
        }
        kinds[i / CPU_GROUP] = top ? CPU_WILD : any ? CPU_PLAIN : CPU_ZERO;
    }
}

void cpu_chain_group(const struct cpu_chain *ch, uint32_t group, uint32_t row, uint32_t n_rows,
                     uint32_t block, uint32_t n_blocks) {
    uint16_t a[CPU_GROUP], b[CPU_GROUP];

    for (uint32_t r = row; r < row + n_rows; r++) {
        const float *values = ch->values + r * ch->n_k + group * CPU_GROUP;
        uint32_t n_valid = ch->n_valid ? ch->n_valid[r] : UINT32_MAX;

        for (uint32_t k = 0; k < CPU_GROUP; k++)
            a[k] = (uint16_t)(num_bits(values[k / 2 + k % 2 * CPU_PAIRS]) >> 16);
        for (uint32_t lane = 0; lane < n_blocks * CPU_LANES; lane++) {
            const uint32_t *w = ch->w + (block + lane / CPU_LANES) * ch->block_stride +
                                group * CPU_PAIRS * ch->pair_stride + lane % CPU_LANES;
            float *c = ch->c + r * ch->c_stride + block * CPU_LANES + lane;

            for (uint32_t k = 0; k < CPU_GROUP; k++) {
                b[k] = (uint16_t)(w[k / 2 * ch->pair_stride] >> k % 2 * 16);
                if (group * CPU_GROUP + k >= n_valid) b[k] = 0;
            }
            *c = mma_step(*c, a, b);
        }
    }
}

/* The largest exponent of each lane's addends and of w, by exponent fields. */
static uint32_t exponents_max(const uint32_t *w, size_t pair_stride, const uint32_t *exponents,
                              uint32_t e[CPU_LANES]) {
    uint32_t top = 0;

    for (uint32_t k = 0; k < CPU_PAIRS; k++)
        for (uint32_t lane = 0; lane < CPU_LANES; lane++) {
            uint32_t even = w[k * pair_stride + lane] & 0x7f80;
            uint32_t odd = w[k * pair_stride + lane] >> 16 & 0x7f80;
            uint32_t sum = even + (exponents[k] & 0x7f80);

            if (sum > e[lane]) e[lane] = sum;
            sum = odd + (exponents[k] >> 16);
            if (sum > e[lane]) e[lane] = sum;
            if (even > top) top = even;
            if (odd > top) top = odd;
        }
    return top;
}

/* Toward zero to 24 bits; |sum| is below 2^31. */
static float cut(int32_t sum) {
    uint32_t magnitude = (uint32_t)(sum < 0 ? -sum : sum);
    int drop = magnitude >> 24 ? 8 - __builtin_clz(magnitude) : 0;
    float x = (float)(magnitude >> drop << drop);

    return sum < 0 ? -x : x;
}

/* False where the group is not for the fast path; c is then as it was. */
static bool group_fast(const uint32_t *w, size_t pair_stride, const float *values,
                       const uint32_t *exponents, float c[CPU_LANES]) {
    uint32_t e[CPU_LANES] = {0};
    int64_t sum[CPU_LANES];
    float scale[CPU_LANES];

    if (exponents_max(w, pair_stride, exponents, e) > CPU_FIELD_MAX << 7) return false;
    for (int lane = 0; lane < CPU_LANES; lane++) {
        uint32_t own = (num_bits(c[lane]) >> 23 & 0xff) + 127;

        e[lane] >>= 7;
        if (own > e[lane]) e[lane] = own;
        if (e[lane] < E_BIAS + E_MIN || e[lane] > E_BIAS + E_MAX) return false;
        scale[lane] = num_from_bits((127 + 25 + E_BIAS - e[lane]) << 23);
        sum[lane] = (int32_t)(c[lane] * scale[lane]);
    }
    for (uint32_t k = 0; k < CPU_PAIRS; k++)
        for (uint32_t lane = 0; lane < CPU_LANES; lane++) {
            uint32_t pair = w[k * pair_stride + lane];
            float even = num_from_bits(pair << 16) * values[k];
            float odd = num_from_bits(pair & 0xffff0000) * values[CPU_PAIRS + k];

            sum[lane] += (int32_t)(even * scale[lane]);
            sum[lane] += (int32_t)(odd * scale[lane]);
        }
    for (int lane = 0; lane < CPU_LANES; lane++)
        if (sum[lane] > MAGNITUDE_MAX || sum[lane] < -MAGNITUDE_MAX) return false;
    for (int lane = 0; lane < CPU_LANES; lane++)
        c[lane] = cut((int32_t)sum[lane]) * num_from_bits((e[lane] - E_BIAS + 127 - 25) << 23);
    return true;
}

static void chain_group(const struct cpu_chain *ch, uint32_t group, uint32_t row, uint32_t block) {
    const enum cpu_kind kind = ch->kinds[row * (ch->n_k / CPU_GROUP) + group];
    const uint32_t *w = ch->w + block * ch->block_stride + group * CPU_PAIRS * ch->pair_stride;
    const uint32_t *exponents = ch->exponents + row * (ch->n_k / 2) + group * CPU_PAIRS;
    uint32_t e[CPU_LANES] = {0};

    /* Zero times an infinity is not zero. */
    if (kind == CPU_ZERO && exponents_max(w, ch->pair_stride, exponents, e) <= CPU_FIELD_MAX << 7)
        return;
    if (kind == CPU_PLAIN &&
        group_fast(w, ch->pair_stride, ch->values + row * ch->n_k + group * CPU_GROUP, exponents,
                   ch->c + row * ch->c_stride + block * CPU_LANES))
        return;
    cpu_chain_group(ch, group, row, 1, block, 1);
}

static void chain(const struct cpu_chain *ch) {
    for (uint32_t row = 0; row < ch->n_rows; row++)
        for (uint32_t block = 0; block < ch->n_blocks; block++)
            for (uint32_t g = 0; g < ch->n_groups; g++) chain_group(ch, g, row, block);
}

static void weigh(const float *scores, uint32_t n, float c, float m, uint16_t *out_p) {
    for (uint32_t i = 0; i < n; i++) out_p[i] = ex2_bf16(num_fma(scores[i], c, -m));
}

const struct cpu_code cpu_code_portable = {
    .name = "portable",
    .spread = spread,
    .chain = chain,
    .weigh = weigh,
    .max = cpu_row_max,
    .norm = cpu_row_norm,
    .round = cpu_row_round,
    .add = cpu_row_add,
};

uint32_t cpu_codes(const struct cpu_code *out_codes[CPU_CODES_MAX]) {
    uint32_t n = 0;

#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");

    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        out_codes[n++] = &cpu_code_avx512;
    if (avx2) out_codes[n++] = &cpu_code_avx2;
#endif
    out_codes[n++] = &cpu_code_portable;
    return n;
}

const struct cpu_code *cpu_code_best(void) {
    const struct cpu_code *codes[CPU_CODES_MAX];

    (void)cpu_codes(codes);
    return codes[0];
}

size_t cpu_matrix_words(uint32_t n, uint32_t n_k) {
    size_t words = ((size_t)n + CPU_LANES - 1) / CPU_LANES * CPU_LANES, bytes;

    if (__builtin_mul_overflow(words, (size_t)n_k / 2, &words)) return 0;
    return __builtin_mul_overflow(words, sizeof(uint32_t), &bytes) ? 0 : words;
}

static uint32_t *lane_of(const struct cpu_matrix *m, uint32_t block, uint32_t lane) {
    return m->w + (size_t)block * (m->n_k / 2) * CPU_LANES + lane;
}

void cpu_matrix_put(struct cpu_matrix *m, const uint16_t *rows, uint32_t n_rows, uint32_t first,
                    uint32_t step) {
    for (uint32_t n = 0; n < (n_rows + CPU_LANES - 1) / CPU_LANES * CPU_LANES; n++) {
        /* A row of zeros would have no exponent and leave the fast path: repeat instead. */
        const uint16_t *row = rows + (size_t)(n < n_rows ? n : n_rows - 1) * m->n_k;
        uint32_t *to = lane_of(m, first + n / CPU_LANES * step, n % CPU_LANES);

        ASSERT(first + n / CPU_LANES * step < m->n_blocks);
        for (uint32_t k = 0; k < m->n_k / 2; k++)
            to[(size_t)k * CPU_LANES] = row[2 * k] | (uint32_t)row[2 * k + 1] << 16;
    }
}

void cpu_matrix_get(const struct cpu_matrix *m, uint32_t n, uint16_t *out_row) {
    const uint32_t *from = lane_of(m, n / CPU_LANES, n % CPU_LANES);

    for (uint32_t k = 0; k < m->n_k / 2; k++) {
        out_row[2 * k] = (uint16_t)from[(size_t)k * CPU_LANES];
        out_row[2 * k + 1] = (uint16_t)(from[(size_t)k * CPU_LANES] >> 16);
    }
}

struct gemm {
    const struct cpu_code *code;
    const struct cpu_matrix *m;
    const struct cpu_rows *x;
    cpu_gemm_out *out;
    void *ctx;
    uint32_t n_rows, segments, segment; /* values of a segment */
    uint32_t item_blocks;
};

/* Pieces of K, then their tree; a piece past the end of K is +0. */
static void product(const struct gemm *g, uint32_t row, uint32_t n_rows, uint32_t block,
                    uint32_t n_blocks) {
    enum { WIDTH = BLOCKS_AT_ONCE * CPU_LANES };
    float p[SCHEDULE_SEGMENTS_MAX][ROWS_AT_ONCE][WIDTH];
    const uint32_t n_k = g->m->n_k;
    const size_t block_words = (size_t)n_k / 2 * CPU_LANES;

    memset(p, 0, g->segments * sizeof(p[0]));
    for (uint32_t s = 0; s < g->segments && s * g->segment < n_k; s++) {
        const uint32_t k = s * g->segment;
        const uint32_t n = n_k - k < g->segment ? n_k - k : g->segment;
        const struct cpu_chain ch = {
            .w = lane_of(g->m, block, 0) + (size_t)k / 2 * CPU_LANES,
            .block_stride = block_words,
            .pair_stride = CPU_LANES,
            .values = g->x->values + (size_t)row * n_k + k,
            .exponents = g->x->exponents + ((size_t)row * n_k + k) / 2,
            .kinds = g->x->kinds + ((size_t)row * n_k + k) / CPU_GROUP,
            .n_k = n_k,
            .c = p[s][0],
            .c_stride = WIDTH,
            .n_rows = n_rows,
            .n_blocks = n_blocks,
            .n_groups = n / CPU_GROUP,
            .fetch = row == 0, /* later rows find them in a cache */
            .ahead = n_rows == 1 && k + n == n_k ? (BLOCKS_AT_ONCE - 1) * block_words : 0,
        };

        g->code->chain(&ch);
    }
    for (uint32_t n = g->segments / 2; n > 0; n /= 2)
        for (uint32_t s = 0; s < n; s++)
            for (uint32_t r = 0; r < n_rows; r++)
                for (uint32_t i = 0; i < WIDTH; i++)
                    p[s][r][i] = p[2 * s][r][i] + p[2 * s + 1][r][i];
    for (uint32_t r = 0; r < n_rows; r++) g->out(g->ctx, row + r, block, n_blocks, p[0][r]);
}

static void item(void *ctx, uint32_t index, uint32_t thread) {
    const struct gemm *g = ctx;
    uint32_t block = index * g->item_blocks;
    uint32_t end = block + g->item_blocks;

    (void)thread;
    if (end > g->m->n_blocks) end = g->m->n_blocks;
    for (; block < end; block += BLOCKS_AT_ONCE)
        for (uint32_t row = 0; row < g->n_rows; row += ROWS_AT_ONCE) {
            uint32_t n_rows = g->n_rows - row, n_blocks = end - block;

            product(g, row, n_rows < ROWS_AT_ONCE ? n_rows : ROWS_AT_ONCE, block,
                    n_blocks < BLOCKS_AT_ONCE ? n_blocks : BLOCKS_AT_ONCE);
        }
}

void cpu_gemm(struct cpu_pool *pool, const struct cpu_code *code, const struct cpu_matrix *m,
              const struct cpu_rows *x, uint32_t n_rows, uint32_t segments, cpu_gemm_out *out,
              void *ctx) {
    struct gemm g = {
        .code = code,
        .m = m,
        .x = x,
        .out = out,
        .ctx = ctx,
        .n_rows = n_rows,
        .segments = segments,
        .segment = schedule_segment(m->n_k, segments),
    };
    const uint64_t block_steps = (uint64_t)n_rows * (m->n_k / CPU_GROUP);
    const uint32_t n_items_max = cpu_pool_threads(pool) * ITEMS_PER_THREAD;
    uint64_t blocks = (m->n_blocks + n_items_max - 1) / n_items_max;

    ASSERT(x->n_k == m->n_k && segments <= SCHEDULE_SEGMENTS_MAX);
    if (n_rows == 0) return;
    if (blocks * block_steps > ITEM_STEPS_MAX) blocks = ITEM_STEPS_MAX / block_steps;
    if (blocks * block_steps < ITEM_STEPS_MIN) blocks = ITEM_STEPS_MIN / block_steps;
    /* Rounded down: an item more is cheaper than an uneven end. */
    g.item_blocks = (uint32_t)(blocks / BLOCKS_AT_ONCE * BLOCKS_AT_ONCE);
    if (g.item_blocks == 0) g.item_blocks = BLOCKS_AT_ONCE;
    cpu_pool_run(pool, (m->n_blocks + g.item_blocks - 1) / g.item_blocks, item, &g);
}
