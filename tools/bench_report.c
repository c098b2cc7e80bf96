#include "tools/bench_report.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "daemon/version.h"
#include "runtime/cpu_gemm.h"
#include "runtime/num.h"

enum { TEXT_BYTES = 256, FIGURE_COLUMNS = 64, ROW_COLUMNS = 38 };

void bench_say(const char *fmt, ...) {
    va_list args;

    fflush(stdout);
    fputs("llm42-bench: ", stderr);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
}

static void print_object(json_t *o) {
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;

    if (text) puts(text);
    free(text);
    json_decref(o);
}

/* The first line of /proc that begins with `key`, without it. */
static void proc_value(const char *path, const char *key, char *text, size_t n_bytes) {
    char line[512];
    FILE *f = fopen(path, "re");

    snprintf(text, n_bytes, "unknown");
    while (f && fgets(line, sizeof(line), f)) {
        char *colon = strchr(line, ':');

        if (!colon || strncmp(line, key, strlen(key)) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(text, n_bytes, "%s", colon + 1 + strspn(colon + 1, " \t"));
        break;
    }
    if (f) fclose(f);
}

/* What else runs: a figure taken beside others is not one. */
static double load_average(void) {
    double loads[1];

    return getloadavg(loads, 1) == 1 ? loads[0] : -1;
}

void bench_report_conditions(const struct bench_report *r, const char *verb, uint32_t n_threads) {
    char cpu[TEXT_BYTES], date[32];
    const long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    const char *compiler =
#ifdef __clang__
        "clang " __clang_version__;
#else
        "gcc " __VERSION__;
#endif
    struct utsname system;
    struct tm day;
    time_t now = time(NULL);

    proc_value("/proc/cpuinfo", "model name", cpu, sizeof(cpu));
    if (uname(&system) < 0) snprintf(system.release, sizeof(system.release), "unknown");
    (void)gmtime_r(&now, &day);
    (void)strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &day);
    if (r->json) {
        print_object(json_pack("{s:s, s:s, s:s, s:I, s:I, s:s, s:s, s:s, s:s, s:s, s:s, s:f}",
                               "kind", "conditions", "verb", verb, "cpu", cpu, "cores",
                               (json_int_t)n_cores, "threads", (json_int_t)n_threads, "vector",
                               cpu_code_best()->name, "compiler", compiler, "kernel",
                               system.release, "version", version_number(), "commit",
                               version_commit(), "date", date, "load_average", load_average()));
        return;
    }
    printf("llm42-bench %s %s, %s\n  %s, %ld cores, %u threads at most, %s; load average %.2f\n  "
           "%s; Linux %s\n",
           version_whole(), verb, date, cpu, n_cores, n_threads, cpu_code_best()->name,
           load_average(), compiler, system.release);
    fflush(stdout);
}

void bench_report_section(const struct bench_report *r, const char *fmt, ...) {
    va_list args;

    if (r->json) return;
    fputc('\n', stdout);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    fputc('\n', stdout);
    fflush(stdout);
}

void bench_report_note(const struct bench_report *r, const char *fmt, ...) {
    char text[TEXT_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (r->json)
        print_object(json_pack("{s:s, s:s}", "kind", "note", "text", text));
    else
        printf("  %s\n", text);
    fflush(stdout);
}

static void figure_json(const char *key, const char *of, double value, const char *unit,
                        struct bench_target target) {
    json_t *o = json_pack("{s:s, s:s, s:s, s:f, s:s}", "kind", "figure", "name", key, "of", of,
                          "value", value, "unit", unit);

    if (target.value > 0) {
        const bool met = target.most ? value <= target.value : value >= target.value;

        json_object_set_new(o, target.most ? "target_most" : "target_least",
                            json_real(target.value));
        json_object_set_new(o, "of_target", json_real(value / target.value));
        json_object_set_new(o, "met", json_boolean(met));
    }
    print_object(o);
}

void bench_report_figure(const struct bench_report *r, const char *key, double value,
                         const char *unit, struct bench_target target, const char *fmt, ...) {
    char of[TEXT_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(of, sizeof(of), fmt, args);
    va_end(args);
    if (r->json) {
        figure_json(key, of, value, unit, target);
    } else {
        printf("  %-*s %10.3f %-8s", FIGURE_COLUMNS, of, value, unit);
        if (target.value > 0)
            printf(" %.2f of %s %g", value / target.value,
                   target.most ? "the most allowed," : "the target,", target.value);
        fputc('\n', stdout);
    }
    fflush(stdout);
}

void bench_report_columns(const struct bench_report *r, const struct bench_column *columns,
                          uint32_t n) {
    if (r->json) return;
    printf("  %-*s", ROW_COLUMNS, "");
    for (uint32_t i = 0; i < n; i++) printf(" %9s", columns[i].name);
    fputc('\n', stdout);
}

void bench_report_row(const struct bench_report *r, const struct bench_column *columns, uint32_t n,
                      const double *cells, const char *fmt, ...) {
    char of[TEXT_BYTES], whole[2 * TEXT_BYTES];
    struct bench_target target = {0, false};
    double worst = 0;
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(of, sizeof(of), fmt, args);
    va_end(args);
    if (!r->json) printf("  %-*s", ROW_COLUMNS, of);
    for (uint32_t i = 0; i < n; i++) {
        const struct bench_column *c = &columns[i];
        double part;

        if (r->json && cells[i] >= 0) {
            snprintf(whole, sizeof(whole), "%s, %s", of, c->name);
            figure_json(c->key, whole, cells[i], c->unit, c->target);
        } else if (!r->json && cells[i] >= 0) {
            printf(" %9.2f", cells[i]);
        } else if (!r->json) {
            printf(" %9s", "-");
        }
        if (c->target.value <= 0 || cells[i] < 0) continue;
        part = cells[i] / c->target.value;
        if (target.value <= 0 || (c->target.most ? part > worst : part < worst)) worst = part;
        target = c->target;
    }
    if (!r->json && target.value > 0)
        printf("   %.2f of %s %g", worst, target.most ? "the most allowed," : "the target,",
               target.value);
    if (!r->json) fputc('\n', stdout);
    fflush(stdout);
}

int64_t bench_now_ns(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double bench_quantile(double *values, size_t n, double part) {
    const double rank = part * (double)n;
    size_t i = (size_t)rank;

    if (n == 0) return 0;
    qsort(values, n, sizeof(*values), by_value);
    if ((double)i == rank && i > 0) i--; /* the rank counts from 1 */
    return values[i < n ? i : n - 1];
}

/* splitmix64 */
uint32_t bench_random_bits(struct bench_random *r) {
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

uint32_t bench_random_below(struct bench_random *r, uint32_t n) {
    return (uint32_t)((uint64_t)bench_random_bits(r) * n >> 32);
}

double bench_random_unit(struct bench_random *r) {
    return (double)bench_random_bits(r) * 0x1p-32;
}

double bench_random_exponential(struct bench_random *r) {
    const double ln2 = 0.69314718055994530942;

    return ln2 * (double)num_exponential(bench_random_bits(r));
}
