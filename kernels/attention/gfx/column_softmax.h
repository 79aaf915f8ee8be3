// The online softmax of the 16 queries whose scores are an accumulator fragment's columns: a lane has a part of one
// query's keys, lanes of a column share it. Scores are in base 2.
//
// Lazy rescaling: a query's row_max is raised, and its accumulators are rescaled, only where it grew by more than
// RESCALE_THRESHOLD; the offset cancels in acc_o / row_sum. A score of -inf hides its key. NaN reaches row_sum by
// itself; +inf becomes NaN in `exponent_offset`.
#pragma once

#include "attention/device/softmax.h"
#include "fragment.h"

// What is subtracted in a row's exponents: 0 where no key is seen, NaN where there is a score of +inf.
DEVICE float exponent_offset(float row_max) { return row_max == -INF_F ? 0.0f : row_max + (row_max - row_max); }

struct ColumnSoftmax {
    float row_max = -INF_F;
    float row_sum = 0.0f;  // over the keys that this lane holds

    // `lane_max`: of the lane's new scores. Returns the factor by which earlier accumulators are rescaled.
    DEVICE float update_max(float lane_max) {
        const float new_max = math_max_number(row_max, column_max(lane_max));
        const float growth = new_max - row_max;  // NaN where both are infinite and alike
        const bool rescales = growth > RESCALE_THRESHOLD;
        const float factor = rescales ? exp2_ftz(-growth) : 1.0f;
        row_max = rescales ? new_max : row_max;
        row_sum *= factor;
        return factor;
    }
};
