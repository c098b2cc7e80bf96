/* Both sides of the protocol under any bytes.  The first byte says whose: a server's reader of
 * client frames, or libllm42 fed in pieces.  What a reader takes a writer must be able to write
 * again, to the same bytes. */
#include <stdlib.h>
#include <string.h>

#include "daemon/wire.h"
#include "tools/llm42.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

static void must(int fine) {
    if (!fine) abort();
}

static uint8_t again[WIRE_HEADER_BYTES + WIRE_PAYLOAD_MAX];

static void same(const struct wire_frame *f, size_t n) {
    must(n == WIRE_HEADER_BYTES + (size_t)f->payload_bytes);
    must(memcmp(again, f->payload - WIRE_HEADER_BYTES, n) == 0);
}

static void chat(const struct wire_prompt *p) {
    struct wire_message m;
    size_t at = 0, before = 0;

    while (wire_message_read(p->data, p->n_data, &at, &m) > 0) {
        must(at > before && at <= p->n_data);
        must(wire_message_write(again, sizeof(again), &m) == at - before);
        must(memcmp(again, p->data + before, at - before) == 0);
        before = at;
    }
}

/* As the daemon reads it. */
static void of_client(const struct wire_frame *f) {
    struct wire_fault fault = {0};
    struct wire_hello h;
    struct wire_submit s;
    struct wire_prompt p;
    struct wire_tokenize t;
    int r = 0;

    switch (f->type) {
    case WIRE_HELLO:
        r = wire_read_hello(f, &h, &fault);
        break;
    case WIRE_SUBMIT:
        r = wire_read_submit(f, &s, &fault);
        /* One encoding a request, but for the two zeros. */
        if (r == 0) must(wire_write_submit(again, sizeof(again), f->request, &s) > 0);
        break;
    case WIRE_PROMPT:
        r = wire_read_prompt(f, &p, &fault);
        if (r == 0) {
            same(f, wire_write_prompt(again, sizeof(again), f->request, &p));
            chat(&p);
        }
        break;
    case WIRE_TOKENIZE:
        r = wire_read_tokenize(f, &t, &fault);
        if (r == 0) same(f, wire_write_tokenize(again, sizeof(again), f->request, &t));
        break;
    default:
        break;
    }
    must(r == 0 || (fault.text && fault.code));
}

/* As a client reads it. */
static void of_server(const struct wire_frame *f) {
    struct wire_done d;
    struct wire_accepted a;
    struct wire_error e;
    struct wire_logprobs l;
    struct wire_hello_ok h;

    if (f->type == WIRE_DONE && wire_read_done(f, &d) == 0)
        same(f, wire_write_done(again, sizeof(again), f->request, &d));
    if (f->type == WIRE_ACCEPTED && wire_read_accepted(f, &a) == 0)
        same(f, wire_write_accepted(again, sizeof(again), f->request, &a));
    if (f->type == WIRE_ERROR && wire_read_error(f, &e) == 0)
        same(f, wire_write_error(again, sizeof(again), f->request, &e));
    if (f->type == WIRE_HELLO_OK) (void)wire_read_hello_ok(f, &h);
    if (f->type == WIRE_LOGPROBS && wire_read_logprobs(f, &l) == 0)
        (void)wire_logprob_at(&l, l.n_tokens - 1, l.n_top);
}

static void frames(const uint8_t *data, size_t n_data) {
    struct wire_frame f;
    int64_t n;

    while ((n = wire_read(data, n_data, WIRE_PAYLOAD_DEFAULT, &f)) > 0) {
        of_client(&f);
        of_server(&f);
        data += n;
        n_data -= (size_t)n;
    }
}

/* The library greets, asks for one of each, and believes nothing. */
static void library(const uint8_t *data, size_t n_data) {
    const struct wire_submit s = {.max_tokens = 4,
                                  .top_p = 1,
                                  .n = 1,
                                  .logprobs = 2,
                                  .prompt_logprobs = 1,
                                  .flags = WIRE_SUBMIT_ECHO_IDS,
                                  .prompt_kind = WIRE_PROMPT_KIND_TEXT};
    const struct wire_hello_ok h = {
        .version = 1, .payload_max = WIRE_PAYLOAD_DEFAULT, .credit = WIRE_CREDIT_MIN};
    struct llm42 *c = llm42_open(NULL);
    size_t n, piece = n_data ? 1 + data[0] : 1;
    bool told = false; /* that it is broken: once, and nothing after it */
    const uint8_t *out;
    struct llm42_event e;
    uint64_t request;

    if (!c) return;
    n = wire_write_hello_ok(again, sizeof(again), &h);
    must(llm42_feed(c, again, n) == n);
    must(llm42_next(c, &e) == 1 && e.kind == LLM42_READY);
    must(llm42_submit(c, &s, "hello", 5, &request) == 0);
    must(llm42_info(c, WIRE_INFO_ALL, &request) == 0);
    must(llm42_ping(c, "1", 1, &request) == 0);
    while (n_data > 0) {
        n = llm42_feed(c, data, piece < n_data ? piece : n_data);
        data += n;
        n_data -= n;
        while (llm42_next(c, &e) == 1) told |= e.kind == LLM42_BROKEN;
        llm42_sent(c, llm42_output(c, &out));
        if (n == 0) break; /* broken: nothing is read any more */
    }
    llm42_end(c, "end");
    while (llm42_next(c, &e) == 1) {
        must(!told);
        told = e.kind == LLM42_BROKEN;
    }
    must(told);
    llm42_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data) {
    if (n_data == 0) return 0;
    if (data[0] & 1)
        library(data + 1, n_data - 1);
    else
        frames(data + 1, n_data - 1);
    return 0;
}
