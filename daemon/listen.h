/* listen - sockets handed over by systemd, by name, or our own; and who the peer is.
 *
 * Owns:   the listening descriptors, and the files of those that it bound itself.
 * Thread: one.
 * Fails:  -EADDRINUSE  a live daemon answers on the path
 *         -EINVAL      a handed-over socket that is not ours to serve; a path that is no socket
 *         other errno  of the system call; the text says of what */
#ifndef LLM42D_DAEMON_LISTEN_H
#define LLM42D_DAEMON_LISTEN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct err;

enum { LISTEN_GROUPS_MAX = 64 };

enum listen_kind { LISTEN_DATA, LISTEN_ADMIN, LISTEN_KINDS };

struct listen {
    int fds[LISTEN_KINDS];
    bool own[LISTEN_KINDS]; /* bound here, and unlinked here */
};

struct listen_peer {
    uid_t uid;
    gid_t gid;
    pid_t pid;
    uint32_t n_groups; /* LISTEN_GROUPS_MAX at most are kept */
    gid_t groups[LISTEN_GROUPS_MAX];
};

/* Takes the sockets named `data` and `admin` that were handed over; one that is missing is bound
 * at its path, with `mode` whatever the umask, a stale one replaced. */
int listen_open(const char *path, const char *admin_path, mode_t mode, struct listen *out,
                struct err *e);
void listen_close(struct listen *l);
/* Removes our own socket files; async-signal-safe. */
void listen_unlink(void);

/* The next connection, non-blocking and close-on-exec, or -errno of accept. */
int listen_accept(int fd, struct listen_peer *out_peer);

#endif
