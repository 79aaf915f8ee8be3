// A few queries against a long cache of keys and values in pages, fed by asynchronous copies of 16 bytes a lane.
//
// Each warp has a ring of STAGES tiles of its own: nothing waits for another warp, and there is no barrier, until the
// split ends.
//
// Defines: those of decode.h; PAGE: keys of a page, a multiple of 16; STAGES.
#include "_lib/ptx/shared_address.h"
#include "decode.h"

constexpr int PADDED_D = D_STEPS * 16, PADDED_E = E_STEPS * 16;
constexpr int K_PITCH = PADDED_D * 2 + 16;  // an odd number of 16-byte chunks: eight lines in different banks
constexpr int V_PITCH = PADDED_E * 2 + 16;
constexpr int STAGE_BYTES = KEYS * (K_PITCH + V_PITCH);
constexpr int PIPELINE_BYTES = STAGES * STAGE_BYTES;
static_assert(PIPELINE_BYTES >= SUMS_BYTES, "a warp's sums take the place of its tiles");

struct Cache {
    const T *k, *v;
    int64_t k_page, k_row, v_page, v_row;
    const int32_t* table;
    int pages;

    // The page of the tile that starts at key n, brought within the cache.
    DEVICE int page_of(int n, int end) const {
        const int page = n < end ? table[n / PAGE] : 0;
        return page < 0 ? 0 : page < pages ? page : pages - 1;
    }
};

// Copies LINE elements of 16 rows into lines PITCH bytes apart; rows from `rows` on become zeros, and so does what is
// behind a line.
template <int LINE, int PADDED, int PITCH>
DEVICE void copy_tile(uint32_t to, const T* from, int64_t row_stride, int rows, int lane) {
    constexpr int CHUNKS = PADDED / 8;
#pragma unroll
    for (int i = 0; i < CHUNKS * KEYS / 32; ++i) {
        const int index = i * 32 + lane;
        const int row = index / CHUNKS, chunk = index % CHUNKS;
        const bool inside = row < rows && chunk * 8 < LINE;
        copy_async(to + row * PITCH + chunk * 16, inside ? from + row * row_stride + chunk * 8 : from, inside ? 16 : 0);
    }
}

DEVICE void copy_keys(uint32_t stage, const Cache& cache, int page, int n, int end, int lane) {
    const int slot = n % PAGE;
    const int rows = end - n;
    copy_tile<D, PADDED_D, K_PITCH>(stage, cache.k + page * cache.k_page + slot * cache.k_row, cache.k_row, rows, lane);
    copy_tile<E, PADDED_E, V_PITCH>(stage + KEYS * K_PITCH, cache.v + page * cache.v_page + slot * cache.v_row,
                                    cache.v_row, rows, lane);
}

// A stage of the ring, and this lane's line in it.
struct StageTile {
    uint32_t k, v;

    DEVICE StageTile(uint32_t stage, int lane)
        : k(stage + (lane / 16 * 8 + lane % 8) * K_PITCH + lane / 8 % 2 * 16),
          v(stage + KEYS * K_PITCH + lane % 16 * V_PITCH + lane / 16 * 16) {}
    DEVICE uint32_t keys(int step) const { return k + step * 32; }
    DEVICE uint32_t values(int step) const { return v + step * 32; }
};

// `pages`: of the cache. The others as in Splits.
KERNEL(WARPS * 32)
void attention_decode_sm80(const AttentionParams params, int pages, int tiles, int splits, int max_splits) {
    const AttentionParams& p = params;
    DYNAMIC_SHARED(memory);
    const int lane = thread_x() % 32, warp = thread_x() / 32;
    const WorkTile work(p, {tiles, splits, max_splits});
    if (!DIRECT && work.begin >= work.length) return;

    const Rows rows(p, work, lane);
    const Cache cache{static_cast<const T*>(p.k) + work.head * p.k_head,
                      static_cast<const T*>(p.v) + work.head * p.v_head, p.k_batch, p.k_row, p.v_batch, p.v_row,
                      p.block_table + work.z * p.block_table_row, pages};
    const uint32_t ring = shared_address(memory) + warp * PIPELINE_BYTES;
    const int start = work.begin + warp * KEYS;
    int ahead = start;
    int page = cache.page_of(ahead, work.end);
    int fill = 0, drain = 0;
    const auto copy_next = [&]() {
        if (ahead < work.end) copy_keys(ring + fill * STAGE_BYTES, cache, page, ahead, work.end, lane);
        commit_copies();
        fill = fill + 1 == STAGES ? 0 : fill + 1;
        ahead += STEP;
        page = cache.page_of(ahead, work.end);
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) copy_next();

    DecodeSoftmax softmax;
    for (int n = start; n < work.end; n += STEP) {
        wait_copies<STAGES - 2>();
        __syncwarp();
        copy_next();
        softmax.add(StageTile(ring + drain * STAGE_BYTES, lane), rows, n, work, p, lane);
        drain = drain + 1 == STAGES ? 0 : drain + 1;
    }
    wait_copies<0>();
    __syncwarp();
    add_warps(softmax, memory, PIPELINE_BYTES, p, work, splits, warp, lane);
}
