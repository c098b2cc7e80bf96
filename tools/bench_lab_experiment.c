#include "tools/bench_lab_experiment.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/version.h"
#include "runtime/err.h"

const char *const bench_lab_names[BENCH_LABS] = {"gemm", "norm", "invariance", "verify-cost"};
const char *const bench_lab_sets[BENCH_LAB_SETS] = {"canonical", "tuned", "stock"};

struct schedule bench_lab_schedule(const struct bench_lab *l, uint32_t set, uint32_t n_rows,
                                   uint32_t n_seqs, uint32_t n_keys) {
    const struct schedule_load load = {n_rows, n_seqs, n_keys};

    if (set == 0) return schedule_canonical();
    return schedule_fast(set == 1 ? SCHEDULE_TUNED : SCHEDULE_STOCK, &l->model, &load);
}

/* ---- Rows ---- */

bool bench_lab_wants(struct bench_lab_run *r, const char *fmt, ...) {
    char key[BENCH_KEY_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(key, sizeof(key), fmt, args);
    va_end(args);
    if (bench_daemon_interrupted()) return false;
    if (!bench_table_has(&r->table, key)) return true;
    r->n_there++;
    return false;
}

int bench_lab_row(struct bench_lab_run *r, const struct bench_row *row) {
    FILE *f;
    int code = bench_file_columns(r->path, &r->table, row);

    if (code != BENCH_OK) return code;
    f = bench_file_append(r->path);
    if (!f) return BENCH_FAILED;
    if (!r->begun) fprintf(f, "%s%s\n", r->conditions, row->names);
    r->begun = true;
    fprintf(f, "%s\n", row->values);
    fprintf(stderr, "%s: %s\n", r->name, row->values);
    r->n_done++;
    return bench_file_close(f, r->path);
}

void bench_lab_wrong(struct bench_lab_run *r, const char *fmt, ...) {
    char text[256];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    bench_say("%s: wrong bits: %s", r->name, text);
    r->n_wrong++;
}

/* ---- The verb ---- */

static const struct lab {
    int (*run)(struct bench_lab_run *r);
    uint32_t n_layers;                    /* as in struct bench_lab_size, on a GPU */
    struct bench_lab_size on_gpu, on_cpu; /* but for the layers of a GPU */
} experiments[BENCH_LABS] = {
    {bench_lab_gemm, UINT32_MAX, {0, 2048, 256, 2048, 1 << 16}, {1, 256, 64, 256, 1 << 14}},
    {bench_lab_norm, UINT32_MAX, {0, 2048, 256, 2048, 1 << 16}, {1, 256, 64, 256, 1 << 14}},
    {bench_lab_invariance, 1, {0, 2048, 256, 2048, 1 << 19}, {1, 1024, 256, 1024, 1 << 15}},
    {bench_lab_verify_cost, 0, {0, 2048, 1280, 8192, 1 << 19}, {0, 256, 256, 1024, 1 << 14}},
};

static int geometry(const struct bench_options *o, struct model *out_model) {
    struct err e = {""};
    const int r = o->geometry ? bench_geometry(o->geometry, out_model, &e)
                              : model_read(o->model, out_model, &e);

    if (r < 0) bench_say("%s", e.text);
    return r < 0 ? BENCH_USAGE : BENCH_OK;
}

static int file_open(struct bench_lab_run *r, const struct model *m) {
    const struct bench_options *o = r->o;
    char date[32];
    const time_t now = time(NULL);
    struct tm day;
    int code;

    snprintf(r->path, sizeof(r->path), "%.4000s/%s.csv", o->out, r->name);
    code = bench_file_take(r->path, &r->lock_fd);
    if (code == BENCH_OK) code = bench_table_read(r->path, &r->table);
    if (code != BENCH_OK) return code;
    r->begun = r->table.n_columns > 0;
    bench_file_note(r->conditions, "model", "%s", m->name);
    bench_file_note(r->conditions, "engine.device", "%s", o->device);
    bench_file_note(r->conditions, "seed", "%llu", (unsigned long long)o->seed);
    bench_file_note(r->conditions, "version", "%s, build %s", LLM42_VERSION, version_commit());
    bench_file_note(r->conditions, "layers", "%u", r->lab.model.n_layers);
    bench_file_note(r->conditions, "device", "%s", r->lab.describe);
    code = bench_file_compare(r->path, &r->table, r->conditions);
    (void)gmtime_r(&now, &day);
    (void)strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &day);
    bench_file_note(r->conditions, "llm42-bench", "%s, experiment %s, begun %s, %ld cores",
                    version_whole(), r->name, date, sysconf(_SC_NPROCESSORS_ONLN));
    return code;
}

/* ---- What is asked for ---- */

static int twice(const char *option, unsigned long n) {
    bench_say("--%s: %lu is asked for twice", option, n);
    return BENCH_USAGE;
}

/* A list of whole numbers, each once. */
static int check_list(const char *option, const char *text, unsigned long most) {
    bool seen[256 + 1] = {false};

    for (const char *at = text; at; at = strchr(at, ',')) {
        char *end;
        unsigned long n;

        if (at > text) at++;
        n = strtoul(at, &end, 10);
        if (!isdigit((unsigned char)*at) || (*end && *end != ',') || n < 1 || n > most) {
            bench_say("--%s %s: whole numbers, 1 to %lu", option, text, most);
            return BENCH_USAGE;
        }
        if (seen[n]) return twice(option, n);
        seen[n] = true;
    }
    return BENCH_OK;
}

static int check_rows(const struct bench_options *o, uint32_t most) {
    for (uint32_t i = 0; i < o->n_rows; i++) {
        for (uint32_t k = 0; k < i; k++)
            if (o->rows[k] == o->rows[i]) return twice("rows", o->rows[i]);
        if (o->rows[i] <= most) continue;
        bench_say("--rows %u: up to %u here", o->rows[i], most);
        return BENCH_USAGE;
    }
    return BENCH_OK;
}

/* What an experiment has no use for is no option of it. */
static int check(const struct bench_lab_run *r, const struct lab *lab) {
    const struct bench_options *o = r->o;
    const bool windows = lab->run == bench_lab_verify_cost;
    const struct bench_lab_size *size = r->is_cuda ? &lab->on_gpu : &lab->on_cpu;
    const struct {
        const char *option, *given;
        bool used;
    } options[] = {
        {"systems", o->systems, false},
        {"workloads", o->workloads, false},
        {"shares", o->shares, false},
        {"rates", o->rates, false},
        {"mismatches", o->mismatches, false},
        {"arrivals", o->arrivals, false},
        {"trace", o->trace, false},
        {"text", o->text, false},
        {"requests", o->n_requests ? "" : NULL, false},
        {"set", o->n_sets ? "" : NULL, false},
        {"eos", o->honour_eos ? "" : NULL, false},
        {"bound", o->bound_ms > 0 ? "" : NULL, false},
        {"reference-device", o->reference_device, false},
        {"windows", o->windows, windows},
        {"groups", o->groups, windows},
        {"rows", o->n_rows ? "" : NULL, !windows},
    };
    int code;

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        if (options[i].given && !options[i].used) {
            bench_say("--%s: not of %s", options[i].option, r->name);
            return BENCH_USAGE;
        }
    code = check_list("windows", o->windows, 256);
    if (code == BENCH_OK) code = check_list("groups", o->groups, 64);
    if (code != BENCH_OK) return code;
    return check_rows(o, lab->run == bench_lab_invariance ? size->n_seqs : size->n_rows);
}

static int run(struct bench_lab_run *r, const struct lab *lab) {
    struct bench_lab_size size = r->is_cuda ? lab->on_gpu : lab->on_cpu;
    struct model m;
    int code = geometry(r->o, &m);

    if (code == BENCH_OK) code = check(r, lab);
    if (code != BENCH_OK) return code;
    if (r->is_cuda) size.n_layers = lab->n_layers;
    bench_lab_open(&r->lab, r->o, r->o->device, &m, &size);
    code = file_open(r, &m);
    if (code == BENCH_OK) code = lab->run(r);
    bench_lab_close(&r->lab);
    bench_table_close(&r->table);
    if (code == BENCH_OK && bench_daemon_interrupted()) code = BENCH_INTERRUPTED;
    if (code == BENCH_OK && r->n_there + r->n_done + r->n_wrong == 0) {
        bench_say("%s: none of what is asked for fits", r->name);
        code = BENCH_USAGE;
    }
    bench_report_note(&r->o->report, "%s: %u rows were there, %u done, %u wrong", r->path,
                      r->n_there, r->n_done, r->n_wrong);
    if (code == BENCH_INTERRUPTED) bench_say("interrupted; the same command goes on from here");
    return code == BENCH_OK && r->n_wrong > 0 ? BENCH_FAILED : code;
}

static int find(const char *name) {
    int i = 0;

    while (i < BENCH_LABS && (!name || strcmp(name, bench_lab_names[i]) != 0)) i++;
    return i;
}

bool bench_lab_is(const char *name) {
    return find(name) < BENCH_LABS;
}

int bench_lab_experiment(const struct bench_options *o) {
    const int i = find(o->operand);
    struct bench_lab_run *r = calloc(1, sizeof(*r));
    int code;

    if (!r) return BENCH_FAILED;
    r->o = o;
    r->name = bench_lab_names[i];
    r->lock_fd = -1;
    r->is_cuda = strcmp(o->device, "cuda") == 0;
    bench_daemon_signals();
    code = run(r, &experiments[i]);
    if (r->lock_fd >= 0) close(r->lock_fd);
    free(r);
    return code;
}
