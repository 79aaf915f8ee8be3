// A few queries against a long cache of keys and values, contiguous or in pages, fed by Hopper's copy engine.
//
// Each warp has a ring of STAGES tiles of its own, and one of its lanes starts the copies: nothing waits for another
// warp, and there is no barrier, until the chunk ends.
//
// Defines: those of decode.h; PAGE: keys of a page, 0: a sequence is one page; BOX: keys that a copy brings, a divisor
// of PAGE and KEYS; STAGES.
#include "decode.h"
#include "matmul/hopper.h"

constexpr int D_BLOCKS = (D + 63) / 64, E_BLOCKS = (E + 63) / 64;  // of 64 columns, 128 bytes
constexpr int LINE = 128;
constexpr int K_BYTES = D_BLOCKS * KEYS * LINE, V_BYTES = E_BLOCKS * KEYS * LINE;
constexpr int STAGE_BYTES = K_BYTES + V_BYTES;
constexpr int RING_BYTES = STAGES * STAGE_BYTES;
constexpr int PIECES = KEYS / BOX;
static_assert(RING_BYTES >= SUMS_BYTES, "a warp's sums take the place of its tiles");
static_assert(KEYS % BOX == 0 && (PAGE == 0 || PAGE % BOX == 0), "a copy stays in its page");

// One head's keys and values of one sequence.
struct Cache {
    const TensorMap *k, *v;
    const int32_t* table;
    int pages, z, head, end, lane;

    // What the table says of this lane's piece of the tile from key n on: lane i has piece i.
    DEVICE int entry(int n) const {
        n += lane % PIECES * BOX;
        int page = 0;
        if (PAGE != 0 && n < end) page = table[n / (PAGE != 0 ? PAGE : 1)];
        return page;
    }

    // Starts the copies of that tile. Pages are brought within the cache; a piece beyond the end is of a page that does
    // not exist, for which the copy engine writes zeros.
    DEVICE void copy(uint32_t to, uint32_t barrier, int entry, int n) const {
        int own = z;
        if (PAGE != 0) {
            own = entry < 0 ? 0 : entry < pages ? entry : pages - 1;
            if (n + lane % PIECES * BOX >= end) own = pages;
        }
        if (lane == 0) barrier_expect(barrier, STAGE_BYTES);
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const int page = PIECES == 1 ? own : __shfl_sync(0xffffffffu, own, i);
            const int slot = PAGE == 0 ? n : (n + i * BOX) % (PAGE != 0 ? PAGE : 1);
            if (lane != 0) continue;
#pragma unroll
            for (int b = 0; b < D_BLOCKS; ++b)
                load_box(to + (b * KEYS + i * BOX) * LINE, k, barrier, b * 64, head, slot, page);
#pragma unroll
            for (int b = 0; b < E_BLOCKS; ++b)
                load_box(to + K_BYTES + (b * KEYS + i * BOX) * LINE, v, barrier, b * 64, head, slot, page);
        }
    }
};

// A stage of the ring: lines of 128 bytes whose chunks of 16 lie where the swizzle puts them, chunk x of line y at
// x ^ y % 8. This lane's line of 16 is lane % 8 of its eight.
struct Tile {
    uint32_t k, v, k_lane, v_lane;

    DEVICE Tile(uint32_t stage, int lane)
        : k(stage), v(stage + K_BYTES), k_lane((lane / 16 * 8 + lane % 8) * LINE + (lane / 8 % 2 ^ lane % 8) * 16),
          v_lane(lane % 16 * LINE + (lane / 16 ^ lane % 8) * 16) {}
    DEVICE uint32_t keys(int step, int i) const {
        return k + (step / 4 * KEYS + i * 16) * LINE + (k_lane ^ step % 4 * 32);
    }
    DEVICE uint32_t values(int step, int i) const {
        return v + (step / 4 * KEYS + i * 16) * LINE + (v_lane ^ step % 4 * 32);
    }
    // Zeros for the values from row `first` on: what stands behind a sequence may be NaN, which no weight of 0 hides.
    DEVICE void clear(int first, int lane) const {
        for (int i = first * (LINE / 16) + lane; i < KEYS * (LINE / 16); i += 32)
#pragma unroll
            for (int b = 0; b < E_BLOCKS; ++b)
                asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(v + b * KEYS * LINE + i * 16), "r"(0)
                             : "memory");
        __syncwarp();
    }
};

KERNEL(WARPS * 32)
void attention_decode(const __grid_constant__ TensorMap map_k, const __grid_constant__ TensorMap map_v, const T* q,
                 int64_t q_batch, int64_t q_head, int64_t q_row, const int32_t* table, int64_t table_row,
                 const int32_t* lens, T* o, int64_t o_batch, int64_t o_head, int64_t o_row, float* lse, float* parts,
                 float* tops, float* totals, int pages, int capacity, int queries, int share, int tiles, int heads,
                 int slots, int most, int left, int right, float scale, float cap) {
    DYNAMIC_SHARED(shared);
    SHARED alignas(8) uint64_t filled[WARPS][STAGES];
    const Sizes sizes{capacity, queries, share, tiles, heads, slots, most, left, right, scale, cap};
    const int lane = thread_x() % 32, warp = __shfl_sync(0xffffffffu, thread_x() / 32, 0);
    const Work work(sizes, lens, warp);
    if (!DIRECT && work.begin >= work.length) return;

    char* memory = shared + (0u - shared_address(shared)) % 1024;  // the swizzle repeats every 1024 bytes
    const uint32_t ring = shared_address(memory) + warp * RING_BYTES, barriers = shared_address(filled[warp]);
    const Cache cache{&map_k, &map_v, table + work.z * table_row, pages, work.z, work.head, work.end, lane};
    const int start = work.begin + warp / HEADS * KEYS;
    int entries[STAGES];
#pragma unroll
    for (int i = 0; i < STAGES; ++i) entries[i] = cache.entry(start + i * STEP);
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < STAGES; ++i) barrier_init(barriers + i * 8, 1);
        barrier_init_fence();
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < STAGES; ++i)
        if (start + i * STEP < work.end)
            cache.copy(ring + i * STAGE_BYTES, barriers + i * 8, entries[i], start + i * STEP);
    int ahead = start + STAGES * STEP;
    int entry = cache.entry(ahead);  // looked up a tile before it is needed

    const Rows rows(q, q_batch, q_head, q_row, work, sizes, lane);
    Softmax softmax;
    int stage = 0;
    uint32_t phase = 0;
    for (int n = start; n < work.end; n += STEP) {
        const Tile tile(ring + stage * STAGE_BYTES, lane);
        barrier_wait(barriers + stage * 8, phase);
        if (n + KEYS > work.end) tile.clear(work.end - n, lane);
        softmax.add(tile, rows, n, work, sizes, lane);
        __syncwarp();
        if (ahead < work.end) cache.copy(tile.k, barriers + stage * 8, entry, ahead);
        ahead += STEP;
        entry = cache.entry(ahead);
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
    __syncwarp();
    add_warps(softmax, memory, RING_BYTES, {o, o_batch, o_head, o_row, lse, parts, tops, totals}, work, sizes, warp, lane);
}
