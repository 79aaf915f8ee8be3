// The ping-pong loop on gfx950: direct-to-LDS loads, which pass no register, in two stages of four half tiles (a0, a1,
// b0, b1); operands that do not lie along k are transposed by their reads of LDS. So the
// loop has no vector instruction in any layout.
//
// Three half tiles are always on their way. A step s, in the stage s % 2:
//     b0 and a0 of s from LDS;  a1 of s + 1 from memory; b0 waited for                    | a0 @ b0
//     b1 of s;                  b0 of s + 2 from memory                                   | a0 @ b1
//     a1 of s;                  a0 of s + 2                                               | a1 @ b0
//                               b1 of s + 2; all but the newest three waited for          | a1 @ b1
// What is written over was read before the last product of both groups, and what is read was waited for by both groups
// two barriers before.
#pragma once

#include "ping_pong.h"

#define LDS_SPACE __attribute__((address_space(3)))

// Waits until at most COUNT of this wave's loads from memory are outstanding.
template <int COUNT> DEVICE void wait_loads() {
    __builtin_amdgcn_s_waitcnt(0x0f70 | COUNT);
}
// Until at most COUNT of its accesses to LDS are.
template <int COUNT> DEVICE void wait_lds_but() {
    __builtin_amdgcn_s_waitcnt(0xc07f | COUNT << 8);
}

// Half tiles of an operand: HALF lines x 64 k in LDS, as lines of k (K_MAJOR) or as 64 rows of HALF lines. A wave
// writes 1 KB of LDS in lane order, so the swizzle is put on the address in memory.
template <int HALF, bool K_MAJOR, bool GATED_TILE = false> struct DirectTile {
    static constexpr int LOADS = HALF * TILE_K * 2 / 16 / THREADS;  // of a thread, for a half tile
    static constexpr int CHUNKS = (K_MAJOR ? TILE_K : HALF) / CHUNK;  // of one line or row
    static constexpr int ROWS = THREADS / CHUNKS;                     // lines or rows of one load

    Buffer memory;
    int leading;  // bytes, between the tile's lines
    char* tiles;  // this wave's first byte of the operand's tiles in LDS: two stages of two halves
    // This lane's first byte: of any step, of the last but one and of the last. Steps come in pairs, so the last
    // may lie beyond K.
    int from, before_last, last;

    DEVICE DirectTile(const Matrix& matrix, int first, int K, char* lds)
        : memory(StagedTile<2 * HALF, K_MAJOR, 2, false, GATED_TILE>::buffer(matrix, first, K)),
          leading(static_cast<int>(matrix.leading) * 2),
          tiles(lds + __builtin_amdgcn_readfirstlane(thread_x() / WARP) * 1024) {
        from = matrix_line<GATED_TILE>(thread_x() / CHUNKS) * leading + chunk() * 16;
        if (GATED_TILE) {
            from += matrix_of<true>(thread_x() / CHUNKS) * static_cast<int>(matrix.apart) * 2;
            leading /= 2;
        }
        before_last = last = from;
    }

    static DEVICE int chunk() {
        const int row = thread_x() / CHUNKS, slot = thread_x() % CHUNKS;
        return K_MAJOR ? swizzled<TILE_K * 2>(row, slot) : slot ^ row_key(row);
    }

    // Of a row of k in LDS, for 16 or 8 chunks: see TransposedLoads.
    static DEVICE int row_key(int k) {
        return CHUNKS == 16 ? (k & 1) | (k << 1 & 4) | (k & 8) : (k >> 1 & 1) | (k >> 1 & 4);
    }

    // Before the loads of the last two steps; `left`: elements of k from the last but one on.
    DEVICE void end_at(int left) {
        if (K_MAJOR) {
            before_last = chunk() * CHUNK < left ? from : BEYOND;
            last = chunk() * CHUNK < left - TILE_K ? from : BEYOND;
        }
    }

    // `lane`: one of from, before_last and last. `stage` is a constant, `step` is even where it is 0.
    DEVICE void load(int lane, int step, int half, int stage) const {
        const int along = K_MAJOR ? leading : 2;  // bytes between lines, and between k
        const int deep = K_MAJOR ? 2 : leading;
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            __builtin_amdgcn_raw_ptr_buffer_load_lds(
                memory.resource, (LDS_SPACE void*)(tiles + ((stage * 2 + half) * LOADS + i) * THREADS * 16), 16, lane,
                step * TILE_K * deep + half * HALF * along + i * ROWS * leading, 0, 0);
        }
    }
};

// Where this lane reads fragments from rows of HALF lines: two transposing reads of 8 bytes, each of 4 rows by 16 lines for 16 lanes.
// Lane l reads row 8 * (l / 16) + l / 4 % 4 and chunk l % 4 of the 4 of a pair of fragments; 32 lanes, which are
// served together, read 8 rows of 4 chunks. A pair's fragments take the lower and the upper 8 bytes of a chunk in turn,
// chunk by chunk: with the row's key the 32 touch every bank once.
template <int HALF> struct TransposedLoads {
    static constexpr bool ALTERNATING = true;  // see Accumulators
    static constexpr int STEPS = TILE_K / DEPTH;
    static constexpr int ROW_BYTES = HALF * 2;

    int at[4];  // of four fragments

    DEVICE explicit TransposedLoads(int first, int start) {
        const int lane = thread_x() % WARP;
        const int k = lane / 16 * 8 + lane / 4 % 4, chunk = first / CHUNK + lane % 4;
        start += k * ROW_BYTES + (chunk ^ DirectTile<HALF, false>::row_key(k)) * 16 + lane % 2 * 8;
        for (int index = 0; index < 4; ++index) {
            at[index] = in_register(start ^ (index / 2 * 64 | index % 2 * 8));
        }
    }

    DEVICE fragment load(const char* tile, int index, int step) const {
        const char* const from = tile + at[index] + step * (DEPTH * ROW_BYTES);
        const short4 low = transposed(reinterpret_cast<const short4*>(from));
        const short4 high = transposed(reinterpret_cast<const short4*>(from + 4 * ROW_BYTES));
        return __builtin_bit_cast(fragment, __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7));
    }

    // __restrict__: the compiler waits for all direct loads before a read of which it knows nothing.
    static DEVICE short4 transposed(const short4* __restrict__ from) {
        return __builtin_amdgcn_ds_read_tr16_b64_v4i16((LDS_SPACE short4*)from);
    }
};

template <int HALF, bool K_MAJOR> struct DirectLoads {
    typedef FragmentLoads<TILE_K * 2> type;
};
template <int HALF> struct DirectLoads<HALF, false> {
    typedef TransposedLoads<HALF> type;
};

// The loop. K is positive. LDS holds a's two stages, then b's.
template <bool A_K, bool B_K> struct DirectPingPong {
    typedef DirectTile<TILE_M / 2, A_K> A;
    typedef DirectTile<TILE_N / 2, B_K, GATED> B;
    static constexpr int A_STAGE = TILE_M * TILE_K * 2, B_STAGE = TILE_N * TILE_K * 2;  // bytes of two half tiles
    static constexpr int LDS_BYTES = 2 * (A_STAGE + B_STAGE);

    typedef Quarters<typename DirectLoads<TILE_M / 2, A_K>::type, typename DirectLoads<TILE_N / 2, B_K>::type> Wave;
    static_assert(TILE_K == 64, "a half tile's lines are 128 bytes");
    // a's reads of a half tile.
    static constexpr int A_READS = Wave::STEPS * Wave::FRAGMENTS_M * (A_K ? 1 : 2);

    A a;
    B b;
    Wave wave;
    char* lds;

    DEVICE DirectPingPong(const Matrix& a_matrix, const Matrix& b_matrix, int K, TileCorner corner, char* lds)
        : a(a_matrix, corner.m, K, lds), b(b_matrix, corner.n, K, lds + 2 * A_STAGE), wave(2 * A_STAGE), lds(lds) {}

    // Step `step`, in stage `STEP`; `a_now`, `a_next`, `b_next`: this lane's bytes of the next step and the one after.
    template <int STEP> DEVICE void one(int a_now, int a_next, int b_next, int step) {
        char* const a_here = lds + STEP * A_STAGE;
        char* const b_here = lds + STEP * B_STAGE;
        wave.load_b(b_here, 0);
        __builtin_amdgcn_sched_barrier(0);
        wave.load_a(a_here, 0);
        a.load(a_now, step + 1, 1, STEP ^ 1);
        // The other group's next load goes over b0, which was read first. 15 would be no wait: the counter has 4 bits.
        wait_lds_but<(A_READS < 14 ? A_READS : 14)>();
        group_barrier();
        wave.multiply_halves(0, 0);
        turn();

        wave.load_b(b_here, 1);
        b.load(b_next, step + 2, 0, STEP);
        group_barrier();
        wave.multiply_halves(0, 1);
        turn();

        wave.load_a(a_here, 1);
        a.load(a_next, step + 2, 0, STEP);
        group_barrier();
        wave.multiply_halves(1, 0);
        turn();

        b.load(b_next, step + 2, 1, STEP);
        wait_loads<2 * B::LOADS + A::LOADS>();
        group_barrier();
        wave.multiply_halves(1, 1);
        turn();
    }

    DEVICE void multiply(int K) {
        const int last = (K - 1) / (2 * TILE_K) * 2;  // the first step of the last pair
        const bool second_group = TWO_GROUPS && Wave::wave() >= 4;
        if (last == 0) {
            a.end_at(K);
            b.end_at(K);
        }
        b.load(b.before_last, 0, 0, 0);
        a.load(a.before_last, 0, 0, 0);
        b.load(b.before_last, 0, 1, 0);
        a.load(a.before_last, 0, 1, 0);
        if (second_group) {
            group_barrier();
        }
        wait_loads<B::LOADS + A::LOADS>();
        group_barrier();
        b.load(b.last, 1, 0, 1);
        a.load(a.last, 1, 0, 1);
        b.load(b.last, 1, 1, 1);
        wait_loads<2 * B::LOADS + A::LOADS>();
        group_barrier();
        int step = 0;
        // Once for the pairs before the last but one, once for that one, which loads the last.
#pragma clang loop unroll(disable)
        for (int until = last - 2; until <= last; until += 2) {
#pragma clang loop unroll(disable)
            for (; step < until; step += 2) {
                one<0>(a.from, a.before_last, b.before_last, step);
                one<1>(a.before_last, a.last, b.last, step + 1);
            }
            a.end_at(K - last * TILE_K);
            b.end_at(K - last * TILE_K);
        }
        a.load(a.last, step + 1, 1, 1);
        wait_loads<0>();
        group_barrier();
        if (!second_group) {
            group_barrier();
        }
        group_barrier();
        for (int stage = 0; stage < 2; ++stage) {
            wave.load_b(lds + stage * B_STAGE, 0);
            wave.multiply_last(lds + stage * A_STAGE, lds + stage * B_STAGE);
        }
    }

    static DEVICE void run(const Matrix& a, const Matrix& b, const Output& c, int K, TileCorner corner, char* lds) {
        DirectPingPong loop(a, b, K, corner, lds);
        loop.multiply(K);
        loop.wave.store(c, corner);
    }
};
