/* cuda_attn - attention on the GPU over paged keys and values (SPEC 2.7): which rows go through
 * the keys together, the choice of kernels, their launch.
 *
 * Owns:   nothing but a table of entries; pages, buffers and work memory are the caller's.
 * Thread: as the driver's.
 * Fails:  -EINVAL   a kernel is missing
 *         -ENOTSUP  heads of other than 64 or 128 values, or more than 64 to a KV head
 *         -EIO      the device is lost
 *
 * A step's rows are planned once, by the host, and the plan's tiles uploaded with the batch; then
 * every layer runs the same launches.  Whether splits are spread over blocks or folded in one
 * changes speed alone, never bits. */
#ifndef LLM42D_RUNTIME_CUDA_ATTN_H
#define LLM42D_RUNTIME_CUDA_ATTN_H

#include <stdbool.h>
#include <stdint.h>

#include "ptx/sm90_attn.h"

struct cuda_attn;
struct cuda_driver;
struct device_row;
struct err;

/* Tiles by kernel: one row each; up to 64 query rows; up to 128. */
enum cuda_attn_kind { CUDA_ATTN_FEW, CUDA_ATTN_SOME, CUDA_ATTN_MANY, CUDA_ATTN_KINDS };

struct cuda_attn_shape {
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t n_seq_pages; /* entries of one sequence's page table */
};

struct cuda_attn_plan {
    uint32_t n_tiles[CUDA_ATTN_KINDS]; /* one kind after the other in the array of tiles */
    uint32_t end_max;                  /* of tiles of one row: the longest, in keys */
    uint64_t n_keys;                   /* of them all */
    /* The same of the other kinds, rounded up to powers of two. */
    uint32_t run_end_max[CUDA_ATTN_KINDS];
    uint64_t run_n_keys[CUDA_ATTN_KINDS];
};

/* Bytes of one layer's pages, and of the keys and values of one page. */
uint64_t cuda_attn_page_bytes(const struct cuda_attn_shape *s);

/* Byte of a value within a layer's pages, for tests. */
uint64_t cuda_attn_offset(const struct cuda_attn_shape *s, uint32_t page, uint32_t kv_head,
                          bool is_value, uint32_t slot, uint32_t i);

int cuda_attn_open(struct cuda_driver *d, const struct cuda_attn_shape *s,
                   struct cuda_attn **out_attn, struct err *e);
void cuda_attn_close(struct cuda_attn *a);

/* Work memory, which the caller zeroes once; launches leave zero what must be. */
uint64_t cuda_attn_work_bytes(const struct cuda_attn *a);

/* Pure.  Tiles of a step, at most n_rows, the longest of a kind about first.  Rows whose seq is
 * UINT32_MAX have none. */
void cuda_attn_plan(const struct cuda_attn *a, const struct device_row *rows, uint32_t n_rows,
                    struct sm90_attn_tile *out_tiles, struct cuda_attn_plan *out_plan);

struct cuda_attn_args {
    uint64_t d_pages;     /* of the layer, [n_pages] of cuda_attn_page_bytes, aligned to 16 bytes */
    uint64_t d_q;         /* bf16 [n_rows][q_stride]: rotated queries first in a row, so aligned */
    uint64_t d_out;       /* bf16 [n_rows][n_heads head_dim] */
    uint64_t d_flagged;   /* u8 [n_rows] */
    uint64_t d_positions; /* u32, of row i at word i * position_stride */
    uint64_t d_table;     /* u32 [n_seqs][n_seq_pages] */
    uint64_t d_tiles;     /* as planned; tiles of no rows may fill it up */
    uint64_t d_work;
    uint32_t q_stride; /* in values, a multiple of 8 */
    uint32_t position_stride;
    uint32_t split_keys;
    bool overlap; /* start beside the kernel before, which need not know: we wait for it */
};

/* Queued: one launch a kind.  In a graph, plan is what the graph is made for: as many tiles of
 * each kind as it will ever have, end_max as far as a sequence may reach. */
int cuda_attn_run(struct cuda_attn *a, const struct cuda_attn_plan *plan,
                  const struct cuda_attn_args *args, struct err *e);

#endif
