// y = number(q) * scale in float32, rounded to T: a vector of y a lane and step, of which all elements have one scale.
//
// FORMAT names the format of q's codes; without it q is int8, less a zero point where there is one. A row has `groups` scales,
// one for each GROUP columns, or one where GROUP is 0; SIDE rows of a matrix of `height` share them, `down` times in it.
// S = uint8_t: scales are powers of two in a byte (e8m0).
#include "_lib/minifloat.h"
#include "_lib/rows/elementwise.h"

DEVICE float scale_of(float scale) { return scale; }
DEVICE float scale_of(uint8_t byte) {
    const uint32_t code = byte;
    const uint32_t bits = code == 0 ? 0x00400000u : code << 23;
    return float_of(code == 255 ? 0x7fc00000u : bits);
}

DEVICE float number(uint32_t code, int zero) {
#ifdef FORMAT
    return decode<FORMAT>(code);
#else
    return static_cast<float>(static_cast<int>(static_cast<int8_t>(code)) - zero);
#endif
}

// The codes of a vector; 0 beyond the row.
DEVICE void load_codes(uint32_t (&code)[VEC], const uint8_t* address, int64_t column, int64_t length) {
#if VEC > 1
    if (TAIL ? column + VEC <= length : column < length) {
        const words<VEC> held = load_words_once<VEC>(address);
#pragma unroll
        for (int i = 0; i < VEC; ++i) code[i] = held.w[i / 4] >> (8 * (i % 4)) & 0xffu;
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < VEC; ++i) code[i] = column + i < length ? address[i] : 0;
}

KERNEL(THREADS)
void dequantize(const uint8_t* q, const S* scale, const int32_t* zero_point, T* y, int64_t rows, int64_t length,
                int64_t q_stride, int64_t y_stride, int across, int64_t groups, int64_t height, int64_t down) {
    enter_pdl();
    const RowSlice slice = row_slice(rows, length, across);
    if (slice.length == 0) return;
    int64_t line = slice.row;
    if constexpr (SIDE > 1) {
        const int64_t matrix = slice.row / height;
        line = matrix * down + (slice.row - matrix * height) / SIDE;
    }
    int zero = 0;
    if (zero_point != nullptr) {
        zero = zero_point[slice.row];
        zero = zero < -128 ? -128 : zero > 127 ? 127 : zero;
    }
    const S* scales = scale + line * groups;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const int64_t column = slice.base + chunk_column(c);
        if (column >= slice.length) break;
        uint32_t code[VEC];
        load_codes(code, q + slice.row * q_stride + column, column, slice.length);
        const float own = scale_of(scales[GROUP == 0 ? 0 : column / (GROUP == 0 ? 1 : GROUP)]);
        float value[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) value[i] = number(code[i], zero) * own;
        store_vector(y + slice.row * y_stride + column, column, slice.length, value);
    }
}
