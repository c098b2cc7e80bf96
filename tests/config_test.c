/* Shows that settings come from where they should, that every bad line is told with its place, all
 * of them in one run, and that nothing is applied from a bad file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config.h"

#define MODEL "[model]\npath=/m\n"
#define LONG                                                                                       \
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" \
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"

static const struct {
    const char *why;
    const char *text;
    const char *errors; /* all of them, in order; "" for none */
} cases[] = {
    {"the least", MODEL, ""},
    {"comments, empty lines, CRLF, a BOM", "\xef\xbb\xbf# a\r\n\r\n; b\n" MODEL "  # c\n", ""},
    {"no newline at the end", "[model]\npath=/m", ""},
    {"nothing", "", "llm42d: model.path is not set\n"},
    {"an unknown key", MODEL "paht=/n\n", "f:3: [model] has no key paht\n"},
    {"an unknown section, and its keys with it", MODEL "[modle]\npath=/n\n",
     "f:3: there is no section [modle]\n"},
    {"a key before any section", "path=/m\n" MODEL, "f:1: path stands before any [section]\n"},
    {"a key twice", MODEL "path=/n\n", "f:3: model.path is set already in line 2\n"},
    {"a section twice is fine", MODEL "[log]\nlevel=info\n[model]\nround_weights=yes\n", ""},
    {"an indented line would continue the one before", MODEL "[log]\nlevel=info\n  debug\n",
     "f:5: an indented line: it would continue the one before\n"},
    {"a line that inih would cut", MODEL "[server]\nsocket=/" LONG LONG "\n",
     "f:4: the line is longer than 190 bytes\n"},
    {"a value over its limit", "[model]\npath=/" LONG "\n",
     "f:2: model.path=/" LONG ": must be an absolute path of at most 180 bytes\n"},
    {"no equals sign", MODEL "[log]\nlevel\n", "f:4: neither [section] nor key=value\n"},
    {"a colon", MODEL "[log]\nlevel: info = x\n", "f:4: a colon in the key: write key=value\n"},
    {"a section without its end", "[model\npath=/m\n",
     "f:1: a section without ]\nf:2: path stands before any [section]\nllm42d: model.path is not "
     "set\n"},
    {"text after a section", "[model] x\npath=/m\n", "f:1: text after the section\n"},
    {"a control character",
     MODEL "[log]\nlevel=in\x01"
           "fo\n",
     "f:4: a control character\n"},
    {"a relative path", "[model]\npath=m\n",
     "f:2: model.path=m: must be an absolute path of at most 180 bytes\n"},
    {"numbers: below, above, signs, junk, hex, nothing",
     MODEL "[engine]\nwindow=0\ngroup=65\nmax_requests=-1\ncontext=1x\nkv_tokens=0x10\n"
           "step_tokens=\nmax_queue=99999999999999999999\nthreads=257\n",
     "f:4: engine.window=0: must be a number from 1 to 256\n"
     "f:5: engine.group=65: must be a number from 1 to 64\n"
     "f:6: engine.max_requests=-1: must be a number from 0 to 1024\n"
     "f:7: engine.context=1x: must be a number from 0 to 1048576\n"
     "f:8: engine.kv_tokens=0x10: must be a number from 0 to 1073741824\n"
     "f:9: engine.step_tokens=: must be a number from 0 to 2048\n"
     "f:10: engine.max_queue=99999999999999999999: must be a number from 0 to 1023\n"
     "f:11: engine.threads=257: must be a number from 0 to 256\n"},
    {"words", MODEL "[engine]\npolicy=fast\ndevice=gpu\nportable=maybe\n[log]\nlevel=loud\n",
     "f:4: engine.policy=fast: must be one of canonical, tuned, auto\n"
     "f:5: engine.device=gpu: must be one of cpu, cuda\n"
     "f:6: engine.portable=maybe: must be yes or no\n"
     "f:8: log.level=loud: must be one of error, warning, info, debug\n"},
    {"modes, times, bytes",
     MODEL "[server]\nsocket_mode=0777\nhello_timeout=5x\noutput_bytes=1K\nmax_text_bytes=5M\n",
     "f:4: server.socket_mode=0777: must be an octal mode from 0600 to 0666\n"
     "f:5: server.hello_timeout=5x: must be a number from 10ms to 600s, in seconds, or with ms, s "
     "or "
     "min\n"
     "f:6: server.output_bytes=1K: must be a number from 262144 to 67108864, in bytes, or with K "
     "or "
     "M\n"
     "f:7: server.max_text_bytes=5M: must be a number from 1024 to 1048576, in bytes, or with K or "
     "M\n"},
    {"what only the whole tells",
     MODEL "[engine]\nmax_requests=1000\nmax_queue=100\n"
           "[server]\nsocket=/s\nadmin_socket=/s\n",
     "llm42d: engine.max_requests + engine.max_queue is 1100, the limit is 1024\n"
     "llm42d: server.socket and server.admin_socket are the same path\n"},
    {"more rows than a step has",
     MODEL "[engine]\nwindow=252\ngroup=16\n[experiment]\nverify=no\nmismatch_ppm=1\n",
     "llm42d: engine.window x engine.group + engine.max_requests is 4096 rows, the limit is 4080\n"
     "llm42d: experiment.verify=no: nothing is verified, so certify=no, mismatch_ppm and "
     "engine.fixed_shape say nothing\n"},
    {"the same on a GPU, with its own number of requests",
     MODEL "[engine]\nwindow=240\ngroup=16\ndevice=cuda\n[experiment]\nverify=no\n",
     "llm42d: engine.window x engine.group + engine.max_requests is 4096 rows, the limit is "
     "4080\n"},
    {"as many as it has", MODEL "[engine]\nwindow=239\ngroup=16\ndevice=cuda\nmax_requests=0\n",
     ""},
};

static unsigned load_text(const char *text, struct config *c, char **out_errors) {
    size_t n;
    FILE *errors = open_memstream(out_errors, &n);
    unsigned r;

    assert_non_null(errors);
    r = config_load_text("f", text, strlen(text), c, errors);
    (void)fclose(errors);
    return r;
}

static void test_cases(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct config c;
        char *errors;
        unsigned n_lines = 0;

        memset(&c, 0x5a, sizeof(c));
        print_message("%s\n", cases[i].why);
        unsigned n = load_text(cases[i].text, &c, &errors);
        assert_string_equal(errors, cases[i].errors);
        for (const char *p = errors; *p; p++) n_lines += *p == '\n';
        assert_int_equal(n, n_lines);
        if (n == 0) {
            assert_string_equal(c.model_path, "/m");
            config_free(&c);
        } else {
            assert_int_equal(c.window, 0x5a5a5a5a); /* untouched */
        }
        free(errors);
    }
}

static void test_values(void **state) {
    struct config c;
    char *errors;

    (void)state;
    assert_int_equal(load_text(MODEL, &c, &errors), 0);
    assert_string_equal(c.socket, "/run/llm42/llm42d.sock");
    assert_string_equal(c.admin_socket, "/run/llm42/admin.sock");
    assert_int_equal(c.window, 32);
    assert_int_equal(c.group, 8);
    assert_int_equal(c.max_requests, 0);
    assert_int_equal(config_max_requests(&c), 64);
    assert_int_equal(c.max_queue, 256);
    assert_int_equal(c.step_tokens, 0);
    assert_int_equal(c.policy, 0);
    assert_int_equal(c.socket_mode, 0660);
    assert_false(c.payload);
    config_free(&c);
    free(errors);
    assert_int_equal(load_text(MODEL "[engine]\ndevice=cuda\n", &c, &errors), 0);
    assert_int_equal(config_max_requests(&c), 256);
    config_free(&c);
    free(errors);
    assert_int_equal(load_text(MODEL "[engine]\npolicy = auto ; a comment\nportable=true\n"
                                     "[server]\nhello_timeout=250ms\nslow_client_timeout=2\n"
                                     "drain_timeout=1min\noutput_bytes=2M\nsocket_mode=600\n",
                               &c, &errors),
                     0);
    assert_int_equal(c.policy, 2);
    assert_true(c.portable);
    assert_int_equal(c.hello_timeout_ms, 250);
    assert_int_equal(c.slow_client_timeout_ms, 2000);
    assert_int_equal(c.drain_timeout_ms, 60000);
    assert_int_equal(c.output_bytes, 2 << 20);
    assert_int_equal(c.socket_mode, 0600);
    config_free(&c);
    free(errors);
}

static void put_file(const char *root, const char *path, const char *text) {
    char full[512];

    (void)snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        (void)mkdir(full, 0755);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    (void)fclose(f);
}

/* The chain: weaker files first, fragments by name over all folders, the command line last. */
static void test_chain(void **state) {
    char root[] = "/tmp/llm42d-config.XXXXXX", line[256], want[256];
    struct config_sources s = {
        .root = root, .n_sets = 2, .sets = {"engine.step_tokens=32", "engine.step_tokens=64"}};
    struct config_origin *origin;
    struct config c;
    char *text;
    size_t n_text;

    (void)state;
    assert_non_null(mkdtemp(root));
    put_file(root, "/usr/lib/llm42/llm42d.conf", MODEL "[engine]\nwindow=1\ngroup=1\n");
    put_file(root, "/usr/local/lib/llm42/llm42d.conf", "[engine]\ngroup=6\nmax_queue=7\n");
    put_file(root, "/etc/llm42/llm42d.conf", "[engine]\nwindow=2\nmax_queue=2\n");
    put_file(root, "/usr/lib/llm42/llm42d.conf.d/20-a.conf", "[engine]\nwindow=3\n");
    put_file(root, "/run/llm42/llm42d.conf.d/10-b.conf", "[engine]\nwindow=4\nmax_queue=4\n");
    put_file(root, "/etc/llm42/llm42d.conf.d/20-a.conf", "[engine]\nwindow=5\n");
    put_file(root, "/etc/llm42/llm42d.conf.d/readme", "not a fragment");
    assert_int_equal(config_load(&s, &c, &origin, stderr), 0);
    assert_int_equal(c.window, 5); /* by name, not by folder; etc hides usr */
    assert_int_equal(c.max_queue, 4);
    assert_int_equal(c.group, 6);
    assert_int_equal(c.step_tokens, 64);

    FILE *out = open_memstream(&text, &n_text);
    config_print(&c, origin, out);
    (void)fclose(out);
    (void)snprintf(want, sizeof(want), "# %s/etc/llm42/llm42d.conf.d/20-a.conf:2\nwindow=5\n",
                   root);
    assert_non_null(strstr(text, want));
    assert_non_null(strstr(text, "# --set\nstep_tokens=64\n"));
    assert_non_null(strstr(text, "# default\nfixed_shape=no\n"));
    free(text);
    config_origin_free(origin);
    config_free(&c);

    s.sets[0] = "engine.window";
    s.sets[1] = "nosuch.key=1";
    s.n_sets = 2;
    out = open_memstream(&text, &n_text);
    assert_int_equal(config_load(&s, &c, NULL, out), 2);
    (void)fclose(out);
    assert_string_equal(text, "--set: engine.window is not SECTION.KEY=VALUE\n"
                              "--set: there is no section [nosuch]\n");
    free(text);

    s = (struct config_sources){.file = "/nonexistent/llm42d.conf"};
    out = open_memstream(&text, &n_text);
    assert_int_equal(config_load(&s, &c, NULL, out), 2);
    (void)fclose(out);
    assert_string_equal(text, "/nonexistent/llm42d.conf: No such file or directory\n"
                              "llm42d: model.path is not set\n");
    free(text);
    (void)snprintf(line, sizeof(line), "rm -r %s", root);
    assert_int_equal(system(line), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_chain)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
