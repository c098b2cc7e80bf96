#include "runtime/mma.h"

#include <stdbool.h>

#include "runtime/assert.h"
#include "runtime/num.h"

enum {
    EXPONENT_FLOOR = -133, /* of the alignment; seen on the card, SPEC 2.2 */
    FRACTION_BITS = 25,    /* kept below the largest exponent */
    N_ADDENDS = MMA_K + 1,
};

/* A finite number: significand * 2^(exponent - fraction), the fraction known to the caller. */
struct part {
    int64_t significand; /* signed */
    int exponent;
};

struct sum {
    struct part parts[N_ADDENDS]; /* nonzero addends, with FRACTION_BITS below the exponent */
    int n_parts;
    int exponent_max;
    bool nan, up, down; /* a NaN, +infinity or -infinity among the addends */
};

static void add_infinity(struct sum *s, bool negative) {
    if (negative)
        s->down = true;
    else
        s->up = true;
}

static void add_part(struct sum *s, int64_t significand, int exponent, int fraction_bits) {
    if (significand == 0) return;
    s->parts[s->n_parts++] =
        (struct part){significand * (1 << (FRACTION_BITS - fraction_bits)), exponent};
    if (exponent > s->exponent_max) s->exponent_max = exponent;
}

static void add_accumulator(struct sum *s, float c) {
    uint32_t bits = num_bits(c);
    int exponent = (int)(bits >> 23 & 0xff);
    int64_t significand = bits & 0x7fffff;

    if (exponent == 0xff) {
        if (significand)
            s->nan = true;
        else
            add_infinity(s, bits >> 31);
        return;
    }
    /* A subnormal has the least exponent and a significand below 1. */
    if (exponent)
        significand |= 0x800000;
    else
        exponent = 1;
    add_part(s, bits >> 31 ? -significand : significand, exponent - 127, 23);
}

static void add_product(struct sum *s, uint16_t a, uint16_t b) {
    int exponent_a = a >> 7 & 0xff, exponent_b = b >> 7 & 0xff;
    int significand_a = a & 0x7f, significand_b = b & 0x7f;
    bool negative = (a ^ b) >> 15;

    if (exponent_a == 0xff || exponent_b == 0xff) {
        bool nan_a = exponent_a == 0xff && significand_a;
        bool nan_b = exponent_b == 0xff && significand_b;
        bool zero = !(a & 0x7fff) || !(b & 0x7fff);

        if (nan_a || nan_b || zero)
            s->nan = true;
        else
            add_infinity(s, negative);
        return;
    }
    if (exponent_a)
        significand_a |= 0x80;
    else
        exponent_a = 1;
    if (exponent_b)
        significand_b |= 0x80;
    else
        exponent_b = 1;
    significand_a *= significand_b;
    add_part(s, negative ? -significand_a : significand_a, exponent_a + exponent_b - 254, 14);
}

/* total * 2^unit toward zero, to 24 bits or to a multiple of 2^-149. */
static float truncated(int64_t total, int unit) {
    uint64_t magnitude = (uint64_t)(total < 0 ? -total : total);
    uint32_t sign = total < 0 ? 0x80000000u : 0;
    int drop;

    if (magnitude == 0) return 0.0f;
    drop = 64 - __builtin_clzll(magnitude) - 24;
    if (drop < -149 - unit) drop = -149 - unit;
    /* To the left it loses nothing. */
    magnitude = drop > 40 ? 0 : drop >= 0 ? magnitude >> drop : magnitude << -drop;
    unit += drop;
    if (magnitude == 0) return 0.0f; /* +0 where a sum is truncated to nothing, too */
    if (magnitude < 0x800000) return num_from_bits(sign | (uint32_t)magnitude);
    if (unit + 150 > 254) return num_from_bits(sign | 0x7f800000);
    return num_from_bits(sign | (uint32_t)(unit + 150) << 23 | (uint32_t)(magnitude & 0x7fffff));
}

float mma_step(float c, const uint16_t a[MMA_K], const uint16_t b[MMA_K]) {
    struct sum s = {.exponent_max = EXPONENT_FLOOR};
    int64_t total = 0;

    add_accumulator(&s, c);
    for (int i = 0; i < MMA_K; i++) add_product(&s, a[i], b[i]);
    if (s.nan || (s.up && s.down)) return NUM_NAN;
    if (s.up || s.down) return s.up ? NUM_INFINITY : -NUM_INFINITY;

    for (int i = 0; i < s.n_parts; i++) {
        int shift = s.exponent_max - s.parts[i].exponent;
        int64_t magnitude = s.parts[i].significand;

        if (shift > 40) continue;
        /* Toward zero: of the magnitude, not of two's complement. */
        total += magnitude < 0 ? -(-magnitude >> shift) : magnitude >> shift;
    }
    return truncated(total, s.exponent_max - FRACTION_BITS);
}

float mma_chain(float c, const uint16_t *a, const uint16_t *b, uint32_t n) {
    ASSERT(n % MMA_K == 0);
    for (uint32_t i = 0; i < n; i += MMA_K) c = mma_step(c, a + i, b + i);
    return c;
}
