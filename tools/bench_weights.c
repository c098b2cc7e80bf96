/* llm42-bench weights: from a file to the GPU, beside what the file's memory and the bus allow. */
#ifndef LLM42_CUDA

#include "tools/bench_verbs.h"

int bench_weights(const struct bench_options *o) {
    (void)o;
    bench_say("weights: built without CUDA: no toolkit was there");
    return BENCH_FAILED;
}

#else

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/assert.h"
#include "runtime/cpu_pool.h"
#include "runtime/cuda_driver.h"
#include "runtime/device.h"
#include "runtime/device_cuda.h"
#include "runtime/err.h"
#include "runtime/forward.h"
#include "runtime/model_tensor.h"
#include "runtime/weights.h"
#include "tools/bench_verbs.h"

enum {
    PATH_BYTES = 4096,
    THREADS_MAX = 16,
    PIECE_BYTES = 4 << 20,
    N_PIECES = THREADS_MAX,
    BUS_ROUNDS = 32, /* of N_PIECES pieces: 2 GiB */
    LOADS = 3,
    N_ROWS = 8,
};

#define PART 0.8 /* of what is allowed */

/* What the loaded model says of some rows: equal weights, equal words. */
struct answer {
    struct device_result results[2];
};

struct run {
    const struct bench_options *o;
    struct model model;
    char path[PATH_BYTES]; /* of the file */
    uint64_t n_bytes;
    struct device *dev;
    struct cpu_pool *pool;
    void *h_pieces; /* N_PIECES, pinned */
};

static void must(int r, const struct err *e) {
    if (r >= 0) return;
    bench_say("%s", e->text);
    exit(BENCH_FAILED);
}

static void must_cuda(struct run *x, CUresult result, const char *what) {
    struct err e = {""};

    must(cuda_driver_check(device_cuda_driver(x->dev), result, what, &e), &e);
}

static double since_s(int64_t begin_ns) {
    return (double)(bench_now_ns() - begin_ns) / 1e9;
}

/* ---- the file ---- */

struct writing {
    int fd;
    uint64_t at, n_bytes;
    const char *bytes;
    int failed; /* errno */
};

static void write_piece(void *ctx, uint32_t item, uint32_t thread) {
    struct writing *w = ctx;
    uint64_t off = (uint64_t)item * PIECE_BYTES;
    const uint64_t end = off + PIECE_BYTES < w->n_bytes ? off + PIECE_BYTES : w->n_bytes;

    (void)thread;
    while (off < end) {
        const ssize_t n = pwrite(w->fd, w->bytes + off, end - off, (off_t)(w->at + off));

        if (n <= 0) {
            __atomic_store_n(&w->failed, n < 0 ? errno : EIO, __ATOMIC_RELAXED);
            return;
        }
        off += (uint64_t)n;
    }
}

static void write_bytes(struct run *x, int fd, uint64_t at, const void *bytes, uint64_t n_bytes) {
    struct writing w = {.fd = fd, .at = at, .n_bytes = n_bytes, .bytes = bytes};

    cpu_pool_run(x->pool, (uint32_t)((n_bytes + PIECE_BYTES - 1) / PIECE_BYTES), write_piece, &w);
    if (!w.failed) return;
    bench_say("%s: %s", x->path, strerror(w.failed));
    exit(BENCH_FAILED);
}

/* The header, padded to eight bytes; to be freed. */
static char *make_header(const struct model *m, uint64_t *out_n_bytes) {
    struct model_tensor t;
    uint64_t at = 0;
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);

    if (!f) return NULL;
    for (uint32_t i = 0; model_tensor_at(m, i, &t); i++) {
        const uint64_t end = at + model_tensor_values(&t) * sizeof(uint16_t);

        fprintf(f, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[", i ? "," : "{", t.name);
        if (t.n) fprintf(f, "%u,", t.n);
        fprintf(f, "%u],\"data_offsets\":[%llu,%llu]}", t.n_k, (unsigned long long)at,
                (unsigned long long)end);
        at = end;
    }
    fputc('}', f);
    fflush(f);
    while (n % 8) {
        fputc(' ', f);
        fflush(f);
    }
    fclose(f);
    *out_n_bytes = n;
    return text;
}

/* The weights that --seed makes up, as a file, which has its name when it is whole. */
static void write_file(struct run *x) {
    uint64_t n_header = 0, at;
    char *header = make_header(&x->model, &n_header);
    char part[sizeof(x->path) + 8];
    const int n_part = snprintf(part, sizeof(part), "%s.part", x->path);
    const int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    uint16_t *values = malloc(model_tensor_values_max(&x->model) * sizeof(*values));
    struct weights *w = NULL;
    struct err e = {"no memory"};
    struct model_tensor t;

    ASSERT(n_part < (int)sizeof(part));
    if (fd < 0) (void)err_set(&e, -EIO, "%s: %s", part, strerror(errno));
    must(header && values && fd >= 0 ? 0 : -EIO, &e);
    must(weights_make_up(&x->model, x->o->seed, &w, &e), &e);
    write_bytes(x, fd, 0, &n_header, sizeof(n_header));
    write_bytes(x, fd, sizeof(n_header), header, n_header);
    at = sizeof(n_header) + n_header;
    for (uint32_t i = 0; model_tensor_at(&x->model, i, &t); i++) {
        const uint64_t n_bytes = model_tensor_values(&t) * sizeof(*values);

        must(weights_read(w, weights_find(w, t.name), values, &e), &e);
        write_bytes(x, fd, at, values, n_bytes);
        at += n_bytes;
    }
    weights_close(w);
    free(values);
    free(header);
    if (close(fd) < 0 || rename(part, x->path) < 0) {
        bench_say("%s: %s", part, strerror(errno));
        exit(BENCH_FAILED);
    }
}

/* ---- what is allowed ---- */

struct reading {
    struct run *x;
    int fd;
    int failed;
};

static void read_piece(void *ctx, uint32_t item, uint32_t thread) {
    struct reading *r = ctx;
    const off_t off = (off_t)item * PIECE_BYTES;

    if (pread(r->fd, (char *)r->x->h_pieces + (size_t)thread * PIECE_BYTES, PIECE_BYTES, off) <= 0)
        __atomic_store_n(&r->failed, 1, __ATOMIC_RELAXED);
}

/* GB/s of the file by as many threads, into pinned memory; the better of two. */
static double read_rate(struct run *x) {
    struct reading r = {.x = x, .fd = open(x->path, O_RDONLY | O_CLOEXEC)};
    double best = 0;

    for (int i = 0; i < 2 && r.fd >= 0; i++) {
        const int64_t begin_ns = bench_now_ns();
        double rate;

        cpu_pool_run(x->pool, (uint32_t)((x->n_bytes + PIECE_BYTES - 1) / PIECE_BYTES), read_piece,
                     &r);
        rate = (double)x->n_bytes / 1e9 / since_s(begin_ns);
        if (rate > best) best = rate;
    }
    if (r.fd < 0 || r.failed) {
        bench_say("%s: it cannot be read", x->path);
        exit(BENCH_FAILED);
    }
    close(r.fd);
    return best;
}

/* GB/s of copies of pieces to the GPU, and of nothing else. */
static double bus_rate(struct run *x) {
    struct cuda_driver *d = device_cuda_driver(x->dev);
    const double gb = (double)BUS_ROUNDS * N_PIECES * PIECE_BYTES / 1e9;
    CUdeviceptr to = 0;
    int64_t begin_ns = 0;
    double rate;

    must_cuda(x, d->cuda.cuMemAlloc_v2(&to, (size_t)N_PIECES * PIECE_BYTES), "memory");
    for (int round = -2; round < BUS_ROUNDS; round++) {
        if (round == 0) {
            must_cuda(x, d->cuda.cuStreamSynchronize(d->stream), "copies");
            begin_ns = bench_now_ns();
        }
        for (size_t i = 0; i < N_PIECES; i++)
            must_cuda(x,
                      d->cuda.cuMemcpyHtoDAsync_v2(to + i * PIECE_BYTES,
                                                   (char *)x->h_pieces + i * PIECE_BYTES,
                                                   PIECE_BYTES, d->stream),
                      "copies");
    }
    must_cuda(x, d->cuda.cuStreamSynchronize(d->stream), "copies");
    rate = gb / since_s(begin_ns);
    must_cuda(x, d->cuda.cuMemFree_v2(to), "memory");
    return rate;
}

/* ---- loading ---- */

static void ask(struct run *x, struct answer *out) {
    static struct device_row rows[N_ROWS];
    static struct device_want wants[2];
    static uint8_t flagged[N_ROWS];
    static uint32_t page;
    const struct device_batch b = {
        .n_rows = N_ROWS, .rows = rows, .n_seqs = 1, .pages = &page, .n_wants = 2, .wants = wants};
    const struct schedule s = schedule_canonical();
    struct err e = {""};

    for (uint32_t i = 0; i < N_ROWS; i++)
        rows[i] = (struct device_row){(i * 7919 + 11) % x->model.vocab, i, 0};
    for (uint32_t i = 0; i < 2; i++)
        wants[i] = (struct device_want){.row = i ? N_ROWS - 1 : 3,
                                        .target = i ? DEVICE_NO_TOKEN : 5,
                                        .params = {.top_p = 1.0f}};
    memset(out, 0, sizeof(*out));
    must(forward_run(x->dev, x->model.n_layers, 2, &b, &s, out->results, flagged, &e), &e);
}

static double load_s(struct run *x, struct weights *w) {
    const struct device_limits limits = {.n_rows = N_ROWS,
                                         .n_seqs = 1,
                                         .n_pages = 1,
                                         .n_seq_pages = 1,
                                         .n_wants = 2,
                                         .n_logit_rows = 2,
                                         .n_positions = DEVICE_PAGE_TOKENS};
    const int64_t begin_ns = bench_now_ns();
    struct err e = {""};

    must(x->dev->ops->load(x->dev, &x->model, w, &limits, &e), &e);
    return since_s(begin_ns);
}

static bool same(const struct answer *a, const struct answer *b) {
    for (int i = 0; i < 2; i++)
        if (a->results[i].token != b->results[i].token ||
            memcmp(&a->results[i].lse, &b->results[i].lse, sizeof(float)) != 0 ||
            memcmp(&a->results[i].logprob, &b->results[i].logprob, sizeof(float)) != 0)
            return false;
    return true;
}

static int loads(struct run *x, double allowed, const struct answer *want) {
    const struct bench_report *report = &x->o->report;
    const struct bench_target target = {PART * allowed, false}, none = {0};
    struct weights *w = NULL;
    uint8_t digest[WEIGHTS_DIGEST_BYTES];
    struct answer got;
    struct err e = {""};
    int64_t begin_ns;
    double s;

    for (int i = 0; i < LOADS; i++) {
        uint64_t n_bytes, us;

        weights_close(w);
        must(weights_open(x->o->out, false, &w, &e), &e);
        s = load_s(x, w);
        device_cuda_upload(x->dev, &n_bytes, &us);
        bench_report_figure(report, "weights.load", (double)n_bytes / 1e3 / (double)us, "GB/s",
                            target, "load %d: %.0f MB in %.3f s, %.3f with all memory taken", i + 1,
                            (double)n_bytes / 1e6, (double)us / 1e6, s);
    }
    ask(x, &got);
    begin_ns = bench_now_ns();
    must(weights_digest(w, digest, &e), &e);
    s = since_s(begin_ns);
    bench_report_figure(report, "weights.digest", (double)x->n_bytes / 1e9 / s, "GB/s", none,
                        "hashed: %.3f s", s);
    weights_close(w);
    if (same(&got, want)) return BENCH_OK;
    bench_say("the model from the file gives other bits than the one that was made up");
    return BENCH_FAILED;
}

int bench_weights(const struct bench_options *o) {
    const uint32_t n_threads = o->n_threads && o->n_threads < THREADS_MAX
                                   ? o->n_threads
                                   : cpu_pool_processors(THREADS_MAX);
    const struct device_cuda_options options = {.cache_folder = o->cache, .seed = o->seed};
    const struct bench_target none = {0};
    struct run x = {.o = o};
    struct answer want;
    struct err e = {""};
    struct stat st;
    int64_t begin_ns;
    double read, bus;
    int r;

    if (!o->out) {
        bench_say("weights: --out DIR is wanted, where the file is or is written to");
        return BENCH_USAGE;
    }
    must(bench_geometry(o->geometry, &x.model, &e), &e);
    if ((r = bench_folder_make(o->out)) != BENCH_OK) return r;
    must(cpu_pool_open(n_threads, &x.pool, &e), &e);
    snprintf(x.path, sizeof(x.path), "%s/model.safetensors", o->out);
    bench_report_section(&o->report, "Weights to the GPU: %s, %u threads", o->geometry, n_threads);
    begin_ns = bench_now_ns();
    if (access(x.path, F_OK) < 0) write_file(&x);
    if (stat(x.path, &st) < 0) st.st_size = 0;
    x.n_bytes = (uint64_t)st.st_size;
    bench_report_note(&o->report, "%s: %.0f MB, there after %.1f s", x.path,
                      (double)x.n_bytes / 1e6, since_s(begin_ns));
    begin_ns = bench_now_ns();
    must(device_cuda_open(&options, &x.dev, &e), &e);
    bench_report_note(&o->report, "device open after %.1f s", since_s(begin_ns));
    bench_report_note(&o->report, "made up on the GPU in %.3f s", load_s(&x, NULL));
    ask(&x, &want);
    must_cuda(&x,
              device_cuda_driver(x.dev)->cuda.cuMemHostAlloc(&x.h_pieces,
                                                             (size_t)N_PIECES * PIECE_BYTES, 0),
              "pinned memory");
    read = read_rate(&x);
    bus = bus_rate(&x);
    bench_report_figure(&o->report, "weights.read", read, "GB/s", none, "the file, read alone");
    bench_report_figure(&o->report, "weights.bus", bus, "GB/s", none,
                        "copies from pinned memory alone");
    must_cuda(&x, device_cuda_driver(x.dev)->cuda.cuMemFreeHost(x.h_pieces), "pinned memory");
    r = loads(&x, read < bus ? read : bus, &want);
    x.dev->ops->close(x.dev);
    cpu_pool_close(x.pool);
    return r;
}

#endif
