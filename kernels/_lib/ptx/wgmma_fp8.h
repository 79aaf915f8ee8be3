// Hopper's warpgroup matrix instructions (wgmma) of fp8 operands, both K-major, and float32 accumulators, which keep 13
// bits below the greatest of the products that an instruction adds (docs/notes/scaled_mm.md). Needs sm_90a,
// -DA_ELEMENT=e4m3|e5m2 and -DB_ELEMENT.
#pragma once

#include "wgmma.h"

#define WGMMA_FP8(N, COUNT, A, B, P)                                                                        \
    template <> struct WgmmaFp8<N> {                                                                       \
        static DEVICE void run(float* d, uint64_t a, uint64_t b, int accumulate) {                         \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                                  \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." STRING(A_ELEMENT) "."           \
                         STRING(B_ELEMENT) " {" WGMMA_NAMES_##COUNT "}, %" #A ", %" #B ", p, 1, 1;\n}"     \
                         : WGMMA_SUMS_##COUNT(d)                                                           \
                         : "l"(a), "l"(b), "r"(accumulate));                                               \
        }                                                                                                  \
    }
// d (64 x N, float32) = a (64 x 32) @ b (32 x N), plus d where `accumulate`; both operands by descriptor.
template <int N> struct WgmmaFp8;
WGMMA_FP8(64, 32, 32, 33, 34);
WGMMA_FP8(96, 48, 48, 49, 50);
WGMMA_FP8(128, 64, 64, 65, 66);
WGMMA_FP8(192, 96, 96, 97, 98);
WGMMA_FP8(256, 128, 128, 129, 130);

// The same with a in registers. Of a warp's 16 rows of a, thread t holds four words: rows t / 4 and t / 4 + 8 at
// columns t % 4 * 4 and the next three, then both 16 columns on.
#define WGMMA_FP8_RS(N, COUNT, A0, A1, A2, A3, B, P)                                                       \
    template <> struct WgmmaFp8Rs<N> {                                                                     \
        static DEVICE void run(float* d, const uint32_t* a, uint64_t b, int accumulate) {                  \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                                  \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." STRING(A_ELEMENT) "."           \
                         STRING(B_ELEMENT) " {" WGMMA_NAMES_##COUNT "}, {%" #A0 ", %" #A1 ", %" #A2        \
                         ", %" #A3 "}, %" #B ", p, 1, 1;\n}"                                               \
                         : WGMMA_SUMS_##COUNT(d)                                                           \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));           \
        }                                                                                                  \
    }
template <int N> struct WgmmaFp8Rs;
WGMMA_FP8_RS(64, 32, 32, 33, 34, 35, 36, 37);
WGMMA_FP8_RS(128, 64, 64, 65, 66, 67, 68, 69);
