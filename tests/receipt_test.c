/* receipt: the digest of SPEC 2.12 against bytes put together by hand, the first difference named
 * for each kind of it, and a file that comes back as it was or is refused by the field's name. */
#include "tools/receipt.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/sha256.h"

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

static struct wire_submit submit_one(void) {
    struct wire_submit s = {.flags = WIRE_SUBMIT_DETERMINISTIC | WIRE_SUBMIT_SEED,
                            .max_tokens = 9,
                            .seed = UINT64_MAX, /* beyond what a JSON integer can be */
                            .temperature = 0x1.99999ap-1f,
                            .top_p = 1,
                            .min_p = 0x1p-149f,
                            .top_k = 7,
                            .n = 1,
                            .logprobs = 2,
                            .prompt_logprobs = 1,
                            .prompt_kind = WIRE_PROMPT_KIND_IDS,
                            .n_stop_ids = 1,
                            .stop_ids = {2},
                            .n_stop_strings = 2};

    s.stop_strings[0] = (struct wire_stop_string){(const uint8_t *)"\xff\0x", 3};
    s.stop_strings[1] = (struct wire_stop_string){(const uint8_t *)"end", 3};
    return s;
}

/* Prompt 1 2 3 with its logprobs, output 5 6 with one most probable each. */
static void fill(struct receipt *r) {
    static const uint8_t prompt[] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0};
    static const uint8_t ids[] = {5, 0, 0, 0, 6, 0, 0, 0};
    struct wire_submit s = submit_one();
    const struct wire_prompt p = {.data = prompt, .n_data = sizeof(prompt)};
    const struct wire_tokens t = {
        .n_tokens = 2, .ids = ids, .n_text = 5, .text = (const uint8_t *)"a\0\xff\"b"};
    struct wire_logprob records[4] = {{5, 0xbf800000}, {4, 0xbf000000}, {6, 0x7fffffff}, {6, 1}};
    struct wire_logprob of_prompt[2] = {{2, 0xc0000000}, {3, 0x80000000}};
    uint8_t bytes[256];
    struct wire_frame f;
    struct wire_logprobs l;
    size_t n;

    receipt_open(r, &s);
    assert_int_equal(receipt_prompt_add(r, &p), 0);
    assert_int_equal(receipt_tokens_add(r, &t), 0);
    n = wire_write_logprobs(bytes, sizeof(bytes), WIRE_LOGPROBS, 1, 0, records, 2, 1);
    assert_true(wire_read(bytes, n, WIRE_PAYLOAD_DEFAULT, &f) > 0);
    assert_int_equal(wire_read_logprobs(&f, &l), 0);
    assert_int_equal(receipt_logprobs_add(r, &l, false), 0);
    n = wire_write_logprobs(bytes, sizeof(bytes), WIRE_PROMPT_LOGPROBS, 1, 1, of_prompt, 2, 0);
    assert_true(wire_read(bytes, n, WIRE_PAYLOAD_DEFAULT, &f) > 0);
    assert_int_equal(wire_read_logprobs(&f, &l), 0);
    assert_int_equal(receipt_logprobs_add(r, &l, true), 0);
    r->end.finish = WIRE_FINISH_STOP;
    r->end.stop_kind = WIRE_STOP_STRING;
    r->end.stop_index = 1;
    r->version = 1;
    strcpy(r->model, "verse-4m");
    memset(r->fingerprint, 0xab, sizeof(r->fingerprint));
    assert_true(receipt_digest(r, r->end.digest));
    r->done = true;
}

static void test_digest(void **state) {
    static const uint8_t want_of[] = {'l', 'l', 'm', '4', '2', ' ',  'd',  'i',  'g',  'e',
                                      's', 't', ' ', 'v', '1', 0, /* head */
                                      1,   2,   0,   0,   0,   0,    0,    0,    0xc0, 0,
                                      0, /* prompt */
                                      1,   3,   0,   0,   0,   0,    0,    0,    0x80, 0,
                                      0, /* prompt */
                                      2,   5,   0,   0,   0,   0,    0,    0x80, 0xbf, 1,
                                      0,   4,   0,   0,   0,   0,    0,    0,    0xbf, /* output */
                                      2,   6,   0,   0,   0,   0xff, 0xff, 0xff, 0x7f, 1,
                                      0,   6,   0,   0,   0,   1,    0,    0,    0, /* output */
                                      3,   1};
    uint8_t want[SHA256_BYTES], got[SHA256_BYTES];
    struct receipt r;

    (void)state;
    fill(&r);
    sha256_of(want_of, sizeof(want_of), want);
    assert_true(receipt_digest(&r, got));
    assert_memory_equal(got, want, sizeof(want));
    r.end.finish = WIRE_FINISH_LENGTH;
    assert_true(receipt_digest(&r, got));
    assert_memory_not_equal(got, want, sizeof(want));
    r.submit.logprobs = 0;
    assert_false(receipt_digest(&r, got)); /* unknown, not wrong */
    receipt_close(&r);
}

enum change {
    NOTHING,
    FINGERPRINT,
    PROMPT_ID,
    PROMPT_SHORT,
    PROMPT_BITS,
    OUTPUT_ID,
    OUTPUT_BITS,
    TOP_ID,
    TOP_BITS,
    SHORTER,
    FINISH,
    DIGEST,
    TWO_AT_ONCE,
    LOGPROB_BEFORE_ID,
};

static void test_compare(void **state) {
    static const struct {
        const char *why;
        enum change change;
        enum receipt_difference want;
        size_t token;
    } cases[] = {
        {"the same", NOTHING, RECEIPT_EQUAL, 2},
        {"another server", FINGERPRINT, RECEIPT_FINGERPRINT, 0},
        {"a prompt id", PROMPT_ID, RECEIPT_PROMPT, 1},
        {"a prompt cut", PROMPT_SHORT, RECEIPT_PROMPT, 2},
        {"a prompt logprob's last bit", PROMPT_BITS, RECEIPT_PROMPT_LOGPROB, 2},
        {"an id", OUTPUT_ID, RECEIPT_ID, 1},
        {"a logprob's last bit, the ids equal", OUTPUT_BITS, RECEIPT_LOGPROB, 1},
        {"another most probable token", TOP_ID, RECEIPT_TOP, 0},
        {"its logprob", TOP_BITS, RECEIPT_TOP, 1},
        {"one ended earlier", SHORTER, RECEIPT_LENGTH, 1},
        {"finish", FINISH, RECEIPT_FINISH, 2},
        {"the digest alone", DIGEST, RECEIPT_DIGEST, 2},
        {"the fingerprint goes first", TWO_AT_ONCE, RECEIPT_FINGERPRINT, 0},
        {"a logprob at 0, then an id at 1: where it began", LOGPROB_BEFORE_ID, RECEIPT_LOGPROB, 0},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        struct receipt a, b;
        enum receipt_difference d;
        size_t token;

        fill(&a);
        fill(&b);
        switch (cases[i].change) {
        case FINGERPRINT:
            b.fingerprint[31] ^= 1;
            break;
        case PROMPT_ID:
            b.prompt.values[1]++;
            break;
        case PROMPT_SHORT:
            b.prompt.n--;
            break;
        case PROMPT_BITS:
            b.prompt_records.values[3] ^= 1;
            break;
        case OUTPUT_ID:
            b.ids.values[1]++, b.records.values[4]++;
            break;
        case OUTPUT_BITS:
            b.records.values[5] ^= 1;
            break;
        case TOP_ID:
            b.records.values[2]++;
            break;
        case TOP_BITS:
            b.records.values[7] ^= 1;
            break;
        case SHORTER:
            b.ids.n--, b.records.n -= 4;
            break;
        case FINISH:
            b.end.finish++;
            break;
        case DIGEST:
            b.end.digest[0] ^= 1;
            break;
        case TWO_AT_ONCE:
            b.ids.values[0]++, b.fingerprint[0]++;
            break;
        case LOGPROB_BEFORE_ID:
            b.records.values[1] ^= 1, b.ids.values[1]++, b.records.values[4]++;
            break;
        case NOTHING:
            break;
        }
        d = receipt_compare(&a, &b, &token);
        if (d != cases[i].want || token != cases[i].token)
            print_error("%s: %d at %zu\n", cases[i].why, (int)d, token);
        assert_int_equal(d, cases[i].want);
        assert_int_equal(token, cases[i].token);
        receipt_close(&a);
        receipt_close(&b);
    }
}

/* ---- The file ---- */

static char path[] = "/tmp/receipt_test.XXXXXX";

static int make_path(void **state) {
    int fd = mkstemp(path);

    (void)state;
    return fd < 0 || close(fd) != 0;
}

static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

static void test_file(void **state) {
    char why[RECEIPT_TEXT_BYTES];
    struct receipt a, b;
    size_t token;

    (void)state;
    fill(&a);
    assert_int_equal(receipt_write(&a, path, why), 0);
    assert_int_equal(receipt_read(path, &b, why), 0);
    assert_int_equal(receipt_compare(&a, &b, &token), RECEIPT_EQUAL);
    assert_true(b.submit.seed == UINT64_MAX);
    assert_memory_equal(&b.submit.temperature, &a.submit.temperature, 4);
    assert_memory_equal(&b.submit.min_p, &a.submit.min_p, 4);
    assert_int_equal(b.submit.flags, a.submit.flags);
    assert_int_equal(b.submit.top_k, 7);
    assert_int_equal(b.submit.n_stop_ids, 1);
    assert_int_equal(b.submit.n_stop_strings, 2);
    assert_int_equal(b.submit.stop_strings[0].n_bytes, 3);
    assert_memory_equal(b.submit.stop_strings[0].bytes, "\xff\0x", 3);
    assert_int_equal(b.end.stop_index, 1);
    assert_string_equal(b.model, "verse-4m");
    receipt_close(&a);
    receipt_close(&b);
    assert_int_equal(receipt_read("/nonexistent", &b, why), -ENOENT);
    fill(&a);
    assert_int_equal(receipt_write(&a, "/nonexistent/x", why), -ENOENT);
    receipt_close(&a);
}

static void put_file(const char *text, size_t n_bytes) {
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n_bytes, f), n_bytes);
    assert_int_equal(fclose(f), 0);
}

/* Each value replaced by one that it cannot be: refused, and the field is named. */
static void test_bad_files(void **state) {
    static const struct {
        const char *from, *to, *field;
    } cases[] = {
        {"\"llm42_receipt\":1", "\"llm42_receipt\":2", "llm42_receipt"},
        {"\"prompt\":[1", "\"prompt\":[-1", "prompt"},
        {"\"prompt\":[1", "\"prompt\":[4294967296", "prompt"},
        {"\"max_tokens\":9", "\"max_tokens\":9.5", "max_tokens"},
        {"\"18446744073709551615\"", "\"18446744073709551616\"", "seed"},
        {"3f4ccccd", "3f4cccc", "temperature"},
        {"3f4ccccd", "3F4CCCCD", "temperature"},
        {"\"top_k\":7", "\"top_k\":\"7\"", "top_k"},
        {"\"logprobs\":2", "\"logprobs\":22", "logprobs"},
        {"\"logprobs\":2", "\"logprobs\":3", "logprobs"},
        {"\"stop_ids\":[2]", "\"stop_ids\":2", "stop_ids"},
        {"ff0078", "ff007", "stop_hex"},
        {"ff0078", "", "stop_hex"},
        {"\"tokens\":[5", "\"tokens\":[4", "logprobs"},
        {"\"tokens\":[5,", "\"tokens\":[", "logprobs"},
        {"bf800000", "bf80000", "logprobs"},
        {"\"stop\",", "\"stopped\",", "finish_reason"},
        {"\"stop_kind\":2", "\"stop_kind\":256", "stop_kind"},
        {"\"stop_index\":1", "\"stop_index\":65536", "stop_index"},
        {"\"fingerprint\":\"ab", "\"fingerprint\":\"", "fingerprint"},
        {"\"digest\":\"", "\"digest\":\"00", "digest"},
        {"\"reply\":{", "\"answer\":{", "tokens"},
    };
    char why[RECEIPT_TEXT_BYTES], text[4096], changed[4096], *place;
    struct receipt r;
    size_t n;
    FILE *f;

    (void)state;
    fill(&r);
    assert_int_equal(receipt_write(&r, path, why), 0);
    receipt_close(&r);
    f = fopen(path, "r");
    assert_non_null(f);
    n = fread(text, 1, sizeof(text) - 1, f);
    text[n] = '\0';
    fclose(f);
    for (size_t i = 0; i < N_OF(cases); i++) {
        place = strstr(text, cases[i].from);
        if (!place) print_error("%s is not there\n", cases[i].from);
        assert_non_null(place);
        snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(place - text), text, cases[i].to,
                 place + strlen(cases[i].from));
        put_file(changed, strlen(changed));
        assert_int_equal(receipt_read(path, &r, why), -EINVAL);
        snprintf(changed, sizeof(changed), "\"%s\"", cases[i].field);
        if (!strstr(why, changed)) print_error("%s: %s\n", cases[i].to, why);
        assert_non_null(strstr(why, changed));
    }
    for (size_t cut = 0; cut + 1 < n; cut += 7) {
        put_file(text, cut);
        assert_int_equal(receipt_read(path, &r, why), -EINVAL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_bad_files),
    };

    return cmocka_run_group_tests_name("receipt", tests, make_path, remove_path);
}
