/* A receipt as a file: SPEC 6.8. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/receipt.h"
#include "tools/receipt_value.h"

/* ---- Out ---- */

static json_t *list(const struct receipt_u32 *l) {
    json_t *j = json_array();

    for (size_t i = 0; i < l->n; i++) json_array_append_new(j, json_integer(l->values[i]));
    return j;
}

/* A row a token: id, bits, and the same of the most probable ones. */
static json_t *rows(const struct receipt_u32 *l, uint32_t n_top) {
    size_t n_record = 2 * (1 + (size_t)n_top);
    json_t *j = json_array();

    for (size_t i = 0; i + n_record <= l->n; i += n_record) {
        json_t *row = json_array();

        for (size_t k = i; k < i + n_record; k += 2) {
            json_array_append_new(row, json_integer(l->values[k]));
            json_array_append_new(row, receipt_value_bits(l->values[k + 1]));
        }
        json_array_append_new(j, row);
    }
    return j;
}

static json_t *float_bits(float value) {
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return receipt_value_bits(bits);
}

static json_t *request(const struct receipt *r) {
    const struct wire_submit *s = &r->submit;
    json_t *ids = json_array(), *strings = json_array();

    for (uint32_t i = 0; i < s->n_stop_ids; i++)
        json_array_append_new(ids, json_integer(s->stop_ids[i]));
    for (uint32_t i = 0; i < s->n_stop_strings; i++)
        json_array_append_new(
            strings, receipt_value_hex(s->stop_strings[i].bytes, s->stop_strings[i].n_bytes));
    return json_pack("{so sb sb sI so so so so sI si si so so}", "prompt", list(&r->prompt),
                     "deterministic", (s->flags & WIRE_SUBMIT_DETERMINISTIC) != 0, "ignore_eos",
                     (s->flags & WIRE_SUBMIT_IGNORE_EOS) != 0, "max_tokens",
                     (json_int_t)s->max_tokens, "seed", receipt_value_whole(s->seed), "temperature",
                     float_bits(s->temperature), "top_p", float_bits(s->top_p), "min_p",
                     float_bits(s->min_p), "top_k", (json_int_t)s->top_k, "logprobs",
                     (int)s->logprobs, "prompt_logprobs", (int)s->prompt_logprobs, "stop_ids", ids,
                     "stop_hex", strings);
}

static json_t *reply(const struct receipt *r) {
    return json_pack("{so so so so ss si si so}", "tokens", list(&r->ids), "logprobs",
                     rows(&r->records, receipt_n_top(r)), "prompt_logprobs",
                     rows(&r->prompt_records, receipt_n_prompt_top(r)), "text",
                     receipt_value_text(r->text.bytes, r->text.n), "finish_reason",
                     wire_finish_name(r->end.finish), "stop_kind", (int)r->end.stop_kind,
                     "stop_index", (int)r->end.stop_index, "digest",
                     receipt_value_hex(r->end.digest, WIRE_DIGEST_BYTES));
}

int receipt_write(const struct receipt *r, const char *path, char *why) {
    json_t *j = json_pack("{si si so so so so}", "llm42_receipt", RECEIPT_VERSION, "protocol",
                          (int)r->version, "model", receipt_value_text(r->model, strlen(r->model)),
                          "fingerprint", receipt_value_hex(r->fingerprint, WIRE_DIGEST_BYTES),
                          "request", request(r), "reply", reply(r));
    FILE *f = j ? fopen(path, "we") : NULL;
    int e = 0;

    if (!j) {
        snprintf(why, RECEIPT_TEXT_BYTES, "out of memory");
        return -ENOMEM;
    }
    if (!f)
        e = -errno;
    else if (json_dumpf(j, f, JSON_COMPACT) != 0 || fputc('\n', f) == EOF)
        e = -EIO;
    if (f && fclose(f) != 0 && e == 0) e = -errno;
    if (e != 0) snprintf(why, RECEIPT_TEXT_BYTES, "%s", strerror(-e));
    json_decref(j);
    return e;
}

/* ---- In ---- */

static bool hex_byte(const char *p, uint8_t *out) {
    unsigned value = 0;

    for (int i = 0; i < 2; i++) {
        char c = p[i];
        unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                         : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
                                                : 16;

        if (digit == 16) return false;
        value = value << 4 | digit;
    }
    *out = (uint8_t)value;
    return true;
}

/* n_max bytes at most; the count, or -1 for anything but that. */
static int hex(const json_t *j, uint8_t *out, size_t n_max) {
    const char *text = json_string_value(j);
    size_t n = json_string_length(j);

    if (!text || n % 2 != 0 || n / 2 > n_max) return -1;
    for (size_t i = 0; i < n / 2; i++)
        if (!hex_byte(text + 2 * i, &out[i])) return -1;
    return (int)(n / 2);
}

static bool bits(const json_t *j, uint32_t *out) {
    uint8_t b[4];

    if (hex(j, b, 4) != 4) return false;
    *out = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    return true;
}

static bool real(const json_t *j, float *out) {
    uint32_t b;

    if (!bits(j, &b)) return false;
    *out = receipt_value_float(b);
    return true;
}

static bool u32(const json_t *j, uint64_t max, uint32_t *out) {
    if (!json_is_integer(j) || json_integer_value(j) < 0 || (uint64_t)json_integer_value(j) > max)
        return false;
    *out = (uint32_t)json_integer_value(j);
    return true;
}

static bool seed(const json_t *j, uint64_t *out) {
    if (json_is_string(j)) return receipt_value_u64(json_string_value(j), 0, UINT64_MAX, out);
    if (!json_is_integer(j) || json_integer_value(j) < 0) return false;
    *out = (uint64_t)json_integer_value(j);
    return true;
}

static bool room_for(struct receipt_u32 *l, size_t n) {
    l->values = malloc((n + 1) * sizeof(*l->values));
    l->room = n + 1;
    return l->values != NULL;
}

static bool ids(const json_t *j, struct receipt_u32 *l) {
    if (!json_is_array(j) || !room_for(l, json_array_size(j))) return false;
    for (size_t i = 0; i < json_array_size(j); i++)
        if (!u32(json_array_get(j, i), UINT32_MAX, &l->values[l->n++])) return false;
    return true;
}

static bool read_rows(const json_t *j, struct receipt_u32 *l, uint32_t n_top) {
    size_t n_record = 2 * (1 + (size_t)n_top);

    if (!json_is_array(j) || !room_for(l, json_array_size(j) * n_record)) return false;
    for (size_t i = 0; i < json_array_size(j); i++) {
        const json_t *row = json_array_get(j, i);

        if (json_array_size(row) != n_record) return false;
        for (size_t k = 0; k < n_record; k += 2)
            if (!u32(json_array_get(row, k), UINT32_MAX, &l->values[l->n++]) ||
                !bits(json_array_get(row, k + 1), &l->values[l->n++]))
                return false;
    }
    return true;
}

/* The name of the first field that is not as it must be, or NULL. */
static const char *read_request(const json_t *j, struct receipt *r) {
    struct wire_submit *s = &r->submit;
    const json_t *stop_ids = json_object_get(j, "stop_ids"),
                 *stops = json_object_get(j, "stop_hex");
    uint32_t n = 0, n_prompt = 0;

    s->n = 1;
    s->prompt_kind = WIRE_PROMPT_KIND_IDS;
    s->flags = WIRE_SUBMIT_SEED;
    if (json_is_true(json_object_get(j, "deterministic"))) s->flags |= WIRE_SUBMIT_DETERMINISTIC;
    if (json_is_true(json_object_get(j, "ignore_eos"))) s->flags |= WIRE_SUBMIT_IGNORE_EOS;
    if (!ids(json_object_get(j, "prompt"), &r->prompt)) return "prompt";
    if (!u32(json_object_get(j, "max_tokens"), UINT32_MAX, &s->max_tokens)) return "max_tokens";
    if (!seed(json_object_get(j, "seed"), &s->seed)) return "seed";
    if (!real(json_object_get(j, "temperature"), &s->temperature)) return "temperature";
    if (!real(json_object_get(j, "top_p"), &s->top_p)) return "top_p";
    if (!real(json_object_get(j, "min_p"), &s->min_p)) return "min_p";
    if (!u32(json_object_get(j, "top_k"), INT32_MAX, &s->top_k)) return "top_k";
    if (!u32(json_object_get(j, "logprobs"), 1 + WIRE_TOP_MAX, &n)) return "logprobs";
    if (!u32(json_object_get(j, "prompt_logprobs"), 1 + WIRE_TOP_MAX, &n_prompt))
        return "prompt_logprobs";
    s->logprobs = (uint16_t)n;
    s->prompt_logprobs = (uint16_t)n_prompt;
    if (!json_is_array(stop_ids) || json_array_size(stop_ids) > WIRE_STOP_IDS_MAX)
        return "stop_ids";
    for (size_t i = 0; i < json_array_size(stop_ids); i++)
        if (!u32(json_array_get(stop_ids, i), UINT32_MAX, &s->stop_ids[s->n_stop_ids++]))
            return "stop_ids";
    if (!json_is_array(stops) || json_array_size(stops) > WIRE_STOP_STRINGS_MAX) return "stop_hex";
    for (size_t i = 0; i < json_array_size(stops); i++) {
        int n_bytes = hex(json_array_get(stops, i), r->stop_bytes[i], WIRE_STOP_STRING_BYTES_MAX);

        if (n_bytes < 1) return "stop_hex";
        s->stop_strings[s->n_stop_strings++] =
            (struct wire_stop_string){r->stop_bytes[i], (uint32_t)n_bytes};
    }
    return NULL;
}

static const char *read_reply(const json_t *j, struct receipt *r) {
    const char *finish = json_string_value(json_object_get(j, "finish_reason"));
    uint32_t kind, index;

    if (!ids(json_object_get(j, "tokens"), &r->ids)) return "tokens";
    if (!read_rows(json_object_get(j, "logprobs"), &r->records, receipt_n_top(r)))
        return "logprobs";
    if (!read_rows(json_object_get(j, "prompt_logprobs"), &r->prompt_records,
                   receipt_n_prompt_top(r)))
        return "prompt_logprobs";
    for (uint8_t i = WIRE_FINISH_STOP; finish && i <= WIRE_FINISH_DEADLINE; i++)
        if (strcmp(finish, wire_finish_name(i)) == 0) r->end.finish = i;
    if (r->end.finish == 0) return "finish_reason";
    if (!u32(json_object_get(j, "stop_kind"), UINT8_MAX, &kind)) return "stop_kind";
    if (!u32(json_object_get(j, "stop_index"), UINT16_MAX, &index)) return "stop_index";
    r->end.stop_kind = (uint8_t)kind;
    r->end.stop_index = (uint16_t)index;
    r->end.n_output = (uint32_t)r->ids.n;
    if (hex(json_object_get(j, "digest"), r->end.digest, WIRE_DIGEST_BYTES) != WIRE_DIGEST_BYTES)
        return "digest";
    /* Each token has its row, and the row is of that token. */
    if (r->records.n != r->ids.n * 2 * (1 + (size_t)receipt_n_top(r))) return "logprobs";
    for (size_t i = 0; i < r->ids.n; i++)
        if (receipt_at(r, i, 0).id != r->ids.values[i]) return "logprobs";
    return NULL;
}

static const char *read_all(const json_t *j, struct receipt *r) {
    const char *model = json_string_value(json_object_get(j, "model")), *field;
    uint32_t version;

    if (!u32(json_object_get(j, "llm42_receipt"), UINT32_MAX, &version) ||
        version != RECEIPT_VERSION)
        return "llm42_receipt";
    if (!u32(json_object_get(j, "protocol"), UINT16_MAX, &version)) return "protocol";
    r->version = (uint16_t)version;
    if (!model || strlen(model) > WIRE_MODEL_MAX) return "model";
    strcpy(r->model, model);
    if (hex(json_object_get(j, "fingerprint"), r->fingerprint, WIRE_DIGEST_BYTES) !=
        WIRE_DIGEST_BYTES)
        return "fingerprint";
    field = read_request(json_object_get(j, "request"), r);
    return field ? field : read_reply(json_object_get(j, "reply"), r);
}

int receipt_read(const char *path, struct receipt *out, char *why) {
    static const struct wire_submit none;
    json_error_t e;
    const char *field;
    struct stat st;
    json_t *j;

    if (stat(path, &st) != 0) {
        int r = -errno;

        snprintf(why, RECEIPT_TEXT_BYTES, "%s", strerror(-r));
        return r;
    }
    if (st.st_size > RECEIPT_FILE_BYTES_MAX) {
        snprintf(why, RECEIPT_TEXT_BYTES, "longer than %d bytes", RECEIPT_FILE_BYTES_MAX);
        return -EINVAL;
    }
    j = json_load_file(path, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!j) {
        snprintf(why, RECEIPT_TEXT_BYTES, "no JSON at line %d: %s", e.line, e.text);
        return -EINVAL;
    }
    receipt_open(out, &none);
    field = read_all(j, out);
    json_decref(j);
    if (!field) return 0;
    receipt_close(out);
    snprintf(why, RECEIPT_TEXT_BYTES, "no receipt: \"%s\" is missing or not as it must be", field);
    return -EINVAL;
}
