/* What sample_test.c shows, of the version for processors without AVX2: sample.c stands here
 * itself, and the linker then has no use for that of the library. */
#define SAMPLE_PORTABLE
#include "runtime/sample.c"

#include "tests/sample_test.c"
