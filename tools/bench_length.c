#include "tools/bench_length.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/bench_report.h"

enum { TRACE_ROWS_MAX = 1 << 20, LINE_BYTES = 1024, NS = 1000000000 };

/* The column's index by any of its names, or -1. */
static int column_find(char *header, const char *const names[]) {
    int column = 0;

    for (char *field = header; field; column++) {
        const size_t n = strcspn(field, ",\r\n");

        for (int i = 0; names[i]; i++)
            if (strlen(names[i]) == n && memcmp(field, names[i], n) == 0) return column;
        field = field[n] == ',' ? field + n + 1 : NULL;
    }
    return -1;
}

static const char *column_at(const char *line, int column) {
    for (; line && column > 0; column--) {
        line = strchr(line, ',');
        if (line) line++;
    }
    return line;
}

static bool column_number(const char *line, int column, uint32_t *out) {
    const char *text = column_at(line, column);
    char *end;
    double value;

    if (!text) return false;
    value = strtod(text, &end); /* some traces have 374.0 */
    if (end == text || !(value >= 0 && value <= 1e8)) return false;
    *out = (uint32_t)value;
    return true;
}

/* 2023-11-16 18:15:46.68, or seconds. */
static bool column_time(const char *line, int column, int64_t *out_ns) {
    const char *text = column_at(line, column);
    struct tm day = {0};
    double seconds;
    char *end;

    if (!text) return false;
    if (sscanf(text, "%d-%d-%d %d:%d:%lf", &day.tm_year, &day.tm_mon, &day.tm_mday, &day.tm_hour,
               &day.tm_min, &seconds) == 6) {
        day.tm_year -= 1900;
        day.tm_mon--;
        *out_ns = (int64_t)timegm(&day) * NS + (int64_t)(seconds * NS);
        return true;
    }
    seconds = strtod(text, &end);
    if (end == text || !(seconds >= 0 && seconds <= 4e9)) return false;
    *out_ns = (int64_t)(seconds * NS);
    return true;
}

static int trace_rows(FILE *f, const char *path, struct bench_length *rows, uint32_t *out_n,
                      bool *out_timed) {
    static const char *const prompt[] = {"prompt",        "num_prefill_tokens", "ContextTokens",
                                         "prompt_tokens", "input_tokens",       NULL};
    static const char *const output[] = {"output",        "num_decode_tokens", "GeneratedTokens",
                                         "output_tokens", "completion_tokens", NULL};
    static const char *const times[] = {"TIMESTAMP", "timestamp", "arrival_s", "arrived_at", NULL};
    char line[LINE_BYTES];
    int prompt_column, output_column, time_column;
    uint32_t n = 0, n_lines = 1;

    if (!fgets(line, sizeof(line), f)) line[0] = '\0';
    prompt_column = column_find(line, prompt);
    output_column = column_find(line, output);
    time_column = column_find(line, times);
    if (prompt_column < 0 || output_column < 0) {
        bench_say("%s:1: no columns prompt and output (or ContextTokens, GeneratedTokens; "
                  "num_prefill_tokens, num_decode_tokens; prompt_tokens, completion_tokens; "
                  "input_tokens, output_tokens)",
                  path);
        return BENCH_USAGE;
    }
    while (n < TRACE_ROWS_MAX && fgets(line, sizeof(line), f)) {
        n_lines++;
        if (line[strspn(line, " \t\r\n")] == '\0') continue;
        if (!column_number(line, prompt_column, &rows[n].n_prompt) ||
            !column_number(line, output_column, &rows[n].n_tokens)) {
            bench_say("%s:%u: a length is no number", path, n_lines);
            return BENCH_USAGE;
        }
        if (time_column >= 0 && !column_time(line, time_column, &rows[n].at_ns)) {
            bench_say("%s:%u: a time is neither seconds nor year-month-day hour:minute:second",
                      path, n_lines);
            return BENCH_USAGE;
        }
        n++;
    }
    for (uint32_t i = 1; i < n; i++) rows[i].at_ns -= rows[0].at_ns;
    if (n > 0) rows[0].at_ns = 0;
    *out_timed = time_column >= 0;
    if (n == 0) bench_say("%s: no rows", path);
    *out_n = n;
    return n == 0 ? BENCH_USAGE : BENCH_OK;
}

int bench_length_read(const char *path, struct bench_length **out_rows, uint32_t *out_n,
                      bool *out_timed) {
    struct bench_length *rows = calloc(TRACE_ROWS_MAX, sizeof(*rows));
    FILE *f = fopen(path, "re");
    int r = BENCH_FAILED;

    if (!f) {
        bench_say("%s: %s", path, strerror(errno));
        r = BENCH_USAGE;
    } else if (rows) {
        r = trace_rows(f, path, rows, out_n, out_timed);
    }
    if (f) fclose(f);
    if (r != BENCH_OK) {
        free(rows);
        return r;
    }
    *out_rows = rows;
    return BENCH_OK;
}

double bench_length_draw(struct bench_random *r, double mean, double median) {
    const double sigma = sqrt(2 * log(mean / median));
    const double u = 1 - bench_random_unit(r), v = bench_random_unit(r); /* u is not 0 */
    const double normal = sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
    const double length = median * exp(sigma * normal);

    return length < 1 ? 1 : length;
}

bool bench_length_cut(struct bench_length *l, uint32_t max_tokens, uint32_t context) {
    const struct bench_length was = *l;

    if (l->n_tokens == 0) l->n_tokens = 1;
    if (l->n_tokens > max_tokens) l->n_tokens = max_tokens;
    if (l->n_tokens > context / 2) l->n_tokens = context / 2;
    if (l->n_prompt == 0) l->n_prompt = 1;
    if (l->n_prompt > context - l->n_tokens) l->n_prompt = context - l->n_tokens;
    return l->n_prompt != was.n_prompt || l->n_tokens != was.n_tokens;
}
