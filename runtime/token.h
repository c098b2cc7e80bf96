/* token - text to token ids and back, as the model's tokenizer.json says.
 *
 * Owns:   its tables, made at open and never changed.
 * Thread: any, once opened; every call but open and close only reads.
 * Fails:  -EINVAL   the file is malformed, the text is not UTF-8, or an id is out of range
 *         -ENOTSUP  the file asks for something that we do not implement; the text names it
 *         -EMSGSIZE the result would be larger than the room for it
 *         -ENOMEM, and those of file.h from token_open
 *
 * Byte-level BPE alone (GPT-2, Llama-3, Qwen2, SmolLM).  Work is near linear in the bytes of the
 * text, whatever they are, and the stack is constant; a single word of n bytes takes 28 n bytes of
 * memory while it is encoded, and NFC, where asked for, 24 n.
 *
 * As the reference implementation does, a byte that the vocabulary has no token for is left out of
 * the text (SmolLM2 has none for most control characters).  Not as it does: a special token that
 * also stands in the vocabulary is never made by ignore_merges; an added token decodes to its own
 * text, whatever letters it has; NFC is that of our Unicode version, where it has one of its own;
 * and an added token whose id is not the one that it would give is refused. */
#ifndef LLM42D_RUNTIME_TOKEN_H
#define LLM42D_RUNTIME_TOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct token;

enum {
    TOKEN_FILE_BYTES_MAX = 64 << 20, /* of a tokenizer.json */
    TOKEN_TEXT_BYTES_MAX = 1 << 20,  /* of a text to encode */
    TOKEN_ID_NONE = -1,
    TOKEN_DIGEST_BYTES = 32,
};

/* 0 and *out_token, or as above.  `path` is a tokenizer.json. */
int token_open(const char *path, struct token **out_token, struct err *e);
/* The same from memory, for tests and fuzzing; `name` stands in errors. */
int token_open_text(const char *name, const char *json, size_t n_bytes, struct token **out_token,
                    struct err *e);
void token_close(struct token *t); /* NULL is fine */

/* One more than the highest id that has a text. */
uint32_t token_count(const struct token *t);
/* The most bytes that one id decodes to. */
uint32_t token_bytes_max(const struct token *t);
/* The id of the added token with exactly this text, else of the vocabulary entry that decodes to
 * it, or TOKEN_ID_NONE. */
int64_t token_find(const struct token *t, const char *text);
/* A digest of everything in the file that reaches the ids, and of the version of the Unicode
 * tables; it enters the fingerprint (SPEC.md 2.13). */
void token_digest(const struct token *t, uint8_t out_digest[TOKEN_DIGEST_BYTES]);

enum token_encode_flags {
    TOKEN_ENCODE_TEMPLATE = 1, /* add what the file's TemplateProcessing adds to a raw text */
    TOKEN_ENCODE_SPECIAL = 2,  /* find special tokens inside the text; else they are text */
};

/* The ids of a text: the count, and out_ids[0 .. count - 1]; -EINVAL where the text is not
 * UTF-8, -EMSGSIZE beyond n_ids_max.  Added tokens that are not special are always found, as the
 * reference implementation does. */
int64_t token_encode(const struct token *t, const char *text, size_t n_bytes, unsigned flags,
                     uint32_t *out_ids, size_t n_ids_max, struct err *e);

/* The bytes of one id, valid as long as t is; NULL for an id without a text (a hole in the
 * vocabulary, or beyond it).  A special token gives *out_special = true and its literal text;
 * whether a reader sees it is the caller's choice. */
const uint8_t *token_bytes(const struct token *t, uint32_t id, uint32_t *out_n_bytes,
                           bool *out_special);

/* Text from a stream of ids never splits a character.  Zeroed at the start. */
struct token_utf8 {
    uint8_t held[4]; /* the start of a character whose end has not come yet */
    uint32_t n_held;
};

/* Appends bytes and gives out whole characters: the count of bytes written to `out`, which must
 * hold n_bytes * 3 + 12.  A byte that can begin or continue no character becomes U+FFFD, by the
 * rule of maximal subparts (Unicode 15, 3.9).  With `last` nothing is held back. */
size_t token_utf8_push(struct token_utf8 *u, const uint8_t *bytes, size_t n_bytes, bool last,
                       uint8_t *out);

#endif
