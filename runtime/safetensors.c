#include "runtime/safetensors.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/document.h"
#include "runtime/err.h"

/* Every dtype that the reference reader knows. */
static const struct dtype {
    const char *name;
    unsigned n_bits;
} dtypes[] = {
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
};

/* Where a fault is; the texts begin with it.  A hostile name must not push the fault out. */
struct place {
    const char *file, *tensor;
    struct err *e;
};

#define FAULT(p, code, fmt, ...) \
    err_set((p)->e, code, "%s: tensor %.80s: " fmt, (p)->file, (p)->tensor, ##__VA_ARGS__)

static int read_size(const struct place *p, const char *key, const json_t *value, uint64_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return FAULT(p, -EINVAL, "%s holds what is not a size", key);
    *out = (uint64_t)json_integer_value(value);
    return 0;
}

static int read_dtype(const struct place *p, const json_t *value, const struct dtype **out_dtype) {
    const char *name = json_string_value(value);

    if (!name) return FAULT(p, -EINVAL, "dtype is missing or not a string");
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strcmp(dtypes[i].name, name) != 0) continue;
        *out_dtype = &dtypes[i];
        return 0;
    }
    return FAULT(p, -EINVAL, "dtype %.40s is unknown", name);
}

static int read_shape(const struct place *p, const json_t *value, struct safetensors_entry *entry) {
    size_t rank = json_array_size(value);

    if (!json_is_array(value)) return FAULT(p, -EINVAL, "shape is missing or not a list");
    if (rank > SAFETENSORS_RANK_MAX)
        return FAULT(p, -ENOTSUP, "rank %zu, the limit is %d", rank, SAFETENSORS_RANK_MAX);
    entry->rank = (uint32_t)rank;
    entry->n_values = 1;
    for (size_t i = 0; i < rank; i++) {
        int r = read_size(p, "shape", json_array_get(value, i), &entry->shape[i]);

        if (r < 0) return r;
        if (__builtin_mul_overflow(entry->n_values, entry->shape[i], &entry->n_values))
            return FAULT(p, -EINVAL, "the product of the shape is above 2^64");
    }
    return 0;
}

/* The bytes of the tensor as its offsets give them, and as shape and dtype do. */
static int read_bytes(const struct place *p, const json_t *value, const struct dtype *dtype,
                      struct safetensors_entry *entry) {
    uint64_t end, n_bits;
    int r;

    if (json_array_size(value) != 2)
        return FAULT(p, -EINVAL, "data_offsets is missing or not a list of two");
    r = read_size(p, "data_offsets", json_array_get(value, 0), &entry->begin);
    if (r == 0) r = read_size(p, "data_offsets", json_array_get(value, 1), &end);
    if (r < 0) return r;
    if (end < entry->begin) return FAULT(p, -EINVAL, "ends before it begins");
    entry->n_bytes = end - entry->begin;
    if (__builtin_mul_overflow(entry->n_values, dtype->n_bits, &n_bits))
        return FAULT(p, -EINVAL, "its bits are above 2^64");
    if (n_bits % 8 != 0 || n_bits / 8 != entry->n_bytes)
        return FAULT(p, -EINVAL, "%llu bytes, shape and dtype make %llu bits",
                     (unsigned long long)entry->n_bytes, (unsigned long long)n_bits);
    return 0;
}

static int read_entry(const struct place *p, const json_t *value, struct safetensors_entry *entry) {
    static const char *const known[] = {"dtype", "shape", "data_offsets"};
    const struct dtype *dtype = NULL;
    size_t n_known = 0;
    int r;

    if (!json_is_object(value)) return FAULT(p, -EINVAL, "not an object");
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        n_known += json_object_get(value, known[i]) != NULL;
    if (n_known != json_object_size(value)) return FAULT(p, -EINVAL, "has a key that is not known");

    r = read_dtype(p, json_object_get(value, "dtype"), &dtype);
    if (r == 0) r = read_shape(p, json_object_get(value, "shape"), entry);
    if (r == 0) r = read_bytes(p, json_object_get(value, "data_offsets"), dtype, entry);
    if (r < 0) return r;
    entry->dtype = dtype->name;
    entry->name = strdup(p->tensor);
    return entry->name ? 0 : FAULT(p, -ENOMEM, "no memory");
}

/* null stands for none, as the reference reader has it. */
static int check_metadata(const char *file, json_t *metadata, struct err *e) {
    const char *key;
    json_t *value;

    if (json_is_null(metadata)) return 0;
    if (!json_is_object(metadata))
        return err_set(e, -EINVAL, "%s: __metadata__ is not an object", file);
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return err_set(e, -EINVAL, "%s: __metadata__: %.80s is not a string", file, key);
    }
    return 0;
}

/* No valid header has a minus outside of its strings.  The JSON reader takes -0 for 0; the
 * reference refuses it. */
static bool has_minus(const char *header, size_t n_bytes) {
    bool in_string = false;

    for (size_t i = 0; i < n_bytes; i++) {
        if (in_string && header[i] == '\\')
            i++;
        else if (header[i] == '"')
            in_string = !in_string;
        else if (header[i] == '-' && !in_string)
            return true;
    }
    return false;
}

static int by_bytes(const void *a, const void *b) {
    const struct safetensors_entry *x = a, *y = b;

    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->n_bytes != y->n_bytes) return x->n_bytes < y->n_bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* From the first byte of the data to the last, each byte in one tensor. */
static int check_cover(const char *file, const struct safetensors_entry *entries, size_t n_entries,
                       uint64_t data_bytes, struct err *e) {
    uint64_t at = 0;

    for (size_t i = 0; i < n_entries; i++) {
        const struct place p = {file, entries[i].name, e};

        if (entries[i].begin != at)
            return FAULT(&p, -EINVAL, "begins at byte %llu, %s",
                         (unsigned long long)entries[i].begin,
                         entries[i].begin < at ? "inside another" : "after a hole");
        /* Never wraps: begin + n_bytes is the end that the header gave. */
        at += entries[i].n_bytes;
        if (at > data_bytes)
            return FAULT(&p, -EINVAL, "ends at byte %llu, the data at %llu", (unsigned long long)at,
                         (unsigned long long)data_bytes);
    }
    if (at != data_bytes)
        return err_set(e, -EINVAL, "%s: %llu bytes of data, the tensors have %llu", file,
                       (unsigned long long)data_bytes, (unsigned long long)at);
    return 0;
}

int safetensors_parse(const char *file, const char *header, size_t n_bytes, uint64_t data_bytes,
                      struct safetensors_entry **out_entries, size_t *out_n_entries,
                      struct err *e) {
    struct safetensors_entry *entries = NULL;
    size_t n_entries = 0, n_entries_max;
    json_t *root = NULL, *value;
    const char *key;
    int r;

    if (n_bytes == 0 || header[0] != '{')
        return err_set(e, -EINVAL, "%s: the header does not begin with {", file);
    if (has_minus(header, n_bytes))
        return err_set(e, -EINVAL, "%s: a negative number in the header", file);
    r = document_parse(file, header, n_bytes, &root, e);
    if (r < 0) return r;
    n_entries_max = json_object_size(root);
    entries = calloc(n_entries_max + 1, sizeof(entries[0])); /* + 1: none is no failure */
    if (!entries) {
        r = err_set(e, -ENOMEM, "%s: no memory for %zu tensors", file, n_entries_max);
        goto out;
    }
    json_object_foreach(root, key, value) {
        const struct place p = {file, key, e};

        if (strcmp(key, "__metadata__") == 0)
            r = check_metadata(file, value, e);
        else
            r = read_entry(&p, value, &entries[n_entries++]);
        if (r < 0) goto out;
    }
    qsort(entries, n_entries, sizeof(entries[0]), by_bytes);
    r = check_cover(file, entries, n_entries, data_bytes, e);
    if (r < 0) goto out;
    *out_entries = entries;
    *out_n_entries = n_entries;
    entries = NULL;
out:
    safetensors_free(entries, n_entries);
    json_decref(root);
    return r;
}

void safetensors_free(struct safetensors_entry *entries, size_t n_entries) {
    if (!entries) return;
    for (size_t i = 0; i < n_entries; i++) free(entries[i].name);
    free(entries);
}
