/* A ring between two threads: nothing lost, nothing torn, nothing out of order.  Run under TSan
 * too. */
#include "runtime/queue.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "tests/unit.h"

enum { N = 200000 };

struct item {
    uint64_t number, square, negated;
};

static struct item make(uint64_t i) {
    return (struct item){i, i * i, ~i};
}

static void test_limits(void **state) {
    struct queue *q = NULL;
    struct item item = make(1);

    (void)state;
    assert_int_equal(queue_open(4, sizeof(item), &q, NULL), 0);
    assert_false(queue_take(q, &item));
    for (uint64_t i = 0; i < 4; i++) {
        assert_int_equal(queue_room(q), 4 - i);
        item = make(i);
        assert_true(queue_put(q, &item));
    }
    assert_int_equal(queue_room(q), 0);
    assert_false(queue_put(q, &item)); /* full: nothing changed */
    for (uint64_t i = 0; i < 4; i++) {
        assert_true(queue_take(q, &item));
        assert_int_equal(item.number, i);
    }
    assert_false(queue_take(q, &item));
    queue_close(q);
    queue_close(NULL);
}

static void *put_all(void *context) {
    struct queue *q = context;

    for (uint64_t i = 0; i < N; i++) {
        struct item item = make(i);

        while (!queue_put(q, &item)) (void)sched_yield();
    }
    return NULL;
}

static void test_two_threads(void **state) {
    struct queue *q = NULL;
    pthread_t putter;

    (void)state;
    assert_int_equal(queue_open(16, sizeof(struct item), &q, NULL), 0);
    assert_int_equal(pthread_create(&putter, NULL, put_all, q), 0);
    for (uint64_t i = 0; i < N;) {
        struct item item;

        if (!queue_take(q, &item)) {
            (void)sched_yield();
            continue;
        }
        if (item.number != i || item.square != i * i || item.negated != ~i)
            fail_msg("item %llu is not whole", (unsigned long long)i);
        i++;
    }
    (void)pthread_join(putter, NULL);
    queue_close(q);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limits),
                                       cmocka_unit_test(test_two_threads)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
