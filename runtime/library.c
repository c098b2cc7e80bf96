#include "runtime/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/err.h"

void *library_open(const char *folder, const char *const files[], size_t n_files,
                   char out_path[LIBRARY_PATH_BYTES]) {
    for (size_t i = 0; i < n_files; i++) {
        int n =
            snprintf(out_path, LIBRARY_PATH_BYTES, "%s%s%s", folder, *folder ? "/" : "", files[i]);
        void *library;

        if (n < 0 || n >= LIBRARY_PATH_BYTES) continue;
        library = dlopen(out_path, RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
    }
    return NULL;
}

int library_fill(void *library, const char *path, const char *const names[], size_t n_calls,
                 void *calls, struct err *e) {
    for (size_t i = 0; i < n_calls; i++) {
        void *call = dlsym(library, names[i]);

        if (!call) return err_set(e, -ENODEV, "%s is too old: it has no %s", path, names[i]);
        /* POSIX has object and function pointers alike; ISO C has no cast for it. */
        memcpy((char *)calls + i * sizeof(call), &call, sizeof(call));
    }
    return 0;
}
