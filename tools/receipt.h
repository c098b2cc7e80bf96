/* receipt - one request and its reply, all that is needed to ask again and to compare bits.
 *
 * Owns:   the prompt, ids, logprobs and texts that it collected.
 * Thread: any one at a time.
 * Fails:  -ENOMEM; -EINVAL for a file that is none, with the text saying where; -errno of files.
 *
 * Floats are kept and written as the hexadecimal digits of their binary32 bits, so that nothing is
 * rounded on the way.  The file is JSON, described in SPEC 6.8. */
#ifndef LLM42D_TOOLS_RECEIPT_H
#define LLM42D_TOOLS_RECEIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/wire.h"

enum {
    RECEIPT_VERSION = 1,
    RECEIPT_TEXT_BYTES = 256,
    RECEIPT_FILE_BYTES_MAX = 256 << 20,
};

/* A list that grows. */
struct receipt_u32 {
    uint32_t *values;
    size_t n, room;
};
struct receipt_bytes {
    uint8_t *bytes;
    size_t n, room;
};

struct receipt {
    /* Asked */
    struct wire_submit submit; /* with what the server made of it, once accepted */
    uint8_t stop_bytes[WIRE_STOP_STRINGS_MAX][WIRE_STOP_STRING_BYTES_MAX]; /* it points here */
    struct receipt_u32 prompt;                                             /* ids */
    bool accepted;
    struct wire_accepted ack;

    /* Came */
    struct receipt_u32 ids;
    struct receipt_bytes text;
    struct receipt_u32 records;        /* of the output: id, bits, then n_top times id, bits */
    struct receipt_u32 prompt_records; /* of the prompt, from its second token on */
    bool done, failed;
    struct wire_done end;
    struct wire_error error;
    char error_text[RECEIPT_TEXT_BYTES + 1];

    /* Of the server */
    uint8_t fingerprint[WIRE_DIGEST_BYTES];
    uint16_t version;
    char model[WIRE_MODEL_MAX + 1];
};

/* Starts a receipt for a request; the stop strings are copied. */
void receipt_open(struct receipt *r, const struct wire_submit *s);
void receipt_close(struct receipt *r);

/* What the server sent, in its order.  0, -ENOMEM, or -EMSGSIZE beyond what memory can hold. */
int receipt_prompt_add(struct receipt *r, const struct wire_prompt *ids);
int receipt_tokens_add(struct receipt *r, const struct wire_tokens *t);
int receipt_logprobs_add(struct receipt *r, const struct wire_logprobs *l, bool of_prompt);
void receipt_accepted(struct receipt *r, const struct wire_accepted *a);
void receipt_error(struct receipt *r, const struct wire_error *e);

/* Numbers of one output token, place 0 is its own and 1.. the most probable ones. */
struct wire_logprob receipt_at(const struct receipt *r, size_t token, uint32_t place);
/* The same of the prompt; token 1 is the first that has one. */
struct wire_logprob receipt_prompt_at(const struct receipt *r, size_t token, uint32_t place);
uint32_t receipt_n_top(const struct receipt *r);
uint32_t receipt_n_prompt_top(const struct receipt *r);

/* The digest of what came (SPEC 2.12).  False where it cannot be known: no logprobs were asked for
 * and there is output. */
bool receipt_digest(const struct receipt *r, uint8_t out_digest[WIRE_DIGEST_BYTES]);

enum receipt_difference {
    RECEIPT_EQUAL,
    RECEIPT_FINGERPRINT, /* the servers compute differently: nothing else was compared */
    RECEIPT_PROMPT,      /* ids of the prompt */
    RECEIPT_PROMPT_LOGPROB,
    RECEIPT_ID,
    RECEIPT_LOGPROB,
    RECEIPT_TOP, /* a list of the most probable tokens */
    RECEIPT_LENGTH,
    RECEIPT_FINISH,
    RECEIPT_DIGEST,
};
/* The first difference, and at which token it is. */
enum receipt_difference receipt_compare(const struct receipt *a, const struct receipt *b,
                                        size_t *out_token);

/* receipt_json.c.  `why` has RECEIPT_TEXT_BYTES. */
int receipt_write(const struct receipt *r, const char *path, char *why);
int receipt_read(const char *path, struct receipt *out, char *why);

#endif
