/* rule - reading of STUB_* and the striking of a rule, for both stubs. */
#ifndef LLM42D_TESTS_STUB_RULE_H
#define LLM42D_TESTS_STUB_RULE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/stub_cuda/stub.h"

static inline void rule_read(const char *variable, struct stub *s) {
    const char *text = getenv(variable);
    char copy[512], *rest = copy;

    if (!text) return;
    (void)snprintf(copy, sizeof(copy), "%s", text);
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        struct stub_rule *rule = strncmp(word, "hang=", 5) ? &s->fail : &s->hang;
        unsigned long long n;
        bool known = sscanf(word, "devices=%d", &s->n_devices) == 1 ||
                     sscanf(word, "major=%d", &s->major) == 1 ||
                     sscanf(word, "minor=%d", &s->minor) == 1 ||
                     sscanf(word, "version=%d", &s->version) == 1;

        if (!known && sscanf(word, "free=%llu", &n) == 1) {
            s->free_bytes = n;
            known = true;
        }
        if (!known &&
            sscanf(word, "%*4[a-z]=%63[^:]:%u:%d", rule->name, &rule->at, &rule->value) != 3) {
            (void)fprintf(stderr, "%s: %s is nothing that it knows\n", variable, word);
            abort();
        }
    }
}

/* Whether this is the call that the rule means: the n_name-th of its name, the n_all-th of all. */
static inline bool rule_strikes(const struct stub_rule *rule, const char *name, uint32_t n_name,
                                uint32_t n_all) {
    if (rule->at == 0) return false;
    if (!strcmp(rule->name, "*")) return rule->at == n_all;
    return rule->at == n_name && !strcmp(rule->name, name);
}

#endif
