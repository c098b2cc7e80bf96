/* llm42-bench tune: for each product, norm and attention of a model the cuts that are the fastest
 * on this GPU, as the text of runtime/schedule_sm90.inc.
 *
 * Stages are timed as a step runs them, of a model that is geometry only, with as many layers as
 * L2 does not hold.  All candidates take turns in every round; the median counts.  What is canonical
 * stays unless another wins by a margin and a step is faster for it: whole layers are timed, too,
 * since kernels overlap their neighbours and choose how these begin, and a norm is in two stages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/version.h"
#include "runtime/err.h"
#include "tools/bench_lab.h"

enum {
    ROUNDS = 7,
    USES = 3, /* before it is timed */
    ROUND_US = 1200,
    LAYER_ROUND_US = 6000,
    CANDIDATES_MAX = 6,
    POINTS_MAX = 64,
};

/* Rows of a step, sequences, keys of one and of them all; on the twin, so that the verb can be
 * tried where there is no GPU, next to nothing. */
static const struct bench_lab_size on_gpu = {UINT32_MAX, 2048, 256, 1 << 15, 1 << 18},
                                   on_twin = {1, 32, 4, 1024, 2048};

/* Less by so much in the median, and less in all rounds but one: of a stage, of whole layers. */
static const double margin = 1.02, layer_margin = 1.005;
static const double hopeless = 1.3, forsaken = 3;

/* A candidate's part in its schedule, and how long the stage takes. */
struct candidate {
    uint32_t value;
    bool lost; /* far behind at fewer rows: not tried again */
    double us; /* a call; BENCH_NO_CELL: not timed */
};

/* Rows, or sequences and keys, and which candidate won there. */
struct point {
    uint32_t a, b, best;
    char words[96];
};

/* ---- Times ---- */

/* Rounds in which a took less than b. */
static int rounds_won(const double a[ROUNDS], const double b[ROUNDS]) {
    int n = 0;

    for (int i = 0; i < ROUNDS; i++) n += a[i] < b[i];
    return n;
}

/* The candidate that wins; `set` puts its value into a schedule. */
static uint32_t race(struct bench_lab *t, enum bench_lab_stage stage, struct candidate *c,
                     uint32_t n, uint32_t canonical, void (*set)(struct schedule *, uint32_t)) {
    struct schedule s[CANDIDATES_MAX];
    double us[CANDIDATES_MAX][ROUNDS], canonical_us[USES] = {0};
    const bool layer = stage == BENCH_LAB_LAYER;
    const double least = layer ? layer_margin : margin,
                 round_us = layer ? LAYER_ROUND_US : ROUND_US;
    const uint32_t n_calls = bench_lab_calls(t, stage);
    uint32_t n_times = 1, best = canonical;
    int won[CANDIDATES_MAX] = {0};

    for (uint32_t i = 0; i < n; i++) {
        s[i] = schedule_canonical();
        set(&s[i], c[i].value);
        c[i].us = BENCH_NO_CELL;
    }
    /* Canonical first.  A graph is recorded at its second use, which of many layers takes longer than
     * they do: each use stands beside the same of canonical. */
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t i = k == 0 ? canonical : k <= canonical ? k - 1 : k;

        if (c[i].lost) continue;
        for (int use = 0; use < USES && !c[i].lost; use++) {
            c[i].us = bench_lab_us(t, stage, &s[i], 1);
            if (i == canonical) canonical_us[use] = c[i].us;
            c[i].lost = use > 0 && c[i].us > forsaken * canonical_us[use];
        }
        if (!layer && c[i].us > hopeless * c[canonical].us) c[i].us = BENCH_NO_CELL;
    }
    while (n_times * n_calls * c[canonical].us < round_us) n_times++;
    for (int round = 0; round < ROUNDS; round++)
        for (uint32_t k = 0; k < n; k++) {
            const uint32_t i = (k + (uint32_t)round) % n;

            if (c[i].us > 0) us[i][round] = bench_lab_us(t, stage, &s[i], n_times);
        }
    for (uint32_t i = 0; i < n; i++)
        if (c[i].us > 0) won[i] = rounds_won(us[i], us[canonical]);
    for (uint32_t i = 0; i < n; i++)
        if (c[i].us > 0) c[i].us = bench_quantile(us[i], ROUNDS, 0.5);
    for (uint32_t i = 0; i < n; i++)
        if (c[i].us > 0 && won[i] >= ROUNDS - 1 && c[i].us * least < c[canonical].us &&
            c[i].us < c[best].us)
            best = i;
    return best;
}

/* Whether what won its stage makes whole layers faster, too. */
static bool layer_race(struct bench_lab *t, const char *what, const struct candidate *canonical,
                       const struct candidate *best, void (*set)(struct schedule *, uint32_t)) {
    struct candidate two[] = {{.value = canonical->value}, {.value = best->value}};
    const bool won = race(t, BENCH_LAB_LAYER, two, 2, 0, set) == 1;

    fprintf(stderr, "%-8s       a layer: %u= %.2f %u %.2f\n", what, two[0].value, two[0].us,
            two[1].value, two[1].us);
    return won;
}

/* The same of the head, which is once in a step. */
static bool head_counts(struct bench_lab *t, const struct candidate *canonical,
                        const struct candidate *best) {
    const struct schedule s = schedule_canonical();
    double layer_us = 0;

    for (int use = 0; use < USES; use++) layer_us = bench_lab_us(t, BENCH_LAB_LAYER, &s, 1);
    return (canonical->us - best->us) * layer_margin >
           (layer_margin - 1) * (t->n_layers * layer_us + canonical->us);
}

/* What was timed, for the point's line and for whoever watches. */
static void tell(const char *what, struct point *p, const struct candidate *c, uint32_t n,
                 uint32_t canonical) {
    fprintf(stderr, "%-8s %5u %6u:", what, p->a, p->b);
    for (uint32_t i = 0; i < n; i++)
        if (c[i].us > 0)
            fprintf(stderr, " %u%s %.2f", c[i].value, i == canonical ? "=" : "", c[i].us);
    fprintf(stderr, " -> %u\n", c[p->best].value);
    p->words[0] = '\0';
    if (p->best != canonical)
        snprintf(p->words, sizeof(p->words), " /* %.2f us, canonical %.2f */", c[p->best].us,
                 c[canonical].us);
}

/* ---- Products and norms ---- */

static void set_qkv(struct schedule *s, uint32_t v) {
    s->qkv = (uint8_t)v;
}
static void set_o(struct schedule *s, uint32_t v) {
    s->o = (uint8_t)v;
}
static void set_gate_up(struct schedule *s, uint32_t v) {
    s->gate_up = (uint8_t)v;
}
static void set_down(struct schedule *s, uint32_t v) {
    s->down = (uint8_t)v;
}
static void set_head(struct schedule *s, uint32_t v) {
    s->head = (uint8_t)v;
}
static void set_run(struct schedule *s, uint32_t v) {
    s->norm_run = (uint8_t)v;
}
static void set_split(struct schedule *s, uint32_t v) {
    s->split_keys = v;
}

static const uint32_t row_counts[] = {1,   2,   4,   8,   16,  24,  32,  48,  64,   80,   96,  112,
                                      128, 160, 192, 224, 256, 384, 512, 768, 1024, 1536, 2048};
enum { N_ROWS = sizeof(row_counts) / sizeof(row_counts[0]) };

/* One of SPEC 2.3's numbers, by rows. */
struct part {
    const char *name; /* of its lines */
    enum bench_lab_stage stage;
    uint32_t n, n_k, canonical;
    void (*set)(struct schedule *, uint32_t);
    struct candidate c[4];
    struct point points[POINTS_MAX];
    uint32_t n_points;
};

static void parts_make(const struct bench_lab *t, struct part parts[6]) {
    const struct model *m = &t->model;
    const struct schedule c = schedule_canonical();
    const uint32_t width = m->n_heads * m->head_dim, kv_width = m->n_kv_heads * m->head_dim;
    const struct part all[6] = {
        {"QKV",
         BENCH_LAB_ATTN_IN,
         width + 2 * kv_width,
         m->hidden,
         c.qkv,
         set_qkv,
         {{0}},
         {{0}},
         0},
        {"O", BENCH_LAB_ATTN_OUT, m->hidden, width, c.o, set_o, {{0}}, {{0}}, 0},
        {"GATE_UP",
         BENCH_LAB_MLP_IN,
         2 * m->intermediate,
         m->hidden,
         c.gate_up,
         set_gate_up,
         {{0}},
         {{0}},
         0},
        {"DOWN", BENCH_LAB_MLP_OUT, m->hidden, m->intermediate, c.down, set_down, {{0}}, {{0}}, 0},
        {"HEAD", BENCH_LAB_LOGITS, m->vocab, m->hidden, c.head, set_head, {{0}}, {{0}}, 0},
        {"NORM", BENCH_LAB_ATTN_IN, m->hidden, 0, c.norm_run, set_run, {{0}}, {{0}}, 0}};

    memcpy(parts, all, sizeof(all));
    for (int p = 0; p < 6; p++)
        for (uint32_t i = 0; i < 4; i++) parts[p].c[i].value = 1u << i;
}

static uint32_t index_of(const struct candidate *c, uint32_t value) {
    uint32_t i = 0;

    while (c[i].value != value) i++;
    return i;
}

static void part_race(struct bench_lab *t, struct part *p, uint32_t n_rows) {
    const uint32_t canonical = index_of(p->c, p->canonical);
    struct point *at = &p->points[p->n_points++];
    uint32_t best = race(t, p->stage, p->c, 4, canonical, p->set);

    if (best != canonical) {
        const struct candidate *won = &p->c[best], *c = &p->c[canonical];

        if (p->stage == BENCH_LAB_LOGITS ? !head_counts(t, c, won)
                                         : !layer_race(t, p->name, c, won, p->set))
            best = canonical;
    }
    *at = (struct point){.a = n_rows, .best = best};
    tell(p->name, at, p->c, 4, canonical);
}

/* A line for each stretch with one winner. */
static void part_print(FILE *f, const struct part *p) {
    for (uint32_t i = 0; i < p->n_points; i++) {
        const struct point *at = &p->points[i];

        if (i + 1 < p->n_points && p->points[i + 1].best == at->best) continue;
        if (p->n_k)
            fprintf(f, "PRODUCT(%s, %u, %u, %u, %u)%s\n", p->name, p->n, p->n_k, at->a,
                    p->c[at->best].value, at->words);
        else
            fprintf(f, "NORM(%u, %u, %u)%s\n", p->n, at->a, p->c[at->best].value, at->words);
    }
}

static void products(FILE *f, struct bench_lab *t, const struct bench_lab_size *size) {
    struct part *parts = bench_lab_take(6, sizeof(*parts));

    parts_make(t, parts);
    for (int r = 0; r < N_ROWS && row_counts[r] <= size->n_rows; r++) {
        bench_lab_batch(t, row_counts[r], 1, row_counts[r]);
        for (int p = 0; p < 6; p++)
            if (parts[p].stage != BENCH_LAB_LOGITS || row_counts[r] <= size->n_seqs)
                part_race(t, &parts[p], row_counts[r]);
    }
    for (int p = 0; p < 6; p++) part_print(f, &parts[p]);
    free(parts);
}

/* ---- Attention ---- */

enum { N_SPLITS = 6, CANONICAL_SPLIT = 2 };

static void attend_race(struct bench_lab *t, const char *what, uint32_t n_rows, uint32_t n_seqs,
                        uint32_t n_keys, struct candidate *c, struct point *at) {
    bench_lab_batch(t, n_rows, n_seqs, n_keys);
    *at = (struct point){.a = n_seqs, .b = n_keys};
    for (uint32_t i = 0; i < N_SPLITS; i++) /* one split is one, however long */
        c[i].lost = i != CANONICAL_SPLIT && i > 0 && c[i - 1].value >= n_keys;
    at->best = race(t, BENCH_LAB_ATTEND, c, N_SPLITS, CANONICAL_SPLIT, set_split);
    if (at->best != CANONICAL_SPLIT &&
        !layer_race(t, what, &c[CANONICAL_SPLIT], &c[at->best], set_split))
        at->best = CANONICAL_SPLIT;
    tell(what, at, c, N_SPLITS, CANONICAL_SPLIT);
}

static void attend_print(FILE *f, const struct bench_lab *t, const char *kind,
                         const struct candidate *c, const struct point *points, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (i + 1 < n && points[i + 1].a == points[i].a && points[i + 1].best == points[i].best)
            continue;
        fprintf(f, "SPLIT(%s, %u, %u, %u, %u, %u, %u)%s\n", kind, t->model.n_heads,
                t->model.n_kv_heads, t->model.head_dim, points[i].a, points[i].b,
                c[points[i].best].value, points[i].words);
    }
}

static void attention(FILE *f, struct bench_lab *t, const struct bench_lab_size *size) {
    struct candidate c[N_SPLITS] = {
        {.value = 128},  {.value = 256},  {.value = schedule_canonical().split_keys},
        {.value = 1024}, {.value = 2048}, {.value = SCHEDULE_SPLIT_MAX}};
    const uint32_t n_keys_max = t->n_seq_pages * DEVICE_PAGE_TOKENS;
    struct point points[POINTS_MAX];
    uint32_t n = 0;

    for (uint32_t n_seqs = 1; n_seqs <= size->n_seqs; n_seqs *= 2)
        for (uint32_t keys = 512; keys <= n_keys_max && keys * n_seqs <= size->n_tokens; keys *= 2)
            attend_race(t, "decode", n_seqs, n_seqs, keys, c, &points[n++]);
    attend_print(f, t, "DECODE", c, points, n);
    n = 0;
    for (uint32_t keys = 512; keys <= n_keys_max; keys *= 2) {
        attend_race(t, "prompt", keys < size->n_rows ? keys : size->n_rows, 1, keys, c, &points[n]);
        points[n++].a = DEVICE_ROWS_MAX; /* of however many sequences */
    }
    attend_print(f, t, "PROMPT", c, points, n);
}

/* ---- The verb ---- */

static int tune_run(FILE *f, const struct bench_options *o, const char *geometry) {
    const struct bench_lab_size *size = strcmp(o->device, "cuda") == 0 ? &on_gpu : &on_twin;
    const int64_t begin_ns = bench_now_ns();
    struct bench_lab t;
    struct model m;
    struct err e = {""};

    if (bench_geometry(geometry, &m, &e) < 0) {
        bench_say("%s", e.text);
        return BENCH_USAGE;
    }
    bench_lab_open(&t, o, o->device, &m, size);
    fprintf(f, "\n/* %s: %s; %u layers, medians of %d rounds */\n", geometry, t.describe,
            t.model.n_layers, ROUNDS);
    products(f, &t, size);
    attention(f, &t, size);
    fprintf(stderr, "%s: %.1f s\n", geometry, (double)(bench_now_ns() - begin_ns) / 1e9);
    bench_lab_close(&t);
    return BENCH_OK;
}

/* The table goes to stdout when it is whole: of what fails nobody keeps a part as a file. */
int bench_tune(const struct bench_options *o) {
    static const char *const usual[] = {"llama-3.1-8b", "smollm2-135m"};
    const time_t now = time(NULL);
    char *text = NULL;
    size_t n_text = 0;
    FILE *f = open_memstream(&text, &n_text);
    struct tm day;
    char date[16];
    int r = BENCH_OK;

    if (!f) return BENCH_FAILED;
    (void)gmtime_r(&now, &day);
    (void)strftime(date, sizeof(date), "%Y-%m-%d", &day);
    fprintf(
        f,
        "/* Printed by `llm42-bench tune` %s, %s; not to be edited (docs/experiments.md).\n"
        " * A line holds for so many rows, or sequences and keys, down to the line before. */\n",
        version_whole(), date);
    if (o->operand)
        r = tune_run(f, o, o->operand);
    else
        for (int i = 0; r == BENCH_OK && i < 2; i++) r = tune_run(f, o, usual[i]);
    if (fclose(f) != 0 && r == BENCH_OK) {
        bench_say("no memory for the table");
        r = BENCH_FAILED;
    }
    if (r == BENCH_OK) fputs(text, stdout);
    free(text);
    return r;
}
