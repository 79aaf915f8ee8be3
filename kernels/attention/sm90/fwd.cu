// o = softmax(scores) @ v per head with wgmma, and the scores' lse.
//
// A persistent block walks tiles of TILE_M = 64 * CONSUMERS queries of one head. Warpgroup 0 brings a tile's
// queries once by TMA, and keys and values through two pipelines of STAGES stages, from the last block of TILE_N keys that
// a query of the tile sees to the first. Each consumer warpgroup owns 64 queries: it multiplies them with a block
// of keys into registers, exponentiates there, and multiplies the result, rounded to 16 bits and still in
// registers, with the values. The scores of the next block and the product with the last block's values are
// under way together; with PINGPONG consumers start theirs one after the other, so that the tensor cores work on one
// consumer's products while the others exponentiate.
//
// Defines: ELEMENT (bf16, f16); HEAD_D, HEAD_E: the head sizes, as multiples of 64; TILE_N, CONSUMERS, Q_STAGES,
// STAGES, PINGPONG; LEFT, RIGHT: whether the keys are bounded on that side of the diagonal; SOFTCAP, SINKS; VARLEN:
// varlen, and with it PACK_GQA, query heads of one key head in a tile; PARAMS_LAYOUT (params.h).
#include "prelude.h"

#include "_lib/ptx/pdl.h"
#include "_lib/ptx/pipeline.h"
#include "_lib/ptx/registers.h"
#include "_lib/ptx/tma.h"
#include "_lib/ptx/wgmma.h"
#include "attention/device/mask.h"
#include "attention/device/params.h"
#include "attention/device/softmax.h"
#include "attention/device/tile_scheduler.h"
#include "epilogue.h"
#include "fwd.h"

using T = ELEMENT;

constexpr int THREADS = (1 + CONSUMERS) * 128;
constexpr int TILE_M = 64 * CONSUMERS;
constexpr int TILE_QUERIES = TILE_M / PACK_GQA;  // of each of the PACK_GQA query heads of a tile, which share their keys
static_assert(VARLEN || PACK_GQA == 1, "a dense tile is of one head");
constexpr int SCORES = TILE_N / 2, ACC_O = HEAD_E / 2;  // a thread's, of a warp's 16 rows
// Where registers are short, where the values are in their pipeline is worked out from the keys (2026-11-22, four
// consumers, heads of 64: 512 +4 %; three, heads of 128, causal: -6 %).
constexpr bool FOLLOW = CONSUMERS == 4;
constexpr int Q_BYTES = TILE_M * HEAD_D * 2;
constexpr int K_BYTES = TILE_N * HEAD_D * 2;
constexpr int V_BYTES = TILE_N * HEAD_E * 2;

using QStages = Stages<Q_BYTES, Q_STAGES>;
using KStages = Stages<K_BYTES, STAGES>;
using VStages = Stages<V_BYTES, STAGES>;

// A dense call has no tiles to pass on.
template <bool Varlen> struct TileSlot {
    static DEVICE TileSlot at(uint32_t) { return {}; }
    DEVICE void init() const {}
};
template <bool Varlen> struct TileScheduler : StaticTileScheduler<TILE_M, RIGHT> {
    using Tile = DenseTile;

    DEVICE TileScheduler(const TileSlot<false>&, const AttentionParams& p, const Schedule& s, bool = false)
        : StaticTileScheduler<TILE_M, RIGHT>{static_cast<uint32_t>(p.seqlen_q), s.all_heads, s.heads_per_band} {}
};
DEVICE HeadOutput<T> output_of(const DenseTile& tile, const AttentionParams& p) {
    return dense_output<T, SINKS>(tile, p);
}

template <class Tile> DEVICE KeyBlocks key_blocks(const Tile& tile, const AttentionParams& p) {
    return key_blocks_of<LEFT, RIGHT, TILE_N>(tile.row, TILE_QUERIES, tile.m(p), tile.n(p), p.left, p.right);
}

// --- varlen: what there is beyond the dense kernel ---
//
// A warp claims the block's tiles, those of the longest sequences first (varlen_tiles.cu), and passes them to the others
// through shared memory. TMA does not know where a sequence ends. Queries and keys beyond it do no harm:
// those queries are not stored, and scores of those keys are replaced. Values would: a P of 0 times a NaN is a NaN. So a
// block of values that crosses the end of its sequence is announced to a warp, which zeros the rows beyond and announces
// it to the consumers.

constexpr int READERS = 2 + CONSUMERS * 4;  // a thread that copies, and warps

// Counted from the tile's first query on, which is `token`: `queries` are left of its sequence, which has `keys`; -1 keys,
// where the tokens are of no sequence. `head` is the first of PACK_GQA; one of -1 ends the tiles.
struct VarlenTile {
    static constexpr int row = 0;
    int head, queries, keys, token, first_key;

    DEVICE int first_query() const { return token; }
    DEVICE int m(const AttentionParams&) const { return queries; }
    DEVICE int n(const AttentionParams&) const { return keys; }
};

DEVICE HeadOutput<T> output_of(const VarlenTile& tile, const AttentionParams& p) {
    const int64_t o = tile.head * p.o_head + tile.token * p.o_row;
    const int64_t lse = tile.head * p.lse_head + tile.token * p.lse_row;
    const float sink = SINKS && tile.keys >= 0 ? p.sinks[tile.head] * LOG2_E : -INF_F;
    return {static_cast<T*>(p.o) + o, p.lse + lse, sink};
}

// In shared memory: the next tile and its barriers, then one barrier for each stage of values.
template <> struct TileSlot<true> {
    uint32_t base;

    static DEVICE TileSlot at(uint32_t base) { return {base}; }
    DEVICE uint32_t full() const { return base; }
    DEVICE uint32_t empty() const { return base + 8; }
    DEVICE uint32_t partial(int stage) const { return base + 16 + stage * 8; }
    DEVICE uint32_t data() const { return base + 16 + STAGES * 8; }
    DEVICE void init() const {
        mbarrier_init(full(), 1);
        mbarrier_init(empty(), READERS);
        for (int i = 0; i < STAGES; ++i) mbarrier_init(partial(i), 1);
    }
};

// Tiles are numbered by their heads, as one is known at a time.
template <> struct TileScheduler<true> {
    using Tile = VarlenTile;

    TileSlot<true> slot;
    bool alone;  // a thread, not a warp
    uint32_t phase = 0;
    VarlenTile found = {};

    DEVICE TileScheduler(const TileSlot<true>& slot, const AttentionParams&, const Schedule&, bool alone = false)
        : slot(slot), alone(alone) {}
    DEVICE uint32_t count() const { return 1u << 31; }
    // Not called again once there is none.
    DEVICE uint32_t next() {
        mbarrier_wait(slot.full(), phase);
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(found.head), "=r"(found.queries), "=r"(found.keys), "=r"(found.token)
                     : "r"(slot.data())
                     : "memory");
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(found.first_key) : "r"(slot.data() + 16) : "memory");
        if (!alone) __syncwarp();
        if (alone || thread_x() % 32 == 0) mbarrier_arrive(slot.empty());
        phase ^= 1;
        return found.head;
    }
    DEVICE VarlenTile tile(uint32_t) const { return found; }
};

// Of the table; all heads of the same queries follow one another.
DEVICE VarlenTile table_tile(uint32_t index, const AttentionParams& p) {
    const uint32_t head_groups = p.heads / PACK_GQA;
    const int* const found = p.tile_list + index / head_groups * 2;
    const Sequence own = sequence_of(p.bounds, found[0], p.offsets);
    const int before = found[1] * TILE_QUERIES;
    return {static_cast<int>(index % head_groups) * PACK_GQA, own.queries - before, own.outside ? -1 : own.keys,
            own.first_query + before, own.first_key};
}

// A warp, for a tile whose queries see no key.
DEVICE void store_no_keys(VarlenTile tile, const AttentionParams& p) {
    const int lane = thread_x() % 32;
#pragma unroll 1
    for (int last = tile.head + PACK_GQA; tile.head < last; ++tile.head) {
        const HeadOutput<T> place = output_of(tile, p);
#pragma unroll 1
        for (int row = 0; row < min(tile.queries, TILE_QUERIES); ++row) {
            if (lane == 0) place.lse[row * p.lse_row] = place.sink * LN_2;
#pragma unroll 1
            for (int column = lane * 8; column < p.head_dim_v; column += 256)
                store_words(place.o + row * p.o_row + column, words<16>{});
        }
    }
}

// A warp. The first two rounds are dealt out, forwards and backwards, since all blocks begin at once; then whoever
// has room takes the next. A tile without keys is written here and passed on to nobody: consumers ask for the next tile
// before they release a block of keys, so the copying thread must come to every tile that they are passed by what
// they released before.
DEVICE void schedule_tiles(const TileSlot<true>& slot, const AttentionParams& p) {
    const uint32_t all = p.tile_counts[0] * (p.heads / PACK_GQA);
    const int lane = thread_x() % 32;
    uint32_t phase = 1;
#pragma unroll 1
    for (uint32_t round = 0;; ++round) {
        mbarrier_wait(slot.empty(), phase);
        uint32_t index = blockIdx.x;
        if (round == 1) index = 2 * gridDim.x - 1 - index;
        if (round > 1) {
            if (lane == 0) index = 2 * gridDim.x + atomicAdd(p.tile_counts + 1, 1u);
            index = __shfl_sync(0xffffffffu, index, 0);
        }
        VarlenTile tile = {-1, 0, 0, 0, 0};
        if (index < all) {
            tile = table_tile(index, p);
            const KeyBlocks span = key_blocks(tile, p);
            if (span.first >= span.last) {
                store_no_keys(tile, p);
                continue;
            }
        }
        if (lane == 0) {
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(slot.data()), "r"(tile.head),
                         "r"(tile.queries), "r"(tile.keys), "r"(tile.token)
                         : "memory");
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(slot.data() + 16), "r"(tile.first_key) : "memory");
            mbarrier_arrive(slot.full());
        }
        if (index >= all) return;
        phase ^= 1;
    }
}

// Zeros for the values beyond their sequence's end; lines are whole, so it does not matter how they are swizzled.
DEVICE void zero_tails(VStages values, const TileSlot<true>& slot, const AttentionParams& p, const Schedule& s) {
    TileScheduler<true> scheduler(slot, p, s);
    uint32_t phases = 0;  // of the stages' barriers
    while (scheduler.next() < scheduler.count()) {
        const VarlenTile tile = scheduler.found;
        const KeyBlocks span = key_blocks(tile, p);
        const int left = tile.keys - (span.last - 1) * TILE_N;
        if (left < TILE_N) {
            mbarrier_wait(slot.partial(values.stage), phases >> values.stage & 1);
            phases ^= 1u << values.stage;
            for (int block = 0; block < HEAD_E / 64; ++block) {
                const uint32_t lines = values.stage_base() + block * TILE_N * 128;
                for (int at = left * 128 + thread_x() % 32 * 16; at < TILE_N * 128; at += 512)
                    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(lines + at), "r"(0) : "memory");
            }
            fence_proxy_async();
            __syncwarp();
            if (thread_x() % 32 == 0) mbarrier_arrive(values.full_barrier());
        }
        for (int block = span.first; block < span.last; ++block) values.advance();
    }
}

// A dense call has neither.
DEVICE void schedule_tiles(const TileSlot<false>&, const AttentionParams&) {}
DEVICE void zero_tails(VStages, const TileSlot<false>&, const AttentionParams&, const Schedule&) {}

// --- dense and varlen ---

// In the order in which consumers wait: keys run one block ahead of values, across tiles.
template <bool Varlen>
DEVICE void produce(QStages queries, KStages keys, VStages values, const TensorMap* map_q, const TensorMap* map_k,
                    const TensorMap* map_v, const TileSlot<Varlen>& slot, const AttentionParams& p, const Schedule& s) {
    using Tile = typename TileScheduler<Varlen>::Tile;
    const auto load_values = [&](int block, const Tile& tile, int head, int batch) {
        mbarrier_wait(values.empty_barrier(), values.phase ^ 1);
        const int row = block * TILE_N;
        uint32_t full = values.full_barrier();
        if constexpr (Varlen) {
            if (row + TILE_N > tile.keys) full = slot.partial(values.stage);
        }
        mbarrier_arrive_expect_tx(full, V_BYTES);
        load_blocks<HEAD_E / 64, TILE_N, 64>(values.stage_base(), map_v, full, row + tile.first_key, s.tma_steps & 16 ? head : 0,
                                    s.tma_steps & 32 ? batch : 0);
        values.advance();
    };
    int behind = -1, behind_head = 0, behind_batch = 0;
    Tile behind_tile;
    TileScheduler<Varlen> scheduler(slot, p, s, true);
    const uint32_t tiles = scheduler.count();
    for (uint32_t index = scheduler.next(); index < tiles; index = scheduler.next()) {
        const Tile tile = scheduler.tile(index);
        const KeyBlocks span = key_blocks(tile, p);
        const int batch = tile.head / p.heads, q_head = tile.head % p.heads, head = q_head / p.qheads_per_kvhead;
        const auto load_queries = [&] {
            mbarrier_wait(queries.empty_barrier(), queries.phase ^ 1);
            mbarrier_arrive_expect_tx(queries.full_barrier(), Q_BYTES);
            load_blocks<HEAD_D / 64, TILE_M, 64>(queries.stage_base(), map_q, queries.full_barrier(), tile.first_query(),
                                        s.tma_steps & 1 ? q_head : 0, s.tma_steps & 2 ? batch : 0);
            queries.advance();
        };
        if (Q_STAGES > 1 && span.first < span.last) load_queries();
        for (int block = span.last - 1; block >= span.first; --block) {
            mbarrier_wait(keys.empty_barrier(), keys.phase ^ 1);
            mbarrier_arrive_expect_tx(keys.full_barrier(), K_BYTES);
            load_blocks<HEAD_D / 64, TILE_N, 64>(keys.stage_base(), map_k, keys.full_barrier(), block * TILE_N + tile.first_key,
                                        s.tma_steps & 4 ? head : 0, s.tma_steps & 8 ? batch : 0);
            keys.advance();
            if (behind >= 0) load_values(behind, behind_tile, behind_head, behind_batch);
            if (Q_STAGES == 1 && block == span.last - 1) load_queries();
            behind = block;
            behind_tile = tile;
            behind_head = head;
            behind_batch = batch;
        }
    }
    if (behind >= 0) load_values(behind, behind_tile, behind_head, behind_batch);
}

// --- what a consumer does ---

// Addresses go through a shuffle so that descriptors are made in uniform registers, 599 instructions a
// step of 128 keys instead of 667.
DEVICE void start_scores(float* scores, uint32_t q, const KStages& keys) {
    mbarrier_wait(keys.full_barrier(), keys.phase);
    const uint64_t a = wgmma_descriptor(uniform(q), 0, 1024), b = wgmma_descriptor(uniform(keys.stage_base()), 0, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < HEAD_D / 16; ++k)
        Wgmma<TILE_N>::template run<false, false>(scores, a + (k / 4 * TILE_M * 128 + k % 4 * 32 >> 4),
                                                  b + (k / 4 * TILE_N * 128 + k % 4 * 32 >> 4), k > 0);
    wgmma_commit();
}

// The values have been waited for.
DEVICE void start_o(float* acc_o, const uint32_t* p16, const VStages& values) {
    const uint64_t b = wgmma_descriptor(uniform(values.stage_base()), TILE_N * 128, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < TILE_N / 16; ++k)
        WgmmaRs<HEAD_E>::template run<true>(acc_o, p16 + k * 4, b + (k * 16 * 128 >> 4), 1);
    wgmma_commit();
}

template <bool Varlen>
DEVICE void consume(QStages queries, KStages keys, const VStages values, const TileSlot<Varlen>& slot,
                    const AttentionParams& p, const Schedule& s) {
    using Tile = typename TileScheduler<Varlen>::Tile;
    // What the softmax multiplies scores with.
    const float scale = SOFTCAP ? p.softcap_log2 : p.score_scale;
    const int consumer = uniform(thread_x() / 128) - 1;
    const int own_barrier = 1 + consumer, next_barrier = 1 + (consumer + 1) % CONSUMERS;
    const int line = consumer * 64 + thread_x() % 128 / 32 * 16 + thread_x() % 32 / 4;
    const int in_tile = PACK_GQA == 1 ? line : line % TILE_QUERIES, head_in_tile = PACK_GQA == 1 ? 0 : line / TILE_QUERIES;
    // The first of the warpgroup's queries, and how far the last may be behind it.
    const int first_query = PACK_GQA == 1 ? consumer * 64 : 0;
    constexpr int SPREAD = PACK_GQA == 1 ? 63 : TILE_QUERIES - 1;
    const auto store = [&](const float* acc_o, const OnlineSoftmax& softmax, Tile tile) {
        tile.head += head_in_tile;
        store_o<HEAD_E, SINKS>(acc_o, softmax, output_of(tile, p), tile.row + in_tile, tile.m(p), p, scale);
    };
    if (PINGPONG && consumer == CONSUMERS - 1) arrive_next_warpgroup(next_barrier);

    TileScheduler<Varlen> scheduler(slot, p, s);
    const uint32_t tiles = scheduler.count();
    const auto next_tile = [&](Tile& tile) {
        for (uint32_t index = scheduler.next(); index < tiles; index = scheduler.next()) {
            tile = scheduler.tile(index);
            if constexpr (Varlen) {
                tile = {uniform(tile.head), uniform(tile.queries), uniform(tile.keys), uniform(tile.token),
                        uniform(tile.first_key)};
                return true;
            } else {
                const KeyBlocks span = key_blocks(tile, p);
                if (uniform(span.first) < uniform(span.last)) return true;
                store_no_keys<HEAD_E>(output_of(tile, p), tile.row + in_tile, tile.m(p), p);
            }
        }
        return false;
    };
    Tile tile, upcoming;
    if (!next_tile(tile)) return;
    bool more = next_tile(upcoming);

    float acc_o[ACC_O], scores[SCORES], rescale[2];
    OnlineSoftmax softmax;
    uint32_t p16[SCORES / 2];
#pragma unroll
    for (int i = 0; i < ACC_O; ++i) acc_o[i] = 0.0f;
    KeyBlocks span = key_blocks(tile, p);
    int block = span.last - 1;
    VStages kept = values;  // unless FOLLOW

    // Once the scores of `block` are there.
    const auto softmax_step = [&] {
        keep_in_registers<SCORES>(scores);
        release(keys.empty_barrier());
        keys.advance();
        if (block == span.first) {
            release(queries.empty_barrier());
            queries.advance();
        }
        const int key = block * TILE_N, diagonal = tile.row + first_query + tile.n(p) - tile.m(p);
        if (SOFTCAP) apply_softcap<SCORES>(scores, p.score_scale);
        const bool beyond = key + TILE_N > (RIGHT ? min(tile.n(p), diagonal + p.right + 1) : tile.n(p));
        if (beyond || (LEFT && key < diagonal + SPREAD - p.left))
            apply_mask<LEFT, RIGHT, SCORES>(scores, tile.row + in_tile, key, tile.m(p), tile.n(p), p.left, p.right);
        softmax.step<SCORES>(scores, rescale, scale);
        keep_in_registers<SCORES>(scores);
        const VStages next = FOLLOW ? values.behind(keys) : kept;
        // For the next product; it also keeps ptxas from moving the next wait up, before the exponentials.
        mbarrier_wait(next.full_barrier(), next.phase);
    };

    mbarrier_wait(queries.full_barrier(), queries.phase);
    start_scores(scores, queries.stage_base() + consumer * 64 * 128, keys);
    wgmma_wait<0>();
    softmax_step();
    pack_p<T, SCORES>(p16, scores);

    // Multiplies the p16 of one block with its values while it makes those of `block`.
    uint32_t used;  // unless FOLLOW
    const auto start = [&] {
        if (PINGPONG) named_barrier_sync(own_barrier, 256);
        start_scores(scores, queries.stage_base() + consumer * 64 * 128, keys);
        start_o(acc_o, p16, FOLLOW ? values.behind(keys) : kept);
        if (PINGPONG) arrive_next_warpgroup(next_barrier);
        used = kept.empty_barrier();
        kept.advance();
    };
    const auto finish = [&] {
        wgmma_wait<1>();
        softmax_step();
        wgmma_wait<0>();
        keep_in_registers<ACC_O>(acc_o);
        keep_in_registers<SCORES / 2>(p16);
        release(FOLLOW ? values.behind(values.behind(keys)).empty_barrier() : used);
    };
    for (;;) {
        while (block > span.first) {
            --block;
            start();
            finish();
            rescale_o<ACC_O>(acc_o, rescale);
            pack_p<T, SCORES>(p16, scores);
        }
        if (!more) break;
        // From the first block of this tile to the last of the next.
        const Tile ended = tile;
        tile = upcoming;
        span = key_blocks(tile, p);
        block = span.last - 1;
        mbarrier_wait(queries.full_barrier(), queries.phase);
        start();
        const OnlineSoftmax ended_softmax = softmax;
        softmax = {};
        more = next_tile(upcoming);
        finish();
        pack_p<T, SCORES>(p16, scores);
        store(acc_o, ended_softmax, ended);
#pragma unroll
        for (int i = 0; i < ACC_O; ++i) acc_o[i] = 0.0f;
    }
    start_o(acc_o, p16, FOLLOW ? values.behind(keys) : kept);
    wgmma_wait<0>();
    keep_in_registers<ACC_O>(acc_o);
    store(acc_o, softmax, tile);
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void attention_fwd_sm90(
    const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
    const __grid_constant__ TensorMap map_v, const __grid_constant__ AttentionParams params, int heads_per_band,
    int all_heads, int tma_steps) {
    DYNAMIC_SHARED(shared);
    const AttentionParams& p = params;
    const Schedule s = {heads_per_band, static_cast<uint32_t>(all_heads), tma_steps};
    // The swizzle repeats every 1024 bytes of the address.
    const uint32_t q = uniform((shared_address(shared) + 1023) & ~1023u);
    const uint32_t k = q + Q_STAGES * Q_BYTES, v = k + STAGES * K_BYTES, barriers = v + STAGES * V_BYTES;
    const QStages queries(q, barriers);
    const KStages keys(k, barriers + Q_STAGES * 16);
    const VStages values(v, barriers + (Q_STAGES + STAGES) * 16);
    const auto slot = TileSlot<VARLEN>::at(barriers + (Q_STAGES + 2 * STAGES) * 16);

    if (thread_x() == 0) {
        tma_prefetch_descriptor(&map_q);
        tma_prefetch_descriptor(&map_k);
        tma_prefetch_descriptor(&map_v);
    } else if (thread_x() == 32) {
        queries.init(CONSUMERS);
        keys.init(CONSUMERS);
        values.init(CONSUMERS);
        slot.init();
        mbarrier_init_fence();
    }
    barrier();
    if constexpr (VARLEN) grid_dependency_wait();  // for the tables
    if (thread_x() < 128) {
        setmaxnreg_dec<CONSUMERS == 2 ? 40 : CONSUMERS == 3 ? 32 : 24>();
        if (thread_x() == 0) {
            produce<VARLEN>(queries, keys, values, &map_q, &map_k, &map_v, slot, p, s);
        } else if (VARLEN && thread_x() >= 32 && thread_x() < 64) {
            schedule_tiles(slot, p);
        } else if (VARLEN && thread_x() >= 64 && thread_x() < 96) {
            zero_tails(values, slot, p, s);
        }
    } else {
        setmaxnreg_inc<CONSUMERS == 2 ? 232 : CONSUMERS == 3 ? 160 : 112>();
        consume<VARLEN>(queries, keys, values, slot, p, s);
    }
}
