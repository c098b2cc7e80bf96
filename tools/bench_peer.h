/* bench_peer - another implementation's times, of a child process and one at a time.
 *
 * Owns:   the child, from open to close.
 * Thread: one.
 * Fails:  -ENOENT    no such program, or it ended before it could answer: the text has its words
 *         -ENOTSUP   it does not measure what was asked for, and says why
 *         -EPROTO    it said something else than the protocol allows: the text has the line
 *         -ETIMEDOUT no line in time
 *         -EPIPE     it ended in the middle
 *
 * Lines, both ways, of at most PEER_LINE_BYTES:
 *
 *     peer:   peer 2 WORDS          who it is, once; or "no WORDS" and its end
 *     we:     gemm 64 6144 4096 8   what to time; the peer's own words are in bench_peer.py
 *     peer:   us 17.25              microseconds a call, the median of replays
 *             no WORDS              it cannot
 *     we:     pause 6 gemm 64 ..    the same, with so many milliseconds before each replay, in which
 *                                   the GPU does nothing; without: back to back
 *
 * A request made again in a row costs the replays alone: so ours and theirs are timed in turn.
 * The child ends when its standard input does. */
#ifndef LLM42D_TOOLS_BENCH_PEER_H
#define LLM42D_TOOLS_BENCH_PEER_H

struct bench_peer;
struct err;

enum {
    PEER_VERSION = 2,
    PEER_LINE_BYTES = 512,
    PEER_START_MS = 120000, /* its libraries are large */
    PEER_ANSWER_MS = 60000,
};

/* Starts the program, which is looked for in PATH, and waits until it says who it is. */
int bench_peer_open(const char *program, struct bench_peer **out_peer, struct err *e);
void bench_peer_close(struct bench_peer *p); /* NULL, or one that failed, too */

/* Its own words about itself. */
const char *bench_peer_words(const struct bench_peer *p);

/* 0 and *out_us > 0, or as above.  After any failure but -ENOTSUP it can only be closed. */
int bench_peer_ask(struct bench_peer *p, const char *request, double *out_us, struct err *e);

#endif
