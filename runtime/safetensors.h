/* safetensors - the header of one safetensors file, read and judged without a file.
 *
 * Owns:   nothing; the entries belong to the caller.
 * Thread: any.
 * Fails:  -EINVAL   malformed; the text names the tensor and the fault
 *         -ENOTSUP  a rank above SAFETENSORS_RANK_MAX
 *         -ENOMEM
 *
 * A file is: u64 header length, little-endian; the header, a JSON object; the data.  The header
 * maps each name to its dtype, its shape and its first and last + 1 byte in the data;
 * `__metadata__` maps strings to strings.  In the order of their bytes the tensors follow each
 * other without hole or overlap from the first byte of the data to its last.
 *
 * Whatever the reference reader (safetensors 0.8) refuses is refused.  So is, beyond it: a header
 * that does not begin with `{`, a key twice, a key of a tensor that is not one of the three, a
 * spelling of an entry other than the documented one, a name or text with a zero in it, and a
 * number above 2^63 - 1. */
#ifndef LLM42D_RUNTIME_SAFETENSORS_H
#define LLM42D_RUNTIME_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

struct err;

enum {
    SAFETENSORS_LENGTH_BYTES = 8,
    SAFETENSORS_HEADER_BYTES_MAX = 100 * 1000 * 1000, /* as the reference reader */
    SAFETENSORS_RANK_MAX = 4,
};

struct safetensors_entry {
    char *name;
    const char *dtype; /* as in the header; static */
    uint64_t shape[SAFETENSORS_RANK_MAX];
    uint32_t rank;
    uint64_t n_values; /* the product of the shape; 1 for rank 0 */
    uint64_t begin;    /* in the data */
    uint64_t n_bytes;
};

/* 0 and the entries in the order of their bytes, or as above.  `file` stands in texts; data_bytes
 * is what the file has after the header. */
int safetensors_parse(const char *file, const char *header, size_t n_bytes, uint64_t data_bytes,
                      struct safetensors_entry **out_entries, size_t *out_n_entries, struct err *e);
void safetensors_free(struct safetensors_entry *entries, size_t n_entries); /* NULL is fine */

#endif
