/* sm90_plain_kv - where a value of a key stands: [n_pages][n_kv_heads][64][head_dim]. */
#ifndef LLM42D_PTX_SM90_PLAIN_KV_H
#define LLM42D_PTX_SM90_PLAIN_KV_H

#define KV_PAGE 64u

static __device__ inline size_t kv_page(unsigned page, unsigned head, unsigned n_kv_heads,
                                        unsigned dim) {
    return ((size_t)page * n_kv_heads + head) * (KV_PAGE * dim);
}

static __device__ inline unsigned kv_at(unsigned slot, unsigned i, unsigned dim) {
    return slot * dim + i;
}

#endif
