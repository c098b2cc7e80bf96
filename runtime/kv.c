#include "runtime/kv.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "runtime/assert.h"
#include "runtime/err.h"

struct kv {
    uint32_t n_pages;
    uint32_t n_free;
    uint32_t *free_pages; /* a stack, the top at n_free - 1 */
    bool *is_free;        /* by page: giving one back twice is caught at once */
};

int kv_open(uint32_t n_pages, struct kv **out_kv, struct err *e) {
    struct kv *kv;
    int r = 0;

    ASSERT(n_pages > 0 && n_pages <= INT32_MAX);

    kv = calloc(1, sizeof(*kv));
    if (!kv) return err_set(e, -ENOMEM, "kv: bookkeeping");

    kv->n_pages = n_pages;
    kv->free_pages = calloc(n_pages, sizeof(kv->free_pages[0]));
    kv->is_free = calloc(n_pages, sizeof(kv->is_free[0]));
    if (!kv->free_pages || !kv->is_free) {
        r = err_set(e, -ENOMEM, "kv: free list of %u pages", n_pages);
        goto out;
    }

    /* From the last page down: the first to be taken is then page 0. */
    for (uint32_t page = n_pages; page-- > 0;) kv_give(kv, page);

    *out_kv = kv;
    kv = NULL;
out:
    kv_close(kv); /* NULL if we got here whole */
    return r;
}

void kv_close(struct kv *kv) {
    if (!kv) return;

    free(kv->free_pages);
    free(kv->is_free);
    free(kv);
}

int kv_take(struct kv *kv) {
    uint32_t page;

    ASSERT(kv->n_free <= kv->n_pages);

    if (kv->n_free == 0) return -EAGAIN;

    page = kv->free_pages[--kv->n_free];
    kv->is_free[page] = false;
    return (int)page;
}

void kv_give(struct kv *kv, uint32_t page) {
    ASSERT(page < kv->n_pages);
    ASSERT(!kv->is_free[page]);

    kv->is_free[page] = true;
    kv->free_pages[kv->n_free++] = page;
}

uint32_t kv_free_count(const struct kv *kv) {
    return kv->n_free;
}
