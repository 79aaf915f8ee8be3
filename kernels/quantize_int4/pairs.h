// Codes of 4 bits, the even column's in the lower half of a byte: what codes.h and rows.cu of quantize_int8 ask for.
//
// An addition rounds: beside MAGIC the step of float32 is 1, so the sum's bits are MAGIC_BITS + n. Those of a word's codes are
// added up at their places, and MAGIC_BITS are taken off, and the zero point put on, for all of them at once.
#pragma once

// `value` at each of COUNT places of 4 bits, added up.
template <int COUNT> DEVICE constexpr uint32_t at_each_place(uint32_t value) {
    uint32_t all = 0;
    for (int i = 0; i < COUNT; ++i) all += value << 4 * i;
    return all;
}

struct Codes {
    float inverse, least, most;
    uint32_t zero;

    // A row with a NaN or Inf, whose scale is none, has the code of 0 everywhere: every number is brought to 0.
    DEVICE Codes(float scale, int zero_point, bool)
        : inverse(div_rn(1.0f, scale)), least(0.0f), most(0.0f), zero(static_cast<uint32_t>(zero_point)) {
        if (scale <= 0x1.fffffep+127f) {
            least = static_cast<float>(LEAST - zero_point);
            most = static_cast<float>(MOST - zero_point);
        }
    }
    // MAGIC_BITS + n of a number. A symmetric row has none below `least` and a rounding.
    DEVICE uint32_t rounded(float value) const {
        float scaled = rounded_product(value, inverse);
        if (ASYMMETRIC) scaled = math_max_number(scaled, least);
        return bits_of(math_min_number(scaled, most) + MAGIC);
    }
    template <int COUNT> DEVICE uint32_t at_each_place_offset() const {
        return zero * at_each_place<COUNT>(1) - at_each_place<COUNT>(MAGIC_BITS);
    }
};

// Where the codes of so many columns end, an even number of them but for what a lane alone has.
template <class Index> DEVICE Index code_bytes(Index columns) { return columns / 2; }

// The codes of a vector, those inside the row, and beside the last one of an odd row the code of 0.
template <class Type, int COUNT, class Index>
DEVICE void store_codes(Code* address, Index column, Index length, const Vector<Type, COUNT>& held, const Codes& codes) {
    if constexpr (COUNT == 1) {    // neighbours are two lanes', all of which come here
        const uint32_t own = codes.rounded(held[0]) + codes.at_each_place_offset<1>();
        const uint32_t next = LANES == 1 ? codes.zero : static_cast<uint32_t>(shuffle_xor(static_cast<int>(own), 1));
        if (row_lane() % 2 == 0 && column < length) *address = static_cast<Code>(own | next << 4);
    } else {
        if (!TAIL && column >= length) return;
        if (TAIL && !reached(column, length)) return;
        uint32_t word = codes.rounded(held[COUNT - 1]);
#pragma unroll
        for (int i = COUNT - 2; i >= 0; --i) word = (word << 4) + codes.rounded(held[i]);
        word += codes.at_each_place_offset<COUNT>();
        if (!TAIL || column + COUNT <= length) {
            if constexpr (COUNT == 8) {
                store_global(address, words<4>{{word}});
            } else {
                const uint16_t lower = static_cast<uint16_t>(word);
#if ALIGN
                __builtin_memcpy(address, &lower, sizeof lower);
#else
                *reinterpret_cast<uint16_t*>(address) = lower;
#endif
            }
        } else {
#pragma unroll
            for (int i = 0; i < COUNT; i += 2) {
                if (column + i < length) address[i / 2] = static_cast<Code>(word >> 4 * i);
            }
        }
    }
}
