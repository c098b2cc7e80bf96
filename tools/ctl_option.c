/* The command line: one table of flags, which is also the help. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ctl.h"

enum option {
    SOCKET,
    ADMIN_SOCKET,
    DETERMINISTIC,
    SEED,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    MIN_P,
    MAX_TOKENS,
    STOP,
    STOP_ID,
    IGNORE_EOS,
    LOGPROBS,
    TOKENS,
    FILE_,
    JSON,
    STREAM,
    RECEIPT,
    SYSTEM,
    SPECIAL,
    RAW,
    DEADLINE,
    QUEUE_DEADLINE,
    COUNT,
    TIMEOUT,
    HELP,
};

enum {
    ASK = CTL_GENERATE | CTL_CHAT,
    LISTS = CTL_GENERATE | CTL_SCORE,
    ALL = (1 << 12) - 1,
};

/* In the order of enum option. */
static const struct flag {
    const char *name, *value, *help;
    uint32_t verbs;
} flags[] = {
    [SOCKET] = {"socket", "PATH",
                "the daemon's socket; else $LLM42_SOCKET, else /run/llm42/llm42d.sock",
                ALL & ~CTL_CANCEL},
    [ADMIN_SOCKET] = {"admin-socket", "PATH", "the admin socket; else /run/llm42/admin.sock",
                      CTL_CANCEL},
    [DETERMINISTIC] = {"deterministic", NULL, "the same bits at every run, whatever else runs",
                       ASK},
    [SEED] = {"seed", "N", "of sampling, 0 .. 2^64-1; else the daemon draws one and names it", ASK},
    [TEMPERATURE] = {"temperature", "T", "0 (the default: always the most probable) or 2^-7 .. 128",
                     ASK},
    [TOP_K] = {"top-k", "N", "sample among the N most probable; 0: all", ASK},
    [TOP_P] = {"top-p", "P", "sample among the most probable that reach P, above 0, at most 1",
               ASK},
    [MIN_P] = {"min-p", "P", "and at least P times as probable as the first, 0 .. 1", ASK},
    [MAX_TOKENS] = {"max-tokens", "N", "at most N tokens; 128, in a chat 512", ASK},
    [STOP] = {"stop", "TEXT", "end before this text; up to 16 times", ASK},
    [STOP_ID] = {"stop-id", "ID", "end at this token; up to 16 times", ASK},
    [IGNORE_EOS] = {"ignore-eos", NULL, "go on after an end-of-text token", ASK},
    [LOGPROBS] = {"logprobs", "N", "with the N most probable tokens at each place, 0 .. 20", LISTS},
    [TOKENS] = {"tokens", "FILE", "token ids: numbers between spaces or commas, or a JSON array",
                LISTS | CTL_DETOKENIZE},
    [FILE_] = {"file", "JSONL", "a request a line, all submitted at once, answered in their order",
               LISTS},
    [JSON] = {"json", NULL, "print JSON", ALL & ~CTL_CANCEL},
    [STREAM] = {"stream", NULL, "with --json: a line for each commit, before the whole",
                CTL_GENERATE},
    [RECEIPT] = {"receipt", "FILE", "write what `replay` needs", CTL_GENERATE},
    [SYSTEM] = {"system", "TEXT", "the system message", CTL_CHAT},
    [SPECIAL] = {"special", NULL, "special tokens in the text are tokens, else they are text",
                 ASK | CTL_SCORE | CTL_TOKENIZE},
    [RAW] = {"raw", NULL, "nothing is added to the text, such as a begin token",
             LISTS | CTL_TOKENIZE},
    [DEADLINE] = {"deadline", "MS", "the daemon ends the request after this time", ASK | CTL_SCORE},
    [QUEUE_DEADLINE] = {"queue-deadline", "MS", "the same, where it still waits to begin",
                        ASK | CTL_SCORE},
    [COUNT] = {"count", "N", "round trips, 1 .. 1000000; 1000", CTL_PING},
    [TIMEOUT] = {"timeout", "S", "give up after this time; verbs that are answered at once: 10",
                 ALL},
    [HELP] = {"help", NULL, "this list", ALL},
};

enum { N_FLAGS = sizeof(flags) / sizeof(flags[0]) };

void ctl_option_help(uint32_t verb) {
    for (int i = 0; i < N_FLAGS; i++) {
        char head[32];

        if (!(flags[i].verbs & verb)) continue;
        snprintf(head, sizeof(head), "--%s %s", flags[i].name,
                 flags[i].value ? flags[i].value : "");
        printf("  %-22s %s\n", head, flags[i].help);
    }
}

static int bad(const struct flag *f, const char *value, const char *range) {
    ctl_say("--%s %s: it must be %s", f->name, value, range);
    return CTL_USAGE;
}

static int take_u32(const struct flag *f, const char *value, uint64_t min, uint64_t max,
                    uint32_t *out) {
    uint64_t n;

    if (!receipt_value_u64(value, min, max, &n)) {
        ctl_say("--%s %s: it must be a whole number, %llu .. %llu", f->name, value,
                (unsigned long long)min, (unsigned long long)max);
        return CTL_USAGE;
    }
    *out = (uint32_t)n;
    return CTL_OK;
}

static int take_stop(struct wire_submit *s, const struct flag *f, const char *value) {
    size_t n = strlen(value);

    if (n < 1 || n > WIRE_STOP_STRING_BYTES_MAX) return bad(f, value, "1 .. 256 bytes");
    if (s->n_stop_strings == WIRE_STOP_STRINGS_MAX) return bad(f, value, "given 16 times at most");
    s->stop_strings[s->n_stop_strings++] =
        (struct wire_stop_string){(const uint8_t *)value, (uint32_t)n};
    return CTL_OK;
}

static int take_stop_id(struct wire_submit *s, const struct flag *f, const char *value) {
    uint32_t id;

    if (s->n_stop_ids == WIRE_STOP_IDS_MAX) return bad(f, value, "given 16 times at most");
    if (take_u32(f, value, 0, UINT32_MAX, &id) != CTL_OK) return CTL_USAGE;
    s->stop_ids[s->n_stop_ids++] = id;
    return CTL_OK;
}

static int take_sampling(struct wire_submit *s, enum option option, const char *value) {
    const struct flag *f = &flags[option];
    uint32_t n = 0;
    int r = CTL_OK;

    switch (option) {
    case SEED:
        if (!receipt_value_u64(value, 0, UINT64_MAX, &s->seed))
            return bad(f, value, "a whole number, 0 .. 18446744073709551615");
        s->flags |= WIRE_SUBMIT_SEED;
        break;
    case TEMPERATURE:
        if (!receipt_value_f32(value, &s->temperature) ||
            !(s->temperature == 0 || (0x1p-7f <= s->temperature && s->temperature <= 128)))
            return bad(f, value, "0 or 0.0078125 .. 128");
        break;
    case TOP_P:
        if (!receipt_value_f32(value, &s->top_p) || !(0 < s->top_p && s->top_p <= 1))
            return bad(f, value, "above 0 and at most 1");
        break;
    case MIN_P:
        if (!receipt_value_f32(value, &s->min_p) || !(0 <= s->min_p && s->min_p <= 1))
            return bad(f, value, "0 .. 1");
        break;
    case TOP_K:
        r = take_u32(f, value, 0, INT32_MAX, &s->top_k);
        break;
    case MAX_TOKENS:
        r = take_u32(f, value, 1, UINT32_MAX, &s->max_tokens);
        break;
    case DEADLINE:
        r = take_u32(f, value, 1, UINT32_MAX, &s->deadline_ms);
        break;
    case QUEUE_DEADLINE:
        r = take_u32(f, value, 1, UINT32_MAX, &s->queue_deadline_ms);
        break;
    case LOGPROBS:
        r = take_u32(f, value, 0, WIRE_TOP_MAX, &n);
        s->logprobs = (uint16_t)(1 + n);
        break;
    case STOP:
        r = take_stop(s, f, value);
        break;
    case STOP_ID:
        r = take_stop_id(s, f, value);
        break;
    default:
        break;
    }
    return r;
}

static int take(struct ctl *c, enum option option, const char *value) {
    const struct flag *f = &flags[option];
    uint32_t seconds = 0;
    int r = CTL_OK;

    switch (option) {
    case SOCKET:
        c->socket = value;
        break;
    case ADMIN_SOCKET:
        c->admin_socket = value;
        break;
    case TOKENS:
        c->tokens = value;
        break;
    case FILE_:
        c->file = value;
        break;
    case RECEIPT:
        c->receipt = value;
        break;
    case SYSTEM:
        c->system = value;
        break;
    case JSON:
        c->json = true;
        break;
    case STREAM:
        c->stream = true;
        break;
    case HELP:
        c->help = true;
        break;
    case SPECIAL:
        c->submit.flags |= WIRE_SUBMIT_SPECIAL;
        break;
    case RAW:
        c->submit.flags |= WIRE_SUBMIT_RAW;
        break;
    case DETERMINISTIC:
        c->submit.flags |= WIRE_SUBMIT_DETERMINISTIC;
        break;
    case IGNORE_EOS:
        c->submit.flags |= WIRE_SUBMIT_IGNORE_EOS;
        break;
    case COUNT:
        return take_u32(f, value, 1, CTL_COUNT_MAX, &c->count);
    case TIMEOUT:
        r = take_u32(f, value, 1, CTL_TIMEOUT_MAX, &seconds);
        c->timeout_ms = (int64_t)seconds * 1000;
        break;
    default:
        return take_sampling(&c->submit, option, value);
    }
    return r;
}

/* One flag with its value, moving *i. */
static int parse_flag(struct ctl *c, int argc, char **argv, int *i) {
    const char *name = argv[*i] + 2, *equals = strchr(name, '='), *value = NULL;
    size_t n_name = equals ? (size_t)(equals - name) : strlen(name);
    int option;

    for (option = 0; option < N_FLAGS; option++)
        if (strlen(flags[option].name) == n_name && memcmp(flags[option].name, name, n_name) == 0)
            break;
    if (option == N_FLAGS || !(flags[option].verbs & c->verb)) {
        ctl_say("--%.*s: %s", (int)n_name, name,
                option == N_FLAGS ? "no such option" : "not an option of this verb");
        return CTL_USAGE;
    }
    if (!flags[option].value) {
        if (equals) {
            ctl_say("--%s takes no value", flags[option].name);
            return CTL_USAGE;
        }
    } else if (equals) {
        value = equals + 1;
    } else if (*i + 1 < argc) {
        value = argv[++*i];
    } else {
        ctl_say("--%s needs a value: %s", flags[option].name, flags[option].value);
        return CTL_USAGE;
    }
    return take(c, (enum option)option, value);
}

int ctl_option_parse(struct ctl *c, int argc, char **argv) {
    int n_args = 0, r;

    c->args = argv; /* those that are no flag move to the front */
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            while (++i < argc) c->args[n_args++] = argv[i];
            break;
        }
        if (argv[i][0] == '-' && argv[i][1] == '-') {
            r = parse_flag(c, argc, argv, &i);
            if (r != CTL_OK) return r;
        } else if (argv[i][0] == '-' && argv[i][1]) {
            ctl_say("%s: no such option", argv[i]);
            return CTL_USAGE;
        } else {
            c->args[n_args++] = argv[i];
        }
    }
    c->n_args = n_args;
    return CTL_OK;
}
