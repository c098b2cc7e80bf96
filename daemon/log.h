/* log - one line or journal entry an event.
 *
 * Owns:   nothing but where lines go.
 * Thread: any, after log_open; a line is one write.
 *
 * To the journal, with fields, where stderr is the journal's own stream (JOURNAL_STREAM); else to
 * stderr with the `<N>` prefixes of sd-daemon(3), or without them on a terminal. */
#ifndef LLM42D_DAEMON_LOG_H
#define LLM42D_DAEMON_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { LOG_LINE_BYTES_MAX = 2048, LOG_PROMPT_BYTES_MAX = 1024 };

enum log_level { LOG_AT_ERROR, LOG_AT_WARNING, LOG_AT_INFO, LOG_AT_DEBUG }; /* as config_level */

/* What a finished request leaves in the log, always. */
struct log_request {
    uint64_t server_id, request, conn;
    uid_t uid;
    const char *finish; /* or the name of the error */
    const char *why;    /* of an error, or "" */
    uint32_t n_prompt, n_output, n_cached;
    uint32_t verify_passes, rollbacks, recomputed, certified;
    uint64_t queue_us, prefill_us, decode_us, total_us;
    bool deterministic;
    const uint8_t *digest, *fingerprint; /* SHA256_BYTES each; digest may be NULL */
};

void log_open(enum log_level level);
void log_level_set(enum log_level level);

void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void log_started(const char *model, const char *fingerprint, const char *device);
void log_request_end(const struct log_request *r);
/* The start of a prompt, only where the settings ask for it; control characters are escaped. */
void log_prompt(uint64_t server_id, const char *text, uint32_t n_bytes);

#endif
