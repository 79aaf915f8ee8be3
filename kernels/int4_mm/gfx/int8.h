// Numbers in int8 of codes less their zero point, and their products (matrix.hip).
//
// The eight codes of a word are split into their lower and upper halves, four bytes each with the highest bit set, so that
// a subtraction of zero points borrows from no neighbour; that bit is turned over, and the halves are joined in order:
// nine instructions for eight numbers.
#pragma once

#include "_lib/amdgcn/int8_products.h"

constexpr int RUN = LANE_K < 16 ? LANE_K : 16;  // k of a lane's operand
typedef words<RUN> Operand;
typedef int_sums Accumulators;

// What is subtracted: the zero point, in four bytes.
struct Less {
    uint32_t four;

    Less() = default;
    DEVICE explicit Less(float zero) : four(static_cast<uint32_t>(zero) * 0x01010101u) {}
};

DEVICE uint32_t four_of(uint32_t codes, Less less) {
    constexpr uint32_t CODES = 0x0f0f0f0fu, TOP = 0x80808080u;
    return ((codes & CODES | TOP) - less.four) ^ TOP;
}

// The numbers of a product's codes.
DEVICE Operand numbers_of(words<RUN / 2> codes, Less less) {
    Operand numbers;
#pragma unroll
    for (int i = 0; i < RUN / 8; ++i) {
        const uint32_t low = four_of(codes.w[i], less), high = four_of(codes.w[i] >> 4, less);
        numbers.w[i * 2] = __builtin_amdgcn_perm(high, low, 0x05010400u);
        numbers.w[i * 2 + 1] = __builtin_amdgcn_perm(high, low, 0x07030602u);
    }
    return numbers;
}

DEVICE Accumulators multiplied(Operand numbers, Operand x, Accumulators sum) { return multiply_int8<RUN>(numbers, x, sum); }
