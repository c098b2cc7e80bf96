/* kv - which page of the key/value cache belongs to whom; the bytes are the device's.
 *
 * Owns:   the free list, made at open and never grown.
 * Thread: engine thread only.
 *
 * A page holds DEVICE_PAGE_TOKENS positions of all layers, so that taking or giving back a
 * sequence's memory is one list operation a page, whatever the depth. */
#ifndef LLM42D_RUNTIME_KV_H
#define LLM42D_RUNTIME_KV_H

#include <stdint.h>

struct err;
struct kv;

/* 0 and *out_kv, or -ENOMEM and *out_kv untouched.  n_pages > 0. */
int kv_open(uint32_t n_pages, struct kv **out_kv, struct err *e);

/* Gives everything back.  NULL and a half-opened kv are fine. */
void kv_close(struct kv *kv);

/* A free page's index, the lowest first after open; or -EAGAIN when all are taken: the caller
 * waits, the cache never grows. */
int kv_take(struct kv *kv);
void kv_give(struct kv *kv, uint32_t page);

uint32_t kv_free_count(const struct kv *kv);

#endif
