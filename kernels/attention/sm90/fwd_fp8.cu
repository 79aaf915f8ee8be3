// attention_fp8 with wgmma: o = softmax(scores) @ v per head, of codes of e4m3, and the scores' lse.
//
// As fwd.cu: a persistent block walks tiles of TILE_M = 64 * CONSUMERS queries of one head, warpgroup 0 copies, and each
// consumer owns 64 queries. What codes change:
//
// - wgmma reads operands of 8 bits along the sum alone, and v lies along its columns. attention_fp8_values first writes
//   v's blocks transposed. A thread's scores are not at the keys where wgmma reads its P, so those blocks have their
//   keys in the order in which P comes: no P moves.
// - Its accumulators keep 13 bits below their largest term (docs/notes/scaled_mm.md). acc_o would lose what is small
//   beside it, so the product of a block of TILE_N keys has registers of its own, which acc_o adds in float32. Scores,
//   sums of HEAD_D products, need none.
// - P are at most 2^8 and rounded to e4m3; row_sum is of unrounded ones.
// - q_scale * k_scale is part of the scores' scale, v_scale of the last division.
//
// With OVERLAP the product with the last block's values is under way beside the next block's scores, as in fwd.cu; else
// it comes before them, and both use the same registers.
//
// Defines: ELEMENT (bf16, f16), of o; FORMAT, of the codes; A_ELEMENT, B_ELEMENT (e4m3); HEAD_D, HEAD_E: the head sizes, as
// multiples of 64; TILE_N, CONSUMERS, Q_STAGES, STAGES, PINGPONG, OVERLAP; LEFT, RIGHT: whether the keys are bounded on that
// side of the diagonal; SOFTCAP; PARAMS_LAYOUT (params.h).
#include "prelude.h"

#include "_lib/minifloat.h"
#include "_lib/ptx/registers.h"
#include "_lib/ptx/wgmma_fp8.h"
#include "attention/device/mask.h"
#include "fwd.h"

using T = ELEMENT;

constexpr int THREADS = (1 + CONSUMERS) * 128;
constexpr int TILE_M = 64 * CONSUMERS;
constexpr int SCORES = TILE_N / 2, ACC_O = HEAD_E / 2;  // a thread's, of a warp's 16 rows
constexpr int D_BLOCKS = (HEAD_D + 127) / 128;          // of 128 codes
constexpr int Q_BYTES = D_BLOCKS * TILE_M * 128;
constexpr int K_BYTES = D_BLOCKS * TILE_N * 128;
constexpr int V_BYTES = HEAD_E * 128;
constexpr int P_SCALE_LOG2 = 8;
static_assert(TILE_N % 32 == 0 && TILE_N <= 128, "a block's values are one line of 128 bytes a column");

using QStages = Stages<Q_BYTES, Q_STAGES>;
using KStages = Stages<K_BYTES, STAGES>;
using VStages = Stages<V_BYTES, STAGES>;
using Softmax = ScaledOnlineSoftmax<P_SCALE_LOG2>;

// --- v, transposed ---

constexpr int VALUE_WORDS = HEAD_E / 4;  // of a key, four codes each

// A block has the values of TILE_N keys of a key head: HEAD_E lines of 128 codes, zeros where there is no key or no
// column. Of 32 keys, wgmma's thread t reads P at 4 t + i and 16 + 4 t + i, and has the scores of 8 j + 2 t and the next.
extern "C" __global__ __launch_bounds__(256) void attention_fp8_values(const __grid_constant__ AttentionParams params,
                                                                       uint32_t* v_tiles, int tiles) {
    __shared__ uint32_t lines[TILE_N][VALUE_WORDS + 1];
    const AttentionParams& p = params;
    const int tile = blockIdx.x % tiles, line = blockIdx.x / tiles;
    const uint8_t* v = static_cast<const uint8_t*>(p.v) + line / p.kv_heads * p.v_batch + line % p.kv_heads * p.v_head;
    for (int i = threadIdx.x; i < TILE_N * (HEAD_E / 16); i += 256) {
        const int row = i / (HEAD_E / 16), column = i % (HEAD_E / 16) * 16, key = tile * TILE_N + row;
        words<16> found = {};
        if (key < p.seqlen_k && column < p.head_dim_v) found = load_words<16>(v + key * p.v_row + column);
#pragma unroll
        for (int w = 0; w < 4; ++w) lines[row][column / 4 + w] = found.w[w];
    }
    __syncthreads();
    uint32_t* const to = v_tiles + static_cast<int64_t>(blockIdx.x) * HEAD_E * 32;
    for (int i = threadIdx.x; i < VALUE_WORDS * (TILE_N / 4); i += 256) {
        const int word = i % (TILE_N / 4), columns = i / (TILE_N / 4);
        const int key = word / 8 * 32 + word % 8 / 4 * 16 + word % 4 * 2;
        const uint32_t a = lines[key][columns], b = lines[key + 1][columns];
        const uint32_t c = lines[key + 8][columns], d = lines[key + 9][columns];
        const uint32_t ab[2] = {__byte_perm(a, b, 0x5140), __byte_perm(a, b, 0x7362)};
        const uint32_t cd[2] = {__byte_perm(c, d, 0x5140), __byte_perm(c, d, 0x7362)};
#pragma unroll
        for (int e = 0; e < 4; ++e)
            to[(columns * 4 + e) * 32 + word] = __byte_perm(ab[e / 2], cd[e / 2], e % 2 ? 0x7632 : 0x5410);
    }
}

// --- scales ---

struct CodeScale {
    const float* scales;
    int64_t batch, head;

    DEVICE float of(uint32_t batch_index, int kv_head) const { return scales[batch_index * batch + kv_head * head]; }
};

// Of a head: what its products are multiplied by, then the scores of `softmax`; and what o is multiplied by.
struct HeadScales {
    float product, score, value;
};

// The exponent's FMA takes a positive scale, of which the largest score is the largest product's; another scale
// multiplies the products.
DEVICE HeadScales head_scales(const DenseTile& tile, const AttentionParams& p, const CodeScale& q, const CodeScale& k,
                              const CodeScale& v) {
    const uint32_t batch = tile.head / p.heads;
    const int kv_head = tile.head % p.heads / p.qheads_per_kvhead;
    const float both = p.score_scale * q.of(batch, kv_head) * k.of(batch, kv_head), value = v.of(batch, kv_head);
    if (SOFTCAP) return {both, p.softcap_log2, value};
    return both > 0.0f ? HeadScales{1.0f, both, value} : HeadScales{both, 1.0f, value};
}

// --- a block ---

DEVICE KeyBlocks key_blocks(const DenseTile& tile, const AttentionParams& p) {
    return key_blocks_of<LEFT, RIGHT, TILE_N>(tile.row, TILE_M, p.seqlen_q, p.seqlen_k, p.left, p.right);
}

// In the order in which consumers wait: keys run one block ahead of values, across tiles.
DEVICE void produce(QStages queries, KStages keys, VStages values, const TensorMap* map_q, const TensorMap* map_k,
                    const TensorMap* map_v, const AttentionParams& p, const Schedule& s, int value_tiles) {
    const auto load_values = [&](int block) {
        mbarrier_wait(values.empty_barrier(), values.phase ^ 1);
        mbarrier_arrive_expect_tx(values.full_barrier(), V_BYTES);
        tma_load_4d(values.stage_base(), map_v, values.full_barrier(), 0, 0, block, 0);
        values.advance();
    };
    int behind = -1;
    StaticTileScheduler<TILE_M, RIGHT> scheduler{static_cast<uint32_t>(p.seqlen_q), s.all_heads, s.heads_per_band};
    const uint32_t tiles = scheduler.count();
    for (uint32_t index = scheduler.next(); index < tiles; index = scheduler.next()) {
        const DenseTile tile = scheduler.tile(index);
        const KeyBlocks span = key_blocks(tile, p);
        const int batch = tile.head / p.heads, q_head = tile.head % p.heads, head = q_head / p.qheads_per_kvhead;
        const auto load_queries = [&] {
            mbarrier_wait(queries.empty_barrier(), queries.phase ^ 1);
            mbarrier_arrive_expect_tx(queries.full_barrier(), Q_BYTES);
            load_blocks<D_BLOCKS, TILE_M, 128>(queries.stage_base(), map_q, queries.full_barrier(), tile.row,
                                               s.tma_steps & 1 ? q_head : 0, s.tma_steps & 2 ? batch : 0);
            queries.advance();
        };
        if (Q_STAGES > 1 && span.first < span.last) load_queries();
        for (int block = span.last - 1; block >= span.first; --block) {
            mbarrier_wait(keys.empty_barrier(), keys.phase ^ 1);
            mbarrier_arrive_expect_tx(keys.full_barrier(), K_BYTES);
            load_blocks<D_BLOCKS, TILE_N, 128>(keys.stage_base(), map_k, keys.full_barrier(), block * TILE_N,
                                               s.tma_steps & 4 ? head : 0, s.tma_steps & 8 ? batch : 0);
            keys.advance();
            if (behind >= 0) load_values(behind);
            if (Q_STAGES == 1 && block == span.last - 1) load_queries();
            behind = (batch * p.kv_heads + head) * value_tiles + block;
        }
    }
    if (behind >= 0) load_values(behind);
}

// --- what a consumer does ---

DEVICE void start_scores(float* scores, uint32_t q, const KStages& keys) {
    mbarrier_wait(keys.full_barrier(), keys.phase);
    const uint64_t a = wgmma_descriptor(uniform(q), 0, 1024), b = wgmma_descriptor(uniform(keys.stage_base()), 0, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < HEAD_D / 32; ++k)
        WgmmaFp8<TILE_N>::run(scores, a + (k / 4 * TILE_M * 128 + k % 4 * 32 >> 4),
                              b + (k / 4 * TILE_N * 128 + k % 4 * 32 >> 4), k > 0);
    wgmma_commit();
}

// The values have been waited for.
DEVICE void start_o(float* product, const uint32_t* p8, const VStages& values) {
    const uint64_t b = wgmma_descriptor(uniform(values.stage_base()), 0, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < TILE_N / 32; ++k) WgmmaFp8Rs<HEAD_E>::run(product, p8 + k * 4, b + (k * 32 >> 4), k > 0);
    wgmma_commit();
}

// P, rounded, as wgmma takes them: four words of 32 keys.
DEVICE void pack_p8(uint32_t* p8, const float* scores) {
#pragma unroll
    for (int i = 0; i < SCORES / 4; ++i) {
        const float* at = scores + i / 2 * 8 + i % 2 * 2;
        p8[i] = encode4<FORMAT>(at[0], at[1], at[4], at[5]);
    }
}

DEVICE void consume(QStages queries, KStages keys, VStages values, const AttentionParams& p, const Schedule& s,
                    const CodeScale& q_scale, const CodeScale& k_scale, const CodeScale& v_scale) {
    const int consumer = uniform(thread_x() / 128) - 1;
    const int own_barrier = 1 + consumer, next_barrier = 1 + (consumer + 1) % CONSUMERS;
    const int in_tile = consumer * 64 + thread_x() % 128 / 32 * 16 + thread_x() % 32 / 4;
    if (PINGPONG && consumer == CONSUMERS - 1) arrive_next_warpgroup(next_barrier);

    StaticTileScheduler<TILE_M, RIGHT> scheduler{static_cast<uint32_t>(p.seqlen_q), s.all_heads, s.heads_per_band};
    const uint32_t tiles = scheduler.count();
    const auto next_tile = [&](DenseTile& tile, HeadScales& scales) {
        for (uint32_t index = scheduler.next(); index < tiles; index = scheduler.next()) {
            tile = scheduler.tile(index);
            const KeyBlocks span = key_blocks(tile, p);
            if (uniform(span.first) < uniform(span.last)) {
                scales = head_scales(tile, p, q_scale, k_scale, v_scale);
                return true;
            }
            store_no_keys<HEAD_E>(dense_output<T, false>(tile, p), tile.row + in_tile, p.seqlen_q, p);
        }
        return false;
    };
    DenseTile tile, upcoming;
    HeadScales scales, upcoming_scales;
    if (!next_tile(tile, scales)) return;
    bool more = next_tile(upcoming, upcoming_scales);

    float acc_o[ACC_O], product[ACC_O], scores[SCORES], rescale[2];
    Softmax softmax;
    uint32_t p8[SCORES / 4];
#pragma unroll
    for (int i = 0; i < ACC_O; ++i) acc_o[i] = 0.0f;
    KeyBlocks span = key_blocks(tile, p);
    int block = span.last - 1;

    const auto store = [&](const Softmax& ended_softmax, const DenseTile& ended, const HeadScales& by) {
        store_o<HEAD_E, false>(acc_o, ended_softmax, dense_output<T, false>(ended, p), ended.row + in_tile, p.seqlen_q, p,
                               by.score, by.value);
#pragma unroll
        for (int i = 0; i < ACC_O; ++i) acc_o[i] = 0.0f;
    };
    const auto scores_of_block = [&] {
        undefined<SCORES>(scores);
        start_scores(scores, queries.stage_base() + consumer * 64 * 128, keys);
    };
    // Once the scores of `block` are there.
    const auto softmax_step = [&] {
        keep_in_registers<SCORES>(scores);
        release(keys.empty_barrier());
        keys.advance();
        if (block == span.first) {
            release(queries.empty_barrier());
            queries.advance();
        }
        if (SOFTCAP) {
            apply_softcap<SCORES>(scores, scales.product);
        } else if (scales.product != 1.0f) {
#pragma unroll
            for (int i = 0; i < SCORES; ++i) scores[i] *= scales.product;
        }
        const int n = p.seqlen_k, key = block * TILE_N, diagonal = tile.row + consumer * 64 + n - p.seqlen_q;
        const bool beyond = key + TILE_N > (RIGHT ? min(n, diagonal + p.right + 1) : n);
        if (beyond || (LEFT && key < diagonal + 63 - p.left))
            apply_mask<LEFT, RIGHT, SCORES>(scores, tile.row + in_tile, key, p.seqlen_q, n, p.left, p.right);
        softmax.step<SCORES>(scores, rescale, scales.score);
        keep_in_registers<SCORES>(scores);
        mbarrier_wait(values.full_barrier(), values.phase);  // for the product with this block's values
    };
    const auto start_product = [&] {
        undefined<ACC_O>(product);
        start_o(product, p8, values);
    };
    // Once the product is there.
    const auto end_product = [&] {
        keep_in_registers<ACC_O>(product);
        keep_in_registers<SCORES / 4>(p8);
        release(values.empty_barrier());
        values.advance();
    };

    mbarrier_wait(queries.full_barrier(), queries.phase);
    if constexpr (OVERLAP) {
        scores_of_block();
        wgmma_wait<0>();
        softmax_step();
        pack_p8(p8, scores);
        // Multiplies the P of one block with its values while it makes those of `block`.
        const auto step = [&] {
            if (PINGPONG) named_barrier_sync(own_barrier, 256);
            scores_of_block();
            start_product();
            if (PINGPONG) arrive_next_warpgroup(next_barrier);
            const uint32_t used = values.empty_barrier();
            values.advance();
            wgmma_wait<1>();
            softmax_step();
            wgmma_wait<0>();
            keep_in_registers<ACC_O>(product);
            keep_in_registers<SCORES / 4>(p8);
            release(used);
#pragma unroll
            for (int i = 0; i < ACC_O; ++i) acc_o[i] += product[i];
        };
        for (;;) {
            while (block > span.first) {
                --block;
                step();
                rescale_o<ACC_O>(acc_o, rescale);
                pack_p8(p8, scores);
            }
            if (!more) break;
            // From the first block of this tile to the last of the next.
            const DenseTile ended = tile;
            const HeadScales ended_scales = scales;
            const Softmax ended_softmax = softmax;
            tile = upcoming;
            scales = upcoming_scales;
            softmax = {};
            span = key_blocks(tile, p);
            block = span.last - 1;
            mbarrier_wait(queries.full_barrier(), queries.phase);
            step();
            pack_p8(p8, scores);
            store(ended_softmax, ended, ended_scales);
            more = next_tile(upcoming, upcoming_scales);
        }
        start_product();
        wgmma_wait<0>();
        end_product();
#pragma unroll
        for (int i = 0; i < ACC_O; ++i) acc_o[i] += product[i];
        store(softmax, tile, scales);
    } else {
        const auto add_product = [&] {
            start_product();
            wgmma_wait<0>();
            end_product();
#pragma unroll
            for (int i = 0; i < ACC_O; ++i) acc_o[i] = math_fma(acc_o[i], rescale[i / 2 % 2], product[i]);
        };
        for (;;) {
            for (bool first = true; block >= span.first; --block, first = false) {
                if (PINGPONG) named_barrier_sync(own_barrier, 256);
                if (!first) add_product();
                scores_of_block();
                if (PINGPONG) arrive_next_warpgroup(next_barrier);
                wgmma_wait<0>();
                softmax_step();
                pack_p8(p8, scores);
            }
            add_product();
            store(softmax, tile, scales);
            if (!more) break;
            tile = upcoming;
            scales = upcoming_scales;
            softmax = {};
            span = key_blocks(tile, p);
            block = span.last - 1;
            more = next_tile(upcoming, upcoming_scales);
            mbarrier_wait(queries.full_barrier(), queries.phase);
        }
    }
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void attention_fwd_fp8_sm90(
    const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
    const __grid_constant__ TensorMap map_v, const __grid_constant__ AttentionParams params, int heads_per_band,
    int all_heads, int tma_steps, int value_tiles, const float* q_scale, int64_t q_scale_batch, int64_t q_scale_head,
    const float* k_scale, int64_t k_scale_batch, int64_t k_scale_head, const float* v_scale, int64_t v_scale_batch,
    int64_t v_scale_head) {
    DYNAMIC_SHARED(shared);
    const AttentionParams& p = params;
    const Schedule s = {heads_per_band, static_cast<uint32_t>(all_heads), tma_steps};
    // The swizzle repeats every 1024 bytes of the address.
    const uint32_t q = uniform((shared_address(shared) + 1023) & ~1023u);
    const uint32_t k = q + Q_STAGES * Q_BYTES, v = k + STAGES * K_BYTES, barriers = v + STAGES * V_BYTES;
    const QStages queries(q, barriers);
    const KStages keys(k, barriers + Q_STAGES * 16);
    const VStages values(v, barriers + (Q_STAGES + STAGES) * 16);

    if (thread_x() == 0) {
        tma_prefetch_descriptor(&map_q);
        tma_prefetch_descriptor(&map_k);
        tma_prefetch_descriptor(&map_v);
    } else if (thread_x() == 32) {
        queries.init(CONSUMERS);
        keys.init(CONSUMERS);
        values.init(CONSUMERS);
        mbarrier_init_fence();
    }
    barrier();
    if (thread_x() < 128) {
        setmaxnreg_dec<CONSUMERS == 2 ? 24 : 32>();
        if (thread_x() == 0) produce(queries, keys, values, &map_q, &map_k, &map_v, p, s, value_tiles);
    } else {
        setmaxnreg_inc<CONSUMERS == 2 ? 240 : 160>();
        consume(queries, keys, values, p, s, {q_scale, q_scale_batch, q_scale_head},
                {k_scale, k_scale_batch, k_scale_head}, {v_scale, v_scale_batch, v_scale_head});
    }
}
