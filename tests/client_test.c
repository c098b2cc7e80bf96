/* libllm42: a request's whole life against a server played from wire.c, in pieces of every size;
 * prompts that need many frames; credit that comes back; full buffers; and every way in which a
 * server can break the protocol, each with its words. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "tools/llm42.h"

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

enum { BYTES_MAX = 1 << 21 };

/* What the server has written and the client not yet read. */
struct server {
    uint8_t bytes[BYTES_MAX];
    size_t n;
};
static struct server server;

static uint8_t *at(void) {
    return server.bytes + server.n;
}

static size_t left(void) {
    return sizeof(server.bytes) - server.n;
}

static void wrote(size_t n) {
    assert_true(n > 0);
    server.n += n;
}

static void hello_ok(uint32_t payload_max, uint32_t credit) {
    const struct wire_hello_ok h = {.version = 1,
                                    .payload_max = payload_max,
                                    .credit = credit,
                                    .epoch = 7,
                                    .context = 2048,
                                    .vocab = 256,
                                    .requests_max = 8,
                                    .top_max = WIRE_TOP_MAX,
                                    .model = "fake",
                                    .n_model = 4};

    wrote(wire_write_hello_ok(at(), left(), &h));
}

static void accepted(uint64_t request, uint16_t logprobs, uint16_t prompt_logprobs,
                     uint32_t n_prompt) {
    const struct wire_accepted a = {.server_id = 3,
                                    .seed = 42,
                                    .top_p = 1,
                                    .n_prompt = n_prompt,
                                    .logprobs = logprobs,
                                    .prompt_logprobs = prompt_logprobs,
                                    .max_tokens = 16};

    wrote(wire_write_accepted(at(), left(), request, &a));
}

static void tokens(uint64_t request, uint32_t first, uint32_t n) {
    uint32_t ids[16] = {5, 6, 7, 8};

    wrote(wire_write_tokens(at(), left(), request, first, ids, n, (const uint8_t *)"ab", 2));
}

static void logprobs(uint16_t type, uint64_t request, uint32_t first, uint32_t n, uint16_t n_top) {
    struct wire_logprob records[64] = {{5, 0xbf800000}};

    wrote(wire_write_logprobs(at(), left(), type, request, first, records, n, n_top));
}

static void done(uint64_t request, uint8_t finish, uint32_t n_output) {
    const struct wire_done d = {.finish = finish, .n_output = n_output, .n_prompt = 2};

    wrote(wire_write_done(at(), left(), request, &d));
}

static void error(uint64_t request, uint16_t code) {
    const struct wire_error e = {
        .code = code, .class = wire_code_class(code), .text = "no", .n_text = 2};

    wrote(wire_write_error(at(), left(), request, &e));
}

static void part(uint16_t type, uint64_t request, bool last, const char *data, uint32_t n) {
    const struct wire_prompt p = {.last = last, .data = (const uint8_t *)data, .n_data = n};

    wrote(wire_write_part(at(), left(), type, request, &p));
}

/* Gives the client what was written, `piece` bytes at a time (0: all), and takes one event. */
static int next(struct llm42 *c, size_t piece, struct llm42_event *out) {
    int r = llm42_next(c, out);
    size_t from = 0;

    while (r == 0 && from < server.n) {
        size_t n = server.n - from;

        if (piece > 0 && n > piece) n = piece;
        from += llm42_feed(c, server.bytes + from, n);
        r = llm42_next(c, out);
    }
    memmove(server.bytes, server.bytes + from, server.n - from);
    server.n -= from;
    return r;
}

static void expect(struct llm42 *c, enum llm42_kind kind, struct llm42_event *out) {
    int r = next(c, 0, out);

    if (r == 1 && out->kind != kind && out->kind == LLM42_BROKEN)
        print_error("broken: %s\n", out->text);
    assert_int_equal(r, 1);
    assert_int_equal(out->kind, kind);
}

/* The frames that wait to be sent; reads them all away. */
static size_t sent(struct llm42 *c, struct wire_frame *frames, size_t n_max, uint32_t payload_max) {
    static uint8_t copy[8 << 20];
    const uint8_t *bytes;
    size_t n = llm42_output(c, &bytes), from = 0, n_frames = 0;

    assert_true(n <= sizeof(copy));
    memcpy(copy, bytes, n);
    llm42_sent(c, n);
    while (from < n) {
        int64_t one = wire_read(copy + from, n - from, payload_max, &frames[n_frames]);

        assert_true(one > 0);
        assert_true(n_frames < n_max);
        from += (size_t)one;
        n_frames++;
    }
    return n_frames;
}

static struct llm42 *ready(const struct llm42_options *o, uint32_t payload_max, uint32_t credit) {
    struct wire_frame frames[4];
    struct llm42 *c = llm42_open(o);
    struct wire_hello hello;
    struct llm42_event e;

    assert_non_null(c);
    server.n = 0;
    assert_int_equal(sent(c, frames, 4, WIRE_PAYLOAD_DEFAULT), 1);
    assert_int_equal(frames[0].type, WIRE_HELLO);
    assert_int_equal(wire_read_hello(&frames[0], &hello, NULL), 0);
    assert_null(llm42_server(c));
    hello_ok(payload_max, credit);
    expect(c, LLM42_READY, &e);
    assert_int_equal(llm42_server(c)->payload_max, payload_max);
    return c;
}

static struct wire_submit submit_one(void) {
    return (struct wire_submit){.max_tokens = 16,
                                .top_p = 1,
                                .n = 1,
                                .logprobs = 2,
                                .prompt_logprobs = 1,
                                .prompt_kind = WIRE_PROMPT_KIND_TEXT,
                                .flags = WIRE_SUBMIT_ECHO_IDS};
}

static uint64_t ask(struct llm42 *c) {
    struct wire_submit s = submit_one();
    uint64_t request;

    assert_int_equal(llm42_submit(c, &s, "hello", 5, &request), 0);
    return request;
}

/* ---- A life ---- */

static void test_life(void **state) {
    static const enum llm42_kind want[] = {
        LLM42_ACCEPTED, LLM42_PROMPT_IDS, LLM42_PROMPT_IDS, LLM42_PROMPT_LOGPROBS, LLM42_TOKENS,
        LLM42_LOGPROBS, LLM42_TOKENS,     LLM42_TOKENS,     LLM42_LOGPROBS,        LLM42_DONE};

    (void)state;
    for (size_t piece = 0; piece < 40; piece++) {
        struct llm42 *c = ready(NULL, WIRE_PAYLOAD_DEFAULT, WIRE_CREDIT_DEFAULT);
        struct wire_frame frames[4];
        struct wire_submit got;
        struct llm42_event e;
        uint64_t r = ask(c);

        assert_int_equal(llm42_live(c), 1);
        assert_int_equal(sent(c, frames, 4, WIRE_PAYLOAD_DEFAULT), 2);
        assert_int_equal(wire_read_submit(&frames[0], &got, NULL), 0);
        assert_int_equal(got.prompt_bytes, 5);
        assert_int_equal(frames[1].type, WIRE_PROMPT);
        assert_int_equal(frames[1].request, r);
        accepted(r, 2, 1, 3);
        part(WIRE_PROMPT_IDS, r, false, "\1\0\0\0\2\0\0\0", 8);
        part(WIRE_PROMPT_IDS, r, true, "\3\0\0\0", 4);
        logprobs(WIRE_PROMPT_LOGPROBS, r, 1, 2, 0);
        tokens(r, 0, 2);
        logprobs(WIRE_LOGPROBS, r, 0, 2, 1);
        tokens(r, 2, 1);
        tokens(r, 3, 0); /* text alone */
        logprobs(WIRE_LOGPROBS, r, 2, 1, 1);
        done(r, WIRE_FINISH_LENGTH, 3);
        for (size_t i = 0; i < N_OF(want); i++) {
            assert_int_equal(next(c, piece, &e), 1);
            if (e.kind == LLM42_BROKEN) print_error("broken: %s\n", e.text);
            assert_int_equal(e.kind, want[i]);
            assert_int_equal(e.request, r);
        }
        assert_int_equal(e.done.n_output, 3);
        assert_int_equal(next(c, piece, &e), 0);
        assert_int_equal(llm42_live(c), 0);
        assert_int_equal(llm42_cancel(c, r), 0); /* it has ended: nothing is sent */
        assert_int_equal(sent(c, frames, 4, WIRE_PAYLOAD_DEFAULT), 0);
        llm42_close(c);
    }
}

static void test_others(void **state) {
    struct llm42 *c = ready(NULL, WIRE_PAYLOAD_DEFAULT, WIRE_CREDIT_DEFAULT);
    const struct wire_tokenize t = {
        .kind = WIRE_PROMPT_KIND_TEXT, .data = (const uint8_t *)"hi", .n_data = 2};
    const uint32_t ids[] = {1, 0x01020304};
    uint64_t ping, tokenize, detokenize, info, admin;
    struct wire_frame frames[8];
    struct llm42_event e;

    (void)state;
    assert_int_equal(llm42_ping(c, "42", 2, &ping), 0);
    assert_int_equal(llm42_ping(c, frames, WIRE_PING_MAX + 1, &ping), -EINVAL);
    assert_int_equal(llm42_tokenize(c, &t, &tokenize), 0);
    assert_int_equal(llm42_detokenize(c, ids, 2, &detokenize), 0);
    assert_int_equal(llm42_info(c, WIRE_INFO_STATUS, &info), 0);
    assert_int_equal(llm42_admin_cancel(c, 9, &admin), 0);
    assert_int_equal(llm42_live(c), 5);
    assert_int_equal(sent(c, frames, 8, WIRE_PAYLOAD_DEFAULT), 5);
    assert_memory_equal(frames[2].payload, "\1\0\0\0\4\3\2\1", 8);
    part(WIRE_INFO_OK, info, false, "{", 1);
    part(WIRE_TOKENIZED, tokenize, true, "\7\0\0\0", 4);
    part(WIRE_INFO_OK, info, true, "}", 1);
    wrote(wire_write(at(), left(), WIRE_PONG, ping, "42", 2));
    part(WIRE_DETOKENIZED, detokenize, true, "x", 1);
    wrote(wire_write(at(), left(), WIRE_ADMIN_OK, admin, NULL, 0));
    wrote(wire_write_u32(at(), left(), WIRE_SHUTDOWN, 0, 500));
    expect(c, LLM42_INFO, &e);
    assert_false(e.part.last);
    expect(c, LLM42_TOKENIZED, &e);
    expect(c, LLM42_INFO, &e);
    assert_true(e.part.last);
    expect(c, LLM42_PONG, &e);
    assert_memory_equal(e.part.data, "42", 2);
    expect(c, LLM42_DETOKENIZED, &e);
    expect(c, LLM42_ADMIN_OK, &e);
    assert_int_equal(llm42_live(c), 0);
    expect(c, LLM42_SHUTDOWN, &e);
    assert_int_equal(e.shutdown_ms, 500);
    llm42_close(c);
    llm42_close(NULL);
}

/* A refusal ends one request; the others and the connection go on. */
static void test_refused(void **state) {
    struct llm42 *c = ready(NULL, WIRE_PAYLOAD_DEFAULT, WIRE_CREDIT_DEFAULT);
    uint64_t a = ask(c), b = ask(c);
    struct llm42_event e;

    (void)state;
    assert_true(a != b);
    error(a, WIRE_E_BUSY);
    accepted(b, 2, 1, 3);
    error(a, WIRE_E_NO_REQUEST); /* to a CANCEL that crossed: nobody is told */
    done(b, WIRE_FINISH_CANCELLED, 0);
    expect(c, LLM42_ERROR, &e);
    assert_int_equal(e.request, a);
    assert_int_equal(e.error.class, WIRE_CLASS_BUSY);
    expect(c, LLM42_ACCEPTED, &e);
    expect(c, LLM42_DONE, &e);
    assert_int_equal(llm42_live(c), 0);
    /* A slot is used again, its number is not. */
    assert_true(ask(c) != b);
    llm42_close(c);
}

/* ---- Limits ---- */

static void test_long_prompts(void **state) {
    static const uint32_t sizes[] = {4091, 4092, 4093, 8184, 8185, 1000000};
    static uint8_t prompt[1000000], joined[1000000];
    static struct wire_frame frames[300];

    (void)state;
    for (size_t i = 0; i < sizeof(prompt); i++) prompt[i] = (uint8_t)(i * 31 + i / 256);
    for (size_t i = 0; i < N_OF(sizes); i++) {
        struct llm42 *c = ready(NULL, WIRE_PAYLOAD_MIN, WIRE_CREDIT_DEFAULT);
        struct wire_submit s = submit_one();
        size_t n_frames, n = 0;
        uint64_t r;

        assert_int_equal(llm42_submit(c, &s, prompt, sizes[i], &r), 0);
        n_frames = sent(c, frames, N_OF(frames), WIRE_PAYLOAD_MIN);
        assert_int_equal(n_frames, 1 + (sizes[i] + 4091) / 4092);
        for (size_t k = 1; k < n_frames; k++) {
            struct wire_prompt p;

            assert_int_equal(wire_read_prompt(&frames[k], &p, NULL), 0);
            assert_int_equal(p.last, k + 1 == n_frames);
            memcpy(joined + n, p.data, p.n_data);
            n += p.n_data;
        }
        assert_int_equal(n, sizes[i]);
        assert_memory_equal(joined, prompt, n);
        llm42_close(c);
    }
}

static void test_full(void **state) {
    const struct llm42_options small = {.output_bytes_max = 64 << 10};
    struct llm42 *c = ready(&small, WIRE_PAYLOAD_MIN, WIRE_CREDIT_DEFAULT);
    static uint8_t prompt[100000];
    struct wire_submit s = submit_one();
    const uint8_t *bytes;
    uint64_t r;
    uint32_t n = 0;
    int e;

    (void)state;
    assert_int_equal(llm42_submit(c, &s, prompt, sizeof(prompt), &r), -EMSGSIZE);
    while ((e = llm42_submit(c, &s, prompt, 5000, &r)) == 0) n++;
    assert_int_equal(e, -EAGAIN);
    assert_true(n > 2);
    assert_int_equal(llm42_live(c), n);
    assert_true(llm42_output(c, &bytes) <= 64 << 10);
    llm42_sent(c, llm42_output(c, &bytes) / 2);
    assert_int_equal(llm42_submit(c, &s, prompt, 5000, &r), 0);
    /* One request of a kind that needs one frame, over the frame. */
    assert_int_equal(llm42_detokenize(c, (const uint32_t *)(const void *)prompt, 1025, &r),
                     -EMSGSIZE);
    llm42_close(c);

    c = ready(NULL, WIRE_PAYLOAD_MIN, WIRE_CREDIT_DEFAULT);
    for (n = 0; n < LLM42_REQUESTS_MAX; n++) assert_int_equal(llm42_ping(c, NULL, 0, &r), 0);
    assert_int_equal(llm42_ping(c, NULL, 0, &r), -EAGAIN);
    s.n_stop_ids = WIRE_STOP_IDS_MAX + 1;
    llm42_close(c);
    c = ready(NULL, WIRE_PAYLOAD_MIN, WIRE_CREDIT_DEFAULT);
    assert_int_equal(llm42_submit(c, &s, "x", 1, &r), -EINVAL);
    llm42_close(c);
}

static void test_options(void **state) {
    const struct llm42_options bad[] = {
        {.name = "a name of more than sixty-four bytes, which is all that HELLO has room for"},
        {.payload_max = WIRE_PAYLOAD_MIN - 1},
        {.payload_max = WIRE_PAYLOAD_MAX + 1},
        {.credit = WIRE_CREDIT_MIN - 1},
        {.credit = WIRE_CREDIT_MAX + 1u}};
    struct llm42 *c = llm42_open(NULL);
    struct wire_submit s = submit_one();
    uint64_t r;

    (void)state;
    for (size_t i = 0; i < N_OF(bad); i++) assert_null(llm42_open(&bad[i]));
    assert_int_equal(llm42_submit(c, &s, "x", 1, &r), -ENOTCONN);
    assert_int_equal(llm42_info(c, 0, &r), -ENOTCONN);
    llm42_close(c);
}

/* What was taken comes back, to the byte, however much there is; the server can go on for ever. */
static void test_credit(void **state) {
    struct llm42 *c = ready(NULL, WIRE_PAYLOAD_MIN, WIRE_CREDIT_MIN);
    struct wire_frame frames[4];
    struct wire_submit s = submit_one();
    int64_t credit = WIRE_CREDIT_MIN;
    struct llm42_event e;
    uint32_t more;
    uint64_t r;

    (void)state;
    s.logprobs = s.prompt_logprobs = 0;
    assert_int_equal(llm42_submit(c, &s, "x", 1, &r), 0);
    (void)sent(c, frames, 4, WIRE_PAYLOAD_MIN);
    accepted(r, 0, 0, 1);
    expect(c, LLM42_ACCEPTED, &e);
    for (uint32_t i = 0; i < 10000; i++) {
        size_t n_before = server.n;

        tokens(r, i, 1);
        credit -= (int64_t)(server.n - n_before);
        assert_true(credit >= 0);
        expect(c, LLM42_TOKENS, &e);
        assert_int_equal(next(c, 0, &e), 0); /* now it has been looked at */
        if (sent(c, frames, 4, WIRE_PAYLOAD_MIN) > 0) {
            assert_int_equal(frames[0].type, WIRE_CREDIT);
            assert_int_equal(wire_read_u32(&frames[0], &more), 0);
            credit += more;
        }
        assert_true(credit <= WIRE_CREDIT_MIN);
    }
    llm42_close(c);
}

/* ---- Servers that break the protocol ---- */

enum breach {
    TWO_HELLOS,
    EARLY_TOKENS,
    NO_SUCH_REQUEST,
    TOKENS_FIRST,
    TWO_ACCEPTED,
    GAP,
    AGAIN,
    WRONG_TOP,
    WRONG_LOGPROB_PLACE,
    PROMPT_PLACE_0,
    PROMPT_BEYOND,
    DONE_SHORT,
    DONE_NO_LOGPROBS,
    DONE_UNKNOWN,
    DONE_TOO_EARLY,
    CUT_IDS,
    ECHO_TWICE,
    PART_OF_OTHER,
    CLIENT_TYPE,
    UNKNOWN_TYPE,
    BIG_FRAME,
    HEADER_FLAGS,
    OTHER_LOGPROBS,
    BAD_PAYLOAD,
    PONG_TO_SUBMIT,
    N_BREACHES,
};

static const char *const breach_text[N_BREACHES] = {
    [TWO_HELLOS] = "second HELLO_OK",
    [EARLY_TOKENS] = "TOKENS before ACCEPTED",
    [NO_SUCH_REQUEST] = "which is none",
    [TOKENS_FIRST] = "TOKENS from 1 on, 0 was the next",
    [TWO_ACCEPTED] = "second ACCEPTED",
    [GAP] = "TOKENS from 3 on, 2 was the next",
    [AGAIN] = "TOKENS from 1 on, 2 was the next",
    [WRONG_TOP] = "lists of 2",
    [WRONG_LOGPROB_PLACE] = "LOGPROBS from 1 on",
    [PROMPT_PLACE_0] = "PROMPT_LOGPROBS from 0 on",
    [PROMPT_BEYOND] = "beyond the prompt",
    [DONE_SHORT] = "DONE after 3 tokens, 2 came",
    [DONE_NO_LOGPROBS] = "2 tokens and 0 logprobs",
    [DONE_UNKNOWN] = "finish reason 9",
    [DONE_TOO_EARLY] = "DONE before ACCEPTED",
    [CUT_IDS] = "cuts an id",
    [ECHO_TWICE] = "was not asked for",
    [PART_OF_OTHER] = "for another request",
    [CLIENT_TYPE] = "that a server does not send",
    [UNKNOWN_TYPE] = "type 0x1234",
    [BIG_FRAME] = "cannot be a frame",
    [HEADER_FLAGS] = "cannot be a frame",
    [OTHER_LOGPROBS] = "other logprobs",
    [BAD_PAYLOAD] = "malformed TOKENS",
    [PONG_TO_SUBMIT] = "PONG for another request",
};

static void breach(enum breach which, uint64_t r) {
    bool early = which == EARLY_TOKENS || which == DONE_TOO_EARLY || which == OTHER_LOGPROBS;

    if (!early) accepted(r, 2, 1, 3);
    if (which >= GAP && which <= AGAIN) tokens(r, 0, 2);
    if (which == DONE_SHORT || which == DONE_NO_LOGPROBS) tokens(r, 0, 2);
    switch (which) {
    case TWO_HELLOS:
        hello_ok(WIRE_PAYLOAD_DEFAULT, WIRE_CREDIT_DEFAULT);
        break;
    case NO_SUCH_REQUEST:
        tokens(r + 1, 0, 1);
        break;
    case TOKENS_FIRST:
        tokens(r, 1, 1);
        break;
    case TWO_ACCEPTED:
        accepted(r, 2, 1, 3);
        break;
    case GAP:
        tokens(r, 3, 1);
        break;
    case AGAIN:
        tokens(r, 1, 1);
        break;
    case WRONG_TOP:
        logprobs(WIRE_LOGPROBS, r, 0, 1, 2);
        break;
    case WRONG_LOGPROB_PLACE:
        logprobs(WIRE_LOGPROBS, r, 1, 1, 1);
        break;
    case PROMPT_PLACE_0:
        logprobs(WIRE_PROMPT_LOGPROBS, r, 0, 1, 0);
        break;
    case PROMPT_BEYOND:
        logprobs(WIRE_PROMPT_LOGPROBS, r, 1, 3, 0);
        break;
    case DONE_SHORT:
        done(r, WIRE_FINISH_LENGTH, 3);
        break;
    case DONE_NO_LOGPROBS:
        done(r, WIRE_FINISH_LENGTH, 2);
        break;
    case DONE_UNKNOWN:
        done(r, 9, 0);
        break;
    case DONE_TOO_EARLY:
        done(r, WIRE_FINISH_STOP, 0);
        break;
    case CUT_IDS:
        part(WIRE_PROMPT_IDS, r, false, "abc", 3);
        break;
    case ECHO_TWICE:
        part(WIRE_PROMPT_IDS, r, true, "", 0);
        part(WIRE_PROMPT_IDS, r, true, "", 0);
        break;
    case PART_OF_OTHER:
        part(WIRE_TOKENIZED, r, true, "", 0);
        break;
    case CLIENT_TYPE:
        wrote(wire_write(at(), left(), WIRE_CANCEL, r, NULL, 0));
        break;
    case UNKNOWN_TYPE:
        wrote(wire_write(at(), left(), 0x1234, r, NULL, 0));
        break;
    case BIG_FRAME:
        memcpy(at(), "\1\0\1\0", 4);
        wrote(4);
        break;
    case HEADER_FLAGS:
        tokens(r, 0, 1);
        server.bytes[server.n - 16 - 12 - 4 - 2 + 6] = 1;
        break;
    case OTHER_LOGPROBS:
        accepted(r, 1, 1, 3);
        break;
    case BAD_PAYLOAD:
        wrote(wire_write(at(), left(), WIRE_TOKENS, r, "12345", 5));
        break;
    case PONG_TO_SUBMIT:
        wrote(wire_write(at(), left(), WIRE_PONG, r, NULL, 0));
        break;
    default:
        tokens(r, 0, 1);
        break;
    }
}

static void test_breaches(void **state) {
    (void)state;
    for (int i = 0; i < N_BREACHES; i++) {
        struct llm42 *c = ready(NULL, WIRE_PAYLOAD_DEFAULT, WIRE_CREDIT_DEFAULT);
        struct wire_submit s = submit_one();
        uint64_t r = ask(c), other;
        struct llm42_event e = {0};

        breach((enum breach)i, r);
        while (next(c, 1 + (size_t)i, &e) == 1 && e.kind != LLM42_BROKEN) continue;
        if (e.kind != LLM42_BROKEN || !strstr(e.text, breach_text[i]))
            print_error("breach %d: event %d, %s\n", i, (int)e.kind,
                        e.kind == LLM42_BROKEN ? e.text : "");
        assert_int_equal(e.kind, LLM42_BROKEN);
        assert_non_null(strstr(e.text, breach_text[i]));
        assert_int_equal(llm42_next(c, &e), 0); /* told once */
        assert_int_equal(llm42_submit(c, &s, "x", 1, &other), -EPIPE);
        assert_int_equal(llm42_cancel(c, r), -EPIPE);
        llm42_close(c);
    }
}

static void test_before_hello(void **state) {
    struct llm42 *c = llm42_open(NULL);
    struct llm42_event e;

    (void)state;
    server.n = 0;
    tokens(1, 0, 1);
    expect(c, LLM42_BROKEN, &e);
    llm42_close(c);

    /* A server that refuses the version says so, then closes. */
    c = llm42_open(NULL);
    server.n = 0;
    error(0, WIRE_E_VERSION);
    expect(c, LLM42_ERROR, &e);
    assert_int_equal(e.request, 0);
    expect(c, LLM42_BROKEN, &e);
    assert_non_null(strstr(e.text, "version"));
    llm42_close(c);

    /* More than was wished for would overflow what we keep. */
    c = llm42_open(NULL);
    server.n = 0;
    hello_ok(WIRE_PAYLOAD_DEFAULT + 1, WIRE_CREDIT_DEFAULT);
    expect(c, LLM42_BROKEN, &e);
    llm42_close(c);

    c = llm42_open(NULL);
    server.n = 0;
    hello_ok(WIRE_PAYLOAD_DEFAULT, WIRE_CREDIT_DEFAULT);
    server.n -= 1;
    while (next(c, 0, &e) == 1) assert_int_equal(e.kind, LLM42_BROKEN);
    llm42_end(c, "it went away");
    assert_int_equal(llm42_next(c, &e), 1);
    assert_int_equal(e.kind, LLM42_BROKEN);
    assert_string_equal(e.text, "it went away");
    llm42_close(c);
}

/* Good streams with bytes changed: an event or BROKEN, never more than that. */
static void test_mutants(void **state) {
    uint64_t seed = 42;

    (void)state;
    for (int round = 0; round < 3000; round++) {
        struct llm42 *c = ready(NULL, WIRE_PAYLOAD_DEFAULT, WIRE_CREDIT_DEFAULT);
        uint64_t r = ask(c);
        struct llm42_event e;
        size_t n_events = 0;

        accepted(r, 2, 1, 3);
        part(WIRE_PROMPT_IDS, r, true, "\1\0\0\0\2\0\0\0\3\0\0\0", 12);
        tokens(r, 0, 2);
        logprobs(WIRE_LOGPROBS, r, 0, 2, 1);
        done(r, WIRE_FINISH_LENGTH, 2);
        for (int k = 0; k <= round % 3; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            server.bytes[(seed >> 40) % server.n] = (uint8_t)(seed >> 33);
        }
        while (next(c, 0, &e) == 1) assert_true(++n_events < 20);
        llm42_end(c, "end");
        while (llm42_next(c, &e) == 1) assert_true(++n_events < 20);
        llm42_close(c);
    }
}

/* ---- The blocking wrapper ---- */

static void test_io(void **state) {
    struct llm42_io *io;
    struct llm42_event e;
    uint8_t bytes[256];
    uint64_t r;
    int fds[2];

    (void)state;
    assert_int_equal(llm42_io_open("/nonexistent/llm42.sock", NULL, &io), -ENOENT);
    memset(bytes, 'x', sizeof(bytes));
    bytes[sizeof(bytes) - 1] = '\0';
    assert_int_equal(llm42_io_open((const char *)bytes, NULL, &io), -ENAMETOOLONG);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    assert_int_equal(llm42_io_attach(fds[0], NULL, &io), 0);
    server.n = 0;
    hello_ok(WIRE_PAYLOAD_DEFAULT, WIRE_CREDIT_DEFAULT);
    assert_int_equal(llm42_io_next(io, &e, 10), -ETIMEDOUT);
    assert_true(read(fds[1], bytes, sizeof(bytes)) > WIRE_HEADER_BYTES); /* HELLO */
    assert_int_equal(write(fds[1], server.bytes, server.n), server.n);
    assert_int_equal(llm42_io_next(io, &e, 1000), 1);
    assert_int_equal(e.kind, LLM42_READY);
    r = ask(llm42_io_core(io));
    assert_int_equal(llm42_io_next(io, &e, 0), -ETIMEDOUT);
    assert_true(read(fds[1], bytes, sizeof(bytes)) > 0);
    server.n = 0;
    accepted(r, 2, 1, 3);
    assert_int_equal(write(fds[1], server.bytes, server.n), server.n);
    close(fds[1]);
    assert_int_equal(llm42_io_next(io, &e, 1000), 1);
    assert_int_equal(e.kind, LLM42_ACCEPTED);
    assert_int_equal(llm42_io_next(io, &e, 1000), 1);
    assert_int_equal(e.kind, LLM42_BROKEN);
    assert_int_equal(llm42_io_next(io, &e, 1000), -EPIPE);
    llm42_io_close(io);
    llm42_io_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),         cmocka_unit_test(test_others),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_long_prompts),
        cmocka_unit_test(test_full),         cmocka_unit_test(test_options),
        cmocka_unit_test(test_credit),       cmocka_unit_test(test_breaches),
        cmocka_unit_test(test_before_hello), cmocka_unit_test(test_mutants),
        cmocka_unit_test(test_io),
    };

    return cmocka_run_group_tests_name("client", tests, NULL, NULL);
}
