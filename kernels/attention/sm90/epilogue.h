// How o and lse leave registers, in the accumulator layout of mask.h: a thread has two rows.
#pragma once

#include "prelude.h"

#include "attention/device/params.h"
#include "attention/device/softmax.h"

// Word i of the quad's thread t goes to thread i as word t.
DEVICE void transpose_quad(uint32_t* w) {
    const int t = thread_x() % 4;
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            const int low = bit == 1 ? pair * 2 : pair, high = low + bit;
            const bool upper = t & bit;
            const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? w[low] : w[high], bit);
            if (upper) w[low] = got;
            else w[high] = got;
        }
    }
}

// A head's o and lse from the tile's first sequence's token on, and its sink as a power of two.
template <class T> struct HeadOutput {
    T* o;
    float* lse;
    float sink;
};

// Divides, multiplies by `factor`, rounds and stores the thread's two rows, `row` and the eighth after it of m: 64
// consecutive bytes of a row at a time by a quad.
template <int HEAD_DIM, bool Sinks, class T, class Softmax>
DEVICE void store_o(const float* acc_o, const Softmax& softmax, const HeadOutput<T>& to, int row, int m,
                    const AttentionParams& p, float scale, float factor = 1.0f) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int at = row + r * 8;
        const RowResult result = softmax.template finalize<Sinks>(r, to.sink, scale);
        const float share = result.inv_sum * factor;
        if (thread_x() % 4 == 0 && at < m) to.lse[at * p.lse_row] = result.lse;
        T* o = to.o + at * p.o_row;
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 8; j += 4) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                w[i] = pack2<T>(acc_o[(j + i) * 4 + r * 2] * share, acc_o[(j + i) * 4 + r * 2 + 1] * share);
            transpose_quad(w);
            const int column = (j + thread_x() % 4) * 8;
            if (at < m && column < p.head_dim_v) store_words(o + column, words<16>{{w[0], w[1], w[2], w[3]}});
        }
    }
}

// The same for queries that see no key.
template <int HEAD_DIM, class T>
DEVICE void store_no_keys(const HeadOutput<T>& to, int row, int m, const AttentionParams& p) {
    for (int r = 0; r < 2; ++r) {
        const int at = row + r * 8;
        if (thread_x() % 4 == 0 && at < m) to.lse[at * p.lse_row] = to.sink * LN_2;
        T* o = to.o + at * p.o_row;
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 8; j += 4) {
            const int column = (j + thread_x() % 4) * 8;
            if (at < m && column < p.head_dim_v) store_words(o + column, words<16>{});
        }
    }
}
