#include "tools/bench_experiment_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

void bench_file_note(char text[BENCH_CONDITIONS_BYTES], const char *name, const char *fmt, ...) {
    size_t n = strlen(text);
    va_list args;

    n += (size_t)snprintf(text + n, BENCH_CONDITIONS_BYTES - n, "# %s: ", name);
    va_start(args, fmt);
    if (n < BENCH_CONDITIONS_BYTES)
        n += (size_t)vsnprintf(text + n, BENCH_CONDITIONS_BYTES - n, fmt, args);
    va_end(args);
    if (n < BENCH_CONDITIONS_BYTES) snprintf(text + n, BENCH_CONDITIONS_BYTES - n, "\n");
}

static int failed(const char *path) {
    bench_say("%s: %s", path, strerror(errno));
    return BENCH_FAILED;
}

static int tail_cut(const char *path) {
    FILE *f = fopen(path, "r+e");
    long end = 0;
    int c;

    if (!f) return failed(path);
    for (long at = 1; (c = fgetc(f)) != EOF; at++)
        if (c == '\n') end = at;
    c = ftruncate(fileno(f), end);
    fclose(f);
    return c == 0 ? BENCH_OK : failed(path);
}

int bench_file_take(const char *path, int *out_lock_fd) {
    *out_lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*out_lock_fd >= 0 && flock(*out_lock_fd, LOCK_EX | LOCK_NB) == 0) return tail_cut(path);
    if (*out_lock_fd < 0 || errno != EWOULDBLOCK) return failed(path);
    bench_say("%s: another llm42-bench is at work on it", path);
    return BENCH_USAGE;
}

int bench_file_compare(const char *path, const struct bench_table *table, const char *conditions) {
    char copy[BENCH_CONDITIONS_BYTES], *rest = copy, *line;

    if (table->n_notes == 0) return BENCH_OK;
    snprintf(copy, sizeof(copy), "%s", conditions);
    while ((line = strsep(&rest, "\n")) && *line) {
        char *colon = strstr(line, ": ");
        const char *was;

        *colon = '\0';
        was = bench_table_note(table, line + 2);
        if (was && strcmp(was, colon + 2) == 0) continue;
        bench_say("%s: its rows are of %s %s, not %s: take another --out", path, line + 2,
                  was ? was : "(not told)", colon + 2);
        return BENCH_USAGE;
    }
    return BENCH_OK;
}

int bench_file_columns(const char *path, const struct bench_table *table,
                       const struct bench_row *row) {
    char names[sizeof(row->names)];
    size_t n = 0;

    for (uint32_t i = 0; i < table->n_columns; i++)
        n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", i ? "," : "", table->names[i]);
    if (n == 0 || strcmp(names, row->names) == 0) return BENCH_OK;
    bench_say("%s: has other columns: take another --out", path);
    return BENCH_USAGE;
}

FILE *bench_file_append(const char *path) {
    FILE *f = fopen(path, "ae");

    if (!f) (void)failed(path);
    return f;
}

int bench_file_close(FILE *f, const char *path) {
    const bool bad = fflush(f) != 0 || fsync(fileno(f)) < 0;

    if (fclose(f) == 0 && !bad) return BENCH_OK;
    bench_say("%s: cannot be written: %s", path, strerror(errno));
    return BENCH_FAILED;
}
