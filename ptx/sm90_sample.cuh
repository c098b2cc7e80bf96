/* sm90_sample - a row by a whole block: what is put in order, kept and drawn (SPEC 2.11), once its
 * logits have been through sm90_sample_f32.  In the functions below `chunks` are the row's. */
#ifndef LLM42D_PTX_SM90_SAMPLE_CUH
#define LLM42D_PTX_SM90_SAMPLE_CUH

#include "ptx/sm90.cuh"
#include "ptx/sm90_batch.h"
#include "ptx/sm90_sample.h"
#include "runtime/num.h"

enum {
    THREADS = SM90_SAMPLE_THREADS,
    WARPS = THREADS / 32,
    CHUNK = SM90_SAMPLE_CHUNK,
    N_BINS = 512,    // of keys
    BIN_BITS = 9,    // of their number
    N_DEPTHS = 1024, // bins of weights by depth below the first id,
    DEPTHS = 16,     // so many to a factor of two
    LIST_MAX = SM90_SAMPLE_LIST_MAX,
    FINEST = 40,     // bits of a weight
};

#define LEAST_KEY 0x7fffffu // of -infinity

#define LOW(x) ((unsigned)(x))
#define HIGH(x) ((unsigned)((x) >> 32))

typedef unsigned long long word64;

struct shared {
    union {
        word64 bins[N_BINS];
        unsigned depths[N_DEPTHS];
    };
    word64 list[LIST_MAX]; // ids in some order, as `order` has them
    word64 parts[WARPS];
    float sums[WARPS];
    word64 left, sum;
    unsigned n_list, bin, id;
    unsigned number, nth; // the row that the block is at
    batch_want want;
    float max, lse, target; // of it
    unsigned bound;         // of the race: the bits of a time that is not below the least
};

struct row {
    const float *logits;
    float *e; // [vocab rounded up to 4], 0 where an id is not kept by top_k
    unsigned vocab;
    float temperature, z_first;
};

// What is kept: keys above, and at it ids up to `last`.
struct cut {
    unsigned key, last;
};

static __device__ inline float number_of(float logit) {
    return num_max(-NUM_INFINITY, logit);
}

// A key that is larger where an id is earlier; -0 and +0 are one.
static __device__ inline unsigned key_of(float logit) {
    const unsigned bits = num_bits(number_of(logit) + 0.0f);

    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static __device__ inline float logit_of(unsigned key) {
    return num_from_bits(key >> 31 ? key & 0x7fffffffu : ~key);
}

// Larger where earlier in the order of ids.
static __device__ inline word64 order(float logit, unsigned id) {
    return (word64)key_of(logit) << 32 | ~id;
}

static __device__ inline bool is_kept(const cut &c, unsigned key, unsigned id) {
    return key > c.key || (key == c.key && id <= c.last);
}

static __device__ inline bool is_finite(float x) {
    return x - x == 0.0f;
}

static __device__ inline float4 load_four(const float *row, unsigned first, unsigned n) {
    return first < n ? *(const float4 *)(row + first) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// Of all threads' values the largest, to all.
static __device__ word64 block_max(shared &s, word64 v) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const word64 other = __shfl_xor_sync(~0u, v, step);

        v = other > v ? other : v;
    }
    __syncthreads(); // parts are free again
    if (threadIdx.x % 32 == 0) s.parts[threadIdx.x / 32] = v;
    __syncthreads(); // all warps' are in place
    v = s.parts[threadIdx.x % 32];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const word64 other = __shfl_xor_sync(~0u, v, step);

        v = other > v ? other : v;
    }
    return v;
}

// Of all threads' values the sum, to all; and of those of the threads before this one.
static __device__ word64 block_sum(shared &s, word64 own, word64 &out_before) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    word64 v = own, part;

#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const word64 other = __shfl_up_sync(~0u, v, step);

        if (lane >= (unsigned)step) v += other;
    }
    __syncthreads(); // parts are free again
    if (lane == 31) s.parts[warp] = v;
    __syncthreads(); // all warps' are in place
    part = s.parts[lane];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const word64 other = __shfl_up_sync(~0u, part, step);

        if (lane >= (unsigned)step) part += other;
    }
    out_before = v - own + (warp ? __shfl_sync(~0u, part, (int)warp - 1) : 0);
    return __shfl_sync(~0u, part, 31);
}

// The tree over all threads' values, to all.
static __device__ float block_tree(shared &s, float v) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) v = v + __shfl_xor_sync(~0u, v, step);
    if (threadIdx.x % 32 == 0) s.sums[threadIdx.x / 32] = v;
    __syncthreads(); // all warps' are in place
    v = s.sums[threadIdx.x % 32];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) v = v + __shfl_xor_sync(~0u, v, step);
    return v;
}

static __device__ inline float exponent_of(float max) {
    return floorf(max * NUM_LOG2E) + 1.0f;
}

// fl(S_c pow2(M_c - M)) of SPEC 2.10, +0 where there is no such chunk.
static __device__ inline float scaled(float max, float sum, float exponent, bool is_there) {
    const float d = exponent_of(max) - exponent;

    return is_there ? sum * (d >= -126.0f ? num_pow2((int)d) : 0.0f) : 0.0f;
}

static __device__ inline float warp_tree(float v) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) v = v + __shfl_xor_sync(~0u, v, step);
    return v;
}

// The first id, by way of the chunks' maxima.
static __device__ unsigned find_first(shared &s, const row &r, const batch_chunk *chunks,
                                      unsigned n_chunks) {
    word64 best = 0;

    for (unsigned c = threadIdx.x; c < n_chunks; c += THREADS) {
        const word64 v = order(chunks[c].max, c);

        best = v > best ? v : best;
    }
    const unsigned id = ~LOW(block_max(s, best)) * CHUNK + threadIdx.x;

    best = threadIdx.x < CHUNK && id < r.vocab ? order(r.logits[id], id) : 0;
    return ~LOW(block_max(s, best));
}

// S of SPEC 2.10: eight adjacent chunks a thread.
static __device__ float sum_chunks(shared &s, const batch_chunk *chunks, unsigned n_chunks,
                                   float exponent) {
    float v[8];

#pragma unroll
    for (int i = 0; i < 8; i++) {
        const unsigned c = threadIdx.x * 8 + i;
        float d;

        v[i] = 0.0f;
        if (c >= n_chunks) continue;
        d = exponent_of(chunks[c].max) - exponent;
        v[i] = chunks[c].sum * (d >= -126.0f ? num_pow2((int)d) : 0.0f);
    }
    return block_tree(s, ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])));
}

// How far an id is below the first one, in powers of two: 0 and below, and never smaller for a
// larger logit.
static __device__ inline float depth(const row &r, float logit) {
    return (number_of(logit) / r.temperature - r.z_first) * NUM_LOG2E;
}

static __device__ inline float e_of(const row &r, float logit) {
    return num_exp2(depth(r, logit));
}

static __device__ inline word64 weight(float e) {
    return (word64)(e * 0x1p40f);
}

// Adds to a bin up to 2^40 or, not WEIGHED, 1; in whole warps.  Where many lanes have the same bin,
// as ties have, adding one by one takes a turn a lane: so for one bin, or two, one lane adds all.
// Shared memory adds 32 bits by itself; 64 it does not.
template <bool WEIGHED>
static __device__ inline void add_to_bin(word64 *bins, bool is_there, unsigned bin, word64 w) {
    unsigned left = __ballot_sync(~0u, is_there);

    for (int i = 0; i < (WEIGHED ? 2 : 1) && left; i++) {
        const unsigned leader = __shfl_sync(~0u, bin, __ffs(left) - 1);
        const bool same = is_there && bin == leader;
        word64 all;

        if (WEIGHED) {
            const unsigned low = __reduce_add_sync(~0u, same ? LOW(w) & 0xfffff : 0);
            const unsigned high = __reduce_add_sync(~0u, same ? LOW(w >> 20) : 0);

            all = ((word64)high << 20) + low;
        } else {
            all = __popc(__ballot_sync(~0u, same));
        }
        if (threadIdx.x % 32 == 0) {
            if (WEIGHED)
                atomicAdd(&bins[leader], all);
            else
                atomicAdd((unsigned *)&bins[leader], LOW(all));
        }
        is_there = is_there && !same;
        left = __ballot_sync(~0u, is_there);
    }
    if (!is_there) return;
    if (WEIGHED)
        atomicAdd(&bins[bin], w);
    else
        atomicAdd((unsigned *)&bins[bin], 1u);
}

// Values to select from: logits, or the maxima of chunks.
struct values {
    const float *at; // `wide`: one after the other, else in every second word
    const float *e;  // of logits, or null: each weighs 1
    unsigned n;
};

// To bins the weights of keys lo .. hi, from hi down; to all the sum of those above.
template <bool WIDE, bool WEIGHED>
static __device__ word64 tally(shared &s, const values &from, unsigned lo, unsigned hi,
                               unsigned shift) {
    enum { EACH = WIDE ? 4 : 1 };
    word64 above = 0, before;
    float4 v = {0.0f, 0.0f, 0.0f, 0.0f}, e = v;

    __syncthreads(); // the bins are free again, and e is in place
    for (unsigned i = threadIdx.x; i < N_BINS; i += THREADS) s.bins[i] = 0;
    __syncthreads(); // they are empty
    if (WIDE) v = load_four(from.at, threadIdx.x * 4, from.n);
    if (WEIGHED) e = load_four(from.e, threadIdx.x * 4, from.n);
    for (unsigned first = 0; first < from.n; first += THREADS * EACH) {
        const unsigned id = first + threadIdx.x * EACH, next = id + THREADS * EACH;
        const float four[4] = {WIDE          ? v.x
                               : id < from.n ? from.at[2 * (size_t)id]
                                             : 0.0f,
                               v.y, v.z, v.w};
        const float weights[4] = {e.x, e.y, e.z, e.w};

        if (WIDE) v = load_four(from.at, next, from.n);
        if (WEIGHED) e = load_four(from.e, next, from.n);
#pragma unroll
        for (unsigned i = 0; i < EACH; i++) {
            const unsigned key = id + i < from.n ? key_of(four[i]) : 0;
            const word64 w = WEIGHED ? weight(weights[i]) : 1;

            if (key > hi) above += w;
            add_to_bin<WEIGHED>(s.bins, key >= lo && key <= hi, (hi - key) >> shift, w);
        }
    }
    return block_sum(s, above, before); // its barriers: the bins are full
}

struct selected {
    unsigned key;
    int way;          // 0: it is found; else it is above (1) or below (-1) what was looked at
    word64 left, sum; // what is left of the target at the key, the sum there
};

// Of ids in order, the key of the one at which the sum reaches the target.
template <bool WIDE, bool WEIGHED>
static __device__ selected select(shared &s, const values &from, unsigned lo, unsigned hi,
                                  word64 target) {
    for (;;) {
        const unsigned bits = 32 - __clz((int)(hi - lo));
        const unsigned shift = bits > BIN_BITS ? bits - BIN_BITS : 0;
        const word64 above = tally<WIDE, WEIGHED>(s, from, lo, hi, shift);
        const word64 own = threadIdx.x < N_BINS ? s.bins[threadIdx.x] : 0;
        word64 before, total = block_sum(s, own, before);

        if (above >= target) return {0, 1, 0, 0};
        if (above + total < target) return {0, -1, 0, 0};
        before += above;
        if (before < target && before + own >= target) {
            s.bin = threadIdx.x;
            s.left = target - before;
            s.sum = own;
        }
        __syncthreads(); // the bin is there
        hi = hi - (s.bin << shift);
        if (shift == 0) return {hi, 0, s.left, s.sum};
        lo = max(lo, hi - ((1u << shift) - 1));
    }
}

// How many of the block's threads before this one voted for themselves, by the ballots of all warps.
static __device__ unsigned n_voted_before(shared &s, unsigned ballot) {
    unsigned n = __popc(ballot & ((1u << threadIdx.x % 32) - 1));

    if (threadIdx.x % 32 == 0) s.parts[threadIdx.x / 32] = __popc(ballot);
    __syncthreads(); // all warps' counts are in place
#pragma unroll 1     // registers
    for (unsigned warp = 0; warp < threadIdx.x / 32; warp++) n += (unsigned)s.parts[warp];
    return n;
}

// Keeps n of the n_there ids that have this key: the lowest.
static __device__ cut cut_ties(shared &s, const row &r, unsigned key, word64 n, word64 n_there) {
    unsigned n_before = 0;

    if (n >= n_there) return {key, r.vocab};
    for (unsigned start = 0; start < r.vocab; start += THREADS) {
        const unsigned id = start + threadIdx.x;
        const bool is_one = id < r.vocab && key_of(r.logits[id]) == key;
        const unsigned ballot = __ballot_sync(~0u, is_one);
        const unsigned n_here = (unsigned)__syncthreads_count(is_one);

        if (n_before + n_here >= n) {
            n_before += n_voted_before(s, ballot);
            if (is_one && n_before + 1 == n) s.id = id;
            __syncthreads(); // the last kept id is there
            break;
        }
        n_before += n_here;
    }
    return {key, s.id};
}

static __device__ cut keep_first(shared &s, const row &r, unsigned k, unsigned key_first) {
    const values logits = {r.logits, 0, r.vocab};
    const selected found = select<true, false>(s, logits, LEAST_KEY, key_first, k);

    return cut_ties(s, r, found.key, found.left, found.sum);
}

// Puts what is kept into the list, in no order; how many, or more than LIST_MAX where they do not
// fit.  Only chunks are read that have a key as large.
static __device__ unsigned list_kept(shared &s, const row &r, const batch_chunk *chunks,
                                     unsigned n_chunks, const cut &kept) {
    const unsigned lane = threadIdx.x % 32;

    __syncthreads(); // nobody reads the list of before
    if (threadIdx.x == 0) s.n_list = 0;
    __syncthreads(); // it is empty
    for (unsigned first = threadIdx.x / 32 * 32; first < n_chunks; first += THREADS) {
        const unsigned c = min(first + lane, n_chunks - 1);
        unsigned hits =
            __ballot_sync(~0u, first + lane < n_chunks && key_of(chunks[c].max) >= kept.key);

        for (; hits && *(volatile unsigned *)&s.n_list <= LIST_MAX; hits &= hits - 1) {
            const unsigned id = (first + __ffs(hits) - 1) * CHUNK + lane * 4;
            const float4 v = load_four(r.logits, id, r.vocab);
            const float four[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                if (id + i >= r.vocab || !is_kept(kept, key_of(four[i]), id + i)) continue;
                const unsigned at = atomicAdd(&s.n_list, 1u);

                if (at < LIST_MAX) s.list[at] = order(four[i], id + i);
            }
        }
    }
    __syncthreads(); // the list is whole
    return s.n_list;
}

// Puts the first k ids, at most LIST_MAX and there, into the list, in order.  The k-th largest
// maximum of a chunk is a logit that at least k ids reach, most often few more, and in few chunks.
static __device__ void list_first(shared &s, const row &r, const batch_chunk *chunks,
                                  unsigned n_chunks, unsigned k, unsigned key_first) {
    const values maxima = {&chunks->max, 0, n_chunks};
    unsigned n = LIST_MAX + 1, rank = 0;
    word64 own = 0;

    if (k <= n_chunks) {
        const cut kept = {select<false, false>(s, maxima, LEAST_KEY, key_first, k).key, r.vocab};

        n = list_kept(s, r, chunks, n_chunks, kept);
    }
    if (n > LIST_MAX) n = list_kept(s, r, chunks, n_chunks, keep_first(s, r, k, key_first));
    if (threadIdx.x < n) own = s.list[threadIdx.x];
    if (threadIdx.x / 32 * 32 < n)
        for (unsigned i = 0; i < n; i++) rank += s.list[i] > own;
    __syncthreads(); // all have their rank
    if (threadIdx.x < n && rank < k) s.list[rank] = own;
    __syncthreads(); // the first k are in order
}

// t of SPEC 2.11.
static __device__ inline word64 target_of(word64 total, word64 part) {
    return (total >> 24) * part + (((total & 0xffffff) * part + 0xffffff) >> 24);
}

// Bits of a weight that are left out of the sums by depth, so that these fit 32 bits.
static __device__ inline unsigned coarse(unsigned bin, unsigned vocab) {
    const unsigned bits = (unsigned)__clz((int)vocab) - 1 + bin / DEPTHS; // beside the zeros above

    return bits < FINEST ? FINEST - bits : 0;
}

// e of all ids that are kept; the sum of their weights, and, roughly, their sums by depth.
static __device__ word64 weigh(shared &s, const row &r, const cut &kept, bool summed) {
    const unsigned n_whole = (r.vocab + 3) / 4 * 4;
    word64 sum = 0, before;
    float4 v = load_four(r.logits, threadIdx.x * 4, n_whole);

    __syncthreads(); // the bins are free again
    s.depths[threadIdx.x] = 0;
    __syncthreads(); // they are empty
    for (unsigned first = 0; first < n_whole; first += THREADS * 4) {
        const unsigned id = first + threadIdx.x * 4;
        const float four[4] = {v.x, v.y, v.z, v.w};
        float e[4];

        v = load_four(r.logits, id + THREADS * 4, n_whole);
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            const float d = depth(r, four[i]);
            const bool is_there = id + i < r.vocab && is_kept(kept, key_of(four[i]), id + i);

            e[i] = is_there ? num_exp2(d) : 0.0f;
            if (!summed) continue;
            const unsigned bin = min(__float2uint_rz(d * -(float)DEPTHS), N_DEPTHS - 1u);
            const word64 w = weight(e[i]);
            const unsigned rough = LOW(w >> coarse(bin, r.vocab));
            int equal;

            sum += w;
            // all of a warp in one bin is what ties look like
            __match_all_sync(~0u, bin, &equal);
            if (equal) {
                const unsigned all = __reduce_add_sync(~0u, rough);

                if (threadIdx.x % 32 == 0) atomicAdd(&s.depths[bin], all);
            } else if (rough) {
                atomicAdd(&s.depths[bin], rough);
            }
        }
        if (id < n_whole) *(float4 *)(r.e + id) = make_float4(e[0], e[1], e[2], e[3]);
    }
    return summed ? block_sum(s, sum, before) : 0; // its barriers: the bins are full
}

// The least key at or above a depth's bin.
static __device__ unsigned key_at_depth(const row &r, unsigned bin, unsigned key_first) {
    unsigned lo = LEAST_KEY, hi = key_first; // hi is within, what is below lo is not

    while (lo < hi) {
        // 32 keys at once; the least that is within, or else the next
        const unsigned step = (hi - lo + 31) / 32, key = lo + step * (threadIdx.x % 32);
        const bool within =
            key >= hi ||
            min(__float2uint_rz(depth(r, logit_of(key)) * -(float)DEPTHS), N_DEPTHS - 1u) <= bin;
        const unsigned ballot = __ballot_sync(~0u, within);
        const unsigned n = ballot ? (unsigned)__ffs((int)ballot) - 1 : 32;

        if (n < 32) hi = min(hi, lo + step * n);
        if (n > 0)
            lo = min(hi, lo + step * (n - 1) + 1);
        else
            lo = hi;
    }
    return hi;
}

// Of the kept ids in order, the first ones, as long as the weights before an id sum to less than
// `target`.
static __device__ cut keep_weights(shared &s, const row &r, word64 target, unsigned key_first) {
    const values logits = {r.logits, r.e, r.vocab};
    const word64 own = (word64)s.depths[threadIdx.x] << coarse(threadIdx.x, r.vocab);
    word64 before;

    (void)block_sum(s, own, before);
    // the last depth that something is at and that the target reaches, give or take what the sums
    // leave out
    unsigned bin = LOW(block_max(s, own && before < target ? threadIdx.x : 0));
    selected found = {0, 1, 0, 0};

    for (; found.way; bin -= (unsigned)found.way) {
        const unsigned lo = key_at_depth(r, bin, key_first);
        const unsigned hi = bin ? key_at_depth(r, bin - 1, key_first) - 1 : key_first;

        // where no key has this depth, on as before
        if (lo <= hi) found = select<true, true>(s, logits, lo, hi, target);
    }
    const word64 one = weight(e_of(r, logit_of(found.key)));

    return cut_ties(s, r, found.key, (found.left + one - 1) / one, found.sum / one);
}

// The least fl(E / e) of a kept id, of equal ones the lowest id: its complement is the largest.
static __device__ inline word64 time_of(unsigned id, unsigned word, float e) {
    return ~((word64)num_bits(num_exponential(word) / e) << 32 | id);
}

// The words of four adjacent ids, which one run of Philox makes.
static __device__ inline uint4 words_of(const batch_want &want, unsigned group) {
    return make_uint4(num_random(want.seed, want.position, group * 4),
                      num_random(want.seed, want.position, group * 4 | 1),
                      num_random(want.seed, want.position, group * 4 | 2),
                      num_random(want.seed, want.position, group * 4 | 3));
}

static __device__ word64 race(shared &s, const row &r, const batch_want &want, const cut &kept) {
    word64 best = 0;
    float4 v = load_four(r.logits, threadIdx.x * 4, r.vocab);
    float4 w = load_four(r.e, threadIdx.x * 4, r.vocab);

    if (threadIdx.x == 0) s.bound = 0x7f800000;
    __syncthreads(); // the bound is there
    for (unsigned first = 0; first < r.vocab; first += THREADS * 4) {
        const unsigned id = first + threadIdx.x * 4;
        const float four[4] = {v.x, v.y, v.z, v.w}, e[4] = {w.x, w.y, w.z, w.w};
        bool runs[4];

        v = load_four(r.logits, id + THREADS * 4, r.vocab);
        w = load_four(r.e, id + THREADS * 4, r.vocab);
#pragma unroll
        for (unsigned i = 0; i < 4; i++)
            runs[i] = id + i < r.vocab && e[i] > 0.0f && e[i] >= want.min_p &&
                      is_kept(kept, key_of(four[i]), id + i);
        if (!runs[0] && !runs[1] && !runs[2] && !runs[3]) continue;
        const uint4 made = words_of(want, id / 4);
        const unsigned words[4] = {made.x, made.y, made.z, made.w};
        const float bound = num_from_bits(*(volatile unsigned *)&s.bound);

#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            // E is at least v log2(e), v = (word + 1/2) / 2^32, give or take 2^-18: whoever is slower
            // than some other by more than that is out
            if (!runs[i] || (float)words[i] * 0x1.7147p-32f > bound * e[i]) continue;
            const word64 own = time_of(id | i, words[i], e[i]);

            if (own <= best) continue;
            best = own;
            atomicMin(&s.bound, HIGH(~own));
        }
    }
    return best;
}

// The race of the first k ids, at most LIST_MAX, that are put in order: to each thread its best.
static __device__ word64 race_first(shared &s, const row &r, const batch_want &want,
                                    const batch_chunk *chunks, unsigned n_chunks,
                                    unsigned key_first) {
    list_first(s, r, chunks, n_chunks, want.top_k, key_first);
    const bool is_there = threadIdx.x < want.top_k;
    const unsigned id = ~LOW(is_there ? s.list[threadIdx.x] : ~0ull);
    const float e = is_there ? e_of(r, r.logits[id]) : 0.0f;
    const uint4 words = words_of(want, id / 4);
    word64 before, total = block_sum(s, weight(e), before);

    if (!(e > 0.0f && e >= want.min_p) ||
        (want.top_part && before >= target_of(total, want.top_part)))
        return 0;
    return time_of(id, id & 2 ? (id & 1 ? words.w : words.z) : (id & 1 ? words.y : words.x), e);
}

// SPEC 2.11 for a temperature: e, what is kept of it, the race.
static __device__ unsigned choose(shared &s, const row &r, const batch_want &want,
                                  const batch_chunk *chunks, unsigned n_chunks, float max) {
    const unsigned key_first = key_of(max);
    const bool by_k = want.top_k > 0 && want.top_k < r.vocab;
    cut kept = {0, 0};
    word64 best = 0;

    if (by_k && want.top_k <= LIST_MAX) {
        best = race_first(s, r, want, chunks, n_chunks, key_first);
    } else {
        if (by_k) kept = keep_first(s, r, want.top_k, key_first);
        const word64 total = weigh(s, r, kept, want.top_part);

        if (want.top_part) kept = keep_weights(s, r, target_of(total, want.top_part), key_first);
        __syncthreads(); // e is in place
        best = race(s, r, want, kept);
    }
    return ~LOW(block_max(s, best));
}

#endif
