/* llm42-bench - figures of this machine: of the twin, the engine, a daemon, and the GPU. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/version.h"
#include "runtime/cpu_pool.h"
#include "tools/bench_client.h"

enum {
    THREADS_MAX = 256,
    PINGS_MAX = 1000000,
    TOKENS_MAX = 1 << 20,
    STEP_ROWS_MAX = 8192,
    CONTEXT_MAX = 131072,
    PAUSE_MS_MAX = 1000,
    REPEATS_MAX = 100,
    FLIGHT_MAX = 1024,
    REQUESTS_DEFAULT = 64,
};

static const char usage[] =
    "usage: llm42-bench [VERB [NAME]] [OPTION...]\n"
    "\n"
    "  (none)   twin, then engine\n"
    "  twin     the twin's products, attention and sampling by one thread, and where\n"
    "           the time of a step goes\n"
    "  engine   tokens a second of an engine in this process\n"
    "  serve    a load upon a running daemon: throughput and latencies\n"
    "  start    starts a daemon of its own: time to READY=1, memory, PING; stops it\n"
    "  kernels  of the GPU, each on the canonical and the tuned schedule: beside a peer, and\n"
    "           beside what bounds it\n"
    "  step     whole steps of the GPU, their stages and the choice of a token, weights made up\n"
    "           from --seed\n"
    "  weights  from a file in --out DIR, made up there from --seed where there is none, to the\n"
    "           GPU: beside the file read alone and the bus alone; and hashed\n"
    "  tune [GEOMETRY]   the fastest cuts of each product, norm and attention on this GPU, as\n"
    "           the text of runtime/schedule_sm90.inc\n"
    "  experiment NAME   of the paper: join, spans, window, ablation, offline, online; a row a\n"
    "           run in DIR/NAME.csv of --out, digests held against a reference; gemm, norm,\n"
    "           invariance, verify-cost: in this process\n"
    "  report DIR        DIR/index.html of all that experiments left there\n"
    "\n"
    "  --json                     an object a line: conditions, notes, figures\n"
    "  --model DIR                twin, engine, start, experiment (tests/data/verse-4m, of the\n"
    "                             working folder)\n"
    "  --threads N                twin (stages), engine, start, kernels, weights, tune,\n"
    "                             experiment: 1 to 256 (one a processor)\n"
    "  --policy P                 engine, start: canonical, tuned, auto; engine also all\n"
    "                             (canonical)\n"
    "  --socket PATH              serve: of the daemon (/run/llm42/llm42d.sock, or LLM42_SOCKET)\n"
    "  --requests N               serve: requests in all (64); experiment: of a run (its own)\n"
    "  --concurrency C            serve: in flight at most, 1 to 4096 (16)\n"
    "  --rate QPS                 serve: arrivals a second, Poisson; 0: one as another ends (0)\n"
    "  --deterministic-share R    serve, start: 0 to 1, drawn for each request (0.5)\n"
    "  --max-tokens M             serve: output tokens of a request at most (64)\n"
    "  --temperature T            serve, start, experiment: of every request (0)\n"
    "  --trace FILE               serve, experiment: CSV of lengths, one row drawn for each\n"
    "                             request; columns prompt,output or ContextTokens,GeneratedTokens\n"
    "                             or num_prefill_tokens,num_decode_tokens or\n"
    "                             prompt_tokens,completion_tokens or input_tokens,output_tokens\n"
    "  --seed S                   of arrivals, lengths and draws; of made-up values (1)\n"
    "  --pings N                  serve, start: round trips (2000)\n"
    "  --daemon PATH              start, experiment: the program (beside this one)\n"
    "  --set SECTION.KEY=VALUE    start, experiment: a setting of it, up to 32 times\n"
    "  --geometry NAME            kernels, step, weights, experiment: llama-3.1-8b,\n"
    "                             smollm2-135m, or a folder with a\n"
    "                             config.json (llama-3.1-8b)\n"
    "  --rows N,N,..              kernels, step, experiment: rows of a step, up to 16 counts, 1 "
    "to\n"
    "                             8192\n"
    "  --only F,F,..              kernels: of gemm, attention, norm (all)\n"
    "  --pause MS                 kernels: before each replay of a product, ours and the peer's, "
    "0\n"
    "                             to 1000; 0: back to back (6 up to 256 rows, else 0)\n"
    "  --context N                step: keys of a sequence, 1 to 131072 (1024)\n"
    "  --peer PROGRAM             kernels, step: measures the same by other libraries, or none\n"
    "                             (tools/bench_peer.py, which wants torch)\n"
    "  --plot FILE                kernels: a roofline as SVG, by gnuplot; or its script, FILE.gp\n"
    "  --cache DIR                kernels, step, tune, weights, experiment: of compiled kernels\n"
    "                             (none)\n"
    "  --out DIR                  experiment, weights: folder of its files, made if it is not "
    "there\n"
    "  --device D                 experiment: cpu, cuda (cpu); tune: cuda, or cpu to try it\n"
    "  --repeats R                experiment: of every run, 1 to 100 (3)\n"
    "  --systems S,S,..           experiment: of nondet, nondet-stock, canonical, auto,\n"
    "                             tuned, stock, paper, paper-fixed, paper+mismatch\n"
    "  --workloads W,W,..         experiment: of sharegpt, arxiv, reasoning, mixed, trace, each\n"
    "                             also as NAME/OUTPUTS; fixed:PROMPT/OUTPUT, upto:PROMPT/OUTPUT\n"
    "  --shares P,P,..            experiment: deterministic requests, per cent\n"
    "  --rates QPS,QPS,..         experiment: arrivals a second\n"
    "  --windows W,W,..           experiment: 1 to 256\n"
    "  --groups G,G,..            experiment: 1 to 64\n"
    "  --mismatches PPM,PPM,..    experiment: forced, of paper+mismatch (1000,3000,5000,10000)\n"
    "  --arrivals A               experiment: poisson, or recorded by the trace (poisson)\n"
    "  --scale X                  experiment: of all lengths, 0 to 1 (1)\n"
    "  --text FILE                experiment: its pieces are prompts\n"
    "  --eos                      experiment: an end-of-text id ends an output\n"
    "  --reference N              experiment: requests at once for the reference, 1 to 1024 (1)\n"
    "  --reference-device D       experiment: that the reference is made on (as --device)\n"
    "  --bound MS                 experiment: requests a second that end within it\n"
    "  --version, --help\n"
    "\n"
    "An option that a verb has no use for is refused.  Every figure says what it is of, its unit\n"
    "and, where there is one, its target.  Times are CLOCK_MONOTONIC; a figure taken while other\n"
    "work runs is not one.\n"
    "exit status: 0 done, 1 failed, 2 usage, 7 daemon not reachable, 130 interrupted\n";

enum flag {
    HELP = 1,
    VERSION,
    JSON,
    MODEL,
    THREADS,
    POLICY,
    SOCKET,
    REQUESTS,
    CONCURRENCY,
    RATE,
    SHARE,
    TOKENS,
    TEMPERATURE,
    TRACE,
    SEED,
    PINGS,
    DAEMON,
    SET,
    GEOMETRY,
    ROWS,
    ONLY,
    PAUSE,
    CONTEXT,
    PEER,
    PLOT,
    CACHE,
    OUT,
    DEVICE,
    REPEATS,
    SYSTEMS,
    WORKLOADS,
    SHARES,
    RATES,
    WINDOWS,
    GROUPS,
    MISMATCHES,
    ARRIVALS,
    SCALE,
    PROMPTS,
    EOS,
    REFERENCE,
    REFERENCE_DEVICE,
    BOUND,
};

static const struct option options[] = {
    {"help", no_argument, NULL, HELP},
    {"version", no_argument, NULL, VERSION},
    {"json", no_argument, NULL, JSON},
    {"model", required_argument, NULL, MODEL},
    {"threads", required_argument, NULL, THREADS},
    {"policy", required_argument, NULL, POLICY},
    {"socket", required_argument, NULL, SOCKET},
    {"requests", required_argument, NULL, REQUESTS},
    {"concurrency", required_argument, NULL, CONCURRENCY},
    {"rate", required_argument, NULL, RATE},
    {"deterministic-share", required_argument, NULL, SHARE},
    {"max-tokens", required_argument, NULL, TOKENS},
    {"temperature", required_argument, NULL, TEMPERATURE},
    {"trace", required_argument, NULL, TRACE},
    {"seed", required_argument, NULL, SEED},
    {"pings", required_argument, NULL, PINGS},
    {"daemon", required_argument, NULL, DAEMON},
    {"set", required_argument, NULL, SET},
    {"geometry", required_argument, NULL, GEOMETRY},
    {"rows", required_argument, NULL, ROWS},
    {"only", required_argument, NULL, ONLY},
    {"pause", required_argument, NULL, PAUSE},
    {"context", required_argument, NULL, CONTEXT},
    {"peer", required_argument, NULL, PEER},
    {"plot", required_argument, NULL, PLOT},
    {"cache", required_argument, NULL, CACHE},
    {"out", required_argument, NULL, OUT},
    {"device", required_argument, NULL, DEVICE},
    {"repeats", required_argument, NULL, REPEATS},
    {"systems", required_argument, NULL, SYSTEMS},
    {"workloads", required_argument, NULL, WORKLOADS},
    {"shares", required_argument, NULL, SHARES},
    {"rates", required_argument, NULL, RATES},
    {"windows", required_argument, NULL, WINDOWS},
    {"groups", required_argument, NULL, GROUPS},
    {"mismatches", required_argument, NULL, MISMATCHES},
    {"arrivals", required_argument, NULL, ARRIVALS},
    {"scale", required_argument, NULL, SCALE},
    {"text", required_argument, NULL, PROMPTS},
    {"eos", no_argument, NULL, EOS},
    {"reference", required_argument, NULL, REFERENCE},
    {"reference-device", required_argument, NULL, REFERENCE_DEVICE},
    {"bound", required_argument, NULL, BOUND},
    {NULL, 0, NULL, 0},
};

enum verb_bits {
    TWIN = 1 << 0,
    ENGINE = 1 << 1,
    SERVE = 1 << 2,
    START = 1 << 3,
    KERNELS = 1 << 4,
    STEP = 1 << 5,
    WEIGHTS = 1 << 6,
    TUNE = 1 << 7,
    EXPERIMENT = 1 << 8,
    REPORT = 1 << 9,
    ALL_VERBS = (1 << 10) - 1,

    LOADS = SERVE | START | EXPERIMENT, /* a daemon, over its socket */
    STARTS = START | EXPERIMENT,
    ON_GPU = KERNELS | STEP | WEIGHTS | TUNE | EXPERIMENT,
};

/* Which verbs an option is of, by enum flag. */
static const uint32_t taken_by[] = {
    [JSON] = ALL_VERBS & ~(uint32_t)TUNE,
    [MODEL] = TWIN | ENGINE | STARTS,
    [THREADS] = TWIN | ENGINE | STARTS | KERNELS | WEIGHTS | TUNE,
    [POLICY] = ENGINE | START,
    [SOCKET] = SERVE,
    [REQUESTS] = SERVE | EXPERIMENT,
    [CONCURRENCY] = SERVE,
    [RATE] = SERVE,
    [SHARE] = SERVE | START,
    [TOKENS] = SERVE,
    [TEMPERATURE] = LOADS,
    [TRACE] = SERVE | EXPERIMENT,
    [SEED] = TWIN | LOADS | STEP | WEIGHTS | TUNE,
    [PINGS] = SERVE | START,
    [DAEMON] = STARTS,
    [SET] = STARTS,
    [GEOMETRY] = KERNELS | STEP | WEIGHTS | EXPERIMENT,
    [ROWS] = KERNELS | STEP | EXPERIMENT,
    [ONLY] = KERNELS,
    [PAUSE] = KERNELS,
    [CONTEXT] = STEP,
    [PEER] = KERNELS | STEP,
    [PLOT] = KERNELS,
    [CACHE] = ON_GPU,
    [OUT] = EXPERIMENT | WEIGHTS,
    [DEVICE] = EXPERIMENT | TUNE,
    [REPEATS] = EXPERIMENT,
    [SYSTEMS] = EXPERIMENT,
    [WORKLOADS] = EXPERIMENT,
    [SHARES] = EXPERIMENT,
    [RATES] = EXPERIMENT,
    [WINDOWS] = EXPERIMENT,
    [GROUPS] = EXPERIMENT,
    [MISMATCHES] = EXPERIMENT,
    [ARRIVALS] = EXPERIMENT,
    [SCALE] = EXPERIMENT,
    [PROMPTS] = EXPERIMENT,
    [EOS] = EXPERIMENT,
    [REFERENCE] = EXPERIMENT,
    [REFERENCE_DEVICE] = EXPERIMENT,
    [BOUND] = EXPERIMENT,
};

static int number(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *out) {
    char *end;
    const uint64_t value = strtoull(text, &end, 10);

    if (text[0] < '0' || text[0] > '9' || *end || value < min || value > max) {
        bench_say("--%s %s: a whole number, %llu to %llu", name, text, (unsigned long long)min,
                  (unsigned long long)max);
        return BENCH_USAGE;
    }
    *out = value;
    return BENCH_OK;
}

static int real(const char *name, const char *text, double max, double *out) {
    char *end;
    const double value = strtod(text, &end);

    if (end == text || *end || !(value >= 0 && value <= max)) {
        bench_say("--%s %s: a number, 0 to %g", name, text, max);
        return BENCH_USAGE;
    }
    *out = value;
    return BENCH_OK;
}

uint32_t bench_threads(const struct bench_options *o) {
    return o->n_threads ? o->n_threads : cpu_pool_processors(THREADS_MAX);
}

/* Counts of rows, commas between. */
static int take_rows(struct bench_options *o, const char *text) {
    char list[256], *rest = list, *count;

    snprintf(list, sizeof(list), "%s", text);
    o->n_rows = 0;
    while ((count = strsep(&rest, ","))) {
        uint64_t n = 0;
        int r = number("rows", count, 1, STEP_ROWS_MAX, &n);

        if (r != BENCH_OK) return r;
        if (o->n_rows == BENCH_ROWS_MAX) {
            bench_say("--rows: %d counts at most", BENCH_ROWS_MAX);
            return BENCH_USAGE;
        }
        o->rows[o->n_rows++] = (uint32_t)n;
    }
    return BENCH_OK;
}

/* Options with a number. */
static int take_number(struct bench_options *o, int flag, const char *name, const char *text) {
    uint64_t n = 0;
    int r = BENCH_OK;

    switch (flag) {
    case THREADS:
        if ((r = number(name, text, 1, THREADS_MAX, &n)) == BENCH_OK) o->n_threads = (uint32_t)n;
        break;
    case REQUESTS:
        r = number(name, text, 1, BENCH_REQUESTS_MAX, &n);
        if (r == BENCH_OK) o->n_requests = (uint32_t)n;
        break;
    case CONCURRENCY:
        r = number(name, text, 1, LLM42_REQUESTS_MAX, &n);
        if (r == BENCH_OK) o->concurrency = (uint32_t)n;
        break;
    case TOKENS:
        if ((r = number(name, text, 1, TOKENS_MAX, &n)) == BENCH_OK) o->max_tokens = (uint32_t)n;
        break;
    case PINGS:
        if ((r = number(name, text, 1, PINGS_MAX, &n)) == BENCH_OK) o->n_pings = (uint32_t)n;
        break;
    case CONTEXT:
        if ((r = number(name, text, 1, CONTEXT_MAX, &n)) == BENCH_OK) o->context = (uint32_t)n;
        break;
    case REPEATS:
        if ((r = number(name, text, 1, REPEATS_MAX, &n)) == BENCH_OK) o->n_repeats = (uint32_t)n;
        break;
    case REFERENCE:
        r = number(name, text, 1, FLIGHT_MAX, &n);
        if (r == BENCH_OK) o->reference_flight = (uint32_t)n;
        break;
    case PAUSE:
        return real(name, text, PAUSE_MS_MAX, &o->pause_ms);
    case BOUND:
        return real(name, text, 1e9, &o->bound_ms);
    case SCALE:
        return real(name, text, 1, &o->scale);
    case SEED:
        return number(name, text, 0, UINT64_MAX / 8, &o->seed);
    case RATE:
        return real(name, text, 1e6, &o->rate);
    case SHARE:
        return real(name, text, 1, &o->share);
    case TEMPERATURE:
        return real(name, text, 128, &o->temperature);
    default:
        return BENCH_USAGE;
    }
    return r;
}

static int device(const char *name, const char *text) {
    if (strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0) return BENCH_OK;
    bench_say("--%s %s: cpu or cuda", name, text);
    return BENCH_USAGE;
}

static int take_experiment(struct bench_options *o, int flag, const char *name, const char *text) {
    const struct {
        int flag;
        const char **to;
    } texts[] = {
        {OUT, &o->out},
        {DEVICE, &o->device},
        {SYSTEMS, &o->systems},
        {SHARES, &o->shares},
        {WORKLOADS, &o->workloads},
        {RATES, &o->rates},
        {WINDOWS, &o->windows},
        {MISMATCHES, &o->mismatches},
        {GROUPS, &o->groups},
        {PROMPTS, &o->text},
        {ARRIVALS, &o->arrivals},
        {REFERENCE_DEVICE, &o->reference_device},
    };

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (texts[i].flag == flag) {
            *texts[i].to = text;
            if (flag == DEVICE || flag == REFERENCE_DEVICE) return device(name, text);
            return BENCH_OK;
        }
    if (flag != EOS) return take_number(o, flag, name, text);
    o->honour_eos = true;
    return BENCH_OK;
}

static int take_gpu(struct bench_options *o, int flag, const char *name, const char *text) {
    switch (flag) {
    case GEOMETRY:
        o->geometry = text;
        return BENCH_OK;
    case ROWS:
        return take_rows(o, text);
    case ONLY:
        o->only = text;
        return BENCH_OK;
    case PEER:
        o->peer = text;
        return BENCH_OK;
    case PLOT:
        o->plot = text;
        return BENCH_OK;
    case CACHE:
        o->cache = text;
        return BENCH_OK;
    default:
        return take_experiment(o, flag, name, text);
    }
}

static int take(struct bench_options *o, int flag, const char *name, const char *text) {
    switch (flag) {
    case JSON:
        o->report.json = true;
        return BENCH_OK;
    case MODEL:
        o->model = text;
        return BENCH_OK;
    case POLICY:
        o->policy = text;
        return BENCH_OK;
    case SOCKET:
        o->socket = text;
        return BENCH_OK;
    case TRACE:
        o->trace = text;
        return BENCH_OK;
    case DAEMON:
        o->daemon = text;
        return BENCH_OK;
    case SET:
        if (o->n_sets == BENCH_SETS_MAX) {
            bench_say("--set: %d at most", BENCH_SETS_MAX);
            return BENCH_USAGE;
        }
        o->sets[o->n_sets++] = text;
        return BENCH_OK;
    default:
        return take_gpu(o, flag, name, text);
    }
}

/* llm42d in the folder that this program is in, as built, or where it is installed beside that. */
static const char *daemon_beside(void) {
    static char path[4096];
    char program[4000];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    char *slash;

    program[n < 0 ? 0 : n] = '\0';
    slash = strrchr(program, '/');
    if (!slash) return "/usr/sbin/llm42d";
    *slash = '\0';
    snprintf(path, sizeof(path), "%s/llm42d", program);
    if (access(path, X_OK) < 0) snprintf(path, sizeof(path), "%s/../sbin/llm42d", program);
    return path;
}

static const struct part {
    const char *verb;
    int (*run)(const struct bench_options *o);
    uint32_t bit;
    bool unasked; /* where no verb is given */
    bool silent;  /* measures nothing here and now */
    bool operand; /* has an argument */
} parts[] = {
    {"twin", bench_twin, TWIN, true, false, false},
    {"twin", bench_stage, TWIN, true, false, false},
    {"engine", bench_engine, ENGINE, true, false, false},
    {"serve", bench_serve, SERVE, false, false, false},
    {"start", bench_start, START, false, false, false},
    {"kernels", bench_kernels, KERNELS, false, false, false},
    {"step", bench_step, STEP, false, false, false},
    {"weights", bench_weights, WEIGHTS, false, false, false},
    {"tune", bench_tune, TUNE, false, true, true},
    {"experiment", bench_experiment, EXPERIMENT, false, false, true},
    {"report", bench_experiment_report, REPORT, false, true, true},
};

enum { N_PARTS = sizeof(parts) / sizeof(parts[0]) };

static bool is_asked(const struct part *p, const char *verb) {
    return verb[0] ? strcmp(p->verb, verb) == 0 : p->unasked;
}

static int run(const char *verb, const struct bench_options *o) {
    bool told = false;
    int r = BENCH_OK;

    for (int i = 0; r == BENCH_OK && i < N_PARTS; i++) {
        if (!is_asked(&parts[i], verb)) continue;
        if (!told && !parts[i].silent)
            bench_report_conditions(&o->report, verb[0] ? verb : "twin, engine", bench_threads(o));
        told = true;
        r = parts[i].run(o);
    }
    return r;
}

/* The verb's bit, of the usual ones together, or 0; whether it has an argument. */
static uint32_t verb_find(const char *verb, bool *out_operand) {
    uint32_t bits = 0;

    *out_operand = false;
    for (int i = 0; i < N_PARTS; i++)
        if (is_asked(&parts[i], verb)) {
            bits |= parts[i].bit;
            *out_operand = parts[i].operand;
        }
    if (!bits) bench_say("%s is no verb; see llm42-bench --help", verb);
    return bits;
}

/* An option that would say nothing is refused, as whoever gives it expects that it says something. */
static int check_used(const bool given[], const char *verb, uint32_t bits) {
    for (int i = 0; options[i].name; i++) {
        const int flag = options[i].val;

        if (!given[flag] || taken_by[flag] & bits) continue;
        bench_say("--%s: not of %s; see llm42-bench --help", options[i].name,
                  verb[0] ? verb : "twin, engine");
        return BENCH_USAGE;
    }
    return BENCH_OK;
}

int main(int argc, char **argv) {
    const char *socket = getenv("LLM42_SOCKET");
    struct bench_options o = {.model = "tests/data/verse-4m",
                              .policy = "canonical",
                              .socket = socket && *socket ? socket : "/run/llm42/llm42d.sock",
                              .daemon = daemon_beside(),
                              .concurrency = 16,
                              .max_tokens = 64,
                              .share = 0.5,
                              .seed = 1,
                              .n_pings = 2000,
                              .peer = "tools/bench_peer.py",
                              .pause_ms = -1,
                              .context = 1024,
                              .scale = 1,
                              .n_repeats = 3,
                              .reference_flight = 1};
    bool given[sizeof(taken_by) / sizeof(taken_by[0])] = {false}, operand;
    const char *verb = "";
    int flag, index = 0, r;
    uint32_t bits;

    while ((flag = getopt_long(argc, argv, "", options, &index)) != -1) {
        if (flag == HELP) {
            fputs(usage, stdout);
            return BENCH_OK;
        }
        if (flag == VERSION) {
            printf("llm42-bench %s\n", version_whole());
            return BENCH_OK;
        }
        if (flag == '?') return BENCH_USAGE; /* getopt has said why */
        r = take(&o, flag, options[index].name, optarg);
        if (r != BENCH_OK) return r;
        given[flag] = true;
    }
    if (optind < argc) verb = argv[optind++];
    bits = verb_find(verb, &operand);
    if (!bits) return BENCH_USAGE;
    if (optind < argc && operand) o.operand = argv[optind++];
    /* An experiment has its own counts. */
    if (o.n_requests == 0 && bits != EXPERIMENT) o.n_requests = REQUESTS_DEFAULT;
    if (!o.device) o.device = bits == TUNE ? "cuda" : "cpu";
    /* An experiment's is its model's, where none is given. */
    if (!o.geometry && bits != EXPERIMENT) o.geometry = "llama-3.1-8b";
    if (optind < argc) {
        bench_say("%s is one argument too many; see llm42-bench --help", argv[optind]);
        return BENCH_USAGE;
    }
    r = check_used(given, verb, bits);
    if (r == BENCH_OK) r = run(verb, &o);
    if (fflush(stdout) == 0 && !ferror(stdout)) return r;
    bench_say("cannot write the output");
    return BENCH_FAILED;
}
