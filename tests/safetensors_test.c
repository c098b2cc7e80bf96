/* The header of a safetensors file: every count, offset, product and type wrong, one at a time. */
#include "runtime/safetensors.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/err.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct err e;

static int parse(const char *header, uint64_t data_bytes) {
    struct safetensors_entry *entries = NULL;
    size_t n_entries = 0;
    int r;

    e.text[0] = '\0';
    r = safetensors_parse("x.safetensors", header, strlen(header), data_bytes, &entries, &n_entries,
                          &e);
    if (r < 0) assert_null(entries);
    safetensors_free(entries, n_entries);
    return r;
}

#define TENSOR(shape, offsets) \
    "{\"a\":{\"dtype\":\"BF16\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TWO(first, second)                                                  \
    "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":" first "}," \
    "\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":" second "}}"

static void test_headers(void **state) {
    static const struct {
        const char *why, *header;
        size_t data_bytes;
        int want;
    } cases[] = {
        {"nothing in it", "{}", 0, 0},
        {"nothing in it, but data", "{}", 1, -EINVAL},
        {"one", TENSOR("[2]", "[0,4]"), 4, 0},
        {"white space after it", TENSOR("[2]", "[0,4]") " \t\r\n  ", 4, 0},
        {"white space before it", " " TENSOR("[2]", "[0,4]"), 4, -EINVAL},
        {"a brace after it", TENSOR("[2]", "[0,4]") "}", 4, -EINVAL},
        {"a list", "[]", 0, -EINVAL},
        {"not JSON", "{\"a\"", 0, -EINVAL},
        {"not UTF-8", "{\"\xff\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
         -EINVAL},
        {"a surrogate in UTF-8",
         "{\"\xed\xa0\x80\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
         -EINVAL},

        {"rank 0", TENSOR("[]", "[0,2]"), 2, 0},
        {"rank 4", TENSOR("[1,2,1,1]", "[0,4]"), 4, 0},
        {"rank 5", TENSOR("[1,2,1,1,1]", "[0,4]"), 4, -ENOTSUP},
        {"zero-sized", TENSOR("[0]", "[0,0]"), 0, 0},
        {"zero-sized, by a later dimension", TENSOR("[4294967296,0]", "[0,0]"), 0, 0},
        {"zero-sized, but bytes", TENSOR("[0]", "[0,4]"), 4, -EINVAL},
        {"2^63 - 1 twice", TENSOR("[9223372036854775807,2]", "[0,4]"), 4, -EINVAL},
        {"a product of 2^64: 0 after wrapping", TENSOR("[4294967296,4294967296]", "[0,0]"), 0,
         -EINVAL},
        {"2^64 before the zero", TENSOR("[4294967296,4294967296,0]", "[0,0]"), 0, -EINVAL},
        {"2^63 values: 0 bytes after wrapping", TENSOR("[4611686018427387904,2]", "[0,0]"), 0,
         -EINVAL},
        {"2^60 values: 0 bits after wrapping", TENSOR("[1152921504606846976]", "[0,0]"), 0,
         -EINVAL},
        {"a dimension of -1", TENSOR("[-1]", "[0,4]"), 4, -EINVAL},
        {"two negatives make 2", TENSOR("[-1,-2]", "[0,4]"), 4, -EINVAL},
        {"-0 is no size", TENSOR("[-0]", "[0,0]"), 0, -EINVAL},
        {"a dimension above int64", TENSOR("[18446744073709551615]", "[0,4]"), 4, -EINVAL},
        {"a dimension with a fraction", TENSOR("[2.0]", "[0,4]"), 4, -EINVAL},
        {"a dimension with an exponent", TENSOR("[2e0]", "[0,4]"), 4, -EINVAL},
        {"a dimension in quotes", TENSOR("[\"2\"]", "[0,4]"), 4, -EINVAL},
        {"a dimension null", TENSOR("[null]", "[0,4]"), 4, -EINVAL},
        {"a dimension true", TENSOR("[true]", "[0,4]"), 4, -EINVAL},
        {"a dimension a list", TENSOR("[[2]]", "[0,4]"), 4, -EINVAL},
        {"the shape a number", TENSOR("2", "[0,4]"), 4, -EINVAL},
        {"the shape null", TENSOR("null", "[0,4]"), 4, -EINVAL},
        {"the shape an object", TENSOR("{}", "[0,2]"), 2, -EINVAL},

        {"too few bytes for the shape", TENSOR("[3]", "[0,4]"), 4, -EINVAL},
        {"too many bytes for the shape", TENSOR("[1]", "[0,4]"), 4, -EINVAL},
        {"beyond the data", TENSOR("[2]", "[0,4]"), 3, -EINVAL},
        {"data beyond it", TENSOR("[2]", "[0,4]"), 5, -EINVAL},
        {"a hole before it", TENSOR("[2]", "[1,5]"), 5, -EINVAL},
        {"backwards", TENSOR("[2]", "[4,0]"), 4, -EINVAL},
        {"negative", TENSOR("[2]", "[-4,0]"), 4, -EINVAL},
        {"at the end of int64", TENSOR("[2]", "[9223372036854775803,9223372036854775807]"), 4,
         -EINVAL},
        {"one offset", TENSOR("[2]", "[4]"), 4, -EINVAL},
        {"three offsets", TENSOR("[2]", "[0,4,4]"), 4, -EINVAL},
        {"offsets with a fraction", TENSOR("[2]", "[0.0,4.0]"), 4, -EINVAL},
        {"offsets a number", TENSOR("[2]", "4"), 4, -EINVAL},
        {"offsets null", TENSOR("[2]", "null"), 4, -EINVAL},
        {"offsets an object", TENSOR("[2]", "{\"0\":0,\"1\":4}"), 4, -EINVAL},
        {"offsets in quotes", TENSOR("[2]", "[\"0\",\"4\"]"), 4, -EINVAL},

        {"two in a row", TWO("[0,4]", "[4,8]"), 8, 0},
        {"two in a row, named backwards", TWO("[4,8]", "[0,4]"), 8, 0},
        {"both the same bytes", TWO("[0,4]", "[0,4]"), 4, -EINVAL},
        {"overlapping", TWO("[0,4]", "[2,6]"), 6, -EINVAL},
        {"a hole between them", TWO("[0,4]", "[5,9]"), 9, -EINVAL},

        {"no dtype", "{\"a\":{\"shape\":[2],\"data_offsets\":[0,4]}}", 4, -EINVAL},
        {"no shape", "{\"a\":{\"dtype\":\"BF16\",\"data_offsets\":[0,4]}}", 4, -EINVAL},
        {"no offsets", "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2]}}", 4, -EINVAL},
        {"one key more",
         "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4],\"x\":1}}", 4, -EINVAL},
        {"an unknown dtype", "{\"a\":{\"dtype\":\"F128\",\"shape\":[1],\"data_offsets\":[0,16]}}",
         16, -EINVAL},
        {"a dtype in lower case",
         "{\"a\":{\"dtype\":\"bf16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, -EINVAL},
        {"a dtype by number", "{\"a\":{\"dtype\":14,\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
         -EINVAL},
        {"a dtype null", "{\"a\":{\"dtype\":null,\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
         -EINVAL},
        {"half a byte", "{\"a\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,0]}}", 0,
         -EINVAL},
        {"a tensor that is a list", "{\"a\":[\"BF16\",[2],[0,4]]}", 4, -EINVAL},
        {"a tensor null", "{\"a\":null}", 0, -EINVAL},
        {"a tensor a number", "{\"a\":1}", 0, -EINVAL},
        {"a tensor a string", "{\"a\":\"b\"}", 0, -EINVAL},
        {"a tensor twice",
         "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}",
         4, -EINVAL},
        {"a key of a tensor twice",
         "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
         -EINVAL},
        {"a zero in a name",
         "{\"a\\u0000\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, -EINVAL},
        {"a minus in a name is no negative number",
         "{\"a\\\"-\\\\\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, 0},

        {"metadata empty", "{\"__metadata__\":{}}", 0, 0},
        {"metadata null", "{\"__metadata__\":null}", 0, 0},
        {"metadata a list", "{\"__metadata__\":[]}", 0, -EINVAL},
        {"metadata a string", "{\"__metadata__\":\"pt\"}", 0, -EINVAL},
        {"metadata of numbers", "{\"__metadata__\":{\"a\":1}}", 0, -EINVAL},
        {"metadata of nulls", "{\"__metadata__\":{\"a\":null}}", 0, -EINVAL},
        {"metadata of objects", "{\"__metadata__\":{\"a\":{}}}", 0, -EINVAL},
        {"metadata twice", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, -EINVAL},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int r = parse(cases[i].header, cases[i].data_bytes);

        if (r != cases[i].want) fail_msg("%s: got %d, \"%s\"", cases[i].why, r, e.text);
        if (r < 0) assert_non_null(strstr(e.text, "x.safetensors"));
    }
}

/* A name of the file's choice does not push the fault out of the text. */
static void test_long_name(void **state) {
    char header[4096], name[2001];

    (void)state;
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    snprintf(header, sizeof(header),
             "{\"%s\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,4]}}", name);
    assert_int_equal(parse(header, 4), -EINVAL);
    assert_non_null(strstr(e.text, "48 bits"));
}

/* The entries come in the order of their bytes. */
static void test_entries(void **state) {
    static const char header[] =
        "{\"a\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[12,14]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
        "\"c\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":[12,12]}}";
    struct safetensors_entry *entries = NULL;
    size_t n_entries = 0;

    (void)state;
    assert_int_equal(
        safetensors_parse("x.safetensors", header, strlen(header), 14, &entries, &n_entries, NULL),
        0);
    assert_int_equal(n_entries, 3);
    assert_string_equal(entries[0].name, "b");
    assert_string_equal(entries[0].dtype, "BF16");
    assert_int_equal(entries[0].rank, 2);
    assert_int_equal(entries[0].shape[0], 2);
    assert_int_equal(entries[0].shape[1], 3);
    assert_int_equal(entries[0].n_values, 6);
    assert_int_equal(entries[0].begin, 0);
    assert_int_equal(entries[0].n_bytes, 12);
    assert_string_equal(entries[1].name, "c");
    assert_int_equal(entries[1].n_values, 0);
    assert_int_equal(entries[1].n_bytes, 0);
    assert_string_equal(entries[2].name, "a");
    assert_int_equal(entries[2].rank, 0);
    assert_int_equal(entries[2].n_values, 1);
    safetensors_free(entries, n_entries);
    safetensors_free(NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_long_name),
        cmocka_unit_test(test_entries),
    };

    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
