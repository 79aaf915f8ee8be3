// y = x @ w.T + bias of a weight with 2:4 sparsity by AMD's matrix instructions; operands of any alignment. gfx942 has
// sparse ones (SMFMAC); elsewhere a lane makes the four elements of each two values in registers, for MFMA or WMMA. A and
// B are swapped: the weight's rows are a product's rows and x's rows its columns, and a lane's accumulators are
// neighbours of a row of y.
//
// A block computes TILE_N columns of y of TILE_M rows, in steps of 64 k, whose tiles go through registers to LDS while
// the step before is multiplied. An operand's lanes are in GROUPS groups along k, each of which has neighbouring k of the
// 64; a product takes the next RUN of them. A lane's metadata are bytes of a row as they lie in memory; SMFMAC's ABID
// names the byte of a product.
//
// Defines: ELEMENT (bf16, f16), TILE_N, TILE_M, WAVES_N, WAVES_M, GROUP_N, HAS_BIAS.
#include "prelude.h"

#include "attention/gfx/tiles.h"
#include "matmul/tile.h"

using T = ELEMENT;
constexpr int THREADS = WAVES_N * WAVES_M * WARP;
constexpr int WAVE_N = TILE_N / WAVES_N, WAVE_M = TILE_M / WAVES_M;
constexpr int ROW_TILES = WAVE_N / 16, COL_TILES = WAVE_M / 16;  // of products: rows of the weight, rows of x
constexpr int TILE_K = 64, META = TILE_K / 8;                    // k of a step, and its bytes of metadata
constexpr int VALUE_CHUNKS = 4, X_CHUNKS = 8;                    // of 16 bytes, in a row of a tile
constexpr int VALUE_PITCH = VALUE_CHUNKS * 16 + 16, X_PITCH = X_CHUNKS * 16 + 16;  // bytes: rows begin at other banks
constexpr int RUN = sizeof(operand) / sizeof(T);
constexpr int GROUPS = RUN == 16 ? 1 : LANES_PER_COLUMN;  // gfx11: both halves of a wave hold all k
constexpr int PRODUCTS = TILE_K / GROUPS / RUN;
constexpr int SUMS = sizeof(accumulators) / sizeof(float);  // of a lane: the rows from SUMS * (lane / 16) on
static_assert(TILE_N * VALUE_CHUNKS % THREADS == 0 && TILE_M * X_CHUNKS % THREADS == 0, "threads divide a tile");

typedef words<RUN> run_values;  // two of each four elements

// The row of the weight that a lane holds of a product's 16: gfx11's accumulators are every other row else.
DEVICE int row_of_lane() {
#if defined(__GFX11__)
    return a_row_of_lane(0);
#else
    return lane_column();
#endif
}
DEVICE int group_of_lane() { return GROUPS == 1 ? 0 : lane_part(); }

// A lane's places of the values of a step: a byte for each 8 k.
struct Places {
    static constexpr int BYTES = META / GROUPS, WORDS = (BYTES + 3) / 4;

    uint32_t word[WORDS];

    // Those of product `product`, in the lowest bits.
    DEVICE uint32_t of(int product) const { return word[product * RUN / 32] >> product * RUN % 32; }
};

#if defined(__gfx942__)
// c + a @ b: 16 x 32 with two values of each four along k, by 32 x 16.
template <int PRODUCT> DEVICE accumulators multiply(run_values a, operand b, accumulators c, Places places, bf16) {
    return __builtin_amdgcn_smfmac_f32_16x16x32_bf16(__builtin_bit_cast(i16x4, a), __builtin_bit_cast(i16x8, b), c,
                                                     static_cast<int>(places.word[0]), 0, PRODUCT);
}
template <int PRODUCT> DEVICE accumulators multiply(run_values a, operand b, accumulators c, Places places, f16) {
    return __builtin_amdgcn_smfmac_f32_16x16x32_f16(__builtin_bit_cast(f16x4, a), __builtin_bit_cast(f16x8, b), c,
                                                    static_cast<int>(places.word[0]), 0, PRODUCT);
}
#else
// The elements of a run from its values: each four are 64 bits, in which a value lies at 16 times its place.
DEVICE operand decompressed(run_values values, uint32_t places) {
    operand run;
    for (int i = 0; i < RUN / 4; ++i) {
        const uint64_t first = static_cast<uint64_t>(values.w[i] & 0xffff) << (places >> 4 * i & 3) * 16;
        const uint64_t second = static_cast<uint64_t>(values.w[i] >> 16) << (places >> (4 * i + 2) & 3) * 16;
        run.w[i * 2] = static_cast<uint32_t>(first | second);
        run.w[i * 2 + 1] = static_cast<uint32_t>((first | second) >> 32);
    }
    return run;
}
template <int PRODUCT, class Type>
DEVICE accumulators multiply(run_values a, operand b, accumulators c, Places places, Type) {
    return mma_instruction<Type>(decompressed(a, places.of(PRODUCT)), b, c);
}
#endif

// A tile of ROWS rows of CHUNKS chunks: from memory into registers, and from there to LDS. Rows beyond the matrix repeat
// its last; elements beyond a row's end are zeros.
template <int ROWS, int CHUNKS, int PITCH> struct Copy {
    static constexpr int COUNT = ROWS * CHUNKS / THREADS, LINES = THREADS / CHUNKS;

    const T* from[COUNT];
    words<16> held[COUNT];
    int left;  // elements of the row from the thread's chunk on

    DEVICE Copy(const T* base, int64_t pitch, int first, int rows, int length) {
        const int chunk = thread_x() % CHUNKS * 8;
        left = length - chunk;
        for (int i = 0; i < COUNT; ++i) {
            const int row = first + thread_x() / CHUNKS + i * LINES;
            from[i] = base + (row < rows ? row : rows - 1) * pitch + chunk;
        }
    }
    DEVICE void load() {
        for (int i = 0; i < COUNT; ++i) {
            held[i] = load_bounded<16>(from[i], left);
            from[i] += CHUNKS * 8;
        }
        left -= CHUNKS * 8;
    }
    DEVICE void store(char* to) const {
        for (int i = 0; i < COUNT; ++i)
            store_words(to + (thread_x() / CHUNKS + i * LINES) * PITCH + thread_x() % CHUNKS * 16, held[i]);
    }
};

// A lane's metadata of each product's row.
struct Metadata {
    const uint8_t* from[ROW_TILES];
    Places places[ROW_TILES];
    int left;

    DEVICE Metadata(const uint8_t* meta, int width, int first, int columns) {
        const int at = group_of_lane() * Places::BYTES;
        left = width - at;
        for (int i = 0; i < ROW_TILES; ++i) {
            const int row = first + i * 16 + row_of_lane();
            from[i] = meta + static_cast<int64_t>(row < columns ? row : columns - 1) * width + at;
        }
    }
    DEVICE void load() {
        constexpr uint32_t ZEROS = 0x44;  // places 0 and 1, twice
        for (int i = 0; i < ROW_TILES; ++i) {
            for (int e = 0; e < Places::BYTES; ++e) {
                const uint32_t byte = e < left ? from[i][e] : ZEROS;
                uint32_t& word = places[i].word[e / 4];
                word = e % 4 ? word | byte << e % 4 * 8 : byte;
            }
            from[i] += META;
        }
        left -= META;
    }
};

template <int BYTES> DEVICE words<BYTES> load_shared(const char* from) {
    words<BYTES> all;
    constexpr int PART = BYTES < 16 ? BYTES : 16;
    for (int i = 0; i < BYTES / PART; ++i) {
        const words<PART> part = load_words<PART>(from + i * PART);
        for (int e = 0; e < PART / 4; ++e) all.w[i * PART / 4 + e] = part.w[e];
    }
    return all;
}

// The products from PRODUCT on of a step, from the lane's rows in LDS.
template <int PRODUCT>
DEVICE void multiply_from(accumulators (&sum)[ROW_TILES][COL_TILES], const char* values, const char* x,
                          const Places (&places)[ROW_TILES]) {
    if constexpr (PRODUCT < PRODUCTS) {
        run_values a[ROW_TILES];
        operand b[COL_TILES];
        for (int i = 0; i < ROW_TILES; ++i) a[i] = load_shared<RUN>(values + i * 16 * VALUE_PITCH + PRODUCT * RUN);
        for (int j = 0; j < COL_TILES; ++j) b[j] = load_shared<RUN * 2>(x + j * 16 * X_PITCH + PRODUCT * RUN * 2);
#pragma unroll
        for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
            for (int j = 0; j < COL_TILES; ++j) sum[i][j] = multiply<PRODUCT>(a[i], b[j], sum[i][j], places[i], T{});
        }
        multiply_from<PRODUCT + 1>(sum, values, x, places);
    }
}

KERNEL(THREADS)
void sparse_mm_matrix(const T* x, int64_t x_row, const T* values, const uint8_t* meta, const T* bias, T* y, int rows,
                      int columns, int k) {
    SHARED __attribute__((aligned(16))) char value_tile[TILE_N * VALUE_PITCH];
    SHARED __attribute__((aligned(16))) char x_tile[TILE_M * X_PITCH];
    const Sizes s = {columns, rows, k, 1, 1, 0, 0, 1, columns, 0, 0, 0, 0, 0, 0};
    const Tile tile = tile_at<TILE_N, TILE_M, GROUP_N>(block_x(), s);
    const int wave = thread_x() / WARP;
    const int row = wave % WAVES_N * WAVE_N, col = wave / WAVES_N * WAVE_M;
    const int steps = (k + TILE_K - 1) / TILE_K;
    Copy<TILE_N, VALUE_CHUNKS, VALUE_PITCH> value_copy(values, k / 2, tile.row, columns, k / 2);
    Copy<TILE_M, X_CHUNKS, X_PITCH> x_copy(x, x_row, tile.col, rows, k);
    Metadata metadata(meta, k / 8, tile.row + row, columns);
    accumulators sum[ROW_TILES][COL_TILES];
    for (int i = 0; i < ROW_TILES; ++i)
        for (int j = 0; j < COL_TILES; ++j) sum[i][j] = 0.0f;
    if (steps) {
        value_copy.load();
        x_copy.load();
        metadata.load();
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        lds_barrier();  // nobody still reads the step before
        value_copy.store(value_tile);
        x_copy.store(x_tile);
        Places places[ROW_TILES];
        for (int i = 0; i < ROW_TILES; ++i) places[i] = metadata.places[i];
        lds_barrier();
        if (step + 1 < steps) {
            value_copy.load();
            x_copy.load();
            metadata.load();
        }
        multiply_from<0>(sum, value_tile + (row + row_of_lane()) * VALUE_PITCH + group_of_lane() * (TILE_K / GROUPS),
                         x_tile + (col + lane_column()) * X_PITCH + group_of_lane() * (TILE_K / GROUPS) * 2, places);
    }
    for (int i = 0; i < ROW_TILES; ++i) {
        const int n = tile.row + row + i * 16 + lane_part() * SUMS;
        float added[SUMS] = {};
        for (int e = 0; HAS_BIAS && e < SUMS; ++e) added[e] = n + e < columns ? to_float(bias[n + e]) : 0.0f;
        for (int j = 0; j < COL_TILES; ++j) {
            const int m = tile.col + col + j * 16 + lane_column();
            if (m >= rows) continue;
            T* to = y + static_cast<int64_t>(m) * columns + n;
            if (n + SUMS <= columns) {
                words<SUMS * 2> line;
                for (int e = 0; e < SUMS; e += 2)
                    line.w[e / 2] = pack2<T>(sum[i][j][e] + added[e], sum[i][j][e + 1] + added[e + 1]);
                __builtin_memcpy(to, &line, sizeof line);
            } else {
                for (int e = 0; e < SUMS; ++e)
                    if (n + e < columns) to[e] = from_float<T>(sum[i][j][e] + added[e]);
            }
        }
    }
}
