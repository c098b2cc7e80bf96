/* config - the settings, from files and the command line into one struct (SPEC 7.2).
 *
 * Owns:   its strings.
 * Thread: any; the struct does not change after config_load but for what config_reload says.
 * Fails:  with the count of errors, each told in a line of its own: `FILE:LINE: what is wrong`.
 *
 * Everything is collected first, then judged as a whole, then applied: a struct half filled from
 * a bad file does not exist, and one run shows every error. */
#ifndef LLM42D_DAEMON_CONFIG_H
#define LLM42D_DAEMON_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
    CONFIG_FILE_BYTES_MAX = 1 << 16,
    CONFIG_LINE_BYTES_MAX = 190, /* inih's own limit is 200, where it cuts in silence */
    CONFIG_ENTRIES_MAX = 512,    /* of all files together */
    CONFIG_FILES_MAX = 64,
    CONFIG_SETS_MAX = 64,
    CONFIG_PATH_BYTES_MAX = 107, /* of a socket: sun_path less its zero */
    CONFIG_REQUESTS_CPU = 64,    /* max_requests where none are set, */
    CONFIG_REQUESTS_CUDA = 256,  /* by device */
};

enum config_device { CONFIG_DEVICE_CPU, CONFIG_DEVICE_CUDA };
enum config_level {
    CONFIG_LEVEL_ERROR,
    CONFIG_LEVEL_WARNING,
    CONFIG_LEVEL_INFO,
    CONFIG_LEVEL_DEBUG
};

struct config {
    /* [model] */
    char *model_path;
    bool round_weights;
    uint32_t random_seed; /* 0: the folder's weights */
    /* [engine] */
    uint32_t device;    /* enum config_device */
    uint32_t gpu;       /* which, as the driver counts */
    char *kernel_cache; /* folder of compiled kernels */
    uint32_t threads;   /* 0: one a processor */
    bool portable;
    uint32_t policy; /* enum plan_policy */
    uint32_t window, group;
    uint32_t max_requests, max_queue;
    uint32_t context;     /* 0: the model's */
    uint32_t kv_tokens;   /* 0: as the engine chooses */
    uint32_t step_tokens; /* 0: as fits the device */
    bool fixed_shape;
    /* [experiment] */
    bool certify, verify;
    uint32_t fast; /* enum schedule_set */
    uint32_t mismatch_ppm;
    /* [server] */
    char *socket, *admin_socket;
    uint32_t socket_mode;
    uint32_t max_connections;
    uint32_t max_requests_per_connection;
    uint32_t max_text_bytes;
    uint32_t hello_timeout_ms, slow_client_timeout_ms, drain_timeout_ms;
    uint32_t output_bytes; /* buffered for one connection */
    /* [log] */
    uint32_t level; /* enum config_level */
    bool payload;
};

struct config_sources {
    const char *file; /* instead of the chain of files; NULL: the chain */
    const char *root; /* before every path of the chain, for tests; NULL: none */
    uint32_t n_sets;
    const char
        *sets[CONFIG_SETS_MAX]; /* SECTION.KEY=VALUE, stronger than any file; the last counts */
};

struct config_origin; /* where each value came from */

/* 0 and *out_config, which config_free undoes; or the number of errors, each a line to `errors`,
 * and nothing else changed.  out_origin may be NULL. */
unsigned config_load(const struct config_sources *s, struct config *out_config,
                     struct config_origin **out_origin, FILE *errors);
void config_free(struct config *c);
void config_origin_free(struct config_origin *o); /* NULL is fine */

/* Every key as `section.key = value`, and its origin as a comment. */
void config_print(const struct config *c, const struct config_origin *o, FILE *out);

/* One key's value in the spelling of config_print, by number; false past the last. */
bool config_value(const struct config *c, size_t key, const char **out_section,
                  const char **out_name, char *out_text, size_t n_bytes);

/* Requests at once: max_requests, or what it is for the device where that is 0. */
uint32_t config_max_requests(const struct config *c);
/* One text as a file named `name`, for tests and fuzzing: as config_load without defaults files. */
unsigned config_load_text(const char *name, const char *text, size_t n_bytes,
                          struct config *out_config, FILE *errors);

#endif
