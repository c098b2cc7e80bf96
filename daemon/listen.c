#include "daemon/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "runtime/err.h"

static const char *const names[LISTEN_KINDS] = {"data", "admin"};

/* Files that are ours, for listen_unlink: by path, device and inode, so that a file which another
 * daemon has put there since is left alone. */
static struct {
    bool bound;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    dev_t dev;
    ino_t ino;
} files[LISTEN_KINDS];

static int handed_over(struct listen *l, struct err *e) {
    char **given = NULL;
    int n = sd_listen_fds_with_names(1, &given);
    int r = 0;

    if (n < 0) return err_set(e, n, "sockets handed over: %s", strerror(-n));
    /* All are looked at, so that none leaks when one is refused. */
    for (int i = 0; i < n; i++) {
        int fd = SD_LISTEN_FDS_START + i;
        int kind = 0;

        while (kind < LISTEN_KINDS && strcmp(given[i], names[kind]) != 0) kind++;
        if (kind == LISTEN_KINDS || l->fds[kind] >= 0) {
            if (r == 0)
                r = err_set(e, -EINVAL, "a socket named %s was handed over: %s", given[i],
                            kind == LISTEN_KINDS ? "the names are data and admin" : "twice");
            (void)close(fd);
            continue;
        }
        l->fds[kind] = fd;
        (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        if (sd_is_socket_unix(fd, SOCK_STREAM, 1, NULL, 0) <= 0 && r == 0)
            r = err_set(e, -EINVAL, "the socket %s is not a listening AF_UNIX stream", given[i]);
    }
    for (int i = 0; i < n; i++) free(given[i]);
    free(given);
    return r;
}

/* 0: nobody answers, and nothing is in the way any more. */
static int clear_path(const struct sockaddr_un *addr, struct err *e) {
    struct stat st;
    int r = 0, fd;

    if (lstat(addr->sun_path, &st) < 0) {
        if (errno == ENOENT) return 0;
        return err_set(e, -errno, "%s: %s", addr->sun_path, strerror(errno));
    }
    if (!S_ISSOCK(st.st_mode))
        return err_set(e, -EINVAL, "%s is there and is no socket", addr->sun_path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return err_set(e, -errno, "socket: %s", strerror(errno));
    /* A full backlog (EAGAIN) is a sign of life too. */
    if (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0 || errno == EAGAIN)
        r = err_set(e, -EADDRINUSE, "%s: a daemon is alive there", addr->sun_path);
    else if (errno != ECONNREFUSED)
        r = err_set(e, -errno, "%s: %s", addr->sun_path, strerror(errno));
    else if (unlink(addr->sun_path) < 0 && errno != ENOENT)
        r = err_set(e, -errno, "%s: stale, and not removed: %s", addr->sun_path, strerror(errno));
    (void)close(fd);
    return r;
}

static int bind_own(struct listen *l, enum listen_kind kind, const char *path, mode_t mode,
                    struct err *e) {
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct stat st;
    mode_t umask_before;
    int r, fd;

    if (strlen(path) >= sizeof(addr.sun_path))
        return err_set(e, -EINVAL, "%s is too long for a socket", path);
    memcpy(addr.sun_path, path, strlen(path) + 1);
    r = clear_path(&addr, e);
    if (r < 0) return r;

    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return err_set(e, -errno, "socket: %s", strerror(errno));
    l->fds[kind] = fd;
    /* The file is born with its mode: there is no moment at which it is wider. */
    umask_before = umask((mode_t)(0777 & ~mode));
    r = bind(fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0 ? -errno : 0;
    (void)umask(umask_before);
    if (r < 0) return err_set(e, r, "%s: %s", path, strerror(-r));
    if (stat(path, &st) == 0) {
        memcpy(files[kind].path, addr.sun_path, sizeof(addr.sun_path));
        files[kind].dev = st.st_dev;
        files[kind].ino = st.st_ino;
        files[kind].bound = true;
    }
    l->own[kind] = true;
    if (listen(fd, 128) < 0) return err_set(e, -errno, "%s: %s", path, strerror(errno));
    return 0;
}

int listen_open(const char *path, const char *admin_path, mode_t mode, struct listen *out,
                struct err *e) {
    struct listen l = {.fds = {-1, -1}};
    int r = handed_over(&l, e);

    if (r == 0 && l.fds[LISTEN_DATA] < 0) r = bind_own(&l, LISTEN_DATA, path, mode, e);
    if (r == 0 && l.fds[LISTEN_ADMIN] < 0) r = bind_own(&l, LISTEN_ADMIN, admin_path, mode, e);
    if (r == 0)
        *out = l;
    else
        listen_close(&l);
    return r;
}

void listen_unlink(void) {
    struct stat st;

    for (int i = 0; i < LISTEN_KINDS; i++) {
        if (!files[i].bound) continue;
        files[i].bound = false;
        if (stat(files[i].path, &st) == 0 && st.st_dev == files[i].dev && st.st_ino == files[i].ino)
            (void)unlink(files[i].path);
    }
}

void listen_close(struct listen *l) {
    for (int i = 0; i < LISTEN_KINDS; i++) {
        if (l->fds[i] >= 0) (void)close(l->fds[i]);
        l->fds[i] = -1;
    }
    listen_unlink();
}

int listen_accept(int fd, struct listen_peer *out_peer) {
    struct ucred cred = {.pid = 0, .uid = (uid_t)-1, .gid = (gid_t)-1};
    struct listen_peer peer = {0};
    socklen_t n = sizeof(cred);
    int c = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (c < 0) return -errno;
    if (getsockopt(c, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0) cred.uid = (uid_t)-1;
    peer.uid = cred.uid;
    peer.gid = cred.gid;
    peer.pid = cred.pid;
    n = sizeof(peer.groups);
    if (getsockopt(c, SOL_SOCKET, SO_PEERGROUPS, peer.groups, &n) == 0)
        peer.n_groups = (uint32_t)(n / sizeof(gid_t));
    *out_peer = peer;
    return c;
}
