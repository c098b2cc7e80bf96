// sm90_sample_f32 - of a row of logits: logsumexp, the token chosen, the most probable (SPEC 2.10,
// 2.11), one row a block.
//
//   results   [gridDim.x]
//   wants     [gridDim.x]
//   logits    f32 [gridDim.x][stride], the first vocab of a row
//   chunks    {max, sum} [gridDim.x][n_chunks], of sm90_lse_f32; n_chunks at most 8192
//   scratch   f32 [gridDim.x][stride], 16-byte aligned; stride a multiple of 4
//   grid      (rows, 1, 1)      block (1024, 1, 1)
//   shared    3 KB
//   rounding  bit-exact; sums of weights are integers, so their order is free, and so is that of
//             maxima and minima, which have the id below the value
//   bound by  a few trips to L2 for greedy rows; else by one pass of exp2p and of Philox, and
//             passes over L2 for top_k and top_p, five each, in which few ids count
#include "ptx/sm90.cuh"
#include "ptx/sm90_batch.h"
#include "runtime/num.h"

enum { THREADS = 1024, WARPS = THREADS / 32, CHUNK = 128, DIGIT_BITS = 8, N_DIGITS = 256 };

#define LOW(x) ((unsigned)(x))
#define HIGH(x) ((unsigned)((x) >> 32))

typedef unsigned long long word64;

struct shared {
    word64 bins[N_DIGITS];
    word64 parts[WARPS + 1];
    float sums[WARPS + 1];
    word64 target, sum;
    unsigned digit, id;
};

struct row {
    const float *logits;
    float *e; // [vocab rounded up to 4], 0 where an id is not kept
    unsigned vocab;
    float temperature, z_first;
};

static __device__ inline float number(float logit) {
    return num_max(-NUM_INFINITY, logit);
}

// A key that is larger where an id is earlier; -0 and +0 are one.
static __device__ inline unsigned key_of(float logit) {
    const unsigned bits = num_bits(number(logit) + 0.0f);

    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static __device__ inline float logit_of(unsigned key) {
    return num_from_bits(key >> 31 ? key & 0x7fffffffu : ~key);
}

// Larger where earlier in the order of ids.
static __device__ inline word64 order(float logit, unsigned id) {
    return (word64)key_of(logit) << 32 | ~id;
}

static __device__ inline bool is_finite(float x) {
    return x - x == 0.0f;
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

static __device__ word64 block_sum(shared &s, word64 v) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) v += __shfl_xor_sync(~0u, v, step);
    __syncthreads(); // parts are free again
    if (threadIdx.x % 32 == 0) s.parts[threadIdx.x / 32] = v;
    __syncthreads(); // all warps' are in place
    v = s.parts[threadIdx.x % 32];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
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

static __device__ inline float e_of(const row &r, float logit) {
    return num_exp2((number(logit) / r.temperature - r.z_first) * NUM_LOG2E);
}

static __device__ inline word64 weight(float e) {
    return (word64)(e * 0x1p40f);
}

// In bins: the first digit from above where the sum reaches the target; what is left of it there.
static __device__ void find_digit(shared &s) {
    if (threadIdx.x < 32) {
        const unsigned top = N_DIGITS - 1 - threadIdx.x * (N_DIGITS / 32);
        const word64 target = s.target;
        word64 own = 0, before;

        for (unsigned i = 0; i < N_DIGITS / 32; i++) own += s.bins[top - i];
        before = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const word64 other = __shfl_up_sync(~0u, before, step);

            if (threadIdx.x >= (unsigned)step) before += other;
        }
        before -= own;
        __syncwarp(); // all lanes have read the target
        if (before < target && before + own >= target) {
            unsigned digit = top;

            while (before + s.bins[digit] < target) before += s.bins[digit--];
            s.digit = digit;
            s.target = target - before;
            s.sum = s.bins[digit];
        }
    }
    __syncthreads(); // the digit is there
}

// Adds 1, or w, to the bin of a digit; many lanes have the same one, so one of them adds for all.
static __device__ inline void add_to_bin(shared &s, bool is_there, unsigned digit, bool weighed,
                                         word64 w) {
    if (weighed) {
        if (is_there) atomicAdd(&s.bins[digit], w);
    } else {
        const unsigned equal = __match_any_sync(~0u, is_there ? digit : N_DIGITS);

        if (is_there && threadIdx.x % 32 == __ffs(equal) - 1)
            atomicAdd(&s.bins[digit], (word64)__popc(equal));
    }
}

// Of values in order, the key of the one at which the sum reaches the target: the sum of e's weights,
// or, where e is null, a count.  Only keys from `least` on are looked at, which sum to as much.
// Leaves in s.target what is left of it at that key, in s.sum the sum there.
static __device__ unsigned select(shared &s, const float *values, unsigned stride, unsigned n,
                                  const float *e, unsigned least, word64 target) {
    unsigned prefix = 0;

    __syncthreads(); // e is in place, and the last selection is over
    if (threadIdx.x == 0) s.target = target;
    for (int shift = 32 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        for (unsigned i = threadIdx.x; i < N_DIGITS; i += THREADS) s.bins[i] = 0;
        __syncthreads(); // bins are empty
        for (unsigned first = 0; first < n; first += THREADS) {
            const unsigned i = first + threadIdx.x;
            const unsigned key = i < n ? key_of(values[(size_t)i * stride]) : 0;
            const bool is_there =
                i < n && key >= least && (word64)key >> (shift + DIGIT_BITS) == prefix;

            add_to_bin(s, is_there, key >> shift & (N_DIGITS - 1), e != 0,
                       e && is_there ? weight(e[i]) : 0);
        }
        __syncthreads(); // bins are full
        find_digit(s);
        prefix = prefix << DIGIT_BITS | s.digit;
        __syncthreads(); // all have read the digit
    }
    return prefix;
}

// Of ids in order, the first ones are kept, as long as the weights before an id sum to less than
// `target` (each weighs 1 where not `weighed`); the rest loses its e.  Keys below `least` are none
// of them.
static __device__ void cut(shared &s, const row &r, bool weighed, unsigned least, word64 target) {
    const unsigned prefix = select(s, r.logits, 1, r.vocab, weighed ? r.e : 0, least, target);
    const word64 one = weighed ? weight(e_of(r, logit_of(prefix))) : 1;
    const unsigned n_kept = (unsigned)((s.target + one - 1) / one);
    unsigned last = r.vocab;

    // of equal logits, the n_kept first ids
    if (n_kept < s.sum / one) {
        unsigned n_before = 0;

        for (unsigned start = 0; start < r.vocab; start += THREADS) {
            const unsigned id = start + threadIdx.x;
            const bool is_one = id < r.vocab && key_of(r.logits[id]) == prefix;
            const unsigned ballot = __ballot_sync(~0u, is_one);
            const unsigned n = __syncthreads_count(is_one);

            if (n_before + n >= n_kept) {
                if (threadIdx.x % 32 == 0) s.parts[threadIdx.x / 32] = __popc(ballot);
                __syncthreads(); // all warps' counts are in place
                for (unsigned i = 0; i < threadIdx.x / 32; i++) n_before += (unsigned)s.parts[i];
                n_before += __popc(ballot & ((1u << threadIdx.x % 32) - 1));
                if (is_one && n_before + 1 == n_kept) s.id = id;
                __syncthreads(); // the last kept id is there
                break;
            }
            n_before += n;
        }
        last = s.id;
    }
    for (unsigned id = threadIdx.x; id < r.vocab; id += THREADS) {
        const unsigned key = key_of(r.logits[id]);

        if (key < prefix || (key == prefix && id > last)) r.e[id] = 0.0f;
    }
}

// The k-th largest of the chunks' maxima is a logit that at least k ids reach.
static __device__ unsigned least_of_k(shared &s, const batch_chunk *chunks, unsigned n_chunks,
                                      unsigned k) {
    if (k > n_chunks) return 0;
    return select(s, &chunks->max, sizeof(*chunks) / sizeof(float), n_chunks, 0, 0, k);
}

// e of all ids; and the sums of their weights: of all, and of those not far below the first.
#define N_DEPTHS 3
static __device__ inline float depth_of(int i) {
    return i == 0 ? 1.0f : i == 1 ? 4.0f : 10.0f;
}

static __device__ void weigh(shared &s, const row &r, float max, bool summed,
                             word64 out_sums[N_DEPTHS + 1]) {
    const unsigned n_whole = (r.vocab + 3) / 4 * 4;
    word64 sums[N_DEPTHS + 1] = {0, 0, 0, 0};
    float border[N_DEPTHS];

#pragma unroll
    for (int i = 0; i < N_DEPTHS; i++) border[i] = max - depth_of(i) * r.temperature;
    for (unsigned id = threadIdx.x; id < n_whole; id += THREADS) {
        const float logit = id < r.vocab ? number(r.logits[id]) : -NUM_INFINITY;
        const float e = id < r.vocab ? e_of(r, logit) : 0.0f;

        r.e[id] = e;
        if (!summed) continue;
        sums[N_DEPTHS] += weight(e);
#pragma unroll
        for (int i = 0; i < N_DEPTHS; i++)
            if (logit >= border[i]) sums[i] += weight(e);
    }
#pragma unroll
    for (int i = 0; i <= N_DEPTHS; i++) out_sums[i] = summed ? block_sum(s, sums[i]) : 0;
}

// t of SPEC 2.11.
static __device__ inline word64 target_of(word64 total, word64 part) {
    return (total >> 24) * part + (((total & 0xffffff) * part + 0xffffff) >> 24);
}

// SPEC 2.11 for a temperature: e, what is kept of it, the race.
static __device__ unsigned choose(shared &s, const row &r, const batch_want &want,
                                  const batch_chunk *chunks, unsigned n_chunks, float max) {
    const unsigned n_groups = (r.vocab + 3) / 4;
    const bool by_k = want.top_k > 0 && want.top_k < r.vocab;
    word64 best = 0, sums[N_DEPTHS + 1];

    weigh(s, r, max, want.top_part && !by_k, sums);
    if (by_k) cut(s, r, false, least_of_k(s, chunks, n_chunks, want.top_k), want.top_k);
    if (want.top_part) {
        unsigned least = 0;
        word64 target;

        if (by_k) {
            word64 total = 0;

            __syncthreads(); // e is in place
            for (unsigned id = threadIdx.x; id < r.vocab; id += THREADS) total += weight(r.e[id]);
            sums[N_DEPTHS] = block_sum(s, total);
        }
        // most often a few ids weigh enough, and only they have to be put in order
        target = target_of(sums[N_DEPTHS], want.top_part);
        for (int i = N_DEPTHS - 1; i >= 0 && !by_k; i--)
            if (sums[i] >= target) least = key_of(max - depth_of(i) * r.temperature);
        cut(s, r, true, least, target);
    }
    __syncthreads(); // e is in place

    // The least fl(E / e), of equal ones the lowest id: its complement is the largest.
    for (unsigned group = threadIdx.x; group < n_groups; group += THREADS) {
        const float4 four = ((const float4 *)r.e)[group];
        const float e[4] = {four.x, four.y, four.z, four.w};

#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            const unsigned id = group * 4 | i;
            float time;
            word64 v;

            if (!(e[i] > 0.0f) || e[i] < want.min_p) continue;
            time = num_exponential(num_random(want.seed, want.position, id)) / e[i];
            v = ~((word64)num_bits(time) << 32 | id);
            best = v > best ? v : best;
        }
    }
    return ~LOW(block_max(s, best));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sm90_sample_f32(batch_result *__restrict__ results, const batch_want *__restrict__ wants,
                    const float *__restrict__ logits, const batch_chunk *__restrict__ chunks,
                    float *scratch, unsigned vocab, unsigned stride, unsigned n_chunks) {
    __shared__ shared s;

    sm90_wait_previous();
    sm90_launch_next();

    const batch_want want = wants[blockIdx.x];
    row r = {logits + (size_t)blockIdx.x * stride, scratch + (size_t)blockIdx.x * stride, vocab,
             want.temperature, 0.0f};
    batch_result *to = &results[blockIdx.x];
    unsigned first, token;
    float max, exponent, lse;
    word64 last = ~0ull;

    if (want.n_top == BATCH_NO_WANT) return;
    for (unsigned i = threadIdx.x; i < sizeof(*to) / sizeof(unsigned); i += THREADS)
        ((unsigned *)to)[i] = 0;
    chunks += (size_t)blockIdx.x * n_chunks;
    first = find_first(s, r, chunks, n_chunks); // its barriers stand between the zeros and what follows
    max = number(r.logits[first]);

    exponent = exponent_of(max);
    lse = num_fma(exponent, NUM_LN2, num_log2(sum_chunks(s, chunks, n_chunks, exponent)) * NUM_LN2);
    if (!is_finite(lse) || !is_finite(max)) {
        if (threadIdx.x == 0) to->numeric = 1;
        return;
    }

    token = first;
    r.z_first = max / want.temperature;
    if (want.temperature != 0.0f && is_finite(r.z_first)) 
        token = choose(s, r, want, chunks, n_chunks, max);
    if (threadIdx.x == 0) {
        to->token = token;
        to->logprob = r.logits[token] - lse;
        to->lse = lse;
        if (want.target != 0xffffffffu) to->target_logprob = r.logits[want.target] - lse;
        to->n_top = want.n_top;
    }
    for (unsigned i = 0; i < want.n_top; i++) {
        word64 best = 0;

        for (unsigned id = threadIdx.x; id < vocab; id += THREADS) {
            const word64 v = order(r.logits[id], id);

            if (v < last && v > best) best = v;
        }
        last = block_max(s, best);
        if (threadIdx.x == 0) {
            to->top_ids[i] = ~LOW(last);
            to->top_logprobs[i] = r.logits[~LOW(last)] - lse;
        }
    }
}
