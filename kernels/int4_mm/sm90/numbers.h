// Exact 16-bit numbers of codes of 4 bits less their zero points (int4 to bf16 or fp16, what mixed-input GEMMs call the
// conversion or dequantisation of the narrow operand): a code in the last bits of a power of two's mantissa is
// that power plus the code (Kim et al., "Who Says Elephants Can't Run"), and one packed subtraction leaves the number.
#pragma once

#include "prelude.h"

// Two times the power of two whose last place is 1: 128 in bfloat16, 1024 in float16.
template <class Type> constexpr uint32_t MAGIC_PAIR = 0;
template <> constexpr uint32_t MAGIC_PAIR<bf16> = 0x43004300;
template <> constexpr uint32_t MAGIC_PAIR<f16> = 0x64006400;

template <class Type> DEVICE uint32_t subtract_pair(uint32_t a, uint32_t b);
template <> DEVICE uint32_t subtract_pair<bf16>(uint32_t a, uint32_t b) {
    uint32_t difference;
    asm("sub.bf16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
    return difference;
}
template <> DEVICE uint32_t subtract_pair<f16>(uint32_t a, uint32_t b) {
    uint32_t difference;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
    return difference;
}

// What a zero point from 0 to 16 takes away: the power of two and itself, twice.
template <class Type> DEVICE uint32_t zero_pair(uint32_t zero) { return MAGIC_PAIR<Type> + zero * 0x10001; }

// byte_perm's selector of a word's byte, with zeros above it.
DEVICE uint32_t byte_selector(uint32_t byte) { return 0x4440 + byte; }

// The numbers of the two codes in the selected byte of `codes`, that of the lower half first.
template <class Type> DEVICE uint32_t numbers_of(uint32_t codes, uint32_t selector, uint32_t zeros) {
    const uint32_t twice = __byte_perm(codes, 0, selector) * 0x1001;  // the upper code at bit 16
    uint32_t shifted;  // (twice & 0x000f000f) | MAGIC_PAIR, which the compiler makes two instructions of
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(shifted) : "r"(twice), "n"(0x000f000f), "r"(MAGIC_PAIR<Type>));
    return subtract_pair<Type>(shifted, zeros);
}

// 32 codes of a row from shared memory.
DEVICE void load_codes(uint32_t (&codes)[4], uint32_t at) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(codes[0]), "=r"(codes[1]), "=r"(codes[2]), "=r"(codes[3])
                 : "r"(at)
                 : "memory");
}
