#include "tools/bench_experiment.h"
int bench_experiment_report(const struct bench_options *o) {
    (void)o;
    return BENCH_FAILED;
}
