#include "daemon/wire.h"

#include <errno.h>
#include <string.h>

enum {
    /* Fixed parts of the payloads, in the order of SPEC 6.4 and 6.5. */
    HELLO_BYTES = 28,
    SUBMIT_BYTES = 56,
    PART_BYTES = 4, /* PROMPT and the answers in parts */
    TOKENIZE_BYTES = 4,
    HELLO_OK_BYTES = 80,
    ACCEPTED_BYTES = 64,
    TOKENS_BYTES = 12,
    LOGPROBS_BYTES = 12,
    ERROR_BYTES = 8,
    RECORD_BYTES = 8,
    TAG_BYTES = 8,
    MESSAGE_BYTES = 8,

    TAG_STOP_IDS = 1,
    TAG_STOP_STRINGS = 2,
    TAG_LOGIT_BIAS = 3,
    TAG_ALLOWED_IDS = 4,

    TOP_K_MAX = INT32_MAX, /* so that a -1 is refused, whatever the vocabulary */
};

static const uint8_t magic[4] = {'L', 'L', '4', '2'};

_Static_assert(sizeof(float) == 4, "floats travel as binary32 bits");

/* ---- Bytes in ---- */

static uint16_t get_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t get_u32(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t get_u64(const uint8_t *p) {
    return get_u32(p) | (uint64_t)get_u32(p + 4) << 32;
}

static float get_f32(const uint8_t *p) {
    uint32_t bits = get_u32(p);
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static bool zero(const uint8_t *p, size_t n_bytes) {
    uint8_t any = 0;

    for (size_t i = 0; i < n_bytes; i++) any |= p[i];
    return any == 0;
}

static int fault(struct wire_fault *out, int r, uint16_t code, uint32_t field, const char *text) {
    if (out) *out = (struct wire_fault){.field = field, .code = code, .text = text};
    return r;
}

static int malformed(struct wire_fault *out, uint32_t field, const char *text) {
    return fault(out, -EBADMSG, WIRE_E_FRAME, field, text);
}

static int refused(struct wire_fault *out, uint32_t field, const char *text) {
    return fault(out, -EINVAL, WIRE_E_FIELD, field, text);
}

/* ---- Bytes out ---- */

/* A frame being written: once something did not fit, nothing more is. */
struct out {
    uint8_t *buf;
    size_t n_max, n;
    bool full;
};

static void put_bytes(struct out *o, const void *bytes, size_t n_bytes) {
    if (o->full || n_bytes > o->n_max - o->n) {
        o->full = true;
        return;
    }
    if (n_bytes > 0) memcpy(o->buf + o->n, bytes, n_bytes);
    o->n += n_bytes;
}

static void put_u64(struct out *o, uint64_t value) {
    uint8_t bytes[8];

    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(value >> 8 * i);
    put_bytes(o, bytes, 8);
}

static void put_u32(struct out *o, uint32_t value) {
    uint8_t bytes[4];

    for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(value >> 8 * i);
    put_bytes(o, bytes, 4);
}

static void put_u16(struct out *o, uint16_t value) {
    uint8_t bytes[2] = {(uint8_t)value, (uint8_t)(value >> 8)};

    put_bytes(o, bytes, 2);
}

static void put_u8(struct out *o, uint8_t value) {
    put_bytes(o, &value, 1);
}

static void put_f32(struct out *o, float value) {
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    put_u32(o, bits);
}

static struct out begin(uint8_t *buf, size_t n_bytes_max, uint16_t type, uint64_t request) {
    struct out o = {.buf = buf, .n_max = n_bytes_max};

    put_u32(&o, 0); /* the length, known at the end */
    put_u16(&o, type);
    put_u16(&o, 0);
    put_u64(&o, request);
    return o;
}

static size_t end(struct out *o) {
    struct out length = {.buf = o->buf, .n_max = 4};

    if (o->full || o->n - WIRE_HEADER_BYTES > WIRE_PAYLOAD_MAX) return 0;
    put_u32(&length, (uint32_t)(o->n - WIRE_HEADER_BYTES));
    return o->n;
}

/* ---- Frames ---- */

int64_t wire_read(const uint8_t *bytes, size_t n_bytes, uint32_t payload_max,
                  struct wire_frame *out_frame) {
    uint32_t payload_bytes;

    if (n_bytes < 4) return -EAGAIN;
    payload_bytes = get_u32(bytes);
    /* Before waiting for the rest: a hostile length must not make us buffer it. */
    if (payload_bytes > payload_max || payload_bytes > WIRE_PAYLOAD_MAX) return -EBADMSG;
    if (n_bytes < WIRE_HEADER_BYTES) return -EAGAIN;
    if (get_u16(bytes + 6) != 0) return -EBADMSG;
    if (n_bytes < WIRE_HEADER_BYTES + (size_t)payload_bytes) return -EAGAIN;
    *out_frame = (struct wire_frame){.type = get_u16(bytes + 4),
                                     .payload_bytes = payload_bytes,
                                     .request = get_u64(bytes + 8),
                                     .payload = bytes + WIRE_HEADER_BYTES};
    return WIRE_HEADER_BYTES + (int64_t)payload_bytes;
}

size_t wire_write(uint8_t *buf, size_t n_bytes_max, uint16_t type, uint64_t request,
                  const void *payload, size_t n_payload) {
    struct out o = begin(buf, n_bytes_max, type, request);

    put_bytes(&o, payload, n_payload);
    return end(&o);
}

uint32_t wire_u32_at(const uint8_t *bytes, uint32_t index) {
    return get_u32(bytes + 4 * (size_t)index);
}

int wire_read_u32(const struct wire_frame *f, uint32_t *out) {
    if (f->payload_bytes != 4) return -EBADMSG;
    *out = get_u32(f->payload);
    return 0;
}

int wire_read_u64(const struct wire_frame *f, uint64_t *out) {
    if (f->payload_bytes != 8) return -EBADMSG;
    *out = get_u64(f->payload);
    return 0;
}

size_t wire_write_u32(uint8_t *buf, size_t n_bytes_max, uint16_t type, uint64_t request,
                      uint32_t value) {
    struct out o = begin(buf, n_bytes_max, type, request);

    put_u32(&o, value);
    return end(&o);
}

size_t wire_write_u64(uint8_t *buf, size_t n_bytes_max, uint16_t type, uint64_t request,
                      uint64_t value) {
    struct out o = begin(buf, n_bytes_max, type, request);

    put_u64(&o, value);
    return end(&o);
}

/* ---- HELLO: a later version appends, so what follows the known part is ignored ---- */

int wire_read_hello(const struct wire_frame *f, struct wire_hello *out,
                    struct wire_fault *out_fault) {
    const uint8_t *p = f->payload;
    struct wire_hello h;

    if (f->payload_bytes < HELLO_BYTES)
        return malformed(out_fault, WIRE_F_NONE, "HELLO is too short");
    if (memcmp(p, magic, sizeof(magic)) != 0)
        return malformed(out_fault, WIRE_F_NONE, "HELLO does not begin with LL42");
    h = (struct wire_hello){.version_min = get_u16(p + 4),
                            .version_max = get_u16(p + 6),
                            .features = get_u64(p + 8),
                            .payload_max = get_u32(p + 16),
                            .credit = get_u32(p + 20),
                            .name = (const char *)p + HELLO_BYTES,
                            .n_name = get_u16(p + 24)};
    if (get_u16(p + 26) != 0) return malformed(out_fault, WIRE_F_RESERVED, "must be zero");
    if (h.n_name > f->payload_bytes - HELLO_BYTES)
        return malformed(out_fault, WIRE_F_NAME, "goes beyond the frame");
    if (!(1 <= h.version_min && h.version_min <= WIRE_VERSION && WIRE_VERSION <= h.version_max))
        return fault(out_fault, -EINVAL, WIRE_E_VERSION, WIRE_F_VERSION,
                     "no version in common; the server speaks version 1");
    if (h.n_name > WIRE_NAME_MAX) return refused(out_fault, WIRE_F_NAME, "at most 64 bytes");
    /* More than the server's limit is only a wish and negotiated down; less than a frame of any
     * kind needs could never work. */
    if (h.payload_max != 0 && h.payload_max < WIRE_PAYLOAD_MIN)
        return refused(out_fault, WIRE_F_PAYLOAD_MAX, "0 or at least 4096");
    if (h.credit != 0 && h.credit < WIRE_CREDIT_MIN)
        return refused(out_fault, WIRE_F_CREDIT, "0 or 4096 .. 1073741824");
    if (h.credit > WIRE_CREDIT_MAX)
        return fault(out_fault, -EINVAL, WIRE_E_CREDIT, WIRE_F_CREDIT, "0 or 4096 .. 1073741824");
    *out = h;
    return 0;
}

size_t wire_write_hello(uint8_t *buf, size_t n_bytes_max, const struct wire_hello *h) {
    struct out o = begin(buf, n_bytes_max, WIRE_HELLO, 0);

    if (h->n_name > UINT16_MAX) return 0;
    put_bytes(&o, magic, sizeof(magic));
    put_u16(&o, h->version_min);
    put_u16(&o, h->version_max);
    put_u64(&o, h->features);
    put_u32(&o, h->payload_max);
    put_u32(&o, h->credit);
    put_u16(&o, (uint16_t)h->n_name);
    put_u16(&o, 0);
    put_bytes(&o, h->name, h->n_name);
    return end(&o);
}

int wire_read_hello_ok(const struct wire_frame *f, struct wire_hello_ok *out) {
    const uint8_t *p = f->payload;
    uint16_t n_model;

    if (f->payload_bytes < HELLO_OK_BYTES) return -EBADMSG;
    n_model = get_u16(p + 44);
    if (get_u16(p + 46) != 0 || n_model > WIRE_MODEL_MAX ||
        n_model > f->payload_bytes - HELLO_OK_BYTES)
        return -EBADMSG;
    *out = (struct wire_hello_ok){.version = get_u16(p),
                                  .top_max = get_u16(p + 2),
                                  .payload_max = get_u32(p + 4),
                                  .features = get_u64(p + 8),
                                  .epoch = get_u64(p + 16),
                                  .credit = get_u32(p + 24),
                                  .context = get_u32(p + 28),
                                  .vocab = get_u32(p + 32),
                                  .requests_max = get_u32(p + 36),
                                  .text_bytes_max = get_u32(p + 40),
                                  .model = (const char *)p + HELLO_OK_BYTES,
                                  .n_model = n_model};
    memcpy(out->fingerprint, p + 48, WIRE_DIGEST_BYTES);
    return 0;
}

size_t wire_write_hello_ok(uint8_t *buf, size_t n_bytes_max, const struct wire_hello_ok *h) {
    struct out o = begin(buf, n_bytes_max, WIRE_HELLO_OK, 0);

    if (h->n_model > WIRE_MODEL_MAX) return 0;
    put_u16(&o, h->version);
    put_u16(&o, h->top_max);
    put_u32(&o, h->payload_max);
    put_u64(&o, h->features);
    put_u64(&o, h->epoch);
    put_u32(&o, h->credit);
    put_u32(&o, h->context);
    put_u32(&o, h->vocab);
    put_u32(&o, h->requests_max);
    put_u32(&o, h->text_bytes_max);
    put_u16(&o, (uint16_t)h->n_model);
    put_u16(&o, 0);
    put_bytes(&o, h->fingerprint, WIRE_DIGEST_BYTES);
    put_bytes(&o, h->model, h->n_model);
    return end(&o);
}

/* ---- SUBMIT: what is not known is refused, it could change the output ---- */

/* Every range is written as "not (lo <= x <= hi)", so that a NaN fails it. */
static int check_submit(const struct wire_submit *s, struct wire_fault *out_fault) {
    bool is_text = s->prompt_kind == WIRE_PROMPT_KIND_TEXT;
    bool is_chat = s->prompt_kind == WIRE_PROMPT_KIND_CHAT;

    if (s->flags & ~(uint32_t)WIRE_SUBMIT_FLAGS_ALL)
        return fault(out_fault, -EINVAL, WIRE_E_UNSUPPORTED, WIRE_F_FLAGS, "an unknown flag");
    if (!(WIRE_PROMPT_KIND_IDS <= s->prompt_kind && s->prompt_kind <= WIRE_PROMPT_KIND_CHAT))
        return refused(out_fault, WIRE_F_PROMPT_KIND, "1 (ids), 2 (text) or 3 (chat)");
    if (s->flags & WIRE_SUBMIT_RAW && !is_text)
        return refused(out_fault, WIRE_F_FLAGS, "raw goes with a text prompt");
    if (s->flags & WIRE_SUBMIT_SPECIAL && !is_text && !is_chat)
        return refused(out_fault, WIRE_F_FLAGS, "special goes with a text prompt or a chat");
    if (!(s->flags & WIRE_SUBMIT_SEED) && s->seed != 0)
        return refused(out_fault, WIRE_F_SEED, "given without its flag");
    if (s->max_tokens == 0 && s->prompt_logprobs == 0)
        return refused(out_fault, WIRE_F_MAX_TOKENS, "at least 1, or 0 with prompt_logprobs");
    if (!(s->temperature == 0 || (0x1p-7f <= s->temperature && s->temperature <= 0x1p+7f)))
        return refused(out_fault, WIRE_F_TEMPERATURE, "0 or 0.0078125 .. 128");
    if (!(0 < s->top_p && s->top_p <= 1))
        return refused(out_fault, WIRE_F_TOP_P, "above 0, at most 1");
    if (!(0 <= s->min_p && s->min_p <= 1)) return refused(out_fault, WIRE_F_MIN_P, "0 .. 1");
    if (s->top_k > TOP_K_MAX) return refused(out_fault, WIRE_F_TOP_K, "0 .. 2147483647");
    if (s->n != 1) return refused(out_fault, WIRE_F_N, "1");
    if (s->logprobs > 1 + WIRE_TOP_MAX) return refused(out_fault, WIRE_F_LOGPROBS, "0 .. 21");
    if (s->prompt_logprobs > 1 + WIRE_TOP_MAX)
        return refused(out_fault, WIRE_F_PROMPT_LOGPROBS, "0 .. 21");
    if (s->priority != 0) return refused(out_fault, WIRE_F_PRIORITY, "0");
    if (s->prompt_bytes == 0)
        return fault(out_fault, -EINVAL, WIRE_E_PROMPT, WIRE_F_PROMPT_BYTES, "an empty prompt");
    if (s->prompt_kind == WIRE_PROMPT_KIND_IDS && s->prompt_bytes % 4 != 0)
        return fault(out_fault, -EINVAL, WIRE_E_PROMPT, WIRE_F_PROMPT_BYTES,
                     "ids have 4 bytes each");
    return 0;
}

static int read_stop_ids(const uint8_t *p, uint32_t n_bytes, struct wire_submit *out,
                         struct wire_fault *out_fault) {
    if (n_bytes % 4 != 0) return malformed(out_fault, WIRE_F_STOP_IDS, "ids have 4 bytes each");
    if (!(1 <= n_bytes / 4 && n_bytes / 4 <= WIRE_STOP_IDS_MAX))
        return refused(out_fault, WIRE_F_STOP_IDS, "1 .. 16 ids");
    out->n_stop_ids = n_bytes / 4;
    for (uint32_t i = 0; i < out->n_stop_ids; i++) out->stop_ids[i] = wire_u32_at(p, i);
    return 0;
}

static int read_stop_strings(const uint8_t *p, uint32_t n_bytes, struct wire_submit *out,
                             struct wire_fault *out_fault) {
    uint32_t at = 0, n_string;

    while (at < n_bytes) {
        if (n_bytes - at < 2)
            return malformed(out_fault, WIRE_F_STOP_STRINGS, "a length is cut off");
        n_string = get_u16(p + at);
        at += 2;
        if (n_string > n_bytes - at)
            return malformed(out_fault, WIRE_F_STOP_STRINGS, "a string goes beyond its list");
        if (!(1 <= n_string && n_string <= WIRE_STOP_STRING_BYTES_MAX))
            return refused(out_fault, WIRE_F_STOP_STRINGS, "1 .. 256 bytes each");
        if (out->n_stop_strings == WIRE_STOP_STRINGS_MAX)
            return refused(out_fault, WIRE_F_STOP_STRINGS, "1 .. 16 strings");
        out->stop_strings[out->n_stop_strings++] = (struct wire_stop_string){p + at, n_string};
        at += n_string;
    }
    if (out->n_stop_strings == 0) return refused(out_fault, WIRE_F_STOP_STRINGS, "1 .. 16 strings");
    return 0;
}

/* The tagged lists.  The structure of all of them is judged before any is refused, so that a
 * malformed frame is malformed whatever stands before the fault. */
static int read_tags(const uint8_t *p, uint32_t n_bytes, struct wire_submit *out,
                     struct wire_fault *out_fault) {
    uint32_t at = 0, n_list, tag_before = 0, tag;
    int r = 0, r_list;

    while (at < n_bytes) {
        if (n_bytes - at < TAG_BYTES) return malformed(out_fault, WIRE_F_TAG, "a tag is cut off");
        tag = get_u16(p + at);
        n_list = get_u32(p + at + 4);
        if (get_u16(p + at + 2) != 0) return malformed(out_fault, WIRE_F_RESERVED, "must be zero");
        if (tag <= tag_before) return malformed(out_fault, WIRE_F_TAG, "tags must ascend from 1");
        at += TAG_BYTES;
        if (n_list > n_bytes - at)
            return malformed(out_fault, WIRE_F_TAG, "a list goes beyond the frame");
        if (tag == TAG_STOP_IDS)
            r_list = read_stop_ids(p + at, n_list, out, r == 0 ? out_fault : NULL);
        else if (tag == TAG_STOP_STRINGS)
            r_list = read_stop_strings(p + at, n_list, out, r == 0 ? out_fault : NULL);
        else
            r_list = fault(r == 0 ? out_fault : NULL, -EINVAL, WIRE_E_UNSUPPORTED, WIRE_F_TAG,
                           tag == TAG_LOGIT_BIAS    ? "logit bias is not supported"
                           : tag == TAG_ALLOWED_IDS ? "allowed ids are not supported"
                                                    : "an unknown tag");
        if (r_list == -EBADMSG) return malformed(out_fault, WIRE_F_TAG, "a malformed stop list");
        if (r == 0) r = r_list;
        tag_before = tag;
        at += n_list;
    }
    return r;
}

int wire_read_submit(const struct wire_frame *f, struct wire_submit *out,
                     struct wire_fault *out_fault) {
    const uint8_t *p = f->payload;
    struct wire_submit s;
    int r_tags, r;

    if (f->payload_bytes < SUBMIT_BYTES)
        return malformed(out_fault, WIRE_F_NONE, "SUBMIT is too short");
    s = (struct wire_submit){.flags = get_u32(p),
                             .max_tokens = get_u32(p + 4),
                             .seed = get_u64(p + 8),
                             .temperature = get_f32(p + 16),
                             .top_p = get_f32(p + 20),
                             .min_p = get_f32(p + 24),
                             .top_k = get_u32(p + 28),
                             .n = get_u16(p + 32),
                             .logprobs = get_u16(p + 34),
                             .prompt_logprobs = get_u16(p + 36),
                             .priority = (int8_t)p[38],
                             .prompt_kind = p[39],
                             .queue_deadline_ms = get_u32(p + 40),
                             .deadline_ms = get_u32(p + 44),
                             .prompt_bytes = get_u32(p + 48)};
    if (get_u32(p + 52) != 0) return malformed(out_fault, WIRE_F_RESERVED, "must be zero");
    r_tags = read_tags(p + SUBMIT_BYTES, f->payload_bytes - SUBMIT_BYTES, &s, out_fault);
    if (r_tags == -EBADMSG) return r_tags;
    /* A fault of the fixed part comes first in the frame, so it is the one that is named. */
    r = check_submit(&s, out_fault);
    if (r != 0) return r;
    if (r_tags != 0) return r_tags;
    /* Minus zero is zero: one value, one encoding, in the echo and in receipts. */
    if (s.temperature == 0) s.temperature = 0;
    if (s.min_p == 0) s.min_p = 0;
    *out = s;
    return 0;
}

size_t wire_write_submit(uint8_t *buf, size_t n_bytes_max, uint64_t request,
                         const struct wire_submit *s) {
    struct out o = begin(buf, n_bytes_max, WIRE_SUBMIT, request);
    uint32_t n_strings_bytes = 0;

    if (s->n_stop_ids > WIRE_STOP_IDS_MAX || s->n_stop_strings > WIRE_STOP_STRINGS_MAX) return 0;
    put_u32(&o, s->flags);
    put_u32(&o, s->max_tokens);
    put_u64(&o, s->seed);
    put_f32(&o, s->temperature);
    put_f32(&o, s->top_p);
    put_f32(&o, s->min_p);
    put_u32(&o, s->top_k);
    put_u16(&o, s->n);
    put_u16(&o, s->logprobs);
    put_u16(&o, s->prompt_logprobs);
    put_u8(&o, (uint8_t)s->priority);
    put_u8(&o, s->prompt_kind);
    put_u32(&o, s->queue_deadline_ms);
    put_u32(&o, s->deadline_ms);
    put_u32(&o, s->prompt_bytes);
    put_u32(&o, 0);
    if (s->n_stop_ids > 0) {
        put_u16(&o, TAG_STOP_IDS);
        put_u16(&o, 0);
        put_u32(&o, 4 * s->n_stop_ids);
        for (uint32_t i = 0; i < s->n_stop_ids; i++) put_u32(&o, s->stop_ids[i]);
    }
    for (uint32_t i = 0; i < s->n_stop_strings; i++) {
        if (s->stop_strings[i].n_bytes > WIRE_STOP_STRING_BYTES_MAX) return 0;
        n_strings_bytes += 2 + s->stop_strings[i].n_bytes;
    }
    if (s->n_stop_strings > 0) {
        put_u16(&o, TAG_STOP_STRINGS);
        put_u16(&o, 0);
        put_u32(&o, n_strings_bytes);
    }
    for (uint32_t i = 0; i < s->n_stop_strings; i++) {
        put_u16(&o, (uint16_t)s->stop_strings[i].n_bytes);
        put_bytes(&o, s->stop_strings[i].bytes, s->stop_strings[i].n_bytes);
    }
    return end(&o);
}

/* ---- PROMPT, the answers in parts, chat messages ---- */

int wire_read_prompt(const struct wire_frame *f, struct wire_prompt *out,
                     struct wire_fault *out_fault) {
    const uint8_t *p = f->payload;

    if (f->payload_bytes < PART_BYTES)
        return malformed(out_fault, WIRE_F_NONE, "the frame is too short");
    if (p[0] > 1) return malformed(out_fault, WIRE_F_LAST, "0 or 1");
    if (!zero(p + 1, 3)) return malformed(out_fault, WIRE_F_RESERVED, "must be zero");
    *out = (struct wire_prompt){
        .last = p[0] == 1, .data = p + PART_BYTES, .n_data = f->payload_bytes - PART_BYTES};
    return 0;
}

int wire_read_part(const struct wire_frame *f, struct wire_prompt *out) {
    return wire_read_prompt(f, out, NULL);
}

size_t wire_write_part(uint8_t *buf, size_t n_bytes_max, uint16_t type, uint64_t request,
                       const struct wire_prompt *part) {
    struct out o = begin(buf, n_bytes_max, type, request);

    put_u32(&o, part->last);
    put_bytes(&o, part->data, part->n_data);
    return end(&o);
}

size_t wire_write_prompt(uint8_t *buf, size_t n_bytes_max, uint64_t request,
                         const struct wire_prompt *p) {
    return wire_write_part(buf, n_bytes_max, WIRE_PROMPT, request, p);
}

int wire_message_read(const uint8_t *data, size_t n_data, size_t *offset,
                      struct wire_message *out) {
    const uint8_t *p = data + *offset;
    size_t n_left = n_data - *offset;
    uint32_t n_bytes;

    if (n_left == 0) return 0;
    if (n_left < MESSAGE_BYTES || !zero(p + 1, 3)) return -EBADMSG;
    n_bytes = get_u32(p + 4);
    if (n_bytes > n_left - MESSAGE_BYTES) return -EBADMSG;
    if (p[0] > WIRE_ROLE_ASSISTANT) return -EINVAL;
    *out = (struct wire_message){
        .role = p[0], .text = (const char *)p + MESSAGE_BYTES, .n_bytes = n_bytes};
    *offset += MESSAGE_BYTES + (size_t)n_bytes;
    return 1;
}

size_t wire_message_write(uint8_t *buf, size_t n_bytes_max, const struct wire_message *m) {
    struct out o = {.buf = buf, .n_max = n_bytes_max};

    put_u32(&o, m->role);
    put_u32(&o, m->n_bytes);
    put_bytes(&o, m->text, m->n_bytes);
    return o.full ? 0 : o.n;
}

int wire_read_tokenize(const struct wire_frame *f, struct wire_tokenize *out,
                       struct wire_fault *out_fault) {
    const uint8_t *p = f->payload;
    struct wire_tokenize t;

    if (f->payload_bytes < TOKENIZE_BYTES)
        return malformed(out_fault, WIRE_F_NONE, "TOKENIZE is too short");
    if (get_u16(p + 2) != 0) return malformed(out_fault, WIRE_F_RESERVED, "must be zero");
    t = (struct wire_tokenize){.kind = p[0],
                               .flags = p[1],
                               .data = p + TOKENIZE_BYTES,
                               .n_data = f->payload_bytes - TOKENIZE_BYTES};
    if (t.flags & ~(WIRE_SUBMIT_SPECIAL | WIRE_SUBMIT_RAW))
        return fault(out_fault, -EINVAL, WIRE_E_UNSUPPORTED, WIRE_F_FLAGS, "an unknown flag");
    if (t.kind != WIRE_PROMPT_KIND_TEXT && t.kind != WIRE_PROMPT_KIND_CHAT)
        return refused(out_fault, WIRE_F_PROMPT_KIND, "2 (text) or 3 (chat)");
    if (t.flags & WIRE_SUBMIT_RAW && t.kind != WIRE_PROMPT_KIND_TEXT)
        return refused(out_fault, WIRE_F_FLAGS, "raw goes with text");
    *out = t;
    return 0;
}

size_t wire_write_tokenize(uint8_t *buf, size_t n_bytes_max, uint64_t request,
                           const struct wire_tokenize *t) {
    struct out o = begin(buf, n_bytes_max, WIRE_TOKENIZE, request);

    put_u8(&o, t->kind);
    put_u8(&o, t->flags);
    put_u16(&o, 0);
    put_bytes(&o, t->data, t->n_data);
    return end(&o);
}

/* ---- The server's frames ---- */

int wire_read_accepted(const struct wire_frame *f, struct wire_accepted *out) {
    const uint8_t *p = f->payload;

    if (f->payload_bytes != ACCEPTED_BYTES || !zero(p + 61, 3)) return -EBADMSG;
    *out = (struct wire_accepted){.server_id = get_u64(p),
                                  .seed = get_u64(p + 8),
                                  .flags = get_u32(p + 16),
                                  .max_tokens = get_u32(p + 20),
                                  .temperature = get_f32(p + 24),
                                  .top_p = get_f32(p + 28),
                                  .min_p = get_f32(p + 32),
                                  .top_k = get_u32(p + 36),
                                  .n_prompt = get_u32(p + 40),
                                  .queue_place = get_u32(p + 44),
                                  .n_stop_ids = get_u32(p + 48),
                                  .window = get_u32(p + 52),
                                  .logprobs = get_u16(p + 56),
                                  .prompt_logprobs = get_u16(p + 58),
                                  .policy = p[60]};
    return 0;
}

size_t wire_write_accepted(uint8_t *buf, size_t n_bytes_max, uint64_t request,
                           const struct wire_accepted *a) {
    static const uint8_t reserved[3];
    struct out o = begin(buf, n_bytes_max, WIRE_ACCEPTED, request);

    put_u64(&o, a->server_id);
    put_u64(&o, a->seed);
    put_u32(&o, a->flags);
    put_u32(&o, a->max_tokens);
    put_f32(&o, a->temperature);
    put_f32(&o, a->top_p);
    put_f32(&o, a->min_p);
    put_u32(&o, a->top_k);
    put_u32(&o, a->n_prompt);
    put_u32(&o, a->queue_place);
    put_u32(&o, a->n_stop_ids);
    put_u32(&o, a->window);
    put_u16(&o, a->logprobs);
    put_u16(&o, a->prompt_logprobs);
    put_u8(&o, a->policy);
    put_bytes(&o, reserved, sizeof(reserved));
    return end(&o);
}

int wire_read_tokens(const struct wire_frame *f, struct wire_tokens *out) {
    const uint8_t *p = f->payload;
    uint32_t n_tokens, n_text;

    if (f->payload_bytes < TOKENS_BYTES) return -EBADMSG;
    n_tokens = get_u32(p + 4);
    n_text = get_u32(p + 8);
    if (4 * (uint64_t)n_tokens + n_text != f->payload_bytes - TOKENS_BYTES) return -EBADMSG;
    if (n_tokens == 0 && n_text == 0) return -EBADMSG;
    *out = (struct wire_tokens){.first = get_u32(p),
                                .n_tokens = n_tokens,
                                .ids = p + TOKENS_BYTES,
                                .n_text = n_text,
                                .text = p + TOKENS_BYTES + 4 * (size_t)n_tokens};
    return 0;
}

size_t wire_write_tokens(uint8_t *buf, size_t n_bytes_max, uint64_t request, uint32_t first,
                         const uint32_t *ids, uint32_t n_tokens, const uint8_t *text,
                         uint32_t n_text) {
    struct out o = begin(buf, n_bytes_max, WIRE_TOKENS, request);

    put_u32(&o, first);
    put_u32(&o, n_tokens);
    put_u32(&o, n_text);
    for (uint32_t i = 0; i < n_tokens && !o.full; i++) put_u32(&o, ids[i]);
    put_bytes(&o, text, n_text);
    return end(&o);
}

struct wire_logprob wire_logprob_at(const struct wire_logprobs *l, uint32_t token, uint32_t place) {
    const uint8_t *p = l->records + RECORD_BYTES * ((size_t)token * (1 + (size_t)l->n_top) + place);

    return (struct wire_logprob){.id = get_u32(p), .bits = get_u32(p + 4)};
}

int wire_read_logprobs(const struct wire_frame *f, struct wire_logprobs *out) {
    const uint8_t *p = f->payload;
    uint32_t n_tokens;
    uint16_t n_top;

    if (f->payload_bytes < LOGPROBS_BYTES) return -EBADMSG;
    n_tokens = get_u32(p + 4);
    n_top = get_u16(p + 8);
    if (get_u16(p + 10) != 0 || n_top > WIRE_TOP_MAX || n_tokens == 0) return -EBADMSG;
    if ((uint64_t)n_tokens * (1 + (uint64_t)n_top) * RECORD_BYTES !=
        f->payload_bytes - LOGPROBS_BYTES)
        return -EBADMSG;
    *out = (struct wire_logprobs){
        .first = get_u32(p), .n_tokens = n_tokens, .n_top = n_top, .records = p + LOGPROBS_BYTES};
    return 0;
}

size_t wire_write_logprobs(uint8_t *buf, size_t n_bytes_max, uint16_t type, uint64_t request,
                           uint32_t first, const struct wire_logprob *records, uint32_t n_tokens,
                           uint16_t n_top) {
    struct out o = begin(buf, n_bytes_max, type, request);
    uint64_t n_records = (uint64_t)n_tokens * (1 + (uint64_t)n_top);

    put_u32(&o, first);
    put_u32(&o, n_tokens);
    put_u16(&o, n_top);
    put_u16(&o, 0);
    for (uint64_t i = 0; i < n_records && !o.full; i++) {
        put_u32(&o, records[i].id);
        put_u32(&o, records[i].bits);
    }
    return end(&o);
}

int wire_read_done(const struct wire_frame *f, struct wire_done *out) {
    const uint8_t *p = f->payload;

    if (f->payload_bytes != WIRE_DONE_BYTES) return -EBADMSG;
    *out = (struct wire_done){.finish = p[0],
                              .stop_kind = p[1],
                              .stop_index = get_u16(p + 2),
                              .n_prompt = get_u32(p + 4),
                              .n_output = get_u32(p + 8),
                              .n_cached = get_u32(p + 12),
                              .verify_passes = get_u32(p + 16),
                              .rollbacks = get_u32(p + 20),
                              .recomputed = get_u32(p + 24),
                              .certified = get_u32(p + 28),
                              .queue_us = get_u64(p + 96),
                              .prefill_us = get_u64(p + 104),
                              .decode_us = get_u64(p + 112),
                              .total_us = get_u64(p + 120)};
    memcpy(out->digest, p + 32, WIRE_DIGEST_BYTES);
    memcpy(out->fingerprint, p + 64, WIRE_DIGEST_BYTES);
    return 0;
}

size_t wire_write_done(uint8_t *buf, size_t n_bytes_max, uint64_t request,
                       const struct wire_done *d) {
    struct out o = begin(buf, n_bytes_max, WIRE_DONE, request);

    put_u8(&o, d->finish);
    put_u8(&o, d->stop_kind);
    put_u16(&o, d->stop_index);
    put_u32(&o, d->n_prompt);
    put_u32(&o, d->n_output);
    put_u32(&o, d->n_cached);
    put_u32(&o, d->verify_passes);
    put_u32(&o, d->rollbacks);
    put_u32(&o, d->recomputed);
    put_u32(&o, d->certified);
    put_bytes(&o, d->digest, WIRE_DIGEST_BYTES);
    put_bytes(&o, d->fingerprint, WIRE_DIGEST_BYTES);
    put_u64(&o, d->queue_us);
    put_u64(&o, d->prefill_us);
    put_u64(&o, d->decode_us);
    put_u64(&o, d->total_us);
    return end(&o);
}

int wire_read_error(const struct wire_frame *f, struct wire_error *out) {
    const uint8_t *p = f->payload;

    if (f->payload_bytes < ERROR_BYTES || f->payload_bytes > ERROR_BYTES + WIRE_ERROR_TEXT_MAX)
        return -EBADMSG;
    *out = (struct wire_error){.code = get_u16(p),
                               .class = p[2],
                               .retry_100ms = p[3],
                               .field = get_u32(p + 4),
                               .text = (const char *)p + ERROR_BYTES,
                               .n_text = f->payload_bytes - ERROR_BYTES};
    return 0;
}

size_t wire_write_error(uint8_t *buf, size_t n_bytes_max, uint64_t request,
                        const struct wire_error *e) {
    struct out o = begin(buf, n_bytes_max, WIRE_ERROR, request);

    if (e->n_text > WIRE_ERROR_TEXT_MAX) return 0;
    put_u16(&o, e->code);
    put_u8(&o, e->class);
    put_u8(&o, e->retry_100ms);
    put_u32(&o, e->field);
    put_bytes(&o, e->text, e->n_text);
    return end(&o);
}
