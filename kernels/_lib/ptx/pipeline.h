// A pipeline of shared-memory stages between producers (TMA) and consumers, as CUTLASS's PipelineTmaAsync: each stage
// has a full barrier, at which its copies arrive, and an empty barrier, at which its consumers do.
//
//     struct Stages : Pipeline<STAGES, STAGE_BYTES> {            // names what a stage holds
//         using Pipeline::Pipeline;
//         DEVICE uint32_t a() const { return stage_base(); }
//         DEVICE uint32_t b() const { return stage_base() + A_BYTES; }
//     };
//     Stages stages(base, barriers);                             // 2 * 8 * STAGES bytes of barriers
//     stages.init(CONSUMERS);                                    // one thread; then mbarrier_init_fence(), a barrier
//
//     producer: stages.wait_empty(); mbarrier_arrive_expect_tx(stages.full_barrier(), bytes); copies; stages.advance();
//     consumer: stages.wait_full(); products; mbarrier_arrive(stages.empty_barrier()); stages.advance();
//
// Every thread has a copy with its own position; all start at the first stage. A wait for an empty stage returns at
// once in the first round: the phase before a new barrier's first counts as complete.
#pragma once

#include "prelude.h"

#include "mbarrier.h"

// A position among COUNT stages (STAGES is a kernel's define): the stage, and the parity of its barriers' current
// phase.
template <int COUNT> struct PipelineState {
    int stage = 0;
    uint32_t phase = 0;

    DEVICE void advance() {
        if (++stage == COUNT) {
            stage = 0;
            phase ^= 1;
        }
    }
};

// `base` and `barriers` are shared-memory addresses: of the first stage, and of the full barriers, which the empty ones
// follow; with ALTERNATING each stage's full barrier is followed by its empty one.
template <int COUNT, int BYTES, bool ALTERNATING = false> struct Pipeline : PipelineState<COUNT> {
    static constexpr int BARRIER_STRIDE = ALTERNATING ? 16 : 8;
    static constexpr int EMPTY_OFFSET = ALTERNATING ? 8 : COUNT * 8;

    uint32_t base, barriers;

    DEVICE Pipeline(uint32_t base, uint32_t barriers) : base(base), barriers(barriers) {}

    // By one thread. `consumers` arrivals make a stage empty, `producers` and their copies make it full.
    DEVICE void init(int consumers, int producers = 1) const {
        for (int i = 0; i < COUNT; ++i) {
            mbarrier_init(barriers + i * BARRIER_STRIDE, producers);
            mbarrier_init(barriers + EMPTY_OFFSET + i * BARRIER_STRIDE, consumers);
        }
    }

    DEVICE uint32_t stage_base() const { return base + this->stage * BYTES; }
    DEVICE uint32_t full_barrier() const { return barriers + this->stage * BARRIER_STRIDE; }
    DEVICE uint32_t empty_barrier() const { return full_barrier() + EMPTY_OFFSET; }
    DEVICE void wait_full() const { mbarrier_wait(full_barrier(), this->phase); }
    DEVICE void wait_empty() const { mbarrier_wait(empty_barrier(), this->phase ^ 1); }
};
