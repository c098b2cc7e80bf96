/* Tokenizers of four families give the reference's ids; files that ask for more are refused by
 * name; no text is too long for the time or the stack. */
#include "runtime/token.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "runtime/err.h"
#include "runtime/file.h"
#include "runtime/unicode.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const char *const families[] = {"gpt2", "smollm", "llama3", "qwen2"};

static struct token *open_family(const char *family) {
    char path[128];
    struct token *t = NULL;
    struct err e = {""};

    (void)snprintf(path, sizeof(path), "tests/data/token/%s.json", family);
    if (token_open(path, &t, &e) < 0) fail_msg("%s", e.text);
    return t;
}

/* Vectors of the reference implementation, written by tests/data/token/make. */

static size_t from_hex(const char *hex, char *out) {
    size_t n = 0;

    for (unsigned byte; *hex != ' ' && sscanf(hex, "%2x", &byte) == 1; hex += 2)
        out[n++] = (char)byte;
    return n;
}

static void check_vector(const struct token *t, const char *family, int line, const char *row) {
    static char text[4096];
    static uint32_t ids[4096];
    unsigned flags = (unsigned)strtoul(row, NULL, 10);
    const char *hex = strchr(row, ' ') + 1, *want = strchr(hex, ' ');
    size_t n_text = from_hex(*hex == '-' ? "" : hex, text);
    struct err e = {""};
    int64_t n = token_encode(t, text, n_text, flags, ids, COUNT(ids), &e);
    int64_t i = 0;

    for (char *end; want && *want == ' '; want = end, i++) {
        unsigned long id = strtoul(want, &end, 10);

        if (i >= n || ids[i] != id)
            fail_msg("%s.txt:%d: id %d is not %lu (%s)", family, line, (int)i, id, e.text);
    }
    if (i != n) fail_msg("%s.txt:%d: %d ids, not %d %s", family, line, (int)n, (int)i, e.text);
}

static void vectors(void **state) {
    static char row[16384];

    (void)state;
    for (size_t f = 0; f < COUNT(families); f++) {
        struct token *t = open_family(families[f]);
        char path[128];
        FILE *file;
        int line = 0;

        (void)snprintf(path, sizeof(path), "tests/data/token/%s.txt", families[f]);
        file = fopen(path, "r");
        assert_non_null(file);
        while (fgets(row, sizeof(row), file)) {
            row[strcspn(row, "\n")] = '\0';
            check_vector(t, families[f], ++line, row);
        }
        assert_true(line > 100);
        (void)fclose(file);
        token_close(t);
    }
}

static void test_model(void **state) {
    static const uint32_t want[] = {0, 1399, 262, 302};
    struct token *t = NULL;
    struct err e = {""};
    uint32_t ids[8], n_bytes;
    bool special;

    (void)state;
    assert_int_equal(token_open("tests/data/verse-4m/tokenizer.json", &t, &e), 0);
    assert_int_equal(token_count(t), 2048);
    assert_int_equal(token_find(t, "<|im_start|>"), 2);
    assert_int_equal(token_find(t, "<|no such|>"), TOKEN_ID_NONE);
    assert_int_equal(token_encode(t, "In the be", 9, TOKEN_ENCODE_TEMPLATE, ids, 8, &e), 4);
    for (size_t i = 0; i < COUNT(want); i++)
        if (ids[i] != want[i]) fail_msg("id %zu is %u", i, ids[i]);
    assert_memory_equal(token_bytes(t, 1, &n_bytes, &special), "<|eos|>", 7);
    assert_int_equal(n_bytes, 7);
    assert_true(special);
    assert_null(token_bytes(t, 2048, &n_bytes, &special));
    assert_null(token_bytes(t, UINT32_MAX, &n_bytes, &special));
    assert_true(token_bytes_max(t) >= 12);
    token_close(t);
}

/* A family's file with one place changed. */
struct change {
    const char *why;
    const char *family;
    const char *from, *to;
    int want;
    const char *text; /* that the error must hold */
};

#define GPT2_MERGES "\"merges\":[\"Ġ t\""

static const struct change changes[] = {
    {"nothing changed", "gpt2", "\"1.0\"", "\"1.0\"", 0, ""},
    {"cut off", "gpt2", "\"1.0\"", "\"1.0", -EINVAL, "line"},
    {"a key twice", "gpt2", "\"truncation\":null", "\"version\":\"1.0\"", -EINVAL, "duplicate"},
    {"a later version", "gpt2", "\"1.0\"", "\"2.0\"", -EINVAL, "version"},
    {"truncation", "gpt2", "\"truncation\":null", "\"truncation\":{}", -ENOTSUP, "truncation"},
    {"padding", "gpt2", "\"padding\":null", "\"padding\":{}", -ENOTSUP, "padding"},
    {"another model", "gpt2", "\"BPE\"", "\"Unigram\"", -ENOTSUP, "Unigram"},
    {"no model", "gpt2", "\"model\":", "\"models\":", -EINVAL, "model"},
    {"the model is a list", "gpt2", "\"model\":{", "\"model\":[],\"x\":{", -EINVAL, "model"},
    {"no vocab", "gpt2", "\"vocab\":", "\"vocabs\":", -ENOTSUP, "vocabs"},
    {"no merges", "gpt2", "\"vocab\":{", "\"vocab\":7,\"type\":\"BPE\"}, \"x\":{", -EINVAL, ""},
    {"dropout", "gpt2", "\"dropout\":null", "\"dropout\":0.1", -ENOTSUP, "dropout"},
    {"an unknown token", "gpt2", "\"unk_token\":null", "\"unk_token\":\"a\"", -ENOTSUP,
     "unk_token"},
    {"an empty one is none", "gpt2", "\"unk_token\":null", "\"unk_token\":\"\"", 0, ""},
    {"a word prefix", "gpt2", "\"continuing_subword_prefix\":null",
     "\"continuing_subword_prefix\":\"##\"", -ENOTSUP, "continuing_subword_prefix"},
    {"an empty one is none", "gpt2", "\"continuing_subword_prefix\":null",
     "\"continuing_subword_prefix\":\"\"", 0, ""},
    {"a word suffix", "gpt2", "\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"",
     -ENOTSUP, "end_of_word_suffix"},
    {"fused unknowns", "gpt2", "\"fuse_unk\":false", "\"fuse_unk\":true", -ENOTSUP, "fuse_unk"},
    {"byte fallback", "gpt2", "\"byte_fallback\":false", "\"byte_fallback\":true", -ENOTSUP,
     "byte_fallback"},
    {"ignore_merges is a number", "gpt2", "\"ignore_merges\":false", "\"ignore_merges\":1", -EINVAL,
     "ignore_merges"},
    {"an option of a later model", "gpt2", "\"ignore_merges\":false", "\"warp\":1", -ENOTSUP,
     "warp"},
    {"an id twice", "gpt2", "\"!\":1,", "\"!\":2,", -EINVAL, "id 2"},
    {"a negative id", "gpt2", "\"!\":1,", "\"!\":-1,", -EINVAL, "\"!\""},
    {"an id that is a text", "gpt2", "\"!\":1,", "\"!\":\"1\",", -EINVAL, "\"!\""},
    {"an id that is not whole", "gpt2", "\"!\":1,", "\"!\":1.0,", -EINVAL, "\"!\""},
    {"the highest id of all", "gpt2", "\"!\":1,", "\"!\":1048575,", 0, ""},
    {"one more", "gpt2", "\"!\":1,", "\"!\":1048576,", -EINVAL, "1048576"},
    {"beyond 32 bits", "gpt2", "\"!\":1,", "\"!\":4294967297,", -EINVAL, "4294967297"},
    {"an empty word", "gpt2", "\"!\":1,", "\"\":1,", -EINVAL, "empty"},
    {"a merge of what is not there", "gpt2", GPT2_MERGES, "\"merges\":[\"Ġ 中\"", -EINVAL,
     "merge 0"},
    {"a merge that makes nothing", "gpt2", GPT2_MERGES, "\"merges\":[\"! #\"", -EINVAL, "merge 0"},
    {"a merge of one", "gpt2", GPT2_MERGES, "\"merges\":[\"Ġt\"", -EINVAL, "merge 0"},
    {"a merge of three", "gpt2", GPT2_MERGES, "\"merges\":[\"Ġ t h\"", -EINVAL, "merge 0"},
    {"a merge with an empty half", "gpt2", GPT2_MERGES, "\"merges\":[\"Ġt \"", -EINVAL, "merge 0"},
    {"a merge that is a number", "gpt2", GPT2_MERGES, "\"merges\":[7", -EINVAL, "merge 0"},
    {"a version line among the merges", "gpt2", GPT2_MERGES,
     "\"merges\":[\"#version: 0.2\",\"Ġ t\"", 0, ""},
    {"both spellings in one list", "gpt2", GPT2_MERGES, "\"merges\":[[\"Ġ\",\"t\"]", -EINVAL,
     "merge 1"},
    {"single_word", "gpt2", "\"single_word\":false", "\"single_word\":true", -ENOTSUP,
     "single_word"},
    {"an added token that does not say", "gpt2", "\"lstrip\":false,", "", -EINVAL, "lstrip"},
    {"an added token with another id than the vocabulary's", "gpt2",
     "{\"id\":0,\"content\":\"<|endoftext|>\"", "{\"id\":5,\"content\":\"<|endoftext|>\"", -ENOTSUP,
     "<|endoftext|>"},
    {"an added token out of order", "gpt2", "{\"id\":900,", "{\"id\":950,", -ENOTSUP,
     "<|im_start|>"},
    {"an added token twice", "gpt2", "\"<|im_end|>\"", "\"<|im_start|>\"", -EINVAL, "same text"},
    {"an empty added token", "gpt2", "\"content\":\"<|im_end|>\"", "\"content\":\"\"", -ENOTSUP,
     "added token"},
    {"a normalizer that we lack", "qwen2", "\"NFC\"", "\"NFKC\"", -ENOTSUP, "NFKC"},
    {"a prefix space", "gpt2", "\"add_prefix_space\":false", "\"add_prefix_space\":true", -ENOTSUP,
     "add_prefix_space"},
    {"no pattern", "gpt2", "\"use_regex\":true},\"post", "\"use_regex\":false},\"post", -ENOTSUP,
     "use_regex"},
    {"another pre-tokenizer", "gpt2", "\"pre_tokenizer\":{\"type\":\"ByteLevel\"",
     "\"pre_tokenizer\":{\"type\":\"Whitespace\"", -ENOTSUP, "Whitespace"},
    {"digits in runs", "smollm", "\"individual_digits\":true", "\"individual_digits\":false",
     -ENOTSUP, "individual_digits"},
    {"one number more a word", "llama3", "{1,3}", "{1,4}", -ENOTSUP, "{1,4}"},
    {"a pattern that goes on", "llama3", "|\\\\s+\"}", "|\\\\s+|x\"}", -ENOTSUP, "pattern"},
    {"the pattern inverted", "llama3", "\"invert\":false", "\"invert\":true", -ENOTSUP, "invert"},
    {"matches removed", "llama3", "\"Isolated\"", "\"Removed\"", -ENOTSUP, "Removed"},
    {"a plain pattern", "llama3", "\"Regex\"", "\"String\"", -EINVAL, "pattern"},
    {"another post-processor", "smollm", "\"TemplateProcessing\"", "\"BertProcessing\"", -ENOTSUP,
     "BertProcessing"},
    {"a template of two texts", "smollm", "\"single\":[",
     "\"single\":[{\"Sequence\":{\"id\":\"B\"}},", -EINVAL, "sequence A"},
    {"an id of nothing in the template", "smollm", "\"ids\":[", "\"ids\":[5000,", -EINVAL,
     "TemplateProcessing"},
    {"another decoder", "gpt2", "\"decoder\":{\"type\":\"ByteLevel\"",
     "\"decoder\":{\"type\":\"WordPiece\"", -ENOTSUP, "WordPiece"},
};

static char *change(const struct change *c, size_t *out_n) {
    char path[128], *text = NULL, *at, *out;
    size_t n = 0, n_from = strlen(c->from), n_to = strlen(c->to);
    struct err e;

    (void)snprintf(path, sizeof(path), "tests/data/token/%s.json", c->family);
    assert_int_equal(file_read(path, TOKEN_FILE_BYTES_MAX, &text, &n, &e), 0);
    at = strstr(text, c->from);
    if (!at) fail_msg("%s: nothing to change", c->why);
    out = malloc(n + n_to);
    assert_non_null(out);
    memcpy(out, text, (size_t)(at - text));
    memcpy(out + (at - text), c->to, n_to);
    memcpy(out + (at - text) + n_to, at + n_from, n - (size_t)(at - text) - n_from);
    free(text);
    *out_n = n - n_from + n_to;
    return out;
}

static void refusals(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(changes); i++) {
        struct token *t = NULL;
        struct err e = {""};
        size_t n;
        char *json = change(&changes[i], &n);
        int r = token_open_text("file", json, n, &t, &e);

        if (r != changes[i].want || (r < 0 && !strstr(e.text, changes[i].text)))
            fail_msg("%s: %d %s", changes[i].why, r, e.text);
        token_close(t);
        free(json);
    }
}

static void digests(void **state) {
    static const struct change same[] = {
        {"an offset option", "gpt2", "\"trim_offsets\":true", "\"trim_offsets\":false", 0, ""},
        {"an unknown part", "gpt2", "\"version\"", "\"note\":1,\"version\"", 0, ""},
    };
    static const struct change other[] = {
        {"a merge less", "gpt2", "\"Ġ t\",", "", 0, ""},
        {"special or not", "gpt2", "\"special\":true", "\"special\":false", 0, ""},
        {"a hole", "gpt2", "\"!\":1,", "\"!\":99999,", 0, ""},
        {"NFC", "gpt2", "\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}", 0, ""},
    };
    struct token *t = open_family("gpt2");
    uint8_t want[TOKEN_DIGEST_BYTES], got[TOKEN_DIGEST_BYTES];

    (void)state;
    token_digest(t, want);
    token_close(t);
    for (size_t i = 0; i < COUNT(same) + COUNT(other); i++) {
        const struct change *c = i < COUNT(same) ? &same[i] : &other[i - COUNT(same)];
        struct err e = {""};
        size_t n;
        char *json = change(c, &n);

        if (token_open_text("file", json, n, &t, &e) < 0) fail_msg("%s: %s", c->why, e.text);
        token_digest(t, got);
        if ((memcmp(want, got, sizeof(got)) == 0) != (i < COUNT(same)))
            fail_msg("%s: digest", c->why);
        token_close(t);
        free(json);
    }
}

static void limits(void **state) {
    static const char *const bad[] = {
        "\x80",     "a\xc2", "\xc0\x80",        "\xed\xa0\x80", "\xf4\x90\x80\x80",
        "\xe2\x82", "\xff",  "\xf0\x80\x80\x80"};
    struct token *t = open_family("gpt2");
    char *text = malloc(TOKEN_TEXT_BYTES_MAX + 1);
    uint32_t *ids = malloc((TOKEN_TEXT_BYTES_MAX + 1) * sizeof(*ids));
    struct err e = {""};
    int64_t n;

    (void)state;
    assert_non_null(text);
    assert_non_null(ids);
    for (size_t i = 0; i < COUNT(bad); i++)
        if (token_encode(t, bad[i], strlen(bad[i]), 0, ids, 99, &e) != -EINVAL)
            fail_msg("text %zu is not UTF-8", i);

    memset(text, '#', TOKEN_TEXT_BYTES_MAX + 1);
    n = token_encode(t, text, 1000, 0, ids, 1000, &e);
    assert_in_range(n, 1, 1000);
    assert_int_equal(token_encode(t, text, 1000, 0, ids, (size_t)n, &e), n);
    assert_int_equal(token_encode(t, text, 1000, 0, ids, (size_t)n - 1, &e), -EMSGSIZE);
    assert_int_equal(token_encode(t, text, 1, 0, ids, 0, &e), -EMSGSIZE);
    assert_int_equal(token_encode(t, "", 0, 0, NULL, 0, &e), 0);
    assert_int_equal(
        token_encode(t, text, TOKEN_TEXT_BYTES_MAX + 1, 0, ids, TOKEN_TEXT_BYTES_MAX, &e),
        -EMSGSIZE);
    assert_in_range(token_encode(t, text, TOKEN_TEXT_BYTES_MAX, 0, ids, TOKEN_TEXT_BYTES_MAX, &e),
                    1, TOKEN_TEXT_BYTES_MAX);
    assert_int_equal(token_open("tests/data/token/none.json", &t, &e), -ENOENT);
    assert_int_equal(token_open("tests/data", &t, &e), -EINVAL);
    token_close(t);
    free(text);
    free(ids);
}

/* What was encoded decodes to itself, where there is no normalizer. */
static void round_trip(void **state) {
    static const char text[] =
        "Thou art a\tboil, \u00fcber-\u4e2d\u6587 \U0001f600 <tool> <|end|>\n";
    uint32_t ids[sizeof(text)];
    char back[sizeof(text)] = "";

    (void)state;
    for (size_t f = 0; f < 3; f++) {
        struct token *t = open_family(families[f]);
        struct err e = {""};
        int64_t n = token_encode(t, text, strlen(text), TOKEN_ENCODE_SPECIAL, ids, COUNT(ids), &e);
        size_t at = 0;

        for (int64_t i = 0; i < n; i++) {
            uint32_t n_bytes;
            bool special;
            const uint8_t *bytes = token_bytes(t, ids[i], &n_bytes, &special);

            assert_non_null(bytes);
            assert_true(at + n_bytes < sizeof(back));
            memcpy(back + at, bytes, n_bytes);
            at += n_bytes;
        }
        assert_int_equal(at, strlen(text));
        assert_string_equal(back, text);
        token_close(t);
    }
}

static const struct {
    const char *why;
    const char *bytes;
    const char *want;
} streams[] = {
    {"plain", "abc", "abc"},
    {"whole characters", "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80",
     "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80"},
    {"a tail alone", "\x80z", "\xef\xbf\xbdz"},
    {"a head before a letter", "\xe4\xb8z", "\xef\xbf\xbdz"},
    {"a head at the end", "\xf0\x9f\x98", "\xef\xbf\xbd"},
    {"two heads", "\xc3\xc3\xa9", "\xef\xbf\xbd\xc3\xa9"},
    {"never in UTF-8", "\xc0\xff", "\xef\xbf\xbd\xef\xbf\xbd"},
    {"a surrogate: each byte for itself", "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"overlong", "\xe0\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"beyond the last plane", "\xf4\x90z", "\xef\xbf\xbd\xef\xbf\xbdz"},
};

static void utf8(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(streams); i++) {
        size_t n = strlen(streams[i].bytes), n_want = strlen(streams[i].want);

        /* Wherever the stream is cut, the same comes out. */
        for (size_t cut = 0; cut <= n; cut++) {
            const uint8_t *bytes = (const uint8_t *)streams[i].bytes;
            struct token_utf8 u = {0};
            uint8_t out[128];
            size_t n_out = token_utf8_push(&u, bytes, cut, false, out);

            n_out += token_utf8_push(&u, bytes + cut, n - cut, true, out + n_out);
            if (n_out != n_want || memcmp(out, streams[i].want, n_want) != 0)
                fail_msg("%s, cut at %zu", streams[i].why, cut);
        }
    }
}

static const struct {
    const char *why;
    const char *text, *want;
} forms[] = {
    {"composed", "e\u0301", "\u00e9"},
    {"already so", "\u00e9", "\u00e9"},
    {"a singleton", "\u212b", "\u00c5"},
    {"excluded from composition", "\u0958", "\u0915\u093c"},
    {"ordered, then composed", "s\u0307\u0323", "\u1e69"},
    {"a composite that must be taken apart first", "\u1e0b\u0323", "\u1e0d\u0307"},
    {"blocked by a mark of the same class", "a\u0315\u0300\u05ae\u0300",
     "\u00e0\u05ae\u0300\u0315"},
    {"Hangul of three", "\u1112\u1161\u11ab", "\ud55c"},
    {"Hangul with its tail apart", "\ud558\u11ab", "\ud55c"},
    {"no tail but U+11A7", "\ud558\u11a7", "\ud558\u11a7"},
    {"two starters", "\u09c7\u09be", "\u09cb"},
    {"a mark without a starter", "\u0301e", "\u0301e"},
    {"three times as long", "\U0001d160", "\U0001d158\U0001d165\U0001d16e"},
};

static void nfc(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(forms); i++) {
        uint8_t *out = NULL;
        const uint8_t *text = (const uint8_t *)forms[i].text;
        size_t n;

        assert_int_equal(unicode_nfc(text, strlen(forms[i].text), &out, &n), 0);
        if (n != strlen(forms[i].want) || memcmp(out ? out : text, forms[i].want, n) != 0)
            fail_msg("%s", forms[i].why);
        free(out);
    }
}

/* One unbroken run of one kind, a megabyte of it: the case that kills tokenizers. */
static const char *const runs[] = {
    "a",  "Z",       "\u4e2d",           "7",      ".",   " ",
    "\n", "\u0301",  "\U0001f469\u200d", "\u00a0", "'s",  "<",
    "<|", "<|end|>", "\u0301\u0327",     "\uac00", "  x", "\x01",
    "ab", " \n",
};

enum { RUN_BYTES = 1 << 20, RUN_SECONDS_MAX = 10 /* a tenth of it without a sanitizer */ };

static void *encode_runs(void *arg) {
    char *text = malloc(RUN_BYTES);
    uint32_t *ids = malloc(2 * RUN_BYTES * sizeof(*ids));
    struct token *t = arg;
    const char *bad = NULL;
    struct err e;

    for (size_t i = 0; i < COUNT(runs) && text && ids; i++) {
        size_t n_run = strlen(runs[i]), n = 0;
        struct timespec start, end;

        while (n + n_run <= RUN_BYTES) {
            memcpy(text + n, runs[i], n_run);
            n += n_run;
        }
        (void)clock_gettime(CLOCK_MONOTONIC, &start);
        if (token_encode(t, text, n, TOKEN_ENCODE_SPECIAL, ids, 2 * RUN_BYTES, &e) < 0)
            bad = runs[i];
        (void)clock_gettime(CLOCK_MONOTONIC, &end);
        if (end.tv_sec - start.tv_sec > RUN_SECONDS_MAX) bad = runs[i];
    }
    if (!text || !ids) bad = "no memory";
    free(text);
    free(ids);
    return (void *)(uintptr_t)bad;
}

static void long_runs(void **state) {
    (void)state;
    for (size_t f = 0; f < COUNT(families); f++) {
        struct token *t = open_family(families[f]);
        pthread_attr_t small;
        pthread_t thread;
        void *bad;

        assert_int_equal(pthread_attr_init(&small), 0);
        assert_int_equal(pthread_attr_setstacksize(&small, 256 << 10), 0);
        assert_int_equal(pthread_create(&thread, &small, encode_runs, t), 0);
        assert_int_equal(pthread_join(thread, &bad), 0);
        assert_int_equal(pthread_attr_destroy(&small), 0);
        if (bad) fail_msg("%s: a megabyte of \"%s\"", families[f], (const char *)bad);
        token_close(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors), cmocka_unit_test(test_model), cmocka_unit_test(refusals),
        cmocka_unit_test(digests), cmocka_unit_test(limits),     cmocka_unit_test(round_trip),
        cmocka_unit_test(utf8),    cmocka_unit_test(nfc),        cmocka_unit_test(long_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
