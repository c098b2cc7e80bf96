/* token_impl - what the files of the tokenizer share; nobody else includes it.
 *
 * Owns:   see token.h.
 * Thread: see token.h.
 * Fails:  see token.h.
 *
 * token.c answers.  token_json.c and token_vocab.c fill struct token from the file.  Then
 * token_added.c finds added tokens in a text, token_split.c cuts what is between them into words,
 * token_bpe.c turns a word into ids. */
#ifndef LLM42D_RUNTIME_TOKEN_IMPL_H
#define LLM42D_RUNTIME_TOKEN_IMPL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/token.h"

enum {
    TOKEN_IDS_MAX = 1 << 20,
    TOKEN_MERGES_MAX = 1 << 21,
    TOKEN_ADDED_MAX = 1 << 16,
    TOKEN_ADDED_BYTES_MAX = 256,    /* bounds the work at each byte of a text */
    TOKEN_WORD_BYTES_MAX = 1 << 16, /* of a vocabulary entry */
    TOKEN_FRAME_IDS_MAX = 16,       /* that TemplateProcessing adds on either side */
};

#define TOKEN_NONE UINT32_MAX

enum token_split {
    TOKEN_SPLIT_GPT2,
    TOKEN_SPLIT_DIGITS_GPT2, /* every number alone, GPT-2 between them (SmolLM) */
    TOKEN_SPLIT_LLAMA3,
    TOKEN_SPLIT_QWEN2,
};

/* Bytes in the pool.  n_bytes is 0 where there is nothing. */
struct token_text {
    uint32_t off, n_bytes;
};

struct token_added {
    struct token_text text;    /* as written in the file */
    struct token_text pattern; /* what is searched for: the text, normalised if so marked */
    uint32_t id;
    bool special, lstrip, rstrip, normalized;
};

/* Added tokens that are searched for together, sorted by pattern. */
struct token_set {
    uint32_t *rows; /* into added */
    uint32_t n_rows;
    bool first[256]; /* some pattern begins with this byte */
};

struct token_merge {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank, id;
};

struct token {
    uint8_t *pool;
    size_t n_pool;
    struct token_text *texts; /* [n_ids], what an id decodes to */
    struct token_text *words; /* [n_ids], what the model spells it with; not for added tokens */
    bool *special;            /* [n_ids] */
    uint32_t n_ids;
    uint32_t n_bytes_max; /* of texts */
    uint32_t n_word_bytes_max;

    uint32_t *word_slots; /* ids by the hash of their words, open addressing; TOKEN_NONE is free */
    uint32_t n_word_slots;
    uint32_t byte_ids[256];
    struct token_merge
        *merges; /* by the hash of the pair, open addressing; id TOKEN_NONE is free */
    uint32_t n_merge_slots;
    uint32_t merge_shift;

    struct token_added *added; /* sorted by text */
    uint32_t n_added;
    struct token_set raw;        /* found in the text as it came */
    struct token_set normalised; /* found after normalisation */

    uint32_t before[TOKEN_FRAME_IDS_MAX], after[TOKEN_FRAME_IDS_MAX];
    uint32_t n_before, n_after;
    enum token_split split;
    bool nfc;
    bool ignore_merges;
    uint8_t digest[TOKEN_DIGEST_BYTES];
};

/* Where ids go, and the memory that long words need. */
struct token_out {
    const struct token *t;
    struct err *e;
    unsigned flags; /* enum token_encode_flags */
    uint32_t *ids;
    size_t n_ids, n_ids_max;
    struct token_symbol *symbols;
    uint64_t *heap;
    size_t n_symbols_max; /* of symbols; the heap has room for twice as many */
};

/* A file on its way into `t`. */
struct token_reader {
    struct token *t;
    const char *name; /* of the file */
    struct err *e;
    json_t *vocab, *merges, *added; /* borrowed */
    struct token_merge *ranked;     /* the merges in the order of the file, for the digest */
    size_t n_ranked;
    int16_t bytes[0x144]; /* the byte that a character of the byte-level alphabet stands for */
};

/* Fills a zeroed `t`; on failure the caller closes it. */
int token_json_read(struct token *t, const char *name, json_t *root, struct err *e);
int token_json_malformed(const struct token_reader *rd, const char *what);
int token_json_no_memory(const struct token_reader *rd);
/* Refuses a component with an option that is not in the NULL-terminated list. */
int token_json_check_keys(const struct token_reader *rd, json_t *o, const char *what,
                          const char *const known[]);
/* `key` must be the boolean `want`; absent counts as `absent`. */
int token_json_check_bool(const struct token_reader *rd, const json_t *o, const char *what,
                          const char *key, bool want, bool absent);
/* Once nfc is known: texts, words, merges and added tokens. */
int token_vocab_read(struct token_reader *rd);

/* The end of the word that begins at `off` < n_bytes; text is well-formed UTF-8. */
size_t token_split_next(enum token_split split, const uint8_t *text, size_t n_bytes, size_t off);

/* The id of a vocabulary entry spelt left followed by right, or TOKEN_NONE. */
uint32_t token_bpe_find(const struct token *t, const uint8_t *left, size_t n_left,
                        const uint8_t *right, size_t n_right);
uint64_t token_bpe_hash(const uint8_t *left, size_t n_left, const uint8_t *right, size_t n_right);
/* The slot of the pair, free or not. */
struct token_merge *token_bpe_slot(const struct token *t, uint64_t pair);
int token_bpe_word(struct token_out *out, const uint8_t *word, size_t n_bytes);
int token_bpe_emit(struct token_out *out, uint32_t id);

/* Sorts `added` and makes both sets. */
int token_added_index(struct token *t, const char *name, struct err *e);
/* The added token with exactly this text, or NULL. */
const struct token_added *token_added_find(const struct token *t, const uint8_t *text,
                                           size_t n_bytes);
/* Emits the added tokens of the set and hands what lies between them to `plain`. */
int token_added_split(struct token_out *out, const struct token_set *set, const uint8_t *text,
                      size_t n_bytes,
                      int (*plain)(struct token_out *out, const uint8_t *text, size_t n_bytes));

#endif
