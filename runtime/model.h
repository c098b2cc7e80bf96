/* model - the shapes and settings of a model, from config.json of its folder.
 *
 * Owns:   nothing; a struct of numbers.
 * Thread: any.
 * Fails:  -EINVAL   malformed, or a value that cannot be; the text names key and value
 *         -ENOTSUP  a model or a setting that we do not implement; the text names it
 *         -ENOENT -EACCES -EIO  of the file
 *         -ENOMEM
 *
 * Everything here reaches the arithmetic, and so the fingerprint, except where it says not. */
#ifndef LLM42D_RUNTIME_MODEL_H
#define LLM42D_RUNTIME_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

enum {
    MODEL_LAYERS_MAX = 512,
    MODEL_HIDDEN_MAX = 65536, /* hidden and intermediate: multiples of 16 */
    MODEL_INTERMEDIATE_MAX = 262144,
    MODEL_HEADS_MAX = 1024,
    MODEL_HEAD_DIM_MAX = 256, /* a multiple of 16 */
    MODEL_VOCAB_MAX = 1 << 20,
    MODEL_CONTEXT_MAX = 1 << 20,
    MODEL_EOS_MAX = 16,
    MODEL_NAME_BYTES = 64,
};

enum model_rope { MODEL_ROPE_DEFAULT, MODEL_ROPE_LINEAR, MODEL_ROPE_LLAMA3 };

struct model {
    char name[MODEL_NAME_BYTES]; /* the folder's last component; not in the fingerprint */
    uint32_t n_layers;
    uint32_t hidden;       /* values of the residual stream */
    uint32_t intermediate; /* values between gate_up and down */
    uint32_t n_heads;
    uint32_t n_kv_heads; /* divides n_heads */
    uint32_t head_dim;
    uint32_t vocab;
    uint32_t context; /* positions, max_position_embeddings; not in the fingerprint */
    bool tied;        /* the head is the embedding */
    float rms_eps;    /* fp32 nearest to the file's number, read as binary64 */

    enum model_rope rope;
    double rope_theta;
    double rope_factor;        /* LINEAR, LLAMA3 */
    double rope_low_freq;      /* LLAMA3 */
    double rope_high_freq;     /* LLAMA3 */
    uint32_t rope_context_old; /* LLAMA3: original_max_position_embeddings */

    /* End-of-text ids: those of generation_config.json where it has them, else of config.json.
     * They decide when a request without ignore_eos stops: reported with every request. */
    uint32_t eos[MODEL_EOS_MAX];
    uint32_t n_eos;
    int64_t bos; /* or -1; informative */

    /* generation_config.json, to report and never to apply: what the folder would suggest.
     * NaN or 0 where it is silent. */
    float suggested_temperature, suggested_top_p;
    uint32_t suggested_top_k;
};

/* Reads config.json and, where it is there, generation_config.json.
 *
 * Where config.json is silent or says null: hidden_act is silu, num_key_value_heads the count of
 * heads, head_dim hidden / heads, rope_theta 10000, tie_word_embeddings false, as the family has
 * it; every other shape, architectures, model_type and rms_norm_eps must be there.  A setting
 * known to change the arithmetic in a way that we do not have is refused by its name, a key inside
 * the rope settings already where it is not known, and any other key is passed over. */
int model_read(const char *folder, struct model *out_model, struct err *e);
/* The two files as texts, for tests and fuzzing; `generation` may be NULL. */
int model_parse(const char *config, size_t n_bytes, const char *generation, size_t generation_bytes,
                struct model *out_model, struct err *e);

/* One spelling of all that enters the fingerprint (floats as hexadecimal), or the length needed. */
size_t model_write(const struct model *m, char *text, size_t n_bytes_max);

/* Bytes of keys and values of one position, all layers. */
uint64_t model_kv_bytes(const struct model *m);

#endif
