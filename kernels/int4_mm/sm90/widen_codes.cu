// numbers[n, k] = code - zero point of a weight in codes of 4 bits, exact in 16 bits, and scales[g, n], as float32, with the rows
// of a group side by side, `pitch` apart from group to group: what widened.cu multiplies. K and groups are multiples of 128. A
// warp takes STEPS times 256 k of a row.
//
// Defines: ELEMENT (bf16, f16: of the numbers); SCALE (of scales: bf16, f16, f32); HAS_ZERO_POINT (else it is ZERO_POINT),
// ROWS (of a block), STEPS.
#include "_lib/ptx/pdl.h"
#include "int4_mm/sm90/numbers.h"

using T = ELEMENT;
using S = SCALE;

constexpr int WIDTH = STEPS * 256;  // k of a block
static_assert(ROWS == 8, "the scales of a group that a block writes are a sector");

KERNEL(ROWS * 32)
void widen_codes(const uint8_t* weight, const S* scale, const uint8_t* zero_point, T* numbers, float* scales, int n, int k,
                 int group, int pitch, int scale_row, int scale_col, int zero_row, int zero_col) {
    enter_pdl();
    const int first_row = block_x() * ROWS, first_k = block_y() * WIDTH;
    const int row = first_row + thread_x() / 32, lane = thread_x() % 32;
    if (row < n) {
        const uint8_t* const line = weight + static_cast<int64_t>(row) * (k / 2);
        T* const to = numbers + static_cast<int64_t>(row) * k;
        uint32_t codes[STEPS], zeros[STEPS];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int at = first_k + step * 256 + lane * 8;
            if (at >= k) continue;
            codes[step] = load_words_once<4>(line + at / 2).w[0];
            zeros[step] = zero_pair<T>(HAS_ZERO_POINT ? zero_point[row * zero_row + at / group * zero_col] : ZERO_POINT);
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int at = first_k + step * 256 + lane * 8;
            if (at >= k) continue;
            words<16> eight;
#pragma unroll
            for (int i = 0; i < 4; ++i) eight.w[i] = numbers_of<T>(codes[step], byte_selector(i), zeros[step]);
            store_words(to + at, eight);
        }
    }
    // A group's scale is written where the group begins.
    const int of_row = first_row + thread_x() % ROWS;
    for (int g = (first_k + group - 1) / group + thread_x() / ROWS; g * group < min(first_k + WIDTH, k); g += 32)
        if (of_row < n) scales[static_cast<int64_t>(g) * pitch + of_row] = to_float(scale[of_row * scale_row + g * scale_col]);
}
