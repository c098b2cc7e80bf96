/* The CUDA device on a card that goes wrong: a kernel that traps or writes where it must not, within
 * a step or before one, loses the device at once and for good, and closing it neither crashes nor
 * hangs; a kernel that takes seconds holds up who waits and changes no bit; a process that ends over
 * one leaves the card to the next.  Each in a process of its own, as a context that is lost is lost
 * for its process.  Skipped (77) where there is no such GPU. */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/device_cuda.h"
#include "tests/cuda_small.h"

enum { SKIPPED = 77 };

#ifndef LLM42_CUDA

int main(void) {
    printf("built without CUDA\n");
    return SKIPPED;
}

#else

#include "runtime/cuda_impl.h"
#include "runtime/jit.h"
#include "runtime/libnvrtc.h"

enum { SPIN_MS = 3000, LOST_MS = 2000, CLOSE_MS = 5000, NEXT_MS = 20000 };

static const char source[] =
    "extern \"C\" __global__ void do_trap(unsigned long long) { asm volatile(\"trap;\"); }\n"
    "extern \"C\" __global__ void do_write(unsigned long long at) { *(volatile int *)at = 42; }\n"
    "extern \"C\" __global__ void do_spin(unsigned long long ns) {\n"
    "    unsigned long long from, now;\n"
    "    asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(from));\n"
    "    do asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(now)); while (now - from < ns);\n"
    "}\n";

static int n_failed;

#define CHECK(cond)                                                             \
    do {                                                                        \
        if (!(cond)) {                                                          \
            printf("%s:%d: %s, after %s\n", __FILE__, __LINE__, #cond, e.text); \
            n_failed++;                                                         \
        }                                                                       \
    } while (0)

static uint64_t now_ms(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Loaded, and a step done; ends the process where there is none. */
static struct device *device_begin(void) {
    const struct device_cuda_options options = {.cache_folder = getenv("LLM42_CUDA_CACHE"),
                                                .nvrtc_folder = getenv("LLM42_NVRTC"),
                                                .seed = 7};
    struct device *dev = NULL;
    struct err e = {""};
    int r = device_cuda_open(&options, &dev, &e);

    if (r == -ENODEV) {
        printf("%s\n", e.text);
        exit(SKIPPED);
    }
    if (r == 0) r = dev->ops->load(dev, &small_model, NULL, &small_limits, &e);
    if (r == 0) r = small_step(dev, 2, &e);
    if (r == 0) return dev;
    printf("%d %s\n", r, e.text);
    exit(1);
}

/* One of the kernels above, queued behind what the device was asked for. */
static void launch(struct device *dev, const char *name, unsigned long long value) {
    struct cuda_driver *d = ((struct cuda_device *)dev)->driver;
    struct jit_result compiled = {.cubin = NULL};
    struct libnvrtc nvrtc;
    const struct jit jit = {.nvrtc = &nvrtc};
    struct cuda_launch l = {.name = name, .params = (void *[]){&value}};
    struct err e = {""};
    CUlibrary library;
    CUkernel kernel;

    CHECK(libnvrtc_load(getenv("LLM42_NVRTC"), &nvrtc, &e) == 0);
    CHECK(jit_compile(&jit, "bad", source, &compiled, &e) == 0);
    CHECK(cuda_driver_enter(d, &e) == 0);
    CHECK(d->cuda.cuLibraryLoadData(&library, compiled.cubin, NULL, NULL, 0, NULL, NULL, 0) == 0);
    CHECK(d->cuda.cuLibraryGetKernel(&kernel, library, name) == 0);
    CHECK(d->cuda.cuKernelGetFunction(&l.entry, kernel) == 0);
    CHECK(cuda_driver_launch(d, &l, &e) == 0);
    jit_done(&compiled);
}

/* From the first error on. */
static void check_lost(struct device *dev, uint64_t from_ms) {
    const char *not_lost;
    uint64_t at;
    struct err e = {""};

    printf("lost after %llu ms\n", (unsigned long long)(now_ms() - from_ms));
    CHECK(now_ms() - from_ms < LOST_MS);
    at = now_ms();
    not_lost = small_not_lost(dev);
    if (not_lost) printf("not lost: %s\n", not_lost);
    CHECK(!not_lost && now_ms() - at < 100);
    at = now_ms();
    dev->ops->close(dev);
    printf("closed in %llu ms\n", (unsigned long long)(now_ms() - at));
    CHECK(now_ms() - at < CLOSE_MS);
}

static void lost_before(const char *kernel, unsigned long long value) {
    struct device *dev = device_begin();
    struct err e = {""};
    uint64_t from;

    launch(dev, kernel, value);
    from = now_ms();
    CHECK(small_step(dev, 2, &e) == -EIO);
    printf("%s\n", e.text);
    CHECK(strstr(e.text, "CUDA_ERROR_") != NULL);
    check_lost(dev, from);
}

static void run_trap(void) {
    lost_before("do_trap", 0);
}

static void run_address(void) {
    lost_before("do_write", 0x10);
}

/* Stages are queued behind it: the error is found by the one that waits. */
static void run_within(void) {
    struct device *dev = device_begin();
    const struct device_batch b = small_batch(2);
    const struct schedule s = schedule_canonical();
    struct err e = {""};
    uint64_t from;
    int r;

    CHECK(dev->ops->upload(dev, &b, &e) == 0);
    CHECK(dev->ops->embed(dev, &e) == 0);
    launch(dev, "do_write", 0x10);
    from = now_ms();
    r = dev->ops->attn_in(dev, 0, &s, &e);
    if (r == 0) r = dev->ops->copy(dev, small_results, small_flagged, &e);
    if (r == 0) r = dev->ops->wait(dev, &e);
    CHECK(r == -EIO);
    printf("%s\n", e.text);
    check_lost(dev, from);
}

/* Who waits is held up, so that the engine's thread feeds no watchdog; and then all goes on. */
static void run_hang(void) {
    struct device *dev = device_begin();
    struct device_result before[SMALL_WANTS];
    struct err e = {""};
    uint64_t from;

    memcpy(before, small_results, sizeof(before));
    launch(dev, "do_spin", SPIN_MS * 1000000ull);
    from = now_ms();
    CHECK(small_step(dev, 2, &e) == 0);
    printf("held up for %llu ms\n", (unsigned long long)(now_ms() - from));
    CHECK(now_ms() - from > SPIN_MS * 9 / 10 && now_ms() - from < SPIN_MS + LOST_MS);
    for (int i = 0; i < 3; i++)
        CHECK(before[i].token == small_results[i].token &&
              !memcmp(&before[i].lse, &small_results[i].lse, sizeof(float)) &&
              !memcmp(&before[i].logprob, &small_results[i].logprob, sizeof(float)));
    from = now_ms();
    CHECK(small_step(dev, 2, &e) == 0);
    CHECK(now_ms() - from < 1000);
    dev->ops->close(dev);
}

/* As systemd ends a service whose watchdog was not fed. */
static void run_aborted(void) {
    struct device *dev = device_begin();
    struct err e = {""};

    launch(dev, "do_spin", SPIN_MS * 1000000ull);
    (void)signal(SIGALRM, SIG_DFL);
    (void)alarm(1);
    (void)small_step(dev, 2, &e);
    printf("it did not wait\n");
    n_failed++;
}

static void run_healthy(void) {
    struct device *dev = device_begin();
    struct err e = {""};

    CHECK(small_step(dev, 3, &e) == 0);
    CHECK(small_look(dev, &e) == 0);
    dev->ops->close(dev);
}

/* The exit status of the run in a process of its own, or minus the signal that ended it. */
static int in_child(const char *name, void (*run)(void)) {
    uint64_t from = now_ms();
    int status = 0;
    pid_t pid;

    printf("-- %s\n", name);
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        run();
        exit(n_failed ? 1 : 0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return 1;
    if (WIFSIGNALED(status)) return -WTERMSIG(status);
    if (WEXITSTATUS(status) == SKIPPED) return SKIPPED; /* the reason stays the last line */
    printf("   %llu ms\n", (unsigned long long)(now_ms() - from));
    return WEXITSTATUS(status);
}

int main(void) {
    const struct {
        const char *name;
        void (*run)(void);
        int want;
    } runs[] = {
        {"healthy", run_healthy, 0},
        {"a trap", run_trap, 0},
        {"an address", run_address, 0},
        {"an address, within a step", run_within, 0},
        {"a kernel of seconds", run_hang, 0},
        {"ended over one", run_aborted, -SIGALRM},
        {"healthy, after all that", run_healthy, 0},
    };

    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        int got = in_child(runs[i].name, runs[i].run);

        if (i == 0 && got == SKIPPED) return SKIPPED;
        if (got == runs[i].want) continue;
        printf("%s: wanted %d, got %d\n", runs[i].name, runs[i].want, got);
        n_failed++;
    }
    printf("%zu runs, %d failed\n", sizeof(runs) / sizeof(runs[0]), n_failed);
    return n_failed ? 1 : 0;
}

#endif
