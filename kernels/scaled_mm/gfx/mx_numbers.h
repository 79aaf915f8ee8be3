// MX and NVFP4 codes as numbers of bfloat16 times their scales, made on the way to LDS: exact where the product is a normal
// number, which the ops ask for. Then they are multiplied as codes.h multiplies bfloat16.
#pragma once

constexpr int FEWER_LINES = TILE_M < TILE_N ? TILE_M : TILE_N;
constexpr int NUMBERS = FEWER_LINES * 64 / PER_BYTE / 16 >= THREADS ? 64 : 128;  // of a line: 16 bytes of codes a thread at least
constexpr int TILE_K = NUMBERS / PER_BYTE, LINE = NUMBERS * 2;                   // bytes in memory, and in LDS
#include "code_tile.h"
#include "mx_decode.h"

constexpr int PRODUCT_DEPTH = LINE_LANES * HELD;  // numbers along k
constexpr int RESIDENT = 2;

// Of an operand: LINES of numbers.
template <int LINES, int WAVES, class Format, bool K_MAJOR> struct Tile {
    static constexpr int BYTES = LINES * LINE;
    static constexpr int CODES = CodeTile<LINES, K_MAJOR>::COUNT;
    static constexpr int SCALES = !K_MAJOR ? 16 : GROUP_BYTES < 16 ? 16 / GROUP_BYTES : 1;  // of 16 bytes

    CodeTile<LINES, K_MAJOR> codes;
    GroupScales scales;
    uint32_t held[CODES][SCALES];

    DEVICE Tile(const uint8_t* data, int64_t leading, int first, int lines, GroupScales scales)
        : codes(data, leading, first, lines), scales(scales) {}

    // As CodeTile's. Scales beyond the last line or group are those of the last: of numbers that are zero or no one's.
    DEVICE void load(int start, int left) {
        codes.load(start, left);
#pragma unroll
        for (int i = 0; i < CODES; ++i) {
            const int group = (start + codes.k_of(i)) / GROUP_BYTES;
#pragma unroll
            for (int j = 0; j < SCALES; ++j) {
                held[i][j] = K_MAJOR ? scales.at(codes.line(i), group + j) : scales.at(codes.line(i) + j, group);
            }
        }
    }

    DEVICE void store(char* lds) const {
#pragma unroll
        for (int i = 0; i < CODES; ++i) {
            const words<16> found = codes.held[i];
            if constexpr (!K_MAJOR) {
                store_lines(lds, i);
            } else if constexpr (PER_BYTE == 1) {
                const words<32> numbers = Decoder<Format>(held[i][0]).numbers(found);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const uint32_t* const from = numbers.w + half * 4;
                    store_words<16>(at(lds, i, half), {{from[0], from[1], from[2], from[3]}});
                }
            } else {
#pragma unroll
                for (int word = 0; word < 4; ++word) {
                    const Decoder<Format> decoder(held[i][word * SCALES / 4]);
                    store_words<16>(at(lds, i, word), decoder.numbers(found.w[word]));
                }
            }
        }
    }

    // Of chunk `chunk` of 8 numbers of those held.
    DEVICE char* at(char* lds, int i, int chunk) const {
        return lds + place(codes.across(i), codes.along(i) * 2 * PER_BYTE + chunk * 16);
    }

    // Codes of one place along k, of 16 lines.
    DEVICE void store_lines(char* lds, int i) const {
#pragma unroll
        for (int line = 0; line < 16; ++line) {
            const uint32_t byte = codes.held[i].w[line / 4] >> line % 4 * 8 & 0xffu;
#pragma unroll
            for (int part = 0; part < PER_BYTE; ++part) {
                const uint32_t code = byte >> part * Format::BITS & (1u << Format::BITS) - 1;
                const uint32_t bits = bits_of(decode<Format>(code) * scale_number(held[i][line]));
                const int k = number_place<Format>(codes.across(i) * PER_BYTE + part);
                char* const to = lds + place(codes.along(i) + line, k * 2);
                *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(bits >> 16);
            }
        }
    }

    static DEVICE const char* of_wave(const char* lds, int wave) { return lds + wave * (LINES / WAVES) * LINE; }
};

// What a lane holds of the 16 lines from `numbers` on, of the product at k.
DEVICE Codes operand_of(const char* numbers, int k) {
    const int at = (k + (WHOLE_LINES ? 0 : lane() / FRAGMENT * HELD)) * 2;
    Codes all;
#pragma unroll
    for (int part = 0; part < HELD / 8; ++part) {
        const words<16> found = load_words<16>(numbers + place(lane_line(), at + part * 16));
#pragma unroll
        for (int i = 0; i < 4; ++i) all.w[part * 4 + i] = found.w[i];
    }
    return all;
}

DEVICE void add_products(Sums& sums, const char* a, const char* b) {
#pragma unroll
    for (int k = 0; k < NUMBERS; k += PRODUCT_DEPTH) {
        Codes of_b[N_FRAGMENTS];
#pragma unroll
        for (int j = 0; j < N_FRAGMENTS; ++j) of_b[j] = operand_of(b + j * FRAGMENT * LINE, k);
#pragma unroll
        for (int i = 0; i < M_FRAGMENTS; ++i) {
            const Codes of_a = operand_of(a + i * FRAGMENT * LINE, k);
#pragma unroll
            for (int j = 0; j < N_FRAGMENTS; ++j) sums[i][j] = multiply(of_a, of_b[j], sums[i][j]);
        }
    }
}
