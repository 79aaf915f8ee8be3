// Rows of two tensors that a persistent block (or cluster) takes from a ring of STAGES stages in shared
// memory. The copy engine fills the stages ahead of the arithmetic, so that no registers wait for loads. Rows
// are whole vectors (TAIL 0), one per block or cluster. Needs Hopper.
#pragma once

#include "_common/hopper_rows.h"
#include "_common/rows.h"

static_assert(TAIL == 0 && VEC > 1 && ROWS == 1, "the ring holds whole vectors of one row per block");
static_assert(VEC * sizeof(T) == 16, "one access per vector");

constexpr int SLICE_BYTES = THREADS * 16;    // one chunk of one row, as far as it is this block's
constexpr int ROW_BYTES = CHUNKS * SLICE_BYTES;
#define RING_BYTES (STAGES * 2 * ROW_BYTES)

struct RowPair {
    uint32_t base;    // of the stages
    uint32_t full;    // of their mbarriers
    int stage = 0;
    uint32_t phase = 0;
    const T* source[2];
    int64_t stride[2];
    int64_t row;     // the block's first
    int64_t rows;    // their number
    int64_t step;
    int length;

    DEVICE RowPair(const T* first, const T* second, int64_t first_stride, int64_t second_stride, int64_t row,
                   int64_t step, int length)
        : source{first, second}, stride{first_stride, second_stride}, row(row), step(step), length(length) {
        DYNAMIC_SHARED(stages);
        SHARED uint64_t barriers[STAGES];
        base = shared_address(stages);
        full = shared_address(barriers);
    }

    // `left` counts the rows from the one in hand on.
    DEVICE void start(int64_t left) {
        rows = row + left;
        if (thread_x() == 0) {
#pragma unroll
            for (int i = 0; i < STAGES; ++i) barrier_init(full + i * 8, 1);
            barrier_init_fence();
        }
        barrier();
        if (thread_x() == 0) {
            for (int i = 0; i < STAGES; ++i) fill(i, left - i * step);
        }
    }
    // Starts the copies of the next row, if there is one; called by one thread.
    DEVICE void fill(int into, int64_t left) const {
        if (left <= 0) return;
        const int64_t row = rows - left;
        const T* next[2] = {source[0] + row * stride[0], source[1] + row * stride[1]};
        const uint32_t done = full + into * 8;
        const uint32_t to = base + into * (2 * ROW_BYTES);
        if constexpr (CLUSTER == 1) {
            const uint32_t bytes = length * static_cast<uint32_t>(sizeof(T));
            barrier_expect(done, 2 * bytes);
            copy_bulk(to, next[0], bytes, done);
            copy_bulk(to + ROW_BYTES, next[1], bytes, done);
        } else {
            uint32_t bytes = 0;
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) bytes += part(c);
            barrier_expect(done, 2 * bytes);
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                const int column = c * CHUNK + row_lane() * VEC;
                if (part(c)) {
                    copy_bulk(to + c * SLICE_BYTES, next[0] + column, part(c), done);
                    copy_bulk(to + ROW_BYTES + c * SLICE_BYTES, next[1] + column, part(c), done);
                }
            }
        }
    }
    // Bytes of chunk c that this block holds, for thread 0.
    DEVICE uint32_t part(int c) const {
        const int left = (length - chunk_column(c)) * static_cast<int>(sizeof(T));
        return left < 0 ? 0 : left < SLICE_BYTES ? left : SLICE_BYTES;
    }

    template <int AHEAD = 0> DEVICE void wait() const {
        const bool wrapped = stage + AHEAD >= STAGES;
        barrier_wait(full + (stage + AHEAD - (wrapped ? STAGES : 0)) * 8, phase ^ wrapped);
    }
    // The lane's vectors of the first (0) or second (1) tensor; zeros beyond the row.
    template <int AHEAD = 0> DEVICE void read(cell<T, VEC> (&into)[CHUNKS], int which) const {
        const int slot = stage + AHEAD - (stage + AHEAD >= STAGES ? STAGES : 0);
        const uint32_t from = base + slot * (2 * ROW_BYTES) + which * ROW_BYTES + thread_x() * 16;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            into[c].clear();
            if (chunk_column(c) < length) into[c].part[0] = load_shared(from + c * SLICE_BYTES);
        }
    }
    // All lanes have read the row in hand: its stage takes another.
    DEVICE void release(int64_t left) const {
        if (thread_x() == 0) fill(stage, left - STAGES * step);
    }
    DEVICE void advance(int64_t) {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};
