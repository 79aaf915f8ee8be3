// y = x @ w.T + bias of a weight with 2:4 sparsity by sparse warp-wide matrix instructions (mma.sp), for sm_80 and later.
// A and B are swapped: the sparse operand is the instruction's A, so the weight's rows are a product's rows and x's rows
// its columns.
//
// A block computes TILE_N columns of y of TILE_M rows; copies (cp.async) run STAGES - 1 steps of 64 k ahead. Chunks of 16
// bytes are permuted in shared memory so that an ldmatrix phase falls in different banks. The metadata of a step go to
// registers as they lie in memory, a step ahead: thread t of each four has the 16 bits of 16 k from t * 16 on, of two
// rows. A product of 32 k takes the words of one pair of threads, which its selector names: of 64 k that is each thread's
// word once.
//
// Defines: ELEMENT (bf16, f16), TILE_N, TILE_M, WARPS_N, WARPS_M, STAGES, GROUP_N, HAS_BIAS, VECTOR (columns of a store).
#include "prelude.h"

#include "_lib/ptx/matrix.h"
#include "_lib/ptx/mma.h"
#include "_lib/ptx/shared_address.h"
#include "matmul/tile.h"

using T = ELEMENT;
constexpr int THREADS = WARPS_N * WARPS_M * 32;
constexpr int WARP_N = TILE_N / WARPS_N, WARP_M = TILE_M / WARPS_M;
constexpr int ROW_TILES = WARP_N / 16, COL_TILES = WARP_M / 8;  // of products: rows of the weight, rows of x
constexpr int TILE_K = 64, STEPS = TILE_K / 32;
constexpr int VALUE_ROW = TILE_K, X_ROW = TILE_K * 2;  // bytes
constexpr int X_AT = TILE_N * VALUE_ROW, STAGE_BYTES = X_AT + TILE_M * X_ROW;
constexpr int PITCH = TILE_N + 8;  // elements from row to row of a staged tile of y
static_assert(WARP_N % 16 == 0 && WARP_M % 8 == 0, "tiles divide into instructions");
static_assert(STAGES * STAGE_BYTES >= TILE_M * PITCH * 2, "the stages hold a tile of y");

DEVICE int value_place(int row, int chunk) { return row * VALUE_ROW + (chunk ^ row / 2 % 4) * 16; }
DEVICE int x_place(int row, int chunk) { return X_AT + row * X_ROW + (chunk ^ row % 8) * 16; }

struct Operands {
    const T* x;
    int64_t x_row;
    const T* values;
    const uint8_t* meta;
    int rows, columns, k;
};

// Chunks of 16 bytes of COUNT rows from `first` on, of which there are `rows`, `pitch` elements apart; CHUNKS of each row
// from element `at` on, of `length`. What lies beyond an end becomes zeros.
template <int COUNT, int CHUNKS, class Place>
DEVICE void copy_rows(uint32_t stage, const T* base, int64_t pitch, int first, int rows, int at, int length, Place place) {
#pragma unroll
    for (int i = 0; i < (COUNT * CHUNKS + THREADS - 1) / THREADS; ++i) {
        const int index = i * THREADS + thread_x();
        if (COUNT * CHUNKS % THREADS != 0 && index >= COUNT * CHUNKS) break;
        const int row = index / CHUNKS, chunk = index % CHUNKS, element = at + chunk * 8;
        const bool inside = first + row < rows && element < length;
        copy_async(stage + place(row, chunk), inside ? base + (first + row) * pitch + element : base, inside ? 16 : 0);
    }
}

DEVICE void copy_stage(uint32_t stage, const Operands& o, const Tile& tile, int k) {
    copy_rows<TILE_N, VALUE_ROW / 16>(stage, o.values, o.k / 2, tile.row, o.columns, k / 2, o.k / 2, value_place);
    copy_rows<TILE_M, X_ROW / 16>(stage, o.x, o.x_row, tile.col, o.rows, k, o.k, x_place);
}

// A thread's metadata of 64 k from `k` on: of its two rows of each product.
DEVICE void load_metadata(uint32_t (&words)[ROW_TILES], const Operands& o, int first, int k) {
    constexpr uint32_t ZEROS = 0x44444444;  // places 0 and 1
    const int lane = thread_x() % 32, width = o.k / 8, at = k / 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
        words[i] = ZEROS;
        if (at >= width) continue;
        uint32_t half[2];
#pragma unroll
        for (int down = 0; down < 2; ++down) {
            int row = first + i * 16 + down * 8 + lane / 4;
            row = row < o.columns ? row : o.columns - 1;
            half[down] = *reinterpret_cast<const uint16_t*>(o.meta + static_cast<int64_t>(row) * width + at);
        }
        words[i] = half[0] | half[1] << 16;
    }
}

// c (16 x 8, float32) += a (16 x 32, two values of each four along k: 16 x 16) @ b (32 x 8).
template <class Type> struct SparseProduct;
#define SPARSE_PRODUCT(TYPE, NAME)                                                                                \
    template <> struct SparseProduct<TYPE> {                                                                      \
        template <int SELECTOR>                                                                                   \
        static DEVICE void add(float* c, const uint32_t* a, const uint32_t* b, uint32_t meta) {                   \
            asm volatile(                                                                                         \
                "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32." NAME "." NAME ".f32 "               \
                "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"             \
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                  \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),         \
                  "r"(meta), "n"(SELECTOR));                                                                      \
        }                                                                                                         \
    }
SPARSE_PRODUCT(bf16, "bf16");
SPARSE_PRODUCT(f16, "f16");

// The products of 32 k, step STEP of a stage.
template <int STEP>
DEVICE void multiply(float (&sum)[ROW_TILES][COL_TILES][4], uint32_t stage, const uint32_t (&meta)[ROW_TILES], int row,
                     int col) {
    const int lane = thread_x() % 32;
    uint32_t a[ROW_TILES][4];
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i)
        ldmatrix_x4(a[i], stage + value_place(row + i * 16 + lane % 16, STEP * 2 + lane / 16));
#pragma unroll
    for (int j = 0; j < COL_TILES; ++j) {
        uint32_t b[4];
        ldmatrix_x4(b, stage + x_place(col + j * 8 + lane % 8, STEP * 4 + lane / 8));
#pragma unroll
        for (int i = 0; i < ROW_TILES; ++i) SparseProduct<T>::template add<STEP>(sum[i][j], a[i], b, meta[i]);
    }
}

// The staged tile of y, VECTOR columns a thread at a time.
DEVICE void store_tile(T* y, const T* staged, const Operands& o, const Tile& tile) {
    constexpr int ACROSS = TILE_N / VECTOR;
    for (int index = thread_x(); index < TILE_M * ACROSS; index += THREADS) {
        const int row = index / ACROSS, column = index % ACROSS * VECTOR;
        if (tile.col + row >= o.rows || tile.row + column >= o.columns) continue;
        using Several = vec<T, VECTOR>;
        *reinterpret_cast<Several*>(y + static_cast<int64_t>(tile.col + row) * o.columns + tile.row + column) =
            *reinterpret_cast<const Several*>(staged + row * PITCH + column);
    }
}

KERNEL(THREADS)
void sparse_mm_mma(const T* x, int64_t x_row, const T* values, const uint8_t* meta, const T* bias, T* y, int rows,
                   int columns, int k) {
    DYNAMIC_SHARED(shared);
    const Operands o{x, x_row, values, meta, rows, columns, k};
    const Sizes s = {columns, rows, k, 1, 1, 0, 0, 1, columns, 0, 0, 0, 0, 0, 0};
    const Tile tile = tile_at<TILE_N, TILE_M, GROUP_N>(blockIdx.x, s);
    const uint32_t stages = shared_address(shared);
    const int steps = (k + TILE_K - 1) / TILE_K;
#pragma unroll 1
    for (int step = 0; step < STAGES - 1; ++step) {
        if (step < steps) copy_stage(stages + step * STAGE_BYTES, o, tile, step * TILE_K);
        commit_copies();
    }
    const int warp = thread_x() / 32, lane = thread_x() % 32;
    const int row = warp % WARPS_N * WARP_N, col = warp / WARPS_N * WARP_M;
    float sum[ROW_TILES][COL_TILES][4] = {};
    uint32_t next[ROW_TILES];
    load_metadata(next, o, tile.row + row, 0);
    int reading = 0, writing = STAGES - 1;
    for (int step = 0; step < steps; ++step) {
        wait_copies<STAGES - 2>();
        barrier();  // this stage is visible, and nobody still reads the one written next
        const int ahead = step + STAGES - 1;
        if (ahead < steps) copy_stage(stages + writing * STAGE_BYTES, o, tile, ahead * TILE_K);
        commit_copies();
        uint32_t words[ROW_TILES];
#pragma unroll
        for (int i = 0; i < ROW_TILES; ++i) words[i] = next[i];
        load_metadata(next, o, tile.row + row, (step + 1) * TILE_K);
        multiply<0>(sum, stages + reading * STAGE_BYTES, words, row, col);
        multiply<1>(sum, stages + reading * STAGE_BYTES, words, row, col);
        reading = reading + 1 == STAGES ? 0 : reading + 1;
        writing = writing + 1 == STAGES ? 0 : writing + 1;
    }
    wait_copies<0>();
    barrier();  // no stage is read any more

    T* staged = reinterpret_cast<T*>(shared);
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
        for (int down = 0; down < 2; ++down) {
            const int n = row + i * 16 + down * 8 + lane / 4;
            const float added = HAS_BIAS && tile.row + n < columns ? to_float(bias[tile.row + n]) : 0.0f;
#pragma unroll
            for (int j = 0; j < COL_TILES; ++j) {
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    staged[(col + j * 8 + lane % 4 * 2 + e) * PITCH + n] = from_float<T>(sum[i][j][down * 2 + e] + added);
            }
        }
    }
    barrier();
    store_tile(y, staged, o, tile);
}
