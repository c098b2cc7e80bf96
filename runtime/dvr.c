#include "runtime/dvr.h"

#include <string.h>

#include "runtime/assert.h"

static void check(const struct dvr_seq *s) {
    ASSERT(s->n_prompt <= s->n_committed && s->n_committed <= s->n_tokens);
    ASSERT(s->n_tokens <= s->n_limit && s->n_kv <= s->n_tokens);
}

struct dvr_seq dvr_start(uint32_t *tokens, uint32_t n_prompt, uint32_t max_tokens,
                         bool deterministic) {
    ASSERT(n_prompt > 0 && max_tokens <= UINT32_MAX - n_prompt);

    return (struct dvr_seq){
        .tokens = tokens,
        .n_prompt = n_prompt,
        .n_limit = n_prompt + max_tokens,
        .n_committed = n_prompt,
        .n_tokens = n_prompt,
        .deterministic = deterministic,
    };
}

uint32_t dvr_prompt_left(const struct dvr_seq *s) {
    return s->n_kv < s->n_prompt && s->n_tokens == s->n_prompt ? s->n_prompt - s->n_kv : 0;
}

uint32_t dvr_candidates(const struct dvr_seq *s) {
    return s->n_tokens - s->n_committed;
}

bool dvr_clean(const struct dvr_seq *s) {
    return s->n_tokens == s->n_committed && s->n_kv + 1 == s->n_tokens;
}

bool dvr_due(const struct dvr_seq *s, uint32_t window, bool stops) {
    uint32_t n = dvr_candidates(s);

    ASSERT(window >= 1 && window <= DVR_WINDOW_MAX);

    if (!s->deterministic || dvr_prompt_left(s) > 0) return false;
    return n + 1 >= window || (n > 0 && (stops || s->n_tokens == s->n_limit));
}

void dvr_prefilled(struct dvr_seq *s, uint32_t n) {
    ASSERT(n <= dvr_prompt_left(s));
    s->n_kv += n;
}

void dvr_first(struct dvr_seq *s, uint32_t token) {
    ASSERT(s->n_kv == s->n_prompt && s->n_tokens == s->n_prompt && s->n_tokens < s->n_limit);

    s->tokens[s->n_tokens++] = token;
    s->n_committed = s->n_tokens;
    check(s);
}

bool dvr_decoded(struct dvr_seq *s, uint32_t token, bool canonical) {
    bool certified = canonical && dvr_clean(s);

    ASSERT(s->n_tokens > s->n_prompt && s->n_tokens < s->n_limit);

    if (certified) s->n_kv = s->n_tokens;
    s->tokens[s->n_tokens++] = token;
    if (certified || !s->deterministic) s->n_committed = s->n_tokens;
    check(s);
    return s->n_committed == s->n_tokens;
}

struct dvr_verdict dvr_verified(struct dvr_seq *s, const uint32_t *verified) {
    uint32_t n_candidates = dvr_candidates(s);
    uint32_t *candidates = s->tokens + s->n_committed;
    uint32_t room = s->n_limit - s->n_committed;
    uint32_t n_same = 0, n_commit;

    ASSERT(s->deterministic && n_candidates < DVR_WINDOW_MAX && room > 0);
    ASSERT(s->n_kv + 1 >= s->n_committed); /* what the window was computed on */

    while (n_same < n_candidates && candidates[n_same] == verified[n_same]) n_same++;

    /* The extra token of a window that reaches the limit has no place. */
    n_commit = n_same + 1 < room ? n_same + 1 : room;
    memcpy(candidates, verified, n_commit * sizeof(verified[0]));

    /* t and the candidates that stood have canonical K and V now; the token after is yet to be fed. */
    s->n_kv = s->n_committed + n_same;
    s->n_committed += n_commit;
    s->n_tokens = s->n_committed;
    check(s);
    return (struct dvr_verdict){.n_commit = n_commit, .n_dropped = n_candidates - n_same};
}
