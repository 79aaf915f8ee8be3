// The ping-pong loop of CDNA's large tiles: TILE_M x TILE_N x 64, eight waves in two groups of four, one wave of each
// on every SIMD. While one group multiplies, the other copies: they alternate at every barrier, since the second group
// passes one barrier more before the loop (and the first one more behind it). A block of four waves has one group and
// two barriers a step: two such blocks share a compute unit.
//
// A wave has two halves of its lines of a and two of b, so four products a step; each product has its own copies before
// it. Addresses are a register per operand, a scalar that advances and constants: the loop has no vector instruction.
//
// A K step, one LDS stage with the next step's tile in registers:
//     next b from memory;          a's half 0 from LDS                                      | a0 @ b0
//     next a from memory;          b's half 1 from LDS                                      | a0 @ b1
//     a's half 1 from LDS;         next b's half 0 to LDS, all waited for                   | a1 @ b0
//     next b's half 0 from LDS;    next b's half 1 and next a to LDS, all waited for        | a1 @ b1
// The other group may write over what a group has read one barrier later, so these reads are waited for before the
// barrier that ends their copying, not only before the product. a0's and b1's are not: they are written over two
// products later.
#pragma once

#include "staged.h"

constexpr bool TWO_GROUPS = THREADS == 8 * WARP;

// Keeps the compiler from moving anything across: the waves' order is by hand.
DEVICE void group_barrier() {
    __builtin_amdgcn_sched_barrier(0);
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_sched_barrier(0);
}

// A barrier for turns alone: a block of one group has none to take.
DEVICE void turn() {
    if (TWO_GROUPS) {
        group_barrier();
    } else {
        __builtin_amdgcn_sched_barrier(0);
    }
}

// Waits for this wave's LDS traffic.
DEVICE void wait_lds() { __builtin_amdgcn_s_waitcnt(0xc07f); }

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
        StagedTile<TILE_N, B_K, 2, false, GATED> next_b(b, corner.n, K);
        Wave wave;
        const int last = (K - 1) / TILE_K;
        const bool second_group = TWO_GROUPS && Wave::wave() >= 4;

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
        if (!TWO_GROUPS) {
            wait_lds();
        }
        if (!TWO_GROUPS || second_group) {
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
                turn();
                wave.multiply_halves(0, 0);
                turn();

                next_a.load(step);
                wave.load_b(b_tile, 1);
                turn();
                wave.multiply_halves(0, 1);
                turn();

                wave.load_a(a_tile, 1);
                next_b.store(b_tile, 0);
                wait_lds();
                group_barrier();
                wave.multiply_halves(1, 0);
                turn();

                wave.load_b(b_tile, 0);
                next_b.store(b_tile, 1);
                next_a.store(a_tile);
                wait_lds();
                group_barrier();
                wave.multiply_halves(1, 1);
                turn();
            }
            next_a.end_at(K - last * TILE_K);
            next_b.end_at(K - last * TILE_K);
        }
        wave.multiply_last(a_tile, b_tile);
        if (TWO_GROUPS && !second_group) {
            group_barrier();
        }
        wave.store(c, corner);
    }
};
