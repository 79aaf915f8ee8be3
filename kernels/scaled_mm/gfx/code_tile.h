// A tile of bytes on its way from memory to LDS, in which its lines lie along k.
//
// Before this header: THREADS of a block, TILE_K, the bytes of a tile along k, and LINE, those of a line in LDS.
// -DALIGNED as scaled.hip has it.
#pragma once

#include "_lib/amdgcn/lds.h"

// Where the 16 bytes from `k` of a line lie in LDS: so that lanes that read or write together meet in no bank.
DEVICE int place(int line, int k) { return line * LINE + ((k / 16 ^ (line & 7)) * 16 | k % 16); }

// Memory; what lies at BEYOND reads as zero.
constexpr int BEYOND = static_cast<int>(0x80000000u);
struct Memory {
    __amdgpu_buffer_rsrc_t resource;

    DEVICE explicit Memory(const uint8_t* data)
        : resource(__builtin_amdgcn_make_buffer_rsrc(const_cast<uint8_t*>(data), 0, 0x7fffffff, 0x00020000)) {}

    // 16 bytes from byte `lane` + `wave`, of which the second is the same for all lanes.
    DEVICE words<16> load(int lane, int wave) const {
        return __builtin_bit_cast(words<16>, __builtin_amdgcn_raw_buffer_load_b128(resource, lane, wave, 0));
    }
};

// A tile of LINES x TILE_K codes on its way from memory to LDS, 16 at a time. Lines beyond the matrix are some other's or
// zero, k beyond it is zero.
template <int LINES, bool K_MAJOR> struct CodeTile {
    static constexpr int ALONG = (K_MAJOR ? TILE_K : LINES) / 16;
    static constexpr int COUNT = LINES * TILE_K / 16 / THREADS;
    static_assert(COUNT * THREADS * 16 == LINES * TILE_K, "all threads copy as much");

    const uint8_t* data;
    Memory memory;
    int64_t leading;
    int first, lines;
    int from[COUNT];  // where all is aligned, and near
    words<16> held[COUNT];

    static DEVICE int along(int i) { return (thread_x() + i * THREADS) % ALONG * 16; }
    static DEVICE int across(int i) { return (thread_x() + i * THREADS) / ALONG; }
    DEVICE int line(int i) const { return K_MAJOR ? min(first + across(i), lines - 1) : first + along(i); }
    static DEVICE int k_of(int i) { return K_MAJOR ? along(i) : across(i); }

    DEVICE CodeTile(const uint8_t* data, int64_t leading, int first, int lines)
        : data(data), memory(data), leading(leading), first(first), lines(lines) {
#if ALIGNED
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int pitch = static_cast<int>(leading);
            from[i] = K_MAJOR ? line(i) * pitch + k_of(i) : line(i) < lines ? k_of(i) * pitch + line(i) : BEYOND;
        }
#endif
    }

    // The tile from `start` on; `left`: elements of k from there to the end of the matrix.
    DEVICE void load(int start, int left) {
#if ALIGNED
        const int wave = K_MAJOR ? start : start * static_cast<int>(leading);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            held[i] = memory.load(k_of(i) < left ? from[i] : BEYOND, wave);
        }
#else
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const uint8_t* const row = data + (K_MAJOR ? line(i) : start + k_of(i)) * leading;
            const int valid = K_MAJOR ? left - k_of(i) : k_of(i) < left ? lines - line(i) : 0;
            held[i] = load_bounded<16>(row + (K_MAJOR ? start + k_of(i) : line(i)), valid);
        }
#endif
    }

    DEVICE void store(char* lds) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if constexpr (K_MAJOR) {
                store_words<16>(lds + place(across(i), along(i)), held[i]);
            } else {
#pragma unroll
                for (int line = 0; line < 16; ++line) {
                    lds[place(along(i) + line, across(i))] = static_cast<char>(held[i].w[line / 4] >> line % 4 * 8);
                }
            }
        }
    }
};
