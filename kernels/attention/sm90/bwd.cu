// dk, dv and the sums of dq with Hopper's warpgroup matrix instructions.
//
// A block owns 128 keys of one key head and walks the blocks of QUERIES queries that see any of them, of every
// query head that reads the key head, from the last query to the first. Scores are computed transposed, keys
// by queries, so that probabilities and their gradients are first operands of dv and dk straight from
// registers. Warpgroup 0 copies: one thread brings q, do and the queries' statistics through a ring of STAGES
// stages, two carry dq of alternate steps to its float32 sums in global memory. Warpgroup 1 makes dq from the
// gradients of the scores, which come through shared memory. Warpgroups 2 and 3 own 64 keys each and do the rest.
//
// Blocks of keys add to a block of queries in the order of the keys, by a counter of turns per block of queries, so
// that the same input gives the same bits. A tile waits only for tiles before it, which blocks take in order.
//
// Defines: bwd.h's; STAGES, PERSISTENT, CAPPED. With RAGGED `claimed` points to how many blocks of keys there
// are.
#include "bwd_tiles.h"

#include "bwd_scores.h"
#if RAGGED
#include "bwd_varlen.h"
#endif

constexpr int THREADS = 4 * 128;

DEVICE void wait_turn(const uint32_t* turns, uint32_t turn) {
    uint32_t now;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(turns) : "memory");
    } while (now != turn);
    asm volatile("fence.proxy.async;" ::: "memory");
}
DEVICE void end_turn(uint32_t* turns, uint32_t turn) {
    asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(turns), "r"(turn + 1) : "memory");
}

struct Maps {
    const TensorMap *q, *k, *v, *dout, *dk, *dv;
#if RAGGED
    Rows dk_rows, dv_rows;
#endif
};

// Brings a tile's keys, and its queries step by step.
DEVICE void load(const Shared& shared, const Maps& maps, const Work& work, const Sight& sight,
                 const float* stats, int heads, Place& place, uint32_t phase) {
    const auto keys = [&](uint32_t to, const TensorMap* map, uint32_t full) {
        mbarrier_arrive_expect_tx(full, KEY_BYTES);
        const int row = work.first_key() + sight.first_key;
#pragma unroll
        for (int block = 0; block < HEAD_BLOCKS; ++block)
            tma_load_4d(to + block * KEYS * LINE, map, full, block * 64, row, work.group, work.batch);
    };
    const auto queries = [&](uint32_t to, const TensorMap* map, uint32_t full, const Walk& walk) {
#pragma unroll
        for (int block = 0; block < HEAD_BLOCKS; ++block)
            tma_load_4d(to + block * QUERIES * LINE, map, full, block * 64,
                     walk.query_block * QUERIES + sight.first_query, walk.head, work.batch);
    };
    uint32_t k_full = shared.k_full(), v_full = shared.v_full();
#if RAGGED
    if (torn_keys(work, sight)) k_full = shared.k_torn(), v_full = shared.v_torn();
#endif
    Walk walk(work);
    const int steps = work.steps();
    const auto load_v = [&] {
        mbarrier_wait(shared.v_free(), phase ^ 1);
        keys(shared.v, maps.v, v_full);
    };
    mbarrier_wait(shared.k_free(), phase ^ 1);
    keys(shared.k, maps.k, k_full);
    if (steps == 0) load_v();
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        uint32_t q_full = shared.q_full(place.stage), dout_full = shared.dout_full(place.stage);
#if RAGGED
        if (torn_queries(walk, sight)) q_full = shared.q_torn(place.stage), dout_full = shared.dout_torn(place.stage);
#endif
        mbarrier_wait(shared.q_free(place.stage), place.phase ^ 1);
        mbarrier_arrive_expect_tx(q_full, QUERY_BYTES);
        queries(shared.q + place.stage * QUERY_BYTES, maps.q, q_full, walk);
        if (step == 0) load_v();
        mbarrier_wait(shared.dout_free(place.stage), place.phase ^ 1);
        mbarrier_arrive_expect_tx(dout_full, QUERY_BYTES + STATS_BYTES);
        queries(shared.dout + place.stage * QUERY_BYTES, maps.dout, dout_full, walk);
        const int64_t line = static_cast<int64_t>(work.batch) * heads + walk.head;
        bulk_copy_g2s(shared.stats + place.stage * STATS_BYTES,
                  stats + sight.place(line, walk.query_block) * (QUERIES * 2), STATS_BYTES, dout_full);
        place.advance();
        walk.next();
    }
}

// Carries dq of every PART_BUFFERS-th step to its sums, from step `first` of the tile on: others carry theirs while
// this one's are on their way and the next block is told of its turn.
DEVICE void carry(const Shared& shared, const Work& work, const Sight& sight, float* sums, uint32_t* turns,
                  int heads, int buffer, uint32_t& phase, int& first) {
    const uint32_t from = shared.part(buffer);
    const int steps = work.steps();
    Walk walk(work);
    for (int i = 0; i < first; ++i) walk.next();
    int step = first;
#pragma unroll 1
    for (; step < steps; step += PART_BUFFERS) {
        const int64_t line = static_cast<int64_t>(work.batch) * heads + walk.head;
        const int64_t at = sight.place(line, walk.query_block);
        float* const to = sums + at * (2 * PART);
        const int turn = sight.turn(work.key_block, walk.query_block);
        wait_turn(turns + at, turn);
        mbarrier_wait(shared.part_full(buffer), phase);
        if (turn == 0) bulk_copy_s2g(to, from, 2 * PART_BYTES);
        else bulk_reduce_add_f32(to, from, 2 * PART_BYTES);
        tma_store_commit();
        tma_store_wait_read<0>();
        mbarrier_arrive(shared.part_free(buffer));
        tma_store_wait();
        end_turn(turns + at, turn);
        phase ^= 1;
        for (int i = 0; i < PART_BUFFERS; ++i) walk.next();
    }
    first = step - steps;
}

// scores (64 keys by QUERIES) = a warpgroup's rows of k or v @ a stage of q or do, transposed.
DEVICE void multiply_rows(float* scores, uint32_t rows, uint32_t stage) {
    const uint64_t a = wgmma_descriptor(rows, 0, 1024), b = wgmma_descriptor(stage, 0, 1024);
    float fresh[SCORES];
    claim<SCORES>(fresh);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < HEAD / 16; ++k) {
        const int block = k / 4, chunk = k % 4 * 32;
        Wgmma<QUERIES>::run<false, false>(fresh, a + (block * KEYS * LINE + chunk >> 4),
                                          b + (block * QUERIES * LINE + chunk >> 4), k > 0);
    }
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < SCORES; ++i) scores[i] = fresh[i];
}

// sums (64 keys by HEAD) += packed (64 keys by QUERIES) @ a stage of q or do.
DEVICE void add_product(float* sums, const uint32_t* packed, uint32_t stage) {
    const uint64_t b = wgmma_descriptor(stage, QUERIES * LINE, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < QUERIES / 16; ++k)
        WgmmaRs<HEAD>::run<true>(sums, packed + k * 4, b + (k * 16 * LINE >> 4), 1);
    wgmma_commit();
}

// dv and dk leave through the places of v and of the scores' gradients, once both warpgroups are done with them.
DEVICE void finish(const Shared& shared, const Maps& maps, const Work& work, const Sight& sight, const float* dk,
                   const float* dv, float scale) {
    const int own = reload_thread_idx() / 128 - 2;
    const uint32_t own_rows = own * 64 * LINE;
    const auto stage = [&](uint32_t to, const float* sums, float factor) {
#pragma unroll
        for (int block = 0; block < HEAD_BLOCKS; ++block) {
            uint32_t words[16];
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const float* pair = sums + block * 32 + i * 2;
                words[i] = pack2<T>(pair[0] * factor, pair[1] * factor);
            }
            stage_block(to + block * KEYS * LINE + own_rows, words, reload_thread_idx());
        }
    };
    named_barrier_sync(1, 384);
    if (reload_thread_idx() % 128 == 0) mbarrier_arrive(shared.k_free());
    stage(shared.slopes, dk, scale);
    stage(shared.v, dv, LOWERED);
    fence_proxy_async();
    named_barrier_sync(2 + own, 128);
    const int row = work.first_key() + own * 64;
#if RAGGED
    // The copy engine would write over the next sequence's first rows.
    if (row + 64 > sight.keys) {
        store_rows(maps.dv_rows, shared.v + own_rows, work.group, row + sight.first_key, sight.keys - row);
        store_rows(maps.dk_rows, shared.slopes + own_rows, work.group, row + sight.first_key, sight.keys - row);
        named_barrier_sync(2 + own, 128);
        if (reload_thread_idx() % 128 == 0) mbarrier_arrive(shared.v_free());
        return;
    }
#endif
    if (reload_thread_idx() % 128 == 0) {
#pragma unroll
        for (int block = 0; block < HEAD_BLOCKS && row < sight.keys; ++block) {
            const uint32_t at = block * KEYS * LINE + own_rows;
            const int to = row + sight.first_key;
            tma_store_4d(maps.dv, shared.v + at, block * 64, to, work.group, work.batch);
            tma_store_4d(maps.dk, shared.slopes + at, block * 64, to, work.group, work.batch);
        }
        tma_store_commit();
        tma_store_wait_read<0>();
        mbarrier_arrive(shared.v_free());
    }
    named_barrier_sync(2 + own, 128);
}

// Where the warpgroup's 64 lines of a block of KEYS begin.
DEVICE uint32_t own_rows() { return (reload_thread_idx() / 128 - 2) * 64 * LINE; }

DEVICE void consume(const Shared& shared, const Maps& maps, const Work& work, const Sight& sight,
                    const Factors& factors, int& taken) {
    float dk[SUMS], dv[SUMS], scores[SCORES];
    clear<SUMS>(dk);
    clear<SUMS>(dv);

    const int until = taken + work.steps();
    Walk walk(work);
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

        // Probabilities.
        float chance[SCORES], bend[CAPPED ? SCORES : 1];
        weigh(chance, bend, scores, stats, factors);
        if (!sight.all(walk.query_block, work.first_key()))
            hide(chance, sight, walk.query_block, work.first_key(), 256);
        uint32_t packed[SCORES / 2], chances[SCORES / 2];
#pragma unroll
        for (int i = 0; i < SCORES / 2; ++i) chances[i] = pack2<T>(chance[i * 2], chance[i * 2 + 1]);
        float slopes[SCORES];
        multiply_rows(slopes, shared.v + own_rows(), dout);
        add_product(dv, chances, dout);
        // Float16 is taken apart through registers that are not there with dv's products under way.
        wgmma_wait<LIFT ? 0 : 1>();
        keep_in_registers<SCORES>(slopes);
        if (LIFT) keep_in_registers<SCORES / 2>(chances);

        // Gradients of the scores.
        bend_back(packed, chances, slopes, bend, stats);
        const int buffer = taken % SLOPE_BUFFERS;
        mbarrier_wait(shared.slopes_free(buffer), taken / SLOPE_BUFFERS & 1 ^ 1);
#pragma unroll
        for (int block = 0; block < QUERY_BLOCKS; ++block)
            stage_block(shared.slopes + buffer * SLOPE_BYTES + block * KEYS * LINE + own_rows(), packed + block * 16,
                        reload_thread_idx());
        fence_proxy_async();
        mbarrier_arrive(shared.slopes_full(buffer));
        wgmma_wait<0>();
        keep_in_registers<SCORES / 2>(chances);
        __syncwarp();  // its lanes have read the stats
        if (reload_thread_idx() % 32 == 0) mbarrier_arrive(shared.dout_free(stage));
        add_product(dk, packed, q);
        ++taken;
        walk.next();
        // Without a next step this multiplies what lies there: in a branch, ptxas would keep all products apart.
        if (taken < until) mbarrier_wait(shared.q_full(taken % STAGES), taken / STAGES & 1);
        multiply_rows(scores, shared.k + own_rows(), shared.q + taken % STAGES * QUERY_BYTES);
        wgmma_wait<0>();
        keep_in_registers<SCORES>(scores);
        keep_in_registers<SCORES / 2>(packed);
        if (reload_thread_idx() % 128 == 0) mbarrier_arrive(shared.q_free(stage));
    } while (taken < until);
    keep_in_registers<SUMS>(dk);
    keep_in_registers<SUMS>(dv);
    finish(shared, maps, work, sight, dk, dv, factors.scale);
}

// dq's parts: gradients of the scores, keys running across, @ k; one part after the other, for few registers.
DEVICE void multiply_keys(const Shared& shared, int& taken, int until) {
    const int thread = thread_x() % 128;
    for (; taken < until; ++taken) {
        const int step = taken;
        const int buffer = step % SLOPE_BUFFERS, turn = step % PART_BUFFERS;
        mbarrier_wait(shared.slopes_full(buffer), step / SLOPE_BUFFERS & 1);
        const uint32_t from = shared.slopes + buffer * SLOPE_BYTES;
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {
            const uint64_t a = wgmma_descriptor(from + (QUERY_BLOCKS == 2 ? half : 0) * KEYS * LINE, KEYS * LINE, 1024);
            const uint64_t b = wgmma_descriptor(shared.k + (HEAD_BLOCKS == 2 ? half : 0) * KEYS * LINE, KEYS * LINE, 1024);
            float part[32];
            claim<32>(part);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < KEYS / 16; ++k)
                Wgmma<64>::run<true, true>(part, a + (k * 16 * LINE >> 4), b + (k * 16 * LINE >> 4), k > 0);
            wgmma_commit();
            if (half == 0) mbarrier_wait(shared.part_free(turn), step / PART_BUFFERS & 1 ^ 1);
            wgmma_wait<0>();
            keep_in_registers<32>(part);
            if (half == 1 && thread == 0) mbarrier_arrive(shared.slopes_free(buffer));
            const uint32_t to = shared.part(turn) + half * PART_BYTES + thread * 16;
#pragma unroll
            for (int c = 0; c < 8; ++c)
                asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + c * 2048), "f"(part[c * 4]),
                             "f"(part[c * 4 + 1]), "f"(part[c * 4 + 2]), "f"(part[c * 4 + 3])
                             : "memory");
        }
        fence_proxy_async();
        mbarrier_arrive(shared.part_full(turn));
    }
    named_barrier_sync(1, 384);
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void attention_backward(
    const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
    const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_dout,
    const __grid_constant__ TensorMap map_dk, const __grid_constant__ TensorMap map_dv, const float* stats,
    float* sums, uint32_t* turns, uint32_t* claimed, int queries, int keys, int groups, int share, int together,
    int left, int right, uint32_t all, float scale, float to_score, float cap
#if RAGGED
    , const int* bounds, const int* tile_list, int count, int lines, T* dk, T* dv, int64_t dk_head, int64_t dk_row,
    int64_t dv_head, int64_t dv_row, int dk_columns, int dv_columns
#endif
) {
    extern __shared__ __align__(1024) char bytes[];  // the swizzle repeats every 1024 bytes
    const Shared shared(shared_address(bytes));
#if RAGGED
    const Maps maps{&map_q, &map_k, &map_v, &map_dout, &map_dk, &map_dv,
                    {dk, dk_head, dk_row, dk_columns}, {dv, dv_head, dv_row, dv_columns}};
    const Table table{bounds, tile_list, count, lines};
    all = *claimed * groups;
    if (block_x() >= all) return;
    const Sight sight = sight_of(block_x(), {queries, keys, left, right}, table, groups);
    Tiles tiles{shared, sight, groups, share, together, all, work_of(block_x(), sight, table, groups, share)};
#else
    const Maps maps{&map_q, &map_k, &map_v, &map_dout, &map_dk, &map_dv};
    const Sight sight{queries, keys, left, right};
    Tiles tiles{shared, sight, groups, share, together, all,
                work_of(block_x(), all, sight, groups, share, together)};
#endif

    if (thread_x() == 0) {
        tma_prefetch_descriptor(&map_q);
        tma_prefetch_descriptor(&map_k);
        tma_prefetch_descriptor(&map_v);
        tma_prefetch_descriptor(&map_dout);
    } else if (thread_x() == 32) {
        mbarrier_init(shared.k_full(), 1);
        mbarrier_init(shared.v_full(), 1);
        mbarrier_init(shared.k_free(), 2);
        mbarrier_init(shared.v_free(), 2);
        for (int slot = 0; slot < 2; ++slot) {
            mbarrier_init(shared.tile_full(slot), 1);
            mbarrier_init(shared.tile_free(slot), THREADS - 128 + PART_BUFFERS);
        }
        for (int buffer = 0; buffer < PART_BUFFERS; ++buffer) {
            mbarrier_init(shared.part_full(buffer), 128);
            mbarrier_init(shared.part_free(buffer), 1);
        }
        for (int buffer = 0; buffer < SLOPE_BUFFERS; ++buffer) {
            mbarrier_init(shared.slopes_full(buffer), 256);
            mbarrier_init(shared.slopes_free(buffer), 1);
        }
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(shared.q_full(stage), 1);
            mbarrier_init(shared.q_free(stage), 2);
            mbarrier_init(shared.dout_full(stage), 1);
            mbarrier_init(shared.dout_free(stage), 8);
        }
#if RAGGED
        for (int i = 0; i < 2 + 2 * STAGES; ++i) mbarrier_init(shared.k_torn() + i * 8, 1);
#endif
        mbarrier_init_fence();
    }
    barrier();

    if (thread_x() < 128) {
        setmaxnreg_dec<32>();
        if (thread_x() == 0) {
            Place place;
            tiles.each(claimed, [&](const Work& work, const Sight& sight, uint32_t parity) {
                load(shared, maps, work, sight, stats, groups * share, place, parity);
            });
        } else if (thread_x() == 32 || thread_x() == 64) {
            const int buffer = thread_x() / 64;
            uint32_t phase = 0;
            int first = buffer;
            tiles.each(nullptr, [&](const Work& work, const Sight& sight, uint32_t) {
                carry(shared, work, sight, sums, turns, groups * share, buffer, phase, first);
            });
            tma_store_wait();
        }
#if RAGGED
        else if (thread_x() >= 96) {
            Place place;
            uint32_t phases = 0;
            tiles.each(nullptr, [&](const Work& work, const Sight& sight, uint32_t) {
                clear_ends(shared, work, sight, place, phases);
            });
        }
#endif
    } else if (thread_x() < 256) {
        setmaxnreg_dec<64>();
        int taken = 0;
        tiles.each(nullptr, [&](const Work& work, const Sight&, uint32_t parity) {
            mbarrier_wait(shared.k_full(), parity);
            multiply_keys(shared, taken, taken + work.steps());
        });
    } else {
        setmaxnreg_inc<208>();
        int taken = 0;
        tiles.each(nullptr, [&](const Work& work, const Sight& sight, uint32_t parity) {
            mbarrier_wait(shared.k_full(), parity);
            mbarrier_wait(shared.v_full(), parity);
            if (work.steps() > 0) {
                consume(shared, maps, work, sight, Factors{scale, to_score, cap}, taken);
            } else {
                float zeros[SUMS] = {};
                finish(shared, maps, work, sight, zeros, zeros, 1);
            }
        });
    }
}
