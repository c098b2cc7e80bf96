/* Experiments about bits: of one row, as the rows beside it become more, move, or turn to nonsense;
 * by operation and by set of schedules.  Where canonical bits change, that is a fault. */
#include <stdlib.h>
#include <string.h>

#include "runtime/err.h"
#include "runtime/num.h"
#include "tools/bench_lab_experiment.h"

enum {
    ROUND_US = 1500,
    ROUNDS = 5,
    WINDOW = 16, /* rows of one sequence, the last of which is looked at */
    SLOTS = 4,
    SEQS_MAX = 256,
    /* Rounding to bf16 hides most orders of a sum: one row would not show them. */
    SUBJECTS_GPU = 32,
    SUBJECTS_CPU = 6,
    COUNTS_MAX = 24,
};

/* ---- Rows of a buffer, and how far two are the same ---- */

struct differs {
    uint32_t n, ulp_max; /* values that differ, and by how much at most */
};

/* In the order of numbers, so that neighbours differ by 1. */
static int64_t ordinal(const uint8_t *at, uint32_t value_bytes) {
    const int64_t sign = value_bytes == 2 ? 0x8000 : 0x80000000ll;
    uint32_t bits = 0;

    memcpy(&bits, at, value_bytes);
    return bits & sign ? sign - (int64_t)bits : (int64_t)bits;
}

static struct differs compare(const uint8_t *a, const uint8_t *b, uint32_t n,
                              uint32_t value_bytes) {
    struct differs d = {0, 0};

    for (uint32_t i = 0; i < n; i++, a += value_bytes, b += value_bytes) {
        const int64_t by = llabs(ordinal(a, value_bytes) - ordinal(b, value_bytes));

        if (by == 0) continue;
        d.n++;
        if (by > d.ulp_max) d.ulp_max = by > INT32_MAX ? INT32_MAX : (uint32_t)by;
    }
    return d;
}

static void row_write(struct bench_lab *l, enum device_buffer buffer, uint32_t row,
                      const void *values) {
    struct err e = {""};

    bench_lab_must(l->dev->ops->write(l->dev, buffer, row, values, &e), &e);
}

static void row_read(struct bench_lab *l, enum device_buffer buffer, uint32_t row, void *values) {
    struct err e = {""};

    bench_lab_must(l->dev->ops->read(l->dev, buffer, row, values, &e), &e);
}

/* ---- Operations ---- */

enum op { NORM, QKV, DECODE, WINDOWED, O, GATE_UP, DOWN, HEAD, SAMPLE, OPS };

static const struct operation {
    const char *name;
    enum bench_lab_stage stage;
    enum device_buffer in, out;
    bool adds; /* to the residual stream, which is zero then */
} operations[OPS] = {
    [NORM] = {"norm", BENCH_LAB_ATTN_IN, DEVICE_X, DEVICE_QKV, false},
    [QKV] = {"qkv and rotation", BENCH_LAB_ATTN_IN, DEVICE_X, DEVICE_QKV, false},
    [DECODE] = {"attention of 1 row", BENCH_LAB_ATTEND, DEVICE_QKV, DEVICE_ATTN, false},
    [WINDOWED] = {"attention of 16 rows", BENCH_LAB_ATTEND, DEVICE_QKV, DEVICE_ATTN, false},
    [O] = {"o", BENCH_LAB_ATTN_OUT, DEVICE_ATTN, DEVICE_X, true},
    [GATE_UP] = {"gate_up and silu", BENCH_LAB_MLP_IN, DEVICE_X, DEVICE_H, false},
    [DOWN] = {"down", BENCH_LAB_MLP_OUT, DEVICE_H, DEVICE_X, true},
    [HEAD] = {"head", BENCH_LAB_LOGITS, DEVICE_X, DEVICE_LOGITS, false},
    [SAMPLE] = {"choice of a token", BENCH_LAB_LOGITS, DEVICE_X, DEVICE_LOGITS, false},
};

static uint32_t width_of(const struct model *m, enum device_buffer buffer) {
    switch (buffer) {
    case DEVICE_X:
        return m->hidden;
    case DEVICE_QKV:
        return (m->n_heads + 2 * m->n_kv_heads) * m->head_dim;
    case DEVICE_ATTN:
        return m->n_heads * m->head_dim;
    case DEVICE_H:
        return m->intermediate;
    case DEVICE_LOGITS:
        return m->vocab;
    }
    return 0;
}

/* The canonical schedule but for what this operation has of it. */
static struct schedule only(enum op op, const struct schedule *s) {
    struct schedule one = schedule_canonical();

    if (op == NORM) one.norm_run = s->norm_run;
    if (op == QKV) one.qkv = s->qkv;
    if (op == DECODE || op == WINDOWED) one.split_keys = s->split_keys;
    if (op == O) one.o = s->o;
    if (op == GATE_UP) one.gate_up = s->gate_up;
    if (op == DOWN) one.down = s->down;
    if (op == HEAD) one.head = s->head;
    return one;
}

static uint32_t cut_of(enum op op, const struct schedule *s) {
    const uint32_t cuts[OPS] = {
        s->norm_run, s->qkv, s->split_keys, s->split_keys, s->o, s->gate_up, s->down, s->head, 0};

    return cuts[op];
}

/* What goes in: the subjects', and that of a neighbour; what comes out. */
struct rows {
    uint16_t *subjects, *other, *zeros, *nans;
    uint8_t *out, *want; /* [n][n_out] */
    uint32_t n, n_in, n_out, value_bytes;
};

/* From 2^-8 to 4, so that small values meet large sums. */
static uint16_t value(uint64_t seed, uint32_t index, uint32_t i) {
    const uint32_t bits = num_random(seed, index, i);
    const float unit = (float)(bits >> 8) * 0x1p-23f - 1;

    return num_to_bf16(unit * (float)(1u << bits % 11) * 0x1p-8f);
}

static struct rows rows_open(const struct bench_lab *l, enum op op) {
    const uint32_t n = width_of(&l->model, operations[op].in);
    struct rows r = {.n = l->dev->ops->queues ? SUBJECTS_GPU : SUBJECTS_CPU,
                     .n_in = n,
                     .n_out = width_of(&l->model, operations[op].out),
                     .value_bytes = operations[op].out == DEVICE_LOGITS ? 4 : 2};
    const uint32_t n_zeros = n > l->model.hidden ? n : l->model.hidden;

    r.subjects = bench_lab_take((size_t)r.n * n, 2);
    r.other = bench_lab_take(n, 2);
    r.zeros = bench_lab_take(n_zeros, 2);
    r.nans = bench_lab_take(n, 2);
    r.out = bench_lab_take((size_t)r.n * r.n_out, r.value_bytes);
    r.want = bench_lab_take((size_t)r.n * r.n_out, r.value_bytes);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < r.n; k++)
            r.subjects[(size_t)k * n + i] = value(l->o->seed, (uint32_t)op * SUBJECTS_GPU + k, i);
        r.other[i] = value(l->o->seed, OPS * SUBJECTS_GPU, i);
        r.nans[i] = 0x7fff;
    }
    if (op == SAMPLE) { /* token, logprob, logsumexp */
        r.n_out = 3;
        r.value_bytes = 4;
    }
    return r;
}

static void rows_close(struct rows *r) {
    free(r->subjects);
    free(r->other);
    free(r->zeros);
    free(r->nans);
    free(r->out);
    free(r->want);
}

/* The subjects one after the other in row `at` of the batch that is there; other rows have what is
 * given, or what is there. */
static void compute(struct bench_lab *l, enum op op, const struct schedule *s, struct rows *r,
                    uint32_t at, const uint16_t *others, uint8_t *out) {
    const struct operation *o = &operations[op];
    const struct schedule one = only(op, s);
    struct err e = {""};

    for (uint32_t i = 0; others && i < l->batch.n_rows; i++) row_write(l, o->in, i, others);
    for (uint32_t k = 0; k < r->n; k++, out += (size_t)r->n_out * r->value_bytes) {
        row_write(l, o->in, at, r->subjects + (size_t)k * r->n_in);
        if (o->adds) row_write(l, DEVICE_X, at, r->zeros);
        bench_lab_queue(l, o->stage, 0, &one);
        if (op == SAMPLE) bench_lab_must(l->dev->ops->sample(l->dev, 0, l->batch.n_wants, &e), &e);
        bench_lab_wait(l);
        if (op == SAMPLE) {
            memcpy(out, &l->results[at].token, 4);
            memcpy(out + 4, &l->results[at].logprob, 4);
            memcpy(out + 8, &l->results[at].lse, 4);
        } else {
            row_read(l, o->out, at, out);
        }
    }
}

static struct differs compare_all(const struct rows *r) {
    return compare(r->out, r->want, r->n * r->n_out, r->value_bytes);
}

/* ---- gemm, norm: by rows ---- */

static uint32_t counts_of(const struct bench_lab_run *r, uint32_t *counts) {
    static const uint32_t gpu[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048};
    static const uint32_t cpu[] = {1, 2, 8, 16, 64, 128, 256};
    const uint32_t *usual = r->is_cuda ? gpu : cpu, n_max = r->is_cuda ? 2048 : 256;
    uint32_t n = 0;

    if (r->o->n_rows == 0) {
        n = r->is_cuda ? sizeof(gpu) / sizeof(gpu[0]) : sizeof(cpu) / sizeof(cpu[0]);
        memcpy(counts, usual, n * sizeof(*counts));
        return n;
    }
    for (uint32_t i = 0; i < r->o->n_rows; i++)
        if (r->o->rows[i] <= n_max) counts[n++] = r->o->rows[i];
    return n;
}

static double stage_us(struct bench_lab *l, enum op op, const struct schedule *s) {
    const struct schedule one = only(op, s);
    const uint32_t n_calls = bench_lab_calls(l, operations[op].stage);
    double us[ROUNDS], once = 0;
    uint32_t n = 1;

    for (int use = 0; use < 3; use++) once = bench_lab_us(l, operations[op].stage, &one, 1);
    while (n * n_calls * once < ROUND_US) n *= 2;
    for (int i = 0; i < ROUNDS; i++) us[i] = bench_lab_us(l, operations[op].stage, &one, n);
    return bench_quantile(us, ROUNDS, 0.5);
}

static double macs_of(const struct model *m, enum op op) {
    const double width = m->n_heads * m->head_dim, kv_width = m->n_kv_heads * m->head_dim;
    const double macs[OPS] = {[QKV] = (width + 2 * kv_width) * m->hidden,
                              [O] = width * m->hidden,
                              [GATE_UP] = 2.0 * m->intermediate * m->hidden,
                              [DOWN] = (double)m->intermediate * m->hidden,
                              [HEAD] = (double)m->vocab * m->hidden};

    return macs[op];
}

/* Row 0 of so many of one sequence, against itself alone. */
static int by_rows(struct bench_lab_run *run, enum op op, uint32_t n_rows) {
    struct bench_lab *l = &run->lab;
    int code = BENCH_OK;

    if (op == HEAD && n_rows > l->n_logit_rows) return BENCH_OK;
    for (uint32_t set = 0; code == BENCH_OK && set < BENCH_LAB_SETS; set++) {
        const uint32_t n_seqs = op == HEAD ? n_rows : 1;
        const struct schedule alone = bench_lab_schedule(l, set, 1, 1, 1);
        const struct schedule s = bench_lab_schedule(l, set, n_rows, n_seqs, n_rows);
        struct bench_row *row;
        struct differs d;
        struct rows r;
        double us;

        if (!bench_lab_wants(run, "%s,%s,%u", operations[op].name, bench_lab_sets[set], n_rows))
            continue;
        r = rows_open(l, op);
        bench_lab_batch(l, 1, 1, 1);
        compute(l, op, &alone, &r, 0, NULL, r.want);
        bench_lab_batch(l, n_rows, 1, n_rows);
        compute(l, op, &s, &r, 0, NULL, r.out);
        d = compare_all(&r);
        us = stage_us(l, op, &s);
        row = bench_lab_take(1, sizeof(*row));
        bench_row_text(row, "op,schedules,rows", "%s,%s,%u", operations[op].name,
                       bench_lab_sets[set], n_rows);
        bench_row_text(row, op == NORM ? "run" : "segments", "%u", cut_of(op, &s));
        bench_row_text(row, "stage_us", "%.5g", us);
        if (op != NORM) bench_row_number(row, "gmac_s", macs_of(&l->model, op) * n_rows / us / 1e3);
        bench_row_text(row, "values", "%u", r.n * r.n_out);
        bench_row_text(row, "differ_from_alone", "%u", d.n);
        bench_row_text(row, "ulp_max", "%u", d.ulp_max);
        if (set == 0 && d.n > 0)
            bench_lab_wrong(run, "%s, %u rows: %u values are not those of one row alone",
                            operations[op].name, n_rows, d.n);
        else
            code = bench_lab_row(run, row);
        free(row);
        rows_close(&r);
    }
    return code;
}

int bench_lab_gemm(struct bench_lab_run *run) {
    static const enum op ops[] = {QKV, O, GATE_UP, DOWN, HEAD};
    uint32_t counts[COUNTS_MAX], n = counts_of(run, counts);
    int code = BENCH_OK;

    for (uint32_t i = 0; code == BENCH_OK && i < n; i++)
        for (int op = 0; code == BENCH_OK && op < 5; op++) code = by_rows(run, ops[op], counts[i]);
    return code;
}

int bench_lab_norm(struct bench_lab_run *run) {
    uint32_t counts[COUNTS_MAX], n = counts_of(run, counts);
    int code = BENCH_OK;

    for (uint32_t i = 0; code == BENCH_OK && i < n; i++) code = by_rows(run, NORM, counts[i]);
    return code;
}

/* ---- invariance: a line an operation and set ---- */

/* n sequences of as many keys, one row each; the subject is number `slot`, on pages of its own that
 * hold what its prompt left, and with a window it has WINDOW rows.  The subject's row. */
static uint32_t crowd(struct bench_lab *l, enum op op, uint32_t n, uint32_t slot, uint32_t n_keys) {
    const uint32_t n_own = l->n_seq_pages, at = slot + (op == WINDOWED ? WINDOW - 1 : 0);
    uint32_t n_rows = 0;
    struct err e = {""};

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t rows = i == slot && op == WINDOWED ? WINDOW : 1;

        for (uint32_t p = 0; p < n_own; p++)
            l->pages[i * n_own + p] = i == slot ? p : n_own + (p * n + i) % (l->n_pages - n_own);
        for (uint32_t k = 0; k < rows; k++)
            l->rows[n_rows++] =
                (struct device_row){(17 * i + 5) % l->model.vocab, n_keys - rows + k, i};
        if (i == slot) /* its tokens are those of its prompt, wherever it stands */
            for (uint32_t k = 0; k < rows; k++)
                l->rows[n_rows - rows + k].token = (29 * (n_keys - rows + k) + 3) % l->model.vocab;
    }
    l->batch = (struct device_batch){.n_rows = n_rows,
                                     .rows = l->rows,
                                     .n_seqs = n,
                                     .pages = l->pages,
                                     .n_wants = op == WINDOWED ? 1 : n,
                                     .wants = l->wants};
    for (uint32_t i = 0; i < l->batch.n_wants; i++)
        l->wants[i] = (struct device_want){
            .row = i,
            .target = DEVICE_NO_TOKEN,
            .params = {.temperature = op == SAMPLE ? 0.8f : 0, .top_p = 0.95f, .seed = 5}};
    bench_lab_must(l->dev->ops->upload(l->dev, &l->batch, &e), &e);
    return at;
}

/* The subject's keys and values, and numbers in every buffer. */
static void prompt(struct bench_lab *l, uint32_t n_keys) {
    for (uint32_t p = 0; p < l->n_seq_pages; p++) l->pages[p] = p;
    for (uint32_t i = 0; i < n_keys; i++)
        l->rows[i] = (struct device_row){(29 * i + 3) % l->model.vocab, i, 0};
    l->batch =
        (struct device_batch){.n_rows = n_keys, .rows = l->rows, .n_seqs = 1, .pages = l->pages};
    bench_lab_batch_run(l);
}

struct verdict {
    uint32_t n_counts, counts_differ, first_differs, n_slots, slots_differ, neighbours_differ;
    struct differs most;
};

static void note(struct verdict *v, struct differs d) {
    if (d.n > v->most.n) v->most.n = d.n;
    if (d.ulp_max > v->most.ulp_max) v->most.ulp_max = d.ulp_max;
}

static struct verdict judge(struct bench_lab_run *run, enum op op, uint32_t set, uint32_t n_keys) {
    static const uint32_t gpu[] = {1,  2,  3,  7,  8,  9,   16,  17,  31,  32, 33,
                                   63, 64, 65, 80, 96, 127, 128, 129, 255, 256};
    static const uint32_t cpu[] = {1, 2, 9, 33, 128, 256};
    const uint32_t n_usual =
        run->is_cuda ? sizeof(gpu) / sizeof(gpu[0]) : sizeof(cpu) / sizeof(cpu[0]);
    const uint32_t *usual = run->is_cuda ? gpu : cpu, n = run->is_cuda ? 64 : 17;
    const uint32_t n_counts = run->o->n_rows ? run->o->n_rows : n_usual;
    const uint32_t *counts = run->o->n_rows ? run->o->rows : usual;
    const uint32_t slots[SLOTS] = {0, 1, n / 2, n - 1}, more = op == WINDOWED ? WINDOW - 1 : 0;
    struct bench_lab *l = &run->lab;
    const struct schedule alone = bench_lab_schedule(l, set, 1, 1, n_keys),
                          beside = bench_lab_schedule(l, set, n + more, n, n_keys);
    struct verdict v = {.n_counts = n_counts, .n_slots = SLOTS};
    struct rows r = rows_open(l, op);
    /* Numbers last: they stay, and the twin is slow with what is none. */
    const uint16_t *others[3] = {r.nans, r.zeros, r.other};
    struct differs d;
    uint32_t at;

    if (op == NORM || op == DECODE || op == WINDOWED) prompt(l, n_keys);
    at = crowd(l, op == WINDOWED ? DECODE : op, 1, 0, n_keys);
    compute(l, op, &alone, &r, at, NULL, r.want);
    for (uint32_t i = 0; i < n_counts; i++) {
        const uint32_t n_seqs = counts[i] < SEQS_MAX ? counts[i] : SEQS_MAX;
        const struct schedule s = bench_lab_schedule(l, set, n_seqs + more, n_seqs, n_keys);

        at = crowd(l, op, n_seqs, 0, n_keys);
        compute(l, op, &s, &r, at, NULL, r.out);
        d = compare_all(&r);
        note(&v, d);
        if (d.n > 0 && v.counts_differ++ == 0) v.first_differs = n_seqs;
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        at = crowd(l, op, n, slots[i], n_keys);
        compute(l, op, &beside, &r, at, NULL, i == 0 ? r.want : r.out);
        if (i > 0) v.slots_differ += compare_all(&r).n > 0;
    }
    r.n = 1;
    for (int i = 0; i < 3; i++) {
        at = crowd(l, op, n, 1, n_keys);
        compute(l, op, &beside, &r, at, others[i], r.out);
        v.neighbours_differ += compare_all(&r).n > 0;
    }
    rows_close(&r);
    return v;
}

static int line(struct bench_lab_run *run, enum op op, uint32_t set, uint32_t n_keys) {
    const struct verdict v = judge(run, op, set, n_keys);
    struct bench_row *row = bench_lab_take(1, sizeof(*row));
    int code = BENCH_OK;

    bench_row_text(row, "op,schedules,keys", "%s,%s,%u", operations[op].name, bench_lab_sets[set],
                   n_keys);
    bench_row_text(row, "batch_invariant", "%s", v.counts_differ ? "no" : "yes");
    bench_row_text(row, "position_invariant", "%s",
                   v.slots_differ || v.neighbours_differ ? "no" : "yes");
    bench_row_text(row, "row_counts", "%u", v.n_counts);
    bench_row_text(row, "counts_differ", "%u", v.counts_differ);
    bench_row_text(row, "first_differs", "%u", v.first_differs);
    bench_row_text(row, "values_differ_max", "%u", v.most.n);
    bench_row_text(row, "ulp_max", "%u", v.most.ulp_max);
    bench_row_text(row, "slots", "%u", v.n_slots);
    bench_row_text(row, "slots_differ", "%u", v.slots_differ);
    bench_row_text(row, "neighbours_differ", "%u", v.neighbours_differ);
    if (v.slots_differ || v.neighbours_differ || (set == 0 && v.counts_differ))
        bench_lab_wrong(run, "%s, %s: %u counts, %u slots, %u kinds of neighbours",
                        operations[op].name, bench_lab_sets[set], v.counts_differ, v.slots_differ,
                        v.neighbours_differ);
    code = bench_lab_row(run, row);
    free(row);
    return code;
}

int bench_lab_invariance(struct bench_lab_run *run) {
    const uint32_t n_keys = run->is_cuda ? 1500 : 700;
    int code = BENCH_OK;

    for (enum op op = 0; op < OPS; op++)
        for (uint32_t set = 0; code == BENCH_OK && set < BENCH_LAB_SETS; set++) {
            if (op == SAMPLE && set > 0) continue; /* it is in no schedule */
            if (bench_lab_wants(run, "%s,%s,%u", operations[op].name, bench_lab_sets[set], n_keys))
                code = line(run, op, set, n_keys);
        }
    return code;
}
