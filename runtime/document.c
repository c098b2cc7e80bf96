#include "runtime/document.h"

#include <errno.h>
#include <string.h>

#include "runtime/err.h"

static int parse(const char *name, const char *text, size_t n_bytes, size_t flags,
                 json_t **out_root, struct err *e) {
    json_error_t fault;
    json_t *root;

    /* jansson 2.14 passes over one that follows a number. */
    if (n_bytes && memchr(text, 0, n_bytes)) return err_set(e, -EINVAL, "%s: a zero byte", name);
    root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES | flags, &fault);
    if (!root) {
        int code = json_error_code(&fault) == json_error_out_of_memory ? -ENOMEM : -EINVAL;

        return err_set(e, code, "%s: line %d, column %d: %s", name, fault.line, fault.column,
                       fault.text);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(e, -EINVAL, "%s: not an object", name);
    }
    *out_root = root;
    return 0;
}

int document_parse(const char *name, const char *text, size_t n_bytes, json_t **out_root,
                   struct err *e) {
    return parse(name, text, n_bytes, 0, out_root, e);
}

int document_parse_reals(const char *name, const char *text, size_t n_bytes, json_t **out_root,
                         struct err *e) {
    return parse(name, text, n_bytes, JSON_DECODE_INT_AS_REAL, out_root, e);
}
