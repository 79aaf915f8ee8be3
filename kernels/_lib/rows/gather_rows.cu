// y[i] = rows[index[i]], copied as words; with SCALE times a number, in float32. A row whose index is outside is OUTSIDE.
//
// Defines: those of rows.h; INDEX, the bits of an index; SCALE = 1 where there is a factor; OUTSIDE, a float.
#include "_lib/rows/elementwise.h"

#if INDEX == 32
typedef int32_t Index;
#else
typedef int64_t Index;
#endif

KERNEL(THREADS)
void gather_rows(const Index* index, const T* rows, T* y, int64_t count, int64_t tokens, int64_t length,
                 int64_t rows_stride, int64_t y_stride, int across, float scale) {
    enter_pdl();
    const RowSlice slice = row_slice(tokens, length, across);
    if (slice.length == 0) return;
    const int64_t own = index[slice.row];
    const bool inside = own >= 0 && own < count;
    Vector<T, VEC> held[CHUNKS];
    load_vectors<true>(held, lane_ptr(rows + (inside ? own : 0) * rows_stride), slice.base,
                       inside ? slice.length : 0);
    T* target = lane_ptr(y + slice.row * y_stride) + slice.base;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        if (slice.base + chunk_column(c) >= slice.length) continue;
        if (!inside) {
            held[c].fill(from_float<T>(OUTSIDE));
        } else if constexpr (SCALE) {
            float value[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) value[i] = held[c][i] * scale;
            held[c].round(value);
        }
        held[c].store(target + c * CHUNK);
    }
}
