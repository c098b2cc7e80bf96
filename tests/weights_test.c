/* Safetensors folders: the file cut at every byte, the length of the header wrong, index against
 * shards, rounding against hand-made bits, and the digest, in which sharding does not show. */
#include "runtime/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/err.h"
#include "runtime/model.h"
#include "runtime/model_tensor.h"
#include "runtime/num.h"
#include "runtime/safetensors.h"
#include "runtime/sha256.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { PATH = 512, FILE_BYTES_MAX = 1 << 16 };

static char folder[] = "/tmp/weights_test.XXXXXX";
static struct err e;

static const char *path_of(const char *name) {
    static char path[PATH];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void write_bytes(const char *name, const void *bytes, size_t n_bytes) {
    int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n_bytes), n_bytes);
    close(fd);
}

/* A file of a length, a header and n bytes of data: 0, 1, 2, ... */
static size_t make_file(uint8_t *file, const char *header, size_t data_bytes) {
    uint64_t length = strlen(header);

    memcpy(file, &length, sizeof(length));
    memcpy(file + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++) file[8 + length + i] = (uint8_t)i;
    return 8 + length + data_bytes;
}

static void write_file(const char *name, const char *header, size_t data_bytes) {
    static uint8_t file[FILE_BYTES_MAX];

    write_bytes(name, file, make_file(file, header, data_bytes));
}

static void write_text(const char *name, const char *text) {
    write_bytes(name, text, strlen(text));
}

static int clean(void **state) {
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json",
                                        "a.safetensors", "b.safetensors"};

    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) unlink(path_of(names[i]));
    return 0;
}

/* Opens, reads all and closes: the first failure, or 0. */
static int open_and_read(bool round) {
    uint16_t *values;
    struct weights *w = NULL;
    int r;

    e.text[0] = '\0';
    r = weights_open(folder, round, &w, &e);
    if (r < 0) {
        assert_null(w);
        return r;
    }
    for (size_t i = 0; i < weights_count(w) && r == 0; i++) {
        const struct weights_tensor *t = weights_at(w, i);

        values = malloc(t->n_values * sizeof(values[0]) + 1);
        assert_non_null(values);
        r = weights_read(w, t, values, &e);
        free(values);
    }
    weights_close(w);
    return r;
}

/* Three tensors, one of rank 0; the order of names is not the order of bytes. */
static const char three[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                            "\"c\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                            "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]},"
                            "\"b\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[20,22]}}   \n";

static void test_table(void **state) {
    struct weights *w = NULL;
    const struct weights_tensor *t;

    (void)state;
    write_file("model.safetensors", three, 22);
    assert_int_equal(weights_open(folder, false, &w, &e), 0);
    assert_int_equal(weights_count(w), 3);
    assert_int_equal(weights_bytes(w), 22);
    assert_string_equal(weights_at(w, 0)->name, "a");
    assert_string_equal(weights_at(w, 2)->name, "c");
    t = weights_find(w, "c");
    assert_ptr_equal(t, weights_at(w, 2));
    assert_int_equal(t->dtype, WEIGHTS_BF16);
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(t->n_values, 6);
    assert_int_equal(t->n_bytes, 12);
    t = weights_find(w, "b");
    assert_int_equal(t->rank, 0);
    assert_int_equal(t->n_values, 1);
    assert_null(weights_find(w, "d"));
    assert_null(weights_find(w, ""));
    weights_close(w);
    weights_close(NULL);
}

/* Every prefix of a good file is refused, and so is the file with a byte more. */
static void test_cut(void **state) {
    uint8_t file[FILE_BYTES_MAX];
    size_t n_bytes = make_file(file, three, 22);

    (void)state;
    for (size_t cut = 0; cut < n_bytes; cut++) {
        write_bytes("model.safetensors", file, cut);
        if (open_and_read(true) != -EINVAL) fail_msg("cut at %zu: \"%s\"", cut, e.text);
        assert_non_null(strstr(e.text, "model.safetensors"));
    }
    write_bytes("model.safetensors", file, n_bytes);
    assert_int_equal(open_and_read(true), 0);
    file[n_bytes] = 0;
    write_bytes("model.safetensors", file, n_bytes + 1);
    assert_int_equal(open_and_read(true), -EINVAL);
}

static void test_length(void **state) {
    static const struct {
        const char *why;
        uint64_t length;
    } cases[] = {
        {"no header", 0},
        {"one byte of it", 1},
        {"one byte short", sizeof(three) - 2},
        {"one byte into the data", sizeof(three)},
        {"the file, without the length", sizeof(three) - 1 + 22 + 1},
        {"the limit", SAFETENSORS_HEADER_BYTES_MAX},
        {"above the limit", SAFETENSORS_HEADER_BYTES_MAX + 1},
        {"2^32", 1ull << 32},
        {"2^63", 1ull << 63},
        {"+ 8 wraps to 7", UINT64_MAX},
        {"+ 8 wraps to 0", UINT64_MAX - 7},
    };
    uint8_t file[FILE_BYTES_MAX];
    size_t n_bytes = make_file(file, three, 22);

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        memcpy(file, &cases[i].length, 8);
        write_bytes("model.safetensors", file, n_bytes);
        if (open_and_read(true) != -EINVAL) fail_msg("%s: \"%s\"", cases[i].why, e.text);
    }
}

static void test_dtypes(void **state) {
    static const struct {
        const char *dtype;
        unsigned n_bytes; /* of 8 values */
        int plain, round;
    } cases[] = {
        {"BF16", 16, 0, 0},
        {"F16", 16, -ENOTSUP, 0},
        {"F32", 32, -ENOTSUP, 0},
        {"F64", 64, -ENOTSUP, -ENOTSUP},
        {"C64", 64, -ENOTSUP, -ENOTSUP},
        {"I64", 64, -ENOTSUP, -ENOTSUP},
        {"U64", 64, -ENOTSUP, -ENOTSUP},
        {"I32", 32, -ENOTSUP, -ENOTSUP},
        {"U32", 32, -ENOTSUP, -ENOTSUP},
        {"I16", 16, -ENOTSUP, -ENOTSUP},
        {"U16", 16, -ENOTSUP, -ENOTSUP},
        {"U8", 8, -ENOTSUP, -ENOTSUP},
        {"I8", 8, -ENOTSUP, -ENOTSUP},
        {"BOOL", 8, -ENOTSUP, -ENOTSUP},
        {"F8_E5M2", 8, -ENOTSUP, -ENOTSUP},
        {"F8_E4M3", 8, -ENOTSUP, -ENOTSUP},
        {"F8_E8M0", 8, -ENOTSUP, -ENOTSUP},
        {"F8_E4M3FNUZ", 8, -ENOTSUP, -ENOTSUP},
        {"F8_E5M2FNUZ", 8, -ENOTSUP, -ENOTSUP},
        {"F6_E2M3", 6, -ENOTSUP, -ENOTSUP},
        {"F6_E3M2", 6, -ENOTSUP, -ENOTSUP},
        {"F4", 4, -ENOTSUP, -ENOTSUP},
    };
    char header[256];

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        snprintf(header, sizeof(header),
                 "{\"a\":{\"dtype\":\"%s\",\"shape\":[8],\"data_offsets\":[0,%u]}}", cases[i].dtype,
                 cases[i].n_bytes);
        write_file("model.safetensors", header, cases[i].n_bytes);
        assert_int_equal(open_and_read(false), cases[i].plain);
        if (cases[i].plain) assert_non_null(strstr(e.text, cases[i].dtype));
        assert_int_equal(open_and_read(true), cases[i].round);
    }
}

static void read_as(const char *dtype, const void *bytes, size_t n_values, size_t n_bytes,
                    uint16_t *out_values) {
    uint8_t file[FILE_BYTES_MAX];
    char header[128];
    struct weights *w = NULL;
    size_t n;

    snprintf(header, sizeof(header),
             "{\"a\":{\"dtype\":\"%s\",\"shape\":[%zu],"
             "\"data_offsets\":[0,%zu]}}",
             dtype, n_values, n_bytes);
    n = make_file(file, header, 0);
    memcpy(file + n, bytes, n_bytes);
    write_bytes("model.safetensors", file, n + n_bytes);
    assert_int_equal(weights_open(folder, true, &w, &e), 0);
    assert_int_equal(weights_read(w, weights_at(w, 0), out_values, &e), 0);
    weights_close(w);
}

static void test_rounding(void **state) {
    static const struct {
        const char *why;
        uint32_t f32;
        uint16_t want;
    } f32_cases[] = {
        {"one", 0x3f800000, 0x3f80},
        {"below the tie", 0x3f807fff, 0x3f80},
        {"a tie goes to the even one, down", 0x3f808000, 0x3f80},
        {"a tie goes to the even one, up", 0x3f818000, 0x3f82},
        {"above the tie", 0x3f808001, 0x3f81},
        {"negative", 0xbf818000, 0xbf82},
        {"over the largest", 0x7f7fffff, 0x7f80},
        {"infinity", 0xff800000, 0xff80},
        {"NaN becomes the one NaN", 0x7f800001, 0x7fff},
        {"a subnormal", 0x00018000, 0x0002},
        {"minus zero", 0x80000000, 0x8000},
    };
    static const struct {
        const char *why;
        uint16_t f16, want;
    } f16_cases[] = {
        {"one", 0x3c00, 0x3f80},
        {"a tie goes down", 0x3c04, 0x3f80},
        {"a tie goes up", 0x3c0c, 0x3f82},
        {"above the tie", 0x3c05, 0x3f81},
        {"the largest", 0x7bff, 0x4780},
        {"the smallest subnormal", 0x0001, 0x3380},
        {"the largest subnormal", 0x83ff, 0xb880},
        {"infinity", 0xfc00, 0xff80},
        {"NaN", 0x7c01, 0x7fff},
        {"minus zero", 0x8000, 0x8000},
    };
    uint16_t raw[] = {0x7f81, 0xffff, 0x0001, 0x8000}, got[COUNT(f32_cases)];
    uint32_t f32[COUNT(f32_cases)];
    uint16_t f16[COUNT(f16_cases)];

    (void)state;
    for (size_t i = 0; i < COUNT(f32_cases); i++) f32[i] = f32_cases[i].f32;
    read_as("F32", f32, COUNT(f32), sizeof(f32), got);
    for (size_t i = 0; i < COUNT(f32_cases); i++)
        if (got[i] != f32_cases[i].want) fail_msg("F32, %s: %#x", f32_cases[i].why, got[i]);
    for (size_t i = 0; i < COUNT(f16_cases); i++) f16[i] = f16_cases[i].f16;
    read_as("F16", f16, COUNT(f16), sizeof(f16), got);
    for (size_t i = 0; i < COUNT(f16_cases); i++)
        if (got[i] != f16_cases[i].want) fail_msg("F16, %s: %#x", f16_cases[i].why, got[i]);
    /* What is bf16 already stays to the bit, NaN too. */
    read_as("BF16", raw, COUNT(raw), sizeof(raw), got);
    assert_memory_equal(got, raw, sizeof(raw));
}

static const char half_a[] = "{\"c\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]}}";
/* The data of write_file begins at 0 again: not the bytes that `three` has there. */
static const char half_b[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                             "\"b\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[8,10]}}";

static void test_index(void **state) {
    static const struct {
        const char *why, *index;
        int want;
        const char *text;
    } cases[] = {
        {"as it should be",
         "{\"metadata\":{\"total_size\":22},\"weight_map\":{\"a\":\"b.safetensors\","
         "\"b\":\"b.safetensors\",\"c\":\"a.safetensors\"}}",
         0, ""},
        {"a tensor is present and not named",
         "{\"weight_map\":{\"a\":\"b.safetensors\",\"c\":\"a.safetensors\"}}", -EINVAL, "tensor b"},
        {"a tensor is named and absent",
         "{\"weight_map\":{\"a\":\"b.safetensors\",\"b\":\"b.safetensors\","
         "\"c\":\"a.safetensors\",\"d\":\"a.safetensors\"}}",
         -EINVAL, "tensor d"},
        {"a tensor is in another shard",
         "{\"weight_map\":{\"a\":\"b.safetensors\",\"b\":\"a.safetensors\","
         "\"c\":\"a.safetensors\"}}",
         -EINVAL, "tensor b"},
        {"a shard is absent",
         "{\"weight_map\":{\"a\":\"b.safetensors\",\"b\":\"b.safetensors\","
         "\"c\":\"c.safetensors\"}}",
         -ENOENT, "c.safetensors"},
        {"out of the folder", "{\"weight_map\":{\"a\":\"../b.safetensors\"}}", -EINVAL, "tensor a"},
        {"an absolute path", "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", -EINVAL, "tensor a"},
        {"a folder below", "{\"weight_map\":{\"a\":\"x/b.safetensors\"}}", -EINVAL, "tensor a"},
        {"the folder itself", "{\"weight_map\":{\"a\":\".\"}}", -EINVAL, "tensor a"},
        {"the folder above", "{\"weight_map\":{\"a\":\"..\"}}", -EINVAL, "tensor a"},
        {"no name", "{\"weight_map\":{\"a\":\"\"}}", -EINVAL, "tensor a"},
        {"a number for a name", "{\"weight_map\":{\"a\":1}}", -EINVAL, "tensor a"},
        {"null for a name", "{\"weight_map\":{\"a\":null}}", -EINVAL, "tensor a"},
        {"a tensor twice", "{\"weight_map\":{\"a\":\"a.safetensors\",\"a\":\"b.safetensors\"}}",
         -EINVAL, "duplicate"},
        {"no map", "{}", -EINVAL, "weight_map"},
        {"a map that is a list", "{\"weight_map\":[]}", -EINVAL, "weight_map"},
        {"not an object", "[]", -EINVAL, "index.json"},
        {"not JSON", "{", -EINVAL, "index.json"},
        {"nothing", "", -EINVAL, "index.json"},
    };

    (void)state;
    write_file("a.safetensors", half_a, 12);
    write_file("b.safetensors", half_b, 10);
    for (size_t i = 0; i < COUNT(cases); i++) {
        int r;

        write_text("model.safetensors.index.json", cases[i].index);
        r = open_and_read(true);
        if (r != cases[i].want || !strstr(e.text, cases[i].text))
            fail_msg("%s: got %d, \"%s\"", cases[i].why, r, e.text);
    }
    write_text("model.safetensors.index.json", cases[0].index);
    write_file("b.safetensors", half_b, 9);
    assert_int_equal(open_and_read(true), -EINVAL);
    assert_non_null(strstr(e.text, "b.safetensors"));
    write_file("a.safetensors", three, 22);
    write_file("b.safetensors", half_b, 10);
    assert_int_equal(open_and_read(true), -EINVAL); /* a and b are in both */

    write_file("model.safetensors", three, 22);
    assert_int_equal(open_and_read(true), -EINVAL);
    assert_non_null(strstr(e.text, "both"));
}

/* One shard more than the limit, all of them there. */
static void test_shards(void **state) {
    enum { INDEX_BYTES = 1 << 17 };
    char *index = malloc(INDEX_BYTES), name[32], header[128];
    struct rlimit files;

    (void)state;
    assert_non_null(index);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    for (int n_shards = WEIGHTS_SHARDS_MAX; n_shards <= WEIGHTS_SHARDS_MAX + 1; n_shards++) {
        int n = snprintf(index, INDEX_BYTES, "{\"weight_map\":{");

        for (int i = 0; i < n_shards; i++)
            n += snprintf(index + n, (size_t)(INDEX_BYTES - n), "%s\"t%d\":\"%d.safetensors\"",
                          i ? "," : "", i, i);
        snprintf(index + n, (size_t)(INDEX_BYTES - n), "}}");
        write_text("model.safetensors.index.json", index);
        for (int i = 0; i < n_shards; i++) {
            snprintf(name, sizeof(name), "%d.safetensors", i);
            snprintf(header, sizeof(header),
                     "{\"t%d\":{\"dtype\":\"BF16\",\"shape\":[0],\"data_offsets\":[0,0]}}", i);
            write_file(name, header, 0);
        }
        if (n_shards > WEIGHTS_SHARDS_MAX) {
            assert_int_equal(open_and_read(false), -EINVAL);
            assert_non_null(strstr(e.text, "shards"));
        } else if (open_and_read(false) != 0) {
            /* The system may allow fewer, and then says so. */
            assert_non_null(strstr(e.text, "Too many open files"));
        }
    }
    for (int i = 0; i <= WEIGHTS_SHARDS_MAX; i++) {
        snprintf(name, sizeof(name), "%d.safetensors", i);
        unlink(path_of(name));
    }
    free(index);
}

static void digest_of(bool round, bool read_some, char hex[SHA256_HEX_BYTES]) {
    uint8_t digest[WEIGHTS_DIGEST_BYTES];
    uint16_t values[16];
    struct weights *w = NULL;

    assert_int_equal(weights_open(folder, round, &w, &e), 0);
    if (read_some) assert_int_equal(weights_read(w, weights_find(w, "c"), values, &e), 0);
    assert_int_equal(weights_digest(w, digest, &e), 0);
    sha256_hex(digest, hex);
    weights_close(w);
}

/* The formula of weights.h spelt out over `three`. */
static void expected_digest(char hex[SHA256_HEX_BYTES]) {
    static const struct {
        const char *name, *dtype;
        uint32_t rank;
        uint64_t shape[2];
        uint8_t begin, n_bytes;
    } tensors[] = {{"a", "F32", 1, {2, 0}, 12, 8},
                   {"b", "F16", 0, {0, 0}, 20, 2},
                   {"c", "BF16", 2, {2, 3}, 0, 12}};
    struct sha256 *s = sha256_open();
    uint8_t bytes[32], digest[SHA256_BYTES];

    assert_non_null(s);
    for (size_t i = 0; i < COUNT(tensors); i++) {
        uint32_t name_bytes = (uint32_t)strlen(tensors[i].name);
        uint32_t dtype_bytes = (uint32_t)strlen(tensors[i].dtype);

        sha256_add(s, &name_bytes, 4);
        sha256_add(s, tensors[i].name, name_bytes);
        sha256_add(s, &dtype_bytes, 4);
        sha256_add(s, tensors[i].dtype, dtype_bytes);
        sha256_add(s, &tensors[i].rank, 4);
        sha256_add(s, tensors[i].shape, 8 * (size_t)tensors[i].rank);
        for (int j = 0; j < tensors[i].n_bytes; j++) bytes[j] = (uint8_t)(tensors[i].begin + j);
        sha256_of(bytes, tensors[i].n_bytes, digest);
        sha256_add(s, digest, sizeof(digest));
    }
    sha256_end(s, digest);
    sha256_hex(digest, hex);
    sha256_close(s);
}

static void test_digest(void **state) {
    static const char other_order[] =
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
        "\"b\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[8,10]}}";
    char want[SHA256_HEX_BYTES], got[SHA256_HEX_BYTES];
    uint8_t file[FILE_BYTES_MAX];
    size_t n;

    (void)state;
    expected_digest(want);
    write_file("model.safetensors", three, 22);
    digest_of(false, false, got);
    assert_string_equal(got, want);
    digest_of(false, true, got); /* reading beforehand changes nothing */
    assert_string_equal(got, want);
    digest_of(true, true, got); /* the bytes of the file, not the rounded values */
    assert_string_equal(got, want);

    /* The same tensors in two shards, in another order and without the metadata. */
    unlink(path_of("model.safetensors"));
    write_file("a.safetensors", half_a, 12);
    n = make_file(file, other_order, 0);
    for (int i = 0; i < 10; i++) file[n++] = (uint8_t)(12 + i);
    write_bytes("b.safetensors", file, n);
    write_text("model.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"b.safetensors\",\"b\":\"b.safetensors\","
               "\"c\":\"a.safetensors\"}}");
    digest_of(false, false, got);
    assert_string_equal(got, want);

    /* One byte of one tensor, and its shape alone. */
    file[n - 1] ^= 1;
    write_bytes("b.safetensors", file, n);
    digest_of(false, false, got);
    assert_string_not_equal(got, want);
    file[n - 1] ^= 1;
    write_bytes("b.safetensors", file, n);
    write_file("a.safetensors",
               "{\"c\":{\"dtype\":\"BF16\",\"shape\":[3,2],\"data_offsets\":[0,12]}}", 12);
    digest_of(false, false, got);
    assert_string_not_equal(got, want);
}

/* A file that shrinks or changes after it was opened is an error, never a signal. */
static void test_changed(void **state) {
    uint16_t values[16];
    uint8_t file[FILE_BYTES_MAX], digest[WEIGHTS_DIGEST_BYTES];
    struct weights *w = NULL;
    size_t n_bytes = make_file(file, three, 22);

    (void)state;
    write_bytes("model.safetensors", file, n_bytes);
    assert_int_equal(weights_open(folder, true, &w, &e), 0);
    assert_int_equal(weights_read(w, weights_find(w, "c"), values, &e), 0);
    assert_int_equal(weights_read(w, weights_find(w, "c"), values, &e), 0);
    file[n_bytes - 22] ^= 1;
    write_bytes("model.safetensors", file, n_bytes);
    assert_int_equal(weights_read(w, weights_find(w, "c"), values, &e), -EIO);
    assert_non_null(strstr(e.text, "changed"));
    assert_int_equal(truncate(path_of("model.safetensors"), (off_t)n_bytes - 1), 0);
    assert_int_equal(weights_read(w, weights_find(w, "b"), values, &e), -EIO);
    assert_non_null(strstr(e.text, "shorter"));
    assert_int_equal(weights_digest(w, digest, &e), -EIO);
    weights_close(w);
}

static void test_files(void **state) {
    struct weights *w = NULL;

    (void)state;
    assert_int_equal(open_and_read(false), -ENOENT);
    assert_non_null(strstr(e.text, "model.safetensors"));
    assert_int_equal(weights_open("/nonexistent", false, &w, NULL), -ENOENT);
    assert_int_equal(mkdir(path_of("model.safetensors"), 0700), 0);
    assert_int_equal(open_and_read(false), -EINVAL);
    rmdir(path_of("model.safetensors"));
    assert_int_equal(mkfifo(path_of("model.safetensors"), 0600), 0);
    assert_int_equal(open_and_read(false), -EINVAL); /* and does not wait */
    unlink(path_of("model.safetensors"));
    assert_int_equal(symlink("model.safetensors", path_of("model.safetensors")), 0);
    /* A loop is absent to access() and an error to open(). */
    assert_int_equal(open_and_read(false), -EIO);
    unlink(path_of("model.safetensors"));
    if (geteuid() != 0) { /* root reads everything */
        write_file("model.safetensors", three, 22);
        chmod(path_of("model.safetensors"), 0);
        assert_int_equal(open_and_read(false), -EACCES);
    }
}

/* More than one chunk of reading, whose last is short, in each dtype. */
static void test_chunks(void **state) {
    enum { N_VALUES = (1 << 20) + 13 };
    static const struct {
        const char *dtype;
        size_t value_bytes;
    } cases[] = {{"BF16", 2}, {"F16", 2}, {"F32", 4}};
    uint8_t *file = malloc(N_VALUES * 4 + 256);
    uint16_t *values = malloc(N_VALUES * 2);
    char header[128];

    (void)state;
    assert_non_null(file);
    assert_non_null(values);
    for (size_t c = 0; c < COUNT(cases); c++) {
        struct weights *w = NULL;
        size_t n, n_bytes = N_VALUES * cases[c].value_bytes;

        snprintf(header, sizeof(header),
                 "{\"a\":{\"dtype\":\"%s\",\"shape\":[%d],\"data_offsets\":[0,%zu]}}",
                 cases[c].dtype, N_VALUES, n_bytes);
        n = make_file(file, header, 0);
        /* Small whole numbers, exact in each dtype. */
        for (unsigned i = 0; i < N_VALUES; i++) {
            float x = (float)(i * 7 % 127 + 1);
            unsigned bits = num_bits(x);
            uint16_t bf16 = num_to_bf16(x);
            uint16_t f16 = (uint16_t)(((bits >> 23) - 112) << 10 | (bits >> 13 & 0x3ff));
            uint8_t *to = file + n + i * cases[c].value_bytes;

            memcpy(to, c == 0 ? &bf16 : &f16, 2);
            if (c == 2) memcpy(to, &bits, 4);
        }
        write_bytes("model.safetensors", file, n + n_bytes);
        assert_int_equal(weights_open(folder, true, &w, &e), 0);
        assert_int_equal(weights_read(w, weights_at(w, 0), values, &e), 0);
        weights_close(w);
        for (unsigned i = 0; i < N_VALUES; i++)
            if (values[i] != num_to_bf16((float)(i * 7 % 127 + 1)))
                fail_msg("%s: value %u is %#x", cases[c].dtype, i, values[i]);
    }
    free(values);
    free(file);
}

static void test_verse(void **state) {
    struct weights *w = NULL;
    uint8_t digest[WEIGHTS_DIGEST_BYTES];

    (void)state;
    assert_int_equal(weights_open("tests/data/verse-4m", false, &w, &e), 0);
    assert_int_equal(weights_bytes(w), 2 * 3672320);
    assert_int_equal(weights_find(w, "model.embed_tokens.weight")->shape[0], 2048);
    assert_int_equal(weights_digest(w, digest, &e), 0);
    weights_close(w);
}

/* A folder with the tensors of a model; `but` is of another shape, `more` is there too. */
static void write_model(const struct model *m, const char *but, const char *shape,
                        const char *more) {
    static char header[8192];
    struct model_tensor t;
    size_t n = 0, at = 0;

    n += (size_t)snprintf(header, sizeof(header), "{");
    for (uint32_t i = 0; model_tensor_at(m, i, &t); i++) {
        const size_t end = at + model_tensor_values(&t) * sizeof(uint16_t);
        char dims[64];

        if (t.n)
            snprintf(dims, sizeof(dims), "%u,%u", t.n, t.n_k);
        else
            snprintf(dims, sizeof(dims), "%u", t.n_k);
        n += (size_t)snprintf(
            header + n, sizeof(header) - n,
            "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", i ? "," : "",
            t.name, but && !strcmp(but, t.name) ? shape : dims, at, end);
        at = end;
    }
    if (more)
        n += (size_t)snprintf(
            header + n, sizeof(header) - n,
            ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[%zu,%zu]}", more, at,
            at + 4);
    (void)snprintf(header + n, sizeof(header) - n, "}");
    write_file("model.safetensors", header, more ? at + 4 : at);
}

/* The tensors of a model: all are there, of their shapes, and no other but those of no use. */
static void test_model_tensors(void **state) {
    static const struct model tied = {.n_layers = 1,
                                      .hidden = 16,
                                      .intermediate = 32,
                                      .n_heads = 1,
                                      .n_kv_heads = 1,
                                      .head_dim = 16,
                                      .vocab = 64,
                                      .tied = true};
    static const struct {
        const char *why, *but, *shape, *more;
        int want;
    } cases[] = {
        {"as it should be", NULL, NULL, NULL, 0},
        {"a norm in two dimensions", "model.norm.weight", "16,1", NULL, -ENOTSUP},
        {"a matrix in one", "model.embed_tokens.weight", "1024", NULL, -ENOTSUP},
        {"in three", "model.embed_tokens.weight", "64,16,1", NULL, -ENOTSUP},
        {"the other way round", "model.embed_tokens.weight", "16,64", NULL, -ENOTSUP},
        {"one side fits", "model.layers.0.mlp.up_proj.weight", "32,16,1", NULL, -ENOTSUP},
        {"what old folders have", NULL, NULL, "model.layers.0.self_attn.rotary_emb.inv_freq", 0},
        {"not quite", NULL, NULL, "model.layers.0.self_attn.rotary_emb.inv_freq.bias", -ENOTSUP},
        {"the head again", NULL, NULL, "lm_head.weight", 0},
        {"a layer too many", NULL, NULL, "model.layers.1.input_layernorm.weight", -ENOTSUP},
        {"a short name", NULL, NULL, "x", -ENOTSUP},
    };
    struct model untied = tied;
    struct weights_rule rule;
    struct weights *w;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int r;

        write_model(&tied, cases[i].but, cases[i].shape, cases[i].more);
        assert_int_equal(weights_open(folder, false, &w, &e), 0);
        r = model_tensor_check(&tied, w, &e);
        if (r == 0) r = model_tensor_check_others(&tied, w, &e);
        if (r != cases[i].want) fail_msg("%s: %d %s", cases[i].why, r, e.text);
        if (r < 0 && !strstr(e.text, cases[i].but ? cases[i].but : cases[i].more))
            fail_msg("%s: %s", cases[i].why, e.text);
        for (size_t k = 0; k < weights_count(w); k++)
            assert_false(weights_rule_of(w, weights_at(w, k), &rule));
        weights_close(w);
    }
    write_model(&tied, NULL, NULL, NULL);
    untied.tied = false;
    assert_int_equal(weights_open(folder, false, &w, &e), 0);
    assert_int_equal(model_tensor_check(&untied, w, &e), -ENOTSUP);
    assert_non_null(strstr(e.text, "lm_head.weight is missing"));
    assert_int_equal(model_tensor_values_max(&tied), 64 * 16);
    untied.intermediate = 1000;
    assert_int_equal(model_tensor_values_max(&untied), 1000 * 16);
    weights_close(w);
    /* Made up, they are those and no other, too; and as many bytes. */
    for (int i = 0; i < 2; i++) {
        const struct model *m = i ? &untied : &tied;
        const uint64_t n_layer = 2 * 16 + 4 * 16 * 16 + 3 * 16 * (uint64_t)m->intermediate;

        assert_int_equal(weights_make_up(m, 3, &w, &e), 0);
        assert_int_equal(model_tensor_check(m, w, &e), 0);
        assert_int_equal(model_tensor_check_others(m, w, &e), 0);
        assert_int_equal(weights_bytes(w), 2 * (n_layer + 64 * 16 + 16 + (m->tied ? 0 : 64 * 16)));
        weights_close(w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_table, clean),
        cmocka_unit_test_teardown(test_cut, clean),
        cmocka_unit_test_teardown(test_length, clean),
        cmocka_unit_test_teardown(test_dtypes, clean),
        cmocka_unit_test_teardown(test_rounding, clean),
        cmocka_unit_test_teardown(test_index, clean),
        cmocka_unit_test_teardown(test_shards, clean),
        cmocka_unit_test_teardown(test_digest, clean),
        cmocka_unit_test_teardown(test_changed, clean),
        cmocka_unit_test_teardown(test_files, clean),
        cmocka_unit_test_teardown(test_chunks, clean),
        cmocka_unit_test_teardown(test_verse, clean),
        cmocka_unit_test_teardown(test_model_tensors, clean),
    };
    int n_failed;

    alarm(60); /* a hang is a failure */
    if (!mkdtemp(folder)) return 1;
    n_failed = cmocka_run_group_tests_name("weights", tests, NULL, NULL);
    rmdir(folder);
    return n_failed;
}
