#include "runtime/cost.h"

#include "runtime/assert.h"

enum {
    WEIGHT = 8,       /* a measurement's part of the mean is one in so many */
    OUTLIER = 2,      /* times the mean: a measurement counts as no more */
    WINDOW_STEP = 64, /* rows of windows that take about a step, before any was seen */
};

static const float margin = 0.99f, flips_before = 0.003f, flip_weight = 0.01f;

struct cost cost_start(void) {
    return (struct cost){.flips = flips_before};
}

static uint32_t bucket_of(uint32_t n_rows) {
    uint32_t b = 0;

    ASSERT(n_rows > 0);
    while (b + 1 < COST_BUCKETS && n_rows > 1u << b) b++;
    return b;
}

/* A moving mean.  One step that something held up does not turn it over. */
static float mean(float before, float x) {
    if (before == 0) return x;
    if (x > OUTLIER * before) x = OUTLIER * before;
    return before + (x - before) / WEIGHT;
}

void cost_step(struct cost *c, bool canonical, uint32_t n_rows, float us) {
    struct cost_kind *kind = canonical ? &c->canonical : &c->tuned;
    const uint32_t b = bucket_of(n_rows);

    kind->us[b] = mean(kind->us[b], us);
    kind->seen[b] = c->n_decisions;
}

/* Of a step of so many rows, from its own bucket or the nearest below, then above. */
static float look_up(const struct cost_kind *kind, uint32_t n_rows) {
    const uint32_t own = bucket_of(n_rows);

    for (uint32_t b = own + 1; b-- > 0;)
        if (kind->us[b] > 0) return kind->us[b];
    for (uint32_t b = own + 1; b < COST_BUCKETS; b++)
        if (kind->us[b] > 0) return kind->us[b];
    return 0;
}

void cost_windows(struct cost *c, uint32_t n_rows, uint32_t n_window, float us) {
    const float without = n_rows ? look_up(&c->canonical, n_rows) : 0;
    float extra = us - without;

    ASSERT(n_window > 0);
    if (n_rows && without == 0) return; /* what is the windows' share is not known */
    if (extra < 0) extra = 0;
    c->window_row_us = mean(c->window_row_us, extra / (float)n_window);
}

void cost_verdict(struct cost *c, uint32_t n_judged, bool wrong) {
    for (uint32_t i = 0; i < n_judged; i++) {
        const float x = wrong && i + 1 == n_judged ? 1.0f : 0.0f;

        c->flips += (x - c->flips) * flip_weight;
    }
}

float cost_of_canonical(const struct cost *c, uint32_t n_rows) {
    return look_up(&c->canonical, n_rows);
}

float cost_of_tuned(const struct cost *c, uint32_t n_rows, uint32_t n_deterministic,
                    uint32_t window) {
    const float step = look_up(&c->tuned, n_rows), w = window > 1 ? (float)window : 2.0f;
    const float row = c->window_row_us > 0 ? c->window_row_us : step / WINDOW_STEP;
    const float again = c->flips * (w - 1) / 2 * (step / (float)n_rows + row);

    return step == 0 ? 0 : step + (float)n_deterministic * (row * w / (w - 1) + again);
}

/* The other kind was not measured for long, in steps of this size. */
static bool forgotten(const struct cost *c, const struct cost_kind *kind, uint32_t n_rows,
                      uint32_t n_since) {
    const uint32_t b = bucket_of(n_rows);

    return kind->us[b] == 0 || c->n_decisions - kind->seen[b] >= n_since;
}

bool cost_tuned_pays(struct cost *c, uint32_t n_rows, uint32_t n_deterministic, uint32_t window) {
    const float canonical = cost_of_canonical(c, n_rows);
    const float tuned = cost_of_tuned(c, n_rows, n_deterministic, window);
    const bool pays = tuned > 0 && (canonical == 0 || tuned < canonical * margin);

    c->n_decisions++;
    if (pays) return !forgotten(c, &c->canonical, n_rows, COST_EXPLORE);
    /* A look at a tuned step costs a window for each deterministic row: more seldom. */
    return forgotten(c, &c->tuned, n_rows, n_deterministic ? 4 * COST_EXPLORE : COST_EXPLORE) &&
           !forgotten(c, &c->canonical, n_rows, COST_EXPLORE);
}
