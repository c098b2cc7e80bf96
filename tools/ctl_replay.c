/* replay: a receipt's request once more, and the first bit that differs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ctl.h"

static const char *names[] = {
    [RECEIPT_EQUAL] = "equal",
    [RECEIPT_FINGERPRINT] = "fingerprint",
    [RECEIPT_PROMPT] = "prompt",
    [RECEIPT_PROMPT_LOGPROB] = "prompt_logprob",
    [RECEIPT_ID] = "id",
    [RECEIPT_LOGPROB] = "logprob",
    [RECEIPT_TOP] = "top_logprobs",
    [RECEIPT_LENGTH] = "length",
    [RECEIPT_FINISH] = "finish_reason",
    [RECEIPT_DIGEST] = "digest",
};

static void print_hex(const char *name, const uint8_t *bytes) {
    printf("  %s", name);
    for (int i = 0; i < WIRE_DIGEST_BYTES; i++) printf("%02x", bytes[i]);
    putchar('\n');
}

static void print_one(const char *name, struct wire_logprob p) {
    printf("  %s id %u, logprob %.9g (%08x)\n", name, p.id, (double)receipt_value_float(p.bits),
           p.bits);
}

static void print_text(const struct receipt *was, const struct receipt *is,
                       enum receipt_difference d, size_t token) {
    if (d == RECEIPT_EQUAL) {
        puts("equal");
        return;
    }
    if (d == RECEIPT_FINGERPRINT) {
        puts("differs: fingerprint; this daemon computes something else");
    } else if (d == RECEIPT_FINISH || d == RECEIPT_DIGEST) {
        printf("differs: %s\n", names[d]);
    } else {
        printf("differs: %s, first at %s token %zu\n", names[d],
               d == RECEIPT_PROMPT || d == RECEIPT_PROMPT_LOGPROB ? "prompt" : "output", token);
    }
    switch (d) {
    case RECEIPT_FINGERPRINT:
        print_hex("receipt ", was->fingerprint);
        print_hex("daemon  ", is->fingerprint);
        break;
    case RECEIPT_PROMPT_LOGPROB:
        print_one("receipt:", receipt_prompt_at(was, token, 0));
        print_one("now:    ", receipt_prompt_at(is, token, 0));
        break;
    case RECEIPT_ID:
    case RECEIPT_LOGPROB:
    case RECEIPT_TOP:
        print_one("receipt:", receipt_at(was, token, 0));
        print_one("now:    ", receipt_at(is, token, 0));
        break;
    case RECEIPT_LENGTH:
        printf("  receipt: %zu tokens\n  now:     %zu\n", was->ids.n, is->ids.n);
        break;
    case RECEIPT_FINISH:
        printf("  receipt: %s\n  now:     %s\n", wire_finish_name(was->end.finish),
               wire_finish_name(is->end.finish));
        break;
    case RECEIPT_DIGEST:
        print_hex("receipt ", was->end.digest);
        print_hex("now     ", is->end.digest);
        break;
    default:
        break;
    }
}

static json_t *one_json(struct wire_logprob p) {
    json_t *j = json_object();

    json_object_set_new(j, "id", json_integer(p.id));
    json_object_set_new(j, "logprob", receipt_value_real(receipt_value_float(p.bits)));
    json_object_set_new(j, "bits", receipt_value_bits(p.bits));
    return j;
}

static void print_json(const struct receipt *was, const struct receipt *is,
                       enum receipt_difference d, size_t token) {
    json_t *j = json_object();

    json_object_set_new(j, "equal", json_boolean(d == RECEIPT_EQUAL));
    if (d != RECEIPT_EQUAL) {
        json_object_set_new(j, "difference", json_string(names[d]));
        json_object_set_new(j, "position", json_integer((json_int_t)token));
    }
    if (d == RECEIPT_ID || d == RECEIPT_LOGPROB || d == RECEIPT_TOP) {
        json_object_set_new(j, "receipt", one_json(receipt_at(was, token, 0)));
        json_object_set_new(j, "now", one_json(receipt_at(is, token, 0)));
    }
    json_object_set_new(j, "receipt_digest", receipt_value_hex(was->end.digest, WIRE_DIGEST_BYTES));
    if (is->done)
        json_object_set_new(j, "digest", receipt_value_hex(is->end.digest, WIRE_DIGEST_BYTES));
    ctl_json_print(j);
}

static int judge(const struct ctl *c, const struct receipt *was, const struct receipt *is) {
    size_t token;
    enum receipt_difference d = receipt_compare(was, is, &token);

    if (c->json)
        print_json(was, is, d, token);
    else
        print_text(was, is, d, token);
    return d == RECEIPT_EQUAL ? CTL_OK : CTL_FAILED;
}

/* A receipt's own digest must be that of its contents, or it was altered or cut. */
static bool sound(const struct receipt *t) {
    uint8_t digest[WIRE_DIGEST_BYTES];

    return receipt_digest(t, digest) && memcmp(digest, t->end.digest, sizeof(digest)) == 0;
}

int ctl_replay(struct ctl *c) {
    const struct wire_hello_ok *server;
    char why[RECEIPT_TEXT_BYTES];
    struct llm42_io *io = NULL;
    struct ctl_job job = {0};
    struct receipt was;
    int r;

    if (c->n_args != 1) {
        ctl_say("replay needs a receipt");
        return CTL_USAGE;
    }
    if (receipt_read(c->args[0], &was, why) != 0) {
        ctl_say("%s: %s", c->args[0], why);
        return CTL_USAGE;
    }
    if (!sound(&was)) {
        ctl_say("%s: its digest is not that of what it holds", c->args[0]);
        receipt_close(&was);
        return CTL_FAILED;
    }
    r = ctl_connect(c, c->socket, 0, &io);
    if (r != CTL_OK) goto out;
    r = ctl_job_ids(&job, &was.submit, was.prompt.values, was.prompt.n);
    if (r != CTL_OK) goto out;
    server = llm42_server(llm42_io_core(io));
    memcpy(job.receipt.fingerprint, server->fingerprint, WIRE_DIGEST_BYTES);
    if (memcmp(was.fingerprint, server->fingerprint, WIRE_DIGEST_BYTES) != 0) {
        r = judge(c, &was, &job.receipt); /* nothing is asked: the bits cannot be the same */
        goto out;
    }
    ctl_catch_interrupt();
    job.receipt.submit.flags |= WIRE_SUBMIT_ECHO_IDS;
    r = ctl_run(c, io, &job, 1, NULL, NULL);
    if (r == CTL_OK) r = ctl_job_verdict(&job, 0, 1);
    if (r == CTL_OK) r = judge(c, &was, &job.receipt);
out:
    llm42_io_close(io);
    ctl_job_close(&job);
    receipt_close(&was);
    return r;
}
