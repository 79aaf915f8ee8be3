// c = a @ b with Ampere's warp-wide matrix instructions (mma.sync), any layout and alignment.
//
// A block computes TILE_M x TILE_N of c. Copies of operand tiles run STAGES - 1 tiles of TILE_K ahead
// of the arithmetic (cp.async). In shared memory a tile is a stack of lines, each contiguous as in
// global memory: rows of a or columns of b along k, or, for an operand that is not K-major
// (A_K_MAJOR or B_K_MAJOR 0), one line per k. Lines are cut into 16-byte chunks whose place is permuted
// so that the eight lines one ldmatrix phase reads fall in different banks.
//
// Defines: ELEMENT (bf16, f16, or float for TF32 products), TILE_M, TILE_N, TILE_K, WARPS_M, WARPS_N, STAGES,
// GROUP_M; A_K_MAJOR, B_K_MAJOR; A_BYTES, B_BYTES: bytes per copy (16, 8, 4, or 2 where nothing wider is
// aligned); C_VECTOR: c is row-major and every row 16-byte aligned; BIAS, ACTIVATION; GATED: b's tile is one of gate
// and one of up, of TILE_N / 2 columns each, and so is every warp's part of it.
#include "prelude.h"

#include "_lib/ptx/matrix.h"
#include "_lib/ptx/shared_address.h"
#include "matmul/epilogue.h"
#include "matmul/tile.h"

using T = ELEMENT;
constexpr int SIZE = sizeof(T);
constexpr int THREADS = WARPS_M * WARPS_N * 32;
constexpr int WARP_M = TILE_M / WARPS_M;
constexpr int WARP_N = TILE_N / WARPS_N;
constexpr int M_TILES = WARP_M / 16;
constexpr int N_TILES = WARP_N / 8;
constexpr int MATRICES = GATED ? 2 : 1;  // of b
constexpr int C_TILE_N = TILE_N / MATRICES, C_WARP_N = WARP_N / MATRICES, C_N_TILES = N_TILES / MATRICES;
constexpr int K_STEP = 32 / SIZE;  // k of one matrix instruction: two chunks
static_assert(WARP_M % 16 == 0 && C_WARP_N % 16 == 0 && TILE_K % K_STEP == 0, "tiles divide into instructions");

// Copies `valid` of BYTES bytes (0 to BYTES) and fills the rest with zeros.
template <int BYTES> DEVICE void copy_async(uint32_t to, const void* from, int valid) {
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(valid));
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int PENDING> DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING)); }

DEVICE int clamped(int64_t value, int most) {
    return value <= 0 ? 0 : value < most ? static_cast<int>(value) : most;
}

// One operand's tile: EXTENT rows (of a) or columns (of b), TILE_K deep.
template <int EXTENT, bool K_MAJOR, int BYTES> struct OperandTile {
    static constexpr int LINES = K_MAJOR ? EXTENT : TILE_K;
    static constexpr int LINE_BYTES = (K_MAJOR ? TILE_K : EXTENT) * SIZE;
    static constexpr int CHUNKS = LINE_BYTES / 16;
    static constexpr int LINES_PER_ROW = CHUNKS >= 8 ? 1 : 8 / CHUNKS;  // a row is all 32 banks, 128 bytes
    static constexpr int MASK = (CHUNKS >= 8 ? 8 : CHUNKS) - 1;
    // Without ldmatrix (transposed float) four lines are read at once, two chunks wide.
    static constexpr int WIDTH = !K_MAJOR && SIZE == 4 ? 2 : 1;
    static constexpr int STAGE_BYTES = LINES * LINE_BYTES;

    static DEVICE int offset(int line, int chunk) {
        return line * LINE_BYTES + (chunk ^ (line / LINES_PER_ROW * WIDTH & MASK)) * 16;
    }

    // Copies the tile that starts at `first` along the extent and at `k`, from `base`; lines are
    // `leading` elements apart and whatever is past `extent` or `depth` becomes zero.
    static DEVICE void copy(char* stage, const T* base, int64_t leading, int first, int extent, int k, int depth) {
        const int line0 = K_MAJOR ? first : k;
        const int lines = K_MAJOR ? extent : depth;
        const int start = K_MAJOR ? k : first;
        const int length = K_MAJOR ? depth : extent;
        constexpr int PIECE = BYTES == 2 ? 16 : BYTES;
        constexpr int PIECES = LINE_BYTES / PIECE;
        constexpr int TOTAL = LINES * PIECES;
        constexpr int UNROLL = BYTES == 16 ? 16 : 4;  // narrow copies are many: unrolled fully they spill
#pragma unroll UNROLL
        for (int i = 0; i < (TOTAL + THREADS - 1) / THREADS; ++i) {
            const int index = i * THREADS + thread_x();
            if (TOTAL % THREADS != 0 && index >= TOTAL) break;
            const int line = index / PIECES;
            const int byte = index % PIECES * PIECE;
            const int element = start + byte / SIZE;
            const bool inside = line0 + line < lines && element < length;
            const int valid = inside ? clamped(static_cast<int64_t>(length - element) * SIZE, PIECE) : 0;
            const T* from = inside ? base + (line0 + line) * leading + element : base;
            char* to = stage + offset(line, byte / 16) + byte % 16;
            if constexpr (BYTES == 2) {
                words<16> gathered;
#pragma unroll
                for (int w = 0; w < 4; ++w) {
                    const auto* source = reinterpret_cast<const uint16_t*>(from) + 2 * w;
                    const uint32_t low = 4 * w + 2 <= valid ? source[0] : 0;
                    const uint32_t high = 4 * w + 4 <= valid ? source[1] : 0;
                    gathered.w[w] = low | high << 16;
                }
                store_words(to, gathered);
            } else {
                copy_async<BYTES>(shared_address(to), from, valid);
            }
        }
    }
};

using TileA = OperandTile<TILE_M, A_K_MAJOR, A_BYTES>;
using TileB = OperandTile<C_TILE_N, B_K_MAJOR, B_BYTES>;
constexpr int STAGE_BYTES = TileA::STAGE_BYTES + MATRICES * TileB::STAGE_BYTES;

DEVICE uint32_t rounded_to_tf32(uint32_t bits) {
    uint32_t rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
    return rounded;
}

// The four words of a 16 x K_STEP block that starts at `first` along the extent and at chunk pair
// `step` along k. ROWS_FIRST orders them as a's fragment (rows 0-7, rows 8-15, then the next k half);
// otherwise as two of b's (both k halves of columns 0-7, then of columns 8-15).
template <class Tile, bool K_MAJOR, bool ROWS_FIRST>
DEVICE void load_fragment(uint32_t (&w)[4], const char* stage, int first, int step) {
    const int lane = thread_x() % 32;
    if constexpr (SIZE == 4 && !K_MAJOR) {
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            const int far = ROWS_FIRST ? q % 2 : q / 2;
            const int deep = ROWS_FIRST ? q / 2 : q % 2;
            const int place = first + far * 8 + lane / 4;
            const int line = step * K_STEP + deep * 4 + lane % 4;
            w[q] = *reinterpret_cast<const uint32_t*>(stage + Tile::offset(line, place / 4) + place % 4 * 4);
        }
    } else {
        const int q = lane / 8;
        const int far = ROWS_FIRST ? q % 2 : q / 2;
        const int deep = ROWS_FIRST ? q / 2 : q % 2;
        if constexpr (K_MAJOR)
            ldmatrix_x4(w, shared_address(stage + Tile::offset(first + far * 8 + lane % 8, step * 2 + deep)));
        else
            ldmatrix_x4_trans(
                w, shared_address(stage + Tile::offset(step * K_STEP + deep * 8 + lane % 8, first / 8 + far)));
    }
    if constexpr (SIZE == 4) {
#pragma unroll
        for (int q = 0; q < 4; ++q) w[q] = rounded_to_tf32(w[q]);
    }
}

template <class U> struct Instruction;
#define MMA(TYPE, SHAPE)                                                                                   \
    asm volatile("mma.sync.aligned." SHAPE ".row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, "         \
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                           \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <> struct Instruction<bf16> {
    static DEVICE void run(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { MMA("bf16", "m16n8k16"); }
};
template <> struct Instruction<f16> {
    static DEVICE void run(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { MMA("f16", "m16n8k16"); }
};
template <> struct Instruction<float> {
    static DEVICE void run(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { MMA("tf32", "m16n8k8"); }
};

// Word i of lane t in each group of four becomes word t of lane i.
DEVICE void transpose_quad(uint32_t (&w)[4]) {
    const int lane = thread_x() % 4;
#pragma unroll
    for (int s = 1; s <= 2; s *= 2) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (j & s) continue;
            const bool upper = lane & s;
            const uint32_t received = __shfl_xor_sync(0xffffffffu, upper ? w[j] : w[j + s], s);
            if (upper) w[j] = received;
            else w[j + s] = received;
        }
    }
}

// Adds the bias to one warp's accumulators: block (i, j) of 16 x 8 holds columns 2t, 2t + 1 of row lane / 4
// and of the row 8 below, t = lane % 4.
template <class U>
DEVICE void add_bias(const U* bias, float (&sum)[M_TILES][N_TILES][4], int col0, const Sizes& s) {
    const int t = thread_x() % 4;
#pragma unroll
    for (int j = 0; j < N_TILES; ++j) {
        const int col = col0 + j * 8 + t * 2;
        const float bias0 = col < s.n ? bias_at(bias, col) : 0.0f;
        const float bias1 = col + 1 < s.n ? bias_at(bias, col + 1) : 0.0f;
#pragma unroll
        for (int i = 0; i < M_TILES; ++i) {
#pragma unroll
            for (int r = 0; r < 4; ++r) sum[i][j][r] = preactivation(sum[i][j][r], r % 2 ? bias1 : bias0);
        }
    }
}

DEVICE void activate_all(float (&sum)[M_TILES][N_TILES][4]) {
#pragma unroll
    for (int i = 0; i < M_TILES; ++i) {
#pragma unroll
        for (int j = 0; j < N_TILES; ++j) {
#pragma unroll
            for (int r = 0; r < 4; ++r) sum[i][j][r] = activate(sum[i][j][r]);
        }
    }
}

// c's accumulators from gate's and up's.
DEVICE void activate_gated(float (&value)[M_TILES][C_N_TILES][4], const float (&sum)[M_TILES][N_TILES][4]) {
#pragma unroll
    for (int i = 0; i < M_TILES; ++i) {
#pragma unroll
        for (int j = 0; j < C_N_TILES; ++j) {
#pragma unroll
            for (int r = 0; r < 4; ++r) value[i][j][r] = finish_gated(sum[i][j][r], sum[i][C_N_TILES + j][r]);
        }
    }
}

// Stores them.
template <class U>
DEVICE void store(U* c, const float (&sum)[M_TILES][C_N_TILES][4], int row0, int col0, const Sizes& s) {
    const int lane = thread_x() % 32;
    const int t = lane % 4;
#pragma unroll
    for (int i = 0; i < M_TILES; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = row0 + i * 16 + half * 8 + lane / 4;
            U* line = c + row * s.c_row;
            if constexpr (C_VECTOR && sizeof(U) == 2 && C_N_TILES % 4 == 0) {
                // Four blocks side by side: after the exchange lane t holds all 8 columns of block t.
#pragma unroll
                for (int j = 0; j < C_N_TILES; j += 4) {
                    words<16> row8;
#pragma unroll
                    for (int q = 0; q < 4; ++q)
                        row8.w[q] = pack2<U>(sum[i][j + q][half * 2], sum[i][j + q][half * 2 + 1]);
                    transpose_quad(row8.w);
                    const int col = col0 + (j + t) * 8;
                    if (row < s.m && col + 8 <= s.n) {
                        store_words(line + col, row8);
                    } else if (row < s.m) {
#pragma unroll
                        for (int e = 0; e < 8; ++e) {
                            const uint16_t bits = static_cast<uint16_t>(row8.w[e / 2] >> (e % 2 * 16));
                            if (col + e < s.n) line[col + e] = U{bits};
                        }
                    }
                }
            } else {
#pragma unroll
                for (int j = 0; j < C_N_TILES; ++j) {
                    const int col = col0 + j * 8 + t * 2;
                    const U low = from_float<U>(sum[i][j][half * 2]);
                    const U high = from_float<U>(sum[i][j][half * 2 + 1]);
                    if (C_VECTOR && row < s.m && col + 2 <= s.n) {
                        *reinterpret_cast<vec<U, 2>*>(line + col) = {{low, high}};
                    } else if (row < s.m) {
                        if (col < s.n) line[col * s.c_col] = low;
                        if (col + 1 < s.n) line[(col + 1) * s.c_col] = high;
                    }
                }
            }
        }
    }
}

KERNEL(THREADS) void matmul_mma(const T* a, const T* b, const T* bias, T* c, Z_PARAMETER(T) SIZES_PARAMETERS) {
    DYNAMIC_SHARED(shared);
    const Sizes s = SIZES_ARGUMENTS;
    const Tile tile = tile_at<TILE_M, C_TILE_N, GROUP_M>(blockIdx.x, s);
    a += tile.outer * s.a_outer + tile.inner * s.a_inner;
    b += tile.outer * s.b_outer + tile.inner * s.b_inner;
    c += tile.outer * s.c_outer + tile.inner * s.c_inner;

    auto copy = [&](int stage, int k) {
        char* at = shared + stage * STAGE_BYTES;
        TileA::copy(at, a, s.a_leading, tile.row, s.m, k, s.k);
#pragma unroll 1
        for (int i = 0; i < MATRICES; ++i)
            TileB::copy(at + TileA::STAGE_BYTES + i * TileB::STAGE_BYTES, b + i * s.b_outer, s.b_leading, tile.col, s.n,
                        k, s.k);
    };

    const int steps = s.k / TILE_K + (s.k % TILE_K != 0);
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < steps) copy(stage, stage * TILE_K);
        commit_copies();
    }

    const int warp = thread_x() / 32;
    const int warp_row = warp / WARPS_N * WARP_M;
    const int warp_col = warp % WARPS_N * C_WARP_N;
    float sum[M_TILES][N_TILES][4] = {};
    int reading = 0;
    int writing = STAGES - 1;
    for (int step = 0; step < steps; ++step) {
        wait_copies<STAGES - 2>();
        barrier();  // this step's tiles are visible, and nobody still reads the stage written next
        const int ahead = step + STAGES - 1;
        if (ahead < steps) copy(writing, ahead * TILE_K);
        commit_copies();

        const char* stage_a = shared + reading * STAGE_BYTES;
        const char* stage_b = stage_a + TileA::STAGE_BYTES;
#pragma unroll
        for (int k = 0; k < TILE_K / K_STEP; ++k) {
            uint32_t fragment_a[M_TILES][4];
            uint32_t fragment_b[N_TILES / 2][4];
#pragma unroll
            for (int i = 0; i < M_TILES; ++i)
                load_fragment<TileA, A_K_MAJOR, true>(fragment_a[i], stage_a, warp_row + i * 16, k);
#pragma unroll
            for (int j = 0; j < N_TILES / 2; ++j)
                load_fragment<TileB, B_K_MAJOR, false>(
                    fragment_b[j], stage_b + j * 2 / C_N_TILES * TileB::STAGE_BYTES, warp_col + j * 2 % C_N_TILES * 8, k);
#pragma unroll
            for (int i = 0; i < M_TILES; ++i) {
#pragma unroll
                for (int j = 0; j < N_TILES; ++j)
                    Instruction<T>::run(sum[i][j], fragment_a[i], fragment_b[j / 2][j % 2 * 2],
                                        fragment_b[j / 2][j % 2 * 2 + 1]);
            }
        }
        reading = reading + 1 == STAGES ? 0 : reading + 1;
        writing = writing + 1 == STAGES ? 0 : writing + 1;
    }
    const int row = tile.row + warp_row, col = tile.col + warp_col;
#if GATED
    float value[M_TILES][C_N_TILES][4];
    activate_gated(value, sum);
    store(c, value, row, col, s);
#else
    add_bias(bias, sum, col, s);
#if PREACTIVATION
    store(z + tile.outer * s.c_outer + tile.inner * s.c_inner, sum, row, col, s);
#endif
    activate_all(sum);
    store(c, sum, row, col, s);
#endif
}
