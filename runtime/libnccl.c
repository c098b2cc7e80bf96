#include "runtime/libnccl.h"

#include <errno.h>
#include <stddef.h>

#include "runtime/err.h"
#include "runtime/library.h"

int libnccl_load(struct libnccl *out_nccl, struct err *e) {
    static const char *const files[] = {"libnccl.so.2"};
    static const char *const names[] = {"ncclGetVersion"};
    char path[LIBRARY_PATH_BYTES];
    struct libnccl nccl = {.version = 0};
    void *library = library_open("", files, 1, path);
    int r;

    if (!library) return err_set(e, -ENODEV, "no NCCL here: cannot load %s", files[0]);
    r = library_fill(library, path, names, 1, &nccl, e);
    if (r < 0) return r;
    if (nccl.ncclGetVersion(&nccl.version))
        return err_set(e, -ENODEV, "%s: it does not say its version", path);
    *out_nccl = nccl;
    return 0;
}
