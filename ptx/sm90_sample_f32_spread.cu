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
//   bound by  latency: of few rows some 2 us greedy and, of draws, as many microseconds as there are
//             passes and meetings of the cluster; of many rows arithmetic
//
// Each block sums the chunks of its share and leaves maximum and sum of each with all blocks, so that
// each of them knows the largest logit and the logsumexp without asking.  A draw then weighs its share
// by depth, the ranks read each other's bins, and each finds the same bin by the same sums; the ids of
// that bin are selected by key, bins of keys read in the same way.  Whoever has the token writes it.
// top_k up to 1024 and lists of the most probable are one block's work, as in sm90_sample_f32.
#include "ptx/sm90_sample.cuh"

enum {
    AT_ONCE = 4,            // chunks that a warp sums
    KEY_BITS = 10,          // of the number of a bin of keys:
    N_KEYS = 1 << KEY_BITS, // a thread a bin
};

// Below it e is less than 2^-124: it weighs nothing and loses the race to the first id, whose time
// is below 2^6 where its own is above 2^90.
#define DEPTH_LEAST -125.0f

extern __shared__ __align__(128) unsigned char spread_dynamic[];

// What the ranks read of each other, or leave with each other.
struct shown {
    unsigned depths[N_DEPTHS];
    word64 bins[2][N_KEYS]; // in turns: who is one meeting ahead leaves in peace who still reads
    word64 above[2][WARPS]; // weights of keys above those in the bins, in turns too
    word64 weights[WARPS];  // of all
    word64 bests[SM90_SPREAD_RANKS][WARPS];
    unsigned n_ties[2], last[2]; // of top_k, of top_p
};

static_assert(sizeof(shown) <= SM90_SPREAD_SHOWN, "the shared memory that launches ask for");

struct spread {
    const float *from; // the row's logits
    unsigned share;
    unsigned first, n; // ids of this rank
    unsigned turn;
};

// Dynamic shared memory: what is shown; numbers of ids; logits and e of this rank's, behind the vocabulary -infinity
// and 0; the chunks of the whole row.
static __device__ inline u16 *picked(void) {
    return (u16 *)(spread_dynamic + SM90_SPREAD_SHOWN);
}

static __device__ inline float *own_logits(void) {
    return (float *)(picked() + SM90_SPREAD_PICKED);
}

static __device__ inline float *own_e(const spread &p) {
    return own_logits() + p.share * CHUNK;
}

static __device__ inline batch_chunk *table(const spread &p) {
    return (batch_chunk *)(own_logits() + 2 * p.share * CHUNK);
}

static __device__ inline u32 lane_of(unsigned chunk) {
    return chunk / 2 + chunk % 2 * 2;
}

// Maximum and sum of chunk `c` of the row: four adjacent ids a lane.
static __device__ void sum_any(const spread &p, unsigned c, unsigned vocab) {
    const unsigned lane = threadIdx.x % 32, id = c * CHUNK + 4 * lane;
    const float4 four = load_four(p.from, id, vocab);
    float v[4] = {four.x, four.y, four.z, four.w}, max = -NUM_INFINITY, exponent;

#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (id + k >= vocab) v[k] = -NUM_INFINITY;
        max = num_max(max, v[k]);
    }
    *(float4 *)(own_logits() + (id - p.first)) = make_float4(v[0], v[1], v[2], v[3]);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) max = num_max(max, __shfl_xor_sync(~0u, max, step));
    exponent = exponent_of(max);
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = num_exp2(num_fma(v[k], NUM_LOG2E, -exponent));
    const float sum = warp_tree((v[0] + v[1]) + (v[2] + v[3]));

    if (lane < gridDim.x)
        sm90_store2_peer(sm90_shared(&table(p)[c]), lane,
                         (word64)num_bits(sum) << 32 | num_bits(max));
}

// Over the lanes, by halves of what is left: chunk i of four at the lanes whose last two bits are
// lane_of(i).
template <class OP> static __device__ inline float fold(const float (&v)[AT_ONCE], OP op) {
    const bool odd = threadIdx.x & 1, second = threadIdx.x & 2;
    const float low = op(odd ? v[2] : v[0], __shfl_xor_sync(~0u, odd ? v[0] : v[2], 1));
    const float high = op(odd ? v[3] : v[1], __shfl_xor_sync(~0u, odd ? v[1] : v[3], 1));
    float r = op(second ? high : low, __shfl_xor_sync(~0u, second ? low : high, 2));

#pragma unroll
    for (int step = 4; step < 32; step *= 2) r = op(r, __shfl_xor_sync(~0u, r, step));
    return r;
}

// Maxima and sums of four chunks, from number `local` of this rank's on.
static __device__ void sum_four(const spread &p, unsigned local, unsigned vocab) {
    const unsigned lane = threadIdx.x % 32;
    float4 v[AT_ONCE];
    float max[AT_ONCE], least[AT_ONCE], sums[AT_ONCE];

#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; i++)
        v[i] = load_four(
            p.from, (local + i) * CHUNK < p.n ? p.first + (local + i) * CHUNK + 4 * lane : vocab,
            vocab);
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; i++) {
        max[i] = fmaxf(fmaxf(v[i].x, v[i].y), fmaxf(v[i].z, v[i].w));
        least[i] =
            sm90_min_or_nan(sm90_min_or_nan(v[i].x, v[i].y), sm90_min_or_nan(v[i].z, v[i].w));
    }
    const float most = fold(max, [](float a, float b) { return fmaxf(a, b); });
    const float exponent = exponent_of(most);
    bool plain = num_fma(most, NUM_LOG2E, -exponent) <= 100.0f;

#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; i++) {
        const unsigned at = (local + i) * CHUNK;
        const float own = __shfl_sync(~0u, exponent, (int)lane_of(i));

        plain = plain && (at >= p.n || (num_fma(least[i], NUM_LOG2E, -own) >= -125.0f &&
                                        p.first + at + CHUNK <= vocab));
        sums[i] = (num_exp2_plain(num_fma(v[i].x, NUM_LOG2E, -own)) +
                   num_exp2_plain(num_fma(v[i].y, NUM_LOG2E, -own))) +
                  (num_exp2_plain(num_fma(v[i].z, NUM_LOG2E, -own)) +
                   num_exp2_plain(num_fma(v[i].w, NUM_LOG2E, -own)));
        if (at < p.n) ((float4 *)(own_logits() + at))[lane] = v[i];
    }
    if (!__all_sync(~0u, plain)) {
#pragma unroll 1
        for (unsigned i = 0; i < AT_ONCE && (local + i) * CHUNK < p.n; i++)
            sum_any(p, p.first / CHUNK + local + i, vocab);
        return;
    }
    const float sum = fold(sums, [](float a, float b) { return a + b; });
    const unsigned c = local + lane % 2 * 2 + lane / 2 % 2;

    for (unsigned rank = lane / AT_ONCE; rank < gridDim.x; rank += 32 / AT_ONCE)
        if (c * CHUNK < p.n)
            sm90_store2_peer(sm90_shared(&table(p)[p.first / CHUNK + c]), rank,
                             (word64)num_bits(sum) << 32 | num_bits(most));
}

// Of all lanes' values the largest, to all.
static __device__ inline word64 warp_max(word64 v) {
    const unsigned high = __reduce_max_sync(~0u, HIGH(v));

    return (word64)high << 32 | __reduce_max_sync(~0u, HIGH(v) == high ? LOW(v) : 0);
}

static __device__ inline word64 warp_sum(word64 v) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

// The first chunk with the largest logit, as `order` has them; S of SPEC 2.10.
static __device__ word64 find_chunk(shared &s, const spread &p, unsigned n_chunks, float &out_sum) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    word64 best = 0;

    for (unsigned c = threadIdx.x; c < n_chunks; c += THREADS) {
        const word64 v = order(table(p)[c].max, c);

        best = v > best ? v : best;
    }
    best = warp_max(best);
    if (lane == 0) s.parts[warp] = best;
    __syncthreads(); // all warps' are in place
    best = warp_max(s.parts[lane]);
    const float exponent = exponent_of(logit_of(HIGH(best)));

    if (n_chunks > THREADS) {
        out_sum = sum_chunks(s, table(p), n_chunks, exponent);
        return best;
    }
    const bool is_there = threadIdx.x < n_chunks;
    const batch_chunk own = is_there ? table(p)[threadIdx.x] : batch_chunk{0.0f, 0.0f};

    out_sum = block_tree(s, scaled(own.max, own.sum, exponent, is_there));
    return best;
}

// e of this rank's ids that top_k keeps; where `summed` their weights, and, roughly, by depth.
static __device__ void weigh_share(shown &x, const spread &p, const row &r, const cut &kept,
                                   bool summed) {
    word64 sum = 0;

    for (unsigned i = threadIdx.x; i < p.n / 4; i += THREADS) {
        const float4 v = ((const float4 *)own_logits())[i];
        const float four[4] = {v.x, v.y, v.z, v.w};
        float e[4];

#pragma unroll
        for (unsigned k = 0; k < 4; k++) {
            const float d = depth(r, four[k]);

            e[k] = d >= DEPTH_LEAST ? num_exp2_plain(d) : 0.0f;
            if (kept.key && !is_kept(kept, key_of(four[k]), p.first + 4 * i + k)) e[k] = 0.0f;
            if (!summed) continue;
            const unsigned bin = min(__float2uint_rz(d * -(float)DEPTHS), N_DEPTHS - 1u);
            const word64 w = weight(e[k]);
            const unsigned rough = LOW(w >> coarse(bin, r.vocab));
            int equal;

            sum += w;
            // all of a warp in one bin is what ties look like
            __match_all_sync(~0u, bin, &equal);
            if (equal) {
                const unsigned all = __reduce_add_sync(~0u, rough);

                if (threadIdx.x % 32 == 0) atomicAdd(&x.depths[bin], all);
            } else if (rough) {
                atomicAdd(&x.depths[bin], rough);
            }
        }
        ((float4 *)own_e(p))[i] = make_float4(e[0], e[1], e[2], e[3]);
    }
    if (!summed) return;
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) x.weights[threadIdx.x / 32] = sum;
}

// Of all ranks' and warps' values the sum, by each warp.
static __device__ word64 sum_ranks(const word64 (&parts)[WARPS], const spread &p) {
    word64 v = 0;

    for (unsigned rank = 0; rank < gridDim.x; rank++)
        v += sm90_load2_peer(sm90_shared(&parts[threadIdx.x % 32]), rank);
    return warp_sum(v);
}

// The weights of this rank's keys above hi; numbers of the ids within lo .. hi, in no order, how
// many, or more than SM90_SPREAD_PICKED where they do not fit.
static __device__ void pick(shared &s, shown &x, const spread &p, unsigned lo, unsigned hi) {
    const unsigned lane = threadIdx.x % 32;
    word64 above = 0;

    for (unsigned i = threadIdx.x; i < p.n / 4; i += THREADS) {
        const float4 v = ((const float4 *)own_logits())[i], w = ((const float4 *)own_e(p))[i];
        const float four[4] = {v.x, v.y, v.z, v.w}, e[4] = {w.x, w.y, w.z, w.w};

#pragma unroll
        for (unsigned k = 0; k < 4; k++) {
            const unsigned key = key_of(four[k]);
            const bool is_within = key >= lo && key <= hi;
            const unsigned all = __ballot_sync(~0u, is_within);
            unsigned at = 0;

            if (key > hi) above += weight(e[k]);
            if (!all) continue;
            if (lane == 0) at = atomicAdd(&s.n_list, (unsigned)__popc(all));
            at = __shfl_sync(~0u, at, 0) + __popc(all & ((1u << lane) - 1));
            if (is_within && at < SM90_SPREAD_PICKED) picked()[at] = (u16)(4 * i + k);
        }
    }
    above = warp_sum(above);
    if (lane == 0) x.above[p.turn][threadIdx.x / 32] = above;
}

// Of the ids in order, the key within lo .. hi of the one at which the sum reaches the target; where
// not WEIGHED each weighs 1, and none is above hi.
template <bool WEIGHED>
static __device__ selected select_share(shared &s, shown &x, spread &p, unsigned lo, unsigned hi,
                                        word64 target) {
    bool is_first = true;

    if (WEIGHED) pick(s, x, p, lo, hi);
    __syncthreads(); // all are picked
    const bool some = WEIGHED && s.n_list <= SM90_SPREAD_PICKED;
    const unsigned n = some ? s.n_list : p.n;

    for (;;) {
        const unsigned bits = 32 - __clz((int)(hi - lo));
        const unsigned shift = bits > KEY_BITS ? bits - KEY_BITS : 0;
        word64 own = 0, before, above = 0;

        for (unsigned first = 0; first < n; first += THREADS) {
            const unsigned i = first + threadIdx.x, at = i >= n ? 0 : some ? picked()[i] : i;
            const unsigned key = i < n ? key_of(own_logits()[at]) : 0;

            add_to_bin<WEIGHED>(x.bins[p.turn], key >= lo && key <= hi, (hi - key) >> shift,
                                WEIGHED ? weight(own_e(p)[at]) : 1);
        }
        sm90_cluster_sync(); // all ranks' bins are full
        for (unsigned rank = 0; rank < gridDim.x; rank++)
            own += sm90_load2_peer(sm90_shared(&x.bins[p.turn][threadIdx.x]), rank);
        if (WEIGHED && is_first) above = sum_ranks(x.above[p.turn], p);
        is_first = false;
        p.turn ^= 1;
        x.bins[p.turn][threadIdx.x] = 0; // what all read before they came to the last meeting
        const word64 total = block_sum(s, own, before);

        if (above >= target) return {0, 1, 0, 0};
        if (above + total < target) return {0, -1, 0, 0};
        before += above;
        if (before < target && before + own >= target) {
            s.bin = threadIdx.x;
            s.left = target - before;
            s.sum = own;
        }
        __syncthreads(); // the bin is there, and the next ones are empty
        hi = hi - (s.bin << shift);
        if (shift == 0) return {hi, 0, s.left, s.sum};
        lo = max(lo, hi - ((1u << shift) - 1));
        target = s.left;
    }
}

// Keeps n of the n_there ids that have this key: the lowest.
static __device__ cut cut_share(shared &s, shown &x, const spread &p, unsigned of, unsigned key,
                                word64 n, word64 n_there) {
    unsigned n_own = 0, n_before = 0;

    if (n >= n_there) return {key, ~0u};
    for (unsigned i = threadIdx.x; i < p.n; i += THREADS) n_own += key_of(own_logits()[i]) == key;
    n_own = __reduce_add_sync(~0u, n_own);
    if (threadIdx.x % 32 == 0) atomicAdd(&x.n_ties[of], n_own);
    sm90_cluster_sync(); // all ranks have counted
    n_own = x.n_ties[of];
    for (unsigned rank = 0; rank < blockIdx.x; rank++)
        n_before += sm90_load1_peer(sm90_shared(&x.n_ties[of]), rank);
    for (unsigned start = 0; n_before < n && n_before + n_own >= n; start += THREADS) {
        const unsigned i = start + threadIdx.x;
        const bool is_one = i < p.n && key_of(own_logits()[i]) == key;
        const unsigned ballot = __ballot_sync(~0u, is_one);
        const unsigned n_here = (unsigned)__syncthreads_count(is_one);

        if (n_before + n_here >= n) {
            if (threadIdx.x % 32 == 0) s.parts[threadIdx.x / 32] = __popc(ballot);
            __syncthreads(); // all warps' counts are in place
#pragma unroll 1             // registers
            for (unsigned w = 0; w < threadIdx.x / 32; w++) n_before += (unsigned)s.parts[w];
            n_before += __popc(ballot & ((1u << threadIdx.x % 32) - 1));
            if (is_one && n_before + 1 == n)
                for (unsigned rank = 0; rank < gridDim.x; rank++)
                    sm90_store1_peer(sm90_shared(&x.last[of]), rank, p.first + i);
            break;
        }
        n_before += n_here;
        n_own -= n_here;
    }
    sm90_cluster_sync(); // the last kept id is there
    return {key, x.last[of]};
}

static __device__ cut keep_first_share(shared &s, shown &x, spread &p, unsigned k,
                                       unsigned key_first) {
    const selected found = select_share<false>(s, x, p, LEAST_KEY, key_first, k);

    return cut_share(s, x, p, 0, found.key, found.left, found.sum);
}

// Of the ids in order, the first ones, as long as the weights before an id sum to less than t of
// SPEC 2.11.
static __device__ cut keep_share(shared &s, shown &x, spread &p, const row &r, unsigned top_part,
                                 unsigned key_first) {
    const unsigned warp = threadIdx.x / 32;
    unsigned own = 0;
    word64 before;

    sm90_cluster_sync(); // all ranks have weighed theirs
    const word64 target = target_of(sum_ranks(x.weights, p), top_part);

    for (unsigned rank = 0; rank < gridDim.x; rank++)
        own += sm90_load1_peer(sm90_shared(&x.depths[threadIdx.x]), rank);
    (void)block_sum(s, (word64)own << coarse(threadIdx.x, r.vocab), before);
    // the last depth that something is at and that the target reaches, give or take what the sums
    // leave out
    own = __reduce_max_sync(~0u, own && before < target ? threadIdx.x : 0);
    if (threadIdx.x % 32 == 0) s.sums[warp] = num_from_bits(own);
    __syncthreads(); // all warps' are in place
    unsigned bin = __reduce_max_sync(~0u, num_bits(s.sums[threadIdx.x % 32]));
    selected found = {0, 1, 0, 0};

    for (; found.way; bin -= (unsigned)found.way) {
        __syncthreads(); // nobody reads the bounds of before, nor how many were picked
        if (warp == 0) s.id = key_at_depth(r, bin, key_first);
        if (warp == 1) s.bound = bin ? key_at_depth(r, bin - 1, key_first) - 1 : key_first;
        if (threadIdx.x == 0) s.n_list = 0;
        __syncthreads(); // they are there, and none is picked
        const unsigned lo = s.id, hi = s.bound;

        // where no key has this depth, on as before
        if (lo <= hi) found = select_share<true>(s, x, p, lo, hi, target);
    }
    const word64 one = weight(e_of(r, logit_of(found.key)));

    return cut_share(s, x, p, 1, found.key, (found.left + one - 1) / one, found.sum / one);
}

// The token, for all ranks.
static __device__ unsigned race_share(shared &s, shown &x, const spread &p, const batch_want &want,
                                      const cut &kept) {
    const unsigned lane = threadIdx.x % 32;
    word64 best = 0;

    __syncthreads(); // nobody reads what s.bound was before
    if (threadIdx.x == 0) s.bound = 0x7f800000;
    __syncthreads(); // the bound is there
    for (unsigned i = threadIdx.x; i < p.n / 4; i += THREADS) {
        const float4 v = ((const float4 *)own_logits())[i], w = ((const float4 *)own_e(p))[i];
        const float four[4] = {v.x, v.y, v.z, v.w}, e[4] = {w.x, w.y, w.z, w.w};
        const unsigned id = p.first + 4 * i;
        bool runs[4];

#pragma unroll
        for (unsigned k = 0; k < 4; k++)
            runs[k] = e[k] > 0.0f && e[k] >= want.min_p && is_kept(kept, key_of(four[k]), id + k);
        if (!runs[0] && !runs[1] && !runs[2] && !runs[3]) continue;
        run_four(s, want, id, runs, e, best);
    }
    best = warp_max(best);
    if (lane < gridDim.x)
        sm90_store2_peer(sm90_shared(&x.bests[blockIdx.x][threadIdx.x / 32]), lane, best);
    sm90_cluster_sync(); // all ranks' are there
    best = 0;
    for (unsigned rank = 0; rank < gridDim.x; rank++) {
        const word64 other = x.bests[rank][lane];

        best = other > best ? other : best;
    }
    return ~LOW(warp_max(best));
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
    batch_result *to = &results[number];
    unsigned word = 0;
    float sum, target = 0.0f;

    sm90_cluster_arrive();
    x.depths[threadIdx.x] = 0;
    x.bins[0][threadIdx.x] = 0;
    if (threadIdx.x < 2) x.n_ties[threadIdx.x] = 0;
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
    for (unsigned local = warp * AT_ONCE; local * CHUNK < p.n; local += WARPS * AT_ONCE)
        sum_four(p, local, vocab);
    if (warp == WARPS - 1 && lane < sizeof(batch_want) / sizeof(word))
        ((unsigned *)&s.want)[lane] = word;
    if (threadIdx.x == THREADS - 32) s.target = target;
    sm90_cluster_sync(); // all ranks' chunks are in the table, and what is wanted is there

    const batch_want &want = s.want;
    if (want.n_top == BATCH_NO_WANT) return;
    const word64 best = find_chunk(s, p, n_chunks, sum);
    const float max = logit_of(HIGH(best)), exponent = exponent_of(max);
    const float lse = num_fma(exponent, NUM_LN2, num_log2(sum) * NUM_LN2);
    const unsigned chunk = ~LOW(best);
    const float z_first = max / want.temperature;

    if (!is_finite(lse) || !is_finite(max)) {
        if (rank == 0 && threadIdx.x < sizeof(*to) / 4)
            ((unsigned *)to)[threadIdx.x] = threadIdx.x == sizeof(*to) / 4 - 1;
        return;
    }
    const bool draws = want.temperature != 0.0f && is_finite(z_first);
    unsigned token = chunk * CHUNK, writer;

    if (threadIdx.x == 0) {
        s.max = max;
        s.lse = lse;
        r = {p.from, scratch + (size_t)number * stride, vocab, want.temperature, z_first};
    }
    __syncthreads(); // they are there
    if (draws && want.top_k > 0 && want.top_k <= LIST_MAX && want.top_k < vocab) {
        if (rank == 0)
            token = ~LOW(block_max(s, race_first(s, r, want, table(p), n_chunks, key_of(s.max))));
        writer = 0;
    } else if (draws) {
        cut kept = {0, 0};

        if (want.top_k > 0 && want.top_k < vocab)
            kept = keep_first_share(s, x, p, want.top_k, key_of(s.max));
        weigh_share(x, p, r, kept, want.top_part);
        if (want.top_part) kept = keep_share(s, x, p, r, want.top_part, key_of(s.max));
        token = race_share(s, x, p, want, kept);
        writer = token / CHUNK / share;
    } else {
        writer = chunk / share;
        if (rank == writer) {
            const float4 v = ((const float4 *)(own_logits() + (token - p.first)))[lane];
            const float four[4] = {v.x, v.y, v.z, v.w};
            unsigned least = ~0u;

#pragma unroll
            for (unsigned k = 0; k < 4; k++)
                if (key_of(four[k]) == HIGH(best)) least = min(least, token + 4 * lane + k);
            token = __reduce_min_sync(~0u, least);
        }
    }
    if (rank == writer && threadIdx.x == 0) {
        const float lse = s.lse;
        const float logit = token - p.first < p.n ? own_logits()[token - p.first] : r.logits[token];

        to->token = token;
        to->logprob = logit - lse;
        to->target_logprob = want.target != 0xffffffffu ? s.target - lse : 0.0f;
        to->lse = lse;
        to->n_top = want.n_top;
        to->numeric = 0;
    }
    if (rank == 0) write_list(s, p, r, n_chunks, to);
}
