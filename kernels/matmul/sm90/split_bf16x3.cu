// Splits float32 operands into three bfloat16 planes each, for bf16x6.cu:
//
//     x == first + second / 2^8 + third / 2^16        exactly, for every finite x
//
// `first` is x rounded to bfloat16, `second` the remainder, times 2^8, rounded again, `third` the rest, times 2^16. The
// factors keep the planes of a small x out of the subnormal range, where bits would be lost.
//  - Where rounding would overflow, x is truncated instead.
//  - An infinity is (+-1, 0, +-inf): `third` is multiplied only by the other operand's `first`, so that its products
//    are those of IEEE arithmetic: inf * 0 is NaN, inf * x and inf * inf are infinite with the right sign. (Here
//    numbers of 2^-134 and less count as 0.)
//  - NaN is (NaN, 0, 0).
//
// Planes keep the operand's order, in rows (or columns, whichever are contiguous) that start at multiples of
// 128 bytes. Their padding is not written: nothing reads it. One launch splits both operands;
// a thread makes 8 elements of each plane at a time, VECTORS times.
//
// Defines: THREADS, VECTORS.
#include "prelude.h"

struct Operand {
    const float* from;
    uint16_t* to;
    int64_t line, inner, outer, span;  // strides of `from`, and its elements from first to last
    int64_t plane;                     // elements of a plane
    int64_t vectors;                   // eights of the whole operand
    int length, lines, pitch;  // elements of a row, rows of a matrix, elements between rows of a plane
    int inner_count;
};

struct Eight {
    float v[8];
};

DEVICE Eight read_single(const float* at, int count) {
    Eight x;
#pragma unroll
    for (int i = 0; i < 8; ++i) x.v[i] = i < count ? at[i] : 0.0f;
    return x;
}

// Eight unaligned elements, out of the three aligned 16-byte words that hold them.
DEVICE Eight read_shifted(const float* at) {
    const uint64_t address = reinterpret_cast<uint64_t>(at);
    const float4* words = reinterpret_cast<const float4*>(address & ~15ull);
    const float4 a = words[0], b = words[1], c = words[2];
    const float all[12] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
    const bool two = address & 8, one = address & 4;
    float by_two[9];
    Eight x;
#pragma unroll
    for (int i = 0; i < 9; ++i) by_two[i] = two ? all[i + 2] : all[i];
#pragma unroll
    for (int i = 0; i < 8; ++i) x.v[i] = one ? by_two[i + 1] : by_two[i];
    return x;
}

DEVICE Eight read_aligned(const float* at) {
    const float4 a = reinterpret_cast<const float4*>(at)[0], b = reinterpret_cast<const float4*>(at)[1];
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

// The bits of a finite x as bfloat16, in the upper half of a word: rounded to nearest even, but truncated where
// that would overflow.
DEVICE uint32_t rounded(float x) {
    const uint32_t bits = bits_of(x);
    const uint32_t nearest = bits + 0x7fffu + (bits >> 16 & 1);
    return ((nearest & 0x7f800000u) == 0x7f800000u ? bits : nearest) & 0xffff0000u;
}

DEVICE void split(float x, uint32_t (&plane)[3]) {
    const uint32_t bits = bits_of(x);
    if ((bits & 0x7f800000u) == 0x7f800000u) {
        const bool infinite = (bits & 0x7fffffu) == 0;
        plane[0] = infinite ? (bits & 0x80000000u) | 0x3f800000u : 0x7fc00000u;
        plane[1] = 0;
        plane[2] = infinite ? bits : 0;
        return;
    }
    plane[0] = rounded(x);
    const float rest = (x - float_of(plane[0])) * 256.0f;
    plane[1] = rounded(rest);
    plane[2] = rounded((rest - float_of(plane[1])) * 256.0f);
}

DEVICE void split_operand(const Operand& o, uint32_t block) {
    const uint32_t per_line = (static_cast<uint32_t>(o.length) + 7) / 8;
    const int64_t first = static_cast<int64_t>(block) * (THREADS * VECTORS) + thread_x();
    Eight held[VECTORS];
    int64_t place[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int64_t vector = first + i * THREADS;
        place[i] = -1;
        if (vector >= o.vectors) continue;
        const uint32_t line = static_cast<uint32_t>(vector / per_line);
        const int col = static_cast<int>(vector - static_cast<int64_t>(line) * per_line) * 8;
        const uint32_t matrix = line / o.lines;
        const uint32_t outer = matrix / o.inner_count;
        const int64_t at = static_cast<int64_t>(outer) * o.outer +
                           static_cast<int64_t>(matrix - outer * o.inner_count) * o.inner +
                           static_cast<int64_t>(line - matrix * o.lines) * o.line + col;
        const float* source = o.from + at;
        const int count = min(o.length - col, 8);
        if (count == 8 && reinterpret_cast<uint64_t>(source) % 16 == 0) {
            held[i] = read_aligned(source);
        } else if (at >= 4 && at + 12 <= o.span) {
            held[i] = read_shifted(source);
        } else {
            held[i] = read_single(source, count);
        }
        place[i] = static_cast<int64_t>(line) * o.pitch + col;
    }
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (place[i] < 0) continue;
        uint32_t w[3][4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            uint32_t low[3], high[3];
            split(held[i].v[2 * e], low);
            split(held[i].v[2 * e + 1], high);
#pragma unroll
            for (int p = 0; p < 3; ++p) w[p][e] = __byte_perm(low[p], high[p], 0x7632);
        }
#pragma unroll
        for (int p = 0; p < 3; ++p) {
            uint4* to = reinterpret_cast<uint4*>(o.to + p * o.plane + place[i]);
            *to = make_uint4(w[p][0], w[p][1], w[p][2], w[p][3]);
        }
    }
}

extern "C" __global__ __launch_bounds__(THREADS) void matmul_split_bf16x3(
    const float* from0, uint16_t* to0, int64_t line0, int64_t inner0, int64_t outer0, int64_t span0,
    int64_t plane0, int64_t vectors0, int length0, int lines0, int pitch0, int inner_count0, int blocks0,
    const float* from1, uint16_t* to1, int64_t line1, int64_t inner1, int64_t outer1, int64_t span1,
    int64_t plane1, int64_t vectors1, int length1, int lines1, int pitch1, int inner_count1, int blocks1) {
    const Operand first{from0,  to0,      line0,   inner0, outer0, span0,
                        plane0, vectors0, length0, lines0, pitch0, inner_count0};
    const Operand second{from1,  to1,      line1,   inner1, outer1, span1,
                         plane1, vectors1, length1, lines1, pitch1, inner_count1};
    const uint32_t block = blockIdx.x, of_first = static_cast<uint32_t>(blocks0);
    if (block < of_first) split_operand(first, block);
    else split_operand(second, block - of_first);
}
