/* The connection, and requests run to their ends over it. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/ctl.h"

enum { LOOK_UP_MS = 250 };

volatile int ctl_interrupted;
static bool interrupt_taken; /* by ctl_run, which now waits for the cancelled ends */

static void note(int signal_number) {
    (void)signal_number;
    if (ctl_interrupted++ > 0) _exit(CTL_INTERRUPTED); /* twice: at once */
}

void ctl_catch_interrupt(void) {
    struct sigaction action = {.sa_handler = note}; /* no SA_RESTART: poll returns */

    sigaction(SIGINT, &action, NULL);
}

static int64_t now_ms(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000 + t.tv_nsec / 1000000;
}

void ctl_refused(const char *what, const struct wire_error *e) {
    char field[64] = "", text[RECEIPT_TEXT_BYTES + 1];

    if (e->field != WIRE_F_NONE)
        snprintf(field, sizeof(field), ", field %s", wire_field_name(e->field));
    snprintf(text, sizeof(text), "%.*s", (int)e->n_text, e->text);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f) *p = '?'; /* it goes to a terminal */
    ctl_say("%s %s: %s (class %s%s): %s", what,
            e->class == WIRE_CLASS_SERVER || e->class == WIRE_CLASS_FATAL ? "failed" : "refused",
            wire_code_name(e->code), wire_class_name(e->class), field, text);
}

static int of_error(const struct wire_error *e) {
    return e->class == WIRE_CLASS_SERVER || e->class == WIRE_CLASS_FATAL ? CTL_FAILED : CTL_REFUSED;
}

/* To a terminal a model could send more than text: its control characters stay out of it. */
void ctl_text(const void *bytes, size_t n_bytes) {
    const uint8_t *p = bytes;
    bool guard = isatty(STDOUT_FILENO);

    for (size_t i = 0; i < n_bytes; i++) {
        bool control = (p[i] < ' ' && p[i] != '\n' && p[i] != '\t') || p[i] == 0x7f;

        putchar(guard && control ? '?' : p[i]);
    }
    fflush(stdout);
}

/* ---- Events ---- */

/* One event before `end_ms` (-1: whenever it comes).  What ends the connection ends here.  It looks
 * up now and then: a signal just before the wait would else be seen only after it. */
static int next_before(struct llm42_io *io, struct llm42_event *out, int64_t end_ms) {
    int64_t left_ms;
    int r;

    do {
        if (ctl_interrupted && !interrupt_taken) return CTL_INTERRUPTED;
        left_ms = end_ms < 0 ? LOOK_UP_MS : end_ms - now_ms();
        if (left_ms < 0) left_ms = 0;
        r = llm42_io_next(io, out, left_ms < LOOK_UP_MS ? (int)left_ms : LOOK_UP_MS);
    } while (r == -ETIMEDOUT && (end_ms < 0 || now_ms() < end_ms));
    if (r == -EINTR) return CTL_INTERRUPTED;
    if (r == -ETIMEDOUT) {
        ctl_say("no answer in time");
        return CTL_FAILED;
    }
    if (r < 0) {
        ctl_say("the connection is lost: %s", strerror(-r));
        return CTL_FAILED;
    }
    if (out->kind == LLM42_ERROR && out->request == 0) {
        ctl_refused("connection", &out->error);
        return of_error(&out->error);
    }
    if (out->kind == LLM42_BROKEN) {
        ctl_say("the connection is lost: %s", out->text);
        return CTL_FAILED;
    }
    return CTL_OK;
}

int ctl_next(const struct ctl *c, struct llm42_io *io, struct llm42_event *out_event) {
    int64_t timeout_ms = c->timeout_ms < 0 ? CTL_TIMEOUT_SHORT : c->timeout_ms;
    int r;

    do r = next_before(io, out_event, now_ms() + timeout_ms);
    while (r == CTL_OK && out_event->kind == LLM42_SHUTDOWN);
    return r;
}

int ctl_connect(const struct ctl *c, const char *path, uint32_t payload_max,
                struct llm42_io **out_io) {
    const struct llm42_options options = {.name = "llm42ctl", .payload_max = payload_max};
    struct llm42_event e;
    int r = llm42_io_open(path, &options, out_io);

    if (r < 0) {
        ctl_say("cannot reach llm42d at %s: %s", path, strerror(-r));
        return CTL_UNREACHABLE;
    }
    r = ctl_next(c, *out_io, &e);
    if (r == CTL_OK && e.kind == LLM42_READY) return CTL_OK;
    llm42_io_close(*out_io);
    *out_io = NULL;
    ctl_say("no greeting of llm42d at %s", path);
    return r == CTL_INTERRUPTED ? r : CTL_UNREACHABLE;
}

/* ---- Jobs ---- */

static int submit(struct llm42_io *io, struct ctl_job *job) {
    const struct wire_hello_ok *server = llm42_server(llm42_io_core(io));
    struct receipt *t = &job->receipt;
    int r =
        llm42_submit(llm42_io_core(io), &t->submit, job->prompt, job->prompt_bytes, &job->request);

    if (r < 0) return r;
    memcpy(t->fingerprint, server->fingerprint, WIRE_DIGEST_BYTES);
    memcpy(t->model, server->model, server->n_model);
    t->model[server->n_model] = '\0';
    t->version = server->version;
    return 0;
}

static void finish(struct ctl_job *job, const struct wire_done *d) {
    uint8_t digest[WIRE_DIGEST_BYTES];
    struct receipt *t = &job->receipt;

    t->end = *d;
    t->done = job->over = true;
    job->digest_known = receipt_digest(t, digest);
    job->digest_wrong = job->digest_known && memcmp(digest, d->digest, WIRE_DIGEST_BYTES) != 0;
}

static int apply(struct ctl_job *job, const struct llm42_event *e) {
    struct receipt *t = &job->receipt;

    switch (e->kind) {
    case LLM42_ACCEPTED:
        receipt_accepted(t, &e->accepted);
        return 0;
    case LLM42_PROMPT_IDS:
        return receipt_prompt_add(t, &e->part);
    case LLM42_TOKENS:
        return receipt_tokens_add(t, &e->tokens);
    case LLM42_LOGPROBS:
        return receipt_logprobs_add(t, &e->logprobs, false);
    case LLM42_PROMPT_LOGPROBS:
        return receipt_logprobs_add(t, &e->logprobs, true);
    case LLM42_DONE:
        finish(job, &e->done);
        return 0;
    case LLM42_ERROR:
        receipt_error(t, &e->error);
        job->over = true;
        return 0;
    default:
        return 0;
    }
}

static void cancel_all(struct llm42_io *io, struct ctl_job *jobs, size_t n_jobs) {
    for (size_t i = 0; i < n_jobs; i++)
        if (jobs[i].request && !jobs[i].over)
            (void)llm42_cancel(llm42_io_core(io), jobs[i].request); /* or when it ends by itself */
}

int ctl_run(const struct ctl *c, struct llm42_io *io, struct ctl_job *jobs, size_t n_jobs,
            ctl_commit *commit, void *data) {
    uint32_t n_max = llm42_server(llm42_io_core(io))->requests_max, n_live = 0;
    int64_t end_ms = c->timeout_ms < 0 ? -1 : now_ms() + c->timeout_ms;
    /* By the low bits of a request's number, which are its place in libllm42. */
    struct ctl_job *of[LLM42_REQUESTS_MAX] = {0}, *job;
    size_t n_sent = 0, n_over = 0;
    struct llm42_event e;
    bool cancelled = false;
    int r;

    interrupt_taken = false;
    while (n_over < n_jobs) {
        while (n_sent < n_jobs && !cancelled && (n_live < n_max || n_live == 0)) {
            r = submit(io, &jobs[n_sent]);
            if (r == -EAGAIN && n_live > 0) break;
            if (r < 0) {
                ctl_say("request %zu cannot be sent: %s", n_sent + 1, strerror(-r));
                return CTL_FAILED;
            }
            of[jobs[n_sent].request % LLM42_REQUESTS_MAX] = &jobs[n_sent];
            n_sent++;
            n_live++;
        }
        r = next_before(io, &e, end_ms);
        if (ctl_interrupted && !cancelled) {
            cancelled = interrupt_taken = true;
            cancel_all(io, jobs, n_jobs);
            /* Those not sent never will be. */
            n_over += n_jobs - n_sent;
        }
        if (r == CTL_INTERRUPTED) continue;
        if (r != CTL_OK) return r;
        job = of[e.request % LLM42_REQUESTS_MAX];
        if (!job || job->request != e.request)
            continue; /* SHUTDOWN: what was accepted still ends */
        if (apply(job, &e) != 0) {
            ctl_say("out of memory");
            return CTL_FAILED;
        }
        if (commit) commit(job, &e, data);
        if (job->over) {
            n_over++;
            n_live--;
        }
    }
    return cancelled ? CTL_INTERRUPTED : CTL_OK;
}

int ctl_job_verdict(const struct ctl_job *job, size_t number, size_t n_jobs) {
    char what[32] = "request";

    if (n_jobs > 1) snprintf(what, sizeof(what), "request %zu", number + 1);
    if (!job->over) return CTL_FAILED;
    if (job->receipt.failed) {
        ctl_refused(what, &job->receipt.error);
        return of_error(&job->receipt.error);
    }
    if (job->digest_wrong) {
        ctl_say("%s: the digest of DONE is not that of what came: do not trust this output", what);
        return CTL_FAILED;
    }
    return CTL_OK;
}
