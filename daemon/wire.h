/* wire - frames of the client protocol as bytes, and nothing else (SPEC 6).
 *
 * Owns:   nothing; every function is pure and allocates nothing.
 * Thread: any.
 *
 *    offset  size  field
 *         0     4  payload_bytes  0 .. the connection's limit, WIRE_PAYLOAD_DEFAULT before HELLO_OK
 *         4     2  type           enum wire_type
 *         6     2  flags          zero in version 1
 *         8     8  request        chosen by the client, echoed in every answer; 0: the connection
 *        16     -  payload        a struct below, byte tables in SPEC 6
 *
 * Credit, in bytes of whole frames, pays for TOKENS, LOGPROBS and PROMPT_LOGPROBS and for nothing
 * else: a frame of these is sent only if what is left covers it.  CREDIT (request 0) adds to it.
 *
 * All integers are little-endian, floats are IEEE binary32 bits.  wire_read_X returns 0 and
 * *out, or -EBADMSG for a payload that cannot be one (length, reserved bytes, order of tags), or
 * -EINVAL for one that is well formed and asks for what cannot be; out_fault then names the field.
 * Pointers in what was read lead into the payload.  wire_write_X appends a whole frame to `buf`
 * and returns its bytes, or 0 where it does not fit in n_bytes_max. */
#ifndef LLM42D_DAEMON_WIRE_H
#define LLM42D_DAEMON_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    WIRE_VERSION = 1,
    WIRE_HEADER_BYTES = 16,
    WIRE_PAYLOAD_DEFAULT = 1 << 16,
    WIRE_PAYLOAD_MIN = 1 << 12, /* a HELLO that asks for less is refused */
    WIRE_PAYLOAD_MAX = 1 << 20, /* negotiable so far */
    WIRE_CREDIT_DEFAULT = 1 << 20,
    WIRE_CREDIT_MAX = 1 << 30,
    WIRE_CREDIT_MIN = 1 << 12, /* the same */
    WIRE_NAME_MAX = 64,        /* of a client */
    WIRE_MODEL_MAX = 255,      /* bytes of the model's name: a file name fits */
    WIRE_STOP_IDS_MAX = 16,
    WIRE_STOP_STRINGS_MAX = 16,
    WIRE_STOP_STRING_BYTES_MAX = 256,
    WIRE_TOP_MAX = 20,
    WIRE_ERROR_TEXT_MAX = 256,
    WIRE_PING_MAX = 64,
    WIRE_DIGEST_BYTES = 32,
    WIRE_MESSAGES_MAX = 1024,
    WIRE_DONE_BYTES = 128,
};

enum wire_type {
    WIRE_HELLO = 1,
    WIRE_SUBMIT = 2,
    WIRE_PROMPT = 3,
    WIRE_CANCEL = 4,
    WIRE_CREDIT = 5,
    WIRE_PING = 6,
    WIRE_TOKENIZE = 7,
    WIRE_DETOKENIZE = 8,
    WIRE_INFO = 9,
    WIRE_ADMIN_CANCEL = 0x40, /* admin socket alone */

    WIRE_HELLO_OK = 0x8001,
    WIRE_ACCEPTED = 0x8002,
    WIRE_TOKENS = 0x8003,
    WIRE_LOGPROBS = 0x8004,
    WIRE_PROMPT_LOGPROBS = 0x8005,
    WIRE_DONE = 0x8006,
    WIRE_ERROR = 0x8007,
    WIRE_PONG = 0x8008,
    WIRE_SHUTDOWN = 0x8009,
    WIRE_INFO_OK = 0x800a,
    WIRE_TOKENIZED = 0x800b,
    WIRE_DETOKENIZED = 0x800c,
    WIRE_PROMPT_IDS = 0x800d,
    WIRE_ADMIN_OK = 0x8040,
};

enum wire_submit_flags {
    WIRE_SUBMIT_DETERMINISTIC = 1 << 0,
    WIRE_SUBMIT_IGNORE_EOS = 1 << 1,
    WIRE_SUBMIT_SPECIAL =
        1 << 2,               /* special tokens in a text prompt are found, else they are text */
    WIRE_SUBMIT_RAW = 1 << 3, /* a text prompt without what TemplateProcessing adds */
    WIRE_SUBMIT_IDS_ONLY = 1 << 4, /* no text in TOKENS */
    WIRE_SUBMIT_SEED = 1 << 5,     /* `seed` is given; else the server draws one and says which */
    WIRE_SUBMIT_ECHO_IDS = 1 << 6, /* PROMPT_IDS after ACCEPTED */
    WIRE_SUBMIT_FLAGS_ALL = (1 << 7) - 1,
};

enum wire_prompt_kind { WIRE_PROMPT_KIND_IDS = 1, WIRE_PROMPT_KIND_TEXT, WIRE_PROMPT_KIND_CHAT };
enum wire_role { WIRE_ROLE_SYSTEM, WIRE_ROLE_USER, WIRE_ROLE_ASSISTANT };
enum wire_policy { WIRE_POLICY_CANONICAL, WIRE_POLICY_TUNED, WIRE_POLICY_AUTO };
enum wire_info { WIRE_INFO_ALL, WIRE_INFO_STATUS, WIRE_INFO_SCHEDULES, WIRE_INFO_CONFIG };

/* SPEC 6.9; the numbers enter the digest. */
enum wire_finish {
    WIRE_FINISH_STOP = 1, /* a stop id, an end-of-text id, a stop string */
    WIRE_FINISH_LENGTH = 2,
    WIRE_FINISH_CANCELLED = 3,
    WIRE_FINISH_DEADLINE = 4,
};
enum wire_stop_kind { WIRE_STOP_NONE, WIRE_STOP_ID, WIRE_STOP_STRING };

enum wire_class {
    WIRE_CLASS_CLIENT = 1, /* the request is wrong; the same again fails again */
    WIRE_CLASS_BUSY,       /* later, perhaps */
    WIRE_CLASS_UNSUPPORTED,
    WIRE_CLASS_SERVER, /* ours; this request failed */
    WIRE_CLASS_FATAL,  /* the connection or the daemon ends */
};

/* Errors by name: SPEC 8.  Stable numbers. */
enum wire_code {
    WIRE_E_FRAME = 1,        /* malformed frame: fatal to the connection */
    WIRE_E_TYPE = 2,         /* a type that this socket does not take: fatal */
    WIRE_E_VERSION = 3,      /* no common version: fatal */
    WIRE_E_HELLO = 4,        /* no HELLO first, or a second one: fatal */
    WIRE_E_FIELD = 5,        /* a field out of range; `field` says which */
    WIRE_E_ID_IN_USE = 6,    /* the request id is live on this connection */
    WIRE_E_NO_REQUEST = 7,   /* CANCEL or PROMPT for an id that is not live */
    WIRE_E_PROMPT = 8,       /* prompt empty, not UTF-8, ids out of range, bytes as not announced */
    WIRE_E_TOO_LONG = 9,     /* prompt, or prompt and max_tokens, over the context */
    WIRE_E_UNSUPPORTED = 10, /* a feature without a verified meaning, or an unknown tag or flag */
    WIRE_E_TEMPLATE = 11,    /* the model has no chat template that we know */
    WIRE_E_BUSY = 12,        /* queue full, or too many requests of this connection */
    WIRE_E_DRAINING = 13,
    WIRE_E_NUMERIC = 14, /* a row left the range of the arithmetic; nothing of it was committed */
    WIRE_E_DEVICE = 15,  /* the device is lost */
    WIRE_E_CREDIT = 16,  /* credit beyond WIRE_CREDIT_MAX: fatal */
    WIRE_E_SLOW = 17,    /* the client did not read for too long: fatal */
    WIRE_E_INTERNAL = 18,
    WIRE_E_CAPACITY = 19, /* it can never fit the configured KV cache */
};
/* Names as SPEC writes them, "unknown" for other numbers. */
const char *wire_code_name(uint16_t code);
const char *wire_class_name(uint8_t class);
const char *wire_type_name(uint16_t type);
const char *wire_finish_name(uint8_t finish);
const char *wire_policy_name(uint8_t policy);
uint8_t wire_code_class(uint16_t code); /* enum wire_class; SERVER for unknown codes */

/* Fields of SUBMIT and others by number, for ERROR.field: SPEC 8. */
enum wire_field {
    WIRE_F_NONE,
    WIRE_F_FLAGS,
    WIRE_F_MAX_TOKENS,
    WIRE_F_SEED,
    WIRE_F_TEMPERATURE,
    WIRE_F_TOP_P,
    WIRE_F_MIN_P,
    WIRE_F_TOP_K,
    WIRE_F_N,
    WIRE_F_LOGPROBS,
    WIRE_F_PROMPT_LOGPROBS,
    WIRE_F_PRIORITY,
    WIRE_F_PROMPT_KIND,
    WIRE_F_DEADLINE,
    WIRE_F_PROMPT_BYTES,
    WIRE_F_RESERVED,
    WIRE_F_TAG,
    WIRE_F_STOP_IDS,
    WIRE_F_STOP_STRINGS,
    WIRE_F_PROMPT,
    WIRE_F_ROLE,
    WIRE_F_TOPIC,
    WIRE_F_IDS,
    WIRE_F_VERSION,
    WIRE_F_PAYLOAD_MAX,
    WIRE_F_CREDIT,
    WIRE_F_NAME,
    WIRE_F_LAST,
};
const char *wire_field_name(uint32_t field);

struct wire_fault {
    uint32_t field;   /* enum wire_field */
    uint16_t code;    /* enum wire_code */
    const char *text; /* static */
};

struct wire_frame {
    uint16_t type;
    uint32_t payload_bytes;
    uint64_t request;
    const uint8_t *payload; /* into the caller's buffer, valid as long as it is */
};

/* Reads the frame at the front of `bytes`.
 *   > 0        the bytes it took, and *out_frame
 *   -EAGAIN    not all of it is here yet
 *   -EBADMSG   it can never become a frame (length over payload_max, flags): close */
int64_t wire_read(const uint8_t *bytes, size_t n_bytes, uint32_t payload_max,
                  struct wire_frame *out_frame);

struct wire_hello {
    uint16_t version_min, version_max;
    uint64_t features;
    uint32_t payload_max; /* 0: the default */
    uint32_t credit;      /* 0: the default */
    const char *name;     /* UTF-8, not terminated */
    uint32_t n_name;
};
struct wire_hello_ok {
    uint16_t version;
    uint64_t features;
    uint32_t payload_max, credit;
    uint64_t epoch; /* another after every start of the server */
    uint32_t context, vocab, requests_max, text_bytes_max;
    uint16_t top_max;
    uint8_t fingerprint[WIRE_DIGEST_BYTES];
    const char *model;
    uint32_t n_model;
};
struct wire_stop_string {
    const uint8_t *bytes;
    uint32_t n_bytes; /* 1 .. WIRE_STOP_STRING_BYTES_MAX */
};
struct wire_submit {
    uint32_t flags;
    uint32_t max_tokens;
    uint64_t seed;
    float temperature, top_p, min_p;
    uint32_t top_k;
    uint16_t n;               /* 1 */
    uint16_t logprobs;        /* 0: none are sent; 1 + N: with the N most probable */
    uint16_t prompt_logprobs; /* the same, of the prompt */
    int8_t priority;          /* 0 */
    uint8_t prompt_kind;
    uint32_t queue_deadline_ms, deadline_ms; /* 0: none */
    uint32_t prompt_bytes;                   /* of all PROMPT data together */
    uint32_t n_stop_ids;
    uint32_t stop_ids[WIRE_STOP_IDS_MAX];
    uint32_t n_stop_strings;
    struct wire_stop_string stop_strings[WIRE_STOP_STRINGS_MAX];
};
/* PROMPT, and the answers that may take several frames: PROMPT_IDS, TOKENIZED, DETOKENIZED,
 * INFO_OK.  Their data is what the parts hold one after the other, up to the one marked last. */
struct wire_prompt {
    bool last;
    const uint8_t *data; /* ids: u32 each; text; chat: wire_message_read */
    uint32_t n_data;
};
struct wire_message {
    uint8_t role;
    const char *text;
    uint32_t n_bytes;
};
struct wire_accepted {
    uint64_t server_id; /* of the request, for admin verbs */
    uint32_t flags, max_tokens;
    uint64_t seed;
    float temperature, top_p, min_p;
    uint32_t top_k;
    uint32_t n_prompt, queue_place;
    uint16_t logprobs, prompt_logprobs;
    uint32_t n_stop_ids; /* in force: the request's own first, then the end-of-text ids */
    uint8_t policy;
    uint32_t window;
};
struct wire_tokens {
    uint32_t first; /* index of the first id among the output's */
    uint32_t n_tokens;
    const uint8_t *ids; /* u32 each, wire_u32_at */
    uint32_t n_text;
    const uint8_t *text; /* whole UTF-8 characters; may lag behind the ids */
};
struct wire_logprob {
    uint32_t id;
    uint32_t bits; /* of the binary32 */
};
struct wire_logprobs { /* LOGPROBS and PROMPT_LOGPROBS */
    uint32_t first;    /* index among the output's, or position in the prompt */
    uint32_t n_tokens;
    uint16_t n_top;
    const uint8_t *records; /* n_tokens times (1 + n_top) wire_logprob; wire_logprob_at */
};
struct wire_done {
    uint8_t finish, stop_kind;
    uint16_t stop_index; /* of the stop id or string among those in force */
    uint32_t n_prompt, n_output, n_cached;
    uint32_t verify_passes, rollbacks, recomputed, certified;
    uint8_t digest[WIRE_DIGEST_BYTES];
    uint8_t fingerprint[WIRE_DIGEST_BYTES];
    uint64_t queue_us, prefill_us, decode_us, total_us;
};
struct wire_error {
    uint16_t code;
    uint8_t class;
    uint8_t retry_100ms; /* 0: no hint */
    uint32_t field;
    const char *text;
    uint32_t n_text;
};
struct wire_tokenize {
    uint8_t kind;  /* TEXT or CHAT */
    uint8_t flags; /* WIRE_SUBMIT_SPECIAL, WIRE_SUBMIT_RAW */
    const uint8_t *data;
    uint32_t n_data;
};

uint32_t wire_u32_at(const uint8_t *bytes, uint32_t index);
struct wire_logprob wire_logprob_at(const struct wire_logprobs *l, uint32_t token, uint32_t place);

int wire_read_hello(const struct wire_frame *f, struct wire_hello *out,
                    struct wire_fault *out_fault);
int wire_read_hello_ok(const struct wire_frame *f, struct wire_hello_ok *out);
int wire_read_submit(const struct wire_frame *f, struct wire_submit *out,
                     struct wire_fault *out_fault);
int wire_read_prompt(const struct wire_frame *f, struct wire_prompt *out,
                     struct wire_fault *out_fault);
int wire_read_accepted(const struct wire_frame *f, struct wire_accepted *out);
int wire_read_tokens(const struct wire_frame *f, struct wire_tokens *out);
int wire_read_logprobs(const struct wire_frame *f, struct wire_logprobs *out);
int wire_read_done(const struct wire_frame *f, struct wire_done *out);
int wire_read_error(const struct wire_frame *f, struct wire_error *out);
int wire_read_tokenize(const struct wire_frame *f, struct wire_tokenize *out,
                       struct wire_fault *out_fault);
int wire_read_u32(const struct wire_frame *f,
                  uint32_t *out); /* CREDIT, SHUTDOWN (ms), INFO (topic) */
int wire_read_u64(const struct wire_frame *f, uint64_t *out); /* ADMIN_CANCEL (server id) */
/* PROMPT_IDS, TOKENIZED, DETOKENIZED, INFO_OK. */
int wire_read_part(const struct wire_frame *f, struct wire_prompt *out);
/* The next message of chat data, moving *offset; 0 at the end, 1, -EBADMSG, or -EINVAL for a role
 * that is none. */
int wire_message_read(const uint8_t *data, size_t n_data, size_t *offset, struct wire_message *out);

size_t
wire_write(uint8_t *buf, size_t n_bytes_max, uint16_t type, uint64_t request, const void *payload,
           size_t n_payload); /* plain bytes: PING, PONG, DETOKENIZE; none: CANCEL, ADMIN_OK */
/* One part of PROMPT_IDS, TOKENIZED, DETOKENIZED or INFO_OK; n_data at most the connection's
 * payload limit less 4. */
size_t wire_write_part(uint8_t *buf, size_t n_bytes_max, uint16_t type, uint64_t request,
                       const struct wire_prompt *part);
size_t wire_write_hello(uint8_t *buf, size_t n_bytes_max, const struct wire_hello *h);
size_t wire_write_hello_ok(uint8_t *buf, size_t n_bytes_max, const struct wire_hello_ok *h);
size_t wire_write_submit(uint8_t *buf, size_t n_bytes_max, uint64_t request,
                         const struct wire_submit *s);
size_t wire_write_prompt(uint8_t *buf, size_t n_bytes_max, uint64_t request,
                         const struct wire_prompt *p);
size_t wire_write_accepted(uint8_t *buf, size_t n_bytes_max, uint64_t request,
                           const struct wire_accepted *a);
size_t wire_write_tokens(uint8_t *buf, size_t n_bytes_max, uint64_t request, uint32_t first,
                         const uint32_t *ids, uint32_t n_tokens, const uint8_t *text,
                         uint32_t n_text);
size_t wire_write_logprobs(uint8_t *buf, size_t n_bytes_max, uint16_t type, uint64_t request,
                           uint32_t first, const struct wire_logprob *records, uint32_t n_tokens,
                           uint16_t n_top);
size_t wire_write_done(uint8_t *buf, size_t n_bytes_max, uint64_t request,
                       const struct wire_done *d);
size_t wire_write_error(uint8_t *buf, size_t n_bytes_max, uint64_t request,
                        const struct wire_error *e);
size_t wire_write_tokenize(uint8_t *buf, size_t n_bytes_max, uint64_t request,
                           const struct wire_tokenize *t);
size_t wire_write_u32(uint8_t *buf, size_t n_bytes_max, uint16_t type, uint64_t request,
                      uint32_t value);
size_t wire_write_u64(uint8_t *buf, size_t n_bytes_max, uint16_t type, uint64_t request,
                      uint64_t value);
/* One message of chat data (not a frame); bytes, or 0. */
size_t wire_message_write(uint8_t *buf, size_t n_bytes_max, const struct wire_message *m);

#endif
