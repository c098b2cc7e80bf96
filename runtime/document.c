#include "runtime/document.h"

#include <errno.h>

#include "runtime/err.h"

int document_parse(const char *name, const char *text, size_t n_bytes, json_t **out_root,
                   struct err *e) {
    json_error_t fault;
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &fault);

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
