/* sm90_kv - where a value of a key stands, for heads of any size: as sm90_attn.h says where it is a
 * multiple of 64, else one position after another.  For NVRTC and the host compiler. */
#ifndef LLM42D_PTX_SM90_KV_H
#define LLM42D_PTX_SM90_KV_H

#include "ptx/sm90_attn.h"

/* In values, from where the keys, or the values, of a page and head start. */
#define SM90_KV_AT(slot, i, head_dim) \
    ((head_dim) % 64 ? (slot) * (head_dim) + (i) : SM90_ATTN_AT(slot, i, head_dim))

#endif
