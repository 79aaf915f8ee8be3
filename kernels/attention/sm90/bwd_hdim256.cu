// dk, dv and the gradients of scores for heads above 128, with Hopper's warpgroup matrix instructions.
//
// A block owns 64 keys of one key head: dk and dv of 256 columns are what two warpgroups can hold. Warpgroup 1 makes
// P and dv, warpgroup 2 the gradients of the scores and dk, while the other's products run. Scores are
// computed transposed, keys by queries, so that both are first operands straight from registers; P pass
// from one warpgroup to the other through shared memory. Two threads of warpgroup 0 copy: q to its stages, do to its.
//
// Gradients of the scores go to memory in 16 bits, and bwd_dq_hdim256.cu multiplies them with k: 2 bytes an element
// written and read once, where sums of dq of so narrow a block would take 4 * HEAD_D / 64 bytes added in L2.
//
// Defines: bwd.h's; HEAD_D and HEAD_E, the columns of q and k and those of v and do (multiples of 64);
// STAGES, SOFTCAP; HELD_D and HELD_E, the columns of k and v that are held in registers.
#include "_lib/ptx/registers.h"
#include "_lib/ptx/wgmma.h"
#include "bwd_mainloop.h"

constexpr int THREADS = 3 * 128;
constexpr int K_BYTES = KEYS * HEAD_D * 2, V_BYTES = KEYS * HEAD_E * 2;
constexpr int Q_BYTES = QUERIES * HEAD_D * 2, DOUT_BYTES = QUERIES * HEAD_E * 2;
constexpr int STATS_BYTES = QUERIES * 8;
constexpr int BUFFERS = 2;  // of P, and of gradients of scores

struct Shared : StageBarriers {
    uint32_t k, v, q, dout, p, ds, stats, barriers;

    DEVICE explicit Shared(uint32_t base)
        : k(base), v(k + K_BYTES), q(v + V_BYTES), dout(q + STAGES * Q_BYTES), p(dout + STAGES * DOUT_BYTES),
          ds(p + BUFFERS * DS_BYTES), stats(ds + BUFFERS * DS_BYTES),
          barriers(stats + STAGES * STATS_BYTES) {
        first = barriers + 48;
    }

    // Barriers of 8 bytes: filled, and free again.
    DEVICE uint32_t k_full() const { return barriers; }
    DEVICE uint32_t v_full() const { return barriers + 8; }
    DEVICE uint32_t p_full(int buffer) const { return barriers + 16 + buffer * 16; }
    DEVICE uint32_t p_empty(int buffer) const { return p_full(buffer) + 8; }
};

// k and the stages of q, or v and those of do. `full`, `empty` and `partial` are the barriers of the first stage.
struct Operands {
    uint32_t keys, keys_full, keys_partial, stages, full, empty, partial;
    const TensorMap *keys_map, *map;
};

// Copies the tile's keys, and of each step its queries; `more` brings MORE_BYTES to a stage besides.
template <int COLUMNS, int MORE_BYTES, class More>
DEVICE void load(const Operands& operands, const WorkTile& work, const BwdSeqlenInfo& seqlen, const More& more) {
    constexpr int STAGE_BYTES = QUERIES * COLUMNS * 2;
    const bool partial_keys = VARLEN && seqlen.partial_keys(work.key_block);
    const uint32_t keys_full = partial_keys ? operands.keys_partial : operands.keys_full;
    mbarrier_arrive_expect_tx(keys_full, KEYS * COLUMNS * 2);
    load_rows<COLUMNS, KEYS>(operands.keys, operands.keys_map, keys_full, work.first_key() + seqlen.first_key,
                             work.kv_head, work.batch);
    StepIterator steps_at(work);
#pragma unroll 1
    for (int step = 0; step < work.steps(); ++step) {
        const int stage = step % STAGES;
        uint32_t full = operands.full + stage * 32;
        if (VARLEN && seqlen.partial_queries(steps_at.query_block)) full = operands.partial + stage * 16;
        mbarrier_wait(operands.empty + stage * 32, step / STAGES & 1 ^ 1);
        mbarrier_arrive_expect_tx(full, STAGE_BYTES + MORE_BYTES);
        load_rows<COLUMNS, QUERIES>(operands.stages + stage * STAGE_BYTES, operands.map, full,
                                    steps_at.query_block * QUERIES + seqlen.first_query, steps_at.head, work.batch);
        more(steps_at, stage, full);
        steps_at.next();
    }
}

// Varlen: clears what `load` brings from beyond the sequence's end.
template <int COLUMNS>
DEVICE void zero_tails(const Operands& operands, const WorkTile& work, const BwdSeqlenInfo& seqlen) {
    if (seqlen.partial_keys(work.key_block))
        zero_rows<COLUMNS>(operands.keys, seqlen.keys - work.first_key(), KEYS, operands.keys_partial, 0,
                           operands.keys_full);
    uint32_t phases = 0;
    StepIterator steps_at(work);
#pragma unroll 1
    for (int step = 0; step < work.steps(); ++step) {
        if (seqlen.partial_queries(steps_at.query_block)) {
            const int stage = step % STAGES;
            zero_rows<COLUMNS>(operands.stages + stage * QUERIES * COLUMNS * 2,
                               seqlen.queries - steps_at.query_block * QUERIES, QUERIES,
                               operands.partial + stage * 16, phases >> stage & 1, operands.full + stage * 32);
            phases ^= 1u << stage;
        }
        steps_at.next();
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
            const uint32_t at = place + column / 64 * 64 * SWIZZLE_BYTES + (row + i % 2 * 8) * SWIZZLE_BYTES +
                                (column % 64 / 8 ^ row % 8) * 16 + reload_thread_idx() % 4 * 4;
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(words[i]) : "r"(at) : "memory");
        }
    }
    // scores (64 keys by 64 queries) = the rows @ a stage of q or do, transposed.
    DEVICE void multiply(float* scores, uint32_t stage) const {
        const uint64_t a = wgmma_descriptor(place, 0, 1024), b = wgmma_descriptor(stage, 0, 1024);
        undefined<SCORES>(scores);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < COLUMNS / 16; ++k) {
            const int at = k / 4 * 64 * SWIZZLE_BYTES + k % 4 * 32 >> 4;
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
    const uint64_t b = wgmma_descriptor(stage, 64 * SWIZZLE_BYTES, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < QUERIES / 16; ++k)
        WgmmaRs<COLUMNS>::template run<true>(sums, packed + k * 4, b + (k * 16 * SWIZZLE_BYTES >> 4), 1);
    wgmma_commit();
    wgmma_wait<0>();
    keep_in_registers<SCORES / 2>(packed);
}

// A thread's words to the thread of the other warpgroup that computes the same scores.
DEVICE uint32_t exchange(const Shared& shared, int buffer) {
    return shared.p + buffer * DS_BYTES + reload_thread_idx() % 128 * 16;
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

DEVICE void make_dv(const Shared& shared, const Maps& maps, const WorkTile& work, const BwdSeqlenInfo& seqlen,
                    const AttentionParams& params) {
    float dv[HEAD_E / 2];
    clear<HEAD_E / 2>(dv);
    const int steps = work.steps();
    Rows<HEAD_D, HELD_D> k(shared.k);
    if (steps > 0) {
        mbarrier_wait(shared.k_full(), 0);
        k.load_registers();
    }
    StepIterator steps_at(work);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const int stage = step % STAGES, buffer = step % BUFFERS;
        mbarrier_wait(shared.q_full(stage), step / STAGES & 1);
        float scores[SCORES], p[SCORES], softcap_grad[SOFTCAP ? SCORES : 1];
        k.multiply(scores, shared.q + stage * Q_BYTES);
        softmax_of<SOFTCAP>(p, softcap_grad, scores, own_stats(shared, stage), params);
        release(shared.q_empty(stage));
        if (!seqlen.all(steps_at.query_block, work.first_key()))
            apply_mask(p, seqlen, steps_at.query_block, work.first_key(), 128);
        uint32_t p16[SCORES / 2];
#pragma unroll
        for (int i = 0; i < SCORES / 2; ++i) p16[i] = pack2<T>(p[i * 2], p[i * 2 + 1]);
        mbarrier_wait(shared.p_empty(buffer), step / BUFFERS & 1 ^ 1);
        if constexpr (SOFTCAP) {
            uint32_t p16_softcap[SCORES / 2];
#pragma unroll
            for (int i = 0; i < SCORES / 2; ++i)
                p16_softcap[i] = pack2<T>(p[i * 2] * softcap_grad[i * 2], p[i * 2 + 1] * softcap_grad[i * 2 + 1]);
            send(exchange(shared, buffer), p16_softcap);
        } else {
            send(exchange(shared, buffer), p16);
        }
        release(shared.p_full(buffer));
        mbarrier_wait(shared.dout_full(stage), step / STAGES & 1);
        add_product<HEAD_E>(dv, p16, shared.dout + stage * DOUT_BYTES);
        release(shared.dout_empty(stage));
        steps_at.next();
    }
    keep_in_registers<HEAD_E / 2>(dv);
    named_barrier_sync(1, 256);  // v is not read any more
    const int row = work.first_key() + seqlen.first_key;
    if (VARLEN && seqlen.partial_keys(work.key_block))
        return store_tail<HEAD_E>(maps.dv_rows, shared.v, dv, P_UNSCALE, 2, row, seqlen.keys - work.first_key(),
                              work.kv_head);
    store_rows<HEAD_E>(maps.dv, shared.v, dv, P_UNSCALE, 2, row, work.kv_head, work.batch);
}

DEVICE void make_dk(const Shared& shared, const Maps& maps, const WorkTile& work, const BwdSeqlenInfo& seqlen,
                    T* ds_workspace, const Chunk& chunk, int kv_heads, float scale) {
    float dk[HEAD_D / 2];
    clear<HEAD_D / 2>(dk);
    const int steps = work.steps();
    Rows<HEAD_E, HELD_E> v(shared.v);
    if (steps > 0) {
        mbarrier_wait(shared.v_full(), 0);
        v.load_registers();
    }
    StepIterator steps_at(work);
    const int lowest = work.highest - work.blocks + 1;
    const int first_head = (chunk.line - work.batch * kv_heads) * work.qheads_per_kvhead;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const int stage = step % STAGES, buffer = step % BUFFERS;
        mbarrier_wait(shared.dout_full(stage), step / STAGES & 1);
        float dp[SCORES];
        v.multiply(dp, shared.dout + stage * DOUT_BYTES);
        release(shared.dout_empty(stage));
        uint32_t p16[SCORES / 2], packed[SCORES / 2];
        mbarrier_wait(shared.p_full(buffer), step / BUFFERS & 1);
        receive(p16, exchange(shared, buffer));
        release(shared.p_empty(buffer));
        mbarrier_wait(shared.q_full(stage), step / STAGES & 1);
        softmax_backward<SOFTCAP>(packed, p16, dp, nullptr, own_stats(shared, stage));

        // The other buffer has left once the barrier is passed, and may be written in the next step.
        const uint32_t through = shared.ds + buffer * DS_BYTES;
        stage_block(through, packed, reload_thread_idx());
        fence_proxy_async();
        if (reload_thread_idx() % 128 == 0) tma_store_wait_read<0>();
        named_barrier_sync(3, 128);
        if (reload_thread_idx() % 128 == 0) {
            bulk_copy_s2g(ds_block(ds_workspace, chunk, steps_at.head - first_head, work.key_block,
                                   steps_at.query_block - lowest),
                          through, DS_BYTES);
            tma_store_commit();
        }
        add_product<HEAD_D>(dk, packed, shared.q + stage * Q_BYTES);
        release(shared.q_empty(stage));
        steps_at.next();
    }
    keep_in_registers<HEAD_D / 2>(dk);
    named_barrier_sync(1, 256);  // k is not read any more
    const int row = work.first_key() + seqlen.first_key;
    if (VARLEN && seqlen.partial_keys(work.key_block))
        return store_tail<HEAD_D>(maps.dk_rows, shared.k, dk, scale, 3, row, seqlen.keys - work.first_key(),
                              work.kv_head);
    store_rows<HEAD_D>(maps.dk, shared.k, dk, scale, 3, row, work.kv_head, work.batch);
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void attention_bwd_hdim256(
    const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
    const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_dout,
    const __grid_constant__ TensorMap map_dk, const __grid_constant__ TensorMap map_dv,
    const __grid_constant__ AttentionParams params, T* ds_workspace, const int* workspace_offsets,
    const int* chunk_layout, int kv_heads_per_band, int number, int rows, int reach, int line, int lines, int block,
    int blocks, int most) {
    extern __shared__ __align__(1024) char bytes[];  // the swizzle repeats every 1024 bytes
    const Shared shared(shared_address(bytes));
    const AttentionParams& p = params;
    const float* const stats = p.stats;
    const int kv_heads = p.kv_heads, qheads_per_kvhead = p.qheads_per_kvhead, heads = kv_heads * qheads_per_kvhead;
    const Maps maps(map_q, map_k, map_v, map_dout, map_dk, map_dv, p);
    BwdSeqlenInfo seqlen{p.seqlen_q, p.seqlen_k, p.left, p.right};
    Chunk chunk{line, lines, block, blocks, most};
    WorkTile work;
    if constexpr (VARLEN) {
        const WorkspaceOffsets offsets{workspace_offsets, chunk_layout, reach};
        const int width = chunk_heads(offsets, number, kv_heads);
        if (block_x() >= static_cast<int>(p.tile_counts[0]) * width) return;
        const int z = p.tile_list[block_x() / width * 2];
        seqlen = seqlen_at(block_x(), p, width, rows);
        chunk = chunk_of(offsets, number, kv_heads, z, sequence_of(p.bounds, z, p.offsets), p.left, p.right);
        work = work_tile_of(block_x(), seqlen, p, width);
        work.kv_head += chunk.line;
        if (work.key_block < chunk.block || work.key_block >= chunk.block + chunk.blocks) return;
    } else {
        // `kv_heads_per_band` key heads go together, from the first block of keys of each to the last.
        const int near = block_x() / (blocks * kv_heads_per_band) * kv_heads_per_band;
        const int inside = block_x() - near * blocks;
        const int width = BwdSeqlenInfo::min(kv_heads_per_band, lines - near), own = line + near + inside % width;
        work = make_work_tile(seqlen, own / kv_heads, own % kv_heads, block + inside / width, qheads_per_kvhead);
    }

    if (thread_x() == 0) {
        maps.prefetch();
        mbarrier_init(shared.k_full(), 1);
        mbarrier_init(shared.v_full(), 1);
        for (int buffer = 0; buffer < BUFFERS; ++buffer) {
            mbarrier_init(shared.p_full(buffer), 4);
            mbarrier_init(shared.p_empty(buffer), 4);
        }
        shared.init(8, 8);
        mbarrier_init_fence();
    }
    barrier();

    if (thread_x() < 128) {
        setmaxnreg_dec<24>();
        const Operands q_and_k = {shared.k, shared.k_full(), shared.k_partial(), shared.q, shared.q_full(0),
                                  shared.q_empty(0), shared.q_partial(0), maps.k, maps.q};
        const Operands dout_and_v = {shared.v, shared.v_full(), shared.v_partial(), shared.dout, shared.dout_full(0),
                                     shared.dout_empty(0), shared.dout_partial(0), maps.v, maps.dout};
        if (work.steps() > 0) {
            if (thread_x() == 0) {
                load<HEAD_D, STATS_BYTES>(q_and_k, work, seqlen, [&](const StepIterator& at, int stage, uint32_t full) {
                    const int64_t line = static_cast<int64_t>(work.batch) * heads + at.head;
                    bulk_copy_g2s(shared.stats + stage * STATS_BYTES,
                                  stats + seqlen.place(line, at.query_block) * (QUERIES * 2), STATS_BYTES, full);
                });
            } else if (thread_x() == 32) {
                load<HEAD_E, 0>(dout_and_v, work, seqlen, [](const StepIterator&, int, uint32_t) {});
            } else if (VARLEN && thread_x() / 32 == 2) {
                zero_tails<HEAD_D>(q_and_k, work, seqlen);
            } else if (VARLEN && thread_x() / 32 == 3) {
                zero_tails<HEAD_E>(dout_and_v, work, seqlen);
            }
        }
    } else if (thread_x() < 256) {
        setmaxnreg_inc<240>();
        make_dv(shared, maps, work, seqlen, p);
    } else {
        setmaxnreg_inc<240>();
        make_dk(shared, maps, work, seqlen, ds_workspace, chunk, kv_heads, p.scale);
    }
}
