// Small kernels that between them use most kinds of instruction: test_fuzz_launch.py damages their bytes.
#include "prelude.h"

KERNEL(128) void blend(float* y, const float* x, float scale, int n) {
    SHARED float s[128];
    const int t = thread_x(), i = block_x() * 128 + t;
    s[t] = i < n ? x[i] * scale : 0.0f;
    barrier();
    float sum = 0.0f;
    for (int k = 0; k < (t & 7) + 1; ++k) {
        sum += s[(t + k) & 127];
    }
    if (i < n) {
        y[i] = math_exp2(sum) / (1.0f + shuffle_xor(sum, 1) * sum);
    }
}

KERNEL(64) void tally(uint32_t* bins, const uint8_t* x, int n) {
    uint32_t own[48];
    for (int k = 0; k < 48; ++k) {
        own[k] = 0;
    }
    const int i = block_x() * 64 + thread_x();
    for (int k = i; k < n; k += 64 * grid_x()) {
        own[x[k] % 48] += 1 + k / (x[k] + 1);
    }
    for (int k = 0; k < 48; ++k) {
        __hip_atomic_fetch_add(bins + k, own[k], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    }
}

typedef _Float16 half16 __attribute__((ext_vector_type(16)));
typedef _Float16 half8 __attribute__((ext_vector_type(8)));
typedef _Float16 half4 __attribute__((ext_vector_type(4)));
typedef float float8 __attribute__((ext_vector_type(8)));
typedef float float4 __attribute__((ext_vector_type(4)));
KERNEL(WARP) void product(float* y, const _Float16* x) {
    const int t = thread_x();
#if defined(__GFX9__)
    const half4 a = reinterpret_cast<const half4*>(x)[t];
    const float4 d = __builtin_amdgcn_mfma_f32_16x16x16f16(a, a, float4{}, 0, 0, 0);
    reinterpret_cast<float4*>(y)[t] = d;
#elif defined(__GFX11__)
    const half16 a = reinterpret_cast<const half16*>(x)[t % 16];
    reinterpret_cast<float8*>(y)[t] = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, a, float8{});
#else
    const half8 a = reinterpret_cast<const half8*>(x)[t];
    reinterpret_cast<float8*>(y)[t] = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, a, float8{});
#endif
}
