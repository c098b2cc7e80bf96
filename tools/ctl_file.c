/* --file: a JSON object a line, each one request. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ctl.h"

enum { FAULT_BYTES = 160 };

/* A line being read: what it sets, and the fault that ends it. */
struct line {
    struct wire_submit submit;
    bool of_score;
    const char *prompt_key; /* prompt, tokens or messages: exactly one */
    const json_t *prompt;
    char fault[FAULT_BYTES];
};

static bool fail(struct line *l, const char *key, const char *must) {
    snprintf(l->fault, sizeof(l->fault), "\"%s\" must be %s", key, must);
    return false;
}

static bool take_u64(struct line *l, const char *key, const json_t *v, uint64_t max,
                     uint64_t *out) {
    char must[64];

    if (json_is_integer(v) && json_integer_value(v) >= 0 &&
        (uint64_t)json_integer_value(v) <= max) {
        *out = (uint64_t)json_integer_value(v);
        return true;
    }
    snprintf(must, sizeof(must), "a whole number, 0 .. %llu", (unsigned long long)max);
    return fail(l, key, must);
}

static bool take_u32(struct line *l, const char *key, const json_t *v, uint32_t max,
                     uint32_t *out) {
    uint64_t n;

    if (!take_u64(l, key, v, max, &n)) return false;
    *out = (uint32_t)n;
    return true;
}

static bool take_f32(struct line *l, const char *key, const json_t *v, float *out) {
    if (!json_is_number(v)) return fail(l, key, "a number");
    *out = (float)json_number_value(v);
    return true;
}

static bool take_flag(struct line *l, const char *key, const json_t *v, uint32_t bit) {
    if (!json_is_boolean(v)) return fail(l, key, "true or false");
    l->submit.flags = json_is_true(v) ? l->submit.flags | bit : l->submit.flags & ~bit;
    return true;
}

/* Decimal digits in a string too: JSON readers lose whole numbers from 2^53 on. */
static bool take_seed(struct line *l, const char *key, const json_t *v) {
    l->submit.flags |= WIRE_SUBMIT_SEED;
    if (json_is_string(v) &&
        receipt_value_u64(json_string_value(v), 0, UINT64_MAX, &l->submit.seed))
        return true;
    return take_u64(l, key, v, INT64_MAX, &l->submit.seed);
}

static bool take_stop(struct line *l, const char *key, const json_t *v) {
    size_t n = json_is_array(v) ? json_array_size(v) : 1;

    if (n > WIRE_STOP_STRINGS_MAX) return fail(l, key, "at most 16 strings");
    l->submit.n_stop_strings = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        size_t n_bytes = json_string_length(one);

        if (!json_is_string(one) || n_bytes < 1 || n_bytes > WIRE_STOP_STRING_BYTES_MAX)
            return fail(l, key, "strings of 1 .. 256 bytes");
        l->submit.stop_strings[l->submit.n_stop_strings++] =
            (struct wire_stop_string){(const uint8_t *)json_string_value(one), (uint32_t)n_bytes};
    }
    return true;
}

static bool take_stop_ids(struct line *l, const char *key, const json_t *v) {
    if (!json_is_array(v) || json_array_size(v) > WIRE_STOP_IDS_MAX)
        return fail(l, key, "an array of at most 16 ids");
    l->submit.n_stop_ids = 0;
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!take_u32(l, key, json_array_get(v, i), UINT32_MAX,
                      &l->submit.stop_ids[l->submit.n_stop_ids++]))
            return false;
    return true;
}

static bool take_prompt(struct line *l, const char *key, const json_t *v) {
    if (l->prompt) {
        snprintf(l->fault, sizeof(l->fault), "\"%s\" and \"%s\" are two prompts", l->prompt_key,
                 key);
        return false;
    }
    l->prompt_key = key;
    l->prompt = v;
    return true;
}

static bool take_key(struct line *l, const char *key, const json_t *v) {
    uint32_t n;

    if (strcmp(key, "prompt") == 0 || strcmp(key, "tokens") == 0) return take_prompt(l, key, v);
    if (strcmp(key, "special") == 0) return take_flag(l, key, v, WIRE_SUBMIT_SPECIAL);
    if (strcmp(key, "raw") == 0) return take_flag(l, key, v, WIRE_SUBMIT_RAW);
    if (strcmp(key, "deadline_ms") == 0)
        return take_u32(l, key, v, UINT32_MAX, &l->submit.deadline_ms);
    if (strcmp(key, "queue_deadline_ms") == 0)
        return take_u32(l, key, v, UINT32_MAX, &l->submit.queue_deadline_ms);
    if (strcmp(key, "logprobs") == 0) {
        if (!take_u32(l, key, v, WIRE_TOP_MAX, &n)) return false;
        l->submit.logprobs = (uint16_t)(1 + n);
        return true;
    }
    if (l->of_score) goto unknown;
    if (strcmp(key, "messages") == 0) return take_prompt(l, key, v);
    if (strcmp(key, "deterministic") == 0) return take_flag(l, key, v, WIRE_SUBMIT_DETERMINISTIC);
    if (strcmp(key, "ignore_eos") == 0) return take_flag(l, key, v, WIRE_SUBMIT_IGNORE_EOS);
    if (strcmp(key, "seed") == 0) return take_seed(l, key, v);
    if (strcmp(key, "temperature") == 0) return take_f32(l, key, v, &l->submit.temperature);
    if (strcmp(key, "top_p") == 0) return take_f32(l, key, v, &l->submit.top_p);
    if (strcmp(key, "min_p") == 0) return take_f32(l, key, v, &l->submit.min_p);
    if (strcmp(key, "top_k") == 0) return take_u32(l, key, v, INT32_MAX, &l->submit.top_k);
    if (strcmp(key, "max_tokens") == 0)
        return take_u32(l, key, v, UINT32_MAX, &l->submit.max_tokens);
    if (strcmp(key, "stop") == 0) return take_stop(l, key, v);
    if (strcmp(key, "stop_ids") == 0) return take_stop_ids(l, key, v);
unknown:
    snprintf(l->fault, sizeof(l->fault), "unknown key \"%.64s\"", key);
    return false;
}

static int make_ids(struct line *l, struct ctl_job *job) {
    size_t n = json_array_size(l->prompt);
    uint32_t *ids;
    int r = CTL_OK;

    if (!json_is_array(l->prompt)) return fail(l, "tokens", "an array of ids"), CTL_USAGE;
    ids = malloc((n + 1) * sizeof(*ids));
    if (!ids) return CTL_FAILED;
    for (size_t i = 0; i < n && r == CTL_OK; i++)
        if (!take_u32(l, "tokens", json_array_get(l->prompt, i), UINT32_MAX, &ids[i]))
            r = CTL_USAGE;
    if (r == CTL_OK) r = ctl_job_ids(job, &l->submit, ids, n);
    free(ids);
    return r;
}

static bool take_message(struct line *l, const json_t *v, struct wire_message *out) {
    static const char *roles[] = {"system", "user", "assistant"};
    const char *role = json_string_value(json_object_get(v, "role"));
    const json_t *content = json_object_get(v, "content");
    uint8_t i = 0;

    if (!json_is_object(v) || json_object_size(v) != 2 || !role || !json_is_string(content))
        return fail(l, "messages", "objects with \"role\" and \"content\"");
    while (i < 3 && strcmp(role, roles[i]) != 0) i++;
    if (i == 3) return fail(l, "role", "system, user or assistant");
    *out = (struct wire_message){.role = i,
                                 .text = json_string_value(content),
                                 .n_bytes = (uint32_t)json_string_length(content)};
    return true;
}

static int make_chat(struct line *l, struct ctl_job *job) {
    size_t n = json_array_size(l->prompt);
    struct wire_message *m;
    int r = CTL_OK;

    if (!json_is_array(l->prompt) || n < 1 || n > WIRE_MESSAGES_MAX)
        return fail(l, "messages", "an array of 1 .. 1024 messages"), CTL_USAGE;
    m = malloc(n * sizeof(*m));
    if (!m) return CTL_FAILED;
    for (size_t i = 0; i < n && r == CTL_OK; i++)
        if (!take_message(l, json_array_get(l->prompt, i), &m[i])) r = CTL_USAGE;
    l->submit.flags &= ~(uint32_t)WIRE_SUBMIT_RAW;
    if (r == CTL_OK) r = ctl_job_chat(job, &l->submit, m, n);
    free(m);
    return r;
}

static int make(struct line *l, struct ctl_job *job) {
    if (!l->prompt) {
        snprintf(l->fault, sizeof(l->fault), "no \"prompt\", \"tokens\" or \"messages\"");
        return CTL_USAGE;
    }
    if (strcmp(l->prompt_key, "tokens") == 0) return make_ids(l, job);
    if (strcmp(l->prompt_key, "messages") == 0) return make_chat(l, job);
    if (!json_is_string(l->prompt)) return fail(l, "prompt", "a string"), CTL_USAGE;
    return ctl_job_text(job, &l->submit, json_string_value(l->prompt),
                        json_string_length(l->prompt));
}

static const char *name(const struct ctl *c) {
    return strcmp(c->file, "-") == 0 ? "stdin" : c->file;
}

static int read_line(const struct ctl *c, const char *text, size_t n, size_t number,
                     struct ctl_job *job) {
    struct line l = {.submit = c->submit, .of_score = c->verb == CTL_SCORE};
    json_error_t e;
    json_t *object = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e), *value;
    const char *key;
    int r = CTL_OK;

    if (!object) {
        ctl_say("%s:%zu: %s", name(c), number, e.text);
        return CTL_USAGE;
    }
    if (!json_is_object(object)) {
        snprintf(l.fault, sizeof(l.fault), "not a JSON object");
        r = CTL_USAGE;
    }
    json_object_foreach(object, key, value) if (r == CTL_OK && !take_key(&l, key, value)) r =
        CTL_USAGE;
    if (r == CTL_OK) r = make(&l, job);
    if (l.fault[0]) ctl_say("%s:%zu: %s", name(c), number, l.fault);
    json_decref(object);
    return r;
}

int ctl_file_read(const struct ctl *c, struct ctl_job **out_jobs, size_t *out_n) {
    struct ctl_job *jobs = NULL, *more;
    size_t n_bytes, n = 0, room = 0, number = 0;
    uint8_t *bytes;
    char *p, *end, *eol;
    int r = ctl_read_file(c->file, &bytes, &n_bytes);

    if (r != CTL_OK) return r;
    p = (char *)bytes;
    end = p + n_bytes;
    for (; p < end && r == CTL_OK; p = eol + 1) {
        eol = memchr(p, '\n', (size_t)(end - p));
        if (!eol) eol = end;
        number++;
        if (p + strspn(p, " \t\r") >= eol) continue;
        if (n == room) {
            room = room ? 2 * room : 16;
            more = n < CTL_JOBS_MAX ? realloc(jobs, room * sizeof(*jobs)) : NULL;
            if (!more) {
                ctl_say("%s:%zu: too many requests, the limit is %d", name(c), number,
                        CTL_JOBS_MAX);
                r = CTL_USAGE;
                break;
            }
            jobs = more;
        }
        memset(&jobs[n], 0, sizeof(jobs[n]));
        r = read_line(c, p, (size_t)(eol - p), number, &jobs[n++]);
    }
    free(bytes);
    if (r == CTL_OK && n == 0) {
        ctl_say("%s: no request in it", name(c));
        r = CTL_USAGE;
    }
    if (r != CTL_OK) {
        for (size_t i = 0; i < n; i++) ctl_job_close(&jobs[i]);
        free(jobs);
        return r;
    }
    *out_jobs = jobs;
    *out_n = n;
    return CTL_OK;
}
