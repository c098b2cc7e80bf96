/* cpu_attn - attention of the CPU twin over paged keys and values (SPEC 2.7).
 *
 * Owns:   its scratch, from open to close; the pages are the caller's.
 * Thread: one; it spreads over its pool.
 * Fails:  -ENOMEM  with the bytes
 *
 * Query rows of one KV head and one sequence, up to eight, go through the keys together.  The
 * splits of a row are independent until they are folded: where rows are few, splits are shared
 * out too. */
#ifndef LLM42D_RUNTIME_CPU_ATTN_H
#define LLM42D_RUNTIME_CPU_ATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cpu_attn;
struct cpu_code;
struct cpu_pool;
struct device_limits;
struct device_row;
struct err;
struct model;

int cpu_attn_open(const struct model *m, const struct device_limits *limits, struct cpu_pool *pool,
                  const struct cpu_code *code, struct cpu_attn **out_attn, struct err *e);
void cpu_attn_close(struct cpu_attn *a);
uint64_t cpu_attn_bytes(const struct cpu_attn *a);

/* Words of the keys, and of the values, of one page and KV head.
 *
 *   keys    [64 / 8][head_dim / 2][8]  pairs of one key's values, eight keys adjacent
 *   values  [64 / 2][head_dim]         pairs of two adjacent keys' values
 *
 * In both, what a step of scores or of sums wants of eight outputs is 32 adjacent bytes. */
uint32_t cpu_attn_page_words(uint32_t head_dim);

void cpu_attn_store(uint32_t *keys, uint32_t *values, uint32_t head_dim, uint32_t slot,
                    const uint16_t *k, const uint16_t *v);
void cpu_attn_fetch(const uint32_t *keys, const uint32_t *values, uint32_t head_dim, uint32_t slot,
                    uint16_t *out_k, uint16_t *out_v);

/* Rows of the steps to come, as in struct device_batch; both arrays must stay. */
void cpu_attn_batch(struct cpu_attn *a, const struct device_row *rows, uint32_t n_rows,
                    const uint32_t *pages);

/* keys, values: of one layer, [n_pages][n_kv_heads][page words].  qkv: rotated queries first in
 * each row.  flagged[row] is set to 1 where SPEC 2.7.5 says so, else left. */
void cpu_attn_run(struct cpu_attn *a, const uint32_t *keys, const uint32_t *values,
                  const uint16_t *qkv, uint32_t qkv_stride, uint32_t split_keys, uint16_t *out,
                  uint8_t *flagged);

#endif
