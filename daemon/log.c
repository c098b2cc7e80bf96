#include "daemon/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Our own file and line say nothing to an operator. */
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>

#include "runtime/sha256.h"

#define ID_STARTED "MESSAGE_ID=6b1f0c5d2a7e4c0f9d3348c1a5e7b902"
#define ID_REQUEST "MESSAGE_ID=a94d7e310c5b4f6e8f2d17b06c9e83d4"

static const int priorities[] = {3, 4, 6, 7};

/* The level may change while both threads log. */
static atomic_int level_max = LOG_AT_INFO;
static bool to_journal, on_terminal;

void log_open(enum log_level level) {
    const char *stream = getenv("JOURNAL_STREAM");
    uint64_t dev, ino;
    struct stat st;

    log_level_set(level);
    on_terminal = isatty(STDERR_FILENO) == 1;
    to_journal = stream && sscanf(stream, "%" SCNu64 ":%" SCNu64, &dev, &ino) == 2 &&
                 fstat(STDERR_FILENO, &st) == 0 && (uint64_t)st.st_dev == dev &&
                 (uint64_t)st.st_ino == ino;
}

void log_level_set(enum log_level level) {
    atomic_store(&level_max, (int)level);
}

static void to_stderr(enum log_level level, const char *text) {
    char line[LOG_LINE_BYTES_MAX + 8];
    int n = on_terminal ? snprintf(line, sizeof(line), "%s\n", text)
                        : snprintf(line, sizeof(line), "<%d>%s\n", priorities[level], text);

    if (n >= (int)sizeof(line)) {
        n = sizeof(line) - 1;
        line[n - 1] = '\n';
    }
    /* Nobody is left to tell when this fails. */
    if (write(STDERR_FILENO, line, (size_t)n) < 0) return;
}

void log_line(enum log_level level, const char *fmt, ...) {
    char text[LOG_LINE_BYTES_MAX];
    va_list args;

    if ((int)level > atomic_load(&level_max)) return;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (!to_journal ||
        sd_journal_send("MESSAGE=%s", text, "PRIORITY=%d", priorities[level], NULL) < 0)
        to_stderr(level, text);
}

void log_started(const char *model, const char *fingerprint, const char *device) {
    if (!to_journal ||
        sd_journal_send("MESSAGE=serving %s, fingerprint %s, on %s", model, fingerprint, device,
                        "PRIORITY=6", ID_STARTED, "LLM42_MODEL=%s", model, "LLM42_FINGERPRINT=%s",
                        fingerprint, NULL) < 0)
        log_line(LOG_AT_INFO, "serving %s, fingerprint %s, on %s", model, fingerprint, device);
}

void log_request_end(const struct log_request *r) {
    char text[LOG_LINE_BYTES_MAX];
    char digest[SHA256_HEX_BYTES] = "-", fingerprint[SHA256_HEX_BYTES];

    if (r->digest) sha256_hex(r->digest, digest);
    sha256_hex(r->fingerprint, fingerprint);
    (void)snprintf(
        text, sizeof(text),
        "request %" PRIu64 " (conn %" PRIu64 ", id %" PRIu64 ", uid %u): %s%s%s, %s, "
        "prompt %u cached %u output %u, verify %u rollback %u recomputed %u certified %u, "
        "us queue %" PRIu64 " prefill %" PRIu64 " decode %" PRIu64 " total %" PRIu64
        ", digest %s, fingerprint %s",
        r->server_id, r->conn, r->request, (unsigned)r->uid, r->finish, r->why[0] ? ": " : "",
        r->why, r->deterministic ? "deterministic" : "plain", r->n_prompt, r->n_cached, r->n_output,
        r->verify_passes, r->rollbacks, r->recomputed, r->certified, r->queue_us, r->prefill_us,
        r->decode_us, r->total_us, digest, fingerprint);
    /* The request line is not a matter of level: it is the record of what was answered. */
    if (!to_journal ||
        sd_journal_send("MESSAGE=%s", text, "PRIORITY=6", ID_REQUEST, "LLM42_REQUEST=%" PRIu64,
                        r->server_id, "LLM42_UID=%u", (unsigned)r->uid, "LLM42_FINISH=%s",
                        r->finish, "LLM42_FINGERPRINT=%s", fingerprint, "LLM42_DIGEST=%s", digest,
                        NULL) < 0)
        to_stderr(LOG_AT_INFO, text);
}

void log_prompt(uint64_t server_id, const char *text, uint32_t n_bytes) {
    static const char digits[] = "0123456789abcdef";
    char line[LOG_PROMPT_BYTES_MAX + 8];
    size_t n = 0;

    for (uint32_t i = 0; i < n_bytes && n < LOG_PROMPT_BYTES_MAX; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c >= ' ' && c != 0x7f && c != '\\') {
            line[n++] = (char)c;
        } else {
            line[n++] = '\\';
            line[n++] = 'x';
            line[n++] = digits[c >> 4];
            line[n++] = digits[c & 15];
        }
    }
    line[n] = '\0';
    if (!to_journal ||
        sd_journal_send("MESSAGE=request %" PRIu64 ": prompt %s", server_id, line, "PRIORITY=6",
                        "LLM42_REQUEST=%" PRIu64, server_id, "LLM42_PROMPT=%s", line, NULL) < 0)
        log_line(LOG_AT_INFO, "request %" PRIu64 ": prompt %s", server_id, line);
}
