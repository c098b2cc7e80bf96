/* sm90_attn - what the kernels of attention, of the KV write and their launch half share.  For
 * NVRTC and the host compiler.
 *
 * The pages of one layer: [n_pages][n_kv_heads][keys, values][64 positions][head_dim], where a
 * position's values stand as wgmma and ldmatrix read them without conflicts: atoms of eight
 * positions x 64 values, 128 bytes a position, the 16-byte chunk c of position t at c ^ (t % 8).
 * So the keys, and the values, of one page and head are one run of bytes. */
#ifndef LLM42D_PTX_SM90_ATTN_H
#define LLM42D_PTX_SM90_ATTN_H

enum {
    SM90_ATTN_PAGE = 64,       /* positions */
    SM90_ATTN_BLOCK = 128,     /* keys between two looks at the maximum, SPEC 2.7 */
    SM90_ATTN_FEW_HEADS = 8,   /* query heads to a block of sm90_attn_bf16_few* */
    SM90_ATTN_SPREAD_KEYS = 512,   /* the only splits of sm90_attn_bf16_spread*, pair* */
    SM90_ATTN_PACKET = 16,     /* bytes: what a split leaves of two columns of a head */
    SM90_ATTN_ROWS = 64,       /* query rows (position x head) to a warpgroup of many */
};

/* Shared memory of sm90_attn_bf16_spread* and pair*, of so many columns of values to a block. */
#define SM90_ATTN_SPREAD_BYTES(head_dim, columns)                                            \
    (2048 * (columns) +                                                                      \
     SM90_ATTN_FEW_HEADS *                                                                   \
         (SM90_ATTN_SPREAD_KEYS * 4 +                                                        \
          ((head_dim) == (columns) ? 64 : 32 * (head_dim) / (columns)) +                     \
          (SM90_ATTN_SPREAD_KEYS + 8) * 2))

/* Where value i of `slot` is within the keys, or the values, of a page and head; in values. */
#define SM90_ATTN_AT(slot, i, head_dim)                                          \
    ((slot) / 8 * 8 * (head_dim) + (i) / 64 * 512 + (slot) % 8 * 64 +            \
     ((i) % 64 / 8 ^ (slot) % 8) * 8 + (i) % 8)

/* Where they start: value 0 for keys, 1 for values; in values. */
#define SM90_ATTN_PAGE_AT(page, kv_head, value, n_kv_heads, head_dim)           \
    ((((unsigned long long)(page) * (n_kv_heads) + (kv_head)) * 2 + (value)) *  \
     (SM90_ATTN_PAGE * (head_dim)))

/* Rows of a step that go through the keys together: adjacent, of one sequence. */
struct sm90_attn_tile {
    unsigned row, n_rows; /* 0 rows: nothing to do */
    unsigned seq;         /* line of the page table */
    unsigned end;         /* position of the last row, plus one */
    unsigned seen;        /* position of the first row: all rows see the keys up to it */
    unsigned old;         /* positions below are of steps before: what they hold stands */
};

struct sm90_attn {
    unsigned long long pages;     /* of the layer, as above */
    unsigned long long q;         /* bf16 [n_rows][q_stride]: rotated queries first in a row */
    unsigned long long out;       /* bf16 [n_rows][n_heads head_dim] */
    unsigned long long flagged;   /* u8 [n_rows], set to 1 as SPEC 2.7.5 says, else left */
    unsigned long long positions; /* of row i at word i * position_stride */
    unsigned long long table;     /* u32 [n_seqs][n_seq_pages] */
    unsigned long long tiles;     /* struct sm90_attn_tile [gridDim.y] */
    unsigned long long parts;     /* f32, of splits that are folded later */
    unsigned long long packets;   /* of splits that are folded at once, zero before and after */
    unsigned long long counters;  /* u32 [tiles x KV heads x chunks], zero before and after */
    unsigned q_stride, position_stride;
    unsigned n_heads, n_kv_heads, n_shared; /* n_shared query heads to a KV head */
    unsigned n_seq_pages;
    unsigned split_keys; /* SPEC 2.7 */
    unsigned n_splits;   /* at least as many as the longest tile has; 1: a block has them all */
    unsigned block_keys; /* of sm90_attn_bf16_few*, long*: keys of a row to a block, some splits */
    unsigned together;   /* 1: all blocks run at once, and those of a tile share its fold */
    unsigned n_tiles;    /* of sm90_attn_bf16_prompt*, turns*: gridDim.y of the others */
    unsigned early;      /* 1: at most one block a multiprocessor: the next kernel may start */
    float c;
};

#endif
