/* conn - one connection: bytes in, frames out, credit, limits, close.
 *
 * Owns:   its descriptor, its buffers, its requests.
 * Thread: the loop's.
 *
 * A frame is judged before it is buffered whole, taken only while there is room for any answer to
 * it, and answered in order.  A frame that is malformed closes the connection, after an ERROR that
 * says why; one that is well formed and asks for what cannot be gets an ERROR of its own, and
 * nothing else changes.  A peer that is gone takes its requests with it.  One that has only shut
 * down its sending side still gets the answers to what it had asked for in full. */
#ifndef LLM42D_DAEMON_CONN_H
#define LLM42D_DAEMON_CONN_H

#include <stdbool.h>
#include <stdint.h>

struct conn;
struct listen_peer;
struct serve;

enum conn_kind { CONN_DATA, CONN_ADMIN }; /* as enum listen_kind */

/* Takes `fd`, also on failure.  0 and *out_conn, or -ENOMEM. */
int conn_open(struct serve *s, int fd, enum conn_kind kind, const struct listen_peer *peer,
              uint64_t number, uint64_t now_ms, struct conn **out_conn);
void conn_close(struct conn *c); /* NULL is fine; live requests are cancelled */

int conn_fd(const struct conn *c);
/* The events to be waited for. */
uint32_t conn_wants(const struct conn *c);
/* When conn_turn has to be called at the latest, UINT64_MAX: never. */
uint64_t conn_deadline_ms(const struct conn *c);

/* One turn of the loop: reads, answers, sends; `events` as epoll gives them, 0 for a turn because
 * of time or of engine events.  False: the connection is over, close it. */
bool conn_turn(struct conn *c, uint32_t events, uint64_t now_ms);

/* The drain begins: SHUTDOWN to the client. */
void conn_shutdown(struct conn *c, uint32_t ms);
/* The last word: each request not yet over gets ERROR with this code, then the connection closes. */
void conn_end(struct conn *c, uint16_t code, const char *text, uint64_t now_ms);
/* Nothing is owed to this client any more. */
bool conn_idle(const struct conn *c);

#endif
