// Which sequence of packed ones a block's queries are of. Sequence z of `count` + 1 begins at the largest
// of the offsets up to its own, all of them within 0..total; sequence 0 is what lies before the first
// offset, the last what lies behind the last: they have no keys.
//
// A sequence's tiles begin at entry begin / TILE + z, which leaves room for all of those before it. Every
// wave finds its sequence for itself: WARP offsets at a time, by running maxima.
#pragma once

#include "hip_matrix.h"

struct Offsets {
    const int* data;
    int count, total;

    // Where sequence z begins. Every lane of the wave takes part.
    DEVICE int begin(int z) const {
        int found = 0;
        for (int i = lane_of_wave(); i < least(z, count); i += WARP) {
            found = greatest(found, data[i]);
        }
        for (int mask = WARP / 2; mask > 0; mask /= 2) {
            found = greatest(found, shuffle_xor(found, mask));
        }
        return z > count ? total : least(__builtin_amdgcn_readfirstlane(found), total);
    }

    // The last sequence whose tiles begin at `entry` or before.
    template <int TILE> DEVICE int sequence_of(int entry) const {
        const int lane = lane_of_wave();
        int before = 0;
        for (int first = 0; first < count; first += WARP) {
            const int i = first + lane;
            int begins = greatest(i < count ? least(data[i], total) : 0, before);  // of sequence i + 1
            for (int step = 1; step < WARP; step *= 2) {
                const int other = __builtin_amdgcn_ds_bpermute((lane - step) << 2, begins);
                begins = lane >= step ? greatest(begins, other) : begins;
            }
            const uint64_t later = lanes_where(i >= count || begins / TILE + i + 1 > entry);
            if (later != 0) {
                return first + __builtin_ctzll(later);
            }
            before = __builtin_amdgcn_readlane(begins, WARP - 1);
        }
        return count;
    }
};
