// Copies without tensor maps, and registers of products under way.
#pragma once

#include "_lib/ptx/thread_idx.h"
#include "gemm.h"

DEVICE void bulk_store(void* to, uint32_t from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}
DEVICE void wait_stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Registers that a product under way reads or writes stay as they are up to here.
template <int COUNT> DEVICE void hold(float* values) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int COUNT> DEVICE void hold(uint32_t* values) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

// Registers of a new product's own: undefined ones could be another's under way.
template <int COUNT> DEVICE void claim(float* values) {
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
