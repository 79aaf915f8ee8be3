// Moving words between lanes; masks from lanes, and lanes chosen by a mask.
#pragma once

#include "wave.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

// to[i] = from[source[i]], sources below LANES. `to` may be `from`.
static inline void lanes_from(const uint32_t *source, const uint32_t *from, uint32_t *to) {
#ifdef __AVX512F__
    __m512i words[4];
    for (int k = 0; k < 4; k++) words[k] = _mm512_loadu_si512(from + 16 * k);
    for (int k = 0; k < 4; k++) {
        const __m512i at = _mm512_loadu_si512(source + 16 * k);
        const __m512i low = _mm512_permutex2var_epi32(words[0], at, words[1]);
        const __m512i high = _mm512_permutex2var_epi32(words[2], at, words[3]);
        const __mmask16 upper = _mm512_test_epi32_mask(at, _mm512_set1_epi32(32));
        _mm512_storeu_si512(to + 16 * k, _mm512_mask_mov_epi32(low, upper, high));
    }
#else
    uint32_t copy[LANES];
    EACH copy[i] = from[source[i]];
    memcpy(to, copy, sizeof copy);
#endif
}

// to[i] = yes[i] in the lanes of `mask`, no[i] in the others. `to` may be one of them.
static inline void select_lanes(mask64 mask, const uint32_t *yes, const uint32_t *no, uint32_t *to) {
#ifdef __AVX512F__
    for (int k = 0; k < LANES; k += 16)
        _mm512_storeu_si512(to + k, _mm512_mask_loadu_epi32(_mm512_loadu_si512(no + k), (__mmask16)(mask >> k), yes + k));
#else
    EACH to[i] = mask >> i & 1 ? yes[i] : no[i];
#endif
}

// A bit for each lane whose byte is not 0.
static inline mask64 mask_of(const uint8_t flag[LANES]) {
#ifdef __AVX512BW__
    const __m512i bytes = _mm512_loadu_si512(flag);
    return _mm512_test_epi8_mask(bytes, bytes);
#else
    mask64 mask = 0;
    EACH mask |= (mask64)(flag[i] != 0) << i;
    return mask;
#endif
}
