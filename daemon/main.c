/* llm42d - a deterministic inference daemon.  Its story: settings, log, sockets, device, engine,
 * READY, serving, drain, end.  Exit codes: SPEC 8. */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/listen.h"
#include "daemon/log.h"
#include "daemon/loop.h"
#include "daemon/notify.h"
#include "daemon/version.h"
#include "daemon/wire.h"
#include "runtime/cpu_pool.h"
#include "runtime/device.h"
#include "runtime/device_cuda.h"
#include "runtime/engine.h"
#include "runtime/err.h"
#include "runtime/selftest.h"
#include "runtime/sha256.h"

enum exit_code {
    EXIT_CLEAN = 0,
    EXIT_UNEXPECTED = 1,
    EXIT_USAGE = 2,
    EXIT_ALIVE = 3,      /* a live daemon has the socket */
    EXIT_ACCESS = 4,     /* model or device not readable */
    EXIT_DEVICE = 5,     /* no such device in this build */
    EXIT_CONFIG = 6,     /* settings, model, or limits that do not fit the memory */
    EXIT_NO_DEVICE = 80, /* not there yet */
    EXIT_LOST = 81,      /* device fault during work */
    EXIT_SELF_TEST = 82,
};

enum {
    LOADING_LOG_S = 10,   /* between two lines in the log */
    LOADING_EXTEND_S = 5, /* between two requests for more time to start.. */
    LOADING_S_MAX = 600,  /* ..so long at most: a load that hangs must not last for ever */
    FDS_SPARE = 64,       /* descriptors beside those of connections */
    CPU_STEP_TOKENS = 256,
    CUDA_STEP_TOKENS = 1024,
    CUDA_LOGIT_ROWS = 256, /* the head's weights are read once for as many */
    CPU_PROBES = 1,        /* of the self-test on the CPU device: some hundredths of a second */
};

struct options {
    struct config_sources sources;
    bool check, print;
};

static const char usage[] =
    "usage: llm42d [--config FILE] [--set SECTION.KEY=VALUE]...\n"
    "       llm42d --check-config | --print-config | --version | --help\n"
    "\n"
    "  --config FILE             this file alone, not those of /usr/lib/llm42,\n"
    "                            /usr/local/lib/llm42, /etc/llm42 and /run/llm42\n"
    "  --set SECTION.KEY=VALUE   stronger than any file\n"
    "  --check-config            every error of the settings, then 0 or 6\n"
    "  --print-config            every setting and where it came from\n"
    "\n"
    "See llm42d(8) and llm42d.conf(5).\n";

/* ---- while the model is loaded ---- */

/* Loading keeps the main thread busy for seconds to minutes: a small thread answers signals and
 * asks systemd for patience meanwhile.  It ends before the first request, so it can hide nothing
 * that happens in service. */
struct loading {
    pthread_t thread;
    int signals, stop;
    struct engine_progress progress;
    uint64_t n_before; /* bytes that were read a second ago */
};

/* Once a second: what of the weights is read, and what came within that second. */
static void loading_status(struct loading *w, bool logged) {
    const uint64_t n_all = atomic_load(&w->progress.n_all), n = atomic_load(&w->progress.n_bytes);
    char text[96] = "loading";

    if (n_all && n < n_all)
        (void)snprintf(text, sizeof(text), "loading: %u %% of %llu MB, %.2f GB/s",
                       (unsigned)(n * 100 / n_all), (unsigned long long)(n_all / 1000000),
                       (double)(n - w->n_before) / 1e9);
    else if (n_all)
        (void)snprintf(text, sizeof(text), "loading: %llu MB read, hash and self-test",
                       (unsigned long long)(n_all / 1000000));
    w->n_before = n;
    notify_status(text);
    if (logged) log_line(LOG_AT_INFO, "%s", text);
}

static void *loading_main(void *arg) {
    struct loading *w = arg;
    struct pollfd fds[2] = {{.fd = w->stop, .events = POLLIN},
                            {.fd = w->signals, .events = POLLIN}};
    struct signalfd_siginfo s;

    for (int n_seconds = 1;; n_seconds++) {
        int n = poll(fds, 2, 1000);

        if (fds[0].revents) return NULL;
        if (n == 0) loading_status(w, n_seconds % LOADING_LOG_S == 0);
        if (n == 0 && n_seconds % LOADING_EXTEND_S == 0 && n_seconds <= LOADING_S_MAX)
            notify_extend((uint64_t)LOADING_EXTEND_S * 3000000);
        if (n <= 0 || !fds[1].revents || read(w->signals, &s, sizeof(s)) < 0) continue;
        if (s.ssi_signo == SIGHUP) continue;
        log_line(LOG_AT_INFO, "stopped while loading");
        listen_unlink();
        _exit(EXIT_CLEAN);
    }
}

static int loading_begin(struct loading *w) {
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGHUP);
    w->signals = signalfd(-1, &set, SFD_CLOEXEC);
    w->stop = eventfd(0, EFD_CLOEXEC);
    if (w->signals < 0 || w->stop < 0) return -errno;
    return -pthread_create(&w->thread, NULL, loading_main, w);
}

static void loading_end(struct loading *w) {
    uint64_t one = 1;

    if (write(w->stop, &one, sizeof(one)) < 0) abort();
    (void)pthread_join(w->thread, NULL);
    (void)close(w->stop);
    (void)close(w->signals);
}

/* ---- settings ---- */

static int options_read(int argc, char **argv, struct options *o) {
    enum { OPT_CONFIG = 1, OPT_SET, OPT_CHECK, OPT_PRINT, OPT_VERSION, OPT_HELP };
    static const struct option all[] = {{"config", required_argument, NULL, OPT_CONFIG},
                                        {"set", required_argument, NULL, OPT_SET},
                                        {"check-config", no_argument, NULL, OPT_CHECK},
                                        {"print-config", no_argument, NULL, OPT_PRINT},
                                        {"version", no_argument, NULL, OPT_VERSION},
                                        {"help", no_argument, NULL, OPT_HELP},
                                        {0}};
    int c;

    while ((c = getopt_long(argc, argv, "", all, NULL)) != -1) {
        if (c == OPT_CONFIG) {
            o->sources.file = optarg;
        } else if (c == OPT_SET && o->sources.n_sets < CONFIG_SETS_MAX) {
            o->sources.sets[o->sources.n_sets++] = optarg;
        } else if (c == OPT_CHECK) {
            o->check = true;
        } else if (c == OPT_PRINT) {
            o->print = true;
        } else if (c == OPT_VERSION) {
            printf("llm42d %s (%s), protocol %d, devices: %s\n", version_number(), version_commit(),
                   (int)WIRE_VERSION, version_devices());
            exit(EXIT_CLEAN);
        } else if (c == OPT_HELP) {
            fputs(usage, stdout);
            exit(EXIT_CLEAN);
        } else {
            if (c == OPT_SET) fprintf(stderr, "llm42d: more than %d --set\n", (int)CONFIG_SETS_MAX);
            fputs(usage, stderr);
            return -EINVAL;
        }
    }
    if (optind == argc) return 0;
    fprintf(stderr, "llm42d: %s: no such argument\n", argv[optind]);
    fputs(usage, stderr);
    return -EINVAL;
}

/* Errors as log lines, one each: to stderr as they are where a person asked for them. */
static int settings_load(const struct options *o, struct config *c, struct config_origin **origin) {
    char *text = NULL;
    size_t n_text = 0;
    FILE *errors = open_memstream(&text, &n_text);
    unsigned n;

    if (!errors) return -ENOMEM;
    n = config_load(&o->sources, c, origin, errors);
    (void)fclose(errors);
    if (n && (o->check || o->print)) fputs(text, stderr);
    for (char *line = text, *end; n && !o->check && !o->print && (end = strchr(line, '\n'));
         line = end + 1) {
        *end = '\0';
        log_line(LOG_AT_ERROR, "%s", line);
    }
    free(text);
    return n ? -EINVAL : 0;
}

static int settings_show(const struct options *o, struct config *c, struct config_origin *origin) {
    if (o->print) config_print(c, origin, stdout);
    config_origin_free(origin);
    config_free(c);
    return EXIT_CLEAN;
}

/* ---- hooks of the loop ---- */

struct service {
    const struct options *options;
    const struct engine_facts *facts;
};

static void on_ready(void *user) {
    const struct service *s = user;
    char fingerprint[SHA256_HEX_BYTES], status[256];

    sha256_hex(s->facts->fingerprint, fingerprint);
    (void)snprintf(status, sizeof(status), "%s, fingerprint %.12s, idle", s->facts->model.name,
                   fingerprint);
    if (s->facts->options.random_seed)
        log_line(LOG_AT_WARNING, "model.random_seed: weights are made up, answers mean nothing");
    if (s->facts->options.unverified || s->facts->options.uncertified ||
        s->facts->options.mismatch_ppm || s->facts->options.fast != SCHEDULE_TUNED)
        log_line(LOG_AT_WARNING, "experiment.*: settings that cost speed or promises are on");
    if (s->facts->bytes_files)
        log_line(LOG_AT_INFO, "weights: %.0f MB in %.2f s (%.2f GB/s), hashed %.2f s later",
                 (double)s->facts->bytes_files / 1e6, (double)s->facts->load_us / 1e6,
                 (double)s->facts->bytes_files / 1e3 / (double)(s->facts->load_us + 1),
                 (double)s->facts->digest_us / 1e6);
    log_started(s->facts->model.name, fingerprint, s->facts->device);
    notify_ready(status);
}

/* Of all settings only the log's level can change under way. */
static void on_reload(void *user) {
    const struct service *s = user;
    struct config c;

    notify_reloading();
    if (settings_load(s->options, &c, NULL) == 0) {
        log_level_set((enum log_level)c.level);
        log_line(LOG_AT_INFO, "reloaded: log.level; every other setting needs a restart");
        config_free(&c);
    } else {
        log_line(LOG_AT_WARNING, "not reloaded: the settings have errors");
    }
    notify_reloaded();
}

/* ---- life ---- */

/* Room for every connection that the settings allow, where the hard limit lets us. */
static void descriptors_raise(const struct config *c) {
    struct rlimit l;
    rlim_t want = c->max_connections + FDS_SPARE;

    if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur >= want) return;
    l.rlim_cur = l.rlim_max < want ? l.rlim_max : want;
    if (setrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur < want)
        log_line(LOG_AT_WARNING, "%u descriptors may not be enough for server.max_connections=%u",
                 (unsigned)l.rlim_cur, c->max_connections);
}

static int exit_code_of_start(int r, bool is_cuda) {
    switch (r) {
    case -EACCES:
    case -EPERM:
        return EXIT_ACCESS;
    case -EINVAL:
    case -ENOTSUP:
    case -ENOENT:
    case -ENOTDIR:
    case -EISDIR:
    case -ENOMEM:
    case -ENOSPC:
    case -EMSGSIZE:
        return EXIT_CONFIG;
    case -ENODEV:
        return EXIT_NO_DEVICE;
    case -EPROTO:
        return EXIT_SELF_TEST;
    case -EIO: /* of a GPU, or of a file under it: another start may do */
        return is_cuda ? EXIT_LOST : EXIT_UNEXPECTED;
    default:
        return EXIT_UNEXPECTED;
    }
}

static uint32_t threads_of(const struct config *c) {
    return c->threads ? c->threads : cpu_pool_processors(CPU_POOL_THREADS_MAX);
}

/* The device, which has shown on built-in models that it computes the contract's bits. */
static int device_start(const struct config *c, struct device **out_dev, struct err *e) {
    const struct device_cpu_options cpu = {.n_threads = threads_of(c), .portable = c->portable};
    const struct device_cuda_options cuda = {.ordinal = (int)c->gpu,
                                             .cache_folder = c->kernel_cache};
    const bool is_cuda = c->device == CONFIG_DEVICE_CUDA;
    int r = is_cuda ? device_cuda_open(&cuda, out_dev, e) : device_cpu_open(&cpu, out_dev, e);

    if (r < 0) return r;
    r = selftest_builtin(*out_dev, is_cuda ? UINT32_MAX : CPU_PROBES, e);
    if (r < 0) (*out_dev)->ops->close(*out_dev);
    return r;
}

static int engine_start(const struct config *c, struct engine_progress *progress,
                        struct engine **out_engine, struct err *e) {
    struct engine_options o = {.model_path = c->model_path,
                               .progress = progress,
                               .round_weights = c->round_weights,
                               .random_seed = c->random_seed,
                               .policy = (enum plan_policy)c->policy,
                               .window = c->window,
                               .group = c->group,
                               .max_requests = config_max_requests(c),
                               .max_queue = c->max_queue,
                               .context = c->context,
                               .kv_tokens = c->kv_tokens,
                               .step_tokens = c->step_tokens,
                               .fixed_shape = c->fixed_shape,
                               .uncertified = !c->certify,
                               .unverified = !c->verify,
                               .fast = (enum schedule_set)c->fast,
                               .mismatch_ppm = c->mismatch_ppm};
    const bool is_cuda = c->device == CONFIG_DEVICE_CUDA;
    struct device *dev;
    int r = device_start(c, &dev, e);

    if (r < 0) return r;
    if (o.step_tokens == 0) o.step_tokens = is_cuda ? CUDA_STEP_TOKENS : CPU_STEP_TOKENS;
    if (is_cuda) {
        o.twin_threads = threads_of(c);
        o.logit_rows = CUDA_LOGIT_ROWS;
    }
    return engine_open(&o, dev, out_engine, e);
}

/* Loads the model while signals are answered. */
static int load(const struct config *c, struct engine **out_engine, struct err *e) {
    struct loading w = {.progress = {0, 0}};
    int r;

    if (loading_begin(&w) < 0) return err_set(e, -EAGAIN, "no thread to load beside");
    r = engine_start(c, &w.progress, out_engine, e);
    loading_end(&w);
    return r;
}

static int serve(const struct options *o, const struct config *c, struct listen *l) {
    struct loop_hooks hooks = {.ready = on_ready, .reload = on_reload};
    struct engine *engine = NULL;
    struct err e = {{0}};
    enum loop_end end = LOOP_DRAINED;
    int r = load(c, &engine, &e);

    if (r < 0) {
        log_line(LOG_AT_ERROR, "%s; not started", e.text[0] ? e.text : strerror(-r));
        return exit_code_of_start(r, c->device == CONFIG_DEVICE_CUDA);
    }
    struct service service = {.options = o, .facts = engine_facts_get(engine)};
    hooks.user = &service;
    r = loop_run(c, engine, l, &hooks, &end, &e);
    if (r < 0) log_line(LOG_AT_ERROR, "%s; not started", e.text);
    if (end == LOOP_AT_ONCE) {
        /* Its thread is in a step; nothing of the engine may go before it does. */
        listen_unlink();
        _exit(EXIT_CLEAN);
    }
    if (end == LOOP_DRAINED) engine_close(engine);
    if (r < 0) return EXIT_UNEXPECTED;
    log_line(LOG_AT_INFO, "stopped");
    return end == LOOP_LOST ? EXIT_LOST : EXIT_CLEAN;
}

int main(int argc, char **argv) {
    struct options options = {.check = false};
    struct config_origin *origin = NULL;
    struct err e = {{0}};
    struct config c;
    struct listen l;
    int r;

    loop_signals_block(); /* first of all: from here on a signal is an order, not an end */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* a kept kernel over the limit is a kernel not kept */
    if (options_read(argc, argv, &options) < 0) return EXIT_USAGE;
    log_open(LOG_AT_INFO);
    if (settings_load(&options, &c, &origin) < 0) return EXIT_CONFIG;
    if (c.device == CONFIG_DEVICE_CUDA && !device_cuda_built() && !options.check &&
        !options.print) {
        log_line(LOG_AT_ERROR, "engine.device=cuda: this program was built without CUDA; use cpu");
        config_origin_free(origin);
        config_free(&c);
        return EXIT_DEVICE;
    }
    if (options.check || options.print) return settings_show(&options, &c, origin);
    config_origin_free(origin);
    log_level_set((enum log_level)c.level);

    descriptors_raise(&c);
    r = listen_open(c.socket, c.admin_socket, c.socket_mode, &l, &e);
    if (r < 0) {
        log_line(LOG_AT_ERROR, "%s; not started", e.text);
        config_free(&c);
        return r == -EADDRINUSE ? EXIT_ALIVE : exit_code_of_start(r, false);
    }
    r = serve(&options, &c, &l);
    listen_close(&l);
    config_free(&c);
    return r;
}
