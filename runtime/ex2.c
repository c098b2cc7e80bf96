#include "runtime/ex2.h"

#include "runtime/num.h"

/* runtime/ex2_sm90.bin: 2 bits an entry, its distance from the rounded value plus 2. */
extern const uint8_t _binary_ex2_sm90_bin_start[];

/* 2^r for |r| <= 1/2 in binary64, within 2 units in the last place: the series of e^(r ln 2). */
static double power(double r) {
    static const double inverse[] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0,
                                     1.0 / 3628800.0,    1.0 / 362880.0,    1.0 / 40320.0,
                                     1.0 / 5040.0,       1.0 / 720.0,       1.0 / 120.0,
                                     1.0 / 24.0,         1.0 / 6.0,         1.0 / 2.0};
    double z = r * 0x1.62e42fefa39efp-1;
    double p = inverse[0];

    for (int i = 1; i < 12; i++) p = p * z + inverse[i];
    return 1.0 + (z + z * z * p);
}

/* The entry's value, 2^(-2 + i / 2^23) as the hardware has it. */
static uint32_t table(uint32_t i) {
    double f = (double)i * 0x1p-23;
    float rounded = (float)(f <= 0.5 ? 0.25 * power(f) : 0.5 * power(f - 1.0));
    uint32_t code = (uint32_t)_binary_ex2_sm90_bin_start[i / 4] >> 2 * (i % 4) & 3;

    return num_bits(rounded) + code - 2;
}

float ex2_exact(float x) {
    int32_t fixed, n;

    if (x != x || x > 0.0f) return NUM_NAN;
    if (x < -126.0f) return 0.0f;
    /* |x| truncated to a multiple of 2^-23; the product is exact. */
    fixed = -(int32_t)(-x * 0x1p23f);
    n = fixed >> 23; /* floor */
    return num_from_bits(table((uint32_t)fixed & 0x7fffff) + ((uint32_t)(n + 2) << 23));
}

float ex2_near(float x) {
    return num_exp2_plain(x);
}

uint16_t ex2_bf16(float x) {
    uint32_t bits, tail;

    if (!(x >= -126.0f && x <= 0.0f)) return num_to_bf16(ex2_exact(x));
    bits = num_bits(ex2_near(x));
    tail = bits & 0xffff;
    if (tail - (0x8000 - EX2_MARGIN) <= 2 * EX2_MARGIN) return num_to_bf16(ex2_exact(x));
    return (uint16_t)((bits + 0x8000) >> 16);
}
