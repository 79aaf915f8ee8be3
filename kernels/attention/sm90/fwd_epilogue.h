// How fwd.cu's sums leave the registers.
#pragma once

#include "prelude.h"

#include "online_softmax.h"
#include "fwd_tiles.h"

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

template <class T> struct Outputs {
    T* o;
    float* lse;
    int64_t o_batch, o_head, o_row, lse_batch, lse_head, lse_row;
    const float* sinks;
};

// A head's outputs, and its sink as a power of two.
template <class T> struct Place {
    T* o;
    float* lse;
    float sink;
};
template <class T> DEVICE Place<T> place_of(const Tile& tile, const Outputs<T>& to, const Sizes& s) {
#if RAGGED
    const int64_t o = tile.head * to.o_head + tile.first_query * to.o_row;
    const int64_t lse = tile.head * to.lse_head + tile.first_query * to.lse_row;
    const float sink = SINKS && tile.keys >= 0 ? to.sinks[tile.head] * LOG2_E : -INF_F;
    return {to.o + o, to.lse + lse, sink};
#else
    const uint32_t batch = tile.head / s.heads, head = tile.head % s.heads;
    const float sink = SINKS ? to.sinks[head] * LOG2_E : -INF_F;
    return {to.o + batch * to.o_batch + head * to.o_head, to.lse + batch * to.lse_batch + head * to.lse_head, sink};
#endif
}

// Divides, rounds and stores the thread's two rows: 64 consecutive bytes of a row at a time by a quad.
template <class T>
DEVICE void store(const float* sums, const float* top, const float* sum, const Tile& tile, int row,
                  const Outputs<T>& to, const Sizes& s) {
    const Place<T> place = place_of(tile, to, s);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int at = row + r * 8;
        const Result result = result_of(top[r], sum[r], place.sink, s.scale);
        if (thread_x() % 4 == 0 && at < m_of(tile, s)) place.lse[at * to.lse_row] = result.lse;
        T* o = place.o + at * to.o_row;
#pragma unroll
        for (int j = 0; j < HEAD_E / 8; j += 4) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                w[i] = pack2<T>(sums[(j + i) * 4 + r * 2] * result.share,
                                sums[(j + i) * 4 + r * 2 + 1] * result.share);
            transpose_quad(w);
            const int column = (j + thread_x() % 4) * 8;
            if (at < m_of(tile, s) && column < s.e) store_words(o + column, words<16>{{w[0], w[1], w[2], w[3]}});
        }
    }
}

// The same for a tile whose queries see no key.
template <class T>
DEVICE void store_nothing(const Tile& tile, int row, const Outputs<T>& to, const Sizes& s) {
    const Place<T> place = place_of(tile, to, s);
    for (int r = 0; r < 2; ++r) {
        const int at = row + r * 8;
        if (thread_x() % 4 == 0 && at < m_of(tile, s)) place.lse[at * to.lse_row] = place.sink * LN_2;
        T* o = place.o + at * to.o_row;
#pragma unroll
        for (int j = 0; j < HEAD_E / 8; j += 4) {
            const int column = (j + thread_x() % 4) * 8;
            if (at < m_of(tile, s) && column < s.e) store_words(o + column, words<16>{});
        }
    }
}
