/* template - a chat as token ids: the known families, compiled in.
 *
 * Owns:   nothing.
 * Thread: any.
 * Fails:  -ENOTSUP  the model's template is none of the known ones, or it has none
 *         -EINVAL   a role that the family does not have, text that is not UTF-8
 *         -EMSGSIZE
 *
 * A published template is a program in another language; we do not run it.  It is recognised by
 * its text, and what the family does is written here.  Text of a user is never read as a special
 * token, and no template looks at a clock.
 *
 *   ChatML   <|im_start|>role\n text <|im_end|>\n a message, then <|im_start|>assistant\n
 *   Llama-3  <|begin_of_text|>, then <|start_header_id|>role<|end_header_id|>\n\n text <|eot_id|> a
 *            message, the text trimmed, then the same header for assistant
 *   plain    system text\n\n, "User: text\n", "Assistant: text\n", then "Assistant:"; encoded as
 *            one raw text, so with what TOKEN_ENCODE_TEMPLATE adds
 *
 * The spaces between marker and text above are for the eye. */
#ifndef LLM42D_RUNTIME_TEMPLATE_H
#define LLM42D_RUNTIME_TEMPLATE_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct token;

enum template_family {
    TEMPLATE_NONE,    /* the folder has no chat template: chats are refused */
    TEMPLATE_UNKNOWN, /* it has one that we do not know: chats are refused */
    TEMPLATE_PLAIN,   /* for base models: roles as words; the text that asks for it: SPEC 3.3 */
    TEMPLATE_CHATML,
    TEMPLATE_LLAMA3,
};

enum template_role { TEMPLATE_SYSTEM, TEMPLATE_USER, TEMPLATE_ASSISTANT };

struct template_message {
    enum template_role role;
    const char *text;
    size_t n_bytes;
};

struct template {
    enum template_family family;
    /* ChatML families that add a system message when none is given, else NULL. */
    char *default_system;
};

/* Reads tokenizer_config.json and chat_template.jinja of a model folder, either of which may be
 * missing; where both have a template and they differ, it is UNKNOWN.  0 and *out_template even
 * where the family is NONE or UNKNOWN; -EINVAL for a malformed file, -EACCES, -EIO, -ENOMEM. */
int template_open(const char *folder, struct template *out_template, struct err *e);
void template_close(struct template *t);
const char *template_name(enum template_family family);

/* The ids of a chat, ending where the assistant is to speak; the count or as above. */
int64_t template_encode(const struct template *t, const struct token *token,
                        const struct template_message *messages, size_t n_messages,
                        uint32_t *out_ids, size_t n_ids_max, struct err *e);

#endif
