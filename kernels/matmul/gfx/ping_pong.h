// The ping-pong loop of CDNA's large tiles: TILE_M x TILE_N x 64, eight waves in two groups of four, one wave of each
// on every SIMD. While one group multiplies, the other copies: they alternate at every barrier, since the second group
// passes one barrier more before the loop (and the first one more behind it).
//
// A wave has two halves of its lines of a and two of b, so four products a step; each product has its own copies before
// it. Addresses are a register per operand, a scalar that advances and constants: the loop has no vector instructions
// but for transposing an operand that does not lie along k.
//
// A K step, one LDS stage of 64 KB with the next step's tile in registers:
//     next b from memory;          a's half 0 from LDS                          | a0 @ b0
//     next a from memory;          b's half 1 from LDS, waited for              | a0 @ b1
//     a's half 1 from LDS;         next b to LDS, waited for                    | a1 @ b0
//     next b's half 0 from LDS;    next a to LDS, waited for                    | a1 @ b1
// The other group may write over what a group has read one barrier later, so reads are waited for before the barrier
// that ends their copying, not only before the product. Only a0's are not: a is written three barriers later.
#pragma once

#include "fragments.h"

// Keeps the compiler from moving anything across: the waves' order is by hand.
DEVICE void group_barrier() {
    __builtin_amdgcn_sched_barrier(0);
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_sched_barrier(0);
}

// Waits for this wave's LDS traffic.
DEVICE void wait_lds() { __builtin_amdgcn_s_waitcnt(0xc07f); }

// Memory up to a limit; what lies beyond reads as zero.
struct Buffer {
    __amdgpu_buffer_rsrc_t resource;

    DEVICE Buffer(const T* data, int64_t bytes)
        : resource(__builtin_amdgcn_make_buffer_rsrc(const_cast<T*>(data), 0, static_cast<int>(bytes), 0x00020000)) {}

    // 16 bytes from byte `lane` + `wave`, of which the second is the same for all lanes.
    DEVICE words<16> load(int lane, int wave) const {
        return __builtin_bit_cast(words<16>, __builtin_amdgcn_raw_buffer_load_b128(resource, lane, wave, 0));
    }
};

typedef uint16_t short_word __attribute__((may_alias));
constexpr int BEYOND = static_cast<int>(0x80000000u);  // an offset outside every Buffer: plan.py bounds them

// One operand's tile of LINES x TILE_K, in two halves: from memory to registers (`load`), from there to LDS (`store`).
// Lines and k beyond the matrix are zero.
//
// K_MAJOR: memory runs along k, chunks are copied as they are. Else it runs along the lines, and a tile is transposed by
// where its elements are stored: each of the 8 lines of a chunk by an instruction of 2 bytes a lane. That takes LDS two
// thirds longer than words of two k, which take the vector pipe 16 permutations in 128 matrix instructions. Loads and
// reads cannot transpose: gfx90a and gfx942 clear the other half of a register that they load 2 bytes into.
template <int LINES, bool K_MAJOR> struct StagedTile {
    static constexpr int LINE_BYTES = TILE_K * 2;
    static constexpr int HALF = LINES / 2;
    static constexpr int COUNT = HALF * LINE_BYTES / 16 / THREADS;    // loads of a thread, for a half
    static constexpr int APART = K_MAJOR ? THREADS * 16 / LINE_BYTES : 64;  // lines between them
    static_assert(COUNT * THREADS * 16 == HALF * LINE_BYTES, "all threads copy as much");

    Buffer memory;
    int from;     // this lane's first byte of step 0
    int along;    // bytes between lines
    int advance;  // bytes between steps
    int to;       // this lane's first byte in LDS
    words<16> held[2][COUNT];

    // Not K_MAJOR: 32 lanes, which write LDS together, have 4 words of two chunks of k in lines whose swizzles differ;
    // a wave reads 128 bytes of 8 rows of k.
    static DEVICE int line() {
        const int t = thread_x();
        return K_MAJOR ? t * 16 / LINE_BYTES : t % 2 * 8 + t / 16 % 4 * 16;
    }
    static DEVICE int k() {
        const int t = thread_x();
        if (K_MAJOR) {
            return t % (LINE_BYTES / 16) * 8;
        }
        return t / 2 % 8 * 2 + t / 64 % 2 + t / 128 * 16;
    }

    static DEVICE Buffer buffer(const Matrix& matrix, int first, int K) {
        if (K_MAJOR) {
            const int lines = min(matrix.lines - first, LINES);
            return {matrix.data + first * matrix.leading, ((lines - 1) * matrix.leading + K) * 2};
        }
        return {matrix.data + first, ((K - 1) * matrix.leading + matrix.lines - first) * 2};
    }

    DEVICE StagedTile(const Matrix& matrix, int first, int K)
        : memory(buffer(matrix, first, K)) {
        const int leading = static_cast<int>(matrix.leading) * 2;
        along = K_MAJOR ? leading : 2;
        from = line() * along + k() * (K_MAJOR ? 2 : leading);
        advance = K_MAJOR ? LINE_BYTES : TILE_K * leading;
        to = line() * LINE_BYTES + swizzled<LINE_BYTES>(line(), k() / CHUNK) * 16 + k() % CHUNK * 2;
    }

    // Before the load of the last step, which has `left` elements of k.
    DEVICE void end_at(int left) {
        if (K_MAJOR && k() >= left) {
            from = BEYOND;
        }
    }

    DEVICE void load(int step) {
#pragma unroll
        for (int i = 0; i < 2 * COUNT; ++i) {
            held[i / COUNT][i % COUNT] =
                memory.load(from, step * advance + (i / COUNT * HALF + i % COUNT * APART) * along);
        }
    }

    DEVICE void store(char* lds, int half) const {
        lds += half * HALF * LINE_BYTES;
#pragma unroll
        for (int i = 0; i < COUNT; ++i, lds += APART * LINE_BYTES) {
            const words<16> chunk = held[half][i];
            if constexpr (K_MAJOR) {
                store_words<16>(lds + to, chunk);
            } else {
#pragma unroll
                for (int line = 0; line < 8; ++line) {
                    // The swizzles of a chunk's lines differ by line & 3 alone.
                    const uint32_t pair = chunk.w[line / 2];
                    *reinterpret_cast<short_word*>(lds + (to ^ line % 4 * 16) + line * LINE_BYTES) =
                        static_cast<short_word>(line % 2 == 0 ? pair : pair >> 16);
                }
            }
        }
    }

    DEVICE void store(char* lds) const {
        store(lds, 0);
        store(lds, 1);
    }
};

// What a wave multiplies: two halves of its lines of either operand, and the accumulators of their four products.
template <class ALoads, class BLoads> struct Quarters {
    static constexpr int WAVES_N = THREADS / WARP / WAVES_M;
    static constexpr int HALF_M = TILE_M / 2, HALF_N = TILE_N / 2;
    static constexpr int WAVE_M = HALF_M / WAVES_M, WAVE_N = HALF_N / WAVES_N;
    static constexpr int LINE_BYTES = TILE_K * 2;
    static constexpr int STEPS = TILE_K / DEPTH;
    static constexpr int FRAGMENTS_M = WAVE_M / FRAGMENT, FRAGMENTS_N = WAVE_N / FRAGMENT;

    Accumulators<FRAGMENTS_M, FRAGMENTS_N, ALoads::ALTERNATING, BLoads::ALTERNATING> sums[2][2];
    fragment a[STEPS][FRAGMENTS_M], b[2][STEPS][FRAGMENTS_N];
    int m, n;  // this wave's corner in a half of the tile
    ALoads a_loads;
    BLoads b_loads;

    static DEVICE int wave() { return __builtin_amdgcn_readfirstlane(thread_x() / WARP); }

    // `b_start`: b's tiles in LDS, where reads do not reach them from a's by their constants.
    DEVICE explicit Quarters(int b_start = 0)
        : m(wave() / WAVES_N * WAVE_M), n(wave() % WAVES_N * WAVE_N), a_loads(m, 0), b_loads(n, b_start) {
        for (int half = 0; half < 2; ++half) {
            sums[half][0].clear();
            sums[half][1].clear();
        }
    }

    DEVICE void load_a(const char* tile, int half) {
#pragma unroll
        for (int i = 0; i < STEPS * FRAGMENTS_M; ++i) {
            a[i % STEPS][i / STEPS] = a_loads.load(tile + half * HALF_M * LINE_BYTES, i / STEPS, i % STEPS);
        }
    }

    DEVICE void load_b(const char* tile, int half) {
#pragma unroll
        for (int j = 0; j < STEPS * FRAGMENTS_N; ++j) {
            b[half][j % STEPS][j / STEPS] =
                b_loads.load(tile + half * HALF_N * LINE_BYTES, j / STEPS, j % STEPS);
        }
    }

    // Half `i` of a (which is the one loaded last) by half `j` of b.
    DEVICE void multiply_halves(int i, int j) {
        __builtin_amdgcn_s_setprio(1);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            sums[i][j].add(a[step], b[j][step]);
        }
        __builtin_amdgcn_s_setprio(0);
    }

    // A step behind the loop, without turns; half 0 of b is loaded.
    DEVICE void multiply_last(const char* a_tile, const char* b_tile) {
        load_a(a_tile, 0);
        load_b(b_tile, 1);
        multiply_halves(0, 0);
        multiply_halves(0, 1);
        load_a(a_tile, 1);
        multiply_halves(1, 0);
        multiply_halves(1, 1);
    }

    DEVICE void store(const Output& c, TileCorner corner) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                sums[i][j].store(c, corner.m + i * HALF_M + m, corner.n + j * HALF_N + n);
            }
        }
    }
};

// The ping-pong loop with one LDS stage. K is positive.
template <bool A_K, bool B_K> struct PingPong {
    static constexpr int A_BYTES = TILE_M * TILE_K * 2;
    static constexpr int LDS_BYTES = A_BYTES + TILE_N * TILE_K * 2;
    typedef FragmentLoads<TILE_K * 2> Loads;
    typedef Quarters<Loads, Loads> Wave;

    static DEVICE void run(const Matrix& a, const Matrix& b, const Output& c, int K, TileCorner corner, char* lds) {
        char* const a_tile = lds;
        char* const b_tile = lds + A_BYTES;
        StagedTile<TILE_M, A_K> next_a(a, corner.m, K);
        StagedTile<TILE_N, B_K> next_b(b, corner.n, K);
        Wave wave;
        const int last = (K - 1) / TILE_K;
        const bool second_group = Wave::wave() >= 4;

        if (last == 0) {
            next_a.end_at(K);
            next_b.end_at(K);
        }
        next_b.load(0);
        next_a.load(0);
        next_b.store(b_tile);
        next_a.store(a_tile);
        wait_lds();
        group_barrier();
        wave.load_b(b_tile, 0);
        if (second_group) {
            group_barrier();
        }
        int step = 1;
        // Once for the steps before the last, once for the last, which may end early.
#pragma clang loop unroll(disable)
        for (int end = last; end <= last + 1; ++end) {
#pragma clang loop unroll(disable)
            for (; step < end; ++step) {
                next_b.load(step);
                wave.load_a(a_tile, 0);
                group_barrier();
                wave.multiply_halves(0, 0);
                group_barrier();

                next_a.load(step);
                wave.load_b(b_tile, 1);
                wait_lds();
                group_barrier();
                wave.multiply_halves(0, 1);
                group_barrier();

                wave.load_a(a_tile, 1);
                next_b.store(b_tile, 0);
                wait_lds();
                group_barrier();
                wave.multiply_halves(1, 0);
                group_barrier();

                wave.load_b(b_tile, 0);
                next_b.store(b_tile, 1);
                next_a.store(a_tile);
                wait_lds();
                group_barrier();
                wave.multiply_halves(1, 1);
                group_barrier();
            }
            next_a.end_at(K - last * TILE_K);
            next_b.end_at(K - last * TILE_K);
        }
        wave.multiply_last(a_tile, b_tile);
        if (!second_group) {
            group_barrier();
        }
        wave.store(c, corner);
    }
};
