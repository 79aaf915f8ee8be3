// C's mathematical functions for device code, from AMD's device library (ocml). The compiler is told to read this file
// before all others: <cmath> then knows that the GPU has functions of its own.
#pragma once

#if defined(__HIP__)
// Without lines of their own: what they do wrong is at the line that calls them.
#define PORTABLE_HIP_DEVICE static __attribute__((device)) inline __attribute__((always_inline, nodebug))

#define PORTABLE_HIP_MATH1(X)                                                                                          \
    X(acos) X(acosh) X(asin) X(asinh) X(atan) X(atanh) X(cbrt) X(ceil) X(cos) X(cosh) X(erf) X(erfc) X(exp) X(exp2)     \
    X(expm1) X(fabs) X(floor) X(lgamma) X(log) X(log10) X(log1p) X(log2) X(logb) X(nearbyint) X(rint) X(round) X(sin)   \
    X(sinh) X(sqrt) X(tan) X(tanh) X(tgamma) X(trunc)
#define PORTABLE_HIP_MATH2(X)                                                                                          \
    X(atan2) X(copysign) X(fdim) X(fmax) X(fmin) X(fmod) X(hypot) X(nextafter) X(pow) X(remainder)
// Those that C's library does not have.
#define PORTABLE_HIP_OWN1(X) X(cospi) X(erfcinv) X(erfcx) X(erfinv) X(exp10) X(j0) X(j1) X(rcbrt) X(rsqrt) X(sinpi) X(y0) X(y1)

#define X(name)                                                                                                        \
    extern "C" __attribute__((device)) __attribute__((const)) float __ocml_##name##_f32(float);                        \
    extern "C" __attribute__((device)) __attribute__((const)) double __ocml_##name##_f64(double);                      \
    PORTABLE_HIP_DEVICE float name##f(float x) { return __ocml_##name##_f32(x); }                                      \
    PORTABLE_HIP_DEVICE float name(float x) { return __ocml_##name##_f32(x); }                                         \
    PORTABLE_HIP_DEVICE double name(double x) { return __ocml_##name##_f64(x); }
PORTABLE_HIP_MATH1(X)
PORTABLE_HIP_OWN1(X)
#undef X
#define X(name)                                                                                                        \
    extern "C" __attribute__((device)) __attribute__((const)) float __ocml_##name##_f32(float, float);                 \
    extern "C" __attribute__((device)) __attribute__((const)) double __ocml_##name##_f64(double, double);              \
    PORTABLE_HIP_DEVICE float name##f(float x, float y) { return __ocml_##name##_f32(x, y); }                          \
    PORTABLE_HIP_DEVICE float name(float x, float y) { return __ocml_##name##_f32(x, y); }                             \
    PORTABLE_HIP_DEVICE double name(double x, double y) { return __ocml_##name##_f64(x, y); }
PORTABLE_HIP_MATH2(X)
#undef X
PORTABLE_HIP_DEVICE float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
PORTABLE_HIP_DEVICE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
PORTABLE_HIP_DEVICE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
PORTABLE_HIP_DEVICE void sincosf(float x, float *sine, float *cosine) { *sine = sinf(x), *cosine = cosf(x); }
PORTABLE_HIP_DEVICE void sincos(double x, double *sine, double *cosine) { *sine = sin(x), *cosine = cos(x); }
PORTABLE_HIP_DEVICE int abs(int x) { return x < 0 ? -x : x; }
PORTABLE_HIP_DEVICE long abs(long x) { return x < 0 ? -x : x; }
PORTABLE_HIP_DEVICE long long abs(long long x) { return x < 0 ? -x : x; }
PORTABLE_HIP_DEVICE float abs(float x) { return __builtin_fabsf(x); }
PORTABLE_HIP_DEVICE double abs(double x) { return __builtin_fabs(x); }

#if !defined(__HIPCC_RTC__)
// Before <cmath>, which then makes its own float functions the host's alone.
namespace std {
#define X(name) using ::name;
PORTABLE_HIP_MATH1(X)
PORTABLE_HIP_MATH2(X)
#undef X
}
#include <cmath>
#include <cstdlib>
#include <cstring>
#endif

#define X(name, expression)                                                                                            \
    PORTABLE_HIP_DEVICE float name(float x) { return expression; }
X(__expf, __builtin_amdgcn_exp2f(x * 1.44269504088896340736f))
X(__exp10f, __builtin_amdgcn_exp2f(x * 3.32192809488736234787f))
X(__logf, __builtin_amdgcn_logf(x) * 0.693147180559945309417f)
X(__log2f, __builtin_amdgcn_logf(x))
X(__log10f, __builtin_amdgcn_logf(x) * 0.301029995663981195214f)
X(__sinf, sinf(x))
X(__cosf, cosf(x))
X(__tanf, tanf(x))
X(__frcp_rn, 1.0f / x)
X(__fsqrt_rn, __builtin_sqrtf(x))
X(__frsqrt_rn, 1.0f / __builtin_sqrtf(x))
X(__saturatef, x < 0 ? 0 : x > 1 ? 1 : x)
#undef X
#define X(name, expression)                                                                                            \
    PORTABLE_HIP_DEVICE float name(float x, float y) { return expression; }
X(__fadd_rn, x + y)
X(__fsub_rn, x - y)
X(__fmul_rn, x *y)
X(__fdiv_rn, x / y)
X(__fdividef, x / y)
X(__powf, powf(x, y))
#undef X
PORTABLE_HIP_DEVICE float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
PORTABLE_HIP_DEVICE double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
#endif
