/* bench_bound - what bounds a kernel on an H200, read off one: the rate of a read-only stream, and of
 * large matrix products on random data. */
#ifndef LLM42D_TOOLS_BENCH_BOUND_H
#define LLM42D_TOOLS_BENCH_BOUND_H

#define BENCH_BOUND_READ 4.55e6 /* bytes a microsecond */
#define BENCH_BOUND_FLOP 790e6  /* operations a microsecond */

#endif
