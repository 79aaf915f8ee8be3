// dk, dv and the sums of dq with Hopper's warpgroup matrix instructions.
//
// A block owns 128 keys of one key head and walks the blocks of QUERIES queries that see any of them, of every
// query head that reads the key head, from the last query to the first. Scores are computed transposed, keys
// by queries, so that P and their gradients are first operands of dv and dk straight from
// registers. Warpgroup 0 copies: one thread brings q, do and the queries' statistics through a stages of STAGES
// stages, two accumulate_dq dq of alternate steps to its float32 sums in global memory. Warpgroup 1 makes dq from the
// gradients of the scores, which come through shared memory. Warpgroups 2 and 3 own 64 keys each and do the rest.
//
// Blocks of keys add to a block of queries in the order of the keys, by a counter of semaphore per block of queries, so
// that the same input gives the same bits. A tile waits only for tiles before it, which blocks take in order.
//
// Defines: bwd.h's; STAGES, PERSISTENT, SOFTCAP. With VARLEN `claimed` points to how many blocks of keys
// there are.
#include "_lib/ptx/pipeline.h"
#include "_lib/ptx/registers.h"
#include "_lib/ptx/wgmma.h"
#include "bwd_mainloop.h"

constexpr int THREADS = 4 * 128;
using State = PipelineState<STAGES>;

static_assert(HEAD_BLOCKS * QUERY_BLOCKS == 2, "each warpgroup computes one block of dq");
static_assert(KEYS == 128, "64 for each of two warpgroups");

constexpr int KEY_BYTES = KEYS * HEAD * 2;
constexpr int QUERY_BYTES = QUERIES * HEAD * 2;
constexpr int DS_BUFFERS = 2;
constexpr int PART_BYTES = PART * 4;  // of a warpgroup
constexpr int PART_BUFFERS = 2;
constexpr int STATS_BYTES = QUERIES * 8;
constexpr int SUMS = HEAD / 2;  // of a thread: 64 keys by HEAD

struct Shared : StageBarriers {
    uint32_t k, v, q, dout, ds, parts, stats, barriers;

    DEVICE explicit Shared(uint32_t base)
        : k(base), v(k + KEY_BYTES), q(v + KEY_BYTES), dout(q + STAGES * QUERY_BYTES),
          ds(dout + STAGES * QUERY_BYTES), parts(ds + DS_BUFFERS * DS_BYTES),
          stats(parts + PART_BUFFERS * 2 * PART_BYTES), barriers(stats + STAGES * STATS_BYTES) {
        first = barriers + 144;
    }

    DEVICE uint32_t part(int buffer) const { return parts + buffer * 2 * PART_BYTES; }

    // Barriers of 8 bytes: filled, and free again. `tile` is the number of a claimed tile.
    DEVICE uint32_t k_full() const { return barriers; }
    DEVICE uint32_t k_empty() const { return barriers + 8; }
    DEVICE uint32_t v_full() const { return barriers + 16; }
    DEVICE uint32_t v_empty() const { return barriers + 24; }
    DEVICE uint32_t part_full(int buffer) const { return barriers + 32 + buffer * 16; }
    DEVICE uint32_t part_empty(int buffer) const { return part_full(buffer) + 8; }
    DEVICE uint32_t ds_full(int buffer) const { return barriers + 64 + buffer * 16; }
    DEVICE uint32_t ds_empty(int buffer) const { return ds_full(buffer) + 8; }
    DEVICE uint32_t tile_full(int slot) const { return barriers + 96 + slot * 16; }
    DEVICE uint32_t tile_empty(int slot) const { return tile_full(slot) + 8; }
    DEVICE uint32_t tile(int slot) const { return barriers + 128 + slot * 4; }
};

// Varlen claims no tiles: what follows from a claimed one is not uniform to ptxas, which then keeps all products apart
// (C7520).
static_assert(!VARLEN || !PERSISTENT, "a block has its own tile");

// The tiles of this block: one, or with PERSISTENT those that a thread claims while any is left, in order.
struct Tiles {
    const Shared& shared;
    const BwdSeqlenInfo& seqlen;
    int kv_heads, qheads_per_kvhead, kv_heads_per_band;
    uint32_t all;
    WorkTile only;  // without PERSISTENT: known before the warps' roles part, it lies in uniform registers
    uint32_t count = 0;

    // Does `body(work, seqlen, parity)` for each tile; the thread that claims them tells the others.
    template <class Body> DEVICE void each(uint32_t* claimed, const Body& body) {
        if constexpr (!PERSISTENT) {
            body(only, seqlen, 0u);
        } else {
            for (;; ++count) {
                const int slot = count % 2;
                uint32_t tile;
                if (claimed != nullptr) {
                    mbarrier_wait(shared.tile_empty(slot), count / 2 & 1 ^ 1);
                    tile = atomicAdd(claimed, 1u);
                    asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared.tile(slot)), "r"(tile) : "memory");
                    mbarrier_arrive(shared.tile_full(slot));
                } else {
                    mbarrier_wait(shared.tile_full(slot), count / 2 & 1);
                    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(tile) : "r"(shared.tile(slot)) : "memory");
                    mbarrier_arrive(shared.tile_empty(slot));
                }
                if (tile >= all) return;
                body(work_tile_of(tile, all, seqlen, kv_heads, qheads_per_kvhead, kv_heads_per_band), seqlen,
                     count & 1);
            }
        }
    }
};

// --- varlen ---

// Zeros beyond the end of the sequence, in the order in which blocks are brought. `phases` has a bit for each barrier.
DEVICE void zero_tails(const Shared& shared, const WorkTile& work, const BwdSeqlenInfo& seqlen, State& place,
                       uint32_t& phases) {
    const auto zero = [&](uint32_t at, int from, int rows, uint32_t partial, uint32_t full, int bit) {
        zero_rows<HEAD>(at, from, rows, partial, phases >> bit & 1, full);
        phases ^= 1u << bit;
    };
    const bool partial = seqlen.partial_keys(work.key_block);
    const int keys = seqlen.keys - work.first_key(), steps = work.steps();
    if (partial) zero(shared.k, keys, KEYS, shared.k_partial(), shared.k_full(), 0);
    if (partial && steps == 0) zero(shared.v, keys, KEYS, shared.v_partial(), shared.v_full(), 1);
    StepIterator steps_at(work);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const int stage = place.stage, queries = seqlen.queries - steps_at.query_block * QUERIES;
        const bool ends = seqlen.partial_queries(steps_at.query_block);
        if (ends)
            zero(shared.q + stage * QUERY_BYTES, queries, QUERIES, shared.q_partial(stage), shared.q_full(stage),
                 2 + stage);
        if (partial && step == 0) zero(shared.v, keys, KEYS, shared.v_partial(), shared.v_full(), 1);
        if (ends)
            zero(shared.dout + stage * QUERY_BYTES, queries, QUERIES, shared.dout_partial(stage),
                 shared.dout_full(stage), 2 + STAGES + stage);
        place.advance();
        steps_at.next();
    }
}

// --- dq: sums in order ---

DEVICE void semaphore_wait(const uint32_t* semaphore, uint32_t order) {
    uint32_t now;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(semaphore) : "memory");
    } while (now != order);
    asm volatile("fence.proxy.async;" ::: "memory");
}
DEVICE void semaphore_release(uint32_t* semaphore, uint32_t order) {
    asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(semaphore), "r"(order + 1) : "memory");
}

// Brings a tile's keys, and its queries step by step.
DEVICE void load(const Shared& shared, const Maps& maps, const WorkTile& work, const BwdSeqlenInfo& seqlen,
                 const float* stats, int heads, State& place, uint32_t phase) {
    const auto keys = [&](uint32_t to, const TensorMap* map, uint32_t full) {
        mbarrier_arrive_expect_tx(full, KEY_BYTES);
        const int row = work.first_key() + seqlen.first_key;
        load_rows<HEAD, KEYS>(to, map, full, row, work.kv_head, work.batch);
    };
    const auto queries = [&](uint32_t to, const TensorMap* map, uint32_t full, const StepIterator& steps_at) {
        load_rows<HEAD, QUERIES>(to, map, full, steps_at.query_block * QUERIES + seqlen.first_query, steps_at.head,
                                 work.batch);
    };
    uint32_t k_full = shared.k_full(), v_full = shared.v_full();
    if (VARLEN && seqlen.partial_keys(work.key_block)) k_full = shared.k_partial(), v_full = shared.v_partial();
    StepIterator steps_at(work);
    const int steps = work.steps();
    const auto load_v = [&] {
        mbarrier_wait(shared.v_empty(), phase ^ 1);
        keys(shared.v, maps.v, v_full);
    };
    mbarrier_wait(shared.k_empty(), phase ^ 1);
    keys(shared.k, maps.k, k_full);
    if (steps == 0) load_v();
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        uint32_t q_full = shared.q_full(place.stage), dout_full = shared.dout_full(place.stage);
        if (VARLEN && seqlen.partial_queries(steps_at.query_block)) {
            q_full = shared.q_partial(place.stage);
            dout_full = shared.dout_partial(place.stage);
        }
        mbarrier_wait(shared.q_empty(place.stage), place.phase ^ 1);
        mbarrier_arrive_expect_tx(q_full, QUERY_BYTES);
        queries(shared.q + place.stage * QUERY_BYTES, maps.q, q_full, steps_at);
        if (step == 0) load_v();
        mbarrier_wait(shared.dout_empty(place.stage), place.phase ^ 1);
        mbarrier_arrive_expect_tx(dout_full, QUERY_BYTES + STATS_BYTES);
        queries(shared.dout + place.stage * QUERY_BYTES, maps.dout, dout_full, steps_at);
        const int64_t line = static_cast<int64_t>(work.batch) * heads + steps_at.head;
        bulk_copy_g2s(shared.stats + place.stage * STATS_BYTES,
                  stats + seqlen.place(line, steps_at.query_block) * (QUERIES * 2), STATS_BYTES, dout_full);
        place.advance();
        steps_at.next();
    }
}

// Carries dq of every PART_BUFFERS-th step to its sums, from step `first` of the tile on: others accumulate theirs
// while this one's are on their way and the next block's semaphore is released.
DEVICE void accumulate_dq(const Shared& shared, const WorkTile& work, const BwdSeqlenInfo& seqlen, float* sums,
                          uint32_t* semaphore, int heads, int buffer, uint32_t& phase, int& first) {
    const uint32_t from = shared.part(buffer);
    const int steps = work.steps();
    StepIterator steps_at(work);
    for (int i = 0; i < first; ++i) steps_at.next();
    int step = first;
#pragma unroll 1
    for (; step < steps; step += PART_BUFFERS) {
        const int64_t line = static_cast<int64_t>(work.batch) * heads + steps_at.head;
        const int64_t at = seqlen.place(line, steps_at.query_block);
        float* const to = sums + at * (2 * PART);
        const int order = seqlen.order(work.key_block, steps_at.query_block);
        semaphore_wait(semaphore + at, order);
        mbarrier_wait(shared.part_full(buffer), phase);
        if (order == 0) bulk_copy_s2g(to, from, 2 * PART_BYTES);
        else bulk_reduce_add_f32(to, from, 2 * PART_BYTES);
        tma_store_commit();
        tma_store_wait_read<0>();
        mbarrier_arrive(shared.part_empty(buffer));
        tma_store_wait();
        semaphore_release(semaphore + at, order);
        phase ^= 1;
        for (int i = 0; i < PART_BUFFERS; ++i) steps_at.next();
    }
    first = step - steps;
}

// scores (64 keys by QUERIES) = a warpgroup's rows of k or v @ a stage of q or do, transposed.
DEVICE void multiply_rows(float* scores, uint32_t rows, uint32_t stage) {
    const uint64_t a = wgmma_descriptor(rows, 0, 1024), b = wgmma_descriptor(stage, 0, 1024);
    float fresh[SCORES];
    undefined<SCORES>(fresh);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < HEAD / 16; ++k) {
        const int block = k / 4, chunk = k % 4 * 32;
        Wgmma<QUERIES>::run<false, false>(fresh, a + (block * KEYS * SWIZZLE_BYTES + chunk >> 4),
                                          b + (block * QUERIES * SWIZZLE_BYTES + chunk >> 4), k > 0);
    }
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < SCORES; ++i) scores[i] = fresh[i];
}

// sums (64 keys by HEAD) += packed (64 keys by QUERIES) @ a stage of q or do.
DEVICE void add_product(float* sums, const uint32_t* packed, uint32_t stage) {
    const uint64_t b = wgmma_descriptor(stage, QUERIES * SWIZZLE_BYTES, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < QUERIES / 16; ++k)
        WgmmaRs<HEAD>::run<true>(sums, packed + k * 4, b + (k * 16 * SWIZZLE_BYTES >> 4), 1);
    wgmma_commit();
}

// dv and dk leave through the places of v and of the scores' gradients, once both warpgroups are done with them.
DEVICE void finish(const Shared& shared, const Maps& maps, const WorkTile& work, const BwdSeqlenInfo& seqlen,
                   const float* dk, const float* dv, float scale) {
    const int own = reload_thread_idx() / 128 - 2;
    const uint32_t own_rows = own * 64 * SWIZZLE_BYTES;
    named_barrier_sync(1, 384);
    if (reload_thread_idx() % 128 == 0) mbarrier_arrive(shared.k_empty());
    stage_rows<HEAD, KEYS>(shared.ds + own_rows, dk, scale);
    stage_rows<HEAD, KEYS>(shared.v + own_rows, dv, P_UNSCALE);
    fence_proxy_async();
    named_barrier_sync(2 + own, 128);
    const int row = work.first_key() + own * 64;
    // TMA would write over the next sequence's first rows.
    if (VARLEN && row + 64 > seqlen.keys) {
        const int to = row + seqlen.first_key, count = seqlen.keys - row;
        store_staged<HEAD, KEYS>(maps.dv_rows, shared.v + own_rows, work.kv_head, to, count);
        store_staged<HEAD, KEYS>(maps.dk_rows, shared.ds + own_rows, work.kv_head, to, count);
        named_barrier_sync(2 + own, 128);
        if (reload_thread_idx() % 128 == 0) mbarrier_arrive(shared.v_empty());
        return;
    }
    if (reload_thread_idx() % 128 == 0) {
#pragma unroll
        for (int block = 0; block < HEAD_BLOCKS && row < seqlen.keys; ++block) {
            const uint32_t at = block * KEYS * SWIZZLE_BYTES + own_rows;
            const int to = row + seqlen.first_key;
            tma_store_4d(maps.dv, shared.v + at, block * 64, to, work.kv_head, work.batch);
            tma_store_4d(maps.dk, shared.ds + at, block * 64, to, work.kv_head, work.batch);
        }
        tma_store_commit();
        tma_store_wait_read<0>();
        mbarrier_arrive(shared.v_empty());
    }
    named_barrier_sync(2 + own, 128);
}

// Where the warpgroup's 64 lines of a block of KEYS begin.
DEVICE uint32_t own_rows() { return (reload_thread_idx() / 128 - 2) * 64 * SWIZZLE_BYTES; }

DEVICE void consume(const Shared& shared, const Maps& maps, const WorkTile& work, const BwdSeqlenInfo& seqlen,
                    const AttentionParams& params, int& taken) {
    float dk[SUMS], dv[SUMS], scores[SCORES];
    clear<SUMS>(dk);
    clear<SUMS>(dv);

    const int until = taken + work.steps();
    StepIterator steps_at(work);
    mbarrier_wait(shared.q_full(taken % STAGES), taken / STAGES & 1);
    multiply_rows(scores, shared.k + own_rows(), shared.q + taken % STAGES * QUERY_BYTES);
    wgmma_wait<0>();
    keep_in_registers<SCORES>(scores);
    do {
        const int stage = taken % STAGES;
        const uint32_t q = shared.q + stage * QUERY_BYTES;
        const uint32_t dout = shared.dout + stage * QUERY_BYTES;
        const uint32_t stats = shared.stats + stage * STATS_BYTES + reload_thread_idx() % 4 * 16;
        mbarrier_wait(shared.dout_full(stage), taken / STAGES & 1);

        // P.
        float p[SCORES], softcap_grad[SOFTCAP ? SCORES : 1];
        softmax_of<SOFTCAP>(p, softcap_grad, scores, stats, params);
        if (!seqlen.all(steps_at.query_block, work.first_key()))
            apply_mask(p, seqlen, steps_at.query_block, work.first_key(), 256);
        uint32_t packed[SCORES / 2], p16[SCORES / 2];
#pragma unroll
        for (int i = 0; i < SCORES / 2; ++i) p16[i] = pack2<T>(p[i * 2], p[i * 2 + 1]);
        float dp[SCORES];
        multiply_rows(dp, shared.v + own_rows(), dout);
        add_product(dv, p16, dout);
        // Float16 is taken apart through registers that are not there with dv's products under way.
        wgmma_wait<P_SCALE_LOG2 ? 0 : 1>();
        keep_in_registers<SCORES>(dp);
        if (P_SCALE_LOG2) keep_in_registers<SCORES / 2>(p16);

        // Gradients of the scores.
        softmax_backward<SOFTCAP>(packed, p16, dp, softcap_grad, stats);
        const int buffer = taken % DS_BUFFERS;
        mbarrier_wait(shared.ds_empty(buffer), taken / DS_BUFFERS & 1 ^ 1);
#pragma unroll
        for (int block = 0; block < QUERY_BLOCKS; ++block)
            stage_block(shared.ds + buffer * DS_BYTES + block * KEYS * SWIZZLE_BYTES + own_rows(), packed + block * 16,
                        reload_thread_idx());
        fence_proxy_async();
        mbarrier_arrive(shared.ds_full(buffer));
        wgmma_wait<0>();
        keep_in_registers<SCORES / 2>(p16);
        __syncwarp();  // its lanes have read the stats
        if (reload_thread_idx() % 32 == 0) mbarrier_arrive(shared.dout_empty(stage));
        add_product(dk, packed, q);
        ++taken;
        steps_at.next();
        // Without a next step this multiplies what lies there: in a branch, ptxas would keep all products apart.
        if (taken < until) mbarrier_wait(shared.q_full(taken % STAGES), taken / STAGES & 1);
        multiply_rows(scores, shared.k + own_rows(), shared.q + taken % STAGES * QUERY_BYTES);
        wgmma_wait<0>();
        keep_in_registers<SCORES>(scores);
        keep_in_registers<SCORES / 2>(packed);
        if (reload_thread_idx() % 128 == 0) mbarrier_arrive(shared.q_empty(stage));
    } while (taken < until);
    keep_in_registers<SUMS>(dk);
    keep_in_registers<SUMS>(dv);
    finish(shared, maps, work, seqlen, dk, dv, params.scale);
}

// dq's parts: gradients of the scores, keys running across, @ k; one part after the other, for few registers.
DEVICE void multiply_keys(const Shared& shared, int& taken, int until) {
    const int thread = thread_x() % 128;
    for (; taken < until; ++taken) {
        const int step = taken;
        const int buffer = step % DS_BUFFERS, part_buffer = step % PART_BUFFERS;
        mbarrier_wait(shared.ds_full(buffer), step / DS_BUFFERS & 1);
        const uint32_t from = shared.ds + buffer * DS_BYTES;
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {
            constexpr int BLOCK_BYTES = KEYS * SWIZZLE_BYTES;
            const uint64_t a = wgmma_descriptor(from + (QUERY_BLOCKS == 2 ? half : 0) * BLOCK_BYTES, BLOCK_BYTES, 1024);
            const uint64_t b =
                wgmma_descriptor(shared.k + (HEAD_BLOCKS == 2 ? half : 0) * BLOCK_BYTES, BLOCK_BYTES, 1024);
            float part[32];
            undefined<32>(part);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < KEYS / 16; ++k)
                Wgmma<64>::run<true, true>(part, a + (k * 16 * SWIZZLE_BYTES >> 4),
                                           b + (k * 16 * SWIZZLE_BYTES >> 4), k > 0);
            wgmma_commit();
            if (half == 0) mbarrier_wait(shared.part_empty(part_buffer), step / PART_BUFFERS & 1 ^ 1);
            wgmma_wait<0>();
            keep_in_registers<32>(part);
            if (half == 1 && thread == 0) mbarrier_arrive(shared.ds_empty(buffer));
            const uint32_t to = shared.part(part_buffer) + half * PART_BYTES + thread * 16;
#pragma unroll
            for (int c = 0; c < 8; ++c)
                asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + c * 2048), "f"(part[c * 4]),
                             "f"(part[c * 4 + 1]), "f"(part[c * 4 + 2]), "f"(part[c * 4 + 3])
                             : "memory");
        }
        fence_proxy_async();
        mbarrier_arrive(shared.part_full(part_buffer));
    }
    named_barrier_sync(1, 384);
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void attention_bwd_sm90(
    const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
    const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_dout,
    const __grid_constant__ TensorMap map_dk, const __grid_constant__ TensorMap map_dv,
    const __grid_constant__ AttentionParams params, float* dq_accum, uint32_t* semaphore, uint32_t* claimed,
    int kv_heads_per_band, uint32_t tiles_of_keys, int lines) {
    extern __shared__ __align__(1024) char bytes[];  // the swizzle repeats every 1024 bytes
    const Shared shared(shared_address(bytes));
    const AttentionParams& p = params;
    const float* const stats = p.stats;
    const int kv_heads = p.kv_heads, qheads_per_kvhead = p.qheads_per_kvhead;
    const Maps maps(map_q, map_k, map_v, map_dout, map_dk, map_dv, p);
    const uint32_t all = VARLEN ? p.tile_counts[0] * kv_heads : tiles_of_keys;
    if (VARLEN && block_x() >= all) return;
    const BwdSeqlenInfo seqlen = VARLEN ? seqlen_at(block_x(), p, kv_heads, lines)
                                        : BwdSeqlenInfo{p.seqlen_q, p.seqlen_k, p.left, p.right};
    Tiles tiles{shared, seqlen, kv_heads, qheads_per_kvhead, kv_heads_per_band, all,
                VARLEN ? work_tile_of(block_x(), seqlen, p, kv_heads)
                       : work_tile_of(block_x(), all, seqlen, kv_heads, qheads_per_kvhead, kv_heads_per_band)};

    if (thread_x() == 0) {
        maps.prefetch();
    } else if (thread_x() == 32) {
        mbarrier_init(shared.k_full(), 1);
        mbarrier_init(shared.v_full(), 1);
        mbarrier_init(shared.k_empty(), 2);
        mbarrier_init(shared.v_empty(), 2);
        for (int slot = 0; slot < 2; ++slot) {
            mbarrier_init(shared.tile_full(slot), 1);
            mbarrier_init(shared.tile_empty(slot), THREADS - 128 + PART_BUFFERS);
        }
        for (int buffer = 0; buffer < PART_BUFFERS; ++buffer) {
            mbarrier_init(shared.part_full(buffer), 128);
            mbarrier_init(shared.part_empty(buffer), 1);
        }
        for (int buffer = 0; buffer < DS_BUFFERS; ++buffer) {
            mbarrier_init(shared.ds_full(buffer), 256);
            mbarrier_init(shared.ds_empty(buffer), 1);
        }
        shared.init(2, 8);
        mbarrier_init_fence();
    }
    barrier();

    if (thread_x() < 128) {
        setmaxnreg_dec<32>();
        if (thread_x() == 0) {
            State place;
            tiles.each(claimed, [&](const WorkTile& work, const BwdSeqlenInfo& seqlen, uint32_t parity) {
                load(shared, maps, work, seqlen, stats, kv_heads * qheads_per_kvhead, place, parity);
            });
        } else if (thread_x() == 32 || thread_x() == 64) {
            const int buffer = thread_x() / 64;
            uint32_t phase = 0;
            int first = buffer;
            tiles.each(nullptr, [&](const WorkTile& work, const BwdSeqlenInfo& seqlen, uint32_t) {
                accumulate_dq(shared, work, seqlen, dq_accum, semaphore, kv_heads * qheads_per_kvhead, buffer, phase,
                              first);
            });
            tma_store_wait();
        } else if (VARLEN && thread_x() >= 96) {
            State place;
            uint32_t phases = 0;
            tiles.each(nullptr, [&](const WorkTile& work, const BwdSeqlenInfo& seqlen, uint32_t) {
                zero_tails(shared, work, seqlen, place, phases);
            });
        }
    } else if (thread_x() < 256) {
        setmaxnreg_dec<64>();
        int taken = 0;
        tiles.each(nullptr, [&](const WorkTile& work, const BwdSeqlenInfo&, uint32_t parity) {
            mbarrier_wait(shared.k_full(), parity);
            multiply_keys(shared, taken, taken + work.steps());
        });
    } else {
        setmaxnreg_inc<208>();
        int taken = 0;
        tiles.each(nullptr, [&](const WorkTile& work, const BwdSeqlenInfo& seqlen, uint32_t parity) {
            mbarrier_wait(shared.k_full(), parity);
            mbarrier_wait(shared.v_full(), parity);
            if (work.steps() > 0) {
                consume(shared, maps, work, seqlen, p, taken);
            } else {
                float zeros[SUMS] = {};
                finish(shared, maps, work, seqlen, zeros, zeros, 1);
            }
        });
    }
}
