/* libnvrtc - the calls of the run-time compiler that we use, as a table.
 *
 * Owns:   nothing that could be given back.
 * Thread: any, once loaded.
 * Fails:  -ENODEV  no such library here, or it is too old
 *
 * Declared here, not by <nvrtc.h>: every kernel can then be compiled, and so tested, where the
 * library alone is, without a toolkit. */
#ifndef LLM42D_RUNTIME_LIBNVRTC_H
#define LLM42D_RUNTIME_LIBNVRTC_H

#include <stddef.h>

struct err;
struct nvrtc_program; /* nvrtcProgram points to one */

/* Each gives an nvrtcResult: 0 is success. */
#define LIBNVRTC_CALLS(X)                                                            \
    X(nvrtcVersion, (int *, int *))                                                  \
    X(nvrtcCreateProgram, (struct nvrtc_program **, const char *, const char *, int, \
                           const char *const *, const char *const *))                \
    X(nvrtcCompileProgram, (struct nvrtc_program *, int, const char *const *))       \
    X(nvrtcGetProgramLogSize, (struct nvrtc_program *, size_t *))                    \
    X(nvrtcGetProgramLog, (struct nvrtc_program *, char *))                          \
    X(nvrtcGetCUBINSize, (struct nvrtc_program *, size_t *))                         \
    X(nvrtcGetCUBIN, (struct nvrtc_program *, char *))                               \
    X(nvrtcDestroyProgram, (struct nvrtc_program **))

struct libnvrtc {
#define X(name, args) int(*name) args;
    LIBNVRTC_CALLS(X)
#undef X
    int major, minor; /* its version */
};

/* Looks in `folder`, or, where that is NULL, in the usual places.  0 and *out_nvrtc, or as
 * above. */
int libnvrtc_load(const char *folder, struct libnvrtc *out_nvrtc, struct err *e);

#endif
