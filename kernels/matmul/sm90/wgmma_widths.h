// Products of the widths in between, for tiles that fill the card better: all multiples of 16 columns that
// hopper.h leaves out.
#pragma once

#include "_lib/ptx/hopper.h"

// The names of the first accumulators, and what they are.
#define FIRST_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SUMS_8(d) ACCUMULATORS_8(d, 0)
#define FIRST_16 FIRST_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SUMS_16(d) SUMS_8(d), ACCUMULATORS_8(d, 8)
#define FIRST_24 FIRST_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define SUMS_24(d) SUMS_16(d), ACCUMULATORS_8(d, 16)
#define FIRST_32 FIRST_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define SUMS_32(d) SUMS_24(d), ACCUMULATORS_8(d, 24)
#define FIRST_40 FIRST_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SUMS_40(d) SUMS_32(d), ACCUMULATORS_8(d, 32)
#define FIRST_48 FIRST_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define SUMS_48(d) SUMS_40(d), ACCUMULATORS_8(d, 40)
#define FIRST_56 FIRST_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define SUMS_56(d) SUMS_48(d), ACCUMULATORS_8(d, 48)
#define FIRST_64 FIRST_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_64(d) SUMS_56(d), ACCUMULATORS_8(d, 56)
#define FIRST_72 FIRST_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define SUMS_72(d) SUMS_64(d), ACCUMULATORS_8(d, 64)
#define FIRST_80 FIRST_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define SUMS_80(d) SUMS_72(d), ACCUMULATORS_8(d, 72)
#define FIRST_88 FIRST_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define SUMS_88(d) SUMS_80(d), ACCUMULATORS_8(d, 80)
#define FIRST_96 FIRST_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define SUMS_96(d) SUMS_88(d), ACCUMULATORS_8(d, 88)
#define FIRST_104 FIRST_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define SUMS_104(d) SUMS_96(d), ACCUMULATORS_8(d, 96)
#define FIRST_112 FIRST_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define SUMS_112(d) SUMS_104(d), ACCUMULATORS_8(d, 104)
#define FIRST_120 FIRST_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define SUMS_120(d) SUMS_112(d), ACCUMULATORS_8(d, 112)

WGMMA(80, FIRST_40, 40, 41, 42, 43, 44, SUMS_40(d));
WGMMA(96, FIRST_48, 48, 49, 50, 51, 52, SUMS_48(d));
WGMMA(112, FIRST_56, 56, 57, 58, 59, 60, SUMS_56(d));
WGMMA(144, FIRST_72, 72, 73, 74, 75, 76, SUMS_72(d));
WGMMA(176, FIRST_88, 88, 89, 90, 91, 92, SUMS_88(d));
WGMMA(208, FIRST_104, 104, 105, 106, 107, 108, SUMS_104(d));
WGMMA(224, FIRST_112, 112, 113, 114, 115, 116, SUMS_112(d));
WGMMA(240, FIRST_120, 120, 121, 122, 123, 124, SUMS_120(d));
