#ifdef LLM42_CUDA

#include "runtime/cuda_driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/cpu_pool.h"
#include "runtime/err.h"
#include "runtime/jit.h"
#include "runtime/kernels.h"
#include "runtime/libnvrtc.h"

enum {
    COMPILERS_MAX = 16,
    VERSION_MIN = 12040, /* the first that has all calls of libcuda.h */
};

int cuda_driver_check(struct cuda_driver *d, CUresult result, const char *what, struct err *e) {
    const char *name = NULL, *words = NULL;
    int code = -EIO;

    if (result == CUDA_SUCCESS) return 0;
    if (d->lost) return err_set(e, -EIO, "CUDA: %s: the device is lost", what);
    if (d->cuda.cuGetErrorName(result, &name) != CUDA_SUCCESS) name = "an unknown CUresult";
    if (d->cuda.cuGetErrorString(result, &words) != CUDA_SUCCESS) words = "no words for it";
    /* There is no step after one that failed, whatever it was: memory for a graph, too. */
    switch (d->at_work ? CUDA_ERROR_UNKNOWN : result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        code = -ENOMEM;
        break;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION: /* by a later toolkit than the driver's */
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
        code = -ENODEV;
        break;
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NOT_FOUND:
        code = -EINVAL;
        break;
    default:
        d->lost = true;
        break;
    }
    return err_set(e, code, "CUDA: %s: %s (%s)", what, words, name);
}

int cuda_driver_enter(struct cuda_driver *d, struct err *e) {
    if (d->lost) return err_set(e, -EIO, "CUDA: the device is lost");
    d->at_work = false;
    return cuda_driver_check(d, d->cuda.cuCtxSetCurrent(d->context), "enter its context", e);
}

int cuda_driver_work(struct cuda_driver *d, struct err *e) {
    if (d->lost) return err_set(e, -EIO, "CUDA: the device is lost");
    d->at_work = true;
    return cuda_driver_check(d, d->cuda.cuCtxSetCurrent(d->context), "enter its context", e);
}

static int ask(struct cuda_driver *d, CUdevice_attribute what, int *out, struct err *e) {
    return cuda_driver_check(d, d->cuda.cuDeviceGetAttribute(out, what, d->device),
                             "ask what the GPU is", e);
}

/* The GPU, if it is one that we have the arithmetic of. */
static int choose(struct cuda_driver *d, int ordinal, struct err *e) {
    int count = 0, major = 0, minor = 0, units = 0, shared = 0, r;

    r = cuda_driver_check(d, d->cuda.cuInit(0), "start the driver", e);
    if (r < 0) return r;
    r = cuda_driver_check(d, d->cuda.cuDriverGetVersion(&d->version), "ask for its version", e);
    if (r < 0) return r;
    if (d->version < VERSION_MIN)
        return err_set(e, -ENODEV, "CUDA: driver API %d.%d: %d.%d is the oldest that will do",
                       d->version / 1000, d->version % 1000 / 10, VERSION_MIN / 1000,
                       VERSION_MIN % 1000 / 10);
    r = cuda_driver_check(d, d->cuda.cuDeviceGetCount(&count), "count GPUs", e);
    if (r < 0) return r;
    if (ordinal < 0 || ordinal >= count)
        return err_set(e, -ENODEV, "CUDA: no GPU %d, there are %d", ordinal, count);
    r = cuda_driver_check(d, d->cuda.cuDeviceGet(&d->device, ordinal), "find the GPU", e);
    if (r < 0) return r;
    if (d->cuda.cuDeviceGetName(d->name, sizeof(d->name), d->device) != CUDA_SUCCESS)
        (void)strcpy(d->name, "a GPU");
    r = ask(d, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major, e);
    if (r == 0) r = ask(d, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor, e);
    if (r == 0) r = ask(d, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &units, e);
    if (r == 0) r = ask(d, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, &shared, e);
    if (r < 0) return r;
    if (major != 9 || minor != 0)
        return err_set(e, -ENODEV,
                       "CUDA: GPU %d is %s, compute capability %d.%d: the contract's arithmetic is "
                       "that of 9.0",
                       ordinal, d->name, major, minor);
    d->n_units = (uint32_t)units;
    d->n_own = shared ? 0 : d->n_units;
    return 0;
}

static int make_context(struct cuda_driver *d, struct err *e) {
    int r;

    r = cuda_driver_check(d, d->cuda.cuDevicePrimaryCtxRetain(&d->context, d->device),
                          "make its context", e);
    if (r < 0) return r;
    d->has_context = true;
    r = cuda_driver_check(d, d->cuda.cuCtxSetCurrent(d->context), "enter its context", e);
    if (r < 0) return r;
    return cuda_driver_check(d, d->cuda.cuStreamCreate(&d->stream, CU_STREAM_NON_BLOCKING),
                             "make a stream", e);
}

static int start(struct cuda_driver *d, int ordinal, struct err *e) {
    int r = libcuda_load(&d->cuda, e);

    if (r == 0) r = choose(d, ordinal, e);
    if (r == 0) r = make_context(d, e);
    /* Whatever keeps a driver or a GPU from starting, there is no device for us here; memory alone
     * is another matter. */
    return r < 0 && r != -ENOMEM ? -ENODEV : r;
}

/* Compiling, side by side: each thread takes the next source. */
struct compilers {
    struct jit jit;
    struct jit_result *results; /* [kernels_count()] */
    uint32_t next;              /* atomic */
    int code;                   /* of the first failure; under the lock, as e */
    struct err *e;
    pthread_mutex_t lock;
};

static void *compile_some(void *ctx) {
    struct compilers *c = ctx;
    struct err e;

    for (;;) {
        uint32_t i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED);
        const struct kernel *k;
        int r;

        if (i >= kernels_count()) return NULL;
        k = kernels_at(i);
        if (!k->is_source) continue;
        r = jit_compile(&c->jit, k->name, k->image, &c->results[i], &e);
        if (r == 0) continue;
        pthread_mutex_lock(&c->lock);
        if (c->code == 0) {
            c->code = r;
            err_set(c->e, r, "%s", e.text);
        }
        pthread_mutex_unlock(&c->lock);
    }
}

static int compile_all(struct compilers *c) {
    pthread_t threads[COMPILERS_MAX];
    const int n_cores = (int)cpu_pool_processors(COMPILERS_MAX + 1);
    int n = 0;

    while (n < COMPILERS_MAX && n + 1 < n_cores && (uint32_t)n + 1 < kernels_count()) {
        if (pthread_create(&threads[n], NULL, compile_some, c) != 0) break;
        n++;
    }
    (void)compile_some(c);
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    return c->code;
}

static int load_kernels(struct cuda_driver *d, const struct cuda_driver_options *options,
                        struct err *e) {
    const uint32_t n = kernels_count();
    struct libnvrtc nvrtc;
    struct compilers c = {.jit = {.nvrtc = &nvrtc, .folder = options->cache_folder},
                          .e = e,
                          .lock = PTHREAD_MUTEX_INITIALIZER};
    int r = libnvrtc_load(options->nvrtc_folder, &nvrtc, e);

    if (r < 0) return r;
    if (options->cache_folder) jit_sweep(options->cache_folder);
    c.results = calloc(n + 1, sizeof(*c.results));
    d->libraries = calloc(n + 1, sizeof(CUlibrary));
    if (!c.results || !d->libraries) {
        r = err_set(e, -ENOMEM, "CUDA: a table of %u kernels", n);
        goto out;
    }
    r = compile_all(&c);
    for (uint32_t i = 0; r == 0 && i < n; i++) {
        const struct kernel *k = kernels_at(i);
        const void *image = k->is_source ? c.results[i].cubin : k->image;

        r = cuda_driver_check(
            d, d->cuda.cuLibraryLoadData(&d->libraries[i], image, NULL, NULL, 0, NULL, NULL, 0),
            k->name, e);
        d->n_kernels++;
        if (k->is_source && c.results[i].cache == JIT_FOUND) d->n_found++;
        if (k->is_source && c.results[i].cache == JIT_UNSTORED) d->n_unkept++;
    }
out:
    for (uint32_t i = 0; c.results && i < n; i++) jit_done(&c.results[i]);
    free(c.results);
    return r;
}

int cuda_driver_open(const struct cuda_driver_options *options, struct cuda_driver **out_driver,
                     struct err *e) {
    struct cuda_driver *d = calloc(1, sizeof(*d));
    int r;

    if (!d) return err_set(e, -ENOMEM, "CUDA: %zu bytes", sizeof(*d));
    r = start(d, options->ordinal, e);
    if (r == 0) r = load_kernels(d, options, e);
    if (r < 0) {
        cuda_driver_close(d);
        return r;
    }
    *out_driver = d;
    return 0;
}

void cuda_driver_close(struct cuda_driver *d) {
    if (!d) return;
    if (d->has_context) (void)d->cuda.cuCtxSetCurrent(d->context);
    for (uint32_t i = 0; d->libraries && i < kernels_count(); i++)
        if (d->libraries[i]) (void)d->cuda.cuLibraryUnload(d->libraries[i]);
    free(d->libraries);
    if (d->stream) (void)d->cuda.cuStreamDestroy_v2(d->stream);
    if (d->has_context) (void)d->cuda.cuDevicePrimaryCtxRelease_v2(d->device);
    free(d);
}

int cuda_driver_entry(struct cuda_driver *d, const char *kernel, const char *entry,
                      uint32_t shared_bytes, CUfunction *out_entry, struct err *e) {
    const uint32_t index = kernels_find(kernel);
    CUfunction function;
    CUkernel found;
    int r;

    if (index == kernels_count()) return err_set(e, -EINVAL, "CUDA: no kernel %s", kernel);
    r = cuda_driver_check(d, d->cuda.cuLibraryGetKernel(&found, d->libraries[index], entry), entry,
                          e);
    if (r < 0) return r;
    r = cuda_driver_check(d, d->cuda.cuKernelGetFunction(&function, found), entry, e);
    if (r < 0) return r;
    /* Now, not at its first launch, which a graph may be recording. */
    r = cuda_driver_check(d, d->cuda.cuFuncLoad(function), entry, e);
    if (r < 0) return r;
    /* All alike: a multiprocessor that is set up for one share of shared memory takes no block of a
     * kernel that wants another, and kernels that overlap would not. */
    r = cuda_driver_check(
        d,
        d->cuda.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                                   CU_SHAREDMEM_CARVEOUT_MAX_SHARED),
        entry, e);
    if (r < 0) return r;
    if (shared_bytes > 48 << 10) {
        r = cuda_driver_check(
            d,
            d->cuda.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                       (int)shared_bytes),
            entry, e);
        if (r < 0) return r;
    }
    *out_entry = function;
    return 0;
}

int cuda_driver_launch(struct cuda_driver *d, const struct cuda_launch *l, struct err *e) {
    CUlaunchAttribute attributes[2];
    CUlaunchConfig config = {
        .gridDimX = l->grid[0] ? l->grid[0] : 1,
        .gridDimY = l->grid[1] ? l->grid[1] : 1,
        .gridDimZ = l->grid[2] ? l->grid[2] : 1,
        .blockDimX = l->block[0] ? l->block[0] : 1,
        .blockDimY = l->block[1] ? l->block[1] : 1,
        .blockDimZ = l->block[2] ? l->block[2] : 1,
        .sharedMemBytes = l->shared_bytes,
        .hStream = d->stream,
        .attrs = attributes,
    };

    if (d->lost) return err_set(e, -EIO, "CUDA: the device is lost");
    if (l->cluster > 1) {
        CUlaunchAttribute *a = &attributes[config.numAttrs++];

        memset(a, 0, sizeof(*a));
        a->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        a->value.clusterDim.x = l->cluster;
        a->value.clusterDim.y = a->value.clusterDim.z = 1;
    }
    if (l->overlap) {
        CUlaunchAttribute *a = &attributes[config.numAttrs++];

        memset(a, 0, sizeof(*a));
        a->id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        a->value.programmaticStreamSerializationAllowed = 1;
    }
    return cuda_driver_check(d, d->cuda.cuLaunchKernelEx(&config, l->entry, l->params, NULL),
                             l->name, e);
}

#endif
