/* receipt_value - single values in text and in JSON, so that no bit is lost on the way.
 *
 * Owns:   nothing; what is returned is the caller's, NULL when there is no memory.
 * Thread: any. */
#ifndef LLM42D_TOOLS_RECEIPT_VALUE_H
#define LLM42D_TOOLS_RECEIPT_VALUE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A whole decimal number, or a decimal fraction; nothing before or after it. */
bool receipt_value_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out);
bool receipt_value_f32(const char *text, float *out);
float receipt_value_float(uint32_t bits);

json_t *receipt_value_real(float value);     /* shortest digits that are this binary32, or null */
json_t *receipt_value_bits(uint32_t bits);   /* 8 hexadecimal digits */
json_t *receipt_value_whole(uint64_t value); /* an integer, or decimal digits beyond 2^63 - 1 */
json_t *receipt_value_hex(const uint8_t *bytes, size_t n_bytes);
json_t *receipt_value_text(const void *bytes, size_t n_bytes); /* not UTF-8: U+FFFD */

#endif
