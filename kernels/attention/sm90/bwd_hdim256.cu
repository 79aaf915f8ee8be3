// dk, dv and the gradients of scores for heads above 128, with Hopper's warpgroup matrix instructions.
//
// A block owns 64 keys of one key head: dk and dv of 256 columns are what two warpgroups can hold. Warpgroup 1 makes
// probabilities and dv, warpgroup 2 the gradients of the scores and dk, while the other's products run. Scores are
// computed transposed, keys by queries, so that both are first operands straight from registers; probabilities pass
// from one warpgroup to the other through shared memory. Two threads of warpgroup 0 copy: q to its ring, do to its.
//
// Gradients of the scores go to memory in 16 bits, and bwd_dq_hdim256.cu multiplies them with k: 2 bytes an element
// written and read once, where sums of dq of so narrow a block would take 4 * HEAD_D / 64 bytes added in L2.
//
// Defines: bwd_hdim256.h's; STAGES, CAPPED; HELD_D and HELD_E, the columns of k and v that are held in registers.
#include "bwd_hdim256.h"

#include "bwd_scores.h"
#if RAGGED
#include "bwd_hdim256_varlen.h"
#endif

constexpr int THREADS = 3 * 128;
constexpr int K_BYTES = KEYS * HEAD_D * 2, V_BYTES = KEYS * HEAD_E * 2;
constexpr int Q_BYTES = QUERIES * HEAD_D * 2, DOUT_BYTES = QUERIES * HEAD_E * 2;
constexpr int STATS_BYTES = QUERIES * 8;
constexpr int BUFFERS = 2;  // of probabilities, and of gradients of scores

struct Shared {
    uint32_t k, v, q, dout, chances, slopes, stats, barriers;

    DEVICE explicit Shared(uint32_t base)
        : k(base), v(k + K_BYTES), q(v + V_BYTES), dout(q + STAGES * Q_BYTES), chances(dout + STAGES * DOUT_BYTES),
          slopes(chances + BUFFERS * SLOPE_BYTES), stats(slopes + BUFFERS * SLOPE_BYTES),
          barriers(stats + STAGES * STATS_BYTES) {}

    // Barriers of 8 bytes: filled, and free again.
    DEVICE uint32_t k_full() const { return barriers; }
    DEVICE uint32_t v_full() const { return barriers + 8; }
    DEVICE uint32_t chances_full(int buffer) const { return barriers + 16 + buffer * 16; }
    DEVICE uint32_t chances_free(int buffer) const { return chances_full(buffer) + 8; }
    DEVICE uint32_t q_full(int stage) const { return barriers + 48 + stage * 32; }
    DEVICE uint32_t q_free(int stage) const { return q_full(stage) + 8; }
    DEVICE uint32_t dout_full(int stage) const { return q_full(stage) + 16; }
    DEVICE uint32_t dout_free(int stage) const { return q_full(stage) + 24; }
#if RAGGED
    // Filled, but for the rows that are not the sequence's own.
    DEVICE uint32_t k_torn() const { return q_full(STAGES); }
    DEVICE uint32_t v_torn() const { return k_torn() + 8; }
    DEVICE uint32_t q_torn(int stage) const { return k_torn() + 16 + stage * 16; }
    DEVICE uint32_t dout_torn(int stage) const { return q_torn(stage) + 8; }
#endif
};

struct Maps {
    const TensorMap *q, *k, *v, *dout, *dk, *dv;
#if RAGGED
    Tokens dk_tokens, dv_tokens;
#endif
};

#if RAGGED
DEVICE bool torn_keys(const Work& work, const Sight& sight) { return work.first_key() + KEYS > sight.keys; }
DEVICE bool torn_queries(const Walk& walk, const Sight& sight) {
    return (walk.query_block + 1) * QUERIES > sight.queries;
}

// Clears what lies beyond the sequence's end: in k and the ring of q, or in v and the ring of do. Their `full` and
// `torn` are those of the keys, and of the ring's first stage.
template <int COLUMNS>
DEVICE void clear_ends(const Work& work, const Sight& sight, uint32_t keys, uint32_t keys_torn, uint32_t keys_full,
                       uint32_t ring, uint32_t torn, uint32_t full) {
    if (torn_keys(work, sight))
        clear_rows<COLUMNS>(keys, sight.keys - work.first_key(), keys_torn, 0, keys_full);
    uint32_t phases = 0;
    Walk walk(work);
#pragma unroll 1
    for (int step = 0; step < work.steps(); ++step) {
        if (torn_queries(walk, sight)) {
            const int stage = step % STAGES;
            clear_rows<COLUMNS>(ring + stage * QUERIES * COLUMNS * 2, sight.queries - walk.query_block * QUERIES,
                                torn + stage * 16, phases >> stage & 1, full + stage * 32);
            phases ^= 1u << stage;
        }
        walk.next();
    }
}
#endif

DEVICE void load_q(const Shared& shared, const Maps& maps, const Work& work, const Sight& sight, const float* stats,
                   int heads) {
    uint32_t k_full = shared.k_full();
#if RAGGED
    if (torn_keys(work, sight)) k_full = shared.k_torn();
#endif
    mbarrier_arrive_expect_tx(k_full, K_BYTES);
    load_rows<HEAD_D>(shared.k, maps.k, k_full, work.first_key() + sight.first_key, work.group, work.batch);
    Walk walk(work);
#pragma unroll 1
    for (int step = 0; step < work.steps(); ++step) {
        const int stage = step % STAGES;
        uint32_t full = shared.q_full(stage);
#if RAGGED
        if (torn_queries(walk, sight)) full = shared.q_torn(stage);
#endif
        mbarrier_wait(shared.q_free(stage), step / STAGES & 1 ^ 1);
        mbarrier_arrive_expect_tx(full, Q_BYTES + STATS_BYTES);
        load_rows<HEAD_D>(shared.q + stage * Q_BYTES, maps.q, full, walk.query_block * QUERIES + sight.first_query,
                          walk.head, work.batch);
        const int64_t line = static_cast<int64_t>(work.batch) * heads + walk.head;
        bulk_copy_g2s(shared.stats + stage * STATS_BYTES, stats + sight.place(line, walk.query_block) * (QUERIES * 2),
                  STATS_BYTES, full);
        walk.next();
    }
}

DEVICE void load_dout(const Shared& shared, const Maps& maps, const Work& work, const Sight& sight) {
    uint32_t v_full = shared.v_full();
#if RAGGED
    if (torn_keys(work, sight)) v_full = shared.v_torn();
#endif
    mbarrier_arrive_expect_tx(v_full, V_BYTES);
    load_rows<HEAD_E>(shared.v, maps.v, v_full, work.first_key() + sight.first_key, work.group, work.batch);
    Walk walk(work);
#pragma unroll 1
    for (int step = 0; step < work.steps(); ++step) {
        const int stage = step % STAGES;
        uint32_t full = shared.dout_full(stage);
#if RAGGED
        if (torn_queries(walk, sight)) full = shared.dout_torn(stage);
#endif
        mbarrier_wait(shared.dout_free(stage), step / STAGES & 1 ^ 1);
        mbarrier_arrive_expect_tx(full, DOUT_BYTES);
        load_rows<HEAD_E>(shared.dout + stage * DOUT_BYTES, maps.dout, full,
                          walk.query_block * QUERIES + sight.first_query, walk.head, work.batch);
        walk.next();
    }
}

// The warpgroup's 64 rows of k or v, as first operand: HELD columns in registers, which shared memory need not give
// again in every step, the others there.
template <int COLUMNS, int HELD> struct Rows {
    uint32_t place;
    uint32_t words[HELD / 4 + 1];

    DEVICE explicit Rows(uint32_t place) : place(place) {}
    DEVICE void load_registers() {
        const int row = reload_thread_idx() % 128 / 32 * 16 + reload_thread_idx() % 32 / 4;
#pragma unroll
        for (int i = 0; i < HELD / 4; ++i) {
            const int column = i / 4 * 16 + i / 2 % 2 * 8;  // and the thread's pair of these 8
            const uint32_t at = place + column / 64 * 64 * LINE + (row + i % 2 * 8) * LINE +
                                (column % 64 / 8 ^ row % 8) * 16 + reload_thread_idx() % 4 * 4;
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(words[i]) : "r"(at) : "memory");
        }
    }
    // scores (64 keys by 64 queries) = the rows @ a stage of q or do, transposed.
    DEVICE void multiply(float* scores, uint32_t stage) const {
        const uint64_t a = wgmma_descriptor(place, 0, 1024), b = wgmma_descriptor(stage, 0, 1024);
        claim<SCORES>(scores);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < COLUMNS / 16; ++k) {
            const int at = k / 4 * 64 * LINE + k % 4 * 32 >> 4;
            if (k < HELD / 16) WgmmaRs<QUERIES>::run<false>(scores, words + k * 4, b + at, k > 0);
            else Wgmma<QUERIES>::run<false, false>(scores, a + at, b + at, k > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        keep_in_registers<SCORES>(scores);
    }
};

// sums (64 keys by COLUMNS) += packed (64 keys by 64 queries) @ a stage of q or do.
template <int COLUMNS> DEVICE void add_product(float* sums, uint32_t* packed, uint32_t stage) {
    const uint64_t b = wgmma_descriptor(stage, 64 * LINE, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < QUERIES / 16; ++k)
        WgmmaRs<COLUMNS>::template run<true>(sums, packed + k * 4, b + (k * 16 * LINE >> 4), 1);
    wgmma_commit();
    wgmma_wait<0>();
    keep_in_registers<SCORES / 2>(packed);
}

// A thread's words to the thread of the other warpgroup that computes the same scores.
DEVICE uint32_t exchange(const Shared& shared, int buffer) {
    return shared.chances + buffer * SLOPE_BYTES + reload_thread_idx() % 128 * 16;
}
DEVICE void send(uint32_t to, const uint32_t* words) {
#pragma unroll
    for (int i = 0; i < SCORES / 2; i += 4)
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to + i * 512), "r"(words[i]), "r"(words[i + 1]),
                     "r"(words[i + 2]), "r"(words[i + 3])
                     : "memory");
}
DEVICE void receive(uint32_t* words, uint32_t from) {
#pragma unroll
    for (int i = 0; i < SCORES / 2; i += 4)
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[i]), "=r"(words[i + 1]), "=r"(words[i + 2]), "=r"(words[i + 3])
                     : "r"(from + i * 512)
                     : "memory");
}

// Where the thread's statistics begin.
DEVICE uint32_t own_stats(const Shared& shared, int stage) {
    return shared.stats + stage * STATS_BYTES + reload_thread_idx() % 4 * 16;
}

DEVICE void make_dv(const Shared& shared, const Maps& maps, const Work& work, const Sight& sight,
                    const Factors& factors) {
    float dv[HEAD_E / 2];
    clear<HEAD_E / 2>(dv);
    const int steps = work.steps();
    Rows<HEAD_D, HELD_D> k(shared.k);
    if (steps > 0) {
        mbarrier_wait(shared.k_full(), 0);
        k.load_registers();
    }
    Walk walk(work);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const int stage = step % STAGES, buffer = step % BUFFERS;
        mbarrier_wait(shared.q_full(stage), step / STAGES & 1);
        float scores[SCORES], chance[SCORES], bend[CAPPED ? SCORES : 1];
        k.multiply(scores, shared.q + stage * Q_BYTES);
        weigh(chance, bend, scores, own_stats(shared, stage), factors);
        release(shared.q_free(stage));
        if (!sight.all(walk.query_block, work.first_key()))
            hide(chance, sight, walk.query_block, work.first_key(), 128);
        uint32_t chances[SCORES / 2];
#pragma unroll
        for (int i = 0; i < SCORES / 2; ++i) chances[i] = pack2<T>(chance[i * 2], chance[i * 2 + 1]);
        mbarrier_wait(shared.chances_free(buffer), step / BUFFERS & 1 ^ 1);
#if CAPPED
        uint32_t bent[SCORES / 2];
#pragma unroll
        for (int i = 0; i < SCORES / 2; ++i)
            bent[i] = pack2<T>(chance[i * 2] * bend[i * 2], chance[i * 2 + 1] * bend[i * 2 + 1]);
        send(exchange(shared, buffer), bent);
#else
        send(exchange(shared, buffer), chances);
#endif
        release(shared.chances_full(buffer));
        mbarrier_wait(shared.dout_full(stage), step / STAGES & 1);
        add_product<HEAD_E>(dv, chances, shared.dout + stage * DOUT_BYTES);
        release(shared.dout_free(stage));
        walk.next();
    }
    keep_in_registers<HEAD_E / 2>(dv);
    named_barrier_sync(1, 256);  // v is not read any more
    const int row = work.first_key() + sight.first_key;
#if RAGGED
    if (torn_keys(work, sight))
        return store_end<HEAD_E>(maps.dv_tokens, shared.v, dv, LOWERED, 2, row, sight.keys - work.first_key(),
                              work.group);
#endif
    store_rows<HEAD_E>(maps.dv, shared.v, dv, LOWERED, 2, row, work.group, work.batch);
}

DEVICE void make_dk(const Shared& shared, const Maps& maps, const Work& work, const Sight& sight, T* kept,
                    const Turn& turn, int groups, float scale) {
    float dk[HEAD_D / 2];
    clear<HEAD_D / 2>(dk);
    const int steps = work.steps();
    Rows<HEAD_E, HELD_E> v(shared.v);
    if (steps > 0) {
        mbarrier_wait(shared.v_full(), 0);
        v.load_registers();
    }
    Walk walk(work);
    const int lowest = work.highest - work.blocks + 1;
    const int first_head = (turn.line - work.batch * groups) * work.share;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const int stage = step % STAGES, buffer = step % BUFFERS;
        mbarrier_wait(shared.dout_full(stage), step / STAGES & 1);
        float slopes[SCORES];
        v.multiply(slopes, shared.dout + stage * DOUT_BYTES);
        release(shared.dout_free(stage));
        uint32_t chances[SCORES / 2], packed[SCORES / 2];
        mbarrier_wait(shared.chances_full(buffer), step / BUFFERS & 1);
        receive(chances, exchange(shared, buffer));
        release(shared.chances_free(buffer));
        mbarrier_wait(shared.q_full(stage), step / STAGES & 1);
        bend_back(packed, chances, slopes, nullptr, own_stats(shared, stage));

        // The other buffer has left once the barrier is passed, and may be written in the next step.
        const uint32_t through = shared.slopes + buffer * SLOPE_BYTES;
        stage_block(through, packed, reload_thread_idx());
        fence_proxy_async();
        if (reload_thread_idx() % 128 == 0) tma_store_wait_read<0>();
        named_barrier_sync(3, 128);
        if (reload_thread_idx() % 128 == 0) {
            bulk_copy_s2g(kept_block(kept, turn, walk.head - first_head, work.key_block, walk.query_block - lowest),
                       through, SLOPE_BYTES);
            tma_store_commit();
        }
        add_product<HEAD_D>(dk, packed, shared.q + stage * Q_BYTES);
        release(shared.q_free(stage));
        walk.next();
    }
    keep_in_registers<HEAD_D / 2>(dk);
    named_barrier_sync(1, 256);  // k is not read any more
    const int row = work.first_key() + sight.first_key;
#if RAGGED
    if (torn_keys(work, sight))
        return store_end<HEAD_D>(maps.dk_tokens, shared.k, dk, scale, 3, row, sight.keys - work.first_key(),
                              work.group);
#endif
    store_rows<HEAD_D>(maps.dk, shared.k, dk, scale, 3, row, work.group, work.batch);
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void attention_backward_wide(
    const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
    const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_dout,
    const __grid_constant__ TensorMap map_dk, const __grid_constant__ TensorMap map_dv, const float* stats,
    T* kept,
#if RAGGED
    const int* bounds, const int* tile_list, const int* counts, const int* places, const int* layout, T* dk, T* dv,
    int64_t dk_head, int64_t dk_row, int64_t dv_head, int64_t dv_row, int dk_columns, int dv_columns, int number,
    int count, int rows, int reach,
#else
    int line, int lines, int block, int blocks, int most,
#endif
    int queries, int keys, int groups, int share, int together, int left, int right, float scale, float to_score,
    float cap) {
    extern __shared__ __align__(1024) char bytes[];  // the swizzle repeats every 1024 bytes
    const Shared shared(shared_address(bytes));
#if RAGGED
    const Maps maps{&map_q, &map_k, &map_v, &map_dout, &map_dk, &map_dv,
                    {dk, dk_head, dk_row, dk_columns}, {dv, dv_head, dv_row, dv_columns}};
    const Table table{bounds, tile_list, count, rows};
    const int width = turn_lines({places, layout, reach}, number, groups);
    if (block_x() >= counts[0] * width) return;
    const int z = tile_list[block_x() / width * 2];
    const Sight sight = sight_of(block_x(), {queries, keys, left, right}, table, width);
    const Turn turn = turn_of({places, layout, reach}, number, groups, z, sequence_of(bounds, z, count), left,
                              right);
    Work work = work_of(block_x(), sight, table, width, share);
    work.group += turn.line;
    if (work.key_block < turn.block || work.key_block >= turn.block + turn.blocks) return;
#else
    const Maps maps{&map_q, &map_k, &map_v, &map_dout, &map_dk, &map_dv};
    const Sight sight{queries, keys, left, right};
    const Turn turn{line, lines, block, blocks, most};
    // `together` key heads are walked together, from the first block of keys of each to the last.
    const int near = block_x() / (blocks * together) * together, inside = block_x() - near * blocks;
    const int width = Sight::min(together, lines - near), own = line + near + inside % width;
    const Work work = work_in(sight, own / groups, own % groups, block + inside / width, share);
#endif

    if (thread_x() == 0) {
        tma_prefetch_descriptor(&map_q);
        tma_prefetch_descriptor(&map_k);
        tma_prefetch_descriptor(&map_v);
        tma_prefetch_descriptor(&map_dout);
        mbarrier_init(shared.k_full(), 1);
        mbarrier_init(shared.v_full(), 1);
        for (int buffer = 0; buffer < BUFFERS; ++buffer) {
            mbarrier_init(shared.chances_full(buffer), 4);
            mbarrier_init(shared.chances_free(buffer), 4);
        }
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(shared.q_full(stage), 1);
            mbarrier_init(shared.q_free(stage), 8);
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
        setmaxnreg_dec<24>();
        if (work.steps() > 0) {
            if (thread_x() == 0) load_q(shared, maps, work, sight, stats, groups * share);
            else if (thread_x() == 32) load_dout(shared, maps, work, sight);
#if RAGGED
            else if (thread_x() / 32 == 2)
                clear_ends<HEAD_D>(work, sight, shared.k, shared.k_torn(), shared.k_full(), shared.q,
                                   shared.q_torn(0), shared.q_full(0));
            else if (thread_x() / 32 == 3)
                clear_ends<HEAD_E>(work, sight, shared.v, shared.v_torn(), shared.v_full(), shared.dout,
                                   shared.dout_torn(0), shared.dout_full(0));
#endif
        }
    } else if (thread_x() < 256) {
        setmaxnreg_inc<240>();
        make_dv(shared, maps, work, sight, Factors{scale, to_score, cap});
    } else {
        setmaxnreg_inc<240>();
        make_dk(shared, maps, work, sight, kept, turn, groups, scale);
    }
}
