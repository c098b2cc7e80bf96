/* bench_plot - a roofline picture: what was measured under what bounds it, by gnuplot.
 *
 * Owns:   nothing; a struct of points.
 * Thread: one.
 * Fails:  -ENOENT  gnuplot is not there
 *         -EIO     it failed, or the file cannot be written */
#ifndef LLM42D_TOOLS_BENCH_PLOT_H
#define LLM42D_TOOLS_BENCH_PLOT_H

#include <stdint.h>
#include <stdio.h>

struct err;

enum { BENCH_PLOT_POINTS_MAX = 256, BENCH_PLOT_FAMILY_BYTES = 24 };

struct bench_plot {
    uint32_t n;
    struct bench_point {
        char family[BENCH_PLOT_FAMILY_BYTES];
        double flop_a_byte, flop_a_us;
    } points[BENCH_PLOT_POINTS_MAX];
};

/* Before a long run: whether gnuplot is there, where the path wants it. */
int bench_plot_check(const char *path, struct err *e);
/* Points past the limit are left out. */
void bench_plot_add(struct bench_plot *plot, const char *family, double flop, double bytes,
                    double us);
/* The picture as SVG, or, where the path ends in .gp, the script that draws it beside itself; read
 * and flop are the two ceilings, bytes and operations a microsecond. */
int bench_plot_write(const struct bench_plot *plot, const char *path, const char *title,
                     double read, double flop, struct err *e);
/* A gnuplot string: quotes doubled. */
void bench_plot_quote(FILE *f, const char *text);

#endif
