// o = softmax(scores) @ v per head with Hopper's warpgroup matrix instructions, and the scores' lse.
//
// A persistent block walks tiles of TILE_M = 64 * CONSUMERS queries of one head. Warpgroup 0 brings a tile's
// queries once, and keys and values through two rings of STAGES stages, from the last block of TILE_N keys that
// a query of the tile sees to the first. Each consumer warpgroup owns 64 queries: it multiplies them with a block
// of keys into registers, exponentiates there, and multiplies the result, rounded to 16 bits and still in
// registers, with the values. The scores of the next block and the product with the last block's values are
// under way together; consumers take turns to start theirs (TURNS), so that the tensor cores work on one
// consumer's products while the others exponentiate.
//
// Scores are powers of two: `scale` holds log2(e). A row's running maximum moves, and its sums are rescaled, only
// where it grew by more than SLACK; what is left cancels between o and its divisor.
//
// Defines: ELEMENT (bf16, f16); HEAD_D, HEAD_E: the head sizes, as multiples of 64; TILE_N, CONSUMERS, Q_STAGES,
// STAGES, TURNS; LEFT, RIGHT: whether the keys are bounded on that side of the diagonal; SOFTCAP, SINKS; RAGGED:
// packed sequences (fwd_varlen.h), and PACK, query heads of one key head in a tile.
#include "prelude.h"

#include "online_softmax.h"
#include "fwd_epilogue.h"
#include "fwd_tiles.h"
#include "_lib/ptx/pdl.h"
#include "_lib/ptx/registers.h"
#include "_lib/ptx/tma.h"
#include "_lib/ptx/wgmma.h"

using T = ELEMENT;

constexpr int THREADS = (1 + CONSUMERS) * 128;
// Where registers are short, where the values are in their ring is worked out from the keys (2026-11-22, four
// consumers, heads of 64: 512 +4 %; three, heads of 128, causal: -6 %).
constexpr bool FOLLOW = CONSUMERS == 4;
constexpr int Q_BYTES = TILE_M * HEAD_D * 2;
constexpr int K_BYTES = TILE_N * HEAD_D * 2;
constexpr int V_BYTES = TILE_N * HEAD_E * 2;

// --- the rings ---

template <int BYTES, int COUNT> struct Ring {
    uint32_t base, barriers;
    int stage = 0;
    uint32_t phase = 0;

    DEVICE uint32_t data() const { return base + stage * BYTES; }
    DEVICE uint32_t filled() const { return barriers + stage * 16; }
    DEVICE uint32_t freed() const { return filled() + 8; }
    DEVICE void advance() {
        if (++stage == COUNT) {
            stage = 0;
            phase ^= 1;
        }
    }
    // This ring one stage behind another of as many.
    template <class Other> DEVICE Ring behind(const Other& ring) const {
        return {base, barriers, ring.stage ? ring.stage - 1 : COUNT - 1, ring.stage ? ring.phase : ring.phase ^ 1};
    }
    DEVICE void init() const {
        for (int i = 0; i < COUNT; ++i) {
            mbarrier_init(barriers + i * 16, 1);
            mbarrier_init(barriers + i * 16 + 8, CONSUMERS);
        }
    }
};
using QRing = Ring<Q_BYTES, Q_STAGES>;
using KRing = Ring<K_BYTES, STAGES>;
using VRing = Ring<V_BYTES, STAGES>;

#if RAGGED
#include "fwd_varlen.h"
#endif

// WIDTH columns of LINES rows as blocks of 64 columns.
template <int WIDTH, int LINES>
DEVICE void load_blocks(uint32_t to, const TensorMap* map, uint32_t barrier, int row, int head, int batch) {
#pragma unroll
    for (int i = 0; i < WIDTH / 64; ++i) tma_load_4d(to + i * LINES * 128, map, barrier, i * 64, row, head, batch);
}

// In the order in which consumers ask: keys run one block ahead of values, across tiles.
DEVICE void produce(QRing queries, KRing keys, VRing values, const TensorMap* map_q, const TensorMap* map_k,
                    const TensorMap* map_v, const Slot& slot, const Sizes& s) {
    const auto load_values = [&](int block, const Tile& tile, int head, int batch) {
        mbarrier_wait(values.freed(), values.phase ^ 1);
        int row = block * TILE_N;
        uint32_t filled = values.filled();
#if RAGGED
        if (row + TILE_N > tile.keys) filled = slot.torn(values.stage);
        row += tile.first_key;
#endif
        mbarrier_arrive_expect_tx(filled, V_BYTES);
        load_blocks<HEAD_E, TILE_N>(values.data(), map_v, filled, row, s.steps & 16 ? head : 0,
                                    s.steps & 32 ? batch : 0);
        values.advance();
    };
    int behind = -1, behind_head = 0, behind_batch = 0;
    Tile behind_tile;
    const uint32_t tiles = tile_count(s);
    Walk walk(slot, true);
    for (uint32_t index = walk.next(s); index < tiles; index = walk.next(s)) {
        const Tile tile = walk.tile(index, s);
        const Span span = span_of(tile, s);
        const int batch = tile.head / s.heads, q_head = tile.head % s.heads, head = q_head / s.share;
        int first_query = tile.row, first_key = 0;
#if RAGGED
        first_query = tile.first_query;
        first_key = tile.first_key;
#endif
        const auto load_queries = [&] {
            mbarrier_wait(queries.freed(), queries.phase ^ 1);
            mbarrier_arrive_expect_tx(queries.filled(), Q_BYTES);
            load_blocks<HEAD_D, TILE_M>(queries.data(), map_q, queries.filled(), first_query,
                                        s.steps & 1 ? q_head : 0, s.steps & 2 ? batch : 0);
            queries.advance();
        };
        if (Q_STAGES > 1 && span.first < span.last) load_queries();
        for (int block = span.last - 1; block >= span.first; --block) {
            mbarrier_wait(keys.freed(), keys.phase ^ 1);
            mbarrier_arrive_expect_tx(keys.filled(), K_BYTES);
            load_blocks<HEAD_D, TILE_N>(keys.data(), map_k, keys.filled(), block * TILE_N + first_key,
                                        s.steps & 4 ? head : 0, s.steps & 8 ? batch : 0);
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

// A value that all lanes share, told to the compiler.
template <class V> DEVICE V uniform(V value) { return __shfl_sync(0xffffffffu, value, 0); }

// Addresses go through a shuffle so that descriptors are made in uniform registers, 599 instructions a
// step of 128 keys instead of 667.
DEVICE void start_scores(float* scores, uint32_t q, const KRing& keys) {
    mbarrier_wait(keys.filled(), keys.phase);
    const uint64_t a = wgmma_descriptor(uniform(q), 0, 1024), b = wgmma_descriptor(uniform(keys.data()), 0, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < HEAD_D / 16; ++k)
        Wgmma<TILE_N>::template run<false, false>(scores, a + (k / 4 * TILE_M * 128 + k % 4 * 32 >> 4),
                                                  b + (k / 4 * TILE_N * 128 + k % 4 * 32 >> 4), k > 0);
    wgmma_commit();
}

// The values have been waited for.
DEVICE void start_sums(float* sums, const uint32_t* weights, const VRing& values) {
    const uint64_t b = wgmma_descriptor(uniform(values.data()), TILE_N * 128, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < TILE_N / 16; ++k)
        WgmmaRs<HEAD_E>::template run<true>(sums, weights + k * 4, b + (k * 16 * 128 >> 4), 1);
    wgmma_commit();
}

// Tells the producer that a stage, or q, may be refilled.
DEVICE void release(uint32_t freed) {
    if (thread_x() % 128 == 0) mbarrier_arrive(freed);
}

DEVICE void pass_turn(int id) { asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory"); }

DEVICE void consume(QRing queries, KRing keys, const VRing values, const Outputs<T>& to, const Slot& slot,
                    const Sizes& s) {
    const int consumer = uniform(thread_x() / 128) - 1;
    const int own_turn = 1 + consumer, next_turn = 1 + (consumer + 1) % CONSUMERS;
    const int line = consumer * 64 + thread_x() % 128 / 32 * 16 + thread_x() % 32 / 4;
    const int in_tile = PACK == 1 ? line : line % TILE_QUERIES, in_pack = PACK == 1 ? 0 : line / TILE_QUERIES;
    // The first of the warpgroup's queries, and how far the last may be behind it.
    const int first_query = PACK == 1 ? consumer * 64 : 0;
    constexpr int SPREAD = PACK == 1 ? 63 : TILE_QUERIES - 1;
    const auto leave = [&](const float* sums, const float* top, const float* sum, Tile tile) {
        tile.head += in_pack;
        store(sums, top, sum, tile, tile.row + in_tile, to, s);
    };
    if (TURNS && consumer == CONSUMERS - 1) pass_turn(next_turn);

    const uint32_t tiles = tile_count(s);
    Walk walk(slot);
    const auto next_tile = [&](Tile& tile) {
        for (uint32_t index = walk.next(s); index < tiles; index = walk.next(s)) {
            tile = walk.tile(index, s);
#if RAGGED
            tile = {uniform(tile.head), uniform(tile.queries), uniform(tile.keys), uniform(tile.first_query),
                    uniform(tile.first_key)};
#endif
            const Span span = span_of(tile, s);
            if (RAGGED || uniform(span.first) < uniform(span.last)) return true;
            store_nothing(tile, tile.row + in_tile, to, s);
        }
        return false;
    };
    Tile tile, upcoming;
    if (!next_tile(tile)) return;
    bool more = next_tile(upcoming);

    float sums[SUMS], scores[SCORES], factor[2], top[2] = {-INF_F, -INF_F}, sum[2] = {0.0f, 0.0f};
    uint32_t weights[SCORES / 2];
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sums[i] = 0.0f;
    Span span = span_of(tile, s);
    int block = span.last - 1;
    VRing kept = values;  // unless FOLLOW

    // Once the scores of `block` are there.
    const auto weigh = [&] {
        keep_in_registers<SCORES>(scores);
        release(keys.freed());
        keys.advance();
        if (block == span.first) {
            release(queries.freed());
            queries.advance();
        }
        const int key = block * TILE_N, diagonal = tile.row + first_query + n_of(tile, s) - m_of(tile, s);
#if SOFTCAP
        cap(scores, s.inner);
#endif
        const bool beyond = key + TILE_N > (RIGHT ? min(n_of(tile, s), diagonal + s.right + 1) : n_of(tile, s));
        if (beyond || (LEFT && key < diagonal + SPREAD - s.left))
            mask(scores, tile.row + in_tile, key, m_of(tile, s), n_of(tile, s), s.left, s.right);
        soften(scores, top, sum, factor, s.scale);
        keep_in_registers<SCORES>(scores);
        const VRing next = FOLLOW ? values.behind(keys) : kept;
        // For the next product; it also keeps ptxas from moving the next wait up, before the exponentials.
        mbarrier_wait(next.filled(), next.phase);
    };

    mbarrier_wait(queries.filled(), queries.phase);
    start_scores(scores, queries.data() + consumer * 64 * 128, keys);
    wgmma_wait<0>();
    weigh();
    pack_weights<T>(weights, scores);

    // Multiplies the weights of one block with its values while it makes those of `block`.
    uint32_t used;  // unless FOLLOW
    const auto start = [&] {
        if (TURNS) named_barrier_sync(own_turn, 256);
        start_scores(scores, queries.data() + consumer * 64 * 128, keys);
        start_sums(sums, weights, FOLLOW ? values.behind(keys) : kept);
        if (TURNS) pass_turn(next_turn);
        used = kept.freed();
        kept.advance();
    };
    const auto finish = [&] {
        wgmma_wait<1>();
        weigh();
        wgmma_wait<0>();
        keep_in_registers<SUMS>(sums);
        keep_in_registers<SCORES / 2>(weights);
        release(FOLLOW ? values.behind(values.behind(keys)).freed() : used);
    };
    for (;;) {
        while (block > span.first) {
            --block;
            start();
            finish();
            rescale(sums, factor);
            pack_weights<T>(weights, scores);
        }
        if (!more) break;
        // From the first block of this tile to the last of the next.
        const Tile ended = tile;
        tile = upcoming;
        span = span_of(tile, s);
        block = span.last - 1;
        mbarrier_wait(queries.filled(), queries.phase);
        start();
        const float ended_top[2] = {top[0], top[1]};
        float ended_sum[2] = {sum[0], sum[1]};
        top[0] = top[1] = -INF_F;
        sum[0] = sum[1] = 0.0f;
        more = next_tile(upcoming);
        finish();
        pack_weights<T>(weights, scores);
        leave(sums, ended_top, ended_sum, ended);
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] = 0.0f;
    }
    start_sums(sums, weights, FOLLOW ? values.behind(keys) : kept);
    wgmma_wait<0>();
    keep_in_registers<SUMS>(sums);
    leave(sums, top, sum, tile);
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void attention_forward(
    const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
    const __grid_constant__ TensorMap map_v, const float* sinks, T* o, float* lse, int m, int n, int e, int heads,
    int share, int left, int right, int band, int batches, int steps, float scale, float inner, int64_t o_batch,
    int64_t o_head, int64_t o_row, int64_t lse_batch, int64_t lse_head, int64_t lse_row
#if RAGGED
    , const int* bounds, const int* tiles, uint32_t* counts, int count
#endif
) {
    DYNAMIC_SHARED(shared);
    const Sizes s = {m, n, e, heads, share, left, right, band, static_cast<uint32_t>(batches), steps, scale, inner};
    // The swizzle repeats every 1024 bytes of the address.
    const uint32_t q = uniform((shared_address(shared) + 1023) & ~1023u);
    const uint32_t k = q + Q_STAGES * Q_BYTES, v = k + STAGES * K_BYTES, barriers = v + STAGES * V_BYTES;
    const QRing queries{q, barriers};
    const KRing keys{k, barriers + Q_STAGES * 16};
    const VRing values{v, barriers + (Q_STAGES + STAGES) * 16};
#if RAGGED
    const Slot slot{barriers + (Q_STAGES + 2 * STAGES) * 16};
#else
    const Slot slot;
#endif

    if (thread_x() == 0) {
        tma_prefetch_descriptor(&map_q);
        tma_prefetch_descriptor(&map_k);
        tma_prefetch_descriptor(&map_v);
    } else if (thread_x() == 32) {
        queries.init();
        keys.init();
        values.init();
#if RAGGED
        slot.init();
#endif
        mbarrier_init_fence();
    }
    barrier();
#if RAGGED
    grid_dependency_wait();  // which makes the tables
#endif
    const Outputs<T> to{o, lse, o_batch, o_head, o_row, lse_batch, lse_head, lse_row, sinks};
    if (thread_x() < 128) {
        setmaxnreg_dec<CONSUMERS == 2 ? 40 : CONSUMERS == 3 ? 32 : 24>();
        if (thread_x() == 0) produce(queries, keys, values, &map_q, &map_k, &map_v, slot, s);
#if RAGGED
        else if (thread_x() >= 32 && thread_x() < 64) claim_tiles(slot, {bounds, tiles, counts, count}, to, s);
        else if (thread_x() >= 64 && thread_x() < 96) clear_ends(values, slot, s);
#endif
    } else {
        setmaxnreg_inc<CONSUMERS == 2 ? 232 : CONSUMERS == 3 ? 160 : 112>();
        consume(queries, keys, values, to, slot, s);
    }
}
