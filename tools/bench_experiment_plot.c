#include "tools/bench_experiment_plot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_plot.h"
#include "tools/bench_report.h"

void bench_picture_add(struct bench_picture *p, const char *series, double x, double y, double z) {
    if (p->n == p->n_room) {
        const uint32_t n = p->n_room * 2 + 64;
        struct bench_point_of *more = realloc(p->points, n * sizeof(*more));

        if (!more) return; /* a point less, in a picture */
        p->points = more;
        p->n_room = n;
    }
    p->points[p->n] = (struct bench_point_of){.x = x, .y = y, .z = z};
    snprintf(p->points[p->n++].series, sizeof(p->points[0].series), "%s", series);
}

/* Ticks at the values there are. */
static void write_ticks(FILE *f, const struct bench_picture *p, char axis) {
    fprintf(f, "set %ctics (", axis);
    for (uint32_t i = 0; i < p->n; i++) {
        const double value = axis == 'x' ? p->points[i].x : p->points[i].y;

        fprintf(f, "%s%g", i ? "," : "", value);
    }
    fputs(")\n", f);
}

/* Boxes around values whose axes are powers of two. */
static void write_heat(FILE *f, const struct bench_picture *p) {
    fputs("set logscale xy 2\nset palette defined (0 '#2c7bb6', 1 '#ffffbf', 2 '#d7191c')\n"
          "set offsets graph 0.1, graph 0.1, graph 0.1, graph 0.1\nunset grid\n"
          "set style fill solid\n$heat << end\n",
          f);
    for (uint32_t i = 0; i < p->n; i++)
        fprintf(f, "%g %g %g\n", p->points[i].x, p->points[i].y, p->points[i].z);
    fputs("end\n", f);
    write_ticks(f, p, 'x');
    write_ticks(f, p, 'y');
    fputs("plot $heat using 1:2:($1/1.4):($1*1.4):($2/1.4):($2*1.4):3 with boxxyerror lc palette "
          "notitle, $heat using 1:2:(sprintf('%.4g',$3)) with labels notitle\n",
          f);
}

static bool is_first(const struct bench_picture *p, uint32_t i) {
    for (uint32_t j = 0; j < i; j++)
        if (strcmp(p->points[j].series, p->points[i].series) == 0) return false;
    return true;
}

static void write_lines(FILE *f, const struct bench_picture *p) {
    const char *join = "plot";

    for (uint32_t i = 0; i < p->n; i++) {
        if (!is_first(p, i)) continue;
        fprintf(f, "$s%u << end\n", i);
        for (uint32_t j = i; j < p->n; j++)
            if (strcmp(p->points[j].series, p->points[i].series) == 0)
                fprintf(f, "%.9g %.9g\n", p->points[j].x, p->points[j].y);
        fputs("end\n", f);
    }
    for (uint32_t i = 0; i < p->n; i++) {
        if (!is_first(p, i)) continue;
        fprintf(f, "%s $s%u using 1:2 %s title ", join, i,
                p->kind == BENCH_STEPS ? "with steps lw 2" : "smooth unique with linespoints lw 2");
        bench_plot_quote(f, p->points[i].series);
        fputs(" noenhanced", f);
        join = ",";
    }
    fputs("\n", f);
}

static void write_script(FILE *f, const struct bench_picture *p, const char *path) {
    fputs("set terminal svg size 900,520 background rgb 'white'\nset output ", f);
    bench_plot_quote(f, path);
    fputs("\nset title ", f);
    bench_plot_quote(f, p->title);
    fputs(" noenhanced\nset xlabel ", f);
    bench_plot_quote(f, p->x);
    fputs("\nset ylabel ", f);
    bench_plot_quote(f, p->y);
    fputs("\nset grid\nset key outside right\n", f);
    if (p->kind == BENCH_HEAT) {
        write_heat(f, p);
        return;
    }
    if (p->log_x) fputs("set logscale x 2\n", f);
    if (p->log_y) fputs("set logscale y\n", f);
    if (p->kind == BENCH_CURVES && !p->log_y) fputs("set yrange [0:*]\n", f);
    write_lines(f, p);
}

int bench_picture_draw(struct bench_picture *p, const char *path) {
    FILE *f = p->n > 0 ? popen("gnuplot 2> /dev/null", "w") : NULL;
    bool failed = p->n > 0 && !f;

    if (f) {
        write_script(f, p, path);
        failed = ferror(f);
        if (pclose(f) != 0) failed = true;
    }
    free(p->points);
    p->points = NULL;
    p->n = p->n_room = 0;
    if (failed) bench_say("%s: gnuplot did not draw it", path);
    return failed ? BENCH_FAILED : BENCH_OK;
}
