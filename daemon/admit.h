/* admit - who is let in: what a SUBMIT may ask of this server, and what it becomes.
 *
 * Owns:   nothing; every function is pure.
 * Thread: any.
 * Fails:  with -EINVAL and *out_refusal, which is the ERROR to be sent, in full.
 *
 * wire has judged what can be judged without knowing the model; here the vocabulary, the context
 * and the settings speak.  Nothing behind this point checks again what a client may ask. */
#ifndef LLM42D_DAEMON_ADMIT_H
#define LLM42D_DAEMON_ADMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/wire.h"
#include "runtime/engine.h"

struct admit_limits {
    const struct token *token;
    uint32_t context, vocab;
    uint32_t text_bytes_max;
    uint64_t prompts_bytes_left; /* of prompts still on their way, all connections */
    uint32_t requests_left;      /* of this connection */
    bool draining, lost;
};

struct admit_refusal {
    uint16_t code;  /* enum wire_code */
    uint32_t field; /* enum wire_field */
    char text[WIRE_ERROR_TEXT_MAX];
};

/* Fills *out and returns -EINVAL: a refusal is then one line. */
int admit_refuse(struct admit_refusal *out, uint16_t code, uint32_t field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The same of what wire found. */
int admit_refuse_fault(struct admit_refusal *out, const struct wire_fault *f);

/* Judges a SUBMIT before a byte of its prompt is taken. */
int admit_submit(const struct wire_submit *s, const struct admit_limits *l,
                 struct admit_refusal *out_refusal);
/* The engine's request of a SUBMIT that was let in: all but prompt, seed drawn, grant. */
void admit_request(const struct wire_submit *s, uint64_t now_us, struct engine_request *out);

/* Every id has a text: the embedding's padded rows and holes in the vocabulary are not ids.  The
 * ids are read from `bytes` into `out_ids`. */
int admit_ids(const uint8_t *bytes, uint32_t n_ids, const struct admit_limits *l, uint32_t field,
              uint32_t *out_ids, struct admit_refusal *out_refusal);
/* Ids of a text or a chat: the count, at most context, in out_ids (room for context). */
int64_t admit_text(const struct template *t, uint8_t kind, uint32_t flags, const uint8_t *data,
                   uint32_t n_data, const struct admit_limits *l, uint32_t *out_ids,
                   uint32_t n_ids_max, struct admit_refusal *out_refusal);

/* What engine_submit's errno means to the client. */
int admit_engine(int r, const struct err *e, struct admit_refusal *out_refusal);

#endif
