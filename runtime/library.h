/* library - a shared library loaded at run time, its calls in one table.
 *
 * Owns:   the loaded library, until the process ends: the driver and NVRTC keep memory and
 *         threads of their own, which unloading them would strand.
 * Thread: start-up only.
 * Fails:  -ENODEV  no such library here, or it lacks a call that we use
 *
 * libcuda, libnvrtc and libnccl are loaded, not linked, so that one program runs with and
 * without them, and says what is missing. */
#ifndef LLM42D_RUNTIME_LIBRARY_H
#define LLM42D_RUNTIME_LIBRARY_H

#include <stddef.h>

struct err;

enum { LIBRARY_PATH_BYTES = 512 };

/* Opens the first of `files` that is there, in `folder`, or where the loader looks if that is "".
 * out_path: what was opened.  NULL if none is. */
void *library_open(const char *folder, const char *const files[], size_t n_files,
                   char out_path[LIBRARY_PATH_BYTES]);

/* Fills calls[0 .. n_calls - 1], function pointers, in the order of `names`.  0, or -ENODEV and
 * calls are not all set. */
int library_fill(void *library, const char *path, const char *const names[], size_t n_calls,
                 void *calls, struct err *e);

#endif
