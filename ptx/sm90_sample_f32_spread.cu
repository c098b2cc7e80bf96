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
#include "ptx/sm90_sample.cuh"

enum {
    KEY_BITS = 10,          // of the number of a bin of keys:
    N_KEYS = 1 << KEY_BITS, // a thread a bin
};

// Below it e is less than 2^-124: it weighs nothing and loses the race to the first id, whose time
// is below 2^6 where its own is above 2^90.
#define DEPTH_LEAST -125.0f

extern __shared__ __align__(128) unsigned char spread_dynamic[];

// What the ranks read of each other, or leave with each other.  What one warp a rank does not read
// costs more than the work between: some 30 cycles of all ranks for each 32 words.
struct shown {
    unsigned depths[N_DEPTHS];
    word64 depth_groups[WARPS]; // sums of 32 bins
    word64 bins[2][N_KEYS]; // in turns: who is one meeting ahead leaves in peace who still reads
    word64 groups[2][WARPS];
    word64 above[2], weight; // weights of keys above those in the bins; of all
    word64 bests[2][SM90_SPREAD_RANKS];
    unsigned n_ties[2], last[2]; // of top_k, of top_p
    float e_sum;
    // of this rank alone
    word64 parts[WARPS], target;
    unsigned limit; // bits of the bound that the race began with
    batch_result *to;
    int way;
    bool draws;
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

// In their place once they are weighed.
static __device__ inline unsigned *own_keys(void) {
    return (unsigned *)own_logits();
}

static __device__ inline float *own_e(const spread &p) {
    return own_logits() + p.share * CHUNK;
}

static __device__ inline batch_chunk *table(const spread &p) {
    return (batch_chunk *)(own_logits() + 2 * p.share * CHUNK);
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

// Over the lanes, by halves of what is left: value i of N is at the lanes of which chunk_of<N> is i.
template <unsigned N> static __device__ inline unsigned chunk_of(unsigned lane) {
    return N == 4 ? lane % 2 * 2 + lane / 2 % 2 : lane % 2;
}

template <class OP> static __device__ inline float fold(const float (&v)[4], OP op) {
    const bool odd = threadIdx.x & 1, second = threadIdx.x & 2;
    const float low = op(odd ? v[2] : v[0], __shfl_xor_sync(~0u, odd ? v[0] : v[2], 1));
    const float high = op(odd ? v[3] : v[1], __shfl_xor_sync(~0u, odd ? v[1] : v[3], 1));
    float r = op(second ? high : low, __shfl_xor_sync(~0u, second ? low : high, 2));

#pragma unroll
    for (int step = 4; step < 32; step *= 2) r = op(r, __shfl_xor_sync(~0u, r, step));
    return r;
}

template <class OP> static __device__ inline float fold(const float (&v)[2], OP op) {
    const bool odd = threadIdx.x & 1;
    float r = op(odd ? v[1] : v[0], __shfl_xor_sync(~0u, odd ? v[0] : v[1], 1));

#pragma unroll
    for (int step = 2; step < 32; step *= 2) r = op(r, __shfl_xor_sync(~0u, r, step));
    return r;
}

// Maxima and sums of so many chunks, from number `local` of this rank's on.
template <unsigned AT_ONCE>
static __device__ void sum_share(const spread &p, unsigned local, unsigned vocab) {
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
        const float own = __shfl_sync(~0u, exponent, (int)(AT_ONCE == 4 ? chunk_of<4>(i) : i));

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
    const unsigned c = local + chunk_of<AT_ONCE>(lane);

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

// The first chunk with the largest logit, as `order` has them.
static __device__ word64 find_chunk(shared &s, const spread &p, unsigned n_chunks) {
    word64 best = 0;

    for (unsigned c = threadIdx.x; c < n_chunks; c += THREADS) {
        const word64 v = order(table(p)[c].max, c);

        best = v > best ? v : best;
    }
    best = warp_max(best);
    if (threadIdx.x % 32 == 0) s.parts[threadIdx.x / 32] = best;
    __syncthreads(); // all warps' are in place
    return warp_max(s.parts[threadIdx.x % 32]);
}

// To s.sums the trees of the warps, which S of SPEC 2.10 is the tree of.
static __device__ void sum_table(shared &s, const spread &p, unsigned n_chunks, float exponent) {
    float v[8];

    if (n_chunks <= THREADS) {
        const bool is_there = threadIdx.x < n_chunks;
        const batch_chunk own = is_there ? table(p)[threadIdx.x] : batch_chunk{0.0f, 0.0f};

        v[0] = scaled(own.max, own.sum, exponent, is_there);
    } else {
#pragma unroll
        for (unsigned i = 0; i < 8; i++) {
            const unsigned c = threadIdx.x * 8 + i;
            const batch_chunk own = c < n_chunks ? table(p)[c] : batch_chunk{0.0f, 0.0f};

            v[i] = scaled(own.max, own.sum, exponent, c < n_chunks);
        }
        v[0] = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    }
    v[0] = warp_tree(v[0]);
    if (threadIdx.x % 32 == 0) s.sums[threadIdx.x / 32] = v[0];
}

// Of the lanes up to this one.
static __device__ inline word64 warp_scan(word64 v) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const word64 other = __shfl_up_sync(~0u, v, step);

        if (threadIdx.x % 32 >= (unsigned)step) v += other;
    }
    return v;
}

// Of the words at this place of all ranks the sum; each begins with its own.
static __device__ inline word64 sum_ranks(const word64 *at) {
    word64 v = 0;

#pragma unroll 8
    for (unsigned i = 0; i < gridDim.x; i++) {
        const unsigned rank = i + blockIdx.x;

        v += sm90_load2_peer(sm90_shared(at), rank < gridDim.x ? rank : rank - gridDim.x);
    }
    return v;
}

static __device__ inline unsigned sum_ranks(const unsigned *at) {
    unsigned v = 0;

#pragma unroll 8
    for (unsigned i = 0; i < gridDim.x; i++) {
        const unsigned rank = i + blockIdx.x;

        v += sm90_load1_peer(sm90_shared(at), rank < gridDim.x ? rank : rank - gridDim.x);
    }
    return v;
}

// The bin of a depth: never smaller for a smaller logit.
static __device__ inline unsigned bin_of(float depth) {
    // to the nearest integer, which is then in the low bits
    return num_bits(fminf(depth * -(float)DEPTHS, N_DEPTHS - 1.0f) + 0x1p23f) - 0x4b000000;
}

// `coarse` for these bins: what is left of a weight has 22 bits, too.
static __device__ inline unsigned left_out(unsigned bin, unsigned vocab) {
    const unsigned bits = min((unsigned)__clz((int)vocab) - 1, 22u) + bin / DEPTHS;

    return bits < FINEST ? FINEST - bits : 0;
}

// Sums of weights, halves of 20 bits apart, so that each adds up in 32: floor(e 2^40), as `weight`.
struct sums {
    unsigned high, low;

    __device__ inline void add(float e) {
        // 8 has 2^-20 as its last bit: rounded towards zero, the sum's low bits are floor(e 2^20);
        // what is left of e is exact, and the same again
        const float high_part = __fadd_rz(e, 8.0f);
        const float low_part = __fadd_rz(e - (high_part - 8.0f), 0x1p-17f);

        high += num_bits(high_part) - num_bits(8.0f);
        low += num_bits(low_part) - num_bits(0x1p-17f);
    }

    __device__ inline word64 of_warp(void) const {
        return warp_sum(((word64)high << 20) + low);
    }
};

// `depth` without a branch, for |z_first| below 2^100: y is fl(1 / T).  One step makes the quotient
// right to its last bit and the next rounds it as a division does (Markstein).  Where a step overflows
// or underflows the result is no longer the quotient: then it is -infinity or a NaN, as it is for a
// logit that is one, or so near 0 that e is 1 or z_first alone makes it: e is the same.
static __device__ inline float depth_plain(const row &r, float y, float logit) {
    float q = logit * y;

    q = num_fma(num_fma(-r.temperature, q, logit), y, q);
    q = num_fma(num_fma(-r.temperature, q, logit), y, q);
    return (q - r.z_first) * NUM_LOG2E;
}

// Instead of the logits keys, and e of those that top_k keeps; where `summed` their weights, and,
// roughly, by depth.
static __device__ void weigh_share(shown &x, const spread &p, const row &r, const cut &kept,
                                   bool summed) {
    const row own = r; // in registers
    const unsigned vocab = r.vocab;
    const float y = 1.0f / own.temperature;
    const bool plain = fabsf(own.z_first) < 0x1p100f;
    sums sum = {0, 0};

    for (unsigned i = threadIdx.x; i < p.n / 4; i += THREADS) {
        const float4 v = ((const float4 *)own_logits())[i];
        const float four[4] = {v.x, v.y, v.z, v.w};
        unsigned keys[4], bins[4], rough[4];
        float e[4];

#pragma unroll
        for (unsigned k = 0; k < 4; k++) {
            const float d = depth_plain(own, y, four[k]);

            keys[k] = key_of(four[k]);
            e[k] = d >= DEPTH_LEAST ? num_exp2_plain(d) : 0.0f;
            bins[k] = bin_of(d);
        }
        if (!plain || kept.key)
#pragma unroll
            for (unsigned k = 0; k < 4; k++) {
                const float d = depth(own, four[k]);
                const bool is_there =
                    d >= DEPTH_LEAST && is_kept(kept, keys[k], p.first + 4 * i + k);

                e[k] = is_there ? num_exp2_plain(d) : 0.0f;
                bins[k] = bin_of(d);
            }
        ((float4 *)own_e(p))[i] = make_float4(e[0], e[1], e[2], e[3]);
        ((uint4 *)own_keys())[i] = make_uint4(keys[0], keys[1], keys[2], keys[3]);
        if (!summed) continue;
#pragma unroll
        for (unsigned k = 0; k < 4; k++) {
            sum.add(e[k]);
            // the nearest integer, of 22 bits, is in the low bits
            rough[k] =
                num_bits(e[k] * num_pow2((int)(FINEST - left_out(bins[k], vocab))) + 0x1p23f) -
                0x4b000000;
        }
        // all of a warp in one bin is what ties look like
        const unsigned one = __shfl_sync(~0u, bins[0], 0);

        if (__all_sync(~0u, bins[0] == one && bins[1] == one && bins[2] == one && bins[3] == one)) {
            const unsigned all = __reduce_add_sync(~0u, rough[0] + rough[1] + rough[2] + rough[3]);

            if (threadIdx.x % 32 == 0) atomicAdd(&x.depths[one], all);
        } else {
#pragma unroll
            for (unsigned k = 0; k < 4; k++)
                if (rough[k]) atomicAdd(&x.depths[bins[k]], rough[k]);
        }
    }
    if (!summed) return;
    const word64 all = sum.of_warp();

    if (threadIdx.x % 32 == 0) x.parts[threadIdx.x / 32] = all;
    __syncthreads(); // all warps have weighed theirs
    const unsigned bin = threadIdx.x;
    const word64 group = warp_sum((word64)x.depths[bin] << left_out(bin, vocab));
    const word64 weight = warp_sum(x.parts[threadIdx.x % 32]);

    if (threadIdx.x % 32 == 0) x.depth_groups[threadIdx.x / 32] = group;
    if (threadIdx.x == 0) x.weight = weight;
}

// The weights of this rank's keys above hi; numbers of the ids within lo .. hi, in no order, how
// many, or more than SM90_SPREAD_PICKED where they do not fit.
static __device__ void pick(shared &s, shown &x, const spread &p, unsigned lo, unsigned hi) {
    const unsigned lane = threadIdx.x % 32;
    sums above = {0, 0};

    for (unsigned i = threadIdx.x; i < p.n / 4; i += THREADS) {
        const uint4 v = ((const uint4 *)own_keys())[i];
        const float4 w = ((const float4 *)own_e(p))[i];
        const unsigned keys[4] = {v.x, v.y, v.z, v.w};
        const float e[4] = {w.x, w.y, w.z, w.w};

#pragma unroll
        for (unsigned k = 0; k < 4; k++) {
            const bool is_within = keys[k] >= lo && keys[k] <= hi;
            const unsigned all = __ballot_sync(~0u, is_within);
            unsigned at = 0;

            above.add(keys[k] > hi ? e[k] : 0.0f);
            if (!all) continue;
            if (lane == 0) at = atomicAdd(&s.n_list, (unsigned)__popc(all));
            at = __shfl_sync(~0u, at, 0) + __popc(all & ((1u << lane) - 1));
            if (is_within && at < SM90_SPREAD_PICKED) picked()[at] = (u16)(4 * i + k);
        }
    }
    const word64 all = above.of_warp();

    if (lane == 0) x.parts[threadIdx.x / 32] = all;
}

// The bin at which the sum reaches the target, by one warp: to s.bin, s.left, s.sum, x.way.
static __device__ void find_bin(shared &s, shown &x, unsigned turn, bool has_above, word64 target) {
    const unsigned lane = threadIdx.x % 32;
    word64 above = 0, own = sum_ranks(&x.groups[turn][lane]), upto;

    if (has_above)
        above = warp_sum(lane < gridDim.x ? sm90_load2_peer(sm90_shared(&x.above[turn]), lane) : 0);
    upto = above + warp_scan(own);
    const unsigned hits = __ballot_sync(~0u, upto - own < target && upto >= target);

    if (lane == 0) x.way = hits ? 0 : above >= target ? 1 : -1;
    if (!hits) return;
    const unsigned group = (unsigned)__ffs((int)hits) - 1;

    above = __shfl_sync(~0u, upto - own, (int)group);
    own = sum_ranks(&x.bins[turn][group * 32 + lane]);
    upto = above + warp_scan(own);
    if (upto - own >= target || upto < target) return;
    s.bin = group * 32 + lane;
    s.left = target - (upto - own);
    s.sum = own;
}

// Of the ids in order, the key within lo .. hi of the one at which the sum reaches the target; where
// not WEIGHED each weighs 1, and none is above hi.
template <bool WEIGHED>
static __device__ selected select_share(shared &s, shown &x, spread &p, unsigned lo, unsigned hi,
                                        word64 target) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    bool is_first = WEIGHED;

    if (WEIGHED) pick(s, x, p, lo, hi);
    __syncthreads(); // all are picked
    const bool some = WEIGHED && s.n_list <= SM90_SPREAD_PICKED;
    const unsigned n = some ? s.n_list : p.n;

    for (;;) {
        const unsigned bits = 32 - __clz((int)(hi - lo));
        const unsigned shift = bits > KEY_BITS ? bits - KEY_BITS : 0;

        for (unsigned first = 0; first < n; first += THREADS) {
            const unsigned i = first + threadIdx.x, at = i >= n ? 0 : some ? picked()[i] : i;
            const unsigned key = i >= n ? 0 : WEIGHED ? own_keys()[at] : key_of(own_logits()[at]);

            add_to_bin<WEIGHED>(x.bins[p.turn], key >= lo && key <= hi, (hi - key) >> shift,
                                WEIGHED ? weight(own_e(p)[at]) : 1);
        }
        __syncthreads(); // the bins are full
        const word64 group = warp_sum(x.bins[p.turn][threadIdx.x]);

        if (lane == 0) x.groups[p.turn][warp] = group;
        if (is_first && warp == WARPS - 1) {
            const word64 above = warp_sum(x.parts[lane]);

            if (lane == 0) x.above[p.turn] = above;
        }
        sm90_cluster_sync(); // all ranks' are
        if (warp == 0) find_bin(s, x, p.turn, is_first, target);
        is_first = false;
        p.turn ^= 1;
        x.bins[p.turn][threadIdx.x] = 0; // what all read before they came to the last meeting
        __syncthreads();                 // the bin is there, and the next ones are empty
        if (x.way) return {0, x.way, 0, 0};
        hi = hi - (s.bin << shift);
        if (shift == 0) return {hi, 0, s.left, s.sum};
        lo = max(lo, hi - ((1u << shift) - 1));
        target = s.left;
    }
}

// Keeps n of the n_there ids that have this key: the lowest.
template <bool WEIGHED>
static __device__ cut cut_share(shared &s, shown &x, const spread &p, unsigned key, word64 n,
                                word64 n_there) {
    const unsigned of = WEIGHED;
    unsigned n_own = 0, n_before = 0;

    if (n >= n_there) return {key, ~0u};
    for (unsigned i = threadIdx.x; i < p.n; i += THREADS)
        n_own += (WEIGHED ? own_keys()[i] : key_of(own_logits()[i])) == key;
    n_own = __reduce_add_sync(~0u, n_own);
    if (threadIdx.x % 32 == 0) atomicAdd(&x.n_ties[of], n_own);
    sm90_cluster_sync(); // all ranks have counted
    n_own = x.n_ties[of];
#pragma unroll 1
    for (unsigned rank = 0; rank < blockIdx.x; rank++)
        n_before += sm90_load1_peer(sm90_shared(&x.n_ties[of]), rank);
    for (unsigned start = 0; n_before < n && n_before + n_own >= n; start += THREADS) {
        const unsigned i = start + threadIdx.x;
        const bool is_one = i < p.n && (WEIGHED ? own_keys()[i] : key_of(own_logits()[i])) == key;
        const unsigned ballot = __ballot_sync(~0u, is_one);
        const unsigned n_here = (unsigned)__syncthreads_count(is_one);

        if (n_before + n_here >= n) {
            n_before += n_voted_before(s, ballot);
            if (is_one && n_before + 1 == n)
#pragma unroll 1
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

    return cut_share<false>(s, x, p, found.key, found.left, found.sum);
}

// Of lanes whose keys grow, those that are below a depth's bin.
static __device__ inline unsigned n_below(const row &r, unsigned bin, unsigned key) {
    return __popc(__ballot_sync(~0u, bin_of(depth(r, logit_of(key))) > bin));
}

// The least key at or above a depth's bin, within lo .. hi, of which hi is at or above it.
static __device__ unsigned search_key(const row &r, unsigned bin, unsigned lo, unsigned hi) {
    while (lo < hi) {
        // 32 keys at once; the first that is, or else the next
        const unsigned step = (hi - lo + 31) / 32;
        const unsigned n = n_below(r, bin, min(lo + step * (threadIdx.x % 32), hi));

        if (n < 32) hi = min(hi, lo + step * n);
        lo = n > 0 ? min(hi, lo + step * (n - 1) + 1) : hi;
    }
    return hi;
}

// The least key at or above a depth's bin: most often near where it would be if nothing were rounded.
static __device__ unsigned find_key(const row &r, unsigned bin, unsigned key_first) {
    enum { NEAR = 32 };
    const float z = r.z_first - ((float)bin + 0.5f) / (DEPTHS * NUM_LOG2E);
    const unsigned about = key_of(z * r.temperature), from = about - 16 * NEAR;
    unsigned lo = LEAST_KEY, hi = key_first;

    if (about > lo + 16 * NEAR && about < hi - 16 * NEAR) {
        const unsigned n = n_below(r, bin, from + NEAR * (threadIdx.x % 32));

        if (n > 0) lo = from + NEAR * (n - 1) + 1;
        if (n < 32) hi = from + NEAR * n;
    }
    return search_key(r, bin, lo, hi);
}

// Of the ids in order, the first ones, as long as the weights before an id sum to less than t of
// SPEC 2.11.
static __device__ cut keep_share(shared &s, shown &x, spread &p, const row &r, unsigned top_part,
                                 unsigned key_first) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    selected found = {0, 1, 0, 0};
    unsigned bin = 0;

    sm90_cluster_sync(); // all ranks have weighed theirs
    // the last depth that something is at and that the target reaches, give or take what the sums
    // leave out: by the two warps that look for its ends
    if (warp < 2) {
        const word64 target = target_of(
            warp_sum(lane < gridDim.x ? sm90_load2_peer(sm90_shared(&x.weight), lane) : 0),
            top_part);
        word64 own = sum_ranks(&x.depth_groups[lane]), before = warp_scan(own) - own;
        const unsigned group = 31 - __clz((int)__ballot_sync(~0u, own && before < target));

        before = __shfl_sync(~0u, before, (int)group);
        bin = group * 32 + lane;
        own = (word64)sum_ranks(&x.depths[bin]) << left_out(bin, r.vocab);
        before += warp_scan(own) - own;
        bin = group * 32 + 31 - __clz((int)__ballot_sync(~0u, own && before < target));
        if (threadIdx.x == 0) x.target = target;
    }
    for (;;) {
        if (warp == 0) s.id = find_key(r, bin, key_first);
        if (warp == 1) s.bound = bin ? find_key(r, bin - 1, key_first) - 1 : key_first;
        if (threadIdx.x == 0) s.n_list = 0;
        __syncthreads(); // they are there, and none is picked
        const unsigned lo = s.id, hi = s.bound;

        // where no key has this depth, on as before
        if (lo <= hi) found = select_share<true>(s, x, p, lo, hi, x.target);
        if (!found.way) break;
        bin -= (unsigned)found.way;
        __syncthreads(); // nobody reads the bounds of before, nor how many were picked
    }
    const word64 one = weight(e_of(r, logit_of(found.key)));

    return cut_share<true>(s, x, p, found.key, (found.left + one - 1) / one, found.sum / one);
}

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
