/* The protocol that llm42-bench speaks with another implementation, against small scripts that keep
 * to it and scripts that do not: each failure by its code and its words. */
#include "tools/bench_peer.c"

#include <sys/stat.h>

#include "tests/unit.h"

#define GREETING "echo 'peer 2 a fake'\n"

static char script[64];

/* A program of these shell words. */
static const char *program(const char *words) {
    FILE *f = fopen(script, "we");

    assert_non_null(f);
    assert_true(fprintf(f, "#!/bin/sh\n%s", words) > 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(script, 0700), 0);
    return script;
}

static void starts(void **state) {
    static const struct {
        const char *words;
        int code;
        const char *text, *why;
    } cases[] = {
        {GREETING "cat > /dev/null\n", 0, "", "it keeps to it"},
        {"echo no it has no torch\n", -ENOENT, "peer: it has no torch", "its own reason"},
        {"exit 3\n", -ENOENT, "ended before it said who it is", "it ends at once"},
        {"echo 'peer 3 a later one'\n", -EPROTO, "it speaks \"3 a later one\", we speak 2",
         "another version"},
        {"echo 'peer one'\n", -EPROTO, "it speaks \"one\"", "no number"},
        {"echo 'peer 2'\n", -EPROTO, "it speaks \"2\"", "no words"},
        {"echo hello\n", -EPROTO, "it began with \"hello\"", "another program"},
        {"head -c 600 /dev/zero | tr '\\0' a\n", -EPROTO, "a line of more than 512 bytes",
         "a line without an end"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bench_peer *p = NULL;
        struct err e = {""};

        print_message("%s\n", cases[i].why);
        assert_int_equal(bench_peer_open(program(cases[i].words), &p, &e), cases[i].code);
        assert_non_null(strstr(e.text, cases[i].text));
        if (p) assert_string_equal(bench_peer_words(p), "a fake");
        bench_peer_close(p);
    }
}

static void no_program(void **state) {
    struct bench_peer *p = NULL;
    struct err e = {""};

    (void)state;
    assert_int_equal(bench_peer_open("/nonexistent/peer", &p, &e), -ENOENT);
    assert_non_null(strstr(e.text, "/nonexistent/peer: No such file"));
    assert_null(p);
}

static void answers(void **state) {
    static const struct {
        const char *words;
        int code;
        double us;
        const char *text, *why;
    } cases[] = {
        {"echo us 17.25", 0, 17.25, "", "a time"},
        {"echo us 1e3", 0, 1000, "", "a time with an exponent"},
        {"echo no it is too large", -ENOTSUP, 0, "gemm 1 2 3 4: it is too large", "it cannot"},
        {"echo us", -EPROTO, 0, "said \"us\"", "no number"},
        {"echo us fast", -EPROTO, 0, "said \"us fast\"", "no number, a word"},
        {"echo us 3 ms", -EPROTO, 0, "said \"us 3 ms\"", "more than a number"},
        {"echo us -1", -EPROTO, 0, "said \"us -1\"", "below zero"},
        {"echo us 0", -EPROTO, 0, "said \"us 0\"", "nothing takes no time"},
        {"echo us inf", -EPROTO, 0, "said \"us inf\"", "infinity"},
        {"echo us nan", -EPROTO, 0, "said \"us nan\"", "no number at all"},
        {"echo 17.25", -EPROTO, 0, "to \"gemm 1 2 3 4\" it said \"17.25\"", "another word"},
        {"exit 0", -EPIPE, 0, "ended", "it ends instead"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bench_peer *p = NULL;
        struct err e = {""};
        char words[256];
        double us = 0;

        print_message("%s\n", cases[i].why);
        snprintf(words, sizeof(words), GREETING "while read line; do %s; done\n", cases[i].words);
        assert_int_equal(bench_peer_open(program(words), &p, &e), 0);
        assert_int_equal(bench_peer_ask(p, "gemm 1 2 3 4", &us, &e), cases[i].code);
        assert_true(us == cases[i].us);
        assert_non_null(strstr(e.text, cases[i].text));
        bench_peer_close(p);
    }
}

/* What we ask arrives, several lines in one piece are several answers, and "no" is no end. */
static void in_turn(void **state) {
    struct bench_peer *p = NULL;
    struct err e = {""};
    char request[PEER_LINE_BYTES + 8];
    double us = 0;

    (void)state;
    assert_int_equal(
        bench_peer_open(program(GREETING "read a b\n"
                                         "[ \"$a $b\" = 'copy 8 2' ] && printf 'us 1\\n"
                                         "no never\\nus 3\\n'\n"
                                         "cat > /dev/null\n"),
                        &p, &e),
        0);
    assert_int_equal(bench_peer_ask(p, "copy 8 2", &us, &e), 0);
    assert_true(us == 1);
    assert_int_equal(bench_peer_ask(p, "copy 8 2", &us, &e), -ENOTSUP);
    assert_int_equal(bench_peer_ask(p, "copy 8 2", &us, &e), 0);
    assert_true(us == 3);
    memset(request, 'a', sizeof(request));
    request[sizeof(request) - 1] = '\0';
    assert_int_equal(bench_peer_ask(p, request, &us, &e), -EPROTO);
    assert_non_null(strstr(e.text, "a request of more than 512 bytes"));
    bench_peer_close(p);
}

static void too_late(void **state) {
    struct bench_peer *p = NULL;
    struct err e = {""};
    char line[PEER_LINE_BYTES];

    (void)state;
    assert_int_equal(bench_peer_open(program(GREETING "cat > /dev/null\n"), &p, &e), 0);
    assert_int_equal(read_line(p, 20, line, &e), -ETIMEDOUT);
    assert_non_null(strstr(e.text, "no answer within"));
    bench_peer_close(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(starts), cmocka_unit_test(no_program),
                                       cmocka_unit_test(answers), cmocka_unit_test(in_turn),
                                       cmocka_unit_test(too_late)};
    int failed;

    snprintf(script, sizeof(script), "/tmp/bench-peer-%ld", (long)getpid());
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(script);
    return failed;
}
