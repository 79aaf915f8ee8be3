// The short vectors of HIP (int2, float4, ...): members x, y, z, w, and arithmetic by element.
#pragma once

#if defined(__cplusplus)
#if defined(__HIP__)
#define PORTABLE_HIP_HD __attribute__((host)) __attribute__((device)) inline __attribute__((always_inline))
#else
#define PORTABLE_HIP_HD inline
#endif

// E(op) is what an operator does to each element.
#define PORTABLE_HIP_EACH1(op) a.x op b.x
#define PORTABLE_HIP_EACH2(op) PORTABLE_HIP_EACH1(op), a.y op b.y
#define PORTABLE_HIP_EACH3(op) PORTABLE_HIP_EACH2(op), a.z op b.z
#define PORTABLE_HIP_EACH4(op) PORTABLE_HIP_EACH3(op), a.w op b.w
#define PORTABLE_HIP_SAME1 a.x == b.x
#define PORTABLE_HIP_SAME2 PORTABLE_HIP_SAME1 && a.y == b.y
#define PORTABLE_HIP_SAME3 PORTABLE_HIP_SAME2 && a.z == b.z
#define PORTABLE_HIP_SAME4 PORTABLE_HIP_SAME3 && a.w == b.w
#define PORTABLE_HIP_ALL1(s) s
#define PORTABLE_HIP_ALL2(s) s, s
#define PORTABLE_HIP_ALL3(s) s, s, s
#define PORTABLE_HIP_ALL4(s) s, s, s, s

#define PORTABLE_HIP_OPERATOR(V, T, N, op)                                                                              \
    PORTABLE_HIP_HD V &operator op##=(V &a, const V &b) {                                                               \
        PORTABLE_HIP_EACH##N(op##=);                                                                                   \
        return a;                                                                                                       \
    }                                                                                                                   \
    PORTABLE_HIP_HD V operator op(V a, const V &b) { return a op##= b; }                                               \
    PORTABLE_HIP_HD V operator op(V a, T b) { return a op##= V{PORTABLE_HIP_ALL##N(b)}; }                              \
    PORTABLE_HIP_HD V operator op(T a, const V &b) { return V{PORTABLE_HIP_ALL##N(a)} op b; }

#define PORTABLE_HIP_VECTOR(V, T, N, ALIGN, MEMBERS)                                                                    \
    struct alignas(ALIGN) V {                                                                                           \
        T MEMBERS;                                                                                                      \
    };                                                                                                                  \
    PORTABLE_HIP_HD bool operator==(const V &a, const V &b) { return PORTABLE_HIP_SAME##N; }                            \
    PORTABLE_HIP_HD bool operator!=(const V &a, const V &b) { return !(a == b); }                                       \
    PORTABLE_HIP_OPERATOR(V, T, N, +)                                                                                   \
    PORTABLE_HIP_OPERATOR(V, T, N, -)                                                                                   \
    PORTABLE_HIP_OPERATOR(V, T, N, *)                                                                                   \
    PORTABLE_HIP_OPERATOR(V, T, N, /)

#define PORTABLE_HIP_COMMA ,
#define PORTABLE_HIP_VECTORS(name, T)                                                                                   \
    PORTABLE_HIP_VECTOR(name##1, T, 1, sizeof(T), x)                                                                    \
    PORTABLE_HIP_VECTOR(name##2, T, 2, 2 * sizeof(T), x PORTABLE_HIP_COMMA y)                                           \
    PORTABLE_HIP_VECTOR(name##3, T, 3, sizeof(T), x PORTABLE_HIP_COMMA y PORTABLE_HIP_COMMA z)                          \
    PORTABLE_HIP_VECTOR(name##4, T, 4, 4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T),                                         \
                        x PORTABLE_HIP_COMMA y PORTABLE_HIP_COMMA z PORTABLE_HIP_COMMA w)                               \
    PORTABLE_HIP_HD name##1 make_##name##1(T x) { return name##1{x}; }                                                  \
    PORTABLE_HIP_HD name##2 make_##name##2(T x, T y) { return name##2{x, y}; }                                          \
    PORTABLE_HIP_HD name##3 make_##name##3(T x, T y, T z) { return name##3{x, y, z}; }                                  \
    PORTABLE_HIP_HD name##4 make_##name##4(T x, T y, T z, T w) { return name##4{x, y, z, w}; }

PORTABLE_HIP_VECTORS(char, signed char)
PORTABLE_HIP_VECTORS(uchar, unsigned char)
PORTABLE_HIP_VECTORS(short, short)
PORTABLE_HIP_VECTORS(ushort, unsigned short)
PORTABLE_HIP_VECTORS(int, int)
PORTABLE_HIP_VECTORS(uint, unsigned int)
PORTABLE_HIP_VECTORS(long, long)
PORTABLE_HIP_VECTORS(ulong, unsigned long)
PORTABLE_HIP_VECTORS(longlong, long long)
PORTABLE_HIP_VECTORS(ulonglong, unsigned long long)
PORTABLE_HIP_VECTORS(float, float)
PORTABLE_HIP_VECTORS(double, double)
#endif
