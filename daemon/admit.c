#include "daemon/admit.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/err.h"
#include "runtime/template.h"
#include "runtime/token.h"

_Static_assert((int)WIRE_STOP_IDS_MAX <= (int)ENGINE_STOP_IDS_MAX, "stop ids");
_Static_assert((int)WIRE_STOP_STRINGS_MAX <= (int)ENGINE_STOP_STRINGS_MAX, "stop strings");
_Static_assert((int)WIRE_STOP_STRING_BYTES_MAX <= (int)ENGINE_STOP_STRING_BYTES_MAX, "a string");
_Static_assert((int)WIRE_TOP_MAX == (int)SAMPLE_TOP_MAX, "most probable ids");

int admit_refuse(struct admit_refusal *out, uint16_t code, uint32_t field, const char *fmt, ...) {
    va_list args;

    out->code = code;
    out->field = field;
    va_start(args, fmt);
    (void)vsnprintf(out->text, sizeof(out->text), fmt, args);
    va_end(args);
    return -EINVAL;
}

int admit_refuse_fault(struct admit_refusal *out, const struct wire_fault *f) {
    const char *name = wire_field_name(f->field);

    if (f->field == WIRE_F_NONE) return admit_refuse(out, f->code, f->field, "%s", f->text);
    return admit_refuse(out, f->code, f->field, "%s: %s", name, f->text);
}

static bool id_known(const struct admit_limits *l, uint32_t id) {
    uint32_t n;
    bool special;

    return id < l->vocab && token_bytes(l->token, id, &n, &special) != NULL;
}

/* No template reads its messages for special tokens (template.h), so this is not to be had. */
static int special_refused(uint8_t kind, uint32_t flags, struct admit_refusal *out) {
    if (kind != WIRE_PROMPT_KIND_CHAT || !(flags & WIRE_SUBMIT_SPECIAL)) return 0;
    return admit_refuse(out, WIRE_E_UNSUPPORTED, WIRE_F_FLAGS,
                        "flags: text in a chat is never read as special tokens");
}

int admit_submit(const struct wire_submit *s, const struct admit_limits *l,
                 struct admit_refusal *out) {
    bool is_ids = s->prompt_kind == WIRE_PROMPT_KIND_IDS;
    uint64_t bytes_max = is_ids ? 4 * (uint64_t)l->context : l->text_bytes_max;

    if (l->lost) return admit_refuse(out, WIRE_E_DEVICE, WIRE_F_NONE, "the device is lost");
    if (l->draining)
        return admit_refuse(out, WIRE_E_DRAINING, WIRE_F_NONE, "the server is shutting down");
    if (s->flags & WIRE_SUBMIT_DETERMINISTIC && s->temperature > 0 &&
        !(s->flags & WIRE_SUBMIT_SEED))
        return admit_refuse(out, WIRE_E_FIELD, WIRE_F_SEED,
                            "seed: a deterministic request with a temperature needs one");
    if (special_refused(s->prompt_kind, s->flags, out) < 0) return -EINVAL;
    /* One position holds a prompt's only token at least. */
    if (s->max_tokens >= l->context)
        return admit_refuse(out, WIRE_E_TOO_LONG, WIRE_F_MAX_TOKENS,
                            "max_tokens is %u, the context has %u positions", s->max_tokens,
                            l->context);
    for (uint32_t i = 0; i < s->n_stop_ids; i++)
        if (!id_known(l, s->stop_ids[i]))
            return admit_refuse(out, WIRE_E_FIELD, WIRE_F_STOP_IDS,
                                "stop_ids: %u is no id of this vocabulary", s->stop_ids[i]);
    if (s->prompt_bytes > bytes_max)
        return admit_refuse(out, WIRE_E_TOO_LONG, WIRE_F_PROMPT_BYTES,
                            "prompt_bytes is %u, the limit is %llu", s->prompt_bytes,
                            (unsigned long long)bytes_max);
    if (l->requests_left == 0)
        return admit_refuse(out, WIRE_E_BUSY, WIRE_F_NONE,
                            "too many requests of this connection are live");
    if (s->prompt_bytes > l->prompts_bytes_left)
        return admit_refuse(out, WIRE_E_BUSY, WIRE_F_PROMPT_BYTES,
                            "too many bytes of prompts are on their way");
    return 0;
}

void admit_request(const struct wire_submit *s, uint64_t now_us, struct engine_request *q) {
    *q = (struct engine_request){
        .max_tokens = s->max_tokens,
        .deterministic = s->flags & WIRE_SUBMIT_DETERMINISTIC,
        .ignore_eos = s->flags & WIRE_SUBMIT_IGNORE_EOS,
        .params = {.temperature = s->temperature,
                   .top_p = s->top_p,
                   .min_p = s->min_p,
                   .top_k = s->top_k,
                   .seed = s->seed},
        .n_stop_ids = s->n_stop_ids,
        .n_stop_strings = s->n_stop_strings,
        .n_top = s->logprobs ? s->logprobs - 1u : 0,
        .prompt_logprobs = s->prompt_logprobs != 0,
        .n_prompt_top = s->prompt_logprobs ? s->prompt_logprobs - 1u : 0,
        .queue_deadline_us =
            s->queue_deadline_ms ? now_us + 1000 * (uint64_t)s->queue_deadline_ms : 0,
        .deadline_us = s->deadline_ms ? now_us + 1000 * (uint64_t)s->deadline_ms : 0};
    for (uint32_t i = 0; i < s->n_stop_ids; i++) q->stop_ids[i] = s->stop_ids[i];
    for (uint32_t i = 0; i < s->n_stop_strings; i++) {
        q->stop_strings[i].n_bytes = (uint16_t)s->stop_strings[i].n_bytes;
        memcpy(q->stop_strings[i].bytes, s->stop_strings[i].bytes, s->stop_strings[i].n_bytes);
    }
}

int admit_ids(const uint8_t *bytes, uint32_t n_ids, const struct admit_limits *l, uint32_t field,
              uint32_t *out_ids, struct admit_refusal *out) {
    for (uint32_t i = 0; i < n_ids; i++) {
        uint32_t id = wire_u32_at(bytes, i);

        if (!id_known(l, id))
            return admit_refuse(out, WIRE_E_PROMPT, field,
                                "id %u at place %u is no id of this vocabulary", id, i);
        out_ids[i] = id;
    }
    return 0;
}

static int64_t chat_encode(const struct template *t, const uint8_t *data, uint32_t n_data,
                           const struct admit_limits *l, uint32_t *out_ids, uint32_t n_ids_max,
                           struct admit_refusal *out, struct err *e) {
    struct template_message *all = calloc(WIRE_MESSAGES_MAX, sizeof(*all));
    struct wire_message m;
    size_t offset = 0;
    uint32_t n = 0;
    int64_t r;

    if (!all) return admit_refuse(out, WIRE_E_INTERNAL, WIRE_F_NONE, "out of memory");
    while ((r = wire_message_read(data, n_data, &offset, &m)) == 1) {
        if (n == WIRE_MESSAGES_MAX) {
            r = admit_refuse(out, WIRE_E_PROMPT, WIRE_F_PROMPT, "more than %d messages",
                             (int)WIRE_MESSAGES_MAX);
            goto out;
        }
        all[n++] =
            (struct template_message){.role = m.role == WIRE_ROLE_SYSTEM ? TEMPLATE_SYSTEM
                                              : m.role == WIRE_ROLE_USER ? TEMPLATE_USER
                                                                         : TEMPLATE_ASSISTANT,
                                      .text = m.text,
                                      .n_bytes = m.n_bytes};
    }
    if (r < 0) {
        r = admit_refuse(out, WIRE_E_PROMPT, r == -EINVAL ? WIRE_F_ROLE : WIRE_F_PROMPT,
                         r == -EINVAL ? "role: 0 (system), 1 (user) or 2 (assistant)"
                                      : "a message goes beyond the prompt");
        goto out;
    }
    if (n == 0) {
        r = admit_refuse(out, WIRE_E_PROMPT, WIRE_F_PROMPT, "a chat without a message");
        goto out;
    }
    r = template_encode(t, l->token, all, n, out_ids, n_ids_max, e);
    if (r == -ENOTSUP)
        r = admit_refuse(out, WIRE_E_TEMPLATE, WIRE_F_PROMPT_KIND, "%s", e->text);
    else if (r == -EINVAL)
        r = admit_refuse(out, WIRE_E_PROMPT, WIRE_F_PROMPT, "%s", e->text);
out:
    free(all);
    return r;
}

int64_t admit_text(const struct template *t, uint8_t kind, uint32_t flags, const uint8_t *data,
                   uint32_t n_data, const struct admit_limits *l, uint32_t *out_ids,
                   uint32_t n_ids_max, struct admit_refusal *out) {
    unsigned how = (flags & WIRE_SUBMIT_RAW ? 0u : (unsigned)TOKEN_ENCODE_TEMPLATE) |
                   (flags & WIRE_SUBMIT_SPECIAL ? (unsigned)TOKEN_ENCODE_SPECIAL : 0u);
    struct err e = {{0}};
    int64_t r;

    if (special_refused(kind, flags, out) < 0) return -EINVAL;
    if (kind == WIRE_PROMPT_KIND_CHAT) {
        r = chat_encode(t, data, n_data, l, out_ids, n_ids_max, out, &e);
    } else {
        r = token_encode(l->token, (const char *)data, n_data, how, out_ids, n_ids_max, &e);
        if (r == -EINVAL) return admit_refuse(out, WIRE_E_PROMPT, WIRE_F_PROMPT, "%s", e.text);
    }
    if (r == -EMSGSIZE)
        return admit_refuse(out, WIRE_E_TOO_LONG, WIRE_F_PROMPT, "more than %u tokens", n_ids_max);
    if (r < 0 && r != -EINVAL)
        return admit_refuse(out, WIRE_E_INTERNAL, WIRE_F_PROMPT, "%s",
                            e.text[0] ? e.text : strerror((int)-r));
    return r;
}

int admit_engine(int r, const struct err *e, struct admit_refusal *out) {
    uint16_t code = r == -EINVAL     ? WIRE_E_FIELD
                    : r == -EMSGSIZE ? WIRE_E_TOO_LONG
                    : r == -ENOSPC   ? WIRE_E_CAPACITY
                    : r == -EBUSY    ? WIRE_E_BUSY
                    : r == -EIO      ? WIRE_E_DEVICE
                    : r == -ENOTSUP  ? WIRE_E_UNSUPPORTED
                    : r == -EDOM     ? WIRE_E_NUMERIC
                                     : WIRE_E_INTERNAL;

    return admit_refuse(out, code, WIRE_F_NONE, "%s", e->text[0] ? e->text : strerror(-r));
}
