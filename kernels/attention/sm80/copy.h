// Sixteen bytes of a row: eight 16-bit elements, of which two share a word.
#pragma once

#include "prelude.h"

template <class T> DEVICE T element_of(const uint32_t* words, int i) {
    return T{static_cast<uint16_t>(words[i / 2] >> i % 2 * 16)};
}

// From rows that are not aligned: the elements from `from` on, zeros beyond the first `there`.
template <class T> DEVICE words<16> gather(const T* from, int there) {
    words<16> chunk;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        const uint32_t low = 2 * w < there ? from[2 * w].bits : 0;
        const uint32_t high = 2 * w + 1 < there ? from[2 * w + 1].bits : 0;
        chunk.w[w] = low | high << 16;
    }
    return chunk;
}

// To such rows: the first `there` elements.
template <class T> DEVICE void scatter(T* to, const words<16>& chunk, int there) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (i < there) to[i] = element_of<T>(chunk.w, i);
}

template <class T> DEVICE float product_of(const words<16>& a, const words<16>& b) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = math_fma(to_float(element_of<T>(a.w, i)), to_float(element_of<T>(b.w, i)), sum);
    return sum;
}
