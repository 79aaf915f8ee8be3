// A few queries against a long cache of keys and values in pages, with warp-wide matrix instructions.
//
// A block takes one chunk of one sequence's keys, one key head, and up to 16 rows: queries times the heads that share
// the key head. Each warp walks tiles of 16 keys of its own: copies (cp.async), softmax and sums need no other warp, and
// no barrier, until the chunk ends. Then the warps' sums are added up in order.
//
// Defines: ELEMENT (bf16 or f16); D, E: head sizes, multiples of 8; PAGE: keys of a page, a multiple of 16; WARPS,
// STAGES; CHUNK: the fewest keys of a chunk; LEFT, RIGHT, CAP: whether there are such bounds.
#include "prelude.h"

using T = ELEMENT;
constexpr int ROWS = 16;
constexpr int TILE = 16;
constexpr int PADDED_D = (D + 15) / 16 * 16;
constexpr int PADDED_E = (E + 15) / 16 * 16;
constexpr int K_PITCH = PADDED_D * 2 + 16;  // an odd number of 16-byte chunks: eight lines in different banks
constexpr int V_PITCH = PADDED_E * 2 + 16;
constexpr int STAGE_BYTES = TILE * (K_PITCH + V_PITCH);
constexpr int RING_BYTES = STAGES * STAGE_BYTES;
constexpr int SUMS_PITCH = PADDED_E + 4;
static_assert(RING_BYTES >= ROWS * SUMS_PITCH * 4, "a warp's sums take the place of its tiles");
constexpr int ALIGN = 128;  // a chunk begins at a multiple of it

DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
DEVICE void copy_async(uint32_t to, const void* from, int valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> DEVICE void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
DEVICE void load_matrices(uint32_t (&w)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(address) : "memory");
}
DEVICE void load_transposed(uint32_t (&w)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(address) : "memory");
}
template <class Type> struct Product;
#define PRODUCT(TYPE, NAME)                                                                                       \
    template <> struct Product<TYPE> {                                                                            \
        static DEVICE void add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {                 \
            asm("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 {%0, %1, %2, %3}, "                  \
                "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                                   \
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                  \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                  \
        }                                                                                                         \
    }
PRODUCT(bf16, "bf16");
PRODUCT(f16, "f16");

struct Cache {
    const T *k, *v;
    int64_t k_page, k_row, v_page, v_row;
    const int32_t* table;
    int pages;
};

// The page of the tile that starts at key n, brought within the cache.
DEVICE int page_of(const Cache& cache, int n, int end) {
    const int page = n < end ? cache.table[n / PAGE] : 0;
    return page < 0 ? 0 : page < cache.pages ? page : cache.pages - 1;
}

// Copies LINE elements of 16 rows into lines PITCH bytes apart; rows from `rows` on become zeros, and so does what is
// behind a line.
template <int LINE, int PADDED, int PITCH>
DEVICE void copy_tile(uint32_t to, const T* from, int64_t row_stride, int rows, int lane) {
    constexpr int CHUNKS = PADDED / 8;
#pragma unroll
    for (int i = 0; i < CHUNKS * TILE / 32; ++i) {
        const int index = i * 32 + lane;
        const int row = index / CHUNKS, chunk = index % CHUNKS;
        const bool inside = row < rows && chunk * 8 < LINE;
        copy_async(to + row * PITCH + chunk * 16, inside ? from + row * row_stride + chunk * 8 : from, inside ? 16 : 0);
    }
}

DEVICE void copy_keys(uint32_t stage, const Cache& cache, int page, int n, int end, int lane) {
    const int slot = n % PAGE;
    const int rows = end - n;
    copy_tile<D, PADDED_D, K_PITCH>(stage, cache.k + page * cache.k_page + slot * cache.k_row, cache.k_row, rows, lane);
    copy_tile<E, PADDED_E, V_PITCH>(stage + TILE * K_PITCH, cache.v + page * cache.v_page + slot * cache.v_row,
                                    cache.v_row, rows, lane);
}

DEVICE float quad_max(float x) {
    x = math_max_number(x, shuffle_xor(x, 1));
    return math_max_number(x, shuffle_xor(x, 2));
}
DEVICE float quad_sum(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}
DEVICE float finite_or_zero(float m) { return m == -INF_F ? 0.0f : m; }

KERNEL(WARPS * 32)
void attention_decode(const T* q, int64_t q_batch, int64_t q_head, int64_t q_row, const T* k, int64_t k_page, int64_t k_head,
                 int64_t k_row, const T* v, int64_t v_page, int64_t v_head, int64_t v_row, const int32_t* table,
                 int64_t table_row, const int32_t* lens, float* parts, float* tops, float* totals, int capacity,
                 int pages, int queries, int share, int tiles, int heads, int slots, int most, int left, int right,
                 float scale, float cap) {
    DYNAMIC_SHARED(memory);
    const int lane = thread_x() % 32, warp = thread_x() / 32;
    int index = block_x();
    const int g = index % heads;
    index /= heads;
    const int tile = index % tiles;
    index /= tiles;
    const int c = index % slots, z = index / slots;

    int length = lens[z];
    length = length < 0 ? 0 : length < capacity ? length : capacity;
    int first = 0;
    if (LEFT) {
        first = length - queries - left;
        first = first < 0 ? 0 : first < length ? first : length;
        first = first / ALIGN * ALIGN;
    }
    int chunk = ((length - first + most - 1) / most + ALIGN - 1) / ALIGN * ALIGN;
    chunk = chunk < CHUNK ? CHUNK : chunk;
    const int begin = first + c * chunk;
    if (begin >= length) return;
    const int end = length - begin < chunk ? length : begin + chunk;

    // This lane's rows of the tile, as the matrix instructions have them: lane / 4 and that plus 8.
    const T* q_base = q + z * q_batch;
    int query[2];
    const T* row_of[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = tile * ROWS + lane / 4 + i * 8;
        query[i] = row / share;
        row_of[i] = query[i] < queries ? q_base + query[i] * q_row + (g * share + row % share) * q_head : nullptr;
    }
    uint32_t rows[PADDED_D / 16][4];
#pragma unroll
    for (int step = 0; step < PADDED_D / 16; ++step)
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const int column = step * 16 + w / 2 * 8 + lane % 4 * 2;
            rows[step][w] = row_of[w % 2] != nullptr && column < D
                                ? *reinterpret_cast<const uint32_t*>(row_of[w % 2] + column) : 0;
        }

    const Cache cache{k + g * k_head, v + g * v_head, k_page, k_row, v_page, v_row, table + z * table_row, pages};
    const uint32_t ring = shared_address(memory) + warp * RING_BYTES;
    const int k_lane = (lane / 16 * 8 + lane % 8) * K_PITCH + lane / 8 % 2 * 16;
    const int v_lane = TILE * K_PITCH + lane % 16 * V_PITCH + lane / 16 * 16;

    float top[2] = {-INF_F, -INF_F}, total[2] = {0.0f, 0.0f};
    float sums[PADDED_E / 8][4];
#pragma unroll
    for (int i = 0; i < PADDED_E / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = 0.0f;

    constexpr int STEP = WARPS * TILE;
    int ahead = begin + warp * TILE;
    int page = page_of(cache, ahead, end);
    int fill = 0, drain = 0;
    const auto copy_next = [&]() {
        if (ahead < end) copy_keys(ring + fill * STAGE_BYTES, cache, page, ahead, end, lane);
        commit_copies();
        fill = fill + 1 == STAGES ? 0 : fill + 1;
        ahead += STEP;
        page = page_of(cache, ahead, end);
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) copy_next();

    for (int n = begin + warp * TILE; n < end; n += STEP) {
        wait_copies<STAGES - 2>();
        __syncwarp();
        copy_next();
        const uint32_t stage = ring + drain * STAGE_BYTES;
        drain = drain + 1 == STAGES ? 0 : drain + 1;

        float s[2][2][4] = {};  // two sums each, so that the instructions do not wait for one another
#pragma unroll
        for (int step = 0; step < PADDED_D / 16; ++step) {
            uint32_t b[4];
            load_matrices(b, stage + k_lane + step * 32);
            Product<T>::add(s[0][step % 2], rows[step], b[0], b[1]);
            Product<T>::add(s[1][step % 2], rows[step], b[2], b[3]);
        }
        float scores[2][4];
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float score = (s[half][0][j] + s[half][1][j]) * scale;
                if (CAP) score = cap * (1.0f - 2.0f / (1.0f + exp2_fast(score)));
                scores[half][j] = score;
            }
        if (LEFT || RIGHT || n + TILE > end) {
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int key = n + half * 8 + lane % 4 * 2 + j % 2;
                    const int last = length - queries + query[j / 2];
                    bool seen = key < end;
                    if (RIGHT) seen = seen && key <= last + right;
                    if (LEFT) seen = seen && key >= last - left;
                    if (!seen) scores[half][j] = -INF_F;
                }
        }
        float shrink[2];
        bool grows = false;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float most_here = math_max_number(math_max_number(scores[0][2 * i], scores[0][2 * i + 1]),
                                                    math_max_number(scores[1][2 * i], scores[1][2 * i + 1]));
            const float higher = math_max_number(top[i], quad_max(most_here));
            const float base = finite_or_zero(higher);
            grows = grows || higher > top[i];
            shrink[i] = exp2_fast(top[i] - base);
            top[i] = higher;
            float sum = 0.0f;
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const float p = exp2_fast(scores[half][2 * i + j] - base);
                    scores[half][2 * i + j] = p;
                    sum += p;
                }
            total[i] = total[i] * (top[i] == -INF_F ? 1.0f : shrink[i]) + sum;
        }
        if (__any_sync(0xffffffffu, grows)) {
#pragma unroll
            for (int i = 0; i < PADDED_E / 8; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) sums[i][j] *= shrink[j / 2];
        }
        const uint32_t p[4] = {pack2<T>(scores[0][0], scores[0][1]), pack2<T>(scores[0][2], scores[0][3]),
                               pack2<T>(scores[1][0], scores[1][1]), pack2<T>(scores[1][2], scores[1][3])};
#pragma unroll
        for (int step = 0; step < PADDED_E / 16; ++step) {
            uint32_t b[4];
            load_transposed(b, stage + v_lane + step * 32);
            Product<T>::add(sums[2 * step], p, b[0], b[1]);
            Product<T>::add(sums[2 * step + 1], p, b[2], b[3]);
        }
    }

    // The warps' sums, [row][column], in the place of their tiles.
    wait_copies<0>();
    __syncwarp();
    float* own = reinterpret_cast<float*>(memory + warp * RING_BYTES);
#pragma unroll
    for (int i = 0; i < PADDED_E / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            own[(lane / 4 + j / 2 * 8) * SUMS_PITCH + i * 8 + lane % 4 * 2 + j % 2] = sums[i][j];
    SHARED float warp_top[WARPS][ROWS], warp_total[WARPS][ROWS];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float sum = quad_sum(total[i]);
        if (lane % 4 == 0) {
            warp_top[warp][lane / 4 + i * 8] = top[i];
            warp_total[warp][lane / 4 + i * 8] = sum;
        }
    }
    barrier();
    const int left_rows = queries * share - tile * ROWS;
    const int count = (left_rows < ROWS ? left_rows : ROWS) * E;
    for (int i = thread_x(); i < count; i += WARPS * 32) {
        const int row = i / E, column = i % E;
        float highest = -INF_F;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) highest = math_max_number(highest, warp_top[w][row]);
        const float base = finite_or_zero(highest);
        float sum = 0.0f, divisor = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float weight = exp2_fast(warp_top[w][row] - base);
            sum += weight * reinterpret_cast<const float*>(memory + w * RING_BYTES)[row * SUMS_PITCH + column];
            divisor += weight * warp_total[w][row];
        }
        const int number = (tile * ROWS + row) / share, head = g * share + (tile * ROWS + row) % share;
        const int64_t at = (static_cast<int64_t>(z) * (heads * share) + head) * queries + number;
        parts[(at * slots + c) * E + column] = sum;
        if (column == 0) {
            tops[at * slots + c] = highest;
            totals[at * slots + c] = divisor;
        }
    }
}
