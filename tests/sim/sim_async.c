#include "tests/sim/sim_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/ex2.h"
#include "runtime/mma.h"

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
            memcpy(sim_memory(c->block, swizzled(at), 2), &v, 2);
        }
}

/* One of them, but for an arrival, which comes after its thread's copies before it. */
void sim_land(void) {
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
        sim_arrive(c.block, c.barrier);
        return;
    }
    if (c.map.n_columns)
        land_tile(&c);
    else if (c.zero)
        memset(sim_memory(c.block, c.to, c.n_bytes), 0, c.n_bytes);
    else
        memcpy(sim_memory(c.block, c.to, c.n_bytes), c.from ? c.from : c.bytes, c.n_bytes);
    if (c.owner) {
        if (--c.owner->n_copies == 0) sim.now++;
        return;
    }
    sim_barrier_of(c.block, c.barrier)->n_bytes -= c.n_bytes;
    sim_settle(sim_barrier_of(c.block, c.barrier));
}

void sim_copy(uint32_t to, const void *from, uint32_t n_bytes, uint32_t barrier) {
    struct block *b = sim_owner(&to);

    if (sim_owner(&barrier) != b) sim_fail("told in another block, a copy to", to);
    if ((to | n_bytes | (uint32_t)(uintptr_t)from) % 16) sim_fail("not aligned, a copy to", to);
    memset(sim_memory(b, to, n_bytes), POISON, n_bytes);
    sim_barrier_of(b, barrier);
    put((struct copy){.block = b, .to = to, .from = from, .n_bytes = n_bytes, .barrier = barrier});
    sim_pause();
}

void sim_copy_tile(uint32_t to, const struct sim_map *map, uint32_t column, uint32_t row,
                   uint32_t barrier) {
    const uint32_t n_bytes = map->box_rows * map->box_columns * 2;
    struct block *b = sim_owner(&to);

    if (sim_owner(&barrier) != b) sim_fail("told in another block, a tile to", to);
    if (to % 128) sim_fail("not aligned, a tile to", to);
    memset(sim_memory(b, to, n_bytes), POISON, n_bytes);
    sim_barrier_of(b, barrier);
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
    struct block *b = sim_owner(&to);
    struct copy c = {.block = b, .to = to, .n_bytes = n_bytes};

    if (sim_owner(&barrier) != b) sim_fail("told in another block, a send to", to);
    sim_barrier_of(b, barrier);
    c.barrier = barrier;
    memcpy(c.bytes, from, n_bytes);
    put(c);
}

void sim_copy_own(uint32_t to, const void *from) {
    struct block *b = sim.thread->block;

    if ((to | (uint32_t)(uintptr_t)from) % 16) sim_fail("not aligned, a copy to", to);
    memset(sim_memory(b, to, 16), POISON, 16);
    sim.thread->n_copies++;
    put((struct copy){
        .block = b, .owner = sim.thread, .to = to, .from = from, .zero = !from, .n_bytes = 16});
}

void sim_arrive_copied(uint32_t barrier) {
    struct block *b = sim.thread->block;

    sim_barrier_of(b, barrier);
    put((struct copy){.block = b, .owner = sim.thread, .barrier = barrier, .arrives = true});
}

void sim_wait_copied(void) {
    sim_wait_for(COPIES, "its own copies", 0);
}

/* ---- products of warpgroups ---- */

static uint16_t value_at(struct block *b, uint32_t address, bool swizzle) {
    uint16_t v;

    if (swizzle) address = swizzled(address);
    memcpy(&v, sim_memory(b, address, 2), 2);
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
            sim_halves(&a[t / 32 * 16 + t % 32 / 4 + i % 2 * 8][t % 4 * 2 + i / 2 * 8], p->a[t][i]);
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

/* Where in 64 rows of n a thread has its sums. */
static uint32_t sum_at(const struct product *p, uint32_t t, uint32_t i) {
    return (t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8) * p->n + i / 4 * 8 + t % 4 * 2 + i % 2;
}

void sim_multiply(struct block *b, struct group *g) {
    struct product *p = g->first;
    uint16_t a[64][MMA_K], y[256][MMA_K];
    float c[64 * 256];

    read_a(b, p, a);
    read_b(b, p, y);
    for (uint32_t t = 0; t < SIM_GROUP; t++)
        for (uint32_t i = 0; i < p->n / 2; i++) {
            const float own = p->sums ? p->sums[t * (p->n / 2) + i] : p->d[t][i];

            c[sum_at(p, t, i)] = p->more[t] ? own : 0.0f;
        }
    sim_step(c, a, 64, y, p->n);
    for (uint32_t t = 0; t < SIM_GROUP; t++)
        for (uint32_t i = 0; i < p->n / 2; i++) p->d[t][i] = c[sum_at(p, t, i)];
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
        if (p->db[t] != p->db[0] || p->da[t] != p->da[0]) sim_fail("descriptors differ, thread", t);
        if (p->more[t] != p->more[0]) sim_fail("some add and some do not, thread", t);
    }
    for (; *at; at = &(*at)->next)
        if ((*at)->d[0] == p->d[0]) first = false;
    *at = p;
    if (!first) return;
    p->sums = sim_take(SIM_GROUP * (p->n / 2) * sizeof(float));
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

    if (!g->making) g->making = sim_take(sizeof(*g->making));
    g->making->d[i] = d;
    g->making->a[i] = a;
    g->making->da[i] = da;
    g->making->db[i] = db;
    g->making->more[i] = more;
    g->making->n = n;
    g->making->b = b;
    t->n_products++;
    if (!sim_come(&g->meet, SIM_GROUP, "the product of warpgroup", t->id / SIM_GROUP)) return;
    queue(g, g->making);
    g->making = NULL;
    sim_let_go(&g->meet);
}

void sim_wgmma_commit(void) {
    struct thread *t = sim.thread;

    t->marks[t->n_commits++ % MARKS] = t->n_products;
}

void sim_wgmma_wait(uint32_t n) {
    struct thread *t = sim.thread;

    if (t->n_commits <= n) return;
    t->until = t->marks[(t->n_commits - n - 1) % MARKS];
    sim_wait_for(PRODUCTS, "products of its warpgroup", 0);
}

/* Above 0, which the contract never asks, rounded once: whoever asks wants it nearly. */
float sim_ex2(float x) {
    return x > 0.0f ? exp2f(x) : ex2_exact(x);
}

void sim_wait_previous(void) {
    sim_wait_for(PREVIOUS, "the kernel before", 0);
}

uint64_t sim_now(void) {
    sim_spin();
    if (sim_random() % 16 == 0) sim.clock /= 2; /* it is set back */
    return sim.clock += 100;
}
