/* sim - a GPU's blocks on the host: fibres for threads, shared memory, barriers, copies and tensor
 * cores, so that the text of a kernel runs where there is no GPU, and its bits can be held.
 *
 * Owns:   the fibres' stacks and the launch that is running; global memory is the caller's, and an
 *         address of it is a pointer.
 * Thread: one, that of the first launch.
 * Fails:  it ends the program, and says what went wrong, in which block, and who waits for what.
 *
 * A kernel's file is compiled as C++ with tests/sim/ptx/sm90.cuh in the place of ptx/sm90.cuh, and
 * is found by its name.  What is modelled:
 *   order      any warp of any block that runs may be next, by the seed: a few are preferred for a
 *              while, so that some run far ahead of others, and a lane is left behind by its warp;
 *              blocks start in order, as many at once as have places
 *   copies     land late, in any order; until then their place holds 0xff, and a copy that nobody
 *              waited for at the end of its block is a fault
 *   products   of warpgroups run late, in order: until waited for, accumulators hold NaN, and
 *              operands are read when it runs
 *   shared     starts as 0xff; an address beyond what the launch asked for is a fault, and one
 *              beyond an array of global memory is AddressSanitizer's
 *   barriers   a phase that gets too many arrivals, one that was not made: faults; nobody who can
 *              go on: told
 *   clusters   their blocks run together and reach each other's shared memory
 *   overlap    the kernel before ends at any time, and its last writes come then
 * What is not: weak memory (a missing fence), registers, time, when the next kernel starts. */
#ifndef LLM42D_TESTS_SIM_SIM_H
#define LLM42D_TESTS_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SIM_SHARED_MAX = 227 << 10, /* dynamic, of a block */
    SIM_WORDS = 10,             /* that a lane shows its warp */
    SIM_LANES = 32,
    SIM_GROUP = 128, /* threads of a warpgroup */
};

struct sim_dim {
    uint32_t x, y, z;
};

struct sim_launch {
    const char *name;
    uint32_t grid[3], block[3], cluster; /* zero means 1 */
    uint32_t shared_bytes;
    uint32_t n_units; /* multiprocessors: how many blocks run at once follows from it */
    void **params;
    void (*previous)(void); /* what the kernel before has still to do, or NULL: it is done */
};

/* A tensor map of two dimensions of 16-bit values, rows of boxes swizzled by 128 bytes. */
struct sim_map {
    const unsigned char *at;
    uint64_t n_columns, n_rows, row_bytes;
    uint32_t box_columns, box_rows;
};

/* The same seed, the same order of everything. */
void sim_seed(uint64_t seed);

/* What LLM42_SIM_SEED says, else 1; and says so. */
uint64_t sim_seed_asked(void);

bool sim_has(const char *name);

/* Runs all blocks to their end. */
void sim_run(const struct sim_launch *l);

/* ---- what tests/sim/ptx/sm90.cuh is made of; a fibre is running ---- */

extern struct sim_dim threadIdx, blockIdx, blockDim, gridDim;

struct sim_kernel {
    const char *name;
    void (*call)(void **params);
    struct sim_kernel *next;
};

void sim_add(struct sim_kernel *k);

uint32_t sim_random(void);

/* Others may run now, sometimes; must, for whoever looks again and again. */
void sim_pause(void);
void sim_spin(void);

uint32_t sim_shared(const void *p);
void *sim_at(uint32_t address, uint32_t n_bytes); /* of this block, or of a peer */
uint32_t sim_peer(uint32_t address, uint32_t rank);
uint32_t sim_rank(void);

void sim_barrier_init(uint32_t barrier, uint32_t n_arrivals);
void sim_barrier_arrive(uint32_t barrier);
void sim_barrier_expect(uint32_t barrier, uint32_t n_bytes);
void sim_barrier_wait(uint32_t barrier, uint32_t parity);

void sim_syncthreads(void);
uint32_t sim_syncthreads_count(bool of);
void sim_named_sync(uint32_t id, uint32_t n_threads);
void sim_named_arrive(uint32_t id, uint32_t n_threads);
void sim_cluster_arrive(void);
void sim_cluster_wait(void);

/* The lanes of `mask` meet, each with n words; all see all: [lane][SIM_WORDS]. */
const uint32_t (*sim_meet(uint32_t mask, const void *words, uint32_t n))[SIM_WORDS];
void sim_load_matrices(uint32_t r[4], uint32_t address, bool across);
void sim_store_matrices(uint32_t address, const uint32_t v[4]);
void sim_mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1);

/* By the copy engine, counted at a barrier; by this thread; `from` NULL: zeros. */
void sim_copy(uint32_t to, const void *from, uint32_t n_bytes, uint32_t barrier);
void sim_copy_tile(uint32_t to, const struct sim_map *map, uint32_t column, uint32_t row,
                   uint32_t barrier);
void sim_send(uint32_t to, const void *from, uint32_t n_bytes, uint32_t barrier);
void sim_copy_own(uint32_t to, const void *from);
void sim_arrive_copied(uint32_t barrier);
void sim_wait_copied(void);

enum sim_b { SIM_ALONG, SIM_ACROSS, SIM_PLAIN }; /* rows of b along K, across K, no swizzle */

/* d += a b, 64 x n; a by registers, or NULL: by its descriptor. */
void sim_wgmma(float *d, const uint32_t *a, uint64_t da, uint64_t db, bool more, uint32_t n,
               enum sim_b b);
void sim_wgmma_commit(void);
void sim_wgmma_wait(uint32_t n);

float sim_ex2(float x);

/* The kernel before is done. */
void sim_wait_previous(void);

uint64_t sim_now(void);

#ifdef __cplusplus
}
#endif

#endif
