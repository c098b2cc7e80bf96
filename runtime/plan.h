/* plan - who is in the next step, and on which schedule.
 *
 * Owns:   nothing; every function is pure.
 * Thread: any.
 *
 * A step has one schedule.  What must be canonical (prefill, verification) makes the whole step
 * so, and its decode rows are then certified where they are eligible; only a step of decode rows
 * alone may be tuned (SPEC 5.3). */
#ifndef LLM42D_RUNTIME_PLAN_H
#define LLM42D_RUNTIME_PLAN_H

#include <stdbool.h>
#include <stdint.h>

enum plan_policy { PLAN_CANONICAL, PLAN_TUNED, PLAN_AUTO };
const char *plan_policy_name(enum plan_policy p);

#endif
