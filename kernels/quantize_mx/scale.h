// Scales of MX: e8m0, a byte of which is an exponent of two with bias 127, and 255 is NaN.
//
// MX_ROUNDING says which power of two follows from a group's greatest magnitude; FORMAT is the elements' (minifloat.h).
#pragma once

#define FLOOR 0
#define RCEIL 1
#define CEIL 2
#define EVEN 3

struct MxScale {
    typedef uint8_t Stored;
    // The exponent of the largest number of the format.
    static constexpr int TOP = (Format::LARGEST >> Format::MANTISSA) - Format::BIAS;

    DEVICE explicit MxScale(float) {}
    DEVICE uint8_t of(float amax) const {
        uint32_t bits = bits_of(amax);
        if (bits >= 0x7f800000u) return 255;
#if MX_ROUNDING == RCEIL
        bits = bits_of(amax * div_rn(1.0f, decode<Format>(Format::LARGEST)));
        // Not above 2^-127, the power of byte 0, which is a subnormal number here.
        if (bits <= 0x00400000u) return 0;
        return static_cast<uint8_t>((bits >> 23) + ((bits & 0x7fffffu) != 0));
#else
#if MX_ROUNDING == EVEN
        bits += 1u << (22 - Format::MANTISSA);
#endif
        const int power = static_cast<int>(bits >> 23) + (MX_ROUNDING == CEIL && (bits & 0x7fffffu) != 0) - TOP;
        return static_cast<uint8_t>(power > 0 ? power : 0);
#endif
    }

    // A power of two, normal, as scales are below 2^127; NaN of NaN.
    DEVICE float inverse(uint8_t scale) const {
        return float_of(scale == 255 ? 0x7fc00000u : (254u - scale) << 23);
    }
};
