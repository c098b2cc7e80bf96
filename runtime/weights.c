#include "runtime/weights.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/assert.h"
#include "runtime/document.h"
#include "runtime/err.h"
#include "runtime/file.h"
#include "runtime/model_tensor.h"
#include "runtime/safetensors.h"
#include "runtime/weights_impl.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file's values are used as they are");
_Static_assert((int)WEIGHTS_RANK_MAX == (int)SAFETENSORS_RANK_MAX, "shapes are copied");
_Static_assert((int)WEIGHTS_DIGEST_BYTES == (int)SHA256_BYTES, "the digest is a SHA-256");

enum {
    PATH_BYTES = 4096,
    SHARD_NAME_BYTES_MAX = 255,
};

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

static int no_memory(struct err *e) {
    return err_set(e, -ENOMEM, "no memory for the table of weights");
}

static int path_of(const struct weights *w, const char *name, char path[PATH_BYTES],
                   struct err *e) {
    int n = snprintf(path, PATH_BYTES, "%s/%s", w->folder, name);

    if (n >= PATH_BYTES) return err_set(e, -EINVAL, "path of %d bytes", n);
    return 0;
}

/* The length of the header, judged before anything is allocated for it. */
static int read_length(const struct shard *s, const char *path, uint64_t n_bytes,
                       uint64_t *out_header_bytes, struct err *e) {
    uint8_t bytes[SAFETENSORS_LENGTH_BYTES];
    uint64_t length = 0;
    int r;

    if (n_bytes < sizeof(bytes))
        return err_set(e, -EINVAL, "%s: %llu bytes, too short for a length", s->name,
                       (unsigned long long)n_bytes);
    r = file_read_at(s->fd, path, 0, bytes, sizeof(bytes), e);
    if (r < 0) return r;
    memcpy(&length, bytes, sizeof(length));
    if (length > SAFETENSORS_HEADER_BYTES_MAX)
        return err_set(e, -EINVAL, "%s: header of %llu bytes, the limit is %d", s->name,
                       (unsigned long long)length, SAFETENSORS_HEADER_BYTES_MAX);
    if (length > n_bytes - sizeof(bytes))
        return err_set(e, -EINVAL, "%s: header of %llu bytes, the file has %llu", s->name,
                       (unsigned long long)length, (unsigned long long)n_bytes);
    *out_header_bytes = length;
    return 0;
}

/* Fills the next shard of the table.  What is there after a failure goes with the table. */
static int open_shard(struct weights *w, const char *name, struct err *e) {
    struct shard *s = &w->shards[w->n_shards];
    uint64_t n_bytes, header_bytes = 0;
    char path[PATH_BYTES], *header = NULL;
    int r;

    r = path_of(w, name, path, e);
    if (r < 0) return r;
    *s = (struct shard){.name = strdup(name), .fd = -1};
    w->n_shards++;
    if (!s->name) return no_memory(e);
    r = file_open(path, &s->fd, &n_bytes, e);
    if (r == 0) r = read_length(s, path, n_bytes, &header_bytes, e);
    if (r < 0) return r;
    header = malloc((size_t)header_bytes + 1); /* + 1: none is no failure */
    if (!header) return no_memory(e);
    r = file_read_at(s->fd, path, SAFETENSORS_LENGTH_BYTES, header, (size_t)header_bytes, e);
    if (r < 0) goto out;
    s->data_off = SAFETENSORS_LENGTH_BYTES + header_bytes;
    r = safetensors_parse(name, header, (size_t)header_bytes, n_bytes - s->data_off, &s->entries,
                          &s->n_entries, e);
out:
    free(header);
    return r;
}

static struct shard *find_shard(struct weights *w, const char *name) {
    for (size_t i = 0; i < w->n_shards; i++)
        if (strcmp(w->shards[i].name, name) == 0) return &w->shards[i];
    return NULL;
}

/* A name in the index must not lead out of the folder. */
static bool is_plain(const char *name) {
    return name[0] != '\0' && name[0] != '.' && !strchr(name, '/') &&
           strlen(name) <= SHARD_NAME_BYTES_MAX;
}

/* The shards that the index names, each once, in the order of their first tensor. */
static int open_named(struct weights *w, json_t *map, struct err *e) {
    const char *tensor, *name;
    json_t *value;
    int r;

    json_object_foreach(map, tensor, value) {
        name = json_string_value(value);
        if (!name || !is_plain(name))
            return err_set(e, -EINVAL, "%s: tensor %.80s: not the name of a file beside it",
                           index_name, tensor);
        if (find_shard(w, name)) continue;
        if (w->n_shards == WEIGHTS_SHARDS_MAX)
            return err_set(e, -EINVAL, "%s: the limit is %d shards", index_name,
                           WEIGHTS_SHARDS_MAX);
        r = open_shard(w, name, e);
        if (r < 0) return r;
    }
    return 0;
}

/* What the index says against what the shards have, in both directions.  Takes out of the map what
 * is found: the rest is named and absent. */
static int check_map(const struct weights *w, json_t *map, struct err *e) {
    const char *tensor;
    json_t *value;

    for (size_t i = 0; i < w->n_shards; i++) {
        const struct shard *s = &w->shards[i];

        for (size_t j = 0; j < s->n_entries; j++) {
            const char *name;

            tensor = s->entries[j].name;
            name = json_string_value(json_object_get(map, tensor));
            if (!name || strcmp(name, s->name) != 0)
                return err_set(e, -EINVAL, "%s: does not say that tensor %.80s is in %.80s",
                               index_name, tensor, s->name);
            json_object_del(map, tensor);
        }
    }
    json_object_foreach(map, tensor, value) {
        return err_set(e, -EINVAL, "%s: tensor %.80s is not in %.80s", index_name, tensor,
                       json_string_value(value));
    }
    return 0;
}

static int open_index(struct weights *w, const char *path, struct err *e) {
    json_t *root = NULL, *map;
    size_t n_bytes;
    char *text;
    int r;

    r = file_read(path, WEIGHTS_INDEX_BYTES_MAX, &text, &n_bytes, e);
    if (r < 0) return r;
    r = document_parse(index_name, text, n_bytes, &root, e);
    free(text);
    if (r < 0) return r;
    map = json_object_get(root, "weight_map");
    if (!json_is_object(map))
        r = err_set(e, -EINVAL, "%s: weight_map is missing or not an object", index_name);
    if (r == 0) r = open_named(w, map, e);
    if (r == 0) r = check_map(w, map, e);
    json_decref(root);
    return r;
}

static int open_files(struct weights *w, struct err *e) {
    char single[PATH_BYTES], index[PATH_BYTES];
    bool has_single, has_index;
    int r;

    r = path_of(w, single_name, single, e);
    if (r == 0) r = path_of(w, index_name, index, e);
    if (r < 0) return r;
    has_single = access(single, F_OK) == 0;
    has_index = access(index, F_OK) == 0;
    if (has_single && has_index)
        return err_set(e, -EINVAL, "%s: both %s and %s", w->folder, single_name, index_name);
    return has_index ? open_index(w, index, e) : open_shard(w, single_name, e);
}

static enum weights_dtype dtype_of(const char *name) {
    if (strcmp(name, "BF16") == 0) return WEIGHTS_BF16;
    if (strcmp(name, "F16") == 0) return WEIGHTS_F16;
    if (strcmp(name, "F32") == 0) return WEIGHTS_F32;
    return WEIGHTS_OTHER;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct entry *)a)->tensor.name, ((const struct entry *)b)->tensor.name);
}

/* No name comes twice: a header refuses it, and so does the index. */
static int make_table(struct weights *w, struct err *e) {
    size_t n_entries = 0;

    for (size_t i = 0; i < w->n_shards; i++) n_entries += w->shards[i].n_entries;
    w->entries = calloc(n_entries + 1, sizeof(w->entries[0])); /* + 1: none is no failure */
    if (!w->entries) return no_memory(e);
    for (size_t i = 0; i < w->n_shards; i++) {
        for (size_t j = 0; j < w->shards[i].n_entries; j++) {
            const struct safetensors_entry *header = &w->shards[i].entries[j];
            struct entry *entry = &w->entries[w->n_entries++];

            entry->header = header;
            entry->shard = &w->shards[i];
            entry->tensor = (struct weights_tensor){
                .name = header->name,
                .dtype = dtype_of(header->dtype),
                .rank = header->rank,
                .n_values = header->n_values,
                .n_bytes = header->n_bytes,
            };
            memcpy(entry->tensor.shape, header->shape, sizeof(header->shape));
            /* The sum of file sizes, each below 2^63: a wrap needs a disk that is not built. */
            w->n_bytes += header->n_bytes;
        }
    }
    qsort(w->entries, w->n_entries, sizeof(w->entries[0]), by_name);
    return 0;
}

int weights_open(const char *folder, bool round, struct weights **out_weights, struct err *e) {
    struct weights *w = calloc(1, sizeof(*w));
    int r;

    if (!w) return no_memory(e);
    w->round = round;
    w->folder = strdup(folder);
    w->shards = calloc(WEIGHTS_SHARDS_MAX, sizeof(w->shards[0]));
    w->reader = weights_reader_open();
    if (!w->folder || !w->shards || !w->reader) {
        r = no_memory(e);
        goto out;
    }
    r = tag_key_draw(&w->key, e);
    if (r == 0) r = open_files(w, e);
    if (r == 0) r = make_table(w, e);
    if (r < 0) goto out;
    *out_weights = w;
    w = NULL;
out:
    weights_close(w);
    return r;
}

static struct entry make_up_entry(const struct model_tensor *t, const char *name, uint64_t seed,
                                  uint32_t index) {
    struct entry entry = {
        .tensor = {.name = name,
                   .dtype = WEIGHTS_BF16,
                   .rank = t->n ? 2 : 1,
                   .shape = {t->n ? t->n : t->n_k, t->n ? t->n_k : 0},
                   .n_values = model_tensor_values(t),
                   .n_bytes = model_tensor_values(t) * sizeof(uint16_t)},
        .rule = {.seed = seed, .tensor = index, .base = 1.0f, .scale = 0.25f},
    };

    if (t->n > 0) {
        entry.rule.base = 0.0f;
        entry.rule.scale = 1.7f / sqrtf((float)t->n_k);
    }
    return entry;
}

int weights_make_up(const struct model *m, uint64_t seed, struct weights **out_weights,
                    struct err *e) {
    struct weights *w = calloc(1, sizeof(*w));
    struct model_tensor t;
    uint32_t n = 0;

    while (model_tensor_at(m, n, &t)) n++;
    if (!w) return no_memory(e);
    w->seed = seed;
    w->entries = calloc(n, sizeof(w->entries[0]));
    w->names = calloc(n, MODEL_TENSOR_NAME_BYTES);
    if (!w->entries || !w->names) {
        weights_close(w);
        return no_memory(e);
    }
    for (; model_tensor_at(m, (uint32_t)w->n_entries, &t); w->n_entries++) {
        char *name = w->names + w->n_entries * MODEL_TENSOR_NAME_BYTES;

        memcpy(name, t.name, MODEL_TENSOR_NAME_BYTES);
        w->entries[w->n_entries] = make_up_entry(&t, name, seed, (uint32_t)w->n_entries);
        w->n_bytes += w->entries[w->n_entries].tensor.n_bytes;
    }
    qsort(w->entries, w->n_entries, sizeof(w->entries[0]), by_name);
    *out_weights = w;
    return 0;
}

void weights_close(struct weights *w) {
    if (!w) return;
    weights_digest_end(w);
    for (size_t i = 0; i < w->n_shards; i++) {
        safetensors_free(w->shards[i].entries, w->shards[i].n_entries);
        if (w->shards[i].fd >= 0) close(w->shards[i].fd);
        free(w->shards[i].name);
    }
    free(w->shards);
    for (size_t i = 0; i < w->n_entries; i++) {
        free(w->entries[i].tags);
        free(w->entries[i].tagged);
    }
    free(w->entries);
    free(w->names);
    free(w->folder);
    weights_reader_close(w->reader);
    free(w);
}

void weights_count_in(struct weights *w, _Atomic uint64_t *n_bytes) {
    w->n_read = n_bytes;
}

size_t weights_count(const struct weights *w) {
    return w->n_entries;
}

const struct weights_tensor *weights_at(const struct weights *w, size_t index) {
    ASSERT(index < w->n_entries);
    return &w->entries[index].tensor;
}

size_t weights_index(const struct weights *w, const struct weights_tensor *t) {
    const size_t index = (size_t)((const struct entry *)(const void *)t - w->entries);

    ASSERT(index < w->n_entries);
    return index;
}

const struct weights_tensor *weights_find(const struct weights *w, const char *name) {
    const struct entry key = {.tensor = {.name = name}};
    const struct entry *found =
        bsearch(&key, w->entries, w->n_entries, sizeof(w->entries[0]), by_name);

    return found ? &found->tensor : NULL;
}

uint64_t weights_bytes(const struct weights *w) {
    return w->n_bytes;
}
