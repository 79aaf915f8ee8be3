// One step of AdamW: on one tensor, or with -DTABLE on all tensors of a table.
//
// A block of THREADS threads takes a chunk of CHUNK elements, VEC of them at a time per thread, with vector accesses
// where ALIGNED says that the arguments allow it. T, G and S are the types
// of the parameter, the gradient and the moments. Every product that is added to is an explicit fused multiply-add, so
// that every compiler rounds alike.
#include "prelude.h"

#include "_lib/ptx/pdl.h"
#include "_lib/philox.h"

typedef GRAD G;
typedef STATE S;

// The numbers of a call, alike for all tensors.
struct Settings {
    float beta2, rest1, rest2, eps, weight_decay;    // rest: 1 - beta
    int64_t beta1_bits, beta2_bits, seed;
};

// What a step makes of them for one tensor.
struct Factors {
    float decay, step_size, inverse_root2, scale;
    int step;
};

// base^exponent in float64 by squaring, as every vendor rounds a product alike.
DEVICE double power(int64_t base_bits, int exponent) {
    union {
        int64_t bits;
        double value;
    } base = {base_bits};
    double result = 1.0;
    for (double factor = base.value; exponent > 0; exponent >>= 1, factor *= factor) {
        if (exponent & 1) result *= factor;
    }
    return result;
}

DEVICE Factors factors(float step, float lr, float scale, const Settings& own) {
    const int t = static_cast<int>(step);
    const float correction1 = static_cast<float>(1.0 - power(own.beta1_bits, t));
    const float correction2 = static_cast<float>(1.0 - power(own.beta2_bits, t));
    return {lr * own.weight_decay, div_rn(lr, correction1), div_rn(1.0f, math_sqrt(correction2)), scale, t};
}

struct Element {
    float p, m, v;
};

DEVICE Element update(Element e, float g, const Factors& f, const Settings& own) {
#if HAS_GRAD_SCALE
    g = div_rn(g, f.scale);
#endif
#if MAXIMIZE
    g = -g;
#endif
    const float decayed = math_fma(-f.decay, e.p, e.p);
    const float m = math_fma(own.rest1, g - e.m, e.m);
    const float v = math_fma(own.rest2 * g, g, own.beta2 * e.v);
    // A division less than sqrt(v) / root2 + eps: two of them and the root kept the vector pipe of an emulated gfx942
    // longer busy than memory, 1.34 to 1.28 million cycles in bfloat16 (2026-11-26).
    const float denominator = math_fma(math_sqrt(v), f.inverse_root2, own.eps);
    return {math_fma(-f.step_size, div_rn(m, denominator), decayed), m, v};
}

template <class Type> constexpr bool is_bf16 = false;
template <> constexpr bool is_bf16<bf16> = true;

// The bfloat16 above or below, with probabilities by the distance; an infinity and a NaN as they are.
DEVICE float rounded_by(float value, uint32_t sixteen_bits) {
    const uint32_t bits = bits_of(value);
    const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    return finite ? float_of((bits + sixteen_bits) & 0xffff0000u) : value;
}

// Where single elements begin. AMD's compiler works out their addresses for whole vectors too where it knows them, 8 of
// 50 instructions an element (gfx950, bfloat16, 2026-11-26).
#if defined(__AMDGCN__)
DEVICE int single(int base) { return opaque(base); }
#else
DEVICE int single(int base) { return base; }
#endif

template <class Type> DEVICE float element(const Type* at, int64_t step, int i, int count) {
    return i < count ? to_float(at[i * step]) : 0.0f;
}

// VEC neighbouring elements, by vectors of at most 16 bytes where they are whole and aligned.
template <class Type> struct Vector {
    static constexpr int BYTES = VEC * sizeof(Type);
    static constexpr int PART = BYTES < 16 ? BYTES : 16;
    words<PART> part[BYTES / PART];

    DEVICE void load(const Type* at) {
#pragma unroll
        for (int i = 0; i < BYTES / PART; ++i) {
            part[i] = load_words_once<PART>(reinterpret_cast<const char*>(at) + i * PART);
        }
    }
    DEVICE void store(Type* at) const {
#pragma unroll
        for (int i = 0; i < BYTES / PART; ++i) store_words(reinterpret_cast<char*>(at) + i * PART, part[i]);
    }
    DEVICE uint32_t& word(int i) { return part[i / (PART / 4)].w[i % (PART / 4)]; }
    DEVICE uint32_t word(int i) const { return part[i / (PART / 4)].w[i % (PART / 4)]; }
    DEVICE float operator[](int i) const {
        if constexpr (sizeof(Type) == 4) {
            return float_of(word(i));
        } else {
            return to_float(Type{static_cast<uint16_t>(word(i / 2) >> (i % 2 * 16))});
        }
    }
    DEVICE void set(const float (&value)[VEC]) {
        if constexpr (sizeof(Type) == 4) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) word(i) = bits_of(value[i]);
        } else {
#pragma unroll
            for (int i = 0; i < VEC / 2; ++i) word(i) = pack2<Type>(value[2 * i], value[2 * i + 1]);
        }
    }
};

KERNEL(THREADS)
void adamw(T* param, const G* grad, S* exp_avg, S* exp_avg_sq, const float* step, const float* lr,
           const float* grad_scale, const float* found_inf,
#if TABLE
           const int64_t* tensors, const int* chunks,
#else
           int64_t size, int number,
#endif
           int64_t param_step, int64_t grad_step, int64_t exp_avg_step, int64_t exp_avg_sq_step, Settings own) {
    enter_pdl();
#if HAS_FOUND_INF
    if (found_inf[0] != 0.0f) return;
#endif
#if TABLE
    const int* chunk = chunks + static_cast<int64_t>(block_x()) * 2;
    const int64_t* tensor = tensors + static_cast<int64_t>(chunk[0]) * 7;
    const int64_t start = chunk[1];
    const int64_t size = tensor[0];
    const int number = static_cast<int>(tensor[6]);
    step += tensor[5];
    param += tensor[1] * param_step;
    grad += tensor[2] * grad_step;
    exp_avg += tensor[3] * exp_avg_step;
    exp_avg_sq += tensor[4] * exp_avg_sq_step;
    const bool aligned = ALIGNED && (tensor[1] | tensor[2] | tensor[3] | tensor[4]) % VEC == 0;
#else
    const int64_t start = static_cast<int64_t>(block_x()) * CHUNK;
    const bool aligned = ALIGNED;
#endif
    param += start * param_step;
    grad += start * grad_step;
    exp_avg += start * exp_avg_step;
    exp_avg_sq += start * exp_avg_sq_step;
    const int count = size - start < CHUNK ? static_cast<int>(size - start) : CHUNK;
    if (count <= 0) return;

    SHARED Factors shared_factors;
    if (thread_x() == 0) {
#if HAS_GRAD_SCALE
        const float scale = grad_scale[0];
#else
        const float scale = 1.0f;
#endif
        shared_factors = factors(step[0], lr[0], scale, own);
    }
    barrier();
    const Factors f = shared_factors;

#pragma unroll 1
    for (int base = thread_x() * VEC; base < count; base += THREADS * VEC) {
        Element e[VEC];
        float g[VEC];
        const bool whole = aligned && base + VEC <= count;
        if (whole) {
            Vector<T> p;
            Vector<G> gradient;
            Vector<S> m, v;
            p.load(param + base);
            gradient.load(grad + base);
            m.load(exp_avg + base);
            v.load(exp_avg_sq + base);
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                e[i] = {p[i], m[i], v[i]};
                g[i] = gradient[i];
            }
        } else {
            const int at = single(base);
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                e[i] = {element(param + at * param_step, param_step, i, count - at),
                        element(exp_avg + at * exp_avg_step, exp_avg_step, i, count - at),
                        element(exp_avg_sq + at * exp_avg_sq_step, exp_avg_sq_step, i, count - at)};
                g[i] = element(grad + at * grad_step, grad_step, i, count - at);
            }
        }
#pragma unroll
        for (int i = 0; i < VEC; ++i) e[i] = update(e[i], g[i], f, own);
#if STOCHASTIC
#pragma unroll
        for (int i = 0; i < VEC; i += 4) {
            const int64_t group = (start + base + i) >> 2;
            const Random4 random = philox(static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), number,
                                          f.step, static_cast<uint32_t>(own.seed), static_cast<uint32_t>(own.seed >> 32));
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if constexpr (is_bf16<T>) e[i + j].p = rounded_by(e[i + j].p, random.w[j] & 0xffffu);
                if constexpr (is_bf16<S>) e[i + j].v = rounded_by(e[i + j].v, random.w[j] >> 16);
            }
        }
#endif
        if (whole) {
            Vector<T> p;
            Vector<S> m, v;
            float values[3][VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                values[0][i] = e[i].p;
                values[1][i] = e[i].m;
                values[2][i] = e[i].v;
            }
            p.set(values[0]);
            m.set(values[1]);
            v.set(values[2]);
            p.store(param + base);
            m.store(exp_avg + base);
            v.store(exp_avg_sq + base);
        } else {
            const int at = single(base);
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (at + i >= count) break;
                param[(at + i) * param_step] = from_float<T>(e[i].p);
                exp_avg[(at + i) * exp_avg_step] = from_float<S>(e[i].m);
                exp_avg_sq[(at + i) * exp_avg_sq_step] = from_float<S>(e[i].v);
            }
        }
    }
}
