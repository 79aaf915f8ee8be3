// MX and NVFP4 codes as numbers of bfloat16 times their scales, made on the way to LDS: exact where the product is a normal
// number, which the ops ask for. Then they are multiplied as codes.h multiplies bfloat16.
#pragma once

constexpr int FEWER_LINES = TILE_M < TILE_N ? TILE_M : TILE_N;
constexpr int NUMBERS = FEWER_LINES * 64 / PER_BYTE / 16 >= THREADS ? 64 : 128;  // of a line: 16 bytes of codes a thread at least
constexpr int TILE_K = NUMBERS / PER_BYTE, LINE = NUMBERS * 2;                   // bytes in memory, and in LDS
#include "code_tile.h"

constexpr int LOAD_DEPTH = LINE_LANES * HELD;  // numbers along k of a product
constexpr int RESIDENT = 2;

// The bits of a code's number times its scale, as float32.
template <class Format> DEVICE uint32_t scaled_bits(uint32_t code, uint32_t scale) {
    constexpr uint32_t SIGN = 1u << (Format::BITS - 1);
    constexpr int SHIFT = 127 - Format::BIAS;
    const uint32_t size = code & (SIGN - 1);
    // Its fields as float32's: the number over 2^SHIFT.
    uint32_t bits = size << (23 - Format::MANTISSA) | (code & SIGN) << (32 - Format::BITS);
#if E8M0
    bits = bits_of(__builtin_ldexpf(float_of(bits), static_cast<int>(scale) - 127 + SHIFT));
    if (Format::BITS == 8 && size > Format::LARGEST) bits = bits_of(decode<Format>(code));
    if (scale == 255) bits = 0x7fc00000u;
    return bits;
#else
    constexpr float UNIT = static_cast<float>(1u << 31) * (1u << 31) * (1u << 31) * (1u << 31) * (1 << (SHIFT - 124));
    return bits_of(float_of(bits) * UNIT * float_of(scale));
#endif
}

template <class Format> DEVICE uint32_t scaled_pair(uint32_t low, uint32_t high, uint32_t scale) {
    return scaled_bits<Format>(low, scale) >> 16 | (scaled_bits<Format>(high, scale) & 0xffff0000u);
}

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

    // The scale of byte j of those held: what scaled_bits takes.
    DEVICE uint32_t scale(int i, int j) const {
        const uint32_t code = held[i][K_MAJOR ? j / GROUP_BYTES : j];
#if E8M0
        return code;
#else
        return bits_of(decode<SCALE_FORMAT>(code));
#endif
    }

    static DEVICE uint32_t code(words<16> of, int i) {
        return of.w[i / PER_BYTE / 4] >> i * Format::BITS % 32 & (1u << Format::BITS) - 1;
    }

    DEVICE void store(char* lds) const {
#pragma unroll
        for (int i = 0; i < CODES; ++i) {
            if constexpr (K_MAJOR) {
#pragma unroll
                for (int chunk = 0; chunk < 2 * PER_BYTE; ++chunk) {
                    words<16> numbers;
#pragma unroll
                    for (int pair = 0; pair < 4; ++pair) {
                        const int at = chunk * 8 + pair * 2;
                        numbers.w[pair] = scaled_pair<Format>(code(codes.held[i], at), code(codes.held[i], at + 1),
                                                              scale(i, at / PER_BYTE));
                    }
                    store_words<16>(lds + place(codes.across(i), codes.along(i) * 2 * PER_BYTE + chunk * 16), numbers);
                }
            } else {
#pragma unroll
                for (int line = 0; line < 16; ++line) {
                    char* const to = lds + place(codes.along(i) + line, codes.across(i) * 2 * PER_BYTE);
                    if constexpr (PER_BYTE == 2) {
                        const uint32_t low = code(codes.held[i], line * 2), high = code(codes.held[i], line * 2 + 1);
                        store_words<4>(to, {{scaled_pair<Format>(low, high, scale(i, line))}});
                    } else {
                        const uint32_t bits = scaled_bits<Format>(code(codes.held[i], line), scale(i, line));
                        *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(bits >> 16);
                    }
                }
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
    for (int k = 0; k < NUMBERS; k += LOAD_DEPTH) {
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
