// The scale of a whole tensor in two launches, the greatest magnitude of each block's slices and then of the blocks, and
// q by a scale that is given.
#include "quantize.h"

#define SLICES 1
#define BLOCKS 2
#define ELEMENTS 3

// The block's word, in all threads.
DEVICE uint32_t greatest_of_block(uint32_t most) {
    SHARED float of_warp[WARPS];
    const float mine = reduce_warp<Greatest, WARP>(float_of(most));
    if (warp_lane() == 0) of_warp[warp_index()] = mine;
    barrier();
    return bits_of(reduce_warp<Greatest, WARPS>(of_warp[warp_lane() & (WARPS - 1)]));
}

#if PASS == SLICES
// Slices of LANES * CHUNKS vectors of a row, `across` of them a row; a block takes every grid_x()-th.
KERNEL(THREADS)
void amax_slices(const T* x, float* amax, int64_t rows, int64_t length, int64_t x_stride, int across, int slices) {
    enter_pdl();
    uint32_t most = 0;
    for (unsigned slice = block_x(); slice < static_cast<unsigned>(slices); slice += grid_x()) {
        const unsigned group = slice / static_cast<unsigned>(across);
        const int64_t row = static_cast<int64_t>(group) * ROWS + row_slot();
        const int64_t base = static_cast<int64_t>(slice - group * across) * TILE;
        Vector<T, VEC> held[CHUNKS];
        load_vectors<false>(held, lane_ptr(x + row * x_stride), base, row < rows ? length : 0);
        most = Greatest::of(most, greatest(held));
    }
    const float own = amax_of<T>(greatest_of_block(most));
    if (thread_x() == 0) amax[block_x()] = own;
}
#endif

#if PASS == BLOCKS
// One block; T is f32.
KERNEL(THREADS)
void amax_blocks(const T* amax, float* scale, int blocks, float largest, float eps) {
    enter_pdl();
    uint32_t most = 0;
    for (int i = thread_x(); i < blocks; i += THREADS) most = Greatest::of(most, bits_of(amax[i]));
    const float own = scale_of(float_of(greatest_of_block(most)), eps, largest);
    if (thread_x() == 0) *scale = own;
}
#endif

#if PASS == ELEMENTS
KERNEL(THREADS)
void quantize_elements(const T* x, const float* scale, uint8_t* q, int64_t rows, int64_t length, int64_t x_stride,
                       int64_t q_stride, int across) {
    enter_pdl();
    const RowSlice slice = row_slice(rows, length, across);
    Vector<T, VEC> held[CHUNKS];
    load_vectors<true>(held, lane_ptr(x + slice.row * x_stride), slice.base, slice.length);
    const float inverse = div_rn(1.0f, *scale);
    uint8_t* target = lane_ptr(q + slice.row * q_stride) + slice.base;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        store_codes(target + c * CHUNK, slice.base + chunk_column(c), slice.length, held[c], inverse);
    }
}
#endif
