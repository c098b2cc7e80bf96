#include "runtime/rope.h"

#include <string.h>

#include "runtime/assert.h"
#include "runtime/model.h"

#define LN2 0x1.62e42fefa39efp-1
#define TWO_PI 0x1.921fb54442d18p+2
#define TWO_OVER_PI 0x1.45f306dc9c883p-1
/* pi / 2 in three pieces of 33 bits or less: up to 2^20 quarters, the first products are exact. */
#define HALF_PI_1 0x1.921fb544p+0
#define HALF_PI_2 0x1.0b4611a6p-34
#define HALF_PI_3 0x1.3198a2e037073p-69
#define ROUND 0x1.8p52 /* added and taken away again, it leaves an integer */

/* The logarithm to base 2 of a normal x > 0: 2 artanh((m - 1) / (m + 1)) as a series. */
static double log2_of(double x) {
    uint64_t bits, up;
    double s, z, p = 1.0 / 25.0;

    memcpy(&bits, &x, sizeof(bits));
    /* x = 2^n m with m in sqrt(1/2) .. sqrt(2). */
    up = (bits - 0x3fe6a09e667f3bcdull + (2048ull << 52)) >> 52;
    bits = bits - (up << 52) + (2048ull << 52);
    memcpy(&x, &bits, sizeof(x));
    s = (x - 1.0) / (x + 1.0);
    z = s * s;
    for (int k = 23; k >= 1; k -= 2) p = p * z + 1.0 / k;
    return (double)up - 2048.0 + 2.0 * s * p / LN2;
}

/* 2 to the x for -1000 < x < 1000: e^(r ln 2) as a series, |r| <= 1/2. */
static double exp2_of(double x) {
    double n = x + ROUND - ROUND;
    double z = (x - n) * LN2, p = 1.0, power;
    uint64_t bits = (uint64_t)(int64_t)(n + 1023.0) << 52;

    for (int k = 15; k >= 1; k--) p = p * z / k + 1.0;
    memcpy(&power, &bits, sizeof(power));
    return p * power;
}

/* The cosine and sine of 0 <= angle < 2^20, within a unit or two in the last place. */
static void circle(double angle, double *out_cos, double *out_sin) {
    double n = angle * TWO_OVER_PI + ROUND - ROUND;
    double r = angle - n * HALF_PI_1 - n * HALF_PI_2 - n * HALF_PI_3;
    double z = r * r, c = 1.0, s = 1.0;

    for (int k = 20; k >= 2; k -= 2) c = 1.0 - c * z / (k * (k - 1));
    for (int k = 21; k >= 3; k -= 2) s = 1.0 - s * z / (k * (k - 1));
    s = s * r;
    switch ((uint32_t)n & 3) {
    case 0:
        *out_cos = c, *out_sin = s;
        break;
    case 1:
        *out_cos = -s, *out_sin = c;
        break;
    case 2:
        *out_cos = -c, *out_sin = -s;
        break;
    default:
        *out_cos = s, *out_sin = -c;
        break;
    }
}

/* To nearest, ties to even, in one rounding.  |x| is 0 or far above the subnormals. */
static uint16_t to_bf16(double x) {
    uint64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    if (bits << 1 == 0) return 0;
    bits += (1ull << 44) - 1 + (bits >> 45 & 1);
    ASSERT((bits >> 52 & 0x7ff) > 1023 - 126 && (bits >> 52 & 0x7ff) < 1023 + 127);
    return (uint16_t)(bits >> 63 << 15 | ((bits >> 45 & 0x3ffff) - (896ull << 7)));
}

/* Short waves stay, long ones are stretched, those between are mixed. */
static double scale_llama3(const struct model *m, double f) {
    double wave = TWO_PI / f, context = m->rope_context_old;
    double mix;

    if (wave < context / m->rope_high_freq) return f;
    if (wave > context / m->rope_low_freq) return f / m->rope_factor;
    mix = (context / wave - m->rope_low_freq) / (m->rope_high_freq - m->rope_low_freq);
    return (1.0 - mix) * f / m->rope_factor + mix * f;
}

float rope_frequency(const struct model *m, uint32_t i) {
    double f = exp2_of(-(2.0 * i / m->head_dim) * log2_of(m->rope_theta));

    switch (m->rope) {
    case MODEL_ROPE_DEFAULT:
        break;
    case MODEL_ROPE_LINEAR:
        f = f / m->rope_factor;
        break;
    case MODEL_ROPE_LLAMA3:
        f = scale_llama3(m, f);
        break;
    }
    return (float)f;
}

void rope_tables(const struct model *m, uint32_t n_positions, uint16_t *out_cos,
                 uint16_t *out_sin) {
    const uint32_t n = m->head_dim / 2;

    ASSERT(n_positions <= MODEL_CONTEXT_MAX);
    for (uint32_t i = 0; i < n; i++) {
        const float f = rope_frequency(m, i);

        for (uint32_t position = 0; position < n_positions; position++) {
            float angle = (float)position * f; /* in binary32, as told */
            double c, s;

            circle((double)angle, &c, &s);
            out_cos[(size_t)position * n + i] = to_bf16(c);
            out_sin[(size_t)position * n + i] = to_bf16(s);
        }
    }
}
