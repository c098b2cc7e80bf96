#include "tests/sim/sim_impl.h"

#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sim_dim threadIdx, blockIdx, blockDim, gridDim;
_Thread_local _Alignas(1024) unsigned char sim_dynamic[SIM_SHARED_MAX];

struct sim_state sim = {.now = 1};

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

_Noreturn void sim_fail(const char *what, uint32_t which) {
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

void *sim_take(size_t n_bytes) {
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

uint64_t sim_seed_asked(void) {
    const char *asked = getenv("LLM42_SIM_SEED");
    const uint64_t seed = asked ? strtoull(asked, NULL, 0) : 1;

    printf("seed %llu\n", (unsigned long long)seed);
    return seed;
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

void sim_wait_for(enum wait wait, const char *what, uint32_t which) {
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
bool sim_come(struct meet *m, uint32_t of, const char *what, uint32_t which) {
    struct thread *t = sim.thread;

    if (m->n && m->of != of) sim_fail(what, which);
    m->of = of;
    if (++m->n == of) return true;
    t->meet = m;
    t->until = m->turn;
    sim_wait_for(MEETING, what, which);
    return false;
}

void sim_let_go(struct meet *m) {
    m->n = 0;
    m->turn++;
    sim.now++;
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
    if (b->all.n && b->all.n == b->n_live) sim_let_go(&b->all);
    fibre_leave(&t->fibre);
    abort();
}

static void warp_turn(struct warp *w) {
    w->rank = sim_random();
    w->late = sim_random() % (8 * SIM_LANES);
}

static struct block *block_open(struct cluster *c, uint32_t number, uint32_t rank) {
    struct block *b = sim_take(sizeof(*b));

    b->at = (struct sim_dim){number % gridDim.x, number / gridDim.x % gridDim.y,
                             number / gridDim.x / gridDim.y};
    b->cluster = c;
    b->rank = rank;
    b->n_live = sim.n_threads;
    b->image = sim_take(sim.window_bytes);
    memset(b->image, POISON, sim.window_bytes);
    b->threads = sim_take(sim.n_threads * sizeof(*b->threads));
    for (uint32_t t = 0; t < sim.n_threads; t++) {
        b->threads[t].block = b;
        b->threads[t].id = t;
        fibre_open(&b->threads[t].fibre, STACK_BYTES, run_thread);
    }
    for (uint32_t w = 0; w < WARPS_MAX; w++) warp_turn(&b->warps[w]);
    return b;
}

static void block_close(struct block *b) {
    if (sim.has_window == b) sim.has_window = NULL;
    if (b->n_copies) sim_fail("copies on their way when their block had ended:", b->n_copies);
    for (uint32_t i = 0; i < GROUPS_MAX; i++)
        if (b->groups[i].first || b->groups[i].making)
            sim_fail("a product nobody awaited, group", i);
    for (uint32_t t = 0; t < sim.n_threads; t++) fibre_close(&b->threads[t].fibre);
    free(b->threads);
    free(b->image);
    free(b);
}

static void cluster_open(void) {
    struct cluster *c = sim_take(sizeof(*c));

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

/* False: it may not run. */
static bool run_lane(struct block *b, uint32_t t) {
    if (t >= sim.n_threads || b->threads[t].done || !ready(&b->threads[t])) return false;
    sim.thread = &b->threads[t];
    threadIdx =
        (struct sim_dim){t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
    fibre_enter(&sim.thread->fibre);
    return true;
}

/* One lane comes when no other can, and not at once, wherever these have gone to meanwhile. */
static void run_warp(struct block *b, struct warp *w) {
    const uint32_t first = (uint32_t)(w - b->warps) * SIM_LANES, start = sim_random();
    bool ran = false;

    sim_give_window(b);
    w->spun = false;
    for (uint32_t i = 0; i < SIM_LANES; i++) {
        const uint32_t lane = (start + i) % SIM_LANES;

        if (lane != w->late) ran = run_lane(b, first + lane) || ran;
    }
    if (!ran && sim_random() % 64 == 0) (void)run_lane(b, first + w->late);
    sim.thread = NULL;
    if (!ran) w->rank = 0;
    if (w->spun) w->rank = 0; /* whoever waits in a loop lets others go first */
    sim.n_spins = w->spun ? sim.n_spins + 1 : 0;
    if (sim.n_spins == SPINS_MAX) sim_fail("all wait in loops", 0);
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
        sim_land();
        return true;
    }
    if (g && sim_random() % 256 < sim.product_rate) {
        sim_multiply(b, g);
        return true;
    }
    if (sim_random() % 16 == 0) warp_turn(&b->warps[sim_random() % WARPS_MAX]);
    w = ready_warp(b);
    if (w && w->spun && sim.n_copies && sim_random() % 4 == 0)
        sim_land(); /* what it looks for, maybe */
    if (w && (!w->spun || !g))
        run_warp(b, w);
    else if (g)
        sim_multiply(b, g);
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
            if (sim.n_copies == 0 && !sim.previous) sim_fail("nobody can go on", 0);
            if (sim.n_copies && (!sim.previous || sim_random() % 2))
                sim_land();
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
    if (!sim.window) dl_iterate_phdr(sim_find_window, NULL);
    gridDim = (struct sim_dim){or_one(l->grid[0]), or_one(l->grid[1]), or_one(l->grid[2])};
    blockDim = (struct sim_dim){or_one(l->block[0]), or_one(l->block[1]), or_one(l->block[2])};
    sim.n_threads = blockDim.x * blockDim.y * blockDim.z;
    sim.cluster = or_one(l->cluster);
    sim.n_blocks = gridDim.x * gridDim.y * gridDim.z;
    sim.n_started = 0;
    if (!sim.kernel) sim_fail("no such kernel", 0);
    if (sim.window_bytes > WINDOW_MAX) sim_fail("too much shared memory that is not dynamic", 0);
    if (l->shared_bytes > SIM_SHARED_MAX) sim_fail("too much shared memory:", l->shared_bytes);
    if (sim.n_threads > 1024 || sim.cluster > CLUSTER_MAX || gridDim.x % sim.cluster)
        sim_fail("no such launch, threads:", sim.n_threads);
    if (n_of_unit > UNIT_THREADS / sim.n_threads) n_of_unit = UNIT_THREADS / sim.n_threads;
    sim.n_places = or_one(l->n_units) * n_of_unit;
    if (sim.n_places < sim.cluster) sim.n_places = sim.cluster;
    sim.previous = l->previous;
    sim.previous_rate = (uint32_t[]){0, 16, 256, 65536}[sim_random() % 4];
    sim.running = sim_take((sim.n_places + sim.cluster) * sizeof(*sim.running));
    run_all();
    if (sim.previous) end_previous(); /* nobody waited for it */
    free(sim.running);
    sim.running = NULL;
}
