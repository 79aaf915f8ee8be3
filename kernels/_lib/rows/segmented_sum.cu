// Sums of rows by segments, in float32, rounded once: the tokens of segment r, whose rows of `source` are added, are
// order[starts[r]] .. order[ends[r] - 1].
//
// A segment of up to PART_TOKENS tokens is added one after the other by the lanes that hold its row of the result. A longer one
// is cut into parts of PART_TOKENS tokens, from its own start on, so that the order of its additions follows from its length
// alone; segment_parts adds the parts, and segment_sums their sums, one after the other. No host knows where long
// segments are, so that segment_parts looks at every PART_TOKENS tokens of the sorted ones (a window): at most two parts of long
// segments begin there, one of a segment that began before, and the first one of the segment that leaves the window.
//
// Defines: those of rows.h, TAIL = 0; PASS; PART_TOKENS; AHEAD, rows of `source` in flight; INDEX, the bits of an index; INPUT = 1
// where `input` and alpha * the sum are added.
#include "_lib/rows/elementwise.h"

#define PARTS 1
#define SUMS 2

#if INDEX == 32
typedef int32_t Index;
#else
typedef int64_t Index;
#endif

struct Columns {
    float value[CHUNKS][VEC];

    // -0 leaves every first term as it is.
    DEVICE Columns() {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) value[c][i] = -0.0f;
        }
    }
    template <class Type> DEVICE void add(const Vector<Type, VEC> (&held)[CHUNKS]) {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) value[c][i] += held[c][i];
        }
    }
    DEVICE void add_tokens(const T* source, int64_t stride, const int64_t* order, int64_t from, int64_t to,
                           const RowSlice& slice) {
        for (int64_t token = from; token < to; token += AHEAD) {
            Vector<T, VEC> held[AHEAD][CHUNKS];
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) {
                if (token + a >= to) continue;
                load_vectors<true>(held[a], lane_ptr(source + order[token + a] * stride), slice.base, slice.length);
            }
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) {
                if (token + a < to) add(held[a]);
            }
        }
    }
};

// A part's sums: CHUNKS * VEC floats of each lane, of all lanes of all blocks of its row, in any order that both kernels have.
DEVICE float* part_of(float* parts, int64_t part, const RowSlice& slice, int across) {
    return parts + part * across * TILE + slice.base + row_lane() * VEC;
}

#if PASS == PARTS
KERNEL(THREADS)
void segment_parts(const T* source, const Index* index, const int64_t* order, const int64_t* starts, const int64_t* ends,
                   float* parts, int64_t tokens, int64_t count, int64_t length, int64_t source_stride, int across,
                   int64_t left_out) {
    enter_pdl();
    const RowSlice slice = row_slice((tokens + PART_TOKENS - 1) / PART_TOKENS * 2, length, across);
    if (slice.length == 0) return;
    const int64_t window = slice.row / 2 * PART_TOKENS;
    const bool first = slice.row % 2;
    const int64_t at = first ? window + PART_TOKENS - 1 : window;
    if (at >= tokens) return;
    const int64_t segment = index[order[at]];
    if (segment < 0 || segment >= count || segment == left_out) return;
    const int64_t start = starts[segment];
    const int64_t end = ends[segment];
    if (end - start <= PART_TOKENS || first != (start >= window)) return;
    const int64_t from = first ? start : start + (window - start + PART_TOKENS - 1) / PART_TOKENS * PART_TOKENS;
    if (from >= end) return;

    Columns sum;
    sum.add_tokens(source, source_stride, order, from, from + PART_TOKENS < end ? from + PART_TOKENS : end, slice);
    float* target = part_of(parts, slice.row, slice, across);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        Vector<float, VEC> whole;
        whole.round(sum.value[c]);
        whole.store(target + c * CHUNK);
    }
}
#endif

#if PASS == SUMS
KERNEL(THREADS)
void segment_sums(const T* source, const int64_t* order, const int64_t* starts, const int64_t* ends, float* parts,
                  const T* input, T* y, int64_t count, int64_t length, int64_t source_stride, int64_t input_stride,
                  int64_t y_stride, int across, int64_t left_out, float alpha) {
    enter_pdl();
    const RowSlice slice = row_slice(count, length, across);
    if (slice.length == 0) return;
    const int64_t start = starts[slice.row];
    const int64_t end = slice.row == left_out ? start : ends[slice.row];
    Vector<T, VEC> held[CHUNKS];
    if constexpr (INPUT) {
        load_vectors<true>(held, lane_ptr(input + slice.row * input_stride), slice.base, slice.length);
    }
    Columns sum;
    if (end - start <= PART_TOKENS) {
        sum.add_tokens(source, source_stride, order, start, end, slice);
    } else {
#pragma unroll 4
        for (int64_t from = start; from < end; from += PART_TOKENS) {
            const float* part = part_of(parts, from / PART_TOKENS * 2 + (from == start), slice, across);
            Vector<float, VEC> held_part[CHUNKS];
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) held_part[c].load(part + c * CHUNK);
            sum.add(held_part);
        }
    }
    const bool none = start >= end;
    store_values(y + slice.row * y_stride, slice, [&](int c, int i) {
        if constexpr (INPUT) {
            return none ? held[c][i] : math_fma(alpha, sum.value[c][i], held[c][i]);
        } else {
            return none ? 0.0f : sum.value[c][i];
        }
    });
}
#endif
