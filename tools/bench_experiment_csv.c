/* A file of rows: # lines of conditions, a line of names, a line a run. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_experiment.h"

static int file_read(const char *path, char **out_text) {
    FILE *f = fopen(path, "re");
    char *text = NULL;
    size_t n = 0, room = 0;
    ssize_t end;

    if (!f && errno == ENOENT) {
        *out_text = calloc(1, 1);
        return *out_text ? BENCH_OK : BENCH_FAILED;
    }
    end = f ? getdelim(&text, &room, '\0', f) : -1;
    if (!f || (end < 0 && ferror(f))) {
        bench_say("%s: %s", path, strerror(errno));
        if (f) fclose(f);
        free(text);
        return BENCH_FAILED;
    }
    fclose(f);
    if (end < 0) {
        free(text);
        text = calloc(1, 1);
        end = 0;
    }
    n = (size_t)end;
    if (n > 0 && text[n - 1] == '\0') { /* of a crash, or no table: what is behind would be lost */
        bench_say("%s: a zero byte after %zu others: take another --out", path, n - 1);
        free(text);
        return BENCH_FAILED;
    }
    while (text && n > 0 && text[n - 1] != '\n') n--; /* a line that was not written to its end */
    if (text) text[n] = '\0';
    *out_text = text;
    return text ? BENCH_OK : BENCH_FAILED;
}

static uint32_t fields_count(const char *line) {
    uint32_t n = 1;

    for (; *line; line++) n += *line == ',';
    return n;
}

/* Cuts a line at its commas. */
static char **fields_cut(char *line, uint32_t n) {
    char **fields = calloc(n, sizeof(*fields));

    for (uint32_t i = 0; fields && i < n; i++) fields[i] = strsep(&line, ",");
    return fields;
}

static int line_take(struct bench_table *t, const char *path, char *line) {
    if (line[0] == '#') {
        t->notes[t->n_notes++] = line;
        return BENCH_OK;
    }
    if (!t->names) {
        t->n_columns = fields_count(line);
        t->names = fields_cut(line, t->n_columns);
        return t->names ? BENCH_OK : BENCH_FAILED;
    }
    if (fields_count(line) != t->n_columns) {
        bench_say("%s: a row of %u fields, the line of names has %u", path, fields_count(line),
                  t->n_columns);
        return BENCH_FAILED;
    }
    t->cells[t->n_rows] = fields_cut(line, t->n_columns);
    return t->cells[t->n_rows++] ? BENCH_OK : BENCH_FAILED;
}

int bench_table_read(const char *path, struct bench_table *out_table) {
    struct bench_table t = {.text = NULL};
    size_t n_lines = 1;
    char *rest, *line;
    int r = file_read(path, &t.text);

    if (r != BENCH_OK) return r;
    for (const char *c = t.text; *c; c++) n_lines += *c == '\n';
    t.notes = calloc(n_lines, sizeof(*t.notes));
    t.cells = calloc(n_lines, sizeof(*t.cells));
    if (!t.notes || !t.cells) r = BENCH_FAILED;
    rest = t.text;
    while (r == BENCH_OK && (line = strsep(&rest, "\n")))
        if (*line) r = line_take(&t, path, line);
    if (r == BENCH_OK)
        *out_table = t;
    else
        bench_table_close(&t);
    return r;
}

void bench_table_close(struct bench_table *t) {
    for (uint32_t i = 0; i < t->n_rows; i++) free(t->cells[i]);
    free(t->cells);
    free(t->names);
    free(t->notes);
    free(t->text);
    *t = (struct bench_table){.text = NULL};
}

int bench_table_column(const struct bench_table *t, const char *name) {
    for (uint32_t i = 0; i < t->n_columns; i++)
        if (strcmp(t->names[i], name) == 0) return (int)i;
    return -1;
}

const char *bench_table_note(const struct bench_table *t, const char *name) {
    const size_t n = strlen(name);

    for (uint32_t i = 0; i < t->n_notes; i++) {
        const char *note = t->notes[i] + 1 + strspn(t->notes[i] + 1, " ");

        if (strncmp(note, name, n) == 0 && strncmp(note + n, ": ", 2) == 0) return note + n + 2;
    }
    return NULL;
}

bool bench_table_has(const struct bench_table *t, const char *key) {
    const uint32_t n = fields_count(key);

    for (uint32_t i = 0; i < t->n_rows; i++) {
        const char *at = key;
        uint32_t k = 0;

        for (; k < n && k < t->n_columns; k++) {
            const size_t length = strcspn(at, ",");

            if (strlen(t->cells[i][k]) != length || strncmp(t->cells[i][k], at, length) != 0) break;
            at += length + (at[length] == ',');
        }
        if (k == n) return true;
    }
    return false;
}
