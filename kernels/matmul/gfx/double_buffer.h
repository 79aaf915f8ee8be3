// The loop of RDNA's matmul (wmma.hip): LDS holds two stages, the tile that is multiplied and the next one, which passes
// through registers on its way from memory. One barrier per step of TILE_K.
//
// A WMMA blocks the vector pipe, so whatever another vector instruction takes is lost. Therefore two steps are written
// out, one for each stage: addresses in LDS are a register per operand and constants, those in memory a register and a
// scalar that advances. Where memory runs along k, and on gfx12 in any layout, the loop has no other vector instruction.
// Nothing is masked but in the last step.
//
// LDS: lines of TILE_K elements and 16 bytes of padding, so that 16-byte reads of eight neighbouring lines touch every
// bank once. Every other eight lines are exchanged by fours (`place`): so do reads of lines 0-3 and 8-11 (gfx11's b, see
// wmma.hip), and writes of 64 bytes of two lines that are four apart.
#pragma once

#include "tiles.h"

constexpr int LINE_BYTES = TILE_K * 2 + 16;

// Where `line` lies among its tile's lines.
DEVICE int place(int line) {
    return line ^ (line >> 1 & 4);
}

// Bytes from a scalar address to a lane's: 32 bits where they suffice (plan.py), which the load then adds.
#if FAR
typedef uint64_t lane_offset;
#else
typedef uint32_t lane_offset;
#endif

// An address that is the same for all lanes, in scalar registers.
typedef const char __attribute__((address_space(1)))* scalar_address;

// `address`, which the compiler is kept from adding to the lanes' offsets where it advances.
DEVICE scalar_address in_scalars(scalar_address address) {
    asm("" : "+s"(address));
    return address;
}

// BYTES from `offset` on, which the load itself adds: the compiler would keep the sum, 64 bits a lane, and advance that.
template <int BYTES> DEVICE words<BYTES> load_at(scalar_address address, lane_offset& offset) {
    asm volatile("" : "+v"(offset));
    typedef uint32_t type __attribute__((ext_vector_type(BYTES / 4), aligned(2)));
    return __builtin_bit_cast(words<BYTES>, *(const type __attribute__((address_space(1)))*)(address + offset));
}

// One operand's tiles of LINES x TILE_K on their way from memory to LDS, step by step. `load` is for steps before the
// last one, `load_last` for any: elements beyond K are zero. Lines beyond the matrix hold anything, finite or not: they
// only reach rows or columns of c that do not exist.
template <int LINES, bool K_MAJOR, bool GATED_TILE = false> struct NextTile;

// Memory runs along k: a thread copies 16 bytes of every STEP-th line.
template <int LINES, bool GATED_TILE> struct NextTile<LINES, true, GATED_TILE> {
    static constexpr int CHUNKS = TILE_K / CHUNK;
    static constexpr int STEP = THREADS / CHUNKS;
    static constexpr int COUNT = LINES / STEP;
    static_assert(COUNT * STEP == LINES && STEP % 16 == 0, "all threads copy as much");

    scalar_address memory;  // the step's first byte
    lane_offset from[COUNT];
    int to;
    words<16> held[COUNT];

    // Eight lanes write LDS together: 64 bytes of two lines that are four apart.
    static DEVICE int line() {
        const int t = thread_x() / CHUNKS;
        return CHUNKS == 4 ? t % 2 * 4 + t / 2 % 4 + t / 8 * 8 : t;
    }
    static DEVICE int k() { return thread_x() % CHUNKS * CHUNK; }

    DEVICE NextTile(const Matrix& matrix, int first)
        : memory((scalar_address)(matrix.data + matrix_line<GATED_TILE>(first) * matrix.leading)) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int at = line() + i * STEP;
            const int apart = min(matrix_line<GATED_TILE>(at), matrix.lines - 1 - matrix_line<GATED_TILE>(first));
            from[i] = (static_cast<lane_offset>(apart) * static_cast<lane_offset>(matrix.leading) + k()) * 2;
            if (GATED_TILE) {
                from[i] += static_cast<lane_offset>(matrix_of<true>(at)) * static_cast<lane_offset>(matrix.apart) * 2;
            }
        }
        to = place(line()) * LINE_BYTES + k() * 2;
    }

    static DEVICE bool padded(const Matrix&) { return true; }

    DEVICE void load() {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            held[i] = load_at<16>(memory, from[i]);
        }
        memory = in_scalars(memory + TILE_K * 2);
    }

    // `left`: elements of k from here to the end.
    DEVICE void load_last(const Matrix&, int, int left) {
        if (left >= TILE_K) {
            load();
            return;
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            held[i] = load_bounded<16>((const T*)(memory + from[i]), left - k());
        }
        memory += TILE_K * 2;
    }

    DEVICE void store(char* tile) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            store_words<16>(tile + to + i * (STEP * LINE_BYTES), held[i]);
        }
    }
};

// Memory runs along the lines' index: a tile is transposed on its way. Loads may run past the end of the lines, into the
// next k.
#if defined(__GFX11__)

// By where its elements are stored: a thread holds 8 lines of one k, and stores 2 bytes of a line at a time. That takes
// LDS twice as long as words of two k, which take the vector pipe 16 permutations for 32 products.
template <int LINES> struct NextTile<LINES, false, false> {
    static constexpr int COUNT = LINES * TILE_K / CHUNK / THREADS;
    // A wave's lanes hold, and write at once, 16 words of two lines that are 8 apart; waves take pairs of chunks of
    // lines first, then k.
    static constexpr int PAIRS = LINES / 16;
    static constexpr int WAVES = THREADS / WARP;
    static_assert(COUNT * THREADS * CHUNK == LINES * TILE_K, "all threads copy as much");

    scalar_address memory;
    lane_offset row;  // bytes from one k to the next
    lane_offset from[COUNT];
    int to[2];  // of lines 0-3 of the first 8, and of 4-7
    words<16> held[COUNT];

    static DEVICE int line(int wave) { return thread_x() % 2 * 8 + wave % PAIRS * 16; }
    static DEVICE int k(int wave) {
        const int rest = wave / PAIRS;
        return thread_x() % WARP / 2 * 2 + rest % 2 + rest / 2 * 32;
    }
    static DEVICE int wave() { return thread_x() / WARP; }

    DEVICE NextTile(const Matrix& matrix, int first)
        : memory((scalar_address)(matrix.data + first)),
          row(static_cast<lane_offset>(matrix.leading) * 2) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int at = wave() + i * WAVES;
            from[i] = k(at) * row + min(line(at), matrix.lines - 1 - first) * 2;
        }
        for (int part = 0; part < 2; ++part) {
            to[part] = place(line(wave()) + part * 4) * LINE_BYTES + k(wave()) * 2;
        }
    }

    static DEVICE bool padded(const Matrix& matrix) { return matrix.leading >= CHUNK; }

    DEVICE void load() {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            held[i] = load_at<16>(memory, from[i]);
        }
        memory = in_scalars(memory + TILE_K * row);
    }

    DEVICE void load_last(const Matrix& matrix, int first, int left) {
        if (left >= TILE_K && first + LINES <= matrix.lines) {
            load();
            return;
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int at = wave() + i * WAVES;
            const int lines = k(at) < left ? matrix.lines - first - line(at) : 0;
            held[i] = load_bounded<16>((const T*)(memory + from[i]), lines);
        }
        memory = in_scalars(memory + TILE_K * row);
    }

    DEVICE void store(char* tile) const {
        typedef uint16_t half_word __attribute__((may_alias));
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            constexpr int LINES_OF = 16 * LINE_BYTES;
            const int waves = i * WAVES, rest = waves / PAIRS;
            char* const part = tile + waves % PAIRS * LINES_OF + (rest % 2 + rest / 2 * 32) * 2;
#pragma unroll
            for (int line = 0; line < CHUNK; ++line) {
                const uint32_t pair = held[i].w[line / 2];
                *reinterpret_cast<half_word*>(part + to[line / 4] + line % 4 * LINE_BYTES) =
                    static_cast<half_word>(line % 2 == 0 ? pair : pair >> 16);
            }
        }
    }
};

#else

// By the load: of eight lanes each reads 8 lines of one k and gets 8 k of one line.
template <int LINES> struct NextTile<LINES, false, false> {
    static constexpr int SIDE = 8;
    static constexpr int STEP = THREADS / LINES * SIDE;  // elements of k between a thread's loads
    static constexpr int COUNT = TILE_K / STEP;
    static_assert(COUNT * STEP == TILE_K && STEP % SIDE == 0, "all threads copy as much");

    scalar_address memory;
    lane_offset row;  // bytes from one k to the next
    lane_offset from;
    int to;
    words<16> held[COUNT];

    static DEVICE int line() { return thread_x() / SIDE % (LINES / SIDE) * SIDE; }
    static DEVICE int k() { return thread_x() / LINES * SIDE; }
    static DEVICE int lane() { return thread_x() % SIDE; }

    DEVICE NextTile(const Matrix& matrix, int first)
        : memory((scalar_address)(matrix.data + first)),
          row(static_cast<lane_offset>(matrix.leading) * 2) {
        from = (k() + lane()) * row + min(line(), matrix.lines - 1 - first) * 2;
        to = place(line() + lane()) * LINE_BYTES + k() * 2;
    }

    static DEVICE bool padded(const Matrix& matrix) { return matrix.leading >= SIDE; }

    DEVICE void load() {
        typedef short short8 __attribute__((ext_vector_type(8)));
        typedef short8 __attribute__((address_space(1)))* global_pointer;
        asm volatile("" : "+v"(from));
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            held[i] = __builtin_bit_cast(
                words<16>, __builtin_amdgcn_global_load_tr_b128_v8i16(
                               (global_pointer)(in_scalars(memory + i * STEP * row) + from)));
        }
        memory = in_scalars(memory + TILE_K * row);
    }

    DEVICE void load_last(const Matrix& matrix, int first, int left) {
        if (left >= TILE_K && first + LINES <= matrix.lines) {
            load();
            return;
        }
        // Element by element, of those beyond the matrix its last.
        const lane_offset column = min(line() + lane(), matrix.lines - 1 - first) * 2;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            vec<T, CHUNK> values;
#pragma unroll
            for (int j = 0; j < CHUNK; ++j) {
                const int at = k() + i * STEP + j;
                const T value = *(const T*)(memory + (min(at, left - 1) * row + column));
                values.v[j].bits = at < left ? value.bits : 0;
            }
            held[i] = __builtin_bit_cast(words<16>, values);
        }
        memory = in_scalars(memory + TILE_K * row);
    }

    DEVICE void store(char* tile) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            store_words<16>(tile + to + i * (STEP * 2), held[i]);
        }
    }
};

#endif

// One tile of c by one block. Wave holds the accumulators: `add(stage)` adds the product of the stage's two tiles, a's
// lines before b's; `store` is the epilogue.
template <class Wave, bool A_K, bool B_K> struct DoubleBuffer {
    static constexpr int A_BYTES = TILE_M * LINE_BYTES;
    static constexpr int STAGE = (TILE_M + TILE_N) * LINE_BYTES;
    static constexpr int LDS_BYTES = 2 * STAGE;

    Matrix a, b;
    TileCorner corner;
    NextTile<TILE_M, A_K> next_a;
    NextTile<TILE_N, B_K, GATED> next_b;
    Wave wave;

    DEVICE DoubleBuffer(const Matrix& a, const Matrix& b, TileCorner corner)
        : a(a), b(b), corner(corner), next_a(a, corner.m), next_b(b, corner.n) {}

    DEVICE void load() {
        next_a.load();
        next_b.load();
    }
    DEVICE void load_last(int left) {
        next_a.load_last(a, corner.m, left);
        next_b.load_last(b, corner.n, left);
    }
    DEVICE void store(char* stage) {
        next_a.store(stage);
        next_b.store(stage + A_BYTES);
        lds_barrier();
    }

    DEVICE void multiply(int K, char* lds) {
        const int last = (K - 1) / TILE_K;
        // Loads past the end of lines that overlap could pass the end of memory.
        const bool padded = next_a.padded(a) && next_b.padded(b);
        if (last == 0 || !padded) {
            load_last(K);
        } else {
            load();
        }
        store(lds);
        int step = 0;
        if (padded) {
#pragma clang loop unroll(disable)
            for (; step + 2 < last; step += 2) {
                load();
                wave.add(lds);
                store(lds + STAGE);
                load();
                wave.add(lds + STAGE);
                store(lds);
            }
        }
        int stage = 0;
#pragma clang loop unroll(disable)
        for (; step < last; ++step) {
            if (step + 1 == last || !padded) {
                load_last(K - (step + 1) * TILE_K);
            } else {
                load();
            }
            wave.add(lds + stage);
            stage = STAGE - stage;
            store(lds + stage);
        }
        wave.add(lds + stage);
    }

    static DEVICE void run(const Matrix& a, const Matrix& b, const Output& c, int K, TileCorner corner, char* lds) {
        DoubleBuffer loop(a, b, corner);
        if (K > 0) {
            loop.multiply(K, lds);
        }
        loop.wave.store(c, corner.m, corner.n);
    }
};
