#include "runtime/sample_row.h"

#include <stddef.h>

#if defined(__x86_64__)

#include <immintrin.h>

#include "runtime/num.h"

/* Eight ids a vector; what is left of a row goes through the portable version.  Each operation of
 * num.h on a float is one instruction of the same rounding on eight. */
#define AVX2 __attribute__((target("avx2,fma")))

/* Each pass ends in _mm256_zeroupper: gcc adds it by itself from -O2 on alone, and without it
 * whatever SSE code runs next is several times slower. */

enum { LANES = 8 };

/* The second operand is the result where one is NaN. */
AVX2 static inline __m256 numbers(const float *logits) {
    return _mm256_max_ps(_mm256_loadu_ps(logits), _mm256_set1_ps(-NUM_INFINITY));
}

AVX2 static float row_max(const float *logits, uint32_t n) {
    __m256 m0 = _mm256_set1_ps(-NUM_INFINITY), m1 = m0, m2 = m0, m3 = m0;
    float lanes[LANES], m;
    uint32_t i = 0;

    /* Four, because a maximum takes four cycles. */
    for (; n - i >= 4 * LANES; i += 4 * LANES) {
        m0 = _mm256_max_ps(_mm256_loadu_ps(logits + i), m0);
        m1 = _mm256_max_ps(_mm256_loadu_ps(logits + i + LANES), m1);
        m2 = _mm256_max_ps(_mm256_loadu_ps(logits + i + 2 * LANES), m2);
        m3 = _mm256_max_ps(_mm256_loadu_ps(logits + i + 3 * LANES), m3);
    }
    _mm256_storeu_ps(lanes, _mm256_max_ps(_mm256_max_ps(m0, m1), _mm256_max_ps(m2, m3)));
    _mm256_zeroupper();
    m = sample_row_portable.max(logits + i, n - i);
    for (i = 0; i < LANES; i++) m = num_max(m, lanes[i]);
    return m;
}

AVX2 static uint32_t row_find(const float *logits, uint32_t from, uint32_t n, float least) {
    __m256 bound = _mm256_set1_ps(least);

    for (; n - from >= LANES; from += LANES) {
        int mask = _mm256_movemask_ps(_mm256_cmp_ps(numbers(logits + from), bound, _CMP_GE_OQ));

        if (mask) {
            from += (uint32_t)__builtin_ctz((unsigned)mask);
            _mm256_zeroupper();
            return from;
        }
    }
    _mm256_zeroupper();
    return sample_row_portable.find(logits, from, n, least);
}

AVX2 static uint32_t row_gather(const float *logits, uint32_t n, float least, uint32_t *ids) {
    __m256 bound = _mm256_set1_ps(least);
    uint32_t n_ids = 0, i = 0;

    for (; n - i >= LANES; i += LANES) {
        __m256 reached = _mm256_cmp_ps(numbers(logits + i), bound, _CMP_GE_OQ);
        unsigned mask = (unsigned)_mm256_movemask_ps(reached);

        for (; mask; mask &= mask - 1) ids[n_ids++] = i + (uint32_t)__builtin_ctz(mask);
    }
    _mm256_zeroupper();
    for (; (i = sample_row_portable.find(logits, i, n, least)) < n; i++) ids[n_ids++] = i;
    return n_ids;
}

AVX2 static inline __m256 pow2(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* num_exp2. */
AVX2 static inline __m256 exp2p(__m256 x) {
    const __m256 magic = _mm256_set1_ps(0x1.8p23f);
    __m256 shifted = _mm256_add_ps(x, magic), f, p;
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x4b400000));
    __m256i low = _mm256_srai_epi32(_mm256_add_epi32(n, _mm256_srli_epi32(n, 31)), 1);

    f = _mm256_sub_ps(x, _mm256_sub_ps(shifted, magic));
    p = _mm256_fmadd_ps(_mm256_set1_ps(0x1.44138ap-13f), f, _mm256_set1_ps(0x1.5f0890p-10f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.3b2a54p-7f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.c6af6cp-5f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.ebfbe0p-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.62e430p-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    p = _mm256_mul_ps(_mm256_mul_ps(p, pow2(low)), pow2(_mm256_sub_epi32(n, low)));

    p = _mm256_blendv_ps(p, _mm256_set1_ps(NUM_INFINITY),
                         _mm256_cmp_ps(x, _mm256_set1_ps(128.0f), _CMP_GE_OQ));
    p = _mm256_blendv_ps(p, _mm256_setzero_ps(),
                         _mm256_cmp_ps(x, _mm256_set1_ps(-150.0f), _CMP_LE_OQ));
    return _mm256_blendv_ps(p, _mm256_set1_ps(NUM_NAN), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/* hadd adds adjacent pairs within each half of its operands: two levels of the tree over four
 * vectors, then their halves for the third, leave the sums of the four in order. */
AVX2 static inline __m128 sum4(const __m256 v[4]) {
    __m256 h = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));

    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

AVX2 static float row_chunk_sum(const float *logits, float exponent) {
    __m256 log2e = _mm256_set1_ps(NUM_LOG2E), minus = _mm256_set1_ps(-exponent);
    __m128 sums[SAMPLE_CHUNK / 32], s;

    for (int i = 0; i < SAMPLE_CHUNK / 32; i++) {
        __m256 v[4];

        for (int j = 0; j < 4; j++, logits += LANES)
            v[j] = exp2p(_mm256_fmadd_ps(_mm256_loadu_ps(logits), log2e, minus));
        sums[i] = sum4(v);
    }
    _mm256_zeroupper();
    s = _mm_hadd_ps(_mm_hadd_ps(sums[0], sums[1]), _mm_hadd_ps(sums[2], sums[3]));
    s = _mm_hadd_ps(s, s);
    return _mm_cvtss_f32(_mm_hadd_ps(s, s));
}

AVX2 static void row_weigh(const float *logits, uint32_t n, float temperature, float z_first,
                           float *e) {
    __m256 t = _mm256_set1_ps(temperature), z0 = _mm256_set1_ps(z_first);
    __m256 log2e = _mm256_set1_ps(NUM_LOG2E);
    uint32_t i = 0;

    for (; n - i >= LANES; i += LANES) {
        __m256 z = _mm256_div_ps(numbers(logits + i), t);

        _mm256_storeu_ps(e + i, exp2p(_mm256_mul_ps(_mm256_sub_ps(z, z0), log2e)));
    }
    _mm256_zeroupper();
    sample_row_portable.weigh(logits + i, n - i, temperature, z_first, e + i);
}

/* floor(e * 2^40) of four: 24 bits of significand at 2^17 for an exponent of 0, and shifted down
 * by as much as the exponent is below.  (A subnormal e shifts by more than 64, which gives 0.) */
AVX2 static inline __m256i weight4(__m128i e) {
    __m128i one = _mm_set1_epi32(0x800000);
    __m256i bits =
        _mm256_cvtepu32_epi64(_mm_or_si128(_mm_and_si128(e, _mm_set1_epi32(0x7fffff)), one));
    __m256i down = _mm256_cvtepu32_epi64(_mm_sub_epi32(_mm_set1_epi32(127), _mm_srli_epi32(e, 23)));

    return _mm256_srlv_epi64(_mm256_slli_epi64(bits, 17), down);
}

AVX2 static uint64_t row_total(const float *e, uint32_t n) {
    __m256i sum = _mm256_setzero_si256();
    uint64_t lanes[4];
    uint32_t i = 0;

    for (; n - i >= 4; i += 4)
        sum = _mm256_add_epi64(sum, weight4(_mm_castps_si128(_mm_loadu_ps(e + i))));
    _mm256_storeu_si256((__m256i *)lanes, sum);
    _mm256_zeroupper();
    return lanes[0] + lanes[1] + lanes[2] + lanes[3] + sample_row_portable.total(e + i, n - i);
}

AVX2 static void row_drop(const float *logits, uint32_t n, float least, float min_p, float *e) {
    __m256 bound = _mm256_set1_ps(least), e_least = _mm256_set1_ps(min_p);
    uint32_t i = 0;

    for (; n - i >= LANES; i += LANES) {
        __m256 old = _mm256_loadu_ps(e + i);
        __m256 kept = _mm256_and_ps(_mm256_cmp_ps(numbers(logits + i), bound, _CMP_GE_OQ),
                                    _mm256_cmp_ps(old, e_least, _CMP_GE_OQ));

        _mm256_storeu_ps(e + i, _mm256_and_ps(old, kept));
    }
    _mm256_zeroupper();
    sample_row_portable.drop(logits + i, n - i, least, min_p, e + i);
}

/* The low and high halves of a 32 bit product. */
AVX2 static inline void multiply(__m256i a, __m256i b, __m256i *low, __m256i *high) {
    __m256i even = _mm256_mul_epu32(a, b), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);

    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

/* num_random of the 32 tokens from `id` on, a multiple of 4. */
AVX2 static void random_block(uint64_t seed, uint32_t position, uint32_t id, uint32_t words[]) {
    const __m256i left = _mm256_set1_epi32((int)0xd2511f53u);
    const __m256i right = _mm256_set1_epi32((int)0xcd9e8d57u);
    __m256i w0 = _mm256_add_epi32(_mm256_set1_epi32((int)(id / 4)),
                                  _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i w1 = _mm256_set1_epi32((int)position), w2 = _mm256_setzero_si256(), w3 = w2;
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    __m256i a, b, c, d, *out = (__m256i *)words;

    for (int round = 0; round < 10; round++) {
        __m256i left_low, left_high, right_low, right_high;

        multiply(w0, left, &left_low, &left_high);
        multiply(w2, right, &right_low, &right_high);
        w0 = _mm256_xor_si256(_mm256_xor_si256(right_high, w1), _mm256_set1_epi32((int)key0));
        w1 = right_low;
        w2 = _mm256_xor_si256(_mm256_xor_si256(left_high, w3), _mm256_set1_epi32((int)key1));
        w3 = left_low;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }

    /* Lane i holds the four words of counter i: they go side by side. */
    a = _mm256_unpacklo_epi32(w0, w1);
    b = _mm256_unpackhi_epi32(w0, w1);
    c = _mm256_unpacklo_epi32(w2, w3);
    d = _mm256_unpackhi_epi32(w2, w3);
    w0 = _mm256_unpacklo_epi64(a, c); /* counters 0 and 4 */
    w1 = _mm256_unpackhi_epi64(a, c); /* 1 and 5 */
    w2 = _mm256_unpacklo_epi64(b, d);
    w3 = _mm256_unpackhi_epi64(b, d);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(w0, w1, 0x20));
    _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(w2, w3, 0x20));
    _mm256_storeu_si256(out + 2, _mm256_permute2x128_si256(w0, w1, 0x31));
    _mm256_storeu_si256(out + 3, _mm256_permute2x128_si256(w2, w3, 0x31));
}

/* Bit i: whether e[i] * half reaches what its word, or any word, needs to win. */
AVX2 static inline unsigned contenders(const float *e, const uint32_t *words, float half) {
    __m256 reach = _mm256_mul_ps(_mm256_loadu_ps(e), _mm256_set1_ps(half));
    __m256 need = _mm256_set1_ps(0.25f);

    if (words) {
        __m256i word = _mm256_srli_epi32(_mm256_loadu_si256((const __m256i *)words), 1);

        need = _mm256_max_ps(need, _mm256_cvtepi32_ps(word));
    }
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(reach, need, _CMP_GE_OQ));
}

AVX2 static void row_run(const float *e, uint32_t n, struct sample_race *race) {
    uint32_t words[SAMPLE_BLOCK], id = 0;

    for (; n - id >= SAMPLE_BLOCK; id += SAMPLE_BLOCK) {
        unsigned any = 0;

        for (uint32_t i = 0; i < SAMPLE_BLOCK; i += LANES)
            any |= contenders(e + id + i, NULL, race->half);
        if (!any) continue;
        random_block(race->seed, race->position, id, words);
        for (uint32_t i = 0; i < SAMPLE_BLOCK; i += LANES) {
            unsigned mask = contenders(e + id + i, words + i, race->half);

            for (; mask; mask &= mask - 1) {
                uint32_t at = i + (uint32_t)__builtin_ctz(mask);

                sample_race_id(race, id + at, words[at], e[id + at]);
            }
        }
    }
    _mm256_zeroupper();
    for (; id < n; id++)
        if (e[id] * race->half >= 0.25f)
            sample_race_id(race, id, num_random(race->seed, race->position, id), e[id]);
}

static const struct sample_row avx2 = {
    .max = row_max,
    .find = row_find,
    .gather = row_gather,
    .chunk_sum = row_chunk_sum,
    .weigh = row_weigh,
    .total = row_total,
    .drop = row_drop,
    .run = row_run,
};

const struct sample_row *sample_row_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &avx2 : NULL;
}

#else

const struct sample_row *sample_row_avx2(void) {
    return NULL;
}

#endif
