/* llm42ctl - talks to llm42d from the command line. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ctl.h"

#ifndef LLM42_VERSION
#define LLM42_VERSION "(unknown)" /* the Makefile knows it */
#endif

static const struct verb {
    const char *name;
    uint32_t bit;
    int (*run)(struct ctl *c);
    int n_args_max;
    const char *args, *help;
} verbs[] = {
    {"generate", CTL_GENERATE, ctl_generate, 1, "[PROMPT|-]",
     "continue a prompt: an argument, stdin, --tokens or --file"},
    {"chat", CTL_CHAT, ctl_chat, 1, "[MESSAGE|-]",
     "talk with the model; with a message, answer it and end"},
    {"score", CTL_SCORE, ctl_score, 1, "[TEXT|-]", "print the logprobs of a text"},
    {"tokenize", CTL_TOKENIZE, ctl_tokenize, 1, "[TEXT|-]", "print the token ids of a text"},
    {"detokenize", CTL_DETOKENIZE, ctl_detokenize, -1, "[ID...]", "print the text of token ids"},
    {"status", CTL_STATUS, ctl_info, 0, "", "what the daemon is doing"},
    {"info", CTL_INFO, ctl_info, 0, "", "what the daemon is: model, device, limits, settings"},
    {"schedules", CTL_SCHEDULES, ctl_info, 0, "", "the orders of addition in use"},
    {"cancel", CTL_CANCEL, ctl_cancel, 1, "ID", "end a request by its server-wide id"},
    {"replay", CTL_REPLAY, ctl_replay, 1, "RECEIPT", "ask a receipt's request again, compare bits"},
    {"health", CTL_HEALTH, ctl_health, 0, "", "0 if the daemon answers and makes progress"},
    {"ping", CTL_PING, ctl_ping, 0, "", "measure the round trip"},
};

enum { N_VERBS = sizeof(verbs) / sizeof(verbs[0]) };

void ctl_say(const char *fmt, ...) {
    va_list args;

    fflush(stdout);
    fputs("llm42ctl: ", stderr);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
}

static void help(void) {
    puts("usage: llm42ctl VERB [OPTION...] [ARGUMENT...]\n");
    for (int i = 0; i < N_VERBS; i++) {
        char head[32];

        snprintf(head, sizeof(head), "%s %s", verbs[i].name, verbs[i].args);
        printf("  %-22s %s\n", head, verbs[i].help);
    }
    puts("\n\"llm42ctl VERB --help\" lists the options of a verb.\n\n"
         "exit status: 0 done, 1 failed or differs, 2 usage, 3 request refused,\n"
         "7 daemon not reachable, 130 interrupted");
}

static void help_verb(const struct verb *v) {
    printf("usage: llm42ctl %s [OPTION...] %s\n\n%s\n\n", v->name, v->args, v->help);
    ctl_option_help(v->bit);
}

static const struct verb *find(const char *name) {
    for (int i = 0; i < N_VERBS; i++)
        if (strcmp(verbs[i].name, name) == 0) return &verbs[i];
    return NULL;
}

int main(int argc, char **argv) {
    const char *socket = getenv("LLM42_SOCKET");
    struct ctl c = {.socket = socket && *socket ? socket : "/run/llm42/llm42d.sock",
                    .admin_socket = "/run/llm42/admin.sock",
                    .count = 1000,
                    .timeout_ms = -1,
                    .submit = {.top_p = 1, .n = 1, .prompt_kind = WIRE_PROMPT_KIND_TEXT}};
    const struct verb *v;
    int r;

    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0)) {
        help();
        return CTL_OK;
    }
    if (argc >= 2 && strcmp(argv[1], "--version") == 0) {
        printf("llm42ctl %s, protocol version %d\n", LLM42_VERSION, WIRE_VERSION);
        return CTL_OK;
    }
    v = argc >= 2 ? find(argv[1]) : NULL;
    if (!v) {
        if (argc >= 2)
            ctl_say("%s is no verb; see llm42ctl --help", argv[1]);
        else
            ctl_say("a verb is needed; see llm42ctl --help");
        return CTL_USAGE;
    }
    c.verb = v->bit;
    c.submit.max_tokens = v->bit == CTL_CHAT ? 512 : 128;
    r = ctl_option_parse(&c, argc - 2, argv + 2);
    if (r != CTL_OK) return r;
    if (c.help) {
        help_verb(v);
    } else if (v->n_args_max >= 0 && c.n_args > v->n_args_max) {
        ctl_say("%s takes %d argument%s at most, %s is one more", v->name, v->n_args_max,
                v->n_args_max == 1 ? "" : "s", c.args[v->n_args_max]);
        r = CTL_USAGE;
    } else {
        r = v->run(&c);
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        ctl_say("cannot write the output");
        if (r == CTL_OK) r = CTL_FAILED;
    }
    return r;
}
