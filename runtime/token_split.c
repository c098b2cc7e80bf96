/* Each pattern is a regular expression of ordered alternatives; a function a pattern tries them in
 * that order by hand.  No alternative looks further than the run of one class it stands in and one
 * character more, and what it looked at it mostly takes: the work is linear. */
#include "runtime/assert.h"
#include "runtime/token_impl.h"
#include "runtime/unicode.h"

struct cursor {
    const uint8_t *text;
    size_t n_bytes;
    bool numbers_end; /* a number counts as the end of the text */
};

enum { END = -1 };

/* The class of the character at `off` and its length, or END. */
static int peek(const struct cursor *c, size_t off, uint32_t *out_n) {
    enum unicode_class kind;

    if (off >= c->n_bytes) return END;
    kind = unicode_class(unicode_read(c->text + off, out_n));
    return c->numbers_end && kind == UNICODE_NUMBER ? END : (int)kind;
}

static int class_at(const struct cursor *c, size_t off) {
    uint32_t n;

    return peek(c, off, &n);
}

static size_t run(const struct cursor *c, size_t off, enum unicode_class kind) {
    uint32_t n;

    while (peek(c, off, &n) == (int)kind) off += n;
    return off;
}

static bool is_newline(const struct cursor *c, size_t off) {
    return off < c->n_bytes && (c->text[off] == '\n' || c->text[off] == '\r');
}

/* 's 't 're 've 'm 'll 'd after the apostrophe: the end, or `off` if there is none.  Without
 * regard to case U+017F, the long s, is an s. */
static size_t contraction(const struct cursor *c, size_t off, bool any_case) {
    const uint8_t *p = c->text + off + 1;
    size_t n = c->n_bytes - off - 1;
    uint8_t fold = any_case ? 0x20 : 0;
    uint8_t a, b;

    if (n == 0) return off;
    a = p[0] | fold;
    b = n > 1 ? p[1] | fold : 0;
    /* With 0x20 set only letters become these letters. */
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return off + 2;
    if ((a == 'r' || a == 'v') && b == 'e') return off + 3;
    if (a == 'l' && b == 'l') return off + 3;
    if (any_case && n > 1 && p[0] == 0xc5 && p[1] == 0xbf) return off + 3;
    return off;
}

/* \s+(?!\S)|\s+ over the run [off, end): all of it at the end of the text, else all but the last
 * character, which goes with what follows; alone it is a word. */
static size_t spaces(const struct cursor *c, size_t off, size_t end) {
    size_t last = end;

    if (class_at(c, end) == END) return end;
    do last--;
    while ((c->text[last] & 0xc0) == 0x80);
    return last == off ? end : last;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t next_gpt2(const struct cursor *c, size_t off) {
    size_t start = off;
    int kind;

    if (c->text[off] == '\'') {
        size_t end = contraction(c, off, false);

        if (end != off) return end;
    }
    if (c->text[off] == ' ') start++;
    kind = class_at(c, start);
    if (kind == UNICODE_SPACE || kind == END) return spaces(c, off, run(c, off, UNICODE_SPACE));
    return run(c, start, (enum unicode_class)kind);
}

static size_t numbers(const struct cursor *c, size_t off, uint32_t n_max) {
    uint32_t n;

    while (n_max > 0 && peek(c, off, &n) == UNICODE_NUMBER) {
        off += n;
        n_max--;
    }
    return off;
}

/* \s*[\r\n]+ takes a run of spaces up to its last newline; else as spaces(). */
static size_t spaces_and_newlines(const struct cursor *c, size_t off) {
    size_t end = run(c, off, UNICODE_SPACE);
    size_t last = end;

    while (last > off && !is_newline(c, last - 1)) last--;
    return last > off ? last : spaces(c, off, end);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,n}| ?[^\s\p{L}\p{N}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t next_llama3(const struct cursor *c, size_t off, uint32_t n_numbers_max) {
    uint32_t n;
    int kind = peek(c, off, &n);
    size_t start = off, end;

    if (c->text[off] == '\'') {
        end = contraction(c, off, true);
        if (end != off) return end;
    }
    if (kind == UNICODE_LETTER) return run(c, off, UNICODE_LETTER);
    if (kind == UNICODE_NUMBER) return numbers(c, off, n_numbers_max);
    if (!is_newline(c, off) && class_at(c, off + n) == UNICODE_LETTER)
        return run(c, off + n, UNICODE_LETTER);

    if (c->text[off] == ' ') start++;
    if (class_at(c, start) != UNICODE_OTHER) return spaces_and_newlines(c, off);
    end = run(c, start, UNICODE_OTHER);
    while (is_newline(c, end)) end++;
    return end;
}

size_t token_split_next(enum token_split split, const uint8_t *text, size_t n_bytes, size_t off) {
    struct cursor c = {text, n_bytes, false};

    ASSERT(off < n_bytes);
    switch (split) {
    case TOKEN_SPLIT_DIGITS_GPT2: {
        uint32_t n;

        if (peek(&c, off, &n) == UNICODE_NUMBER) return off + n;
        c.numbers_end = true;
        return next_gpt2(&c, off);
    }
    case TOKEN_SPLIT_LLAMA3:
        return next_llama3(&c, off, 3);
    case TOKEN_SPLIT_QWEN2:
        return next_llama3(&c, off, 1);
    case TOKEN_SPLIT_GPT2:
        break;
    }
    return next_gpt2(&c, off);
}
