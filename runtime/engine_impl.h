/* engine_impl - what the files of the engine share: engine.c (open, close, loop side), lane.c
 * (one running request) and engine_step.c (the engine's side).  For them alone. */
#ifndef LLM42D_RUNTIME_ENGINE_IMPL_H
#define LLM42D_RUNTIME_ENGINE_IMPL_H

#include <stdatomic.h>

#include "runtime/cost.h"
#include "runtime/dvr.h"
#include "runtime/engine.h"
#include "runtime/sha256.h"
#include "runtime/stop.h"
#include "runtime/template.h"

struct kv;
struct queue;

/* A request from submit to its last event.  The loop side writes it while it is free; from the
 * moment it is in the ring it is the engine's, until its last event is taken. */
struct slot {
    struct engine_request request; /* prompt points to tokens */
    uint32_t *tokens;              /* [context] */
    uint64_t handle;
    uint64_t submit_us;
    atomic_uint granted; /* token events, in total: the loop adds */
    atomic_bool cancel;  /* the loop sets */
    bool live;           /* the loop's own */
};

/* A verdict that is not yet out: one token with its logprobs. */
struct record {
    bool prompt;
    uint32_t position; /* absolute */
    uint32_t id;
    float logprob;
    uint32_t n_top;
    uint32_t top_ids[SAMPLE_TOP_MAX];
    float top_logprobs[SAMPLE_TOP_MAX];
};

/* A running request. */
struct lane {
    struct slot *slot; /* NULL: free */
    struct dvr_seq seq;
    uint32_t *pages; /* [n_seq_pages] */
    uint32_t n_pages;
    bool moved;   /* the device does not know its pages yet */
    uint32_t age; /* steps since it was served */

    /* Committed and not yet given to the loop.  Those of one step may wait while the next runs;
     * where the loop takes no more, the sequence is in no step until all is out. */
    struct record *records; /* [2 records_max] */
    uint32_t n_records, next_record;
    bool stalled; /* something could not go out when it was time */
    bool closing; /* the last record ends the output: nothing more is computed */
    struct stop_text text;
    uint8_t *out; /* text on its way, [out_max] */
    uint32_t n_out, next_out;
    uint32_t n_events; /* token and text events posted, at most `granted` */
    struct sha256 *digest;

    uint8_t finish, stop_kind; /* 0 while it runs */
    uint16_t stop_index;
    int failed; /* -errno, or 0 */
    char why[128];
    struct engine_usage usage;
    uint64_t start_us, first_us;
};

struct engine {
    struct engine_facts facts;
    struct plan_options plan;
    struct cost cost;
    bool after_pass; /* of a fixed shape: plan_now */
    struct device *dev;
    struct token *token;
    struct template template;
    struct kv *kv;
    uint32_t context, n_seq_pages, out_max, n_logit_rows, rows_max;
    uint32_t records_max; /* of one step and lane */
    char *fingerprint_text;
    char *model_path;

    struct slot *slots; /* [n_slots] */
    uint32_t n_slots;
    uint32_t *free_slots; /* the loop's stack */
    uint32_t n_free_slots;

    struct queue *submits; /* of slot index, loop to engine */
    struct queue *events;  /* of struct engine_event, engine to loop */
    int submit_fd, event_fd;
    atomic_bool events_full; /* the engine could not post: the loop wakes it */
    atomic_bool dead;

    /* The engine side. */
    uint32_t *waiting; /* FIFO ring of slot indices, [n_slots] */
    uint32_t first_waiting, n_waiting;
    struct lane *lanes; /* [max_requests] */
    uint32_t n_lanes;
    struct sha256 *digest;
    bool posted; /* since the last wake-up of the loop */
    uint32_t *pad_pages;
    uint32_t n_pad_pages;

    struct plan_seq *plan_seqs;
    uint32_t *plan_lanes; /* which lane is sequence i of the plan */
    struct plan_item *items;
    struct device_row *rows;
    uint32_t *pages;   /* [n_lanes + 1][n_seq_pages], a line a lane, then that of padding */
    uint32_t *changed; /* lines of it that the next upload brings */
    bool pad_known;    /* the device has the last line */
    struct device_want *wants;
    struct device_result *results;
    uint8_t *flagged;
    uint32_t *verified; /* [DVR_WINDOW_MAX] */
    uint8_t *scratch;

    struct engine_stats now; /* the engine's own */
    _Atomic uint64_t published[sizeof(struct engine_stats) / sizeof(uint64_t)];
};

uint64_t engine_clock_us(void);

/* Room for one more event; where there is none, the loop wakes the engine once there is. */
bool engine_room(struct engine *g);
/* Posts an event; there is room. */
void engine_post(struct engine *g, const struct engine_event *event);

/* lane.c */
void lane_start(struct engine *g, struct lane *lane, struct slot *slot);
/* A committed token on its way out; `result` is the row that chose it. */
void lane_push(struct lane *lane, uint32_t position, uint32_t id,
               const struct device_result *result);
/* A prompt token's logprob. */
void lane_push_prompt(struct lane *lane, uint32_t position, uint32_t id,
                      const struct device_result *result);
/* Posts what there is grant and room for; decides stops as it goes; ends the lane when all is
 * out.  True if anything was posted. */
bool lane_release(struct engine *g, struct lane *lane);
void lane_finish(struct engine *g, struct lane *lane, uint8_t finish);
/* Ends it with what is out so far: cancelled, or over its deadline. */
void lane_cut(struct engine *g, struct lane *lane, uint8_t finish);
void lane_fail(struct engine *g, struct lane *lane, int code, const char *why);
/* The token is a stop for this request: an id alone, whatever the text says. */
bool lane_stops(const struct engine *g, const struct lane *lane, uint32_t id, uint16_t *out_index);
/* After a step whose records go out during the next: ends what they end, as far as ids and counts
 * say.  Where a text could end it, the records go out at once. */
void lane_decide(struct engine *g, struct lane *lane);
/* Runs, nothing of it was held up, and there is grant beyond what waits to go out. */
bool lane_ready(const struct lane *lane);
/* The last event of a request that never ran. */
bool lane_refuse(struct engine *g, struct slot *slot, uint8_t finish, int code, const char *why);

#endif
