// Scores that a query does not see, in the accumulator layout of mma.sync and wgmma: of a warp's 16 rows, thread t has
// row t / 4 and the eighth below it (r = 0, 1), and its score 4 * j + 2 * r + e is that of key 8 * j + t % 4 * 2 + e.
#pragma once

#include "prelude.h"

// Scores of keys from `key` on, for the thread's queries `row` and the eighth after it, of m queries and n keys: -inf
// where not seen. Left, Right: whether the window bounds that side.
template <bool Left, bool Right, int COUNT>
DEVICE void apply_mask(float* scores, int row, int key, int m, int n, int left, int right) {
    const int column = key + thread_x() % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int diagonal = row + r * 8 + n - m - column;
        const int last = Right ? min(n - 1 - column, diagonal + right) : n - 1 - column;
        const int first = diagonal - left;
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int at = j * 8 + e;
                if (at > last || (Left && at < first)) scores[j * 4 + r * 2 + e] = -INF_F;
            }
        }
    }
}

// The blocks of BLOCK keys, the last one excluded, that any of the `rows` queries from `row` on sees.
struct KeyBlocks {
    int first, last;
};
template <bool Left, bool Right, int BLOCK>
DEVICE KeyBlocks key_blocks_of(int row, int rows, int m, int n, int left, int right) {
    int begin = 0, end = row < m ? n : 0;
    if (Left) begin = max(row + n - m - left, 0);
    if (Right) end = min(min(row + rows, m) + n - m + right, end);
    const int first = begin / BLOCK;
    return {first, end > begin ? (end + BLOCK - 1) / BLOCK : first};
}
