#include "runtime/jit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/err.h"
#include "runtime/libnvrtc.h"
#include "runtime/sha256.h"

/* The four after the target make arithmetic mean what num.h says; three are NVRTC's own defaults,
 * spelt out because bits depend on them.  Warning 177 is of functions that are not called: of
 * num.h, most kernels call a few. */
static const char *const options[] = {
    "--gpu-architecture=sm_90a", "--fmad=false",       "--ftz=false",
    "--prec-div=true",           "--prec-sqrt=true",   "-std=c++20",
    "-default-device",           "-diag-suppress=177", "--ptxas-options=-v",
};

enum { N_OPTIONS = sizeof(options) / sizeof(options[0]) };

#define UNFINISHED ".new."
enum { UNFINISHED_S_MAX = 24 * 60 * 60 };

/* A file of the cache: this, and the cubin. */
struct head {
    char magic[16];
    uint64_t n_bytes;
    uint8_t digest[SHA256_BYTES]; /* of the cubin */
};

static const char magic[16] = "llm42 cubin 1\n";

/* The number after `mark`, at or after `at`; false where the line has none. */
static bool number_before(const char *line, const char *mark, uint32_t *out_n) {
    const char *end = strstr(line, mark), *newline = strchr(line, '\n');

    if (!end || (newline && end > newline)) return false;
    while (end > line && end[-1] == ' ') end--;
    while (end > line && end[-1] >= '0' && end[-1] <= '9') end--;
    return sscanf(end, "%u", out_n) == 1;
}

void jit_read_log(const char *log, struct jit_report *out_report) {
    static const char *const spills[] = {"bytes stack frame", "bytes spill stores",
                                         "bytes spill loads"};
    struct jit_report report = {0};

    for (const char *line = log; line; line = strchr(line, '\n')) {
        const char *end;
        uint32_t n;

        line += *line == '\n';
        end = strchr(line, '\n');
        if (number_before(line, "registers", &n)) {
            report.n_entries++;
            if (n > report.n_registers) report.n_registers = n;
        }
        for (int i = 0; i < 3; i++)
            if (number_before(line, spills[i], &n)) report.spill_bytes += n;
        /* Of the compiler, and of ptxas: "(C7510) Potential performance loss". */
        for (int i = 0; i < 2; i++) {
            const char *at = strstr(line, i ? "(C75" : "warning");

            if (at && (!end || at < end)) report.n_warnings++;
        }
    }
    *out_report = report;
}

static void make_key(const struct jit *jit, const char *source, char out_key[SHA256_HEX_BYTES]) {
    uint8_t digest[SHA256_BYTES];
    struct sha256 *s = sha256_open();
    char text[64];

    out_key[0] = '\0';
    if (!s) return;
    sha256_start(s);
    sha256_add(s, magic, sizeof(magic));
    snprintf(text, sizeof(text), "nvrtc %d.%d", jit->nvrtc->major, jit->nvrtc->minor);
    sha256_add(s, text, strlen(text) + 1);
    for (int i = 0; i < N_OPTIONS; i++) sha256_add(s, options[i], strlen(options[i]) + 1);
    sha256_add(s, source, strlen(source));
    sha256_end(s, digest);
    sha256_close(s);
    sha256_hex(digest, out_key);
}

static bool read_all(int fd, void *bytes, size_t n_bytes) {
    for (char *to = bytes; n_bytes > 0;) {
        ssize_t n = read(fd, to, n_bytes);

        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        to += n;
        n_bytes -= (size_t)n;
    }
    return true;
}

static bool write_all(int fd, const void *bytes, size_t n_bytes) {
    for (const char *from = bytes; n_bytes > 0;) {
        ssize_t n = write(fd, from, n_bytes);

        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        from += n;
        n_bytes -= (size_t)n;
    }
    return true;
}

/* Only what none but us or root could have written: it will run on the GPU. */
static bool trusted(int fd, uint64_t *out_n_bytes) {
    struct stat st;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) return false;
    if ((st.st_uid != geteuid() && st.st_uid != 0) || (st.st_mode & (S_IWGRP | S_IWOTH)))
        return false;
    *out_n_bytes = (uint64_t)st.st_size;
    return true;
}

static bool find(const char *path, struct jit_result *out_result) {
    struct head head;
    uint8_t digest[SHA256_BYTES];
    uint64_t n_bytes;
    char *cubin = NULL;
    bool found = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0) return false;
    if (!trusted(fd, &n_bytes) || n_bytes < sizeof(head) || !read_all(fd, &head, sizeof(head)))
        goto out;
    if (memcmp(head.magic, magic, sizeof(magic)) || head.n_bytes != n_bytes - sizeof(head) ||
        head.n_bytes > JIT_CUBIN_BYTES_MAX)
        goto out;
    cubin = malloc(head.n_bytes + 1);
    if (!cubin || !read_all(fd, cubin, head.n_bytes)) goto out;
    sha256_of(cubin, head.n_bytes, digest);
    if (memcmp(digest, head.digest, sizeof(digest))) goto out;
    out_result->cubin = cubin;
    out_result->n_bytes = head.n_bytes;
    cubin = NULL;
    found = true;
out:
    free(cubin);
    close(fd);
    return found;
}

/* Losing a race to another process is fine: the bytes are the same. */
static bool store(const char *folder, const char *path, const struct jit_result *result) {
    struct head head = {.n_bytes = result->n_bytes};
    char temporary[PATH_MAX];
    bool stored;
    int fd, n = snprintf(temporary, sizeof(temporary), "%s/" UNFINISHED "XXXXXX", folder);

    if (n < 0 || (size_t)n >= sizeof(temporary)) return false;
    fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) return false;
    memcpy(head.magic, magic, sizeof(magic));
    sha256_of(result->cubin, result->n_bytes, head.digest);
    stored = write_all(fd, &head, sizeof(head)) && write_all(fd, result->cubin, result->n_bytes) &&
             fsync(fd) == 0;
    if (close(fd) < 0) stored = false;
    if (stored) stored = rename(temporary, path) == 0;
    if (!stored) (void)unlink(temporary);
    return stored;
}

void jit_sweep(const char *folder) {
    const time_t now = time(NULL);
    DIR *dir = opendir(folder);
    struct dirent *entry;
    struct stat st;

    if (!dir) return;
    while ((entry = readdir(dir)) != NULL)
        if (!strncmp(entry->d_name, UNFINISHED, strlen(UNFINISHED)) &&
            fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode) && now - st.st_mtime > UNFINISHED_S_MAX)
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    (void)closedir(dir);
}

static int take_log(const struct libnvrtc *nvrtc, struct nvrtc_program *program, char **out_log,
                    struct err *e) {
    size_t n_bytes;
    char *log;

    if (nvrtc->nvrtcGetProgramLogSize(program, &n_bytes)) n_bytes = 0;
    log = calloc(1, n_bytes + 1);
    if (!log) return err_set(e, -ENOMEM, "jit: a log of %zu bytes", n_bytes);
    if (n_bytes > 0) (void)nvrtc->nvrtcGetProgramLog(program, log);
    *out_log = log;
    return 0;
}

static int take_cubin(const struct libnvrtc *nvrtc, const char *name, struct nvrtc_program *program,
                      struct jit_result *result, struct err *e) {
    if (nvrtc->nvrtcGetCUBINSize(program, &result->n_bytes) || result->n_bytes == 0 ||
        result->n_bytes > JIT_CUBIN_BYTES_MAX)
        return err_set(e, -EINVAL, "jit: %s is compiled to nothing", name);
    result->cubin = malloc(result->n_bytes);
    if (!result->cubin) return err_set(e, -ENOMEM, "jit: a cubin of %zu bytes", result->n_bytes);
    if (nvrtc->nvrtcGetCUBIN(program, result->cubin))
        return err_set(e, -EINVAL, "jit: %s is compiled to nothing", name);
    return 0;
}

/* The line of a log that says what is wrong, or else its first. */
static const char *complaint(const char *log, int *out_n_bytes) {
    const char *line = log;

    while (line) {
        const char *end = strchr(line, '\n'), *at = strstr(line, "error");

        if (at && (!end || at < end)) break;
        line = end ? end + 1 : NULL;
    }
    if (!line) line = log;
    *out_n_bytes = (int)strcspn(line, "\n");
    return line;
}

static int compile(const struct libnvrtc *nvrtc, const char *name, const char *source,
                   struct jit_result *result, struct err *e) {
    struct nvrtc_program *program = NULL;
    int compiled, r;

    if (nvrtc->nvrtcCreateProgram(&program, source, name, 0, NULL, NULL))
        return err_set(e, -ENOMEM, "jit: no program for %s", name);
    compiled = nvrtc->nvrtcCompileProgram(program, N_OPTIONS, options);
    r = take_log(nvrtc, program, &result->log, e);
    if (r == 0 && compiled) {
        int n_bytes;
        const char *why = complaint(result->log, &n_bytes);

        r = err_set(e, -EINVAL, "jit: %s does not compile%s%.*s", name, n_bytes ? ": " : "",
                    n_bytes, why);
    }
    if (r == 0) r = take_cubin(nvrtc, name, program, result, e);
    if (r == 0) jit_read_log(result->log, &result->report);
    (void)nvrtc->nvrtcDestroyProgram(&program);
    return r;
}

int jit_compile(const struct jit *jit, const char *name, const char *source,
                struct jit_result *out_result, struct err *e) {
    struct jit_result result = {.cache = JIT_OFF};
    char key[SHA256_HEX_BYTES] = "", path[PATH_MAX];
    bool cached = false;
    int r = 0;

    if (jit->folder) {
        int n;

        make_key(jit, source, key);
        n = snprintf(path, sizeof(path), "%s/%s.cubin", jit->folder, key);
        cached = key[0] && n > 0 && (size_t)n < sizeof(path);
    }
    if (cached && find(path, &result)) {
        result.cache = JIT_FOUND;
        result.log = calloc(1, 1);
        if (!result.log) r = err_set(e, -ENOMEM, "jit: %s", name);
    } else {
        r = compile(jit->nvrtc, name, source, &result, e);
        if (r == 0 && jit->folder)
            result.cache = cached && store(jit->folder, path, &result) ? JIT_STORED : JIT_UNSTORED;
    }
    if (r < 0) {
        jit_done(&result);
        return r;
    }
    *out_result = result;
    return 0;
}

void jit_done(struct jit_result *result) {
    free(result->cubin);
    free(result->log);
    *result = (struct jit_result){.cubin = NULL};
}
