/* Pages: each to one owner, all come back, a page given twice stops the process. */
#include "runtime/kv.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/err.h"
#include "tests/unit.h"

static void test_take_and_give(void **state) {
    struct kv *kv = NULL;
    bool taken[5] = {false};

    (void)state;
    assert_int_equal(kv_open(5, &kv, NULL), 0);
    for (int i = 0; i < 5; i++) {
        int page = kv_take(kv);

        assert_int_equal(page, i);
        assert_false(taken[page]);
        taken[page] = true;
    }
    assert_int_equal(kv_take(kv), -EAGAIN);
    assert_int_equal(kv_free_count(kv), 0);
    kv_give(kv, 3);
    assert_int_equal(kv_free_count(kv), 1);
    assert_int_equal(kv_take(kv), 3);
    kv_close(kv);
    kv_close(NULL);
}

static void test_given_twice_aborts(void **state) {
    pid_t child = fork();
    int status;

    (void)state;
    if (child == 0) {
        struct kv *kv = NULL;

        (void)close(STDERR_FILENO);
        (void)signal(SIGABRT, SIG_DFL);
        if (kv_open(2, &kv, NULL) < 0) _exit(1);
        kv_give(kv, 1);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_take_and_give),
                                       cmocka_unit_test(test_given_twice_aborts)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
