/* bench_verbs - what llm42-bench measures: a function a verb, and their common options.
 *
 * Owns:   nothing.
 * Thread: one.
 * Fails:  with an exit code (enum bench_exit), the reason on stderr. */
#ifndef LLM42D_TOOLS_BENCH_VERBS_H
#define LLM42D_TOOLS_BENCH_VERBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/model.h"
#include "tools/bench_report.h"

enum { BENCH_SETS_MAX = 32, BENCH_RUNS = 3, BENCH_ROWS_MAX = 16 };

struct bench_peer;

struct bench_options {
    struct bench_report report;
    const char *model;    /* folder */
    uint32_t n_threads;   /* 0: one a processor */
    const char *policy;   /* canonical, tuned, auto, all */
    const char *socket;   /* of a running daemon */
    const char *daemon;   /* program to start */
    const char *trace;    /* CSV of lengths, or NULL */
    uint32_t n_requests;  /* of a load */
    uint32_t concurrency; /* in flight at once, at most */
    uint32_t max_tokens;  /* of one request */
    double share;         /* of deterministic requests */
    double temperature;   /* of every request of a load */
    double rate;          /* arrivals a second; 0: all at once */
    uint64_t seed;        /* of lengths, arrivals and who is deterministic */
    uint32_t n_pings;
    uint32_t n_sets;
    const char *sets[BENCH_SETS_MAX]; /* SECTION.KEY=VALUE for the daemon started */

    /* Of the GPU. */
    const char *geometry; /* a name, or a folder with a config.json */
    const char *peer;     /* program that measures the same with other libraries */
    const char *cache;    /* folder of compiled kernels, or NULL */
    const char *only;     /* families of kernels, commas between, or NULL: all */
    const char *plot;     /* SVG file of a roofline, or NULL */
    double pause_ms;      /* between replays of products; below 0: by their rows */
    uint32_t context;     /* keys of a sequence */
    uint32_t n_rows;      /* 0: the verb's own counts */
    uint32_t rows[BENCH_ROWS_MAX];

    /* Of experiments; lists have commas between, NULL: the experiment's own. */
    const char *operand; /* the experiment's name, or the report's folder */
    const char *out;     /* folder of its files */
    const char *device;  /* cpu, cuda */
    const char *systems, *workloads, *shares, *rates, *windows, *groups, *mismatches;
    const char *arrivals;         /* poisson, recorded, or NULL: poisson */
    const char *text;             /* file whose pieces are prompts, or NULL */
    double scale;                 /* of all lengths */
    uint32_t n_repeats;           /* of every run */
    uint32_t reference_flight;    /* requests at once while references are made */
    const char *reference_device; /* of references, or NULL: the same */
    double bound_ms;              /* of the end, for goodput; 0: none */
    bool honour_eos;
};

int bench_twin(const struct bench_options *o);    /* bench_twin.c: products, attention, sampling */
int bench_stage(const struct bench_options *o);   /* bench_stage.c: where a step's time goes */
int bench_engine(const struct bench_options *o);  /* bench_engine.c: tokens a second, in process */
int bench_serve(const struct bench_options *o);   /* bench_serve.c: latencies over the socket */
int bench_start(const struct bench_options *o);   /* bench_start.c: readiness and memory */
int bench_kernels(const struct bench_options *o); /* bench_kernels.c: of the GPU, beside a peer */
int bench_step(const struct bench_options *o);    /* bench_step.c: whole steps of the GPU */
int bench_weights(const struct bench_options *o); /* bench_weights.c: from a file to the GPU */
int bench_tune(const struct bench_options *o);    /* bench_tune.c: the fastest cuts, as a table */
int bench_experiment(const struct bench_options *o);        /* bench_experiment.c: of the paper */
int bench_experiment_report(const struct bench_options *o); /* bench_experiment_report.c: a page */

/* Makes it where it is not there; NULL: --out is wanted. */
int bench_folder_make(const char *path);

/* 0; or what model_read gives, or -ENOENT: no such name. */
int bench_geometry(const char *name, struct model *out_model, struct err *e);

/* The peer asked for, or NULL with a line that says why there is none; one that does not keep to
 * its protocol ends the program. */
struct bench_peer *bench_peer_for(const struct bench_options *o);
/* Its time, or BENCH_NO_CELL: no peer, no request, or it cannot, which a line tells. */
double bench_peer_us(const struct bench_report *r, struct bench_peer *p, const char *request);

/* As asked for, or one a processor. */
uint32_t bench_threads(const struct bench_options *o);

/* Text whose pieces are prompts. */
extern const char bench_text[];

#endif
