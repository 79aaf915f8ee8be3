// One kernel per matrix instruction: a wave loads its registers of A, B and C from rows of arrays, one row
// a lane, and stores its registers of D. The layouts of those registers are written out in Python.
#include "prelude.h"

#define VECTOR(name, type, count) typedef type name __attribute__((ext_vector_type(count)))
VECTOR(f32x4, float, 4);
VECTOR(f32x8, float, 8);
VECTOR(f32x16, float, 16);
VECTOR(f32x32, float, 32);
VECTOR(f32x2, float, 2);
VECTOR(f64x4, double, 4);
VECTOR(i32x2, int, 2);
VECTOR(i32x4, int, 4);
VECTOR(i32x8, int, 8);
VECTOR(i32x16, int, 16);
VECTOR(i32x32, int, 32);
VECTOR(i16x2, short, 2);
VECTOR(i16x4, short, 4);
VECTOR(i16x8, short, 8);
VECTOR(i16x16, short, 16);
VECTOR(h16x4, _Float16, 4);
VECTOR(h16x8, _Float16, 8);
VECTOR(h16x16, _Float16, 16);
VECTOR(b16x8, __bf16, 8);

#define MATRIX(name, A, C, call)                                                                             \
    KERNEL(WARP) void name(C* d, const A* a, const A* b, const C* c) {                                       \
        const int t = thread_x();                                                                            \
        const A x = a[t], y = b[t];                                                                          \
        const C z = c[t];                                                                                    \
        d[t] = call;                                                                                         \
    }
#define MFMA(kind, A, C) MATRIX(mfma_##kind, A, C, __builtin_amdgcn_mfma_##kind(x, y, z, 0, 0, 0))
// With the modifiers that repeat a block of A (cbsz, abid) or lanes of B (blgp).
#define MFMA_AS(name, kind, A, C, cbsz, abid, blgp)                                                          \
    MATRIX(mfma_##name, A, C, __builtin_amdgcn_mfma_##kind(x, y, z, cbsz, abid, blgp))

#if defined(__GFX9__)
MFMA(f32_32x32x8f16, h16x4, f32x16)
MFMA(f32_16x16x16f16, h16x4, f32x4)
MFMA(f32_32x32x4f16, h16x4, f32x32)
MFMA(f32_16x16x4f16, h16x4, f32x16)
MFMA(f32_4x4x4f16, h16x4, f32x4)
MFMA(f32_32x32x8bf16_1k, i16x4, f32x16)
MFMA(f32_16x16x16bf16_1k, i16x4, f32x4)
MFMA(f32_32x32x4bf16_1k, i16x4, f32x32)
MFMA(f32_16x16x4bf16_1k, i16x4, f32x16)
MFMA(f32_4x4x4bf16_1k, i16x4, f32x4)
MFMA(f32_32x32x2f32, float, f32x16)
MFMA(f32_16x16x4f32, float, f32x4)
MFMA(f32_32x32x1f32, float, f32x32)
MFMA(f32_16x16x1f32, float, f32x16)
MFMA(f32_4x4x1f32, float, f32x4)
MFMA(i32_32x32x4i8, int, i32x32)
MFMA(i32_16x16x4i8, int, i32x16)
MFMA(i32_4x4x4i8, int, i32x4)
MFMA(f64_16x16x4f64, double, f64x4)
MFMA(f64_4x4x4f64, double, double)
MFMA_AS(a_block_1, f32_32x32x1f32, float, f32x32, 1, 1, 0)
MFMA_AS(a_block_0_of_2, f32_16x16x1f32, float, f32x16, 1, 0, 0)
MFMA_AS(a_block_3_of_4, f32_16x16x4f16, h16x4, f32x16, 2, 3, 0)
MFMA_AS(a_block_5_of_8, f32_4x4x1f32, float, f32x4, 3, 5, 0)
MFMA_AS(b_low_half, f32_32x32x1f32, float, f32x32, 0, 0, 1)
MFMA_AS(b_high_half, f32_16x16x1f32, float, f32x16, 0, 0, 2)
MFMA_AS(b_quarter_2, f32_16x16x1f32, float, f32x16, 0, 0, 6)
#endif

#if defined(__gfx90a__)
MFMA(i32_32x32x8i8, int, i32x16)
MFMA(i32_16x16x16i8, int, i32x4)
MFMA(f32_32x32x4bf16, i16x2, f32x16)
MFMA(f32_16x16x8bf16, i16x2, f32x4)
MFMA(f32_32x32x2bf16, i16x2, f32x32)
MFMA(f32_16x16x2bf16, i16x2, f32x16)
MFMA(f32_4x4x2bf16, i16x2, f32x4)
#elif defined(__GFX9__)
MFMA(i32_32x32x16_i8, int64_t, i32x16)
MFMA(i32_16x16x32_i8, int64_t, i32x4)
MFMA(f32_32x32x16_fp8_fp8, int64_t, f32x16)
MFMA(f32_16x16x32_fp8_fp8, int64_t, f32x4)
MFMA(f32_32x32x16_bf8_fp8, int64_t, f32x16)
MFMA(f32_16x16x32_bf8_bf8, int64_t, f32x4)
MFMA(f32_16x16x32_fp8_bf8, int64_t, f32x4)
#endif

#if defined(__gfx942__)
MFMA(f32_32x32x4_xf32, f32x2, f32x16)
MFMA(f32_16x16x8_xf32, f32x2, f32x4)
#endif

#if defined(__gfx950__)
MFMA(f32_32x32x16_f16, h16x8, f32x16)
MFMA(f32_16x16x32_f16, h16x8, f32x4)
MFMA(f32_32x32x16_bf16, b16x8, f32x16)
MFMA(f32_16x16x32_bf16, b16x8, f32x4)
MFMA(i32_32x32x32_i8, i32x4, i32x16)
MFMA(i32_16x16x64_i8, i32x4, i32x4)
#endif

#if defined(__GFX11__)
#define WMMA(kind, A, C) MATRIX(wmma_##kind, A, C, __builtin_amdgcn_wmma_##kind##_w32(x, y, z))
WMMA(f32_16x16x16_f16, h16x16, f32x8)
WMMA(f32_16x16x16_bf16, i16x16, f32x8)
MATRIX(wmma_f16_16x16x16_f16, h16x16, h16x16, __builtin_amdgcn_wmma_f16_16x16x16_f16_w32(x, y, z, false))
MATRIX(wmma_f16_16x16x16_f16_high, h16x16, h16x16, __builtin_amdgcn_wmma_f16_16x16x16_f16_w32(x, y, z, true))
MATRIX(wmma_bf16_16x16x16_bf16, i16x16, i16x16, __builtin_amdgcn_wmma_bf16_16x16x16_bf16_w32(x, y, z, false))
#define WMMA_I(name, kind, A, a_signed, b_signed)                                                            \
    MATRIX(wmma_##name, A, i32x8, __builtin_amdgcn_wmma_##kind##_w32(a_signed, x, b_signed, y, z, false))
WMMA_I(i32_16x16x16_iu8_ss, i32_16x16x16_iu8, i32x4, true, true)
WMMA_I(i32_16x16x16_iu8_us, i32_16x16x16_iu8, i32x4, false, true)
WMMA_I(i32_16x16x16_iu8_uu, i32_16x16x16_iu8, i32x4, false, false)
WMMA_I(i32_16x16x16_iu4_ss, i32_16x16x16_iu4, i32x2, true, true)
WMMA_I(i32_16x16x16_iu4_su, i32_16x16x16_iu4, i32x2, true, false)
#endif

#if defined(__GFX12__)
#define WMMA(kind, A, C) MATRIX(wmma_##kind, A, C, __builtin_amdgcn_wmma_##kind##_w32_gfx12(x, y, z))
WMMA(f32_16x16x16_f16, h16x8, f32x8)
WMMA(f32_16x16x16_bf16, i16x8, f32x8)
WMMA(f16_16x16x16_f16, h16x8, h16x8)
WMMA(bf16_16x16x16_bf16, i16x8, i16x8)
WMMA(f32_16x16x16_fp8_fp8, i32x2, f32x8)
WMMA(f32_16x16x16_fp8_bf8, i32x2, f32x8)
WMMA(f32_16x16x16_bf8_fp8, i32x2, f32x8)
WMMA(f32_16x16x16_bf8_bf8, i32x2, f32x8)
#define WMMA_I(name, kind, A, a_signed, b_signed)                                                            \
    MATRIX(wmma_##name, A, i32x8, __builtin_amdgcn_wmma_##kind##_w32_gfx12(a_signed, x, b_signed, y, z, false))
WMMA_I(i32_16x16x16_iu8_ss, i32_16x16x16_iu8, i32x2, true, true)
WMMA_I(i32_16x16x16_iu8_us, i32_16x16x16_iu8, i32x2, false, true)
WMMA_I(i32_16x16x16_iu8_uu, i32_16x16x16_iu8, i32x2, false, false)
WMMA_I(i32_16x16x16_iu4_ss, i32_16x16x16_iu4, int, true, true)
WMMA_I(i32_16x16x16_iu4_su, i32_16x16x16_iu4, int, true, false)
WMMA_I(i32_16x16x32_iu4_ss, i32_16x16x32_iu4, i32x2, true, true)
WMMA_I(i32_16x16x32_iu4_su, i32_16x16x32_iu4, i32x2, true, false)
#endif
