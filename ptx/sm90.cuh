/* sm90 - the instructions of Hopper that our kernels are made of, one function each, named after
 * what it does.  For NVRTC alone; no header of CUDA is needed.
 *
 * A matrix that wgmma reads from shared memory stands in rows of 128 bytes, eight rows an atom of
 * 1024 bytes, aligned so; the 16-byte chunk c of row r is at chunk c ^ (r % 8), which is what the
 * copy engine's 128-byte swizzle writes. */
#ifndef LLM42D_PTX_SM90_CUH
#define LLM42D_PTX_SM90_CUH

typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__
#define DEVICE_METHOD __device__ __forceinline__

/* A tensor map as the driver encodes it. */
struct __align__(64) sm90_map {
    u64 words[16];
};

DEVICE u32 sm90_shared(const void *p) {
    return (u32)__cvta_generic_to_shared(p);
}

/* Barriers in shared memory that count arrivals and bytes; a phase ends when both are in. */

DEVICE void sm90_barrier_init(u32 barrier, u32 n_arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(n_arrivals)
                 : "memory");
}

/* After the inits, before anybody else (the copy engine, a peer) uses the barriers. */
DEVICE void sm90_barrier_init_done(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE void sm90_barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Where `if_` is not 0; no branch, for loops whose every cycle counts. */
DEVICE void sm90_barrier_arrive_if(u32 barrier, u32 if_) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n"
                 "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(barrier),
                 "r"(if_)
                 : "memory");
}

/* At the same barrier of another block of the cluster. */
DEVICE void sm90_barrier_arrive_peer(u32 barrier, u32 rank) {
    asm volatile("{\n.reg .b32 peer;\nmapa.shared::cluster.u32 peer, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [peer];\n}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

DEVICE void sm90_barrier_expect(u32 barrier, u32 n_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(n_bytes)
                 : "memory");
}

DEVICE void sm90_barrier_wait(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

DEVICE void sm90_named_sync(u32 id, u32 n_threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}

DEVICE void sm90_named_arrive(u32 id, u32 n_threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}

/* The same for what other blocks of the cluster sent. */
DEVICE void sm90_barrier_wait_cluster(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Clusters. */

DEVICE u32 sm90_cluster_rank(void) {
    u32 rank;

    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

DEVICE void sm90_cluster_sync(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* In two halves: all threads of a warp arrive, and later wait, together. */
DEVICE void sm90_cluster_arrive(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

DEVICE void sm90_cluster_wait(void) {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The same place of another block of the cluster, or of this one, for sends. */
DEVICE u32 sm90_peer(u32 address, u32 rank) {
    u32 peer;

    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(address), "r"(rank));
    return peer;
}

/* To a peer's memory, counted in bytes at a barrier there. */
DEVICE void sm90_send(u32 to, float x, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::
                     "r"(to),
                 "f"(x), "r"(barrier)
                 : "memory");
}

DEVICE void sm90_send2(u32 to, float x, float y, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 "
                 "[%0], {%1, %2}, [%3];" ::"r"(to),
                 "f"(x), "f"(y), "r"(barrier)
                 : "memory");
}

DEVICE float4 sm90_load_peer(u32 address, u32 rank) {
    float4 v;

    asm volatile("{\n.reg .b32 peer;\nmapa.shared::cluster.u32 peer, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [peer];\n}"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address), "r"(rank)
                 : "memory");
    return v;
}

DEVICE u32 sm90_load1_peer(u32 address, u32 rank) {
    u32 r;

    asm volatile("{\n.reg .b32 peer;\nmapa.shared::cluster.u32 peer, %1, %2;\n"
                 "ld.shared::cluster.b32 %0, [peer];\n}"
                 : "=r"(r)
                 : "r"(address), "r"(rank)
                 : "memory");
    return r;
}

DEVICE u64 sm90_load2_peer(u32 address, u32 rank) {
    u64 r;

    asm volatile("{\n.reg .b32 peer;\nmapa.shared::cluster.u32 peer, %1, %2;\n"
                 "ld.shared::cluster.b64 %0, [peer];\n}"
                 : "=l"(r)
                 : "r"(address), "r"(rank)
                 : "memory");
    return r;
}

DEVICE void sm90_store1_peer(u32 address, u32 rank, u32 x) {
    asm volatile("{\n.reg .b32 peer;\nmapa.shared::cluster.u32 peer, %0, %1;\n"
                 "st.shared::cluster.b32 [peer], %2;\n}" ::"r"(address),
                 "r"(rank), "r"(x)
                 : "memory");
}

DEVICE void sm90_store2_peer(u32 address, u32 rank, u64 x) {
    asm volatile("{\n.reg .b32 peer;\nmapa.shared::cluster.u32 peer, %0, %1;\n"
                 "st.shared::cluster.b64 [peer], %2;\n}" ::"r"(address),
                 "r"(rank), "l"(x)
                 : "memory");
}

/* The copy engine.  Sizes and addresses are multiples of 16. */

DEVICE u64 sm90_policy_evict_first(void) {
    u64 policy;

    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

DEVICE u64 sm90_policy_normal(void) {
    u64 policy;

    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

DEVICE void sm90_copy(u32 to, const void *from, u32 n_bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(n_bytes), "r"(barrier)
                 : "memory");
}

/* Into L2, for a copy to come: `from` and n_bytes multiples of 16. */
DEVICE void sm90_prefetch(const void *from, u32 n_bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(n_bytes) : "memory");
}

DEVICE void sm90_copy_policy(u32 to, const void *from, u32 n_bytes, u32 barrier, u64 policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(n_bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

/* 16 bytes by a thread. */
DEVICE void sm90_copy_16(u32 to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* The same, or zeros and `from` is not read. */
DEVICE void sm90_copy_or_zero(u32 to, const void *from, bool copy) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(copy ? 16 : 0)
                 : "memory");
}

/* One arrival, once this thread's copies so far are there. */
DEVICE void sm90_barrier_arrive_copied(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* This thread's copies are there. */
DEVICE void sm90_wait_copied(void) {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* To the same place of every block of the cluster in `ranks`, each told at its own barrier. */
DEVICE void sm90_copy_multicast(u32 to, const void *from, u32 n_bytes, u32 barrier, u16 ranks) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(n_bytes), "r"(barrier), "h"(ranks)
                 : "memory");
}

DEVICE void sm90_copy_multicast_policy(u32 to, const void *from, u32 n_bytes, u32 barrier,
                                       u16 ranks, u64 policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster.L2::cache_hint [%0], [%1], %2, [%3], %4, %5;" ::"r"(to),
                 "l"(from), "r"(n_bytes), "r"(barrier), "h"(ranks), "l"(policy)
                 : "memory");
}

/* The copy engine fetches the map, so that the first tile need not wait for it. */
DEVICE void sm90_map_ahead(const struct sm90_map *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

DEVICE void sm90_copy_tile(u32 to, const struct sm90_map *map, u32 column, u32 row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}

DEVICE void sm90_copy_tile_multicast(u32 to, const struct sm90_map *map, u32 column, u32 row,
                                     u32 barrier, u16 ranks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(ranks)
                 : "memory");
}

/* 16 bytes of shared memory. */

DEVICE uint4 sm90_load_shared(u32 address) {
    uint4 v;

    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

DEVICE void sm90_store_shared(u32 address, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}

/* 16 bytes and a word of global memory that other blocks write, or wait for, meanwhile. */

DEVICE void sm90_leave4(float4 *at, uint4 v) {
    asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

DEVICE uint4 sm90_look4(const float4 *at) {
    uint4 v;

    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

DEVICE u32 sm90_look(const u32 *at) {
    return *(const volatile u32 *)at;
}

/* What the kernel before wrote: L1 may have older bytes of a kernel before that. */

DEVICE u32 sm90_fresh1(const void *at) {
    u32 r;

    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(r) : "l"(at) : "memory");
    return r;
}

/* Or zeros, and nothing is read. */
DEVICE void sm90_fresh2_if(u32 &low, u32 &high, const void *at, bool if_) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n"
                 "@p ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];\n}"
                 : "=r"(low), "=r"(high)
                 : "l"(at), "r"((u32)if_)
                 : "memory");
}

DEVICE uint4 sm90_fresh4_if(const void *at, bool if_) {
    uint4 v;

    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n"
                 "mov.b32 %2, 0;\nmov.b32 %3, 0;\n"
                 "@p ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at), "r"((u32)if_)
                 : "memory");
    return v;
}

/* Blocks that wait for each other by a word of global memory: one more, behind all that this thread
 * wrote or saw written; how many; and what those wrote is seen from here on. */

DEVICE u32 sm90_count(u32 *count) {
    u32 before;

    asm volatile("fence.acq_rel.gpu;\natom.add.relaxed.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(count)
                 : "memory");
    return before;
}

/* The same of n. */
DEVICE u32 sm90_count_by(u32 *count, u32 n) {
    u32 before;

    asm volatile("fence.acq_rel.gpu;\natom.add.relaxed.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(count), "r"(n)
                 : "memory");
    return before;
}

DEVICE u32 sm90_counted(const u32 *count) {
    u32 now;

    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(count) : "memory");
    return now;
}

DEVICE void sm90_fence_counted(void) {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/* What this thread wrote to shared memory is seen by the copy engine and wgmma after it. */
DEVICE void sm90_fence_async(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Launches that overlap: the next kernel may start; all of the kernel before this is done. */

DEVICE void sm90_launch_next(void) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

DEVICE void sm90_wait_previous(void) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* Registers of this warpgroup's threads from here on. */

template <int N>
DEVICE void sm90_take_registers(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
DEVICE void sm90_give_registers(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* The lesser, and a NaN where one of them is. */
DEVICE float sm90_min_or_nan(float a, float b) {
    float r;

    asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}

/* The hardware's 2^x, SPEC 2.7. */
DEVICE float sm90_ex2(float x) {
    float r;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

DEVICE float sm90_reciprocal(float x) {
    float r;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* Of a clock that all blocks share, in nanoseconds. */
DEVICE u64 sm90_now(void) {
    u64 now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

/* Tensor cores. */

/* Of a matrix in shared memory; `stride` is between atoms along the rows of the matrix, `leading`
 * between atoms of 64 columns where the matrix is read across (transposed); all in bytes.  The
 * lower half alone moves with the address: by 1 every 16 bytes. */
DEVICE u32 sm90_descriptor_low(u32 address, u32 leading) {
    return (address & 0x3ffff) >> 4 | leading >> 4 << 16;
}

DEVICE u64 sm90_descriptor(u32 low, u32 stride) {
    u64 r;

    asm("mov.b64 %0, {%1, %2};" : "=l"(r) : "r"(low), "r"(stride >> 4 | 1u << 30));
    return r;
}

/* Of a matrix without the swizzle: eight rows of 16 bytes an atom; `leading` between atoms along
 * the rows. */
DEVICE u64 sm90_descriptor_plain(u32 low, u32 stride) {
    u64 r;

    asm("mov.b64 %0, {%1, %2};" : "=l"(r) : "r"(low), "r"(stride >> 4));
    return r;
}

DEVICE void sm90_wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE void sm90_wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N>
DEVICE void sm90_wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* The compiler may not move what is done with the accumulators across this. */
template <int N>
DEVICE void sm90_pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* What was computed stays in a register: it is not computed again. */
DEVICE void sm90_keep(u32 &x) {
    asm volatile("" : "+r"(x));
}

/* c += a b, c 16 x 8. */
DEVICE void sm90_mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two floats to bf16, each rounded once; `low` in the lower half. */
DEVICE u32 sm90_pack(float low, float high) {
    u32 r;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* An 8 x 8 matrix of 16-bit values over a warp, a row to four lanes, transposed. */
DEVICE u32 sm90_transpose(u32 x) {
    u32 r;

    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x));
    return r;
}

DEVICE void sm90_load_matrices(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

DEVICE void sm90_load_matrices_across(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

DEVICE void sm90_store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* Shared memory by its address. */

DEVICE u32 sm90_load1(u32 address) {
    u32 r;

    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(r) : "r"(address) : "memory");
    return r;
}

DEVICE void sm90_load2(u32 &low, u32 &high, u32 address) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(low), "=r"(high)
                 : "r"(address)
                 : "memory");
}

DEVICE float4 sm90_load4(u32 address) {
    float4 v;

    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

DEVICE void sm90_load4(float (&v)[4], u32 address) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"(address)
                 : "memory");
}

DEVICE void sm90_load4(u32 (&v)[4], u32 address) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
}

/* Four times the same. */
DEVICE void sm90_fill4(u32 address, u32 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(x) : "memory");
}

DEVICE void sm90_store1(u32 address, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}

DEVICE void sm90_store2(u32 address, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

DEVICE void sm90_store4(u32 address, u32 x, u32 y, u32 z, u32 w) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z),
                 "r"(w)
                 : "memory");
}

DEVICE void sm90_store4(u32 address, float x, float y, float z, float w) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x), "f"(y), "f"(z),
                 "f"(w)
                 : "memory");
}

/* Lists of accumulators: names in the text, then places. */
#define SM90_T4 "%0, %1, %2, %3"
#define SM90_T8 SM90_T4 ", %4, %5, %6, %7"
#define SM90_T16 SM90_T8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SM90_T24 SM90_T16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define SM90_T32 SM90_T24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define SM90_T40 SM90_T32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SM90_T48 SM90_T40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define SM90_T56 SM90_T48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define SM90_T64 SM90_T56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define SM90_T72 SM90_T64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define SM90_T80 SM90_T72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define SM90_T88 SM90_T80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define SM90_T96 SM90_T88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define SM90_T104 SM90_T96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define SM90_T112 SM90_T104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define SM90_P4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SM90_P8(i) SM90_P4(i), SM90_P4(i + 4)
#define SM90_P16(i) SM90_P8(i), SM90_P8(i + 8)
#define SM90_P32(i) SM90_P16(i), SM90_P16(i + 16)
#define SM90_P64 SM90_P32(0), SM90_P32(32)
#define SM90_P96 SM90_P64, SM90_P32(64)
#define SM90_P112 SM90_P96, SM90_P16(96)

/* d = a b + (more ? d : 0), d 64 x N over a warpgroup, a and b in shared memory, both in rows
 * along K. */
template <int N>
struct sm90_wgmma;

#define SM90_WGMMA(n, text, places, a_at, b_at, more_at)                                   \
    template <>                                                                            \
    struct sm90_wgmma<n> {                                                                 \
        DEVICE void run(float (&d)[n / 2], u64 a, u64 b, u32 more) {                       \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #more_at ", 0;\n"            \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" text \
                         "}, %" #a_at ", %" #b_at ", p, 1, 1, 0, 0;\n}"                    \
                         : places                                                          \
                         : "l"(a), "l"(b), "r"(more));                                     \
        }                                                                                  \
    };
#define SM90_PLACES_4 SM90_P4(0)
#define SM90_PLACES_8 SM90_P8(0)
#define SM90_PLACES_16 SM90_P16(0)
#define SM90_PLACES_32 SM90_P32(0)
SM90_WGMMA(8, SM90_T4, SM90_PLACES_4, 4, 5, 6)
SM90_WGMMA(16, SM90_T8, SM90_PLACES_8, 8, 9, 10)
SM90_WGMMA(32, SM90_T16, SM90_PLACES_16, 16, 17, 18)
SM90_WGMMA(64, SM90_T32, SM90_PLACES_32, 32, 33, 34)
SM90_WGMMA(128, SM90_T64, SM90_P64, 64, 65, 66)
SM90_WGMMA(192, SM90_T96, SM90_P96, 96, 97, 98)
SM90_WGMMA(224, SM90_T112, SM90_P112, 112, 113, 114)

/* The same with a in registers and b in rows across K (transposed). */
template <int N>
struct sm90_wgmma_across;

#define SM90_WGMMA_ACROSS(n, text, places, a0, a1, a2, a3, b_at, more_at)                       \
    template <>                                                                                 \
    struct sm90_wgmma_across<n> {                                                               \
        DEVICE void run(float (&d)[n / 2], const u32 *a, u64 b, u32 more) {                     \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #more_at ", 0;\n"                 \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" text      \
                         "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", p, 1, 1, 1;" \
                         "\n}"                                                                  \
                         : places                                                               \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));      \
        }                                                                                       \
    };
SM90_WGMMA_ACROSS(64, SM90_T32, SM90_PLACES_32, 32, 33, 34, 35, 36, 37)
SM90_WGMMA_ACROSS(128, SM90_T64, SM90_P64, 64, 65, 66, 67, 68, 69)

/* The same of 8 columns, b in rows along K without the swizzle. */
DEVICE void sm90_wgmma_plain8(float (&d)[4], const u32 *a, u64 b, u32 more) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %9, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, %8, p, 1, 1, 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}

#endif
