// As matrix.hip: the instructions of gfx950 that scale blocks of their operands.
#include "prelude.h"

typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef float f32x16 __attribute__((ext_vector_type(16)));
typedef int i32x8 __attribute__((ext_vector_type(8)));

#define MATRIX(name, A, C, call)                                                                             \
    KERNEL(WARP) void name(C* d, const A* a, const A* b, const C* c) {                                       \
        const int t = thread_x();                                                                            \
        const A x = a[t], y = b[t];                                                                          \
        const C z = c[t];                                                                                    \
        d[t] = call;                                                                                         \
    }
MATRIX(mfma_scale_f32_16x16x128_f8f6f4, i32x8, f32x4,
       __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(x, y, z, 0, 0, 0, 0x80808080, 0, 0x7e7e7e7e))
MATRIX(mfma_scale_f32_32x32x64_f8f6f4, i32x8, f32x16,
       __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(x, y, z, 0, 0, 0, 0x81818181, 0, 0x7f7f7f7f))
