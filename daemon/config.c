#include "daemon/config.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/assert.h"
#include "runtime/device.h"
#include "runtime/engine.h"
#include "runtime/token.h"

enum kind { PATH, WORD, BOOL, NUMBER, BYTES, TIME, MODE };

struct key {
    const char *section, *name;
    enum kind kind;
    size_t off;
    uint32_t min, max; /* of the number; of a path its bytes */
    const char *preset;
    const char *words[5]; /* WORD: the value is the index */
};

#define AT(field) offsetof(struct config, field)
#define UNITS "in seconds, or with ms, s or min"

/* The one home of every key, its range and its default; SPEC 7.2 is this table in words. */
static const struct key keys[] = {
    {"model", "path", PATH, AT(model_path), 1, 180, NULL, {0}},
    {"model", "round_weights", BOOL, AT(round_weights), 0, 1, "no", {0}},
    {"model", "random_seed", NUMBER, AT(random_seed), 0, 1u << 31, "0", {0}},
    {"engine", "device", WORD, AT(device), 0, 1, "cpu", {"cpu", "cuda"}},
    {"engine", "gpu", NUMBER, AT(gpu), 0, 63, "0", {0}},
    {"engine", "kernel_cache", PATH, AT(kernel_cache), 1, 180, "/var/cache/llm42", {0}},
    {"engine", "threads", NUMBER, AT(threads), 0, 256, "0", {0}},
    {"engine", "portable", BOOL, AT(portable), 0, 1, "no", {0}},
    {"engine", "policy", WORD, AT(policy), 0, 2, "canonical", {"canonical", "tuned", "auto"}},
    {"engine", "window", NUMBER, AT(window), 1, 256, "32", {0}},
    {"engine", "group", NUMBER, AT(group), 1, 64, "8", {0}},
    {"engine", "max_requests", NUMBER, AT(max_requests), 0, 1024, "0", {0}},
    {"engine", "max_queue", NUMBER, AT(max_queue), 0, 1023, "256", {0}},
    {"engine", "context", NUMBER, AT(context), 0, 1 << 20, "0", {0}},
    {"engine", "kv_tokens", NUMBER, AT(kv_tokens), 0, 1 << 30, "0", {0}},
    {"engine", "step_tokens", NUMBER, AT(step_tokens), 0, PLAN_STEP_TOKENS_MAX, "0", {0}},
    {"engine", "fixed_shape", BOOL, AT(fixed_shape), 0, 1, "no", {0}},
    {"experiment", "certify", BOOL, AT(certify), 0, 1, "yes", {0}},
    {"experiment", "verify", BOOL, AT(verify), 0, 1, "yes", {0}},
    {"experiment", "fast", WORD, AT(fast), 0, 1, "tuned", {"tuned", "stock"}},
    {"experiment", "mismatch_ppm", NUMBER, AT(mismatch_ppm), 0, 1000000, "0", {0}},
    {"server", "socket", PATH, AT(socket), 1, CONFIG_PATH_BYTES_MAX, "/run/llm42/llm42d.sock", {0}},
    {"server",
     "admin_socket",
     PATH,
     AT(admin_socket),
     1,
     CONFIG_PATH_BYTES_MAX,
     "/run/llm42/admin.sock",
     {0}},
    {"server", "socket_mode", MODE, AT(socket_mode), 0600, 0666, "0660", {0}},
    {"server", "max_connections", NUMBER, AT(max_connections), 1, 4096, "256", {0}},
    {"server",
     "max_requests_per_connection",
     NUMBER,
     AT(max_requests_per_connection),
     1,
     1024,
     "320",
     {0}},
    {"server", "max_text_bytes", BYTES, AT(max_text_bytes), 1024, TOKEN_TEXT_BYTES_MAX, "1M", {0}},
    {"server", "hello_timeout", TIME, AT(hello_timeout_ms), 10, 600000, "10s", {0}},
    {"server", "slow_client_timeout", TIME, AT(slow_client_timeout_ms), 10, 3600000, "60s", {0}},
    {"server", "drain_timeout", TIME, AT(drain_timeout_ms), 0, 3600000, "30s", {0}},
    {"server", "output_bytes", BYTES, AT(output_bytes), 256 << 10, 64 << 20, "4M", {0}},
    {"log", "level", WORD, AT(level), 0, 3, "info", {"error", "warning", "info", "debug"}},
    {"log", "payload", BOOL, AT(payload), 0, 1, "no", {0}},
};
enum { N_KEYS = sizeof(keys) / sizeof(keys[0]) };

/* One assignment as it was read. */
struct entry {
    size_t key;
    char *value;
    uint32_t file; /* index of its name */
    uint32_t line; /* 0: the command line */
};

struct config_origin {
    char *files[CONFIG_FILES_MAX + 1];
    struct {
        uint32_t file, line;
        bool preset;
    } of[N_KEYS];
};

/* What is being read: names, entries, the file at hand, and the errors so far. */
struct reading {
    FILE *errors;
    unsigned n_errors;
    char *files[CONFIG_FILES_MAX + 1];
    uint32_t n_files;
    struct entry entries[CONFIG_ENTRIES_MAX];
    uint32_t n_entries;

    const char *text; /* of the file, the rest */
    size_t n_text;
    uint32_t line;
    uint32_t first; /* the file's first entry */
};

__attribute__((format(printf, 3, 4))) static void fault(struct reading *r, uint32_t line,
                                                        const char *fmt, ...) {
    va_list args;

    if (r->n_files == 0)
        fputs("llm42d", r->errors);
    else
        fputs(r->files[r->n_files - 1], r->errors);
    if (line) fprintf(r->errors, ":%u", line);
    fputs(": ", r->errors);
    va_start(args, fmt);
    (void)vfprintf(r->errors, fmt, args);
    va_end(args);
    fputc('\n', r->errors);
    r->n_errors++;
}

static bool section_known(const char *name, size_t n) {
    for (size_t k = 0; k < N_KEYS; k++)
        if (strlen(keys[k].section) == n && memcmp(keys[k].section, name, n) == 0) return true;
    return false;
}

static size_t key_find(const char *section, const char *name) {
    size_t k = 0;

    while (k < N_KEYS && (strcmp(keys[k].section, section) != 0 || strcmp(keys[k].name, name) != 0))
        k++;
    return k;
}

/* Takes one assignment; a second one of the same key in one file is an error.  Of --set the last
 * one counts, as on any command line. */
static void collect(struct reading *r, const char *section, const char *name, const char *value,
                    uint32_t line) {
    size_t k = key_find(section, name);

    if (k == N_KEYS) {
        /* An unknown section was told where it stands. */
        if (section[0] == '\0')
            fault(r, line, "%s stands before any [section]", name);
        else if (section_known(section, strlen(section)))
            fault(r, line, "[%s] has no key %s", section, name);
        else if (line == 0)
            fault(r, line, "there is no section [%s]", section);
        return;
    }
    for (uint32_t i = r->first; line && i < r->n_entries; i++)
        if (r->entries[i].key == k) {
            fault(r, line, "%s.%s is set already in line %u", section, name, r->entries[i].line);
            return;
        }
    if (r->n_entries == CONFIG_ENTRIES_MAX) {
        fault(r, line, "more than %d settings", (int)CONFIG_ENTRIES_MAX);
        return;
    }
    char *copy = strdup(value);
    if (!copy) {
        fault(r, line, "out of memory");
        return;
    }
    r->entries[r->n_entries++] = (struct entry){k, copy, r->n_files - 1, line};
}

/* ---- a file, line by line ---- */

/* What inih would do to this line that nobody wrote: cut it, join it to the one before, take
 * another separator.  NULL where it would do nothing of the kind. */
static const char *line_fault(const char *line, size_t n) {
    if (n > CONFIG_LINE_BYTES_MAX) return "the line is longer than 190 bytes";
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)line[i] < ' ' && line[i] != '\t' && !(line[i] == '\r' && i + 1 == n))
            return "a control character";
    size_t i = 0;
    while (i < n && isspace((unsigned char)line[i])) i++;
    if (i == n || line[i] == '#' || line[i] == ';') return NULL;
    if (i > 0) return "an indented line: it would continue the one before";
    if (line[0] == '[') return memchr(line, ']', n) ? NULL : "a section without ]";
    if (line[0] == '=' || !memchr(line, '=', n)) return "neither [section] nor key=value";
    if (memchr(line, ':', (size_t)((const char *)memchr(line, '=', n) - line)))
        return "a colon in the key: write key=value";
    return NULL;
}

static void section_check(struct reading *r, const char *line, size_t n) {
    const char *end = memchr(line, ']', n);

    ASSERT(end);
    if (!section_known(line + 1, (size_t)(end - line - 1)))
        fault(r, r->line, "there is no section %.*s", (int)(end - line + 1), line);
    for (const char *p = end + 1; p < line + n; p++) {
        if (*p == ';' || *p == '#') break;
        if (!isspace((unsigned char)*p)) {
            fault(r, r->line, "text after the section");
            break;
        }
    }
}

/* inih's reader, in the manner of fgets.  It counts lines and gives inih an empty one in place of
 * each that has a fault, so that the rest of the file is judged too. */
static char *next_line(char *buf, int n_max, void *stream) {
    struct reading *r = stream;
    const char *line = r->text;
    const char *end = memchr(line, '\n', r->n_text);
    size_t n = end ? (size_t)(end - line) : r->n_text;

    if (r->n_text == 0) return NULL;
    r->text += end ? n + 1 : n;
    r->n_text -= end ? n + 1 : n;
    r->line++;

    const char *why = line_fault(line, n);
    if (why) {
        fault(r, r->line, "%s", why);
        n = 0;
    } else if (n && line[0] == '[') {
        section_check(r, line, n);
    }
    ASSERT((size_t)n_max > n + 1);
    memcpy(buf, line, n);
    memcpy(buf + n, "\n", 2);
    return buf;
}

static int take_pair(void *user, const char *section, const char *name, const char *value) {
    struct reading *r = user;

    collect(r, section, name, value ? value : "", r->line);
    return 1;
}

static void read_text(struct reading *r, const char *name, const char *text, size_t n) {
    if (r->n_files == CONFIG_FILES_MAX) {
        fault(r, 0, "more than %d files", (int)CONFIG_FILES_MAX);
        return;
    }
    char *copy = strdup(name);
    if (!copy) {
        fault(r, 0, "out of memory");
        return;
    }
    r->files[r->n_files++] = copy;
    r->text = text;
    r->n_text = n;
    r->line = 0;
    r->first = r->n_entries;
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        r->text += 3;
        r->n_text -= 3;
    }
    unsigned n_before = r->n_errors;
    int bad = ini_parse_stream(next_line, r, take_pair, r);
    /* Whatever inih alone objects to must not pass. */
    if (bad != 0 && r->n_errors == n_before)
        fault(r, bad > 0 ? (uint32_t)bad : 0, "not a line of a settings file");
}

/* `must`: whether the file has to be there. */
static void read_file(struct reading *r, const char *path, bool must) {
    static const char *const why_big = "the file is larger than 65536 bytes";
    char *text = NULL;
    struct stat st;
    ssize_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) {
        if (must || errno != ENOENT) {
            fprintf(r->errors, "%s: %s\n", path, strerror(errno));
            r->n_errors++;
        }
        return;
    }
    if (fstat(fd, &st) == 0 && !S_ISREG(st.st_mode)) {
        fprintf(r->errors, "%s: not a regular file\n", path);
        r->n_errors++;
        goto out;
    }
    text = malloc(CONFIG_FILE_BYTES_MAX + 1);
    if (text) n = read(fd, text, CONFIG_FILE_BYTES_MAX + 1);
    if (!text || n < 0 || n > CONFIG_FILE_BYTES_MAX) {
        fprintf(r->errors, "%s: %s\n", path, n > CONFIG_FILE_BYTES_MAX ? why_big : strerror(errno));
        r->n_errors++;
        goto out;
    }
    read_text(r, path, text, (size_t)n);
out:
    free(text);
    (void)close(fd);
}

/* ---- the chain ---- */

struct fragment {
    char name[NAME_MAX + 1];
    char path[PATH_MAX];
};

static int fragment_order(const void *a, const void *b) {
    return strcmp(((const struct fragment *)a)->name, ((const struct fragment *)b)->name);
}

/* Adds a folder's *.conf; one of an equal name replaces that of a weaker folder, as everywhere
 * under systemd. */
static void fragments_add(struct reading *r, const char *folder, struct fragment *all,
                          uint32_t *n_all) {
    DIR *d = opendir(folder);
    const struct dirent *e;

    if (!d) {
        if (errno != ENOENT) {
            fprintf(r->errors, "%s: %s\n", folder, strerror(errno));
            r->n_errors++;
        }
        return;
    }
    while ((e = readdir(d))) {
        size_t n = strlen(e->d_name);
        uint32_t i = 0;

        if (n < 6 || strcmp(e->d_name + n - 5, ".conf") != 0 || e->d_name[0] == '.') continue;
        while (i < *n_all && strcmp(all[i].name, e->d_name) != 0) i++;
        if (i == CONFIG_FILES_MAX) {
            fprintf(r->errors, "%s: more than %d fragments\n", folder, (int)CONFIG_FILES_MAX);
            r->n_errors++;
            break;
        }
        if (i == *n_all) ++*n_all;
        (void)snprintf(all[i].name, sizeof(all[i].name), "%s", e->d_name);
        if (snprintf(all[i].path, sizeof(all[i].path), "%s/%s", folder, e->d_name) >= PATH_MAX) {
            fprintf(r->errors, "%s: the path is too long\n", folder);
            r->n_errors++;
        }
    }
    (void)closedir(d);
}

static void read_chain(struct reading *r, const char *root) {
    static const char *const files[] = {
        "/usr/lib/llm42/llm42d.conf", "/usr/local/lib/llm42/llm42d.conf", "/etc/llm42/llm42d.conf"};
    static const char *const folders[] = {"/usr/lib/llm42/llm42d.conf.d",
                                          "/usr/local/lib/llm42/llm42d.conf.d",
                                          "/run/llm42/llm42d.conf.d", "/etc/llm42/llm42d.conf.d"};
    char path[PATH_MAX];
    uint32_t n_all = 0;
    struct fragment *all = calloc(CONFIG_FILES_MAX, sizeof(*all));

    if (!all) {
        fault(r, 0, "out of memory");
        return;
    }
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s%s", root, files[i]);
        read_file(r, path, false);
    }
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s%s", root, folders[i]);
        fragments_add(r, path, all, &n_all);
    }
    qsort(all, n_all, sizeof(*all), fragment_order);
    for (uint32_t i = 0; i < n_all; i++) read_file(r, all[i].path, true);
    free(all);
}

static void read_sets(struct reading *r, const struct config_sources *s) {
    r->files[r->n_files] = strdup("--set");
    if (!r->files[r->n_files]) {
        fault(r, 0, "out of memory");
        return;
    }
    r->n_files++;
    r->first = r->n_entries;
    for (uint32_t i = 0; i < s->n_sets; i++) {
        char section[32], name[64];
        const char *dot = strchr(s->sets[i], '.');
        const char *eq = strchr(s->sets[i], '=');

        if (!dot || !eq || eq < dot || (size_t)(dot - s->sets[i]) >= sizeof(section) ||
            (size_t)(eq - dot - 1) >= sizeof(name)) {
            fault(r, 0, "%s is not SECTION.KEY=VALUE", s->sets[i]);
            continue;
        }
        (void)snprintf(section, sizeof(section), "%.*s", (int)(dot - s->sets[i]), s->sets[i]);
        (void)snprintf(name, sizeof(name), "%.*s", (int)(eq - dot - 1), dot + 1);
        collect(r, section, name, eq + 1, 0);
    }
}

/* ---- values ---- */

/* Digits in base, nothing else, and a factor by the suffix: 0, -EINVAL, or -ERANGE. */
static int number_read(const char *text, unsigned base, uint64_t *out, const char **out_rest) {
    uint64_t v = 0;
    const char *p = text;

    while (*p >= '0' && *p < (char)('0' + base)) {
        v = v * base + (uint64_t)(*p - '0');
        if (v > UINT32_MAX) return -ERANGE;
        p++;
    }
    if (p == text) return -EINVAL;
    *out = v;
    *out_rest = p;
    return 0;
}

static uint32_t factor_of(enum kind kind, const char *suffix) {
    static const struct {
        enum kind kind;
        const char *suffix;
        uint32_t factor;
    } all[] = {{NUMBER, "", 1},    {MODE, "", 1},         {BYTES, "", 1},
               {BYTES, "K", 1024}, {BYTES, "M", 1 << 20}, {TIME, "ms", 1},
               {TIME, "", 1000},   {TIME, "s", 1000},     {TIME, "min", 60000}};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i].kind == kind && strcmp(all[i].suffix, suffix) == 0) return all[i].factor;
    return 0;
}

static void number_write(const struct key *k, uint64_t v, char *text, size_t n) {
    if (k->kind == MODE)
        (void)snprintf(text, n, "0%o", (unsigned)v);
    else if (k->kind == TIME && (v % 1000 != 0))
        (void)snprintf(text, n, "%llums", (unsigned long long)v);
    else if (k->kind == TIME)
        (void)snprintf(text, n, "%llus", (unsigned long long)v / 1000);
    else
        (void)snprintf(text, n, "%llu", (unsigned long long)v);
}

/* Where `value` is a value of the key: NULL and *out; else what would be. */
static const char *number_judge(const struct key *k, const char *value, uint32_t *out,
                                char *scratch, size_t n_scratch) {
    char min[24], max[24];
    const char *rest = NULL;
    uint64_t v = 0;
    int r = number_read(value, k->kind == MODE ? 8 : 10, &v, &rest);
    uint32_t factor = r == 0 ? factor_of(k->kind, rest) : 0;

    v *= factor;
    if (r == 0 && factor && v >= k->min && v <= k->max) {
        *out = (uint32_t)v;
        return NULL;
    }
    number_write(k, k->min, min, sizeof(min));
    number_write(k, k->max, max, sizeof(max));
    (void)snprintf(scratch, n_scratch, "%s from %s to %s%s",
                   k->kind == MODE ? "an octal mode" : "a number", min, max,
                   k->kind == TIME    ? ", " UNITS
                   : k->kind == BYTES ? ", in bytes, or with K or M"
                                      : "");
    return scratch;
}

static const char *word_judge(const struct key *k, const char *value, uint32_t *out, char *scratch,
                              size_t n_scratch) {
    size_t n = 0;

    for (uint32_t i = 0; k->words[i]; i++) {
        if (strcmp(value, k->words[i]) == 0) {
            *out = i;
            return NULL;
        }
        n +=
            (size_t)snprintf(scratch + n, n_scratch - n, "%s%s", i ? ", " : "one of ", k->words[i]);
        ASSERT(n < n_scratch);
    }
    return scratch;
}

static const char *value_judge(const struct key *k, const char *value, void *field, char *scratch,
                               size_t n_scratch) {
    static const char *const yes_no[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};

    if (k->kind == PATH) {
        (void)snprintf(scratch, n_scratch, "an absolute path of at most %u bytes", k->max);
        if (value[0] != '/' || strlen(value) > k->max) return scratch;
        char *copy = strdup(value);
        if (!copy) return "more memory";
        free(*(char **)field);
        *(char **)field = copy;
        return NULL;
    }
    if (k->kind == BOOL) {
        for (size_t i = 0; i < sizeof(yes_no) / sizeof(yes_no[0]); i++)
            if (strcmp(value, yes_no[i]) == 0) {
                *(bool *)field = i % 2 == 1;
                return NULL;
            }
        return "yes or no";
    }
    if (k->kind == WORD) return word_judge(k, value, field, scratch, n_scratch);
    return number_judge(k, value, field, scratch, n_scratch);
}

/* Sets the key's field, or tells why not. */
static void apply(struct reading *r, const struct entry *e, struct config *c) {
    const struct key *k = &keys[e->key];
    char scratch[160];
    const char *want = value_judge(k, e->value, (char *)c + k->off, scratch, sizeof(scratch));

    if (!want) return;
    fputs(r->files[e->file], r->errors);
    if (e->line) fprintf(r->errors, ":%u", e->line);
    fprintf(r->errors, ": %s.%s=%s: must be %s\n", k->section, k->name, e->value, want);
    r->n_errors++;
}

static void presets(struct config *c) {
    char scratch[160];

    for (size_t i = 0; i < N_KEYS; i++) {
        if (!keys[i].preset) continue;
        const char *bad = value_judge(&keys[i], keys[i].preset, (char *)c + keys[i].off, scratch,
                                      sizeof(scratch));
        /* Only memory can fail here: the table is ours. */
        ASSERT(!bad);
    }
}

uint32_t config_max_requests(const struct config *c) {
    if (c->max_requests) return c->max_requests;
    return c->device == CONFIG_DEVICE_CUDA ? CONFIG_REQUESTS_CUDA : CONFIG_REQUESTS_CPU;
}

/* Whether the key at this place of the configuration was set, be it to what cannot be. */
static bool is_named(const struct reading *r, size_t off) {
    uint32_t i = 0;

    while (i < r->n_entries && keys[r->entries[i].key].off != off) i++;
    return i < r->n_entries;
}

/* What no single key can tell. */
static void check_whole(struct reading *r, const struct config *c) {
    const uint32_t n_requests = config_max_requests(c) + c->max_queue;
    const uint32_t n_rows = c->window * c->group + config_max_requests(c);
    const uint32_t n_rows_max = DEVICE_ROWS_MAX - PLAN_PREFILL_MIN;

    r->n_files = 0;
    if (!is_named(r, AT(model_path))) fault(r, 0, "model.path is not set");
    if (n_requests > ENGINE_REQUESTS_MAX)
        fault(r, 0, "engine.max_requests + engine.max_queue is %u, the limit is %d", n_requests,
              (int)ENGINE_REQUESTS_MAX);
    if (n_rows > n_rows_max)
        fault(r, 0,
              "engine.window x engine.group + engine.max_requests is %u rows, the limit is %u",
              n_rows, n_rows_max);
    if (!c->verify && (!c->certify || c->mismatch_ppm || c->fixed_shape))
        fault(r, 0,
              "experiment.verify=no: nothing is verified, so certify=no, mismatch_ppm and "
              "engine.fixed_shape say nothing");
    if (c->socket && c->admin_socket && strcmp(c->socket, c->admin_socket) == 0)
        fault(r, 0, "server.socket and server.admin_socket are the same path");
}

static struct config_origin *origins(struct reading *r, uint32_t n_files) {
    struct config_origin *o = calloc(1, sizeof(*o));

    if (!o) return NULL;
    for (size_t k = 0; k < N_KEYS; k++) o->of[k].preset = true;
    for (uint32_t i = 0; i < r->n_entries; i++) {
        o->of[r->entries[i].key].preset = false;
        o->of[r->entries[i].key].file = r->entries[i].file;
        o->of[r->entries[i].key].line = r->entries[i].line;
    }
    for (uint32_t i = 0; i < n_files; i++) {
        o->files[i] = r->files[i];
        r->files[i] = NULL;
    }
    return o;
}

/* Judges all that was read, and applies it where nothing is wrong. */
static unsigned finish(struct reading *r, struct config *out_config,
                       struct config_origin **out_origin) {
    struct config c = {0};
    uint32_t n_files = r->n_files;

    presets(&c);
    for (uint32_t i = 0; i < r->n_entries; i++) apply(r, &r->entries[i], &c);
    check_whole(r, &c);
    if (r->n_errors == 0 && out_origin) *out_origin = origins(r, n_files);
    if (r->n_errors == 0)
        *out_config = c;
    else
        config_free(&c);

    unsigned n_errors = r->n_errors;
    for (uint32_t i = 0; i < n_files; i++) free(r->files[i]);
    for (uint32_t i = 0; i < r->n_entries; i++) free(r->entries[i].value);
    free(r);
    return n_errors;
}

unsigned config_load(const struct config_sources *s, struct config *out_config,
                     struct config_origin **out_origin, FILE *errors) {
    struct reading *r = calloc(1, sizeof(*r));

    if (!r) {
        fputs("llm42d: out of memory\n", errors);
        return 1;
    }
    r->errors = errors;
    if (s->file)
        read_file(r, s->file, true);
    else
        read_chain(r, s->root ? s->root : "");
    read_sets(r, s);
    return finish(r, out_config, out_origin);
}

unsigned config_load_text(const char *name, const char *text, size_t n_bytes,
                          struct config *out_config, FILE *errors) {
    struct reading *r = calloc(1, sizeof(*r));

    if (!r) {
        fputs("llm42d: out of memory\n", errors);
        return 1;
    }
    r->errors = errors;
    read_text(r, name, text, n_bytes);
    return finish(r, out_config, NULL);
}

void config_free(struct config *c) {
    for (size_t i = 0; i < N_KEYS; i++)
        if (keys[i].kind == PATH) {
            char **field = (char **)(void *)((char *)c + keys[i].off);
            free(*field);
            *field = NULL;
        }
}

void config_origin_free(struct config_origin *o) {
    if (!o) return;
    for (size_t i = 0; i <= CONFIG_FILES_MAX; i++) free(o->files[i]);
    free(o);
}

bool config_value(const struct config *c, size_t key, const char **out_section,
                  const char **out_name, char *out_text, size_t n_bytes) {
    if (key >= N_KEYS) return false;
    const struct key *k = &keys[key];
    const void *field = (const char *)c + k->off;

    *out_section = k->section;
    *out_name = k->name;
    if (k->kind == PATH)
        (void)snprintf(out_text, n_bytes, "%s", *(char *const *)field);
    else if (k->kind == BOOL)
        (void)snprintf(out_text, n_bytes, "%s", *(const bool *)field ? "yes" : "no");
    else if (k->kind == WORD)
        (void)snprintf(out_text, n_bytes, "%s", k->words[*(const uint32_t *)field]);
    else
        number_write(k, *(const uint32_t *)field, out_text, n_bytes);
    return true;
}

void config_print(const struct config *c, const struct config_origin *o, FILE *out) {
    char text[256];
    const char *section, *name, *before = "";

    for (size_t k = 0; config_value(c, k, &section, &name, text, sizeof(text)); k++) {
        if (strcmp(section, before) != 0) fprintf(out, "%s[%s]\n", k ? "\n" : "", section);
        before = section;
        if (!o || o->of[k].preset)
            fprintf(out, "# default\n");
        else if (o->of[k].line)
            fprintf(out, "# %s:%u\n", o->files[o->of[k].file], o->of[k].line);
        else
            fprintf(out, "# %s\n", o->files[o->of[k].file]);
        fprintf(out, "%s=%s\n", name, text);
    }
}
