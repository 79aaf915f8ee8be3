// sm_80 and later: asynchronous copies into shared memory (cp.async), and a warp's products of 16-bit operands
// (mma.sync).
#pragma once

#include "prelude.h"

// 16 bytes, of which the first `valid` are copied and the rest are zeros.
DEVICE void copy_async(uint32_t to, const void* from, int valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}
// 8 bytes.
DEVICE void copy_pair(uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
// 4 bytes.
DEVICE void copy_word(uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
// 4 bytes, or as many zeros where `valid` is 0.
DEVICE void copy_word(uint32_t to, const void* from, int valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> DEVICE void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// c (16 x 8, float32) += a (16 x 16) @ b (16 x 8). Thread t has rows t / 4 and the eighth below it of a and c, at
// columns t % 4 * 2 and the next (a: then 8 columns on), and column t / 4 of b at such rows.
template <class Type> struct Product;
#define PRODUCT(TYPE, NAME)                                                                                       \
    template <> struct Product<TYPE> {                                                                            \
        static DEVICE void add(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {                           \
            asm("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 {%0, %1, %2, %3}, "                  \
                "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                                   \
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                  \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                  \
        }                                                                                                         \
    }
PRODUCT(bf16, "bf16");
PRODUCT(f16, "f16");
