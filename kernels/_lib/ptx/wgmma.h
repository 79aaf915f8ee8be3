// Hopper's warpgroup matrix instructions (wgmma), 16-bit operands and float32 accumulators. Needs sm_90a and
// -DELEMENT=bf16|f16.
#pragma once

#include "prelude.h"

#define STRING_OF(x) #x
#define STRING(x) STRING_OF(x)
#define ELEMENT_NAME STRING(ELEMENT)  // prelude.h and PTX call these types the same

// Before the first wgmma and before one that reads registers the threads wrote.
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most PENDING groups are under way.
template <int PENDING> DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The matrix descriptor of an operand in shared memory with the 128-byte swizzle: groups of eight 128-byte rows,
// `stride_bytes` from group to group (SBO); `leading_bytes` (LBO) from one block of 64 elements to the next along M or
// N where the operand is M- or N-major (unused where it is K-major).
DEVICE uint64_t wgmma_descriptor(uint32_t address, int leading_bytes, int stride_bytes) {
    return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(leading_bytes >> 4) << 16 |
           static_cast<uint64_t>(stride_bytes >> 4) << 32 | 1ull << 62;
}

// The first n accumulators: their names in the instruction, and what they are bound to.
#define WGMMA_NAMES_4 "%0, %1, %2, %3"
#define WGMMA_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_NAMES_16 WGMMA_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_24 WGMMA_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_NAMES_32 WGMMA_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_40 WGMMA_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_NAMES_48 WGMMA_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_NAMES_56 WGMMA_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_NAMES_64 WGMMA_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_NAMES_72 WGMMA_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define WGMMA_NAMES_80 WGMMA_NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_NAMES_88 WGMMA_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_NAMES_96 WGMMA_NAMES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_NAMES_104 WGMMA_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define WGMMA_NAMES_112 WGMMA_NAMES_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_NAMES_120 WGMMA_NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define WGMMA_NAMES_128 WGMMA_NAMES_120 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define WGMMA_KIND "+f"  // of their registers
#define WGMMA_SUMS_4(d) WGMMA_KIND(d[0]), WGMMA_KIND(d[1]), WGMMA_KIND(d[2]), WGMMA_KIND(d[3])
#define WGMMA_SUMS_AT(d, i)                                                                                \
    WGMMA_KIND(d[i]), WGMMA_KIND(d[i + 1]), WGMMA_KIND(d[i + 2]), WGMMA_KIND(d[i + 3]),                    \
        WGMMA_KIND(d[i + 4]), WGMMA_KIND(d[i + 5]), WGMMA_KIND(d[i + 6]), WGMMA_KIND(d[i + 7])
#define WGMMA_SUMS_8(d) WGMMA_SUMS_AT(d, 0)
#define WGMMA_SUMS_16(d) WGMMA_SUMS_8(d), WGMMA_SUMS_AT(d, 8)
#define WGMMA_SUMS_24(d) WGMMA_SUMS_16(d), WGMMA_SUMS_AT(d, 16)
#define WGMMA_SUMS_32(d) WGMMA_SUMS_24(d), WGMMA_SUMS_AT(d, 24)
#define WGMMA_SUMS_40(d) WGMMA_SUMS_32(d), WGMMA_SUMS_AT(d, 32)
#define WGMMA_SUMS_48(d) WGMMA_SUMS_40(d), WGMMA_SUMS_AT(d, 40)
#define WGMMA_SUMS_56(d) WGMMA_SUMS_48(d), WGMMA_SUMS_AT(d, 48)
#define WGMMA_SUMS_64(d) WGMMA_SUMS_56(d), WGMMA_SUMS_AT(d, 56)
#define WGMMA_SUMS_72(d) WGMMA_SUMS_64(d), WGMMA_SUMS_AT(d, 64)
#define WGMMA_SUMS_80(d) WGMMA_SUMS_72(d), WGMMA_SUMS_AT(d, 72)
#define WGMMA_SUMS_88(d) WGMMA_SUMS_80(d), WGMMA_SUMS_AT(d, 80)
#define WGMMA_SUMS_96(d) WGMMA_SUMS_88(d), WGMMA_SUMS_AT(d, 88)
#define WGMMA_SUMS_104(d) WGMMA_SUMS_96(d), WGMMA_SUMS_AT(d, 96)
#define WGMMA_SUMS_112(d) WGMMA_SUMS_104(d), WGMMA_SUMS_AT(d, 104)
#define WGMMA_SUMS_120(d) WGMMA_SUMS_112(d), WGMMA_SUMS_AT(d, 112)
#define WGMMA_SUMS_128(d) WGMMA_SUMS_120(d), WGMMA_SUMS_AT(d, 120)

// d (64 x N, float32) = a (64 x 16) @ b (16 x N), plus d where `accumulate`; both operands by descriptor. A_M_MAJOR and
// B_N_MAJOR say that an operand is contiguous along M or N, not K. COUNT is N / 2; A, B, P, TA, TB number the
// instruction's operands after the accumulators.
#define WGMMA(N, COUNT, A, B, P, TA, TB)                                                                   \
    template <> struct Wgmma<N> {                                                                          \
        template <bool A_M_MAJOR, bool B_N_MAJOR>                                                          \
        static DEVICE void run(float* d, uint64_t a, uint64_t b, int accumulate) {                         \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                                  \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." ELEMENT_NAME "." ELEMENT_NAME   \
                         " {" WGMMA_NAMES_##COUNT "}, %" #A ", %" #B ", p, 1, 1, %" #TA ", %" #TB ";\n}"   \
                         : WGMMA_SUMS_##COUNT(d)                                                           \
                         : "l"(a), "l"(b), "r"(accumulate), "n"(int(A_M_MAJOR)), "n"(int(B_N_MAJOR)));     \
        }                                                                                                  \
    }
template <int N> struct Wgmma;
WGMMA(8, 4, 4, 5, 6, 7, 8);
WGMMA(16, 8, 8, 9, 10, 11, 12);
WGMMA(32, 16, 16, 17, 18, 19, 20);
WGMMA(64, 32, 32, 33, 34, 35, 36);
WGMMA(80, 40, 40, 41, 42, 43, 44);
WGMMA(96, 48, 48, 49, 50, 51, 52);
WGMMA(112, 56, 56, 57, 58, 59, 60);
WGMMA(128, 64, 64, 65, 66, 67, 68);
WGMMA(144, 72, 72, 73, 74, 75, 76);
WGMMA(160, 80, 80, 81, 82, 83, 84);
WGMMA(176, 88, 88, 89, 90, 91, 92);
WGMMA(192, 96, 96, 97, 98, 99, 100);
WGMMA(208, 104, 104, 105, 106, 107, 108);
WGMMA(224, 112, 112, 113, 114, 115, 116);
WGMMA(240, 120, 120, 121, 122, 123, 124);
WGMMA(256, 128, 128, 129, 130, 131, 132);

// The same with a in registers. Of a warp's 16 rows of a, thread t holds four words: rows t / 4 and t / 4 + 8 at
// columns t % 4 * 2 and the next, then both 8 columns on.
#define WGMMA_RS(N, COUNT, A0, A1, A2, A3, B, P, TB)                                                       \
    template <> struct WgmmaRs<N> {                                                                        \
        template <bool B_N_MAJOR>                                                                          \
        static DEVICE void run(float* d, const uint32_t* a, uint64_t b, int accumulate) {                  \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                                  \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." ELEMENT_NAME "." ELEMENT_NAME   \
                         " {" WGMMA_NAMES_##COUNT "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B      \
                         ", p, 1, 1, %" #TB ";\n}"                                                         \
                         : WGMMA_SUMS_##COUNT(d)                                                           \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate),            \
                           "n"(int(B_N_MAJOR)));                                                           \
        }                                                                                                  \
    }
template <int N> struct WgmmaRs;
WGMMA_RS(64, 32, 32, 33, 34, 35, 36, 37, 38);
WGMMA_RS(128, 64, 64, 65, 66, 67, 68, 69, 70);
WGMMA_RS(192, 96, 96, 97, 98, 99, 100, 101, 102);
WGMMA_RS(256, 128, 128, 129, 130, 131, 132, 133, 134);
