/* sm90_norm - what sm90_residual_norm_bf16_many and its launches share.  For NVRTC and the host
 * compiler. */
#ifndef LLM42D_PTX_SM90_NORM_H
#define LLM42D_PTX_SM90_NORM_H

enum {
    SM90_NORM_MANY_THREADS = 128,
    SM90_NORM_MANY_BYTES = 36 << 10,  /* of shared memory, for rows on their way */
    SM90_NORM_MANY_BLOCKS = 6 * 132,  /* of a grid: as many as have room at once */
    SM90_NORM_MANY_VALUES = 4096,     /* of a row, at most */
    SM90_NORM_MANY_VALUES_MIN = 2048, /* shorter rows leave most threads of a block without work */
    SM90_NORM_MANY_ROWS_MIN = 1024,   /* fewer are faster a row a block */
};

#endif
