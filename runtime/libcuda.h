/* libcuda - the calls of the CUDA driver that we use, as a table.
 *
 * Owns:   nothing that could be given back.
 * Thread: any, once loaded; the driver's own rules hold for each call.
 * Fails:  -ENODEV  no driver here, or it is too old: the text says what it lacks
 *
 * Includes <cuda.h>, which a machine without the toolkit lacks: who includes this stands under
 * LLM42_CUDA, which `make` defines where the toolkit is. */
#ifndef LLM42D_RUNTIME_LIBCUDA_H
#define LLM42D_RUNTIME_LIBCUDA_H

#include <cuda.h>

struct err;

/* The first of its name will do, and drivers before 12.8 have no other. */
#undef cuEventElapsedTime

/* With their version suffix: <cuda.h> renames these by macro, dlsym does not, and the plain
 * names are the oldest ABI. */
#define LIBCUDA_CALLS(X)                                                                  \
    X(cuGetErrorName, (CUresult, const char **))                                          \
    X(cuGetErrorString, (CUresult, const char **))                                        \
    X(cuInit, (unsigned))                                                                 \
    X(cuDriverGetVersion, (int *))                                                        \
    X(cuDeviceGetCount, (int *))                                                          \
    X(cuDeviceGet, (CUdevice *, int))                                                     \
    X(cuDeviceGetName, (char *, int, CUdevice))                                           \
    X(cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))                        \
    X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                  \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                           \
    X(cuCtxSetCurrent, (CUcontext))                                                       \
    X(cuMemGetInfo_v2, (size_t *, size_t *))                                              \
    X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                             \
    X(cuMemFree_v2, (CUdeviceptr))                                                        \
    X(cuMemHostAlloc, (void **, size_t, unsigned))                                        \
    X(cuMemFreeHost, (void *))                                                            \
    X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                    \
    X(cuMemsetD16Async, (CUdeviceptr, unsigned short, size_t, CUstream))                  \
    X(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                \
    X(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                      \
    X(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                 \
    X(cuStreamCreate, (CUstream *, unsigned))                                             \
    X(cuStreamDestroy_v2, (CUstream))                                                     \
    X(cuStreamSynchronize, (CUstream))                                                    \
    X(cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                   \
    X(cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))                           \
    X(cuStreamEndCapture, (CUstream, CUgraph *))                                          \
    X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))          \
    X(cuGraphLaunch, (CUgraphExec, CUstream))                                             \
    X(cuGraphExecDestroy, (CUgraphExec))                                                  \
    X(cuGraphDestroy, (CUgraph))                                                          \
    X(cuEventCreate, (CUevent *, unsigned))                                               \
    X(cuEventRecord, (CUevent, CUstream))                                                 \
    X(cuEventSynchronize, (CUevent))                                                      \
    X(cuEventElapsedTime, (float *, CUevent, CUevent))                                    \
    X(cuEventDestroy_v2, (CUevent))                                                       \
    X(cuLibraryLoadData, (CUlibrary *, const void *, CUjit_option *, void **, unsigned,   \
                          CUlibraryOption *, void **, unsigned))                          \
    X(cuLibraryUnload, (CUlibrary))                                                       \
    X(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))                          \
    X(cuKernelGetFunction, (CUfunction *, CUkernel))                                      \
    X(cuFuncLoad, (CUfunction))                                                           \
    X(cuFuncSetAttribute, (CUfunction, CUfunction_attribute, int))                        \
    X(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))           \
    X(cuOccupancyMaxActiveClusters, (int *, CUfunction, const CUlaunchConfig *))          \
    X(cuTensorMapEncodeTiled,                                                             \
      (CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,        \
       const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, \
       CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill))

struct libcuda {
#define X(name, args) CUresult(*name) args;
    LIBCUDA_CALLS(X)
#undef X
};

/* 0 and *out_cuda, or as above. */
int libcuda_load(struct libcuda *out_cuda, struct err *e);

#endif
