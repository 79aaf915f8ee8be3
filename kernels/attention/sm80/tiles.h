// Tiles of a head's rows in shared memory, and products of two of them by a warp's matrix instructions.
//
// A tile's lines are 16 bytes longer than its rows, an odd number of 16-byte chunks, so that eight lines are in
// different banks.
#pragma once

#include "prelude.h"

#include "_lib/ptx/matrix.h"
#include "_lib/ptx/mma.h"
#include "_lib/ptx/shared_address.h"

constexpr int pitch_of(int width) { return width * 2 + 16; }

// --- sixteen bytes of a row: eight 16-bit elements, of which two share a word ---

template <class T> DEVICE T element_of(const uint32_t* words, int i) {
    return T{static_cast<uint16_t>(words[i / 2] >> i % 2 * 16)};
}

// From rows that are not aligned: the elements from `from` on, zeros beyond the first `there`.
template <class T> DEVICE words<16> gather(const T* from, int there) {
    words<16> chunk;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        const uint32_t low = 2 * w < there ? from[2 * w].bits : 0;
        const uint32_t high = 2 * w + 1 < there ? from[2 * w + 1].bits : 0;
        chunk.w[w] = low | high << 16;
    }
    return chunk;
}

// To such rows: the first `there` elements.
template <class T> DEVICE void scatter(T* to, const words<16>& chunk, int there) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (i < there) to[i] = element_of<T>(chunk.w, i);
}

template <class T> DEVICE float product_of(const words<16>& a, const words<16>& b) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = math_fma(to_float(element_of<T>(a.w, i)), to_float(element_of<T>(b.w, i)), sum);
    return sum;
}

// --- tiles ---

// A head's rows in memory: row i at base + i * row, for i < count.
template <class T> struct Rows {
    T* base;
    int64_t row;
    int count, width;
};

// Where a line goes that is not to stay where it is. Of 32 keys whose lines are spread, a thread's results of a row are
// those of the 8 from t * 8 on, t its place in its quad: 16 bytes.
DEVICE constexpr int spread(int line) { return (line & ~30) | (line >> 2 & 6) | (line << 2 & 24); }
static_assert(spread(8 * 3 + 2 * 1 + 1) == 8 * 1 + 2 * 3 + 1, "key 8 * t + 2 * j + e is column 2 * t + e of block j");

// LINES rows from `first` on, as lines of WIDTH elements; zeros where there is nothing. A thread has the same chunk of
// every AT_ONCE-th line. BYTES: 16 where rows are aligned to that, else 2.
template <int WIDTH, int LINES, int THREADS, int BYTES, bool SPREAD = false, class T>
DEVICE void copy_tile(char* to, const Rows<const T>& from, int first, int thread) {
    constexpr int CHUNKS = WIDTH / 8, AT_ONCE = THREADS / CHUNKS, PITCH = pitch_of(WIDTH);
    constexpr int UNROLL = BYTES == 16 ? 16 : 1;
    constexpr bool APART = (AT_ONCE & (AT_ONCE - 1)) == 0;  // a line's bits are those of i and of `own`
    const int own = thread / CHUNKS, column = thread % CHUNKS * 8;
    if (THREADS % CHUNKS != 0 && own >= AT_ONCE) return;
    const T* rows = from.base + (first + own) * from.row + column;
    char *const begin = to + column * 2, *const spread_own = begin + spread(own) * PITCH;
    char* place = to + own * PITCH + column * 2;
#pragma unroll UNROLL
    for (int i = 0; i < (LINES + AT_ONCE - 1) / AT_ONCE; ++i, place += AT_ONCE * PITCH, rows += AT_ONCE * from.row) {
        const int line = i * AT_ONCE + own;
        if (LINES % AT_ONCE != 0 && line >= LINES) return;
        const int there = first + line < from.count ? from.width - column : 0;
        const T* source = there > 0 ? rows : from.base;
        char* at = place;
        if (SPREAD) at = APART ? spread_own + spread(i * AT_ONCE) * PITCH : begin + spread(line) * PITCH;
        if constexpr (BYTES == 16) {
            copy_async(shared_address(at), source, there <= 0 ? 0 : there < 8 ? there * 2 : 16);
        } else {
            store_words(at, gather(source, there));
        }
    }
}

// LINES lines of a tile, by one warp, as rows from `first` on.
template <int WIDTH, int LINES, int BYTES, class T>
DEVICE void store_lines(const Rows<T>& to, const char* lines, int first) {
    constexpr int CHUNKS = WIDTH / 8;
#pragma unroll 1
    for (int index = thread_x() % 32; index < LINES * CHUNKS; index += 32) {
        const int line = index / CHUNKS, column = index % CHUNKS * 8;
        if (first + line >= to.count || column >= to.width) continue;
        const words<16> chunk = load_words<16>(lines + line * pitch_of(WIDTH) + column * 2);
        T* const at = to.base + (first + line) * to.row + column;
        if constexpr (BYTES == 16) store_words(at, chunk);
        else scatter(at, chunk, to.width - column);
    }
}

// Where a lane's row of an operand lies for ldmatrix, in a tile of lines of `pitch` bytes. First operand: rows 0-7 and
// 8-15, then both 8 columns on; also of a second one whose rows are summed over, read transposed. Second: rows 0-7,
// their columns 8 on, rows 8-15, theirs.
DEVICE uint32_t first_operand(uint32_t tile, int pitch, int lane) {
    return tile + lane % 16 * pitch + lane / 16 * 16;
}
DEVICE uint32_t second_operand(uint32_t tile, int pitch, int lane) {
    return tile + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 16;
}

// c = a @ b.T of PARTS * 16 rows of a and COUNT * 2 of b, all of WIDTH columns; the addresses are the lane's own.
template <class T, int WIDTH, int PARTS, int COUNT>
DEVICE void multiply_rows(float (&c)[PARTS][COUNT], uint32_t first, uint32_t second) {
#pragma unroll
    for (int g = 0; g < PARTS; ++g)
#pragma unroll
        for (int i = 0; i < COUNT; ++i) c[g][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < WIDTH / 16; ++step) {
        uint32_t a[PARTS][4];
#pragma unroll
        for (int g = 0; g < PARTS; ++g) ldmatrix_x4(a[g], first + g * 16 * pitch_of(WIDTH) + step * 32);
#pragma unroll
        for (int j = 0; j < COUNT / 8; ++j) {
            uint32_t b[4];
            ldmatrix_x4(b, second + j * 16 * pitch_of(WIDTH) + step * 32);
#pragma unroll
            for (int g = 0; g < PARTS; ++g) {
                Product<T>::add(c[g] + j * 8, a[g], b[0], b[1]);
                Product<T>::add(c[g] + j * 8 + 4, a[g], b[2], b[3]);
            }
        }
    }
}

// c += a @ b of PARTS * 16 rows of a, which are rounded, and COUNT * 2 of b, of WIDTH columns, read transposed.
template <class T, int WIDTH, int PARTS, int COUNT>
DEVICE void add_product(float (&c)[PARTS][WIDTH / 2], const float (&a)[PARTS][COUNT], uint32_t second) {
    uint32_t packed[PARTS][COUNT / 2];
#pragma unroll
    for (int g = 0; g < PARTS; ++g)
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) packed[g][i] = pack2<T>(a[g][i * 2], a[g][i * 2 + 1]);
#pragma unroll
    for (int step = 0; step < COUNT / 8; ++step)
#pragma unroll
        for (int j = 0; j < WIDTH / 16; ++j) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, second + step * 16 * pitch_of(WIDTH) + j * 32);
#pragma unroll
            for (int g = 0; g < PARTS; ++g) {
                Product<T>::add(c[g] + j * 8, packed[g] + step * 4, b[0], b[1]);
                Product<T>::add(c[g] + j * 8 + 4, packed[g] + step * 4, b[2], b[3]);
            }
        }
}
