/* stub - a CUDA driver and an NVRTC in host memory that compute nothing: what they are told to be
 * and to fail at, and what they saw.  They keep what they give out, judge what they are asked, and
 * never touch memory of the GPU, so a step costs microseconds.  For cuda_stub_test and, by way of
 * the environment, for the daemon.
 *
 *   STUB_CUDA="key=value ..."     devices, major, minor, version, free (bytes);
 *                                 fail=NAME:N:CODE, the N-th call of NAME (* is any) gives CODE;
 *                                 hang=NAME:N:MS, it sleeps first
 *   STUB_NVRTC="key=value ..."    major; fail as above */
#ifndef LLM42D_TESTS_STUB_H
#define LLM42D_TESTS_STUB_H

#include <stdint.h>

#include "ptx/sm90_attn.h"
#include "ptx/sm90_gemm.h"

enum { STUB_NAME_BYTES = 64, STUB_TEXT_BYTES = 160, STUB_COPIES = 8 };

struct stub_rule {
    char name[STUB_NAME_BYTES]; /* of a call; "*" counts them all */
    uint32_t at;                /* that one, from 1; 0: never */
    int value;                  /* the code it gives, or for how many ms it sleeps */
};

struct stub {
    /* What it is; for NVRTC `major` and `fail` alone. */
    int n_devices, major, minor, version;
    uint64_t free_bytes;
    struct stub_rule fail, hang;
    int n_units; /* multiprocessors */
    int cluster; /* blocks of the largest cluster that finds a place */
    int mps;     /* kernels of other processes run beside ours */

    /* What it saw. */
    uint32_t n_calls;
    uint32_t n_live;                /* things given out and not given back */
    uint32_t n_launches, n_graphs;  /* kernels, those within a graph too; graphs launched */
    uint32_t n_after;               /* calls after the device was lost, but for giving back */
    uint32_t n_wrong;               /* calls that no driver would take.. */
    char wrong[STUB_TEXT_BYTES];    /* ..the first of them */
    char failed[STUB_NAME_BYTES];   /* the call that `fail` struck */
    uint32_t n_embedded;            /* rows that the embedding was launched for, of late */
    uint32_t n_sampling;            /* blocks of the choice of tokens, of late.. */
    char sampled[STUB_NAME_BYTES];  /* ..and its kernel */
    uint32_t n_unfilled;            /* allocations that were not filled with 0xff, whole */
    uint64_t n_bytes, n_bytes_most; /* of the GPU's memory */
    uint32_t n_copies;              /* to the GPU; the last of them, number i at i % STUB_COPIES */
    struct {
        uint64_t to, n_bytes;
    } copies[STUB_COPIES];
    uint64_t cleared, cleared_bytes; /* by bytes, of late */
    uint32_t n_turned;               /* products that rotate and store.. */
    uint32_t turned_next;            /* ..and enum sm90_gemm_next of the last */
    struct {
        char name[STUB_NAME_BYTES];
        uint32_t grid[3];
        struct sm90_attn a;
    } attended; /* attention's launch of late */
};

/* As they are after being loaded, but for what was not given back. */
typedef void stub_reset(void);

#endif
