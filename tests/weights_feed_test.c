/* Pieces that threads read: each once, the same values as whole tensors, in memory that is the
 * caller's; errors of files; an end at any time; and what hashes later finds what was read. */
#include "runtime/weights_feed.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/err.h"
#include "runtime/model.h"
#include "runtime/weights.h"

static const char folder[] = "tests/data/verse-4m";
enum { FILE_BYTES = 7348736 };

static struct model read_model(void) {
    struct err e = {{0}};
    struct model m;

    if (model_read(folder, &m, &e) < 0) fail_msg("%s", e.text);
    return m;
}

static void *take_memory(const struct model *m) {
    void *memory = malloc(WEIGHTS_FEED_SLOTS * weights_feed_slot_bytes(m));

    assert_non_null(memory);
    return memory;
}

/* Values as whole tensors have them, by another reader of the folder. */
static uint16_t *whole(struct weights *w, const struct model_tensor *t) {
    uint16_t *values = malloc(model_tensor_values(t) * sizeof(*values));
    struct err e = {{0}};

    assert_non_null(values);
    assert_int_equal(weights_read(w, weights_find(w, t->name), values, &e), 0);
    return values;
}

/* Up to `hold` pieces are kept before the first of them goes back. */
static void check_all(struct weights *w, const struct model *m, struct weights *again,
                      uint32_t hold) {
    struct weights_piece held[WEIGHTS_FEED_SLOTS], p;
    uint64_t n_seen[64] = {0};
    void *memory = take_memory(m);
    struct weights_feed *f = NULL;
    struct err e = {{0}};
    struct model_tensor t;
    uint32_t n_held = 0, n = 0;
    int r;

    assert_int_equal(weights_feed_open(w, m, memory, &f, &e), 0);
    while ((r = weights_feed_next(f, n_held == 0, &p, &e)) != 0) {
        if (r == 1) held[n_held++] = p;
        if (r < 0) assert_int_equal(r, -EAGAIN);
        if (n_held == hold || r == -EAGAIN) {
            for (uint32_t i = 0; i < n_held; i++) {
                uint16_t *want = whole(again, &held[i].tensor);

                assert_true(held[i].index < 64 && held[i].n > 0);
                assert_int_equal(held[i].first % held[i].tensor.n_k, 0);
                assert_memory_equal(held[i].values, want + held[i].first,
                                    held[i].n * sizeof(*want));
                n_seen[held[i].index] += held[i].n;
                weights_feed_give(f, held[i].slot);
                free(want);
            }
            n_held = 0;
        }
    }
    for (uint32_t i = 0; i < n_held; i++) n_seen[held[i].index] += held[i].n;
    for (; model_tensor_at(m, n, &t); n++) assert_int_equal(n_seen[n], model_tensor_values(&t));
    weights_feed_close(f);
    free(memory);
}

static void test_same_values(void **state) {
    static const uint32_t holds[] = {1, 4, WEIGHTS_FEED_SLOTS};
    uint8_t one[WEIGHTS_DIGEST_BYTES], other[WEIGHTS_DIGEST_BYTES];
    const struct model m = read_model();
    struct weights *w, *again;
    struct err e = {{0}};

    (void)state;
    for (size_t i = 0; i < sizeof(holds) / sizeof(holds[0]); i++) {
        assert_int_equal(weights_open(folder, false, &w, &e), 0);
        assert_int_equal(weights_open(folder, false, &again, &e), 0);
        check_all(w, &m, again, holds[i]);
        check_all(w, &m, again, holds[i]); /* read again, they must be the same */
        assert_int_equal(weights_digest_begin(w, &e), 0);
        assert_int_equal(weights_digest(w, one, &e), 0);
        assert_int_equal(weights_digest(again, other, &e), 0);
        assert_memory_equal(one, other, sizeof(one));
        weights_close(w);
        weights_close(again);
    }
}

/* A folder of a model in a dtype, with values of no meaning. */
static char made[] = "/tmp/weights_feed_test.XXXXXX";

static void write_folder(const struct model *m, const char *dtype, uint32_t value_bytes) {
    struct model_tensor t;
    char name[64], header[8192] = "{";
    uint64_t n_bytes = 0, n_header, x = 1;
    size_t n = 1;
    FILE *f;

    memcpy(strrchr(made, '.') + 1, "XXXXXX", 6);
    assert_non_null(mkdtemp(made));
    (void)snprintf(name, sizeof(name), "%s/model.safetensors", made);
    for (uint32_t i = 0; model_tensor_at(m, i, &t); i++) {
        const uint64_t end = n_bytes + model_tensor_values(&t) * value_bytes;
        char shape[32];

        (void)snprintf(shape, sizeof(shape), t.n ? "%u,%u" : "%u", t.n ? t.n : t.n_k, t.n_k);
        n += (size_t)snprintf(
            header + n, sizeof(header) - n,
            "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}", i ? "," : "",
            t.name, dtype, shape, (unsigned long long)n_bytes, (unsigned long long)end);
        n_bytes = end;
    }
    header[n++] = '}';
    n_header = n;
    f = fopen(name, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(&n_header, 8, 1, f), 1);
    assert_int_equal(fwrite(header, n, 1, f), 1);
    for (uint64_t i = 0; i < n_bytes; i += 2) {
        uint16_t value;

        x = x * 6364136223846793005u + 1442695040888963407u;
        value = (uint16_t)(x >> 48);
        assert_int_equal(fwrite(&value, 2, 1, f), 1);
    }
    assert_int_equal(fclose(f), 0);
}

static void remove_folder(void) {
    char name[64];

    (void)snprintf(name, sizeof(name), "%s/model.safetensors", made);
    (void)unlink(name);
    (void)rmdir(made);
}

/* No thread can be had. */
static bool no_threads;
int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg) {
    return no_threads ? EAGAIN : __real_pthread_create(t, a, f, arg);
}

/* A tensor in many pieces, the last of them a row, from every dtype; and all of it read by the
 * thread that asks. */
static void test_many_pieces(void **state) {
    static const struct {
        const char *dtype;
        uint32_t value_bytes;
    } files[] = {{"BF16", 2}, {"F16", 2}, {"F32", 4}};
    uint8_t one[WEIGHTS_DIGEST_BYTES], other[WEIGHTS_DIGEST_BYTES];
    struct model m = read_model();

    (void)state;
    m.n_layers = 1;
    m.vocab = 2 * WEIGHTS_FEED_BYTES / 2 / m.hidden + 1;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        write_folder(&m, files[i].dtype, files[i].value_bytes);
        for (int alone = 0; alone < 2; alone++) {
            struct weights *w, *again;
            struct err e = {{0}};

            no_threads = alone;
            assert_int_equal(weights_open(made, true, &w, &e), 0);
            assert_int_equal(weights_open(made, true, &again, &e), 0);
            check_all(w, &m, again, 1);
            check_all(w, &m, again, WEIGHTS_FEED_SLOTS);
            assert_int_equal(weights_digest(w, one, &e), 0);
            assert_int_equal(weights_digest(again, other, &e), 0);
            assert_memory_equal(one, other, sizeof(one));
            weights_close(w);
            weights_close(again);
            no_threads = false;
        }
        remove_folder();
    }
}

static void test_slots(void **state) {
    struct model m = read_model();

    (void)state;
    assert_int_equal(weights_feed_slot_bytes(&m), 2048 * 256 * 2); /* of the embedding, whole */
    m.vocab = 200003;
    assert_int_equal(weights_feed_slot_bytes(&m), WEIGHTS_FEED_BYTES);
    m.intermediate = 1 << 20; /* eight rows of down are more */
    assert_int_equal(weights_feed_slot_bytes(&m), 8 * (2 << 20));
}

static void test_closed_early(void **state) {
    const struct model m = read_model();
    void *memory = take_memory(&m);
    struct weights *w;
    struct err e = {{0}};

    (void)state;
    assert_int_equal(weights_open(folder, false, &w, &e), 0);
    for (uint32_t n = 0; n < WEIGHTS_FEED_SLOTS; n++) {
        struct weights_feed *f = NULL;
        struct weights_piece p;

        assert_int_equal(weights_feed_open(w, &m, memory, &f, &e), 0);
        for (uint32_t i = 0; i < n; i++) assert_int_equal(weights_feed_next(f, true, &p, &e), 1);
        weights_feed_close(f);
    }
    weights_close(w);
    free(memory);
}

/* A copy of the folder's file, opened; then something happens to the file. */
static char copy[] = "/tmp/weights_feed_test.XXXXXX", path[64];

static struct weights *open_copy(void) {
    struct weights *w = NULL;
    struct err e = {{0}};
    char command[256];

    memcpy(strrchr(copy, '.') + 1, "XXXXXX", 6);
    assert_non_null(mkdtemp(copy));
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", copy);
    (void)snprintf(command, sizeof(command), "cp %s/model.safetensors %s", folder, path);
    assert_int_equal(system(command), 0);
    assert_int_equal(weights_open(copy, false, &w, &e), 0);
    return w;
}

static void remove_copy(void) {
    (void)unlink(path);
    (void)rmdir(copy);
}

static int feed_all(struct weights *w, struct err *e) {
    const struct model m = read_model();
    void *memory = take_memory(&m);
    struct weights_feed *f = NULL;
    struct weights_piece p;
    int r;

    assert_int_equal(weights_feed_open(w, &m, memory, &f, e), 0);
    while ((r = weights_feed_next(f, true, &p, e)) > 0) weights_feed_give(f, p.slot);
    if (r < 0) assert_int_equal(weights_feed_next(f, true, &p, e), r); /* and again */
    weights_feed_close(f);
    free(memory);
    return r;
}

/* Progress counts every byte once: as pieces or as tensors come, not as they are hashed again. */
static void test_counted_once(void **state) {
    const struct model m = read_model();
    uint8_t digest[WEIGHTS_DIGEST_BYTES];

    (void)state;
    for (int in_pieces = 0; in_pieces < 2; in_pieces++) {
        _Atomic uint64_t n_bytes = 0;
        struct weights *w;
        struct err e = {{0}};
        struct model_tensor t;

        assert_int_equal(weights_open(folder, false, &w, &e), 0);
        weights_count_in(w, &n_bytes);
        if (in_pieces)
            assert_int_equal(feed_all(w, &e), 0);
        else
            for (uint32_t i = 0; model_tensor_at(&m, i, &t); i++) free(whole(w, &t));
        assert_int_equal(n_bytes, weights_bytes(w));
        assert_int_equal(weights_digest(w, digest, &e), 0);
        assert_int_equal(n_bytes, weights_bytes(w));
        weights_close(w);
    }
}

static void flip_byte(off_t at) {
    const int fd = open(path, O_RDWR);
    uint8_t byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x40;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void test_cut_short(void **state) {
    struct weights *w = open_copy();
    struct err e = {{0}};

    (void)state;
    assert_int_equal(truncate(path, FILE_BYTES - 1000), 0);
    assert_int_equal(feed_all(w, &e), -EIO);
    assert_non_null(strstr(e.text, "model.safetensors"));
    assert_non_null(strstr(e.text, "shorter"));
    weights_close(w);
    remove_copy();
}

/* One byte between two readings: of pieces, of a tensor, of the hash.  Put back, it is as it was. */
static void test_changed(void **state) {
    uint8_t digest[WEIGHTS_DIGEST_BYTES], want[WEIGHTS_DIGEST_BYTES];
    struct weights *w = open_copy();
    const struct model m = read_model();
    struct err e = {{0}};
    struct model_tensor t;
    uint32_t n_changed = 0;

    (void)state;
    assert_int_equal(feed_all(w, &e), 0);
    flip_byte(FILE_BYTES - 100);
    assert_int_equal(feed_all(w, &e), -EIO);
    assert_non_null(strstr(e.text, "changed since it was read"));
    for (uint32_t i = 0; model_tensor_at(&m, i, &t); i++) {
        uint16_t *values = malloc(model_tensor_values(&t) * sizeof(*values));
        const int r = weights_read(w, weights_find(w, t.name), values, &e);

        assert_true(r == 0 || (r == -EIO && strstr(e.text, "changed since it was read")));
        n_changed += r < 0;
        free(values);
    }
    assert_int_equal(n_changed, 1);
    assert_int_equal(weights_digest_begin(w, &e), 0);
    assert_int_equal(weights_digest(w, digest, &e), -EIO);
    assert_non_null(strstr(e.text, "changed since it was read"));
    flip_byte(FILE_BYTES - 100);
    assert_int_equal(weights_digest(w, digest, &e), 0);
    weights_close(w);
    assert_int_equal(weights_open(folder, false, &w, &e), 0);
    assert_int_equal(weights_digest(w, want, &e), 0);
    assert_memory_equal(digest, want, sizeof(want));
    weights_close(w);
    remove_copy();
}

/* Hashing goes on beside a reader of what came in pieces, and is given up by close. */
static void test_hashing_beside(void **state) {
    const struct model m = read_model();
    struct model_tensor t;
    struct weights *w;
    struct err e = {{0}};

    (void)state;
    for (int round = 0; round < 3; round++) {
        assert_int_equal(weights_open(folder, false, &w, &e), 0);
        assert_int_equal(feed_all(w, &e), 0);
        assert_int_equal(weights_digest_begin(w, &e), 0);
        assert_int_equal(weights_digest_begin(w, &e), 0);
        for (uint32_t i = 0; round > 0 && model_tensor_at(&m, i, &t); i++) free(whole(w, &t));
        weights_close(w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_values),    cmocka_unit_test(test_many_pieces),
        cmocka_unit_test(test_slots),          cmocka_unit_test(test_closed_early),
        cmocka_unit_test(test_cut_short),      cmocka_unit_test(test_changed),
        cmocka_unit_test(test_hashing_beside), cmocka_unit_test(test_counted_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
