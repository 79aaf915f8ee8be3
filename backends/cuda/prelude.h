// Names that kernels use on every vendor, as CUDA C++ has them. Needs no header, so NVRTC starts fast.
#pragma once

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
#if defined(_WIN32)
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
typedef long int64_t;
typedef unsigned long uint64_t;
#endif

// Sixteen-bit floats are storage only; arithmetic is in float.
typedef float f32;
struct alignas(2) f16 {
    uint16_t bits;
};
struct alignas(2) bf16 {
    uint16_t bits;
};

// -DT and -DW name types: f32, f16 or bf16 (not `float`: the compiler's own headers have templates over T).
// As typedefs they no longer collide with template parameters of that name.
#ifdef T
typedef T element_type;
#undef T
typedef element_type T;
#endif
#ifdef W
typedef W weight_type;
#undef W
typedef weight_type W;
#endif

#define DEVICE __device__ __forceinline__
// A block has exactly `threads` threads; KERNEL_RESIDENT also requests `blocks` of them per multiprocessor.
#define KERNEL(threads) extern "C" __global__ __launch_bounds__(threads)
#define KERNEL_RESIDENT(threads, blocks) extern "C" __global__ __launch_bounds__(threads, blocks)
#define SHARED __shared__
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) char name[]
#define WARP 32
#define INF_F __int_as_float(0x7f800000)

DEVICE int thread_x() { return static_cast<int>(threadIdx.x); }
DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
DEVICE int block_z() { return static_cast<int>(blockIdx.z); }
DEVICE int grid_x() { return static_cast<int>(gridDim.x); }
DEVICE int block_threads() { return static_cast<int>(blockDim.x); }

DEVICE void barrier() { __syncthreads(); }

// Every lane of the warp takes part. A lane that reads past the end gets its own value.
DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
DEVICE int shuffle_xor(int value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
DEVICE float shuffle_down(float value, int delta) { return __shfl_down_sync(0xffffffffu, value, delta); }
DEVICE int shuffle_down(int value, int delta) { return __shfl_down_sync(0xffffffffu, value, delta); }

DEVICE uint32_t bits_of(float value) { return __float_as_uint(value); }
DEVICE float float_of(uint32_t bits) { return __uint_as_float(bits); }


DEVICE float to_float(float value) { return value; }
DEVICE float to_float(bf16 value) { return __uint_as_float(static_cast<uint32_t>(value.bits) << 16); }
DEVICE float to_float(f16 value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
}

// Rounds to nearest even.
template <class Type> DEVICE Type from_float(float value);
template <> DEVICE float from_float<float>(float value) { return value; }
template <> DEVICE bf16 from_float<bf16>(float value) {
    bf16 narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
    return narrow;
}
template <> DEVICE f16 from_float<f16>(float value) {
    f16 narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
    return narrow;
}

// Two values rounded into one word, `low` in the lower half.
template <class Type> DEVICE uint32_t pack2(float low, float high);
template <> DEVICE uint32_t pack2<bf16>(float low, float high) {
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
template <> DEVICE uint32_t pack2<f16>(float low, float high) {
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

// The greater of the two lower and of the two upper values of two words; where one is NaN, the other.
#define HAS_MAX_PAIR
template <class Type> DEVICE uint32_t max_pair(uint32_t a, uint32_t b);
template <> DEVICE uint32_t max_pair<bf16>(uint32_t a, uint32_t b) {
    uint32_t most;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
    return most;
}
template <> DEVICE uint32_t max_pair<f16>(uint32_t a, uint32_t b) {
    uint32_t most;
    asm("max.f16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
    return most;
}

template <class Type, int N> struct alignas(sizeof(Type) * N) vec {
    Type v[N];
};

// 4, 8 or 16 bytes as words, moved by one instruction.
template <int BYTES> struct words;
template <> struct alignas(4) words<4> {
    uint32_t w[1];
};
template <> struct alignas(8) words<8> {
    uint32_t w[2];
};
template <> struct alignas(16) words<16> {
    uint32_t w[4];
};

template <int BYTES> DEVICE words<BYTES> load_words(const void* address);
template <> DEVICE words<4> load_words<4>(const void* address) {
    return {{*static_cast<const uint32_t*>(address)}};
}
template <> DEVICE words<8> load_words<8>(const void* address) {
    const uint2 two = *static_cast<const uint2*>(address);
    return {{two.x, two.y}};
}
template <> DEVICE words<16> load_words<16>(const void* address) {
    const uint4 four = *static_cast<const uint4*>(address);
    return {{four.x, four.y, four.z, four.w}};
}
// Data that is read once, loaded as any other: with L1::no_allocate the row ops are 4 to 5 % slower, with .cs
// 3 %, with L2::256B 6 % (H200, 2026-11-21).
template <int BYTES> DEVICE words<BYTES> load_words_once(const void* address) {
    return load_words<BYTES>(address);
}
DEVICE void store_words(void* address, words<4> value) { *static_cast<uint32_t*>(address) = value.w[0]; }
DEVICE void store_words(void* address, words<8> value) {
    *static_cast<uint2*>(address) = make_uint2(value.w[0], value.w[1]);
}
DEVICE void store_words(void* address, words<16> value) {
    *static_cast<uint4*>(address) = make_uint4(value.w[0], value.w[1], value.w[2], value.w[3]);
}
// To global memory, by one instruction also where inline assembly made the words: NVVM stores those one by one.
template <int BYTES> DEVICE void store_global(void* address, words<BYTES> value) { store_words(address, value); }
template <> DEVICE void store_global<8>(void* address, words<8> value) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(address)), "r"(value.w[0]),
                 "r"(value.w[1])
                 : "memory");
}
template <> DEVICE void store_global<16>(void* address, words<16> value) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(address)),
                 "r"(value.w[0]), "r"(value.w[1]), "r"(value.w[2]), "r"(value.w[3])
                 : "memory");
}

// float32 maths, denormals kept. `math_exp2` is the fast one (2 ulp); `math_max` propagates NaN,
// `math_max_number` and `math_min_number` return the other operand.
DEVICE float math_exp(float x) { return expf(x); }
DEVICE float math_exp2(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// The same with denormal results as zero: one instruction.
DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float math_log(float x) { return logf(x); }
DEVICE float math_rsqrt(float x) { return rsqrtf(x); }
DEVICE float math_sqrt(float x) { return __fsqrt_rn(x); }
DEVICE float math_tanh(float x) { return tanhf(x); }
DEVICE float math_erf(float x) { return erff(x); }
DEVICE float math_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float math_abs(float x) { return fabsf(x); }
DEVICE float math_max(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}
DEVICE float math_max_number(float a, float b) { return fmaxf(a, b); }
DEVICE float math_min_number(float a, float b) { return fminf(a, b); }
// The reciprocal of a normal number, within 1 ulp.
DEVICE float rcp_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float div_rn(float a, float b) { return __fdiv_rn(a, b); }
// Within 2 ulp for 2^-126 <= |b| <= 2^126; no branch.
DEVICE float div_fast(float a, float b) { return __fdividef(a, b); }
