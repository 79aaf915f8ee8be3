// out[n] = the sum over blocks b of partial[b, n], rounded once to W: the second half of a gradient's sum over
// rows. A thread block takes WIDTH columns; its GROUPS each add every GROUPS-th row, then one of them adds the
// groups, all in a fixed order.
//
// Defines: W, WIDTH, GROUPS. block_y picks the first or the second result.
#include "_lib/ptx/pdl.h"

KERNEL(WIDTH * GROUPS)
void column_sum(const float* partial, W* first, W* second, int blocks, int64_t length) {
    enter_pdl();
    SHARED float sums[GROUPS][WIDTH + 1];
    const int lane = thread_x() % WIDTH;
    const int group = thread_x() / WIDTH;
    const int64_t column = static_cast<int64_t>(block_x()) * WIDTH + lane;
    const float* source = partial + static_cast<int64_t>(block_y()) * blocks * length;
    W* target = block_y() == 0 ? first : second;

    float sum = 0.0f;
    if (column < length) {
#if defined(__AMDGCN__)
#pragma unroll 12    // fewer trips to memory (gfx950, 768 blocks of 4,096 columns: 6.4 us modelled with 4, 4.1 with 12; 2026-11-26)
#else
#pragma unroll 4
#endif
        for (int block = group; block < blocks; block += GROUPS) sum += source[block * length + column];
    }
    sums[group][lane] = sum;
    barrier();
    if (group == 0 && column < length) {
        float total = 0.0f;
#pragma unroll 8
        for (int i = 0; i < GROUPS; ++i) total += sums[i][lane];
        target[column] = from_float<W>(total);
    }
}
