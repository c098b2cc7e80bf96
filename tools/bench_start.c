/* A daemon of our own, from exec to its end: readiness, memory, round trip. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_client.h"
#include "tools/bench_daemon.h"
#include "tools/bench_load.h"

enum {
    LOAD_REQUESTS = 16,
    LOAD_TOKENS = 16,
    LOAD_CONCURRENCY = 8,
    MIB_OVER = 64, /* beyond weights and KV, at most */
};

/* ---- Memory ---- */

/* A line of /proc/PID/status, in MiB. */
static double status_mib(pid_t pid, const char *key) {
    char path[64], line[256];
    double kib = -1024;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, key, strlen(key)) == 0 && line[strlen(key)] == ':')
            kib = strtod(line + strlen(key) + 1, NULL);
    if (f) fclose(f);
    return kib / 1024;
}

static double mib_of(const json_t *memory, const char *key) {
    return (double)json_integer_value(json_object_get(memory, key)) / 0x1p20;
}

/* Two names a figure: ready, and after a load. */
static void memory_report(const struct bench_options *o, const struct bench_daemon *d,
                          const json_t *info, bool loaded) {
    const char *when = loaded ? "after 16 requests" : "when ready";
    const json_t *memory = json_object_get(info, "memory_bytes");
    const double due = mib_of(memory, "weights") + mib_of(memory, "kv");
    const double rss = status_mib(d->pid, "VmRSS");
    const struct bench_target none = {0};

    bench_report_figure(&o->report, loaded ? "start.loaded_rss" : "start.rss", rss, "MiB", none,
                        "VmRSS %s", when);
    bench_report_figure(&o->report, loaded ? "start.loaded_rss_anon" : "start.rss_anon",
                        status_mib(d->pid, "RssAnon"), "MiB", none, "RssAnon %s", when);
    bench_report_figure(&o->report, loaded ? "start.loaded_rss_over" : "start.rss_over", rss - due,
                        "MiB", (struct bench_target){MIB_OVER, true},
                        "VmRSS %s beyond %.1f MiB of weights and KV", when, due);
}

/* ---- Weights ---- */

static void load_report(const struct bench_options *o, const json_t *info) {
    const json_t *load = json_object_get(info, "load");
    const double mb = (double)json_integer_value(json_object_get(load, "bytes")) / 1e6;
    const double s = (double)json_integer_value(json_object_get(load, "us")) / 1e6;
    const struct bench_target none = {0};

    if (mb == 0 || s == 0) return; /* made up */
    bench_report_figure(&o->report, "start.load", mb / 1e3 / s, "GB/s", none,
                        "%.0f MB of weights from files in %.2f s, and hashed %.2f s later", mb, s,
                        (double)json_integer_value(json_object_get(load, "digest_us")) / 1e6);
}

/* ---- The verb ---- */

static int measure(const struct bench_options *o, const struct bench_daemon *d) {
    const struct bench_target none = {0};
    struct bench_options small = *o;
    struct bench_load load = {.n = 0};
    struct llm42_io *io = NULL;
    const json_t *memory;
    json_t *info = NULL;
    int r;

    bench_report_figure(&o->report, "start.ready", (double)(bench_now_ns() - d->begin_ns) / 1e9,
                        "s",
                        (struct bench_target){strstr(o->model, "verse-4m")  ? 1
                                              : strstr(o->model, "SmolLM2") ? 5
                                                                            : 0,
                                              true},
                        "exec to READY=1");
    r = bench_client_open(d->socket, &io);
    if (r == BENCH_OK) r = bench_client_info(io, WIRE_INFO_ALL, &info);
    if (r != BENCH_OK) goto out;
    memory = json_object_get(info, "memory_bytes");
    load_report(o, info);
    bench_report_figure(&o->report, "start.weights", mib_of(memory, "weights"), "MiB", none,
                        "weights, as INFO has it");
    bench_report_figure(&o->report, "start.kv", mib_of(memory, "kv"), "MiB", none,
                        "KV cache, as INFO has it");
    bench_report_figure(&o->report, "start.work", mib_of(memory, "work"), "MiB", none,
                        "work buffers, as INFO has it");
    memory_report(o, d, info, false);
    if ((r = bench_client_ping(&o->report, io, o->n_pings)) != BENCH_OK) goto out;

    small.n_requests = LOAD_REQUESTS;
    small.concurrency = LOAD_CONCURRENCY;
    small.max_tokens = LOAD_TOKENS;
    small.rate = 0;
    small.trace = NULL;
    r = bench_load_make(&small, llm42_server(llm42_io_core(io))->context, &load);
    if (r == BENCH_OK) r = bench_load_run(io, &load);
    if (r == BENCH_OK) memory_report(o, d, info, true);
out:
    json_decref(info);
    bench_load_close(&load);
    llm42_io_close(io);
    return r;
}

int bench_start(const struct bench_options *o) {
    struct bench_daemon d;
    double stop_ms = 0;
    int stopped, r;

    bench_daemon_signals(); /* before there is anything to leave behind */
    bench_report_section(&o->report, "Start: %s, %s, policy %s", o->daemon, o->model, o->policy);
    r = bench_daemon_start(o, NULL, 0, &d);
    if (r == BENCH_OK) r = measure(o, &d);
    stopped = bench_daemon_stop(&d, r != BENCH_OK && r != BENCH_INTERRUPTED, &stop_ms);
    if (r == BENCH_OK && stopped == BENCH_OK)
        bench_report_figure(&o->report, "start.stop", stop_ms, "ms",
                            (struct bench_target){0, false}, "SIGTERM to its end, idle");
    return r != BENCH_OK ? r : stopped;
}
