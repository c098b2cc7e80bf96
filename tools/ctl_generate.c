/* generate: text as it is committed, or JSON. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/ctl.h"

/* Where the output stands: jobs are printed in their order, whatever order they end in. */
struct output {
    const struct ctl *c;
    struct ctl_job *jobs;
    size_t n_jobs, at; /* the job whose turn it is */
    size_t n_text;     /* of its text, already printed */
    bool newline;      /* the last byte was one */
};

static void text(struct output *o, const struct receipt *t) {
    size_t n = t->text.n - o->n_text;

    if (n == 0) return;
    ctl_text(t->text.bytes + o->n_text, n);
    o->newline = t->text.bytes[t->text.n - 1] == '\n';
    o->n_text = t->text.n;
}

/* Prints what has its turn now. */
static void print(struct output *o) {
    for (; o->at < o->n_jobs; o->at++) {
        struct ctl_job *job = &o->jobs[o->at];

        if (!o->c->json) text(o, &job->receipt);
        if (!job->over) return;
        if (o->c->json)
            ctl_json_print(ctl_json_job(job));
        else if (job->receipt.text.n > 0 && !o->newline)
            putchar('\n');
        fflush(stdout);
        o->n_text = 0;
        o->newline = false;
    }
}

static void commit_json(const struct output *o, const struct ctl_job *job,
                        const struct wire_tokens *t) {
    json_t *j = json_object(), *ids = json_array();

    for (uint32_t i = 0; i < t->n_tokens; i++)
        json_array_append_new(ids, json_integer(wire_u32_at(t->ids, i)));
    json_object_set_new(j, "event", json_string("tokens"));
    json_object_set_new(j, "request", json_integer(job - o->jobs));
    json_object_set_new(j, "server_id", receipt_value_whole(job->receipt.ack.server_id));
    json_object_set_new(j, "first", json_integer(t->first));
    json_object_set_new(j, "tokens", ids);
    json_object_set_new(j, "text", receipt_value_text(t->text, t->n_text));
    ctl_json_print(j);
    fflush(stdout);
}

static void commit(struct ctl_job *job, const struct llm42_event *e, void *data) {
    struct output *o = data;

    if (e->kind == LLM42_TOKENS && o->c->json && o->c->stream) commit_json(o, job, &e->tokens);
    if (e->kind == LLM42_TOKENS || e->kind == LLM42_DONE || e->kind == LLM42_ERROR) print(o);
}

/* Whether the file can be written, before anything is asked for it; leaves things as they are. */
static int check_receipt(const char *path) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    struct stat st;
    int e = 0;

    if (fd >= 0) {
        close(fd);
        unlink(path);
        return CTL_OK;
    }
    if (errno != EEXIST)
        e = errno;
    else if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        e = EISDIR;
    else if (access(path, W_OK) < 0 && errno != ENOENT) /* a link to what is not there yet */
        e = errno;
    if (e == 0) return CTL_OK;
    ctl_say("--receipt %s: %s", path, strerror(e));
    return CTL_USAGE;
}

static int check(const struct ctl *c) {
    if (c->stream && !c->json) {
        ctl_say("--stream goes with --json; without it text streams anyway");
        return CTL_USAGE;
    }
    if (c->file && (c->tokens || c->n_args > 0)) {
        ctl_say("--file and another prompt");
        return CTL_USAGE;
    }
    if (c->file && c->receipt) {
        ctl_say("--receipt is for one request, not for --file");
        return CTL_USAGE;
    }
    return c->receipt ? check_receipt(c->receipt) : CTL_OK;
}

static int worse(int a, int b) {
    static const int order[] = {CTL_INTERRUPTED, CTL_FAILED, CTL_REFUSED};

    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
        if (a == order[i] || b == order[i]) return order[i];
    return CTL_OK;
}

static int conclude(const struct ctl *c, struct ctl_job *jobs, size_t n_jobs, int r) {
    char why[RECEIPT_TEXT_BYTES];

    for (size_t i = 0; i < n_jobs; i++)
        if (jobs[i].over) r = worse(r, ctl_job_verdict(&jobs[i], i, n_jobs));
    if (c->receipt && jobs[0].receipt.done && r == CTL_OK &&
        receipt_write(&jobs[0].receipt, c->receipt, why) != 0) {
        ctl_say("%s: %s", c->receipt, why);
        r = CTL_FAILED;
    }
    return r;
}

int ctl_generate(struct ctl *c) {
    struct ctl_job one, *jobs = &one;
    struct llm42_io *io = NULL;
    struct output o;
    size_t n_jobs = 1;
    int r = check(c);

    if (r != CTL_OK) return r;
    /* Logprobs always: without them nobody could compute the digest again. */
    if (c->submit.logprobs == 0) c->submit.logprobs = 1;
    if (c->receipt) c->submit.flags |= WIRE_SUBMIT_ECHO_IDS;
    if (c->file) {
        r = ctl_file_read(c, &jobs, &n_jobs);
        if (r != CTL_OK) return r;
    } else {
        r = ctl_job_read(c, &one);
        if (r != CTL_OK) return r;
    }
    o = (struct output){.c = c, .jobs = jobs, .n_jobs = n_jobs};
    r = ctl_connect(c, c->socket, 0, &io);
    if (r != CTL_OK) goto out;
    ctl_catch_interrupt();
    r = ctl_run(c, io, jobs, n_jobs, commit, &o);
    if (!c->json && o.at < n_jobs && o.n_text > 0 && !o.newline) putchar('\n');
    r = conclude(c, jobs, n_jobs, r);
out:
    llm42_io_close(io);
    for (size_t i = 0; i < n_jobs; i++) ctl_job_close(&jobs[i]);
    if (jobs != &one) free(jobs);
    return r;
}
