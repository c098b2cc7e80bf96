// sm90_sample_f32 - of each row of logits: logsumexp, the token chosen, the most probable (SPEC 2.10,
// 2.11).
//
//   results   [n_rows]
//   wants     [n_rows]; a row whose n_top is BATCH_NO_WANT is left as it is
//   logits    f32 [n_rows][stride], the first vocab of a row, 16-byte aligned
//   chunks    {max, sum} [n_rows][8 n_groups] of each 128 logits, 64-byte aligned; a NaN logit counts
//             as -infinity in the maximum
//   maxima    f32 [n_rows][n_groups], n_groups = ceil(vocab / 1024), at most 1024
//   counts    [n_rows]: groups of a row that are through; 0 before and after
//   scratch   f32 [n_rows][stride], 16-byte aligned; stride a multiple of 4
//   grid      (blocks, 1, 1): n_rows of them, or as many as run at once, for a block then may wait
//             for others             block (1024, 1, 1)
//   shared    128 KB dynamic (SM90_SAMPLE_BYTES), 13 KB
//   rounding  bit-exact: exp2p of num.h, trees over adjacent ids and chunks; sums of weights are
//             integers, so their order is free, and so is that of maxima and minima, which have the
//             id below the value
//   bound by  HBM, 4 bytes a logit, which is read once; draws and lists by the arithmetic of one
//             pass of exp2p and one of Philox, by one multiprocessor a row; top_p two or three
//             passes over L2 more
//
// All groups of all rows are dealt to the blocks in turn, a group to a warp.  Where a row wants
// nothing but its first id, the warp that comes last ends it; else it is a block's when that has no
// more groups.
#include "ptx/sm90_sample.cuh"

enum {
    GROUP = SM90_SAMPLE_GROUP * CHUNK, // logits
    VALUES = GROUP / 32,               // of a lane, adjacent: four lanes have a chunk
    PIECES = VALUES / 4,               // of 16 bytes
    PART = 32 * 32,                    // chunks that a warp sums at once
};

extern __shared__ __align__(128) unsigned char sample_dynamic[];

struct work {
    batch_result *results;
    const batch_want *wants;
    const float *logits;
    batch_chunk *chunks;
    float *maxima;
    u32 *counts;
    float *scratch;
    unsigned n_rows, vocab, stride, n_chunks, n_groups;
};

static __device__ inline const float *logits_of(const work &w, unsigned row) {
    return w.logits + (size_t)row * w.stride;
}

static __device__ inline batch_chunk *chunks_of(const work &w, unsigned row) {
    return w.chunks + (size_t)row * w.n_groups * SM90_SAMPLE_GROUP;
}

static __device__ inline bool wants_more(const batch_want &want) {
    return want.n_top != BATCH_NO_WANT && (want.n_top > 0 || want.temperature != 0.0f);
}

// A group whose logits are all there and within the range of num_exp2_plain, or nothing: false.
static __device__ inline bool sum_plain(const work &w, unsigned row, unsigned group,
                                        float (&v)[VALUES]) {
    const unsigned lane = threadIdx.x % 32, chunk = group * SM90_SAMPLE_GROUP + lane / 4;
    const unsigned id = group * GROUP + lane * VALUES;
    float max = v[0], least = v[0], exponent, sums[PIECES], all;

#pragma unroll
    for (int i = 1; i < VALUES; i++) {
        max = fmaxf(max, v[i]);
        least = sm90_min_or_nan(least, v[i]);
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, step));
    exponent = exponent_of(max);
    const bool plain = num_fma(least, NUM_LOG2E, -exponent) >= -125.0f &&
                       num_fma(max, NUM_LOG2E, -exponent) <= 100.0f;

    if (!__all_sync(~0u, chunk >= w.n_chunks || (plain && id + VALUES <= w.vocab))) return false;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        float e[4];

#pragma unroll
        for (int k = 0; k < 4; k++)
            e[k] = num_exp2_plain(num_fma(v[4 * i + k], NUM_LOG2E, -exponent));
        sums[i] = (e[0] + e[1]) + (e[2] + e[3]);
    }
    all = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
#pragma unroll
    for (int step = 1; step < 4; step *= 2) all = all + __shfl_xor_sync(~0u, all, step);
    if (lane % 4 == 0 && chunk < w.n_chunks) chunks_of(w, row)[chunk] = {max, all};
    if (chunk >= w.n_chunks) max = -NUM_INFINITY;
#pragma unroll
    for (int step = 4; step < 32; step *= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, step));
    if (lane == 0) w.maxima[(size_t)row * w.n_groups + group] = max;
    return true;
}

// Any group: a chunk after the other, four adjacent ids a lane.
static __device__ inline void sum_any(const work &w, unsigned row, unsigned group) {
    const unsigned lane = threadIdx.x % 32;
    const float *from = logits_of(w, row);
    float most = -NUM_INFINITY;

#pragma unroll 1
    for (unsigned i = 0; i < SM90_SAMPLE_GROUP; i++) {
        const unsigned chunk = group * SM90_SAMPLE_GROUP + i, id = chunk * CHUNK + 4 * lane;
        const float4 four = load_four(from, id, w.vocab);
        float v[4] = {four.x, four.y, four.z, four.w}, max = -NUM_INFINITY, exponent;

        if (chunk >= w.n_chunks) break;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (id + k >= w.vocab) v[k] = -NUM_INFINITY;
            max = num_max(max, v[k]);
        }
#pragma unroll
        for (int step = 1; step < 32; step *= 2)
            max = num_max(max, __shfl_xor_sync(~0u, max, step));
        exponent = exponent_of(max);
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = num_exp2(num_fma(v[k], NUM_LOG2E, -exponent));
        v[0] = (v[0] + v[1]) + (v[2] + v[3]);
#pragma unroll
        for (int step = 1; step < 32; step *= 2) v[0] = v[0] + __shfl_xor_sync(~0u, v[0], step);
        if (lane == 0) chunks_of(w, row)[chunk] = {max, v[0]};
        most = num_max(most, max);
    }
    if (lane == 0) w.maxima[(size_t)row * w.n_groups + group] = most;
}

// The tree over 16 adjacent chunks.
static __device__ inline float sum_16(const batch_chunk *chunks, unsigned first, unsigned n_chunks,
                                      float exponent) {
    float v[8];

#pragma unroll
    for (unsigned i = 0; i < 8; i++) {
        const unsigned c = first + 2 * i;
        const float4 two = c < n_chunks ? __ldcg((const float4 *)(chunks + c))
                                        : make_float4(0.0f, 0.0f, 0.0f, 0.0f);

        v[i] = scaled(two.x, two.y, exponent, c < n_chunks) +
               scaled(two.z, two.w, exponent, c + 1 < n_chunks);
    }
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

// S of SPEC 2.10 by a warp, 32 adjacent chunks a lane.
static __device__ inline float sum_row(const batch_chunk *chunks, unsigned n_chunks,
                                       float exponent) {
    const unsigned lane = threadIdx.x % 32;
    float parts = 0.0f;

#pragma unroll 1
    for (unsigned n = 0; n * PART < n_chunks; n++) {
        const unsigned first = n * PART + lane * 32;
        const float low = sum_16(chunks, first, n_chunks, exponent);
        const float all = warp_tree(low + sum_16(chunks, first + 16, n_chunks, exponent));

        if (lane == n) parts = all;
    }
    return warp_tree(parts);
}

// The end of a row that wants its first id, by a warp.
static __device__ inline void end_row(const work &w, unsigned row) {
    const unsigned lane = threadIdx.x % 32, target = w.wants[row].target;
    const float *logits = logits_of(w, row), *maxima = w.maxima + (size_t)row * w.n_groups;
    batch_result *to = &w.results[row];
    unsigned key = 0, group = 0, first = ~0u;

    for (unsigned g = lane; g < w.n_groups; g += 32) {
        const unsigned own = key_of(__ldcg(maxima + g));

        if (own <= key) continue;
        key = own;
        group = g;
    }
    const unsigned key_first = __reduce_max_sync(~0u, key);
    const float max = logit_of(key_first), exponent = exponent_of(max);

    group = __reduce_min_sync(~0u, key == key_first ? group : ~0u);
#pragma unroll
    for (unsigned i = 0; i < PIECES; i++) {
        const unsigned id = group * GROUP + i * CHUNK + lane * 4;
        const float4 v = load_four(logits, id, w.vocab);
        const float four[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
        for (unsigned k = 0; k < 4; k++)
            if (id + k < w.vocab && key_of(four[k]) == key_first) first = min(first, id + k);
    }
    first = __reduce_min_sync(~0u, first);
    const float sum = sum_row(chunks_of(w, row), w.n_chunks, exponent);
    const float lse = num_fma(exponent, NUM_LN2, num_log2(sum) * NUM_LN2);

    for (unsigned i = lane; i < sizeof(*to) / sizeof(unsigned); i += 32) ((unsigned *)to)[i] = 0;
    __syncwarp(); // what follows comes after the zeros
    if (lane != 0) return;
    w.counts[row] = 0;
    if (!is_finite(lse) || !is_finite(max)) {
        to->numeric = 1;
        return;
    }
    to->token = first;
    to->logprob = logits[first] - lse;
    to->lse = lse;
    if (target != 0xffffffffu) to->target_logprob = logits[target] - lse;
}

// n groups of a row are through; whoever is last ends it, where that is a warp's work.
static __device__ inline void arrive(const work &w, unsigned row, unsigned n) {
    unsigned before = 0;

    __syncwarp(); // what all lanes wrote
    if (threadIdx.x % 32 == 0) before = sm90_count_by(&w.counts[row], n);
    before = __shfl_sync(~0u, before, 0);
    if (before + n != w.n_groups || wants_more(w.wants[row])) return;
    __syncwarp(); // a shuffle orders no memory: what lane 0 saw counted
    sm90_fence_counted();
    end_row(w, row);
}

// The groups of this block, each on its way while the one before is dealt with.
static __device__ void sum_groups(const work &w, u32 stage, u32 barrier) {
    const unsigned lane = threadIdx.x % 32, n_all = w.n_rows * w.n_groups;
    const unsigned share = n_all / gridDim.x, n_more = n_all % gridDim.x;
    const unsigned begin = blockIdx.x * share + min(blockIdx.x, n_more);
    const unsigned end = begin + share + (blockIdx.x < n_more);
    const u64 policy = sm90_policy_evict_first();
    unsigned at = begin + threadIdx.x / 32, row = at / w.n_groups, group = at % w.n_groups;
    unsigned n_through = 0, parity = 0;

    const auto fetch = [&]() {
        const unsigned n_bytes =
            min(GROUP + 0u, w.stride - group * GROUP) * (unsigned)sizeof(float);

        if (lane != 0) return;
        sm90_barrier_expect(barrier, n_bytes);
        sm90_copy_policy(stage, logits_of(w, row) + group * GROUP, n_bytes, barrier, policy);
    };

    if (at < end) fetch();
    for (; at < end; at += WARPS) {
        const unsigned this_row = row, this_group = group;
        const bool is_wanted = w.wants[row].n_top != BATCH_NO_WANT, is_last = at + WARPS >= end;
        float v[VALUES];

        sm90_barrier_wait(barrier, parity);
        parity ^= 1;
        // In an order of its own, so that lanes read other banks; to the tree over the lane's
        // values it is the same, for it only swaps what is added.
#pragma unroll
        for (unsigned i = 0; i < PIECES; i++) {
            const float4 four = sm90_load4(stage + lane * VALUES * 4 + (i ^ lane % 8) * 16);

            v[4 * i] = four.x;
            v[4 * i + 1] = four.y;
            v[4 * i + 2] = four.z;
            v[4 * i + 3] = four.w;
        }
        __syncwarp(); // nobody reads it any more
        for (group += WARPS; group >= w.n_groups; group -= w.n_groups) row++;
        if (!is_last) fetch();
        if (!is_wanted) continue;
        if (!sum_plain(w, this_row, this_group, v)) sum_any(w, this_row, this_group);
        n_through++;
        if (!is_last && row == this_row) continue;
        arrive(w, this_row, n_through);
        n_through = 0;
    }
}

// To s.number, of the rows that want more, number s.nth, or n_rows; where a block has a row, its own.
static __device__ void find_row(shared &s, const work &w) {
    const unsigned nth = s.nth;
    unsigned n_before = 0;

    __syncthreads(); // all have read it
    if (threadIdx.x == 0) {
        s.number = w.n_rows;
        s.nth = nth + gridDim.x;
        if (gridDim.x == w.n_rows && nth < w.n_rows && wants_more(w.wants[nth])) s.number = nth;
    }
    for (unsigned start = 0; start < w.n_rows && gridDim.x != w.n_rows; start += THREADS) {
        const unsigned row = start + threadIdx.x;
        const bool own = row < w.n_rows && wants_more(w.wants[row]);
        word64 before;
        const unsigned n = LOW(block_sum(s, own, before));

        if (own && n_before + LOW(before) == nth) s.number = row;
        n_before += n;
    }
    __syncthreads(); // the row is there
}

// The end of any row, s.number, by the block.
static __device__ void end_row_by_block(shared &s, const work &w) {
    const batch_want &want = s.want;
    const batch_chunk *chunks = chunks_of(w, s.number);
    unsigned first, token;
    float max, exponent, lse;

    if (threadIdx.x == 0) {
        while (sm90_counted(&w.counts[s.number]) != w.n_groups) continue;
        sm90_fence_counted();
        w.counts[s.number] = 0;
        s.want = w.wants[s.number];
    }
    __syncthreads(); // all groups are through
    row r = {logits_of(w, s.number), w.scratch + (size_t)s.number * w.stride, w.vocab,
             want.temperature, 0.0f};

    for (unsigned i = threadIdx.x; i < sizeof(batch_result) / sizeof(unsigned); i += THREADS)
        ((unsigned *)&w.results[s.number])[i] = 0;
    first =
        find_first(s, r, chunks, w.n_chunks); // its barriers: the zeros come before what follows
    max = number_of(r.logits[first]);

    if (threadIdx.x == 0) s.max = max;
    exponent = exponent_of(max);
    lse = num_fma(exponent, NUM_LN2, // with a barrier: the maximum is there
                  num_log2(sum_chunks(s, chunks, w.n_chunks, exponent)) * NUM_LN2);
    if (!is_finite(lse) || !is_finite(max)) {
        if (threadIdx.x == 0) w.results[s.number].numeric = 1;
        return;
    }

    if (threadIdx.x == 0) s.lse = lse;
    token = first;
    r.z_first = max / want.temperature;
    if (want.temperature != 0.0f && is_finite(r.z_first))
        token = choose(s, r, want, chunks, w.n_chunks, max);
    if (threadIdx.x == 0) {
        batch_result *to = &w.results[s.number];

        to->token = token;
        to->logprob = r.logits[token] - s.lse;
        to->lse = s.lse;
        if (want.target != 0xffffffffu) to->target_logprob = r.logits[want.target] - s.lse;
        to->n_top = want.n_top;
    }
    if (want.n_top == 0) return;
    list_first(s, r, chunks, w.n_chunks, want.n_top, key_of(s.max));
    if (threadIdx.x < want.n_top) {
        const unsigned id = ~LOW(s.list[threadIdx.x]);
        batch_result *to = &w.results[s.number];

        to->top_ids[threadIdx.x] = id;
        to->top_logprobs[threadIdx.x] = r.logits[id] - s.lse;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sm90_sample_f32(batch_result *__restrict__ results, const batch_want *__restrict__ wants,
                    const float *__restrict__ logits, batch_chunk *chunks, float *maxima,
                    u32 *counts, float *scratch, unsigned n_rows, unsigned vocab, unsigned stride,
                    unsigned n_chunks, unsigned n_groups) {
    __shared__ u64 barriers[WARPS];
    __shared__ shared s;
    const unsigned warp = threadIdx.x / 32;
    const u32 barrier = sm90_shared(&barriers[warp]);
    const u32 stage = sm90_shared(sample_dynamic) + warp * GROUP * (u32)sizeof(float);
    const work w = {results, wants,  logits, chunks, maxima,   counts,
                    scratch, n_rows, vocab,  stride, n_chunks, n_groups};
    bool more = false;

    if (threadIdx.x % 32 == 0) {
        sm90_barrier_init(barrier, 1);
        sm90_barrier_init_done();
    }
    __syncwarp(); // the barrier is there
    sm90_wait_previous();
    sm90_launch_next();

    sum_groups(w, stage, barrier);
    for (unsigned row = threadIdx.x; row < n_rows; row += THREADS) more |= wants_more(wants[row]);
    if (threadIdx.x == 0) s.nth = blockIdx.x;
    if (!__syncthreads_count(more)) return;
    for (find_row(s, w); s.number < n_rows; find_row(s, w)) end_row_by_block(s, w);
}
