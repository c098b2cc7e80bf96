/* sm90_rotary - the rotation of SPEC 2.6, two adjacent pairs at a time. */
#ifndef LLM42D_PTX_SM90_ROTARY_CUH
#define LLM42D_PTX_SM90_ROTARY_CUH

#include "ptx/sm90.cuh"
#include "runtime/num.h"

DEVICE float rotary_first(u32 two) {
    return num_from_bits(two << 16);
}

DEVICE float rotary_second(u32 two) {
    return num_from_bits(two & 0xffff0000u);
}

/* The first values of both pairs, turned; and the second ones. */
DEVICE u32 rotary_low(u32 low, u32 high, u32 c, u32 s) {
    return sm90_pack(rotary_first(low) * rotary_first(c) - rotary_first(high) * rotary_first(s),
                     rotary_second(low) * rotary_second(c) -
                         rotary_second(high) * rotary_second(s));
}

DEVICE u32 rotary_high(u32 low, u32 high, u32 c, u32 s) {
    return sm90_pack(rotary_first(high) * rotary_first(c) + rotary_first(low) * rotary_first(s),
                     rotary_second(high) * rotary_second(c) +
                         rotary_second(low) * rotary_second(s));
}

/* Eight pairs, in place. */
DEVICE void rotary_eight(uint4 &low, uint4 &high, uint4 c, uint4 s) {
    const uint4 a = low, b = high;

    low = make_uint4(rotary_low(a.x, b.x, c.x, s.x), rotary_low(a.y, b.y, c.y, s.y),
                     rotary_low(a.z, b.z, c.z, s.z), rotary_low(a.w, b.w, c.w, s.w));
    high = make_uint4(rotary_high(a.x, b.x, c.x, s.x), rotary_high(a.y, b.y, c.y, s.y),
                      rotary_high(a.z, b.z, c.z, s.z), rotary_high(a.w, b.w, c.w, s.w));
}

#endif
