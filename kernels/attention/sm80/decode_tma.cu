// A few queries against a long cache of keys and values, contiguous or in pages, fed by Hopper's copy engine.
//
// Each warp has a ring of STAGES tiles of its own, and one of its lanes starts the copies: nothing waits for another
// warp, and there is no barrier, until the split ends.
//
// Defines: those of decode.h; PAGE: keys of a page, a multiple of 16, or 0: a sequence is one page; STAGES.
#include "decode.h"
#include "_lib/ptx/tma.h"

constexpr int D_BLOCKS = (D + 63) / 64, E_BLOCKS = (E + 63) / 64;
constexpr int LINE = 128;  // bytes of a block's 64 columns
constexpr int BLOCK_BYTES = KEYS * LINE;
constexpr int K_BYTES = D_BLOCKS * BLOCK_BYTES;
constexpr int STAGE_BYTES = K_BYTES + E_BLOCKS * BLOCK_BYTES;
constexpr int PIPELINE_BYTES = STAGES * STAGE_BYTES;
static_assert(PIPELINE_BYTES >= SUMS_BYTES, "a warp's sums take the place of its tiles");

// One head's keys and values of one sequence.
struct Cache {
    const TensorMap *k, *v;
    const int32_t* table;
    int pages, z, head, end;
    uint64_t policy;

    // The page of the tile that starts at key n, as the table has it.
    DEVICE int page_of(int n) const {
        int page = z;
        if (PAGE != 0 && n < end) page = table[n / (PAGE != 0 ? PAGE : 1)];
        return page;
    }

    // Keys and values are read once, and what L2 holds beside them is not: evicted first, 2 % faster over 64
    // sequences, 1 % over one (H200, 2026-11-22).
    // Starts the copies of that tile. Its page is brought within the cache.
    DEVICE void copy(uint32_t to, uint32_t barrier, int page, int n) const {
        int slot = n;
        if (PAGE != 0) {
            page = page < 0 ? 0 : page < pages ? page : pages - 1;
            slot = n % (PAGE != 0 ? PAGE : 1);
        }
        mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
#pragma unroll
        for (int b = 0; b < D_BLOCKS; ++b)
            tma_load_4d_cached(to + b * BLOCK_BYTES, k, barrier, policy, b * 64, head, slot, page);
#pragma unroll
        for (int b = 0; b < E_BLOCKS; ++b)
            tma_load_4d_cached(to + K_BYTES + b * BLOCK_BYTES, v, barrier, policy, b * 64, head, slot, page);
    }
};

// A stage of the ring: lines of 128 bytes whose chunks of 16 lie where the swizzle puts them, chunk x of line y at
// x ^ y % 8. This lane's line of 16 is lane % 8 of its eight.
struct StageTile {
    uint32_t k, v, k_lane, v_lane;

    DEVICE StageTile(uint32_t stage, int lane)
        : k(stage), v(stage + K_BYTES), k_lane((lane / 16 * 8 + lane % 8) * LINE + (lane / 8 % 2 ^ lane % 8) * 16),
          v_lane(lane % 16 * LINE + (lane / 16 ^ lane % 8) * 16) {}
    DEVICE uint32_t keys(int step) const { return k + step / 4 * BLOCK_BYTES + (k_lane ^ step % 4 * 32); }
    DEVICE uint32_t values(int step) const { return v + step / 4 * BLOCK_BYTES + (v_lane ^ step % 4 * 32); }
    // Zeros for the values from row `first` on: what stands behind a sequence may be NaN, which no weight of 0 hides.
    DEVICE void clear(int first, int lane) const {
        for (int i = first * (LINE / 16) + lane; i < KEYS * (LINE / 16); i += 32)
#pragma unroll
            for (int b = 0; b < E_BLOCKS; ++b)
                asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(v + b * BLOCK_BYTES + i * 16), "r"(0)
                             : "memory");
        __syncwarp();
    }
};

// `pages`: of the cache. The others as in Splits.
KERNEL(WARPS * 32)
void attention_decode_tma(const __grid_constant__ TensorMap map_k, const __grid_constant__ TensorMap map_v,
                          const AttentionParams params, int pages, int tiles, int splits, int max_splits) {
    const AttentionParams& p = params;
    DYNAMIC_SHARED(shared);
    SHARED alignas(8) uint64_t filled[WARPS][STAGES];
    const int lane = thread_x() % 32, warp = __shfl_sync(0xffffffffu, thread_x() / 32, 0);
    const WorkTile work(p, {tiles, splits, max_splits});
    if (!DIRECT && work.begin >= work.length) return;

    char* memory = shared + (0u - shared_address(shared)) % 1024;  // the swizzle repeats every 1024 bytes
    const uint32_t ring = shared_address(memory) + warp * PIPELINE_BYTES, barriers = shared_address(filled[warp]);
    const Cache cache{&map_k, &map_v, p.block_table + work.z * p.block_table_row, pages, work.z, work.head,
                      work.end, l2_evict_first()};
    const int start = work.begin + warp * KEYS;
    int first_pages[STAGES];  // looked up together
#pragma unroll
    for (int i = 0; i < STAGES; ++i) first_pages[i] = cache.page_of(start + i * STEP);
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < STAGES; ++i) mbarrier_init(barriers + i * 8, 1);
        mbarrier_init_fence();
#pragma unroll
        for (int i = 0; i < STAGES; ++i)
            if (start + i * STEP < work.end)
                cache.copy(ring + i * STAGE_BYTES, barriers + i * 8, first_pages[i], start + i * STEP);
    }
    __syncwarp();
    int ahead = start + STAGES * STEP;
    int page = cache.page_of(ahead);  // looked up a tile before it is needed

    const Rows rows(p, work, lane);
    DecodeSoftmax softmax;
    int stage = 0;
    uint32_t phase = 0;
    for (int n = start; n < work.end; n += STEP) {
        const StageTile tile(ring + stage * STAGE_BYTES, lane);
        mbarrier_wait(barriers + stage * 8, phase);
        if (n + KEYS > work.end) tile.clear(work.end - n, lane);
        softmax.add(tile, rows, n, work, p, lane);
        __syncwarp();
        if (lane == 0 && ahead < work.end) cache.copy(tile.k, barriers + stage * 8, page, ahead);
        ahead += STEP;
        page = cache.page_of(ahead);
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
    __syncwarp();
    add_warps(softmax, memory, PIPELINE_BYTES, p, work, splits, warp, lane);
}
