// sums[g, m] = the sum of row m of x over group g, in float32; rows of any alignment. A wave adds up one group of a row.
//
// Defines: ELEMENT (bf16, f16: of x), ROWS (of a block).
#include "_lib/amdgcn/lds.h"

KERNEL(ROWS * WARP)
void int4_mm_group_sums(const ELEMENT* x, float* sums, int rows, int group_k, int64_t x_row) {
    const int row = block_x() * ROWS + thread_x() / WARP, group = block_y();
    if (row >= rows) return;
    const ELEMENT* const from = x + row * x_row + static_cast<int64_t>(group) * group_k;
    float sum = 0.0f;
    for (int k = thread_x() % WARP * 8; k < group_k; k += WARP * 8) {
        const words<16> eight = load_bounded<16>(from + k, group_k - k);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sum += to_float(ELEMENT{static_cast<uint16_t>(eight.w[i])});
            sum += to_float(ELEMENT{static_cast<uint16_t>(eight.w[i] >> 16)});
        }
    }
#pragma unroll
    for (int mask = WARP / 2; mask; mask /= 2) sum += shuffle_xor(sum, mask);
    if (thread_x() % WARP == 0) sums[static_cast<int64_t>(group) * rows + row] = sum;
}
