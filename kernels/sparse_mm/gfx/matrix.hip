// y = x @ w.T + bias of a weight with 2:4 sparsity by AMD's matrix instructions; operands of any alignment. gfx942 has
// sparse ones (SMFMAC); elsewhere a lane makes the four elements of each two values in registers, for MFMA or WMMA
// (products.h). A and B are swapped: the weight's rows are a product's rows and x's rows its columns, and a lane's
// accumulators are neighbours of a row of y.
//
// A block computes TILE_N columns of y of TILE_M rows, in steps of 128 bytes of a row of x along k, whose tiles go through
// registers to LDS while the step before is multiplied. An operand's lanes are in GROUPS groups along k, each of which has
// neighbouring k of the step; a product takes the next RUN of them. A lane's metadata are bytes of a row as they lie in
// memory; SMFMAC's ABID names those of a product.
//
// Codes (sparse_scaled_mm): y = ((x @ w.T) * scale_x * scale_w) + bias, with a scale for each row of both. Where they are
// multiplied as fnuz codes, a NaN found in a row makes its scale NaN.
//
// -DELEMENT (products.h) -DRESULT: y's and bias' type. -DTILE_N -DTILE_M -DWAVES_N -DWAVES_M -DGROUP_N -DHAS_BIAS.
// -DALIGNED=1: rows of x and of values begin and end at multiples of 16 bytes. -DMETA_UNIT: rows of metadata at these.
#include "prelude.h"

#include "_lib/amdgcn/ocp_as_fnuz.h"
#include "matmul/tile.h"
#include "products.h"

using R = RESULT;
constexpr int THREADS = WAVES_N * WAVES_M * WARP;
constexpr int WAVE_N = TILE_N / WAVES_N, WAVE_M = TILE_M / WAVES_M;
constexpr int ROW_TILES = WAVE_N / 16, COL_TILES = WAVE_M / 16;  // of products: rows of the weight, rows of x
constexpr int SIZE = sizeof(T), CHUNK = 16 / SIZE;               // elements of 16 bytes in LDS
constexpr int TILE_K = 128 / SIZE, META = TILE_K / 8;            // k of a step, and its bytes of metadata
constexpr int VALUE_CHUNKS = 4, X_CHUNKS = 8;                    // of 16 bytes, in a row of a tile
constexpr int VALUE_PITCH = VALUE_CHUNKS * 16 + 16, X_PITCH = X_CHUNKS * 16 + 16;  // bytes: rows begin at other banks
constexpr int VALUE_RUN = sizeof(run_values), X_RUN = sizeof(run_elements);
constexpr int PRODUCTS = TILE_K / GROUPS / RUN;
constexpr int SUMS = sizeof(accumulators) / sizeof(float);  // of a lane: the rows from SUMS * (lane / 16) on
static_assert(TILE_N * VALUE_CHUNKS % THREADS == 0 && TILE_M * X_CHUNKS % THREADS == 0, "threads divide a tile");

// The row of the weight that a lane holds of a product's 16: gfx11's accumulators are every other row else.
DEVICE int row_of_lane() {
#if defined(__GFX11__)
    return a_row_of_lane(0);
#else
    return lane_column();
#endif
}
DEVICE int group_of_lane() { return GROUPS == 1 ? 0 : lane_part(); }

typedef words<CHUNK * sizeof(Element)> chunk_elements;  // in memory

// The bfloat16 numbers of eight codes.
DEVICE words<16> decoded(words<8> codes) {
    words<16> numbers;
    for (int i = 0; i < 4; ++i)
        numbers.w[i] = decode_pair<bf16, E4m3>(codes.w[i / 2] >> i % 2 * 16 & 0xffffu);
    return numbers;
}

// A tile of ROWS rows of CHUNKS chunks: from memory into registers, and from there to LDS. Rows beyond the matrix repeat
// its last; elements beyond a row's end are zeros.
template <int ROWS, int CHUNKS, int PITCH> struct Copy {
    static constexpr int COUNT = ROWS * CHUNKS / THREADS, LINES = THREADS / CHUNKS;

    const Element* from[COUNT];
    chunk_elements held[COUNT];
    uint32_t found[COUNT] = {};  // not_finite's, of a row
    int left;                    // elements of the row from the thread's chunk on

    static DEVICE int line(int i) { return thread_x() / CHUNKS + i * LINES; }

    DEVICE Copy(const Element* base, int64_t pitch, int first, int rows, int length) {
        const int chunk = thread_x() % CHUNKS * CHUNK;
        left = length - chunk;
        for (int i = 0; i < COUNT; ++i) {
            const int row = first + line(i);
            from[i] = base + (row < rows ? row : rows - 1) * pitch + chunk;
        }
    }
    DEVICE void load() {
        for (int i = 0; i < COUNT; ++i) {
#if ALIGNED
            held[i] = load_words<sizeof held[i]>(from[i] + min(left - CHUNK, 0));
            for (uint32_t& word : held[i].w) word = left > 0 ? word : 0;
#else
            held[i] = load_bounded<sizeof held[i]>(from[i], left);
#endif
            from[i] += CHUNKS * CHUNK;
        }
        left -= CHUNKS * CHUNK;
    }
    DEVICE void store(char* to) {
        for (int i = 0; i < COUNT; ++i) {
            char* const at = to + line(i) * PITCH + thread_x() % CHUNKS * 16;
            if constexpr (DECODED) {
                store_words(at, decoded(held[i]));
            } else {
                for (uint32_t& word : held[i].w) {
                    if (AS_FNUZ) found[i] |= not_finite<E4m3>(word);
                    if (AS_FNUZ) word = finite_as_fnuz(word);
                }
                store_words(at, held[i]);
            }
        }
    }
    // Of each row whether a NaN was found in it.
    DEVICE void store_found(int* to) const {
        for (int i = 0; i < COUNT; ++i) {
            int any = (found[i] & SIGNS) != 0;
            for (int mask = 1; mask < CHUNKS; mask *= 2) any |= shuffle_xor(any, mask);
            if (thread_x() % CHUNKS == 0) to[line(i)] = any;
        }
    }
};

// A lane's metadata of each product's row.
struct Metadata {
    using Bytes = Places<TILE_K>;
    static constexpr bool WHOLE = META_UNIT >= Bytes::BYTES;  // a lane's are all there or none, and loaded at once

    const uint8_t* from[ROW_TILES];
    Bytes places[ROW_TILES];
    int left;

    DEVICE Metadata(const uint8_t* meta, int width, int first, int columns) {
        const int at = group_of_lane() * Bytes::BYTES;
        left = width - at;
        for (int i = 0; i < ROW_TILES; ++i) {
            const int row = first + i * 16 + row_of_lane();
            from[i] = meta + static_cast<int64_t>(row < columns ? row : columns - 1) * width + at;
        }
    }
    DEVICE void load() {
        constexpr uint32_t ZEROS = 0x44;  // places 0 and 1, twice
        for (int i = 0; i < ROW_TILES; ++i) {
            if constexpr (WHOLE) {  // beyond the end the row's last, whose values are zeros
                places[i] = {};
                __builtin_memcpy(places[i].word,
                                 __builtin_assume_aligned(from[i] + min(left - Bytes::BYTES, 0), Bytes::BYTES), Bytes::BYTES);
            } else {
                for (int e = 0; e < Bytes::BYTES; ++e) {
                    const uint32_t byte = e < left ? from[i][e] : ZEROS;
                    uint32_t& word = places[i].word[e / 4];
                    word = e % 4 ? word | byte << e % 4 * 8 : byte;
                }
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
                          const Places<TILE_K> (&places)[ROW_TILES]) {
    if constexpr (PRODUCT < PRODUCTS) {
        run_values a[ROW_TILES];
        run_elements b[COL_TILES];
        for (int i = 0; i < ROW_TILES; ++i)
            a[i] = load_shared<VALUE_RUN>(values + i * 16 * VALUE_PITCH + PRODUCT * VALUE_RUN);
        for (int j = 0; j < COL_TILES; ++j) b[j] = load_shared<X_RUN>(x + j * 16 * X_PITCH + PRODUCT * X_RUN);
#pragma unroll
        for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
            for (int j = 0; j < COL_TILES; ++j) sum[i][j] = multiply<PRODUCT>(a[i], b[j], sum[i][j], places[i], T{});
        }
        multiply_from<PRODUCT + 1>(sum, values, x, places);
    }
}

KERNEL(THREADS)
void sparse_mm_matrix(const Element* x, int64_t x_row, const Element* values, const uint8_t* meta, const float* scale_x,
                      int64_t scale_x_step, const float* scale_w, int64_t scale_w_step, const R* bias, R* y, int rows,
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
        Places<TILE_K> places[ROW_TILES];
        for (int i = 0; i < ROW_TILES; ++i) places[i] = metadata.places[i];
        lds_barrier();
        if (step + 1 < steps) {
            value_copy.load();
            x_copy.load();
            metadata.load();
        }
        multiply_from<0>(sum, value_tile + (row + row_of_lane()) * VALUE_PITCH + group_of_lane() * (TILE_K / GROUPS * SIZE / 2),
                         x_tile + (col + lane_column()) * X_PITCH + group_of_lane() * (TILE_K / GROUPS * SIZE), places);
    }
    int* const found = reinterpret_cast<int*>(value_tile);  // NaN, of the tile's rows of the weight, then of x
    if constexpr (AS_FNUZ) {
        lds_barrier();
        value_copy.store_found(found);
        x_copy.store_found(found + TILE_N);
        lds_barrier();
    }
    float scale_m[COL_TILES];
    for (int j = 0; CODES && j < COL_TILES; ++j) {
        const int at = col + j * 16 + lane_column();
        scale_m[j] = scale_x[min(tile.col + at, rows - 1) * scale_x_step];
        if (AS_FNUZ && found[TILE_N + at]) scale_m[j] = __builtin_nanf("");
    }
    for (int i = 0; i < ROW_TILES; ++i) {
        const int at = row + i * 16 + lane_part() * SUMS, n = tile.row + at;
        float added[SUMS] = {}, scale_n[SUMS];
        for (int e = 0; HAS_BIAS && e < SUMS; ++e) added[e] = n + e < columns ? to_float(bias[n + e]) : 0.0f;
        for (int e = 0; CODES && e < SUMS; ++e) {
            scale_n[e] = scale_w[min(n + e, columns - 1) * scale_w_step];
            if (AS_FNUZ && found[at + e]) scale_n[e] = __builtin_nanf("");
        }
        for (int j = 0; j < COL_TILES; ++j) {
            const int m = tile.col + col + j * 16 + lane_column();
            if (m >= rows) continue;
            float result[SUMS];
            for (int e = 0; e < SUMS; ++e) {
                const float product = AS_FNUZ ? sum[i][j][e] * 4.0f : sum[i][j][e];
                result[e] = CODES ? product * scale_m[j] * scale_n[e] : product;
                if (HAS_BIAS) result[e] += added[e];
            }
            R* to = y + static_cast<int64_t>(m) * columns + n;
            if (n + SUMS <= columns) {
                words<SUMS * 2> line;
                for (int e = 0; e < SUMS; e += 2) line.w[e / 2] = pack2<R>(result[e], result[e + 1]);
                __builtin_memcpy(to, &line, sizeof line);
            } else {
                for (int e = 0; e < SUMS; ++e)
                    if (n + e < columns) to[e] = from_float<R>(result[e]);
            }
        }
    }
}
