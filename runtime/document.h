/* document - a JSON text that must be an object, read without mercy.
 *
 * Owns:   nothing; the caller drops its reference.
 * Thread: any.
 * Fails:  -EINVAL  not JSON to the letter (RFC 8259), a key twice, bytes that are not UTF-8, a zero
 *                  inside a text, a number beyond int64 or binary64, or not an object
 *         -ENOMEM */
#ifndef LLM42D_RUNTIME_DOCUMENT_H
#define LLM42D_RUNTIME_DOCUMENT_H

#include <jansson.h>
#include <stddef.h>

struct err;

/* 0 and a new reference; `name` stands before the text of a failure. */
int document_parse(const char *name, const char *text, size_t n_bytes, json_t **out_root,
                   struct err *e);
/* The same where integers of any size may stand, all read as reals: for files whose numbers are
 * not ours to judge (a tokenizer_config.json may say model_max_length 1e30, digit by digit). */
int document_parse_reals(const char *name, const char *text, size_t n_bytes, json_t **out_root,
                         struct err *e);

#endif
