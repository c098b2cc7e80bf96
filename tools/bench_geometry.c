/* Shapes of models by name, so that a benchmark needs no file of theirs. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/err.h"
#include "tools/bench_verbs.h"

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
