// Persistent, warp-specialised rows: rows pass through a ring of slots in shared memory (a pipeline,
// ../ptx/pipeline.h). A slot holds one chunk of one row of TENSORS tensors, this block's part of it. Of the warps
// beyond THREADS the first reduces the partial statistics of a row, the second is the producer and starts the bulk
// copies; where two rows fit, the consumers wait for a row's totals only after they have computed the statistics of the
// next row. Needs Hopper.
//
// Defines: TENSORS, SLOTS, and those of rows.h.
#pragma once

#include "_lib/ptx/pipeline.h"
#include "hopper_rows.h"
#include "rows.h"

static_assert(TAIL == 0 && VEC > 1 && ROWS == 1, "the ring holds whole vectors of one row per block");
static_assert(VEC * sizeof(T) == 16, "one access per vector");
static_assert(SLOTS > CHUNKS, "the next row's copies need room beside a row");

constexpr int PART_BYTES = THREADS * 16;
constexpr int SLOT_BYTES = TENSORS * PART_BYTES;
constexpr int RING_THREADS = THREADS + 2 * WARP;
// Whether the next row's statistics are computed before the wait for a row's totals.
constexpr bool AHEAD = SLOTS > 2 * CHUNKS;
constexpr int TOTALS = 4;    // rows whose totals may be in flight at once
#define RING_KERNEL KERNEL_RESIDENT(RING_THREADS, RESIDENT) CLUSTERED

// A slot of the ring, and the parity of its phase.
using RingPosition = PipelineState<SLOTS>;

// Shared memory through which the warps of a block, and then the blocks of a cluster, exchange a row's statistics.
template <int COUNT> struct Totals {
    alignas(4 * COUNT) float of_warp[2][WARPS][COUNT];
    alignas(4 * COUNT) float of_block[TOTALS][CLUSTER][COUNT];
    alignas(8) uint64_t arrived[TOTALS];
    uint64_t full[SLOTS];
    uint64_t empty[SLOTS];
};

template <int COUNT> struct Ring {
    Totals<COUNT>& totals;
    uint32_t slots, full, empty;
    int row_count;    // rows of this block

    DEVICE Ring(Totals<COUNT>& totals, int64_t rows, int blocks) : totals(totals) {
        DYNAMIC_SHARED(memory);
        slots = shared_address(memory);
        full = shared_address(totals.full);
        empty = shared_address(totals.empty);
        const int64_t left = rows - row_block();
        row_count = left > 0 ? static_cast<int>((left + blocks - 1) / blocks) : 0;
        if (thread_x() == 0) {
#pragma unroll 1
            for (int i = 0; i < SLOTS; ++i) {
                mbarrier_init(full + i * 8, 1);
                mbarrier_init(empty + i * 8, WARPS);
            }
#pragma unroll
            for (int i = 0; i < TOTALS; ++i) mbarrier_init(shared_address(&totals.arrived[i]), 1);
            mbarrier_init_fence();
        }
#if CLUSTER > 1
        __syncwarp();
        cluster_arrive_relaxed();
        cluster_wait();
#else
        barrier();
#endif
    }
    DEVICE bool is_compute_warp() const { return warp_index() < WARPS; }
    DEVICE bool is_reduce_warp() const { return warp_index() == WARPS; }

    // --- the producer warp ---

    // `source` are the tensors' first rows, `stride` their row strides.
    DEVICE void load_rows(const T* const (&source)[TENSORS], const int64_t (&stride)[TENSORS], int blocks,
                     int length) const {
        if (warp_lane() != 0) return;
        RingPosition at;
#if CLUSTER > 1
        const int first = cluster_rank() * THREADS;
#else
        const int first = 0;
#endif
        for (int local_row = 0; local_row < row_count; ++local_row) {
            const int64_t row = row_block() + static_cast<int64_t>(local_row) * blocks;
#pragma unroll 1
            for (int c = 0; c < CHUNKS; ++c, at.advance()) {
                if (local_row * CHUNKS + c >= SLOTS) mbarrier_wait(empty + at.stage * 8, at.phase ^ 1);
                const int column = (c * LANES + first) * VEC;
                const int left = (length - column) * static_cast<int>(sizeof(T));
                const uint32_t bytes = left < 0 ? 0 : left < PART_BYTES ? left : PART_BYTES;
                const uint32_t done = full + at.stage * 8;
                mbarrier_arrive_expect_tx(done, TENSORS * bytes);
                if (bytes == 0) continue;
#pragma unroll
                for (int t = 0; t < TENSORS; ++t) {
                    bulk_copy_g2s(slots + at.stage * SLOT_BYTES + t * PART_BYTES,
                              source[t] + row * stride[t] + column, bytes, done);
                }
            }
        }
    }

    // --- the reduction warp ---

    template <class Part> DEVICE void reduce_rows(Part part) const {
        for (int local_row = 0; local_row < row_count; ++local_row) {
            named_barrier_sync(1 + (local_row & 1), THREADS + WARP);
            take(part.value, totals.of_warp[local_row & 1][warp_lane() % WARPS]);
            part.template merge_warps<WARPS>();
            const int slot = local_row & (TOTALS - 1);
            uint64_t* arrived = &totals.arrived[slot];
#if CLUSTER > 1
            if (warp_lane() == 0) mbarrier_arrive_expect_tx(shared_address(arrived), sizeof(totals.of_block[0]));
            __syncwarp();
            if (warp_lane() < CLUSTER) {
                send(totals.of_block[slot][cluster_rank()], part.value, arrived, warp_lane());
            }
#else
            if (warp_lane() == 0) {
#pragma unroll
                for (int k = 0; k < COUNT; ++k) totals.of_block[slot][0][k] = part.value[k];
                mbarrier_arrive(shared_address(arrived));
            }
#endif
        }
    }

    // --- the consumer warps ---

    // Waits for the copies of the chunk at `at`.
    DEVICE void wait(const RingPosition& at) const { mbarrier_wait(full + at.stage * 8, at.phase); }
    // The lane's vector of one tensor of chunk c, which is at `at`; zeros beyond the row.
    DEVICE Vector<T, VEC> read(const RingPosition& at, int which, int c, int length) const {
        Vector<T, VEC> found;
        found.clear();
        if (chunk_column(c) < length) {
            const uint32_t part = slots + at.stage * SLOT_BYTES + which * PART_BYTES;
            found.part[0] = load_shared(part + thread_x() * 16);
        }
        return found;
    }
    // Releases the slot at `at`: this warp has used the chunk and stored what depends on it. A load alone may still be
    // in flight when the arrival is seen: with loads from memory in front of it, the next copy was read in its place
    // (some lanes of 33 float32 rows of 262144; H200, 2026-11-21).
    DEVICE void release(const RingPosition& at) const {
        __syncwarp();
        if (warp_lane() == 0) mbarrier_arrive(empty + at.stage * 8);
    }
    // Publishes this warp's part of row `local_row` to the reduction warp: lane k < COUNT has value k.
    DEVICE void publish(int local_row, float mine) const {
        if (warp_lane() < COUNT) totals.of_warp[local_row & 1][warp_index()][warp_lane()] = mine;
        __syncwarp();
        named_barrier_arrive(1 + (local_row & 1), THREADS + WARP);
    }
    // Waits for the totals of row `local_row`.
    template <class Part> DEVICE void wait_total(Part& part, int local_row) const {
        const int slot = local_row & (TOTALS - 1);
        mbarrier_wait(shared_address(&totals.arrived[slot]), local_row / TOTALS & 1);
        take(part.value, totals.of_block[slot][warp_lane() % CLUSTER]);
#if CLUSTER > 1
        part.template merge_blocks<CLUSTER>();
#endif
    }
};
