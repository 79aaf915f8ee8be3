// Tiles of aligned operands: from memory to registers, from there to LDS, without a vector instruction in the loop. And
// the loop of the small ones.
#pragma once

#include "fragments.h"

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

// One operand's tile of LINES x TILE_K, in PARTS of as many lines: from memory to registers (`load`), from there to LDS
// (`store`). Lines and k beyond the matrix are zero.
//
// K_MAJOR: memory runs along k, chunks are copied as they are. Else it runs along the lines, and a tile is transposed by
// where its elements are stored: each of the 8 lines of a chunk by an instruction of 2 bytes a lane. That takes LDS twice
// as long as words of two k, which take the vector pipe 16 permutations in 128 matrix instructions. Loads and reads
// cannot transpose: gfx90a and gfx942 clear the other half of a register that they load 2 bytes into. PAIRED: words of
// two k after all, where LDS is busier than the vector pipe, and a thread has two rows of k.
//
// GATED_TILE: gate's and up's lines in turn. What is beyond gate's last line is up's, and reaches no column of c.
template <int LINES, bool K_MAJOR, int PARTS = 2, bool PAIRED = false, bool GATED_TILE = false> struct StagedTile {
    static constexpr int MATRICES = GATED_TILE ? 2 : 1;
    static constexpr int LINE_BYTES = TILE_K * 2;
    static constexpr int PART = LINES / PARTS;                // lines
    static constexpr int COUNT = PART * LINE_BYTES / 16 / THREADS;  // loads of a thread, for a part
    static_assert(LINE_BYTES == 128 && COUNT * THREADS * 16 == PART * LINE_BYTES, "all threads copy as much");

    // Not K_MAJOR: 32 lanes, which write LDS together, have 4 words of two chunks of k in lines whose swizzles differ; a
    // wave reads 128 bytes of 8 rows of k (64 of 16 where a part has 32 lines).
    static constexpr int WIDE = PART < 64 ? 1 : 2;
    static constexpr int ROWS = K_MAJOR || THREADS / 32 / WIDE > 8 ? 8 : THREADS / 32 / WIDE;  // of 8: what threads cover
    static constexpr int DEEP = 8 / ROWS;                             // loads of other k, then of other lines
    static constexpr bool PAIRS = PAIRED && DEEP == 2;
    static constexpr int DEEPER = PAIRS ? 1 : 32;  // k apart
    static constexpr int APART = K_MAJOR ? THREADS * 16 / LINE_BYTES : 64;  // lines apart
    static_assert(K_MAJOR || (THREADS / 32 / WIDE == ROWS && DEEP <= 2), "threads cover k, or all but its highest bit");

    Buffer memory;
    int from;     // this lane's first byte of step 0
    int along;    // bytes between lines, of the tile
    int deep;     // bytes between k
    int to;       // this lane's first byte in LDS
    words<16> held[PARTS][COUNT];

    static DEVICE int line() {
        const int t = thread_x();
        return K_MAJOR ? t * 16 / LINE_BYTES : t % 2 * 8 + t / 16 % (2 * WIDE) * 16;
    }
    static DEVICE int k() {
        const int t = thread_x(), row = t / (32 * WIDE);
        return K_MAJOR ? t % (LINE_BYTES / 16) * 8 : t / 2 % 8 * 2 + (PAIRS ? row * 16 : row % 2 + row / 2 * 16);
    }

    static DEVICE Buffer buffer(const Matrix& matrix, int first, int K) {
        if (K_MAJOR) {
            first /= MATRICES;
            const int lines = min(matrix.lines - first, LINES / MATRICES);
            const int64_t apart = GATED_TILE ? matrix.apart : 0;
            return {matrix.data + first * matrix.leading, (apart + (lines - 1) * matrix.leading + K) * 2};
        }
        // The last word may hold half of a copy's padding (align_copy.hip); other operands have whole words.
        return {matrix.data + first, ((K - 1) * matrix.leading + (matrix.lines + 1 & ~1) - first) * 2};
    }

    DEVICE StagedTile(const Matrix& matrix, int first, int K)
        : memory(buffer(matrix, first, K)) {
        const int leading = static_cast<int>(matrix.leading) * 2;
        along = K_MAJOR ? leading : 2;
        deep = K_MAJOR ? 2 : leading;
        from = matrix_line<GATED_TILE>(line()) * along + k() * deep;
        if (GATED_TILE) {
            from += matrix_of<true>(line()) * static_cast<int>(matrix.apart) * 2;
            along /= 2;  // of whole runs of both
        }
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
        for (int part = 0; part < PARTS; ++part) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                held[part][i] = memory.load(
                    from, (step * TILE_K + i % DEEP * DEEPER) * deep + (part * PART + i / DEEP * APART) * along);
            }
        }
    }

    DEVICE void store(char* lds, int part) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            char* const tile = lds + (part * PART + i / DEEP * APART) * LINE_BYTES;
            const words<16> chunk = held[part][i];
            if constexpr (K_MAJOR) {
                store_words<16>(tile + to, chunk);
            } else if constexpr (PAIRS) {
                if (i % 2 == 0) {
#pragma unroll
                    for (int line = 0; line < 8; ++line) {
                        // Two lines share words: the lower halves, or the upper, of two k.
                        const words<4> pair = {{__builtin_amdgcn_perm(held[part][i + 1].w[line / 2], chunk.w[line / 2],
                                                                      line % 2 == 0 ? 0x05040100u : 0x07060302u)}};
                        store_words<4>(tile + (to ^ line % 4 * 16) + line * LINE_BYTES, pair);
                    }
                }
            } else {
#pragma unroll
                for (int line = 0; line < 8; ++line) {
                    // The swizzles of a chunk's lines differ by line & 3 alone.
                    const uint32_t pair = chunk.w[line / 2];
                    *reinterpret_cast<short_word*>(tile + (to ^ line % 4 * 16 ^ i % DEEP * 64) + line * LINE_BYTES) =
                        static_cast<short_word>(line % 2 == 0 ? pair : pair >> 16);
                }
            }
        }
    }

    DEVICE void store(char* lds) const {
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            store(lds, part);
        }
    }
};

// One tile of c of aligned operands, with one stage in LDS, the next step's in registers. Core holds the accumulators and
// a step's fragments: `load` reads these, `multiply` adds their product, `store` writes c. K is positive.
template <class Core, bool A_K, bool B_K> struct OneStage {
    static constexpr int A_BYTES = TILE_M * TILE_K * 2;
    static constexpr int LDS_BYTES = A_BYTES + TILE_N * TILE_K * 2;

    static DEVICE void run(const Matrix& a, const Matrix& b, const Output& c, int K, TileCorner corner, char* lds) {
        char* const a_tile = lds;
        char* const b_tile = lds + A_BYTES;
        StagedTile<TILE_M, A_K, 1, true> next_a(a, corner.m, K);
        StagedTile<TILE_N, B_K, 1, true, GATED> next_b(b, corner.n, K);
        Core core;
        const int last = (K - 1) / TILE_K;
        if (last == 0) {
            next_a.end_at(K);
            next_b.end_at(K);
        }
        next_b.load(0);
        next_a.load(0);
        next_b.store(b_tile);
        next_a.store(a_tile);
        lds_barrier();
        int step = 1;
        // Once for the steps before the last, once for the last, which may end early.
#pragma clang loop unroll(disable)
        for (int end = last; end <= last + 1; ++end) {
#pragma clang loop unroll(disable)
            for (; step < end; ++step) {
                next_b.load(step);
                next_a.load(step);
                // All loads first, their permutations behind the products: the compiler moved permutations, with
                // their wait, before the last loads, so that a step took two trips to memory.
                __builtin_amdgcn_sched_barrier(0);
                core.load(a_tile, b_tile);
                lds_barrier();
                core.multiply();
                __builtin_amdgcn_sched_barrier(0);
                next_b.store(b_tile);
                next_a.store(a_tile);
                lds_barrier();
            }
            next_a.end_at(K - last * TILE_K);
            next_b.end_at(K - last * TILE_K);
        }
        core.load(a_tile, b_tile);
        core.multiply();
        core.store(c, corner.m, corner.n);
    }
};
