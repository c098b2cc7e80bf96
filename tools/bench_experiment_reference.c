/* Digests that flagged requests must have, whatever they run beside. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/sha256.h"
#include "tools/bench_experiment.h"

enum { SAMPLE = 2 /* of a reference made of many at once: again, one by one */ };

/* ---- What it is of ---- */

static void add_u64(struct sha256 *s, uint64_t value) {
    uint8_t bytes[8];

    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(value >> 8 * i);
    sha256_add(s, bytes, sizeof(bytes));
}

/* All that decides the digests: the requests and the fingerprint. */
static int hash(const struct bench_options *o, const struct bench_workload *w,
                const struct bench_prompts *prompts, const uint8_t *fingerprint,
                char out_hex[SHA256_HEX_BYTES]) {
    uint8_t digest[SHA256_BYTES], *prompt;
    struct sha256 *s = sha256_open();
    uint32_t n_longest = 1;

    for (uint32_t i = 0; i < w->n; i++)
        if (w->lengths[i].n_prompt > n_longest) n_longest = w->lengths[i].n_prompt;
    prompt = malloc((size_t)n_longest * 4);
    if (!s || !prompt) {
        bench_say("no memory for %u requests", w->n);
        sha256_close(s);
        free(prompt);
        return BENCH_FAILED;
    }
    sha256_start(s);
    sha256_add(s, fingerprint, WIRE_DIGEST_BYTES);
    add_u64(s, o->seed);
    add_u64(s, (uint64_t)(o->temperature * 1e6));
    add_u64(s, o->honour_eos);
    for (uint32_t i = 0; i < w->n; i++) {
        add_u64(s, w->lengths[i].n_tokens);
        bench_prompts_write(prompts, i, w->lengths[i].n_prompt, prompt);
        sha256_add(s, prompt, (size_t)w->lengths[i].n_prompt * 4);
    }
    sha256_end(s, digest);
    sha256_hex(digest, out_hex);
    sha256_close(s);
    free(prompt);
    return BENCH_OK;
}

/* ---- The file: "index digest" a line ---- */

static bool digest_read(const char *hex, uint8_t out[WIRE_DIGEST_BYTES]) {
    for (int i = 0; i < WIRE_DIGEST_BYTES; i++) {
        unsigned value;

        if (sscanf(hex + 2 * i, "%2x", &value) != 1) return false;
        out[i] = (uint8_t)value;
    }
    return true;
}

static int file_read(struct bench_reference *r) {
    char line[256], hex[SHA256_HEX_BYTES];
    uint32_t index;
    FILE *f = fopen(r->path, "re");

    if (!f) return BENCH_OK; /* none yet */
    while (fgets(line, sizeof(line), f)) {
        if (line[0] == '#' || !strchr(line, '\n')) continue; /* or not written to its end */
        if (sscanf(line, "%u %64[0-9a-f]", &index, hex) != 2 || index >= r->n ||
            strlen(hex) != SHA256_HEX_BYTES - 1 || !digest_read(hex, r->digests[index])) {
            bench_say("%s: not a reference of %u requests", r->path, r->n);
            fclose(f);
            return BENCH_FAILED;
        }
        r->have[index] = true;
    }
    fclose(f);
    return BENCH_OK;
}

/* All at once under another name, so that what is there stays whole. */
static int file_write(const struct bench_reference *r, const struct bench_workload *w) {
    char path[4200], hex[SHA256_HEX_BYTES];
    bool written;
    FILE *f;

    snprintf(path, sizeof(path), "%s.new", r->path);
    f = fopen(path, "we");
    if (!f) {
        bench_say("%s: %s", path, strerror(errno));
        return BENCH_FAILED;
    }
    fprintf(f, "# digests of %s, policy canonical: a request's number, its digest\n", w->name);
    for (uint32_t i = 0; i < r->n; i++) {
        if (!r->have[i]) continue;
        sha256_hex(r->digests[i], hex);
        fprintf(f, "%u %s\n", i, hex);
    }
    written = !ferror(f);
    if (fclose(f) != 0 || !written || rename(path, r->path) < 0) {
        bench_say("%s: %s", r->path, strerror(errno));
        return BENCH_FAILED;
    }
    return BENCH_OK;
}

int bench_reference_open(const struct bench_options *o, const struct bench_workload *w,
                         const struct bench_prompts *prompts, const uint8_t *fingerprint,
                         struct bench_reference *out_reference) {
    struct bench_reference r = {.n = w->n};
    char hex[SHA256_HEX_BYTES];
    int code = hash(o, w, prompts, fingerprint, hex);

    if (code != BENCH_OK) return code;
    snprintf(r.path, sizeof(r.path), "%.4000s/reference-%.16s.txt", o->out, hex);
    r.have = calloc(r.n, sizeof(*r.have));
    r.digests = calloc(r.n, sizeof(*r.digests));
    code = r.have && r.digests ? file_read(&r) : BENCH_FAILED;
    if (code == BENCH_OK)
        *out_reference = r;
    else
        bench_reference_close(&r);
    return code;
}

void bench_reference_close(struct bench_reference *r) {
    free(r->have);
    free(r->digests);
    *r = (struct bench_reference){.n = 0};
}

/* ---- Making it ---- */

static int load_of(const struct bench_options *o, const struct bench_workload *w,
                   const struct bench_prompts *prompts, const uint32_t *ids, uint32_t n,
                   struct bench_load *out_load) {
    struct bench_load l;
    int r = bench_load_open(n, &l);

    if (r != BENCH_OK) return r;
    for (uint32_t i = 0; i < n; i++)
        l.requests[i] = (struct bench_load_request){.id = ids[i],
                                                    .n_prompt = w->lengths[ids[i]].n_prompt,
                                                    .n_tokens = w->lengths[ids[i]].n_tokens,
                                                    .deterministic = true};
    l.temperature = o->temperature;
    l.honour_eos = o->honour_eos;
    l.seed = o->seed;
    l.prompts = *prompts;
    l.concurrency = 1;
    l.wait_ms = bench_load_wait_ms(o->reference_device ? o->reference_device : o->device);
    r = bench_load_room(&l, false);
    if (r == BENCH_OK)
        *out_load = l;
    else
        bench_load_close(&l);
    return r;
}

static int run_ids(const struct bench_options *o, const struct bench_workload *w,
                   const struct bench_prompts *prompts, struct llm42_io *io, const uint32_t *ids,
                   uint32_t n, uint32_t concurrency, struct bench_reference *r) {
    struct bench_load l;
    int code = load_of(o, w, prompts, ids, n, &l);

    if (code != BENCH_OK) return code;
    l.concurrency = concurrency;
    code = bench_load_run(io, &l);
    for (uint32_t i = 0; i < n; i++) {
        const struct bench_load_request *q = &l.requests[i];

        if (q->state == BENCH_REFUSED && code == BENCH_OK) code = BENCH_FAILED;
        if (q->state != BENCH_DONE) continue;
        if (r->have[q->id] && memcmp(r->digests[q->id], q->digest, sizeof(q->digest)) != 0) {
            bench_say("%s: request %u alone has another digest than beside others", w->name, q->id);
            code = BENCH_FAILED;
        }
        r->have[q->id] = true;
        memcpy(r->digests[q->id], q->digest, sizeof(q->digest));
    }
    bench_load_close(&l);
    return code;
}

int bench_reference_fill(const struct bench_options *o, const struct bench_workload *w,
                         const struct bench_prompts *prompts, struct llm42_io *io, const bool *need,
                         struct bench_reference *r) {
    uint32_t *ids = calloc(r->n, sizeof(*ids)), n = 0, n_sample;
    int code = ids ? BENCH_OK : BENCH_FAILED, kept;

    for (uint32_t i = 0; ids && i < r->n; i++)
        if (need[i] && !r->have[i]) ids[n++] = i;
    if (code != BENCH_OK || n == 0) goto out;
    fprintf(stderr, "reference: %u of %s, %u at once\n", n, w->name, o->reference_flight);
    code = run_ids(o, w, prompts, io, ids, n, o->reference_flight, r);
    if (code == BENCH_OK && o->reference_flight > 1) {
        n_sample = n < SAMPLE ? n : SAMPLE;
        for (uint32_t i = 0; i < n_sample; i++) ids[i] = ids[(uint64_t)i * n / n_sample];
        code = run_ids(o, w, prompts, io, ids, n_sample, 1, r);
    }
    if (code == BENCH_OK || code == BENCH_INTERRUPTED) {
        kept = file_write(r, w);
        if (kept != BENCH_OK) code = kept;
    }
out:
    free(ids);
    return code;
}
