// Warpgroup products beyond matmul's: more widths for two operands in shared memory, and a first operand in
// registers.
#pragma once

#include "_lib/ptx/hopper.h"

// Lists of eight accumulators: their names in the instruction, and what they are bound to.
#define NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NAMES_1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NAMES_9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define NAMES_11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_12 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define NAMES_13 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_14 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define NAMES_15 ", %120, %121, %122, %123, %124, %125, %126, %127"

WGMMA(80, NAMES_0 NAMES_1 NAMES_2 NAMES_3 NAMES_4, 40, 41, 42, 43, 44, ACCUMULATORS_32(d, 0),
      ACCUMULATORS_8(d, 32));
WGMMA(96, NAMES_0 NAMES_1 NAMES_2 NAMES_3 NAMES_4 NAMES_5, 48, 49, 50, 51, 52, ACCUMULATORS_32(d, 0),
      ACCUMULATORS_8(d, 32), ACCUMULATORS_8(d, 40));
WGMMA(112, NAMES_0 NAMES_1 NAMES_2 NAMES_3 NAMES_4 NAMES_5 NAMES_6, 56, 57, 58, 59, 60, ACCUMULATORS_32(d, 0),
      ACCUMULATORS_8(d, 32), ACCUMULATORS_8(d, 40), ACCUMULATORS_8(d, 48));

// d (64 x N, float32) = a (64 x 16) @ b (16 x N), plus d where `accumulate`. Of a warp's 16 rows of a, thread t
// holds four words: rows t / 4 and t / 4 + 8 at columns t % 4 * 2 and the next, then both 8 columns on.
#define WGMMA_OF_REGISTERS(N, NAMES, A0, A1, A2, A3, B, P, TB, ...)                                            \
    template <> struct WgmmaOfRegisters<N> {                                                                   \
        template <bool B_ALONG_N>                                                                              \
        static DEVICE void run(float* d, const uint32_t* a, uint64_t b, int accumulate) {                      \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                                      \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." ELEMENT_NAME "." ELEMENT_NAME       \
                         " {" NAMES "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, %" #TB     \
                         ";\n}"                                                                                \
                         : __VA_ARGS__                                                                         \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate),                \
                           "n"(int(B_ALONG_N)));                                                               \
        }                                                                                                      \
    }
template <int N> struct WgmmaOfRegisters;
WGMMA_OF_REGISTERS(64, NAMES_0 NAMES_1 NAMES_2 NAMES_3, 32, 33, 34, 35, 36, 37, 38, ACCUMULATORS_32(d, 0));
WGMMA_OF_REGISTERS(128, NAMES_0 NAMES_1 NAMES_2 NAMES_3 NAMES_4 NAMES_5 NAMES_6 NAMES_7, 64, 65, 66, 67, 68,
      69, 70, ACCUMULATORS_32(d, 0), ACCUMULATORS_32(d, 32));
WGMMA_OF_REGISTERS(192, NAMES_0 NAMES_1 NAMES_2 NAMES_3 NAMES_4 NAMES_5 NAMES_6 NAMES_7 NAMES_8 NAMES_9
      NAMES_10 NAMES_11, 96, 97, 98, 99, 100, 101, 102, ACCUMULATORS_32(d, 0), ACCUMULATORS_32(d, 32),
      ACCUMULATORS_32(d, 64));
WGMMA_OF_REGISTERS(256, NAMES_0 NAMES_1 NAMES_2 NAMES_3 NAMES_4 NAMES_5 NAMES_6 NAMES_7 NAMES_8 NAMES_9
      NAMES_10 NAMES_11 NAMES_12 NAMES_13 NAMES_14 NAMES_15, 128, 129, 130, 131, 132, 133, 134,
      ACCUMULATORS_32(d, 0), ACCUMULATORS_32(d, 32), ACCUMULATORS_32(d, 64), ACCUMULATORS_32(d, 96));
