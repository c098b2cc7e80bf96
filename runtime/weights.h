/* weights - the tensors of a safetensors folder, checked before anything is read.
 *
 * Owns:   open files and the table of tensors, until close.
 * Thread: start-up only.
 * Fails:  -EINVAL   malformed: the text names file, tensor and fault
 *         -ENOTSUP  a rank above WEIGHTS_RANK_MAX; from weights_read, a dtype we do not take
 *                   (fp16 and fp32 without `round`, and all others)
 *         -ENOENT -EACCES -EIO  of a file; -EIO too where it is shorter than it was, or changed
 *         -ENOMEM
 *
 * Opening reads the headers of all shards (model.safetensors, or model.safetensors.index.json and
 * its shards, never both) and checks every count, offset, product and sum; the verdict is that of
 * the safetensors reference reader, and stricter where safetensors.h says so.  The index must name
 * every tensor of its shards, in the shard where it is, and no other; a shard is a file of the
 * same folder.  Bytes are read with pread, never mapped: a file that shrinks is an error, not a
 * signal. */
#ifndef LLM42D_RUNTIME_WEIGHTS_H
#define LLM42D_RUNTIME_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct model;
struct weights;

enum {
    WEIGHTS_INDEX_BYTES_MAX = 64 << 20,
    WEIGHTS_RANK_MAX = 4, /* and the header's limits in safetensors.h */
    WEIGHTS_SHARDS_MAX = 1024,
    WEIGHTS_DIGEST_BYTES = 32,
};

enum weights_dtype { WEIGHTS_BF16, WEIGHTS_F16, WEIGHTS_F32, WEIGHTS_OTHER };

struct weights_tensor {
    const char *name;
    enum weights_dtype dtype;
    uint32_t rank;
    uint64_t shape[WEIGHTS_RANK_MAX];
    uint64_t n_values;
    uint64_t n_bytes;
};

/* 0 and *out_weights, or as above.  With `round`, fp16 and fp32 tensors are taken and rounded to
 * bf16 (nearest even) by weights_read. */
int weights_open(const char *folder, bool round, struct weights **out_weights, struct err *e);
void weights_close(struct weights *w); /* NULL is fine */

/* Made-up weights instead of a folder's, the tensors of the model each by its rule: for geometry,
 * speed and self-tests.  0 or -ENOMEM. */
int weights_make_up(const struct model *m, uint64_t seed, struct weights **out_weights,
                    struct err *e);

/* Value i of a made-up tensor, SPEC.md 4.5; so that a device can make it where it wants it. */
struct weights_rule {
    uint64_t seed;
    uint32_t tensor; /* its place in the order of model_tensor.h */
    float base, scale;
};

/* False where the weights are read from a folder. */
bool weights_rule_of(const struct weights *w, const struct weights_tensor *t,
                     struct weights_rule *out_rule);

/* Bytes that were read are added here, by any thread; NULL: nowhere. */
void weights_count_in(struct weights *w, _Atomic uint64_t *n_bytes);

size_t weights_count(const struct weights *w);
size_t weights_index(const struct weights *w, const struct weights_tensor *t);
const struct weights_tensor *weights_at(const struct weights *w, size_t index); /* by name order */
const struct weights_tensor *weights_find(const struct weights *w, const char *name);
uint64_t weights_bytes(const struct weights *w); /* of all tensors, in the files */

/* Reads a whole tensor as bf16 into out_values[n_values], and takes its bytes (as they stand in
 * the file) into the digest.  Read again, they must be the same. */
int weights_read(struct weights *w, const struct weights_tensor *t, uint16_t *out_values,
                 struct err *e);

/* The same by a reader of one's own: several threads may read different tensors at a time. */
struct weights_reader;
struct weights_reader *weights_reader_open(void);         /* NULL: no memory */
void weights_reader_close(struct weights_reader *reader); /* NULL is fine */
int weights_read_by(struct weights_reader *reader, struct weights *w,
                    const struct weights_tensor *t, uint16_t *out_values, struct err *e);

/* A tensor of a folder in pieces of piece_values, the last may be shorter, so that several threads
 * can read one: bf16 into out_values, and without hashing, which goes through a tensor in order and is
 * slower than a disk.  Instead a keyed tag of each piece (tag.h) is kept; whoever reads or hashes
 * it later must find the same.  weights_cut: 0, -ENOMEM, or -ENOTSUP as weights_read. */
int weights_cut(struct weights *w, const struct weights_tensor *t, uint64_t piece_values,
                struct err *e);
int weights_read_piece(struct weights_reader *reader, struct weights *w,
                       const struct weights_tensor *t, uint64_t piece, uint16_t *out_values,
                       struct err *e);

/* Lets threads hash what was not hashed yet, until weights_digest or close; meanwhile tensors that
 * were read in pieces may be read again, and no others.  0 or -ENOMEM. */
int weights_digest_begin(struct weights *w, struct err *e);

/* A digest in which sharding does not show (SPEC.md 2.13).  Reads what was not read yet.
 *
 * SHA-256 over, for each tensor in the order of strcmp of the names, all integers little-endian:
 *   u32 length of the name, the name
 *   u32 length of the dtype, the dtype as in the header ("BF16")
 *   u32 rank, u64 each dimension
 *   32 bytes, the SHA-256 of the tensor's bytes as they stand in the file
 * Of made-up weights it is the SHA-256 of their seed's text, SPEC.md 4.5. */
int weights_digest(struct weights *w, uint8_t out_digest[WEIGHTS_DIGEST_BYTES], struct err *e);

#endif
