/* How the CUDA device refuses, fails and ends, with a driver and an NVRTC that are told what to do
 * (tests/stub_cuda/stub.h) and no GPU: what cannot be is refused by name and errno before anything
 * is taken; every single call of the driver, of NVRTC and for memory fails once, and each time the
 * error is a line that says what, nothing leaks, and a device at work is lost for good without
 * another word to the driver.  Skipped (77) in a build without CUDA. */
#include "tests/unit.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/device.h"
#include "runtime/device_cuda.h"
#include "runtime/err.h"
#include "runtime/kernels.h"
#include "runtime/library.h"
#include "runtime/weights.h"

#ifndef LLM42_CUDA

int main(void) {
    const struct device_cuda_options options = {0};
    struct device *dev = NULL;
    struct err e = {""};
    int r = device_cuda_open(&options, &dev, &e);

    printf("built without CUDA: %d %s\n", r, e.text);
    return !device_cuda_built() && r == -ENODEV && !dev && *e.text ? 77 : 1;
}

#else

#include "ptx/sm90_batch.h"
#include "runtime/cuda_impl.h"
#include "runtime/libnccl.h"
#include "runtime/libnvrtc.h"
#include "tests/cuda_small.h"
#include "tests/stub_cuda/stub.h"

#define MODEL "tests/data/verse-4m"

enum {
    PATH_BYTES = 512,
    RESERVE = 256 << 20, /* SPEC 7.7: left to the driver */
};

static char stub_folder[PATH_BYTES]; /* beside this program */
static struct stub *cuda, *nvrtc;
static stub_reset *cuda_reset, *nvrtc_reset;

/* ---- memory of the host fails on request: the linker sends us malloc and calloc ---- */

static atomic_uint n_allocations;
static atomic_uint fail_allocation; /* that one, from 1; 0: none */

void *__real_malloc(size_t n_bytes);
void *__real_calloc(size_t n, size_t n_bytes);
void *__wrap_malloc(size_t n_bytes);
void *__wrap_calloc(size_t n, size_t n_bytes);

static bool allocation_fails(void) {
    return atomic_fetch_add(&n_allocations, 1) + 1 == atomic_load(&fail_allocation);
}

void *__wrap_malloc(size_t n_bytes) {
    return allocation_fails() ? NULL : __real_malloc(n_bytes);
}

void *__wrap_calloc(size_t n, size_t n_bytes) {
    return allocation_fails() ? NULL : __real_calloc(n, n_bytes);
}

/* ---- a device over the stubs ---- */

static void *stub_load(const char *folder, const char *file) {
    char path[PATH_BYTES + STUB_NAME_BYTES];
    void *library;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, file);
    /* By its soname the device will find it open. */
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail_msg("%s", dlerror());
    return library;
}

static void load_stubs(void) {
    void *library = stub_load(stub_folder, "libcuda.so.1");

    cuda = dlsym(library, "stub_cuda");
    *(void **)&cuda_reset = dlsym(library, "stub_cuda_reset");
    library = stub_load(stub_folder, "libnvrtc.so.13");
    nvrtc = dlsym(library, "stub_nvrtc");
    *(void **)&nvrtc_reset = dlsym(library, "stub_nvrtc_reset");
    assert_true(cuda && cuda_reset && nvrtc && nvrtc_reset);
}

static int setup(void **state) {
    (void)state;
    if (!cuda) load_stubs();
    cuda_reset();
    nvrtc_reset();
    return 0;
}

/* All that was given out is back, and the driver was asked nothing that it would not take. */
static int teardown(void **state) {
    (void)state;
    if (cuda->n_wrong) fail_msg("%u wrong calls: %s", cuda->n_wrong, cuda->wrong);
    assert_int_equal(cuda->n_live, 0);
    assert_int_equal(cuda->n_bytes, 0);
    assert_int_equal(nvrtc->n_live, 0);
    return 0;
}

static int open_device(struct device **out_dev, struct err *e) {
    const struct device_cuda_options options = {
        .nvrtc_folder = stub_folder, .seed = 7, .normed_bytes = 1};

    *out_dev = NULL;
    e->text[0] = '\0';
    return device_cuda_open(&options, out_dev, e);
}

static void fails_at(struct stub *stub, const char *name, uint32_t at, int code) {
    (void)snprintf(stub->fail.name, sizeof(stub->fail.name), "%s", name);
    stub->fail.at = at;
    stub->fail.value = code;
}

/* An error for a log: one line, of some words. */
static void check_text(const struct err *e) {
    if (strlen(e->text) < 10 || strchr(e->text, '\n')) fail_msg("not a line: '%s'", e->text);
}

static void expect(int r, int want, const char *part, const struct err *e) {
    if (r != want || !strstr(e->text, part))
        fail_msg("wanted %d and '%s', got %d and '%s'", want, part, r, e->text);
    check_text(e);
}

/* Every operation says that the device is lost, and the driver hears nothing of it. */
static void check_lost(struct device *dev) {
    const uint32_t n_calls = cuda->n_calls;
    const char *not_lost = small_not_lost(dev);

    if (not_lost) fail_msg("after the device is lost: %s", not_lost);
    assert_int_equal(cuda->n_calls, n_calls);
}

/* ---- what is not there ---- */

/* A process of its own: what a library lacks is decided when it is loaded. */
static void in_child(int (*run)(const char *), const char *arg) {
    int status = 0;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) exit(run(arg));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("%s: status %x", arg, status);
}

static int run_absent(const char *arg) {
    struct device *dev;
    struct err e;
    int r = open_device(&dev, &e);

    (void)arg;
    printf("%d %s\n", r, e.text);
    return r == -ENODEV && !dev && strstr(e.text, "cannot load libcuda.so.1") ? 0 : 1;
}

/* First of all: later the stub is in place. */
static void test_absent(void **state) {
    void *real = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    (void)state;
    if (real) skip(); /* there is a driver, and it does not go away */
    in_child(run_absent, "no driver");
}

static char variant_folder[] = "/tmp/cuda_stub_test.XXXXXX";

/* A copy of a stub that lacks the call: its name there is another. */
static void make_variant(const char *file, const char *lacks) {
    char path[PATH_BYTES + STUB_NAME_BYTES];
    const size_t n_name = strlen(lacks) + 1;
    size_t n_bytes, n_changed = 0;
    char *bytes;
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/%s", stub_folder, file);
    f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    n_bytes = (size_t)ftell(f);
    rewind(f);
    bytes = malloc(n_bytes);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, n_bytes, f), n_bytes);
    (void)fclose(f);
    for (size_t i = 1; i + n_name <= n_bytes; i++)
        if (bytes[i - 1] == '\0' && !memcmp(bytes + i, lacks, n_name)) {
            bytes[i] = 'X';
            n_changed++;
        }
    assert_true(n_changed > 0);
    (void)snprintf(path, sizeof(path), "%s/%s", variant_folder, file);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n_bytes, f), n_bytes);
    assert_int_equal(fclose(f), 0);
    free(bytes);
}

static void remove_variants(void) {
    static const char *const files[] = {"libcuda.so.1", "libnvrtc.so.13", "libnccl.so.2"};
    char path[PATH_BYTES];

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", variant_folder, files[i]);
        (void)unlink(path);
    }
    assert_int_equal(rmdir(variant_folder), 0);
}

static int run_lacks(const char *name) {
    const bool of_driver = !strncmp(name, "cu", 2);
    const struct device_cuda_options options = {.nvrtc_folder =
                                                    of_driver ? stub_folder : variant_folder};
    struct device *dev = NULL;
    char want[STUB_TEXT_BYTES];
    struct err e = {""};
    int r;

    (void)stub_load(of_driver ? variant_folder : stub_folder, "libcuda.so.1");
    r = device_cuda_open(&options, &dev, &e);
    (void)snprintf(want, sizeof(want), "is too old: it has no %s", name);
    if (r == -ENODEV && !dev && strstr(e.text, want)) return 0;
    printf("%s: %d %s\n", name, r, e.text);
    return 1;
}

static void test_lacks(void **state) {
    static const char *const driver[] = {
#define X(name, args) #name,
        LIBCUDA_CALLS(X)};
    static const char *const compiler[] = {LIBNVRTC_CALLS(X)
#undef X
    };

    (void)state;
    assert_non_null(mkdtemp(variant_folder));
    for (size_t i = 0; i < sizeof(driver) / sizeof(driver[0]); i++) {
        make_variant("libcuda.so.1", driver[i]);
        in_child(run_lacks, driver[i]);
    }
    for (size_t i = 0; i < sizeof(compiler) / sizeof(compiler[0]); i++) {
        make_variant("libnvrtc.so.13", compiler[i]);
        in_child(run_lacks, compiler[i]);
    }
    remove_variants();
}

/* The version of NCCL is told with the device where there is one; nothing depends on it. */
static int run_nccl(const char *want) {
    struct libnccl nccl;
    struct device *dev;
    char text[128];
    struct err e = {""};
    bool ok = false;
    int r;

    if (!strcmp(want, "no call"))
        (void)stub_load(variant_folder, "libnccl.so.2");
    else if (strcmp(want, "none") != 0)
        (void)stub_load(stub_folder, "libnccl.so.2");
    if (!strcmp(want, "no version")) (void)setenv("STUB_NCCL", "1", 1);
    r = libnccl_load(&nccl, &e);
    if (!strcmp(want, "none")) ok = r == -ENODEV && strstr(e.text, "cannot load libnccl.so.2");
    if (!strcmp(want, "no call")) ok = r == -ENODEV && strstr(e.text, "has no ncclGetVersion");
    if (!strcmp(want, "no version")) ok = r == -ENODEV && strstr(e.text, "not say its version");
    if (!strcmp(want, "2.27.3")) ok = r == 0 && nccl.version == 22703;
    (void)stub_load(stub_folder, "libcuda.so.1");
    if (open_device(&dev, &e) < 0) return 1;
    dev->ops->describe(dev, text, sizeof(text));
    printf("%s: %d %s; %s\n", want, r, e.text, text);
    ok = ok && strstr(text, r < 0 ? "no NCCL" : "NCCL 2.27.3");
    dev->ops->close(dev);
    return ok ? 0 : 1;
}

static void test_nccl(void **state) {
    static const char *const wants[] = {"no call", "no version", "2.27.3", "none"};
    const size_t n = sizeof(wants) / sizeof(wants[0]);
    void *real = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);

    (void)state;
    memcpy(strrchr(variant_folder, '.') + 1, "XXXXXX", 6);
    assert_non_null(mkdtemp(variant_folder));
    make_variant("libnccl.so.2", "ncclGetVersion");
    if (real) (void)dlclose(real);
    for (size_t i = 0; i + (real != NULL) < n; i++) in_child(run_nccl, wants[i]);
    remove_variants();
}

static void test_no_compiler(void **state) {
    const struct device_cuda_options options = {.nvrtc_folder = "/nonexistent"};
    char path[LIBRARY_PATH_BYTES], longest[2 * LIBRARY_PATH_BYTES];
    static const char *const files[] = {"libcuda.so.1"};
    struct device *dev = NULL;
    struct err e = {""};

    (void)state;
    expect(device_cuda_open(&options, &dev, &e), -ENODEV, "cannot load libnvrtc.so.13", &e);
    assert_null(dev);
    fails_at(nvrtc, "nvrtcVersion", 1, 5);
    expect(open_device(&dev, &e), -ENODEV, "does not say its version", &e);
    /* A folder too long to name is one that has no library. */
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    assert_null(library_open(longest, files, 1, path));
}

/* ---- what is refused ---- */

static void test_refused(void **state) {
    static const struct {
        const char *why;
        int ordinal, n_devices, major, minor, version;
        const char *fail;
        int code;
        int want;
        const char *part;
    } cases[] = {
        {"no GPU", 0, 0, 9, 0, 13000, "", 0, -ENODEV, "start the driver"},
        {"no such GPU", 1, 1, 9, 0, 13000, "", 0, -ENODEV, "no GPU 1, there are 1"},
        {"less than none", -1, 1, 9, 0, 13000, "", 0, -ENODEV, "no GPU -1, there are 1"},
        {"Ampere", 0, 1, 8, 0, 13000, "", 0, -ENODEV, "stub 0, compute capability 8.0"},
        {"Ada", 0, 1, 8, 9, 13000, "", 0, -ENODEV, "compute capability 8.9"},
        {"none like it", 0, 1, 9, 1, 13000, "", 0, -ENODEV, "compute capability 9.1"},
        {"Blackwell", 0, 1, 10, 0, 13000, "", 0, -ENODEV, "compute capability 10.0"},
        {"the second is fine", 1, 2, 9, 0, 13000, "", 0, 0, ""},
        {"an old driver", 0, 1, 9, 0, 12030, "", 0, -ENODEV, "driver API 12.3"},
        {"the oldest that will do", 0, 1, 9, 0, 12040, "", 0, 0, ""},
        {"a driver that does not start", 0, 1, 9, 0, 13000, "cuInit", 999, -ENODEV, "start the"},
        {"a fabric that is not up", 0, 1, 9, 0, 13000, "cuInit", 802, -ENODEV, "start the driver"},
        {"in use by another, alone", 0, 1, 9, 0, 13000, "cuDevicePrimaryCtxRetain", 46, -ENODEV,
         "make its context"},
        {"full already", 0, 1, 9, 0, 13000, "cuDevicePrimaryCtxRetain", 2, -ENOMEM,
         "make its context"},
        {"full for a stream", 0, 1, 9, 0, 13000, "cuStreamCreate", 2, -ENOMEM, "make a stream"},
        {"a kernel of another machine", 0, 1, 9, 0, 13000, "cuLibraryLoadData", 209, -ENODEV,
         "sm90_"},
        {"a kernel of a later toolkit", 0, 1, 9, 0, 13000, "cuLibraryLoadData", 222, -ENODEV,
         "sm90_"},
        {"no image of a kernel", 0, 1, 9, 0, 13000, "cuLibraryLoadData", 200, -EINVAL, "sm90_"},
        {"no such entry", 0, 1, 9, 0, 13000, "cuLibraryGetKernel", 500, -EINVAL, "sm90_"},
        {"lost at once", 0, 1, 9, 0, 13000, "cuFuncLoad", 700, -EIO, "sm90_"},
    };
    struct device *dev;
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct device_cuda_options options = {.ordinal = cases[i].ordinal,
                                                    .nvrtc_folder = stub_folder};

        print_message("%s\n", cases[i].why);
        cuda_reset();
        cuda->n_devices = cases[i].n_devices;
        cuda->major = cases[i].major;
        cuda->minor = cases[i].minor;
        cuda->version = cases[i].version;
        if (*cases[i].fail) fails_at(cuda, cases[i].fail, 1, cases[i].code);
        dev = NULL;
        e.text[0] = '\0';
        if (cases[i].want < 0) {
            expect(device_cuda_open(&options, &dev, &e), cases[i].want, cases[i].part, &e);
            assert_null(dev);
        } else {
            assert_int_equal(device_cuda_open(&options, &dev, &e), 0);
            dev->ops->close(dev);
        }
        assert_int_equal(cuda->n_live, 0);
    }
}

/* A kernel that does not compile is named; only its own line of the log is told. */
static void test_not_compiled(void **state) {
    struct device *dev;
    struct err e;

    (void)state;
    fails_at(nvrtc, "nvrtcCompileProgram", 3, 6);
    expect(open_device(&dev, &e), -EINVAL, "jit: sm90_", &e);
    assert_null(dev);
}

static void test_names(void **state) {
    char text[128];
    uint64_t n_weights, n_kv, n_work;
    struct device *dev;
    struct err e;

    (void)state;
    assert_true(device_cuda_built());
    assert_int_equal(open_device(&dev, &e), 0);
    dev->ops->describe(dev, text, sizeof(text));
    assert_non_null(strstr(text, "cuda, stub 0, "));
    assert_non_null(strstr(text, "13.0"));
    dev->ops->memory(dev, &n_weights, &n_kv, &n_work);
    assert_true(n_weights == 0 && n_kv == 0 && n_work == 0);
    dev->ops->close(dev);
}

/* ---- memory ---- */

static void test_memory(void **state) {
    uint64_t n_weights, n_kv, n_work, n_needed;
    struct device *dev;
    struct err e;

    (void)state;
    assert_int_equal(open_device(&dev, &e), 0);
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &small_limits, &e), 0);
    dev->ops->memory(dev, &n_weights, &n_kv, &n_work);
    n_needed = n_weights + n_kv + n_work + RESERVE;
    assert_int_equal(cuda->n_bytes, n_needed - RESERVE); /* what it says is what it takes */
    assert_int_equal(cuda->n_unfilled, 0);
    dev->ops->close(dev);
    assert_int_equal(cuda->n_bytes, 0);

    /* That much is enough, and a byte less is not; then nothing is taken. */
    cuda_reset();
    cuda->free_bytes = n_needed;
    assert_int_equal(open_device(&dev, &e), 0);
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &small_limits, &e), 0);
    dev->ops->close(dev);
    cuda_reset();
    cuda->free_bytes = n_needed - 1;
    assert_int_equal(open_device(&dev, &e), 0);
    expect(dev->ops->load(dev, &small_model, NULL, &small_limits, &e), -ENOMEM, "1 MiB short", &e);
    assert_non_null(strstr(e.text, "most goes to work (attention's parts)"));
    assert_int_equal(cuda->n_bytes_most, 0);
    dev->ops->close(dev);
}

/* Seven eighths of what weights, work and a page leave; so many pages then fit, nothing is taken
 * before, and nothing is left of what was loaded. */
static void test_room(void **state) {
    struct device_limits l = small_limits;
    uint64_t n_weights, n_kv, n_work, n_pages = 0, page_bytes, want;
    struct device *dev;
    struct err e;

    (void)state;
    assert_int_equal(open_device(&dev, &e), 0);
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &small_limits, &e), 0);
    dev->ops->memory(dev, &n_weights, &n_kv, &n_work);
    page_bytes = 2ull * DEVICE_PAGE_TOKENS * 2 * 64 * 2 * SMALL_LAYERS;
    cuda->free_bytes = n_weights + n_work + RESERVE + 1000 * page_bytes;
    assert_int_equal(dev->ops->room(dev, &small_model, &small_limits, &n_pages, &e), 0);
    assert_int_equal(cuda->n_bytes, 0);
    want = 999 * 7 / 8;
    if (n_pages < want - 1 || n_pages > want + 1)
        fail_msg("%llu pages", (unsigned long long)n_pages);
    l.n_pages = 0; /* does not count */
    assert_int_equal(dev->ops->room(dev, &small_model, &l, &want, &e), 0);
    assert_int_equal(n_pages, want);
    l.n_pages = (uint32_t)n_pages;
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &l, &e), 0);
    l.n_pages = 1001;
    expect(dev->ops->load(dev, &small_model, NULL, &l, &e), -ENOMEM, "KV pages", &e);
    cuda->free_bytes = n_weights;
    assert_int_equal(dev->ops->room(dev, &small_model, &l, &n_pages, &e), 0);
    assert_int_equal(n_pages, 0);
    l.n_rows = 0;
    expect(dev->ops->room(dev, &small_model, &l, &n_pages, &e), -ENOTSUP, "steps of 0 rows", &e);
    dev->ops->close(dev);
}

static void test_room_fails(void **state) {
    uint64_t n_pages;
    struct device *dev;
    struct err e;

    (void)state;
    for (uint32_t at = 1;; at++) {
        bool over;
        int r;

        cuda_reset();
        assert_int_equal(open_device(&dev, &e), 0);
        fails_at(cuda, "*", cuda->n_calls + at, 700);
        r = dev->ops->room(dev, &small_model, &small_limits, &n_pages, &e);
        over = !*cuda->failed;
        dev->ops->close(dev);
        assert_int_equal(cuda->n_after, 0);
        assert_int_equal(cuda->n_live, 0);
        if (over) {
            assert_true(at > 2);
            break;
        }
        expect(r, -EIO, "CUDA: ", &e);
    }
}

/* Memory that goes to another between the sum and the taking: which buffer it was is told. */
static void test_memory_taken(void **state) {
    static const char *const buffers[] = {
        "qkv",           "o",         "gate_up",    "down",          "norm",
        "head",          "embedding", "keys and v", "rotary tables", "residual",
        "q, k and",      "attention", "logits",     "sampling",      "logsumexp",
        "a step's rows", "staging",   "feed-for",   "normed rows",   "attention's par"};
    bool seen[sizeof(buffers) / sizeof(buffers[0])] = {false};
    struct device *dev;
    struct err e;
    int r;

    (void)state;
    for (uint32_t at = 1;; at++) {
        cuda_reset();
        assert_int_equal(open_device(&dev, &e), 0);
        fails_at(cuda, "cuMemAlloc_v2", at, 2);
        r = dev->ops->load(dev, &small_model, NULL, &small_limits, &e);
        dev->ops->close(dev);
        if (r == 0) break;
        expect(r, -ENOMEM, "CUDA: ", &e);
        for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++)
            if (strstr(e.text, buffers[i])) seen[i] = true;
    }
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++)
        if (!seen[i]) fail_msg("no error named %s", buffers[i]);
    cuda_reset();
    assert_int_equal(open_device(&dev, &e), 0);
    fails_at(cuda, "cuMemHostAlloc", 1, 2);
    expect(dev->ops->load(dev, &small_model, NULL, &small_limits, &e), -ENOMEM, "pinned memory",
           &e);
    dev->ops->close(dev);
}

/* ---- every call fails ---- */

/* What may fail without anybody's knowing, as nothing depends on it. */
static bool is_ignored(const char *name) {
    static const char *const ignored[] = {
        "cuDeviceGetName", "cuGetErrorName", "cuGetErrorString",  "cuGraphDestroy",
        "cuMemFree_v2",    "cuMemFreeHost",  "cuEventDestroy_v2", "cuStreamDestroy_v2"};

    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
        if (!strcmp(name, ignored[i])) return true;
    return false;
}

enum stage { OPEN, LOAD, WORK, CLOSE };

/* Open, load, three steps (launched, recorded, replayed), a look, a layer stage by stage;
 * where it failed. */
static enum stage go(struct weights *w, struct device **out_dev, int *out_r, struct err *e) {
    *out_r = open_device(out_dev, e);
    if (*out_r < 0) return OPEN;
    *out_r = (*out_dev)->ops->load(*out_dev, &small_model, w, &small_limits, e);
    if (*out_r < 0) return LOAD;
    *out_r = small_step(*out_dev, 2, e);
    if (*out_r == 0) *out_r = small_step(*out_dev, 2, e);
    if (*out_r == 0) *out_r = small_step(*out_dev, 2, e);
    if (*out_r == 0) *out_r = small_look(*out_dev, e);
    if (*out_r == 0) *out_r = small_stages(*out_dev, e);
    return *out_r < 0 ? WORK : CLOSE;
}

static void check_call_fails(uint32_t at, int code) {
    struct device *dev = NULL;
    struct err e = {""};
    enum stage where;
    int r;

    cuda_reset();
    fails_at(cuda, "*", at, code);
    where = go(NULL, &dev, &r, &e);
    if (where == CLOSE && *cuda->failed && !is_ignored(cuda->failed))
        fail_msg("call %u, %s: %d went unnoticed", at, cuda->failed, code);
    if (where != CLOSE) check_text(&e);
    if (where == OPEN) {
        assert_null(dev);
        assert_true(r == -ENODEV || r == -ENOMEM || r == -EINVAL || r == -EIO);
    }
    if (where == OPEN || where == LOAD)
        assert_int_equal(r == -ENOMEM, code == CUDA_ERROR_OUT_OF_MEMORY);
    /* At work there is no error that one goes on after. */
    if (where == WORK) {
        if (r != -EIO) fail_msg("call %u, %s: %d gave %d", at, cuda->failed, code, r);
        check_lost(dev);
    }
    if (dev) dev->ops->close(dev);
    if (cuda->n_after && !is_ignored(cuda->failed))
        fail_msg("call %u, %s: %d: %u calls after it", at, cuda->failed, code, cuda->n_after);
    if (cuda->n_live || cuda->n_wrong)
        fail_msg("call %u, %s: %d: %u things left; %s", at, cuda->failed, code, cuda->n_live,
                 cuda->wrong);
}

static void test_every_call(void **state) {
    /* Memory, an address, a launch, anything, a machine without that GPU, no such thing. */
    static const int codes[] = {2, 700, 719, 999, 100, 500};
    struct device *dev;
    uint32_t n_calls;
    struct err e;
    int r;

    (void)state;
    assert_int_equal(go(NULL, &dev, &r, &e), CLOSE);
    assert_true(cuda->n_launches > 30 && cuda->n_graphs == 2);
    dev->ops->close(dev);
    n_calls = cuda->n_calls;
    print_message("%u calls, each fails in %zu ways\n", n_calls, sizeof(codes) / sizeof(codes[0]));
    assert_true(n_calls > 300);
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        for (uint32_t at = 1; at <= n_calls; at++) check_call_fails(at, codes[i]);
}

/* The same of the compiler, whose calls come from several threads, so that what is the n-th is
 * chance. */
static void test_every_call_of_nvrtc(void **state) {
    uint32_t n_refused = 0;

    (void)state;
    for (uint32_t at = 1; at < 300; at++) {
        struct device *dev;
        struct err e;
        int r;

        nvrtc_reset();
        fails_at(nvrtc, "*", at, 11);
        r = open_device(&dev, &e);
        if (r < 0) {
            check_text(&e);
            assert_true(r == -EINVAL || r == -ENOMEM || r == -ENODEV);
            n_refused++;
        } else {
            dev->ops->close(dev);
        }
        assert_int_equal(cuda->n_live, 0);
        assert_int_equal(nvrtc->n_live, 0);
    }
    assert_true(n_refused > 50); /* a log that is not had does no harm */
}

/* Each call of loading from files, or one in so many: the error says so, and nothing is left. */
static void fail_every_call_of_load(const struct model *m, struct weights *w, int code, int want,
                                    uint32_t stride) {
    uint32_t n = 0;

    for (uint32_t at = 1;; at += stride) {
        struct device *dev;
        struct err e;
        bool over;
        int r;

        cuda_reset();
        assert_int_equal(open_device(&dev, &e), 0);
        fails_at(cuda, "*", cuda->n_calls + at, code);
        e.text[0] = '\0';
        r = dev->ops->load(dev, m, w, &small_limits, &e);
        over = !*cuda->failed;
        cuda->fail.at = 0;
        dev->ops->close(dev);
        if (over) break;
        if (r < 0) expect(r, want, "CUDA: ", &e), n++;
        if (r == 0 && !is_ignored(cuda->failed))
            fail_msg("call %u of loading, %s: %d went unnoticed", at, cuda->failed, code);
        if (cuda->n_live || cuda->n_wrong || (code == 700 && cuda->n_after))
            fail_msg("call %u of loading, %s: %d: %u things left, %u calls after it; %s", at,
                     cuda->failed, code, cuda->n_live, cuda->n_after, cuda->wrong);
    }
    print_message("%u calls of loading failed with %d\n", n, code);
    assert_true(n * stride > 200);
}

/* A model from files: what is copied is theirs, and a failure between two tensors is one. */
static void test_weights(void **state) {
    const char *const names[] = {"cuMemcpyHtoDAsync_v2", "cuLaunchKernelEx", "cuStreamSynchronize",
                                 "cuMemsetD8Async"};
    struct weights *w = NULL;
    struct device *dev;
    struct model m;
    struct err e;
    int r;

    (void)state;
    assert_int_equal(model_read(MODEL, &m, &e), 0);
    assert_int_equal(weights_open(MODEL, false, &w, &e), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        for (uint32_t at = 1;; at = at < 3 ? at + 1 : 4 * at) {
            cuda_reset();
            assert_int_equal(open_device(&dev, &e), 0);
            fails_at(cuda, names[i], at, 700);
            e.text[0] = '\0';
            r = dev->ops->load(dev, &m, w, &small_limits, &e);
            dev->ops->close(dev);
            assert_int_equal(cuda->n_live, 0);
            assert_int_equal(cuda->n_after, 0);
            if (!*cuda->failed) break;
            expect(r, -EIO, "CUDA_ERROR_ILLEGAL_ADDRESS", &e);
        }
    assert_int_equal(r, 0);
    fail_every_call_of_load(&m, w, 700, -EIO, 1);
    fail_every_call_of_load(&m, w, 2, -ENOMEM, 3);
    m.vocab += 16;
    cuda_reset();
    assert_int_equal(open_device(&dev, &e), 0);
    expect(dev->ops->load(dev, &m, w, &small_limits, &e), -ENOTSUP, "model.embed_tokens.weight",
           &e);
    assert_int_equal(cuda->n_bytes_most, 0);
    dev->ops->close(dev);
    weights_close(w);
}

/* Memory of the host. */
static void test_every_allocation(void **state) {
    uint32_t n_refused = 0, n_stub = 0;
    struct device *dev;
    struct err e;
    int r;

    (void)state;
    for (uint32_t at = 1;; at++) {
        enum stage where;

        cuda_reset();
        atomic_store(&n_allocations, 0);
        atomic_store(&fail_allocation, at);
        where = go(NULL, &dev, &r, &e);
        atomic_store(&fail_allocation, 0);
        if (dev) dev->ops->close(dev);
        assert_int_equal(cuda->n_live, 0);
        assert_int_equal(nvrtc->n_live, 0);
        if (where == CLOSE) {
            n_stub++;
            if (atomic_load(&n_allocations) < at) break;
            continue;
        }
        expect(r, -ENOMEM, "", &e);
        n_refused++;
    }
    /* None is taken by a step. */
    assert_true(n_refused > 30);
    print_message("%u allocations, of which %u may fail\n", n_refused + n_stub - 1, n_stub - 1);
    assert_int_equal(n_stub, 1);
}

/* What a start that was cut short left among the kernels: files of its own name, a day old. */
static void test_left_behind(void **state) {
    static const struct {
        const char *name;
        bool old, stays;
    } files[] = {{".new.AAAAAA", true, false},
                 {".new.BBBBBB", false, true},
                 {".other.AAAAAA", true, true},
                 {"new.AAAAAA", true, true}};
    char left_folder[] = "/tmp/cuda_stub_test.XXXXXX", path[64], command[64];
    struct device_cuda_options options = {
        .nvrtc_folder = stub_folder, .seed = 7, .normed_bytes = 1};
    const time_t now = time(NULL);
    struct device *dev;
    struct err e;

    (void)state;
    assert_non_null(mkdtemp(left_folder));
    options.cache_folder = left_folder;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        const time_t at = now - (files[i].old ? 25 : 23) * 3600;
        const struct timespec times[2] = {{.tv_sec = at}, {.tv_sec = at}};
        FILE *f;

        (void)snprintf(path, sizeof(path), "%s/%s", left_folder, files[i].name);
        f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    }
    assert_int_equal(device_cuda_open(&options, &dev, &e), 0);
    dev->ops->close(dev);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", left_folder, files[i].name);
        if ((access(path, F_OK) == 0) != files[i].stays) fail_msg("%s", files[i].name);
    }
    (void)snprintf(command, sizeof(command), "rm -r %s", left_folder);
    assert_int_equal(system(command), 0);
}

/* ---- at work ---- */

/* Steps of as many rows: one sequence, or one row of each; on a schedule of its own. */
static void run_rows(struct device *dev, uint32_t n_rows, bool apart, uint32_t split_keys) {
    struct device_batch b = small_batch(0);
    struct schedule s = schedule_canonical();
    struct err e = {""};

    s.split_keys = split_keys;
    b.n_rows = n_rows;
    b.n_seqs = apart ? n_rows : 1;
    for (uint32_t i = 0; i < n_rows; i++)
        small_rows[i] = (struct device_row){i, apart ? 0 : i, apart ? i : 0};
    for (uint32_t i = 0; i < SMALL_SEQS * SMALL_SEQ_PAGES; i++) small_pages[i] = i;
    small_wants[0].row = 0;
    b.n_wants = 1;
    if (forward_run(dev, SMALL_LAYERS, SMALL_LOGIT_ROWS, &b, &s, small_results, small_flagged, &e))
        fail_msg("%s", e.text);
}

/* The first of its kind is launched as it is, the second is recorded, the others are replayed. */
static void run_graph(struct device *dev, uint32_t n_rows, bool apart, uint32_t split_keys,
                      bool want_new) {
    const uint32_t n_graphs = cuda->n_graphs;
    uint32_t n_calls;

    if (want_new) run_rows(dev, n_rows, apart, split_keys);
    assert_int_equal(cuda->n_graphs, n_graphs);
    n_calls = cuda->n_calls;
    run_rows(dev, n_rows, apart, split_keys);
    assert_int_equal(cuda->n_graphs, n_graphs + 1);
    /* Enter, two uploads, enter, launch, results, enter, wait; recording adds launches. */
    if ((cuda->n_calls - n_calls != 8) != want_new)
        fail_msg("%u calls, %s", cuda->n_calls - n_calls, want_new ? "not recorded" : "recorded");
}

static void test_graphs(void **state) {
    uint32_t n_launches, n_live;
    struct device *dev;
    struct err e;

    (void)state;
    assert_int_equal(open_device(&dev, &e), 0);
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &small_limits, &e), 0);
    cuda->n_launches = 0;
    run_graph(dev, 4, false, 512, true);
    n_launches = cuda->n_launches;
    assert_true(n_launches > 20);
    run_graph(dev, 4, false, 512, false);
    assert_int_equal(2 * cuda->n_launches, 3 * n_launches);
    /* Neither the schedule nor how attention goes through the rows is like another. */
    run_graph(dev, 4, false, 256, true);
    run_graph(dev, 4, true, 512, true);
    run_graph(dev, 4, true, 512, false);
    run_graph(dev, 3, false, 512, false); /* rounded up to as many */
    run_graph(dev, 4, false, 512, false);
    /* As many as there is room for; then the one that was not used for longest goes. */
    n_live = cuda->n_live;
    for (uint32_t i = 3; i < CUDA_GRAPHS_MAX; i++) run_graph(dev, 4, false, 128 * i + 512, true);
    assert_int_equal(cuda->n_live, n_live + CUDA_GRAPHS_MAX - 3);
    run_graph(dev, 4, false, 512, false);
    for (uint32_t i = 0; i < 3; i++) run_graph(dev, 2, false, 128 * i + 512, true);
    assert_int_equal(cuda->n_live, n_live + CUDA_GRAPHS_MAX - 3);
    run_graph(dev, 4, false, 512, false);
    run_graph(dev, 4, true, 512, true); /* that one went */
    dev->ops->close(dev);
}

/* Rows that kernels are launched for, and that a stage is launched once. */
static void test_launches(void **state) {
    struct device_limits least = small_limits;
    const struct device_batch b = small_batch(0);
    static uint16_t row[256];
    struct device *dev;
    uint32_t n;
    struct err e;

    (void)state;
    assert_int_equal(open_device(&dev, &e), 0);
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &small_limits, &e), 0);
    assert_int_equal(small_step(dev, 0, &e), 0);
    assert_int_equal(small_step(dev, 0, &e), 0);
    assert_int_equal(cuda->n_embedded, 4); /* of a graph: rounded up */
    assert_int_equal(dev->ops->embed(dev, &e), 0);
    assert_int_equal(dev->ops->read(dev, DEVICE_X, 0, row, &e), 0);
    assert_int_equal(cuda->n_embedded, 3); /* by itself: as they are */
    assert_int_equal(dev->ops->upload(dev, &b, &e), 0);
    n = cuda->n_launches;
    assert_int_equal(dev->ops->embed(dev, &e), 0);
    assert_int_equal(cuda->n_launches, n);
    assert_int_equal(dev->ops->read(dev, DEVICE_X, 0, row, &e), 0);
    assert_int_equal(dev->ops->read(dev, DEVICE_X, 0, row, &e), 0);
    assert_int_equal(cuda->n_launches, n + 1);
    /* Never for more than there is room for. */
    least.n_rows = 7;
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &least, &e), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(small_step(dev, 4, &e), 0);
        assert_int_equal(cuda->n_embedded, 7);
    }
    dev->ops->close(dev);
}

/* Launches of a stage that is waited for by a look. */
static uint32_t launches_of(struct device *dev,
                            int (*stage)(struct device *, uint32_t, const struct schedule *,
                                         struct err *),
                            uint32_t layer, const struct schedule *s) {
    static uint16_t row[256];
    const uint32_t n = cuda->n_launches;
    struct err e = {""};

    assert_int_equal(stage(dev, layer, s, &e), 0);
    assert_int_equal(dev->ops->read(dev, DEVICE_H, 0, row, &e), 0);
    return cuda->n_launches - n;
}

/* Products norm their rows themselves where these are few and the product before left the sums of
 * squares: a layer is five launches, but for the first one, and that of more rows, whose norms are
 * kernels of their own.  Rotation is one where q, k and v are cut. */
static void test_layer_launches(void **state) {
    static uint16_t row[256];
    struct device_limits more = small_limits;
    struct schedule s = schedule_canonical();
    const struct device_ops *ops;
    struct device_batch b;
    struct device *dev;
    struct err e;

    (void)state;
    more.n_rows = SMALL_ROWS;
    assert_int_equal(open_device(&dev, &e), 0);
    ops = dev->ops;
    assert_int_equal(ops->load(dev, &small_model, NULL, &more, &e), 0);
    b = small_batch(SMALL_ROWS - 3);
    assert_int_equal(ops->upload(dev, &b, &e), 0);
    assert_int_equal(ops->embed(dev, &e), 0);
    assert_int_equal(ops->read(dev, DEVICE_X, 0, row, &e), 0);
    assert_int_equal(launches_of(dev, ops->attn_in, 0, &s), 2); /* nobody left squares */
    s.qkv = 2;
    assert_int_equal(launches_of(dev, ops->attn_in, 0, &s), 3);
    s = schedule_canonical();
    (void)launches_of(dev, ops->attend, 0, &s);
    assert_int_equal(launches_of(dev, ops->attn_out, 0, &s), 1);
    assert_int_equal(launches_of(dev, ops->mlp_in, 0, &s), 1);
    assert_int_equal(launches_of(dev, ops->mlp_out, 0, &s), 1);
    assert_int_equal(launches_of(dev, ops->attn_in, 1, &s), 1);
    s.norm_run = 4;
    assert_int_equal(launches_of(dev, ops->mlp_in, 0, &s), 2); /* another sum */
    s = schedule_canonical();
    assert_int_equal(launches_of(dev, ops->mlp_in, 0, &s), 1);
    assert_int_equal(ops->write(dev, DEVICE_X, 1, row, &e), 0);
    assert_int_equal(launches_of(dev, ops->mlp_in, 0, &s), 2); /* squares of what stood there */
    s.o = 1;
    assert_int_equal(launches_of(dev, ops->attn_out, 0, &s), 1);
    assert_int_equal(launches_of(dev, ops->mlp_in, 0, &s), 2); /* nothing was joined */
    s.o = 4;
    assert_int_equal(launches_of(dev, ops->attn_out, 0, &s), 1);
    assert_int_equal(launches_of(dev, ops->mlp_in, 0, &s), 1);
    dev->ops->close(dev);
}

static void expect_copy(uint32_t i, uint64_t to, uint64_t n_bytes) {
    if (cuda->copies[i].to != to || cuda->copies[i].n_bytes != n_bytes)
        fail_msg("copy %u: %llu bytes", i, (unsigned long long)cuda->copies[i].n_bytes);
}

/* Lines of a page table so long that what lies between two of them costs more than a copy. */
enum { LONG_LINE = 20000, LONG_LINES = 4 };

static uint32_t long_pages[LONG_LINES][LONG_LINE];

/* The next step, each line of its page tables all of `page` and so many more than it; beside them
 * goes one copy of rows, wants, tiles and flags.  Lines `want` says what each is then on the host. */
static void upload_lines(struct device *dev, const uint32_t *changed, uint32_t n_changed,
                         uint32_t page, const uint32_t want[LONG_LINES]) {
    const struct cuda_device *d = (const struct cuda_device *)dev;
    const uint32_t *there = (const uint32_t *)(d->h_batch + d->pages_off);
    struct device_batch b = small_batch(1);
    struct err e = {""};

    for (uint32_t i = 0; i < LONG_LINES; i++)
        for (uint32_t at = 0; at < LONG_LINE; at++) long_pages[i][at] = page;
    b.n_seqs = LONG_LINES;
    b.pages = long_pages[0];
    b.changed = changed;
    b.n_changed = n_changed;
    cuda->n_copies = 0;
    if (dev->ops->upload(dev, &b, &e) < 0) fail_msg("%s", e.text);
    assert_true(cuda->n_copies > 0);
    expect_copy(cuda->n_copies - 1, d->batch, d->at.results_off);
    for (uint32_t i = 0; i < LONG_LINES; i++)
        for (uint32_t at = 0; at < LONG_LINE; at++)
            assert_int_equal(there[i * LONG_LINE + at], want[i]);
}

/* A step whose batch has `changed` brings those lines of the page tables: each by itself where they
 * are far from each other, or all at once with what lies between, as it was. */
static void test_page_tables(void **state) {
    static const uint32_t second[] = {1}, ends[] = {3, 0}, near[] = {2, 0}, all[] = {3, 1, 0};
    const size_t line = LONG_LINE * sizeof(uint32_t);
    struct device_limits l = small_limits;
    const struct cuda_device *d;
    struct device *dev;
    uint64_t pages;
    struct err e;

    (void)state;
    assert_int_equal(open_device(&dev, &e), 0);
    l.n_seq_pages = LONG_LINE;
    l.n_seqs = LONG_LINES;
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &l, &e), 0);
    d = (const struct cuda_device *)dev;
    pages = d->batch + d->pages_off;
    upload_lines(dev, NULL, 0, 1, (const uint32_t[]){1, 1, 1, 1});
    assert_int_equal(cuda->n_copies, 2);
    expect_copy(0, pages, 4 * line);
    upload_lines(dev, second, 0, 2, (const uint32_t[]){1, 1, 1, 1});
    assert_int_equal(cuda->n_copies, 1);
    upload_lines(dev, second, 1, 3, (const uint32_t[]){1, 3, 1, 1});
    assert_int_equal(cuda->n_copies, 2);
    expect_copy(0, pages + line, line);
    upload_lines(dev, ends, 2, 4, (const uint32_t[]){4, 3, 1, 4});
    assert_int_equal(cuda->n_copies, 3);
    expect_copy(0, pages + 3 * line, line);
    expect_copy(1, pages, line);
    upload_lines(dev, near, 2, 5, (const uint32_t[]){5, 3, 5, 4});
    assert_int_equal(cuda->n_copies, 2);
    expect_copy(0, pages, 3 * line);
    upload_lines(dev, all, 3, 6, (const uint32_t[]){6, 6, 5, 6});
    assert_int_equal(cuda->n_copies, 2);
    expect_copy(0, pages, 4 * line);
    dev->ops->close(dev);
}

static bool is_zero(const struct cuda_device *d, size_t from, size_t end) {
    for (; from < end; from++)
        if (d->h_batch[from]) return false;
    return true;
}

/* What a step is filled up with: rows of no sequence, wants of nobody, flags that are zero, within
 * the limits. */
static void test_filled_up(void **state) {
    struct device_limits l = small_limits;
    struct cuda_device *d;
    struct device *dev;
    struct err e;

    (void)state;
    assert_int_equal(open_device(&dev, &e), 0);
    l.n_rows = 7;
    l.n_wants = 5;
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &l, &e), 0);
    d = (struct cuda_device *)dev;
    for (uint32_t turn = 0; turn < 2; turn++) {
        const uint32_t n_rows = turn ? 3 : 6, row_places = turn ? 4 : 7;
        const struct device_batch b = small_batch(n_rows - 3);
        const struct batch_row *rows = (const struct batch_row *)d->h_batch;
        const struct batch_want *wants;

        memset(d->h_batch, 0xff, d->pages_off); /* of a step before */
        assert_int_equal(dev->ops->upload(dev, &b, &e), 0);
        wants = (const struct batch_want *)(d->h_batch + d->at.wants_off);
        for (uint32_t i = 0; i < row_places; i++)
            assert_int_equal(rows[i].seq, i < 3 ? 0 : i < n_rows ? 1 : BATCH_NO_SEQ);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(wants[i].n_top, i < 3 ? 0 : BATCH_NO_WANT);
        assert_true(is_zero(d, d->at.flags_off, d->at.flags_off + row_places));
        assert_true((const char *)(rows + row_places) <= d->h_batch + d->at.wants_off);
        assert_true((const char *)(wants + 4) <= d->h_batch + d->at.tiles_off);
    }
    dev->ops->close(dev);
}

/* Of every size of a step the parts stand apart, at multiples of what kernels ask for, and within
 * those of a larger one. */
static void test_layout(void **state) {
    const struct cuda_layout most = cuda_load_layout(300, 280, 603);

    (void)state;
    for (uint32_t n = 0; n < 300 * 3; n++) {
        const uint32_t n_rows = n / 3 + 1, n_wants = n_rows * (n % 3) * 280 / 600;
        const uint32_t n_tiles = n % 3 == 1 ? 2 * n_rows + 3 : n_rows;
        const struct cuda_layout at = cuda_load_layout(n_rows, n_wants, n_tiles);

        assert_true(n_rows * sizeof(struct batch_row) <= at.wants_off);
        assert_true(at.wants_off + n_wants * sizeof(struct batch_want) <= at.tiles_off);
        assert_true(at.tiles_off + n_tiles * sizeof(struct sm90_attn_tile) <= at.flags_off);
        assert_true(at.flags_off + n_rows <= at.results_off);
        assert_true(at.results_off + n_wants * sizeof(struct batch_result) <= at.end);
        assert_true(at.end <= most.end);
        assert_int_equal(
            (at.wants_off | at.tiles_off | at.flags_off | at.results_off | at.end) % 256, 0);
    }
}

/* Attention's tiles: what a step before left behind its own is gone, up to the bucket that is
 * launched. */
static void test_tiles(void **state) {
    struct cuda_device *d;
    struct device *dev;
    struct err e;

    (void)state;
    assert_int_equal(open_device(&dev, &e), 0);
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &small_limits, &e), 0);
    d = (struct cuda_device *)dev;
    for (uint32_t n = 4; n >= 3; n--) {
        const size_t tile = sizeof(struct sm90_attn_tile);
        uint32_t n_tiles = 0;

        memset(d->h_batch, 0xff, d->pages_off);
        run_rows(dev, n, true, 512);
        for (int kind = 0; kind < CUDA_ATTN_KINDS; kind++) n_tiles += d->plan.n_tiles[kind];
        assert_int_equal(n_tiles, 4);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(
                is_zero(d, d->at.tiles_off + i * tile, d->at.tiles_off + (i + 1) * tile), i >= n);
        assert_int_equal(d->plan.end_max, 512);
    }
    dev->ops->close(dev);
}

/* Heads without a plan of attention: a graph of four rows is none of eight. */
static void test_graph_rows(void **state) {
    struct model m = small_model;
    struct device *dev;
    struct err e;

    (void)state;
    m.head_dim = 48;
    assert_int_equal(open_device(&dev, &e), 0);
    assert_int_equal(dev->ops->load(dev, &m, NULL, &small_limits, &e), 0);
    assert_null(((const struct cuda_device *)dev)->attn);
    run_graph(dev, 4, false, 512, true);
    run_graph(dev, 8, false, 512, true);
    assert_int_equal(cuda->n_embedded, 8);
    run_graph(dev, 4, false, 512, false);
    dev->ops->close(dev);
}

/* Steps of n wanted rows, thrice, the last from a graph; wanted rows of its last group. */
static uint32_t step_of_wants(struct device *dev, uint32_t n, uint32_t n_logit_rows) {
    const struct cuda_queue *q = &((const struct cuda_device *)dev)->queue;
    struct device_batch b = small_batch(1);
    const struct schedule s = schedule_canonical();
    struct err e = {""};

    for (uint32_t i = 0; i < n; i++)
        small_wants[i] = (struct device_want){
            .row = i % 4, .target = DEVICE_NO_TOKEN, .params = {.top_p = 1.0f}};
    b.n_wants = n;
    for (int i = 0; i < 3; i++)
        if (forward_run(dev, SMALL_LAYERS, n_logit_rows, &b, &s, small_results, small_flagged, &e))
            fail_msg("%s", e.text);
    for (uint32_t i = 0; i < CUDA_GRAPHS_MAX; i++)
        if (q->graphs[i].used == q->n_steps) return q->graphs[i].ops[q->graphs[i].n_ops - 1].n;
    fail_msg("%u wanted rows: no graph", n);
    return 0;
}

/* Wanted rows are rounded up, where there is room for as many. */
static void test_wanted_rows(void **state) {
    static const uint32_t want[] = {1, 2, 4, 4, 5, 6, 7}, want_three[] = {1, 2, 3, 1, 2, 3, 1};
    struct device_limits l = small_limits;
    const struct cuda_queue *q;
    struct device *dev;
    uint32_t n = 0;
    struct err e;

    (void)state;
    assert_int_equal(open_device(&dev, &e), 0);
    q = &((const struct cuda_device *)dev)->queue;
    l.n_logit_rows = 8;
    l.n_wants = 7;
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &l, &e), 0);
    for (uint32_t i = 0; i < 7; i++) assert_int_equal(step_of_wants(dev, i + 1, 8), want[i]);
    for (uint32_t i = 0; i < CUDA_GRAPHS_MAX; i++) n += q->graphs[i].exec != NULL;
    assert_int_equal(n, 6); /* three and four have one */
    l.n_logit_rows = 3;
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &l, &e), 0);
    for (uint32_t i = 7; i-- > 0;) assert_int_equal(step_of_wants(dev, i + 1, 3), want_three[i]);
    dev->ops->close(dev);
}

/* More groups of wanted rows than a graph has room for: what came first is launched at once, and
 * nothing twice. */
static void test_many_groups(void **state) {
    const uint32_t n_wants = CUDA_GRAPH_HEADS_MAX + 4;
    const struct schedule s = schedule_canonical();
    struct device_limits l = small_limits;
    struct device_batch b = small_batch(1);
    struct device_result results[CUDA_GRAPH_HEADS_MAX + 4];
    struct device_want wants[CUDA_GRAPH_HEADS_MAX + 4];
    uint32_t n_launches, first = 0;
    struct device *dev;
    struct err e;

    (void)state;
    assert_int_equal(open_device(&dev, &e), 0);
    l.n_wants = n_wants;
    l.n_logit_rows = 1;
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &l, &e), 0);
    for (uint32_t i = 0; i < n_wants; i++)
        wants[i] = (struct device_want){
            .row = i % 4, .target = DEVICE_NO_TOKEN, .params = {.top_p = 1.0f}};
    b.n_wants = n_wants;
    b.wants = wants;
    for (int i = 0; i < 4; i++) {
        n_launches = cuda->n_launches;
        if (forward_run(dev, SMALL_LAYERS, 1, &b, &s, results, small_flagged, &e))
            fail_msg("%s", e.text);
        if (i == 0) first = cuda->n_launches - n_launches;
        /* A graph's kernels count when they are recorded and when they run. */
        if (i != 1) assert_int_equal(cuda->n_launches - n_launches, first);
    }
    dev->ops->close(dev);
}

/* What is lost stays so, whoever asks; and another thread may close. */
static void *close_driver(void *driver) {
    cuda_driver_close(driver);
    return NULL;
}

static void test_driver(void **state) {
    const struct cuda_driver_options options = {.nvrtc_folder = stub_folder};
    const struct cuda_launch launch = {.name = "a kernel"};
    struct cuda_driver *d = NULL;
    pthread_t thread;
    CUfunction entry;
    uint32_t n_calls;
    struct err e = {""};

    (void)state;
    assert_int_equal(cuda_driver_open(&options, &d, &e), 0);
    expect(cuda_driver_entry(d, "no such", "no such", 0, &entry, &e), -EINVAL, "no kernel no such",
           &e);
    assert_false(d->lost);
    expect(cuda_driver_check(d, CUDA_ERROR_OUT_OF_MEMORY, "a thing", &e), -ENOMEM,
           "CUDA: a thing: ", &e);
    assert_false(d->lost);
    expect(cuda_driver_check(d, CUDA_ERROR_LAUNCH_FAILED, "a thing", &e), -EIO,
           "CUDA: a thing: ", &e);
    assert_true(d->lost);
    n_calls = cuda->n_calls;
    expect(cuda_driver_check(d, CUDA_ERROR_OUT_OF_MEMORY, "a thing", &e), -EIO, "is lost", &e);
    expect(cuda_driver_enter(d, &e), -EIO, "is lost", &e);
    expect(cuda_driver_work(d, &e), -EIO, "is lost", &e);
    expect(cuda_driver_launch(d, &launch, &e), -EIO, "is lost", &e);
    assert_int_equal(cuda->n_calls, n_calls);
    assert_int_equal(pthread_create(&thread, NULL, close_driver, d), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    cuda_driver_close(NULL);
}

/* A launch of attention: where blocks wait for each other all have a place at once, two of few*, long*
 * to a multiprocessor and one of the others; all keys are some block's; and what splits leave is
 * within the memory that is theirs. */
static void judge_attention(const struct cuda_attn_shape *shape, uint32_t split_keys,
                            uint32_t end_max, uint64_t work, uint64_t work_end,
                            const struct cuda_driver *d) {
    const struct sm90_attn *a = &cuda->attended.a;
    const uint32_t *grid = cuda->attended.grid;
    const char *name = cuda->attended.name;
    const bool few = strstr(name, "few") || strstr(name, "long"), pair = strstr(name, "pair");
    const bool alone = strstr(name, "alone"), spread = pair || alone || strstr(name, "spread");
    const bool runs = !few && !spread;
    const uint64_t n_blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    const uint64_t n_rows = strstr(name, "many") ? 128 : runs ? 64 : SM90_ATTN_FEW_HEADS;
    const uint64_t slot = n_rows * (2 + shape->head_dim) * sizeof(float);
    const uint64_t packets = SM90_ATTN_FEW_HEADS * shape->head_dim / 2 * SM90_ATTN_PACKET;
    const uint64_t n_slots = (uint64_t)grid[0] * grid[1] * a->n_splits;
    const bool waits = spread || (a->together && grid[2] > 1);
    uint64_t n_keys = runs ? a->split_keys : a->block_keys, left = 0;

    if (spread) n_keys = SM90_ATTN_SPREAD_KEYS;
    if (runs && a->n_splits == 1) n_keys = end_max;
    if (waits && n_blocks > (uint64_t)d->n_own * (few ? 2 : 1))
        fail_msg("%s: %u x %u x %u blocks wait for each other, of %u places", name, grid[0],
                 grid[1], grid[2], d->n_own);
    if (!spread && a->early && n_blocks > d->n_units)
        fail_msg("%s: the next may start, and %u blocks are two to a place", name,
                 (uint32_t)n_blocks);
    if (n_keys * grid[2] < end_max)
        fail_msg("%s: %u keys, of which %u times %llu are dealt with", name, end_max, grid[2],
                 (unsigned long long)n_keys);
    if (n_keys % split_keys && n_keys < end_max) fail_msg("%s: a split in two blocks", name);
    if (spread) left = n_blocks * (pair || alone ? 256 : 128) * SM90_ATTN_PACKET;
    if (few && a->together) left = n_slots * packets;
    if (left > a->parts - a->packets) fail_msg("%s: packets end in parts", name);
    if (spread || (few && a->together) || a->n_splits == 1) return;
    if (few && a->block_keys != split_keys) fail_msg("%s: blocks of more than a split", name);
    if (a->parts + n_slots * slot > work_end) fail_msg("%s: parts past the end", name);
    if (a->counters != work) fail_msg("%s: counters are a queue's", name);
    if ((uint64_t)grid[0] * grid[1] * sizeof(uint32_t) > a->packets - a->counters)
        fail_msg("%s: counters end in packets", name);
}

static void attend(struct cuda_driver *d, const struct cuda_attn_shape *shape,
                   uint32_t split_keys) {
    static const uint32_t ends[] = {1,    2,    64,   128,  129,   511,   512,   513,
                                    1024, 1300, 2048, 4096, 10000, 40000, 131072};
    struct cuda_attn_args args = {.d_pages = 1 << 20,
                                  .d_work = 1ull << 40,
                                  .q_stride = 3 * shape->n_heads * shape->head_dim,
                                  .split_keys = split_keys,
                                  .overlap = true};
    struct cuda_attn *attn;
    uint64_t work_end;
    struct err e;

    assert_int_equal(cuda_attn_open(d, shape, &attn, &e), 0);
    work_end = args.d_work + cuda_attn_work_bytes(attn);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        for (uint32_t n = 1; n <= 4096; n += n < 40 ? 1 : n / 3)
            for (int kind = 0; kind < CUDA_ATTN_KINDS; kind++) {
                /* All as long as the longest, then but one. */
                const uint64_t n_keys =
                    (uint64_t)ends[i] + (uint64_t)(n - 1) * (n % 2 ? ends[i] : 1);
                struct cuda_attn_plan plan = {.n_tiles = {0}};

                plan.n_tiles[kind] = n;
                plan.end_max = kind == CUDA_ATTN_FEW ? ends[i] : 0;
                plan.n_keys = kind == CUDA_ATTN_FEW ? n_keys : 0;
                plan.run_end_max[kind] = ends[i];
                plan.run_n_keys[kind] = n_keys;
                assert_int_equal(cuda_attn_run(attn, &plan, &args, &e), 0);
                judge_attention(shape, split_keys, ends[i], args.d_work, work_end, d);
                if (kind != CUDA_ATTN_MANY || n > 64) continue;
                /* The same behind kinds that have whole tiles to a block. */
                for (int before = CUDA_ATTN_FEW; before < kind; before++) {
                    plan.n_tiles[before] = 1024;
                    plan.run_end_max[before] = 1 << 15;
                    plan.run_n_keys[before] = 1024 << 15;
                }
                plan.end_max = 1 << 15;
                plan.n_keys = 1024 << 15;
                assert_int_equal(cuda_attn_run(attn, &plan, &args, &e), 0);
                judge_attention(shape, split_keys, ends[i], args.d_work, work_end, d);
            }
    cuda_attn_close(attn);
}

/* Whatever the rows: alone on the GPU, on parts of one, and beside others' kernels, where nobody may
 * wait. */
static void test_attention_places(void **state) {
    static const struct {
        int n_units, mps;
    } gpus[] = {{132, 0}, {132, 1}, {60, 0}, {16, 0}, {3, 0}};
    static const uint32_t kv_heads[] = {1, 2, 3, 8, 16}, shared[] = {1, 2, 3, 4, 7, 8, 12, 64};
    static const uint32_t splits[] = {128, 512, 4096};
    const struct cuda_driver_options options = {.nvrtc_folder = stub_folder};
    struct cuda_driver *d = NULL;
    struct err e;

    (void)state;
    for (size_t gpu = 0; gpu < sizeof(gpus) / sizeof(gpus[0]); gpu++) {
        cuda->n_units = gpus[gpu].n_units;
        cuda->mps = gpus[gpu].mps;
        assert_int_equal(cuda_driver_open(&options, &d, &e), 0);
        assert_int_equal(d->n_units, cuda->n_units);
        assert_int_equal(d->n_own, cuda->mps ? 0 : cuda->n_units);
        for (uint32_t i = 0; i < 5 * 8 * 3 * 2; i++) {
            const struct cuda_attn_shape shape = {.n_heads = kv_heads[i / 48] * shared[i / 6 % 8],
                                                  .n_kv_heads = kv_heads[i / 48],
                                                  .head_dim = i % 2 ? 128 : 64,
                                                  .n_seq_pages = 2048};

            attend(d, &shape, splits[i / 2 % 3]);
        }
        cuda_driver_close(d);
    }
}

/* A cluster chooses a row's token where rows are few, or few of those that a choice weighs, one finds
 * a place, and its share of the logits fits; else blocks wait for each other: they are no more than have a place, and where none is
 * promised a row has one block. */
static void test_sampling_places(void **state) {
    enum { GROUPS = 5, UNITS_FEW = 3, RANKS = 8, ROWS_MAX = 32, WEIGHED_MAX = 96 };
    static const struct sample_params greedy = {.top_p = 1}, drawn = {.temperature = 1, .top_p = 1},
                                      listed = {.temperature = 1, .top_p = 1, .top_k = 1024},
                                      long_listed = {.temperature = 1, .top_p = 1, .top_k = 1025};
    static const struct {
        int n_units, mps, cluster;
        uint32_t n_rows, vocab, want;
        bool spread;
        const struct sample_params *last; /* of the last row; all others are greedy */
    } cases[] = {
        {132, 0, 16, 1, GROUPS * 1024 - 100, RANKS, true, NULL},
        {132, 0, 16, 2, 128, 2 * RANKS, true, NULL},
        {132, 0, 16, ROWS_MAX, 1000, ROWS_MAX * RANKS, true, NULL},
        {132, 0, 16, ROWS_MAX + 1, 1000, ROWS_MAX + 1, false, NULL},
        {132, 0, 8, 2, 161 * 1024, 2 * RANKS, true, NULL},
        {132, 0, 8, 2, 162 * 1024, 132, false, NULL},
        {132, 1, 8, 1, GROUPS * 1024, RANKS, true, NULL},
        {132, 0, 7, 1, GROUPS * 1024, GROUPS, false, NULL},
        {132, 0, 7, 2, GROUPS * 1024 - 100, 2 * GROUPS, false, NULL},
        {132, 1, 7, 1, GROUPS * 1024, 1, false, NULL},
        {132, 1, 7, 2, GROUPS * 1024, 2, false, NULL},
        {UNITS_FEW, 0, 0, 1, GROUPS * 1024, UNITS_FEW, false, NULL},
        {UNITS_FEW, 0, 0, 2, GROUPS * 1024, UNITS_FEW, false, NULL},
        {UNITS_FEW, 1, 0, 2, GROUPS * 1024, 2, false, NULL},
        /* Weighed rows: more, by the vocabulary's size. */
        {132, 0, 16, ROWS_MAX, 1000, ROWS_MAX * RANKS, true, &drawn},
        {132, 0, 16, ROWS_MAX + 1, 1000, ROWS_MAX + 1, false, &drawn},
        {132, 0, 16, 38, 49152, 38 * RANKS, true, &drawn},
        {132, 0, 16, 39, 49152, 132, false, &drawn},
        {132, 0, 16, WEIGHED_MAX, 128256, WEIGHED_MAX * RANKS, true, &drawn},
        {132, 0, 16, WEIGHED_MAX, 128256, WEIGHED_MAX * RANKS, true, &long_listed},
        {132, 0, 16, WEIGHED_MAX, 128256, 132, false, &listed},
        {132, 0, 16, WEIGHED_MAX, 128256, 132, false, &greedy},
        {132, 0, 16, WEIGHED_MAX + 1, 128256, 132, false, &drawn},
        {132, 0, 7, WEIGHED_MAX, 128256, 132, false, &drawn},
        {132, 1, 16, WEIGHED_MAX, 128256, WEIGHED_MAX * RANKS, true, &drawn},
    };
    const struct schedule s = schedule_canonical();
    struct model m = small_model;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct device_batch b = small_batch(0);
        struct device_limits limits = small_limits;
        struct device_want wants[WEIGHED_MAX + 1];
        struct device *dev;
        struct err e;

        for (uint32_t row = 0; row <= WEIGHED_MAX; row++) {
            wants[row] = small_wants[0];
            wants[row].params = greedy;
        }
        if (cases[i].last) wants[cases[i].n_rows - 1].params = *cases[i].last;
        b.wants = wants;
        b.n_wants = cases[i].n_rows;
        m.vocab = cases[i].vocab;
        limits.n_wants = limits.n_logit_rows = cases[i].n_rows; /* no buckets beyond */
        cuda->n_units = cases[i].n_units;
        cuda->mps = cases[i].mps;
        cuda->cluster = cases[i].cluster;
        assert_int_equal(open_device(&dev, &e), 0);
        assert_int_equal(dev->ops->load(dev, &m, NULL, &limits, &e), 0);
        assert_int_equal(dev->ops->upload(dev, &b, &e), 0);
        assert_int_equal(dev->ops->head(dev, 0, cases[i].n_rows, &s, &e), 0);
        assert_int_equal(dev->ops->sample(dev, 0, cases[i].n_rows, &e), 0);
        assert_int_equal(dev->ops->wait(dev, &e), 0);
        assert_int_equal(cuda->n_sampling, cases[i].want);
        assert_string_equal(cuda->sampled,
                            cases[i].spread ? "sm90_sample_f32_spread" : "sm90_sample_f32");
        dev->ops->close(dev);
    }
}

/* Steps alike but for what their wants ask are told apart: a graph has one way of choosing. */
static void test_sampling_graphs(void **state) {
    enum { ROWS = 48 };
    static struct device_want wants[ROWS];
    static struct device_result results[ROWS];
    struct model m = small_model;
    struct device_limits limits = small_limits;
    struct device_batch b = small_batch(0);
    const struct schedule s = schedule_canonical();
    struct device *dev;
    struct err e;

    (void)state;
    m.vocab = 128256;
    limits.n_wants = limits.n_logit_rows = ROWS;
    b.wants = wants;
    b.n_wants = ROWS;
    cuda->cluster = 16;
    assert_int_equal(open_device(&dev, &e), 0);
    assert_int_equal(dev->ops->load(dev, &m, NULL, &limits, &e), 0);
    for (int step = 0; step < 12; step++) {
        const bool draws = step / 3 % 2;

        for (uint32_t row = 0; row < ROWS; row++) wants[row] = small_wants[0];
        if (draws) wants[ROWS / 2].params.temperature = 1;
        cuda->sampled[0] = '\0';
        assert_int_equal(forward_run(dev, SMALL_LAYERS, ROWS, &b, &s, results, small_flagged, &e),
                         0);
        /* The first two of a kind are launched and recorded. */
        if (step < 6 && step % 3 < 2)
            assert_string_equal(cuda->sampled,
                                draws ? "sm90_sample_f32_spread" : "sm90_sample_f32");
        else
            assert_string_equal(cuda->sampled, "");
    }
    dev->ops->close(dev);
}

/* When attention may start beside q, k and v: as docs/performance.md has it measured, of a large model
 * and of a small one. */
static void test_attention_next(void **state) {
    enum { ROWS = 300, AT_ONCE = SM90_GEMM_NEXT_AT_ONCE, LAST = SM90_GEMM_NEXT_LAST_TILE };
    static const struct {
        uint32_t n_rows, want[2];
    } cases[] = {{1, {AT_ONCE, LAST}},
                 {2, {AT_ONCE, AT_ONCE}},
                 {8, {AT_ONCE, AT_ONCE}},
                 {9, {SM90_GEMM_NEXT_BEHIND, AT_ONCE}},
                 {16, {SM90_GEMM_NEXT_BEHIND, AT_ONCE}},
                 {17, {AT_ONCE, AT_ONCE}},
                 {32, {AT_ONCE, AT_ONCE}},
                 {33, {LAST, AT_ONCE}},
                 {64, {LAST, AT_ONCE}},
                 {ROWS, {LAST, LAST}}};
    const struct schedule s = schedule_canonical();
    const struct device_cuda_options options = {.nvrtc_folder = stub_folder, .seed = 7};
    static struct device_row rows[ROWS];
    static uint16_t row[6144];

    (void)state;
    for (uint32_t i = 0; i < ROWS; i++) rows[i] = (struct device_row){1, i, 0};
    for (int small = 0; small < 2; small++) {
        struct model m = small_model;
        struct device_limits l = small_limits;
        struct device *dev;
        struct err e;

        m.hidden = small ? 576 : 4096;
        m.n_heads = small ? 9 : 32;
        m.n_kv_heads = small ? 3 : 8;
        m.head_dim = small ? 64 : 128;
        l.n_rows = ROWS;
        l.n_seq_pages = l.n_pages = (ROWS + DEVICE_PAGE_TOKENS - 1) / DEVICE_PAGE_TOKENS;
        l.n_positions = l.n_seq_pages * DEVICE_PAGE_TOKENS;
        assert_int_equal(device_cuda_open(&options, &dev, &e), 0);
        assert_int_equal(dev->ops->load(dev, &m, NULL, &l, &e), 0);
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            struct device_batch b = small_batch(0);
            const uint32_t n_turned = cuda->n_turned;

            b.n_rows = cases[i].n_rows;
            b.rows = rows;
            b.n_seqs = 1;
            b.n_wants = 0;
            assert_int_equal(dev->ops->upload(dev, &b, &e), 0);
            assert_int_equal(dev->ops->embed(dev, &e), 0);
            assert_int_equal(dev->ops->attn_in(dev, 0, &s, &e), 0);
            assert_int_equal(dev->ops->attend(dev, 0, &s, &e), 0);
            assert_int_equal(dev->ops->attn_out(dev, 0, &s, &e), 0);
            assert_int_equal(dev->ops->mlp_in(dev, 0, &s, &e), 0);
            assert_int_equal(dev->ops->mlp_out(dev, 0, &s, &e), 0);
            assert_int_equal(dev->ops->attn_in(dev, 1, &s, &e), 0);
            assert_int_equal(dev->ops->read(dev, DEVICE_QKV, 0, row, &e), 0);
            /* Of few rows those of the first layer, which nobody squared, are rotated apart; not
             * where the product squares them itself. */
            assert_int_equal(cuda->n_turned - n_turned, !small && cases[i].n_rows <= 8 ? 1 : 2);
            assert_int_equal(cuda->turned_next, cases[i].want[small]);
        }
        dev->ops->close(dev);
    }
}

/* ---- attention's plan ---- */

enum { PLAN_ROWS = 600 };

/* Rows of sequences of one row, of some and of many, here and there filled up with rows of none. */
static uint32_t make_rows(struct device_row rows[PLAN_ROWS], uint32_t turn) {
    uint64_t random = 2 * turn + 1;
    const uint32_t n_rows = turn % PLAN_ROWS + 1;
    uint32_t row = 0;

    for (uint32_t seq = 0; row < n_rows; seq++) {
        uint32_t n, position;

        random = random * 6364136223846793005ull + 1442695040888963407ull;
        n = random >> 63 ? 1 : 1 + (uint32_t)(random >> 33) % (seq % 3 ? 9 : 200);
        position = (uint32_t)(random >> 40) % (seq % 2 ? 50 : 100000);
        for (; n > 0 && row < n_rows; n--)
            rows[row++] = (struct device_row){7, position++, seq % 11 == 5 ? UINT32_MAX : seq};
    }
    return n_rows;
}

/* A tile is of one kind of run, within it, and knows what its rows see. */
static void check_tile(const struct device_row *rows, uint32_t n_rows, uint32_t n_shared, int kind,
                       const struct sm90_attn_tile *tile) {
    uint32_t begin = tile->row, end = tile->row;

    assert_true(tile->n_rows > 0 && tile->row + tile->n_rows <= n_rows);
    while (begin > 0 && rows[begin - 1].seq == tile->seq) begin--;
    while (end < n_rows && rows[end].seq == tile->seq) end++;
    assert_true(tile->seq != UINT32_MAX && tile->row + tile->n_rows <= end);
    assert_int_equal(kind, end - begin == 1                             ? CUDA_ATTN_FEW
                           : (end - begin) * n_shared <= SM90_ATTN_ROWS ? CUDA_ATTN_SOME
                                                                        : CUDA_ATTN_MANY);
    assert_true(kind == CUDA_ATTN_FEW || tile->n_rows * n_shared <= 2 * SM90_ATTN_ROWS);
    assert_int_equal(tile->end, rows[tile->row + tile->n_rows - 1].position + 1);
    assert_int_equal(tile->seen, rows[tile->row].position);
    assert_int_equal(tile->old, rows[begin].position);
}

/* Each row of a sequence is in one tile; tiles of a kind stand together, nearly the longest first. */
static void check_plan(const struct cuda_attn *attn, uint32_t n_shared,
                       const struct device_row *rows, uint32_t n_rows) {
    struct sm90_attn_tile tiles[PLAN_ROWS];
    uint32_t n_of[PLAN_ROWS] = {0}, end_max = 0;
    const struct sm90_attn_tile *tile = tiles;
    struct cuda_attn_plan plan;
    uint64_t n_keys = 0;

    cuda_attn_plan(attn, rows, n_rows, tiles, &plan);
    for (int kind = 0; kind < CUDA_ATTN_KINDS; kind++)
        for (uint32_t i = 0; i < plan.n_tiles[kind]; i++, tile++) {
            check_tile(rows, n_rows, n_shared, kind, tile);
            if (i > 0) assert_true(8ull * tile->end <= 9ull * tile[-1].end);
            for (uint32_t row = 0; row < tile->n_rows; row++) n_of[tile->row + row]++;
            if (kind != CUDA_ATTN_FEW) {
                assert_true(tile->end <= plan.run_end_max[kind]);
                continue;
            }
            n_keys += tile->end;
            if (tile->end > end_max) end_max = tile->end;
        }
    for (uint32_t row = 0; row < n_rows; row++)
        assert_int_equal(n_of[row], rows[row].seq != UINT32_MAX);
    assert_int_equal(plan.n_keys, n_keys);
    assert_int_equal(plan.end_max, end_max);
}

static void test_plan(void **state) {
    static const uint32_t shared[] = {1, 3, 4, 8, 64};
    const struct cuda_driver_options options = {.nvrtc_folder = stub_folder};
    struct device_row rows[PLAN_ROWS];
    struct cuda_driver *d = NULL;
    struct err e;

    (void)state;
    assert_int_equal(cuda_driver_open(&options, &d, &e), 0);
    for (size_t i = 0; i < sizeof(shared) / sizeof(shared[0]); i++) {
        const struct cuda_attn_shape shape = {
            .n_heads = 2 * shared[i], .n_kv_heads = 2, .head_dim = 128, .n_seq_pages = 2048};
        struct cuda_attn *attn;

        assert_int_equal(cuda_attn_open(d, &shape, &attn, &e), 0);
        for (uint32_t turn = 0; turn < 2 * PLAN_ROWS; turn++)
            check_plan(attn, shared[i], rows, make_rows(rows, turn));
        cuda_attn_close(attn);
    }
    cuda_driver_close(d);
}

static struct device *other_dev;
static int other_r;
static struct err other_e;

static void *other_thread(void *arg) {
    (void)arg;
    other_r = small_step(other_dev, 3, &other_e);
    return NULL;
}

/* Opened by one thread, stepped by another: the driver wants to be told. */
static void test_threads(void **state) {
    pthread_t thread;
    struct err e;

    (void)state;
    assert_int_equal(open_device(&other_dev, &e), 0);
    assert_int_equal(other_dev->ops->load(other_dev, &small_model, NULL, &small_limits, &e), 0);
    assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (other_r < 0) fail_msg("%s", other_e.text);
    other_dev->ops->close(other_dev);
}

/* What is loaded again takes the place of what was, after work too; and want of memory is then no
 * loss. */
static void test_load_again(void **state) {
    struct device *dev;
    uint64_t n_bytes;
    struct err e;

    (void)state;
    assert_int_equal(open_device(&dev, &e), 0);
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &small_limits, &e), 0);
    n_bytes = cuda->n_bytes;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(small_step(dev, 1, &e), 0);
        assert_int_equal(dev->ops->load(dev, &small_model, NULL, &small_limits, &e), 0);
        assert_int_equal(cuda->n_bytes, n_bytes);
    }
    assert_int_equal(small_step(dev, 1, &e), 0);
    cuda_reset();
    fails_at(cuda, "cuMemAlloc_v2", 3, 2);
    expect(dev->ops->load(dev, &small_model, NULL, &small_limits, &e), -ENOMEM, "CUDA: ", &e);
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &small_limits, &e), 0);
    assert_int_equal(small_step(dev, 1, &e), 0);
    dev->ops->close(dev);
}

/* A kernel that takes long holds up who waits for it, and nothing else is made of it. */
static void test_hang(void **state) {
    struct timespec from, to;
    struct device *dev;
    struct err e;
    double took;

    (void)state;
    assert_int_equal(open_device(&dev, &e), 0);
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &small_limits, &e), 0);
    assert_int_equal(small_step(dev, 1, &e), 0);
    cuda_reset();
    (void)snprintf(cuda->hang.name, sizeof(cuda->hang.name), "cuStreamSynchronize");
    cuda->hang.at = 1;
    cuda->hang.value = 300;
    (void)clock_gettime(CLOCK_MONOTONIC, &from);
    assert_int_equal(small_step(dev, 1, &e), 0);
    (void)clock_gettime(CLOCK_MONOTONIC, &to);
    took = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
    assert_true(took > 0.29);
    assert_int_equal(small_step(dev, 1, &e), 0);
    dev->ops->close(dev);
}

/* What is asked for and never waited for is given back, too. */
static void test_closed_early(void **state) {
    const struct device_batch b = small_batch(1);
    const struct schedule s = schedule_canonical();
    struct device *dev;
    struct err e;

    (void)state;
    assert_int_equal(open_device(&dev, &e), 0);
    assert_int_equal(dev->ops->load(dev, &small_model, NULL, &small_limits, &e), 0);
    assert_int_equal(dev->ops->upload(dev, &b, &e), 0);
    assert_int_equal(dev->ops->embed(dev, &e), 0);
    assert_int_equal(dev->ops->attn_in(dev, 0, &s, &e), 0);
    dev->ops->close(dev);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_absent),
        cmocka_unit_test(test_lacks),
        cmocka_unit_test(test_nccl),
        CASE(test_no_compiler),
        CASE(test_refused),
        CASE(test_not_compiled),
        CASE(test_names),
        CASE(test_memory),
        CASE(test_room),
        CASE(test_room_fails),
        CASE(test_memory_taken),
        CASE(test_every_call),
        CASE(test_every_call_of_nvrtc),
        CASE(test_weights),
        CASE(test_every_allocation),
        CASE(test_left_behind),
        CASE(test_graphs),
        CASE(test_launches),
        CASE(test_layer_launches),
        CASE(test_sampling_places),
        CASE(test_sampling_graphs),
        CASE(test_attention_next),
        CASE(test_page_tables),
        CASE(test_filled_up),
        CASE(test_layout),
        CASE(test_tiles),
        CASE(test_graph_rows),
        CASE(test_wanted_rows),
        CASE(test_many_groups),
        CASE(test_driver),
        CASE(test_attention_places),
        CASE(test_plan),
        CASE(test_threads),
        CASE(test_load_again),
        CASE(test_hang),
        CASE(test_closed_early),
    };
    ssize_t n = readlink("/proc/self/exe", stub_folder, sizeof(stub_folder) - 16);

    if (n <= 0 || !strrchr(stub_folder, '/')) return 1;
    (void)strcpy(strrchr(stub_folder, '/'), "/stub_cuda");
    (void)unsetenv("STUB_CUDA");
    (void)unsetenv("STUB_NVRTC");
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
