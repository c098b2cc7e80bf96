/* tokenize and detokenize. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ctl.h"

/* Answers in parts, put together. */
static int collect(struct ctl *c, struct llm42_io *io, uint64_t request, enum llm42_kind kind,
                   uint8_t **out_bytes, size_t *out_n) {
    uint8_t *bytes = NULL, *more;
    struct llm42_event e;
    size_t n = 0;
    int r;

    for (;;) {
        r = ctl_next(c, io, &e);
        if (r != CTL_OK) break;
        if (e.kind == LLM42_ERROR) {
            ctl_refused("request", &e.error);
            r = e.error.class == WIRE_CLASS_SERVER ? CTL_FAILED : CTL_REFUSED;
            break;
        }
        if (e.kind != kind || e.request != request) continue;
        more = n + e.part.n_data <= CTL_INPUT_MAX ? realloc(bytes, n + e.part.n_data + 1) : NULL;
        if (!more) {
            ctl_say("the answer is too long");
            r = CTL_FAILED;
            break;
        }
        bytes = more;
        memcpy(bytes + n, e.part.data, e.part.n_data);
        n += e.part.n_data;
        if (!e.part.last) continue;
        *out_bytes = bytes;
        *out_n = n;
        return CTL_OK;
    }
    free(bytes);
    return r;
}

static int cannot_send(int r, size_t n_bytes) {
    if (r == -EMSGSIZE)
        ctl_say("%zu bytes are more than one request of this kind can carry", n_bytes);
    else
        ctl_say("the request cannot be sent: %s", strerror(-r));
    return r == -EMSGSIZE ? CTL_REFUSED : CTL_FAILED;
}

int ctl_tokenize(struct ctl *c) {
    uint8_t *text = NULL, *ids = NULL;
    struct llm42_io *io = NULL;
    size_t n_text, n_ids;
    struct wire_tokenize t = {.kind = WIRE_PROMPT_KIND_TEXT, .flags = (uint8_t)c->submit.flags};
    uint64_t request;
    int r = ctl_read_text(c, &text, &n_text);

    if (r != CTL_OK) return r;
    r = ctl_connect(c, c->socket, WIRE_PAYLOAD_MAX, &io);
    if (r != CTL_OK) goto out;
    t.data = text;
    t.n_data = (uint32_t)n_text;
    r = llm42_tokenize(llm42_io_core(io), &t, &request);
    if (r < 0) {
        r = cannot_send(r, n_text);
        goto out;
    }
    r = collect(c, io, request, LLM42_TOKENIZED, &ids, &n_ids);
    if (r != CTL_OK) goto out;
    if (c->json) {
        json_t *j = json_object(), *list = json_array();

        for (uint32_t i = 0; i < n_ids / 4; i++)
            json_array_append_new(list, json_integer(wire_u32_at(ids, i)));
        json_object_set_new(j, "tokens", list);
        ctl_json_print(j);
    } else {
        for (uint32_t i = 0; i < n_ids / 4; i++) printf("%s%u", i ? " " : "", wire_u32_at(ids, i));
        putchar('\n');
    }
out:
    llm42_io_close(io);
    free(text);
    free(ids);
    return r;
}

/* Of --tokens, of the arguments, or of stdin. */
static int read_ids(struct ctl *c, uint32_t **out_ids, size_t *out_n) {
    uint32_t *ids;
    uint64_t id;

    if (c->tokens && c->n_args > 0) {
        ctl_say("--tokens and arguments");
        return CTL_USAGE;
    }
    if (c->tokens || c->n_args == 0)
        return ctl_read_ids(c->tokens ? c->tokens : "-", out_ids, out_n);
    if (c->n_args == 1 && strcmp(c->args[0], "-") == 0) return ctl_read_ids("-", out_ids, out_n);
    ids = malloc((size_t)c->n_args * sizeof(*ids));
    if (!ids) return CTL_FAILED;
    for (int i = 0; i < c->n_args; i++) {
        if (!receipt_value_u64(c->args[i], 0, UINT32_MAX, &id)) {
            ctl_say("%s is no token id", c->args[i]);
            free(ids);
            return CTL_USAGE;
        }
        ids[i] = (uint32_t)id;
    }
    *out_ids = ids;
    *out_n = (size_t)c->n_args;
    return CTL_OK;
}

int ctl_detokenize(struct ctl *c) {
    uint8_t *text = NULL;
    struct llm42_io *io = NULL;
    uint32_t *ids = NULL;
    size_t n_ids, n_text;
    uint64_t request;
    int r = read_ids(c, &ids, &n_ids);

    if (r != CTL_OK) return r;
    r = ctl_connect(c, c->socket, WIRE_PAYLOAD_MAX, &io);
    if (r != CTL_OK) goto out;
    r = n_ids > UINT32_MAX ? -EMSGSIZE
                           : llm42_detokenize(llm42_io_core(io), ids, (uint32_t)n_ids, &request);
    if (r < 0) {
        r = cannot_send(r, 4 * n_ids);
        goto out;
    }
    r = collect(c, io, request, LLM42_DETOKENIZED, &text, &n_text);
    if (r != CTL_OK) goto out;
    if (c->json) {
        json_t *j = json_object();

        json_object_set_new(j, "text", receipt_value_text(text, n_text));
        ctl_json_print(j);
    } else {
        fwrite(text, 1, n_text, stdout);
        if (c->tokens == NULL || n_text == 0 || text[n_text - 1] != '\n') putchar('\n');
    }
out:
    llm42_io_close(io);
    free(ids);
    free(text);
    return r;
}
