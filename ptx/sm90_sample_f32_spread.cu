// sm90_sample_f32_spread - of each row of logits: logsumexp, the token chosen, the most probable
// (SPEC 2.10, 2.11), by the blocks of a cluster, each with a share of the row in shared memory.
//
//   results   [n_rows]
//   wants     [n_rows]; a row whose n_top is BATCH_NO_WANT is left as it is
//   logits    f32 [n_rows][stride], the first vocab of a row, 16-byte aligned
//   scratch   f32 [n_rows][stride], 16-byte aligned; stride a multiple of 4
//   share     chunks of 128 logits a block: all blocks' are not less than n_chunks
//   grid      (n_ranks, n_rows, 1), clusters of n_ranks, at most SM90_SPREAD_RANKS
//   block     (1024, 1, 1)
//   shared    SM90_SPREAD_BYTES(share, n_ranks) dynamic, 13 KB
//   rounding  bit-exact: exp2p of num.h, trees over adjacent ids and chunks; sums of weights are
//             integers, so their order is free, and so is that of maxima and minima, which have the
//             id below the value
//   bound by  latency: of few rows loads, passes and meetings of the cluster (128256 logits, one row:
//             greedy 5.4 us, top_p 41.5, docs/performance.md); of many rows arithmetic
//
// Each block sums the chunks of its share and leaves maximum and sum of each with all blocks, so that
// each of them knows the largest logit and the logsumexp without asking.  A draw then weighs its share
// by depth, the ranks read each other's bins, and each finds the same bin by the same sums; the ids of
// that bin are selected by key, bins of keys read in the same way.  Whoever has the token writes it.
// top_k up to 1024 and lists of the most probable are one block's work, as in sm90_sample_f32.
#include "ptx/sm90_sample_cut.cuh"

// Four adjacent ids from `id` on, of which some run; s.bound is there.
static __device__ inline void run_four(shared &s, const batch_want &want, unsigned id,
                                       const bool (&runs)[4], const float (&e)[4], float bound,
                                       word64 &best) {
    const uint4 made = words_of(want, id / 4);
    const unsigned words[4] = {made.x, made.y, made.z, made.w};
    float least[4];
    unsigned left = 0;

    // E is at least v log2(e), v = (word + 1/2) / 2^32, give or take 2^-18: whoever is slower than
    // some other by more than that is out
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        least[i] = (float)words[i] * 0x1.7147p-32f;
        left |= (runs[i] && least[i] <= bound * e[i]) << i;
    }
    // the likely fastest first, so that few others have to run
    while (left) {
        unsigned at = 0, word = 0;
        float first = 0.0f, own_e = 0.0f;

#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            if (!(left >> i & 1) || (own_e > 0.0f && least[i] * own_e >= first * e[i])) continue;
            at = i;
            word = words[i];
            first = least[i];
            own_e = e[i];
        }
        const word64 own = time_of(id | at, word, own_e);

        if (own > best) {
            best = own;
            atomicMin(&s.bound, HIGH(~own));
        }
        left &= ~(1u << at);
#pragma unroll
        for (unsigned i = 0; i < 4; i++)
            if (least[i] > num_from_bits(HIGH(~own)) * e[i]) left &= ~(1u << i);
    }
}

// To x.limit and s.bound a time that the fastest of all ranks will most likely beat.  With a sum S of the e of
// those who run, nobody has time t or less with a chance of 2^(-t S).
static __device__ void guess_bound(shared &s, shown &x, const spread &p, const cut &kept,
                                   bool has_target) {
    enum { CHANCE = 8 };
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float min_p = s.want.min_p;

    if (has_target) { // of what top_p keeps, in units of 2^-40
        if (threadIdx.x == 0) s.bound = x.limit = num_bits(CHANCE * 0x1p40f / (float)x.target);
        __syncthreads(); // it is there
        return;
    }
    float sum = 0.0f;

    for (unsigned i = threadIdx.x; i < p.n; i += THREADS) {
        const float e = own_e(p)[i];

        if (e >= min_p && is_kept(kept, own_keys()[i], p.first + i)) sum += e;
    }
    sum = warp_tree(sum);
    if (lane == 0) s.sums[warp] = sum;
    __syncthreads(); // all warps' are in place
    sum = warp_tree(s.sums[lane]);
    if (threadIdx.x == 0) x.e_sum = sum;
    sm90_cluster_sync(); // all ranks' are
    if (warp == 0) {
        sum = lane < gridDim.x
                  ? num_from_bits(sm90_load1_peer(sm90_shared((const unsigned *)&x.e_sum), lane))
                  : 0.0f;
        sum = warp_tree(sum);
        s.bound = x.limit = num_bits(CHANCE / sum);
    }
    __syncthreads(); // it is there
}

// The token, for all ranks.
static __device__ unsigned race_share(shared &s, shown &x, const spread &p, const batch_want &want,
                                      const cut &kept, bool has_target) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    guess_bound(s, x, p, kept, has_target);
    for (unsigned turn = 0;; turn++) {
        word64 best = 0;

        for (unsigned i = threadIdx.x; i < p.n / 4; i += THREADS) {
            const uint4 v = ((const uint4 *)own_keys())[i];
            const float4 w = ((const float4 *)own_e(p))[i];
            const unsigned keys[4] = {v.x, v.y, v.z, v.w};
            const float e[4] = {w.x, w.y, w.z, w.w};
            const unsigned id = p.first + 4 * i;
            const float bound = num_from_bits(*(volatile unsigned *)&s.bound);
            bool runs[4];

            // E is above 2^-33 for every word
#pragma unroll
            for (unsigned k = 0; k < 4; k++)
                runs[k] = e[k] * bound >= 0x1p-33f && e[k] >= want.min_p &&
                          is_kept(kept, keys[k], id + k);
            if (!runs[0] && !runs[1] && !runs[2] && !runs[3]) continue;
            run_four(s, want, id, runs, e, bound, best);
        }
        best = warp_max(best);
        if (lane == 0) s.parts[warp] = best;
        __syncthreads(); // all warps' are in place
        best = warp_max(s.parts[lane]);
        if (warp == 0 && lane < gridDim.x)
            sm90_store2_peer(sm90_shared(&x.bests[turn][blockIdx.x]), lane, best);
        if (threadIdx.x == 0) s.bound = 0x7f800000;
        sm90_cluster_sync(); // all ranks' are
        best = warp_max(lane < gridDim.x ? x.bests[turn][lane] : 0);
        // nobody was that fast, or whoever came first may not have been: once more, without a bound
        if (turn > 0 || HIGH(~best) <= x.limit) return ~LOW(best);
    }
}

// The first id with this key of those of a chunk, from `token` on, by each warp.
static __device__ unsigned first_of(const spread &p, unsigned token, unsigned key) {
    const unsigned lane = threadIdx.x % 32;
    const float4 v = ((const float4 *)(own_logits() + (token - p.first)))[lane];
    const float four[4] = {v.x, v.y, v.z, v.w};
    unsigned least = ~0u;

#pragma unroll
    for (unsigned k = 0; k < 4; k++)
        if (key_of(four[k]) == key) least = min(least, token + 4 * lane + k);
    return __reduce_min_sync(~0u, least);
}

// A row that wants its first id, which this rank has, or that has none, by a warp.
static __device__ void write_greedy(shared &s, shown &x, const spread &p, word64 best,
                                    bool is_number, float lse) {
    enum { WORDS = sizeof(batch_result) / sizeof(unsigned) };
    unsigned v[4] = {0, 0, 0, 0};

    if (is_number) {
        v[0] = first_of(p, ~LOW(best) * CHUNK, HIGH(best));
        v[1] = num_bits(own_logits()[v[0] - p.first] - lse);
        v[2] = s.want.target != 0xffffffffu ? num_bits(s.target - lse) : 0;
        v[3] = num_bits(lse);
    }
    for (unsigned i = threadIdx.x; i < WORDS; i += 32)
        ((unsigned *)x.to)[i] = i == 0           ? v[0]
                                : i == 1         ? v[1]
                                : i == 2         ? v[2]
                                : i == 3         ? v[3]
                                : i == WORDS - 1 ? !is_number
                                                 : 0;
}

// The most probable ids, or zeros, by one block.
static __device__ void write_list(shared &s, const spread &p, const row &r, unsigned n_chunks,
                                  batch_result *to) {
    const unsigned n_top = s.want.n_top, i = threadIdx.x;

    if (n_top > 0) list_first(s, r, table(p), (r.vocab + CHUNK - 1) / CHUNK, n_top, key_of(s.max));
    if (i >= BATCH_TOP_MAX) return;
    const unsigned id = i < n_top ? ~LOW(s.list[i]) : 0;

    to->top_ids[i] = id;
    to->top_logprobs[i] = i < n_top ? r.logits[id] - s.lse : 0.0f;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sm90_sample_f32_spread(batch_result *__restrict__ results, const batch_want *__restrict__ wants,
                           const float *__restrict__ logits, float *scratch, unsigned vocab,
                           unsigned stride, unsigned n_chunks, unsigned share) {
    __shared__ shared s;
    __shared__ row r;
    shown &x = *(shown *)spread_dynamic;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned number = blockIdx.y, rank = blockIdx.x;
    const unsigned first = min(rank * share, n_chunks), end = min(first + share, n_chunks);
    spread p = {logits + (size_t)number * stride, share, first * CHUNK, (end - first) * CHUNK, 0};
    unsigned word = 0;
    float target = 0.0f;

    sm90_cluster_arrive();
    x.depths[threadIdx.x] = 0;
    x.bins[0][threadIdx.x] = 0;
    if (threadIdx.x < 2) x.n_ties[threadIdx.x] = 0;
    if (threadIdx.x == 0) x.to = &results[number];
    sm90_cluster_wait(); // all ranks run: they may be written to
    sm90_wait_previous();
    sm90_launch_next();

    // the last warp has the least to sum
    if (warp == WARPS - 1 && lane < sizeof(batch_want) / sizeof(word))
        word = ((const unsigned *)&wants[number])[lane];
    if (threadIdx.x == THREADS - 32) {
        const unsigned id = wants[number].target;

        if (id < vocab) target = p.from[id];
    }
    // two chunks a warp or, where warps do not reach, four
    if (p.n <= 2 * WARPS * CHUNK) {
        if (warp * 2 * CHUNK < p.n) sum_share<2>(p, warp * 2, vocab);
    } else {
        for (unsigned local = warp * 4; local * CHUNK < p.n; local += WARPS * 4)
            sum_share<4>(p, local, vocab);
    }
    if (warp == WARPS - 1 && lane < sizeof(batch_want) / sizeof(word))
        ((unsigned *)&s.want)[lane] = word;
    if (threadIdx.x == THREADS - 32) s.target = target;
    sm90_cluster_sync(); // all ranks' chunks are in the table, and what is wanted is there

    const batch_want &want = s.want;
    if (want.n_top == BATCH_NO_WANT) return;
    const bool is_greedy = want.temperature == 0.0f && want.n_top == 0;
    const word64 best = find_chunk(s, p, n_chunks);
    const float exponent = exponent_of(logit_of(HIGH(best)));
    const unsigned chunk = ~LOW(best);
    unsigned token = chunk * CHUNK, writer = chunk / share;

    if (is_greedy && rank != writer) return;
    sum_table(s, p, n_chunks, exponent);
    __syncthreads(); // all warps' sums are in place
    if (warp == 0) {
        const float max = logit_of(HIGH(best));
        const float sum = warp_tree(s.sums[lane]);
        const float lse = num_fma(exponent, NUM_LN2, num_log2(sum) * NUM_LN2);
        const bool is_number = is_finite(lse) && is_finite(max);

        if (is_greedy || !is_number) {
            if (is_greedy || rank == 0) write_greedy(s, x, p, best, is_number, lse);
        } else {
            const float z_first = max / want.temperature;

            s.max = max;
            s.lse = lse;
            x.draws = want.temperature != 0.0f && is_finite(z_first);
            r = {p.from, scratch + (size_t)number * stride, vocab, want.temperature, z_first};
        }
        x.way = is_number;
    }
    if (is_greedy) return;
    __syncthreads(); // they are there
    if (!x.way) return;
    const bool draws = x.draws;

    const bool listed = draws && want.top_k > 0 && want.top_k <= LIST_MAX && want.top_k < vocab;

    if (listed) {
        if (rank == 0)
            token = ~LOW(block_max(s, race_first(s, r, want, table(p), n_chunks, key_of(s.max))));
        writer = 0;
    } else if (draws) {
        cut kept = {0, 0};

        if (want.top_k > 0 && want.top_k < vocab)
            kept = keep_first_share(s, x, p, want.top_k, key_of(s.max));
        weigh_share(x, p, r, kept, want.top_part);
        if (want.top_part) kept = keep_share(s, x, p, r, want.top_part, key_of(s.max));
        token = race_share(s, x, p, want, kept, want.top_part && want.min_p == 0.0f);
        writer = token / CHUNK / share;
    } else if (rank == writer) {
        token = first_of(p, token, HIGH(best));
    }
    if (rank == writer && threadIdx.x == 0) {
        batch_result *to = x.to;
        const float lse = s.lse;
        const unsigned at = token - p.first;
        // in the logits' place are keys where all ranks drew; of -0 and +0 they are one
        const bool is_known = at < p.n && (!draws || own_keys()[at] != 0x80000000u);
        const float logit = !is_known || (draws && listed) ? r.logits[token]
                            : draws                        ? logit_of(own_keys()[at])
                                                           : own_logits()[at];

        to->token = token;
        to->logprob = logit - lse;
        to->target_logprob = want.target != 0xffffffffu ? s.target - lse : 0.0f;
        to->lse = lse;
        to->n_top = want.n_top;
        to->numeric = 0;
    }
    if (rank == 0) write_list(s, p, r, n_chunks, x.to);
}
