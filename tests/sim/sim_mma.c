#include "tests/sim/sim_impl.h"

#include <string.h>

#include "runtime/mma.h"
#include "runtime/num.h"

/* A tile in one step, LANES sums at a time; and one value in so many by mma_step, too, which says
 * what a step is. */
enum {
    FRACTION_BITS = 25,    /* of SPEC 2.2: kept below the largest exponent */
    EXPONENT_FLOOR = -133, /* which is at least this */
    PRODUCT_BITS = 14,     /* below the exponent of a product */
    SUM_BITS = 23,         /* of a float */
    NO_EXPONENT = -4096,   /* of zeros: below the floor beside any other */
    LANES = 8,
    ASKED_ONE_IN = 61,
};

typedef int32_t lanes __attribute__((vector_size(LANES * sizeof(int32_t))));

/* LANES rows of a, or columns of b, with K outside. */
struct columns {
    lanes significands[MMA_K], exponents[MMA_K];
    uint32_t infinite, nan; /* those with such a value, a bit each */
};

/* What these functions are made into twice: for every processor, and for those with AVX2. */
#define INLINE static inline __attribute__((always_inline))

/* Lanes where a comparison holds, else others. */
#define CHOSEN(where, a, b) (((a) & (where)) | ((b) & ~(where)))

static void take_apart(struct columns *c, const uint16_t x[LANES][MMA_K]) {
    c->infinite = c->nan = 0;
    for (uint32_t k = 0; k < MMA_K; k++)
        for (uint32_t i = 0; i < LANES; i++) {
            const int32_t field = x[i][k] >> 7 & 0xff;
            const int32_t significand = (x[i][k] & 0x7f) | (field ? 0x80 : 0);

            c->infinite |= (uint32_t)((x[i][k] & 0x7fff) == 0x7f80) << i;
            c->nan |= (uint32_t)((x[i][k] & 0x7fff) > 0x7f80) << i;
            c->significands[k][i] = x[i][k] >> 15 ? -significand : significand;
            c->exponents[k][i] = significand ? (field ? field : 1) - 127 : NO_EXPONENT;
        }
}

static bool has(uint32_t bits, uint32_t i) {
    return bits >> i % LANES & 1;
}

/* total * 2^unit toward zero, to 24 bits or to a multiple of 2^-149: below 2^32, finite, and -0
 * never. */
INLINE float cut(int64_t total, int unit) {
    const uint32_t sign = total < 0 ? 0x80000000u : 0;
    uint64_t magnitude = (uint64_t)(total < 0 ? -total : total);
    int drop = 64 - __builtin_clzll(magnitude | 1) - 24;

    if (drop < -149 - unit) drop = -149 - unit;
    if (drop > 40) return 0.0f;
    magnitude = drop >= 0 ? magnitude >> drop : magnitude << -drop;
    unit += drop + 150;
    if (magnitude == 0) return 0.0f;
    if (magnitude < 0x800000) return num_from_bits(sign | (uint32_t)magnitude);
    if (unit > 254) return num_from_bits(sign | 0x7f800000);
    return num_from_bits(sign | (uint32_t)unit << 23 | ((uint32_t)magnitude & 0x7fffff));
}

/* LANES sums of one row: lane `row` of a, all of b. */
INLINE void sums_of_row(float *c, const struct columns *a, uint32_t row, const struct columns *b) {
    lanes bits, field, significands, top, sum = {0}, shift;

    memcpy(&bits, c, sizeof(bits));
    field = bits >> 23 & 0xff;
    significands = (bits & 0x7fffff) | ((field != 0) & 0x800000);
    field = CHOSEN(field == 0, (lanes){0} + 1, field) - 127;
    top =
        CHOSEN((significands != 0) & (field > EXPONENT_FLOOR), field, (lanes){0} + EXPONENT_FLOOR);
    for (uint32_t k = 0; k < MMA_K; k++) {
        const lanes e = a->exponents[k][row] + b->exponents[k];

        top = CHOSEN(e > top, e, top);
    }
    for (uint32_t k = 0; k < MMA_K; k++) {
        const lanes product = a->significands[k][row] * b->significands[k], sign = product >> 31;
        /* Below 2^27, so that 16 are below 2^31, and a shift by 31 leaves nothing. */
        const lanes magnitude = ((product ^ sign) - sign) << (FRACTION_BITS - PRODUCT_BITS);

        shift = top - a->exponents[k][row] - b->exponents[k];
        sum += ((magnitude >> CHOSEN(shift < 31, shift, (lanes){0} + 31)) ^ sign) - sign;
    }
    shift = CHOSEN(top - field < 31, top - field, (lanes){0} + 31);
    significands = significands << (FRACTION_BITS - SUM_BITS) >> shift;
    for (uint32_t i = 0; i < LANES; i++) {
        const int64_t own = bits[i] < 0 ? -(int64_t)significands[i] : significands[i];

        if ((bits[i] & 0x7f800000) != 0x7f800000)
            c[i] = cut(sum[i] + own, top[i] - FRACTION_BITS);
        else if (bits[i] & 0x7fffff)
            c[i] = NUM_NAN;
    }
}

INLINE void all_sums(float *c, const struct columns *a, uint32_t n_rows, const struct columns *b,
                     uint32_t n) {
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < n; i += LANES)
            sums_of_row(c + r * n + i, &a[r / LANES], r % LANES, &b[i / LANES]);
}

static void all_sums_plain(float *c, const struct columns *a, uint32_t n_rows,
                           const struct columns *b, uint32_t n) {
    all_sums(c, a, n_rows, b, n);
}

#ifdef __x86_64__
__attribute__((target("avx2,bmi,lzcnt"))) static void
all_sums_avx2(float *c, const struct columns *a, uint32_t n_rows, const struct columns *b,
              uint32_t n) {
    all_sums(c, a, n_rows, b, n);
}

static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("lzcnt");
}
#else
#define all_sums_avx2 all_sums_plain

static bool has_avx2(void) {
    return false;
}
#endif

void sim_step(float *c, const uint16_t (*a)[MMA_K], uint32_t n_rows, const uint16_t (*b)[MMA_K],
              uint32_t n) {
    static struct columns rows[64 / LANES], columns[256 / LANES];
    static float before[64 * 256];
    static uint32_t n_made;

    memcpy(before, c, n_rows * n * sizeof(*c));
    for (uint32_t r = 0; r < n_rows; r += LANES) take_apart(&rows[r / LANES], a + r);
    for (uint32_t i = 0; i < n; i += LANES) take_apart(&columns[i / LANES], b + i);
    (has_avx2() ? all_sums_avx2 : all_sums_plain)(c, rows, n_rows, columns, n);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < n; i++) {
            const struct columns *x = &rows[r / LANES], *y = &columns[i / LANES];
            const bool nan = has(x->nan, r) || has(y->nan, i);
            const bool infinite = has(x->infinite, r) || has(y->infinite, i);
            const bool asked = ++n_made % ASKED_ONE_IN == 0;
            float *sum = c + r * n + i, by_step;

            if (nan) *sum = NUM_NAN;
            if (!asked && (nan || !infinite)) continue;
            by_step = mma_step(before[r * n + i], a[r], b[i]);
            if ((nan || !infinite) && num_bits(*sum) != num_bits(by_step))
                sim_fail("not what mma_step makes, value", r * n + i);
            *sum = by_step;
        }
}
