// q and a scale per 128 neighbours of each row of y = silu(gate) * up, rounded to T, as quantize_fp8/groups.cu has it of x.
// gate and up are two neighbouring rows of x.
#include "gated.h"

#define GROUPS 1

#if PASS == GROUPS
KERNEL(THREADS)
void silu_and_mul_quant_groups(const T* x, uint8_t* q, float* scale, int64_t rows, int64_t length, int64_t x_stride,
                               int64_t q_stride, int64_t groups, int across, float given) {
    const RowSlice slice = row_slice(rows, length, across);
    const int64_t begin = slice.base + (row_lane() & ~(GROUP_LANES - 1)) * VEC;
    const T* gate = x + 2 * slice.row * x_stride;
    uint8_t* target = q + slice.row * q_stride;
    Vector<T, VEC> held[CHUNKS];
    Vector<T, VEC> up[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) held[c] = load_part(gate, begin + c * CHUNK, slice.length);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) up[c] = load_part(gate + x_stride, begin + c * CHUNK, slice.length);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const int64_t first = begin + c * CHUNK;
        multiply_by_silu(held[c], up[c]);
        const float most = reduce_warp<Greatest, GROUP_LANES>(float_of(greatest(0, held[c])));
        const float own = scale_of(amax_of<T>(bits_of(most)), given);
        if (group_lane() == 0 && first < slice.length) scale[slice.row * groups + first / GROUP] = own;
        store_part(target, first, slice.length, held[c], div_rn(1.0f, own));
    }
}
#endif
