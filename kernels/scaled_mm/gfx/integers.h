// Operands of int8 on AMD's matrix units, whose sums in int32 wrap around (codes.h).
//
// -DHAS_ZERO_POINT=1: the sums over k of b's columns are taken from its operands.
#pragma once

#include "_lib/amdgcn/int8_products.h"

typedef words<HELD> Codes;
template <class> DEVICE Codes operand(words<16> codes, int product) {
    Codes held;
#pragma unroll
    for (int i = 0; i < HELD / 4; ++i) held.w[i] = codes.w[product * HELD / 4 + i];
    return held;
}

// c + a @ b.T.
DEVICE Accumulators multiply(Codes a, Codes b, Accumulators c) { return multiply_int8<HELD>(b, a, c); }

// sum + the sum of 16 codes.
DEVICE int add_codes(words<16> codes, int sum) {
    constexpr int ONES = 0x01010101;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#if defined(__GFX9__)
        sum = __builtin_amdgcn_sdot4(static_cast<int>(codes.w[i]), ONES, sum, false);
#else
        sum = __builtin_amdgcn_sudot4(true, static_cast<int>(codes.w[i]), true, ONES, sum, false);
#endif
    }
    return sum;
}

// The sums of b's columns that a lane's accumulators belong to, from what each lane has of its line. All lanes must call.
DEVICE Accumulators column_sums(int sum) {
#pragma unroll
    for (int step = FRAGMENT; step < FRAGMENT * LINE_LANES; step *= 2) {
        sum = static_cast<int>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(shuffle_xor(sum, step)));
    }
    Accumulators found;
#pragma unroll
    for (int i = 0; i < SUMS; ++i) found[i] = __builtin_amdgcn_ds_bpermute(lane_column(i) << 2, sum);
    return found;
}

// sum - zero * of_column, which wraps around.
DEVICE int corrected(int sum, int zero, int of_column) {
    return static_cast<int>(static_cast<uint32_t>(sum) - static_cast<uint32_t>(zero) * static_cast<uint32_t>(of_column));
}
