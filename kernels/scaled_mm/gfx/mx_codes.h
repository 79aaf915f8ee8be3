// MX codes and their scales for gfx950's MFMA that scales: in LDS as they are in memory, and their products.
//
// An instruction multiplies 128 k of 16 lines of both operands. A lane holds 32 of a line: of 4 bits consecutive ones, of 8 bits
// two runs of 16 that lie 64 apart. Its scale is that of 32 consecutive ones in either case: lane l gives that of line l % 16 and
// group l / 16, in one of the four bytes of a register, which the instruction names.
// So LDS holds a word for each lane, instruction and PACK fragments, a byte of each fragment.
#pragma once

constexpr int TILE_K = 128, LINE = TILE_K;  // bytes
#include "code_tile.h"

constexpr int STEP = 128 / PER_BYTE, STEPS = TILE_K / STEP;  // bytes of k of an instruction; instructions of a tile
constexpr int STEP_GROUPS = 4;
constexpr int RESIDENT = TILE_M * TILE_N > 128 * 128 ? 1 : 2;
typedef int Operand __attribute__((ext_vector_type(8)));

// Of a lane and an instruction: fragments whose scales share a register, and registers.
template <int FRAGMENTS> constexpr int PACK = FRAGMENTS < 4 ? FRAGMENTS : 4;
template <int FRAGMENTS> constexpr int WORDS = FRAGMENTS / PACK<FRAGMENTS>;

// A wave's first codes and first word of scales.
struct InLds {
    const char *codes, *scales;
};

// Of an operand: LINES of codes, shared out to WAVES, and their scales.
template <int LINES, int WAVES, class Format, bool K_MAJOR> struct Tile {
    static constexpr int FRAGMENTS = LINES / WAVES / FRAGMENT;
    static constexpr int IN_WORD = PACK<FRAGMENTS>;
    static constexpr int WAVE_SCALES = STEPS * FRAGMENTS * WARP;  // bytes
    static_assert(IN_WORD != 3 && FRAGMENTS % IN_WORD == 0, "words of 1, 2 or 4 bytes");
    static constexpr int BYTES = LINES * LINE + WAVES * WAVE_SCALES;
    static constexpr int COUNT = (LINES * STEPS + THREADS - 1) / THREADS;

    CodeTile<LINES, K_MAJOR> codes;
    GroupScales scales;
    uint32_t held[COUNT];

    static DEVICE int item(int i) { return thread_x() + i * THREADS; }

    DEVICE Tile(const uint8_t* data, int64_t leading, int first, int lines, GroupScales scales)
        : codes(data, leading, first, lines), scales(scales) {}

    // As CodeTile's. Scales beyond the last line or group are those of the last: of numbers that are zero or no one's.
    DEVICE void load(int start, int left) {
        codes.load(start, left);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const uint8_t* const line = scales.of_line(codes.first + item(i) % LINES);
            const int group = start / GROUP_BYTES + item(i) / LINES * STEP_GROUPS;
#if SCALE_WORDS
            __builtin_memcpy(&held[i], __builtin_assume_aligned(line + min(group, scales.groups - STEP_GROUPS), 4), 4);
#else
            held[i] = 0;
#pragma unroll
            for (int of_group = 0; of_group < STEP_GROUPS; ++of_group) {
                const uint32_t scale = line[min(group + of_group, scales.groups - 1) * scales.group];
                held[i] |= scale << of_group * 8;
            }
#endif
        }
    }

    DEVICE void store(char* lds) const {
        codes.store(lds);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int line = item(i) % LINES, step = item(i) / LINES;
            const int wave = line / (FRAGMENTS * FRAGMENT), fragment = line / FRAGMENT % FRAGMENTS;
            char* const to = lds + LINES * LINE + wave * WAVE_SCALES + (step * FRAGMENTS + fragment / IN_WORD * IN_WORD) * WARP +
                             line % FRAGMENT * IN_WORD + fragment % IN_WORD;
            if (LINES * STEPS % THREADS != 0 && item(i) >= LINES * STEPS) continue;
#pragma unroll
            for (int group = 0; group < STEP_GROUPS; ++group) {
                to[group * (FRAGMENT * IN_WORD)] = static_cast<char>(held[i] >> group * 8);
            }
        }
    }

    static DEVICE InLds of_wave(const char* lds, int wave) {
        return {lds + wave * (FRAGMENTS * FRAGMENT * LINE), lds + LINES * LINE + wave * WAVE_SCALES};
    }
};

// What a lane holds of the 16 lines from `codes` on, for an instruction.
DEVICE Operand operand_of(const char* codes, int step) {
    const int at = lane() / FRAGMENT * 16;
    const words<16> low = load_words<16>(codes + place(lane_line(), step * STEP + at));
    words<16> high = {};
    if (PER_BYTE == 1) high = load_words<16>(codes + place(lane_line(), 64 + at));
    Operand all;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        all[i] = low.w[i];
        all[i + 4] = high.w[i];
    }
    return all;
}

// f(Index<0>), f(Index<1>) and so on: an instruction's choice of bytes is a constant.
template <int AT> struct Index {
    static constexpr int value = AT;
};
template <int COUNT, int AT = 0, class F> DEVICE void unrolled(const F& f) {
    if constexpr (AT < COUNT) {
        f(Index<AT>{});
        unrolled<COUNT, AT + 1>(f);
    }
}

template <int FRAGMENTS> DEVICE uint32_t scale_word(const char* scales, int step, int word) {
    constexpr int IN_WORD = PACK<FRAGMENTS>;
    scales += ((step * WORDS<FRAGMENTS> + word) * WARP + lane()) * IN_WORD;
    if constexpr (IN_WORD == 4) return *reinterpret_cast<const uint32_t*>(scales);
    else if constexpr (IN_WORD == 2) return *reinterpret_cast<const uint16_t*>(scales);
    else return *reinterpret_cast<const uint8_t*>(scales);
}

DEVICE void add_products(Sums& sums, InLds a, InLds b) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        Operand of_b[N_FRAGMENTS];
        uint32_t scale_b[WORDS<N_FRAGMENTS>];
#pragma unroll
        for (int j = 0; j < N_FRAGMENTS; ++j) {
            if (j % 4 == 0) scale_b[j / 4] = scale_word<N_FRAGMENTS>(b.scales, step, j / 4);
            of_b[j] = operand_of(b.codes + j * FRAGMENT * LINE, step);
        }
        uint32_t scale_a = 0;
        unrolled<M_FRAGMENTS>([&](auto at) {
            constexpr int i = decltype(at)::value;
            if (i % 4 == 0) scale_a = scale_word<M_FRAGMENTS>(a.scales, step, i / 4);
            const Operand of_a = operand_of(a.codes + i * FRAGMENT * LINE, step);
            unrolled<N_FRAGMENTS>([&](auto of_column) {
                constexpr int j = decltype(of_column)::value;
                sums[i][j] = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(of_b[j], of_a, sums[i][j], B_KIND, A_KIND, j % 4,
                                                                              scale_b[j / 4], i % 4, scale_a);
            });
        });
    }
}
