#include "runtime/cpu_gemm.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "runtime/cpu_row.h"
#include "runtime/ex2.h"

#define AVX2 __attribute__((target("avx2,fma")))
#define TILE static inline __attribute__((always_inline, target("avx2,fma")))
/* A tile's loops must vanish, or its registers become memory. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
/* Now, not in a tree of additions at the end, for which there are no registers. */
#define STAY(x) __asm__("" : "+x"(x))

enum {
    TILE_MAX = 4, /* rows times blocks of a tile: each has a register of scales and one of sums */
    ROWS_MAX = 4,
    FETCH_GROUPS = 4, /* so far ahead weights are asked for: a quarter of a microsecond, one row */
    LINE_WORDS = 16,
};

AVX2 static void spread_group(const uint16_t *x, float *values, uint32_t *exponents,
                              uint8_t *kind) {
    const __m256i limit = _mm256_set1_epi16(CPU_FIELD_MAX << 7);
    __m256i pairs = _mm256_loadu_si256((const __m256i *)x);
    __m256i fields = _mm256_and_si256(pairs, _mm256_set1_epi16(0x7f80));
    __m256i wild = _mm256_subs_epu16(fields, limit);

    _mm256_storeu_ps(values, _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)));
    _mm256_storeu_ps(values + 8, _mm256_castsi256_ps(
                                     _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000))));
    _mm256_storeu_si256((__m256i *)exponents, fields);
    if (!_mm256_testz_si256(wild, wild))
        *kind = CPU_WILD;
    else
        *kind = _mm256_testz_si256(pairs, _mm256_set1_epi16(0x7fff)) ? CPU_ZERO : CPU_PLAIN;
}

AVX2 static void spread(const uint16_t *x, uint32_t n, float *values, uint32_t *exponents,
                        uint8_t *kinds) {
    for (uint32_t i = 0; i < n; i += CPU_GROUP)
        spread_group(x + i, values + i, exponents + i / 2, kinds + i / CPU_GROUP);
}

/* Of the magnitude, not rounded but cut to 24 bits; the sign comes back in. */
TILE __m256 cut(__m256i sum, __m256i magnitude) {
    __m256 rounded = _mm256_cvtepi32_ps(magnitude);
    __m256i excess = _mm256_sub_epi32(magnitude, _mm256_cvttps_epi32(rounded));
    __m256i bits = _mm256_add_epi32(_mm256_castps_si256(rounded), _mm256_srai_epi32(excess, 31));

    return _mm256_castsi256_ps(
        _mm256_or_si256(bits, _mm256_and_si256(sum, _mm256_set1_epi32((int)0x80000000))));
}

TILE __m256i load_pair(const struct cpu_chain *ch, const uint32_t *w, int k, int b) {
    return _mm256_loadu_si256(
        (const __m256i *)(w + (size_t)b * ch->block_stride + (size_t)k * ch->pair_stride));
}

/* Zero times each of these is zero. */
TILE bool tame(const struct cpu_chain *ch, const uint32_t *w, const int n_blocks) {
    __m256i top = _mm256_setzero_si256();

    UNROLL for (int k = 0; k < CPU_PAIRS; k++) {
        UNROLL for (int b = 0; b < n_blocks; b++) {
            __m256i fields = _mm256_and_si256(load_pair(ch, w, k, b), _mm256_set1_epi16(0x7f80));

            top = _mm256_max_epu16(top, fields);
        }
    }
    top = _mm256_subs_epu16(top, _mm256_set1_epi16((short)(CPU_FIELD_MAX << 7)));
    return _mm256_testz_si256(top, top);
}

/* Asks for a group of each block, by a number: past the last weights there is no pointer.  The
 * hardware asks too, but it begins anew at every block and at every page of 4 KiB. */
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
               const int n_blocks) {
    const __m256i field = _mm256_set1_epi32(0x7f800000);
    const __m256i fields = _mm256_set1_epi16(0x7f80);
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    const __m256i e_min = _mm256_set1_epi32((254 - 101) << 23);
    const __m256i e_span = _mm256_set1_epi32((101 + 121) << 23);
    const __m256i w_max = _mm256_set1_epi16((short)(CPU_FIELD_MAX << 7));
    const __m256i magnitude_max = _mm256_set1_epi32(0x7bffffff);
    const int n = n_rows * n_blocks;
    __m256 acc[TILE_MAX];
    float *c[TILE_MAX];
    const float *values[ROWS_MAX];
    const uint32_t *exponents[ROWS_MAX];
    const uint8_t *kinds[ROWS_MAX];

    UNROLL for (int r = 0; r < n_rows; r++) {
        values[r] = ch->values + (row + (size_t)r) * ch->n_k;
        exponents[r] = ch->exponents + (row + (size_t)r) * (ch->n_k / 2);
        kinds[r] = ch->kinds + (row + (size_t)r) * (ch->n_k / CPU_GROUP);
        UNROLL for (int b = 0; b < n_blocks; b++) {
            c[r * n_blocks + b] =
                ch->c + (row + (size_t)r) * ch->c_stride + (block + (size_t)b) * CPU_LANES;
            acc[r * n_blocks + b] = _mm256_loadu_ps(c[r * n_blocks + b]);
        }
    }
    for (uint32_t g = 0; g < ch->n_groups; g++) {
        const uint32_t *w = ch->w + block * ch->block_stride + g * CPU_PAIRS * ch->pair_stride;
        __m256i e[TILE_MAX], e_top = _mm256_setzero_si256(), w_top = _mm256_setzero_si256();
        __m256i sum[TILE_MAX], sum_top = _mm256_setzero_si256(), bad;
        __m256 scale[TILE_MAX];
        unsigned kind = 0;

        if (ch->fetch) fetch(ch, w, g, n_blocks);
        UNROLL for (int r = 0; r < n_rows; r++) kind |= kinds[r][g];
        if (kind == CPU_ZERO && tame(ch, w, n_blocks)) continue;

        UNROLL for (int i = 0; i < n; i++) e[i] = _mm256_setzero_si256();
        UNROLL for (int k = 0; k < CPU_PAIRS; k++) {
            UNROLL for (int b = 0; b < n_blocks; b++) {
                __m256i pair = _mm256_and_si256(fields, load_pair(ch, w, k, b));

                w_top = _mm256_max_epu16(w_top, pair);
                UNROLL for (int r = 0; r < n_rows; r++) {
                    __m256i a = _mm256_set1_epi32((int)exponents[r][g * CPU_PAIRS + (uint32_t)k]);

                    e[r * n_blocks + b] =
                        _mm256_max_epu16(e[r * n_blocks + b], _mm256_add_epi16(pair, a));
                }
            }
        }
        UNROLL for (int i = 0; i < n; i++) {
            __m256i own = _mm256_add_epi32(_mm256_and_si256(_mm256_castps_si256(acc[i]), field),
                                           _mm256_set1_epi32(127 << 23));

            e[i] = _mm256_max_epu32(e[i], _mm256_slli_epi32(e[i], 16));
            e[i] = _mm256_max_epu32(_mm256_and_si256(e[i], upper), own);
            e_top = _mm256_max_epu32(e_top, _mm256_sub_epi32(e[i], e_min));
            /* 2^(25-e); modulo 2^32 it is what it should be. */
            scale[i] =
                _mm256_castsi256_ps(_mm256_sub_epi32(_mm256_set1_epi32((int)(406u << 23)), e[i]));
            sum[i] = _mm256_cvttps_epi32(_mm256_mul_ps(acc[i], scale[i]));
        }
        UNROLL for (int k = 0; k < CPU_PAIRS; k++) {
            UNROLL for (int b = 0; b < n_blocks; b++) {
                __m256i pair = load_pair(ch, w, k, b);
                __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
                __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(pair, upper));

                UNROLL for (int r = 0; r < n_rows; r++) {
                    const float *a = values[r] + g * CPU_GROUP + k;
                    const int i = r * n_blocks + b;
                    __m256 x = _mm256_mul_ps(even, _mm256_broadcast_ss(a));
                    __m256 y = _mm256_mul_ps(odd, _mm256_broadcast_ss(a + 8));
                    __m256i p = _mm256_cvttps_epi32(_mm256_mul_ps(x, scale[i]));
                    __m256i q = _mm256_cvttps_epi32(_mm256_mul_ps(y, scale[i]));

                    sum[i] = _mm256_add_epi32(sum[i], _mm256_add_epi32(p, q));
                    STAY(sum[i]);
                }
            }
        }
        UNROLL for (int i = 0; i < n; i++) {
            /* At most 16 * 255^2 * 2^11 + 2^26, which may leave 32 bits: what is left then is a
             * magnitude of 0x7cff8001 or more. */
            __m256i magnitude = _mm256_abs_epi32(sum[i]);
            __m256 unit = _mm256_castsi256_ps(
                _mm256_sub_epi32(e[i], _mm256_set1_epi32((254 + 25 - 127) << 23)));

            sum_top = _mm256_max_epu32(sum_top, magnitude);
            scale[i] = _mm256_mul_ps(cut(sum[i], magnitude), unit);
        }
        bad = _mm256_subs_epu16(w_top, w_max);
        bad = _mm256_or_si256(
            bad, _mm256_xor_si256(_mm256_max_epu32(sum_top, magnitude_max), magnitude_max));
        bad = _mm256_or_si256(bad, _mm256_xor_si256(_mm256_max_epu32(e_top, e_span), e_span));
        if (__builtin_expect(kind != CPU_PLAIN || !_mm256_testz_si256(bad, bad), 0)) {
            UNROLL for (int i = 0; i < n; i++) _mm256_storeu_ps(c[i], acc[i]);
            cpu_chain_group(ch, g, row, (uint32_t)n_rows, block, (uint32_t)n_blocks);
            UNROLL for (int i = 0; i < n; i++) acc[i] = _mm256_loadu_ps(c[i]);
            continue;
        }
        UNROLL for (int i = 0; i < n; i++) acc[i] = scale[i];
    }
    UNROLL for (int i = 0; i < n; i++) _mm256_storeu_ps(c[i], acc[i]);
}

AVX2 static void tile_4x1(const struct cpu_chain *ch, uint32_t row, uint32_t block) {
    tile(ch, row, block, 4, 1);
}

AVX2 static void tile_3x1(const struct cpu_chain *ch, uint32_t row, uint32_t block) {
    tile(ch, row, block, 3, 1);
}

AVX2 static void tile_2x2(const struct cpu_chain *ch, uint32_t row, uint32_t block) {
    tile(ch, row, block, 2, 2);
}

AVX2 static void tile_2x1(const struct cpu_chain *ch, uint32_t row, uint32_t block) {
    tile(ch, row, block, 2, 1);
}

AVX2 static void tile_1x4(const struct cpu_chain *ch, uint32_t row, uint32_t block) {
    tile(ch, row, block, 1, 4);
}

AVX2 static void tile_1x2(const struct cpu_chain *ch, uint32_t row, uint32_t block) {
    tile(ch, row, block, 1, 2);
}

AVX2 static void tile_1x1(const struct cpu_chain *ch, uint32_t row, uint32_t block) {
    tile(ch, row, block, 1, 1);
}

static void chain(const struct cpu_chain *ch) {
    uint32_t row = 0;

    for (; row + 4 <= ch->n_rows; row += 4)
        for (uint32_t b = 0; b < ch->n_blocks; b++) tile_4x1(ch, row, b);
    if (ch->n_rows - row == 3) {
        for (uint32_t b = 0; b < ch->n_blocks; b++) tile_3x1(ch, row, b);
    } else if (ch->n_rows - row == 2) {
        uint32_t b = 0;

        for (; b + 2 <= ch->n_blocks; b += 2) tile_2x2(ch, row, b);
        if (b < ch->n_blocks) tile_2x1(ch, row, b);
    } else if (ch->n_rows - row == 1) {
        uint32_t b = 0;

        for (; b + 4 <= ch->n_blocks; b += 4) tile_1x4(ch, row, b);
        for (; b + 2 <= ch->n_blocks; b += 2) tile_1x2(ch, row, b);
        if (b < ch->n_blocks) tile_1x1(ch, row, b);
    }
}

/* ex2_near of eight arguments, in the same order of operations. */
TILE __m256i near(__m256 x) {
    const __m256 magic = _mm256_set1_ps(0x1.8p23f);
    __m256 shifted = _mm256_add_ps(x, magic);
    __m256 f = _mm256_sub_ps(x, _mm256_sub_ps(shifted, magic));
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(0x1.44138ap-13f), f, _mm256_set1_ps(0x1.5f0890p-10f));

    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.3b2a54p-7f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.c6af6cp-5f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.ebfbe0p-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.62e430p-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    return _mm256_add_epi32(_mm256_castps_si256(p),
                            _mm256_slli_epi32(_mm256_castps_si256(shifted), 23));
}

AVX2 static void weigh(const float *scores, uint32_t n, float c, float m, uint16_t *out_p) {
    const __m256i border = _mm256_set1_epi32(0x8000 - EX2_MARGIN);
    const __m256i width = _mm256_set1_epi32(2 * EX2_MARGIN);

    for (uint32_t i = 0; i < n; i += CPU_LANES) {
        __m256 x =
            _mm256_fmadd_ps(_mm256_loadu_ps(scores + i), _mm256_set1_ps(c), _mm256_set1_ps(-m));
        __m256 inside = _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_GE_OQ),
                                      _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LE_OQ));
        __m256 below = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_LT_OQ);
        __m256i bits = near(x);
        __m256i tail = _mm256_sub_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0xffff)), border);
        __m256i clear = _mm256_xor_si256(_mm256_cmpeq_epi32(_mm256_max_epu32(tail, width), width),
                                         _mm256_set1_epi32(-1));
        __m256i sure = _mm256_or_si256(_mm256_and_si256(clear, _mm256_castps_si256(inside)),
                                       _mm256_castps_si256(below));
        int unsure = ~_mm256_movemask_ps(_mm256_castsi256_ps(sure)) & 0xff;

        bits = _mm256_and_si256(
            _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x8000)), 16),
            _mm256_castps_si256(inside));
        _mm_storeu_si128(
            (__m128i *)(out_p + i),
            _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)));
        for (; unsure; unsure &= unsure - 1) {
            float each[CPU_LANES];
            int lane = __builtin_ctz((unsigned)unsure);

            _mm256_storeu_ps(each, x);
            out_p[i + (uint32_t)lane] = ex2_bf16(each[lane]);
        }
    }
}

const struct cpu_code cpu_code_avx2 = {
    .name = "AVX2",
    .spread = spread,
    .chain = chain,
    .weigh = weigh,
    .max = cpu_row_max_avx2,
    .norm = cpu_row_norm_avx2,
    .round = cpu_row_round_avx2,
    .add = cpu_row_add_avx2,
};

#endif
