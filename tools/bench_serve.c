/* A running daemon as its clients see it. */
#include "tools/bench_client.h"
#include "tools/bench_load.h"

static const char *text_of(const json_t *o, const char *key) {
    const char *text = json_string_value(json_object_get(o, key));

    return text ? text : "unknown";
}

static long long number_of(const json_t *o, const char *key) {
    return json_integer_value(json_object_get(o, key));
}

/* What is measured, in its own words. */
static int conditions(const struct bench_options *o, struct llm42_io *io) {
    const json_t *model, *options;
    json_t *info = NULL;
    int r = bench_client_info(io, WIRE_INFO_ALL, &info);

    if (r != BENCH_OK) return r;
    model = json_object_get(info, "model");
    options = json_object_get(info, "options");
    bench_report_section(&o->report, "Daemon %s at %s", text_of(info, "version"), o->socket);
    bench_report_note(&o->report, "%s, build %s, %s; policy %s, window %lld, group %lld",
                      text_of(model, "name"), text_of(info, "build"), text_of(info, "device"),
                      text_of(options, "policy"), number_of(options, "window"),
                      number_of(options, "group"));
    bench_report_note(&o->report, "fingerprint %s", text_of(info, "fingerprint"));
    json_decref(info);
    return BENCH_OK;
}

int bench_serve(const struct bench_options *o) {
    struct bench_load load = {.n = 0};
    struct llm42_io *io = NULL;
    int r = bench_client_open(o->socket, &io);

    if (r != BENCH_OK) return r;
    r = conditions(o, io);
    if (r == BENCH_OK) r = bench_client_ping(&o->report, io, o->n_pings);
    if (r == BENCH_OK) r = bench_load_make(o, llm42_server(llm42_io_core(io))->context, &load);
    if (r != BENCH_OK) goto out;

    bench_report_section(&o->report, "Load: %u requests, %s, %u in flight at most", load.n,
                         o->rate > 0 ? "Poisson arrivals" : "each when another ends",
                         o->concurrency);
    bench_report_note(&o->report,
                      "rate %.3f/s, deterministic share %.2f, max_tokens %u, temperature %.2f, "
                      "seed %llu, lengths %s, %u cut to fit",
                      o->rate, o->share, o->max_tokens, o->temperature, (unsigned long long)o->seed,
                      o->trace ? o->trace : "exponential", load.n_cut);
    if (o->rate > 0)
        bench_report_note(&o->report,
                          "times are from when a request was due, not when it was sent");
    r = bench_load_run(io, &load);
    if (r == BENCH_OK) bench_load_report(o, &load);
out:
    bench_load_close(&load);
    llm42_io_close(io);
    return r;
}
