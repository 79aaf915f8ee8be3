// The gradient of attention's bias on AMD's matrix units: p * (do @ v^T - delta), of TILE queries by TILE keys a block.
//
// Both products take PIECE columns of their rows at a time through LDS, so that heads of any size need the same
// registers. Keys are their rows and queries their columns: a lane has RUN neighbouring keys of a query, 16 bytes of
// bias and of its gradient. Nothing is summed between blocks. What no query sees is not read, and becomes zeros.
//
// Defines: T (bf16, f16); TILE, PIECE; WHOLE_HEADS: whether heads are multiples of PIECE; SOFTCAP.
#define KEYS 0
#define BIAS 1
#include "seqlen_info.h"
#include "softmax_backward.h"
#include "stage.h"

constexpr int STRIPS = 2, GROUPS = 4;  // of a wave: STRIPS * DEPTH keys by GROUPS * COLUMNS queries
constexpr int WAVE_KEYS = STRIPS * DEPTH, WAVE_QUERIES = GROUPS * COLUMNS;
constexpr int THREADS = TILE / WAVE_KEYS * (TILE / WAVE_QUERIES) * WARP;

using Piece = LdsTile<PIECE>;
using Stage = RowStage<T, PIECE, TILE, THREADS>;
using Sight = SightOf<TILE>;

// The block's first query and key, and the wave's in the block. An idle wave's are not there, or see each other not.
struct Corner {
    int query, key, wave_query, wave_key;
    bool idle;
};

struct Sums {
    Strip strip[STRIPS][GROUPS];

    DEVICE Sums() {
        for (auto& strips : strip) {
            for (Strip& each : strips) {
                each.fill(0);
            }
        }
    }
};

DEVICE HeadRows<T> from_column(const HeadRows<T>& rows, int column) {
    return {rows.data + column, rows.step, rows.end, rows.width - column};
}

// Sums += keys * queries^T, of all their columns.
DEVICE void add_products(const HeadRows<T>& queries, const HeadRows<T>& keys, const Corner& at, char* lds, Sums& sums) {
    char* const lds_keys = lds + Piece::bytes(TILE);
    const int columns = queries.width;
    Stage of_queries, of_keys;
    const auto load = [&](int start) {
        of_queries.template load<WHOLE_HEADS>(from_column(queries, start), at.query);
        of_keys.template load<WHOLE_HEADS>(from_column(keys, start), at.key);
    };
    load(0);
#pragma unroll 1
    for (int start = 0; start < columns; start += PIECE) {
        lds_barrier();
        of_queries.store(lds);
        of_keys.store(lds_keys);
        lds_barrier();
        if (start + PIECE < columns) {
            load(start + PIECE);
        }
        if (at.idle) {
            continue;
        }
        int wave_query = at.wave_query, wave_key = at.wave_key;
        asm volatile("" : "+s"(wave_query), "+s"(wave_key));  // found again: addresses take no registers in between
#pragma unroll
        for (int k = 0; k < PIECE; k += DEPTH) {
            if (!WHOLE_HEADS && start + k >= columns) {
                break;
            }
            Columns own[GROUPS];
            for (int g = 0; g < GROUPS; ++g) {
                own[g] = Piece::columns(lds, wave_query + g * COLUMNS, k);
            }
            for (int i = 0; i < STRIPS; ++i) {
                const Rows rows = Piece::rows(lds_keys, wave_key + i * DEPTH, k);
                for (int g = 0; g < GROUPS; ++g) {
                    multiply<T>(sums.strip[i][g], rows, own[g]);
                }
                __builtin_amdgcn_sched_barrier(0);  // operands that are fetched early take registers
            }
        }
    }
}

// A tensor of queries by keys of one head, such as the bias.
template <class Element> struct Plane {
    Element* data;
    int64_t step;
    int queries, keys;

    DEVICE bool has(int query, int key) const { return query < queries && key < keys; }

    // RUN keys from `key` on; those that do not exist are zero.
    DEVICE words<16> load(int query, int key) const {
        return has(query, key) ? load_bounded<16>(data + query * step + key, keys - key) : words<16>{};
    }
    DEVICE void store(int query, int key, words<16> run) const {
        if (!has(query, key)) {
            return;
        }
        Element* const at = data + query * step + key;
        if (key + RUN <= keys) {
            __builtin_memcpy(at, &run, sizeof run);
            return;
        }
        const auto each = __builtin_bit_cast(vec<Element, RUN>, run);
        for (int i = 0; i < RUN; ++i) {
            if (key + i < keys) {
                at[i] = each.v[i];
            }
        }
    }
};

// This lane's first key of the wave's strip `i`, and its query of group `g`.
DEVICE int lane_key(const Corner& at, int i) { return at.key + at.wave_key + i * DEPTH + lane_part() * RUN; }
DEVICE int lane_query(const Corner& at, int g) { return at.query + at.wave_query + g * COLUMNS + lane_column(); }

KERNEL_RESIDENT(THREADS, 2)
void attention_dbias(const T* dout, const T* q, const T* k, const T* v, const T* bias, const float* peak,
                     const float* delta, T* dbias, int heads, int share, int queries, int keys, int columns_d,
                     int columns_e, int low, int high, float to_score, float cap, int key_tiles, int tiles, int blocks,
                     int64_t dout_batch, int64_t dout_head, int64_t dout_row, int64_t q_batch, int64_t q_head,
                     int64_t q_row, int64_t k_batch, int64_t k_head, int64_t k_row, int64_t v_batch, int64_t v_head,
                     int64_t v_row, int64_t bias_batch, int64_t bias_head, int64_t bias_row, int64_t dbias_batch,
                     int64_t dbias_head, int64_t dbias_row) {
    SHARED __attribute__((aligned(16))) char lds[2 * Piece::bytes(TILE)];
    const Place place = place_of(blocks, tiles, heads, false);
    const int64_t batch = place.batch, head = place.head, group = head / share;
    const int wave = __builtin_amdgcn_readfirstlane(thread_x() / WARP);
    constexpr int ACROSS = TILE / WAVE_KEYS;
    Corner at = {place.tile / key_tiles * TILE, place.tile % key_tiles * TILE, wave / ACROSS * WAVE_QUERIES,
                 wave % ACROSS * WAVE_KEYS};
    const Plane<T> to = {dbias + batch * dbias_batch + head * dbias_head, dbias_row, queries, keys};
    const Sight sight = {low, high, keys};
    if (sight.none<TILE>(at.key, at.query)) {
        for (int g = 0; g < GROUPS; ++g) {
            for (int i = 0; i < STRIPS; ++i) {
                to.store(lane_query(at, g), lane_key(at, i), {});
            }
        }
        return;
    }
    const int first_query = at.query + at.wave_query, first_key = at.key + at.wave_key;
    const SightOf<WAVE_QUERIES> wave_sight = {low, high, keys};
    at.idle = !to.has(first_query, first_key) || wave_sight.none<WAVE_KEYS>(first_key, first_query);
    Sums scores, given;
    add_products({q + batch * q_batch + head * q_head, q_row, queries, columns_d},
                 {k + batch * k_batch + group * k_head, k_row, keys, columns_d}, at, lds, scores);
    add_products({dout + batch * dout_batch + head * dout_head, dout_row, queries, columns_e},
                 {v + batch * v_batch + group * v_head, v_row, keys, columns_e}, at, lds, given);
    const Plane<const T> from = {bias + batch * bias_batch + head * bias_head, bias_row, queries, keys};
    words<16> biases[GROUPS][STRIPS];
    for (int g = 0; g < GROUPS; ++g) {
        for (int i = 0; i < STRIPS; ++i) {
            biases[g][i] = from.load(lane_query(at, g), lane_key(at, i));
        }
    }
    const Scores how = {to_score, cap};
    const int64_t line = (batch * heads + head) * queries;
    for (int g = 0; g < GROUPS; ++g) {
        const int query = lane_query(at, g);
        const float own_peak = peak[line + min(query, queries - 1)];
        const float own_delta = delta[line + min(query, queries - 1)];
        for (int i = 0; i < STRIPS; ++i) {
            const int key = lane_key(at, i);
            const auto run = __builtin_bit_cast(vec<T, RUN>, biases[g][i]);
            float found[RUN];
            for (int j = 0; j < RUN; ++j) {
                const Slope slope = slope_of(how, scores.strip[i][g].get(j), to_float(run.v[j]), own_peak,
                                             given.strip[i][g].get(j), own_delta);
                const bool seen = key + j >= sight.first(query) && key + j <= sight.last(query);
                found[j] = seen ? slope.above : 0;
            }
            words<16> packed;
            for (int j = 0; j < RUN; j += 2) {
                packed.w[j / 2] = pack2<T>(found[j], found[j + 1]);
            }
            to.store(query, key, packed);
        }
    }
}
