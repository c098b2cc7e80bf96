/* Every kernel source in the program compiles for sm_90a without a warning, a spill or a use of
 * local memory, within its registers of ptx/BUDGET; and the cache of compiled kernels: found again, and compiled anew where a file is
 * cut, changed, foreign or a link, and done without where it cannot be written.  Needs NVRTC and
 * no GPU: skipped (77) without it, unless LLM42_NVRTC_REQUIRED is 1. */
#include "runtime/jit.h"

#include <dirent.h>
#include <elf.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/err.h"
#include "runtime/kernels.h"
#include "runtime/libnvrtc.h"

enum { SKIPPED = 77 };

static int n_failed;
static char folder[] = "/tmp/jit_test.XXXXXX";

#define CHECK(cond)                                           \
    do {                                                      \
        if (!(cond)) {                                        \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #cond); \
            n_failed++;                                       \
        }                                                     \
    } while (0)

static const char small[] = "extern \"C\" __global__ void f(int *p) { *p = 42; }\n";

static bool is_required(void) {
    const char *required = getenv("LLM42_NVRTC_REQUIRED");

    return required && !strcmp(required, "1");
}

/* What ptx/BUDGET gives the kernel, or 0. */
static uint32_t budget_of(const char *name) {
    FILE *f = fopen("ptx/BUDGET", "r");
    char line[256], found[128];
    uint32_t n, budget = 0;

    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "%127s %u", found, &n) == 2 && !strcmp(found, name)) budget = n;
    if (f) fclose(f);
    return budget;
}

/* The code of the entry that its file is named after. */
static bool has_entry(const char *cubin, size_t n_bytes, const char *name) {
    char section[128];
    int n = snprintf(section, sizeof(section), ".text.%s", name);

    return cubin && memmem(cubin, n_bytes, section, (size_t)n + 1) != NULL;
}

/* The compiler is not ours to look into: under sanitizers one kernel in so many shows what we do
 * around it, for the optimised build has them all. */
#ifdef __SANITIZE_ADDRESS__
enum { ONE_IN = 9 };
#else
enum { ONE_IN = 1 };
#endif

static void test_kernels(const struct libnvrtc *nvrtc) {
    const struct jit jit = {.nvrtc = nvrtc};
    uint32_t n = 0, n_silent = 0;

    for (uint32_t i = 0; i < kernels_count(); i++) {
        const struct kernel *k = kernels_at(i);
        struct jit_result result = {.cubin = NULL};
        struct err e = {""};

        if (!k->is_source) {
            Elf64_Ehdr head;

            memcpy(&head, k->image, sizeof(head));
            CHECK(has_entry(k->image, head.e_shoff, k->name));
            continue;
        }
        if (i % ONE_IN) continue;
        if (jit_compile(&jit, k->name, k->image, &result, &e) < 0) printf("%s\n", e.text);
        CHECK(result.cubin && result.cache == JIT_OFF);
        CHECK(has_entry(result.cubin, result.n_bytes, k->name));
        printf("%-32s %3u registers, %u entries, %zu bytes\n", k->name, result.report.n_registers,
               result.report.n_entries, result.n_bytes);
        if (result.log && !*result.log && !is_required()) {
            n_silent++; /* some builds of the compiler say nothing */
            jit_done(&result);
            continue;
        }
        if (result.report.spill_bytes || result.report.n_warnings || !result.report.n_entries)
            printf("%s: %s\n", k->name, result.log ? result.log : "");
        CHECK(result.report.spill_bytes == 0);
        CHECK(result.report.n_warnings == 0);
        CHECK(result.report.n_entries > 0);
        if (result.report.n_registers > budget_of(k->name))
            printf("%s: its budget is %u registers\n", k->name, budget_of(k->name));
        CHECK(result.report.n_registers <= budget_of(k->name));
        jit_done(&result);
        n++;
    }
    printf("%u sources compiled, and %u of which the compiler says nothing here\n", n, n_silent);
    CHECK(n + n_silent > 0);
}

static void test_faults(const struct libnvrtc *nvrtc) {
    const struct jit jit = {.nvrtc = nvrtc};
    struct jit_result result = {.cubin = NULL};
    struct jit_report report;
    struct err e = {""};

    CHECK(jit_compile(&jit, "broken", "#warning a word\nint f() { return h; }\n", &result, &e) < 0);
    CHECK(strstr(e.text, "broken does not compile: broken(2): error"));
    CHECK(jit_compile(&jit, "broken", "int g;\nint f() { return h; }\n", &result, &e) < 0);
    CHECK(strstr(e.text, "broken does not compile: broken(2): error") && !result.cubin);
    CHECK(!strchr(e.text, '\n')); /* a line of the log, and not the whole */
    jit_read_log("ptxas info    : Used 40 registers, used 1 barriers\n"
                 "    8 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads\n"
                 "ptxas info    : (C7510) Potential Performance Loss: wgmma serialised\n"
                 "x.cu(3): warning #550-D: set but never used\n"
                 "ptxas info    : Used 32 registers\n",
                 &report);
    CHECK(report.n_entries == 2 && report.n_registers == 40);
    CHECK(report.spill_bytes == 44 && report.n_warnings == 2);
}

/* The one file of the cache. */
static void only_file(char path[512]) {
    DIR *d = opendir(folder);
    uint32_t n = 0;

    for (struct dirent *entry; d && (entry = readdir(d)) != NULL;) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        snprintf(path, 512, "%s/%.200s", folder, entry->d_name);
        n++;
    }
    if (d) closedir(d);
    CHECK(n == 1);
}

static void again(const struct libnvrtc *nvrtc, const char *where, enum jit_cache want,
                  const struct jit_result *first) {
    const struct jit jit = {.nvrtc = nvrtc, .folder = where};
    struct jit_result result = {.cubin = NULL};
    struct err e = {""};

    CHECK(jit_compile(&jit, "small", small, &result, &e) == 0);
    if (result.cache != want) printf("cache: %d, not %d\n", result.cache, want);
    CHECK(result.cache == want);
    CHECK(result.n_bytes == first->n_bytes && !memcmp(result.cubin, first->cubin, result.n_bytes));
    jit_done(&result);
}

static void change(const char *path, long at, int cut) {
    FILE *f = fopen(path, "r+b");
    int c;

    CHECK(f != NULL);
    if (!f) return;
    if (cut) {
        CHECK(ftruncate(fileno(f), at) == 0);
    } else {
        fseek(f, at, SEEK_SET);
        c = fgetc(f);
        fseek(f, at, SEEK_SET);
        fputc(c ^ 1, f);
    }
    fclose(f);
}

/* Bytes behind the end; nothing at all; a length that is beyond all files. */
static void test_cache_bytes(const struct libnvrtc *nvrtc, const char *path,
                             const struct jit_result *first) {
    FILE *f = fopen(path, "ab");
    uint64_t n_bytes = UINT64_MAX - 55; /* with the head of 56 bytes, nothing */

    CHECK(f && fputc(0, f) == 0 && fclose(f) == 0);
    again(nvrtc, folder, JIT_STORED, first);
    CHECK(truncate(path, 0) == 0);
    again(nvrtc, folder, JIT_STORED, first);
    f = fopen(path, "r+b");
    CHECK(f && fseek(f, 16, SEEK_SET) == 0 && fwrite(&n_bytes, sizeof(n_bytes), 1, f) == 1 &&
          fclose(f) == 0);
    again(nvrtc, folder, JIT_STORED, first);
    again(nvrtc, folder, JIT_FOUND, first);
}

static uint32_t count_files(void) {
    DIR *d = opendir(folder);
    uint32_t n = 0;

    for (struct dirent *entry; d && (entry = readdir(d)) != NULL;) n += entry->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

/* Another source or another compiler is another file. */
static void test_cache_keys(const struct libnvrtc *nvrtc, const char *path) {
    struct libnvrtc later = *nvrtc;
    struct jit jit = {.nvrtc = nvrtc, .folder = folder};
    struct jit_result result = {.cubin = NULL};
    struct err e = {""};
    char command[1024];

    CHECK(jit_compile(&jit, "small", "extern \"C\" __global__ void g(int *p) { *p = 43; }\n",
                      &result, &e) == 0);
    CHECK(result.cache == JIT_STORED && count_files() == 2);
    jit_done(&result);
    later.minor++;
    jit.nvrtc = &later;
    CHECK(jit_compile(&jit, "small", small, &result, &e) == 0);
    CHECK(result.cache == JIT_STORED && count_files() == 3);
    jit_done(&result);
    snprintf(command, sizeof(command), "find %s -type f ! -path %s -delete", folder, path);
    CHECK(system(command) == 0 && count_files() == 1);
}

/* No room: what was begun does not stay, what is there does. */
static void test_cache_full(const struct libnvrtc *nvrtc, const char *path,
                            const struct jit_result *first) {
    struct rlimit was, least;
    char found[512] = "";

    CHECK(getrlimit(RLIMIT_FSIZE, &was) == 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    fflush(NULL);
    CHECK(chmod(path, 0622) == 0); /* not ours alone, so not taken */
    least = was;
    least.rlim_cur = 1000; /* of a file that is longer */
    CHECK(setrlimit(RLIMIT_FSIZE, &least) == 0);
    again(nvrtc, folder, JIT_UNSTORED, first);
    CHECK(setrlimit(RLIMIT_FSIZE, &was) == 0);
    only_file(found);
    CHECK(!strcmp(found, path));
    again(nvrtc, folder, JIT_STORED, first);
}

/* Who may write a file may write code for the GPU: us and root.  As root, which alone can make
 * another's file. */
static void test_cache_owners(const struct libnvrtc *nvrtc, const char *path,
                              const struct jit_result *first) {
    enum { NOBODY = 65534, OTHER = 65533 };
    struct stat st;

    if (geteuid() != 0) {
        CHECK(chmod(folder, 0500) == 0 && chmod(path, 0666) == 0);
        again(nvrtc, folder, JIT_UNSTORED, first);
        CHECK(chmod(folder, 0700) == 0);
        return;
    }
    CHECK(chown(path, OTHER, OTHER) == 0);
    again(nvrtc, folder, JIT_STORED, first);
    CHECK(stat(path, &st) == 0 && st.st_uid == 0);

    /* What root wrote is good for all, in a folder that they cannot write to. */
    CHECK(chmod(folder, 0755) == 0 && chmod(path, 0644) == 0);
    CHECK(seteuid(NOBODY) == 0);
    again(nvrtc, folder, JIT_FOUND, first);
    CHECK(seteuid(0) == 0);
    CHECK(chown(path, OTHER, OTHER) == 0);
    CHECK(seteuid(NOBODY) == 0);
    again(nvrtc, folder, JIT_UNSTORED, first);
    CHECK(seteuid(0) == 0);
    CHECK(chown(path, NOBODY, NOBODY) == 0 && chmod(path, 0400) == 0);
    CHECK(seteuid(NOBODY) == 0);
    again(nvrtc, folder, JIT_FOUND, first);
    CHECK(seteuid(0) == 0);
    /* A file that they cannot read is none. */
    CHECK(chown(path, 0, 0) == 0);
    CHECK(seteuid(NOBODY) == 0);
    again(nvrtc, folder, JIT_UNSTORED, first);
    CHECK(seteuid(0) == 0);
}

static void test_cache(const struct libnvrtc *nvrtc) {
    const struct jit jit = {.nvrtc = nvrtc, .folder = folder};
    static const long places[] = {0, 20, 30, 100};
    struct jit_result first = {.cubin = NULL};
    struct err e = {""};
    char path[512] = "", other[64];

    CHECK(mkdtemp(folder) != NULL);
    snprintf(other, sizeof(other), "%s.other", folder);
    CHECK(jit_compile(&jit, "small", small, &first, &e) == 0 && first.cache == JIT_STORED);
    again(nvrtc, folder, JIT_FOUND, &first);
    only_file(path);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        for (int cut = 0; cut < 2; cut++) {
            change(path, places[i], cut);
            again(nvrtc, folder, JIT_STORED, &first);
            again(nvrtc, folder, JIT_FOUND, &first);
        }
    /* What others may write may be another's code. */
    for (mode_t mode = 0602; mode <= 0620; mode += 0016) {
        CHECK(chmod(path, mode) == 0);
        again(nvrtc, folder, JIT_STORED, &first);
    }
    CHECK(rename(path, other) == 0 && symlink(other, path) == 0);
    again(nvrtc, folder, JIT_STORED, &first);
    again(nvrtc, folder, JIT_FOUND, &first);
    (void)unlink(other);
    /* A pipe must not hold us up. */
    CHECK(unlink(path) == 0 && mkfifo(path, 0600) == 0);
    again(nvrtc, folder, JIT_STORED, &first);
    /* A folder cannot be replaced by a file, and nothing is left of the attempt. */
    CHECK(unlink(path) == 0 && mkdir(path, 0700) == 0);
    again(nvrtc, folder, JIT_UNSTORED, &first);
    only_file(path);
    CHECK(rmdir(path) == 0);
    again(nvrtc, folder, JIT_STORED, &first);
    test_cache_bytes(nvrtc, path, &first);
    test_cache_keys(nvrtc, path);
    test_cache_full(nvrtc, path, &first);
    test_cache_owners(nvrtc, path, &first);
    CHECK(unlink(path) == 0 && rmdir(folder) == 0);

    again(nvrtc, folder, JIT_UNSTORED, &first);
    again(nvrtc, "/dev/null", JIT_UNSTORED, &first);
    again(nvrtc, "/proc", JIT_UNSTORED, &first);
    again(nvrtc, NULL, JIT_OFF, &first);
    jit_done(&first);
}

int main(void) {
    const char *given = getenv("LLM42_NVRTC");
    struct libnvrtc nvrtc;
    struct err e = {""};

    if (libnvrtc_load(given, &nvrtc, &e) < 0 &&
        (given || libnvrtc_load("build/nvrtc", &nvrtc, &e) < 0)) {
        printf("%s; tools/fetch-nvrtc brings it\n", e.text);
        return is_required() ? 1 : SKIPPED;
    }
    printf("NVRTC %d.%d\n", nvrtc.major, nvrtc.minor);
    test_kernels(&nvrtc);
    test_faults(&nvrtc);
    test_cache(&nvrtc);
    printf("%d failed\n", n_failed);
    return n_failed ? 1 : 0;
}
