// sm90_gemm_bf16_pack - rows of a weight matrix into their places of its image (sm90_gemm.h).
//
//   p         see sm90_gemm.h; rows and image do not overlap
//   grid      (any, n_rows): blocks of a row share its chunks      block (256, 1, 1)
//   shared    none
//   rounding  none, bytes move
//   bound by  HBM, 4 bytes a value; 16-byte loads and stores
#include "ptx/sm90.cuh"
#include "ptx/sm90_gemm.h"

// Where in its matrix an eight of rows goes, from `first` on: a head's halves in turns, or by steps.
DEVICE u32 place(const struct sm90_gemm_pack &p, u32 eight) {
    const u32 inside = p.turn ? eight % p.turn : 0, half = p.turn / 2;

    if (!p.turn) return eight * p.step;
    return eight - inside + (inside < half ? 2 * inside : 2 * (inside - half) + 1);
}

extern "C" __global__ void __launch_bounds__(256)
    sm90_gemm_bf16_pack(const __grid_constant__ struct sm90_gemm_pack p) {
    const u32 n_chunks = p.n_k / 8;

    for (u32 from = blockIdx.y; from < p.n_rows; from += gridDim.y) {
        const u32 row = (p.first + place(p, p.at + from / SM90_GEMM_ATOM_ROWS)) * SM90_GEMM_ATOM_ROWS +
                        from % SM90_GEMM_ATOM_ROWS;
        const u32 tile = row / p.tile, local = row % p.tile;
        const uint4 *rows = (const uint4 *)p.rows + (u64)from * n_chunks;

        for (u32 c = blockIdx.x * blockDim.x + threadIdx.x; c < n_chunks;
             c += gridDim.x * blockDim.x) {
            const u64 line = ((u64)tile * p.n_blocks + c / 8) * p.tile + local;

            ((uint4 *)p.image)[line * 8 + (c % 8 ^ local % 8)] = rows[c];
        }
    }
}
