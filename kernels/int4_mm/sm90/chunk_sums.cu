// sums[c, m] = the sum of row m of x over its c-th CHUNK of k, in float32; k is a multiple of CHUNK, and rows begin at
// multiples of 16 bytes. A warp adds up STEPS times 256 k of a row.
//
// Defines: ELEMENT (bf16, f16: of x); CHUNK (32, 64, 128), ROWS (of a block), STEPS.
#include "_lib/ptx/pdl.h"

using T = ELEMENT;

KERNEL(ROWS * 32)
void chunk_sums(const T* x, float* sums, int m, int k, int pitch, int64_t x_stride) {
    enter_pdl();
    const int row = block_x() * ROWS + thread_x() / 32, lane = thread_x() % 32;
    if (row >= m) return;
    const T* const line = x + row * x_stride;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const int at = (block_y() * STEPS + step) * 256 + lane * 8;
        float sum = 0.0f;
        if (at < k) {
            const words<16> eight = load_words<16>(line + at);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sum += to_float(T{static_cast<uint16_t>(eight.w[i])}) + to_float(T{static_cast<uint16_t>(eight.w[i] >> 16)});
        }
#pragma unroll
        for (int mask = CHUNK / 16; mask; mask /= 2) sum += shuffle_xor(sum, mask);
        if (at < k && lane % (CHUNK / 8) == 0) sums[static_cast<int64_t>(at / CHUNK) * pitch + row] = sum;
    }
}
