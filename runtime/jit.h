/* jit - CUDA C++ in, a cubin out; what was compiled once is kept in a folder.
 *
 * Owns:   nothing between calls.
 * Thread: any, several at once: start-up compiles kernels side by side.
 * Fails:  -EINVAL  the source does not compile; the text has the compiler's first words
 *         -ENOMEM
 *
 * A source is one text: `make` has resolved its includes, so all that decides the result is the
 * text, the options (the target is one) and the compiler's version.  Those are the key of the cache.
 * A file of the cache is written whole under another name, synced, and renamed into place, and
 * holds its own digest.  What is corrupt, or not ours alone to write, is compiled anew; where
 * nothing can be written, nothing is kept.  Neither is an error, and the result is the same. */
#ifndef LLM42D_RUNTIME_JIT_H
#define LLM42D_RUNTIME_JIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct libnvrtc;

enum { JIT_CUBIN_BYTES_MAX = 64 << 20 };

struct jit {
    const struct libnvrtc *nvrtc;
    const char *folder; /* of the cache, or NULL: none */
};

enum jit_cache {
    JIT_OFF,      /* there is none */
    JIT_FOUND,    /* nothing was compiled */
    JIT_STORED,   /* compiled, and kept */
    JIT_UNSTORED, /* compiled; the folder would not have it */
};

/* What the compiler says of a source, its kernels taken together.  Zero for what was found. */
struct jit_report {
    uint32_t n_entries;
    uint32_t n_registers; /* of a thread, the most of any entry */
    uint32_t spill_bytes; /* stores and loads, and stack */
    uint32_t n_warnings;
};

struct jit_result {
    char *cubin;
    size_t n_bytes;
    char *log; /* the compiler's; "" for what was found */
    enum jit_cache cache;
    struct jit_report report;
};

/* 0 and *out_result, which jit_done takes back; or as above. */
int jit_compile(const struct jit *jit, const char *name, const char *source,
                struct jit_result *out_result, struct err *e);
void jit_done(struct jit_result *result); /* a zeroed one is fine */

/* Takes away what starts that were cut short left half written: files that no start still writes, a
 * day old. */
void jit_sweep(const char *folder);

/* What a log says, for jit_compile and for the log of ptxas. */
void jit_read_log(const char *log, struct jit_report *out_report);

#endif
