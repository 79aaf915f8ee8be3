// Correct kernels about arithmetic, addresses and arguments. test_clean_kernels.py holds a NumPy
// definition of each.
#include "prelude.h"

typedef _Float16 half;
typedef half half2 __attribute__((ext_vector_type(2)));

extern "C" {
__device__ float __ocml_sin_f32(float);
__device__ float __ocml_tanh_f32(float);
__device__ float __ocml_erf_f32(float);
__device__ float __ocml_pow_f32(float, float);
__device__ double __ocml_exp_f64(double);
__device__ double __ocml_log_f64(double);
}

DEVICE int index() { return block_x() * 64 + thread_x(); }

// ---- floats

KERNEL(64) void float_divide(float* y, const float* a, const float* b) {
    const int i = index();
    y[i] = a[i] / b[i];
}

KERNEL(64) void float_functions(float* y, const float* a, const float* b, int n) {
    const int i = index();
    if (i >= n) {
        return;
    }
    const float x = a[i];
    y[i] = math_sqrt(b[i]);
    y[n + i] = math_exp(x);
    y[2 * n + i] = math_log(b[i]);
    y[3 * n + i] = __ocml_tanh_f32(x);
    y[4 * n + i] = __ocml_erf_f32(x);
    y[5 * n + i] = __ocml_pow_f32(b[i], x * 0.25f);
    y[6 * n + i] = __ocml_sin_f32(x * 1000.0f);
    y[7 * n + i] = math_fma(x, b[i], -x);
}

// Exact by IEEE 754: each is one rounding.
KERNEL(64) void float_exact(float* y, const float* a, const float* b, int n) {
    const int i = index();
    if (i >= n) {
        return;
    }
    y[i] = a[i] + b[i];
    y[n + i] = a[i] * b[i];
    y[2 * n + i] = __builtin_floorf(a[i]);
    y[3 * n + i] = __builtin_truncf(b[i]);
    y[4 * n + i] = __builtin_rintf(a[i]);
    y[5 * n + i] = __builtin_fminf(a[i], b[i]);
    y[6 * n + i] = -__builtin_fabsf(a[i]) - b[i];
    y[7 * n + i] = __builtin_fminf(__builtin_fmaxf(a[i], 0.0f), 1.0f);
    y[8 * n + i] = a[i] < b[i] ? 1.0f : a[i] == b[i] ? 2.0f : a[i] != a[i] ? 3.0f : 4.0f;
    y[9 * n + i] = __builtin_ldexpf(a[i], i % 40 - 20);
}

KERNEL(64) void double_arithmetic(double* y, const double* a, const double* b, int n) {
    const int i = index();
    if (i >= n) {
        return;
    }
    y[i] = a[i] / b[i];
    y[n + i] = __builtin_sqrt(__builtin_fabs(a[i]));
    y[2 * n + i] = a[i] + b[i];
    y[3 * n + i] = a[i] * b[i];
    y[4 * n + i] = __builtin_fma(a[i], b[i], 1.0);
    y[5 * n + i] = __builtin_floor(a[i]);
    y[6 * n + i] = static_cast<float>(a[i]);
    y[7 * n + i] = static_cast<int>(a[i]);
    y[8 * n + i] = a[i] < b[i] ? static_cast<uint32_t>(i * 0x9e3779b9u) : __builtin_fmax(a[i], b[i]);
}

KERNEL(64) void double_functions(double* y, const double* a, int n) {
    const int i = index();
    if (i >= n) {
        return;
    }
    y[i] = __ocml_exp_f64(a[i]);
    y[n + i] = __ocml_log_f64(__builtin_fabs(a[i]));
}

KERNEL(64) void half_arithmetic(half* y, const half* a, const half* b, const half* c, int n) {
    const int i = index();
    if (i >= n) {
        return;
    }
    y[i] = a[i] + b[i];
    y[n + i] = a[i] * b[i];
    y[2 * n + i] = a[i] - b[i] * static_cast<half>(2.0f);
    y[3 * n + i] = __builtin_fmaxf16(a[i], b[i]);
    y[4 * n + i] = __builtin_fmaf16(a[i], b[i], c[i]);
    y[5 * n + i] = static_cast<half>(static_cast<float>(a[i]) * 3.0f);
    y[6 * n + i] = static_cast<half>(static_cast<int>(b[i]));
    y[7 * n + i] = a[i] < b[i] ? a[i] : -b[i];
}

// Two halves in one register.
KERNEL(64) void half_pairs(half2* y, const half2* a, const half2* b, int n) {
    const int i = index();
    if (i >= n) {
        return;
    }
    y[i] = a[i] + b[i];
    y[n + i] = a[i] * b[i].yx;
    y[2 * n + i] = __builtin_elementwise_max(a[i], -b[i]);
    y[3 * n + i] = half2{a[i].y, b[i].x};
    y[4 * n + i] = __builtin_elementwise_min(a[i].xx, b[i].yy);
}

// Rounding to bfloat16 and float16 and back, and floats to integers.
KERNEL(64) void conversions(uint32_t* y, const float* a, const int* k, int n) {
    const int i = index();
    if (i >= n) {
        return;
    }
    y[i] = from_float<bf16>(a[i]).bits;
    y[n + i] = from_float<f16>(a[i]).bits;
    y[2 * n + i] = bits_of(to_float(f16{static_cast<uint16_t>(k[i])}));
    y[3 * n + i] = bits_of(to_float(bf16{static_cast<uint16_t>(k[i])}));
    y[4 * n + i] = bits_of(static_cast<float>(k[i]));
    y[5 * n + i] = bits_of(static_cast<float>(static_cast<uint32_t>(k[i])));
    y[6 * n + i] = bits_of(static_cast<float>(static_cast<int64_t>(k[i]) * 4099));
    y[7 * n + i] = static_cast<uint32_t>(static_cast<int>(__builtin_fminf(__builtin_fmaxf(a[i], -1e9f), 1e9f)));
    y[8 * n + i] = pack2<f16>(a[i], -a[i]);
    y[9 * n + i] = bits_of(static_cast<float>(static_cast<uint8_t>(k[i] >> 8)));
}

// ---- integers

KERNEL(64) void integer_divide(int* y, const int* a, const int* b, int n) {
    const int i = index();
    if (i >= n) {
        return;
    }
    const uint32_t ua = a[i], ub = b[i];
    y[i] = a[i] / b[i];
    y[n + i] = a[i] % b[i];
    y[2 * n + i] = static_cast<int>(ua / ub);
    y[3 * n + i] = static_cast<int>(ua % ub);
    y[4 * n + i] = a[i] / n;
    y[5 * n + i] = static_cast<int>(ua % 7u);
    y[6 * n + i] = static_cast<int>((static_cast<uint64_t>(ua) * ub) >> 32);
    y[7 * n + i] = static_cast<int>((static_cast<int64_t>(a[i]) * b[i]) >> 32);
}

KERNEL(64) void long_arithmetic(int64_t* y, const int64_t* a, const int64_t* b, int n) {
    const int i = index();
    if (i >= n) {
        return;
    }
    const uint64_t ua = a[i], ub = b[i];
    y[i] = a[i] / b[i];
    y[n + i] = static_cast<int64_t>(ua % ub);
    y[2 * n + i] = a[i] * b[i];
    y[3 * n + i] = a[i] >> (b[i] & 63);
    y[4 * n + i] = static_cast<int64_t>(ua >> (b[i] & 63) | ua << (-b[i] & 63));
    y[5 * n + i] = a[i] < b[i] ? a[i] - b[i] : a[i] + b[i];
    y[6 * n + i] = ua > ub ? 1 : 0;
    y[7 * n + i] = __builtin_popcountll(ua) * 100 + __builtin_clzll(ua | 1);
}

KERNEL(64) void bit_tricks(uint32_t* y, const uint32_t* a, const uint32_t* b, int n) {
    const int i = index();
    if (i >= n) {
        return;
    }
    const uint32_t u = a[i], v = b[i];
    y[i] = __builtin_popcount(u) + (__builtin_clz(u | 1) << 8) + (__builtin_ctz(v | 0x80000000u) << 16);
    y[n + i] = __builtin_bitreverse32(u);
    y[2 * n + i] = __builtin_bswap32(u);
    y[3 * n + i] = u >> (v & 31) ^ u << (v >> 27);
    y[4 * n + i] = static_cast<uint32_t>(static_cast<int>(u << 7) >> 19);
    y[5 * n + i] = u >> 9 & 0x7ff;
    y[6 * n + i] = __builtin_amdgcn_perm(u, v, 0x01050c03);
    y[7 * n + i] = __builtin_amdgcn_alignbyte(u, v, 3);
    y[8 * n + i] = (u & v) | (~u & 0x12345678u);
    y[9 * n + i] = u * 0x01000193u + v;
    y[10 * n + i] = (u & 0xffffff) * (v & 0xffffff);
    y[11 * n + i] = __builtin_amdgcn_sad_u8(u, v, 1000);
    y[12 * n + i] = __builtin_elementwise_min(__builtin_elementwise_max(static_cast<int>(u), static_cast<int>(v)), 77777);
    y[13 * n + i] = __builtin_elementwise_add_sat(u, v);
}

// Dot products of packed bytes and halves.
KERNEL(64) void dots(int* y, float* f, const int* a, const int* b, const half2* p, const half2* q) {
    const int i = index();
#if defined(__GFX9__)
    y[i] = __builtin_amdgcn_sdot4(a[i], b[i], i, false);
    f[i] = __builtin_amdgcn_fdot2(p[i], q[i], 0.5f, false);
#else
    y[i] = __builtin_amdgcn_sudot4(true, a[i], true, b[i], i, false);
    f[i] = __builtin_amdgcn_fdot2(p[i], q[i], 0.5f, false);
#endif
}

// ---- addresses

// Offsets pass through 64 bits and through values far outside the tensor before they come back.
KERNEL(64) void far_offsets(int* y, const int* x, int64_t big, int64_t stride) {
    const int i = index();
    const int64_t forth = big * (i + 1) + static_cast<int64_t>(i) * stride;
    const int* p = x + forth;
    asm("" : "+v"(p));  // otherwise the compiler cancels the two
    p -= big * (i + 1);
    y[i] = *p;
}

// Every width of load and store, signed and not, at odd but allowed addresses.
KERNEL(64) void widths(char* y, const char* x) {
    const int i = index();
    const int8_t a = *reinterpret_cast<const int8_t*>(x + i);
    const uint8_t b = *reinterpret_cast<const uint8_t*>(x + 64 + i);
    const int16_t c = *reinterpret_cast<const int16_t*>(x + 128 + 2 * i);
    const uint16_t d = *reinterpret_cast<const uint16_t*>(x + 256 + 2 * i);
    const words<8> e = load_words<8>(x + 384 + 8 * i);
    const words<16> g = load_words<16>(x + 896 + 16 * i);
    typedef uint32_t triple __attribute__((ext_vector_type(3)));
    typedef uint32_t loose __attribute__((aligned(1)));
    const uint32_t h = *reinterpret_cast<const loose*>(x + 1920 + 5 * i + 1);
    *reinterpret_cast<int32_t*>(y + 4 * i) = a + b * 256 + c;
    *reinterpret_cast<int16_t*>(y + 256 + 2 * i) = static_cast<int16_t>(d ^ c);
    *reinterpret_cast<uint8_t*>(y + 384 + i) = static_cast<uint8_t>(d >> 8);
    store_words<8>(y + 448 + 8 * i, words<8>{e.w[1] + 1, e.w[0]});
    store_words<16>(y + 960 + 16 * i, words<16>{g.w[3], g.w[2], g.w[1], g.w[0] ^ h});
    *reinterpret_cast<loose*>(y + 1984 + 5 * i + 1) = h;
}

// A private array with a computed index lives in scratch memory; a small one in registers.
template <int SIZE> DEVICE void count_privately(int* y, const uint8_t* x, int n) {
    int counts[SIZE];
    for (int k = 0; k < SIZE; ++k) {
        counts[k] = k;
    }
    const int i = index();
    for (int k = 0; k < n; ++k) {
        const int v = x[i * n + k] % SIZE;
        counts[v] += counts[(v * 5 + 3) % SIZE] + 1;
    }
    for (int k = 0; k < SIZE; ++k) {
        y[i * SIZE + k] = counts[k];
    }
}
KERNEL(64) void private_array(int* y, const uint8_t* x, int n) { count_privately<83>(y, x, n); }
KERNEL(64) void indexed_registers(int* y, const uint8_t* x, int n) { count_privately<13>(y, x, n); }

// A buffer resource: reads past its size give zero, writes past it go nowhere.
KERNEL(64) void buffer_resource(int* y, int* x, int bytes) {
    const int i = index();
    __amdgpu_buffer_rsrc_t source = __builtin_amdgcn_make_buffer_rsrc(x, 0, bytes, WARP == 64 ? 0x27000 : 0x31027000);
    __amdgpu_buffer_rsrc_t target = __builtin_amdgcn_make_buffer_rsrc(y, 0, bytes + 4, WARP == 64 ? 0x27000 : 0x31027000);
    const int v = __builtin_amdgcn_raw_buffer_load_b32(source, i * 4, 0, 0);
    const int w = __builtin_amdgcn_raw_buffer_load_b32(source, i * 4, 8, 0);
    __builtin_amdgcn_raw_buffer_store_b32(v + 2 * w, target, i * 4, 0, 0);
}

#if defined(__gfx942__) || defined(__gfx950__)
// Global memory straight into local memory: lane i of a wave writes the i-th word after the base.
KERNEL(128) void load_to_lds(uint32_t* y, const uint32_t* x) {
    SHARED uint32_t staged[128];
    const int t = thread_x();
    typedef __attribute__((address_space(1))) uint32_t* global_word;
    typedef __attribute__((address_space(3))) uint32_t* local_word;
    const int first = __builtin_amdgcn_readfirstlane(t);
    __builtin_amdgcn_global_load_lds(
        reinterpret_cast<global_word>(reinterpret_cast<uint64_t>(x + (t ^ 5))),
        reinterpret_cast<local_word>(static_cast<uint32_t>(reinterpret_cast<uint64_t>(staged + first))), 4, 0, 0);
    __builtin_amdgcn_s_waitcnt(0);
    barrier();
    y[t] = staged[127 - t];
}
#endif

// ---- arguments

struct Odd {
    uint8_t a[3];
    int16_t b;
    uint8_t c;
};
struct Wide {
    double d;
    int table[9];
    uint8_t tail;
};

KERNEL(64) void arguments(int64_t* y, int8_t a, Odd odd, uint16_t h, Wide wide, bool flag, int64_t big,
                          float f, uint8_t last) {
    const int i = thread_x();
    int64_t sum = a + odd.a[0] * 3 + odd.a[1] * 5 + odd.a[2] * 7 + odd.b * 11 + odd.c * 13 + h * 17;
    sum += static_cast<int64_t>(wide.d) * 19 + wide.table[i % 9] * 23 + wide.tail * 29 + (flag ? 31 : 0);
    sum += big * 37 + static_cast<int64_t>(f) * 41 + last * 43;
    y[i] = sum;
}

// More arguments than one scalar load takes.
KERNEL(64) void many_arguments(int* y, const int* p0, const int* p1, const int* p2, const int* p3, const int* p4,
                               int a0, int a1, int a2, int a3, int a4, int a5, int a6, int a7, int64_t b0,
                               int64_t b1, int64_t b2, int64_t b3, double c0, double c1) {
    const int i = thread_x();
    int64_t sum = p0[i] + p1[i] * a0 + p2[i] * a1 + p3[i] * a2 + p4[i] * a3;
    sum += a4 + a5 * 3 + a6 * 5 + a7 * 7 + b0 * 11 + b1 * 13 + b2 * 17 + b3 * 19;
    y[i] = static_cast<int>(sum + static_cast<int64_t>(c0 * c1));
}

// Constant data of the code object, and a pointer to it.
__constant__ const int primes[32] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53,
                                     59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131};
KERNEL(64) void constants(int* y, const uint8_t* x) {
    const int i = index();
    y[i] = primes[x[i] & 31] * (i + 1);
}
