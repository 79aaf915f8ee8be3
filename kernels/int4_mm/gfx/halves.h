// Numbers in bfloat16 or float16 of codes less their zero point, exactly, and their products (matrix.hip).
//
// A code is ORed into the mantissa of a power of two, from which that power and the zero point are subtracted. float16
// has instructions for two numbers at once: a pair takes a permutation, an OR, a subtraction, and a shift of each word.
// bfloat16 has none: a word's codes lie in the mantissas of four different powers in float32, and of two numbers, which are
// exact, the upper halves are joined: a pair takes two ORs, two subtractions, a permutation, and a quarter of a shift.
#pragma once

constexpr int RUN = sizeof(operand) / sizeof(ELEMENT);  // k of a lane's operand
typedef operand Operand;
typedef accumulators Accumulators;

// The four powers: the codes of 16 bits are the last bits of 2^23, 2^19, 2^15 and 2^11.
DEVICE constexpr uint32_t power(int place) { return 0x4b000000u - place * 0x02000000u; }

// What is added to a number: -(the power + the zero point).
template <class Type> struct LessOf;
template <> struct LessOf<bf16> {
    float less[4];

    LessOf() = default;
    DEVICE explicit LessOf(float zero) {
#pragma unroll
        for (int i = 0; i < 4; ++i) less[i] = -float_of(power(i)) - zero;
    }
};
template <> struct LessOf<f16> {
    typedef _Float16 half_pair __attribute__((ext_vector_type(2)));
    half_pair pair;

    LessOf() = default;
    DEVICE explicit LessOf(float zero) {
        const _Float16 less = static_cast<_Float16>(-1024.0f - zero);
        pair = half_pair{less, less};
    }
};
typedef LessOf<ELEMENT> Less;

// Numbers `place`, place + 1 of a word's eight codes, which is even.
DEVICE uint32_t pair_of(uint32_t word, int place, const LessOf<bf16>& less) {
    const uint32_t four = place < 4 ? word : word >> 16;
    const int at = place % 4;
    float low = float_of((four & 0xfu << at * 4) | power(at)) + less.less[at];
    float high = float_of((four & 0xf0u << at * 4) | power(at + 1)) + less.less[at + 1];
#if defined(__GFX9__)
    asm("" : "+v"(low));  // as a pair they would be added by an instruction that makes products wait
#endif
    return __builtin_amdgcn_perm(bits_of(high), bits_of(low), 0x07060302u);
}
DEVICE uint32_t pair_of(uint32_t word, int place, const LessOf<f16>& less) {
    constexpr uint32_t THOUSAND = 0x64006400u;  // 1024, twice
    const uint32_t apart = __builtin_amdgcn_perm(word >> 4, word, 0x0c040c00u + place / 2 * 0x00010001u);
    const auto made = __builtin_bit_cast(LessOf<f16>::half_pair, (apart & 0x000f000fu) | THOUSAND);
    return __builtin_bit_cast(uint32_t, made + less.pair);
}

// The numbers of a product's codes.
DEVICE Operand numbers_of(words<RUN / 2> codes, const Less& less) {
    Operand numbers;
#pragma unroll
    for (int i = 0; i < RUN / 2; ++i) numbers.w[i] = pair_of(codes.w[i / 4], i % 4 * 2, less);
    return numbers;
}

DEVICE Accumulators multiplied(Operand numbers, Operand x, Accumulators sum) {
    return mma_instruction<ELEMENT>(numbers, x, sum);
}
