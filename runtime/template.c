#include "runtime/template.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/document.h"
#include "runtime/err.h"
#include "runtime/file.h"
#include "runtime/token.h"
#include "runtime/unicode.h"

enum {
    CONFIG_BYTES_MAX = 16 << 20,
    TEXT_BYTES_MAX = 1 << 20, /* of a template */
    PATH_BYTES_MAX = 4096,
};

/* The published texts, cut where they vary, with each \n an end of line: some files have it so and
 * some have backslash and n, which says the same inside a quoted text. */
static const char undefined_is_false[] =
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"
    "{% endif %}";
static const char each_message[] = "{% for message in messages %}";
static const char default_starts[] = "{% if loop.first and messages[0]['role'] != 'system' %}"
                                     "{{ '<|im_start|>system\n";
static const char default_ends[] = "<|im_end|>\n' }}{% endif %}";
static const char chatml_message[] =
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
static const char llama3_messages[] =
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim "
    "+ '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}";
static const char llama3_prompt[] = "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}";
static const char llama3_prompt_if_asked[] =
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{% endif %}";
/* Ours: what a base model's folder says to have chats rendered plainly (SPEC 3.3). */
static const char plain_chat[] =
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ message['content'] + '\n\n' }}{% elif message['role'] == 'user' %}"
    "{{ 'User: ' + message['content'] + '\n' }}{% else %}"
    "{{ 'Assistant: ' + message['content'] + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";
static const char llama3_bos[] = "<|begin_of_text|>";

const char *template_name(enum template_family family) {
    static const char *const names[] = {"none", "unknown", "plain", "chatml", "llama3"};

    return names[family];
}

void template_close(struct template *t) {
    if (!t) return;
    free(t->default_system);
    t->default_system = NULL;
}

/* Steps over `prefix` if the text begins with it. */
static bool take(const char **text, const char *prefix) {
    size_t n = strlen(prefix);

    if (strncmp(*text, prefix, n) != 0) return false;
    *text += n;
    return true;
}

/* A default that is plainly a text: nothing that ends the quotes, escapes, or marks. */
static bool is_literal(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strchr("'\\{}<>|", text[i])) return false;
    return true;
}

/* `text` has its ends of line.  0 or -ENOMEM. */
static int recognise(const char *text, const char *bos, struct template *t, struct err *e) {
    const char *at = text, *end;

    t->family = TEMPLATE_UNKNOWN;
    t->default_system = NULL;
    if (take(&at, llama3_messages)) {
        bool known = strcmp(at, llama3_prompt) == 0 || strcmp(at, llama3_prompt_if_asked) == 0;

        if (known && bos && strcmp(bos, llama3_bos) == 0) t->family = TEMPLATE_LLAMA3;
        return 0;
    }
    if (strcmp(at, plain_chat) == 0) {
        t->family = TEMPLATE_PLAIN;
        return 0;
    }
    (void)take(&at, undefined_is_false);
    if (!take(&at, each_message)) return 0;
    if (take(&at, default_starts)) {
        const char *start = at;

        end = strstr(at, default_ends);
        if (!end || !is_literal(start, (size_t)(end - start))) return 0;
        at = end + strlen(default_ends);
        if (strcmp(at, chatml_message) != 0) return 0;
        t->default_system = strndup(start, (size_t)(end - start));
        if (!t->default_system) return err_set(e, -ENOMEM, "no memory for a template");
        t->family = TEMPLATE_CHATML;
        return 0;
    }
    if (strcmp(at, chatml_message) == 0) t->family = TEMPLATE_CHATML;
    return 0;
}

/* In place: backslash and n become an end of line, and one at the very end goes, as it does when
 * a template is compiled. */
static void normalise(char *text) {
    size_t n = 0;

    for (size_t i = 0; text[i]; i++) {
        if (text[i] == '\\' && text[i + 1] == 'n') {
            text[n++] = '\n';
            i++;
        } else {
            text[n++] = text[i];
        }
    }
    if (n > 0 && text[n - 1] == '\n') n--;
    text[n] = '\0';
}

/* The template in tokenizer_config.json: its text, or the one named "default" of a list.  NULL if
 * there is none. */
static int find_text(const json_t *config, const char *path, const char **out_text, struct err *e) {
    const json_t *value = json_object_get(config, "chat_template");
    const json_t *one;
    size_t i;

    *out_text = NULL;
    if (!value || json_is_null(value)) return 0;
    if (json_is_string(value)) {
        *out_text = json_string_value(value);
        return 0;
    }
    if (!json_is_array(value)) return err_set(e, -EINVAL, "%s: chat_template is no text", path);
    json_array_foreach(value, i, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        const char *text = json_string_value(json_object_get(one, "template"));

        if (!name || !text)
            return err_set(e, -EINVAL, "%s: chat_template %zu has no name or no text", path, i);
        if (strcmp(name, "default") == 0) *out_text = text;
    }
    return 0;
}

/* A file of the folder; *out_text stays NULL if there is none. */
static int read_optional(const char *folder, const char *file, size_t n_bytes_max,
                         char path[PATH_BYTES_MAX], char **out_text, size_t *out_n_bytes,
                         struct err *e) {
    int r = snprintf(path, PATH_BYTES_MAX, "%s/%s", folder, file);

    if (r < 0 || r >= PATH_BYTES_MAX) return err_set(e, -EINVAL, "%s: too long", folder);
    r = file_read(path, n_bytes_max, out_text, out_n_bytes, e);
    return r == -ENOENT ? 0 : r;
}

/* The texts of both places, allocated or NULL, and the begin token. */
static int read_texts(const char *folder, char **out_inside, char **out_file, char **out_bos,
                      struct err *e) {
    char path[PATH_BYTES_MAX];
    const char *inside = NULL, *bos;
    char *json = NULL;
    json_t *config = NULL;
    size_t n_bytes = 0;
    int r;

    r = read_optional(folder, "chat_template.jinja", TEXT_BYTES_MAX, path, out_file, &n_bytes, e);
    if (r < 0) return r;
    if (*out_file && strlen(*out_file) != n_bytes)
        return err_set(e, -EINVAL, "%s: has a zero byte", path);
    r = read_optional(folder, "tokenizer_config.json", CONFIG_BYTES_MAX, path, &json, &n_bytes, e);
    if (r < 0 || !json) return r;
    r = document_parse_reals(path, json, n_bytes, &config, e);
    if (r == 0) r = find_text(config, path, &inside, e);
    if (r < 0) goto out;
    bos = json_string_value(json_object_get(config, "bos_token"));
    if (!bos)
        bos = json_string_value(json_object_get(json_object_get(config, "bos_token"), "content"));
    if (inside) *out_inside = strdup(inside);
    if (bos) *out_bos = strdup(bos);
    if ((inside && !*out_inside) || (bos && !*out_bos))
        r = err_set(e, -ENOMEM, "%s: no memory", path);
out:
    json_decref(config);
    free(json);
    return r;
}

int template_open(const char *folder, struct template *out_template, struct err *e) {
    struct template t = {.family = TEMPLATE_NONE};
    char *inside = NULL, *file = NULL, *bos = NULL;
    int r = read_texts(folder, &inside, &file, &bos, e);

    if (r < 0) goto out;
    if (inside) normalise(inside);
    if (file) normalise(file);
    if (inside && file && strcmp(inside, file) != 0)
        t.family = TEMPLATE_UNKNOWN; /* readers differ on which of them counts */
    else if (inside || file)
        r = recognise(inside ? inside : file, bos, &t, e);
    if (r == 0) *out_template = t;
out:
    free(inside);
    free(file);
    free(bos);
    return r;
}

struct writer {
    const struct token *token;
    struct err *e;
    uint32_t *ids;
    size_t n_ids, n_ids_max;
};

static int put_mark(struct writer *w, const char *mark) {
    int64_t id = token_find(w->token, mark);

    if (id == TOKEN_ID_NONE)
        return err_set(w->e, -ENOTSUP, "the tokenizer has no \"%s\", which the chat template needs",
                       mark);
    if (w->n_ids == w->n_ids_max)
        return err_set(w->e, -EMSGSIZE, "the chat has more than %zu tokens", w->n_ids_max);
    w->ids[w->n_ids++] = (uint32_t)id;
    return 0;
}

/* Head and text as one, since their border is none to the tokenizer. */
static int put_text(struct writer *w, const char *head, const char *text, size_t n_bytes) {
    size_t n_head = strlen(head);
    char *all;
    int64_t n;

    if (n_bytes > TOKEN_TEXT_BYTES_MAX)
        return err_set(w->e, -EMSGSIZE, "text of %zu bytes, the limit is %d", n_bytes,
                       TOKEN_TEXT_BYTES_MAX);
    all = malloc(n_head + n_bytes + 1);
    if (!all) return err_set(w->e, -ENOMEM, "no memory for a text of %zu bytes", n_bytes);
    memcpy(all, head, n_head);
    if (n_bytes > 0) memcpy(all + n_head, text, n_bytes);
    n = token_encode(w->token, all, n_head + n_bytes, 0, w->ids + w->n_ids, w->n_ids_max - w->n_ids,
                     w->e);
    free(all);
    if (n < 0) return (int)n;
    w->n_ids += (size_t)n;
    return 0;
}

static const char *const role_names[] = {"system", "user", "assistant"};

static int put_chatml(struct writer *w, const char *role, const char *text, size_t n_bytes) {
    char head[32];
    int r;

    (void)snprintf(head, sizeof(head), "%s\n", role);
    r = put_mark(w, "<|im_start|>");
    if (r == 0) r = put_text(w, head, text, n_bytes);
    if (r == 0) r = put_mark(w, "<|im_end|>");
    return r < 0 ? r : put_text(w, "\n", NULL, 0);
}

static int encode_chatml(struct writer *w, const struct template *t,
                         const struct template_message *messages, size_t n_messages) {
    int r = 0;

    if (t->default_system && messages[0].role != TEMPLATE_SYSTEM)
        r = put_chatml(w, "system", t->default_system, strlen(t->default_system));
    for (size_t i = 0; i < n_messages && r == 0; i++)
        r = put_chatml(w, role_names[messages[i].role], messages[i].text, messages[i].n_bytes);
    if (r == 0) r = put_mark(w, "<|im_start|>");
    return r < 0 ? r : put_text(w, "assistant\n", NULL, 0);
}

/* What the filter `trim` takes away: White_Space, and the four separators U+001C to U+001F. */
static bool is_trimmed(const char *text) {
    uint32_t n, code = unicode_read((const uint8_t *)text, &n);

    return unicode_class(code) == UNICODE_SPACE || (code >= 0x1c && code <= 0x1f);
}

static void trim(const char **text, size_t *n_bytes) {
    const char *start = *text, *end = *text + *n_bytes;

    while (start < end && is_trimmed(start)) start += unicode_length((uint8_t)*start);
    while (start < end) {
        const char *last = end - 1;

        while (((uint8_t)*last & 0xc0) == 0x80) last--;
        if (!is_trimmed(last)) break;
        end = last;
    }
    *text = start;
    *n_bytes = (size_t)(end - start);
}

static int put_llama3_header(struct writer *w, const char *role) {
    int r = put_mark(w, "<|start_header_id|>");

    if (r == 0) r = put_text(w, role, NULL, 0);
    return r < 0 ? r : put_mark(w, "<|end_header_id|>");
}

static int encode_llama3(struct writer *w, const struct template_message *messages,
                         size_t n_messages) {
    int r = put_mark(w, llama3_bos);

    for (size_t i = 0; i < n_messages && r == 0; i++) {
        const char *text = messages[i].text;
        size_t n_bytes = messages[i].n_bytes;

        trim(&text, &n_bytes);
        r = put_llama3_header(w, role_names[messages[i].role]);
        if (r == 0) r = put_text(w, "\n\n", text, n_bytes);
        if (r == 0) r = put_mark(w, "<|eot_id|>");
    }
    if (r == 0) r = put_llama3_header(w, "assistant");
    return r < 0 ? r : put_text(w, "\n\n", NULL, 0);
}

static int encode_plain(struct writer *w, const struct template_message *messages,
                        size_t n_messages) {
    static const char *const heads[] = {"", "User: ", "Assistant: "};
    static const char *const tails[] = {"\n\n", "\n", "\n"};
    static const char prompt[] = "Assistant:";
    size_t n_all = sizeof(prompt);
    char *all, *at;
    int64_t n;

    for (size_t i = 0; i < n_messages; i++) {
        if (messages[i].n_bytes > TOKEN_TEXT_BYTES_MAX || n_all > TOKEN_TEXT_BYTES_MAX)
            return err_set(w->e, -EMSGSIZE, "chat of more than %d bytes", TOKEN_TEXT_BYTES_MAX);
        n_all += messages[i].n_bytes + strlen(heads[2]) + strlen(tails[0]);
    }
    all = malloc(n_all);
    if (!all) return err_set(w->e, -ENOMEM, "no memory for a chat of %zu bytes", n_all);
    at = all;
    for (size_t i = 0; i < n_messages; i++) {
        at = stpcpy(at, heads[messages[i].role]);
        if (messages[i].n_bytes > 0) at = mempcpy(at, messages[i].text, messages[i].n_bytes);
        at = stpcpy(at, tails[messages[i].role]);
    }
    at = stpcpy(at, prompt);
    n = token_encode(w->token, all, (size_t)(at - all), TOKEN_ENCODE_TEMPLATE, w->ids, w->n_ids_max,
                     w->e);
    free(all);
    if (n < 0) return (int)n;
    w->n_ids = (size_t)n;
    return 0;
}

static int check(const struct template_message *messages, size_t n_messages, struct err *e) {
    if (n_messages == 0) return err_set(e, -EINVAL, "a chat without messages");
    for (size_t i = 0; i < n_messages; i++) {
        size_t n_good = unicode_check((const uint8_t *)messages[i].text, messages[i].n_bytes);

        if ((unsigned)messages[i].role > TEMPLATE_ASSISTANT)
            return err_set(e, -EINVAL, "message %zu has role %u, which no template has", i,
                           (unsigned)messages[i].role);
        if (n_good < messages[i].n_bytes)
            return err_set(e, -EINVAL, "message %zu is not UTF-8 at byte %zu", i, n_good);
    }
    return 0;
}

int64_t template_encode(const struct template *t, const struct token *token,
                        const struct template_message *messages, size_t n_messages,
                        uint32_t *out_ids, size_t n_ids_max, struct err *e) {
    struct writer w = {.token = token, .e = e, .ids = out_ids, .n_ids_max = n_ids_max};
    int r = check(messages, n_messages, e);

    if (r < 0) return r;
    switch (t->family) {
    case TEMPLATE_NONE:
        return err_set(e, -ENOTSUP, "the model has no chat template");
    case TEMPLATE_UNKNOWN:
        return err_set(e, -ENOTSUP, "the model's chat template is not one of the known ones");
    case TEMPLATE_PLAIN:
        r = encode_plain(&w, messages, n_messages);
        break;
    case TEMPLATE_CHATML:
        r = encode_chatml(&w, t, messages, n_messages);
        break;
    case TEMPLATE_LLAMA3:
        r = encode_llama3(&w, messages, n_messages);
        break;
    }
    return r < 0 ? r : (int64_t)w.n_ids;
}
