/* bench_client - a connection to the daemon that is measured.
 *
 * Owns:   nothing; what it gives out is the caller's.
 * Thread: one.
 * Fails:  with an exit code (enum bench_exit), the reason on stderr. */
#ifndef LLM42D_TOOLS_BENCH_CLIENT_H
#define LLM42D_TOOLS_BENCH_CLIENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/bench_verbs.h"
#include "tools/llm42.h"

enum {
    BENCH_REQUESTS_MAX = 100000,
    BENCH_WAIT_MS = 600000,    /* without an event for so long, the daemon counts as stuck.. */
    BENCH_WAIT_GPU_MS = 60000, /* ..on a GPU, where a step takes milliseconds */
};

/* Connects and takes the greeting. */
int bench_client_open(const char *path, struct llm42_io **out_io);
/* The next event; BROKEN and silence are failures. */
int bench_client_next(struct llm42_io *io, struct llm42_event *out_event);
int bench_client_info(struct llm42_io *io, uint32_t topic, json_t **out);
/* Ids of a text by the daemon's tokenizer, which sees it in pieces; the caller frees them. */
int bench_client_ids(struct llm42_io *io, const char *text, size_t n_bytes, uint32_t **out_ids,
                     uint32_t *out_n);
/* Reports the round trip of n PINGs, one after the other. */
int bench_client_ping(const struct bench_report *r, struct llm42_io *io, uint32_t n);

#endif
