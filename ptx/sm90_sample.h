/* sm90_sample - what sm90_sample_f32 and its launch agree on. */
#ifndef LLM42D_PTX_SM90_SAMPLE_H
#define LLM42D_PTX_SM90_SAMPLE_H

#define SM90_SAMPLE_THREADS 1024
#define SM90_SAMPLE_CHUNK 128 /* logits, of SPEC 2.10 */
#define SM90_SAMPLE_GROUP 8   /* chunks that a warp takes at once */

/* Dynamic shared memory: a group a warp. */
#define SM90_SAMPLE_BYTES \
    (SM90_SAMPLE_THREADS / 32 * SM90_SAMPLE_GROUP * SM90_SAMPLE_CHUNK * sizeof(float))

#endif
