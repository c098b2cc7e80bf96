/* sim_impl - what the files of the simulator share: sim.c (who runs, launches), sim_shared.c (shared
 * memory, barriers, warps) and sim_async.c (copies and products of warpgroups).  For them alone. */
#ifndef LLM42D_TESTS_SIM_SIM_IMPL_H
#define LLM42D_TESTS_SIM_SIM_IMPL_H

#include <link.h>
#include <stddef.h>

#include "runtime/mma.h"
#include "tests/sim/fibre.h"
#include "tests/sim/sim.h"

enum {
    STACK_BYTES = 128 << 10,
    WARPS_MAX = 32,
    GROUPS_MAX = 8,
    NAMED_MAX = 16,
    BARRIERS_MAX = 255,
    CLUSTER_MAX = 16,
    WINDOW_MAX = 1 << 18, /* what a descriptor of a matrix reaches */
    UNIT_BYTES = 228 << 10,
    UNIT_THREADS = 2048,
    BLOCK_BYTES = 1 << 10, /* that each block takes besides */
    MARKS = 32,            /* groups of products that a thread may have committed and not awaited */
    POISON = 0xff,
    PEER_SHIFT = 24, /* of an address, above it the rank and one */
    SPINS_MAX = 1 << 20,
};

/* Whoever comes waits for the turn to end, which the last one does. */
struct meet {
    uint32_t n, of;
    uint64_t turn;
};

struct barrier {
    uint32_t count, pending;
    int64_t n_bytes; /* expected and not there; below 0: they came first */
    uint64_t phase;
};

enum wait { NOTHING, MEETING, PHASE, COPIES, PRODUCTS, PREVIOUS };

struct thread {
    struct fibre fibre;
    struct block *block;
    uint32_t id, n_copies, n_asked; /* copies of its own: under way, so far */
    bool done;
    enum wait wait;
    const char *what; /* it waits for, of number `which` */
    uint32_t which;
    const struct meet *meet;
    const struct barrier *barrier;
    uint64_t until; /* the meeting's turn, the parity, the number of products */
    uint64_t n_products, n_commits, marks[MARKS];
    uint64_t cluster_turn;
};

struct warp {
    struct meet meets[SIM_LANES + 1];        /* of parts by their first lane, and of all lanes */
    uint32_t words[4][SIM_LANES][SIM_WORDS]; /* of parts, then of all; each in turns */
    uint32_t rank;                           /* of ready warps the highest runs */
    uint64_t stuck;                          /* when none of its lanes could run */
    uint32_t late;                           /* the lane that others leave behind; or none */
    bool spun;
};

/* A product of a warpgroup, as its threads asked for it. */
struct product {
    float *d[SIM_GROUP];
    const uint32_t *a[SIM_GROUP];
    uint64_t da[SIM_GROUP], db[SIM_GROUP];
    bool more[SIM_GROUP];
    uint32_t n;
    enum sim_b b;
    float *sums; /* [SIM_GROUP][n / 2] of d, whose memory holds NaN; NULL: one before has them */
    struct product *next;
};

struct group {
    struct meet meet;
    struct product *making, *first;
    uint64_t n_done;
};

struct block {
    struct sim_dim at;
    struct cluster *cluster;
    uint32_t rank, n_live, n_copies;
    unsigned char *image; /* of the window, while another block has it */
    struct thread *threads;
    struct warp warps[WARPS_MAX];
    struct group groups[GROUPS_MAX];
    struct meet all, named[NAMED_MAX];
    uint32_t n_counted, counted[2];
    struct barrier barriers[BARRIERS_MAX + 1];
    uint32_t n_barriers;
    uint8_t barrier_at[WINDOW_MAX / 8];
};

struct cluster {
    struct block *blocks[CLUSTER_MAX];
    struct meet meet;
    uint32_t n_live;
};

/* Bytes on their way, or an arrival that comes after its thread's copies before it. */
struct copy {
    struct block *block;  /* whose memory and barrier */
    struct thread *owner; /* of copies by threads, else NULL */
    uint32_t to, n_bytes, barrier;
    uint32_t number; /* of its owner's */
    bool arrives, zero;
    const void *from;
    struct sim_map map;     /* of a tile, else of no columns */
    uint32_t column, row;   /* of a tile */
    unsigned char bytes[8]; /* of sends */
};

struct sim_state {
    uint64_t random;
    struct sim_kernel *kernels;
    const struct sim_launch *launch;
    const struct sim_kernel *kernel;
    uint32_t n_threads, cluster, n_blocks, n_places, n_started;
    unsigned char *window; /* the thread's storage: all of shared memory */
    uint32_t window_bytes, dynamic;
    struct block *has_window;
    struct thread *thread; /* that runs */
    struct block **running;
    uint32_t n_running;
    struct copy *copies;
    uint32_t n_copies, copies_room;
    uint32_t copy_rate, product_rate; /* of 256: how often something lands before it must */
    uint32_t previous_rate;           /* of 65536: the same of the kernel before */
    bool previous;                    /* it is not done */
    uint64_t clock;                   /* what sm90_now() says */
    uint32_t n_spins;
    uint64_t now; /* counts what may let somebody go on */
};

extern struct sim_state sim;
extern _Thread_local unsigned char sim_dynamic[SIM_SHARED_MAX]; /* the storage that is the window */

/* Says what went wrong and who waits for what; ends the program. */
_Noreturn void sim_fail(const char *what, uint32_t which);
void *sim_take(size_t n_bytes);
/* The thread that runs stops until `ready` says otherwise. */
void sim_wait_for(enum wait wait, const char *what, uint32_t which);
/* True for the last to come to a meeting, who lets the others go. */
bool sim_come(struct meet *m, uint32_t of, const char *what, uint32_t which);
void sim_let_go(struct meet *m);
/* Makes the shared memory of the window that of the block. */
void sim_give_window(struct block *b);
int sim_find_window(struct dl_phdr_info *info, size_t size, void *p);
/* Of a block: n bytes at an address within what the launch asked for. */
unsigned char *sim_memory(struct block *b, uint32_t address, uint32_t n_bytes);
/* Whose memory an address means, which is then an address of that block. */
struct block *sim_owner(uint32_t *address);
struct barrier *sim_barrier_of(struct block *b, uint32_t address);
/* Ends the phase of a barrier that has all it waits for. */
void sim_settle(struct barrier *b);
void sim_arrive(struct block *b, uint32_t address);
void sim_halves(uint16_t *to, uint32_t word);
/* One of the copies that may land, lands. */
void sim_land(void);
/* c[n_rows][n] + a b, rows of a beside rows of b, by one step of the tensor core (SPEC 2.2); n_rows
 * and n are multiples of 8, at most 64 and 256. */
void sim_step(float *c, const uint16_t (*a)[MMA_K], uint32_t n_rows, const uint16_t (*b)[MMA_K],
              uint32_t n);
/* The oldest product of a warpgroup is done. */
void sim_multiply(struct block *b, struct group *g);

#endif
