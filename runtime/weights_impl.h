/* weights_impl - what the files of weights share; nobody else includes it.
 *
 * Owns:   see weights.h.
 * Thread: see weights.h.
 *
 * weights.c opens folders, weights_read.c reads tensors and makes them up, weights_digest.c hashes
 * what was read. */
#ifndef LLM42D_RUNTIME_WEIGHTS_IMPL_H
#define LLM42D_RUNTIME_WEIGHTS_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/err.h"
#include "runtime/safetensors.h"
#include "runtime/sha256.h"
#include "runtime/tag.h"
#include "runtime/weights.h"

enum { WEIGHTS_HASHERS_MAX = 16 };

struct shard {
    char *name; /* in the folder; it stands in texts */
    int fd;
    uint64_t data_off; /* of the data in the file */
    struct safetensors_entry *entries;
    size_t n_entries;
};

struct entry {
    struct weights_tensor tensor;           /* first: what weights_at gives out */
    const struct safetensors_entry *header; /* NULL: made up, by `rule` */
    const struct shard *shard;
    struct weights_rule rule;
    bool digested;
    uint8_t digest[SHA256_BYTES];
    uint64_t piece_bytes; /* in the file; 0: not cut */
    uint64_t *tags;       /* of the pieces */
    bool *tagged;         /* those that were read */
};

/* SHA-256 of the tensors that have none yet, by several threads. */
struct hashing {
    struct entry **entries; /* [n_entries], the largest first: they take longest */
    uint32_t n_entries;
    atomic_uint next;
    pthread_t threads[WEIGHTS_HASHERS_MAX];
    uint32_t n_threads;
    pthread_mutex_t lock; /* of the first failure */
    int code;
    struct err error;
};

struct weights {
    char *folder;
    bool round;
    struct shard *shards;
    size_t n_shards;
    struct entry *entries; /* by name */
    size_t n_entries;
    uint64_t n_bytes;
    char *names; /* of made-up tensors, MODEL_TENSOR_NAME_BYTES each */
    uint64_t seed;
    struct weights_reader *reader;
    _Atomic uint64_t *n_read;
    struct tag_key key;
    struct hashing *hashing; /* NULL: not begun */
    atomic_bool over;        /* hashing is given up */
};

/* Reads a tensor once through, and hashes it. */
int weights_read_hash(struct weights *w, struct weights_reader *reader, struct entry *entry,
                      struct err *e);

/* Gives hashing up. */
void weights_digest_end(struct weights *w);

#endif
