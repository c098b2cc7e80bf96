#include "tools/bench_experiment_session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/version.h"
#include "runtime/sha256.h"
#include "tools/bench_client.h"
#include "tools/bench_experiment_file.h"

enum {
    WARM_REQUESTS = 8, /* before a daemon is measured: kernels and graphs are made at first use */
    WARM_PROMPT = 32,
    WARM_TOKENS = 8,
    TEXT_BYTES_MAX = 64 << 20,
};

/* ---- Conditions: lines "# name: value" ---- */

/* "none", or the file's name and the hash of its bytes. */
static int file_words(const char *path, char *out, size_t n_out, char **out_text, size_t *out_n) {
    char hex[SHA256_HEX_BYTES];
    uint8_t digest[SHA256_BYTES];
    const char *name = strrchr(path, '/');
    char *text = malloc(TEXT_BYTES_MAX);
    FILE *f = fopen(path, "re");
    size_t n = f && text ? fread(text, 1, TEXT_BYTES_MAX, f) : 0;

    if (!f || !text || n == 0 || n == TEXT_BYTES_MAX) {
        bench_say("%s: %s", path, !f ? strerror(errno) : n == 0 ? "is empty" : "is too large");
        if (f) fclose(f);
        free(text);
        return BENCH_USAGE;
    }
    fclose(f);
    sha256_of(text, n, digest);
    sha256_hex(digest, hex);
    snprintf(out, n_out, "%s sha256 %s", name ? name + 1 : path, hex);
    *out_text = text;
    *out_n = n;
    return BENCH_OK;
}

/* Outputs that tell rollbacks want prompts that are text; speed does not. */
static bool wants_text(const struct bench_session *s) {
    const enum bench_experiment e = s->plan.experiment;

    return s->o->text || e == BENCH_SPANS || e == BENCH_WINDOW || e == BENCH_ABLATION;
}

static int asked(struct bench_session *s) {
    const struct bench_options *o = s->o;
    char words[4096] = "none", *whole, *text;
    size_t n;
    int r = BENCH_OK;

    if (o->trace && (r = file_words(o->trace, words, sizeof(words), &text, &n)) == BENCH_OK)
        free(text);
    bench_file_note(s->asked, "trace", "%s", words);
    snprintf(words, sizeof(words), wants_text(s) ? "pieces of the program's own text" : "any ids");
    if (r == BENCH_OK && o->text &&
        (r = file_words(o->text, words, sizeof(words), &text, &n)) == BENCH_OK)
        free(text);
    bench_file_note(s->asked, "prompts", "%s", words);
    whole = realpath(o->model, NULL);
    bench_file_note(s->asked, "model", "%s", whole ? whole : o->model);
    free(whole);
    bench_file_note(s->asked, "engine.device", "%s", o->device);
    bench_file_note(s->asked, "engine.threads", "%u", o->n_threads);
    words[0] = '\0';
    for (uint32_t i = 0; i < o->n_sets; i++)
        snprintf(words + strlen(words), sizeof(words) - strlen(words), " %s", o->sets[i]);
    bench_file_note(s->asked, "settings", "%s", words[0] ? words + 1 : "none");
    bench_file_note(s->asked, "seed", "%llu", (unsigned long long)o->seed);
    bench_file_note(s->asked, "scale", "%g", o->scale);
    bench_file_note(s->asked, "temperature", "%g", o->temperature);
    bench_file_note(s->asked, "end-of-text ids", "%s", o->honour_eos ? "honoured" : "ignored");
    bench_file_note(s->asked, "bound of goodput, ms", "%g", o->bound_ms);
    bench_file_note(s->asked, "in flight at most", "%d", BENCH_FLIGHT_MAX);
    return r;
}

static const char *text_of(const json_t *o, const char *key) {
    const char *text = json_string_value(json_object_get(o, key));

    return text ? text : "unknown";
}

/* What the first daemon says of itself. */
static int found(struct bench_session *s) {
    char hex[SHA256_HEX_BYTES];
    json_t *info = NULL;
    int r = bench_client_info(s->io, WIRE_INFO_ALL, &info);

    if (r != BENCH_OK) return r;
    sha256_hex(s->fingerprint, hex);
    bench_file_note(s->found, "version", "%s, build %s", text_of(info, "version"),
                    text_of(info, "build"));
    bench_file_note(s->found, "fingerprint", "%s", hex);
    bench_file_note(s->found, "device", "%s", text_of(info, "device"));
    bench_file_note(s->found, "model's name", "%s",
                    text_of(json_object_get(info, "model"), "name"));
    bench_file_note(s->found, "context", "%u", s->context);
    json_decref(info);
    return bench_file_compare(s->path, &s->table, s->found);
}

/* ---- The file ---- */

/* Lines of the day: not compared. */
static void machine_write(FILE *f, const struct bench_session *s) {
    char date[32], line[512];
    const time_t now = time(NULL);
    struct tm day;
    FILE *smi;

    (void)gmtime_r(&now, &day);
    (void)strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &day);
    fprintf(f, "# llm42-bench: %s, experiment %s, begun %s, %ld cores\n", version_whole(),
            bench_experiment_names[s->plan.experiment], date, sysconf(_SC_NPROCESSORS_ONLN));
    fprintf(f, "# reference: %u at once, on %s\n", s->o->reference_flight,
            s->o->reference_device ? s->o->reference_device : s->o->device);
    if (strcmp(s->o->device, "cuda") != 0) return;
    smi = popen("nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,"
                "power.limit --format=csv,noheader 2> /dev/null",
                "re");
    if (smi && fgets(line, sizeof(line), smi)) fprintf(f, "# gpu: %s", line);
    if (smi) (void)pclose(smi);
}

static int append(struct bench_session *s, const char *names, const char *line) {
    const bool fresh = !s->begun && names;
    FILE *f = bench_file_append(s->path);

    if (!f) return BENCH_FAILED;
    if (fresh && s->table.n_notes == 0) {
        machine_write(f, s);
        fprintf(f, "%s%s", s->asked, s->found);
    }
    if (fresh) fprintf(f, "%s\n", names);
    s->begun = s->begun || names;
    fprintf(f, "%s\n", line);
    return bench_file_close(f, s->path);
}

int bench_session_row(struct bench_session *s, const struct bench_row *row) {
    const int r = bench_file_columns(s->path, &s->table, row);

    return r == BENCH_OK ? append(s, row->names, row->values) : r;
}

int bench_session_void(struct bench_session *s, const char *key, const char *why) {
    char line[BENCH_KEY_BYTES + 512];

    if (!s->begun && s->table.n_notes == 0) return BENCH_OK; /* no file yet: said on stderr */
    snprintf(line, sizeof(line), "# void: %s: %s", key, why);
    return append(s, NULL, line);
}

bool bench_session_has(const struct bench_session *s, const struct bench_run *run) {
    char key[BENCH_KEY_BYTES];

    bench_run_key(run, key);
    return bench_table_has(&s->table, key);
}

int bench_session_open(const struct bench_options *o, struct bench_session *s) {
    int r;

    s->o = o;
    s->device = o->device;
    s->daemon.notify_fd = -1;
    snprintf(s->path, sizeof(s->path), "%.4000s/%s.csv", o->out,
             bench_experiment_names[s->plan.experiment]);
    r = bench_file_take(s->path, &s->lock_fd);
    if (r == BENCH_OK) r = asked(s);
    if (r == BENCH_OK) r = bench_table_read(s->path, &s->table);
    s->begun = s->table.n_columns > 0;
    if (r == BENCH_OK && !s->begun) { /* conditions alone: it ended before its first row */
        bench_table_close(&s->table);
        if (ftruncate(s->lock_fd, 0) < 0) {
            bench_say("%s: %s", s->path, strerror(errno));
            r = BENCH_FAILED;
        }
    }
    return r == BENCH_OK ? bench_file_compare(s->path, &s->table, s->asked) : r;
}

void bench_session_close(struct bench_session *s) {
    bench_plan_close(&s->plan);
    bench_table_close(&s->table);
    bench_workload_close(&s->workload);
    bench_reference_close(&s->reference);
    free(s->text_ids);
    if (s->lock_fd >= 0) close(s->lock_fd);
}

/* ---- The daemon ---- */

int bench_session_daemon_end(struct bench_session *s, bool failed) {
    if (!s->settings[0]) return BENCH_OK;
    llm42_io_close(s->io);
    s->io = NULL;
    s->settings[0] = '\0';
    return bench_daemon_stop(&s->daemon, failed, NULL);
}

/* What engine.max_queue may be beside --set engine.max_requests. */
static uint32_t queue_of(const struct bench_options *o) {
    static const char key[] = "engine.max_requests=";
    unsigned long n = 256; /* at most, where it is not said */

    for (uint32_t i = 0; i < o->n_sets; i++)
        if (strncmp(o->sets[i], key, sizeof(key) - 1) == 0)
            n = strtoul(o->sets[i] + sizeof(key) - 1, NULL, 10);
    return n < BENCH_FLIGHT_MAX ? BENCH_FLIGHT_MAX - (uint32_t)n : 0;
}

static int warm_up(struct bench_session *s) {
    struct bench_load l;
    int r = bench_load_open(WARM_REQUESTS, &l);

    if (r != BENCH_OK) return r;
    for (uint32_t i = 0; i < l.n; i++)
        l.requests[i] =
            (struct bench_load_request){.id = i, .n_prompt = WARM_PROMPT, .n_tokens = WARM_TOKENS};
    l.concurrency = l.n;
    l.prompts = s->prompts;
    r = bench_load_room(&l, false);
    if (r == BENCH_OK) r = bench_load_run(s->io, &l);
    bench_load_close(&l);
    return r;
}

static int prompts_make(struct bench_session *s) {
    char words[4096], *text = NULL;
    size_t n = strlen(bench_text);
    int r = BENCH_OK;

    s->prompts.seed = s->o->seed;
    if (!wants_text(s)) return BENCH_OK;
    if (s->o->text) r = file_words(s->o->text, words, sizeof(words), &text, &n);
    if (r == BENCH_OK)
        r = bench_client_ids(s->io, text ? text : bench_text, n, &s->text_ids, &s->prompts.n_ids);
    s->prompts.ids = s->text_ids;
    free(text);
    return r;
}

/* All are of one model; what is noted is of the device that is measured. */
static int greet(struct bench_session *s) {
    const struct wire_hello_ok *hello;
    int r = bench_client_open(s->daemon.socket, &s->io);

    if (r != BENCH_OK) return r;
    hello = llm42_server(llm42_io_core(s->io));
    if (s->met && memcmp(s->fingerprint, hello->fingerprint, sizeof(s->fingerprint)) != 0) {
        bench_say("the daemon has another fingerprint than the one before");
        return BENCH_FAILED;
    }
    if (!s->met) {
        memcpy(s->fingerprint, hello->fingerprint, sizeof(s->fingerprint));
        s->context = hello->context;
        s->prompts.vocab = hello->vocab;
        r = prompts_make(s);
    }
    s->met = true;
    if (r == BENCH_OK && !s->found[0] && s->device == s->o->device) r = found(s);
    return r == BENCH_OK ? warm_up(s) : r;
}

int bench_session_daemon(struct bench_session *s, const struct bench_system *system,
                         uint32_t window, uint32_t group, uint32_t mismatch_ppm) {
    struct bench_options o = *s->o;
    const char *sets[BENCH_DAEMON_SETS_MAX];
    char device[64], queue[64], windows[64], groups[64], mismatch[64], settings[256];
    uint32_t n = 0;
    int r;

    snprintf(settings, sizeof(settings), "%s %u %u %u %.40s", system->name, window, group,
             mismatch_ppm, s->device);
    if (strcmp(settings, s->settings) == 0) return BENCH_OK;
    r = bench_session_daemon_end(s, false);
    if (r != BENCH_OK) return r;

    snprintf(device, sizeof(device), "engine.device=%.40s", s->device);
    snprintf(queue, sizeof(queue), "engine.max_queue=%u", queue_of(&o));
    snprintf(windows, sizeof(windows), "engine.window=%u", window);
    snprintf(groups, sizeof(groups), "engine.group=%u", group);
    snprintf(mismatch, sizeof(mismatch), "experiment.mismatch_ppm=%u", mismatch_ppm);
    sets[n++] = device;
    sets[n++] = queue;
    sets[n++] = "server.max_requests_per_connection=1024";
    if (window > 0) sets[n++] = windows;
    if (group > 0) sets[n++] = groups;
    if (system->mismatch) sets[n++] = mismatch;
    for (int i = 0; i < 3 && system->sets[i]; i++) sets[n++] = system->sets[i];
    o.policy = system->policy;

    memcpy(s->settings, settings, sizeof(settings)); /* from here on there is one to stop */
    r = bench_daemon_start(&o, sets, n, &s->daemon);
    return r == BENCH_OK ? greet(s) : r;
}

/* ---- Requests and references ---- */

int bench_session_workload(struct bench_session *s, const char *name) {
    uint32_t n = 0;
    int r;

    if (strcmp(s->workload.name, name) == 0) return BENCH_OK;
    bench_workload_close(&s->workload);
    bench_reference_close(&s->reference);
    for (uint32_t i = 0; i < s->plan.n; i++)
        if (strcmp(s->plan.runs[i].workload, name) == 0 && s->plan.runs[i].n_requests > n)
            n = s->plan.runs[i].n_requests;
    r = bench_workload_make(s->o, name, n, s->context, &s->workload);
    if (r != BENCH_OK) return r;
    return bench_reference_open(s->o, &s->workload, &s->prompts, s->fingerprint, &s->reference);
}

/* Requests that runs to come will flag. */
static int needs(const struct bench_session *s, bool *need) {
    for (uint32_t i = 0; i < s->plan.n; i++) {
        const struct bench_run *run = &s->plan.runs[i];
        struct bench_load l;
        int r;

        if (strcmp(run->workload, s->workload.name) != 0 || run->share == 0) continue;
        if (bench_session_has(s, run)) continue;
        r = bench_workload_load(s->o, &s->workload, run, false, &l);
        if (r != BENCH_OK) return r;
        for (uint32_t k = 0; k < l.n; k++)
            if (l.requests[k].deterministic) need[l.requests[k].id] = true;
        bench_load_close(&l);
    }
    return BENCH_OK;
}

int bench_session_references(struct bench_session *s) {
    int r;

    if (s->o->reference_device) s->device = s->o->reference_device;
    r = bench_session_daemon(s, bench_system_find("canonical"), 0, 0, 0);
    for (uint32_t i = 0; r == BENCH_OK && i < s->plan.n; i++) {
        bool *need;

        /* Where a workload begins; again in later repeats, when nothing is left to do. */
        if (strcmp(s->plan.runs[i].workload, s->workload.name) == 0) continue;
        if (s->plan.runs[i].repeat > 0) break;
        r = bench_session_workload(s, s->plan.runs[i].workload);
        need = r == BENCH_OK ? calloc(s->workload.n, sizeof(*need)) : NULL;
        if (r == BENCH_OK) r = need ? needs(s, need) : BENCH_FAILED;
        if (r == BENCH_OK)
            r = bench_reference_fill(s->o, &s->workload, &s->prompts, s->io, need, &s->reference);
        free(need);
    }
    s->device = s->o->device;
    return r;
}
