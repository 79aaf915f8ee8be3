// Correct kernels that look like the mistakes of seeded.hip: none may be flagged.
#include "prelude.h"

KERNEL(64) void last_element(uint32_t* y, const uint32_t* x, int n) {
    const int i = block_x() * 64 + thread_x();
    if (4 * i + 3 < n) {
        store_words<16>(y + 4 * i, load_words<16>(x + 4 * i));
    } else if (4 * i < n) {
        for (int k = 4 * i; k < n; ++k) {
            y[k] = x[k];
        }
    }
}

// Lanes of one wave run in step: what they exchange among themselves needs no barrier.
KERNEL(256) void wave_exchange(int* y, const int* x) {
    SHARED int s[256];
    const int t = thread_x(), lane = t % WARP;
    s[t] = x[t];
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    const int v = s[t - lane + (WARP - 1 - lane)];
    __builtin_amdgcn_wave_barrier();
    s[t] = v * 2;
    __builtin_amdgcn_wave_barrier();
    y[t] = s[t ^ 3];
}

// The halves of a register come from two loads.
KERNEL(64) void register_halves(uint32_t* y, const uint16_t* low, const uint16_t* high) {
    typedef uint16_t pair __attribute__((ext_vector_type(2)));
    const int t = thread_x();
    pair p;
    p.x = low[t];
    p.y = high[63 - t];
    y[t] = __builtin_bit_cast(uint32_t, p);
}

// The upper half of the register is anyone's; only the lower one is stored.
KERNEL(64) void lower_half_stored(uint16_t* y, const uint16_t* x) {
    uint32_t v;
    asm volatile("v_mov_b32 %0, v100" : "=v"(v) : : "v100");
    v = (v & 0xffff0000u) | x[thread_x()];
    y[thread_x()] = static_cast<uint16_t>(v);
}

// Conversions that read a byte of the half that is there.
KERNEL(64) void bytes_of_a_half(float* y, const uint16_t* x) {
    uint32_t v;
    asm volatile("v_mov_b32 %0, v100" : "=v"(v) : : "v100");
    const uint32_t half = x[thread_x()], lower = (v & 0xffff0000u) | half, upper = (v & 0xffffu) | half << 16;
    float a, b, c, d;
    asm volatile("v_cvt_f32_ubyte0 %0, %1" : "=v"(a) : "v"(lower));
    asm volatile("v_cvt_f32_ubyte1 %0, %1" : "=v"(b) : "v"(lower));
    asm volatile("v_cvt_f32_ubyte2 %0, %1" : "=v"(c) : "v"(upper));
    asm volatile("v_cvt_f32_ubyte3 %0, %1" : "=v"(d) : "v"(upper));
    y[thread_x()] = a + 256.0f * b + c + 256.0f * d;
}

// Arrays in registers, indexed by scalars; and the clocks, which say something.
KERNEL(64) void indexed_registers(int* y, const int* x, int i, int j) {
    int a[16];
    const int t = thread_x();
    const unsigned long long start = __builtin_readcyclecounter(), first = __builtin_readsteadycounter();
#pragma unroll
    for (int k = 0; k < 16; ++k) a[k] = x[k * 64 + t];
    a[j & 15] = 7;
    y[t] = a[i & 15] + 3 * a[(i + 3) & 15];
    if (__builtin_readcyclecounter() < start || __builtin_readsteadycounter() < first) y[t] = 0;
}

KERNEL(64) void masked_lanes(int* y, const int* x, int n) {
    const int t = thread_x();
    int v;
    asm volatile("v_mov_b32 %0, v100" : "=v"(v) : : "v100");
    if (t < n) {
        v = x[t];
    }
    asm volatile("v_xor_b32 %0, 1, %0" : "+v"(v));
    if (t < n) {
        y[t] = v;
    }
}

// A word that nobody wrote is read, and not chosen.
KERNEL(256) void not_chosen(int* y, const int* x, int n) {
    SHARED int s[256];
    const int t = thread_x();
    if (t < n) {
        s[t] = x[t];
    }
    barrier();
    const int v = s[255 - t];
    y[t] = 255 - t < n ? v : -5;
}

// Half of the lanes shuffle; those whose partner is away do not use what they get.
KERNEL(64) void divergent_shuffle(int* y, const int* x) {
    const int lane = lane_of_wave(), v = x[thread_x()];
    if (lane < WARP / 2) {
        const int w = __builtin_amdgcn_ds_bpermute((lane + 8) << 2, v);
        y[thread_x()] = lane + 8 < WARP / 2 ? w : v;
    }
}

// While one half of local memory is filled, the other is read: one barrier a step is enough.
KERNEL(256) void double_buffer(int* y, const int* x, int steps) {
    SHARED int s[2][256];
    const int t = thread_x();
    int sum = 0;
    s[0][t] = x[t];
    for (int k = 0; k < steps; ++k) {
        barrier();
        if (k + 1 < steps) {
            s[(k + 1) & 1][t] = x[(k + 1) * 256 + t];
        }
        sum = sum * 3 + s[k & 1][(t * 7 + k) & 255];
    }
    y[t] = sum;
}

// Waves meet at different barriers of the program, each wave equally often.
KERNEL(128) void barriers_of_branches(int* y, const int* x) {
    SHARED int s[128];
    const int t = thread_x();
    if (__builtin_amdgcn_readfirstlane(t) < 64) {
        s[t] = x[t] + 1;
        barrier();
        y[t] = s[127 - t] * 2;
    } else {
        s[t] = x[t] - 1;
        barrier();
        y[t] = s[127 - t] * 5;
    }
}

// How often depends on the block, not on the thread.
KERNEL(128) void barriers_in_loop(int* y, const int* x) {
    SHARED int s[128];
    const int t = thread_x();
    int v = x[block_x() * 128 + t];
    for (int k = 0; k < block_x() * 2 + 1; ++k) {
        s[t] = v;
        barrier();
        v += s[(t + 33) & 127];
        barrier();
    }
    y[block_x() * 128 + t] = v;
}

// Waves write neighbouring bytes of one word, and read each other's only after a barrier.
KERNEL(256) void neighbouring_bytes(uint8_t* y, const uint8_t* x) {
    SHARED uint8_t s[260];
    const int t = thread_x();
    s[t + 1] = x[t];
    barrier();
    y[t] = s[256 - t];
}

// Whole waves leave at once; the kernel has no barrier.
KERNEL(256) void early_waves(int* y, const int* x, int n) {
    SHARED int s[256];
    const int t = thread_x();
    if (t >= n) {
        return;
    }
    s[t] = x[t];
    y[t] = s[t] + 1;
}

// Many waves read what one wrote, and one wave reads what it writes again.
KERNEL(256) void shared_reads(int* y, const int* x) {
    SHARED int s[64];
    const int t = thread_x();
    if (t < WARP) {
        for (int k = t; k < 64; k += WARP) {
            s[k] = x[k];
            s[k] = s[k] * 2 + 1;
        }
    }
    barrier();
    y[t] = s[t & 63] + s[(t * 5) & 63];
}

// Local memory that one block filled is anyone's for the next block; each fills its own.
KERNEL(64) void every_block_fills(int* y, const int* x) {
    SHARED int s[64];
    const int t = thread_x();
    for (int k = t; k < 64; k += 64) {
        s[k] = x[block_x() * 64 + k];
    }
    barrier();
    y[block_x() * 64 + t] = s[63 - t];
}

// Private memory filled in part, read in that part.
KERNEL(64) void private_in_part(int* y, const uint8_t* x, int n) {
    int own[40];
    const int t = thread_x(), count = x[t] % n + 1;
    for (int k = 0; k < count; ++k) {
        own[k] = k * k + t;
    }
    int sum = 0;
    for (int k = count - 1; k >= 0; --k) {
        sum = sum * 3 + own[k];
    }
    y[t] = sum;
}

// A lane and its neighbour write one word.
KERNEL(64) void pairs_write_one_word(int* y, const int* x) {
    SHARED int s[32];
    s[thread_x() / 2] = x[thread_x()];
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
    y[thread_x()] = s[thread_x() / 2];
}
