#include "runtime/cpu_gemm.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "runtime/cpu_row.h"
#include "runtime/ex2.h"

/* As in cpu_gemm_avx2.c, with two adjacent blocks to a register: 16 outputs.  What does not fill
 * one goes to the code of half the width. */

#define AVX512_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
#define AVX512 __attribute__((target(AVX512_TARGET)))
#define TILE static inline __attribute__((always_inline, target(AVX512_TARGET)))
/* A tile's loops must vanish, or its registers become memory. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
/* Now, not in a tree of additions at the end, for which there are no registers. */
#define STAY(x) __asm__("" : "+v"(x))

enum {
    LANES = 2 * CPU_LANES,
    TILE_MAX = 4, /* rows times pairs of blocks of a tile: each has a register of scales, of sums */
    ROWS_MAX = 4,
    FETCH_GROUPS = 4, /* so far ahead weights are asked for, as there */
    LINE_WORDS = 16,
    TOWARD_ZERO = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC,
};

TILE __m512i load_pair(const struct cpu_chain *ch, const uint32_t *w, int k, int p) {
    const uint32_t *from = w + (size_t)(2 * p) * ch->block_stride + (size_t)k * ch->pair_stride;
    const __m256i low = _mm256_loadu_si256((const __m256i *)from);
    const __m256i high = _mm256_loadu_si256((const __m256i *)(from + ch->block_stride));

    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* Zero times each of these is zero. */
TILE bool tame(const struct cpu_chain *ch, const uint32_t *w, const int n_pairs) {
    __m512i top = _mm512_setzero_si512();

    UNROLL for (int k = 0; k < CPU_PAIRS; k++) {
        UNROLL for (int p = 0; p < n_pairs; p++) {
            top = _mm512_max_epu16(
                top, _mm512_and_si512(load_pair(ch, w, k, p), _mm512_set1_epi16(0x7f80)));
        }
    }
    return _mm512_cmpgt_epu16_mask(top, _mm512_set1_epi16((short)(CPU_FIELD_MAX << 7))) == 0;
}

/* Asks for a group of each block, by a number: past the last weights there is no pointer. */
TILE void fetch(const struct cpu_chain *ch, const uint32_t *w, uint32_t group, const int n_blocks) {
    const size_t skipped = group + FETCH_GROUPS < ch->n_groups ? 0 : ch->ahead;
    const uintptr_t at =
        (uintptr_t)w + (FETCH_GROUPS * CPU_PAIRS * CPU_LANES + skipped) * sizeof(*w);

    UNROLL for (int b = 0; b < n_blocks; b++) {
        UNROLL for (int i = 0; i < CPU_PAIRS * CPU_LANES; i += LINE_WORDS) {
            const size_t word = (size_t)b * ch->block_stride + (size_t)i;

            _mm_prefetch((const char *)(at + word * sizeof(*w)), _MM_HINT_T0);
        }
    }
}

/* Exponents are biased by 254 and stand in the nine upper bits of a word. */
TILE void tile(const struct cpu_chain *ch, uint32_t row, uint32_t block, const int n_rows,
               const int n_pairs) {
    const __m512i field = _mm512_set1_epi32(0x7f800000);
    const __m512i fields = _mm512_set1_epi16(0x7f80);
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    const __m512i e_min = _mm512_set1_epi32((254 - 101) << 23);
    const __m512i e_span = _mm512_set1_epi32((101 + 121) << 23);
    const __m512i w_max = _mm512_set1_epi16((short)(CPU_FIELD_MAX << 7));
    const __m512i magnitude_max = _mm512_set1_epi32(0x7bffffff);
    const int n = n_rows * n_pairs;
    __m512 acc[TILE_MAX];
    float *c[TILE_MAX];
    const float *values[ROWS_MAX];
    const uint32_t *exponents[ROWS_MAX];
    const uint8_t *kinds[ROWS_MAX];

    UNROLL for (int r = 0; r < n_rows; r++) {
        values[r] = ch->values + (row + (size_t)r) * ch->n_k;
        exponents[r] = ch->exponents + (row + (size_t)r) * (ch->n_k / 2);
        kinds[r] = ch->kinds + (row + (size_t)r) * (ch->n_k / CPU_GROUP);
        UNROLL for (int p = 0; p < n_pairs; p++) {
            c[r * n_pairs + p] =
                ch->c + (row + (size_t)r) * ch->c_stride + (block + 2 * (size_t)p) * CPU_LANES;
            acc[r * n_pairs + p] = _mm512_loadu_ps(c[r * n_pairs + p]);
        }
    }
    for (uint32_t g = 0; g < ch->n_groups; g++) {
        const uint32_t *w = ch->w + block * ch->block_stride + g * CPU_PAIRS * ch->pair_stride;
        __m512i e[TILE_MAX], e_top = _mm512_setzero_si512(), w_top = _mm512_setzero_si512();
        __m512i sum[TILE_MAX], sum_top = _mm512_setzero_si512();
        __m512 scale[TILE_MAX];
        unsigned kind = 0;
        bool bad;

        if (ch->fetch) fetch(ch, w, g, 2 * n_pairs);
        UNROLL for (int r = 0; r < n_rows; r++) kind |= kinds[r][g];
        if (kind == CPU_ZERO && tame(ch, w, n_pairs)) continue;

        UNROLL for (int i = 0; i < n; i++) e[i] = _mm512_setzero_si512();
        UNROLL for (int k = 0; k < CPU_PAIRS; k++) {
            UNROLL for (int p = 0; p < n_pairs; p++) {
                __m512i pair = _mm512_and_si512(fields, load_pair(ch, w, k, p));

                w_top = _mm512_max_epu16(w_top, pair);
                UNROLL for (int r = 0; r < n_rows; r++) {
                    __m512i a = _mm512_set1_epi32((int)exponents[r][g * CPU_PAIRS + (uint32_t)k]);

                    e[r * n_pairs + p] =
                        _mm512_max_epu16(e[r * n_pairs + p], _mm512_add_epi16(pair, a));
                }
            }
        }
        UNROLL for (int i = 0; i < n; i++) {
            __m512i own = _mm512_add_epi32(_mm512_and_si512(_mm512_castps_si512(acc[i]), field),
                                           _mm512_set1_epi32(127 << 23));

            e[i] = _mm512_max_epu32(e[i], _mm512_slli_epi32(e[i], 16));
            e[i] = _mm512_max_epu32(_mm512_and_si512(e[i], upper), own);
            e_top = _mm512_max_epu32(e_top, _mm512_sub_epi32(e[i], e_min));
            /* 2^(25-e); modulo 2^32 it is what it should be. */
            scale[i] =
                _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_set1_epi32((int)(406u << 23)), e[i]));
            sum[i] = _mm512_cvttps_epi32(_mm512_mul_ps(acc[i], scale[i]));
        }
        UNROLL for (int k = 0; k < CPU_PAIRS; k++) {
            UNROLL for (int p = 0; p < n_pairs; p++) {
                __m512i pair = load_pair(ch, w, k, p);
                __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
                __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(pair, upper));

                UNROLL for (int r = 0; r < n_rows; r++) {
                    const float *a = values[r] + g * CPU_GROUP + k;
                    const int i = r * n_pairs + p;
                    __m512 x = _mm512_mul_ps(even, _mm512_set1_ps(a[0]));
                    __m512 y = _mm512_mul_ps(odd, _mm512_set1_ps(a[CPU_PAIRS]));
                    __m512i u = _mm512_cvttps_epi32(_mm512_mul_ps(x, scale[i]));
                    __m512i v = _mm512_cvttps_epi32(_mm512_mul_ps(y, scale[i]));

                    sum[i] = _mm512_add_epi32(sum[i], _mm512_add_epi32(u, v));
                    STAY(sum[i]);
                }
            }
        }
        UNROLL for (int i = 0; i < n; i++) {
            /* At most 16 * 255^2 * 2^11 + 2^26, which may leave 32 bits: what is left then is a
             * magnitude of 0x7cff8001 or more. */
            __m512 unit = _mm512_castsi512_ps(
                _mm512_sub_epi32(e[i], _mm512_set1_epi32((254 + 25 - 127) << 23)));

            sum_top = _mm512_max_epu32(sum_top, _mm512_abs_epi32(sum[i]));
            /* Not rounded but cut to 24 bits. */
            scale[i] = _mm512_mul_ps(_mm512_cvt_roundepi32_ps(sum[i], TOWARD_ZERO), unit);
        }
        bad = (_mm512_cmpgt_epu16_mask(w_top, w_max) |
               _mm512_cmpgt_epu32_mask(sum_top, magnitude_max) |
               _mm512_cmpgt_epu32_mask(e_top, e_span)) != 0;
        if (__builtin_expect(kind != CPU_PLAIN || bad, 0)) {
            UNROLL for (int i = 0; i < n; i++) _mm512_storeu_ps(c[i], acc[i]);
            cpu_chain_group(ch, g, row, (uint32_t)n_rows, block, (uint32_t)(2 * n_pairs));
            UNROLL for (int i = 0; i < n; i++) acc[i] = _mm512_loadu_ps(c[i]);
            continue;
        }
        UNROLL for (int i = 0; i < n; i++) acc[i] = scale[i];
    }
    UNROLL for (int i = 0; i < n; i++) _mm512_storeu_ps(c[i], acc[i]);
}

AVX512 static void tile_4x1(const struct cpu_chain *ch, uint32_t row, uint32_t block) {
    tile(ch, row, block, 4, 1);
}

AVX512 static void tile_3x1(const struct cpu_chain *ch, uint32_t row, uint32_t block) {
    tile(ch, row, block, 3, 1);
}

AVX512 static void tile_2x2(const struct cpu_chain *ch, uint32_t row, uint32_t block) {
    tile(ch, row, block, 2, 2);
}

AVX512 static void tile_2x1(const struct cpu_chain *ch, uint32_t row, uint32_t block) {
    tile(ch, row, block, 2, 1);
}

AVX512 static void tile_1x2(const struct cpu_chain *ch, uint32_t row, uint32_t block) {
    tile(ch, row, block, 1, 2);
}

AVX512 static void tile_1x1(const struct cpu_chain *ch, uint32_t row, uint32_t block) {
    tile(ch, row, block, 1, 1);
}

/* The last block of an odd number of them. */
static void chain_last(const struct cpu_chain *ch) {
    struct cpu_chain last = *ch;

    last.w += (ch->n_blocks - 1) * ch->block_stride;
    last.c += (ch->n_blocks - 1) * CPU_LANES;
    last.n_blocks = 1;
    cpu_code_avx2.chain(&last);
}

static void chain(const struct cpu_chain *ch) {
    const uint32_t n_even = ch->n_blocks / 2 * 2;
    uint32_t row = 0;

    for (; row + 4 <= ch->n_rows; row += 4)
        for (uint32_t b = 0; b < n_even; b += 2) tile_4x1(ch, row, b);
    if (ch->n_rows - row == 3) {
        for (uint32_t b = 0; b < n_even; b += 2) tile_3x1(ch, row, b);
    } else if (ch->n_rows - row == 2) {
        uint32_t b = 0;

        for (; b + 4 <= n_even; b += 4) tile_2x2(ch, row, b);
        if (b < n_even) tile_2x1(ch, row, b);
    } else if (ch->n_rows - row == 1) {
        uint32_t b = 0;

        for (; b + 4 <= n_even; b += 4) tile_1x2(ch, row, b);
        if (b < n_even) tile_1x1(ch, row, b);
    }
    if (n_even < ch->n_blocks) chain_last(ch);
}

static void spread(const uint16_t *x, uint32_t n, float *values, uint32_t *exponents,
                   uint8_t *kinds) {
    cpu_code_avx2.spread(x, n, values, exponents, kinds);
}

/* ex2_near of sixteen arguments, in the same order of operations. */
TILE __m512i near(__m512 x) {
    const __m512 magic = _mm512_set1_ps(0x1.8p23f);
    __m512 shifted = _mm512_add_ps(x, magic);
    __m512 f = _mm512_sub_ps(x, _mm512_sub_ps(shifted, magic));
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0x1.44138ap-13f), f, _mm512_set1_ps(0x1.5f0890p-10f));

    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.3b2a54p-7f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c6af6cp-5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebfbe0p-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e430p-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_add_epi32(_mm512_castps_si512(p),
                            _mm512_slli_epi32(_mm512_castps_si512(shifted), 23));
}

AVX512 static void weigh(const float *scores, uint32_t n, float c, float m, uint16_t *out_p) {
    const __m512i border = _mm512_set1_epi32(0x8000 - EX2_MARGIN);
    const __m512i width = _mm512_set1_epi32(2 * EX2_MARGIN);
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        __m512 x =
            _mm512_fmadd_ps(_mm512_loadu_ps(scores + i), _mm512_set1_ps(c), _mm512_set1_ps(-m));
        unsigned inside = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_GE_OQ) &
                          _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LE_OQ);
        unsigned below = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_LT_OQ);
        __m512i bits = near(x);
        __m512i tail = _mm512_sub_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(0xffff)), border);
        unsigned clear = _mm512_cmpgt_epu32_mask(tail, width);
        unsigned unsure = ~((clear & inside) | below) & 0xffff;

        bits = _mm512_maskz_srli_epi32((__mmask16)inside,
                                       _mm512_add_epi32(bits, _mm512_set1_epi32(0x8000)), 16);
        _mm256_storeu_si256((__m256i *)(out_p + i), _mm512_cvtepi32_epi16(bits));
        for (; unsure; unsure &= unsure - 1) {
            float each[LANES];
            int lane = __builtin_ctz(unsure);

            _mm512_storeu_ps(each, x);
            out_p[i + (uint32_t)lane] = ex2_bf16(each[lane]);
        }
    }
    if (i < n) cpu_code_avx2.weigh(scores + i, n - i, c, m, out_p + i);
}

const struct cpu_code cpu_code_avx512 = {
    .name = "AVX-512",
    .spread = spread,
    .chain = chain,
    .weigh = weigh,
    .max = cpu_row_max_avx2,
    .norm = cpu_row_norm_avx2,
    .round = cpu_row_round_avx2,
    .add = cpu_row_add_avx2,
};

#endif
