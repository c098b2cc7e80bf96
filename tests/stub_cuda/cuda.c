/* libcuda.so.1 of the tests: every call of runtime/libcuda.h, without a GPU.  What is given out is
 * kept in a list; addresses of the GPU's memory are numbers that nobody may read; what lies at
 * them is not kept, and copies to the host bring zeros.  A code of 700 to 719 loses the device, as
 * it does on a card: from then on every call gives it. */
#include <stdbool.h>
#include <time.h>

#include "runtime/libcuda.h"
#include "tests/stub_cuda/rule.h"

enum {
#define X(name, args) AT_##name,
    LIBCUDA_CALLS(X)
#undef X
        N_CALLS
};

static const char *const names[] = {
#define X(name, args) #name,
    LIBCUDA_CALLS(X)
#undef X
};

/* <cuda.h> has the later one alone. */
CUresult cuEventElapsedTime(float *out, CUevent from, CUevent to);

enum kind { CONTEXT = 1, MEMORY, HOST, STREAM, EVENT, GRAPH, EXEC, LIBRARY, KERNEL };

struct thing {
    enum kind kind;
    struct thing *next;
    uint64_t at, n_bytes; /* of memory */
    bool filled;          /* with 0xff, whole */
    void *host;
    uint32_t n_launches;        /* of a graph */
    int shared_bytes;           /* a kernel may ask for */
    bool loaded;                /* a kernel */
    char name[STUB_NAME_BYTES]; /* of a kernel */
    struct thing *library;      /* of a kernel */
};

extern struct stub stub_cuda;
struct stub stub_cuda;
static struct thing *things;
static struct thing *recorded; /* the graph that the stream is recording */
static uint32_t n_of[N_CALLS];
static int lost; /* the code of it */
static uint64_t next_at = 0x700000000000;
static _Thread_local struct thing *current;

stub_reset stub_cuda_reset;

__attribute__((constructor)) void stub_cuda_reset(void) {
    const uint32_t n_live = stub_cuda.n_live;
    const uint64_t n_bytes = stub_cuda.n_bytes;

    stub_cuda = (struct stub){.n_devices = 1,
                              .major = 9,
                              .version = 13000,
                              .n_units = 132,
                              .cluster = 16,
                              .free_bytes = 140ull << 30,
                              .n_live = n_live,
                              .n_bytes = n_bytes};
    rule_read("STUB_CUDA", &stub_cuda);
    memset(n_of, 0, sizeof(n_of));
    lost = 0;
}

static CUresult wrong(const char *what) {
    if (stub_cuda.n_wrong++ == 0)
        (void)snprintf(stub_cuda.wrong, sizeof(stub_cuda.wrong), "%s", what);
    return CUDA_ERROR_INVALID_VALUE;
}

/* What a lost device still takes from us without a word. */
static bool gives_back(int which) {
    switch (which) {
    case AT_cuGetErrorName:
    case AT_cuGetErrorString:
    case AT_cuCtxSetCurrent:
    case AT_cuDevicePrimaryCtxRelease_v2:
    case AT_cuMemFree_v2:
    case AT_cuMemFreeHost:
    case AT_cuStreamDestroy_v2:
    case AT_cuStreamEndCapture:
    case AT_cuGraphDestroy:
    case AT_cuGraphExecDestroy:
    case AT_cuEventDestroy_v2:
    case AT_cuLibraryUnload:
        return true;
    }
    return false;
}

static CUresult call(int which) {
    const char *name = names[which];
    const uint32_t n_name = ++n_of[which], n_all = ++stub_cuda.n_calls;

    if (rule_strikes(&stub_cuda.hang, name, n_name, n_all)) {
        const struct timespec t = {stub_cuda.hang.value / 1000,
                                   stub_cuda.hang.value % 1000 * 1000000l};

        (void)nanosleep(&t, NULL);
    }
    if (lost) {
        if (!gives_back(which)) stub_cuda.n_after++;
        return (CUresult)lost;
    }
    if (!rule_strikes(&stub_cuda.fail, name, n_name, n_all)) return CUDA_SUCCESS;
    (void)snprintf(stub_cuda.failed, sizeof(stub_cuda.failed), "%s", name);
    if (stub_cuda.fail.value >= 700 && stub_cuda.fail.value <= 719) lost = stub_cuda.fail.value;
    return (CUresult)stub_cuda.fail.value;
}

/* As call, of one that wants a context. */
static CUresult call_in_context(int which) {
    CUresult r = call(which);

    if (r == CUDA_SUCCESS && !current) {
        (void)wrong("a call on a thread that did not enter the context");
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return r;
}

static struct thing *give(enum kind kind) {
    struct thing *t = calloc(1, sizeof(*t));

    if (!t) abort();
    t->kind = kind;
    t->next = things;
    things = t;
    stub_cuda.n_live++;
    return t;
}

/* The thing, or NULL. */
static struct thing *find(enum kind kind, const void *handle) {
    for (struct thing *t = things; t; t = t->next)
        if (t == handle && t->kind == kind) return t;
    return NULL;
}

static void forget(struct thing *gone) {
    struct thing **link = &things;

    while (*link != gone) link = &(*link)->next;
    *link = gone->next;
    if (gone->kind == MEMORY) stub_cuda.n_bytes -= gone->n_bytes;
    stub_cuda.n_live--;
    free(gone->host);
    free(gone);
}

/* Gives it back whatever the call's code is: on a card the memory goes with the context. */
static CUresult take_back(int which, enum kind kind, const void *handle) {
    CUresult r = call(which);
    struct thing *t = find(kind, handle);

    if (!t) return wrong("given back and never given out");
    if (kind != CONTEXT && !current) (void)wrong("given back by a thread without the context");
    if (t == recorded) return wrong("given back while it is recorded");
    forget(t);
    return r;
}

static bool in_memory(CUdeviceptr at, uint64_t n_bytes) {
    for (struct thing *t = things; t; t = t->next)
        if (t->kind == MEMORY && at >= t->at && n_bytes <= t->n_bytes &&
            at - t->at <= t->n_bytes - n_bytes)
            return true;
    return false;
}

/* Work on a stream: in a context, on a stream that is, and within one allocation. */
static CUresult call_on(int which, CUstream stream, CUdeviceptr at, uint64_t n_bytes) {
    CUresult r = call_in_context(which);

    if (r != CUDA_SUCCESS) return r;
    if (!find(STREAM, stream)) return wrong("no such stream");
    if (n_bytes && !in_memory(at, n_bytes)) return wrong("memory that is not allocated");
    return CUDA_SUCCESS;
}

/* ---- the driver and the card ---- */

CUresult cuGetErrorName(CUresult error, const char **out) {
    CUresult r = call(AT_cuGetErrorName);

    *out = error == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_STUB";
    return error == CUDA_ERROR_UNKNOWN ? CUDA_ERROR_INVALID_VALUE : lost ? CUDA_SUCCESS : r;
}

CUresult cuGetErrorString(CUresult error, const char **out) {
    CUresult r = call(AT_cuGetErrorString);

    *out = "an error that was asked for";
    return error == CUDA_ERROR_UNKNOWN ? CUDA_ERROR_INVALID_VALUE : lost ? CUDA_SUCCESS : r;
}

CUresult cuInit(unsigned flags) {
    CUresult r = call(AT_cuInit);

    if (r != CUDA_SUCCESS) return r;
    if (flags) return wrong("flags of cuInit");
    return stub_cuda.n_devices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDriverGetVersion(int *out) {
    CUresult r = call(AT_cuDriverGetVersion);

    if (r == CUDA_SUCCESS) *out = stub_cuda.version;
    return r;
}

CUresult cuDeviceGetCount(int *out) {
    CUresult r = call(AT_cuDeviceGetCount);

    if (r == CUDA_SUCCESS) *out = stub_cuda.n_devices;
    return r;
}

CUresult cuDeviceGet(CUdevice *out, int ordinal) {
    CUresult r = call(AT_cuDeviceGet);

    if (r != CUDA_SUCCESS) return r;
    if (ordinal < 0 || ordinal >= stub_cuda.n_devices) return wrong("no such GPU");
    *out = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int n_bytes, CUdevice device) {
    CUresult r = call(AT_cuDeviceGetName);

    if (r == CUDA_SUCCESS) (void)snprintf(name, (size_t)n_bytes, "stub %d", device);
    return r;
}

CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute attribute, CUdevice device) {
    CUresult r = call(AT_cuDeviceGetAttribute);

    (void)device;
    if (r != CUDA_SUCCESS) return r;
    if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        *out = stub_cuda.major;
    else if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        *out = stub_cuda.minor;
    else if (attribute == CU_DEVICE_ATTRIBUTE_MPS_ENABLED)
        *out = stub_cuda.mps;
    else
        *out = stub_cuda.n_units;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    CUresult r = call(AT_cuDevicePrimaryCtxRetain);

    (void)device;
    if (r == CUDA_SUCCESS) *out = (CUcontext)give(CONTEXT);
    return r;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    struct thing *t = things;

    (void)device;
    while (t && t->kind != CONTEXT) t = t->next;
    if (current == t) current = NULL;
    return take_back(AT_cuDevicePrimaryCtxRelease_v2, CONTEXT, t);
}

CUresult cuCtxSetCurrent(CUcontext context) {
    CUresult r = call(AT_cuCtxSetCurrent);

    if (r != CUDA_SUCCESS) return r;
    if (!find(CONTEXT, context)) return wrong("no such context");
    current = (struct thing *)context;
    return CUDA_SUCCESS;
}

/* ---- memory ---- */

CUresult cuMemGetInfo_v2(size_t *out_free, size_t *out_total) {
    CUresult r = call_in_context(AT_cuMemGetInfo_v2);

    if (r != CUDA_SUCCESS) return r;
    *out_total = stub_cuda.free_bytes;
    *out_free = stub_cuda.free_bytes - stub_cuda.n_bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t n_bytes) {
    CUresult r = call_in_context(AT_cuMemAlloc_v2);
    struct thing *t;

    if (r != CUDA_SUCCESS) return r;
    if (recorded || n_bytes == 0) return wrong("an allocation of nothing, or while recording");
    if (n_bytes > stub_cuda.free_bytes - stub_cuda.n_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    t = give(MEMORY);
    t->at = next_at;
    t->n_bytes = n_bytes;
    stub_cuda.n_unfilled++;
    next_at += (n_bytes + (2 << 20)) / 1024 * 1024;
    stub_cuda.n_bytes += n_bytes;
    if (stub_cuda.n_bytes > stub_cuda.n_bytes_most) stub_cuda.n_bytes_most = stub_cuda.n_bytes;
    *out = t->at;
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr at) {
    struct thing *t = things;

    while (t && !(t->kind == MEMORY && t->at == at)) t = t->next;
    return take_back(AT_cuMemFree_v2, MEMORY, t);
}

CUresult cuMemHostAlloc(void **out, size_t n_bytes, unsigned flags) {
    CUresult r = call_in_context(AT_cuMemHostAlloc);
    struct thing *t;

    (void)flags;
    if (r != CUDA_SUCCESS) return r;
    t = give(HOST);
    t->host = malloc(n_bytes);
    if (!t->host) abort();
    memset(t->host, 0xa5, n_bytes);
    *out = t->host;
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *p) {
    struct thing *t = things;

    while (t && !(t->kind == HOST && t->host == p)) t = t->next;
    return take_back(AT_cuMemFreeHost, HOST, t);
}

CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t n, CUstream stream) {
    stub_cuda.cleared = at;
    stub_cuda.cleared_bytes = n;
    CUresult r = call_on(AT_cuMemsetD8Async, stream, at, n);
    struct thing *t = things;

    while (t && !(t->kind == MEMORY && t->at == at && t->n_bytes == n)) t = t->next;
    if (r == CUDA_SUCCESS && t && value == 0xff && !t->filled) {
        t->filled = true;
        stub_cuda.n_unfilled--;
    }
    return r;
}

CUresult cuMemsetD16Async(CUdeviceptr at, unsigned short value, size_t n, CUstream stream) {
    (void)value;
    return call_on(AT_cuMemsetD16Async, stream, at, 2 * n);
}

/* The bytes are read, so that a sanitizer sees what the driver would. */
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n_bytes, CUstream stream) {
    static char window[1 << 16];

    for (size_t i = 0; i < n_bytes; i += sizeof(window))
        memcpy(window, (const char *)from + i,
               n_bytes - i < sizeof(window) ? n_bytes - i : sizeof(window));
    stub_cuda.copies[stub_cuda.n_copies % STUB_COPIES].to = to;
    stub_cuda.copies[stub_cuda.n_copies++ % STUB_COPIES].n_bytes = n_bytes;
    return call_on(AT_cuMemcpyHtoDAsync_v2, stream, to, n_bytes);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n_bytes, CUstream stream) {
    CUresult r = call_on(AT_cuMemcpyDtoHAsync_v2, stream, from, n_bytes);

    if (r == CUDA_SUCCESS) memset(to, 0, n_bytes);
    return r;
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n_bytes, CUstream stream) {
    CUresult r = call_on(AT_cuMemcpyDtoDAsync_v2, stream, to, n_bytes);

    if (r == CUDA_SUCCESS && !in_memory(from, n_bytes)) return wrong("a copy from nowhere");
    return r;
}

/* ---- streams, events, graphs ---- */

CUresult cuStreamCreate(CUstream *out, unsigned flags) {
    CUresult r = call_in_context(AT_cuStreamCreate);

    (void)flags;
    if (r == CUDA_SUCCESS) *out = (CUstream)give(STREAM);
    return r;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    return take_back(AT_cuStreamDestroy_v2, STREAM, stream);
}

CUresult cuStreamSynchronize(CUstream stream) {
    CUresult r = call_on(AT_cuStreamSynchronize, stream, 0, 0);

    return r == CUDA_SUCCESS && recorded ? wrong("waiting while recording") : r;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    CUresult r = call_on(AT_cuStreamWaitEvent, stream, 0, 0);

    (void)flags;
    return r == CUDA_SUCCESS && !find(EVENT, event) ? wrong("waiting for no event") : r;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    CUresult r = call_on(AT_cuStreamBeginCapture_v2, stream, 0, 0);

    (void)mode;
    if (r != CUDA_SUCCESS) return r;
    if (recorded) return wrong("recording within recording");
    recorded = give(GRAPH);
    return CUDA_SUCCESS;
}

/* The recording is over, whatever comes of it. */
CUresult cuStreamEndCapture(CUstream stream, CUgraph *out) {
    CUresult r = call_on(AT_cuStreamEndCapture, stream, 0, 0);
    struct thing *graph = recorded;

    recorded = NULL;
    *out = NULL;
    if (!graph) return r == CUDA_SUCCESS ? wrong("nothing is recorded") : r;
    if (r == CUDA_SUCCESS)
        *out = (CUgraph)graph;
    else
        forget(graph);
    return r;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    CUresult r = call_in_context(AT_cuGraphInstantiateWithFlags);
    struct thing *g = find(GRAPH, graph), *exec;

    (void)flags;
    if (r != CUDA_SUCCESS) return r;
    if (!g) return wrong("no such graph");
    exec = give(EXEC);
    exec->n_launches = g->n_launches;
    *out = (CUgraphExec)exec;
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    CUresult r = call_on(AT_cuGraphLaunch, stream, 0, 0);
    struct thing *t = find(EXEC, exec);

    if (r != CUDA_SUCCESS) return r;
    if (!t || recorded) return wrong("no such graph, or while recording");
    stub_cuda.n_launches += t->n_launches;
    stub_cuda.n_graphs++;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    return take_back(AT_cuGraphExecDestroy, EXEC, exec);
}

CUresult cuGraphDestroy(CUgraph graph) {
    return take_back(AT_cuGraphDestroy, GRAPH, graph);
}

CUresult cuEventCreate(CUevent *out, unsigned flags) {
    CUresult r = call_in_context(AT_cuEventCreate);

    (void)flags;
    if (r == CUDA_SUCCESS) *out = (CUevent)give(EVENT);
    return r;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    (void)event;
    return call_on(AT_cuEventRecord, stream, 0, 0);
}

CUresult cuEventSynchronize(CUevent event) {
    CUresult r = call_in_context(AT_cuEventSynchronize);

    return r == CUDA_SUCCESS && !find(EVENT, event) ? wrong("waiting for no event") : r;
}

CUresult cuEventElapsedTime(float *out, CUevent from, CUevent to) {
    (void)from, (void)to;
    *out = 0.0f;
    return call_in_context(AT_cuEventElapsedTime);
}

CUresult cuEventDestroy_v2(CUevent event) {
    return take_back(AT_cuEventDestroy_v2, EVENT, event);
}

/* ---- kernels ---- */

CUresult cuLibraryLoadData(CUlibrary *out, const void *image, CUjit_option *options, void **values,
                           unsigned n_options, CUlibraryOption *library_options,
                           void **library_values, unsigned n_library_options) {
    CUresult r = call_in_context(AT_cuLibraryLoadData);

    (void)options, (void)values, (void)library_options, (void)library_values;
    if (r != CUDA_SUCCESS) return r;
    if (n_options || n_library_options) return wrong("options of a library");
    if (!image || memcmp(image, "\177ELF", 4) != 0) return CUDA_ERROR_INVALID_IMAGE;
    *out = (CUlibrary)give(LIBRARY);
    return CUDA_SUCCESS;
}

/* Its kernels go with it. */
CUresult cuLibraryUnload(CUlibrary library) {
    struct thing *t = things;

    while (t) {
        struct thing *next = t->next;

        if (t->kind == KERNEL && t->library == (void *)library) forget(t);
        t = next;
    }
    return take_back(AT_cuLibraryUnload, LIBRARY, library);
}

CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
    CUresult r = call_in_context(AT_cuLibraryGetKernel);
    struct thing *t = find(LIBRARY, library), *kernel;

    if (r != CUDA_SUCCESS) return r;
    if (!t) return wrong("no such library");
    kernel = give(KERNEL);
    kernel->library = t;
    kernel->shared_bytes = 48 << 10;
    (void)snprintf(kernel->name, sizeof(kernel->name), "%s", name);
    *out = (CUkernel)kernel;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
    CUresult r = call_in_context(AT_cuKernelGetFunction);

    if (r != CUDA_SUCCESS) return r;
    if (!find(KERNEL, kernel)) return wrong("no such kernel");
    *out = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function) {
    CUresult r = call_in_context(AT_cuFuncLoad);
    struct thing *t = find(KERNEL, function);

    if (r != CUDA_SUCCESS) return r;
    if (!t) return wrong("no such kernel");
    t->loaded = true;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    CUresult r = call_in_context(AT_cuFuncSetAttribute);
    struct thing *t = find(KERNEL, function);

    if (r != CUDA_SUCCESS) return r;
    if (!t || value < 0 || value > 227 << 10) return wrong("an attribute no kernel can have");
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) t->shared_bytes = value;
    return CUDA_SUCCESS;
}

static void see_product(const char *name, void **params) {
    const struct sm90_gemm *g;

    if (strncmp(name, "sm90_gemm_bf16_", 15) || !strcmp(name, "sm90_gemm_bf16_pack")) return;
    g = params[strstr(name, "_any") || strstr(name, "_quarter") || strstr(name, "_brief") ? 0 : 1];
    if (g->form != SM90_GEMM_TURNED) return;
    stub_cuda.n_turned++;
    stub_cuda.turned_next = g->next;
}

CUresult cuOccupancyMaxActiveClusters(int *out, CUfunction function, const CUlaunchConfig *c) {
    CUresult r = call_in_context(AT_cuOccupancyMaxActiveClusters);

    if (r != CUDA_SUCCESS) return r;
    if (!find(KERNEL, function) || c->numAttrs != 1 ||
        c->attrs[0].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        return wrong("clusters of no kernel");
    *out = c->gridDimX <= (unsigned)stub_cuda.cluster;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **params,
                          void **extra) {
    CUresult r = call_on(AT_cuLaunchKernelEx, c->hStream, 0, 0);
    struct thing *t = find(KERNEL, function);
    const uint64_t n_threads = (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ;

    if (r != CUDA_SUCCESS) return r;
    if (!t || !t->loaded) return wrong("a kernel that is not loaded");
    if (!params || extra) return wrong("parameters of a kernel");
    if (!c->gridDimX || !c->gridDimY || !c->gridDimZ || c->gridDimX > INT32_MAX ||
        c->gridDimY > 65535 || c->gridDimZ > 65535)
        return wrong("a grid that no card has");
    if (n_threads == 0 || n_threads > 1024) return wrong("a block that no card has");
    if (c->sharedMemBytes > (unsigned)t->shared_bytes) return wrong("shared memory not asked for");
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
            c->gridDimX % c->attrs[i].value.clusterDim.x)
            return wrong("a grid that is not of whole clusters");
    if (!strcmp(t->name, "sm90_embed_bf16")) stub_cuda.n_embedded = c->gridDimX;
    if (!strncmp(t->name, "sm90_sample_", 12)) {
        memcpy(stub_cuda.sampled, t->name, sizeof(t->name));
        stub_cuda.n_sampling = c->gridDimX * c->gridDimY;
    }
    if (!strncmp(t->name, "sm90_attn_", 10)) {
        memcpy(stub_cuda.attended.name, t->name, sizeof(t->name));
        stub_cuda.attended.grid[0] = c->gridDimX;
        stub_cuda.attended.grid[1] = c->gridDimY;
        stub_cuda.attended.grid[2] = c->gridDimZ;
        memcpy(&stub_cuda.attended.a, params[0], sizeof(stub_cuda.attended.a));
    }
    see_product(t->name, params);
    if (recorded)
        recorded->n_launches++;
    else
        stub_cuda.n_launches++;
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank,
                                void *at, const cuuint64_t *sizes, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    CUresult r = call(AT_cuTensorMapEncodeTiled);

    (void)type, (void)steps, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    if (r != CUDA_SUCCESS) return r;
    if ((uintptr_t)at % 16 || rank != 2 || !sizes[0] || !sizes[1] || strides[0] % 16 || !box[0] ||
        box[0] > 256 || !box[1] || box[1] > 256)
        return wrong("a map that no card has");
    memset(out, 0, sizeof(*out));
    return CUDA_SUCCESS;
}
