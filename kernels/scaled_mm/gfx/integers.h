// Operands of int8 on AMD's matrix units, whose sums in int32 wrap around (codes.h).
//
// -DHAS_ZERO_POINT=1: the sums over k of b's columns are taken from its operands.
#pragma once

typedef words<HELD> Codes;
template <class> DEVICE Codes operand(words<16> codes, int product) {
    Codes held;
#pragma unroll
    for (int i = 0; i < HELD / 4; ++i) held.w[i] = codes.w[product * HELD / 4 + i];
    return held;
}

// c + a @ b.T.
DEVICE Accumulators multiply(Codes a, Codes b, Accumulators c) {
#if defined(__gfx950__)
    typedef int four __attribute__((ext_vector_type(4)));
    return __builtin_amdgcn_mfma_i32_16x16x64_i8(__builtin_bit_cast(four, b), __builtin_bit_cast(four, a), c, 0, 0, 0);
#elif defined(__gfx942__)
    return __builtin_amdgcn_mfma_i32_16x16x32_i8(__builtin_bit_cast(long, b), __builtin_bit_cast(long, a), c, 0, 0, 0);
#elif defined(__GFX9__)
#pragma unroll
    for (int i = 0; i < HELD / 4; ++i) {
        c = __builtin_amdgcn_mfma_i32_16x16x16i8(static_cast<int>(b.w[i]), static_cast<int>(a.w[i]), c, 0, 0, 0);
    }
    return c;
#elif defined(__GFX11__)
    typedef int four __attribute__((ext_vector_type(4)));
    return __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, __builtin_bit_cast(four, b), true, __builtin_bit_cast(four, a),
                                                      c, false);
#else
    typedef int pair __attribute__((ext_vector_type(2)));
    return __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, __builtin_bit_cast(pair, b), true,
                                                            __builtin_bit_cast(pair, a), c, false);
#endif
}

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
