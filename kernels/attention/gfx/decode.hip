// A few queries against a long cache of keys and values in pages, on AMD's matrix units.
//
// A block takes one chunk of one sequence's keys, one key head, and up to 16 columns: queries times the heads
// that share the key head. Each of its waves walks tiles of DEPTH keys of its own and needs no other wave
// until the chunk ends; then the waves' sums are added in order.
//
// Keys and values are read once, so they go from memory to the operands' registers without a stay in LDS.
// Scores are computed transposed, keys by columns (fragment.h). For o^T = v^T p^T a lane needs several
// keys' values of one column of v: it loads up to 16 neighbouring bytes of each key's row and exchanges
// halves of words among its own registers. Which column of v a line of the product stands for follows from
// that.
//
// Scores are powers of two: `scale` (and `cap`) hold log2(e).
//
// Defines: T (bf16, f16); D, E: head sizes; PAGE: keys of a page, 0 where a sequence's keys lie in rows;
// CHUNK, LEFT (kv_splits.h); RIGHT: whether the window's right side hides keys; CAP: whether there is one.
#include "attention/device/kv_splits.h"
#include "online_softmax.h"

constexpr int WAVES = 4;
constexpr int THREADS = WAVES * WARP;
constexpr int STEPS = (D + DEPTH - 1) / DEPTH;
constexpr int V_TILES = (E + 15) / 16;  // of 16 columns of v
constexpr int HELD = sizeof(fragment) / 2;  // keys whose values a lane holds
constexpr bool FEW_REGISTERS = WARP == 32 && V_TILES > 8;  // the sums take half of them
constexpr int PAGE_KEYS = PAGE == 0 ? 1 : PAGE;
constexpr int GRAIN = PAGE % RUN == 0 ? RUN : 1;  // keys, from a multiple of it on, that lie in one page

// --- where keys and values lie ---

struct Heads {
    const T* data;
    int64_t page, row;

    DEVICE const T* at(int page_number, int key) const {
        return PAGE == 0 ? data + key * row : data + page_number * page + key % PAGE_KEYS * row;
    }
};

// The pages of the keys that a lane loads of a tile. Behind `end` the last key before it is loaded once more.
struct Pages {
    int of_keys[TILES], of_values[HELD / GRAIN];
};

struct Cache {
    Heads k, v;
    const int32_t* table;
    int pages, end;

    static DEVICE int key_row(int tile) { return row_of_lane(tile); }
    static DEVICE int value_row(int i) { return i + (HELD == RUN ? lane_part() * RUN : 0); }

    DEVICE int exists(int key) const { return min(key, end - 1); }

    // Brought within the cache.
    DEVICE int page_of(int key) const {
        const int page = table[exists(key) / PAGE_KEYS];
        return page < 0 ? 0 : min(page, pages - 1);
    }

    DEVICE Pages look_up(int n) const {
        Pages found = {};
        if (PAGE != 0) {
            for (int i = 0; i < TILES; ++i) {
                found.of_keys[i] = page_of(n + key_row(i));
            }
            for (int i = 0; i < HELD / GRAIN; ++i) {
                found.of_values[i] = page_of(n + value_row(i * GRAIN));
            }
        }
        return found;
    }
};

// --- the product with keys ---

// Queries in LDS as the second operand takes them: chunks of 16 bytes, 16 columns side by side.
constexpr int Q_CHUNKS = STEPS * DEPTH / RUN;

DEVICE Columns fetch_queries(const char* queries, int step) {
    const char* const from = queries + (step * (DEPTH / RUN) * COLUMNS + lane_column()) * 16;
#if defined(__GFX11__)
    const vec<words<16>, 2> both = {{load_words<16>(from), load_words<16>(from + COLUMNS * 16)}};
    return {__builtin_bit_cast(fragment, both)};
#else
    return {load_words<16>(from + lane_part() * COLUMNS * 16)};
#endif
}

// Steps whose keys are in registers at once.
constexpr int SLICE = (FEW_REGISTERS ? 128 : 256) / sizeof(Rows);

DEVICE Strip score(const Cache& cache, const Pages& pages, int n, const char* queries) {
    const T* rows[TILES];
    for (int i = 0; i < TILES; ++i) {
        rows[i] = cache.k.at(pages.of_keys[i], cache.exists(n + Cache::key_row(i)));
    }
    Strip sums;
    sums.fill(0.0f);
#pragma unroll
    for (int first = 0; first < STEPS; first += SLICE) {
        Rows keys[SLICE];
#pragma unroll
        for (int i = 0; i < SLICE && first + i < STEPS; ++i) {
            for (int tile = 0; tile < TILES; ++tile) {
                const int d = (first + i) * DEPTH;
                keys[i].tile[tile] = columns_from(rows[tile], d, D - d).tile;
            }
        }
#pragma unroll
        for (int i = 0; i < SLICE && first + i < STEPS; ++i) {
            multiply<T>(sums, keys[i], fetch_queries(queries, first + i));
        }
    }
    return sums;
}

// --- the product with values ---

// The line of a tile of values that a lane loads, and the one that it holds the sum `i` of.
DEVICE int own_line() { return row_of_lane(0) / RUN * TILE_RUN + row_of_lane(0) % RUN; }
DEVICE int line_of_sum(int i) { return lane_part() * TILE_RUN + i; }

// How many tiles are loaded at once, from `tile` on: line l stands for as many columns, from l * width on.
constexpr int width_from(int tile) {
    const int columns = E - tile * 16;
    return columns >= 128 && !FEW_REGISTERS ? 8 : columns >= 64 ? 4 : columns >= 32 ? 2 : 1;
}

template <int WIDTH> DEVICE words<(WIDTH > 1 ? WIDTH * 2 : 4)> load_neighbours(const T* from) {
    if constexpr (WIDTH > 1) {
        return load_unaligned<WIDTH * 2>(from);
    } else {
        return {{from->bits}};
    }
}

// The lower (0) or upper (1) halves of two words.
DEVICE uint32_t halves(uint32_t low, uint32_t high, int which) {
    return __builtin_amdgcn_perm(high, low, which == 0 ? 0x05040100u : 0x07060302u);
}

using Sums = accumulators[V_TILES];

template <int TILE> DEVICE void add_values(Sums& sums, const T* const (&rows)[HELD], const Columns& weights) {
    constexpr int WIDTH = width_from(TILE);
    const int column = TILE * 16 + own_line() * WIDTH;
    decltype(load_neighbours<WIDTH>(nullptr)) held[HELD];
    for (int i = 0; i < HELD; ++i) {
        held[i] = load_neighbours<WIDTH>(rows[i] + (WIDTH > 1 ? column : min(column, E - 1)));
    }
#pragma unroll
    for (int f = 0; f < WIDTH; ++f) {
        fragment values;
        for (int i = 0; i < HELD / 2; ++i) {
            values.w[i] = halves(held[2 * i].w[f / 2], held[2 * i + 1].w[f / 2], f % 2);
        }
        sums[TILE + f] = multiply_tile<T>(values, weights.tile, sums[TILE + f]);
    }
    if constexpr (TILE + WIDTH < V_TILES) {
        add_values<TILE + WIDTH>(sums, rows, weights);
    }
}

// --- a block's place, and its sums ---

struct Place {
    int64_t z;
    int g, tile, chunk;
    int heads, share, queries, slots;

    // Heads of one token lie side by side.
    DEVICE Place(int index, int tiles, int heads, int share, int queries, int slots)
        : heads(heads), share(share), queries(queries), slots(slots) {
        g = index % heads;
        tile = index / heads % tiles;
        chunk = index / heads / tiles % slots;
        z = index / heads / tiles / slots;
    }
    DEVICE int row(int column) const { return tile * COLUMNS + column; }
    DEVICE int query(int column) const { return row(column) / share; }
    DEVICE int head(int column) const { return g * share + row(column) % share; }
    DEVICE int columns() const { return min(queries * share - tile * COLUMNS, COLUMNS); }
    // Of partial results [z, head, query, slots].
    DEVICE int64_t slot(int column) const {
        return ((z * (heads * share) + head(column)) * queries + query(column)) * slots + chunk;
    }
};

constexpr int PIECE = 4;  // tiles whose sums are added up at once
typedef float Board[WAVES][COLUMNS][PIECE * 16 + 4];

// Stores what the waves' sums add up to, in order of the waves; this wave's are `weight` worth.
template <int TILE>
DEVICE void store_sums(const Sums& sums, float weight, int wave, Board& board, const Place& place,
                       float* parts) {
    constexpr int WIDTH = width_from(TILE);
    constexpr int AT_ONCE = WIDTH < PIECE ? WIDTH : PIECE;
    constexpr int COUNT = AT_ONCE * 16;
#pragma unroll
    for (int first = 0; first < WIDTH; first += AT_ONCE) {
        lds_barrier();
#pragma unroll
        for (int i = 0; i < TILE_RUN; ++i) {
            for (int f = 0; f < AT_ONCE; ++f) {
                board[wave][lane_column()][line_of_sum(i) * AT_ONCE + f] = sums[TILE + first + f][i] * weight;
            }
        }
        lds_barrier();
        for (int index = thread_x(); index < place.columns() * COUNT; index += THREADS) {
            const int row = index / COUNT, at = index % COUNT;
            const int column = TILE * 16 + at / AT_ONCE * WIDTH + first + at % AT_ONCE;
            float sum = 0.0f;
            for (int w = 0; w < WAVES; ++w) {
                sum += board[w][row][at];
            }
            if (column < E) {
                parts[place.slot(row) * E + column] = sum;
            }
        }
    }
    if constexpr (TILE + WIDTH < V_TILES) {
        store_sums<TILE + WIDTH>(sums, weight, wave, board, place, parts);
    }
}

// --- the softmax ---

// Which keys this lane's query sees: low <= key <= high.
struct Window {
    int low, high;
};

DEVICE void finish_scores(float (&scores)[RUN], const Strip& products, Window window, int n, float scale,
                          float cap) {
    for (int i = 0; i < RUN; ++i) {
        scores[i] = products.get(i) * scale;
        if (CAP) {
            scores[i] = cap * (1.0f - 2.0f * rcp_fast(1.0f + exp2_flushed(scores[i])));
        }
    }
    for (int i = 0; i < RUN; ++i) {
        const int key = n + lane_part() * RUN + i;
        if (key > window.high || (LEFT && key < window.low)) {
            scores[i] = -INF_F;
        }
    }
}

KERNEL_RESIDENT(THREADS, 2)
void attention_decode(const T* q, int64_t q_batch, int64_t q_head, int64_t q_row, const T* k, int64_t k_page,
                      int64_t k_head, int64_t k_row, const T* v, int64_t v_page, int64_t v_head,
                      int64_t v_row, const int32_t* table, int64_t table_row, const int32_t* lens,
                      float* parts, float* tops, float* totals, int capacity, int queries, int slots,
                      int most, int left, int pages, int share, int tiles, int heads, int right, float scale,
                      float cap) {
    SHARED __attribute__((aligned(16))) char q_tile[Q_CHUNKS * COLUMNS * 16];
    SHARED __attribute__((aligned(16))) Board board;
    SHARED float wave_tops[WAVES][COLUMNS], wave_totals[WAVES][COLUMNS];
    const int wave = __builtin_amdgcn_readfirstlane(thread_x() / WARP);
    const Place place(block_x(), tiles, heads, share, queries, slots);
    const int length = length_of(lens, place.z, capacity);
    const Chunks chunks(length, queries, left, most);
    if (place.chunk >= chunks.count) {
        return;
    }
    const int begin = chunks.first + place.chunk * chunks.size;
    const int end = min(length - begin, chunks.size) + begin;

    q += place.z * q_batch;
    for (int id = thread_x(); id < Q_CHUNKS * COLUMNS; id += THREADS) {
        const int column = id % COLUMNS, d = id / COLUMNS * RUN;
        words<16> chunk = {};
        if (column < place.columns()) {
            chunk = load_bounded<16>(q + place.query(column) * q_row + place.head(column) * q_head + d, D - d);
        }
        store_words<16>(q_tile + id * 16, chunk);
    }
    lds_barrier();

    k += place.g * k_head;
    v += place.g * v_head;
    if (PAGE == 0) {
        k += place.z * k_page;
        v += place.z * v_page;
    } else {
        table += place.z * table_row;
    }
    const Cache cache{{k, k_page, k_row}, {v, v_page, v_row}, table, pages, end};
    const int last = length - queries + place.query(lane_column());  // the query's own key
    const Window window{last - left, RIGHT ? min(last + right, end - 1) : end - 1};

    Softmax softmax;
    Sums sums;
    for (int tile = 0; tile < V_TILES; ++tile) {
        sums[tile] = 0.0f;
    }
    int q_offset = 0;
    Pages ahead = cache.look_up(begin + wave * DEPTH);  // a turn before: loads would wait for a load
    for (int n = begin + wave * DEPTH; n < end; n += WAVES * DEPTH) {
        asm("" : "+v"(q_offset));  // or the compiler keeps all queries in registers
        const Pages here = ahead;
        ahead = cache.look_up(n + WAVES * DEPTH);
        float scores[RUN];
        finish_scores(scores, score(cache, here, n, q_tile + q_offset), window, n, scale, cap);
        float highest = scores[0];
        for (int i = 1; i < RUN; ++i) {
            highest = math_max_number(highest, scores[i]);
        }
        const float factor = softmax.move(highest);
        for (int tile = 0; tile < V_TILES; ++tile) {
            sums[tile] *= factor;
        }
        const float base = base_of(softmax.top);
        for (int i = 0; i < RUN; ++i) {
            scores[i] = exp2_flushed(scores[i] - base);
            softmax.total += scores[i];
        }
        const T* rows[HELD];
        for (int i = 0; i < HELD; ++i) {
            rows[i] = cache.v.at(here.of_values[i / GRAIN], cache.exists(n + Cache::value_row(i)));
        }
        add_values<0>(sums, rows, as_columns<T>(scores));
    }

    const float total = column_sum(softmax.total);
    if (lane_part() == 0) {
        wave_tops[wave][lane_column()] = softmax.top;
        wave_totals[wave][lane_column()] = total;
    }
    lds_barrier();
    float highest = -INF_F, all = 0.0f;
    for (int w = 0; w < WAVES; ++w) {
        highest = math_max_number(highest, wave_tops[w][lane_column()]);
    }
    const float base = base_of(highest);
    for (int w = 0; w < WAVES; ++w) {
        all += exp2_flushed(wave_tops[w][lane_column()] - base) * wave_totals[w][lane_column()];
    }
    if (thread_x() < place.columns()) {
        tops[place.slot(thread_x())] = highest;
        totals[place.slot(thread_x())] = all;
    }
    store_sums<0>(sums, exp2_flushed(softmax.top - base), wave, board, place, parts);
}
