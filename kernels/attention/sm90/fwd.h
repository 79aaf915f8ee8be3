// What the forward kernels on wgmma share: their stages, boxes of rows, and small tools of a warpgroup.
#pragma once

#include "prelude.h"

#include "_lib/ptx/mbarrier.h"
#include "_lib/ptx/pipeline.h"
#include "_lib/ptx/tma.h"
#include "attention/device/params.h"
#include "attention/device/softmax.h"
#include "attention/device/tile_scheduler.h"
#include "epilogue.h"

template <int BYTES, int COUNT> struct Stages : Pipeline<COUNT, BYTES, true> {
    DEVICE Stages(uint32_t base, uint32_t barriers) : Pipeline<COUNT, BYTES, true>(base, barriers) {}

    // These stages one behind a pipeline of as many.
    template <class Other> DEVICE Stages behind(const Other& other) const {
        Stages found(this->base, this->barriers);
        found.stage = other.stage ? other.stage - 1 : COUNT - 1;
        found.phase = other.stage ? other.phase : other.phase ^ 1;
        return found;
    }
};

// What else a launch says: `tma_steps` has bits, whether the descriptors of q, k, v step by head, by batch.
struct Schedule {
    int heads_per_band;
    uint32_t all_heads;
    int tma_steps;
};

// A head's outputs, from the first query of the tile's sequence on.
template <class T, bool Sinks> DEVICE HeadOutput<T> dense_output(const DenseTile& tile, const AttentionParams& p) {
    const uint32_t batch = tile.head / p.heads, head = tile.head % p.heads;
    const float sink = Sinks ? p.sinks[head] * LOG2_E : -INF_F;
    return {static_cast<T*>(p.o) + batch * p.o_batch + head * p.o_head, p.lse + batch * p.lse_batch + head * p.lse_head,
            sink};
}

// BLOCKS times 128 bytes of LINES rows as blocks of 128 bytes, which are PER_BLOCK elements.
template <int BLOCKS, int LINES, int PER_BLOCK>
DEVICE void load_blocks(uint32_t to, const TensorMap* map, uint32_t barrier, int row, int head, int batch) {
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) tma_load_4d(to + i * LINES * 128, map, barrier, i * PER_BLOCK, row, head, batch);
}

// A value that all lanes share: the compiler may keep it in a uniform register.
template <class V> DEVICE V uniform(V value) { return __shfl_sync(0xffffffffu, value, 0); }

// Tells the producer that a stage, or q, may be refilled.
DEVICE void release(uint32_t empty) {
    if (thread_x() % 128 == 0) mbarrier_arrive(empty);
}

DEVICE void arrive_next_warpgroup(int id) { asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory"); }
