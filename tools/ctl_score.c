/* score: the logprobs of texts that are there already. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ctl.h"

static void table(const struct ctl_job *job) {
    const struct receipt *t = &job->receipt;
    double sum = 0;

    printf("%8s %8s %14s %9s %8s\n", "position", "id", "logprob", "bits", "top id");
    for (size_t i = 0; i < t->prompt.n; i++) {
        struct wire_logprob p;

        if (i == 0) {
            printf("%8zu %8u %14s %9s %8s\n", i, t->prompt.values[i], "-", "-", "-");
            continue;
        }
        p = receipt_prompt_at(t, i, 0);
        sum += (double)receipt_value_float(p.bits);
        printf("%8zu %8u %14.6f  %08x %8u\n", i, t->prompt.values[i],
               (double)receipt_value_float(p.bits), p.bits, receipt_prompt_at(t, i, 1).id);
    }
    printf("sum %.6f over %zu tokens\n", sum, t->prompt.n > 0 ? t->prompt.n - 1 : 0);
}

/* A reply that does not hold what was asked for is no score. */
static bool whole(const struct receipt *t) {
    size_t n_record = 2 * (1 + (size_t)receipt_n_prompt_top(t));

    return t->prompt.n == t->end.n_prompt && t->prompt.n > 0 &&
           t->prompt_records.n == (t->prompt.n - 1) * n_record &&
           t->end.finish == WIRE_FINISH_LENGTH;
}

struct output {
    const struct ctl *c;
    struct ctl_job *jobs;
    size_t n_jobs, at;
};

static void commit(struct ctl_job *job, const struct llm42_event *e, void *data) {
    struct output *o = data;

    (void)job;
    if (e->kind != LLM42_DONE && e->kind != LLM42_ERROR) return;
    for (; o->at < o->n_jobs && o->jobs[o->at].over; o->at++) {
        if (o->c->json)
            ctl_json_print(ctl_json_score(&o->jobs[o->at]));
        else if (o->jobs[o->at].receipt.done)
            table(&o->jobs[o->at]);
        fflush(stdout);
    }
}

int ctl_score(struct ctl *c) {
    struct ctl_job one, *jobs = &one;
    struct llm42_io *io = NULL;
    struct output o;
    size_t n_jobs = 1;
    uint16_t n_top = c->submit.logprobs;
    int r, verdict;

    if (c->file && (c->tokens || c->n_args > 0)) {
        ctl_say("--file and another text");
        return CTL_USAGE;
    }
    c->submit.logprobs = 0;
    c->submit.max_tokens = 0;
    c->submit.flags |= WIRE_SUBMIT_DETERMINISTIC | WIRE_SUBMIT_ECHO_IDS | WIRE_SUBMIT_IDS_ONLY;
    if (c->file) {
        r = ctl_file_read(c, &jobs, &n_jobs);
    } else {
        r = ctl_job_read(c, &one);
    }
    if (r != CTL_OK) return r;
    for (size_t i = 0; i < n_jobs; i++) {
        struct wire_submit *s = &jobs[i].receipt.submit;
        uint16_t own = s->logprobs ? s->logprobs : n_top;

        /* At least the most probable one: its id is a column. */
        s->prompt_logprobs = own > 2 ? own : 2;
        s->logprobs = 0;
    }
    o = (struct output){.c = c, .jobs = jobs, .n_jobs = n_jobs};
    r = ctl_connect(c, c->socket, 0, &io);
    if (r != CTL_OK) goto out;
    ctl_catch_interrupt();
    r = ctl_run(c, io, jobs, n_jobs, commit, &o);
    for (size_t i = 0; i < n_jobs; i++) {
        if (!jobs[i].over) continue;
        verdict = ctl_job_verdict(&jobs[i], i, n_jobs);
        if (verdict == CTL_OK && r == CTL_OK && !whole(&jobs[i].receipt)) {
            ctl_say("text %zu: the reply is not whole", i + 1);
            verdict = CTL_FAILED;
        }
        if (r == CTL_OK || (r == CTL_REFUSED && verdict == CTL_FAILED)) r = verdict;
    }
out:
    llm42_io_close(io);
    for (size_t i = 0; i < n_jobs; i++) ctl_job_close(&jobs[i]);
    if (jobs != &one) free(jobs);
    return r;
}
