/* wire: golden bytes of every frame, every length around the right one, every reserved byte, every
 * range at its border, and round trips of what random bytes can be read as. */
#include "daemon/wire.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

enum { BUF_BYTES = 4096 };

static uint8_t buf[BUF_BYTES];

static struct wire_frame frame_of(const uint8_t *bytes, size_t n_bytes) {
    struct wire_frame f = {0};

    assert_int_equal(wire_read(bytes, n_bytes, WIRE_PAYLOAD_DEFAULT, &f), n_bytes);
    return f;
}

static size_t unhex(const char *hex, uint8_t *out) {
    size_t n = 0;
    unsigned byte;

    for (; *hex; hex++) {
        if (*hex == ' ') continue;
        assert_int_equal(sscanf(hex, "%2x", &byte), 1);
        out[n++] = (uint8_t)byte;
        hex++;
    }
    return n;
}

static void same(const char *why, const uint8_t *got, size_t n_got, const char *hex) {
    uint8_t want[BUF_BYTES];
    size_t n_want = unhex(hex, want);

    if (n_got != n_want || memcmp(got, want, n_want) != 0) {
        print_error("%s: got ", why);
        for (size_t i = 0; i < n_got; i++) print_error("%02x", got[i]);
        print_error("\n");
    }
    assert_int_equal(n_got, n_want);
    assert_memory_equal(got, want, n_want);
}

/* ---- One value of each kind, and its bytes as SPEC 6.10 shows them ---- */

static const struct wire_hello hello = {.version_min = 1,
                                        .version_max = 1,
                                        .features = 1ull << 63,
                                        .payload_max = 65536,
                                        .credit = 1048576,
                                        .name = "llm42ctl",
                                        .n_name = 8};
static const char hello_hex[] = "24000000 0100 0000 0000000000000000 4c4c3432 0100 0100 "
                                "0000000000000080 00000100 00001000 0800 0000 6c6c6d343263746c";

static struct wire_submit submit_one(void) {
    struct wire_submit s = {.flags = WIRE_SUBMIT_DETERMINISTIC | WIRE_SUBMIT_SEED,
                            .max_tokens = 16,
                            .seed = 42,
                            .temperature = 0.5f,
                            .top_p = 1,
                            .n = 1,
                            .logprobs = 1,
                            .prompt_kind = WIRE_PROMPT_KIND_TEXT,
                            .prompt_bytes = 5,
                            .n_stop_ids = 2,
                            .stop_ids = {2, 7},
                            .n_stop_strings = 1};

    s.stop_strings[0] = (struct wire_stop_string){(const uint8_t *)"\n\n", 2};
    return s;
}
static const char submit_hex[] =
    "54000000 0200 0000 0100000000000000 21000000 10000000 2a00000000000000 0000003f 0000803f "
    "00000000 00000000 0100 0100 0000 00 02 00000000 00000000 05000000 00000000 "
    "0100 0000 08000000 02000000 07000000 0200 0000 04000000 0200 0a0a";

static const struct wire_hello_ok hello_ok = {.version = 1,
                                              .payload_max = 65536,
                                              .credit = 1048576,
                                              .epoch = 0x1122334455667788,
                                              .context = 2048,
                                              .vocab = 49152,
                                              .requests_max = 256,
                                              .text_bytes_max = 1 << 20,
                                              .top_max = 20,
                                              .fingerprint = {0xaa, 0xbb},
                                              .model = "verse-4m",
                                              .n_model = 8};
static const char hello_ok_hex[] =
    "58000000 0180 0000 0000000000000000 0100 1400 00000100 0000000000000000 8877665544332211 "
    "00001000 00080000 00c00000 00010000 00001000 0800 0000 "
    "aabb000000000000000000000000000000000000000000000000000000000000 76657273652d346d";

static const struct wire_accepted accepted = {.server_id = 9,
                                              .flags = 0x21,
                                              .max_tokens = 16,
                                              .seed = 42,
                                              .temperature = 0.5f,
                                              .top_p = 1,
                                              .top_k = 3,
                                              .n_prompt = 2,
                                              .queue_place = 1,
                                              .logprobs = 1,
                                              .prompt_logprobs = 2,
                                              .n_stop_ids = 3,
                                              .policy = WIRE_POLICY_AUTO,
                                              .window = 32};
static const char accepted_hex[] =
    "40000000 0280 0000 0100000000000000 0900000000000000 2a00000000000000 21000000 10000000 "
    "0000003f 0000803f 00000000 03000000 02000000 01000000 03000000 20000000 0100 0200 02 000000";

static struct wire_done done_one(void) {
    struct wire_done d = {.finish = WIRE_FINISH_STOP,
                          .stop_kind = WIRE_STOP_STRING,
                          .stop_index = 1,
                          .n_prompt = 2,
                          .n_output = 3,
                          .n_cached = 4,
                          .verify_passes = 5,
                          .rollbacks = 6,
                          .recomputed = 7,
                          .certified = 8,
                          .queue_us = 9,
                          .prefill_us = 10,
                          .decode_us = 11,
                          .total_us = 12};

    memset(d.digest, 0xdd, sizeof(d.digest));
    memset(d.fingerprint, 0xff, sizeof(d.fingerprint));
    return d;
}
static const char done_hex[] =
    "80000000 0680 0000 0100000000000000 01 02 0100 02000000 03000000 04000000 05000000 06000000 "
    "07000000 08000000 dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd "
    "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff 0900000000000000 "
    "0a00000000000000 0b00000000000000 0c00000000000000";

static const uint32_t ids[] = {104, 105};
static const char tokens_hex[] = "16000000 0380 0000 0100000000000000 05000000 02000000 02000000 "
                                 "68000000 69000000 6869";
static const struct wire_logprob records[] = {
    {104, 0xbf800000}, {104, 0xbf800000}, {9, 0xc0000000}};
static const char logprobs_hex[] =
    "24000000 0480 0000 0100000000000000 05000000 01000000 0200 0000 68000000 000080bf "
    "68000000 000080bf 09000000 000000c0";
static const struct wire_error error = {.code = WIRE_E_FIELD,
                                        .class = WIRE_CLASS_CLIENT,
                                        .retry_100ms = 0,
                                        .field = WIRE_F_TOP_P,
                                        .text = "no",
                                        .n_text = 2};
static const char error_hex[] = "0a000000 0780 0000 0100000000000000 0500 01 00 05000000 6e6f";
static const struct wire_tokenize tokenize = {.kind = WIRE_PROMPT_KIND_TEXT,
                                              .flags = WIRE_SUBMIT_RAW,
                                              .data = (const uint8_t *)"hi",
                                              .n_data = 2};
static const char tokenize_hex[] = "06000000 0700 0000 0100000000000000 02 08 0000 6869";
static const struct wire_prompt prompt = {
    .last = true, .data = (const uint8_t *)"hello", .n_data = 5};
static const char prompt_hex[] = "09000000 0300 0000 0100000000000000 01 000000 68656c6c6f";

static size_t write_one(int which, uint8_t *out, size_t n_max) {
    struct wire_submit s = submit_one();
    struct wire_done d = done_one();

    switch (which) {
    case 0:
        return wire_write_hello(out, n_max, &hello);
    case 1:
        return wire_write_submit(out, n_max, 1, &s);
    case 2:
        return wire_write_hello_ok(out, n_max, &hello_ok);
    case 3:
        return wire_write_accepted(out, n_max, 1, &accepted);
    case 4:
        return wire_write_done(out, n_max, 1, &d);
    case 5:
        return wire_write_tokens(out, n_max, 1, 5, ids, 2, (const uint8_t *)"hi", 2);
    case 6:
        return wire_write_logprobs(out, n_max, WIRE_LOGPROBS, 1, 5, records, 1, 2);
    case 7:
        return wire_write_error(out, n_max, 1, &error);
    case 8:
        return wire_write_tokenize(out, n_max, 1, &tokenize);
    case 9:
        return wire_write_prompt(out, n_max, 1, &prompt);
    case 10:
        return wire_write_u32(out, n_max, WIRE_CREDIT, 0, 4096);
    case 11:
        return wire_write_u64(out, n_max, WIRE_ADMIN_CANCEL, 1, 9);
    case 12:
        return wire_write(out, n_max, WIRE_PING, 1, "42", 2);
    case 13:
        return wire_write_part(out, n_max, WIRE_INFO_OK, 1, &prompt);
    default:
        return 0;
    }
}

static const struct {
    const char *why, *hex;
    bool longer_is_fine, shorter_is_fine; /* the payload's end is data, or ignored */
} kinds[] = {
    {"HELLO", hello_hex, true, false},
    {"SUBMIT", submit_hex, false, false},
    {"HELLO_OK", hello_ok_hex, true, false},
    {"ACCEPTED", accepted_hex, false, false},
    {"DONE", done_hex, false, false},
    {"TOKENS", tokens_hex, false, false},
    {"LOGPROBS", logprobs_hex, false, false},
    {"ERROR", error_hex, true, true},
    {"TOKENIZE", tokenize_hex, true, true},
    {"PROMPT", prompt_hex, true, true},
    {"CREDIT", "04000000 0500 0000 0000000000000000 00100000", false, false},
    {"ADMIN_CANCEL", "08000000 4000 0000 0100000000000000 0900000000000000", false, false},
    {"PING", "02000000 0600 0000 0100000000000000 3432", true, true},
    {"INFO_OK", "09000000 0a80 0000 0100000000000000 01 000000 68656c6c6f", true, true},
};

/* Any reader for a frame, by its type; the result alone. */
static int read_any(const struct wire_frame *f) {
    struct wire_hello h;
    struct wire_hello_ok ok;
    struct wire_submit s;
    struct wire_prompt p;
    struct wire_accepted a;
    struct wire_tokens t;
    struct wire_logprobs l;
    struct wire_done d;
    struct wire_error e;
    struct wire_tokenize k;
    struct wire_fault fault = {0};
    uint32_t u32;
    uint64_t u64;
    int r;

    switch (f->type) {
    case WIRE_HELLO:
        r = wire_read_hello(f, &h, &fault);
        break;
    case WIRE_SUBMIT:
        r = wire_read_submit(f, &s, &fault);
        break;
    case WIRE_PROMPT:
        r = wire_read_prompt(f, &p, &fault);
        break;
    case WIRE_TOKENIZE:
        r = wire_read_tokenize(f, &k, &fault);
        break;
    case WIRE_HELLO_OK:
        return wire_read_hello_ok(f, &ok);
    case WIRE_INFO_OK:
        return wire_read_part(f, &p);
    case WIRE_ACCEPTED:
        return wire_read_accepted(f, &a);
    case WIRE_TOKENS:
        return wire_read_tokens(f, &t);
    case WIRE_LOGPROBS:
        return wire_read_logprobs(f, &l);
    case WIRE_DONE:
        return wire_read_done(f, &d);
    case WIRE_ERROR:
        return wire_read_error(f, &e);
    case WIRE_CREDIT:
        return wire_read_u32(f, &u32);
    case WIRE_ADMIN_CANCEL:
        return wire_read_u64(f, &u64);
    default:
        return 0;
    }
    /* Whoever refuses says what and why. */
    if (r != 0) {
        assert_non_null(fault.text);
        assert_int_not_equal(fault.code, 0);
        assert_string_not_equal(wire_field_name(fault.field), "unknown");
    }
    return r;
}

static void test_golden(void **state) {
    (void)state;
    for (size_t i = 0; i < N_OF(kinds); i++) {
        size_t n = write_one((int)i, buf, sizeof(buf));
        struct wire_frame f;

        same(kinds[i].why, buf, n, kinds[i].hex);
        f = frame_of(buf, n);
        assert_string_equal(wire_type_name(f.type), kinds[i].why);
        assert_int_equal(read_any(&f), 0);
    }
}

/* A writer fits exactly or writes nothing; a reader takes exactly its length. */
static void test_lengths(void **state) {
    (void)state;
    for (size_t i = 0; i < N_OF(kinds); i++) {
        size_t n = write_one((int)i, buf, sizeof(buf));
        uint8_t *exact = malloc(n + 1); /* of the very size, for the sanitizer to watch */
        struct wire_frame f;

        assert_non_null(exact);
        for (size_t m = 0; m < n; m++) assert_int_equal(write_one((int)i, exact, m), 0);
        assert_int_equal(write_one((int)i, exact, n), n);
        for (size_t m = 0; m < n; m++)
            assert_int_equal(wire_read(exact, m, WIRE_PAYLOAD_DEFAULT, &f), -EAGAIN);
        assert_int_equal(wire_read(exact, n, WIRE_PAYLOAD_DEFAULT, &f), n);
        free(exact);
        for (uint32_t cut = 1; cut <= f.payload_bytes; cut++) {
            uint32_t m = f.payload_bytes - cut;
            uint8_t *payload = malloc(m + 1);
            struct wire_frame shorter = frame_of(buf, n);

            assert_non_null(payload);
            memcpy(payload, buf + WIRE_HEADER_BYTES, m);
            shorter.payload = payload;
            shorter.payload_bytes = m;
            if (!kinds[i].shorter_is_fine) {
                /* SUBMIT without its last list is whole. */
                if (f.type != WIRE_SUBMIT || (m != 56 && m != 72))
                    assert_int_equal(read_any(&shorter), -EBADMSG);
            } else {
                (void)read_any(&shorter);
            }
            free(payload);
        }
        f = frame_of(buf, n);
        buf[n] = 0;
        f.payload_bytes++;
        assert_int_equal(read_any(&f), kinds[i].longer_is_fine ? 0 : -EBADMSG);
    }
}

static void test_reserved(void **state) {
    static const struct {
        int kind;
        size_t from, n;
    } reserved[] = {{0, 26, 2}, {1, 52, 4}, {1, 58, 2}, {1, 74, 2}, {2, 46, 2},
                    {3, 61, 3}, {6, 10, 2}, {8, 2, 2},  {9, 1, 3},  {13, 1, 3}};

    (void)state;
    for (size_t i = 0; i < N_OF(reserved); i++)
        for (size_t at = 0; at < reserved[i].n; at++)
            for (int bit = 0; bit < 8; bit++) {
                size_t n = write_one(reserved[i].kind, buf, sizeof(buf));
                struct wire_frame f = frame_of(buf, n);

                buf[WIRE_HEADER_BYTES + reserved[i].from + at] |= (uint8_t)(1 << bit);
                assert_int_equal(read_any(&f), -EBADMSG);
            }
}

static void test_header(void **state) {
    struct wire_frame f;
    size_t n = wire_write(buf, sizeof(buf), WIRE_CANCEL, 7, NULL, 0);

    (void)state;
    assert_int_equal(n, WIRE_HEADER_BYTES);
    assert_int_equal(frame_of(buf, n).request, 7);
    /* A hostile length is refused as soon as it is there, not waited for. */
    memcpy(buf, "\x01\x00\x01\x00", 4);
    assert_int_equal(wire_read(buf, 3, WIRE_PAYLOAD_DEFAULT, &f), -EAGAIN);
    assert_int_equal(wire_read(buf, 4, WIRE_PAYLOAD_DEFAULT, &f), -EBADMSG);
    assert_int_equal(wire_read(buf, 4, WIRE_PAYLOAD_MAX, &f), -EAGAIN);
    memcpy(buf, "\x00\x00\x01\x00", 4);
    assert_int_equal(wire_read(buf, 16, WIRE_PAYLOAD_DEFAULT, &f), -EAGAIN);
    memset(buf, 0xff, 4);
    assert_int_equal(wire_read(buf, 4, UINT32_MAX, &f), -EBADMSG);
    for (int bit = 0; bit < 16; bit++) {
        n = wire_write(buf, sizeof(buf), WIRE_CANCEL, 7, NULL, 0);
        buf[6 + bit / 8] = (uint8_t)(1 << bit % 8);
        assert_int_equal(wire_read(buf, n, WIRE_PAYLOAD_DEFAULT, &f), -EBADMSG);
    }
}

static void test_payload_max(void **state) {
    size_t n_max = WIRE_HEADER_BYTES + WIRE_PAYLOAD_MAX + 1;
    uint8_t *big = calloc(1, n_max), *out = malloc(n_max);

    (void)state;
    assert_non_null(big);
    assert_non_null(out);
    assert_int_equal(wire_write(out, n_max, WIRE_DETOKENIZE, 1, big, WIRE_PAYLOAD_MAX), n_max - 1);
    assert_int_equal(wire_write(out, n_max, WIRE_DETOKENIZE, 1, big, WIRE_PAYLOAD_MAX + 1), 0);
    free(big);
    free(out);
}

/* ---- Ranges of SUBMIT ---- */

struct field_case {
    const char *why;
    size_t at;      /* in the fixed part */
    uint32_t n;     /* bytes */
    uint64_t value; /* or the bits of `real` where n is 0 */
    float real;
    uint32_t field; /* WIRE_F_NONE: it is taken */
    uint16_t code;
};

static const struct field_case field_cases[] = {
    {"a flag that is none", 0, 4, 1 << 7, 0, WIRE_F_FLAGS, WIRE_E_UNSUPPORTED},
    {"the last flag", 0, 4, 1u << 31, 0, WIRE_F_FLAGS, WIRE_E_UNSUPPORTED},
    {"a seed without its flag", 0, 4, 1, 0, WIRE_F_SEED, WIRE_E_FIELD},
    {"all flags", 0, 4, WIRE_SUBMIT_FLAGS_ALL, 0, WIRE_F_NONE, 0},
    {"no tokens and no prompt logprobs", 4, 4, 0, 0, WIRE_F_MAX_TOKENS, WIRE_E_FIELD},
    {"one token", 4, 4, 1, 0, WIRE_F_NONE, 0},
    {"more than any context, for the engine to judge", 4, 4, UINT32_MAX, 0, WIRE_F_NONE, 0},
    {"temperature below", 16, 0, 0, 0x1.fffffep-8f, WIRE_F_TEMPERATURE, WIRE_E_FIELD},
    {"the least", 16, 0, 0, 0x1p-7f, WIRE_F_NONE, 0},
    {"the most", 16, 0, 0, 128, WIRE_F_NONE, 0},
    {"above", 16, 0, 0, 0x1.000002p7f, WIRE_F_TEMPERATURE, WIRE_E_FIELD},
    {"negative", 16, 0, 0, -1, WIRE_F_TEMPERATURE, WIRE_E_FIELD},
    {"minus zero is zero", 16, 4, 0x80000000, 0, WIRE_F_NONE, 0},
    {"denormal", 16, 4, 1, 0, WIRE_F_TEMPERATURE, WIRE_E_FIELD},
    {"NaN", 16, 4, 0x7fc00000, 0, WIRE_F_TEMPERATURE, WIRE_E_FIELD},
    {"minus NaN", 16, 4, 0xffc00000, 0, WIRE_F_TEMPERATURE, WIRE_E_FIELD},
    {"infinity", 16, 4, 0x7f800000, 0, WIRE_F_TEMPERATURE, WIRE_E_FIELD},
    {"top_p 0", 20, 4, 0, 0, WIRE_F_TOP_P, WIRE_E_FIELD},
    {"top_p -0", 20, 4, 0x80000000, 0, WIRE_F_TOP_P, WIRE_E_FIELD},
    {"top_p denormal", 20, 4, 1, 0, WIRE_F_NONE, 0},
    {"top_p above 1", 20, 4, 0x3f800001, 0, WIRE_F_TOP_P, WIRE_E_FIELD},
    {"top_p NaN", 20, 4, 0x7fc00000, 0, WIRE_F_TOP_P, WIRE_E_FIELD},
    {"min_p 1", 24, 0, 0, 1, WIRE_F_NONE, 0},
    {"min_p above 1", 24, 4, 0x3f800001, 0, WIRE_F_MIN_P, WIRE_E_FIELD},
    {"min_p negative", 24, 4, 0x80000001, 0, WIRE_F_MIN_P, WIRE_E_FIELD},
    {"min_p NaN", 24, 4, 0x7fffffff, 0, WIRE_F_MIN_P, WIRE_E_FIELD},
    {"top_k at its limit", 28, 4, INT32_MAX, 0, WIRE_F_NONE, 0},
    {"top_k -1", 28, 4, UINT32_MAX, 0, WIRE_F_TOP_K, WIRE_E_FIELD},
    {"top_k 2^31", 28, 4, 1u << 31, 0, WIRE_F_TOP_K, WIRE_E_FIELD},
    {"n 0", 32, 2, 0, 0, WIRE_F_N, WIRE_E_FIELD},
    {"n 2", 32, 2, 2, 0, WIRE_F_N, WIRE_E_FIELD},
    {"n 65535", 32, 2, 65535, 0, WIRE_F_N, WIRE_E_FIELD},
    {"logprobs at the limit", 34, 2, 21, 0, WIRE_F_NONE, 0},
    {"logprobs over it", 34, 2, 22, 0, WIRE_F_LOGPROBS, WIRE_E_FIELD},
    {"prompt_logprobs at the limit", 36, 2, 21, 0, WIRE_F_NONE, 0},
    {"prompt_logprobs over it", 36, 2, 22, 0, WIRE_F_PROMPT_LOGPROBS, WIRE_E_FIELD},
    {"priority 1", 38, 1, 1, 0, WIRE_F_PRIORITY, WIRE_E_FIELD},
    {"priority -1", 38, 1, 255, 0, WIRE_F_PRIORITY, WIRE_E_FIELD},
    {"prompt kind 0", 39, 1, 0, 0, WIRE_F_PROMPT_KIND, WIRE_E_FIELD},
    {"chat", 39, 1, 3, 0, WIRE_F_NONE, 0},
    {"prompt kind 4", 39, 1, 4, 0, WIRE_F_PROMPT_KIND, WIRE_E_FIELD},
    {"ids, and bytes that are not whole ids", 39, 1, 1, 0, WIRE_F_PROMPT_BYTES, WIRE_E_PROMPT},
    {"any deadline", 44, 4, UINT32_MAX, 0, WIRE_F_NONE, 0},
    {"an empty prompt", 48, 4, 0, 0, WIRE_F_PROMPT_BYTES, WIRE_E_PROMPT},
};

static void test_fields(void **state) {
    (void)state;
    for (size_t i = 0; i < N_OF(field_cases); i++) {
        const struct field_case *c = &field_cases[i];
        size_t n = write_one(1, buf, sizeof(buf));
        struct wire_frame f = frame_of(buf, n);
        struct wire_fault fault = {0};
        struct wire_submit s;
        uint32_t bits;
        int r;

        memcpy(&bits, &c->real, 4);
        for (uint32_t j = 0; j < (c->n ? c->n : 4); j++)
            buf[WIRE_HEADER_BYTES + c->at + j] = (uint8_t)((c->n ? c->value : bits) >> 8 * j);
        r = wire_read_submit(&f, &s, &fault);
        if (r != (c->field ? -EINVAL : 0) || fault.field != c->field || fault.code != c->code)
            print_error("%s: %d, field %s: %s\n", c->why, r, wire_field_name(fault.field),
                        fault.text ? fault.text : "");
        assert_int_equal(r, c->field ? -EINVAL : 0);
        assert_int_equal(fault.field, c->field);
        assert_int_equal(fault.code, c->code);
        if (r == 0) assert_false(signbit(s.temperature));
    }
}

static void test_flags_that_need_a_kind(void **state) {
    struct wire_submit s = submit_one(), got;
    struct wire_fault fault;
    size_t n;

    (void)state;
    for (uint8_t kind = 1; kind <= 3; kind++)
        for (int flag = 2; flag <= 3; flag++) {
            bool fine = flag == 2 ? kind != 1 : kind == 2;
            struct wire_frame f;

            s.prompt_kind = kind;
            s.prompt_bytes = 8;
            s.flags = 1u << flag | WIRE_SUBMIT_SEED;
            n = wire_write_submit(buf, sizeof(buf), 1, &s);
            f = frame_of(buf, n);
            assert_int_equal(wire_read_submit(&f, &got, &fault), fine ? 0 : -EINVAL);
            if (!fine) assert_int_equal(fault.field, WIRE_F_FLAGS);
        }
}

/* ---- Tagged lists ---- */

static void test_tags(void **state) {
    static const struct {
        const char *why, *hex;
        int r;
        uint32_t field;
    } cases[] = {
        {"one id", "0100 0000 04000000 01000000", 0, 0},
        {"no id", "0100 0000 00000000", -EINVAL, WIRE_F_STOP_IDS},
        {"half an id", "0100 0000 02000000 0100", -EBADMSG, WIRE_F_TAG},
        {"twice the same", "0100 0000 04000000 01000000 0100 0000 04000000 01000000", -EBADMSG,
         WIRE_F_TAG},
        {"tags descend", "0200 0000 03000000 0100 61 0100 0000 04000000 01000000", -EBADMSG,
         WIRE_F_TAG},
        {"tag 0", "0000 0000 00000000", -EBADMSG, WIRE_F_TAG},
        {"no string", "0200 0000 00000000", -EINVAL, WIRE_F_STOP_STRINGS},
        {"an empty string", "0200 0000 02000000 0000", -EINVAL, WIRE_F_STOP_STRINGS},
        {"a string beyond its list", "0200 0000 03000000 0200 61", -EBADMSG, WIRE_F_TAG},
        {"half a length", "0200 0000 01000000 01", -EBADMSG, WIRE_F_TAG},
        {"a list beyond the frame", "0200 0000 ffffffff 0100 61", -EBADMSG, WIRE_F_TAG},
        {"logit bias", "0300 0000 00000000", -EINVAL, WIRE_F_TAG},
        {"allowed ids", "0400 0000 04000000 01000000", -EINVAL, WIRE_F_TAG},
        {"an unknown tag", "ffff 0000 00000000", -EINVAL, WIRE_F_TAG},
        {"an unknown tag, then malformed", "0300 0000 00000000 0300 0000 00000000", -EBADMSG,
         WIRE_F_TAG},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        struct wire_submit s = submit_one(), got;
        struct wire_fault fault = {0};
        struct wire_frame f;
        size_t n;
        int r;

        s.n_stop_ids = s.n_stop_strings = 0;
        n = wire_write_submit(buf, sizeof(buf), 1, &s);
        f = frame_of(buf, n);
        f.payload_bytes += (uint32_t)unhex(cases[i].hex, buf + n);
        r = wire_read_submit(&f, &got, &fault);
        if (r != cases[i].r) print_error("%s: %d\n", cases[i].why, r);
        assert_int_equal(r, cases[i].r);
        assert_int_equal(fault.field, cases[i].field);
    }
}

static void test_stop_limits(void **state) {
    static uint8_t text[WIRE_STOP_STRING_BYTES_MAX + 1];
    static uint8_t big[8192];
    struct wire_submit s = submit_one(), got;
    struct wire_fault fault;
    struct wire_frame f;

    (void)state;
    memset(text, 'x', sizeof(text));
    s.n_stop_ids = WIRE_STOP_IDS_MAX;
    s.n_stop_strings = WIRE_STOP_STRINGS_MAX;
    for (int i = 0; i < WIRE_STOP_STRINGS_MAX; i++)
        s.stop_strings[i] = (struct wire_stop_string){text, WIRE_STOP_STRING_BYTES_MAX};
    f = frame_of(big, wire_write_submit(big, sizeof(big), 1, &s));
    assert_int_equal(wire_read_submit(&f, &got, &fault), 0);
    assert_int_equal(got.n_stop_ids, WIRE_STOP_IDS_MAX);
    assert_int_equal(got.n_stop_strings, WIRE_STOP_STRINGS_MAX);
    assert_int_equal(got.stop_strings[15].n_bytes, WIRE_STOP_STRING_BYTES_MAX);
    /* One string more, by hand: writers refuse to. */
    memcpy(big + WIRE_HEADER_BYTES + f.payload_bytes, "\x01\x00x", 3);
    big[WIRE_HEADER_BYTES + 56 + 8 + 64 + 4] = (uint8_t)(16 * 258 + 3);
    big[WIRE_HEADER_BYTES + 56 + 8 + 64 + 5] = (uint8_t)((16 * 258 + 3) >> 8);
    f.payload_bytes += 3;
    assert_int_equal(wire_read_submit(&f, &got, &fault), -EINVAL);
    assert_int_equal(fault.field, WIRE_F_STOP_STRINGS);
    s.n_stop_ids = WIRE_STOP_IDS_MAX + 1;
    assert_int_equal(wire_write_submit(big, sizeof(big), 1, &s), 0);
    s.n_stop_ids = 0;
    s.n_stop_strings = WIRE_STOP_STRINGS_MAX + 1;
    assert_int_equal(wire_write_submit(big, sizeof(big), 1, &s), 0);
    s.n_stop_strings = 1;
    s.stop_strings[0].n_bytes = WIRE_STOP_STRING_BYTES_MAX + 1;
    assert_int_equal(wire_write_submit(big, sizeof(big), 1, &s), 0);
}

/* ---- HELLO ---- */

static void test_hello(void **state) {
    static const struct {
        const char *why;
        uint16_t min, max;
        uint32_t payload, credit;
        int r;
        uint16_t code;
    } cases[] = {
        {"a range with ours in it", 1, 65535, 0, 0, 0, 0},
        {"a version that is never given out", 65535, 65535, 0, 0, -EINVAL, WIRE_E_VERSION},
        {"only later ones", 2, 9, 0, 0, -EINVAL, WIRE_E_VERSION},
        {"upside down", 2, 1, 0, 0, -EINVAL, WIRE_E_VERSION},
        {"version 0", 0, 1, 0, 0, -EINVAL, WIRE_E_VERSION},
        {"the least frames", 1, 1, WIRE_PAYLOAD_MIN, 0, 0, 0},
        {"less", 1, 1, WIRE_PAYLOAD_MIN - 1, 0, -EINVAL, WIRE_E_FIELD},
        {"more is a wish", 1, 1, UINT32_MAX, 0, 0, 0},
        {"the least credit", 1, 1, 0, WIRE_CREDIT_MIN, 0, 0},
        {"less credit", 1, 1, 0, WIRE_CREDIT_MIN - 1, -EINVAL, WIRE_E_FIELD},
        {"the most credit", 1, 1, 0, WIRE_CREDIT_MAX, 0, 0},
        {"more credit", 1, 1, 0, WIRE_CREDIT_MAX + 1u, -EINVAL, WIRE_E_CREDIT},
    };
    static const char name[WIRE_NAME_MAX + 1];
    struct wire_hello h = hello, got;
    struct wire_fault fault = {0};
    struct wire_frame f;

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        h.version_min = cases[i].min;
        h.version_max = cases[i].max;
        h.payload_max = cases[i].payload;
        h.credit = cases[i].credit;
        f = frame_of(buf, wire_write_hello(buf, sizeof(buf), &h));
        assert_int_equal(wire_read_hello(&f, &got, &fault), cases[i].r);
        if (cases[i].r) assert_int_equal(fault.code, cases[i].code);
    }
    for (uint32_t n = WIRE_NAME_MAX; n <= WIRE_NAME_MAX + 1; n++) {
        h = hello;
        h.name = name;
        h.n_name = n;
        f = frame_of(buf, wire_write_hello(buf, sizeof(buf), &h));
        assert_int_equal(wire_read_hello(&f, &got, &fault), n > WIRE_NAME_MAX ? -EINVAL : 0);
    }
    f = frame_of(buf, wire_write_hello(buf, sizeof(buf), &hello));
    buf[WIRE_HEADER_BYTES] = 'G';
    assert_int_equal(wire_read_hello(&f, &got, NULL), -EBADMSG);
}

/* ---- The rest ---- */

static void test_values(void **state) {
    struct wire_submit s = submit_one(), s_got;
    struct wire_done d = done_one(), d_got;
    struct wire_accepted a_got;
    struct wire_tokens t;
    struct wire_logprobs l;
    struct wire_hello_ok h;
    struct wire_frame f;

    (void)state;
    f = frame_of(buf, wire_write_submit(buf, sizeof(buf), 1, &s));
    assert_int_equal(wire_read_submit(&f, &s_got, NULL), 0);
    assert_memory_equal(s_got.stop_strings[0].bytes, "\n\n", 2);
    s_got.stop_strings[0] = s.stop_strings[0]; /* not from where it is written to */
    same("SUBMIT again", buf, wire_write_submit(buf, sizeof(buf), 1, &s_got), submit_hex);
    f = frame_of(buf, wire_write_done(buf, sizeof(buf), 1, &d));
    assert_int_equal(wire_read_done(&f, &d_got), 0);
    assert_memory_equal(&d_got, &d, sizeof(d));
    f = frame_of(buf, wire_write_accepted(buf, sizeof(buf), 1, &accepted));
    assert_int_equal(wire_read_accepted(&f, &a_got), 0);
    assert_int_equal(a_got.server_id, 9);
    assert_int_equal(a_got.window, 32);
    assert_int_equal(a_got.policy, WIRE_POLICY_AUTO);
    f = frame_of(buf, write_one(5, buf, sizeof(buf)));
    assert_int_equal(wire_read_tokens(&f, &t), 0);
    assert_int_equal(wire_u32_at(t.ids, 1), 105);
    assert_memory_equal(t.text, "hi", 2);
    f = frame_of(buf, write_one(6, buf, sizeof(buf)));
    assert_int_equal(wire_read_logprobs(&f, &l), 0);
    assert_int_equal(wire_logprob_at(&l, 0, 0).id, 104);
    assert_int_equal(wire_logprob_at(&l, 0, 2).bits, 0xc0000000);
    f = frame_of(buf, write_one(2, buf, sizeof(buf)));
    assert_int_equal(wire_read_hello_ok(&f, &h), 0);
    assert_memory_equal(h.model, "verse-4m", 8);
    assert_int_equal(h.epoch, 0x1122334455667788);
}

static void test_counts_that_wrap(void **state) {
    struct wire_tokens t;
    struct wire_logprobs l;
    struct wire_frame f = frame_of(buf, write_one(5, buf, sizeof(buf)));

    (void)state;
    /* 4 * 2^30 is 0 in 32 bits. */
    memcpy(buf + WIRE_HEADER_BYTES + 4, "\x02\x00\x00\x40", 4);
    assert_int_equal(wire_read_tokens(&f, &t), -EBADMSG);
    f = frame_of(buf, write_one(6, buf, sizeof(buf)));
    memcpy(buf + WIRE_HEADER_BYTES + 4, "\x01\x00\x00\x20", 4);
    assert_int_equal(wire_read_logprobs(&f, &l), -EBADMSG);
    f = frame_of(buf, write_one(6, buf, sizeof(buf)));
    buf[WIRE_HEADER_BYTES + 8] = WIRE_TOP_MAX + 1;
    assert_int_equal(wire_read_logprobs(&f, &l), -EBADMSG);
    /* Nothing at all in it. */
    f = frame_of(buf, wire_write_tokens(buf, sizeof(buf), 1, 0, NULL, 0, NULL, 0));
    assert_int_equal(wire_read_tokens(&f, &t), -EBADMSG);
}

static void test_messages(void **state) {
    const struct wire_message in[] = {
        {WIRE_ROLE_SYSTEM, "be brief", 8}, {WIRE_ROLE_USER, "", 0}, {WIRE_ROLE_ASSISTANT, "so", 2}};
    struct wire_message m;
    size_t n = 0, at = 0;

    (void)state;
    for (size_t i = 0; i < N_OF(in); i++) {
        size_t one = wire_message_write(buf + n, sizeof(buf) - n, &in[i]);

        assert_int_equal(one, 8 + in[i].n_bytes);
        assert_int_equal(wire_message_write(buf + n, one - 1, &in[i]), 0);
        n += one;
    }
    for (size_t i = 0; i < N_OF(in); i++) {
        assert_int_equal(wire_message_read(buf, n, &at, &m), 1);
        assert_int_equal(m.role, in[i].role);
        assert_int_equal(m.n_bytes, in[i].n_bytes);
        assert_memory_equal(m.text, in[i].text, m.n_bytes);
    }
    assert_int_equal(wire_message_read(buf, n, &at, &m), 0);
    at = 16;
    assert_int_equal(wire_message_read(buf, 16 + 7, &at, &m), -EBADMSG);
    assert_int_equal(at, 16);
    at = 0;
    assert_int_equal(wire_message_read(buf, 15, &at, &m), -EBADMSG);
    buf[0] = 3;
    assert_int_equal(wire_message_read(buf, n, &at, &m), -EINVAL);
    buf[0] = 0;
    buf[2] = 1;
    assert_int_equal(wire_message_read(buf, n, &at, &m), -EBADMSG);
}

static void test_tokenize_and_error(void **state) {
    struct wire_tokenize t = tokenize, got;
    struct wire_error e = error, e_got;
    static const char text[WIRE_ERROR_TEXT_MAX + 1];
    struct wire_fault fault;
    struct wire_frame f;

    (void)state;
    t.kind = WIRE_PROMPT_KIND_IDS;
    f = frame_of(buf, wire_write_tokenize(buf, sizeof(buf), 1, &t));
    assert_int_equal(wire_read_tokenize(&f, &got, &fault), -EINVAL);
    assert_int_equal(fault.field, WIRE_F_PROMPT_KIND);
    t.kind = WIRE_PROMPT_KIND_CHAT;
    f = frame_of(buf, wire_write_tokenize(buf, sizeof(buf), 1, &t));
    assert_int_equal(wire_read_tokenize(&f, &got, &fault), -EINVAL);
    assert_int_equal(fault.field, WIRE_F_FLAGS);
    t.flags = WIRE_SUBMIT_IGNORE_EOS;
    f = frame_of(buf, wire_write_tokenize(buf, sizeof(buf), 1, &t));
    assert_int_equal(wire_read_tokenize(&f, &got, &fault), -EINVAL);
    assert_int_equal(fault.code, WIRE_E_UNSUPPORTED);
    e.text = text;
    e.n_text = WIRE_ERROR_TEXT_MAX;
    f = frame_of(buf, wire_write_error(buf, sizeof(buf), 1, &e));
    assert_int_equal(wire_read_error(&f, &e_got), 0);
    assert_int_equal(e_got.n_text, WIRE_ERROR_TEXT_MAX);
    f.payload_bytes++;
    assert_int_equal(wire_read_error(&f, &e_got), -EBADMSG);
    e.n_text++;
    assert_int_equal(wire_write_error(buf, sizeof(buf), 1, &e), 0);
}

static void test_names(void **state) {
    (void)state;
    for (uint16_t i = 1; i <= WIRE_E_CAPACITY; i++) {
        assert_string_not_equal(wire_code_name(i), "unknown");
        assert_string_not_equal(wire_class_name(wire_code_class(i)), "unknown");
    }
    assert_string_equal(wire_code_name(0), "unknown");
    assert_string_equal(wire_code_name(WIRE_E_CAPACITY + 1), "unknown");
    assert_int_equal(wire_code_class(999), WIRE_CLASS_SERVER);
    for (uint32_t i = 0; i <= WIRE_F_LAST; i++)
        assert_string_not_equal(wire_field_name(i), "unknown");
    assert_string_equal(wire_field_name(WIRE_F_LAST + 1), "unknown");
    assert_string_equal(wire_finish_name(WIRE_FINISH_DEADLINE), "deadline");
    assert_string_equal(wire_finish_name(0), "unknown");
    assert_string_equal(wire_policy_name(WIRE_POLICY_TUNED), "tuned");
}

/* Bytes of good frames with some of them changed: nothing is read that is not there (sanitizers
 * watch a buffer of the exact size), and whoever refuses says why. */
static void test_mutants(void **state) {
    uint64_t seed = 42;

    (void)state;
    for (int round = 0; round < 200000; round++) {
        size_t n = write_one(round % (int)N_OF(kinds), buf, sizeof(buf));
        uint32_t n_payload = (uint32_t)(n - WIRE_HEADER_BYTES);
        uint8_t *payload = malloc(n_payload + 1);
        struct wire_frame f = frame_of(buf, n);

        assert_non_null(payload);
        memcpy(payload, f.payload, n_payload);
        for (int k = 0; k < 1 + round % 3 && n_payload > 0; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            payload[(seed >> 40) % n_payload] = (uint8_t)(seed >> 33);
        }
        f.payload = payload;
        (void)read_any(&f);
        free(payload);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_reserved),
        cmocka_unit_test(test_header),
        cmocka_unit_test(test_payload_max),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_flags_that_need_a_kind),
        cmocka_unit_test(test_tags),
        cmocka_unit_test(test_stop_limits),
        cmocka_unit_test(test_hello),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_counts_that_wrap),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_tokenize_and_error),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_mutants),
    };

    return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
