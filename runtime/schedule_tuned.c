/* The table of the fastest cuts, as `llm42-bench tune` prints it, and where a load stands in it. */
#include <stddef.h>

#include "runtime/model.h"
#include "runtime/schedule.h"

#ifndef SCHEDULE_TABLE /* as in tests/schedule_table_test.c */
#define SCHEDULE_TABLE "runtime/schedule_sm90.inc"
#endif

enum part { QKV, O, GATE_UP, DOWN, HEAD };
enum kind { DECODE, PROMPT };

/* The shortest prompt that was measured.  Fewer rows than that, behind as many keys, want splits to fill
 * the GPU: they are not what its lines are of. */
enum { PROMPT_ROWS_MIN = 512 };

/* Of a product of this shape with so many rows or fewer, down to the line before. */
struct product {
    enum part part;
    uint32_t n, n_k, rows_max, segments;
};

/* Of attention: sequences and keys likewise, all keys of one number of sequences together. */
struct split {
    enum kind kind;
    uint32_t n_heads, n_kv_heads, head_dim, seqs_max, keys_max, split_keys;
};

/* Of a norm. */
struct norm {
    uint32_t hidden, rows_max, run;
};

/* Each ends with a line of no shape. */
static const struct product products[] = {
#define PRODUCT(...) {__VA_ARGS__},
#define SPLIT(...)
#define NORM(...)
#include SCHEDULE_TABLE
#undef PRODUCT
#undef SPLIT
#undef NORM
    {QKV, 0, 0, 0, 0}};

static const struct split splits[] = {
#define PRODUCT(...)
#define SPLIT(...) {__VA_ARGS__},
#define NORM(...)
#include SCHEDULE_TABLE
#undef PRODUCT
#undef SPLIT
#undef NORM
    {DECODE, 0, 0, 0, 0, 0, 0}};

static const struct norm norms[] = {
#define PRODUCT(...)
#define SPLIT(...)
#define NORM(...) {__VA_ARGS__},
#include SCHEDULE_TABLE
    {0, 0, 0}};

/* The first line that holds the load, or what is canonical. */
static uint8_t segments(enum part part, uint32_t n, uint32_t n_k, uint32_t n_rows,
                        uint8_t canonical) {
    for (const struct product *p = products; p->n; p++)
        if (p->part == part && p->n == n && p->n_k == n_k && n_rows <= p->rows_max)
            return (uint8_t)p->segments;
    return canonical;
}

static uint8_t norm_run(uint32_t hidden, uint32_t n_rows, uint8_t canonical) {
    for (const struct norm *p = norms; p->hidden; p++)
        if (p->hidden == hidden && n_rows <= p->rows_max) return (uint8_t)p->run;
    return canonical;
}

static uint32_t split_keys(const struct model *m, const struct schedule_load *load,
                           uint32_t canonical) {
    const enum kind kind = load->n_rows > load->n_seqs ? PROMPT : DECODE;
    const struct split *found = NULL;

    if (kind == PROMPT && load->n_rows < PROMPT_ROWS_MIN) return canonical;
    for (const struct split *p = splits; p->n_heads; p++)
        if (p->kind == kind && p->n_heads == m->n_heads && p->n_kv_heads == m->n_kv_heads &&
            p->head_dim == m->head_dim && load->n_seqs <= p->seqs_max &&
            load->n_keys <= p->keys_max) {
            found = p;
            break;
        }
    if (!found) return canonical;
    /* One split of all keys is one split, however many more it would hold. */
    if (load->n_keys <= canonical && load->n_keys <= found->split_keys) return canonical;
    return found->split_keys;
}

struct schedule schedule_tuned(const struct model *m, const struct schedule_load *load) {
    const uint32_t width = m->n_heads * m->head_dim, kv_width = m->n_kv_heads * m->head_dim;
    const struct schedule c = schedule_canonical();

    return (struct schedule){
        .qkv = segments(QKV, width + 2 * kv_width, m->hidden, load->n_rows, c.qkv),
        .o = segments(O, m->hidden, width, load->n_rows, c.o),
        .gate_up = segments(GATE_UP, 2 * m->intermediate, m->hidden, load->n_rows, c.gate_up),
        .down = segments(DOWN, m->hidden, m->intermediate, load->n_rows, c.down),
        /* A logit row for each sequence. */
        .head = segments(HEAD, m->vocab, m->hidden, load->n_seqs, c.head),
        .norm_run = norm_run(m->hidden, load->n_rows, c.norm_run),
        .split_keys = split_keys(m, load, c.split_keys),
    };
}
