/* Where prompts come from: arguments, stdin, files of ids, chats. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ctl.h"

static int no_memory(void) {
    ctl_say("out of memory");
    return CTL_FAILED;
}

static int read_stream(FILE *f, const char *path, uint8_t **out_bytes, size_t *out_n) {
    size_t n = 0, room = 64 << 10, got;
    uint8_t *bytes = malloc(room), *more;

    if (!bytes) return no_memory();
    while ((got = fread(bytes + n, 1, room - n, f)) > 0) {
        n += got;
        if (n > CTL_INPUT_MAX) {
            ctl_say("%s: longer than %d bytes", path, CTL_INPUT_MAX);
            free(bytes);
            return CTL_USAGE;
        }
        if (n < room) continue;
        more = realloc(bytes, room *= 2);
        if (!more) {
            free(bytes);
            return no_memory();
        }
        bytes = more;
    }
    if (ferror(f)) {
        ctl_say("%s: %s", path, strerror(errno));
        free(bytes);
        return CTL_USAGE;
    }
    bytes[n] = '\0'; /* there is room: a full buffer grew */
    *out_bytes = bytes;
    *out_n = n;
    return CTL_OK;
}

int ctl_read_file(const char *path, uint8_t **out_bytes, size_t *out_n) {
    FILE *f;
    int r;

    if (strcmp(path, "-") == 0) return read_stream(stdin, "stdin", out_bytes, out_n);
    f = fopen(path, "re");
    if (!f) {
        ctl_say("%s: %s", path, strerror(errno));
        return CTL_USAGE;
    }
    r = read_stream(f, path, out_bytes, out_n);
    fclose(f);
    return r;
}

int ctl_read_text(const struct ctl *c, uint8_t **out_bytes, size_t *out_n) {
    if (c->n_args == 0 || strcmp(c->args[0], "-") == 0) return ctl_read_file("-", out_bytes, out_n);
    *out_n = strlen(c->args[0]);
    *out_bytes = (uint8_t *)strdup(c->args[0]);
    return *out_bytes ? CTL_OK : no_memory();
}

/* Numbers between spaces or commas; brackets around them make it a JSON array. */
int ctl_read_ids(const char *path, uint32_t **out_ids, size_t *out_n) {
    uint8_t *bytes;
    size_t n_bytes, n = 0;
    uint32_t *ids;
    char *p, *word;
    uint64_t id;
    int r = ctl_read_file(path, &bytes, &n_bytes);

    if (r != CTL_OK) return r;
    if (memchr(bytes, '\0', n_bytes)) {
        ctl_say("%s: a zero byte among the ids", path);
        free(bytes);
        return CTL_USAGE;
    }
    ids = malloc((n_bytes / 2 + 1) * sizeof(*ids));
    if (!ids) {
        free(bytes);
        return no_memory();
    }
    p = (char *)bytes;
    p += strspn(p, " \t\r\n");
    if (*p == '[' && strrchr(p, ']')) {
        char *end = strrchr(p, ']');

        if (end[1 + strspn(end + 1, " \t\r\n")] == '\0') {
            *p = ' ';
            *end = '\0';
        }
    }
    while ((word = strsep(&p, " \t\r\n,"))) {
        if (!*word) continue;
        if (!receipt_value_u64(word, 0, UINT32_MAX, &id)) {
            ctl_say("%s: token %zu is no id: %.32s", path, n, word);
            free(bytes);
            free(ids);
            return CTL_USAGE;
        }
        ids[n++] = (uint32_t)id;
    }
    free(bytes);
    *out_ids = ids;
    *out_n = n;
    return CTL_OK;
}

/* ---- Jobs ---- */

static int start(struct ctl_job *job, const struct wire_submit *s, uint8_t kind, size_t n_bytes) {
    struct wire_submit own = *s;

    memset(job, 0, sizeof(*job));
    if (n_bytes > CTL_INPUT_MAX) {
        ctl_say("a prompt of %zu bytes, the limit is %d", n_bytes, CTL_INPUT_MAX);
        return CTL_USAGE;
    }
    own.prompt_kind = kind;
    if (kind == WIRE_PROMPT_KIND_IDS)
        own.flags &= ~(uint32_t)(WIRE_SUBMIT_SPECIAL | WIRE_SUBMIT_RAW);
    receipt_open(&job->receipt, &own);
    job->prompt = malloc(n_bytes + 1);
    if (!job->prompt) return no_memory();
    job->prompt_bytes = (uint32_t)n_bytes;
    return CTL_OK;
}

int ctl_job_text(struct ctl_job *job, const struct wire_submit *s, const void *text, size_t n) {
    int r = start(job, s, WIRE_PROMPT_KIND_TEXT, n);

    if (r == CTL_OK) memcpy(job->prompt, text, n);
    return r;
}

int ctl_job_ids(struct ctl_job *job, const struct wire_submit *s, const uint32_t *ids, size_t n) {
    int r = start(job, s, WIRE_PROMPT_KIND_IDS, 4 * n);

    for (size_t i = 0; r == CTL_OK && i < 4 * n; i++)
        job->prompt[i] = (uint8_t)(ids[i / 4] >> 8 * (i % 4));
    return r;
}

int ctl_job_chat(struct ctl_job *job, const struct wire_submit *s, const struct wire_message *m,
                 size_t n_messages) {
    size_t n = 0, at = 0;
    int r;

    for (size_t i = 0; i < n_messages; i++) n += 8 + (size_t)m[i].n_bytes;
    r = start(job, s, WIRE_PROMPT_KIND_CHAT, n);
    if (r != CTL_OK) return r;
    for (size_t i = 0; i < n_messages; i++)
        at += wire_message_write(job->prompt + at, n - at, &m[i]);
    return CTL_OK;
}

void ctl_job_close(struct ctl_job *job) {
    free(job->prompt);
    receipt_close(&job->receipt);
    memset(job, 0, sizeof(*job));
}

int ctl_job_read(const struct ctl *c, struct ctl_job *job) {
    uint32_t *ids;
    uint8_t *text;
    size_t n;
    int r;

    if (c->tokens && c->n_args > 0) {
        ctl_say("--tokens and an argument are two prompts");
        return CTL_USAGE;
    }
    if (c->tokens) {
        r = ctl_read_ids(c->tokens, &ids, &n);
        if (r != CTL_OK) return r;
        r = ctl_job_ids(job, &c->submit, ids, n);
        free(ids);
        return r;
    }
    r = ctl_read_text(c, &text, &n);
    if (r != CTL_OK) return r;
    r = ctl_job_text(job, &c->submit, text, n);
    free(text);
    return r;
}
