/* sm90_plain_mma - one step of the tensor core (SPEC 2.2), operands in registers. */
#ifndef LLM42D_PTX_SM90_PLAIN_MMA_H
#define LLM42D_PTX_SM90_PLAIN_MMA_H

/* c[16][8] += a[16][16] b[16][8].  With g = lane / 4 and t = lane % 4, the lane holds of c rows g
 * (c0, c1) and g + 8 (c2, c3), columns 2 t and 2 t + 1; of a rows g (a0, a2) and g + 8 (a1, a3);
 * of b column g.  Which four of the 16 values of k are the lane's is free as long as a and b agree,
 * since the order inside a step does not show: here 4 t .. 4 t + 3, the first two in a0, a1, b0. */
static __device__ inline void mma(float c[4], uint2 a_low, uint2 a_high, uint2 b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a_low.x), "r"(a_high.x), "r"(a_low.y), "r"(a_high.y), "r"(b.x), "r"(b.y));
}

#endif
