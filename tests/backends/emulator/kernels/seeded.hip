// Kernels with one mistake each. The line, or either of the two lines, where it shows ends in `// BUG`;
// test_seeded_bugs.py launches each and asks for the fault that names that line.
#include "prelude.h"

#define BARRIER()                                                                                            \
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");                                                   \
    __builtin_amdgcn_s_barrier();                                                                            \
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup")

// ---- global memory

KERNEL(64) void read_past_end(int* y, const int* x) {
    const int i = block_x() * 64 + thread_x();
    y[i] = x[i + 1]; // BUG
}

KERNEL(64) void read_past_end_uniform(int* y, const int* x, int n) {
    y[thread_x()] = x[n]; // BUG
}

KERNEL(64) void read_vector_past_end(uint32_t* y, const uint32_t* x) {
    typedef uint32_t four __attribute__((ext_vector_type(4)));
    const four q = reinterpret_cast<const four*>(x)[thread_x()]; // BUG
    y[thread_x()] = q.x + q.y + q.z + q.w;
}

KERNEL(64) void write_before_start(int* y, const int* x) {
    const int i = block_x() * 64 + thread_x();
    y[i - 1] = x[i]; // BUG
}

KERNEL(64) void tail_mask(int* y, const int* x, int n) {
    const int i = block_x() * 64 + thread_x();
    const int v = x[i < n ? i : 0];
    if (i <= n) y[i] = v; // BUG
}

KERNEL(64) void wrong_stride(int* y, const int* x, int64_t stride) {
    const int i = block_x() * 64 + thread_x();
    y[i] = x[i * stride]; // BUG
}

KERNEL(64) void write_read_only(int* y, int* x) {
    const int i = thread_x();
    y[i] = x[i];
    asm volatile("" ::: "memory"); // else the compiler gives both stores one line
    x[i] = 0; // BUG
}

KERNEL(64) void atomic_past_end(int* y, int n) {
    const int i = block_x() * 64 + thread_x();
    __hip_atomic_fetch_add(y + i, n, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); // BUG
}

KERNEL(64) void null_pointer(int* y, const int* x) {
    y[thread_x()] = x[thread_x()]; // BUG
}

KERNEL(64) void kernarg_past_end(int* y) {
    const int* own = (const int*)__builtin_amdgcn_kernarg_segment_ptr();
    y[thread_x()] = own[5000]; // BUG
}

KERNEL(64) void misaligned_atomic(char* y, int shift) {
    int* address = reinterpret_cast<int*>(y + 4 * thread_x() + shift);
    __hip_atomic_fetch_add(address, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); // BUG
}

// ---- local and private memory

KERNEL(64) void lds_past_end(int* y, const int* x) {
    SHARED int s[64];
    s[thread_x()] = thread_x();
    BARRIER();
    y[thread_x()] = s[x[thread_x()]]; // BUG
}

// Correct, but for a launch with too little dynamic local memory.
KERNEL(64) void dynamic_lds_short(int* y, const int* x) {
    DYNAMIC_SHARED(raw);
    int* s = reinterpret_cast<int*>(raw);
    s[thread_x()] = x[thread_x()]; // BUG
    y[thread_x()] = s[thread_x()];
}

KERNEL(64) void misaligned_lds_atomic(int* y, int shift) {
    SHARED int s[65];
    s[thread_x()] = 0;
    if (thread_x() == 0) s[64] = 0;
    BARRIER();
    int* address = reinterpret_cast<int*>(reinterpret_cast<char*>(s + thread_x()) + shift);
    __hip_atomic_fetch_add(address, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP); // BUG
    BARRIER();
    y[thread_x()] = s[thread_x()];
}

KERNEL(64) void private_past_end(int* y, const int* x, int n) {
    int own[100];
    for (int k = 0; k < 100; ++k) {
        own[k] = k * n;
    }
    y[thread_x()] = own[x[thread_x()]]; // BUG
}

// ---- what nobody wrote

KERNEL(64) void uninitialised_register(int* y) {
    int v;
    asm volatile("v_mov_b32 %0, v100" : "=v"(v) : : "v100");
    y[thread_x()] = v; // BUG
}

KERNEL(64) void uninitialised_scalar(int* y) {
    int v;
    asm volatile("s_mov_b32 %0, s77" : "=s"(v) : : "s77");
    y[thread_x()] = v; // BUG
}

// Lanes from 20 on keep what was there.
KERNEL(64) void uninitialised_lanes(int* y, const int* x) {
    int v;
    asm volatile("v_mov_b32 %0, v100" : "=v"(v) : : "v100");
    if (thread_x() < 20) {
        v = x[thread_x()];
    }
    asm volatile("" : "+v"(v));
    y[thread_x()] = v + 1; // BUG
}

KERNEL(64) void uninitialised_through_arithmetic(float* y, const float* x) {
    float v;
    asm volatile("v_mov_b32 %0, v100" : "=v"(v) : : "v100");
    const float w = __builtin_fmaf(v, x[thread_x()], 2.0f) * x[63];
    y[thread_x()] = w; // BUG
}

KERNEL(256) void uninitialised_lds_stored(int* y, const int* x) {
    SHARED int s[256];
    if (thread_x() < 200) {
        s[thread_x()] = x[thread_x()];
    }
    BARRIER();
    y[255 - thread_x()] = s[thread_x()]; // BUG
}

KERNEL(256) void uninitialised_lds_branch(int* y, const int* x) {
    SHARED int s[256];
    if (thread_x() != 77) {
        s[thread_x()] = x[thread_x()];
    }
    BARRIER();
    int v = 1;
    for (int k = 0; k < s[thread_x() ^ 1]; ++k) { // BUG
        v = v * 3 + (v >> 4);
        asm volatile("" : "+v"(v));
    }
    y[thread_x()] = v;
}

KERNEL(256) void uninitialised_lds_address(int* y, const int* x) {
    SHARED int s[256];
    if (thread_x() != 130) {
        s[thread_x()] = x[thread_x()];
    }
    BARRIER();
    y[s[255 - thread_x()]] = thread_x(); // BUG
}

KERNEL(64) void uninitialised_private(int* y, const uint8_t* x, int first) {
    int own[100];
    for (int k = 0; k < 8; ++k) {
        own[x[thread_x() * 8 + k]] = k;
    }
    y[thread_x()] = own[x[thread_x()] + first]; // BUG
}

// What was never written passes through local memory, another lane, and a matrix instruction.
KERNEL(64) void uninitialised_through_lds(int* y, const int* x) {
    SHARED int s[64];
    int v;
    asm volatile("v_mov_b32 %0, v100" : "=v"(v) : : "v100");
    s[thread_x()] = thread_x() == 37 ? v : x[thread_x()]; // BUG
    BARRIER();
    y[thread_x()] = s[thread_x() ^ 5] + 1; // BUG
}

KERNEL(64) void uninitialised_through_shuffle(int* y, const int* x) {
    int v;
    asm volatile("v_mov_b32 %0, v100" : "=v"(v) : : "v100");
    v = lane_of_wave() == 11 ? v : x[thread_x()];
    v = __builtin_amdgcn_ds_bpermute((lane_of_wave() ^ 8) << 2, v);
    asm volatile("" : "+v"(v));
    y[thread_x()] = v; // BUG
}

KERNEL(WARP) void uninitialised_through_matrix(float* y, const _Float16* x) {
    typedef float accumulator __attribute__((ext_vector_type(WARP == 64 ? 4 : 8)));
#if defined(__GFX11__)
    typedef _Float16 operand __attribute__((ext_vector_type(16)));
#elif defined(__GFX12__)
    typedef _Float16 operand __attribute__((ext_vector_type(8)));
#else
    typedef _Float16 operand __attribute__((ext_vector_type(4)));
#endif
    int v;
    asm volatile("v_mov_b32 %0, v100" : "=v"(v) : : "v100");
    const operand a = reinterpret_cast<const operand*>(x)[thread_x()];
    operand b = a;
    b[0] = __builtin_bit_cast(_Float16, static_cast<uint16_t>(v));
#if defined(__GFX11__)
    const accumulator d = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, accumulator{});
#elif defined(__GFX12__)
    const accumulator d = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, accumulator{});
#else
    const accumulator d = __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, accumulator{}, 0, 0, 0);
#endif
    reinterpret_cast<accumulator*>(y)[thread_x()] = d; // BUG
}

KERNEL(64) void uninitialised_scalar_branch(int* y, int n) {
    int v;
    asm volatile("s_mov_b32 %0, s77" : "=s"(v) : : "s77");
    if (v > n) { // BUG
        y[thread_x() + 1] = 1;
        asm volatile("s_nop 0" ::: "memory");
    }
    y[thread_x()] = 2;
}

// ---- races: local memory that two waves touch with no barrier between

KERNEL(256) void race_read_after_write(int* y, const int* x) {
    SHARED int s[256];
    s[thread_x()] = 0;
    BARRIER();
    s[thread_x()] = x[thread_x()]; // BUG
    y[thread_x()] = s[(thread_x() + WARP) & 255]; // BUG
}

KERNEL(256) void race_write_after_read(int* y, const int* x) {
    SHARED int s[256];
    s[thread_x()] = x[thread_x()];
    BARRIER();
    const int v = s[255 - thread_x()]; // BUG
    s[thread_x()] = v; // BUG
    BARRIER();
    y[thread_x()] = s[thread_x()];
}

KERNEL(128) void race_write_after_write(int* y, const int* x) {
    SHARED int s[WARP];
    s[thread_x() % WARP] = x[thread_x()]; // BUG
    BARRIER();
    y[thread_x()] = s[thread_x() % WARP];
}

KERNEL(128) void race_with_atomic(int* y, const int* x) {
    SHARED int sum;
    if (thread_x() == 0) {
        sum = 0;
    }
    BARRIER();
    __hip_atomic_fetch_add(&sum, x[thread_x()], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP); // BUG
    y[thread_x()] = *(volatile int*)&sum; // BUG
}

// A tree that leaves out the barrier of its last steps, as if a wave had 128 lanes.
KERNEL(256) void race_last_steps(int* y, const int* x) {
    SHARED int s[256];
    const int t = thread_x();
    s[t] = x[t];
    BARRIER();
    for (int half = 128; half > 0; half >>= 1) {
        if (t < half) s[t] += s[t + half]; // BUG
        if (half > 128) {
            BARRIER();
        }
    }
    if (t == 0) {
        y[0] = s[0];
    }
}

// Two halves of local memory take turns, but the barrier of every second step is missing.
KERNEL(256) void race_double_buffer(int* y, const int* x, int steps) {
    SHARED int s[2][256];
    int sum = 0;
    for (int k = 0; k < steps; ++k) {
        if ((k & 1) == 0) {
            BARRIER();
        }
        s[k & 1][thread_x()] = x[k * 256 + thread_x()]; // BUG
        if ((k & 1) == 1) {
            BARRIER();
        }
        sum += s[k & 1][(thread_x() + WARP) & 255]; // BUG
    }
    y[thread_x()] = sum;
}

// Local memory is used again while another wave may still read what the last round left there.
KERNEL(256) void race_used_again(int* y, const int* x, int rounds) {
    SHARED int s[256];
    int sum = 0;
    for (int k = 0; k < rounds; ++k) {
        s[thread_x()] = x[thread_x()] + k; // BUG
        BARRIER();
        sum += s[255 - thread_x()]; // BUG
    }
    y[thread_x()] = sum;
}
// What it reads races; what comes of it is chosen by n: nothing where n is 0.
KERNEL(256) void race_chosen_after_write(int* y, const int* x, int n) {
    SHARED volatile int s[256];
    const int t = thread_x();
    s[t] = 0;
    BARRIER();
    s[t] = x[t]; // BUG
    const int other = s[(t + WARP) & 255]; // BUG
    y[t] = t < n ? other : x[t];
}
KERNEL(256) void race_chosen_of_before(int* y, const int* x, int n) {
    SHARED volatile int s[256];
    const int t = thread_x();
    s[t] = 0;
    BARRIER();
    s[t] = x[t]; // BUG
    const int other = s[t & ~(WARP - 1) ? t - WARP : t]; // BUG
    y[t] = t < n ? other : x[t];
}
KERNEL(256) void race_chosen_after_read(int* y, const int* x, int n) {
    SHARED volatile int s[256];
    const int t = thread_x();
    s[t] = x[t];
    BARRIER();
    const int other = s[(t + WARP) & 255]; // BUG
    s[t] = x[t] + 1; // BUG
    y[t] = t < n ? other : x[t];
}
// It goes by way of LDS and of registers that spill, to another wave.
KERNEL(256) void race_kept_aside(int* y, const int* x, int n) {
    SHARED volatile int s[256], kept[256];
    const int t = thread_x();
    s[t] = 0;
    BARRIER();
    s[t] = x[t]; // BUG
    kept[t] = s[(t + WARP) & 255]; // BUG
    BARRIER();
    const int other = kept[(t + 2 * WARP) & 255];
    y[t] = t < n ? other : x[t];
}

// ---- barriers

KERNEL(256) void barrier_one_wave(int* y) {
    if (thread_x() < WARP) {
        BARRIER(); // BUG
    }
    y[thread_x()] = 1;
}

KERNEL(256) void barrier_once_more(int* y, int n) {
    const int rounds = n + (thread_x() >= 256 - WARP);
    for (int k = 0; k < __builtin_amdgcn_readfirstlane(rounds); ++k) {
        BARRIER(); // BUG
    }
    y[thread_x()] = rounds;
}

KERNEL(256) void barrier_divergent(int* y, const int* x) {
    int v = x[thread_x()];
    if (thread_x() % WARP < WARP / 2) {
        v *= 3;
        BARRIER(); // BUG
    }
    y[thread_x()] = v;
}

// ---- loops

KERNEL(64) void endless(int* y, const int* flag) {
    while (*(volatile const int*)flag == 0) { // BUG
    }
    y[thread_x()] = 1;
}

KERNEL(128) void endless_barriers(int* y, const int* flag) {
    while (*(volatile const int*)flag == 0) { __builtin_amdgcn_s_barrier(); } // BUG
    y[thread_x()] = 1;
}

// ---- lanes that take no part

KERNEL(64) void inactive_bpermute(int* y, const int* x) {
    const int lane = lane_of_wave(), v = x[thread_x()];
    if (lane < WARP / 2) {
        y[thread_x()] = v + __builtin_amdgcn_ds_bpermute((lane + WARP / 2) << 2, v); // BUG
    }
}

KERNEL(64) void inactive_dpp(int* y, const int* x) {
    const int lane = lane_of_wave(), v = x[thread_x()];
    if ((lane & 1) == 0) {
        y[thread_x()] = v + __builtin_amdgcn_mov_dpp(v, 0xb1, 0xf, 0xf, false); // BUG
    }
}

// Lane 30 of the register was never written: only the lanes below 20 wrote it.
KERNEL(64) void inactive_readlane(int* y, const int* x) {
    const int lane = lane_of_wave(), v = x[thread_x()];
    if (lane < 20) {
        int w;
        asm volatile("v_mov_b32 v100, %1\n\ts_nop 4\n\tv_readlane_b32 %0, v100, 30" : "=s"(w) : "v"(v) : "v100");
        y[thread_x()] = v + w; // BUG
    }
}

// Adds 32 lanes where a wave has 64, or 16 of 32: lanes that left the loop early are read.
KERNEL(64) void half_wave_reduction(int* y, const int* x) {
    int v = x[thread_x()];
    const int lane = lane_of_wave();
    for (int delta = WARP / 2; delta > 0; delta >>= 1) {
        if (lane < delta) v += __builtin_amdgcn_ds_bpermute((lane + delta) << 2, v); // BUG
    }
    if (lane == 0) y[thread_x() / WARP] = v; // BUG
}
