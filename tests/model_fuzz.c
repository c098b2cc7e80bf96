/* Any two texts as config.json and generation_config.json, a zero byte between them: refused with
 * a text, or within every limit that model.h names. */
#include "runtime/model.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/assert.h"
#include "runtime/err.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void check(const struct model *m) {
    char text[1024];

    ASSERT(m->n_layers >= 1 && m->n_layers <= MODEL_LAYERS_MAX);
    ASSERT(m->hidden >= 16 && m->hidden <= MODEL_HIDDEN_MAX && m->hidden % 16 == 0);
    ASSERT(m->intermediate >= 16 && m->intermediate <= MODEL_INTERMEDIATE_MAX);
    ASSERT(m->intermediate % 16 == 0);
    ASSERT(m->n_heads >= 1 && m->n_heads <= MODEL_HEADS_MAX);
    ASSERT(m->n_kv_heads >= 1 && m->n_heads % m->n_kv_heads == 0);
    ASSERT(m->head_dim >= 16 && m->head_dim <= MODEL_HEAD_DIM_MAX && m->head_dim % 16 == 0);
    ASSERT(m->vocab >= 1 && m->vocab <= MODEL_VOCAB_MAX);
    ASSERT(m->context >= 1 && m->context <= MODEL_CONTEXT_MAX);
    ASSERT(m->rms_eps > 0 && m->rms_eps < 1);
    ASSERT(m->rope_theta >= 1 && isfinite(m->rope_theta));
    ASSERT(m->rope == MODEL_ROPE_DEFAULT || (m->rope_factor >= 1 && isfinite(m->rope_factor)));
    ASSERT(m->rope != MODEL_ROPE_LLAMA3 ||
           (m->rope_low_freq > 0 && m->rope_high_freq > m->rope_low_freq &&
            isfinite(m->rope_high_freq) && m->rope_context_old >= 1));
    ASSERT(m->n_eos <= MODEL_EOS_MAX);
    for (uint32_t i = 0; i < m->n_eos; i++) ASSERT(m->eos[i] < m->vocab);
    ASSERT(m->bos >= -1 && m->bos < (int64_t)m->vocab);
    ASSERT(model_write(m, text, sizeof(text)) == strlen(text));
    ASSERT(model_kv_bytes(m) > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    const char *config = (const char *)bytes;
    const char *zero = n_bytes ? memchr(config, 0, n_bytes) : NULL;
    size_t config_bytes = zero ? (size_t)(zero - config) : n_bytes;
    struct err e = {""};
    struct model m;
    int r = model_parse(config, config_bytes, zero ? zero + 1 : NULL,
                        zero ? n_bytes - config_bytes - 1 : 0, &m, &e);

    if (r == 0)
        check(&m);
    else
        ASSERT((r == -EINVAL || r == -ENOTSUP) && e.text[0]);
    return 0;
}
