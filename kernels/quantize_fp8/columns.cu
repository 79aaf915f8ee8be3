// q and a scale of each column of x, as rows: x's transpose in codes. Two launches: the greatest magnitudes of the columns of
// slabs of rows, then the codes. A block has GROUP columns of a slab, 128 bytes of each row; LANES = GROUP_LANES side by side.
#include "quantize.h"

#define AMAX 1
#define CODES 2

static_assert(LANES == GROUP_LANES && LANES == 8, "a row of the strip is 8 vectors of 16 bytes");
constexpr int WORDS = VEC * static_cast<int>(sizeof(T)) / 4;    // of a lane's vector

// The block's columns and rows; `down` slabs are of `height` rows, which are a matrix.
struct Slab {
    int64_t first;      // column
    int64_t line;       // matrix * down + slab
    int64_t matrix;
    int64_t top, end;   // rows in the matrix
};
DEVICE Slab slab_of(unsigned block, int down, int across, int slab, int64_t height) {
    const unsigned line = block / static_cast<unsigned>(across);
    const unsigned matrix = line / static_cast<unsigned>(down);
    const int64_t top = static_cast<int64_t>(line - matrix * down) * slab;
    return {static_cast<int64_t>(block - line * across) * GROUP, line, matrix, top,
            top + slab < height ? top + slab : height};
}

// The column, from the strip's first, of the lane's i-th element.
DEVICE int own_column(int i) { return STRIDED ? group_lane() + i * GROUP_LANES : group_lane() * VEC + i; }

#if PASS == AMAX
KERNEL(THREADS)
void column_amax(const T* x, float* amax, int64_t height, int64_t length, int64_t x_stride, int down, int across, int slab) {
    enter_pdl();
    SHARED uint32_t of_slot[ROWS][LANES * WORDS];
    const Slab own = slab_of(static_cast<unsigned>(block_x()), down, across, slab, height);
    const T* source = x + own.matrix * height * x_stride;
    uint32_t most[WORDS] = {};
    for (int64_t row = own.top + row_slot(); row < own.end; row += CHUNKS * ROWS) {
        Vector<T, VEC> held[CHUNKS];
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const int64_t end = row + c * ROWS < own.end ? length : 0;
            held[c] = load_part<false>(source + (row + c * ROWS) * x_stride, own.first, end);
        }
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < WORDS; ++i) most[i] = Greatest::of(most[i], held[c].word(i) & MAGNITUDE);
        }
    }
#pragma unroll
    for (int i = 0; i < WORDS; ++i) of_slot[row_slot()][group_lane() * WORDS + i] = most[i];
    barrier();
    const int word = thread_x();
    if (word >= LANES * WORDS) return;
    uint32_t all = 0;
    for (int slot = 0; slot < ROWS; ++slot) all = Greatest::of(all, of_slot[slot][word]);
    constexpr int PER_WORD = VEC / WORDS;
#pragma unroll
    for (int i = 0; i < PER_WORD; ++i) {
        const int element = word % WORDS * PER_WORD + i;
        const int64_t column = own.first + (STRIDED ? word / WORDS + element * GROUP_LANES : word / WORDS * VEC + element);
        const uint32_t bits = NARROW ? all >> (16 * i) & 0xffffu : all;
        if (column < length) amax[own.line * length + column] = amax_of<T>(bits);
    }
}
#endif

#if PASS == CODES
// A tile of TALL rows at a time goes through shared memory: a column's codes there are 8 pieces of 16 bytes, whose order a lane's
// columns change, so that neither side has bank conflicts. ROW_CODES = 16: rows of q are stored in such pieces; 1: in bytes.
constexpr int QUAD = 4;    // rows of a lane: a word of codes in each column
constexpr int TALL = ROWS * QUAD;
constexpr int PIECES = TALL / 16;
static_assert(TALL == 128, "8 pieces");
DEVICE int piece_place(int column, int piece) { return piece ^ ((STRIDED ? column : column / VEC) & (PIECES - 1)); }

// The lane's part of QUAD rows of a tile; zeros beyond the slab.
DEVICE void load_tile(Vector<T, VEC> (&held)[QUAD], const T* source, int64_t x_stride, const Slab& own, int64_t top,
                      int64_t length) {
#pragma unroll
    for (int r = 0; r < QUAD; ++r) {
        const int64_t row = top + row_slot() * QUAD + r;
        held[r] = load_part(source + row * x_stride, own.first, row < own.end ? length : 0);
    }
}

KERNEL(THREADS)
void quantize_columns(const T* x, uint8_t* q, float* scale, const float* amax, int64_t height, int64_t length,
                      int64_t x_stride, int down, int across, int slab, int blocks, float eps) {
    enter_pdl();
    SHARED words<16> codes[2][GROUP][PIECES];
    SHARED float inverse_of[GROUP];
    // Backwards: what the first launch read last may still be in the L2 cache.
    const Slab own = slab_of(static_cast<unsigned>(blocks - 1 - block_x()), down, across, slab, height);
    for (int column = thread_x(); column < GROUP; column += THREADS) {
        const int64_t at = own.first + column;
        if (at < length) {
            const uint32_t* parts = reinterpret_cast<const uint32_t*>(amax) + own.matrix * down * length + at;
            uint32_t most = 0;
            for (int i = 0; i < down; ++i) {
                const uint32_t part = parts[i * length];
                most = part > most ? part : most;
            }
            const float whole = scale_of(float_of(most), eps);
            inverse_of[column] = div_rn(1.0f, whole);
            if (own.top == 0) scale[own.matrix * length + at] = whole;
        } else {
            inverse_of[column] = 0.0f;
        }
    }
    barrier();
    float inverse[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) inverse[i] = inverse_of[own_column(i)];
    const T* source = x + own.matrix * height * x_stride;
    uint8_t* target = q + (own.matrix * length + own.first) * height;
    Vector<T, VEC> held[QUAD];
    load_tile(held, source, x_stride, own, own.top, length);
    for (int64_t top = own.top, tile = 0; top < own.end; top += TALL, ++tile) {
        auto& found = codes[tile & 1];    // the readers of its last codes have passed a barrier since
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const int column = own_column(i);
            found[column][piece_place(column, row_slot() / 4)].w[row_slot() % 4] =
                encode4<Format>(held[0][i] * inverse[i], held[1][i] * inverse[i], held[2][i] * inverse[i],
                                held[3][i] * inverse[i]);
        }
        load_tile(held, source, x_stride, own, top + TALL, length);    // on its way while the codes are stored
        barrier();
#if ROW_CODES == 16
        for (int at = thread_x(); at < GROUP * PIECES; at += THREADS) {
            const int column = at / PIECES;
            const int64_t row = top + at % PIECES * 16;
            if (own.first + column < length && row < own.end) {
                store_global(target + column * height + row, found[column][piece_place(column, at % PIECES)]);
            }
        }
#else
        for (int at = thread_x(); at < GROUP * TALL; at += THREADS) {
            const int column = at / TALL;
            const int64_t row = top + at % TALL;
            if (own.first + column < length && row < own.end) {
                const int piece = piece_place(column, at % TALL / 16);
                target[column * height + row] = reinterpret_cast<const uint8_t*>(&found[column][piece])[at % 16];
            }
        }
#endif
    }
}
#endif
