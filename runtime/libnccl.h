/* libnccl - the version of the collectives library, where there is one; nothing else of it is
 * used yet.
 *
 * Owns:   nothing that could be given back.
 * Thread: start-up only.
 * Fails:  -ENODEV  no such library here */
#ifndef LLM42D_RUNTIME_LIBNCCL_H
#define LLM42D_RUNTIME_LIBNCCL_H

struct err;

struct libnccl {
    int (*ncclGetVersion)(int *); /* an ncclResult_t: 0 is success */
    int version;                  /* 10000 major + 100 minor + patch */
};

int libnccl_load(struct libnccl *out_nccl, struct err *e);

#endif
