// Accesses to LDS that the emulator looks at for many lanes at once (native/lds_marks.h); test_lds_marks.py.
#include "prelude.h"

#define BARRIER()                                                                                            \
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");                                                   \
    __builtin_amdgcn_s_barrier();                                                                            \
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup")

// Every wave reads its part `rounds` times; then wave 1 writes from `there` on.
KERNEL(128) void write_after_many_reads(int* y, const int* x, int rounds, int there) {
    SHARED int s[256];
    const int t = thread_x();
    s[t] = s[t + 128] = x[t];
    BARRIER();
    int sum = 0;
    for (int k = 0; k < rounds; ++k) sum += *(volatile int*)&s[t];
    if (t / WARP == 1) s[there + t - WARP] = sum;
    y[t] = sum;
}

typedef uint32_t Four __attribute__((ext_vector_type(4)));

#define PLACED(name, type)                                                                                   \
    KERNEL(64) void name(type* y, const type* x, const int* place) {                                         \
        SHARED type s[64];                                                                                   \
        s[place[thread_x()]] = x[thread_x()];                                                                \
        BARRIER();                                                                                           \
        y[thread_x()] = s[thread_x()];                                                                       \
    }
PLACED(placed_u8, uint8_t)
PLACED(placed_u16, uint16_t)
PLACED(placed_u32, uint32_t)
PLACED(placed_u64, uint64_t)
PLACED(placed_u128, Four)

// All of it is defined and read; then thread `at` writes what is not.
KERNEL(64) void undefined_again(int* y, const int* x, int at) {
    SHARED int s[64];
    const int t = thread_x();
    s[t] = x[t];
    BARRIER();
    const int before = *(volatile int*)&s[63 - t];
    BARRIER();
    int v;
    asm volatile("v_mov_b32 %0, v100" : "=v"(v) : : "v100");
    if (t == at) s[t] = v;
    BARRIER();
    y[t] = s[63 - t] + before;
}
