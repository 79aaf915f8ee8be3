// Hopper's warpgroup matrix instructions (wgmma) of int8 operands, both K-major, and int32 accumulators, which are exact
// and wrap around. Needs sm_90a.
#pragma once

#include "wgmma.h"

#undef WGMMA_KIND
#define WGMMA_KIND "+r"

#define WGMMA_INT8(N, COUNT, A, B, P)                                                                      \
    template <> struct WgmmaInt8<N> {                                                                      \
        static DEVICE void run(uint32_t* d, uint64_t a, uint64_t b, int accumulate) {                      \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                                  \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.s32.s8.s8 {" WGMMA_NAMES_##COUNT      \
                         "}, %" #A ", %" #B ", p;\n}"                                                      \
                         : WGMMA_SUMS_##COUNT(d)                                                           \
                         : "l"(a), "l"(b), "r"(accumulate));                                               \
        }                                                                                                  \
    }
// d (64 x N, int32) = a (64 x 32) @ b (32 x N), plus d where `accumulate`; both operands by descriptor.
template <int N> struct WgmmaInt8;
WGMMA_INT8(64, 32, 32, 33, 34);
WGMMA_INT8(128, 64, 64, 65, 66);
WGMMA_INT8(192, 96, 96, 97, 98);
WGMMA_INT8(256, 128, 128, 129, 130);

// The same with a in registers. Of a warp's 16 rows of a, thread t holds four words: rows t / 4 and t / 4 + 8 at columns
// t % 4 * 4 and the next three, then both 16 columns on.
#define WGMMA_INT8_RS(N, COUNT, A0, A1, A2, A3, B, P)                                                      \
    template <> struct WgmmaInt8Rs<N> {                                                                    \
        static DEVICE void run(uint32_t* d, const uint32_t* a, uint64_t b, int accumulate) {               \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                                  \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.s32.s8.s8 {" WGMMA_NAMES_##COUNT      \
                         "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p;\n}"                     \
                         : WGMMA_SUMS_##COUNT(d)                                                           \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));           \
        }                                                                                                  \
    }
template <int N> struct WgmmaInt8Rs;
WGMMA_INT8_RS(64, 32, 32, 33, 34, 35, 36, 37);
WGMMA_INT8_RS(128, 64, 64, 65, 66, 67, 68, 69);

#undef WGMMA_KIND
#define WGMMA_KIND "+f"
