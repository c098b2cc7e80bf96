/* JSON of replies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ctl.h"

void ctl_json_print(json_t *object) {
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9) | JSON_ENCODE_ANY);

    if (text) puts(text);
    free(text);
    json_decref(object);
}

static void set(json_t *object, const char *key, json_t *value) {
    json_object_set_new(object, key, value ? value : json_null());
}

json_t *ctl_json_error(const struct wire_error *e) {
    json_t *j = json_object();

    set(j, "code", json_string(wire_code_name(e->code)));
    set(j, "class", json_string(wire_class_name(e->class)));
    set(j, "field", e->field == WIRE_F_NONE ? json_null() : json_string(wire_field_name(e->field)));
    set(j, "text", receipt_value_text(e->text, e->n_text));
    if (e->retry_100ms) set(j, "retry_ms", json_integer(100 * (json_int_t)e->retry_100ms));
    return j;
}

static json_t *parameters(const struct receipt *t) {
    const struct wire_submit *s = &t->submit;
    json_t *j = json_object(), *ids = json_array(), *strings = json_array();

    for (uint32_t i = 0; i < s->n_stop_ids; i++)
        json_array_append_new(ids, json_integer(s->stop_ids[i]));
    for (uint32_t i = 0; i < s->n_stop_strings; i++)
        json_array_append_new(
            strings, receipt_value_text(s->stop_strings[i].bytes, s->stop_strings[i].n_bytes));
    set(j, "deterministic", json_boolean(s->flags & WIRE_SUBMIT_DETERMINISTIC));
    set(j, "max_tokens", json_integer(s->max_tokens));
    set(j, "temperature", receipt_value_real(s->temperature));
    set(j, "top_k", json_integer(s->top_k));
    set(j, "top_p", receipt_value_real(s->top_p));
    set(j, "min_p", receipt_value_real(s->min_p));
    set(j, "seed", receipt_value_whole(s->seed));
    set(j, "stop", strings);
    set(j, "stop_ids", ids);
    set(j, "stop_ids_in_force", json_integer(t->ack.n_stop_ids));
    set(j, "ignore_eos", json_boolean(s->flags & WIRE_SUBMIT_IGNORE_EOS));
    set(j, "special", json_boolean(s->flags & WIRE_SUBMIT_SPECIAL));
    set(j, "raw", json_boolean(s->flags & WIRE_SUBMIT_RAW));
    set(j, "logprobs", json_integer(receipt_n_top(t)));
    set(j, "policy", json_string(wire_policy_name(t->ack.policy)));
    set(j, "window", json_integer(t->ack.window));
    return j;
}

static json_t *determinism(const struct receipt *t) {
    const struct wire_done *d = &t->end;
    json_t *j = json_object();

    set(j, "requested", json_boolean(t->submit.flags & WIRE_SUBMIT_DETERMINISTIC));
    set(j, "digest", receipt_value_hex(d->digest, WIRE_DIGEST_BYTES));
    set(j, "fingerprint", receipt_value_hex(d->fingerprint, WIRE_DIGEST_BYTES));
    set(j, "certified_tokens", json_integer(d->certified));
    set(j, "verify_passes", json_integer(d->verify_passes));
    set(j, "rollbacks", json_integer(d->rollbacks));
    set(j, "recomputed_tokens", json_integer(d->recomputed));
    return j;
}

static json_t *usage(const struct wire_done *d) {
    json_t *j = json_object();

    set(j, "prompt_tokens", json_integer(d->n_prompt));
    set(j, "completion_tokens", json_integer(d->n_output));
    set(j, "cached_tokens", json_integer(d->n_cached));
    return j;
}

static json_t *timings(const struct wire_done *d) {
    json_t *j = json_object();

    set(j, "queue_us", receipt_value_whole(d->queue_us));
    set(j, "prefill_us", receipt_value_whole(d->prefill_us));
    set(j, "decode_us", receipt_value_whole(d->decode_us));
    set(j, "total_us", receipt_value_whole(d->total_us));
    return j;
}

/* The most probable ids of a place, of the output or of the prompt. */
static json_t *top(const struct receipt *t, bool prompt, size_t token) {
    const uint32_t n = prompt ? receipt_n_prompt_top(t) : receipt_n_top(t);
    json_t *j = json_array();

    for (uint32_t place = 1; place <= n; place++) {
        struct wire_logprob p =
            prompt ? receipt_prompt_at(t, token, place) : receipt_at(t, token, place);
        json_t *one = json_object();

        set(one, "id", json_integer(p.id));
        set(one, "logprob", receipt_value_real(receipt_value_float(p.bits)));
        set(one, "bits", receipt_value_bits(p.bits));
        json_array_append_new(j, one);
    }
    return j;
}

static json_t *failed(const struct receipt *t) {
    json_t *j = json_object();

    set(j, "error", t->failed ? ctl_json_error(&t->error) : json_string("not finished"));
    return j;
}

json_t *ctl_json_job(const struct ctl_job *job) {
    const struct receipt *t = &job->receipt;
    json_t *j, *ids = json_array(), *logprobs = json_array(), *bits = json_array(),
               *tops = json_array();

    if (!t->done) {
        json_decref(ids), json_decref(logprobs), json_decref(bits), json_decref(tops);
        return failed(t);
    }
    for (size_t i = 0; i < t->ids.n; i++) {
        struct wire_logprob p = receipt_at(t, i, 0);

        json_array_append_new(ids, json_integer(t->ids.values[i]));
        json_array_append_new(logprobs, receipt_value_real(receipt_value_float(p.bits)));
        json_array_append_new(bits, receipt_value_bits(p.bits));
        if (receipt_n_top(t)) json_array_append_new(tops, top(t, false, i));
    }
    j = json_object();
    set(j, "text", receipt_value_text(t->text.bytes, t->text.n));
    set(j, "tokens", ids);
    set(j, "logprobs", logprobs);
    set(j, "logprob_bits", bits);
    if (receipt_n_top(t))
        set(j, "top_logprobs", tops);
    else
        json_decref(tops);
    set(j, "finish_reason", json_string(wire_finish_name(t->end.finish)));
    set(j, "seed", receipt_value_whole(t->submit.seed));
    set(j, "parameters", parameters(t));
    set(j, "usage", usage(&t->end));
    set(j, "determinism", determinism(t));
    set(j, "timings", timings(&t->end));
    set(j, "model", receipt_value_text(t->model, strlen(t->model)));
    set(j, "server_id", receipt_value_whole(t->ack.server_id));
    return j;
}

json_t *ctl_json_score(const struct ctl_job *job) {
    const struct receipt *t = &job->receipt;
    json_t *j, *ids, *logprobs, *bits, *first, *tops;

    if (!t->done) return failed(t);
    ids = json_array(), logprobs = json_array(), bits = json_array(), first = json_array();
    tops = json_array();
    for (size_t i = 0; i < t->prompt.n; i++) {
        struct wire_logprob p = i > 0 ? receipt_prompt_at(t, i, 0) : (struct wire_logprob){0};

        json_array_append_new(ids, json_integer(t->prompt.values[i]));
        json_array_append_new(logprobs,
                              i ? receipt_value_real(receipt_value_float(p.bits)) : json_null());
        json_array_append_new(bits, i ? receipt_value_bits(p.bits) : json_null());
        json_array_append_new(first, i ? json_integer(receipt_prompt_at(t, i, 1).id) : json_null());
        json_array_append_new(tops, i ? top(t, true, i) : json_null());
    }
    j = json_object();
    set(j, "tokens", ids);
    set(j, "logprobs", logprobs);
    set(j, "logprob_bits", bits);
    set(j, "top_ids", first);
    set(j, "top_logprobs", tops);
    set(j, "digest", receipt_value_hex(t->end.digest, WIRE_DIGEST_BYTES));
    set(j, "fingerprint", receipt_value_hex(t->end.fingerprint, WIRE_DIGEST_BYTES));
    set(j, "usage", usage(&t->end));
    set(j, "timings", timings(&t->end));
    return j;
}
