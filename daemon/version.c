#include "daemon/version.h"

#include "runtime/device_cuda.h"

#ifndef LLM42_VERSION
#define LLM42_VERSION "unknown"
#endif
#ifndef LLM42_COMMIT
#define LLM42_COMMIT "unknown"
#endif

const char *version_number(void) {
    return LLM42_VERSION;
}

const char *version_commit(void) {
    return LLM42_COMMIT;
}

const char *version_whole(void) {
    return LLM42_VERSION " (" LLM42_COMMIT ")";
}

const char *version_devices(void) {
    return device_cuda_built() ? "cpu cuda" : "cpu";
}
