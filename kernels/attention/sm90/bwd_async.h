// Registers of products under way.
#pragma once

#include "_lib/ptx/registers.h"
#include "_lib/ptx/thread_idx.h"

// Registers of a new product's own: undefined ones could be another's under way.
template <int COUNT> DEVICE void undefined(float* values) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "=f"(values[i]));
}

// Zeros, here and not where the compiler finds room, which may be between products.
template <int COUNT> DEVICE void clear(float* values) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(values[i])::"memory");
}

DEVICE float2 load_pair(uint32_t at) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(at) : "memory");
    return pair;
}
