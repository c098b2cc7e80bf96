/* sm90_sample - what the kernels that choose tokens and their launches agree on. */
#ifndef LLM42D_PTX_SM90_SAMPLE_H
#define LLM42D_PTX_SM90_SAMPLE_H

#define SM90_SAMPLE_THREADS 1024
#define SM90_SAMPLE_CHUNK 128 /* logits, of SPEC 2.10 */
#define SM90_SAMPLE_GROUP 8   /* chunks that a warp takes at once */

/* Ids that a block puts in order at once: a top_k up to it weighs no other. */
#define SM90_SAMPLE_LIST_MAX 1024

/* Dynamic shared memory: a group a warp. */
#define SM90_SAMPLE_BYTES \
    (SM90_SAMPLE_THREADS / 32 * SM90_SAMPLE_GROUP * SM90_SAMPLE_CHUNK * sizeof(float))

/* By a cluster a row: its blocks, at most; ids that a block picks out; and the dynamic shared
 * memory of a block, for what the blocks show each other, its share of the chunks and the table of
 * all, and its most. */
#define SM90_SPREAD_RANKS 16
#define SM90_SPREAD_PICKED 8192
#define SM90_SPREAD_SHOWN 25600
#define SM90_SPREAD_BYTES(share, n_ranks)                                         \
    (SM90_SPREAD_SHOWN + SM90_SPREAD_PICKED * 2 + (share)*SM90_SAMPLE_CHUNK * 8 + \
     (share) * (n_ranks)*8)
#define SM90_SPREAD_BYTES_MAX (213u << 10)

#endif
