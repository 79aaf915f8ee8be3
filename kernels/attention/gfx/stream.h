// Tiles of rows that follow each other, from global memory to LDS, on gfx9: buffer descriptors, so that a thread's
// offsets stay what they are, a step moves the descriptor by scalar instructions, and what does not exist reads as
// zero.
//
// Loads may be made past the last tile: they read nothing.
#pragma once

#include "tiles.h"

#if defined(__GFX9__)
DEVICE int scalar(int value) { return __builtin_amdgcn_readfirstlane(value); }
DEVICE int64_t scalar(int64_t value) {
    const uint32_t low = static_cast<uint32_t>(scalar(static_cast<int>(value)));
    return static_cast<int64_t>(scalar(static_cast<int>(value >> 32))) << 32 | low;
}

// The rows from `first` to before `end` of a head; they do not overlap, and those of a tile lie less than 2^31 bytes apart.
class RowBuffer {
    char* data;
    int64_t left;  // from data to the end of the last row
    int row_bytes;

  public:
    template <class Type> DEVICE void start(const HeadRows<Type>& rows, int first, int end) {
        constexpr int BYTES = sizeof(Type);
        row_bytes = scalar(static_cast<int>(rows.stride) * BYTES);
        data = reinterpret_cast<char*>(scalar(reinterpret_cast<int64_t>(rows.data + first * rows.stride)));
        left = scalar((end - first - 1) * rows.stride * BYTES + rows.width * BYTES);
    }
    DEVICE int bytes_of_row() const { return row_bytes; }
    DEVICE void advance(int rows) {
        data += rows * row_bytes;
        left -= rows * row_bytes;
    }
    DEVICE __amdgpu_buffer_rsrc_t descriptor() const {
        constexpr int MOST = 0x7fffffff;
        const int above = static_cast<int>(left >> 31);  // comparisons of 64 bits would be vector instructions
        const int bytes = above < 0 ? 0 : above > 0 ? MOST : static_cast<int>(left);
        return __builtin_amdgcn_make_buffer_rsrc(data, 0, bytes, 0x00027000);
    }
};

// A thread's offset of a column of a row in a tile: where no such column exists, one that no buffer has.
template <class Type> DEVICE int offset_in_tile(const HeadRows<Type>& rows, int row, int column) {
    constexpr int BYTES = sizeof(Type);
    const int element = column * ElementTraits<Type>::NUMBERS;
    return element < rows.width ? (row * static_cast<int>(rows.stride) + element) * BYTES : -1;
}

// To 16, 8 or 4 bytes.
DEVICE void load_words_of(__amdgpu_buffer_rsrc_t from, int offset, words<16>& to) {
    to = __builtin_bit_cast(words<16>, __builtin_amdgcn_raw_buffer_load_b128(from, offset, 0, 0));
}
DEVICE void load_words_of(__amdgpu_buffer_rsrc_t from, int offset, words<8>& to) {
    to = __builtin_bit_cast(words<8>, __builtin_amdgcn_raw_buffer_load_b64(from, offset, 0, 0));
}
DEVICE void load_words_of(__amdgpu_buffer_rsrc_t from, int offset, words<4>& to) {
    to = {{__builtin_amdgcn_raw_buffer_load_b32(from, offset, 0, 0)}};
}

// An address in LDS that the compiler keeps, and does not make anew from its parts in every step.
class LdsAddress {
    typedef char __attribute__((address_space(3)))* pointer;
    pointer address;

  public:
    DEVICE void set(char* to) {
        address = (pointer)to;
        asm("" : "+v"(address));
    }
    template <int BYTES> DEVICE void store(words<BYTES> value, int behind = 0) const {
        typedef typename machine_words<BYTES>::type type;
        *(type __attribute__((address_space(3)))*)(address + behind) = __builtin_bit_cast(type, value);
    }
};

// As TileCopy. Chunks end with the heads' rows.
template <class Type, int WIDTH, int ROWS, int THREADS, class Tile = LdsTile<WIDTH>> class TileStream {
    using Copy = TileCopy<Type, WIDTH, ROWS, THREADS, Tile>;
    using Own = typename Copy::Own;

    Copy copy;
    RowBuffer buffer;
    int offsets[Own::COUNT];
    LdsAddress to[Own::COUNT];

  public:
    DEVICE void start(const HeadRows<Type>& rows, int first, int end, char* tile) {
        buffer.start(rows, first, end);
        for (int i = 0; i < Own::COUNT; ++i) {
            const int row = Own::id(i) / Copy::CHUNKS, chunk = Own::id(i) % Copy::CHUNKS;
            offsets[i] = Own::exists(i) ? offset_in_tile(rows, row, chunk * ELEMENTS_PER_LANE) : -1;
            to[i].set(tile + Tile::offset(row, chunk));
        }
    }
    // The next tile.
    DEVICE void load() {
        const __amdgpu_buffer_rsrc_t from = buffer.descriptor();
        for (int i = 0; i < Own::COUNT; ++i) {
            load_words_of(from, offsets[i], copy.registers[i]);
        }
        buffer.advance(ROWS);
    }
    DEVICE void store() const {
        for (int i = 0; i < Own::COUNT; ++i) {
            if (Own::exists(i)) {
                to[i].store(Copy::Traits::convert(copy.registers[i]));
            }
        }
    }
};

// As TransposedTileCopy, likewise.
template <class Type, int WIDTH, int ROWS, int THREADS> class TransposedTileStream {
    using Copy = TransposedTileCopy<Type, WIDTH, ROWS, THREADS>;
    using Own = typename Copy::Own;

    Copy copy;
    RowBuffer buffer;
    int offsets[Own::COUNT][ELEMENTS_PER_LANE];
    LdsAddress to[Own::COUNT][Copy::COLUMNS];

  public:
    DEVICE void start(const HeadRows<Type>& rows, int first, int end, char* tile) {
        buffer.start(rows, first, end);
        for (int i = 0; i < Own::COUNT; ++i) {
            const int row = Own::id(i) / Copy::THREADS_PER_ROW * ELEMENTS_PER_LANE;
            const int column = Own::id(i) % Copy::THREADS_PER_ROW * Copy::COLUMNS;
            for (int r = 0; r < ELEMENTS_PER_LANE; ++r) {
                offsets[i][r] = Own::exists(i) ? offset_in_tile(rows, row + r, column) : -1;
            }
            for (int c = 0; c < Copy::COLUMNS; ++c) {
                to[i][c].set(tile + Copy::Transposed::offset(column + c, row / ELEMENTS_PER_LANE));
            }
        }
    }
    // The next tile.
    DEVICE void load() {
        const __amdgpu_buffer_rsrc_t from = buffer.descriptor();
        for (int i = 0; i < Own::COUNT; ++i) {
            for (int r = 0; r < ELEMENTS_PER_LANE; ++r) {
                load_words_of(from, offsets[i][r], copy.registers[i][r]);
            }
        }
        buffer.advance(ROWS);
    }
    DEVICE void store() const {
        for (int i = 0; i < Own::COUNT; ++i) {
            if (!Own::exists(i)) {
                continue;
            }
            const typename Copy::Transposed transposed(copy.registers[i]);
            for (int c = 0; c < Copy::COLUMNS; ++c) {
                to[i][c].store(transposed.column(c));
            }
        }
    }
};
#endif
