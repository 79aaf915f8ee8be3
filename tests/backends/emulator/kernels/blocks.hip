// Correct kernels about blocks and waves: local memory, barriers, lanes that talk, atomics, control flow.
// test_clean_kernels.py holds a NumPy definition of each.
#include "prelude.h"

#define GLOBAL __attribute__((address_space(1)))

DEVICE int thread_y() { return static_cast<int>(__builtin_amdgcn_workitem_id_y()); }
DEVICE int thread_z() { return static_cast<int>(__builtin_amdgcn_workitem_id_z()); }

// ---- reductions and scans

KERNEL(256) void block_sum(int* y, const int* x, int n) {
    SHARED int part[256];
    const int t = thread_x();
    int sum = 0;
    for (int i = block_x() * 256 + t; i < n; i += 256 * grid_x()) {
        sum += x[i];
    }
    part[t] = sum;
    barrier();
    for (int half = 128; half > 0; half >>= 1) {
        if (t < half) {
            part[t] += part[t + half];
        }
        barrier();
    }
    if (t == 0) {
        y[block_x()] = part[0];
    }
}

// Shuffles inside a wave, local memory between waves.
KERNEL(1024) void block_max(float* y, const float* x, int n) {
    SHARED float part[1024 / WARP];
    const int t = thread_x();
    float best = -INF_F;
    for (int i = t; i < n; i += 1024) {
        best = __builtin_fmaxf(best, x[block_x() * n + i]);
    }
    for (int mask = WARP / 2; mask > 0; mask >>= 1) {
        best = __builtin_fmaxf(best, shuffle_xor(best, mask));
    }
    if (lane_of_wave() == 0) {
        part[t / WARP] = best;
    }
    barrier();
    if (t == 0) {
        for (int w = 1; w < 1024 / WARP; ++w) {
            best = __builtin_fmaxf(best, part[w]);
        }
        y[block_x()] = best;
    }
}

// An inclusive scan of each wave by DPP: four shifts inside rows of sixteen, then across rows.
DEVICE int wave_scan(int v) {
    v += __builtin_amdgcn_update_dpp(0, v, 0x111, 0xf, 0xf, false);
    v += __builtin_amdgcn_update_dpp(0, v, 0x112, 0xf, 0xf, false);
    v += __builtin_amdgcn_update_dpp(0, v, 0x114, 0xf, 0xf, false);
    v += __builtin_amdgcn_update_dpp(0, v, 0x118, 0xf, 0xf, false);
#if defined(__GFX9__)
    v += __builtin_amdgcn_update_dpp(0, v, 0x142, 0xa, 0xf, false);
    v += __builtin_amdgcn_update_dpp(0, v, 0x143, 0xc, 0xf, false);
#else
    const int other = __builtin_amdgcn_permlanex16(v, v, 0xffffffff, 0xffffffff, true, false);
    v += lane_of_wave() & 16 ? other : 0;
#endif
    return v;
}

KERNEL(128) void dpp_scan(int* y, const int* x) {
    const int i = block_x() * 128 + thread_x();
    y[i] = wave_scan(x[i]);
}

// One scan over a block of 512: wave scans, a scan of the waves' totals, and one pass to add.
KERNEL(512) void block_scan(int* y, const int* x, int n) {
    SHARED int total[512 / WARP];
    const int t = thread_x();
    int v = wave_scan(t < n ? x[t] : 0);
    if (lane_of_wave() == WARP - 1) {
        total[t / WARP] = v;
    }
    barrier();
    for (int w = 0; w < t / WARP; ++w) {
        v += total[w];
    }
    if (t < n) {
        y[t] = v;
    }
}

// The textbook scan with two halves of local memory, one barrier a step.
KERNEL(256) void scan_two_buffers(int* y, const int* x) {
    SHARED int buffer[2][256];
    const int t = thread_x();
    int from = 0;
    buffer[0][t] = x[t];
    barrier();
    for (int step = 1; step < 256; step <<= 1) {
        buffer[from ^ 1][t] = buffer[from][t] + (t >= step ? buffer[from][t - step] : 0);
        from ^= 1;
        barrier();
    }
    y[t] = buffer[from][t];
}

// ---- local memory

KERNEL(256) void transpose(float* y, const float* x, int rows, int columns) {
    SHARED float tile[32][33];
    const int c = block_x() * 32 + thread_x(), r0 = block_y() * 32;
    for (int r = thread_y(); r < 32; r += 8) {
        if (r0 + r < rows && c < columns) {
            tile[r][thread_x()] = x[static_cast<int64_t>(r0 + r) * columns + c];
        }
    }
    barrier();
    const int r = r0 + thread_x(), c0 = block_x() * 32;
    for (int k = thread_y(); k < 32; k += 8) {
        if (c0 + k < columns && r < rows) {
            y[static_cast<int64_t>(c0 + k) * rows + r] = tile[thread_x()][k];
        }
    }
}

KERNEL(128) void dynamic_reverse(uint16_t* y, const uint16_t* x, int n) {
    DYNAMIC_SHARED(raw);
    SHARED int fixed[4];
    uint16_t* staged = reinterpret_cast<uint16_t*>(raw);
    if (thread_x() < 4) {
        fixed[thread_x()] = n - 1;
    }
    for (int i = thread_x(); i < n; i += 128) {
        staged[i] = x[i];
    }
    barrier();
    for (int i = thread_x(); i < n; i += 128) {
        y[i] = staged[fixed[i & 3] - i];
    }
}

// Vector accesses of each width and the sub-word ones.
KERNEL(64) void lds_widths(uint32_t* y, const uint32_t* x) {
    SHARED alignas(16) uint32_t words4[64 * 4];
    SHARED alignas(8) uint32_t words2[64 * 2];
    SHARED uint8_t bytes[64 * 3];
    SHARED int16_t halves[64];
    const int t = thread_x(), o = 63 - t;
    const words<16> q = load_words<16>(x + t * 4);
    store_words<16>(words4 + t * 4, q);
    store_words<8>(words2 + t * 2, words<8>{q.w[1], q.w[2]});
    bytes[t * 3] = q.w[0] >> 8;
    bytes[t * 3 + 1] = q.w[1] >> 16;
    bytes[t * 3 + 2] = q.w[2] >> 24;
    halves[t] = static_cast<int16_t>(q.w[3] >> 16);
    barrier();
    const words<16> r = load_words<16>(words4 + o * 4);
    const words<8> d = load_words<8>(words2 + o * 2);
    y[t * 4] = r.w[0] ^ r.w[1] ^ r.w[2] ^ r.w[3];
    y[t * 4 + 1] = d.w[0] + d.w[1];
    y[t * 4 + 2] = bytes[o * 3] | bytes[o * 3 + 1] << 8 | bytes[o * 3 + 2] << 16;
    y[t * 4 + 3] = static_cast<uint32_t>(static_cast<int32_t>(halves[o]));
}

// ---- atomics

KERNEL(256) void histogram(uint32_t* bins, const uint8_t* x, int n) {
    SHARED uint32_t local[256];
    local[thread_x()] = 0;
    barrier();
    for (int i = block_x() * 256 + thread_x(); i < n; i += 256 * grid_x()) {
        __hip_atomic_fetch_add(local + x[i], 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
    }
    barrier();
    const uint32_t mine = local[thread_x()];
    if (mine) {
        __hip_atomic_fetch_add(bins + thread_x(), mine, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    }
}

#define RELAXED(op, address, value)                                                                          \
    __hip_atomic_fetch_##op(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)

KERNEL(64) void atomics(int* y, uint32_t* u, uint64_t* w, float* f, const int* x, int n) {
    const int i = block_x() * 64 + thread_x();
    if (i >= n) {
        return;
    }
    const int v = x[i];
    RELAXED(add, y, v);
    RELAXED(max, y + 1, v);
    RELAXED(min, y + 2, v);
    RELAXED(and, y + 3, v);
    RELAXED(or, y + 4, v);
    RELAXED(xor, y + 5, v);
    RELAXED(max, u, static_cast<uint32_t>(v));
    RELAXED(min, u + 1, static_cast<uint32_t>(v));
    RELAXED(add, w, static_cast<uint64_t>(static_cast<int64_t>(v)));
    RELAXED(xor, w + 1, static_cast<uint64_t>(v) << 20);
    RELAXED(max, w + 2, static_cast<uint64_t>(v));
    __hip_atomic_fetch_add(f, static_cast<float>(v & 15), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    // A loop on compare-and-swap: a product modulo 2^31 - 1.
    uint32_t* product = u + 2;
    uint32_t seen = __hip_atomic_load(product, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT), next;
    do {
        next = static_cast<uint32_t>(static_cast<uint64_t>(seen) * static_cast<uint32_t>(v | 1) % 2147483647u);
    } while (!__hip_atomic_compare_exchange_weak(product, &seen, next, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                                 __HIP_MEMORY_SCOPE_AGENT));
}

// Every thread takes a different ticket, in global and in local memory.
KERNEL(128) void tickets(int* global_slot, int* local_slot, int* counter) {
    SHARED int next;
    if (thread_x() == 0) {
        next = 0;
    }
    barrier();
    const int i = block_x() * 128 + thread_x();
    const int mine = RELAXED(add, counter, 1 + (i & 1));
    global_slot[i] = mine;
    local_slot[i] = __hip_atomic_fetch_add(&next, 1 + (i & 1), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

// The hardware's own floating-point atomics, in global and in local memory.
KERNEL(64) void float_atomics(float* f, double* d, uint32_t* pairs, const float* x) {
    SHARED float sum;
    if (thread_x() == 0) {
        sum = 0.0f;
    }
    barrier();
    const float v = x[block_x() * 64 + thread_x()];
    __builtin_amdgcn_global_atomic_fadd_f32(reinterpret_cast<GLOBAL float*>(reinterpret_cast<uint64_t>(f)), v);
    __builtin_amdgcn_ds_faddf(reinterpret_cast<__attribute__((address_space(3))) float*>(
                                  static_cast<uint32_t>(reinterpret_cast<uint64_t>(&sum))),
                              v, 0, 0, false);
#if defined(__GFX9__)
    typedef _Float16 pair __attribute__((ext_vector_type(2)));
    typedef GLOBAL double* gdouble;
    typedef GLOBAL pair* gpair;
    __builtin_amdgcn_global_atomic_fadd_f64(reinterpret_cast<gdouble>(reinterpret_cast<uint64_t>(d)), v);
    __builtin_amdgcn_global_atomic_fmax_f64(reinterpret_cast<gdouble>(reinterpret_cast<uint64_t>(d + 1)), v);
    __builtin_amdgcn_global_atomic_fadd_v2f16(reinterpret_cast<gpair>(reinterpret_cast<uint64_t>(pairs)),
                                              pair{static_cast<_Float16>(v), static_cast<_Float16>(1.0f)});
#endif
    barrier();
    if (thread_x() == 0) {
        f[1 + block_x()] = sum;
    }
}

// The last block to arrive adds up what the others left.
KERNEL(64) void last_block(int* y, int* parts, int* counter, const int* x) {
    SHARED bool last;
    int v = x[block_x() * 64 + thread_x()];
    for (int mask = 1; mask < WARP; mask <<= 1) {
        v += shuffle_xor(v, mask);
    }
    if (lane_of_wave() == 0) {
        parts[(block_x() * 64 + thread_x()) / WARP] = v;
    }
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent");
    barrier();
    if (thread_x() == 0) {
        last = __hip_atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT) == grid_x() - 1;
    }
    barrier();
    if (last && thread_x() == 0) {
        __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent");
        int sum = 0;
        for (int i = 0; i < grid_x() * (64 / WARP); ++i) {
            sum += __hip_atomic_load(parts + i, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
        }
        *y = sum;
    }
}

// ---- lanes

KERNEL(64) void shuffles(int* y, const int* x) {
    const int t = thread_x(), lane = lane_of_wave(), v = x[t];
    const int base = lane & ~15;
    y[t] = shuffle_down(v, 3);
    y[64 + t] = __builtin_amdgcn_ds_bpermute((lane < 5 ? lane : lane - 5) << 2, v);
    y[128 + t] = shuffle_xor(v, 17);
    y[192 + t] = __builtin_amdgcn_ds_permute((base + (lane * 7 + 3) % 16) << 2, v);
    y[256 + t] = __builtin_amdgcn_ds_swizzle(v, 0x041f);                             // xor 1
    y[320 + t] = __builtin_amdgcn_ds_swizzle(v, 0x801b);                             // quads reversed
    y[384 + t] = __builtin_amdgcn_mov_dpp(v, 0xb1, 0xf, 0xf, true);                  // quad_perm [1,0,3,2]
    y[448 + t] = __builtin_amdgcn_mov_dpp(v, 0x140, 0xf, 0xf, true);                 // row_mirror
    y[512 + t] = __builtin_amdgcn_mov_dpp(v, 0x141, 0xf, 0xf, true);                 // row_half_mirror
    y[576 + t] = __builtin_amdgcn_mov_dpp(v, 0x123, 0xf, 0xf, true);                 // row_ror:3
    y[640 + t] = __builtin_amdgcn_update_dpp(t, v, 0x102, 0x5, 0xe, false);          // row_shl:2, masked
    y[704 + t] = __builtin_amdgcn_readfirstlane(v) + __builtin_amdgcn_readlane(v, 13);
    y[768 + t] = __builtin_amdgcn_update_dpp(v, t, 0x113, 0xf, 0xf, true);           // row_shr:3, zeroes
    int written = v;
    asm("v_writelane_b32 %0, %1, 9" : "+v"(written) : "s"(__builtin_amdgcn_readfirstlane(v)));
    y[832 + t] = written;
}

// What only some generations have.
KERNEL(64) void shuffles_own(int* y, const int* x) {
    const int t = thread_x(), v = x[t];
#if defined(__GFX9__)
    y[t] = __builtin_amdgcn_update_dpp(v, v, 0x138, 0xf, 0xf, false);                // wave_shr:1
    y[64 + t] = __builtin_amdgcn_mov_dpp(v, 0x13c, 0xf, 0xf, true);                  // wave_ror:1
    y[128 + t] = __builtin_amdgcn_update_dpp(t, v, 0x142, 0xf, 0xf, false);          // row_bcast:15
    y[192 + t] = __builtin_amdgcn_update_dpp(t, v, 0x143, 0xf, 0xf, false);          // row_bcast:31
    y[256 + t] = __builtin_amdgcn_mov_dpp(v, 0x155, 0xf, 0xf, true);                 // row_newbcast:5
#else
    y[t] = __builtin_amdgcn_permlane16(v, v, 0x76543210, 0x89abcdef, true, false);   // upper half reversed
    y[64 + t] = __builtin_amdgcn_permlanex16(v, v, 0x01234567, 0xfedcba98, true, false);
    y[128 + t] = __builtin_amdgcn_mov_dpp8(v, 0x2f3d07);
    y[192 + t] = __builtin_amdgcn_mov_dpp(v, 0x155, 0xf, 0xf, true);                 // row_share:5
    y[256 + t] = __builtin_amdgcn_mov_dpp(v, 0x166, 0xf, 0xf, true);                 // row_xmask:6
#endif
}

#if defined(__gfx950__)
KERNEL(64) void permlane_swaps(uint32_t* y, const uint32_t* a, const uint32_t* b) {
    const int t = thread_x();
    const auto p = __builtin_amdgcn_permlane16_swap(a[t], b[t], false, false);
    const auto q = __builtin_amdgcn_permlane32_swap(a[t], b[t], false, false);
    y[t] = p[0];
    y[64 + t] = p[1];
    y[128 + t] = q[0];
    y[192 + t] = q[1];
}
#endif

#if defined(__GFX9__)
#define BALLOT(condition) __builtin_amdgcn_ballot_w64(condition)
#else
#define BALLOT(condition) static_cast<uint64_t>(__builtin_amdgcn_ballot_w32(condition))
#endif

// Keeps the elements above a threshold, in order; counts come from ballots.
KERNEL(256) void compact(int* y, int* count, const int* x, int threshold) {
    SHARED int kept[256 / WARP];
    const int t = thread_x(), v = x[t];
    const uint64_t votes = BALLOT(v > threshold);
    const int before = WARP == 64 ? __builtin_amdgcn_mbcnt_hi(static_cast<uint32_t>(votes >> 32),
                                                              __builtin_amdgcn_mbcnt_lo(static_cast<uint32_t>(votes), 0))
                                  : __builtin_amdgcn_mbcnt_lo(static_cast<uint32_t>(votes), 0);
    if (lane_of_wave() == 0) {
        kept[t / WARP] = __builtin_popcountll(votes);
    }
    barrier();
    int start = 0;
    for (int w = 0; w < t / WARP; ++w) {
        start += kept[w];
    }
    if (v > threshold) {
        y[start + before] = v;
    }
    if (t == 255) {
        *count = start + before + (v > threshold);
    }
}

// ---- control flow

// Steps of the 3n+1 rule, with a loop in a loop, `continue`, `break` and an early return of single lanes.
KERNEL(128) void collatz(int* y, const uint32_t* x, int n, int limit) {
    const int i = block_x() * 128 + thread_x();
    if (i >= n) {
        return;
    }
    uint32_t v = x[i];
    int steps = 0;
    while (v != 1) {
        if (v == 0) {
            y[i] = -1;
            return;
        }
        while ((v & 1) == 0) {
            v >>= 1;
            if (++steps == limit) {
                y[i] = -2;
                return;
            }
        }
        if (v == 1) {
            continue;
        }
        v = 3 * v + 1;
        if (++steps >= limit) {
            steps = -2;
            break;
        }
    }
    y[i] = steps;
}

// Whole waves leave before the others start; odd lanes take another path with a switch in it.
KERNEL(256) void paths(int* y, const int* x, int n) {
    const int t = thread_x();
    if (t / WARP == 1 || t >= n) {
        return;
    }
    int v = x[t];
    for (int k = 0; k < (t & 7); ++k) {
        switch (v & 3) {
        case 0: v = v * 5 + k; break;
        case 1: v ^= 0x55aa; break;
        case 2: if (t & 1) { v -= 77; } else { v += 13; } break;
        default: v = (v >> 1) + t;
        }
    }
    y[t] = v;
}

__attribute__((noinline)) __device__ int mixed(int v, const int* table, int depth) {
    int sum = table[v & 15];
    for (int k = 0; k < depth; ++k) {
        sum = sum * 31 + table[(sum ^ v) & 15];
    }
    return sum;
}
// A real call: s_swappc, a stack in scratch memory.
KERNEL(64) void calls(int* y, const int* x, const int* table) {
    int local[16];
    for (int k = 0; k < 16; ++k) {
        local[k] = table[k] + (thread_x() & k);
    }
    const int v = x[thread_x()];
    y[thread_x()] = v & 1 ? mixed(v, local, v & 7) : mixed(v, table, 3);
}

// ---- grids

KERNEL(3 * 5 * 7) void indices(int* y, int nx, int ny, int nz) {
    const int x = block_x() * 3 + thread_x(), r = block_y() * 5 + thread_y(), p = block_z() * 7 + thread_z();
    if (x < nx && r < ny && p < nz) {
        y[(p * ny + r) * nx + x] = x + r * 1000 + p * 1000000;
    }
}

// The block's and the grid's size as the runtime tells them.
KERNEL(24) void sizes(int* y) {
    if (thread_x() == 0 && thread_y() == 0) {
        int* row = y + 5 * (block_x() + block_y() * grid_x());
        row[0] = block_threads();
        row[1] = static_cast<int>(__builtin_amdgcn_workgroup_size_y());
        row[2] = static_cast<int>(__builtin_amdgcn_workgroup_size_z());
        row[3] = static_cast<int>(__builtin_amdgcn_grid_size_x());
        row[4] = static_cast<int>(__builtin_amdgcn_grid_size_y());
    }
}
