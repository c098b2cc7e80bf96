/* The daemon, whole, over a CPU device that goes wrong on request: llm42d linked with this, which
 * the linker puts between it and device_cpu_open.  LLM42_FAULT names a file; once it is written, and
 * each time anew, the next step does what it says:
 *
 *   lost       the device is lost, by that step and for good
 *   hang MS    the step takes so long */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "runtime/device_fault.h"

int __real_device_cpu_open(const struct device_cpu_options *options, struct device **out_dev,
                           struct err *e);
int __wrap_device_cpu_open(const struct device_cpu_options *options, struct device **out_dev,
                           struct err *e);

static const char *path;
static struct timespec last; /* what was written until then has been done, or was for others */

static bool later(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec > b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec > b->tv_nsec);
}

static bool before(void *context) {
    char text[64] = "";
    unsigned ms = 0;
    struct stat st;
    FILE *f;

    (void)context;
    if (stat(path, &st) < 0 || !later(&st.st_mtim, &last) || !(f = fopen(path, "re"))) return false;
    last = st.st_mtim;
    (void)!fgets(text, sizeof(text), f);
    (void)fclose(f);
    if (sscanf(text, "hang %u", &ms) == 1) {
        const struct timespec t = {ms / 1000, ms % 1000 * 1000000l};

        (void)nanosleep(&t, NULL);
    }
    return !strncmp(text, "lost", 4);
}

int __wrap_device_cpu_open(const struct device_cpu_options *options, struct device **out_dev,
                           struct err *e) {
    const struct device_fault_rules rules = {.before = before};
    struct device *inner = NULL;
    int r = __real_device_cpu_open(options, &inner, e);

    path = getenv("LLM42_FAULT");
    (void)clock_gettime(CLOCK_REALTIME, &last);
    if (r < 0 || !path) {
        *out_dev = inner;
        return r;
    }
    return device_fault_open(inner, &rules, out_dev, e);
}
