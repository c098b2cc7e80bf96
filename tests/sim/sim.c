#include "tests/sim/sim.h"

#include <link.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/ex2.h"
#include "runtime/mma.h"
#include "tests/sim/fibre.h"

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

struct sim_dim threadIdx, blockIdx, blockDim, gridDim;
_Thread_local _Alignas(1024) unsigned char sim_dynamic[SIM_SHARED_MAX];

static struct {
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
} sim = {.now = 1};

/* ---- what went wrong ---- */

static void say_block(const struct block *b) {
    printf("%s, block (%u, %u, %u)", sim.launch->name, b->at.x, b->at.y, b->at.z);
}

static void say_waits(const struct block *b) {
    for (uint32_t t = 0, end; t < sim.n_threads; t = end) {
        const struct thread *x = &b->threads[t];

        for (end = t + 1; end < sim.n_threads && b->threads[end].done == x->done &&
                          b->threads[end].wait == x->wait && b->threads[end].what == x->what &&
                          b->threads[end].which == x->which && b->threads[end].until == x->until;
             end++) {
        }
        say_block(b);
        printf(", threads %u to %u: ", t, end - 1);
        if (x->done)
            printf("done\n");
        else if (x->wait == NOTHING)
            printf("may run\n");
        else if (x->wait == PHASE)
            printf("wait for the %s at %u, phase %llu, where %u of %u arrivals and %lld bytes are "
                   "missing\n",
                   x->what, x->which, (unsigned long long)x->barrier->phase, x->barrier->pending,
                   x->barrier->count, (long long)x->barrier->n_bytes);
        else if (x->wait == MEETING)
            printf("wait at %s %u, %u of %u there\n", x->what, x->which, x->meet->n, x->meet->of);
        else
            printf("wait for %s\n", x->what);
    }
}

_Noreturn static void fail(const char *what, uint32_t which) {
    if (sim.thread) {
        say_block(sim.thread->block);
        printf(", thread %u: ", sim.thread->id);
    } else {
        printf("%s: ", sim.launch->name);
    }
    printf("%s %u\n", what, which);
    for (uint32_t i = 0; i < sim.n_running && i < 4; i++) say_waits(sim.running[i]);
    fflush(stdout);
    abort();
}

static void *take(size_t n_bytes) {
    void *p = calloc(1, n_bytes);

    if (!p) {
        printf("no memory: %zu bytes\n", n_bytes);
        exit(1);
    }
    return p;
}

/* ---- chance ---- */

void sim_seed(uint64_t seed) {
    sim.random = seed * 0x9e3779b97f4a7c15ull + 1;
}

uint32_t sim_random(void) {
    uint64_t x;

    sim.random += 0x9e3779b97f4a7c15ull;
    x = sim.random;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return (uint32_t)(x >> 32);
}

/* ---- who runs ---- */

static bool ready(const struct thread *t) {
    const struct group *g = &t->block->groups[t->id / SIM_GROUP % GROUPS_MAX];

    switch (t->wait) {
    case MEETING:
        return t->meet->turn > t->until;
    case PHASE:
        return (t->barrier->phase & 1) != t->until;
    case COPIES:
        return t->n_copies == 0;
    case PRODUCTS:
        return g->n_done >= t->until;
    case PREVIOUS:
        return !sim.previous;
    case NOTHING:
        break;
    }
    return true;
}

static void wait_for(enum wait wait, const char *what, uint32_t which) {
    struct thread *t = sim.thread;

    t->wait = wait;
    t->what = what;
    t->which = which;
    if (!ready(t)) fibre_leave(&t->fibre);
    t->wait = NOTHING;
}

void sim_pause(void) {
    if (sim_random() % 8 == 0) fibre_leave(&sim.thread->fibre);
}

void sim_spin(void) {
    struct thread *t = sim.thread;

    t->block->warps[t->id / SIM_LANES].spun = true;
    fibre_leave(&t->fibre);
}

/* True for the last one, who does what is to be done and then lets all go. */
static bool come(struct meet *m, uint32_t of, const char *what, uint32_t which) {
    struct thread *t = sim.thread;

    if (m->n && m->of != of) fail(what, which);
    m->of = of;
    if (++m->n == of) return true;
    t->meet = m;
    t->until = m->turn;
    wait_for(MEETING, what, which);
    return false;
}

static void let_go(struct meet *m) {
    m->n = 0;
    m->turn++;
    sim.now++;
}

/* ---- shared memory ---- */

/* Parts of the window that are in use, and the dynamic memory that was not asked for. */
static uint32_t part(uint32_t i, uint32_t *out_at) {
    const uint32_t asked = sim.dynamic + sim.launch->shared_bytes;
    const uint32_t end = sim.dynamic + SIM_SHARED_MAX;

    *out_at = i ? end : 0;
    return i ? sim.window_bytes - end : asked;
}

static void give_window(struct block *b) {
    uint32_t at, n;

    if (sim.has_window == b) return;
    for (uint32_t i = 0; i < 2; i++) {
        n = part(i, &at);
        if (sim.has_window) memcpy(sim.has_window->image + at, sim.window + at, n);
        memcpy(sim.window + at, b->image + at, n);
    }
    sim.has_window = b;
    blockIdx = b->at;
}

static int find_window(struct dl_phdr_info *info, size_t size, void *p) {
    (void)size, (void)p;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const unsigned char *at = info->dlpi_tls_data;
        const size_t n = info->dlpi_phdr[i].p_memsz;

        if (info->dlpi_phdr[i].p_type != PT_TLS || !at) continue;
        if (sim_dynamic < at || sim_dynamic >= at + n) continue;
        sim.window = info->dlpi_tls_data;
        sim.window_bytes = (uint32_t)n;
        sim.dynamic = (uint32_t)(sim_dynamic - at);
    }
    return 0;
}

static unsigned char *memory(struct block *b, uint32_t address, uint32_t n_bytes) {
    if (address + n_bytes > sim.window_bytes ||
        (address + n_bytes > sim.dynamic + sim.launch->shared_bytes &&
         address < sim.dynamic + SIM_SHARED_MAX))
        fail("beyond shared memory, at", address);
    return (b == sim.has_window ? sim.window : b->image) + address;
}

/* Whose an address is; what is left of it. */
static struct block *owner(uint32_t *address) {
    struct block *b = sim.thread->block;
    const uint32_t rank = *address >> PEER_SHIFT;

    *address &= (1u << PEER_SHIFT) - 1;
    if (rank == 0) return b;
    if (b->cluster->blocks[rank - 1]->n_live == 0) fail("a block that has ended, rank", rank - 1);
    return b->cluster->blocks[rank - 1];
}

uint32_t sim_shared(const void *p) {
    const unsigned char *at = p;

    if (at < sim.window || at > sim.window + sim.window_bytes) fail("not shared memory", 0);
    return (uint32_t)(at - sim.window);
}

void *sim_at(uint32_t address, uint32_t n_bytes) {
    struct block *b = owner(&address);

    if (address % (n_bytes > 16 ? 16 : n_bytes)) fail("not aligned, shared memory at", address);
    return memory(b, address, n_bytes);
}

uint32_t sim_peer(uint32_t address, uint32_t rank) {
    if (rank >= sim.cluster) fail("no such rank:", rank);
    return address | (rank + 1) << PEER_SHIFT;
}

uint32_t sim_rank(void) {
    return sim.thread->block->rank;
}

/* ---- barriers ---- */

static struct barrier *barrier_of(struct block *b, uint32_t address) {
    memory(b, address, 8);
    if (!b->barrier_at[address / 8]) fail("a barrier that was not made, at", address);
    return &b->barriers[b->barrier_at[address / 8]];
}

static void settle(struct barrier *b) {
    if (b->pending || b->n_bytes) return;
    b->pending = b->count;
    b->phase++;
    sim.now++;
}

static void arrive(struct block *b, uint32_t address) {
    struct barrier *x = barrier_of(b, address);

    if (x->pending == 0) fail("one arrival too many at the barrier at", address);
    x->pending--;
    settle(x);
}

void sim_barrier_init(uint32_t barrier, uint32_t n_arrivals) {
    struct block *b = sim.thread->block;

    memory(b, barrier, 8);
    if (b->barrier_at[barrier / 8]) fail("made twice, the barrier at", barrier);
    if (barrier % 8 || b->n_barriers == BARRIERS_MAX) fail("no barrier, at", barrier);
    b->barrier_at[barrier / 8] = (uint8_t)++b->n_barriers;
    b->barriers[b->n_barriers] = (struct barrier){.count = n_arrivals, .pending = n_arrivals};
}

void sim_barrier_arrive(uint32_t barrier) {
    struct block *b = owner(&barrier);

    arrive(b, barrier);
    sim_pause();
}

void sim_barrier_expect(uint32_t barrier, uint32_t n_bytes) {
    struct block *b = owner(&barrier);

    barrier_of(b, barrier)->n_bytes += n_bytes;
    arrive(b, barrier);
    sim_pause();
}

void sim_barrier_wait(uint32_t barrier, uint32_t parity) {
    struct block *b = owner(&barrier);
    struct thread *t = sim.thread;

    t->barrier = barrier_of(b, barrier);
    t->until = parity;
    wait_for(PHASE, "barrier", barrier);
}

void sim_syncthreads(void) {
    struct block *b = sim.thread->block;

    b->all.of = b->n_live; /* those who ended are not missed */
    if (come(&b->all, b->n_live, "all threads' barrier", 0)) let_go(&b->all);
}

uint32_t sim_syncthreads_count(bool of) {
    struct block *b = sim.thread->block;
    const uint32_t turn = b->all.turn & 1;

    if (b->all.n == 0) b->counted[turn] = 0;
    b->counted[turn] += of;
    sim_syncthreads();
    return b->counted[turn];
}

void sim_named_sync(uint32_t id, uint32_t n_threads) {
    struct meet *m = &sim.thread->block->named[id];

    if (come(m, n_threads, "the named barrier", id)) let_go(m);
}

void sim_named_arrive(uint32_t id, uint32_t n_threads) {
    struct meet *m = &sim.thread->block->named[id];

    if (m->n && m->of != n_threads) fail("other threads at the named barrier", id);
    m->of = n_threads;
    if (++m->n == n_threads) let_go(m);
    sim_pause();
}

void sim_cluster_arrive(void) {
    struct meet *m = &sim.thread->block->cluster->meet;

    sim.thread->cluster_turn = m->turn;
    m->of = sim.cluster * sim.n_threads;
    if (++m->n == m->of) let_go(m);
    sim_pause();
}

void sim_cluster_wait(void) {
    struct thread *t = sim.thread;

    t->meet = &t->block->cluster->meet;
    t->until = t->cluster_turn;
    wait_for(MEETING, "the cluster's barrier", 0);
}

/* ---- warps ---- */

static bool meet_warp(uint32_t mask, const void *words, uint32_t n, struct warp **out_warp,
                      uint32_t *out_turn, struct meet **out_meet) {
    struct thread *t = sim.thread;
    struct warp *w = &t->block->warps[t->id / SIM_LANES];

    const bool all = mask == UINT32_MAX;
    struct meet *m = &w->meets[all ? SIM_LANES : __builtin_ctz(mask)];

    if (!(mask >> t->id % SIM_LANES & 1)) fail("a lane that is not of those who meet, mask", mask);
    *out_warp = w;
    *out_turn = (all ? 2 : 0) + (uint32_t)(m->turn & 1);
    *out_meet = m;
    if (n) memcpy(w->words[*out_turn][t->id % SIM_LANES], words, n * 4);
    return come(m, (uint32_t)__builtin_popcount(mask), "the barrier of warp", t->id / SIM_LANES);
}

const uint32_t (*sim_meet(uint32_t mask, const void *words, uint32_t n))[SIM_WORDS] {
    struct warp *w;
    struct meet *m;
    uint32_t turn;

    if (meet_warp(mask, words, n, &w, &turn, &m)) let_go(m);
    return (const uint32_t(*)[SIM_WORDS])w->words[turn];
}

void sim_load_matrices(uint32_t r[4], uint32_t address, bool across) {
    struct thread *t = sim.thread;
    struct warp *w;
    struct meet *m;
    uint32_t turn;

    if (meet_warp(UINT32_MAX, &address, 1, &w, &turn, &m)) {
        uint16_t x[4][8][8];
        uint32_t(*words)[SIM_WORDS] = w->words[turn];

        for (uint32_t i = 0; i < 32; i++) memcpy(x[i / 8][i % 8], sim_at(words[i][0], 16), 16);
        for (uint32_t lane = 0; lane < 32; lane++)
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t row = lane / 4, k = lane % 4 * 2;
                const uint16_t low = across ? x[i][k][row] : x[i][row][k];
                const uint16_t high = across ? x[i][k + 1][row] : x[i][row][k + 1];

                words[lane][i] = low | (uint32_t)high << 16;
            }
        let_go(m);
    }
    memcpy(r, w->words[turn][t->id % SIM_LANES], 16);
}

void sim_store_matrices(uint32_t address, const uint32_t v[4]) {
    const uint32_t own[5] = {v[0], v[1], v[2], v[3], address};
    struct warp *w;
    struct meet *m;
    uint32_t turn;

    if (!meet_warp(UINT32_MAX, own, 5, &w, &turn, &m)) return;
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t i = 0; i < 4; i++) {
            char *row = sim_at(w->words[turn][i * 8 + lane / 4][4], 16);

            memcpy(row + lane % 4 * 4, &w->words[turn][lane][i], 4);
        }
    let_go(m);
}

static void halves(uint16_t *to, uint32_t word) {
    to[0] = (uint16_t)word;
    to[1] = (uint16_t)(word >> 16);
}

void sim_mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    const uint32_t words[SIM_WORDS] = {a[0], a[2], a[1], a[3], b0, b1};
    const uint32_t lane = sim.thread->id % SIM_LANES;
    const uint32_t(*all)[SIM_WORDS] = sim_meet(UINT32_MAX, words, SIM_WORDS);
    uint16_t x[2][MMA_K], y[2][MMA_K];

    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t q = 0; q < 4; q++)
            for (uint32_t k = 0; k < 2; k++) {
                halves(&x[i][k * 8 + q * 2], all[lane / 4 * 4 + q][i * 2 + k]);
                halves(&y[i][k * 8 + q * 2], all[(lane % 4 * 2 + i) * 4 + q][4 + k]);
            }
    for (uint32_t i = 0; i < 4; i++) c[i] = mma_step(c[i], x[i / 2], y[i % 2]);
}

/* ---- copies ---- */

static void put(struct copy c) {
    if (sim.n_copies == sim.copies_room) {
        sim.copies_room = sim.copies_room * 2 + 64;
        sim.copies = realloc(sim.copies, sim.copies_room * sizeof(c));
        if (!sim.copies) exit(1);
    }
    c.block->n_copies++;
    if (c.owner) c.number = c.owner->n_asked++;
    sim.copies[sim.n_copies++] = c;
}

/* Where the copy engine's swizzle of 128 bytes puts it. */
static uint32_t swizzled(uint32_t address) {
    return address ^ (address >> 3 & 0x70);
}

/* Zeros where the box is beyond the matrix. */
static void land_tile(const struct copy *c) {
    const struct sim_map *m = &c->map;

    for (uint32_t r = 0; r < m->box_rows; r++)
        for (uint32_t k = 0; k < m->box_columns; k++) {
            const uint64_t row = (uint64_t)c->row + r, column = (uint64_t)c->column + k;
            const uint32_t at = c->to + (r * m->box_columns + k) * 2;
            uint16_t v = 0;

            if (row < m->n_rows && column < m->n_columns)
                memcpy(&v, m->at + row * m->row_bytes + column * 2, 2);
            memcpy(memory(c->block, swizzled(at), 2), &v, 2);
        }
}

/* One of them, but for an arrival, which comes after its thread's copies before it. */
static void land(void) {
    uint32_t i = sim_random() % sim.n_copies;
    struct copy c;

    /* Rather another one than a search. */
    for (uint32_t j = 0; j < 8 && sim.copies[i].arrives && sim.copies[i].owner->n_copies; j++)
        i = sim_random() % sim.n_copies;
    for (uint32_t j = 0; j < sim.n_copies && sim.copies[i].arrives; j++)
        if (sim.copies[j].owner == sim.copies[i].owner &&
            sim.copies[j].number < sim.copies[i].number)
            i = j;
    c = sim.copies[i];
    sim.copies[i] = sim.copies[--sim.n_copies];
    c.block->n_copies--;
    if (c.arrives) {
        arrive(c.block, c.barrier);
        return;
    }
    if (c.map.n_columns)
        land_tile(&c);
    else if (c.zero)
        memset(memory(c.block, c.to, c.n_bytes), 0, c.n_bytes);
    else
        memcpy(memory(c.block, c.to, c.n_bytes), c.from ? c.from : c.bytes, c.n_bytes);
    if (c.owner) {
        if (--c.owner->n_copies == 0) sim.now++;
        return;
    }
    barrier_of(c.block, c.barrier)->n_bytes -= c.n_bytes;
    settle(barrier_of(c.block, c.barrier));
}

void sim_copy(uint32_t to, const void *from, uint32_t n_bytes, uint32_t barrier) {
    struct block *b = owner(&to);

    if (owner(&barrier) != b) fail("told in another block, a copy to", to);
    if ((to | n_bytes | (uint32_t)(uintptr_t)from) % 16) fail("not aligned, a copy to", to);
    memset(memory(b, to, n_bytes), POISON, n_bytes);
    barrier_of(b, barrier);
    put((struct copy){.block = b, .to = to, .from = from, .n_bytes = n_bytes, .barrier = barrier});
    sim_pause();
}

void sim_copy_tile(uint32_t to, const struct sim_map *map, uint32_t column, uint32_t row,
                   uint32_t barrier) {
    const uint32_t n_bytes = map->box_rows * map->box_columns * 2;
    struct block *b = owner(&to);

    if (owner(&barrier) != b) fail("told in another block, a tile to", to);
    if (to % 128) fail("not aligned, a tile to", to);
    memset(memory(b, to, n_bytes), POISON, n_bytes);
    barrier_of(b, barrier);
    put((struct copy){.block = b,
                      .to = to,
                      .n_bytes = n_bytes,
                      .barrier = barrier,
                      .map = *map,
                      .column = column,
                      .row = row});
    sim_pause();
}

void sim_send(uint32_t to, const void *from, uint32_t n_bytes, uint32_t barrier) {
    struct block *b = owner(&to);
    struct copy c = {.block = b, .to = to, .n_bytes = n_bytes};

    if (owner(&barrier) != b) fail("told in another block, a send to", to);
    barrier_of(b, barrier);
    c.barrier = barrier;
    memcpy(c.bytes, from, n_bytes);
    put(c);
}

void sim_copy_own(uint32_t to, const void *from) {
    struct block *b = sim.thread->block;

    if ((to | (uint32_t)(uintptr_t)from) % 16) fail("not aligned, a copy to", to);
    memset(memory(b, to, 16), POISON, 16);
    sim.thread->n_copies++;
    put((struct copy){
        .block = b, .owner = sim.thread, .to = to, .from = from, .zero = !from, .n_bytes = 16});
}

void sim_arrive_copied(uint32_t barrier) {
    struct block *b = sim.thread->block;

    barrier_of(b, barrier);
    put((struct copy){.block = b, .owner = sim.thread, .barrier = barrier, .arrives = true});
}

void sim_wait_copied(void) {
    wait_for(COPIES, "its own copies", 0);
}

/* ---- products of warpgroups ---- */

static uint16_t value_at(struct block *b, uint32_t address, bool swizzle) {
    uint16_t v;

    if (swizzle) address = swizzled(address);
    memcpy(&v, memory(b, address, 2), 2);
    return v;
}

static uint32_t field(uint64_t descriptor, uint32_t shift) {
    return ((uint32_t)(descriptor >> shift) & 0x3fff) << 4;
}

static void read_a(struct block *b, const struct product *p, uint16_t a[64][MMA_K]) {
    const uint32_t start = field(p->da[0], 0), stride = field(p->da[0], 32);

    for (uint32_t r = 0; r < 64 && !p->a[0]; r++)
        for (uint32_t k = 0; k < MMA_K; k++)
            a[r][k] = value_at(b, start + r / 8 * stride + r % 8 * 128 + k * 2, true);
    for (uint32_t t = 0; t < SIM_GROUP && p->a[0]; t++)
        for (uint32_t i = 0; i < 4; i++)
            halves(&a[t / 32 * 16 + t % 32 / 4 + i % 2 * 8][t % 4 * 2 + i / 2 * 8], p->a[t][i]);
}

static void read_b(struct block *b, const struct product *p, uint16_t y[256][MMA_K]) {
    const uint32_t start = field(p->db[0], 0), leading = field(p->db[0], 16);
    const uint32_t stride = field(p->db[0], 32);

    for (uint32_t n = 0; n < p->n; n++)
        for (uint32_t k = 0; k < MMA_K; k++) {
            uint32_t at = start + n / 8 * stride + n % 8 * 128 + k * 2;

            if (p->b == SIM_ACROSS)
                at = start + n / 64 * leading + k / 8 * stride + k % 8 * 128 + n % 64 * 2;
            if (p->b == SIM_PLAIN)
                at = start + n / 8 * stride + k / 8 * leading + n % 8 * 16 + k % 8 * 2;
            y[n][k] = value_at(b, at, p->b != SIM_PLAIN);
        }
}

static void multiply(struct block *b, struct group *g) {
    struct product *p = g->first;
    uint16_t a[64][MMA_K], y[256][MMA_K];

    read_a(b, p, a);
    read_b(b, p, y);
    for (uint32_t t = 0; t < SIM_GROUP; t++)
        for (uint32_t i = 0; i < p->n / 2; i++) {
            const uint32_t row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
            const uint32_t column = i / 4 * 8 + t % 4 * 2 + i % 2;
            const float c = p->sums ? p->sums[t * (p->n / 2) + i] : p->d[t][i];

            p->d[t][i] = mma_step(p->more[t] ? c : 0.0f, a[row], y[column]);
        }
    g->first = p->next;
    g->n_done++;
    sim.now++;
    free(p->sums);
    free(p);
}

/* Behind those that are there; the first on its accumulators takes them away. */
static void queue(struct group *g, struct product *p) {
    struct product **at = &g->first;
    bool first = true;

    for (uint32_t t = 1; t < SIM_GROUP; t++) {
        if (p->db[t] != p->db[0] || p->da[t] != p->da[0]) fail("descriptors differ, thread", t);
        if (p->more[t] != p->more[0]) fail("some add and some do not, thread", t);
    }
    for (; *at; at = &(*at)->next)
        if ((*at)->d[0] == p->d[0]) first = false;
    *at = p;
    if (!first) return;
    p->sums = take(SIM_GROUP * (p->n / 2) * sizeof(float));
    for (uint32_t t = 0; t < SIM_GROUP; t++) {
        memcpy(p->sums + t * (p->n / 2), p->d[t], p->n / 2 * sizeof(float));
        memset(p->d[t], POISON, p->n / 2 * sizeof(float));
    }
}

void sim_wgmma(float *d, const uint32_t *a, uint64_t da, uint64_t db, bool more, uint32_t n,
               enum sim_b b) {
    struct thread *t = sim.thread;
    struct group *g = &t->block->groups[t->id / SIM_GROUP];
    const uint32_t i = t->id % SIM_GROUP;

    if (!g->making) g->making = take(sizeof(*g->making));
    g->making->d[i] = d;
    g->making->a[i] = a;
    g->making->da[i] = da;
    g->making->db[i] = db;
    g->making->more[i] = more;
    g->making->n = n;
    g->making->b = b;
    t->n_products++;
    if (!come(&g->meet, SIM_GROUP, "the product of warpgroup", t->id / SIM_GROUP)) return;
    queue(g, g->making);
    g->making = NULL;
    let_go(&g->meet);
}

void sim_wgmma_commit(void) {
    struct thread *t = sim.thread;

    t->marks[t->n_commits++ % MARKS] = t->n_products;
}

void sim_wgmma_wait(uint32_t n) {
    struct thread *t = sim.thread;

    if (t->n_commits <= n) return;
    t->until = t->marks[(t->n_commits - n - 1) % MARKS];
    wait_for(PRODUCTS, "products of its warpgroup", 0);
}

/* Above 0, which the contract never asks, rounded once: whoever asks wants it nearly. */
float sim_ex2(float x) {
    return x > 0.0f ? exp2f(x) : ex2_exact(x);
}

void sim_wait_previous(void) {
    wait_for(PREVIOUS, "the kernel before", 0);
}

uint64_t sim_now(void) {
    sim_spin();
    return sim.clock += 100;
}

/* ---- a launch ---- */

void sim_add(struct sim_kernel *k) {
    k->next = sim.kernels;
    sim.kernels = k;
}

static const struct sim_kernel *find(const char *name) {
    const struct sim_kernel *k = sim.kernels;

    while (k && strcmp(k->name, name)) k = k->next;
    return k;
}

bool sim_has(const char *name) {
    return find(name);
}

static void run_thread(void) {
    struct thread *t = sim.thread;
    struct block *b = t->block;

    sim.kernel->call(sim.launch->params);
    t->done = true;
    b->n_live--;
    b->cluster->n_live--;
    if (b->all.n && b->all.n == b->n_live) let_go(&b->all);
    fibre_leave(&t->fibre);
    abort();
}

static struct block *block_open(struct cluster *c, uint32_t number, uint32_t rank) {
    struct block *b = take(sizeof(*b));

    b->at = (struct sim_dim){number % gridDim.x, number / gridDim.x % gridDim.y,
                             number / gridDim.x / gridDim.y};
    b->cluster = c;
    b->rank = rank;
    b->n_live = sim.n_threads;
    b->image = take(sim.window_bytes);
    memset(b->image, POISON, sim.window_bytes);
    b->threads = take(sim.n_threads * sizeof(*b->threads));
    for (uint32_t t = 0; t < sim.n_threads; t++) {
        b->threads[t].block = b;
        b->threads[t].id = t;
        fibre_open(&b->threads[t].fibre, STACK_BYTES, run_thread);
    }
    for (uint32_t w = 0; w < WARPS_MAX; w++) b->warps[w].rank = sim_random();
    return b;
}

static void block_close(struct block *b) {
    if (sim.has_window == b) sim.has_window = NULL;
    if (b->n_copies) fail("copies on their way when their block had ended:", b->n_copies);
    for (uint32_t i = 0; i < GROUPS_MAX; i++)
        if (b->groups[i].first || b->groups[i].making) fail("a product nobody awaited, group", i);
    for (uint32_t t = 0; t < sim.n_threads; t++) fibre_close(&b->threads[t].fibre);
    free(b->threads);
    free(b->image);
    free(b);
}

static void cluster_open(void) {
    struct cluster *c = take(sizeof(*c));

    c->n_live = sim.cluster * sim.n_threads;
    for (uint32_t rank = 0; rank < sim.cluster; rank++)
        sim.running[sim.n_running++] = c->blocks[rank] = block_open(c, sim.n_started++, rank);
    sim.copy_rate = (uint32_t[]){0, 2, 16, 128}[sim_random() % 4];
    sim.product_rate = (uint32_t[]){0, 2, 16, 128}[sim_random() % 4];
}

static void cluster_close(struct cluster *c) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < sim.n_running; i++)
        if (sim.running[i]->cluster != c) sim.running[n++] = sim.running[i];
    sim.n_running = n;
    for (uint32_t rank = 0; rank < sim.cluster; rank++) block_close(c->blocks[rank]);
    free(c);
}

static struct group *busy_group(struct block *b) {
    const uint32_t first = sim_random();

    for (uint32_t i = 0; i < GROUPS_MAX; i++)
        if (b->groups[(first + i) % GROUPS_MAX].first) return &b->groups[(first + i) % GROUPS_MAX];
    return NULL;
}

static bool warp_ready(const struct block *b, uint32_t w) {
    for (uint32_t t = w * SIM_LANES; t < sim.n_threads && t < (w + 1) * SIM_LANES; t++)
        if (!b->threads[t].done && ready(&b->threads[t])) return true;
    return false;
}

/* The preferred one of a block's warps that have a lane which may run. */
static struct warp *ready_warp(struct block *b) {
    struct warp *best = NULL;

    for (uint32_t i = 0; i * SIM_LANES < sim.n_threads; i++) {
        struct warp *w = &b->warps[i];

        if (w->stuck == sim.now || (best && w->rank <= best->rank)) continue;
        if (warp_ready(b, i))
            best = w;
        else
            w->stuck = sim.now;
    }
    return best;
}

static void run_warp(struct block *b, struct warp *w) {
    const uint32_t first = (uint32_t)(w - b->warps) * SIM_LANES, start = sim_random();

    give_window(b);
    w->spun = false;
    for (uint32_t i = 0; i < SIM_LANES; i++) {
        const uint32_t t = first + (start + i) % SIM_LANES;

        if (t >= sim.n_threads || b->threads[t].done || !ready(&b->threads[t])) continue;
        sim.thread = &b->threads[t];
        threadIdx = (struct sim_dim){t % blockDim.x, t / blockDim.x % blockDim.y,
                                     t / blockDim.x / blockDim.y};
        fibre_enter(&sim.thread->fibre);
    }
    sim.thread = NULL;
    if (w->spun) w->rank = 0; /* whoever waits in a loop lets others go first */
    sim.n_spins = w->spun ? sim.n_spins + 1 : 0;
    if (sim.n_spins == SPINS_MAX) fail("all wait in loops", 0);
}

static void end_previous(void) {
    sim.previous = false;
    sim.now++;
    sim.launch->previous();
}

/* What a block does next: a copy that lands, a product that runs, a warp.  False: nothing can. */
static bool step(struct block *b) {
    struct group *g = busy_group(b);
    struct warp *w;

    if (sim.n_copies && sim_random() % 256 < sim.copy_rate) {
        land();
        return true;
    }
    if (g && sim_random() % 256 < sim.product_rate) {
        multiply(b, g);
        return true;
    }
    if (sim_random() % 16 == 0) b->warps[sim_random() % WARPS_MAX].rank = sim_random();
    w = ready_warp(b);
    if (w && w->spun && sim.n_copies && sim_random() % 4 == 0)
        land(); /* what it looks for, maybe */
    if (w && (!w->spun || !g))
        run_warp(b, w);
    else if (g)
        multiply(b, g);
    if (w && w->spun && sim.previous && sim_random() % 16 == 0) end_previous();
    return w || g;
}

static void run_all(void) {
    uint32_t at = 0;

    while (sim.n_started < sim.n_blocks || sim.n_running) {
        uint32_t n_stuck = 0;

        while (sim.n_started < sim.n_blocks && sim.n_running + sim.cluster <= sim.n_places)
            cluster_open();
        if (sim.n_spins || sim_random() % 32 == 0) at = sim_random();
        at %= sim.n_running;
        while (n_stuck < sim.n_running && !step(sim.running[at])) {
            at = (at + 1) % sim.n_running;
            n_stuck++;
        }
        if (n_stuck == sim.n_running) {
            if (sim.n_copies == 0 && !sim.previous) fail("nobody can go on", 0);
            if (sim.n_copies && (!sim.previous || sim_random() % 2))
                land();
            else
                end_previous();
        }
        if (sim.previous && sim_random() % 65536 < sim.previous_rate) end_previous();
        if (sim.running[at]->cluster->n_live == 0) cluster_close(sim.running[at]->cluster);
    }
}

static uint32_t or_one(uint32_t n) {
    return n ? n : 1;
}

void sim_run(const struct sim_launch *l) {
    const uint32_t block_bytes = l->shared_bytes + BLOCK_BYTES;
    uint32_t n_of_unit = UNIT_BYTES / block_bytes;

    sim.launch = l;
    sim.kernel = find(l->name);
    if (!sim.window) dl_iterate_phdr(find_window, NULL);
    gridDim = (struct sim_dim){or_one(l->grid[0]), or_one(l->grid[1]), or_one(l->grid[2])};
    blockDim = (struct sim_dim){or_one(l->block[0]), or_one(l->block[1]), or_one(l->block[2])};
    sim.n_threads = blockDim.x * blockDim.y * blockDim.z;
    sim.cluster = or_one(l->cluster);
    sim.n_blocks = gridDim.x * gridDim.y * gridDim.z;
    sim.n_started = 0;
    if (!sim.kernel) fail("no such kernel", 0);
    if (sim.window_bytes > WINDOW_MAX) fail("too much shared memory that is not dynamic", 0);
    if (l->shared_bytes > SIM_SHARED_MAX) fail("too much shared memory:", l->shared_bytes);
    if (sim.n_threads > 1024 || sim.cluster > CLUSTER_MAX || gridDim.x % sim.cluster)
        fail("no such launch, threads:", sim.n_threads);
    if (n_of_unit > UNIT_THREADS / sim.n_threads) n_of_unit = UNIT_THREADS / sim.n_threads;
    sim.n_places = or_one(l->n_units) * n_of_unit;
    if (sim.n_places < sim.cluster) sim.n_places = sim.cluster;
    sim.previous = l->previous;
    sim.previous_rate = (uint32_t[]){0, 16, 256, 65536}[sim_random() % 4];
    sim.running = take((sim.n_places + sim.cluster) * sizeof(*sim.running));
    run_all();
    if (sim.previous) end_previous(); /* nobody waited for it */
    free(sim.running);
    sim.running = NULL;
}
