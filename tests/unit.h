/* unit - what every cmocka program includes first. */
#ifndef LLM42D_TESTS_UNIT_H
#define LLM42D_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
