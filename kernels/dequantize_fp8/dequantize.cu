// y = number(q) * scale in float32, rounded to T: CHUNKS vectors of y a lane, of each of which all elements have one scale. All
// of a lane's codes and scales are on their way before the first is used.
//
// FORMAT names the format of q's codes; without it q is int8, less a zero point where there is one. A row has `groups` scales,
// one for each GROUP columns, or one where GROUP is 0; SIDE rows of a matrix of `height` share them, `down` times in it.
// S = uint8_t: scales are powers of two in a byte (e8m0), or codes of SCALE_FORMAT. A FORMAT of 4 bits has two codes in a byte,
// the first in its lower half; all sizes and strides count codes. HAS_GLOBAL: the product is multiplied by a scale of all of q.
#include "_lib/minifloat.h"
#include "_lib/rows/elementwise.h"

#ifdef FORMAT
constexpr int BITS = FORMAT::BITS;
#else
constexpr int BITS = 8;
#endif
constexpr int WORDS = (VEC * BITS + 31) / 32;    // of a vector's codes

DEVICE float scale_of(float scale) { return scale; }
DEVICE float scale_of(uint8_t byte) {
#ifdef SCALE_FORMAT
    return decode<SCALE_FORMAT>(byte);
#else
    const uint32_t code = byte;
    const uint32_t bits = code == 0 ? 0x00400000u : code << 23;
    return float_of(code == 255 ? 0x7fc00000u : bits);
#endif
}

// The codes of a vector; 0 beyond the row.
DEVICE void load_codes(uint32_t (&held)[WORDS], const uint8_t* address, int64_t column, int64_t length) {
#pragma unroll
    for (int i = 0; i < WORDS; ++i) held[i] = 0;
#if VEC > 1
    if (TAIL ? column + VEC <= length : column < length) {
        const words<VEC> found = load_words_once<VEC>(address);
#pragma unroll
        for (int i = 0; i < WORDS; ++i) held[i] = found.w[i];
        return;
    }
    if constexpr (!TAIL) return;
#endif
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        if (column + i < length) held[i / 4] |= static_cast<uint32_t>(address[i]) << (8 * (i % 4));
    }
}

#ifdef FORMAT
// The codes of 4 bits from number `at` of q on, which is even where there is more than one; 0 beyond the row.
DEVICE uint32_t load_nibbles(const uint8_t* q, int64_t at, int64_t column, int64_t length) {
    if (column >= length) return 0;
    const uint8_t* address = q + (at >> 1);
    if constexpr (VEC == 1) return *address >> (4 * (at & 1)) & 15u;
    if (!TAIL || column + VEC <= length) {
        if constexpr (VEC == 8) return load_words_once<4>(address).w[0];
        else return *reinterpret_cast<const uint16_t*>(address);
    }
    uint32_t held = 0;    // a row's length is even
#pragma unroll
    for (int i = 0; i < VEC / 2; ++i) {
        if (column + 2 * i < length) held |= static_cast<uint32_t>(address[i]) << (8 * i);
    }
    return held;
}

// Number i of codes of e2m1fn: its bits where float32 has them are a number too small by 2^126.
DEVICE float nibble_number(uint32_t word, int i) {
    static_assert(BITS == 8 || (FORMAT::MANTISSA == 1 && FORMAT::BIAS == 1), "e2m1fn");
    const int up = 22 - 4 * i;
    const uint32_t size = up >= 0 ? word << (up & 31) : word >> (-up & 31);
    return float_of((size & 0x01c00000u) | (word << (28 - 4 * i) & 0x80000000u)) * float_of(power_bits(126));
}
#else
// Byte i of a word plus BYTE_BIAS, as float32: on NVIDIA GPUs the lowest bits of 2^23 are the byte, by one permutation.
#if defined(__CUDA_ARCH__)
constexpr float BYTE_BIAS = 8388608.0f;
DEVICE float biased_byte(uint32_t word, int i) { return float_of(__byte_perm(word, 0x4b000000u, 0x7440 + i)); }
#else
constexpr float BYTE_BIAS = 0.0f;
DEVICE float biased_byte(uint32_t word, int i) { return static_cast<float>(word >> (8 * i) & 0xffu); }
#endif
#endif

// The numbers of a vector's codes.
DEVICE void numbers(float (&value)[VEC], const uint32_t (&held)[WORDS], int zero) {
#ifdef FORMAT
    if constexpr (BITS == 4) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) value[i] = nibble_number(held[0], i);
    } else if constexpr (VEC == 1) {
        value[0] = decode<FORMAT>(held[0]);
    } else {
#pragma unroll
        for (int i = 0; i < VEC; i += 2) decode2<FORMAT>(value[i], value[i + 1], held[i / 4] >> (8 * (i % 4)) & 0xffffu);
    }
#else
#pragma unroll
    for (int i = 0; i < VEC; ++i) {    // code + 128, which has no sign, less zero + 128
        value[i] = biased_byte(held[i / 4] ^ 0x80808080u, i % 4) - (BYTE_BIAS + static_cast<float>(zero + 128));
    }
#endif
}

KERNEL(THREADS)
void dequantize(const uint8_t* q, const S* scale, const int32_t* zero_point, T* y, int64_t rows, int64_t length,
                int64_t q_stride, int64_t y_stride, int across, int64_t groups, int64_t height, int64_t down
#if HAS_GLOBAL
                ,
                const float* global_scale
#endif
) {
    enter_pdl();
    const RowSlice slice = row_slice(rows, length, across);
    if (slice.length == 0) return;
    uint32_t held[CHUNKS][WORDS];
#ifdef FORMAT
    if constexpr (BITS == 4) {
        const int64_t start = slice.row * q_stride;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const int64_t column = slice.base + chunk_column(c);
            held[c][0] = load_nibbles(q, start + column, column, slice.length);
        }
    } else
#endif
    {
        const uint8_t* source = lane_ptr(q + slice.row * q_stride) + slice.base;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) load_codes(held[c], source + c * CHUNK, slice.base + chunk_column(c), slice.length);
    }
    int64_t line = slice.row;
    if constexpr (SIDE > 1) {
        int64_t matrix = 0;
        if (height < rows) matrix = slice.row / height;
        line = matrix * down + static_cast<uint64_t>(slice.row - matrix * height) / SIDE;
    }
    const S* scales = scale + line * groups;
    S own[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const uint64_t column = slice.base + chunk_column(c);
        own[c] = S(0);
        if (static_cast<int64_t>(column) < slice.length) own[c] = scales[GROUP == 0 ? 0 : column / (GROUP == 0 ? 1 : GROUP)];
    }
    int zero = 0;
    if (zero_point != nullptr) {
        zero = zero_point[slice.row];
        zero = zero < -128 ? -128 : zero > 127 ? 127 : zero;
    }
#if HAS_GLOBAL
    const float whole = *global_scale;
#endif
    T* target = lane_ptr(y + slice.row * y_stride) + slice.base;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        float value[VEC];
        numbers(value, held[c], zero);
        const float factor = scale_of(own[c]);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            value[i] *= factor;
#if HAS_GLOBAL
            value[i] *= whole;    // the product before it is exact
#endif
        }
        store_vector(target + c * CHUNK, slice.base + chunk_column(c), slice.length, value);
    }
}
