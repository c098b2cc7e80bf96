#include "tools/bench_plot.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/err.h"

/* The length of the path without .gp, or 0. */
static size_t script_stem(const char *path) {
    const size_t n = strlen(path);

    return n > 3 && strcmp(path + n - 3, ".gp") == 0 ? n - 3 : 0;
}

int bench_plot_check(const char *path, struct err *e) {
    if (script_stem(path)) return 0;
    if (system("gnuplot --version > /dev/null 2>&1") == 0) return 0;
    return err_set(e, -ENOENT, "gnuplot is not there, which draws the picture");
}

void bench_plot_add(struct bench_plot *plot, const char *family, double flop, double bytes,
                    double us) {
    struct bench_point *p = &plot->points[plot->n];

    if (plot->n == BENCH_PLOT_POINTS_MAX || flop <= 0 || bytes <= 0 || us <= 0) return;
    plot->n++;
    snprintf(p->family, sizeof(p->family), "%s", family);
    p->flop_a_byte = flop / bytes;
    p->flop_a_us = flop / us;
}

static bool is_first(const struct bench_plot *plot, uint32_t i) {
    for (uint32_t j = 0; j < i; j++)
        if (strcmp(plot->points[j].family, plot->points[i].family) == 0) return false;
    return true;
}

void bench_plot_quote(FILE *f, const char *text) {
    fputc('\'', f);
    for (; *text; text++) {
        if (*text == '\'') fputc('\'', f);
        fputc(*text, f);
    }
    fputc('\'', f);
}

static void write_script(FILE *f, const struct bench_plot *plot, const char *path,
                         const char *title, double read, double flop) {
    fputs("set terminal svg size 1000,700 background rgb 'white'\nset output ", f);
    bench_plot_quote(f, path);
    fputs("\nset title ", f);
    bench_plot_quote(f, title);
    fputs(" noenhanced\nset logscale xy\nset grid\nset key right bottom\n"
          "set xlabel 'operations a byte'\nset ylabel 'TFLOP/s'\nset xrange [0.1:20000]\nset "
          "samples 2000\n",
          f);
    for (uint32_t i = 0; i < plot->n; i++) {
        if (!is_first(plot, i)) continue;
        fprintf(f, "$f%u << end\n", i);
        for (uint32_t j = i; j < plot->n; j++)
            if (strcmp(plot->points[j].family, plot->points[i].family) == 0)
                fprintf(f, "%g %g\n", plot->points[j].flop_a_byte, plot->points[j].flop_a_us / 1e6);
        fputs("end\n", f);
    }
    fprintf(f, "bound(x) = x * %g < %g ? x * %g : %g\n", read / 1e6, flop / 1e6, read / 1e6,
            flop / 1e6);
    fprintf(f, "plot bound(x) with lines lw 2 lc rgb 'black' title '%.2f TB/s, %.0f TFLOP/s'",
            read / 1e6, flop / 1e6);
    for (uint32_t i = 0; i < plot->n; i++) {
        if (!is_first(plot, i)) continue;
        fprintf(f, ", $f%u with points ps 1.2 title ", i);
        bench_plot_quote(f, plot->points[i].family);
        fputs(" noenhanced", f);
    }
    fputs("\n", f);
}

int bench_plot_write(const struct bench_plot *plot, const char *path, const char *title,
                     double read, double flop, struct err *e) {
    const size_t stem = script_stem(path);
    char picture[4096];
    FILE *f;
    bool failed;

    (void)signal(SIGPIPE, SIG_IGN);
    f = stem ? fopen(path, "we") : popen("gnuplot", "w");
    if (!f) return err_set(e, -EIO, "%s: %s", stem ? path : "gnuplot", strerror(errno));
    snprintf(picture, sizeof(picture), "%.*s%s", (int)(stem ? stem : strlen(path)), path,
             stem ? ".svg" : "");
    write_script(f, plot, picture, title, read, flop);
    failed = ferror(f);
    if (stem ? fclose(f) != 0 : pclose(f) != 0) failed = true;
    return failed ? err_set(e, -EIO, "no picture in %s", path) : 0;
}
