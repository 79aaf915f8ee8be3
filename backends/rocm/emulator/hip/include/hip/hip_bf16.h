// __hip_bfloat16: __bf16 of the compiler, under HIP's names. Arithmetic is in float, rounded once.
#pragma once

#include <hip/hip_runtime.h>

#if defined(__cplusplus) && defined(__HIP__)
// To the nearest, to even at a tie. The host's compiler would call a function that older libgcc do not have.
PORTABLE_HIP_HD __bf16 portable_hip_to_bf16(float x) {
#if defined(__HIP_DEVICE_COMPILE__)
    return (__bf16)x;
#else
    const unsigned bits = __builtin_bit_cast(unsigned, x);
    const unsigned rounded = x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return __builtin_bit_cast(__bf16, (unsigned short)rounded);
#endif
}

struct __hip_bfloat16 {
    __bf16 value;
    __hip_bfloat16() = default;
    PORTABLE_HIP_HD constexpr __hip_bfloat16(__bf16 x) : value(x) {}
    PORTABLE_HIP_HD __hip_bfloat16(float x) : value(portable_hip_to_bf16(x)) {}
    PORTABLE_HIP_HD operator float() const { return (float)value; }
};
typedef __hip_bfloat16 hip_bfloat16;
struct alignas(4) __hip_bfloat162 {
    __hip_bfloat16 x, y;
};

#define X(op)                                                                                                          \
    PORTABLE_HIP_HD __hip_bfloat16 operator op(__hip_bfloat16 a, __hip_bfloat16 b) {                                   \
        return __hip_bfloat16((float)a.value op (float)b.value);                                                       \
    }                                                                                                                  \
    PORTABLE_HIP_HD __hip_bfloat16 &operator op##=(__hip_bfloat16 &a, __hip_bfloat16 b) { return a = a op b; }
X(+)
X(-)
X(*)
X(/)
#undef X

PORTABLE_HIP_HD __hip_bfloat16 __float2bfloat16(float x) { return __hip_bfloat16(x); }
PORTABLE_HIP_HD float __bfloat162float(__hip_bfloat16 x) { return (float)x.value; }
PORTABLE_HIP_HD __hip_bfloat16 __hadd(__hip_bfloat16 a, __hip_bfloat16 b) { return a + b; }
PORTABLE_HIP_HD __hip_bfloat16 __hsub(__hip_bfloat16 a, __hip_bfloat16 b) { return a - b; }
PORTABLE_HIP_HD __hip_bfloat16 __hmul(__hip_bfloat16 a, __hip_bfloat16 b) { return a * b; }
PORTABLE_HIP_HD __hip_bfloat16 __hfma(__hip_bfloat16 a, __hip_bfloat16 b, __hip_bfloat16 c) {
    return __hip_bfloat16(__builtin_fmaf((float)a.value, (float)b.value, (float)c.value));
}
#endif
