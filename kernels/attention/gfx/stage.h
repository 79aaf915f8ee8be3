// How a block's threads bring tiles of rows from memory to LDS, for fragment.h: `load` into registers, and
// later `store` to LDS, as the rows lie or transposed. Elements that do not exist become zeros.
#pragma once

#include "fragment.h"

// Rows of a head in memory: row i starts at data + i * step, has `width` elements, and exists below `end`.
template <class Type> struct HeadRows {
    const Type* data;
    int64_t step;
    int end, width;
};

// LINES rows of WIDTH elements; LdsTile<WIDTH> has a line per row.
template <class Type, int WIDTH, int LINES, int THREADS> struct RowStage {
    static constexpr int CHUNKS = WIDTH / RUN;
    static constexpr int TOTAL = LINES * CHUNKS;
    static constexpr int COUNT = (TOTAL + THREADS - 1) / THREADS;

    words<16> held[COUNT];

    static DEVICE int id(int i) { return thread_x() + i * THREADS; }
    static DEVICE bool exists(int i) { return TOTAL % THREADS == 0 || id(i) < TOTAL; }

    // Rows `first`.. of which at least one exists.
    template <bool WHOLE> DEVICE void load(const HeadRows<Type>& from, int first) {
        const bool inside = first + LINES <= from.end;
        for (int i = 0; i < COUNT; ++i) {
            if (!exists(i)) {
                continue;
            }
            const int row = first + id(i) / CHUNKS, column = id(i) % CHUNKS * RUN;
            const Type* const at = from.data + min(row, from.end - 1) * from.step + column;
            held[i] = WHOLE ? load_unaligned<16>(at) : load_bounded<16>(at, from.width - column);
            if (!inside && row >= from.end) {
                held[i] = {};
            }
        }
    }

    DEVICE void store(char* tile) const {
        for (int i = 0; i < COUNT; ++i) {
            if (exists(i)) {
                store_words<16>(tile + LdsTile<WIDTH>::offset(id(i) / CHUNKS, id(i) % CHUNKS), held[i]);
            }
        }
    }
};

// The same, transposed: LdsTile<LINES> has a line per column. A thread moves RUN rows of SIDE columns.
template <class Type, int WIDTH, int LINES, int THREADS> struct ColumnStage {
    static constexpr int SIDE = WIDTH * LINES >= THREADS * 4 * RUN ? 4 : 2;
    static constexpr int ACROSS = WIDTH / SIDE;
    static constexpr int TOTAL = ACROSS * LINES / RUN;
    static constexpr int COUNT = (TOTAL + THREADS - 1) / THREADS;

    words<SIDE * 2> held[COUNT][RUN];

    static DEVICE int id(int i) { return thread_x() + i * THREADS; }
    static DEVICE bool exists(int i) { return TOTAL % THREADS == 0 || id(i) < TOTAL; }

    template <bool WHOLE> DEVICE void load(const HeadRows<Type>& from, int first) {
        const bool inside = first + LINES <= from.end;
        for (int i = 0; i < COUNT; ++i) {
            if (!exists(i)) {
                continue;
            }
            const int row = first + id(i) / ACROSS * RUN, column = id(i) % ACROSS * SIDE;
            for (int r = 0; r < RUN; ++r) {
                const Type* const at = from.data + min(row + r, from.end - 1) * from.step + column;
                held[i][r] = WHOLE ? load_unaligned<SIDE * 2>(at)
                                   : load_bounded<SIDE * 2>(at, from.width - column);
            }
            if (!inside) {
                for (int r = 0; r < RUN; ++r) {
                    if (row + r >= from.end) {
                        held[i][r] = {};
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
            const int chunk = id(i) / ACROSS, column = id(i) % ACROSS * SIDE;
            for (int c = 0; c < SIDE; ++c) {
                words<16> line;
                for (int r = 0; r < RUN / 2; ++r) {
                    line.w[r] = pair(held[i][2 * r].w[c / 2], held[i][2 * r + 1].w[c / 2], c % 2);
                }
                store_words<16>(tile + LdsTile<LINES>::offset(column + c, chunk), line);
            }
        }
    }

    // The lower (0) or upper (1) halves of two words.
    static DEVICE uint32_t pair(uint32_t low, uint32_t high, int half) {
        return half == 0 ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u);
    }
};
