#include "runtime/cpu_row.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "runtime/num.h"

#define AVX2 __attribute__((target("avx2,fma")))
#define PART static inline __attribute__((always_inline, target("avx2,fma")))

enum { LANES = 8 };

PART __m256 load(const uint16_t *x) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x));

    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* num_to_bf16, in the lower halves. */
PART __m256i round_each(__m256 x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));

    return _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), _mm256_set1_epi32(0x7fff), nan);
}

PART void store(uint16_t *out, __m256i lower) {
    _mm_storeu_si128((__m128i *)out, _mm_packus_epi32(_mm256_castsi256_si128(lower),
                                                      _mm256_extracti128_si256(lower, 1)));
}

/* Sums of adjacent pairs, a's then b's. */
PART __m256 pairs(__m256 a, __m256 b) {
    __m256d sums = _mm256_castps_pd(_mm256_hadd_ps(a, b));

    return _mm256_castpd_ps(_mm256_permute4x64_pd(sums, 0xd8));
}

/* In place, as in cpu_row.c. */
AVX2 static float tree(float *v, uint32_t n) {
    while (n > 1) {
        const uint32_t half = n / 2;
        uint32_t i = 0;

        for (; i + LANES <= half; i += LANES)
            _mm256_storeu_ps(v + i,
                             pairs(_mm256_loadu_ps(v + 2 * i), _mm256_loadu_ps(v + 2 * i + LANES)));
        for (; i < half; i++) v[i] = v[2 * i] + v[2 * i + 1];
        if (n % 2) v[half] = v[n - 1];
        n = half + n % 2;
    }
    return v[0];
}

/* num_max in every lane, all of which start with the first: one number after another would wait. */
AVX2 float cpu_row_max_avx2(const float *x, uint32_t n) {
    __m256 a = _mm256_set1_ps(x[0]), b = a;
    float lanes[LANES], top;
    uint32_t i = 0;

    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        a = _mm256_max_ps(_mm256_loadu_ps(x + i), a);
        b = _mm256_max_ps(_mm256_loadu_ps(x + i + LANES), b);
    }
    _mm256_storeu_ps(lanes, _mm256_max_ps(a, b));
    top = lanes[0];
    for (uint32_t lane = 1; lane < LANES; lane++) top = num_max(top, lanes[lane]);
    for (; i < n; i++) top = num_max(top, x[i]);
    return top;
}

AVX2 void cpu_row_norm_avx2(const uint16_t *x, const uint16_t *w, uint32_t n, float eps,
                            uint32_t run, float *squares, uint16_t *out_y) {
    __m256 r;

    if (run != 1 || n % LANES) {
        cpu_row_norm(x, w, n, eps, run, squares, out_y);
        return;
    }
    for (uint32_t i = 0; i < n; i += LANES)
        _mm256_storeu_ps(squares + i, _mm256_mul_ps(load(x + i), load(x + i)));
    r = _mm256_set1_ps(1.0f / num_sqrt(tree(squares, n) / (float)n + eps));
    for (uint32_t i = 0; i < n; i += LANES) {
        __m256i normal = _mm256_slli_epi32(round_each(_mm256_mul_ps(load(x + i), r)), 16);

        store(out_y + i, round_each(_mm256_mul_ps(load(w + i), _mm256_castsi256_ps(normal))));
    }
}

AVX2 void cpu_row_round_avx2(const float *y, uint32_t n, uint16_t *out) {
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES) store(out + i, round_each(_mm256_loadu_ps(y + i)));
    for (; i < n; i++) out[i] = num_to_bf16(y[i]);
}

AVX2 void cpu_row_add_avx2(uint16_t *x, const float *y, uint32_t n) {
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        __m256i more = _mm256_slli_epi32(round_each(_mm256_loadu_ps(y + i)), 16);

        store(x + i, round_each(_mm256_add_ps(load(x + i), _mm256_castsi256_ps(more))));
    }
    cpu_row_add(x + i, y + i, n - i);
}

#endif
