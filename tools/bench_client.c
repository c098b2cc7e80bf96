#include "tools/bench_client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_daemon.h"

enum { INFO_BYTES_MAX = 16 << 20, PIECE_BYTES = 32 << 10, TARGET_PING_US = 50 };

int bench_client_next(struct llm42_io *io, struct llm42_event *out_event) {
    int r = llm42_io_next(io, out_event, BENCH_WAIT_MS);

    if (bench_daemon_interrupted()) return BENCH_INTERRUPTED;
    if (r < 0) {
        bench_say("the daemon's answer: %s", strerror(-r));
        return BENCH_FAILED;
    }
    if (out_event->kind == LLM42_BROKEN) {
        bench_say("the connection broke: %s", out_event->text);
        return BENCH_FAILED;
    }
    return BENCH_OK;
}

int bench_client_open(const char *path, struct llm42_io **out_io) {
    const struct llm42_options options = {.name = "llm42-bench", .credit = 16 << 20};
    struct llm42_event event;
    struct llm42_io *io;
    int r = llm42_io_open(path, &options, &io);

    if (r < 0) {
        bench_say("cannot reach llm42d at %s: %s", path, strerror(-r));
        return BENCH_UNREACHABLE;
    }
    r = bench_client_next(io, &event);
    if (r == BENCH_OK && event.kind == LLM42_READY) {
        *out_io = io;
        return BENCH_OK;
    }
    if (r != BENCH_INTERRUPTED) bench_say("no greeting of llm42d at %s", path);
    llm42_io_close(io);
    return r == BENCH_INTERRUPTED ? r : BENCH_UNREACHABLE;
}

/* Collects the parts of one answer. */
static int answer(struct llm42_io *io, uint64_t request, uint8_t **out_bytes, size_t *out_n) {
    struct llm42_event e;
    uint8_t *bytes = NULL, *more;
    size_t n = 0;
    int r;

    do {
        r = bench_client_next(io, &e);
        if (r != BENCH_OK) goto out;
        if (e.request != request) continue;
        if (e.kind == LLM42_ERROR) {
            bench_say("refused: %.*s", (int)e.error.n_text, e.error.text);
            r = BENCH_FAILED;
            goto out;
        }
        more = n + e.part.n_data <= INFO_BYTES_MAX ? realloc(bytes, n + e.part.n_data + 1) : NULL;
        if (!more) {
            bench_say("an answer of more than %zu bytes", n);
            r = BENCH_FAILED;
            goto out;
        }
        bytes = more;
        memcpy(bytes + n, e.part.data, e.part.n_data);
        n += e.part.n_data;
    } while (e.request != request || !e.part.last);
    *out_bytes = bytes;
    *out_n = n;
    bytes = NULL;
out:
    free(bytes);
    return r;
}

int bench_client_info(struct llm42_io *io, uint32_t topic, json_t **out) {
    json_error_t error;
    uint64_t request;
    uint8_t *text;
    size_t n;
    int r;

    if (llm42_info(llm42_io_core(io), topic, &request) < 0) return BENCH_FAILED;
    r = answer(io, request, &text, &n);
    if (r != BENCH_OK) return r;
    *out = json_loadb((const char *)text, n, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (*out) return BENCH_OK;
    bench_say("the daemon's INFO is no JSON: %s", error.text);
    return BENCH_FAILED;
}

/* Up to a space, so that no word is cut. */
static size_t piece(const char *text, size_t n_bytes) {
    size_t n = PIECE_BYTES;

    if (n_bytes <= PIECE_BYTES) return n_bytes;
    while (n > 0 && text[n] != ' ' && text[n] != '\n') n--;
    return n > 0 ? n : PIECE_BYTES;
}

static int piece_ids(struct llm42_io *io, const char *text, size_t n_text, uint32_t *ids,
                     size_t *n_ids) {
    const struct wire_tokenize t = {.kind = WIRE_PROMPT_KIND_TEXT,
                                    .flags = WIRE_SUBMIT_RAW,
                                    .data = (const uint8_t *)text,
                                    .n_data = (uint32_t)n_text};
    uint64_t request;
    uint8_t *bytes;
    size_t n;
    int r;

    if (llm42_tokenize(llm42_io_core(io), &t, &request) < 0) return BENCH_FAILED;
    r = answer(io, request, &bytes, &n);
    if (r != BENCH_OK) return r;
    for (size_t i = 0; i < n / 4 && i < n_text; i++)
        ids[(*n_ids)++] = wire_u32_at(bytes, (uint32_t)i);
    free(bytes);
    return BENCH_OK;
}

int bench_client_ids(struct llm42_io *io, const char *text, size_t n_bytes, uint32_t **out_ids,
                     uint32_t *out_n) {
    /* A token has a byte at least. */
    uint32_t *ids = malloc((n_bytes + 1) * sizeof(*ids));
    size_t n_ids = 0, n;
    int r = ids ? BENCH_OK : BENCH_FAILED;

    for (size_t at = 0; r == BENCH_OK && at < n_bytes; at += n) {
        n = piece(text + at, n_bytes - at);
        r = piece_ids(io, text + at, n, ids, &n_ids);
    }
    if (r == BENCH_OK && n_ids == 0) {
        bench_say("the daemon's tokenizer has no ids for the text");
        r = BENCH_FAILED;
    }
    if (r != BENCH_OK) {
        free(ids);
        return r;
    }
    *out_ids = ids;
    *out_n = (uint32_t)n_ids;
    return BENCH_OK;
}

static int ping_once(struct llm42_io *io, uint32_t number) {
    struct llm42_event e;
    uint64_t request;
    int r;

    if (llm42_ping(llm42_io_core(io), &number, sizeof(number), &request) < 0) return BENCH_FAILED;
    do {
        r = bench_client_next(io, &e);
        if (r != BENCH_OK) return r;
    } while (e.request != request);
    if (e.kind == LLM42_PONG && e.part.n_data == sizeof(number) &&
        memcmp(e.part.data, &number, sizeof(number)) == 0)
        return BENCH_OK;
    bench_say("the answer is not of our PING");
    return BENCH_FAILED;
}

int bench_client_ping(const struct bench_report *r, struct llm42_io *io, uint32_t n) {
    const struct bench_target most = {TARGET_PING_US, true}, none = {0};
    double *us = calloc(n, sizeof(*us));
    int done = us ? BENCH_OK : BENCH_FAILED;

    for (uint32_t i = 0; done == BENCH_OK && i < n; i++) {
        const int64_t begin_ns = bench_now_ns();

        done = ping_once(io, i);
        us[i] = (double)(bench_now_ns() - begin_ns) / 1000;
    }
    if (done == BENCH_OK) {
        bench_report_figure(r, "ping.p50", bench_quantile(us, n, 0.5), "us", most,
                            "PING round trip, median of %u", n);
        bench_report_figure(r, "ping.p99", bench_quantile(us, n, 0.99), "us", none,
                            "PING round trip, P99");
    }
    free(us);
    return done;
}
