#include "tools/bench_experiment_group.h"

#include <stdlib.h>
#include <string.h>

static const char *cell(const struct bench_table *t, uint32_t row, int column) {
    return column >= 0 ? t->cells[row][column] : "";
}

static bool same(const struct bench_table *t, uint32_t a, uint32_t b) {
    for (int k = 0; k < BENCH_KEY_REPEAT; k++)
        if (strcmp(t->cells[a][k], t->cells[b][k]) != 0) return false;
    return true;
}

int bench_groups_open(const struct bench_table *t, struct bench_groups *out_groups) {
    struct bench_groups g = {.table = t, .first = calloc(t->n_rows + 1, sizeof(*g.first))};

    if (!g.first || t->n_columns < BENCH_KEYS) {
        free(g.first);
        return BENCH_FAILED;
    }
    for (uint32_t row = 0; row < t->n_rows; row++) {
        uint32_t i = 0;

        while (i < g.n && !same(t, g.first[i], row)) i++;
        if (i == g.n) g.first[g.n++] = row;
    }
    *out_groups = g;
    return BENCH_OK;
}

void bench_groups_close(struct bench_groups *g) {
    free(g->first);
    *g = (struct bench_groups){.n = 0};
}

const char *bench_group_key(const struct bench_groups *g, uint32_t group, enum bench_key key) {
    return g->table->cells[g->first[group]][key];
}

struct bench_spread bench_group_spread(const struct bench_groups *g, uint32_t group,
                                       const char *column) {
    const struct bench_table *t = g->table;
    const int c = bench_table_column(t, column);
    double *values = calloc(t->n_rows, sizeof(*values));
    struct bench_spread s = {.n = 0};

    for (uint32_t row = 0; values && row < t->n_rows; row++)
        if (cell(t, row, c)[0] && same(t, g->first[group], row))
            values[s.n++] = strtod(cell(t, row, c), NULL);
    if (s.n > 0) {
        s.median = bench_quantile(values, s.n, 0.5);
        if (s.n % 2 == 0) s.median = (s.median + values[s.n / 2]) / 2;
        s.min = values[0];
        s.max = values[s.n - 1];
    }
    free(values);
    return s;
}

int bench_group_base(const struct bench_groups *g, uint32_t group, const char *system) {
    static const enum bench_key keys[] = {BENCH_KEY_WORKLOAD, BENCH_KEY_ARRIVALS, BENCH_KEY_RATE,
                                          BENCH_KEY_REQUESTS};

    for (uint32_t i = 0; i < g->n; i++) {
        size_t k = 0;

        if (strcmp(bench_group_key(g, i, BENCH_KEY_SYSTEM), system) != 0) continue;
        while (k < 4 &&
               strcmp(bench_group_key(g, i, keys[k]), bench_group_key(g, group, keys[k])) == 0)
            k++;
        if (k == 4) return (int)i;
    }
    return -1;
}

bool bench_group_ratio(const struct bench_groups *g, uint32_t group, const char *system,
                       const char *column, double *out_ratio) {
    const int base = bench_group_base(g, group, system);
    struct bench_spread of, over;

    if (base < 0) return false;
    of = bench_group_spread(g, group, column);
    over = bench_group_spread(g, (uint32_t)base, column);
    if (of.n == 0 || over.n == 0 || over.median <= 0) return false;
    *out_ratio = of.median / over.median;
    return true;
}
