// Which keys a query sees. For CUDA and HIP, but for `apply_mask`, which has the accumulator layout of mma.sync and
// wgmma: of a warp's 16 rows, thread t has row t / 4 and the eighth below it (r = 0, 1), and its score
// 4 * j + 2 * r + e is that of key 8 * j + t % 4 * 2 + e.
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

// Of a gradient: query i sees key j where low <= j - i <= high. The streamed rows, which exist below `end`, that an own
// row sees or that see it; bounds are tested for OWN own rows and ROWS streamed rows at a time.
template <bool OwnsKeys, int OWN> struct MaskBounds {
    int low, high, end;

    DEVICE int first(int own) const { return OwnsKeys ? own - high : own + low; }
    DEVICE int last(int own) const { return min(OwnsKeys ? own - low : own + high, end - 1); }

    // Whether all scores of the streamed rows from `row` on and the own rows from `own` on are hidden, or none is.
    template <int ROWS> DEVICE bool all_hidden(int row, int own) const {
        return row + ROWS <= first(own) || row > last(own + OWN - 1);
    }
    template <int ROWS> DEVICE bool all_seen(int row, int own) const {
        return row >= first(own + OWN - 1) && row + ROWS - 1 <= last(own);
    }
};
