// How the steps of k of some tiles are divided among clusters of blocks: each takes a run of them, as long as any
// other to one step, so that a tile is summed in parts. At least one step each, and as many clusters as tiles: a run
// touches two tiles at most.
#pragma once

#include "prelude.h"

struct Division {
    uint32_t steps, clusters;

    // The first step of a cluster's run.
    DEVICE uint32_t start(uint32_t cluster) const {
        return static_cast<uint32_t>(static_cast<uint64_t>(steps) * cluster / clusters);
    }
    // The cluster whose run holds a step.
    DEVICE uint32_t owner(uint32_t step) const {
        return static_cast<uint32_t>((static_cast<uint64_t>(step + 1) * clusters - 1) / steps);
    }
};
