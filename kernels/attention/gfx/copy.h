// How a block's threads copy tiles of rows from global memory to LDS: `load` into registers, and later `store` to LDS,
// as the rows lie or transposed. Elements that do not exist become zeros.
#pragma once

#include "fragment.h"

// Rows of a head in memory: row i starts at data + i * stride, has `width` elements, and exists below `end`.
template <class Type> struct HeadRows {
    const Type* data;
    int64_t stride;
    int end, width;
};

// The lower (0) or upper (1) halves of two words.
DEVICE uint32_t pair_halves(uint32_t low, uint32_t high, int half) {
    return half == 0 ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u);
}

// ROWS rows of WIDTH elements to an LdsTile<WIDTH>.
template <class Type, int WIDTH, int ROWS, int THREADS> struct TileCopy {
    static constexpr int CHUNKS = WIDTH / ELEMENTS_PER_LANE;
    static constexpr int TOTAL = ROWS * CHUNKS;
    static constexpr int COUNT = (TOTAL + THREADS - 1) / THREADS;

    words<16> registers[COUNT];

    static DEVICE int id(int i) { return thread_x() + i * THREADS; }
    static DEVICE bool exists(int i) { return TOTAL % THREADS == 0 || id(i) < TOTAL; }

    // The rows from `first` on, of which at least one exists. EVEN: their width is WIDTH.
    template <bool EVEN> DEVICE void load(const HeadRows<Type>& from, int first) {
        const bool inside = first + ROWS <= from.end;
        for (int i = 0; i < COUNT; ++i) {
            if (!exists(i)) {
                continue;
            }
            const int row = first + id(i) / CHUNKS, column = id(i) % CHUNKS * ELEMENTS_PER_LANE;
            const Type* const address = from.data + min(row, from.end - 1) * from.stride + column;
            registers[i] = EVEN ? load_unaligned<16>(address) : load_bounded<16>(address, from.width - column);
            if (!inside && row >= from.end) {
                registers[i] = {};
            }
        }
    }

    DEVICE void store(char* tile) const {
        for (int i = 0; i < COUNT; ++i) {
            if (exists(i)) {
                store_words<16>(tile + LdsTile<WIDTH>::offset(id(i) / CHUNKS, id(i) % CHUNKS), registers[i]);
            }
        }
    }
};

// ROWS rows of WIDTH elements, transposed, to an LdsTile<ROWS>. A thread moves ELEMENTS_PER_LANE rows of COLUMNS
// columns.
template <class Type, int WIDTH, int ROWS, int THREADS> struct TransposedTileCopy {
    static constexpr int COLUMNS = WIDTH * ROWS >= THREADS * 4 * ELEMENTS_PER_LANE ? 4 : 2;
    static constexpr int THREADS_PER_ROW = WIDTH / COLUMNS;
    static constexpr int TOTAL = THREADS_PER_ROW * ROWS / ELEMENTS_PER_LANE;
    static constexpr int COUNT = (TOTAL + THREADS - 1) / THREADS;

    words<COLUMNS * 2> registers[COUNT][ELEMENTS_PER_LANE];

    static DEVICE int id(int i) { return thread_x() + i * THREADS; }
    static DEVICE bool exists(int i) { return TOTAL % THREADS == 0 || id(i) < TOTAL; }

    template <bool EVEN> DEVICE void load(const HeadRows<Type>& from, int first) {
        const bool inside = first + ROWS <= from.end;
        for (int i = 0; i < COUNT; ++i) {
            if (!exists(i)) {
                continue;
            }
            const int row = first + id(i) / THREADS_PER_ROW * ELEMENTS_PER_LANE;
            const int column = id(i) % THREADS_PER_ROW * COLUMNS;
            for (int r = 0; r < ELEMENTS_PER_LANE; ++r) {
                const Type* const address = from.data + min(row + r, from.end - 1) * from.stride + column;
                registers[i][r] = EVEN ? load_unaligned<COLUMNS * 2>(address)
                                       : load_bounded<COLUMNS * 2>(address, from.width - column);
            }
            if (!inside) {
                for (int r = 0; r < ELEMENTS_PER_LANE; ++r) {
                    if (row + r >= from.end) {
                        registers[i][r] = {};
                    }
                }
            }
        }
    }

    DEVICE void store(char* tile) const {
        for (int i = 0; i < COUNT; ++i) {
            if (!exists(i)) {
                continue;
            }
            const int chunk = id(i) / THREADS_PER_ROW, column = id(i) % THREADS_PER_ROW * COLUMNS;
            for (int c = 0; c < COLUMNS; ++c) {
                words<16> transposed;
                for (int r = 0; r < ELEMENTS_PER_LANE / 2; ++r) {
                    transposed.w[r] =
                        pair_halves(registers[i][2 * r].w[c / 2], registers[i][2 * r + 1].w[c / 2], c % 2);
                }
                store_words<16>(tile + LdsTile<ROWS>::offset(column + c, chunk), transposed);
            }
        }
    }
};
