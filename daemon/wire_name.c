/* The numbers of wire.h in words, as SPEC 6 and 8 spell them. */
#include "daemon/wire.h"

#include <stddef.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

struct name {
    uint32_t number;
    const char *name;
};

static const char *find(const struct name *names, size_t n_names, uint32_t number) {
    for (size_t i = 0; i < n_names; i++)
        if (names[i].number == number) return names[i].name;
    return "unknown";
}

static const struct {
    const char *name;
    uint8_t class;
} codes[] = {
    [WIRE_E_FRAME] = {"frame", WIRE_CLASS_FATAL},
    [WIRE_E_TYPE] = {"type", WIRE_CLASS_FATAL},
    [WIRE_E_VERSION] = {"version", WIRE_CLASS_FATAL},
    [WIRE_E_HELLO] = {"hello", WIRE_CLASS_FATAL},
    [WIRE_E_FIELD] = {"field", WIRE_CLASS_CLIENT},
    [WIRE_E_ID_IN_USE] = {"id_in_use", WIRE_CLASS_CLIENT},
    [WIRE_E_NO_REQUEST] = {"no_request", WIRE_CLASS_CLIENT},
    [WIRE_E_PROMPT] = {"prompt", WIRE_CLASS_CLIENT},
    [WIRE_E_TOO_LONG] = {"too_long", WIRE_CLASS_CLIENT},
    [WIRE_E_UNSUPPORTED] = {"unsupported", WIRE_CLASS_UNSUPPORTED},
    [WIRE_E_TEMPLATE] = {"template", WIRE_CLASS_UNSUPPORTED},
    [WIRE_E_BUSY] = {"busy", WIRE_CLASS_BUSY},
    [WIRE_E_DRAINING] = {"draining", WIRE_CLASS_BUSY},
    [WIRE_E_NUMERIC] = {"numeric", WIRE_CLASS_SERVER},
    [WIRE_E_DEVICE] = {"device", WIRE_CLASS_SERVER},
    [WIRE_E_CREDIT] = {"credit", WIRE_CLASS_FATAL},
    [WIRE_E_SLOW] = {"slow", WIRE_CLASS_FATAL},
    [WIRE_E_INTERNAL] = {"internal", WIRE_CLASS_SERVER},
    [WIRE_E_CAPACITY] = {"capacity", WIRE_CLASS_CLIENT},
};

static const struct name types[] = {
    {WIRE_HELLO, "HELLO"},
    {WIRE_SUBMIT, "SUBMIT"},
    {WIRE_PROMPT, "PROMPT"},
    {WIRE_CANCEL, "CANCEL"},
    {WIRE_CREDIT, "CREDIT"},
    {WIRE_PING, "PING"},
    {WIRE_TOKENIZE, "TOKENIZE"},
    {WIRE_DETOKENIZE, "DETOKENIZE"},
    {WIRE_INFO, "INFO"},
    {WIRE_ADMIN_CANCEL, "ADMIN_CANCEL"},
    {WIRE_HELLO_OK, "HELLO_OK"},
    {WIRE_ACCEPTED, "ACCEPTED"},
    {WIRE_TOKENS, "TOKENS"},
    {WIRE_LOGPROBS, "LOGPROBS"},
    {WIRE_PROMPT_LOGPROBS, "PROMPT_LOGPROBS"},
    {WIRE_DONE, "DONE"},
    {WIRE_ERROR, "ERROR"},
    {WIRE_PONG, "PONG"},
    {WIRE_SHUTDOWN, "SHUTDOWN"},
    {WIRE_INFO_OK, "INFO_OK"},
    {WIRE_TOKENIZED, "TOKENIZED"},
    {WIRE_DETOKENIZED, "DETOKENIZED"},
    {WIRE_PROMPT_IDS, "PROMPT_IDS"},
    {WIRE_ADMIN_OK, "ADMIN_OK"},
};

static const struct name finishes[] = {
    {WIRE_FINISH_STOP, "stop"},
    {WIRE_FINISH_LENGTH, "length"},
    {WIRE_FINISH_CANCELLED, "cancelled"},
    {WIRE_FINISH_DEADLINE, "deadline"},
};

static const struct name classes[] = {
    {WIRE_CLASS_CLIENT, "client"},
    {WIRE_CLASS_BUSY, "busy"},
    {WIRE_CLASS_UNSUPPORTED, "unsupported"},
    {WIRE_CLASS_SERVER, "server"},
    {WIRE_CLASS_FATAL, "fatal"},
};

static const struct name policies[] = {
    {WIRE_POLICY_CANONICAL, "canonical"},
    {WIRE_POLICY_TUNED, "tuned"},
    {WIRE_POLICY_AUTO, "auto"},
};

static const struct name fields[] = {
    {WIRE_F_NONE, "none"},
    {WIRE_F_FLAGS, "flags"},
    {WIRE_F_MAX_TOKENS, "max_tokens"},
    {WIRE_F_SEED, "seed"},
    {WIRE_F_TEMPERATURE, "temperature"},
    {WIRE_F_TOP_P, "top_p"},
    {WIRE_F_MIN_P, "min_p"},
    {WIRE_F_TOP_K, "top_k"},
    {WIRE_F_N, "n"},
    {WIRE_F_LOGPROBS, "logprobs"},
    {WIRE_F_PROMPT_LOGPROBS, "prompt_logprobs"},
    {WIRE_F_PRIORITY, "priority"},
    {WIRE_F_PROMPT_KIND, "prompt_kind"},
    {WIRE_F_DEADLINE, "deadline"},
    {WIRE_F_PROMPT_BYTES, "prompt_bytes"},
    {WIRE_F_RESERVED, "reserved"},
    {WIRE_F_TAG, "tag"},
    {WIRE_F_STOP_IDS, "stop_ids"},
    {WIRE_F_STOP_STRINGS, "stop_strings"},
    {WIRE_F_PROMPT, "prompt"},
    {WIRE_F_ROLE, "role"},
    {WIRE_F_TOPIC, "topic"},
    {WIRE_F_IDS, "ids"},
    {WIRE_F_VERSION, "version"},
    {WIRE_F_PAYLOAD_MAX, "payload_max"},
    {WIRE_F_CREDIT, "credit"},
    {WIRE_F_NAME, "name"},
    {WIRE_F_LAST, "last"},
};

const char *wire_code_name(uint16_t code) {
    return code < N_OF(codes) && codes[code].name ? codes[code].name : "unknown";
}

uint8_t wire_code_class(uint16_t code) {
    return code < N_OF(codes) && codes[code].name ? codes[code].class : WIRE_CLASS_SERVER;
}

const char *wire_class_name(uint8_t class) {
    return find(classes, N_OF(classes), class);
}

const char *wire_type_name(uint16_t type) {
    return find(types, N_OF(types), type);
}

const char *wire_finish_name(uint8_t finish) {
    return find(finishes, N_OF(finishes), finish);
}

const char *wire_policy_name(uint8_t policy) {
    return find(policies, N_OF(policies), policy);
}

const char *wire_field_name(uint32_t field) {
    return find(fields, N_OF(fields), field);
}
