/* llm42 - libllm42: a client of llm42d as bytes in, events out.
 *
 * Owns:   its buffers and a table of live requests, all bounded by llm42_options.
 * Thread: any one at a time; no call waits, but llm42_io_next.
 * Fails:  as each call says.  Bytes of a server that breaks the protocol become one LLM42_BROKEN
 *         event that names what was wrong; after it every call gives -EPIPE.
 *
 * The core opens no socket: what comes from the server goes into llm42_feed, what is to be sent
 * comes out of llm42_output, and llm42_next takes the next event.  Credit is handed back by itself
 * for what was taken.  llm42_io below is the small blocking wrapper for a Unix socket. */
#ifndef LLM42D_TOOLS_LLM42_H
#define LLM42D_TOOLS_LLM42_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/wire.h"

struct llm42;
struct llm42_io;

enum {
    LLM42_REQUESTS_MAX = 4096, /* live ones of one connection */
    LLM42_TEXT_BYTES = 256,    /* of LLM42_BROKEN, with the final zero */
    LLM42_OUTPUT_DEFAULT = 64 << 20,
};

struct llm42_options {
    const char *name;        /* of the program, for the server's log; NULL: libllm42 */
    uint32_t payload_max;    /* wish; 0: WIRE_PAYLOAD_DEFAULT */
    uint32_t credit;         /* wish; 0: WIRE_CREDIT_DEFAULT */
    size_t output_bytes_max; /* waiting to be sent; 0: LLM42_OUTPUT_DEFAULT */
};

enum llm42_kind {
    LLM42_READY = 1, /* hello_ok: requests may be made */
    LLM42_ACCEPTED,
    LLM42_PROMPT_IDS, /* part */
    LLM42_TOKENS,
    LLM42_LOGPROBS,
    LLM42_PROMPT_LOGPROBS, /* logprobs */
    LLM42_DONE,            /* the request has ended */
    LLM42_ERROR,           /* error; the request has ended.  request 0: BROKEN follows */
    LLM42_PONG,            /* part: the bytes sent */
    LLM42_INFO,            /* part: JSON text, in pieces up to the one marked last */
    LLM42_TOKENIZED,       /* part: ids */
    LLM42_DETOKENIZED,     /* part: text */
    LLM42_ADMIN_OK,
    LLM42_SHUTDOWN, /* shutdown_ms: the server drains, new requests will be refused */
    LLM42_BROKEN,   /* text: the connection is of no more use, every live request is lost */
};

struct llm42_event {
    enum llm42_kind kind;
    uint64_t request; /* 0: the connection */
    union {           /* pointers are valid up to the next call with this connection */
        struct wire_hello_ok hello_ok;
        struct wire_accepted accepted;
        struct wire_tokens tokens;
        struct wire_logprobs logprobs;
        struct wire_done done;
        struct wire_error error;
        struct wire_prompt part;
        uint32_t shutdown_ms;
        const char *text;
    };
};

/* Makes a connection's state, with HELLO waiting to be sent.  NULL: no memory, or an option out of
 * range (a name over WIRE_NAME_MAX bytes, payload_max over WIRE_PAYLOAD_MAX, ...). */
struct llm42 *llm42_open(const struct llm42_options *o);
void llm42_close(struct llm42 *c); /* NULL is fine */

/* Takes bytes of the server; the number taken, less than n_bytes only while events wait to be
 * taken.  A piece of at most 64 KiB is taken whole once llm42_next has returned 0. */
size_t llm42_feed(struct llm42 *c, const void *bytes, size_t n_bytes);
/* The server's bytes have ended, `why` in words: events still in the buffer come, then BROKEN. */
void llm42_end(struct llm42 *c, const char *why);
/* 1 and *out_event, or 0: more bytes are needed. */
int llm42_next(struct llm42 *c, struct llm42_event *out_event);

/* Bytes to be sent, *out_bytes valid up to the next call; and how many of them were. */
size_t llm42_output(struct llm42 *c, const uint8_t **out_bytes);
void llm42_sent(struct llm42 *c, size_t n_bytes);

/* What the server said in HELLO_OK, NULL before LLM42_READY. */
const struct wire_hello_ok *llm42_server(const struct llm42 *c);
/* Requests of any kind that have not ended. */
uint32_t llm42_live(const struct llm42 *c);

/* Requests.  0 and *out_request, or with nothing changed:
 *   -ENOTCONN  before LLM42_READY            -EPIPE  after LLM42_BROKEN
 *   -EAGAIN    no room: send, take events, try again
 *   -EMSGSIZE  it fits no frame of this connection
 *   -EINVAL    more stop ids or strings than a SUBMIT can hold, PING of over WIRE_PING_MAX bytes
 * The fields of a SUBMIT are judged by the server; prompt_bytes is filled in here.  The prompt's
 * bytes are copied; `out_request` numbers are never used twice. */
int llm42_submit(struct llm42 *c, const struct wire_submit *s, const void *prompt,
                 uint32_t prompt_bytes, uint64_t *out_request);
int llm42_tokenize(struct llm42 *c, const struct wire_tokenize *t, uint64_t *out_request);
int llm42_detokenize(struct llm42 *c, const uint32_t *ids, uint32_t n_ids, uint64_t *out_request);
int llm42_info(struct llm42 *c, uint32_t topic, uint64_t *out_request);
int llm42_ping(struct llm42 *c, const void *bytes, size_t n_bytes, uint64_t *out_request);
/* Of the admin socket: ends the request with this server-wide id, whoever made it. */
int llm42_admin_cancel(struct llm42 *c, uint64_t server_id, uint64_t *out_request);
/* Idempotent: the answer is LLM42_DONE (cancelled), unless it has ended already. */
int llm42_cancel(struct llm42 *c, uint64_t request);

/* ---- A blocking connection to a Unix socket ---- */

/* Connects.  0 and *out_io; -errno of socket or connect, -ENAMETOOLONG, -EINVAL for options. */
int llm42_io_open(const char *path, const struct llm42_options *o, struct llm42_io **out_io);
/* Around a connected stream socket that is now its own. */
int llm42_io_attach(int fd, const struct llm42_options *o, struct llm42_io **out_io);
void llm42_io_close(struct llm42_io *io); /* NULL is fine */
struct llm42 *llm42_io_core(struct llm42_io *io);

/* Sends what waits and takes the next event.  1 and *out_event; -ETIMEDOUT after timeout_ms
 * (-1: never), -EINTR when a signal came.  A lost connection is an LLM42_BROKEN event, and after
 * that -EPIPE. */
int llm42_io_next(struct llm42_io *io, struct llm42_event *out_event, int timeout_ms);

#endif
