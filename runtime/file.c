#include "runtime/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/err.h"

static int failed(const char *path, int error, struct err *e) {
    bool known = error == ENOENT || error == EACCES || error == ENOMEM;
    /* A path through something that is no folder leads to nothing, as a missing one does. */
    int code = known ? -error : error == ENOTDIR ? -ENOENT : -EIO;

    return err_set(e, code, "%s: %s", path, strerror(error));
}

int file_open(const char *path, int *out_fd, uint64_t *out_n_bytes, struct err *e) {
    /* Without O_NONBLOCK the open of a FIFO waits for a writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    int r = 0;

    if (fd < 0) return failed(path, errno, e);
    if (fstat(fd, &st) < 0)
        r = failed(path, errno, e);
    else if (!S_ISREG(st.st_mode))
        r = err_set(e, -EINVAL, "%s: not a regular file", path);
    if (r < 0) {
        close(fd);
        return r;
    }
    *out_n_bytes = (uint64_t)st.st_size;
    *out_fd = fd;
    return 0;
}

int file_read_at(int fd, const char *path, uint64_t off, void *out_bytes, size_t n_bytes,
                 struct err *e) {
    char *to = out_bytes;

    while (n_bytes > 0) {
        ssize_t n = pread(fd, to, n_bytes, (off_t)off);

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return failed(path, errno, e);
        if (n == 0)
            return err_set(e, -EIO, "%s: ends at byte %llu, shorter than it was", path,
                           (unsigned long long)off);
        to += n;
        off += (uint64_t)n;
        n_bytes -= (size_t)n;
    }
    return 0;
}

int file_read(const char *path, size_t n_bytes_max, char **out_text, size_t *out_n_bytes,
              struct err *e) {
    char *text = NULL;
    uint64_t n_bytes;
    int fd, r;

    r = file_open(path, &fd, &n_bytes, e);
    if (r < 0) return r;
    if (n_bytes > n_bytes_max) {
        r = err_set(e, -EINVAL, "%s: %llu bytes, the limit is %zu", path,
                    (unsigned long long)n_bytes, n_bytes_max);
        goto out;
    }
    text = malloc((size_t)n_bytes + 1);
    if (!text) {
        r = err_set(e, -ENOMEM, "%s: no memory for %llu bytes", path, (unsigned long long)n_bytes);
        goto out;
    }
    r = file_read_at(fd, path, 0, text, (size_t)n_bytes, e);
    if (r < 0) goto out;
    text[n_bytes] = '\0';
    *out_text = text;
    *out_n_bytes = (size_t)n_bytes;
    text = NULL;
out:
    free(text);
    close(fd);
    return r;
}
