#include "tests/sim/sim_impl.h"

#include <link.h>
#include <string.h>

#include "runtime/mma.h"

/* ---- shared memory ---- */

/* Parts of the window that are in use, and the dynamic memory that was not asked for. */
static uint32_t part(uint32_t i, uint32_t *out_at) {
    const uint32_t asked = sim.dynamic + sim.launch->shared_bytes;
    const uint32_t end = sim.dynamic + SIM_SHARED_MAX;

    *out_at = i ? end : 0;
    return i ? sim.window_bytes - end : asked;
}

void sim_give_window(struct block *b) {
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

int sim_find_window(struct dl_phdr_info *info, size_t size, void *p) {
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

unsigned char *sim_memory(struct block *b, uint32_t address, uint32_t n_bytes) {
    if (address + n_bytes > sim.window_bytes ||
        (address + n_bytes > sim.dynamic + sim.launch->shared_bytes &&
         address < sim.dynamic + SIM_SHARED_MAX))
        sim_fail("beyond shared sim_memory, at", address);
    return (b == sim.has_window ? sim.window : b->image) + address;
}

/* Whose an address is; what is left of it. */
struct block *sim_owner(uint32_t *address) {
    struct block *b = sim.thread->block;
    const uint32_t rank = *address >> PEER_SHIFT;

    *address &= (1u << PEER_SHIFT) - 1;
    if (rank == 0) return b;
    if (b->cluster->blocks[rank - 1]->n_live == 0)
        sim_fail("a block that has ended, rank", rank - 1);
    return b->cluster->blocks[rank - 1];
}

uint32_t sim_shared(const void *p) {
    const unsigned char *at = p;

    if (at < sim.window || at > sim.window + sim.window_bytes) sim_fail("not shared memory", 0);
    return (uint32_t)(at - sim.window);
}

void *sim_at(uint32_t address, uint32_t n_bytes) {
    struct block *b = sim_owner(&address);

    if (address % (n_bytes > 16 ? 16 : n_bytes)) sim_fail("not aligned, shared memory at", address);
    return sim_memory(b, address, n_bytes);
}

uint32_t sim_peer(uint32_t address, uint32_t rank) {
    if (rank >= sim.cluster) sim_fail("no such rank:", rank);
    return address | (rank + 1) << PEER_SHIFT;
}

uint32_t sim_rank(void) {
    return sim.thread->block->rank;
}

/* ---- barriers ---- */

struct barrier *sim_barrier_of(struct block *b, uint32_t address) {
    sim_memory(b, address, 8);
    if (!b->barrier_at[address / 8]) sim_fail("a barrier that was not made, at", address);
    return &b->barriers[b->barrier_at[address / 8]];
}

void sim_settle(struct barrier *b) {
    if (b->pending || b->n_bytes) return;
    b->pending = b->count;
    b->phase++;
    sim.now++;
}

void sim_arrive(struct block *b, uint32_t address) {
    struct barrier *x = sim_barrier_of(b, address);

    if (x->pending == 0) sim_fail("one arrival too many at the barrier at", address);
    x->pending--;
    sim_settle(x);
}

void sim_barrier_init(uint32_t barrier, uint32_t n_arrivals) {
    struct block *b = sim.thread->block;

    sim_memory(b, barrier, 8);
    if (b->barrier_at[barrier / 8]) sim_fail("made twice, the barrier at", barrier);
    if (barrier % 8 || b->n_barriers == BARRIERS_MAX) sim_fail("no barrier, at", barrier);
    b->barrier_at[barrier / 8] = (uint8_t)++b->n_barriers;
    b->barriers[b->n_barriers] = (struct barrier){.count = n_arrivals, .pending = n_arrivals};
}

void sim_barrier_arrive(uint32_t barrier) {
    struct block *b = sim_owner(&barrier);

    sim_arrive(b, barrier);
    sim_pause();
}

void sim_barrier_expect(uint32_t barrier, uint32_t n_bytes) {
    struct block *b = sim_owner(&barrier);

    sim_barrier_of(b, barrier)->n_bytes += n_bytes;
    sim_arrive(b, barrier);
    sim_pause();
}

void sim_barrier_wait(uint32_t barrier, uint32_t parity) {
    struct block *b = sim_owner(&barrier);
    struct thread *t = sim.thread;

    t->barrier = sim_barrier_of(b, barrier);
    t->until = parity;
    sim_wait_for(PHASE, "barrier", barrier);
}

void sim_syncthreads(void) {
    struct block *b = sim.thread->block;

    b->all.of = b->n_live; /* those who ended are not missed */
    if (sim_come(&b->all, b->n_live, "all threads' barrier", 0)) sim_let_go(&b->all);
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

    if (sim_come(m, n_threads, "the named barrier", id)) sim_let_go(m);
}

void sim_named_arrive(uint32_t id, uint32_t n_threads) {
    struct meet *m = &sim.thread->block->named[id];

    if (m->n && m->of != n_threads) sim_fail("other threads at the named barrier", id);
    m->of = n_threads;
    if (++m->n == n_threads) sim_let_go(m);
    sim_pause();
}

void sim_cluster_arrive(void) {
    struct meet *m = &sim.thread->block->cluster->meet;

    sim.thread->cluster_turn = m->turn;
    m->of = sim.cluster * sim.n_threads;
    if (++m->n == m->of) sim_let_go(m);
    sim_pause();
}

void sim_cluster_wait(void) {
    struct thread *t = sim.thread;

    t->meet = &t->block->cluster->meet;
    t->until = t->cluster_turn;
    sim_wait_for(MEETING, "the cluster's barrier", 0);
}

/* ---- warps ---- */

static bool meet_warp(uint32_t mask, const void *words, uint32_t n, struct warp **out_warp,
                      uint32_t *out_turn, struct meet **out_meet) {
    struct thread *t = sim.thread;
    struct warp *w = &t->block->warps[t->id / SIM_LANES];

    const bool all = mask == UINT32_MAX;
    struct meet *m = &w->meets[all ? SIM_LANES : __builtin_ctz(mask)];

    if (!(mask >> t->id % SIM_LANES & 1))
        sim_fail("a lane that is not of those who meet, mask", mask);
    *out_warp = w;
    *out_turn = (all ? 2 : 0) + (uint32_t)(m->turn & 1);
    *out_meet = m;
    if (n) memcpy(w->words[*out_turn][t->id % SIM_LANES], words, n * 4);
    return sim_come(m, (uint32_t)__builtin_popcount(mask), "the barrier of warp",
                    t->id / SIM_LANES);
}

const uint32_t (*sim_meet(uint32_t mask, const void *words, uint32_t n))[SIM_WORDS] {
    struct warp *w;
    struct meet *m;
    uint32_t turn;

    if (meet_warp(mask, words, n, &w, &turn, &m)) sim_let_go(m);
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
        sim_let_go(m);
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
    sim_let_go(m);
}

void sim_halves(uint16_t *to, uint32_t word) {
    to[0] = (uint16_t)word;
    to[1] = (uint16_t)(word >> 16);
}

void sim_mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    uint32_t own[SIM_WORDS] = {a[0], a[2], a[1], a[3], b0, b1};
    const uint32_t lane = sim.thread->id % SIM_LANES;
    struct warp *w;
    struct meet *m;
    uint32_t turn;

    memcpy(own + 6, c, 16);
    if (meet_warp(UINT32_MAX, own, SIM_WORDS, &w, &turn, &m)) {
        uint32_t(*words)[SIM_WORDS] = w->words[turn];
        uint16_t x[16][MMA_K], y[8][MMA_K];
        float sums[16][8];

        for (uint32_t i = 0; i < SIM_LANES; i++) {
            const uint32_t row = i / 4, k = i % 4 * 2;

            for (uint32_t j = 0; j < 4; j++)
                sim_halves(&x[row + j / 2 * 8][k + j % 2 * 8], words[i][j]);
            for (uint32_t j = 0; j < 2; j++) sim_halves(&y[row][k + j * 8], words[i][4 + j]);
            for (uint32_t j = 0; j < 2; j++) memcpy(&sums[row + j * 8][k], words[i] + 6 + j * 2, 8);
        }
        sim_step(sums[0], x, 16, y, 8);
        for (uint32_t i = 0; i < SIM_LANES; i++)
            for (uint32_t j = 0; j < 2; j++)
                memcpy(words[i] + j * 2, &sums[i / 4 + j * 8][i % 4 * 2], 8);
        sim_let_go(m);
    }
    memcpy(c, w->words[turn][lane], 16);
}
