// q and a scale of each column of x, as rows, from one read of x (sm_90): a cluster of BLOCKS blocks holds a strip of GROUP
// columns in its registers, CHUNKS tiles of TALL rows a block, and its blocks tell each other the greatest magnitudes of their
// rows. T has 16 bits; x and rows of q lie in vectors of 16 bytes. LANES = GROUP_LANES side by side.
#include "quantize.h"

#include "_lib/ptx/cluster.h"
#include "_lib/ptx/shared_address.h"

static_assert(LANES == GROUP_LANES && LANES == 8 && NARROW && VEC == 8 && !STRIDED, "a row of the strip is 8 vectors");
constexpr int WORDS = VEC / 2;              // of a lane's vector
constexpr int TILES = CHUNKS;
constexpr int QUAD = 4;                     // rows of a lane in a tile: a word of codes in each column
constexpr int TALL = ROWS * QUAD;
constexpr int PIECES = TALL / 16;           // of 16 bytes, of a column's codes in a tile
constexpr int COLUMN_WORDS = GROUP / 2;     // greatest magnitudes of a block, two columns in a word

static_assert(PIECES % 8 == 0 && THREADS % PIECES == 0 && GROUP % (THREADS / PIECES) == 0, "a thread stores one piece of columns");

// Where a piece lies in its column, by the lane that has the column: neither the lanes of a warp, each with 8 columns, nor the
// readers of a column meet in a bank.
DEVICE int piece_place(int column, int piece) { return piece ^ (column / VEC & 7); }

#if BLOCKS > 1
#define TOGETHER __cluster_dims__(BLOCKS, 1, 1)
#else
#define TOGETHER
#endif

KERNEL(THREADS) TOGETHER
void quantize_columns_once(const T* x, uint8_t* q, float* scale, int64_t height, int64_t length, int64_t x_stride, int across,
                           float eps) {
    enter_pdl();
    SHARED words<16> codes[2][GROUP][PIECES];
    SHARED uint32_t of_warp[WARPS][COLUMN_WORDS];
    SHARED uint32_t of_block[COLUMN_WORDS];
    SHARED float inverse_of[GROUP];
    const unsigned strip = static_cast<unsigned>(block_x()) / BLOCKS;
    const unsigned matrix = strip / static_cast<unsigned>(across);
    const int64_t first = static_cast<int64_t>(strip - matrix * across) * GROUP;
    const int64_t top = static_cast<int64_t>(BLOCKS == 1 ? 0 : cluster_rank()) * TILES * TALL;
    const int lane = group_lane();
    const int rows = static_cast<int>(height - top < TILES * TALL ? height - top : TILES * TALL);    // of the block; 0 or less: none
    const int own = first + lane * VEC < length ? rows - row_slot() * QUAD : 0;                      // from the lane's first on
    const T* source = x + (matrix * height + top + row_slot() * QUAD) * x_stride + first + lane * VEC;

    Vector<T, VEC> held[TILES][QUAD];
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
        const T* tile = source + t * TALL * x_stride;
#pragma unroll
        for (int r = 0; r < QUAD; ++r) {
            held[t][r].clear();
            if (t * TALL + r < own) held[t][r].load_streaming(tile);
            tile += x_stride;
        }
    }
    uint32_t most[WORDS] = {};
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
        for (int r = 0; r < QUAD; ++r) {
#pragma unroll
            for (int i = 0; i < WORDS; ++i) most[i] = Greatest::of(most[i], held[t][r].word(i) & MAGNITUDE);
        }
    }
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
#pragma unroll
        for (int mask = LANES; mask < WARP; mask *= 2) {
            most[i] = Greatest::of(most[i], static_cast<uint32_t>(shuffle_xor(static_cast<int>(most[i]), mask)));
        }
        if (warp_lane() < LANES) of_warp[warp_index()][lane * WORDS + i] = most[i];
    }
    barrier();
    if (thread_x() < COLUMN_WORDS) {
        uint32_t all = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) all = Greatest::of(all, of_warp[warp][thread_x()]);
        of_block[thread_x()] = all;
    }
    if constexpr (BLOCKS > 1) cluster_sync();
    if (thread_x() < COLUMN_WORDS) {
        uint32_t all = of_block[thread_x()];
        if constexpr (BLOCKS > 1) {
#pragma unroll
            for (int rank = 0; rank < BLOCKS; ++rank) {
                uint32_t other;
                asm volatile("ld.shared::cluster.u32 %0, [%1];"
                             : "=r"(other)
                             : "r"(map_shared_rank(shared_address(&of_block[thread_x()]), rank)));
                all = Greatest::of(all, other);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int column = 2 * thread_x() + i;
            const float whole = scale_of(amax_of<T>(all >> (16 * i) & 0xffffu), eps);
            inverse_of[column] = div_rn(1.0f, whole);
            if (top == 0 && first + column < length) scale[matrix * length + first + column] = whole;
        }
    }
    if constexpr (BLOCKS > 1) cluster_arrive_relaxed();    // no block ends before all have read
    barrier();
    float inverse[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) inverse[i] = inverse_of[lane * VEC + i];
    // A thread stores the same piece of every COLUMNS-th column.
    constexpr int COLUMNS = THREADS / PIECES;
    const int piece = thread_x() & (PIECES - 1);
    const int column = static_cast<unsigned>(thread_x()) / PIECES;
    const int64_t columns = length - first;
    const int right = static_cast<int>(columns < GROUP ? columns : GROUP);
    uint8_t* target = q + (matrix * length + first + column) * height + top + piece * 16;
    const int64_t step = COLUMNS * height;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
        if (t * TALL >= rows) break;
        auto& found = codes[t & 1];    // the readers of its last codes have passed a barrier since
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const int of = lane * VEC + i;
            found[of][piece_place(of, row_slot() / 4)].w[row_slot() % 4] =
                encode4<Format>(held[t][0][i] * inverse[i], held[t][1][i] * inverse[i], held[t][2][i] * inverse[i],
                                held[t][3][i] * inverse[i]);
        }
        barrier();
        if (t * TALL + piece * 16 < rows) {
            uint8_t* to = target + t * TALL;
#pragma unroll
            for (int i = 0; i < GROUP / COLUMNS; ++i) {
                const int of = column + i * COLUMNS;
                if (of < right) store_global(to, found[of][piece_place(of, piece)]);
                to += step;
            }
        }
    }
    if constexpr (BLOCKS > 1) cluster_wait();
}
