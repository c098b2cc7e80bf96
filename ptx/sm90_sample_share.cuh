/* sm90_sample_share - a row's logits by the blocks of a cluster, each with a share of them in
 * shared memory: what they show each other, and the sums of SPEC 2.10.  Used by
 * sm90_sample_f32_spread.cu. */
#ifndef LLM42D_PTX_SM90_SAMPLE_SHARE_CUH
#define LLM42D_PTX_SM90_SAMPLE_SHARE_CUH

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

static __device__ inline word64 peer_word(const word64 *at, unsigned rank) {
    return sm90_load2_peer(sm90_shared(at), rank);
}

static __device__ inline unsigned peer_word(const unsigned *at, unsigned rank) {
    return sm90_load1_peer(sm90_shared(at), rank);
}

// Of the words at this place of all ranks the sum; each begins with its own.
template <class WORD> static __device__ inline WORD sum_ranks(const WORD *at) {
    WORD v = 0;

#pragma unroll 8
    for (unsigned i = 0; i < gridDim.x; i++) {
        const unsigned rank = i + blockIdx.x;

        v += peer_word(at, rank < gridDim.x ? rank : rank - gridDim.x);
    }
    return v;
}

#endif
