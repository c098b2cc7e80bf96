/* bench_experiment_session - an experiment under way: its file, its daemon, its requests.
 *
 * Owns:   all in it, from bench_session_open to bench_session_close.
 * Thread: one.
 * Fails:  with an exit code (enum bench_exit), the reason on stderr. */
#ifndef LLM42D_TOOLS_BENCH_EXPERIMENT_SESSION_H
#define LLM42D_TOOLS_BENCH_EXPERIMENT_SESSION_H

#include "tools/bench_experiment_file.h"

struct bench_session {
    const struct bench_options *o;
    struct bench_plan plan;
    char path[4096];                                                   /* of the CSV file */
    int lock_fd;                                                       /* on it, locked */
    struct bench_table table;                                          /* as it was */
    char asked[BENCH_CONDITIONS_BYTES], found[BENCH_CONDITIONS_BYTES]; /* # lines */
    bool begun;                                                        /* the file has its names */
    uint32_t n_there, n_done, n_void;

    struct bench_daemon daemon;
    struct llm42_io *io; /* NULL: no daemon runs */
    char settings[256];  /* of the one that runs */
    const char *device;  /* it is to be on */
    bool met;            /* one has run: the next three stand */
    uint8_t fingerprint[WIRE_DIGEST_BYTES];
    uint32_t context;

    uint32_t *text_ids;
    struct bench_prompts prompts;
    struct bench_workload workload; /* of the last run; n 0: none yet */
    struct bench_reference reference;
};

/* Takes the file for itself and reads it: BENCH_USAGE where it was made otherwise, or another
 * program is at work on it.  s->plan stands, lock_fd is -1. */
int bench_session_open(const struct bench_options *o, struct bench_session *s);
void bench_session_close(struct bench_session *s);

bool bench_session_has(const struct bench_session *s, const struct bench_run *run);
int bench_session_row(struct bench_session *s, const struct bench_row *row);
int bench_session_void(struct bench_session *s, const char *key, const char *why);

/* A daemon with these settings: the one that runs, or another after it. */
int bench_session_daemon(struct bench_session *s, const struct bench_system *system,
                         uint32_t window, uint32_t group, uint32_t mismatch_ppm);
int bench_session_daemon_end(struct bench_session *s, bool failed);
/* Its requests, and their reference as far as it is there. */
int bench_session_workload(struct bench_session *s, const char *name);
/* Makes what is wanting of all references for runs that are to come. */
int bench_session_references(struct bench_session *s);

#endif
