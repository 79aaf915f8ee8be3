// Hopper's warpgroup matrix instructions with a sparse a (wgmma.mma_async.sp), 16-bit operands and float32
// accumulators. Needs sm_90a and -DELEMENT=bf16|f16.
#pragma once

#include "wgmma.h"

// d (64 x N, float32) = a (64 x 32, of each four along k two values: 64 x 16 in shared memory) @ b (32 x N), plus d
// where `accumulate`; both operands K-major, by descriptor. COUNT is N / 2; A, B, E, S, P number the instruction's
// operands after the accumulators.
//
// SELECTOR (0 or 1) says which pair of each four threads gives `meta`, the places of the values: threads 2 * SELECTOR and
// the next. Of a warp's 16 rows thread t gives those of row t / 4 in its lower 16 bits and of the eighth row below it in
// the upper ones, at k 0 to 15 where t is even and 16 to 31 where it is odd; 4 bits a group of four, the first place in
// the lower two, in ascending order.
#define WGMMA_SP(N, COUNT, A, B, E, S, P)                                                                  \
    template <> struct WgmmaSp<N> {                                                                        \
        template <int SELECTOR>                                                                            \
        static DEVICE void run(float* d, uint64_t a, uint64_t b, uint32_t meta, int accumulate) {          \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                                  \
                         "wgmma.mma_async.sp.sync.aligned.m64n" #N "k32.f32." ELEMENT_NAME "." ELEMENT_NAME \
                         " {" WGMMA_NAMES_##COUNT "}, %" #A ", %" #B ", %" #E ", %" #S ", p, 1, 1, 0, 0;\n}" \
                         : WGMMA_SUMS_##COUNT(d)                                                           \
                         : "l"(a), "l"(b), "r"(meta), "n"(SELECTOR), "r"(accumulate));                     \
        }                                                                                                  \
    }
template <int N> struct WgmmaSp;
WGMMA_SP(64, 32, 32, 33, 34, 35, 36);
WGMMA_SP(128, 64, 64, 65, 66, 67, 68);
WGMMA_SP(192, 96, 96, 97, 98, 99, 100);
WGMMA_SP(256, 128, 128, 129, 130, 131, 132);
