/* cuda_driver - one GPU: its context, its stream, its kernels, and launches on them.
 *
 * Owns:   the primary context's use, one stream, the loaded kernels, until close.
 * Thread: one at a time, as the device.
 * Fails:  -ENODEV  no driver, no such GPU, or one that is not compute capability 9.0: by name
 *                  or one that does not start
 *         -ENOMEM  the GPU's memory does not suffice; while loading alone
 *         -EINVAL  a kernel does not compile or load; likewise
 *         -EIO     the device is lost; sticky: every later call gives it again
 *
 * The bits of SPEC 2.2 are those of one architecture, so any other is refused, never emulated. */
#ifndef LLM42D_RUNTIME_CUDA_DRIVER_H
#define LLM42D_RUNTIME_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/libcuda.h"

struct err;

struct cuda_driver_options {
    int ordinal;              /* which GPU */
    const char *cache_folder; /* of compiled kernels, or NULL */
    const char *nvrtc_folder; /* or NULL: the usual places */
};

enum { CUDA_DRIVER_NAME_BYTES = 128 };

struct cuda_driver {
    struct libcuda cuda;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUlibrary *libraries; /* [kernels_count()], those loaded so far */
    char name[CUDA_DRIVER_NAME_BYTES];
    int version;      /* of the driver: 1000 major + 10 minor */
    uint32_t n_units; /* multiprocessors */
    /* Of them those that blocks which wait for each other may count on, in kernels of one stream; 0
     * where kernels of other processes run beside ours (MPS): two such kernels would wait for each
     * other's places. */
    uint32_t n_own;
    uint32_t n_found;   /* kernels that the cache had */
    uint32_t n_unkept;  /* compiled, and the cache did not take them */
    uint32_t n_kernels; /* kernels loaded */
    bool has_context;
    bool at_work; /* not loading: whatever fails, the device is lost */
    bool lost;    /* sticky */
};

/* Driver, context, stream, and all kernels of the table loaded. */
int cuda_driver_open(const struct cuda_driver_options *options, struct cuda_driver **out_driver,
                     struct err *e);
void cuda_driver_close(struct cuda_driver *d); /* NULL, or opened in part, too */

/* Makes the calling thread one that may use the GPU: whoever opened it need not be who steps.
 * 0, or -EIO where the device is lost. */
int cuda_driver_enter(struct cuda_driver *d, struct err *e);

/* The same, for a step: until the next enter whatever fails is final. */
int cuda_driver_work(struct cuda_driver *d, struct err *e);

/* 0, or the meaning of a CUresult, with `what` and the driver's words in the text. */
int cuda_driver_check(struct cuda_driver *d, CUresult result, const char *what, struct err *e);

/* The entry of the kernel file, most often of the same name; -EINVAL where there is none.
 * shared_bytes: dynamic shared memory that launches will ask for, at most. */
int cuda_driver_entry(struct cuda_driver *d, const char *kernel, const char *entry,
                      uint32_t shared_bytes, CUfunction *out_entry, struct err *e);

/* A launch.  Zero means 1 for what is left of grid, block and cluster. */
struct cuda_launch {
    CUfunction entry;
    const char *name; /* for messages */
    uint32_t grid[3], block[3], cluster;
    uint32_t shared_bytes;
    bool overlap; /* programmatic dependent launch: the kernel itself waits for what came before */
    void **params;
};

/* Queued on the stream: 0 or -EIO. */
int cuda_driver_launch(struct cuda_driver *d, const struct cuda_launch *launch, struct err *e);

#endif
