/* libnccl.so.2 of the tests: it says a version, or with STUB_NCCL that it cannot. */
#include <stdlib.h>

int ncclGetVersion(int *out);

int ncclGetVersion(int *out) {
    *out = 22703;
    return getenv("STUB_NCCL") ? 3 : 0;
}
