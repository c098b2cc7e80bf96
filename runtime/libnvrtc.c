#include "runtime/libnvrtc.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/err.h"
#include "runtime/library.h"

/* When it compiles, NVRTC opens a second library by its bare name, which only the loader's path
 * has, or a process that has it open.  Without it, compiling says what is missing. */
static void open_builtins(const char *nvrtc_path, int major, int minor) {
    char folder[LIBRARY_PATH_BYTES], path[LIBRARY_PATH_BYTES], file[64];
    const char *const files[] = {file};
    const char *slash = strrchr(nvrtc_path, '/');
    int n = slash ? (int)(slash - nvrtc_path) : 0;

    snprintf(folder, sizeof(folder), "%.*s", n, nvrtc_path);
    snprintf(file, sizeof(file), "libnvrtc-builtins.so.%d.%d", major, minor);
    if (!library_open(folder, files, 1, path)) (void)library_open("", files, 1, path);
}

int libnvrtc_load(const char *folder, struct libnvrtc *out_nvrtc, struct err *e) {
    static const char *const folders[] = {"", "/usr/local/cuda/lib64", "/usr/lib/llm42",
                                          "/usr/lib/x86_64-linux-gnu"};
    static const char *const files[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
#define X(name, args) #name,
    static const char *const names[] = {LIBNVRTC_CALLS(X)};
#undef X
    const size_t n_names = sizeof(names) / sizeof(names[0]);
    const size_t n_folders = folder ? 1 : sizeof(folders) / sizeof(folders[0]);
    char path[LIBRARY_PATH_BYTES];
    struct libnvrtc nvrtc;
    void *library = NULL;
    int r;

    _Static_assert(offsetof(struct libnvrtc, major) == sizeof(names), "a pointer a name");

    for (size_t i = 0; !library && i < n_folders; i++)
        library = library_open(folder ? folder : folders[i], files, 2, path);
    if (!library) return err_set(e, -ENODEV, "no NVRTC here: cannot load %s", files[0]);
    r = library_fill(library, path, names, n_names, &nvrtc, e);
    if (r < 0) return r;
    if (nvrtc.nvrtcVersion(&nvrtc.major, &nvrtc.minor))
        return err_set(e, -ENODEV, "%s: it does not say its version", path);
    open_builtins(path, nvrtc.major, nvrtc.minor);
    *out_nvrtc = nvrtc;
    return 0;
}
