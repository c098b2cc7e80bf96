#include "tools/bench_verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/err.h"
#include "tools/bench_peer.h"

/* Shapes of models by name, so that a benchmark needs no file of theirs. */
static const struct model known[] = {
    {.name = "llama-3.1-8b",
     .n_layers = 32,
     .hidden = 4096,
     .intermediate = 14336,
     .n_heads = 32,
     .n_kv_heads = 8,
     .head_dim = 128,
     .vocab = 128256,
     .context = 131072,
     .rms_eps = 1e-5f,
     .rope = MODEL_ROPE_LLAMA3,
     .rope_theta = 500000,
     .rope_factor = 8,
     .rope_low_freq = 1,
     .rope_high_freq = 4,
     .rope_context_old = 8192,
     .bos = -1},
    {.name = "smollm2-135m",
     .n_layers = 30,
     .hidden = 576,
     .intermediate = 1536,
     .n_heads = 9,
     .n_kv_heads = 3,
     .head_dim = 64,
     .vocab = 49152,
     .context = 8192,
     .tied = true,
     .rms_eps = 1e-5f,
     .rope_theta = 100000,
     .bos = -1},
};

int bench_geometry(const char *name, struct model *out_model, struct err *e) {
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i].name, name) == 0) {
            *out_model = known[i];
            return 0;
        }
    if (strchr(name, '/') || strchr(name, '.')) return model_read(name, out_model, e);
    return err_set(e, -ENOENT, "%s is no geometry: %s, %s, or a folder (with a / in its name)",
                   name, known[0].name, known[1].name);
}

int bench_folder_make(const char *path) {
    if (!path) {
        bench_say("--out DIR is wanted");
        return BENCH_USAGE;
    }
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return BENCH_OK;
    bench_say("%s: %s", path, strerror(errno));
    return BENCH_FAILED;
}

struct bench_peer *bench_peer_for(const struct bench_options *o) {
    struct bench_peer *p = NULL;
    struct err e = {""};
    int r;

    if (strcmp(o->peer, "none") == 0) return NULL;
    r = bench_peer_open(o->peer, &p, &e);
    if (r == 0) {
        bench_report_note(&o->report, "peer: %s", bench_peer_words(p));
        return p;
    }
    if (r == -ENOENT) {
        bench_report_note(&o->report, "%s: its columns stay empty", e.text);
        return NULL;
    }
    bench_say("%s", e.text);
    exit(BENCH_FAILED);
}

double bench_peer_us(const struct bench_report *r, struct bench_peer *p, const char *request) {
    struct err e = {""};
    double us;
    int code = p && request ? bench_peer_ask(p, request, &us, &e) : -ENOTSUP;

    if (code == 0) return us;
    if (code == -ENOTSUP) {
        if (e.text[0]) bench_report_note(r, "%s", e.text);
        return BENCH_NO_CELL;
    }
    bench_say("%s", e.text);
    exit(BENCH_FAILED);
}
