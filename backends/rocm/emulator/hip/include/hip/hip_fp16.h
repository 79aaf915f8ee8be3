// __half and __half2: _Float16 of the compiler, under HIP's names.
#pragma once

#include <hip/hip_runtime.h>

#if defined(__cplusplus) && defined(__HIP__)
struct __half {
    _Float16 value;
    __half() = default;
    PORTABLE_HIP_HD constexpr __half(_Float16 x) : value(x) {}
    PORTABLE_HIP_HD __half(float x) : value((_Float16)x) {}
    PORTABLE_HIP_HD __half(double x) : value((_Float16)x) {}
    PORTABLE_HIP_HD __half(int x) : value((_Float16)x) {}
    PORTABLE_HIP_HD operator float() const { return (float)value; }
};
typedef __half half;
struct alignas(4) __half2 {
    __half x, y;
};
typedef __half2 half2;

#define X(op)                                                                                                          \
    PORTABLE_HIP_HD __half operator op(__half a, __half b) { return __half((_Float16)(a.value op b.value)); }          \
    PORTABLE_HIP_HD __half &operator op##=(__half &a, __half b) { return a = a op b; }                                 \
    PORTABLE_HIP_HD __half2 operator op(__half2 a, __half2 b) { return __half2{a.x op b.x, a.y op b.y}; }
X(+)
X(-)
X(*)
X(/)
#undef X
#define X(op)                                                                                                          \
    PORTABLE_HIP_HD bool operator op(__half a, __half b) { return a.value op b.value; }
X(==)
X(!=)
X(<)
X(<=)
X(>)
X(>=)
#undef X
PORTABLE_HIP_HD __half operator-(__half a) { return __half((_Float16)-a.value); }

PORTABLE_HIP_HD __half __float2half(float x) { return __half(x); }
PORTABLE_HIP_HD __half __float2half_rn(float x) { return __half(x); }
PORTABLE_HIP_HD float __half2float(__half x) { return (float)x.value; }
PORTABLE_HIP_HD __half2 __floats2half2_rn(float x, float y) { return __half2{__half(x), __half(y)}; }
PORTABLE_HIP_HD __half2 __float2half2_rn(float x) { return __half2{__half(x), __half(x)}; }
PORTABLE_HIP_HD __half2 __halves2half2(__half x, __half y) { return __half2{x, y}; }
PORTABLE_HIP_HD __half2 __half2half2(__half x) { return __half2{x, x}; }
PORTABLE_HIP_HD float2 __half22float2(__half2 x) { return float2{(float)x.x.value, (float)x.y.value}; }
PORTABLE_HIP_HD float __low2float(__half2 x) { return (float)x.x.value; }
PORTABLE_HIP_HD float __high2float(__half2 x) { return (float)x.y.value; }
PORTABLE_HIP_HD __half __low2half(__half2 x) { return x.x; }
PORTABLE_HIP_HD __half __high2half(__half2 x) { return x.y; }
PORTABLE_HIP_HD unsigned short __half_as_ushort(__half x) { return __builtin_bit_cast(unsigned short, x.value); }
PORTABLE_HIP_HD __half __ushort_as_half(unsigned short x) { return __half(__builtin_bit_cast(_Float16, x)); }
#define X(name, op)                                                                                                    \
    PORTABLE_HIP_HD __half __h##name(__half a, __half b) { return a op b; }                                            \
    PORTABLE_HIP_HD __half2 __h##name##2(__half2 a, __half2 b) { return a op b; }
X(add, +)
X(sub, -)
X(mul, *)
#undef X
PORTABLE_HIP_HD __half __hdiv(__half a, __half b) { return a / b; }
PORTABLE_HIP_HD __half __hneg(__half a) { return -a; }
PORTABLE_HIP_HD __half __hfma(__half a, __half b, __half c) { return __half(__builtin_fmaf16(a.value, b.value, c.value)); }
PORTABLE_HIP_HD __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    return __half2{__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
#define X(name, op)                                                                                                    \
    PORTABLE_HIP_HD bool __h##name(__half a, __half b) { return a op b; }
X(eq, ==)
X(ne, !=)
X(lt, <)
X(le, <=)
X(gt, >)
X(ge, >=)
#undef X
#endif
