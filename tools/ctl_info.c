/* status, info, schedules, health, ping, cancel. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/ctl.h"

enum {
    STEP_AGE_US_MAX = 60000000, /* of a daemon that gets on; its watchdog has the same */
    NAME_COLUMNS = 32,
};

/* ---- INFO ---- */

static void value(const json_t *v) {
    if (json_is_string(v))
        for (const char *p = json_string_value(v); *p; p++)
            *p != '\n' ? putchar(*p) : p[1] ? printf("\n%*s", NAME_COLUMNS + 1, "") : 0;
    else if (json_is_integer(v))
        printf("%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_real(v))
        printf("%.9g", json_real_value(v));
    else
        printf("%s", json_is_true(v) ? "true" : json_is_false(v) ? "false" : "-");
}

/* Nested names get a dot between them: a line a fact. */
static void facts(const char *prefix, const json_t *v) {
    const char *key, *dot = *prefix ? "." : "";
    char name[256];
    json_t *one;
    size_t i;

    if (json_is_object(v)) {
        json_object_foreach((json_t *)v, key, one) {
            snprintf(name, sizeof(name), "%s%s%s", prefix, dot, key);
            facts(name, one);
        }
    } else if (json_is_array(v)) {
        json_array_foreach(v, i, one) {
            snprintf(name, sizeof(name), "%s%s%zu", prefix, dot, i);
            facts(name, one);
        }
    } else {
        printf("%-*s ", NAME_COLUMNS, prefix);
        value(v);
        putchar('\n');
    }
}

static int ask_info(struct ctl *c, struct llm42_io *io, uint32_t topic, json_t **out) {
    char *text = NULL, *more;
    struct llm42_event e;
    json_error_t error;
    uint64_t request;
    size_t n = 0;
    int r = CTL_OK;

    if (llm42_info(llm42_io_core(io), topic, &request) < 0) return CTL_FAILED;
    for (bool last = false; !last;) {
        r = ctl_next(c, io, &e);
        if (r != CTL_OK) break;
        if (e.kind == LLM42_ERROR) {
            ctl_refused("request", &e.error);
            r = CTL_REFUSED;
            break;
        }
        if (e.kind != LLM42_INFO) continue;
        more = n + e.part.n_data <= CTL_INPUT_MAX ? realloc(text, n + e.part.n_data + 1) : NULL;
        if (!more) {
            r = CTL_FAILED;
            break;
        }
        text = more;
        memcpy(text + n, e.part.data, e.part.n_data);
        n += e.part.n_data;
        last = e.part.last;
    }
    if (r == CTL_OK) {
        *out = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
        if (!*out) {
            ctl_say("the daemon's answer is no JSON: %s", error.text);
            r = CTL_FAILED;
        }
    }
    free(text);
    return r;
}

/* One line of the table; what is as in the canonical one has a mark. */
static void schedule_line(const char *name, const json_t *s, const json_t *canonical) {
    static const char *const columns[] = {"qkv",  "o",        "gate_up",   "down",
                                          "head", "norm_run", "split_keys"};

    printf("%-12s", name);
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
        const json_int_t n = json_integer_value(json_object_get(s, columns[i]));
        const bool same =
            s != canonical && n == json_integer_value(json_object_get(canonical, columns[i]));

        printf(" %9" JSON_INTEGER_FORMAT "%c", n, same ? '=' : ' ');
    }
    printf("  %s\n", json_string_value(json_object_get(s, "hash")));
}

static void schedule_set(const char *set, const json_t *all, const json_t *canonical) {
    char name[32];
    json_t *one;
    size_t i;

    json_array_foreach(all, i, one) {
        snprintf(name, sizeof(name), "%s %" JSON_INTEGER_FORMAT, set,
                 json_integer_value(json_object_get(one, "rows")));
        schedule_line(name, one, canonical);
    }
}

/* How often the sets come out as the canonical schedule. */
static void schedule_same(const json_t *same) {
    json_t *one;
    size_t i;

    json_array_foreach(same, i, one) {
        const json_int_t of = json_integer_value(json_object_get(one, "of"));

        if (i == 0)
            printf("\nSteps of 1 to %" JSON_INTEGER_FORMAT
                   " rows that are canonical as they are, by "
                   "the longest sequence\n%-12s %9s  %9s\n",
                   of, "keys", "tuned", "stock");
        printf("%-12" JSON_INTEGER_FORMAT " %8.0f%%  %8.0f%%\n",
               json_integer_value(json_object_get(one, "keys")),
               100.0 * json_number_value(json_object_get(one, "tuned")) / (double)of,
               100.0 * json_number_value(json_object_get(one, "stock")) / (double)of);
    }
}

static void schedules(const json_t *j) {
    const json_t *canonical = json_object_get(j, "canonical"), *same = json_object_get(j, "same");

    if (!json_object_get(canonical, "hash") || !same) { /* an older daemon's */
        facts("", j);
        return;
    }
    printf("K segments of each matrix, run of the norm's sum, keys of a KV split where every "
           "sequence\n"
           "has the full context; = as canonical\n"
           "%-12s %9s  %9s  %9s  %9s  %9s  %9s  %9s   hash\n",
           "rows", "qkv", "o", "gate_up", "down", "head", "norm", "kv");
    schedule_line("canonical", canonical, canonical);
    schedule_set("tuned", json_object_get(j, "tuned"), canonical);
    schedule_set("stock", json_object_get(j, "stock"), canonical);
    schedule_same(same);
    printf("\nA step that need not be canonical is %s.\n",
           json_string_value(json_object_get(j, "fast")));
}

int ctl_info(struct ctl *c) {
    uint32_t topic = c->verb == CTL_STATUS      ? WIRE_INFO_STATUS
                     : c->verb == CTL_SCHEDULES ? WIRE_INFO_SCHEDULES
                                                : WIRE_INFO_ALL;
    struct llm42_io *io;
    json_t *j = NULL;
    int r = ctl_connect(c, c->socket, 0, &io);

    if (r != CTL_OK) return r;
    r = ask_info(c, io, topic, &j);
    if (r == CTL_OK && c->json)
        ctl_json_print(json_incref(j));
    else if (r == CTL_OK && c->verb == CTL_SCHEDULES)
        schedules(j);
    else if (r == CTL_OK)
        facts("", j);
    json_decref(j);
    llm42_io_close(io);
    return r;
}

/* ---- PING ---- */

static int64_t now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

static int ping_once(struct ctl *c, struct llm42_io *io, uint32_t number) {
    struct llm42_event e;
    uint64_t request;
    int r;

    if (llm42_ping(llm42_io_core(io), &number, sizeof(number), &request) < 0) return CTL_FAILED;
    do {
        r = ctl_next(c, io, &e);
        if (r != CTL_OK) return r;
    } while (e.request != request);
    if (e.kind == LLM42_ERROR) {
        ctl_refused("ping", &e.error);
        return CTL_REFUSED;
    }
    if (e.kind != LLM42_PONG || e.part.n_data != sizeof(number) ||
        memcmp(e.part.data, &number, sizeof(number)) != 0) {
        ctl_say("the pong is not of our ping");
        return CTL_FAILED;
    }
    return CTL_OK;
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

int ctl_ping(struct ctl *c) {
    int64_t *ns = calloc(c->count, sizeof(*ns));
    struct llm42_io *io = NULL;
    double median, least, p99;
    int r;

    if (!ns) return CTL_FAILED;
    r = ctl_connect(c, c->socket, 0, &io);
    for (uint32_t i = 0; r == CTL_OK && i < c->count; i++) {
        int64_t begin_ns = now_ns();

        r = ping_once(c, io, i);
        ns[i] = now_ns() - begin_ns;
    }
    llm42_io_close(io);
    if (r == CTL_OK) {
        qsort(ns, c->count, sizeof(*ns), by_value);
        least = (double)ns[0] / 1000;
        median = (double)ns[c->count / 2] / 1000;
        p99 = (double)ns[(uint64_t)c->count * 99 / 100] / 1000;
        if (c->json)
            printf("{\"count\":%u,\"median_us\":%.3f,\"least_us\":%.3f,\"p99_us\":%.3f}\n",
                   c->count, median, least, p99);
        else
            printf("%u round trips: median %.1f us, least %.1f us, 99 of 100 below %.1f us\n",
                   c->count, median, least, p99);
    }
    free(ns);
    return r;
}

int ctl_health(struct ctl *c) {
    struct llm42_io *io;
    json_t *j = NULL;
    int r = ctl_connect(c, c->socket, 0, &io);

    if (r != CTL_OK) return r;
    r = ping_once(c, io, 42);
    if (r == CTL_OK) r = ask_info(c, io, WIRE_INFO_STATUS, &j);
    if (r == CTL_OK) {
        const char *state = json_string_value(json_object_get(j, "state"));
        json_int_t n_running = json_integer_value(json_object_get(j, "running"));
        json_int_t age_us = json_integer_value(json_object_get(j, "last_step_age_us"));

        /* Answering is not enough: with work at hand there must be steps. */
        if (!state || strcmp(state, "lost") == 0 || (n_running > 0 && age_us > STEP_AGE_US_MAX))
            r = CTL_FAILED;
        if (c->json)
            ctl_json_print(json_incref(j));
        else
            puts(r == CTL_OK ? "ok" : "not healthy");
    }
    json_decref(j);
    llm42_io_close(io);
    return r;
}

/* ---- The admin socket ---- */

int ctl_cancel(struct ctl *c) {
    struct llm42_io *io;
    struct llm42_event e;
    uint64_t server_id, request;
    int r;

    if (c->n_args != 1 || !receipt_value_u64(c->args[0], 1, UINT64_MAX, &server_id)) {
        ctl_say("cancel needs a request's id, a whole number from 1 on");
        return CTL_USAGE;
    }
    r = ctl_connect(c, c->admin_socket, 0, &io);
    if (r != CTL_OK) return r;
    if (llm42_admin_cancel(llm42_io_core(io), server_id, &request) < 0) r = CTL_FAILED;
    while (r == CTL_OK) {
        r = ctl_next(c, io, &e);
        if (r != CTL_OK || e.kind == LLM42_ADMIN_OK) break;
        if (e.kind == LLM42_ERROR) {
            ctl_refused("cancel", &e.error);
            r = CTL_REFUSED;
        }
    }
    llm42_io_close(io);
    return r;
}
