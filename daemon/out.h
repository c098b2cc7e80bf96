/* out - what one connection has still to be sent, and what it may be sent.
 *
 * Owns:   a buffer of fixed size, taken at open.
 * Thread: the loop's.
 *
 * Two limits hold for stream frames (TOKENS, LOGPROBS, PROMPT_LOGPROBS): the client's credit, in
 * bytes of whole frames, and the room here.  Both are reserved, at their worst case, before the
 * engine is granted an event, so an event that comes always has its place and the engine never
 * waits.  Other answers need room alone; a part of the buffer is kept out of reach of the stream
 * for them.  Where even that is full the connection reads no further frame until its client has
 * read some of ours. */
#ifndef LLM42D_DAEMON_OUT_H
#define LLM42D_DAEMON_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    OUT_ANSWERS_BYTES = 16 << 10, /* out of reach of the stream */
    OUT_FRAME_BYTES = 1 << 10,    /* any answer but one in parts: HELLO_OK, ERROR, PONG.. */
    OUT_LAST_BYTES = 2 << 10,     /* for SHUTDOWN and the error that closes */
};

struct out {
    uint8_t *bytes;
    size_t n_max, start, end;
    uint64_t credit;   /* never below reserved */
    uint64_t reserved; /* of credit and of room, for events that the engine was granted */
};

int out_open(struct out *o, size_t n_bytes); /* 0 or -ENOMEM */
void out_close(struct out *o);

size_t out_used(const struct out *o);
/* Bytes that an answer may take now. */
size_t out_room(const struct out *o);
/* Whether any answer to one more frame fits. */
bool out_ready(const struct out *o);

/* Where the next frame goes, *out_n_max bytes in one piece: all that is free, the reserve for the
 * last frames included; write, then out_put the count. */
uint8_t *out_tail(struct out *o, size_t *out_n_max);
void out_put(struct out *o, size_t n_bytes);

/* Nothing is to be sent and nothing is on its way from the engine. */
bool out_still(const struct out *o);

/* What stream frames may take in all, that which is reserved included. */
uint64_t out_budget(const struct out *o);
/* Room and credit for n bytes of stream frames: false, and nothing changed, where either lacks. */
bool out_reserve(struct out *o, uint64_t n_bytes);
/* Gives back what was reserved, whether or not it was used. */
void out_release(struct out *o, uint64_t n_bytes);
/* n bytes of stream frames were put. */
void out_spend(struct out *o, uint64_t n_bytes);

/* Sends what it can: 0 when nothing is left, -EAGAIN, or the peer's -errno.  *out_n_sent says
 * how much went. */
int out_send(struct out *o, int fd, size_t *out_n_sent);

#endif
