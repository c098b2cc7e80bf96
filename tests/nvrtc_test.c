/* num.h through NVRTC: the text that the host compiles also compiles for sm_90a without a
 * warning, every function of it, and to instructions that are IEEE ones: nothing approximate,
 * nothing flushed to zero, nothing contracted.  Needs no GPU.  Skipped (77) where there is no
 * NVRTC, unless LLM42_NVRTC_REQUIRED is 1; LLM42_NVRTC names its folder. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TEXT_BYTES_MAX = 1 << 16, SKIPPED = 77 };

/* The calls of NVRTC that are used here; 0 is success. */
struct nvrtc_program;

static struct {
    int (*version)(int *major, int *minor);
    int (*create)(struct nvrtc_program **out, const char *text, const char *name, int n_headers,
                  const char *const *headers, const char *const *header_names);
    int (*destroy)(struct nvrtc_program **program);
    int (*compile)(struct nvrtc_program *program, int n_options, const char *const *options);
    int (*log_size)(struct nvrtc_program *program, size_t *out_bytes);
    int (*log)(struct nvrtc_program *program, char *out);
    int (*cubin_size)(struct nvrtc_program *program, size_t *out_bytes);
    int (*ptx_size)(struct nvrtc_program *program, size_t *out_bytes);
    int (*ptx)(struct nvrtc_program *program, char *out);
} nvrtc;

static char num_text[TEXT_BYTES_MAX], program_text[2 * TEXT_BYTES_MAX], ptx[1 << 20];
static unsigned n_functions, n_compiled;

static const char kernel[] =
    "extern \"C\" __global__ void call_all(const float *x, const unsigned *n, float *y,\n"
    "                                     unsigned *m) {\n"
    "    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    float a = x[2 * i], b = x[2 * i + 1], s = NUM_LOG2E + NUM_LN2;\n"
    "\n"
    "    s += num_from_bits(num_bits(a) ^ num_bits(NUM_NAN) ^ num_bits(NUM_INFINITY));\n"
    "    s += num_fma(a, b, s) + num_sqrt(a) + num_min(a, b) + num_max(a, b);\n"
    "    s += num_from_bf16(num_to_bf16(b)) + num_pow2((int)n[i]) + a / b;\n"
    "    s += num_exp2_part(a) + num_exp2_plain(b);\n"
    "    s += num_exp2(a) + num_log2(b) + num_exponential(n[i]) + num_silu(a);\n"
    "    unsigned word[4];\n"
    "\n"
    "    num_random4(n[i] * 77ull, n[i + 1], i, word);\n"
    "    y[i] = s;\n"
    "    m[i] = num_random(n[i] * 77ull, n[i + 1], i) + word[n[i] % 4];\n"
    "}\n";

static const char product_kernel[] =
    "extern \"C\" __global__ void product(const float *x, float *y) {\n"
    "    y[0] = x[0] * x[1] + x[2];\n"
    "}\n";

static const char *folder = ""; /* where the library was found, "" for the loader's path */

static void *open_library(void) {
    static const char *const folders[] = {"", "/usr/local/cuda/lib64", "build/nvrtc",
                                          "/usr/lib/x86_64-linux-gnu"};
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
    const char *given = getenv("LLM42_NVRTC");
    size_t n_folders = given ? 1 : sizeof(folders) / sizeof(folders[0]);
    char path[4096];

    for (size_t i = 0; i < n_folders; i++)
        for (size_t j = 0; j < sizeof(names) / sizeof(names[0]); j++) {
            void *library;

            folder = given ? given : folders[i];
            snprintf(path, sizeof(path), "%s%s%s", folder, *folder ? "/" : "", names[j]);
            library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (library) {
                print_message("nvrtc: %s\n", path);
                return library;
            }
        }
    return NULL;
}

/* NVRTC opens a second library by its bare name when it compiles, which only the loader's path
 * has, or a process that has it open. */
static void open_builtins(int major, int minor) {
    char path[4096];

    snprintf(path, sizeof(path), "%s%slibnvrtc-builtins.so.%d.%d", folder, *folder ? "/" : "",
             major, minor);
    if (!dlopen(path, RTLD_NOW | RTLD_LOCAL)) print_message("nvrtc: no %s\n", path);
}

static bool find_calls(void *library) {
    const struct {
        const char *name;
        void *at;
    } calls[] = {
        {"nvrtcVersion", &nvrtc.version},
        {"nvrtcCreateProgram", &nvrtc.create},
        {"nvrtcDestroyProgram", &nvrtc.destroy},
        {"nvrtcCompileProgram", &nvrtc.compile},
        {"nvrtcGetProgramLogSize", &nvrtc.log_size},
        {"nvrtcGetProgramLog", &nvrtc.log},
        {"nvrtcGetCUBINSize", &nvrtc.cubin_size},
        {"nvrtcGetPTXSize", &nvrtc.ptx_size},
        {"nvrtcGetPTX", &nvrtc.ptx},
    };

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        void *call = dlsym(library, calls[i].name);

        if (!call) {
            print_error("nvrtc: no %s\n", calls[i].name);
            return false;
        }
        memcpy(calls[i].at, &call, sizeof(call));
    }
    return true;
}

/* The program must compile, and the compiler have nothing to say about it. */
static struct nvrtc_program *compile(const char *text, int n_options, const char *const *options) {
    static char log[1 << 16];
    struct nvrtc_program *program = NULL;
    size_t n_bytes = 0;
    int r;

    /* Without num.h for the other kernel, as functions that nobody calls are warned of. */
    snprintf(program_text, sizeof(program_text), "%s\n%s", text == kernel ? num_text : "", text);
    assert_int_equal(nvrtc.create(&program, program_text, "num.cu", 0, NULL, NULL), 0);
    r = nvrtc.compile(program, n_options, options);
    assert_int_equal(nvrtc.log_size(program, &n_bytes), 0);
    assert_true(n_bytes <= sizeof(log));
    assert_int_equal(nvrtc.log(program, log), 0);
    if (r || strspn(log, " \n") != strlen(log)) fail_msg("compilation: %d\n%s", r, log);
    n_compiled++;
    return program;
}

static void compile_to_ptx(const char *text, const char *option) {
    const char *options[] = {"--gpu-architecture=compute_90a", "--fmad=false", "--ftz=false",
                             "--prec-div=true", "--prec-sqrt=true"};
    const char *one[] = {"--gpu-architecture=compute_90a", option};
    struct nvrtc_program *program = option ? compile(text, 2, one) : compile(text, 5, options);
    size_t n_bytes = 0;

    assert_int_equal(nvrtc.ptx_size(program, &n_bytes), 0);
    assert_in_range(n_bytes, 100, sizeof(ptx));
    assert_int_equal(nvrtc.ptx(program, ptx), 0);
    nvrtc.destroy(&program);
}

/* The kernel above would not know of a function that num.h gains. */
static void test_all_called(void **state) {
    (void)state;
    for (const char *at = num_text; (at = strstr(at, "\nNUM ")) != NULL; at++) {
        const char *name = strstr(at, "num_");
        char call[64];

        assert_non_null(name);
        snprintf(call, sizeof(call), "%.*s(", (int)strcspn(name, "("), name);
        if (!strstr(kernel, call)) fail_msg("%s...) is not called", call);
        n_functions++;
    }
    assert_true(n_functions > 10);
}

static void test_cubin(void **state) {
    const char *options[] = {"--gpu-architecture=sm_90a", "--fmad=false", "--ftz=false",
                             "--prec-div=true", "--prec-sqrt=true"};
    struct nvrtc_program *program = compile(kernel, 5, options);
    size_t n_bytes = 0;

    (void)state;
    assert_int_equal(nvrtc.cubin_size(program, &n_bytes), 0);
    assert_true(n_bytes > 0);
    print_message("nvrtc: %zu bytes for sm_90a\n", n_bytes);
    nvrtc.destroy(&program);
}

static void test_ptx(void **state) {
    (void)state;
    compile_to_ptx(kernel, NULL);
    assert_null(strstr(ptx, ".approx"));
    assert_null(strstr(ptx, "ftz"));
    assert_null(strstr(ptx, ".full"));
    assert_non_null(strstr(ptx, "div.rn.f32"));
    assert_non_null(strstr(ptx, "sqrt.rn.f32"));
    assert_non_null(strstr(ptx, "fma.rn.f32"));

    /* That the search finds what it looks for. */
    compile_to_ptx(kernel, "--use_fast_math");
    assert_non_null(strstr(ptx, ".approx"));
    assert_non_null(strstr(ptx, "ftz"));
}

static void test_no_contraction(void **state) {
    (void)state;
    compile_to_ptx(product_kernel, NULL);
    assert_null(strstr(ptx, "fma."));
    assert_non_null(strstr(ptx, "mul.rn.f32"));
    assert_non_null(strstr(ptx, "add.rn.f32"));
    compile_to_ptx(product_kernel, "--fmad=true");
    assert_non_null(strstr(ptx, "fma."));
}

static bool read_num(void) {
    FILE *file = fopen("runtime/num.h", "r");
    size_t n_bytes = file ? fread(num_text, 1, sizeof(num_text) - 1, file) : 0;

    if (file) fclose(file);
    return n_bytes > 0 && n_bytes < sizeof(num_text) - 1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_called),
        cmocka_unit_test(test_cubin),
        cmocka_unit_test(test_ptx),
        cmocka_unit_test(test_no_contraction),
    };
    const char *required = getenv("LLM42_NVRTC_REQUIRED");
    void *library = open_library();
    int major = 0, minor = 0, r;

    if (!library) {
        print_message("nvrtc: not found; tools/fetch-nvrtc brings it\n");
        return required && !strcmp(required, "1") ? 1 : SKIPPED;
    }
    if (!find_calls(library)) return 1;
    if (!read_num()) {
        print_error("nvrtc: cannot read runtime/num.h; run from the root of the repository\n");
        return 1;
    }
    nvrtc.version(&major, &minor);
    open_builtins(major, minor);
    r = cmocka_run_group_tests(tests, NULL, NULL);
    print_message("nvrtc %d.%d: %u functions, %u programs compiled\n", major, minor, n_functions,
                  n_compiled);
    return r;
}
