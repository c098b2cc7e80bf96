/* ctl - what the verbs of llm42ctl share: options, jobs, the connection, JSON.
 *
 * Owns:   a job owns its prompt and receipt.
 * Thread: one.
 * Fails:  by exit code (enum ctl_exit), with the reason already on stderr. */
#ifndef LLM42D_TOOLS_CTL_H
#define LLM42D_TOOLS_CTL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/llm42.h"
#include "tools/receipt.h"
#include "tools/receipt_value.h"

enum ctl_exit {
    CTL_OK = 0,
    CTL_FAILED = 1, /* it ended badly, or a replay differs */
    CTL_USAGE = 2,
    CTL_REFUSED = 3,
    CTL_UNREACHABLE = 7,
    CTL_INTERRUPTED = 130,
};

enum ctl_verb_bits {
    CTL_GENERATE = 1 << 0,
    CTL_CHAT = 1 << 1,
    CTL_SCORE = 1 << 2,
    CTL_TOKENIZE = 1 << 3,
    CTL_DETOKENIZE = 1 << 4,
    CTL_STATUS = 1 << 5,
    CTL_INFO = 1 << 6,
    CTL_SCHEDULES = 1 << 7,
    CTL_CANCEL = 1 << 8,
    CTL_REPLAY = 1 << 9,
    CTL_HEALTH = 1 << 10,
    CTL_PING = 1 << 11,
};

enum {
    CTL_JOBS_MAX = 1 << 16,    /* lines of a --file */
    CTL_INPUT_MAX = 256 << 20, /* bytes of a file or of stdin */
    CTL_COUNT_MAX = 1000000,
    CTL_TIMEOUT_MAX = 1000000, /* s */
    CTL_TIMEOUT_SHORT = 10000, /* ms; of verbs that are answered at once */
};

struct ctl {
    uint32_t verb; /* one of enum ctl_verb_bits */
    const char *socket, *admin_socket;
    const char *tokens, *file, *receipt, *system;
    bool json, stream, special, raw, help;
    uint32_t count;
    int64_t timeout_ms;        /* -1: none was given */
    struct wire_submit submit; /* as the flags have it */
    char **args;               /* what is no flag */
    int n_args;
};

/* ctl_option.c: reads argv into *c, which has its defaults.  An exit code. */
int ctl_option_parse(struct ctl *c, int argc, char **argv);
void ctl_option_help(uint32_t verb); /* the flags that a verb takes, on stdout */

/* One request of a run. */
struct ctl_job {
    struct receipt receipt;
    uint8_t *prompt; /* as PROMPT carries it */
    uint32_t prompt_bytes;
    uint64_t request; /* 0: not yet submitted */
    bool over;
    bool digest_known, digest_wrong; /* ours against the server's */
};
typedef void ctl_commit(struct ctl_job *job, const struct llm42_event *e, void *data);

/* ctl_prompt.c: where prompts come from.  Exit codes. */
int ctl_read_file(const char *path, uint8_t **out_bytes, size_t *out_n);    /* "-": stdin */
int ctl_read_text(const struct ctl *c, uint8_t **out_bytes, size_t *out_n); /* argument or stdin */
int ctl_read_ids(const char *path, uint32_t **out_ids, size_t *out_n);
int ctl_job_text(struct ctl_job *job, const struct wire_submit *s, const void *text, size_t n);
int ctl_job_ids(struct ctl_job *job, const struct wire_submit *s, const uint32_t *ids, size_t n);
int ctl_job_chat(struct ctl_job *job, const struct wire_submit *s, const struct wire_message *m,
                 size_t n_messages);
void ctl_job_close(struct ctl_job *job);
/* The one request of the command line: --tokens, an argument or stdin. */
int ctl_job_read(const struct ctl *c, struct ctl_job *job);
/* ctl_file.c: those of --file. */
int ctl_file_read(const struct ctl *c, struct ctl_job **out_jobs, size_t *out_n);

/* ctl_run.c */
/* Connects and waits for the greeting; the reason it cannot is printed. */
int ctl_connect(const struct ctl *c, const char *path, uint32_t payload_max,
                struct llm42_io **out_io);
/* The next event of a connection before c's time is over; an exit code, events of a lost
 * connection included. */
int ctl_next(const struct ctl *c, struct llm42_io *io, struct llm42_event *out_event);
/* Runs jobs to their ends, all at once as far as the server lets us.  Each job is then over, done
 * or failed; CTL_INTERRUPTED where Ctrl-C cancelled them. */
int ctl_run(const struct ctl *c, struct llm42_io *io, struct ctl_job *jobs, size_t n_jobs,
            ctl_commit *commit, void *data);
/* What the end of a job means for the exit code; prints refusals and a wrong digest. */
int ctl_job_verdict(const struct ctl_job *job, size_t number, size_t n_jobs);
void ctl_refused(const char *what, const struct wire_error *e);
void ctl_text(const void *bytes, size_t n_bytes); /* of a model, on stdout */
extern volatile int ctl_interrupted;
void ctl_catch_interrupt(void);

/* ctl_json.c */
void ctl_json_print(json_t *object);             /* on a line of its own; takes the reference */
json_t *ctl_json_job(const struct ctl_job *job); /* generate's object, or one with "error" */
json_t *ctl_json_score(const struct ctl_job *job);
json_t *ctl_json_error(const struct wire_error *e);

/* Prints "llm42ctl: ...\n" on stderr. */
void ctl_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The verbs. */
int ctl_generate(struct ctl *c);
int ctl_chat(struct ctl *c);
int ctl_score(struct ctl *c);
int ctl_tokenize(struct ctl *c);
int ctl_detokenize(struct ctl *c);
int ctl_info(struct ctl *c); /* status, info, schedules */
int ctl_health(struct ctl *c);
int ctl_ping(struct ctl *c);
int ctl_cancel(struct ctl *c);
int ctl_replay(struct ctl *c);

#endif
