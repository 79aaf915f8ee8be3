// Names that kernels use on every vendor, as clang's HIP has them. Needs no header and no device library:
// every function is a compiler builtin or written out.
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

// -DT and -DW name types: f32, f16 or bf16. As typedefs they no longer collide with template parameters of
// that name.
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

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))

#define DEVICE __device__ inline __attribute__((always_inline))
// A block has exactly `threads` threads; KERNEL_RESIDENT also requests `blocks` of them per compute unit
// (four SIMD units each).
#define KERNEL(threads) extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(threads, threads)))
#define KERNEL_RESIDENT(threads, blocks)                                                                    \
    KERNEL(threads) __attribute__((amdgpu_waves_per_eu(((blocks) * (threads) / WARP + 3) / 4)))
#define SHARED __shared__
#define DYNAMIC_SHARED(name) extern __shared__ __attribute__((aligned(16))) char name[]
#if defined(__GFX9__)
#define WARP 64
#else
#define WARP 32
#endif
#define INF_F __builtin_inff()

DEVICE int thread_x() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
DEVICE int block_x() { return static_cast<int>(__builtin_amdgcn_workgroup_id_x()); }
DEVICE int block_y() { return static_cast<int>(__builtin_amdgcn_workgroup_id_y()); }
DEVICE int block_z() { return static_cast<int>(__builtin_amdgcn_workgroup_id_z()); }
DEVICE int grid_x() {
    return static_cast<int>(__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x());
}
DEVICE int block_threads() { return static_cast<int>(__builtin_amdgcn_workgroup_size_x()); }

DEVICE void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

DEVICE int min(int a, int b) { return a < b ? a : b; }
DEVICE int max(int a, int b) { return a > b ? a : b; }

DEVICE uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
DEVICE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

DEVICE int lane_of_wave() {
    const int low = __builtin_amdgcn_mbcnt_lo(~0u, 0u);
    return WARP == 64 ? __builtin_amdgcn_mbcnt_hi(~0u, low) : low;
}

// Every lane of the wave takes part. A lane that reads past the end gets its own value.
DEVICE int shuffle_xor(int value, int mask) {
    return __builtin_amdgcn_ds_bpermute((lane_of_wave() ^ mask) << 2, value);
}
DEVICE float shuffle_xor(float value, int mask) {
    return __builtin_bit_cast(float, shuffle_xor(__builtin_bit_cast(int, value), mask));
}
DEVICE float shuffle(float value, int lane) {
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(lane << 2, __builtin_bit_cast(int, value)));
}
DEVICE int shuffle_down(int value, int delta) {
    const int lane = lane_of_wave();
    return __builtin_amdgcn_ds_bpermute((lane + delta < WARP ? lane + delta : lane) << 2, value);
}
DEVICE float shuffle_down(float value, int delta) {
    return __builtin_bit_cast(float, shuffle_down(__builtin_bit_cast(int, value), delta));
}

#if defined(__GFX9__)
// Patterns by which lanes of a wave of 64 read each other within the vector pipe (DPP of the ISA guides).
#define SWAP_1 0xB1
#define SWAP_2 0x4E
#define MIRROR_8 0x141
#define MIRROR_16 0x140
#define ROW_BEFORE 0x142    // the last lane of the 16 before; lanes 0 to 15 get 0
#define LOWER_HALF 0x143    // lane 31; lanes 0 to 31 get 0
template <int PATTERN> DEVICE float lanes_moved(float value) {
    return float_of(__builtin_amdgcn_update_dpp(0, bits_of(value), PATTERN, 15, 15, true));
}
DEVICE float last_lane(float value) { return float_of(__builtin_amdgcn_readlane(bits_of(value), WARP - 1)); }
#if defined(__gfx950__)
// Of each two neighbouring groups of ROW (16 or 32) lanes: the value of the first group's or the second's lane, in both.
template <int ROW> DEVICE float rows_swapped(float value, int which) {
    const uint32_t bits = bits_of(value);
    if constexpr (ROW == 16) return float_of(__builtin_amdgcn_permlane16_swap(bits, bits, false, false)[which]);
    return float_of(__builtin_amdgcn_permlane32_swap(bits, bits, false, false)[which]);
}
#endif
#endif

DEVICE float to_float(float value) { return value; }
DEVICE float to_float(bf16 value) { return float_of(static_cast<uint32_t>(value.bits) << 16); }
DEVICE float to_float(f16 value) { return static_cast<float>(__builtin_bit_cast(_Float16, value)); }

// Rounds to nearest even.
template <class Type> DEVICE Type from_float(float value);
template <> DEVICE float from_float<float>(float value) { return value; }
template <> DEVICE bf16 from_float<bf16>(float value) {
    return __builtin_bit_cast(bf16, static_cast<__bf16>(value));
}
template <> DEVICE f16 from_float<f16>(float value) {
    // clang 22 selects v_fma_mixlo_f16 with +0 added for the rounding of a product, which makes -0 into +0. The
    // empty statement hides the product; found by comparing the emulated GPU with an H200 (2026-11-21).
    asm("" : "+v"(value));
    return __builtin_bit_cast(f16, static_cast<_Float16>(value));
}

// Two values rounded into one word, `low` in the lower half.
template <class Type> DEVICE uint32_t pack2(float low, float high) {
    return static_cast<uint32_t>(from_float<Type>(low).bits) |
           static_cast<uint32_t>(from_float<Type>(high).bits) << 16;
}
// A pair takes one instruction on gfx950 and nine elsewhere; one by one they take fifteen (clang 22).
template <> DEVICE uint32_t pack2<bf16>(float low, float high) {
    typedef float floats2 __attribute__((ext_vector_type(2)));
    typedef __bf16 brains2 __attribute__((ext_vector_type(2)));
    return __builtin_bit_cast(uint32_t, __builtin_convertvector((floats2{low, high}), brains2));
}

template <class Type, int N> struct alignas(sizeof(Type) * N) vec {
    Type v[N];
};

// 4, 8 or 16 bytes as words, moved by one instruction. Its address is a multiple of BYTES, or of ALIGN where a kernel
// defines that: global memory takes any (LLVM AMDGPU usage guide, unaligned-access-mode, which HSA sets).
#ifndef ALIGN
#define ALIGN 0
#endif
// A number that the compiler knows nothing of.
DEVICE int opaque(int number) {
    asm("" : "+v"(number));
    return number;
}
template <int BYTES> struct alignas(BYTES) words {
    uint32_t w[BYTES / 4];
};
template <int BYTES> struct machine_words {
    typedef uint32_t type __attribute__((ext_vector_type(BYTES / 4), aligned(ALIGN ? ALIGN : BYTES)));
};
template <int BYTES> DEVICE words<BYTES> load_words(const void* address) {
    return __builtin_bit_cast(words<BYTES>,
                              *static_cast<const typename machine_words<BYTES>::type*>(address));
}
// Data that is read once: leaves the caches to what is read again.
template <int BYTES> DEVICE words<BYTES> load_words_once(const void* address) {
    typedef typename machine_words<BYTES>::type type;
    return __builtin_bit_cast(words<BYTES>,
                              __builtin_nontemporal_load(static_cast<const type*>(address)));
}
template <int BYTES> DEVICE void store_words(void* address, words<BYTES> value) {
    typedef typename machine_words<BYTES>::type type;
    *static_cast<type*>(address) = __builtin_bit_cast(type, value);
}
template <int BYTES> DEVICE void store_global(void* address, words<BYTES> value) { store_words(address, value); }

// float32 maths, denormals kept. `math_exp2` is the fast one (2 ulp); `math_max` propagates NaN,
// `math_max_number` and `math_min_number` return the other operand.
DEVICE float math_exp(float x) { return __builtin_expf(x); }
DEVICE float math_exp2(float x) { return __builtin_exp2f(x); }
// The instruction itself, with denormal results as zero.
DEVICE float exp2_fast(float x) { return __builtin_amdgcn_exp2f(x); }
DEVICE float math_log(float x) { return __builtin_logf(x); }
DEVICE float math_sqrt(float x) { return __builtin_sqrtf(x); }
DEVICE float math_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// Two floats, on which gfx90a to gfx950 add, multiply and fuse with one instruction.
#define HAS_PAIRS
typedef float float_pair __attribute__((ext_vector_type(2)));
DEVICE float_pair pair_fma(float_pair a, float_pair b, float_pair c) { return __builtin_elementwise_fma(a, b, c); }
DEVICE float math_abs(float x) { return __builtin_fabsf(x); }
DEVICE float math_max(float a, float b) { return a > b || a != a ? a : b; }
DEVICE float math_max_number(float a, float b) { return __builtin_fmaxf(a, b); }
#if defined(__GFX9__)
// The greatest of three; of a signalling NaN, NaN. __builtin_fmaxf takes an instruction more to quieten each operand.
#define HAS_MAX3
DEVICE float max3_fast(float a, float b, float c) {
    float greatest;
    asm("v_max3_f32 %0, %1, %2, %3" : "=v"(greatest) : "v"(a), "v"(b), "v"(c));
    return greatest;
}
#endif
DEVICE float math_min_number(float a, float b) { return __builtin_fminf(a, b); }
// The reciprocal of a normal number, within 1 ulp.
DEVICE float rcp_fast(float x) { return __builtin_amdgcn_rcpf(x); }
DEVICE float div_rn(float a, float b) { return a / b; }
// Within 2 ulp for 2^-126 <= |b| <= 2^126; no branch.
DEVICE float div_fast(float a, float b) { return a * __builtin_amdgcn_rcpf(b); }
// The instruction takes a denormal for zero.
DEVICE float math_rsqrt(float x) {
    const bool tiny = x < 0x1p-100f;
    return __builtin_amdgcn_rsqf(tiny ? x * 0x1p40f : x) * (tiny ? 0x1p20f : 1.0f);
}
// Odd minimax polynomial below 5/8, then 1 - 2 / (1 + exp(2 |x|)): within 2 ulp.
DEVICE float math_tanh(float x) {
    const float a = math_abs(x);
    const float s = x * x;
    float p = -0x1.696fbcp-8f;
    p = math_fma(p, s, 0x1.4f5ea8p-6f);
    p = math_fma(p, s, -0x1.b7cfe6p-5f);
    p = math_fma(p, s, 0x1.1103f2p-3f);
    p = math_fma(p, s, -0x1.555524p-2f);
    const float outer = 1.0f - 2.0f * __builtin_amdgcn_rcpf(1.0f + math_exp(2.0f * a));
    return a < 0.625f ? math_fma(x * s, p, x) : __builtin_copysignf(outer, x);
}
// Odd minimax polynomial below 1, then 1 - exp(-q(|x|)): within 2.1 ulp.
DEVICE float math_erf(float x) {
    const float a = math_abs(x);
    const float s = x * x;
    float p = 0x1.496942p-14f;
    p = math_fma(p, s, -0x1.a3f6acp-11f);
    p = math_fma(p, s, 0x1.5405a6p-8f);
    p = math_fma(p, s, -0x1.b7f90cp-6f);
    p = math_fma(p, s, 0x1.ce2cf8p-4f);
    p = math_fma(p, s, -0x1.81273ep-2f);
    p = math_fma(p, s, 0x1.06eba8p-3f);
    const float t = __builtin_fminf(a, 4.0f) - 2.5f;
    float q = -0x1.852ea4p-13f;
    q = math_fma(q, t, 0x1.471fe0p-13f);
    q = math_fma(q, t, -0x1.42267cp-9f);
    q = math_fma(q, t, 0x1.5f32fap-7f);
    q = math_fma(q, t, 0x1.e344f2p-1f);
    q = math_fma(q, t, 0x1.56928ap+2f);
    q = math_fma(q, t, 0x1.f3a2e8p+2f);
    const float outer = __builtin_copysignf(1.0f - math_exp(-q), x);
    return a < 1.0f ? math_fma(x, p, x) : (a >= 1.0f ? outer : x);
}
