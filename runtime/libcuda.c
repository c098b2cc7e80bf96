#ifdef LLM42_CUDA

#include "runtime/libcuda.h"

#include <errno.h>

#include "runtime/err.h"
#include "runtime/library.h"

int libcuda_load(struct libcuda *out_cuda, struct err *e) {
    /* The loader's path first; the others are where drivers are mounted into containers. */
    static const char *const folders[] = {"", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"};
    static const char *const files[] = {"libcuda.so.1"};
#define X(name, args) #name,
    static const char *const names[] = {LIBCUDA_CALLS(X)};
#undef X
    char path[LIBRARY_PATH_BYTES];
    struct libcuda cuda;
    void *library = NULL;
    int r;

    _Static_assert(sizeof(cuda) == sizeof(names), "a pointer a name, in one order");

    for (size_t i = 0; !library && i < sizeof(folders) / sizeof(folders[0]); i++)
        library = library_open(folders[i], files, 1, path);
    if (!library) return err_set(e, -ENODEV, "no CUDA driver here: cannot load libcuda.so.1");
    r = library_fill(library, path, names, sizeof(names) / sizeof(names[0]), &cuda, e);
    if (r < 0) return r;
    *out_cuda = cuda;
    return 0;
}

#endif
