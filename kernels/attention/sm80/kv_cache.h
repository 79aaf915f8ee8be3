// What the cache of decode.cu holds, numbers of ELEMENT or with FORMAT codes of 8 bits (minifloat.h), and how its words lie in the
// operands of the matrix instructions.
//
// A step is the 32 bytes of 16 lines that one ldmatrix reads: PARTS times 16 columns.
//
// Numbers: S = Q K^T and O = P V, of 16 rows (queries times heads). A lane's sums are of two rows, HALVES times 8 keys or columns.
//
// Codes: S^T = K Q^T and O^T = V^T P^T, of 8 rows, as half as many rows need half as many instructions and registers; a block that
// waits for less memory needs more company. Codes become float16 numbers between shared memory and the instructions. A word of a
// line of keys has four of them, a lane's columns of both halves of one instruction; so queries take their columns in that order.
// A word of values, transposed, has two keys' codes of two columns, which are both rows of V^T that a lane has.
#pragma once

#include "_lib/ptx/matrix.h"
#include "_lib/ptx/mma.h"
#include "attention/device/params.h"
#include "attention/device/softmax.h"
#ifdef FORMAT
#include "_lib/minifloat.h"
#endif

using T = ELEMENT;

#ifndef FORMAT
using Stored = T;
#define CACHE_SCALES
#define K_SCALE 1.0f
#define V_SCALE 1.0f
constexpr int ROWS = 16;
constexpr int HALVES = 2;
constexpr int PARTS = 1;
constexpr int WEIGHT_BITS = 0;

// A lane's two rows, and those of a sum and of a word of queries; a sum's key, of 16, and its column; the first of two columns, of
// 16, of a word of queries.
DEVICE int row_of(int slot, int lane) { return lane / 4 + slot * 8; }
DEVICE int slot_of(int j) { return j / 2; }
DEVICE int place_of(int slot, int i) { return 2 * slot + i; }
DEVICE int key_of(int half, int j, int lane) { return half * 8 + lane % 4 * 2 + j % 2; }
DEVICE int column_of(int i, int j, int lane) { return i * 8 + lane % 4 * 2 + j % 2; }
DEVICE int query_row(int w, int lane) { return lane / 4 + w % 2 * 8; }
DEVICE int query_column(int w, int lane) { return w / 2 * 8 + lane % 4 * 2; }

// Of the lanes that share a row. The greatest number of numbers alone.
DEVICE bool first_of_row(int lane) { return lane % 4 == 0; }
DEVICE float sum_of_row(float x) { return quad_sum(x); }
DEVICE float max_of_row(float x) {
    x = math_max_number(x, shuffle_xor(x, 1));
    return math_max_number(x, shuffle_xor(x, 2));
}

// What the scores of a lane's rows are multiplied by.
struct RowScales {
    template <int COUNT> DEVICE void prepare(uint32_t (&)[COUNT][4], const AttentionParams&, float, int) {}
    DEVICE float of(const AttentionParams& p, int) const { return p.score_scale; }
};

// Adds a step's products with `queries` to sums, two of each, so that the instructions do not wait for one another.
DEVICE void add_keys(float (&sums)[HALVES][2][4], const uint32_t (*queries)[4], const uint32_t (&b)[4], int step) {
    Product<T>::add(sums[0][step % 2], queries[0], b[0], b[1]);
    Product<T>::add(sums[1][step % 2], queries[0], b[2], b[3]);
}

// Weights as an operand, and the products of it with a step's values added to sums.
DEVICE void pack_weights(uint32_t (&packed)[4], const float (&p)[HALVES][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) packed[i] = pack2<T>(p[i / 2][i % 2 * 2], p[i / 2][i % 2 * 2 + 1]);
}
DEVICE void add_values(float (*sums)[4], const uint32_t (&packed)[4], const uint32_t (&b)[4]) {
    Product<T>::add(sums[0], packed, b[0], b[1]);
    Product<T>::add(sums[1], packed, b[2], b[3]);
}
#else
using Stored = uint8_t;
#define CACHE_SCALES , const float *k_scale, int64_t k_scale_head, const float *v_scale, int64_t v_scale_head
#define K_SCALE k_scale[work.head * k_scale_head]
#define V_SCALE v_scale[work.head * v_scale_head]
constexpr int ROWS = 8;
constexpr int HALVES = 1;
constexpr int PARTS = 2;
constexpr int WEIGHT_BITS = 15;  // float16 has weights down to 2^-24 alone: they are as many powers of two larger

DEVICE int row_of(int slot, int lane) { return lane % 4 * 2 + slot; }
DEVICE int slot_of(int j) { return j % 2; }
DEVICE int place_of(int slot, int i) { return slot + 2 * i; }
DEVICE int key_of(int, int j, int lane) { return lane / 4 + j / 2 * 8; }
DEVICE int column_of(int i, int j, int lane) { return i * 16 + lane / 4 * 2 + j / 2; }
DEVICE int query_row(int, int lane) { return lane / 4; }
DEVICE int query_column(int w, int lane) { return lane % 4 * 4 + w * 2; }

DEVICE bool first_of_row(int lane) { return lane < 4; }
DEVICE float sum_of_row(float x) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) x += shuffle_xor(x, lanes);
    return x;
}
DEVICE float max_of_row(float x) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) x = math_max_number(x, shuffle_xor(x, lanes));
    return x;
}

// Queries of bfloat16 become float16, each row times the power of two that brings its largest finite number to 2^14: so float16
// has every number of a row but those that sums of float32 lose beside the largest.
struct RowScales {
    float scale[2];

    // `words`: queries of row lane / 4.
    template <int COUNT>
    DEVICE void prepare(uint32_t (&words)[COUNT][2], const AttentionParams& p, float k_scale, int lane) {
        float own = p.score_scale * k_scale;
        if constexpr (!IS_F16<T>) {
            uint32_t most = 0;
#pragma unroll
            for (int i = 0; i < COUNT * 2; ++i) {
                const uint32_t low = words[i / 2][i % 2] & 0x7fffu, high = words[i / 2][i % 2] >> 16 & 0x7fffu;
                if (low < 0x7f80u && low > most) most = low;
                if (high < 0x7f80u && high > most) most = high;
            }
#pragma unroll
            for (int lanes = 1; lanes < 4; lanes *= 2) {
                const uint32_t other = shuffle_xor(static_cast<int>(most), lanes);
                most = other > most ? other : most;
            }
            const int exponent = 268 - static_cast<int>(most >> 7);
            const uint32_t bits = exponent < 253 ? exponent : 253;
            const float factor = float_of(bits << 23);
            own *= float_of((254 - bits) << 23);
#pragma unroll
            for (int i = 0; i < COUNT * 2; ++i) {
                const uint32_t pair = words[i / 2][i % 2];
                words[i / 2][i % 2] = pack2<f16>(float_of(pair << 16) * factor, float_of(pair & 0xffff0000u) * factor);
            }
        }
#pragma unroll
        for (int slot = 0; slot < 2; ++slot) scale[slot] = __shfl_sync(0xffffffffu, own, row_of(slot, lane) * 4);
    }
    DEVICE float of(const AttentionParams&, int slot) const { return scale[slot]; }
};

DEVICE uint32_t low_pair(uint32_t codes) { return decode_pair<f16, FORMAT>(codes & 0xffffu); }
DEVICE uint32_t high_pair(uint32_t codes) { return decode_pair<f16, FORMAT>(codes >> 16); }

DEVICE void add_keys(float (&sums)[HALVES][2][4], const uint32_t (*queries)[2], const uint32_t (&b)[4], int) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t keys[4] = {low_pair(b[i]), low_pair(b[i + 2]), high_pair(b[i]), high_pair(b[i + 2])};
        Product<f16>::add(sums[0][i], keys, queries[i][0], queries[i][1]);
    }
}

DEVICE void pack_weights(uint32_t (&packed)[2], const float (&p)[HALVES][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) packed[i] = transposed(pack2<f16>(p[0][2 * i], p[0][2 * i + 1]));
}
DEVICE void add_values(float (*sums)[4], const uint32_t (&packed)[2], const uint32_t (&b)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // a column's two codes side by side
        const uint32_t upper = __byte_perm(b[2 * i], 0, 0x3120), lower = __byte_perm(b[2 * i + 1], 0, 0x3120);
        const uint32_t values[4] = {low_pair(upper), high_pair(upper), low_pair(lower), high_pair(lower)};
        Product<f16>::add(sums[i], values, packed[0], packed[1]);
    }
}
#endif

constexpr int CHUNK_COLUMNS = 16 / sizeof(Stored);  // of 16 bytes
constexpr int STEP_COLUMNS = 16 * PARTS;
constexpr int D_STEPS = (D + STEP_COLUMNS - 1) / STEP_COLUMNS, E_STEPS = (E + STEP_COLUMNS - 1) / STEP_COLUMNS;
constexpr int PADDED_D = D_STEPS * STEP_COLUMNS, PADDED_E = E_STEPS * STEP_COLUMNS;
