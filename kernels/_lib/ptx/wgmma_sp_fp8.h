// Hopper's warpgroup matrix instructions with a sparse a (wgmma.mma_async.sp) of fp8 operands and float32 accumulators,
// which keep as few bits as the dense ones' (wgmma_fp8.h). Needs sm_90a and -DELEMENT=e4m3|e5m2.
#pragma once

#include "wgmma.h"

// d (64 x N, float32) = a (64 x 64, of each four along k two values: 64 x 32 in shared memory) @ b (64 x N), plus d
// where `accumulate`; both operands K-major, by descriptor. COUNT is N / 2; A, B, E, P number the instruction's operands
// after the accumulators.
//
// All threads give `meta`, the places of the values of 32 k of a row, 4 bits a group of four as in wgmma_sp.h. Of a warp's
// 16 rows thread t gives those of row t / 4, or where t is odd of the eighth row below it, at k 0 to 31 where t % 4 is 0
// or 1 and 32 to 63 where it is 2 or 3.
#define WGMMA_SP_FP8(N, COUNT, A, B, E, P)                                                                   \
    template <> struct WgmmaSpFp8<N> {                                                                     \
        static DEVICE void run(float* d, uint64_t a, uint64_t b, uint32_t meta, int accumulate) {          \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                                  \
                         "wgmma.mma_async.sp.sync.aligned.m64n" #N "k64.f32." ELEMENT_NAME "." ELEMENT_NAME \
                         " {" WGMMA_NAMES_##COUNT "}, %" #A ", %" #B ", %" #E ", 0, p, 1, 1;\n}"           \
                         : WGMMA_SUMS_##COUNT(d)                                                           \
                         : "l"(a), "l"(b), "r"(meta), "r"(accumulate));                                    \
        }                                                                                                  \
    }
template <int N> struct WgmmaSpFp8;
WGMMA_SP_FP8(64, 32, 32, 33, 34, 35);
WGMMA_SP_FP8(128, 64, 64, 65, 66, 67);
WGMMA_SP_FP8(192, 96, 96, 97, 98, 99);
