// rms_norm, or layer_norm where CENTERED, of long rows: clusters of blocks that stay walk the rows, hold each in
// registers, and keep their parts of the parameters in shared memory, so that these cross L2 once. Several
// clusters share a multiprocessor, and one's loads run beside another's arithmetic and stores.
#pragma once

#include "_common/moments.h"

#if CENTERED
typedef Moments Statistics;
constexpr int STATISTICS = 2;
#else
struct Statistics : Combined<Sum, 1> {
    DEVICE explicit Statistics(const Shares&) {}
};
constexpr int STATISTICS = 1;
#endif

// A parameter's part in shared memory: each lane reads what it wrote itself.
struct Kept {
    uint32_t mine;

    DEVICE Kept(char* memory, int which) {
        mine = shared_address(memory) + (which * CHUNKS * THREADS + thread_x()) * 16;
    }
    DEVICE void load(const W* parameter, int length) const {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const cell<W, VEC> value = load_cell<false>(at_lane(parameter) + c * CHUNK, chunk_column(c), length);
            store_shared(mine + c * THREADS * 16, value.part[0]);
        }
    }
    DEVICE cell<W, VEC> operator[](int c) const {
        cell<W, VEC> value;
        value.part[0] = load_shared(mine + c * THREADS * 16);
        return value;
    }
};

DEVICE void walk_norm(const T* x, const W* weight, const W* bias, T* y, int64_t rows, int length,
                      int64_t x_stride, int64_t y_stride, float eps, int blocks) {
    static_assert(TAIL == 0 && VEC * sizeof(T) == 16 && sizeof(T) == sizeof(W), "one access per vector");
    SHARED RowPartial<STATISTICS> partial[2];
    rows_start(partial[0], partial[1]);
    DYNAMIC_SHARED(memory);
    const Kept scales(memory, 0);
    const Kept shifts(memory, HAS_WEIGHT);
    if constexpr (HAS_WEIGHT) scales.load(weight, length);
    if constexpr (HAS_BIAS) shifts.load(bias, length);
    const Shares shares(length);
    rows_ready();
#pragma unroll 1
    for (int turn = 0; row_block() + static_cast<int64_t>(turn) * blocks < rows; ++turn) {
        const int64_t row = row_block() + static_cast<int64_t>(turn) * blocks;
        cell<T, VEC> held[CHUNKS];
        load_cells<true>(held, at_lane(x + row * x_stride), 0, length);
        Statistics found(shares);
        float sum = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                sum = CENTERED ? sum + held[c][i] : math_fma(held[c][i], held[c][i], sum);
            }
        }
        found.value[0] = reduce_warp<Sum, WARP>(sum);
        drop_unpacked(held, rows);
        float mean = 0.0f;
#if CENTERED
        found.value[0] *= shares.inverse_warp();
        float squares = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            if (chunk_column(c) >= length) continue;
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                const float centred = held[c][i] - found.value[0];
                squares = math_fma(centred, centred, squares);
            }
        }
        found.value[1] = reduce_warp<Sum, WARP>(squares);
        drop_unpacked(held, rows);
#endif
        RowPartial<STATISTICS>& shown = partial[turn & 1];
        if (warp_lane() == 0) {
#pragma unroll
            for (int k = 0; k < STATISTICS; ++k) shown.of_warp[warp_index()][k] = found.value[k];
        }
        merge_row(found, shown, turn >> 1 & 1);
        if constexpr (CENTERED) mean = found.value[0];
        const float r = math_rsqrt(math_fma(found.value[STATISTICS - 1], shares.row, eps));
        T* target = at_lane(y + row * y_stride);
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            cell<W, VEC> scale;
            cell<W, VEC> shift;
            if constexpr (HAS_WEIGHT) scale = scales[c];
            if constexpr (HAS_BIAS) shift = shifts[c];
            float value[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                value[i] = CENTERED ? (held[c][i] - mean) * r : held[c][i] * r;
                if constexpr (HAS_WEIGHT) value[i] *= scale[i];
                if constexpr (HAS_BIAS) value[i] += shift[i];
            }
            store_cell(target + c * CHUNK, chunk_column(c), length, value);
        }
    }
}
