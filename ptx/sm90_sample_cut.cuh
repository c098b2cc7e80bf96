/* sm90_sample_cut - which ids of a row top_k and top_p keep (SPEC 2.11), by the blocks of a
 * cluster: bins of depth, then of keys, which the ranks read of each other.  Used by
 * sm90_sample_f32_spread.cu. */
#ifndef LLM42D_PTX_SM90_SAMPLE_CUT_CUH
#define LLM42D_PTX_SM90_SAMPLE_CUT_CUH

#include "ptx/sm90_sample_share.cuh"

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

#endif
