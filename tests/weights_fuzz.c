/* Any header over a little data, or any index over two good shards: refused with a text, or every
 * tensor lies where its file has bytes for it.  An odd first byte makes the rest an index; of an
 * even one half is the count of bytes after the header. */
#include "runtime/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/assert.h"
#include "runtime/err.h"
#include "runtime/safetensors.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static char folder[] = "/tmp/weights_fuzz.XXXXXX";

static void write_file(const char *name, const void *bytes, size_t n_bytes) {
    char path[256];
    int fd;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ASSERT(fd >= 0);
    ASSERT(write(fd, bytes, n_bytes) == (ssize_t)n_bytes);
    close(fd);
}

static void write_shard(const char *name, const char *header) {
    char file[256] = {0};
    uint64_t length = strlen(header);

    memcpy(file, &length, sizeof(length));
    memcpy(file + sizeof(length), header, length);
    write_file(name, file, sizeof(length) + length + 4);
}

static void clean(void) {
    static const char *const names[] = {"a.safetensors", "b.safetensors",
                                        "model.safetensors.index.json"};
    char path[256];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    ASSERT(mkdtemp(folder));
    atexit(clean);
    write_shard("a.safetensors", "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],"
                                 "\"data_offsets\":[0,4]}}");
    write_shard("b.safetensors", "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
                                 "\"data_offsets\":[0,4]}}");
    return 0;
}

static void try_header(const char *header, size_t n_bytes, uint64_t data_bytes) {
    struct safetensors_entry *entries = NULL;
    size_t n_entries = 0;
    uint64_t at = 0;
    struct err e = {""};
    int r = safetensors_parse("fuzz", header, n_bytes, data_bytes, &entries, &n_entries, &e);

    if (r < 0) {
        ASSERT((r == -EINVAL || r == -ENOTSUP) && e.text[0] && !entries);
        return;
    }
    for (size_t i = 0; i < n_entries; i++) {
        ASSERT(entries[i].begin == at && entries[i].n_bytes <= data_bytes - at);
        ASSERT(entries[i].rank <= SAFETENSORS_RANK_MAX);
        /* The smallest dtype has 4 bits. */
        ASSERT(entries[i].n_values <= 2 * entries[i].n_bytes);
        at += entries[i].n_bytes;
    }
    ASSERT(at == data_bytes);
    safetensors_free(entries, n_entries);
}

static void try_index(const uint8_t *index, size_t n_bytes) {
    uint8_t digest[WEIGHTS_DIGEST_BYTES];
    struct weights *w = NULL;
    struct err e = {""};
    uint16_t values[2];
    int r;

    write_file("model.safetensors.index.json", index, n_bytes);
    r = weights_open(folder, true, &w, &e);
    if (r < 0) {
        ASSERT(e.text[0] && !w);
        return;
    }
    for (size_t i = 0; i < weights_count(w); i++) {
        ASSERT(weights_find(w, weights_at(w, i)->name) == weights_at(w, i));
        ASSERT(weights_read(w, weights_at(w, i), values, &e) == 0);
    }
    ASSERT(weights_digest(w, digest, &e) == 0);
    weights_close(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    if (n_bytes == 0) return 0;
    if (bytes[0] & 1)
        try_index(bytes + 1, n_bytes - 1);
    else
        try_header((const char *)bytes + 1, n_bytes - 1, bytes[0] >> 1);
    return 0;
}
