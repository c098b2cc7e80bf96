/* sm90 - ptx/sm90.cuh for the host: the same functions over tests/sim/sim.h, and the words of CUDA
 * C++ that kernels use.  Found in its place by the order of include folders. */
#ifndef LLM42D_PTX_SM90_CUH
#define LLM42D_PTX_SM90_CUH

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <utility>

#include "tests/sim/sim.h"

/* ---- CUDA C++ ---- */

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
/* Shared memory is the storage that belongs to the thread which runs all fibres: what C++ takes
 * both inside a function and behind `extern`. */
#define __shared__ thread_local
#define few_dynamic sim_dynamic
#define four_dynamic sim_dynamic
#define quarter_dynamic sim_dynamic
#define many_dynamic sim_dynamic
#define prompt_dynamic sim_dynamic
#define sample_dynamic sim_dynamic
#define spread_dynamic sim_dynamic
#define wide_dynamic sim_dynamic
#define dynamic sim_dynamic
#define fmaxf sim_max
#define fminf sim_min

typedef uint16_t u16;
typedef uint32_t u32;
typedef unsigned long long u64;

#define DEVICE static inline
#define DEVICE_METHOD inline

struct uint2 {
    u32 x, y;
};
struct __align__(16) uint4 {
    u32 x, y, z, w;
};
struct __align__(8) float2 {
    float x, y;
};
struct __align__(16) float4 {
    float x, y, z, w;
};

DEVICE uint2 make_uint2(u32 x, u32 y) {
    return {x, y};
}

DEVICE uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) {
    return {x, y, z, w};
}

DEVICE float2 make_float2(float x, float y) {
    return {x, y};
}

DEVICE float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}

template <class A, class B>
static inline auto min(A a, B b) -> decltype(a + b) {
    return b < a ? b : a;
}

template <class A, class B>
static inline auto max(A a, B b) -> decltype(a + b) {
    return a < b ? b : a;
}

/* A number rather than a NaN, and -0 below +0. */
static inline float sim_max(float a, float b) {
    if (a != a && b != b) return __builtin_nanf("0x3fffff");
    if (a != a || b != b) return a != a ? b : a;
    if (a == b) return signbit(a) ? b : a;
    return a < b ? b : a;
}

static inline float sim_min(float a, float b) {
    return -sim_max(-a, -b);
}

DEVICE void __syncthreads(void) {
    sim_syncthreads();
}

DEVICE u32 __syncthreads_count(bool of) {
    return sim_syncthreads_count(of);
}

DEVICE void __syncwarp(u32 mask = 0xffffffff) {
    sim_meet(mask, NULL, 0);
}

DEVICE void __threadfence(void) {
    sim_pause();
}

DEVICE void __nanosleep(u32) {
    sim_spin();
}

DEVICE u32 sim_lane(void) {
    return threadIdx.x % 32;
}

template <class T>
static inline T sim_of_lane(u32 mask, T v, u32 lane) {
    T r;

    static_assert(sizeof(T) <= 4 * SIM_WORDS, "");
    memcpy(&r, sim_meet(mask, &v, sizeof(T) / 4)[lane], sizeof(T));
    return r;
}

template <class T>
static inline T __shfl_sync(u32 mask, T v, u32 lane) {
    return sim_of_lane(mask, v, lane % 32);
}

template <class T>
static inline T __shfl_xor_sync(u32 mask, T v, u32 x) {
    return sim_of_lane(mask, v, sim_lane() ^ x);
}

template <class T>
static inline T __shfl_up_sync(u32 mask, T v, u32 by) {
    return sim_of_lane(mask, v, sim_lane() < by ? sim_lane() : sim_lane() - by);
}

template <class T>
static inline T __shfl_down_sync(u32 mask, T v, u32 by) {
    return sim_of_lane(mask, v, sim_lane() + by > 31 ? sim_lane() : sim_lane() + by);
}

DEVICE u32 __ballot_sync(u32 mask, bool of) {
    const u32 word = of;
    const u32(*all)[SIM_WORDS] = sim_meet(mask, &word, 1);
    u32 r = 0;

    for (u32 i = 0; i < 32; i++)
        if (mask >> i & 1) r |= all[i][0] << i;
    return r;
}

DEVICE bool __all_sync(u32 mask, bool of) {
    return __ballot_sync(mask, of) == mask;
}

DEVICE bool __any_sync(u32 mask, bool of) {
    return __ballot_sync(mask, of) != 0;
}

DEVICE u32 __reduce_add_sync(u32 mask, u32 v) {
    const u32(*all)[SIM_WORDS] = sim_meet(mask, &v, 1);
    u32 r = 0;

    for (u32 i = 0; i < 32; i++)
        if (mask >> i & 1) r += all[i][0];
    return r;
}

DEVICE u32 __reduce_max_sync(u32 mask, u32 v) {
    const u32(*all)[SIM_WORDS] = sim_meet(mask, &v, 1);
    u32 r = 0;

    for (u32 i = 0; i < 32; i++)
        if (mask >> i & 1 && all[i][0] > r) r = all[i][0];
    return r;
}

DEVICE u32 __reduce_min_sync(u32 mask, u32 v) {
    return ~__reduce_max_sync(mask, ~v);
}

/* The mask where all have the same, else 0. */
DEVICE u32 __match_all_sync(u32 mask, u32 v, int *out_equal) {
    *out_equal = __reduce_max_sync(mask, v) == __reduce_min_sync(mask, v);
    return *out_equal ? mask : 0;
}

DEVICE int __clz(u32 x) {
    return x ? __builtin_clz(x) : 32;
}

DEVICE int __ffs(u32 x) {
    return __builtin_ffs((int)x);
}

DEVICE int __popc(u32 x) {
    return __builtin_popcount(x);
}

template <class T>
static inline T atomicAdd(T *p, T v) {
    sim_pause();
    const T old = *p;

    *p = old + v;
    return old;
}

template <class T>
static inline T atomicMin(T *p, T v) {
    sim_pause();
    const T old = *p;

    if (v < old) *p = v;
    return old;
}

template <class T>
static inline T atomicMax(T *p, T v) {
    sim_pause();
    const T old = *p;

    if (old < v) *p = v;
    return old;
}

template <class T>
static inline T __ldcg(const T *p) {
    return *p;
}

/* ---- ptx/sm90.cuh ---- */

struct __align__(64) sm90_map {
    struct sim_map map;
    u64 rest[10];
};

DEVICE u32 sm90_shared(const void *p) {
    return sim_shared(p);
}

DEVICE void sm90_barrier_init(u32 barrier, u32 n_arrivals) {
    sim_barrier_init(barrier, n_arrivals);
}

DEVICE void sm90_barrier_init_done(void) {}

DEVICE void sm90_barrier_arrive(u32 barrier) {
    sim_barrier_arrive(barrier);
}

DEVICE void sm90_barrier_arrive_if(u32 barrier, u32 if_) {
    if (if_) sim_barrier_arrive(barrier);
}

DEVICE void sm90_barrier_arrive_peer(u32 barrier, u32 rank) {
    sim_barrier_arrive(sim_peer(barrier, rank));
}

DEVICE void sm90_barrier_expect(u32 barrier, u32 n_bytes) {
    sim_barrier_expect(barrier, n_bytes);
}

DEVICE void sm90_barrier_wait(u32 barrier, u32 parity) {
    sim_barrier_wait(barrier, parity);
}

DEVICE void sm90_barrier_wait_cluster(u32 barrier, u32 parity) {
    sim_barrier_wait(barrier, parity);
}

DEVICE void sm90_named_sync(u32 id, u32 n_threads) {
    sim_named_sync(id, n_threads);
}

DEVICE void sm90_named_arrive(u32 id, u32 n_threads) {
    sim_named_arrive(id, n_threads);
}

DEVICE u32 sm90_cluster_rank(void) {
    return sim_rank();
}

DEVICE void sm90_cluster_arrive(void) {
    sim_cluster_arrive();
}

DEVICE void sm90_cluster_wait(void) {
    sim_cluster_wait();
}

DEVICE void sm90_cluster_sync(void) {
    sim_cluster_arrive();
    sim_cluster_wait();
}

DEVICE u32 sm90_peer(u32 address, u32 rank) {
    return sim_peer(address, rank);
}

DEVICE void sm90_send(u32 to, float x, u32 barrier) {
    sim_send(to, &x, sizeof(x), barrier);
}

DEVICE void sm90_send2(u32 to, float x, float y, u32 barrier) {
    const float v[2] = {x, y};

    sim_send(to, v, sizeof(v), barrier);
}

DEVICE void sm90_load2(u32 &low, u32 &high, u32 address) {
    u32 r[2];

    memcpy(r, sim_at(address, sizeof(r)), sizeof(r));
    low = r[0];
    high = r[1];
}

DEVICE float4 sm90_load4(u32 address) {
    float4 v;

    memcpy(&v, sim_at(address, sizeof(v)), sizeof(v));
    return v;
}

DEVICE float4 sm90_load_peer(u32 address, u32 rank) {
    return sm90_load4(sim_peer(address, rank));
}

DEVICE u32 sm90_load1_peer(u32 address, u32 rank) {
    u32 v;

    memcpy(&v, sim_at(sim_peer(address, rank), sizeof(v)), sizeof(v));
    return v;
}

DEVICE u64 sm90_load2_peer(u32 address, u32 rank) {
    u64 v;

    memcpy(&v, sim_at(sim_peer(address, rank), sizeof(v)), sizeof(v));
    return v;
}

DEVICE void sm90_store1_peer(u32 address, u32 rank, u32 x) {
    sim_pause();
    memcpy(sim_at(sim_peer(address, rank), sizeof(x)), &x, sizeof(x));
}

DEVICE void sm90_store2_peer(u32 address, u32 rank, u64 x) {
    sim_pause();
    memcpy(sim_at(sim_peer(address, rank), sizeof(x)), &x, sizeof(x));
}

DEVICE u64 sm90_policy_evict_first(void) {
    return 0;
}

DEVICE void sm90_copy(u32 to, const void *from, u32 n_bytes, u32 barrier) {
    sim_copy(to, from, n_bytes, barrier);
}

/* What is called for is read, so that it must be there. */
DEVICE void sm90_prefetch(const void *from, u32 n_bytes) {
    for (u32 i = 0; i < n_bytes; i += 16) (void)*(const volatile u32 *)((const char *)from + i);
}

DEVICE void sm90_copy_policy(u32 to, const void *from, u32 n_bytes, u32 barrier, u64) {
    sim_copy(to, from, n_bytes, barrier);
}

DEVICE u64 sm90_policy_normal(void) {
    return 0;
}

DEVICE void sm90_copy_multicast_policy(u32 to, const void *from, u32 n_bytes, u32 barrier,
                                       u16 ranks, u64) {
    for (u32 rank = 0; rank < 16; rank++)
        if (ranks >> rank & 1) sim_copy(sim_peer(to, rank), from, n_bytes, sim_peer(barrier, rank));
}

DEVICE void sm90_map_ahead(const struct sm90_map *) {}

DEVICE void sm90_copy_tile(u32 to, const struct sm90_map *map, u32 column, u32 row, u32 barrier) {
    sim_copy_tile(to, &map->map, column, row, barrier);
}

DEVICE void sm90_copy_tile_multicast(u32 to, const struct sm90_map *map, u32 column, u32 row,
                                     u32 barrier, u16 ranks) {
    for (u32 rank = 0; rank < 16; rank++)
        if (ranks >> rank & 1)
            sim_copy_tile(sim_peer(to, rank), &map->map, column, row, sim_peer(barrier, rank));
}

DEVICE void sm90_copy_16(u32 to, const void *from) {
    sim_copy_own(to, from);
}

DEVICE void sm90_copy_or_zero(u32 to, const void *from, bool copy) {
    sim_copy_own(to, copy ? from : NULL);
}

DEVICE void sm90_barrier_arrive_copied(u32 barrier) {
    sim_arrive_copied(barrier);
}

DEVICE void sm90_wait_copied(void) {
    sim_wait_copied();
}

DEVICE u32 sm90_load1(u32 address) {
    u32 v;

    memcpy(&v, sim_at(address, sizeof(v)), sizeof(v));
    return v;
}

template <class T>
static inline void sm90_load4(T (&v)[4], u32 address) {
    memcpy(v, sim_at(address, sizeof(v)), sizeof(v));
}

DEVICE uint4 sm90_load_shared(u32 address) {
    uint4 v;

    memcpy(&v, sim_at(address, sizeof(v)), sizeof(v));
    return v;
}

DEVICE void sm90_store_shared(u32 address, uint4 v) {
    memcpy(sim_at(address, sizeof(v)), &v, sizeof(v));
}

DEVICE void sm90_store1(u32 address, float x) {
    memcpy(sim_at(address, sizeof(x)), &x, sizeof(x));
}

DEVICE void sm90_store2(u32 address, float x, float y) {
    const float v[2] = {x, y};

    memcpy(sim_at(address, sizeof(v)), v, sizeof(v));
}

DEVICE void sm90_store4(u32 address, u32 x, u32 y, u32 z, u32 w) {
    sm90_store_shared(address, make_uint4(x, y, z, w));
}

DEVICE void sm90_fill4(u32 address, u32 x) {
    sm90_store4(address, x, x, x, x);
}

DEVICE void sm90_store4(u32 address, float x, float y, float z, float w) {
    const float v[4] = {x, y, z, w};

    memcpy(sim_at(address, sizeof(v)), v, sizeof(v));
}

/* Global memory that other blocks write meanwhile. */

DEVICE u32 sm90_look(const u32 *at) {
    sim_spin();
    return *at;
}

DEVICE u32 sm90_fresh1(const void *at) {
    u32 r;

    sim_pause();
    memcpy(&r, at, sizeof(r));
    return r;
}

DEVICE void sm90_fresh2_if(u32 &low, u32 &high, const void *at, bool if_) {
    u32 r[2] = {0, 0};

    sim_pause();
    if (if_) memcpy(r, at, sizeof(r));
    low = r[0];
    high = r[1];
}

DEVICE uint4 sm90_fresh4_if(const void *at, bool if_) {
    uint4 v = {0, 0, 0, 0};

    sim_pause();
    if (if_) memcpy(&v, at, sizeof(v));
    return v;
}

DEVICE uint4 sm90_look4(const float4 *at) {
    uint4 v;

    sim_spin();
    memcpy(&v, at, sizeof(v));
    return v;
}

DEVICE void sm90_leave4(float4 *at, uint4 v) {
    sim_pause();
    memcpy(at, &v, sizeof(v));
}

DEVICE u32 sm90_count(u32 *count) {
    sim_pause();
    return (*count)++;
}

DEVICE u32 sm90_count_by(u32 *count, u32 n) {
    sim_pause();
    *count += n;
    return *count - n;
}

DEVICE u32 sm90_counted(const u32 *count) {
    sim_spin();
    return *count;
}

DEVICE void sm90_fence_counted(void) {}
DEVICE void sm90_fence_async(void) {}
DEVICE void sm90_launch_next(void) {}
DEVICE void sm90_wait_previous(void) {
    sim_wait_previous();
}

template <int N>
static inline void sm90_take_registers(void) {}
template <int N>
static inline void sm90_give_registers(void) {}

DEVICE u32 sm90_descriptor_low(u32 address, u32 leading) {
    return (address & 0x3ffff) >> 4 | leading >> 4 << 16;
}

DEVICE u64 sm90_descriptor(u32 low, u32 stride) {
    return (u64)low | (u64)(stride >> 4 | 1u << 30) << 32;
}

DEVICE u64 sm90_descriptor_plain(u32 low, u32 stride) {
    return (u64)low | (u64)(stride >> 4) << 32;
}

DEVICE void sm90_wgmma_fence(void) {}

DEVICE void sm90_wgmma_commit(void) {
    sim_wgmma_commit();
}

template <int N>
static inline void sm90_wgmma_wait(void) {
    __syncwarp(); /* all lanes wait as one */
    sim_wgmma_wait(N);
}

template <int N>
static inline void sm90_pin(float (&)[N]) {}

DEVICE void sm90_keep(u32 &) {}

DEVICE void sm90_mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    sim_mma(c, a, b0, b1);
}

DEVICE u32 sim_bf16(float x) {
    u32 bits;

    memcpy(&bits, &x, 4);
    if (x != x) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

DEVICE u32 sm90_pack(float low, float high) {
    return sim_bf16(low) | sim_bf16(high) << 16;
}

DEVICE float sm90_ex2(float x) {
    return sim_ex2(x);
}

DEVICE float sm90_min_or_nan(float a, float b) {
    return a != a || b != b ? __builtin_nanf("0x3fffff") : sim_min(a, b);
}

/* Towards zero, of what is not negative: a double has the sum, or what leaves it this float. */
DEVICE float __fadd_rz(float a, float b) {
    const double sum = (double)a + b;
    const float near = (float)sum;

    return near > sum ? nextafterf(near, 0.0f) : near;
}

/* Towards zero; a NaN is 0, what does not fit the nearest that does. */
DEVICE u32 __float2uint_rz(float x) {
    return !(x > 0.0f) ? 0 : x >= 0x1p32f ? 0xffffffff : (u32)x;
}

/* Below the normal range 0, of either sign, comes and goes. */
DEVICE float sim_flush(float x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

DEVICE float sm90_reciprocal(float x) {
    return sim_flush(1.0f / sim_flush(x));
}

DEVICE u64 sm90_now(void) {
    return sim_now();
}

/* A lane has a word of two values, four lanes a row. */
DEVICE u32 sm90_transpose(u32 x) {
    const u32(*all)[SIM_WORDS] = sim_meet(0xffffffff, &x, 1);
    const u32 column = sim_lane() / 4, row = sim_lane() % 4 * 2;
    const u32 first = all[row * 4 + column / 2][0], second = all[row * 4 + 4 + column / 2][0];

    return (first >> column % 2 * 16 & 0xffff) | second >> column % 2 * 16 << 16;
}

DEVICE void sm90_load_matrices(u32 (&r)[4], u32 address) {
    sim_load_matrices(r, address, false);
}

DEVICE void sm90_load_matrices_across(u32 (&r)[4], u32 address) {
    sim_load_matrices(r, address, true);
}

DEVICE void sm90_store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d) {
    const u32 v[4] = {a, b, c, d};

    sim_store_matrices(address, v);
}

/* All widths are there. */
#define SM90_WGMMA(n, text, places, a_at, b_at, more_at)

template <int N>
struct sm90_wgmma {
    static void run(float (&d)[N / 2], u64 a, u64 b, u32 more) {
        sim_wgmma(d, NULL, a, b, more, N, SIM_ALONG);
    }
};

template <int N>
struct sm90_wgmma_across {
    static void run(float (&d)[N / 2], const u32 *a, u64 b, u32 more) {
        sim_wgmma(d, a, 0, b, more, N, SIM_ACROSS);
    }
};

DEVICE void sm90_wgmma_plain8(float (&d)[4], const u32 *a, u64 b, u32 more) {
    sim_wgmma(d, a, 0, b, more, 8, SIM_PLAIN);
}

/* ---- how a launch finds a kernel: SIM_KERNEL(name) behind its text ---- */

template <class... A, size_t... I>
static inline void sim_call(void (*f)(A...), void **params, std::index_sequence<I...>) {
    f(*(A *)params[I]...);
}

template <class... A>
static inline void sim_call(void (*f)(A...), void **params) {
    sim_call(f, params, std::index_sequence_for<A...>());
}

#define SIM_KERNEL(entry)                                                 \
    static struct sim_kernel sim_this = {                                 \
        #entry, [](void **params) { sim_call(entry, params); }, nullptr}; \
    static const bool sim_added = (sim_add(&sim_this), true);

#endif
