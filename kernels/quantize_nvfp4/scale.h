// Scales of NVFP4: float8_e4m3fn, beside a float32 scale of the whole tensor; both multiply. SCALE_FORMAT is theirs, FORMAT the
// elements' (minifloat.h).
#pragma once

#define GIVEN const float*    // the scale of the whole tensor

struct Nvfp4Scale {
    typedef uint8_t Stored;
    typedef SCALE_FORMAT Stores;
    float global;

    DEVICE explicit Nvfp4Scale(const float* given) : global(*given) {}
    // At least the smallest normal number; NaN stays, what is too large saturates.
    DEVICE uint8_t of(float amax) const {
        constexpr float LEAST = 1.0f / static_cast<float>(1 << (Stores::BIAS - 1));
        const float scale = div_rn(div_rn(amax, decode<Format>(Format::LARGEST)), global);
        return static_cast<uint8_t>(encode4<Stores>(scale < LEAST ? LEAST : scale, 0.0f, 0.0f, 0.0f));
    }
    DEVICE float inverse(uint8_t scale) const {
        float own, zero;
        decode2<Stores>(own, zero, scale);
        return div_rn(div_rn(1.0f, global), own);
    }
};
