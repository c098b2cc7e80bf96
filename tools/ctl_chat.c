/* chat: one answer, or a conversation with its history. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/ctl.h"

struct chat {
    struct wire_message messages[WIRE_MESSAGES_MAX]; /* their texts are ours */
    size_t n;
    bool newline;
};

static bool add(struct chat *h, uint8_t role, const void *text, size_t n_bytes) {
    char *own;

    if (h->n == WIRE_MESSAGES_MAX || n_bytes > UINT32_MAX) return false;
    own = malloc(n_bytes + 1);
    if (!own) return false;
    if (n_bytes > 0) memcpy(own, text, n_bytes);
    h->messages[h->n++] =
        (struct wire_message){.role = role, .text = own, .n_bytes = (uint32_t)n_bytes};
    return true;
}

static void forget(struct chat *h, size_t n_kept) {
    while (h->n > n_kept) free((char *)h->messages[--h->n].text);
}

static void commit(struct ctl_job *job, const struct llm42_event *e, void *data) {
    struct chat *h = data;

    (void)job;
    if (e->kind != LLM42_TOKENS || e->tokens.n_text == 0) return;
    ctl_text(e->tokens.text, e->tokens.n_text);
    h->newline = e->tokens.text[e->tokens.n_text - 1] == '\n';
}

/* Answers the history and adds the answer to it; a failed one leaves it as before the question. */
static int answer(const struct ctl *c, struct llm42_io *io, struct chat *h) {
    struct ctl_job job;
    int r = ctl_job_chat(&job, &c->submit, h->messages, h->n);

    if (r != CTL_OK) return r;
    h->newline = false;
    r = ctl_run(c, io, &job, 1, c->json ? NULL : commit, h);
    if (!c->json && job.receipt.text.n > 0 && !h->newline) putchar('\n');
    if (c->json && job.over) ctl_json_print(ctl_json_job(&job));
    fflush(stdout);
    if (job.over) {
        int verdict = ctl_job_verdict(&job, 0, 1);

        if (r == CTL_OK) r = verdict;
    }
    if (!job.receipt.done)
        forget(h, h->n - 1);
    else if (!add(h, WIRE_ROLE_ASSISTANT, job.receipt.text.bytes, job.receipt.text.n))
        r = CTL_FAILED;
    ctl_job_close(&job);
    return r;
}

static bool full(const struct chat *h) {
    if (h->n + 2 <= WIRE_MESSAGES_MAX) return false;
    ctl_say("the conversation has %d messages, the most there can be; /reset begins anew",
            WIRE_MESSAGES_MAX);
    return true;
}

/* Lines of the terminal, or of a pipe, up to the end of input or /quit. */
static int converse(const struct ctl *c, struct llm42_io *io, struct chat *h, size_t n_system) {
    bool prompts = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    int r = CTL_OK;

    if (prompts) fputs("/reset begins anew, /quit or Ctrl-D ends, Ctrl-C ends an answer\n", stderr);
    for (;;) {
        if (prompts) fputs("> ", stderr);
        n = getline(&line, &room, stdin);
        if (n < 0) break;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
        line[n] = '\0';
        if (n == 0) continue;
        if (strcmp(line, "/quit") == 0) break;
        if (strcmp(line, "/reset") == 0) {
            forget(h, n_system);
            continue;
        }
        if (full(h)) continue;
        if (!add(h, WIRE_ROLE_USER, line, (size_t)n)) {
            r = CTL_FAILED;
            break;
        }
        r = answer(c, io, h);
        if (r == CTL_INTERRUPTED)
            ctl_interrupted = 0; /* the answer ended, not the talk */
        else if (r == CTL_FAILED)
            break;
    }
    if (prompts) fputc('\n', stderr);
    if (ctl_interrupted) r = CTL_INTERRUPTED; /* while it waited for a line */
    free(line);
    return r == CTL_INTERRUPTED && !ctl_interrupted && prompts ? CTL_OK : r;
}

int ctl_chat(struct ctl *c) {
    struct llm42_io *io = NULL;
    struct chat *h = calloc(1, sizeof(*h));
    uint8_t *text = NULL;
    size_t n_text = 0, n_system = 0;
    int r;

    if (!h) return CTL_FAILED;
    if (c->submit.logprobs == 0) c->submit.logprobs = 1;
    if (c->system) {
        if (!add(h, WIRE_ROLE_SYSTEM, c->system, strlen(c->system))) goto memory;
        n_system = 1;
    }
    if (c->n_args > 0) {
        r = ctl_read_text(c, &text, &n_text);
        if (r != CTL_OK) goto out;
        if (!add(h, WIRE_ROLE_USER, text, n_text)) goto memory;
    }
    r = ctl_connect(c, c->socket, 0, &io);
    if (r != CTL_OK) goto out;
    ctl_catch_interrupt();
    r = c->n_args > 0 ? answer(c, io, h) : converse(c, io, h, n_system);
    goto out;
memory:
    ctl_say("out of memory");
    r = CTL_FAILED;
out:
    llm42_io_close(io);
    forget(h, 0);
    free(h);
    free(text);
    return r;
}
