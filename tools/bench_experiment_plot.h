/* bench_experiment_plot - curves, steps and heat maps as SVG files, by gnuplot.
 *
 * Owns:   a picture owns its points, until bench_picture_draw.
 * Thread: one.
 * Fails:  with an exit code (enum bench_exit), the reason on stderr. */
#ifndef LLM42D_TOOLS_BENCH_EXPERIMENT_PLOT_H
#define LLM42D_TOOLS_BENCH_EXPERIMENT_PLOT_H

#include <stdbool.h>
#include <stdint.h>

enum bench_picture_kind { BENCH_CURVES, BENCH_STEPS, BENCH_HEAT };

struct bench_point_of {
    char series[64];
    double x, y, z; /* z: of heat maps alone */
};

struct bench_picture {
    enum bench_picture_kind kind;
    char title[160];
    const char *x, *y; /* words at the axes */
    bool log_x, log_y;
    uint32_t n, n_room;
    struct bench_point_of *points;
};

void bench_picture_add(struct bench_picture *p, const char *series, double x, double y, double z);
/* Draws where there are points, and frees them. */
int bench_picture_draw(struct bench_picture *p, const char *path);

#endif
