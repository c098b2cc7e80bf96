#include "daemon/info.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/request.h"
#include "daemon/version.h"
#include "daemon/wire.h"
#include "runtime/engine.h"
#include "runtime/schedule.h"
#include "runtime/sha256.h"
#include "runtime/template.h"
#include "runtime/token.h"

enum { SAME_KEYS_MIN = 512 };

/* jansson's functions take NULL members and give NULL: one check at the end is enough. */

static json_t *number(uint64_t v) {
    return json_integer((json_int_t)v);
}

static json_t *model_json(const struct engine_facts *f) {
    const struct model *m = &f->model;
    json_t *eos = json_array();
    json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "name", m->name,
                          "layers", (json_int_t)m->n_layers, "hidden", (json_int_t)m->hidden,
                          "intermediate", (json_int_t)m->intermediate, "heads",
                          (json_int_t)m->n_heads, "kv_heads", (json_int_t)m->n_kv_heads, "head_dim",
                          (json_int_t)m->head_dim, "vocab", (json_int_t)m->vocab, "context",
                          (json_int_t)m->context, "tied_embeddings", (int)m->tied);

    for (uint32_t i = 0; i < m->n_eos; i++) json_array_append_new(eos, number(m->eos[i]));
    json_object_set_new(o, "end_of_text_ids", eos);
    /* What the folder suggests and nobody applies. */
    json_object_set_new(o, "suggested",
                        json_pack("{s:o?, s:o?, s:I}", "temperature",
                                  m->suggested_temperature == m->suggested_temperature
                                      ? json_real((double)m->suggested_temperature)
                                      : NULL,
                                  "top_p",
                                  m->suggested_top_p == m->suggested_top_p
                                      ? json_real((double)m->suggested_top_p)
                                      : NULL,
                                  "top_k", (json_int_t)m->suggested_top_k));
    return o;
}

static json_t *limits_json(const struct serve *s) {
    const struct config *c = s->config;
    const struct engine_options *e = &s->facts->options;

    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "context",
                     (json_int_t)s->facts->context, "max_requests", (json_int_t)e->max_requests,
                     "max_queue", (json_int_t)e->max_queue, "max_connections",
                     (json_int_t)c->max_connections, "max_requests_per_connection",
                     (json_int_t)c->max_requests_per_connection, "max_text_bytes",
                     (json_int_t)c->max_text_bytes, "payload_bytes", (json_int_t)WIRE_PAYLOAD_MAX,
                     "output_bytes", (json_int_t)c->output_bytes, "logprobs",
                     (json_int_t)WIRE_TOP_MAX, "stop_strings", (json_int_t)WIRE_STOP_STRINGS_MAX);
}

static json_t *options_json(const struct serve *s) {
    const struct engine_options *e = &s->facts->options;

    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:b, s:I, s:s}", "policy",
                     plan_policy_name(e->policy), "window", (json_int_t)e->window, "group",
                     (json_int_t)e->group, "kv_tokens", (json_int_t)e->kv_tokens, "step_tokens",
                     (json_int_t)e->step_tokens, "fixed_shape", (int)e->fixed_shape,
                     "round_weights", (int)e->round_weights, "certify", (int)!e->uncertified,
                     "verify", (int)!e->unverified, "mismatch_ppm", (json_int_t)e->mismatch_ppm,
                     "fast", schedule_set_name(e->fast));
}

static json_t *all_json(const struct serve *s) {
    const struct engine_facts *f = s->facts;
    char fingerprint[SHA256_HEX_BYTES];
    json_t *o;

    sha256_hex(f->fingerprint, fingerprint);
    o = json_pack("{s:s, s:s, s:s, s:I, s:I, s:s, s:s, s:s, s:s, s:[s,s,s,s,s,s,s]}", "version",
                  version_number(), "build", version_commit(), "devices", version_devices(),
                  "protocol", (json_int_t)WIRE_VERSION, "epoch", (json_int_t)(s->epoch >> 1),
                  "fingerprint", fingerprint, "fingerprint_text", f->fingerprint_text, "template",
                  template_name(f->template->family), "device", f->device, "features",
                  "deterministic", "logprobs", "prompt_logprobs", "stop_strings", "chat",
                  "tokenize", "echo_ids");
    json_object_set_new(o, "model", model_json(f));
    json_object_set_new(o, "limits", limits_json(s));
    json_object_set_new(o, "options", options_json(s));
    json_object_set_new(o, "memory_bytes",
                        json_pack("{s:I, s:I, s:I}", "weights", (json_int_t)f->bytes_weights, "kv",
                                  (json_int_t)f->bytes_kv, "work", (json_int_t)f->bytes_work));
    json_object_set_new(o, "load",
                        json_pack("{s:I, s:I, s:I}", "bytes", (json_int_t)f->bytes_files, "us",
                                  (json_int_t)f->load_us, "digest_us", (json_int_t)f->digest_us));
    return o;
}

static json_t *status_json(const struct serve *s, uint64_t now_us) {
    struct engine_stats t;
    json_t *o;

    engine_stats_get(s->engine, &t);
    o = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "state",
                  s->lost       ? "lost"
                  : s->draining ? "draining"
                                : "serving",
                  "policy", plan_policy_name(s->facts->options.policy), "fast",
                  schedule_set_name(s->facts->options.fast), "running", (json_int_t)t.running,
                  "waiting", (json_int_t)t.waiting, "connections", (json_int_t)s->n_conns,
                  "uptime_us", (json_int_t)(now_us - s->started_us), "kv_pages",
                  (json_int_t)t.kv_pages, "kv_pages_free", (json_int_t)t.kv_pages_free);
    json_object_set_new(o, "last_step_age_us",
                        t.last_step_us
                            ? number(now_us > t.last_step_us ? now_us - t.last_step_us : 0)
                            : json_null());
    json_object_set_new(o, "steps",
                        json_pack("{s:I, s:I, s:I}", "canonical", (json_int_t)t.steps_canonical,
                                  "tuned", (json_int_t)t.steps_tuned, "same",
                                  (json_int_t)t.steps_same));
    json_object_set_new(
        o, "tokens",
        json_pack("{s:I, s:I, s:I, s:I, s:I}", "prompt", (json_int_t)t.tokens_prompt, "decoded",
                  (json_int_t)t.tokens_decoded, "verified", (json_int_t)t.tokens_verified,
                  "committed", (json_int_t)t.tokens_committed, "discarded",
                  (json_int_t)t.tokens_discarded));
    json_object_set_new(o, "verify_passes", number(t.verify_passes));
    json_object_set_new(o, "rollbacks", number(t.rollbacks));
    json_object_set_new(o, "requests",
                        json_pack("{s:I, s:I, s:I}", "done", (json_int_t)t.requests_done, "failed",
                                  (json_int_t)t.requests_failed, "cancelled",
                                  (json_int_t)t.requests_cancelled));
    return o;
}

/* A schedule in numbers, in words, and the first digits of its SHA-256. */
static json_t *schedule_json(const struct schedule *schedule) {
    uint8_t digest[SHA256_BYTES];
    char text[SCHEDULE_TEXT_BYTES], hex[SHA256_HEX_BYTES];
    const size_t n = schedule_write(schedule, text);

    sha256_of(text, n, digest);
    sha256_hex(digest, hex);
    hex[12] = '\0';
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:I}", "schedule", text, "hash", hex,
                     "qkv", (int)schedule->qkv, "o", (int)schedule->o, "gate_up",
                     (int)schedule->gate_up, "down", (int)schedule->down, "head",
                     (int)schedule->head, "norm_run", (int)schedule->norm_run, "split_keys",
                     (json_int_t)schedule->split_keys);
}

/* Decode rows of as many sequences, at the context's end: what splits are chosen by. */
static json_t *fast_json(const struct serve *s, enum schedule_set set) {
    json_t *all = json_array();

    for (uint32_t n_rows = 1; n_rows <= 1024; n_rows *= 2) {
        const struct schedule_load load = {n_rows, n_rows, s->facts->context};
        const struct schedule value = schedule_fast(set, &s->facts->model, &load);
        json_t *of = schedule_json(&value);

        json_object_set_new(of, "rows", number(n_rows));
        json_array_append_new(all, of);
    }
    return all;
}

/* Of decode steps of 1 .. max_requests rows, the longest sequence so long: how many are canonical
 * as they are. */
static json_t *same_json(const struct serve *s, uint32_t n_keys) {
    const struct schedule canonical = schedule_canonical();
    const uint32_t n_rows_max = s->facts->options.max_requests;
    uint32_t n_same[SCHEDULE_SETS] = {0};

    for (uint32_t n = 1; n <= n_rows_max; n++)
        for (enum schedule_set set = 0; set < SCHEDULE_SETS; set++) {
            const struct schedule_load load = {n, n, n_keys};
            const struct schedule value = schedule_fast(set, &s->facts->model, &load);

            n_same[set] += schedule_equal(&value, &canonical);
        }
    return json_pack("{s:I, s:I, s:I, s:I}", "keys", (json_int_t)n_keys, "of",
                     (json_int_t)n_rows_max, "tuned", (json_int_t)n_same[SCHEDULE_TUNED], "stock",
                     (json_int_t)n_same[SCHEDULE_STOCK]);
}

static json_t *schedules_json(const struct serve *s) {
    const struct schedule canonical = schedule_canonical();
    json_t *same = json_array(), *o = json_object();

    json_object_set_new(o, "canonical", schedule_json(&canonical));
    json_object_set_new(o, "fast", json_string(schedule_set_name(s->facts->options.fast)));
    for (enum schedule_set set = 0; set < SCHEDULE_SETS; set++)
        json_object_set_new(o, schedule_set_name(set), fast_json(s, set));
    for (uint32_t n_keys = SAME_KEYS_MIN; n_keys < s->facts->context; n_keys *= 2)
        json_array_append_new(same, same_json(s, n_keys));
    json_array_append_new(same, same_json(s, s->facts->context));
    json_object_set_new(o, "same", same);
    return o;
}

static json_t *config_json(const struct serve *s) {
    const char *section, *name;
    char text[256];
    json_t *o = json_object();

    for (size_t k = 0; config_value(s->config, k, &section, &name, text, sizeof(text)); k++) {
        json_t *of = json_object_get(o, section);

        if (!of) {
            json_object_set_new(o, section, json_object());
            of = json_object_get(o, section);
        }
        json_object_set_new(of, name, json_string(text));
    }
    return o;
}

char *info_text(const struct serve *s, uint32_t topic, uint64_t now_us) {
    json_t *o = topic == WIRE_INFO_ALL         ? all_json(s)
                : topic == WIRE_INFO_STATUS    ? status_json(s, now_us)
                : topic == WIRE_INFO_SCHEDULES ? schedules_json(s)
                : topic == WIRE_INFO_CONFIG    ? config_json(s)
                                               : NULL;
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;

    json_decref(o);
    return text;
}

void info_status_line(const struct serve *s, char *text, uint32_t n_bytes) {
    char fingerprint[SHA256_HEX_BYTES];
    struct engine_stats t;

    engine_stats_get(s->engine, &t);
    sha256_hex(s->facts->fingerprint, fingerprint);
    (void)snprintf(text, n_bytes,
                   "%s, fingerprint %.12s, %llu running, %llu waiting, %llu rollbacks",
                   s->facts->model.name, fingerprint, (unsigned long long)t.running,
                   (unsigned long long)t.waiting, (unsigned long long)t.rollbacks);
}
