// Scales of NVFP4: float8_e4m3fn, beside a float32 scale of the whole tensor; both multiply. SCALE_FORMAT is theirs, FORMAT the
// elements' (minifloat.h).
#pragma once

#define GIVEN const float*    // the scale of the whole tensor

struct Nvfp4Scale {
    typedef uint8_t Stored;
    typedef SCALE_FORMAT Stores;
    float global, of_global;
    bool usual;    // so far from the ends of float32 that no quotient that counts is subnormal, and none Inf

    DEVICE explicit Nvfp4Scale(const float* given)
        : global(*given), of_global(div_rn(1.0f, *given)), usual(*given > 0x1p-60f && *given < 0x1p60f) {}
    // At least the smallest normal number; NaN stays, what is too large saturates.
    DEVICE uint8_t of(float amax) const {
        constexpr float LEAST = 1.0f / static_cast<float>(1 << (Stores::BIAS - 1));
        const float scale = usual ? near_quotient(amax) : div_rn(div_rn(amax, decode<Format>(Format::LARGEST)), global);
        return static_cast<uint8_t>(encode4<Stores>(scale < LEAST ? LEAST : scale, 0.0f, 0.0f, 0.0f));
    }
    DEVICE float inverse(uint8_t scale) const {
        float own, zero;
        decode2<Stores>(own, zero, scale);
        if (!usual) return div_rn(div_rn(1.0f, global), own);
        // Of a number of 4 bits no quotient is near the middle of two: any inverse that is close will do.
        const float of_own = rcp_fast(own);
        return corrected(of_global, own, of_own, of_global * of_own);
    }

  private:
    // `quotient`, which is next to a / b, with its remainder over b.
    DEVICE static float corrected(float a, float b, float inverse, float quotient) {
        return math_fma(math_fma(-b, quotient, a), inverse, quotient);
    }
    // amax / 6 / global by products with inverses. One correction gives the nearest quotient by 6, of all float32; a second one
    // that by any number. What is 2^20 times `global` or more saturates, as that number does.
    DEVICE float near_quotient(float amax) const {
        constexpr float MOST = 6.0f, OF_MOST = 1.0f / 6.0f;
        const float end = global * 0x1p20f, size = amax > end ? end : amax;
        const float of_6 = corrected(size, MOST, OF_MOST, size * OF_MOST);
        return corrected(of_6, global, of_global, corrected(of_6, global, of_global, of_6 * of_global));
    }
};
