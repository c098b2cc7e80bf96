/* libnvrtc.so.13 of the tests: takes any source and compiles it to what its name decides.  Called
 * by several threads at once. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/libnvrtc.h"
#include "tests/stub_cuda/rule.h"

#define X(name, args) int name args;
LIBNVRTC_CALLS(X)
#undef X

enum {
#define X(name, args) AT_##name,
    LIBNVRTC_CALLS(X)
#undef X
        N_CALLS
};

static const char *const names[] = {
#define X(name, args) #name,
    LIBNVRTC_CALLS(X)
#undef X
};

enum { INTERNAL_ERROR = 11, COMPILATION = 6 };

struct nvrtc_program {
    char cubin[96];
    bool compiled;
};

static const char log_text[] = "ptxas info    : Used 32 registers, used 1 barriers\n";

extern struct stub stub_nvrtc;
struct stub stub_nvrtc;
static atomic_uint n_all, n_of[N_CALLS];

stub_reset stub_nvrtc_reset;

__attribute__((constructor)) void stub_nvrtc_reset(void) {
    stub_nvrtc = (struct stub){.major = 13, .n_live = stub_nvrtc.n_live};
    rule_read("STUB_NVRTC", &stub_nvrtc);
    n_all = 0;
    for (int i = 0; i < N_CALLS; i++) n_of[i] = 0;
}

/* The code that the call gives, 0 for success. */
static int call(int which) {
    uint32_t all = atomic_fetch_add(&n_all, 1) + 1, one = atomic_fetch_add(&n_of[which], 1) + 1;

    return rule_strikes(&stub_nvrtc.fail, names[which], one, all) ? stub_nvrtc.fail.value : 0;
}

int nvrtcVersion(int *major, int *minor) {
    int r = call(AT_nvrtcVersion);

    if (r) return r;
    *major = stub_nvrtc.major;
    *minor = 0;
    return 0;
}

int nvrtcCreateProgram(struct nvrtc_program **out, const char *source, const char *name,
                       int n_headers, const char *const *headers, const char *const *file_names) {
    int r = call(AT_nvrtcCreateProgram);

    (void)headers, (void)file_names;
    if (r) return r;
    if (n_headers || !*source) return INTERNAL_ERROR;
    *out = calloc(1, sizeof(**out));
    if (!*out) return INTERNAL_ERROR;
    (void)snprintf((*out)->cubin, sizeof((*out)->cubin), "\177ELF %s, %zu bytes", name,
                   strlen(source));
    (void)__atomic_fetch_add(&stub_nvrtc.n_live, 1, __ATOMIC_RELAXED);
    return 0;
}

int nvrtcCompileProgram(struct nvrtc_program *p, int n_options, const char *const *options) {
    int r = call(AT_nvrtcCompileProgram);

    for (int i = 0; i < n_options; i++)
        if (options[i][0] != '-') r = INTERNAL_ERROR;
    p->compiled = r == 0;
    return r;
}

int nvrtcGetProgramLogSize(struct nvrtc_program *p, size_t *out) {
    (void)p;
    *out = sizeof(log_text);
    return call(AT_nvrtcGetProgramLogSize);
}

int nvrtcGetProgramLog(struct nvrtc_program *p, char *out) {
    int r = call(AT_nvrtcGetProgramLog);

    (void)p;
    if (r) return r;
    memcpy(out, log_text, sizeof(log_text));
    return 0;
}

int nvrtcGetCUBINSize(struct nvrtc_program *p, size_t *out) {
    int r = call(AT_nvrtcGetCUBINSize);

    if (r) return r;
    *out = sizeof(p->cubin);
    return p->compiled ? 0 : COMPILATION;
}

int nvrtcGetCUBIN(struct nvrtc_program *p, char *out) {
    int r = call(AT_nvrtcGetCUBIN);

    if (r) return r;
    memcpy(out, p->cubin, sizeof(p->cubin));
    return p->compiled ? 0 : COMPILATION;
}

int nvrtcDestroyProgram(struct nvrtc_program **p) {
    int r = call(AT_nvrtcDestroyProgram);

    free(*p);
    *p = NULL;
    (void)__atomic_fetch_sub(&stub_nvrtc.n_live, 1, __ATOMIC_RELAXED);
    return r;
}
