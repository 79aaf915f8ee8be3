// Fragments of CDNA's matrix cores (gfx90a, gfx942, gfx950): 16 lines of an operand (rows of a, columns of b), 32
// elements of k deep, 16 bytes a lane; and the accumulators of their products.
//
// Every tile multiplies in these fragments, so that the bits of an element of c depend on its row of a and its column
// of b alone: k ascends in steps of 32; inside a step lane l holds the 8 elements from 8 * (l / 16) on. gfx950 adds a
// step by one instruction, the others by two: the lower four elements of every lane, then the upper four.
//
// The product is computed as c.T = b.T @ a.T: of lane l, accumulator i is line 4 * (l / 16) + i of b's fragment and
// line l % 16 of a's. The lines of two fragments are interleaved by fours (`fragment_line`), so that a lane's
// accumulators of a pair are 8 neighbours of one row of c: one 16-byte store, and four lanes store 64 contiguous bytes.
//
// Of gate and up (GATED), fragment 0 of a pair is gate's and fragment 1 up's: a lane has 4 neighbours of c.
#pragma once

#define GATED_RUN 4
#include "tiles.h"

constexpr int FRAGMENT = 16;  // lines of one fragment
constexpr int DEPTH = 32;     // its elements of k
typedef uint32_t fragment __attribute__((ext_vector_type(4)));

typedef float floats4 __attribute__((ext_vector_type(4)));
typedef _Float16 half4 __attribute__((ext_vector_type(4)));
typedef _Float16 half8 __attribute__((ext_vector_type(8)));
typedef short short4 __attribute__((ext_vector_type(4)));
typedef __bf16 brain8 __attribute__((ext_vector_type(8)));

// Fragment 0's line `index`, of 16.
DEVICE int fragment_line(int index) { return index / 4 * 8 + index % 4; }
// From there to the same line of fragment `fragment`: two fragments share 32 lines.
DEVICE constexpr int lines_to(int fragment) { return fragment / 2 * 32 + fragment % 2 * 4; }

// c + a @ b.T, 16 x 32 by 32 x 16.
template <class Type> DEVICE floats4 multiply(fragment a, fragment b, floats4 c);

#if defined(__gfx950__)
template <> DEVICE floats4 multiply<f16>(fragment a, fragment b, floats4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_f16(__builtin_bit_cast(half8, a), __builtin_bit_cast(half8, b), c,
                                                  0, 0, 0);
}
template <> DEVICE floats4 multiply<bf16>(fragment a, fragment b, floats4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(brain8, a), __builtin_bit_cast(brain8, b),
                                                   c, 0, 0, 0);
}
#else
template <class Vector> DEVICE Vector half_of(fragment chunk, int part) {
    return __builtin_bit_cast(Vector, words<8>{{chunk[part * 2], chunk[part * 2 + 1]}});
}
template <> DEVICE floats4 multiply<f16>(fragment a, fragment b, floats4 c) {
    for (int part = 0; part < 2; ++part) {
        c = __builtin_amdgcn_mfma_f32_16x16x16f16(half_of<half4>(a, part), half_of<half4>(b, part), c, 0, 0, 0);
    }
    return c;
}
template <> DEVICE floats4 multiply<bf16>(fragment a, fragment b, floats4 c) {
    for (int part = 0; part < 2; ++part) {
        c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(half_of<short4>(a, part), half_of<short4>(b, part), c, 0,
                                                      0, 0);
    }
    return c;
}
#endif

// The same number, which the compiler keeps in a register where it could derive it from another.
DEVICE int in_register(int value) {
    asm("" : "+v"(value));
    return value;
}

// Where this lane reads the fragments of an operand's tile in LDS: the tile's lines have ROW_BYTES, and the chunk of 16
// bytes `chunk` of a line lies at slot `chunk ^ swizzle(line)`, which depends on the line within its fragment alone. So
// one offset for each step of k serves all fragments, whose own offsets are constants.
template <int LINE_BYTES> struct FragmentLoads {
    static constexpr bool ALTERNATING = false;  // see Accumulators
    static constexpr int STEPS = LINE_BYTES / 2 / DEPTH;

    int at[STEPS];

    // `first`: the first line of fragment 0, a multiple of 32. `start`: of the tile in LDS, a multiple of 128.
    DEVICE explicit FragmentLoads(int first, int start) {
        const int line = first + fragment_line(thread_x() % FRAGMENT);
        start += line * LINE_BYTES + swizzled<LINE_BYTES>(line, thread_x() % WARP / FRAGMENT) * 16;
        for (int step = 0; step < STEPS; ++step) {
            at[step] = in_register(start ^ step * 64);
        }
    }

    DEVICE fragment load(const char* tile, int index, int step) const {
        return *reinterpret_cast<const fragment*>(tile + at[step] + lines_to(index) * LINE_BYTES);
    }
};

// The accumulators of M x N fragments. A_ALTERNATING, B_ALTERNATING: of every other four lines, a pair's fragments hold
// each other's (TransposedLoads).
template <int M, int N, bool A_ALTERNATING = false, bool B_ALTERNATING = false> struct Accumulators {
    static_assert(M % 2 == 0 && N % 2 == 0, "two fragments share 32 lines");

    floats4 sums[M][N];

    DEVICE void clear() {
        for (int i = 0; i < M; ++i) {
            for (int j = 0; j < N; ++j) {
                sums[i][j] = 0.0f;
            }
        }
    }

    DEVICE void add(const fragment (&a)[M], const fragment (&b)[N]) {
#pragma unroll
        for (int i = 0; i < M; ++i) {
#pragma unroll
            for (int j = 0; j < N; ++j) {
                sums[i][j] = multiply<T>(b[j], a[i], sums[i][j]);
            }
        }
    }

    // The epilogue; m, n: c's element of the first line of both operands (of gate and up, n is twice its column).
    DEVICE void store(const Output& c, int m, int n) const {
        const int line = thread_x() % FRAGMENT, part = thread_x() % WARP / FRAGMENT;
        const int turned = A_ALTERNATING ? line / 4 % 2 : 0;
        const bool exchanged = B_ALTERNATING && part % 2 == 1;
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            const int column = n + lines_to(j) + part * 8;
#if !GATED || SPLIT_K
            float bias[8];
            load_bias(c, column, bias);
#endif
#pragma unroll
            for (int i = 0; i < M; ++i) {
                const floats4 low = sums[i][j], high = sums[i][j + 1];
                const int row = m + fragment_line(line) + lines_to(i / 2 * 2) + (i % 2 ^ turned) * 4;
#if GATED && !SPLIT_K
                float gate[4], up[4];
                for (int e = 0; e < 4; ++e) {
                    gate[e] = low[e];
                    up[e] = high[e];
                }
                store_gated_run(c, row, column / 2, gate, up);
#else
                float run[8];
                for (int e = 0; e < 4; ++e) {
                    run[e] = exchanged ? high[e] : low[e];
                    run[e + 4] = exchanged ? low[e] : high[e];
                }
                store_run(c, row, column, run, bias);
#endif
            }
        }
    }
};
