/* Which runs an experiment has, and in which order: A B C, A B C, never A A B B. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_client.h"
#include "tools/bench_experiment.h"

enum { PLAN_RUNS_MAX = 20000, GRID_MAX = 1024 /* rows of a pass, in the grid of ablation */ };

const char *const bench_experiment_names[BENCH_EXPERIMENTS] = {"join",     "spans",   "window",
                                                               "ablation", "offline", "online"};

/* ---- Systems ---- */

#define UNCERTIFIED "experiment.certify=no"
#define STOCK "experiment.fast=stock"

static const struct bench_system systems[] = {
    /* The fastest there is, and what other engines decode on. */
    {"nondet", "tuned", false, false, false, {"experiment.verify=no"}},
    {"nondet-stock", "tuned", false, false, false, {"experiment.verify=no", STOCK}},
    {"canonical", "canonical", true, false, false, {NULL}},
    {"auto", "auto", true, true, false, {NULL}},
    {"tuned", "tuned", true, true, false, {NULL}},
    {"stock", "tuned", true, true, false, {STOCK}},
    /* The paper's mechanism: nothing is certified. */
    {"paper", "tuned", true, true, false, {UNCERTIFIED, STOCK}},
    {"paper-fixed", "tuned", true, true, false, {UNCERTIFIED, STOCK, "engine.fixed_shape=yes"}},
    {"paper+mismatch", "tuned", true, true, true, {UNCERTIFIED}},
};

const struct bench_system *bench_system_find(const char *name) {
    for (size_t i = 0; i < sizeof(systems) / sizeof(systems[0]); i++)
        if (strcmp(systems[i].name, name) == 0) return &systems[i];
    return NULL;
}

/* ---- Lists ---- */

struct list {
    char text[1024];
    const char *entries[BENCH_LIST_MAX];
    uint32_t n;
};

static int list_read(struct list *l, const char *option, const char *given, const char *otherwise) {
    char *rest = l->text, *entry;

    if ((size_t)snprintf(l->text, sizeof(l->text), "%s", given ? given : otherwise) >=
        sizeof(l->text)) {
        bench_say("--%s: over %zu bytes", option, sizeof(l->text) - 1);
        return BENCH_USAGE;
    }
    l->n = 0;
    while ((entry = strsep(&rest, ","))) {
        if (l->n == BENCH_LIST_MAX || !*entry) {
            bench_say("--%s: 1 to %d entries, commas between", option, BENCH_LIST_MAX);
            return BENCH_USAGE;
        }
        l->entries[l->n++] = entry;
    }
    return BENCH_OK;
}

struct numbers {
    double values[BENCH_LIST_MAX];
    uint32_t n;
};

static int numbers_read(struct numbers *out, const char *option, const char *given,
                        const char *otherwise, double min, double max, bool whole) {
    struct list l;
    int r = list_read(&l, option, given, otherwise);

    out->n = 0;
    for (uint32_t i = 0; r == BENCH_OK && i < l.n; i++) {
        char *end;
        const double v = strtod(l.entries[i], &end);

        if (end == l.entries[i] || *end || !(v >= min && v <= max) || (whole && v != floor(v))) {
            bench_say("--%s %s: a %snumber, %g to %g", option, l.entries[i], whole ? "whole " : "",
                      min, max);
            r = BENCH_USAGE;
        }
        out->values[out->n++] = v;
    }
    return r;
}

/* ---- An experiment's own values, where the options say nothing ---- */

static const struct defaults {
    const char *workloads, *systems, *shares, *windows, *groups;
    uint32_t n_requests;
    bool grid; /* windows and groups are crossed, else taken in pairs */
} defaults[BENCH_EXPERIMENTS] = {
    [BENCH_JOIN] = {"fixed:512/256,upto:512/256,fixed:512/512,upto:512/512",
                    "nondet,canonical,auto,tuned,stock,paper", "0", "64,64", "1,8", 0, false},
    [BENCH_SPANS] = {"sharegpt/512", "nondet-stock,canonical", "100", "32", "8", 350, false},
    [BENCH_WINDOW] = {"sharegpt", "stock,paper", "100", "16,32,64,128,256", "1", 4096, true},
    [BENCH_ABLATION] = {"sharegpt", "stock,paper", "100", "16,32,64,128,256", "1,2,4,8,16,32,64",
                        4096, true},
    [BENCH_OFFLINE] = {"sharegpt,arxiv,fixed:512/256,upto:512/256,fixed:1024/256,upto:1024/256,"
                       "fixed:1024/512,upto:1024/512,fixed:1024/1024,upto:1024/1024,"
                       "fixed:2048/256,upto:2048/256,fixed:2048/512,upto:2048/512,"
                       "fixed:4096/512,upto:4096/512,fixed:4096/1024,upto:4096/1024,"
                       "fixed:4096/4096,upto:4096/4096",
                       "nondet,canonical,auto,tuned,stock,paper,paper+mismatch",
                       "0,2,5,10,20,50,100", "64,32", "8,16", 4096, false},
    [BENCH_ONLINE] = {"sharegpt,arxiv,mixed", "nondet,canonical,auto,tuned,stock,paper",
                      "2,5,10,20,50,100", "64", "8", 1024, false},
};

static const char *rates_of(enum bench_experiment e, const char *workload, bool recorded) {
    switch (e) {
    case BENCH_SPANS:
        return "6";
    case BENCH_WINDOW:
        return "8,12";
    case BENCH_ABLATION:
        return "6,8,11,12";
    case BENCH_ONLINE:
        if (recorded) return "0";
        if (strncmp(workload, "arxiv", 5) == 0) return "1,1.2,1.4,1.6";
        if (strncmp(workload, "mixed", 5) == 0) return "4,4.5,5,5.5";
        return "12,14,16,18";
    default:
        return "0";
    }
}

/* ---- Making it ---- */

struct making {
    const struct bench_options *o;
    const struct defaults *d;
    struct bench_plan *plan;
    struct list workloads, systems;
    struct numbers shares, windows, groups, mismatches;
    bool recorded;
};

static bool same(const struct bench_run *a, const struct bench_run *b) {
    return a->system == b->system && a->share == b->share && a->arrivals == b->arrivals &&
           a->rate == b->rate && a->window == b->window && a->group == b->group &&
           a->mismatch_ppm == b->mismatch_ppm && a->n_requests == b->n_requests &&
           a->repeat == b->repeat && strcmp(a->workload, b->workload) == 0;
}

static int add(struct making *m, const struct bench_run *run) {
    struct bench_plan *p = m->plan;
    char key[BENCH_KEY_BYTES];
    struct bench_run *more;

    for (uint32_t i = 0; i < p->n; i++)
        if (same(&p->runs[i], run)) {
            bench_run_key(run, key);
            bench_say("the lists ask twice for %s", key);
            return BENCH_USAGE;
        }

    if (p->n == PLAN_RUNS_MAX) {
        bench_say("the lists ask for over %d runs", PLAN_RUNS_MAX);
        return BENCH_USAGE;
    }
    if (p->n == p->n_room) {
        more = realloc(p->runs, (p->n_room * 2 + 64) * sizeof(*more));
        if (!more) return BENCH_FAILED;
        p->runs = more;
        p->n_room = p->n_room * 2 + 64;
    }
    p->runs[p->n++] = *run;
    return BENCH_OK;
}

/* Shares of one system at one window and group, each at each forced rate. */
static int add_shares(struct making *m, struct bench_run run) {
    const bool some = run.system->flags && strcmp(run.system->policy, "canonical") != 0;
    const uint32_t n_shares = some && !run.system->mismatch ? m->shares.n : 1;
    const uint32_t n_mismatches = run.system->mismatch ? m->mismatches.n : 1;
    int r = BENCH_OK;

    for (uint32_t i = 0; r == BENCH_OK && i < n_shares; i++)
        for (uint32_t k = 0; r == BENCH_OK && k < n_mismatches; k++) {
            run.share = !run.system->flags              ? 0
                        : some && !run.system->mismatch ? m->shares.values[i]
                                                        : 100;
            if (m->plan->experiment == BENCH_JOIN && some) run.share = BENCH_LAST_ONE;
            run.mismatch_ppm = run.system->mismatch ? (uint32_t)m->mismatches.values[k] : 0;
            r = add(m, &run);
        }
    return r;
}

static int add_windows(struct making *m, struct bench_run run) {
    const uint32_t n_windows = run.system->windows ? m->windows.n : 1;
    int r = BENCH_OK;

    for (uint32_t w = 0; r == BENCH_OK && w < n_windows; w++) {
        const uint32_t n_groups = run.system->windows && m->d->grid ? m->groups.n : 1;

        for (uint32_t g = 0; r == BENCH_OK && g < n_groups; g++) {
            const double *group = &m->groups.values[m->d->grid ? g : m->groups.n > 1 ? w : 0];

            run.window = run.system->windows ? (uint32_t)m->windows.values[w] : 0;
            run.group = run.system->windows ? (uint32_t)*group : 0;
            if (run.window * run.group > GRID_MAX && m->d->grid) continue;
            r = add_shares(m, run);
        }
    }
    return r;
}

/* Without the joiner only where nobody is deterministic: what the others do by themselves. */
static int add_join(struct making *m, struct bench_run run) {
    const uint32_t n_alone = m->o->n_requests               ? m->o->n_requests
                             : strstr(run.workload, "/512") ? 8
                                                            : 10;
    int r = BENCH_OK;

    run.n_requests = n_alone;
    if (!run.system->flags) r = add_windows(m, run);
    run.n_requests = n_alone + 1;
    return r == BENCH_OK ? add_windows(m, run) : r;
}

static int add_rates(struct making *m, struct bench_run run) {
    const enum bench_experiment e = m->plan->experiment;
    const bool recorded = m->recorded && strncmp(run.workload, "trace", 5) == 0;
    struct numbers rates;
    int r = numbers_read(&rates, "rates", m->o->rates, rates_of(e, run.workload, recorded), 0, 1e6,
                         false);

    run.n_requests = m->o->n_requests ? m->o->n_requests : m->d->n_requests;
    for (uint32_t i = 0; r == BENCH_OK && i < rates.n; i++) {
        run.rate = rates.values[i];
        run.arrivals = recorded ? BENCH_RECORDED : run.rate > 0 ? BENCH_POISSON : BENCH_AT_ONCE;
        r = e == BENCH_JOIN ? add_join(m, run) : add_windows(m, run);
    }
    return r;
}

/* A trace takes the place of what is fitted; offline it comes first. */
static const char *workloads_of(const struct making *m, char *text, size_t n_bytes) {
    const enum bench_experiment e = m->plan->experiment;

    if (!m->o->trace || e == BENCH_JOIN) return m->d->workloads;
    if (e == BENCH_SPANS) return "trace/512";
    if (e != BENCH_OFFLINE) return "trace";
    snprintf(text, n_bytes, "trace,%s", m->d->workloads);
    return text;
}

/* What an experiment has no use for is no option of it. */
static int check_used(const struct bench_options *o, enum bench_experiment e) {
    const struct {
        const char *option, *given;
        bool used;
    } options[] = {
        {"rates", o->rates, e != BENCH_JOIN && e != BENCH_OFFLINE},
        {"arrivals", o->arrivals, e != BENCH_JOIN && e != BENCH_OFFLINE},
        {"shares", o->shares, e != BENCH_JOIN},
        {"geometry", o->geometry, false},
        {"rows", o->n_rows ? "" : NULL, false},
    };

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        if (options[i].given && !options[i].used) {
            bench_say("--%s: not of %s", options[i].option, bench_experiment_names[e]);
            return BENCH_USAGE;
        }
    if (o->arrivals && strcmp(o->arrivals, "poisson") != 0 &&
        strcmp(o->arrivals, "recorded") != 0) {
        bench_say("--arrivals %s: poisson or recorded", o->arrivals);
        return BENCH_USAGE;
    }
    return BENCH_OK;
}

static int read_lists(struct making *m) {
    const struct bench_options *o = m->o;
    char workloads[1024];
    int r = check_used(o, m->plan->experiment);

    if (r == BENCH_OK)
        r = list_read(&m->workloads, "workloads", o->workloads,
                      workloads_of(m, workloads, sizeof(workloads)));
    if (r == BENCH_OK) r = list_read(&m->systems, "systems", o->systems, m->d->systems);
    if (r == BENCH_OK)
        r = numbers_read(&m->shares, "shares", o->shares, m->d->shares, 0, 100, false);
    if (r == BENCH_OK)
        r = numbers_read(&m->windows, "windows", o->windows, m->d->windows, 1, 256, true);
    if (r == BENCH_OK) r = numbers_read(&m->groups, "groups", o->groups, m->d->groups, 1, 64, true);
    if (r == BENCH_OK)
        r = numbers_read(&m->mismatches, "mismatches", o->mismatches, "1000,3000,5000,10000", 0,
                         1e6, true);
    if (r == BENCH_OK && !m->d->grid && m->groups.n > 1 && m->groups.n != m->windows.n) {
        bench_say("--groups: one, or as many as --windows, as they are taken in pairs");
        r = BENCH_USAGE;
    }
    for (uint32_t i = 0; r == BENCH_OK && i < m->workloads.n; i++)
        r = bench_workload_check(o, m->workloads.entries[i]);
    for (uint32_t i = 0; r == BENCH_OK && i < m->systems.n; i++)
        if (!bench_system_find(m->systems.entries[i])) {
            bench_say("--systems %s: no system; there are nondet, nondet-stock, canonical, auto, "
                      "tuned, stock, paper, paper-fixed, paper+mismatch",
                      m->systems.entries[i]);
            r = BENCH_USAGE;
        }
    return r;
}

int bench_plan_make(const struct bench_options *o, enum bench_experiment experiment,
                    struct bench_plan *out_plan) {
    struct bench_plan plan = {.experiment = experiment};
    struct making *m = calloc(1, sizeof(*m));
    struct bench_run run = {.n_requests = 0};
    int r = BENCH_FAILED;

    if (!m) return r;
    *m = (struct making){.o = o,
                         .d = &defaults[experiment],
                         .plan = &plan,
                         .recorded = o->arrivals && strcmp(o->arrivals, "recorded") == 0};
    r = read_lists(m);
    /* A system's workloads one after another: they share its daemon. */
    for (run.repeat = 0; r == BENCH_OK && run.repeat < o->n_repeats; run.repeat++)
        for (uint32_t s = 0; r == BENCH_OK && s < m->systems.n; s++)
            for (uint32_t w = 0; r == BENCH_OK && w < m->workloads.n; w++) {
                snprintf(run.workload, sizeof(run.workload), "%s", m->workloads.entries[w]);
                run.system = bench_system_find(m->systems.entries[s]);
                r = add_rates(m, run);
            }
    free(m);
    if (r == BENCH_OK)
        *out_plan = plan;
    else
        bench_plan_close(&plan);
    return r;
}

void bench_plan_close(struct bench_plan *p) {
    free(p->runs);
    *p = (struct bench_plan){.n = 0};
}

const char bench_key_columns[] =
    "workload,system,share,arrivals,rate,window,group,mismatch_ppm,requests,repeat";

void bench_run_key(const struct bench_run *r, char out_key[BENCH_KEY_BYTES]) {
    static const char *const arrivals[] = {"at-once", "poisson", "recorded"};
    char share[32];

    snprintf(share, sizeof(share), "%g", r->share);
    snprintf(out_key, BENCH_KEY_BYTES, "%s,%s,%s,%s,%g,%u,%u,%u,%u,%u", r->workload,
             r->system->name, r->share < 0 ? "last" : share, arrivals[r->arrivals], r->rate,
             r->window, r->group, r->mismatch_ppm, r->n_requests, r->repeat);
}
