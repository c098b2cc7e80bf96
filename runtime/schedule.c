#include "runtime/schedule.h"

#include <errno.h>
#include <stdio.h>

#include "runtime/assert.h"
#include "runtime/err.h"
#include "runtime/model.h"

enum {
    UNITS = 132,       /* what a stock schedule tries to keep busy */
    TILE_COLUMNS = 64, /* of a matrix, to one unit */
    STOCK_CUTS_MAX = 8,
    STOCK_RUN_FEW = 8, /* of a norm: threads that have fewer rows sum longer runs */
    STOCK_RUN_MANY = 4,
    STOCK_FEW_ROWS = 16,
};

struct schedule schedule_canonical(void) {
    return (struct schedule){
        .qkv = 1, .o = 4, .gate_up = 1, .down = 4, .head = 1, .norm_run = 1, .split_keys = 512};
}

/* The least power of two that fills the units, or the most that leaves each segment 64 values. */
static uint8_t cuts(uint32_t n_columns, uint32_t n_k, uint32_t n_row_tiles) {
    uint32_t tiles = (n_columns + TILE_COLUMNS - 1) / TILE_COLUMNS * n_row_tiles;
    uint32_t segments = 1;

    while (segments < STOCK_CUTS_MAX && tiles * segments < UNITS && n_k / (segments * 2) >= 64)
        segments *= 2;
    return (uint8_t)segments;
}

/* Keys of a split; one split of all of them where the sequences alone fill the units. */
static uint32_t stock_split(const struct model *m, const struct schedule_load *load) {
    const uint32_t work = load->n_seqs * m->n_kv_heads;
    const uint32_t n_splits = work ? (UNITS + work - 1) / work : 1;
    const uint32_t split = (load->n_keys + n_splits - 1) / n_splits;

    if (n_splits == 1) return SCHEDULE_SPLIT_MAX;
    if (split == 0) return SCHEDULE_KV_BLOCK;
    return (split + SCHEDULE_KV_BLOCK - 1) / SCHEDULE_KV_BLOCK * SCHEDULE_KV_BLOCK;
}

struct schedule schedule_stock(const struct model *m, const struct schedule_load *load) {
    const uint32_t row_tiles = (load->n_rows + 63) / 64, width = m->n_heads * m->head_dim;

    return (struct schedule){
        .qkv = cuts(width + 2 * m->n_kv_heads * m->head_dim, m->hidden, row_tiles),
        .o = cuts(m->hidden, width, row_tiles),
        .gate_up = cuts(2 * m->intermediate, m->hidden, row_tiles),
        .down = cuts(m->hidden, m->intermediate, row_tiles),
        .head = cuts(m->vocab, m->hidden, row_tiles),
        .norm_run = load->n_rows < STOCK_FEW_ROWS ? STOCK_RUN_FEW : STOCK_RUN_MANY,
        .split_keys = stock_split(m, load),
    };
}

const char *schedule_set_name(enum schedule_set set) {
    static const char *const names[SCHEDULE_SETS] = {"tuned", "stock"};

    ASSERT(set < SCHEDULE_SETS);
    return names[set];
}

struct schedule schedule_fast(enum schedule_set set, const struct model *m,
                              const struct schedule_load *load) {
    return set == SCHEDULE_STOCK ? schedule_stock(m, load) : schedule_tuned(m, load);
}

bool schedule_equal(const struct schedule *a, const struct schedule *b) {
    return a->qkv == b->qkv && a->o == b->o && a->gate_up == b->gate_up && a->down == b->down &&
           a->head == b->head && a->norm_run == b->norm_run && a->split_keys == b->split_keys;
}

static bool power_of_two(uint32_t n, uint32_t n_max) {
    return n > 0 && n <= n_max && (n & (n - 1)) == 0;
}

int schedule_check(const struct schedule *s, struct err *e) {
    const uint8_t segments[] = {s->qkv, s->o, s->gate_up, s->down, s->head};

    for (size_t i = 0; i < sizeof(segments); i++)
        if (!power_of_two(segments[i], SCHEDULE_SEGMENTS_MAX))
            return err_set(e, -EINVAL, "%u K segments: a power of two up to %d", segments[i],
                           SCHEDULE_SEGMENTS_MAX);
    if (!power_of_two(s->norm_run, SCHEDULE_RUN_MAX))
        return err_set(e, -EINVAL, "a run of %u: a power of two up to %d", s->norm_run,
                       SCHEDULE_RUN_MAX);
    if (s->split_keys == 0 || s->split_keys % SCHEDULE_KV_BLOCK ||
        s->split_keys > SCHEDULE_SPLIT_MAX)
        return err_set(e, -EINVAL, "a KV split of %u keys: a multiple of %d up to %d",
                       s->split_keys, SCHEDULE_KV_BLOCK, SCHEDULE_SPLIT_MAX);
    return 0;
}

size_t schedule_write(const struct schedule *s, char text[SCHEDULE_TEXT_BYTES]) {
    int n = snprintf(text, SCHEDULE_TEXT_BYTES,
                     "k=qkv:%u,o:%u,gate_up:%u,down:%u,head:%u norm=tree,run:%u "
                     "kv=split:%u,block:%d lse=tree,chunk:%d",
                     s->qkv, s->o, s->gate_up, s->down, s->head, s->norm_run, s->split_keys,
                     SCHEDULE_KV_BLOCK, SCHEDULE_LSE_CHUNK);

    ASSERT(n > 0 && n < SCHEDULE_TEXT_BYTES);
    return (size_t)n;
}

uint32_t schedule_segment(uint32_t n_k, uint32_t segments) {
    uint32_t unit = 16 * segments;

    return (n_k + unit - 1) / unit * 16;
}
