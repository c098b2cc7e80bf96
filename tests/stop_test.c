/* Stop strings and characters across tokens: nothing of a stop leaks, nothing else is lost,
 * however the bytes are cut. */
#include "runtime/stop.h"

#include <stdbool.h>
#include <string.h>

#include "tests/unit.h"

static const struct {
    const char *why;
    const char *stops[3];
    const char *bytes; /* fed in all cuts of 1, 2, 3 .. bytes */
    const char *shown;
    int index; /* the stop found, or -1 */
} cases[] = {
    {"no stop strings", {NULL}, "plain text", "plain text", -1},
    {"one character", {"x"}, "abcxdef", "abc", 0},
    {"a word across tokens", {"\n\nQ:"}, "A: yes\n\nQ: no", "A: yes", 0},
    {"the start of one that never comes is shown at the end",
     {"STOP"},
     "this is a STO",
     "this is a STO",
     -1},
    {"the start of one that turns out otherwise", {"STOP"}, "STOSTOP!", "STO", 0},
    {"overlapping itself", {"aab"}, "aaaab", "aa", 0},
    {"two: the earlier in the text wins", {"yy", "x"}, "aaxyy", "aa", 1},
    {"two at one place that end at once: the first in the list", {"bc", "abc"}, "zabc", "z", 1},
    {"one is the beginning of another", {"ab", "abc"}, "zabc", "z", 0},
    {"multi-byte characters", {"\xe2\x82\xac"}, "5 \xe2\x82\xac each", "5 ", 0},
    {"half a character before the stop is not whole", {"!"}, "a\xe2\x82!", "a\xef\xbf\xbd", 0},
    {"a short one behind a long one holds no less back", {"STOP", "ab"}, "xSTOP", "x", 0},
    {"nor one of no beginning", {"abcdef", "zz", "q"}, "xxabcdef", "xx", 0},
    {"at the very end", {"end"}, "the end", "the ", 0},
    {"at the very start", {"the"}, "the end", "", 0},
    {"invalid bytes become replacement characters",
     {NULL},
     "a\xff\xfe z",
     "a\xef\xbf\xbd\xef\xbf\xbd z",
     -1},
    {"an unfinished character at the end", {NULL}, "ok\xf0\x9f\x98", "ok\xef\xbf\xbd", -1},
};

static void run(size_t c, size_t cut, char *shown, int *index) {
    struct stop_string strings[3] = {0};
    struct stop_text t = {.strings = strings};
    uint8_t scratch[STOP_STRING_BYTES_MAX + 64], out[2048];
    size_t n = strlen(cases[c].bytes), n_shown = 0, n_out;

    for (; t.n_strings < 3 && cases[c].stops[t.n_strings]; t.n_strings++) {
        strings[t.n_strings].n_bytes = (uint16_t)strlen(cases[c].stops[t.n_strings]);
        memcpy(strings[t.n_strings].bytes, cases[c].stops[t.n_strings],
               strings[t.n_strings].n_bytes);
    }
    *index = -1;
    for (size_t at = 0; at < n && *index < 0; at += cut) {
        size_t n_push = n - at < cut ? n - at : cut;

        *index =
            stop_text_push(&t, (const uint8_t *)cases[c].bytes + at, n_push, scratch, out, &n_out);
        assert_true(n_out <= stop_text_room(n_push));
        memcpy(shown + n_shown, out, n_out);
        n_shown += n_out;
    }
    if (*index < 0) {
        n_out = stop_text_end(&t, out);
        memcpy(shown + n_shown, out, n_out);
        n_shown += n_out;
    }
    shown[n_shown] = 0;
}

static void test_all_cuts(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
        for (size_t cut = 1; cut <= strlen(cases[c].bytes); cut++) {
            char shown[1024];
            int index;

            run(c, cut, shown, &index);
            if (strcmp(shown, cases[c].shown) != 0 || index != cases[c].index) {
                /* Which of two stops is first complete may depend on how tokens fall; what is
                 * shown may not. */
                if (strcmp(shown, cases[c].shown) == 0 && index >= 0 && cases[c].index >= 0)
                    continue;
                fail_msg("%s, in pieces of %zu: \"%s\", stop %d", cases[c].why, cut, shown, index);
            }
        }
}

/* All at once, so that both are complete: the earlier in the text, then the first in the list. */
static void test_order(void **state) {
    static const struct {
        const char *stops[3], *bytes, *shown;
        int index;
    } orders[] = {
        {{"ab", "abc"}, "zabc", "z", 0},       {{"abc", "ab"}, "zabc", "z", 0},
        {{"q", "abcd", "a"}, "zabcd", "z", 1}, {{"q", "a", "abcd"}, "zabcd", "z", 1},
        {{"ab", "ab"}, "zab", "z", 0},         {{"c", "bc", "zb"}, "zbc", "", 2},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        struct stop_string strings[3] = {0};
        struct stop_text t = {.strings = strings};
        uint8_t scratch[STOP_STRING_BYTES_MAX + 64], out[2048];
        size_t n_out;

        for (; t.n_strings < 3 && orders[i].stops[t.n_strings]; t.n_strings++) {
            const char *stop = orders[i].stops[t.n_strings];

            strings[t.n_strings].n_bytes = (uint16_t)strlen(stop);
            memcpy(strings[t.n_strings].bytes, stop, strlen(stop));
        }
        assert_int_equal(stop_text_push(&t, (const uint8_t *)orders[i].bytes,
                                        strlen(orders[i].bytes), scratch, out, &n_out),
                         orders[i].index);
        assert_int_equal(n_out, strlen(orders[i].shown));
        assert_memory_equal(out, orders[i].shown, n_out);
        assert_int_equal(stop_text_end(&t, out), 0); /* nothing of it comes later */
    }
}

static void test_longest_stop(void **state) {
    struct stop_string s = {.n_bytes = STOP_STRING_BYTES_MAX};
    struct stop_text t = {.strings = &s, .n_strings = 1};
    uint8_t scratch[STOP_STRING_BYTES_MAX + 1], out[2048];
    size_t n_out = 0, n_all = 0;

    (void)state;
    memset(s.bytes, 'a', sizeof(s.bytes));
    for (int i = 0; i < STOP_STRING_BYTES_MAX - 1; i++) {
        assert_int_equal(stop_text_push(&t, (const uint8_t *)"a", 1, scratch, out, &n_out), -1);
        n_all += n_out;
    }
    assert_int_equal(n_all, 0); /* all may be the start of it */
    assert_int_equal(stop_text_push(&t, (const uint8_t *)"a", 1, scratch, out, &n_out), 0);
    assert_int_equal(n_out, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_cuts),
                                       cmocka_unit_test(test_order),
                                       cmocka_unit_test(test_longest_stop)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
