// The names that HIP kernels use, on clang's builtins.
#pragma once

#if defined(__HIP__)
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __managed__ __attribute__((managed))
#define __forceinline__ inline __attribute__((always_inline))
#define PORTABLE_HIP_BOUNDS1(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define PORTABLE_HIP_BOUNDS2(threads, waves)                                                                           \
    __attribute__((amdgpu_flat_work_group_size(1, threads), amdgpu_waves_per_eu(waves)))
#define PORTABLE_HIP_BOUNDS(_1, _2, name, ...) name
#define __launch_bounds__(...)                                                                                         \
    PORTABLE_HIP_BOUNDS(__VA_ARGS__, PORTABLE_HIP_BOUNDS2, PORTABLE_HIP_BOUNDS1, )(__VA_ARGS__)

#include <hip/portable_math.h>

// Where a thread is --------------------------------------------------------------------------------

#define PORTABLE_HIP_INDEX(type, X, Y, Z)                                                                              \
    struct type {                                                                                                      \
        __declspec(property(get = get_x)) unsigned x;                                                                  \
        __declspec(property(get = get_y)) unsigned y;                                                                  \
        __declspec(property(get = get_z)) unsigned z;                                                                  \
        static __device__ __forceinline__ unsigned get_x() { return X; }                                               \
        static __device__ __forceinline__ unsigned get_y() { return Y; }                                               \
        static __device__ __forceinline__ unsigned get_z() { return Z; }                                               \
        __device__ __forceinline__ operator dim3() const { return dim3(get_x(), get_y(), get_z()); }                   \
    }
PORTABLE_HIP_INDEX(portable_hip_thread, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(),
                   __builtin_amdgcn_workitem_id_z());
PORTABLE_HIP_INDEX(portable_hip_block, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(),
                   __builtin_amdgcn_workgroup_id_z());
PORTABLE_HIP_INDEX(portable_hip_block_size, __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(),
                   __builtin_amdgcn_workgroup_size_z());
PORTABLE_HIP_INDEX(portable_hip_grid_size,
                   __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(),
                   __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y(),
                   __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z());
extern const __device__ portable_hip_thread threadIdx;
extern const __device__ portable_hip_block blockIdx;
extern const __device__ portable_hip_block_size blockDim;
extern const __device__ portable_hip_grid_size gridDim;

struct portable_hip_warp_size {
    __device__ __forceinline__ operator int() const { return __builtin_amdgcn_wavefrontsize(); }
};
extern const __device__ portable_hip_warp_size warpSize;

#define hipThreadIdx_x threadIdx.x
#define hipThreadIdx_y threadIdx.y
#define hipThreadIdx_z threadIdx.z
#define hipBlockIdx_x blockIdx.x
#define hipBlockIdx_y blockIdx.y
#define hipBlockIdx_z blockIdx.z
#define hipBlockDim_x blockDim.x
#define hipBlockDim_y blockDim.y
#define hipBlockDim_z blockDim.z
#define hipGridDim_x gridDim.x
#define hipGridDim_y gridDim.y
#define hipGridDim_z gridDim.z

PORTABLE_HIP_DEVICE unsigned __lane_id() {
    const unsigned low = __builtin_amdgcn_mbcnt_lo(~0u, 0u);
    return warpSize == 64 ? __builtin_amdgcn_mbcnt_hi(~0u, low) : low;
}

// Barriers and fences ------------------------------------------------------------------------------

PORTABLE_HIP_DEVICE void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
PORTABLE_HIP_DEVICE void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
PORTABLE_HIP_DEVICE void __threadfence_block() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"); }
PORTABLE_HIP_DEVICE void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }
PORTABLE_HIP_DEVICE void __syncwarp(unsigned long long = ~0ull) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

// Lanes of a wave ----------------------------------------------------------------------------------

PORTABLE_HIP_DEVICE unsigned long long __ballot(int predicate) {
    if (warpSize == 64) return __builtin_amdgcn_uicmp(predicate, 0, 33);
    return (unsigned)__builtin_amdgcn_uicmp(predicate, 0, 33);
}
PORTABLE_HIP_DEVICE unsigned long long __activemask() { return __ballot(1); }
PORTABLE_HIP_DEVICE int __any(int predicate) { return __ballot(predicate) != 0; }
PORTABLE_HIP_DEVICE int __all(int predicate) { return __ballot(predicate) == __activemask(); }
PORTABLE_HIP_DEVICE unsigned long long __ballot_sync(unsigned long long, int predicate) { return __ballot(predicate); }
PORTABLE_HIP_DEVICE int __any_sync(unsigned long long, int predicate) { return __any(predicate); }
PORTABLE_HIP_DEVICE int __all_sync(unsigned long long, int predicate) { return __all(predicate); }

// The value of another lane, word by word.
template <class T> PORTABLE_HIP_DEVICE T portable_hip_from_lane(T value, int lane) {
    struct words {
        int w[(sizeof(T) + 3) / 4];
    } moved = {};
    __builtin_memcpy(&moved, &value, sizeof(T));
    for (int &word : moved.w) word = __builtin_amdgcn_ds_bpermute(lane << 2, word);
    __builtin_memcpy(&value, &moved, sizeof(T));
    return value;
}
template <class T> PORTABLE_HIP_DEVICE T __shfl(T value, int lane, int width = warpSize) {
    const int self = __lane_id();
    return portable_hip_from_lane(value, (lane & (width - 1)) + (self & ~(width - 1)));
}
template <class T> PORTABLE_HIP_DEVICE T __shfl_up(T value, unsigned delta, int width = warpSize) {
    const int self = __lane_id(), from = self - (int)delta;
    return portable_hip_from_lane(value, from < (self & ~(width - 1)) ? self : from);
}
template <class T> PORTABLE_HIP_DEVICE T __shfl_down(T value, unsigned delta, int width = warpSize) {
    const int self = __lane_id();
    return portable_hip_from_lane(value, (self & (width - 1)) + (int)delta >= width ? self : self + (int)delta);
}
template <class T> PORTABLE_HIP_DEVICE T __shfl_xor(T value, int mask, int width = warpSize) {
    const int self = __lane_id(), from = self ^ mask;
    return portable_hip_from_lane(value, from >= ((self + width) & ~(width - 1)) ? self : from);
}
template <class T> PORTABLE_HIP_DEVICE T __shfl_sync(unsigned long long, T value, int lane, int width = warpSize) {
    return __shfl(value, lane, width);
}
template <class T>
PORTABLE_HIP_DEVICE T __shfl_up_sync(unsigned long long, T value, unsigned delta, int width = warpSize) {
    return __shfl_up(value, delta, width);
}
template <class T>
PORTABLE_HIP_DEVICE T __shfl_down_sync(unsigned long long, T value, unsigned delta, int width = warpSize) {
    return __shfl_down(value, delta, width);
}
template <class T> PORTABLE_HIP_DEVICE T __shfl_xor_sync(unsigned long long, T value, int mask, int width = warpSize) {
    return __shfl_xor(value, mask, width);
}

// Atomics: relaxed, of the whole GPU; those of a block, or with the host, have names of their own ----------

#define PORTABLE_HIP_ATOMICS(suffix, scope)                                                                            \
    template <class T, class U> PORTABLE_HIP_DEVICE T atomicAdd##suffix(T *at, U value) {                              \
        return __hip_atomic_fetch_add(at, (T)value, __ATOMIC_RELAXED, scope);                                          \
    }                                                                                                                  \
    template <class T, class U> PORTABLE_HIP_DEVICE T atomicSub##suffix(T *at, U value) {                              \
        return __hip_atomic_fetch_add(at, (T) - (T)value, __ATOMIC_RELAXED, scope);                                    \
    }                                                                                                                  \
    template <class T, class U> PORTABLE_HIP_DEVICE T atomicMin##suffix(T *at, U value) {                              \
        return __hip_atomic_fetch_min(at, (T)value, __ATOMIC_RELAXED, scope);                                          \
    }                                                                                                                  \
    template <class T, class U> PORTABLE_HIP_DEVICE T atomicMax##suffix(T *at, U value) {                              \
        return __hip_atomic_fetch_max(at, (T)value, __ATOMIC_RELAXED, scope);                                          \
    }                                                                                                                  \
    template <class T, class U> PORTABLE_HIP_DEVICE T atomicAnd##suffix(T *at, U value) {                              \
        return __hip_atomic_fetch_and(at, (T)value, __ATOMIC_RELAXED, scope);                                          \
    }                                                                                                                  \
    template <class T, class U> PORTABLE_HIP_DEVICE T atomicOr##suffix(T *at, U value) {                               \
        return __hip_atomic_fetch_or(at, (T)value, __ATOMIC_RELAXED, scope);                                           \
    }                                                                                                                  \
    template <class T, class U> PORTABLE_HIP_DEVICE T atomicXor##suffix(T *at, U value) {                              \
        return __hip_atomic_fetch_xor(at, (T)value, __ATOMIC_RELAXED, scope);                                          \
    }                                                                                                                  \
    template <class T, class U> PORTABLE_HIP_DEVICE T atomicExch##suffix(T *at, U value) {                             \
        return __hip_atomic_exchange(at, (T)value, __ATOMIC_RELAXED, scope);                                           \
    }                                                                                                                  \
    template <class T, class U, class V> PORTABLE_HIP_DEVICE T atomicCAS##suffix(T *at, U compare, V value) {          \
        T found = (T)compare;                                                                                          \
        __hip_atomic_compare_exchange_strong(at, &found, (T)value, __ATOMIC_RELAXED, __ATOMIC_RELAXED, scope);         \
        return found;                                                                                                  \
    }
PORTABLE_HIP_ATOMICS(, __HIP_MEMORY_SCOPE_AGENT)
PORTABLE_HIP_ATOMICS(_block, __HIP_MEMORY_SCOPE_WORKGROUP)
PORTABLE_HIP_ATOMICS(_system, __HIP_MEMORY_SCOPE_SYSTEM)

PORTABLE_HIP_DEVICE unsigned atomicInc(unsigned *at, unsigned most) {
    unsigned found = *at, before;
    do before = found, found = atomicCAS(at, before, before >= most ? 0u : before + 1);
    while (found != before);
    return found;
}
PORTABLE_HIP_DEVICE unsigned atomicDec(unsigned *at, unsigned most) {
    unsigned found = *at, before;
    do before = found, found = atomicCAS(at, before, before == 0 || before > most ? most : before - 1);
    while (found != before);
    return found;
}
PORTABLE_HIP_DEVICE void unsafeAtomicAdd(float *at, float value) { atomicAdd(at, value); }

// Integers and bits --------------------------------------------------------------------------------

PORTABLE_HIP_DEVICE int __popc(unsigned x) { return __builtin_popcount(x); }
PORTABLE_HIP_DEVICE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
PORTABLE_HIP_DEVICE int __clz(int x) { return x ? __builtin_clz(x) : 32; }
PORTABLE_HIP_DEVICE int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
PORTABLE_HIP_DEVICE int __ffs(unsigned x) { return x ? __builtin_ctz(x) + 1 : 0; }
PORTABLE_HIP_DEVICE int __ffsll(unsigned long long x) { return x ? __builtin_ctzll(x) + 1 : 0; }
PORTABLE_HIP_DEVICE unsigned __brev(unsigned x) { return __builtin_bitreverse32(x); }
PORTABLE_HIP_DEVICE unsigned long long __brevll(unsigned long long x) { return __builtin_bitreverse64(x); }
PORTABLE_HIP_DEVICE unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) result |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return result;
}
PORTABLE_HIP_DEVICE unsigned __bitextract_u32(unsigned x, unsigned start, unsigned bits) {
    return bits ? x << (32 - start - bits) >> (32 - bits) : 0;
}
PORTABLE_HIP_DEVICE int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
PORTABLE_HIP_DEVICE unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }
PORTABLE_HIP_DEVICE int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
PORTABLE_HIP_DEVICE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
#define X(name, to, from)                                                                                              \
    PORTABLE_HIP_DEVICE to name(from x) { return __builtin_bit_cast(to, x); }
X(__float_as_int, int, float)
X(__float_as_uint, unsigned, float)
X(__int_as_float, float, int)
X(__uint_as_float, float, unsigned)
X(__double_as_longlong, long long, double)
X(__longlong_as_double, double, long long)
#undef X
template <class T> PORTABLE_HIP_DEVICE T __ldg(const T *at) { return *at; }

#define X(name, sign)                                                                                                  \
    PORTABLE_HIP_DEVICE int name(int a, int b) { return a sign b ? a : b; }                                            \
    PORTABLE_HIP_DEVICE unsigned name(unsigned a, unsigned b) { return a sign b ? a : b; }                             \
    PORTABLE_HIP_DEVICE long name(long a, long b) { return a sign b ? a : b; }                                         \
    PORTABLE_HIP_DEVICE unsigned long name(unsigned long a, unsigned long b) { return a sign b ? a : b; }              \
    PORTABLE_HIP_DEVICE long long name(long long a, long long b) { return a sign b ? a : b; }                          \
    PORTABLE_HIP_DEVICE unsigned long long name(unsigned long long a, unsigned long long b) { return a sign b ? a : b; }
X(min, <)
X(max, >)
#undef X
PORTABLE_HIP_DEVICE float min(float a, float b) { return __builtin_fminf(a, b); }
PORTABLE_HIP_DEVICE float max(float a, float b) { return __builtin_fmaxf(a, b); }
PORTABLE_HIP_DEVICE double min(double a, double b) { return __builtin_fmin(a, b); }
PORTABLE_HIP_DEVICE double max(double a, double b) { return __builtin_fmax(a, b); }

PORTABLE_HIP_DEVICE void abort() { __builtin_trap(); }

#include <hip/portable_print.h>
#endif
